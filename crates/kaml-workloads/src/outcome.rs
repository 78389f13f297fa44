//! What a run of a database workload came to, for people and programs.
//!
//! Lives here:       the figures and the hash that shows which runs can be compared.
//! Lives elsewhere:  taking them (`drive`).

use crate::figures::Latency;
use serde::Serialize;

/// Operations of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct KindFigures {
    /// What they are called.
    pub kind: String,
    /// Answered ones.
    pub operations: u64,
    /// From call to return.
    pub latency: Latency,
}

/// Tries that came to nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Aborts {
    /// Victims of deadlocks.
    pub deadlock: u64,
    /// Locks not given in time.
    pub timeout: u64,
    /// Refused because of what others had changed.
    pub conflict: u64,
    /// What was read was never made durable.
    pub lost: u64,
    /// Rolled back by the workload itself.
    pub rollback: u64,
}

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The workload.
    pub workload: String,
    /// The engine.
    pub engine: String,
    /// Everything that was requested.
    pub configuration: serde_json::Value,
    /// CRC32C of workload, engine and configuration: equal for runs that can be compared with each other.
    pub configuration_hash: String,
    /// Measured time.
    pub seconds: f64,
    /// Operations completed, rolled back ones included.
    pub operations: u64,
    /// Per second.
    pub operations_per_s: f64,
    /// Of all kinds together.
    pub latency: Latency,
    /// Kind by kind.
    pub kinds: Vec<KindFigures>,
    /// Tries that came to nothing, by cause.
    pub aborts: Aborts,
    /// Records read, those that transactions read which were run again left out.
    pub reads: u64,
    /// Bytes of values in committed changes.
    pub user_bytes: u64,
    /// Bytes written to the disk for them, until the engine was settled; none where the system does not report them.
    pub device_bytes: Option<u64>,
    /// One divided by the other.
    pub device_bytes_per_user_byte: Option<f64>,
    /// User and system time of the process in microseconds for an operation.
    pub cpu_us_per_operation: f64,
    /// Resident memory of the process at its highest while operations were measured.
    pub memory_bytes_max: Option<u64>,
    /// Memory of the engine's cache at the end.
    pub cache_bytes: Option<u64>,
    /// Share of the records requested that the engine had in its cache.
    pub hit_ratio: Option<f64>,
    /// TPC-C's NewOrders that were committed, per minute.
    pub tpm_c: Option<f64>,
    /// What was found to be as it must be ([`Workload::check`](crate::drive::Workload::check)).
    pub checked: Vec<String>,
}

/// Equal for runs of one workload on one engine with one configuration.
pub(crate) fn hash(workload: &str, engine: &str, configuration: &serde_json::Value) -> String {
    format!("{:08x}", kaml_crc::crc32c(format!("{workload}\n{engine}\n{configuration}").as_bytes()))
}
