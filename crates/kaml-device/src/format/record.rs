//! A record: what is in the commit ring and, at a chunk boundary, in pages.
//!
//! Lives here:       the two forms of a header, their checks; the bytes of a long key, after the value.
//! Implements:       paper:KAML IV.B (records in chunks); docs/formats/record.md.

use super::version::VersionStamp;
use crate::compression::{unpack, unpacked_bytes};
use kaml_index::{FullKey, KEY_BYTES_MAX, Key, KeyBuf};
use std::ops::{Deref, Range};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Values from this size on are programmed before they are committed, and only their place goes through the ring. So are shorter ones that
/// a versioned namespace has no other room for ([`Reader::places_first`](crate::Reader::places_first)).
pub const DIRECT_BYTES: usize = 32 << 10;

/// Precedes each value that has no [`ShortHeader`].
///
/// | offset | bytes | field        | meaning                                                          |
/// |-------:|------:|--------------|------------------------------------------------------------------|
/// |      0 |     4 | `header_crc` | CRC32C over bytes 4..40                                          |
/// |      4 |     4 | `value_crc`  | CRC32C over these bytes                                          |
/// |      8 |     4 | `namespace`  | the namespace, at most [`NAMESPACE_MAX`]; 0 is never used        |
/// |     12 |     4 | `value_len`  | bytes of the value, and of the suffix after it if there is one   |
/// |     16 |     8 | `tag`        | bits 0..48 sequence, 48..56 key length (1..=16, 17: a digest), 56..63 the kind, 63 the value is compressed |
/// |     24 |    16 | `key`        | the key, zero-padded; of one above 16 bytes its digest           |
///
/// If the key is a digest, a suffix follows the value: the bytes of the key, then their number (`u16`). In a record that expires, the time of
/// that comes last: milliseconds since 1970 (`u64`).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LongHeader {
    header_crc: U32,
    value_crc: U32,
    namespace: U32,
    value_len: U32,
    tag: U64,
    key: [u8; 16],
}

/// Precedes the value of a record with a key of at most 16 bytes, of which less than 32 KiB are stored, and is its tombstone in the ring.
///
/// | offset | bytes | field          | meaning                                                                            |
/// |-------:|------:|----------------|------------------------------------------------------------------------------------|
/// |      0 |     4 | `crc`          | CRC32C over the value, combined by XOR with that over bytes 6 to the end of the key |
/// |      4 |     2 | `header_check` | 16 bits of the latter: its lower half XOR its upper half with the bytes swapped    |
/// |      6 |     2 | `value_len`    | bytes of the value, and of the time after it if there is one                       |
/// |      8 |     4 | `namespace`    | the namespace; bit 31 is set, as it never is in the long form                      |
/// |     12 |     6 | `sequence`     | the sequence                                                                       |
/// |     18 |     1 | `kind`         | 1, 2 or 8; bit 7: the value is compressed                                          |
/// |     19 |     1 | `key_len`      | bytes of the key, 1 to 16                                                          |
/// |     20 |       | key            | as many bytes                                                                      |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ShortHeader {
    crc: U32,
    header_check: U16,
    value_len: U16,
    namespace: U32,
    sequence: [u8; 6],
    kind: u8,
    key_len: u8,
}

const _: () = {
    assert!(size_of::<LongHeader>() == LONG_BYTES && size_of::<ShortHeader>() == SHORT_BYTES);
    assert!(std::mem::offset_of!(LongHeader, tag) == 16 && std::mem::offset_of!(LongHeader, key) == 24);
    assert!(std::mem::offset_of!(ShortHeader, value_len) == SHORT_CHECKED_FROM);
    // The form is known before anything else is.
    assert!(std::mem::offset_of!(LongHeader, namespace) == std::mem::offset_of!(ShortHeader, namespace));
    assert!(DIRECT_BYTES <= u16::MAX as usize + 1);
};

const LONG_BYTES: usize = 40;
/// Without the key.
const SHORT_BYTES: usize = 20;
/// What the checksum of a short header is of begins here.
const SHORT_CHECKED_FROM: usize = 6;
/// Of the four bytes of the namespace.
const IS_SHORT: u32 = 1 << 31;
/// Of the byte with the kind.
const IS_PACKED: u8 = 1 << 7;

/// The last number that a namespace can have: the bit above it distinguishes the forms of a header.
pub(crate) const NAMESPACE_MAX: u32 = IS_SHORT - 1;

/// How a header is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// In 40 bytes.
    Long,
    /// In 20 bytes and the key.
    Short,
}

impl Form {
    /// The form of a new record that is put in a frame, of [`RecordKind::Value`], [`RecordKind::Expiring`] or [`RecordKind::Tombstone`], after whose header so many bytes
    /// are stored.
    #[inline]
    pub(crate) fn of(key: &Key, stored_bytes: usize) -> Form {
        if stored_bytes < DIRECT_BYTES && !key.is_digest() { Form::Short } else { Form::Long }
    }

    /// Bytes of the header.
    #[inline]
    pub(crate) fn header_bytes(self, key: &Key) -> usize {
        match self {
            Form::Long => LONG_BYTES,
            Form::Short => SHORT_BYTES + key.len(),
        }
    }
}

/// Bytes of a new record with its header.
#[inline]
pub(crate) fn record_bytes(key: &Key, stored_bytes: usize) -> usize {
    Form::of(key, stored_bytes).header_bytes(key) + stored_bytes
}

/// The bytes of a header.
#[derive(Clone, Copy)]
pub(crate) struct HeaderBytes {
    bytes: [u8; LONG_BYTES],
    len: u8,
}

impl Deref for HeaderBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Encodes and checks headers.
pub(crate) struct RecordHeader;

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

    /// Whether its header can be short.
    #[inline]
    fn may_be_short(self) -> bool {
        matches!(self, RecordKind::Value | RecordKind::Tombstone | RecordKind::Expiring)
    }

    #[inline]
    fn code(self) -> u8 {
        match self {
            RecordKind::Value => 1,
            RecordKind::Tombstone => 2,
            RecordKind::Mapping => 3,
            RecordKind::Version => 4,
            RecordKind::VersionTombstone => 5,
            RecordKind::VersionCommand => 6,
            RecordKind::RangeTombstone => 7,
            RecordKind::Expiring => 8,
            RecordKind::ExpiringMapping => 9,
            RecordKind::LargeVersion => 10,
        }
    }

    fn of_code(code: u8) -> Option<RecordKind> {
        Some(match code {
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
        })
    }

    /// The kind, and whether the value is compressed.
    #[inline]
    fn of_byte(byte: u8) -> Option<(RecordKind, bool)> {
        let (kind, packed) = (RecordKind::of_code(byte & !IS_PACKED)?, byte & IS_PACKED != 0);
        (!packed || kind.may_be_packed()).then_some((kind, packed))
    }

    /// Whether it has a value that can be compressed, or names one.
    #[inline]
    fn may_be_packed(self) -> bool {
        self.is_value() || self.is_mapping()
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
    /// Its value is compressed ([`crate::compression`]).
    pub(crate) packed: bool,
    /// How its header is written.
    pub(crate) form: Form,
}

impl RecordHeader {
    /// Bytes of the longest header. Each record has as many in pages.
    pub(crate) const BYTES_MAX: usize = LONG_BYTES;
    /// Bytes that a record takes in the ring at least.
    pub(crate) const RING_BYTES_MIN: usize = (SHORT_BYTES + 1).next_multiple_of(RING_ALIGN);
    const SEQUENCE_MASK: u64 = (1 << 48) - 1;

    /// The bytes for a record.
    #[inline]
    pub(crate) fn encode(record: &Record) -> HeaderBytes {
        match record.form {
            Form::Long => Self::encode_long(record),
            Form::Short => Self::encode_short(record),
        }
    }

    fn encode_long(record: &Record) -> HeaderBytes {
        assert!(record.namespace <= NAMESPACE_MAX, "the numbers of namespaces are bounded when they are created");
        let (key, key_code) = record.key.stored();
        let tag =
            (record.sequence & Self::SEQUENCE_MASK) | u64::from(key_code) << 48 | u64::from(record.kind_code()) << 56;
        let mut header = LongHeader {
            header_crc: U32::ZERO,
            value_crc: record.value_crc.into(),
            namespace: record.namespace.into(),
            value_len: record.value_len.into(),
            tag: tag.into(),
            key: *key,
        };
        header.header_crc = kaml_crc::crc32c(&header.as_bytes()[4..]).into();
        HeaderBytes { bytes: zerocopy::transmute!(header), len: LONG_BYTES as u8 }
    }

    fn encode_short(record: &Record) -> HeaderBytes {
        assert!(record.namespace <= NAMESPACE_MAX, "the numbers of namespaces are bounded when they are created");
        assert!(record.kind.may_be_short() && !record.key.is_digest(), "such records have the long form");
        let value_len = u16::try_from(record.value_len).expect("longer records have the long form");
        let [sequence @ .., _, _] = record.sequence.to_le_bytes();
        let header = ShortHeader {
            crc: U32::ZERO,
            header_check: U16::ZERO,
            value_len: value_len.into(),
            namespace: (record.namespace | IS_SHORT).into(),
            sequence,
            kind: record.kind_code(),
            key_len: record.key.len() as u8,
        };
        let len = Form::Short.header_bytes(&record.key);
        let mut bytes = [0; LONG_BYTES];
        bytes[..SHORT_BYTES].copy_from_slice(header.as_bytes());
        bytes[SHORT_BYTES..SHORT_BYTES + Key::BYTES_MAX].copy_from_slice(record.key.padded());
        let header_crc = kaml_crc::crc32c(&bytes[SHORT_CHECKED_FROM..len]);
        bytes[..4].copy_from_slice(&(record.value_crc ^ header_crc).to_le_bytes());
        bytes[4..6].copy_from_slice(&header_check(header_crc).to_le_bytes());
        HeaderBytes { bytes, len: len as u8 }
    }

    /// The record that starts at `bytes`, if its header is whole.
    pub(crate) fn check(bytes: &[u8]) -> Option<Record> {
        match Self::form_of(bytes)? {
            Form::Long => Self::check_long(bytes),
            Form::Short => Self::check_short(bytes),
        }
    }

    fn form_of(bytes: &[u8]) -> Option<Form> {
        let (header, _) = ShortHeader::ref_from_prefix(bytes).ok()?;
        Some(if header.namespace.get() & IS_SHORT == 0 { Form::Long } else { Form::Short })
    }

    /// Bytes of the header that starts here, if one does; else of anything that has as many bytes.
    pub(crate) fn len_at(bytes: &[u8; LONG_BYTES]) -> usize {
        let (header, _) = ShortHeader::ref_from_prefix(bytes).expect("longer than that");
        match header.namespace.get() & IS_SHORT {
            0 => LONG_BYTES,
            _ => (SHORT_BYTES + usize::from(header.key_len)).min(LONG_BYTES),
        }
    }

    fn check_long(bytes: &[u8]) -> Option<Record> {
        let (header, _) = LongHeader::read_from_prefix(bytes).ok()?;
        if kaml_crc::crc32c(&header.as_bytes()[4..]) != header.header_crc.get() {
            return None;
        }
        let tag = header.tag.get();
        let (kind, packed) = RecordKind::of_byte((tag >> 56) as u8)?;
        Some(Record {
            namespace: header.namespace.get(),
            key: Key::of_stored(&header.key, (tag >> 48) as u8)?,
            kind,
            value_len: header.value_len.get(),
            value_crc: header.value_crc.get(),
            sequence: tag & Self::SEQUENCE_MASK,
            packed,
            form: Form::Long,
        })
    }

    fn check_short(bytes: &[u8]) -> Option<Record> {
        let (header, rest) = ShortHeader::ref_from_prefix(bytes).ok()?;
        let key = Key::new(rest.get(..header.key_len.into())?).ok()?;
        let header_crc = kaml_crc::crc32c(&bytes[SHORT_CHECKED_FROM..SHORT_BYTES + key.len()]);
        if header_check(header_crc) != header.header_check.get() {
            return None;
        }
        let mut sequence = [0; 8];
        sequence[..6].copy_from_slice(&header.sequence);
        let (kind, packed) = RecordKind::of_byte(header.kind)?;
        Some(Record {
            namespace: header.namespace.get() & !IS_SHORT,
            key,
            kind: Some(kind).filter(|kind| kind.may_be_short())?,
            value_len: header.value_len.get().into(),
            value_crc: header.crc.get() ^ header_crc,
            sequence: u64::from_le_bytes(sequence),
            packed,
            form: Form::Short,
        })
    }
}

/// What a short header has of its own checksum. In headers of these lengths, up to three flipped bits change it: an odd number as CRC32C has
/// the parity of what it is of; two by a search over all of them, which is why bytes are swapped.
#[inline]
fn header_check(crc: u32) -> u16 {
    crc as u16 ^ ((crc >> 16) as u16).swap_bytes()
}

impl Record {
    #[inline]
    fn kind_code(&self) -> u8 {
        self.kind.code() | if self.packed { IS_PACKED } else { 0 }
    }

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

    /// Bytes of the header.
    #[inline]
    pub(crate) fn header_bytes(&self) -> usize {
        self.form.header_bytes(&self.key)
    }

    /// Bytes of the record in pages.
    #[inline]
    pub(crate) fn page_bytes(&self) -> usize {
        self.header_bytes() + self.value_len as usize
    }

    /// Where in a record in pages that is which is stored after the header: the value, the suffix and the time.
    #[inline]
    pub(crate) fn stored_range(&self) -> Range<usize> {
        self.header_bytes()..self.page_bytes()
    }

    /// Bytes in pages of the record that a mapping names.
    pub(crate) fn named_bytes(&self) -> usize {
        Form::Long.header_bytes(&self.key) + self.value_len as usize
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

    /// Whether its value can be decompressed, if it is compressed.
    pub(crate) fn can_be_unpacked(&self, stored: &[u8]) -> bool {
        let own = || stored.get(..self.own_value_bytes(stored)?);
        !self.packed || own().is_some_and(|own| unpack(own, &mut Vec::new()).is_ok())
    }

    /// The value as a caller gave it, from what is stored; nothing if it cannot be there.
    pub(crate) fn given_value(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let own = stored.get(..self.own_value_bytes(stored)?)?;
        if !self.packed {
            return Some(own.to_vec());
        }
        let mut value = Vec::new();
        unpack(own, &mut value).ok().map(|()| value)
    }

    /// Bytes of the value as a caller gave it, for what counts them; of one that is damaged as many as are stored.
    pub(crate) fn given_value_bytes(&self, stored: &[u8]) -> u64 {
        let Some(own) = self.own_value_bytes(stored) else { return stored.len() as u64 };
        let unpacked = if self.packed { unpacked_bytes(&stored[..own]) } else { None };
        unpacked.unwrap_or(own as u64)
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
    let (namespace, value_len, value_crc, sequence) = (0, 0, 0, 0);
    let (key, kind, form) = (*digest, RecordKind::Value, Form::Long);
    let record = Record { namespace, key, kind, value_len, value_crc, sequence, packed: false, form };
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
#[inline]
pub(crate) fn trailer(expires: u64, key: &FullKey<'_>) -> Vec<u8> {
    if expires == 0 && key.long_bytes().is_empty() {
        return Vec::new();
    }
    let mut bytes = suffix(key);
    if expires != 0 {
        bytes.extend_from_slice(&expires.to_le_bytes());
    }
    bytes
}

/// Records in a ring frame start at multiples of this.
pub(crate) const RING_ALIGN: usize = 8;

#[cfg(test)]
mod tests;
