//! redb: one writer at a time, a flush per commit, no group commit.
//!
//! It has a cache of its own, whose size it is given, and reads its file through the system's page cache.

use super::{Setup, engine_error, failed};
use kaml_workloads::Error;
use kaml_workloads::engine::{Body, Counts, Each, Engine, Ranges, Record, Scan, Session, Stop, Table, Transaction};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

type Rows<'t> = redb::Table<'t, u64, &'static [u8]>;

/// A database with a table for each.
pub(super) struct Redb {
    database: Database,
    names: &'static [&'static str],
}

impl Redb {
    pub(super) fn create(setup: &Setup) -> Result<Redb, Error> {
        let cache_bytes = setup.cache_bytes as usize;
        let path = setup.dir.join("bench.redb");
        let database = Database::builder().set_cache_size(cache_bytes).create(path).map_err(engine_error)?;
        let redb = Redb { database, names: setup.tables };
        let txn = redb.database.begin_write().map_err(engine_error)?;
        for at in 0..redb.names.len() {
            txn.open_table(redb.definition(Table(at))).map_err(engine_error)?;
        }
        txn.commit().map_err(engine_error)?;
        Ok(redb)
    }

    fn definition(&self, table: Table) -> TableDefinition<'static, u64, &'static [u8]> {
        TableDefinition::new(self.names[table.0])
    }

    fn write(&self, body: &mut Body<'_>) -> Result<(), Stop> {
        let txn = self.database.begin_write().map_err(failed)?;
        let tables = self.names.iter().map(|_| None).collect();
        body(&mut RedbTransaction { redb: self, txn: &txn, tables })?; // dropped, it aborts
        txn.commit().map_err(failed)
    }
}

/// Shows the records of a scan.
fn scan(rows: &impl ReadableTable<u64, &'static [u8]>, scan: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
    if scan.first > scan.last {
        return Ok(0);
    }
    let mut found = rows.range(scan.first..=scan.last).map_err(failed)?;
    let next = || if scan.reverse { found.next_back() } else { found.next() };
    let mut count = 0;
    for entry in std::iter::from_fn(next).take(scan.limit) {
        let (key, value) = entry.map_err(failed)?;
        each(key.value(), value.value());
        count += 1;
    }
    Ok(count)
}

impl Engine for Redb {
    fn describe(&self) -> String {
        "redb 4.5: a flush per commit, its own cache and the system's".into()
    }

    fn ranges(&self) -> Ranges {
        Ranges::Serializable
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, Error> {
        Ok(Box::new(RedbSession(self)))
    }

    fn settle(&self) -> Result<(), Error> {
        Ok(()) // every commit is durable, and nothing is put off
    }

    fn counts(&self) -> Counts {
        Counts::default()
    }
}

struct RedbSession<'a>(&'a Redb);

impl Session for RedbSession<'_> {
    fn get(&mut self, table: Table, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let txn = self.0.database.begin_read().map_err(failed)?;
        let rows = txn.open_table(self.0.definition(table)).map_err(failed)?;
        let found = rows.get(key).map_err(failed)?;
        Ok(found.map(|found| see(found.value())).is_some())
    }

    fn scan(&mut self, wanted: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        let txn = self.0.database.begin_read().map_err(failed)?;
        scan(&txn.open_table(self.0.definition(wanted.table)).map_err(failed)?, wanted, each)
    }

    fn put(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.0.write(&mut |txn| txn.update(table, key, value))
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<(), Stop> {
        self.0.write(body)
    }

    fn load(&mut self, table: Table, records: &[Record]) -> Result<(), Stop> {
        self.0.write(&mut |txn| records.iter().try_for_each(|(key, value)| txn.update(table, *key, value)))
    }
}

struct RedbTransaction<'t> {
    redb: &'t Redb,
    txn: &'t WriteTransaction,
    /// Opened when they are first used.
    tables: Vec<Option<Rows<'t>>>,
}

impl<'t> RedbTransaction<'t> {
    fn rows(&mut self, table: Table) -> Result<&mut Rows<'t>, Stop> {
        let rows = &mut self.tables[table.0];
        if rows.is_none() {
            *rows = Some(self.txn.open_table(self.redb.definition(table)).map_err(failed)?);
        }
        rows.as_mut().ok_or_else(|| failed("an opened table is missing"))
    }
}

impl Transaction for RedbTransaction<'_> {
    fn read(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        let found = self.rows(table)?.get(key).map_err(failed)?;
        Ok(found.map(|found| found.value().clone_into(value)).is_some())
    }

    fn read_for_update(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        self.read(table, key, value)
    }

    fn scan(&mut self, wanted: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        scan(self.rows(wanted.table)?, wanted, each)
    }

    fn update(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.rows(table)?.insert(key, value).map(drop).map_err(failed)
    }

    fn insert(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.update(table, key, value)
    }

    fn delete(&mut self, table: Table, key: u64) -> Result<(), Stop> {
        self.rows(table)?.remove(key).map(drop).map_err(failed)
    }
}
