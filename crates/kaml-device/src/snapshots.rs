//! Snapshots of the whole device: opening and closing them, keeping what they see, the bound of what they keep.
//!
//! Lives here:       which snapshots are open, what happens when a record is superseded, releasing, expiry.
//! Lives elsewhere:  the table of superseded states (`superseded`), reading through a snapshot (`snapshot_reader`), moving records that
//!                   only snapshots see (`gc`).
//! Implements:       docs/ARCHITECTURE.md "Snapshots".
//!
//! What snapshots keep is counted as live, and moves with collection. Nothing of it is durable: opening after a crash finds no
//! snapshot, and counts only what the indexes name.

use crate::backup::MoveWatch;
use crate::core::Core;
use crate::error::Error;
use crate::index::IndexWriter;
use crate::layout::Layout;
use crate::namespace::{NamespaceInfo, NamespaceShared};
use crate::superseded::{Ended, Place, Superseded};
use kaml_index::{FullKey, KeyBuf, Slot};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Entries that are released at a time: some 20 µs of the core.
const RELEASED_PER_STEP: usize = 64;
/// Snapshots may keep records as long as this many sixteenths of the capacity are in use.
const USED_SIXTEENTHS_MAX: u64 = 14;
/// And so large a part of the capacity however much is in use, unless a Put needs it.
const KEPT_SHARE: u64 = 32;
/// Memory of what snapshots keep, unless another limit is set.
const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// Memory of an open snapshot, what its owner has included.
const SNAPSHOT_BYTES: u64 = 256;

/// A snapshot of the device: what reads through it need. It is to be closed with [`Core::close_snapshot`].
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

impl Core {
    /// Opens a snapshot: the state of all namespaces of records as of what is committed now. It is in memory only. As long as nothing is
    /// committed, snapshots that are opened are one, however many there are. What has expired before is not in it, and what expires later
    /// is; of namespaces that are not in memory once [`Core::due_without_index`] is none.
    ///
    /// # Errors
    /// The device is closed.
    pub fn open_snapshot(&mut self) -> Result<SnapshotTicket, Error> {
        if self.is_closing {
            return Err(Error::Closed);
        }
        self.expire_all_due();
        let snapshots = &mut self.snapshots;
        if !snapshots.is_newest_current {
            snapshots.last += 1;
            snapshots.newest = snapshots.last;
            snapshots.open.insert(snapshots.newest, Open { ended: Ended::default(), holders: 0 });
            snapshots.memory_bytes += SNAPSHOT_BYTES;
            snapshots.is_newest_current = true;
        }
        let open = snapshots.open.get_mut(&snapshots.newest).expect("the newest one is open");
        open.holders += 1;
        let (number, ended) = (snapshots.newest, open.ended.clone());
        Ok(SnapshotTicket { number, ended, next_namespace: self.root.next_namespace })
    }

    /// Namespaces that a snapshot which is opened now can be read through: those that are being deleted are not among them.
    pub fn readable_namespaces(&self) -> Vec<NamespaceInfo> {
        self.namespaces().into_iter().filter(|info| self.spaces.contains_key(&info.id)).collect()
    }

    /// Closes a snapshot. What only it saw is released.
    pub fn close_snapshot(&mut self, snapshot: SnapshotTicket) {
        let Some(open) = self.snapshots.open.get_mut(&snapshot.number) else { return }; // it has expired
        open.holders -= 1;
        if open.holders == 0 {
            self.end_snapshot(snapshot.number);
        }
    }

    /// Sets the memory that superseded states of snapshots take at most, besides that of one step. Beyond it the oldest snapshot expires.
    pub fn limit_snapshot_memory(&mut self, bytes: u64) {
        self.snapshots.memory_bytes_max = bytes;
    }

    /// What snapshots keep.
    pub fn snapshot_stats(&self) -> SnapshotStats {
        let snapshots = &self.snapshots;
        SnapshotStats {
            open_count: snapshots.open.len() as u64,
            expired_count: snapshots.expired_count,
            kept_bytes: snapshots.kept_chunks * u64::from(self.log.geometry.chunk_bytes),
            entry_count: snapshots.entry_count,
            memory_bytes: snapshots.memory_bytes,
        }
    }

    fn end_snapshot(&mut self, number: u64) {
        let has_entries =
            |id: &u32| self.spaces.get(id).is_some_and(|space| space.shared.superseded().has_any_of(number));
        let has_entries = self.snapshots.spaces.iter().any(has_entries);
        self.snapshots.end(number, has_entries);
    }

    /// The oldest snapshot expires, because what it keeps is in the way.
    fn expire_oldest_snapshot(&mut self) {
        if let Some(oldest) = self.snapshots.expire_oldest() {
            tracing::warn!(kept = ?self.snapshot_stats(), "snapshot {oldest} expires: puts need what it keeps");
        }
    }

    /// Ends all snapshots and releases what they keep, however long it takes.
    pub(crate) fn end_all_snapshots(&mut self) {
        while let Some(number) = self.snapshots.open.keys().next().copied() {
            self.end_snapshot(number);
        }
        while !self.snapshots.over.is_empty() {
            self.release_snapshots(usize::MAX);
        }
    }

    /// Keeps the state of a key that a commit is about to supersede, for the open snapshots that see it. It is in their table before the
    /// index changes: a reader that misses it there looks at the table again. Returns whether the record is kept.
    pub(crate) fn keep_for_snapshots(&mut self, id: u32, key: &FullKey<'_>, is_put: bool) -> bool {
        let Some(space) = self.spaces.get(&id) else { return false };
        let index = match space.layout {
            Layout::Records(_) if space.shared.values_of.is_some() => None,
            Layout::Records(_) => space.index.as_ref(),
            // Only the snapshots of backups show blocks.
            Layout::Blocks(_) => space.index.as_ref().filter(|_| !self.snapshots.watches.is_empty()),
            Layout::Versions(_) => None,
        };
        let Some(index) = index else { return false };
        let state = index.get(key);
        if state.is_none() && !is_put {
            return false;
        }
        let Some(at) = index.place(key) else { return false };
        let is_kept = self.snapshots.keep(id, &space.shared, at, state);
        self.bound_snapshots();
        is_kept
    }

    /// The oldest snapshot expires if snapshots keep more than they may.
    pub(crate) fn bound_snapshots(&mut self) {
        if self.snapshots.are_open() && self.snapshots_exceed_their_bound() {
            // What is over comes first. Each state that is kept meanwhile releases several, so the bound holds.
            match self.snapshots.over.is_empty() {
                true => self.expire_oldest_snapshot(),
                false => self.release_snapshots(RELEASED_PER_STEP),
            }
        }
    }

    fn snapshots_exceed_their_bound(&self) -> bool {
        let snapshots = &self.snapshots;
        let capacity = self.space.sizes.capacity_chunks;
        let others = self.taken_chunks().saturating_sub(snapshots.kept_chunks);
        let kept_max = (capacity * USED_SIXTEENTHS_MAX / 16).saturating_sub(others).max(capacity / KEPT_SHARE);
        snapshots.kept_chunks > kept_max || snapshots.memory_bytes > snapshots.memory_bytes_max
    }

    /// Whether a snapshot sees a record in this place.
    pub(crate) fn is_kept(&self, id: u32, key: &FullKey<'_>, slot: Slot) -> bool {
        self.snapshots.keep_any()
            && self.spaces.get(&id).is_some_and(|space| is_kept_in(space.index.as_ref(), &space.shared, key, slot))
    }

    /// A record has a new place that only snapshots see. Returns false if none does.
    pub(crate) fn move_kept(&mut self, id: u32, key: &FullKey<'_>, from: Slot, to: Slot) -> bool {
        if !self.snapshots.keep_any() {
            return false;
        }
        let Some(space) = self.spaces.get(&id) else { return false };
        let place = space.index.as_ref().and_then(|index| index.place(key));
        place.is_some_and(|at| space.shared.superseded_mut().replace(&at, from, to))
    }

    /// Releases some of what snapshots that are over have kept, and ends the oldest one if it is in the way.
    pub(crate) fn step_snapshots(&mut self) {
        self.snapshots.has_released = false;
        if !self.snapshots.over.is_empty() {
            self.release_snapshots(RELEASED_PER_STEP);
        }
        if self.snapshots.is_in_the_way.take() && self.snapshots.over.is_empty() && self.snapshots.keep_any() {
            self.expire_oldest_snapshot();
        }
    }

    fn release_snapshots(&mut self, limit: usize) {
        let Some(number) = self.snapshots.over.front().copied() else { return };
        let snapshots = &mut self.snapshots;
        let mut has_more = false;
        for id in snapshots.spaces.clone() {
            let Some(space) = self.spaces.get(&id) else { continue };
            let mut entries = space.shared.superseded_mut();
            let released = entries.release(number, &snapshots.open, limit);
            if entries.is_empty() {
                space.shared.set_has_superseded(false);
                snapshots.spaces.remove(&id);
            }
            drop(entries);
            snapshots.entry_count -= released.count;
            snapshots.memory_bytes -= released.bytes;
            for slot in released.slots {
                snapshots.kept_chunks -= u64::from(slot.len.chunks_max());
                self.log.blocks.sub_valid(self.log.block_of(slot.at), slot.len.chunks_max());
                self.log.table_is_exact = false;
            }
            if released.has_more {
                has_more = true;
                break;
            }
        }
        if !has_more {
            snapshots.over.pop_front();
        }
        snapshots.has_released = true;
        self.space.pace.is_deadlocked = false; // what was kept may be all that was in the way
    }
}

/// Whether a snapshot sees a record of a namespace in this place.
pub(crate) fn is_kept_in(index: Option<&IndexWriter>, shared: &NamespaceShared, key: &FullKey<'_>, slot: Slot) -> bool {
    index.and_then(|index| index.place(key)).is_some_and(|at| shared.superseded().holds(&at, slot))
}
