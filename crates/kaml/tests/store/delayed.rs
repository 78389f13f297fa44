//! Delayed durability: what commits, reads and flushes promise, and what becomes of commits that cannot be stored.

use crate::world::{World, shut};
use kaml::Key;
use kaml::store::{StoreOptions, Update, WriteMode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Longer than any test: nothing becomes durable unless it is requested.
const LATER: Duration = Duration::from_secs(3600);

fn world(durability_delay: Duration) -> World {
    World::new(&StoreOptions { durability_delay, write_mode: WriteMode::Back, ..StoreOptions::new(4 << 20) })
}

fn value(world: &World, key: u64) -> Option<Vec<u8>> {
    world.store.get(world.ns, key).unwrap().map(|value| value.to_vec())
}

fn on_device(world: &World, key: u64) -> Option<Vec<u8>> {
    world.device.get(world.ns, key).unwrap()
}

/// Sets records in one transaction.
fn set(world: &World, keys: std::ops::Range<u64>, to: &[u8]) -> Result<(), kaml::Error> {
    world.store.run(|txn| {
        for key in keys.clone() {
            match txn.read_for_update(world.ns, key)? {
                Some(_) => txn.update(world.ns, key, to)?,
                None => txn.insert(world.ns, key, to)?,
            }
        }
        Ok(())
    })
}

/// Goal:   commits return before they are durable and are seen at once; a flush makes them durable, each record stored once.
/// Method: many transactions on a few records, a delete and a plain put among them, on a store that would wait for an hour.
#[test]
fn commits_are_gathered() {
    let world = world(LATER);
    for round in 0..100u8 {
        set(&world, 0..4, &[round; 10]).unwrap();
    }
    world.store.put(world.ns, 9u64, b"plain").unwrap();
    world.store.run(|txn| txn.delete(world.ns, 3u64)).unwrap();
    assert_eq!((value(&world, 0), value(&world, 3)), (Some(vec![99; 10]), None));
    assert!(!world.store.exists(world.ns, 3u64).unwrap() && world.store.exists(world.ns, 9u64).unwrap());
    let mut reader = world.store.begin().unwrap();
    assert_eq!(&reader.read(world.ns, 1u64).unwrap().unwrap()[..], [99; 10]);
    reader.commit().unwrap();
    assert_eq!((on_device(&world, 0), world.controls.writes.load(Ordering::Relaxed)), (None, 0));
    world.store.flush().unwrap();
    assert_eq!((on_device(&world, 0), on_device(&world, 3)), (Some(vec![99; 10]), None));
    assert_eq!(on_device(&world, 9).unwrap(), b"plain");
    assert_eq!(world.controls.writes.load(Ordering::Relaxed), 1);
    assert_eq!(world.device.stats().put_count, 4, "each record once");
    world.store.flush().unwrap();
    assert_eq!(world.controls.writes.load(Ordering::Relaxed), 1, "there was nothing more to store");
    set(&world, 0..4, b"again").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(world.controls.writes.load(Ordering::Relaxed), 1, "after a flush they are gathered again");
}

/// Goal:   commits become durable by themselves after the delay, and when the store is closed.
/// Method: one commit and a wait; one commit, the last handle dropped.
#[test]
fn commits_become_durable() {
    let short = world(Duration::from_millis(20));
    set(&short, 0..1, b"soon").unwrap();
    let begun = Instant::now();
    while on_device(&short, 0).is_none() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is not durable yet");
        std::thread::sleep(Duration::from_millis(1));
    }
    let World { device, store, ns, .. } = world(LATER);
    store.put(ns, 1u64, b"last").unwrap();
    drop(store);
    assert_eq!(device.get(ns, 1u64).unwrap().unwrap(), b"last");
}

/// Goal:   a caller that requests it waits until it is durable, and with it everything before.
/// Method: a delayed commit, then each call that waits: `commit_durable`, a put in write-through mode, one of a queue, and a
///         transaction above what an epoch takes; after each the device has both.
#[test]
fn who_asks_waits() {
    for how in 0..4 {
        let write_mode = if how == 1 { WriteMode::Through } else { WriteMode::Back };
        let cache = StoreOptions::new(4 << 20);
        let world = World::new(&StoreOptions { durability_delay: LATER, write_mode, ..cache });
        set(&world, 0..1, b"before").unwrap();
        match how {
            0 => {
                let mut txn = world.store.begin().unwrap();
                txn.insert(world.ns, 1u64, b"x").unwrap();
                txn.commit_durable().unwrap();
            }
            1 => world.store.put(world.ns, 1u64, b"x").unwrap(),
            2 => {
                let (mut queue, mut answers) = (world.store.queue(4), Vec::new());
                queue.update(7, world.ns, 1u64, |_| Update::Store(b"x".to_vec()));
                queue.poll(true, &mut answers);
                answers.pop().unwrap().result.unwrap();
            }
            _ => set(&world, 1..4, &vec![b'x'; 300 << 10]).unwrap(),
        }
        let of_it = on_device(&world, 1).unwrap();
        assert_eq!((on_device(&world, 0).unwrap(), of_it[0]), (b"before".to_vec(), b'x'), "{how}");
    }
}

/// Goal:   what is not durable is kept in the cache, and an epoch is written when it is full.
/// Method: reads of other records fill a small cache several times; then puts of ten times what the cache holds.
#[test]
fn what_is_not_durable_stays() {
    let options = StoreOptions { durability_delay: LATER, write_mode: WriteMode::Back, ..StoreOptions::new(300 << 10) };
    let world = World::new(&options);
    (10..600u64).for_each(|key| world.device.put(world.ns, key, &[1; 2000]).unwrap());
    set(&world, 0..3, b"new").unwrap();
    (0..2000u64).for_each(|i| assert!(value(&world, 10 + i % 590).is_some()));
    assert!(world.store.stats().eviction_count > 500);
    assert_eq!((value(&world, 0).unwrap(), on_device(&world, 0)), (b"new".to_vec(), None));
    (0..1500u64).for_each(|key| world.store.put(world.ns, key, &[2; 2000]).unwrap());
    assert!(world.controls.writes.load(Ordering::Relaxed) > 50);
    assert!(world.store.stats().used_bytes <= 300 << 10);
    world.store.flush().unwrap();
    (0..1500u64).for_each(|key| assert_eq!(on_device(&world, key).unwrap(), [2; 2000]));
}

/// Goal:   commits that could not be stored are undone together, with those that came after; nothing is committed or flushed
///         before that is acknowledged; then commits wait until one is durable.
/// Method: a device that refuses writes for a while, looked at from each side.
#[test]
fn lost_commits_are_told() {
    let world = world(LATER);
    set(&world, 0..3, b"old").unwrap();
    world.store.flush().unwrap();
    world.controls.fail_writes.store(true, Ordering::Relaxed);
    set(&world, 0..2, b"lost").unwrap();
    let mut reader = world.store.begin().unwrap();
    assert_eq!(&reader.read(world.ns, 0u64).unwrap().unwrap()[..], b"lost");
    let error = world.store.flush().unwrap_err();
    assert!(matches!(error, kaml::Error::CommitsLost { commits: 1, .. }) && !error.is_retryable(), "{error}");
    reader.update(world.ns, 2u64, b"of lost").unwrap();
    assert!(matches!(reader.commit(), Err(kaml::Error::CommitsLost { .. })));
    assert_eq!((value(&world, 0).unwrap(), value(&world, 2).unwrap()), (b"old".to_vec(), b"old".to_vec()));
    world.controls.fail_writes.store(false, Ordering::Relaxed);
    assert!(matches!(set(&world, 0..1, b"x"), Err(kaml::Error::CommitsLost { .. })));
    assert!(world.store.flush().is_err());
    let mut reader = world.store.begin().unwrap();
    assert_eq!(&reader.read(world.ns, 1u64).unwrap().unwrap()[..], b"old");
    reader.commit().unwrap();
    assert_eq!((world.store.acknowledge_lost(), world.store.acknowledge_lost()), (1, 0));
    world.store.flush().unwrap();
    // The device is not trusted yet.
    world.controls.fail_writes.store(true, Ordering::Relaxed);
    assert!(matches!(set(&world, 0..1, b"x"), Err(kaml::Error::ReadOnly)));
    assert_eq!(value(&world, 0).unwrap(), b"old");
    world.controls.fail_writes.store(false, Ordering::Relaxed);
    set(&world, 0..1, b"durable").unwrap();
    assert_eq!(on_device(&world, 0).unwrap(), b"durable");
    set(&world, 0..1, b"later").unwrap();
    assert_eq!(on_device(&world, 0).unwrap(), b"durable");
    assert_eq!(world.store.stats().lost_commit_count, 1);
}

/// Goal:   who has read from a lost commit cannot commit, even after it was acknowledged.
/// Method: a transaction that reads, a loss, its acknowledgement, then the transaction's commits: reading alone, and writing.
#[test]
fn readers_of_the_lost_are_refused() {
    let world = world(LATER);
    world.controls.fail_writes.store(true, Ordering::Relaxed);
    set(&world, 0..1, b"lost").unwrap();
    let mut readers = [(); 2].map(|()| world.store.begin().unwrap());
    readers.iter_mut().for_each(|reader| assert!(reader.read(world.ns, 0u64).unwrap().is_some()));
    world.store.flush().unwrap_err();
    world.store.acknowledge_lost();
    world.controls.fail_writes.store(false, Ordering::Relaxed);
    let [mut reads, mut writes] = readers;
    assert!(matches!(reads.commit(), Err(kaml::Error::DependencyLost)));
    writes.insert(world.ns, 5u64, b"of lost").unwrap();
    assert!(matches!(writes.commit(), Err(kaml::Error::DependencyLost)));
    world.store.flush().unwrap();
    assert_eq!((on_device(&world, 0), on_device(&world, 5)), (None, None));
}

/// Goal:   a commit that waits and is lost is reported to the others too, if any of them saw it without waiting; and to nobody else, if
///         none did. Until a commit is durable again, reads wait.
/// Method: a commit whose Put is held back and then fails, read meanwhile in each way that there is, and in none.
#[test]
fn what_was_seen_and_lost_is_told() {
    for how in 0..6 {
        let world = world(LATER);
        world.controls.fail_writes.store(true, Ordering::Relaxed);
        let held_back = world.controls.hold_back();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut txn = world.store.begin().unwrap();
                txn.insert(world.ns, 0u64, b"lost").unwrap();
                txn.commit_durable()
            });
            world.wait_for_writes(1);
            match how {
                0 => assert_eq!(value(&world, 0).unwrap(), b"lost"),
                1 => assert!(world.store.exists(world.ns, 0u64).unwrap()),
                2 => assert!(world.store.get_into(world.ns, 0u64, &mut Vec::new()).unwrap()),
                3 => assert!(world.store.get_many(world.ns, [0u64]).unwrap()[0].is_some()),
                4 => {
                    let mut reader = world.store.begin().unwrap();
                    reader.read(world.ns, 0u64).unwrap();
                    reader.commit().unwrap();
                }
                _ => {} // seen by nobody
            }
            drop(held_back);
            assert!(matches!(writer.join().unwrap(), Err(kaml::Error::ReadOnly)));
        });
        let told = world.store.flush();
        if how == 5 {
            told.unwrap();
        } else {
            assert!(matches!(told, Err(kaml::Error::CommitsLost { commits: 1, .. })), "{how}: {told:?}");
            assert_eq!(world.store.acknowledge_lost(), 1);
        }
        let held_back = world.controls.hold_back();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| set(&world, 0..1, b"lost again"));
            world.wait_for_writes(2);
            let reader = scope.spawn(|| value(&world, 0));
            drop(held_back);
            assert!(matches!(writer.join().unwrap(), Err(kaml::Error::ReadOnly)));
            assert_eq!(reader.join().unwrap(), None);
        });
        world.store.flush().unwrap();
    }
}

/// Goal:   what no device would take is refused to its caller, and fails no other commit; a deleted namespace
///         takes only what was in it.
/// Method: blind puts into an unknown namespace and with a key of another kind together with a commit; a namespace that is deleted
///         after the store's back, then through it.
#[test]
fn bad_commits_harm_nobody_else() {
    let world = world(LATER);
    set(&world, 0..1, b"good").unwrap();
    assert!(world.store.put(77, 1u64, b"x").is_err());
    assert!(world.store.put(world.ns, Key::new(b"text").unwrap(), b"x").is_err());
    let others = ["a", "b"].map(|name| world.device.create_namespace(name, &Default::default()).unwrap());
    for ns in others {
        world.store.put(ns, Key::new(b"k").unwrap(), b"x").unwrap();
    }
    world.device.delete_namespace(others[0]).unwrap();
    world.store.delete_namespace(others[1]).unwrap();
    world.store.flush().unwrap();
    assert_eq!(on_device(&world, 0).unwrap(), b"good");
    assert!(world.store.get(others[1], Key::new(b"k").unwrap()).is_err());
}

/// Goal:   a queue's change that its device would not take is refused at once, and one that waits does not wait for the delay.
/// Method: blind puts into an unknown namespace and with a key of another kind together with a commit, and a flush; an update on a store
///         that would wait for an hour, polled for without waiting.
#[test]
fn queues_harm_no_epoch_and_hurry() {
    let world = world(LATER);
    let (mut queue, mut answers) = (world.store.queue(4), Vec::new());
    set(&world, 0..1, b"good").unwrap();
    queue.put(0, 77, 1u64, b"x");
    queue.put(1, world.ns, Key::new(b"text").unwrap(), b"x");
    while queue.in_flight() > 0 {
        queue.poll(true, &mut answers);
    }
    assert!(answers.len() == 2 && answers.drain(..).all(|answer| answer.result.is_err()));
    world.store.flush().unwrap();
    assert_eq!(on_device(&world, 0).unwrap(), b"good");
    queue.update(2, world.ns, 1u64, |_| Update::Store(b"x".to_vec()));
    let begun = Instant::now();
    while queue.in_flight() > 0 && begun.elapsed() < Duration::from_secs(20) {
        queue.poll(false, &mut answers);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(answers.len() == 1 && answers[0].result.is_ok());
}

/// Goal:   who reads and asks to wait does not wait for the delay.
/// Method: a transaction that only reads a record which would be durable in ten seconds.
#[test]
fn readers_that_wait_hurry() {
    let world = world(Duration::from_secs(10));
    set(&world, 0..1, b"x").unwrap();
    let mut txn = world.store.begin().unwrap();
    assert!(txn.read(world.ns, 0u64).unwrap().is_some());
    let begun = Instant::now();
    txn.commit_durable().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5) && on_device(&world, 0).is_some());
}

/// More than an epoch takes.
const LARGE: usize = 600 << 10;

/// Goal:   a change that no epoch takes is not stored if it was made of what is lost, even if that is reported to nobody else.
/// Method: a commit that waits is lost; a queue's update and a transaction have read from it before.
#[test]
fn large_changes_are_not_built_on_the_lost() {
    for is_queue in [true, false] {
        let world = world(LATER);
        let (store, ns) = (&world.store, world.ns);
        set(&world, 0..2, b"old").unwrap();
        store.flush().unwrap();
        world.controls.fail_writes.store(true, Ordering::Relaxed);
        let writing = shut(&world.controls.writing);
        let result = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut txn = store.begin().unwrap();
                txn.update(ns, 0u64, b"lost").unwrap();
                txn.commit_durable()
            });
            writing.wait();
            let (mut queue, mut answers) = (store.queue(4), Vec::new());
            let mut txn = store.begin().unwrap();
            if is_queue {
                queue.update(0, ns, 0u64, |found| {
                    assert_eq!(found, Some(&b"lost"[..]));
                    Update::Store(vec![1; LARGE])
                });
            } else {
                assert_eq!(txn.read(ns, 0u64).unwrap().as_deref(), Some(&b"lost"[..]));
            }
            writing.wait();
            assert!(writer.join().unwrap().is_err());
            world.controls.fail_writes.store(false, Ordering::Relaxed);
            if is_queue {
                queue.poll(true, &mut answers);
                return answers.pop().unwrap().result.map(drop);
            }
            txn.update(ns, 1u64, &[1; LARGE]).unwrap();
            txn.commit()
        });
        assert!(matches!(result, Err(kaml::Error::DependencyLost)), "{result:?}");
        (0..2).for_each(|key| assert_eq!(on_device(&world, key).unwrap(), b"old"));
    }
}

/// Goal:   a queue's change that no epoch takes comes after those before it, and not at all while lost ones are not acknowledged.
/// Method: one of a record whose commit is just being written; one after a commit that is lost.
#[test]
fn large_changes_of_queues_follow() {
    let world = world(LATER);
    let (store, ns) = (&world.store, world.ns);
    set(&world, 0..1, b"before").unwrap();
    let writing = shut(&world.controls.writing);
    let (mut queue, mut answers) = (store.queue(4), Vec::new());
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| store.flush());
        writing.wait();
        queue.put(0, ns, 0u64, &[1; LARGE]);
        queue.poll(false, &mut answers);
        writing.wait();
        flush.join().unwrap().unwrap();
    });
    queue.poll(true, &mut answers);
    answers.pop().unwrap().result.unwrap();
    assert_eq!(on_device(&world, 0).unwrap(), [1; LARGE]);
    world.controls.fail_writes.store(true, Ordering::Relaxed);
    set(&world, 1..2, b"lost").unwrap();
    queue.put(0, ns, 1u64, &[1; LARGE]);
    queue.poll(true, &mut answers);
    let result = answers.pop().unwrap().result;
    assert!(matches!(result, Err(kaml::Error::CommitsLost { .. })), "{result:?}");
}

/// Goal:   commits that joined while an epoch was lost are undone with it.
/// Method: one that joins while the Put of the epoch before is on its way, which then fails.
#[test]
fn who_came_after_the_lost_is_undone() {
    let world = world(LATER);
    set(&world, 0..2, b"old").unwrap();
    world.store.flush().unwrap();
    world.controls.fail_writes.store(true, Ordering::Relaxed);
    set(&world, 0..1, b"lost").unwrap();
    let writing = shut(&world.controls.writing);
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| world.store.flush());
        writing.wait();
        set(&world, 1..2, b"lost").unwrap();
        writing.wait();
        assert!(matches!(flush.join().unwrap(), Err(kaml::Error::CommitsLost { commits: 2, .. })));
    });
    // The loss is notified before the last record is forgotten; a plain get of one would wait for that.
    let is_old = |key| world.store.begin().unwrap().read(world.ns, key).unwrap().as_deref() == Some(b"old");
    let begun = Instant::now();
    while !(0..2u64).all(is_old) {
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

/// Goal:   what an epoch that is lost has changed is never served again, and its records can be put and got, also of commits that have
///         joined it and are making what they wrote visible just then.
/// Method: threads put while writes fail occasionally; then every record is got.
#[test]
fn commits_of_epochs_that_are_being_lost_leave_nothing() {
    let options = StoreOptions {
        durability_delay: Duration::from_micros(200),
        write_mode: WriteMode::Back,
        ..StoreOptions::new(64 << 20)
    };
    let world = World::new(&options);
    let (store, space) = (world.store.clone(), world.ns);
    for _ in 0..8 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (store, stop) = (&store, &stop);
                scope.spawn(move || {
                    for turn in (0u64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                        if store.put(space, thread * 1000 + turn % 200, b"value").is_err() {
                            store.acknowledge_lost();
                        }
                    }
                });
            }
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(2));
                world.controls.fail_writes.store(true, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
                world.controls.fail_writes.store(false, Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
        });
        store.acknowledge_lost();
        let (done, all) = channel();
        let of = store.clone();
        std::thread::spawn(move || {
            (0..8000u64).for_each(|key| drop(of.get(space, key).unwrap()));
            done.send(()).is_ok()
        });
        all.recv_timeout(Duration::from_secs(20)).expect("a get never returns");
    }
}
