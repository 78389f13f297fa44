//! Namespaces that keep versions, over the wire.

use crate::world::{World, key};
use kaml::{At, Batch, Condition, Difference, Key, KeyBuf, NamespaceOptions, Retention, VersionKind, VersionOptions};
use kaml_nvme::host::{HostOptions, KeyValue, RemoteDevice};
use kaml_nvme::wire::keyvalue::store;
use kaml_nvme::wire::status::Status;
use std::collections::BTreeSet;
use std::path::Path;

fn remote(world: &World) -> RemoteDevice {
    let url = format!("nvme+tcp://{}/{}", world.address, world.subsystem);
    RemoteDevice::open_named(Path::new(&url), &HostOptions::default()).unwrap().unwrap()
}

/// Goal:   a host's batches have conditions on versions, deletes and other namespaces included.
/// Method: batches of one and two records whose conditions hold and do not; what is there afterwards.
#[test]
fn batches_have_conditions_on_versions() {
    let world = World::new();
    let (remote, plain) = (remote(&world), world.namespace("plain"));
    let past = remote.create_namespace("past", &NamespaceOptions::from(VersionOptions::default())).unwrap();
    let (a, b) = (key(b"a"), key(b"b"));
    let mut batch = Batch::new();
    let missing = remote.write(batch.delete_if_present(past, a)).unwrap_err();
    assert!(matches!(missing, kaml::Error::Conflict { present: false, .. }), "{missing}");
    remote.write(Batch::new().put_if_absent(past, a, b"one").put_if_absent(plain, b, b"one")).unwrap();
    let exists = remote.write(Batch::new().delete_if_present(past, a).put_if_absent(plain, b, b"x")).unwrap_err();
    assert!(exists.to_string().contains("KV key exists"), "the response does not name the key: {exists}");
    assert!(remote.exists(past, a).unwrap());
    remote.write(Batch::new().delete_if_present(past, a).put(plain, b, b"two")).unwrap();
    assert!(!remote.exists(past, a).unwrap());
    assert_eq!(world.device.get(plain, b).unwrap().as_deref(), Some(&b"two"[..]));
    assert_eq!(world.device.history(past, a, 9).unwrap().len(), 2);
}

/// Goal:   a record's past can be read, undone, rolled back, compared and merged by a host, as on the device itself.
/// Method: a namespace that the host makes; changes; every command; the same questions to the device.
#[test]
fn versions_over_the_wire() {
    let world = World::new();
    let remote = remote(&world);
    let options = NamespaceOptions::from(VersionOptions::default());
    let past = remote.create_namespace("past", &options).unwrap();
    let info = remote.namespaces().unwrap().into_iter().find(|info| info.id == past).unwrap();
    let here = world.device.namespaces().into_iter().find(|info| info.id == past).unwrap();
    let shape = |info: &kaml::NamespaceInfo| match info.kind {
        kaml::NamespaceKind::Versions(_, versions) => {
            Some((versions.parameters.buffer_bytes, versions.parameters.segment_bytes()))
        }
        kaml::NamespaceKind::Records(_) | kaml::NamespaceKind::Blocks(_) => None,
    };
    assert_eq!((info.name.as_str(), shape(&info)), ("past", shape(&here)));

    let (a, b) = (key(b"a"), key(b"b"));
    let long = vec![7; 20_000];
    remote.put_if(past, a, b"one", Condition::IfAbsent).unwrap();
    assert!(remote.put_if(past, a, b"x", Condition::IfAbsent).is_err());
    assert_eq!(remote.snapshot(past).unwrap(), 1);
    remote.put_if(past, a, &long, Condition::IfPresent).unwrap();
    remote.put_if(past, b, b"more", Condition::Always).unwrap();
    assert_eq!(remote.get(past, a).unwrap().as_deref(), Some(&long[..]));
    assert_eq!(remote.get_version(past, a, At::Snapshot(1)).unwrap().as_deref(), Some(&b"one"[..]));
    assert_eq!(remote.get_version(past, a, At::Back(1)).unwrap().as_deref(), Some(&b"one"[..]));
    assert_eq!(remote.get_version(past, a, At::Latest).unwrap().as_deref(), Some(&long[..]));
    assert_eq!(remote.get_version(past, b, At::Snapshot(1)).unwrap(), None);
    assert!(remote.exists(past, b).unwrap() && !remote.exists(past, key(b"c")).unwrap());
    assert_eq!(
        remote.list(past, None, 10).unwrap().into_iter().collect::<BTreeSet<_>>(),
        [a, b].map(KeyBuf::from).into()
    );

    let mut differences = BTreeSet::new();
    remote
        .diff(past, Some(1), None, &mut |key, difference| differences.insert((key, difference == Difference::Added)))
        .unwrap();
    assert_eq!(differences, [(a, false), (b, true)].into());

    assert!(remote.undo(past, a, 1).unwrap());
    assert_eq!(world.device.get(past, a).unwrap().unwrap(), b"one");
    let told = remote.history(past, a, 100).unwrap();
    let kept = world.device.history(past, a, 100).unwrap();
    assert_eq!(told.len(), kept.len());
    for (told, kept) in told.iter().zip(&kept) {
        let fields = |past: &kaml::Past| {
            let version = past.version;
            let is_deleted = version.kind == VersionKind::Tombstone;
            (version.sequence, version.user_version, version.value_len, version.value_crc, is_deleted, past.is_seen)
        };
        assert_eq!(fields(told), fields(kept));
    }
    assert_eq!(remote.history(past, a, 2).unwrap().len(), 2);
    assert_eq!(remote.roll_back(past, 1).unwrap(), 2);
    assert_eq!(remote.get(past, b).unwrap(), None);
    assert_eq!(remote.version_stats(past).unwrap(), world.device.version_stats(past).unwrap());
    remote.forget_snapshot(past, 1).unwrap();
    let missing = remote.get_version(past, a, At::Snapshot(1)).unwrap_err().to_string();
    assert_eq!(missing, world.device.get_version(past, a, At::Snapshot(1)).unwrap_err().to_string());
    let rules = Retention { keep_last: 2, ..Retention::default() };
    let dry = remote.merge(past, &rules, true).unwrap();
    assert_eq!(dry, world.device.merge_dry_run(past, &rules, &mut kaml::to_the_end).unwrap());
    remote.merge(past, &rules, false).unwrap();
    assert_eq!(remote.get(past, a).unwrap().as_deref(), Some(&b"one"[..]));
}

/// Keys whose differences are more than one answer has room for.
const KEYS: u64 = 20_000;

fn fill(world: &World, namespace: u32) {
    let mut batch = kaml::Batch::new();
    for number in 0..KEYS {
        batch.put(namespace, number, b"");
        if batch.len() == 1000 {
            world.device.write(&batch).unwrap();
            batch.clear();
        }
    }
}

/// Goal:   many snapshots and differences come in several commands; what makes no sense is refused.
/// Method: 70 snapshots and 20,000 keys, more than one answer has room for; other namespaces, options and numbers.
#[test]
fn long_answers_and_nonsense() {
    let world = World::new();
    let options = NamespaceOptions::from(VersionOptions::default());
    let past = world.device.create_namespace("past", &options).unwrap();
    fill(&world, past);
    let remote = remote(&world);
    let taken: Vec<u32> = (0..70).map(|_| remote.snapshot(past).unwrap()).collect();
    assert_eq!(taken, (1..=70).collect::<Vec<_>>());
    assert_eq!(remote.version_stats(past).unwrap().snapshots.len(), 70);
    let mut batch = kaml::Batch::new();
    batch.delete(past, 5u64);
    remote.write(&batch).unwrap();
    let mut keys = BTreeSet::new();
    remote.diff(past, None, Some(1), &mut |key, _| keys.insert(key)).unwrap();
    assert_eq!(keys, [Key::from(5u64)].into());
    remote.roll_back(past, 1).unwrap();
    let mut added = 0;
    let empty = world.device.create_namespace("empty", &options).unwrap();
    world.device.snapshot(empty).unwrap();
    fill(&world, empty);
    let plain = world.namespace("plain");
    std::thread::sleep(std::time::Duration::from_millis(1100)); // the target has looked what exists
    remote
        .diff(empty, Some(1), None, &mut |_, difference| {
            added += 1;
            difference == Difference::Added
        })
        .unwrap();
    assert_eq!(added, KEYS);
    let host = world.host();
    let queue = &host.queues()[0];
    let status = |result: Result<_, kaml_nvme::host::Error>| result.map(drop).unwrap_err().status().unwrap();
    let (past, plain) = (KeyValue::new(queue, past), KeyValue::new(queue, plain));
    assert_eq!(status(plain.take_snapshot().map(drop)), Status::NO_VERSIONS);
    assert_eq!(status(plain.history(&key(b"a"), 1).map(drop)), Status::NO_VERSIONS);
    assert_eq!(status(past.forget_snapshot(99)), Status::NO_SUCH_SNAPSHOT);
    assert_eq!(status(past.undo(&key(b"none"), 3).map(drop)), Status::TOO_FAR_BACK);
    assert_eq!(status(past.store(&key(b"none"), b"x", store::MUST_EXIST)), Status::NO_SUCH_KEY);
    past.store(&key(b"none"), b"x", store::MUST_NOT_EXIST).unwrap();
    assert_eq!(past.retrieve(&key(b"none"), 0).unwrap(), Some((vec![], 1)));
}
