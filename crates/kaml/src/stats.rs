//! Statistics for a person or a monitor.
//!
//! Lives here:       what callers get: counters, latencies, the map of blocks.
//! Lives elsewhere:  what the firmware counts (`kaml-device`), recording latencies (`latency`), the text that monitors read
//!                   (`kaml-metrics`).

use kaml_device::{BlockActivity, BlockState, CoreStats};
use serde::Serialize;

/// Latencies of one kind of command, in nanoseconds.
///
/// # Examples
/// See [`Stats`].
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

/// Upper bounds of the buckets of a [`LatencyHistogram`], in nanoseconds: 1 µs to 10 s.
const BOUNDS_NS: [u64; 22] = {
    let mut bounds = [0; 22];
    let (mut at, mut decade) = (0, 1_000);
    while at < bounds.len() {
        bounds[at] = [1, 2, 5][at % 3] * decade;
        if at % 3 == 2 {
            decade *= 10;
        }
        at += 1;
    }
    bounds
};

/// How often each latency occurred since the device was opened, in buckets from 1 µs to 10 s with three bounds in each power of ten.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// device.put(users, 1u64, b"ada")?;
/// let puts = device.latency_histograms().put;
/// assert_eq!(puts.counts.iter().sum::<u64>(), 1);
/// for (bound, count) in puts.bounds_ns.iter().zip(&puts.counts) {
///     println!("{count} puts took up to {bound} ns, and more than the bound before");
/// }
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatencyHistogram {
    /// Upper bounds of the buckets, in nanoseconds.
    pub bounds_ns: Vec<u64>,
    /// Commands of each bucket, and at last those above all bounds.
    pub counts: Vec<u64>,
    /// Sum of all latencies, in nanoseconds.
    pub sum_ns: u64,
}

impl LatencyHistogram {
    pub(crate) fn empty() -> LatencyHistogram {
        LatencyHistogram { bounds_ns: BOUNDS_NS.to_vec(), counts: vec![0; BOUNDS_NS.len() + 1], sum_ns: 0 }
    }

    pub(crate) fn add(&mut self, ns: u64, count: u64) {
        let bucket = self.bounds_ns.partition_point(|bound| *bound < ns);
        self.counts[bucket] += count;
        self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(count));
    }
}

/// Latencies of all kinds of commands; see [`crate::Device::latency_histograms`].
///
/// # Examples
/// See [`LatencyHistogram`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatencyHistograms {
    /// Puts and deletes, one for each batch, until they are durable.
    pub put: LatencyHistogram,
    /// Gets.
    pub get: LatencyHistogram,
    /// Ring writes, each of which makes the Puts of one frame durable. Where a ring write takes only its caller's own time (in memory,
    /// and with `process` durability), one of 16 is timed and counts as 16.
    pub commit: LatencyHistogram,
}

/// Neighbouring blocks of one log, as a cell of a [`BlockMap`].
///
/// # Examples
/// See [`BlockMap`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BlockCell {
    /// The log whose blocks they are.
    pub log: u32,
    /// How many they are.
    pub block_count: u32,
    /// What most of them are doing.
    pub state: BlockState,
    /// Live bytes divided by the bytes of the blocks, 0 to 1.
    pub live_share: f32,
    /// Pages that the device has programmed since those that are full were full, on average.
    pub age_pages: u64,
    /// How often they have been erased, on average.
    pub erase_count: u32,
}

/// All erase blocks of a device as at most so many cells, log after log; see [`crate::Device::block_map`].
///
/// # Examples
/// ```
/// use kaml::{BlockState, CreateOptions, Device};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let map = device.block_map(1000);
/// assert_eq!(map.cells.iter().map(|cell| cell.block_count).sum::<u32>(), device.info().block_count);
/// assert_eq!(map.state_counts.iter().map(|(_, count)| count).sum::<u32>(), device.info().block_count);
/// assert_eq!(map.state_counts.iter().find(|(state, _)| *state == BlockState::Bad).map(|(_, count)| *count), Some(0));
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BlockMap {
    /// How many blocks are in each state, in the order of a block's life.
    pub state_counts: Vec<(BlockState, u32)>,
    /// Blocks of a cell; the last cell of a log can have fewer.
    pub blocks_per_cell: u32,
    /// The cells.
    pub cells: Vec<BlockCell>,
}

/// Every state, in the order of a block's life.
const STATES: [BlockState; 8] = [
    BlockState::Dirty,
    BlockState::Erasing,
    BlockState::Ready,
    BlockState::Open,
    BlockState::Full,
    BlockState::Draining,
    BlockState::Reclaimed,
    BlockState::Bad,
];

/// Blocks of a cell, added up.
#[derive(Clone, Default)]
struct CellSum {
    states: [u32; STATES.len()],
    live_bytes: u64,
    age_pages: u64,
    aged: u32,
    erase_count: u64,
}

/// Makes a [`BlockMap`] of blocks that come in any order.
pub(crate) struct BlockMapBuilder {
    die_count: u32,
    blocks_per_cell: u32,
    cells_per_die: u32,
    block_bytes: u64,
    sums: Vec<CellSum>,
}

impl BlockMapBuilder {
    /// For a device of so many blocks; each log gets at least one cell.
    pub(crate) fn new(block_count: u32, die_count: u32, block_bytes: u64, cells_max: usize) -> BlockMapBuilder {
        let blocks_per_die = block_count.div_ceil(die_count.max(1)).max(1);
        let cells_max = u32::try_from(cells_max).unwrap_or(u32::MAX);
        let cells_per_die = (cells_max / die_count.max(1)).clamp(1, blocks_per_die);
        let blocks_per_cell = blocks_per_die.div_ceil(cells_per_die);
        let cells_per_die = blocks_per_die.div_ceil(blocks_per_cell);
        let sums = vec![CellSum::default(); (cells_per_die * die_count) as usize];
        BlockMapBuilder { die_count, blocks_per_cell, cells_per_die, block_bytes, sums }
    }

    pub(crate) fn add(&mut self, block: u32, seen: BlockActivity) {
        let (die, place) = (block % self.die_count, block / self.die_count);
        let Some(sum) = self.sums.get_mut((die * self.cells_per_die + place / self.blocks_per_cell) as usize) else {
            return; // the device has grown meanwhile
        };
        sum.states[STATES.iter().position(|state| *state == seen.state).unwrap_or(0)] += 1;
        sum.live_bytes += seen.live_bytes;
        sum.erase_count += u64::from(seen.erase_count);
        if matches!(seen.state, BlockState::Full | BlockState::Draining) {
            (sum.age_pages, sum.aged) = (sum.age_pages + seen.age_pages, sum.aged + 1);
        }
    }

    pub(crate) fn finish(self) -> BlockMap {
        let total = |at: usize| self.sums.iter().map(|sum| sum.states[at]).sum();
        let state_counts = STATES.iter().enumerate().map(|(at, state)| (*state, total(at))).collect();
        let cells = self.sums.iter().enumerate().map(|(at, sum)| {
            let block_count = sum.states.iter().sum::<u32>();
            let most = (0..STATES.len()).max_by_key(|at| sum.states[*at]).unwrap_or(0);
            BlockCell {
                log: at as u32 / self.cells_per_die,
                block_count,
                state: STATES[most],
                live_share: (sum.live_bytes as f64 / (u64::from(block_count.max(1)) * self.block_bytes) as f64) as f32,
                age_pages: sum.age_pages / u64::from(sum.aged.max(1)),
                erase_count: (sum.erase_count / u64::from(block_count.max(1))) as u32,
            }
        });
        let cells = cells.filter(|cell| cell.block_count > 0).collect();
        BlockMap { state_counts, blocks_per_cell: self.blocks_per_cell, cells }
    }
}

/// The wear of blocks that come one by one.
#[derive(Default)]
pub(crate) struct Wear {
    smallest: Option<u32>,
    largest: u32,
    sum: u64,
    count: u64,
}

impl Wear {
    /// Blocks that are bad do not count.
    pub(crate) fn add(&mut self, seen: BlockActivity) {
        if seen.state != BlockState::Bad {
            let smallest = self.smallest.unwrap_or(u32::MAX).min(seen.erase_count);
            self.smallest = Some(smallest);
            self.largest = self.largest.max(seen.erase_count);
            (self.sum, self.count) = (self.sum + u64::from(seen.erase_count), self.count + 1);
        }
    }

    pub(crate) fn put_into(self, stats: &mut Stats) {
        stats.erase_min = self.smallest.unwrap_or(0);
        stats.erase_max = self.largest;
        stats.erase_mean = self.sum as f64 / self.count.max(1) as f64;
    }
}

/// What a device has done since it was opened, and how it is. Sizes in bytes.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// device.put(users, 1u64, b"ada")?;
/// let stats = device.stats();
/// assert_eq!(stats.put_latency.count, 1);
/// println!("{} of {} bytes are live", stats.live_bytes, stats.capacity_bytes);
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone, Debug, Default, Serialize, PartialEq)]
pub struct Stats {
    /// Values stored.
    pub put_count: u64,
    /// Deletes stored.
    pub delete_count: u64,
    /// Records that expired and whose room was released.
    pub expired_count: u64,
    /// Gets that have completed.
    pub get_count: u64,
    /// Values of hosts.
    pub host_bytes: u64,
    /// Records of hosts in whole chunks, headers included.
    pub record_bytes: u64,
    /// Records moved by garbage collection, in whole chunks.
    pub relocated_bytes: u64,
    /// Read by garbage collection, data and OOB entries.
    pub collection_read_bytes: u64,
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
    /// Bytes requested by them.
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
    /// Bytes programmed into pages divided by bytes of records that hosts put (`record_bytes`); 0 before the first record.
    pub fn write_amplification(&self) -> f64 {
        if self.record_bytes == 0 { 0.0 } else { self.page_bytes as f64 / self.record_bytes as f64 }
    }

    pub(crate) fn of_core(core: &CoreStats) -> Stats {
        Stats {
            put_count: core.put_count,
            delete_count: core.delete_count,
            expired_count: core.expired_count,
            host_bytes: core.host_bytes,
            record_bytes: core.record_bytes,
            relocated_bytes: core.relocated_bytes,
            collection_read_bytes: core.collection_read_bytes,
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
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let info = device.info();
/// println!("values of up to {} bytes", info.value_bytes_max);
/// assert!(info.flash_bytes <= 64 << 20);
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The file or block device; empty for one in memory.
    pub path: String,
    /// Its identity.
    pub uuid: String,
    /// Bytes of all pages.
    pub flash_bytes: u64,
    /// Bytes that the device takes of its file or block device; nothing for one in memory.
    pub file_bytes: Option<u64>,
    /// Bytes that records, with their headers and in whole chunks, may take now. Indexes that grow make it less.
    pub usable_bytes: u64,
    /// Bytes of the file or block device up to which it grows by itself when it runs low on space; nothing if it does not.
    pub grows_up_to_bytes: Option<u64>,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   the buckets' bounds are 1, 2 and 5 times the powers of ten; a latency is in the first bucket whose bound it does not exceed.
    #[test]
    fn buckets_of_latencies() {
        assert_eq!(BOUNDS_NS[..4], [1_000, 2_000, 5_000, 10_000]);
        assert_eq!(BOUNDS_NS.last(), Some(&10_000_000_000));
        let mut histogram = LatencyHistogram::empty();
        for (ns, bucket) in [(1, 0), (1_000, 0), (1_001, 1), (5_000, 2), (10_000_000_000, 21), (u64::MAX, 22)] {
            let before = histogram.counts[bucket];
            histogram.add(ns, 3);
            assert_eq!(histogram.counts[bucket], before + 3, "{ns} ns");
        }
        assert_eq!(histogram.sum_ns, u64::MAX, "a sum that is too large is the largest one");
    }
}
