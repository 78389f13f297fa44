//! Devices wherever they are: a file or disk, over NVMe/TCP, or attached by Linux.
//!
//! Lives here:       what commands on records need of a device, and the types that offer it.
//! Lives elsewhere:  the devices (`kaml`, `kaml_nvme::host`), opening them (`store`).

use kaml::store::Backing;
use kaml::{
    At, BackupBase, BackupReport, Batch, Condition, Device, Difference, Error, Key, KeyBuf, KeyRef, NamespaceChange,
    NamespaceId, NamespaceInfo, NamespaceOptions, Past, VersionStats,
};
use kaml_nvme::host::{RemoteDevice, RemoteSnapshot};
use std::io::Write;
use std::ops::{Bound, ControlFlow};

/// Receives bytes done and bytes in all.
pub type Hear<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// A device that commands on records work on; they mean what those of [`Device`] do.
#[allow(missing_docs, reason = "as the commands of `Device` are called")]
pub trait Place: Send + Sync {
    /// The device itself, if it is not on another machine.
    fn local(&self) -> Option<&Device> {
        None
    }
    fn namespaces(&self) -> Result<Vec<NamespaceInfo>, Error>;
    fn create_namespace(&self, name: &str, options: &NamespaceOptions) -> Result<NamespaceId, Error>;
    fn set_namespace(&self, namespace: NamespaceId, change: &NamespaceChange) -> Result<(), Error>;
    fn delete_namespace(&self, namespace: NamespaceId) -> Result<(), Error>;
    fn value_bytes_max(&self) -> u64;
    /// Of a namespace.
    fn value_bytes_max_of(&self, namespace: NamespaceId) -> u64;
    /// Whether it cannot be reached any more.
    fn is_lost(&self) -> bool;
    /// Bytes of the largest batch, keys and what is stored next to values included.
    fn batch_bytes_max(&self) -> u64;
    fn get(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<Option<Vec<u8>>, Error>;
    fn get_version(&self, namespace: NamespaceId, key: Key, at: At) -> Result<Option<Vec<u8>>, Error>;
    fn exists(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<bool, Error>;
    fn put_if(&self, namespace: NamespaceId, key: KeyRef<'_>, value: &[u8], condition: Condition) -> Result<(), Error>;
    fn write(&self, batch: &Batch) -> Result<(), Error>;
    /// Keys after one, or from the first one on, at most `limit`; none at the end.
    fn list(&self, namespace: NamespaceId, after: Option<&KeyBuf>, limit: usize) -> Result<Vec<KeyBuf>, Error>;
    /// Keys of an ordered namespace within bounds, at most `limit`, in their order or in the reverse one.
    fn range(
        &self,
        namespace: NamespaceId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<KeyBuf>, Error>;
    /// Records of an ordered namespace within bounds, at most `limit`, in the order of their keys or in the reverse one.
    fn records(
        &self,
        namespace: NamespaceId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<(KeyBuf, Vec<u8>)>, Error>;
    /// How many keys of an ordered namespace are within bounds.
    fn count_range(&self, namespace: NamespaceId, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<u64, Error>;
    /// Deletes the keys of an ordered namespace within bounds, all or none; how many there were.
    fn delete_range(&self, namespace: NamespaceId, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<u64, Error>;
    /// A snapshot of a device that others change meanwhile; nothing of one that is here, or has none.
    fn open_remote_snapshot(&self) -> Result<Option<RemoteSnapshot>, Error> {
        Ok(None)
    }
    /// Whether `namespaces` reports how many records a namespace has.
    fn counts_records(&self) -> bool;
    /// Writes all that there is now, or what has changed since another backup.
    fn backup(
        &self,
        out: &mut (dyn Write + Send),
        base: Option<BackupBase>,
        hear: Hear<'_>,
    ) -> Result<BackupReport, Error>;
    fn history(&self, namespace: NamespaceId, key: Key, limit: usize) -> Result<Vec<Past>, Error>;
    fn undo(&self, namespace: NamespaceId, key: Key, count: u32) -> Result<bool, Error>;
    fn snapshot(&self, namespace: NamespaceId) -> Result<u32, Error>;
    fn forget_snapshot(&self, namespace: NamespaceId, version: u32) -> Result<(), Error>;
    fn roll_back(&self, namespace: NamespaceId, to: u32) -> Result<u32, Error>;
    fn diff(
        &self,
        namespace: NamespaceId,
        from: Option<u32>,
        to: Option<u32>,
        each: &mut dyn FnMut(Key, Difference) -> bool,
    ) -> Result<(), Error>;
    fn version_stats(&self, namespace: NamespaceId) -> Result<VersionStats, Error>;
    /// Ends its use in order.
    fn close(self: Box<Self>) -> Result<(), Error>;
}

/// A batch of many records is put when it holds this many bytes, if the device takes it.
const BATCH_BYTES: u64 = 1 << 20;
/// What a record takes of a batch in addition to its value, at most.
const RECORD_BYTES: u64 = 48;

/// Bytes that a batch of many records is to hold at most: far enough from what the device takes.
pub fn batch_limit(device: &dyn Place) -> u64 {
    BATCH_BYTES.min(device.batch_bytes_max() / 2)
}

/// Whether a batch has to be put before a value of this many bytes joins it.
pub fn is_full(batch: &Batch, bytes: usize, limit: u64) -> bool {
    let after = (batch.len() as u64 + 1) * RECORD_BYTES + (batch.value_bytes() + bytes) as u64;
    !batch.is_empty() && after > limit
}

/// The calls that both kinds of device have under the same name.
macro_rules! same_calls {
    ($device:ty: $($name:ident($($argument:ident: $of:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $($argument: $of),*) -> Result<$answer, Error> {
            <$device>::$name(self, $($argument),*)
        })*
    };
    ($device:ty) => {
        same_calls! { $device:
            create_namespace(name: &str, options: &NamespaceOptions) -> NamespaceId;
            set_namespace(namespace: NamespaceId, change: &NamespaceChange) -> ();
            delete_namespace(namespace: NamespaceId) -> ();
            write(batch: &Batch) -> ();
            history(namespace: NamespaceId, key: Key, limit: usize) -> Vec<Past>;
            undo(namespace: NamespaceId, key: Key, count: u32) -> bool;
            snapshot(namespace: NamespaceId) -> u32;
            forget_snapshot(namespace: NamespaceId, version: u32) -> ();
            roll_back(namespace: NamespaceId, to: u32) -> u32;
            diff(namespace: NamespaceId, from: Option<u32>, to: Option<u32>, each: &mut dyn FnMut(Key, Difference) -> bool) -> ();
            version_stats(namespace: NamespaceId) -> VersionStats;
        }
    };
}

impl Place for Device {
    same_calls! { Device }

    fn local(&self) -> Option<&Device> {
        Some(self)
    }

    fn namespaces(&self) -> Result<Vec<NamespaceInfo>, Error> {
        Ok(Device::namespaces(self))
    }

    fn value_bytes_max(&self) -> u64 {
        self.info().value_bytes_max
    }

    fn value_bytes_max_of(&self, namespace: NamespaceId) -> u64 {
        kaml::store::Backing::value_bytes_max(self, namespace)
    }

    fn is_lost(&self) -> bool {
        false
    }

    fn batch_bytes_max(&self) -> u64 {
        self.info().batch_bytes_max
    }

    fn get_version(&self, namespace: NamespaceId, key: Key, at: At) -> Result<Option<Vec<u8>>, Error> {
        Ok(Device::get_version(self, namespace, key, at)?.map(|record| record.value))
    }

    fn get(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<Option<Vec<u8>>, Error> {
        Device::get(self, namespace, key)
    }

    fn exists(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<bool, Error> {
        Device::exists(self, namespace, key)
    }

    fn put_if(&self, namespace: NamespaceId, key: KeyRef<'_>, value: &[u8], condition: Condition) -> Result<(), Error> {
        Device::put_if(self, namespace, key, value, condition)
    }

    fn list(&self, namespace: NamespaceId, after: Option<&KeyBuf>, limit: usize) -> Result<Vec<KeyBuf>, Error> {
        if Backing::is_ordered(self, namespace)? {
            let lower = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_bytes()));
            return self.range(namespace, (lower, Bound::Unbounded), false, limit);
        }
        let mut after = after.map(|key| self.cursor_at(namespace, key)).transpose()?;
        loop {
            let page = Device::list(self, namespace, after, limit)?;
            if !page.keys.is_empty() || page.next.is_none() {
                return Ok(page.keys);
            }
            after = page.next; // all of them have gone meanwhile
        }
    }

    fn range(
        &self,
        namespace: NamespaceId,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<KeyBuf>, Error> {
        Backing::ordered_keys(self, namespace, lower, upper, reverse, limit)
    }

    fn records(
        &self,
        namespace: NamespaceId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<(KeyBuf, Vec<u8>)>, Error> {
        let records = self.namespace_with_id(namespace).range::<&[u8]>(bounds);
        match reverse {
            true => records.rev().take(limit).collect(),
            false => records.take(limit).collect(),
        }
    }

    fn count_range(&self, namespace: NamespaceId, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<u64, Error> {
        self.namespace_with_id(namespace).count::<&[u8]>(bounds)
    }

    fn delete_range(&self, namespace: NamespaceId, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<u64, Error> {
        self.namespace_with_id(namespace).delete_range::<&[u8]>(bounds)
    }

    fn counts_records(&self) -> bool {
        true
    }

    fn backup(
        &self,
        out: &mut (dyn Write + Send),
        base: Option<BackupBase>,
        hear: Hear<'_>,
    ) -> Result<BackupReport, Error> {
        Device::backup(self, out, base, hear)
    }

    fn close(self: Box<Self>) -> Result<(), Error> {
        Device::close(*self)
    }
}

impl Place for RemoteDevice {
    same_calls! { RemoteDevice }

    fn namespaces(&self) -> Result<Vec<NamespaceInfo>, Error> {
        RemoteDevice::namespaces(self)
    }

    fn value_bytes_max(&self) -> u64 {
        kaml::store::Backing::limits(self).value_bytes_max
    }

    fn value_bytes_max_of(&self, namespace: NamespaceId) -> u64 {
        kaml::store::Backing::value_bytes_max(self, namespace)
    }

    fn is_lost(&self) -> bool {
        RemoteDevice::namespaces(self).is_err()
    }

    fn batch_bytes_max(&self) -> u64 {
        kaml::store::Backing::limits(self).batch_bytes_max
    }

    fn get_version(&self, namespace: NamespaceId, key: Key, at: At) -> Result<Option<Vec<u8>>, Error> {
        RemoteDevice::get_version(self, namespace, key, at)
    }

    fn get(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<Option<Vec<u8>>, Error> {
        RemoteDevice::get(self, namespace, key)
    }

    fn exists(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<bool, Error> {
        RemoteDevice::exists(self, namespace, key)
    }

    fn put_if(&self, namespace: NamespaceId, key: KeyRef<'_>, value: &[u8], condition: Condition) -> Result<(), Error> {
        RemoteDevice::put_if(self, namespace, key, value, condition)
    }

    fn list(&self, namespace: NamespaceId, after: Option<&KeyBuf>, limit: usize) -> Result<Vec<KeyBuf>, Error> {
        RemoteDevice::list(self, namespace, after, limit)
    }

    fn range(
        &self,
        namespace: NamespaceId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<KeyBuf>, Error> {
        RemoteDevice::range_keys(self, namespace, bounds, reverse, limit)
    }

    fn records(
        &self,
        namespace: NamespaceId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<(KeyBuf, Vec<u8>)>, Error> {
        RemoteDevice::range(self, namespace, bounds, reverse, limit)
    }

    fn count_range(&self, namespace: NamespaceId, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<u64, Error> {
        RemoteDevice::count_range(self, namespace, bounds)
    }

    fn delete_range(&self, namespace: NamespaceId, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<u64, Error> {
        RemoteDevice::delete_range(self, namespace, bounds)
    }

    fn open_remote_snapshot(&self) -> Result<Option<RemoteSnapshot>, Error> {
        RemoteDevice::open_snapshot(self)
    }

    fn counts_records(&self) -> bool {
        self.names_namespaces()
    }

    fn backup(
        &self,
        out: &mut (dyn Write + Send),
        base: Option<BackupBase>,
        hear: Hear<'_>,
    ) -> Result<BackupReport, Error> {
        RemoteDevice::backup(self, out, base, hear)
    }

    fn close(self: Box<Self>) -> Result<(), Error> {
        Ok(()) // what completed is durable
    }
}
