//! Serializability: histories of real threads.
//!
//! Lives here:       random transactions, plain reads, blind puts and deletes, and what they found and did.
//! Lives elsewhere:  whether that has a serial order (`serial`).

use crate::serial::{self, Access, Did, Record, Saw};
use crate::world::{Rng, World};
use kaml::NamespaceId;
use kaml::store::{Store, StoreError, StoreOptions, Transaction, Value};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a value says of who wrote it.
pub(crate) fn saw(value: &Option<Value>) -> Saw {
    value.as_ref().map_or(Saw::Absent, |value| Saw::Version(u64::from_le_bytes(value[..8].try_into().unwrap())))
}

/// A value that says who wrote it, of some length.
fn value_of(id: u64, rng: &mut Rng) -> Vec<u8> {
    let mut value = vec![id as u8; 8 + rng.below(6000) as usize];
    value[..8].copy_from_slice(&id.to_le_bytes());
    value
}

/// A random transaction: up to four keys, each read, or read and replaced in one of two ways, or, if it `may_delete`,
/// deleted now and then.
pub(crate) fn transact(
    txn: &mut Transaction,
    ns: NamespaceId,
    id: u64,
    rng: &mut Rng,
    keys: u64,
    may_delete: bool,
) -> Result<Vec<Access>, StoreError> {
    let read_only = rng.below(4) == 0;
    let mut found: Vec<Access> = Vec::new();
    for _ in 0..1 + rng.below(4) {
        let key = rng.below(keys) * rng.below(keys) / keys; // some are hotter
        if found.iter().any(|other| other.key == key) {
            continue;
        }
        let wrote = !read_only && rng.below(3) > 0;
        let now = if wrote && rng.below(2) == 0 { txn.read_for_update(ns, key)? } else { txn.read(ns, key)? };
        let did = match (wrote, &now) {
            (false, _) => Did::Read,
            (true, Some(_)) if may_delete && rng.below(4) == 0 => Did::Delete,
            (true, _) => Did::Write,
        };
        match (did, &now) {
            (Did::Read, _) => {}
            (Did::Delete, _) => txn.delete(ns, key)?,
            (Did::Write, Some(_)) => txn.update(ns, key, &value_of(id, rng))?,
            (Did::Write, None) => txn.insert(ns, key, &value_of(id, rng))?,
        }
        found.push(Access { key, saw: saw(&now), did });
    }
    Ok(found)
}

/// A plain call: reads a record, puts one, or deletes one, without looking.
fn plainly(store: &Store, ns: NamespaceId, id: u64, rng: &mut Rng, keys: u64) -> Result<Vec<Access>, StoreError> {
    let key = rng.below(keys);
    let (saw, did) = match rng.below(8) {
        0 => {
            store.delete(ns, key)?;
            (Saw::Unknown, Did::Delete)
        }
        1 | 2 => {
            store.put(ns, key, &value_of(id, rng))?;
            (Saw::Unknown, Did::Write)
        }
        _ => (saw(&store.get(ns, key)?), Did::Read),
    };
    Ok(vec![Access { key, saw, did }])
}

/// Runs random transactions and plain calls by many threads.
fn run(world: &World, store: &Store, threads: u64, rounds: u64, keys: u64) -> Vec<Record> {
    let (clock, history) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for thread in 1..=threads {
            let (clock, history) = (&clock, &history);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let mut own = Vec::new();
                for round in 1..=rounds {
                    let id = thread << 32 | round;
                    let begin = clock.fetch_add(1, Ordering::SeqCst);
                    let accesses = if rng.below(3) == 0 {
                        plainly(store, world.ns, id, &mut rng, keys)
                    } else {
                        store.run(|txn| transact(txn, world.ns, id, &mut rng, keys, true))
                    };
                    let accesses = accesses.unwrap();
                    own.push(Record { id, accesses, span: (begin, clock.fetch_add(1, Ordering::SeqCst)) });
                }
                history.lock().unwrap().extend(own);
            });
        }
    });
    history.into_inner().unwrap()
}

/// Goal:   transactions, plain reads, blind puts and deletes are strictly serializable, strictly locked, released early or durable
///         later, whatever the grain of the locks, with evictions going on.
/// Method: 8 threads on 150 records of up to 6 KB in a cache of two thirds of that; commits that take a while; the history
///         is checked, and the device holds a version that nobody is known to have replaced.
#[test]
fn histories_are_serializable() {
    let ms = Duration::from_millis;
    for (early_release, durability_delay, records_per_lock, delay_us) in [
        (false, ms(0), 1, 0),
        (false, ms(0), 4, 0),
        (true, ms(0), 1, 0),
        (true, ms(0), 1, 300),
        (true, ms(0), 4, 300),
        (false, ms(3), 1, 0),
        (false, ms(20), 4, 0),
    ] {
        let cache = StoreOptions::new(300 << 10);
        let options = StoreOptions { early_release, durability_delay, records_per_lock, ..cache };
        let world = World::new(&options);
        world.controls.durable_delay_us.store(delay_us, Ordering::Relaxed);
        let mut history = run(&world, &world.store, 8, 800, 150);
        world.store.flush().unwrap();
        // Who looks last, at the device itself, is one more reader.
        let last = |key| Access { key, saw: saw_on_device(&world, key), did: Did::Read };
        let end = history.iter().map(|record| record.span.1).max().unwrap();
        history.push(Record { id: 0, accesses: (0..150).map(last).collect(), span: (end + 1, end + 2) });
        if let Err(why) = serial::check(&history) {
            panic!("early {early_release}, durable after {durability_delay:?}, {records_per_lock} per lock: {why}");
        }
        let all: Vec<&Access> = history.iter().flat_map(|record| &record.accesses).collect();
        let kinds: HashSet<_> = all.iter().map(|a| (std::mem::discriminant(&a.saw), a.did as u8)).collect();
        assert_eq!(kinds.len(), 7, "each way to find and do something that there is: {kinds:?}");
        let stats = world.store.stats();
        assert!(stats.eviction_count > 100, "{stats:?}");
    }
}

fn saw_on_device(world: &World, key: u64) -> Saw {
    let value = world.device.get(world.ns, key).unwrap();
    value.map_or(Saw::Absent, |value| Saw::Version(u64::from_le_bytes(value[..8].try_into().unwrap())))
}
