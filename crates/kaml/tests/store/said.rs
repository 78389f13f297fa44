//! What transactions reported before a crash, and whether what exists afterwards agrees.

use crate::moves::{Rng, transact};
use crate::serial::{self, Access, Did, Record, Saw};
use kaml::store::{Store, StoreOptions};
use kaml::{Device, NamespaceId};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

fn writes(record: &Record) -> impl Iterator<Item = &Access> {
    record.accesses.iter().filter(|access| access.did == Did::Write)
}

/// What children reported: transactions by id, and those that completed.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) records: HashMap<u64, Record>,
    pub(crate) answered: HashSet<u64>,
    /// Those that are done and need not be durable.
    done: Vec<u64>,
    /// How many of these were done when a flush began, by its name.
    flushes: HashMap<u64, usize>,
}

impl Said {
    pub(crate) fn hear(&mut self, line: &str) {
        let mut words = line.split(' ');
        let (Some(kind), Some(id)) = (words.next(), words.next().and_then(|id| id.parse().ok())) else { return };
        match kind {
            "A" => drop(self.answered.insert(id)),
            "D" => self.done.push(id),
            "B" => drop(self.flushes.insert(id, self.done.len())),
            "F" => self.answered.extend(&self.done[..self.flushes[&id]]),
            "T" => {
                let found = words.filter(|w| !w.is_empty()).map(|word| {
                    let numbers: Vec<u64> = word.split(':').map(|n| n.parse().unwrap()).collect();
                    let saw = if numbers[1] == 0 { Saw::Absent } else { Saw::Version(numbers[1]) };
                    Access { key: numbers[0], saw, did: if numbers[2] == 1 { Did::Write } else { Did::Read } }
                });
                let record = Record { id, accesses: found.collect(), span: (0, 1) };
                self.records.insert(id, record);
            }
            _ => {}
        }
    }

    /// What was not flushed by a child that was killed need not exist.
    pub(crate) fn forget_flushes(&mut self) {
        self.done.clear();
        self.flushes.clear();
    }

    /// The transactions whose versions lead to what the device has now.
    fn survivors(&self, device: &Device, ns: NamespaceId, keys: u64) -> HashSet<u64> {
        let mut chains: HashSet<(u64, u64)> = HashSet::new();
        for key in 0..keys {
            let last = device.get(ns, key).unwrap();
            let mut version = last.map(|value| u64::from_le_bytes(value[..8].try_into().unwrap()));
            while let Some(id) = version {
                assert!(chains.insert((key, id)), "versions of key {key} go in a circle");
                let mut writes = writes(&self.records[&id]);
                let replaced = writes.find(|access| access.key == key).expect("it wrote this key").saw;
                version = if let Saw::Version(id) = replaced { Some(id) } else { None };
            }
        }
        let survivors: HashSet<u64> = chains.iter().map(|(_, id)| *id).collect();
        for id in &survivors {
            for Access { key, .. } in writes(&self.records[id]) {
                assert!(chains.contains(&(*key, *id)), "transaction {id} exists, but not its write of key {key}");
            }
        }
        survivors
    }

    /// Compares with the first `keys` keys of a device.
    pub(crate) fn check(&self, device: &Device, ns: NamespaceId, keys: u64) {
        let survivors = self.survivors(device, ns, keys);
        let mut seen = Vec::new();
        for (id, record) in &self.records {
            let wrote = writes(record).next().is_some();
            let answered = self.answered.contains(id);
            assert!(!(wrote && answered) || survivors.contains(id), "acknowledged, but gone: {record:?}");
            if survivors.contains(id) || answered {
                for access in &record.accesses {
                    let is_there = |id| survivors.contains(&id);
                    let there = if let Saw::Version(id) = access.saw { is_there(id) } else { true };
                    assert!(there, "{record:?} read a version that is gone: {access:?}");
                }
                // All at once on the clock: what is checked is the order of dependencies.
                seen.push(Record { span: (0, 1), ..record.clone() });
            }
        }
        serial::check(&seen).unwrap();
    }
}

/// Threads that run transactions and report them, until the power is gone.
pub(crate) struct Sayers {
    is_delayed: bool,
    next: AtomicU64,
    said: Mutex<Said>,
    /// Transactions that are done and need not be durable.
    done: Mutex<Vec<u64>>,
}

impl Sayers {
    /// On a store that was opened with these options.
    pub(crate) fn new(options: &StoreOptions) -> Sayers {
        let is_delayed = !options.durability_delay.is_zero();
        Sayers { is_delayed, next: AtomicU64::new(1), said: Mutex::default(), done: Mutex::default() }
    }

    /// What one of them does, with the first so many keys of a namespace.
    pub(crate) fn work(
        &self,
        store: &Store,
        (ns, keys): (NamespaceId, u64),
        rng: &mut Rng,
        is_over: impl Fn() -> bool,
    ) {
        while !is_over() {
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            let Ok(mut txn) = store.begin() else { continue };
            // A read that fails, or a lock that is not given, leaves nothing.
            let Ok(accesses) = transact(&mut txn, ns, id, rng, keys, false) else { continue };
            self.said.lock().unwrap().records.insert(id, Record { id, accesses, span: (0, 1) });
            let waits = !self.is_delayed || rng.below(6) == 0;
            if (if waits { txn.commit_durable() } else { txn.commit() }).is_err() {
                continue;
            }
            if waits {
                self.said.lock().unwrap().answered.insert(id);
                continue;
            }
            self.done.lock().unwrap().push(id);
            if rng.below(8) == 0 {
                let before: Vec<u64> = self.done.lock().unwrap().clone();
                if store.flush().is_ok() {
                    self.said.lock().unwrap().answered.extend(before);
                }
            }
        }
    }

    /// What all of them reported.
    pub(crate) fn said(self) -> Said {
        self.said.into_inner().unwrap()
    }
}
