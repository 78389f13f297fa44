//! The pace of collection, and of hosts while it runs.
//!
//! Lives here:       when blocks are collected, released and erased; what hosts may write meanwhile; Puts of several blocks.
//! Lives elsewhere:  which block is collected (`gc`), when a root is due for other reasons (`roots`).

use super::facts::{Budget, Erased};
use super::ledger::{InVain, Wanted};
use super::{Need, Purpose, packed};
use crate::command::StageError;
use crate::core::Core;

/// Collection is in vain when it has picked each block so often.
const VAIN_ROUNDS: u32 = 2;
/// Blocks that may be reclaimed while waiting for a root before collection waits for it.
const RECLAIMED_MAX: u32 = 4;
/// Reclaimed blocks that a root is worth while free blocks are short, but not so short that hosts wait.
const RELEASED_TOGETHER: u32 = 3;
/// The same while there are enough.
const RELEASED_AT_LEISURE: u32 = 9;
/// Blocks that each die has erased ahead.
const ERASED_AHEAD: usize = 3;

impl Core {
    /// While free blocks are short, hosts may write as much as collection finds garbage. So it is never outrun, and their latency
    /// grows by small steps.
    #[inline]
    pub(super) fn budget(&self) -> Budget {
        let pace = &self.space.pace;
        let is_left = !pace.is_active || (pace.budget > 0 && !pace.used_last_block);
        if is_left { Budget::Left } else { Budget::Spent }
    }

    /// Begins and ends the pace, with each step of collection.
    pub(crate) fn update_pace(&mut self) {
        let free = self.log.blocks.free_count() + self.log.blocks.reclaimed_count();
        let (below, reserve) = (self.collect_below(), self.reserve_blocks());
        let is_in_vain = self.collects_in_vain();
        let pace = &mut self.space.pace;
        pace.used_last_block &= self.log.blocks.free_count() == 0;
        let is_short = free < below;
        if is_short && !pace.is_active {
            // What can be written until only the reserve is left.
            let spare = u64::from(self.log.blocks.free_count().saturating_sub(reserve));
            let chunks = spare * u64::from(self.log.geometry.chunks_per_block());
            pace.budget = self.collector.rule().first_budget(chunks) as i64;
        }
        // Where collection gains nothing more, there is no reason to keep hosts waiting for it to get ahead.
        let goes_on = free <= below + 1 && !is_in_vain;
        pace.is_active = is_short || (pace.is_active && goes_on);
    }

    /// The most live chunks that the next victim may have; nothing if no block should be collected now.
    pub(crate) fn victim_chunks_max(&self) -> Option<u32> {
        if self.log.blocks.has_failing() {
            return Some(self.movable_chunks());
        }
        let chunks = self.movable_chunks();
        if self.growth.is_shrinking() && self.log.blocks.leaving_victim(chunks).is_some() {
            return Some(chunks);
        }
        let free = self.log.blocks.free_count() + self.log.blocks.reclaimed_count();
        let is_wanted = self.space.pace.is_active || free <= self.collect_below() + self.wanted_blocks();
        let is_due = is_wanted
            && !self.collects_in_vain()
            && self.collector.draining_count() + self.log.blocks.reclaimed_count() <= RECLAIMED_MAX
            && !self.root_commit.awaits_checkpoint();
        is_due.then(|| self.movable_chunks()).filter(|chunks| *chunks > 0)
    }

    /// Live chunks that can be moved now. A victim that comes while others are being emptied may need a block of its own before they
    /// release theirs. Where there is none, those that fit what is open come along: together they gain something even where
    /// each program takes a whole block.
    fn movable_chunks(&self) -> u32 {
        let (free, floor) = (self.log.blocks.free_count(), self.floor(Purpose::Move));
        if self.collector.draining_count() == 0 || free > floor + 1 {
            return self.log.geometry.chunks_per_block();
        }
        let room = packed(&self.log.geometry, self.log.writers.room(self.log.blocks.lifetimes.classes()));
        // The root that releases them may have to do without a block.
        let entries = self.collector.moving_count() + room;
        if free <= floor && self.journal_fits_root(entries as usize) { room } else { 0 }
    }

    fn collects_in_vain(&self) -> bool {
        let in_vain = &self.space.pace.in_vain;
        in_vain.picks > VAIN_ROUNDS * self.log.blocks.count() && in_vain.live_chunks == self.log.blocks.live_chunks()
    }

    /// A victim was picked.
    pub(crate) fn note_pick(&mut self) {
        let room = self.log.blocks.free_count() + self.log.blocks.reclaimed_count();
        let live_chunks = self.log.blocks.live_chunks();
        let in_vain = &mut self.space.pace.in_vain;
        if in_vain.live_chunks != live_chunks || room > in_vain.room {
            *in_vain = InVain { picks: 0, live_chunks, room };
        }
        in_vain.picks += 1;
    }

    /// Whether reclaimed blocks should become free. Each root takes a barrier and a write, so several are released together
    /// unless somebody waits for them.
    pub(crate) fn blocks_are_wanted(&self) -> bool {
        let (free, reclaimed) = (self.log.blocks.free_count(), self.log.blocks.reclaimed_count());
        let worth = match free {
            free if free <= self.reserve_blocks() + self.wanted_blocks() => 1,
            free if free <= self.collect_below() + 1 => RELEASED_TOGETHER,
            _ => RELEASED_AT_LEISURE,
        };
        reclaimed >= worth && self.log.blocks.can_release_before(self.log.ring.staging_number())
    }

    /// Erased blocks that a Put waits for.
    pub(crate) fn wanted_blocks(&self) -> u32 {
        self.space.pace.wanted.blocks
    }

    /// Erased blocks that each die should have, and whether the medium may have the space of those that are erased: a block about to be
    /// reused keeps its extents.
    pub(crate) fn erased_ahead(&self) -> (usize, bool) {
        let has_many = self.log.blocks.free_count() > self.log.blocks.count() / 4;
        (ERASED_AHEAD.max(self.wanted_blocks() as usize), has_many)
    }

    /// Refuses a Put of this many chunks, of which no record has more than `longest`, as long as there are too few erased blocks for it,
    /// and has blocks erased and collected. What a Put has placed when it finds no block half way is garbage, and is so each time that it
    /// is tried again. One of less than a block continues in the blocks that it has opened.
    pub(crate) fn admit_blocks(&mut self, chunks: u64, longest: u32) -> Result<(), StageError> {
        let per_block = self.log.geometry.chunks_per_block();
        if chunks <= per_block.into() {
            return Ok(());
        }
        // A full block lacks less than a record, and two in a row are more than half full.
        let filled = packed(&self.log.geometry, (per_block - longest + 1).max(per_block / 2));
        // Each die may have one that is not full for each class of Puts.
        let begun = (self.log.blocks.lifetimes.classes().len() as u32 - 1) * self.log.geometry.die_count();
        let blocks = chunks.div_ceil(filled.max(1).into()) as u32 + begun;
        let is_enough = self.log.blocks.ready_total() >= blocks as usize
            && self.log.blocks.free_count() >= self.floor(Purpose::Put) + blocks;
        let is_for_good = self.space.pace.wanted.is_for_good && self.space.pace.wanted.blocks >= blocks;
        let erased = match is_enough {
            true => Erased::Enough,
            false if is_for_good => Erased::FewForGood,
            false => Erased::Few,
        };
        let answer = self.ask(Purpose::Put, Need::Erased(erased), &self.situation(Purpose::Put));
        self.space.pace.wanted = match &answer {
            Err(StageError::Busy) => Wanted { blocks, is_for_good },
            _ => Wanted::default(), // nobody waits any more
        };
        answer
    }
}
