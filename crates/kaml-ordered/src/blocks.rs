//! Which lines of the arena are in use: blocks of 1 to 64 lines, in slabs.
//!
//! Lives here:       taking and releasing blocks, slabs whose memory returns to the system, what counts as used memory.
//! Lives elsewhere:  the memory itself (`arena`), what a block holds (`node`).
//! May be called by: the writer.
//!
//! A slab is 64 KiB. All its blocks have one size. An empty slab serves any size. If several slabs have room, the lowest is taken, so
//! the others can become empty. Where many blocks of a size are free, `sparse` names a slab whose nodes the writer moves elsewhere.

use std::collections::BTreeSet;

use crate::arena::{Arena, HUGE_LINES, LINE_BYTES, SMALL_LINES, SYSTEM_PAGE_LINES};

/// The longest block.
pub(crate) const BLOCK_LINES_MAX: u32 = 64;
const SLAB_LINES: u32 = 1024;
const SLAB_PAGES: u32 = SLAB_LINES / SYSTEM_PAGE_LINES;
/// Empty slabs whose memory is kept for the next block.
const KEPT_SLABS: usize = 4;
/// A size is sparse when more than one block in `SPARSE_ONE_IN` is free, and more than fit two slabs.
const SPARSE_ONE_IN: u32 = 12;

/// Blocks of all sizes.
pub(crate) struct Blocks {
    slabs: Vec<Slab>,
    sizes: Vec<Size>,
    /// Empty slabs whose memory is kept.
    kept: Vec<u32>,
    /// Empty slabs whose memory has returned to the system.
    discarded: Vec<u32>,
    /// The first line that was never advised to come in huge pages.
    huge_end: u32,
    /// System pages of all slabs that were written since they were discarded.
    touched_pages: u64,
}

/// Slabs of blocks of one size.
#[derive(Clone, Default)]
struct Size {
    /// Those with a free block that the writer does not empty.
    with_room: BTreeSet<u32>,
    blocks: u32,
    used: u32,
}

#[derive(Clone, Default)]
struct Slab {
    /// Lines of a block; 0 for an empty slab.
    lines: u32,
    used: u32,
    /// Blocks from here on were never taken since the slab was given to this size.
    fresh: u32,
    touched_pages: u32,
    is_draining: bool,
    /// A bit for each block in use.
    map: Vec<u64>,
}

impl Blocks {
    pub(crate) fn new() -> Blocks {
        Blocks {
            slabs: vec![],
            sizes: vec![Size::default(); BLOCK_LINES_MAX as usize + 1],
            kept: vec![],
            discarded: vec![],
            huge_end: SMALL_LINES,
            touched_pages: 0,
        }
    }

    /// The first line of a block that holds anything.
    ///
    /// # Panics
    /// When the reserved range is used up.
    pub(crate) fn take(&mut self, arena: &Arena, lines: u32) -> u32 {
        assert!((1..=BLOCK_LINES_MAX).contains(&lines), "blocks have 1 to 64 lines");
        let size = &self.sizes[lines as usize];
        let number = match size.with_room.first() {
            Some(&slab) => slab,
            None => self.begin_slab(arena, lines),
        };
        let slab = &mut self.slabs[number as usize];
        let block = slab.take();
        let pages = (slab.fresh * lines).div_ceil(SYSTEM_PAGE_LINES);
        self.touched_pages += u64::from(pages.saturating_sub(slab.touched_pages));
        slab.touched_pages = slab.touched_pages.max(pages);
        let is_full = slab.used == slab.capacity();
        let size = &mut self.sizes[lines as usize];
        size.used += 1;
        if is_full {
            size.with_room.remove(&number);
        }
        number * SLAB_LINES + block * lines
    }

    /// Releases a block. Late readers can still look at it.
    pub(crate) fn give_back(&mut self, arena: &Arena, line: u32) {
        let number = line / SLAB_LINES;
        let slab = &mut self.slabs[number as usize];
        slab.give_back(line % SLAB_LINES / slab.lines);
        let size = &mut self.sizes[slab.lines as usize];
        size.used -= 1;
        if slab.used == 0 {
            size.with_room.remove(&number);
            size.blocks -= slab.capacity();
            self.end_slab(arena, number);
        } else if !slab.is_draining {
            size.with_room.insert(number);
        }
    }

    /// Whether there is address space for this many slabs more.
    pub(crate) fn has_room(&self, arena: &Arena, slabs: usize) -> bool {
        let fresh = (arena.line_count() / SLAB_LINES) as usize - self.slabs.len();
        fresh + self.kept.len() + self.discarded.len() >= slabs
    }

    fn begin_slab(&mut self, arena: &Arena, lines: u32) -> u32 {
        let number = self.kept.pop().or_else(|| self.discarded.pop()).unwrap_or_else(|| self.new_slab(arena));
        let slab = &mut self.slabs[number as usize];
        slab.lines = lines;
        slab.fresh = 0;
        slab.is_draining = false;
        slab.map.clear();
        slab.map.resize(slab.capacity().div_ceil(64) as usize, 0);
        if number * SLAB_LINES >= SMALL_LINES {
            self.touched_pages += u64::from(SLAB_PAGES - slab.touched_pages);
            slab.touched_pages = SLAB_PAGES;
        }
        let size = &mut self.sizes[lines as usize];
        size.blocks += slab.capacity();
        size.with_room.insert(number);
        number
    }

    fn new_slab(&mut self, arena: &Arena) -> u32 {
        let number = self.slabs.len() as u32;
        let end = (number + 1) * SLAB_LINES;
        assert!(end <= arena.line_count(), "the index has outgrown the {} lines reserved", arena.line_count());
        if end > self.huge_end && self.huge_end + HUGE_LINES <= arena.line_count() {
            arena.make_huge(&(self.huge_end..self.huge_end + HUGE_LINES));
            self.huge_end += HUGE_LINES;
        }
        self.slabs.push(Slab::default());
        number
    }

    fn end_slab(&mut self, arena: &Arena, number: u32) {
        let slab = &mut self.slabs[number as usize];
        slab.lines = 0;
        let first = number * SLAB_LINES;
        if self.kept.len() >= KEPT_SLABS && arena.discard(&(first..first + SLAB_LINES)) {
            self.touched_pages -= u64::from(slab.touched_pages);
            slab.touched_pages = 0;
            slab.map = vec![];
            self.discarded.push(number);
        } else {
            self.kept.push(number);
        }
    }

    /// A slab that should become empty, because a size has many free blocks: of the sizes the one of a block just released. No block
    /// of it is taken from now on.
    pub(crate) fn sparse(&mut self, lines: u32) -> Option<u32> {
        let size = &mut self.sizes[lines as usize];
        let free = size.blocks - size.used;
        if free <= 2 * (SLAB_LINES / lines) || free <= size.blocks / SPARSE_ONE_IN {
            return None;
        }
        let emptiest = size.with_room.iter().copied().min_by_key(|&slab| self.slabs[slab as usize].used)?;
        size.with_room.remove(&emptiest);
        self.slabs[emptiest as usize].is_draining = true;
        Some(emptiest)
    }

    /// A block in use of a slab that is to become empty; none if it is.
    pub(crate) fn block_of(&self, slab: u32) -> Option<u32> {
        let of = &self.slabs[slab as usize];
        if !of.is_draining || of.lines == 0 {
            return None;
        }
        let (word, bits) = of.map.iter().enumerate().find(|(_, bits)| **bits != 0)?;
        let block = word as u32 * 64 + bits.trailing_zeros();
        Some(slab * SLAB_LINES + block * of.lines)
    }

    /// Lines of the block with this first line.
    pub(crate) fn lines_of(&self, line: u32) -> u32 {
        self.slabs[(line / SLAB_LINES) as usize].lines
    }

    /// Memory taken from the system, lists included.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let pages = self.touched_pages * u64::from(SYSTEM_PAGE_LINES) * LINE_BYTES as u64;
        let frontier = self.slabs.len() as u64 * u64::from(SLAB_LINES);
        let begun = u64::from(self.huge_end).saturating_sub(frontier.max(u64::from(SMALL_LINES))) * LINE_BYTES as u64;
        let lists = self.slabs.capacity() * (size_of::<Slab>() + 64) + self.sizes.len() * size_of::<Size>();
        pages + begun + lists as u64
    }
}

impl Slab {
    fn capacity(&self) -> u32 {
        SLAB_LINES / self.lines
    }

    fn take(&mut self) -> u32 {
        let free = self.map.iter().enumerate().find(|(_, bits)| **bits != u64::MAX);
        let (word, bits) = free.expect("slabs with room have a free block");
        let block = word as u32 * 64 + bits.trailing_ones();
        assert!(block < self.capacity(), "slabs with room have a free block");
        self.map[block as usize / 64] |= 1 << (block % 64);
        self.used += 1;
        self.fresh = self.fresh.max(block + 1);
        block
    }

    fn give_back(&mut self, block: u32) {
        let bit = 1 << (block % 64);
        assert!(self.map[block as usize / 64] & bit != 0, "only blocks in use are released");
        self.map[block as usize / 64] &= !bit;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   blocks never overlap, memory follows what is in use, and slabs that are to become empty do.
    /// Method: random takes and returns of all sizes; a map of lines in use; in the end everything is returned.
    #[test]
    fn blocks_do_not_overlap() {
        let arena = Arena::reserve(64 << 20).unwrap();
        let (mut blocks, mut taken, mut random) = (Blocks::new(), vec![], 7u64);
        let mut in_use = vec![false; arena.line_count() as usize];
        let mut next = |below: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) % below
        };
        for turn in 0..40_000u64 {
            if next(10) < if turn < 20_000 { 6 } else { 3 } {
                let lines = 1 + next(64) as u32;
                let line = blocks.take(&arena, lines);
                let range = &mut in_use[line as usize..(line + lines) as usize];
                assert!(range.iter().all(|used| !used), "overlap at {line}");
                range.fill(true);
                taken.push((line, lines));
            } else if !taken.is_empty() {
                let (line, lines) = taken.swap_remove(next(taken.len() as u64) as usize);
                in_use[line as usize..(line + lines) as usize].fill(false);
                blocks.give_back(&arena, line);
                if let Some(slab) = blocks.sparse(lines) {
                    while let Some(line) = blocks.block_of(slab) {
                        in_use[line as usize..(line + lines) as usize].fill(false);
                        taken.retain(|(other, _)| *other != line);
                        blocks.give_back(&arena, line);
                    }
                }
            }
        }
        taken.into_iter().for_each(|(line, _)| blocks.give_back(&arena, line));
        let lists = blocks.slabs.capacity() * 256 + 65 * size_of::<Size>();
        assert!(blocks.memory_bytes() <= (KEPT_SLABS as u64 * 65_536) + lists as u64, "{}", blocks.memory_bytes());
        assert_eq!(blocks.kept.len() + blocks.discarded.len(), blocks.slabs.len());
    }
}
