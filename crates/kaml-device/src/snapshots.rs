//! Snapshots of the whole device: what is known of them.
//!
//! Lives here:       which snapshots are open, what they keep, and which of them are over.
//! Lives elsewhere:  each step, the bound of what they keep (`steps`), the table of superseded states (`superseded`), reading through a snapshot (`snapshot_reader`), moving records that
//!                   only snapshots see (`gc`).
//! Implements:       docs/ARCHITECTURE.md "Snapshots".
//!
//! What snapshots keep is counted as live, and moves with collection. Nothing of it is durable: opening after a crash finds no
//! snapshot, and counts only what the indexes name.

use crate::error::Error;
use crate::moves::MoveWatch;
use crate::namespace::NamespaceShared;
use crate::superseded::{Ended, Place, Superseded};
use kaml_index::{KeyBuf, Slot};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub(crate) mod steps;

/// Memory of what snapshots keep, unless another limit is set.
const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// Memory of an open snapshot, what its owner has included.
const SNAPSHOT_BYTES: u64 = 256;

/// A snapshot of the device: what reads through it need. It is to be closed with [`Core::close_snapshot`](crate::Core::close_snapshot).
#[derive(Debug)]
pub struct SnapshotTicket {
    pub(crate) number: u64,
    pub(crate) ended: Ended,
    pub(crate) next_namespace: u32,
}

impl SnapshotTicket {
    /// Refuses reads through a snapshot that has expired.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.ended.is_set() { Err(Error::SnapshotTooOld) } else { Ok(()) }
    }
}

/// What snapshots keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotStats {
    /// Moments of which snapshots are open. Snapshots of one moment are one.
    pub open_count: u64,
    /// Snapshots that expired since the device was opened.
    pub expired_count: u64,
    /// Bytes of superseded records that are kept for snapshots, in whole chunks.
    pub kept_bytes: u64,
    /// Superseded states that are kept, those of keys that did not exist included.
    pub entry_count: u64,
    /// Memory of them and of the open snapshots.
    pub memory_bytes: u64,
}

/// An open snapshot.
#[derive(Debug)]
struct Open {
    ended: Ended,
    /// Tickets of it that are not closed.
    holders: u64,
}

/// The snapshots of a device.
#[derive(Debug)]
pub(crate) struct Snapshots {
    /// The newest open one; 0 if there is none.
    newest: u64,
    /// The number that was given last.
    last: u64,
    open: BTreeMap<u64, Open>,
    /// Nothing that snapshots see has changed since the newest one was opened, so another one would see the same.
    is_newest_current: bool,
    /// Those that are over and whose entries are not all released.
    over: VecDeque<u64>,
    /// Namespaces that have entries.
    spaces: BTreeSet<u32>,
    kept_chunks: u64,
    entry_count: u64,
    memory_bytes: u64,
    memory_bytes_max: u64,
    expired_count: u64,
    /// Backups that are in progress: each has a snapshot, which also shows blocks.
    watches: Vec<Arc<MoveWatch>>,
    /// A command found no room: the oldest snapshot is to expire.
    is_in_the_way: Cell<bool>,
    /// The last step has released something that a command may wait for.
    has_released: bool,
}

impl Default for Snapshots {
    fn default() -> Snapshots {
        Snapshots {
            newest: 0,
            last: 0,
            open: BTreeMap::new(),
            is_newest_current: false,
            over: VecDeque::new(),
            spaces: BTreeSet::new(),
            kept_chunks: 0,
            entry_count: 0,
            memory_bytes: 0,
            memory_bytes_max: MEMORY_BYTES_MAX,
            expired_count: 0,
            watches: Vec::new(),
            is_in_the_way: Cell::new(false),
            has_released: false,
        }
    }
}

impl Snapshots {
    /// Whether what is superseded now may have to be kept.
    #[inline]
    pub(crate) fn are_open(&self) -> bool {
        self.newest != 0
    }

    /// A backup begins: from now on its snapshot shows blocks, and it is notified of moves.
    pub(crate) fn begin_backup(&mut self, watch: Arc<MoveWatch>) {
        self.watches.push(watch);
    }

    /// A backup has ended.
    pub(crate) fn end_backup(&mut self, watch: &Arc<MoveWatch>) {
        self.watches.retain(|other| !Arc::ptr_eq(other, watch));
    }

    /// The backups that are notified of moves.
    pub(crate) fn watches(&self) -> &[Arc<MoveWatch>] {
        &self.watches
    }

    /// Whether records exist that only snapshots see.
    #[inline]
    pub(crate) fn keep_any(&self) -> bool {
        self.kept_chunks > 0
    }

    /// Whether there is something to do for them.
    #[inline]
    pub(crate) fn are_releasing(&self) -> bool {
        self.has_released || !self.over.is_empty()
    }

    /// Whether room comes back when the oldest snapshot expires, or does so already; the next step sees to it.
    pub(crate) fn make_room(&self) -> bool {
        let can = self.keep_any() || !self.over.is_empty();
        self.is_in_the_way.set(self.is_in_the_way.get() || can);
        can
    }

    /// Keeps the state of a key that is about to be superseded, if an open snapshot sees it. Returns whether its record is kept.
    fn keep(&mut self, id: u32, shared: &NamespaceShared, at: Place, state: Option<Slot>) -> bool {
        self.is_newest_current = false;
        let bytes = at.entry_bytes();
        if !shared.superseded_mut().keep(self.newest, at, state) {
            return false;
        }
        shared.set_has_superseded(true);
        self.spaces.insert(id);
        self.entry_count += 1;
        self.memory_bytes += bytes;
        self.kept_chunks += state.map_or(0, |slot| u64::from(slot.len.chunks_max()));
        state.is_some()
    }

    /// As [`Snapshots::keep`], of a key that goes with a whole range. If there are too many of them, snapshots expire meanwhile.
    pub(crate) fn keep_removed(&mut self, id: u32, shared: &NamespaceShared, key: &[u8], old: Slot) -> bool {
        if self.memory_bytes > self.memory_bytes_max {
            self.expire_oldest();
        }
        let Ok(key) = KeyBuf::new(key) else { return false };
        self.are_open() && self.keep(id, shared, Place::InOrder(key), Some(old))
    }

    /// Ends the oldest snapshot; which that was.
    fn expire_oldest(&mut self) -> Option<u64> {
        let oldest = self.open.keys().next().copied()?;
        self.end(oldest, true);
        self.expired_count += 1;
        Some(oldest)
    }

    /// A deleted namespace takes its entries along; its records are counted with those of its index.
    pub(crate) fn forget_space(&mut self, id: u32, shared: &NamespaceShared) -> Superseded {
        let entries = std::mem::take(&mut *shared.superseded_mut());
        if self.spaces.remove(&id) {
            let (count, bytes) = entries.size();
            self.entry_count -= count;
            self.memory_bytes -= bytes;
            self.kept_chunks -= entries.slots().map(|slot| u64::from(slot.len.chunks_max())).sum::<u64>();
        }
        entries
    }

    /// A snapshot is over. Its entries are released step by step.
    fn end(&mut self, number: u64, has_entries: bool) {
        let Some(open) = self.open.remove(&number) else { return };
        open.ended.set();
        self.memory_bytes -= SNAPSHOT_BYTES;
        self.is_newest_current &= self.newest != number;
        self.newest = self.open.keys().next_back().copied().unwrap_or(0);
        if has_entries {
            self.over.push_back(number);
        }
    }
}
