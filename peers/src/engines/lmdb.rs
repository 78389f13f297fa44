//! LMDB, through heed.
//!
//! Its cache is the system's page cache, whatever memory it is asked to use. A commit writes its pages and flushes; there is
//! one writer at a time and no group commit.
#![allow(unsafe_code, reason = "a memory mapping is opened, whose file nobody else may change")]

use super::{Setup, engine_error, failed};
use heed::byteorder::BE;
use heed::types::{Bytes, U64};
use heed::{Database, Env, EnvOpenOptions, RoTxn, RwTxn};
use kaml_workloads::Error;
use kaml_workloads::engine::{Body, Counts, Each, Engine, Ranges, Record, Scan, Session, Stop, Table, Transaction};

/// Address space for each byte that is stored: pages are copied when they are written, and half empty after splits.
const MAP_FACTOR: usize = 6;
const MAP_MIN: usize = 1 << 30;
/// Readers: threads of runs, loads and checks.
const READERS_MAX: u32 = 512;

type Rows = Database<U64<BE>, Bytes>;

/// An environment with a database for each table.
pub(super) struct Lmdb {
    env: Env,
    tables: Vec<Rows>,
}

impl Lmdb {
    pub(super) fn create(setup: &Setup) -> Result<Lmdb, Error> {
        let mut options = EnvOpenOptions::new();
        let map = (setup.data_bytes as usize * MAP_FACTOR).max(MAP_MIN).next_multiple_of(1 << 20);
        options.map_size(map).max_dbs(setup.tables.len() as u32).max_readers(READERS_MAX);
        // SAFETY: the directory is ours alone, so nobody else changes the file below the mapping.
        let env = unsafe { options.open(&setup.dir) }.map_err(engine_error)?;
        let mut txn = env.write_txn().map_err(engine_error)?;
        let create = |name: &&str| env.create_database(&mut txn, Some(name)).map_err(engine_error);
        let tables = setup.tables.iter().map(create).collect::<Result<_, _>>()?;
        txn.commit().map_err(engine_error)?;
        Ok(Lmdb { env, tables })
    }

    fn write<R>(&self, body: impl FnOnce(&mut RwTxn<'_>) -> Result<R, Stop>) -> Result<R, Stop> {
        let mut txn = self.env.write_txn().map_err(failed)?;
        let answer = body(&mut txn)?; // dropped, it aborts
        txn.commit().map_err(failed)?;
        Ok(answer)
    }
}

/// Shows the records of a scan where they lie.
fn scan(txn: &RoTxn<'_>, tables: &[Rows], scan: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
    if scan.first > scan.last {
        return Ok(0);
    }
    let (rows, range) = (&tables[scan.table.0], scan.first..=scan.last);
    let mut count = 0;
    let mut show = |entry: heed::Result<(u64, &[u8])>| {
        let (key, value) = entry.map_err(failed)?;
        each(key, value);
        count += 1;
        Ok::<(), Stop>(())
    };
    if scan.reverse {
        rows.rev_range(txn, &range).map_err(failed)?.take(scan.limit).try_for_each(&mut show)?;
    } else {
        rows.range(txn, &range).map_err(failed)?.take(scan.limit).try_for_each(&mut show)?;
    }
    Ok(count)
}

impl Engine for Lmdb {
    fn describe(&self) -> String {
        "LMDB by heed 0.22: a flush per commit, cached by the system alone".into()
    }

    fn ranges(&self) -> Ranges {
        Ranges::Serializable
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, Error> {
        Ok(Box::new(LmdbSession(self)))
    }

    fn settle(&self) -> Result<(), Error> {
        self.env.force_sync().map_err(engine_error)
    }

    fn counts(&self) -> Counts {
        Counts::default()
    }
}

struct LmdbSession<'a>(&'a Lmdb);

impl Session for LmdbSession<'_> {
    fn get(&mut self, table: Table, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let txn = self.0.env.read_txn().map_err(failed)?;
        let found = self.0.tables[table.0].get(&txn, &key).map_err(failed)?;
        Ok(found.map(see).is_some())
    }

    fn scan(&mut self, wanted: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        let txn = self.0.env.read_txn().map_err(failed)?;
        scan(&txn, &self.0.tables, wanted, each)
    }

    fn put(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.0.write(|txn| self.0.tables[table.0].put(txn, &key, value).map_err(failed))
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<(), Stop> {
        self.0.write(|txn| body(&mut LmdbTransaction { tables: &self.0.tables, txn }))
    }

    fn load(&mut self, table: Table, records: &[Record]) -> Result<(), Stop> {
        let rows = &self.0.tables[table.0];
        self.0.write(|txn| records.iter().try_for_each(|(key, value)| rows.put(txn, key, value).map_err(failed)))
    }
}

struct LmdbTransaction<'a, 'e> {
    tables: &'a [Rows],
    txn: &'a mut RwTxn<'e>,
}

impl Transaction for LmdbTransaction<'_, '_> {
    fn read(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        let found = self.tables[table.0].get(self.txn, &key).map_err(failed)?;
        Ok(found.map(|found| found.clone_into(value)).is_some())
    }

    fn read_for_update(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        self.read(table, key, value)
    }

    fn scan(&mut self, wanted: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        scan(self.txn, self.tables, wanted, each)
    }

    fn update(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.tables[table.0].put(self.txn, &key, value).map_err(failed)
    }

    fn insert(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.update(table, key, value)
    }

    fn delete(&mut self, table: Table, key: u64) -> Result<(), Stop> {
        self.tables[table.0].delete(self.txn, &key).map(drop).map_err(failed)
    }
}
