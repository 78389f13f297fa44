//! A micro benchmark of scans: a number of records from a random position, or the whole table in the order of its keys.
//!
//! Lives here:       the scans.
//! Lives elsewhere:  the table and its records, which are those of `ycsb`; the loop (`drive`).

use crate::Error;
use crate::drive::{self, About, Outcome, Progress, Run, Size, Tally, Worker, Workload};
use crate::engine::{Engine, Scan, Session, Table};
use crate::keys::Rng;
use crate::ycsb::{self, Ycsb};
use serde::Serialize;

const RECORDS: Table = Table(0);
const KINDS: [&str; 1] = ["scan"];

/// What is scanned, and how.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Records of the table.
    pub records: u64,
    /// Bytes of each.
    pub value_bytes: usize,
    /// Load in the order of the keys; otherwise in an order that has nothing to do with it.
    pub sequential: bool,
    /// Records of a scan; none for all.
    pub length: Option<u64>,
    /// From greater keys to smaller ones.
    pub reverse: bool,
}

/// A table that is scanned.
pub struct Scans {
    settings: Settings,
    table: Ycsb,
}

impl Scans {
    /// A table of this size.
    pub fn new(settings: Settings) -> Result<Scans, Error> {
        if settings.length == Some(0) {
            return Err(Error::Parameters("a scan of 0 records: must be at least 1".into()));
        }
        let order = if settings.sequential { "ordered" } else { "hashed" };
        let text = format!(
            "recordcount={}\nfieldcount=1\nfieldlength={}\ninsertorder={order}\nreadproportion=0\n\
             updateproportion=0\nscanproportion=1",
            settings.records, settings.value_bytes
        );
        let properties = ycsb::Settings::parse(&text).map_err(|error| Error::Parameters(error.to_string()))?;
        Ok(Scans { table: Ycsb::new("scans", properties), settings })
    }
}

impl Workload for Scans {
    fn tables(&self) -> &'static [&'static str] {
        self.table.tables()
    }

    fn is_scanned(&self, table: Table) -> bool {
        self.table.is_scanned(table)
    }

    fn check_run(&self, engine: &dyn Engine, run: &Run) -> Result<(), Error> {
        self.table.check_run(engine, run)
    }

    fn size(&self) -> Size {
        Size { operation_bytes: 0, ..self.table.size() }
    }

    fn load(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<(), Error> {
        self.table.load(engine, threads, progress)
    }

    fn fill_cache(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<(), Error> {
        self.table.fill_cache(engine, threads, progress)
    }

    fn run(&self, engine: &dyn Engine, run: &Run, progress: &Progress<'_>) -> Result<Outcome, Error> {
        self.check_run(engine, run)?;
        let configuration = serde_json::json!({ "settings": self.settings, "run": run });
        let workload = match self.settings.length {
            Some(length) => format!("scan {length}"),
            None => "scan all".into(),
        };
        let seed = |thread: usize| Rng::new(run.seed ^ (thread as u64).rotate_left(32)).next_u64();
        let make = |thread| Client { workload: self, rng: Rng::new(seed(thread)) };
        let about = About { workload, kinds: &KINDS, configuration };
        Ok(drive::run(engine, run, &about, progress, make)?.0)
    }

    /// One scan shows every record in order, each whole.
    fn compare(&self, engine: &dyn Engine, _: usize, _: &Progress<'_>) -> Result<Vec<String>, Error> {
        let count = self.table.scan_all(&mut *engine.session()?)?;
        if count != self.settings.records {
            return Err(Error::Wrong(format!("a scan of {} records returned {count}", self.settings.records)));
        }
        Ok(vec![format!("a scan returned all {count} records in order, compared byte by byte")])
    }
}

/// What one thread does.
struct Client<'a> {
    workload: &'a Scans,
    rng: Rng,
}

impl Worker for Client<'_> {
    fn operate(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<usize, Error> {
        let Settings { records, value_bytes, length, reverse, .. } = self.workload.settings;
        let all = Scan { reverse, ..Scan::of(RECORDS, 0, u64::MAX) };
        let start = length.map(|_| self.workload.table.key(self.rng.below(records)));
        let scan = match (start, length) {
            (Some(key), Some(length)) if reverse => Scan { last: key, limit: length as usize, ..all },
            (Some(key), Some(length)) => Scan { first: key, limit: length as usize, ..all },
            _ => all,
        };
        let (mut count, mut is_wrong, mut last) = (0, false, start);
        tally.try_on(|| {
            (count, is_wrong, last) = (0, false, None);
            session.scan(scan, &mut |key, value| {
                let follows = last.is_none_or(|last| if reverse { last > key } else { last < key });
                is_wrong |=
                    !follows || value.len() != value_bytes || (count == 0 && start.is_some_and(|start| start != key));
                (count, last) = (count + 1, Some(key));
            })?;
            Ok(())
        })?;
        tally.reads += count;
        let most = length.unwrap_or(records);
        if is_wrong || count == 0 || count > most || (length.is_none() && count < most) {
            return Err(Error::Wrong(format!("{scan:?} returned {count} records, or wrong ones")));
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::store::KamlEngine;
    use kaml::CreateOptions;
    use kaml::store::StoreOptions;

    fn settings() -> Settings {
        Settings { records: 3000, value_bytes: 100, sequential: false, length: Some(100), reverse: false }
    }

    /// Goal:   scans of a number of records and of all run in both directions over both orders of the load, and count what they
    ///         return; a table with a missing record is noticed.
    /// Method: two threads on a device in memory; delete a record after the load.
    #[test]
    fn scans_run() {
        for (sequential, reverse, length) in
            [(false, false, Some(100)), (true, true, Some(7)), (false, true, None), (true, false, None)]
        {
            let scans = Scans::new(Settings { sequential, reverse, length, ..settings() }).unwrap();
            let store = StoreOptions::new(1 << 20);
            let mut engine = KamlEngine::create_for(None, &CreateOptions::new(64 << 20), &store, &scans).unwrap();
            scans.load(&engine, 2, &|_, _, _| ()).unwrap();
            scans.fill_cache(&engine, 2, &|_, _, _| ()).unwrap();
            let outcome = scans.run(&engine, &Run::of(2, 50), &|_, _, _| ()).unwrap();
            let most = 50 * length.unwrap_or(3000);
            assert_eq!(outcome.operations, 50);
            assert!(outcome.reads <= most && outcome.reads > most / 2, "{}", outcome.reads);
            assert_eq!(scans.check(&mut engine, 2, &|_, _, _| ()).unwrap().len(), 1);
            let key = scans.table.key(77);
            engine.session().unwrap().transact(&mut |txn| txn.delete(RECORDS, key)).unwrap();
            assert!(matches!(scans.check(&mut engine, 2, &|_, _, _| ()), Err(Error::Wrong(_))));
        }
        assert!(matches!(Scans::new(Settings { length: Some(0), ..settings() }), Err(Error::Parameters(_))));
        assert!(matches!(Scans::new(Settings { records: 0, ..settings() }), Err(Error::Parameters(_))));
    }
}
