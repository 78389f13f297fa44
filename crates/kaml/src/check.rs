//! The scrubber: reads every block in use and checks every record.
//!
//! Lives here:       walking the device, totals, findings in words.
//! Lives elsewhere:  what a record must look like (`kaml_device::BlockAudit`).

use crate::NamespaceId;
use crate::driver::Shared;
use crate::error::Error;
use crate::sync::MutexGuard;
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

/// Problems beyond this are counted and not told one by one.
const PROBLEMS_MAX: usize = 1000;

pub(crate) fn check(shared: &Shared, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, Error> {
    let mut report = CheckReport::default();
    let mut untold = 0u64;
    let namespaces: Vec<u32> = shared.lock().namespaces().iter().map(|n| n.id).collect();
    let mut without = BTreeSet::new();
    for id in &namespaces {
        drop(load(shared, *id, &mut without, &mut report.problems));
    }
    let (blocks, begun, was_still) = {
        let core = shared.lock();
        // Collection counts what it moves before the index names it there.
        (core.blocks_in_use(), changes(&core), core.is_idle() && !core.has_unprogrammed())
    };
    let total = blocks.len() as u64;
    for (done, block) in blocks.into_iter().enumerate() {
        progress(done as u64, total);
        let Some(_held) = shared.lock().hold_block(block) else { continue };
        let audit = BlockAudit::read(&shared.reader, &*shared.medium, block);
        let mut core = shared.lock();
        // Nobody but this check may have used them for a long time, or somebody wants their memory.
        while let Some(id) = audit.needed_index(&core, &without) {
            drop(core);
            core = load(shared, id, &mut without, &mut report.problems);
        }
        let found = audit.judge(&core);
        report.blocks += 1;
        report.records += found.records;
        report.value_bytes += found.value_bytes;
        for problem in found.problems {
            if report.problems.len() < PROBLEMS_MAX { report.problems.push(problem) } else { untold += 1 }
        }
    }
    progress(total, total);
    if untold > 0 {
        report.problems.push(format!("and {untold} more"));
    }
    let versioned: Vec<u32> = namespaces.iter().copied().filter(|id| shared.reader.keeps_versions(*id)).collect();
    for id in &versioned {
        match shared.verify_versions(*id) {
            Ok((versions, bytes)) => {
                (report.versions, report.value_bytes) = (report.versions + versions, report.value_bytes + bytes)
            }
            Err(error) => report.problems.push(format!("namespace {id}: {error}")),
        }
    }
    let core = shared.lock();
    let is_counted = |id: &u32| namespaces.contains(id) && !versioned.contains(id);
    let indexed: u64 = core.namespaces().iter().filter(|n| is_counted(&n.id)).map(|n| n.record_count).sum();
    let is_same = was_still && core.is_idle() && changes(&core) == begun;
    if report.problems.is_empty() && indexed != report.records && is_same {
        report.problems.push(format!("the indexes name {indexed} records, {} were found in pages", report.records));
    }
    Ok(report)
}

/// Loads an index, or notes that it cannot be.
fn load<'a>(
    shared: &'a Shared,
    id: NamespaceId,
    without: &mut BTreeSet<NamespaceId>,
    problems: &mut Vec<String>,
) -> MutexGuard<'a, Core> {
    match shared.load_index(shared.lock(), id) {
        Ok(core) => core,
        Err(error) => {
            // It may have been deleted meanwhile.
            let is_gone = matches!(error.command(), Some(kaml_device::Error::UnknownNamespace(_)));
            if without.insert(id) && !is_gone {
                problems.push(error.to_string());
            }
            shared.lock()
        }
    }
}

/// Tells whether records have come, gone or moved.
fn changes(core: &Core) -> (u64, u64, u64) {
    let stats = core.stats();
    (stats.put_count, stats.delete_count, stats.relocated_bytes)
}
