//! The engines that are compared, behind the trait of the workloads.
//!
//! Lives here:       which there are, and what each is opened with.
//! Lives elsewhere:  their adapters (one module each; KAML's own is `kaml_workloads::engine::store`), running them
//!                   (`compare`).
//!
//! What is equal for all: an acknowledged put or commit has been flushed to the disk; the memory for caching; the
//! workload's own generator; 64-bit keys; no compression. What an engine does better than the trait requests, it may
//! do: batching several commits into one flush, showing a value where it lies.
//!
//! `insert`, `update` and `delete` of a peer do not ask whether the record exists: its users would not ask either, and
//! the workloads know.

mod fjall;
mod lmdb;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod sqlite;

use clap::ValueEnum;
use kaml::CreateOptions;
use kaml::store::StoreOptions;
use kaml_workloads::Error;
use kaml_workloads::engine::store::KamlEngine;
use kaml_workloads::engine::{Counts, Engine, Ranges, Session, Stop, Table};
use std::fmt::Display;
use std::path::PathBuf;

/// An engine to be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// KAML, locks held until a commit is durable.
    Kaml,
    /// KAML with early lock release.
    KamlEarly,
    /// RocksDB's pessimistic TransactionDB.
    #[cfg(feature = "rocksdb")]
    Rocksdb,
    /// The same with BlobDB: longer values in files of their own.
    #[cfg(feature = "rocksdb")]
    RocksdbBlob,
    /// LMDB: one writer, readers in a memory mapping.
    Lmdb,
    /// redb: one writer, copy-on-write B-trees.
    Redb,
    /// fjall: log-structured merge trees, one writing transaction.
    Fjall,
    /// SQLite with a write-ahead log.
    Sqlite,
}

/// How the system's page cache comes into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageCache {
    /// Not at all: direct I/O.
    Unused,
    /// Besides the engine's own cache.
    Besides,
    /// It is the engine's cache.
    Only,
}

/// What an engine is opened with.
#[derive(Clone)]
pub(crate) struct Setup {
    /// A directory of its own: empty, or with what it wrote.
    pub dir: PathBuf,
    /// Names of its tables.
    pub tables: &'static [&'static str],
    /// Those that are scanned.
    pub scanned: Vec<Table>,
    /// Memory for caching.
    pub cache_bytes: u64,
    /// Bytes that will be stored, at most, what runs add included.
    pub data_bytes: u64,
    /// Threads that call it.
    pub threads: usize,
}

impl Kind {
    /// Its name in tables.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// How the system's page cache comes into it.
    pub(crate) fn page_cache(self) -> PageCache {
        match self {
            Kind::Kaml | Kind::KamlEarly => PageCache::Unused,
            #[cfg(feature = "rocksdb")]
            Kind::Rocksdb | Kind::RocksdbBlob => PageCache::Unused,
            Kind::Lmdb => PageCache::Only,
            Kind::Redb | Kind::Fjall | Kind::Sqlite => PageCache::Besides,
        }
    }

    /// Opens it in an empty directory.
    pub(crate) fn open(self, setup: &Setup) -> Result<Box<dyn Engine>, Error> {
        Ok(match self {
            Kind::Kaml => Box::new(kaml(setup, false)?),
            Kind::KamlEarly => Box::new(kaml(setup, true)?),
            peer => Box::new(Peer { kind: peer, setup: setup.clone(), engine: Some(peer.adapter(setup)?) }),
        })
    }

    /// Opens a peer, whose tables may exist already.
    fn adapter(self, setup: &Setup) -> Result<Box<dyn Engine>, Error> {
        Ok(match self {
            Kind::Kaml | Kind::KamlEarly => self.open(setup)?,
            #[cfg(feature = "rocksdb")]
            Kind::Rocksdb | Kind::RocksdbBlob => Box::new(rocksdb::Rocksdb::create(setup, self == Kind::RocksdbBlob)?),
            Kind::Lmdb => Box::new(lmdb::Lmdb::create(setup)?),
            Kind::Redb => Box::new(redb::Redb::create(setup)?),
            Kind::Fjall => Box::new(fjall::Fjall::create(setup)?),
            Kind::Sqlite => Box::new(sqlite::Sqlite::create(setup)?),
        })
    }
}

/// A peer, which can be closed and opened again.
struct Peer {
    kind: Kind,
    setup: Setup,
    /// Not there only while it is opened again, and after that failed.
    engine: Option<Box<dyn Engine>>,
}

impl Peer {
    fn engine(&self) -> &dyn Engine {
        self.engine.as_deref().expect("an engine that could not be opened again is not used")
    }
}

impl Engine for Peer {
    fn describe(&self) -> String {
        self.engine().describe()
    }

    fn ranges(&self) -> Ranges {
        self.engine().ranges()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, Error> {
        self.engine().session()
    }

    fn settle(&self) -> Result<(), Error> {
        self.engine().settle()
    }

    fn reopen(&mut self) -> Result<(), Error> {
        self.engine = None; // closed, before it is opened again
        self.engine = Some(self.kind.adapter(&self.setup)?);
        Ok(())
    }

    fn counts(&self) -> Counts {
        self.engine().counts()
    }
}

/// The device is offered so many bytes for each that is stored: collection has an easy life.
const CAPACITY_FACTOR: u64 = 2;
const CAPACITY_MIN: u64 = 1 << 30;

fn kaml(setup: &Setup, early_release: bool) -> Result<KamlEngine, Error> {
    let capacity = (setup.data_bytes * CAPACITY_FACTOR).max(CAPACITY_MIN);
    let store = StoreOptions { early_release, ..StoreOptions::new(setup.cache_bytes) };
    let path = setup.dir.join("bench.kaml");
    let is_scanned = |table| setup.scanned.contains(&table);
    KamlEngine::create_with(Some(&path), &CreateOptions::new(capacity), &store, setup.tables, is_scanned)
}

fn engine_error(error: impl Display) -> Error {
    Error::Engine(error.to_string())
}

fn failed(error: impl Display) -> Stop {
    Stop::Failed(engine_error(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaml_workloads::drive::{Run, Workload};
    use kaml_workloads::engine::Scan;
    use kaml_workloads::{tpcb, tpcc, ycsb};
    use std::path::Path;

    fn open(kind: Kind, dir: &Path, tables: &'static [&'static str], scanned: Vec<Table>) -> Box<dyn Engine> {
        let dir = dir.to_owned();
        let setup = Setup { dir, tables, scanned, cache_bytes: 16 << 20, data_bytes: 64 << 20, threads: 4 };
        kind.open(&setup).unwrap_or_else(|error| panic!("{kind:?}: {error}"))
    }

    fn value(session: &mut dyn Session, table: Table, key: u64) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        session.get_into(table, key, &mut value).unwrap().then_some(value)
    }

    /// Goal:   every engine keeps the contract of the traits: loads, puts, commits, rollbacks, absent records, all keys.
    /// Method: one session each, call after call; a second session sees it, also when it was closed and opened again.
    #[test]
    fn the_contract_is_kept_by_all() {
        for kind in Kind::value_variants() {
            let dir = tempfile::tempdir().unwrap();
            let mut engine = open(*kind, dir.path(), &["first", "second"], Vec::new());
            let (a, b) = (Table(0), Table(1));
            let mut session = engine.session().unwrap();
            session.load(a, &[(0, vec![0; 300]), (u64::MAX, vec![1; 300]), (1 << 63, Vec::new())]).unwrap();
            assert_eq!(value(&mut *session, a, u64::MAX), Some(vec![1; 300]), "{kind:?}");
            assert_eq!(value(&mut *session, a, 1 << 63), Some(Vec::new()), "{kind:?}");
            assert_eq!(value(&mut *session, b, 0), None, "{kind:?}");
            session.put(b, 7, b"seven").unwrap();
            let undone = session.transact(&mut |txn| {
                txn.update(a, 0, b"changed")?;
                txn.insert(b, 8, b"new")?;
                txn.delete(b, 7)?;
                Err(Stop::Rollback)
            });
            assert!(matches!(undone, Err(Stop::Rollback)), "{kind:?}: {undone:?}");
            let moved = session.transact(&mut |txn| {
                let (mut found, mut other) = (Vec::new(), Vec::new());
                assert!(txn.read_for_update(b, 7, &mut found)? && !txn.read(b, 8, &mut other)?);
                txn.insert(b, 8, &found)?;
                assert!(txn.read(b, 8, &mut other)?, "a transaction sees what it wrote");
                txn.update(a, 0, &other)?;
                txn.delete(b, 7)
            });
            moved.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            drop(session);
            for _ in 0..2 {
                let mut second = engine.session().unwrap();
                let found = [(a, 0), (b, 7), (b, 8)].map(|(table, key)| value(&mut *second, table, key));
                assert_eq!(found, [Some(b"seven".to_vec()), None, Some(b"seven".to_vec())], "{kind:?}");
                drop(second);
                engine.settle().unwrap();
                engine.reopen().unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            }
        }
    }

    /// Goal:   every engine scans alike: both directions, limits, all keys, empty ranges, what a transaction wrote and deleted.
    /// Method: compare with a sorted vector, in a session, in a transaction, and after the transaction.
    #[test]
    fn scans_are_in_order_on_all() {
        let a = Table(0);
        let keys = [0, 1, 5, 255, 256, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX];
        let bounds = [0, 1, 2, 5, 256, (1 << 63) - 1, 1 << 63, u64::MAX];
        let scans: Vec<Scan> = bounds
            .iter()
            .flat_map(|first| bounds.iter().map(|last| Scan::of(a, *first, *last)))
            .flat_map(|scan| [usize::MAX, 0, 1, 3].map(|limit| Scan { limit, ..scan }))
            .flat_map(|scan| {
                [(false, false), (true, true)].map(|(reverse, for_update)| Scan { reverse, for_update, ..scan })
            })
            .collect();
        let expected = |keys: &[u64], scan: &Scan| {
            let mut found: Vec<u64> =
                keys.iter().copied().filter(|key| scan.first <= *key && *key <= scan.last).collect();
            if scan.reverse {
                found.reverse();
            }
            found.truncate(scan.limit);
            found
        };
        for kind in Kind::value_variants() {
            let dir = tempfile::tempdir().unwrap();
            let engine = open(*kind, dir.path(), &["first", "second"], vec![a]);
            let mut session = engine.session().unwrap();
            session.load(a, &keys.map(|key| (key, key.to_le_bytes().to_vec()))).unwrap();
            session.load(Table(1), &[(7, vec![7; 8])]).unwrap();
            for scan in &scans {
                let mut found = Vec::new();
                let see = &mut |key: u64, value: &[u8]| {
                    assert_eq!(value, key.to_le_bytes(), "{kind:?}");
                    found.push(key);
                };
                assert_eq!(session.scan(*scan, see).unwrap(), expected(&keys, scan).len(), "{kind:?} {scan:?}");
                assert_eq!(found, expected(&keys, scan), "{kind:?} {scan:?}");
            }
            let changed = [0, 1, 3, 255, 256, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX];
            let all = Scan::of(a, 0, u64::MAX);
            for commits in [false, true] {
                let result = session.transact(&mut |txn| {
                    txn.delete(a, 5)?;
                    txn.insert(a, 3, &[3])?;
                    for scan in &scans {
                        let mut found = Vec::new();
                        txn.scan(*scan, &mut |key, value| found.push((key, value.len())))?;
                        let length = |key| (key, if key == 3 { 1 } else { 8 });
                        let expected: Vec<_> = expected(&changed, scan).into_iter().map(length).collect();
                        assert_eq!(found, expected, "{kind:?} {scan:?}");
                    }
                    if commits { Ok(()) } else { Err(Stop::Rollback) }
                });
                assert_eq!(result.is_ok(), commits, "{kind:?} {result:?}");
                let mut found = Vec::new();
                session.scan(all, &mut |key, _| found.push(key)).unwrap();
                assert_eq!(found, if commits { changed } else { keys }, "{kind:?}");
            }
        }
    }

    fn scanned(workload: &dyn Workload) -> Vec<Table> {
        (0..workload.tables().len()).map(Table).filter(|table| workload.is_scanned(*table)).collect()
    }

    /// Goal:   every engine runs every workload with several threads, and is consistent afterwards: what is compared is
    ///         correct.
    /// Method: tiny ones, each with its check.
    #[test]
    fn all_workloads_are_right_on_all() {
        let properties = ycsb::Settings::parse("recordcount=500\nreadproportion=0.5\nreadmodifywriteproportion=0.5");
        let scans = ycsb::Settings::parse(
            "recordcount=500\nreadproportion=0\nupdateproportion=0\nscanproportion=0.8\ninsertproportion=0.2\n\
             maxscanlength=100\ninsertorder=ordered\nfieldcount=1",
        );
        for kind in Kind::value_variants() {
            let ycsb = ycsb::Ycsb::new("f", properties.clone().unwrap());
            let scans = ycsb::Ycsb::new("e", scans.clone().unwrap());
            let tpcb = tpcb::Settings { accounts_per_branch: 100, ..tpcb::Settings::new(2) };
            let tpcc = tpcc::Settings { items: 50, customers_per_district: 10, ..tpcc::Settings::new(1) };
            let full = tpcc::Tpcc::new(tpcc::Settings { mix: tpcc::Mix::Full, ..tpcc.clone() }).unwrap();
            let (tpcb, tpcc) = (tpcb::Tpcb::new(tpcb).unwrap(), tpcc::Tpcc::new(tpcc).unwrap());
            for workload in [&ycsb as &dyn Workload, &scans, &tpcb, &tpcc, &full] {
                let dir = tempfile::tempdir().unwrap();
                let mut engine = open(*kind, dir.path(), workload.tables(), scanned(workload));
                let quiet = |_, _, _| ();
                let loaded = workload.load(&*engine, 2, &quiet);
                let outcome = loaded.and_then(|()| workload.run(&*engine, &Run::of(4, 200), &quiet));
                assert_eq!(outcome.map(|outcome| outcome.operations).map_err(|e| format!("{kind:?}: {e}")), Ok(200));
                let checked = workload.check(&mut *engine, 2, &quiet).map_err(|e| format!("{kind:?}: {e}"));
                assert!(checked.is_ok_and(|facts| !facts.is_empty()), "{kind:?}");
            }
        }
    }
}
