//! Blocks whose programs failed: their buffered records are placed again, and everything that pointed at them is notified.
//!
//! Lives here:       what happens between a failed program and the block's draining.
//! Lives elsewhere:  noticing the failure (`core`), draining and retiring the block (`gc`), lost metadata (`roots`).
//! Implements:       paper:KAML IV.D (recovering from the non-volatile buffers); docs/ARCHITECTURE.md "The medium contract" (failed programs).

use crate::core::{Core, code};
use crate::format::record::RecordHeader;
use crate::lifetime::Class;
use crate::moves::Move;
use crate::space::Purpose;
use crate::writers::NoBlock;
use kaml_flash::{BlockIndex, Io};
use kaml_index::{FullKey, Slot};

impl Core {
    /// Places the records of failed blocks' buffers again, as soon as there are blocks to place them in.
    pub(crate) fn rehome(&mut self) {
        for block in std::mem::take(&mut self.failed_blocks) {
            if !self.may_rehome(block) || self.ops_on_block(block) || self.lacks_index(block) {
                self.failed_blocks.push(block);
                continue;
            }
            self.rehome_block(block, self.floor(Purpose::Rehome));
            self.restart_root();
        }
    }

    /// Places the records of the only failed block in the last free one.
    pub(crate) fn rehome_last(&mut self, block: u32) {
        if self.lacks_index(block) {
            return; // it is being loaded
        }
        self.failed_blocks.clear();
        self.rehome_block(block, 0);
        self.restart_root();
    }

    /// Whether an index that knows records of a failed block is not in memory; its loading is requested.
    fn lacks_index(&mut self, block: u32) -> bool {
        self.missing_index(block).inspect(|id| self.want_index(*id)).is_some()
    }

    /// Whether a failed block waits for an index.
    pub(crate) fn failed_blocks_need(&self, index: u32) -> bool {
        self.failed_blocks.iter().any(|block| self.missing_index(*block) == Some(index))
    }

    /// An index that knows records of a failed block and has left memory while they was in buffers.
    fn missing_index(&self, block: u32) -> Option<u32> {
        let extents = self.log.writers.unprogrammed_records(block).unwrap_or_default();
        extents.into_iter().find_map(|extent| {
            let mut head = [0; RecordHeader::BYTES_MAX];
            assert!(self.log.writers.read(block, extent.start, &mut head), "buffers are kept until programmed");
            let record = RecordHeader::check(&head).expect("records in buffers are whole");
            let is_loaded = self.spaces.get(&record.namespace).is_none_or(|space| space.is_loaded());
            (!is_loaded).then_some(record.namespace)
        })
    }

    /// Whether all failed blocks wait for others to become free, and for nothing else.
    pub(crate) fn failed_blocks_want_room(&self) -> bool {
        self.failed_blocks.iter().all(|block| !self.may_rehome(*block) && !self.ops_on_block(*block))
    }

    fn ops_on_block(&self, block: u32) -> bool {
        self.log.queue.outbox.iter().any(|(_, io)| matches!(io, Io::Program { at, .. } if at.block.0 == block))
    }

    /// Places the records that are not programmed again; so many blocks are left to others.
    fn rehome_block(&mut self, block: u32, floor: u32) {
        let Some(mut writer) = self.log.writers.abandon(block, &mut self.log.blocks) else { return };
        let moves: Vec<Move> = writer.buffers.iter_mut().flat_map(|b| std::mem::take(&mut b.moves)).collect();
        let (log, class) = (writer.log, writer.class);
        let tickets: Vec<u64> = writer.buffers.iter().filter_map(|b| b.ticket).collect();
        // The ring must keep these records until they are programmed at their new places.
        let frame = writer.buffers.iter().map(|b| b.first_frame).min();
        if class.is_metadata() {
            self.metadata_lost();
            self.log.retire(block);
            return;
        }
        if class == Class::Segment {
            tickets.into_iter().for_each(|ticket| self.replace_segment(ticket));
            self.log.retire(block);
            return;
        }
        for extent in writer.unprogrammed_records(&self.log.geometry) {
            let mut bytes = vec![0; (extent.chunk_count * self.log.geometry.chunk_bytes) as usize];
            assert!(writer.read(&self.log.geometry, extent.start, &mut bytes), "buffers are kept until programmed");
            let record = RecordHeader::check(&bytes).expect("records in buffers are whole");
            let from = Slot {
                at: self.log.geometry.chunk_at(BlockIndex(block), extent.start).0,
                len: code(extent.chunk_count),
            };
            if self.tickets.placed.values().any(|t| t.at.0 == from.at) {
                continue;
            }
            let parts = [&bytes[..record.page_bytes()], &[], &[]];
            let at = self.log.append(log, class, floor, extent.chunk_count, parts, frame);
            let at = at.expect("blocks were ready");
            let key = record.full_key(&bytes[record.stored_range()]).expect("records in buffers are whole");
            self.rehomed(record.namespace, key, from, Slot { at: at.0, len: from.len }, &moves);
        }
        for id in tickets {
            let Some(ticket) = self.tickets.placed.get_mut(&id) else { continue };
            if !self.spaces.contains_key(&ticket.namespace) {
                ticket.done = true; // who waits for it learns that its namespace is gone
                continue;
            }
            let (namespace, chunks, image, old) = (ticket.namespace, ticket.chunks, ticket.image.clone(), ticket.at);
            // As for the records above.
            match self.place_image(Class::Direct, namespace, chunks, (&image, id), floor) {
                Ok(at) => {
                    self.tickets.placed.get_mut(&id).expect("just seen").at = at;
                    let block = self.log.block_of(old.0);
                    self.log.blocks.unhold(block);
                }
                Err(NoBlock) => self.stop_without_blocks(block, "no block left to place a large value again"),
            }
        }
        self.log.retire(block);
    }

    /// A record of a failed block has a new place: everything that points at the old one is notified.
    fn rehomed(&mut self, namespace: u32, key: FullKey<'_>, from: Slot, to: Slot, moves: &[Move]) {
        let from_block = self.log.block_of(from.at);
        if let Some(moved) = moves.iter().find(|m| m.to == from) {
            let block = self.log.block_of(to.at);
            self.log.writers.attach_move(block, moved.to(to));
            self.log.blocks.unhold(from_block);
            return;
        }
        let staged = self.log.ring.uncommitted_mut().find(|s| s.to == Some(from));
        if let Some(staged) = staged {
            staged.to = Some(to);
            self.log.blocks.unhold(from_block);
            return;
        }
        let key = self.spaces.get(&namespace).map_or(key, |space| space.layout.indexed(key));
        self.install(Move::new(namespace, &key, from, to));
    }
}
