//! Values of versioned namespaces that are longer than a segment.

use kaml::{
    At, Batch, Condition, CreateOptions, Device, Difference, Error, Key, NamespaceId, OpenOptions, RestoreSource,
    Retention, VersionKind, VersionOptions, to_the_end,
};
use kaml_testkit::bytes;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

const NEWEST: Retention = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: false, keep_internal: false };
const LONG: usize = 1_500_000;

fn options() -> CreateOptions {
    CreateOptions { block_bytes: Some(4 << 20), durability: kaml::Durability::Process, ..CreateOptions::new(256 << 20) }
}

fn space(device: &Device) -> NamespaceId {
    let versions = VersionOptions { buffer_bytes: 1 << 20, ..VersionOptions::default() };
    device.create_namespace("past", &versions.into()).unwrap()
}

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

fn no_problems(device: &Device) {
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

/// Goal:   values up to the longest of the device are versions like others: read as they were, undone, rolled back, listed, compared.
/// Method: the life of two records with values of a segment and a half, and one as long as can be.
#[test]
fn large_values_have_a_past() {
    let device = Device::in_memory(&options()).unwrap();
    let past = space(&device);
    let max = device.info().value_bytes_max as usize;
    assert!(max > LONG);
    let value = |at| device.get_version(past, key("a"), at).unwrap().map(|record| record.value);
    device.put(past, key("a"), &bytes(1, LONG)).unwrap();
    assert_eq!(device.snapshot(past).unwrap(), 1);
    device.put(past, key("a"), &bytes(2, max)).unwrap();
    device.put(past, key("a"), b"short").unwrap();
    device.delete(past, key("a")).unwrap();
    let refused = device.put(past, key("a"), &vec![0; max + 1]).unwrap_err();
    assert!(matches!(refused, Error::ValueTooLarge { .. }), "{refused}");
    assert_eq!(device.get(past, key("a")).unwrap(), None);
    assert_eq!(value(At::Snapshot(1)), Some(bytes(1, LONG)));
    assert_eq!(value(At::Back(1)).as_deref(), Some(&b"short"[..]));
    assert_eq!(value(At::Back(2)), Some(bytes(2, max)));
    let found = device.history(past, key("a"), 10).unwrap();
    let lens: Vec<u32> = found.iter().map(|past| past.version.value_len).collect();
    assert_eq!(lens, [0, 5, max as u32, LONG as u32]);
    assert!(matches!(found[3].version.kind, VersionKind::Large(_)));
    assert!(device.undo(past, key("a"), 2).unwrap());
    assert_eq!(device.get(past, key("a")).unwrap(), Some(bytes(2, max)));
    let mut changed = Vec::new();
    device
        .diff(past, Some(1), None, &mut |key, difference| {
            changed.push((key, difference));
            true
        })
        .unwrap();
    assert_eq!(changed, [(key("a"), Difference::Changed)]);
    device.roll_back(past, 1).unwrap();
    assert_eq!(device.get(past, key("a")).unwrap(), Some(bytes(1, LONG)));
    let mut batch = Batch::new();
    batch.put(past, key("b"), &bytes(3, LONG)).put(past, key("c"), &bytes(4, 40_000)).delete(past, key("a"));
    device.write(&batch).unwrap();
    assert_eq!(device.get(past, key("b")).unwrap(), Some(bytes(3, LONG)));
    assert!(matches!(device.put_if(past, key("b"), &bytes(5, LONG), Condition::IfAbsent), Err(Error::Conflict { .. })));
    device.put_if(past, key("b"), &bytes(5, LONG), Condition::IfPresent).unwrap();
    assert_eq!(device.get(past, key("b")).unwrap(), Some(bytes(5, LONG)));
    assert_eq!(device.namespaces().len(), 1, "nobody sees where they are");
    no_problems(&device);
}

/// Goal:   merges keep what the rules keep and release the values of what they drop, at once; a deleted namespace releases all of its own.
/// Method: ten versions of each of four keys, one of them seen by a snapshot; the bytes that are live.
#[test]
fn merges_release_values() {
    let device = Device::in_memory(&options()).unwrap();
    let past = space(&device);
    let live = || device.stats().live_bytes / LONG as u64;
    for round in 0..10 {
        (0..4).for_each(|at: u64| device.put(past, Key::from(at), &bytes(round * 4 + at, LONG)).unwrap());
        if round == 4 {
            device.snapshot(past).unwrap();
        }
    }
    assert!(live() >= 40, "{}", live());
    let keep = Retention { keep_last: 3, keep_snapshots: true, ..NEWEST };
    let planned = device.merge_dry_run(past, &keep, &mut to_the_end).unwrap();
    let merged = device.merge(past, &keep, &mut to_the_end).unwrap();
    assert_eq!((planned.dropped, planned.dropped_bytes), (merged.dropped, merged.dropped_bytes));
    assert_eq!(merged.dropped, 24);
    assert!(merged.dropped_bytes >= 24 * LONG as u64);
    device.settle().unwrap();
    assert!((16..20).contains(&live()), "{}", live());
    for at in 0..4u64 {
        let version = |at_version| device.get_version(past, Key::from(at), at_version).unwrap().unwrap().value;
        assert_eq!(version(At::Latest), bytes(36 + at, LONG));
        assert_eq!(version(At::Back(2)), bytes(28 + at, LONG));
        assert_eq!(version(At::Snapshot(1)), bytes(16 + at, LONG));
    }
    device.merge(past, &NEWEST, &mut to_the_end).unwrap();
    assert!((4..6).contains(&live()), "{}", live());
    no_problems(&device);
    device.delete_namespace(past).unwrap();
    device.settle().unwrap();
    assert_eq!(device.stats().live_bytes, 0);
    no_problems(&device);
}

/// Goal:   a merge that is ended early releases what it dropped, and the next one does the remainder.
/// Method: end it at its first question, at its second, and so on, until one comes to its end.
#[test]
fn ended_merges_release_values() {
    let device = Device::in_memory(&options()).unwrap();
    let past = space(&device);
    for asked in 1.. {
        (0..6).for_each(|at| device.put(past, key("a"), &bytes(at, 100_000)).unwrap());
        let (mut left, mut is_ended) = (asked, false);
        device
            .merge(past, &NEWEST, &mut |_, _| {
                left -= 1;
                is_ended |= left == 0;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert_eq!(device.get(past, key("a")).unwrap(), Some(bytes(5, 100_000)));
        if !is_ended {
            break;
        }
    }
    device.merge(past, &NEWEST, &mut to_the_end).unwrap();
    device.settle().unwrap();
    assert!(device.stats().live_bytes < 200_000, "{}", device.stats().live_bytes);
    no_problems(&device);
}

/// Goal:   large versions survive a clean close, a crash, and leaving memory.
/// Method: a file that is closed, one that is copied while the device is open, and a namespace that is unloaded.
#[test]
fn large_versions_outlive_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("device"), dir.path().join("copy"));
    let device = Device::create(&path, &options()).unwrap();
    let past = space(&device);
    (0..4).for_each(|at| device.put(past, key("a"), &bytes(at, LONG)).unwrap());
    device.close().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    let all = |device: &Device| -> Vec<Vec<u8>> {
        let read = |back| Some(device.get_version(past, key("a"), At::Back(back)).unwrap()?.value);
        (0..).map_while(read).collect()
    };
    assert!(all(&device).into_iter().eq((0..4).rev().map(|at| bytes(at, LONG))));
    device.put(past, key("a"), &bytes(4, LONG)).unwrap();
    device.merge(past, &Retention { keep_last: 2, ..NEWEST }, &mut to_the_end).unwrap();
    device.put(past, key("a"), &bytes(5, LONG)).unwrap();
    std::fs::copy(&path, &copy).unwrap();
    let crashed = Device::open(&copy, &OpenOptions::default()).unwrap();
    for device in [&device, &crashed] {
        assert!(all(device).into_iter().eq((3..6).rev().map(|at| bytes(at, LONG))));
        no_problems(device);
    }
    device.settle().unwrap();
    device.unload_namespace(past).unwrap();
    assert!(all(&device).into_iter().eq((3..6).rev().map(|at| bytes(at, LONG))));
}

/// Goal:   a backup has large versions with their past, an incremental one those that are new, and salvage the newest ones.
/// Method: two backups of a device, restored; the file opened for salvage.
#[test]
fn large_versions_are_backed_up() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let device = Device::create(at("device"), &options()).unwrap();
    let past = space(&device);
    (0..3).for_each(|seed| device.put(past, key("a"), &bytes(seed, LONG)).unwrap());
    device.snapshot(past).unwrap();
    device.backup_to_file(at("first"), None, &mut |_, _| ControlFlow::Continue(())).unwrap();
    device.put(past, key("a"), &bytes(3, LONG)).unwrap();
    device.put(past, key("b"), &bytes(4, 33_000)).unwrap();
    let report =
        device.backup_to_file(at("second"), Some(&at("first")), &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.versions, 2);
    let sources = ["first", "second"].map(|name| RestoreSource::file(at(name)));
    Device::restore(sources.into(), at("restored"), &options(), &mut |_| ControlFlow::Continue(())).unwrap();
    let restored = Device::open(at("restored"), &OpenOptions::default()).unwrap();
    let same = restored.namespace("past").unwrap();
    for back in 0..4 {
        let value = restored.get_version(same, key("a"), At::Back(back)).unwrap().unwrap().value;
        assert!(value == bytes(3 - u64::from(back), LONG), "{back} back");
    }
    let then = restored.get_version(same, key("a"), At::Snapshot(1)).unwrap().unwrap().value;
    assert!(then == bytes(2, LONG));
    no_problems(&restored);
    restored.merge(same, &NEWEST, &mut to_the_end).unwrap();
    restored.settle().unwrap();
    assert_eq!(restored.stats().live_bytes / LONG as u64, 1);
    no_problems(&restored);
    drop(device);
    let (salvaged, _) = Device::salvage(at("device"), &mut |_, _| {}).unwrap();
    let found = salvaged.namespace("past").unwrap();
    assert!(salvaged.get(found, key("a")).unwrap() == Some(bytes(3, LONG)));
}

/// Goal:   readers see some version of a key at any time, whole, while merges drop the ones that they have just found.
/// Method: one thread puts and merges without end, two read the newest version and old ones.
#[test]
fn readers_and_merges_of_large_values_meet() {
    let device = Device::in_memory(&options()).unwrap();
    let past = space(&device);
    device.put(past, key("a"), &bytes(0, 50_000)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for back in [0, 2] {
            scope.spawn({
                let (device, is_over) = (device.clone(), &is_over);
                move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let found = device.get_version(past, key("a"), At::Back(back)).unwrap();
                        let found = found.map(|record| record.value);
                        assert!(back > 0 || found.is_some());
                        assert!(found.is_none_or(|value| value.len() == 50_000));
                    }
                }
            });
        }
        for round in 0..60 {
            (0..5).for_each(|at| device.put(past, key("a"), &bytes(round * 5 + at, 50_000)).unwrap());
            device.merge(past, &NEWEST, &mut to_the_end).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    no_problems(&device);
}
