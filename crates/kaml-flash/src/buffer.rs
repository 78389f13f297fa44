//! Buffers aligned for direct I/O.
//!
//! Lives here:       allocation at 4 KiB alignment.
//! May be called by: everyone who moves bytes to or from a medium.

use std::ops::{Deref, DerefMut};

/// What the buffer is made of: the alignment that every kernel accepts for `O_DIRECT`.
#[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable)]
#[repr(C, align(4096))]
struct Frame([u8; AlignedBuf::ALIGN]);

/// What [`AlignedBuf::prefetch`] fetches: a record of 1 KiB and its header. The processor follows longer ones by itself.
pub(crate) const PREFETCH_BYTES: usize = 17 * 64;

/// Bytes at 4 KiB alignment, zero-filled when new. The length may be anything up to the capacity.
pub struct AlignedBuf {
    frames: Box<[Frame]>,
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
        Self { frames, start: 0, len }
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
        self.frames.len() * Self::ALIGN
    }

    /// Shows the first `len` bytes; what was hidden keeps its content.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        self.show(0, len);
    }

    /// Asks the processor to fetch the first bytes shown, which the medium has just written past its caches.
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
        &zerocopy::IntoBytes::as_bytes(&*self.frames)[self.start..][..self.len]
    }
}

impl DerefMut for AlignedBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut zerocopy::IntoBytes::as_mut_bytes(&mut *self.frames)[self.start..][..self.len]
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}
