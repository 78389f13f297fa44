//! Merges of versioned namespaces: the firmware's part.
//!
//! Lives here:       what a merge must not touch, how much it may write at a time, placing and installing its segments.
//! Lives elsewhere:  what is kept, and the pieces of a merge (`kaml-versions`); drivers, which execute it step by step (`kaml`).
//! Implements:       docs/versioned.md "Merge"; paper:Muninn 4.4.1.
//!
//! Why versions may leave the page buffer: those that a merge drops are in the kept stream, and the ring has no copy of them. A crash
//! brings all of them back, and they hide each other as before.

use super::segments::segment_at;
use super::state::{Placing, Use, Versioned, segment_chunks};
use crate::command::StageError;
use crate::core::Core;
use crate::error::Error;
use crate::format::journal::Change;
use crate::layout::Door;
use crate::space::Purpose;
use crate::writers::NoBlock;
use kaml_flash::{AlignedBuf, ChunkAddr};
use kaml_versions::{MergePlan, MergeScope, Merged, SEGMENTS_MAX, Sealed, SegmentAt, Versions};
use std::sync::Arc;

/// Space is short with all but this part of the capacity in use.
const THOROUGH: u64 = 64;
/// Segments that a merge writes at least before it releases others.
pub(crate) const MERGED_SEGMENTS_MIN: usize = 2;

impl Core {
    /// Places a new segment of a merge; it is on flash when [`Core::is_segment_programmed`]. `image` is [`crate::segment_image`].
    pub fn place_merged(
        &mut self,
        namespace: u32,
        sealed: &Sealed,
        image: &Arc<AlignedBuf>,
    ) -> Result<u64, StageError> {
        self.writable()?;
        let space = self.spaces.get(&namespace).ok_or(Error::UnknownNamespace(namespace))?;
        space.layout.admit(namespace, Door::Versions)?;
        if !self.may_program(Purpose::Merge) {
            return Err(StageError::Busy);
        }
        let ticket = self.tickets.take();
        let floor = self.floor(Purpose::Merge);
        let at =
            self.place_segment(namespace, image, ticket, floor).map_err(|NoBlock| self.no_block_for(Purpose::Merge))?;
        let purpose = Use::Merged { is_programmed: false };
        self.sealing.placing.insert(ticket, Placing { namespace, row: sealed.row, at, image: image.clone(), purpose });
        Ok(ticket)
    }

    /// Whether the segment of [`Core::place_merged`] is on flash.
    pub fn is_segment_programmed(&self, ticket: u64) -> bool {
        let purpose = self.sealing.placing.get(&ticket).map(|placing| placing.purpose);
        matches!(purpose, Some(Use::Merged { is_programmed: true }))
    }

    /// Whether a row of a namespace is about to be sealed.
    pub fn seals_are_due(&self, namespace: u32) -> bool {
        let Some(space) = self.spaces.get(&namespace).filter(|space| space.is_loaded()) else { return false };
        let is_sealed = space.versioned.as_ref().is_some_and(|versioned| versioned.sealed.is_some());
        space.versioned.is_some() && (is_sealed || self.wants_row(namespace))
    }

    /// Prepares merges of a namespace: request a root that settles next. Versions that are kept in metadata pages and are in segments by
    /// now would be in their way.
    pub fn prepare_merge(&mut self, namespace: u32) {
        let Some(space) = self.spaces.get_mut(&namespace).filter(|space| space.is_loaded()) else { return };
        let Some(versioned) = &space.versioned else { return };
        let is_stale = space.with_versions(|versions| {
            let oldest = |row: u32| oldest_buffered(versions, row);
            versioned.kept_first.iter().any(|(row, first)| oldest(*row).is_none_or(|oldest| oldest > *first))
        });
        if let (Some(true), Some(versioned)) = (is_stale, &mut space.versioned) {
            versioned.kept_is_stale = true;
        }
    }

    /// Whether space is so short that a merge should release whatever it can.
    pub fn needs_thorough_merge(&self) -> bool {
        let capacity = self.capacity_chunks();
        let is_awaited = self.space.low_merge.is_some_and(|merge| merge.is_awaited);
        is_awaited || self.taken_chunks() + capacity / THOROUGH >= capacity
    }

    /// What a merge of a row must not touch: what opening after a crash might bring back.
    ///
    /// # Errors
    /// [`StageError::NeedIndex`]: what is kept is known after it was read. [`StageError::Busy`] while segments of the row wait to be
    /// journaled.
    pub fn merge_scope(&self, namespace: u32, row: u32, is_thorough: bool) -> Result<MergeScope, StageError> {
        let space = self.spaces.get(&namespace).ok_or(Error::UnknownNamespace(namespace))?;
        space.layout.admit(namespace, Door::Versions)?;
        if !space.is_loaded() {
            return Err(StageError::NeedIndex(namespace));
        }
        let versioned = space.versioned.as_ref().expect("admitted");
        let segments = space.with_versions(|versions| versions.columns().segments(row).count()).unwrap_or(0);
        let fresh = versioned.fresh.iter().filter(|fresh| fresh.row == row).count();
        if fresh > 0 && !self.read_only {
            return Err(StageError::Busy);
        }
        let segments = segments - fresh;
        if self.read_only {
            // A merge would first keep what is in the buffer, and nothing else would be in its way.
            let oldest = space.with_versions(|versions| oldest_buffered(versions, row));
            let sealed_before = oldest.flatten().unwrap_or(u64::MAX);
            return Ok(MergeScope { sealed_before, segments, is_thorough, ..MergeScope::ALL });
        }
        let buffered_before = self.log.ring.first_version();
        let sealed_before = versioned.kept_of(row).chain([buffered_before]).min().expect("at least the ring's");
        Ok(MergeScope { sealed_before, buffered_before, segments, is_thorough, ..MergeScope::ALL })
    }

    /// The sequence from which versions of each row are in the page buffer ([`MergeScope::buffered_from`]).
    ///
    /// # Errors
    /// [`StageError::NeedIndex`].
    pub fn buffered_from(&self, namespace: u32) -> Result<Vec<u64>, StageError> {
        let space = self.spaces.get(&namespace).ok_or(Error::UnknownNamespace(namespace))?;
        space.layout.admit(namespace, Door::Versions)?;
        let oldest = |versions: &Versions| {
            let rows = 0..versions.columns().parameters().rows;
            rows.map(|row| oldest_buffered(versions, row).unwrap_or(u64::MAX)).collect()
        };
        space.with_versions(oldest).ok_or(StageError::NeedIndex(namespace))
    }

    /// Whether a merge of a row would keep versions that no rule keeps: they were sealed after they were kept in metadata pages, and a crash
    /// would bring them back. [`Core::prepare_merge`] and a root that settles release them.
    pub fn merge_is_held(&self, namespace: u32, row: u32) -> bool {
        let Some(space) = self.spaces.get(&namespace).filter(|space| space.is_loaded()) else { return false };
        let Some(versioned) = space.versioned.as_ref().filter(|_| !self.read_only) else { return false };
        let Some(first) = versioned.kept_of(row).min() else { return false };
        let oldest = space.with_versions(|versions| oldest_buffered(versions, row)).flatten();
        oldest.is_none_or(|oldest| oldest > first)
    }

    /// Begins a merge of a row, and returns what it must not touch. One merge of a namespace may continue at a time. Until
    /// [`Core::end_merge`] the namespace is kept in memory.
    ///
    /// # Errors
    /// Those of [`Core::merge_scope`].
    pub fn begin_merge(&mut self, namespace: u32, row: u32, is_thorough: bool) -> Result<MergeScope, StageError> {
        let scope = self.merge_scope(namespace, row, is_thorough)?;
        if let Some(values) = self.values_without_index(&self.spaces[&namespace]) {
            return Err(StageError::NeedIndex(values));
        }
        self.versioned_mut(namespace).is_merging = true;
        if row == 0 {
            self.list_values(namespace);
        }
        Ok(scope)
    }

    /// Segments that a merge may write before it releases others. Half of what is free remains for hosts and collection.
    pub fn merge_segments_max(&self, namespace: u32) -> usize {
        let Some(parameters) = self.spaces.get(&namespace).and_then(|space| space.layout.versions()) else { return 0 };
        let chunks = segment_chunks(parameters, &self.log.geometry);
        let blocks = self.log.blocks.free_count().saturating_sub(self.floor(Purpose::Merge) + 1) / 2;
        ((blocks * (self.log.geometry.chunks_per_block() / chunks)) as usize).clamp(MERGED_SEGMENTS_MIN, SEGMENTS_MAX)
    }

    /// After all pieces of a plan are installed: removes what it drops from the page buffer. Returns how many versions, and their bytes.
    pub fn drop_buffered(&mut self, namespace: u32, plan: &MergePlan) -> Result<(u64, u64), Error> {
        self.writable()?;
        self.claim_values(namespace, plan);
        let space = self.spaces.get_mut(&namespace).ok_or(Error::UnknownNamespace(namespace))?;
        let is_loaded = space.is_loaded();
        let Some(versioned) = space.versioned.as_ref().filter(|_| is_loaded) else { return Ok((0, 0)) };
        if plan.buffered_drops() == 0 || versioned.sealed.as_ref().is_some_and(|sealed| sealed.row == plan.row) {
            return Ok((0, 0)); // a sealed row that waits for its block names versions by their places in the buffer
        }
        let dropped = space.change_versions(|versions| versions.drop_buffered(plan));
        let is_captured = self.sealing.keep_job.as_ref().is_some_and(|job| job.namespace == namespace);
        let versioned = self.versioned_mut(namespace);
        let is_kept = versioned.kept.is_some() || is_captured;
        versioned.kept_has_dropped |= dropped.count > 0 && is_kept;
        self.note_released(namespace, 0, &dropped.large);
        self.drop_values(namespace, &dropped.large, is_kept);
        Ok((dropped.count, dropped.bytes))
    }

    /// No merge of the namespace is in progress any more. If it dropped large values, returns the number of the root after which they
    /// are released ([`Core::roots_done`]).
    pub fn end_merge(&mut self, namespace: u32) -> Option<u64> {
        if let Some(versioned) = self.spaces.get_mut(&namespace).and_then(|space| space.versioned.as_mut()) {
            versioned.is_merging = false;
            // One time for all rows.
            versioned.kept_is_stale |= std::mem::take(&mut versioned.kept_has_dropped);
        }
        self.release_after_merge(namespace)
    }

    /// The programmed segments of a merge take the place of the old ones, in one step.
    pub fn install_merge(&mut self, namespace: u32, merged: &Merged, tickets: &[u64]) -> Result<(), Error> {
        self.writable()?;
        let space = self.spaces.get(&namespace).ok_or(Error::UnknownNamespace(namespace))?;
        assert!(tickets.iter().all(|ticket| self.is_segment_programmed(*ticket)), "all segments are programmed");
        let places: Vec<ChunkAddr> = tickets.iter().map(|ticket| self.sealing.placing[ticket].at).collect();
        let at: Vec<SegmentAt> = places.iter().map(|at| segment_at(*at)).collect();
        let row = merged.row;
        let (place, freed) = space.change_versions(|versions| versions.install_merge(merged, &at));
        let (chunks, count_freed) = (self.segment_chunks_of(namespace), freed.len());
        self.log.table_is_exact = false;
        tickets.iter().for_each(|ticket| drop(self.sealing.placing.remove(ticket)));
        for count in counts(freed.len()) {
            self.log.journal.append(&Change::SegmentsOut { namespace, row, place, count });
        }
        for at in &places {
            let block = self.log.block_of(at.0);
            self.log.blocks.add_valid(block, chunks);
            self.log.blocks.unhold(block);
            self.journal_segment(namespace, row, *at);
        }
        for at in freed {
            let block = self.log.block_of(at.get());
            self.log.blocks.sub_valid(block, chunks);
        }
        self.spaces.get_mut(&namespace).expect("just seen").dirty = true;
        let released = (count_freed as u64).saturating_sub(places.len() as u64) * u64::from(chunks);
        self.note_released(namespace, released, &merged.large);
        self.drop_values(namespace, &merged.large, false);
        Ok(())
    }

    /// Gives up segments of a merge that will not be installed.
    pub fn forget_merged(&mut self, tickets: &[u64]) {
        for ticket in tickets {
            if let Some(placing) = self.sealing.placing.get_mut(ticket) {
                if matches!(placing.purpose, Use::Merged { is_programmed: true }) {
                    let block = self.log.geometry.split(placing.at).0.0;
                    self.sealing.placing.remove(ticket);
                    self.log.blocks.unhold(block);
                } else {
                    placing.purpose = Use::Abandoned;
                }
            }
        }
    }
}

impl Versioned {
    /// The oldest versions of a row that metadata pages have, and that those have which the last root names.
    fn kept_of(&self, row: u32) -> impl Iterator<Item = u64> {
        [&self.kept_first, &self.kept_first_in_root].into_iter().filter_map(move |first| first.get(&row).copied())
    }
}

/// The sequence of the oldest version of a row in the page buffer.
fn oldest_buffered(versions: &Versions, row: u32) -> Option<u64> {
    versions.columns().buffered(row).next().map(|(version, _)| version.sequence)
}

/// Numbers of at most 16 bits that add up to `sum`.
fn counts(sum: usize) -> impl Iterator<Item = u16> {
    let full = sum / usize::from(u16::MAX);
    let rest = (sum % usize::from(u16::MAX)) as u16;
    std::iter::repeat_n(u16::MAX, full).chain((rest > 0).then_some(rest))
}
