//! A batch: the records of one atomic Put.
//!
//! Lives here:       collecting records and their checksums before any lock is taken.
//! Implements:       paper:KAML Table I, Put(namespaceIDs[], keys[], values[], lengths[]).

use crate::NamespaceId;
use kaml_device::{Body, Condition, Key, Op};

/// Records that are stored all together or not at all. Later records of one key win over earlier ones; conditions are
/// judged as things stood before the batch.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    items: Vec<Item>,
    values: Vec<u8>,
}

/// One record of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Where it goes.
    pub namespace: NamespaceId,
    /// Its key.
    pub key: Key,
    /// When it may be stored.
    pub condition: Condition,
    /// Its value; nothing for a delete.
    pub value: Option<&'a [u8]>,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    namespace: NamespaceId,
    key: Key,
    condition: Condition,
    /// Start, length and checksum of the value; nothing for a delete.
    value: Option<(usize, usize, u32)>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// An empty batch with room for so many records and bytes of values.
    pub(crate) fn with_capacity(records: usize, value_bytes: usize) -> Batch {
        Batch { items: Vec::with_capacity(records), values: Vec::with_capacity(value_bytes) }
    }

    /// Stores a value.
    pub fn put(&mut self, namespace: NamespaceId, key: impl Into<Key>, value: &[u8]) -> &mut Self {
        self.push(namespace, key.into(), Some(value), Condition::Always)
    }

    /// Stores a value if the key is not there; else the whole batch fails.
    pub fn put_if_absent(&mut self, namespace: NamespaceId, key: impl Into<Key>, value: &[u8]) -> &mut Self {
        self.push(namespace, key.into(), Some(value), Condition::IfAbsent)
    }

    /// Stores a value if the key is there; else the whole batch fails.
    pub fn put_if_present(&mut self, namespace: NamespaceId, key: impl Into<Key>, value: &[u8]) -> &mut Self {
        self.push(namespace, key.into(), Some(value), Condition::IfPresent)
    }

    /// Deletes a key, whether it is there or not.
    pub fn delete(&mut self, namespace: NamespaceId, key: impl Into<Key>) -> &mut Self {
        self.push(namespace, key.into(), None, Condition::Always)
    }

    /// Deletes a key that is there; else the whole batch fails.
    pub fn delete_if_present(&mut self, namespace: NamespaceId, key: impl Into<Key>) -> &mut Self {
        self.push(namespace, key.into(), None, Condition::IfPresent)
    }

    /// Records in the batch.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The records in their order.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.items.iter().map(|item| Record {
            namespace: item.namespace,
            key: item.key,
            condition: item.condition,
            value: item.value.map(|(start, len, _)| &self.values[start..start + len]),
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes of the values.
    pub fn value_bytes(&self) -> usize {
        self.values.len()
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.items.clear();
        self.values.clear();
    }

    fn push(&mut self, namespace: NamespaceId, key: Key, value: Option<&[u8]>, condition: Condition) -> &mut Self {
        let value = value.map(|value| {
            let start = self.values.len();
            self.values.extend_from_slice(value);
            (start, value.len(), crc_fast::crc32_iscsi(value))
        });
        self.items.push(Item { namespace, key, condition, value });
        self
    }

    pub(crate) fn ops(&self) -> Vec<Op<'_>> {
        self.items.iter().map(|item| item.op(&self.values)).collect()
    }
}

impl Item {
    fn op<'a>(&self, values: &'a [u8]) -> Op<'a> {
        let body = match self.value {
            Some((start, len, crc32c)) => Body::Value { value: &values[start..start + len], crc32c },
            None => Body::Delete,
        };
        Op { namespace: self.namespace, key: self.key, body, condition: self.condition }
    }
}
