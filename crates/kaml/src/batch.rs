//! A batch: the records of one atomic Put.
//!
//! Lives here:       collecting records and their checksums before any lock is taken.
//! Implements:       paper:KAML Table I, Put(namespaceIDs[], keys[], values[], lengths[]).

use crate::NamespaceId;
use crate::driver::Shared;
use crate::error::Error;
use crate::expiry::Expiry;
use kaml_device::{Body, Condition, Key, KeyRef, Op};

/// Records that are stored all together or not at all. Later records of one key win over earlier ones; conditions are
/// judged by the state before the batch.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions, Batch};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// let mut batch = Batch::new();
/// batch.put(users, 1u64, b"ada").put_if_absent(users, 2u64, b"grace").delete(users, 3u64);
/// device.write(&batch)?; // all or nothing
/// assert_eq!(device.get(users, 2u64)?.as_deref(), Some(&b"grace"[..]));
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch {
    items: Vec<Item>,
    values: Vec<u8>,
    /// Of keys that were given as bytes.
    keys: Vec<u8>,
}

/// One record of a batch.
///
/// # Examples
/// ```
/// let mut batch = kaml::Batch::new();
/// batch.put(1, 7u64, b"seven").delete(1, 8u64);
/// let values: Vec<_> = batch.records().map(|record| record.value).collect();
/// assert_eq!(values, [Some(&b"seven"[..]), None]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its namespace and key.
    pub namespace: NamespaceId,
    /// Its key.
    pub key: KeyRef<'a>,
    /// Its condition.
    pub condition: Condition,
    /// Its value; nothing for a delete.
    pub value: Option<&'a [u8]>,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    namespace: NamespaceId,
    key: ItemKey,
    condition: Condition,
    /// Start, length and checksum of the value; nothing for a delete.
    value: Option<(usize, usize, u32)>,
    expiry: Expiry,
}

#[derive(Clone, Copy, Debug)]
enum ItemKey {
    Short(Key),
    /// Start and length among the bytes of keys.
    Bytes(usize, usize),
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// An empty batch with room for this many records and bytes of values.
    pub(crate) fn with_capacity(records: usize, value_bytes: usize) -> Batch {
        Batch { items: Vec::with_capacity(records), values: Vec::with_capacity(value_bytes), keys: Vec::new() }
    }

    /// Stores a value.
    pub fn put<'k>(&mut self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>, value: &[u8]) -> &mut Self {
        self.push(namespace, key.into(), Some(value), Condition::Always)
    }

    /// Stores a value if the key does not exist; else the whole batch fails.
    pub fn put_if_absent<'k>(&mut self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>, value: &[u8]) -> &mut Self {
        self.push(namespace, key.into(), Some(value), Condition::IfAbsent)
    }

    /// Stores a value if the key exists; else the whole batch fails.
    pub fn put_if_present<'k>(
        &mut self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &[u8],
    ) -> &mut Self {
        self.push(namespace, key.into(), Some(value), Condition::IfPresent)
    }

    /// Deletes a key, whether it exists or not.
    pub fn delete<'k>(&mut self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> &mut Self {
        self.push(namespace, key.into(), None, Condition::Always)
    }

    /// Deletes a key that exists; else the whole batch fails.
    pub fn delete_if_present<'k>(&mut self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> &mut Self {
        self.push(namespace, key.into(), None, Condition::IfPresent)
    }

    /// Sets when the record that was added last expires; without it, the time to live of its namespace counts. It concerns values, and no
    /// deletes. [`Expiry::After`] begins when the batch is written.
    ///
    /// # Examples
    /// ```
    /// use kaml::{Batch, Expiry};
    /// use std::time::Duration;
    ///
    /// let mut batch = Batch::new();
    /// batch.put(1, "ada", b"1").expires(Expiry::After(Duration::from_secs(60))).put(1, "grace", b"kept");
    /// ```
    pub fn expires(&mut self, expiry: Expiry) -> &mut Self {
        if let Some(item) = self.items.last_mut() {
            item.expiry = expiry;
        }
        self
    }

    /// Records in the batch.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The records in their order.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.items.iter().map(|item| Record {
            namespace: item.namespace,
            key: self.key(item),
            condition: item.condition,
            value: item.value.map(|(start, len, _)| &self.values[start..start + len]),
        })
    }

    /// Whether a record has a condition.
    pub(crate) fn has_conditions(&self) -> bool {
        self.items.iter().any(|item| item.condition != Condition::Always)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes of the values, and of keys that were given as bytes.
    pub fn value_bytes(&self) -> usize {
        self.values.len() + self.keys.len()
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.items.clear();
        self.values.clear();
        self.keys.clear();
    }

    fn push(
        &mut self,
        namespace: NamespaceId,
        key: KeyRef<'_>,
        value: Option<&[u8]>,
        condition: Condition,
    ) -> &mut Self {
        let key = match key {
            KeyRef::Short(key) => ItemKey::Short(key),
            KeyRef::Bytes(bytes) => {
                let start = self.keys.len();
                self.keys.extend_from_slice(bytes);
                ItemKey::Bytes(start, bytes.len())
            }
        };
        let value = value.map(|value| {
            let start = self.values.len();
            self.values.extend_from_slice(value);
            (start, value.len(), crc_fast::crc32_iscsi(value))
        });
        self.items.push(Item { namespace, key, condition, value, expiry: Expiry::Default });
        self
    }

    fn key(&self, item: &Item) -> KeyRef<'_> {
        match item.key {
            ItemKey::Short(key) => KeyRef::Short(key),
            ItemKey::Bytes(start, len) => KeyRef::Bytes(&self.keys[start..start + len]),
        }
    }

    pub(crate) fn ops(&self, shared: &Shared) -> Result<Vec<Op<'_>>, Error> {
        let op = |item: &Item| {
            let body = match item.value {
                Some((start, len, crc32c)) => Body::Value { value: &self.values[start..start + len], crc32c },
                None => Body::Delete,
            };
            let key = shared.key(self.key(item))?;
            Ok(Op {
                namespace: item.namespace,
                key,
                body,
                condition: item.condition,
                expires: item.expiry.resolve(shared),
            })
        };
        self.items.iter().map(op).collect()
    }
}
