//! The change stream, through the interface of the library.

use kaml::{
    Batch, BlockOptions, Change, Changes, Changeset, CreateOptions, Device, Durability, Error, Expiry, KeyBuf, KeyKind,
    NamespaceChange, NamespaceId, NamespaceOptions, OpenOptions, Position, VersionCommand, VersionOptions,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

fn options() -> CreateOptions {
    CreateOptions { ring_bytes: Some(4 << 20), durability: Durability::Process, ..CreateOptions::new(64 << 20) }
}

fn device() -> Device {
    Device::in_memory(&options()).unwrap()
}

fn next(changes: &mut Changes) -> Changeset {
    changes.next_within(SOON).unwrap().expect("something was committed")
}

/// Changes of records until there are so many, without those of namespaces.
fn take(changes: &mut Changes, count: usize) -> Vec<Change> {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend(next(changes).changes.into_iter().filter(|change| !is_of_namespace(change)));
    }
    assert_eq!(taken.len(), count, "{taken:?}");
    taken
}

fn is_of_namespace(change: &Change) -> bool {
    matches!(change, Change::Namespace(_) | Change::NamespaceDeleted { .. })
}

/// What a follower has.
#[derive(Default)]
struct Copy(BTreeMap<(NamespaceId, KeyBuf), Vec<u8>>);

impl Copy {
    fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Put { namespace, key, value, .. } => {
                    self.0.insert((*namespace, key.clone()), value.clone());
                }
                Change::Delete { namespace, key } => {
                    self.0.remove(&(*namespace, key.clone()));
                }
                Change::DeleteRange { namespace, lower, upper } => {
                    let bounds = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
                    let is_in = |key: &KeyBuf| std::ops::RangeBounds::contains(&bounds, key.as_bytes());
                    self.0.retain(|(of, key), _| of != namespace || !is_in(key));
                }
                _ => {}
            }
        }
    }
}

/// Goal:   every batch is shown once, whole, in the order of commits, to a reader that continues after stored positions again and again.
/// Method: four threads put, delete and write batches of counters over shared keys; a reader begins anew after each hundred
///         changesets. Its copy is the device's content, each thread's counters come in their order, and no batch is divided.
#[test]
fn each_commit_is_shown_once_and_in_order() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 2000;
    let device = device();
    let space = device.ensure_namespace("n", &NamespaceOptions::default()).unwrap();
    let id = space.id();
    let mut changes = device.changes(None).unwrap();
    let (mut copy, mut seen, mut sets) = (Copy::default(), [0u64; THREADS as usize], 0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let device = device.clone();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let number = (thread << 32) | round;
                    let mut batch = Batch::new();
                    // A key of the thread's own in each batch, and one or two that all threads use.
                    batch.put(id, thread, &number.to_le_bytes());
                    batch.put(id, 100 + round % 7, &number.to_le_bytes());
                    match round % 3 {
                        0 => drop(batch.delete(id, 100 + (round + thread) % 7)),
                        _ => drop(batch.put(id, 200 + round % 5, &number.to_le_bytes())),
                    }
                    device.write(&batch).unwrap();
                }
            });
        }
        let mut last = changes.resume_position();
        while seen.iter().sum::<u64>() < THREADS * ROUNDS {
            let set = next(&mut changes);
            assert!(set.position > last || set.changes.iter().all(is_of_namespace));
            last = set.position;
            let records: Vec<&Change> = set.changes.iter().filter(|change| !is_of_namespace(change)).collect();
            assert_eq!(records.len() % 3, 0, "a batch is divided");
            for batch in records.chunks(3) {
                let Change::Put { key, value, .. } = batch[0] else { panic!("{batch:?}") };
                let thread = u64::from_be_bytes(key.as_bytes().try_into().unwrap());
                let number = (thread << 32) | seen[thread as usize];
                assert_eq!(value[..], number.to_le_bytes(), "one is missing, or comes twice");
                let same = |change: &&Change| matches!(change, Change::Put { value: of, .. } if of == value);
                assert!(batch[1..].iter().all(|change| same(change) || matches!(change, Change::Delete { .. })));
                seen[thread as usize] += 1;
            }
            copy.apply(&set.changes);
            sets += 1;
            if sets % 100 == 0 {
                let stored = changes.resume_position().to_string();
                changes = device.changes(Some(&stored.parse().unwrap())).unwrap();
            }
        }
    });
    assert!(changes.next_within(Duration::ZERO).unwrap().is_none_or(|set| set.changes.iter().all(is_of_namespace)));
    for key in space.keys() {
        let key = key.unwrap();
        assert_eq!(copy.0.remove(&(id, key.clone())), space.get(&key).unwrap());
    }
    assert!(copy.0.is_empty(), "{:?}", copy.0);
}

/// Goal:   a position counts after the device was closed, and after a crash; what was shown before is not shown again, and nothing is missing.
/// Method: a device in a file. Rounds of puts, some of which are read; then the device is closed and opened, or the file is copied as a
///         crash would leave it, and the copy is opened.
#[test]
fn positions_survive_restarts_and_crashes() {
    let dir = tempfile::tempdir().unwrap();
    let mut path = dir.path().join("0.kaml");
    let mut device = Device::create(&path, &options()).unwrap();
    device.ensure_namespace("n", &NamespaceOptions::default()).unwrap();
    let mut position = device.position().unwrap();
    let (mut put, mut seen) = (0u64, 0u64);
    for round in 0..12 {
        let space = device.open_namespace("n").unwrap();
        for _ in 0..50 {
            space.put(put, &put.to_le_bytes()).unwrap();
            put += 1;
        }
        let mut changes = device.changes(Some(&position)).unwrap();
        for change in take(&mut changes, 25 + round) {
            assert!(
                matches!(&change, Change::Put { value, .. } if value[..] == seen.to_le_bytes()),
                "{change:?}, {seen}"
            );
            seen += 1;
        }
        position = changes.resume_position();
        drop((changes, space));
        if round % 2 == 0 {
            device.close().unwrap();
        } else {
            let copy = dir.path().join(format!("{round}.kaml"));
            std::fs::copy(&path, &copy).unwrap();
            path = copy;
            drop(device);
        }
        device = Device::open(&path, &OpenOptions::default()).unwrap();
    }
    let mut changes = device.changes(Some(&position)).unwrap();
    for change in take(&mut changes, (put - seen) as usize) {
        assert!(matches!(&change, Change::Put { value, .. } if value[..] == seen.to_le_bytes()));
        seen += 1;
    }
    assert_eq!(seen, put);
}

/// Goal:   a reader that is slower than the ring gets an error of its own, holds up no Put, and can continue at the present position.
/// Method: twice as much as the ring holds, between two changesets.
#[test]
fn a_slow_reader_falls_behind() {
    let device = device();
    let space = device.ensure_namespace("n", &NamespaceOptions::default()).unwrap();
    let mut changes = device.changes(None).unwrap();
    space.put("a", b"1").unwrap();
    next(&mut changes);
    next(&mut changes);
    for number in 0..800u64 {
        space.put("a", &[number as u8; 10_000]).unwrap();
    }
    let position = changes.resume_position();
    assert!(matches!(changes.next_within(SOON), Err(Error::FellBehind)));
    assert!(matches!(device.changes(Some(&position)), Err(Error::FellBehind)));
    let mut changes = device.changes(None).unwrap();
    space.put("a", b"2").unwrap();
    assert!(matches!(&take(&mut changes, 1)[..], [Change::Put { value, .. }] if value == b"2"));
}

/// Goal:   keys, values and times come as the caller gave them, whatever their sizes, in every kind of namespace of records.
/// Method: short and long keys, small and large values, times of expiry, deletes, and a delete of a range.
#[test]
fn changes_are_what_the_caller_gave() {
    let device = device();
    let large = vec![7; 300_000];
    for (name, keys) in [("any", KeyKind::Any), ("ordered", KeyKind::Ordered)] {
        let id = device.ensure_namespace(name, &NamespaceOptions::records(keys)).unwrap().id();
        for key in ["short", "a key of more than sixteen bytes"] {
            let mut changes = device.changes(None).unwrap();
            let at = std::time::UNIX_EPOCH + Duration::from_secs(1 << 32);
            let mut batch = Batch::new();
            batch.put(id, key, b"small").put(id, "large", &large);
            batch.put(id, key, &large).expires(Expiry::At(at));
            batch.put(id, key, b"brief").expires(Expiry::At(at)).delete(id, key);
            device.write(&batch).unwrap();
            let taken = take(&mut changes, 5);
            let put = |key: &str, value: &[u8], expires| Change::Put {
                namespace: id,
                key: KeyBuf::new(key.as_bytes()).unwrap(),
                value: value.to_vec(),
                expires,
            };
            let deleted = Change::Delete { namespace: id, key: KeyBuf::new(key.as_bytes()).unwrap() };
            assert_eq!(taken[0], put(key, b"small", None));
            assert_eq!(taken[1], put("large", &large, None));
            assert_eq!(taken[2], put(key, &large, Some(at)));
            assert_eq!(taken[3..], [put(key, b"brief", Some(at)), deleted]);
        }
    }
    let space = device.open_namespace("ordered").unwrap();
    let mut changes = device.changes(None).unwrap();
    space.delete_range("a".."b").unwrap();
    let (lower, upper) = (Bound::Included(b"a".to_vec()), Bound::Excluded(b"b".to_vec()));
    assert_eq!(take(&mut changes, 1), [Change::DeleteRange { namespace: space.id(), lower, upper }]);
}

/// Goal:   a large value that has moved since is found; one that is gone makes the reader fall behind, and is never another one's.
/// Method: large values over few keys until collection has moved and dropped some, read from positions in between.
#[test]
fn large_values_are_their_own_or_gone() {
    let device = device();
    let space = device.ensure_namespace("n", &NamespaceOptions::default()).unwrap();
    let value = |number: u64| vec![number as u8; 50_000 + number as usize];
    let mut positions = vec![(0, device.position().unwrap())];
    for number in 0..2000u64 {
        space.put(number % 300, &value(number)).unwrap();
        if number % 100 == 99 {
            positions.push((number + 1, device.position().unwrap()));
        }
    }
    let (mut whole, mut behind) = (0, 0);
    for (first, position) in positions {
        let mut number = first;
        let mut changes = device.changes(Some(&position)).unwrap();
        loop {
            match changes.next_within(Duration::ZERO) {
                Ok(None) => break,
                Ok(Some(set)) => {
                    for change in set.changes {
                        let Change::Put { value: found, .. } = change else { continue };
                        assert!(found == value(number), "{number}: another value of {} bytes", found.len());
                        (whole, number) = (whole + 1, number + 1);
                    }
                }
                Err(Error::FellBehind) => {
                    behind += 1;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(whole > 300 && behind > 0, "{whole} values, {behind} readers fell behind");
}

/// Goal:   versions come with their numbers, commands on user versions too, and large values of versions.
/// Method: puts, a delete and a snapshot, compared with the history that the device reports.
#[test]
fn versions_come_with_their_numbers() {
    let device = device();
    let pages = device.ensure_namespace("pages", &VersionOptions::default().into()).unwrap();
    let mut changes = device.changes(None).unwrap();
    let large = vec![3; 100_000];
    pages.put("home", b"draft").unwrap();
    let snapshot = device.snapshot(pages.id()).unwrap();
    pages.put("home", &large).unwrap();
    pages.delete("home").unwrap();
    let taken = take(&mut changes, 4);
    let mut history = device.history(pages.id(), kaml::Key::new(b"home").unwrap(), 10).unwrap();
    history.reverse();
    let mut numbers = Vec::new();
    for change in &taken {
        if let Change::Version { value, sequence, user_version, time_ns, .. } = change {
            assert!(*time_ns > 0);
            numbers.push((*sequence, value.as_ref().map(Vec::len), *user_version));
        }
    }
    let expected: Vec<u64> = history.iter().map(|past| past.version.sequence).collect();
    assert_eq!(numbers.iter().map(|(sequence, ..)| *sequence).collect::<Vec<_>>(), expected);
    assert_eq!(numbers.iter().map(|(_, len, _)| *len).collect::<Vec<_>>(), [Some(5), Some(100_000), None]);
    assert!(numbers[1].2 > numbers[0].2 && snapshot > 0);
    assert!(matches!(taken[1], Change::VersionCommand { command: VersionCommand::Snapshot, .. }));
}

/// Goal:   writes of blocks are shown as their units, trims as deletes.
/// Method: a write of two units and a trim of one.
#[test]
fn blocks_come_as_units() {
    let device = device();
    let disk = device.create_namespace("disk", &BlockOptions::new(4096, 1000).into()).unwrap();
    let mut changes = device.changes(None).unwrap();
    device.block_write(disk, 5, &[9; 8192]).unwrap();
    device.block_trim(disk, 5, 1).unwrap();
    let taken = take(&mut changes, 3);
    let unit = |number: u64| KeyBuf::from(kaml::Key::from(number));
    assert!(matches!(&taken[1], Change::Put { key, value, .. } if *key == unit(6) && value[..] == [9; 4096]));
    assert_eq!(taken[2], Change::Delete { namespace: disk, key: unit(5) });
}

/// Goal:   namespaces are described first, and again when they are created, changed and deleted; what a deleted one held is not shown.
/// Method: each of these, with puts in between.
#[test]
fn namespaces_are_described() {
    let device = device();
    let first = device.create_namespace("first", &NamespaceOptions::default()).unwrap();
    let mut changes = device.changes(None).unwrap();
    assert!(matches!(&next(&mut changes).changes[..], [Change::Namespace(info)] if info.name == "first"));
    let second = device.create_namespace("second", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    device.put(second, "a", b"1").unwrap();
    assert!(matches!(&next(&mut changes).changes[..], [Change::Namespace(info)] if info.id == second));
    assert!(matches!(&next(&mut changes).changes[..], [Change::Put { namespace, .. }] if *namespace == second));
    let name = NamespaceChange { name: Some("renamed".to_owned()), ..NamespaceChange::default() };
    device.set_namespace(second, &name).unwrap();
    device.put(first, "b", b"gone").unwrap();
    device.delete_namespace(first).unwrap();
    device.put(second, "c", b"2").unwrap();
    match &next(&mut changes).changes[..] {
        [Change::NamespaceDeleted { namespace, name }, Change::Namespace(info)] => {
            assert_eq!((*namespace, name.as_str(), info.name.as_str()), (first, "first", "renamed"));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(&next(&mut changes).changes[..], [Change::Put { namespace, .. }] if *namespace == second));
}

/// Goal:   positions that make no sense are refused with an error that names them, and nothing waits for them.
/// Method: one of another device, one after everything, and one of an opening that has not been.
#[test]
fn foreign_positions_are_refused() {
    let (device, other) = (device(), device());
    let position = device.position().unwrap();
    let refused = other.changes(Some(&position));
    assert!(matches!(refused, Err(Error::BadPosition { why }) if why.contains(&position.to_string())));
    let (opening, bytes) = (position.opening(), position.ring_bytes());
    for (opening, bytes) in [(opening, bytes + 4096), (opening + 1, bytes), (0, bytes + 1), (opening, u64::MAX)] {
        let position = Position::from_parts(position.device(), opening, bytes);
        let refused = device.changes(Some(&position)).map(drop);
        assert!(matches!(refused, Err(Error::FellBehind)), "{position}: {refused:?}");
    }
}

/// Goal:   a commit that is larger than a page comes in parts that make it up exactly, also for a reader that begins anew with each part.
/// Method: a batch of small and large values, read in pages of every size from one change to all of them.
#[test]
fn large_commits_come_in_parts() {
    let device = device();
    let id = device.ensure_namespace("n", &NamespaceOptions::default()).unwrap().id();
    let begin = device.position().unwrap();
    let mut batch = Batch::new();
    for number in 0..20u64 {
        batch.put(id, number, &vec![number as u8; if number % 7 == 3 { 40_000 } else { 500 }]);
    }
    device.write(&batch).unwrap();
    device.put(id, 99u64, b"the next one").unwrap();
    let whole: Vec<Change> = take(&mut device.changes(Some(&begin)).unwrap(), 21);
    for bytes in [1, 100, 600, 1000, 5000, 45_000, 200_000] {
        let (mut cursor, mut found, mut pages) = (kaml::ChangesCursor::from(begin), Vec::new(), 0);
        while cursor.position < device.position().unwrap() {
            let page = device.changes_page(&cursor, bytes).unwrap();
            assert!(page.next != cursor && page.parts.iter().all(|part| !part.changes.is_empty()));
            found.extend(page.parts.into_iter().flat_map(|part| part.changes));
            (cursor, pages) = (page.next, pages + 1);
        }
        assert!(found == whole && (bytes > 45_000 || pages > 1), "{bytes}");
    }
}

/// Goal:   a reader of a device that writes to memory sees a put within a moment, and waits no longer than requested if there is none.
/// Method: a put on another thread while the reader waits.
#[test]
fn a_waiting_reader_is_woken() {
    let device = device();
    let space = device.ensure_namespace("n", &NamespaceOptions::default()).unwrap();
    let mut changes = device.changes(None).unwrap();
    next(&mut changes);
    assert_eq!(changes.next_within(Duration::from_millis(20)).unwrap(), None);
    let waiting = std::thread::spawn(move || take(&mut changes, 1));
    std::thread::sleep(Duration::from_millis(50));
    space.put("a", b"1").unwrap();
    assert!(matches!(&waiting.join().unwrap()[..], [Change::Put { .. }]));
}

proptest! {
    /// Goal:   a position is the same after it was stored as text or as bytes, and no text makes it panic.
    /// Method: random positions, and random text.
    #[test]
    fn positions_can_be_stored(device: [u8; 16], opening: u64, bytes: u64, text in ".{0,80}") {
        let position = Position::from_parts(device, opening, bytes);
        prop_assert_eq!(position.to_string().parse::<Position>().unwrap(), position);
        prop_assert_eq!(Position::from_bytes(&position.to_bytes()), position);
        if let Err(error) = text.parse::<Position>() {
            let is_bad = matches!(error, Error::BadPosition { .. });
            prop_assert!(is_bad);
        }
    }
}
