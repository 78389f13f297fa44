//! Indexes that leave memory and come back while others are at work.

use kaml::{
    BlockOptions, CreateOptions, Device, KeyKind, NamespaceId, NamespaceKind, NamespaceOptions, VersionOptions,
};
use kaml_testkit::Held;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

fn records(device: &Device, name: &str, count: u64) -> NamespaceId {
    with_versions(device, name, count, None)
}

fn with_versions(device: &Device, name: &str, count: u64, versions: Option<VersionOptions>) -> NamespaceId {
    let kind = versions
        .map_or(NamespaceKind::Records(KeyKind::U64), |versions| NamespaceKind::Versions(KeyKind::U64, versions));
    let options = NamespaceOptions::new(kind);
    let space = device.create_namespace(name, &options).unwrap();
    (0..count).for_each(|key| device.put(space, key, &key.to_le_bytes()).unwrap());
    space
}

/// Goal:   who loads an index holds up nobody who works in another namespace; all who wait for it get it, from one load.
/// Method: reads are held up while three threads request a record of a namespace that is not in memory, one with versions or
///         without; meanwhile records of another are put, read from the write buffer, listed and deleted, and blocks are read from
///         there.
#[test]
fn others_go_on_while_an_index_is_loaded() {
    for versions in [None, Some(VersionOptions::default())] {
        others_go_on_while_it_is_loaded(versions);
    }
}

fn others_go_on_while_it_is_loaded(versions: Option<VersionOptions>) {
    let (held, medium) = Held::new();
    let device = Device::on_medium(medium).unwrap();
    let (idle, busy) = (with_versions(&device, "idle", 2000, versions), records(&device, "busy", 10));
    let disk = device.create_namespace("disk", &BlockOptions::new(4096, 8).into()).unwrap();
    device.settle().unwrap(); // versions are in the ring no more
    assert!(device.unload_namespace(idle).unwrap());
    device.block_write(disk, 0, &[1; 8 * 4096]).unwrap();
    held.hold(true);
    let (done, answers): (Sender<u64>, Receiver<u64>) = channel();
    std::thread::scope(|scope| {
        for key in [7u64, 8, 9] {
            let (device, done) = (&device, done.clone());
            scope.spawn(move || {
                assert!(device.exists(idle, key).unwrap());
                done.send(key).unwrap();
            });
        }
        while held.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        for key in 10..200u64 {
            device.put(busy, key, &key.to_le_bytes()).unwrap();
            assert_eq!(device.get(busy, key).unwrap().unwrap(), key.to_le_bytes());
            device.delete(busy, key - 10).unwrap();
        }
        assert_eq!(device.list(busy, None, 1000).unwrap().keys.len(), 10);
        let mut found = vec![0; 8 * 4096];
        device.block_read(disk, 0, &mut found).unwrap();
        assert_eq!(found, [1; 8 * 4096]);
        assert!(answers.recv_timeout(Duration::from_millis(20)).is_err(), "the index cannot be loaded yet");
        assert_eq!(held.waiting.load(Ordering::SeqCst), 1, "one thread loads for all");
        held.hold(false);
    });
    let mut keys: Vec<u64> = answers.try_iter().collect();
    keys.sort_unstable();
    assert_eq!(keys, [7, 8, 9]);
    device.close().unwrap();
}

/// Goal:   a namespace whose index cannot be read is deleted like any other, others are kept, and its space comes back.
/// Method: reads fail while it is not in memory; then everything is checked, and again after the device was closed and opened.
#[test]
fn namespaces_that_cannot_be_read_are_deleted() {
    let (held, medium) = Held::new();
    let device = Device::on_medium(medium.clone()).unwrap();
    let (lost, kept) = (records(&device, "lost", 2000), records(&device, "kept", 1000));
    let live = device.stats().live_bytes;
    assert!(device.unload_namespace(lost).unwrap());
    held.fails.store(true, Ordering::SeqCst);
    assert!(device.get(lost, 7u64).is_err());
    device.delete_namespace(lost).unwrap();
    held.fails.store(false, Ordering::SeqCst);
    assert!(device.namespace("lost").is_err());
    assert!(device.stats().live_bytes <= live / 2);
    let check = |device: &Device| {
        let report = device.check(&mut |_, _| {}).unwrap();
        assert_eq!((report.records, report.problems), (1000, Vec::new()));
        (0..1000u64).for_each(|key| assert_eq!(device.get(kept, key).unwrap().unwrap(), key.to_le_bytes()));
    };
    check(&device);
    device.close().unwrap();
    check(&Device::on_medium(medium).unwrap());
}

/// Goal:   a namespace that is loaded again and again serves its records whole, and can be deleted at any moment.
/// Method: one thread takes it out of memory, two put and get, one deletes it in the end while all continue.
#[test]
fn indexes_come_and_go_under_load() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let space = records(&device, "n", 3000);
    let (stop, unloads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let unload = || {
            while let Ok(gone) = device.unload_namespace(space) {
                unloads.fetch_add(u64::from(gone), Ordering::Relaxed);
            }
        };
        scope.spawn(unload);
        for thread in 0..2u64 {
            let (device, stop) = (&device, &stop);
            scope.spawn(move || {
                for turn in 0u64.. {
                    let key = (turn * 2 + thread) % 3000;
                    let value = turn.to_le_bytes();
                    // Between bursts of Puts there is time for a snapshot.
                    let is_put = turn / 20 % 2000 == 0;
                    let put = if is_put { device.put(space, key, &value) } else { Ok(()) };
                    match put.and_then(|()| device.get(space, key)) {
                        Ok(found) => assert!(
                            found.is_some() && (!is_put || found.as_deref() == Some(&value[..])),
                            "{turn} {key} {is_put} {found:?}"
                        ),
                        Err(kaml::Error::UnknownNamespace(_)) => {
                            return assert!(stop.load(Ordering::SeqCst), "deleted before its time");
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let begin = Instant::now();
        while unloads.load(Ordering::Relaxed) < 20 && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::SeqCst);
        device.delete_namespace(space).unwrap();
    });
    assert!(unloads.into_inner() > 0, "never out of memory");
    assert!(device.check(&mut |_, _| {}).unwrap().problems.is_empty());
    device.close().unwrap();
}

/// Goal:   a check finds nothing wrong where nothing is, although indexes that nobody uses leave memory while it continues.
/// Method: before each block is read the namespaces of records and of versions leave memory, as those do that nobody has used
///         for some minutes, which a check of a large device takes.
#[test]
fn checks_load_what_has_left_memory() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let idle = records(&device, "idle", 3000);
    let kept = with_versions(&device, "kept", 0, Some(VersionOptions::default()));
    (0..3000u64).for_each(|key| device.put(kept, key, &[5; 1000]).unwrap());
    device.settle().unwrap();
    let mut left = 0;
    let mut unload = |_, _| {
        left += [idle, kept].into_iter().filter(|space| device.unload_namespace(*space).unwrap()).count();
    };
    let report = device.check(&mut unload).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert!((report.records, report.versions) == (3000, 3000), "{report:?}");
    assert!(left > 4, "{left}");
}

/// Records that are overwritten: so many that no block is empty before it is collected.
const BUSY: u64 = 4000;

/// Overwrites records at random until a condition holds.
fn overwrite_until(device: &Device, space: NamespaceId, what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    for turn in 0u64.. {
        if is_so() {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        let key = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        device.put(space, key % BUSY, &[turn as u8; 8000]).unwrap();
    }
}

/// Goal:   collection continues where records are of indexes that have left memory, of one after the other; and a device that was closed
///         leaves its medium alone, whatever it was about.
/// Method: records of two namespaces are in blocks among others; their indexes leave memory, and the others are overwritten until both
///         are back. Then one leaves again and reads are held up while collection needs it, and the device is closed.
#[test]
fn indexes_are_loaded_for_collection() {
    let (held, medium) = Held::new();
    let device = Device::on_medium(medium.clone()).unwrap();
    let [busy, one, two] = ["busy", "one", "two"].map(|name| records(&device, name, 0));
    for key in 0..BUSY {
        device.put(busy, key, &[1; 8000]).unwrap();
        [one, two].iter().for_each(|space| device.put(*space, key, &key.to_le_bytes().repeat(20)).unwrap());
    }
    let is_loaded = |id| device.is_namespace_loaded(id).unwrap();
    [one, two].iter().for_each(|space| assert!(device.unload_namespace(*space).unwrap()));
    overwrite_until(&device, busy, "an index does not come back", || is_loaded(one) && is_loaded(two));
    while !device.unload_namespace(one).unwrap() {
        device.settle().unwrap(); // it was being collected
    }
    held.hold(true);
    overwrite_until(&device, busy, "nobody needs the index", || held.waiting.load(Ordering::SeqCst) > 0);
    std::thread::scope(|scope| {
        let closed = scope.spawn(|| device.close());
        std::thread::sleep(Duration::from_millis(200));
        held.hold(false);
        closed.join().unwrap().unwrap();
    });
    assert_eq!(Arc::strong_count(&medium), 1, "somebody still has the medium");
    let device = Device::on_medium(medium).unwrap();
    for key in 0..BUSY {
        for space in [one, two] {
            assert!(device.get(space, key).unwrap() == Some(key.to_le_bytes().repeat(20)), "record {key}");
        }
    }
    assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}
