//! Latency of Gets and Puts of a versioned namespace before and while it is merged, on one file.
//!
//! `cargo run --release -p kaml --example merge_latency -- PATH [KEYS] [THREADS]`; the file is overwritten. Every key is put
//! once, then half of the keys again and again until half of all versions are dead; the merge drops these.

use kaml::{CreateOptions, Device, KeyKind, NamespaceId, NamespaceOptions, Retention, VersionOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a value.
const VALUE_BYTES: usize = 976;
/// Threads that fill the device.
const FILLERS: u64 = 16;

/// Latencies in nanoseconds.
#[derive(Default)]
struct Latencies {
    gets: Vec<u64>,
    puts: Vec<u64>,
}

/// Gets, and one Put for four of them, until requested to stop.
fn load(
    device: &Device,
    space: NamespaceId,
    (keys, thread): (u64, u64),
    stop: &AtomicBool,
) -> Result<Latencies, kaml::Error> {
    let mut found = Latencies::default();
    let mut draw = thread;
    for turn in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(2 * thread + 1);
        let key = (draw >> 33) % keys;
        let began = Instant::now();
        if turn % 5 == 4 {
            device.put(space, key, &[9; VALUE_BYTES])?;
            found.puts.push(began.elapsed().as_nanos() as u64);
        } else {
            device.get(space, key)?;
            found.gets.push(began.elapsed().as_nanos() as u64);
        }
    }
    Ok(found)
}

/// The load during `work`.
fn beside<T>(
    device: &Device,
    space: NamespaceId,
    (keys, threads): (u64, u64),
    work: impl FnOnce() -> Result<T, kaml::Error>,
) -> Result<(Latencies, T), kaml::Error> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let run = |thread| scope.spawn(move || load(device, space, (keys, thread), stop));
        let running: Vec<_> = (0..threads).map(run).collect();
        let done = work();
        stop.store(true, Ordering::Relaxed);
        let mut all = Latencies::default();
        for thread in running {
            let found = thread.join().expect("loads do not panic")?;
            all.gets.extend(found.gets);
            all.puts.extend(found.puts);
        }
        Ok((all, done?))
    })
}

fn print(when: &str, what: &str, mut ns: Vec<u64>) {
    ns.sort_unstable();
    let at = |share: f64| ns.get((ns.len() as f64 * share) as usize).map_or(0.0, |ns| *ns as f64 / 1e3);
    println!("{when:7} {what}: {:7} done, median {:.0} us, 99 % {:.0} us", ns.len(), at(0.5), at(0.99));
}

fn fill(device: &Device, space: NamespaceId, keys: u64) -> Result<(), kaml::Error> {
    std::thread::scope(|scope| {
        let put = move |thread: u64| -> Result<(), kaml::Error> {
            for put in (thread..2 * keys).step_by(FILLERS as usize) {
                let key = if put < keys { put } else { (put - keys) % (keys / 2) * 2 };
                device.put(space, key, &[7; VALUE_BYTES])?;
            }
            Ok(())
        };
        let running: Vec<_> = (0..FILLERS).map(|thread| scope.spawn(move || put(thread))).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("puts do not panic"))
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which file?")?;
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (keys, threads) = (number(100_000)?.max(2), number(4)?);
    let device = Device::create(&path, &CreateOptions::new(4 * 2048 * keys + (1 << 30)))?;
    let options = NamespaceOptions::versions(KeyKind::U64, VersionOptions::default());
    let space = device.create_namespace("versions", &options)?;
    fill(&device, space, keys)?;
    device.settle()?;
    let alone = || {
        std::thread::sleep(Duration::from_secs(12));
        Ok(())
    };
    let (before, ()) = beside(&device, space, (keys, threads), alone)?;
    let rules = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: true, keep_internal: false };
    let began = Instant::now();
    let (during, report) =
        beside(&device, space, (keys, threads), || device.merge(space, &rules, &mut kaml::to_the_end))?;
    println!("merge: {report:?} in {:.2} s", began.elapsed().as_secs_f64());
    for (when, latencies) in [("before", before), ("merging", during)] {
        print(when, "Gets", latencies.gets);
        print(when, "Puts", latencies.puts);
    }
    device.close()?;
    Ok(std::fs::remove_file(path)?)
}
