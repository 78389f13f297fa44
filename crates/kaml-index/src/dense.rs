//! The `dense` index: an array, for keys that are numbers below a limit and records of one length.
//!
//! Lives here:       the array, reading it while it is written, changing it.
//! Lives elsewhere:  images of its segments (`image`).
//! May be called by: everyone; the writer by a caller that holds the firmware core.
//! Implements:       docs/ARCHITECTURE.md "Block namespaces".
//!
//! A key's place is the key itself, and all records have one length, so an entry is the chunk number and nothing else: 4.9
//! bytes for chunk numbers of 34 to 35 bits, 5.3 up to 39. Entries are packed into lines of 64 bytes, each with a version:
//!
//! | bits of a line | field     | meaning                                                                     |
//! |----------------|-----------|-----------------------------------------------------------------------------|
//! | 0 .. 32        | `version` | odd while the line changes                                                  |
//! | 32 .. 512      | entries   | `addr_bits + 1` bits each: chunk number + 1, 0 for a key without a record   |
//!
//! - 1024 lines are a segment, made when one of its keys is first inserted and kept until the index is dropped, so a
//!   reader needs no protocol to reach a line. So are 256 places for segments, a group: a namespace costs next to nothing before
//!   it has data, however large it is.
//! - A reader loads the version (acquire), the entry's words (relaxed), fences (acquire), loads the version again; equal
//!   and even means that the words stood together. The writer makes it odd (relaxed), fences (release), stores the words
//!   (relaxed) and last the version (release), as the hash index does with a segment. A version would have to come round,
//!   through 2^31 changes of one line within one read, to mislead.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::*, fence};
use std::sync::{Arc, OnceLock};

use crate::arena::{LINE_BYTES, Line};
use crate::bucket::low_bits;
use crate::image::image_bytes;
use crate::{Key, LenCode, Slot};

/// What a dense index must have room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DenseLayout {
    /// Keys are the numbers below this, as 8 bytes big-endian; 1 to `DenseLayout::KEYS_MAX`.
    pub key_count: u64,
    /// Chunk numbers have this many bits, 1 to `DenseLayout::ADDR_BITS_MAX`.
    pub addr_bits: u32,
    /// The length of every record.
    pub len: LenCode,
}

impl DenseLayout {
    /// 256 TiB of 4 KiB blocks.
    pub const KEYS_MAX: u64 = 1 << 36;
    /// As for a hash index.
    pub const ADDR_BITS_MAX: u32 = 48;
}

/// Lines of a segment: 64 KiB, the mappings of about 50 MiB of 4 KiB blocks.
pub(crate) const SEGMENT_LINES: u64 = 1024;
/// Where the entries of a line begin.
const ENTRIES_AT: u32 = 32;
const VERSION_MASK: u64 = low_bits(ENTRIES_AT);

/// Segments of a group.
const GROUP_SEGMENTS: usize = 256;

/// Lines of a segment, and how many of their entries are not empty.
struct Segment {
    lines: OnceLock<Box<[Line]>>,
    count: AtomicU64,
}

type Group = OnceLock<Box<[Segment; GROUP_SEGMENTS]>>;

/// The array.
pub(crate) struct Array {
    pub(crate) layout: DenseLayout,
    entry_bits: u32,
    /// Entries of a line.
    pub(crate) per_line: u64,
    groups: Box<[Group]>,
    pub(crate) key_count: AtomicU64,
    memory_bytes: AtomicU64,
    /// What images of segments with entries take.
    image_bytes: AtomicU64,
}

/// Where a key's entry is.
#[derive(Clone, Copy)]
struct Place {
    segment: usize,
    line: usize,
    bit: u32,
}

impl Array {
    pub(crate) fn new(layout: DenseLayout) -> Array {
        assert!((1..=DenseLayout::KEYS_MAX).contains(&layout.key_count), "room for {} keys", layout.key_count);
        let valid = 1..=DenseLayout::ADDR_BITS_MAX;
        assert!(valid.contains(&layout.addr_bits), "addr_bits {} is not in {valid:?}", layout.addr_bits);
        let entry_bits = layout.addr_bits + 1;
        let per_line = u64::from((512 - ENTRIES_AT) / entry_bits);
        let segments = layout.key_count.div_ceil(per_line).div_ceil(SEGMENT_LINES);
        let groups: Box<[Group]> = (0..segments.div_ceil(GROUP_SEGMENTS as u64)).map(|_| Group::new()).collect();
        let memory_bytes = AtomicU64::new(size_of_val(&*groups) as u64);
        Array {
            layout,
            entry_bits,
            per_line,
            groups,
            key_count: AtomicU64::new(0),
            memory_bytes,
            image_bytes: AtomicU64::new(0),
        }
    }

    /// Keys of a whole segment.
    pub(crate) fn segment_keys(&self) -> u64 {
        SEGMENT_LINES * self.per_line
    }

    /// The key's number, if the index takes it.
    #[inline]
    pub(crate) fn number(&self, key: &Key) -> Option<u64> {
        key.as_u64().filter(|number| *number < self.layout.key_count)
    }

    #[inline]
    fn place(&self, number: u64) -> Place {
        let line = number / self.per_line;
        Place {
            segment: (line / SEGMENT_LINES) as usize,
            line: (line % SEGMENT_LINES) as usize,
            bit: ENTRIES_AT + (number % self.per_line) as u32 * self.entry_bits,
        }
    }

    /// The lines of a segment, if any of its keys was ever inserted.
    #[inline]
    pub(crate) fn lines(&self, segment: usize) -> Option<&[Line]> {
        self.groups.get(segment / GROUP_SEGMENTS)?.get()?[segment % GROUP_SEGMENTS].lines.get().map(|lines| &**lines)
    }

    /// The lines of a segment, made now if they did not exist; the last segment has as many as it needs.
    pub(crate) fn lines_to_change(&self, segment: usize) -> &[Line] {
        let group = self.groups[segment / GROUP_SEGMENTS].get_or_init(|| {
            self.memory_bytes.fetch_add(size_of::<[Segment; GROUP_SEGMENTS]>() as u64, Relaxed);
            Box::new([const { Segment { lines: OnceLock::new(), count: AtomicU64::new(0) } }; GROUP_SEGMENTS])
        });
        group[segment % GROUP_SEGMENTS].lines.get_or_init(|| {
            let lines = self.layout.key_count.div_ceil(self.per_line) - segment as u64 * SEGMENT_LINES;
            let lines: Box<[Line]> = (0..lines.min(SEGMENT_LINES)).map(|_| Line::default()).collect();
            self.memory_bytes.fetch_add((lines.len() * LINE_BYTES) as u64, Relaxed);
            lines
        })
    }

    /// A segment that has lines has so many more entries, or fewer.
    pub(crate) fn count_entries(&self, segment: usize, more: i64) {
        let group = self.groups[segment / GROUP_SEGMENTS].get().expect("the segment has lines");
        let segment = &group[segment % GROUP_SEGMENTS];
        let old = segment.count.load(Relaxed);
        let new = old.wrapping_add_signed(more);
        segment.count.store(new, Relaxed);
        self.key_count.store(self.key_count.load(Relaxed).wrapping_add_signed(more), Relaxed);
        if (old == 0) != (new == 0) {
            let bytes = image_bytes(segment.lines.get().map_or(0, |lines| lines.len())) as i64;
            let images = self.image_bytes.load(Relaxed);
            self.image_bytes.store(images.wrapping_add_signed(if old == 0 { bytes } else { -bytes }), Relaxed);
        }
    }

    /// The segments of a range that have lines, and the lines.
    pub(crate) fn made(&self, segments: Range<usize>) -> impl Iterator<Item = (usize, &[Line])> {
        let groups = segments.start / GROUP_SEGMENTS..segments.end.div_ceil(GROUP_SEGMENTS).min(self.groups.len());
        let made = groups.filter_map(|group| Some((group * GROUP_SEGMENTS, self.groups.get(group)?.get()?)));
        let all = made.flat_map(|(first, group)| (first..).zip(group.iter()));
        all.filter_map(|(number, segment)| Some((number, &**segment.lines.get()?)))
            .filter(move |(number, _)| segments.contains(number))
    }

    #[inline]
    fn line(&self, place: Place) -> Option<&Line> {
        self.lines(place.segment).map(|lines| &lines[place.line])
    }

    /// The entry at a bit of a line, as it is in the words just now.
    #[inline]
    fn entry(&self, line: &Line, bit: u32) -> u64 {
        let (word, shift) = ((bit / 64) as usize, bit % 64);
        let low = line.0[word].load(Relaxed) >> shift;
        let high = if shift + self.entry_bits > 64 { line.0[word + 1].load(Relaxed) << (64 - shift) } else { 0 };
        (low | high) & low_bits(self.entry_bits)
    }

    /// The entry of a line, read next to the writer.
    #[inline]
    fn entry_beside(&self, line: &Line, bit: u32) -> u64 {
        loop {
            let version = line.0[0].load(Acquire) & VERSION_MASK;
            let entry = self.entry(line, bit);
            fence(Acquire);
            if version & 1 == 0 && line.0[0].load(Relaxed) & VERSION_MASK == version {
                return entry;
            }
            // The writer is done within nanoseconds, unless it was put to sleep.
            std::thread::yield_now();
        }
    }

    #[inline]
    fn slot_of(&self, entry: u64) -> Option<Slot> {
        (entry != 0).then(|| Slot { at: entry - 1, len: self.layout.len })
    }

    #[inline]
    fn get(&self, key: &Key) -> Option<Slot> {
        let place = self.place(self.number(key)?);
        self.slot_of(self.entry_beside(self.line(place)?, place.bit))
    }

    #[inline]
    fn prefetch(&self, key: &Key) {
        if let Some(place) = self.number(key).map(|number| self.place(number))
            && let Some(line) = self.line(place)
        {
            line.prefetch();
        }
    }

    /// Where the record of a number lies, by the words of its line.
    pub(crate) fn slot_in_words(&self, number: u64, words: &[u64; 8]) -> Option<Slot> {
        self.slot_of(self.entry(&Line::of(words), self.place(number).bit))
    }

    /// Writes an entry.
    fn set(&self, line: &Line, bit: u32, entry: u64) {
        let (word, shift) = ((bit / 64) as usize, bit % 64);
        let mask = low_bits(self.entry_bits);
        let old = line.0[0].load(Relaxed);
        assert!(old & 1 == 0, "one writer, one change at a time");
        line.0[0].store(old + 1, Relaxed);
        fence(Release);
        let put = |word: usize, mask: u64, bits: u64| {
            line.0[word].store(line.0[word].load(Relaxed) & !mask | bits, Relaxed);
        };
        put(word, mask << shift, entry << shift);
        if shift + self.entry_bits > 64 {
            put(word + 1, mask >> (64 - shift), entry >> (64 - shift));
        }
        let version = (old + 2) & VERSION_MASK;
        line.0[0].store(line.0[0].load(Relaxed) & !VERSION_MASK | version, Release);
    }

    /// The entries of a line that are not empty, by their places in it.
    fn entries<'a>(&'a self, line: &'a Line) -> impl Iterator<Item = (u64, u64)> + 'a {
        let bit = |i: u64| ENTRIES_AT + i as u32 * self.entry_bits;
        (0..self.per_line).map(move |i| (i, self.entry_beside(line, bit(i)))).filter(|(_, entry)| *entry != 0)
    }

    /// How many entries the words of a line have that is the `line`th of the array, if the writer could have written them.
    pub(crate) fn check_line(&self, line: u64, words: &[u64; 8]) -> Option<u32> {
        let mut others = *words;
        let (mut count, copy) = (0, Line::of(words));
        for (i, number) in (line * self.per_line..self.layout.key_count).take(self.per_line as usize).enumerate() {
            let bit = ENTRIES_AT + i as u32 * self.entry_bits;
            let (word, shift) = ((bit / 64) as usize, bit % 64);
            let entry = self.entry(&copy, bit);
            if entry > 1 << self.layout.addr_bits {
                return None;
            }
            debug_assert!(number < self.layout.key_count);
            count += u32::from(entry != 0);
            others[word] &= !(low_bits(self.entry_bits) << shift);
            if shift + self.entry_bits > 64 {
                others[word + 1] &= !(low_bits(self.entry_bits) >> (64 - shift));
            }
        }
        (others == [0; 8]).then_some(count)
    }

    fn numbers(&self, range: Range<u64>, limit: usize) -> Vec<u64> {
        self.some_numbers(range, limit, u64::MAX).0
    }

    fn some_numbers(&self, range: Range<u64>, limit: usize, steps: u64) -> (Vec<u64>, u64) {
        let mut numbers = Vec::new();
        let end = range.end.min(self.layout.key_count);
        let (mut line, mut step) = (range.start / self.per_line, 0);
        while line * self.per_line < end && step < steps {
            step += 1;
            let segment = (line / SEGMENT_LINES) as usize;
            let Some(lines) = self.lines(segment) else {
                let group = segment / GROUP_SEGMENTS;
                let is_made = self.groups[group].get().is_some();
                let next = if is_made { segment + 1 } else { (group + 1) * GROUP_SEGMENTS };
                line = next as u64 * SEGMENT_LINES;
                continue;
            };
            let (own, first) = (&lines[(line % SEGMENT_LINES) as usize], line * self.per_line);
            if !is_empty_beside(own) {
                let found = self.entries(own).map(|(i, _)| first + i);
                for number in found.filter(|number| (range.start..end).contains(number)) {
                    if numbers.len() == limit {
                        return (numbers, number);
                    }
                    numbers.push(number);
                }
            }
            line += 1;
        }
        (numbers, if line * self.per_line < end { line * self.per_line } else { range.end })
    }
}

/// Whether a line has no entries, read next to the writer.
fn is_empty_beside(line: &Line) -> bool {
    loop {
        let version = line.0[0].load(Acquire) & VERSION_MASK;
        let entries =
            line.0[1..].iter().fold(line.0[0].load(Relaxed) & !VERSION_MASK, |all, word| all | word.load(Relaxed));
        fence(Acquire);
        if version & 1 == 0 && line.0[0].load(Relaxed) & VERSION_MASK == version {
            return entries == 0;
        }
        std::thread::yield_now();
    }
}

/// The one who changes a dense index. Readers on other threads see each change whole and at once.
pub struct DenseWriter {
    pub(crate) array: Arc<Array>,
}

/// Reads a dense index while it is written, without locks. Cheap to clone.
#[derive(Clone)]
pub struct DenseReader {
    array: Arc<Array>,
}

macro_rules! reading {
    () => {
        /// Where the key's record lies. A key that the index does not take is absent.
        #[inline]
        pub fn get(&self, key: &Key) -> Option<Slot> {
            self.array.get(key)
        }

        /// Starts fetching what a `get` of the key will read.
        #[inline]
        pub fn prefetch(&self, key: &Key) {
            self.array.prefetch(key);
        }

        /// Keys present.
        #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
        pub fn len(&self) -> u64 {
            self.array.key_count.load(Relaxed)
        }

        /// Memory taken: places for segments, and the segments with keys.
        pub fn memory_bytes(&self) -> u64 {
            self.array.memory_bytes.load(Relaxed)
        }

        /// Bytes of a snapshot taken now, at most: the last image may be one without lines.
        pub fn image_bytes(&self) -> u64 {
            self.array.image_bytes.load(Relaxed) + image_bytes(0) as u64
        }

        /// Some keys of a range in their order, no more than `limit`, and from where on there may be more; at the end of the range
        /// there are not. It takes no more than `steps` looks, of which there must be one, at a line, or at a stretch without any.
        pub fn some_numbers(&self, range: Range<u64>, limit: usize, steps: u64) -> (Vec<u64>, u64) {
            self.array.some_numbers(range, limit, steps)
        }

        /// The first `limit` keys of a range, in their order.
        pub fn numbers(&self, range: Range<u64>, limit: usize) -> Vec<u64> {
            self.array.numbers(range, limit)
        }
    };
}

impl DenseReader {
    reading!();
}

impl DenseWriter {
    reading!();

    /// An empty index.
    ///
    /// # Panics
    /// When the layout is out of its ranges.
    pub fn new(layout: DenseLayout) -> DenseWriter {
        DenseWriter { array: Arc::new(Array::new(layout)) }
    }

    /// The layout it was made with.
    pub fn layout(&self) -> DenseLayout {
        self.array.layout
    }

    /// A reader for another thread.
    pub fn reader(&self) -> DenseReader {
        DenseReader { array: Arc::clone(&self.array) }
    }

    /// Sets where the key's record lies; where it lay before.
    ///
    /// # Panics
    /// When the index does not take the key, `slot.at` has more than `addr_bits` bits, or the record is of another length.
    pub fn insert(&mut self, key: &Key, slot: Slot) -> Option<Slot> {
        let number = self.array.number(key).expect("callers check keys");
        self.swap(number, self.entry_of(slot))
    }

    /// Forgets the key; where its record lay.
    pub fn remove(&mut self, key: &Key) -> Option<Slot> {
        let number = self.array.number(key)?;
        self.array.line(self.array.place(number))?;
        self.swap(number, 0)
    }

    /// Sets where the key's record lies if it lies where the caller thinks; whether it did.
    ///
    /// # Panics
    /// As `insert` for the new slot.
    pub fn replace_if(&mut self, key: &Key, expected: Slot, new: Slot) -> bool {
        let entry = self.entry_of(new);
        let is_there = self.get(key) == Some(expected);
        if is_there {
            self.swap(self.array.number(key).expect("a key that exists"), entry);
        }
        is_there
    }

    /// Visits every entry once, in the order of the keys.
    pub fn for_each(&self, mut visit: impl FnMut(Key, Slot)) {
        for (segment, lines) in self.array.made(0..usize::MAX) {
            let first = segment as u64 * SEGMENT_LINES;
            for (line, number) in lines.iter().zip(first..) {
                for (i, entry) in self.array.entries(line) {
                    let slot = self.array.slot_of(entry).expect("entries that are not empty");
                    visit(Key::from(number * self.array.per_line + i), slot);
                }
            }
        }
    }

    /// Visits where every record lies, in the order of the keys.
    pub fn for_each_slot(&self, mut visit: impl FnMut(Slot)) {
        self.for_each(|_, slot| visit(slot));
    }

    /// Bytes of the image of a segment, at least, but for the last one.
    pub(crate) fn image_bytes_min(&self) -> u64 {
        let layout = self.array.layout;
        image_bytes(layout.key_count.div_ceil(self.array.per_line).min(SEGMENT_LINES) as usize) as u64
    }

    fn entry_of(&self, slot: Slot) -> u64 {
        let layout = &self.array.layout;
        assert!(slot.at <= low_bits(layout.addr_bits), "chunk {} has more than {} bits", slot.at, layout.addr_bits);
        assert!(slot.len == layout.len, "a record of {:?} among those of {:?}", slot.len, layout.len);
        slot.at + 1
    }

    fn swap(&mut self, number: u64, entry: u64) -> Option<Slot> {
        let array = &*self.array;
        let place = array.place(number);
        let line = &array.lines_to_change(place.segment)[place.line];
        let old = array.entry(line, place.bit);
        array.set(line, place.bit, entry);
        if (old == 0) != (entry == 0) {
            array.count_entries(place.segment, if old == 0 { 1 } else { -1 });
        }
        array.slot_of(old)
    }
}
