//! Memory of an index: one reserved range of 64-byte lines, handed out in pages of 4 KiB.
//!
//! Lives here:       the mapping, pages taken and given back, what counts as used memory.
//! Lives elsewhere:  what a line means (`table`, `directory`).
//! May be called by: the table and its writer.
//!
//! - The whole range is reserved at once and never moves, so that a line number is an address and a reader needs no
//!   chunk table. Reserving costs address space only; memory is taken when a page is first written.
//! - Nothing is unmapped before the arena is dropped. A reader may look at a page that was given back and is another
//!   segment's by now; what it reads are atomics, and its segment's version tells it to start again.
//! - Segments are lists of pages, not runs, so given-back pages fit every later segment: there is no fragmentation.
//! - Below `SMALL_BYTES` memory comes in 4 KiB pages, so that a small namespace is small; above, in huge pages, and once
//!   the small part is outgrown it is offered to the kernel for collapsing as well.
//!
//! All of this crate's unsafe code is here: mapping memory, and turning a line number into a reference.
#![allow(unsafe_code, reason = "mapping memory and referring to it cannot be said in safe Rust")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::bucket::Words;

/// A cache line of eight words: a bucket, a segment header, or sixteen directory entries.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [AtomicU64; 8]);

pub(crate) const LINE_BYTES: usize = 64;
/// Lines of a page.
pub(crate) const PAGE_LINES: u32 = 64;
const PAGE_BYTES: usize = PAGE_LINES as usize * LINE_BYTES;
const HUGE_BYTES: usize = 2 << 20;
/// Up to here memory is taken 4 KiB at a time: a huge page that is just begun then is at most 3 % of the index.
const SMALL_BYTES: usize = 64 << 20;
/// The longest range: what 32-bit line numbers reach.
const RESERVED_BYTES_MAX: usize = 1 << 38;

impl Line {
    /// All words. Whoever reads beside the writer validates the segment's version afterwards.
    #[inline]
    pub(crate) fn load(&self) -> Words {
        std::array::from_fn(|i| self.0[i].load(Relaxed))
    }

    #[inline]
    pub(crate) fn store(&self, words: &Words) {
        self.0.iter().zip(words).for_each(|(word, &value)| word.store(value, Relaxed));
    }
}

/// The reserved range.
pub(crate) struct Arena {
    lines: NonNull<Line>,
    line_count: u32,
    mapping: NonNull<u8>,
    mapping_bytes: usize,
}

// SAFETY: the mapping belongs to the arena alone and is given out only as `&Line`, which are atomics.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves address space for about `bytes`, or for as much as the system lets us have.
    ///
    /// # Panics
    /// When not even one huge page can be mapped: the process is out of memory.
    pub(crate) fn reserve(bytes: u64) -> Arena {
        let mut bytes = usize::try_from(bytes).unwrap_or(usize::MAX).clamp(HUGE_BYTES, RESERVED_BYTES_MAX - HUGE_BYTES);
        bytes = bytes.next_multiple_of(HUGE_BYTES);
        loop {
            let mapping_bytes = bytes + HUGE_BYTES; // room to align
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
            // SAFETY: a fresh private mapping at an address of the kernel's choice touches nobody's memory.
            match unsafe { mmap_anonymous(std::ptr::null_mut(), mapping_bytes, access, flags) } {
                Ok(mapping) => return Arena::of_mapping(mapping.cast(), mapping_bytes, bytes),
                Err(error) => {
                    assert!(bytes > HUGE_BYTES, "no address space for an index: {error}");
                    bytes = (bytes / 2).next_multiple_of(HUGE_BYTES);
                }
            }
        }
    }

    fn of_mapping(mapping: *mut u8, mapping_bytes: usize, bytes: usize) -> Arena {
        let skipped = mapping.align_offset(HUGE_BYTES);
        assert!(skipped + bytes <= mapping_bytes, "the mapping has room to align");
        // SAFETY: still inside the mapping, by the assertion.
        let lines = unsafe { mapping.add(skipped) };
        let arena = Arena {
            lines: NonNull::new(lines.cast()).expect("mmap never answers null"),
            line_count: u32::try_from(bytes / LINE_BYTES).expect("RESERVED_BYTES_MAX fits 32-bit line numbers"),
            mapping: NonNull::new(mapping).expect("mmap never answers null"),
            mapping_bytes,
        };
        let small = SMALL_BYTES.min(bytes);
        arena.advise(0..small, Advice::LinuxNoHugepage);
        arena.advise(small..bytes, Advice::LinuxHugepage);
        arena
    }

    /// Advice is a wish: without huge pages the index is slower, not wrong.
    fn advise(&self, bytes: std::ops::Range<usize>, advice: Advice) {
        if !bytes.is_empty() {
            // SAFETY: the range lies in our mapping, and this advice does not change what memory holds.
            let _ = unsafe { madvise(self.lines.as_ptr().cast::<u8>().add(bytes.start).cast(), bytes.len(), advice) };
        }
    }

    /// The line with this number.
    #[inline]
    pub(crate) fn line(&self, line: u32) -> &Line {
        assert!(line < self.line_count, "line numbers come from this arena");
        // SAFETY: inside the mapping by the assertion, aligned, readable and writable as long as `self` lives; memory
        // never written reads as zeros, and every access goes through atomics.
        unsafe { &*self.lines.as_ptr().add(line as usize) }
    }

    /// Asks the processor to fetch a line.
    #[inline]
    pub(crate) fn prefetch(&self, line: u32) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch never faults, whatever the address; the address is not used otherwise.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.lines.as_ptr().wrapping_add(line as usize).cast()) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference to it outlives `self`.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
    }
}

/// Which lines are taken: the writer's side of an arena.
#[derive(Default)]
pub(crate) struct Pages {
    /// Pages given back, by the number of their first line.
    given_back: Vec<u32>,
    /// The first line never handed out.
    frontier: u32,
    /// Behind the last line whose huge page was written to ahead of need.
    warm: u32,
    /// Single lines still free in the newest page of headers and directories.
    singles: std::ops::Range<u32>,
}

impl Pages {
    /// A page of zeros, by its first line.
    pub(crate) fn take(&mut self, arena: &Arena) -> u32 {
        match self.given_back.pop() {
            Some(page) => {
                (page..page + PAGE_LINES).for_each(|line| arena.line(line).store(&[0; 8]));
                page
            }
            None => self.take_run(arena, 1),
        }
    }

    /// A page that no segment of today refers to; readers of yesterday may still look at it.
    pub(crate) fn give_back(&mut self, page: u32) {
        self.given_back.push(page);
    }

    /// Lines of zeros that are never given back: segment headers and directories.
    pub(crate) fn take_lines(&mut self, arena: &Arena, count: u32) -> u32 {
        if self.singles.len() < count as usize {
            let pages = count.div_ceil(PAGE_LINES);
            let first = self.take_run(arena, pages);
            self.singles = first..first + pages * PAGE_LINES;
        }
        let first = self.singles.start;
        self.singles.start += count;
        first
    }

    fn take_run(&mut self, arena: &Arena, pages: u32) -> u32 {
        let first = self.frontier;
        let end = u64::from(first) + u64::from(pages) * u64::from(PAGE_LINES);
        assert!(end <= u64::from(arena.line_count), "the index has outgrown the {} lines reserved", arena.line_count);
        self.frontier = end as u32;
        let small_lines = (SMALL_BYTES / LINE_BYTES) as u32;
        if first < small_lines && self.frontier >= small_lines {
            arena.advise(0..SMALL_BYTES.min(arena.line_count as usize * LINE_BYTES), Advice::LinuxHugepage);
        }
        first
    }

    /// Whether the next huge page should be written to soon.
    #[inline]
    pub(crate) fn wants_warming(&self) -> bool {
        self.frontier > self.warm
    }

    /// Writes to the huge page behind the frontier, so that the system clears it now (a fraction of a millisecond) and
    /// not in the middle of a rebuild.
    #[cold]
    pub(crate) fn warm(&mut self, arena: &Arena) {
        let (huge, small) = ((HUGE_BYTES / LINE_BYTES) as u32, (SMALL_BYTES / LINE_BYTES) as u32);
        if self.frontier + huge <= small {
            self.warm = self.frontier + huge / 2;
        } else {
            let next = self.frontier.max(small).div_ceil(huge) * huge;
            if next < arena.line_count {
                arena.line(next).0[0].store(0, Relaxed);
            }
            self.warm = next;
        }
    }

    /// Memory taken from the system: everything below the frontier, the rest of its huge page, and the
    /// one written to ahead.
    pub(crate) fn taken_bytes(&self) -> u64 {
        let bytes = self.frontier as usize * LINE_BYTES;
        let ahead = if self.warm as usize * LINE_BYTES >= SMALL_BYTES { HUGE_BYTES } else { 0 };
        let unit = if bytes <= SMALL_BYTES { PAGE_BYTES } else { HUGE_BYTES };
        (bytes.next_multiple_of(unit) + ahead + self.given_back.capacity() * size_of::<u32>()) as u64
    }
}
