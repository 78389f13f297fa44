//! Reading a namespace as of one moment, wherever its device is.
//!
//! Lives here:       the snapshot of a device that others change meanwhile, and reads through it.
//! Lives elsewhere:  devices (`place`), snapshots over NVMe (`kaml_nvme::host`).
//! May be called by: `commands`.

use crate::failure::Failure;
use crate::place::Place;
use kaml::{KeyBuf, KeyRef, NamespaceId, NamespaceInfo, NamespaceKind};
use kaml_nvme::host::RemoteSnapshot;
use std::ops::Bound;

/// Keys fetched from the device at a time.
const PAGE_KEYS: usize = 4096;

type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// A namespace as of one moment. A local device has no other users while a command has it open. Of a remote one a snapshot is read; versioned
/// namespaces and controllers without snapshots are read as they are.
pub struct Moment<'a> {
    device: &'a dyn Place,
    id: NamespaceId,
    snapshot: Option<RemoteSnapshot>,
}

impl<'a> Moment<'a> {
    /// Of now.
    pub fn now(device: &'a dyn Place, namespace: &NamespaceInfo) -> Result<Moment<'a>, Failure> {
        let snapshot = match namespace.kind {
            NamespaceKind::Records(_) => device.open_remote_snapshot()?,
            NamespaceKind::Versions(..) | NamespaceKind::Blocks(_) => None,
        };
        Ok(Moment { device, id: namespace.id, snapshot })
    }

    /// Reads a value.
    pub fn get(&self, key: KeyRef<'_>) -> Result<Option<Vec<u8>>, kaml::Error> {
        match &self.snapshot {
            Some(snapshot) => snapshot.get(self.id, key),
            None => self.device.get(self.id, key),
        }
    }

    /// As [`Place::list`].
    pub fn list(&self, after: Option<&KeyBuf>, limit: usize) -> Result<Vec<KeyBuf>, kaml::Error> {
        match &self.snapshot {
            Some(snapshot) => snapshot.list(self.id, after, limit),
            None => self.device.list(self.id, after, limit),
        }
    }

    /// As [`Place::range`].
    pub fn range(&self, bounds: Bounds<'_>, reverse: bool, limit: usize) -> Result<Vec<KeyBuf>, kaml::Error> {
        match &self.snapshot {
            Some(snapshot) => snapshot.range_keys(self.id, bounds, reverse, limit),
            None => self.device.range(self.id, bounds, reverse, limit),
        }
    }

    /// As [`Place::records`].
    pub fn records(
        &self,
        bounds: Bounds<'_>,
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<(KeyBuf, Vec<u8>)>, kaml::Error> {
        match &self.snapshot {
            Some(snapshot) => snapshot.range(self.id, bounds, reverse, limit),
            None => self.device.records(self.id, bounds, reverse, limit),
        }
    }

    /// As [`Place::count_range`].
    pub fn count_range(&self, bounds: Bounds<'_>) -> Result<u64, kaml::Error> {
        match &self.snapshot {
            Some(snapshot) => snapshot.count_range(self.id, bounds),
            None => self.device.count_range(self.id, bounds),
        }
    }

    /// Every key, in the order of its listing.
    pub fn for_each_key(&self, mut each: impl FnMut(KeyBuf) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut after: Option<KeyBuf> = None;
        loop {
            let page = self.list(after.as_ref(), PAGE_KEYS)?;
            after = match page.last() {
                None => return Ok(()),
                last => last.cloned(),
            };
            page.into_iter().try_for_each(&mut each)?;
        }
    }
}
