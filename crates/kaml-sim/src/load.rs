//! What hosts do in an experiment: one command again and again, the next when the last completes.
//!
//! Lives here:       loads, which record comes next, what a run came to.
//! Lives elsewhere:  executing them (`rig`), which loads make an experiment (`experiment`).
//! Implements:       paper:KAML V.B (Fetch, Update, Insert).

use crate::rng::{Rng, mix};
use hdrhistogram::Histogram;
use std::ops::Range;

/// The kind of command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Get of a record.
    Get,
    /// Put of one or several records.
    Put,
    /// Read of logical blocks.
    Read,
    /// Write of logical blocks.
    Write,
}

/// Which record comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Each once, in turn: inserts.
    Turn,
    /// Any, evenly.
    Even,
    /// This percentage of the commands uses the first hundredth of the records, the others use any.
    Hot(u64),
}

/// What some hosts do.
#[derive(Clone, Debug)]
pub struct Load {
    /// The namespace.
    pub space: u32,
    /// The command.
    pub ask: Ask,
    /// Bytes of a record's value; blocks are those that a record of an array would take.
    pub bytes: u32,
    /// Records of a Put.
    pub batch: u64,
    /// The records, by number.
    pub records: Range<u64>,
    /// Which of them.
    pub order: Order,
    /// Hosts, each with one command in progress.
    pub hosts: usize,
    /// Commands before measuring begins.
    pub warm_up: u64,
    /// Commands that are measured; none: continue until the other loads are done.
    pub commands: Option<u64>,
}

impl Load {
    /// Commands in all.
    pub(crate) fn total(&self) -> Option<u64> {
        self.commands.map(|commands| commands + self.warm_up)
    }

    /// The number of the record that the `issued`-th command begins with.
    pub(crate) fn pick(&self, issued: u64, rng: &mut Rng) -> u64 {
        let count = self.records.end - self.records.start;
        let hot = (count / 100).max(1);
        let offset = match self.order {
            Order::Turn => issued * self.batch % count,
            Order::Hot(percent) if rng.below(100) < percent => rng.below(hot),
            Order::Even | Order::Hot(_) => rng.below(count),
        };
        self.records.start + offset
    }

    /// The number itself; after the last record the first ones come again.
    pub(crate) fn wrap(&self, number: u64) -> u64 {
        self.records.start + (number - self.records.start) % (self.records.end - self.records.start)
    }

    /// The key of a record: numbers in no order, each its own.
    pub(crate) fn key(number: u64) -> u64 {
        mix(number)
    }
}

/// What a load came to, in virtual time.
#[derive(Clone, Debug)]
pub struct Sheet {
    /// Commands completed while measuring.
    pub commands: u64,
    /// Values of records in them.
    pub bytes: u64,
    /// First and last moment of measuring.
    pub time_ns: Range<u64>,
    /// From the host's call to its answer, in nanoseconds.
    pub latency: Histogram<u64>,
    /// Sum of all latencies. The histogram has three digits, which is too coarse for ratios of means.
    pub latency_sum_ns: u64,
}

/// Longest latency that is distinguished from longer ones.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

impl Sheet {
    pub(crate) fn new() -> Sheet {
        let latency = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are valid");
        Sheet { commands: 0, bytes: 0, time_ns: 0..0, latency, latency_sum_ns: 0 }
    }

    pub(crate) fn note(&mut self, began: u64, answered: u64, bytes: u64) {
        if self.commands == 0 {
            self.time_ns = began..answered;
        }
        self.commands += 1;
        self.bytes += bytes;
        self.time_ns.end = self.time_ns.end.max(answered);
        self.latency.saturating_record(answered - began);
        self.latency_sum_ns += answered - began;
    }

    /// Value bytes in 10^6 a second.
    pub fn megabytes_per_s(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.ns()
    }

    /// Commands a second.
    pub fn commands_per_s(&self) -> f64 {
        self.commands as f64 * 1e9 / self.ns()
    }

    fn ns(&self) -> f64 {
        (self.time_ns.end - self.time_ns.start).max(1) as f64
    }

    /// Mean latency in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.latency_sum_ns as f64 / self.commands.max(1) as f64 / 1e3
    }

    /// A quantile of the latencies in microseconds.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e3
    }
}
