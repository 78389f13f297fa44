//! Indexes that leave memory and come back while others are at work.

use kaml::{
    Batch, BlockOptions, CreateOptions, Device, Error, KeyKind, NamespaceId, NamespaceKind, NamespaceOptions,
    VersionOptions,
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
    // A put that comes after blocks have run out waits for the index itself: so it is looked after each, without haste.
    overwrite_until(&device, busy, "nobody needs the index", || {
        std::thread::sleep(Duration::from_millis(1));
        held.waiting.load(Ordering::SeqCst) > 0
    });
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

/// Reads of so many bytes are those of a whole index; a part of one has fewer.
const WHOLE_INDEX_BYTES: usize = 100 << 10;
/// As many keys have an index whose image is worth reading.
const MANY: u64 = 160_000;

fn long_key(kind: KeyKind, i: u64) -> Vec<u8> {
    match kind {
        KeyKind::U64 => i.to_be_bytes().to_vec(),
        KeyKind::Bytes => format!("{i:x}").into_bytes(),
        KeyKind::Any | KeyKind::Ordered => format!("users/by-number/{}/{i}", i % 3).into_bytes(),
    }
}

/// A device that was closed and opened, with many records of a kind in one namespace and a few in another.
fn reopened(kind: KeyKind) -> (Arc<Held>, Device, NamespaceId, NamespaceId) {
    let (held, medium) = Held::new();
    let device = Device::on_medium(medium.clone()).unwrap();
    let large = device.create_namespace("large", &NamespaceOptions::records(kind)).unwrap();
    let small = records(&device, "small", 100);
    let mut batch = Batch::new();
    for i in 0..MANY {
        batch.put(large, &long_key(kind, i), &i.to_le_bytes());
        if batch.len() == 500 {
            device.write(&batch).unwrap();
            batch.clear();
        }
    }
    assert!(batch.is_empty());
    device.close().unwrap();
    let device = Device::on_medium(medium).unwrap();
    (held, device, large, small)
}

/// Reads of whole indexes are blocked until this is dropped, which a test that fails does, too.
struct Blocked<'a>(&'a Held);

impl<'a> Blocked<'a> {
    fn new(held: &'a Held) -> Blocked<'a> {
        held.least_bytes.store(WHOLE_INDEX_BYTES, Ordering::SeqCst);
        held.hold(true);
        Blocked(held)
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.hold(false);
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Goal:   gets do not wait for an index that is not in memory, whatever its keys; changes and listings do. Gets alone bring it into memory.
/// Method: whole indexes cannot be read. Present and absent keys are looked up one by one, in a batch and in a queue. A put waits until the
///         index can be read, and is seen then.
#[test]
fn gets_do_not_wait_for_an_index() {
    for kind in [KeyKind::U64, KeyKind::Bytes, KeyKind::Any, KeyKind::Ordered] {
        let (held, device, large, _) = reopened(kind);
        let blocked = Blocked::new(&held);
        let keys: Vec<u64> = (0..MANY).step_by(7919).collect();
        for &i in &keys {
            assert_eq!(
                device.get(large, &long_key(kind, i)).unwrap().as_deref(),
                Some(&i.to_le_bytes()[..]),
                "{kind:?} {i}"
            );
            assert!(device.exists(large, &long_key(kind, i)).unwrap());
            assert_eq!(device.get(large, &long_key(kind, MANY + i)).unwrap(), None);
            assert!(!device.exists(large, &long_key(kind, MANY + i)).unwrap());
        }
        wait_until("nobody loads the index", || held.waiting.load(Ordering::SeqCst) == 1);
        assert!(!device.is_namespace_loaded(large).unwrap());
        std::thread::scope(|scope| {
            let put = scope.spawn(|| device.put(large, &long_key(kind, 7), b"new").unwrap());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!put.is_finished(), "a put needs the index");
            assert_eq!(device.get(large, &long_key(kind, 7)).unwrap().as_deref(), Some(&7u64.to_le_bytes()[..]));
            drop(blocked);
        });
        assert!(device.is_namespace_loaded(large).unwrap());
        assert_eq!(device.get(large, &long_key(kind, 7)).unwrap().as_deref(), Some(&b"new"[..]));
        device.close().unwrap();
    }
}

/// Goal:   reads of blocks in one unit do not wait for the index of their namespace, present or not; others do.
/// Method: units so far apart that each is in another part of the image; whole indexes cannot be read.
#[test]
fn reads_of_blocks_do_not_wait_for_an_index() {
    const APART: u64 = 20_000;
    let (held, medium) = Held::new();
    let device = Device::on_medium(medium.clone()).unwrap();
    let disk = device.create_namespace("disk", &BlockOptions::new(4096, 64 * APART).into()).unwrap();
    (0..64u8).for_each(|i| device.block_write(disk, u64::from(i) * APART, &[i + 1; 4096]).unwrap());
    device.close().unwrap();
    let device = Device::on_medium(medium).unwrap();
    let blocked = Blocked::new(&held);
    let mut found = [9; 4096];
    for i in 0..64u8 {
        device.block_read(disk, u64::from(i) * APART, &mut found).unwrap();
        assert_eq!(found, [i + 1; 4096]);
        device.block_read(disk, u64::from(i) * APART + 1 + u64::from(i), &mut found).unwrap();
        assert_eq!(found, [0; 4096]);
    }
    wait_until("nobody loads the index", || held.waiting.load(Ordering::SeqCst) == 1);
    assert!(!device.is_namespace_loaded(disk).unwrap());
    drop(blocked);
    let mut both = [9; 2 * 4096];
    device.block_read(disk, APART, &mut both).unwrap();
    assert_eq!((&both[..4096], &both[4096..]), (&[2; 4096][..], &[0; 4096][..]));
    device.close().unwrap();
}

/// Goal:   gets bring an index into memory, and it leaves it again.
/// Method: one get after opening; then the namespace is unloaded, and the same once more.
#[test]
fn a_get_brings_the_index_into_memory() {
    let (_held, device, large, _) = reopened(KeyKind::U64);
    for _ in 0..2 {
        assert!(device.get(large, 5u64).unwrap().is_some());
        wait_until("the index is not loaded", || device.is_namespace_loaded(large).unwrap());
        wait_until("the index does not leave memory", || device.unload_namespace(large).unwrap());
    }
    device.close().unwrap();
}

/// Goal:   a device is closed while an index is loaded for gets, without waiting for it, and nothing is lost.
/// Method: whole indexes cannot be read when closing begins; they can after a while. What is read then is the end of one block.
#[test]
fn a_device_is_closed_while_an_index_is_loaded() {
    let (held, device, large, small) = reopened(KeyKind::U64);
    device.put(small, 1u64, b"changed").unwrap();
    let blocked = Blocked::new(&held);
    assert!(device.get(large, 5u64).unwrap().is_some());
    wait_until("nobody loads the index", || held.waiting.load(Ordering::SeqCst) == 1);
    std::thread::scope(|scope| {
        let closing = scope.spawn(move || device.close().unwrap());
        std::thread::sleep(Duration::from_millis(20));
        drop(blocked);
        closing.join().unwrap();
    });
}

/// Goal:   a damaged part of an image is an error that names the namespace, never a missing record; other namespaces work.
/// Method: whole parts come with a changed byte from the moment at which the device is open: none, the parts alone, and all of the image.
#[test]
fn damaged_images_are_reported() {
    let (held, device, large, small) = reopened(KeyKind::U64);
    held.least_bytes.store(32 << 10, Ordering::SeqCst); // parts, and whole indexes
    held.fails.store(true, Ordering::SeqCst);
    for i in (0..MANY).step_by(40_000) {
        let error = device.get(large, i).unwrap_err();
        assert!(matches!(&error, Error::IndexDamaged { name, .. } if name == "large"), "{error:?}");
        assert!(device.exists(large, i).is_err());
    }
    assert!(device.get(small, 7u64).unwrap().is_some());
    held.fails.store(false, Ordering::SeqCst);
    assert!(device.get(large, 7u64).unwrap().is_some(), "flash can be read again");
    device.close().unwrap();
}

/// Goal:   gets return whole and present values while their index leaves memory and returns, and records move.
/// Method: one thread takes the index of many records out of memory as often as it can, one overwrites records one after the other, and two
///         read: never less than what was last acknowledged.
#[test]
fn large_indexes_come_and_go_under_load() {
    let (_held, device, large, _) = reopened(KeyKind::U64);
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let key_of = |turn: u64| turn * 7 % 1000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                device.unload_namespace(large).unwrap();
                std::thread::yield_now();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let turn = acknowledged.load(Ordering::SeqCst);
                    let value = device.get(large, key_of(turn)).unwrap().expect("it is never deleted");
                    let found = u64::from_le_bytes(value[..8].try_into().unwrap());
                    assert!(turn == 0 || found >= turn + MANY, "{found} instead of {turn}");
                    assert_eq!(device.get(large, MANY + turn).unwrap(), None);
                }
            });
        }
        for turn in 1..200u64 {
            let value = [(turn + MANY).to_le_bytes(); 100];
            device.put(large, key_of(turn), value.as_flattened()).unwrap();
            acknowledged.store(turn, Ordering::SeqCst);
            if turn % 10 == 0 {
                device.settle().unwrap();
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    device.close().unwrap();
}
