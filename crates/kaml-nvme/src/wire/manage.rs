//! Namespace Management, and the vendor specific data of ours.
//!
//! Lives here:       the data of Create with KAML attributes in its vendor specific bytes, and of Set Namespace, which has
//!                   the same attributes; the data of the atomic Put.
//! Lives elsewhere:  carrying them out (`target::namespaces`, `target::keyvalue`); the pages for people
//!                   (`docs/nvme-vendor.md`).
//! Implements:       spec:NVMe-Base "Namespace Management command".

use super::status::Status;
use super::versions::{POLICY_FLAGS, get_policy, put_policy};
use kaml::{Batch, Condition, Key, KeyKind, NamespaceChange, NamespaceId, VersionOptions};
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a host wants a new namespace to be: the data of Namespace Management, Create.
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
/// | 202 | 2 | reserved, 0 |
/// | 204 | 4 | bytes of a segment of versions; 0 for what suits the device |
/// | 208 | 8 | memory for versions before they are written together; 0 for what suits the device |
/// | 216 | 8 | keep what was put in so many nanoseconds before then |
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
    pub reserved_202: [u8; 2],
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
    assert!(offset_of!(Attributes, keep_for_ns) == 216 && offset_of!(Attributes, keep_last) == 224);
};

const MAGIC: [u8; 4] = *b"KAML";

/// KAML attributes, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The name, if the host gave one.
    pub name: Option<String>,
    /// Which keys, if the host said so.
    pub keys: Option<KeyKind>,
    /// The logs; empty: all.
    pub logs: Vec<u32>,
    /// Keep every version, in this shape.
    pub versions: Option<VersionOptions>,
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
        bytes.keys = u8::from(wanted.keys == Some(KeyKind::U64));
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
            _ => return Err(Status::INVALID_FIELD),
        };
        if self.policy & !POLICY_FLAGS != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let name = self.name.get(..usize::from(self.name_bytes)).ok_or(Status::INVALID_FIELD)?;
        let name = std::str::from_utf8(name).map_err(|_| Status::INVALID_FIELD)?;
        let logs = self.logs.get(..usize::from(self.log_count)).ok_or(Status::INVALID_FIELD)?;
        Ok(Wanted {
            name: (!name.is_empty()).then(|| name.to_owned()),
            keys: Some(keys),
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
}

/// Dword 10 and the data of Set Namespace; none if the name is too long or the logs are too many.
pub fn encode_change(wanted: &NamespaceChange) -> Option<(u32, Attributes)> {
    let (name, logs) = (wanted.name.clone(), wanted.logs.clone());
    let bit = |is_wanted, bit| if is_wanted { bit } else { 0 };
    let bits = bit(name.is_some(), change::NAME)
        | bit(logs.is_some(), change::LOGS)
        | bit(wanted.merge_when_low.is_some(), change::POLICY);
    let attributes = Wanted { name, logs: logs.unwrap_or_default(), ..Wanted::default() };
    let mut attributes = Attributes::of(&attributes)?;
    let policy = wanted.merge_when_low.flatten();
    (attributes.policy, attributes.keep_last, attributes.keep_for_ns) = put_policy(policy);
    Some((bits, attributes))
}

/// What Set Namespace is to change: at least one thing, and nothing that is not known.
pub fn decode_change(bits: u32, data: &[u8]) -> Result<NamespaceChange, Status> {
    let (attributes, _) = Attributes::read_from_prefix(data).map_err(|_| Status::SGL_LENGTH)?;
    let unknown = bits & !(change::NAME | change::LOGS | change::POLICY) != 0;
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

const _: () = assert!(size_of::<PutRecord>() == 28 && offset_of!(PutRecord, key) == 12);

/// What an atomic Put does with one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table of `PutRecord` says it")]
pub enum PutAction<'a> {
    Store(&'a [u8]),
    StoreIfPresent(&'a [u8]),
    StoreIfAbsent(&'a [u8]),
    Delete,
    DeleteIfPresent,
}

/// Appends one record to the data of an atomic Put.
pub fn encode_put(out: &mut Vec<u8>, nsid: NamespaceId, key: &Key, action: PutAction<'_>) {
    let (code, value): (u8, &[u8]) = match action {
        PutAction::Store(value) => (0, value),
        PutAction::StoreIfPresent(value) => (1, value),
        PutAction::StoreIfAbsent(value) => (2, value),
        PutAction::Delete => (3, &[]),
        PutAction::DeleteIfPresent => (4, &[]),
    };
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

/// Appends all records of a batch to the data of an atomic Put.
pub fn encode_batch(out: &mut Vec<u8>, batch: &Batch) -> u32 {
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
        encode_put(out, record.namespace, &record.key, action);
        count += 1;
    }
    count
}

/// The heads of `count` records of an atomic Put, and their values.
fn put_records(data: &[u8], count: u32) -> impl Iterator<Item = Result<(PutRecord, &[u8]), Status>> {
    let mut rest = data;
    (0..count).map(move |_| {
        let (head, tail) = PutRecord::read_from_prefix(rest).map_err(|_| Status::SGL_LENGTH)?;
        let len = head.value_bytes.get() as usize;
        let value = tail.get(..len).ok_or(Status::SGL_LENGTH)?;
        rest = &tail[len.next_multiple_of(4).min(tail.len())..];
        Ok((head, value))
    })
}

/// The namespaces of `count` records of an atomic Put, record by record.
pub fn put_namespaces(data: &[u8], count: u32) -> impl Iterator<Item = Result<NamespaceId, Status>> {
    put_records(data, count).map(|record| record.map(|(head, _)| head.nsid.get()))
}

/// How many records an atomic Put of so many bytes can have, which says that they are `count`.
pub fn put_count_max(bytes: usize, count: u32) -> u64 {
    u64::from(count).min((bytes / size_of::<PutRecord>()) as u64)
}

/// Reads `count` records of an atomic Put.
pub fn decode_put(data: &[u8], count: u32) -> Result<Batch, Status> {
    let mut batch = Batch::new();
    for record in put_records(data, count) {
        let (head, value) = record?;
        let len = value.len();
        let key = head.key.get(..usize::from(head.key_bytes)).ok_or(Status::INVALID_KEY_SIZE)?;
        let key = Key::new(key).map_err(|_| Status::INVALID_KEY_SIZE)?;
        let nsid = head.nsid.get();
        match (head.action, len) {
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
