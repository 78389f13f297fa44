//! What a run came to: rates, latencies, processor time, bytes to the disk.
//!
//! Lives here:       the figures and the meter that takes them.
//! May be called by: every workload.

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Latencies of one kind of operation in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Slowest.
    pub max_ns: u64,
}

impl From<&Histogram<u64>> for Latency {
    fn from(histogram: &Histogram<u64>) -> Latency {
        Latency {
            p50_ns: histogram.value_at_quantile(0.5),
            p90_ns: histogram.value_at_quantile(0.9),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        }
    }
}

/// An empty histogram from 1 ns to 100 s with three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("the bounds are valid")
}

/// Adds a duration; longer than the histogram's range counts as its end.
pub fn record(histogram: &mut Histogram<u64>, taken: Duration) {
    histogram.saturating_record(u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX).max(1));
}

/// What a run came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// What was run, with its parameters.
    pub what: String,
    /// Calls that returned.
    pub operations: u64,
    /// Records in them.
    pub records: u64,
    /// Payload bytes in them.
    pub bytes: u64,
    /// Wall-clock time.
    pub seconds: f64,
    /// Calls per second.
    pub operations_per_s: f64,
    /// Records per second.
    pub records_per_s: f64,
    /// Payload in 10^6 bytes per second.
    pub megabytes_per_s: f64,
    /// From call to return.
    pub latency: Latency,
    /// User and system time of the whole process, in microseconds per call; absent where the calls are a part of several kinds.
    pub cpu_us_per_operation: Option<f64>,
    /// Bytes that the process sent to the block layer, from `/proc/self/io`; absent where that is missing, and for a part.
    pub disk_write_bytes: Option<u64>,
    /// Bytes that the process fetched from the block layer.
    pub disk_read_bytes: Option<u64>,
}

impl Figures {
    /// Bytes to the disk per payload byte.
    pub fn disk_bytes_per_byte(&self) -> Option<f64> {
        let written = self.disk_write_bytes?;
        (self.bytes > 0).then(|| written as f64 / self.bytes as f64)
    }
}

/// Notes the clocks and counters at the start of a run.
pub struct Meter {
    started: Instant,
    cpu_ns: u64,
    disk: Option<DiskBytes>,
}

impl Meter {
    /// Starts the clocks.
    pub fn start() -> Meter {
        Meter { disk: DiskBytes::now(), cpu_ns: cpu_ns(), started: Instant::now() }
    }

    /// Stops the clocks and makes up the figures.
    pub fn stop(self, what: String, records: u64, bytes: u64, histogram: &Histogram<u64>) -> Figures {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-9);
        let cpu_ns = cpu_ns().saturating_sub(self.cpu_ns);
        let disk = self.disk.zip(DiskBytes::now());
        let operations = histogram.len();
        Figures {
            what,
            operations,
            records,
            bytes,
            seconds,
            operations_per_s: operations as f64 / seconds,
            records_per_s: records as f64 / seconds,
            megabytes_per_s: bytes as f64 / seconds / 1e6,
            latency: histogram.into(),
            cpu_us_per_operation: Some(cpu_ns as f64 / 1e3 / (operations.max(1) as f64)),
            disk_write_bytes: disk.map(|(before, after)| after.written.saturating_sub(before.written)),
            disk_read_bytes: disk.map(|(before, after)| after.read.saturating_sub(before.read)),
        }
    }
}

/// Bytes of this process that reached the block layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskBytes {
    /// Fetched.
    pub read: u64,
    /// Sent.
    pub written: u64,
}

impl DiskBytes {
    /// The counters of this moment; none where the system does not keep them.
    pub fn now() -> Option<DiskBytes> {
        Self::parse(&std::fs::read_to_string("/proc/self/io").ok()?)
    }

    fn parse(text: &str) -> Option<DiskBytes> {
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.trim().parse::<u64>().ok())
        };
        Some(DiskBytes { read: field("read_bytes")?, written: field("write_bytes")? })
    }
}

/// User and system time of this process.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Resident bytes of this process now and at their highest, from `/proc/self/status`.
pub fn resident_bytes() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    };
    Some((field("VmRSS:")?, field("VmHWM:")?))
}

/// Makes the system forget the highest memory so far; where it refuses, the peak is that of the whole process.
pub(crate) fn reset_resident_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   the bytes come from the right lines, whatever stands around them.
    /// Method: parse a file as the kernel writes it, then one without the lines.
    #[test]
    fn disk_bytes_are_read_from_their_lines() {
        let text =
            "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 50\nwrite_bytes: 61\ncancelled_write_bytes: 7\n";
        assert_eq!(DiskBytes::parse(text), Some(DiskBytes { read: 50, written: 61 }));
        assert_eq!(DiskBytes::parse("rchar: 1\n"), None);
    }

    /// Goal:   rates are counts over seconds, and processor time counts work done between start and stop.
    /// Method: spin for 20 ms of processor time, with 10 operations of 4 records of 100 B.
    #[test]
    fn figures_add_up() {
        let meter = Meter::start();
        let before = cpu_ns();
        while cpu_ns() - before < 20_000_000 {}
        let mut latencies = histogram();
        for us in 1..=10 {
            record(&mut latencies, Duration::from_micros(us));
        }
        let figures = meter.stop("spin".into(), 40, 4000, &latencies);
        assert_eq!((figures.operations, figures.records, figures.bytes), (10, 40, 4000));
        assert!((figures.records_per_s * figures.seconds - 40.0).abs() < 1e-6);
        assert!(figures.cpu_us_per_operation >= Some(2000.0), "{:?}", figures.cpu_us_per_operation);
        assert!((5000..5010).contains(&figures.latency.p50_ns), "{:?}", figures.latency);
        assert!(figures.latency.max_ns >= 10_000);
    }
}
