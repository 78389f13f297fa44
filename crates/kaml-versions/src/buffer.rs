//! The page buffer: versions that are not in a segment yet, row by row.
//!
//! Lives here:       their bytes, finding a key's versions among them, what they cost.
//! Lives elsewhere:  keeping them durable until they are sealed (`kaml-device`), choosing what is sealed (`seal`).
//! Implements:       paper:Muninn 4.2.1 (active version table), as one pool that all rows share.

use crate::hash::KeyHash;
use crate::record::Version;
use kaml_index::Key;

pub(crate) const NONE: u32 = u32::MAX;
/// Counted for each version in addition to its bytes: the entry (40), its part of the table (8), the allocator's header (16).
pub(crate) const ENTRY_BYTES: usize = 64;

/// A small version among large ones may find the pages full again and again, and the commit ring holds what is not sealed.
const WAITED_MAX: u8 = 3;

/// A version in the buffer.
#[derive(Debug)]
pub(crate) struct Buffered {
    pub(crate) hash: KeyHash,
    /// The version of this key before it, if that is in the buffer too.
    pub(crate) older: u32,
    /// Segments of its row that were sealed without it.
    waited: u8,
    /// The record, its ordinal not set yet.
    bytes: Box<[u8]>,
}

impl Buffered {
    /// The version and its record.
    pub(crate) fn read(&self) -> (Version, &[u8]) {
        Version::decode(&self.bytes).expect("whole, for it never left memory").expect("a record")
    }

    /// The version's sequence.
    pub(crate) fn sequence(&self) -> u64 {
        Version::sequence_of(&self.bytes)
    }

    /// The record alone.
    pub(crate) fn record(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether segments were sealed without it so often that it comes before larger ones now.
    pub(crate) fn is_urgent(&self) -> bool {
        self.waited >= WAITED_MAX
    }

    /// The version's bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// The versions of a row, oldest first.
#[derive(Debug, Default)]
pub(crate) struct BufferRow {
    entries: Vec<Buffered>,
    /// The newest entry of each key, by hash, with linear probing; a power of two long, at most half full.
    table: Vec<u32>,
    bytes: usize,
}

impl BufferRow {
    /// What it takes of the buffer.
    pub(crate) fn cost(&self) -> usize {
        self.bytes + self.entries.len() * ENTRY_BYTES
    }

    /// Bytes of its records.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn entries(&self) -> &[Buffered] {
        &self.entries
    }

    /// Adds the newest version of a key.
    pub(crate) fn push(&mut self, hash: KeyHash, key: &Key, bytes: Box<[u8]>) {
        if (self.entries.len() + 1) * 2 > self.table.len() {
            self.rebuild();
        }
        let slot = self.slot(hash, key);
        self.bytes += bytes.len();
        self.entries.push(Buffered { hash, older: self.table[slot], waited: 0, bytes });
        self.table[slot] = self.entries.len() as u32 - 1;
    }

    /// The newest version of a key.
    pub(crate) fn newest(&self, hash: KeyHash, key: &Key) -> u32 {
        if self.table.is_empty() { NONE } else { self.table[self.slot(hash, key)] }
    }

    /// Where to look for a key's versions before a sequence: the newest one, or after the one that has this sequence. A caller that walks
    /// through many versions asks so for each.
    pub(crate) fn behind(&self, hash: KeyHash, key: &Key, sequence: u64) -> u32 {
        let newest = self.newest(hash, key);
        if newest == NONE || self.entries[newest as usize].sequence() < sequence {
            return newest;
        }
        let found = self.entries.binary_search_by_key(&sequence, Buffered::sequence);
        let found = found.ok().map(|at| &self.entries[at]).filter(|entry| entry.is_of(hash, key));
        found.map_or(newest, |entry| entry.older)
    }

    /// Removes the versions for which `leaves` returns true; those after its end are kept. Of each key they are the oldest ones.
    pub(crate) fn remove(&mut self, leaves: &[bool]) {
        let mut left = leaves.iter();
        self.entries.retain_mut(|entry| {
            let Some(leaves) = left.next() else { return true };
            entry.waited = entry.waited.saturating_add(1);
            !*leaves
        });
        self.bytes = self.entries.iter().map(Buffered::len).sum();
        self.rebuild();
    }

    /// Where a key's newest entry is, or would be.
    fn slot(&self, hash: KeyHash, key: &Key) -> usize {
        let mask = self.table.len() - 1;
        let mut slot = hash.bits() as usize & mask;
        while self.table[slot] != NONE {
            let entry = &self.entries[self.table[slot] as usize];
            if entry.is_of(hash, key) {
                break;
            }
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn rebuild(&mut self) {
        let len = (self.entries.len() * 2 + 2).next_power_of_two().max(16);
        self.table.clear();
        self.table.resize(len, NONE);
        self.table.shrink_to_fit();
        for at in 0..self.entries.len() {
            let entry = &self.entries[at];
            let slot = self.slot(entry.hash, &entry.read_key());
            self.entries[at].older = self.table[slot];
            self.table[slot] = at as u32;
        }
    }
}

impl Buffered {
    fn read_key(&self) -> Key {
        Version::key_of(&self.bytes)
    }

    fn is_of(&self, hash: KeyHash, key: &Key) -> bool {
        self.hash == hash && self.read_key() == *key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Kind;

    /// Goal:   a walk through a key's versions continues after the one that it came to, without passing all newer ones again.
    /// Method: versions of two keys in turns; look after each, after what does not exist, and after the oldest ones have left.
    #[test]
    fn walks_go_on_where_they_are() {
        let keys = [1, 2].map(|key| (KeyHash::of(&Key::from(key), 7), Key::from(key)));
        let mut row = BufferRow::default();
        for sequence in 0..1000u64 {
            let (hash, key) = keys[sequence as usize % 2];
            let version = Version {
                key,
                kind: Kind::Tombstone,
                value_len: 0,
                value_crc: 0,
                sequence: 10 * sequence,
                time_ns: 0,
                user_version: 1,
                ordinal: 0,
            };
            row.push(hash, &key, version.record(&[]));
        }
        let (hash, key) = keys[1];
        let behind = |row: &BufferRow, sequence| match row.behind(hash, &key, sequence) {
            NONE => None,
            at => Some(row.entries()[at as usize].sequence()),
        };
        assert_eq!(behind(&row, u64::MAX), Some(9990));
        assert_eq!(behind(&row, 9991), Some(9990));
        for at in (1..1000u64).step_by(2) {
            assert_eq!(behind(&row, 10 * at), (10 * at).checked_sub(20), "after {at}");
        }
        assert_eq!(behind(&row, 5000), Some(9990), "another key's version: from the newest one on");
        row.remove(&[true; 600]);
        assert_eq!(behind(&row, 6030), Some(6010));
        assert_eq!(behind(&row, 6010), None);
        assert_eq!(behind(&row, 5990), Some(9990), "it has left");
    }
}
