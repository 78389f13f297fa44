//! Namespaces that come and change while others use them, and as many as the root takes.

use kaml::{CreateOptions, Device, Error, KeyKind, NamespaceChange, NamespaceOptions};
use kaml_device::Core;
use kaml_flash::{Geometry, Io, MemoryMedium};
use kaml_testkit::{Access, Watched, hold_back};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn u64_keys() -> NamespaceOptions {
    NamespaceOptions::records(KeyKind::U64)
}

/// Goal:   no Put is acknowledged whose namespace a crash would take along.
/// Method: while the root that makes a namespace durable is held up, it is not found by its name, and a Put to the id that it will have
///         is refused, also in a queue or of a large value; after it was created, Puts exist after a crash.
#[test]
fn namespaces_take_puts_once_they_are_durable() {
    for len in [10, 50_000] {
        let options = CreateOptions::new(64 << 20);
        let medium = MemoryMedium::new(Geometry::for_file(options.capacity_bytes, 512, &options).unwrap());
        Core::format(&medium).unwrap();
        let is_held = Arc::new(AtomicBool::new(false));
        let hold = is_held.clone();
        let before = hold_back(move |io, _| matches!(io, Io::WriteRoot { .. }) && hold.load(Ordering::SeqCst));
        let held = Watched { medium: medium.clone(), watch: |_: Access<'_>| Ok(()), before };
        let device = Device::on_medium(Arc::new(held)).unwrap();
        let value = vec![7; len];
        let other = device.create_namespace("other", &u64_keys()).unwrap();
        is_held.store(true, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let (device, value) = (&device, &value);
            let created = scope.spawn(|| device.create_namespace("new", &u64_keys()).unwrap());
            let puts = |space| {
                let (mut queue, mut answers) = (device.queue(8), Vec::new());
                let queued = queue.put(0, space, 2, value).and_then(|()| {
                    queue.poll(true, &mut answers);
                    answers.pop().unwrap().result.map(drop)
                });
                [device.put(space, 1, value), queued]
            };
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(5));
                assert!(device.namespace("new").is_err(), "no root knows the namespace");
                for refused in puts(other + 1) {
                    let is_unknown = |error| matches!(error, kaml::Error::UnknownNamespace(_));
                    assert!(refused.is_err_and(is_unknown));
                }
            }
            is_held.store(false, Ordering::SeqCst);
            let space = created.join().unwrap();
            assert_eq!((space, device.namespace("new").unwrap()), (other + 1, space));
            puts(space).into_iter().for_each(|put| put.unwrap());
            let crashed = Device::on_medium(Arc::new(medium.clone_state().reopen())).unwrap();
            for key in [1, 2] {
                assert!(crashed.get(space, key).unwrap().unwrap() == *value, "key {key}");
            }
        });
    }
}

fn is_refused<T: std::fmt::Debug>(answer: Result<T, Error>) -> bool {
    matches!(answer.unwrap_err(), Error::TooManyNamespaces { .. })
}

/// Goal:   no list of logs is taken that no root has room for, or that has a log twice.
/// Method: a device of very many dies and a small root; namespaces created and changed so.
#[test]
fn lists_of_logs_are_bounded() {
    let options = CreateOptions {
        block_bytes: Some(32 << 10),
        die_count: Some(3000),
        ring_bytes: Some(8 << 20),
        ..CreateOptions::new(200 << 20)
    };
    let geometry =
        Geometry { root_bytes: 16 << 10, ..Geometry::for_file(options.capacity_bytes, 512, &options).unwrap() };
    let medium = MemoryMedium::new(geometry);
    Core::format(&medium).unwrap();
    let device = Device::on_medium(Arc::new(medium)).unwrap();
    let id = device.create_namespace("0", &u64_keys().with_logs(vec![2999, 0])).unwrap();
    let create = |logs| device.create_namespace("1", &u64_keys().with_logs(logs)).unwrap_err();
    let change =
        |logs| device.set_namespace(id, &NamespaceChange { logs: Some(logs), ..Default::default() }).unwrap_err();
    let all: Vec<u32> = (0..3000).collect();
    assert!(is_refused::<()>(Err(create(all.clone()))) && is_refused::<()>(Err(change(all))));
    for error in [create(vec![1, 0, 1]), change(vec![1, 0, 1])] {
        assert!(matches!(error, Error::LogTwice(1)));
    }
    assert_eq!(device.namespaces()[0].logs, [2999, 0]);
}

/// Goal:   no names are taken that no root has room for.
/// Method: as many namespaces as there may be, created by several threads, then given the longest names until one is refused.
///         Everything continues, and exists when the device is opened again.
#[test]
fn roots_have_room_for_all_namespaces() {
    let options = CreateOptions::new(200 << 20);
    let medium = MemoryMedium::new(Geometry::for_file(options.capacity_bytes, 512, &options).unwrap());
    Core::format(&medium).unwrap();
    let device = Device::on_medium(Arc::new(medium.clone())).unwrap();
    let first = device.create_namespace("first", &u64_keys()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let device = &device;
            let create = move |i| device.create_namespace(&format!("{thread}.{i}"), &u64_keys());
            scope.spawn(move || assert!(is_refused((0..).map(create).find(Result::is_err).unwrap())));
        }
    });
    let spaces = device.namespaces();
    assert!(spaces.len() > 100, "{} namespaces", spaces.len());
    let rename = |id| NamespaceChange { name: Some(format!("{id:0255}")), ..Default::default() };
    let refused = spaces.iter().map(|space| device.set_namespace(space.id, &rename(space.id))).find(Result::is_err);
    assert!(is_refused(refused.expect("not all can have the longest names")));
    let shorter = NamespaceChange { name: Some("1".into()), logs: Some(vec![0]), ..Default::default() };
    device.set_namespace(first, &shorter).unwrap();
    device.put(first, 1, b"one").unwrap();
    device.settle().unwrap();
    let spaces = device.namespaces().len();
    device.close().unwrap();
    let device = Device::on_medium(Arc::new(medium.reopen())).unwrap();
    assert_eq!(device.namespaces().len(), spaces);
    assert_eq!(device.get(device.namespace("1").unwrap(), 1).unwrap().unwrap(), b"one");
}
