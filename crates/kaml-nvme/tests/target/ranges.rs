//! Keys above 16 bytes and ranges of keys.

use crate::memory::peak_bytes;
use crate::world::{World, key, run_alone};
use kaml::store::{Store, StoreOptions};
use kaml::{Batch, BlockOptions, Condition, CreateOptions, Device, KeyBuf, KeyKind, NamespaceId, NamespaceOptions};
use kaml_nvme::host::{Error, KeyValue, Wait};
use kaml_nvme::wire::command::{Command, kv};
use kaml_nvme::wire::manage::{PutAction, encode_long_put};
use kaml_nvme::wire::ranges::{KeyRange, PAGE_BYTES_MIN, flag};
use kaml_nvme::wire::status::Status;
use kaml_testkit::{Rng, bytes};
use std::collections::BTreeMap;
use std::ops::Bound::{self, Excluded, Included, Unbounded};

fn space_of(device: &Device, name: &str, keys: KeyKind) -> NamespaceId {
    device.create_namespace(name, &NamespaceOptions::records(keys)).unwrap()
}

fn buf(bytes: &[u8]) -> KeyBuf {
    KeyBuf::new(bytes).unwrap()
}

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    result.unwrap_err().status().expect("an answer of the controller")
}

/// A key of few letters, so that keys share prefixes; most are short.
fn some_key(rng: &mut Rng) -> Vec<u8> {
    let length = [1, 2, 3, 5, 16, 17, 40, 1024][rng.below(8) as usize];
    (0..length).map(|_| [0, b'a', b'b', 0xff][rng.below(4) as usize]).collect()
}

/// Goal:   keys of 1 to 1024 bytes are stored, read, found, deleted and listed over the network, with values of any size, in both kinds of
///         namespaces that have them; conditions and batches over several namespaces hold.
/// Method: 400 random changes against a model; values to 2 MiB; a batch that fails, on long keys; a listing in pages of 7; the device itself.
#[test]
fn long_keys_are_keys() {
    for kind in [KeyKind::Any, KeyKind::Ordered] {
        let world = World::new();
        let (nsid, other) = (space_of(&world.device, "long", kind), world.namespace("other"));
        let remote = world.remote();
        let (mut rng, mut model) = (Rng::new(44), BTreeMap::new());
        for round in 0..400u64 {
            let key = some_key(&mut rng);
            let size =
                [0, 3, 4084, 4085, 5000, 40_000, 2 << 20][rng.below(if round % 40 == 0 { 7 } else { 5 }) as usize];
            let (exists, value) = (model.contains_key(&key), bytes(round, size));
            let condition = [Condition::Always, Condition::IfAbsent, Condition::IfPresent][rng.below(3) as usize];
            let holds = condition == Condition::Always || (condition == Condition::IfPresent) == exists;
            match rng.below(4) {
                0 => {
                    let mut batch = Batch::new();
                    batch.delete_if_present(nsid, &key).put(other, round, &value[..value.len().min(100)]);
                    let deleted = remote.write(&batch);
                    assert_eq!(deleted.is_ok(), exists, "{round}");
                    assert_eq!(remote.exists(other, round).unwrap(), exists, "{round}");
                    model.remove(&key);
                }
                _ => {
                    let stored = remote.put_if(nsid, &key, &value, condition);
                    assert_eq!(stored.is_ok(), holds, "{round}: {stored:?}");
                    if let Err(error) = stored {
                        assert!(matches!(error, kaml::Error::Conflict { present, .. } if present == exists), "{error}");
                    } else {
                        model.insert(key, value);
                    }
                }
            }
            let asked = some_key(&mut rng);
            assert_eq!(remote.exists(nsid, &asked).unwrap(), model.contains_key(&asked), "{round}");
            assert!(remote.get(nsid, &asked).unwrap() == model.get(&asked).cloned(), "{round}");
        }
        for (key, value) in &model {
            assert!(remote.get(nsid, key).unwrap().as_ref() == Some(value));
            assert!(world.device.get(nsid, key).unwrap().as_ref() == Some(value), "on the device itself");
        }
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = remote.list(nsid, after.as_ref(), 7).unwrap();
            let Some(last) = page.last() else { break };
            (after, listed) = (Some(last.clone()), [listed, page].concat());
        }
        if kind == KeyKind::Ordered {
            assert!(listed.is_sorted());
        }
        listed.sort();
        assert!(listed.iter().map(KeyBuf::as_bytes).eq(model.keys().map(Vec::as_slice)), "{kind:?}");
        let too_long = remote.put_if(nsid, &[1; 1025], b"", Condition::Always).unwrap_err();
        assert!(too_long.to_string().contains("1025 bytes"), "{too_long}");
        let too_long = remote.put_if(other, &[1; 17], b"", Condition::Always).unwrap_err();
        assert!(too_long.to_string().contains("invalid key size"), "{too_long}");
    }
}

/// Goal:   ranges over the network are those of a model: bounds, prefixes, both directions, limits, keys with values and alone, counts, deletes;
///         whatever the room, every record is returned once.
/// Method: 300 random keys, 150 random ranges, of which each tenth is deleted; rooms for the longest key up to all records.
#[test]
fn ranges_match_a_model() {
    let world = World::new();
    let nsid = space_of(&world.device, "ordered", KeyKind::Ordered);
    let (remote, host) = (world.remote(), world.host());
    let (mut rng, mut model) = (Rng::new(7), BTreeMap::new());
    for number in 0..300u64 {
        let (key, value) = (some_key(&mut rng), bytes(number, (rng.below(3) * 977) as usize));
        world.device.put(nsid, &key, &value).unwrap();
        model.insert(key, value);
    }
    for round in 0..150 {
        let mut bound = || {
            let key = some_key(&mut rng);
            [Unbounded, Included(key.clone()), Excluded(key)][rng.below(3) as usize].clone()
        };
        let (lower, upper) = (bound(), bound());
        let within = |key: &[u8]| {
            (match &lower {
                Included(from) => key >= from.as_slice(),
                Excluded(from) => key > from.as_slice(),
                Unbounded => true,
            }) && (match &upper {
                Included(to) => key <= to.as_slice(),
                Excluded(to) => key < to.as_slice(),
                Unbounded => true,
            })
        };
        let (reverse, limit) = (rng.below(2) == 1, if rng.below(2) == 0 { 1000 } else { rng.below(20) as usize });
        let mut expected: Vec<(KeyBuf, Vec<u8>)> =
            model.iter().filter(|(key, _)| within(key)).map(|(key, value)| (buf(key), value.clone())).collect();
        let count = expected.len() as u64;
        if reverse {
            expected.reverse();
        }
        let bounds = || (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
        assert_eq!(remote.count_range(nsid, bounds()).unwrap(), count, "{round}");
        let records = remote.range(nsid, bounds(), reverse, limit).unwrap();
        assert!(records.iter().eq(expected.iter().take(limit)), "{round}");
        let keys = remote.range_keys(nsid, bounds(), reverse, limit).unwrap();
        assert!(keys.iter().eq(expected.iter().take(limit).map(|(key, _)| key)), "{round}");
        // The same with a prefix, as another host would do it.
        let prefix = some_key(&mut rng);
        expected.retain(|(key, _)| key.as_bytes().starts_with(&prefix));
        let space = KeyValue::new(&host.queues()[0], nsid);
        let owned = |bound: &Bound<Vec<u8>>| bound.as_ref().map(|key| buf(key));
        let mut range = KeyRange { lower: owned(&lower), upper: owned(&upper), prefix };
        let (room, mut found) = (PAGE_BYTES_MIN + (rng.below(40) * rng.below(2000)) as usize, Vec::new());
        let is_inverted = KeyRange::within(bounds().0, bounds().1).is_none();
        if is_inverted {
            assert_eq!(status(space.name_range(&range)), Status::INVERTED_RANGE);
            assert_eq!(status(space.delete_range(&range)), Status::INVERTED_RANGE);
            continue;
        }
        assert_eq!(space.count_range(&range).unwrap(), expected.len() as u64, "{round}");
        loop {
            let number = space.name_range(&range).unwrap();
            let flags = if reverse { flag::REVERSE } else { 0 };
            let (page, has_more) = space.retrieve_range(number, flags, 0, room).unwrap();
            let Some(last) = page.last() else { break };
            *(if reverse { &mut range.upper } else { &mut range.lower }) = Excluded(last.key.clone());
            found.extend(page);
            if !has_more {
                break;
            }
        }
        assert!(found.iter().map(|record| &record.key).eq(expected.iter().map(|(key, _)| key)), "{round}");
        for (record, (_, value)) in found.iter().zip(&expected) {
            assert_eq!(record.value_bytes, value.len());
            assert!(record.value.as_ref().is_none_or(|found| found == value), "{round}");
            assert!(record.value.is_some() || record.value_bytes + 28 > room - PAGE_BYTES_MIN, "{round}");
        }
        if round % 10 == 0 {
            assert_eq!(remote.delete_range(nsid, bounds()).unwrap(), count, "{round}");
            model.retain(|key, _| !within(key));
            assert_eq!(remote.count_range(nsid, (Unbounded, Unbounded)).unwrap(), model.len() as u64);
        }
    }
    assert_eq!(remote.count_range(nsid, (Unbounded, Unbounded)).unwrap(), model.len() as u64);
}

/// Goal:   a store over a remote device takes long keys and ranges as one over a local device does, and reads many long keys together.
/// Method: a transaction puts 300 records by keys of 1 to 1024 bytes; another store, whose cache is empty, reads them at once with keys that do not exist
///         in between, and in ranges of a transaction; the device itself.
#[test]
fn stores_take_long_keys_and_ranges() {
    let world = World::new();
    let nsid = space_of(&world.device, "ordered", KeyKind::Ordered);
    let (mut rng, mut model) = (Rng::new(5), BTreeMap::new());
    for number in 0..300u64 {
        model.insert(
            [some_key(&mut rng), number.to_be_bytes()[6..].to_vec()].concat(),
            bytes(number, 20_000 * (number as usize % 2)),
        );
    }
    model.retain(|key, _| key.len() <= 1024);
    let options = StoreOptions::new(16 << 20);
    let store = Store::open(world.remote(), &options).unwrap();
    for some in model.iter().collect::<Vec<_>>().chunks(50) {
        store.run(|txn| some.iter().try_for_each(|(key, value)| txn.upsert(nsid, *key, value))).unwrap();
    }
    store.flush().unwrap();
    drop(store);
    let store = Store::open(world.remote(), &options).unwrap();
    let mut keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    keys.extend((0..100).map(|_| some_key(&mut rng)));
    let found = store.get_many(nsid, &keys).unwrap();
    for (key, value) in keys.iter().zip(found) {
        assert!(value.as_deref() == model.get(key).map(Vec::as_slice), "{key:?}");
        assert_eq!(world.device.get(nsid, key).unwrap().as_ref(), model.get(key));
    }
    let ordered: Vec<_> = model.iter().map(|(key, value)| (buf(key), value.clone())).collect();
    let owned = |found: Vec<(KeyBuf, kaml::store::Value)>| {
        found.into_iter().map(|(key, value)| (key, value.to_vec())).collect::<Vec<_>>()
    };
    let (all, last) = store
        .run(|txn| Ok((txn.range::<&[u8]>(nsid, .., usize::MAX)?, txn.range_back::<&[u8]>(nsid, .., 10)?)))
        .unwrap();
    assert!(owned(all) == ordered);
    assert!(owned(last).iter().eq(ordered.iter().rev().take(10)));
}

/// Goal:   what makes no sense is refused with the status that names it, and changes nothing.
/// Method: each command on namespaces without order, with versions and of blocks; unknown formats, flags and numbers; ranges of others; rooms that are too
///         small; keys that a namespace does not take; data that end early.
#[test]
fn what_makes_no_sense_is_refused() {
    let world = World::new();
    let device = &world.device;
    let ordered = space_of(device, "ordered", KeyKind::Ordered);
    let (any, numbers) = (space_of(device, "any", KeyKind::Any), space_of(device, "numbers", KeyKind::U64));
    let past = device.create_namespace("past", &kaml::VersionOptions::default().into()).unwrap();
    let disk = device.create_namespace("disk", &BlockOptions::new(512, 100).into()).unwrap();
    device.put(ordered, "key", b"value").unwrap();
    let (host, another) = (world.host(), world.host());
    let on = |nsid| KeyValue::new(&host.queues()[0], nsid);
    let prefixed = KeyRange { prefix: b"k".to_vec(), ..KeyRange::ALL };
    let from = KeyRange { lower: Included(buf(b"k")), ..KeyRange::ALL };
    let to = KeyRange { upper: Included(buf(b"k")), ..KeyRange::ALL };
    for nsid in [any, numbers, past] {
        for range in [&prefixed, &from, &to] {
            assert_eq!(status(on(nsid).name_range(range)), Status::NOT_ORDERED);
        }
        assert_eq!(status(on(nsid).count_range(&KeyRange::ALL)), Status::NOT_ORDERED);
        assert_eq!(status(on(nsid).delete_range(&KeyRange::ALL)), Status::NOT_ORDERED);
    }
    assert_eq!(status(on(disk).name_range(&from)), Status::INVALID_OPCODE);
    assert_eq!(status(on(99).delete_range(&from)), Status::INVALID_NAMESPACE);
    let (listed, range) = (on(any).name_range(&KeyRange::ALL).unwrap(), on(ordered).name_range(&from).unwrap());
    assert_eq!(status(on(any).retrieve_range(listed, flag::REVERSE, 0, 5000)), Status::NOT_ORDERED);
    assert_eq!(status(on(any).retrieve_range(range, 0, 0, 5000)), Status::INVALID_FIELD);
    assert_eq!(status(on(ordered).retrieve_range(range, 8, 0, 5000)), Status::INVALID_FIELD);
    assert_eq!(status(on(ordered).retrieve_range(range, 0, 0, PAGE_BYTES_MIN - 1)), Status::SGL_LENGTH);
    assert_eq!(status(on(ordered).retrieve_range(range + 1, 0, 0, 5000)), Status::NO_SUCH_LIST);
    let theirs = KeyValue::new(&another.queues()[0], ordered);
    assert_eq!(status(theirs.retrieve_range(range, 0, 0, 5000)), Status::NO_SUCH_LIST);
    let keys = on(ordered).name_long_keys(&[(ordered, buf(b"key"))]).unwrap();
    assert_eq!(status(on(ordered).retrieve_range(keys, 0, 0, 5000)), Status::NO_SUCH_LIST, "a list of keys");
    assert_eq!(status(on(ordered).exist_named(range, 0, 10)), Status::NO_SUCH_LIST, "a range");
    assert_eq!(status(on(ordered).name_long_keys(&[(disk, buf(b"key"))])), Status::INVALID_NAMESPACE);
    let execute = |opcode, dwords: [u32; 2], data: &[u8]| {
        let mut command = Command::new(opcode, ordered);
        (command.cdw10, command.cdw11) = (dwords[0].into(), dwords[1].into());
        host.queues()[0].execute(command, data, 0).unwrap().status
    };
    let mut record = Vec::new();
    encode_long_put(&mut record, ordered, &[7; 1024], PutAction::Store(b"value"));
    for opcode in [kv::PUT, kv::NAME_KEYS] {
        assert_eq!(execute(opcode, [1, 2], &record), Status::INVALID_FIELD, "no such format");
        assert_eq!(execute(opcode, [2, 1], &record), Status::SGL_LENGTH);
        assert_eq!(execute(opcode, [0, 1], &record), Status::INVALID_FIELD);
    }
    for opcode in [kv::NAME_RANGE, kv::COUNT_RANGE, kv::DELETE_RANGE] {
        assert_eq!(execute(opcode, [0, 0], &record[..15]), Status::SGL_LENGTH);
    }
    for (nsid, key) in [(numbers, &b"seven b"[..]), (numbers, &[1; 20]), (past, &[1; 17])] {
        let mut record = Vec::new();
        encode_long_put(&mut record, nsid, key, PutAction::Store(b"value"));
        assert_eq!(status(on(nsid).put_long(&record, 1)), Status::INVALID_KEY_SIZE);
    }
    assert_eq!(device.namespace_with_id(ordered).count::<&[u8]>(..).unwrap(), 1, "nothing was changed");
}

/// Goal:   a host that reads long ranges again and again keeps nobody waiting for more than a piece.
/// Method: 40 pages of 50 000 keys each, of 50 pieces, in progress; meanwhile stores and counts of another host, which take a worker, too: they
///         complete while most of the first are not.
#[test]
fn hosts_take_turns_on_ranges() {
    let world = World::new();
    let nsid = space_of(&world.device, "ordered", KeyKind::Ordered);
    for first in (0..50_000u64).step_by(500) {
        let mut batch = Batch::new();
        for number in first..first + 500 {
            batch.put(nsid, number, b"");
        }
        world.device.write(&batch).unwrap();
    }
    let busy = world.host_with(|options| options.depth = 100);
    let other = world.host();
    let queue = &busy.queues()[0];
    let range = KeyValue::new(queue, nsid).name_range(&KeyRange::ALL).unwrap();
    let mut command = Command::new(kv::RETRIEVE_RANGE, nsid);
    (command.cdw10, command.cdw11, command.cdw13) = ((1u32 << 20).into(), range.into(), flag::KEYS_ONLY.into());
    for _ in 0..40 {
        let _ = queue.enqueue(command, &[], 1 << 20).unwrap().unwrap();
    }
    queue.send().unwrap();
    let space = KeyValue::new(&other.queues()[0], nsid);
    for round in 0..5u8 {
        space.store(&key(&[round]), &vec![round; 40_000], 0).unwrap();
        assert_eq!(space.count_range(&KeyRange::ALL).unwrap(), 50_001 + u64::from(round));
    }
    let mut answers = Vec::new();
    queue.poll(Wait::No, &mut answers).unwrap();
    assert!(answers.len() < 35, "{} of 40 pages are complete", answers.len());
    while answers.len() < 40 {
        queue.poll(Wait::Yes, &mut answers).unwrap();
    }
    for (_, answer) in answers {
        assert!(answer.result as u32 >= 50_000 && answer.result >> 32 == 0, "{:x}", answer.result);
    }
}

/// Goal:   ranges of large values take no more memory than one value for each worker, next to what their hosts have room for.
/// Method: 48 values of 4 MiB; pages with little room over eight queues, and with room for one value: with memory for 16 MiB the process takes no more
///         than 96 MiB more, where the values of one range are twice as long. In a process of its own, whose memory other tests do not use.
#[test]
fn ranges_of_large_values_are_bounded() {
    run_alone("ranges::large_values");
}

#[test]
#[ignore = "ranges_of_large_values_are_bounded runs it in a process of its own"]
fn large_values() {
    const VALUE: usize = 4 << 20;
    let options = CreateOptions { block_bytes: Some(8 << 20), ..CreateOptions::new(512 << 20) };
    let world = World::serving(Device::in_memory(&options).unwrap(), |options| options.memory_bytes = 16 << 20);
    let spaces = [KeyKind::Ordered, KeyKind::Any].map(|kind| space_of(&world.device, &format!("{kind:?}"), kind));
    for (number, nsid) in (0..24u64).flat_map(|number| spaces.map(|nsid| (number, nsid))) {
        let name = format!("a key of more than 16 bytes {number:03}");
        world.device.put(nsid, &name, &vec![number as u8; VALUE]).unwrap();
    }
    let host = world.host_with(|options| (options.queues, options.depth) = (8, 16));
    let before = peak_bytes();
    std::thread::scope(|scope| {
        for (queue, nsid) in host.queues().iter().zip(spaces.iter().cycle()) {
            scope.spawn(|| {
                let space = KeyValue::new(queue, *nsid);
                for flags in [0, flag::KEYS_ONLY] {
                    let range = space.name_range(&KeyRange::ALL).unwrap();
                    let (page, has_more) = space.retrieve_range(range, flags, 0, 4096).unwrap();
                    let expected = if flags == 0 { (1, VALUE, true) } else { (24, 0, false) };
                    assert_eq!((page.len(), page[0].value_bytes, has_more), expected);
                }
            });
        }
    });
    let space = KeyValue::new(&host.queues()[0], spaces[0]);
    let range = space.name_range(&KeyRange::ALL).unwrap();
    let (page, has_more) = space.retrieve_range(range, 0, 0, VALUE + PAGE_BYTES_MIN).unwrap();
    assert!(page.len() == 1 && has_more && page[0].value.as_ref().is_some_and(|value| *value == vec![0; VALUE]));
    let grown = peak_bytes() - before;
    assert!(grown < 96 << 20, "{} MiB more", grown >> 20);
}
