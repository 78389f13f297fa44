//! What a database workload asks of a storage engine; a workload never knows which one it runs on.
//!
//! Lives here:       the traits `Engine`, `Session` and `Transaction`, scans, and why an operation stops.
//! Lives elsewhere:  engines (`engine::store` is KAML's; others bring their own crate), the loop that runs operations
//!                   and tries them again (`drive`), the workloads (`ycsb`, `tpcb`, `tpcc`).
//!
//! All tables have 64-bit keys. An engine is opened with the names of its tables, and gives each thread a session. Thus
//! an engine with connections or read transactions of its own can keep them there.
//!
//! Durability is the same for every engine: what `put` or `transact` acknowledged survives a power cut, unless the
//! engine was opened with less.

pub mod store;

use crate::Error;
use std::fmt;

/// A table, by its place among the names that the engine was opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table(pub usize);

/// A record to be loaded.
pub type Record = (u64, Vec<u8>);

/// Records of a table in the order of their keys. A range that ends before it begins is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The table.
    pub table: Table,
    /// The least key.
    pub first: u64,
    /// The greatest key.
    pub last: u64,
    /// Records at most.
    pub limit: usize,
    /// From the greatest key down.
    pub reverse: bool,
    /// The records are going to be changed by the transaction that reads them; without meaning outside transactions.
    pub for_update: bool,
}

impl Scan {
    /// All records of a range.
    pub fn of(table: Table, first: u64, last: u64) -> Scan {
        Scan { table, first, last, limit: usize::MAX, reverse: false, for_update: false }
    }
}

/// Receives each record of a scan.
pub type Each<'a> = dyn FnMut(u64, &[u8]) + 'a;

/// What an engine does with ranges of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// It has none.
    None,
    /// A transaction locks each record that a scan returned, but not the gaps between them: another transaction can insert there.
    Records,
    /// Scans in transactions are serializable.
    Serializable,
}

/// A storage engine with the tables of one workload.
pub trait Engine: Sync {
    /// The engine with its configuration, for people.
    fn describe(&self) -> String;

    /// What it does with ranges of keys. Without ranges, scans fail.
    fn ranges(&self) -> Ranges {
        Ranges::None
    }

    /// The door for one thread.
    fn session(&self) -> Result<Box<dyn Session + '_>, Error>;

    /// The door for one thread that has so many operations in flight; none where an engine only has blocking calls.
    fn pipeline(&self, in_flight: usize) -> Option<Box<dyn Pipeline + '_>> {
        let _ = in_flight;
        None
    }

    /// Everything durable, and all work done that was put off: what a device wrote can be counted now.
    fn settle(&self) -> Result<(), Error>;

    /// Closes it and opens it again, so what it returns afterwards comes from its files, not from its cache. One that
    /// fails in this cannot be used any more.
    fn reopen(&mut self) -> Result<(), Error> {
        Err(Error::Engine(format!("{} cannot be opened again", self.describe())))
    }

    /// What it did since it was opened.
    fn counts(&self) -> Counts;
}

/// What an engine did since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that were not in the engine's own cache when they were requested; none where it does not report them.
    pub cache_misses: Option<u64>,
    /// Memory that its cache takes; none where it does not report it.
    pub cache_bytes: Option<u64>,
}

/// The calls of one thread.
pub trait Session {
    /// Shows a value to `see` where it lies, or in a copy if the engine cannot do better; false if it does not exist.
    fn get(&mut self, table: Table, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<bool, Stop>;

    /// Copies a value into a buffer; false if it does not exist.
    fn get_into(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        self.get(table, key, &mut |found| {
            value.clear();
            value.extend_from_slice(found);
        })
    }

    /// Shows the records of some keys that exist, in any order; together, if the engine can do that.
    fn get_many(&mut self, table: Table, keys: &[u64], each: &mut Each<'_>) -> Result<(), Stop> {
        keys.iter().try_for_each(|key| self.get(table, *key, &mut |value| each(*key, value)).map(drop))
    }

    /// Shows committed records in the order of their keys; returns how many.
    fn scan(&mut self, scan: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        let _ = (scan, each);
        Err(Stop::Failed(Error::NoRanges))
    }

    /// Stores a record, whether it exists or not; durable when it returns.
    fn put(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop>;

    /// Runs `body` in one serializable transaction, once. Commits, durably, if it returns `Ok`; otherwise nothing of it
    /// remains and the result is handed on.
    fn transact(&mut self, body: &mut Body<'_>) -> Result<(), Stop>;

    /// Stores many records whose keys nobody has requested yet. They need not be durable before the next
    /// [`Engine::settle`].
    fn load(&mut self, table: Table, records: &[Record]) -> Result<(), Stop>;
}

/// The calls of one thread that does not wait for each. An operation is named by a token until it completes.
pub trait Pipeline {
    /// Starts reading a record.
    fn get(&mut self, token: u64, table: Table, key: u64);

    /// Starts storing a record, whether it exists or not; durable when it completes.
    fn put(&mut self, token: u64, table: Table, key: u64, value: &[u8]);

    /// Starts changing a record that exists, in one serializable transaction; durable when it completes.
    fn update(&mut self, token: u64, table: Table, key: u64, change: Change);

    /// Waits until something completes, unless nothing is in flight.
    fn poll(&mut self, answered: &mut Answered<'_>) -> Result<(), Error>;
}

/// Hears of an operation that is done: its token, and for a read the value, if it exists.
pub type Answered<'a> = dyn FnMut(u64, Option<&[u8]>) -> Result<(), Error> + 'a;

/// Makes the new value of a record out of the old one, or states what is wrong with that.
pub type Change = Box<dyn FnOnce(&[u8]) -> Result<Vec<u8>, String>>;

/// What a transaction does.
pub type Body<'a> = dyn FnMut(&mut dyn Transaction) -> Result<(), Stop> + 'a;

/// A transaction in progress.
pub trait Transaction {
    /// Reports which records it is going to use, to engines that can make use of that.
    fn expect(&mut self, records: &[(Table, u64)]) -> Result<(), Stop> {
        let _ = records;
        Ok(())
    }

    /// Reads a record; false if it does not exist.
    fn read(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop>;

    /// Reads a record that is going to be changed.
    fn read_for_update(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop>;

    /// Shows records in the order of their keys, those that this transaction wrote included; returns how many. See
    /// [`Engine::ranges`] for what others can do to the range meanwhile.
    fn scan(&mut self, scan: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        let _ = (scan, each);
        Err(Stop::Failed(Error::NoRanges))
    }

    /// Changes a record that exists.
    fn update(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop>;

    /// Stores a record that does not exist.
    fn insert(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop>;

    /// Deletes a record that exists.
    fn delete(&mut self, table: Table, key: u64) -> Result<(), Stop>;
}

/// Why an operation was not executed.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The engine gave up on it; the same operation may well succeed when it is run again.
    #[error("{0}; it can be run again")]
    Again(Cause),
    /// The workload itself requests a rollback.
    #[error("rolled back, as it was meant to be")]
    Rollback,
    /// It makes no sense to continue.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl Stop {
    /// The engine refused or failed something; `what` states which and why.
    pub fn failed(what: impl fmt::Display) -> Stop {
        Stop::Failed(Error::Engine(what.to_string()))
    }

    /// For calls outside transactions, where nothing is given up.
    pub fn into_error(self) -> Error {
        match self {
            Stop::Failed(error) => error,
            stop @ (Stop::Again(_) | Stop::Rollback) => Error::Engine(stop.to_string()),
        }
    }

    /// The engine returned something impossible.
    pub fn wrong(what: impl Into<String>) -> Stop {
        Stop::Failed(Error::Wrong(what.into()))
    }
}

/// Why an engine gave up on an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It waited for others that waited for it.
    Deadlock,
    /// A lock was not given in time.
    Timeout,
    /// Another transaction changed what it had read.
    Conflict,
    /// What it had read was never made durable.
    Lost,
}

impl Cause {
    /// All there are.
    pub const ALL: [Cause; 4] = [Cause::Deadlock, Cause::Timeout, Cause::Conflict, Cause::Lost];
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Deadlock => "deadlock",
            Cause::Timeout => "timeout",
            Cause::Conflict => "conflict",
            Cause::Lost => "lost",
        })
    }
}

/// Reads a record that must exist.
pub(crate) fn must_read(
    txn: &mut dyn Transaction,
    table: Table,
    key: u64,
    value: &mut Vec<u8>,
    for_update: bool,
) -> Result<(), Stop> {
    let found = if for_update { txn.read_for_update(table, key, value)? } else { txn.read(table, key, value)? };
    if found { Ok(()) } else { Err(Stop::wrong(format!("table {}: record {key} is missing", table.0))) }
}
