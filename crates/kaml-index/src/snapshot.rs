//! Snapshots: a segment's buckets as they are, with a head that states what they are.
//!
//! Lives here:       the image's format, saving one segment after another, checking and loading them.
//! Lives elsewhere:  where images are kept, and what is replayed on top of them (`kaml-device`).
//! May be called by: `HashWriter`.
//!
//! A snapshot is *fuzzy*: the writer continues between two images, so each is true for its own moment. Segments
//! split but never merge across the place where a snapshot continues, so the next image always begins where the last ended, and
//! together they cover all keys exactly once. An index so has one snapshot at a time;
//! replaying every change since the first image gives the table of the end. Loading copies buckets back; no key is placed
//! again.
//!
//! An image is valid when its checksum is, when it continues the one before, and when every field and slot is one that this
//! code could have written (only equal keys twice in a segment are not looked for). A cut leaves a short image, refused as
//! such.

use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::ScopedJoinHandle;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::arena::{ENTRIES_PER_LINE, LINE_BYTES, NoAddressSpace, PAGE_LINES};
use crate::bucket::{self, EXTRA_BUCKET_BITS, Fields, Raw, SLOTS_MIN, Words, low_bits};
use crate::growth::{Built, DEPTH_LEAST, Owner};
use crate::mixed::Mixed;
use crate::probe::Coding;
use crate::shape::{DEPTH_MAX, HEADER_LINES, PAGES_MAX, Shape};
use crate::table::{Entry, Table, by_slots, extra_at, page_lines};
use crate::{HashLayout, HashWriter, Key, KeyKind};

/// Before the buckets of each image.
///
/// | offset | bytes | field       | meaning                                                        |
/// |-------:|------:|-------------|----------------------------------------------------------------|
/// |      0 |     4 | `magic`     | `"KIX1"`                                                       |
/// |      4 |     2 | `version`   | 2                                                              |
/// |      6 |     1 | `keys`      | 0: 64-bit integers, 1: 1 to 16 bytes                           |
/// |      7 |     1 | `addr_bits` | of a chunk number                                              |
/// |      8 |     8 | `seed`      | that keys were mixed with                                      |
/// |     16 |     4 | `prefix`    | the top `depth` bits of the mixed keys                         |
/// |     20 |     1 | `depth`     | 0 to 24                                                        |
/// |     21 |     1 | `slots`     | per bucket, 2 to 6, no more than depth and pages allow          |
/// |     22 |     2 | `pages`     | 1 to 15                                                        |
/// |     24 |     4 | `count`     | slots that are not empty                                       |
/// |     28 |     4 | `bytes`     | of head and pages: 64 for the head, 4096 or 4288 a page        |
/// |     32 |     8 | `outside`   | entries after the pages: keys that have no slot               |
/// |     40 |    20 | `reserved`  | zero when written, refused when not zero                       |
/// |     60 |     4 | `crc32c`    | over bytes 0..60, then all that follows                        |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    version: U16,
    keys: u8,
    addr_bits: u8,
    seed: U64,
    prefix: U32,
    depth: u8,
    slots: u8,
    pages: U16,
    count: U32,
    bytes: U32,
    outside: U64,
    reserved: [u8; 20],
    crc32c: U32,
}

/// Where an image states how many bits its chunk numbers have.
pub(crate) const ADDR_BITS_AT: usize = offset_of!(Head, addr_bits);

/// A key without a slot (`outside`), in the order of mixed keys.
///
/// | offset | bytes | field          | meaning                                                     |
/// |-------:|------:|----------------|-------------------------------------------------------------|
/// |      0 |     8 | `m`            | 64 mixed bits                                               |
/// |      8 |     8 | `high`         | the first 8 bytes of a key of 1 to 16 bytes, else 0         |
/// |     16 |     8 | `len_less_one` | the length of such a key less one, else 0                   |
/// |     24 |     8 | `value`        | length code << `addr_bits`, chunk number                    |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct OutsideEntry {
    m: U64,
    high: U64,
    len_less_one: U64,
    value: U64,
}

pub(crate) const HEAD_BYTES: usize = size_of::<Head>();
const MAGIC: [u8; 4] = *b"KIX1";
const VERSION: u16 = 2;

const _: () = {
    assert!(HEAD_BYTES == 64);
    assert!(offset_of!(Head, seed) == 8 && offset_of!(Head, prefix) == 16 && offset_of!(Head, pages) == 22);
    assert!(offset_of!(Head, bytes) == 28 && offset_of!(Head, outside) == 32 && offset_of!(Head, crc32c) == 60);
};

/// Where a snapshot continues: the first mixed key of the next segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotCursor(pub(crate) u64);

impl SnapshotCursor {
    /// Where every snapshot begins.
    pub const START: SnapshotCursor = SnapshotCursor(0);

    /// The [place](crate::ImageReader::place) of the first key of the next image.
    pub fn place(self) -> u64 {
        self.0
    }
}

/// Why an image was refused. Nothing of it is in the index then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes end inside an image.
    #[error("an image of {needed} bytes ends after {got}")]
    Short {
        /// What the image, or its head, takes.
        needed: usize,
        /// What there is.
        got: usize,
    },
    /// Not an image of an index.
    #[error("starts with {found:02x?}, which is no index image")]
    Magic {
        /// What is in place of the magic.
        found: [u8; 4],
    },
    /// Written by another version.
    #[error("version {found} is unknown; this is version {VERSION}")]
    Version {
        /// The image's version.
        found: u16,
    },
    /// An image of an index with other keys, other addresses, or another seed.
    #[error("taken from an index with another layout or seed")]
    Foreign,
    /// A field has a value that no image has.
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
    /// A slot holds what no key would put there.
    #[error("bucket {bucket} has an impossible slot {slot}")]
    Slot {
        /// Which bucket.
        bucket: u32,
        /// Which slot of it.
        slot: u32,
    },
    /// An entry without a slot is one that no index has, or not where it belongs.
    #[error("entry {entry} after the pages is impossible")]
    Outside {
        /// Which one.
        entry: u64,
    },
    /// The system has no address space for an index. The image may be whole.
    #[error(transparent)]
    NoAddressSpace(#[from] NoAddressSpace),
    /// The index has no address space for it.
    #[error("{pages} pages are more than the index has room for")]
    NoRoom {
        /// Pages of the snapshot.
        pages: u64,
    },
    /// A line of a dense index holds what no entries would put there.
    #[error("line {line} is impossible")]
    Line {
        /// Which line of the array.
        line: u64,
    },
    /// Some image before this one is missing, or this one was loaded already.
    #[error("begins at mixed key {found:#x}, not where the last image ended ({expected:#x?})")]
    OutOfOrder {
        /// Where the image must begin; none if nothing is missing any more.
        expected: Option<u64>,
        /// Where it begins.
        found: u64,
    },
    /// Images can be loaded into a fresh index only.
    #[error("the index already holds {keys} keys")]
    NotEmpty {
        /// How many it holds.
        keys: u64,
    },
    /// Images are missing at the end.
    #[error("no image of the mixed keys from {from:#x} on")]
    Incomplete {
        /// The first key of which nothing is known.
        from: u64,
    },
}

/// Bytes of a snapshot from which on checking it takes longer than starting threads.
const PARALLEL_BYTES: usize = 1 << 20;

/// One image, its head checked.
#[derive(Clone, Copy)]
pub(crate) struct Image<'a> {
    pub(crate) shape: Shape,
    bytes: &'a [u8],
}

impl HashWriter {
    /// Appends the image of one segment; where to continue, or none if it was the last. The index may change between calls. One
    /// snapshot is taken at a time; one that is given up needs nothing.
    ///
    /// # Panics
    /// When `from` is neither the start nor what the last call returned.
    pub fn snapshot_next(&self, from: SnapshotCursor, out: &mut Vec<u8>) -> Option<SnapshotCursor> {
        let table = &self.table;
        let header = table.arena.header(table.header(from.0));
        let shape = header.shape();
        assert!(shape.start() == from.0, "cursors are where segments begin, and none merge across the last one");
        let start = out.len();
        let bytes = image_bytes(&table.fields, shape);
        out.reserve(bytes);
        let mut outside = vec![];
        table.outside.collect(shape, &mut outside);
        out.extend_from_slice(head(table, shape, bytes as u32, outside.len() as u64).as_bytes());
        for number in (0..shape.pages()).map(|i| header.page(i)) {
            for line in number * table.page_lines()..(number + 1) * table.page_lines() {
                out.extend_from_slice(table.arena.line(line).load().map(U64::new).as_bytes());
            }
        }
        outside.iter().for_each(|entry| out.extend_from_slice(OutsideEntry::of(entry).as_bytes()));
        let crc32c = checksum(&out[start..]);
        out[start + offset_of!(Head, crc32c)..][..4].copy_from_slice(&crc32c.to_le_bytes());
        self.owner.imaged_until.store(shape.end().unwrap_or(0), Relaxed);
        shape.end().map(SnapshotCursor)
    }

    /// Restores a snapshot in a fresh index: its images, one after the other in the order in which they were taken. A large
    /// one is checked and copied by all processors. A snapshot that is refused leaves the index as it was.
    pub fn restore(&mut self, snapshot: &[u8]) -> Result<(), SnapshotError> {
        self.refuse_unless_empty()?;
        let images = self.table.images(snapshot)?;
        let arena = &self.table.arena;
        self.refuse_unless_room(&images)?;
        let targets = self.owner.pages.take_all(arena, |pages| {
            let mut take = |shape: Shape| (0..shape.pages()).map(|_| pages.take(arena)).collect();
            images.iter().map(|i| Built { shape: i.shape, pages: take(i.shape) }).collect::<Vec<_>>()
        });
        let threads = match snapshot.len() {
            ..PARALLEL_BYTES => 1,
            _ => std::thread::available_parallelism().map_or(1, usize::from),
        };
        let share = images.len().div_ceil(threads);
        let table = &*self.table;
        let copied = std::thread::scope(|scope| {
            let shares = images.chunks(share).zip(targets.chunks(share));
            let copy = |(images, targets): (&[Image<'_>], &[Built])| {
                images.iter().zip(targets).try_for_each(|(image, target)| table.copy_in(image, &target.pages))
            };
            let mut shares = shares;
            let own = shares.next();
            // Where the system refuses a thread, this one copies what that thread would have.
            let others: Vec<_> = shares
                .map(|share| {
                    let begun = std::thread::Builder::new().spawn_scoped(scope, move || copy(share));
                    begun.map_err(|_no_thread| share)
                })
                .collect();
            let own = own.map_or(Ok(()), copy);
            let join = |begun: Result<ScopedJoinHandle<'_, _>, _>| match begun {
                Ok(thread) => thread.join().expect("damaged images panic nowhere"),
                Err(share) => copy(share),
            };
            others.into_iter().map(join).fold(own, Result::and)
        });
        match copied {
            Ok(()) => {
                table.outside.add(images.iter().flat_map(Image::outside_entries));
                self.owner.start_loaded(table, &targets)
            }
            Err(_) => targets
                .iter()
                .flat_map(|target| &target.pages)
                .for_each(|page| self.owner.pages.give_back(arena, *page)),
        }
        copied
    }

    fn refuse_unless_room(&self, images: &[Image<'_>]) -> Result<(), SnapshotError> {
        let pages = images.iter().map(|image| u64::from(image.shape.pages())).sum();
        let depth = images.iter().map(|image| image.shape.depth()).max().unwrap_or(0).max(DEPTH_LEAST);
        // A page of headers may have a line or two to spare.
        let lines = images.len() as u64 * u64::from(HEADER_LINES + 1) + (1 << depth) / ENTRIES_PER_LINE;
        let (Ok(few), Ok(lines)) = (u32::try_from(pages), u32::try_from(lines)) else {
            return Err(SnapshotError::NoRoom { pages });
        };
        match self.owner.pages.have_room(&self.table.arena, few, lines) {
            true => Ok(()),
            false => Err(SnapshotError::NoRoom { pages }),
        }
    }

    fn refuse_unless_empty(&self) -> Result<(), SnapshotError> {
        match self.len() {
            0 => Ok(()),
            keys => Err(SnapshotError::NotEmpty { keys }),
        }
    }
}

impl Table {
    /// The images of a snapshot, if they cover all keys; only their heads are looked at.
    fn images<'a>(&self, snapshot: &'a [u8]) -> Result<Vec<Image<'a>>, SnapshotError> {
        let (mut rest, mut images, mut next) = (snapshot, vec![], Some(0));
        let coding = self.coding();
        while !rest.is_empty() {
            let (image, remainder) = coding.first_image(rest)?;
            if next != Some(image.shape.start()) {
                return Err(SnapshotError::OutOfOrder { expected: next, found: image.shape.start() });
            }
            next = image.shape.end();
            images.push(image);
            rest = remainder;
        }
        match next {
            None => Ok(images),
            Some(from) => Err(SnapshotError::Incomplete { from }),
        }
    }

    pub(crate) fn coding(&self) -> Coding {
        Coding { fields: self.fields, mixer: self.mixer, layout: self.layout, seed: self.seed }
    }

    /// Checks an image and copies its buckets into pages that nothing refers to.
    fn copy_in(&self, image: &Image<'_>, pages: &[u32]) -> Result<(), SnapshotError> {
        let (coding, lines) = (self.coding(), image.checked_lines()?);
        by_slots!(image.shape.slots_per_bucket(), N => check_buckets::<N>(&coding, image.shape, lines)?);
        check_outside(&coding, image)?;
        for (lines, &page) in lines.chunks(self.page_lines() as usize).zip(pages) {
            for (words, line) in lines.iter().zip(page * self.page_lines()..) {
                self.arena.line(line).store(&words.map(U64::get));
            }
        }
        Ok(())
    }
}

impl Coding {
    /// The image at the beginning of some bytes, its head checked, and those after it.
    pub(crate) fn first_image<'a>(&self, bytes: &'a [u8]) -> Result<(Image<'a>, &'a [u8]), SnapshotError> {
        let (head, _) =
            Head::read_from_prefix(bytes).map_err(|_| SnapshotError::Short { needed: HEAD_BYTES, got: bytes.len() })?;
        let shape = check_head(self, &head)?;
        let outside_bytes = head.outside.get().saturating_mul(size_of::<OutsideEntry>() as u64);
        let needed = (outside_bytes as usize).saturating_add(head.bytes.get() as usize);
        let (bytes, remainder) =
            bytes.split_at_checked(needed).ok_or(SnapshotError::Short { needed, got: bytes.len() })?;
        Ok((Image { shape, bytes }, remainder))
    }

    /// Lines of a page.
    fn page_lines(&self) -> u32 {
        page_lines(&self.fields)
    }
}

impl Image<'_> {
    /// The lines of its pages, if its checksum is right.
    pub(crate) fn checked_lines(&self) -> Result<&[[U64; 8]], SnapshotError> {
        let (head, _) = Head::ref_from_prefix(self.bytes).expect("heads were looked at");
        let (computed, found) = (checksum(self.bytes), head.crc32c.get());
        if computed != found {
            return Err(SnapshotError::Checksum { found, computed });
        }
        let lines = &self.bytes[HEAD_BYTES..head.bytes.get() as usize];
        Ok(<[[U64; 8]]>::ref_from_bytes(lines).expect("its length is a multiple"))
    }

    /// Keys that have no slot, with their values.
    pub(crate) fn outside_entries(&self) -> impl Iterator<Item = Entry> {
        self.outside().iter().map(OutsideEntry::entry)
    }

    /// The entries after the pages.
    fn outside(&self) -> &[OutsideEntry] {
        let (head, _) = Head::ref_from_prefix(self.bytes).expect("heads were looked at");
        <[OutsideEntry]>::ref_from_bytes(&self.bytes[head.bytes.get() as usize..]).expect("its length is a multiple")
    }
}

impl OutsideEntry {
    fn of((mixed, value): &Entry) -> OutsideEntry {
        let len_less_one = u64::from(mixed.len_less_one);
        OutsideEntry {
            m: mixed.m.into(),
            high: mixed.high.into(),
            len_less_one: len_less_one.into(),
            value: (*value).into(),
        }
    }

    fn entry(&self) -> Entry {
        let len_less_one = self.len_less_one.get() as u8;
        (Mixed { m: self.m.get(), high: self.high.get(), len_less_one }, self.value.get())
    }
}

/// The seed of the index that a snapshot was taken of.
pub(crate) fn seed_of(snapshot: &[u8]) -> Result<u64, SnapshotError> {
    let short = SnapshotError::Short { needed: HEAD_BYTES, got: snapshot.len() };
    Head::ref_from_prefix(snapshot).map(|(head, _)| head.seed.get()).map_err(|_| short)
}

impl Owner {
    /// Replaces the one empty segment of a fresh index: every header and the directory again, then the root. The old segment
    /// remains with its page, for readers who are in it; they see an index without keys.
    fn start_loaded(&mut self, table: &Table, segments: &[Built]) {
        let depth = segments.iter().map(|built| built.shape.depth()).max().expect("one segment at least");
        let headers: Vec<u32> = segments.iter().map(|built| self.publish_header(table, built)).collect();
        let depth = depth.max(DEPTH_LEAST);
        let mut at = 0;
        self.directory(table, depth, |index| {
            while !segments[at].shape.holds(index << (64 - depth)) {
                at += 1;
            }
            headers[at]
        });
        let sum = |of: fn(Shape) -> u32| segments.iter().map(|built| u64::from(of(built.shape))).sum();
        table.stats.key_count.store(sum(Shape::count) + table.outside.len(), Relaxed);
        table.stats.slot_count.store(sum(Shape::slots), Relaxed);
        let images = segments.iter().map(|built| image_bytes(&table.fields, built.shape) as u64).sum();
        table.stats.image_bytes.store(images, Relaxed);
        self.count_memory(table);
    }
}

fn head(table: &Table, shape: Shape, bytes: u32, outside: u64) -> Head {
    Head {
        magic: MAGIC,
        version: VERSION.into(),
        keys: kind_code(table.layout),
        addr_bits: table.layout.addr_bits as u8,
        seed: table.seed.into(),
        prefix: shape.prefix().into(),
        depth: shape.depth() as u8,
        slots: shape.slots_per_bucket() as u8,
        pages: (shape.pages() as u16).into(),
        count: shape.count().into(),
        bytes: bytes.into(),
        outside: outside.into(),
        reserved: [0; 20],
        crc32c: 0.into(),
    }
}

fn kind_code(layout: HashLayout) -> u8 {
    match layout.keys {
        KeyKind::U64 => 0,
        KeyKind::Bytes => 1,
        KeyKind::Any => 2,
        KeyKind::Ordered => 3,
    }
}

/// Over the whole image but the checksum's own four bytes.
pub(crate) fn checksum(image: &[u8]) -> u32 {
    let head = kaml_crc::crc32c(&image[..offset_of!(Head, crc32c)]);
    kaml_crc::crc32c_append(head, &image[HEAD_BYTES..])
}

fn check_head(coding: &Coding, head: &Head) -> Result<Shape, SnapshotError> {
    if head.magic != MAGIC {
        return Err(SnapshotError::Magic { found: head.magic });
    }
    if head.version.get() != VERSION {
        return Err(SnapshotError::Version { found: head.version.get() });
    }
    let own = (kind_code(coding.layout), coding.layout.addr_bits, coding.seed);
    if (head.keys, u32::from(head.addr_bits), head.seed.get()) != own {
        return Err(SnapshotError::Foreign);
    }
    let field =
        |field, found: u64, valid: bool| if valid { Ok(()) } else { Err(SnapshotError::Field { field, found }) };
    let (depth, prefix, pages) = (u32::from(head.depth), head.prefix.get(), u32::from(head.pages.get()));
    field("depth", depth.into(), depth <= DEPTH_MAX)?;
    field("prefix", prefix.into(), u64::from(prefix) <= low_bits(depth))?;
    field("pages", pages.into(), (1..PAGES_MAX).contains(&pages))?;
    let (slots, count, bytes) = (u32::from(head.slots), head.count.get(), head.bytes.get());
    let possible = Shape::new(&coding.fields, prefix, depth, pages).slots_per_bucket();
    field("slots", slots.into(), (SLOTS_MIN..=possible).contains(&slots))?;
    let shape = Shape::with_slots(prefix, depth, pages, slots);
    field("count", count.into(), count <= shape.slots())?;
    field("bytes", bytes.into(), bytes as usize == image_bytes(&coding.fields, shape))?;
    field("reserved", 1, head.reserved == [0; 20])?;
    Ok(shape.with_count(count))
}

/// Head and pages.
pub(crate) fn image_bytes(fields: &Fields, shape: Shape) -> usize {
    HEAD_BYTES + (shape.pages() * page_lines(fields)) as usize * LINE_BYTES
}

/// Refuses entries that are of no key, of another segment's, or not in their order.
fn check_outside(coding: &Coding, image: &Image<'_>) -> Result<(), SnapshotError> {
    let mut last = None;
    for (i, entry) in (0..).zip(image.outside()) {
        let (mixed, value) = entry.entry();
        let is_key = match coding.layout.keys {
            KeyKind::U64 => mixed.high == 0 && entry.len_less_one == 0,
            KeyKind::Bytes | KeyKind::Any | KeyKind::Ordered => {
                entry.len_less_one.get() <= Key::BYTES_MAX as u64 && coding.mixer.key(&mixed).is_some()
            }
        };
        let is_value = coding.fields.slot_of(value).is_some_and(|slot| coding.fields.value_of(slot) == value);
        if !is_key || !is_value || !image.shape.holds(mixed.m) || last.replace(mixed) >= Some(mixed) {
            return Err(SnapshotError::Outside { entry: i });
        }
    }
    Ok(())
}

/// Refuses slots that are not where their key belongs, bits outside of slots, and a wrong count.
fn check_buckets<const N: usize>(coding: &Coding, shape: Shape, lines: &[[U64; 8]]) -> Result<(), SnapshotError> {
    let mut outside: Words = [u64::MAX; 9];
    for slot in 0..N {
        outside.iter_mut().zip(bucket::slot_mask::<N>(slot)).for_each(|(outside, mask)| *outside &= !mask);
    }
    let mut count = 0;
    for bucket in 0..shape.buckets() {
        let words = bucket_of_image(coding, lines, bucket);
        for slot in 0..N {
            let raw = bucket::raw::<N>(&words, slot);
            if raw == Raw::default() {
                continue;
            }
            count += 1;
            if !is_at_home::<N>(coding, shape, bucket, &words, slot, raw) {
                return Err(SnapshotError::Slot { bucket, slot: slot as u32 });
            }
        }
        if words.iter().zip(&outside).any(|(word, outside)| word & outside != 0) {
            return Err(SnapshotError::Slot { bucket, slot: N as u32 });
        }
    }
    if count != shape.count() {
        return Err(SnapshotError::Field { field: "count", found: shape.count().into() });
    }
    Ok(())
}

/// A bucket with its bits after the page.
pub(crate) fn bucket_of_image(coding: &Coding, lines: &[[U64; 8]], bucket: u32) -> Words {
    let (first, line) = (bucket / PAGE_LINES * coding.page_lines(), bucket % PAGE_LINES);
    let words = &lines[(first + line) as usize];
    std::array::from_fn(|i| match words.get(i) {
        Some(word) => word.get(),
        None if coding.fields.extra => {
            let (extra_line, word, shift) = extra_at(line);
            lines[(first + extra_line) as usize][word].get() >> shift & low_bits(EXTRA_BUCKET_BITS)
        }
        None => 0,
    })
}

/// Whether a slot holds what the writer would put there, and nothing else.
fn is_at_home<const N: usize>(
    coding: &Coding,
    shape: Shape,
    bucket: u32,
    words: &Words,
    slot: usize,
    raw: Raw,
) -> bool {
    let fields = &coding.fields;
    let (choice, kept, verbatim) = fields.key_of::<N>(words, slot);
    let mixed = shape.mixed(bucket, choice, kept, &verbatim);
    let place = shape.place(&mixed);
    let value = fields.value::<N>(words, slot);
    let packed = fields.pack::<N>(place.remainders[choice as usize], choice, value, &verbatim);
    let key_is_whole = coding.layout.keys == KeyKind::U64 || coding.mixer.key(&mixed).is_some();
    fields.slot_of(value).is_some() && place.buckets[choice as usize] == bucket && raw == packed && key_is_whole
}

#[cfg(test)]
mod tests;
