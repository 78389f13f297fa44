//! The table as readers see it: directory, segment headers, buckets, and optimistic reading next to one writer.
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
//!   when the entry was read. A header gives up keys only after the directory names another one that holds them.
//! - Lines of headers are never anything else, so a stale reader reads a true header: of its segment, of none after a merge, or of
//!   a later one. It notices by the prefix that its key has moved, and starts at the root again. A version continues where the
//!   last segment of that header left it. Directories are never reused.
//! - A header's version is odd while buckets or header change. A reader loads the version (acquire), the header, the
//!   buckets (relaxed), fences (acquire), loads the version again; equal and even means that all of it belongs together.
//! - The writer makes the version odd (relaxed), fences (release), stores (relaxed), makes it even (release). So a reader that
//!   reads anything stored after a fence, even in a page reused by another segment, sees the version changed before it.
//!
//! What a look-up waits for are its two buckets, fetched at once: directory and headers are small enough for the caches
//! of a core, a fifth of a percent of the index.

use std::hint::select_unpredictable;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::arena::{Arena, Line, Lines, PAGE_LINES, alike};
use crate::bucket::{Bucket, EXTRA_BUCKET_BITS, Fields, SLOTS_MAX, Words, low_bits, matching};
use crate::mixed::{Mixed, Mixer};
use crate::outside::Outside;
use crate::shape::{Header, Shape, WidePlace};
use crate::{HashLayout, Key, Slot};

/// Keys in flight at a time: enough to hide memory's latency, few enough for the line fill buffers and L1.
const BATCH: usize = 32;
/// Lines after the buckets of a page that have more bits, and how many buckets share a word of them.
pub(crate) const EXTRA_LINES: u32 = 3;
const EXTRA_SHARED: u32 = 3;

/// The heads of six slots among the words of two lines.
const ALIKE_SIX: u32 = 0x3f3f;

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
    pub(crate) root: AtomicU64,
    pub(crate) outside: Outside,
    pub(crate) stats: Stats,
}

/// Where the directory is: its first entry << 8 | 64 - its depth, by which mixed bits are shifted.
#[derive(Clone, Copy)]
pub(crate) struct Root(u64);

impl Root {
    /// The depth is at least 4: a line of entries.
    pub(crate) fn new(first_entry: u64, depth: u32) -> Root {
        Root(first_entry << 8 | u64::from(64 - depth))
    }

    #[inline]
    pub(crate) fn first_entry(self) -> u64 {
        self.0 >> 8
    }

    pub(crate) fn depth(self) -> u32 {
        64 - (self.0 & 0xff) as u32
    }

    /// The entry for `m`.
    #[inline]
    fn entry(self, m: u64) -> u64 {
        self.first_entry() + (m >> (self.0 & 63))
    }
}

/// Written by the writer alone; on a line of its own, since the root next to it is read all the time.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) key_count: AtomicU64,
    pub(crate) slot_count: AtomicU64,
    /// What images of all segments take, without keys that have no slot.
    pub(crate) image_bytes: AtomicU64,
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

/// Where one key belongs, by a header at one version.
#[derive(Clone, Copy, Default)]
struct Aim {
    version: u64,
    slots: u32,
    buckets: [At; 2],
    remainders: [u64; 2],
}

/// A listed entry.
pub(crate) type Entry = (Mixed, u64);

/// Lines of a page.
#[inline]
pub(crate) fn page_lines(fields: &Fields) -> u32 {
    if fields.extra { PAGE_LINES + EXTRA_LINES } else { PAGE_LINES }
}

impl Table {
    /// Lines of a page.
    #[inline]
    pub(crate) fn page_lines(&self) -> u32 {
        page_lines(&self.fields)
    }

    /// A bucket by the number of its page.
    #[inline]
    pub(crate) fn at(&self, page: u32, bucket: u32) -> At {
        At { page: page * self.page_lines(), line: bucket % PAGE_LINES }
    }

    /// A bucket of a segment, by its number there.
    #[inline]
    pub(crate) fn at_header(&self, header: &Header, bucket: u32) -> At {
        self.at(header.page(bucket / PAGE_LINES), bucket)
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
    }

    /// Starts fetching the bits that the key's slot has after its page. Called when the buckets have arrived: only one of them
    /// has the key, if any, so fewer lines are fetched than by guessing.
    #[inline(always)]
    fn prefetch_behind(&self, lines: Lines<'_>, aim: &Aim) {
        let found = self.alike(lines, aim);
        if aim.slots == SLOTS_MAX && found != 0 {
            let [first, second] = aim.buckets;
            let at = select_unpredictable(found.trailing_zeros() >= 8, second, first);
            lines.prefetch(at.page + extra_at(at.line).0);
        }
    }

    /// Which of six slots of the first bucket, and of the second from bit 8 on, look like the key's.
    #[inline(always)]
    fn alike(&self, lines: Lines<'_>, aim: &Aim) -> u32 {
        let [first, second] = aim.buckets;
        // A head has at least 31 bits of the remainder, all of the remainder: neither choice nor page bits are among them.
        let low = (aim.remainders[0] << 1) as u32;
        alike(lines.line(first.page + first.line), lines.line(second.page + second.line), low) & ALIKE_SIX
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

    #[inline]
    pub(crate) fn root(&self) -> Root {
        Root(self.root.load(Acquire))
    }

    pub(crate) fn set_root(&self, root: Root) {
        self.root.store(root.0, Release);
    }

    /// The header that the directory names for `m`.
    #[inline]
    pub(crate) fn header(&self, m: u64) -> u32 {
        self.arena.entry(self.root().entry(m)).load(Acquire)
    }

    /// Aims at a key; none if the header is being changed or no longer holds the key.
    #[inline(always)]
    fn aim(&self, header: &Header, mixed: &Mixed) -> Option<Aim> {
        let version = header.version.load(Acquire);
        let shape = header.shape();
        if version & 1 != 0 || !shape.holds(mixed.m) {
            return None;
        }
        let WidePlace { cells: [first, second], remainders } = shape.wide_place(mixed);
        let buckets = [self.at(header.page_of(first), first.line()), self.at(header.page_of(second), second.line())];
        // Half of one page number and half of another may name no page at all, so nothing is read there before this.
        header.stood(version).then_some(Aim { version, slots: shape.slots_per_bucket(), buckets, remainders })
    }

    /// The key's slot among six of each bucket; none if that takes a closer look. Both buckets are compared before anything
    /// is decided, and the one with the key is chosen without a branch: which it is, a processor would often guess wrong.
    /// What is compared are 32 bits of each head, so one look-up in 2^28 sees what is not the key's.
    #[inline(always)]
    fn search_six(&self, lines: Lines<'_>, aim: &Aim) -> Option<Option<Slot>> {
        let [first, second] = aim.buckets;
        let found = self.alike(lines, aim);
        if found == 0 {
            return Some(None);
        }
        let found = found.trailing_zeros();
        let (is_second, i) = (found >= 8, found as usize % 8);
        let at = select_unpredictable(is_second, second, first);
        let line = lines.line(at.page + at.line);
        let remainder = select_unpredictable(is_second, aim.remainders[1], aim.remainders[0]);
        let head = line.0[i].load(Relaxed);
        if !self.fields.is_head_of(head, remainder, u64::from(is_second)) {
            return None;
        }
        let mut extra = 0;
        if self.fields.extra {
            let (behind, word, shift) = extra_at(at.line);
            extra = lines.line(at.page + behind).0[word].load(Relaxed) >> shift;
        }
        let tails = [line.0[6].load(Relaxed), line.0[7].load(Relaxed)];
        Some(self.fields.slot_of_six(head, tails, extra, i))
    }

    #[inline(never)]
    fn search_any(&self, aim: &Aim, mixed: &Mixed) -> Option<Slot> {
        self.fields.slot_of(by_slots!(aim.slots, N => self.search::<N>(aim, mixed)))
    }

    /// The value of the key, or 0. Both buckets are compared before anything is decided: which of them has the key is
    /// a guess that a processor would often get wrong.
    #[inline(always)]
    fn search<const N: usize>(&self, aim: &Aim, mixed: &Mixed) -> u64 {
        let buckets = [self.bucket(aim.buckets[0]), self.bucket(aim.buckets[1])];
        let [first, second] = aim.remainders;
        let mask = self.fields.tag_mask::<N>();
        let mut found = matching::<N>(&buckets[0], self.fields.tag::<N>(first, 0), mask)
            | matching::<N>(&buckets[1], self.fields.tag::<N>(second, 1), mask) << N;
        while found != 0 {
            let i = found.trailing_zeros() as usize;
            let choice = usize::from(i >= N);
            let i = i - choice * N;
            if self.fields.holds::<N>(&buckets[choice], i, aim.remainders[choice], mixed) {
                return self.fields.value::<N>(&buckets[choice], i);
            }
            found &= found - 1;
        }
        0
    }

    #[inline]
    pub(crate) fn get(&self, key: &Key) -> Option<Slot> {
        match self.mixer.integer(key) {
            Some(m) => self.get_integer(m),
            None => self.get_bytes(key),
        }
    }

    /// One try in a segment of the usual shape, made of few instructions and without a branch that is hard to guess: so a
    /// processor is busy with several look-ups at once. All that is rare stands elsewhere.
    #[inline(always)]
    fn get_integer(&self, m: u64) -> Option<Slot> {
        let lines = self.arena.lines();
        let header = lines.header(lines.entry(self.root().entry(m)).load(Acquire));
        if self.outside.is_empty()
            && let Some(aim) = self.aim(header, &Mixed::of_integer(m))
            && aim.slots == self.fields.slots_by_head
            && let Some(answer) = self.search_six(lines, &aim)
            && header.stood(aim.version)
        {
            return answer;
        }
        self.get_integer_again(m)
    }

    #[inline(never)]
    fn get_integer_again(&self, m: u64) -> Option<Slot> {
        self.get_mixed(&Mixed::of_integer(m))
    }

    #[inline(never)]
    fn get_bytes(&self, key: &Key) -> Option<Slot> {
        self.get_mixed(&self.mixer.mixed(key)?)
    }

    fn get_mixed(&self, mixed: &Mixed) -> Option<Slot> {
        let mut tries = 0;
        loop {
            let header = self.arena.header(self.header(mixed.m));
            if let Some(aim) = self.aim(header, mixed) {
                self.prefetch_both(&aim);
                let slot = self.search_any(&aim, mixed);
                if header.stood(aim.version) {
                    return slot.or_else(|| self.fields.slot_of(self.outside.get(mixed)));
                }
            }
            back_off(&mut tries);
        }
    }

    pub(crate) fn prefetch(&self, key: &Key) {
        if let Some(mixed) = self.mixer.mixed(key)
            && let Some(aim) = self.aim(self.arena.header(self.header(mixed.m)), &mixed)
        {
            self.prefetch_both(&aim);
        }
    }

    /// Appends one answer per key. Each step of a whole group is in progress before the next step of any: directory,
    /// header, both buckets.
    pub(crate) fn get_batch(&self, keys: &[Key], answers: &mut Vec<Option<Slot>>) {
        answers.reserve(keys.len());
        keys.chunks(BATCH).for_each(|group| self.get_group(group, answers));
    }

    fn get_group(&self, keys: &[Key], answers: &mut Vec<Option<Slot>>) {
        let lines = self.arena.lines();
        let mut mixed = [Mixed::default(); BATCH];
        let mut headers = [0; BATCH];
        for (i, key) in keys.iter().enumerate() {
            // A key that the namespace does not take is looked up as some other, and its answer dropped.
            mixed[i] = self.mixer.mixed(key).unwrap_or_default();
            headers[i] = self.header(mixed[i].m);
            lines.prefetch(headers[i]);
        }
        let mut aims = [Aim::default(); BATCH];
        for i in 0..keys.len() {
            // An aim that failed has version 1, which no header has when it is.
            aims[i] = self.aim(lines.header(headers[i]), &mixed[i]).unwrap_or(Aim { version: 1, ..Aim::default() });
            self.prefetch_both(&aims[i]);
        }
        if self.fields.extra {
            aims[..keys.len()].iter().for_each(|aim| self.prefetch_behind(lines, aim));
        }
        let alone = self.outside.is_empty();
        for (i, key) in keys.iter().enumerate() {
            let slot = match self.search_aimed(lines, &aims[i], &mixed[i]) {
                Some(slot) if lines.header(headers[i]).stood(aims[i].version) && slot.is_some() | alone => slot,
                _ => self.get_mixed(&mixed[i]),
            };
            answers.push(slot.filter(|_| key.check(self.layout.keys).is_ok()));
        }
    }

    /// The same by any aim; none as well if the aim failed.
    #[inline(always)]
    fn search_aimed(&self, lines: Lines<'_>, aim: &Aim, mixed: &Mixed) -> Option<Option<Slot>> {
        if aim.version & 1 != 0 {
            None
        } else if aim.slots == self.fields.slots_by_head {
            self.search_six(lines, aim)
        } else {
            Some(self.search_any(aim, mixed))
        }
    }

    /// The entries in the slots of the segment that holds `m`, in no order, and its shape.
    pub(crate) fn collect(&self, m: u64, entries: &mut Vec<Entry>) -> Shape {
        let mut tries = 0;
        loop {
            entries.clear();
            let header = self.header(m);
            let header = self.arena.header(header);
            let version = header.version.load(Acquire);
            let copy = header.copied();
            let shape = copy.shape();
            if version & 1 == 0 && shape.holds(m) && header.stood(version) {
                by_slots!(shape.slots_per_bucket(), N => self.collect_of::<N>(&copy, shape, entries));
                if header.stood(version) {
                    return shape;
                }
            }
            back_off(&mut tries);
        }
    }

    /// Visits length code and chunk number of each entry of the segment that holds `m`, for the writer, while nothing else
    /// changes; where the next segment begins.
    pub(crate) fn for_each_value(&self, m: u64, mut visit: impl FnMut(u64)) -> Option<u64> {
        let header = self.arena.header(self.header(m)).copied();
        let shape = header.shape();
        by_slots!(shape.slots_per_bucket(), N => for bucket in 0..shape.buckets() {
            let words = self.load_bucket(self.at_header(&header, bucket));
            let values = (0..N).map(|i| self.fields.value::<N>(&words, i));
            values.filter(|value| value >> self.fields.addr_bits != 0).for_each(&mut visit);
        });
        shape.end()
    }

    fn collect_of<const N: usize>(&self, header: &Header, shape: Shape, entries: &mut Vec<Entry>) {
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
        let in_slots = self.stats.key_count.load(Relaxed).saturating_sub(self.outside.len());
        in_slots as f64 / self.stats.slot_count.load(Relaxed) as f64
    }
}

/// Where a bucket has more bits after its page: line of the page, word, first bit.
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
