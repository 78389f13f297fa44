//! The one writer: inserting, kicking, growing and splitting segments.
//!
//! Lives here:       every store to the table.
//! Lives elsewhere:  reading (`table`), where a key belongs (`shape`).
//! May be called by: `IndexWriter`.
//!
//! A segment that is full to `LOAD_MAX`, or in which a key finds no place, is rebuilt alone: its entries are collected and
//! placed in fresh pages, which are then published by changing the header; when more than `PAGES_MAX` pages would be
//! needed it becomes two segments instead. Nobody waits while pages are filled. Publishing a split: new headers first, then
//! the directory, then the old header gives its keys away (`table` says why readers are never misled).

use std::sync::atomic::{Ordering::*, fence};

use crate::arena::{Line, PAGE_LINES, Pages};
use crate::bucket::{self, Raw, low_bits};
use crate::mixed::Mixed;
use crate::shape::{DEPTH_MAX, PAGES_MAX, Place, SHAPE, Shape, VERSION, header_words, page};
use crate::snapshot::Loading;
use crate::table::{Entry, Table, by_slots, find};

/// Buckets looked at for a free slot before a segment is grown: three kicks deep at six slots. At the loads below a search
/// fails about never; in an index under attack it bounds an insert.
const SEARCH_MAX: usize = 256;
/// Entries per page above which a segment grows, by slots per bucket. Two-choice buckets of 2, 3, 4 slots can be filled to
/// 0.897, 0.959, 0.980; a few percent below that kicks stay short.
const FULL_PER_PAGE: [u32; 7] = full_per_page([0, 0, 84, 92, 95, 95, 95]);
/// Entries per page that a rebuilt segment may have at most. At four slots and more that means growing by one page at a
/// time, so that the load stays between 0.81 and 0.95; it costs about ten moves per insert. Growing by two pages would
/// halve the moves, but the load would average 0.84.
const REBUILT_PER_PAGE: [u32; 7] = full_per_page([0, 0, 76, 84, 90, 90, 90]);
/// A segment that is less than 40 % full is rebuilt smaller.
const SPARSE_PERCENT: u32 = 40;

const fn full_per_page(percent: [u32; 7]) -> [u32; 7] {
    let mut result = [0; 7];
    let mut slots = 0;
    while slots < 7 {
        result[slots] = PAGE_LINES * slots as u32 * percent[slots] / 100;
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
struct Segment<'a> {
    table: &'a Table,
    shape: Shape,
    pages: [u32; PAGES_MAX as usize],
}

/// Slots to be moved so that a new entry has room: the last is free, each other moves to the one behind it.
struct Path {
    steps: [(u32, usize); 12],
    len: usize,
    choice: u64,
}

/// A bucket reached by moving slot `from` of bucket number `parent` of the search there.
#[derive(Clone, Copy, Default)]
struct Reached {
    bucket: u32,
    parent: u16,
    from: u8,
    depth: u8,
}

/// A rebuilt segment not yet published.
pub(crate) struct Built {
    pub(crate) shape: Shape,
    pub(crate) pages: Vec<u32>,
}

/// The writer's own state.
#[derive(Default)]
pub(crate) struct Owner {
    pub(crate) pages: Pages,
    /// The entries of the segment that is being rebuilt; kept for its memory.
    entries: Vec<Entry>,
    /// Images of a snapshot that is being loaded.
    pub(crate) loading: Loading,
}

impl Segment<'_> {
    #[inline]
    fn line(&self, bucket: u32) -> &Line {
        self.table.arena.line(self.line_number(bucket))
    }

    #[inline]
    fn line_number(&self, bucket: u32) -> u32 {
        self.pages[(bucket / PAGE_LINES) as usize] + bucket % PAGE_LINES
    }

    fn of_header<'a>(table: &'a Table, header: &Line) -> Segment<'a> {
        let shape = Shape(header.0[SHAPE].load(Relaxed));
        Segment { table, shape, pages: std::array::from_fn(|i| page(header, i as u32)) }
    }

    /// A free slot in one of a key's buckets: the choice, the bucket, the slot.
    #[inline]
    fn room<const N: usize>(&self, place: &Place) -> Option<(u64, (u32, usize))> {
        let buckets = [place.first, place.second];
        let empties = buckets.map(|bucket| bucket::empties::<N>(&self.line(bucket).load()));
        // The emptier bucket, unless it is nearly the first, which a look-up reads first.
        let choice = usize::from(empties[0] == 0 || empties[1].count_ones() > empties[0].count_ones() + 1);
        (empties[choice] != 0).then(|| (choice as u64, (buckets[choice], empties[choice].trailing_zeros() as usize)))
    }

    /// Writes an entry that is not there yet; whether there was room. Runs `around` around the writing.
    #[inline]
    fn add<const N: usize>(&self, mixed: &Mixed, place: &Place, value: u64, around: impl FnOnce(&dyn Fn())) -> bool {
        let k = self.shape.remainder_bits();
        let raw = |choice| self.table.fields.pack::<N>(k, place.remainder << 1 | choice, value, mixed);
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
        let mut seen = [0u64; (PAGES_MAX * PAGE_LINES / 64) as usize];
        let mut end = 0;
        for bucket in [place.first, place.second] {
            reached[end].bucket = bucket;
            seen[(bucket / 64) as usize] |= 1 << (bucket % 64);
            end += 1;
        }
        let mut next = 0;
        while next < end {
            let at = reached[next];
            let words = self.line(at.bucket).load();
            let others: [u32; N] = std::array::from_fn(|slot| self.other::<N>(at.bucket, &words, slot));
            others.iter().for_each(|&other| self.table.arena.prefetch(self.line_number(other)));
            for (slot, other) in others.into_iter().enumerate() {
                let (word, bit) = ((other / 64) as usize, 1 << (other % 64));
                if seen[word] & bit != 0 {
                    continue;
                }
                seen[word] |= bit;
                let empties = bucket::empties::<N>(&self.line(other).load());
                if empties != 0 {
                    return Some(Path::new(&reached, next, slot, (other, empties.trailing_zeros() as usize)));
                }
                if end < SEARCH_MAX && at.depth < 8 {
                    reached[end] =
                        Reached { bucket: other, parent: next as u16, from: slot as u8, depth: at.depth + 1 };
                    end += 1;
                }
            }
            next += 1;
        }
        None
    }

    /// The other bucket of the entry in a slot.
    #[inline]
    fn other<const N: usize>(&self, bucket: u32, words: &bucket::Words, slot: usize) -> u32 {
        let k = self.shape.remainder_bits();
        let tag = bucket::tag::<N>(words, slot);
        let (high, len_less_one) = self.table.fields.verbatim::<N>(words, slot, k);
        let digest = Mixed { m: 0, high, len_less_one }.verbatim_digest();
        let remainder = tag >> 1 & low_bits(k);
        let way = if tag & 1 == 0 { Shape::forward } else { Shape::backward };
        way(self.shape, bucket, remainder, digest)
    }

    /// Moves the slots of a path, so that its first becomes free.
    fn make_way<const N: usize>(&self, path: &Path) {
        for step in (1..path.len).rev() {
            let (from, slot) = path.steps[step - 1];
            let mut raw = bucket::raw::<N>(&self.line(from).load(), slot);
            raw[0] ^= 1; // what lay in one of its buckets now lies in the other
            self.set::<N>(path.steps[step], &raw);
        }
    }

    #[inline]
    fn set<const N: usize>(&self, (bucket, slot): (u32, usize), raw: &Raw) {
        bucket::set_raw::<N>(self.line(bucket), slot, raw);
    }

    /// The slot that holds a key: bucket, slot, choice, value.
    #[inline]
    fn find<const N: usize>(&self, place: &Place, mixed: &Mixed) -> Option<((u32, usize), u64, u64)> {
        [place.first, place.second].into_iter().zip(0..).find_map(|(bucket, choice)| {
            let tag = place.remainder << 1 | choice;
            let words = self.line(bucket).load();
            let (slot, value) = find::<N>(&self.table.fields, &words, self.shape.remainder_bits(), tag, mixed)?;
            Some(((bucket, slot), choice, value))
        })
    }

    /// Places entries in empty pages; whether all found room. A few places ahead are being fetched meanwhile.
    fn fill_all<const N: usize>(&self, entries: &[Entry]) -> bool {
        const AHEAD: usize = 16;
        let mut places = [Place::default(); AHEAD];
        entries.chunks(AHEAD).all(|group| {
            for (place, (mixed, _)) in places.iter_mut().zip(group) {
                *place = self.shape.place(mixed, mixed.verbatim_digest());
                self.prefetch(place);
            }
            places.iter().zip(group).all(|(place, (mixed, value))| self.add::<N>(mixed, place, *value, |write| write()))
        })
    }

    #[inline]
    fn prefetch(&self, place: &Place) {
        for bucket in [place.first, place.second] {
            self.table.arena.prefetch(self.line_number(bucket));
        }
    }
}

impl Path {
    fn new(reached: &[Reached], last: usize, slot: usize, free: (u32, usize)) -> Path {
        let depth = usize::from(reached[last].depth);
        let mut path = Path { steps: Default::default(), len: depth + 2, choice: 0 };
        path.steps[depth + 1] = free;
        let (mut at, mut slot) = (last, slot);
        for step in (0..=depth).rev() {
            path.steps[step] = (reached[at].bucket, slot);
            (at, slot) =
                if step > 0 { (usize::from(reached[at].parent), usize::from(reached[at].from)) } else { (at, slot) };
        }
        path.choice = at as u64; // the search starts with the first bucket, then the second
        path
    }
}

/// Runs `change` while readers of the header's segment are kept from trusting what they read.
#[inline]
fn changing<T>(header: &Line, change: impl FnOnce() -> T) -> T {
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
        let place = segment.shape.place(mixed, mixed.verbatim_digest());
        segment.prefetch(&place);
        by_slots!(segment.shape.slots_per_bucket(), N => {
            if let Some((at, choice, old)) = segment.find::<N>(&place, mixed) {
                segment.overwrite::<N>(line, at, choice, &place, value, mixed);
                return Upsert::Replaced(old);
            }
            if segment.shape.count() >= segment.shape.pages() * FULL_PER_PAGE[N] {
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
        let place = segment.shape.place(mixed, mixed.verbatim_digest());
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
        let place = segment.shape.place(mixed, mixed.verbatim_digest());
        by_slots!(segment.shape.slots_per_bucket(), N => {
            let Some((at, _, old)) = segment.find::<N>(&place, mixed) else { return 0 };
            changing(line, || {
                segment.set::<N>(at, &[0; 4]);
                line.0[SHAPE].store(segment.shape.with_count(segment.shape.count() - 1).0, Relaxed);
            });
            self.stats.key_count.store(self.stats.key_count.load(Relaxed) - 1, Relaxed);
            old
        })
    }

    /// Makes every directory entry of a segment's keys name its header.
    fn point_to(&self, header: u32, shape: Shape) {
        let root = self.root.load(Relaxed);
        let (first, depth) = ((root >> 8) as u32, (root & 0xff) as u32);
        let span = depth - shape.depth();
        for index in shape.prefix() << span..(shape.prefix() + 1) << span {
            set_entry(self.arena.line(first + (index >> 4)), index, header);
        }
    }
}

impl Segment<'_> {
    #[inline]
    fn overwrite<const N: usize>(
        &self,
        header: &Line,
        at: (u32, usize),
        choice: u64,
        place: &Place,
        value: u64,
        mixed: &Mixed,
    ) {
        let tag = place.remainder << 1 | choice;
        let raw = self.table.fields.pack::<N>(self.shape.remainder_bits(), tag, value, mixed);
        changing(header, || self.set::<N>(at, &raw));
    }
}

fn set_entry(line: &Line, index: u32, header: u32) {
    let word = &line.0[(index >> 1 & 7) as usize];
    let shift = 32 * (index & 1);
    word.store(word.load(Relaxed) & !(u64::from(u32::MAX) << shift) | u64::from(header) << shift, Release);
}

impl Owner {
    /// The first segment, of one page, and a directory of sixteen entries that all name it: one page of each is the
    /// least that an index takes.
    pub(crate) fn start(&mut self, table: &Table) {
        let built = Built { shape: Shape::new(&table.fields, 0, 0, 1), pages: vec![self.pages.take(&table.arena)] };
        let header = self.publish_header(table, &built);
        self.directory(table, 4, |_| header);
        table.stats.slot_count.store(u64::from(built.shape.slots()), Relaxed);
        self.count_memory(table);
    }

    /// Rebuilds a full segment larger, or as two.
    #[cold]
    pub(crate) fn grow(&mut self, table: &Table, header: u32) {
        let shape = Shape(table.arena.line(header).0[SHAPE].load(Relaxed));
        let load_full = shape.count() >= shape.pages() * FULL_PER_PAGE[shape.slots_per_bucket() as usize];
        // A full segment may become as large as it is, with denser buckets; one in which a search failed must grow.
        self.rebuild(table, header, if load_full { shape.pages() } else { shape.pages() + 1 });
    }

    /// Rebuilds a sparse segment smaller.
    pub(crate) fn shrink_if_sparse(&mut self, table: &Table, m: u64) {
        let header = table.header(m);
        let shape = Shape(table.arena.line(header).0[SHAPE].load(Relaxed));
        if shape.pages() > 1 && shape.count() * 100 < shape.slots() * SPARSE_PERCENT {
            self.rebuild(table, header, 1);
        }
    }

    fn rebuild(&mut self, table: &Table, header: u32, pages_min: u32) {
        let line = table.arena.line(header);
        let old = Segment::of_header(table, line);
        let mut entries = std::mem::take(&mut self.entries);
        let shape = table.collect(old.shape.start(), &mut entries);
        assert!(shape == old.shape && entries.len() == shape.count() as usize, "a segment counts its entries");
        let mut built = vec![];
        self.build(table, shape.prefix(), shape.depth(), &mut entries, pages_min, &mut built);
        self.publish(table, header, &built);
        old.pages[..shape.pages() as usize].iter().for_each(|&page| self.pages.give_back(page));
        let slots: u64 = built.iter().map(|built| u64::from(built.shape.slots())).sum();
        let slot_count = table.stats.slot_count.load(Relaxed) + slots - u64::from(shape.slots());
        table.stats.slot_count.store(slot_count, Relaxed);
        self.entries = entries;
        self.count_memory(table);
    }

    /// Places entries in the fewest pages that hold them, or in two halves; segments come out in order of prefix.
    fn build(
        &mut self,
        table: &Table,
        prefix: u32,
        depth: u32,
        entries: &mut [Entry],
        pages_min: u32,
        built: &mut Vec<Built>,
    ) {
        for pages in pages_min..=PAGES_MAX {
            let shape = Shape::new(&table.fields, prefix, depth, pages).with_count(0);
            if entries.len() as u32 > pages * REBUILT_PER_PAGE[shape.slots_per_bucket() as usize] {
                continue;
            }
            if let Some(done) = self.fill(table, shape, entries) {
                return built.push(done);
            }
        }
        assert!(
            depth < DEPTH_MAX,
            "segments split {DEPTH_MAX} times: more keys than an index holds, or keys chosen against its seed"
        );
        let bit = 1 << (63 - depth);
        let middle = partition(entries, |(mixed, _)| mixed.m & bit == 0);
        let (low, high) = entries.split_at_mut(middle);
        self.build(table, prefix << 1, depth + 1, low, 1, built);
        self.build(table, prefix << 1 | 1, depth + 1, high, 1, built);
    }

    /// Fresh pages with the entries; none if some found no room.
    fn fill(&mut self, table: &Table, shape: Shape, entries: &[Entry]) -> Option<Built> {
        let pages: Vec<u32> = (0..shape.pages()).map(|_| self.pages.take(&table.arena)).collect();
        let mut segment = Segment { table, shape, pages: [0; PAGES_MAX as usize] };
        segment.pages[..pages.len()].copy_from_slice(&pages);
        if by_slots!(shape.slots_per_bucket(), N => segment.fill_all::<N>(entries)) {
            return Some(Built { shape: shape.with_count(entries.len() as u32), pages });
        }
        pages.into_iter().for_each(|page| self.pages.give_back(page));
        None
    }

    /// New headers, the directory, then the old header: in this order, so that each key can be reached at any time.
    fn publish(&mut self, table: &Table, header: u32, built: &[Built]) {
        let (first, others) = built.split_first().expect("at least one segment");
        let depth_max = built.iter().map(|built| built.shape.depth()).max().expect("at least one segment");
        self.deepen(table, depth_max);
        for other in others {
            let header = self.publish_header(table, other);
            table.point_to(header, other.shape);
        }
        let line = table.arena.line(header);
        let words = header_words(first.shape, &first.pages);
        changing(line, || line.0.iter().zip(words).skip(SHAPE).for_each(|(to, word)| to.store(word, Relaxed)));
    }

    /// Writes a header that nobody knows yet.
    pub(crate) fn publish_header(&mut self, table: &Table, built: &Built) -> u32 {
        let header = self.pages.take_lines(&table.arena, 1);
        table.arena.line(header).store(&header_words(built.shape, &built.pages));
        header
    }

    /// Doubles the directory until it has the depth.
    fn deepen(&mut self, table: &Table, depth: u32) {
        let root = table.root.load(Relaxed);
        let (first, old_depth) = ((root >> 8) as u32, (root & 0xff) as u32);
        if depth > old_depth {
            let entry = |index: u32| {
                let index = index >> (depth - old_depth);
                let word = table.arena.line(first + (index >> 4)).0[(index >> 1 & 7) as usize].load(Relaxed);
                (word >> (32 * (index & 1))) as u32
            };
            self.directory(table, depth, entry);
        }
    }

    /// Writes a new directory and makes it the root. The old one stays: readers may be in it, and all old ones together are
    /// smaller than the new.
    pub(crate) fn directory(&mut self, table: &Table, depth: u32, mut entry: impl FnMut(u32) -> u32) {
        let first = self.pages.take_lines(&table.arena, (1 << depth) / 16);
        for index in (0..1u32 << depth).step_by(2) {
            let pair = u64::from(entry(index)) | u64::from(entry(index + 1)) << 32;
            table.arena.line(first + (index >> 4)).0[(index >> 1 & 7) as usize].store(pair, Relaxed);
        }
        table.root.store(u64::from(first) << 8 | u64::from(depth), Release);
    }

    pub(crate) fn count_memory(&self, table: &Table) {
        let own = size_of::<Table>() + self.entries.capacity() * size_of::<Entry>();
        table.stats.memory_bytes.store(self.pages.taken_bytes() + own as u64, Relaxed);
    }
}

/// Moves the entries for which `low` holds to the front; how many there are.
fn partition(entries: &mut [Entry], low: impl Fn(&Entry) -> bool) -> usize {
    let mut middle = 0;
    for i in 0..entries.len() {
        if low(&entries[i]) {
            entries.swap(i, middle);
            middle += 1;
        }
    }
    middle
}
