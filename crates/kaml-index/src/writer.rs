//! The one writer: inserting, replacing, removing, and kicking entries to their other buckets.
//!
//! Lives here:       every store to a segment that keeps its shape.
//! Lives elsewhere:  reading (`table`), where a key belongs (`shape`), growing and shrinking (`growth`).
//! May be called by: `HashWriter`, `growth`.

use std::sync::atomic::{Ordering::*, fence};

use crate::arena::{Line, PAGE_LINES};
use crate::bucket::{self, Raw, Words};
use crate::mixed::Mixed;
use crate::shape::{PAGES_MAX, Place, SHAPE, Shape, VERSION, page};
use crate::table::{At, Entry, Table, by_slots};

/// Buckets looked at for a free slot before a segment is grown: three kicks deep at six slots. At the loads below a search
/// fails about never; in an index under attack it bounds an insert.
const SEARCH_MAX: usize = 256;
/// The longest path: longer than any that so many buckets have, unless they are few.
const DEPTH_MAX: u8 = 8;
/// Percent of slots above which a segment grows, by slots per bucket. Two-choice buckets of 2, 3, 4 slots can be filled to
/// 0.897, 0.959, 0.980; a few percent below that kicks stay short.
const FULL_PERCENT: [u32; 7] = [0, 0, 80, 90, 93, 95, 94];
/// Percent less while so many eighths of the pages are split. Just after the first, the others still get twice the keys, and
/// the two that are split fill up with all that could go elsewhere.
const UNEVEN_PERCENT: [u32; 8] = [0, 3, 2, 1, 0, 0, 0, 0];

/// Entries above which a segment grows, by slots per bucket and pages.
static FULL: [[u16; PAGES_MAX as usize]; 7] = full();

const fn full() -> [[u16; PAGES_MAX as usize]; 7] {
    let mut result = [[0; PAGES_MAX as usize]; 7];
    let mut slots = 2;
    while slots < 7 {
        let mut pages = 1;
        while pages < PAGES_MAX {
            let base = pages.ilog2();
            let split_eighths = ((pages - (1 << base)) * 8) >> base;
            let percent = FULL_PERCENT[slots] - UNEVEN_PERCENT[split_eighths as usize];
            result[slots][pages as usize] = (PAGE_LINES * pages * slots as u32 * percent / 100) as u16;
            pages += 1;
        }
        slots += 1;
    }
    result
}

/// What an insert did.
pub(crate) enum Upsert {
    Replaced(u64),
    Inserted,
    NoRoom,
}

/// Where buckets are, published or not.
pub(crate) struct Segment<'a> {
    pub(crate) table: &'a Table,
    pub(crate) shape: Shape,
    /// Where its page numbers are.
    pub(crate) header: &'a Line,
}

/// A slot of a bucket.
type SlotAt = (u32, usize);

/// Slots to be moved so that a new entry has room: the last is free, each other moves to the one behind it.
struct Path {
    steps: [SlotAt; DEPTH_MAX as usize + 1],
    len: usize,
    choice: usize,
}

/// A bucket reached by moving slot `from` of the bucket that was reached as number `parent`.
#[derive(Clone, Copy, Default)]
struct Reached {
    bucket: u32,
    parent: u16,
    from: u8,
    depth: u8,
}

impl Segment<'_> {
    #[inline]
    pub(crate) fn of_header<'a>(table: &'a Table, header: &'a Line) -> Segment<'a> {
        Segment { table, shape: Shape(header.0[SHAPE].load(Relaxed)), header }
    }

    /// Its page numbers, and room for one more.
    pub(crate) fn pages(&self) -> Vec<u32> {
        let mut pages = Vec::with_capacity(PAGES_MAX as usize);
        pages.extend((0..self.shape.pages()).map(|i| page(self.header, i)));
        pages
    }

    #[inline]
    pub(crate) fn at(&self, bucket: u32) -> At {
        self.table.at_header(self.header, bucket)
    }

    #[inline]
    fn load(&self, bucket: u32) -> Words {
        self.table.load_bucket(self.at(bucket))
    }

    #[inline]
    fn empties<const N: usize>(&self, bucket: u32) -> u32 {
        bucket::empties::<N>(&self.table.bucket(self.at(bucket)))
    }

    /// A free slot in one of a key's buckets: the choice and the slot.
    #[inline]
    fn room<const N: usize>(&self, place: &Place) -> Option<(usize, SlotAt)> {
        let [first, second] = place.buckets;
        let empties = [self.empties::<N>(first), self.empties::<N>(second)];
        let choice = usize::from(empties[1].count_ones() > empties[0].count_ones());
        (empties[choice] != 0).then(|| (choice, (place.buckets[choice], empties[choice].trailing_zeros() as usize)))
    }

    /// Writes an entry that is not there yet; whether there was room. Runs `around` around the writing.
    #[inline]
    fn add<const N: usize>(&self, mixed: &Mixed, place: &Place, value: u64, around: impl FnOnce(&dyn Fn())) -> bool {
        let raw = |choice: usize| self.table.fields.pack::<N>(place.remainders[choice], choice as u64, value, mixed);
        if let Some((choice, at)) = self.room::<N>(place) {
            around(&|| self.set::<N>(at, &raw(choice)));
            return true;
        }
        let Some(path) = self.search::<N>(place) else { return false };
        around(&|| {
            self.make_way::<N>(&path);
            self.set::<N>(path.steps[0], &raw(path.choice));
        });
        true
    }

    /// Breadth first, each bucket once, so that a path is shortest and never meets itself.
    fn search<const N: usize>(&self, place: &Place) -> Option<Path> {
        let mut reached = [Reached::default(); SEARCH_MAX];
        let mut seen = [0u64; PAGES_MAX as usize];
        for (reached, &bucket) in reached.iter_mut().zip(&place.buckets) {
            reached.bucket = bucket;
            seen[(bucket / 64) as usize] |= 1 << (bucket % 64);
        }
        let (mut parent, mut end) = (0, 2);
        while parent < end {
            let first = end;
            end = self.reach::<N>(&mut reached, &mut seen, end, parent);
            for next in first..end {
                let empties = self.empties::<N>(reached[next].bucket);
                if empties != 0 {
                    return Some(Path::new(&reached, next, empties.trailing_zeros() as usize));
                }
            }
            parent += 1;
        }
        None
    }

    /// Adds the other buckets of a full bucket's entries behind `end`, and answers where they end. All of them are being
    /// fetched before the first is looked at.
    #[inline]
    fn reach<const N: usize>(
        &self,
        reached: &mut [Reached],
        seen: &mut [u64; PAGES_MAX as usize],
        mut end: usize,
        parent: usize,
    ) -> usize {
        let from = reached[parent];
        let words = self.load(from.bucket);
        for slot in 0..N {
            let (_, kept, verbatim) = self.table.fields.key_of::<N>(&words, slot);
            let bucket = self.shape.other(from.bucket, kept, &verbatim).0;
            let (word, bit) = ((bucket / 64) as usize, 1 << (bucket % 64));
            if seen[word] & bit == 0 && end < SEARCH_MAX && from.depth < DEPTH_MAX {
                seen[word] |= bit;
                self.table.prefetch_at(self.at(bucket));
                reached[end] = Reached { bucket, parent: parent as u16, from: slot as u8, depth: from.depth + 1 };
                end += 1;
            }
        }
        end
    }

    /// The other bucket of the entry in a slot, and what it would be there.
    #[inline]
    fn other<const N: usize>(&self, bucket: u32, words: &Words, slot: usize) -> (u32, Raw) {
        let (choice, kept, verbatim) = self.table.fields.key_of::<N>(words, slot);
        let (other, remainder) = self.shape.other(bucket, kept, &verbatim);
        let value = self.table.fields.value::<N>(words, slot);
        (other, self.table.fields.pack::<N>(remainder, 1 - choice, value, &verbatim))
    }

    /// Moves the slots of a path, so that its first becomes free.
    fn make_way<const N: usize>(&self, path: &Path) {
        for step in (1..path.len).rev() {
            let (from, slot) = path.steps[step - 1];
            let (_, raw) = self.other::<N>(from, &self.load(from), slot);
            self.set::<N>(path.steps[step], &raw);
        }
    }

    #[inline]
    fn set<const N: usize>(&self, (bucket, slot): SlotAt, raw: &Raw) {
        let at = self.at(bucket);
        let mut words = self.table.load_bucket(at);
        bucket::set_raw::<N>(&mut words, slot, raw);
        self.table.store_bucket(at, &words);
    }

    /// The slot that holds a key: which, by which choice, and its value.
    #[inline]
    fn find<const N: usize>(&self, place: &Place, mixed: &Mixed) -> Option<(SlotAt, usize, u64)> {
        for choice in 0..2 {
            let bucket = self.table.bucket(self.at(place.buckets[choice]));
            let found = self.table.fields.find::<N>(&bucket, place.remainders[choice], choice as u64, mixed);
            if let Some((slot, value)) = found {
                return Some(((place.buckets[choice], slot), choice, value));
            }
        }
        None
    }

    /// Places entries in empty pages; whether all found room. A few places ahead are being fetched meanwhile.
    pub(crate) fn fill_all<const N: usize>(&self, entries: &[Entry]) -> bool {
        const AHEAD: usize = 16;
        let mut places = [Place::default(); AHEAD];
        entries.chunks(AHEAD).all(|group| {
            for (place, (mixed, _)) in places.iter_mut().zip(group) {
                *place = self.shape.place(mixed);
                self.prefetch(place);
            }
            places.iter().zip(group).all(|(place, (mixed, value))| self.add::<N>(mixed, place, *value, |write| write()))
        })
    }

    #[inline]
    fn prefetch(&self, place: &Place) {
        let [first, second] = place.buckets;
        self.table.prefetch_at(self.at(first));
        self.table.prefetch_at(self.at(second));
    }

    #[inline]
    fn overwrite<const N: usize>(
        &self,
        header: &Line,
        at: SlotAt,
        choice: usize,
        place: &Place,
        value: u64,
        mixed: &Mixed,
    ) {
        let raw = self.table.fields.pack::<N>(place.remainders[choice], choice as u64, value, mixed);
        changing(header, || self.set::<N>(at, &raw));
    }
}

impl Path {
    /// From one of the key's buckets, which the search starts with, to a free slot of the last.
    fn new(reached: &[Reached], last: usize, slot: usize) -> Path {
        let depth = usize::from(reached[last].depth);
        let mut path = Path { steps: Default::default(), len: depth + 1, choice: 0 };
        let (mut at, mut slot) = (last, slot);
        for step in (0..=depth).rev() {
            path.steps[step] = (reached[at].bucket, slot);
            slot = usize::from(reached[at].from);
            path.choice = at;
            at = usize::from(reached[at].parent);
        }
        path
    }
}

/// Runs `change` while readers of the header's segment are kept from trusting what they read.
#[inline]
pub(crate) fn changing<T>(header: &Line, change: impl FnOnce() -> T) -> T {
    let version = header.0[VERSION].load(Relaxed);
    assert!(version & 1 == 0, "one writer, one change at a time");
    header.0[VERSION].store(version + 1, Relaxed);
    fence(Release);
    let result = change();
    header.0[VERSION].store(version + 2, Release);
    result
}

impl Table {
    /// Replaces the key's value or adds it, if there is room.
    #[inline]
    pub(crate) fn upsert(&self, header: u32, mixed: &Mixed, value: u64) -> Upsert {
        let line = self.arena.line(header);
        let segment = Segment::of_header(self, line);
        let place = segment.shape.place(mixed);
        segment.prefetch(&place);
        by_slots!(segment.shape.slots_per_bucket(), N => {
            if let Some((at, choice, old)) = segment.find::<N>(&place, mixed) {
                segment.overwrite::<N>(line, at, choice, &place, value, mixed);
                return Upsert::Replaced(old);
            }
            if segment.shape.count() >= FULL[N][segment.shape.pages() as usize].into() {
                return Upsert::NoRoom;
            }
            let added = segment.add::<N>(mixed, &place, value, |write| changing(line, || {
                write();
                line.0[SHAPE].store(segment.shape.with_count(segment.shape.count() + 1).0, Relaxed);
            }));
            if !added {
                return Upsert::NoRoom;
            }
        });
        self.stats.key_count.store(self.stats.key_count.load(Relaxed) + 1, Relaxed);
        Upsert::Inserted
    }

    /// Replaces the value of a key that has the expected one.
    pub(crate) fn replace_if(&self, mixed: &Mixed, expected: u64, value: u64) -> bool {
        let line = self.arena.line(self.header(mixed.m));
        let segment = Segment::of_header(self, line);
        let place = segment.shape.place(mixed);
        by_slots!(segment.shape.slots_per_bucket(), N => {
            match segment.find::<N>(&place, mixed) {
                Some((at, choice, old)) if old == expected => {
                    segment.overwrite::<N>(line, at, choice, &place, value, mixed);
                    true
                }
                _ => false,
            }
        })
    }

    /// Empties the key's slot; the value it had, or 0.
    pub(crate) fn remove(&self, mixed: &Mixed) -> u64 {
        let line = self.arena.line(self.header(mixed.m));
        let segment = Segment::of_header(self, line);
        let place = segment.shape.place(mixed);
        by_slots!(segment.shape.slots_per_bucket(), N => {
            let Some((at, _, old)) = segment.find::<N>(&place, mixed) else { return 0 };
            changing(line, || {
                segment.set::<N>(at, &Raw::default());
                line.0[SHAPE].store(segment.shape.with_count(segment.shape.count() - 1).0, Relaxed);
            });
            self.stats.key_count.store(self.stats.key_count.load(Relaxed) - 1, Relaxed);
            old
        })
    }
}
