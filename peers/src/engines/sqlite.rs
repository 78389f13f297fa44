//! SQLite with a write-ahead log: one writer at a time, a flush per commit, no group commit.
//!
//! Each connection has a cache of its own: the memory for caching is divided among them. Files are read through the
//! system's page cache. A key is stored as a signed integer, 2^63 below it, so the order is the same.

use super::{Setup, engine_error, failed};
use kaml_workloads::Error;
use kaml_workloads::engine::{
    Body, Cause, Counts, Each, Engine, Ranges, Record, Scan, Session, Stop, Table, Transaction,
};
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use std::path::PathBuf;
use std::time::Duration;

/// How long a writer waits for the one before it.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// A database with a table for each.
pub(super) struct Sqlite {
    path: PathBuf,
    table_count: usize,
    cache_bytes: u64,
}

impl Sqlite {
    pub(super) fn create(setup: &Setup) -> Result<Sqlite, Error> {
        let cache_bytes = setup.cache_bytes / setup.threads.max(1) as u64;
        let sqlite = Sqlite { path: setup.dir.join("bench.sqlite"), table_count: setup.tables.len(), cache_bytes };
        let connection = sqlite.connect().map_err(engine_error)?;
        for at in 0..sqlite.table_count {
            let text = format!("CREATE TABLE IF NOT EXISTS t{at} (k INTEGER PRIMARY KEY, v BLOB NOT NULL)");
            connection.execute(&text, []).map_err(engine_error)?;
        }
        Ok(sqlite)
    }

    fn connect(&self) -> rusqlite::Result<Connection> {
        let connection = Connection::open(&self.path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(6 * self.table_count + 4);
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "cache_size", -((self.cache_bytes >> 10) as i64))?;
        Ok(connection)
    }
}

impl Engine for Sqlite {
    fn describe(&self) -> String {
        "SQLite with a write-ahead log: a flush per commit, a cache for each connection and the system's".into()
    }

    fn ranges(&self) -> Ranges {
        Ranges::Serializable
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, Error> {
        let connection = self.connect().map_err(engine_error)?;
        let text = |form: &str| (0..self.table_count).map(|at| form.replace('#', &at.to_string())).collect();
        Ok(Box::new(SqliteSession {
            connection,
            up: text("SELECT k, v FROM t# WHERE k BETWEEN ?1 AND ?2 ORDER BY k LIMIT ?3"),
            down: text("SELECT k, v FROM t# WHERE k BETWEEN ?1 AND ?2 ORDER BY k DESC LIMIT ?3"),
            get: text("SELECT v FROM t# WHERE k = ?1"),
            put: text("REPLACE INTO t# (k, v) VALUES (?1, ?2)"),
            delete: text("DELETE FROM t# WHERE k = ?1"),
        }))
    }

    fn settle(&self) -> Result<(), Error> {
        let connection = self.connect().map_err(engine_error)?;
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(engine_error)
    }

    fn counts(&self) -> Counts {
        Counts::default()
    }
}

/// A connection, and the text of its statements for each table.
struct SqliteSession {
    connection: Connection,
    up: Vec<String>,
    down: Vec<String>,
    get: Vec<String>,
    put: Vec<String>,
    delete: Vec<String>,
}

/// The integer that is stored for a key.
fn stored(key: u64) -> i64 {
    (key ^ 1 << 63) as i64
}

fn key_of(stored: i64) -> u64 {
    stored as u64 ^ 1 << 63
}

impl SqliteSession {
    fn show(&self, scan: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        let text = if scan.reverse { &self.down } else { &self.up };
        let mut statement = self.connection.prepare_cached(&text[scan.table.0]).map_err(stop)?;
        let limit = i64::try_from(scan.limit).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![stored(scan.first), stored(scan.last), limit]).map_err(stop)?;
        let mut count = 0;
        while let Some(row) = rows.next().map_err(stop)? {
            let value = row.get_ref(1).map_err(stop)?;
            each(key_of(row.get(0).map_err(stop)?), value.as_blob().map_err(failed)?);
            count += 1;
        }
        Ok(count)
    }

    fn execute(&self, text: &str) -> Result<(), Stop> {
        self.connection.prepare_cached(text).and_then(|mut statement| statement.execute([])).map(drop).map_err(stop)
    }
}

fn stop(error: rusqlite::Error) -> Stop {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Stop::Again(Cause::Timeout),
        Some(_) | None => failed(error),
    }
}

impl Session for SqliteSession {
    fn get(&mut self, table: Table, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let mut statement = self.connection.prepare_cached(&self.get[table.0]).map_err(stop)?;
        let show = |row: &rusqlite::Row<'_>| row.get_ref(0)?.as_blob().map(see).map_err(Into::into);
        Ok(statement.query_row(params![stored(key)], show).optional().map_err(stop)?.is_some())
    }

    fn scan(&mut self, scan: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        self.show(scan, each)
    }

    fn put(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.update(table, key, value)
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<(), Stop> {
        self.execute("BEGIN IMMEDIATE")?;
        let done = body(self).and_then(|()| self.execute("COMMIT"));
        if done.is_err() {
            self.execute("ROLLBACK")?;
        }
        done
    }

    fn load(&mut self, table: Table, records: &[Record]) -> Result<(), Stop> {
        self.transact(&mut |txn| records.iter().try_for_each(|(key, value)| txn.update(table, *key, value)))
    }
}

/// Within `BEGIN` and `COMMIT`, or each call for itself.
impl Transaction for SqliteSession {
    fn read(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        self.get_into(table, key, value)
    }

    fn read_for_update(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        self.get_into(table, key, value)
    }

    fn scan(&mut self, scan: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        self.show(scan, each)
    }

    fn update(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        let statement = self.connection.prepare_cached(&self.put[table.0]);
        statement.and_then(|mut put| put.execute(params![stored(key), value])).map(drop).map_err(stop)
    }

    fn insert(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.update(table, key, value)
    }

    fn delete(&mut self, table: Table, key: u64) -> Result<(), Stop> {
        let statement = self.connection.prepare_cached(&self.delete[table.0]);
        statement.and_then(|mut delete| delete.execute(params![stored(key)])).map(drop).map_err(stop)
    }
}
