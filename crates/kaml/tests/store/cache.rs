//! Reading through the cache, its budget and its eviction.

use crate::moves::Rng;
use crate::world::{World, shut};
use kaml::store::{Store, StoreOptions, WriteMode};
use kaml::{Key, NamespaceOptions};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn value(key: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (key as u8).wrapping_mul(31).wrapping_add(i as u8)).collect()
}

/// Goal:   a record is read from the device once, present or absent, by single and by batched reads.
/// Method: count device Gets over repeated reads; compare all answers.
#[test]
fn a_miss_costs_one_device_get() {
    let world = World::new(&StoreOptions::new(4 << 20));
    for key in 0..100u64 {
        world.device.put(world.ns, key, &value(key, 200)).unwrap();
    }
    for _ in 0..3 {
        for key in 0..100u64 {
            assert_eq!(&world.store.get(world.ns, key).unwrap().unwrap()[..], value(key, 200));
        }
        assert!(world.store.get(world.ns, 1000u64).unwrap().is_none());
    }
    assert_eq!(world.gets(), 101);
    let keys: Vec<Key> = (90..110u64).chain([95, 105]).map(Key::from).collect();
    let mut reader = world.store.reader();
    for _ in 0..2 {
        let many = reader.get_many(world.ns, &keys).unwrap();
        for (key, found) in keys.iter().zip(many) {
            let key = key.as_u64().unwrap();
            assert_eq!(found.map(|v| v.to_vec()), (key < 100).then(|| value(key, 200)), "key {key}");
        }
    }
    assert_eq!(world.gets(), 111);
    let others: Vec<Key> = (200..300u64).map(Key::from).collect();
    assert!(reader.get_many(world.ns, &others).unwrap().iter().all(Option::is_none));
    let readers = world.controls.readers.load(Ordering::Relaxed);
    assert_eq!((world.gets(), readers), (211, 1), "what the first batch was read with is used again");
    let mut buffer = Vec::new();
    assert!(world.store.get_into(world.ns, 7u64, &mut buffer).unwrap());
    assert_eq!(buffer, value(7, 200));
    assert!(!world.store.exists(world.ns, 1000u64).unwrap() && world.store.exists(world.ns, 1u64).unwrap());
}

/// Goal:   threads that miss one key together cost one device Get.
/// Method: 8 threads read one key of a slow device at once, 20 times over.
#[test]
fn concurrent_misses_cost_one_device_get() {
    let world = World::new(&StoreOptions::new(4 << 20));
    world.controls.get_delay_us.store(5000, Ordering::Relaxed);
    for key in 0..20u64 {
        world.device.put(world.ns, key, &value(key, 100)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(&world.store.get(world.ns, key).unwrap().unwrap()[..], value(key, 100)));
            }
        });
    }
    assert_eq!(world.gets(), 20);
}

/// Goal:   a device that fails fails the reads it touches; when it works again so do they.
/// Method: reads while the device fails, single, batched and in a transaction, and after.
#[test]
fn reads_recover_when_the_device_does() {
    let world = World::new(&StoreOptions::new(4 << 20));
    world.device.put(world.ns, 1u64, b"x").unwrap();
    world.controls.fail_gets.store(true, Ordering::Relaxed);
    assert!(matches!(world.store.get(world.ns, 1u64), Err(kaml::Error::ReadOnly)));
    let mut txn = world.store.begin().unwrap();
    assert!(matches!(txn.read(world.ns, 1u64), Err(kaml::Error::ReadOnly)));
    world.controls.fail_gets.store(false, Ordering::Relaxed);
    assert_eq!(&txn.read(world.ns, 1u64).unwrap().unwrap()[..], b"x");
    txn.commit().unwrap();
    assert_eq!(&world.store.get(world.ns, 1u64).unwrap().unwrap()[..], b"x");
}

/// Goal:   nothing of a deleted namespace remains in the cache, not even what was being read when it was deleted.
/// Method: a reader has its value from the device and waits; the namespace is deleted; then the reader continues.
#[test]
fn reads_leave_nothing_of_a_deleted_namespace() {
    let world = World::new(&StoreOptions::new(4 << 20));
    world.device.put(world.ns, 1u64, b"x").unwrap();
    let found = shut(&world.controls.found);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| world.store.get(world.ns, 1u64));
        found.wait();
        world.store.delete_namespace(world.ns).unwrap();
        found.wait();
        let _ = reader.join().unwrap(); // it may have come first, or not
        assert!(world.store.get(world.ns, 1u64).is_err());
        assert_eq!(world.store.stats().record_count, 0);
    });
}

/// Goal:   nobody reads what was on its way into the cache when its namespace was deleted.
/// Method: it is deleted between a transaction's Put and what the cache makes of it; while a write-back put waits for a lock; and before
///         a transaction commits that need not wait.
#[test]
fn what_comes_behind_a_deletion_is_not_kept() {
    let is_gone = |world: &World| {
        assert!(world.store.get(world.ns, 1u64).is_err());
        assert_eq!(world.store.stats().dirty_bytes, 0);
    };
    let world = World::new(&StoreOptions::new(4 << 20));
    let written = shut(&world.controls.written);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| world.store.run(|txn| txn.insert(world.ns, 1u64, b"late")));
        written.wait();
        world.store.delete_namespace(world.ns).unwrap();
        written.wait();
        writer.join().unwrap().unwrap(); // it came first
    });
    is_gone(&world);

    let world = World::new(&StoreOptions { write_mode: WriteMode::Back, ..StoreOptions::new(4 << 20) });
    let mut txn = world.store.begin().unwrap();
    txn.read_for_update(world.ns, 1u64).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| world.store.put(world.ns, 1u64, b"late"));
        while world.store.stats().lock_wait_count == 0 {
            std::thread::yield_now();
        }
        world.store.delete_namespace(world.ns).unwrap();
        txn.abort().unwrap();
        let _ = writer.join().unwrap(); // it may have come first, or not
    });
    is_gone(&world);

    let later = Duration::from_secs(3600);
    let world = World::new(&StoreOptions { durability_delay: later, ..StoreOptions::new(4 << 20) });
    let other = world.device.create_namespace("other", &NamespaceOptions::default()).unwrap();
    let mut txn = world.store.begin().unwrap();
    [world.ns, other].iter().for_each(|ns| txn.insert(*ns, 1u64, b"late").unwrap());
    world.store.delete_namespace(world.ns).unwrap();
    let error = txn.commit().unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
    is_gone(&world);
    assert!(world.store.get(other, 1u64).unwrap().is_none(), "all or nothing");
}

/// Goal:   the budget is kept whatever the sizes, and what is evicted is read again as it was.
/// Method: put and get 20 000 records of 0 to 4000 bytes through caches of several sizes, watching `used_bytes`.
#[test]
fn the_budget_is_kept() {
    for budget in [512u64 << 10, 2 << 20, 16 << 20] {
        let world = World::new(&StoreOptions::new(budget));
        let mut rng = Rng::new(budget);
        let len = |key: u64| (key * 37 % 4000) as usize;
        for key in 0..10_000u64 {
            world.store.put(world.ns, key, &value(key, len(key))).unwrap();
            assert!(world.store.stats().used_bytes <= budget, "{:?}", world.store.stats());
        }
        for _ in 0..10_000 {
            let key = rng.below(11_000);
            let found = world.store.get(world.ns, key).unwrap().map(|v| v.to_vec());
            assert_eq!(found, (key < 10_000).then(|| value(key, len(key))));
            assert!(world.store.stats().used_bytes <= budget);
        }
        let stats = world.store.stats();
        assert!(stats.used_bytes as f64 > 0.9 * budget as f64, "the budget is used: {stats:?}");
    }
}

/// Goal:   values too large for the cache are served all the same, and senseless options are refused.
/// Method: a value above an eighth of the budget, put and read; a tiny budget; zero records per lock.
#[test]
fn limits_are_clear() {
    let world = World::new(&StoreOptions::new(512 << 10));
    let large = value(1, 300 << 10);
    world.store.put(world.ns, 1u64, &large).unwrap();
    assert_eq!(&world.store.get(world.ns, 1u64).unwrap().unwrap()[..], large);
    let bad = |options: StoreOptions| Store::open(world.device.clone(), &options).err().unwrap();
    assert!(matches!(bad(StoreOptions::new(1000)), kaml::Error::CacheTooSmall { bytes: 1000, .. }));
    let options = StoreOptions { records_per_lock: 0, ..StoreOptions::new(1 << 20) };
    assert!(matches!(bad(options), kaml::Error::BadStoreOptions(_)));
    let max = world.device.info().value_bytes_max as usize;
    assert!(world.store.put(world.ns, 1u64, &vec![0; max + 1]).is_err());
    assert!(world.store.get(999, 1u64).is_err() && world.store.put(999, 1u64, b"x").is_err());
    assert!(world.store.get(world.ns, Key::new(b"text").unwrap()).is_err());
}

/// Goal:   the cache hits at least as often as LRU of the same memory, and a scan does not empty it.
/// Method: zipfian, uniform and latest reads over 20 000 records of 500 bytes with a cache of a third of them, against
///         an LRU list with as many records as the cache holds; then hot reads mixed with a scan.
#[test]
fn it_hits_at_least_as_often_as_lru() {
    for mix in ["zipf", "uniform", "latest", "scan"] {
        let world = World::new(&StoreOptions::new(4 << 20));
        let mut rng = Rng::new(7);
        let mut trace = Vec::new();
        for round in 0..150_000u64 {
            let zipf = zipf(rng.below(1 << 32) as f64 / (1u64 << 32) as f64, 20_000);
            trace.push(match mix {
                "zipf" => zipf * 7919 % 20_000,
                "uniform" => rng.below(20_000),
                "latest" => (round / 20 + 20_000) - 1 - zipf,
                _ if round % 3 == 0 => 100_000 + round,
                _ => zipf * 7919 % 20_000,
            });
        }
        let body = [7; 500];
        trace.iter().for_each(|key| world.device.put(world.ns, *key, &body).unwrap());
        let warm = trace.len() / 3;
        trace[..warm].iter().for_each(|key| drop(world.store.get(world.ns, *key).unwrap()));
        let (before, capacity) = (world.gets(), world.store.stats().record_count as usize);
        trace[warm..].iter().for_each(|key| drop(world.store.get(world.ns, *key).unwrap()));
        let misses = world.gets() - before;
        let lru = lru_misses(&trace, warm, capacity);
        println!("{mix}: {misses} misses, LRU {lru}, of {} with {capacity} records", trace.len() - warm);
        // Uniform reads hit as often with any policy; a hundredth is chance.
        assert!(misses as f64 <= lru as f64 * 1.01, "{mix}: {misses} misses, LRU {lru}");
    }
}

/// Goal:   records that are used are kept, whatever else streams through the cache, and however records are spread over shards.
/// Method: transactions that each change one of the records that fill half of the cache, evenly, and insert another; after all
///         have been used, those that are read from the device again are counted.
#[test]
fn what_is_used_stays_beside_inserts() {
    const USED: u64 = 9_000;
    let world = World::new(&StoreOptions::new(4 << 20));
    let (mut rng, body) = (Rng::new(3), [7; 100]);
    (0..USED).for_each(|key| world.device.put(world.ns, key, &body).unwrap());
    let mut before = 0;
    let transactions = 200_000u64;
    for round in 0..transactions {
        if round == transactions / 2 {
            before = world.gets();
        }
        let used = rng.below(USED);
        world
            .store
            .run(|txn| {
                assert_eq!(txn.read_for_update(world.ns, used)?.as_deref(), Some(&body[..]));
                txn.update(world.ns, used, &body)?;
                txn.insert(world.ns, USED + round, &body)
            })
            .unwrap();
    }
    let misses = world.gets() - before;
    println!("{misses} misses, {:?}", world.store.stats());
    assert!(misses < transactions / 2 / 500, "{misses} misses");
}

/// Goal:   large values that are used are cached although their shards then have several times what others have.
/// Method: eight values of 1 MiB take half of the cache and are read in turn, twenty small records are read for the first time
///         between two of them.
#[test]
fn shards_with_large_values_are_not_drained() {
    let world = World::new(&StoreOptions::new(16 << 20));
    let (large, small) = (vec![1; 1 << 20], [2; 1000]);
    (0..8u64).for_each(|key| world.device.put(world.ns, key, &large).unwrap());
    let rounds = 4000u64;
    let (mut large_misses, mut next) = (0, 1000);
    for round in 0..rounds {
        let before = world.gets();
        assert_eq!(world.store.get(world.ns, round % 8).unwrap().as_deref(), Some(&large[..]));
        large_misses += world.gets() - before;
        for _ in 0..20 {
            world.device.put(world.ns, next, &small).unwrap();
            assert!(world.store.get(world.ns, next).unwrap().is_some());
            world.device.delete(world.ns, next).unwrap();
            next += 1;
        }
    }
    println!("{large_misses} misses, {:?}", world.store.stats());
    assert!(large_misses < rounds * 4 / 5, "{large_misses} misses"); // 1400 to 2600, as keys fall into shards
}

/// Goal:   memory that many small records needed for their bookkeeping is free for fewer large ones that replace them.
/// Method: a cache full of small values, then large ones; as many of these as a fresh cache holds are read in turn.
#[test]
fn slots_are_given_back() {
    let misses = |smalls: u64| {
        let world = World::new(&StoreOptions::new(16 << 20));
        let read = |key: u64| assert!(world.store.get(world.ns, key).unwrap().is_some());
        let put = |keys: std::ops::Range<u64>, value: &[u8]| {
            for key in keys {
                world.device.put(world.ns, key, value).unwrap();
                read(key);
            }
        };
        put(100_000..100_000 + smalls, &[1; 40]);
        put(0..7000, &[2; 2000]);
        (0..3).for_each(|_| (0..7000).for_each(read));
        let before = world.gets();
        (0..7000).for_each(read);
        world.gets() - before
    };
    let (fresh, after_others) = (misses(0), misses(200_000));
    assert!(fresh < 70 && after_others < 350, "{fresh} and {after_others} misses");
}

/// Inverse of the zipfian distribution with 0.99 over `n` ranks, good enough to be skewed alike.
fn zipf(u: f64, n: u64) -> u64 {
    let exponent = 1.0 - 0.99;
    let total = ((n as f64).powf(exponent) - 1.0) / exponent;
    (((u * total * exponent + 1.0).powf(1.0 / exponent)) as u64 - 1).min(n - 1)
}

fn lru_misses(trace: &[u64], warm: usize, capacity: usize) -> u64 {
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    let mut order: VecDeque<(u64, u64)> = VecDeque::new();
    let mut misses = 0;
    for (now, key) in trace.iter().enumerate() {
        if last.insert(*key, now as u64).is_none() && now >= warm {
            misses += 1;
        }
        order.push_back((now as u64, *key));
        while last.len() > capacity {
            let (then, old) = order.pop_front().unwrap();
            if last.get(&old) == Some(&then) {
                last.remove(&old);
            }
        }
    }
    misses
}

/// Goal:   a record that would drive out everything else is read, and not kept.
/// Method: one of a third of the budget, read twice: the device is asked each time.
#[test]
fn what_is_too_large_is_not_kept() {
    let world = World::new(&StoreOptions::new(300 << 10));
    world.device.put(world.ns, 1u64, &[1; 100 << 10]).unwrap();
    let before = world.store.stats().used_bytes;
    (0..2).for_each(|_| assert_eq!(&world.store.get(world.ns, 1u64).unwrap().unwrap()[..], [1; 100 << 10]));
    assert_eq!(world.gets(), 2);
    assert!(world.store.stats().used_bytes < before + (50 << 10));
}
