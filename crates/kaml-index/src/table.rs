//! The table as readers see it: directory, segment headers, buckets, and optimistic reading beside one writer.
//!
//! Lives here:       probes, batches, the collecting of a segment for listings.
//! Lives elsewhere:  every change (`writer`, `growth`), bit positions (`bucket`, `shape`).
//! May be called by: `HashReader` and `HashWriter`, which share one `Table`.
//!
//! ```text
//!  root ──▶ directory: 2^depth header numbers ──▶ header {version, shape, pages} ──▶ page ──▶ bucket
//!           (several entries may name one header)
//! ```
//!
//! Invariants
//! - The root names a complete directory. Its entries change, but each names a header that holds the entry's keys, or did
//!   when the entry was read: headers only ever give keys away, by splitting, and then to newer headers.
//! - Header lines and directories are never reused, so a stale reader reads a true header; it notices by the prefix that
//!   its key has moved, and starts at the root again.
//! - A header's version is odd while buckets or header change. A reader loads the version (acquire), the header, the
//!   buckets (relaxed), fences (acquire), loads the version again; equal and even means that all of it stood together.
//! - The writer makes the version odd (relaxed), fences (release), stores (relaxed), makes it even (release). So whoever
//!   reads anything stored after a fence, even in a page reused by another segment, sees the version changed before it.
//!
//! What a look-up waits for are its two buckets, fetched at once: directory and headers are small enough for the caches
//! of a core, a fifth of a percent of the index.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*, fence};

use crate::arena::{Arena, Line, PAGE_LINES};
use crate::bucket::{Bucket, EXTRA_BUCKET_BITS, Fields, Words, low_bits, matching};
use crate::mixed::{Mixed, Mixer};
use crate::shape::{Place, SHAPE, Shape, VERSION, page, top_bits};
use crate::{HashLayout, Key, Slot};

/// Keys in flight at a time: enough to hide memory's latency, few enough for the line fill buffers and L1.
const BATCH: usize = 32;
/// Lines behind the buckets of a page that have more bits, and how many buckets share a word of them.
pub(crate) const EXTRA_LINES: u32 = 3;
const EXTRA_SHARED: u32 = 3;

/// Names the const-generic variant of a function for a number of slots per bucket.
macro_rules! by_slots {
    ($slots:expr, $n:ident => $call:expr) => {
        match $slots {
            6 => {
                const $n: usize = 6;
                $call
            }
            5 => {
                const $n: usize = 5;
                $call
            }
            4 => {
                const $n: usize = 4;
                $call
            }
            3 => {
                const $n: usize = 3;
                $call
            }
            _ => {
                const $n: usize = 2;
                $call
            }
        }
    };
}
pub(crate) use by_slots;

pub(crate) struct Table {
    pub(crate) arena: Arc<Arena>,
    pub(crate) fields: Fields,
    pub(crate) mixer: Mixer,
    pub(crate) layout: HashLayout,
    pub(crate) seed: u64,
    /// The directory: first line << 8 | depth.
    pub(crate) root: AtomicU64,
    pub(crate) stats: Stats,
}

/// Written by the writer alone; on a line of its own, since the root beside it is read all the time.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) key_count: AtomicU64,
    pub(crate) slot_count: AtomicU64,
    pub(crate) memory_bytes: AtomicU64,
}

/// A bucket in memory: the first line of its page, and which of the page's lines it is.
#[derive(Clone, Copy, Default)]
pub(crate) struct At {
    page: u32,
    line: u32,
}

/// The same, to be read.
pub(crate) struct InTable<'a> {
    table: &'a Table,
    at: At,
    line: &'a Line,
}

impl Bucket for InTable<'_> {
    #[inline]
    fn word(&self, i: usize) -> u64 {
        self.line.0[i].load(Relaxed)
    }

    #[inline]
    fn extra(&self) -> u64 {
        if self.table.fields.extra { self.table.extra(self.at) } else { 0 }
    }
}

/// A header as read at one version, and where one key belongs in its segment.
#[derive(Clone, Copy, Default)]
struct Aim {
    header: u32,
    version: u64,
    slots: u32,
    place: Place,
    buckets: [At; 2],
}

/// A listed entry.
pub(crate) type Entry = (Mixed, u64);

impl Table {
    /// Lines of a page.
    #[inline]
    pub(crate) fn page_lines(&self) -> u32 {
        if self.fields.extra { PAGE_LINES + EXTRA_LINES } else { PAGE_LINES }
    }

    /// A bucket by the number of its page.
    #[inline]
    pub(crate) fn at(&self, page: u32, bucket: u32) -> At {
        At { page: page * self.page_lines(), line: bucket % PAGE_LINES }
    }

    /// A bucket of a segment, by its number there.
    #[inline]
    pub(crate) fn at_header(&self, header: &Line, bucket: u32) -> At {
        self.at(page(header, bucket / PAGE_LINES), bucket)
    }

    #[inline]
    pub(crate) fn bucket(&self, at: At) -> InTable<'_> {
        InTable { table: self, at, line: self.arena.line(at.page + at.line) }
    }

    #[inline]
    pub(crate) fn prefetch_at(&self, at: At) {
        self.arena.prefetch(at.page + at.line);
    }

    #[inline]
    fn prefetch_both(&self, aim: &Aim) {
        let [first, second] = aim.buckets;
        self.prefetch_at(first);
        self.prefetch_at(second);
        if self.fields.extra {
            self.arena.prefetch(first.page + extra_at(first.line).0);
            self.arena.prefetch(second.page + extra_at(second.line).0);
        }
    }

    /// The word with a bucket's extra bits, and where they begin.
    #[inline]
    fn extra_word(&self, at: At) -> (&AtomicU64, u32) {
        let (line, word, shift) = extra_at(at.line);
        (&self.arena.line(at.page + line).0[word], shift)
    }

    #[inline]
    fn extra(&self, at: At) -> u64 {
        let (word, shift) = self.extra_word(at);
        word.load(Relaxed) >> shift & low_bits(EXTRA_BUCKET_BITS)
    }

    /// A whole bucket.
    #[inline]
    pub(crate) fn load_bucket(&self, at: At) -> Words {
        let bucket = self.bucket(at);
        let mut words = [0; 9];
        for (word, from) in words.iter_mut().zip(&bucket.line.0) {
            *word = from.load(Relaxed);
        }
        words[8] = bucket.extra();
        words
    }

    /// Writes a whole bucket.
    #[inline]
    pub(crate) fn store_bucket(&self, at: At, words: &Words) {
        let line = self.arena.line(at.page + at.line);
        for (word, &value) in line.0.iter().zip(words) {
            word.store(value, Relaxed);
        }
        if self.fields.extra {
            let (word, shift) = self.extra_word(at);
            let others = word.load(Relaxed) & !(low_bits(EXTRA_BUCKET_BITS) << shift);
            word.store(others | words[8] << shift, Relaxed);
        }
    }

    /// The header that the directory names for `m`.
    #[inline]
    pub(crate) fn header(&self, m: u64) -> u32 {
        let root = self.root.load(Acquire);
        let index = top_bits(m, (root & 0xff) as u32) as u32;
        let line = self.arena.line((root >> 8) as u32 + (index >> 4));
        (line.0[(index >> 1 & 7) as usize].load(Acquire) >> (32 * (index & 1))) as u32
    }

    /// Reads a header; none if it is being changed or no longer holds the key.
    #[inline(always)]
    fn aim(&self, header: u32, mixed: &Mixed) -> Option<Aim> {
        let line = self.arena.line(header);
        let version = line.0[VERSION].load(Acquire);
        let shape = Shape(line.0[SHAPE].load(Relaxed));
        if version & 1 != 0 || !shape.holds(mixed.m) {
            return None;
        }
        let place = shape.place(mixed);
        let [first, second] = place.buckets;
        let buckets = [self.at_header(line, first), self.at_header(line, second)];
        // Half of one page number and half of another may name no page at all, so nothing is read there before this.
        if !self.stood(header, version) {
            return None;
        }
        Some(Aim { header, version, slots: shape.slots_per_bucket(), place, buckets })
    }

    /// Whether nothing of the segment has changed since the header was read.
    #[inline]
    fn stood(&self, header: u32, version: u64) -> bool {
        fence(Acquire);
        self.arena.line(header).0[VERSION].load(Relaxed) == version
    }

    /// The value of the key, 0 if absent; none if the segment changed meanwhile.
    #[inline(always)]
    fn read(&self, aim: &Aim, mixed: &Mixed) -> Option<u64> {
        let value = by_slots!(aim.slots, N => self.search::<N>(aim, mixed));
        self.stood(aim.header, aim.version).then_some(value)
    }

    /// The value of the key, or 0. Both buckets are compared before anything is decided: which of them has the key is
    /// a guess that a processor would often get wrong.
    #[inline(always)]
    fn search<const N: usize>(&self, aim: &Aim, mixed: &Mixed) -> u64 {
        let buckets = [self.bucket(aim.buckets[0]), self.bucket(aim.buckets[1])];
        let [first, second] = aim.place.remainders;
        let mask = self.fields.tag_mask::<N>();
        let mut found = matching::<N>(&buckets[0], self.fields.tag::<N>(first, 0), mask)
            | matching::<N>(&buckets[1], self.fields.tag::<N>(second, 1), mask) << N;
        while found != 0 {
            let i = found.trailing_zeros() as usize;
            let choice = usize::from(i >= N);
            let i = i - choice * N;
            if self.fields.holds::<N>(&buckets[choice], i, aim.place.remainders[choice], mixed) {
                return self.fields.value::<N>(&buckets[choice], i);
            }
            found &= found - 1;
        }
        0
    }

    #[inline]
    pub(crate) fn get(&self, key: &Key) -> Option<Slot> {
        let mixed = self.mixer.mixed(key)?;
        self.fields.slot_of(self.value(&mixed))
    }

    #[inline]
    fn value(&self, mixed: &Mixed) -> u64 {
        let mut tries = 0;
        loop {
            if let Some(aim) = self.aim(self.header(mixed.m), mixed) {
                self.prefetch_both(&aim);
                if let Some(value) = self.read(&aim, mixed) {
                    return value;
                }
            }
            back_off(&mut tries);
        }
    }

    pub(crate) fn prefetch(&self, key: &Key) {
        if let Some(mixed) = self.mixer.mixed(key)
            && let Some(aim) = self.aim(self.header(mixed.m), &mixed)
        {
            self.prefetch_both(&aim);
        }
    }

    /// Appends one answer per key. Each step of a whole group is under way before the next step of any: directory,
    /// header, both buckets.
    pub(crate) fn get_batch(&self, keys: &[Key], answers: &mut Vec<Option<Slot>>) {
        answers.reserve(keys.len());
        keys.chunks(BATCH).for_each(|group| self.get_group(group, answers));
    }

    fn get_group(&self, keys: &[Key], answers: &mut Vec<Option<Slot>>) {
        let mut mixed = [Mixed::default(); BATCH];
        let mut headers = [0; BATCH];
        for (i, key) in keys.iter().enumerate() {
            // A key that the namespace does not take is looked up as some other, and its answer dropped.
            mixed[i] = self.mixer.mixed(key).unwrap_or_default();
            headers[i] = self.header(mixed[i].m);
            self.arena.prefetch(headers[i]);
        }
        let mut aims = [Aim::default(); BATCH];
        for i in 0..keys.len() {
            // An aim that failed has version 1, which no header has when it stands.
            let failed = Aim { header: headers[i], version: 1, ..Aim::default() };
            aims[i] = self.aim(headers[i], &mixed[i]).unwrap_or(failed);
            self.prefetch_both(&aims[i]);
        }
        for (i, key) in keys.iter().enumerate() {
            let aim = &aims[i];
            let read = if aim.version & 1 == 0 { self.read(aim, &mixed[i]) } else { None };
            let value = read.unwrap_or_else(|| self.value(&mixed[i]));
            let taken = key.check(self.layout.keys).is_ok();
            answers.push(self.fields.slot_of(value).filter(|_| taken));
        }
    }

    /// The entries of the segment that holds `m`, in no order, and its shape.
    pub(crate) fn collect(&self, m: u64, entries: &mut Vec<Entry>) -> Shape {
        let mut tries = 0;
        loop {
            entries.clear();
            let header = self.header(m);
            let line = self.arena.line(header);
            let version = line.0[VERSION].load(Acquire);
            let shape = Shape(line.0[SHAPE].load(Relaxed));
            let copy = line.load();
            if version & 1 == 0 && shape.holds(m) && self.stood(header, version) {
                let copy = Line::of(&copy);
                by_slots!(shape.slots_per_bucket(), N => self.collect_of::<N>(&copy, shape, entries));
                if self.stood(header, version) {
                    return shape;
                }
            }
            back_off(&mut tries);
        }
    }

    /// Visits length code and chunk number of each entry of the segment that holds `m`, for the writer, beside whom nothing
    /// changes; where the next segment begins.
    pub(crate) fn for_each_value(&self, m: u64, mut visit: impl FnMut(u64)) -> Option<u64> {
        let header = self.arena.line(self.header(m));
        let shape = Shape(header.0[SHAPE].load(Relaxed));
        let header = Line::of(&header.load());
        by_slots!(shape.slots_per_bucket(), N => for bucket in 0..shape.buckets() {
            let words = self.load_bucket(self.at_header(&header, bucket));
            let values = (0..N).map(|i| self.fields.value::<N>(&words, i));
            values.filter(|value| value >> self.fields.addr_bits != 0).for_each(&mut visit);
        });
        shape.end()
    }

    fn collect_of<const N: usize>(&self, header: &Line, shape: Shape, entries: &mut Vec<Entry>) {
        for bucket in 0..shape.buckets() {
            let words = self.load_bucket(self.at_header(header, bucket));
            for i in 0..N {
                let value = self.fields.value::<N>(&words, i);
                if value >> self.fields.addr_bits != 0 {
                    let (choice, kept, verbatim) = self.fields.key_of::<N>(&words, i);
                    entries.push((shape.mixed(bucket, choice, kept, &verbatim), value));
                }
            }
        }
    }

    pub(crate) fn load(&self) -> f64 {
        self.stats.key_count.load(Relaxed) as f64 / self.stats.slot_count.load(Relaxed) as f64
    }
}

/// Where a bucket has more bits behind its page: line of the page, word, first bit.
#[inline]
pub(crate) fn extra_at(line: u32) -> (u32, usize, u32) {
    let (word, rest) = (line / EXTRA_SHARED, line % EXTRA_SHARED);
    (PAGE_LINES + word / 8, (word % 8) as usize, rest * EXTRA_BUCKET_BITS)
}

/// The writer is done within a microsecond unless it was put to sleep; then sleep too.
#[cold]
fn back_off(tries: &mut u32) {
    *tries += 1;
    if *tries < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
}
