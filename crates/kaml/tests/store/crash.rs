//! Transactions across SIGKILL.
//!
//! A child process runs random transactions and says on a pipe, before each commit, what it read and is about to
//! write, and after it that it was answered. It is killed in the middle; the parent opens the device and compares.

use crate::history::{self, NONE, Record};
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
const EARLY: &str = "KAML_TEST_EARLY";

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
    let early_release = std::env::var(EARLY).unwrap() == "true";
    let (device, ns) = open(Path::new(&path));
    let store = Store::open(device, &StoreOptions { early_release, ..StoreOptions::new(300 << 10) }).unwrap();
    let next = AtomicU64::new(round << 32 | 1);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, next) = (&store, &next);
            scope.spawn(move || {
                let mut rng = Rng::new(round << 8 | thread);
                loop {
                    let id = next.fetch_add(1, Ordering::Relaxed);
                    let mut txn = store.begin().unwrap();
                    match history::transact(&mut txn, ns, id, &mut rng, KEYS) {
                        Ok(found) => {
                            say(&format!("T {id} {}", found.iter().map(word).collect::<Vec<_>>().join(" ")));
                            txn.commit().unwrap();
                            say(&format!("A {id}"));
                        }
                        Err(error) => assert!(error.is_retryable(), "{error}"),
                    }
                }
            });
        }
    });
}

fn word((key, found, wrote): &(u64, u64, bool)) -> String {
    format!("{key}:{found}:{}", u8::from(*wrote))
}

/// One line by one system call, so that a kill leaves whole lines or none.
fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// What children said: transactions by id, and those that were answered.
#[derive(Default)]
struct Said {
    records: HashMap<u64, Record>,
    answered: HashSet<u64>,
}

impl Said {
    fn hear(&mut self, line: &str) {
        let mut words = line.split(' ');
        let (Some(kind), Some(id)) = (words.next(), words.next().and_then(|id| id.parse().ok())) else { return };
        match kind {
            "A" => drop(self.answered.insert(id)),
            "T" => {
                let found = words.filter(|w| !w.is_empty()).map(|word| {
                    let numbers: Vec<u64> = word.split(':').map(|n| n.parse().unwrap()).collect();
                    (numbers[0], numbers[1], numbers[2] == 1)
                });
                let record = Record { id, found: found.collect(), span: (0, 1) };
                self.records.insert(id, record);
            }
            _ => {}
        }
    }

    /// The transactions whose versions lead to what the device has now.
    fn survivors(&self, device: &Device, ns: NamespaceId) -> HashSet<u64> {
        let mut chains: HashSet<(u64, u64)> = HashSet::new();
        for key in 0..KEYS {
            let last = device.get(ns, key).unwrap();
            let mut version = last.map_or(NONE, |value| u64::from_le_bytes(value[..8].try_into().unwrap()));
            while version != NONE {
                assert!(chains.insert((key, version)), "versions of key {key} go in a circle");
                let found = &self.records[&version].found;
                version = found.iter().find(|f| f.0 == key && f.2).expect("it wrote this key").1;
            }
        }
        let survivors: HashSet<u64> = chains.iter().map(|(_, id)| *id).collect();
        for id in &survivors {
            for (key, ..) in self.records[id].found.iter().filter(|f| f.2) {
                assert!(chains.contains(&(*key, *id)), "transaction {id} is there, but not its write of key {key}");
            }
        }
        survivors
    }

    fn check(&self, device: &Device, ns: NamespaceId) {
        let survivors = self.survivors(device, ns);
        let mut seen = Vec::new();
        for (id, record) in &self.records {
            let writes = record.found.iter().any(|f| f.2);
            let answered = self.answered.contains(id);
            assert!(!(writes && answered) || survivors.contains(id), "answered, but gone: {record:?}");
            if survivors.contains(id) || answered {
                for (key, found, _) in &record.found {
                    let there = *found == NONE || survivors.contains(found);
                    assert!(there, "{record:?} read version {found} of key {key}, which is gone");
                }
                // All at once on the clock: what is checked is the order of dependencies.
                seen.push(Record { span: (0, 1), ..record.clone() });
            }
        }
        history::check(&seen).unwrap();
    }
}

/// Goal:   after SIGKILL every answered transaction is there, all others are there whole or not at all, and nothing that
///         is there or was answered, readers included, had read from one that is gone.
/// Method: 10 children in turn on one device, strict and with early release, killed after 50 to 400 ms; versions of all
///         keys are followed back from what the device has.
#[test]
fn answered_transactions_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.kaml");
    let device = Device::create(&path, &CreateOptions::new(256 << 20)).unwrap();
    let keys = NamespaceOptions { keys: KeyKind::U64, ..NamespaceOptions::default() };
    device.create_namespace("n", &keys).unwrap();
    device.close().unwrap();
    let (mut said, mut rng) = (Said::default(), Rng::new(11));
    for round in 1..=10u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::child", "--nocapture"])
            .env(CHILD, &path)
            .env(ROUND, round.to_string())
            .env(EARLY, (round % 2 == 0).to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let listener = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(50 + rng.below(350)));
        child.kill().unwrap();
        child.wait().unwrap();
        let lines = listener.join().unwrap();
        lines.iter().for_each(|line| said.hear(line));
        let (device, ns) = open(&path);
        said.check(&device, ns);
        device.close().unwrap();
    }
    assert!(said.answered.len() > 500, "{} transactions were answered", said.answered.len());
}
