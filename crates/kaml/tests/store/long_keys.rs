//! Keys of more than 16 bytes, mixed with others, in every mode of a store.
//!
//! Lives here:       plain calls, queues and transactions of one thread, memory, what is refused.
//! Lives elsewhere:  many threads (`history`), ranges (`ranges`), which use the names of here.

use crate::moves::Rng;
use kaml::store::{Store, StoreOptions, Update, WriteMode};
use kaml::{CreateOptions, Device, Error, KeyBuf, KeyKind, NamespaceId, NamespaceOptions, OpenOptions};
use std::collections::BTreeMap;
use std::time::Duration;

/// The key with a number, in the order of the numbers: some of at most 16 bytes, others of up to a few hundred.
pub(crate) fn mixed(number: u64) -> KeyBuf {
    let tail = "/and more of it".repeat(number as usize % 5 * (1 + number as usize % 7));
    KeyBuf::new(format!("{number:06}{tail}").as_bytes()).unwrap()
}

/// The number of such a key, or of an integer.
pub(crate) fn number_of(key: &KeyBuf) -> u64 {
    key.as_u64().unwrap_or_else(|| std::str::from_utf8(&key.as_bytes()[..6]).unwrap().parse().unwrap())
}

fn modes() -> Vec<(&'static str, StoreOptions)> {
    let small = || StoreOptions { lock_timeout: Duration::from_millis(100), ..StoreOptions::new(600 << 10) };
    let delay = Duration::from_millis(5);
    vec![
        ("strict", small()),
        ("early release", StoreOptions { early_release: true, ..small() }),
        ("delayed", StoreOptions { durability_delay: delay, ..small() }),
        ("write back", StoreOptions { write_mode: WriteMode::Back, ..small() }),
        ("write back, delayed", StoreOptions { write_mode: WriteMode::Back, durability_delay: delay, ..small() }),
        ("coarse locks", StoreOptions { write_mode: WriteMode::Back, records_per_lock: 16, ..small() }),
    ]
}

type Model = BTreeMap<KeyBuf, Vec<u8>>;

/// Random calls of every kind on some keys; the model has what they leave.
fn work(store: &Store, ns: NamespaceId, model: &mut Model, rng: &mut Rng, count: u64) {
    let mut queue = store.queue(8);
    let mut answers = Vec::new();
    for _ in 0..count {
        let key = mixed(rng.below(700));
        let value = kaml_testkit::bytes(rng.draw(), rng.below(4000) as usize);
        let was = model.get(&key).cloned();
        match rng.below(12) {
            0 | 1 => {
                store.put(ns, &key, &value).unwrap();
                model.insert(key, value);
            }
            2 => {
                store.delete(ns, &key).unwrap();
                model.remove(&key);
            }
            3 => assert_eq!(store.exists(ns, &key).unwrap(), was.is_some()),
            4 => {
                let mut buffer = vec![1];
                assert_eq!(store.get_into(ns, &key, &mut buffer).unwrap(), was.is_some());
                assert!(was.is_none_or(|was| was == buffer));
            }
            5 => {
                let keys: Vec<KeyBuf> = (0..20).map(|_| mixed(rng.below(700))).collect();
                let found = store.get_many(ns, &keys).unwrap();
                for (key, found) in keys.iter().zip(found) {
                    assert_eq!(found.as_deref(), model.get(key).map(Vec::as_slice), "{key}");
                }
            }
            6 => {
                queue.put(1, ns, &key, &value);
                queue.update(2, ns, &mixed(701), |_| Update::Keep);
                while queue.in_flight() > 0 {
                    queue.poll(true, &mut answers);
                }
                answers.drain(..).for_each(|answer| drop(answer.result.unwrap()));
                queue.update(3, ns, &key, |old| Update::Store([old.unwrap(), b"!"].concat()));
                while queue.in_flight() > 0 {
                    queue.poll(true, &mut answers);
                }
                answers.drain(..).for_each(|answer| drop(answer.result.unwrap()));
                model.insert(key, [value, b"!".to_vec()].concat());
            }
            7 => {
                queue.get(3, ns, &key);
                queue.poll(true, &mut answers);
                assert_eq!(answers.pop().unwrap().result.unwrap().as_deref(), was.as_deref());
            }
            _ => {
                let others: Vec<KeyBuf> = (0..rng.below(6)).map(|_| mixed(rng.below(700))).collect();
                let mut own = model.clone();
                let mut txn = store.begin().unwrap();
                txn.expect(others.iter().map(|key| (ns, key))).unwrap();
                for other in others.iter().chain([&key]) {
                    match own.contains_key(other) {
                        true if rng.below(3) == 0 => {
                            txn.delete(ns, other).unwrap();
                            own.remove(other);
                        }
                        true => {
                            txn.update(ns, other, &value).unwrap();
                            own.insert(other.clone(), value.clone());
                        }
                        false => {
                            let refused = txn.update(ns, other, b"x").unwrap_err();
                            assert!(matches!(&refused, Error::Conflict { key, .. } if key == other), "{refused}");
                            txn.insert(ns, other, &value).unwrap();
                            own.insert(other.clone(), value.clone());
                        }
                    }
                    assert_eq!(txn.read(ns, other).unwrap().as_deref(), own.get(other).map(Vec::as_slice));
                }
                match rng.below(4) {
                    0 => txn.abort().unwrap(),
                    1 => txn.commit_durable().unwrap(),
                    _ => txn.commit().unwrap(),
                }
                if txn.state() == kaml::store::XcbState::Committed {
                    *model = own;
                }
            }
        }
    }
}

fn compare(store: &Store, ns: NamespaceId, model: &Model, mode: &str) {
    for number in 0..700 {
        let key = mixed(number);
        assert_eq!(store.get(ns, &key).unwrap().as_deref(), model.get(&key).map(Vec::as_slice), "{mode}: {key}");
    }
}

/// Goal:   records with long keys are what was last put, in every mode, when they come from the cache and when they were evicted, after a
///         flush on the device, and after both were opened again.
/// Method: random calls of every kind against a model, in a cache of a quarter of the records; each mode, unordered and ordered.
#[test]
fn long_keys_are_keys() {
    let dir = tempfile::tempdir().unwrap();
    for (mode, options) in modes() {
        for kind in [KeyKind::Any, KeyKind::Ordered] {
            let path = dir.path().join(format!("{mode} {kind:?}"));
            let device = Device::create(&path, &CreateOptions::new(96 << 20)).unwrap();
            let ns = device.create_namespace("n", &NamespaceOptions::records(kind)).unwrap();
            let (mut model, mut rng) = (Model::new(), Rng::new(11));
            let store = Store::open(device.clone(), &options).unwrap();
            work(&store, ns, &mut model, &mut rng, 1500);
            compare(&store, ns, &model, mode);
            store.flush().unwrap();
            let stats = store.stats();
            assert!(stats.eviction_count > 500 && stats.used_bytes <= stats.cache_bytes, "{mode}: {stats:?}");
            assert_eq!(stats.dirty_bytes, 0, "{mode}");
            for number in 0..700 {
                let key = mixed(number);
                assert_eq!(device.get(ns, &key).unwrap().as_ref(), model.get(&key), "{mode}: {key} on the device");
            }
            work(&store, ns, &mut model, &mut rng, 200);
            drop(store);
            device.close().unwrap();
            let device = Device::open(&path, &OpenOptions::default()).unwrap();
            assert_eq!(device.namespaces()[0].record_count, model.len() as u64, "{mode}");
            let store = Store::open(device, &options).unwrap();
            compare(&store, ns, &model, mode);
        }
    }
}

/// Goal:   the memory of long keys that are not flushed counts, and is free when they are.
/// Method: as many dirty records with keys of 1000 bytes and no values, which are then flushed, or their namespace deleted.
#[test]
fn dirty_keys_count() {
    for is_deleted in [false, true] {
        let device = Device::in_memory(&CreateOptions::new(96 << 20)).unwrap();
        let ns = device.create_namespace("n", &NamespaceOptions::records(KeyKind::Any)).unwrap();
        let options = StoreOptions { write_mode: WriteMode::Back, ..StoreOptions::new(8 << 20) };
        let store = Store::open(device, &options).unwrap();
        let name = |number: u64| format!("{number:01000}").into_bytes();
        (0..1000).for_each(|number| store.put(ns, &name(number), b"").unwrap());
        let full = store.stats();
        assert!(full.dirty_bytes > 1_000_000 && full.used_bytes > 1_000_000, "{full:?}");
        match is_deleted {
            true => store.delete_namespace(ns).unwrap(),
            false => store.flush().unwrap(),
        }
        let clean = store.stats();
        assert_eq!(clean.dirty_bytes, 0);
        assert!(clean.used_bytes < full.used_bytes - 1_000_000, "{clean:?}");
    }
}

/// Goal:   keys that no namespace takes, or not this one, are refused by every call, and take nothing along.
/// Method: no bytes, one byte too many, and more than 16 where the namespace takes no more; in every mode; a good call after each.
#[test]
fn bad_keys_are_refused() {
    for (mode, options) in modes() {
        let device = Device::in_memory(&CreateOptions::new(96 << 20)).unwrap();
        let any = device.create_namespace("any", &NamespaceOptions::records(KeyKind::Any)).unwrap();
        let bytes = device.create_namespace("bytes", &NamespaceOptions::records(KeyKind::Bytes)).unwrap();
        let store = Store::open(device, &options).unwrap();
        let (long, too_long) = ([7; 17], [7; 1025]);
        for (ns, key) in [(any, &[][..]), (any, &too_long), (bytes, &[]), (bytes, &long)] {
            let mut queue = store.queue(4);
            let mut answers = Vec::new();
            queue.get(1, ns, key);
            queue.put(2, ns, key, b"v");
            queue.delete(3, ns, key);
            queue.update(4, ns, key, |_| Update::Store(vec![1]));
            while queue.in_flight() > 0 {
                queue.poll(true, &mut answers);
            }
            assert_eq!(answers.len(), 4);
            let mut results: Vec<Result<(), Error>> =
                answers.into_iter().map(|answer| answer.result.map(drop)).collect();
            results.push(store.get(ns, key).map(drop));
            results.push(store.exists(ns, key).map(drop));
            results.push(store.get_into(ns, key, &mut Vec::new()).map(drop));
            results.push(store.get_many(ns, [b"good".as_slice(), key, b"too"]).map(drop));
            results.push(store.put(ns, key, b"v"));
            results.push(store.delete(ns, key));
            results.push(store.run(|txn| txn.read(ns, key).map(drop)));
            results.push(store.run(|txn| txn.upsert(ns, key, b"v")));
            for (at, result) in results.into_iter().enumerate() {
                assert!(matches!(result, Err(Error::BadKey(_))), "{mode}: call {at}, {} bytes: {result:?}", key.len());
            }
            store.put(ns, "good", b"v").unwrap();
            assert_eq!(store.get(ns, "good").unwrap().as_deref(), Some(&b"v"[..]), "{mode}");
            store.flush().unwrap();
        }
    }
}

/// Goal:   an error about a lock shows the whole key.
/// Method: two transactions request the record of a long key.
#[test]
fn errors_show_the_key() {
    let device = Device::in_memory(&CreateOptions::new(96 << 20)).unwrap();
    let ns = device.create_namespace("n", &NamespaceOptions::records(KeyKind::Ordered)).unwrap();
    let store = Store::open(device, &modes()[0].1).unwrap();
    let name = "a key of more than sixteen bytes";
    let (mut first, mut second) = (store.begin().unwrap(), store.begin().unwrap());
    first.upsert(ns, name, b"1").unwrap();
    let refused = second.read(ns, name).unwrap_err();
    assert!(matches!(&refused, Error::LockTimeout { key, .. } if key.as_bytes() == name.as_bytes()), "{refused}");
    first.commit().unwrap();
}
