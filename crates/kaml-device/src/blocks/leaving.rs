//! Blocks at the end of a device that is to become smaller.
//!
//! Lives here:       which of them are not used any more, whether nothing is left in them.
//! Lives elsewhere:  emptying them (`shrink`), all other blocks (`blocks`).

use super::{Block, BlockState, BlockTable};
use kaml_flash::Geometry;

impl BlockTable {
    /// Blocks that hosts may count on: not those that go, nor bad ones.
    pub(crate) fn remaining_good(&self) -> u32 {
        match self.remaining == self.count() {
            true => self.count() - self.bad_count,
            false => {
                self.blocks[..self.remaining as usize].iter().filter(|b| b.state != BlockState::Bad).count() as u32
            }
        }
    }

    /// Blocks that remain.
    pub(crate) fn remaining(&self) -> u32 {
        self.remaining
    }

    /// Only so many blocks are to remain. The others go from the end on, as [`BlockTable::leave_more`] is called.
    pub(crate) fn keep_only(&mut self, remaining: u32) {
        self.remaining = remaining;
    }

    /// No further use is made of blocks at the end that are to go, as long as more than `free_min` others are free. Returns the first
    /// block that is not used any more.
    pub(crate) fn leave_more(&mut self, free_min: u32) -> u32 {
        while self.leaving_from > self.remaining {
            let block = self.leaving_from - 1;
            if matches!(self.get(block).state, BlockState::Dirty | BlockState::Ready) {
                if self.free_count <= free_min {
                    break;
                }
                self.unlist_free(block);
            }
            self.leaving_from = block;
        }
        self.leaving_from
    }

    /// All blocks remain after all.
    pub(crate) fn keep_all(&mut self) {
        let (from, count) = (self.leaving_from, self.count());
        (self.leaving_from, self.remaining) = (count, count);
        for block in from..self.count() {
            if matches!(self.get(block).state, BlockState::Dirty | BlockState::Ready) {
                self.list_free(block);
            }
        }
    }

    /// Blocks that are not used any more.
    fn leaving(&self) -> impl Iterator<Item = (u32, &Block)> {
        (self.leaving_from..).zip(&self.blocks[self.leaving_from as usize..])
    }

    /// Whether nothing is in the blocks that go, nobody reads them, and neither root nor ring names them.
    pub(crate) fn have_left(&self) -> bool {
        let has_left = |(block, entry): (u32, &Block)| {
            let is_empty = entry.valid_chunks == 0 && entry.holds == 0;
            let is_over = matches!(entry.state, BlockState::Dirty | BlockState::Ready | BlockState::Bad);
            is_over && is_empty && !self.gate.is_pinned(block)
        };
        self.leaving_from == self.remaining && self.leaving().all(has_left)
    }

    /// A block that goes and can be drained, with at most so many live chunks.
    pub(crate) fn leaving_victim(&self, live_max: u32) -> Option<u32> {
        // Length codes round up: a full block can have more live chunks than it holds.
        let live_max = if live_max >= self.geometry.chunks_per_block() { u32::MAX } else { live_max };
        let may = |entry: &Block| entry.may_be_drained() && entry.valid_chunks <= live_max;
        self.leaving().find(|(_, entry)| may(entry)).map(|(block, _)| block)
    }

    /// A block that is to go and cannot be emptied: its records cannot be read, or their index.
    pub(crate) fn leaving_stuck(&self) -> Option<u32> {
        let is_stuck = |entry: &Block| entry.valid_chunks > 0 && (entry.stuck || entry.state == BlockState::Bad);
        (self.remaining..)
            .zip(&self.blocks[self.remaining as usize..])
            .find(|(_, b)| is_stuck(b))
            .map(|(block, _)| block)
    }

    /// Whether a block that goes waits for a root that no longer names it, and whether one has metadata in it.
    pub(crate) fn leaving_waits(&self) -> (bool, bool) {
        let reclaimed = self.leaving().any(|(_, entry)| entry.state == BlockState::Reclaimed);
        (reclaimed, self.leaving().any(|(_, entry)| entry.state == BlockState::Full && entry.holds > 0))
    }

    /// Live chunks in the blocks that are to go.
    pub(crate) fn leaving_chunks(&self) -> u64 {
        self.blocks[self.remaining as usize..].iter().map(|entry| u64::from(entry.valid_chunks)).sum()
    }

    /// The blocks that have left are gone: the device has this shape from now on.
    pub(crate) fn shrink(&mut self, geometry: &Geometry) {
        assert!(self.have_left() && self.remaining == geometry.block_count(), "only blocks that have left go");
        let bad = self.leaving().filter(|(_, entry)| entry.state == BlockState::Bad).count() as u32;
        self.bad_count -= bad;
        self.geometry = geometry.clone();
        self.blocks.truncate(self.remaining as usize);
    }
}
