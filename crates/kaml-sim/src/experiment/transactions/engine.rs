//! Workers that execute transactions on a modelled device, in virtual time: over records, or over pages with a log.
//!
//! Lives here:       locks, processor time, reads of what memory does not hold, commits.
//! Lives elsewhere:  what a transaction does (`work`), the device (`rig`), the figures (`super`).
//! Implements:       paper:KAML III.C-D, V.D.1.
//!
//! *Records*: a commit is one atomic Put of all changed records, and workers commit side by side. *Pages* is the kind of engine
//! that the paper compares with: changes are in pages of 8 KiB in memory, a commit appends to one log, and one transaction at a time
//! writes the log. Its log is never too short, so changed pages are written only when memory needs their place.

use super::locks::{Locks, Name};
use super::work::{Access, Mode, Table, Work};
use crate::load::{Ask, Load, Order, Sheet};
use crate::rig::{Class, Command, Record, Rig, RigError};
use crate::rng::Rng;
use std::collections::VecDeque;

/// The paper's host has eight cores.
pub(super) const WORKERS: usize = 8;
/// Assumed, of both engines: what a worker computes for a record, its lock included.
pub(super) const RECORD_NS: u64 = 3000;
/// Pages of the engine that the paper compares with, and a piece of them, which one command reads or writes.
pub(super) const PAGE_BYTES: u64 = 8192;
const PIECE_BYTES: u64 = 4096;
const PIECES: usize = (PAGE_BYTES / PIECE_BYTES) as usize;
/// Assumed: a record of the log, and what it has of an update: a field of 16 bytes, old and new.
const LOG_HEADER_BYTES: u64 = 64;
const LOG_UPDATE_BYTES: u64 = 32;
/// A file system writes the log in blocks of this size, the last one of them again with the next commit.
const LOG_BLOCK: u64 = 4096;
/// The log, which begins again at its end.
const LOG_BYTES: u64 = 256 << 20;
/// Hosts of a worker: it has a page to read and one to write at once.
const HOSTS_OF_WORKER: usize = 2 * PIECES;
/// The largest write of the log, in blocks.
const LOG_BLOCKS_MAX: u64 = 9;
/// Hosts that fill a device.
const FILLING: usize = 32;

/// How records are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Store {
    Records,
    Pages,
}

/// One point of a figure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) store: Store,
    pub(super) records_per_lock: u64,
    pub(super) warm_up: u64,
    pub(super) transactions: u64,
}

/// What a point came to.
pub(super) struct Found {
    pub(super) sheet: Sheet,
    /// Of 100 locks so many were waited for.
    pub(super) waits_percent: f64,
    /// A commit from its beginning to its end, waiting for the log included, and the write alone, in microseconds.
    pub(super) write_us: f64,
}

/// A device with the tables of a workload, as records and as pages.
pub(super) struct Database {
    rig: Rig,
    tables: Vec<Table>,
    share: u64,
    classes: Vec<Class>,
    /// Bytes of pages of each table, one after the other.
    pages: u64,
}

/// Classes after those of the tables: Gets of each table, then pieces of pages, then writes of the log by blocks.
impl Database {
    fn get_class(&self, table: usize) -> usize {
        self.tables.len() + table
    }

    fn read_class(&self) -> usize {
        2 * self.tables.len()
    }

    fn log_class(&self, blocks: u64) -> usize {
        self.read_class() + blocks as usize
    }

    /// Stores the tables, one of `share` of their records.
    pub(super) fn new(mut rig: Rig, tables: Vec<Table>, share: u64) -> Result<Database, RigError> {
        let (mut puts, mut gets, mut spaces) = (Vec::new(), Vec::new(), Vec::new());
        for (number, table) in tables.iter().enumerate() {
            let space = rig.create_records(&format!("table {number}"), Vec::new())?;
            spaces.push((space, table.stored(share), table.bytes));
            puts.push((space, Ask::Put, table.bytes));
            gets.push((space, Ask::Get, table.bytes));
        }
        let bytes: u64 = spaces.iter().map(|(_, stored, bytes)| stored * u64::from(*bytes)).sum();
        let pages = bytes.next_multiple_of(PAGE_BYTES);
        let data = rig.create_blocks("pages", pages)?;
        let log = rig.create_blocks("log", LOG_BYTES)?;
        rig.rest()?;
        let fill = |space, ask, bytes, count| Load {
            space,
            ask,
            bytes,
            batch: 1,
            records: 0..count,
            order: Order::Turn,
            hosts: FILLING,
            warm_up: 0,
            commands: Some(count),
        };
        for (space, stored, bytes) in spaces {
            rig.run(&[fill(space, Ask::Put, bytes, stored)])?;
        }
        rig.run(&[fill(data, Ask::Write, PIECE_BYTES as u32, pages / PIECE_BYTES)])?;
        rig.settle()?;
        let mut classes = [puts, gets].concat();
        classes.push((data, Ask::Write, PIECE_BYTES as u32));
        classes.extend((1..=LOG_BLOCKS_MAX).map(|blocks| (log, Ask::Write, (blocks * LOG_BLOCK) as u32)));
        Ok(Database { rig, tables, share, classes, pages })
    }

    /// Executes transactions.
    pub(super) fn run(&mut self, point: &Point, work: &mut dyn Work, rng: &mut Rng) -> Result<Found, RigError> {
        self.rig.begin_program(&self.classes, WORKERS * HOSTS_OF_WORKER);
        let workers = (0..WORKERS).map(|_| Worker::default()).collect();
        let mut run = Run {
            database: self,
            point,
            workers,
            locks: Locks::default(),
            log: Log::default(),
            begun: 0,
            completed: 0,
            sheet: Sheet::new(),
            written: (0, 0),
        };
        let mut ready: VecDeque<usize> = (0..WORKERS).collect();
        let mut idle = 0;
        while idle < WORKERS {
            if let Some(worker) = ready.pop_front() {
                idle += usize::from(!run.advance(worker, work, rng, &mut ready)?);
                continue;
            }
            let worker = run.database.rig.next_done()? / HOSTS_OF_WORKER;
            run.workers[worker].pending -= 1;
            if run.workers[worker].pending == 0 {
                ready.push_back(worker);
            }
        }
        let Run { locks, sheet, written, .. } = run;
        self.rig.end_program()?;
        let waits_percent = 100.0 * locks.waits as f64 / locks.requests.max(1) as f64;
        Ok(Found { sheet, waits_percent, write_us: written.0 as f64 / written.1.max(1) as f64 / 1e3 })
    }

    /// The record of the device for a key of the paper's.
    fn record(&self, class: usize, table: usize, key: u64) -> Record {
        let stored = self.tables[table].stored(self.share);
        // Keys of inserted records are new ones; what they have in common with stored ones is only their table.
        Record { class, number: if key < self.tables[table].records { key % stored } else { key } }
    }

    /// The bytes of the pages where a record is.
    fn page(&self, access: &Access) -> u64 {
        let bytes = u64::from(self.tables[access.table].bytes);
        access.key * bytes / PAGE_BYTES * PAGE_BYTES % self.pages
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Begin,
    /// It requests the lock of the record at `at`.
    Lock,
    /// It has the lock.
    Locked,
    /// It has computed.
    Computed,
    /// It has the record.
    Found,
    /// It waits for the log.
    Queued,
    Committed,
}

#[derive(Default)]
struct Worker {
    phase: Phase,
    accesses: Vec<Access>,
    at: usize,
    locks: Vec<Name>,
    began: u64,
    writing: u64,
    /// Commands in progress.
    pending: usize,
}

/// The log of pages: one writes it at a time.
#[derive(Default)]
struct Log {
    is_busy: bool,
    queue: VecDeque<usize>,
    at: u64,
}

struct Run<'a> {
    database: &'a mut Database,
    point: &'a Point,
    workers: Vec<Worker>,
    locks: Locks,
    log: Log,
    begun: u64,
    completed: u64,
    sheet: Sheet,
    /// Nanoseconds of writes of commits, and how many.
    written: (u64, u64),
}

impl Run<'_> {
    /// Continues a worker until it waits; false if it has nothing more to do.
    fn advance(
        &mut self,
        number: usize,
        work: &mut dyn Work,
        rng: &mut Rng,
        ready: &mut VecDeque<usize>,
    ) -> Result<bool, RigError> {
        loop {
            let now = self.database.rig.now_ns();
            let worker = &mut self.workers[number];
            match worker.phase {
                Phase::Begin if self.begun == self.point.warm_up + self.point.transactions => return Ok(false),
                Phase::Begin => {
                    self.begun += 1;
                    let accesses = work.next(number, rng);
                    let locks = std::mem::take(&mut worker.locks);
                    *worker = Worker { phase: Phase::Lock, accesses, locks, began: now, ..Worker::default() };
                }
                Phase::Lock if worker.at == worker.accesses.len() => {
                    if !self.commit(number)? {
                        return Ok(true);
                    }
                }
                Phase::Lock => {
                    let access = worker.accesses[worker.at];
                    let name = (access.table, access.key / self.point.records_per_lock);
                    worker.phase = Phase::Locked;
                    if worker.locks.last() != Some(&name) {
                        worker.locks.push(name);
                        if !self.locks.acquire(name, number, access.mode != Mode::Read) {
                            return Ok(true);
                        }
                    }
                }
                Phase::Locked => {
                    worker.phase = Phase::Computed;
                    self.submit(number, vec![Command::Pause(RECORD_NS)])?;
                    return Ok(true);
                }
                Phase::Computed => {
                    worker.phase = Phase::Found;
                    let access = worker.accesses[worker.at];
                    if access.is_missed {
                        let commands = self.fetch(&access);
                        self.submit(number, commands)?;
                        return Ok(true);
                    }
                }
                Phase::Found => {
                    worker.at += 1;
                    worker.phase = Phase::Lock;
                }
                Phase::Queued => {
                    self.write_log(number)?;
                    return Ok(true);
                }
                Phase::Committed => self.end(number, ready),
            }
        }
    }

    fn submit(&mut self, number: usize, commands: Vec<Command>) -> Result<(), RigError> {
        self.workers[number].pending = commands.len();
        let hosts = number * HOSTS_OF_WORKER..(number + 1) * HOSTS_OF_WORKER;
        self.database.rig.submit(hosts.zip(commands).collect())
    }

    /// What reads a record, or its page, in place of another.
    fn fetch(&self, access: &Access) -> Vec<Command> {
        let database = &self.database;
        if self.point.store == Store::Records {
            let class = database.get_class(access.table);
            return vec![Command::Get(database.record(class, access.table, access.key))];
        }
        let class = database.read_class();
        let page = database.page(access);
        let pieces = |page: u64| (0..PIECES as u64).map(move |i| page + i * PIECE_BYTES..page + (i + 1) * PIECE_BYTES);
        let mut commands: Vec<Command> = pieces(page).map(|range| Command::Read(class, range)).collect();
        if access.evicts {
            // The page that leaves is some other one.
            let other = (page + database.pages / 2 / PAGE_BYTES * PAGE_BYTES) % database.pages;
            commands.extend(pieces(other).map(|range| Command::Write(class, range)));
        }
        commands
    }

    /// Begins a commit; true if there is nothing to write.
    fn commit(&mut self, number: usize) -> Result<bool, RigError> {
        let changed = self.workers[number].accesses.iter().filter(|access| access.mode != Mode::Read);
        let records: Vec<Record> =
            changed.map(|access| self.database.record(access.table, access.table, access.key)).collect();
        let worker = &mut self.workers[number];
        worker.phase = Phase::Committed;
        if records.is_empty() {
            return Ok(true);
        }
        if self.point.store == Store::Pages {
            worker.phase = Phase::Queued;
            if std::mem::replace(&mut self.log.is_busy, true) {
                self.log.queue.push_back(number);
                return Ok(false);
            }
            return self.write_log(number).map(|()| false);
        }
        worker.writing = self.database.rig.now_ns();
        self.submit(number, vec![Command::Put(records)])?;
        Ok(false)
    }

    fn write_log(&mut self, number: usize) -> Result<(), RigError> {
        let worker = &mut self.workers[number];
        (worker.phase, worker.writing) = (Phase::Committed, self.database.rig.now_ns());
        let bytes = |access: &Access| match access.mode {
            Mode::Read => 0,
            Mode::Update => LOG_HEADER_BYTES + LOG_UPDATE_BYTES,
            Mode::Insert => LOG_HEADER_BYTES + u64::from(self.database.tables[access.table].bytes),
        };
        let bytes: u64 = worker.accesses.iter().map(bytes).sum();
        let at = if self.log.at + bytes > LOG_BYTES { 0 } else { self.log.at };
        self.log.at = at + bytes;
        let first = at / LOG_BLOCK;
        let blocks = ((at + bytes).div_ceil(LOG_BLOCK) - first).clamp(1, LOG_BLOCKS_MAX);
        let class = self.database.log_class(blocks);
        self.submit(number, vec![Command::Write(class, first * LOG_BLOCK..(first + blocks) * LOG_BLOCK)])
    }

    /// A transaction is durable: the next one has the log, and others have its locks.
    fn end(&mut self, number: usize, ready: &mut VecDeque<usize>) {
        let now = self.database.rig.now_ns();
        let worker = &mut self.workers[number];
        let has_written = worker.writing > 0;
        if has_written {
            self.written = (self.written.0 + now - worker.writing, self.written.1 + 1);
        }
        (worker.phase, worker.writing) = (Phase::Begin, 0);
        for name in std::mem::take(&mut worker.locks) {
            let mut granted = Vec::new();
            self.locks.release(name, &mut granted);
            ready.extend(granted);
        }
        self.completed += 1;
        if self.completed > self.point.warm_up {
            self.sheet.note(worker.began, now, 0);
        }
        if has_written && self.point.store == Store::Pages {
            match self.log.queue.pop_front() {
                Some(next) => ready.push_back(next),
                None => self.log.is_busy = false,
            }
        }
    }
}

const _: () = assert!(PAGE_BYTES.is_multiple_of(PIECE_BYTES));
