//! Ranges of keys: the data of Name Range, Count Range and Delete Range, and what Retrieve Range returns, vendor specific.
//!
//! Lives here:       bounds and prefixes as bytes, the records of a page.
//! Lives elsewhere:  executing them (`target::ranges`, `host::ranges`); the page for people (`docs/nvme-vendor.md`).
//!
//! A command moves data one way only, so Linux can pass it through. Hence two: one names a range, one reads it.

use super::status::Status;
use kaml::{KEY_BYTES_MAX, KeyBuf};
use std::mem::{offset_of, size_of};
use std::ops::Bound;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Flags of Retrieve Range, in its dword 13.
pub mod flag {
    /// Return no values.
    pub const KEYS_ONLY: u32 = 1;
    /// Begin with the last key.
    pub const REVERSE: u32 = 1 << 1;
    /// Each value follows the time at which its record expires: 8 bytes, milliseconds since 1970, 0 for never.
    pub const TIMES: u32 = 1 << 2;
    /// All that are known.
    pub const ALL: u32 = KEYS_ONLY | REVERSE | TIMES;
}

/// The head of a range; the bytes of both bounds and of the prefix follow.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 1 | where it begins: 0 with the first key, 1 with the key that follows, 2 after that key |
/// | 1 | 1 | where it ends: 0 with the last key, 1 with the key that follows, 2 before that key |
/// | 2 | 2 | reserved, 0 |
/// | 4 | 2 | bytes of the key where it begins |
/// | 6 | 2 | bytes of the key where it ends |
/// | 8 | 2 | bytes of the prefix that its keys have |
/// | 10 | 6 | reserved, 0 |
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RangeHead {
    from: u8,
    to: u8,
    reserved_2: U16,
    from_bytes: U16,
    to_bytes: U16,
    prefix_bytes: U16,
    reserved_10: [u8; 6],
}

/// The head of a record of Retrieve Range; the key follows, then the value, each filled up with zeros to a multiple of 4.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | bytes of the value; 0 if only keys are returned |
/// | 4 | 4 | bytes that follow the key: those of the value, or 0 if there was no room for them |
/// | 8 | 2 | bytes of the key |
/// | 10 | 2 | reserved, 0 |
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RecordHead {
    value_bytes: U32,
    here_bytes: U32,
    key_bytes: U16,
    reserved: U16,
}

const _: () = {
    assert!(size_of::<RangeHead>() == 16 && offset_of!(RangeHead, prefix_bytes) == 8);
    assert!(size_of::<RecordHead>() == 12 && offset_of!(RecordHead, key_bytes) == 8);
};

/// The room that Retrieve Range needs: for the longest key.
pub const PAGE_BYTES_MIN: usize = size_of::<RecordHead>() + KEY_BYTES_MAX;

/// A range of keys: those within bounds that begin with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// Where it begins.
    pub lower: Bound<KeyBuf>,
    /// Where it ends.
    pub upper: Bound<KeyBuf>,
    /// What its keys begin with; at most 1 KiB.
    pub prefix: Vec<u8>,
}

impl KeyRange {
    /// All keys.
    pub const ALL: KeyRange = KeyRange { lower: Bound::Unbounded, upper: Bound::Unbounded, prefix: Vec::new() };

    /// The keys within bounds, which can be any bytes; nothing if there can be no such key.
    pub fn within(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Option<KeyRange> {
        // A key is at most as long as the beginning of a longer bound, so it is above the bound only if it is above that beginning.
        let key = |bytes: &[u8]| KeyBuf::new(&bytes[..bytes.len().min(KEY_BYTES_MAX)]).ok();
        let is_long = |bytes: &[u8]| bytes.len() > KEY_BYTES_MAX;
        let lower = match lower {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Included(bytes) | Bound::Excluded(bytes) if bytes.is_empty() => Bound::Unbounded,
            Bound::Included(bytes) if !is_long(bytes) => Bound::Included(key(bytes)?),
            Bound::Included(bytes) | Bound::Excluded(bytes) => Bound::Excluded(key(bytes)?),
        };
        let upper = match upper {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Excluded(bytes) if !is_long(bytes) => Bound::Excluded(key(bytes)?),
            Bound::Included(bytes) | Bound::Excluded(bytes) => Bound::Included(key(bytes)?),
        };
        let range = KeyRange { lower, upper, prefix: Vec::new() };
        (!range.is_inverted()).then_some(range)
    }

    /// Whether it ends before it begins.
    fn is_inverted(&self) -> bool {
        match (key_of(&self.lower), key_of(&self.upper)) {
            (Some(from), Some(to)) => from > to,
            _ => false,
        }
    }

    /// Its bounds, with the prefix taken into account. They may be inverted, if no key within the bounds has the prefix.
    pub fn bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let bytes = |bound: &Bound<KeyBuf>| bound.as_ref().map(|key| key.as_bytes().to_vec());
        let (mut lower, mut upper) = (bytes(&self.lower), bytes(&self.upper));
        if self.prefix.is_empty() {
            return (lower, upper);
        }
        if key_of(&self.lower).is_none_or(|from| from.as_bytes() < self.prefix.as_slice()) {
            lower = Bound::Included(self.prefix.clone());
        }
        if let Some(end) = end_of(&self.prefix)
            && key_of(&self.upper).is_none_or(|to| to.as_bytes() >= end.as_slice())
        {
            upper = Bound::Excluded(end);
        }
        (lower, upper)
    }
}

fn key_of(bound: &Bound<KeyBuf>) -> Option<&KeyBuf> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

/// The first key after all that begin with a prefix; nothing if there is none.
fn end_of(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.len() - prefix.iter().rev().take_while(|byte| **byte == u8::MAX).count();
    let mut end = prefix[..kept].to_vec();
    end.last_mut().map(|last| *last += 1).map(|()| end)
}

/// Writes a range as the data of Name Range, Count Range and Delete Range.
pub fn encode_range(range: &KeyRange) -> Vec<u8> {
    let kind = |bound: &Bound<KeyBuf>| match bound {
        Bound::Unbounded => 0,
        Bound::Included(_) => 1,
        Bound::Excluded(_) => 2,
    };
    let bytes = |bound| key_of(bound).map_or(&[][..], KeyBuf::as_bytes);
    let (from, to) = (bytes(&range.lower), bytes(&range.upper));
    let head = RangeHead {
        from: kind(&range.lower),
        to: kind(&range.upper),
        reserved_2: U16::ZERO,
        from_bytes: (from.len() as u16).into(),
        to_bytes: (to.len() as u16).into(),
        prefix_bytes: (range.prefix.len() as u16).into(),
        reserved_10: [0; 6],
    };
    [head.as_bytes(), from, to, &range.prefix].concat()
}

/// Reads a range; data may continue after it.
pub fn decode_range(data: &[u8]) -> Result<KeyRange, Status> {
    let (head, rest) = RangeHead::read_from_prefix(data).map_err(|_| Status::SGL_LENGTH)?;
    if head.reserved_2.get() != 0 || head.reserved_10 != [0; 6] {
        return Err(Status::INVALID_FIELD);
    }
    let (from, rest) = rest.split_at_checked(head.from_bytes.get().into()).ok_or(Status::SGL_LENGTH)?;
    let (to, rest) = rest.split_at_checked(head.to_bytes.get().into()).ok_or(Status::SGL_LENGTH)?;
    let prefix = rest.get(..head.prefix_bytes.get().into()).ok_or(Status::SGL_LENGTH)?;
    let bound = |kind, bytes: &[u8]| {
        let key = || KeyBuf::new(bytes).map_err(|_| Status::INVALID_KEY_SIZE);
        match (kind, bytes.len()) {
            (0, 0) => Ok(Bound::Unbounded),
            (1, _) => key().map(Bound::Included),
            (2, _) => key().map(Bound::Excluded),
            _ => Err(Status::INVALID_FIELD),
        }
    };
    let range = KeyRange { lower: bound(head.from, from)?, upper: bound(head.to, to)?, prefix: prefix.to_vec() };
    if prefix.len() > KEY_BYTES_MAX {
        return Err(Status::INVALID_KEY_SIZE);
    }
    if range.is_inverted() { Err(Status::INVERTED_RANGE) } else { Ok(range) }
}

/// A record of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: KeyBuf,
    /// Bytes of its value; 0 if only keys were requested.
    pub value_bytes: usize,
    /// Its value; nothing if it is too long for what the host has room for.
    pub value: Option<Vec<u8>>,
}

/// Appends a record, if there is room for it. A value that would never fit, because there is nothing before it, is returned without its bytes.
pub fn put_record(out: &mut Vec<u8>, key: &[u8], value: &[u8], room: usize) -> bool {
    let left = room.saturating_sub(out.len());
    let bytes = size_of::<RecordHead>() + key.len().next_multiple_of(4);
    let fits = bytes + value.len().next_multiple_of(4) <= left;
    if !fits && (!out.is_empty() || bytes > left) {
        return false;
    }
    let here = if fits { value } else { &[] };
    let head = RecordHead {
        value_bytes: (value.len() as u32).into(),
        here_bytes: (here.len() as u32).into(),
        key_bytes: (key.len() as u16).into(),
        reserved: U16::ZERO,
    };
    out.extend_from_slice(head.as_bytes());
    for bytes in [key, here] {
        out.extend_from_slice(bytes);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    true
}

/// Reads `count` records; none if the data are not whole.
pub fn decode_records(data: &[u8], count: usize) -> Option<Vec<Listed>> {
    let mut rest = data;
    let mut take = |bytes: usize| {
        let (taken, tail) = rest.split_at_checked(bytes)?;
        rest = &tail[(bytes.checked_next_multiple_of(4)? - bytes).min(tail.len())..];
        Some(taken)
    };
    let mut all = Vec::with_capacity(count.min(data.len() / size_of::<RecordHead>()));
    for _ in 0..count {
        let head = RecordHead::read_from_bytes(take(size_of::<RecordHead>())?).ok()?;
        let key = KeyBuf::new(take(head.key_bytes.get().into())?).ok()?;
        let value_bytes = head.value_bytes.get() as usize;
        let here = take(head.here_bytes.get() as usize)?;
        all.push(Listed { key, value_bytes, value: (here.len() == value_bytes).then(|| here.to_vec()) });
    }
    Some(all)
}
