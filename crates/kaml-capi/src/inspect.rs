//! What a device is, its state, and whether all of it is whole.
//!
//! Lives here:       the structures and calls for a person or a monitor.
//! Lives elsewhere:  their contents (`kaml::stats`, `kaml::check`); how many records each namespace has (`device`).

use crate::arguments;
use crate::device::{DEVICES, kaml_device};
use crate::failure::{c_string, call};
use crate::options::{KAML_DURABLE_POWER, KAML_DURABLE_PROCESS};
use crate::status::kaml_status;
use kaml::{DeviceInfo, LatencyStats, Stats};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null;

/// The identity of a device, in hexadecimal digits, with the zero byte that ends it.
pub const KAML_UUID_BYTES: usize = 33;
/// The longest description of a device, with the zero byte that ends it.
pub const KAML_DESCRIPTION_BYTES: usize = 1024;

/// What a device is. Begin with `KAML_DEVICE_INFO_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_device_info {
    /// Filled in by `KAML_DEVICE_INFO_INIT`.
    pub struct_size: usize,
    /// Bytes of all pages.
    pub flash_bytes: u64,
    /// Data bytes of an erase block.
    pub block_bytes: u64,
    /// Bytes of the commit ring.
    pub ring_bytes: u64,
    /// Erase blocks.
    pub block_count: u32,
    /// Channels.
    pub channel_count: u32,
    /// Dies of all channels, which is the number of logs.
    pub die_count: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Bytes of a chunk; records take whole chunks.
    pub chunk_bytes: u32,
    /// Bytes of the smallest durable write.
    pub sector_bytes: u32,
    /// `KAML_DURABLE_POWER` or `KAML_DURABLE_PROCESS`, as it was opened.
    pub durability: u32,
    /// 1: the last close was clean.
    pub was_clean: u32,
    /// Journal entries that were replayed when it was opened.
    pub replayed_journal_entries: u64,
    /// Ring records that were replayed when it was opened.
    pub replayed_ring_records: u64,
    /// Its identity: 32 hexadecimal digits.
    pub uuid: [c_char; KAML_UUID_BYTES],
    /// A description of the medium, with its path and any fallback, such as missing io_uring; truncated if it is longer.
    pub description: [c_char; KAML_DESCRIPTION_BYTES],
}

impl From<&DeviceInfo> for kaml_device_info {
    fn from(info: &DeviceInfo) -> kaml_device_info {
        kaml_device_info {
            struct_size: size_of::<kaml_device_info>(),
            flash_bytes: info.flash_bytes,
            block_bytes: info.block_bytes,
            ring_bytes: info.ring_bytes,
            block_count: info.block_count,
            channel_count: info.channel_count,
            die_count: info.die_count,
            page_bytes: info.page_bytes,
            chunk_bytes: info.chunk_bytes,
            sector_bytes: info.sector_bytes,
            durability: match info.durability.as_str() {
                "power" => KAML_DURABLE_POWER,
                _ => KAML_DURABLE_PROCESS,
            },
            was_clean: info.was_clean.into(),
            replayed_journal_entries: info.replayed_journal_entries,
            replayed_ring_records: info.replayed_ring_records,
            uuid: arguments::text(&info.uuid),
            description: arguments::text(&info.description),
        }
    }
}

/// Latencies of one kind of command since the device was opened, in nanoseconds, to two digits; all 0 if there was none.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_latency {
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

impl From<LatencyStats> for kaml_latency {
    fn from(latency: LatencyStats) -> kaml_latency {
        let LatencyStats { count, mean_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns } = latency;
        kaml_latency { count, mean_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns }
    }
}

/// The state of a device, and counts since it was opened. Begin with `KAML_DEVICE_STATISTICS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_device_statistics {
    /// Filled in by `KAML_DEVICE_STATISTICS_INIT`.
    pub struct_size: usize,
    /// Bytes that may be live: records in whole chunks.
    pub capacity_bytes: u64,
    /// Bytes of them that are: records and versions that are kept.
    pub live_bytes: u64,
    /// Bytes that may still become live.
    pub free_bytes: u64,
    /// Bytes of memory of all loaded indexes.
    pub index_bytes: u64,
    /// Bytes of memory of frames and write buffers, at most.
    pub buffer_bytes_max: u64,
    /// Bytes of values that were put.
    pub host_bytes: u64,
    /// Bytes of records that were put, in whole chunks, headers included.
    pub record_bytes: u64,
    /// Bytes of records that garbage collection moved, in whole chunks.
    pub relocated_bytes: u64,
    /// Bytes left empty at the end of program units and blocks.
    pub padded_bytes: u64,
    /// Bytes written to the commit ring.
    pub ring_bytes: u64,
    /// Bytes programmed into pages, metadata included.
    pub page_bytes: u64,
    /// Bytes programmed into OOB areas.
    pub oob_bytes: u64,
    /// Bytes of journal, snapshots of indexes and roots.
    pub metadata_bytes: u64,
    /// Bytes read from the medium for Gets.
    pub read_bytes: u64,
    /// Reads of the medium for Gets.
    pub read_count: u64,
    /// Values put.
    pub put_count: u64,
    /// Deletes.
    pub delete_count: u64,
    /// Gets that have completed.
    pub get_count: u64,
    /// Blocks erased.
    pub erase_count: u64,
    /// Programs that failed.
    pub program_failures: u64,
    /// Damaged records that garbage collection found.
    pub damaged_records: u64,
    /// Nanoseconds that opening took.
    pub open_ns: u64,
    /// `page_bytes` divided by `record_bytes`; 0 before the first record.
    pub write_amplification: f64,
    /// Erases of a block since the device was created, the mean of all blocks.
    pub erase_mean: f64,
    /// Of the block with the fewest.
    pub erase_min: u32,
    /// Of the block with the most.
    pub erase_max: u32,
    /// Erase blocks.
    pub block_count: u32,
    /// Blocks that are free or about to be.
    pub free_blocks: u32,
    /// Blocks that are never used again.
    pub bad_blocks: u32,
    /// 1: a failed write stopped the device: it accepts no more changes (`KAML_STOPPED`).
    pub stopped: u32,
    /// Of Puts and deletes, one for each batch.
    pub put_latency: kaml_latency,
    /// Of Gets.
    pub get_latency: kaml_latency,
}

impl kaml_device_statistics {
    fn new(stats: &Stats, is_stopped: bool) -> kaml_device_statistics {
        kaml_device_statistics {
            struct_size: size_of::<kaml_device_statistics>(),
            capacity_bytes: stats.capacity_bytes,
            live_bytes: stats.live_bytes,
            free_bytes: stats.capacity_bytes.saturating_sub(stats.live_bytes),
            index_bytes: stats.index_bytes,
            buffer_bytes_max: stats.buffer_bytes_max,
            host_bytes: stats.host_bytes,
            record_bytes: stats.record_bytes,
            relocated_bytes: stats.relocated_bytes,
            padded_bytes: stats.padded_bytes,
            ring_bytes: stats.ring_bytes,
            page_bytes: stats.page_bytes,
            oob_bytes: stats.oob_bytes,
            metadata_bytes: stats.metadata_bytes,
            read_bytes: stats.read_bytes,
            read_count: stats.read_count,
            put_count: stats.put_count,
            delete_count: stats.delete_count,
            get_count: stats.get_count,
            erase_count: stats.erase_count,
            program_failures: stats.program_failures,
            damaged_records: stats.damaged_records,
            open_ns: stats.open_ns,
            write_amplification: stats.write_amplification(),
            erase_mean: stats.erase_mean,
            erase_min: stats.erase_min,
            erase_max: stats.erase_max,
            block_count: stats.block_count,
            free_blocks: stats.free_blocks,
            bad_blocks: stats.bad_blocks,
            stopped: is_stopped.into(),
            put_latency: stats.put_latency.into(),
            get_latency: stats.get_latency.into(),
        }
    }
}

/// What a check found. Begin with `KAML_CHECK_REPORT_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_check_report {
    /// Filled in by `KAML_CHECK_REPORT_INIT`.
    pub struct_size: usize,
    /// Blocks that were read.
    pub blocks: u64,
    /// Records that are whole.
    pub records: u64,
    /// Versions that are whole, of namespaces that keep them.
    pub versions: u64,
    /// Bytes of all these values.
    pub value_bytes: u64,
    /// Problems; 0 for a device in order.
    pub problem_count: u64,
}

/// Called during a check: with each problem, as a sentence that is valid until the callback returns, and with a null
/// `problem` for progress in blocks (`block_count` is 0 before they are counted). Return 0 to continue; anything else ends
/// the check. It runs on the thread that called `kaml_check` and can make any call. It has to return: no exception and no
/// `longjmp` may leave it.
pub type kaml_check_callback = Option<
    unsafe extern "C" fn(context: *mut c_void, blocks_done: u64, block_count: u64, problem: *const c_char) -> c_int,
>;

/// Reports what a device is. Reads no flash.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_info(device: kaml_device, info: *mut kaml_device_info) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { arguments::sized_out(info, "info")? };
        DEVICES.with(device.id, |open| {
            out.set((&open.device.info()).into());
            Ok(())
        })
    })
}

/// Reports the state of a device, and counts since it was opened. `kaml_namespaces` shows the number of records in each
/// namespace. Reads no flash, but visits every block: call it once a second, not for each Put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_statistics(device: kaml_device, statistics: *mut kaml_device_statistics) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { arguments::sized_out(statistics, "statistics")? };
        DEVICES.with(device.id, |open| {
            let device = &open.device;
            out.set(kaml_device_statistics::new(&device.stats(), device.stopped().is_some()));
            Ok(())
        })
    })
}

/// Reads everything that is durable and checks it: records and versions against their checksums and the indexes, live data
/// against the accounts. Returns `KAML_OK` also if there are problems: `problem_count` is their number, and `callback` gets
/// each. Other threads can continue meanwhile; records that they change during the check are not judged. `KAML_CANCELLED`
/// if the callback requested the end, without a report; `KAML_STOPPED` if the device accepts no more changes: open it again
/// first. `callback` and `report` may be null; `context` is passed to the callback and not used otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_check(
    device: kaml_device,
    callback: kaml_check_callback,
    context: *mut c_void,
    report: *mut kaml_check_report,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { (!report.is_null()).then(|| arguments::sized_out(report, "report")).transpose()? };
        let mut problem_count = 0;
        let mut hear = |done, total, problem: Option<&str>| {
            problem_count += u64::from(problem.is_some());
            let Some(callback) = callback else { return true };
            let problem = problem.map(c_string);
            let text = problem.as_ref().map_or(null(), |text| text.as_ptr());
            // SAFETY: the caller handed in a function of this type; the text lives until it returns.
            unsafe { callback(context, done, total, text) == 0 }
        };
        let found = DEVICES.with(device.id, |open| Ok(open.device.check_and_tell(&mut hear)?))?;
        if let Some(out) = out {
            out.set(kaml_check_report {
                struct_size: size_of::<kaml_check_report>(),
                blocks: found.blocks,
                records: found.records,
                versions: found.versions,
                value_bytes: found.value_bytes,
                problem_count,
            });
        }
        Ok(())
    })
}
