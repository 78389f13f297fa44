//! Serializability: histories of real threads.
//!
//! Lives here:       many threads, what they found and did.
//! Lives elsewhere:  one transaction or plain call (`moves`), whether all have a serial order (`serial`).

use crate::long_keys::mixed;
use crate::moves::{Rng, Table, plainly, transact};
use crate::serial::{self, Access, Did, Record, Saw};
use crate::world::World;
use kaml::store::{Store, StoreOptions};
use kaml::{KeyBuf, KeyKind};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Runs random transactions and plain calls by many threads.
fn run(table: Table, store: &Store, threads: u64, rounds: u64, keys: u64) -> Vec<Record> {
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
                        plainly(store, table, id, &mut rng, keys)
                    } else {
                        store.run(|txn| transact(txn, table, id, &mut rng, keys, true))
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
///         later, whatever the grain of the locks and the length of keys, with evictions continuing.
/// Method: 8 threads on 150 records of up to 6 KB in a cache of two thirds of that; commits that take a while; the history
///         is checked, and the device holds a version that nobody is known to have replaced.
#[test]
fn histories_are_serializable() {
    let ms = Duration::from_millis;
    for (kind, early_release, durability_delay, records_per_lock, delay_us) in [
        (KeyKind::U64, false, ms(0), 1, 0),
        (KeyKind::U64, false, ms(0), 4, 0),
        (KeyKind::U64, true, ms(0), 1, 0),
        (KeyKind::U64, true, ms(0), 1, 300),
        (KeyKind::U64, true, ms(0), 4, 300),
        (KeyKind::U64, false, ms(3), 1, 0),
        (KeyKind::U64, false, ms(20), 4, 0),
        (KeyKind::Any, false, ms(0), 1, 0),
        (KeyKind::Ordered, true, ms(0), 1, 300),
        (KeyKind::Ordered, false, ms(3), 4, 0),
    ] {
        let cache = StoreOptions::new(300 << 10);
        let options = StoreOptions { early_release, durability_delay, records_per_lock, ..cache };
        let world = World::with_keys(kind, &options);
        let table = match kind {
            KeyKind::Any | KeyKind::Ordered => Table { name: mixed, ..world.ns.into() },
            _ => world.ns.into(),
        };
        world.controls.durable_delay_us.store(delay_us, Ordering::Relaxed);
        let mut history = run(table, &world.store, 8, 800, 150);
        world.store.flush().unwrap();
        // The last look, at the device itself, counts as one more reader.
        let last = |key| Access { key, saw: saw_on_device(&world, &(table.name)(key)), did: Did::Read };
        let end = history.iter().map(|record| record.span.1).max().unwrap();
        history.push(Record { id: 0, accesses: (0..150).map(last).collect(), span: (end + 1, end + 2) });
        if let Err(why) = serial::check(&history) {
            panic!(
                "{kind:?}, early {early_release}, durable after {durability_delay:?}, {records_per_lock} per lock: {why}"
            );
        }
        let all: Vec<&Access> = history.iter().flat_map(|record| &record.accesses).collect();
        let kinds: HashSet<_> = all.iter().map(|a| (std::mem::discriminant(&a.saw), a.did as u8)).collect();
        assert_eq!(kinds.len(), 7, "each way to find and do something that there is: {kinds:?}");
        let stats = world.store.stats();
        assert!(stats.eviction_count > 100, "{stats:?}");
    }
}

fn saw_on_device(world: &World, key: &KeyBuf) -> Saw {
    let value = world.device.get(world.ns, key).unwrap();
    value.map_or(Saw::Absent, |value| Saw::Version(u64::from_le_bytes(value[..8].try_into().unwrap())))
}
