//! A record: what is in the commit ring and, at a chunk boundary, in pages.
//!
//! Lives here:       the header, its checks; the bytes of a long key, after the value.
//! Implements:       paper:KAML IV.B (records in chunks); docs/formats/record.md.

use super::version::VersionStamp;
use kaml_index::{FullKey, KEY_BYTES_MAX, Key, KeyBuf};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Stands before each value.
///
/// | offset | bytes | field        | meaning                                                          |
/// |-------:|------:|--------------|------------------------------------------------------------------|
/// |      0 |     4 | `header_crc` | CRC32C over bytes 4..40                                          |
/// |      4 |     4 | `value_crc`  | CRC32C over these bytes                                          |
/// |      8 |     4 | `namespace`  | the namespace; 0 is never used                                   |
/// |     12 |     4 | `value_len`  | bytes of the value, and of the suffix after it if there is one   |
/// |     16 |     8 | `tag`        | bits 0..48 sequence, 48..56 key length (1..=16, 17: a digest), 56..64 the kind |
/// |     24 |    16 | `key`        | the key, zero-padded; of one above 16 bytes its digest           |
///
/// If the key is a digest, a suffix follows the value: the bytes of the key, then their number (`u16`). In a record that expires, the time of
/// that comes last: milliseconds since 1970 (`u64`).
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

/// What a record contains about its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordKind {
    /// The value follows.
    Value,
    /// The key is deleted; no value, but an ordered index needs the suffix. Only in the ring.
    Tombstone,
    /// The record is already in its pages; its chunk number (8 bytes) follows in place of the value, and the suffix if an ordered index
    /// needs it: the sequence is then the number of its bytes, and else zero. Only in the ring.
    Mapping,
    /// A version of a key ([`super::version::VersionStamp`], then the value). Only in the ring.
    Version,
    /// A version that states that the key is deleted; a stamp follows. Only in the ring.
    VersionTombstone,
    /// A command on user versions; a stamp follows, the key is the number it is about. Only in the ring.
    VersionCommand,
    /// The keys of a range are deleted; the range follows ([`super::range::KeyRange`]), the key is [`RANGE_KEY`]. Only in the ring.
    RangeTombstone,
    /// As `Value`, of a record that expires: the time of that comes last.
    Expiring,
    /// As `Mapping`, of a record that expires: the time of that comes last. Only in the ring.
    ExpiringMapping,
    /// A version whose value is a record of the namespace of large values; a stamp and the number of that record (8 bytes) follow. Only in
    /// the ring, after the mapping of that record.
    LargeVersion,
}

/// What stands in the place of a key where a record is about a range of keys.
pub(crate) const RANGE_KEY: Key = Key::of_digest([0; 16]);

impl RecordKind {
    /// Whether it belongs to a versioned namespace.
    pub(crate) fn is_versioned(self) -> bool {
        matches!(
            self,
            RecordKind::Version | RecordKind::VersionTombstone | RecordKind::VersionCommand | RecordKind::LargeVersion
        )
    }

    /// Whether it is a record as pages have it, with its value.
    #[inline]
    pub(crate) fn is_value(self) -> bool {
        matches!(self, RecordKind::Value | RecordKind::Expiring)
    }

    /// Whether it names the place of a record.
    pub(crate) fn is_mapping(self) -> bool {
        matches!(self, RecordKind::Mapping | RecordKind::ExpiringMapping)
    }

    /// The kind of a mapping of such a record.
    pub(crate) fn mapping(self) -> RecordKind {
        if self == RecordKind::Expiring { RecordKind::ExpiringMapping } else { RecordKind::Mapping }
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
            RecordKind::RangeTombstone => 7,
            RecordKind::Expiring => 8,
            RecordKind::ExpiringMapping => 9,
            RecordKind::LargeVersion => 10,
        };
        let (key, key_code) = record.key.stored();
        let tag = (record.sequence & Self::SEQUENCE_MASK) | u64::from(key_code) << 48 | kind << 56;
        let mut header = RecordHeader {
            header_crc: U32::ZERO,
            value_crc: record.value_crc.into(),
            namespace: record.namespace.into(),
            value_len: record.value_len.into(),
            tag: tag.into(),
            key: *key,
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
        let key_code = (tag >> 48) as u8;
        let kind = match tag >> 56 {
            1 => RecordKind::Value,
            2 => RecordKind::Tombstone,
            3 => RecordKind::Mapping,
            4 => RecordKind::Version,
            5 => RecordKind::VersionTombstone,
            6 => RecordKind::VersionCommand,
            7 => RecordKind::RangeTombstone,
            8 => RecordKind::Expiring,
            9 => RecordKind::ExpiringMapping,
            10 => RecordKind::LargeVersion,
            _ => return None,
        };
        Some(Record {
            namespace: header.namespace.get(),
            key: Key::of_stored(&header.key, key_code)?,
            kind,
            value_len: header.value_len.get(),
            value_crc: header.value_crc.get(),
            sequence: tag & Self::SEQUENCE_MASK,
        })
    }
}

impl Record {
    /// Bytes of the value (or what is in its place) after the header in the ring.
    pub(crate) fn ring_payload_bytes(&self) -> usize {
        match self.kind {
            RecordKind::Value | RecordKind::Expiring => self.value_len as usize,
            RecordKind::Tombstone | RecordKind::RangeTombstone => self.value_len as usize,
            RecordKind::Mapping => MAPPING_BYTES + self.mapping_suffix_bytes(),
            RecordKind::ExpiringMapping => MAPPING_BYTES + EXPIRY_BYTES + self.mapping_suffix_bytes(),
            RecordKind::Version => VersionStamp::BYTES + self.value_len as usize,
            RecordKind::VersionTombstone | RecordKind::VersionCommand => VersionStamp::BYTES,
            RecordKind::LargeVersion => VersionStamp::BYTES + LARGE_NUMBER_BYTES,
        }
    }

    /// The first of those have no checksum of their own: the frame's covers them.
    pub(crate) fn ring_head_bytes(&self) -> usize {
        match self.kind {
            RecordKind::Value | RecordKind::Expiring => 0,
            RecordKind::Tombstone
            | RecordKind::Mapping
            | RecordKind::ExpiringMapping
            | RecordKind::RangeTombstone
            | RecordKind::LargeVersion => self.ring_payload_bytes(),
            RecordKind::Version | RecordKind::VersionTombstone | RecordKind::VersionCommand => VersionStamp::BYTES,
        }
    }

    /// Bytes of the record in pages.
    pub(crate) fn page_bytes(&self) -> usize {
        RecordHeader::BYTES + self.value_len as usize
    }

    fn mapping_suffix_bytes(&self) -> usize {
        let is_long = self.key.is_digest() && self.sequence <= (KEY_BYTES_MAX + SUFFIX_LEN_BYTES) as u64;
        if is_long { self.sequence as usize } else { 0 }
    }

    /// The key, whose bytes are at the end of what is stored if it is a digest; nothing if no such key can be there.
    pub(crate) fn full_key<'a>(&self, stored: &'a [u8]) -> Option<FullKey<'a>> {
        if !self.key.is_digest() {
            return Some(self.key.into());
        }
        let stored = &stored[..stored.len().checked_sub(self.expiry_bytes())?];
        let (rest, len) = stored.split_last_chunk::<SUFFIX_LEN_BYTES>()?;
        let len = usize::from(u16::from_le_bytes(*len));
        let bytes = &rest[rest.len().checked_sub(len)?..];
        (Key::BYTES_MAX < len && len <= KEY_BYTES_MAX).then(|| FullKey::long(self.key, bytes))
    }

    /// Bytes of the value that a caller gave, among those that are stored.
    pub(crate) fn own_value_bytes(&self, stored: &[u8]) -> Option<usize> {
        let suffix = suffix_bytes(&self.full_key(stored)?);
        stored.len().checked_sub(suffix + self.expiry_bytes())
    }

    /// Bytes of the time at which it expires.
    #[inline]
    pub(crate) fn expiry_bytes(&self) -> usize {
        if matches!(self.kind, RecordKind::Expiring | RecordKind::ExpiringMapping) { EXPIRY_BYTES } else { 0 }
    }

    /// When it expires, milliseconds since 1970; 0 for never. `stored` is what follows the header, in the ring or in pages. Nothing if the
    /// time cannot be there, or is none.
    pub(crate) fn expires(&self, stored: &[u8]) -> Option<u64> {
        if self.expiry_bytes() == 0 {
            return Some(0);
        }
        let time = u64::from_le_bytes(*stored.last_chunk()?);
        (1..=EXPIRES_MAX).contains(&time).then_some(time)
    }
}

/// The bytes of a key that is a digest, from what is stored of its record; nothing if no key is there.
pub fn key_of_stored(digest: &Key, stored: &[u8]) -> Option<KeyBuf> {
    let record =
        Record { namespace: 0, key: *digest, kind: RecordKind::Value, value_len: 0, value_crc: 0, sequence: 0 };
    record.full_key(stored).map(|key| key.to_buf())
}

/// Bytes of the payload of a mapping record, without a suffix.
pub(crate) const MAPPING_BYTES: usize = 8;

/// Bytes of the number of a large value, after the stamp of its version.
pub(crate) const LARGE_NUMBER_BYTES: usize = 8;

/// Bytes of the time at which a record expires.
pub(crate) const EXPIRY_BYTES: usize = 8;

/// The last time at which a record can expire, in the year 10889: the journal has 48 bits for it.
pub(crate) const EXPIRES_MAX: u64 = (1 << 48) - 1;

const SUFFIX_LEN_BYTES: usize = 2;

/// Bytes of what follows the value of a record of this key.
pub(crate) fn suffix_bytes(key: &FullKey<'_>) -> usize {
    if key.long_bytes().is_empty() { 0 } else { key.long_bytes().len() + SUFFIX_LEN_BYTES }
}

/// What follows the value of a record of this key.
pub(crate) fn suffix(key: &FullKey<'_>) -> Vec<u8> {
    match key.long_bytes() {
        [] => Vec::new(),
        bytes => [bytes, &(bytes.len() as u16).to_le_bytes()].concat(),
    }
}

/// What follows the value of a record of this key that expires then; 0 for never.
pub(crate) fn trailer(expires: u64, key: &FullKey<'_>) -> Vec<u8> {
    let mut bytes = suffix(key);
    if expires != 0 {
        bytes.extend_from_slice(&expires.to_le_bytes());
    }
    bytes
}

/// Records in a ring frame start at multiples of this.
pub(crate) const RING_ALIGN: usize = 8;
