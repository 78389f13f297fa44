//! Transactions: states, locks, deadlocks, early release.

use crate::world::{World, shut};
use kaml::store::{Store, StoreOptions, Transaction, XcbEvent, XcbState};
use kaml::{Batch, CreateOptions, Device, Key, KeyKind, NamespaceOptions, VersionOptions};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn world() -> World {
    World::new(&StoreOptions::new(4 << 20))
}

fn short_waits() -> World {
    World::new(&StoreOptions { lock_timeout: Duration::from_millis(20), ..StoreOptions::new(4 << 20) })
}

/// Goal:   the calls of Table II do what they say, on private copies, and refuse what is wrong without ending.
/// Method: one transaction through all calls, looked at from outside before and after its commit.
#[test]
fn the_calls_of_table_ii() {
    let world = world();
    let ns = world.ns;
    world.store.put(ns, 1u64, b"one").unwrap();
    world.store.put(ns, 2u64, b"two").unwrap();
    let mut txn = world.store.begin().unwrap();
    assert_eq!(&txn.read(ns, 1u64).unwrap().unwrap()[..], b"one");
    txn.update(ns, 1u64, b"uno").unwrap();
    txn.insert(ns, 3u64, b"tre").unwrap();
    txn.delete(ns, 2u64).unwrap();
    assert_eq!(&txn.read(ns, 1u64).unwrap().unwrap()[..], b"uno");
    assert!(txn.read(ns, 2u64).unwrap().is_none());
    assert!(matches!(txn.update(ns, 9u64, b"x"), Err(kaml::Error::Conflict { present: false, .. })));
    assert!(matches!(txn.insert(ns, 3u64, b"x"), Err(kaml::Error::Conflict { present: true, .. })));
    assert!(matches!(txn.delete(ns, 2u64), Err(kaml::Error::Conflict { present: false, .. })));
    assert!(txn.read(77, 1u64).is_err() && txn.update(77, 1u64, b"").is_err());
    assert!(txn.insert(ns, Key::new(b"text").unwrap(), b"").is_err());
    assert_eq!(world.device.get(ns, 1u64).unwrap().unwrap(), b"one");
    assert_eq!(&world.store.get(ns, 1u64).unwrap().unwrap()[..], b"one");
    txn.commit().unwrap();
    assert_eq!(txn.state(), XcbState::Committed);
    assert_eq!(world.device.get(ns, 1u64).unwrap().unwrap(), b"uno");
    assert_eq!(world.device.get(ns, 2u64).unwrap(), None);
    assert_eq!(&world.store.get(ns, 3u64).unwrap().unwrap()[..], b"tre");
    let error = txn.read(ns, 1u64).unwrap_err();
    let kaml::Error::IllegalMove(illegal) = error else { panic!("{error}") };
    assert_eq!((illegal.from, illegal.event), (XcbState::Committed, XcbEvent::Access));
    assert!(txn.commit().is_err() && txn.abort().is_err() && txn.update(ns, 1u64, b"").is_err());
    txn.free().unwrap();
    assert!(world.store.begin().unwrap().free().is_err(), "an active transaction is not freed");
}

/// Goal:   a transaction stores what it upserts, whether it existed or not, as a private copy under an exclusive lock.
/// Method: records that exist, are not, are in neither cache nor transaction, and that the transaction itself has changed or
///         deleted; in each mode of durability; one whose value, key or namespace is refused.
#[test]
fn upserts_store_what_is_there_and_what_is_not() {
    for durability_delay in [Duration::ZERO, Duration::from_secs(3600)] {
        let lock_timeout = Duration::from_millis(20);
        let world = World::new(&StoreOptions { durability_delay, lock_timeout, ..StoreOptions::new(4 << 20) });
        let (store, ns) = (&world.store, world.ns);
        world.device.put(ns, 1u64, b"on the device").unwrap();
        store.put(ns, 2u64, b"in the cache").unwrap();
        let mut txn = store.begin().unwrap();
        for key in 1..6u64 {
            match key {
                4 => txn.insert(ns, key, b"inserted").unwrap(),
                5 => txn.insert(ns, key, b"").and_then(|()| txn.delete(ns, key)).unwrap(),
                _ => {}
            }
            txn.upsert(ns, key, b"upserted").unwrap();
            assert_eq!(txn.read(ns, key).unwrap().as_deref(), Some(&b"upserted"[..]));
        }
        assert!(matches!(txn.insert(ns, 3u64, b"x"), Err(kaml::Error::Conflict { present: true, .. })));
        assert!(txn.upsert(ns, 6u64, &vec![0; 128 << 20]).is_err() && txn.upsert(77, 6u64, b"x").is_err());
        assert!(txn.upsert(ns, Key::new(b"text").unwrap(), b"x").is_err());
        assert_eq!(store.get(ns, 2u64).unwrap().as_deref(), Some(&b"in the cache"[..]));
        assert!(matches!(store.put(ns, 3u64, b"outside it"), Err(kaml::Error::LockTimeout { .. })));
        txn.commit().unwrap();
        (1..6u64).for_each(|key| assert_eq!(store.get(ns, key).unwrap().as_deref(), Some(&b"upserted"[..])));
        store.flush().unwrap();
        (1..6u64).for_each(|key| assert_eq!(world.device.get(ns, key).unwrap().unwrap(), b"upserted"));
        assert!(txn.upsert(ns, 1u64, b"late").is_err());
    }
}

/// Goal:   naming the records that will be used reads those that the cache has not, once, before they are used; it changes and locks nothing,
///         whatever they are.
/// Method: records in the cache, evicted, absent, deleted, locked by another transaction, of an unknown namespace and with
///         keys of another kind, none and many; then the same transaction continues; after its end it cannot be used.
#[test]
fn expecting_records_changes_nothing() {
    let world = short_waits();
    let ns = world.ns;
    (0..1000u64).for_each(|key| world.store.put(ns, key, &[key as u8; 300]).unwrap());
    world.store.delete(ns, 3u64).unwrap();
    let mut other = world.store.begin().unwrap();
    other.update(ns, 4u64, b"locked").unwrap();
    let mut txn = world.store.begin().unwrap();
    let mut batch = Batch::new();
    (5000..5100u64).for_each(|key| _ = batch.put(ns, key, &[key as u8; 300]));
    world.store.write_past_the_cache(&batch).unwrap();
    let before = world.gets();
    txn.expect((5000..5110u64).map(|key| (ns, key))).unwrap();
    assert_eq!(world.gets() - before, 110);
    for key in 5000..5100u64 {
        assert_eq!(&txn.read(ns, key).unwrap().unwrap()[..], [key as u8; 300]);
    }
    assert!(txn.read(ns, 5105u64).unwrap().is_none());
    assert_eq!(world.gets() - before, 110);
    txn.expect([(ns, Key::new(b"text").unwrap()), (77, Key::from(1))]).unwrap();
    txn.expect::<u64>([]).unwrap();
    other.update(ns, 5u64, b"not locked by it").unwrap();
    other.commit().unwrap();
    assert_eq!(&txn.read(ns, 5u64).unwrap().unwrap()[..], b"not locked by it");
    txn.update(ns, 6u64, b"six").unwrap();
    txn.commit().unwrap();
    assert!(matches!(txn.expect([(ns, 1u64)]), Err(kaml::Error::IllegalMove(_))));
}

/// Goal:   an aborted or dropped transaction leaves neither changes nor locks.
/// Method: change and abort, change and drop, each followed by a transaction that needs the same locks.
#[test]
fn aborting_leaves_nothing() {
    let world = short_waits();
    world.store.put(world.ns, 1u64, b"one").unwrap();
    for drop_it in [false, true] {
        let mut txn = world.store.begin().unwrap();
        txn.update(world.ns, 1u64, b"x").unwrap();
        txn.insert(world.ns, 2u64, b"x").unwrap();
        if drop_it {
            drop(txn);
        } else {
            txn.abort().unwrap();
            assert_eq!(txn.state(), XcbState::Aborted);
        }
        let mut next = world.store.begin().unwrap();
        assert_eq!(&next.read_for_update(world.ns, 1u64).unwrap().unwrap()[..], b"one");
        assert!(next.read_for_update(world.ns, 2u64).unwrap().is_none());
    }
}

/// Goal:   readers share, writers exclude; absent keys are locked as present ones are; waits are bounded.
/// Method: pairs of calls on one key by two transactions.
#[test]
fn locks_exclude_whom_they_should() {
    let world = short_waits();
    world.store.put(world.ns, 1u64, b"one").unwrap();
    for key in [1u64, 2] {
        let mut a = world.store.begin().unwrap();
        let mut b = world.store.begin().unwrap();
        a.read(world.ns, key).unwrap();
        b.read(world.ns, key).unwrap();
        let mut c = world.store.begin().unwrap();
        let error = c.read_for_update(world.ns, key).unwrap_err();
        assert!(matches!(error, kaml::Error::LockTimeout { .. }) && error.is_retryable());
        assert_eq!(c.state(), XcbState::Aborted);
        a.commit().unwrap();
        b.read_for_update(world.ns, key).unwrap(); // the only reader becomes the writer
        let mut d = world.store.begin().unwrap();
        assert!(matches!(d.read(world.ns, key), Err(kaml::Error::LockTimeout { .. })));
        b.commit().unwrap();
    }
    let mut a = world.store.begin().unwrap();
    a.insert(world.ns, 3u64, b"a").unwrap();
    let mut b = world.store.begin().unwrap();
    assert!(matches!(b.insert(world.ns, 3u64, b"b"), Err(kaml::Error::LockTimeout { .. })));
    a.commit().unwrap();
    assert_eq!(world.store.stats().timeout_count, 5);
}

/// Goal:   deadlocks are found at once, one victim each, and `run` gets all transactions through.
/// Method: two, then five transactions that take locks in a circle; two that upgrade; all with long timeouts.
#[test]
fn deadlocks_are_found() {
    for (count, upgrade) in [(2u64, false), (5, false), (2, true)] {
        let world = world();
        for key in 0..count {
            world.store.put(world.ns, key, &0u64.to_le_bytes()).unwrap();
        }
        let barrier = Barrier::new(count as usize);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..count {
                let (world, barrier) = (&world, &barrier);
                scope.spawn(move || {
                    let mut first = true;
                    let keys = if upgrade { [0, 0] } else { [thread, (thread + 1) % count] };
                    world
                        .store
                        .run(|txn| {
                            if upgrade {
                                txn.read(world.ns, keys[0])?;
                            } else {
                                txn.read_for_update(world.ns, keys[0])?;
                            }
                            if std::mem::take(&mut first) {
                                barrier.wait();
                            }
                            let value = txn.read_for_update(world.ns, keys[1])?.unwrap();
                            let next = u64::from_le_bytes(value[..].try_into().unwrap()) + 1;
                            txn.update(world.ns, keys[1], &next.to_le_bytes())
                        })
                        .unwrap();
                });
            }
        });
        assert!(begin.elapsed() < Duration::from_secs(1), "nobody waited for a timeout");
        let stats = world.store.stats();
        assert_eq!(stats.timeout_count, 0);
        assert!((1..count).contains(&stats.deadlock_count), "{} victims of {count}", stats.deadlock_count);
        let sum = (0..count).map(|key| world.store.get(world.ns, key).unwrap().unwrap()[0] as u64).sum::<u64>();
        assert_eq!(sum, count);
    }
}

/// Goal:   a transaction that requests one lock alone never gets a deadlock.
/// Method: transactions that take two locks in opposite orders, one of them shared, with plain puts, deletes and gets in
///         between: a plain put waits for the shared lock, a reader that holds the other lock waits after it.
#[test]
fn plain_calls_are_no_victims() {
    // Waiting for long is no deadlock: a busy machine may keep a holder from running for seconds.
    let world = World::new(&StoreOptions { lock_timeout: Duration::from_secs(60), ..StoreOptions::new(4 << 20) });
    let (plain, other) = (1u64, 2u64);
    world.store.put(world.ns, other, b"other").unwrap();
    let end = Instant::now() + Duration::from_millis(500);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let world = &world;
            scope.spawn(move || {
                let (store, ns) = (&world.store, world.ns);
                for round in 0u64.. {
                    match (thread, round % 4) {
                        (0 | 1, _) => {
                            store.run(|txn| txn.read(ns, plain).and(txn.read_for_update(ns, other))).map(drop)
                        }
                        (2 | 3, _) => {
                            store.run(|txn| txn.read_for_update(ns, other).and(txn.read(ns, plain))).map(drop)
                        }
                        (_, 0) => store.delete(ns, plain),
                        (_, 1) => store.get(ns, plain).map(drop),
                        _ => store.put(ns, plain, b"plain"),
                    }
                    .unwrap();
                    if Instant::now() > end {
                        break;
                    }
                }
            });
        }
    });
    assert!(world.store.stats().deadlock_count > 0, "there were some");
}

/// Goal:   a lock of several records excludes on all of them, and its transaction may use all of them.
/// Method: 16 records per lock; neighbours conflict, keys of the next group do not; changes of a group stay together.
#[test]
fn records_share_locks() {
    let options =
        StoreOptions { records_per_lock: 16, lock_timeout: Duration::from_millis(20), ..StoreOptions::new(4 << 20) };
    let world = World::new(&options);
    let mut a = world.store.begin().unwrap();
    a.read(world.ns, 3u64).unwrap();
    for key in 16..32u64 {
        a.insert(world.ns, key, b"a").unwrap();
    }
    a.read_for_update(world.ns, 4u64).unwrap();
    let mut b = world.store.begin().unwrap();
    b.insert(world.ns, 32u64, b"b").unwrap();
    assert!(matches!(b.read(world.ns, 15u64), Err(kaml::Error::LockTimeout { .. })));
    a.commit().unwrap();
    let mut c = world.store.begin().unwrap();
    assert!((0..64u64).all(|key| c.read_for_update(world.ns, key).unwrap().is_some() == (16..32).contains(&key)));
    c.commit().unwrap();
    let stats = world.store.stats();
    assert!(stats.record_count <= 64 + 4, "{stats:?}");
}

/// Goal:   many records in one transaction, found again without searching all of them.
/// Method: 20 000 inserts and reads of a transaction's own records.
#[test]
fn large_transactions_find_their_records() {
    let world = world();
    let mut txn = world.store.begin().unwrap();
    let begin = Instant::now();
    for key in 0..20_000u64 {
        txn.insert(world.ns, key, &key.to_le_bytes()).unwrap();
    }
    for key in 0..20_000u64 {
        assert_eq!(&txn.read(world.ns, key).unwrap().unwrap()[..], key.to_le_bytes());
    }
    txn.commit().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert_eq!(world.device.namespaces()[0].record_count, 20_000);
}

/// Goal:   a device that fails aborts the transaction that it failed, and nothing else.
/// Method: a failing commit in both modes; then reads, and the same commit again.
#[test]
fn a_failed_commit_aborts() {
    for early_release in [false, true] {
        let world = World::new(&StoreOptions { early_release, ..StoreOptions::new(4 << 20) });
        world.store.put(world.ns, 1u64, b"old").unwrap();
        let change = || world.store.run(|txn| txn.update(world.ns, 1u64, b"new"));
        world.controls.fail_writes.store(true, Ordering::Relaxed);
        assert!(matches!(change(), Err(kaml::Error::ReadOnly)));
        assert_eq!(&world.store.get(world.ns, 1u64).unwrap().unwrap()[..], b"old");
        world.controls.fail_writes.store(false, Ordering::Relaxed);
        change().unwrap();
        assert_eq!(&world.store.get(world.ns, 1u64).unwrap().unwrap()[..], b"new");
    }
}

/// Goal:   with early release a record is free while its commit is on the way, and no reader returns before it is
///         durable; strictly it is not free.
/// Method: a device whose Puts are durable 100 ms after their order is fixed; a second transaction locks meanwhile.
#[test]
fn early_release_answers_in_order() {
    let world = World::new(&StoreOptions { early_release: true, ..StoreOptions::new(4 << 20) });
    world.store.put(world.ns, 1u64, b"old").unwrap();
    world.controls.durable_delay_us.store(100_000, Ordering::Relaxed);
    let durable = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let begin = Instant::now();
            world.store.run(|txn| txn.update(world.ns, 1u64, b"new")).unwrap();
            durable.store(true, Ordering::SeqCst);
            begin.elapsed()
        });
        world.wait_for_writes(2);
        let mut reader = world.store.begin().unwrap();
        assert_eq!(&reader.read(world.ns, 1u64).unwrap().unwrap()[..], b"new");
        assert!(!durable.load(Ordering::SeqCst), "the lock was released early");
        let begin = Instant::now();
        reader.commit().unwrap();
        assert!(begin.elapsed() > Duration::from_millis(30), "the reader's commit waited");
        assert!(writer.join().unwrap() > Duration::from_millis(90));
    });
    std::thread::scope(|scope| {
        scope.spawn(|| world.store.run(|txn| txn.update(world.ns, 1u64, b"newer")).unwrap());
        world.wait_for_writes(3);
        // The old content may still be read, at once, until the transaction begins to install the new one.
        let mut begin = Instant::now();
        while &world.store.get(world.ns, 1u64).unwrap().unwrap()[..] != b"newer" {
            begin = Instant::now();
        }
        assert!(begin.elapsed() > Duration::from_millis(30), "a plain read waited too");
    });
}

/// Goal:   what was released early is kept in the cache until the device has it.
/// Method: while a commit is on its way, reads of other records fill the cache several times; then its record is read.
#[test]
fn what_is_not_durable_is_not_evicted() {
    let world = World::new(&StoreOptions { early_release: true, ..StoreOptions::new(300 << 10) });
    (0..600u64).for_each(|key| world.device.put(world.ns, key, &[1; 2000]).unwrap());
    world.store.get(world.ns, 0u64).unwrap();
    std::thread::scope(|scope| {
        let held_back = world.controls.hold_back();
        let writer = scope.spawn(|| world.store.run(|txn| txn.update(world.ns, 0u64, b"new")).unwrap());
        while world.controls.writes.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let mut early = world.store.begin().unwrap(); // gets the lock when it was released
        assert_eq!(&early.read(world.ns, 0u64).unwrap().unwrap()[..], b"new");
        early.abort().unwrap();
        for key in (0..5).flat_map(|_| 1..600u64) {
            // Twice, so they enter the main queue and drive out what exists.
            (0..2).for_each(|_| assert!(world.store.get(world.ns, key).unwrap().is_some()));
        }
        assert!(world.store.stats().eviction_count > 1000);
        let mut late = world.store.begin().unwrap();
        assert_eq!(&late.read(world.ns, 0u64).unwrap().unwrap()[..], b"new");
        assert_eq!(world.device.get(world.ns, 0u64).unwrap().unwrap(), [1; 2000], "it is still on its way");
        assert!(!writer.is_finished());
        drop(held_back);
        late.commit().unwrap();
    });
}

/// Goal:   the budget is kept again when a transaction that pinned more than that is over.
/// Method: a read-only transaction over three times the budget.
#[test]
fn large_readers_leave_within_the_budget() {
    let world = World::new(&StoreOptions::new(300 << 10));
    (0..600u64).for_each(|key| world.device.put(world.ns, key, &[1; 2000]).unwrap());
    let mut txn = world.store.begin().unwrap();
    (0..600u64).for_each(|key| assert!(txn.read(world.ns, key).unwrap().is_some()));
    assert!(world.store.stats().used_bytes > 300 << 10);
    txn.commit().unwrap();
    assert!(world.store.stats().used_bytes <= 300 << 10);
}

/// Goal:   what was released early and then lost is not kept, and a transaction that read it does not succeed.
/// Method: a commit that is lost after its order was fixed, read by a second transaction before.
#[test]
fn a_lost_commit_takes_its_readers_along() {
    let world = World::new(&StoreOptions { early_release: true, ..StoreOptions::new(4 << 20) });
    world.store.put(world.ns, 1u64, b"old").unwrap();
    world.controls.durable_delay_us.store(100_000, Ordering::Relaxed);
    world.controls.lose_pending.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| world.store.run(|txn| txn.update(world.ns, 1u64, b"lost")));
        world.wait_for_writes(2);
        let mut reader = world.store.begin().unwrap();
        assert_eq!(&reader.read(world.ns, 1u64).unwrap().unwrap()[..], b"lost");
        assert!(matches!(reader.commit(), Err(kaml::Error::DependencyLost)));
        assert!(matches!(writer.join().unwrap(), Err(kaml::Error::ReadOnly)));
    });
    let before = world.gets();
    world.store.get(world.ns, 1u64).unwrap();
    assert_eq!(world.gets(), before + 1, "the device is asked what became of it");
}

/// Goal:   as many transactions as the store was opened for, and a clear error beyond.
/// Method: three at once where two are allowed.
#[test]
fn control_blocks_are_counted() {
    let world = World::new(&StoreOptions { transactions_max: 2, ..StoreOptions::new(4 << 20) });
    let a = world.store.begin().unwrap();
    let _b = world.store.begin().unwrap();
    assert!(matches!(world.store.begin(), Err(kaml::Error::TooManyTransactions { max: 2 })));
    drop(a);
    world.store.begin().unwrap();
}

/// Goal:   who asks whether a record exists sees no half of a transaction.
/// Method: the question finds nothing in the cache and goes to the device; there it waits until a transaction is durable that makes
///         the record and changes another, and nothing of it is visible. Then the other one is read.
#[test]
fn existence_is_not_half_a_transaction() {
    let world = world();
    let (store, ns) = (&world.store, world.ns);
    store.put(ns, 2u64, b"old").unwrap();
    let [looks, written] = [&world.controls.looks, &world.controls.written].map(shut);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let is_there = store.exists(ns, 1u64).unwrap();
            (is_there, store.get(ns, 2u64).unwrap().unwrap().to_vec())
        });
        looks.wait();
        let writer = scope.spawn(|| {
            let change = |txn: &mut Transaction| {
                txn.update(ns, 2u64, b"new")?;
                txn.insert(ns, 1u64, b"new")
            };
            store.run(change)
        });
        written.wait();
        looks.wait();
        std::thread::sleep(Duration::from_millis(50)); // the reader either is wrong by now or waits
        written.wait();
        let (is_there, other) = reader.join().unwrap();
        assert!(!is_there || other == b"new", "record 1 exists, and record 2 is as it was before");
        writer.join().unwrap().unwrap();
    });
}

/// Goal:   a transaction that was refused a lock is not taken for one that did what it should.
/// Method: a body that overlooks the refusal of a lock, at first and always; it is run again, and what was notified is so.
#[test]
fn a_refusal_that_is_overlooked_is_not_success() {
    let world = short_waits();
    let (store, ns) = (&world.store, world.ns);
    let mut other = Some(store.begin().unwrap());
    other.as_mut().unwrap().insert(ns, 2u64, b"other").unwrap();
    let mut runs = 0;
    store
        .run(|txn| {
            runs += 1;
            txn.insert(ns, 1u64, b"one")?;
            let _overlooked = txn.read(ns, 2u64);
            drop(other.take());
            Ok(())
        })
        .unwrap();
    assert_eq!(runs, 2);
    assert_eq!(&store.get(ns, 1u64).unwrap().unwrap()[..], b"one");
    store
        .run(|txn| {
            txn.update(ns, 1u64, b"two")?;
            txn.abort()
        })
        .unwrap();
    assert_eq!(&store.get(ns, 1u64).unwrap().unwrap()[..], b"one", "who aborts it has ended it");
}

/// Goal:   waits may be as long as a duration can express.
/// Method: the longest timeout and delay there are, and a wait for a lock.
#[test]
fn waits_may_be_without_end() {
    for durability_delay in [Duration::ZERO, Duration::MAX] {
        let options = StoreOptions { lock_timeout: Duration::MAX, durability_delay, ..StoreOptions::new(4 << 20) };
        let world = World::new(&options);
        let mut txn = world.store.begin().unwrap();
        txn.insert(world.ns, 1u64, b"a").unwrap();
        std::thread::scope(|scope| {
            let put = scope.spawn(|| world.store.put(world.ns, 1u64, b"b"));
            while world.store.stats().lock_wait_count == 0 {
                std::thread::yield_now();
            }
            txn.commit().unwrap();
            put.join().unwrap().unwrap();
        });
        assert_eq!(&world.store.get(world.ns, 1u64).unwrap().unwrap()[..], b"b");
    }
}

/// Goal:   what was released early is seen however large it is: until it is durable, the device has an older value.
/// Method: a commit of a value that is too large to be kept is on its way; a transaction reads it.
#[test]
fn large_early_commits_are_seen() {
    let cache = StoreOptions { transactions_max: 16, ..StoreOptions::new(160 << 10) };
    let world = World::new(&StoreOptions { early_release: true, ..cache });
    world.store.put(world.ns, 1u64, b"old").unwrap();
    std::thread::scope(|scope| {
        let held_back = world.controls.hold_back();
        let writer = scope.spawn(|| world.store.run(|txn| txn.update(world.ns, 1u64, &[1; 24 << 10])).unwrap());
        world.wait_for_writes(2);
        let mut reader = world.store.begin().unwrap();
        assert_eq!(&reader.read(world.ns, 1u64).unwrap().unwrap()[..], [1; 24 << 10]);
        drop(held_back);
        reader.commit().unwrap();
        writer.join().unwrap();
    });
}

/// Goal:   a lost commit does not take along what replaced its record meanwhile.
/// Method: two commits of one record on their way, of which the first is lost; then the record is read without the device.
#[test]
fn a_lost_commit_takes_no_later_one_along() {
    let world = World::new(&StoreOptions { early_release: true, ..StoreOptions::new(4 << 20) });
    world.store.put(world.ns, 1u64, b"old").unwrap();
    std::thread::scope(|scope| {
        let held_back = world.controls.hold_back();
        world.controls.lose_pending.store(true, Ordering::Relaxed);
        let lost = scope.spawn(|| world.store.run(|txn| txn.update(world.ns, 1u64, b"lost")));
        world.wait_for_writes(2);
        world.controls.lose_pending.store(false, Ordering::Relaxed);
        let kept = scope.spawn(|| world.store.run(|txn| txn.update(world.ns, 1u64, b"kept")));
        world.wait_for_writes(3);
        drop(held_back);
        assert!(lost.join().unwrap().is_err());
        kept.join().unwrap().unwrap();
    });
    let before = world.gets();
    assert_eq!(&world.store.get(world.ns, 1u64).unwrap().unwrap()[..], b"kept");
    assert_eq!(world.gets(), before);
}

/// Goal:   nothing is stored that was made of what is lost.
/// Method: a transaction reads from a commit that is then lost, and changes another record.
#[test]
fn nothing_is_built_on_the_lost() {
    let world = World::new(&StoreOptions { early_release: true, ..StoreOptions::new(4 << 20) });
    [1u64, 2].into_iter().for_each(|key| world.store.put(world.ns, key, b"old").unwrap());
    std::thread::scope(|scope| {
        let held_back = world.controls.hold_back();
        world.controls.lose_pending.store(true, Ordering::Relaxed);
        let writer = scope.spawn(|| world.store.run(|txn| txn.update(world.ns, 1u64, b"lost")));
        world.wait_for_writes(3);
        let mut reader = world.store.begin().unwrap();
        assert_eq!(&reader.read(world.ns, 1u64).unwrap().unwrap()[..], b"lost");
        drop(held_back);
        assert!(writer.join().unwrap().is_err());
        world.controls.lose_pending.store(false, Ordering::Relaxed);
        reader.update(world.ns, 2u64, b"of lost").unwrap();
        assert!(matches!(reader.commit(), Err(kaml::Error::DependencyLost)));
    });
    assert_eq!(world.device.get(world.ns, 2u64).unwrap().unwrap(), b"old");
}

/// Goal:   after a commit that failed the device is asked, which may have stored it.
/// Method: the device refuses a commit of a record that is in the cache; then it is read.
#[test]
fn failed_commits_may_have_been_stored() {
    for early_release in [false, true] {
        let world = World::new(&StoreOptions { early_release, ..StoreOptions::new(4 << 20) });
        world.store.put(world.ns, 1u64, b"old").unwrap();
        world.controls.fail_writes.store(true, Ordering::Relaxed);
        assert!(world.store.run(|txn| txn.update(world.ns, 1u64, b"new")).is_err());
        let before = world.gets();
        assert_eq!(&world.store.get(world.ns, 1u64).unwrap().unwrap()[..], b"old");
        assert_eq!(world.gets(), before + 1);
    }
}

/// Goal:   no plain read answers anything before it is durable, in whichever way it is made.
/// Method: a commit with a change and a delete on its way, and one thread for each way to read; none comes back before it.
#[test]
fn plain_reads_wait_for_what_is_on_its_way() {
    let world = World::new(&StoreOptions { early_release: true, ..StoreOptions::new(4 << 20) });
    let (store, ns) = (&world.store, world.ns);
    [1u64, 2].into_iter().for_each(|key| store.put(ns, key, b"old").unwrap());
    let changed: [&(dyn Fn() -> bool + Sync); 5] = [
        &|| store.get_into(ns, 1u64, &mut Vec::new()).unwrap(),
        &|| !store.get_into(ns, 2u64, &mut Vec::new()).unwrap(),
        &|| store.exists(ns, 1u64).unwrap(),
        &|| !store.exists(ns, 2u64).unwrap(),
        &|| store.get_many(ns, [1u64, 2]).unwrap()[1].is_none(),
    ];
    std::thread::scope(|scope| {
        let held_back = world.controls.hold_back();
        let change = |txn: &mut Transaction| {
            txn.update(ns, 1u64, b"new")?;
            txn.delete(ns, 2u64)
        };
        let writer = scope.spawn(move || store.run(change).unwrap());
        world.wait_for_writes(3);
        let mut early = store.begin().unwrap(); // gets the locks when they are released
        assert!(early.read(ns, 1u64).unwrap().is_some() && early.read(ns, 2u64).unwrap().is_none());
        early.abort().unwrap();
        let readers = changed.map(|is_so| scope.spawn(is_so));
        std::thread::sleep(Duration::from_millis(50)); // they either are wrong by now or wait
        assert!(readers.iter().all(|reader| !reader.is_finished()));
        drop(held_back);
        assert!(readers.into_iter().all(|reader| reader.join().unwrap()));
        writer.join().unwrap();
    });
}

/// Goal:   a wait that is in vain each time ends `run` after a few of them.
/// Method: a body that puts, outside its transaction, a record that this has locked; runs are counted.
#[test]
fn waits_in_vain_are_few() {
    let world = short_waits();
    let (store, ns) = (&world.store, world.ns);
    let mut runs = 0;
    let result = store.run(|txn| {
        runs += 1;
        txn.read_for_update(ns, 1u64)?;
        store.put(ns, 1u64, b"outside it")
    });
    assert!(matches!(result, Err(kaml::Error::LockTimeout { .. })), "{result:?}");
    assert_eq!((runs, store.stats().timeout_count), (3, 3));
}

/// Goal:   a transaction that was refused a lock returns that error whenever it is used again, so a body that overlooks it ends with an error
///         which can be tried again.
/// Method: every call after a refusal; then after an abort by the program, which is another thing.
#[test]
fn refusals_are_told_again() {
    let world = short_waits();
    let (store, ns) = (&world.store, world.ns);
    let mut other = store.begin().unwrap();
    other.insert(ns, 2u64, b"other").unwrap();
    for is_refused in [true, false] {
        let mut txn = store.begin().unwrap();
        txn.insert(ns, 1u64, b"one").unwrap();
        match is_refused {
            true => drop(txn.read(ns, 2u64).unwrap_err()),
            false => txn.abort().unwrap(),
        }
        let results = [
            txn.read(ns, 1u64).map(drop),
            txn.read_for_update(ns, 1u64).map(drop),
            txn.update(ns, 1u64, b"x"),
            txn.insert(ns, 1u64, b"x"),
            txn.upsert(ns, 1u64, b"x"),
            txn.delete(ns, 1u64),
            txn.expect([(ns, 1u64)]),
            txn.commit(),
            txn.commit_durable(),
        ];
        for result in results {
            match result {
                Err(kaml::Error::LockTimeout { key, .. }) if is_refused => assert_eq!(key, Key::from(2).into()),
                Err(kaml::Error::IllegalMove(_)) if !is_refused => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(txn.abort(), Err(kaml::Error::IllegalMove(_))));
        assert_eq!(store.stats().timeout_count, 1);
        txn.free().unwrap();
    }
}

/// Goal:   a transaction leaves nothing pinned, whatever became of its locks.
/// Method: locks that become exclusive, and one that is refused; then nothing keeps a record from leaving with its namespace.
#[test]
fn nothing_stays_pinned() {
    for records_per_lock in [1, 4] {
        let lock_timeout = Duration::from_millis(20);
        let world = World::new(&StoreOptions { records_per_lock, lock_timeout, ..StoreOptions::new(4 << 20) });
        (0..8u64).for_each(|key| world.store.put(world.ns, key, b"x").unwrap());
        let [mut a, mut b] = [(); 2].map(|()| world.store.begin().unwrap());
        a.read(world.ns, 1u64).unwrap();
        a.read_for_update(world.ns, 1u64).unwrap();
        assert!(matches!(b.read(world.ns, 1u64), Err(kaml::Error::LockTimeout { .. })));
        a.commit().unwrap();
        world.store.delete_namespace(world.ns).unwrap();
        assert_eq!(world.store.stats().record_count, 0);
    }
}

/// Goal:   expected records of several namespaces come into the cache, each with its own content.
/// Method: the same keys in a hash, an ordered, a block and a versioned namespace and in one that does not exist, none of them cached; each
///         is read afterwards, and no read of a record in a namespace of records reaches the device again.
#[test]
fn records_of_several_namespaces_are_expected_together() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let kinds = [
        NamespaceOptions::records(KeyKind::U64),
        NamespaceOptions::records(KeyKind::Ordered),
        NamespaceOptions::records(KeyKind::Any),
        NamespaceOptions::versions(KeyKind::U64, VersionOptions::default()),
    ];
    let create = |(at, kind): (usize, &NamespaceOptions)| device.create_namespace(&format!("n{at}"), kind).unwrap();
    let namespaces: Vec<_> = kinds.iter().enumerate().map(create).collect();
    let value = |ns: kaml::NamespaceId, key: u64| format!("{ns} has {key}").into_bytes();
    let records = || namespaces.iter().flat_map(|ns| (0..50u64).map(|key| (*ns, key)));
    let mut batch = Batch::new();
    records().for_each(|(ns, key)| _ = batch.put(ns, key, &value(ns, key)));
    device.write(&batch).unwrap();
    let store = Store::open(device, &StoreOptions::new(8 << 20)).unwrap();
    let mut txn = store.begin().unwrap();
    txn.expect(records().chain([(77, 1), (namespaces[0], 1000), (namespaces[3], 1000)])).unwrap();
    let misses = store.stats().miss_count;
    for (ns, key) in records() {
        assert_eq!(&txn.read(ns, key).unwrap().unwrap()[..], value(ns, key), "namespace {ns}, key {key}");
    }
    assert!(txn.read(namespaces[0], 1000u64).unwrap().is_none());
    assert!(txn.read(namespaces[3], 1000u64).unwrap().is_none());
    assert_eq!(store.stats().miss_count, misses);
    assert!(matches!(txn.read(77, 1u64), Err(kaml::Error::UnknownNamespace(77))));
    txn.commit().unwrap();
}
