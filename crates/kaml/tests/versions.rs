//! Versioned namespaces through the public API.

use kaml::{
    At, Batch, Condition, CreateOptions, Device, Difference, Error, Key, KeyKind, NamespaceOptions, OpenOptions,
    Retention, VersionError, VersionKind, VersionOptions,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const NEWEST: Retention = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: true, keep_internal: false };

fn device() -> Device {
    Device::in_memory(&CreateOptions::new(256 << 20)).unwrap()
}

/// A namespace with a page buffer that a few thousand puts overfill.
fn small(device: &Device, name: &str) -> u32 {
    let versions = VersionOptions { buffer_bytes: 1 << 20, ..VersionOptions::default() };
    device.create_namespace(name, &versions.into()).unwrap()
}

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

fn command(error: Error) -> kaml_device::Error {
    error.command().expect("a command's error").clone()
}

/// Goal:   a record can be read as it was, undone, rolled back, and its history told, as the documentation says.
/// Method: the life of two records.
#[test]
fn the_past_of_a_record() {
    let device = device();
    let space = device.create_namespace("past", &VersionOptions::default().into()).unwrap();
    let value = |at| device.get_version(space, key("a"), at).unwrap().map(|record| record.value);
    device.put(space, key("a"), b"one").unwrap();
    assert_eq!(device.snapshot(space).unwrap(), 1);
    device.put(space, key("a"), b"two").unwrap();
    device.put(space, key("b"), b"other").unwrap();
    device.delete(space, key("a")).unwrap();
    assert_eq!(device.get(space, key("a")).unwrap(), None);
    assert!(!device.exists(space, key("a")).unwrap() && device.exists(space, key("b")).unwrap());
    assert_eq!(value(At::Snapshot(1)).as_deref(), Some(&b"one"[..]));
    assert_eq!(value(At::Back(1)).as_deref(), Some(&b"two"[..]));
    assert_eq!(value(At::Back(2)).as_deref(), Some(&b"one"[..]));

    assert!(device.undo(space, key("a"), 1).unwrap());
    assert_eq!(device.get(space, key("a")).unwrap().as_deref(), Some(&b"two"[..]));
    let past = device.history(space, key("a"), 10).unwrap();
    let told: Vec<_> = past.iter().map(|p| (p.version.kind, p.version.value_len, p.version.user_version)).collect();
    let (put, deleted) = (VersionKind::Value, VersionKind::Tombstone);
    assert_eq!(told, [(put, 3, 2), (deleted, 0, 2), (put, 3, 2), (put, 3, 1)]);
    assert!(past.iter().all(|p| p.is_seen && p.version.time_ns > 1_600_000_000_000_000_000));
    assert!(matches!(
        command(device.undo(space, key("a"), 9).unwrap_err()),
        kaml_device::Error::Versions(VersionError::TooFarBack { count: 9, available: 4 })
    ));

    let mut changed = BTreeMap::new();
    let mut note = |key, difference| changed.insert(key, difference).is_none();
    device.diff(space, Some(1), None, &mut note).unwrap();
    assert_eq!(changed, BTreeMap::from([(key("a"), Difference::Changed), (key("b"), Difference::Added)]));

    assert_eq!(device.roll_back(space, 1).unwrap(), 2);
    assert_eq!(device.get(space, key("a")).unwrap().as_deref(), Some(&b"one"[..]));
    assert_eq!(device.get(space, key("b")).unwrap(), None);
    let view = device.view(space, Some(2)).unwrap();
    assert_eq!(view.get(key("b")).unwrap().as_deref(), Some(&b"other"[..]));
    assert_eq!(view.list(None, 10).unwrap().keys.len(), 2);
    assert_eq!(device.roll_back(space, 2).unwrap(), 3);
    assert_eq!(device.get(space, key("b")).unwrap().as_deref(), Some(&b"other"[..]));
    device.forget_snapshot(space, 1).unwrap();
    let missing = command(device.roll_back(space, 1).unwrap_err());
    assert!(matches!(missing, kaml_device::Error::Versions(VersionError::NoSnapshot { version: 1, .. })), "{missing}");
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

/// Goal:   commands that a namespace is not for are refused by name, and attributes that cannot be are too.
/// Method: one of each.
#[test]
fn misuse_is_refused() {
    let device = device();
    let plain = device.create_namespace("plain", &NamespaceOptions::default()).unwrap();
    let past = device.create_namespace("past", &VersionOptions::default().into()).unwrap();
    for refused in [
        device.snapshot(plain).map(drop),
        device.history(plain, key("a"), 1).map(drop),
        device.undo(plain, key("a"), 1).map(drop),
        device.merge(plain, &NEWEST, &mut kaml::to_the_end).map(drop),
        device.put_if(plain, key("a"), b"", Condition::UnchangedSince(1)),
    ] {
        assert_eq!(command(refused.unwrap_err()), kaml_device::Error::KeepsNoVersions(plain));
    }
    let mut batch = Batch::new();
    batch.put_if_absent(past, key("a"), b"x");
    let refused = device.write(&batch).unwrap_err().to_string();
    let told = "whether key a is absent cannot be told in a batch or a queue";
    assert_eq!(refused, format!("namespace {past} keeps versions: {told}"));
    let too_long = vec![0; 2 << 20];
    let refused = command(device.put(past, key("a"), &too_long).unwrap_err());
    let kaml_device::Error::ValueTooLarge { max, .. } = refused else { panic!("{refused}") };
    assert!(max < device.info().value_bytes_max);
    assert_eq!(refused.to_string(), format!("a value of 2097152 bytes; namespace {past} takes at most {max}"));
    for options in [
        VersionOptions { buffer_bytes: 1 << 40, ..VersionOptions::default() },
        VersionOptions { segment_bytes: 12345, ..VersionOptions::default() },
        VersionOptions { fingerprint_bits: 99, ..VersionOptions::default() },
    ] {
        let refused = command(device.create_namespace("bad", &options.into()).unwrap_err());
        assert!(matches!(refused, kaml_device::Error::BadVersionOptions(_)), "{refused}");
    }
    assert_eq!(command(device.block_info(past).unwrap_err()), kaml_device::Error::HoldsRecords(past));
    // Buffers may have a third of the ring together; two namespaces that did not ask have taken it.
    device.create_namespace("second", &VersionOptions::default().into()).unwrap();
    let refused = command(device.create_namespace("third", &VersionOptions::default().into()).unwrap_err());
    assert!(refused.to_string().contains("left for buffers"), "{refused}");
}

/// Goal:   conditions hold over versions in the buffer and in segments.
/// Method: store if absent and if present, before and after much else was put.
#[test]
fn conditions_look_at_the_newest_version() {
    let device = device();
    let space = small(&device, "past");
    let put_if = |condition| device.put_if(space, key("a"), b"value", condition).is_ok();
    assert!(!put_if(Condition::IfPresent) && put_if(Condition::IfAbsent));
    for round in 0..2 {
        assert!(!put_if(Condition::IfAbsent) && put_if(Condition::IfPresent), "round {round}");
        (0..4000u64).for_each(|n| device.put(space, n, &[7; 500]).unwrap());
    }
    device.delete(space, key("a")).unwrap();
    assert!(!put_if(Condition::IfPresent) && put_if(Condition::IfAbsent));
}

/// Goal:   everything put is there after a close, and after one that was not clean, long values and lists included, and one
///         Put spans both kinds of namespaces.
/// Method: puts of all sizes into a file, closed and opened; all versions compared.
#[test]
fn versions_survive_closing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.kaml");
    let device = Device::create(&path, &CreateOptions::new(256 << 20)).unwrap();
    let options = VersionOptions { buffer_bytes: 1 << 20, ..VersionOptions::default() };
    let options = NamespaceOptions { keys: KeyKind::U64, ..options.into() };
    let space = device.create_namespace("past", &options).unwrap();
    let plain = device.create_namespace("plain", &NamespaceOptions::default()).unwrap();
    let content = |n: u64| vec![n as u8; if n.is_multiple_of(50) { 60_000 } else { (n * 37 % 900) as usize }];
    for n in 0..4000u64 {
        let mut batch = Batch::new();
        batch.put(space, n % 1000, &content(n)).put(plain, key("last"), &n.to_le_bytes());
        device.write(&batch).unwrap();
    }
    device.close().unwrap();
    let device = Device::open(&path, &kaml::OpenOptions::default()).unwrap();
    assert!(device.info().was_clean);
    for n in 0..1000 {
        for back in 0..4 {
            let found = device.get_version(space, n, At::Back(back)).unwrap().map(|record| record.value);
            assert_eq!(found, Some(content(n + 1000 * u64::from(3 - back))), "key {n}, {back} back");
        }
    }
    assert_eq!(device.get(plain, key("last")).unwrap(), Some(3999u64.to_le_bytes().to_vec()));
    let mut listed = BTreeSet::new();
    let mut after = None;
    loop {
        let page = device.list(space, after, 70).unwrap();
        assert!(page.keys.iter().all(|key| listed.insert(*key)), "each key once");
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(listed.len(), 1000);
    let stats = device.version_stats(space).unwrap();
    assert_eq!(stats.version_count, 4000);
    assert!(stats.segment_count > 4, "{stats:?}");
    let report = device.check(&mut |_, _| {}).unwrap();
    assert_eq!((report.versions, report.problems), (4000, Vec::new()));
    assert!(device.unload_namespace(space).unwrap());
    assert_eq!(device.get(space, 5u64).unwrap(), Some(content(3005)));
}

/// Goal:   a merge drops what it said it would, keeps what the rules keep, gives space back, and puts, gets and undos go on
///         meanwhile and never see less than they should.
/// Method: overwrite some keys many times, take a snapshot, merge while threads put and get, compare.
#[test]
fn merges_go_on_beside_puts_and_gets() {
    let device = device();
    let space = small(&device, "past");
    let content = |round: u64, n: u64| [round.to_le_bytes(), n.to_le_bytes()].concat().repeat(20);
    for round in 0..20 {
        (0..1000u64).for_each(|n| device.put(space, n, &content(round, n)).unwrap());
        if round == 3 {
            assert_eq!(device.snapshot(space).unwrap(), 1);
        }
    }
    let before = device.version_stats(space).unwrap();
    let dry = device.merge_dry_run(space, &NEWEST, &mut kaml::to_the_end).unwrap();
    let stop = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 20;
            while !stop.load(Ordering::Relaxed) {
                (0..50u64).for_each(|n| device.put(space, n, &content(round, n)).unwrap());
                (0..5u64).for_each(|n| assert!(device.undo(space, n, 1).unwrap()));
                round += 1;
                // The merge rests meanwhile: what is put should be little beside what goes.
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for n in 50..1000u64 {
                    assert_eq!(device.get(space, n).unwrap(), Some(content(19, n)));
                }
            }
        });
        let report = device.merge(space, &NEWEST, &mut kaml::to_the_end);
        stop.store(true, Ordering::Relaxed);
        report.unwrap()
    });
    assert!(dry.dropped > 0 && report.dropped >= dry.dropped, "{dry:?} {report:?}");
    assert!(report.segments_written < report.segments_read, "{before:?} {dry:?} {report:?}");
    for n in 50..1000u64 {
        assert_eq!(device.get(space, n).unwrap(), Some(content(19, n)));
        let old = device.get_version(space, n, At::Snapshot(1)).unwrap().map(|record| record.value);
        assert_eq!(old, Some(content(3, n)));
    }
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    device.delete_namespace(space).unwrap();
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

/// Goal:   a merge that ends because whoever is told of its progress panics hinders nobody: neither the next merge, nor unloading, nor
///         closing.
/// Method: panic when some rows are merged; do the others.
#[test]
fn panics_in_progress_end_merges_only() {
    let device = device();
    let space = small(&device, "past");
    for round in 0..20u64 {
        (0..1000u64).for_each(|n| device.put(space, n, &[round as u8; 200]).unwrap());
    }
    let mut told = BTreeSet::new();
    let merging = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        device.merge(space, &NEWEST, &mut |row, _| {
            told.insert(row);
            assert!(row < 1, "the caller's own panic");
            ControlFlow::Continue(())
        })
    }));
    assert!(merging.is_err() && told == BTreeSet::from([0, 1]), "{told:?}");
    device.settle().unwrap();
    assert!(device.unload_namespace(space).unwrap(), "nothing merges any more");
    let report = device.merge(space, &NEWEST, &mut kaml::to_the_end).unwrap();
    assert!(report.dropped > 0, "{report:?}");
    (0..1000u64).for_each(|n| assert_eq!(device.get(space, n).unwrap(), Some(vec![19; 200])));
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    device.close().unwrap();
}

/// Goal:   a merge that is told to end does, wherever it is: what it says has gone, all else is there, and merging again does the rest.
/// Method: end merges at the first time that they ask, then later and later, until one is done; count versions, look at values.
#[test]
fn merges_end_when_they_are_told_to() {
    let device = device();
    let space = small(&device, "past");
    for round in 0..20u64 {
        (0..1000u64).for_each(|n| device.put(space, n, &[round as u8; 200]).unwrap());
        if round == 3 {
            device.snapshot(space).unwrap();
        }
    }
    let count = || device.version_stats(space).unwrap().version_count;
    let (mut ended_within, mut dropped) = (0, 0);
    for asked_max in (0..).step_by(5) {
        let (before, mut asked, mut last) = (count(), 0, (0, 0));
        let report = device
            .merge(space, &NEWEST, &mut |row, rows| {
                (asked, last) = (asked + 1, (row, rows));
                if asked > asked_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert_eq!(before - count(), report.dropped, "{report:?}");
        dropped += report.dropped;
        if asked <= asked_max {
            break;
        }
        assert_eq!(asked, asked_max + 1, "it ends at once");
        ended_within += u32::from(report.dropped > 0 && last.0 < last.1);
    }
    assert!(ended_within > 0 && dropped > 0, "{ended_within} ends, {dropped} versions");
    assert_eq!(device.merge(space, &NEWEST, &mut kaml::to_the_end).unwrap().dropped, 0, "nothing is left");
    for n in 0..1000u64 {
        assert_eq!(device.get(space, n).unwrap(), Some(vec![19; 200]));
        let old = device.get_version(space, n, At::Snapshot(1)).unwrap().map(|record| record.value);
        assert_eq!(old, Some(vec![3; 200]));
    }
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    device.close().unwrap();
}

/// Goal:   a merge that waits for another one ends when it is told to, and so does a dry run.
/// Method: both are told to end from within a merge of another namespace.
#[test]
fn merges_that_wait_end_when_they_are_told_to() {
    let device = device();
    let [busy, waits] = ["busy", "waits"].map(|name| small(&device, name));
    (0..20_000u64).for_each(|n| device.put(busy, n % 1000, &[7; 200]).unwrap());
    let mut asked = 0;
    let mut twice = |_, _| {
        asked += 1;
        if asked % 2 == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let merged = device.merge(busy, &NEWEST, &mut |_, _| {
        assert_eq!(device.merge(waits, &NEWEST, &mut twice).unwrap().dropped, 0);
        device.merge_dry_run(busy, &NEWEST, &mut twice).unwrap();
        ControlFlow::Continue(())
    });
    assert!(merged.unwrap().dropped > 0);
}

/// Goal:   what takes many reads comes in pieces that take few each, and is what it would be at once; an error ends it.
/// Method: thousands of small versions of one key among others; their history, what a snapshot and the oldest ones are, what differs,
///         beside how many bytes each piece reads. In the end the namespace goes between two pieces.
#[test]
fn long_reads_come_in_pieces() {
    let device = device();
    let space = small(&device, "past");
    let hot = Key::from(7u64);
    device.put(space, hot, b"first").unwrap();
    device.snapshot(space).unwrap();
    for round in 0..60_000u64 {
        device.put(space, hot, &round.to_le_bytes()).unwrap();
        if round.is_multiple_of(20) {
            device.put(space, 100 + round, &[1; 400]).unwrap();
        }
    }
    device.settle().unwrap(); // what is sealed later would have other ordinals
    fn all<T: kaml::Steps>(device: &Device, mut pieces: kaml::Pieces<T>) -> (Vec<T::Found>, usize) {
        let (mut found, mut count) = (Vec::new(), 0);
        loop {
            let before = device.stats().read_bytes;
            let Some(piece) = pieces.next() else { return (found, count) };
            found.append(&mut piece.unwrap());
            let read = device.stats().read_bytes - before;
            assert!(read < 2 << 20, "{read} bytes in a piece");
            count += 1;
        }
    }
    let (past, count) = all(&device, device.history_pieces(space, hot, u64::MAX, usize::MAX).unwrap());
    assert!(past.len() == 60_001 && count >= past.len() / 64, "{} versions, {count} pieces", past.len());
    assert_eq!(past, device.history(space, hot, usize::MAX).unwrap());
    assert_eq!(all(&device, device.history_pieces(space, hot, u64::MAX, 5).unwrap()), (past[..5].to_vec(), 1));
    for told in [1, 5, past.len() / 2, past.len()] {
        let rest =
            device.history_pieces(space, hot, past[told - 1].version.sequence, usize::MAX).unwrap().all().unwrap();
        assert_eq!(rest, past[told..]);
    }
    for at in [At::Snapshot(1), At::Back(60_000)] {
        let (found, count) = all(&device, device.version_pieces(space, hot, at).unwrap());
        assert!(found.len() == 1 && found[0].value == b"first" && count > 50, "{count} pieces");
        assert_eq!(device.get_version(space, hot, at).unwrap().as_ref(), found.first());
    }
    assert!(all(&device, device.version_pieces(space, hot, At::Back(60_001)).unwrap()).0.is_empty());
    let (differences, count) = all(&device, device.diff_pieces(space, Some(1), None).unwrap());
    let mut told = Vec::new();
    let mut each = |key, difference| {
        told.push((key, difference));
        true
    };
    device.diff(space, Some(1), None, &mut each).unwrap();
    assert!(differences.len() == 3001 && count > 50, "{} keys, {count} pieces", differences.len());
    assert_eq!(differences, told);
    let mut pieces = device.history_pieces(space, hot, u64::MAX, usize::MAX).unwrap();
    assert_eq!(pieces.next().unwrap().unwrap().len(), 64);
    device.delete_namespace(space).unwrap();
    assert_eq!(command(pieces.next().unwrap().unwrap_err()), kaml_device::Error::UnknownNamespace(space));
    assert!(pieces.next().is_none());
}

/// Goal:   a device that was opened to be read refuses what writes, and waits for nothing.
/// Method: a merge, and settling, each in a thread that must come back.
#[test]
fn devices_opened_to_be_read_refuse_merges() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.kaml");
    let device = Device::create(&path, &CreateOptions::new(64 << 20)).unwrap();
    let space = device.create_namespace("past", &VersionOptions::default().into()).unwrap();
    device.put(space, key("a"), b"one").unwrap();
    device.close().unwrap();
    let device = Device::open(&path, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    type Command = fn(&Device, u32) -> Result<(), Error>;
    let commands: [Command; 2] =
        [|device, space| device.merge(space, &NEWEST, &mut kaml::to_the_end).map(drop), |device, _| device.settle()];
    for run in commands {
        let (done, is_done) = std::sync::mpsc::channel();
        let of = device.clone();
        std::thread::spawn(move || done.send(run(&of, space)));
        let refused = is_done.recv_timeout(Duration::from_secs(20)).expect("it is answered").unwrap_err();
        assert_eq!(command(refused), kaml_device::Error::ReadOnly);
    }
    assert_eq!(device.get(space, key("a")).unwrap().as_deref(), Some(&b"one"[..]));
}
