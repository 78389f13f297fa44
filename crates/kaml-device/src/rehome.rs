//! Blocks whose programs failed: their buffered records are placed again, and whoever pointed at them is told.
//!
//! Lives here:       what happens between a failed program and the block's draining.
//! Lives elsewhere:  noticing the failure (`core`), draining and retiring the block (`gc`), lost metadata (`checkpoint`).
//! Implements:       paper:KAML IV.D (recovering from the non-volatile buffers); design section 6 (bad blocks).

use crate::core::{Core, code};
use crate::format::record::{Record, RecordHeader};
use crate::gc::COLLECTION_FLOOR;
use crate::lifetime::Class;
use crate::writers::{Move, NoBlock};
use kaml_flash::{BlockIndex, Io, Packing};
use kaml_index::Slot;

/// A block's records fit what is left of an open block and one more; collection keeps the last.
const REHOME_BLOCKS: usize = 2;

impl Core {
    /// Places the records of failed blocks' buffers again, as soon as there are blocks to place them in.
    pub(crate) fn rehome(&mut self) {
        for block in std::mem::take(&mut self.failed_blocks) {
            if !self.has_room_for(block) || self.ops_on_block(block) || self.lacks_index(block) {
                self.failed_blocks.push(block);
                continue;
            }
            self.rehome_block(block, COLLECTION_FLOOR);
            self.restart_root();
        }
    }

    /// The same in the last block, where nothing else goes on and the device would stop: if what the journal will have to say of
    /// it fits a root, which needs no block then and gives back what waited for these records. False if that will not do.
    pub(crate) fn rehome_in_last_block(&mut self) -> bool {
        let [block] = self.failed_blocks[..] else { return false };
        let Some(records) = self.writers.unprogrammed_records(block) else { return false };
        let chunks: u32 = records.iter().map(|extent| extent.chunk_count).sum();
        let room = match self.geometry.packing {
            Packing::Across => self.geometry.chunks_per_block(),
            Packing::WithinPage => self.geometry.chunks_per_block() / 2,
        };
        let root_will_do =
            self.root_is_idle() && !self.root_commit.awaits_checkpoint() && self.journal_fits_root(records.len());
        if self.blocks.ready_total() == 0 || chunks > room || !root_will_do {
            return false;
        }
        if self.lacks_index(block) {
            return true; // it is being loaded
        }
        self.failed_blocks.clear();
        self.rehome_block(block, 0);
        self.restart_root();
        true
    }

    /// Whether an index that knows records of a failed block is not in memory; it is asked for.
    fn lacks_index(&mut self, block: u32) -> bool {
        self.missing_index(block).inspect(|id| self.want_index(*id)).is_some()
    }

    /// Whether a failed block waits for an index.
    pub(crate) fn failed_blocks_need(&self, index: u32) -> bool {
        self.failed_blocks.iter().any(|block| self.missing_index(*block) == Some(index))
    }

    /// An index that knows records of a failed block and has left memory while they stood in buffers.
    fn missing_index(&self, block: u32) -> Option<u32> {
        let extents = self.writers.unprogrammed_records(block).unwrap_or_default();
        extents.into_iter().find_map(|extent| {
            let mut head = [0; RecordHeader::BYTES];
            assert!(self.writers.read(block, extent.start, &mut head), "buffers are kept until programmed");
            let record = RecordHeader::check(&head).expect("records in buffers are whole");
            let is_loaded = self.spaces.get(&record.namespace).is_none_or(|space| space.is_loaded());
            (!is_loaded).then_some(record.namespace)
        })
    }

    fn has_room_for(&self, block: u32) -> bool {
        self.writers.is_metadata(block) || self.blocks.ready_total() >= REHOME_BLOCKS
    }

    /// Whether all failed blocks wait for others to become free, and for nothing else.
    pub(crate) fn failed_blocks_want_room(&self) -> bool {
        self.failed_blocks.iter().all(|block| !self.has_room_for(*block) && !self.ops_on_block(*block))
    }

    /// As [`Core::failed_blocks_want_room`], and none will become free: there are no others, or opening would read ring frames that
    /// name places in them, which are kept for the very records of failed blocks.
    pub(crate) fn failed_blocks_lack_room(&self) -> bool {
        let kept = !self.blocks.can_release_before(self.ring.oldest_kept());
        let none_to_come = kept && (self.blocks.free_count() as usize) < REHOME_BLOCKS;
        none_to_come && !self.failed_blocks.is_empty() && self.failed_blocks_want_room()
    }

    fn ops_on_block(&self, block: u32) -> bool {
        // A frame on its way to the ring names the place of the value that is programmed beside it.
        let beside = self.beside.and_then(|id| self.tickets.get(&id));
        beside.is_some_and(|ticket| self.block_of(ticket.at.0) == block)
            || self.outbox.iter().any(|(_, io)| matches!(io, Io::Program { at, .. } if at.block.0 == block))
    }

    /// Places the records that are not programmed again; so many blocks are left to others.
    fn rehome_block(&mut self, block: u32, floor: u32) {
        let Some(mut writer) = self.writers.abandon(block, &mut self.blocks) else { return };
        let moves: Vec<Move> = writer.buffers.iter_mut().flat_map(|b| std::mem::take(&mut b.moves)).collect();
        let (log, class) = (writer.log, writer.class);
        let tickets: Vec<u64> = writer.buffers.iter().filter_map(|b| b.ticket).collect();
        // The ring must keep these records until they are programmed at their new places.
        let frame = writer.buffers.iter().map(|b| b.first_frame).min();
        if class.is_metadata() {
            self.metadata_lost();
            self.retire(block);
            return;
        }
        if class == Class::Segment {
            tickets.into_iter().for_each(|ticket| self.replace_segment(ticket));
            self.retire(block);
            return;
        }
        for extent in writer.unprogrammed_records(&self.geometry) {
            let mut bytes = vec![0; (extent.chunk_count * self.geometry.chunk_bytes) as usize];
            assert!(writer.read(&self.geometry, extent.start, &mut bytes), "buffers are kept until programmed");
            let record = RecordHeader::check(&bytes).expect("records in buffers are whole");
            let from =
                Slot { at: self.geometry.chunk_at(BlockIndex(block), extent.start).0, len: code(extent.chunk_count) };
            if self.tickets.values().any(|t| t.at.0 == from.at) {
                continue;
            }
            let parts = [&bytes[..record.page_bytes()], &[]];
            let at =
                self.on_some_log(log, |core, log| core.append(log, class, floor, extent.chunk_count, parts, frame));
            let at = at.expect("blocks were ready");
            self.rehomed(&record, from, Slot { at: at.0, len: from.len }, &moves);
        }
        for id in tickets {
            let Some(ticket) = self.tickets.get_mut(&id) else { continue };
            if !self.spaces.contains_key(&ticket.namespace) {
                ticket.done = true; // who waits for it learns that its namespace is gone
                continue;
            }
            let (namespace, chunks, image, old) = (ticket.namespace, ticket.chunks, ticket.image.clone(), ticket.at);
            // As for the records above.
            match self.place_image(namespace, chunks, &image, id, floor) {
                Ok(at) => {
                    self.tickets.get_mut(&id).expect("just seen").at = at;
                    let block = self.block_of(old.0);
                    self.blocks.unhold(block);
                }
                Err(NoBlock) => self.stop_without_blocks(block, "no block left to place a large value again"),
            }
        }
        self.retire(block);
    }

    /// A record of a failed block has a new place: whoever points at the old one is told.
    fn rehomed(&mut self, record: &Record, from: Slot, to: Slot, moves: &[Move]) {
        let from_block = self.block_of(from.at);
        if let Some(moved) = moves.iter().find(|m| m.to == from) {
            let block = self.block_of(to.at);
            self.writers.attach_move(block, Move { to, ..*moved });
            self.blocks.unhold(from_block);
            return;
        }
        let staged = self.ring.uncommitted_mut().find(|s| s.to == Some(from));
        if let Some(staged) = staged {
            staged.to = Some(to);
            self.blocks.unhold(from_block);
            return;
        }
        let moved = Move { namespace: record.namespace, key: record.key, from, to };
        self.install(moved);
    }
}
