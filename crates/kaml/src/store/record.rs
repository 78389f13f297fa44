//! What names a record in the cache, and which lock stands for it.
//!
//! Lives here:       record ids, their hashes, lock groups, what a value costs in memory.
//! Implements:       paper:KAML III.D (compound keys), V.D (records per lock).

use crate::{Key, NamespaceId};

/// A record: its namespace and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordId {
    pub(super) namespace: NamespaceId,
    pub(super) key: Key,
}

/// Odd constants without structure: the fractions of the square roots of 2, 3 and 5.
const MIX: [u64; 3] = [0x6a09_e667_f3bc_c909, 0xbb67_ae85_84ca_a73b, 0x3c6e_f372_fe94_f82b];

impl RecordId {
    /// A hash whose upper and lower bits can be used apart.
    pub(super) fn hash(&self) -> u64 {
        let padded = self.key.padded();
        let word = |at: usize| u64::from_le_bytes(padded[at..at + 8].try_into().expect("8 bytes"));
        let about = u64::from(self.namespace) << 8 | self.key.len() as u64;
        fold(fold(word(0) ^ MIX[0], MIX[1]) ^ word(8) ^ about, MIX[2])
    }

    /// The record whose entry has the lock of this one: the first of its group. A group is `records_per_lock` keys of
    /// one length that follow each other as big-endian integers.
    pub(super) fn lock_record(&self, records_per_lock: u32) -> RecordId {
        if records_per_lock <= 1 {
            return *self;
        }
        let len = self.key.len();
        let mut wide = [0; Key::BYTES_MAX];
        wide[Key::BYTES_MAX - len..].copy_from_slice(self.key.as_bytes());
        let value = u128::from_be_bytes(wide);
        let first = (value - value % u128::from(records_per_lock)).to_be_bytes();
        let key = Key::new(&first[Key::BYTES_MAX - len..]).expect("as long as the key it stands for");
        RecordId { namespace: self.namespace, key }
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// What an allocation of so many bytes takes from the heap: glibc puts 8 bytes before each and rounds up to 16, and
/// gives out nothing below 32. Other allocators are within a few percent of that.
pub(super) fn heap_bytes(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
}

/// What a cached value takes: its bytes behind two reference counts.
pub(super) fn value_bytes(len: usize) -> usize {
    heap_bytes(len + 2 * size_of::<usize>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   neighbours share a lock, and only as many as asked for.
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

    /// Goal:   hashes spread over shards and over the table of a shard.
    /// Method: 64 K neighbouring keys over 256 buckets by the upper and by the lower bits.
    #[test]
    fn hashes_spread_in_upper_and_lower_bits() {
        for shift in [0, 56] {
            let mut counts = [0u32; 256];
            for key in 0..1u64 << 16 {
                let hash = RecordId { namespace: 7, key: key.into() }.hash();
                counts[(hash >> shift) as usize & 255] += 1;
            }
            assert!(counts.iter().all(|count| (150..370).contains(count)), "{counts:?}");
        }
    }
}
