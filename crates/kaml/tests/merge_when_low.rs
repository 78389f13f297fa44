//! Versioned namespaces that are merged when space runs low, through the public API.

use kaml::{
    At, CreateOptions, Device, Durability, Key, KeyKind, MergePolicy, NamespaceChange, NamespaceId, NamespaceOptions,
    VersionOptions,
};
use std::ops::ControlFlow;

const KEYS: u64 = 2_000;
const VALUE_BYTES: usize = 2_000;

fn options(policy: Option<MergePolicy>) -> NamespaceOptions {
    let versions = VersionOptions { buffer_bytes: 1 << 20, merge_when_low: policy, ..VersionOptions::default() };
    NamespaceOptions::versions(KeyKind::U64, versions)
}

fn value(key: u64, round: u64) -> Vec<u8> {
    let mut value = vec![(key ^ round) as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&round.to_le_bytes());
    value
}

/// Puts all keys again and again, `rounds` times in all; returns the first error.
fn overwrite(device: &Device, space: NamespaceId, rounds: std::ops::Range<u64>) -> Result<(), kaml::Error> {
    rounds
        .flat_map(|round| (0..KEYS).map(move |key| (key, round)))
        .try_for_each(|(key, round)| device.put(space, key, &value(key, round)))
}

/// Goal:   a namespace that allows it continues taking Puts long after the device was filled: old versions go, those that its rules
///         keep are kept, and so is what a snapshot sees, also over a close. A deleted key remains deleted.
/// Method: puts of twice the device's capacity into a device in memory; everything that must be there is compared.
#[test]
fn a_full_device_goes_on() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let policy = MergePolicy { keep_last: 2, ..MergePolicy::default() };
    let space = device.create_namespace("past", &options(Some(policy))).unwrap();
    overwrite(&device, space, 0..1).unwrap();
    device.delete(space, KEYS + 1).unwrap();
    device.put(space, KEYS + 1, b"gone").unwrap();
    assert_eq!(device.snapshot(space).unwrap(), 1);
    device.delete(space, KEYS + 1).unwrap();
    let rounds = 2 * (64 << 20) / (KEYS * VALUE_BYTES as u64);
    overwrite(&device, space, 1..rounds).unwrap();
    for key in 0..KEYS {
        let read = |at| device.get_version(space, key, at).unwrap().map(|record| record.value);
        assert_eq!(read(At::Latest), Some(value(key, rounds - 1)), "key {key}");
        assert_eq!(read(At::Back(1)), Some(value(key, rounds - 2)), "key {key}");
        assert_eq!(read(At::Snapshot(1)), Some(value(key, 0)), "key {key}");
        assert!(device.history(space, key, usize::MAX).unwrap().len() < rounds as usize, "old versions go");
    }
    assert_eq!(device.get(space, KEYS + 1).unwrap(), None);
    assert_eq!(device.view(space, Some(1)).unwrap().get(KEYS + 1).unwrap().as_deref(), Some(&b"gone"[..]));
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    device.close().unwrap();
}

/// Goal:   without the attribute nothing is dropped by itself: a full device reports it, every version exists; the attribute can be given
///         later, and then the device continues.
/// Method: puts until one is refused; then `set_namespace`, and as much again.
#[test]
fn nothing_goes_unless_it_may() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let space = device.create_namespace("past", &options(None)).unwrap();
    let refused = overwrite(&device, space, 0..100).unwrap_err();
    assert!(matches!(refused, kaml::Error::Full { .. }), "{refused}");
    let history = device.history(space, 0, usize::MAX).unwrap();
    let rounds: Vec<u64> = (0..history.len() as u64).collect();
    assert!(rounds.len() > 5);
    for round in &rounds {
        let back = (rounds.len() as u64 - 1 - round) as u32;
        let found = device.get_version(space, Key::from(0), At::Back(back)).unwrap().map(|record| record.value);
        assert_eq!(found, Some(value(0, *round)));
    }
    let allow = NamespaceChange { merge_when_low: Some(Some(MergePolicy::default())), ..NamespaceChange::default() };
    device.set_namespace(space, &allow).unwrap();
    assert_eq!(device.namespaces()[0].merge_when_low(), Some(MergePolicy::default()));
    // The merge begins with the next look at how space is; until then a Put may still be refused.
    let begin = std::time::Instant::now();
    while device.put(space, 0, &value(0, 0)).is_err() {
        assert!(begin.elapsed().as_secs() < 60, "the device stays full");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    overwrite(&device, space, 100..106).unwrap();
    assert_eq!(device.get(space, 7).unwrap(), Some(value(7, 105)));
    let plain = device.create_namespace("plain", &NamespaceOptions::default()).unwrap();
    let refused = device.set_namespace(plain, &allow).unwrap_err();
    assert!(matches!(refused, kaml::Error::KeepsNoVersions(id) if id == plain));
}

/// Goal:   the attribute is kept over a close, and closing does not wait for a merge to end.
/// Method: a device on a file, filled, closed while it merges, opened.
#[test]
fn the_attribute_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.kaml");
    let policy = MergePolicy { keep_last: 3, keep_for_ns: 5, keep_internal: true, newest_only: false };
    // Thousands of puts, one after another: each would wait for the disk, which has minutes of it when it is busy.
    let create = CreateOptions { durability: Durability::Process, ..CreateOptions::new(64 << 20) };
    let device = Device::create(&path, &create).unwrap();
    let space = device.create_namespace("past", &options(Some(policy))).unwrap();
    overwrite(&device, space, 0..16).unwrap();
    device.close().unwrap();
    let device = Device::open(&path, &kaml::OpenOptions::default()).unwrap();
    assert_eq!(device.namespaces()[0].merge_when_low(), Some(policy));
    assert_eq!(device.get(space, 5).unwrap(), Some(value(5, 15)));
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

/// Goal:   a namespace can be deleted while its merge because there is no space continues, and another one's begins after it.
/// Method: the one waits for a merge that somebody requested of the other; it is deleted, the other one allows merges, and that merge
///         continues.
#[test]
fn a_deleted_namespace_holds_up_no_other_merge() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let versions = VersionOptions { buffer_bytes: 512 << 10, ..VersionOptions::default() };
    let options = NamespaceOptions::versions(KeyKind::U64, versions);
    let [gone, stays] = ["gone", "stays"].map(|name| device.create_namespace(name, &options).unwrap());
    (0..1_200).for_each(|at| device.put(gone, at % 100, &value(at % 100, at)).unwrap());
    overwrite(&device, stays, 0..8).unwrap();
    (0..1_200).for_each(|key| device.put(stays, key, &value(key, 8)).unwrap());
    let allow = NamespaceChange { merge_when_low: Some(Some(MergePolicy::default())), ..NamespaceChange::default() };
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let (done, is_done) = std::sync::mpsc::channel();
    let of = device.clone();
    let merge = std::thread::spawn(move || {
        let mut first = true;
        let merged = of.merge(stays, &kaml::Retention::default(), &mut |_, _| {
            if std::mem::take(&mut first) {
                begun.send(()).unwrap();
                let _ = goes_on.recv();
            }
            ControlFlow::Continue(())
        });
        done.send(merged.map(drop)).unwrap();
    });
    has_begun.recv().unwrap();
    let wait = || std::thread::sleep(std::time::Duration::from_millis(500));
    device.set_namespace(gone, &allow).unwrap();
    wait();
    device.delete_namespace(gone).unwrap();
    let of = device.clone();
    let set = std::thread::spawn(move || of.set_namespace(stays, &allow));
    wait();
    go_on.send(()).unwrap();
    let merged = is_done.recv_timeout(std::time::Duration::from_secs(30));
    if merged.is_err() {
        std::mem::forget(device); // it would wait for the merge
        panic!("the merge does not end");
    }
    assert!(matches!(merged, Ok(Ok(()))), "{merged:?}");
    merge.join().unwrap();
    set.join().unwrap().unwrap();
    device.close().unwrap();
}
