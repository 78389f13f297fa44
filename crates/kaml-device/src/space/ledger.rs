//! The numbers of the ledger.
//!
//! Lives here:       what is taken and pending, the pace of hosts, sizes as of the last poll.
//! Lives elsewhere:  what follows from them (`space`, `pace`, `sizes`).

use kaml_flash::{Geometry, Packing};
use std::cell::Cell;

/// How much of what is taken and pending, and the state of policies that other questions of room depend on.
#[derive(Debug, Default)]
pub(crate) struct Space {
    pub(crate) pace: Pace,
    pub(crate) sizes: Sizes,
    /// Chunks of large values that are placed, and of those whose Puts are staged and not committed: they will be live,
    /// and nothing else may take their room.
    pub(crate) ticket_chunks: u64,
    /// Chunks of small values whose Puts are staged and not committed.
    pub(crate) staged_chunks: u64,
    /// The merge that a driver executes because space is low.
    pub(crate) low_merge: Option<LowMerge>,
    /// A driver executes such merges.
    pub(crate) has_low_merges: bool,
    /// Commands wait for a merge that can release so many chunks.
    pub(crate) low_merge_wanted: Cell<Option<u64>>,
    /// Live chunks, and deletes so far, when no merge was worth it.
    pub(crate) no_merge_at: Cell<Option<(u64, u64)>>,
    /// Deleted namespaces whose records still count as live.
    pub(crate) deletions: u32,
    /// The checkpoint that replaces lost metadata may have the last block.
    pub(crate) image_may_have_last: bool,
}

/// A merge because space is low.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LowMerge {
    pub(crate) namespace: u32,
    /// Commands wait for it: whatever releases a segment is worth it.
    pub(crate) is_awaited: bool,
    /// Of the namespace, when it began: its deletes, and chunks that merges had released.
    pub(crate) deletes: u64,
    pub(crate) released_chunks: u64,
}

/// The pace.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Free blocks are short: collection runs, and hosts write no more than their budget.
    pub(super) is_active: bool,
    /// Chunks that hosts may write before collection must have found more garbage.
    pub(super) budget: i64,
    /// Moved records used the last block: hosts wait until a root has released another.
    pub(super) used_last_block: bool,
    /// Blocks are short, and nothing that continues by itself will change that.
    pub(crate) is_deadlocked: bool,
    pub(super) wanted: Wanted,
    pub(super) in_vain: InVain,
}

/// Erased blocks that a Put of several blocks waits for, besides those that are left to others.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) blocks: u32,
    /// Nothing that continues by itself will bring them.
    pub(super) is_for_good: bool,
}

/// Victims picked since hosts wrote, live data changed, or there was more room than before. Collection gains nothing where records
/// that are long for their blocks leave as much of the new ones unused.
#[derive(Debug, Default)]
pub(super) struct InVain {
    pub(super) picks: u32,
    pub(super) live_chunks: u64,
    /// The most free and reclaimed blocks since.
    pub(super) room: u32,
}

/// What admission compares with, as of the last poll.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    /// Bytes of checkpoint images of all indexes.
    pub(crate) index_bytes: u64,
    /// Bytes of the images that are on the medium.
    pub(crate) standing_bytes: u64,
    /// As [`Core::capacity_chunks`].
    pub(crate) capacity_chunks: u64,
    /// As [`Core::reserve_blocks`].
    pub(super) reserve_blocks: u32,
}

/// This many chunks of records fit `chunks` chunks of open blocks for certain. Where records may not cross pages, only one of two
/// neighbouring pages can be less than half full: otherwise the next record would have fitted the first of them.
pub(crate) fn packed(geometry: &Geometry, chunks: u32) -> u32 {
    match geometry.packing {
        Packing::Across => chunks,
        Packing::WithinPage => chunks / 2,
    }
}

impl Pace {
    /// Whether hosts write only as much as collection finds garbage.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    /// A host has written `chunks`.
    pub(crate) fn has_written(&mut self, chunks: u64) {
        self.budget -= chunks as i64;
        self.in_vain.picks = 0;
    }

    /// Collection has found garbage for which hosts may write so many chunks.
    pub(crate) fn add_budget(&mut self, chunks: u32) {
        self.budget += i64::from(chunks);
    }

    /// Moved records have used the last block.
    pub(crate) fn use_last_block(&mut self) {
        self.used_last_block = true;
    }
}
