//! Everything at once on one device: what the driver's threads do to each other, as the system schedules them.
//!
//! `KAML_STRESS_SECONDS` sets how long it runs, else a few seconds.

#[allow(dead_code, reason = "the power does not fail, and there is space")]
mod everything;

use everything::{Disk, Owner, Scale, Spaces, Trouble, disturb, roll_back, take_snapshot};
use kaml::{CreateOptions, Device, OpenOptions, VersionOptions};
use kaml_testkit::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const THREADS: u64 = 3;
const SCALE: Scale = Scale {
    keys: 400,
    len_max: 12_000,
    large_len_max: 150_000,
    blocks: 8191,
    blocks_at_once: 200,
    kept_len_max: 1000,
    versions: VersionOptions {
        buffer_bytes: 0,
        segment_bytes: 0,
        rows: 0,
        fingerprint_bits: 0,
        bloom: None,
        merge_when_low: None,
    },
    in_flight: 32,
    trouble: Trouble::None,
};
/// Rounds, each on a device that is opened again.
const ROUNDS: u64 = 3;

/// Goal:   whatever threads do at the same time, each sees exactly what it stored, at once, later, and after opening again.
/// Method: threads with commands of every kind and an event loop, each on keys of its own in shared namespaces, compare every
///         answer with a model; two write and trim blocks, also of one unit; meanwhile indexes leave memory, logs change, namespaces come and
///         go, versions are merged, and everything is checked; after a round all versions are rolled back to its beginning; on a file so small that collection never rests.
#[test]
fn everything_at_once() {
    let seconds = std::env::var("KAML_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4.5);
    let round = Duration::from_secs_f64(seconds) / ROUNDS as u32;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.kaml");
    let mut device = Device::create(&path, &CreateOptions::new(64 << 20)).unwrap();
    let spaces = Spaces::create(&device, &SCALE);
    let mut owners: Vec<Owner> =
        (0..=THREADS).map(|thread| Owner::new(thread, Rng::new(thread * 7919 + 12345), spaces, SCALE)).collect();
    let mut disks = [0, 1].map(|half| Disk::new(Rng::new(99 + half), &SCALE, half));
    let (steps, disturbed) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut moved = 0;
    for number in 0..ROUNDS {
        let snapshot = take_snapshot(&device, spaces, &mut owners);
        let (stop, begin) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            let (device, stop, steps, disturbed) = (&device, &stop, &steps, &disturbed);
            let (queued, others) = owners.split_first_mut().expect("one more than there are threads");
            scope.spawn(move || Stop(stop).during(|| queued.queue_steps(device, || stop.load(Ordering::Relaxed))));
            for owner in others {
                scope.spawn(move || {
                    Stop(stop).during(|| {
                        while !stop.load(Ordering::Relaxed) {
                            owner.step(device);
                            steps.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                });
            }
            let [first, second] = &mut disks;
            scope.spawn(move || {
                Stop(stop).during(|| second.queue_steps(device, spaces.disk, || stop.load(Ordering::Relaxed)))
            });
            scope.spawn(move || {
                Stop(stop).during(|| match number % 2 {
                    0 => first.queue_steps(device, spaces.disk, || stop.load(Ordering::Relaxed)),
                    _ => {
                        while !stop.load(Ordering::Relaxed) {
                            first.step(device, spaces.disk);
                        }
                    }
                })
            });
            let mut rng = Rng::new(number + 777);
            Stop(stop).during(|| {
                while begin.elapsed() < round && !stop.load(Ordering::Relaxed) {
                    disturb(device, spaces, &mut rng, Trouble::None);
                    disturbed.fetch_add(1, Ordering::Relaxed);
                }
            });
            stop.store(true, Ordering::Relaxed);
        });
        owners.iter_mut().for_each(|owner| owner.compare_all(&device));
        if number % 2 == 1 {
            roll_back(&device, spaces, &mut owners, snapshot);
        }
        assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
        moved += device.stats().relocated_bytes;
        device.close().unwrap();
        device = Device::open(&path, &OpenOptions::default()).unwrap();
        owners.iter_mut().for_each(|owner| owner.compare_all(&device));
        disks.iter().for_each(|disk| disk.compare_all(&device, spaces.disk));
    }
    let (steps, disturbed) = (steps.into_inner(), disturbed.into_inner());
    println!("{steps} steps, {disturbed} disturbances, {moved} bytes moved by collection");
    assert!(steps > 100 && disturbed > 5, "{steps} steps, {disturbed} disturbances");
}

/// A panic ends the other threads too, so the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Stop<'_> {
    fn during(self, work: impl FnOnce()) {
        work();
        std::mem::forget(self);
    }
}

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
