//! A shard of the record cache: entries, the table that finds them, what they take in memory.
//!
//! Lives here:       the entry of a record with its value, lock word and dirty state; finding, making, removing one.
//! Lives elsewhere:  which entry is evicted when memory runs out (`evict`), locks (`locks`), loading (`cache`).
//! Implements:       paper:KAML III.D (the cache of key-value pairs).
//!
//! Invariants
//! - an entry with pins is not moved: transactions and loads name it by its slot;
//! - `bytes` is what the shard takes of the heap, down to the allocator's rounding.

use super::evict::{Fifo, Ghost, ListName};
use super::line::Ticket;
use super::locks::{LockWord, Queues};
use super::record::{LongKey, RecordId, Secret, heap_bytes, value_bytes};
use super::table::Table;
use crate::{Key, NamespaceId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;
/// Memory that lies one after the other on the way to a value: a cell of the table, the entry, the value.
pub(super) const STEPS_TO_VALUE: usize = 3;
/// The first line of a value that will be needed soon; the processor itself prefetches the others.
const FETCHED_BYTES: usize = 256;
/// Slots that the slab grows by at least; else by an eighth, so little memory lies idle.
const GROWTH_MIN: usize = 8;

/// What the cache knows of a record.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// Nothing: the entry exists for its lock.
    Unknown,
    /// Somebody reads it from the device; the number distinguishes one read from the next.
    Loading(u32),
    /// It does not exist.
    Absent,
    /// Its value.
    Value(Arc<[u8]>),
}

/// The same inside an entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum View<'a> {
    Unknown,
    Loading(u32),
    Absent,
    Value(&'a Arc<[u8]>),
}

/// Which of them it is, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unknown,
    Loading,
    Absent,
    Value,
}

/// A record in the cache: a cache line, with nothing to spare.
#[repr(align(64))]
pub(super) struct Entry {
    namespace: NamespaceId,
    key: Key,
    kind: Kind,
    value: Option<Arc<[u8]>>,
    /// The commit that this content is durable with; while it is being read from the device the number of that read.
    ticket: Ticket,
    pub(super) lock: LockWord,
    pub(super) newer: u32,
    pub(super) older: u32,
    pub(super) pins: u16,
    pub(super) uses: u8,
    pub(super) list: ListName,
    /// The device has an older content.
    pub(super) dirty: bool,
}

const _: () = assert!(size_of::<Entry>() == 64, "an entry is a cache line");

impl Entry {
    pub(super) fn id(&self) -> RecordId {
        RecordId { namespace: self.namespace, key: self.key }
    }

    fn is(&self, id: &RecordId) -> bool {
        self.key == id.key && self.namespace == id.namespace
    }

    /// What the entry weighs for the eviction policy.
    pub(super) fn weight(&self) -> usize {
        size_of::<Entry>() + self.content_bytes()
    }

    fn content_bytes(&self) -> usize {
        self.value.as_ref().map_or(0, |value| value_bytes(value.len()))
    }

    /// What is known of the record.
    pub(super) fn view(&self) -> View<'_> {
        match (self.kind, &self.value) {
            (Kind::Value, Some(value)) => View::Value(value),
            (Kind::Loading, None) => View::Loading(self.ticket as u32),
            (Kind::Absent, None) => View::Absent,
            (Kind::Unknown, None) => View::Unknown,
            (Kind::Value, None) | (_, Some(_)) => unreachable!("an entry has a value exactly if its kind is `Value`"),
        }
    }

    /// The same, to be kept.
    pub(super) fn content(&self) -> Content {
        match self.view() {
            View::Unknown => Content::Unknown,
            View::Loading(load) => Content::Loading(load),
            View::Absent => Content::Absent,
            View::Value(value) => Content::Value(value.clone()),
        }
    }

    /// The commit that this content is durable with; 0 if it has been all the time.
    pub(super) fn ticket(&self) -> Ticket {
        if self.kind == Kind::Loading { 0 } else { self.ticket }
    }

    fn set(&mut self, content: Content, ticket: Ticket) {
        (self.kind, self.value, self.ticket) = match content {
            Content::Unknown => (Kind::Unknown, None, ticket),
            Content::Loading(load) => (Kind::Loading, None, u64::from(load)),
            Content::Absent => (Kind::Absent, None, ticket),
            Content::Value(value) => (Kind::Value, Some(value), ticket),
        };
    }
}

/// Counts of what a shard did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) evictions: u64,
    pub(super) lock_waits: u64,
}

/// A part of the cache, under a lock of its own. What a hit needs comes first, and fills a cache line with the lock.
#[repr(C)]
pub(super) struct Shard {
    table: Table,
    pub(super) entries: Vec<Entry>,
    pub(super) counts: Counts,
    free: Vec<u32>,
    pub(super) queues: Queues,
    pub(super) small: Fifo,
    pub(super) main: Fifo,
    pub(super) ghost: Ghost,
    /// Slots that became dirty, some of which are clean again.
    pub(super) dirty: Vec<u32>,
    /// Slots that the cleaner has taken from there and may put back, for which there always is room: the cleaner makes no memory
    /// grow, since no waiting caller would then evict something.
    dirty_away: usize,
    pub(super) dirty_bytes: usize,
    /// The bytes of long keys of dirty records, by slot: the device is going to be given them.
    long_keys: BTreeMap<u32, LongKey>,
    pub(super) bytes: usize,
    pub(super) load_waiters: u32,
    next_load: u32,
    /// What `bytes` has of the shard's own structures.
    structure_bytes: usize,
    /// The store's.
    pub(super) secret: Secret,
}

impl Shard {
    pub(super) fn new(secret: Secret) -> Shard {
        Shard {
            table: Table::default(),
            entries: Vec::new(),
            counts: Counts::default(),
            free: Vec::new(),
            queues: Queues::default(),
            small: Fifo::new(ListName::Small),
            main: Fifo::new(ListName::Main),
            ghost: Ghost::default(),
            dirty: Vec::new(),
            dirty_away: 0,
            dirty_bytes: 0,
            long_keys: BTreeMap::new(),
            bytes: 0,
            load_waiters: 0,
            next_load: 0,
            structure_bytes: 0,
            secret,
        }
    }

    /// The slot of a record.
    pub(super) fn find(&self, id: &RecordId, hash: u64) -> Option<u32> {
        self.table.find(hash, |slot| self.entries[slot as usize].is(id))
    }

    /// Asks the processor to fetch what the next step to a record needs, of which there are [`STEPS_TO_VALUE`]. False if it has
    /// found that there is nothing.
    pub(super) fn prefetch(&self, id: &RecordId, hash: u64, step: usize) -> bool {
        match step {
            0 => {
                self.table.prefetch(hash);
                true
            }
            // The first one with its tag is the one, but for a few in a billion.
            1 => {
                let found = self.table.find(hash, |slot| {
                    kaml_flash::prefetch(&self.entries[slot as usize]);
                    true
                });
                found.is_some()
            }
            _ => {
                let Some(slot) = self.find(id, hash) else { return false };
                let value = self.entries[slot as usize].value.as_deref();
                value.into_iter().for_each(|value| kaml_flash::prefetch(&value[..value.len().min(FETCHED_BYTES)]));
                true
            }
        }
    }

    /// Entries in use.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn entry(&mut self, slot: u32) -> &mut Entry {
        &mut self.entries[slot as usize]
    }

    /// The slot of a record, made if there is none.
    pub(super) fn find_or_make(&mut self, id: &RecordId, hash: u64) -> u32 {
        if let Some(slot) = self.find(id, hash) {
            return slot;
        }
        let slot = self.take_slot(*id);
        self.table.insert(hash, slot);
        self.enter(slot, hash);
        self.count_structure();
        slot
    }

    fn take_slot(&mut self, id: RecordId) -> u32 {
        let entry = Entry {
            namespace: id.namespace,
            key: id.key,
            kind: Kind::Unknown,
            value: None,
            ticket: 0,
            lock: LockWord::FREE,
            pins: 0,
            newer: NONE,
            older: NONE,
            uses: 0,
            list: ListName::None,
            dirty: false,
        };
        if let Some(slot) = self.free.pop() {
            self.entries[slot as usize] = entry;
            return slot;
        }
        if self.entries.len() == self.entries.capacity() {
            let more = (self.entries.len() / 8).max(GROWTH_MIN);
            self.entries.reserve_exact(more);
            self.free.reserve_exact(self.entries.capacity() - self.free.len());
        }
        self.entries.push(entry);
        self.entries.len() as u32 - 1
    }

    /// Frees memory of slots if more than a quarter of them lie idle, as when records have become larger: entries at the end
    /// move into those before them. An entry in use is not moved, nor what lies before it.
    pub(super) fn give_slots_back(&mut self) {
        let wanted = self.len() + self.len() / 8 + GROWTH_MIN;
        if self.free.len() <= self.entries.len() / 4 || wanted >= self.entries.len() {
            return;
        }
        self.free.sort_unstable_by_key(|slot| std::cmp::Reverse(*slot)); // the lowest at the end
        while self.entries.len() > wanted {
            let last = self.entries.len() as u32 - 1;
            let entry = &self.entries[last as usize];
            if entry.list != ListName::None {
                if entry.pins > 0 || entry.dirty || matches!(entry.view(), View::Loading(_)) {
                    break;
                }
                let to = self.free.pop().expect("more are idle than are after the last one needed");
                self.move_last(to);
            }
            self.entries.pop();
        }
        let len = self.entries.len() as u32;
        self.free.retain(|slot| *slot < len);
        self.dirty.retain(|slot| *slot < len); // those that went are clean again
        self.entries.shrink_to_fit();
        self.free.shrink_to(self.entries.capacity());
        self.table.shrink();
        self.ghost.shrink(self.entries.len());
        self.count_structure();
    }

    fn move_last(&mut self, to: u32) {
        let from = self.entries.len() as u32 - 1;
        let hash = self.secret.hash(&self.entries[from as usize].id());
        self.entries.swap(from as usize, to as usize);
        self.table.remove(hash, from);
        self.table.insert(hash, to);
        self.relink(from, to);
    }

    /// Adds what the shard's own structures take now to its bytes.
    pub(super) fn count_structure(&mut self) {
        let now = heap_bytes(self.entries.capacity() * size_of::<Entry>())
            + heap_bytes(self.free.capacity() * size_of::<u32>())
            + heap_bytes(self.dirty.capacity() * size_of::<u32>())
            + heap_bytes(self.table.bytes())
            + self.ghost.bytes();
        self.bytes = self.bytes + now - self.structure_bytes;
        self.structure_bytes = now;
    }

    /// A number for a read of the device.
    pub(super) fn begin_load(&mut self, slot: u32) -> u32 {
        self.next_load = self.next_load.wrapping_add(1);
        let load = self.next_load;
        self.set_content(slot, Content::Loading(load), 0);
        load
    }

    /// Changes what is known of a record, and with which commit it is durable.
    pub(super) fn set_content(&mut self, slot: u32, content: Content, ticket: Ticket) {
        let entry = &mut self.entries[slot as usize];
        let before = entry.content_bytes();
        let list = entry.list;
        entry.set(content, ticket);
        let after = entry.content_bytes();
        self.bytes = self.bytes + after - before;
        if self.entries[slot as usize].dirty {
            self.dirty_bytes = self.dirty_bytes + after - before;
        }
        let fifo = self.fifo(list);
        fifo.bytes = fifo.bytes + after - before;
    }

    /// Marks a record as newer than what the device has. Its key has these bytes, if it is a long one.
    pub(super) fn set_dirty(&mut self, slot: u32, long: &LongKey) {
        let entry = &mut self.entries[slot as usize];
        if entry.dirty {
            return;
        }
        entry.dirty = true;
        self.dirty_bytes += entry.weight();
        if entry.key.is_digest() {
            let bytes = long.heap_bytes();
            self.long_keys.insert(slot, long.clone());
            self.bytes += bytes;
            self.dirty_bytes += bytes;
        }
        if self.dirty.len() + self.dirty_away >= self.dirty.capacity() {
            self.compact_dirty();
        }
        self.dirty.push(slot);
        self.count_structure();
    }

    /// Drops slots that are clean again from the list, so it remains as short as the slab.
    fn compact_dirty(&mut self) {
        let entries = &self.entries;
        self.dirty.retain(|slot| entries[*slot as usize].dirty);
        self.dirty.sort_unstable();
        self.dirty.dedup();
        let more = (self.dirty.len() / 2).max(GROWTH_MIN);
        self.dirty.reserve_exact(more + self.dirty_away);
    }

    /// The cleaner has taken a slot from the list.
    pub(super) fn take_dirty(&mut self) {
        self.dirty_away += 1;
    }

    /// It puts the slot back, unless it is clean now.
    pub(super) fn give_dirty_back(&mut self, slot: u32) {
        self.dirty_away -= 1;
        if self.entries[slot as usize].dirty {
            debug_assert!(self.dirty.len() < self.dirty.capacity(), "room was kept");
            self.dirty.push(slot);
        }
    }

    /// The device has, or will have, what the entry contains. The list of dirty slots keeps it until it is next read.
    pub(super) fn set_clean(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if entry.dirty {
            entry.dirty = false;
            self.dirty_bytes -= entry.weight();
            if entry.key.is_digest() {
                let bytes = self.long_keys.remove(&slot).map_or(0, |long| long.heap_bytes());
                self.bytes -= bytes;
                self.dirty_bytes -= bytes;
            }
        }
    }

    /// The bytes of the key of a dirty record, if it is a long one.
    pub(super) fn long_key(&self, slot: u32) -> LongKey {
        match self.entries[slot as usize].key.is_digest() {
            true => self.long_keys.get(&slot).cloned().unwrap_or_default(),
            false => LongKey::default(),
        }
    }

    /// Takes a pin off, and the entry away if nothing is known of its record.
    pub(super) fn unpin(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        entry.pins = entry.pins.checked_sub(1).expect("a pin is taken off once");
        if entry.pins == 0 && matches!(entry.view(), View::Unknown) {
            self.remove(slot);
        }
    }

    /// Forgets a record.
    pub(super) fn remove(&mut self, slot: u32) {
        let entry = &self.entries[slot as usize];
        assert!(entry.pins == 0 && entry.lock == LockWord::FREE, "an entry in use is not removed");
        let hash = self.secret.hash(&entry.id());
        self.set_clean(slot);
        self.set_content(slot, Content::Unknown, 0);
        self.unlink(slot);
        self.table.remove(hash, slot);
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Goal:   freeing slots loses no record, moves none that is in use, and leaves both queues as they were.
    /// Method: records of random sizes come, change, go, are pinned and become dirty; occasionally slots are released. Everything is
    ///         compared with a model.
    #[test]
    fn slots_that_are_given_back_take_nothing_along() {
        let (mut shard, mut model) = (Shard::new(Secret::draw()), BTreeMap::<u64, (u32, Arc<[u8]>)>::new());
        let mut pinned: BTreeMap<u64, u32> = BTreeMap::new();
        let mut x = 7u64;
        let mut below = |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % n
        };
        let id = |key: u64| RecordId { namespace: 1, key: Key::from(key) };
        let order = |shard: &Shard, fifo: &Fifo| {
            let (keys, ends) = fifo.walk(&shard.entries);
            assert!(ends, "a queue is linked both ways");
            keys
        };
        let mut given = 0;
        for round in 0..60_000u64 {
            let key = below(if round / 5000 % 2 == 0 { 900 } else { 90 });
            let found = shard.find(&id(key), shard.secret.hash(&id(key)));
            assert_eq!(found.is_some(), model.contains_key(&key));
            match below(10) {
                0..=3 => {
                    let slot = shard.find_or_make(&id(key), shard.secret.hash(&id(key)));
                    let value: Arc<[u8]> = vec![key as u8; below(200) as usize].into();
                    shard.set_content(slot, Content::Value(value.clone()), 0);
                    model.insert(key, (slot, value));
                }
                4 => found.into_iter().for_each(|slot| shard.set_dirty(slot, &LongKey::default())),
                5 => found.into_iter().for_each(|slot| shard.set_clean(slot)),
                6 if !pinned.contains_key(&key) && pinned.len() < 4 => {
                    if let Some(slot) = found {
                        shard.entry(slot).pins += 1;
                        pinned.insert(key, slot);
                    }
                }
                7 => {
                    if let Some(slot) = pinned.remove(&key) {
                        shard.unpin(slot);
                    }
                }
                _ => {
                    let gone = if round / 5000 % 2 == 0 { key } else { below(900) };
                    let slot =
                        shard.find(&id(gone), shard.secret.hash(&id(gone))).filter(|_| !pinned.contains_key(&gone));
                    if let Some(slot) = slot {
                        shard.remove(slot);
                        model.remove(&gone);
                    }
                }
            }
            if round % 50 != 0 {
                continue;
            }
            let before = (order(&shard, &shard.small), order(&shard, &shard.main), shard.entries.len());
            shard.give_slots_back();
            given += before.2 - shard.entries.len();
            assert_eq!((order(&shard, &shard.small), order(&shard, &shard.main)), (before.0, before.1));
            for (key, (slot, value)) in &mut model {
                let now = shard.find(&id(*key), shard.secret.hash(&id(*key))).expect("kept");
                assert!(now == *slot || !pinned.contains_key(key), "who is pinned stays");
                *slot = now;
                assert!(matches!(shard.entries[now as usize].view(), View::Value(kept) if kept == value));
            }
            assert_eq!(shard.len(), model.len());
            let values: usize = model.values().map(|(_, value)| value_bytes(value.len())).sum();
            assert_eq!(shard.bytes, values + shard.structure_bytes);
            let dirty = shard.entries.iter().filter(|entry| entry.dirty).map(Entry::weight).sum::<usize>();
            assert_eq!(shard.dirty_bytes, dirty);
            assert!(shard.dirty.iter().all(|slot| (*slot as usize) < shard.entries.len()));
        }
        assert!(given > 200, "{given} slots were freed");
    }

    /// Goal:   slots that the cleaner has taken find room when it puts them back, however many have become dirty meanwhile.
    /// Method: it takes most of 400; others become dirty, as many as the list has room for, or many more; they come back, and the
    ///         list has not grown for it.
    #[test]
    fn the_cleaner_makes_no_memory_grow() {
        for more in [0, 400] {
            let mut shard = Shard::new(Secret::draw());
            let make_dirty = |shard: &mut Shard, keys: std::ops::Range<usize>| {
                for id in keys.map(|key| RecordId { namespace: 1, key: Key::from(key as u64) }) {
                    let slot = shard.find_or_make(&id, shard.secret.hash(&id));
                    shard.set_content(slot, Content::Absent, 0);
                    shard.set_dirty(slot, &LongKey::default());
                }
            };
            make_dirty(&mut shard, 0..400);
            let taken = shard.dirty.split_off(100);
            taken.iter().for_each(|_| shard.take_dirty());
            let end = 400 + shard.dirty.capacity() - shard.dirty.len() + more;
            make_dirty(&mut shard, 400..end);
            let before = shard.dirty.capacity();
            taken.into_iter().for_each(|slot| shard.give_dirty_back(slot));
            assert_eq!((shard.dirty.len(), shard.dirty.capacity()), (end, before));
        }
    }
}
