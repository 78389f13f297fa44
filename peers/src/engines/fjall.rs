//! fjall: log-structured merge trees; one writing transaction at a time, whose journal is flushed at its commit.
//!
//! It has a cache of its own, whose size it is given, and reads its files through the system's page cache.

use super::{Setup, engine_error, failed};
use fjall::{
    KeyspaceCreateOptions, PersistMode, Readable, SingleWriterTxDatabase, SingleWriterTxKeyspace, SingleWriterWriteTx,
};
use kaml_workloads::Error;
use kaml_workloads::engine::{Body, Counts, Each, Engine, Ranges, Record, Scan, Session, Stop, Table, Transaction};
use std::time::Duration;

/// Between two looks at compactions that are to end.
const SETTLE_STEP: Duration = Duration::from_millis(20);

/// A database with a keyspace for each table.
pub(super) struct Fjall {
    database: SingleWriterTxDatabase,
    tables: Vec<SingleWriterTxKeyspace>,
}

impl Fjall {
    pub(super) fn create(setup: &Setup) -> Result<Fjall, Error> {
        let builder = SingleWriterTxDatabase::builder(&setup.dir).cache_size(setup.cache_bytes);
        let database = builder.open().map_err(engine_error)?;
        let open = |name: &&str| database.keyspace(name, KeyspaceCreateOptions::default).map_err(engine_error);
        let tables = setup.tables.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Fjall { database, tables })
    }

    fn write(&self, body: &mut Body<'_>) -> Result<(), Stop> {
        let txn = self.database.write_tx().durability(Some(PersistMode::SyncData));
        let mut txn = FjallTransaction { tables: &self.tables, txn };
        body(&mut txn)?; // dropped, it rolls back
        txn.txn.commit().map_err(failed)
    }
}

/// Shows the records of a scan.
fn scan(
    reader: &impl Readable,
    tables: &[SingleWriterTxKeyspace],
    scan: Scan,
    each: &mut Each<'_>,
) -> Result<usize, Stop> {
    if scan.first > scan.last {
        return Ok(0);
    }
    let found = reader.range(&tables[scan.table.0], scan.first.to_be_bytes()..=scan.last.to_be_bytes());
    let found: Box<dyn Iterator<Item = fjall::Guard>> =
        if scan.reverse { Box::new(found.rev()) } else { Box::new(found) };
    let mut count = 0;
    for entry in found.take(scan.limit) {
        let (key, value) = entry.into_inner().map_err(failed)?;
        let key = key.as_ref().try_into().map_err(|_| Stop::wrong("a key is not of 8 bytes"))?;
        each(u64::from_be_bytes(key), &value);
        count += 1;
    }
    Ok(count)
}

impl Engine for Fjall {
    fn describe(&self) -> String {
        "fjall 3.1: a flush per commit, its own cache and the system's".into()
    }

    fn ranges(&self) -> Ranges {
        Ranges::Serializable
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, Error> {
        Ok(Box::new(FjallSession(self)))
    }

    fn settle(&self) -> Result<(), Error> {
        for table in &self.tables {
            table.inner().rotate_memtable_and_wait().map_err(engine_error)?;
        }
        let database = self.database.inner();
        while database.outstanding_flushes() > 0 || database.active_compactions() > 0 {
            std::thread::sleep(SETTLE_STEP);
        }
        self.database.persist(PersistMode::SyncAll).map_err(engine_error)
    }

    fn counts(&self) -> Counts {
        Counts { cache_misses: None, cache_bytes: Some(self.database.inner().cache_size()) }
    }
}

struct FjallSession<'a>(&'a Fjall);

impl Session for FjallSession<'_> {
    fn get(&mut self, table: Table, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let found = self.0.tables[table.0].get(key.to_be_bytes()).map_err(failed)?;
        Ok(found.map(|found| see(&found)).is_some())
    }

    fn scan(&mut self, wanted: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        scan(&self.0.database.read_tx(), &self.0.tables, wanted, each)
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

struct FjallTransaction<'a> {
    tables: &'a [SingleWriterTxKeyspace],
    txn: SingleWriterWriteTx<'a>,
}

impl Transaction for FjallTransaction<'_> {
    fn read(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        let found = self.txn.get(&self.tables[table.0], key.to_be_bytes()).map_err(failed)?;
        Ok(found.map(|found| found.as_ref().clone_into(value)).is_some())
    }

    fn read_for_update(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        self.read(table, key, value)
    }

    fn scan(&mut self, wanted: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        scan(&self.txn, self.tables, wanted, each)
    }

    fn update(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.txn.insert(&self.tables[table.0], key.to_be_bytes(), value);
        Ok(())
    }

    fn insert(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.update(table, key, value)
    }

    fn delete(&mut self, table: Table, key: u64) -> Result<(), Stop> {
        self.txn.remove(&self.tables[table.0], key.to_be_bytes());
        Ok(())
    }
}
