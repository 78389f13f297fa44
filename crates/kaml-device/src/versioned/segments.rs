//! Segments on their way to flash: sealed, moved by collection, placed again after a failure.
//!
//! Lives here:       when a row is sealed, what a programmed segment settles, which segments a block has.
//! Lives elsewhere:  what is in a segment (`kaml-versions`), blocks and programs (`core`, `writers`), victims (`gc`).
//! Implements:       docs/versioned.md "In the device"; paper:Muninn 4.2.1, 4.4.1.

use super::state::{Fresh, Placing, Use, for_each_segment, segment_chunks};
use crate::core::Core;
use crate::format::journal::Change;
use crate::format::version::Entry;
use crate::lifetime::Class;
use crate::namespace::Namespace;
use crate::space::Purpose;
use crate::writers::NoBlock;
use kaml_flash::{AlignedBuf, ChunkAddr};
use kaml_versions::{Columns, Parameters, Sealed, SegmentAt, SegmentInfo, Versions, is_whole};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Why a segment cannot be moved now.
pub(crate) enum NoSegment {
    /// There is no block for it.
    Block,
    /// It may be one of this namespace, whose index is not in memory.
    Index(u32),
    /// What was read of it does not match its checksums.
    Damaged,
}

pub(super) fn segment_at(at: ChunkAddr) -> SegmentAt {
    SegmentAt::new(at.0).expect("chunk numbers have less than 48 bits")
}

impl Core {
    // --- sealing ------------------------------------------------------------------------------------------------------

    /// Seals rows as long as buffers need it and there is room.
    pub(crate) fn step_sealing(&mut self) {
        if !self.sealing.is_wanted {
            return;
        }
        let ids: Vec<u32> = self.version_spaces().map(|(id, _)| id).collect();
        let done = ids.into_iter().all(|id| self.seal_rows(id));
        self.sealing.is_wanted = !done;
    }

    /// Seals rows of a namespace; false if there is more to do later.
    fn seal_rows(&mut self, id: u32) -> bool {
        while self.wants_row(id) {
            // What is kept must be in no segment that the journal does not name.
            if !self.may_program(Purpose::Seal) || self.keep_waits_for(id) || !self.seal_one(id) {
                return false;
            }
        }
        true
    }

    pub(super) fn wants_row(&self, id: u32) -> bool {
        let space = &self.spaces[&id];
        let full = !space.versioned.as_ref().expect("a versioned namespace").full_rows.is_empty();
        full || space.with_versions(|v| v.columns().buffer_is_full()).unwrap_or(false)
    }

    /// Seals the row that needs it most; false if there is no block for it.
    fn seal_one(&mut self, id: u32) -> bool {
        let space = self.spaces.get_mut(&id).expect("listed");
        let versioned = space.versioned.as_mut().expect("a versioned namespace");
        let sealed = match versioned.sealed.take() {
            Some(sealed) => sealed,
            None => {
                let full_rows = std::mem::take(&mut versioned.full_rows);
                let choose = |columns: &Columns| {
                    let full = full_rows.iter().copied().filter(|row| columns.row_is_full(*row));
                    let rest: Vec<u32> = full.collect();
                    let row = rest.first().copied().or_else(|| columns.buffer_is_full().then(|| columns.fullest()));
                    (row.and_then(|row| columns.seal(row)), rest)
                };
                let (sealed, rest) =
                    space.with_versions(|v| choose(v.columns())).expect("loaded while it has versions");
                let versioned = space.versioned.as_mut().expect("just seen");
                versioned.full_rows.extend(rest);
                let Some(sealed) = sealed else { return true };
                Box::new(sealed)
            }
        };
        match self.place_sealed(id, &sealed) {
            Ok(()) => true,
            Err(NoBlock) => {
                self.versioned_mut(id).sealed = Some(sealed);
                false
            }
        }
    }

    fn place_sealed(&mut self, id: u32, sealed: &Sealed) -> Result<(), NoBlock> {
        let frame = self.versions_frame_of(&self.spaces[&id]);
        let image = aligned(&sealed.image);
        let ticket = self.tickets.take();
        let at = self.place_segment(id, &image, ticket, self.floor(Purpose::Seal))?;
        let chunks = self.segment_chunks_of(id);
        let block = self.log.block_of(at.0);
        self.log.blocks.add_valid(block, chunks);
        self.log.table_is_exact = false;
        let space = self.spaces.get_mut(&id).expect("just seen");
        space.change_versions(|versions| versions.columns_mut().install(sealed, segment_at(at)));
        let (row, first_sequence) = (sealed.row, sealed.sequences.start);
        let fresh = Fresh { ticket, row, at, is_programmed: false, frame, first_sequence };
        space.versioned.as_mut().expect("a versioned namespace").fresh.push_back(fresh);
        self.sealing.placing.insert(ticket, Placing { namespace: id, row, at, image, purpose: Use::Fresh });
        Ok(())
    }

    pub(super) fn place_segment(
        &mut self,
        namespace: u32,
        image: &Arc<AlignedBuf>,
        ticket: u64,
        floor: u32,
    ) -> Result<ChunkAddr, NoBlock> {
        let chunks = (image.len() / self.log.geometry.chunk_bytes as usize) as u32;
        self.place_image(Class::Segment, namespace, chunks, (image, ticket), floor)
    }

    pub(super) fn segment_chunks_of(&self, id: u32) -> u32 {
        let parameters = self.spaces.get(&id).and_then(|space| space.layout.versions());
        segment_chunks(parameters.expect("a versioned namespace"), &self.log.geometry)
    }

    // --- programmed ---------------------------------------------------------------------------------------------------

    /// A segment is on flash; false if the ticket is not a segment's.
    pub(crate) fn segment_programmed(&mut self, ticket: u64) -> bool {
        let Some(placing) = self.sealing.placing.get_mut(&ticket) else { return false };
        let (id, row, at) = (placing.namespace, placing.row, placing.at);
        match &mut placing.purpose {
            Use::Merged { is_programmed } => *is_programmed = true,
            Use::Fresh => {
                self.sealing.placing.remove(&ticket);
                self.fresh_programmed(id, ticket, at);
            }
            Use::Moved { from } => {
                let from = *from;
                self.sealing.placing.remove(&ticket);
                self.segment_moved(id, row, from, at);
            }
            Use::Abandoned => {
                self.sealing.placing.remove(&ticket);
                let block = self.log.block_of(at.0);
                self.log.blocks.unhold(block);
            }
        }
        true
    }

    /// Segments are journaled in the order of sealing, whatever order they are programmed in.
    fn fresh_programmed(&mut self, id: u32, ticket: u64, at: ChunkAddr) {
        let Some(versioned) = self.spaces.get_mut(&id).and_then(|space| space.versioned.as_mut()) else {
            let block = self.log.block_of(at.0);
            self.log.blocks.unhold(block);
            return;
        };
        versioned.fresh.iter_mut().filter(|f| f.ticket == ticket).for_each(|f| f.is_programmed = true);
        while let Some(versioned) = self.spaces.get_mut(&id).and_then(|space| space.versioned.as_mut())
            && versioned.fresh.front().is_some_and(|fresh| fresh.is_programmed)
            && let Some(fresh) = versioned.fresh.pop_front()
        {
            self.journal_segment(id, fresh.row, fresh.at);
            let block = self.log.block_of(fresh.at.0);
            self.log.blocks.unhold(block);
        }
    }

    pub(super) fn journal_segment(&mut self, id: u32, row: u32, at: ChunkAddr) {
        let space = self.spaces.get_mut(&id).expect("its segments are journaled");
        space.dirty = true;
        let find = |versions: &Versions| {
            let mut segments = versions.columns().segments(row).enumerate();
            segments
                .find(|(_, segment)| segment.at == segment_at(at))
                .map(|(place, segment)| (place, entry_of(&segment)))
        };
        let (place, entry) = space.with_versions(find).flatten().expect("installed");
        self.log.journal.append(&Change::SegmentIn { namespace: id, row, place: place as u32, entry });
    }

    fn segment_moved(&mut self, id: u32, row: u32, from: ChunkAddr, to: ChunkAddr) {
        let (to_block, from_block) = (self.log.block_of(to.0), self.log.block_of(from.0));
        let place = self.spaces.get_mut(&id).filter(|space| space.is_loaded()).and_then(|space| {
            let moved =
                |versions: &mut Versions| versions.columns_mut().relocate(row, segment_at(from), segment_at(to));
            space.change_versions(moved)
        });
        if let Some(place) = place {
            let chunks = self.segment_chunks_of(id);
            self.log.table_is_exact = false;
            self.log.blocks.add_valid(to_block, chunks);
            self.log.blocks.sub_valid(from_block, chunks);
            self.log.journal.append(&Change::SegmentsOut { namespace: id, row, place, count: 1 });
            self.journal_segment(id, row, to);
        }
        self.log.blocks.unhold(to_block);
        self.gc_moved(from_block);
    }

    // --- collection, failures -------------------------------------------------------------------------------------------

    /// The segment that lies there, if one does; or a namespace that it may be of and that is not in memory.
    fn find_segment(&self, at: ChunkAddr) -> Result<Option<(u32, SegmentInfo)>, u32> {
        let at = segment_at(at);
        let mut missing = Vec::new();
        for (id, space) in self.version_spaces() {
            let rows = |p: &Parameters| 0..p.rows;
            let find = |versions: &Versions| {
                let columns = versions.columns();
                rows(columns.parameters()).find_map(|row| columns.segments(row).find(|segment| segment.at == at))
            };
            match space.with_versions(find) {
                None => missing.push(id),
                Some(Some(segment)) => return Ok(Some((id, segment))),
                Some(None) => {}
            }
        }
        let may_be_loaded = missing.iter().find(|id| !self.does_without_index(**id));
        may_be_loaded.or(missing.first()).map_or(Ok(None), |id| Err(*id))
    }

    /// The segments of loaded namespaces that lie in a block. One look at all segments, whatever the block has.
    pub(crate) fn segments_of_block(&self, block: u32) -> BTreeSet<ChunkAddr> {
        let mut found = BTreeSet::new();
        for (_, space) in self.version_spaces() {
            space.for_each_segment(|segment| {
                let at = ChunkAddr(segment.at.get());
                if self.log.geometry.split(at).0.0 == block {
                    found.insert(at);
                }
            });
        }
        found
    }

    /// Starts moving a segment out of a block if it is live; returns whether it is. One that is not whole is moved only if it
    /// `may_be_damaged`.
    pub(crate) fn move_segment(
        &mut self,
        from: ChunkAddr,
        bytes: &[u8],
        may_be_damaged: bool,
    ) -> Result<bool, NoSegment> {
        let Some((id, segment)) = self.find_segment(from).map_err(NoSegment::Index)? else { return Ok(false) };
        let row = segment.row;
        let parameters = self.spaces[&id].layout.versions().expect("it has segments");
        if !is_whole(bytes, &segment, parameters) {
            if !may_be_damaged {
                return Err(NoSegment::Damaged);
            }
            self.log.counters.damaged_records += 1;
            tracing::warn!(namespace = id, at = %from, "a damaged segment is moved");
        }
        let image = aligned(bytes);
        let ticket = self.tickets.take();
        let at =
            self.place_segment(id, &image, ticket, self.floor(Purpose::Move)).map_err(|NoBlock| NoSegment::Block)?;
        self.sealing.placing.insert(ticket, Placing { namespace: id, row, at, image, purpose: Use::Moved { from } });
        Ok(true)
    }

    /// Places a segment again whose block failed before it was programmed.
    pub(crate) fn replace_segment(&mut self, ticket: u64) {
        let Some(placing) = self.sealing.placing.get(&ticket) else { return };
        let (id, row, old, image, purpose) =
            (placing.namespace, placing.row, placing.at, placing.image.clone(), placing.purpose);
        let old_block = self.log.block_of(old.0);
        self.keep_replaced(old, image.clone());
        if !self.spaces.contains_key(&id) || matches!(purpose, Use::Abandoned) {
            self.sealing.placing.remove(&ticket);
            self.log.blocks.unhold(old_block);
            if let Use::Moved { from } = purpose {
                let from = self.log.block_of(from.0);
                self.gc_moved(from);
            }
            return;
        }
        let Ok(at) = self.place_segment(id, &image, ticket, self.floor(Purpose::Rehome)) else {
            return self.stop_without_blocks(old_block, "no block left to place a segment again");
        };
        self.sealing.placing.get_mut(&ticket).expect("just seen").at = at;
        if matches!(purpose, Use::Fresh) {
            let (block, chunks) = (self.log.block_of(at.0), self.segment_chunks_of(id));
            let space = self.spaces.get_mut(&id).expect("just seen");
            let moved = space.change_versions(|v| v.columns_mut().relocate(row, segment_at(old), segment_at(at)));
            assert!(moved.is_some(), "a fresh segment is installed");
            let fresh = space.versioned.as_mut().expect("a versioned namespace").fresh.iter_mut();
            fresh.filter(|fresh| fresh.ticket == ticket).for_each(|fresh| fresh.at = at);
            self.log.blocks.add_valid(block, chunks);
            self.log.blocks.sub_valid(old_block, chunks);
        }
        self.log.blocks.unhold(old_block);
    }
}

/// A segment as the directory has it.
pub(super) fn entry_of(segment: &SegmentInfo) -> Entry {
    let table_pages = u16::try_from(segment.table_pages).expect("a table is shorter than its segment");
    let live = u16::try_from(segment.live).expect("a segment has at most 60000 versions");
    Entry { at: segment.at, table_pages, live, identity: segment.identity() }
}

/// A sealed segment as the medium takes it. Copying it takes a while: do it without the core.
pub fn segment_image(sealed: &Sealed) -> Arc<AlignedBuf> {
    aligned(&sealed.image)
}

fn aligned(bytes: &[u8]) -> Arc<AlignedBuf> {
    let mut image = AlignedBuf::zeroed(bytes.len());
    image.copy_from_slice(bytes);
    Arc::new(image)
}

impl Namespace {
    /// Segments of a namespace that is loaded.
    pub(crate) fn for_each_segment(&self, each: impl FnMut(&SegmentInfo)) {
        self.with_versions(|versions| for_each_segment(versions.columns(), each));
    }
}
