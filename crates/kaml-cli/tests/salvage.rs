//! Salvage into devices that are too small, and salvage that ends early.
//!
//! Lives here:       sizes, lists of what is missing, interrupted salvage.
//! Lives elsewhere:  damaged devices (`life`).

mod world;

use kaml::{Batch, BlockOptions, CreateOptions, Device, Durability, NamespaceOptions, OpenOptions, VersionOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use world::World;

fn create(path: &Path, capacity: u64) -> Device {
    let options = CreateOptions { durability: Durability::Process, ..CreateOptions::new(capacity) };
    Device::create(path, &options).unwrap()
}

/// Puts values of `bytes` until the device is full; returns how many.
fn fill(device: &Device, namespace: u32, bytes: usize) -> u64 {
    let value = vec![b'x'; bytes];
    let mut count = 0;
    for step in [100, 1] {
        loop {
            let mut batch = Batch::new();
            for key in count..count + step {
                batch.put(namespace, key, &value);
            }
            if device.write(&batch).is_err() {
                break;
            }
            count += step;
        }
    }
    count
}

fn names(world: &World) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(world.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Goal:   a full device goes into a new one completely, whatever it is full of.
/// Method: fill devices with short values, long ones, and versions; salvage; compare counts and look at the first and last record.
#[test]
fn full_devices_are_salvaged_completely() {
    for (bytes, is_versioned) in [(100, false), (4000, false), (900, true)] {
        let world = World::empty();
        let device = create(&world.path("data.kaml"), 64 << 20);
        let options = match is_versioned {
            true => VersionOptions::default().into(),
            false => NamespaceOptions::default(),
        };
        let namespace = device.create_namespace("n", &options).unwrap();
        let count = fill(&device, namespace, bytes);
        device.close().unwrap();
        let report = world.json(&["salvage", "data.kaml", "--into", "new.kaml", "--durability", "process", "--json"]);
        assert_eq!(report["namespaces"][0]["records"], count, "{bytes} {report}");
        assert_eq!(report["missing"], Value::Array(Vec::new()));
        assert_eq!(names(&world), ["data.kaml", "new.kaml"]);
        let new = Device::open(world.path("new.kaml"), &OpenOptions::default()).unwrap();
        let namespace = new.namespaces()[0].id;
        for key in [0, count - 1] {
            assert_eq!(new.get(namespace, key).unwrap(), Some(vec![b'x'; bytes]));
        }
        assert_eq!(new.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    }
}

/// Goal:   a new device of a size that was requested takes what fits; other records are listed with their keys.
/// Method: records and blocks of a device twice as large; compare the list with what the new device has; the same in lines.
#[test]
fn what_does_not_fit_is_listed() {
    let world = World::empty();
    let device = create(&world.path("data.kaml"), 128 << 20);
    let records = device.create_namespace("records", &NamespaceOptions::default()).unwrap();
    let blocks = BlockOptions { block_bytes: 4096, block_count: 5000, ..BlockOptions::default() };
    let blocks = device.create_namespace("blocks", &blocks.into()).unwrap();
    (0..15_000u64).for_each(|key| device.put(records, key, &[3; 3000]).unwrap());
    (0..5000u64).for_each(|block| device.block_write(blocks, block, &[4; 4096]).unwrap());
    device.close().unwrap();
    let arguments = ["salvage", "data.kaml", "--into", "new.kaml", "--capacity", "64MiB", "--durability", "process"];
    let output = world.run(&[&arguments[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let missing = report["missing"].as_array().unwrap();
    let new = Device::open(world.path("new.kaml"), &OpenOptions::default()).unwrap();
    let of = |field: &str| -> BTreeSet<u64> { missing.iter().filter_map(|missing| missing[field].as_u64()).collect() };
    let keys = of("key_u64");
    let blocks_missing = of("block");
    assert!(!keys.is_empty() || !blocks_missing.is_empty());
    assert_eq!(keys.len() + blocks_missing.len(), missing.len());
    let [records, blocks] =
        ["records", "blocks"].map(|name| new.namespaces().into_iter().find(|info| info.name == name).unwrap().id);
    for key in 0..15_000u64 {
        assert_eq!(new.get(records, key).unwrap().is_none(), keys.contains(&key), "key {key}");
    }
    for block in 0..5000u64 {
        let mut bytes = [0; 4096];
        new.block_read(blocks, block, &mut bytes).unwrap();
        assert_eq!(bytes == [0; 4096], blocks_missing.contains(&block), "block {block}");
    }
    for space in report["namespaces"].as_array().unwrap() {
        let all = if space["name"] == "records" { 15_000 } else { 5000 };
        assert_eq!(space["records"].as_u64().unwrap() + space["refused"].as_u64().unwrap(), all, "{space}");
    }
    new.close().unwrap();
    let output = world.run(&[&arguments[..], &["--force"]].concat());
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let listed = lines.lines().filter(|line| line.contains("the device is full")).count();
    assert_eq!(listed, missing.len().min(1000), "{lines}");
    assert!(lines.contains(&format!("and {} more are missing", missing.len() - 1000)), "{lines}");
}

/// Begins a salvage, and waits until it has made a file of its own, beside those that a killed one left.
fn begin(world: &World, more: &[&str]) -> Child {
    let before = names(world);
    let arguments = [&["salvage", "data.kaml", "--into", "new.kaml"], more].concat();
    let child = world.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while !names(world).iter().any(|name| name.starts_with(".kaml-") && !before.contains(name)) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", names(world));
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

/// Goal:   salvage that ends early leaves no device, and leaves what existed before.
/// Method: end it by Ctrl-C and kill it, where nothing was and over a file; then let it run: it removes what the killed one left.
#[test]
fn interrupted_salvage_leaves_nothing() {
    let world = World::empty();
    let device = create(&world.path("data.kaml"), 64 << 20);
    let namespace = device.create_namespace("n", &NamespaceOptions::default()).unwrap();
    (0..20_000u64).for_each(|key| device.put(namespace, key, &[5; 500]).unwrap());
    device.close().unwrap();
    for signal in [Signal::INT, Signal::KILL] {
        let child = begin(&world, &[]);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        assert!(!world.path("new.kaml").exists(), "{signal:?}");
        if signal == Signal::INT {
            assert_eq!((output.status.code(), names(&world)), (Some(130), vec!["data.kaml".to_owned()]));
        }
    }
    fs::write(world.path("new.kaml"), "some other file").unwrap();
    let child = begin(&world, &["--force"]);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert_eq!(fs::read(world.path("new.kaml")).unwrap(), b"some other file");
    world.ok(&["salvage", "data.kaml", "--into", "new.kaml", "--force"]);
    assert_eq!(names(&world), ["data.kaml", "new.kaml"]);
    assert_eq!(world.ok(&["list", "new.kaml", "n"]).lines().count(), 20_000);
}

/// Goal:   a device that is in use is not replaced.
/// Method: salvage over a device that is open, by force.
#[test]
fn devices_in_use_are_not_replaced() {
    let world = World::new();
    let open = create(&world.path("new.kaml"), 64 << 20);
    let refused = world.fails(1, &["salvage", "data.kaml", "--into", "new.kaml", "--force"]);
    assert!(refused.contains("new.kaml") && refused.contains("another process"), "{refused}");
    open.close().unwrap();
}
