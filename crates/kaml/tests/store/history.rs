//! Serializability: histories of real threads, and a checker of their dependencies.
//!
//! Every write is unique: a value begins with the id of the transaction that wrote it, which read what it replaced.
//! So the order of a key's versions is known, and with it who depends on whom: a reader on the writer of what it
//! read, a writer on the writer and the readers of what it replaced, and everybody on who was answered before it
//! began. The history is (strictly) serializable when that has no cycle.

use crate::world::{Rng, World};
use kaml::NamespaceId;
use kaml::store::{Store, StoreError, StoreOptions, Transaction, Value};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The version of a key that nobody has written.
pub(crate) const NONE: u64 = 0;

/// What a transaction read and wrote: keys, the versions that it found, and whether it replaced them.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) id: u64,
    pub(crate) found: Vec<(u64, u64, bool)>,
    /// When it began and when it was answered, on one clock.
    pub(crate) span: (u64, u64),
}

/// The id that a value begins with.
pub(crate) fn version(value: &Option<Value>) -> u64 {
    value.as_ref().map_or(NONE, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
}

/// Fails with the reason when a history has no serial order.
pub(crate) fn check(history: &[Record]) -> Result<(), String> {
    let place: HashMap<u64, usize> = history.iter().enumerate().map(|(at, record)| (record.id, at)).collect();
    let mut next: HashMap<(u64, u64), usize> = HashMap::new();
    for (at, record) in history.iter().enumerate() {
        for (key, found, _) in record.found.iter().filter(|(.., wrote)| *wrote) {
            if let Some(other) = next.insert((*key, *found), at) {
                return Err(format!("lost update of key {key}: {record:?} and {:?}", history[other]));
            }
        }
    }
    let ticks = 1 + history.iter().map(|record| record.span.1).max().unwrap_or(0) as usize;
    let mut edges: Vec<Vec<usize>> = vec![Vec::new(); history.len() + ticks];
    for tick in 1..ticks {
        edges[history.len() + tick - 1].push(history.len() + tick);
    }
    for (at, record) in history.iter().enumerate() {
        edges[history.len() + record.span.0 as usize].push(at);
        edges[at].push(history.len() + record.span.1 as usize);
        for (key, found, wrote) in &record.found {
            if *found != NONE {
                let writer = place.get(found).ok_or(format!("{record:?} read a version that nobody committed"))?;
                edges[*writer].push(at);
            }
            if let Some(writer) = next.get(&(*key, *found)).filter(|writer| **writer != at || !wrote) {
                edges[at].push(*writer);
            }
        }
    }
    match unordered(&edges) {
        0 => Ok(()),
        count => Err(format!("{count} transactions and moments in or behind cycles")),
    }
}

/// How many nodes have no place in a topological order.
fn unordered(edges: &[Vec<usize>]) -> usize {
    let mut incoming = vec![0; edges.len()];
    edges.iter().flatten().for_each(|to| incoming[*to] += 1);
    let mut ready: Vec<usize> = (0..edges.len()).filter(|node| incoming[*node] == 0).collect();
    let mut done = 0;
    while let Some(node) = ready.pop() {
        done += 1;
        for to in &edges[node] {
            incoming[*to] -= 1;
            if incoming[*to] == 0 {
                ready.push(*to);
            }
        }
    }
    edges.len() - done
}

/// A random transaction: up to four keys, each read, or read and replaced in one of two ways.
pub(crate) fn transact(
    txn: &mut Transaction,
    ns: NamespaceId,
    id: u64,
    rng: &mut Rng,
    keys: u64,
) -> Result<Vec<(u64, u64, bool)>, StoreError> {
    let read_only = rng.below(4) == 0;
    let mut found: Vec<(u64, u64, bool)> = Vec::new();
    for _ in 0..1 + rng.below(4) {
        let key = rng.below(keys) * rng.below(keys) / keys; // some are hotter
        if found.iter().any(|(other, ..)| *other == key) {
            continue;
        }
        let wrote = !read_only && rng.below(3) > 0;
        let now = if wrote && rng.below(2) == 0 { txn.read_for_update(ns, key)? } else { txn.read(ns, key)? };
        if wrote {
            let mut value = vec![id as u8; 8 + rng.below(6000) as usize];
            value[..8].copy_from_slice(&id.to_le_bytes());
            if now.is_some() { txn.update(ns, key, &value)? } else { txn.insert(ns, key, &value)? }
        }
        found.push((key, version(&now), wrote));
    }
    Ok(found)
}

/// Runs random transactions and plain reads by many threads and checks their history.
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
                    let found = if rng.below(4) == 0 {
                        let key = rng.below(keys);
                        vec![(key, version(&store.get(world.ns, key).unwrap()), false)]
                    } else {
                        store.run(|txn| transact(txn, world.ns, id, &mut rng, keys)).unwrap()
                    };
                    own.push(Record { id, found, span: (begin, clock.fetch_add(1, Ordering::SeqCst)) });
                }
                history.lock().unwrap().extend(own);
            });
        }
    });
    history.into_inner().unwrap()
}

/// Goal:   transactions and plain reads are strictly serializable, strictly locked or released early, whatever the
///         grain of the locks, with evictions going on.
/// Method: 8 threads on 150 records of up to 6 KB in a cache of two thirds of that; commits that take a while; the history
///         is checked, and the device holds the last versions.
#[test]
fn histories_are_serializable() {
    for (early_release, records_per_lock, delay_us) in
        [(false, 1, 0), (false, 4, 0), (true, 1, 0), (true, 1, 300), (true, 4, 300)]
    {
        let options = StoreOptions { early_release, records_per_lock, ..StoreOptions::new(300 << 10) };
        let world = World::new(&options);
        world.controls.durable_delay_us.store(delay_us, Ordering::Relaxed);
        let history = run(&world, &world.store, 8, 1500, 150);
        if let Err(why) = check(&history) {
            panic!("early {early_release}, {records_per_lock} per lock, delay {delay_us}: {why}");
        }
        let stats = world.store.stats();
        assert!(stats.eviction_count > 100, "{stats:?}");
        let replaced: std::collections::HashSet<_> =
            history.iter().flat_map(|r| &r.found).filter(|f| f.2).map(|f| (f.0, f.1)).collect();
        for record in &history {
            for (key, _, _) in record.found.iter().filter(|f| f.2 && !replaced.contains(&(f.0, record.id))) {
                let last = world.device.get(world.ns, *key).unwrap().unwrap();
                assert_eq!(last[..8], record.id.to_le_bytes(), "the device has the last version of key {key}");
            }
        }
    }
}

/// Goal:   the checker finds what is wrong.
/// Method: a lost update, a write skew, a read of the past, and a dirty read, each as a history of its own.
#[test]
fn the_checker_finds_anomalies() {
    let record = |id, found: &[(u64, u64, bool)], span| Record { id, found: found.to_vec(), span };
    assert!(check(&[record(1, &[(0, 0, true)], (0, 5)), record(2, &[(0, 1, true)], (1, 6))]).is_ok());
    assert!(check(&[record(1, &[(0, 0, true)], (0, 5)), record(2, &[(0, 0, true)], (1, 6))]).is_err());
    let skew = [record(1, &[(0, 0, false), (1, 0, true)], (0, 5)), record(2, &[(1, 0, false), (0, 0, true)], (1, 6))];
    assert!(check(&skew).is_err());
    assert!(check(&[record(1, &[(0, 0, true)], (0, 1)), record(2, &[(0, 0, false)], (2, 3))]).is_err());
    assert!(check(&[record(1, &[(0, 0, true)], (0, 3)), record(2, &[(0, 0, false)], (2, 4))]).is_ok());
    assert!(check(&[record(2, &[(0, 77, false)], (0, 3))]).is_err());
}
