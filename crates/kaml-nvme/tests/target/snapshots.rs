//! Snapshots of the device over the network.

use crate::world::{World, key};
use kaml::{Device, KeyBuf, KeyKind, NamespaceId, NamespaceOptions};
use kaml_nvme::host::{Error, KeyValue, RemoteSnapshot};
use kaml_nvme::wire::ranges::{KeyRange, flag};
use kaml_nvme::wire::status::Status;
use kaml_testkit::bytes;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::time::{Duration, Instant};

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

const KINDS: [KeyKind; 4] = [KeyKind::Bytes, KeyKind::U64, KeyKind::Any, KeyKind::Ordered];
const RECORDS: u64 = 120;

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    result.unwrap_err().status().expect("an answer of the controller")
}

fn spaces(device: &Device) -> [NamespaceId; 4] {
    KINDS.map(|kind| device.create_namespace(&format!("{kind:?}"), &NamespaceOptions::records(kind)).unwrap())
}

/// A key; of 8 bytes, or up to 127 where the namespace takes that.
fn key_of(kind: KeyKind, number: u64) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    if matches!(kind, KeyKind::Any | KeyKind::Ordered) {
        key.resize(8 + number as usize, b'k');
    }
    key
}

/// Stores a value under each key, of up to 5 KB, and one of 1.5 MB, which is longer than a page of a range.
fn fill(device: &Device, spaces: &[NamespaceId; 4], round: u64) -> [Records; 4] {
    std::array::from_fn(|at| {
        let value = |number| bytes(round * 1000 + number, if number == 7 { 1_500_000 } else { number as usize * 40 });
        let records: Records = (0..RECORDS).map(|number| (key_of(KINDS[at], number), value(number))).collect();
        for (key, value) in &records {
            device.put(spaces[at], &key[..], value).unwrap();
        }
        records
    })
}

fn listed(snapshot: &RemoteSnapshot, space: NamespaceId, limit: usize) -> Vec<Vec<u8>> {
    let (mut keys, mut after) = (Vec::new(), None::<KeyBuf>);
    loop {
        let page = snapshot.list(space, after.as_ref(), limit).unwrap();
        assert!(page.len() <= limit);
        let Some(last) = page.last() else { return keys };
        after = Some(last.clone());
        keys.extend(page.iter().map(|key| key.as_bytes().to_vec()));
    }
}

fn check(snapshot: &RemoteSnapshot, spaces: &[NamespaceId; 4], seen: &[Records; 4]) {
    for ((space, kind), records) in spaces.iter().zip(KINDS).zip(seen) {
        for number in (0..RECORDS + 3).step_by(7) {
            let key = key_of(kind, number);
            assert!(snapshot.get(*space, &key[..]).unwrap().as_ref() == records.get(&key), "{number} of {kind:?}");
            assert_eq!(snapshot.exists(*space, &key[..]).unwrap(), records.contains_key(&key), "{number} of {kind:?}");
        }
        let mut keys = listed(snapshot, *space, 50);
        keys.sort();
        assert!(keys.iter().eq(records.keys()), "{kind:?}");
    }
    let (space, records) = (spaces[3], &seen[3]);
    let own = |found: Vec<(KeyBuf, Vec<u8>)>| -> Vec<(Vec<u8>, Vec<u8>)> {
        found.into_iter().map(|(key, value)| (key.as_bytes().to_vec(), value)).collect()
    };
    let mut expected: Vec<_> = records.clone().into_iter().collect();
    assert!(own(snapshot.range(space, (Unbounded, Unbounded), false, 1000).unwrap()) == expected);
    let (from, to) = (key_of(KeyKind::Ordered, 5), key_of(KeyKind::Ordered, 20));
    let bounds = (Excluded(&from[..]), Included(&to[..]));
    assert_eq!(snapshot.count_range(space, bounds).unwrap(), 15);
    assert_eq!(snapshot.count_range(space, (Unbounded, Unbounded)).unwrap(), RECORDS);
    expected = expected[6..21].iter().rev().cloned().collect();
    assert!(own(snapshot.range(space, bounds, true, 1000).unwrap()) == expected);
    let keys = snapshot.range_keys(space, bounds, true, 4).unwrap();
    assert!(keys.iter().map(KeyBuf::as_bytes).eq(expected[..4].iter().map(|(key, _)| &key[..])));
}

/// Goal:   a snapshot over the network shows what was there, in every kind of namespace, and through every command that reads.
/// Method: two snapshots of different moments; everything is overwritten, deleted and added; all reads of both; nothing stays open.
#[test]
fn snapshots_show_their_moment() {
    let world = World::new();
    let spaces = spaces(&world.device);
    let remote = world.remote();
    let before = fill(&world.device, &spaces, 1);
    let first = remote.open_snapshot().unwrap().expect("it has them");
    let after = fill(&world.device, &spaces, 2);
    let second = remote.open_snapshot().unwrap().expect("it has them");
    for (space, kind) in spaces.into_iter().zip(KINDS) {
        for number in (0..RECORDS).step_by(2) {
            world.device.delete(space, &key_of(kind, number)[..]).unwrap();
        }
        world.device.put(space, &key_of(kind, RECORDS)[..], b"later").unwrap();
    }
    world.device.namespace_with_id(spaces[3]).delete_range::<u64>(..).unwrap();
    check(&first, &spaces, &before);
    check(&second, &spaces, &after);
    let late = world.namespace("late");
    assert!(first.get(late, 1u64).is_err(), "it was created later");
    assert_eq!(world.device.snapshot_stats().open_count, 2);
    drop((first, second));
    assert_eq!(world.device.snapshot_stats().open_count, 0);
}

/// Goal:   a controller has 16 snapshots, its own alone, and they go with it; every mistake has its status.
/// Method: open 17, on two controllers; numbers that are none; versions; a namespace of blocks is no place for it; disconnect.
#[test]
fn snapshots_are_bounded_and_go_with_their_controller() {
    let world = World::new();
    let [short, .., ordered] = spaces(&world.device);
    world.device.put(ordered, 1u64, b"1").unwrap();
    let (host, other) = (world.host(), world.host());
    let (ours, theirs) = (KeyValue::new(&host.queues()[0], short), KeyValue::new(&other.queues()[0], short));
    let mut numbers: Vec<u32> = (0..16)
        .map(|round| {
            world.device.put(short, key(b"a"), &[round]).unwrap();
            ours.open_snapshot().unwrap()
        })
        .collect();
    assert_eq!(status(ours.open_snapshot()), Status::TOO_MANY_SNAPSHOTS);
    let everywhere = KeyValue::new(&other.queues()[0], u32::MAX);
    let another = everywhere.open_snapshot().unwrap();
    numbers.push(another);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!((numbers.len(), numbers.contains(&0)), (17, false));
    assert_eq!(status(ours.close_snapshot(another)), Status::NO_SUCH_SNAPSHOT);
    assert_eq!(status(ours.close_snapshot(0)), Status::NO_SUCH_SNAPSHOT);
    numbers.retain(|number| *number != another);
    ours.close_snapshot(numbers[3]).unwrap();
    assert_eq!(status(ours.close_snapshot(numbers[3])), Status::NO_SUCH_SNAPSHOT);
    ours.open_snapshot().unwrap();

    let list = ours.name_keys(&[(short, key(b"a"))]).unwrap();
    let on_range = KeyValue::new(&host.queues()[0], ordered);
    let range = on_range.name_range(&KeyRange::ALL).unwrap();
    for snapshot in [another, numbers[3], 1] {
        assert_eq!(status(ours.at(snapshot).retrieve_named(list, 0, 100)), Status::NO_SUCH_SNAPSHOT);
        assert_eq!(status(ours.at(snapshot).exist_named(list, 0, 100)), Status::NO_SUCH_SNAPSHOT);
        let read = on_range.at(snapshot).retrieve_range(range, flag::KEYS_ONLY, 0, 5000);
        assert_eq!(status(read), Status::NO_SUCH_SNAPSHOT);
        assert_eq!(status(on_range.at(snapshot).count_range(&KeyRange::ALL)), Status::NO_SUCH_SNAPSHOT);
    }
    assert_eq!(ours.at(numbers[5]).exist_named(list, 0, 1).unwrap(), [true]);
    assert_eq!(on_range.at(numbers[5]).count_range(&KeyRange::ALL).unwrap(), 1);
    theirs.close_snapshot(another).unwrap();

    drop(host);
    let since = Instant::now();
    while world.device.snapshot_stats().open_count > 0 {
        assert!(since.elapsed() < Duration::from_secs(60), "the snapshots of a host that has gone are open");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Goal:   a snapshot that had to make room is reported as such, as by a local device; a number of before a lost connection names nothing.
/// Method: a limit of one byte for what snapshots keep.
#[test]
fn expired_snapshots_are_reported() {
    let world = World::new();
    let spaces = spaces(&world.device);
    let remote = world.remote();
    fill(&world.device, &spaces, 1);
    let snapshot = remote.open_snapshot().unwrap().expect("it has them");
    world.device.limit_snapshot_memory(1);
    fill(&world.device, &spaces, 2);
    let is_too_old = |error: kaml::Error| assert!(matches!(error, kaml::Error::SnapshotTooOld), "{error}");
    is_too_old(snapshot.get(spaces[0], 1u64).unwrap_err());
    is_too_old(snapshot.list(spaces[2], None, 5).unwrap_err());
    is_too_old(snapshot.range(spaces[3], (Unbounded, Unbounded), false, 5).unwrap_err());
    is_too_old(snapshot.count_range(spaces[3], (Unbounded, Unbounded)).unwrap_err());
}

/// Goal:   the standard List of a namespace with a key above 16 bytes is refused, so no host takes a part of the keys for all; without one it
///         lists them, an ordered namespace in their order.
/// Method: both kinds of namespaces, before, with and after such a key.
#[test]
fn list_refuses_long_keys() {
    let world = World::new();
    let [.., any, ordered] = spaces(&world.device);
    let host = world.host();
    for nsid in [any, ordered] {
        let space = KeyValue::new(&host.queues()[0], nsid);
        assert_eq!(space.list(None, 4096).unwrap(), []);
        for name in ["c", "a", "b"] {
            world.device.put(nsid, name, b"1").unwrap();
        }
        let mut keys = space.list(None, 4096).unwrap();
        if nsid == any {
            keys.sort();
        }
        assert_eq!(keys, [key(b"a"), key(b"b"), key(b"c")]);
        world.device.put(nsid, "longer than sixteen bytes", b"1").unwrap();
        assert_eq!(status(space.list(None, 4096)), Status::HAS_LONG_KEYS);
        world.device.delete(nsid, "longer than sixteen bytes").unwrap();
        assert_eq!(space.list(None, 4096).unwrap().len(), 3);
    }
}
