//! Keys without a place: a table next to the segments, for keys that were chosen to meet in the same buckets.
//!
//! Lives here:       its entries, and whether there are any.
//! Lives elsewhere:  when a key is put here (`growth`), images of it (`snapshot`).
//! May be called by: the table and its writer, snapshots.
//!
//! A key may are in two buckets. Keys that are spread evenly find a slot there, or one to make way, until nearly all slots are
//! taken. A caller that knows an index's seed can choose keys that agree in all bits by which buckets are chosen, however often segments
//! split, and the thirteenth has no place. Such keys live here, in a tree under a lock: slower, and no worse.
//!
//! A key never moves between here and its segment until it is removed; so a reader that looks in the segment first, and then here, misses
//! no key that existed all the time.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::mixed::Mixed;
use crate::shape::Shape;
use crate::snapshot::OutsideEntry;
use crate::table::Entry;

/// What an entry takes, about: nodes of the tree are between half full and full.
const ENTRY_BYTES: u64 = 64;

/// Keys without a place, and their values.
#[derive(Default)]
pub(crate) struct Outside {
    /// Entries; changed under the lock.
    count: AtomicU64,
    entries: RwLock<BTreeMap<Mixed, u64>>,
}

impl Outside {
    /// As it nearly always is.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Acquire) == 0
    }

    pub(crate) fn len(&self) -> u64 {
        self.count.load(Acquire)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.len() * ENTRY_BYTES
    }

    /// What its entries take in images.
    pub(crate) fn image_bytes(&self) -> u64 {
        self.len() * size_of::<OutsideEntry>() as u64
    }

    /// The value of a key, or 0.
    pub(crate) fn get(&self, mixed: &Mixed) -> u64 {
        if self.is_empty() { 0 } else { self.read().get(mixed).copied().unwrap_or(0) }
    }

    pub(crate) fn add(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut own = self.write();
        own.extend(entries);
        self.count.store(own.len() as u64, Release);
    }

    /// Forgets a key; the value it had, or 0.
    pub(crate) fn remove(&self, mixed: &Mixed) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let mut own = self.write();
        let old = own.remove(mixed);
        self.count.store(own.len() as u64, Release);
        old.unwrap_or(0)
    }

    /// Replaces the value of a key that is here, if it is one that the caller expects; what it was, or 0.
    pub(crate) fn replace(&self, mixed: &Mixed, value: u64, expects: impl FnOnce(u64) -> bool) -> u64 {
        if self.is_empty() {
            return 0;
        }
        match self.write().get_mut(mixed) {
            Some(old) if expects(*old) => std::mem::replace(old, value),
            _ => 0,
        }
    }

    /// Appends the entries whose keys belong to a segment, in their order.
    pub(crate) fn collect(&self, shape: Shape, entries: &mut Vec<Entry>) {
        self.collect_behind(shape, None, usize::MAX, entries);
    }

    /// The same, of at most this many that come after a key.
    pub(crate) fn collect_behind(&self, shape: Shape, after: Option<Mixed>, limit: usize, entries: &mut Vec<Entry>) {
        if !self.is_empty() {
            let start = Mixed { m: shape.start(), ..Mixed::default() };
            let from = after.filter(|after| *after >= start).map_or(Included(start), Excluded);
            let own = self.read();
            let of_segment = own.range((from, Unbounded)).take_while(|(mixed, _)| shape.holds(mixed.m));
            entries.extend(of_segment.take(limit).map(|(mixed, value)| (*mixed, *value)));
        }
    }

    pub(crate) fn for_each_value(&self, visit: impl FnMut(u64)) {
        self.read().values().copied().for_each(visit);
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Mixed, u64>> {
        self.entries.read().expect("no panics under this lock")
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<Mixed, u64>> {
        self.entries.write().expect("no panics under this lock")
    }
}
