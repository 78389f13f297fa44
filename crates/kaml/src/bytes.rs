//! A value in the memory that it was read into, so a large one need not be copied out of it.
//!
//! Lives here:       the type that queues and [`crate::Device::get_bytes`] answer with.
//! Lives elsewhere:  which values are copied and which are not (`queue`, `driver`).

use kaml_flash::AlignedBuf;
use std::fmt;
use std::ops::{Deref, Range};

/// Longer values are not copied out of the memory that they were read into.
pub(crate) const COPIED_BYTES_MAX: usize = 64 << 10;

/// A value that was read. [`crate::AsyncQueue::recycle`] and [`crate::Device::get_bytes`] take its memory for the next one.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions, Bytes};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let films = device.create_namespace("films", &NamespaceOptions::default())?;
/// device.put(films, 1u64, &[7; 100_000])?;
/// let film = device.get_bytes(films, 1u64, Bytes::default())?.unwrap_or_default();
/// assert_eq!(film.len(), 100_000);
/// let next = device.get_bytes(films, 2u64, film)?; // its memory is used again
/// assert!(next.is_none());
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Default)]
pub struct Bytes {
    memory: Memory,
    /// Where in the memory they are.
    range: Range<usize>,
}

enum Memory {
    Plain(Vec<u8>),
    /// What was read of the medium: a record, and perhaps more.
    Read(AlignedBuf),
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::Plain(Vec::new())
    }
}

impl Bytes {
    /// A part of what was read.
    pub(crate) fn of_read(buf: AlignedBuf, range: Range<usize>) -> Bytes {
        Bytes { memory: Memory::Read(buf), range }
    }

    /// The buffer that they were read into, if they are still in it.
    pub(crate) fn into_read(self) -> Option<AlignedBuf> {
        match self.memory {
            Memory::Read(buf) => Some(buf),
            Memory::Plain(_) => None,
        }
    }

    /// Their memory: a vector, whatever it holds, and a buffer for reading if there is one.
    pub(crate) fn into_memory(self) -> (Vec<u8>, Option<AlignedBuf>) {
        match self.memory {
            Memory::Plain(bytes) => (bytes, None),
            Memory::Read(buf) => (Vec::new(), Some(buf)),
        }
    }

    /// Keeps the first `len` bytes at most.
    pub fn truncate(&mut self, len: usize) {
        self.range.end = self.range.end.min(self.range.start.saturating_add(len));
    }

    /// As a vector: copied if they are in the memory of a read.
    pub fn into_vec(self) -> Vec<u8> {
        match self.memory {
            Memory::Plain(mut bytes) => {
                bytes.truncate(self.range.end);
                bytes
            }
            Memory::Read(buf) => buf[self.range].to_vec(),
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes { range: 0..bytes.len(), memory: Memory::Plain(bytes) }
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Plain(bytes) => &bytes[self.range.clone()],
            Memory::Read(buf) => &buf[self.range.clone()],
        }
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        **self == **other
    }
}

impl PartialEq<Vec<u8>> for Bytes {
    fn eq(&self, other: &Vec<u8>) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   bytes are the same wherever they are, cut or not.
    /// Method: a vector, and the same in the middle of a buffer.
    #[test]
    fn bytes_are_bytes() {
        let buf = AlignedBuf::copy_of(b"..value..");
        for mut bytes in [Bytes::from(b"value".to_vec()), Bytes::of_read(buf, 2..7)] {
            assert_eq!(bytes, b"value".to_vec());
            bytes.truncate(9);
            assert_eq!(bytes.len(), 5);
            bytes.truncate(3);
            assert_eq!(&*bytes, b"val");
            assert_eq!(bytes.into_vec(), b"val");
        }
        assert_eq!(Bytes::default(), vec![]);
    }
}
