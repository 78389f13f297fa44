//! Ranges in transactions: no phantoms, and what a transaction has changed itself.

use crate::long_keys::{mixed, number_of};
use crate::world::World;
use kaml::store::{Store, StoreOptions, WriteMode};
use kaml::{CreateOptions, Device, Error, Key, KeyBuf, KeyKind, NamespaceId, NamespaceOptions};
use kaml_testkit::Rng;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn opened(options: StoreOptions) -> (Store, NamespaceId) {
    let device = Device::in_memory(&CreateOptions::new(128 << 20)).unwrap();
    let namespace = device.create_namespace("n", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    (Store::open(device, &options).unwrap(), namespace)
}

/// What the key with a number is called. Keys are in the order of their numbers.
type Name = fn(u64) -> KeyBuf;

fn integer(number: u64) -> KeyBuf {
    Key::from(number).into()
}

/// The ways a store can be used in.
fn modes() -> Vec<(&'static str, StoreOptions, Name)> {
    let small = || StoreOptions { lock_timeout: Duration::from_secs(20), ..StoreOptions::new(2 << 20) };
    vec![
        ("strict, integers", small(), integer),
        ("strict", small(), mixed),
        ("early release", StoreOptions { early_release: true, ..small() }, mixed),
        ("delayed", StoreOptions { durability_delay: Duration::from_millis(5), ..small() }, mixed),
        ("write back", StoreOptions { write_mode: WriteMode::Back, ..small() }, mixed),
        ("coarse locks, integers", StoreOptions { records_per_lock: 16, ..small() }, integer),
        ("coarse locks", StoreOptions { records_per_lock: 16, ..small() }, mixed),
    ]
}

/// Ends the other threads, also when its own fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn numbers(found: Vec<(KeyBuf, kaml::store::Value)>) -> Vec<(u64, Vec<u8>)> {
    found.into_iter().map(|(key, value)| (number_of(&key), value.to_vec())).collect()
}

/// Goal:   a range that is read for update is nobody else's to read for update or to change, and is shown as any other.
/// Method: one transaction holds it, others that wait for a short time only try; afterwards they succeed.
#[test]
fn ranges_for_update_are_held() {
    let lock_timeout = Duration::from_millis(100);
    let (store, namespace) = opened(StoreOptions { lock_timeout, ..StoreOptions::new(2 << 20) });
    for key in 0..40 {
        store.put(namespace, &integer(key), &[key as u8]).unwrap();
    }
    let mut first = store.begin().unwrap();
    let oldest = first.range_for_update::<u64>(namespace, .., 3).unwrap();
    assert_eq!(numbers(oldest), [(0, vec![0]), (1, vec![1]), (2, vec![2])]);
    let is_refused = |result: Result<(), Error>| matches!(result, Err(Error::LockTimeout { .. }));
    assert!(is_refused(store.begin().unwrap().range_for_update::<u64>(namespace, 2.., 1).map(drop)));
    assert!(is_refused(store.put(namespace, &integer(1), b"other")));
    let above = store.begin().unwrap().range_for_update::<u64>(namespace, 5.., 2).unwrap();
    assert_eq!(numbers(above), [(5, vec![5]), (6, vec![6])]);
    first.delete(namespace, &integer(0)).unwrap();
    first.commit().unwrap();
    let oldest = store.begin().unwrap().range_for_update::<u64>(namespace, .., 1).unwrap();
    assert_eq!(numbers(oldest), [(1, vec![1])]);
    let mut last = store.begin().unwrap();
    let newest = last.range_back_for_update::<u64>(namespace, .., 2).unwrap();
    assert_eq!(numbers(newest), [(39, vec![39]), (38, vec![38])]);
    assert!(is_refused(store.begin().unwrap().range_back_for_update::<u64>(namespace, ..39, 1).map(drop)));
    assert!(is_refused(store.put(namespace, &integer(40), b"above")));
    let below = store.begin().unwrap().range_back_for_update::<u64>(namespace, ..37, 1).unwrap();
    assert_eq!(numbers(below), [(36, vec![36])]);
    last.commit().unwrap();
}

/// Goal:   a range is that of a sorted map, with what the transaction has put, changed and deleted itself, in both directions and up to a limit.
/// Method: random changes and ranges in one transaction after the other, some of which abort, against a model; a cache that is too small.
#[test]
fn ranges_show_own_changes() {
    for (mode, options, name) in modes() {
        let (store, namespace) = opened(options);
        let (mut model, mut rng) = (BTreeMap::new(), Rng::new(3));
        for _ in 0..120 {
            let mut txn = store.begin().unwrap();
            let mut own = model.clone();
            for _ in 0..rng.below(30) {
                let key = rng.below(400);
                match rng.below(4) {
                    0 => {
                        let there = own.remove(&key).is_some();
                        assert_eq!(txn.delete(namespace, &name(key)).is_ok(), there);
                    }
                    1 | 2 => {
                        let value = rng.draw().to_le_bytes().repeat(1 + rng.below(100) as usize);
                        txn.upsert(namespace, &name(key), &value).unwrap();
                        own.insert(key, value);
                    }
                    _ => {
                        let (from, to, limit) = (rng.below(400), rng.below(420), rng.below(90) as usize);
                        let inside =
                            || own.iter().filter(|(key, _)| (from..to).contains(*key)).map(|(k, v)| (*k, v.clone()));
                        let (from, to) = (name(from), name(to));
                        let range = from.as_bytes()..to.as_bytes();
                        let expected: Vec<_> = inside().take(limit).collect();
                        assert!(
                            numbers(txn.range(namespace, range.clone(), limit).unwrap()) == expected,
                            "{mode}: {from}..{to}"
                        );
                        let mut expected: Vec<_> = inside().collect();
                        expected.reverse();
                        expected.truncate(limit);
                        let found = numbers(txn.range_back(namespace, range, limit).unwrap());
                        assert!(found == expected, "{mode}: {from}..{to} downwards");
                    }
                }
            }
            if rng.below(3) == 0 {
                txn.abort().unwrap();
            } else {
                txn.commit().unwrap();
                model = own;
            }
        }
        let all = numbers(store.range(namespace, name(0).as_bytes().., usize::MAX).unwrap());
        assert!(all == model.into_iter().collect::<Vec<_>>(), "{mode}");
    }
}

/// Goal:   of transactions that each find a range empty and insert into it, one commits: there are no phantoms.
/// Method: eight threads reserve seats of rows, each after it has found its row empty, under different keys; plain puts in some modes;
///         rows at the end of the namespace and between others.
#[test]
fn one_of_many_finds_a_range_empty() {
    const ROWS: u64 = 150;
    for (mode, options, name) in modes() {
        let (store, namespace) = opened(options);
        let won = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (store, won) = (&store, &won);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    for row in 0..ROWS {
                        // Rows come in an order that appends some and puts others between.
                        let row = if row % 2 == 0 { row } else { ROWS - row };
                        let seat = row * 100 + rng.below(12) * 8 + thread;
                        let reserved = store.run(|txn| {
                            if !txn
                                .range(
                                    namespace,
                                    name(row * 100).as_bytes()..name((row + 1) * 100).as_bytes(),
                                    usize::MAX,
                                )?
                                .is_empty()
                            {
                                return Ok(0);
                            }
                            txn.insert(namespace, &name(seat), &thread.to_le_bytes())?;
                            Ok(1)
                        });
                        match reserved {
                            Ok(count) => _ = won.fetch_add(count, Ordering::Relaxed),
                            Err(error) => assert!(error.is_retryable(), "{mode}: {error}"),
                        }
                    }
                });
            }
        });
        let seats = numbers(store.range(namespace, name(0).as_bytes().., usize::MAX).unwrap());
        let mut rows: Vec<u64> = seats.iter().map(|(seat, _)| seat / 100).collect();
        let count = rows.len() as u64;
        rows.dedup();
        assert_eq!(rows.len() as u64, count, "{mode}: a row has two seats");
        assert_eq!(won.load(Ordering::Relaxed), count, "{mode}");
        assert!(count > ROWS / 2, "{mode}: {count}");
    }
}

/// Goal:   no two transactions find a range empty that one of them fills, whatever was deleted from it and next to it just before: a key that the
///         index still has, or has not yet, guards nothing and hides nothing.
/// Method: threads reserve a seat of a row that they find empty, and give back all that they find, in few rows with few seats, so that keys are
///         inserted and deleted again all the time, often the last ones of the namespace; upwards and downwards. Commits and answers of the index
///         take long. A transaction that finds two seats taken has seen the fault.
#[test]
fn rows_are_reserved_and_given_back() {
    const ROWS: u64 = 3;
    let delays = [(500, 20), (0, 400)];
    for ((mode, options, name), (durable, listed)) in
        modes().into_iter().flat_map(|mode| delays.map(|d| (mode.clone(), d)))
    {
        let World { store, ns: namespace, controls, .. } = World::with_keys(KeyKind::Ordered, &options);
        controls.durable_delay_us.store(durable, Ordering::Relaxed);
        controls.listed_delay_us.store(listed, Ordering::Relaxed);
        let (reserved, given_back) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (store, reserved, given_back) = (&store, &reserved, &given_back);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    for _ in 0..50 {
                        let (row, seat) = (rng.below(ROWS), rng.below(3));
                        let (downwards, pause_us) = (rng.below(2) == 0, rng.below(2) * rng.below(1200));
                        let done = store.run(|txn| {
                            let (from, to) = (name(row * 10), name((row + 1) * 10));
                            let range = from.as_bytes()..to.as_bytes();
                            let taken = match downwards {
                                true => txn.range_back(namespace, range, usize::MAX)?,
                                false => txn.range(namespace, range, 5)?,
                            };
                            let taken = numbers(taken);
                            assert!(taken.len() <= 1, "{mode}: {taken:?}");
                            if taken.is_empty() {
                                txn.insert(namespace, &name(row * 10 + seat), &thread.to_le_bytes())?;
                            }
                            for (seat, _) in &taken {
                                txn.delete(namespace, &name(*seat))?;
                            }
                            std::thread::sleep(Duration::from_micros(pause_us));
                            Ok(taken.is_empty())
                        });
                        match done {
                            Ok(true) => _ = reserved.fetch_add(1, Ordering::Relaxed),
                            Ok(false) => _ = given_back.fetch_add(1, Ordering::Relaxed),
                            Err(error) => assert!(error.is_retryable(), "{mode}: {error}"),
                        }
                    }
                });
            }
        });
        let left = store.range(namespace, name(0).as_bytes().., usize::MAX).unwrap().len() as u64;
        let [reserved, given_back] = [reserved, given_back].map(AtomicU64::into_inner);
        assert_eq!(reserved - given_back, left, "{mode}");
        assert!(given_back > 2, "{mode}: {given_back}");
    }
}

/// Goal:   a reader of a range sees each transaction whole: as many records as there always are, and their sum.
/// Method: threads move records, which is a delete and an insert under another key in one transaction, while others read all of the range, upwards
///         and downwards.
#[test]
fn readers_of_ranges_see_whole_transactions() {
    const RECORDS: usize = 60;
    for (mode, options, name) in modes() {
        let (store, namespace) = opened(options);
        let mut txn = store.begin().unwrap();
        for key in 0..RECORDS as u64 {
            txn.insert(namespace, &name(key * 10), &1u64.to_le_bytes()).unwrap();
        }
        txn.commit().unwrap();
        let is_over = AtomicBool::new(false);
        let moved = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let (store, is_over, moved) = (&store, &is_over, &moved);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    while !is_over.load(Ordering::Relaxed) {
                        let (from, to) = (rng.below(600), rng.below(600));
                        let result = store.run(|txn| {
                            let Some(value) = txn.read_for_update(namespace, &name(from))? else { return Ok(false) };
                            let value = value.to_vec();
                            if txn.read(namespace, &name(to))?.is_some() {
                                return Ok(false);
                            }
                            txn.delete(namespace, &name(from))?;
                            txn.insert(namespace, &name(to), &value)?;
                            Ok(true)
                        });
                        match result {
                            Ok(true) => _ = moved.fetch_add(1, Ordering::Relaxed),
                            Ok(false) => {}
                            Err(error) => assert!(error.is_retryable(), "{mode}: {error}"),
                        }
                    }
                });
            }
            let _over = Over(&is_over);
            let (mut whole, begun) = (0, Instant::now());
            let is_enough = |whole| whole >= 200 && moved.load(Ordering::Relaxed) > 20;
            while !is_enough(whole) && begun.elapsed() < Duration::from_secs(60) {
                let read = |txn: &mut kaml::store::Transaction| match whole % 2 {
                    0 => txn.range(namespace, name(0).as_bytes()..name(1000).as_bytes(), usize::MAX),
                    _ => txn.range_back(namespace, name(0).as_bytes()..name(1000).as_bytes(), usize::MAX),
                };
                match store.run(read) {
                    Ok(found) => assert_eq!(found.len(), RECORDS, "{mode}"),
                    Err(error) => assert!(error.is_retryable(), "{mode}: {error}"),
                }
                whole += 1;
            }
        });
        assert!(moved.load(Ordering::Relaxed) > 20, "{mode}: {moved:?}");
    }
}

/// Goal:   mistakes are typed errors, and the transaction can continue.
/// Method: ranges of unordered and unknown namespaces.
#[test]
fn mistakes_are_named() {
    let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
    let plain = device.create_namespace("plain", &NamespaceOptions::default()).unwrap();
    let store = Store::open(device, &StoreOptions::new(2 << 20)).unwrap();
    let mut txn = store.begin().unwrap();
    assert!(matches!(txn.range(plain, 0u64..5, 10), Err(Error::NotOrdered(_))));
    assert!(matches!(txn.range(plain + 1, 0u64..5, 10), Err(Error::UnknownNamespace(_))));
    txn.insert(plain, Key::from(1), b"one").unwrap();
    txn.commit().unwrap();
}
