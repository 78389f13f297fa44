//! What an open snapshot and a full scan through it cost Puts.
//!
//! Lives here:       rounds of Puts with and without a scan, in turn.
//! Lives elsewhere:  the records (`micro`), the figures (`figures`).

use crate::Error;
use crate::figures::{self, Figures};
use crate::keys::Rng;
use crate::micro;
use hdrhistogram::Histogram;
use kaml::{CreateOptions, Device, KeyKind, NamespaceId, NamespaceOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Records of the namespace, which is ordered.
    pub records: u64,
    /// Bytes of each.
    pub value_bytes: usize,
    /// Threads that put.
    pub threads: usize,
    /// Rounds of each side, one after the other.
    pub rounds: u32,
    /// Time of a round.
    pub duration: Duration,
}

/// The two sides.
const SIDES: [&str; 2] = ["puts alone", "puts while a snapshot is scanned"];

/// Loads a device at `path`, overwrites random records of it with and without scans in turn; the figures of both sides, and of the scans.
/// The file is left to the caller.
pub fn run(path: &Path, settings: &Settings) -> Result<Vec<Figures>, Error> {
    if settings.records == 0 || settings.threads == 0 || settings.rounds == 0 {
        return Err(Error::Parameters("records, threads and rounds must be at least 1".into()));
    }
    let bytes = settings.records * (settings.value_bytes as u64 + 128);
    let device =
        Device::create(path, &CreateOptions { force: true, ..CreateOptions::new((3 * bytes).max(256 << 20)) })?;
    let namespace = device.create_namespace("bench", &NamespaceOptions::records(KeyKind::Ordered))?;
    micro::fill(&device, namespace, settings.value_bytes, settings.records)?;
    device.settle()?;
    let mut sides = [(); 2].map(|()| (figures::histogram(), 0.0));
    let mut scans = (figures::histogram(), 0.0);
    for round in 0..settings.rounds {
        for (side, (latencies, seconds)) in sides.iter_mut().enumerate() {
            let begun = Instant::now();
            let seed = u64::from(round) * 2 + side as u64;
            let scanned = (side == 1).then_some(&mut scans.0);
            let found = self::round(&device, namespace, settings, seed, scanned)?;
            let taken = begun.elapsed().as_secs_f64();
            found.iter().for_each(|of| latencies.add(of).expect("histograms have one range"));
            *seconds += taken;
            scans.1 += if side == 1 { taken } else { 0.0 };
        }
    }
    let scanned = scans.0.len() * settings.records;
    let figures_of = |what: &str, records: u64, (latencies, seconds): &(Histogram<u64>, f64)| {
        let bytes = records * settings.value_bytes as u64;
        Figures {
            what: what.into(),
            operations: latencies.len(),
            records,
            bytes,
            seconds: *seconds,
            operations_per_s: latencies.len() as f64 / seconds,
            records_per_s: records as f64 / seconds,
            megabytes_per_s: bytes as f64 / seconds / 1e6,
            latency: latencies.into(),
            cpu_us_per_operation: None,
            disk_write_bytes: None,
            disk_read_bytes: None,
        }
    };
    let puts = SIDES.iter().zip(&sides).map(|(what, side)| figures_of(what, side.0.len(), side));
    Ok(puts.chain([figures_of("full scans", scanned, &scans)]).collect())
}

/// Overwrites records at random for a while; with `scans`, one snapshot after the other is scanned meanwhile, at least one to its end.
fn round(
    device: &Device,
    namespace: NamespaceId,
    settings: &Settings,
    seed: u64,
    scans: Option<&mut Histogram<u64>>,
) -> Result<Vec<Histogram<u64>>, Error> {
    let (end, is_scanned) = (Instant::now() + settings.duration, AtomicBool::new(scans.is_none()));
    let put = |thread: usize| -> Result<Histogram<u64>, Error> {
        let mut latencies = figures::histogram();
        let mut rng = Rng::new(seed << 8 | thread as u64);
        let mut value = vec![0; settings.value_bytes];
        while Instant::now() < end || !is_scanned.load(Ordering::Relaxed) {
            value.iter_mut().zip(rng.next_u64().to_le_bytes()).for_each(|(byte, drawn)| *byte = drawn);
            let begun = Instant::now();
            device.put(namespace, rng.below(settings.records), &value)?;
            figures::record(&mut latencies, begun.elapsed());
        }
        Ok(latencies)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..settings.threads)
            .map(|thread| {
                scope.spawn({
                    let put = &put;
                    move || put(thread)
                })
            })
            .collect();
        let scanned = scans.map_or(Ok(()), |scans| scan_until(device, namespace, settings.records, end, scans));
        is_scanned.store(true, Ordering::Relaxed); // also after an error, so the threads end
        let joined = threads.into_iter().map(|thread| thread.join().expect("a thread that puts does not panic"));
        let found = joined.collect::<Result<Vec<_>, Error>>();
        scanned.and(found)
    })
}

/// Scans snapshots, each of which must show every record in order.
fn scan_until(
    device: &Device,
    namespace: NamespaceId,
    records: u64,
    end: Instant,
    scans: &mut Histogram<u64>,
) -> Result<(), Error> {
    loop {
        let begun = Instant::now();
        let snapshot = device.open_snapshot()?;
        let mut count = 0;
        for entry in snapshot.iter(namespace) {
            let (key, _) = entry?;
            if key.as_u64() != Some(count) {
                return Err(Error::Wrong(format!("a snapshot shows {key} as record {count}")));
            }
            count += 1;
        }
        if count != records {
            return Err(Error::Wrong(format!("a snapshot shows {count} of {records} records")));
        }
        figures::record(scans, begun.elapsed());
        if Instant::now() >= end {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   both sides put and the scans show every record.
    /// Method: two short rounds on a small device.
    #[test]
    fn both_sides_run() {
        let folder = tempfile::tempdir().unwrap();
        let duration = Duration::from_millis(100);
        let settings = Settings { records: 500, value_bytes: 100, threads: 2, rounds: 2, duration };
        let figures = run(&folder.path().join("device"), &settings).unwrap();
        assert_eq!(figures.len(), 3);
        assert!(figures.iter().all(|side| side.operations >= 2), "{figures:?}");
    }
}
