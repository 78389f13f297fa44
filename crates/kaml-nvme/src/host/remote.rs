//! A remote device with the interface of a local one: over NVMe/TCP, or attached by Linux.
//!
//! Lives here:       addresses, opening, sending again, errors of a local device.
//! Lives elsewhere:  ways to a device (`carrier`, `passthrough`), its commands (`remote_commands`), what the cache and
//!                   transactions need of it (`remote_backing`).
//!
//! When the connection is lost, it is made again. Reads are repeated. So are Puts without conditions to namespaces that keep no
//! versions: a second Put of the same records leaves what the first one left. Other changes of records and versions carry a number, by
//! which the target knows a command that it has executed already (`carrier`). Where it cannot know, because it was restarted or has no
//! such numbers, the caller gets an error that reports it.

use super::carrier::{ATTEMPT_PAUSE, ATTEMPTS_MAX, Carrier, Tcp};
use super::passthrough::{Passthrough, is_node};
use super::{Error, Execute, Finished, HostOptions};
use crate::wire::command::{Command, admin};
use crate::wire::identify::{KvNamespace, PAGE_BYTES, cns};
use crate::wire::logs::{LogRequest, lid};
use crate::wire::status::Status;
use crate::wire::vendor::{DevicePage, feature};
use kaml::store::Limits;
use kaml::{KeyBuf, NamespaceId, NamespaceKind, VersionShape};
use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use zerocopy::FromBytes;

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

/// See the module. All calls can be made from any thread at once; clones share their connections.
#[derive(Clone)]
pub struct RemoteDevice {
    pub(super) carrier: Arc<dyn Carrier>,
    pub(super) limits: Limits,
    /// Commands of ours that it takes (`wire::vendor::feature`).
    features: u64,
    /// The longest values of namespaces that were looked up.
    value_limits: Arc<Mutex<BTreeMap<NamespaceId, u64>>>,
    /// What namespaces hold, of those that were looked up.
    kinds: Arc<Mutex<BTreeMap<NamespaceId, NamespaceKind<VersionShape>>>>,
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
        let mut device =
            RemoteDevice { carrier, limits: unknown, features: 0, value_limits: Arc::default(), kinds: Arc::default() };
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

    /// What a controller reports that has nothing of ours.
    fn standard_limits(&self, transfer_max: u64) -> Result<Limits, Error> {
        let nsid = self.standard_namespaces()?.first().copied().unwrap_or(0);
        let value_bytes_max = self.told_value_bytes_max(nsid)?.min(transfer_max);
        Ok(Limits { value_bytes_max, batch_bytes_max: value_bytes_max })
    }

    /// What a namespace reports about its longest value; 0 if there is none of the number.
    fn told_value_bytes_max(&self, namespace: NamespaceId) -> Result<u64, Error> {
        let page = self.identify(cns::SET_NAMESPACE, namespace, 1)?;
        let (space, _) =
            KvNamespace::read_from_prefix(&page).map_err(|_| Error::Unsupported("the Key Value command set"))?;
        Ok(space.formats[usize::from(space.kvfc & 0xf)].value_bytes_max.get().into())
    }

    /// The longest value that a namespace takes, as Identify reports it. It does not change, so it is
    /// looked up one time.
    pub(super) fn value_bytes_max_of(&self, namespace: NamespaceId) -> u64 {
        let known = || self.value_limits.lock().expect("no panics under this lock");
        if let Some(max) = known().get(&namespace).copied() {
            return max;
        }
        match self.told_value_bytes_max(namespace) {
            Ok(told) if told > 0 => {
                let mut max = told.min(self.limits.value_bytes_max);
                if max > self.long_value_bytes_max() && self.has_long_keys(namespace).unwrap_or(true) {
                    max = self.long_value_bytes_max();
                }
                known().insert(namespace, max);
                max
            }
            // It does not exist, or not ours, or cannot be read now: a Put will show.
            Ok(_) | Err(_) => self.limits.value_bytes_max,
        }
    }

    /// Whether a Put to a namespace can be sent twice: not where each one is a version. One that is not listed may keep
    /// versions.
    pub(super) fn may_repeat_puts(&self, namespace: NamespaceId) -> Result<bool, Error> {
        if !self.can(feature::VERSIONS) {
            return Ok(true);
        }
        Ok(self.kind_of(namespace)?.is_some_and(|kind| !matches!(kind, NamespaceKind::Versions(..))))
    }

    /// What a namespace holds; nothing if it is not listed. Numbers are never used again, so each namespace is looked up once.
    pub(super) fn kind_of(&self, namespace: NamespaceId) -> Result<Option<NamespaceKind<VersionShape>>, Error> {
        let known = || self.kinds.lock().expect("no panics under this lock");
        if let Some(kind) = known().get(&namespace).copied() {
            return Ok(Some(kind));
        }
        let infos = self.named_namespaces()?;
        known().extend(infos.iter().map(|info| (info.id, info.kind)));
        Ok(known().get(&namespace).copied())
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
        Ok(again(sent)?.success()?.data)
    }

    pub(super) fn log_page(&self, lid: u8, offset: u64, bytes: usize) -> Result<Vec<u8>, Error> {
        let command = LogRequest { lid, retain: true, offset, bytes, csi: 0 }.command(u32::MAX);
        let sent = || self.carrier.admin(command, &[], bytes);
        Ok(again(sent)?.success()?.data)
    }
}

/// Commands that can be sent twice.
impl Execute for RemoteDevice {
    fn execute(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error> {
        again(|| self.carrier.io(command, data, room))
    }
}

/// Commands that must not take effect twice.
pub(super) struct Once<'a>(pub(super) &'a RemoteDevice);

impl Execute for Once<'_> {
    fn execute(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error> {
        self.0.carrier.once(command, data, room)
    }
}

/// Sends a command, again while the connection is lost.
fn again(send: impl Fn() -> Result<Finished, Error>) -> Result<Finished, Error> {
    for attempt in 0..ATTEMPTS_MAX {
        match send() {
            Err(Error::Connection(_)) => {
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

/// An error as a local device has it, as far as the response shows.
pub(super) fn local(error: Error, namespace: NamespaceId, key: Option<&KeyBuf>) -> kaml::Error {
    use kaml::Error as E;
    let status = error.status();
    let is = |of| status.is_some_and(|status| status.is(of));
    match key {
        Some(key) if is(Status::NO_SUCH_KEY) => E::Conflict { namespace, key: key.clone(), present: false },
        Some(key) if is(Status::KEY_EXISTS) => E::Conflict { namespace, key: key.clone(), present: true },
        _ if is(Status::INVALID_NAMESPACE) => E::UnknownNamespace(namespace),
        _ if is(Status::SNAPSHOT_TOO_OLD) => E::SnapshotTooOld,
        _ if is(Status::FELL_BEHIND) => E::FellBehind,
        _ if is(Status::NO_VERSIONS) => E::KeepsNoVersions(namespace),
        _ => E::Remote(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Options, Server};
    use kaml::{CreateOptions, Device};
    use std::ops::ControlFlow;

    /// Goal:   a server that has no backups over the network, because its version is an earlier one, is named with what to do.
    /// Method: a target of this version, without the bit of that feature.
    #[test]
    fn servers_of_earlier_versions_take_no_backups() {
        let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
        let server = Server::bind(&device, "127.0.0.1:0", Options::for_device(&device)).unwrap();
        let url = format!("nvme+tcp://{}/{}", server.address(), server.options().subsystem).parse().unwrap();
        let stopper = server.stopper();
        let serving = std::thread::spawn(|| server.run());
        let mut remote = RemoteDevice::open(&url, &HostOptions::default()).unwrap();
        assert!(remote.can(feature::BACKUPS));
        remote.features &= !feature::BACKUPS;
        let refused = remote.backup(&mut Vec::new(), None, &mut |_, _| ControlFlow::Continue(()));
        let Err(kaml::Error::Remote(text)) = refused else { panic!("{refused:?}") };
        assert!(text.contains("earlier version") && text.contains("device file"), "{text}");
        stopper.stop();
        serving.join().unwrap().unwrap();
    }
}
