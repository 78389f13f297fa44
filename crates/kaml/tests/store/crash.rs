//! Transactions across SIGKILL.
//!
//! A child process runs random transactions and says on a pipe, before each commit, what it read and is about to
//! write, and after it that it was answered. With delayed durability it says instead that it is done, and now and then that it
//! begins to flush, and that it has. It is killed in the middle; the parent opens the device and compares.

use crate::history;
use crate::serial::{self, Access, Did, Record, Saw};
use crate::world::Rng;
use kaml::store::{Store, StoreOptions};
use kaml::{CreateOptions, Device, KeyKind, NamespaceId, NamespaceOptions, OpenOptions};
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const KEYS: u64 = 60;
const THREADS: u64 = 8;
/// Names the device of the child; the test of that name does nothing without it.
const CHILD: &str = "KAML_TEST_CHILD";
const ROUND: &str = "KAML_TEST_ROUND";

/// How the store of a round commits.
pub(crate) fn options(round: u64) -> StoreOptions {
    let cache = StoreOptions::new(300 << 10);
    match round % 3 {
        0 => cache,
        1 => StoreOptions { early_release: true, ..cache },
        _ => StoreOptions { durability_delay: Duration::from_millis(2), ..cache },
    }
}

fn open(path: &Path) -> (Device, NamespaceId) {
    let device = Device::open(path, &OpenOptions::default()).unwrap();
    let ns = device.namespace("n").unwrap();
    (device, ns)
}

/// The child: transactions until it is killed. As a test of its own it does nothing.
#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let round: u64 = std::env::var(ROUND).unwrap().parse().unwrap();
    let options = options(round);
    let is_delayed = !options.durability_delay.is_zero();
    let (device, ns) = open(Path::new(&path));
    let store = Store::open(device, &options).unwrap();
    let next = AtomicU64::new(round << 32 | 1);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, next) = (&store, &next);
            scope.spawn(move || {
                let mut rng = Rng::new(round << 8 | thread);
                loop {
                    let id = next.fetch_add(1, Ordering::Relaxed);
                    let mut txn = store.begin().unwrap();
                    match history::transact(&mut txn, ns, id, &mut rng, KEYS, false) {
                        Ok(found) => {
                            say(&format!("T {id} {}", found.iter().map(word).collect::<Vec<_>>().join(" ")));
                            txn.commit().unwrap();
                            say(&format!("{} {id}", if is_delayed { "D" } else { "A" }));
                            if is_delayed && rng.below(8) == 0 {
                                say(&format!("B {id}"));
                                store.flush().unwrap();
                                say(&format!("F {id}"));
                            }
                        }
                        Err(error) => assert!(error.is_retryable(), "{error}"),
                    }
                }
            });
        }
    });
}

/// Ids are above 0, which stands for no record here.
fn word(access: &Access) -> String {
    let version = if let Saw::Version(id) = access.saw { id } else { 0 };
    format!("{}:{version}:{}", access.key, u8::from(access.did == Did::Write))
}

fn writes(record: &Record) -> impl Iterator<Item = &Access> {
    record.accesses.iter().filter(|access| access.did == Did::Write)
}

/// One line by one system call, so that a kill leaves whole lines or none.
fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// What children said: transactions by id, and those that were answered.
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
    fn hear(&mut self, line: &str) {
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

    /// What was not flushed by a child that was killed need not be there.
    fn forget_flushes(&mut self) {
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
                assert!(chains.contains(&(*key, *id)), "transaction {id} is there, but not its write of key {key}");
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
            assert!(!(wrote && answered) || survivors.contains(id), "answered, but gone: {record:?}");
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

/// Goal:   after SIGKILL every answered transaction is there, all others are there whole or not at all, and nothing that
///         is there or was answered, readers included, had read from one that is gone.
///         With delayed durability the same of what was answered before a flush began that came to its end.
/// Method: 12 children in turn on one device, strict, with early release and delayed, killed after 60 to 160 answers; versions of
///         all keys are followed back from what the device has.
#[test]
fn answered_transactions_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.kaml");
    let device = Device::create(&path, &CreateOptions::new(256 << 20)).unwrap();
    let keys = NamespaceOptions { keys: KeyKind::U64, ..NamespaceOptions::default() };
    device.create_namespace("n", &keys).unwrap();
    device.close().unwrap();
    let (mut said, mut rng) = (Said::default(), Rng::new(11));
    for round in 1..=12u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::child", "--nocapture"])
            .env(CHILD, &path)
            .env(ROUND, round.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut left = 60 + rng.below(100);
        for line in lines.map_while(Result::ok) {
            said.hear(&line);
            if (line.starts_with("A ") || line.starts_with("D ")) && left > 0 {
                left -= 1;
                if left == 0 {
                    child.kill().unwrap(); // what it said before is still to be heard
                }
            }
        }
        child.wait().unwrap();
        said.forget_flushes();
        let (device, ns) = open(&path);
        said.check(&device, ns, KEYS);
        device.close().unwrap();
    }
    assert!(said.answered.len() > 500, "{} transactions were answered", said.answered.len());
}
