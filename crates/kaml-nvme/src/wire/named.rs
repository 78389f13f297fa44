//! Many keys at once: the data of Name Keys, Retrieve Named and Exist Named, vendor specific.
//!
//! Lives here:       a list of keys, and what is returned for each.
//! Lives elsewhere:  executing them (`target::named`, `host::named`); the page for people (`docs/nvme-vendor.md`).
//!
//! A command moves data one way only, so Linux can pass it through. Hence two: one names keys, one reads them.

use super::status::Status;
use kaml::{KEY_BYTES_MAX, Key, KeyBuf, NamespaceId};
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What Retrieve Named returns for a key takes this much in addition to the value.
pub const FOUND_BYTES: usize = size_of::<FoundHead>();

/// What a key of any length takes in the data of Name Keys at most.
pub const NAMED_KEY_BYTES_MAX: usize = size_of::<LongKeyHead>() + KEY_BYTES_MAX;

/// Keys of one list at most.
pub const KEYS_MAX: usize = 4096;

/// A key of a namespace.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | namespace |
/// | 4 | 1 | bytes of the key |
/// | 5 | 3 | reserved, 0 |
/// | 8 | 16 | key |
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct NamedKey {
    nsid: U32,
    key_bytes: u8,
    reserved: [u8; 3],
    key: [u8; 16],
}

/// A key of a namespace, of any length; its bytes follow, filled up with zeros to a multiple of 4.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | namespace |
/// | 4 | 2 | bytes of the key |
/// | 6 | 2 | reserved, 0 |
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LongKeyHead {
    nsid: U32,
    key_bytes: U16,
    reserved: U16,
}

/// The result for a key; the value follows, filled up with zeros to a multiple of 4.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | bytes of the value |
/// | 4 | 4 | bytes that follow: those of the value, or 0 if there was no room for them |
/// | 8 | 2 | status, as in a completion |
/// | 10 | 2 | reserved, 0 |
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FoundHead {
    value_bytes: U32,
    here_bytes: U32,
    status: U16,
    reserved: U16,
}

const _: () = {
    assert!(size_of::<NamedKey>() == 24 && offset_of!(NamedKey, key) == 8);
    assert!(size_of::<LongKeyHead>() == 8 && offset_of!(LongKeyHead, key_bytes) == 4);
    assert!(size_of::<FoundHead>() == 12 && offset_of!(FoundHead, status) == 8);
};

/// The data of Name Keys.
pub fn encode_keys(keys: impl Iterator<Item = (NamespaceId, Key)>) -> Vec<u8> {
    let mut out = Vec::new();
    for (nsid, key) in keys {
        let named = NamedKey { nsid: nsid.into(), key_bytes: key.len() as u8, reserved: [0; 3], key: *key.padded() };
        out.extend_from_slice(named.as_bytes());
    }
    out
}

/// Reads the data of Name Keys; data may continue after them.
pub fn decode_keys(data: &[u8], count: u32) -> Result<Vec<(NamespaceId, Key)>, Status> {
    let count = usize::try_from(count).ok().filter(|count| (1..=KEYS_MAX).contains(count));
    let count = count.ok_or(Status::INVALID_FIELD)?;
    let (keys, _) = <[NamedKey]>::ref_from_prefix_with_elems(data, count).map_err(|_| Status::SGL_LENGTH)?;
    let key = |named: &NamedKey| {
        let key = named.key.get(..usize::from(named.key_bytes)).and_then(|bytes| Key::new(bytes).ok());
        Ok((named.nsid.get(), key.ok_or(Status::INVALID_KEY_SIZE)?))
    };
    keys.iter().map(key).collect()
}

/// The data of Name Keys with keys of any length.
pub fn encode_long_keys<'k>(keys: impl Iterator<Item = (NamespaceId, &'k KeyBuf)>) -> Vec<u8> {
    let mut out = Vec::new();
    for (nsid, key) in keys {
        let key = key.as_bytes();
        let head = LongKeyHead { nsid: nsid.into(), key_bytes: (key.len() as u16).into(), reserved: U16::ZERO };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(key);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out
}

/// Reads the data of Name Keys with keys of any length; data may continue after them.
pub fn decode_long_keys(data: &[u8], count: u32) -> Result<Vec<(NamespaceId, KeyBuf)>, Status> {
    let count = usize::try_from(count).ok().filter(|count| (1..=KEYS_MAX).contains(count));
    let mut rest = data;
    let key = |_| {
        let (head, tail) = LongKeyHead::read_from_prefix(rest).map_err(|_| Status::SGL_LENGTH)?;
        let bytes = usize::from(head.key_bytes.get());
        let key = KeyBuf::new(tail.get(..bytes).ok_or(Status::SGL_LENGTH)?).map_err(|_| Status::INVALID_KEY_SIZE)?;
        if head.reserved.get() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        rest = &tail[bytes.next_multiple_of(4).min(tail.len())..];
        Ok((head.nsid.get(), key))
    };
    (0..count.ok_or(Status::INVALID_FIELD)?).map(key).collect()
}

/// What Retrieve Named returns for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Success, or why there is no value.
    pub status: Status,
    /// Bytes of the value.
    pub value_bytes: usize,
    /// The value; nothing if there is none, or if it is too long for what the host has room for.
    pub value: Option<Vec<u8>>,
}

/// Appends the result for a key, if there is room for it. A value that would never fit, because there is nothing before it,
/// is returned without its bytes.
pub fn put_found(out: &mut Vec<u8>, found: Result<&[u8], Status>, room: usize) -> bool {
    let left = room.saturating_sub(out.len());
    let (status, value) = match found {
        Ok(value) => (Status::SUCCESS, value),
        Err(status) => (status, &[][..]),
    };
    let fits = size_of::<FoundHead>() + value.len().next_multiple_of(4) <= left;
    if !fits && (!out.is_empty() || size_of::<FoundHead>() > left) {
        return false;
    }
    let here = if fits { value } else { &[] };
    let head = FoundHead {
        value_bytes: (value.len() as u32).into(),
        here_bytes: (here.len() as u32).into(),
        status: status.field().into(),
        reserved: U16::ZERO,
    };
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(here);
    out.resize(out.len().next_multiple_of(4), 0);
    true
}

/// Reads the results for `count` keys; none if the data are not whole.
pub fn decode_found(data: &[u8], count: usize) -> Option<Vec<Found>> {
    let mut rest = data;
    let mut all = Vec::with_capacity(count.min(data.len() / size_of::<FoundHead>()));
    for _ in 0..count {
        let (head, tail) = FoundHead::read_from_prefix(rest).ok()?;
        let (here, value_bytes) = (head.here_bytes.get() as usize, head.value_bytes.get() as usize);
        let status = Status::from_field(head.status.get());
        let value = (status.is_success() && here == value_bytes).then(|| tail.get(..here).map(<[u8]>::to_vec));
        let value = match value {
            Some(None) => return None,
            other => other.flatten(),
        };
        all.push(Found { status, value_bytes, value });
        rest = tail.get(here.checked_next_multiple_of(4)?.min(tail.len())..)?;
    }
    Some(all)
}
