//! Keys of 1 byte to 1 KiB, in order and in none.

use kaml::{
    Batch, Condition, CreateOptions, Device, Error, KEY_BYTES_MAX, KeyBuf, KeyKind, KeyRef, Namespace,
    NamespaceOptions, OpenOptions,
};
use kaml_testkit::{Rng, bytes};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

const KINDS: [KeyKind; 2] = [KeyKind::Any, KeyKind::Ordered];

fn created(device: &Device, name: &str, keys: KeyKind) -> Namespace {
    device.ensure_namespace(name, &NamespaceOptions::records(keys)).unwrap()
}

/// A key of many shapes: short and long, with common prefixes, with every byte value, as long as can be.
fn key(rng: &mut Rng, space: u64) -> Vec<u8> {
    let number = rng.below(space);
    match number % 5 {
        0 => number.to_be_bytes().to_vec(),
        1 => format!("articles/{:04}/page-{number:09}", number % 7).into_bytes(),
        2 => [&[number as u8; 16][..], &number.to_le_bytes()[..(number % 3) as usize]].concat(),
        3 => format!("a very long key {number} {}", "x".repeat(number as usize % (KEY_BYTES_MAX - 40))).into_bytes(),
        _ => [&[0xff][..], &bytes(number, 1 + number as usize % 60)].concat(),
    }
}

fn contents(namespace: &Namespace) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let keys: Vec<KeyBuf> = namespace.keys().map(Result::unwrap).collect();
    let all: BTreeMap<_, _> =
        keys.iter().map(|key| (key.as_bytes().to_vec(), namespace.get(key).unwrap().unwrap())).collect();
    assert_eq!(all.len(), keys.len(), "each key is listed once");
    all
}

/// Goal:   long keys behave as short ones do, in both kinds, with small and large values, over closing, a crash-like reopening and collection.
/// Method: random puts, deletes, batches and conditions against a model; the device is small, so records move; it is opened again
///         several times.
#[test]
fn it_is_a_map() {
    for (seed, kind) in KINDS.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device.kaml");
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut rng = Rng::new(seed as u64);
        Device::create(&path, &CreateOptions::new(48 << 20)).unwrap().close().unwrap();
        for round in 0..6 {
            let device = Device::open(&path, &OpenOptions::default()).unwrap();
            let namespace = created(&device, "n", kind);
            assert_eq!(contents(&namespace), model, "{kind:?}, round {round}");
            for turn in 0..3000 {
                let key = key(&mut rng, 700);
                let length = match rng.below(100) {
                    0 => 40_000 + rng.below(100_000),
                    1 => 32_700 + rng.below(100),
                    _ => rng.below(6000),
                };
                match rng.below(10) {
                    0..5 => {
                        let value = bytes(turn, length as usize);
                        namespace.put(&key, &value).unwrap();
                        model.insert(key, value);
                    }
                    5 => {
                        namespace.delete(&key).unwrap();
                        model.remove(&key);
                    }
                    6 => {
                        let present = namespace.put_if(&key, b"new", Condition::IfAbsent);
                        match model.get(&key) {
                            Some(_) => {
                                let Err(Error::Conflict { key: named, present: true, .. }) = present else { panic!() };
                                assert_eq!(named.as_bytes(), key);
                            }
                            None => {
                                present.unwrap();
                                model.insert(key, b"new".to_vec());
                            }
                        }
                    }
                    7 => {
                        let mut batch = Batch::new();
                        for _ in 0..rng.below(20) + 1 {
                            let key = self::key(&mut rng, 700);
                            let value = bytes(turn, 100);
                            batch.put(namespace.id(), &key, &value);
                            model.insert(key, value);
                        }
                        device.write(&batch).unwrap();
                    }
                    _ => {
                        assert_eq!(namespace.get(&key).unwrap().as_ref(), model.get(&key));
                        assert_eq!(namespace.exists(&key).unwrap(), model.contains_key(&key));
                    }
                }
            }
            assert_eq!(contents(&namespace), model, "{kind:?}, round {round}");
            assert_eq!(namespace.info().unwrap().record_count, model.len() as u64);
            let report = device.check(&mut |_, _| ()).unwrap();
            assert_eq!((report.problems.len(), report.records), (0, model.len() as u64), "{:?}", report.problems);
            drop(namespace);
            device.close().unwrap();
        }
    }
}

/// Goal:   ranges are those of a sorted map, in both directions and from both ends at once.
/// Method: random bounds over keys of many shapes, compared with a `BTreeMap`; inverted and empty ranges.
#[test]
fn ranges_are_those_of_a_sorted_map() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let namespace = created(&device, "n", KeyKind::Ordered);
    let (mut rng, mut model) = (Rng::new(7), BTreeMap::new());
    for turn in 0..4000 {
        let key = key(&mut rng, 5000);
        let value = bytes(turn, rng.below(500) as usize);
        namespace.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    type Pair = (Vec<u8>, Vec<u8>);
    let taken =
        |entry: Result<(KeyBuf, Vec<u8>), Error>| entry.map(|(key, value)| (key.as_bytes().to_vec(), value)).unwrap();
    assert_eq!(namespace.iter().map(taken).collect::<BTreeMap<_, _>>(), model);
    let backwards: Vec<Pair> = namespace.iter().rev().map(taken).collect();
    assert!(backwards.iter().map(|(key, _)| key).eq(model.keys().rev()));
    for _ in 0..200 {
        let (from, to) = (key(&mut rng, 6000), key(&mut rng, 6000));
        let bound = |rng: &mut Rng, key: &Vec<u8>| match rng.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(key.clone()),
            _ => Bound::Excluded(key.clone()),
        };
        let (lower, upper) = (bound(&mut rng, &from), bound(&mut rng, &to));
        let is_within = |key: &[u8]| {
            let above = match &lower {
                Bound::Unbounded => true,
                Bound::Included(lower) => key >= lower.as_slice(),
                Bound::Excluded(lower) => key > lower.as_slice(),
            };
            above
                && match &upper {
                    Bound::Unbounded => true,
                    Bound::Included(upper) => key <= upper.as_slice(),
                    Bound::Excluded(upper) => key < upper.as_slice(),
                }
        };
        let expected: Vec<Pair> =
            model.iter().filter(|(key, _)| is_within(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
        let range = (lower.as_ref().map(KeyRef::from), upper.as_ref().map(KeyRef::from));
        assert_eq!(namespace.range(range).map(taken).collect::<Vec<_>>(), expected, "{range:?}");
        assert_eq!(namespace.count(range).unwrap(), expected.len() as u64);
        let keys: Vec<Vec<u8>> =
            namespace.range_keys(range).rev().map(|key| key.unwrap().as_bytes().to_vec()).collect();
        assert!(keys.iter().eq(expected.iter().rev().map(|(key, _)| key)));
        // From both ends in turns.
        let (mut entries, mut front, mut back) = (namespace.range(range), vec![], vec![]);
        loop {
            let entry = if rng.below(2) == 0 {
                entries.next().map(|e| front.push(taken(e)))
            } else {
                entries.next_back().map(|e| back.push(taken(e)))
            };
            if entry.is_none() {
                break;
            }
        }
        back.reverse();
        assert_eq!([front, back].concat(), expected);
    }
    let prefix = b"articles/0003/";
    let of_prefix = namespace.prefix(prefix).count();
    assert_eq!(of_prefix, model.keys().filter(|key| key.starts_with(prefix)).count());
    assert!(of_prefix > 0);
    let first = namespace.first().unwrap().map(|(key, _)| key.as_bytes().to_vec());
    assert_eq!(first.as_ref(), model.keys().next());
}

/// Goal:   an iterator over far more keys than it takes at a time ends, in both directions.
/// Method: more than sixty of its largest pages, of keys and of records.
#[test]
fn long_ranges_end() {
    const COUNT: u64 = 70_000;
    let device = Device::in_memory(&CreateOptions::new(128 << 20)).unwrap();
    let numbers = created(&device, "numbers", KeyKind::Ordered);
    for first in (0..COUNT).step_by(1000) {
        let mut batch = Batch::new();
        (first..first + 1000).for_each(|key| {
            batch.put(numbers.id(), key, b"");
        });
        device.write(&batch).unwrap();
    }
    assert_eq!(numbers.iter().map(Result::unwrap).count() as u64, COUNT);
    assert_eq!(numbers.iter().rev().map(Result::unwrap).count() as u64, COUNT);
    assert_eq!(numbers.range_keys(1u64..).map(Result::unwrap).count() as u64, COUNT - 1);
}

/// Goal:   after records have moved next to their neighbours, a scan of 100 reads few extents, every record is what it was or what was put meanwhile, and all
///         of it survives an opening; a second time nothing moves.
/// Method: puts in random order, twice over; the reads of scans are counted before and after; a thread puts and deletes meanwhile, some values are
///         large.
#[test]
fn clustered_records_are_read_together() {
    const RECORDS: u64 = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device.kaml");
    let device = Device::create(&path, &CreateOptions::new(128 << 20)).unwrap();
    let namespace = created(&device, "n", KeyKind::Ordered);
    let value = |key: u64, round: u64| bytes(key << 8 | round, if key % 2000 == 7 { 50_000 } else { 1000 });
    for round in 0..2 {
        (0..RECORDS).for_each(|i| {
            let key = (i * 7919 + round) % RECORDS;
            namespace.put(key, &value(key, round)).unwrap();
        });
    }
    device.settle().unwrap();
    let reads_per_scan = || {
        let before = device.stats().read_count;
        for from in (0..RECORDS - 100).step_by(997) {
            let small = namespace.range(from..from + 100).map(Result::unwrap).filter(|(_, value)| value.len() == 1000);
            assert!((99..=100).contains(&small.count()), "from {from}");
        }
        (device.stats().read_count - before) as f64 / (RECORDS - 100).div_ceil(997) as f64
    };
    let scattered = reads_per_scan();
    assert!(scattered > 50.0, "{scattered}");
    let changed = std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut rng = Rng::new(5);
            let mut changed = BTreeMap::new();
            for _ in 0..300 {
                // Of a part that no scan looks at.
                let key = RECORDS + rng.below(300);
                match rng.below(3) {
                    0 => {
                        namespace.delete(key).unwrap();
                        changed.insert(key, None);
                    }
                    _ => {
                        namespace.put(key, &value(key, 9)).unwrap();
                        changed.insert(key, Some(value(key, 9)));
                    }
                }
                let key = rng.below(RECORDS);
                namespace.put(key, &value(key, 3)).unwrap();
                changed.insert(key, Some(value(key, 3)));
            }
            changed
        });
        assert!(namespace.cluster(0u64..).unwrap() > RECORDS / 2);
        others.join().unwrap()
    });
    namespace.cluster(0u64..).unwrap();
    assert_eq!(namespace.cluster(0u64..).unwrap(), 0, "nothing is left to move");
    let clustered = reads_per_scan();
    assert!(clustered < 12.0, "{clustered} reads per scan, {scattered} before");
    let check = |device: &Device| {
        let namespace = created(device, "n", KeyKind::Ordered);
        for key in 0..RECORDS + 300 {
            let first = (key < RECORDS).then(|| value(key, 1));
            let expected = changed.get(&key).cloned().unwrap_or(first);
            assert!(namespace.get(key).unwrap() == expected, "key {key}");
        }
        let report = device.check(&mut |_, _| ()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    };
    check(&device);
    drop(namespace);
    device.close().unwrap();
    check(&Device::open(&path, &OpenOptions::default()).unwrap());
}

/// Goal:   scans move what they read from many places, so that the next ones read few extents; that costs at most one more write of each record that hosts
///         put; nothing is lost by it. (On a device of 1 GiB, whose erase blocks are longer, it comes to 3.8 reads; here to 4.4.)
/// Method: a device that is four fifths full, its records overwritten in random order; scans of 100 at random, later with overwrites between them;
///         the same puts in a namespace without order.
#[test]
fn scans_cluster_what_they_read() {
    const RECORDS: u64 = 72_000;
    let value = |key: u64, round: u64| bytes(key << 16 | round, 1000);
    let run = |kind: KeyKind| {
        let device = Device::in_memory(&CreateOptions::new(128 << 20)).unwrap();
        let namespace = created(&device, "n", kind);
        let (mut rng, mut rounds) = (Rng::new(1), vec![0; RECORDS as usize]);
        let mut put = |round: u64, count: u64, in_turn: bool| {
            (0..count).for_each(|i| {
                let key = if in_turn { i * 7919 % RECORDS } else { rng.below(RECORDS) };
                namespace.put(key, &value(key, round)).unwrap();
                rounds[key as usize] = round;
            })
        };
        put(0, RECORDS, true);
        put(1, 2 * RECORDS, false);
        device.settle().unwrap();
        let info = device.stats();
        assert!(info.live_bytes * 10 > info.capacity_bytes * 7, "{} of {}", info.live_bytes, info.capacity_bytes);
        let mut scans = Rng::new(2);
        let mut reads_per_scan = |count: u64| {
            let before = device.stats().read_count;
            for _ in 0..count {
                let from = scans.below(RECORDS - 100);
                assert_eq!(namespace.range(from..from + 100).map(Result::unwrap).count(), 100);
            }
            (device.stats().read_count - before) as f64 / count as f64
        };
        let mut reads = Vec::new();
        if kind == KeyKind::Ordered {
            reads.extend([1500, 1500, 300].map(&mut reads_per_scan));
        }
        let stats = device.stats();
        let written = (stats.write_amplification(), stats.relocated_bytes as f64 / stats.host_bytes as f64);
        for round in 2..5 {
            put(round, RECORDS / 8, false);
            device.settle().unwrap();
            if kind == KeyKind::Ordered {
                reads.push(reads_per_scan(800));
            }
        }
        for (key, round) in (0..).zip(rounds) {
            assert!(namespace.get(key).unwrap() == Some(value(key, round)), "key {key}");
        }
        assert!(device.check(&mut |_, _| ()).unwrap().problems.is_empty());
        (reads, written)
    };
    let (_, without) = run(KeyKind::U64);
    let (reads, with) = run(KeyKind::Ordered);
    println!("{reads:.1?} reads; written and moved {with:.2?} times with clustering, {without:.2?} without");
    assert!(reads[0] > 20.0 && reads[2] <= 5.0, "{reads:.1?}");
    assert!(with.0 <= without.0 + 1.0, "{with:.2?} {without:.2?}");
}

/// Goal:   a deleted range is gone, and nothing else; also on a device whose batches are small, and after it is opened again. However many records it
///         has, it writes one short record to the ring, and collection gets their flash.
/// Method: ranges and prefixes of long and short keys, compared with a map, then all at once; check counts what is live.
#[test]
fn ranges_are_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device.kaml");
    let device = Device::create(&path, &CreateOptions::new(32 << 20)).unwrap();
    let namespace = created(&device, "n", KeyKind::Ordered);
    let (mut rng, mut model) = (Rng::new(9), BTreeMap::new());
    for turn in 0..6000 {
        let (key, value) = (key(&mut rng, 9000), bytes(turn, rng.below(300) as usize));
        namespace.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    let before = model.len();
    assert!(namespace.delete_prefix("articles/0002/").unwrap() > 0);
    model.retain(|key, _| !key.starts_with(b"articles/0002/"));
    assert!(model.len() < before);
    for _ in 0..3 {
        let (from, to) = (key(&mut rng, 9000), key(&mut rng, 9000));
        let is_within = |key: &[u8]| key >= from.as_slice() && key < to.as_slice();
        let count = model.keys().filter(|key| is_within(key)).count() as u64;
        let range = (Bound::Included(KeyRef::from(&from)), Bound::Excluded(KeyRef::from(&to)));
        assert_eq!(namespace.delete_range(range).unwrap(), count);
        model.retain(|key, _| !is_within(key));
    }
    assert!(!model.is_empty());
    assert_eq!(contents(&namespace), model);
    drop(namespace);
    device.close().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    let namespace = created(&device, "n", KeyKind::Ordered);
    assert_eq!(contents(&namespace), model);
    let ring_bytes = device.stats().ring_bytes;
    assert_eq!(namespace.delete_prefix("").unwrap(), model.len() as u64);
    assert!(model.len() > 1000 && device.stats().ring_bytes - ring_bytes <= 4096);
    assert_eq!((namespace.count::<&str>(..).unwrap(), device.stats().live_bytes), (0, 0));
    assert!(device.check(&mut |_, _| ()).unwrap().problems.is_empty());
}

/// Goal:   others never find a part of a range deleted and then whole again; puts into a range that is being deleted are in it or come after.
/// Method: threads that put and delete in the range, one that deletes it, conditions that count what each delete removed.
#[test]
fn ranges_are_deleted_while_others_put() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let namespace = created(&device, "n", KeyKind::Ordered);
    let (mut put, mut deleted, is_enough) = (0, 0, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3u64)
            .map(|writer| {
                let (namespace, is_enough) = (&namespace, &is_enough);
                scope.spawn(move || {
                    let put = |turn: u64| namespace.put_if(writer * 1000 + turn % 50, b"x", Condition::IfAbsent);
                    let turns = (0..2_000_000).take_while(|_| !is_enough.load(Ordering::Relaxed));
                    turns.filter(|turn| put(*turn).is_ok()).count() as u64
                })
            })
            .collect();
        while deleted <= 200 && !writers.iter().all(|writer| writer.is_finished()) {
            deleted += namespace.delete_range(0u64..2500).unwrap_or(0);
        }
        is_enough.store(true, Ordering::Relaxed);
        put += writers.into_iter().map(|writer| writer.join().unwrap()).sum::<u64>();
    });
    assert_eq!(put, deleted + namespace.count(0u64..).unwrap());
    assert!(deleted > 200, "{deleted} of {put}");
}

/// Goal:   what is no key, and what a namespace does not have, is a typed error.
/// Method: empty keys, keys above the limit, long keys where short ones belong, ranges where there is no order.
#[test]
fn mistakes_are_named() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let [any, ordered] = KINDS.map(|kind| created(&device, &format!("{kind:?}"), kind));
    let short = created(&device, "short", KeyKind::Bytes);
    let longest = vec![7; KEY_BYTES_MAX];
    for namespace in [&any, &ordered] {
        assert!(matches!(namespace.put("", b""), Err(Error::BadKey(_))));
        assert!(matches!(namespace.get(&vec![7; KEY_BYTES_MAX + 1]), Err(Error::BadKey(_))));
        namespace.put(&longest, b"longest").unwrap();
        assert_eq!(namespace.get(&longest).unwrap().unwrap(), b"longest");
    }
    for refused in [short.put(&longest, b""), short.get(&longest).map(drop)] {
        let Err(Error::BadKey(error)) = refused else { panic!("{refused:?}") };
        assert_eq!(error.len, KEY_BYTES_MAX);
    }
    assert!(matches!(any.iter().next(), Some(Err(Error::NotOrdered(_)))));
    assert!(matches!(short.count("a".."b"), Err(Error::NotOrdered(_))));
    assert!(matches!(device.list(ordered.id(), None, 10), Err(Error::ListedByRange(_))));
    assert_eq!(ordered.range("z".."a").count(), 0);
    let mut entries = ordered.iter();
    device.delete_namespace(ordered.id()).unwrap();
    assert!(matches!(entries.next(), Some(Err(Error::UnknownNamespace(_)))));
    assert!(entries.next().is_none());
}
