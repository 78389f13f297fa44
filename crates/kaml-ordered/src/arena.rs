//! Memory of an index: one reserved range of 64-byte lines, which never moves.
//!
//! Lives here:       the mapping, references into it, huge pages, memory returned to the system. All unsafe code of the crate.
//! Lives elsewhere:  which lines are in use (`blocks`), what they mean (`node`).
//! May be called by: the tree and its writer.
//!
//! - The whole range is reserved at once, so a line number is an address. Reserving costs address space only; the system gives
//!   memory when a page is first written.
//! - Nothing is unmapped before the arena is dropped. A late reader can look at lines that belong to another node by now. What it
//!   reads are atomics, and a version makes it start again.
//! - Below `SMALL_BYTES` memory comes in 4 KiB pages: a small index takes little. Above, it comes in huge pages, which make
//!   look-ups faster.
#![allow(unsafe_code, reason = "safe Rust cannot map memory or refer to it")]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use kaml_index::NoAddressSpace;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::node::{NODE_BYTES_MAX, NODE_WORDS_MAX};

pub(crate) const LINE_BYTES: usize = 64;
pub(crate) const LINE_WORDS: usize = 8;
const SYSTEM_PAGE_BYTES: usize = 4096;
/// Lines of a page of the system.
pub(crate) const SYSTEM_PAGE_LINES: u32 = (SYSTEM_PAGE_BYTES / LINE_BYTES) as u32;
const HUGE_BYTES: usize = 2 << 20;
/// Lines of a huge page.
pub(crate) const HUGE_LINES: u32 = (HUGE_BYTES / LINE_BYTES) as u32;
/// Up to here memory is taken 4 KiB at a time. A huge page that is just begun is on average 3 % of the smallest index above.
const SMALL_BYTES: usize = 32 << 20;
pub(crate) const SMALL_LINES: u32 = (SMALL_BYTES / LINE_BYTES) as u32;
/// After the range: a node's view can begin in the last line.
const SPARE_BYTES: usize = NODE_BYTES_MAX;
/// The longest range: what 32-bit line numbers reach.
pub(crate) const RESERVED_BYTES_MAX: usize = 1 << 38;

/// The reserved range.
pub(crate) struct Arena {
    words: NonNull<AtomicU64>,
    line_count: u32,
    mapping: NonNull<u8>,
    mapping_bytes: usize,
}

// SAFETY: the mapping belongs to the arena alone and is given out only as `&[AtomicU64]`.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves address space for about `bytes`, or for as much as the system lets us have.
    ///
    /// # Panics
    /// When not even one huge page can be mapped: the process is out of memory.
    pub(crate) fn reserve(bytes: u64) -> Result<Arena, NoAddressSpace> {
        let mut bytes = usize::try_from(bytes).unwrap_or(usize::MAX).clamp(HUGE_BYTES, RESERVED_BYTES_MAX - HUGE_BYTES);
        bytes = bytes.next_multiple_of(HUGE_BYTES);
        loop {
            let mapping_bytes = bytes + HUGE_BYTES + SPARE_BYTES; // room to align
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
            // SAFETY: a fresh private mapping at an address of the kernel's choice touches nobody's memory.
            match unsafe { mmap_anonymous(std::ptr::null_mut(), mapping_bytes, access, flags) } {
                Ok(mapping) => return Ok(Arena::of_mapping(mapping.cast(), mapping_bytes, bytes)),
                Err(_) if bytes <= HUGE_BYTES => return Err(NoAddressSpace { bytes: mapping_bytes as u64 }),
                Err(_) => {
                    bytes = (bytes / 2).next_multiple_of(HUGE_BYTES);
                }
            }
        }
    }

    fn of_mapping(mapping: *mut u8, mapping_bytes: usize, bytes: usize) -> Arena {
        let skipped = mapping.align_offset(HUGE_BYTES);
        assert!(skipped + bytes + SPARE_BYTES <= mapping_bytes, "the mapping has room to align");
        // SAFETY: still inside the mapping, by the assertion.
        let words = unsafe { mapping.add(skipped) };
        let arena = Arena {
            words: NonNull::new(words.cast()).expect("mmap never returns null"),
            line_count: u32::try_from(bytes / LINE_BYTES).expect("RESERVED_BYTES_MAX fits 32-bit line numbers"),
            mapping: NonNull::new(mapping).expect("mmap never returns null"),
            mapping_bytes,
        };
        arena.advise(&(0..arena.line_count), Advice::LinuxNoHugepage);
        arena
    }

    /// Lines of the range.
    pub(crate) fn line_count(&self) -> u32 {
        self.line_count
    }

    /// The words of a line and of those after it, as many as the longest node has; none if the line is outside the range.
    #[inline]
    pub(crate) fn words(&self, line: u32) -> Option<&[AtomicU64; NODE_WORDS_MAX]> {
        if line >= self.line_count {
            return None;
        }
        // SAFETY: the line is in the range by the check, and the mapping has `SPARE_BYTES` after it, so all words are inside the mapping. They are
        // aligned, readable and writable as long as the arena lives. Memory never written reads as zeros, and every access goes
        // through atomics.
        Some(unsafe { &*self.words.as_ptr().add(line as usize * LINE_WORDS).cast() })
    }

    /// Has lines come in huge pages when they are first written.
    pub(crate) fn make_huge(&self, lines: &Range<u32>) {
        self.advise(lines, Advice::LinuxHugepage);
    }

    /// Returns the memory of whole system pages to the system; they read as zeros from now on. False if the system refuses.
    ///
    /// A late reader sees zeros as it would see stores of another node: before lines are discarded, the version of the node that
    /// had them has changed.
    pub(crate) fn discard(&self, lines: &Range<u32>) -> bool {
        let is_whole = lines.start.is_multiple_of(SYSTEM_PAGE_LINES) && lines.end.is_multiple_of(SYSTEM_PAGE_LINES);
        assert!(is_whole && lines.end <= self.line_count, "whole system pages of this arena");
        // SAFETY: the range lies in our private anonymous mapping and stays mapped. All accesses to it are atomic, and the
        // system's zeros are to them what stores of another thread would be.
        unsafe {
            let first = self.words.as_ptr().add(lines.start as usize * LINE_WORDS);
            madvise(first.cast(), lines.len() * LINE_BYTES, Advice::LinuxDontNeed).is_ok()
        }
    }

    /// Advice is a wish: without huge pages the index is slower, not wrong.
    fn advise(&self, lines: &Range<u32>, advice: Advice) {
        assert!(lines.end <= self.line_count, "advice is for lines of this arena");
        // SAFETY: the range lies in our mapping, and the advice given here does not change what memory holds.
        let _ = unsafe {
            madvise(self.words.as_ptr().add(lines.start as usize * LINE_WORDS).cast(), lines.len() * LINE_BYTES, advice)
        };
    }

    /// Asks the processor to fetch a line.
    #[inline]
    pub(crate) fn prefetch(&self, line: u32) {
        prefetch(self.words.as_ptr().wrapping_add(line as usize * LINE_WORDS));
    }
}

/// Asks the processor to fetch the line of a word.
#[inline]
pub(crate) fn prefetch(word: *const AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults, whatever the address; the address is not used otherwise.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(word.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference to it outlives `self`.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
    }
}
