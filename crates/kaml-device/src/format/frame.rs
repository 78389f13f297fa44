//! A frame: one durable write of the commit ring, holding whole Puts.
//!
//! Lives here:       the header and its checks.
//! Implements:       paper:KAML IV.D phase 1; docs/formats/ring.md.

use super::crc32c_append;
use super::record::{RING_ALIGN, Record, RecordHeader, RecordKind};
use crate::secret::Sealer;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Stands at the start of each frame; records follow, each at a multiple of 8 bytes.
///
/// | offset | bytes | field          | meaning                                                                |
/// |-------:|------:|----------------|------------------------------------------------------------------------|
/// |      0 |     4 | `magic`        | `"KRF2"`; before devices had a secret `"KRF1"`                         |
/// |      4 |     4 | `header_crc`   | CRC32C over bytes 8..80                                                |
/// |      8 |    16 | `uuid`         | the device's; a frame of another device never counts                   |
/// |     24 |     8 | `epoch`        | raised at each open; a frame of an earlier life never counts           |
/// |     32 |     8 | `lsn`          | position in the endless ring; its place is `lsn % ring_bytes`          |
/// |     40 |     8 | `previous_end` | `lsn` after the frame before; differs from `lsn` where the ring wraps |
/// |     48 |     4 | `payload_len`  | bytes of records                                                       |
/// |     52 |     4 | `record_count` | records                                                                |
/// |     56 |     4 | `records_crc`  | CRC32C over all record headers, mapping payloads and stamps, in order  |
/// |     60 |     8 | `committed_end`| `lsn` after the last frame that was committed when this one was begun |
/// |     68 |     8 | `tag`          | follows from the secret and bytes 24..68; in `"KRF1"` zero             |
/// |     76 |     4 | `reserved`     | zero when written, refused when not zero                               |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct FrameHeader {
    magic: [u8; 4],
    header_crc: U32,
    uuid: [u8; 16],
    epoch: U64,
    lsn: U64,
    previous_end: U64,
    payload_len: U32,
    record_count: U32,
    records_crc: U32,
    committed_end: U64,
    tag: U64,
    reserved: [u8; 4],
}

const _: () = {
    assert!(size_of::<FrameHeader>() == FrameHeader::BYTES);
    assert!(std::mem::offset_of!(FrameHeader, lsn) == 32 && std::mem::offset_of!(FrameHeader, tag) == 68);
};

/// A checked header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    pub(crate) epoch: u64,
    pub(crate) lsn: u64,
    pub(crate) previous_end: u64,
    pub(crate) payload_len: u32,
    pub(crate) record_count: u32,
    pub(crate) records_crc: u32,
    pub(crate) committed_end: u64,
}

/// What changes the payload of a frame so that old content of the ring cannot pass for a part of it: the first eight bytes of each of
/// its sectors but the first are combined with a number that nobody can foretell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mask(u64);

impl Mask {
    /// Masks the payload of a frame, or takes the mask off.
    pub(crate) fn apply(self, payload: &mut [u8], sector_bytes: u32) {
        let sector = sector_bytes as usize;
        for at in (sector - FrameHeader::BYTES..payload.len()).step_by(sector) {
            let Some(word) = payload[at..].first_chunk_mut() else { return };
            *word = (u64::from_le_bytes(*word) ^ self.0).to_le_bytes();
        }
    }
}

/// The fields that a tag covers.
const TAGGED: std::ops::Range<usize> = 24..68;

impl FrameHeader {
    pub(crate) const BYTES: usize = 80;
    const MAGIC: [u8; 4] = *b"KRF2";
    /// Before devices had a secret.
    const MAGIC_UNTAGGED: [u8; 4] = *b"KRF1";

    /// The bytes of a header, and what the frame's payload is masked with.
    pub(crate) fn encode(frame: &Frame, uuid: [u8; 16], sealer: &Sealer) -> ([u8; Self::BYTES], Mask) {
        let mut header = FrameHeader {
            magic: Self::MAGIC,
            header_crc: U32::ZERO,
            uuid,
            epoch: frame.epoch.into(),
            lsn: frame.lsn.into(),
            previous_end: frame.previous_end.into(),
            payload_len: frame.payload_len.into(),
            record_count: frame.record_count.into(),
            records_crc: frame.records_crc.into(),
            committed_end: frame.committed_end.into(),
            tag: U64::ZERO,
            reserved: [0; 4],
        };
        let (tag, mask) = sealer.frame(&header.as_bytes()[TAGGED]);
        header.tag = tag.into();
        header.header_crc = kaml_crc::crc32c(&header.as_bytes()[8..]).into();
        (zerocopy::transmute!(header), Mask(mask))
    }

    /// The frame whose header is at `bytes`, if it is whole and of this device, and the mask of its payload. With a sealer, only
    /// what bears its tag counts.
    pub(crate) fn check(bytes: &[u8], uuid: [u8; 16], sealer: Option<&Sealer>) -> Option<(Frame, Option<Mask>)> {
        let (header, _) = FrameHeader::read_from_prefix(bytes).ok()?;
        let is_tagged = match header.magic {
            Self::MAGIC => true,
            Self::MAGIC_UNTAGGED => false,
            _ => return None,
        };
        let whole = header.header_crc.get() == kaml_crc::crc32c(&header.as_bytes()[8..])
            && header.uuid == uuid
            && header.reserved == [0; 4]
            && (is_tagged || header.tag == U64::ZERO);
        if !whole {
            return None;
        }
        let mask = match sealer {
            Some(sealer) => {
                let (tag, mask) = sealer.frame(&header.as_bytes()[TAGGED]);
                if !is_tagged || header.tag.get() != tag {
                    return None;
                }
                Some(Mask(mask))
            }
            None => None,
        };
        let frame = Frame {
            epoch: header.epoch.get(),
            lsn: header.lsn.get(),
            previous_end: header.previous_end.get(),
            payload_len: header.payload_len.get(),
            record_count: header.record_count.get(),
            records_crc: header.records_crc.get(),
            committed_end: header.committed_end.get(),
        };
        Some((frame, mask))
    }
}

impl Frame {
    /// Bytes the frame takes in the ring.
    pub(crate) fn ring_bytes(&self, sector_bytes: u32) -> u64 {
        (FrameHeader::BYTES as u64 + u64::from(self.payload_len)).next_multiple_of(sector_bytes.into())
    }

    /// The records of the frame with their payloads, or nothing unless every byte of it is whole.
    pub(crate) fn records<'a>(&self, payload: &'a [u8]) -> Option<Vec<(Record, &'a [u8])>> {
        let mut records = Vec::new();
        let mut crc = 0;
        let mut at = 0usize;
        for _ in 0..self.record_count {
            let header = payload.get(at..)?;
            let record = RecordHeader::check(header)?;
            let start = at + record.header_bytes();
            let body = payload.get(start..start.checked_add(record.ring_payload_bytes())?)?;
            let (checked, value) =
                payload[at..start + body.len()].split_at(record.header_bytes() + record.ring_head_bytes());
            crc = crc32c_append(crc, checked);
            let has_value = record.kind.is_value() || record.kind == RecordKind::Version;
            if has_value && kaml_crc::crc32c(value) != record.value_crc {
                return None;
            }
            records.push((record, body));
            let end = start + body.len();
            at = end.next_multiple_of(RING_ALIGN);
            // A masked word may begin here.
            if payload.get(end..at)?.iter().any(|byte| *byte != 0) {
                return None;
            }
        }
        (crc == self.records_crc && at == self.payload_len as usize).then_some(records)
    }
}
