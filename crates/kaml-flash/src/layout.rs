//! Where everything lies in a file or on a block device, and how big everything is by default.
//!
//! Lives here:       byte offsets of superblocks, root slots, commit ring, blocks, tail; [`FormatOptions`] and the default shape.
//! Lives elsewhere:  reading and writing there (`file`, `plan`).
//! May be called by: `file`, `plan`, `superblock`.
//!
//! ```text
//!  0      4K     8K … 64K                      64K-aligned      64K-aligned                              last 4K
//!  ┌──────┬──────┬────┬───────────┬───────────┬────────────────┬───────────────┬───────────────┬─────────┬──────┐
//!  │ sb A │ sb B │ 0… │ root 0    │ root 1    │ commit ring    │ block 0  │oob │ block 1  │oob │ … mirror│ sb C │
//!  └──────┴──────┴────┴───────────┴───────────┴────────────────┴───────────────┴───────────────┴─────────┴──────┘
//! ```
//! A block's pages are contiguous, so any record is one contiguous read. The mirror of the root and the last superblock exist
//! for a device whose beginning was overwritten.

use crate::superblock::SUPERBLOCK_BYTES;
use crate::{BlockIndex, Durability, FormatError, Geometry, Packing};

/// Roots and ring start at multiples of this, so they can be mapped whatever the size of a memory page.
const REGION_ALIGN: u64 = 64 << 10;
/// The blocks and their OOB areas start at multiples of this.
const AREA_ALIGN: u64 = 4096;
/// Where the first two superblock copies lie.
pub(crate) const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 4096];
/// Where the third one and what lies before it may begin.
const TAIL_ALIGN: u64 = 4096;

/// Smallest capacity that can be formatted: ring and roots take an eighth of it, and a hundred blocks take the remainder.
pub const CAPACITY_BYTES_MIN: u64 = 32 << 20;
/// A record lies in one erase block. In smaller ones what records leave at the ends of blocks is so much that collection cannot keep up.
/// Devices with smaller blocks, which earlier versions made, can be opened.
const BLOCK_BYTES_MIN: u64 = 32 << 10;
/// Fewer blocks leave the firmware no room to reclaim.
pub const BLOCK_COUNT_MIN: u32 = 8;

/// Byte offsets, all derived from the geometry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) roots_offset: u64,
    pub(crate) ring_offset: u64,
    pub(crate) blocks_offset: u64,
    /// Data bytes of a block, which is where its OOB area begins.
    pub(crate) data_bytes: u64,
    /// Bytes of a block's OOB area.
    pub(crate) oob_area_bytes: u64,
    pub(crate) block_stride_bytes: u64,
    /// Where the last block ends.
    pub(crate) end: u64,
}

impl Layout {
    pub(crate) fn of(geometry: &Geometry) -> Self {
        let roots_offset = REGION_ALIGN;
        let ring_offset = (roots_offset + 2 * u64::from(geometry.root_bytes)).next_multiple_of(REGION_ALIGN);
        let blocks_offset = (ring_offset + geometry.ring_bytes).next_multiple_of(REGION_ALIGN);
        let data_bytes = geometry.block_bytes().next_multiple_of(AREA_ALIGN);
        let oob_bytes = u64::from(geometry.pages_per_block) * u64::from(geometry.oob_bytes);
        let oob_area_bytes = oob_bytes.next_multiple_of(AREA_ALIGN);
        let block_stride_bytes = data_bytes + oob_area_bytes;
        // At most 2^24 blocks of at most 65 GiB with their OOB: no overflow.
        let end = blocks_offset + block_stride_bytes * u64::from(geometry.block_count());
        Self { roots_offset, ring_offset, blocks_offset, data_bytes, oob_area_bytes, block_stride_bytes, end }
    }

    /// The first data byte of a block.
    pub(crate) fn block(&self, block: BlockIndex) -> u64 {
        self.blocks_offset + u64::from(block.0) * self.block_stride_bytes
    }

    /// The first byte of a block's OOB area.
    pub(crate) fn oob(&self, block: BlockIndex) -> u64 {
        self.block(block) + self.data_bytes
    }
}

/// What lies after the blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tail {
    /// A copy of the root that was written last.
    pub(crate) mirror_offset: u64,
    /// The third copy of the superblock.
    pub(crate) superblock_offset: u64,
}

impl Tail {
    /// That of a device of this many bytes. Fails if it is smaller than its tail.
    pub(crate) fn of(capacity_bytes: u64, root_bytes: u32) -> Option<Self> {
        let superblock_offset = Self::superblock_of(capacity_bytes)?;
        let mirror_offset = superblock_offset.checked_sub(root_bytes.into())?;
        Some(Self { mirror_offset, superblock_offset })
    }

    /// Where the third copy of the superblock lies, which has room to its end.
    pub(crate) fn superblock_of(capacity_bytes: u64) -> Option<u64> {
        (capacity_bytes / TAIL_ALIGN * TAIL_ALIGN).checked_sub(SUPERBLOCK_BYTES as u64)
    }
}

/// How to format a file or block device; `None` means the default for the capacity.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FormatOptions {
    /// Bytes of the whole file. 0 means the whole of a block device; a file then begins with at most [`FormatOptions::FIRST_BYTES`] and grows by
    /// itself.
    pub capacity_bytes: u64,
    /// Data bytes of an erase block, a multiple of 4 KiB from 32 KiB to 1 GiB.
    pub block_bytes: Option<u64>,
    /// Dies, which is the number of logs.
    pub die_count: Option<u32>,
    /// Bytes of a chunk.
    pub chunk_bytes: Option<u32>,
    /// Bytes of the commit ring; a sixteenth of the capacity by default, at most 64 MiB, or 4 MiB a die if that is
    /// more.
    pub ring_bytes: Option<u64>,
    /// What "durable" has to outlive, unless an opener specifies otherwise.
    pub durability: Durability,
    /// Write every block once while formatting, and keep its space when it is erased. Takes as long as writing the whole
    /// capacity; afterwards no write has to turn reserved space into written space, which on a file system slows durable
    /// puts by a quarter until each block has been used once.
    pub prewrite: bool,
    /// Bytes up to which the device grows by itself when it runs low on space; `u64::MAX` means as far as what it lies in lets it. Without it
    /// the size changes by command only.
    pub grow_up_to: Option<u64>,
    /// Format over a file that is not empty, or over a device.
    pub force: bool,
}

impl FormatOptions {
    /// Bytes of a file that is to grow by itself as far as it can, if no other size is given. Its blocks and its ring are those of a large device,
    /// and it has as few blocks as work well. It takes space of its file system as blocks are first used.
    pub const FIRST_BYTES: u64 = 353 << 20;

    /// Options of a file that is small at first and grows by itself when it runs low on space, up to `limit_bytes`. The largest value and batch are
    /// those of a device of that size from the beginning.
    ///
    /// # Examples
    /// ```
    /// use kaml_flash::FormatOptions;
    ///
    /// let options = FormatOptions::growing_up_to(100 << 30);
    /// assert_eq!(options.grow_up_to, Some(100 << 30));
    /// ```
    pub fn growing_up_to(limit_bytes: u64) -> Self {
        Self { grow_up_to: Some(limit_bytes), ..Self::default() }
    }

    /// The same with the sizes of a file in place of those that were not given.
    pub(crate) fn for_a_file(&self) -> Self {
        match self.capacity_bytes {
            0 => {
                let limit = self.grow_up_to.unwrap_or(u64::MAX);
                let block_bytes = self.block_bytes.unwrap_or_else(|| default_block_bytes(limit));
                let ring_bytes = self.ring_bytes.unwrap_or_else(|| default_ring_bytes(limit, self.die_count));
                let blocks = FIRST_BLOCKS + FIRST_BLOCKS_PER_DIE * u64::from(self.die_count.unwrap_or(1));
                let first = block_bytes.saturating_mul(blocks).saturating_add(ring_bytes);
                Self {
                    capacity_bytes: first.max(FIRST_BYTES_MIN).min(limit),
                    grow_up_to: Some(limit),
                    block_bytes: Some(block_bytes),
                    ring_bytes: Some(ring_bytes),
                    ..self.clone()
                }
            }
            _ => self.clone(),
        }
    }

    /// Defaults for a capacity.
    pub fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, ..Self::default() }
    }
}

impl Geometry {
    /// As [`Geometry::for_file`], but also refuses a shape that `has_room` finds too small, and reports the smallest capacity that is
    /// not.
    ///
    /// # Errors
    /// [`FormatError::NoRoom`] instead of [`FormatError::TooFewBlocks`], too.
    pub fn with_room(
        capacity_bytes: u64,
        sector_bytes: u32,
        options: &FormatOptions,
        has_room: &dyn Fn(&Geometry) -> bool,
    ) -> Result<Self, FormatError> {
        const STEP_BYTES: u64 = 1 << 20;
        let fits = |steps: u64| {
            Self::for_file(steps * STEP_BYTES, sector_bytes, options).is_ok_and(|geometry| has_room(&geometry))
        };
        match Self::for_file(capacity_bytes, sector_bytes, options) {
            Ok(geometry) if has_room(&geometry) => return Ok(geometry),
            Ok(_) | Err(FormatError::TooFewBlocks { .. }) => {}
            Err(other) => return Err(other),
        }
        let mut too_small = capacity_bytes / STEP_BYTES;
        let mut large = too_small + 1;
        while !fits(large) {
            (too_small, large) = (large, large * 2);
            if large * STEP_BYTES > 1 << 60 {
                return Self::for_file(capacity_bytes, sector_bytes, options); // no size helps
            }
        }
        while large - too_small > 1 {
            let middle = too_small.midpoint(large);
            if fits(middle) { large = middle } else { too_small = middle }
        }
        Err(FormatError::NoRoom { capacity_bytes, smallest_bytes: large * STEP_BYTES })
    }

    /// The shape that fits a file of `capacity_bytes` whose device reads and writes sectors of `sector_bytes`.
    pub fn for_file(capacity_bytes: u64, sector_bytes: u32, options: &FormatOptions) -> Result<Self, FormatError> {
        const PAGE_BYTES: u32 = 4096;
        if capacity_bytes < CAPACITY_BYTES_MIN {
            return Err(FormatError::TooSmall { capacity_bytes, minimum_bytes: CAPACITY_BYTES_MIN });
        }
        let block_bytes = options.block_bytes.unwrap_or_else(|| default_block_bytes(capacity_bytes));
        if !block_bytes.is_multiple_of(u64::from(PAGE_BYTES)) || !(BLOCK_BYTES_MIN..=1 << 30).contains(&block_bytes) {
            let must = "a multiple of 4096, from 32 KiB to 1 GiB";
            return Err(crate::GeometryError { what: "block_bytes", value: block_bytes, must }.into());
        }
        let ring_bytes = options.ring_bytes.unwrap_or_else(|| default_ring_bytes(capacity_bytes, options.die_count));
        let mut geometry = Self {
            channel_count: 1,
            dies_per_channel: 1,
            blocks_per_die: 1,
            pages_per_block: (block_bytes / u64::from(PAGE_BYTES)) as u32,
            page_bytes: PAGE_BYTES,
            oob_bytes: Self::OOB_BYTES_MIN,
            chunk_bytes: options.chunk_bytes.unwrap_or(64),
            pages_per_program: 1,
            packing: Packing::Across,
            ring_bytes,
            sector_bytes,
            root_bytes: if capacity_bytes < 256 << 20 { 256 << 10 } else { 1 << 20 },
        };
        geometry.check()?;
        geometry.fill(capacity_bytes, options.die_count)?;
        if geometry.chunk_count() > Self::CHUNK_COUNT_MAX {
            let chunk_bytes = geometry.chunk_bytes;
            let maximum_bytes = Self::CHUNK_COUNT_MAX * u64::from(chunk_bytes);
            return Err(FormatError::TooLarge { capacity_bytes, chunk_bytes, maximum_bytes });
        }
        geometry.check()?;
        Ok(geometry)
    }

    /// Sets dies and blocks to what fits.
    fn fill(&mut self, capacity_bytes: u64, die_count: Option<u32>) -> Result<(), FormatError> {
        let layout = Layout::of(self);
        let end = Tail::of(capacity_bytes, self.root_bytes).map_or(0, |tail| tail.mirror_offset);
        let fitting = end.saturating_sub(layout.blocks_offset) / layout.block_stride_bytes;
        let fitting = fitting.min(1 << 24) as u32;
        let die_count = die_count.unwrap_or((fitting / 512).clamp(1, 8));
        if fitting < BLOCK_COUNT_MIN || fitting < die_count {
            let minimum = BLOCK_COUNT_MIN.max(die_count);
            return Err(FormatError::TooFewBlocks { block_count: fitting, minimum });
        }
        self.dies_per_channel = die_count;
        self.blocks_per_die = fitting.checked_div(die_count).unwrap_or(1);
        Ok(())
    }
}

/// Records are kept in the ring until they are programmed and a root has reported it. Each die has a write buffer being filled and
/// up to two being programmed, 768 KiB in all, and a root frees an eighth of the ring at least: a ring with less than a
/// few MiB a die would make many dies wait for each other.
const RING_BYTES_PER_DIE: u64 = 4 << 20;
const RING_BYTES_MIN: u64 = 4 << 20;
/// The part of the default on few dies.
const RING_BYTES_MAX: u64 = 64 << 20;

/// A file that grows has at least so many bytes at first.
const FIRST_BYTES_MIN: u64 = 64 << 20;
/// And room for so many blocks, so a few of them can have records.
const FIRST_BLOCKS: u64 = 10;
/// And so many for each die, which fills some at a time and leaves others to collection.
const FIRST_BLOCKS_PER_DIE: u64 = 7;

fn default_ring_bytes(capacity_bytes: u64, die_count: Option<u32>) -> u64 {
    let by_dies = u64::from(die_count.unwrap_or(1)) * RING_BYTES_PER_DIE;
    let most = by_dies.clamp(RING_BYTES_MAX, 1 << 32);
    (capacity_bytes / 16).clamp(RING_BYTES_MIN, most).next_multiple_of(4096)
}

/// 17 MiB, so a record of 16 MiB with its header fits in one block; on small devices about a 120th, so there
/// are blocks enough to reclaim.
fn default_block_bytes(capacity_bytes: u64) -> u64 {
    if capacity_bytes >= 2 << 30 { 17 << 20 } else { (capacity_bytes / 120 / 4096 * 4096).max(256 << 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   whatever the capacity, the default shape fits in it, wastes less than a block a die, and is legal.
    /// Method: capacities from the smallest to 16 TiB in uneven steps.
    #[test]
    fn default_shapes_fit() {
        let mut capacity_bytes = CAPACITY_BYTES_MIN;
        while capacity_bytes < 16 << 40 {
            let geometry = Geometry::for_file(capacity_bytes, 512, &FormatOptions::default()).unwrap();
            geometry.check().unwrap();
            let layout = Layout::of(&geometry);
            let end = Tail::of(capacity_bytes, geometry.root_bytes).unwrap().mirror_offset;
            assert!(layout.end <= end, "{capacity_bytes}");
            let unused = end - layout.end;
            assert!(unused < layout.block_stride_bytes * u64::from(geometry.die_count()), "{capacity_bytes}");
            assert!(geometry.block_count() >= 60, "{capacity_bytes}");
            capacity_bytes += capacity_bytes / 7 + 12_345;
        }
    }

    /// Goal:   a file that grows has the blocks and the ring of a device of its limit from the beginning, and fits that limit.
    /// Method: limits from the smallest to none, one die and several.
    #[test]
    fn files_that_grow_begin_with_large_blocks() {
        let first = FormatOptions::growing_up_to(u64::MAX).for_a_file();
        assert_eq!(first.capacity_bytes, FormatOptions::FIRST_BYTES);
        for die_count in [None, Some(8)] {
            for limit in [64 << 20, 100 << 20, 1 << 30, 3 << 30, 1 << 40, u64::MAX] {
                let options = FormatOptions { die_count, ..FormatOptions::growing_up_to(limit) }.for_a_file();
                assert!(options.capacity_bytes <= limit);
                let geometry = Geometry::for_file(options.capacity_bytes, 512, &options).unwrap();
                let large = FormatOptions { die_count, ..FormatOptions::default() };
                let large = Geometry::for_file(limit.min(1 << 40), 512, &large).unwrap();
                assert_eq!((geometry.block_bytes(), geometry.ring_bytes), (large.block_bytes(), large.ring_bytes));
                assert!(geometry.blocks_per_die >= 8, "{limit}: {geometry:?}");
            }
        }
    }

    /// Goal:   the ring grows with capacity and dies, up to what each of them is good for.
    /// Method: small, large, many dies, many dies on little.
    #[test]
    fn default_rings() {
        let of = |capacity_bytes, dies| default_ring_bytes(capacity_bytes, dies) >> 20;
        assert_eq!([of(32 << 20, None), of(512 << 20, None), of(1 << 40, None)], [4, 32, 64]);
        assert_eq!([of(1 << 40, Some(8)), of(1 << 40, Some(64)), of(1 << 40, Some(4096))], [64, 256, 4096]);
        assert_eq!(of(1 << 30, Some(64)), 64);
    }

    /// Goal:   options that cannot be met are refused with their numbers.
    /// Method: one bad option at a time.
    #[test]
    fn bad_options_are_refused() {
        let of = |capacity_bytes, options| Geometry::for_file(capacity_bytes, 512, &options);
        let defaults = FormatOptions::default;
        assert_eq!(
            of(CAPACITY_BYTES_MIN - 1, defaults()).unwrap_err().to_string(),
            "33554431 bytes are too few, a device takes at least 33554432"
        );
        assert_eq!(
            of(1 << 50, defaults()).unwrap_err().to_string(),
            "1125899906842624 bytes are too many, a device of 64-byte chunks takes about 70368744177664 (choose larger chunks)"
        );
        assert!(of(1 << 46, FormatOptions { chunk_bytes: Some(128), ..defaults() }).is_ok());
        let refused = |options| of(64 << 20, options).unwrap_err();
        for block_bytes in [0, 4095, 5000, 4096, 28 << 10, 33_000, 2 << 30, u64::MAX] {
            let error = refused(FormatOptions { block_bytes: Some(block_bytes), ..defaults() });
            assert!(matches!(error, FormatError::Geometry(error) if error.value == block_bytes), "{block_bytes}");
        }
        let error = refused(FormatOptions { block_bytes: Some(16 << 20), ..defaults() });
        assert!(matches!(error, FormatError::TooFewBlocks { block_count: 3, .. }), "{error}");
        for die_count in [0, 1000, u32::MAX] {
            assert!(of(64 << 20, FormatOptions { die_count: Some(die_count), ..defaults() }).is_err());
        }
        assert!(matches!(refused(FormatOptions { chunk_bytes: Some(100), ..defaults() }), FormatError::Geometry(_)));
        for ring_bytes in [0, 4097, 1 << 40] {
            assert!(of(64 << 20, FormatOptions { ring_bytes: Some(ring_bytes), ..defaults() }).is_err());
        }
    }
}
