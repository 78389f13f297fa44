//! The store: histories, flash that cannot be read, power cuts and what cannot be made durable.

use crate::explore::{device_on, explore};
use crate::moves::{Rng, plainly, saw, transact, value_of};
use crate::said::Sayers;
use crate::serial::{self, Access, Did, Record, Saw};
use kaml::store::{Store, StoreAnswer, StoreOptions, Update, WriteMode};
use kaml::{Batch, Device, KeyKind, MergePolicy, NamespaceId, NamespaceKind, NamespaceOptions, VersionOptions};
use kaml_device::Core;
use kaml_sim::{Faults, Scenario, SimMedium, Small};
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::AddAssign;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const KEYS: u64 = 30;
/// The writer of the first version of each.
const FILLED: u64 = 7;
/// Calls of each thread.
const ROUNDS: u64 = 16;
/// Operations in flight of a thread with a queue.
const IN_FLIGHT: usize = 4;
/// Operations of the flash before a cut, at most.
const CUT_MAX: u64 = 120;

/// What happened in runs, to see that they meet what they are made for.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    evictions: u64,
    lock_waits: u64,
    deadlocks: u64,
    lost_commits: u64,
    failed: u64,
    answered: u64,
}

impl Met {
    fn of(store: &Store) -> Met {
        let stats = store.stats();
        Met {
            evictions: stats.eviction_count,
            lock_waits: stats.lock_wait_count,
            deadlocks: stats.deadlock_count,
            lost_commits: stats.lost_commit_count,
            ..Met::default()
        }
    }
}

impl AddAssign for Met {
    fn add_assign(&mut self, other: Met) {
        self.evictions += other.evictions;
        self.lock_waits += other.lock_waits;
        self.deadlocks += other.deadlocks;
        self.lost_commits += other.lost_commits;
        self.failed += other.failed;
        self.answered += other.answered;
    }
}

/// Flash with an empty namespace.
fn formatted(seed: u64) -> (SimMedium, NamespaceId) {
    let Scenario { geometry, options, .. } = Scenario::small(Small::Puts, seed);
    let flash = SimMedium::new(geometry, options).unwrap();
    Core::format(&flash).unwrap();
    let device = device_on(&flash);
    // In one seed of five all versions of the records are kept.
    let merge_when_low = Some(MergePolicy { keep_last: 1, ..MergePolicy::default() });
    let versions = VersionOptions { buffer_bytes: 64 << 10, merge_when_low, ..VersionOptions::default() };
    let versions = seed.is_multiple_of(5).then_some(versions);
    let kind = versions
        .map_or(NamespaceKind::Records(KeyKind::U64), |versions| NamespaceKind::Versions(KeyKind::U64, versions));
    let options = NamespaceOptions::new(kind);
    let ns = device.create_namespace("n", &options).unwrap();
    device.close().unwrap();
    flash.reopen();
    (flash, ns)
}

/// A store of a kind that the seed determines. Locks are waited for without end, so a deadlock nobody finds is noticed.
fn options(rng: &mut Rng) -> StoreOptions {
    let cache_bytes = [82 << 10, 90 << 10, 200 << 10][rng.below(3) as usize];
    let cache = StoreOptions {
        lock_timeout: Duration::from_secs(1 << 20),
        transactions_max: 16,
        records_per_lock: [1, 1, 4][rng.below(3) as usize],
        ..StoreOptions::new(cache_bytes)
    };
    match rng.below(4) {
        0 => cache,
        1 => StoreOptions { early_release: true, ..cache },
        2 => {
            let write_mode = [WriteMode::Through, WriteMode::Back][rng.below(2) as usize];
            StoreOptions { write_mode, durability_delay: Duration::from_micros(1 + rng.below(40)), ..cache }
        }
        _ => StoreOptions { write_mode: WriteMode::Back, early_release: rng.below(2) == 0, ..cache },
    }
}

/// A history that several threads write.
#[derive(Default)]
struct History {
    clock: AtomicU64,
    records: Mutex<Vec<Record>>,
    failed: AtomicU64,
}

impl History {
    /// Begins with a record of each key, most of what the cache may hold or more.
    fn fill(&self, device: &Device, ns: NamespaceId) {
        let mut batch = Batch::new();
        for key in 0..KEYS {
            batch.put(ns, key, &[FILLED.to_le_bytes().as_slice(), &[0; 4000]].concat());
        }
        let begin = self.now();
        device.write(&batch).unwrap();
        self.add(FILLED, begin, (0..KEYS).map(|key| Access { key, saw: Saw::Absent, did: Did::Write }).collect());
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn add(&self, id: u64, begin: u64, accesses: Vec<Access>) {
        let span = (begin, self.now());
        self.records.lock().unwrap().push(Record { id, accesses, span });
    }

    /// Transactions and plain calls, one after the other. Reads may fail, if that is expected.
    fn call(&self, store: &Store, ns: NamespaceId, thread: u64, rng: &mut Rng, may_fail: bool) {
        for round in 1..=ROUNDS {
            if rng.below(8) == 0 {
                store.flush().unwrap();
            }
            let (id, begin) = (thread << 32 | round, self.now());
            let accesses = match rng.below(3) {
                0 => plainly(store, ns, id, rng, KEYS),
                _ => store.run(|txn| transact(txn, ns, id, rng, KEYS, true)),
            };
            match accesses {
                Ok(accesses) => self.add(id, begin, accesses),
                Err(error) => {
                    assert!(may_fail && is_unreadable(&error), "{error}");
                    self.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Plain reads of a few records that many change.
    fn watch(&self, store: &Store, ns: NamespaceId, thread: u64, rng: &mut Rng) {
        for round in 1..=4 * ROUNDS {
            let (key, begin) = (rng.below(KEYS / 5), self.now());
            let saw = saw(&store.get(ns, key).unwrap());
            self.add(thread << 32 | round, begin, vec![Access { key, saw, did: Did::Read }]);
        }
    }

    /// Operations on single records, several of them in flight.
    fn queue(&self, store: &Store, ns: NamespaceId, thread: u64, rng: &mut Rng) {
        let mut queue = store.queue(8);
        let (mut begun, mut answers) = (HashMap::new(), Vec::new());
        for round in 1..=ROUNDS {
            let (id, key) = (thread << 32 | round, rng.below(KEYS));
            let (value, begin) = (value_of(id, rng), self.now());
            let found = Rc::new(Cell::new(Saw::Unknown));
            let did = match rng.below(5) {
                0 => {
                    queue.delete(id, ns, key);
                    Did::Delete
                }
                1 => {
                    queue.put(id, ns, key, &value);
                    Did::Write
                }
                2 | 3 => {
                    let found = found.clone();
                    queue.update(id, ns, key, move |old| {
                        found.set(old.map_or(Saw::Absent, version));
                        Update::Store(value)
                    });
                    Did::Write
                }
                _ => {
                    queue.get(id, ns, key);
                    Did::Read
                }
            };
            begun.insert(id, (begin, key, did, found));
            while queue.in_flight() >= IN_FLIGHT || round == ROUNDS && queue.in_flight() > 0 {
                queue.poll(true, &mut answers);
                for StoreAnswer { token, result } in answers.drain(..) {
                    let (begin, key, did, found) = begun.remove(&token).unwrap();
                    let value = result.unwrap();
                    let saw = if did == Did::Read { saw(&value) } else { found.get() };
                    self.add(token, begin, vec![Access { key, saw, did }]);
                }
            }
        }
    }

    /// Checks it, with what the device itself has as one more reader after all others.
    fn check(self, device: &Device, ns: NamespaceId, options: &StoreOptions) {
        let seen = |key| device.get(ns, key).unwrap().map_or(Saw::Absent, |value| version(&value));
        let accesses = (0..KEYS).map(|key| Access { key, saw: seen(key), did: Did::Read }).collect();
        self.add(0, self.now(), accesses);
        if let Err(why) = serial::check(&self.records.into_inner().unwrap()) {
            panic!("{options:?}: {why}");
        }
    }
}

fn version(value: &[u8]) -> Saw {
    Saw::Version(u64::from_le_bytes(value[..8].try_into().unwrap()))
}

fn is_unreadable(error: &kaml::Error) -> bool {
    matches!(error, kaml::Error::ReadFailed { .. } | kaml::Error::Failed(_) | kaml::Error::NoSpace { .. })
}

/// Goal:   transactions, plain reads, blind puts and deletes, and operations in flight are strictly serializable in every mode;
///         nobody sleeps forever.
/// Method: for each seed a kind of store, two to six threads and an interleaving of all their steps and of the device's; the
///         history and what the device has in the end are checked.
#[test]
fn histories_are_serializable() {
    let met = explore(400, |seed| {
        let mut rng = Rng::new(seed);
        let (flash, ns) = formatted(seed);
        let (device, options, history) = (device_on(&flash), options(&mut rng), History::default());
        history.fill(&device, ns);
        let store = Store::open(device.clone(), &options).unwrap();
        let (threads, queues, watchers) = (2 + rng.below(3), rng.below(2), rng.below(2));
        shuttle::thread::scope(|scope| {
            for thread in 1..=threads + queues + watchers {
                let (store, history) = (&store, &history);
                let mut rng = Rng::new(seed << 8 | thread);
                scope.spawn(move || match thread {
                    thread if thread <= threads => history.call(store, ns, thread, &mut rng, false),
                    thread if thread <= threads + queues => history.queue(store, ns, thread, &mut rng),
                    thread => history.watch(store, ns, thread, &mut rng),
                });
            }
        });
        store.flush().unwrap();
        history.check(&device, ns, &options);
        let met = Met::of(&store);
        drop(store);
        device.close().unwrap();
        met
    });
    if let Some(met) = met {
        assert!(met.evictions > 100 && met.lock_waits > 1000 && met.deadlocks > 20, "{met:?}");
    }
}

/// Goal:   where flash cannot be read only the call is failed that needed it; the others stay strictly serializable.
/// Method: the same threads on flash that refuses one read in eight for once.
#[test]
fn unreadable_flash_fails_no_others() {
    let met = explore(200, |seed| {
        let mut rng = Rng::new(seed);
        let (flash, ns) = formatted(seed);
        let (device, options, history) = (device_on(&flash), options(&mut rng), History::default());
        history.fill(&device, ns);
        flash.set_faults(Faults { unreadable_ppm: 125_000, ..Faults::default() });
        let store = Store::open(device.clone(), &options).unwrap();
        shuttle::thread::scope(|scope| {
            for thread in 1..=3 {
                let (store, history) = (&store, &history);
                let mut rng = Rng::new(seed << 8 | thread);
                scope.spawn(move || history.call(store, ns, thread, &mut rng, true));
            }
        });
        store.flush().unwrap();
        flash.set_faults(Faults::default());
        let met = Met { failed: history.failed.load(Ordering::Relaxed), ..Met::of(&store) };
        history.check(&device, ns, &options);
        met
    });
    if let Some(met) = met {
        assert!(met.failed > 50 && met.evictions > 50, "{met:?}");
    }
}

/// Goal:   after a power cut, or after the device can make nothing durable any more, every acknowledged transaction exists, all
///         others exist whole or not at all, and nothing that exists or completed had read from one that is gone.
/// Method: for each seed a kind of store and threads until the cut, at a random operation of the flash; in one seed of two ring writes,
///         roots and flushes fail before. What the device has after it is opened again is followed back (`said`).
#[test]
fn answered_transactions_survive() {
    let met = explore(400, |seed| {
        let mut rng = Rng::new(seed);
        let not_durable_ppm = [0, 5000][rng.below(2) as usize];
        let (flash, ns) = formatted(seed);
        let options = StoreOptions { records_per_lock: 1, ..options(&mut rng) };
        let sayers = Sayers::new(&options);
        let device = device_on(&flash);
        let store = Store::open(device.clone(), &options).unwrap();
        flash.set_faults(Faults { not_durable_ppm, ..Faults::default() });
        flash.cut_after(1 + rng.below(CUT_MAX));
        shuttle::thread::scope(|scope| {
            for thread in 1..=4 {
                let (flash, store, device, sayers) = (&flash, &store, &device, &sayers);
                let mut rng = Rng::new(seed << 8 | thread);
                let is_over = move || flash.is_cut() || device.stopped().is_some();
                scope.spawn(move || sayers.work(store, (ns, KEYS), &mut rng, is_over));
            }
        });
        let mut met = Met::of(&store);
        drop((store, device));
        if !flash.is_cut() {
            flash.cut(seed);
        }
        flash.power_on();
        flash.set_faults(Faults::default());
        let device = device_on(&flash);
        let said = sayers.said();
        said.check(&device, ns, KEYS);
        met.answered = said.answered.len() as u64;
        met
    });
    if let Some(met) = met {
        assert!(met.answered > 2000 && met.lock_waits > 1000 && met.lost_commits > 10, "{met:?}");
    }
}
