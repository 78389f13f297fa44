//! Durable puts per second into a namespace of records and into one that keeps versions, in turns, on one file.
//!
//! `cargo run --release -p kaml --example versioned_puts -- PATH [THREADS] [SECONDS] [REPEATS]`; the file is overwritten.

use kaml::{CreateOptions, Device, KeyKind, NamespaceId, NamespaceOptions, VersionOptions};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a value.
const VALUE_BYTES: usize = 512;
/// Keys that are overwritten.
const KEYS: u64 = 100_000;

fn puts_per_second(device: &Device, space: NamespaceId, threads: u64, time: Duration) -> Result<f64, kaml::Error> {
    let (count, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let put = |thread: u64| -> Result<(), kaml::Error> {
        let mut key = thread;
        while !stop.load(Ordering::Relaxed) {
            key = key.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(2 * thread + 1);
            device.put(space, (key >> 33) % KEYS, &[7; VALUE_BYTES])?;
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        let put = &put;
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || put(thread))).collect();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        running.into_iter().try_for_each(|thread| thread.join().expect("puts do not panic"))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(count.into_inner() as f64 / seconds)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which file?")?;
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (threads, seconds, repeats) = (number(8)?, number(1)?, number(3)?);
    let device = Device::create(&path, &CreateOptions::new(4 << 30))?;
    let keys = NamespaceOptions::records(KeyKind::U64);
    let records = device.create_namespace("records", &keys)?;
    let versions = NamespaceOptions::versions(KeyKind::U64, VersionOptions::default());
    let versions = device.create_namespace("versions", &versions)?;
    for _ in 0..repeats {
        let time = Duration::from_secs(seconds);
        let plain = puts_per_second(&device, records, threads, time)?;
        let kept = puts_per_second(&device, versions, threads, time)?;
        println!("records {plain:.0}/s, versions {kept:.0}/s: {:.3}", kept / plain);
    }
    device.close()?;
    Ok(std::fs::remove_file(path)?)
}
