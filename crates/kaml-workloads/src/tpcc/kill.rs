//! TPC-C killed at random moments: the consistency conditions hold whenever the device is opened again.
//!
//! Lives here:       the child that runs all five transactions, the parent that kills it and checks conditions 1 to 12.
//! Lives elsewhere:  the command line that runs the child (`kaml-bench`); what was acknowledged exists (`crate::kill`).

use super::{Mix, Settings, Tpcc, check};
use crate::Error;
use crate::drive::{Run, Workload};
use crate::engine::store::KamlEngine;
use crate::keys::Rng;
use kaml::CreateOptions;
use kaml::store::StoreOptions;
use serde::Serialize;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Threads of the child.
const THREADS: usize = 8;
const CACHE_BYTES: u64 = 8 << 20;
/// The longest time that a child is left alive.
const LIFE_MAX: Duration = Duration::from_millis(600);

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Cycles {
    /// How many.
    pub count: u32,
    /// Bytes of the device.
    pub capacity: u64,
    /// Of the moments of the kills.
    pub seed: u64,
    /// The program and its first arguments that run [`child`]; the path of the device and the cycle are appended.
    pub program: PathBuf,
    /// See `program`.
    pub arguments: Vec<String>,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Cycles that were run.
    pub cycles: u32,
    /// NewOrders that exist in the end.
    pub new_orders: u64,
    /// The seed.
    pub seed: u64,
}

fn settings() -> Settings {
    Settings { items: 1000, customers_per_district: 60, mix: Mix::Full, ..Settings::new(2) }
}

fn quiet(_: crate::drive::Stage, _: u64, _: u64) {}

/// The child: runs transactions until it is killed.
pub fn child(path: &Path, cycle: u64) -> Result<(), Error> {
    let tpcc = Tpcc { first_client: cycle * THREADS as u64, ..Tpcc::new(settings())? };
    let engine = KamlEngine::open_at(path, &StoreOptions::new(CACHE_BYTES), tpcc.tables())?;
    tpcc.run(&engine, &Run { seed: cycle + 1, ..Run::of(THREADS, u64::MAX) }, &quiet).map(drop)
}

/// Loads warehouses on a new device at `path`, and runs the cycles; `progress` receives the number of finished ones.
pub fn run(path: &Path, cycles: &Cycles, progress: &mut dyn FnMut(u32)) -> Result<Outcome, Error> {
    let tpcc = Tpcc::new(settings())?;
    let store = StoreOptions::new(CACHE_BYTES);
    let engine = KamlEngine::create_for(Some(path), &CreateOptions::new(cycles.capacity), &store, &tpcc)?;
    tpcc.load(&engine, THREADS, &quiet)?;
    engine.close()?;
    let mut outcome = Outcome { seed: cycles.seed, ..Outcome::default() };
    let mut rng = Rng::new(cycles.seed);
    while outcome.cycles < cycles.count {
        let life = Duration::from_nanos(rng.below(LIFE_MAX.as_nanos() as u64));
        live_and_die(path, cycles, outcome.cycles, life)?;
        let engine = KamlEngine::open_at(path, &store, tpcc.tables())?;
        let orders = check::check_conditions(&tpcc.settings, &engine, THREADS, &quiet)
            .map_err(|error| Error::Wrong(format!("cycle {}, alive {life:?}: {error}", outcome.cycles)))?;
        outcome.new_orders = orders - tpcc.settings.customers();
        engine.close()?;
        outcome.cycles += 1;
        progress(outcome.cycles);
    }
    Ok(outcome)
}

fn live_and_die(path: &Path, cycles: &Cycles, cycle: u32, life: Duration) -> Result<(), Error> {
    let mut child = Command::new(&cycles.program)
        .args(&cycles.arguments)
        .arg(path)
        .arg(cycle.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::io("starting the child process"))?;
    let complaints = child.stderr.take();
    std::thread::sleep(life);
    child.kill().map_err(Error::io("killing the child process"))?;
    let status = child.wait().map_err(Error::io("waiting for the child process"))?;
    if std::os::unix::process::ExitStatusExt::signal(&status) == Some(9) {
        return Ok(());
    }
    let mut words = String::new();
    let _ = complaints.map(|mut complaints| complaints.read_to_string(&mut words));
    Err(Error::Wrong(format!("the child ended by itself with {status}: {}", words.trim())))
}
