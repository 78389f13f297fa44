//! The change stream: the data of Read Changes, vendor specific.
//!
//! Lives here:       positions in a command, changes and namespaces as bytes.
//! Lives elsewhere:  executing it (`target::changes`, `host::changes`), changes themselves (`kaml`); the page for people (`docs/nvme-vendor.md`).

use super::command::Command;
use super::vendor::{decode_namespaces, encode_namespaces};
use kaml::{Change, ChangesCursor, ChangesPart, KeyBuf, NamespaceInfo, Position, VersionCommand};
use std::mem::{offset_of, size_of};
use std::ops::Bound;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 4] = *b"KCH1";

/// Bytes of the ring in a command that requests the present position.
pub const FROM_NOW: u64 = u64::MAX;

/// The head of the data; the namespaces follow if they have changed, as log page C1h has them, then the parts.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | `"KCH1"` |
/// | 4 | 4 | parts |
/// | 8 | 4 | bytes of the namespaces; 0 if the host knows them |
/// | 12 | 4 | changes of the next commit that precede the next part |
/// | 16 | 16 | identity of the device |
/// | 32 | 8 | opening of the position after the parts |
/// | 40 | 8 | bytes of the ring up to that position |
/// | 48 | 8 | opening of the position after the last commit |
/// | 56 | 8 | bytes of the ring up to that position |
/// | 64 | 8 | a number that is another one after the namespaces have changed; never 0 |
/// | 72 | 8 | reserved, 0 |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    part_count: U32,
    namespaces_bytes: U32,
    next_skip: U32,
    device: [u8; 16],
    next_opening: U64,
    next_ring: U64,
    newest_opening: U64,
    newest_ring: U64,
    generation: U64,
    reserved: U64,
}

/// The head of a part: changes of one commit.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 8 | opening of the position after the part |
/// | 8 | 8 | bytes of the ring up to that position |
/// | 16 | 4 | changes of the next commit up to there; 0 if the part ends a commit |
/// | 20 | 4 | changes that follow |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PartHead {
    opening: U64,
    ring: U64,
    skip: U32,
    count: U32,
}

/// The head of a change; the key and the value follow, each filled up with zeros to a multiple of 4.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 1 | 1 a record is stored, 2 a key is deleted, 3 a range is deleted, 4 a version is stored, 5 a version that deletes its key, 6 a command on user versions |
/// | 1 | 1 | of a range: bits 3:0 where it begins, bits 7:4 where it ends, 0 nowhere, 1 with that key, 2 after or before it. Of a command: 1 snapshot, 2 roll back, 3 forget, 4 forget all up to one |
/// | 2 | 2 | bytes of the key; of a range: of the key where it begins |
/// | 4 | 4 | namespace |
/// | 8 | 4 | bytes of the value; of a range: of the key where it ends |
/// | 12 | 4 | user version |
/// | 16 | 8 | of a record: when it expires, milliseconds since 1970, 0 for never. Of a version or a command: when it was put, nanoseconds since 1970 |
/// | 24 | 8 | of a version or a command: its number in the order of all versions |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ChangeHead {
    kind: u8,
    detail: u8,
    key_bytes: U16,
    namespace: U32,
    value_bytes: U32,
    user_version: U32,
    time: U64,
    sequence: U64,
}

const _: () = {
    assert!(size_of::<Head>() == 80 && offset_of!(Head, device) == 16 && offset_of!(Head, generation) == 64);
    assert!(size_of::<PartHead>() == 24 && size_of::<ChangeHead>() == 32 && offset_of!(ChangeHead, time) == 16);
};

/// Bytes of the head.
pub const HEAD_BYTES: usize = size_of::<Head>();

/// What a host requests: everything after a position, and the namespaces unless it knows those of this generation.
pub fn put_request(command: &mut Command, room: usize, opening: u64, ring: u64, skip: u32, generation: u64) {
    (command.cdw10, command.cdw11) = ((room as u32).into(), skip.into());
    (command.cdw12, command.cdw13) = ((ring as u32).into(), ((ring >> 32) as u32).into());
    (command.cdw14, command.cdw15) = ((opening as u32).into(), ((opening >> 32) as u32).into());
    (command.cdw2, command.cdw3) = ((generation as u32).into(), ((generation >> 32) as u32).into());
}

/// The opening, the bytes of the ring, the changes to skip, and the generation that a host knows.
pub fn get_request(command: &Command) -> (u64, u64, u32, u64) {
    let word = |low: U32, high: U32| u64::from(low.get()) | u64::from(high.get()) << 32;
    let (ring, opening) = (word(command.cdw12, command.cdw13), word(command.cdw14, command.cdw15));
    (opening, ring, command.cdw11.get(), word(command.cdw2, command.cdw3))
}

/// The data of Read Changes.
#[derive(Clone, Debug)]
pub struct ChangesReply {
    /// After the parts.
    pub next: ChangesCursor,
    /// After the last commit of the device.
    pub newest: Position,
    /// Another one after the namespaces have changed.
    pub generation: u64,
    /// The namespaces, unless the host knows them.
    pub namespaces: Option<Vec<NamespaceInfo>>,
    /// The changes.
    pub parts: Vec<ChangesPart>,
}

/// A time of expiry as it is sent.
pub fn expiry_ms(time: Option<SystemTime>) -> u64 {
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A time of expiry as it was sent; nothing if the record does not expire, or at a time that no clock has.
pub fn expiry_of(ms: u64) -> Option<Option<SystemTime>> {
    match ms {
        0 => Some(None),
        ms => UNIX_EPOCH.checked_add(Duration::from_millis(ms)).map(Some),
    }
}

/// The bytes of a reply.
pub fn encode_changes(reply: &ChangesReply) -> Vec<u8> {
    let mut namespaces = reply.namespaces.as_ref().map_or_else(Vec::new, |infos| encode_namespaces(infos.iter()));
    namespaces.resize(namespaces.len().next_multiple_of(4), 0);
    let next = reply.next.position;
    let head = Head {
        magic: MAGIC,
        part_count: (reply.parts.len() as u32).into(),
        namespaces_bytes: (namespaces.len() as u32).into(),
        next_skip: reply.next.skip.into(),
        device: next.device(),
        next_opening: next.opening().into(),
        next_ring: next.ring_bytes().into(),
        newest_opening: reply.newest.opening().into(),
        newest_ring: reply.newest.ring_bytes().into(),
        generation: reply.generation.into(),
        reserved: U64::ZERO,
    };
    let mut out = head.as_bytes().to_vec();
    out.extend(namespaces);
    for part in &reply.parts {
        let changes: Vec<&Change> = part.changes.iter().filter(|change| !is_of_namespace(change)).collect();
        let at = part.next.position;
        let head = PartHead {
            opening: at.opening().into(),
            ring: at.ring_bytes().into(),
            skip: part.next.skip.into(),
            count: (changes.len() as u32).into(),
        };
        out.extend_from_slice(head.as_bytes());
        changes.into_iter().for_each(|change| encode_change(&mut out, change));
    }
    out
}

/// Namespaces come by themselves.
fn is_of_namespace(change: &Change) -> bool {
    matches!(change, Change::Namespace(_) | Change::NamespaceDeleted { .. })
}

fn bound_of(bound: &Bound<Vec<u8>>) -> (u8, &[u8]) {
    match bound {
        Bound::Unbounded => (0, &[]),
        Bound::Included(key) => (1, key),
        Bound::Excluded(key) => (2, key),
    }
}

fn encode_change(out: &mut Vec<u8>, change: &Change) {
    let mut head = ChangeHead {
        kind: 0,
        detail: 0,
        key_bytes: U16::ZERO,
        namespace: U32::ZERO,
        value_bytes: U32::ZERO,
        user_version: U32::ZERO,
        time: U64::ZERO,
        sequence: U64::ZERO,
    };
    let (mut key_bytes, mut value_bytes): (&[u8], &[u8]) = (&[], &[]);
    match change {
        Change::Put { namespace, key, value, expires } => {
            (head.kind, head.namespace, head.time) = (1, (*namespace).into(), expiry_ms(*expires).into());
            (key_bytes, value_bytes) = (key.as_bytes(), value);
        }
        Change::Delete { namespace, key } => {
            (head.kind, head.namespace) = (2, (*namespace).into());
            key_bytes = key.as_bytes();
        }
        Change::DeleteRange { namespace, lower, upper } => {
            let ((from, lower), (to, upper)) = (bound_of(lower), bound_of(upper));
            (head.kind, head.detail, head.namespace) = (3, from | to << 4, (*namespace).into());
            (key_bytes, value_bytes) = (lower, upper);
        }
        Change::Version { namespace, key, value, sequence, time_ns, user_version } => {
            head.kind = if value.is_some() { 4 } else { 5 };
            (head.namespace, head.user_version) = ((*namespace).into(), (*user_version).into());
            (head.time, head.sequence) = ((*time_ns).into(), (*sequence).into());
            (key_bytes, value_bytes) = (key.as_bytes(), value.as_deref().unwrap_or_default());
        }
        Change::VersionCommand { namespace, sequence, time_ns, command } => {
            let (detail, number) = match command {
                VersionCommand::Snapshot => (1, 0),
                VersionCommand::RollBack(number) => (2, *number),
                VersionCommand::Forget(number) => (3, *number),
                VersionCommand::ForgetThrough(number) => (4, *number),
            };
            (head.kind, head.detail, head.namespace) = (6, detail, (*namespace).into());
            (head.user_version, head.time, head.sequence) = (number.into(), (*time_ns).into(), (*sequence).into());
        }
        _ => {}
    }
    (head.key_bytes, head.value_bytes) = ((key_bytes.len() as u16).into(), (value_bytes.len() as u32).into());
    out.extend_from_slice(head.as_bytes());
    for bytes in [key_bytes, value_bytes] {
        out.extend_from_slice(bytes);
        out.resize(out.len().next_multiple_of(4), 0);
    }
}

/// Bytes that were received, from the beginning on.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn take_padded(&mut self, bytes: usize) -> Option<&'a [u8]> {
        self.take(bytes.checked_next_multiple_of(4)?)?.get(..bytes)
    }

    fn head<T: FromBytes>(&mut self) -> Option<T> {
        T::read_from_bytes(self.take(size_of::<T>())?).ok()
    }
}

/// Reads a reply; none if it makes no sense.
pub fn decode_changes(data: &[u8]) -> Option<ChangesReply> {
    let mut rest = Rest(data);
    let head: Head = rest.head()?;
    if head.magic != MAGIC {
        return None;
    }
    let position = |opening: U64, ring: U64| Position::from_parts(head.device, opening.get(), ring.get());
    let namespaces = match rest.take(head.namespaces_bytes.get() as usize)? {
        [] => None,
        bytes => {
            let (infos, count) = decode_namespaces(bytes)?;
            (infos.len() == count).then_some(Some(infos))?
        }
    };
    let mut parts = Vec::new();
    for _ in 0..head.part_count.get() {
        let part: PartHead = rest.head()?;
        let next = ChangesCursor { position: position(part.opening, part.ring), skip: part.skip.get() };
        let changes = (0..part.count.get()).map(|_| decode_change(&mut rest)).collect::<Option<_>>()?;
        parts.push(ChangesPart { next, changes });
    }
    Some(ChangesReply {
        next: ChangesCursor { position: position(head.next_opening, head.next_ring), skip: head.next_skip.get() },
        newest: position(head.newest_opening, head.newest_ring),
        generation: head.generation.get(),
        namespaces,
        parts,
    })
}

fn decode_change(rest: &mut Rest<'_>) -> Option<Change> {
    let head: ChangeHead = rest.head()?;
    let key = rest.take_padded(head.key_bytes.get().into())?;
    let value = rest.take_padded(head.value_bytes.get() as usize)?;
    let namespace = head.namespace.get();
    let whole_key = || KeyBuf::new(key).ok();
    let (sequence, time_ns, user_version) = (head.sequence.get(), head.time.get(), head.user_version.get());
    let bound = |kind: u8, key: &[u8]| match kind {
        0 if key.is_empty() => Some(Bound::Unbounded),
        1 => Some(Bound::Included(key.to_vec())),
        2 => Some(Bound::Excluded(key.to_vec())),
        _ => None,
    };
    Some(match head.kind {
        1 => Change::Put { namespace, key: whole_key()?, value: value.to_vec(), expires: expiry_of(head.time.get())? },
        2 if value.is_empty() => Change::Delete { namespace, key: whole_key()? },
        3 => {
            let (lower, upper) = (bound(head.detail & 0xf, key)?, bound(head.detail >> 4, value)?);
            Change::DeleteRange { namespace, lower, upper }
        }
        4 | 5 => {
            let value = if head.kind == 4 { Some(value.to_vec()) } else { value.is_empty().then_some(None)? };
            Change::Version { namespace, key: whole_key()?, value, sequence, time_ns, user_version }
        }
        6 if key.is_empty() && value.is_empty() => {
            let command = match (head.detail, user_version) {
                (1, 0) => VersionCommand::Snapshot,
                (2, number) => VersionCommand::RollBack(number),
                (3, number) => VersionCommand::Forget(number),
                (4, number) => VersionCommand::ForgetThrough(number),
                _ => return None,
            };
            Change::VersionCommand { namespace, sequence, time_ns, command }
        }
        _ => return None,
    })
}
