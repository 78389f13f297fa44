//! Snapshots of the device: what they see while records change, what they keep, and when they expire.

use kaml::{
    CreateOptions, Device, Durability, Error, KeyBuf, KeyKind, Namespace, NamespaceOptions, OpenOptions, Snapshot,
};
use kaml_testkit::Rng;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

const KINDS: [KeyKind; 4] = [KeyKind::U64, KeyKind::Bytes, KeyKind::Any, KeyKind::Ordered];
const WRITERS: u64 = 3;
const KEYS: u64 = 200;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// The nth key of a writer. Those of namespaces that take long keys are short or long.
fn key_of(kind: KeyKind, writer: u64, n: u64) -> Vec<u8> {
    let name = format!("w{writer}/{n:05}");
    match kind {
        KeyKind::U64 => (writer << 32 | n).to_be_bytes().to_vec(),
        KeyKind::Any | KeyKind::Ordered if !n.is_multiple_of(3) => {
            format!("{name}/{}", "x".repeat(10 + (n * 7 % 300) as usize)).into()
        }
        _ => name.into_bytes(),
    }
}

fn key(bytes: &[u8], kind: KeyKind) -> KeyBuf {
    match kind {
        KeyKind::U64 => KeyBuf::from(kaml::Key::from(u64::from_be_bytes(bytes.try_into().unwrap()))),
        _ => KeyBuf::new(bytes).unwrap(),
    }
}

/// Does something to the records of a writer, and to what it knows of them.
fn change(rng: &mut Rng, spaces: &[Namespace], writer: u64, models: &mut [Records]) {
    let which = rng.below(KINDS.len() as u64) as usize;
    let (space, kind, model) = (&spaces[which], KINDS[which], &mut models[which]);
    let bytes = key_of(kind, writer, rng.below(KEYS));
    match rng.below(40) {
        0 if kind == KeyKind::Ordered => {
            let to = key_of(kind, writer, KEYS).min(key_of(kind, writer, rng.below(KEYS)));
            let (from, to) = if bytes <= to { (bytes, to) } else { (to, bytes) };
            space.delete_range(&from[..]..&to[..]).unwrap();
            model.retain(|key, _| *key < from || *key >= to);
        }
        1..=9 => {
            space.delete(&key(&bytes, kind)).unwrap();
            model.remove(&bytes);
        }
        _ => {
            let value = kaml_testkit::bytes(rng.draw(), 1 + rng.below(3000) as usize);
            space.put(&key(&bytes, kind), &value).unwrap();
            model.insert(bytes, value);
        }
    }
}

/// Compares all that a snapshot shows with what it should.
fn check(rng: &mut Rng, snapshot: &Snapshot, spaces: &[Namespace], seen: &[Records]) -> Result<(), Error> {
    for ((space, kind), seen) in spaces.iter().zip(KINDS).zip(seen) {
        let id = space.id();
        for writer in 0..WRITERS {
            for bytes in (0..KEYS).map(|n| key_of(kind, writer, n)) {
                let at = key(&bytes, kind);
                assert_eq!(snapshot.get(id, &at)?.as_ref(), seen.get(&bytes), "{at} of {kind:?}");
                assert_eq!(snapshot.exists(id, &at)?, seen.contains_key(&bytes));
            }
        }
        if kind == KeyKind::Ordered {
            check_ranges(rng, snapshot, space, seen)?;
            continue;
        }
        let (mut after, mut keys) = (None, Vec::new());
        loop {
            let limit = 1 + rng.below(100) as usize;
            let page = snapshot.list(id, after, limit)?;
            assert!(page.keys.len() <= limit, "a page of {} keys, not at most {limit}", page.keys.len());
            keys.extend(page.keys);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let mut expected: Vec<KeyBuf> = seen.keys().map(|bytes| key(bytes, kind)).collect();
        keys.sort_unstable();
        expected.sort_unstable();
        assert_eq!(keys, expected, "{kind:?}");
    }
    Ok(())
}

fn check_ranges(rng: &mut Rng, snapshot: &Snapshot, space: &Namespace, seen: &Records) -> Result<(), Error> {
    let id = space.id();
    assert_eq!(snapshot.count(id, Vec::new().as_slice()..)?, seen.len() as u64);
    let own = |found: Option<(KeyBuf, Vec<u8>)>| found.map(|(key, value)| (key.as_bytes().to_vec(), value));
    let pair = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
    assert_eq!(own(snapshot.first(id)?), seen.first_key_value().map(pair));
    assert_eq!(own(snapshot.last(id)?), seen.last_key_value().map(pair));
    for _ in 0..6 {
        let [from, to] = [(); 2].map(|()| key_of(KeyKind::Ordered, rng.below(WRITERS), rng.below(KEYS)));
        let (from, to) = if from <= to { (from, to) } else { (to, from) };
        let bounds = match rng.below(3) {
            0 => (Bound::Included(&from[..]), Bound::Excluded(&to[..])),
            1 => (Bound::Excluded(&from[..]), Bound::Included(&to[..])),
            _ => (Bound::Unbounded, Bound::Included(&to[..])),
        };
        let expected: Vec<(&Vec<u8>, &Vec<u8>)> =
            seen.iter().filter(|(key, _)| std::ops::RangeBounds::<[u8]>::contains(&bounds, key.as_slice())).collect();
        let mut entries = snapshot.range::<&[u8]>(id, bounds);
        let (mut front, mut back) = (Vec::new(), Vec::new());
        // From both ends, or from one.
        let from_back = rng.below(3) * 50;
        loop {
            let is_back = rng.below(100) < from_back;
            let Some(entry) = (if is_back { entries.next_back() } else { entries.next() }) else { break };
            (if is_back { &mut back } else { &mut front }).push(entry?);
        }
        front.extend(back.into_iter().rev());
        assert!(
            front.iter().map(|(key, value)| (key.as_bytes(), value)).eq(expected.iter().map(|(k, v)| (&k[..], *v)))
        );
        let keys = snapshot.range_keys::<&[u8]>(id, bounds).rev().collect::<Result<Vec<_>, _>>()?;
        assert!(keys.iter().map(|key| key.as_bytes()).eq(expected.iter().rev().map(|(key, _)| &key[..])));
        let prefix = format!("w{}/00", rng.below(WRITERS));
        let keys = snapshot.prefix_keys(id, prefix.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let expected = seen.keys().filter(|key| key.starts_with(prefix.as_bytes()));
        assert!(keys.iter().map(|key| key.as_bytes()).eq(expected.map(Vec::as_slice)));
    }
    Ok(())
}

/// Asserts that nothing is kept and that the counts of the device are right.
fn assert_nothing_kept(device: &Device) {
    device.settle().unwrap();
    let begun = std::time::Instant::now();
    while device.snapshot_stats().entry_count > 0 && begun.elapsed().as_secs() < 20 {
        std::thread::sleep(std::time::Duration::from_millis(5)); // it is released in steps
    }
    let stats = device.snapshot_stats();
    assert_eq!((stats.open_count, stats.kept_bytes, stats.entry_count, stats.memory_bytes), (0, 0, 0, 0));
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

/// Goal:   each of several open snapshots shows exactly what existed when it was opened, in namespaces of all kinds of keys: by gets,
///         listings, ranges from both ends, prefixes and counts; while others put, delete, delete ranges, and collection moves records.
///         What snapshots kept is released after they are closed.
/// Method: threads that change their own keys and a model of them; snapshots are opened while all of them pause, with copies of the models.
#[test]
fn snapshots_do_not_change() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let space =
        |kind: KeyKind| device.ensure_namespace(&format!("{kind:?}"), &NamespaceOptions::records(kind)).unwrap();
    let spaces = KINDS.map(space);
    let models: Vec<Mutex<Vec<Records>>> =
        (0..WRITERS).map(|_| Mutex::new(vec![Records::new(); KINDS.len()])).collect();
    let is_over = AtomicBool::new(false);
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        for (writer, model) in (0..).zip(&models) {
            let (spaces, is_over) = (&spaces, &is_over);
            scope.spawn(move || {
                let _over = Over(is_over); // also after a panic
                let mut rng = Rng::new(100 + writer);
                while !is_over.load(Ordering::Relaxed) {
                    change(&mut rng, spaces, writer, &mut model.lock().unwrap());
                }
            });
        }
        let mut rng = Rng::new(7);
        let mut open: Vec<(Snapshot, Vec<Records>)> = Vec::new();
        let erased = device.stats().erase_count;
        let mut rounds = 0;
        while rounds < 30 || device.stats().erase_count < erased + 100 {
            assert!(!is_over.load(Ordering::Relaxed), "a writer failed");
            rounds += 1;
            {
                let paused: Vec<_> = models.iter().map(|model| model.lock().unwrap()).collect();
                let all = (0..KINDS.len()).map(|kind| paused.iter().flat_map(|of| of[kind].clone()).collect());
                open.push((device.open_snapshot().unwrap(), all.collect()));
            }
            if open.len() > 4 {
                open.remove(rng.below(5) as usize);
            }
            let (snapshot, seen) = &open[rng.below(open.len() as u64) as usize];
            check(&mut rng, snapshot, &spaces, seen).unwrap();
        }
        drop(over);
        for (snapshot, seen) in &open {
            check(&mut rng, snapshot, &spaces, seen).unwrap();
        }
        assert_eq!(device.snapshot_stats().expired_count, 0);
    });
    assert_nothing_kept(&device);
}

/// Goal:   iterators show one moment, whatever is put and deleted meanwhile; a great many of them that are open do no harm, and none keeps
///         anything after it has ended or is dropped.
/// Method: 200 000 iterators in the middle of a namespace, opened between puts; one of each moment is compared with a copy of a map.
#[test]
fn iterators_show_one_moment() {
    let device = Device::in_memory(&CreateOptions::new(128 << 20)).unwrap();
    let space = device.ensure_namespace("n", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    let mut rng = Rng::new(3);
    let mut now: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for key in 0..100u64 {
        space.put(key, b"first").unwrap();
        now.insert(key, b"first".to_vec());
    }
    let (mut many, mut compared) = (Vec::new(), Vec::new());
    for moment in 0..200u64 {
        let mut entries = space.iter();
        assert_eq!(entries.next().unwrap().unwrap().0.as_u64(), now.keys().next().copied());
        compared.push((entries, now.clone()));
        for _ in 0..1000 {
            let mut keys = space.range_keys(0u64..);
            keys.next().unwrap().unwrap();
            many.push(keys);
        }
        for _ in 0..10 {
            let (key, value) = (rng.below(150), moment.to_le_bytes());
            match rng.below(3) {
                0 => {
                    space.delete(key).unwrap();
                    now.remove(&key);
                }
                _ => {
                    space.put(key, &value).unwrap();
                    now.insert(key, value.to_vec());
                }
            }
        }
    }
    assert_eq!(device.snapshot_stats().open_count, 200, "those of one moment share a snapshot");
    for (entries, seen) in compared {
        let found: Vec<(u64, Vec<u8>)> =
            entries.map(|entry| entry.map(|(key, value)| (key.as_u64().unwrap(), value)).unwrap()).collect();
        assert!(found.into_iter().eq(seen.into_iter().skip(1)));
    }
    let ended = many.pop().unwrap();
    ended.for_each(|key| drop(key.unwrap()));
    drop(many);
    assert_nothing_kept(&device);
}

/// Goal:   when snapshots keep more than they may, the oldest expire and newer ones remain; an iterator returns the same error; puts go on.
/// Method: a low limit of memory, and overwriting one part of the keys after each snapshot.
#[test]
fn the_oldest_snapshots_expire() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let space = device.ensure_namespace("n", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    (0..10_000u64).for_each(|key| space.put(key, b"old").unwrap());
    device.limit_snapshot_memory(4000 * 160);
    let mut entries = space.iter();
    entries.next().unwrap().unwrap();
    let mut open = Vec::new();
    for part in 0..5u64 {
        open.push(device.open_snapshot().unwrap());
        (part * 1500..(part + 1) * 1500).for_each(|key| space.put(key, b"new").unwrap());
        let stats = device.snapshot_stats();
        assert!(stats.memory_bytes <= 4001 * 160, "{stats:?}");
    }
    let read = |snapshot: &Snapshot| snapshot.get(space.id(), 9999u64);
    assert!(matches!(read(&open[0]), Err(Error::SnapshotTooOld)));
    assert_eq!(read(&open[4]).unwrap().as_deref(), Some(&b"old"[..]));
    assert_eq!(open[4].get(space.id(), 0u64).unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(open[4].get(space.id(), 6000u64).unwrap().as_deref(), Some(&b"old"[..]));
    let failed = entries.by_ref().find_map(Result::err).unwrap();
    assert!(matches!(failed, Error::SnapshotTooOld), "{failed}");
    assert!(entries.next().is_none(), "an iterator ends after an error");
    assert!(matches!(open[0].iter(space.id()).next(), Some(Err(Error::SnapshotTooOld))));
    drop((open, entries));
    assert_nothing_kept(&device);
}

/// Puts records until the device is full; how many it took.
fn fill(space: &Namespace, from: u64) -> u64 {
    for key in from.. {
        match space.put(key, &[7; 4000]) {
            Ok(()) => {}
            Err(error) if error.is_full() => return key,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("devices become full")
}

/// Goal:   a snapshot takes no room from puts: a device becomes full with as many records as without one, and overwriting all of them never
///         fails; the snapshot expires instead.
/// Method: two devices that are filled, one of them with snapshots open all the time.
#[test]
fn snapshots_expire_rather_than_puts_fail() {
    let device = || Device::in_memory(&CreateOptions::new(48 << 20)).unwrap();
    let space = |device: &Device| device.ensure_namespace("n", &NamespaceOptions::records(KeyKind::U64)).unwrap();
    let plain = device();
    let expected = fill(&space(&plain), 0);
    let device = device();
    let space = space(&device);
    let mut rng = Rng::new(5);
    (0..expected / 2).for_each(|key| space.put(key, &[1; 4000]).unwrap());
    let first = device.open_snapshot().unwrap();
    (0..expected / 2).for_each(|key| space.put(key, &[2; 4000]).unwrap());
    let found = fill(&space, expected / 2);
    assert!(found >= expected - expected / 50, "{found} records instead of {expected}");
    assert!(matches!(first.get(space.id(), 1u64), Err(Error::SnapshotTooOld)));
    // Overwriting needs room for one more record, with and without snapshots.
    (0..20u64).for_each(|key| space.delete(key).unwrap());
    let mut open = Vec::new();
    for _ in 0..found {
        if rng.below(100) == 0 {
            open.push(device.open_snapshot().unwrap());
        }
        space.put(20 + rng.below(found - 20), &[3; 4000]).unwrap();
    }
    assert!(device.snapshot_stats().expired_count > 1);
    drop((first, open));
    assert_nothing_kept(&device);
}

/// Goal:   snapshots refuse namespaces that were deleted since or created later, and everything after the device was closed; a device that
///         was closed or lost power with a snapshot open has nothing of it when it is opened again.
/// Method: a device in a file and one in memory whose pages collection has moved for a snapshot.
#[test]
fn what_is_gone_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    let options = CreateOptions { durability: Durability::Process, ..CreateOptions::new(64 << 20) };
    let device = Device::create(&path, &options).unwrap();
    let kept = device.ensure_namespace("kept", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    let gone = device.ensure_namespace("gone", &NamespaceOptions::records(KeyKind::U64)).unwrap();
    for key in 0..1000u64 {
        kept.put(key, &[1; 3000]).unwrap();
        gone.put(key, &[1; 3000]).unwrap();
    }
    let snapshot = device.open_snapshot().unwrap();
    assert_eq!(snapshot.namespaces().len(), 2);
    let later = device.ensure_namespace("later", &NamespaceOptions::records(KeyKind::U64)).unwrap();
    for round in 0..10u8 {
        for key in 0..1000u64 {
            kept.put(key, &[round; 3000]).unwrap();
            gone.put(key, &[round; 300]).unwrap();
        }
    }
    assert!(snapshot.get(gone.id(), 1u64).unwrap().is_some());
    device.delete_namespace(gone.id()).unwrap();
    assert!(snapshot.get(gone.id(), 1u64).unwrap_err().is_not_found());
    assert!(snapshot.get(later.id(), 1u64).unwrap_err().is_not_found());
    assert!(matches!(snapshot.range(later.id(), 0u64..).next(), Some(Err(Error::UnknownNamespace(_)))));
    let all = snapshot.iter(kept.id()).map(|entry| entry.unwrap().1);
    assert!(all.filter(|value| *value == [1; 3000]).count() == 1000);
    let mut entries = snapshot.iter(kept.id());
    entries.next().unwrap().unwrap();
    let id = kept.id();
    drop((kept, gone, later));
    device.close().unwrap();
    assert!(matches!(snapshot.get(id, 1u64), Err(Error::Closed)));
    assert!(matches!(entries.find_map(Result::err), Some(Error::Closed)));
    drop((snapshot, entries));
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    assert_nothing_kept(&device);
    let kept = device.open_namespace("kept").unwrap();
    assert_eq!(kept.count(0u64..).unwrap(), 1000);
    assert_eq!(kept.get(5u64).unwrap(), Some(vec![9; 3000]));
    let found = fill(&kept, 1000);
    assert!(found * 4000 > 40 << 20, "only {found} records found room");
}
