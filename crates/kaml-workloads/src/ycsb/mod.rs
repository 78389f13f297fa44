//! YCSB: a table of records that are read, updated, inserted, read to be changed, and scanned.
//!
//! Lives here:       loading, the operations on single records, and the checks afterwards.
//! Lives elsewhere:  scans (`scan`), workload files (`properties`, `settings`), which record (`choose`), its bytes
//!                   (`record`), the loop (`drive`).
//! Implements:       YCSB workloads A to F (paper:KAML V.E, Table III, without E there).
//!
//! A record is one value. An update writes one field of it unless the workload sets `writeallfields`, so it reads the
//! record in the transaction that changes it; one that writes all fields is a plain put. A read-modify-write is one
//! transaction, so nothing is ever lost between its two halves. Every read is checked; see `record`.

mod choose;
mod properties;
mod record;
mod scan;
mod settings;

pub use properties::{Properties, PropertiesError};
pub use settings::{FieldLengths, InsertOrder, Requests, STANDARD, ScanLengths, Settings, SettingsError};

use crate::Error;
use crate::drive::{self, About, Outcome, Progress, Run, Size, Stage, Tally, Worker, Workload};
use crate::engine::{Engine, Pipeline, Session, Stop, Table, must_read};
use crate::keys::Rng;
use choose::{Chooser, Inserts};
use record::Records;
use scan::Lengths;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

const RECORDS: Table = Table(0);
/// One read in this many is compared byte by byte, the others by size and header.
const EVERY_BYTE: u64 = 64;
/// A thread's last writes that are looked for afterwards.
const REMEMBERED_MAX: usize = 1024;
/// Versions are the client's number above, its count below.
const COUNT_BITS: u32 = 48;

const KINDS: [&str; 5] = ["read", "update", "insert", "read-modify-write", "scan"];
const SCAN: usize = 4;

/// A core workload and what it did so far.
pub struct Ycsb {
    name: String,
    settings: Settings,
    inserts: Inserts,
    history: Mutex<History>,
}

/// What the clients of all runs did.
#[derive(Default)]
struct History {
    client_count: u64,
    read_count: u64,
    last_writes: Vec<Write>,
}

impl Ycsb {
    /// The workload that settings describe.
    pub fn new(name: &str, settings: Settings) -> Ycsb {
        let inserts = Inserts::from(settings.insert_start + settings.record_count);
        Ycsb { name: name.to_owned(), settings, inserts, history: Mutex::default() }
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn key(&self, number: u64) -> u64 {
        choose::key(number, self.settings.insert_order)
    }

    /// The present value was written by this write or by one after it: not by the load, not by this client before.
    fn check_write(&self, records: &Records, session: &mut dyn Session, write: &Write) -> Result<(), Error> {
        let mut result = Err(format!("record {} is missing", write.number));
        let see = &mut |record: &[u8]| {
            result = records.check(write.number, record, true).and_then(|()| {
                let Some(found) = records.version(record, write.field) else { return Ok(()) }; // too short to show it
                let same_client = found >> COUNT_BITS == write.not_before >> COUNT_BITS;
                let is_older = found == 0 || (same_client && found < write.not_before);
                if is_older { Err(format!("record {}: an acknowledged write is lost", write.number)) } else { Ok(()) }
            });
        };
        session.get(RECORDS, self.key(write.number), see).map_err(Stop::into_error)?;
        result.map_err(Error::Wrong)
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no panics under this lock")
    }
}

impl Workload for Ycsb {
    fn tables(&self) -> &'static [&'static str] {
        &["usertable"]
    }

    fn is_scanned(&self, _: Table) -> bool {
        self.settings.scan_share > 0.0
    }

    fn check_run(&self, engine: &dyn Engine, run: &Run) -> Result<(), Error> {
        if self.is_scanned(RECORDS) { drive::check_scans(&self.name, engine, run) } else { Ok(()) }
    }

    fn size(&self) -> Size {
        let s = &self.settings;
        let record_bytes = s.field_count as u64 * s.field_length as u64;
        Size { records: s.record_count, value_bytes: s.record_count * record_bytes, operation_bytes: record_bytes }
    }

    fn load(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<(), Error> {
        let records = Records::new(&self.settings);
        drive::share_out(engine, threads, self.settings.record_count, Stage::Load, progress, |session, range| {
            let mut records = records.reseeded(range.start);
            let mut make = |at| {
                let number = self.settings.insert_start + at;
                let mut record = Vec::new();
                records.make(number, 0, &mut record);
                (self.key(number), record)
            };
            let made: Vec<_> = range.map(&mut make).collect();
            session.load(RECORDS, &made).map_err(Stop::into_error)
        })?;
        progress(Stage::Settle, 0, 0);
        engine.settle()
    }

    fn fill_cache(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<(), Error> {
        let count = self.settings.record_count;
        let keys = |at| self.key(self.settings.insert_start + at);
        drive::share_out(engine, threads, count, Stage::Fill, progress, |session, range| {
            drive::read_all(session, range.map(|at| (RECORDS, keys(at))))
        })?;
        Ok(())
    }

    fn run(&self, engine: &dyn Engine, run: &Run, progress: &Progress<'_>) -> Result<Outcome, Error> {
        self.check_run(engine, run)?;
        let chooser = Chooser::new(&self.settings, run.operations_max);
        let lengths = Lengths::new(&self.settings);
        let records = Records::new(&self.settings);
        let first_client = self.history().client_count + 1;
        self.history().client_count += run.threads as u64;
        let make = |thread: usize| {
            let seed = Rng::new(run.seed ^ (thread as u64).rotate_left(32)).next_u64();
            Client {
                workload: self,
                chooser: chooser.reseeded(seed),
                lengths: lengths.clone(),
                records: records.reseeded(seed ^ 1),
                coin: Rng::new(seed ^ 2),
                version: (first_client + thread as u64) << COUNT_BITS,
                read_count: 0,
                record: Vec::new(),
                remembered: VecDeque::with_capacity(REMEMBERED_MAX),
                pending: vec![None; run.in_flight],
            }
        };
        let configuration = serde_json::json!({ "settings": self.settings, "run": run });
        let about = About { workload: format!("ycsb {}", self.name), kinds: &KINDS, configuration };
        let (outcome, clients) = drive::run(engine, run, &about, progress, make)?;
        let mut history = self.history();
        for client in clients {
            history.read_count += client.read_count;
            history.last_writes.extend(client.remembered);
        }
        Ok(outcome)
    }

    /// The last writes of each client must exist, or others that came later.
    fn compare(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<Vec<String>, Error> {
        let records = Records::new(&self.settings);
        let history = self.history();
        let writes = &history.last_writes;
        drive::share_out(engine, threads, writes.len() as u64, Stage::Check, progress, |session, range| {
            let mut writes = writes[range.start as usize..range.end as usize].iter();
            writes.try_for_each(|write| self.check_write(&records, session, write))
        })?;
        Ok(vec![
            format!(
                "{} reads gave the requested record, one in {EVERY_BYTE} compared byte by byte",
                history.read_count
            ),
            format!("{} last writes are stored, or later ones in their place", writes.len()),
        ])
    }
}

/// A write that was acknowledged.
#[derive(Clone, Copy)]
struct Write {
    number: u64,
    field: usize,
    /// The oldest of its client's versions that may are in its place: its own, or that of the oldest write that was in
    /// flight next to it.
    not_before: u64,
}

/// An operation in flight.
#[derive(Clone, Copy)]
enum Pending {
    Read { number: u64, every_byte: bool },
    Write { write: Write, version: u64, is_insert: bool },
}

/// What one thread does.
struct Client<'a> {
    workload: &'a Ycsb,
    chooser: Chooser,
    lengths: Lengths,
    records: Records,
    coin: Rng,
    version: u64,
    read_count: u64,
    record: Vec<u8>,
    remembered: VecDeque<Write>,
    /// By token.
    pending: Vec<Option<Pending>>,
}

impl Worker for Client<'_> {
    fn start(&mut self, pipeline: &mut dyn Pipeline, token: u64, tally: &mut Tally) -> Result<usize, Error> {
        let kind = self.draw_kind();
        let pending = match kind {
            0 => self.start_read(pipeline, token, tally),
            1 if self.writes_whole() => {
                let (number, key) = self.choose();
                self.start_put(pipeline, token, number, key, tally)
            }
            2 => {
                let number = self.workload.inserts.begin();
                self.start_put(pipeline, token, number, self.workload.key(number), tally)
            }
            _ => self.start_change(pipeline, token, tally, kind == 3),
        };
        self.pending[token as usize] = Some(match pending {
            Pending::Write { write, version, .. } => Pending::Write { write, version, is_insert: kind == 2 },
            read @ Pending::Read { .. } => read,
        });
        Ok(kind)
    }

    fn finish(&mut self, token: u64, value: Option<&[u8]>, _tally: &mut Tally) -> Result<(), Error> {
        match self.pending[token as usize].take().expect("an operation completes one time") {
            Pending::Read { number, every_byte } => match value {
                Some(record) => self.records.check(number, record, every_byte).map_err(Error::Wrong),
                None => Err(Error::Wrong(format!("record {number} is missing"))),
            },
            Pending::Write { write, is_insert, .. } => {
                if is_insert {
                    self.workload.inserts.acknowledge(write.number);
                }
                self.remember(write);
                Ok(())
            }
        }
    }

    fn operate(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<usize, Error> {
        let kind = self.draw_kind();
        match kind {
            0 => self.read(session, tally)?,
            1 if self.writes_whole() => self.replace(session, tally)?,
            1 => self.change(session, tally, false)?,
            2 => self.insert(session, tally)?,
            SCAN => self.scan(session, tally)?,
            _ => self.change(session, tally, true)?,
        }
        Ok(kind)
    }
}

/// The place of one of the shares, each as likely as it is large.
fn draw(shares: &[f64], coin: &mut Rng) -> usize {
    let mut left = coin.unit() * shares.iter().sum::<f64>();
    let mut last = 0;
    for (at, share) in shares.iter().enumerate().filter(|(_, share)| **share > 0.0) {
        if left < *share {
            return at;
        }
        (left, last) = (left - share, at);
    }
    last // rounding
}

/// Operations in flight.
impl Client<'_> {
    fn start_read(&mut self, pipeline: &mut dyn Pipeline, token: u64, tally: &mut Tally) -> Pending {
        let (number, key) = self.choose();
        self.read_count += 1;
        tally.reads += 1;
        pipeline.get(token, RECORDS, key);
        Pending::Read { number, every_byte: self.read_count.is_multiple_of(EVERY_BYTE) }
    }

    fn start_put(
        &mut self,
        pipeline: &mut dyn Pipeline,
        token: u64,
        number: u64,
        key: u64,
        tally: &mut Tally,
    ) -> Pending {
        self.version += 1;
        self.records.make(number, self.version, &mut self.record);
        tally.user_bytes += self.record.len() as u64;
        pipeline.put(token, RECORDS, key, &self.record);
        self.pending_write(number, 0)
    }

    /// As [`Client::change`].
    fn start_change(&mut self, pipeline: &mut dyn Pipeline, token: u64, tally: &mut Tally, checked: bool) -> Pending {
        let (number, key) = self.choose();
        self.version += 1;
        self.read_count += u64::from(checked);
        let every_byte = checked && self.read_count.is_multiple_of(EVERY_BYTE);
        let field = self.coin.below(self.workload.settings.field_count as u64) as usize;
        let (all, version) = (self.workload.settings.write_all_fields, self.version);
        let mut records = self.records.reseeded(version);
        tally.reads += 1;
        tally.user_bytes += self.workload.size().operation_bytes;
        let change = move |old: &[u8]| {
            records.check(number, old, every_byte)?;
            let mut record = old.to_vec();
            if all {
                records.make(number, version, &mut record);
            } else if !records.replace(number, field, version, &mut record) {
                return Err(format!("record {number} has no field {field}"));
            }
            Ok(record)
        };
        pipeline.update(token, RECORDS, key, Box::new(change));
        self.pending_write(number, field)
    }

    fn pending_write(&self, number: u64, field: usize) -> Pending {
        let version = |pending: &Option<Pending>| match pending {
            Some(Pending::Write { version, .. }) => Some(*version),
            Some(Pending::Read { .. }) | None => None,
        };
        let oldest = self.pending.iter().filter_map(version).min();
        let write = Write { number, field, not_before: oldest.unwrap_or(self.version) };
        Pending::Write { write, version: self.version, is_insert: false }
    }
}

impl Client<'_> {
    fn draw_kind(&mut self) -> usize {
        draw(&self.workload.settings.shares(), &mut self.coin)
    }

    /// Whether an update needs nothing of the record that exists.
    fn writes_whole(&self) -> bool {
        self.workload.settings.write_all_fields || self.workload.settings.field_count == 1
    }

    fn read(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<(), Error> {
        let (number, key) = self.choose();
        self.read_count += 1;
        let every_byte = self.read_count.is_multiple_of(EVERY_BYTE);
        let records = &self.records;
        let mut found = Ok(());
        tally.reads += 1;
        let mut there = false;
        tally.try_on(|| {
            there = session.get(RECORDS, key, &mut |record| found = records.check(number, record, every_byte))?;
            Ok(())
        })?;
        if !there {
            return Err(Error::Wrong(format!("record {number} is missing")));
        }
        found.map_err(Error::Wrong)
    }

    /// Writes a whole record without reading it.
    fn replace(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<(), Error> {
        let (number, key) = self.choose();
        self.put(session, tally, number, key)
    }

    fn insert(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<(), Error> {
        let number = self.workload.inserts.begin();
        self.put(session, tally, number, self.workload.key(number))?;
        self.workload.inserts.acknowledge(number);
        Ok(())
    }

    fn put(&mut self, session: &mut dyn Session, tally: &mut Tally, number: u64, key: u64) -> Result<(), Error> {
        self.version += 1;
        self.records.make(number, self.version, &mut self.record);
        let record = &self.record;
        tally.try_on(|| session.put(RECORDS, key, record))?;
        tally.user_bytes += self.record.len() as u64;
        self.remember(Write { number, field: 0, not_before: self.version });
        Ok(())
    }

    /// Reads a record and writes one field of it, or all if the workload sets `writeallfields`.
    fn change(&mut self, session: &mut dyn Session, tally: &mut Tally, checked: bool) -> Result<(), Error> {
        let (number, key) = self.choose();
        self.version += 1;
        self.read_count += u64::from(checked);
        let every_byte = self.read_count.is_multiple_of(EVERY_BYTE);
        let field = self.coin.below(self.workload.settings.field_count as u64) as usize;
        let (all, version) = (self.workload.settings.write_all_fields, self.version);
        let (records, record) = (&mut self.records, &mut self.record);
        tally.reads += 1;
        tally.transact(session, &mut |txn| {
            must_read(txn, RECORDS, key, record, true)?;
            records.check(number, record, checked && every_byte).map_err(Stop::wrong)?;
            if all {
                records.make(number, version, record);
            } else if !records.replace(number, field, version, record) {
                return Err(Stop::wrong(format!("record {number} has no field {field}")));
            }
            txn.update(RECORDS, key, record)
        })?;
        tally.user_bytes += self.record.len() as u64;
        self.remember(Write { number, field, not_before: self.version });
        Ok(())
    }

    fn choose(&mut self) -> (u64, u64) {
        let number = self.chooser.next(self.workload.inserts.end());
        (number, self.workload.key(number))
    }

    fn remember(&mut self, write: Write) {
        if self.remembered.len() == REMEMBERED_MAX {
            self.remembered.pop_front();
        }
        self.remembered.push_back(write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::store::KamlEngine;
    use kaml::CreateOptions;
    use kaml::store::StoreOptions;

    fn engine(cache_bytes: u64) -> KamlEngine {
        let (device, store) = (CreateOptions::new(64 << 20), StoreOptions::new(cache_bytes));
        KamlEngine::create(None, &device, &store, &["usertable"]).unwrap()
    }

    fn engine_for(ycsb: &Ycsb, cache_bytes: u64) -> KamlEngine {
        let (device, store) = (CreateOptions::new(64 << 20), StoreOptions::new(cache_bytes));
        KamlEngine::create_for(None, &device, &store, ycsb).unwrap()
    }

    fn settings(text: &str, more: &str) -> Settings {
        Settings::parse(&format!("{text}\nrecordcount=2000\n{more}")).unwrap()
    }

    /// Goal:   every standard workload runs, with the mix that it names, in flight and on four threads and a cache smaller
    ///         than the data, and finds what it wrote.
    /// Method: 4000 operations each, one field and all fields; compare the kinds with the shares.
    #[test]
    fn standard_workloads_run() {
        for (letter, text) in STANDARD {
            for more in
                ["", "writeallfields=true\ninsertorder=ordered", "fieldlengthdistribution=zipfian\nminfieldlength=4"]
            {
                let settings = settings(text, more);
                let ycsb = Ycsb::new(letter, settings.clone());
                let mut engine = engine_for(&ycsb, 256 << 10);
                ycsb.load(&engine, 2, &|_, _, _| ()).unwrap();
                ycsb.fill_cache(&engine, 2, &|_, _, _| ()).unwrap();
                let in_flight = Run { in_flight: 32, ..Run::of(2, 2000) };
                match ycsb.run(&engine, &in_flight, &|_, _, _| ()) {
                    Err(error) => assert!(letter == "e" && error.to_string().contains("blocking"), "{letter}: {error}"),
                    Ok(outcome) => assert!(letter != "e" && outcome.operations == 2000),
                }
                let outcome = ycsb.run(&engine, &Run::of(4, 4000), &|_, _, _| ()).unwrap();
                assert_eq!(outcome.operations, 4000);
                let share = |kind: &str| {
                    let found = outcome.kinds.iter().find(|figures| figures.kind == kind);
                    found.map_or(0.0, |figures| figures.operations as f64 / 4000.0)
                };
                for (kind, expected) in KINDS.into_iter().zip(settings.shares()) {
                    assert!((share(kind) - expected).abs() < 0.04, "{letter} {kind}: {} of {expected}", share(kind));
                }
                assert!(outcome.hit_ratio.unwrap() < 1.0, "{letter}: {outcome:?}");
                assert_eq!(ycsb.check(&mut engine, 2, &|_, _, _| ()).unwrap().len(), 2);
            }
        }
    }

    /// Goal:   writes that the device has lost are missed, although the store had them in its cache.
    /// Method: a cache that holds everything; after the run, delete what was written last below the store.
    #[test]
    fn writes_that_the_device_lost_are_missed() {
        let settings = settings("readproportion=0.5\nupdateproportion=0.5\nrequestdistribution=zipfian", "");
        let mut engine = engine(8 << 20);
        let ycsb = Ycsb::new("a", settings);
        ycsb.load(&engine, 2, &|_, _, _| ()).unwrap();
        ycsb.run(&engine, &Run::of(4, 4000), &|_, _, _| ()).unwrap();
        ycsb.check(&mut engine, 2, &|_, _, _| ()).unwrap();
        ycsb.run(&engine, &Run::of(4, 4000), &|_, _, _| ()).unwrap();
        let last = ycsb.history().last_writes.last().map(|write| ycsb.key(write.number)).unwrap();
        let mut below = kaml::Batch::new();
        below.delete(engine.device().namespace("usertable").unwrap(), last);
        engine.store().write_past_the_cache(&below).unwrap();
        let result = ycsb.check(&mut engine, 2, &|_, _, _| ());
        assert!(matches!(&result, Err(Error::Wrong(what)) if what.contains("missing")), "{result:?}");
    }

    /// Goal:   a lost write, a foreign record and a missing one are noticed.
    /// Method: take each of them into the table after the workload's back.
    #[test]
    fn wrong_records_are_noticed() {
        let settings =
            settings("readproportion=1\nupdateproportion=0\nrequestdistribution=uniform", "insertorder=ordered");
        let tampered = |change: &dyn Fn(&mut dyn Session)| {
            let engine = engine(8 << 20);
            let ycsb = Ycsb::new("c", settings.clone());
            ycsb.load(&engine, 1, &|_, _, _| ()).unwrap();
            change(&mut *engine.session().unwrap());
            ycsb.run(&engine, &Run::of(2, 50_000), &|_, _, _| ())
        };
        tampered(&|_| ()).unwrap();
        let missing = |session: &mut dyn Session| session.transact(&mut |txn| txn.delete(RECORDS, 77)).unwrap();
        assert!(matches!(tampered(&missing), Err(Error::Wrong(_))));
        let foreign = |session: &mut dyn Session| {
            let mut value = Vec::new();
            assert!(session.get_into(RECORDS, 78, &mut value).unwrap());
            session.put(RECORDS, 77, &value).unwrap();
        };
        assert!(matches!(tampered(&foreign), Err(Error::Wrong(_))));

        let mut engine = engine(8 << 20);
        let ycsb = Ycsb::new("a", settings);
        ycsb.load(&engine, 1, &|_, _, _| ()).unwrap();
        ycsb.history().last_writes = vec![Write { number: 5, field: 3, not_before: (1 << COUNT_BITS) + 1 }];
        let result = ycsb.check(&mut engine, 1, &|_, _, _| ());
        assert!(matches!(result, Err(Error::Wrong(what)) if what.contains("lost")));
    }
}
