//! What compression saves and costs: rounds of puts and gets of JSON and of random bytes, under each method in turn.
//!
//! Lives here:       values that resemble documents, the rounds, space and medians.
//! Lives elsewhere:  flags and the table (`kaml-bench`).

use crate::Error;
use crate::keys::Rng;
use kaml::{Compression, CreateOptions, Device, KeyKind, NamespaceId, NamespaceOptions};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Records of each namespace.
    pub records: u64,
    /// Bytes of each.
    pub value_bytes: usize,
    /// Threads that put or get.
    pub threads: usize,
    /// Rounds of each side, one after the other.
    pub rounds: u32,
    /// Time of the puts of a round, and of its gets.
    pub duration: Duration,
}

/// A kind of values under one method.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `json` or `random`.
    pub values: &'static str,
    /// The method.
    pub method: String,
    /// Live bytes of flash for each of them without compression.
    pub space: f64,
    /// Bytes of values stored for each given one.
    pub stored: f64,
    /// Durable puts a second, and for each of those without compression: medians over the rounds.
    pub puts_per_s: f64,
    /// See `puts_per_s`.
    pub puts_ratio: f64,
    /// Gets a second from flash, and for each of those without compression: medians over the rounds.
    pub gets_per_s: f64,
    /// See `gets_per_s`.
    pub gets_ratio: f64,
}

/// The values, in the order of the rows.
const KINDS: [&str; 2] = ["json", "random"];

/// Writes a document of so many bytes: an order with its items, with names of fields and of things that repeat, and numbers that do not.
pub fn json(rng: &mut Rng, bytes: usize, into: &mut Vec<u8>) {
    const NAMES: [&str; 8] = ["ada", "grace", "barbara", "edsger", "donald", "margaret", "alan", "katherine"];
    const CITIES: [&str; 6] = ["Berlin", "Lisbon", "Nairobi", "Osaka", "Lima", "Quito"];
    let mut pick = |count: u64| rng.below(count);
    let mut text = format!(
        "{{\"id\":{},\"customer\":{{\"name\":\"{}\",\"city\":\"{}\",\"email\":\"{}{}@example.com\"}},\"items\":[",
        pick(u64::from(u32::MAX)),
        NAMES[pick(8) as usize],
        CITIES[pick(6) as usize],
        NAMES[pick(8) as usize],
        pick(1000)
    );
    while text.len() < bytes {
        let (sku, quantity, whole, cents) = (pick(1 << 32), pick(10) + 1, pick(500), pick(100));
        let is_in_stock = pick(2) == 0;
        write!(
            text,
            "{{\"sku\":\"{sku:08x}\",\"quantity\":{quantity},\"price\":{whole}.{cents:02},\"discount\":null,\"in_stock\":{is_in_stock}}},"
        )
        .expect("a string takes all that is written");
    }
    into.clear();
    into.extend_from_slice(&text.as_bytes()[..bytes]);
}

fn fill(kind: usize, rng: &mut Rng, bytes: usize, into: &mut Vec<u8>) {
    match KINDS[kind] {
        "json" => json(rng, bytes, into),
        _ => {
            into.clear();
            while into.len() < bytes {
                into.extend_from_slice(&rng.next_u64().to_le_bytes());
            }
            into.truncate(bytes);
        }
    }
}

struct Side {
    kind: usize,
    method: Compression,
    namespace: NamespaceId,
    live_bytes: u64,
    puts: Vec<f64>,
    gets: Vec<f64>,
}

/// Loads a device at `path` with a namespace for each kind of values and each method, then puts and gets random records of each in turn. The file is left
/// to the caller.
pub fn run(path: &Path, settings: &Settings) -> Result<Vec<Row>, Error> {
    if settings.records == 0 || settings.threads == 0 || settings.rounds == 0 {
        return Err(Error::Parameters("records, threads and rounds must be at least 1".into()));
    }
    let count = (KINDS.len() * Compression::ALL.len()) as u64;
    let bytes = count * settings.records * (settings.value_bytes as u64 + 128);
    let device =
        Device::create(path, &CreateOptions { force: true, ..CreateOptions::new((2 * bytes).max(256 << 20)) })?;
    let mut sides = Vec::new();
    for (kind, name) in KINDS.iter().enumerate() {
        for method in Compression::ALL {
            let options = NamespaceOptions::records(KeyKind::U64).with_compression(method);
            let namespace = device.create_namespace(&format!("{name} {method}"), &options)?;
            let before = device.stats().live_bytes;
            load(&device, namespace, kind, settings)?;
            device.settle()?;
            let live_bytes = device.stats().live_bytes - before;
            sides.push(Side { kind, method, namespace, live_bytes, puts: Vec::new(), gets: Vec::new() });
        }
    }
    for round in 0..settings.rounds {
        for (number, side) in sides.iter_mut().enumerate() {
            let seed = u64::from(round) << 16 | number as u64;
            side.puts.push(self::round(&device, side, settings, seed, true)?);
        }
        device.settle()?;
        for (number, side) in sides.iter_mut().enumerate() {
            let seed = u64::from(round) << 16 | number as u64;
            side.gets.push(self::round(&device, side, settings, seed, false)?);
        }
    }
    let infos = device.namespaces();
    let row = |side: &Side| {
        let plain = sides.iter().find(|plain| plain.kind == side.kind && plain.method == Compression::None);
        let plain = plain.unwrap_or(side);
        let compressed = infos.iter().find(|info| info.id == side.namespace).map(|info| info.compressed);
        Row {
            values: KINDS[side.kind],
            method: side.method.to_string(),
            space: side.live_bytes as f64 / plain.live_bytes as f64,
            stored: compressed.unwrap_or_default().ratio(),
            puts_per_s: median(side.puts.iter().copied()),
            puts_ratio: median(side.puts.iter().zip(&plain.puts).map(|(side, plain)| side / plain)),
            gets_per_s: median(side.gets.iter().copied()),
            gets_ratio: median(side.gets.iter().zip(&plain.gets).map(|(side, plain)| side / plain)),
        }
    };
    Ok(sides.iter().map(row).collect())
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn load(device: &Device, namespace: NamespaceId, kind: usize, settings: &Settings) -> Result<(), Error> {
    let (mut rng, mut value) = (Rng::new(7), Vec::new());
    let mut batch = kaml::Batch::new();
    for key in 0..settings.records {
        fill(kind, &mut rng, settings.value_bytes, &mut value);
        batch.put(namespace, key, &value);
        if batch.len() == 64 || key + 1 == settings.records {
            device.write(&batch)?;
            batch.clear();
        }
    }
    Ok(())
}

/// Puts or gets random records for a while; how many a second. Values are made before, and each thread puts its own in turn.
fn round(device: &Device, side: &Side, settings: &Settings, seed: u64, is_put: bool) -> Result<f64, Error> {
    const VALUES: usize = 256;
    let begun = Instant::now();
    let run = |thread: usize| -> Result<u64, Error> {
        let mut rng = Rng::new(seed << 8 | thread as u64);
        let mut value = Vec::new();
        let values: Vec<Vec<u8>> = (0..if is_put { VALUES } else { 0 })
            .map(|_| {
                fill(side.kind, &mut rng, settings.value_bytes, &mut value);
                value.clone()
            })
            .collect();
        let end = begun + settings.duration;
        let mut count = 0;
        while Instant::now() < end {
            let key = rng.below(settings.records);
            if is_put {
                device.put(side.namespace, key, &values[count as usize % VALUES])?;
            } else if !device.get_into(side.namespace, key, &mut value)? || value.len() != settings.value_bytes {
                return Err(Error::Wrong(format!("record {key} has {} bytes", value.len())));
            }
            count += 1;
        }
        Ok(count)
    };
    let counts = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..settings.threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().expect("a thread that measures does not panic"));
        joined.collect::<Result<Vec<u64>, Error>>()
    })?;
    Ok(counts.iter().sum::<u64>() as f64 / begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   all sides run; compressed JSON takes less space, random bytes take as much as without compression.
    /// Method: one short round on a small device.
    #[test]
    fn all_sides_run() {
        let folder = tempfile::tempdir().unwrap();
        let duration = Duration::from_millis(20);
        let settings = Settings { records: 400, value_bytes: 1024, threads: 2, rounds: 1, duration };
        let rows = run(&folder.path().join("device"), &settings).unwrap();
        assert_eq!(rows.len(), 6);
        for row in &rows {
            let is_smaller = row.values == "json" && row.method != "none";
            assert_eq!(row.space < 0.6, is_smaller, "{row:?}");
            assert!((row.space - 1.0).abs() < 0.01 || is_smaller, "{row:?}");
            assert!(row.puts_per_s > 0.0 && row.gets_ratio > 0.0, "{row:?}");
        }
    }
}
