//! Snapshots of the whole device.
//!
//! Lives here:       [`Snapshot`], its reads and listings.
//! Lives elsewhere:  what a snapshot sees and keeps (`kaml-device`), its ranges (`range`), snapshots of versioned namespaces (`versions`).
//! Implements:       docs/ARCHITECTURE.md "Snapshots".

use crate::device::{Device, ListPage};
use crate::driver::{Lookup, Shared};
use crate::error::Error;
use crate::{Cursor, KeyBuf, KeyRef, NamespaceId, NamespaceInfo};
use kaml_device::{Buffered, FindError, Found, FullKey, RecordsAt, SnapshotStats, SnapshotTicket};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A consistent view of all namespaces of records as of one moment, to be read only. Clones are the same one. It is held in memory, and is
/// gone when the last clone is dropped or the device is closed.
///
/// Writers never wait for it. It keeps the records that are overwritten or deleted meanwhile. When their room is needed, the oldest snapshot
/// expires, and reads through it return [`Error::SnapshotTooOld`]. Namespaces of blocks and of versions cannot be read through it.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// device.put(users, "ada", b"before")?;
/// let snapshot = device.open_snapshot()?;
/// device.put(users, "ada", b"after")?;
/// assert_eq!(snapshot.get(users, "ada")?.as_deref(), Some(&b"before"[..]));
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone)]
pub struct Snapshot(Arc<Open>);

struct Open {
    shared: Arc<Shared>,
    /// Nothing after it was closed.
    ticket: Option<SnapshotTicket>,
    namespaces: Vec<NamespaceInfo>,
}

impl Drop for Open {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let mut core = self.shared.lock();
        let had_background = core.has_background();
        core.close_snapshot(ticket);
        let wake = core.has_background() && !had_background;
        drop(core);
        if wake {
            self.shared.wake_background();
        }
    }
}

impl Device {
    /// Opens a snapshot: what is durable now, of all namespaces of records. What has expired is not in it; what expires later remains in it.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::IndexDamaged`] if records of a namespace have expired whose index cannot be read.
    pub fn open_snapshot(&self) -> Result<Snapshot, Error> {
        let shared = self.shared();
        let mut core = shared.lock();
        // What has expired is not in a snapshot, also of namespaces that are not in memory.
        while let Some(id) = core.due_without_index() {
            core = shared.load_index(core, id)?;
        }
        let (ticket, namespaces) = (core.open_snapshot()?, core.readable_namespaces());
        Ok(Snapshot::new(self.shared(), ticket, namespaces))
    }

    /// A snapshot for an iterator, which reads one namespace.
    pub(crate) fn open_snapshot_of_iterator(&self, namespace: NamespaceId) -> Result<Snapshot, Error> {
        let shared = self.shared();
        let mut core = shared.lock();
        if core.has_due(namespace) {
            core = shared.load_index(core, namespace)?;
        }
        let ticket = core.open_snapshot()?;
        drop(core);
        Ok(Snapshot::new(shared, ticket, Vec::new()))
    }

    /// Sets the memory that open snapshots take for what is overwritten meanwhile; 512 MiB by default, at some 160 bytes a record.
    pub fn limit_snapshot_memory(&self, bytes: u64) {
        self.shared().lock().limit_snapshot_memory(bytes);
    }

    /// What open snapshots keep, those of iterators included.
    pub fn snapshot_stats(&self) -> SnapshotStats {
        self.shared().lock().snapshot_stats()
    }
}

impl Snapshot {
    fn new(shared: &Arc<Shared>, ticket: SnapshotTicket, namespaces: Vec<NamespaceInfo>) -> Snapshot {
        Snapshot(Arc::new(Open { shared: shared.clone(), ticket: Some(ticket), namespaces }))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// The namespaces that existed when it was opened, as they were.
    pub fn namespaces(&self) -> &[NamespaceInfo] {
        &self.0.namespaces
    }

    /// Reads a value.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`] if it has expired; [`Error::UnknownNamespace`] if the namespace was created later, or deleted since;
    /// [`Error::HoldsBlocks`], [`Error::KeepsVersions`] if it does not hold records; otherwise as [`Device::get`].
    pub fn get<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(namespace, key, &mut value)?.then_some(value))
    }

    /// Reads a value into a buffer; false if the key did not exist.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn get_into<'k>(
        &self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let shared = self.shared();
        let key = shared.key(key.into())?;
        match self.find(&self.records(namespace)?, namespace, &key, value)? {
            Lookup::Absent => return Ok(false),
            Lookup::Value => {}
            Lookup::Packed(packed) => *value = packed.unpack()?,
            Lookup::Read(read) => shared.read(&read, value)?,
        }
        Ok(true)
    }

    /// Whether a key existed. Reads no flash.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn exists<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<bool, Error> {
        let key = self.shared().key(key.into())?;
        let records = self.records(namespace)?;
        self.shared().look(namespace, || records.exists(&key))
    }

    /// Keys after a cursor, in the order of the index; each exactly once. A page may be empty and not the last one.
    ///
    /// # Errors
    /// As [`Snapshot::get`]; [`Error::ListedByRange`] if the namespace is ordered.
    pub fn list(&self, namespace: NamespaceId, after: Option<Cursor>, limit: usize) -> Result<ListPage, Error> {
        let records = self.records(namespace)?;
        let (listed, next) = self.shared().look(namespace, || records.list(after, limit.max(1)))?;
        let find = |key: &FullKey<'_>, value: &mut Vec<u8>| self.find(&records, namespace, key, value);
        Ok(ListPage { keys: self.shared().keys_of_listed_with(listed, find)?, next })
    }

    /// Reads the values of keys, in the order of the keys; nothing for those that did not exist.
    pub(crate) fn gather(&self, namespace: NamespaceId, keys: &[KeyBuf]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let records = self.records(namespace)?;
        self.shared().gather_with(keys, |key, value| self.find(&records, namespace, key, value))
    }

    /// Reads the values of several keys together, as [`crate::Namespace::get_many`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn get_many(
        &self,
        namespace: NamespaceId,
        keys: &[KeyBuf],
        bytes_max: usize,
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let (shared, records) = (self.shared(), self.records(namespace)?);
        let full = keys.iter().map(|key| shared.key(KeyRef::from(key))).collect::<Result<Vec<_>, _>>()?;
        shared.gather_full(&full, bytes_max, |key, value| self.find(&records, namespace, key, value))
    }

    /// The next keys of a range from one end, and the last key that was looked at if there may be more.
    pub(crate) fn page(
        &self,
        namespace: NamespaceId,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        from_back: bool,
        count: usize,
    ) -> Result<(Vec<KeyBuf>, Option<KeyBuf>), Error> {
        let records = self.records(namespace)?;
        self.shared().look(namespace, || records.range(range, from_back, count))
    }

    /// A namespace as it was; refuses kinds that a snapshot does not show, and reads after the device was closed.
    fn records(&self, namespace: NamespaceId) -> Result<RecordsAt<'_>, Error> {
        let shared = self.shared();
        match &self.0.ticket {
            Some(ticket) if !shared.closing.load(Ordering::Acquire) => {
                shared.reader.at(ticket, namespace).map_err(|error| shared.refused(error))
            }
            _ => Err(Error::Closed),
        }
    }

    /// As [`Shared::find`].
    fn find(
        &self,
        records: &RecordsAt<'_>,
        namespace: NamespaceId,
        key: &FullKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Lookup, Error> {
        let (shared, ticket) = (self.shared(), self.0.ticket.as_ref().ok_or(Error::Closed)?);
        shared.look(namespace, || -> Result<Lookup, FindError> {
            Ok(match records.find(key)? {
                Found::Absent => Lookup::Absent,
                Found::Flash(read) => Lookup::Read(read),
                Found::Buffered => match shared.lock().read_buffered_at(ticket, namespace, key)? {
                    Buffered::Absent => Lookup::Absent,
                    Buffered::Value(value) => {
                        *out = value;
                        Lookup::Value
                    }
                    Buffered::Packed(packed) => Lookup::Packed(packed),
                    Buffered::Programmed(read) => Lookup::Read(read),
                },
            })
        })
    }
}
