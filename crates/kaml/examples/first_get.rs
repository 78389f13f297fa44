//! How long the first command after opening takes: `cargo run --release -p kaml --example first_get PATH KEYS [KIND] [ROUNDS]`
//!
//! Makes a device with so many keys of the kind (`u64`, `bytes`, `any`, `ordered`) if there is no file at PATH. Then opens it, times one
//! command, and closes it: a get, a get of an absent key, a put, and a listing of one key, which waits for the whole index. Each in turn, and the
//! medians of all rounds. If it can, it drops the page cache of the system before every other round.

use kaml::{Batch, CreateOptions, Device, Durability, KeyKind, NamespaceOptions, OpenOptions};
use std::time::{Duration, Instant};

const BATCH: u64 = 500;
const VALUE: &[u8] = &[7; 20];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "first_get PATH KEYS [KIND] [ROUNDS]";
    let (path, keys) = (arguments.first().ok_or(usage)?, arguments.get(1).ok_or(usage)?.parse::<u64>()?);
    let kind = match arguments.get(2).map_or("u64", String::as_str) {
        "u64" => KeyKind::U64,
        "bytes" => KeyKind::Bytes,
        "any" => KeyKind::Any,
        "ordered" => KeyKind::Ordered,
        _ => return Err(usage.into()),
    };
    let rounds = arguments.get(3).map_or(Ok(5), |rounds| rounds.parse())?;
    if !std::path::Path::new(path).exists() {
        fill(path, keys, kind)?;
    }
    for is_cold in [false, true] {
        let mut times = [const { Vec::new() }; 6];
        for round in 0..rounds {
            for (command, times) in times.iter_mut().take(4).enumerate() {
                if is_cold && !drop_caches() {
                    println!("the page cache cannot be dropped");
                    return Ok(());
                }
                let begin = Instant::now();
                let device = Device::open(path, &OpenOptions::default())?;
                let space = device.namespace("keys")?;
                let opened = begin.elapsed();
                let key = key_of(round * 7919 % keys);
                let begin = Instant::now();
                match command {
                    0 => assert_eq!(device.get(space, &key)?.as_deref(), Some(VALUE)),
                    1 => assert_eq!(device.get(space, &key_of(keys + round))?, None),
                    2 => device.put(space, &key, VALUE)?,
                    _ if kind == KeyKind::Ordered => drop(device.get(space, &key)?),
                    _ => drop(device.list(space, None, 1)?),
                }
                times.push((begin.elapsed(), opened));
                let begin = Instant::now();
                device.close()?;
                let times = times.last_mut().expect("just pushed");
                *times = (times.0, times.1 + begin.elapsed());
            }
        }
        let names = ["get", "get of an absent key", "put", "listing of one key"];
        let cache = if is_cold { "page cache dropped" } else { "page cache warm" };
        for (name, times) in names.iter().zip(&mut times) {
            times.sort_unstable();
            let (time, around) = times[times.len() / 2];
            println!("{cache}: first {name} {}, opening and closing {}", ms(time), ms(around));
        }
    }
    Ok(())
}

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

fn key_of(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

fn drop_caches() -> bool {
    let _ = std::process::Command::new("sync").status();
    std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

fn fill(path: &str, keys: u64, kind: KeyKind) -> Result<(), kaml::Error> {
    let options = CreateOptions { durability: Durability::Process, ..CreateOptions::new((keys * 250).max(256 << 20)) };
    let device = Device::create(path, &options)?;
    let space = device.create_namespace("keys", &NamespaceOptions::records(kind))?;
    let begin = Instant::now();
    let mut batch = Batch::new();
    for i in 0..keys {
        batch.put(space, &key_of(i), VALUE);
        if batch.len() as u64 == BATCH || i + 1 == keys {
            device.write(&batch)?;
            batch.clear();
        }
    }
    println!("{keys} keys stored in {:.0?}", begin.elapsed());
    device.close()
}
