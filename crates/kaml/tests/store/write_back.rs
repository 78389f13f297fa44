//! Write-back: unflushed records, flush, cleaning.

use crate::moves::Rng;
use crate::world::{World, shut};
use kaml::store::{Backing, Store, StoreOptions, Update, WriteMode};
use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions, VersionOptions};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn back(bytes: u64) -> StoreOptions {
    StoreOptions { write_mode: WriteMode::Back, ..StoreOptions::new(bytes) }
}

/// Goal:   a write-back put reaches the device with a flush, not before, and deletes do too.
/// Method: puts and deletes, looking at the device before and after the flush.
#[test]
fn puts_are_durable_at_flush() {
    let world = World::new(&back(4 << 20));
    world.device.put(world.ns, 5u64, b"old").unwrap();
    for key in 0..5u64 {
        world.store.put(world.ns, key, b"new").unwrap();
    }
    world.store.delete(world.ns, 5u64).unwrap();
    assert_eq!(world.controls.writes.load(Ordering::Relaxed), 0);
    assert!(world.store.get(world.ns, 5u64).unwrap().is_none());
    world.store.flush().unwrap();
    assert_eq!(world.controls.writes.load(Ordering::Relaxed), 1);
    assert_eq!(world.device.get(world.ns, 4u64).unwrap().unwrap(), b"new");
    assert!(world.device.get(world.ns, 5u64).unwrap().is_none());
    assert_eq!(world.store.stats().dirty_bytes, 0);
    world.store.flush().unwrap();
    assert_eq!(world.controls.writes.load(Ordering::Relaxed), 1, "what is clean is not written again");
}

/// Goal:   unflushed records of a namespace that was deleted next to the store keep those of others from nothing.
/// Method: records of two namespaces in turns, one of these is deleted on the device; a flush makes the others durable, and the budget
///         is free again.
#[test]
fn deleted_namespaces_keep_nothing_back() {
    let world = World::new(&back(4 << 20));
    let gone = world.device.create_namespace("gone", &NamespaceOptions::default()).unwrap();
    for key in 0..1000u64 {
        world.store.put(gone, key, b"gone").unwrap();
        world.store.put(world.ns, key, b"kept").unwrap();
    }
    world.device.delete_namespace(gone).unwrap();
    world.store.flush().unwrap();
    (0..1000u64).for_each(|key| assert_eq!(world.device.get(world.ns, key).unwrap().unwrap(), b"kept"));
    assert_eq!((world.store.stats().dirty_bytes, world.store.stats().record_count), (0, 1000));
    assert!(world.store.put(gone, 1u64, b"gone").is_err());
    assert!(world.store.get(gone, 1u64).is_err());
}

/// Goal:   when memory runs out unflushed records are cleaned, and none is lost or stale; the budget is kept meanwhile.
/// Method: 30 000 random puts, deletes and gets of 3000 keys through a small cache, against a map; flush; compare the
///         device. Then the same while the device takes its time, so much is changed that is just being cleaned.
#[test]
fn cleaning_makes_room() {
    for write_delay_us in [0, 500] {
        clean_to_make_room(write_delay_us);
    }
}

fn clean_to_make_room(write_delay_us: u64) {
    let world = World::new(&back(1 << 20));
    world.controls.write_delay_us.store(write_delay_us, Ordering::Relaxed);
    let mut model = BTreeMap::new();
    let mut rng = Rng::new(3);
    for round in 0..30_000u64 {
        let key = rng.below(3000);
        match rng.below(10) {
            0 => {
                world.store.delete(world.ns, key).unwrap();
                model.remove(&key);
            }
            1..=5 => {
                let value = vec![round as u8; rng.below(2000) as usize];
                world.store.put(world.ns, key, &value).unwrap();
                model.insert(key, value);
            }
            _ => {
                let found = world.store.get(world.ns, key).unwrap().map(|v| v.to_vec());
                assert_eq!(found, model.get(&key).cloned(), "key {key}");
            }
        }
        let used = world.store.stats().used_bytes;
        assert!(used <= 1 << 20, "{used} bytes of 1 MiB");
    }
    world.store.flush().unwrap();
    for key in 0..3000u64 {
        assert_eq!(world.device.get(world.ns, key).unwrap(), model.get(&key).cloned(), "key {key}");
    }
}

/// Goal:   puts, transactions and flushes of the same records do not overtake each other.
/// Method: 4 threads count up records, by write-back puts of their own keys and by transactions on shared ones, while
///         a fifth flushes; then the device has the last of each.
#[test]
fn flushes_beside_puts_and_transactions() {
    for records_per_lock in [1, 4] {
        let options = StoreOptions { records_per_lock, ..back(1 << 20) };
        let world = World::new(&options);
        (0..4u64).for_each(|key| world.store.put(world.ns, key, &0u64.to_le_bytes()).unwrap());
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let world = &world;
                scope.spawn(move || {
                    for round in 1..=500u64 {
                        world.store.put(world.ns, 100 + thread, &round.to_le_bytes()).unwrap();
                        world
                            .store
                            .run(|txn| {
                                let key = round % 4;
                                let now = txn.read_for_update(world.ns, key)?.unwrap();
                                let now = u64::from_le_bytes(now[..].try_into().unwrap());
                                txn.update(world.ns, key, &(now + 1).to_le_bytes())
                            })
                            .unwrap();
                    }
                });
            }
            scope.spawn(|| (0..100).for_each(|_| world.store.flush().unwrap()));
        });
        world.store.flush().unwrap();
        let on_device =
            |key: u64| u64::from_le_bytes(world.device.get(world.ns, key).unwrap().unwrap()[..].try_into().unwrap());
        assert_eq!((0..4).map(on_device).sum::<u64>(), 2000);
        (100..104).for_each(|key| assert_eq!(on_device(key), 500));
    }
}

/// Goal:   a flush that waits for a transaction does not keep the owner of that from putting, however many records are dirty.
/// Method: a transaction changes a dirty record while another thread flushes; then its own thread puts more than may be
///         dirty, commits, and the flush comes to its end.
#[test]
fn puts_do_not_wait_for_a_waiting_flush() {
    let world = World::new(&back(1 << 20));
    let (store, ns) = (&world.store, world.ns);
    store.put(ns, 1u64, b"dirty").unwrap();
    let mut txn = store.begin().unwrap();
    txn.update(ns, 1u64, b"changed").unwrap();
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| store.flush());
        while store.stats().lock_wait_count == 0 {
            std::thread::yield_now();
        }
        for key in 0..3000u64 {
            store.put(ns, 100 + key, &[3; 1000]).unwrap();
        }
        txn.commit().unwrap();
        flush.join().unwrap().unwrap();
    });
    store.flush().unwrap();
    assert_eq!(world.device.get(ns, 1u64).unwrap().unwrap(), b"changed");
    assert_eq!(store.stats().timeout_count, 0);
}

/// Goal:   a commit takes along the unflushed records that it read.
/// Method: a write-back put, a transaction that reads it and writes another; nothing is flushed; look at the device. Then the
///         same with a delete.
#[test]
fn commits_do_not_depend_on_unflushed_puts() {
    let world = World::new(&back(1 << 20));
    world.store.put(world.ns, 1u64, b"source").unwrap();
    world
        .store
        .run(|txn| {
            let source = txn.read(world.ns, 1u64)?.unwrap();
            txn.insert(world.ns, 2u64, &source)
        })
        .unwrap();
    assert_eq!(world.device.get(world.ns, 1u64).unwrap().unwrap(), b"source");
    assert_eq!(world.device.get(world.ns, 2u64).unwrap().unwrap(), b"source");
    world.store.delete(world.ns, 1u64).unwrap();
    world
        .store
        .run(|txn| {
            assert!(txn.read(world.ns, 1u64)?.is_none());
            txn.insert(world.ns, 3u64, b"as it was gone")
        })
        .unwrap();
    assert_eq!(world.device.get(world.ns, 1u64).unwrap(), None);
}

/// Goal:   a device that fails fails the flush and loses nothing.
/// Method: puts, a failing flush, the device works again, a flush.
#[test]
fn a_failed_flush_can_be_repeated() {
    let world = World::new(&back(1 << 20));
    (0..50u64).for_each(|key| world.store.put(world.ns, key, b"x").unwrap());
    world.controls.fail_writes.store(true, Ordering::Relaxed);
    assert!(matches!(world.store.flush(), Err(kaml::Error::ReadOnly)));
    world.controls.fail_writes.store(false, Ordering::Relaxed);
    world.store.flush().unwrap();
    (0..50u64).for_each(|key| assert_eq!(world.device.get(world.ns, key).unwrap().unwrap(), b"x"));
    assert!(world.store.put(77, 1u64, b"x").is_err(), "an unknown namespace is refused at once");
}

/// Goal:   a value that its namespace does not take is refused at once, by every way into the store, and does no harm to others'
///         records: neither unflushed ones nor commits that are not durable yet.
/// Method: a version that is too long together with good records, in write-back mode and with delayed durability; a flush.
#[test]
fn too_long_versions_are_refused_at_once() {
    for durability_delay in [Duration::ZERO, Duration::from_secs(3600)] {
        let world = World::new(&StoreOptions { durability_delay, ..back(32 << 20) });
        let versions = NamespaceOptions::versions(KeyKind::U64, VersionOptions::default());
        let space = world.device.create_namespace("versions", &versions).unwrap();
        let long = vec![1; Backing::value_bytes_max(&world.device, space) as usize + 1];
        world.store.put(world.ns, 1u64, b"put").unwrap();
        world.store.run(|txn| txn.insert(world.ns, 2u64, b"committed")).unwrap();
        let mut queue = world.store.queue(4);
        queue.put(0, space, 1u64, &long);
        let of_update = long.clone();
        queue.update(1, space, 1u64, move |_| Update::Store(of_update));
        let mut answers = Vec::new();
        while queue.in_flight() > 0 {
            queue.poll(true, &mut answers);
        }
        let results = answers.into_iter().map(|answer| answer.result.map(drop));
        for result in
            results.chain([world.store.put(space, 1u64, &long), world.store.run(|txn| txn.insert(space, 1u64, &long))])
        {
            let Err(error) = result else { panic!("{result:?}") };
            assert!(matches!(error, kaml::Error::ValueTooLarge { .. }), "{error}");
        }
        world.store.put(space, 2u64, &[1; 100 << 10]).unwrap();
        world.store.flush().unwrap();
        assert_eq!(world.device.get(world.ns, 1u64).unwrap().unwrap(), b"put");
        assert_eq!(world.device.get(world.ns, 2u64).unwrap().unwrap(), b"committed");
        assert_eq!(world.device.get(space, 2u64).unwrap().unwrap(), [1; 100 << 10]);
    }
}

/// Goal:   a flush of long versions, which all go through the ring, makes no Put that is too large for it.
/// Method: versions as long as can be after others of almost half a Put, and a flush.
#[test]
fn long_versions_are_flushed() {
    let (ring_bytes, block_bytes) = (Some(8 << 20), Some(2 << 20));
    let device =
        Device::in_memory(&CreateOptions { ring_bytes, block_bytes, ..CreateOptions::new(512 << 20) }).unwrap();
    let versions = VersionOptions { buffer_bytes: 2_790_000, ..VersionOptions::default() };
    let keys = NamespaceOptions::versions(KeyKind::U64, versions);
    let space = device.create_namespace("versions", &keys).unwrap();
    let store = Store::open(device.clone(), &back(64 << 20)).unwrap();
    let longest = vec![1; Backing::value_bytes_max(&device, space) as usize];
    let half = vec![2; device.info().batch_bytes_max as usize * 45 / 100];
    assert!(longest.len() + half.len() > device.info().batch_bytes_max as usize);
    for key in 0..10u64 {
        store.put(space, key, &longest).unwrap();
        store.put(space, 100 + key, &half).unwrap();
    }
    store.flush().unwrap();
    for key in 0..10u64 {
        assert!(device.get(space, key).unwrap().unwrap() == longest);
        assert!(device.get(space, 100 + key).unwrap().unwrap() == half);
    }
}

/// Goal:   a commit that is lost takes no unflushed put along, with early release neither: the next flush still makes it durable.
/// Method: a transaction replaces an unflushed record, its Put is lost, and then a flush.
#[test]
fn lost_commits_leave_unflushed_puts() {
    let world = World::new(&StoreOptions { early_release: true, ..back(1 << 20) });
    world.store.put(world.ns, 1u64, b"put").unwrap();
    world.controls.lose_pending.store(true, Ordering::Relaxed);
    let mut txn = world.store.begin().unwrap();
    txn.update(world.ns, 1u64, b"committed").unwrap();
    let is_committed = txn.commit().is_ok();
    if !is_committed {
        world.device.delete(world.ns, 1u64).unwrap(); // it was not stored
    }
    world.store.flush().unwrap();
    let expected: &[u8] = if is_committed { b"committed" } else { b"put" };
    assert_eq!(world.device.get(world.ns, 1u64).unwrap().as_deref(), Some(expected));
}

/// Goal:   a change of a queue that is lost takes no unflushed put along, nor one that came before it.
/// Method: a queue whose Puts fail after they are in progress updates and replaces an unflushed record, then a flush.
#[test]
fn lost_changes_of_queues_leave_unflushed_puts() {
    let world = World::new(&back(1 << 20));
    world.controls.fail_queued.store(true, Ordering::Relaxed);
    let (mut queue, mut answers) = (world.store.queue(8), Vec::new());
    for key in 1..4u64 {
        world.store.put(world.ns, key, b"put").unwrap();
        queue.update(key, world.ns, key, |old| Update::Store([old.unwrap(), b"and updated"].concat()));
        queue.update(key + 10, world.ns, key, |_| Update::Delete);
    }
    while queue.in_flight() > 0 {
        queue.poll(true, &mut answers);
    }
    assert!(answers.len() == 6 && answers.iter().all(|answer| answer.result.is_err()));
    world.store.flush().unwrap();
    for key in 1..4u64 {
        assert_eq!(world.store.get(world.ns, key).unwrap().as_deref(), Some(&b"put"[..]));
        assert_eq!(world.device.get(world.ns, key).unwrap().as_deref(), Some(&b"put"[..]));
    }
}

/// Goal:   a commit that was stored, but of which nobody heard, is not undone in part by a flush of what it replaced.
/// Method: a transaction changes an unflushed record and another one, its answer is lost, and then a flush.
#[test]
fn commits_that_nobody_heard_of_are_whole() {
    let world = World::new(&back(1 << 20));
    [1u64, 2].into_iter().for_each(|key| world.device.put(world.ns, key, b"old").unwrap());
    world.store.put(world.ns, 1u64, b"put").unwrap();
    world.controls.lose_answers.store(true, Ordering::Relaxed);
    let mut txn = world.store.begin().unwrap();
    [1u64, 2].into_iter().for_each(|key| txn.update(world.ns, key, b"committed").unwrap());
    assert!(txn.commit().is_err());
    world.store.flush().unwrap();
    for key in [1u64, 2] {
        assert_eq!(world.device.get(world.ns, key).unwrap().as_deref(), Some(&b"committed"[..]));
        assert_eq!(world.store.get(world.ns, key).unwrap().as_deref(), Some(&b"committed"[..]));
    }
}

/// Goal:   on a full device deletes make room for unflushed records, however many of these there are.
/// Method: fill the device; puts, which a flush cannot store; deletes, and a flush.
#[test]
fn deletes_make_room_on_a_full_device() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let keys = NamespaceOptions::records(KeyKind::U64);
    let ns = device.create_namespace("n", &keys).unwrap();
    let full = (0..u64::MAX).find(|key| device.put(ns, *key, &[1; 4000]).is_err()).unwrap();
    let new = (1 << 32)..(1 << 32) + 1000u64;
    let store = Store::open(device.clone(), &back(16 << 20)).unwrap();
    new.clone().for_each(|key| store.put(ns, key, &[2; 1000]).unwrap());
    let error = store.flush().unwrap_err();
    assert!(matches!(error, kaml::Error::Full { .. }));
    (0..full / 2).for_each(|key| store.delete(ns, key).unwrap());
    store.flush().unwrap();
    new.for_each(|key| assert_eq!(device.get(ns, key).unwrap().unwrap(), [2; 1000]));
    (0..full).for_each(|key| assert_eq!(device.exists(ns, key).unwrap(), key >= full / 2));
}

/// Goal:   what a full device does not take fills the cache only so far: then puts are refused, and nothing of them exists, now or
///         later, the budget is kept, and deletes are taken.
/// Method: fill the device; puts until one is refused; 2000 more, of new records and of those that were taken, plain ones and of a
///         queue; deletes of what the device has, and a flush.
#[test]
fn refused_puts_leave_nothing() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let keys = NamespaceOptions::records(KeyKind::U64);
    let ns = device.create_namespace("n", &keys).unwrap();
    let full = (0..u64::MAX).find(|key| device.put(ns, *key, &[1; 4000]).is_err()).unwrap();
    let store = Store::open(device.clone(), &back(2 << 20)).unwrap();
    let (mut queue, mut answers) = (store.queue(8), Vec::new());
    let first = 1u64 << 32;
    let refused = (first..).find(|key| store.put(ns, *key, &[2; 1000]).is_err()).unwrap();
    for key in (refused..refused + 2000).chain(first..first + 10) {
        if key % 2 == 0 {
            assert!(matches!(store.put(ns, key, &[3; 1000]), Err(kaml::Error::Full { .. })), "{key}");
        } else {
            queue.put(0, ns, key, &[3; 1000]);
            queue.poll(true, &mut answers);
            assert!(answers.pop().unwrap().result.is_err(), "{key}");
        }
        let expected = (key < refused).then_some(&[2; 1000][..]);
        assert_eq!(store.get(ns, key).unwrap().as_deref(), expected);
        assert!(store.stats().used_bytes <= 2 << 20);
    }
    (0..full / 2).for_each(|key| store.delete(ns, key).unwrap());
    store.flush().unwrap();
    (0..full).for_each(|key| assert_eq!(device.exists(ns, key).unwrap(), key >= full / 2));
    (first..refused).for_each(|key| assert_eq!(device.get(ns, key).unwrap().unwrap(), [2; 1000]));
    (refused..refused + 2000).for_each(|key| assert!(!device.exists(ns, key).unwrap()));
}

/// Goal:   nothing is put past the lock of a transaction, nor read from the device past an exclusive one.
/// Method: transactions with a record, or another one that shares its lock: one reads, one is going to change it, two read; puts, and
///         gets of what the cache does not have.
#[test]
fn transactions_keep_puts_and_loads_away() {
    for (records_per_lock, readers, writers) in [(1, 1, 0), (1, 0, 1), (1, 2, 0), (16, 1, 0), (16, 0, 1), (16, 2, 0)] {
        let lock_timeout = Duration::from_millis(20);
        let world = World::new(&StoreOptions { records_per_lock, lock_timeout, ..back(1 << 20) });
        let (store, ns) = (&world.store, world.ns);
        (17..22u64).for_each(|key| world.device.put(ns, key, b"old").unwrap());
        let mut txns: Vec<_> = (0..readers + writers).map(|_| store.begin().unwrap()).collect();
        for txn in &mut txns {
            let value = if writers > 0 { txn.read_for_update(ns, 17u64) } else { txn.read(ns, 17u64) };
            assert_eq!(value.unwrap().as_deref(), Some(&b"old"[..]));
        }
        let key = if records_per_lock == 1 { 17u64 } else { 18 };
        assert!(matches!(store.put(ns, key, b"new"), Err(kaml::Error::LockTimeout { .. })));
        let (mut queue, mut answers) = (store.queue(4), Vec::new());
        if writers > 0 && records_per_lock > 1 {
            let before = world.gets();
            queue.get(0, ns, 20u64);
            queue.poll(false, &mut answers);
            assert!(matches!(store.get(ns, 21u64), Err(kaml::Error::LockTimeout { .. })));
            assert_eq!((answers.len(), world.gets()), (0, before));
        }
        drop(txns);
        store.put(ns, key, b"new").unwrap();
        queue.poll(true, &mut answers);
        assert!(answers.into_iter().all(|answer| answer.result.unwrap().as_deref() == Some(b"old")));
    }
}

/// Goal:   an unflushed put is kept, whatever becomes of commits of its record before it and after it.
/// Method: a commit with early release that is lost after the put; one that the device refuses after the put; then a flush.
#[test]
fn puts_outlive_commits_that_fail() {
    let world = World::new(&StoreOptions { early_release: true, ..back(1 << 20) });
    let (store, ns) = (&world.store, world.ns);
    [1u64, 2].into_iter().for_each(|key| world.device.put(ns, key, b"old").unwrap());
    std::thread::scope(|scope| {
        let held_back = world.controls.hold_back();
        world.controls.lose_pending.store(true, Ordering::Relaxed);
        let writer = scope.spawn(|| store.run(|txn| txn.update(ns, 1u64, b"lost")));
        world.wait_for_writes(1);
        let mut early = store.begin().unwrap(); // gets the lock when it is released
        assert_eq!(early.read(ns, 1u64).unwrap().as_deref(), Some(&b"lost"[..]));
        early.abort().unwrap();
        store.put(ns, 1u64, b"kept").unwrap();
        drop(held_back);
        assert!(writer.join().unwrap().is_err());
    });
    store.put(ns, 2u64, b"kept").unwrap();
    world.controls.fail_writes.store(true, Ordering::Relaxed);
    assert!(store.run(|txn| txn.update(ns, 2u64, b"refused")).is_err());
    world.controls.fail_writes.store(false, Ordering::Relaxed);
    [1u64, 2].into_iter().for_each(|key| assert_eq!(store.get(ns, key).unwrap().as_deref(), Some(&b"kept"[..])));
    store.flush().unwrap();
    [1u64, 2].into_iter().for_each(|key| assert_eq!(world.device.get(ns, key).unwrap().unwrap(), b"kept"));
}

/// Goal:   two contents of a record are never on their way together: the older one could come last.
/// Method: a flush that waited for a transaction is about to store the record; then it is put again, and much else, so
///         records are cleaned; the flush continues.
#[test]
fn older_contents_do_not_come_last() {
    let world = World::new(&back(1 << 20));
    let (store, ns) = (&world.store, world.ns);
    store.put(ns, 1u64, b"older").unwrap();
    let mut txn = store.begin().unwrap();
    txn.read_for_update(ns, 1u64).unwrap();
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| store.flush());
        while store.stats().lock_wait_count == 0 {
            std::thread::yield_now();
        }
        let writing = shut(&world.controls.writing);
        txn.abort().unwrap();
        writing.wait();
        let putter = scope.spawn(|| {
            store.put(ns, 1u64, b"newer").unwrap();
            (0..3000u64).for_each(|key| store.put(ns, 100 + key, &[3; 1000]).unwrap());
        });
        let begin = Instant::now();
        while !putter.is_finished() && begin.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_millis(1));
        }
        writing.wait();
        putter.join().unwrap();
        flush.join().unwrap().unwrap();
    });
    store.flush().unwrap();
    assert_eq!(world.device.get(ns, 1u64).unwrap().unwrap(), b"newer");
}

/// Goal:   who waits for a record that is being written is woken when it is written.
/// Method: a transaction waits after a flush whose Put is held back; lock waits may take longer than the test may.
#[test]
fn who_waits_for_cleaning_is_woken() {
    let world = World::new(&StoreOptions { lock_timeout: Duration::from_secs(20), ..back(1 << 20) });
    let (store, ns) = (&world.store, world.ns);
    store.put(ns, 1u64, b"put").unwrap();
    std::thread::scope(|scope| {
        let held_back = world.controls.hold_back();
        let flush = scope.spawn(|| store.flush());
        world.wait_for_writes(1);
        let writer = scope.spawn(|| store.run(|txn| txn.update(ns, 1u64, b"changed")));
        while store.stats().lock_wait_count == 0 {
            std::thread::yield_now();
        }
        let begin = Instant::now();
        drop(held_back);
        flush.join().unwrap().unwrap();
        writer.join().unwrap().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(10));
    });
}

/// Goal:   unflushed records of a namespace go with it, not before.
/// Method: the device refuses to delete it; then a flush.
#[test]
fn a_namespace_that_stays_keeps_unflushed_records() {
    let world = World::new(&back(1 << 20));
    world.store.put(world.ns, 1u64, b"put").unwrap();
    world.controls.fail_writes.store(true, Ordering::Relaxed);
    assert!(world.store.delete_namespace(world.ns).is_err());
    world.controls.fail_writes.store(false, Ordering::Relaxed);
    world.store.flush().unwrap();
    assert_eq!(world.device.get(world.ns, 1u64).unwrap().unwrap(), b"put");
}
