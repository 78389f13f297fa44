//! Which record leaves the cache when memory runs out.
//!
//! Lives here:       the two queues of a shard and the memory of what left it, rest after looking in vain.
//! Lives elsewhere:  when to evict, and how much (`cache`).
//! Implements:       S3-FIFO (Yang et al., SOSP 2023), with sizes in bytes.
//!
//! A record enters the *small* queue. A record that was used again before it reaches the end moves on to the *main* queue,
//! the others leave, so a scan passes through a tenth of the memory. A record that left a short while ago and comes
//! back enters the main queue at once. While nobody has had to leave, the main queue is filled with those who reach the
//! end of the small one, used again or not: whatever streams by later then drives out its like, not all that came first.

use super::line::Ticket;
use super::shard::{NONE, Shard, View};
use crate::sync::{AtomicU32, AtomicUsize};
use std::sync::atomic::Ordering;

/// Share of a shard's records that the small queue has: 1/10, as in the paper.
const SMALL_SHARE: usize = 10;
/// Uses counted of a record: as many more rounds it gets in the main queue.
pub(super) const USES_MAX: u8 = 3;
/// Evictions between two looks whether slots lie idle.
const EVICTIONS_PER_LOOK: u64 = 256;
/// Entries looked at for one eviction before another shard is tried.
const STEPS_MAX: usize = 64;

/// The queue an entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListName {
    None,
    Small,
    Main,
}

/// A queue of entries, linked through them.
pub(super) struct Fifo {
    name: ListName,
    newest: u32,
    oldest: u32,
    pub(super) bytes: usize,
}

impl Fifo {
    pub(super) fn new(name: ListName) -> Fifo {
        Fifo { name, newest: NONE, oldest: NONE, bytes: 0 }
    }
}

#[cfg(test)]
impl Fifo {
    /// The records of a queue, oldest first, and whether its links agree.
    pub(super) fn walk(&self, entries: &[super::shard::Entry]) -> (Vec<super::record::RecordId>, bool) {
        let (mut records, mut at, mut behind, mut agree) = (Vec::new(), self.oldest, NONE, true);
        while at != NONE {
            let entry = &entries[at as usize];
            agree &= entry.older == behind && entry.list == self.name;
            records.push(entry.id());
            (behind, at) = (at, entry.newer);
        }
        (records, agree && behind == self.newest)
    }
}

/// Hashes of records that left the small queue lately: a table without collisions resolved, where a newer one
/// replaces an older one.
#[derive(Default)]
pub(super) struct Ghost {
    marks: Vec<u32>,
}

impl Ghost {
    /// Marks for each entry of the shard.
    const MARKS_MIN: usize = 64;

    pub(super) fn bytes(&self) -> usize {
        super::record::heap_bytes(self.marks.capacity() * size_of::<u32>())
    }

    fn place(&self, hash: u64) -> usize {
        (hash >> 16) as usize & (self.marks.len() - 1)
    }

    /// Whether a record left lately; it is forgotten by this.
    pub(super) fn remembers(&mut self, hash: u64) -> bool {
        if self.marks.is_empty() {
            return false;
        }
        let place = self.place(hash);
        let found = self.marks[place] == mark(hash);
        if found {
            self.marks[place] = 0;
        }
        found
    }

    /// Frees memory that was needed for more entries than exist now; records that left are forgotten.
    pub(super) fn shrink(&mut self, entry_count: usize) {
        if self.marks.len() > entry_count.next_power_of_two().max(Self::MARKS_MIN) {
            self.marks = Vec::new();
        }
    }

    fn remember(&mut self, hash: u64, entry_count: usize) {
        if self.marks.len() < entry_count {
            self.marks = vec![0; entry_count.next_power_of_two().max(Self::MARKS_MIN)];
        }
        let place = self.place(hash);
        self.marks[place] = mark(hash);
    }
}

fn mark(hash: u64) -> u32 {
    hash as u32 | 1
}

/// Rest after looking through all shards in vain, as while a transaction has pinned more than the budget: as many calls then look at no
/// shard as have been looked at, so each looks at about one. It ends when memory has grown by a share of the budget, or as
/// much may leave.
#[derive(Default)]
pub(super) struct Rest {
    calls: AtomicU32,
    bytes_max: AtomicUsize,
}

impl Rest {
    /// This many shards were looked at in vain; memory may grow to so much.
    pub(super) fn begin(&self, shards: u32, bytes_max: usize) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        self.calls.store(shards, Ordering::Relaxed);
    }

    /// Whether calls rest.
    pub(super) fn is_on(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0
    }

    /// Whether a call rests that finds so much used of the budget. At least one of several concurrent calls counts, which is enough.
    pub(super) fn takes(&self, used: usize, budget: usize) -> bool {
        let calls = self.calls.load(Ordering::Relaxed);
        let rests = calls > 0 && used > budget && used <= self.bytes_max.load(Ordering::Relaxed);
        self.calls.store(if rests { calls - 1 } else { 0 }, Ordering::Relaxed);
        rests
    }

    /// So much may leave that could not when it began.
    pub(super) fn can_leave(&self, bytes: usize) {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        self.bytes_max.store(bytes_max.saturating_sub(bytes), Ordering::Relaxed);
    }
}

impl Shard {
    pub(super) fn fifo(&mut self, name: ListName) -> &mut Fifo {
        match name {
            ListName::Small => &mut self.small,
            ListName::Main => &mut self.main,
            ListName::None => unreachable!("an entry in use is in a queue"),
        }
    }

    /// Puts an entry at the new end of a queue.
    pub(super) fn link(&mut self, slot: u32, name: ListName) {
        let weight = self.entries[slot as usize].weight();
        let fifo = self.fifo(name);
        debug_assert!(fifo.name == name);
        let before = fifo.newest;
        fifo.newest = slot;
        fifo.bytes += weight;
        if before == NONE {
            fifo.oldest = slot;
        } else {
            self.entries[before as usize].newer = slot;
        }
        let entry = self.entry(slot);
        (entry.list, entry.older, entry.newer) = (name, before, NONE);
    }

    /// Lets an entry that was moved take the place in its queue of the slot that it was in.
    pub(super) fn relink(&mut self, from: u32, to: u32) {
        let entry = &self.entries[to as usize];
        let (name, older, newer) = (entry.list, entry.older, entry.newer);
        let fifo = self.fifo(name);
        if fifo.newest == from {
            fifo.newest = to;
        }
        if fifo.oldest == from {
            fifo.oldest = to;
        }
        if newer != NONE {
            self.entries[newer as usize].older = to;
        }
        if older != NONE {
            self.entries[older as usize].newer = to;
        }
    }

    /// Takes an entry out of its queue.
    pub(super) fn unlink(&mut self, slot: u32) {
        let entry = &self.entries[slot as usize];
        let (name, older, newer, weight) = (entry.list, entry.older, entry.newer, entry.weight());
        let fifo = self.fifo(name);
        fifo.bytes -= weight;
        if newer == NONE {
            fifo.newest = older;
        }
        if older == NONE {
            fifo.oldest = newer;
        }
        if newer != NONE {
            self.entries[newer as usize].older = older;
        }
        if older != NONE {
            self.entries[older as usize].newer = newer;
        }
        self.entry(slot).list = ListName::None;
    }

    /// Whether the small queue has more than its share.
    fn small_is_full(&self) -> bool {
        self.small.bytes * SMALL_SHARE > self.small.bytes + self.main.bytes
    }

    /// Puts a new entry into the queue where it begins.
    pub(super) fn enter(&mut self, slot: u32, hash: u64) {
        let list = if self.ghost.remembers(hash) { ListName::Main } else { ListName::Small };
        self.link(slot, list);
        if self.counts.evictions == 0 && self.small_is_full() {
            let oldest = self.small.oldest;
            self.unlink(oldest);
            self.link(oldest, ListName::Main);
        }
    }

    /// Lets one record go whose content the device has; false if none was found among the next few.
    pub(super) fn evict_one(&mut self, settled: Ticket) -> bool {
        for _ in 0..STEPS_MAX {
            let from_small = self.main.oldest == NONE || self.small_is_full();
            let slot = if from_small && self.small.oldest != NONE { self.small.oldest } else { self.main.oldest };
            if slot == NONE {
                return false;
            }
            if self.pass(slot, settled) {
                return true;
            }
        }
        false
    }

    /// Judges the oldest entry of a queue: it leaves, or moves on. True if it left.
    fn pass(&mut self, slot: u32, settled: Ticket) -> bool {
        let entry = &mut self.entries[slot as usize];
        let in_use = entry.pins > 0 || entry.dirty || entry.ticket() > settled;
        let was_small = entry.list == ListName::Small;
        if in_use || matches!(entry.view(), View::Loading(_)) || entry.uses > 0 {
            if !in_use {
                entry.uses = if was_small { 0 } else { entry.uses.saturating_sub(1) };
            }
            self.unlink(slot);
            self.link(slot, ListName::Main);
            return false;
        }
        if was_small {
            let hash = self.secret.hash(&entry.id());
            self.ghost.remember(hash, self.entries.len());
            self.count_structure();
        }
        self.remove(slot);
        self.counts.evictions += 1;
        if self.counts.evictions.is_multiple_of(EVICTIONS_PER_LOOK) {
            self.give_slots_back();
        }
        true
    }
}
