//! What names a record in the cache, and which lock means it.
//!
//! Lives here:       record ids, their hashes, lock groups, the bytes of long keys, what a value costs in memory.
//! Implements:       paper:KAML III.D (compound keys), V.D (records per lock).

use crate::sync::secret_word;
use crate::{Key, KeyRef, NamespaceId};
use std::sync::Arc;

/// A record: its namespace and key, or the digest of a key above 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordId {
    pub(super) namespace: NamespaceId,
    pub(super) key: Key,
}

/// The bytes of a key above 16 bytes, for what the device is going to be asked with; nothing of other keys. Copies share them.
#[derive(Clone, Debug, Default)]
pub(super) struct LongKey(Option<Arc<Box<[u8]>>>);

impl LongKey {
    #[inline]
    pub(super) fn new(key: &KeyRef<'_>) -> LongKey {
        match key {
            KeyRef::Bytes(bytes) if bytes.len() > Key::BYTES_MAX => LongKey(Some(Arc::new((*bytes).into()))),
            KeyRef::Bytes(_) | KeyRef::Short(_) => LongKey(None),
        }
    }

    /// The whole key of a record.
    #[inline]
    pub(super) fn of<'a>(&'a self, id: &RecordId) -> KeyRef<'a> {
        match &self.0 {
            None => KeyRef::Short(id.key),
            Some(bytes) => KeyRef::Bytes(bytes),
        }
    }

    /// How many bytes there are.
    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |bytes| bytes.len())
    }

    /// What keeping it takes of the heap, if nothing shares it: the bytes, what counts their owners, and an entry of a map.
    pub(super) fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |bytes| heap_bytes(bytes.len()) + 3 * heap_bytes(4 * size_of::<usize>()))
    }
}

/// What decides where records are found in the tables of one store. It is drawn when the store is opened and returned by nothing, so
/// nobody can choose keys that collide. The lower bits of hashes choose shards, the upper ones cells of their tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Secret([u64; 4]);

impl Secret {
    /// In the laboratory it is always the same one.
    pub(super) fn draw() -> Secret {
        let [first, second, about, high] = std::array::from_fn(|at| secret_word(at as u64));
        Secret([first, second, about | 1, high])
    }

    /// A hash whose upper and lower bits can be used apart.
    ///
    /// The product of two words to which secrets were added distinguishes keys except for one pair in 2^64, however they were chosen (NH, of
    /// UMAC, RFC 4418); multiplying its halves once more spreads that over all bits.
    pub(super) fn hash(&self, id: &RecordId) -> u64 {
        let Secret([first, second, about, high]) = *self;
        let padded = id.key.padded();
        let word = |at: usize| u64::from_le_bytes(padded[at..at + 8].try_into().expect("8 bytes"));
        let what = u64::from(id.namespace) << 8 | id.key.len() as u64;
        let product = u128::from(word(0).wrapping_add(first)) * u128::from(word(8).wrapping_add(second));
        let lower = (product as u64).wrapping_add(what.wrapping_mul(about));
        fold(lower, (product >> 64) as u64 ^ high)
    }
}

impl RecordId {
    /// The record whose entry has the lock of this one: the first of its group. A group is `records_per_lock` keys of
    /// one length that follow each other as big-endian integers. A key above 16 bytes has a lock of its own.
    pub(super) fn lock_record(&self, records_per_lock: u32) -> RecordId {
        if records_per_lock <= 1 || self.key.is_digest() {
            return *self;
        }
        let len = self.key.len();
        let mut wide = [0; Key::BYTES_MAX];
        wide[Key::BYTES_MAX - len..].copy_from_slice(self.key.as_bytes());
        let value = u128::from_be_bytes(wide);
        let first = (value - value % u128::from(records_per_lock)).to_be_bytes();
        let key = Key::new(&first[Key::BYTES_MAX - len..]).expect("as long as its key");
        RecordId { namespace: self.namespace, key }
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// What an allocation of this many bytes takes from the heap: glibc puts 8 bytes before each and rounds up to 16, and
/// gives out nothing below 32. Other allocators are within a few percent of that.
pub(super) fn heap_bytes(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
}

/// What a cached value takes: its bytes after two reference counts.
pub(super) fn value_bytes(len: usize) -> usize {
    heap_bytes(len + 2 * size_of::<usize>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   neighbours share a lock, and only as many as requested.
    /// Method: all keys of a range, integers and text, grouped by 16 and by 3.
    #[test]
    fn groups_are_as_large_as_asked_for() {
        for records_per_lock in [1, 3, 16] {
            let group = |key: u64| RecordId { namespace: 1, key: key.into() }.lock_record(records_per_lock);
            for key in 0..1000u64 {
                let first = key - key % u64::from(records_per_lock);
                assert_eq!(group(key).key.as_u64(), Some(first));
            }
        }
        let text = |key: &[u8]| RecordId { namespace: 1, key: Key::new(key).unwrap() }.lock_record(16);
        assert_eq!(text(b"user1"), text(b"user2"));
        assert_ne!(text(b"user1"), text(b"uses1"));
        assert_ne!(text(b"user1"), text(b"user11"));
        assert_eq!(text(&[255; 16]).key.len(), 16);
    }

    /// Goal:   hashes spread over shards and over the table of a shard, whatever the secret is, and other secrets spread otherwise.
    /// Method: 64 K neighbouring keys, keys that differ in their upper bits, and keys of both words, over 256 buckets by the upper and
    ///         by the lower bits, with eight secrets.
    #[test]
    fn hashes_spread_in_upper_and_lower_bits() {
        let of_two_words = |low: u64, high: u64| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&low.to_le_bytes());
            bytes[8..].copy_from_slice(&high.to_le_bytes());
            Key::new(&bytes).unwrap()
        };
        let kinds: [fn(u64) -> (u64, u64); 4] = [|at| (at, 0), |at| (at << 48, 1), |at| (7, at << 40), |at| (at, !at)];
        for secret in std::iter::repeat_with(Secret::draw).take(8) {
            for (kind, shift) in kinds.iter().flat_map(|kind| [(kind, 0), (kind, 56)]) {
                let mut counts = [0u32; 256];
                for at in 0..1u64 << 16 {
                    let (low, high) = kind(at);
                    let hash = secret.hash(&RecordId { namespace: 7, key: of_two_words(low, high) });
                    counts[(hash >> shift) as usize & 255] += 1;
                }
                assert!(counts.iter().all(|count| (120..420).contains(count)), "{secret:?}: {counts:?}");
            }
        }
        let id = RecordId { namespace: 7, key: 1u64.into() };
        assert_ne!(Secret::draw().hash(&id), Secret::draw().hash(&id), "a secret is drawn for each store");
    }

    /// Goal:   records of other namespaces, and keys of other lengths, do not collide by choice.
    /// Method: keys whose bytes make up for namespace and length, where these are mixed in by a plain exclusive or or sum.
    #[test]
    fn namespaces_and_lengths_count_apart() {
        let secret = Secret::draw();
        let hash = |namespace: u32, bytes: &[u8]| secret.hash(&RecordId { namespace, key: Key::new(bytes).unwrap() });
        let all = [
            hash(1, b"12345678\x03"),
            hash(1, b"12345678\x00\x00"),
            hash(1, b"12345678\x00"),
            hash(2, b"12345678\x00"),
        ];
        let distinct: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        for namespace in 1..200u32 {
            let mut bytes = *b"12345678........";
            bytes[8..].copy_from_slice(&(u64::from(namespace) << 8).to_le_bytes());
            let mut summed = bytes;
            summed[8..].copy_from_slice(&(u64::from(namespace) << 8).wrapping_neg().to_le_bytes());
            assert_ne!(hash(namespace, &bytes), hash(0, b"12345678\0\0\0\0\0\0\0\0"));
            assert_ne!(hash(namespace, &summed), hash(0, b"12345678\0\0\0\0\0\0\0\0"));
        }
    }
}
