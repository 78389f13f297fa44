//! Making the device smaller.
//!
//! Lives here:       emptying the blocks at the end, until neither root nor ring names them.
//! Lives elsewhere:  requests, the change itself (`growth`), moving records (`gc`), what remains in use (`blocks`).
//! Implements:       docs/ARCHITECTURE.md "A device that grows".
//!
//! Blocks go from the end on, as fast as others become free: a free one is set aside, one in use is closed and collected first. Metadata in
//! them is written again by a checkpoint. When nothing is left, one more checkpoint makes root and journal forget them, and the size changes.

use super::{Cause, Shrink};
use crate::core::Core;
use crate::error::Error;
use crate::format::root::{Run, Stream};
use kaml_flash::{Geometry, MediumError};

impl Core {
    /// Begins to empty the blocks that a smaller device does not have, unless what is in it would not fit.
    pub(crate) fn begin_shrink(&mut self, number: u64, blocks_per_die: u32, capacity_bytes: u64) {
        let geometry = Geometry { blocks_per_die, ..self.log.geometry.clone() };
        self.growth.shrink = Some(Shrink { number, blocks_per_die, capacity_bytes, last_root: None });
        if geometry.check().is_ok() {
            self.log.blocks.keep_only(geometry.block_count());
            self.update_sizes();
        }
        if geometry.check().is_err() || self.space.sizes.capacity_chunks == 0 {
            let why = format!("{blocks_per_die} erase blocks of each log leave no room for records");
            return self.end_shrink(Error::Medium(MediumError::NotResized { why }));
        }
        if let Some(error) = self.too_full_to_shrink(0) {
            return self.end_shrink(error);
        }
        // The journal may be in blocks that go.
        self.checkpoint.request();
        self.step_shrink();
    }

    /// Why what is live does not fit the blocks that remain, if it does not; at least `excess` chunks are too many.
    fn too_full_to_shrink(&self, excess: u64) -> Option<Error> {
        let bytes = u64::from(self.log.geometry.chunk_bytes);
        let capacity = self.space.sizes.capacity_chunks;
        let taken = self.taken_chunks() + self.space.staged_chunks;
        let excess = taken.saturating_sub(capacity).max(excess);
        let (excess_bytes, capacity_bytes) = (excess * bytes, capacity * bytes);
        (excess > 0).then_some(Error::TooFullToShrink { excess_bytes, capacity_bytes })
    }

    /// One step towards empty blocks at the end.
    pub(crate) fn step_shrink(&mut self) {
        let Some(shrink) = self.growth.shrink else { return };
        if self.growth.is_resizing() {
            return;
        }
        if self.is_closing {
            return self.end_shrink(Error::Closed);
        }
        if let Some(block) = self.log.blocks.leaving_stuck() {
            let why = format!("records in erase block {block} cannot be moved; `kaml check` shows why");
            return self.end_shrink(Error::Medium(MediumError::NotResized { why }));
        }
        if self.space.pace.is_deadlocked {
            let chunks = self.log.blocks.leaving_chunks().max(1);
            let error = self.too_full_to_shrink(chunks).expect("something does not fit");
            return self.end_shrink(error);
        }
        match shrink.last_root {
            Some(request) if self.roots_done() >= request && self.root_is_idle() && self.log.blocks.have_left() => {
                self.begin_resize(Cause::Request(shrink.number), shrink.blocks_per_die, shrink.capacity_bytes, false);
            }
            Some(_) => {}
            None if self.log.blocks.have_left() => {
                let last_root = Some(self.request_checkpoint());
                self.growth.shrink = Some(Shrink { last_root, ..shrink });
            }
            None => self.empty_leaving(),
        }
    }

    /// Sets more blocks aside, and sees to it that what is in them moves.
    fn empty_leaving(&mut self) {
        let from = self.log.blocks.leave_more(self.collect_below());
        let mut out = Vec::new();
        self.log.writers.leave(from, &mut self.log.blocks, &mut out);
        self.log.emit_programs(out);
        let is_settled = self.root_is_idle() && self.root_commit.requested == self.root_commit.done;
        if self.checkpoint.is_running() || !is_settled {
            return;
        }
        let (reclaimed, has_holds) = self.log.blocks.leaving_waits();
        if has_holds && self.rewrite_metadata(from) {
            self.request_checkpoint();
        } else if reclaimed {
            self.request_root(true);
        }
    }

    /// Has the next checkpoint write what metadata is in blocks from this one on. Returns whether it will; an index that is not in memory is
    /// loaded first.
    fn rewrite_metadata(&mut self, from: u32) -> bool {
        let is_leaving = |run: &Run| run.block >= from;
        let has_leaving = |stream: &Option<Stream>| stream.iter().flat_map(|stream| &stream.runs).any(is_leaving);
        let mut has_kept = false;
        let mut wanted = None;
        for (id, space) in &mut self.spaces {
            let kept = space.versioned.as_ref().is_some_and(|versioned| has_leaving(&versioned.kept));
            if !kept && !has_leaving(&space.snapshot) {
                continue;
            }
            if space.is_loaded() {
                space.dirty = true;
                has_kept |= kept;
            } else {
                wanted = Some(*id);
            }
        }
        if has_kept {
            self.kept_lost();
        }
        wanted.into_iter().for_each(|id| self.want_index(id));
        wanted.is_none()
    }

    /// The device keeps its size.
    fn end_shrink(&mut self, error: Error) {
        tracing::warn!(%error, "the device does not become smaller");
        let Some(Shrink { number, .. }) = self.growth.shrink else { return };
        self.stop_shrinking();
        self.growth.request.take_if(|request| request.number == number);
        self.growth.outcome = Some((number, Err(error)));
    }

    /// All blocks are used again, if some were to go.
    pub(crate) fn stop_shrinking(&mut self) {
        if self.growth.shrink.take().is_some() {
            self.log.blocks.keep_all();
            self.update_sizes();
        }
    }

    /// The medium has the smaller size.
    pub(crate) fn adopt_smaller(&mut self, blocks_per_die: u32) {
        let geometry = Geometry { blocks_per_die, ..self.log.geometry.clone() };
        tracing::info!(from = self.log.geometry.blocks_per_die, to = blocks_per_die, "blocks of each die");
        self.log.blocks.shrink(&geometry);
        self.has_size(geometry);
    }
}
