//! The situation of a purpose: the only place where it is computed.
//!
//! Lives here:       computing the facts from the state of the firmware.
//! Lives elsewhere:  the facts (`facts`), what follows from them (`space`).

use super::Purpose;
use super::facts::{Activity, Below, Collection, Data, Free, JournalTail, LastBlock, Metadata, Programs, Reclaimed};
use super::facts::{RootState, Situation};
use crate::core::Core;

/// With so many sixteenths of the capacity in use hosts wait for a merge that continues.
pub(crate) const HELD_SIXTEENTHS: u64 = 14;
/// Deletes of versions may exceed the capacity by this share of it: a merge drops what was deleted only after them.
const TOMBSTONES_OF_CAPACITY: u64 = 64;
/// The part of that room that overwrites may take: deletes have to work after them.
const OVERWRITES_OF_TOMBSTONES: u64 = 2;
/// The largest share of the capacity by which segments that are not full may exceed it.
const SEGMENTS_OF_CAPACITY: u64 = 32;

impl Core {
    /// The situation of a purpose.
    #[inline]
    pub(super) fn situation(&self, purpose: Purpose) -> Situation {
        let now = Situation {
            free: Free::of(self.log.blocks.free_count(), self.reserve_blocks()),
            programs: Programs::of(self.log.writers.programming_bytes),
            below: if self.log.queue.retry.is_empty() { Below::Room } else { Below::Full },
            budget: self.budget(),
            collection: match self.space.pace.is_deadlocked {
                true => Collection::Deadlocked,
                false if self.collector.is_running() => Collection::Running,
                false => Collection::Resting,
            },
            is_merging: self.space.low_merge.is_some(),
            is_deleting: self.space.deletions > 0,
            metadata: self.metadata(),
            last_block: self.last_block_of(purpose),
            activity: Activity::UnderWay,
            root: RootState::Idle,
            journal: JournalTail::FitsRoot,
            reclaimed: Reclaimed::None,
        };
        match purpose {
            Purpose::Put | Purpose::Overwrite | Purpose::Large | Purpose::Timeline => now,
            Purpose::Delete | Purpose::Tombstone | Purpose::Forget => now,
            Purpose::Seal | Purpose::Merge | Purpose::Image | Purpose::Keep => self.with_background(now),
            Purpose::Replay | Purpose::Move | Purpose::Rehome | Purpose::Journal => self.with_background(now),
        }
    }

    /// Adds what only background work, and callers that wait for it, depend on.
    pub(super) fn with_background(&self, now: Situation) -> Situation {
        let is_in_flight = !self.log.queue.ops.is_empty() || !self.log.queue.outbox.is_empty();
        let activity = match is_in_flight || self.collector.wants_index.is_some() {
            true => Activity::UnderWay,
            false if self.is_idle() => Activity::Idle,
            false => Activity::Still,
        };
        let has_reclaimed = self.log.blocks.can_release_before(self.log.ring.oldest_kept());
        Situation {
            activity,
            root: if self.root_is_idle() { RootState::Idle } else { RootState::Committing },
            journal: if self.log.journal.is_urgent() { JournalTail::Urgent } else { JournalTail::FitsRoot },
            reclaimed: if has_reclaimed { Reclaimed::Some } else { Reclaimed::None },
            ..now
        }
    }

    /// How `chunks` more of live data fit the capacity; deletes have some room beyond it.
    #[inline]
    pub(super) fn fit_of(&self, purpose: Purpose, chunks: u64) -> Data {
        let capacity = self.space.sizes.capacity_chunks;
        let taken = self.taken_chunks() + chunks;
        let is_held = || self.space.low_merge.is_some() && taken * 16 > capacity * HELD_SIXTEENTHS;
        match purpose {
            Purpose::Tombstone if taken > capacity + self.room_for_tombstones() => Data::Exceeds,
            Purpose::Put | Purpose::Overwrite | Purpose::Large | Purpose::Timeline if is_held() => Data::NeededByMerge,
            Purpose::Overwrite if taken > capacity + self.room_for_tombstones() / OVERWRITES_OF_TOMBSTONES => {
                Data::Exceeds
            }
            Purpose::Put | Purpose::Large | Purpose::Timeline if taken > capacity => Data::Exceeds,
            Purpose::Put | Purpose::Large | Purpose::Timeline if taken + self.space.staged_chunks > capacity => {
                Data::ExceedsWithStaged
            }
            _ => Data::Fits,
        }
    }

    /// Whether so many more chunks of live data are within the capacity, whatever is staged.
    #[inline]
    pub(crate) fn fits(&self, chunks: u64) -> bool {
        self.taken_chunks() + chunks + self.space.staged_chunks <= self.space.sizes.capacity_chunks
    }

    /// Chunks that deletes of versions may take beyond the capacity. What is in page buffers was accepted before the device was
    /// full, and counts only when it is sealed. With two segments for each row, which small versions fill by half, a merge finds a row that
    /// releases one.
    fn room_for_tombstones(&self) -> u64 {
        let shapes = || self.version_spaces().filter_map(|(_, space)| space.layout.versions());
        let buffers: u64 = shapes().map(|shape| shape.buffer_bytes).sum();
        let rows: u64 = shapes().map(|shape| 2 * u64::from(shape.rows) * shape.segment_bytes() as u64).sum();
        let (capacity, chunk_bytes) = (self.space.sizes.capacity_chunks, u64::from(self.log.geometry.chunk_bytes));
        let rows = (rows.saturating_sub(buffers) / chunk_bytes).min(capacity / SEGMENTS_OF_CAPACITY);
        capacity / TOMBSTONES_OF_CAPACITY + (buffers + self.log.geometry.block_bytes()) / chunk_bytes + rows
    }

    #[inline]
    pub(super) fn metadata(&self) -> Metadata {
        if self.root_commit.awaits_checkpoint() { Metadata::Lost } else { Metadata::Whole }
    }

    /// Whether a purpose may take the last block by a right that it keeps. That of collection is checked with each record.
    #[inline]
    pub(super) fn last_block_of(&self, purpose: Purpose) -> LastBlock {
        match purpose {
            Purpose::Image | Purpose::Keep | Purpose::Delete | Purpose::Tombstone | Purpose::Forget => {
                LastBlock::of(self.space.image_may_have_last)
            }
            _ => LastBlock::Kept,
        }
    }
}
