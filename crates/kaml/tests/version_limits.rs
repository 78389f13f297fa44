//! Versioned namespaces at their limits: snapshots without end, full devices, commands that have nothing to do, what a dry run reports.

use kaml::{
    At, Batch, CreateOptions, Device, Error, Key, NamespaceOptions, OpenOptions, Retention, VersionOptions, to_the_end,
};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

const NEWEST: Retention = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: true, keep_internal: false };
const NOTHING: Retention = Retention { keep_snapshots: false, ..NEWEST };

fn device() -> Device {
    Device::in_memory(&CreateOptions::new(64 << 20)).unwrap()
}

fn versioned(device: &Device, name: &str) -> u32 {
    device.create_namespace(name, &VersionOptions::default().into()).unwrap()
}

/// What `act` answers, which comes within a minute: some commands were known to wait forever.
fn soon<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(act()));
    told.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{what} does not come back"))
}

/// Takes snapshots until one is refused; `between` puts what it likes in between. Returns how many, and why.
fn storm(device: &Device, space: u32, mut between: impl FnMut(u64)) -> (u64, Error) {
    for count in 0..200_000 {
        if let Err(error) = device.snapshot(space) {
            return (count, error);
        }
        between(count);
    }
    panic!("200000 snapshots and no end");
}

/// All that must continue where no more snapshots are taken.
fn check_life(device: Device, space: u32, plain: u32) {
    let of = device.clone();
    soon("a delete", move || of.delete(plain, 1).unwrap());
    let of = device.clone();
    soon("a put", move || of.put(plain, 1, b"x").unwrap());
    let of = device.clone();
    soon("a delete of versions", move || of.delete(space, 1).unwrap());
    let of = device.clone();
    soon("forgetting", move || of.forget_snapshot(space, 1).unwrap());
    let of = device.clone();
    let report = soon("a merge", move || of.merge(space, &NOTHING, &mut to_the_end).unwrap());
    assert_eq!(device.version_stats(space).unwrap().snapshots, [], "{report:?}");
    device.snapshot(space).unwrap();
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    soon("closing", move || device.close().unwrap());
}

/// Goal:   snapshots and rollbacks have a budget: beyond it they are refused with what frees it, and everything else continues.
/// Method: snapshots without end on a device with records; then with puts between them; then rollbacks; each time all that must continue.
#[test]
fn snapshots_without_end_are_refused() {
    for variant in 0..3 {
        let device = device();
        let space = versioned(&device, "v");
        let plain = device.create_namespace("n", &NamespaceOptions::default()).unwrap();
        (0..2000u64).for_each(|key| device.put(plain, key, &[7; 1000]).unwrap());
        let capacity = device.stats().capacity_bytes;
        let (count, refused) = storm(&device, space, |count| match variant {
            1 => device.put(space, count % 50, &[3; 40]).unwrap(),
            2 if count % 100 == 99 => {
                device.put(space, count, b"gone with the rollback").unwrap();
                // Each one adds a range to the view, so they are few.
                device.roll_back(space, count as u32 / 2 + 1).map(drop).unwrap_or(());
            }
            _ => {}
        });
        assert!(count > 1000, "{count}");
        let Error::SnapshotsFull { namespace, bytes, max } = refused else { panic!("{refused}") };
        assert!(namespace == space && bytes > max);
        assert!(refused.to_string().contains("forget snapshots first"), "{refused}");
        // The capacity knows of them.
        let left = device.stats().capacity_bytes;
        assert!(left < capacity && left > capacity * 3 / 4, "{left} of {capacity}");
        check_life(device, space, plain);
    }
}

/// Goal:   the budget is that of the device: two namespaces share it, also when the snapshots of one are only on flash.
/// Method: as many snapshots as go into one; close, open, and one more in the other, which has to be refused as soon.
#[test]
fn namespaces_share_the_budget_of_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.kaml");
    let device = Device::create(&path, &process(64 << 20)).unwrap();
    let (first, second) = (versioned(&device, "first"), versioned(&device, "second"));
    storm(&device, first, |_| {});
    device.close().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    let (count, refused) = storm(&device, second, |_| {});
    assert!(count < 100 && matches!(refused, Error::SnapshotsFull { .. }), "{count} {refused}");
    device.delete_namespace(first).unwrap();
    device.snapshot(second).unwrap();
    device.close().unwrap();
}

fn process(capacity: u64) -> CreateOptions {
    CreateOptions { durability: kaml::Durability::Process, ..CreateOptions::new(capacity) }
}

/// Goal:   a versioned namespace that is full accepts deletes, and a merge frees what they hid, again and again.
/// Method: one version of each key, so a merge alone gains nothing; fill, delete some, merge, fill again. Then delete until that is
///         refused, too.
#[test]
fn full_namespaces_take_deletes() {
    let device = device();
    let space = versioned(&device, "v");
    let mut key = 0u64;
    let mut fill = |device: &Device| {
        let first = key;
        loop {
            match device.put(space, key, &[5; 900]) {
                Ok(()) => key += 1,
                Err(error) => break (first, key, error),
            }
        }
    };
    let (_, end, refused) = fill(&device);
    assert!(matches!(refused, Error::Full { .. }) && refused.to_string().contains("merge"), "{refused}");
    let mut next = 0;
    for round in 0..3 {
        let of = device.clone();
        let keys = next..next + end / 4;
        let refused = move |key: &u64| match of.delete(space, *key) {
            Ok(()) => false,
            Err(error) => matches!(error, Error::Full { .. }) || panic!("not because it is full"),
        };
        let deleted = soon("deletes", move || keys.clone().find(refused).unwrap_or(keys.end)) - next;
        assert!(deleted > end / 64, "round {round}: {deleted} of {end}");
        next += deleted;
        let of = device.clone();
        let report = soon("a merge", move || of.merge(space, &NOTHING, &mut to_the_end).unwrap());
        let (first, last, _) = fill(&device);
        assert!(last - first > deleted / 2, "round {round}: {deleted} deleted, {first}..{last} put, {report:?}");
    }
    let of = device.clone();
    soon("deletes without end", move || {
        for key in 0..10_000_000u64 {
            if let Err(error) = of.delete(space, key % 1000) {
                return assert!(matches!(error, Error::Full { .. }));
            }
        }
        panic!("they are versions, and take room");
    });
    let of = device.clone();
    soon("a merge", move || of.merge(space, &NOTHING, &mut to_the_end).unwrap());
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    let of = device.clone();
    soon("deleting the namespace", move || of.delete_namespace(space).unwrap());
    let space = versioned(&device, "next");
    device.put(space, 1, b"there is room again").unwrap();
    soon("closing", move || device.close().unwrap());
}

/// Goal:   namespaces without options get a buffer that fits: at least four on the smallest device.
/// Method: create them, put to them and read them on the smallest and on a larger device.
#[test]
fn default_namespaces_fit_beside_each_other() {
    for capacity in [64 << 20, 256 << 20] {
        let device = Device::in_memory(&CreateOptions::new(capacity)).unwrap();
        let count = if capacity < 100 << 20 { 4 } else { 6 };
        let spaces: Vec<u32> = (0..count).map(|at| versioned(&device, &format!("v{at}"))).collect();
        for key in 0..500u64 {
            spaces.iter().for_each(|space| device.put(*space, key % 100, &[*space as u8; 1000]).unwrap());
        }
        for space in spaces {
            assert_eq!(device.get(space, 99).unwrap(), Some(vec![space as u8; 1000]));
            assert_eq!(device.history(space, 99, 9).unwrap().len(), 5);
        }
        assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    }
}

/// Goal:   commands that have nothing to do write nothing.
/// Method: undo of nothing, rollbacks to what exists, merges without anything to drop; count versions, snapshots and user versions.
#[test]
fn nothing_to_do_writes_nothing() {
    let device = device();
    let space = versioned(&device, "v");
    let state = || {
        let stats = device.version_stats(space).unwrap();
        (stats.version_count, stats.user_version, stats.snapshots.len())
    };
    assert!(!device.undo(space, 1, 0).unwrap(), "a key that never was");
    assert_eq!(state(), (0, 1, 0));
    device.put(space, 1, b"one").unwrap();
    assert!(device.undo(space, 1, 0).unwrap());
    assert_eq!(state(), (1, 1, 0));
    let snapshot = device.snapshot(space).unwrap();
    assert_eq!(device.roll_back(space, snapshot).unwrap(), snapshot, "nothing was put since");
    assert_eq!(state(), (1, 2, 1));
    device.delete(space, 1).unwrap();
    assert!(!device.undo(space, 1, 0).unwrap());
    let before = device.roll_back(space, snapshot).unwrap();
    assert_eq!((before, state()), (2, (2, 3, 2)));
    // What exists now was put before the first snapshot's end, and nothing since: but the rollback hid something.
    assert_eq!(device.roll_back(space, before).unwrap(), 3);
    assert_eq!(device.get(space, 1).unwrap(), None);
    let again = device.snapshot(space).unwrap();
    assert_eq!(device.roll_back(space, again).unwrap(), again);
    let dropped = device.merge(space, &NEWEST, &mut to_the_end).unwrap().dropped;
    assert_eq!((dropped, state()), (0, (2, 5, 4)));
    let missing = device.forget_snapshot(space, 99).unwrap_err();
    assert!(matches!(missing, Error::NoSnapshot { version: 99, .. }));
    assert_eq!(state(), (2, 5, 4));
}

/// A namespace after a life determined by `seed`.
fn lived(path: &Path, seed: u64) -> (Device, u32) {
    let device = Device::create(path, &process(64 << 20)).unwrap();
    let options = VersionOptions { buffer_bytes: 256 << 10, ..VersionOptions::default() };
    let space = device.create_namespace("v", &options.into()).unwrap();
    let plain = device.create_namespace("n", &NamespaceOptions::default()).unwrap();
    for round in 0..8 + seed * 3 {
        let mut batch = Batch::new();
        for key in 0..200u64 {
            match (key * 7 + round + seed) % 11 {
                0 if seed % 2 == 1 => batch.delete(space, key),
                _ => batch.put(space, key, &vec![round as u8; 300 + key as usize % 500]),
            };
        }
        device.write(&batch).unwrap();
        device.put(plain, round, b"beside").unwrap();
        if seed % 3 == 1 && round % 4 == 0 {
            device.snapshot(space).unwrap();
        }
    }
    (device, space)
}

/// Goal:   a dry run states what the merge after it does, to the version and the byte.
/// Method: lives of several lengths with deletes and snapshots, buffers more or less filled; each rule; before and after reopening, and
///         after a crash.
#[test]
fn dry_runs_say_what_merges_do() {
    let mut total = 0;
    let rules = [
        NEWEST,
        NOTHING,
        Retention { keep_last: 3, ..NOTHING },
        Retention { keep_internal: true, ..NEWEST },
        Retention { keep_since_ns: Some(u64::MAX), ..NEWEST },
        Retention { keep_since_ns: Some(0), ..NOTHING },
    ];
    for (seed, rule) in (0..6).flat_map(|seed| rules.iter().map(move |rule| (seed, rule))) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.kaml");
        let (mut device, space) = lived(&path, seed);
        if seed % 3 == 2 {
            device.close().unwrap();
            device = Device::open(&path, &OpenOptions::default()).unwrap();
        }
        if seed == 4 {
            let copy = dir.path().join("copy.kaml");
            std::fs::copy(&path, &copy).unwrap();
            drop(device);
            device = Device::open(&copy, &OpenOptions::default()).unwrap();
        }
        let before = device.version_stats(space).unwrap();
        let said = device.merge_dry_run(space, rule, &mut to_the_end).unwrap();
        assert_eq!(device.version_stats(space).unwrap().snapshots, before.snapshots);
        assert_eq!(device.version_stats(space).unwrap().version_count, before.version_count);
        let went = device.merge(space, rule, &mut to_the_end).unwrap();
        assert_eq!(said, kaml::MergeReport { segments_written: 0, ..went }, "seed {seed} {rule:?}");
        total += went.dropped;
        // Rows that were in the page buffer may be sealed by now, and then some of their versions can go as well.
        let kept = device.merge_dry_run(space, rule, &mut to_the_end).unwrap().kept;
        assert!(kept <= went.kept, "seed {seed} {rule:?}: {kept}, {} before", went.kept);
        assert!(device.get_version(space, Key::from(1), At::Latest).is_ok());
        device.close().unwrap();
    }
    assert!(total > 3000, "{total}");
}

/// Goal:   the same directly after the last put, whatever the background has still to do.
/// Method: lives of growing length on a small device; no wait between puts, dry run and merge.
#[test]
fn dry_runs_wait_for_what_is_under_way() {
    for rounds in (12..72u64).step_by(12) {
        let dir = tempfile::tempdir().unwrap();
        let device = Device::create(dir.path().join("d.kaml"), &process(64 << 20)).unwrap();
        let space = versioned(&device, "v");
        for round in 0..rounds {
            (0..200u64).for_each(|key| device.put(space, key, &[round as u8; 900]).unwrap());
        }
        let said = device.merge_dry_run(space, &NEWEST, &mut to_the_end).unwrap();
        let went = device.merge(space, &NEWEST, &mut to_the_end).unwrap();
        assert_eq!(said, kaml::MergeReport { segments_written: 0, ..went }, "{rounds} rounds");
    }
}
