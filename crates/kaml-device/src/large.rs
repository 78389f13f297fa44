//! Large values: programmed ahead of their Puts, which then carry only their places through the ring.
//!
//! Lives here:       placing them, handing a program to the caller.
//! Lives elsewhere:  which there are (`tickets`), staging Puts (`staging`), placing them again after a failure (`rehome`).
//! Implements:       paper:KAML IV.D phase 1.

use crate::command::StageError;
use crate::core::{Core, code};
use crate::error::Error;
use crate::format::record::RecordHeader;
use crate::layout::Door;
use crate::lifetime::Class;
use crate::space::Purpose;
use crate::tickets::Ticket;
use crate::writers::NoBlock;
use kaml_flash::{AlignedBuf, ChunkAddr, Io, IoId};
use kaml_index::FullKey;
use std::sync::Arc;

/// Chunks that a record will count as live, whose index entry has its length in steps.
fn counted(chunks: u32) -> u64 {
    u64::from(code(chunks).chunks_max())
}

impl Core {
    /// Programs a large value ahead of its Put: `image` is the encoded record ([`crate::encode_image`]) of [`Core::place_of`]. The answer's ticket
    /// becomes usable in [`crate::Body::Placed`] once [`Core::is_placed`].
    pub fn place<'a>(
        &mut self,
        namespace: u32,
        key: impl Into<FullKey<'a>>,
        image: Arc<AlignedBuf>,
    ) -> Result<u64, StageError> {
        let key = *key.into().key();
        self.writable()?;
        let record = RecordHeader::check(&image).expect("an encoded record");
        let chunks = self.log.chunks_of(record.page_bytes());
        let value_max = self.value_bytes_max();
        if u64::from(record.value_len) > value_max {
            return Err(Error::ValueTooLarge { bytes: record.value_len.into(), max: value_max, namespace: None }.into());
        }
        let space = self.user_space(namespace)?;
        space.layout.admit(namespace, Door::Puts)?;
        space.layout.check_key(&key).map_err(Error::Key)?;
        let version_of = match &space.versioned {
            None => None,
            Some(versioned) => {
                assert!(versioned.values == Some(record.namespace), "the image is of the record of `place_of`");
                Some((namespace, key))
            }
        };
        let (namespace, key) = if version_of.is_some() { (record.namespace, record.key) } else { (namespace, key) };
        let purpose = match version_of {
            Some((of, of_key)) if !self.fits(counted(chunks)) && self.is_overwrite(of, &of_key) => Purpose::Overwrite,
            _ => Purpose::Large,
        };
        self.admit_data(purpose, counted(chunks), false)?;
        let id = self.tickets.take();
        let floor = self.floor(Purpose::Large);
        let at = self
            .place_image(Class::Direct, namespace, chunks, (&image, id), floor)
            .map_err(|NoBlock| self.no_block_for(Purpose::Large))?;
        let stored = &image[record.stored_range()];
        let expires = record.expires(stored).expect("an encoded record");
        let value_bytes = record.given_value_bytes(stored);
        let ticket =
            Ticket { namespace, key, version_of, image, record, value_bytes, expires, chunks, at, done: false };
        self.tickets.placed.insert(id, ticket);
        self.space.ticket_chunks += counted(chunks);
        Ok(id)
    }

    /// The program of the large value that was just placed, to be executed by the caller, if handing it to another thread would
    /// only take time: nothing else is to be done in the background, no other large value is in progress.
    pub fn take_program(&mut self, ticket: u64) -> Option<(IoId, Io)> {
        let at = self.tickets.placed.get(&ticket).filter(|_| self.tickets.placed.len() == 1)?.at;
        let (block, chunk) = self.log.geometry.split(at);
        // The first program of a block may wait for the file system.
        if self.log.queue.outbox.len() > 1 || chunk == 0 || !self.log.writers.has_one_buffer(block.0) {
            return None;
        }
        let is_of_block = |(_, io): &(IoId, Io)| matches!(io, Io::Program { at, .. } if at.block == block);
        if self.log.queue.outbox.front().is_some_and(is_of_block) { self.log.queue.outbox.pop_front() } else { None }
    }

    /// Places an image in a block of a class of images.
    pub(crate) fn place_image(
        &mut self,
        class: Class,
        namespace: u32,
        chunks: u32,
        (image, ticket): (&Arc<AlignedBuf>, u64),
        floor: u32,
    ) -> Result<ChunkAddr, NoBlock> {
        let whole = self.log.whole_chunks(image);
        let die_count = self.log.geometry.die_count();
        let Some(space) = self.spaces.get_mut(&namespace) else { return Err(NoBlock) };
        let die = space.next_log(whole, die_count, 1);
        let at = self.log.append_image(die, class, floor, chunks, (image, ticket))?;
        self.log.counters.record_chunks += u64::from(chunks);
        self.space.pace.has_written(u64::from(whole));
        Ok(at)
    }

    /// Whether the pages of a ticket are programmed and durable.
    pub fn is_placed(&self, ticket: u64) -> bool {
        self.tickets.placed.get(&ticket).is_some_and(|t| t.done)
    }

    /// Gives up a ticket that will not be staged.
    pub fn forget(&mut self, ticket: u64) {
        if let Some(placed) = self.tickets.placed.remove(&ticket) {
            self.space.ticket_chunks -= counted(placed.chunks);
            let block = self.log.block_of(placed.at.0);
            self.log.blocks.unhold(block);
            self.space.pace.is_deadlocked = false; // what it kept may be all that was in the way
        }
    }
}
