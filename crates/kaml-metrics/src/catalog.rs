//! The metrics: name, kind, unit, meaning, and where each is in a [`State`](crate::State).
//!
//! Lives here:       one table. docs/metrics.md lists the same, and a test compares both.
//! Lives elsewhere:  writing them (`exposition`).
//!
//! Names follow the Prometheus conventions: base units, `_total` for counters, `_info` for what is only labels.

/// What kind of metric it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Grows until the device is opened again.
    Counter,
    /// Grows and shrinks.
    Gauge,
    /// How often each value occurred, in buckets.
    Histogram,
}

impl MetricKind {
    /// As the text format names it.
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// Where values are, as JSON pointers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// One number; true is 1.
    One(&'static str),
    /// One number of nanoseconds.
    Nanoseconds(&'static str),
    /// One for each element of an array: the array, the number and the labels in an element.
    Each(&'static str, &'static str, &'static [(&'static str, &'static str)]),
    /// One for each element of an array that each element of another array has: both arrays, the number, the labels in an outer
    /// element and in an inner one.
    EachOfEach([&'static str; 2], &'static str, [(&'static str, &'static str); 2]),
    /// 1 with labels.
    Labels(&'static str, &'static [(&'static str, &'static str)]),
    /// A histogram.
    Buckets(&'static str),
}

/// A metric.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// What kind it is.
    pub kind: MetricKind,
    /// What one of it is: `bytes`, `seconds`, `blocks`.
    pub unit: &'static str,
    /// What it means, in one sentence.
    pub help: &'static str,
    pub(crate) source: Source,
}

use MetricKind::{Counter, Gauge, Histogram};
use Source::{Buckets, Each, EachOfEach, Labels, Nanoseconds, One};

const fn metric(
    name: &'static str,
    kind: MetricKind,
    unit: &'static str,
    help: &'static str,
    source: Source,
) -> Metric {
    Metric { name, kind, unit, help, source }
}

const LOG: &[(&str, &str)] = &[("log", "/log")];
const NAMESPACE: &[(&str, &str)] = &[("namespace", "/name")];
const HOST: &[(&str, &str)] = &[("host", "/name"), ("controller", "/controller"), ("peer", "/peer")];

/// All metrics, in the order in which they are written.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    // What it is.
    metric("kaml_build_info", Gauge, "1", "The version of KAML that runs.", Labels("", &[("version", "/version")])),
    metric("kaml_device_info", Gauge, "1", "The device that is open.", Labels("/device", &[
        ("path", "/path"), ("uuid", "/uuid"), ("durability", "/durability"), ("medium", "/description"),
    ])),
    metric("kaml_flash_bytes", Gauge, "bytes", "Bytes of all pages.", One("/device/flash_bytes")),
    metric("kaml_channels", Gauge, "channels", "Channels of the device.", One("/device/channel_count")),
    metric("kaml_dies", Gauge, "dies", "Dies of all channels, which is the number of logs.", One("/device/die_count")),
    metric("kaml_erase_blocks", Gauge, "blocks", "Erase blocks of the device.", One("/device/block_count")),
    metric("kaml_block_bytes", Gauge, "bytes", "Bytes of an erase block.", One("/device/block_bytes")),
    metric("kaml_page_bytes", Gauge, "bytes", "Bytes of a page.", One("/device/page_bytes")),
    metric("kaml_chunk_bytes", Gauge, "bytes", "Bytes of a chunk, the unit of space of a record.", One("/device/chunk_bytes")),
    metric("kaml_sector_bytes", Gauge, "bytes", "The smallest durable write.", One("/device/sector_bytes")),
    metric("kaml_ring_bytes", Gauge, "bytes", "Bytes of the commit ring.", One("/device/ring_bytes")),
    metric("kaml_value_max_bytes", Gauge, "bytes", "The largest value.", One("/device/value_bytes_max")),
    metric("kaml_batch_max_bytes", Gauge, "bytes", "The largest batch, in bytes of the ring.", One("/device/batch_bytes_max")),
    metric("kaml_transfer_max_bytes", Gauge, "bytes", "The largest transfer of a device that is used over a network.", One("/device/transfer_bytes_max")),
    metric("kaml_was_closed_cleanly", Gauge, "0 or 1", "Whether the device had been closed cleanly before it was opened.", One("/device/was_clean")),
    metric("kaml_replayed_journal_entries", Gauge, "entries", "Journal entries replayed when the device was opened.", One("/device/replayed_journal_entries")),
    metric("kaml_replayed_ring_records", Gauge, "records", "Ring records replayed when the device was opened.", One("/device/replayed_ring_records")),
    metric("kaml_open_seconds", Gauge, "seconds", "How long opening the device took.", Nanoseconds("/stats/open_ns")),
    metric("kaml_stopped", Gauge, "0 or 1", "Whether the device takes no more changes because something failed.", One("/is_stopped")),
    // What hosts did.
    metric("kaml_puts_total", Counter, "values", "Values stored.", One("/stats/put_count")),
    metric("kaml_expired_total", Counter, "records", "Records that expired and were removed.", One("/stats/expired_count")),
    metric("kaml_deletes_total", Counter, "deletes", "Deletes stored.", One("/stats/delete_count")),
    metric("kaml_gets_total", Counter, "gets", "Gets that have completed.", One("/stats/get_count")),
    metric("kaml_put_duration_seconds", Histogram, "seconds", "Latency of Puts and deletes until they are durable, one for each batch.", Buckets("/latency/put")),
    metric("kaml_get_duration_seconds", Histogram, "seconds", "Latency of Gets.", Buckets("/latency/get")),
    metric("kaml_commit_duration_seconds", Histogram, "seconds", "Latency of ring writes, each of which makes one frame durable.", Buckets("/latency/commit")),
    metric("kaml_commits_total", Counter, "frames", "Frames of the commit ring that have been committed.", One("/activity/commit_count")),
    // What was written and read.
    metric("kaml_host_written_bytes_total", Counter, "bytes", "Bytes of values that hosts stored.", One("/stats/host_bytes")),
    metric("kaml_record_written_bytes_total", Counter, "bytes", "Bytes of hosts' records in whole chunks, headers included.", One("/stats/record_bytes")),
    metric("kaml_relocated_bytes_total", Counter, "bytes", "Bytes of records that collection moved, in whole chunks.", One("/stats/relocated_bytes")),
    metric("kaml_collection_read_bytes_total", Counter, "bytes", "Bytes that collection read, data and OOB entries.", One("/stats/collection_read_bytes")),
    metric("kaml_ring_written_bytes_total", Counter, "bytes", "Bytes written to the commit ring.", One("/stats/ring_bytes")),
    metric("kaml_page_written_bytes_total", Counter, "bytes", "Bytes programmed into pages, metadata included.", One("/stats/page_bytes")),
    metric("kaml_oob_written_bytes_total", Counter, "bytes", "Bytes programmed into OOB areas.", One("/stats/oob_bytes")),
    metric("kaml_metadata_written_bytes_total", Counter, "bytes", "Bytes of the journal, of checkpoint images and of roots.", One("/stats/metadata_bytes")),
    metric("kaml_padded_bytes_total", Counter, "bytes", "Bytes left empty at the end of program units and blocks.", One("/stats/padded_bytes")),
    metric("kaml_write_amplification", Gauge, "ratio", "Bytes programmed into pages divided by bytes of hosts' records.", One("/stats/write_amplification")),
    metric("kaml_flash_reads_total", Counter, "reads", "Reads of the medium on behalf of Gets.", One("/stats/read_count")),
    metric("kaml_flash_read_bytes_total", Counter, "bytes", "Bytes requested by these reads.", One("/stats/read_bytes")),
    metric("kaml_program_failures_total", Counter, "programs", "Programs of pages that failed.", One("/stats/program_failures")),
    metric("kaml_damaged_records_total", Counter, "records", "Damaged records that collection came across.", One("/stats/damaged_records")),
    // Space.
    metric("kaml_live_bytes", Gauge, "bytes", "Live records in whole chunks.", One("/stats/live_bytes")),
    metric("kaml_capacity_bytes", Gauge, "bytes", "How much can be live.", One("/stats/capacity_bytes")),
    metric("kaml_usable_bytes", Gauge, "bytes", "How much records with their headers may take now.", One("/device/usable_bytes")),
    metric("kaml_file_bytes", Gauge, "bytes", "What the device takes of its file or disk.", One("/device/file_bytes")),
    metric("kaml_grow_limit_bytes", Gauge, "bytes", "Size up to which the device grows by itself.", One("/device/grows_up_to_bytes")),
    metric("kaml_blocks", Gauge, "blocks", "Erase blocks in each state.", Each("/blocks/states", "/count", &[("state", "/state")])),
    metric("kaml_free_blocks", Gauge, "blocks", "Blocks that are free or about to be.", One("/stats/free_blocks")),
    metric("kaml_bad_blocks", Gauge, "blocks", "Blocks that are never used again.", One("/stats/bad_blocks")),
    metric("kaml_erases_total", Counter, "erases", "Blocks erased.", One("/stats/erase_count")),
    metric("kaml_erase_count_min", Gauge, "erases", "Erase count of the least worn block.", One("/stats/erase_min")),
    metric("kaml_erase_count_max", Gauge, "erases", "Erase count of the most worn block.", One("/stats/erase_max")),
    metric("kaml_erase_count_mean", Gauge, "erases", "Mean erase count of all blocks that are not bad.", One("/stats/erase_mean")),
    metric("kaml_index_memory_bytes", Gauge, "bytes", "Memory of all loaded indexes.", One("/stats/index_bytes")),
    metric("kaml_buffer_memory_max_bytes", Gauge, "bytes", "Memory of frames and write buffers, at most.", One("/stats/buffer_bytes_max")),
    metric("kaml_snapshots_open", Gauge, "snapshots", "Moments of which device snapshots are open.", One("/snapshots/open_count")),
    metric("kaml_snapshots_expired_total", Counter, "snapshots", "Device snapshots that expired.", One("/snapshots/expired_count")),
    metric("kaml_snapshot_kept_bytes", Gauge, "bytes", "Superseded records that are kept for snapshots.", One("/snapshots/kept_bytes")),
    metric("kaml_snapshot_kept_entries", Gauge, "entries", "Superseded states of keys that are kept for snapshots.", One("/snapshots/entry_count")),
    metric("kaml_snapshot_memory_bytes", Gauge, "bytes", "Memory of what is kept for snapshots.", One("/snapshots/memory_bytes")),
    // What the firmware is doing.
    metric("kaml_ring_used_bytes", Gauge, "bytes", "Bytes of the commit ring that no root has released yet.", One("/activity/ring_used_bytes")),
    metric("kaml_journal_pages", Gauge, "pages", "Pages of the journal since the last checkpoint, which opening replays.", One("/activity/journal_pages")),
    metric("kaml_checkpointing", Gauge, "0 or 1", "Whether checkpoint images are being written.", One("/activity/is_checkpointing")),
    metric("kaml_roots_total", Counter, "roots", "Roots written since the device was created.", One("/activity/root_count")),
    metric("kaml_operations_in_flight", Gauge, "operations", "Operations of the housekeeping on their way to the medium.", One("/activity/operation_count")),
    metric("kaml_programming_bytes", Gauge, "bytes", "Bytes in write buffers whose programs are in progress.", One("/activity/programming_bytes")),
    metric("kaml_merging", Gauge, "0 or 1", "Whether versions are being merged because space is low.", One("/activity/is_merging")),
    metric("kaml_collection_running", Gauge, "0 or 1", "Whether collection is emptying a block.", One("/activity/collection/is_running")),
    metric("kaml_collection_pacing", Gauge, "0 or 1", "Whether Puts may write only as much as collection finds garbage.", One("/activity/collection/is_pacing")),
    metric("kaml_collection_victims_total", Counter, "blocks", "Blocks that collection chose.", One("/activity/collection/victim_count")),
    metric("kaml_collection_draining_blocks", Gauge, "blocks", "Blocks whose live records are being moved.", One("/activity/collection/draining_blocks")),
    metric("kaml_collection_moving_records", Gauge, "records", "Records on their way out of these blocks.", One("/activity/collection/moving_records")),
    metric("kaml_collection_reclaimed_blocks", Gauge, "blocks", "Empty blocks that become free with the next root.", One("/activity/collection/reclaimed_blocks")),
    metric("kaml_collection_threshold_blocks", Gauge, "blocks", "Collection begins when fewer blocks than this are free.", One("/activity/collection/collect_below_blocks")),
    metric("kaml_log_free_blocks", Gauge, "blocks", "Free blocks of a log.", Each("/activity/logs", "/free_blocks", LOG)),
    metric("kaml_log_erased_blocks", Gauge, "blocks", "Free blocks of a log that are erased.", Each("/activity/logs", "/erased_blocks", LOG)),
    metric("kaml_log_open_blocks", Gauge, "blocks", "Blocks that a log appends to.", Each("/activity/logs", "/open_blocks", LOG)),
    metric("kaml_log_open_block_used_bytes", Gauge, "bytes", "Bytes in use of a block that a log appends to, by the class of its records.",
        EachOfEach(["/activity/logs", "/open"], "/used_bytes", [("log", "/log"), ("class", "/class")])),
    // Namespaces and hosts.
    metric("kaml_namespaces", Gauge, "namespaces", "Namespaces of the device; the first 1000 have metrics of their own.", One("/namespace_count")),
    metric("kaml_namespace_info", Gauge, "1", "A namespace, its number and what it holds.", Each("/namespaces", "", &[
        ("namespace", "/name"), ("id", "/id"), ("kind", "/kind"), ("keys", "/keys"), ("compression", "/compression"),
    ])),
    metric("kaml_namespace_records", Gauge, "records", "Records, units of blocks that hold data, or versions of a namespace.", Each("/namespaces", "/record_count", NAMESPACE)),
    metric("kaml_namespace_index_bytes", Gauge, "bytes", "Memory of the index of a namespace.", Each("/namespaces", "/index_bytes", NAMESPACE)),
    metric("kaml_namespace_index_loaded", Gauge, "0 or 1", "Whether the index of a namespace is in memory.", Each("/namespaces", "/is_loaded", NAMESPACE)),
    metric("kaml_namespace_given_bytes_total", Counter, "bytes", "Bytes of values that were put into a namespace while it compresses, as they were given.", Each("/namespaces", "/given_bytes", NAMESPACE)),
    metric("kaml_namespace_stored_bytes_total", Counter, "bytes", "The same values as they were stored.", Each("/namespaces", "/stored_bytes", NAMESPACE)),
    metric("kaml_host_info", Gauge, "1", "A host that is connected.", Each("/hosts", "", HOST)),
    metric("kaml_host_queues", Gauge, "queues", "I/O queues of a host's controller.", Each("/hosts", "/queue_count", HOST)),
    metric("kaml_host_commands_total", Counter, "commands", "Commands that a host has sent to its controller.", Each("/hosts", "/command_count", HOST)),
    metric("kaml_host_connected_seconds", Gauge, "seconds", "How long a host has been connected.", Each("/hosts", "/connected_seconds", HOST)),
];
