//! Versioned namespaces through the public API.

use kaml::{
    At, Batch, Condition, CreateOptions, Device, Difference, Error, Key, KeyKind, NamespaceOptions, OpenOptions,
    Retention, VersionKind, VersionOptions,
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

/// Goal:   a record can be read as it was, undone, rolled back, and its history listed, as documented.
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
    assert!(matches!(device.undo(space, key("a"), 9).unwrap_err(), Error::TooFarBack { count: 9, available: 4 }));

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
    let missing = device.roll_back(space, 1).unwrap_err();
    assert!(matches!(missing, Error::NoSnapshot { version: 1, .. }), "{missing}");
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
        assert!(matches!(refused.unwrap_err(), Error::KeepsNoVersions(id) if id == plain));
    }
    let mut batch = Batch::new();
    batch.put_if_absent(past, key("a"), b"x");
    let refused = device.queue(1).write(0, &batch).unwrap_err().to_string();
    let why = "so a queue cannot ask whether key a exists; use put_if or write of the device";
    assert_eq!(refused, format!("namespace {past} keeps versions, {why}"));
    let max = device.info().value_bytes_max;
    let refused = device.put(past, key("a"), &vec![0; max as usize + 1]).unwrap_err();
    assert!(matches!(refused, Error::ValueTooLarge { max: found, .. } if found == max), "{refused}");
    for options in [
        VersionOptions { buffer_bytes: 1 << 40, ..VersionOptions::default() },
        VersionOptions { segment_bytes: 12345, ..VersionOptions::default() },
        VersionOptions { fingerprint_bits: 99, ..VersionOptions::default() },
    ] {
        let refused = device.create_namespace("bad", &options.into()).unwrap_err();
        assert!(matches!(refused, Error::BadVersionOptions(_)), "{refused}");
    }
    assert!(matches!(device.block_info(past).unwrap_err(), Error::HoldsRecords(id) if id == past));
    // Buffers may have a third of the ring together; those that do not ask get half of what remains.
    let create = |at: u32| device.create_namespace(&format!("v{at}"), &VersionOptions::default().into());
    let (count, refused) = (0..99).find_map(|at| create(at).err().map(|error| (at, error))).unwrap();
    assert!(count > 3 && refused.to_string().contains("left for buffers"), "{count} {refused}");
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

/// Goal:   batches have conditions on versions, deletes included, together with those on other records; none is stored if one does not hold.
/// Method: batches of each kind over a versioned and a plain namespace, over versions in the buffer and in segments.
#[test]
fn batches_have_conditions_on_versions() {
    let device = device();
    let (past, plain) =
        (small(&device, "past"), device.create_namespace("plain", &NamespaceOptions::default()).unwrap());
    let write = |fill: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::new();
        fill(&mut batch);
        device.write(&batch)
    };
    let is_refused = |result: Result<(), Error>, space: u32, name: &str, is_there: bool| {
        let Err(Error::Conflict { namespace, key: of, present }) = result else { panic!("{result:?}") };
        assert!(namespace == space && of.as_bytes() == name.as_bytes() && present == is_there, "{name} in {space}");
    };
    for round in 0..2 {
        let missing = write(&|batch| {
            batch.delete_if_present(past, key("a"));
        });
        is_refused(missing, past, "a", false);
        write(&|batch| {
            batch.put_if_absent(past, key("a"), b"1").put_if_absent(past, key("b"), b"1");
        })
        .unwrap();
        (0..4000u64).for_each(|n| device.put(past, n, &[7; 500]).unwrap());
        // One that does not hold, of either namespace, keeps all others out.
        let other = write(&|batch| {
            batch.delete_if_present(past, key("a")).put_if_present(plain, key("p"), b"x");
        });
        is_refused(other, plain, "p", false);
        let of_versions = write(&|batch| {
            batch.put(plain, key("q"), b"x").put_if_absent(past, key("b"), b"x");
        });
        is_refused(of_versions, past, "b", true);
        assert!(device.exists(past, key("a")).unwrap() && !device.exists(plain, key("q")).unwrap(), "round {round}");
        // The state before the batch counts, also where the batch changes a key first.
        let before = write(&|batch| {
            batch.delete(past, key("a")).put_if_absent(past, key("a"), b"x");
        });
        is_refused(before, past, "a", true);
        let mut batch = Batch::new();
        batch.delete_if_present(past, key("a")).delete_if_present(past, key("b")).put(plain, key("r"), b"x");
        device.submit(&batch).unwrap().wait().unwrap();
        assert!(!device.exists(past, key("a")).unwrap() && device.exists(plain, key("r")).unwrap());
        assert_eq!(device.history(past, key("a"), 9).unwrap().len(), 2 * (round + 1), "a put and a delete each");
    }
    let long = write(&|batch| {
        batch.put_if_present(past, &[1; 40], b"x");
    });
    assert!(matches!(long.unwrap_err(), Error::BadKey(_)));
}

/// Goal:   of callers that take and give up one key under conditions, one at a time has it.
/// Method: threads that put a key if it is absent and delete it if it is present, next to puts to other keys; how often each was done.
#[test]
fn conditional_deletes_exclude_each_other() {
    let device = device();
    let past = small(&device, "past");
    let holders = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (device, holders) = (&device, &holders);
            scope.spawn(move || {
                let mut taken = 0;
                while taken < 100 {
                    device.put(past, thread, b"other").unwrap();
                    if device.put_if(past, key("lock"), b"mine", Condition::IfAbsent).is_err() {
                        continue;
                    }
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "one has it");
                    taken += 1;
                    assert_eq!(holders.fetch_sub(1, Ordering::SeqCst), 1);
                    let mut batch = Batch::new();
                    device.write(batch.delete_if_present(past, key("lock"))).unwrap();
                }
            });
        }
    });
    assert_eq!(device.history(past, key("lock"), 10_000).unwrap().len(), 3 * 100 * 2);
}

/// Goal:   everything put exists after a close, and after one that was not clean, long values and lists included, and one
///         Put spans both kinds of namespaces.
/// Method: puts of all sizes into a file, closed and opened; all versions compared.
#[test]
fn versions_survive_closing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.kaml");
    let device = Device::create(&path, &CreateOptions::new(256 << 20)).unwrap();
    let options = VersionOptions { buffer_bytes: 1 << 20, ..VersionOptions::default() };
    let options = NamespaceOptions::versions(KeyKind::U64, options);
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
        assert!(page.keys.iter().all(|key| listed.insert(key.clone())), "each key once");
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

/// Goal:   a merge and the next one drop what a dry run reported, keep what the rules keep, release space, and puts, gets and undos continue
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
                // The merge rests meanwhile: what is put should be little compared with what is dropped.
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

/// Goal:   a merge that ends because a caller that is notified of its progress panics hinders nobody: neither the next merge, nor unloading, nor
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

/// Goal:   a merge that is asked to end does, wherever it is: the versions that it reports are dropped, all others exist, and merging again drops the remaining ones.
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

/// Goal:   a merge that waits for another one ends when it is asked to, and so does a dry run.
/// Method: both are asked to end from within a merge of another namespace.
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
///         and how many bytes each piece reads. In the end the namespace is deleted between two pieces.
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
        assert!(found.len() == 1 && found[0].value == b"first", "{found:?} in {count} pieces");
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
    assert!(matches!(pieces.next().unwrap().unwrap_err(), Error::UnknownNamespace(id) if id == space));
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
        let refused = is_done.recv_timeout(Duration::from_secs(20)).expect("it returns").unwrap_err();
        assert!(matches!(refused, Error::ReadOnly));
    }
    assert_eq!(device.get(space, key("a")).unwrap().as_deref(), Some(&b"one"[..]));
}
