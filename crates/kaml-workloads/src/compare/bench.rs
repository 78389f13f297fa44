//! What is compared: each group's runs, both sides in turns.
//!
//! Lives here:       the devices and floors of each group, and their bars.
//! Lives elsewhere:  how each side is run (`floor`, `raw`, `micro`, `steady`, `reopen`, `kill`), ratios (`row`).

use super::row::{Bar, Row, median};
use super::{Group, Options};
use crate::floor::{self, Floor, Mix};
use crate::keys::Distribution;
use crate::kill::{self, Cycles};
use crate::memory::{self, Memory};
use crate::micro::{self, Gets, Puts, Records, Stop};
use crate::raw::{self, RandomReads, Sequential};
use crate::reopen::{self, Reopen};
use crate::scratch::Scratch;
use crate::steady::{self, Steady};
use crate::{Error, figures};
use kaml::{CreateOptions, Device, NamespaceId};
use kaml_terminal::passing::Passing;
use std::path::{Path, PathBuf};

/// A device file that is removed when dropped.
struct DeviceFile {
    path: PathBuf,
    _directory: Passing,
}

impl DeviceFile {
    fn new(dir: &Path) -> Result<DeviceFile, Error> {
        let directory = Passing::directory(dir).map_err(Error::io(dir.display().to_string()))?;
        Ok(DeviceFile { path: directory.path().join("bench.kaml"), _directory: directory })
    }

    fn create(&self, capacity: u64) -> Result<(Device, NamespaceId), Error> {
        let device = Device::create(&self.path, &CreateOptions { force: true, ..CreateOptions::new(capacity) })?;
        let namespace = micro::namespace(&device, "bench")?;
        Ok((device, namespace))
    }

    /// A device as it is after a while in use: every block was written before and, if requested, the keys exist. The
    /// floors write into bytes written before too.
    fn create_used(&self, value_bytes: usize, keys: u64) -> Result<(Device, NamespaceId), Error> {
        let options = CreateOptions { force: true, prewrite: true, ..CreateOptions::new(USED) };
        let device = Device::create(&self.path, &options)?;
        let namespace = micro::namespace(&device, "bench")?;
        micro::fill(&device, namespace, value_bytes, keys)?;
        device.settle()?;
        Ok((device, namespace))
    }
}

/// Large enough that no run of a few seconds sees garbage collection.
const ROOMY: u64 = 32 << 30;
/// The same for a device whose blocks are all written before the run.
const USED: u64 = 8 << 30;
/// Keys that puts choose from.
const PUT_KEYS: u64 = 1_000_000;

pub(super) struct Bench<'a> {
    pub(super) options: &'a Options,
    pub(super) group: Group,
}

impl Bench<'_> {
    fn stop(&self) -> Stop {
        Stop::after(self.options.duration)
    }

    fn put(&self, value_bytes: usize, batch_records: usize, in_flight: usize, turn: usize) -> Puts {
        let records =
            Records { value_bytes, count: PUT_KEYS, distribution: Distribution::Uniform, seed: (turn as u64) << 32 };
        Puts { records, batch_records, in_flight, stop: self.stop() }
    }

    fn floor(&self, record_bytes: usize, batch_records: usize, clients: usize) -> Floor {
        Floor {
            record_bytes,
            batch_records,
            clients,
            writes_in_flight: 1,
            sector_bytes: floor::SECTOR_BYTES,
            pages: false,
            mix: Mix::PUTS,
            duration: self.options.duration,
        }
    }

    /// Runs both sides in turns; the device is a new one for each row, so rows do not see each other's data.
    fn in_turns(
        &self,
        (value_bytes, keys): (usize, u64),
        mut floor: impl FnMut() -> Result<f64, Error>,
        mut kaml: impl FnMut(&Device, NamespaceId, usize) -> Result<f64, Error>,
    ) -> Result<Vec<(f64, f64)>, Error> {
        let file = DeviceFile::new(&self.options.dir)?;
        let (device, namespace) = file.create_used(value_bytes, keys)?;
        // Each side goes first in every second turn.
        let turns = (0..self.options.repeats.max(1)).map(|turn| match turn % 2 {
            0 => Ok((floor()?, kaml(&device, namespace, turn)?)),
            _ => {
                let kaml = kaml(&device, namespace, turn)?;
                Ok((floor()?, kaml))
            }
        });
        let pairs = turns.collect::<Result<Vec<_>, Error>>()?;
        device.close()?;
        Ok(pairs)
    }

    /// Next to the log alone stands a floor that writes pages too, as every store with a log does sooner or later.
    pub(super) fn puts(&self) -> Result<Vec<Row>, Error> {
        let scratch = Scratch::create(&self.options.dir, 2 * floor::LOG_BYTES)?;
        let mut rows = Vec::new();
        for threads in [1, 8, 32, 128] {
            let mut with_pages = Vec::new();
            let log = self.floor(1024, 1, threads);
            let pairs = self.in_turns(
                (1024, PUT_KEYS),
                || {
                    let alone = floor::better(&scratch, &log)?.records_per_s;
                    with_pages.push(floor::better(&scratch, &Floor { pages: true, ..log })?.records_per_s);
                    Ok(alone)
                },
                |device, namespace, turn| {
                    Ok(micro::puts(device, namespace, &self.put(1024, 1, threads, turn))?.records_per_s)
                },
            )?;
            let what = format!("durable 1 KiB puts, {threads} threads");
            rows.push(Row::ratio(self.group, what.clone(), "puts/s", &pairs, Bar::AtLeast(0.85)));
            let pairs: Vec<(f64, f64)> =
                with_pages.into_iter().zip(&pairs).map(|(floor, pair)| (floor, pair.1)).collect();
            let row =
                Row::ratio(self.group, format!("{what}, the floor with pages"), "puts/s", &pairs, Bar::AtLeast(0.85));
            rows.push(Row { bar: None, met: None, ..row });
        }
        Ok(rows)
    }

    pub(super) fn puts_in_flight(&self) -> Result<Vec<Row>, Error> {
        let scratch = Scratch::create(&self.options.dir, floor::LOG_BYTES)?;
        let row = |depth: usize| {
            let pairs = self.in_turns(
                (512, PUT_KEYS),
                || Ok(floor::better_event_loop(&scratch, &self.floor(512, 1, depth))?.records_per_s),
                |device, namespace, turn| {
                    Ok(micro::puts_in_flight(device, namespace, &self.put(512, 1, depth, turn))?.records_per_s)
                },
            )?;
            let what = format!("durable 512 B puts, one thread, {depth} in flight");
            Ok(Row::ratio(self.group, what, "puts/s", &pairs, Bar::AtLeast(0.5)))
        };
        [32, 128].into_iter().map(row).collect()
    }

    /// The bars are those on the reference machine (300, 600 and 800 K records/s) over its floors (505 K, 1.03 M, 2.18 M).
    pub(super) fn batches(&self) -> Result<Vec<Row>, Error> {
        let scratch = Scratch::create(&self.options.dir, floor::LOG_BYTES)?;
        let row = |(threads, bar): (usize, f64)| {
            let pairs = self.in_turns(
                (512, PUT_KEYS),
                || Ok(floor::better(&scratch, &self.floor(512, 32, threads))?.records_per_s),
                |device, namespace, turn| {
                    Ok(micro::puts(device, namespace, &self.put(512, 32, threads, turn))?.records_per_s)
                },
            )?;
            let what = format!("Put of 32 x 512 B, {threads} threads");
            Ok(Row::ratio(self.group, what, "records/s", &pairs, Bar::AtLeast(bar)))
        };
        [(1, 300.0 / 505.0), (4, 600.0 / 1030.0), (16, 800.0 / 2180.0)].into_iter().map(row).collect()
    }

    pub(super) fn gets(&self) -> Result<Vec<Row>, Error> {
        let file = DeviceFile::new(&self.options.dir)?;
        let (device, namespace) = file.create(ROOMY)?;
        micro::fill(&device, namespace, 1024, self.options.get_records)?;
        device.settle()?;
        let scratch = Scratch::create(&self.options.dir, self.options.get_records * 1024)?;
        let mut rows = Vec::new();
        for depth in [1, 16, 64] {
            rows.extend(self.gets_at(depth, &device, namespace, &scratch)?);
        }
        rows.push(self.absent_gets(&device, namespace)?);
        device.close()?;
        Ok(rows)
    }

    fn gets_at(
        &self,
        depth: usize,
        device: &Device,
        namespace: NamespaceId,
        scratch: &Scratch,
    ) -> Result<Vec<Row>, Error> {
        let mut pairs = Vec::new();
        let mut cpu = Vec::new();
        let (mut reads, mut gets) = (0, 0);
        for turn in 0..self.options.repeats.max(1) {
            let seed = (turn as u64) << 32 | 1;
            let records = Records {
                value_bytes: 1024,
                count: self.options.get_records,
                distribution: Distribution::Uniform,
                seed,
            };
            let get = Gets { records, in_flight: depth, stop: self.stop() };
            let before = device.stats();
            let kaml = match depth {
                1 => micro::gets(device, namespace, &get)?,
                _ => micro::gets_in_flight(device, namespace, &get)?,
            };
            let after = device.stats();
            reads += after.read_count - before.read_count;
            gets += kaml.operations;
            // What a Get reads is whole sectors; the raw side reads as much.
            let read_bytes = (after.read_bytes - before.read_bytes) / (after.read_count - before.read_count).max(1);
            let bytes = (read_bytes as usize).clamp(1024, 1 << 20).next_multiple_of(512);
            let raw = RandomReads { bytes, depth, duration: self.options.duration, seed };
            let raw = raw::random_reads(scratch, &raw)?;
            pairs.push((raw.operations_per_s, kaml.operations_per_s));
            cpu.extend(raw.cpu_us_per_operation.zip(kaml.cpu_us_per_operation));
        }
        let what = format!("uncached 1 KiB Get, {depth} in flight");
        let cpu_bar = (depth >= 16).then_some(Bar::AtMost(3.0));
        let per_get = reads as f64 / gets.max(1) as f64;
        let mut per_get_row = Row::figure(self.group, format!("{what}: reads per Get"), "reads", per_get, None);
        (per_get_row.bar, per_get_row.met) = (Some(Bar::AtMost(1.0)), Some(reads == gets));
        let kaml_cpu = median(cpu.iter().map(|pair| pair.1));
        let mut cpu_row = Row::figure(self.group, format!("{what}: CPU"), "µs", kaml_cpu, cpu_bar);
        cpu_row.floor = Some(median(cpu.iter().map(|pair| pair.0)));
        Ok(vec![Row::ratio(self.group, what, "gets/s", &pairs, Bar::AtLeast(0.95)), cpu_row, per_get_row])
    }

    fn absent_gets(&self, device: &Device, namespace: NamespaceId) -> Result<Row, Error> {
        const ABSENT: u64 = 100_000;
        let before = device.stats().read_count;
        for number in 0..ABSENT {
            if device.get(namespace, self.options.get_records + number)?.is_some() {
                return Err(Error::Wrong(format!("record {number} beyond the last exists")));
            }
        }
        let reads = (device.stats().read_count - before) as f64;
        let what = format!("reads for {ABSENT} absent keys");
        Ok(Row::figure(self.group, what, "reads", reads, Some(Bar::AtMost(0.0))))
    }

    pub(super) fn large(&self) -> Result<Vec<Row>, Error> {
        const BYTES: usize = 1 << 20;
        const KEYS: u64 = 512;
        let records = |seed| Records { value_bytes: BYTES, count: KEYS, distribution: Distribution::Sequential, seed };
        let raw = |depth: usize, operations: u64| {
            let (skipped, duration) = (operations / depth as u64, self.options.duration);
            Sequential { bytes: BYTES, depth, skipped, writes_per_sync: 1, huge_pages: false, duration }
        };
        let mut rows = Vec::new();
        // As many bytes as the device has, one after the other over all turns: what a disk below keeps in its own cache must not
        // make one side look faster.
        let scratch = Scratch::create(&self.options.dir, USED)?;
        for threads in [1, 4] {
            let (mut written, mut in_huge_pages) = (0, Vec::new());
            let mut write = |huge_pages| -> Result<f64, Error> {
                let run = Sequential { huge_pages, ..raw(threads, written) };
                let figures = raw::sequential_writes(&scratch, &run)?;
                written += figures.operations;
                Ok(figures.megabytes_per_s)
            };
            let pairs = self.in_turns(
                (BYTES, 0),
                || {
                    in_huge_pages.push(write(true)?);
                    write(false)
                },
                |device, namespace, _| {
                    let puts = Puts { records: records(0), batch_records: 1, in_flight: threads, stop: self.stop() };
                    Ok(micro::puts(device, namespace, &puts)?.megabytes_per_s)
                },
            )?;
            let what = format!("durable 1 MiB puts, {threads} threads");
            rows.extend(self.beside_huge_pages(what, &pairs, in_huge_pages, Bar::AtLeast(0.8)));
        }
        // Here as many as the records have, for the same reason.
        let scratch = Scratch::create(&self.options.dir, KEYS * BYTES as u64)?;
        for threads in [1, 4] {
            let (mut filled, mut in_huge_pages) = (false, Vec::new());
            let read = |huge_pages| -> Result<f64, Error> {
                let run = Sequential { huge_pages, ..raw(threads, 0) };
                Ok(raw::sequential_reads(&scratch, &run)?.megabytes_per_s)
            };
            let pairs = self.in_turns(
                (BYTES, 0),
                || {
                    in_huge_pages.push(read(true)?);
                    read(false)
                },
                |device, namespace, _| {
                    if !std::mem::replace(&mut filled, true) {
                        micro::fill(device, namespace, BYTES, KEYS)?;
                        device.settle()?;
                    }
                    let gets = Gets { records: records(0), in_flight: threads, stop: self.stop() };
                    Ok(micro::gets(device, namespace, &gets)?.megabytes_per_s)
                },
            )?;
            let what = format!("1 MiB gets, {threads} threads");
            rows.extend(self.beside_huge_pages(what, &pairs, in_huge_pages, Bar::AtLeast(0.9)));
        }
        Ok(rows)
    }

    /// A row next to the raw disk as programs use it, and one next to what it does for memory in huge pages.
    fn beside_huge_pages(&self, what: String, pairs: &[(f64, f64)], floors: Vec<f64>, bar: Bar) -> [Row; 2] {
        let in_huge_pages: Vec<(f64, f64)> =
            floors.into_iter().zip(pairs).map(|(floor, pair)| (floor, pair.1)).collect();
        let row = Row::ratio(self.group, format!("{what}, the floor in huge pages"), "MB/s", &in_huge_pages, bar);
        [Row::ratio(self.group, what, "MB/s", pairs, bar), Row { bar: None, met: None, ..row }]
    }

    pub(super) fn index(&self) -> Vec<Row> {
        // Addresses of devices of 512 GiB and of 4 TiB in chunks of 64 B.
        const ADDRESS_BITS: [u32; 2] = [33, 36];
        let mut rows = Vec::new();
        let sizes = self.options.index_keys.iter().flat_map(|&keys| ADDRESS_BITS.map(|bits| (keys, bits)));
        for (keys, address_bits) in sizes {
            let f = kaml_index::measure(keys, address_bits);
            let mut row = |what: &str, unit: &str, value: f64, bar: Option<Bar>| {
                let what = format!("index, {} M keys, {address_bits}-bit addresses: {what}", keys / 1_000_000);
                rows.push(Row::figure(self.group, what, unit, value, bar));
            };
            row("load", "", f.load, Some(Bar::AtLeast(0.9)));
            row("dependent load from its memory", "ns", f.memory_latency_ns, None);
            row("single hit", "ns", f.hit_ns, Some(Bar::AtMost(120.0)));
            row("single miss", "ns", f.miss_ns, Some(Bar::AtMost(120.0)));
            row("dependent hit", "ns", f.hit_latency_ns, None);
            row("pairs of lines from its memory", "M/s", f.memory_pairs_mps, None);
            row("batched hits", "M/s", f.hit_batch_mps, Some(Bar::AtLeast(20.0)));
            row("batched misses", "M/s", f.miss_batch_mps, Some(Bar::AtLeast(20.0)));
            row("two readers over one", "", f.readers_scale(), Some(Bar::AtLeast(1.8)));
            row("the same with a writer", "", f.readers_updating_scale(), Some(Bar::AtLeast(1.8)));
            row("memory per key", "B", f.bytes_per_key, Some(Bar::AtMost(12.5)));
            row("the same, mean of growth", "B", f.bytes_per_key_mean, Some(Bar::AtMost(14.0)));
            row("the same, highest", "B", f.bytes_per_key_max, Some(Bar::AtMost(16.0)));
            row("insert, growth included", "ns", f.insert_ns, None);
            row("longest insert", "ms", f.insert_ns_max as f64 / 1e6, Some(Bar::AtMost(0.5)));
            row("longest insert, processor time", "ms", f.insert_cpu_ns_max as f64 / 1e6, None);
            row("longest pause of a loop that looks at the clock", "ms", f.idle_ns_max as f64 / 1e6, None);
        }
        rows
    }

    pub(super) fn written(&self) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for (value_bytes, threads, bar) in [(1024, 32, 2.4), (64 << 10, 32, 1.1)] {
            let file = DeviceFile::new(&self.options.dir)?;
            let (device, namespace) = file.create(ROOMY)?;
            let (before, disk_before) = (device.stats(), figures::DiskBytes::now());
            let run = micro::puts(&device, namespace, &self.put(value_bytes, 1, threads, 0))?;
            device.settle()?;
            let (after, disk_after) = (device.stats(), figures::DiskBytes::now());
            let per_byte = |bytes: u64| bytes as f64 / run.bytes.max(1) as f64;
            let what = format!("bytes written per byte, {} KiB puts, {threads} threads", value_bytes >> 10);
            let counted = after.ring_bytes - before.ring_bytes + after.page_bytes - before.page_bytes;
            let counted = counted + after.metadata_bytes - before.metadata_bytes + after.oob_bytes - before.oob_bytes;
            let bar = Some(Bar::AtMost(bar));
            rows.push(Row::figure(self.group, format!("{what}, counted by the device"), "B", per_byte(counted), bar));
            if let Some((before, after)) = disk_before.zip(disk_after) {
                let what = format!("{what}, counted by the system");
                rows.push(Row::figure(self.group, what, "B", per_byte(after.written - before.written), bar));
            }
            device.close()?;
        }
        Ok(rows)
    }

    pub(super) fn steady(&self, progress: &mut dyn FnMut(&str)) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for (name, distribution, bar) in
            [("uniform", Distribution::Uniform, 2.7), ("zipf 0.99", Distribution::Zipf(0.99), 1.7)]
        {
            let file = DeviceFile::new(&self.options.dir)?;
            let steady = Steady {
                capacity: self.options.steady_capacity,
                live_share: 0.8,
                value_bytes: 1024,
                distribution,
                threads: 32,
                settle_capacities: 2.0,
                measured_capacities: 1.0,
                duration_max: self.options.steady_duration_max,
            };
            let f = steady::run(&file.path, &steady, progress)?;
            let what = |what: &str| format!("{:.0} % live, {name} overwrites: {what}", f.live_share * 100.0);
            let mut row = |name: &str, unit: &str, value, bar| {
                rows.push(Row::figure(self.group, what(name), unit, value, bar));
            };
            row("page bytes per record byte", "", f.write_amplification, Some(Bar::AtMost(bar)));
            row("page bytes per value byte", "", f.page_bytes_per_value_byte, None);
            row("overwritten, in capacities", "", f.overwritten_capacities, Some(Bar::AtLeast(2.0)));
            row("puts/s before", "puts/s", f.before.operations_per_s, None);
            row("puts/s", "puts/s", f.steady.operations_per_s, None);
            row("p99.9 before", "µs", f.before.latency.p999_ns as f64 / 1e3, None);
            row("p99.9", "µs", f.steady.latency.p999_ns as f64 / 1e3, None);
            row("p99.9 over p99.9 before", "", f.p999_ratio, Some(Bar::AtMost(10.0)));
            let spread = (f.erase_max - f.erase_min) as f64;
            let spread_max = (f.erase_max as f64 * 0.1).max(16.0);
            let spread_name = format!("erase counts {} to {}, spread", f.erase_min, f.erase_max);
            row(&spread_name, "erases", spread, Some(Bar::AtMost(spread_max)));
            // In so few capacities that is met by any block; this is not by one that is never erased.
            row("spread of erase counts over their mean", "", f.erase_spread_of_mean(), Some(Bar::AtMost(1.0)));
        }
        Ok(rows)
    }

    fn child(&self, job: &str) -> Vec<String> {
        vec!["child".into(), job.into()]
    }

    pub(super) fn reopen(&self) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        let records = self.options.reopen_records;
        let few = records.min(100_000);
        // Room for the records four times over; then the same few records on a small and on a large device.
        let roomy = (records * 512).max(1 << 30);
        for (capacity, records) in [(roomy, records), (1 << 30, few), (200 << 30, few)] {
            let file = DeviceFile::new(&self.options.dir)?;
            let program = self.options.program.clone();
            let f = reopen::run(&file.path, &Reopen { capacity, records, program, arguments: self.child("load") })?;
            let mut row = |what: &str, value: f64, bar: Option<f64>| {
                let what = format!("{records} records on {} GiB: {what}", capacity >> 30);
                rows.push(Row::figure(self.group, what, "ms", value * 1e3, bar.map(Bar::AtMost)));
            };
            row("open after SIGKILL", f.after_kill_seconds, Some(2000.0));
            row("and the first Get", f.first_get_after_kill_seconds, None);
            row("open after a clean close", f.after_close_seconds, Some(300.0));
            row("and the first Get after that", f.first_get_after_close_seconds, None);
        }
        Ok(rows)
    }

    pub(super) fn kill(&self) -> Result<Vec<Row>, Error> {
        let file = DeviceFile::new(&self.options.dir)?;
        let cycles = Cycles {
            count: self.options.kill_cycles,
            capacity: 256 << 20,
            seed: 1,
            program: self.options.program.clone(),
            arguments: self.child("batches"),
        };
        let outcome = kill::run(&file.path, &cycles, &mut |_| {})?;
        if let Some(problem) = outcome.problems.first() {
            return Err(Error::Wrong(problem.clone()));
        }
        let what = format!("kill cycles, {} acknowledged batches: problems", outcome.acknowledged_batches);
        let problems = Row::figure(self.group, what, "", outcome.problems.len() as f64, Some(Bar::AtMost(0.0)));
        let slowest = outcome.reopen_ns_max as f64 / 1e6;
        Ok(vec![
            Row::figure(self.group, "kill cycles", "", f64::from(outcome.cycles), None),
            problems,
            Row::figure(self.group, "kill cycles: slowest reopen", "ms", slowest, None),
        ])
    }

    pub(super) fn memory(&self) -> Result<Vec<Row>, Error> {
        let file = DeviceFile::new(&self.options.dir)?;
        let memory = Memory {
            bytes: self.options.memory_bytes,
            value_bytes: 4096,
            program: self.options.program.clone(),
            arguments: self.child("memory"),
        };
        let f = memory::run(&file.path, &memory)?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let last = |values: &[u64]| mib(values.last().copied().unwrap_or(0));
        let gib = self.options.memory_bytes >> 30;
        let row = |what: &str, value, bar| Row::figure(self.group, what, "MiB", value, bar);
        let beyond = "resident beyond start and index, highest; the bar is the buffers' limit";
        Ok(vec![
            row(&format!("resident after {gib} GiB of 4 KiB values"), last(&f.resident_bytes), None),
            row("of this, before there was a device", mib(f.start_bytes), None),
            row("of this, index", last(&f.index_bytes), None),
            row(beyond, mib(f.beyond_index_bytes_max()), Some(Bar::AtMost(mib(f.buffer_bytes_max)))),
        ])
    }
}
