//! Cycles of killed processes, and the child processes of all measurements.
//!
//! Lives here:       running cycles, showing what they found, the hidden subcommand of children.
//! Lives elsewhere:  what children do and what is checked after them (`kaml-workloads`).

use clap::{Args, Subcommand};
use kaml_terminal::failure::Failure;
use kaml_terminal::passing::Passing;
use kaml_terminal::{interrupt, output, progress, size};
use kaml_workloads::kill::{self, Cycles};
use kaml_workloads::{memory, reopen, tpcc};
use std::path::{Path, PathBuf};

fn clock() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64)
}

pub fn kill_tpcc(count: u32, capacity: u64, seed: Option<u64>, dir: &Path, json: bool) -> Result<(), Failure> {
    let scratch = Passing::directory(dir).map_err(Failure::io(dir.display()))?;
    let cycles = tpcc::kill::Cycles {
        count,
        capacity,
        seed: seed.unwrap_or_else(clock),
        program: std::env::current_exe().map_err(Failure::io("finding our own program"))?,
        arguments: vec![CHILD.into(), "tpcc".into()],
    };
    let bar = progress::bytes_bar(count.into());
    let path = scratch.path().join("kill.kaml");
    let outcome = tpcc::kill::run(&path, &cycles, &mut |done| bar.set_position(done.into()));
    bar.finish_and_clear();
    match outcome {
        Ok(outcome) if json => output::json(&outcome),
        Ok(outcome) => output::line(format!(
            "{} cycles, {} NewOrders, conditions 1 to 12 held after each; again with --seed {}",
            outcome.cycles, outcome.new_orders, outcome.seed
        )),
        Err(error) => {
            // The device is the evidence.
            let (kept, seed) = (scratch.keep(), cycles.seed);
            Err(Failure::Failed(format!("{error}; seed {seed}; the device is kept in {}", kept.display())))
        }
    }
}

pub fn kill_cycles(count: u32, capacity: u64, seed: Option<u64>, dir: &Path, json: bool) -> Result<(), Failure> {
    let scratch = Passing::directory(dir).map_err(Failure::io(dir.display()))?;
    let cycles = Cycles {
        count,
        capacity,
        seed: seed.unwrap_or_else(clock),
        program: std::env::current_exe().map_err(Failure::io("finding our own program"))?,
        arguments: vec![CHILD.into(), "batches".into()],
    };
    let bar = progress::bytes_bar(count.into());
    let outcome = kill::run(&scratch.path().join("kill.kaml"), &cycles, &mut |done| bar.set_position(done.into()))?;
    bar.finish_and_clear();
    if json {
        output::json(&outcome)?;
    } else {
        let batches = size::show_count(outcome.acknowledged_batches);
        output::line(format!("{} cycles, {batches} acknowledged batches, none lost or half there", outcome.cycles))?;
        let (whole, early) = (outcome.unacknowledged_but_whole, outcome.killed_before_first);
        output::line(format!("{whole} not yet acknowledged and whole; {early} killed before the first batch"))?;
        let (slowest, seed) = (size::show_ns(outcome.reopen_ns_max), outcome.seed);
        output::line(format!("slowest reopen {slowest}; again with --seed {seed}"))?;
    }
    match outcome.problems.as_slice() {
        [] => Ok(()),
        problems => {
            // The device is the evidence.
            let kept = scratch.keep();
            Err(Failure::Failed(format!("{}; the device is kept in {}", problems.join("; "), kept.display())))
        }
    }
}

/// Name of the hidden subcommand that child processes run.
pub const CHILD: &str = "child";

/// Flags of the child processes.
#[derive(Args)]
pub struct ChildArguments {
    #[command(subcommand)]
    job: Job,
}

#[derive(Subcommand)]
pub enum Job {
    /// Puts batches until it is killed
    Batches { device: PathBuf },
    /// Puts small records, then kills itself
    Load { device: PathBuf, records: u64 },
    /// Runs TPC-C until it is killed
    Tpcc { device: PathBuf, cycle: u64 },
    /// Fills a new device and reports its own memory
    Memory { device: PathBuf, bytes: u64, value_bytes: usize },
}

impl ChildArguments {
    /// Works until it is killed.
    pub fn run(self) -> Result<(), Failure> {
        interrupt::dies_with_parent()?;
        match self.job {
            Job::Batches { device } => Ok(kill::child(&device, &kill::tell_stdout)?),
            Job::Memory { device, bytes, value_bytes } => output::json(&memory::child(&device, bytes, value_bytes)?),
            Job::Tpcc { device, cycle } => Ok(tpcc::kill::child(&device, cycle)?),
            Job::Load { device, records } => Ok(reopen::child(&device, records)?),
        }
    }
}
