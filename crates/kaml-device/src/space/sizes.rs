//! How much may be live, and how many free blocks hosts leave to others.
//!
//! Lives here:       the capacity, the reserve of hosts, the level at which collection begins, sizes of checkpoint images.
//! Lives elsewhere:  what is live now (`blocks`).

use super::ledger::{Sizes, packed};
use crate::core::Core;
use crate::error::Error;
use crate::namespace::Namespace;

/// Share of the blocks for records that may be live. The remainder is garbage that collection can wait for: at four fifths
/// of such a device, three points of it are worth a tenth of all page programs.
const LIVE_PERCENT_MAX: u32 = 95;

impl Core {
    /// Free blocks that hosts leave: for collection, the journal and an image of all indexes.
    #[inline]
    pub(crate) fn reserve_blocks(&self) -> u32 {
        self.space.sizes.reserve_blocks
    }

    /// Free blocks below which collection runs.
    pub(crate) fn collect_below(&self) -> u32 {
        self.reserve_blocks() + self.log.geometry.die_count() + self.log.blocks.remaining() / 64
    }

    /// Computes what admission compares with: with each poll, since it takes a look at every namespace.
    pub(crate) fn update_sizes(&mut self) {
        let page_bytes = u64::from(self.log.geometry.page_bytes);
        let sum = |of: fn(&Namespace) -> u64| self.spaces.values().map(|s| of(s).next_multiple_of(page_bytes)).sum();
        let (index_bytes, standing_bytes) = (sum(Namespace::snapshot_bytes), sum(Namespace::standing_bytes));
        let images = index_bytes / self.log.geometry.block_bytes() + 1;
        let reserve_blocks = self.log.geometry.die_count() + 3 + images as u32;
        self.space.sizes = Sizes { index_bytes, standing_bytes, reserve_blocks, capacity_chunks: 0 };
        self.space.sizes.capacity_chunks = self.capacity_chunks();
    }

    /// Chunks that may be live: all but open blocks, metadata, the reserve and what collection needs to be worth it.
    pub fn capacity_chunks(&self) -> u64 {
        self.capacity_with_buffer(0)
    }

    /// The same with one more page buffer of versions of this many bytes.
    fn capacity_with_buffer(&self, buffer_bytes: u64) -> u64 {
        let sizes = &self.space.sizes;
        // While a checkpoint is written, the images before it still exist.
        let index_bytes = sizes.index_bytes + buffer_bytes * 5 / 4;
        let images = index_bytes + index_bytes.max(sizes.standing_bytes);
        let metadata_bytes = images + self.checkpoint_journal_bytes();
        let metadata = metadata_bytes / self.log.geometry.block_bytes() + 2;
        let buffers: u64 = self.version_spaces().filter_map(|(_, s)| s.layout.versions()).map(|p| p.buffer_bytes).sum();
        let buffers = buffers + buffer_bytes;
        let metadata = metadata + buffers * 5 / 4 / self.log.geometry.block_bytes();
        let image_classes = 1 + u64::from(buffers > 0);
        let open = u64::from(self.log.geometry.die_count())
            * (self.log.blocks.lifetimes.classes().len() as u64 + image_classes);
        let blocks = u64::from(self.log.blocks.remaining_good());
        let usable = blocks.saturating_sub(metadata + open + u64::from(self.collect_below()));
        let percent = u64::from(packed(&self.log.geometry, LIVE_PERCENT_MAX));
        usable * u64::from(self.log.geometry.chunks_per_block()) * percent / 100
    }

    /// Refuses a page buffer of versions for which live data leave no room: what the buffer holds may have to be kept on flash.
    pub(crate) fn check_room_for_buffer(&self, buffer_bytes: u64) -> Result<(), Error> {
        let capacity = self.capacity_with_buffer(buffer_bytes);
        let may_grow = || self.growth.make_room();
        if self.taken_chunks() > capacity && !may_grow() { Err(self.full(capacity)) } else { Ok(()) }
    }

    /// Bytes of the journal after which a checkpoint is taken: replaying them takes well under a second.
    pub(crate) fn checkpoint_journal_bytes(&self) -> u64 {
        let device = self.log.geometry.block_bytes() * u64::from(self.log.blocks.remaining());
        (64u64 << 20).min(device / 32).max(self.space.sizes.index_bytes / 2)
    }
}
