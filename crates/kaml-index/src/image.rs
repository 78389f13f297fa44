//! Images of a dense index: the lines of a segment as they are, with a head that states which keys they cover.
//!
//! Lives here:       the image's format, saving one segment after another, checking and loading them.
//! Lives elsewhere:  where images are kept, and what is replayed on top of them (`kaml-device`).
//! May be called by: `DenseWriter`.
//!
//! Images are fuzzy as those of a hash index (`snapshot`): each is true for its own moment. An image answers for all keys
//! from where the last one ended to the end of its segment; those that it skips had no records. So an empty index is one
//! image without lines, and together the images cover all keys once.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::arena::{LINE_BYTES, Line};
use crate::dense::{Array, DenseWriter, SEGMENT_LINES};
use crate::snapshot::checksum;
use crate::{Slot, SnapshotCursor, SnapshotError};

/// Before the lines of each image.
///
/// | offset | bytes | field       | meaning                                                        |
/// |-------:|------:|-------------|----------------------------------------------------------------|
/// |      0 |     4 | `magic`     | `"KDX1"`                                                       |
/// |      4 |     2 | `version`   | 1                                                              |
/// |      6 |     1 | `addr_bits` | of a chunk number                                              |
/// |      7 |     1 | `len_code`  | length code of every record                                    |
/// |      8 |     8 | `key_count` | keys that the index has room for                               |
/// |     16 |     8 | `from`      | the first key that the image answers for                       |
/// |     24 |     8 | `first`     | the first key of the lines                                     |
/// |     32 |     8 | `until`     | the key after the last one that it covers                     |
/// |     40 |     4 | `lines`     | 0 to 1024                                                      |
/// |     44 |     4 | `count`     | entries that are not empty                                     |
/// |     48 |    12 | `reserved`  | zero when written, refused when not zero                       |
/// |     60 |     4 | `crc32c`    | over bytes 0..60, then the lines                               |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    version: U16,
    addr_bits: u8,
    len_code: u8,
    key_count: U64,
    from: U64,
    first: U64,
    until: U64,
    lines: U32,
    count: U32,
    reserved: [u8; 12],
    crc32c: U32,
}

/// Where an image states how many bits its chunk numbers have.
pub(crate) const ADDR_BITS_AT: usize = std::mem::offset_of!(Head, addr_bits);

const HEAD_BYTES: usize = size_of::<Head>();
const MAGIC: [u8; 4] = *b"KDX1";
const VERSION: u16 = 1;

const _: () = {
    assert!(HEAD_BYTES == LINE_BYTES);
    assert!(offset_of!(Head, key_count) == 8 && offset_of!(Head, until) == 32 && offset_of!(Head, lines) == 40);
    assert!(offset_of!(Head, reserved) == 48 && offset_of!(Head, crc32c) == 60);
};

impl DenseWriter {
    /// Appends the image of the next segment with keys; where to continue, or none if it was the last. The index may change
    /// between calls.
    pub fn snapshot_next(&self, from: SnapshotCursor, out: &mut Vec<u8>) -> Option<SnapshotCursor> {
        let array = &*self.array;
        let (from, end) = (from.0, array.layout.key_count);
        let segments = (from / array.segment_keys()) as usize..end.div_ceil(array.segment_keys()) as usize;
        let with_keys = array.made(segments).find_map(|(segment, lines)| Some((segment, words(lines)?)));
        let (first, until, words) = match with_keys {
            Some((segment, words)) => {
                let first = segment as u64 * array.segment_keys();
                (first, end.min(first + array.segment_keys()), words)
            }
            None => (from, end, Vec::new()),
        };
        let counts = words.iter().zip(first / array.per_line..).map(|(words, line)| array.check_line(line, words));
        let mut head = Head {
            magic: MAGIC,
            version: VERSION.into(),
            addr_bits: array.layout.addr_bits as u8,
            len_code: array.layout.len.get(),
            key_count: end.into(),
            from: from.into(),
            first: first.into(),
            until: until.into(),
            lines: (words.len() as u32).into(),
            count: counts.map(|count| count.expect("the writer's own lines")).sum::<u32>().into(),
            reserved: [0; 12],
            crc32c: U32::ZERO,
        };
        let start = out.len();
        out.extend_from_slice(head.as_bytes());
        words.iter().for_each(|words| out.extend_from_slice(words.map(U64::new).as_bytes()));
        head.crc32c = checksum(&out[start..]).into();
        out[start..start + HEAD_BYTES].copy_from_slice(head.as_bytes());
        (until < end).then_some(SnapshotCursor(until))
    }

    /// Restores a snapshot in a fresh index: its images, one after the other in the order in which they were taken. A
    /// snapshot that is refused leaves the index as it was.
    pub fn restore(&mut self, snapshot: &[u8]) -> Result<(), SnapshotError> {
        self.refuse_unless_empty()?;
        let (mut rest, mut images, mut next) = (snapshot, vec![], 0);
        let key_count = self.array.layout.key_count;
        while !rest.is_empty() {
            let image = self.array.check(rest)?;
            let from = image.head.from.get();
            if from != next {
                return Err(SnapshotError::OutOfOrder { expected: (next < key_count).then_some(next), found: from });
            }
            next = image.head.until.get();
            rest = &rest[HEAD_BYTES + size_of_val(image.lines)..];
            images.push(image);
        }
        if next < key_count {
            return Err(SnapshotError::Incomplete { from: next });
        }
        for image in images.iter().filter(|image| !image.lines.is_empty()) {
            let targets = self.array.lines_to_change((self.array.first_line(image.head) / SEGMENT_LINES) as usize);
            targets.iter().zip(image.lines).for_each(|(line, words)| line.store(&words.map(U64::get)));
            let segment = (self.array.first_line(image.head) / SEGMENT_LINES) as usize;
            self.array.count_entries(segment, image.head.count.get().into());
        }
        Ok(())
    }

    fn refuse_unless_empty(&self) -> Result<(), SnapshotError> {
        match self.len() {
            0 => Ok(()),
            keys => Err(SnapshotError::NotEmpty { keys }),
        }
    }
}

/// An image whose every field and line was checked.
struct Image<'a> {
    head: &'a Head,
    lines: &'a [[U64; 8]],
}

impl Array {
    /// The image that `bytes` begin with.
    fn check<'a>(&self, bytes: &'a [u8]) -> Result<Image<'a>, SnapshotError> {
        let short = |needed| SnapshotError::Short { needed, got: bytes.len() };
        let (head, _) = Head::ref_from_prefix(bytes).map_err(|_| short(HEAD_BYTES))?;
        check_head(self, head)?;
        let taken = HEAD_BYTES + head.lines.get() as usize * LINE_BYTES;
        let image = bytes.get(..taken).ok_or(short(taken))?;
        let computed = checksum(image);
        if computed != head.crc32c.get() {
            return Err(SnapshotError::Checksum { found: head.crc32c.get(), computed });
        }
        let (lines, _) = <[[U64; 8]]>::ref_from_prefix_with_elems(&image[HEAD_BYTES..], head.lines.get() as usize)
            .expect("the image has as many bytes as its lines take");
        check_lines(self, head, lines, self.first_line(head))?;
        Ok(Image { head, lines })
    }

    /// Where the record of a number is, by the image that covers the number.
    pub(crate) fn slot_in_image(&self, number: u64, image: &[u8]) -> Result<Option<Slot>, SnapshotError> {
        let image = self.check(image)?;
        let (from, first, until) = (image.head.from.get(), image.head.first.get(), image.head.until.get());
        if !(from..until).contains(&number) {
            return Err(SnapshotError::OutOfOrder { expected: Some(number), found: from });
        }
        let line = number
            .checked_sub(first)
            .and_then(|_| image.lines.get((number / self.per_line - self.first_line(image.head)) as usize));
        Ok(line.and_then(|words| self.slot_in_words(number, &words.map(U64::get))))
    }

    fn first_line(&self, head: &Head) -> u64 {
        head.first.get() / self.per_line
    }
}

/// An image of this many lines.
pub(crate) fn image_bytes(lines: usize) -> usize {
    HEAD_BYTES + lines * LINE_BYTES
}

/// The lines of a segment with their versions left out, if any has an entry.
fn words(lines: &[Line]) -> Option<Vec<[u64; 8]>> {
    let words: Vec<[u64; 8]> = lines.iter().map(|line| without_version(line.load())).collect();
    words.iter().any(|words| *words != [0; 8]).then_some(words)
}

/// Only the writer takes images, so no line changes meanwhile.
fn without_version(mut words: [u64; 8]) -> [u64; 8] {
    words[0] &= !u64::from(u32::MAX);
    words
}

fn check_head(array: &Array, head: &Head) -> Result<(), SnapshotError> {
    if head.magic != MAGIC {
        return Err(SnapshotError::Magic { found: head.magic });
    }
    if head.version.get() != VERSION {
        return Err(SnapshotError::Version { found: head.version.get() });
    }
    let layout = &array.layout;
    let own = (layout.addr_bits, layout.len.get(), layout.key_count);
    if (u32::from(head.addr_bits), head.len_code, head.key_count.get()) != own {
        return Err(SnapshotError::Foreign);
    }
    let field =
        |field, found: u64, valid: bool| if valid { Ok(()) } else { Err(SnapshotError::Field { field, found }) };
    let (from, first, until) = (head.from.get(), head.first.get(), head.until.get());
    let (lines, keys) = (u64::from(head.lines.get()), array.segment_keys());
    field(
        "until",
        until,
        until <= layout.key_count && until > from && (until == layout.key_count || until % keys == 0),
    )?;
    match lines {
        0 => field("first", first, first == from)?,
        _ => {
            field("first", first, first % keys == 0 && first >= from && first < until && until - first <= keys)?;
            field("lines", lines, lines == (until - first).div_ceil(array.per_line))?;
        }
    }
    field("reserved", 1, head.reserved == [0; 12])
}

fn check_lines(array: &Array, head: &Head, lines: &[[U64; 8]], first: u64) -> Result<(), SnapshotError> {
    let mut count = 0;
    for (words, line) in lines.iter().zip(first..) {
        let found = array.check_line(line, &words.map(U64::get));
        count += found.ok_or(SnapshotError::Line { line })?;
    }
    match count == head.count.get() {
        true => Ok(()),
        false => Err(SnapshotError::Field { field: "count", found: head.count.get().into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DenseLayout, Key, LenCode, Slot};

    /// Goal:   the format does not drift: an image written today is read by every later version.
    /// Method: the image of a small index, byte by byte.
    #[test]
    fn golden_image() {
        let len = LenCode::of(33).unwrap();
        let mut index = DenseWriter::new(DenseLayout { key_count: 20, addr_bits: 34, len });
        for (key, at) in [(0, 0x1_2345_6789), (1, 7), (12, (1 << 34) - 1), (19, 1)] {
            index.insert(&Key::from(key), Slot { at, len });
        }
        let mut image = vec![];
        assert_eq!(index.snapshot_next(SnapshotCursor::START, &mut image), None);
        let mut wanted = vec![];
        wanted.extend(b"KDX1\x01\0\x22\x19\x14\0\0\0\0\0\0\0");
        wanted.extend([0; 16]);
        wanted.extend(b"\x14\0\0\0\0\0\0\0\x02\0\0\0\x04\0\0\0");
        wanted.extend([0; 12]);
        assert_eq!(image[..60], wanted);
        assert_eq!(kaml_crc::crc32c(&image[64..]), GOLDEN_LINES, "entries stand elsewhere in a line");
        assert_eq!(image.len(), 3 * 64);
    }

    const GOLDEN_LINES: u32 = 2_945_094_426;
}
