//! What the index costs: memory, time, pauses. The CLI prints it, the tests run it small.
//!
//! Lives here:       the measurement of one index size, and its figures.
//! May be called by: the CLI and `examples/probe.rs`.
//!
//! Keys are integers mixed from a counter, so any of them can be named again without a list of them all; look-ups
//! visit them in an order that memory cannot guess. All times are wall clock, on whatever else the machine does.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::arena::LINE_BYTES;
use crate::mixed::mix;
use crate::shape::scaled;
use crate::{HashLayout, HashReader, HashWriter, Key, KeyKind, LenCode, Slot};

/// Figures of one index.
#[derive(Clone, Copy, Debug, Default)]
pub struct IndexFigures {
    /// Keys in it: as many as requested, and on to a load of 0.90, or a quarter more if that is not met.
    pub key_count: u64,
    /// Keys per slot in the end.
    pub load: f64,
    /// Memory per key in the end, everything counted.
    pub bytes_per_key: f64,
    /// Memory per key, averaged over growth from 1 M keys on (every key count alike); 0 for smaller indexes.
    pub bytes_per_key_mean: f64,
    /// The most memory per key at any moment from 1 M keys on; 0 for smaller indexes.
    pub bytes_per_key_max: f64,
    /// One insert while growing from nothing, growth included, in a second index that is filled without looking at clocks.
    pub insert_ns: f64,
    /// The longest single insert by the clock on the wall, time given to others included.
    pub insert_ns_max: u64,
    /// The longest in processor time, up to fifteen inserts before it included: what the index itself may take.
    pub insert_cpu_ns_max: u64,
    /// The floor of both: the longest that a loop which only looks at the clock is kept from doing so, for as long as all inserts took.
    pub idle_ns_max: u64,
    /// Inserts in a thousandth that took longest begin here.
    pub insert_ns_p999: u64,
    /// One `get` of a present key, one after another.
    pub hit_ns: f64,
    /// One `get` of an absent key, one after another.
    pub miss_ns: f64,
    /// The same when each key depends on the answer before, so the processor cannot begin early: latency.
    pub hit_latency_ns: f64,
    /// The floor of that: one load from the index's own memory, at the address from the load before.
    pub memory_latency_ns: f64,
    /// The floor of batches: pairs of lines of the index's own memory per second, each known before, in millions.
    pub memory_pairs_mps: f64,
    /// Present keys per second, in batches of 32, in millions.
    pub hit_batch_mps: f64,
    /// Absent keys per second, in batches of 32, in millions.
    pub miss_batch_mps: f64,
    /// Single `get`s per second of one reader thread, of two together, in millions.
    pub readers_mps: [f64; 2],
    /// The same while one of the threads also updates: one update per sixteen reads.
    pub readers_updating_mps: [f64; 2],
    /// `get`s of a reader, and updates of a writer that does nothing else next to it, per second in millions.
    pub reader_beside_writer_mps: [f64; 2],
}

impl IndexFigures {
    /// How much faster two readers are than one.
    pub fn readers_scale(&self) -> f64 {
        self.readers_mps[1] / self.readers_mps[0]
    }

    /// The same while one of them updates.
    pub fn readers_updating_scale(&self) -> f64 {
        self.readers_updating_mps[1] / self.readers_updating_mps[0]
    }
}

const MEASURED_FROM: u64 = 1_000_000;
const LOAD_MIN: f64 = 0.90;
/// Operations of one timed run.
const OPS: u64 = 4_000_000;

fn present(i: u64) -> Key {
    Key::from(mix(i ^ 0x6b61_6d6c_0000_0000))
}

fn absent(i: u64) -> Key {
    Key::from(mix(i ^ 0x6b61_6d6c_0000_0000 | 1 << 63))
}

/// A number below `count`, for each `i` another.
#[inline]
fn below(count: u64, i: u64) -> u64 {
    scaled(mix(i.wrapping_mul(0x2545_f491_4f6c_dd1d)), count)
}

fn slot(i: u64, addr_bits: u32) -> Slot {
    Slot { at: i & ((1 << addr_bits) - 1), len: LenCode::of(1 + (i % 16) as u32).expect("1 to 16 chunks") }
}

/// Fills an index of 64-bit keys to at least `keys`, and a load of 0.90, and measures it.
pub fn measure(keys: u64, addr_bits: u32) -> IndexFigures {
    let mut figures = IndexFigures { insert_ns: insert_ns(keys, addr_bits), ..IndexFigures::default() };
    let mut index = fill(keys, addr_bits, &mut figures);
    let count = figures.key_count;
    let ops = OPS.min(keys);
    let reader = index.reader();
    figures.memory_latency_ns = memory_latency_ns(&index, ops);
    figures.memory_pairs_mps = memory_pairs_mps(&index, ops);
    figures.hit_latency_ns = 1e3 / singles(&reader, ops, |i, turn| present(below(count, i + turn)), true);
    figures.hit_ns = 1e3 / singles(&reader, ops, |i, _| present(below(count, i)), true);
    figures.miss_ns = 1e3 / singles(&reader, ops, |i, _| absent(below(count, i)), false);
    figures.hit_batch_mps = batches(&reader, ops, |i| present(below(count, i)), true);
    figures.miss_batch_mps = batches(&reader, ops, |i| absent(below(count, i)), false);
    figures.readers_mps = [1, 2].map(|threads| readers(&reader, threads, ops, count));
    figures.readers_updating_mps = [1, 2].map(|threads| readers_updating(&mut index, threads, ops, count));
    figures.reader_beside_writer_mps = beside(&mut index, ops, count);
    figures
}

fn fill(keys: u64, addr_bits: u32, figures: &mut IndexFigures) -> HashWriter {
    let mut index = HashWriter::new(HashLayout { keys: KeyKind::U64, addr_bits });
    let (mut weighted, mut measured) = (0.0, 0u64);
    // Pauses by powers of two.
    let mut slower = [0u64; 64];
    let (mut last, mut cpu_last) = (Instant::now(), cpu_ns());
    let start = last;
    let mut i = 0;
    while i < keys || index.load() < LOAD_MIN && i < keys + keys / 4 {
        index.insert(&present(i), slot(i, addr_bits));
        let now = Instant::now();
        let ns = (now - last).as_nanos() as u64;
        last = now;
        figures.insert_ns_max = figures.insert_ns_max.max(ns);
        slower[ns.max(1).ilog2() as usize] += 1;
        if i % 16 == 0 || ns > 20_000 {
            let now = cpu_ns();
            figures.insert_cpu_ns_max = figures.insert_cpu_ns_max.max(now - cpu_last);
            cpu_last = now;
            last = Instant::now();
        }
        i += 1;
        if i >= MEASURED_FROM {
            let per_key = index.memory_bytes() as f64 / i as f64;
            figures.bytes_per_key_max = figures.bytes_per_key_max.max(per_key);
            weighted += per_key;
            measured += 1;
        }
    }
    figures.idle_ns_max = idle_ns_max(start.elapsed());
    let mut rest = i / 1000;
    for log2 in (0..64).rev() {
        if slower[log2] > rest {
            figures.insert_ns_p999 = 2 << log2;
            break;
        }
        rest -= slower[log2];
    }
    assert_eq!(index.len(), i, "mixed counters are distinct keys");
    figures.key_count = i;
    figures.load = index.load();
    figures.bytes_per_key = index.memory_bytes() as f64 / i as f64;
    figures.bytes_per_key_mean = if measured > 0 { weighted / measured as f64 } else { 0.0 };
    index
}

/// The longest time from one look at the clock to the next. What is long is time that the system, or a host below, gives to others.
fn idle_ns_max(duration: Duration) -> u64 {
    let start = Instant::now();
    let (mut last, mut longest) = (start, Duration::ZERO);
    while last - start < duration {
        let now = Instant::now();
        longest = longest.max(now - last);
        last = now;
    }
    longest.as_nanos() as u64
}

/// Processor time of this thread.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn insert_ns(keys: u64, addr_bits: u32) -> f64 {
    let mut index = HashWriter::new(HashLayout { keys: KeyKind::U64, addr_bits });
    let start = Instant::now();
    for i in 0..keys {
        index.insert(&present(i), slot(i, addr_bits));
    }
    start.elapsed().as_nanos() as f64 / keys as f64
}

/// One load after another, each at the address from the last one.
fn memory_latency_ns(index: &HashWriter, ops: u64) -> f64 {
    let lines = index.memory_bytes() / LINE_BYTES as u64;
    let mut turn = 0;
    let start = Instant::now();
    // The highest bit of a bucket's first word is that of a length code, and none is so large here.
    (0..ops).for_each(|i| turn = first_word(index, below(lines, i + turn)) >> 63);
    let ns = start.elapsed().as_nanos() as f64 / ops as f64;
    black_box(turn);
    ns
}

fn memory_pairs_mps(index: &HashWriter, ops: u64) -> f64 {
    let lines = index.memory_bytes() / LINE_BYTES as u64;
    let start = Instant::now();
    let pair = |i: u64| first_word(index, below(lines, i)) ^ first_word(index, below(lines, i + (1 << 40)));
    black_box((0..ops).fold(0, |all, i| all ^ pair(i)));
    ops as f64 / start.elapsed().as_nanos() as f64 * 1e3
}

#[inline]
fn first_word(index: &HashWriter, line: u64) -> u64 {
    index.table.arena.line(line as u32).0[0].load(Relaxed)
}

/// Millions of single `get`s per second. The key may depend on a number from the answer before, which is always 0.
fn singles(reader: &HashReader, ops: u64, key: impl Fn(u64, u64) -> Key, found: bool) -> f64 {
    let (mut hits, mut turn) = (0, 0);
    let start = Instant::now();
    for i in 0..ops {
        let answer = reader.get(&key(i, turn));
        turn = answer.map_or(0, |slot| slot.at >> 63);
        hits += u64::from(answer.is_some());
    }
    let rate = ops as f64 / start.elapsed().as_nanos() as f64 * 1e3;
    assert_eq!(hits, if found { ops } else { 0 }, "exact answers");
    rate
}

fn batches(reader: &HashReader, ops: u64, key: impl Fn(u64) -> Key, found: bool) -> f64 {
    let (mut hits, mut keys, mut answers) = (0, Vec::with_capacity(32), Vec::with_capacity(32));
    let ops = ops / 32 * 32;
    let start = Instant::now();
    for first in (0..ops).step_by(32) {
        keys.clear();
        keys.extend((first..first + 32).map(&key));
        answers.clear();
        reader.get_batch(&keys, &mut answers);
        hits += answers.iter().filter(|answer| answer.is_some()).count() as u64;
    }
    let rate = ops as f64 / start.elapsed().as_nanos() as f64 * 1e3;
    assert_eq!(hits, if found { ops } else { 0 }, "exact answers");
    rate
}

fn readers(reader: &HashReader, threads: u64, ops: u64, count: u64) -> f64 {
    let rates = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || singles(reader, ops, |i, _| present(below(count, i + (thread << 40))), true))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("readers do not panic")).sum()
    });
    black_box(rates)
}

/// The first thread reads sixteen keys per update; the second, if any, only reads. Only reads are counted.
fn readers_updating(index: &mut HashWriter, threads: u64, ops: u64, count: u64) -> f64 {
    let reader = index.reader();
    let addr_bits = index.layout().addr_bits;
    std::thread::scope(|scope| {
        let other = (threads == 2)
            .then(|| scope.spawn(|| singles(&reader, ops, |i, _| present(below(count, i + (1 << 40))), true)));
        let start = Instant::now();
        for i in 0..ops {
            let key = below(count, i);
            assert!(black_box(index.get(&present(key))).is_some(), "present keys are found");
            if i % 16 == 0 {
                index.insert(&present(key), slot(i, addr_bits));
            }
        }
        let rate = ops as f64 / start.elapsed().as_nanos() as f64 * 1e3;
        rate + other.map_or(0.0, |other| other.join().expect("readers do not panic"))
    })
}

fn beside(index: &mut HashWriter, ops: u64, count: u64) -> [f64; 2] {
    let (reader, done) = (index.reader(), AtomicBool::new(false));
    let addr_bits = index.layout().addr_bits;
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let rate = singles(&reader, ops, |i, _| present(below(count, i)), true);
            done.store(true, Relaxed);
            rate
        });
        let (start, mut i) = (Instant::now(), 0);
        while !done.load(Relaxed) {
            index.insert(&present(below(count, i + (1 << 40))), slot(i, addr_bits));
            i += 1;
        }
        let rate = i as f64 / start.elapsed().as_nanos() as f64 * 1e3;
        [reading.join().expect("readers do not panic"), rate]
    })
}
