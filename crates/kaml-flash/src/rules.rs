//! What every medium refuses: addresses outside the geometry, bad lengths, programs out of order.
//!
//! Lives here:       the checks, without any state of their own.
//! Lives elsewhere:  each block's programmed pages (`memory`, `blocks`).
//! May be called by: every medium, here or elsewhere.
//! Implements:       paper:KAML IV.A (flash is programmed in order and erased as a whole).

use crate::{AlignedBuf, BlockIndex, ChunkAddr, Geometry, MediumError, PageAddr};

/// What is known of a block's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Programmed {
    /// Not touched since the medium was opened: the firmware knows better than the medium.
    Unknown,
    /// This many pages, from page 0.
    Pages(u32),
}

impl Programmed {
    /// The only page that can be programmed next.
    pub(crate) fn next(self) -> u32 {
        match self {
            Self::Unknown => 0,
            Self::Pages(count) => count,
        }
    }
}

fn bad_range<T>(what: String) -> Result<T, MediumError> {
    Err(MediumError::BadRange { what })
}

impl Geometry {
    /// The block of a read and its byte offset there.
    pub fn check_read(&self, at: ChunkAddr, len: usize) -> Result<(BlockIndex, u64), MediumError> {
        let (block, chunk) = self.split(at);
        let from = u64::from(chunk) * u64::from(self.chunk_bytes);
        if at.0 >= self.chunk_count() || len as u64 > self.block_bytes() - from {
            return bad_range(format!("read of {len} bytes at {at}"));
        }
        Ok((block, from))
    }

    /// The byte offset of a page's OOB within its block's OOB area.
    pub fn check_read_oob(&self, at: PageAddr, len: usize) -> Result<u64, MediumError> {
        let pages = (len / self.oob_bytes as usize) as u64;
        let whole = len.is_multiple_of(self.oob_bytes as usize);
        if !self.has_page(at) || !whole || pages > u64::from(self.pages_per_block - at.page) {
            return bad_range(format!("read of {len} OOB bytes at {at}"));
        }
        Ok(u64::from(at.page) * u64::from(self.oob_bytes))
    }

    /// The page after the last one programmed. `next_page` returns the only page of the block that can be programmed next.
    pub fn check_program(
        &self,
        at: PageAddr,
        data_len: usize,
        oob_len: usize,
        next_page: impl FnOnce() -> u32,
    ) -> Result<u32, MediumError> {
        let unit = self.page_bytes as usize * self.pages_per_program as usize;
        let pages = data_len / self.page_bytes as usize;
        let fits = self.has_page(at) && pages as u64 <= u64::from(self.pages_per_block - at.page);
        if !fits || data_len == 0 || !data_len.is_multiple_of(unit) || oob_len != pages * self.oob_bytes as usize {
            return bad_range(format!("program of {data_len} bytes and {oob_len} OOB bytes at {at}"));
        }
        let expected = next_page();
        if at.page != expected {
            return Err(MediumError::OutOfOrder { at, expected });
        }
        Ok(at.page + pages as u32)
    }

    /// Refuses blocks that do not exist.
    pub fn check_erase(&self, block: BlockIndex) -> Result<(), MediumError> {
        if block.0 < self.block_count() { Ok(()) } else { bad_range(format!("erase of {block}")) }
    }

    /// Refuses ring ranges that are not whole sectors of the ring, or of the `held` bytes given.
    pub fn check_ring(&self, what: &str, offset: u64, len: usize, held: usize) -> Result<(), MediumError> {
        let sector = u64::from(self.sector_bytes);
        let aligned = offset.is_multiple_of(sector) && (len as u64).is_multiple_of(sector);
        let inside = offset <= self.ring_bytes && len as u64 <= self.ring_bytes - offset;
        if !aligned || !inside || len == 0 || len > held {
            return bad_range(format!("commit ring {what} of {len} bytes ({held} given) at {offset}"));
        }
        Ok(())
    }

    /// Refuses slots and lengths that do not exist.
    pub fn check_root(&self, what: &str, slot: u8, buf: &AlignedBuf) -> Result<(), MediumError> {
        let len = buf.len();
        if slot > 1 || len == 0 || !len.is_multiple_of(self.sector_bytes as usize) || len > self.root_bytes as usize {
            return bad_range(format!("root {what} of {len} bytes in slot {slot}"));
        }
        Ok(())
    }

    fn has_page(&self, at: PageAddr) -> bool {
        at.block.0 < self.block_count() && at.page < self.pages_per_block
    }
}
