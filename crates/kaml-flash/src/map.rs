//! Memory from the system itself: the commit ring as shared memory, and huge pages.
//!
//! Lives here:       one shared mapping of a file's range, where what is stored outlives the process, not the power; mappings of
//!                   huge pages.
//! May be called by: `file`, for `Durability::Process`; `buffer`.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A shared, writable mapping. Methods take `&mut self` to write, so a lock around it orders its users.
pub(crate) struct SharedMap {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value alone and is valid from any thread.
unsafe impl Send for SharedMap {}

impl SharedMap {
    /// Maps `len` bytes at `offset`, which the caller keeps within the file: the lock on the device holds off every
    /// other user, and a file shortened behind that lock ends the process with `SIGBUS` as it would any mapping.
    pub(crate) fn new(file: &File, offset: u64, len: usize) -> Result<Self, Errno> {
        assert!(len > 0, "an empty mapping");
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address nobody uses; nothing else in this process knows it.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, offset)? };
        let start = NonNull::new(start.cast()).expect("a mapping is not at address 0");
        Ok(Self { start, len })
    }

    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: the range lies in the mapping (just checked); `bytes` cannot overlap it, because no reference into
        // the mapping is ever handed out.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len()) }
    }

    pub(crate) fn read(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(at), into.as_mut_ptr(), into.len()) }
    }

    fn check(&self, at: usize, len: usize) {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} leave the mapping of {}", self.len);
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: this value made the mapping and no reference into it exists. Unmapping cannot fail for a range that
        // was mapped.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Zeroed memory in whole huge pages, if the system has any to give. What an allocator hands out has mostly been touched before, and
/// stays in the small pages that it was touched in.
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

    /// At least `len` bytes.
    ///
    /// # Panics
    /// If the system has no memory left, or `len` is 0.
    pub(crate) fn new(len: usize) -> HugePages {
        assert!(len > 0, "an empty mapping");
        let len = len.next_multiple_of(Self::BYTES);
        let (prot, reserved) = (ProtFlags::READ | ProtFlags::WRITE, len + Self::BYTES);
        // SAFETY: the kernel chooses an address nobody uses; nothing else in this process knows it.
        let mapped = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), reserved, prot, MapFlags::PRIVATE) };
        let first: *mut u8 = mapped.expect("the system has no memory left").cast();
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
        pages
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
