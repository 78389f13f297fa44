//! Transactions across SIGKILL.
//!
//! A child process runs random transactions and writes to a pipe, before each commit, what it read and is about to
//! write, and after it that it completed. With delayed durability it writes instead that it is done, and occasionally that it
//! begins to flush, and that it has. It is killed in the middle; the parent opens the device and compares.

use crate::moves::{Rng, transact};
use crate::said::Said;
use crate::serial::{Access, Did, Saw};
use kaml::store::{Store, StoreOptions};
use kaml::{CreateOptions, Device, KeyKind, NamespaceId, NamespaceOptions, OpenOptions};
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
                    match transact(&mut txn, ns, id, &mut rng, KEYS, false) {
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

/// Ids are above 0, which means no record here.
fn word(access: &Access) -> String {
    let version = if let Saw::Version(id) = access.saw { id } else { 0 };
    format!("{}:{version}:{}", access.key, u8::from(access.did == Did::Write))
}

/// One line by one system call, so a kill leaves whole lines or none.
fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Goal:   after SIGKILL every acknowledged transaction exists, all others exist whole or not at all, and nothing that
///         exists or completed, readers included, had read from one that is gone.
///         With delayed durability the same of what completed before a flush began that came to its end.
/// Method: 12 children in turn on one device, strict, with early release and delayed, killed after 60 to 160 answers; versions of
///         all keys are followed back from what the device has.
#[test]
fn answered_transactions_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.kaml");
    let device = Device::create(&path, &CreateOptions::new(256 << 20)).unwrap();
    let keys = NamespaceOptions::records(KeyKind::U64);
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
                    child.kill().unwrap(); // what it wrote before is still to be read
                }
            }
        }
        child.wait().unwrap();
        said.forget_flushes();
        let (device, ns) = open(&path);
        said.check(&device, ns, KEYS);
        device.close().unwrap();
    }
    assert!(said.answered.len() > 500, "{} transactions were acknowledged", said.answered.len());
}
