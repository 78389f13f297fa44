//! What the index costs: memory and time, next to loads of the same memory.
//!
//! Lives here:       the measurement of one set of keys, and its figures.
//! May be called by: `examples/probe_ordered.rs`, and the programs that measure KAML.
//!
//! Key number `i` is computed, so any key can be named again without a list of all. Look-ups visit keys in an order that memory cannot
//! predict. Each figure is the median of several rounds; every round measures everything, the floors included, one after the other.

use std::hint::black_box;

use kaml_index::{LenCode, Slot};

use crate::arena::{LINE_BYTES, LINE_WORDS};
use crate::{OrderedBuilder, OrderedLayout, OrderedReader, OrderedWriter};

/// Sets of keys that are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeasuredKeys {
    /// Random 64-bit integers, big-endian.
    U64,
    /// Consecutive 64-bit integers, inserted in a scattered order.
    Dense,
    /// Textual UUIDs of 36 bytes.
    Uuid,
    /// Paths of about 60 bytes.
    Path,
}

/// Figures of one index. Times are processor time in nanoseconds, rates in millions per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct OrderedFigures {
    /// Keys in it.
    pub key_count: u64,
    /// Bytes of an average key.
    pub key_bytes: f64,
    /// Memory for each key, everything counted, after inserts in a scattered order.
    pub bytes_per_key: f64,
    /// The most memory for each key at any moment from a tenth of the keys on.
    pub bytes_per_key_max: f64,
    /// The same of an index that was built from sorted keys.
    pub built_bytes_per_key: f64,
    /// Bytes of a checkpoint image for each key.
    pub image_bytes_per_key: f64,
    /// Memory after every key but one in a hundred was removed, for each key that existed before.
    pub removed_bytes_per_key: f64,
    /// One insert while growing from nothing.
    pub insert_ns: f64,
    /// One insert of a builder, and one entry of an image that is loaded.
    pub build_ns: f64,
    /// As above.
    pub load_ns: f64,
    /// One new value of a present key.
    pub replace_ns: f64,
    /// One load from the index's own memory, whose address depends on the load before.
    pub dependent_load_ns: f64,
    /// One `get` of a present key that depends on the `get` before, and of an absent one.
    pub hit_ns: f64,
    /// As above.
    pub miss_ns: f64,
    /// The same without dependence.
    pub hit_independent_ns: f64,
    /// Three random lines of the index's memory, known before: rate of such triples.
    pub line_triples_mps: f64,
    /// Present keys in batches of 32.
    pub hit_batch_mps: f64,
    /// Absent keys in batches of 32.
    pub miss_batch_mps: f64,
    /// Entries of a whole iteration with `next_entry`, and with `next_entry_back`.
    pub iterate_mps: f64,
    /// As above.
    pub iterate_back_mps: f64,
    /// Scans of a hundred entries from a random key.
    pub scan_100_ns: f64,
}

/// Operations of one timed run.
const OPS: u64 = 1_000_000;

/// Processor time of this thread since some moment: other work on the machine does not count, except what it takes of the caches.
#[derive(Clone, Copy)]
struct Clock(u64);

impl Clock {
    fn now() -> Clock {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Clock(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    fn ns(self) -> f64 {
        (Clock::now().0 - self.0) as f64
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 32).wrapping_mul(0xbb67_ae85_84ca_a73b);
    x ^ x >> 32
}

/// A number below `count`, another one for each `i`.
fn below(count: u64, i: u64) -> u64 {
    ((u128::from(mix(i.wrapping_mul(0x2545_f491_4f6c_dd1d))) * u128::from(count)) >> 64) as u64
}

/// Key number `i` of a set; those with `is_absent` are others.
fn key(keys: MeasuredKeys, i: u64, is_absent: bool, out: &mut Vec<u8>) {
    use std::io::Write;
    out.clear();
    let i = if is_absent { i | 1 << 40 } else { i };
    match keys {
        MeasuredKeys::U64 => out.extend_from_slice(&mix(i).to_be_bytes()),
        MeasuredKeys::Dense => out.extend_from_slice(&i.to_be_bytes()),
        MeasuredKeys::Uuid => {
            let (a, b) = (mix(i), mix(!i));
            let parts = (a >> 32, a >> 16 & 0xffff, a & 0xfff, b >> 48 & 0x3fff | 0x8000, b & 0xffff_ffff_ffff);
            let written =
                write!(out, "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}", parts.0, parts.1, parts.2, parts.3, parts.4);
            written.expect("a vector takes all");
        }
        MeasuredKeys::Path => {
            let (user, project, module, file) = (i % 1000, i / 1000 % 20, i / 20_000 % 25, i / 500_000);
            let name = mix(i) % 10_000;
            let written = write!(
                out,
                "home/user_{user:04}/projects/project_{project:03}/src/module_{module:02}/file_{file:03}_{name:04}.rs"
            );
            written.expect("a vector takes all");
        }
    }
}

fn slot(i: u64) -> Slot {
    Slot { at: i & 0xffff_ffff, len: LenCode::of(1 + (i % 16) as u32).expect("1 to 16 chunks") }
}

/// Fills an index with this many keys, with chunk numbers of this many bits, and measures it so many times.
pub fn measure(keys: MeasuredKeys, count: u64, addr_bits: u32, rounds: usize) -> OrderedFigures {
    let layout = OrderedLayout { addr_bits };
    let mut figures = OrderedFigures { key_count: count, ..OrderedFigures::default() };
    let mut index = fill(keys, layout, &mut figures);
    let all: Vec<OrderedFigures> = (0..rounds).map(|_| round(keys, &mut index)).collect();
    let median = |of: fn(&OrderedFigures) -> f64| {
        let mut values: Vec<f64> = all.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    figures.replace_ns = median(|of| of.replace_ns);
    figures.dependent_load_ns = median(|of| of.dependent_load_ns);
    figures.hit_ns = median(|of| of.hit_ns);
    figures.miss_ns = median(|of| of.miss_ns);
    figures.hit_independent_ns = median(|of| of.hit_independent_ns);
    figures.line_triples_mps = median(|of| of.line_triples_mps);
    figures.hit_batch_mps = median(|of| of.hit_batch_mps);
    figures.miss_batch_mps = median(|of| of.miss_batch_mps);
    figures.iterate_mps = median(|of| of.iterate_mps);
    figures.iterate_back_mps = median(|of| of.iterate_back_mps);
    figures.scan_100_ns = median(|of| of.scan_100_ns);
    rebuild(&index, &mut figures);
    let mut kept = 0u64;
    let mut out = vec![];
    for i in 0..count {
        if !mix(i).is_multiple_of(100) {
            key(keys, i, false, &mut out);
            assert!(index.remove(&out).is_some(), "present keys are removed");
        } else {
            kept += 1;
        }
    }
    assert_eq!(index.len(), kept, "the others remain");
    figures.removed_bytes_per_key = index.memory_bytes() as f64 / count as f64;
    figures
}

fn fill(keys: MeasuredKeys, layout: OrderedLayout, figures: &mut OrderedFigures) -> OrderedWriter {
    let (mut index, mut out, mut bytes) = (OrderedWriter::new(layout), vec![], 0);
    let count = figures.key_count;
    // An odd step visits all numbers below a power of two, in a scattered order.
    let (all, step) = (count.next_power_of_two(), 0x9e37_79b9_7f4a_7c15u64);
    let start = Clock::now();
    for i in (0..all).map(|i| i.wrapping_mul(step) & (all - 1)).filter(|i| *i < count) {
        key(keys, i, false, &mut out);
        bytes += out.len();
        index.insert(&out, slot(i)).expect("these are keys");
        if index.len().is_multiple_of(1000) && index.len() >= count / 10 {
            let now = index.memory_bytes() as f64 / index.len() as f64;
            figures.bytes_per_key_max = figures.bytes_per_key_max.max(now);
        }
    }
    figures.insert_ns = start.ns() / count as f64;
    assert_eq!(index.len(), count, "numbers have different keys");
    figures.bytes_per_key = index.memory_bytes() as f64 / count as f64;
    figures.key_bytes = bytes as f64 / count as f64;
    index
}

fn rebuild(index: &OrderedWriter, figures: &mut OrderedFigures) {
    let count = figures.key_count as f64;
    let (mut builder, mut entries) = (OrderedBuilder::new(index.layout()), index.iter());
    let start = Clock::now();
    while let Some((key, slot)) = entries.next_entry() {
        builder.push(key, slot).expect("they ascend");
    }
    let built = builder.finish();
    figures.build_ns = start.ns() / count;
    figures.built_bytes_per_key = built.memory_bytes() as f64 / count;
    drop(built);
    let (mut image, mut next) = (vec![], Some(crate::ImageCursor::START));
    while let Some(from) = next {
        next = index.image_next(&from, &mut image);
    }
    figures.image_bytes_per_key = image.len() as f64 / count;
    let start = Clock::now();
    let loaded = OrderedWriter::of_image(index.layout(), &image).expect("images are whole");
    figures.load_ns = start.ns() / count;
    assert_eq!(loaded.len(), index.len(), "images are whole");
}

fn round(keys: MeasuredKeys, index: &mut OrderedWriter) -> OrderedFigures {
    let (count, reader) = (index.len(), index.reader());
    let ops = OPS.min(count);
    let per = |start: Clock, ops: u64| start.ns() / ops as f64;
    let numbers: Vec<u64> = (0..ops).map(|i| below(count, i ^ 0x5555)).collect();
    let named = |is_absent: bool| {
        let mut all = Vec::with_capacity(numbers.len());
        let mut out = vec![];
        for &i in &numbers {
            key(keys, i, is_absent, &mut out);
            all.push(out.clone().into_boxed_slice());
        }
        all
    };
    let (present, absent) = (named(false), named(true));
    let start = Clock::now();
    let (mut turn, no_bits) = (0, black_box(0));
    let lines = index.memory_bytes() / LINE_BYTES as u64 * 15 / 16;
    (0..ops).for_each(|i| turn = word(index, below(lines, i + turn)) & no_bits);
    black_box(turn);
    let dependent_load_ns = per(start, ops);
    let start = Clock::now();
    let triple = |i: u64| (0..3).fold(0, |all, part| all ^ word(index, below(lines, i + (part << 40))));
    black_box((0..ops).fold(0, |all, i| all ^ triple(i)));
    let line_triples_mps = 1e3 / per(start, ops);
    let hit_ns = singles(&reader, &present, true);
    let miss_ns = singles(&reader, &absent, false);
    let start = Clock::now();
    let hits = present.iter().filter(|key| reader.get(key).is_some()).count();
    let hit_independent_ns = per(start, ops);
    assert_eq!(hits as u64, ops, "exact results");
    let hit_batch_mps = batches(&reader, &present, true);
    let miss_batch_mps = batches(&reader, &absent, false);
    let start = Clock::now();
    let (mut entries, mut seen, mut sum) = (reader.iter(), 0, 0);
    while let Some((key, slot)) = entries.next_entry() {
        seen += 1;
        sum ^= slot.at ^ u64::from(key[0]);
    }
    let iterate_mps = 1e3 / per(start, seen);
    let start = Clock::now();
    let mut entries = reader.iter();
    while let Some((key, slot)) = entries.next_entry_back() {
        seen -= 1;
        sum ^= slot.at ^ u64::from(key[0]);
    }
    let iterate_back_mps = 1e3 / per(start, count);
    assert_eq!((seen, sum), (0, 0), "both directions return the same");
    let start = Clock::now();
    let scans = ops / 50;
    for key in &present[..scans as usize] {
        let mut entries = reader.range::<[u8]>((std::ops::Bound::Included(&**key), std::ops::Bound::Unbounded));
        for _ in 0..100 {
            black_box(entries.next_entry());
        }
    }
    let scan_100_ns = per(start, scans);
    let start = Clock::now();
    for (key, &i) in present.iter().zip(&numbers) {
        index.insert(key, slot(i)).expect("these are keys");
    }
    let replace_ns = per(start, ops);
    OrderedFigures {
        dependent_load_ns,
        line_triples_mps,
        hit_ns,
        miss_ns,
        hit_independent_ns,
        hit_batch_mps,
        miss_batch_mps,
        iterate_mps,
        iterate_back_mps,
        scan_100_ns,
        replace_ns,
        ..OrderedFigures::default()
    }
}

/// A word of a line of the index's memory.
fn word(index: &OrderedWriter, line: u64) -> u64 {
    let words = index.tree().arena.words(line as u32);
    words.map_or(0, |words| words[line as usize % LINE_WORDS].load(std::sync::atomic::Ordering::Relaxed))
}

/// Each look-up depends on the one before, by a number that is always 0.
fn singles(reader: &OrderedReader, keys: &[Box<[u8]>], found: bool) -> f64 {
    let (mut hits, mut turn) = (0, 0);
    let start = Clock::now();
    for i in 0..keys.len() {
        let slot = reader.get(&keys[i + turn]);
        turn = slot.map_or(0, |slot| slot.at >> 40) as usize;
        hits += usize::from(slot.is_some());
    }
    let ns = start.ns() / keys.len() as f64;
    assert_eq!(hits, if found { keys.len() } else { 0 }, "exact results");
    ns
}

fn batches(reader: &OrderedReader, keys: &[Box<[u8]>], found: bool) -> f64 {
    let (mut hits, mut answers) = (0, Vec::with_capacity(32));
    let start = Clock::now();
    for keys in keys.chunks(32) {
        answers.clear();
        reader.get_batch(keys, &mut answers);
        hits += answers.iter().filter(|slot| slot.is_some()).count();
    }
    let rate = keys.len() as f64 / start.ns() * 1e3;
    assert_eq!(hits, if found { keys.len() } else { 0 }, "exact results");
    rate
}
