//! Growing and shrinking of segments, one or two at a time and in small steps.
//!
//! Lives here:       adding a page, splitting and merging segments, denser buckets, the directory.
//! Lives elsewhere:  where a key belongs (`shape`), single entries (`writer`), keys that were chosen to collide (`outside`).
//! May be called by: `HashWriter`, snapshots.
//!
//! | step    | when                                       | what moves                                                   |
//! |---------|--------------------------------------------|--------------------------------------------------------------|
//! | denser  | buckets could have one slot more           | slots of a bucket are cut again, none leaves its bucket       |
//! | add     | a segment is full, or a key found no place | half of one page goes to a new one, to the same buckets there |
//! | split   | a segment has sixteen pages                | nothing: eight pages get a header of their own               |
//! | rebuild | a segment is sparse                        | all entries are placed again in fewer pages                   |
//! | merge   | two siblings together fill half a page     | their entries are placed again in one page                    |
//! | outside | a key found no place, and more would not help | nothing: the key is put next to the segments (`outside`)   |
//!
//! An insert so moves less than one entry on average and never waits longer than one step takes, some tens of
//! microseconds for the first and one or two for the others; only removes rebuild and merge. Publishing a split: the new header
//! first, then the directory, then the old header gives up its keys (`table` reports why readers are never misled). Publishing a
//! merge: the lower header takes all keys, then the directory names it, then the upper header holds none.

use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::arena::{ENTRIES_PER_LINE, Line, PAGE_LINES, Pages};
use crate::bucket::{self, Fields, SLOTS_MIN, Words};
use crate::shape::{DEPTH_MAX, FULL_LINES, HEADER_LINES, Header, PAGES_FULL, PAGES_MAX, Shape};
use crate::snapshot::{HEAD_BYTES, image_bytes};
use crate::table::{Entry, Root, Table, by_slots};
use crate::writer::{Segment, changing};

/// Percent of its slots that a rebuilt segment may use at most, so it does not grow again at once.
const REBUILT_PERCENT: u32 = 70;
/// A segment that is less than 40 % full is rebuilt smaller.
const SPARSE_PERCENT: u32 = 40;

/// Two siblings that would fill so much of one page at most become one.
const MERGED_PERCENT: u32 = 50;
/// A segment looks for its sibling at every so many removes.
const MERGE_EVERY: u32 = 16;
/// Segments are merged up to this many directory entries for each: to write them takes some tens of microseconds.
const MERGED_SPAN_LOG2: u32 = 16;

/// In a segment of which fewer slots are taken, keys that are spread evenly find a place (`writer` has from where on not); one that
/// does not was chosen, and would find none in a larger segment.
const PLACED_PERCENT: u32 = 60;

/// The least depth of a directory: a line of entries.
pub(crate) const DEPTH_LEAST: u32 = ENTRIES_PER_LINE.ilog2();

/// A segment's new pages, not yet published.
pub(crate) struct Built {
    pub(crate) shape: Shape,
    pub(crate) pages: Vec<u32>,
}

/// The writer's own state.
pub(crate) struct Owner {
    pub(crate) pages: Pages,
    /// The entries of the segment that is being rebuilt; kept for its memory.
    entries: Vec<Entry>,
    /// Headers of segments that were merged into others.
    headers: Vec<u32>,
    /// Where a snapshot continues, 0 if none is being taken: a segment must begin there.
    pub(crate) imaged_until: AtomicU64,
}

impl Owner {
    /// The first segment, of one page, and a directory of sixteen entries that all name it: one page of each is the
    /// least that an index takes.
    pub(crate) fn start(table: &Table) -> Owner {
        let mut owner = Owner {
            pages: Pages::new(table.page_lines()),
            entries: vec![],
            headers: vec![],
            imaged_until: AtomicU64::new(0),
        };
        let built = Built { shape: Shape::new(&table.fields, 0, 0, 1), pages: vec![owner.pages.take(&table.arena)] };
        let header = owner.publish_header(table, &built);
        owner.directory(table, DEPTH_LEAST, |_| header);
        table.stats.slot_count.store(u64::from(built.shape.slots()), Relaxed);
        table.stats.image_bytes.store(image_bytes(&table.fields, built.shape) as u64, Relaxed);
        owner.count_memory(table);
        owner
    }

    /// Gives a full segment more slots; false if that would not help, or cannot be.
    #[cold]
    pub(crate) fn grow(&mut self, table: &Table, header: u32) -> bool {
        let segment = Segment::of_header(table, header);
        if !self.can_grow(table, segment.shape) {
            return false;
        }
        let slots = segment.shape.slots_per_bucket();
        if segment.shape.slots_possible(&table.fields) > slots {
            match slots {
                SLOTS_MIN => self.denser::<2, 3>(&segment),
                3 => self.denser::<3, 4>(&segment),
                4 => self.denser::<4, 5>(&segment),
                _ => self.denser::<5, 6>(&segment),
            }
        } else {
            by_slots!(slots, N => self.add_page::<N>(&segment));
            if segment.shape.pages() + 1 == PAGES_MAX {
                self.split(table, header);
            }
        }
        self.count_memory(table);
        true
    }

    fn can_grow(&self, table: &Table, shape: Shape) -> bool {
        let splits = shape.slots_possible(&table.fields) == shape.slots_per_bucket() && shape.pages() + 1 == PAGES_MAX;
        let directory = if splits && shape.depth() == table.root().depth() { 2 << shape.depth() } else { 0 };
        shape.count() * 100 >= shape.slots() * PLACED_PERCENT
            && !(splits && shape.depth() == DEPTH_MAX)
            && self.pages.have_room(&table.arena, PAGES_MAX, HEADER_LINES + (directory / ENTRIES_PER_LINE) as u32)
    }

    /// Cuts buckets of `N` slots into `M`. In fresh pages, since it takes too long for readers to wait.
    fn denser<const N: usize, const M: usize>(&mut self, segment: &Segment) {
        let (table, old) = (segment.table, segment.shape);
        let shape = Shape::with_slots(old.prefix(), old.depth(), old.pages(), M as u32).with_count(old.count());
        let pages: Vec<u32> = (0..old.pages()).map(|_| self.pages.take(&table.arena)).collect();
        for bucket in 0..old.buckets() {
            let words = table.load_bucket(segment.at(bucket));
            let words = recut::<N, M>(&table.fields, &words);
            table.store_bucket(table.at(pages[(bucket / PAGE_LINES) as usize], bucket), &words);
        }
        self.republish(segment, &Built { shape, pages });
    }

    /// Adds a page: half of another, and the same buckets there.
    fn add_page<const N: usize>(&mut self, segment: &Segment) {
        let (table, old) = (segment.table, segment.shape);
        let (count, bit) = (old.pages(), old.splitting_bit());
        let from_page = count - (1 << old.base_log2());
        let from = from_page * PAGE_LINES;
        let mut pages = segment.pages();
        let to = self.pages.take(&table.arena);
        pages.push(to);
        let mut staying = [[0; 9]; PAGE_LINES as usize];
        for (line, staying) in (0..).zip(&mut staying) {
            let words = table.load_bucket(segment.at(from + line));
            let mask = moving::<N>(&table.fields, &words, bit);
            let mut gone = [0; 9];
            for i in 0..9 {
                (staying[i], gone[i]) = (words[i] & !mask[i], words[i] & mask[i]);
            }
            table.store_bucket(table.at(to, line), &gone);
        }
        let shape = Shape::with_slots(old.prefix(), old.depth(), count + 1, N as u32).with_count(old.count());
        changing(segment.header, || {
            (0..).zip(&staying).for_each(|(line, words)| table.store_bucket(segment.at(from + line), words));
            segment.header.store(shape, &pages);
        });
        segment.forget_full([from_page, count]);
        add_slots(table, old, shape);
    }

    /// Makes two segments of sixteen pages.
    fn split(&mut self, table: &Table, header: u32) {
        let whole = Segment::of_header(table, header);
        let (shape, depth) = (whole.shape, whole.shape.depth() + 1);
        let (slots, pages) = (shape.slots_per_bucket(), whole.pages());
        let high_count = by_slots!(slots, N => (PAGES_FULL * PAGE_LINES..PAGES_MAX * PAGE_LINES)
            .map(|bucket| N as u32 - bucket::empties::<N>(&table.bucket(whole.at(bucket))).count_ones())
            .sum::<u32>());
        let half = |high: u32, count: u32| {
            Shape::with_slots(shape.prefix() << 1 | high, depth, PAGES_FULL, slots).with_count(count)
        };
        let (low_pages, high_pages) = pages.split_at(PAGES_FULL as usize);
        let (low, high) = (half(0, shape.count() - high_count), half(1, high_count));
        self.deepen(table, depth);
        let high_header = self.publish_header(table, &Built { shape: high, pages: high_pages.to_vec() });
        table.point_to(high_header, high);
        table.count_image(table.image_bytes() + HEAD_BYTES as u64);
        changing(whole.header, || whole.header.store(low, low_pages));
        let high_segment = Segment::of_header(table, high_header);
        for page in 0..PAGES_FULL {
            let full = whole.full_of(PAGES_FULL + page).swap(0, Relaxed);
            high_segment.full_of(page).store(full, Relaxed);
        }
    }

    /// Rebuilds a sparse segment smaller.
    pub(crate) fn shrink_if_sparse(&mut self, table: &Table, m: u64) {
        let header = table.header(m);
        let shape = table.arena.header(header).shape();
        let is_sparse = shape.pages() > 1 && shape.count() * 100 < shape.slots() * SPARSE_PERCENT;
        if is_sparse && self.pages.have_room(&table.arena, shape.pages(), 0) {
            self.rebuild(table, header);
            self.count_memory(table);
        } else if shape.pages() == 1 && shape.count().is_multiple_of(MERGE_EVERY) && shape.depth() > 0 {
            self.merge_while_sparse(table, m);
        }
    }

    /// Merges a segment with its sibling, and the two with theirs, as long as both are sparse.
    #[cold]
    fn merge_while_sparse(&mut self, table: &Table, m: u64) {
        let mut any = false;
        while self.merge(table, m) {
            any = true;
        }
        if any {
            self.count_memory(table);
        }
    }

    /// Makes one segment of the one that holds `m` and its sibling; false if they are too full, the sibling is split, or a
    /// snapshot continues between them.
    fn merge(&mut self, table: &Table, m: u64) -> bool {
        let own = table.arena.header(table.header(m)).shape();
        let depth = own.depth();
        if depth == 0 || table.root().depth() - depth >= MERGED_SPAN_LOG2 {
            return false;
        }
        let low_start = own.start() & !(1 << (64 - depth));
        let high_start = low_start | 1 << (64 - depth);
        let (low_header, high_header) = (table.header(low_start), table.header(high_start));
        let (low, high) = (Segment::of_header(table, low_header), Segment::of_header(table, high_header));
        let count = low.shape.count() + high.shape.count();
        let shape = Shape::new(&table.fields, own.prefix() >> 1, depth - 1, 1);
        let are_siblings = low.shape.depth() == depth && high.shape.depth() == depth;
        if !are_siblings
            || count * 100 > shape.slots() * MERGED_PERCENT
            || high_start == self.imaged_until.load(Relaxed)
            || !self.pages.have_room(&table.arena, 1, 0)
        {
            return false;
        }
        let mut entries = std::mem::take(&mut self.entries);
        table.collect(low_start, &mut entries);
        let mut of_high = vec![];
        table.collect(high_start, &mut of_high);
        entries.append(&mut of_high);
        assert!(entries.len() == count as usize, "segments count their entries");
        let built = self.fill(table, shape, &entries);
        self.entries = entries;
        if let Some(built) = &built {
            self.publish_merged(&low, &high, low_header, built);
            self.headers.push(high_header);
        }
        built.is_some()
    }

    /// The lower segment gets all keys, the upper none.
    fn publish_merged(&mut self, low: &Segment, high: &Segment, low_header: u32, built: &Built) {
        let (table, old_pages) = (low.table, [low.pages(), high.pages()].concat());
        changing(low.header, || low.header.store(built.shape, &built.pages));
        low.forget_full(0..PAGES_MAX);
        table.point_to(low_header, built.shape);
        changing(high.header, || high.header.retire());
        high.forget_full(0..PAGES_MAX);
        old_pages.into_iter().for_each(|page| self.pages.give_back(&table.arena, page));
        let slots = table.stats.slot_count.load(Relaxed) + u64::from(built.shape.slots());
        table.stats.slot_count.store(slots - u64::from(low.shape.slots()) - u64::from(high.shape.slots()), Relaxed);
        let [merged, low, high] =
            [built.shape, low.shape, high.shape].map(|shape| image_bytes(&table.fields, shape) as u64);
        table.count_image(table.image_bytes() + merged - low - high);
    }

    /// Places a segment's entries again in the fewest pages that hold them, if those are fewer.
    #[cold]
    fn rebuild(&mut self, table: &Table, header: u32) {
        let segment = Segment::of_header(table, header);
        let old = segment.shape;
        let mut entries = std::mem::take(&mut self.entries);
        let collected = table.collect(old.start(), &mut entries);
        assert!(collected == old && entries.len() == old.count() as usize, "a segment counts its entries");
        for pages in 1..old.pages() {
            let shape = Shape::new(&table.fields, old.prefix(), old.depth(), pages);
            if entries.len() as u32 * 100 <= shape.slots() * REBUILT_PERCENT
                && let Some(built) = self.fill(table, shape, &entries)
            {
                self.republish(&segment, &built);
                break;
            }
        }
        self.entries = entries;
    }

    /// Fresh pages with the entries; none if some found no room.
    fn fill(&mut self, table: &Table, shape: Shape, entries: &[Entry]) -> Option<Built> {
        let pages: Vec<u32> = (0..shape.pages()).map(|_| self.pages.take_zeroed(&table.arena)).collect();
        let (header, full) = (Header::of(shape, &pages), <[Line; FULL_LINES]>::default());
        let segment = Segment { table, shape, header: &header, full: full.each_ref() };
        if by_slots!(shape.slots_per_bucket(), N => segment.fill_all::<N>(entries)) {
            return Some(Built { shape: shape.with_count(entries.len() as u32), pages });
        }
        pages.into_iter().for_each(|page| self.pages.give_back(&table.arena, page));
        None
    }

    /// Gives a segment other pages with the same entries.
    fn republish(&mut self, segment: &Segment, built: &Built) {
        let old_pages = segment.pages();
        changing(segment.header, || segment.header.store(built.shape, &built.pages));
        segment.forget_full(0..PAGES_MAX);
        old_pages.into_iter().for_each(|page| self.pages.give_back(&segment.table.arena, page));
        add_slots(segment.table, segment.shape, built.shape);
    }

    /// Writes a header that the directory does not name yet. A late reader may look at one that was another segment's.
    pub(crate) fn publish_header(&mut self, table: &Table, built: &Built) -> u32 {
        let header = self.headers.pop().unwrap_or_else(|| self.pages.take_lines(&table.arena, HEADER_LINES));
        let fresh = table.arena.header(header);
        changing(fresh, || fresh.store(built.shape, &built.pages));
        header
    }

    /// Doubles the directory until it has the depth.
    fn deepen(&mut self, table: &Table, depth: u32) {
        let root = table.root();
        if depth > root.depth() {
            let (first, old_depth) = (root.first_entry(), root.depth());
            let entry = |index: u64| table.arena.entry(first + (index >> (depth - old_depth))).load(Relaxed);
            self.directory(table, depth, entry);
        }
    }

    /// Writes a new directory and makes it the root. The old one stays: readers may be in it, and all old ones together are
    /// smaller than the new.
    pub(crate) fn directory(&mut self, table: &Table, depth: u32, mut entry: impl FnMut(u64) -> u32) {
        let count = 1 << depth;
        let first =
            u64::from(self.pages.take_lines(&table.arena, (count / ENTRIES_PER_LINE) as u32)) * ENTRIES_PER_LINE;
        for index in 0..count {
            table.arena.entry(first + index).store(entry(index), Relaxed);
        }
        table.set_root(Root::new(first, depth));
    }

    pub(crate) fn count_memory(&self, table: &Table) {
        let own = size_of::<Table>()
            + self.entries.capacity() * size_of::<Entry>()
            + self.headers.capacity() * size_of::<u32>();
        table.stats.memory_bytes.store(self.pages.taken_bytes(&table.arena) + own as u64, Relaxed);
    }
}

impl Table {
    fn image_bytes(&self) -> u64 {
        self.stats.image_bytes.load(Relaxed)
    }

    fn count_image(&self, bytes: u64) {
        self.stats.image_bytes.store(bytes, Relaxed);
    }

    /// Makes every directory entry of a segment's keys name its header.
    fn point_to(&self, header: u32, shape: Shape) {
        let root = self.root();
        let span = root.depth() - shape.depth();
        let prefix = u64::from(shape.prefix());
        for index in prefix << span..(prefix + 1) << span {
            self.arena.entry(root.first_entry() + index).store(header, Release);
        }
    }
}

fn add_slots(table: &Table, old: Shape, new: Shape) {
    let slots = table.stats.slot_count.load(Relaxed) + u64::from(new.slots()) - u64::from(old.slots());
    table.stats.slot_count.store(slots, Relaxed);
    let [old, new] = [old, new].map(|shape| image_bytes(&table.fields, shape) as u64);
    table.count_image(table.image_bytes() + new - old);
}

/// The bits of all slots whose remainder has the bit set.
fn moving<const N: usize>(fields: &Fields, words: &Words, bit: u32) -> Words {
    let mut mask = [0; 9];
    for i in 0..N {
        if fields.remainder_bit::<N>(words, i, bit) {
            mask.iter_mut().zip(bucket::slot_mask::<N>(i)).for_each(|(all, own)| *all |= own);
        }
    }
    mask
}

/// The entries of a bucket of `N` slots in a bucket of `M`.
fn recut<const N: usize, const M: usize>(fields: &Fields, words: &Words) -> Words {
    let mut cut = [0; 9];
    for i in (0..N).filter(|&i| bucket::empties::<N>(words) >> i & 1 == 0) {
        let (choice, kept, verbatim) = fields.key_of::<N>(words, i);
        let raw = fields.pack::<M>(kept, choice, fields.value::<N>(words, i), &verbatim);
        bucket::set_raw::<M>(&mut cut, i, &raw);
    }
    cut
}
