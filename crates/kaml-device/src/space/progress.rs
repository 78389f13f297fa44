//! Whether anything can still continue by itself: deadlocks, the last block, the end of a device.
//!
//! Lives here:       when collection cannot make progress, what may use the last block then, when the device stops because
//!                   no blocks remain.
//! Lives elsewhere:  what the answers are (`space`).

use super::{Answer, Need, Purpose, packed};
use crate::blocks::BlockState;
use crate::core::Core;
use kaml_flash::{BlockIndex, MediumError};

impl Core {
    /// Whether nothing continues by itself but collection.
    fn is_quiet(&self) -> bool {
        !self.log.is_under_way() && self.failed_blocks.is_empty() && self.root_is_idle() && !self.log.ring.has_staged()
    }

    /// Notes whether collection is deadlocked, after everything that can make progress has done so. Records that do
    /// not fit together into whole blocks, or power cuts that left too many blocks half full, have taken the blocks that
    /// moving them needs. Deletes may still empty some.
    pub(crate) fn note_deadlock(&mut self) {
        let is_stuck = self.collector.is_stuck() && !self.blocks_are_wanted() && self.is_quiet();
        let is_deadlocked = self.space.pace.is_active() && is_stuck;
        // Those that are free are erased with the next step.
        let wanted = self.wanted_blocks();
        let is_lacking = wanted > 0 && self.log.blocks.free_count() < self.floor(Purpose::Put) + wanted;
        if is_deadlocked && !self.space.pace.is_deadlocked {
            let (free, live) = (self.log.blocks.free_count(), self.log.blocks.live_chunks());
            tracing::warn!(
                free,
                live,
                "collection has no block to move records to; puts are refused until some are deleted"
            );
        }
        self.space.pace.is_deadlocked = is_deadlocked;
        self.space.pace.wanted.is_for_good = is_lacking && is_stuck;
    }

    /// Whether collection, the records of a failed block or a checkpoint image may use the last block now. They may if nothing else is in
    /// flight, if what they move fits it, and if the root that then releases other blocks takes the journal's entries itself, so it
    /// needs no block. Power cuts that leave blocks half full, one after the other, lead here.
    pub(crate) fn may_use_last_block(&self, purpose: Purpose) -> bool {
        let Some((chunks, entries)) = self.move_to_last_block(purpose) else { return false };
        let fits = chunks <= packed(&self.log.geometry, self.log.geometry.chunks_per_block());
        !self.log.is_under_way() && self.root_is_idle() && fits && self.journal_fits_root(entries)
    }

    /// The chunks that a purpose would place in the last block, and their number of records, if they are all that it waits for.
    fn move_to_last_block(&self, purpose: Purpose) -> Option<(u32, usize)> {
        let blocks = &self.log.blocks;
        match purpose {
            Purpose::Move if !self.root_commit.awaits_checkpoint() => {
                let (block, records) = self.collector.only_victim()?;
                let live = blocks.get(block).valid_chunks;
                let is_last = blocks.free_count() == 1 && blocks.reclaimed_count() == 0 && self.is_quiet();
                is_last.then(|| (live.min(self.log.geometry.chunks_per_block()), records.min(live as usize)))
            }
            // The root after that releases what waited for these records.
            Purpose::Rehome if !self.root_commit.awaits_checkpoint() && blocks.ready_total() > 0 => {
                let [block] = self.failed_blocks[..] else { return None };
                let records = self.log.writers.unprogrammed_records(block)?;
                Some((records.iter().map(|extent| extent.chunk_count).sum(), records.len()))
            }
            Purpose::Image if blocks.free_count() > 0 && !self.log.journal.is_urgent() => {
                (!self.space.image_may_have_last).then_some((0, 0))
            }
            _ => None,
        }
    }

    /// Whether a failed block's records may be placed again: they fit what remains of an open block, and one more.
    pub(crate) fn may_rehome(&self, block: u32) -> bool {
        self.log.writers.is_metadata(block) || self.log.blocks.ready_total() > self.floor(Purpose::Rehome) as usize
    }

    /// Blocks become free with roots only. Where blocks have failed there may be none left for what a root needs, the
    /// journal, metadata that was lost, records whose block failed. Then nothing more will be made durable, and the device stops.
    pub(crate) fn stop_at_dead_end(&mut self) {
        if self.log.is_under_way() || self.collector.wants_index.is_some() {
            return;
        }
        let has_none = |purpose| matches!(self.situation(purpose).ask(purpose, Need::Block), Answer::Never(_));
        let journal = has_none(Purpose::Journal);
        let failed = has_none(Purpose::Rehome) && !self.failed_blocks.is_empty() && self.failed_blocks_want_room();
        let mut images = self.checkpoint.is_stalled() && has_none(Purpose::Image);
        if images && self.may_use_last_block(Purpose::Image) {
            self.space.image_may_have_last = true;
            self.checkpoint.may_go_on();
            images = false;
        }
        match self.failed_blocks[..] {
            _ if journal || images => {}
            [block] if failed && self.may_use_last_block(Purpose::Rehome) => return self.rehome_last(block),
            _ if failed => {}
            _ => return,
        }
        if self.snapshots.make_room() {
            return;
        }
        let failed = self.log.blocks.iter().find(|(_, block)| block.failing || block.state == BlockState::Bad);
        if let Some((block, _)) = failed {
            self.stop_without_blocks(block, "no block left to write what must be written");
        }
    }

    /// Stops because there is no block for what a failed one held.
    pub(crate) fn stop_without_blocks(&mut self, failed: u32, error: &str) {
        let bad_blocks = self.log.blocks.iter().filter(|(_, block)| block.failing || block.state == BlockState::Bad);
        let bad_blocks = bad_blocks.count() as u32;
        let none = self.log.blocks.free_count() == 0 && self.log.blocks.reclaimed_count() == 0;
        self.log.stop(match none {
            true => MediumError::WornOut { bad_blocks },
            false => MediumError::BlockFailed { block: BlockIndex(failed), what: "program", error: error.to_owned() },
        });
    }
}
