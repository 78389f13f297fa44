//! A record: what stands in the commit ring and, at a chunk boundary, in pages.
//!
//! Lives here:       the header, its checks.
//! Implements:       paper:KAML IV.B (records in chunks); docs/formats/record.md.

use super::version::VersionStamp;
use kaml_index::Key;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Stands before each value.
///
/// | offset | bytes | field        | meaning                                                          |
/// |-------:|------:|--------------|------------------------------------------------------------------|
/// |      0 |     4 | `header_crc` | CRC32C over bytes 4..40                                          |
/// |      4 |     4 | `value_crc`  | CRC32C over the value                                            |
/// |      8 |     4 | `namespace`  | the namespace; 0 is never used                                   |
/// |     12 |     4 | `value_len`  | bytes of the value                                               |
/// |     16 |     8 | `tag`        | bits 0..48 sequence, 48..56 key length (1..=16), 56..64 the kind |
/// |     24 |    16 | `key`        | the key, zero-padded                                             |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RecordHeader {
    header_crc: U32,
    value_crc: U32,
    namespace: U32,
    value_len: U32,
    tag: U64,
    key: [u8; 16],
}

const _: () = {
    assert!(size_of::<RecordHeader>() == RecordHeader::BYTES);
    assert!(std::mem::offset_of!(RecordHeader, tag) == 16 && std::mem::offset_of!(RecordHeader, key) == 24);
};

/// What a record says about its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordKind {
    /// The value follows.
    Value,
    /// The key is deleted; no value. Only in the ring.
    Tombstone,
    /// The record is already in its pages; its chunk number (8 bytes) follows in place of the value. Only in the ring.
    Mapping,
    /// A version of a key ([`super::version::VersionStamp`], then the value). Only in the ring.
    Version,
    /// A version that says that the key is deleted; a stamp follows. Only in the ring.
    VersionTombstone,
    /// A command on user versions; a stamp follows, the key is the number it is about. Only in the ring.
    VersionCommand,
}

impl RecordKind {
    /// Whether it belongs to a versioned namespace.
    pub(crate) fn is_versioned(self) -> bool {
        matches!(self, RecordKind::Version | RecordKind::VersionTombstone | RecordKind::VersionCommand)
    }
}

/// A checked header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) namespace: u32,
    pub(crate) key: Key,
    pub(crate) kind: RecordKind,
    pub(crate) value_len: u32,
    pub(crate) value_crc: u32,
    pub(crate) sequence: u64,
}

impl RecordHeader {
    pub(crate) const BYTES: usize = 40;
    const SEQUENCE_MASK: u64 = (1 << 48) - 1;

    /// The bytes for a record.
    pub(crate) fn encode(record: &Record) -> [u8; Self::BYTES] {
        let kind = match record.kind {
            RecordKind::Value => 1u64,
            RecordKind::Tombstone => 2,
            RecordKind::Mapping => 3,
            RecordKind::Version => 4,
            RecordKind::VersionTombstone => 5,
            RecordKind::VersionCommand => 6,
        };
        let tag = (record.sequence & Self::SEQUENCE_MASK) | (record.key.len() as u64) << 48 | kind << 56;
        let mut header = RecordHeader {
            header_crc: U32::ZERO,
            value_crc: record.value_crc.into(),
            namespace: record.namespace.into(),
            value_len: record.value_len.into(),
            tag: tag.into(),
            key: *record.key.padded(),
        };
        header.header_crc = crc_fast::crc32_iscsi(&header.as_bytes()[4..]).into();
        zerocopy::transmute!(header)
    }

    /// The record that starts at `bytes`, if its header is whole.
    pub(crate) fn check(bytes: &[u8]) -> Option<Record> {
        let (header, _) = RecordHeader::read_from_prefix(bytes).ok()?;
        if crc_fast::crc32_iscsi(&header.as_bytes()[4..]) != header.header_crc.get() {
            return None;
        }
        let tag = header.tag.get();
        let key_len = (tag >> 48) as u8 as usize;
        let kind = match tag >> 56 {
            1 => RecordKind::Value,
            2 => RecordKind::Tombstone,
            3 => RecordKind::Mapping,
            4 => RecordKind::Version,
            5 => RecordKind::VersionTombstone,
            6 => RecordKind::VersionCommand,
            _ => return None,
        };
        if key_len > Key::BYTES_MAX || header.key[key_len..].iter().any(|b| *b != 0) {
            return None;
        }
        Some(Record {
            namespace: header.namespace.get(),
            key: Key::new(&header.key[..key_len]).ok()?,
            kind,
            value_len: header.value_len.get(),
            value_crc: header.value_crc.get(),
            sequence: tag & Self::SEQUENCE_MASK,
        })
    }
}

impl Record {
    /// Bytes of the value (or what stands in its place) behind the header in the ring.
    pub(crate) fn ring_payload_bytes(&self) -> usize {
        match self.kind {
            RecordKind::Value => self.value_len as usize,
            RecordKind::Tombstone => 0,
            RecordKind::Mapping => 8,
            RecordKind::Version => VersionStamp::BYTES + self.value_len as usize,
            RecordKind::VersionTombstone | RecordKind::VersionCommand => VersionStamp::BYTES,
        }
    }

    /// Of those, the first ones that have no checksum of their own: the frame's covers them.
    pub(crate) fn ring_head_bytes(&self) -> usize {
        match self.kind {
            RecordKind::Value | RecordKind::Tombstone => 0,
            RecordKind::Mapping => 8,
            RecordKind::Version | RecordKind::VersionTombstone | RecordKind::VersionCommand => VersionStamp::BYTES,
        }
    }

    /// Bytes of the record in pages.
    pub(crate) fn page_bytes(&self) -> usize {
        RecordHeader::BYTES + self.value_len as usize
    }
}

/// Records in a ring frame start at multiples of this.
pub(crate) const RING_ALIGN: usize = 8;
