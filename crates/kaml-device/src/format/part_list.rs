//! The list of parts at the end of the checkpoint image of an index: which keys each part has, and where it is.
//!
//! Lives here:       the bytes of the list, checked decoding, finding the part of a key.
//! Lives elsewhere:  the parts (`kaml-index`, `kaml-ordered`), reading one of them (`flash_index`).
//! Implements:       docs/formats/part-list.md.

use super::crc32c_append;
use super::root::Stream;
use std::mem::offset_of;
use std::ops::Range;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Before the entries.
///
/// | offset | bytes | field      | meaning                                                |
/// |-------:|------:|------------|--------------------------------------------------------|
/// |      0 |     4 | `magic`    | `"KPL1"`                                               |
/// |      4 |     2 | `version`  | 1                                                      |
/// |      6 |     2 | `reserved` | zero when written, refused when not zero               |
/// |      8 |     4 | `count`    | entries                                                |
/// |     12 |     4 | `crc32c`   | over all bytes of the stream before the list           |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    version: U16,
    reserved: U16,
    count: U32,
    crc32c: U32,
}

/// A part of the image.
///
/// | offset | bytes | field    | meaning                                                                       |
/// |-------:|------:|----------|-------------------------------------------------------------------------------|
/// |      0 |     8 | `first`  | the place of the first key that the part can have                             |
/// |      8 |     8 | `offset` | of the part in the stream; it ends where the next one, or the list, begins    |
/// |     16 |     4 | `crc32c` | over the part                                                                 |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Entry {
    first: U64,
    offset: U64,
    crc32c: U32,
}

const HEAD_BYTES: usize = size_of::<Head>();
const ENTRY_BYTES: usize = size_of::<Entry>();
const MAGIC: [u8; 4] = *b"KPL1";
const VERSION: u16 = 1;

const _: () = {
    assert!(HEAD_BYTES == 16 && offset_of!(Head, count) == 8 && offset_of!(Head, crc32c) == 12);
    assert!(ENTRY_BYTES == 20 && offset_of!(Entry, offset) == 8 && offset_of!(Entry, crc32c) == 16);
};

/// Why a list was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadList {
    #[error("the list of parts is cut short")]
    Short,
    #[error("the list of parts begins with {0:02x?}")]
    Magic([u8; 4]),
    #[error("the list of parts has version {0}; this is version {VERSION}")]
    Version(u16),
    #[error("the list of parts does not match the checksum of its image")]
    Checksum,
    #[error("field {0} of the list of parts is impossible")]
    Field(&'static str),
    #[error("part {0} of the list of parts is impossible")]
    Part(usize),
}

/// Bytes of a list of so many parts.
pub(crate) fn list_bytes(parts: u64) -> u64 {
    HEAD_BYTES as u64 + parts * ENTRY_BYTES as u64
}

/// The parts of an image that is being written.
#[derive(Debug, Default)]
pub(crate) struct PartListWriter {
    entries: Vec<u8>,
}

impl PartListWriter {
    /// Adds the next part, which begins at a byte of the stream.
    pub(crate) fn push(&mut self, first: u64, offset: u64, part: &[u8]) {
        let entry = Entry { first: first.into(), offset: offset.into(), crc32c: kaml_crc::crc32c(part).into() };
        self.entries.extend_from_slice(entry.as_bytes());
    }

    /// Appends the list to what is before it, whose checksum is `crc32c`; how many bytes it has.
    pub(crate) fn finish(self, crc32c: u32, out: &mut Vec<u8>) -> u32 {
        let count = (self.entries.len() / ENTRY_BYTES) as u32;
        let head = Head {
            magic: MAGIC,
            version: VERSION.into(),
            reserved: U16::ZERO,
            count: count.into(),
            crc32c: crc32c.into(),
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&self.entries);
        (HEAD_BYTES + self.entries.len()) as u32
    }
}

/// The parts of an image that is on flash.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PartList {
    firsts: Vec<u64>,
    /// Where each begins, and where the list does.
    offsets: Vec<u64>,
    crc32cs: Vec<u32>,
}

impl PartList {
    /// The list that these last bytes of a stream are.
    pub(crate) fn decode(bytes: &[u8], stream: &Stream) -> Result<PartList, BadList> {
        let (head, entries) = Head::read_from_prefix(bytes).map_err(|_| BadList::Short)?;
        if head.magic != MAGIC {
            return Err(BadList::Magic(head.magic));
        }
        if head.version.get() != VERSION {
            return Err(BadList::Version(head.version.get()));
        }
        if crc32c_append(head.crc32c.get(), bytes) != stream.crc32c {
            return Err(BadList::Checksum);
        }
        if head.reserved != U16::ZERO {
            return Err(BadList::Field("reserved"));
        }
        let entries = <[Entry]>::ref_from_bytes(entries).map_err(|_| BadList::Short)?;
        if entries.len() != head.count.get() as usize || entries.is_empty() {
            return Err(BadList::Field("count"));
        }
        let end = stream.bytes.checked_sub(bytes.len() as u64).ok_or(BadList::Short)?;
        let mut list = PartList { firsts: Vec::new(), offsets: Vec::new(), crc32cs: Vec::new() };
        for (part, entry) in entries.iter().enumerate() {
            let (first, offset) = (entry.first.get(), entry.offset.get());
            let is_next = list.offsets.last().is_none_or(|last| *last < offset);
            let is_above = list.firsts.last().map_or(first == 0, |last| *last <= first);
            if !is_next || !is_above || offset >= end {
                return Err(BadList::Part(part));
            }
            list.firsts.push(first);
            list.offsets.push(offset);
            list.crc32cs.push(entry.crc32c.get());
        }
        list.offsets.push(end);
        Ok(list)
    }

    /// The parts of which one has a key with this place, if any has it. There are several only if the order of the places does not decide
    /// between them.
    pub(crate) fn candidates(&self, place: u64) -> Range<usize> {
        let end = self.firsts.partition_point(|first| *first <= place);
        let begin = self.firsts.partition_point(|first| *first < place).saturating_sub(1);
        begin..end
    }

    /// Where a part is in the stream, and its checksum.
    pub(crate) fn extent(&self, part: usize) -> (Range<u64>, u32) {
        (self.offsets[part]..self.offsets[part + 1], self.crc32cs[part])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream_of(bytes: &[u8]) -> Stream {
        Stream { bytes: bytes.len() as u64, crc32c: kaml_crc::crc32c(bytes), ..Stream::default() }
    }

    fn image(firsts: &[u64]) -> (Vec<u8>, u32) {
        let (mut bytes, mut list) = (b"times".to_vec(), PartListWriter::default());
        for first in firsts {
            let part = first.to_le_bytes();
            list.push(*first, bytes.len() as u64, &part);
            bytes.extend_from_slice(&part);
        }
        let crc32c = kaml_crc::crc32c(&bytes);
        let len = list.finish(crc32c, &mut bytes);
        (bytes, len)
    }

    /// Goal:   the format does not drift.
    /// Method: a list of two parts, byte by byte, its checksums too.
    #[test]
    fn golden_list() {
        let (bytes, len) = image(&[0, 0x0102]);
        assert_eq!(u64::from(len), list_bytes(2));
        let mut wanted = b"KPL1\x01\0\0\0\x02\0\0\0".to_vec();
        wanted.extend(0xe5c7_8ace_u32.to_le_bytes());
        wanted.extend(b"\0\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0");
        wanted.extend(0x8c28_b28a_u32.to_le_bytes());
        wanted.extend(b"\x02\x01\0\0\0\0\0\0\x0d\0\0\0\0\0\0\0");
        wanted.extend(0x7653_640c_u32.to_le_bytes());
        assert_eq!(bytes[21..], wanted);
    }

    /// Goal:   the part of a key is found, and several ones only where places cannot decide.
    /// Method: a list with equal places.
    #[test]
    fn parts_are_found() {
        let (bytes, len) = image(&[0, 10, 10, 10, 20]);
        let list = PartList::decode(&bytes[bytes.len() - len as usize..], &stream_of(&bytes)).unwrap();
        for (place, candidates) in [(0, 0..1), (9, 0..1), (10, 0..4), (11, 3..4), (20, 3..5), (u64::MAX, 4..5)] {
            assert_eq!(list.candidates(place), candidates, "{place}");
        }
        for (part, first) in [0u64, 10, 10, 10, 20].into_iter().enumerate() {
            let (range, crc32c) = list.extent(part);
            let part = &bytes[range.start as usize..range.end as usize];
            assert_eq!((part, crc32c), (&first.to_le_bytes()[..], kaml_crc::crc32c(part)));
        }
    }

    proptest! {
        /// Goal:   a damaged list is refused, and a list of another image.
        /// Method: flipped bits, cut lists, lists whose checksum is right but whose fields are not.
        #[test]
        fn damaged_lists_are_refused(
            firsts in prop::collection::vec(any::<u64>(), 1..9),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
            is_checksummed: bool,
        ) {
            let (mut bytes, len) = image(&firsts);
            let list_at = bytes.len() - len as usize;
            let stream = stream_of(&bytes);
            let is_right = firsts[0] == 0 && firsts.is_sorted();
            prop_assert_eq!(PartList::decode(&bytes[list_at..], &stream).is_ok(), is_right);
            let at = list_at + at.index(len as usize);
            prop_assert!(PartList::decode(&bytes[list_at..at], &stream).is_err());
            bytes[at] ^= 1 << bit;
            if is_checksummed {
                // No panic, whatever it is.
                if let Ok(list) = PartList::decode(&bytes[list_at..], &stream_of(&bytes)) {
                    for part in list.candidates(firsts[0]) {
                        prop_assert!(list.extent(part).0.end <= list_at as u64);
                    }
                }
            } else {
                prop_assert!(PartList::decode(&bytes[list_at..], &stream).is_err());
            }
        }
    }
}
