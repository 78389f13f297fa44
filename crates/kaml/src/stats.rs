//! Statistics for a person or a monitor.

use kaml_device::CoreStats;
use serde::Serialize;

/// Latencies of one kind of command, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq)]
pub struct LatencyStats {
    /// Commands.
    pub count: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

/// What a device has done since it was opened, and how it stands. Sizes in bytes.
#[derive(Clone, Debug, Default, Serialize, PartialEq)]
pub struct Stats {
    /// Values stored.
    pub put_count: u64,
    /// Deletes stored.
    pub delete_count: u64,
    /// Gets answered.
    pub get_count: u64,
    /// Values of hosts.
    pub host_bytes: u64,
    /// Records of hosts in whole chunks, headers included.
    pub record_bytes: u64,
    /// Records moved by garbage collection, in whole chunks.
    pub relocated_bytes: u64,
    /// Written to the commit ring.
    pub ring_bytes: u64,
    /// Programmed into pages, metadata included.
    pub page_bytes: u64,
    /// Programmed into OOB areas.
    pub oob_bytes: u64,
    /// Journal, snapshots and roots.
    pub metadata_bytes: u64,
    /// Chunks left empty at the end of program units and blocks.
    pub padded_bytes: u64,
    /// Reads of the medium on behalf of Gets.
    pub read_count: u64,
    /// Bytes asked for by them.
    pub read_bytes: u64,
    /// Live records in whole chunks.
    pub live_bytes: u64,
    /// How much may be live.
    pub capacity_bytes: u64,
    /// Memory of all loaded indexes.
    pub index_bytes: u64,
    /// Memory of frames and write buffers, at most.
    pub buffer_bytes_max: u64,
    /// Blocks of the device.
    pub block_count: u32,
    /// Blocks free or about to be.
    pub free_blocks: u32,
    /// Blocks never used again.
    pub bad_blocks: u32,
    /// Blocks erased.
    pub erase_count: u64,
    /// Smallest erase count of a block.
    pub erase_min: u32,
    /// Largest erase count of a block.
    pub erase_max: u32,
    /// Mean erase count.
    pub erase_mean: f64,
    /// Programs that failed.
    pub program_failures: u64,
    /// Damaged records that collection came across.
    pub damaged_records: u64,
    /// How long opening took.
    pub open_ns: u64,
    /// Latencies of Puts and deletes, one for each batch.
    pub put_latency: LatencyStats,
    /// Latencies of Gets.
    pub get_latency: LatencyStats,
}

impl Stats {
    /// Bytes programmed into pages per byte of host values; 0 before the first.
    pub fn write_amplification(&self) -> f64 {
        if self.host_bytes == 0 { 0.0 } else { self.page_bytes as f64 / self.host_bytes as f64 }
    }

    pub(crate) fn of_core(core: &CoreStats) -> Stats {
        Stats {
            put_count: core.put_count,
            delete_count: core.delete_count,
            host_bytes: core.host_bytes,
            record_bytes: core.record_bytes,
            relocated_bytes: core.relocated_bytes,
            ring_bytes: core.ring_bytes,
            page_bytes: core.page_bytes,
            oob_bytes: core.oob_bytes,
            metadata_bytes: core.metadata_bytes,
            padded_bytes: core.padded_bytes,
            live_bytes: core.live_bytes,
            capacity_bytes: core.capacity_bytes,
            index_bytes: core.index_bytes,
            block_count: core.block_count,
            free_blocks: core.free_blocks,
            bad_blocks: core.bad_blocks,
            erase_count: core.erase_count,
            erase_min: core.erase_min,
            erase_max: core.erase_max,
            erase_mean: core.erase_mean,
            program_failures: core.program_failures,
            damaged_records: core.damaged_records,
            ..Stats::default()
        }
    }
}

/// What a device is.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The file or block device; empty for one in memory.
    pub path: String,
    /// Its identity.
    pub uuid: String,
    /// Bytes of all pages.
    pub flash_bytes: u64,
    /// Channels.
    pub channel_count: u32,
    /// Dies of all channels, which is the number of logs.
    pub die_count: u32,
    /// Erase blocks.
    pub block_count: u32,
    /// Bytes of an erase block.
    pub block_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Bytes of the commit ring.
    pub ring_bytes: u64,
    /// Smallest durable write.
    pub sector_bytes: u32,
    /// `power` or `process`.
    pub durability: String,
    /// Largest value.
    pub value_bytes_max: u64,
    /// Largest batch in ring bytes.
    pub batch_bytes_max: u64,
    /// The medium in words, fallbacks included.
    pub description: String,
    /// Whether the last close was clean.
    pub was_clean: bool,
    /// Journal entries replayed when it was opened.
    pub replayed_journal_entries: u64,
    /// Ring records replayed when it was opened.
    pub replayed_ring_records: u64,
}
