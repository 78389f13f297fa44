//! Hints about memory: what the processor should fetch, what the system should keep on huge pages.
//!
//! Lives here:       the intrinsic and the system call behind them. Neither changes what memory holds.
//! May be called by: everyone.
#![allow(unsafe_code, reason = "both take addresses")]

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

/// Wishes that memory which is used all over be kept on huge pages, so that each use need not look for its small one. Where
/// the system has none it is slower, not wrong.
pub fn prefer_huge_pages(bytes: &[u8]) {
    let start = bytes.as_ptr().align_offset(SYSTEM_PAGE_BYTES);
    let Some(inside) = bytes.get(start..) else { return };
    let len = inside.len() / SYSTEM_PAGE_BYTES * SYSTEM_PAGE_BYTES;
    if len > 0 {
        // SAFETY: whole pages of memory that is ours for as long as it is borrowed; this advice leaves their content alone.
        let _ = unsafe { madvise(inside.as_ptr().cast_mut().cast(), len, Advice::LinuxHugepage) };
    }
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
}
