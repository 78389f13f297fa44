//! The bars: each measured against the floor or the raw device in turns, in one run, on one machine.
//!
//! Lives here:       groups of rows, options, running what is requested.
//! Lives elsewhere:  what is compared with what and the bars (`bench`), ratios (`row`), the table (`kaml-cli`).
//!
//! The two sides of a ratio alternate several times; the ratio is the median of the ratios of neighbours, so a disk
//! that has slow and fast minutes does not decide it. A row that varied too much, or during which others were at work, is marked as
//! disturbed and shows nothing about its bar.

mod bench;
mod row;

pub use row::{Bar, Row};

use crate::disturbance::Watch;
use bench::Bench;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Rows that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Durable 1 KiB puts by blocking threads.
    Puts,
    /// Durable 512 B puts from one thread, many in flight.
    Async,
    /// Puts of 32 records.
    Batch,
    /// Uncached gets.
    Get,
    /// Values of 1 MiB.
    Large,
    /// The index alone.
    Index,
    /// Bytes written per byte of values.
    Written,
    /// A full device.
    Steady,
    /// Opening.
    Reopen,
    /// Kill cycles.
    Kill,
    /// Resident memory.
    Memory,
}

impl Group {
    /// All of them, in the order of the table.
    pub const ALL: [Group; 11] = [
        Group::Puts,
        Group::Async,
        Group::Batch,
        Group::Get,
        Group::Index,
        Group::Written,
        Group::Large,
        Group::Steady,
        Group::Reopen,
        Group::Kill,
        Group::Memory,
    ];

    /// Whether its figures depend on time, and so on what else is at work.
    pub fn is_timed(self) -> bool {
        !matches!(self, Group::Written | Group::Kill | Group::Memory)
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Group::Puts => "puts",
            Group::Async => "async",
            Group::Batch => "batch",
            Group::Get => "get",
            Group::Large => "large",
            Group::Index => "index",
            Group::Written => "written",
            Group::Steady => "steady",
            Group::Reopen => "reopen",
            Group::Kill => "kill",
            Group::Memory => "memory",
        }
    }
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where devices and scratch files are made.
    pub dir: PathBuf,
    /// Each run of one side.
    pub duration: Duration,
    /// Turns of each side.
    pub repeats: usize,
    /// Which rows.
    pub groups: Vec<Group>,
    /// Records of the uncached gets.
    pub get_records: u64,
    /// Keys of the index rows.
    pub index_keys: Vec<u64>,
    /// Bytes of the device of the steady state.
    pub steady_capacity: u64,
    /// An end to each steady-state run.
    pub steady_duration_max: Duration,
    /// Records of the reopening.
    pub reopen_records: u64,
    /// Kill cycles.
    pub kill_cycles: u32,
    /// Bytes of values stored while the resident memory is watched.
    pub memory_bytes: u64,
    /// This program, whose `child` runs the children.
    pub program: PathBuf,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            dir: ".".into(),
            duration: Duration::from_secs(2),
            repeats: 5,
            groups: Group::ALL.to_vec(),
            get_records: 1_000_000,
            index_keys: vec![10_000_000, 100_000_000],
            steady_capacity: 4 << 30,
            steady_duration_max: Duration::from_secs(300),
            reopen_records: 10_000_000,
            kill_cycles: 300,
            memory_bytes: 20 << 30,
            program: "kaml".into(),
        }
    }
}

/// Measures the groups in turn; `progress` receives each row when it exists, and each step with its words.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Vec<Row> {
    let mut rows = Vec::new();
    for group in &options.groups {
        progress(Progress::Step(group.name()));
        let bench = Bench { options, group: *group };
        let watch = Watch::start();
        let found = match group {
            Group::Puts => bench.puts(),
            Group::Async => bench.puts_in_flight(),
            Group::Batch => bench.batches(),
            Group::Get => bench.gets(),
            Group::Large => bench.large(),
            Group::Index => Ok(bench.index()),
            Group::Written => bench.written(),
            Group::Steady => bench.steady(&mut |step| progress(Progress::Step(step))),
            Group::Reopen => bench.reopen(),
            Group::Kill => bench.kill(),
            Group::Memory => bench.memory(),
        };
        // One group that fails does not take the figures of the others with it.
        let mut found = found.unwrap_or_else(|error| vec![Row::failure(*group, &error)]);
        if let Some(why) = watch.stop().filter(|_| group.is_timed()) {
            let mark = |row: Row| if row.bar.is_some() { row.disturbed(&why) } else { row };
            found = found.into_iter().map(mark).collect();
        }
        found.iter().for_each(|row| progress(Progress::Row(row)));
        rows.extend(found);
    }
    rows
}

/// Progress to report meanwhile.
pub enum Progress<'a> {
    /// What is being done.
    Step(&'a str),
    /// A row is done.
    Row(&'a Row),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   every group can be requested by its name, once.
    /// Method: names of all groups are different.
    #[test]
    fn group_names_differ() {
        let names: std::collections::BTreeSet<_> = Group::ALL.iter().map(|group| group.name()).collect();
        assert_eq!(names.len(), Group::ALL.len());
    }
}
