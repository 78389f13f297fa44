//! How fast the record cache and transactions are, without waiting for a disk.
//!
//! `cargo run --release --example store_speed [records] [bytes, 0: no gets]` prints a table: cached gets, copied and not, uniform
//! and zipfian; TPC-B-like transactions (three reads and updates, one insert) on a device in memory, and on a device
//! that takes no time; strict, with early release, and durable 50 ms later.

use kaml::store::{Backing, BatchReader, Limits, PendingPut, Store, StoreOptions, WriteMode};
use kaml::{Batch, CreateOptions, Device, Error, KeyKind, KeyRef, NamespaceId, NamespaceOptions};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const RUN: Duration = Duration::from_millis(700);
const RUNS: usize = 3;
/// After which commits are durable in the last rows.
const DELAY: Duration = Duration::from_millis(50);

/// Takes every Put and has no record: what is measured then is the store alone.
struct Nothing;

struct Done;

impl PendingPut for Done {
    fn wait(self: Box<Self>) -> Result<(), Error> {
        Ok(())
    }
}

impl BatchReader for Nothing {
    fn get_many(
        &mut self,
        _: NamespaceId,
        keys: &[KeyRef<'_>],
        answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>, Error>),
    ) {
        (0..keys.len()).for_each(|at| answer(at, Ok(None)));
    }
}

impl Backing for Nothing {
    fn get_into(&self, _: NamespaceId, _: KeyRef<'_>, _: &mut Vec<u8>) -> Result<bool, Error> {
        Ok(false)
    }
    fn reader(&self) -> Box<dyn BatchReader> {
        Box::new(Nothing)
    }
    fn exists(&self, _: NamespaceId, _: KeyRef<'_>) -> Result<bool, Error> {
        Ok(false)
    }
    fn write(&self, _: &Batch) -> Result<(), Error> {
        Ok(())
    }
    fn submit(&self, _: &Batch) -> Result<Box<dyn PendingPut>, Error> {
        Ok(Box::new(Done))
    }
    fn delete_namespace(&self, _: NamespaceId) -> Result<(), Error> {
        Ok(())
    }
    fn limits(&self) -> Limits {
        Limits { value_bytes_max: 1 << 20, batch_bytes_max: 1 << 20 }
    }
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Operations per second of this many threads, the median of a few runs.
fn rate(threads: u64, operate: impl Fn(&mut Rng, u64) + Sync) -> f64 {
    let mut rates: Vec<f64> = (0..RUNS)
        .map(|_| {
            let (stop, total, begin) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let (stop, total, operate) = (&stop, &total, &operate);
                    scope.spawn(move || {
                        let mut rng = Rng(thread * 7919 + 12345);
                        let mut count = 0;
                        while !stop.load(Ordering::Relaxed) {
                            (0..64).for_each(|_| operate(&mut rng, thread));
                            count += 64;
                        }
                        total.fetch_add(count, Ordering::Relaxed);
                    });
                }
                std::thread::sleep(RUN);
                stop.store(true, Ordering::Relaxed);
            });
            total.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[RUNS / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let records: u64 = args.next().map_or(Ok(500_000), |arg| arg.parse())?;
    let bytes: usize = args.next().map_or(Ok(512), |arg| arg.parse())?;
    if bytes > 0 {
        gets(records, bytes)?;
    }
    transactions(records)
}

fn gets(records: u64, bytes: usize) -> Result<(), Box<dyn std::error::Error>> {
    let options = StoreOptions { write_mode: WriteMode::Back, ..StoreOptions::new(records * (bytes as u64 + 200) * 3) };
    let store = Store::open(Nothing, &options)?;
    let value = vec![7; bytes];
    (0..records).try_for_each(|key| store.put(1, key, &value))?;
    let stats = store.stats();
    println!("{records} records of {bytes} bytes; {} bytes of cache each", stats.used_bytes / records);
    let zipf: Vec<u32> = zipf_keys(records);
    for threads in [1, 2, 8] {
        let copied = rate(threads, |rng, _| {
            thread_local!(static BUFFER: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) });
            BUFFER.with_borrow_mut(|buffer| assert!(store.get_into(1, rng.next() % records, buffer).unwrap()));
        });
        let shared = rate(threads, |rng, _| assert!(store.get(1, rng.next() % records).unwrap().is_some()));
        let hot = rate(threads, |rng, _| {
            let key = u64::from(zipf[rng.next() as usize % zipf.len()]);
            assert!(store.get(1, key).unwrap().is_some());
        });
        println!("{threads} threads: get copied {copied:.0}/s, not copied {shared:.0}/s, zipf not copied {hot:.0}/s");
    }
    Ok(())
}

/// Keys drawn from a zipfian distribution (0.99) ahead of time.
fn zipf_keys(records: u64) -> Vec<u32> {
    let mut rng = Rng(99);
    let exponent = 0.01;
    let total = ((records as f64).powf(exponent) - 1.0) / exponent;
    let draw = |_| {
        let u = (rng.next() >> 11) as f64 / (1u64 << 53) as f64;
        let rank = (u * total * exponent + 1.0).powf(1.0 / exponent) as u64 - 1;
        (rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % records) as u32
    };
    (0..1 << 20).map(draw).collect()
}

fn transactions(records: u64) -> Result<(), Box<dyn std::error::Error>> {
    let strict = StoreOptions::new(2 << 30);
    let early = StoreOptions { early_release: true, ..strict.clone() };
    let delayed = StoreOptions { durability_delay: DELAY, write_mode: WriteMode::Back, ..strict.clone() };
    for (mode, options) in [("strict", strict), ("early release", early), ("delayed", delayed)] {
        let store = Store::open(Nothing, &options)?;
        bank(&format!("no device, {mode}"), &store, [1, 2, 3], records);
        let device = Device::in_memory(&CreateOptions::new(3 << 30))?;
        let keys = NamespaceOptions::records(KeyKind::U64);
        let ids = ["accounts", "tellers", "history"].map(|name| device.create_namespace(name, &keys));
        let [a, b, c] = ids;
        let store = Store::open(device, &options)?;
        bank(&format!("device in memory, {mode}"), &store, [a?, b?, c?], records);
    }
    Ok(())
}

fn bank(name: &str, store: &Store, [accounts, tellers, history]: [NamespaceId; 3], records: u64) {
    let row = [5; 100];
    for namespace in [accounts, tellers] {
        let insert = |key| store.put(namespace, key, &row).unwrap();
        (0..if namespace == accounts { records } else { 10_000 }).for_each(insert);
    }
    for threads in [1, 2] {
        let next: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
        let rate = rate(threads, |rng, thread| {
            let draw = rng.next();
            let order =
                (threads << 60) + (thread << 50) + next[thread as usize].fetch_add(1, Ordering::Relaxed) % 100_000;
            let account = draw % records;
            let rows = [(accounts, account), (tellers, draw >> 32 & 8191), (tellers, 8192 + (draw >> 50) % 1000)];
            let done = store.run(|txn| {
                txn.expect(rows.into_iter().chain([(history, order)]))?;
                for (namespace, key) in rows {
                    let mut row: [u8; 100] =
                        txn.read_for_update(namespace, key)?.expect("inserted")[..].try_into().expect("a row");
                    row[0] = row[0].wrapping_add(1);
                    txn.update(namespace, key, &row)?;
                }
                match txn.insert(history, order, &row) {
                    Err(kaml::Error::Conflict { present: true, .. }) => txn.update(history, order, &row),
                    inserted => inserted,
                }
            });
            done.unwrap();
        });
        println!("{name}, {threads} threads: {rate:.0} transactions/s");
    }
}
