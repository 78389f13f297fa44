//! The change stream over the network.

use crate::world::World;
use kaml::{
    Batch, BlockOptions, Change, ChangesCursor, Changeset, CreateOptions, Device, Error, Expiry, KeyBuf, KeyKind,
    NamespaceOptions, Position, VersionOptions,
};
use kaml_nvme::host::{Execute, RemoteChanges};
use kaml_nvme::target::{Access, HostAccess, Right, Rights};
use kaml_nvme::wire::changes::put_request;
use kaml_nvme::wire::command::{Command, kv};
use kaml_nvme::wire::status::Status;
use std::time::{Duration, UNIX_EPOCH};

const SOON: Duration = Duration::from_secs(20);
const READER: &str = "nqn.2026-11.example:reader";

fn small() -> Device {
    let options = CreateOptions { ring_bytes: Some(4 << 20), ..CreateOptions::new(64 << 20) };
    Device::in_memory(&options).unwrap()
}

fn take(changes: &mut RemoteChanges, until: &Position) -> Vec<Changeset> {
    let mut sets = Vec::new();
    while changes.resume_position() < *until {
        sets.push(changes.next_within(SOON).unwrap().expect("there is more"));
    }
    sets
}

fn records(sets: Vec<Changeset>) -> Vec<Change> {
    let of_namespace = |change: &Change| matches!(change, Change::Namespace(_) | Change::NamespaceDeleted { .. });
    sets.into_iter().flat_map(|set| set.changes).filter(|change| !of_namespace(change)).collect()
}

/// Goal:   a remote reader sees what a local one sees, in the same changesets: every kind of change, large values, and a commit that is larger
///         than what one command returns.
/// Method: changes of every kind, read by both, from the beginning and from stored positions.
#[test]
fn remote_readers_see_what_local_ones_see() {
    let world = World::new();
    let device = &world.device;
    let any = device.ensure_namespace("any", &NamespaceOptions::records(KeyKind::Any)).unwrap();
    let ordered = device.ensure_namespace("ordered", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    let pages = device.ensure_namespace("pages", &VersionOptions::default().into()).unwrap();
    let disk = device.create_namespace("disk", &BlockOptions::new(4096, 1000).into()).unwrap();
    let begin = device.position().unwrap();
    let mut positions = vec![begin];
    let mut mark = || positions.push(device.position().unwrap());
    any.put("a key of more than sixteen bytes", b"1").unwrap();
    any.put_expiring("brief", b"2", Expiry::At(UNIX_EPOCH + Duration::from_secs(1 << 32))).unwrap();
    mark();
    any.delete("a key of more than sixteen bytes").unwrap();
    ordered.put("large", &vec![3; 1_900_000]).unwrap();
    ordered.delete_range("a".."b").unwrap();
    mark();
    let mut batch = Batch::new();
    for number in 0..400u64 {
        batch.put(any.id(), number, &vec![number as u8; 4000]).put(ordered.id(), number, b"");
    }
    device.write(&batch).unwrap();
    mark();
    pages.put("home", b"draft").unwrap();
    device.snapshot(pages.id()).unwrap();
    pages.put("home", &vec![4; 100_000]).unwrap();
    pages.delete("home").unwrap();
    device.block_write(disk, 5, &[9; 8192]).unwrap();
    device.block_trim(disk, 5, 1).unwrap();
    let end = device.position().unwrap();
    let remote = world.remote();
    assert_eq!(remote.position().unwrap(), end);
    for position in positions {
        let mut local = device.changes(Some(&position)).unwrap();
        let mut expected = Vec::new();
        while local.resume_position() < end {
            expected.push(local.next_within(SOON).unwrap().unwrap());
        }
        let found = take(&mut remote.changes(Some(&position)).unwrap(), &end);
        let spaces =
            |set: &Changeset| set.changes.iter().filter(|change| matches!(change, Change::Namespace(_))).count();
        assert_eq!((spaces(&expected[0]), spaces(&found[0])), (4, 4));
        assert_eq!(
            found.iter().map(|set| set.position).collect::<Vec<_>>(),
            expected.iter().map(|set| set.position).collect::<Vec<_>>()
        );
        assert!(records(found) == records(expected));
    }
}

/// Goal:   a reader that waits sees what is put, and namespaces that are created, without being asked again.
/// Method: a reader with nothing to read; a put and a new namespace on the device that is served.
#[test]
fn a_remote_reader_waits() {
    let world = World::new();
    let first = world.namespace("first");
    let mut changes = world.remote().changes(None).unwrap();
    assert_eq!(changes.next_within(SOON).unwrap().unwrap().changes.len(), 1);
    assert_eq!(changes.next_within(Duration::from_millis(20)).unwrap(), None);
    let second = world.namespace("second");
    world.device.put(second, 1u64, b"1").unwrap();
    world.device.put(first, 1u64, b"2").unwrap();
    let next = |changes: &mut RemoteChanges| changes.next_within(SOON).unwrap().unwrap().changes;
    assert!(matches!(&next(&mut changes)[..], [Change::Namespace(info)] if info.id == second));
    assert!(matches!(&next(&mut changes)[..], [Change::Put { namespace, .. }] if *namespace == second));
    assert!(matches!(&next(&mut changes)[..], [Change::Put { namespace, .. }] if *namespace == first));
    assert_eq!(changes.namespace(second).unwrap().name, "second");
}

/// Goal:   a host is shown the namespaces that it may read, and of the others neither names nor records.
/// Method: batches over a namespace that is hidden and one that is not, and commits of the hidden one alone.
#[test]
fn hosts_see_the_changes_of_what_they_may_read() {
    let rights =
        Rights { namespaces: [("hidden".to_owned(), Right::None)].into(), others: Right::Read, ..Rights::default() };
    let host = (READER.to_owned(), HostAccess { rights, ..HostAccess::default() });
    let world = World::with(|options| options.access = Access { hosts: [host].into(), ..Access::default() });
    let (hidden, open) = (world.namespace("hidden"), world.namespace("open"));
    let remote = world.remote_as(READER);
    let mut changes = remote.changes(None).unwrap();
    let mut batch = Batch::new();
    batch.put(hidden, 1u64, b"secret").put(open, 1u64, b"shown");
    world.device.write(&batch).unwrap();
    (0..50u64).for_each(|number| world.device.put(hidden, number, &[7; 20_000]).unwrap());
    world.device.put(open, 2u64, b"shown").unwrap();
    let later = world.namespace("later");
    world.device.put(later, 1u64, b"shown").unwrap();
    let sets = take(&mut changes, &world.device.position().unwrap());
    let names: Vec<&str> = sets
        .iter()
        .flat_map(|set| &set.changes)
        .filter_map(|change| match change {
            Change::Namespace(info) => Some(info.name.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(names, ["open", "later"]);
    let shown = records(sets);
    assert_eq!(shown.len(), 3);
    assert!(shown.iter().all(|change| matches!(change, Change::Put { value, .. } if value == b"shown")), "{shown:?}");
}

/// Goal:   a reader that is too slow, and positions of other devices, are errors of their own over the network too.
/// Method: more puts than the ring holds; a position of another device.
#[test]
fn slow_remote_readers_fall_behind() {
    let world = World::serving(small(), |_| {});
    let space = world.namespace("n");
    let remote = world.remote();
    let mut changes = remote.changes(None).unwrap();
    changes.next_within(SOON).unwrap();
    (0..800u64).for_each(|number| world.device.put(space, 1u64, &[number as u8; 10_000]).unwrap());
    assert!(matches!(changes.next_within(SOON), Err(Error::FellBehind)));
    assert!(matches!(remote.changes(Some(&changes.resume_position())).map(drop), Err(Error::FellBehind)));
    let foreign = small().position().unwrap();
    assert!(matches!(remote.changes(Some(&foreign)).map(drop), Err(Error::BadPosition { .. })));
    assert!(remote.changes(None).unwrap().next_within(SOON).unwrap().is_some());
}

/// Goal:   records are read with the times at which they expire, of every kind of keys.
/// Method: records with and without a time, large ones too, in pages of three.
#[test]
fn records_come_with_their_times() {
    let world = World::new();
    for keys in [KeyKind::Bytes, KeyKind::Any, KeyKind::Ordered] {
        let space = world.device.ensure_namespace(&format!("{keys:?}"), &NamespaceOptions::records(keys)).unwrap();
        let at = UNIX_EPOCH + Duration::from_secs(1 << 32);
        for number in 0..20u64 {
            let value = vec![number as u8; if number == 7 { 1_900_000 } else { 100 }];
            let expiry = if number % 2 == 0 { Expiry::At(at) } else { Expiry::Never };
            space.put_expiring(number, &value, expiry).unwrap();
        }
        let (mut found, mut after) = (Vec::new(), None::<KeyBuf>);
        let remote = world.remote();
        loop {
            let (page, has_more) = remote.timed_records(space.id(), after.as_ref(), 3).unwrap();
            after = page.last().map(|(key, ..)| key.clone()).or(after);
            found.extend(page);
            if !has_more {
                break;
            }
        }
        assert_eq!(found.len(), 20);
        for (key, value, expires) in found {
            let number = u64::from_be_bytes(key.as_bytes().try_into().unwrap());
            assert_eq!(expires, (number % 2 == 0).then_some(at));
            assert!(value.iter().all(|byte| *byte == number as u8) && !value.is_empty());
        }
    }
}

/// Goal:   requests that make no sense complete with a status, and the target lives.
/// Method: Read Changes with no room, little room, and every word of its fields at its limits.
#[test]
fn senseless_requests_are_refused() {
    let world = World::new();
    let space = world.namespace("n");
    world.device.put(space, 1u64, &[1; 500]).unwrap();
    let remote = world.remote();
    let here = remote.position().unwrap();
    for room in [0, 1, 79, 80, 200, 4096] {
        for opening in [0, here.opening(), u64::MAX] {
            for ring in [0, 1, here.ring_bytes() - 512, here.ring_bytes(), u64::MAX - 1, u64::MAX] {
                for skip in [0, 1, u32::MAX] {
                    let mut command = Command::new(kv::READ_CHANGES, u32::MAX);
                    put_request(&mut command, room, opening, ring, skip, 0);
                    if let Err(error) = remote.execute(command, &[], room).and_then(kaml_nvme::host::Finished::success)
                    {
                        let status = error.status().expect("a status of the controller");
                        let known =
                            [Status::SGL_LENGTH, Status::FELL_BEHIND, Status::UNRECOVERED_READ, Status::INVALID_FIELD];
                        assert!(known.iter().any(|known| status.is(*known)), "{status}");
                    }
                }
            }
        }
    }
    let cursor = ChangesCursor { position: here, skip: 7 };
    assert!(remote.read_changes(Some(&cursor), 0).unwrap().parts.is_empty());
}
