//! Where `kaml top` gets the state of a device from.
//!
//! Lives here:       an endpoint over HTTP, a target over NVMe/TCP, a device of this machine.
//! May be called by: `top`.

use super::http::Endpoint;
use crate::commands::info;
use crate::failure::Failure;
use crate::secrets::HostArguments;
use crate::store::named_by_place;
use kaml::{Device, OpenOptions};
use kaml_metrics::{Detail, State};
use kaml_nvme::host::RemoteDevice;
use serde_json::Value;
use std::path::Path;

/// See the module.
pub enum Source {
    /// `kaml serve --metrics`.
    Endpoint(Endpoint),
    /// A target.
    Remote(Box<RemoteDevice>),
    /// A device that nobody has open, so it does not change.
    Still(Box<Value>),
}

impl Source {
    /// Opens what a person named. A device of this machine that is served with `--metrics` is looked at there.
    pub fn open(place: &Path, host: &HostArguments) -> Result<Source, Failure> {
        let name = place.to_string_lossy();
        if let Some(endpoint) = Endpoint::of_url(&name)? {
            return Ok(Source::Endpoint(endpoint));
        }
        let remote = RemoteDevice::open_named(place, &host.options()?).transpose();
        let remote = remote.map_err(|error| match error {
            kaml_nvme::host::Error::Url { .. } => Failure::Usage(error.to_string()),
            _ => Failure::Failed(format!("{name}: {}", host.named(error))),
        })?;
        if let Some(remote) = remote {
            return Ok(Source::Remote(Box::new(remote)));
        }
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        match Device::open(place, &options) {
            Ok(device) => Ok(Source::Still(Box::new(value(&State::of(&device, Detail::Everything))?))),
            Err(error) => match endpoint_of_holder(&error) {
                Some(address) => Ok(Source::Endpoint(Endpoint::at(&address))),
                None => Err(named_by_place(place, error)),
            },
        }
    }

    /// The state of the device now.
    pub fn state(&mut self) -> Result<Value, Failure> {
        match self {
            Source::Endpoint(endpoint) => endpoint.state(),
            Source::Remote(remote) => value(&info::remote_state(remote)?),
            Source::Still(state) => Ok((**state).clone()),
        }
    }
}

fn value(state: &State) -> Result<Value, Failure> {
    serde_json::to_value(state).map_err(|error| Failure::Failed(format!("JSON: {error}")))
}

/// Where the process that has a device open serves metrics, if its arguments show that.
fn endpoint_of_holder(error: &kaml::Error) -> Option<String> {
    let kaml::Error::InUse { holder: Some(holder), .. } = error else { return None };
    let arguments = &holder.arguments;
    let mut found =
        arguments.iter().enumerate().filter_map(|(at, argument)| match argument.strip_prefix("--metrics")? {
            "" => arguments.get(at + 1).cloned(),
            rest => rest.strip_prefix('=').map(str::to_owned),
        });
    // Port 0 was replaced by another one.
    found.next().filter(|address| !address.ends_with(":0"))
}
