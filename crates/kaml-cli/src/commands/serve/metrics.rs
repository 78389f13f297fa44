//! The metrics endpoint of `kaml serve`.
//!
//! Lives here:       starting it, hosts as it shows them, what is wrong with its address.
//! Lives elsewhere:  the endpoint (`kaml-metrics`), which hosts are connected (`kaml-nvme`).
//! May be called by: `serve`.

use super::service::while_it_lingers;
use crate::failure::Failure;
use kaml::Device;
use kaml_metrics::{Error, Host, Server, State};
use kaml_nvme::target::{ConnectedHost, Monitor};
use std::time::Duration;

/// Serves the metrics of a device and of the hosts that are connected to it, until the server is dropped. An address that another process has is
/// tried again as long as the patience lasts.
pub fn start(address: &str, device: &Device, monitor: &Monitor, patience: Duration) -> Result<Server, Failure> {
    let start = || {
        let (device, monitor) = (device.clone(), monitor.clone());
        let state = move |detail| {
            let hosts = monitor.hosts().into_iter().filter(|host| !host.is_discovery).map(host);
            State::of(&device, detail).with_hosts(hosts.collect())
        };
        Server::start(address, state)
    };
    while_it_lingers(patience, |error| matches!(error, Error::InUse { .. }), start).map_err(|error| match error {
        Error::BadAddress { .. } => Failure::Usage(format!("--metrics: {error}")),
        _ => Failure::Failed(format!("--metrics: {error}")),
    })
}

fn host(host: ConnectedHost) -> Host {
    Host {
        name: host.name,
        controller: host.controller,
        peer: host.peer.map(|peer| peer.to_string()).unwrap_or_default(),
        queue_count: host.queue_count,
        command_count: host.command_count,
        connected_seconds: host.connected.as_secs(),
    }
}
