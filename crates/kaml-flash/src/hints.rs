//! Hints about memory: what the processor should fetch, or leave out of its caches, what the system should keep on huge pages.
//!
//! Lives here:       the intrinsics and the system call after them. None changes what a program sees.
//! May be called by: everyone.
#![allow(unsafe_code, reason = "all of them take addresses")]

use rustix::mm::{Advice, madvise};

const LINE_BYTES: usize = 64;
const SYSTEM_PAGE_BYTES: usize = 4096;

/// Asks the processor to fetch something, line by line.
#[inline]
pub fn prefetch<T: ?Sized>(what: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let first = std::ptr::from_ref(what).cast::<i8>();
        let skipped = first.addr() % LINE_BYTES;
        for line in 0..(skipped + size_of_val(what)).div_ceil(LINE_BYTES) {
            // SAFETY: a prefetch reads nothing that the program sees, and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_sub(skipped).wrapping_add(line * LINE_BYTES)) }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = what;
}

/// Wishes that memory which is used all over, or in long pieces, be kept on huge pages: fewer places have to be looked up, by the
/// processor and by a kernel that hands the memory to a device. Where the system has none it is slower, not wrong.
pub fn prefer_huge_pages<T>(memory: &[T]) {
    let start = memory.as_ptr().cast::<u8>();
    let skipped = start.align_offset(SYSTEM_PAGE_BYTES);
    let Some(left) = size_of_val(memory).checked_sub(skipped) else { return };
    let len = left / SYSTEM_PAGE_BYTES * SYSTEM_PAGE_BYTES;
    if len > 0 {
        // SAFETY: whole pages of memory that is ours for as long as it is borrowed; this advice leaves their content alone.
        let _ = unsafe { madvise(start.wrapping_add(skipped).cast_mut().cast(), len, Advice::LinuxHugepage) };
    }
}

/// Copies bytes to where the processor will not need them soon: a device reads them next. The caches keep their contents, and
/// lines that are overwritten are not fetched first.
///
/// # Panics
/// If the lengths differ.
pub fn copy_past_caches(into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len(), "as many bytes as there is room for");
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        const STEP_BYTES: usize = size_of::<__m128i>();
        let lead = into.as_ptr().align_offset(LINE_BYTES).min(into.len());
        let (into_lead, into) = into.split_at_mut(lead);
        let (from_lead, from) = from.split_at(lead);
        into_lead.copy_from_slice(from_lead);
        let (mut into, mut from) = (into.chunks_exact_mut(LINE_BYTES), from.chunks_exact(LINE_BYTES));
        for (into, from) in (&mut into).zip(&mut from) {
            for at in (0..LINE_BYTES).step_by(STEP_BYTES) {
                // SAFETY: 16 bytes within both lines; those that are written begin at a multiple of 16.
                unsafe {
                    let bytes = _mm_loadu_si128(from.as_ptr().add(at).cast());
                    _mm_stream_si128(into.as_mut_ptr().add(at).cast(), bytes);
                }
            }
        }
        into.into_remainder().copy_from_slice(from.remainder());
        // SAFETY: a fence touches no memory. A thread that learns of the bytes from another thread must see them.
        unsafe { _mm_sfence() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    into.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   hints change nothing, wherever memory begins and ends.
    /// Method: ranges at odd places, short and long, and none.
    #[test]
    fn hints_change_nothing() {
        let bytes: Vec<u8> = (0..4 << 20).map(|i: u32| i as u8).collect();
        for range in [0..0, 1..2, 4095..4097, 100..9000, 0..bytes.len()] {
            prefer_huge_pages(&bytes[range.clone()]);
            prefetch(&bytes[range]);
        }
        prefetch(&bytes);
        assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == i as u8));
    }

    /// Goal:   copying past the caches copies all of it, and nothing else.
    /// Method: every place in a line for what is read and what is written, lengths around one and several lines.
    #[test]
    fn copies_past_caches_are_copies() {
        let from: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8 | 1).collect();
        for (at, skipped) in (0..64).flat_map(|at| [0, 1, 24, 63].map(|skipped| (at, skipped))) {
            for len in [0, 1, 15, 63, 64, 65, 128, 500, 900] {
                let (mut into, source) = (vec![0; 1000], &from[skipped..skipped + len]);
                copy_past_caches(&mut into[at..at + len], source);
                assert!(into[at..at + len] == *source, "{len} bytes from {skipped} to {at}");
                assert!(into[..at].iter().chain(&into[at + len..]).all(|byte| *byte == 0));
            }
        }
    }
}
