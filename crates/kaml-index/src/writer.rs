//! The one writer: inserting, replacing, removing, and kicking entries to their other buckets.
//!
//! Lives here:       every store to a segment that keeps its shape; which buckets are known to be full.
//! Lives elsewhere:  reading (`table`), where a key belongs (`shape`), growing and shrinking (`growth`).
//! May be called by: `HashWriter`, `growth`.
//!
//! At the loads at which segments grow, most buckets are full, and two inserts in three look for a bucket that is not. So a
//! segment keeps one bit for each bucket that was full when it was looked at last, next to its header: a search reads the
//! two buckets of its key and, as a rule, the one bucket that has room. The bits are hints. One that is missing costs a
//! look at a bucket; one that is left behind would keep a slot from being found, so whatever empties slots clears it.

use std::sync::atomic::{AtomicU64, Ordering::*, fence};

use crate::arena::{Line, PAGE_LINES};
use crate::bucket::{self, Raw, Words};
use crate::mixed::Mixed;
use crate::shape::{FULL_LINES, Header, PAGES_FULL, PAGES_MAX, Place, Shape};
use crate::table::{At, Entry, Table, by_slots};

/// Buckets looked at for a free slot before a segment is grown: three kicks deep at six slots. At the loads below a search
/// fails about never; in an index under attack it bounds an insert.
const SEARCH_MAX: usize = 256;
/// Buckets of a search that are being fetched while one is looked at: each takes a third of the time that memory does.
const FETCHED_AHEAD: usize = 4;
const _: () = assert!(SEARCH_MAX <= 1 << u8::BITS && PAGES_MAX * PAGE_LINES <= 1 << u16::BITS, "as `Reached` has them");
/// Percent of slots above which a segment grows, by slots per bucket. Two-choice buckets of 2, 3, 4 slots can be filled to
/// 0.897, 0.959, 0.980; some percent below that searches stay short: with five slots they come to 150 buckets on average
/// at a load of 0.95, to 33 at 0.93, to 11 at 0.91 (with six to 89, 16 and 8).
const FULL_PERCENT: [u32; 7] = [0, 0, 80, 90, 93, 93, 94];
/// The same for pages with more bits after them. Five slots have them in vain, until there can be six: they must be
/// fuller, or an index of a few million keys would take more than 16 bytes a key.
const FULL_EXTRA_PERCENT: [u32; 7] = [0, 0, 80, 90, 93, 95, 94];
/// Percent less while so many eighths of the pages are split. Just after the first, the others still get twice the keys, and
/// the two that are split fill up with all that could go elsewhere.
const UNEVEN_PERCENT: [u32; 8] = [0, 3, 2, 1, 0, 0, 0, 0];

/// Entries above which a segment grows, by slots per bucket and pages; without and with more bits after pages.
static FULL: [[[u16; PAGES_MAX as usize]; 7]; 2] = [full(&FULL_PERCENT), full(&FULL_EXTRA_PERCENT)];

const fn full(percents: &[u32; 7]) -> [[u16; PAGES_MAX as usize]; 7] {
    let mut result = [[0; PAGES_MAX as usize]; 7];
    let mut slots = 2;
    while slots < 7 {
        let mut pages = 1;
        while pages < PAGES_MAX {
            let base = pages.ilog2();
            let split_eighths = ((pages - (1 << base)) * 8) >> base;
            let percent = percents[slots] - UNEVEN_PERCENT[split_eighths as usize];
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
    /// The segment is full, or the key's buckets are and none of their entries can make way.
    NoRoom,
}

/// Where buckets are, published or not.
pub(crate) struct Segment<'a> {
    pub(crate) table: &'a Table,
    pub(crate) shape: Shape,
    /// Where its page numbers are.
    pub(crate) header: &'a Header,
    /// A word for each page, a bit for each bucket that was full when it was looked at last.
    pub(crate) full: [&'a Line; FULL_LINES],
}

/// A slot of a bucket.
type SlotAt = (u32, usize);

/// A bucket reached by moving slot `from` of the bucket that was reached as number `parent`.
#[derive(Clone, Copy, Default)]
struct Reached {
    bucket: u16,
    parent: u8,
    from: u8,
}

/// The buckets that a search has come to, in the order in which it did; the first two are the key's own.
struct Search {
    reached: [Reached; SEARCH_MAX],
    end: usize,
    /// A bit for each.
    seen: [u64; PAGES_MAX as usize],
}

impl Segment<'_> {
    #[inline]
    pub(crate) fn of_header(table: &Table, header: u32) -> Segment<'_> {
        let full = std::array::from_fn(|i| table.arena.line(header + 1 + i as u32));
        let header = table.arena.header(header);
        Segment { table, shape: header.shape(), header, full }
    }

    /// The word of a page that shows its full buckets.
    #[inline]
    pub(crate) fn full_of(&self, page: u32) -> &AtomicU64 {
        &self.full[(page / 8) as usize].0[(page % 8) as usize]
    }

    #[inline]
    fn is_known_full(&self, bucket: u32) -> bool {
        self.full_of(bucket / PAGE_LINES).load(Relaxed) >> (bucket % PAGE_LINES) & 1 != 0
    }

    #[inline]
    fn note_full(&self, bucket: u32, is_full: bool) {
        let (word, bit) = (self.full_of(bucket / PAGE_LINES), bucket % PAGE_LINES);
        word.store(word.load(Relaxed) & !(1 << bit) | u64::from(is_full) << bit, Relaxed);
    }

    /// No slot of these pages is known to be taken.
    pub(crate) fn forget_full(&self, pages: impl IntoIterator<Item = u32>) {
        pages.into_iter().for_each(|page| self.full_of(page).store(0, Relaxed));
    }

    /// Its page numbers, and room for one more.
    pub(crate) fn pages(&self) -> Vec<u32> {
        let mut pages = Vec::with_capacity(PAGES_MAX as usize);
        pages.extend((0..self.shape.pages()).map(|i| self.header.page(i)));
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
        (empties[choice] != 0).then(|| (choice, self.take(place.buckets[choice], empties[choice])))
    }

    /// The first free slot of a bucket that has some, about to be written.
    #[inline]
    fn take(&self, bucket: u32, empties: u32) -> SlotAt {
        self.note_full(bucket, empties & (empties - 1) == 0);
        (bucket, empties.trailing_zeros() as usize)
    }

    /// Writes an entry that does not exist yet; whether there was room. Runs `around` around the writing.
    #[inline]
    fn add<const N: usize>(&self, mixed: &Mixed, place: &Place, value: u64, around: impl FnOnce(&dyn Fn())) -> bool {
        let raw = |choice: usize| self.table.fields.pack::<N>(place.remainders[choice], choice as u64, value, mixed);
        if let Some((choice, at)) = self.room::<N>(place) {
            around(&|| self.set::<N>(at, &raw(choice)));
            return true;
        }
        let mut search = Search::of(place);
        let Some(free) = self.search::<N>(&mut search) else { return false };
        around(&|| {
            let (choice, at) = self.make_way::<N>(&search, free);
            self.set::<N>(at, &raw(choice));
        });
        true
    }

    /// Breadth first, each bucket once, so the way is shortest and never meets itself. Returns a free slot of the last
    /// bucket that was reached.
    fn search<const N: usize>(&self, search: &mut Search) -> Option<SlotAt> {
        let (mut parent, mut fetched) = (0, 2);
        while parent < search.end {
            // After the key's own buckets are such as nobody looked at yet.
            while fetched < search.end.min(parent + FETCHED_AHEAD) {
                self.table.prefetch_at(self.at(search.reached[fetched].bucket.into()));
                fetched += 1;
            }
            if let Some(free) = self.reach::<N>(search, parent) {
                return Some(free);
            }
            parent += 1;
        }
        None
    }

    /// Continues to the other buckets of a full bucket's entries, until one has a free slot.
    #[inline]
    fn reach<const N: usize>(&self, search: &mut Search, parent: usize) -> Option<SlotAt> {
        let from = search.reached[parent];
        let (words, fields) = (self.load(from.bucket.into()), &self.table.fields);
        // Heads have all of the upper bits; where pages imply all page bits, an integer's other bucket needs no more.
        let in_heads = self.shape.pages() >= PAGES_FULL && fields.verbatim_bits == 0;
        for slot in 0..N {
            let (kept, verbatim) = match in_heads {
                true => (fields.remainder_in_head::<N>(&words, slot), Mixed::default()),
                false => {
                    let (_, kept, verbatim) = fields.key_of::<N>(&words, slot);
                    (kept, verbatim)
                }
            };
            let bucket = self.shape.other(from.bucket.into(), kept, &verbatim).0;
            let reached = Reached { bucket: bucket as u16, parent: parent as u8, from: slot as u8 };
            if !search.add(reached) || self.is_known_full(bucket) {
                continue;
            }
            match self.empties::<N>(bucket) {
                0 => self.note_full(bucket, true),
                empties => return Some(self.take(bucket, empties)),
            }
        }
        None
    }

    /// The other bucket of the entry in a slot, and the form it would have there.
    #[inline]
    fn other<const N: usize>(&self, bucket: u32, words: &Words, slot: usize) -> (u32, Raw) {
        let (choice, kept, verbatim) = self.table.fields.key_of::<N>(words, slot);
        let (other, remainder) = self.shape.other(bucket, kept, &verbatim);
        let value = self.table.fields.value::<N>(words, slot);
        (other, self.table.fields.pack::<N>(remainder, 1 - choice, value, &verbatim))
    }

    /// Moves entries from bucket to bucket on the way back from a free slot to one of the key's own buckets; returns which
    /// that is, and the slot that is free there now.
    fn make_way<const N: usize>(&self, search: &Search, mut free: SlotAt) -> (usize, SlotAt) {
        let mut at = search.end - 1;
        while at >= 2 {
            let Reached { parent, from, .. } = search.reached[at];
            at = usize::from(parent);
            let (bucket, slot) = (search.reached[at].bucket.into(), usize::from(from));
            let (_, raw) = self.other::<N>(bucket, &self.load(bucket), slot);
            self.set::<N>(free, &raw);
            free = (bucket, slot);
        }
        (at, free)
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
        header: &Header,
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

impl Search {
    /// Begins with a key's two buckets, which may be one.
    #[inline]
    fn of(place: &Place) -> Search {
        let mut search = Search { reached: [Reached::default(); SEARCH_MAX], end: 2, seen: Default::default() };
        for (reached, &bucket) in search.reached.iter_mut().zip(&place.buckets) {
            reached.bucket = bucket as u16;
            search.seen[(bucket / 64) as usize] |= 1 << (bucket % 64);
        }
        search
    }

    /// Whether it is the first time here, and there is room for it.
    #[inline]
    fn add(&mut self, reached: Reached) -> bool {
        let (word, bit) = (usize::from(reached.bucket / 64), 1 << (reached.bucket % 64));
        let added = self.seen[word] & bit == 0 && self.end < SEARCH_MAX;
        if added {
            self.seen[word] |= bit;
            self.reached[self.end] = reached;
            self.end += 1;
        }
        added
    }
}

/// Runs `change` while readers of the header's segment are kept from trusting what they read.
#[inline]
pub(crate) fn changing<T>(header: &Header, change: impl FnOnce() -> T) -> T {
    let version = header.version.load(Relaxed);
    assert!(version & 1 == 0, "one writer, one change at a time");
    header.version.store(version + 1, Relaxed);
    fence(Release);
    let result = change();
    header.version.store(version + 2, Release);
    result
}

impl Table {
    /// Replaces the key's value or adds it, if there is room.
    #[inline]
    pub(crate) fn upsert(&self, header: u32, mixed: &Mixed, value: u64) -> Upsert {
        let segment = Segment::of_header(self, header);
        let (header, place) = (segment.header, segment.shape.place(mixed));
        segment.prefetch(&place);
        by_slots!(segment.shape.slots_per_bucket(), N => {
            if let Some((at, choice, old)) = segment.find::<N>(&place, mixed) {
                segment.overwrite::<N>(header, at, choice, &place, value, mixed);
                return Upsert::Replaced(old);
            }
            let old = self.outside.replace(mixed, value, |_| true);
            if old != 0 {
                return Upsert::Replaced(old);
            }
            if segment.shape.count() >= FULL[usize::from(self.fields.extra)][N][segment.shape.pages() as usize].into() {
                return Upsert::NoRoom;
            }
            let added = segment.add::<N>(mixed, &place, value, |write| changing(header, || {
                write();
                header.shape.store(segment.shape.with_count(segment.shape.count() + 1).0, Relaxed);
            }));
            if !added {
                return Upsert::NoRoom;
            }
        });
        self.count_keys(1);
        Upsert::Inserted
    }

    /// Replaces the value of a key that has the expected one.
    pub(crate) fn replace_if(&self, mixed: &Mixed, expected: u64, value: u64) -> bool {
        let segment = Segment::of_header(self, self.header(mixed.m));
        let (header, place) = (segment.header, segment.shape.place(mixed));
        by_slots!(segment.shape.slots_per_bucket(), N => {
            match segment.find::<N>(&place, mixed) {
                Some((at, choice, old)) if old == expected => {
                    segment.overwrite::<N>(header, at, choice, &place, value, mixed);
                    true
                }
                Some(_) => false,
                None => self.outside.replace(mixed, value, |old| old == expected) != 0,
            }
        })
    }

    /// Forgets the key; the value it had, or 0.
    pub(crate) fn remove(&self, mixed: &Mixed) -> u64 {
        let old = match self.empty_slot(mixed) {
            0 => self.outside.remove(mixed),
            old => old,
        };
        self.count_keys(if old == 0 { 0 } else { -1 });
        old
    }

    pub(crate) fn count_keys(&self, more: i64) {
        self.stats.key_count.store(self.stats.key_count.load(Relaxed).wrapping_add_signed(more), Relaxed);
    }

    /// Empties the key's slot; the value it had, or 0.
    fn empty_slot(&self, mixed: &Mixed) -> u64 {
        let segment = Segment::of_header(self, self.header(mixed.m));
        let (header, place) = (segment.header, segment.shape.place(mixed));
        by_slots!(segment.shape.slots_per_bucket(), N => {
            let Some((at, _, old)) = segment.find::<N>(&place, mixed) else { return 0 };
            changing(header, || {
                segment.set::<N>(at, &Raw::default());
                segment.note_full(at.0, false);
                header.shape.store(segment.shape.with_count(segment.shape.count() - 1).0, Relaxed);
            });
            old
        })
    }
}
