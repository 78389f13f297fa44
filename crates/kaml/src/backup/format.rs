//! The bytes of a backup: pieces with checksums, and what is in them.
//!
//! Lives here:       the pieces, encoding and checked decoding of their contents.
//! Lives elsewhere:  the order in which they are written (`write`) and read (`read`, `restore`).
//! Implements:       docs/formats/backup.md.

mod piece;

use kaml_device::{
    BackupMark, BlockOptions, Compression, Key, KeyKind, MergePolicy, NamespaceInfo, NamespaceKind, VersionOptions,
    VersionsAt,
};
use kaml_versions::{BloomOptions, Index, Kind, Parameters, Timeline, Version};
pub(super) use piece::{Piece, PieceHeader, PieceKind, TRAILER_BYTES, decode_trailer, encode_trailer};
use std::num::NonZeroU64;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the contents of a piece at most; an ordinary one has [`PIECE_BYTES`].
pub(super) const PIECE_BYTES_MAX: usize = 1 << 30;
/// A piece that has this much is written.
pub(super) const PIECE_BYTES: usize = 1 << 20;
/// Identifies a backup.
pub(super) const MAGIC: [u8; 4] = *b"KBK1";
/// The version that this build writes. Version 1 had no records that expire, version 2 no compressed namespaces, version 3 no namespaces that
/// keep only newest versions.
pub(super) const VERSION: u32 = 4;
const PIECE_MAGIC: [u8; 4] = *b"KBP1";
const TRAILER_MAGIC: [u8; 4] = *b"KBE1";
const NAME_BYTES_MAX: usize = 255;

/// Reads numbers and bytes from the front.
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        Some(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a backup is of.
///
/// | offset | bytes | field         | meaning                                                                      |
/// |-------:|------:|---------------|------------------------------------------------------------------------------|
/// |      0 |     4 | `magic`       | `"KBK1"`                                                                     |
/// |      4 |     4 | `version`     | 4; 1 to 3 of older backups                                                   |
/// |      8 |    16 | `backup`      | its number, random                                                           |
/// |     24 |    16 | `device`      | the identity of the device                                                   |
/// |     40 |    16 | `base`        | the number of the backup that it adds to; zeroes if it is a full one         |
/// |     56 |     8 | `time_ns`     | its moment: nanoseconds since 1970, by the clock of the host                 |
/// |     64 |     8 | `sequence`    | the sequence of the record that was staged last                              |
/// |     72 |     8 | `mark_page`   | what is committed later is in pages after this one; 0: in any                |
/// |     80 |     8 | `mark_record` | and has a sequence of at least this, unless it is a large value              |
/// |     88 |     8 | `live_bytes`  | bytes of live records on the device                                          |
/// |     96 |     8 | `capacity`    | bytes of flash that the device offered                                       |
/// |    104 |     4 | `namespaces`  | how many pieces follow that each describe a namespace                        |
/// |    108 |     4 | `reserved`    | zero                                                                         |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) backup: [u8; 16],
    pub(super) device: [u8; 16],
    pub(super) base: Option<[u8; 16]>,
    pub(super) time_ns: u64,
    pub(super) sequence: u64,
    pub(super) mark: BackupMark,
    pub(super) live_bytes: u64,
    pub(super) capacity: u64,
    pub(super) namespaces: u32,
}

impl Head {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.backup);
        bytes.extend(self.device);
        bytes.extend(self.base.unwrap_or_default());
        let words = [
            self.time_ns,
            self.sequence,
            self.mark.page,
            self.mark.record,
            self.live_bytes,
            self.capacity,
            self.namespaces.into(),
        ];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    /// The head; its version if this build does not know that.
    pub(super) fn decode(bytes: &[u8]) -> Result<Head, Option<u32>> {
        let mut rest = Cursor(bytes);
        if rest.array() != Some(MAGIC) {
            return Err(None);
        }
        match rest.u32() {
            Some(1..=VERSION) => Head::decode_rest(rest).ok_or(None),
            version => Err(version),
        }
    }

    fn decode_rest(mut rest: Cursor<'_>) -> Option<Head> {
        let (backup, device, base) = (rest.array()?, rest.array()?, rest.array()?);
        let (time_ns, sequence) = (rest.u64()?, rest.u64()?);
        let mark = BackupMark { page: rest.u64()?, record: rest.u64()? };
        let (live_bytes, capacity) = (rest.u64()?, rest.u64()?);
        let namespaces = u32::try_from(rest.u64()?).ok()?;
        let base = (base != [0; 16]).then_some(base);
        let is_sound = rest.is_empty() && backup != [0; 16];
        is_sound.then_some(Head { backup, device, base, time_ns, sequence, mark, live_bytes, capacity, namespaces })
    }
}

/// How a versioned namespace was.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Versions {
    /// Bytes of its page buffer and of a segment.
    pub(super) options: VersionOptions,
    pub(super) seed: u64,
    pub(super) newest: u64,
    pub(super) count: u64,
    pub(super) timeline: Timeline,
}

/// What a namespace holds.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Holds {
    Records(KeyKind),
    Blocks(BlockOptions),
    Versions(KeyKind, Box<Versions>),
}

impl Holds {
    pub(super) fn is_like(&self, other: &Holds) -> bool {
        match (self, other) {
            (Holds::Records(one), Holds::Records(other)) => one == other,
            (Holds::Blocks(one), Holds::Blocks(other)) => one == other,
            (Holds::Versions(one, _), Holds::Versions(other, _)) => one == other,
            _ => false,
        }
    }
}

/// A namespace of a backup.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Described {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) logs: Vec<u32>,
    /// Records, units or versions.
    pub(super) count: u64,
    /// Its records expire after so many milliseconds by default; 0: they do not.
    pub(super) default_ttl_ms: u64,
    /// How its values are compressed.
    pub(super) compression: Compression,
    pub(super) holds: Holds,
}

fn code_of_keys(keys: KeyKind) -> u8 {
    match keys {
        KeyKind::U64 => 1,
        KeyKind::Bytes => 2,
        KeyKind::Any => 3,
        KeyKind::Ordered => 4,
    }
}

fn keys_of_code(code: u8) -> Option<KeyKind> {
    match code {
        1 => Some(KeyKind::U64),
        2 => Some(KeyKind::Bytes),
        3 => Some(KeyKind::Any),
        4 => Some(KeyKind::Ordered),
        _ => None,
    }
}

impl Described {
    pub(super) fn of(info: &NamespaceInfo, versions: Option<&VersionsAt>) -> Described {
        let (count, holds) = match (info.kind, versions) {
            (NamespaceKind::Records(keys), _) => (info.record_count, Holds::Records(keys)),
            (NamespaceKind::Blocks(blocks), _) => (info.record_count, Holds::Blocks(blocks)),
            (NamespaceKind::Versions(keys, shape), at) => {
                let options = options_of(&shape.parameters, shape.merge_when_low);
                let (newest, count) = at.map_or((0, 0), |at| (at.newest, at.count));
                let timeline = at.map(|at| at.timeline.clone()).unwrap_or_default();
                let seed = shape.parameters.seed;
                (count, Holds::Versions(keys, Box::new(Versions { options, seed, newest, count, timeline })))
            }
        };
        let default_ttl_ms = info.default_ttl_ms.map_or(0, NonZeroU64::get);
        let (name, logs, compression) = (info.name.clone(), info.logs.clone(), info.compression);
        Described { id: info.id, name, logs, count, default_ttl_ms, compression, holds }
    }

    /// | bytes | meaning                                                                                   |
    /// |------:|-------------------------------------------------------------------------------------------|
    /// |     4 | the number of the namespace                                                               |
    /// |     1 | what it holds: 1 records, 2 blocks, 3 versions                                            |
    /// |     1 | its keys: 1 `u64`, 2 `bytes`, 3 `any`, 4 `ordered`; 0 for blocks                          |
    /// |     2 | bytes of its name                                                                         |
    /// |     4 | how many logs are listed                                                                  |
    /// |     8 | records, units or versions                                                                |
    /// |     … | the name; 4 bytes for each log; what follows depends on what it holds                     |
    /// |     8 | of records that expire by default, or are compressed: after how many milliseconds, 0 for never; else nothing |
    /// |     1 | of records that are compressed: 1 LZ4, 2 Zstandard; else nothing                          |
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.id.to_le_bytes().to_vec();
        let (kind, keys) = match &self.holds {
            Holds::Records(keys) => (1, code_of_keys(*keys)),
            Holds::Blocks(_) => (2, 0),
            Holds::Versions(keys, _) => (3, code_of_keys(*keys)),
        };
        bytes.extend([kind, keys]);
        bytes.extend((self.name.len() as u16).to_le_bytes());
        bytes.extend((self.logs.len() as u32).to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(self.name.as_bytes());
        bytes.extend(self.logs.iter().flat_map(|log| log.to_le_bytes()));
        match &self.holds {
            Holds::Records(_) => {
                let is_compressed = self.compression != Compression::None;
                if self.default_ttl_ms != 0 || is_compressed {
                    bytes.extend(self.default_ttl_ms.to_le_bytes());
                }
                if is_compressed {
                    bytes.push(self.compression.code());
                }
            }
            Holds::Blocks(blocks) => {
                bytes.extend(blocks.block_bytes.to_le_bytes());
                bytes.extend(blocks.unit_bytes.to_le_bytes());
                bytes.extend(blocks.block_count.to_le_bytes());
            }
            Holds::Versions(_, versions) => versions.encode(&mut bytes),
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Described> {
        let mut rest = Cursor(bytes);
        let (id, kind, keys) = (rest.u32()?, rest.u8()?, rest.u8()?);
        let (name_len, log_count) = (usize::from(rest.u16()?), rest.u32()? as usize);
        let count = rest.u64()?;
        let name = std::str::from_utf8(rest.bytes(name_len)?).ok()?.to_owned();
        let logs = rest.bytes(log_count.checked_mul(4)?)?;
        let logs = logs.chunks_exact(4).map(|log| u32::from_le_bytes([log[0], log[1], log[2], log[3]])).collect();
        let (mut default_ttl_ms, mut compression) = (0, Compression::None);
        let holds = match kind {
            1 => {
                if !rest.is_empty() {
                    default_ttl_ms = rest.u64()?;
                    if !rest.is_empty() {
                        compression = Compression::of_code(rest.u8()?).filter(|method| *method != Compression::None)?;
                    } else if default_ttl_ms == 0 {
                        return None;
                    }
                }
                Holds::Records(keys_of_code(keys)?)
            }
            2 => {
                let (block_bytes, unit_bytes, block_count) = (rest.u32()?, rest.u32()?, rest.u64()?);
                Holds::Blocks(BlockOptions { unit_bytes, ..BlockOptions::new(block_bytes, block_count) })
            }
            3 => Holds::Versions(keys_of_code(keys)?, Box::new(Versions::decode(&mut rest)?)),
            _ => return None,
        };
        let is_sound = rest.is_empty() && id > 0 && (1..=NAME_BYTES_MAX).contains(&name_len);
        is_sound.then_some(Described { id, name, logs, count, default_ttl_ms, compression, holds })
    }
}

/// The options that make a namespace of this shape.
fn options_of(parameters: &Parameters, merge_when_low: Option<MergePolicy>) -> VersionOptions {
    let (fingerprint_bits, bloom) = match &parameters.index {
        Index::Columns(shape) => (shape.fingerprint_bits, None),
        Index::Bloom(bloom) => {
            let hashes = bloom.hashes();
            let keys = &bloom.filter_keys[..hashes];
            let is_even = hashes > 1 && keys.iter().all(|of| *of == keys[0]);
            let first = keys.first().copied().unwrap_or(0);
            let options = BloomOptions {
                hashes: hashes as u32,
                is_even,
                segment_keys: if is_even { first * hashes as u32 } else { first * 2 },
                overflow_keys: bloom.overflow_keys,
                false_positives_ppm: bloom.false_positives_ppm,
                growth_permille: bloom.growth_permille,
                combined: bloom.combined,
            };
            (0, Some(options))
        }
    };
    VersionOptions {
        buffer_bytes: parameters.buffer_bytes,
        segment_bytes: parameters.segment_bytes() as u32,
        rows: parameters.rows,
        fingerprint_bits,
        bloom,
        merge_when_low,
    }
}

impl Versions {
    /// | bytes | meaning                                                                                               |
    /// |------:|-------------------------------------------------------------------------------------------------------|
    /// |     8 | bytes of the page buffer                                                                              |
    /// |   4×3 | bytes of a segment, rows, bits of a fingerprint (0 with filters)                                      |
    /// |     8 | the seed that places keys                                                                             |
    /// |    16 | 8: later versions are not part of the backup; 8: how many versions there are                          |
    /// |     1 | bit 0: it is merged when space runs low; bit 1: it has filters; bit 2: these take as many keys each    |
    /// |     1 | bit 0: such merges keep the newest version of each internal version; bit 1: only newest ones are kept |
    /// |     2 | zero                                                                                                  |
    /// |  4, 8 | versions of each key that such merges keep, nanoseconds for which they keep everything                |
    /// |   4×6 | filters: how many, keys of all, overflow keys, false positives, growth, segments of a table            |
    /// |     4 | bytes of the timeline, which follows ([`Timeline::encode`])                                           |
    fn encode(&self, bytes: &mut Vec<u8>) {
        let options = &self.options;
        let (merge, bloom) = (options.merge_when_low.unwrap_or_default(), options.bloom.unwrap_or_default());
        bytes.extend(options.buffer_bytes.to_le_bytes());
        for word in [options.segment_bytes, options.rows, options.fingerprint_bits] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [self.seed, self.newest, self.count] {
            bytes.extend(word.to_le_bytes());
        }
        let bits = [options.merge_when_low.is_some(), options.bloom.is_some(), bloom.is_even];
        let flags = bits.iter().enumerate().map(|(bit, is_set)| u8::from(*is_set) << bit).sum();
        let rules = u8::from(merge.keep_internal) | u8::from(merge.newest_only) << 1;
        bytes.extend([flags, rules, 0, 0]);
        bytes.extend(merge.keep_last.to_le_bytes());
        bytes.extend(merge.keep_for_ns.to_le_bytes());
        let filters = [bloom.hashes, bloom.segment_keys, bloom.overflow_keys];
        let rates = [bloom.false_positives_ppm, bloom.growth_permille, bloom.combined];
        bytes.extend(filters.iter().chain(&rates).flat_map(|word| word.to_le_bytes()));
        let timeline = self.timeline.encode();
        bytes.extend((timeline.len() as u32).to_le_bytes());
        bytes.extend(timeline);
    }

    fn decode(rest: &mut Cursor<'_>) -> Option<Versions> {
        let buffer_bytes = rest.u64()?;
        let (segment_bytes, rows, fingerprint_bits) = (rest.u32()?, rest.u32()?, rest.u32()?);
        let (seed, newest, count) = (rest.u64()?, rest.u64()?, rest.u64()?);
        let (flags, rules, zero) = (rest.u8()?, rest.u8()?, rest.u16()?);
        let (keep_last, keep_for_ns) = (rest.u32()?, rest.u64()?);
        let bloom = BloomOptions {
            hashes: rest.u32()?,
            is_even: flags & 4 != 0,
            segment_keys: rest.u32()?,
            overflow_keys: rest.u32()?,
            false_positives_ppm: rest.u32()?,
            growth_permille: rest.u32()?,
            combined: rest.u32()?,
        };
        let len = rest.u32()? as usize;
        let timeline = Timeline::decode(rest.bytes(len)?).ok()?;
        let (keep_internal, newest_only) = (rules & 1 != 0, rules & 2 != 0);
        let policy = MergePolicy { keep_last, keep_for_ns, keep_internal, newest_only };
        let options = VersionOptions {
            buffer_bytes,
            segment_bytes,
            rows,
            fingerprint_bits,
            bloom: (flags & 2 != 0).then_some(bloom),
            merge_when_low: (flags & 1 != 0).then_some(policy),
        };
        let is_sound = flags < 8 && rules < 4 && zero == 0;
        is_sound.then_some(Versions { options, seed, newest, count, timeline })
    }
}

/// Precedes key and value of a record.
///
/// | offset | bytes | field       | meaning                                                                              |
/// |-------:|------:|-------------|--------------------------------------------------------------------------------------|
/// |      0 |     4 | `namespace` | its namespace                                                                        |
/// |      4 |     4 | `value_len` | bytes of the value                                                                   |
/// |      8 |     2 | `key_len`   | bytes of the key                                                                     |
/// |     10 |     2 | `flags`     | bit 0: the digest by which the device knows the key, 16 bytes, precedes the key;     |
/// |        |       |             | bit 1: when it expires, 8 bytes, milliseconds since 1970, precedes that              |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EntryHeader {
    namespace: U32,
    value_len: U32,
    key_len: U16,
    flags: U16,
}

/// A record of a backup; the key of a unit of blocks is its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry<'a> {
    pub(super) namespace: u32,
    /// When it expires, milliseconds since 1970; 0 for never.
    pub(super) expires: u64,
    pub(super) digest: Option<[u8; 16]>,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let expiry_bytes = if self.expires == 0 { 0 } else { size_of::<u64>() };
        size_of::<EntryHeader>()
            + expiry_bytes
            + self.digest.map_or(0, |digest| digest.len())
            + self.key.len()
            + self.value.len()
    }

    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        let header = EntryHeader {
            namespace: self.namespace.into(),
            value_len: (self.value.len() as u32).into(),
            key_len: (self.key.len() as u16).into(),
            flags: (u16::from(self.digest.is_some()) | u16::from(self.expires != 0) << 1).into(),
        };
        into.extend_from_slice(header.as_bytes());
        if self.expires != 0 {
            into.extend_from_slice(&self.expires.to_le_bytes());
        }
        if let Some(digest) = &self.digest {
            into.extend_from_slice(digest);
        }
        into.extend_from_slice(self.key);
        into.extend_from_slice(self.value);
    }

    pub(super) fn decode(rest: &mut Cursor<'a>) -> Option<Entry<'a>> {
        let header = EntryHeader::read_from_bytes(rest.bytes(size_of::<EntryHeader>())?).ok()?;
        let flags = header.flags.get();
        if flags > 3 {
            return None;
        }
        let expires = if flags & 2 == 0 { 0 } else { rest.u64().filter(|time| *time != 0)? };
        let digest = if flags & 1 == 0 { None } else { Some(rest.array()?) };
        let key = rest.bytes(header.key_len.get().into())?;
        let value = rest.bytes(header.value_len.get() as usize)?;
        let (namespace, has_key) = (header.namespace.get(), !key.is_empty());
        has_key.then_some(Entry { namespace, expires, digest, key, value })
    }
}

/// Appends a version.
///
/// | bytes | meaning                                                   |
/// |------:|-----------------------------------------------------------|
/// |     4 | its namespace                                             |
/// |     1 | 1: a value, 2: a tombstone                                |
/// |     1 | bytes of the key                                          |
/// |     2 | zero                                                      |
/// |     4 | the user version that it was put in                       |
/// |     4 | bytes of the value                                        |
/// |   8×2 | its sequence; when it was put, nanoseconds since 1970     |
/// |     … | the key, the value                                        |
pub(super) fn encode_version(namespace: u32, version: &Version, value: &[u8], into: &mut Vec<u8>) {
    let kind = if version.kind == Kind::Tombstone { 2 } else { 1 };
    into.extend(namespace.to_le_bytes());
    into.extend([kind, version.key.len() as u8, 0, 0]);
    into.extend(version.user_version.to_le_bytes());
    into.extend((value.len() as u32).to_le_bytes());
    into.extend(version.sequence.to_le_bytes());
    into.extend(version.time_ns.to_le_bytes());
    into.extend_from_slice(version.key.as_bytes());
    into.extend_from_slice(value);
}

/// The version at the front: its namespace, what it is, its value.
pub(super) fn decode_version<'a>(rest: &mut Cursor<'a>) -> Option<(u32, Version, &'a [u8])> {
    let namespace = rest.u32()?;
    let (kind, key_len, zero) = (rest.u8()?, rest.u8()?, rest.u16()?);
    let (user_version, value_len) = (rest.u32()?, rest.u32()?);
    let (sequence, time_ns) = (rest.u64()?, rest.u64()?);
    let key = Key::new(rest.bytes(key_len.into())?).ok()?;
    let value = rest.bytes(value_len as usize)?;
    let kind = match kind {
        1 => Kind::Value,
        2 if value.is_empty() => Kind::Tombstone,
        _ => return None,
    };
    let value_crc = kaml_crc::crc32c(value);
    let version = Version { key, kind, value_len, value_crc, sequence, time_ns, user_version, ordinal: 0 };
    (zero == 0).then_some((namespace, version, value))
}

/// A key in a list: the bytes of a key, or the digest that stands for a long key of a namespace without order.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub(super) enum ListedKey {
    Bytes(Box<[u8]>),
    Digest([u8; 16]),
}

/// Bit of the length of a listed key: it is a digest.
const IS_DIGEST: u16 = 1 << 15;

impl ListedKey {
    pub(super) fn of(key: &Key) -> ListedKey {
        if key.is_digest() { ListedKey::Digest(*key.padded()) } else { ListedKey::Bytes(key.as_bytes().into()) }
    }

    /// The key by which a device knows it.
    pub(super) fn key(&self) -> Option<Key> {
        match self {
            ListedKey::Bytes(bytes) => Key::new(bytes).ok(),
            ListedKey::Digest(digest) => Some(Key::of_digest(*digest)),
        }
    }

    /// Length (2 bytes; bit 15: it is a digest) and bytes.
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        let (bytes, bit) = match self {
            ListedKey::Bytes(bytes) => (&bytes[..], 0),
            ListedKey::Digest(digest) => (&digest[..], IS_DIGEST),
        };
        into.extend_from_slice(&(bytes.len() as u16 | bit).to_le_bytes());
        into.extend_from_slice(bytes);
    }

    pub(super) fn decode(rest: &mut Cursor<'_>) -> Option<ListedKey> {
        let len = rest.u16()?;
        let bytes = rest.bytes((len & !IS_DIGEST).into())?;
        match len & IS_DIGEST {
            0 if !bytes.is_empty() => Some(ListedKey::Bytes(bytes.into())),
            0 => None,
            _ => bytes.try_into().ok().map(ListedKey::Digest),
        }
    }
}

/// What a backup has, all together.
///
/// Eight words: pieces before this one, records, versions, deleted keys, bytes of keys and values, the CRC32C over the headers of all pieces
/// before this one, and two that are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Totals {
    pub(super) pieces: u64,
    pub(super) records: u64,
    pub(super) versions: u64,
    pub(super) deleted: u64,
    pub(super) bytes: u64,
    pub(super) crc: u32,
}

impl Totals {
    pub(super) fn encode(&self) -> Vec<u8> {
        let words = [self.pieces, self.records, self.versions, self.deleted, self.bytes, self.crc.into(), 0, 0];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Totals> {
        let mut rest = Cursor(bytes);
        let (pieces, records, versions) = (rest.u64()?, rest.u64()?, rest.u64()?);
        let (deleted, bytes) = (rest.u64()?, rest.u64()?);
        let crc = u32::try_from(rest.u64()?).ok()?;
        let is_sound = rest.u64()? == 0 && rest.u64()? == 0 && rest.is_empty();
        is_sound.then_some(Totals { pieces, records, versions, deleted, bytes, crc })
    }
}

#[cfg(test)]
mod tests;
