//! Many operations in flight from one thread.

use crate::moves::Rng;
use crate::world::World;
use kaml::store::{Store, StoreAnswer, StoreOptions, StoreQueue, Update, WriteMode};
use kaml::{CreateOptions, Device, KeyKind, NamespaceId, NamespaceOptions};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn number(bytes: Option<&[u8]>) -> u64 {
    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes[..8].try_into().unwrap()))
}

fn add_one(bytes: Option<&[u8]>) -> Update {
    let mut value = vec![7; 500];
    value[..8].copy_from_slice(&(number(bytes) + 1).to_le_bytes());
    Update::Store(value)
}

fn open(write_mode: WriteMode, early_release: bool) -> (Device, Store, NamespaceId) {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let keys = NamespaceOptions::records(KeyKind::U64);
    let namespace = device.create_namespace("counters", &keys).unwrap();
    let options = StoreOptions { write_mode, early_release, ..StoreOptions::new(300 << 10) };
    (device.clone(), Store::open(device, &options).unwrap(), namespace)
}

/// The same with records that only the device has.
fn open_filled() -> (Device, Store, NamespaceId) {
    let (device, store, namespace) = open(WriteMode::Through, false);
    drop(store);
    (0..8u64).for_each(|key| device.put(namespace, key, b"old").unwrap());
    (device.clone(), Store::open(device, &StoreOptions::new(300 << 10)).unwrap(), namespace)
}

/// Goal:   no update is lost or made twice, whichever thread else changes the record, in a cache that holds a part of them.
/// Method: two queues, and transactions of two records at the same time, add to a few hot and many cold counters; compare the
///         sum on the device with what was acknowledged. Completed reads never decrease.
#[test]
fn counters_are_exact() {
    for early_release in [false, true] {
        let (device, store, namespace) = open(WriteMode::Through, early_release);
        let acknowledged: u64 = std::thread::scope(|scope| {
            let queues = [1u64, 2].map(|seed| {
                let store = store.clone();
                scope.spawn(move || add_in_flight(&store, namespace, seed, 4000))
            });
            let store = store.clone();
            let transactions = scope.spawn(move || {
                let mut rng = Rng::new(3);
                for _ in 0..500 {
                    let keys = [rng.below(4), 4 + rng.below(2000)];
                    let add = |txn: &mut kaml::store::Transaction| {
                        for key in keys {
                            let old = txn.read_for_update(namespace, key)?;
                            let Update::Store(new) = add_one(old.as_deref()) else { unreachable!() };
                            if old.is_some() {
                                txn.update(namespace, key, &new)?
                            } else {
                                txn.insert(namespace, key, &new)?
                            }
                        }
                        Ok(())
                    };
                    store.run(add).unwrap();
                }
                1000
            });
            queues.map(|queue| queue.join().unwrap()).iter().sum::<u64>() + transactions.join().unwrap()
        });
        drop(store);
        let stored = |key: u64| number(device.get(namespace, key).unwrap().as_deref());
        assert_eq!((0..2004).map(stored).sum::<u64>(), acknowledged);
    }
}

/// Updates with 64 in flight, and reads of the hot counters between them; returns how many updates were acknowledged.
fn add_in_flight(store: &Store, namespace: NamespaceId, seed: u64, count: u64) -> u64 {
    let (mut queue, mut rng) = (store.queue(64), Rng::new(seed));
    let (mut answers, mut updates) = (Vec::new(), 0);
    let mut seen = [0; 4];
    // A token is 0 for an update, and for a get the hot counter above what an earlier answer notified of it.
    let mut take = |queue: &mut StoreQueue, seen: &mut [u64; 4], fewer_than: usize| {
        while queue.in_flight() >= fewer_than {
            queue.poll(true, &mut answers);
            for StoreAnswer { token, result } in answers.drain(..) {
                let found = result.unwrap();
                if token == 0 {
                    updates += 1;
                } else {
                    let (hot, least, now) = (token as usize & 3, token >> 3, number(found.as_deref()));
                    assert!(now >= least, "counter {hot} decreases from {least} to {now}");
                    seen[hot] = seen[hot].max(now);
                }
            }
        }
        updates
    };
    for at in 0..count {
        take(&mut queue, &mut seen, 64);
        let hot = rng.below(4);
        if at % 5 == 0 {
            queue.get(seen[hot as usize] << 3 | 4 | hot, namespace, hot);
        }
        let key = if at % 3 == 0 { hot } else { 4 + rng.below(2000) };
        queue.update(0, namespace, key, add_one);
    }
    take(&mut queue, &mut seen, 1)
}

/// Goal:   each operation does what it documents, in both write modes, and what was acknowledged is on the device after a flush.
/// Method: random operations, one at a time on each record and many in flight; compare every answer with a map.
#[test]
fn answers_are_those_of_a_map() {
    for write_mode in [WriteMode::Through, WriteMode::Back] {
        let (device, store, namespace) = open(write_mode, false);
        let mut queue = store.queue(32);
        let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let (mut rng, mut answers) = (Rng::new(11), Vec::new());
        for round in 0..300u64 {
            let mut expected = BTreeMap::new();
            for lane in 0..32 {
                let key = lane * 64 + rng.below(64);
                let value = vec![round as u8; 1 + rng.below(1500) as usize];
                let found = model.get(&key).cloned();
                let mut answer = None;
                match rng.below(6) {
                    0 | 1 => {
                        queue.get(key, namespace, key);
                        answer = found;
                    }
                    2 => {
                        queue.put(key, namespace, key, &value);
                        model.insert(key, value);
                    }
                    3 => {
                        queue.delete(key, namespace, key);
                        model.remove(&key);
                    }
                    4 => queue.update(key, namespace, key, move |old| {
                        assert_eq!(old, found.as_deref());
                        Update::Keep
                    }),
                    _ => {
                        let new = [found.clone().unwrap_or_default().as_slice(), b"+"].concat();
                        model.insert(key, new.clone());
                        queue.update(key, namespace, key, move |old| {
                            assert_eq!(old, found.as_deref());
                            Update::Store(new)
                        });
                    }
                }
                expected.insert(key, answer);
            }
            while queue.in_flight() > 0 {
                queue.poll(true, &mut answers);
            }
            assert_eq!(answers.len(), 32);
            for StoreAnswer { token, result } in answers.drain(..) {
                assert_eq!(result.unwrap().map(|value| value.to_vec()), expected[&token], "key {token}");
            }
        }
        drop(queue);
        store.flush().unwrap();
        for key in 0..2048 {
            assert_eq!(device.get(namespace, key).unwrap().as_ref(), model.get(&key), "key {key}");
        }
    }
}

/// Goal:   a put that meets a lock of the queue's own update waits for that and not forever, whatever the write mode is.
/// Method: updates of records that must be read first, and after each a put or a delete of the same record, or of one
///         that shares its lock.
#[test]
fn a_queue_does_not_wait_for_itself() {
    for (write_mode, records_per_lock) in [(WriteMode::Through, 1), (WriteMode::Back, 1), (WriteMode::Back, 4)] {
        let (device, _, namespace) = open(write_mode, false);
        for key in 0..40u64 {
            device.put(namespace, key, b"old").unwrap();
        }
        let options = StoreOptions { write_mode, records_per_lock, ..StoreOptions::new(300 << 10) };
        let store = Store::open(device, &options).unwrap();
        let (mut queue, mut answers) = (store.queue(32), Vec::new());
        for key in (0..40u64).step_by(4) {
            queue.update(key, namespace, key, add_one_byte);
            queue.put(key, namespace, key, b"new");
            queue.delete(key, namespace, key + 1);
        }
        while queue.in_flight() > 0 {
            queue.poll(true, &mut answers);
        }
        assert_eq!(answers.iter().filter(|answer| answer.result.is_ok()).count(), 30, "{answers:?}");
        assert_eq!(store.stats().timeout_count, 0);
    }
}

/// Goal:   an operation that the device fails completes with that, and leaves nothing.
/// Method: gets, puts and updates over a device without a queue that fails reads, then writes; afterwards all work.
#[test]
fn failures_are_answers() {
    let world = World::new(&StoreOptions::new(1 << 20));
    let namespace = world.ns;
    world.device.put(namespace, 1u64, b"one").unwrap();
    let mut queue = world.store.queue(8);
    let mut results = |run: &dyn Fn(&mut StoreQueue)| {
        run(&mut queue);
        let mut answers = Vec::new();
        while queue.in_flight() > 0 {
            queue.poll(true, &mut answers);
        }
        answers.sort_by_key(|answer| answer.token);
        answers.into_iter().map(|answer| answer.result.is_ok()).collect::<Vec<bool>>()
    };
    let all = |queue: &mut StoreQueue| {
        queue.get(0, namespace, 1u64);
        queue.update(1, namespace, 1u64, add_one_byte);
        queue.put(2, namespace, 2u64, b"two");
    };
    world.controls.fail_gets.store(true, Ordering::Relaxed);
    assert_eq!(results(&all), [false, false, true]);
    world.controls.fail_gets.store(false, Ordering::Relaxed);
    world.controls.fail_writes.store(true, Ordering::Relaxed);
    assert_eq!(results(&all), [true, false, false]);
    world.controls.fail_writes.store(false, Ordering::Relaxed);
    assert_eq!(results(&all), [true, true, true]);
    let too_large = vec![0; 1 << 20];
    let value_max = world.device.info().value_bytes_max as usize;
    let huge = too_large.repeat(value_max.div_ceil(1 << 20) + 1);
    assert_eq!(results(&|queue| queue.put(0, namespace, 3u64, &huge)), [false]);
    assert_eq!(results(&|queue| queue.get(0, namespace + 7, 1u64)), [false]);
    assert_eq!(world.device.get(namespace, 1u64).unwrap().unwrap(), b"one+");
}

fn add_one_byte(old: Option<&[u8]>) -> Update {
    Update::Store([old.unwrap_or_default(), b"+"].concat())
}

/// Goal:   a queue that is dropped with operations in flight leaves no lock after.
/// Method: drop one with updates of records that must be read first; then change the same records.
#[test]
fn dropping_brings_to_an_end() {
    let (_, store, namespace) = open(WriteMode::Through, false);
    for key in 0..200u64 {
        store.put(namespace, key, &[1; 1000]).unwrap();
    }
    for _ in 0..20 {
        let mut queue = store.queue(64);
        for key in 0..64u64 {
            queue.update(0, namespace, key, add_one_byte);
        }
        drop(queue);
        store.run(|txn| (0..64u64).try_for_each(|key| txn.update(namespace, key, &[2; 1000]))).unwrap();
    }
}

/// Goal:   with a durability delay, changes that no epoch takes do not wait for each other forever.
/// Method: one of them is on its way to the device when the next one comes, and others have committed in between; puts and updates,
///         some of the same record.
#[test]
fn large_changes_do_not_wait_for_each_other() {
    let durability_delay = Duration::from_secs(60);
    let options = StoreOptions { durability_delay, write_mode: WriteMode::Back, ..StoreOptions::new(300 << 10) };
    let world = World::new(&options);
    let (store, namespace) = (&world.store, world.ns);
    let large = vec![1; 100 << 10];
    let replace = |old: Option<&[u8]>| Update::Store(vec![old.map_or(0, |old| old[0]) + 1; 100 << 10]);
    let mut queue = store.queue(8);
    for round in 0..20 {
        for key in 0..4u64 {
            queue.put(round, namespace, key, &large);
            store.put(namespace, 100 + key, b"small").unwrap();
            queue.update(round, namespace, key / 2, replace);
            queue.put(round, namespace, 200 + key, b"small");
        }
        let mut answers = Vec::new();
        while queue.in_flight() > 0 {
            queue.poll(true, &mut answers);
        }
        assert!(answers.len() == 12 && answers.iter().all(|answer| answer.result.is_ok()));
    }
    drop(queue);
    store.flush().unwrap();
    assert_eq!(world.device.get(namespace, 3u64).unwrap().unwrap(), large);
}

/// Goal:   blocking calls of a queue's own thread do not wait for what that thread alone can take.
/// Method: gets, transactions, batched gets, flushes and a second queue next to one that has stored, deleted or is reading the same
///         records and others, small and too large for the cache; in every mode. What is stored before is seen.
#[test]
fn blocking_calls_see_what_their_thread_has_in_flight() {
    let modes = [(false, 0), (true, 0), (false, 60_000), (true, 60_000), (true, 1)];
    for ((early_release, delay), write_mode) in
        modes.into_iter().flat_map(|mode| [(mode, WriteMode::Through), (mode, WriteMode::Back)])
    {
        let durability_delay = Duration::from_millis(delay);
        let options = StoreOptions { early_release, durability_delay, write_mode, ..StoreOptions::new(300 << 10) };
        let world = World::new(&options);
        let (store, namespace) = (&world.store, world.ns);
        let (mut queue, mut other) = (store.queue(8), store.queue(8));
        let mut answers = Vec::new();
        (50..54u64).for_each(|key| world.device.put(namespace, key, b"old").unwrap());
        for round in 0..60u64 {
            // With a delay a large one is locked until the queue is polled.
            let value = vec![round as u8; if round % 3 == 0 && delay == 0 { 100 << 10 } else { 2000 }];
            let key = round % 4;
            world.device.put(namespace, 100 + round, b"unread").unwrap();
            queue.get(0, namespace, 100 + round);
            queue.put(0, namespace, key, &value);
            let seen = |found: Option<Vec<u8>>| assert!(found.as_ref() == Some(&value), "round {round}");
            match round % 8 {
                0 => seen(store.get(namespace, key).unwrap().map(|value| value.to_vec())),
                1 => seen(store.run(|txn| Ok(txn.read(namespace, key)?.map(|value| value.to_vec()))).unwrap()),
                2 => store.run(|txn| txn.update(namespace, 50 + key, &value)).unwrap(),
                3 => seen(store.get_many(namespace, [key]).unwrap().remove(0).map(|value| value.to_vec())),
                4 => store.flush().unwrap(),
                5 => {
                    other.put(1, namespace, key, b"other");
                    other.get(1, namespace, 100 + round);
                    other.update(1, namespace, key, |_| Update::Keep);
                    (0..3).for_each(|_| other.poll(true, &mut answers));
                }
                6 => assert!(*store.get(namespace, 100 + round).unwrap().unwrap() == *b"unread"),
                _ => store.put(namespace, 100 + round, b"new").unwrap(),
            }
            if round % 5 == 0 {
                queue.poll(true, &mut answers);
            }
        }
        for queue in [&mut queue, &mut other] {
            while queue.in_flight() > 0 {
                queue.poll(true, &mut answers);
            }
        }
        assert!(answers.iter().all(|answer| answer.result.is_ok()));
    }
}

/// Goal:   a thread with changes in flight that waits for another one's Put does not keep that from its end.
/// Method: on a file, where ring writes continue without their thread: updates, some of them being written, and unflushed puts of more
///         than may be dirty, so the queue's thread waits for the cleaner's rounds.
#[test]
fn a_queue_in_flight_does_not_hold_up_cleaning() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::create(dir.path().join("device"), &CreateOptions::new(256 << 20)).unwrap();
    let keys = NamespaceOptions::records(KeyKind::U64);
    let namespace = device.create_namespace("n", &keys).unwrap();
    let options = StoreOptions { write_mode: WriteMode::Back, ..StoreOptions::new(1 << 20) };
    let store = Store::open(device, &options).unwrap();
    let (mut queue, mut answers) = (store.queue(64), Vec::new());
    for round in 0..50u64 {
        for key in 0..32u64 {
            queue.update(key, namespace, key, add_one_byte);
            queue.poll(false, &mut answers);
        }
        for key in 0..200u64 {
            queue.put(key, namespace, 1000 + round * 200 + key, &[7; 1000]);
        }
        while queue.in_flight() > 0 {
            queue.poll(true, &mut answers);
        }
        answers.drain(..).for_each(|answer| drop(answer.result.unwrap()));
    }
    store.flush().unwrap();
}

/// Goal:   a change that panics takes nothing along: neither the thread, nor a lock, nor other operations.
/// Method: a panicking update of a record that is known, of one that must be read, and of one that a transaction has locked, each
///         with good ones around it; the panic comes through, the others complete, and the record can be changed.
#[test]
fn a_panicking_change_takes_nothing_along() {
    let (_, store, namespace) = open(WriteMode::Through, false);
    (0..8u64).for_each(|key| store.put(namespace, key, b"old").unwrap());
    let (_, locked_store, _) = open_filled();
    for (store, is_locked) in [(&store, false), (&locked_store, false), (&locked_store, true)] {
        let mut queue = store.queue(8);
        let mut txn = store.begin().unwrap();
        if is_locked {
            txn.update(namespace, 4u64, b"new").unwrap();
        }
        let mut answers = Vec::new();
        let all = AssertUnwindSafe(|| {
            for key in 0..8u64 {
                queue.update(
                    key,
                    namespace,
                    key,
                    move |old| if key == 4 { panic!("on purpose") } else { add_one_byte(old) },
                );
            }
            let _ended = is_locked.then(|| txn.commit().unwrap());
            while queue.in_flight() > 0 {
                queue.poll(true, &mut answers);
            }
        });
        assert!(catch_unwind(all).is_err());
        while queue.in_flight() > 0 {
            queue.poll(true, &mut answers);
        }
        assert!(answers.drain(..).all(|answer| answer.result.is_ok() && answer.token != 4));
        drop(queue);
        store.put(namespace, 4u64, b"changed").unwrap();
        assert_eq!(store.stats().timeout_count, 0);
    }
}

/// Goal:   nor when the queue is dropped, by a thread that panics or not: all is brought to its end, and the first panic is heard of if
///         none is in progress.
/// Method: two panicking updates among good ones, of records that must be read; the queue is dropped at once.
#[test]
fn a_panicking_change_takes_nothing_along_at_the_end() {
    for panics_already in [false, true] {
        let (_device, store, namespace) = open_filled();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let mut queue = store.queue(8);
            for key in 0..8u64 {
                let change =
                    move |old: Option<&[u8]>| if key % 4 == 1 { panic!("key {key}") } else { add_one_byte(old) };
                queue.update(key, namespace, key, change);
            }
            if panics_already {
                panic!("before");
            }
        }));
        let panic = caught.unwrap_err();
        let message = panic.downcast_ref::<String>().map_or("before", String::as_str);
        assert_eq!(message == "before", panics_already, "{message}");
        for key in 0..8u64 {
            let wanted = if key % 4 == 1 { 3 } else { 4 };
            assert_eq!(store.get(namespace, key).unwrap().unwrap().len(), wanted, "key {key}");
            store.put(namespace, key, b"changed").unwrap();
        }
        assert_eq!(store.stats().timeout_count, 0);
    }
}

/// Goal:   a change of a queue that is lost is not kept, and a caller that has seen it is not completed as if it were.
/// Method: a queue whose Puts fail after they are in progress; a get, an update that keeps the record, and a transaction see its
///         change before it fails.
#[test]
fn lost_changes_take_their_readers_along() {
    let world = World::new(&StoreOptions::new(1 << 20));
    let (store, ns) = (&world.store, world.ns);
    store.put(ns, 1u64, b"old").unwrap();
    world.controls.fail_queued.store(true, Ordering::Relaxed);
    let (mut queue, mut reader, mut answers) = (store.queue(8), store.queue(8), Vec::new());
    queue.put(0, ns, 1u64, b"lost");
    reader.get(1, ns, 1u64);
    reader.update(2, ns, 1u64, |found| {
        assert_eq!(found, Some(&b"lost"[..]));
        Update::Keep
    });
    let mut txn = store.begin().unwrap();
    assert_eq!(txn.read(ns, 1u64).unwrap().as_deref(), Some(&b"lost"[..]));
    reader.poll(false, &mut answers);
    assert!(answers.is_empty());
    queue.poll(true, &mut answers);
    assert!(answers.pop().unwrap().result.is_err());
    assert!(matches!(txn.commit(), Err(kaml::Error::DependencyLost)));
    while reader.in_flight() > 0 {
        reader.poll(true, &mut answers);
    }
    answers.sort_by_key(|answer| answer.token);
    let [found, kept] = [0, 1].map(|at| &answers[at].result);
    assert_eq!(found.as_ref().unwrap().as_deref(), Some(&b"old"[..]));
    assert!(matches!(kept, Err(kaml::Error::DependencyLost)), "{kept:?}");
}

/// Goal:   a read of the device that was overtaken does not bring an old value back.
/// Method: a record is put and flushed while a queue reads it, and forgotten by a commit that fails; a second queue reads it again,
///         and the first read comes to its end before.
#[test]
fn overtaken_reads_bring_nothing_back() {
    let (world, mut answers) =
        (World::new(&StoreOptions { write_mode: WriteMode::Back, ..StoreOptions::new(1 << 20) }), vec![]);
    let (store, ns) = (&world.store, world.ns);
    world.device.put(ns, 1u64, b"old").unwrap();
    world.controls.fail_queued.store(true, Ordering::Relaxed);
    let [mut first, mut second] = [(); 2].map(|()| store.queue(8));
    first.get(1, ns, 1u64);
    store.put(ns, 1u64, b"new").unwrap();
    store.flush().unwrap();
    world.controls.fail_writes.store(true, Ordering::Relaxed);
    assert!(store.run(|txn| txn.update(ns, 1u64, b"lost")).is_err());
    second.get(2, ns, 1u64);
    first.poll(true, &mut answers);
    second.poll(true, &mut answers);
    assert_eq!(answers.len(), 2);
    assert_eq!(store.get(ns, 1u64).unwrap().as_deref(), Some(&b"new"[..]));
}

/// Goal:   a queue below which something is broken for good does not keep its thread forever when it is dropped.
/// Method: the device's queue panics whenever it is polled, with a put in flight.
#[test]
fn queues_end_although_their_polls_panic() {
    let world = World::new(&StoreOptions::new(1 << 20));
    let (store, ns, controls) = (world.store.clone(), world.ns, world.controls.clone());
    controls.fail_queued.store(true, Ordering::Relaxed);
    let (say, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut queue = store.queue(8);
        queue.put(0, ns, 1u64, b"value");
        controls.panic_queued.store(true, Ordering::Relaxed);
        say.send(catch_unwind(AssertUnwindSafe(|| drop(queue))).is_err()).unwrap();
    });
    assert!(said.recv_timeout(Duration::from_secs(20)).unwrap(), "dropping it reports the panic");
}

/// Goal:   a change that the device refuses at once leaves no lock after.
/// Method: an update of an unflushed record while the device refuses Puts; then a transaction takes the lock.
#[test]
fn refused_changes_leave_no_lock() {
    let lock_timeout = Duration::from_millis(50);
    let options = StoreOptions { write_mode: WriteMode::Back, lock_timeout, ..StoreOptions::new(1 << 20) };
    let world = World::new(&options);
    world.store.put(world.ns, 1u64, b"put").unwrap();
    world.controls.fail_writes.store(true, Ordering::Relaxed);
    let (mut queue, mut answers) = (world.store.queue(4), Vec::new());
    queue.update(0, world.ns, 1u64, add_one_byte);
    queue.poll(true, &mut answers);
    assert!(answers.pop().unwrap().result.is_err());
    let mut txn = world.store.begin().unwrap();
    assert_eq!(txn.read_for_update(world.ns, 1u64).unwrap().as_deref(), Some(&b"put"[..]));
}
