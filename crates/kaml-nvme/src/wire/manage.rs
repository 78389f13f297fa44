//! Namespace Management, and the vendor specific data of ours.
//!
//! Lives here:       the data of Create with KAML attributes in its vendor specific bytes, and of Set Namespace, which has
//!                   the same attributes; the data of the atomic Put.
//! Lives elsewhere:  executing them (`target::namespaces`, `target::keyvalue`); the pages for people
//!                   (`docs/nvme-vendor.md`).
//! Implements:       spec:NVMe-Base "Namespace Management command".

use super::keyvalue::KeyFormat;
use super::status::Status;
use super::versions::{POLICY_FLAGS, get_policy, put_policy};
use kaml::{
    Batch, Compression, Condition, KEY_BYTES_MAX, Key, KeyKind, KeyRef, NamespaceChange, NamespaceId, VersionOptions,
};
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a host needs a new namespace to be: the data of Namespace Management, Create.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "named as in the specification; the offsets are asserted below")]
pub struct Create {
    pub nsze: U64,
    pub ncap: U64,
    pub reserved_16: [u8; 10],
    pub flbas: u8,
    pub reserved_27: [u8; 997],
    pub kaml: Attributes,
    pub reserved_1264: [u8; 2832],
}

/// KAML attributes, at the start of the vendor specific bytes of Create; without the magic all are defaults. They are the data
/// of Set Namespace.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | `"KAML"` |
/// | 4 | 1 | version, 1 |
/// | 5 | 1 | keys: 0 of 1 to 16 bytes, 1 64-bit integers |
/// | 6 | 1 | bytes of the name; 0 for a name of the device's choice |
/// | 7 | 1 | logs; 0 for all |
/// | 8 | 64 | name, UTF-8 |
/// | 72 | 128 | logs, 16 bits each |
/// | 200 | 1 | 1 to keep every version of every record |
/// | 201 | 1 | bit 0: give the space of old versions back when it runs low; bit 1: keep the newest of each internal version then |
/// | 202 | 1 | how values are compressed: 0 not, 1 LZ4, 2 Zstandard |
/// | 203 | 1 | reserved, 0 |
/// | 204 | 4 | bytes of a segment of versions; 0 for what suits the device |
/// | 208 | 8 | memory for versions before they are written together; 0 for what suits the device |
/// | 216 | 8 | keep what was put in this many nanoseconds before then |
/// | 224 | 4 | keep so many of the newest versions of each key then |
/// | 228 | 12 | reserved, 0 |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the table above names the fields")]
pub struct Attributes {
    pub magic: [u8; 4],
    pub version: u8,
    pub keys: u8,
    pub name_bytes: u8,
    pub log_count: u8,
    pub name: [u8; 64],
    pub logs: [U16; 64],
    pub keeps_versions: u8,
    pub policy: u8,
    pub compression: u8,
    pub reserved_203: u8,
    pub segment_bytes: U32,
    pub buffer_bytes: U64,
    pub keep_for_ns: U64,
    pub keep_last: U32,
    pub reserved_228: [u8; 12],
}

const _: () = {
    assert!(size_of::<Create>() == 4096 && offset_of!(Create, flbas) == 26 && offset_of!(Create, kaml) == 1024);
    assert!(size_of::<Attributes>() == 240 && offset_of!(Attributes, logs) == 72);
    assert!(offset_of!(Attributes, keeps_versions) == 200 && offset_of!(Attributes, buffer_bytes) == 208);
    assert!(offset_of!(Attributes, compression) == 202);
    assert!(offset_of!(Attributes, keep_for_ns) == 216 && offset_of!(Attributes, keep_last) == 224);
};

const MAGIC: [u8; 4] = *b"KAML";

/// KAML attributes, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The name, if the host gave one.
    pub name: Option<String>,
    /// Which keys, if the host reported it.
    pub keys: Option<KeyKind>,
    /// The logs; empty: all.
    pub logs: Vec<u32>,
    /// Keep every version, in this shape.
    pub versions: Option<VersionOptions>,
    /// How values are compressed.
    pub compression: Compression,
}

impl Attributes {
    /// As bytes of Create.
    pub fn of(wanted: &Wanted) -> Option<Attributes> {
        let mut bytes = Attributes::new_zeroed();
        let name = wanted.name.as_deref().unwrap_or("");
        bytes.name.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        for (place, log) in wanted.logs.iter().enumerate() {
            *bytes.logs.get_mut(place)? = U16::new(u16::try_from(*log).ok()?);
        }
        (bytes.magic, bytes.version) = (MAGIC, 1);
        (bytes.name_bytes, bytes.log_count) = (name.len() as u8, wanted.logs.len() as u8);
        bytes.keys = match wanted.keys {
            Some(KeyKind::Bytes) | None => 0,
            Some(KeyKind::U64) => 1,
            Some(KeyKind::Any) => 2,
            Some(KeyKind::Ordered) => 3,
        };
        bytes.compression = wanted.compression.code();
        if let Some(versions) = wanted.versions {
            bytes.keeps_versions = 1;
            bytes.segment_bytes = versions.segment_bytes.into();
            bytes.buffer_bytes = versions.buffer_bytes.into();
            (bytes.policy, bytes.keep_last, bytes.keep_for_ns) = put_policy(versions.merge_when_low);
        }
        Some(bytes)
    }

    /// Reads them; without the magic everything is left to the device.
    pub fn read(&self) -> Result<Wanted, Status> {
        if self.magic != MAGIC {
            return Ok(Wanted::default());
        }
        let keys = match (self.version, self.keys) {
            (1, 0) => KeyKind::Bytes,
            (1, 1) => KeyKind::U64,
            (1, 2) => KeyKind::Any,
            (1, 3) => KeyKind::Ordered,
            _ => return Err(Status::INVALID_FIELD),
        };
        if self.policy & !POLICY_FLAGS != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let compression = Compression::of_code(self.compression).ok_or(Status::INVALID_FIELD)?;
        let name = self.name.get(..usize::from(self.name_bytes)).ok_or(Status::INVALID_FIELD)?;
        let name = std::str::from_utf8(name).map_err(|_| Status::INVALID_FIELD)?;
        let logs = self.logs.get(..usize::from(self.log_count)).ok_or(Status::INVALID_FIELD)?;
        Ok(Wanted {
            name: (!name.is_empty()).then(|| name.to_owned()),
            keys: Some(keys),
            compression,
            logs: logs.iter().map(|log| u32::from(log.get())).collect(),
            versions: match self.keeps_versions {
                0 => None,
                1 => Some(VersionOptions {
                    buffer_bytes: self.buffer_bytes.get(),
                    segment_bytes: self.segment_bytes.get(),
                    merge_when_low: get_policy(self.policy, self.keep_last, self.keep_for_ns),
                    ..VersionOptions::default()
                }),
                _ => return Err(Status::INVALID_FIELD),
            },
        })
    }
}

/// What Set Namespace changes: bits of its dword 10.
mod change {
    pub(super) const NAME: u32 = 1;
    pub(super) const LOGS: u32 = 1 << 1;
    pub(super) const POLICY: u32 = 1 << 2;
    pub(super) const COMPRESSION: u32 = 1 << 3;
}

/// Dword 10 and the data of Set Namespace; none if the name is too long or the logs are too many.
pub fn encode_change(wanted: &NamespaceChange) -> Option<(u32, Attributes)> {
    let (name, logs) = (wanted.name.clone(), wanted.logs.clone());
    let bit = |is_wanted, bit| if is_wanted { bit } else { 0 };
    let bits = bit(name.is_some(), change::NAME)
        | bit(logs.is_some(), change::LOGS)
        | bit(wanted.merge_when_low.is_some(), change::POLICY)
        | bit(wanted.compression.is_some(), change::COMPRESSION);
    let compression = wanted.compression.unwrap_or_default();
    let attributes = Wanted { name, logs: logs.unwrap_or_default(), compression, ..Wanted::default() };
    let mut attributes = Attributes::of(&attributes)?;
    let policy = wanted.merge_when_low.flatten();
    (attributes.policy, attributes.keep_last, attributes.keep_for_ns) = put_policy(policy);
    Some((bits, attributes))
}

/// What Set Namespace is to change: at least one thing, and nothing that is not known.
pub fn decode_change(bits: u32, data: &[u8]) -> Result<NamespaceChange, Status> {
    let (attributes, _) = Attributes::read_from_prefix(data).map_err(|_| Status::SGL_LENGTH)?;
    let unknown = bits & !(change::NAME | change::LOGS | change::POLICY | change::COMPRESSION) != 0;
    if bits == 0 || unknown || attributes.magic != MAGIC {
        return Err(Status::INVALID_FIELD);
    }
    let wanted = attributes.read()?;
    if bits & change::NAME != 0 && wanted.name.is_none() {
        return Err(Status::INVALID_FIELD);
    }
    let policy = || get_policy(attributes.policy, attributes.keep_last, attributes.keep_for_ns);
    Ok(NamespaceChange {
        name: wanted.name.filter(|_| bits & change::NAME != 0),
        logs: (bits & change::LOGS != 0).then_some(wanted.logs),
        merge_when_low: (bits & change::POLICY != 0).then(policy),
        compression: (bits & change::COMPRESSION != 0).then_some(wanted.compression),
        ..NamespaceChange::default()
    })
}

/// The head of one record in the data of an atomic Put; the value follows, filled up to a multiple of 4.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | namespace |
/// | 4 | 4 | bytes of the value |
/// | 8 | 1 | bytes of the key |
/// | 9 | 1 | 0 store, 1 store if it exists, 2 store if it does not exist, 3 delete, 4 delete if it exists |
/// | 10 | 2 | reserved, 0 |
/// | 12 | 16 | key |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PutRecord {
    nsid: U32,
    value_bytes: U32,
    key_bytes: u8,
    action: u8,
    reserved: U16,
    key: [u8; 16],
}

/// The head of one record in the data of an atomic Put whose keys have any length; the key follows, then the value, each filled up to a multiple of
/// 4.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | namespace |
/// | 4 | 4 | bytes of the value |
/// | 8 | 2 | bytes of the key |
/// | 10 | 1 | what to do, as byte 9 of the other format |
/// | 11 | 1 | reserved, 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LongPutRecord {
    nsid: U32,
    value_bytes: U32,
    key_bytes: U16,
    action: u8,
    reserved: u8,
}

const _: () = {
    assert!(size_of::<PutRecord>() == 28 && offset_of!(PutRecord, key) == 12);
    assert!(size_of::<LongPutRecord>() == 12 && offset_of!(LongPutRecord, action) == 10);
};

/// What a record takes in the data of an atomic Put at most, without its value.
pub const PUT_RECORD_BYTES_MAX: usize = size_of::<PutRecord>() + 3;
/// The same of a record whose key has any length.
pub const LONG_PUT_RECORD_BYTES_MAX: usize = size_of::<LongPutRecord>() + KEY_BYTES_MAX + 3;

/// What an atomic Put does with one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table of `PutRecord` documents them")]
pub enum PutAction<'a> {
    Store(&'a [u8]),
    StoreIfPresent(&'a [u8]),
    StoreIfAbsent(&'a [u8]),
    Delete,
    DeleteIfPresent,
}

impl<'a> PutAction<'a> {
    /// Its number, and the value.
    fn parts(self) -> (u8, &'a [u8]) {
        match self {
            PutAction::Store(value) => (0, value),
            PutAction::StoreIfPresent(value) => (1, value),
            PutAction::StoreIfAbsent(value) => (2, value),
            PutAction::Delete => (3, &[]),
            PutAction::DeleteIfPresent => (4, &[]),
        }
    }
}

/// Appends one record to the data of an atomic Put whose keys have any length. The key has at most [`KEY_BYTES_MAX`] bytes.
pub fn encode_long_put(out: &mut Vec<u8>, nsid: NamespaceId, key: &[u8], action: PutAction<'_>) {
    let (code, value) = action.parts();
    let head = LongPutRecord {
        nsid: nsid.into(),
        value_bytes: (value.len() as u32).into(),
        key_bytes: (key.len() as u16).into(),
        action: code,
        reserved: 0,
    };
    out.extend_from_slice(head.as_bytes());
    for bytes in [key, value] {
        out.extend_from_slice(bytes);
        out.resize(out.len().next_multiple_of(4), 0);
    }
}

/// Appends one record to the data of an atomic Put.
pub fn encode_put(out: &mut Vec<u8>, nsid: NamespaceId, key: &Key, action: PutAction<'_>) {
    let (code, value) = action.parts();
    let head = PutRecord {
        nsid: nsid.into(),
        value_bytes: (value.len() as u32).into(),
        key_bytes: key.len() as u8,
        action: code,
        reserved: U16::ZERO,
        key: *key.padded(),
    };
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// The format that the keys of a batch need; refuses those that no command has room for.
pub fn format_of(batch: &Batch) -> Result<KeyFormat, kaml::KeyError> {
    let mut format = KeyFormat::Short;
    for record in batch.records() {
        if Key::new(record.key.as_bytes()).is_err() {
            record.key.to_buf()?;
            format = KeyFormat::Long;
        }
    }
    Ok(format)
}

/// Appends all records of a batch to the data of an atomic Put, in the format that its keys need ([`format_of`]).
pub fn encode_batch(out: &mut Vec<u8>, batch: &Batch, format: KeyFormat) -> u32 {
    let mut count = 0;
    for record in batch.records() {
        let action = match (record.value, record.condition) {
            // A batch has no condition on sequences.
            (Some(value), Condition::Always | Condition::UnchangedSince(_)) => PutAction::Store(value),
            (Some(value), Condition::IfPresent) => PutAction::StoreIfPresent(value),
            (Some(value), Condition::IfAbsent) => PutAction::StoreIfAbsent(value),
            (None, Condition::IfPresent) => PutAction::DeleteIfPresent,
            (None, Condition::Always | Condition::IfAbsent | Condition::UnchangedSince(_)) => PutAction::Delete,
        };
        match (format, Key::new(record.key.as_bytes())) {
            (KeyFormat::Long, _) => encode_long_put(out, record.namespace, record.key.as_bytes(), action),
            (KeyFormat::Short, Ok(key)) => encode_put(out, record.namespace, &key, action),
            (KeyFormat::Short, Err(_)) => continue,
        }
        count += 1;
    }
    count
}

/// A record of an atomic Put, read.
struct RawRecord<'a> {
    nsid: NamespaceId,
    action: u8,
    /// None if it is longer than its room.
    key: Option<&'a [u8]>,
    value: &'a [u8],
}

/// Takes so many bytes off the data, and what fills them up to a multiple of 4.
fn take<'a>(data: &mut &'a [u8], bytes: usize) -> Result<&'a [u8], Status> {
    let (taken, tail) = data.split_at_checked(bytes).ok_or(Status::SGL_LENGTH)?;
    *data = &tail[(bytes.next_multiple_of(4) - bytes).min(tail.len())..];
    Ok(taken)
}

/// The records of an atomic Put, `count` of them.
fn put_records(data: &[u8], count: u32, format: KeyFormat) -> impl Iterator<Item = Result<RawRecord<'_>, Status>> {
    let mut rest = data;
    (0..count).map(move |_| match format {
        KeyFormat::Short => {
            let (head, tail) = PutRecord::ref_from_prefix(rest).map_err(|_| Status::SGL_LENGTH)?;
            rest = tail;
            let value = take(&mut rest, head.value_bytes.get() as usize)?;
            let key = head.key.get(..usize::from(head.key_bytes));
            Ok(RawRecord { nsid: head.nsid.get(), action: head.action, key, value })
        }
        KeyFormat::Long => {
            let (head, tail) = LongPutRecord::ref_from_prefix(rest).map_err(|_| Status::SGL_LENGTH)?;
            rest = tail;
            if head.reserved != 0 {
                return Err(Status::INVALID_FIELD);
            }
            let key = Some(take(&mut rest, head.key_bytes.get().into())?);
            let value = take(&mut rest, head.value_bytes.get() as usize)?;
            Ok(RawRecord { nsid: head.nsid.get(), action: head.action, key, value })
        }
    })
}

/// The namespaces of `count` records of an atomic Put, record by record.
pub fn put_namespaces(data: &[u8], count: u32, format: KeyFormat) -> impl Iterator<Item = Result<NamespaceId, Status>> {
    put_records(data, count, format).map(|record| record.map(|record| record.nsid))
}

/// How many records an atomic Put of this many bytes can have, which states that they are `count`.
pub fn put_count_max(bytes: usize, count: u32, format: KeyFormat) -> u64 {
    let least = match format {
        KeyFormat::Short => size_of::<PutRecord>(),
        KeyFormat::Long => size_of::<LongPutRecord>() + 1,
    };
    u64::from(count).min((bytes / least) as u64)
}

/// Reads `count` records of an atomic Put.
pub fn decode_put(data: &[u8], count: u32, format: KeyFormat) -> Result<Batch, Status> {
    let mut batch = Batch::new();
    for record in put_records(data, count, format) {
        let RawRecord { nsid, action, key, value } = record?;
        let key = key.ok_or(Status::INVALID_KEY_SIZE)?;
        let key = match Key::new(key) {
            Ok(key) => KeyRef::Short(key),
            Err(_) if format == KeyFormat::Long && (1..=KEY_BYTES_MAX).contains(&key.len()) => KeyRef::Bytes(key),
            Err(_) => return Err(Status::INVALID_KEY_SIZE),
        };
        match (action, value.len()) {
            (0, _) => batch.put(nsid, key, value),
            (1, _) => batch.put_if_present(nsid, key, value),
            (2, _) => batch.put_if_absent(nsid, key, value),
            (3, 0) => batch.delete(nsid, key),
            (4, 0) => batch.delete_if_present(nsid, key),
            _ => return Err(Status::INVALID_FIELD),
        };
    }
    Ok(batch)
}
