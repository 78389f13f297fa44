//! The firmware keeps what snapshots see.
//!
//! Lives here:       opening and closing them, what happens when a record is superseded, releasing, expiry, the bound of what is kept.
//! Lives elsewhere:  what is known of them (`snapshots`), what is superseded (`superseded`).

use super::{Open, SNAPSHOT_BYTES, SnapshotStats, SnapshotTicket};
use crate::core::Core;
use crate::error::Error;
use crate::index::IndexWriter;
use crate::layout::Layout;
use crate::namespace::{NamespaceInfo, NamespaceShared};
use crate::superseded::Ended;
use kaml_index::{FullKey, Slot};

/// Entries that are released at a time: some 20 µs of the core.
const RELEASED_PER_STEP: usize = 64;
/// Snapshots may keep records as long as this many sixteenths of the capacity are in use.
const USED_SIXTEENTHS_MAX: u64 = 14;
/// And so large a part of the capacity however much is in use, unless a Put needs it.
const KEPT_SHARE: u64 = 32;
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
