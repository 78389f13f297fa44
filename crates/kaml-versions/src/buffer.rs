//! The page buffer: versions that are not in a segment yet, row by row.
//!
//! Lives here:       their bytes, finding a key's versions among them, what they cost.
//! Lives elsewhere:  keeping them durable until they are sealed (`kaml-device`), choosing what is sealed (`seal`).
//! Implements:       paper:Muninn 4.2.1 (active version table), as one pool that all rows share.

use crate::hash::KeyHash;
use crate::record::Version;
use kaml_index::Key;

pub(crate) const NONE: u32 = u32::MAX;
/// Counted for each version beside its bytes: the entry (40), its part of the table (8), the allocator's header (16).
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

    /// Removes the versions for which `leaves` says so; those behind its end stay. Of each key they are the oldest ones.
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
            if entry.hash == hash && entry.read_key() == *key {
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
}
