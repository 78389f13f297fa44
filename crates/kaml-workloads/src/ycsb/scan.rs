//! Scans of a range of records.
//!
//! Lives here:       how long scans are, and whether what they return is right.
//! Lives elsewhere:  the choice of the first record (`choose`).
//! Implements:       YCSB workload E.

use super::record::Records;
use super::settings::{InsertOrder, ScanLengths, Settings};
use super::{Client, EVERY_BYTE, RECORDS, Ycsb};
use crate::Error;
use crate::drive::Tally;
use crate::engine::{Scan, Session, Stop};
use crate::keys::{Rng, Zipf};

/// Scan lengths are zipfian with this.
const THETA: f64 = 0.99;

/// Numbers of records that a scan reads.
#[derive(Clone)]
pub(super) struct Lengths {
    min: u64,
    max: u64,
    zipf: Option<Zipf>,
}

impl Lengths {
    pub(super) fn new(settings: &Settings) -> Lengths {
        let (min, max) = (settings.scan_length_min, settings.scan_length);
        let zipf = (settings.scan_lengths == ScanLengths::Zipfian).then(|| Zipf::new(max - min + 1, THETA));
        Lengths { min, max, zipf }
    }

    pub(super) fn next(&self, rng: &mut Rng) -> u64 {
        self.min
            + match &self.zipf {
                Some(zipf) => zipf.rank(rng.unit()),
                None => rng.below(self.max - self.min + 1),
            }
    }
}

/// What a scan has returned so far.
struct Scanned<'a> {
    workload: &'a Ycsb,
    records: &'a Records,
    every_byte: bool,
    /// The key of the record before.
    last: Option<u64>,
    count: u64,
    found: Result<(), String>,
}

impl<'a> Scanned<'a> {
    fn new(workload: &'a Ycsb, records: &'a Records, every_byte: bool) -> Scanned<'a> {
        Scanned { workload, records, every_byte, last: None, count: 0, found: Ok(()) }
    }

    fn see(&mut self, key: u64, record: &[u8]) {
        let wrong = self.wrong(key, record);
        (self.last, self.count) = (Some(key), self.count + 1);
        if let (Some(what), Ok(())) = (wrong, &self.found) {
            self.found = Err(what);
        }
    }

    fn wrong(&self, key: u64, record: &[u8]) -> Option<String> {
        if self.last.is_some_and(|last| last >= key) {
            return Some(format!("a scan returned key {key:#x} after {:#x}", self.last.unwrap_or_default()));
        }
        let number = self.records.number(record)?;
        if self.workload.key(number) != key {
            return Some(format!("a scan returned record {number} under key {key:#x}"));
        }
        self.records.check(number, record, self.every_byte).err()
    }

    /// What is wrong; nothing if all records were right.
    fn result(self) -> Result<(), Error> {
        self.found.map_err(Error::Wrong)
    }
}

impl Ycsb {
    /// Scans the whole table and compares every byte; how many records it has.
    pub(crate) fn scan_all(&self, session: &mut dyn Session) -> Result<u64, Error> {
        let records = Records::new(&self.settings);
        let mut scanned = Scanned::new(self, &records, true);
        let all = Scan::of(RECORDS, 0, u64::MAX);
        session.scan(all, &mut |key, record| scanned.see(key, record)).map_err(Stop::into_error)?;
        let count = scanned.count;
        scanned.result().map(|()| count)
    }
}

impl Client<'_> {
    /// Reads a chosen record and those after it. The chosen one exists. With keys in the order of inserts, so do all up to the
    /// last one that was acknowledged.
    pub(super) fn scan(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<(), Error> {
        let length = self.lengths.next(&mut self.coin);
        let (workload, end) = (self.workload, self.workload.inserts.end());
        let number = self.chooser.next(end);
        let key = workload.key(number);
        self.read_count += 1;
        let every_byte = self.read_count.is_multiple_of(EVERY_BYTE);
        let scan = Scan { limit: length as usize, ..Scan::of(RECORDS, key, u64::MAX) };
        // Keys in the order of inserts have no gaps below the last acknowledged one.
        let known = if workload.settings.insert_order == InsertOrder::Ordered { length.min(end - number) } else { 1 };
        let mut seen = Scanned::new(workload, &self.records, every_byte);
        let mut known_seen = 0;
        tally.try_on(|| {
            (seen, known_seen) = (Scanned::new(workload, &self.records, every_byte), 0);
            session.scan(scan, &mut |at, record| {
                known_seen += u64::from((key..key + known).contains(&at));
                seen.see(at, record);
            })?;
            Ok(())
        })?;
        tally.reads += seen.count;
        let count = seen.count;
        seen.result()?;
        if count > length || known_seen < known {
            return Err(Error::Wrong(format!("a scan of {length} records from record {number} missed one of {known}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::{Run, Workload};
    use crate::engine::Engine;
    use crate::engine::store::KamlEngine;
    use kaml::CreateOptions;
    use kaml::store::StoreOptions;

    /// Goal:   lengths keep to their range; uniform ones reach all of it evenly, zipfian ones are short most often.
    /// Method: a hundred thousand draws each.
    #[test]
    fn lengths_are_distributed_as_named() {
        for (name, even) in [("uniform", true), ("zipfian", false)] {
            let text = format!("recordcount=1\nminscanlength=3\nmaxscanlength=12\nscanlengthdistribution={name}");
            let lengths = Lengths::new(&Settings::parse(&text).unwrap());
            let (mut rng, mut counts) = (Rng::new(4), [0; 13]);
            (0..100_000).for_each(|_| counts[lengths.next(&mut rng) as usize] += 1);
            assert!(counts[..3].iter().all(|count| *count == 0), "{counts:?}");
            assert!(counts[3..].iter().all(|count| if even { (9_000..11_000).contains(count) } else { *count > 0 }));
            assert!(even || counts[3] > 3 * counts[12], "{counts:?}");
        }
    }

    /// Goal:   a scan that misses a record, or returns one under another's key, is noticed; so is an engine without ranges.
    /// Method: delete or replace a record after the load; reach the device over the wire.
    #[test]
    fn wrong_scans_are_noticed() {
        let text = "recordcount=500\nreadproportion=0\nupdateproportion=0\nscanproportion=1\nmaxscanlength=50";
        let settings = Settings::parse(&format!("{text}\ninsertorder=ordered")).unwrap();
        let run = |change: &dyn Fn(&mut dyn Session), connections: u16| {
            let ycsb = Ycsb::new("scans", settings.clone());
            let store = StoreOptions::new(1 << 20);
            let mut engine = KamlEngine::create_for(None, &CreateOptions::new(64 << 20), &store, &ycsb).unwrap();
            if connections > 0 {
                engine = engine.over_the_wire(&store, connections).unwrap();
            }
            ycsb.load(&engine, 1, &|_, _, _| ()).unwrap();
            change(&mut *engine.session().unwrap());
            ycsb.run(&engine, &Run::of(2, 2000), &|_, _, _| ())
        };
        assert_eq!(run(&|_| (), 0).unwrap().operations, 2000);
        assert!(matches!(run(&|_| (), 1), Err(Error::Parameters(what)) if what.contains("no ranges")));
        let missing = |session: &mut dyn Session| session.transact(&mut |txn| txn.delete(RECORDS, 77)).unwrap();
        assert!(matches!(run(&missing, 0), Err(Error::Wrong(_))));
        let foreign = |session: &mut dyn Session| {
            let mut value = Vec::new();
            assert!(session.get_into(RECORDS, 78, &mut value).unwrap());
            session.put(RECORDS, 77, &value).unwrap();
        };
        assert!(matches!(run(&foreign, 0), Err(Error::Wrong(what)) if what.contains("under key")));
    }
}
