//! Snapshots of a device somewhere else.
//!
//! Lives here:       opening and closing one, and reads as of its moment.
//! Lives elsewhere:  the commands (`ranges`, `named`), reads of the present (`remote_ranges`, `remote_commands`).
//!
//! The controller closes a snapshot when the connection is lost. Reads through it then return an error: they never show another moment.

use super::remote::{RemoteDevice, local};
use super::remote_ranges::range_error;
use super::{Error, KeyValue};
use crate::wire::command::{Command, kv};
use crate::wire::ranges::KeyRange;
use crate::wire::vendor::feature;
use kaml::{KeyBuf, KeyRef, NamespaceId};
use std::ops::Bound;

/// For commands that need no namespace.
const ALL_NAMESPACES: u32 = u32::MAX;

/// All namespaces of records of a remote device as of one moment, as [`kaml::Snapshot`] has those of a local one. Dropping it closes it.
pub struct RemoteSnapshot {
    device: RemoteDevice,
    /// The namespace that its commands name.
    nsid: u32,
    number: u32,
}

impl RemoteDevice {
    /// Opens a snapshot of what is durable now; nothing if the controller has none. A controller has 16 at most.
    pub fn open_snapshot(&self) -> Result<Option<RemoteSnapshot>, kaml::Error> {
        if !self.can(feature::SNAPSHOTS) {
            return Ok(None);
        }
        let opened = self.open_snapshot_over(ALL_NAMESPACES).or_else(|first| {
            // Linux takes no command that is for all namespaces.
            let one = self.standard_namespaces()?.first().copied();
            one.map_or(Err(first), |nsid| self.open_snapshot_over(nsid))
        });
        opened.map(Some).map_err(|error| local(error, 0, None))
    }

    fn open_snapshot_over(&self, nsid: u32) -> Result<RemoteSnapshot, Error> {
        let number = KeyValue::new(self, nsid).open_snapshot()?;
        Ok(RemoteSnapshot { device: self.clone(), nsid, number })
    }
}

impl RemoteSnapshot {
    /// Reads a value; nothing if the key did not exist.
    pub fn get<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<Option<Vec<u8>>, kaml::Error> {
        let key = key.into().to_buf()?;
        self.device.get_long(self.number, namespace, &key).map_err(|error| range_error(error, namespace))
    }

    /// Whether a key existed.
    pub fn exists<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<bool, kaml::Error> {
        let key = key.into().to_buf()?;
        self.device.exists_long(self.number, namespace, &key).map_err(|error| range_error(error, namespace))
    }

    /// Keys after one, or from the first one on, at most `limit`: of an ordered namespace in their order, of others in that of the index.
    pub fn list(
        &self,
        namespace: NamespaceId,
        after: Option<&KeyBuf>,
        limit: usize,
    ) -> Result<Vec<KeyBuf>, kaml::Error> {
        let lower = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        self.device.keys_of((self.number, namespace), KeyRange { lower, ..KeyRange::ALL }, 0, limit)
    }

    /// Keys of an ordered namespace within bounds, as [`RemoteDevice::range_keys`].
    pub fn range_keys(
        &self,
        namespace: NamespaceId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<KeyBuf>, kaml::Error> {
        self.device.range_keys_at(self.number, namespace, bounds, reverse, limit)
    }

    /// Records of an ordered namespace within bounds, as [`RemoteDevice::range`].
    pub fn range(
        &self,
        namespace: NamespaceId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<(KeyBuf, Vec<u8>)>, kaml::Error> {
        self.device.range_at(self.number, namespace, bounds, reverse, limit)
    }

    /// How many keys of an ordered namespace were within bounds.
    pub fn count_range(
        &self,
        namespace: NamespaceId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<u64, kaml::Error> {
        self.device.count_range_at(self.number, namespace, bounds)
    }
}

impl Drop for RemoteSnapshot {
    fn drop(&mut self) {
        // Not again if the connection is lost: the controller has closed it then.
        let mut command = Command::new(kv::CLOSE_SNAPSHOT, self.nsid);
        command.cdw10 = self.number.into();
        let _ = self.device.carrier.io(command, &[], 0);
    }
}
