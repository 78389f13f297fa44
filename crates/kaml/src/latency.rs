//! Latency histograms that many threads record into.
//!
//! Lives here:       sharded recording, merging, the buckets that monitors get.

use crate::stats::{LatencyHistogram, LatencyStats};
use crate::sync::Instant;
use hdrhistogram::Histogram;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 16;

/// Latencies in nanoseconds, two significant digits, up to 100 s.
pub(crate) struct Latency {
    shards: [Mutex<Histogram<u64>>; SHARDS],
}

impl Latency {
    pub(crate) fn new() -> Latency {
        let empty = || Histogram::new_with_bounds(1, 100_000_000_000, 2).expect("valid bounds");
        Latency { shards: std::array::from_fn(|_| Mutex::new(empty())) }
    }

    pub(crate) fn record_since(&self, start: Instant) {
        self.record(start.elapsed().as_nanos() as u64);
    }

    pub(crate) fn record(&self, ns: u64) {
        self.record_all([ns]);
    }

    /// Records what was collected meanwhile, with one lock.
    pub(crate) fn record_all(&self, all_ns: impl IntoIterator<Item = u64>) {
        let mut shard = self.shards[shard()].lock().expect("no panics under this lock");
        all_ns.into_iter().for_each(|ns| shard.saturating_record(ns.max(1)));
    }

    /// Records one in place of `count` of its kind.
    pub(crate) fn record_many(&self, ns: u64, count: u64) {
        let mut shard = self.shards[shard()].lock().expect("no panics under this lock");
        shard.saturating_record_n(ns.max(1), count);
    }

    pub(crate) fn reset(&self) {
        self.shards.iter().for_each(|s| s.lock().expect("no panics under this lock").reset());
    }

    /// Latencies recorded.
    pub(crate) fn count(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().expect("no panics under this lock").len()).sum()
    }

    /// Of all threads. No shard is locked for longer than it takes to add its counts.
    fn merged(&self) -> Histogram<u64> {
        let mut all = self.shards[0].lock().expect("no panics under this lock").clone();
        for shard in &self.shards[1..] {
            all.add(&*shard.lock().expect("no panics under this lock")).expect("same bounds");
        }
        all
    }

    /// In buckets. A latency is known to 1 %, so one that is so close to a bound can be in the next bucket.
    pub(crate) fn histogram(&self) -> LatencyHistogram {
        let mut histogram = LatencyHistogram::empty();
        let all = self.merged();
        for step in all.iter_recorded() {
            let ns = all.median_equivalent(step.value_iterated_to());
            histogram.add(ns, step.count_since_last_iteration());
        }
        histogram
    }

    pub(crate) fn stats(&self) -> LatencyStats {
        let all = self.merged();
        LatencyStats {
            count: all.len(),
            mean_ns: all.mean(),
            p50_ns: all.value_at_quantile(0.5),
            p90_ns: all.value_at_quantile(0.9),
            p99_ns: all.value_at_quantile(0.99),
            p999_ns: all.value_at_quantile(0.999),
            max_ns: all.max(),
        }
    }
}

/// Each thread keeps to a shard of its own as far as they go.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    MINE.with(|mine| *mine)
}
