//! Checkpoint images: the entries of an index, in parts.
//!
//! Lives here:       the format of a part, taking one after another, checking and loading them.
//! Lives elsewhere:  where images are kept, and what is replayed on top of them (`kaml-device`).
//! May be called by: `OrderedWriter`.
//!
//! An image is *fuzzy* as that of a hash index: the writer continues between two parts, so each is true for its own moment. A part has all keys
//! from where the last one ended to where it ends itself. So the next part always begins where the last ended, however leaves have split
//! and merged, and together they cover all keys once. Replaying every change since the first part gives the index of the end.
//!
//! A part has entries, not nodes: what nodes look like can change without a new format, and loading builds full leaves.
//!
//! A part is valid when its checksum is, when it continues the one before, and when every field and entry is one that this code could have
//! written. A cut leaves a short part, refused as such.

use std::cmp::Ordering;
use std::mem::offset_of;

use kaml_index::Slot;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::build::BuildError;
use crate::inner::Wanted;
use crate::key::{KEY_BYTES_MAX, common};
use crate::node::Entries;
use crate::range::start_of;
use crate::tree::Fences;
use crate::{OrderedBuilder, OrderedLayout, OrderedWriter};

/// Before the bytes of each part.
///
/// | offset | bytes | field       | meaning                                                        |
/// |-------:|------:|-------------|----------------------------------------------------------------|
/// |      0 |     4 | `magic`     | `"KOX1"`                                                       |
/// |      4 |     2 | `version`   | 1                                                              |
/// |      6 |     1 | `addr_bits` | of a chunk number, 1 to 48                                     |
/// |      7 |     1 | `is_last`   | 1: the part goes to the end of all keys; else 0                |
/// |      8 |     4 | `count`     | entries                                                        |
/// |     12 |     4 | `bytes`     | of the part, the head included                                 |
/// |     16 |     2 | `from_len`  | of the bound where the part begins; 0 in the first part        |
/// |     18 |     2 | `until_len` | of the bound where it ends; 0 in the last part                 |
/// |     20 |     8 | `reserved`  | zero when written, refused when not zero                       |
/// |     28 |     4 | `crc32c`    | over bytes 0..28, then all that follows                        |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    version: U16,
    addr_bits: u8,
    is_last: u8,
    count: U32,
    bytes: U32,
    from_len: U16,
    until_len: U16,
    reserved: [u8; 8],
    crc32c: U32,
}

const HEAD_BYTES: usize = size_of::<Head>();
/// Where an image states how many bits its chunk numbers have.
pub(crate) const ADDR_BITS_AT: usize = offset_of!(Head, addr_bits);
const MAGIC: [u8; 4] = *b"KOX1";
const VERSION: u16 = 1;
/// A part ends after the leaf with which it has so many bytes.
pub const PART_BYTES: usize = 64 << 10;

const _: () = {
    assert!(HEAD_BYTES == 32);
    assert!(offset_of!(Head, count) == 8 && offset_of!(Head, from_len) == 16 && offset_of!(Head, until_len) == 18);
    assert!(offset_of!(Head, reserved) == 20 && offset_of!(Head, crc32c) == 28);
};

/// Where an image continues: the bound at which the next part begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageCursor(Vec<u8>);

impl ImageCursor {
    /// Where every image begins.
    pub const START: ImageCursor = ImageCursor(vec![]);

    /// A number for the bound at which the next part begins; larger bounds have no smaller numbers.
    pub fn place(&self) -> u64 {
        place_of(&self.0)
    }
}

/// A number for a key, as [`ImageCursor::place`] has it for bounds: its first eight bytes, with zeroes after a shorter one.
pub fn place_of(key: &[u8]) -> u64 {
    let mut first = [0; 8];
    let len = key.len().min(8);
    first[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(first)
}

/// As many bytes at the beginning of a part have all that [`begins_after`] looks at.
pub const PART_BEGIN_BYTES: usize = HEAD_BYTES + KEY_BYTES_MAX;

/// Whether a part, of which these are the first bytes, has only keys after `key`. Bytes of no part return any result: only
/// [`slot_in_part`] checks them.
pub fn begins_after(part: &[u8], key: &[u8]) -> bool {
    let from = Head::read_from_prefix(part).ok().and_then(|(head, rest)| rest.get(..head.from_len.get().into()));
    from.is_some_and(|from| from > key)
}

/// Where the record of a key lies, by the part of an image that has the key. `layout` is that of the index, with the bits of chunk numbers
/// that the image has ([`OrderedLayout::as_stored`]).
///
/// # Errors
/// The bytes are no whole part of an image of this layout, or one of other keys.
pub fn slot_in_part(layout: OrderedLayout, part: &[u8], key: &[u8]) -> Result<Option<Slot>, ImageError> {
    let (part, _) = check_part(part, layout)?;
    if part.from > key || part.until.is_some_and(|until| until <= key) {
        return Err(ImageError::OutOfOrder { part: 0 });
    }
    let (mut own, mut rest) = (part.from.to_vec(), part.entries);
    for entry in 0..part.count {
        let slot = part.next(&mut own, &mut rest, entry == 0).ok_or(ImageError::Entry { part: 0, entry })?;
        match own.as_slice().cmp(key) {
            Ordering::Less => {}
            Ordering::Equal => return Ok(Some(slot)),
            Ordering::Greater => return Ok(None),
        }
    }
    Ok(None)
}

/// Why an image was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImageError {
    /// The bytes end inside a part.
    #[error("a part of {needed} bytes ends after {got}")]
    Short {
        /// What the part, or its head, takes.
        needed: usize,
        /// What there is.
        got: usize,
    },
    /// Not an image of an ordered index.
    #[error("starts with {found:02x?}, which is no image of an ordered index")]
    Magic {
        /// What is in place of the magic.
        found: [u8; 4],
    },
    /// Written by another version.
    #[error("version {found} is unknown; this is version {VERSION}")]
    Version {
        /// The part's version.
        found: u16,
    },
    /// Of an index with other addresses.
    #[error("taken from an index with chunk numbers of {found} bits instead of {wanted}")]
    Foreign {
        /// The part's.
        found: u8,
        /// The index's.
        wanted: u8,
    },
    /// A field has a value that no part has.
    #[error("field {field} cannot be {found}")]
    Field {
        /// Its name.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// Some bit has changed since it was written.
    #[error("checksum {found:#010x} instead of {computed:#010x}")]
    Checksum {
        /// As stored.
        found: u32,
        /// As it should be.
        computed: u32,
    },
    /// An entry is one that no index has, or not where it belongs.
    #[error("entry {entry} of part {part} is impossible")]
    Entry {
        /// Which part of the image.
        part: usize,
        /// Which entry of it.
        entry: u32,
    },
    /// Some part before this one is missing, or this one was loaded already.
    #[error("part {part} does not begin where the last one ended")]
    OutOfOrder {
        /// Which part of the image.
        part: usize,
    },
    /// Parts are missing at the end.
    #[error("the last of {parts} parts does not go to the end of all keys")]
    Incomplete {
        /// How many parts there are.
        parts: usize,
    },
    /// The index has no address space for it.
    #[error("the image has more entries than the index has room for")]
    NoRoom,
    /// The system has no address space left.
    #[error(transparent)]
    NoAddressSpace(#[from] kaml_index::NoAddressSpace),
}

/// Bytes that a whole image takes at most if its entries take so many.
pub(crate) fn with_heads(entries: u64) -> u64 {
    entries + (entries / PART_BYTES as u64 + 1) * (HEAD_BYTES + 2 * KEY_BYTES_MAX) as u64
}

impl OrderedWriter {
    /// Appends the next part of an image; where to continue, or none if it was the last. The index may change between calls. A part has about 64 KiB.
    pub fn image_next(&self, from: &ImageCursor, out: &mut Vec<u8>) -> Option<ImageCursor> {
        let (tree, start) = (self.tree(), out.len());
        let (mut bytes, mut entries, mut fences) = (vec![], Entries::default(), Fences::default());
        let (mut body, mut last, mut count, mut until) = (vec![], from.0.clone(), 0u32, from.0.clone());
        let mut is_last = false;
        while !is_last && body.len() < PART_BYTES {
            let is_there = tree.read_leaf(Wanted::Key(&until), &mut bytes, &mut entries, &mut fences);
            let first = if is_there { start_of(&entries, std::ops::Bound::Included(&until)) } else { 0 };
            for i in first..entries.len() {
                push_entry(&mut body, &last, entries.key(i), entries.values[i], tree.value_bytes);
                last.clear();
                last.extend_from_slice(entries.key(i));
                count += 1;
            }
            is_last = !is_there || !fences.has_upper;
            until.clear();
            if !is_last {
                until.extend_from_slice(&fences.upper);
            }
        }
        let mut head = Head {
            magic: MAGIC,
            version: VERSION.into(),
            addr_bits: tree.addr_bits as u8,
            is_last: is_last.into(),
            count: count.into(),
            bytes: ((HEAD_BYTES + from.0.len() + until.len() + body.len()) as u32).into(),
            from_len: (from.0.len() as u16).into(),
            until_len: (until.len() as u16).into(),
            reserved: [0; 8],
            crc32c: U32::ZERO,
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&from.0);
        out.extend_from_slice(&until);
        out.extend_from_slice(&body);
        head.crc32c = checksum(&out[start..]).into();
        out[start..start + HEAD_BYTES].copy_from_slice(head.as_bytes());
        (!is_last).then_some(ImageCursor(until))
    }

    /// The index of which an image was taken: its parts, one after the other in the order in which they were taken. Leaves are full.
    ///
    /// # Panics
    /// As [`OrderedWriter::try_new`].
    pub fn of_image(layout: OrderedLayout, image: &[u8]) -> Result<OrderedWriter, ImageError> {
        let mut builder = OrderedBuilder::of_empty(OrderedWriter::try_new(layout)?);
        let (mut rest, mut next, mut part) = (image, Some(vec![]), 0);
        while !rest.is_empty() {
            let (found, behind) = check_part(rest, layout)?;
            if next.as_deref() != Some(found.from) {
                return Err(ImageError::OutOfOrder { part });
            }
            found.load(part, &mut builder)?;
            next = found.until.map(<[u8]>::to_vec);
            (rest, part) = (behind, part + 1);
        }
        match next {
            None => Ok(builder.finish()),
            Some(_) => Err(ImageError::Incomplete { parts: part }),
        }
    }
}

fn push_entry(out: &mut Vec<u8>, last: &[u8], key: &[u8], value: u64, value_bytes: usize) {
    let shared = common(last, key);
    push_length(out, shared);
    push_length(out, key.len() - shared);
    out.extend_from_slice(&key[shared..]);
    out.extend_from_slice(&value.to_le_bytes()[..value_bytes]);
}

/// One byte below 128, else two: seven low bits and the highest, then the others.
fn push_length(out: &mut Vec<u8>, len: usize) {
    match len {
        ..128 => out.push(len as u8),
        _ => out.extend_from_slice(&[len as u8 | 128, (len >> 7) as u8]),
    }
}

/// A length as `push_length` writes it, and what follows.
fn read_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match bytes {
        [one @ ..128, rest @ ..] => Some((usize::from(*one), rest)),
        [low, high, rest @ ..] if *high > 0 => Some((usize::from(low & 127) | usize::from(*high) << 7, rest)),
        _ => None,
    }
}

/// The checksum of a part, without the field that holds it.
fn checksum(part: &[u8]) -> u32 {
    let head = kaml_crc::crc32c(&part[..offset_of!(Head, crc32c)]);
    kaml_crc::crc32c_append(head, &part[HEAD_BYTES..])
}

/// A part whose head and checksum are right.
struct Part<'a> {
    from: &'a [u8],
    until: Option<&'a [u8]>,
    count: u32,
    entries: &'a [u8],
    addr_bits: u32,
}

/// The part at the beginning of some bytes, and those after it.
fn check_part(bytes: &[u8], layout: OrderedLayout) -> Result<(Part<'_>, &[u8]), ImageError> {
    let (head, _) =
        Head::read_from_prefix(bytes).map_err(|_| ImageError::Short { needed: HEAD_BYTES, got: bytes.len() })?;
    if head.magic != MAGIC {
        return Err(ImageError::Magic { found: head.magic });
    }
    if head.version.get() != VERSION {
        return Err(ImageError::Version { found: head.version.get() });
    }
    let field = |field, found: u64| Err(ImageError::Field { field, found });
    if u32::from(head.addr_bits) != layout.addr_bits {
        return Err(ImageError::Foreign { found: head.addr_bits, wanted: layout.addr_bits as u8 });
    }
    let bounds = [("from_len", head.from_len.get()), ("until_len", head.until_len.get())];
    if let Some((name, len)) = bounds.into_iter().find(|(_, len)| usize::from(*len) > KEY_BYTES_MAX) {
        return field(name, len.into());
    }
    if head.is_last > 1 || (head.is_last == 1) != (head.until_len.get() == 0) {
        return field("is_last", head.is_last.into());
    }
    if head.reserved != [0; 8] {
        return field("reserved", u64::from_le_bytes(head.reserved));
    }
    let (needed, from_len) = (head.bytes.get() as usize, usize::from(head.from_len.get()));
    let entries_at = HEAD_BYTES + from_len + usize::from(head.until_len.get());
    if needed < entries_at {
        return field("bytes", needed as u64);
    }
    let (part, behind) = bytes.split_at_checked(needed).ok_or(ImageError::Short { needed, got: bytes.len() })?;
    let (computed, found) = (checksum(part), head.crc32c.get());
    if computed != found {
        return Err(ImageError::Checksum { found, computed });
    }
    let part = Part {
        from: &part[HEAD_BYTES..HEAD_BYTES + from_len],
        until: (head.is_last == 0).then(|| &part[HEAD_BYTES + from_len..entries_at]),
        count: head.count.get(),
        entries: &part[entries_at..],
        addr_bits: layout.addr_bits,
    };
    Ok((part, behind))
}

impl Part<'_> {
    /// Checks the entries and appends them to an index.
    fn load(&self, part: usize, builder: &mut OrderedBuilder) -> Result<(), ImageError> {
        let (mut key, mut rest) = (self.from.to_vec(), self.entries);
        for entry in 0..self.count {
            let impossible = ImageError::Entry { part, entry };
            let slot = self.next(&mut key, &mut rest, entry == 0).ok_or(impossible.clone())?;
            match builder.push(&key, slot) {
                Ok(()) => {}
                Err(BuildError::NoRoom { .. }) => return Err(ImageError::NoRoom),
                Err(BuildError::Key { .. } | BuildError::NotAscending { .. }) => return Err(impossible),
            }
        }
        let is_inside = self.count == 0 || self.until.is_none_or(|until| key.as_slice() < until);
        let is_forward = self.until.is_none_or(|until| self.from < until);
        if !rest.is_empty() || !is_inside || !is_forward {
            return Err(ImageError::Entry { part, entry: self.count });
        }
        Ok(())
    }

    /// The next entry: makes `key` its key. None if it is not one that is written.
    fn next(&self, key: &mut Vec<u8>, rest: &mut &[u8], is_first: bool) -> Option<Slot> {
        let value_bytes = (self.addr_bits + kaml_index::LenCode::BITS).div_ceil(8) as usize;
        let (shared, bytes) = read_length(rest)?;
        let (len, bytes) = read_length(bytes)?;
        let (suffix, bytes) = bytes.split_at_checked(len)?;
        let (value, bytes) = bytes.split_at_checked(value_bytes)?;
        *rest = bytes;
        if shared > key.len() || shared + len > KEY_BYTES_MAX {
            return None;
        }
        // The first can be the bound itself; any other continues above the one before, at the first byte that differs.
        let is_above = match (key.get(shared), suffix.first()) {
            (None, None) => is_first,
            (None, Some(_)) => true,
            (Some(old), Some(new)) => new > old,
            (Some(_), None) => false,
        };
        key.truncate(shared);
        key.extend_from_slice(suffix);
        let mut number = [0; 8];
        number[..value_bytes].copy_from_slice(value);
        let value = u64::from_le_bytes(number);
        let len = kaml_index::LenCode::from_stored(u8::try_from(value >> self.addr_bits).ok()?)?;
        is_above.then_some(Slot { at: value & ((1 << self.addr_bits) - 1), len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaml_index::LenCode;

    /// Goal:   the format does not drift: an image written today is read by every later version.
    /// Method: a small index, byte by byte, its checksum too.
    #[test]
    fn golden_image() {
        let layout = OrderedLayout { addr_bits: 36 };
        let mut index = OrderedWriter::new(layout);
        let slot = |at| Slot { at, len: LenCode::of(3).unwrap() };
        let long = [b"b".as_slice(), &[0xff; 199]].concat();
        for (key, at) in [(b"app".as_slice(), 0x0102_0304), (b"apple", 5), (&long, 6)] {
            assert_eq!(index.insert(key, slot(at)), Ok(None));
        }
        let mut image = vec![];
        assert_eq!(index.image_next(&ImageCursor::START, &mut image), None);
        let mut wanted = vec![];
        wanted.extend(b"KOX1\x01\0\x24\x01\x03\0\0\0\x06\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        wanted.extend(GOLDEN_CRC32C.to_le_bytes());
        wanted.extend(b"\0\x03app\x04\x03\x02\x01\x30\0");
        wanted.extend(b"\x03\x02le\x05\0\0\0\x30\0");
        wanted.extend(b"\0\xc8\x01");
        wanted.extend(&long);
        wanted.extend(b"\x06\0\0\0\x30\0");
        assert_eq!(image, wanted);
        assert_eq!(OrderedWriter::of_image(layout, &wanted).unwrap().len(), 3);
    }

    const GOLDEN_CRC32C: u32 = 0x741d_b92c;
}
