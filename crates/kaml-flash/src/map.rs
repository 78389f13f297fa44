//! The commit ring as shared memory: what is stored here outlives the process, not the power.
//!
//! Lives here:       one shared mapping of a file's range.
//! May be called by: `file`, for `Durability::Process`.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
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
