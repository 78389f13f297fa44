//! The table as readers see it: directory, segment headers, buckets, and optimistic reading beside one writer.
//!
//! Lives here:       probes, batches, the collecting of a segment for listings.
//! Lives elsewhere:  every change (`writer`), bit positions (`bucket`, `shape`).
//! May be called by: `IndexReader` and `IndexWriter`, which share one `Table`.
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

use std::sync::atomic::{AtomicU64, Ordering::*, fence};

use crate::arena::{Arena, Line, PAGE_LINES};
use crate::bucket::{self, Fields, low_bits};
use crate::mixed::{Mixed, Mixer};
use crate::shape::{Place, SHAPE, Shape, Undo, VERSION, page, top_bits};
use crate::{IndexLayout, Key, Slot};

/// Keys in flight at a time: enough to hide memory's latency, few enough for the line fill buffers and L1.
const BATCH: usize = 32;

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
    pub(crate) arena: Arena,
    pub(crate) fields: Fields,
    pub(crate) mixer: Mixer,
    pub(crate) layout: IndexLayout,
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

/// A header as read at one version, and where one key belongs in its segment.
#[derive(Clone, Copy, Default)]
struct Aim {
    header: u32,
    version: u64,
    shape: u64,
    place: Place,
    lines: [u32; 2],
}

/// A listed entry.
pub(crate) type Entry = (Mixed, u64);

impl Table {
    /// The header that the directory names for `m`.
    #[inline]
    pub(crate) fn header(&self, m: u64) -> u32 {
        let root = self.root.load(Acquire);
        let index = top_bits(m, (root & 0xff) as u32) as u32;
        let line = self.arena.line((root >> 8) as u32 + (index >> 4));
        (line.0[(index >> 1 & 7) as usize].load(Acquire) >> (32 * (index & 1))) as u32
    }

    /// Reads a header; none if it is being changed or no longer holds the key.
    #[inline]
    fn aim(&self, header: u32, mixed: &Mixed, digest: u64) -> Option<Aim> {
        let line = self.arena.line(header);
        let version = line.0[VERSION].load(Acquire);
        let shape = Shape(line.0[SHAPE].load(Relaxed));
        if version & 1 != 0 || !shape.holds(mixed.m) {
            return None;
        }
        let place = shape.place(mixed, digest);
        let lines = [place.first, place.second].map(|bucket| bucket_line(line, bucket));
        Some(Aim { header, version, shape: shape.0, place, lines })
    }

    /// Whether nothing of the segment has changed since the header was read.
    #[inline]
    fn stood(&self, header: u32, version: u64) -> bool {
        fence(Acquire);
        self.arena.line(header).0[VERSION].load(Relaxed) == version
    }

    /// The value of the key, 0 if absent; none if the segment changed meanwhile.
    #[inline]
    fn read(&self, aim: &Aim, mixed: &Mixed) -> Option<u64> {
        let value = by_slots!(Shape(aim.shape).slots_per_bucket(), N => {
            match self.search::<N>(aim, mixed, 0) {
                0 => self.search::<N>(aim, mixed, 1),
                value => value,
            }
        });
        self.stood(aim.header, aim.version).then_some(value)
    }

    /// The value of the key if it lies in its first (0) or second (1) bucket, else 0.
    #[inline]
    fn search<const N: usize>(&self, aim: &Aim, mixed: &Mixed, choice: usize) -> u64 {
        let words = self.arena.line(aim.lines[choice]).load();
        let tag = aim.place.remainder << 1 | choice as u64;
        find::<N>(&self.fields, &words, Shape(aim.shape).remainder_bits(), tag, mixed).map_or(0, |(_, value)| value)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Slot> {
        let mixed = self.mixer.mixed(key)?;
        self.fields.slot_of(self.value(&mixed))
    }

    #[inline]
    fn value(&self, mixed: &Mixed) -> u64 {
        let digest = mixed.verbatim_digest();
        let mut tries = 0;
        loop {
            if let Some(aim) = self.aim(self.header(mixed.m), mixed, digest) {
                aim.lines.iter().for_each(|&line| self.arena.prefetch(line));
                if let Some(value) = self.read(&aim, mixed) {
                    return value;
                }
            }
            back_off(&mut tries);
        }
    }

    pub(crate) fn prefetch(&self, key: &Key) {
        if let Some(mixed) = self.mixer.mixed(key)
            && let Some(aim) = self.aim(self.header(mixed.m), &mixed, mixed.verbatim_digest())
        {
            aim.lines.iter().for_each(|&line| self.arena.prefetch(line));
        }
    }

    /// Appends one answer per key. Each step of a whole group is under way before the next step of any: directory,
    /// header, first bucket, and the second only of the keys that need it, since lines from memory are what limits.
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
            aims[i] = self.aim(headers[i], &mixed[i], mixed[i].verbatim_digest()).unwrap_or(failed);
            self.arena.prefetch(aims[i].lines[0]);
        }
        let mut values = [0; BATCH];
        for i in 0..keys.len() {
            values[i] =
                by_slots!(Shape(aims[i].shape).slots_per_bucket(), N => self.search::<N>(&aims[i], &mixed[i], 0));
            if values[i] == 0 {
                self.arena.prefetch(aims[i].lines[1]);
            }
        }
        for i in 0..keys.len() {
            if values[i] == 0 {
                values[i] =
                    by_slots!(Shape(aims[i].shape).slots_per_bucket(), N => self.search::<N>(&aims[i], &mixed[i], 1));
            }
            if aims[i].version & 1 != 0 || !self.stood(aims[i].header, aims[i].version) {
                values[i] = self.value(&mixed[i]);
            }
            let taken = keys[i].check(self.layout.keys).is_ok();
            answers.push(self.fields.slot_of(values[i]).filter(|_| taken));
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
            if version & 1 == 0 && shape.holds(m) {
                by_slots!(shape.slots_per_bucket(), N => self.collect_of::<N>(line, shape, entries));
                if self.stood(header, version) {
                    return shape;
                }
            }
            back_off(&mut tries);
        }
    }

    fn collect_of<const N: usize>(&self, header: &Line, shape: Shape, entries: &mut Vec<Entry>) {
        let (undo, k) = (Undo::new(shape), shape.remainder_bits());
        for bucket in 0..shape.buckets() {
            let words = self.arena.line(bucket_line(header, bucket)).load();
            for i in 0..N {
                let value = self.fields.value::<N>(&words, i);
                if value == 0 {
                    continue;
                }
                let tag = bucket::tag::<N>(&words, i);
                let remainder = tag >> 1 & low_bits(k);
                let (high, len_less_one) = self.fields.verbatim::<N>(&words, i, k);
                let mut mixed = Mixed { m: 0, high, len_less_one };
                let first =
                    if tag & 1 == 0 { bucket } else { shape.backward(bucket, remainder, mixed.verbatim_digest()) };
                mixed.m = undo.mixed(first, remainder);
                entries.push((mixed, value));
            }
        }
    }

    pub(crate) fn load(&self) -> f64 {
        self.stats.key_count.load(Relaxed) as f64 / self.stats.slot_count.load(Relaxed) as f64
    }
}

/// The line of a bucket.
#[inline]
pub(crate) fn bucket_line(header: &Line, bucket: u32) -> u32 {
    page(header, bucket / PAGE_LINES) + bucket % PAGE_LINES
}

/// The slot of a bucket that holds the key, and its value.
#[inline]
pub(crate) fn find<const N: usize>(
    fields: &Fields,
    words: &bucket::Words,
    k: u32,
    tag: u64,
    mixed: &Mixed,
) -> Option<(usize, u64)> {
    let mut found = bucket::matching::<N>(words, tag, low_bits(k + 1));
    while found != 0 {
        let i = found.trailing_zeros() as usize;
        let value = fields.value::<N>(words, i);
        // An empty slot looks like remainder 0 in its first bucket.
        if value != 0
            && (fields.verbatim_bits == 0 || fields.verbatim::<N>(words, i, k) == (mixed.high, mixed.len_less_one))
        {
            return Some((i, value));
        }
        found &= found - 1;
    }
    None
}

/// The writer is done within a microsecond unless it was put to sleep; then sleep too.
#[cold]
fn back_off(tries: &mut u32) {
    *tries += 1;
    if *tries < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
}
