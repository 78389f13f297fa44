//! Huge pages from the system itself.
//!
//! May be called by: `buffer`.

use rustix::mm::{MapFlags, ProtFlags};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Zeroed memory in whole huge pages, if the system has any to give. What an allocator hands out has mostly been touched before, and
/// remains in the small pages that it was touched in.
pub(crate) struct HugePages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value alone and is valid from any thread.
unsafe impl Send for HugePages {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for HugePages {}

impl HugePages {
    /// Bytes of a huge page.
    pub(crate) const BYTES: usize = 2 << 20;

    /// At least `len` bytes; none if the system refuses them.
    ///
    /// # Panics
    /// If `len` is 0.
    pub(crate) fn new(len: usize) -> Option<HugePages> {
        assert!(len > 0, "an empty mapping");
        let len = len.checked_next_multiple_of(Self::BYTES)?;
        let (prot, reserved) = (ProtFlags::READ | ProtFlags::WRITE, len.checked_add(Self::BYTES)?);
        // SAFETY: the kernel chooses an address nobody uses; nothing else in this process knows it.
        let mapped = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), reserved, prot, MapFlags::PRIVATE) };
        let first: *mut u8 = mapped.ok()?.cast();
        let before = first.align_offset(Self::BYTES);
        let start = first.wrapping_add(before);
        for (at, unused) in [(first, before), (start.wrapping_add(len), reserved - before - len)] {
            if unused > 0 {
                // SAFETY: whole pages of the mapping that was just made, on either side of what is kept.
                let _ = unsafe { rustix::mm::munmap(at.cast(), unused) };
            }
        }
        let start = NonNull::new(start).expect("a mapping is not at address 0");
        let pages = HugePages { start, len };
        crate::prefer_huge_pages(&pages);
        Some(pages)
    }
}

impl Deref for HugePages {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is this long, readable, zeroed when new, and lives as long as this value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for HugePages {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; it is borrowed mutably as a whole.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // SAFETY: this value made the mapping and no reference into it exists.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
