//! Micro workloads over the `kaml` API: durable puts, uncached gets, and both at once.
//!
//! Lives here:       loops that put and get, each with its figures.
//! Lives elsewhere:  which keys (`keys`), what it is compared with (`floor`, `raw`), the bars (`compare`).
//!
//! Record `n` has key `n` (64 bits) and a value that begins with `n`, so every value read can be determined from any
//! other; a value that is missing or another's stops the run.

use crate::figures::{Meter, histogram, record};
use crate::keys::{Chooser, Distribution, Rng};
use crate::together::{self, Gate};
use crate::{Error, Figures};
use hdrhistogram::Histogram;
use kaml::{Answer, Batch, Bytes, Device, KeyKind, NamespaceId, NamespaceOptions};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When a run ends: after a time, or a number of operations (of all threads together) if that comes first.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// How long at most.
    pub duration: Duration,
    /// How many operations at most.
    pub operations: u64,
}

impl Stop {
    /// After a time.
    pub fn after(duration: Duration) -> Stop {
        Stop { duration, operations: u64::MAX }
    }

    /// After so many operations.
    pub fn at(operations: u64) -> Stop {
        Stop { duration: Duration::from_secs(24 * 3600), operations }
    }
}

/// Which records a workload works on.
#[derive(Clone, Copy, Debug)]
pub struct Records {
    /// Bytes of each value, at least 8.
    pub value_bytes: usize,
    /// How many there are.
    pub count: u64,
    /// How the next one is chosen.
    pub distribution: Distribution,
    /// Where the choice begins.
    pub seed: u64,
}

/// Durable puts.
#[derive(Clone, Copy, Debug)]
pub struct Puts {
    /// Of these records.
    pub records: Records,
    /// Records in one atomic Put.
    pub batch_records: usize,
    /// Blocking threads; for the queue, Puts in flight.
    pub in_flight: usize,
    /// When it ends.
    pub stop: Stop,
}

/// Gets of records that exist.
#[derive(Clone, Copy, Debug)]
pub struct Gets {
    /// Of these records.
    pub records: Records,
    /// Blocking threads; for the queue, Gets in flight.
    pub in_flight: usize,
    /// When it ends.
    pub stop: Stop,
}

/// A namespace of 64-bit keys for a workload, made if it is missing.
pub fn namespace(device: &Device, name: &str) -> Result<NamespaceId, Error> {
    if let Ok(namespace) = device.namespace(name) {
        return Ok(namespace);
    }
    Ok(device.create_namespace(name, &NamespaceOptions::records(KeyKind::U64))?)
}

/// The value of a record: its number, then bytes that do not compress.
struct Values {
    bytes: Vec<u8>,
}

impl Values {
    fn new(value_bytes: usize) -> Result<Values, Error> {
        if value_bytes < 8 {
            return Err(Error::Parameters(format!("values of {value_bytes} B: need 8 for the record's number")));
        }
        let mut rng = Rng::new(value_bytes as u64);
        Ok(Values { bytes: (0..value_bytes).map(|_| rng.next_u64() as u8).collect() })
    }

    fn of(&mut self, number: u64) -> &[u8] {
        self.bytes[..8].copy_from_slice(&number.to_le_bytes());
        &self.bytes
    }
}

fn check_value(number: u64, value: Option<&[u8]>, value_bytes: usize) -> Result<(), Error> {
    match value {
        None => Err(Error::Wrong(format!("record {number} is missing"))),
        Some(value) if value.len() != value_bytes || value[..8] != number.to_le_bytes() => {
            Err(Error::Wrong(format!("record {number} has another's value, or one of {} B", value.len())))
        }
        Some(_) => Ok(()),
    }
}

/// Puts records `0..count` once each, in large batches from a few threads.
pub fn fill(device: &Device, namespace: NamespaceId, value_bytes: usize, count: u64) -> Result<(), Error> {
    fill_range(device, namespace, value_bytes, 0..count)
}

/// Puts a range of records once each.
pub fn fill_range(
    device: &Device,
    namespace: NamespaceId,
    value_bytes: usize,
    numbers: Range<u64>,
) -> Result<(), Error> {
    const THREADS: u64 = 2;
    let batch_records = ((256 << 10) / (value_bytes as u64 + 64)).clamp(1, 512);
    let count = numbers.end - numbers.start;
    let share = |thread: u64| -> Result<(), Error> {
        let mut values = Values::new(value_bytes)?;
        let mut batch = Batch::new();
        let (first, last) = (count * thread / THREADS, count * (thread + 1) / THREADS);
        for start in (first..last).step_by(batch_records as usize) {
            batch.clear();
            for number in start..(start + batch_records).min(last) {
                let number = numbers.start + number;
                batch.put(namespace, number, values.of(number));
            }
            device.write(&batch)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let share = &share;
        together::join(together::start(scope, None, (0..THREADS).map(|thread| move || share(thread)))?)
    })?;
    Ok(())
}

/// Puts records `0..count` one after another.
pub(crate) fn put_singly(device: &Device, namespace: NamespaceId, value_bytes: usize, count: u64) -> Result<(), Error> {
    let mut values = Values::new(value_bytes)?;
    (0..count).try_for_each(|number| Ok(device.put(namespace, number, values.of(number))?))
}

/// Runs one closure on many threads until the stop, timing each call of the closure it makes.
fn threads<F>(thread_count: usize, stop: Stop, make: impl Fn(u64) -> Result<F, Error> + Sync) -> Result<Run, Error>
where
    F: FnMut() -> Result<(), Error>,
{
    if thread_count == 0 {
        return Err(Error::Parameters("no threads".into()));
    }
    let start = Gate::new(thread_count + 1);
    let begun_count = AtomicU64::new(0);
    let one = |thread: u64| -> Result<Histogram<u64>, Error> {
        let made = make(thread);
        start.pass()?;
        let mut operation = made?;
        let mut latencies = histogram();
        let begin = Instant::now();
        let mut begun = begin;
        while begun - begin < stop.duration && begun_count.fetch_add(1, Ordering::Relaxed) < stop.operations {
            operation()?;
            let now = Instant::now();
            record(&mut latencies, now - begun);
            begun = now;
        }
        Ok(latencies)
    };
    std::thread::scope(|scope| {
        let one = &one;
        let work = (0..thread_count as u64).map(|thread| move || one(thread));
        let threads = together::start(scope, Some(&start), work)?;
        let passed = start.pass();
        let meter = Meter::start();
        let latencies = together::join(threads)?.into_iter().fold(histogram(), |all, of_thread| all + of_thread);
        passed?;
        Ok(Run { meter, latencies })
    })
}

/// A finished run, before its figures are made up.
struct Run {
    meter: Meter,
    latencies: Histogram<u64>,
}

impl Run {
    fn figures(self, what: String, records_per_operation: usize, value_bytes: usize) -> Figures {
        let records = self.latencies.len() * records_per_operation as u64;
        self.meter.stop(what, records, records * value_bytes as u64, &self.latencies)
    }
}

/// Durable puts by blocking threads.
pub fn puts(device: &Device, namespace: NamespaceId, puts: &Puts) -> Result<Figures, Error> {
    let records = puts.records;
    let chooser = Chooser::new(records.distribution, records.count, records.seed);
    let run = threads(puts.in_flight, puts.stop, |thread| {
        let mut chooser = chooser.reseeded(records.seed + thread * records.count / puts.in_flight as u64);
        let mut values = Values::new(records.value_bytes)?;
        let mut batch = Batch::new();
        let batch_records = puts.batch_records;
        Ok(move || {
            if batch_records == 1 {
                let number = chooser.next_key();
                return Ok(device.put(namespace, number, values.of(number))?);
            }
            batch.clear();
            for _ in 0..batch_records {
                let number = chooser.next_key();
                batch.put(namespace, number, values.of(number));
            }
            Ok(device.write(&batch)?)
        })
    })?;
    let (threads, batch, bytes) = (puts.in_flight, puts.batch_records, records.value_bytes);
    Ok(run.figures(format!("kaml puts: {threads} threads, {batch} x {bytes} B"), batch, bytes))
}

/// Gets by blocking threads.
pub fn gets(device: &Device, namespace: NamespaceId, gets: &Gets) -> Result<Figures, Error> {
    let records = gets.records;
    let chooser = Chooser::new(records.distribution, records.count, records.seed);
    let run = threads(gets.in_flight, gets.stop, |thread| {
        let mut chooser = chooser.reseeded(records.seed + thread * records.count / gets.in_flight as u64);
        let mut last = Bytes::default();
        Ok(move || {
            let number = chooser.next_key();
            let found = device.get_bytes(namespace, number, std::mem::take(&mut last))?;
            let checked = check_value(number, found.as_deref(), records.value_bytes);
            last = found.unwrap_or_default();
            checked
        })
    })?;
    let (threads, bytes) = (gets.in_flight, records.value_bytes);
    Ok(run.figures(format!("kaml gets: {threads} threads, {bytes} B"), 1, bytes))
}

/// Gets and durable puts by blocking threads; `get_share` of the operations are gets. Returns the figures of all operations, and
/// those of the puts among them, whose processor time and bytes to the disk cannot be determined from the gets'.
pub fn mixed(
    device: &Device,
    namespace: NamespaceId,
    puts: &Puts,
    get_share: f64,
) -> Result<(Figures, Figures), Error> {
    let records = puts.records;
    let chooser = Chooser::new(records.distribution, records.count, records.seed);
    let put_latencies = std::sync::Mutex::new(histogram());
    let run = threads(puts.in_flight, puts.stop, |thread| {
        let mut chooser = chooser.reseeded(records.seed + thread * records.count / puts.in_flight as u64);
        let mut values = Values::new(records.value_bytes)?;
        let mut value = Vec::new();
        let mut coin = Rng::new(records.seed ^ thread << 32);
        let put_latencies = &put_latencies;
        Ok(move || {
            let number = chooser.next_key();
            if coin.unit() < get_share {
                let found = device.get_into(namespace, number, &mut value)?;
                return check_value(number, found.then_some(value.as_slice()), records.value_bytes);
            }
            let begun = Instant::now();
            device.put(namespace, number, values.of(number))?;
            record(&mut put_latencies.lock().expect("a workload thread panicked"), begun.elapsed());
            Ok(())
        })
    })?;
    let put_latencies = put_latencies.into_inner().expect("a workload thread panicked");
    let (threads, bytes) = (puts.in_flight, records.value_bytes);
    let all = run.figures(format!("kaml mixed: {threads} threads, {bytes} B, {get_share} gets"), 1, bytes);
    let put_share = Figures {
        what: format!("  of these, puts: {bytes} B"),
        operations: put_latencies.len(),
        records: put_latencies.len(),
        bytes: put_latencies.len() * bytes as u64,
        operations_per_s: put_latencies.len() as f64 / all.seconds,
        records_per_s: put_latencies.len() as f64 / all.seconds,
        megabytes_per_s: (put_latencies.len() * bytes as u64) as f64 / all.seconds / 1e6,
        latency: (&put_latencies).into(),
        cpu_us_per_operation: None,
        disk_write_bytes: None,
        disk_read_bytes: None,
        seconds: all.seconds,
    };
    Ok((all, put_share))
}

/// Keeps a queue full from one thread; `submit` starts an operation and returns what it is about.
fn in_flight(
    device: &Device,
    depth: usize,
    stop: Stop,
    mut submit: impl FnMut(&mut kaml::AsyncQueue, u64) -> Result<u64, Error>,
    mut check: impl FnMut(u64, Option<&[u8]>) -> Result<(), Error>,
) -> Result<Run, Error> {
    if depth == 0 {
        return Err(Error::Parameters("nothing in flight".into()));
    }
    let mut queue = device.queue(depth as u32);
    let mut latencies = histogram();
    let mut answers: Vec<Answer> = Vec::new();
    let mut begun = vec![(Instant::now(), 0u64); depth];
    let mut idle: Vec<usize> = (0..depth).collect();
    let meter = Meter::start();
    let begin = Instant::now();
    let mut begun_count = 0;
    loop {
        let mut now = Instant::now();
        for token in idle.drain(..) {
            if now - begin < stop.duration && begun_count < stop.operations {
                begun_count += 1;
                begun[token] = (now, submit(&mut queue, token as u64)?);
            }
        }
        if queue.in_flight() == 0 && answers.is_empty() {
            break;
        }
        queue.poll(true, &mut answers);
        now = Instant::now();
        for answer in answers.drain(..) {
            let (begun, about) = begun[answer.token as usize];
            check(about, answer.result?.as_deref())?;
            record(&mut latencies, now - begun);
            idle.push(answer.token as usize);
        }
    }
    Ok(Run { meter, latencies })
}

/// Durable puts from one thread, many in flight.
pub fn puts_in_flight(device: &Device, namespace: NamespaceId, puts: &Puts) -> Result<Figures, Error> {
    let records = puts.records;
    let mut chooser = Chooser::new(records.distribution, records.count, records.seed);
    let mut values = Values::new(records.value_bytes)?;
    let mut batch = Batch::new();
    let submit = |queue: &mut kaml::AsyncQueue, token: u64| {
        if puts.batch_records == 1 {
            let number = chooser.next_key();
            queue.put(token, namespace, number, values.of(number))?;
            return Ok(number);
        }
        batch.clear();
        for _ in 0..puts.batch_records {
            let number = chooser.next_key();
            batch.put(namespace, number, values.of(number));
        }
        queue.write(token, &batch)?;
        Ok(0)
    };
    let run = in_flight(device, puts.in_flight, puts.stop, submit, |_, _| Ok(()))?;
    let (depth, batch, bytes) = (puts.in_flight, puts.batch_records, records.value_bytes);
    Ok(run.figures(format!("kaml puts: {depth} in flight, {batch} x {bytes} B"), batch, bytes))
}

/// Gets from one thread, many in flight.
pub fn gets_in_flight(device: &Device, namespace: NamespaceId, gets: &Gets) -> Result<Figures, Error> {
    let records = gets.records;
    let mut chooser = Chooser::new(records.distribution, records.count, records.seed);
    let submit = |queue: &mut kaml::AsyncQueue, token: u64| {
        let number = chooser.next_key();
        queue.get(token, namespace, number)?;
        Ok(number)
    };
    let check = |number, value: Option<&[u8]>| check_value(number, value, records.value_bytes);
    let run = in_flight(device, gets.in_flight, gets.stop, submit, check)?;
    let (depth, bytes) = (gets.in_flight, records.value_bytes);
    Ok(run.figures(format!("kaml gets: {depth} in flight, {bytes} B"), 1, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaml::CreateOptions;

    fn device() -> Device {
        Device::in_memory(&CreateOptions::new(256 << 20)).unwrap()
    }

    fn records(value_bytes: usize, count: u64, distribution: Distribution) -> Records {
        Records { value_bytes, count, distribution, seed: 1 }
    }

    /// Goal:   every workload does exactly the operations it counts, and what it put can be got.
    /// Method: fill 1000 records, run each workload for 500 operations, compare the figures with the device's counts.
    #[test]
    fn workloads_do_what_they_count() {
        let device = device();
        let namespace = namespace(&device, "bench").unwrap();
        fill(&device, namespace, 100, 1000).unwrap();
        for (distribution, in_flight) in [(Distribution::Uniform, 1), (Distribution::Zipf(0.99), 4)] {
            let records = records(100, 1000, distribution);
            let stop = Stop::at(500);
            for batch_records in [1, 7] {
                let put = Puts { records, batch_records, in_flight, stop };
                for run in [puts, puts_in_flight] {
                    let figures = run(&device, namespace, &put).unwrap();
                    assert_eq!((figures.operations, figures.records), (500, 500 * batch_records as u64), "{figures:?}");
                }
            }
            let before = device.stats().get_count;
            for run in [gets, gets_in_flight] {
                let figures = run(&device, namespace, &Gets { records, in_flight, stop }).unwrap();
                assert_eq!((figures.operations, figures.bytes), (500, 50_000), "{figures:?}");
            }
            assert_eq!(device.stats().get_count - before, 1000);
            let (all, puts) =
                mixed(&device, namespace, &Puts { records, batch_records: 1, in_flight, stop }, 0.5).unwrap();
            assert_eq!(all.operations, 500);
            assert!((150..350).contains(&puts.operations), "{puts:?}");
            assert!(all.cpu_us_per_operation.is_some() && puts.cpu_us_per_operation.is_none());
            assert_eq!((puts.disk_write_bytes, puts.disk_read_bytes), (None, None));
        }
    }

    /// Goal:   a thread that panics before all are ready ends the run, with its words.
    /// Method: one of four; then a run whose end lies beyond all clocks.
    #[test]
    fn panics_end_a_run() {
        let stop = Stop { duration: Duration::MAX, operations: 100 };
        let result = threads(4, stop, |thread| {
            assert!(thread != 2, "thread 2 has had enough");
            Ok(|| Ok(()))
        });
        assert!(matches!(result, Err(Error::Wrong(what)) if what.contains("has had enough")));
        assert_eq!(threads(4, stop, |_| Ok(|| Ok(()))).unwrap().latencies.len(), 100);
    }

    /// Goal:   a workload notices a record that is missing or has another's value.
    /// Method: read past the end; swap a value.
    #[test]
    fn wrong_values_stop_a_run() {
        let device = device();
        let namespace = namespace(&device, "bench").unwrap();
        fill(&device, namespace, 64, 10).unwrap();
        let get =
            |count| Gets { records: records(64, count, Distribution::Sequential), in_flight: 1, stop: Stop::at(count) };
        gets(&device, namespace, &get(10)).unwrap();
        assert!(matches!(gets(&device, namespace, &get(11)), Err(Error::Wrong(_))));
        assert!(matches!(gets_in_flight(&device, namespace, &get(11)), Err(Error::Wrong(_))));
        device.put(namespace, 3, Values::new(64).unwrap().of(4)).unwrap();
        assert!(matches!(gets(&device, namespace, &get(10)), Err(Error::Wrong(_))));
    }
}
