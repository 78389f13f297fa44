//! What a namespace costs whose index is on flash: `cargo run --release -p kaml --example more_keys_than_memory PATH KEYS [GIB] [memory]`
//!
//! Makes a device of GIB GiB at PATH (an existing file is overwritten, 8 GiB by default) and a namespace with its index on flash, or in memory for
//! comparison. Puts so many keys in random order with values of 100 bytes, puts half of them again, deletes a tenth, and reads. Prints
//! rates, reads of flash for each get, write amplification, space, memory of the index, and resident memory of the process. Puts are
//! durable against the end of the process, 500 in a batch.

use kaml::{
    Batch, CreateOptions, Device, Durability, Error, IndexPlace, KeyKind, NamespaceId, NamespaceOptions, OpenOptions,
};
use std::time::{Duration, Instant};

const BATCH: u64 = 500;
const VALUE_BYTES: usize = 100;
/// Gets of each kind.
const GETS: u64 = 200_000;

/// A bijection of 64-bit numbers: key number i.
fn key_of(i: u64) -> u64 {
    let mixed = (i ^ (i >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d)
}

fn value_of(i: u64, round: u8) -> [u8; VALUE_BYTES] {
    let mut value = [round; VALUE_BYTES];
    value[..8].copy_from_slice(&i.to_le_bytes());
    value
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

struct Run {
    device: Device,
    space: NamespaceId,
    flash_bytes: u64,
}

impl Run {
    fn show(&self, what: &str, count: u64, took: Duration) {
        let stats = self.device.stats();
        println!(
            "{what}: {:.0} K/s; write amplification {:.2}, live {} MiB of {}, index {:.1} MiB, resident {} MiB, {} records",
            count as f64 / took.as_secs_f64() / 1e3,
            stats.page_bytes as f64 / stats.host_bytes.max(1) as f64,
            stats.live_bytes >> 20,
            self.flash_bytes >> 20,
            stats.index_bytes as f64 / f64::from(1 << 20),
            resident(),
            self.device.namespace_with_id(self.space).info().map_or(0, |info| info.record_count),
        );
    }

    fn change(&self, what: &str, keys: impl Iterator<Item = u64>, round: Option<u8>) -> Result<(), Error> {
        let (begin, mut count, mut batch) = (Instant::now(), 0, Batch::new());
        let mut shown = begin;
        for i in keys {
            match round {
                Some(round) => batch.put(self.space, key_of(i), &value_of(i, round)),
                None => batch.delete(self.space, key_of(i)),
            };
            count += 1;
            if count % BATCH == 0 {
                self.device.write(&batch)?;
                batch.clear();
                if shown.elapsed() > Duration::from_secs(20) {
                    self.show(&format!("  {what}, {count} so far"), count, begin.elapsed());
                    shown = Instant::now();
                }
            }
        }
        if !batch.is_empty() {
            self.device.write(&batch)?;
        }
        self.show(what, count, begin.elapsed());
        Ok(())
    }

    fn get(&self, what: &str, keys: impl Iterator<Item = u64>, round: Option<u8>) -> Result<(), Error> {
        let (before, begin, mut count) = (self.device.stats(), Instant::now(), 0);
        for i in keys {
            let got = self.device.get(self.space, key_of(i))?;
            assert_eq!(got.as_deref(), round.map(|round| value_of(i, round)).as_ref().map(|v| &v[..]), "key {i}");
            count += 1;
        }
        let reads = self.device.stats().read_count - before.read_count;
        let rate = count as f64 / begin.elapsed().as_secs_f64() / 1e3;
        println!("{what}: {:.4} reads each, {rate:.0} K/s", reads as f64 / count.max(1) as f64);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "more_keys_than_memory PATH KEYS [GIB] [memory]";
    let (path, keys) = (arguments.first().ok_or(usage)?, arguments.get(1).ok_or(usage)?.parse::<u64>()?);
    let gib = arguments.get(2).map_or(Ok(8), |text| text.parse::<u64>())?;
    let place = if arguments.iter().any(|text| text == "memory") { IndexPlace::Memory } else { IndexPlace::Flash };
    let options = CreateOptions { durability: Durability::Process, force: true, ..CreateOptions::new(gib << 30) };
    println!("resident before: {} MiB", resident());
    let device = Device::create(path, &options)?;
    let flash_bytes = device.info().flash_bytes;
    let space = device.create_namespace("keys", &NamespaceOptions::records(KeyKind::U64).with_index(place))?;
    let run = Run { device, space, flash_bytes };
    run.change("load", 0..keys, Some(0))?;
    let step = (keys / GETS).max(1) as usize;
    run.get("get", (0..keys).step_by(step), Some(0))?;
    run.get("get of absent keys", keys..keys + GETS, None)?;
    // Every second key again, twice over: what is replaced must go by itself.
    run.change("overwrite", (0..keys).step_by(2), Some(1))?;
    run.change("overwrite again", (0..keys).step_by(2), Some(2))?;
    run.change("delete", (0..keys).step_by(10), None)?;
    run.get("get of overwritten keys", (2..keys).step_by(10).step_by(step), Some(2))?;
    run.get("get of old keys", (1..keys).step_by(2).step_by(step), Some(0))?;
    run.get("get of deleted keys", (0..keys).step_by(10).step_by(step), None)?;
    let Run { device, .. } = run;
    let begin = Instant::now();
    device.close()?;
    println!("closed in {:.2} s", begin.elapsed().as_secs_f64());
    let begin = Instant::now();
    let device = Device::open(path, &OpenOptions::default())?;
    device.get(space, key_of(1))?;
    println!("opened, with the first get, in {:.2} s; resident {} MiB", begin.elapsed().as_secs_f64(), resident());
    Ok(device.close()?)
}
