//! Runs the operations of a workload on many threads and makes up what came of it.
//!
//! Lives here:       the `Workload` trait, threads, warm-up, running again what an engine gave up on, measuring; sharing out
//!                   a load or check.
//! Lives elsewhere:  the operations (`ycsb`, `tpcb`, `tpcc`), clocks and counters (`figures`), the report (`outcome`).
//!
//! A latency is that of the whole operation, from its first try to the answer, pauses between tries included.

use crate::Error;
use crate::engine::{Body, Cause, Engine, Pipeline, Ranges, Session, Stop, Table};
use crate::figures::{DiskBytes, Meter, histogram, record, reset_resident_peak, resident_bytes};
use crate::outcome;
pub use crate::outcome::{Aborts, KindFigures, Outcome};
use crate::together::{self, Gate};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An operation that is given up so often in a row means that nothing moves any more.
const TRIES_MAX: u32 = 10_000;
/// Pause before the third try; doubled for each further one up to 64 times as long. The second comes at once.
const RETRY_PAUSE: Duration = Duration::from_micros(20);
/// A thread that pauses looks this often whether the run has failed.
const PAUSE_STEP: Duration = Duration::from_millis(50);
/// Items that one thread loads or checks between two reports, at most.
const SHARE_STEP_MAX: u64 = 1024;
/// Few items are cut into at least this many ranges for each thread, so none has to wait long for the last.
const SHARES_PER_THREAD: u64 = 8;

/// How long and on how many threads.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Run {
    /// Threads.
    pub threads: usize,
    /// Operations that each has in flight; 0: it waits for each.
    pub in_flight: usize,
    /// How long is measured, at most.
    pub duration: Duration,
    /// How many operations are measured, at most, of all threads together.
    pub operations_max: u64,
    /// How long the same operations run before, so caches fill.
    pub warm_up: Duration,
    /// Of all random choices.
    pub seed: u64,
}

impl Run {
    /// This many operations on so many threads, cold.
    pub fn of(threads: usize, operations: u64) -> Run {
        let duration = Duration::from_secs(24 * 3600);
        Run { threads, in_flight: 0, duration, operations_max: operations, warm_up: Duration::ZERO, seed: 1 }
    }
}

/// What is being done, with how much of how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Records are loaded.
    Load,
    /// Every record is read.
    Fill,
    /// Operations run, not measured.
    WarmUp,
    /// Operations run and are measured.
    Measure,
    /// The engine finishes what it put off.
    Settle,
    /// Records are compared with what they must be.
    Check,
}

/// Receives the stage, how much of it is done, and how much there is.
pub type Progress<'a> = dyn Fn(Stage, u64, u64) + Sync + 'a;

/// A database workload: what is loaded, what is run, and what must be true afterwards. It remembers what it did, so
/// each engine needs an instance of its own; it may run several times.
pub trait Workload: Sync {
    /// The tables that an engine is opened with.
    fn tables(&self) -> &'static [&'static str];

    /// Whether the workload reads ranges of a table, so the table needs an order.
    fn is_scanned(&self, table: Table) -> bool {
        let _ = table;
        false
    }

    /// Whether an engine, as it is opened, can run it like this; to be asked before it is loaded.
    fn check_run(&self, engine: &dyn Engine, run: &Run) -> Result<(), Error> {
        let _ = (engine, run);
        Ok(())
    }

    /// What is loaded, and what an operation adds.
    fn size(&self) -> Size;

    /// Loads the tables and settles the engine.
    fn load(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<(), Error>;

    /// Reads every record that was loaded, once, so the engine's cache is as full as it gets.
    fn fill_cache(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<(), Error>;

    /// Runs operations.
    fn run(&self, engine: &dyn Engine, run: &Run, progress: &Progress<'_>) -> Result<Outcome, Error>;

    /// Compares the tables with what all runs did, as they are read; returns what was found to be as it must be.
    fn compare(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<Vec<String>, Error>;

    /// Settles the engine, opens it again, so it has to read what it wrote, and [compares](Workload::compare).
    fn check(&self, engine: &mut dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<Vec<String>, Error> {
        progress(Stage::Settle, 0, 0);
        engine.settle()?;
        engine.reopen()?;
        self.compare(engine, threads, progress)
    }
}

/// How much a workload stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Records loaded.
    pub records: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// Bytes of values that an operation adds, at most.
    pub operation_bytes: u64,
}

/// The operations of one thread.
pub trait Worker: Send {
    /// How long to wait before the next operation, which is then begun by [`Worker::operate`]. No latency contains it.
    fn pause(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Executes the next one; returns its kind.
    fn operate(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<usize, Error>;

    /// Starts the next one, which has this token until it completes; returns its kind.
    fn start(&mut self, pipeline: &mut dyn Pipeline, token: u64, tally: &mut Tally) -> Result<usize, Error> {
        let _ = (pipeline, token, tally);
        Err(Error::Parameters("this workload has blocking operations only".into()))
    }

    /// One that was started completes; a read with its value, if it exists.
    fn finish(&mut self, token: u64, value: Option<&[u8]>, tally: &mut Tally) -> Result<(), Error> {
        let _ = (token, value, tally);
        Ok(())
    }
}

/// How a thread calls its engine.
enum Door<'a> {
    Blocking(Box<dyn Session + 'a>),
    InFlight(Box<dyn Pipeline + 'a>, usize),
}

impl<'a> Door<'a> {
    fn open(engine: &'a dyn Engine, in_flight: usize) -> Result<Door<'a>, Error> {
        if in_flight == 0 {
            return Ok(Door::Blocking(engine.session()?));
        }
        let none = || Error::Parameters(format!("{} has blocking calls only", engine.describe()));
        Ok(Door::InFlight(engine.pipeline(in_flight).ok_or_else(none)?, in_flight))
    }
}

/// What operations count while they run.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Tries that the engine gave up, in the order of [`Cause::ALL`].
    again: [u64; Cause::ALL.len()],
    /// Operations that the workload rolled back.
    rollbacks: u64,
    /// Records requested.
    pub reads: u64,
    /// Bytes of values in committed changes.
    pub user_bytes: u64,
}

impl Tally {
    /// Runs a transaction until it is committed, or rolled back by its body: then the answer is false.
    pub fn transact(&mut self, session: &mut dyn Session, body: &mut Body<'_>) -> Result<bool, Error> {
        self.try_on(|| session.transact(body))
    }

    /// Tries something until the engine does not give up on it; false if the workload rolled it back.
    pub fn try_on(&mut self, mut once: impl FnMut() -> Result<(), Stop>) -> Result<bool, Error> {
        for tries in 0..TRIES_MAX {
            match once() {
                Ok(()) => return Ok(true),
                Err(Stop::Rollback) => {
                    self.rollbacks += 1;
                    return Ok(false);
                }
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Again(cause)) => self.again[cause as usize] += 1,
            }
            if tries > 0 {
                std::thread::sleep(RETRY_PAUSE * (1 << (tries - 1).min(6)));
            }
        }
        Err(Error::Wrong(format!("an operation was given up {TRIES_MAX} times in a row")))
    }

    fn aborts(&self) -> Aborts {
        let [deadlock, timeout, conflict, lost] = self.again;
        Aborts { deadlock, timeout, conflict, lost, rollback: self.rollbacks }
    }

    fn add(&mut self, other: &Tally) {
        self.again.iter_mut().zip(other.again).for_each(|(sum, count)| *sum += count);
        self.rollbacks += other.rollbacks;
        self.reads += other.reads;
        self.user_bytes += other.user_bytes;
    }
}

/// A name for what is run, and everything that was requested.
pub struct About<'a> {
    /// Of the workload.
    pub workload: String,
    /// Names of the kinds that workers answer.
    pub kinds: &'a [&'a str],
    /// Everything that was requested.
    pub configuration: serde_json::Value,
}

/// Runs the workers that `make` makes, one for each thread, and hands them back with the outcome.
pub fn run<W: Worker>(
    engine: &dyn Engine,
    run: &Run,
    about: &About<'_>,
    progress: &Progress<'_>,
    make: impl Fn(usize) -> W,
) -> Result<(Outcome, Vec<W>), Error> {
    if run.threads == 0 {
        return Err(Error::Parameters("no threads".into()));
    }
    let field = Field::new(run, about.kinds.len());
    let workers: Vec<W> = (0..run.threads).map(make).collect();
    let (meter, before, misses, results) = std::thread::scope(|scope| {
        let field = &field;
        let _held = field.gate.held();
        let work = workers.into_iter().map(|worker| move || field.work(engine, worker));
        let threads = together::start(scope, Some(&field.gate), work)?;
        progress(Stage::WarmUp, 0, 0);
        let warmed_up = field.gate.pass();
        // What the warm-up put off is not charged to what is measured.
        progress(Stage::Settle, 0, 0);
        let settled = warmed_up.and_then(|()| engine.settle());
        field.failed.fetch_or(settled.is_err(), Ordering::Relaxed);
        reset_resident_peak();
        let (before, misses) = (DiskBytes::now(), engine.counts().cache_misses);
        progress(Stage::Measure, 0, 0);
        let meter = Meter::start();
        let begun = field.gate.pass();
        let results = together::join(threads)?;
        settled.and(begun)?;
        Ok::<_, Error>((meter.stop(String::new(), 0, 0, &histogram()), before, misses, results))
    })?;
    let memory_bytes_max = resident_bytes().map(|(_, max)| max);
    let counts = engine.counts();
    let mut all = Share::new(about.kinds.len());
    let mut workers = Vec::new();
    for (worker, share) in results {
        all.add(&share)?;
        workers.push(worker);
    }
    progress(Stage::Settle, 0, 0);
    engine.settle()?;
    let device_bytes = before.zip(DiskBytes::now()).map(|(before, after)| after.written - before.written);
    let mut latencies = histogram();
    all.latencies.iter().for_each(|kind| latencies += kind);
    let operations = latencies.len();
    let misses = misses.zip(counts.cache_misses).map(|(before, after)| after - before);
    let ratio = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    let kind = |(kind, latencies): (&&str, &Histogram<u64>)| KindFigures {
        kind: (*kind).to_owned(),
        operations: latencies.len(),
        latency: latencies.into(),
    };
    let engine = engine.describe();
    let configuration_hash = outcome::hash(&about.workload, &engine, &about.configuration);
    let cpu_us = meter.cpu_us_per_operation.unwrap_or(0.0); // of a meter that saw no operation: of all of them
    let outcome = Outcome {
        workload: about.workload.clone(),
        engine,
        configuration: about.configuration.clone(),
        configuration_hash,
        seconds: meter.seconds,
        operations,
        operations_per_s: operations as f64 / meter.seconds,
        latency: (&latencies).into(),
        kinds: about.kinds.iter().zip(&all.latencies).filter(|(_, l)| !l.is_empty()).map(kind).collect(),
        aborts: all.tally.aborts(),
        reads: all.tally.reads,
        user_bytes: all.tally.user_bytes,
        device_bytes,
        device_bytes_per_user_byte: device_bytes.and_then(|bytes| ratio(bytes, all.tally.user_bytes)),
        cpu_us_per_operation: cpu_us / operations.max(1) as f64,
        memory_bytes_max,
        cache_bytes: counts.cache_bytes,
        hit_ratio: misses.and_then(|misses| ratio(all.tally.reads.saturating_sub(misses), all.tally.reads)),
        tpm_c: None,
        checked: Vec::new(),
    };
    Ok((outcome, workers))
}

/// What one thread measured.
struct Share {
    latencies: Vec<Histogram<u64>>,
    tally: Tally,
}

impl Share {
    fn new(kinds: usize) -> Share {
        Share { latencies: vec![histogram(); kinds], tally: Tally::default() }
    }

    fn add(&mut self, other: &Share) -> Result<(), Error> {
        for (sum, kind) in self.latencies.iter_mut().zip(&other.latencies) {
            sum.add(kind).map_err(|error| Error::Wrong(format!("latencies do not add up: {error}")))?;
        }
        self.tally.add(&other.tally);
        Ok(())
    }
}

/// What the threads of a run share.
struct Field<'a> {
    run: &'a Run,
    kinds: usize,
    /// Twice: after the warm-up, and before the measured part.
    gate: Gate,
    begun: AtomicU64,
    failed: AtomicBool,
}

impl<'a> Field<'a> {
    fn new(run: &'a Run, kinds: usize) -> Field<'a> {
        let gate = Gate::new(run.threads + 1);
        Field { run, kinds, gate, begun: AtomicU64::new(0), failed: AtomicBool::new(false) }
    }

    /// One thread: both gates are passed whatever fails, or the others would wait forever.
    fn work<W: Worker>(&self, engine: &dyn Engine, mut worker: W) -> Result<(W, Share), Error> {
        let door = Door::open(engine, self.run.in_flight);
        let mut share = Share::new(self.kinds);
        let warmed = door.and_then(|mut door| {
            let unlimited = AtomicU64::new(0);
            self.operate(&mut door, &mut worker, self.run.warm_up, &unlimited, u64::MAX, &mut share)?;
            Ok(door)
        });
        self.failed.fetch_or(warmed.is_err(), Ordering::Relaxed);
        self.gate.pass()?;
        share = Share::new(self.kinds);
        self.gate.pass()?;
        let mut door = warmed?;
        let (duration, limit) = (self.run.duration, self.run.operations_max);
        let result = self.operate(&mut door, &mut worker, duration, &self.begun, limit, &mut share);
        self.failed.fetch_or(result.is_err(), Ordering::Relaxed);
        result.map(|()| (worker, share))
    }

    /// Waits as long as a worker wants, until the end of the run or its failure at most; returns when that is over.
    fn wait<W: Worker>(&self, worker: &mut W, now: Instant, end: Option<Instant>) -> Instant {
        let pause = worker.pause();
        if pause.is_zero() {
            return now;
        }
        let until = now.checked_add(pause).into_iter().chain(end).min();
        loop {
            let now = Instant::now();
            let left = until.map_or(PAUSE_STEP, |until| until.saturating_duration_since(now));
            if left.is_zero() || self.failed.load(Ordering::Relaxed) || self.gate.is_given_up() {
                return now;
            }
            std::thread::sleep(left.min(PAUSE_STEP));
        }
    }

    fn operate<W: Worker>(
        &self,
        door: &mut Door<'_>,
        worker: &mut W,
        duration: Duration,
        begun: &AtomicU64,
        operations_max: u64,
        share: &mut Share,
    ) -> Result<(), Error> {
        let start = Instant::now();
        let goes_on = |now: Instant| {
            now - start < duration
                && !self.failed.load(Ordering::Relaxed)
                && !self.gate.is_given_up()
                && (operations_max == u64::MAX || begun.fetch_add(1, Ordering::Relaxed) < operations_max)
        };
        match door {
            Door::Blocking(session) => {
                let mut now = self.wait(worker, start, start.checked_add(duration));
                while goes_on(now) {
                    let kind = worker.operate(&mut **session, &mut share.tally)?;
                    let answered = Instant::now();
                    record(&mut share.latencies[kind], answered - now);
                    now = self.wait(worker, answered, start.checked_add(duration));
                }
                Ok(())
            }
            Door::InFlight(pipeline, depth) => keep_in_flight(&mut **pipeline, *depth, worker, goes_on, share),
        }
    }
}

/// Starts operations until it does not continue, `depth` in flight, and waits for all.
fn keep_in_flight<W: Worker>(
    pipeline: &mut dyn Pipeline,
    depth: usize,
    worker: &mut W,
    goes_on: impl Fn(Instant) -> bool,
    share: &mut Share,
) -> Result<(), Error> {
    let mut begun = vec![(Instant::now(), 0); depth]; // when, and its kind; by token
    let mut free: Vec<u64> = (0..depth as u64).rev().collect();
    let mut more = true;
    loop {
        while more && let Some(token) = free.last().copied() {
            let now = Instant::now();
            more = goes_on(now);
            if more {
                free.pop();
                begun[token as usize] = (now, worker.start(pipeline, token, &mut share.tally)?);
            }
        }
        if free.len() == depth {
            return Ok(());
        }
        pipeline.poll(&mut |token, value| {
            let (start, kind) = begun[token as usize];
            record(&mut share.latencies[kind], start.elapsed());
            free.push(token);
            worker.finish(token, value, &mut share.tally)
        })?;
    }
}

/// Lets threads with sessions of their own work through `0..count`, a small range at a time.
pub fn share_out<T: Send>(
    engine: &dyn Engine,
    threads: usize,
    count: u64,
    stage: Stage,
    progress: &Progress<'_>,
    work: impl Fn(&mut dyn Session, Range<u64>) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let step_max = (count / (threads.max(1) as u64 * SHARES_PER_THREAD)).clamp(1, SHARE_STEP_MAX);
    let (next, done, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let one = || -> Result<Vec<T>, Error> {
        let mut session = engine.session()?;
        let mut results = Vec::new();
        loop {
            let first = next.fetch_add(step_max, Ordering::Relaxed);
            if first >= count || failed.load(Ordering::Relaxed) {
                return Ok(results);
            }
            let range = first..(first + step_max).min(count);
            let step = range.end - range.start;
            results.push(work(&mut *session, range).inspect_err(|_| failed.store(true, Ordering::Relaxed))?);
            progress(stage, done.fetch_add(step, Ordering::Relaxed) + step, count);
        }
    };
    std::thread::scope(|scope| {
        let threads = together::start(scope, None, (0..threads.max(1)).map(|_| one));
        let threads = threads.inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
        Ok(together::join(threads)?.into_iter().flatten().collect())
    })
}

/// Refuses a workload that scans where it cannot.
pub(crate) fn check_scans(workload: &str, engine: &dyn Engine, run: &Run) -> Result<(), Error> {
    if run.in_flight > 0 {
        return Err(Error::Parameters(format!(
            "{workload} scans; scans are blocking calls, so it cannot have operations in flight"
        )));
    }
    if engine.ranges() == Ranges::None {
        let engine = engine.describe();
        return Err(Error::Parameters(format!(
            "{workload} scans; as it is opened, this engine has no ranges: {engine}"
        )));
    }
    Ok(())
}

/// Reads records that must exist.
pub(crate) fn read_all(
    session: &mut dyn Session,
    mut records: impl Iterator<Item = (Table, u64)>,
) -> Result<(), Error> {
    records.try_for_each(|(table, key)| match session.get(table, key, &mut |_| ()).map_err(Stop::into_error)? {
        true => Ok(()),
        false => Err(Error::Wrong(format!("table {}: record {key} is missing", table.0))),
    })
}

#[cfg(test)]
mod tests;
