//! The steady state of a full device: overwrites at a share of live data, long enough that garbage collection has settled.
//!
//! Lives here:       filling to a share, overwriting, the figures before and after garbage collection sets in.
//! Lives elsewhere:  the bars on them (`compare`).

use crate::figures::Latency;
use crate::keys::Distribution;
use crate::micro::{self, Puts, Records, Stop};
use crate::{Error, Figures};
use kaml::{CreateOptions, Device, Stats};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{Duration, Instant};

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Steady {
    /// Bytes of the device.
    pub capacity: u64,
    /// Live data as a share of the capacity that the device reports.
    pub live_share: f64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// How overwrites are chosen.
    pub distribution: Distribution,
    /// Blocking threads.
    pub threads: usize,
    /// Overwritten before the steady state is measured, in capacities.
    pub settle_capacities: f64,
    /// Overwritten while it is measured, in capacities.
    pub measured_capacities: f64,
    /// An end to the overwriting as a whole, whatever was reached.
    pub duration_max: Duration,
}

/// What was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SteadyFigures {
    /// Records on the device.
    pub records: u64,
    /// Live bytes as a share of the capacity that the device reports, after filling.
    pub live_share: f64,
    /// Overwrites before any record was relocated, if the first slice of them did without.
    pub before: Figures,
    /// Overwrites in the steady state.
    pub steady: Figures,
    /// Bytes overwritten in all, in capacities of the device.
    pub overwritten_capacities: f64,
    /// Bytes of pages programmed per byte of records accepted, in the steady state.
    pub write_amplification: f64,
    /// Bytes of pages programmed per byte of values, in the steady state.
    pub page_bytes_per_value_byte: f64,
    /// The p99.9 of puts in the steady state over that before.
    pub p999_ratio: f64,
    /// Over all blocks, at the end.
    pub erase_min: u64,
    /// Over all blocks, at the end.
    pub erase_max: u64,
    /// Over all blocks, at the end.
    pub erase_mean: f64,
}

impl SteadyFigures {
    /// How far apart the erase counts of blocks are, as a share of their mean: above 1 if there is a block that was never
    /// erased.
    pub fn erase_spread_of_mean(&self) -> f64 {
        (self.erase_max - self.erase_min) as f64 / self.erase_mean.max(f64::MIN_POSITIVE)
    }
}

/// Overwrites are done in slices of this long, between which the device's counters are looked at.
const SLICE: Duration = Duration::from_millis(500);

/// Makes a device at `path`, fills it, overwrites it; the file is left to the caller.
pub fn run(path: &Path, steady: &Steady, progress: &mut dyn FnMut(&str)) -> Result<SteadyFigures, Error> {
    let device = Device::create(path, &CreateOptions { force: true, ..CreateOptions::new(steady.capacity) })?;
    let namespace = micro::namespace(&device, "bench")?;
    let (records, live_share) = fill_to(&device, namespace, steady, progress)?;
    device.settle()?;
    device.reset_latencies();
    let mut overwriting = Overwriting::new(&device, namespace, steady, records);
    let before = overwriting.until_relocation()?;
    progress(&format!("before garbage collection: {:.0} puts/s", before.operations_per_s));
    let capacity = steady.capacity as f64;
    overwriting.until_overwritten(steady.settle_capacities * capacity)?;
    overwriting.take("settling");
    overwriting.until_overwritten((steady.settle_capacities + steady.measured_capacities) * capacity)?;
    let (figures, begun) = overwriting.take("steady state");
    let now = device.stats();
    let pages = (now.page_bytes - begun.page_bytes) as f64;
    let result = SteadyFigures {
        records,
        live_share,
        overwritten_capacities: overwriting.value_bytes() / capacity,
        write_amplification: pages / (now.record_bytes - begun.record_bytes).max(1) as f64,
        page_bytes_per_value_byte: pages / (now.host_bytes - begun.host_bytes).max(1) as f64,
        p999_ratio: figures.latency.p999_ns as f64 / before.latency.p999_ns.max(1) as f64,
        before,
        steady: figures,
        erase_min: now.erase_min.into(),
        erase_max: now.erase_max.into(),
        erase_mean: now.erase_mean,
    };
    device.close()?;
    Ok(result)
}

/// Fills until records take the share of the reported capacity; returns their number and the share.
fn fill_to(
    device: &Device,
    namespace: kaml::NamespaceId,
    steady: &Steady,
    progress: &mut dyn FnMut(&str),
) -> Result<(u64, f64), Error> {
    const PROBE: u64 = 1000;
    let before = device.stats().record_bytes;
    micro::fill(device, namespace, steady.value_bytes, PROBE)?;
    let record_bytes = (device.stats().record_bytes - before) as f64 / PROBE as f64;
    let wanted = || (steady.live_share * device.stats().capacity_bytes as f64 / record_bytes) as u64;
    progress(&format!("filling about {} records of {record_bytes:.0} B in flash", wanted()));
    // The capacity shrinks while the index grows: halfway to what it allows, and halfway again.
    let mut records = PROBE;
    while wanted() > records {
        let next = records + (wanted() - records).div_ceil(2);
        micro::fill_range(device, namespace, steady.value_bytes, records..next)?;
        records = next;
    }
    Ok((records, records as f64 * record_bytes / device.stats().capacity_bytes as f64))
}

/// Slices of overwriting, gathered into stages.
struct Overwriting<'a> {
    device: &'a Device,
    namespace: kaml::NamespaceId,
    steady: &'a Steady,
    records: u64,
    slice: u64,
    slice_duration: Duration,
    end: Instant,
    put_count: u64,
    stage: Vec<Figures>,
    stage_begun: Stats,
}

impl<'a> Overwriting<'a> {
    fn new(device: &'a Device, namespace: kaml::NamespaceId, steady: &'a Steady, records: u64) -> Overwriting<'a> {
        let end = Instant::now() + steady.duration_max;
        let stage_begun = device.stats();
        let (slice, put_count, stage) = (0, 0, Vec::new());
        let slice_duration = SLICE;
        Overwriting { device, namespace, steady, records, slice, slice_duration, end, put_count, stage, stage_begun }
    }

    fn value_bytes(&self) -> f64 {
        (self.put_count * self.steady.value_bytes as u64) as f64
    }

    /// Overwrites until a record was relocated, or time is up, and ends the stage. The slice in which it was belongs to the next
    /// stage; only if it was the first, there is nothing else.
    fn until_relocation(&mut self) -> Result<Figures, Error> {
        let mut before_slice = self.stage_begun.clone();
        loop {
            self.one_slice()?;
            let now = self.device.stats();
            let relocated = now.relocated_bytes > self.stage_begun.relocated_bytes;
            if relocated && self.stage.len() > 1 {
                let last = self.stage.split_off(self.stage.len() - 1);
                let stage = std::mem::replace(&mut self.stage, last);
                return Ok(self.end_stage("before garbage collection", &stage, before_slice).0);
            }
            if relocated || Instant::now() >= self.end {
                return Ok(self.take("before garbage collection, or as it began").0);
            }
            before_slice = now; // not looked at again: collection may begin between two slices
        }
    }

    fn until_overwritten(&mut self, bytes: f64) -> Result<(), Error> {
        while self.value_bytes() < bytes && Instant::now() < self.end || self.stage.is_empty() {
            self.one_slice()?;
        }
        Ok(())
    }

    fn one_slice(&mut self) -> Result<(), Error> {
        self.slice += 1;
        let steady = self.steady;
        let records = Records {
            value_bytes: steady.value_bytes,
            count: self.records,
            distribution: steady.distribution,
            seed: self.slice << 20,
        };
        let puts =
            Puts { records, batch_records: 1, in_flight: steady.threads, stop: Stop::after(self.slice_duration) };
        let figures = micro::puts(self.device, self.namespace, &puts)?;
        self.put_count += figures.operations;
        self.stage.push(figures);
        Ok(())
    }

    /// Ends a stage; returns its figures and the counters at its beginning.
    fn take(&mut self, what: &str) -> (Figures, Stats) {
        let stage = std::mem::take(&mut self.stage);
        self.end_stage(what, &stage, self.device.stats())
    }

    /// The same for slices that ended when the counters were these. Percentiles are the device's own over all of them.
    fn end_stage(&mut self, what: &str, stage: &[Figures], now: Stats) -> (Figures, Stats) {
        let sum = |field: fn(&Figures) -> f64| stage.iter().map(field).sum::<f64>();
        let (operations, seconds) = (sum(|f| f.operations as f64), sum(|f| f.seconds));
        let latency = Latency {
            p50_ns: now.put_latency.p50_ns,
            p90_ns: now.put_latency.p90_ns,
            p99_ns: now.put_latency.p99_ns,
            p999_ns: now.put_latency.p999_ns,
            max_ns: now.put_latency.max_ns,
        };
        let bytes = operations * self.steady.value_bytes as f64;
        let figures = Figures {
            what: format!("{what}: {} threads, {} B", self.steady.threads, self.steady.value_bytes),
            operations: operations as u64,
            records: operations as u64,
            bytes: bytes as u64,
            seconds,
            operations_per_s: operations / seconds,
            records_per_s: operations / seconds,
            megabytes_per_s: bytes / seconds / 1e6,
            latency,
            cpu_us_per_operation: stage
                .iter()
                .map(|f| f.cpu_us_per_operation.map(|us| us * f.operations as f64))
                .sum::<Option<f64>>()
                .map(|us| us / operations.max(1.0)),
            disk_write_bytes: stage.iter().map(|f| f.disk_write_bytes).sum(),
            disk_read_bytes: stage.iter().map(|f| f.disk_read_bytes).sum(),
        };
        self.device.reset_latencies();
        let begun = std::mem::replace(&mut self.stage_begun, now);
        (figures, begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   the figures for the time before garbage collection contain none of it.
    /// Method: overwrite a small device in short slices; the counters at the end of the stage.
    #[test]
    fn nothing_is_relocated_before() {
        let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
        let namespace = micro::namespace(&device, "bench").unwrap();
        let steady = Steady {
            capacity: 64 << 20,
            live_share: 0.6,
            value_bytes: 1024,
            distribution: Distribution::Uniform,
            threads: 2,
            settle_capacities: 0.0,
            measured_capacities: 0.0,
            duration_max: Duration::from_secs(60),
        };
        let (records, _) = fill_to(&device, namespace, &steady, &mut |_| ()).unwrap();
        device.settle().unwrap();
        device.reset_latencies();
        let mut overwriting = Overwriting::new(&device, namespace, &steady, records);
        overwriting.slice_duration = Duration::from_millis(1);
        let begun = overwriting.stage_begun.clone();
        let before = overwriting.until_relocation().unwrap();
        let ended = &overwriting.stage_begun;
        assert!(before.operations > 0 && overwriting.stage.len() == 1, "{before:?}");
        assert!(device.stats().relocated_bytes > begun.relocated_bytes);
        assert_eq!(ended.relocated_bytes, begun.relocated_bytes);
        assert_eq!(ended.put_count - begun.put_count, before.operations);
        assert_eq!(overwriting.put_count, before.operations + overwriting.stage[0].operations);
    }
}
