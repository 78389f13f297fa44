//! A batch: the records of one atomic Put.
//!
//! Lives here:       collecting records and their checksums before any lock is taken.
//! Implements:       paper:KAML Table I, Put(namespaceIDs[], keys[], values[], lengths[]).

use crate::NamespaceId;
use crate::driver::Shared;
use crate::error::Error;
use crate::expiry::Expiry;
use kaml_device::{Body, Condition, Key, KeyRef, Merge, MergeStep, Op, Operand};

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
    content: Content,
    expiry: Expiry,
}

#[derive(Clone, Copy, Debug)]
enum Content {
    /// Start, length and checksum of the value.
    Value(usize, usize, u32),
    Delete,
    Apply(Operand),
    /// Start and length of the value that the key is to have; nothing if it must not exist.
    Expect(Option<(usize, usize)>),
}

/// A batch as the firmware takes it.
pub(crate) struct Merging<'a> {
    pub(crate) ops: Vec<Op<'a>>,
    pub(crate) merges: Vec<Merge<'a>>,
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

    /// Sets when the record that was added last expires; without it, the time to live of its namespace counts. It concerns values and counters, and no
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

    /// Changes a counter without reading it; see [`Operand`]. Operands apply to what the batch has put before them, and to the
    /// results of earlier ones. The record keeps the time at which it expires, unless [`Batch::expires`] follows.
    ///
    /// # Examples
    /// ```
    /// use kaml::{Batch, CreateOptions, Device, NamespaceOptions, Operand};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let stats = device.ensure_namespace("stats", &NamespaceOptions::default())?;
    /// let mut batch = Batch::new();
    /// batch.apply(stats.id(), "visits", Operand::Add(1)).apply(stats.id(), "longest", Operand::Max(17));
    /// assert_eq!(device.write_returning(&batch)?, [1, 17]);
    /// assert_eq!(device.write_returning(&batch)?, [2, 17]);
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn apply<'k>(&mut self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>, operand: Operand) -> &mut Self {
        self.push_content(namespace, key.into(), Content::Apply(operand), Condition::Always)
    }

    /// Lets the whole batch fail unless a key has this value before it; nothing: unless the key does not exist. It stores nothing itself.
    ///
    /// # Examples
    /// ```
    /// use kaml::{Batch, CreateOptions, Device, NamespaceOptions};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let users = device.ensure_namespace("users", &NamespaceOptions::default())?;
    /// users.put("ada", b"1")?;
    /// let mut batch = Batch::new();
    /// batch.expect(users.id(), "ada", Some(b"1")).put(users.id(), "ada", b"2").delete(users.id(), "grace");
    /// device.write(&batch)?;
    /// assert!(device.write(&batch).unwrap_err().is_conflict());
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn expect<'k>(
        &mut self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: Option<&[u8]>,
    ) -> &mut Self {
        let place = value.map(|value| self.keep(value));
        self.push_content(namespace, key.into(), Content::Expect(place), Condition::Always)
    }

    /// Whether it has nothing but puts and deletes whose records expire by default: such a batch can be sent to another machine.
    #[doc(hidden)]
    pub fn is_plain(&self) -> bool {
        self.items.iter().all(|item| item.expiry == Expiry::Default) && !self.has_merges()
    }

    /// Records in the batch, operands and expected values.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The puts and deletes in their order.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.items.iter().filter_map(|item| {
            let value = match item.content {
                Content::Value(start, len, _) => Some(&self.values[start..start + len]),
                Content::Delete => None,
                Content::Apply(_) | Content::Expect(_) => return None,
            };
            Some(Record { namespace: item.namespace, key: self.key(item), condition: item.condition, value })
        })
    }

    /// Whether it has operands or expected values.
    pub(crate) fn has_merges(&self) -> bool {
        self.items.iter().any(|item| matches!(item.content, Content::Apply(_) | Content::Expect(_)))
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
        let content = value.map_or(Content::Delete, |value| {
            let (start, len) = self.keep(value);
            Content::Value(start, len, kaml_crc::crc32c(value))
        });
        self.push_content(namespace, key, content, condition)
    }

    /// Copies a value; where it lies.
    fn keep(&mut self, value: &[u8]) -> (usize, usize) {
        let start = self.values.len();
        self.values.extend_from_slice(value);
        (start, value.len())
    }

    fn push_content(
        &mut self,
        namespace: NamespaceId,
        key: KeyRef<'_>,
        content: Content,
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
        self.items.push(Item { namespace, key, condition, content, expiry: Expiry::Default });
        self
    }

    fn key(&self, item: &Item) -> KeyRef<'_> {
        match item.key {
            ItemKey::Short(key) => KeyRef::Short(key),
            ItemKey::Bytes(start, len) => KeyRef::Bytes(&self.keys[start..start + len]),
        }
    }

    /// The puts and deletes.
    pub(crate) fn ops(&self, shared: &Shared) -> Result<Vec<Op<'_>>, Error> {
        Ok(self.merging(shared)?.ops)
    }

    /// Everything.
    pub(crate) fn merging(&self, shared: &Shared) -> Result<Merging<'_>, Error> {
        let mut all = Merging { ops: Vec::with_capacity(self.items.len()), merges: Vec::new() };
        for item in &self.items {
            let (namespace, key, condition) = (item.namespace, shared.key(self.key(item))?, item.condition);
            let expires = item.expiry.resolve(shared);
            let body = match item.content {
                Content::Value(start, len, crc32c) => Body::Value { value: &self.values[start..start + len], crc32c },
                Content::Delete => Body::Delete,
                Content::Apply(operand) => {
                    let step = MergeStep::Apply(operand);
                    all.merges.push(Merge { at: all.ops.len(), namespace, key, step, expires });
                    continue;
                }
                Content::Expect(value) => {
                    let value = value.map(|(start, len)| &self.values[start..start + len]);
                    let step = MergeStep::Expect(value);
                    all.merges.push(Merge { at: all.ops.len(), namespace, key, step, expires });
                    continue;
                }
            };
            all.ops.push(Op { namespace, key, body, condition, expires });
        }
        Ok(all)
    }
}
