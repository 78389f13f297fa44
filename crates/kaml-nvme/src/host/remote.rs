//! A device somewhere else, as one that is here: behind NVMe/TCP, or attached by Linux.
//!
//! Lives here:       addresses, opening, sending again, errors of a local device.
//! Lives elsewhere:  ways to a device (`carrier`, `passthrough`), its commands (`remote_commands`), what the cache and
//!                   transactions need of it (`remote_backing`).
//!
//! When the connection is lost, it is made again. Reads are repeated; so are Puts without conditions, for which twice is
//! as good as once. What a lost Put with a condition came to cannot be known: that is an error.

use super::carrier::{Carrier, Tcp};
use super::passthrough::{Passthrough, is_node};
use super::{Error, Execute, Finished, HostOptions};
use crate::wire::command::{Command, admin};
use crate::wire::identify::{KvNamespace, PAGE_BYTES, cns};
use crate::wire::logs::{LogRequest, lid};
use crate::wire::status::Status;
use crate::wire::vendor::DevicePage;
use kaml::store::Limits;
use kaml::{Key, NamespaceId};
use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zerocopy::FromBytes;

/// Attempts to send a command again before it fails, and the pause before each but the first.
const ATTEMPTS_MAX: u32 = 20;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(500);

/// Where a device is: `nvme+tcp://HOST:PORT/SUBSYSTEM`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteUrl {
    /// Host and port.
    pub address: String,
    /// The subsystem's qualified name.
    pub subsystem: String,
}

impl FromStr for RemoteUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<RemoteUrl, Error> {
        let bad = |why| Error::Url { url: url.to_owned(), why };
        let rest = url.strip_prefix("nvme+tcp://").ok_or(bad("it must begin with nvme+tcp://"))?;
        let (address, subsystem) =
            rest.split_once('/').ok_or(bad("it must name a subsystem: nvme+tcp://host:port/nqn…"))?;
        if !crate::wire::text::is_nqn(subsystem) {
            return Err(bad("the subsystem's name must begin with `nqn.`"));
        }
        let address = if address.contains(':') { address.to_owned() } else { format!("{address}:4420") };
        Ok(RemoteUrl { address, subsystem: subsystem.to_owned() })
    }
}

/// See the module. All calls may be made from any thread at once; clones share their connections.
#[derive(Clone)]
pub struct RemoteDevice {
    pub(super) carrier: Arc<dyn Carrier>,
    pub(super) limits: Limits,
    /// Commands of ours that it takes (`wire::vendor::feature`).
    features: u64,
    /// The longest values of namespaces that were asked for.
    value_limits: Arc<Mutex<BTreeMap<NamespaceId, u64>>>,
}

impl RemoteDevice {
    /// Connects.
    pub fn open(url: &RemoteUrl, options: &HostOptions) -> Result<RemoteDevice, Error> {
        RemoteDevice::over(Arc::new(Tcp::connect(&url.address, &url.subsystem, options)?))
    }

    /// Opens the device of a namespace that Linux has attached, by its node: `/dev/ngXnY`. Other namespaces of the device are
    /// reached by theirs.
    pub fn open_node(path: &Path) -> Result<RemoteDevice, Error> {
        RemoteDevice::over(Arc::new(Passthrough::open(path)?))
    }

    /// Opens what a path names, if it is somewhere else: an address, or a node. Nothing if it is a file or a disk.
    pub fn open_named(path: &Path, options: &HostOptions) -> Option<Result<RemoteDevice, Error>> {
        match path.to_str().filter(|text| text.starts_with("nvme+tcp:")) {
            Some(url) => Some(url.parse().and_then(|url| RemoteDevice::open(&url, options))),
            None => is_node(path).then(|| RemoteDevice::open_node(path)),
        }
    }

    fn over(carrier: Arc<dyn Carrier>) -> Result<RemoteDevice, Error> {
        let unknown = Limits { value_bytes_max: 0, batch_bytes_max: 0 };
        let mut device = RemoteDevice { carrier, limits: unknown, features: 0, value_limits: Arc::default() };
        let transfer_max = device.carrier.transfer_bytes_max() as u64;
        device.limits = match device.page() {
            Ok(Some(page)) => {
                device.features = page.features.get();
                let value_bytes_max = page.value_bytes_max.get().min(transfer_max);
                Limits { value_bytes_max, batch_bytes_max: page.batch_bytes_max.get() }
            }
            _ => device.standard_limits(transfer_max)?,
        };
        Ok(device)
    }

    /// What a controller says that has nothing of ours.
    fn standard_limits(&self, transfer_max: u64) -> Result<Limits, Error> {
        let nsid = self.standard_namespaces()?.first().copied().unwrap_or(0);
        let value_bytes_max = self.told_value_bytes_max(nsid)?.min(transfer_max);
        Ok(Limits { value_bytes_max, batch_bytes_max: value_bytes_max })
    }

    /// What a namespace says of its longest value; 0 if there is none of the number.
    fn told_value_bytes_max(&self, namespace: NamespaceId) -> Result<u64, Error> {
        let page = self.identify(cns::SET_NAMESPACE, namespace, 1)?;
        let (space, _) =
            KvNamespace::read_from_prefix(&page).map_err(|_| Error::Unsupported("the Key Value command set"))?;
        Ok(space.formats[usize::from(space.kvfc & 0xf)].value_bytes_max.get().into())
    }

    /// The longest value that a namespace takes: where versions are kept, shorter ones than elsewhere. It does not change, so it is
    /// asked for once.
    pub(super) fn value_bytes_max_of(&self, namespace: NamespaceId) -> u64 {
        let known = || self.value_limits.lock().expect("no panics under this lock");
        if let Some(max) = known().get(&namespace).copied() {
            return max;
        }
        match self.told_value_bytes_max(namespace) {
            Ok(told) if told > 0 => {
                let max = told.min(self.limits.value_bytes_max);
                known().insert(namespace, max);
                max
            }
            // It is not there, or not ours, or cannot be asked now: a Put will tell.
            Ok(_) | Err(_) => self.limits.value_bytes_max,
        }
    }

    /// Numbers of Key Value namespaces.
    pub(super) fn standard_namespaces(&self) -> Result<Vec<u32>, Error> {
        let list = self.identify(cns::SET_ACTIVE_NAMESPACES, 0, 1)?;
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four of them"));
        Ok(list.chunks_exact(4).map(number).take_while(|nsid| *nsid != 0).collect())
    }

    /// Whether there is a namespace of this number, attached to us or not.
    pub(super) fn is_allocated(&self, namespace: NamespaceId) -> Result<bool, Error> {
        let Some(behind) = namespace.checked_sub(1) else { return Ok(false) };
        let list = self.identify(cns::ALLOCATED_NAMESPACES, behind, 0)?;
        Ok(list.starts_with(&namespace.to_le_bytes()))
    }

    /// What the device can do and has done; nothing if it is not one of ours.
    pub fn page(&self) -> Result<Option<DevicePage>, Error> {
        match self.log_page(lid::KAML, 0, size_of::<DevicePage>()) {
            Ok(data) => Ok(DevicePage::read(&data)),
            Err(Error::Status(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where it is, for a person.
    pub fn name(&self) -> String {
        self.carrier.name()
    }

    /// The longest transfer of one command.
    pub fn transfer_bytes_max(&self) -> usize {
        self.carrier.transfer_bytes_max()
    }

    /// Whether it takes some commands of ours (`wire::vendor::feature`).
    pub(super) fn can(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    pub(super) fn identify(&self, what: u8, nsid: u32, csi: u8) -> Result<Vec<u8>, Error> {
        let mut command = Command::new(admin::IDENTIFY, nsid);
        command.cdw10 = u32::from(what).into();
        command.cdw11 = (u32::from(csi) << 24).into();
        let sent = || self.carrier.admin(command, &[], PAGE_BYTES);
        Ok(again(true, sent)?.success()?.data)
    }

    pub(super) fn log_page(&self, lid: u8, offset: u64, bytes: usize) -> Result<Vec<u8>, Error> {
        let command = LogRequest { lid, retain: true, offset, bytes, csi: 0 }.command(u32::MAX);
        let sent = || self.carrier.admin(command, &[], bytes);
        Ok(again(true, sent)?.success()?.data)
    }
}

/// Commands that may be sent twice.
impl Execute for RemoteDevice {
    fn execute(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error> {
        again(true, || self.carrier.io(command, data, room))
    }
}

/// Commands that may not be sent twice.
pub(super) struct Once<'a>(pub(super) &'a RemoteDevice);

impl Execute for Once<'_> {
    fn execute(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error> {
        again(false, || self.0.carrier.io(command, data, room))
    }
}

/// Sends a command, again while the connection is lost and it is `repeatable`.
fn again(repeatable: bool, send: impl Fn() -> Result<Finished, Error>) -> Result<Finished, Error> {
    for attempt in 0..ATTEMPTS_MAX {
        match send() {
            Err(Error::Connection(_)) if repeatable => {
                // The connection has just been made again, if that was possible.
                if attempt > 0 {
                    std::thread::sleep(ATTEMPT_PAUSE);
                }
            }
            done => return done,
        }
    }
    send()
}

/// An error as a local device has it, as far as the answer tells.
pub(super) fn local(error: Error, namespace: NamespaceId, key: Option<Key>) -> kaml::Error {
    use kaml_device::Error as E;
    let status = error.status();
    let is = |of| status.is_some_and(|status| status.is(of));
    match key {
        Some(key) if is(Status::NO_SUCH_KEY) => E::Conflict { namespace, key, present: false }.into(),
        Some(key) if is(Status::KEY_EXISTS) => E::Conflict { namespace, key, present: true }.into(),
        _ if is(Status::INVALID_NAMESPACE) => E::UnknownNamespace(namespace).into(),
        _ if is(Status::NO_VERSIONS) => E::KeepsNoVersions(namespace).into(),
        _ => kaml::Error::Remote(error.to_string()),
    }
}
