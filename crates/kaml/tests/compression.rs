//! Compressed values, through every way to put and to get them.

use kaml::{
    Batch, BlockOptions, Bytes, Compression, Condition, CreateOptions, Device, Durability, Error, Expiry, KeyKind,
    Namespace, NamespaceChange, NamespaceOptions, OpenOptions, Operand, RestoreSource, VersionOptions,
};
use std::ops::ControlFlow;
use std::time::Duration;

/// JSON of so many bytes that no other number has.
fn json(number: u64, bytes: usize) -> Vec<u8> {
    let mut text = format!("{{\"id\":{number}");
    let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    while text.len() < bytes {
        word = word.rotate_left(17).wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(number);
        let (name, count) = (["user", "order", "city", "status", "price"][(word % 5) as usize], word >> 50);
        text +=
            &format!(",\"{name}\":\"{count}\",\"updated_at\":\"2026-11-{:02}T12:{:02}:00Z\"", count % 30, count % 60);
    }
    text.truncate(bytes);
    text.into_bytes()
}

fn random(number: u64, bytes: usize) -> Vec<u8> {
    let mut word = number | 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// Values of all sizes, some of which cannot be compressed.
fn value(number: u64) -> Vec<u8> {
    let bytes = [0, 7, 63, 64, 200, 1000, 1024, 5000, 31_000, 32_768, 40_000, 100_000, 700_000][number as usize % 13];
    if number % 5 == 4 { random(number, bytes) } else { json(number, bytes) }
}

const METHODS: [Compression; 2] = [Compression::Lz4, Compression::Zstd];
const KINDS: [KeyKind; 4] = [KeyKind::U64, KeyKind::Bytes, KeyKind::Any, KeyKind::Ordered];

fn key(kind: KeyKind, number: u64) -> Vec<u8> {
    match kind {
        KeyKind::U64 => number.to_be_bytes().to_vec(),
        KeyKind::Bytes => format!("key {number}").into_bytes(),
        _ if number.is_multiple_of(2) => format!("{number:04}").into_bytes(),
        _ => format!("{number:04} is a key of more than sixteen bytes").into_bytes(),
    }
}

fn in_memory() -> Device {
    Device::in_memory(&CreateOptions::new(256 << 20)).unwrap()
}

fn compressing(device: &Device, name: &str, kind: KeyKind, method: Compression) -> Namespace {
    device.ensure_namespace(name, &NamespaceOptions::records(kind).with_compression(method)).unwrap()
}

/// Everything is as it was put, however it is read.
fn check(space: &Namespace, kind: KeyKind, numbers: std::ops::Range<u64>) {
    let device = space.device();
    let (mut queue, mut answers) = (device.queue(8), Vec::new());
    let snapshot = device.open_snapshot().unwrap();
    for number in numbers.clone() {
        let (key, expected) = (key(kind, number), value(number));
        assert_eq!(space.get(&key).unwrap().as_ref(), Some(&expected), "{kind:?} {number}");
        assert_eq!(device.get_bytes(space.id(), &key, Bytes::default()).unwrap().unwrap(), expected);
        assert_eq!(snapshot.get(space.id(), &key).unwrap().unwrap(), expected);
        queue.get(number, space.id(), &key).unwrap();
    }
    while queue.in_flight() > 0 {
        queue.poll(true, &mut answers);
    }
    queue.poll(false, &mut answers);
    assert_eq!(answers.len() as u64, numbers.end - numbers.start);
    for answer in answers {
        assert_eq!(answer.result.unwrap().unwrap(), value(answer.token), "{kind:?} {}", answer.token);
    }
    if kind == KeyKind::Ordered {
        let found: Vec<_> = space.iter().map(|record| record.unwrap()).collect();
        assert_eq!(found.len() as u64, numbers.end - numbers.start);
        for (number, (found_key, found)) in numbers.clone().zip(found) {
            assert_eq!((found_key.as_bytes(), found), (&key(kind, number)[..], value(number)));
        }
    }
    assert_eq!(space.keys().filter(|key| key.is_ok()).count() as u64, numbers.end - numbers.start);
}

/// Goal:   values come back as they were put, from write buffers and from flash, of each size and under each kind of key; and take less.
/// Method: put with a call, a batch, a queue and under a condition; read in each way, before and after they are programmed; from copies of the
///         file that were taken in both states, and after the device was closed; check each.
#[test]
fn values_come_back() {
    for method in METHODS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.kaml");
        let options = CreateOptions { durability: Durability::Process, ..CreateOptions::new(256 << 20) };
        let device = Device::create(&path, &options).unwrap();
        for kind in KINDS {
            let space = compressing(&device, &format!("{kind:?}"), kind, method);
            for number in 0..13 {
                space.put(&key(kind, number), &value(number)).unwrap();
            }
            for number in 13..26 {
                let mut batch = Batch::new();
                batch.put(space.id(), &key(kind, number), &value(number)).delete(space.id(), &key(kind, 999));
                device.write(&batch).unwrap();
            }
            let (mut queue, mut answers) = (device.queue(8), Vec::new());
            for number in 26..39 {
                queue.put(number, space.id(), &key(kind, number), &value(number)).unwrap();
            }
            while queue.in_flight() > 0 {
                queue.poll(true, &mut answers);
            }
            for number in 39..52 {
                space.put_if(&key(kind, number), &value(number), Condition::IfAbsent).unwrap();
                space.put_if(&key(kind, number), b"", Condition::IfAbsent).unwrap_err();
            }
            check(&space, kind, 0..52);
            let compressed = space.info().unwrap().compressed;
            assert!(compressed.given_bytes > 2_000_000 && compressed.ratio() < 0.6, "{method}: {compressed:?}");
        }
        let [in_ring, in_pages] = ["ring.kaml", "pages.kaml"].map(|name| dir.path().join(name));
        std::fs::copy(&path, &in_ring).unwrap();
        device.settle().unwrap();
        for kind in KINDS {
            check(&device.open_namespace(&format!("{kind:?}")).unwrap(), kind, 0..52);
        }
        let report = device.check(&mut |_, _| {}).unwrap();
        assert_eq!((report.problems.len(), report.records), (0, 4 * 52), "{:?}", report.problems);
        let given: u64 = (0..52).map(|number| value(number).len() as u64).sum();
        assert_eq!(report.value_bytes, 4 * given, "bytes as they were given are counted");
        std::fs::copy(&path, &in_pages).unwrap();
        device.close().unwrap();
        for copy in [in_ring, in_pages, path] {
            let device = Device::open(&copy, &OpenOptions::default()).unwrap();
            for kind in KINDS {
                let space = device.open_namespace(&format!("{kind:?}")).unwrap();
                assert_eq!(space.info().unwrap().compression, method, "it is an attribute of the namespace");
                check(&space, kind, 0..52);
            }
            assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
            device.close().unwrap();
        }
    }
}

/// Goal:   compressed values take the space that they are said to save.
/// Method: the live bytes of two devices with the same JSON of 1 KiB.
#[test]
fn values_take_less_space() {
    let live = |method| {
        let device = in_memory();
        let space = compressing(&device, "pages", KeyKind::U64, method);
        (0..2000u64).for_each(|number| space.put(number, &json(number, 1024)).unwrap());
        device.settle().unwrap();
        let stats = device.stats();
        (stats.live_bytes, stats.ring_bytes, space.info().unwrap().compressed)
    };
    let (plain, plain_ring, nothing) = live(Compression::None);
    assert_eq!((nothing.given_bytes, nothing.ratio()), (0, 1.0));
    for (method, at_most) in [(Compression::Lz4, 0.6), (Compression::Zstd, 0.5)] {
        let (bytes, ring, compressed) = live(method);
        let ratio = bytes as f64 / plain as f64;
        assert!(ratio < at_most, "{method}: {ratio:.3} of the pages");
        assert!(
            (ring as f64) < at_most * 1.1 * plain_ring as f64,
            "{method}: {ring} of {plain_ring} bytes of the ring"
        );
        assert_eq!(compressed.given_bytes, 2000 * 1024);
        assert!(compressed.ratio() < at_most, "{method}: {compressed:?}");
    }
}

/// Goal:   what saves nothing is stored as it is.
/// Method: random values; values that are shorter than a chunk.
#[test]
fn what_saves_nothing_is_stored_as_it_is() {
    let device = in_memory();
    for method in METHODS {
        let space = compressing(&device, &method.to_string(), KeyKind::U64, method);
        (0..300u64).for_each(|number| space.put(number, &random(number, 1024)).unwrap());
        (0..300u64).for_each(|number| space.put(1000 + number, &[b'a'; 40]).unwrap());
        assert_eq!(space.info().unwrap().compressed.ratio(), 1.0);
        space.put(1u64, &json(1, 2000)).unwrap();
        (0..300u64).for_each(|number| space.put(2000 + number, &json(number, 2000)).unwrap());
        assert!(space.info().unwrap().compressed.ratio() < 0.95, "it notices that values can be compressed again");
    }
}

/// Goal:   a namespace can begin and end to compress while it is in use; old and new records are read, whatever method they have.
/// Method: change the attribute between puts; open the device again.
#[test]
fn the_method_can_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.kaml");
    let device = Device::create(&path, &CreateOptions::new(64 << 20)).unwrap();
    let space = device.ensure_namespace("n", &NamespaceOptions::records(KeyKind::U64)).unwrap();
    let methods = [Compression::None, Compression::Zstd, Compression::Lz4, Compression::None];
    for (at, method) in methods.into_iter().enumerate() {
        let change = NamespaceChange { compression: Some(method), ..NamespaceChange::default() };
        device.set_namespace(space.id(), &change).unwrap();
        assert_eq!(space.info().unwrap().compression, method);
        (0..50).for_each(|number| space.put(at as u64 * 50 + number, &json(number, 900)).unwrap());
    }
    let change = NamespaceChange { compression: Some(Compression::Zstd), ..NamespaceChange::default() };
    device.set_namespace(space.id(), &change).unwrap();
    drop(space);
    device.close().unwrap();
    let device = Device::open(&path, &OpenOptions::default()).unwrap();
    let space = device.open_namespace("n").unwrap();
    assert_eq!(space.info().unwrap().compression, Compression::Zstd);
    for number in 0..200u64 {
        assert_eq!(space.get(number).unwrap().unwrap(), json(number % 50, 900));
    }
}

/// Goal:   what cannot compress refuses that, and states why; limits concern values as they are given.
/// Method: namespaces of blocks and of versions, created and changed; a value above the limit that compresses well.
#[test]
fn what_cannot_be_is_refused() {
    let device = in_memory();
    let versions = NamespaceOptions::from(VersionOptions::default());
    let blocks = NamespaceOptions::from(BlockOptions::new(4096, 100));
    for options in [versions, blocks] {
        let refused = device.create_namespace("n", &options.clone().with_compression(Compression::Lz4)).unwrap_err();
        assert!(matches!(refused, Error::BadCompression(_)) && refused.to_string().contains("without"), "{refused}");
        let id = device.create_namespace("n", &options).unwrap();
        let change = NamespaceChange { compression: Some(Compression::Zstd), ..NamespaceChange::default() };
        assert!(matches!(device.set_namespace(id, &change), Err(Error::BadCompression(_))));
        device.delete_namespace(id).unwrap();
    }
    let space = compressing(&device, "records", KeyKind::U64, Compression::Zstd);
    let max = device.info().value_bytes_max as usize;
    space.put(1u64, &vec![7; max]).unwrap();
    assert!(space.get(1u64).unwrap().unwrap() == vec![7; max]);
    let refused = space.put(1u64, &vec![7; max + 1]).unwrap_err();
    assert!(refused.is_too_large(), "{refused}");
}

/// Goal:   counters, expected values and times work in a namespace that compresses.
/// Method: operands on what is a counter and what is not; the right and a wrong expected value, in a write buffer and on flash.
#[test]
fn operands_and_times_work() {
    let device = in_memory();
    let space = compressing(&device, "n", KeyKind::Bytes, Compression::Zstd);
    assert_eq!((space.add("visits", 5).unwrap(), space.add("visits", 2).unwrap()), (5, 7));
    let text = json(1, 1000);
    let mut other = text.clone();
    other[500] ^= 1;
    for settles in [false, true] {
        space.put("text", &text).unwrap();
        if settles {
            device.settle().unwrap();
        }
        let refused = space.apply("text", Operand::Max(1)).unwrap_err();
        assert!(matches!(refused, Error::NotACounter { bytes: 1000, .. }), "{refused:?}");
        for wrong in [&other[..], b"short"] {
            let refused = space.compare_and_set("text", Some(wrong), None).unwrap_err();
            assert!(matches!(refused, Error::ValueDiffers { present: true, .. }), "{refused:?}");
        }
        space.compare_and_set("text", Some(&text), Some(&other)).unwrap();
        assert_eq!(space.get("text").unwrap().unwrap(), other);
    }
    let mut batch = Batch::new();
    batch.put(space.id(), "text", &text).apply(space.id(), "text", Operand::Add(1));
    assert!(matches!(device.write(&batch), Err(Error::NotACounter { bytes: 1000, .. })));
    space.put_expiring("soon", &text, Expiry::After(Duration::from_secs(3600))).unwrap();
    let large = json(2, 90_000);
    space.put_expiring("large", &large, Expiry::After(Duration::from_secs(3600))).unwrap();
    assert_eq!(
        (space.get("soon").unwrap().unwrap(), space.get("large").unwrap().unwrap()),
        (text.clone(), large.clone())
    );
    device.settle().unwrap();
    assert_eq!((space.get("soon").unwrap().unwrap(), space.get("large").unwrap().unwrap()), (text, large));
    assert!(matches!(space.expiry("soon").unwrap(), Some(Expiry::At(_))));
}

/// Goal:   collection moves compressed records as they are, and nothing is lost.
/// Method: overwrite a small device several times; read everything, and check it.
#[test]
fn collection_moves_them() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let space = compressing(&device, "n", KeyKind::Any, Compression::Zstd);
    // Half of each value cannot be compressed.
    let of = |round: u64, number: u64| {
        let (seed, bytes) = (round * 7919 + number, 450 + (number % 7) as usize * 500);
        [json(seed, bytes), random(seed, bytes)].concat()
    };
    const KEYS: u64 = 13_000;
    let last = |number: u64| (0..8).rev().find(|round| !(number + round).is_multiple_of(3)).unwrap_or(0);
    for round in 0..8 {
        for number in (0..KEYS).map(|at| at * 7919 % KEYS).filter(|number| round == 0 || (number + round) % 3 != 0) {
            space.put(&key(KeyKind::Any, number), &of(round, number)).unwrap();
        }
    }
    assert!(device.stats().relocated_bytes > 0, "something was collected: {:?}", device.stats());
    for number in 0..KEYS {
        let found = space.get(&key(KeyKind::Any, number)).unwrap().unwrap();
        assert!(found == of(last(number), number), "{number}");
    }
    assert!(space.info().unwrap().compressed.ratio() < 0.8);
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

/// Goal:   a backup of compressed records restores equal bytes, and the attribute.
/// Method: back up a device with values of all sizes, then what is new; change the method of one namespace between; restore both, compare.
#[test]
fn backups_restore_equal_values() {
    let dir = tempfile::tempdir().unwrap();
    let [full, more, copy] = ["full", "more", "copy.kaml"].map(|name| dir.path().join(name));
    let device = in_memory();
    for kind in KINDS {
        let space = compressing(&device, &format!("{kind:?}"), kind, Compression::Zstd);
        (0..26).for_each(|number| space.put(&key(kind, number), &value(number)).unwrap());
    }
    device.settle().unwrap();
    device.backup_to_file(&full, None, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let first = device.namespace("U64").unwrap();
    let change = NamespaceChange { compression: Some(Compression::Lz4), ..NamespaceChange::default() };
    device.set_namespace(first, &change).unwrap();
    for kind in KINDS {
        let space = device.open_namespace(&format!("{kind:?}")).unwrap();
        (26..39).for_each(|number| space.put(&key(kind, number), &value(number)).unwrap());
    }
    device.backup_to_file(&more, Some(&full), &mut |_, _| ControlFlow::Continue(())).unwrap();
    let sources = vec![RestoreSource::file(&full), RestoreSource::file(&more)];
    Device::restore(sources, &copy, &CreateOptions::new(256 << 20), &mut |_| ControlFlow::Continue(())).unwrap();
    let device = Device::open(&copy, &OpenOptions::default()).unwrap();
    for kind in KINDS {
        let space = device.open_namespace(&format!("{kind:?}")).unwrap();
        check(&space, kind, 0..39);
        let expected = if kind == KeyKind::U64 { Compression::Lz4 } else { Compression::Zstd };
        assert_eq!(space.info().unwrap().compression, expected);
    }
    let live = device.stats().live_bytes;
    let given: u64 = 4 * (0..39).map(|number| value(number).len() as u64).sum::<u64>();
    assert!((live as f64) < 0.7 * given as f64, "{live} bytes for {given}");
}
