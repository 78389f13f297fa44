//! Memory that a queue keeps for its next reads: fresh memory costs more than what is copied into it.
//!
//! Lives here:       read buffers, which values remain in them, how much is kept.
//! May be called by: the queue.

use crate::Bytes;
use crate::bytes::COPIED_BYTES_MAX;
use kaml_flash::AlignedBuf;
use std::ops::Range;

/// Buffers of records that fit in a few pages: how many are kept.
const SMALL_COUNT_MAX: usize = 256;
/// Bytes of longer buffers that are kept: a few of the longest records.
const LARGE_BYTES_MAX: usize = 32 << 20;

#[derive(Default)]
pub(super) struct Buffers {
    small: Vec<AlignedBuf>,
    large: Vec<AlignedBuf>,
    large_bytes: usize,
}

impl Buffers {
    /// A buffer of this many bytes, whatever they are.
    pub(super) fn take(&mut self, bytes: usize) -> AlignedBuf {
        let kept = if bytes <= COPIED_BYTES_MAX { self.small.pop() } else { self.take_large() };
        let kept = kept.filter(|buf| buf.capacity() >= bytes);
        let mut buf = kept.unwrap_or_else(|| AlignedBuf::for_transfers(bytes + AlignedBuf::ALIGN));
        buf.set_len(bytes);
        buf
    }

    fn take_large(&mut self) -> Option<AlignedBuf> {
        let buf = self.large.pop()?;
        self.large_bytes -= buf.capacity();
        Some(buf)
    }

    /// Takes a buffer back.
    pub(super) fn give(&mut self, buf: AlignedBuf) {
        let bytes = buf.capacity();
        if bytes <= COPIED_BYTES_MAX + AlignedBuf::ALIGN {
            if self.small.len() < SMALL_COUNT_MAX {
                self.small.push(buf);
            }
        } else if self.large_bytes + bytes <= LARGE_BYTES_MAX {
            self.large_bytes += bytes;
            self.large.push(buf);
        }
    }

    /// A value that was read: a small one is copied, a large one is not moved until its memory is released.
    pub(super) fn value(&mut self, buf: AlignedBuf, range: Range<usize>) -> Bytes {
        if range.len() > COPIED_BYTES_MAX {
            return Bytes::of_read(buf, range);
        }
        let value = buf[range].to_vec();
        self.give(buf);
        value.into()
    }
}
