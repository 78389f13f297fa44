//! Buffers aligned for direct I/O.
//!
//! Lives here:       allocation at 4 KiB alignment, and in huge pages.
//! May be called by: everyone who moves bytes to or from a medium.

use crate::map::HugePages;
use std::ops::{Deref, DerefMut};

/// What the buffer is made of: the alignment that every kernel accepts for `O_DIRECT`.
#[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable)]
#[repr(C, align(4096))]
struct Frame([u8; AlignedBuf::ALIGN]);

enum Frames {
    Usual(Box<[Frame]>),
    Huge(HugePages),
}

/// What [`AlignedBuf::prefetch`] fetches: a record of 1 KiB and its header. The processor follows longer ones by itself.
pub(crate) const PREFETCH_BYTES: usize = 17 * 64;

/// Bytes at 4 KiB alignment, zero-filled when new. The length may be anything up to the capacity.
pub struct AlignedBuf {
    frames: Frames,
    /// Where the bytes shown begin: not 0 only in what a read of whole sectors brought for one of parts of them.
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// Alignment in bytes of the first byte.
    pub const ALIGN: usize = 4096;

    /// `len` zero bytes; the capacity is `len` rounded up to 4 KiB.
    pub fn zeroed(len: usize) -> Self {
        let count = len.div_ceil(Self::ALIGN);
        let frames = <[Frame] as zerocopy::FromZeros>::new_box_zeroed_with_elems(count)
            .expect("buffer size overflows the address space");
        Self { frames: Frames::Usual(frames), start: 0, len }
    }

    /// As [`AlignedBuf::zeroed`], to be kept for what goes to and from a device in one piece: the kernel looks up a place for each
    /// page, and splits what has too many. What fills at least half of huge pages of 2 MiB lies in such, and the capacity is whole ones.
    /// Where the system refuses huge pages, the buffer lies in small ones.
    pub fn for_transfers(len: usize) -> Self {
        let huge = if len < HugePages::BYTES / 2 { None } else { HugePages::new(len) };
        huge.map_or_else(|| Self::zeroed(len), |pages| Self { frames: Frames::Huge(pages), start: 0, len })
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// How far `set_len` may go.
    #[inline]
    pub fn capacity(&self) -> usize {
        match &self.frames {
            Frames::Usual(frames) => size_of_val(&**frames),
            Frames::Huge(pages) => pages.len(),
        }
    }

    /// Shows the first `len` bytes; what was hidden keeps its content.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        self.show(0, len);
    }

    /// Asks the processor to fetch the first bytes shown, which the medium has just written past its caches.
    #[inline]
    pub fn prefetch(&self) {
        crate::prefetch(&self[..self.len.min(PREFETCH_BYTES)]);
    }

    /// Shows `len` bytes from `start` on, which are aligned only as `start` is.
    pub(crate) fn show(&mut self, start: usize, len: usize) {
        let fits = start.checked_add(len).is_some_and(|end| end <= self.capacity());
        assert!(fits, "{len} bytes from {start} on do not fit a buffer of {}", self.capacity());
        (self.start, self.len) = (start, len);
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        let bytes = match &self.frames {
            Frames::Usual(frames) => zerocopy::IntoBytes::as_bytes(&**frames),
            Frames::Huge(pages) => pages,
        };
        &bytes[self.start..][..self.len]
    }
}

impl DerefMut for AlignedBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = match &mut self.frames {
            Frames::Usual(frames) => zerocopy::IntoBytes::as_mut_bytes(&mut **frames),
            Frames::Huge(pages) => pages,
        };
        &mut bytes[self.start..][..self.len]
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   both kinds of buffers have the room and the zeroes they promise, and keep what is hidden.
    /// Method: lengths around a page and a huge page; bytes written, hidden, and shown again.
    #[test]
    fn buffers_have_the_room_they_promise() {
        for make in [AlignedBuf::zeroed, AlignedBuf::for_transfers] {
            for len in [
                0,
                1,
                4096,
                4097,
                HugePages::BYTES / 2 - 1,
                HugePages::BYTES / 2,
                HugePages::BYTES,
                HugePages::BYTES + 1,
            ] {
                let mut buf = make(len);
                assert!(buf.len() == len && buf.capacity() >= len && buf.iter().all(|byte| *byte == 0), "{buf:?}");
                assert!(buf.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN));
                buf.fill(7);
                buf.set_len(0);
                assert!(buf.is_empty());
                buf.set_len(buf.capacity());
                let (shown, rest) = buf.split_at(len);
                assert!(shown.iter().all(|byte| *byte == 7) && rest.iter().all(|byte| *byte == 0));
            }
        }
    }
}
