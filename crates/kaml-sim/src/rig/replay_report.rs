//! What a replay of a trace reports.

use serde::Serialize;

/// Latencies of one kind of record, in virtual time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latencies {
    /// get-hit, get-miss, put, delete, read, or write.
    pub kind: &'static str,
    /// Records.
    pub count: u64,
    /// Bytes of values or blocks.
    pub bytes: u64,
    /// Mean in microseconds.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// 99 % are not longer.
    pub p99_us: f64,
    /// 99.9 % are not longer.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// What a replay came to. The same trace, board and seed give the same report on every machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// Records of the trace that completed, and objects stored after a miss.
    pub records: u64,
    /// Objects stored after a miss.
    pub fills: u64,
    /// Objects that were cut to the longest length.
    pub cut_short: u64,
    /// Virtual time.
    pub virtual_seconds: f64,
    /// Records per second of virtual time.
    pub records_per_s: f64,
    /// Values and blocks in both directions, in 10^6 bytes per second of virtual time.
    pub megabytes_per_s: f64,
    /// By kind of record.
    pub latencies: Vec<Latencies>,
    /// Share of gets that found their object.
    pub hit_ratio: Option<f64>,
    /// Reads of flash for each get that found its object.
    pub flash_reads_per_hit: Option<f64>,
    /// Bytes of programmed pages divided by bytes of records that hosts wrote.
    pub write_amplification: Option<f64>,
    /// Bytes that collection moved.
    pub relocated_bytes: u64,
    /// Erase blocks erased.
    pub erases: u64,
    /// Bytes of live records at the end.
    pub live_bytes: u64,
    /// Power cuts survived, each compared with the model.
    pub cuts: u64,
    /// Records and units compared after them.
    pub compared: u64,
    /// Fingerprint of all that the flash did and when.
    pub fingerprint: String,
}
