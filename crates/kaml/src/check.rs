//! The scrubber: reads every block in use and checks every record.
//!
//! Lives here:       walking the device, totals, findings in words, where they are reported.
//! Lives elsewhere:  what a record must look like (`kaml_device::BlockAudit`).

use crate::driver::Shared;
use crate::error::Error;
use crate::sync::MutexGuard;
use crate::{Device, NamespaceId};
use kaml_device::{BlockAudit, Core, SpaceReader};
use serde::Serialize;
use std::collections::BTreeSet;

/// What a check found.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// device.put(users, 1u64, b"ada")?;
/// let report = device.check(&mut |done, total| println!("{done} of {total} blocks"))?;
/// assert!(report.problems.is_empty() && report.records == 1);
/// # Ok::<(), kaml::Error>(())
/// ```
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

/// Hears of a check while it continues: blocks done, blocks in all (0 before they are counted), and what is wrong, or nothing if it is
/// only how far it has come. Returns whether to continue. No lock is held meanwhile.
type Hear<'a> = &'a mut dyn FnMut(u64, u64, Option<&str>) -> bool;

impl Device {
    /// As [`Device::check`], and reports each problem as soon as it is found: `hear` receives blocks done, blocks in all, and what is
    /// wrong, or nothing if it is only how far the check has come. It returns whether to continue; if not, the check ends with
    /// [`Error::Cancelled`].
    ///
    /// # Errors
    /// [`Error::Cancelled`] if `hear` ends the check; otherwise as [`Device::check`].
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

/// A check that continues.
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
            self.report(None)?;
            self.read(block)?;
            self.done += 1;
        }
        let keeps_versions = |id: &u32| match self.shared.reader.of(*id) {
            Ok(SpaceReader::Versions(_)) => true,
            Ok(SpaceReader::Records(_) | SpaceReader::Blocks) | Err(_) => false,
        };
        let (versioned, plain): (Vec<u32>, Vec<u32>) = namespaces.into_iter().partition(keeps_versions);
        for id in versioned {
            self.report(None)?;
            match self.shared.verify_versions(id) {
                Ok((versions, bytes)) => {
                    self.report.versions += versions;
                    self.report.value_bytes += bytes;
                }
                Err(error) => self.problem(format!("namespace {id}: {error}"))?,
            }
        }
        self.report(None)?;
        let (indexed, is_same) = {
            let core = self.shared.lock();
            let indexed =
                core.namespaces().iter().filter(|n| plain.contains(&n.id)).map(|n| n.record_count).sum::<u64>();
            (indexed + core.large_version_values(), was_still && core.is_idle() && changes(&core) == begun)
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
            // Nobody but this check may have used them for a long time, or somebody needs their memory.
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
                let is_gone = matches!(error, Error::UnknownNamespace(_));
                if self.without.insert(id) && !is_gone {
                    self.problem(error.to_string())?;
                }
                Ok(self.shared.lock())
            }
        }
    }

    fn problem(&mut self, what: String) -> Result<(), Error> {
        self.report(Some(&what))?;
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(what)
        } else {
            self.untold += 1
        }
        Ok(())
    }

    fn report(&mut self, problem: Option<&str>) -> Result<(), Error> {
        if (self.hear)(self.done, self.total, problem) { Ok(()) } else { Err(Error::Cancelled) }
    }
}

/// Reports whether records have come, gone or moved.
fn changes(core: &Core) -> (u64, u64, u64) {
    let stats = core.stats();
    (stats.put_count, stats.delete_count, stats.relocated_bytes)
}
