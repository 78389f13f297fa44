//! Devices wherever they are: a file or disk, behind NVMe/TCP, or attached by Linux.
//!
//! Lives here:       what commands on records need of a device, and who offers it.
//! Lives elsewhere:  the devices (`kaml`, `kaml_nvme::host`), opening them (`store`).

use kaml::{
    At, Batch, Condition, Device, Difference, Error, Key, NamespaceChange, NamespaceId, NamespaceInfo,
    NamespaceOptions, Past, VersionStats,
};
use kaml_nvme::host::RemoteDevice;

/// A device that commands on records work on; they mean what those of [`Device`] do.
#[allow(missing_docs, reason = "as the commands of `Device` are called")]
pub trait Place: Send + Sync {
    fn namespaces(&self) -> Result<Vec<NamespaceInfo>, Error>;
    fn create_namespace(&self, name: &str, options: &NamespaceOptions) -> Result<NamespaceId, Error>;
    fn set_namespace(&self, namespace: NamespaceId, change: &NamespaceChange) -> Result<(), Error>;
    fn delete_namespace(&self, namespace: NamespaceId) -> Result<(), Error>;
    fn value_bytes_max(&self) -> u64;
    /// Bytes of the largest batch, keys and what is stored beside values included.
    fn batch_bytes_max(&self) -> u64;
    fn get(&self, namespace: NamespaceId, key: Key) -> Result<Option<Vec<u8>>, Error>;
    fn get_version(&self, namespace: NamespaceId, key: Key, at: At) -> Result<Option<Vec<u8>>, Error>;
    fn exists(&self, namespace: NamespaceId, key: Key) -> Result<bool, Error>;
    fn put_if(&self, namespace: NamespaceId, key: Key, value: &[u8], condition: Condition) -> Result<(), Error>;
    fn write(&self, batch: &Batch) -> Result<(), Error>;
    /// Keys behind one, or from the first one on, at most `limit`; none at the end.
    fn list(&self, namespace: NamespaceId, after: Option<Key>, limit: usize) -> Result<Vec<Key>, Error>;
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
/// What a record takes of a batch beside its value, at most.
const RECORD_BYTES: u64 = 48;

/// Bytes that a batch of many records is to hold at most: far enough from what the device takes.
pub fn batch_limit(device: &dyn Place) -> u64 {
    BATCH_BYTES.min(device.batch_bytes_max() / 2)
}

/// Whether a batch has to be put before a value of so many bytes joins it.
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
            get(namespace: NamespaceId, key: Key) -> Option<Vec<u8>>;
            exists(namespace: NamespaceId, key: Key) -> bool;
            put_if(namespace: NamespaceId, key: Key, value: &[u8], condition: Condition) -> ();
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

    fn namespaces(&self) -> Result<Vec<NamespaceInfo>, Error> {
        Ok(Device::namespaces(self))
    }

    fn value_bytes_max(&self) -> u64 {
        self.info().value_bytes_max
    }

    fn batch_bytes_max(&self) -> u64 {
        self.info().batch_bytes_max
    }

    fn get_version(&self, namespace: NamespaceId, key: Key, at: At) -> Result<Option<Vec<u8>>, Error> {
        Ok(Device::get_version(self, namespace, key, at)?.map(|record| record.value))
    }

    fn list(&self, namespace: NamespaceId, after: Option<Key>, limit: usize) -> Result<Vec<Key>, Error> {
        let after = after.map(|key| self.cursor_at(namespace, key)).transpose()?;
        Ok(Device::list(self, namespace, after, limit)?.keys)
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

    fn batch_bytes_max(&self) -> u64 {
        kaml::store::Backing::limits(self).batch_bytes_max
    }

    fn get_version(&self, namespace: NamespaceId, key: Key, at: At) -> Result<Option<Vec<u8>>, Error> {
        RemoteDevice::get_version(self, namespace, key, at)
    }

    fn list(&self, namespace: NamespaceId, after: Option<Key>, limit: usize) -> Result<Vec<Key>, Error> {
        RemoteDevice::list(self, namespace, after, limit)
    }

    fn close(self: Box<Self>) -> Result<(), Error> {
        Ok(()) // what was answered is durable
    }
}
