//! The shape of a flash array and the addresses in it.
//!
//! Lives here:       counts and sizes, address arithmetic.
//! Lives elsewhere:  which blocks are free, open or bad (`kaml-device`).
//! Implements:       paper:KAML IV.A-B (channels, pages, 64 chunks a page).

use std::fmt;

/// One erase block, numbered over the whole device; its die is `index % die_count`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockIndex(pub u32);

/// One page of an erase block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageAddr {
    /// The erase block.
    pub block: BlockIndex,
    /// The page within the block.
    pub page: u32,
}

/// One chunk, numbered over the whole device: `block * chunks_per_block + chunk`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChunkAddr(pub u64);

impl fmt::Display for BlockIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

impl fmt::Display for PageAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} page {}", self.block.0, self.page)
    }
}

impl fmt::Display for ChunkAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {}", self.0)
    }
}

/// Whether a record that fits in one page may cross into the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packing {
    /// Reading a range costs the same wherever it starts (files): records follow each other without gaps.
    Across,
    /// Reading costs whole pages (NAND): a record that fits in a page starts and ends in one.
    WithinPage,
}

/// The shape of the flash array. All counts are at least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Channels; chips of one channel share its bus.
    pub channel_count: u32,
    /// Dies on each channel; a log appends to one die.
    pub dies_per_channel: u32,
    /// Erase blocks of each die.
    pub blocks_per_die: u32,
    /// Pages of each erase block.
    pub pages_per_block: u32,
    /// Data bytes of a page.
    pub page_bytes: u32,
    /// Out-of-band bytes of a page; at least [`Geometry::OOB_BYTES_MIN`].
    pub oob_bytes: u32,
    /// Bytes of a chunk, the unit of space a record takes; a page has at most 64 chunks.
    pub chunk_bytes: u32,
    /// Pages that are programmed together; programs start and end at multiples of it.
    pub pages_per_program: u32,
    /// Whether small records may cross pages.
    pub packing: Packing,
    /// Bytes of the commit ring.
    pub ring_bytes: u64,
    /// Smallest unit of a durable ring or root write, and its alignment.
    pub sector_bytes: u32,
    /// Bytes of each of the two root slots.
    pub root_bytes: u32,
}

/// Why a geometry is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("geometry: {what} is {value}, must be {must}")]
pub struct GeometryError {
    /// The field.
    pub what: &'static str,
    /// Its value.
    pub value: u64,
    /// What is allowed.
    pub must: &'static str,
}

impl Geometry {
    /// The firmware's own OOB entry takes this much.
    pub const OOB_BYTES_MIN: u32 = 32;
    /// Chunks that can be numbered.
    pub(crate) const CHUNK_COUNT_MAX: u64 = 1 << 40;

    /// Dies of the device, which is the number of logs.
    #[inline]
    pub fn die_count(&self) -> u32 {
        self.channel_count * self.dies_per_channel
    }

    /// Erase blocks of the device.
    #[inline]
    pub fn block_count(&self) -> u32 {
        self.die_count() * self.blocks_per_die
    }

    /// Chunks of a page.
    #[inline]
    pub fn chunks_per_page(&self) -> u32 {
        // Both are powers of two ([`Geometry::check`]), and this is asked all the time: no division.
        self.page_bytes >> self.chunk_bytes.trailing_zeros()
    }

    /// Chunks of an erase block.
    #[inline]
    pub fn chunks_per_block(&self) -> u32 {
        self.chunks_per_page() * self.pages_per_block
    }

    /// Data bytes of an erase block.
    #[inline]
    pub fn block_bytes(&self) -> u64 {
        u64::from(self.page_bytes) * u64::from(self.pages_per_block)
    }

    /// Chunks of the device.
    #[inline]
    pub fn chunk_count(&self) -> u64 {
        u64::from(self.chunks_per_block()) * u64::from(self.block_count())
    }

    /// The die that holds a block.
    #[inline]
    pub fn die_of(&self, block: BlockIndex) -> u32 {
        block.0 % self.die_count()
    }

    /// The chunk at an offset in a block.
    #[inline]
    pub fn chunk_at(&self, block: BlockIndex, chunk: u32) -> ChunkAddr {
        ChunkAddr(u64::from(block.0) * u64::from(self.chunks_per_block()) + u64::from(chunk))
    }

    /// The block of a chunk and the chunk's offset in it.
    #[inline]
    pub fn split(&self, at: ChunkAddr) -> (BlockIndex, u32) {
        let per_block = u64::from(self.chunks_per_block());
        (BlockIndex((at.0 / per_block) as u32), (at.0 % per_block) as u32)
    }

    /// Refuses shapes the firmware cannot run on.
    pub fn check(&self) -> Result<(), GeometryError> {
        let fail = |what, value, must| Err(GeometryError { what, value, must });
        for (what, value) in [
            ("channel_count", self.channel_count),
            ("dies_per_channel", self.dies_per_channel),
            ("blocks_per_die", self.blocks_per_die),
            ("pages_per_block", self.pages_per_block),
            ("pages_per_program", self.pages_per_program),
        ] {
            if value == 0 || value > 1 << 24 {
                return fail(what, value.into(), "1 to 2^24");
            }
        }
        if u64::from(self.channel_count) * u64::from(self.dies_per_channel) > 4096 {
            return fail("dies", u64::from(self.channel_count) * u64::from(self.dies_per_channel), "at most 4096");
        }
        if u64::from(self.die_count()) * u64::from(self.blocks_per_die) > 1 << 24 {
            return fail("blocks", u64::from(self.die_count()) * u64::from(self.blocks_per_die), "at most 2^24");
        }
        if !self.chunk_bytes.is_power_of_two() || !(64..=4096).contains(&self.chunk_bytes) {
            return fail("chunk_bytes", self.chunk_bytes.into(), "a power of two, 64 to 4096");
        }
        if !self.page_bytes.is_power_of_two() || self.page_bytes > 1 << 16 || self.page_bytes < self.chunk_bytes {
            return fail("page_bytes", self.page_bytes.into(), "a power of two, one chunk to 64 KiB");
        }
        if self.chunks_per_page() > 64 {
            return fail("chunks per page", self.chunks_per_page().into(), "at most 64");
        }
        if self.oob_bytes < Self::OOB_BYTES_MIN || self.oob_bytes > 4096 {
            return fail("oob_bytes", self.oob_bytes.into(), "32 to 4096");
        }
        if !self.pages_per_block.is_multiple_of(self.pages_per_program) {
            return fail("pages_per_block", self.pages_per_block.into(), "a multiple of pages_per_program");
        }
        if self.block_bytes() > 1 << 30 {
            return fail("block bytes", self.block_bytes(), "at most 1 GiB");
        }
        if !self.sector_bytes.is_power_of_two() || !(512..=4096).contains(&self.sector_bytes) {
            return fail("sector_bytes", self.sector_bytes.into(), "512 to 4096, a power of two");
        }
        if !self.ring_bytes.is_multiple_of(4096) || !((1 << 20)..=(1 << 32)).contains(&self.ring_bytes) {
            return fail("ring_bytes", self.ring_bytes, "1 MiB to 4 GiB, a multiple of 4096");
        }
        if !self.root_bytes.is_multiple_of(4096) || !((1 << 14)..=(1 << 24)).contains(&self.root_bytes) {
            return fail("root_bytes", self.root_bytes.into(), "16 KiB to 16 MiB, a multiple of 4096");
        }
        if self.chunk_count() > Self::CHUNK_COUNT_MAX {
            return fail("chunks", self.chunk_count(), "at most 2^40");
        }
        Ok(())
    }
}
