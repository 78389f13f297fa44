//! The scrubber: reads every block in use and checks every record.
//!
//! Lives here:       walking the device, totals, findings in words, who hears of them.
//! Lives elsewhere:  what a record must look like (`kaml_device::BlockAudit`).

use crate::driver::Shared;
use crate::error::Error;
use crate::sync::MutexGuard;
use crate::{Device, NamespaceId};
use kaml_device::{BlockAudit, Core};
use serde::Serialize;
use std::collections::BTreeSet;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Blocks read.
    pub blocks: u64,
    /// Live records found whole.
    pub records: u64,
    /// Versions found whole, in namespaces that keep them.
    pub versions: u64,
    /// Bytes of all these values.
    pub value_bytes: u64,
    /// What is wrong, one sentence each; empty for a device in order.
    pub problems: Vec<String>,
}

/// Problems beyond this are counted and not kept one by one.
const PROBLEMS_MAX: usize = 1000;

/// Hears of a check while it goes on: blocks done, blocks in all (0 before they are counted), and what is wrong, or nothing if it is
/// only how far it has come. Answers whether to go on. No lock is held meanwhile.
type Hear<'a> = &'a mut dyn FnMut(u64, u64, Option<&str>) -> bool;

impl Device {
    /// As [`Device::check`], and tells each problem as soon as it is found: `hear` is told blocks done, blocks in all, and what is
    /// wrong, or nothing if it is only how far the check has come. It answers whether to go on; if not, the check ends with
    /// [`Error::Cancelled`].
    pub fn check_and_tell(&self, hear: &mut dyn FnMut(u64, u64, Option<&str>) -> bool) -> Result<CheckReport, Error> {
        let is_read_only = self.shared().lock().writable() == Err(kaml_device::Error::ReadOnly);
        if !is_read_only {
            self.settle()?;
        }
        Check::new(self.shared(), hear).run()
    }
}

pub(crate) fn check(shared: &Shared, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, Error> {
    let mut hear = |done, total, problem: Option<&str>| {
        if problem.is_none() {
            progress(done, total);
        }
        true
    };
    Check::new(shared, &mut hear).run()
}

/// A check that goes on.
struct Check<'a> {
    shared: &'a Shared,
    hear: Hear<'a>,
    done: u64,
    total: u64,
    report: CheckReport,
    /// Problems beyond those that are kept.
    untold: u64,
    /// Namespaces whose indexes cannot be loaded.
    without: BTreeSet<NamespaceId>,
}

impl<'a> Check<'a> {
    fn new(shared: &'a Shared, hear: Hear<'a>) -> Check<'a> {
        let (report, without) = (CheckReport::default(), BTreeSet::new());
        Check { shared, hear, done: 0, total: 0, report, untold: 0, without }
    }

    fn run(mut self) -> Result<CheckReport, Error> {
        let namespaces: Vec<u32> = self.shared.lock().namespaces().iter().map(|n| n.id).collect();
        for id in &namespaces {
            drop(self.load(*id)?);
        }
        let (blocks, begun, was_still) = {
            let core = self.shared.lock();
            // Collection counts what it moves before the index names it there.
            (core.blocks_in_use(), changes(&core), core.is_idle() && !core.has_unprogrammed())
        };
        self.total = blocks.len() as u64;
        for block in blocks {
            self.tell(None)?;
            self.read(block)?;
            self.done += 1;
        }
        let keeps_versions = |id: &u32| self.shared.reader.keeps_versions(*id);
        let (versioned, plain): (Vec<u32>, Vec<u32>) = namespaces.into_iter().partition(keeps_versions);
        for id in versioned {
            self.tell(None)?;
            match self.shared.verify_versions(id) {
                Ok((versions, bytes)) => {
                    self.report.versions += versions;
                    self.report.value_bytes += bytes;
                }
                Err(error) => self.problem(format!("namespace {id}: {error}"))?,
            }
        }
        self.tell(None)?;
        let (indexed, is_same) = {
            let core = self.shared.lock();
            let indexed =
                core.namespaces().iter().filter(|n| plain.contains(&n.id)).map(|n| n.record_count).sum::<u64>();
            (indexed, was_still && core.is_idle() && changes(&core) == begun)
        };
        let records = self.report.records;
        if self.report.problems.is_empty() && indexed != records && is_same {
            self.problem(format!("the indexes name {indexed} records, {records} were found in pages"))?;
        }
        if self.untold > 0 {
            self.report.problems.push(format!("and {} more", self.untold));
        }
        Ok(self.report)
    }

    /// Reads a block and judges it.
    fn read(&mut self, block: u32) -> Result<(), Error> {
        let found = {
            let Some(_held) = self.shared.lock().hold_block(block) else { return Ok(()) };
            let audit = BlockAudit::read(&self.shared.reader, &*self.shared.medium, block);
            let mut core = self.shared.lock();
            // Nobody but this check may have used them for a long time, or somebody wants their memory.
            while let Some(id) = audit.needed_index(&core, &self.without) {
                drop(core);
                core = self.load(id)?;
            }
            audit.judge(&core)
        };
        self.report.blocks += 1;
        self.report.records += found.records;
        self.report.value_bytes += found.value_bytes;
        found.problems.into_iter().try_for_each(|problem| self.problem(problem))
    }

    /// Loads an index, or notes that it cannot be.
    fn load(&mut self, id: NamespaceId) -> Result<MutexGuard<'a, Core>, Error> {
        match self.shared.load_index(self.shared.lock(), id) {
            Ok(core) => Ok(core),
            Err(error) => {
                // It may have been deleted meanwhile.
                let is_gone = matches!(error.command(), Some(kaml_device::Error::UnknownNamespace(_)));
                if self.without.insert(id) && !is_gone {
                    self.problem(error.to_string())?;
                }
                Ok(self.shared.lock())
            }
        }
    }

    fn problem(&mut self, what: String) -> Result<(), Error> {
        self.tell(Some(&what))?;
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(what)
        } else {
            self.untold += 1
        }
        Ok(())
    }

    fn tell(&mut self, problem: Option<&str>) -> Result<(), Error> {
        if (self.hear)(self.done, self.total, problem) { Ok(()) } else { Err(Error::Cancelled) }
    }
}

/// Tells whether records have come, gone or moved.
fn changes(core: &Core) -> (u64, u64, u64) {
    let stats = core.stats();
    (stats.put_count, stats.delete_count, stats.relocated_bytes)
}
