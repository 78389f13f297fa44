//! `kaml-lab sim`: the firmware on modelled flash, under power cuts and faults.
//!
//! Lives here:       flags, threads over seeds, the live display, the clock of `speed`.
//! Lives elsewhere:  everything that is simulated and checked (`kaml-sim`).

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use kaml_sim::{Ask, Cuts, Load, Order, Plan, Rig, Small, Totals};
use kaml_terminal::failure::Failure;
use kaml_terminal::interrupt::Interrupt;
use kaml_terminal::output::{self, Paint};
use kaml_terminal::size;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Flags of `kaml-lab sim`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    sim: Sim,
}

#[derive(Subcommand)]
enum Sim {
    /// Run a number of seeds
    #[command(after_help = "Examples:
  kaml-lab sim run
  kaml-lab sim run --seeds 1000 --first-seed 5000 --cut-one-in 20
  kaml-lab sim run --exhaustive --json

The same seeds give the same fingerprint on every machine. Exits with 1 at the first promise that is broken, with the \
line that replays it.")]
    Run(RunArguments),
    /// Run seeds for a time, on all cores
    #[command(after_help = "Examples:
  kaml-lab sim soak --minutes 60
  kaml-lab sim soak --minutes 5 --first-seed 1000000 --json

Ctrl-C ends it early, with the totals so far.")]
    Soak(SoakArguments),
    /// Run one seed again
    #[command(after_help = "Examples:
  kaml-lab sim replay --seed 17 --cut 412
  kaml-lab sim replay --seed 3 --workload collection --cut 99")]
    Replay(ReplayArguments),
    /// How fast the firmware runs in virtual time, on one core
    #[command(after_help = "Examples:
  kaml-lab sim speed
  kaml-lab sim speed --bytes 4096 --hosts 64 --json

An operation is a command of a host, or an operation that the firmware has flash or the commit ring execute.")]
    Speed(SpeedArguments),
}

#[derive(Args)]
struct SpeedArguments {
    /// The board: kaml-2017, tlc, or a file
    #[arg(long, default_value = "kaml-2017")]
    board: String,
    /// Records
    #[arg(long, default_value_t = 2_000_000)]
    records: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    bytes: u32,
    /// Hosts, each with one command in progress
    #[arg(long, default_value_t = 8)]
    hosts: usize,
    /// Of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Figures as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct RunArguments {
    /// How many seeds
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first one
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Cut power at one in this many operations that change something
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    cut_one_in: u64,
    /// Also the small workloads, cut at every operation
    #[arg(long)]
    exhaustive: bool,
    /// Fail if fewer power cuts were survived
    #[arg(long, default_value_t = 0)]
    at_least_cuts: u64,
    /// Fail if fewer operations of hosts were executed
    #[arg(long, default_value_t = 0)]
    at_least_operations: u64,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct SoakArguments {
    /// For how long
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// The first seed [default: from the clock]
    #[arg(long)]
    first_seed: Option<u64>,
    /// Cut power at one in this many operations that change something
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    cut_one_in: u64,
    #[command(flatten)]
    common: Common,
}

/// Names of all small workloads.
const WORKLOADS: [&str; 22] = [
    "puts",
    "collection",
    "growth",
    "resized",
    "checkpoint",
    "direct",
    "namespaces",
    "blocks",
    "disks",
    "versions",
    "pasts",
    "on-flash",
    "readers",
    "flips",
    "failures",
    "conditions",
    "long-keys",
    "snapshots",
    "expiry",
    "large",
    "large-failures",
    "plain",
];

#[derive(Args)]
struct ReplayArguments {
    /// The seed
    #[arg(long)]
    seed: u64,
    /// The cut that went wrong; without it, only the lives of the seed are run
    #[arg(long)]
    cut: Option<u64>,
    /// The small workload
    #[arg(long, value_parser = PossibleValuesParser::new(WORKLOADS))]
    workload: Option<String>,
    /// The totals as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Common {
    /// Threads [default: all cores]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
    /// The totals as JSON
    #[arg(long)]
    json: bool,
}

impl Common {
    fn thread_count(&self) -> u64 {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u64))
    }
}

impl Arguments {
    /// Simulates.
    pub fn run(self) -> Result<(), Failure> {
        match self.sim {
            Sim::Run(arguments) => arguments.run(),
            Sim::Soak(arguments) => arguments.run(),
            Sim::Replay(arguments) => arguments.run(),
            Sim::Speed(arguments) => arguments.run(),
        }
    }
}

/// Seeds of each small workload that `--exhaustive` runs.
const SMALL_SEEDS: u64 = 14;

impl RunArguments {
    fn run(self) -> Result<(), Failure> {
        let cuts = Cuts::OneIn(self.cut_one_in);
        let seeds = self.first_seed..self.first_seed.saturating_add(self.seeds);
        let mut plans: Vec<Plan> = Vec::new();
        if self.exhaustive {
            let each = |small| (0..SMALL_SEEDS).map(move |seed| Plan { seed, small: Some(small), cuts: Cuts::Every });
            plans.extend(Small::ALL.into_iter().flat_map(each));
        }
        plans.extend(seeds.map(|seed| Plan { seed, small: None, cuts }));
        let bar = ProgressBar::new(plans.len() as u64).with_style(style("{bar:10} {pos}/{len} {wide_msg}"));
        let work = Work::new(bar, self.common.thread_count())?;
        work.run(|number| plans.get(number as usize).copied());
        let totals = work.finish(self.common.json)?;
        let short = |what: &str, got: u64, wanted: u64| match got < wanted {
            true => Err(Failure::Failed(format!("{got} {what}, at least {wanted} were requested"))),
            false => Ok(()),
        };
        short("power cuts", totals.cuts, self.at_least_cuts)?;
        short("operations", totals.counts.operations, self.at_least_operations)
    }
}

impl SoakArguments {
    fn run(self) -> Result<(), Failure> {
        let duration = Duration::try_from_secs_f64(self.minutes * 60.0)
            .map_err(|error| Failure::Usage(format!("--minutes: {error}")))?;
        let clock = || std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        let first = self.first_seed.unwrap_or_else(clock);
        let bar = ProgressBar::new(duration.as_secs()).with_style(style("{bar:10} {elapsed_precise} {wide_msg}"));
        let work = Work::new(bar, self.common.thread_count())?;
        let cuts = Cuts::OneIn(self.cut_one_in);
        let begin = Instant::now();
        if !self.common.json {
            output::line(format!("seeds from {first} on"))?;
        }
        work.run(|number| {
            (begin.elapsed() < duration).then(|| Plan { seed: first.wrapping_add(number), small: None, cuts })
        });
        work.finish(self.common.json).map(drop)
    }
}

impl ReplayArguments {
    fn run(self) -> Result<(), Failure> {
        let small = match &self.workload {
            None => None,
            Some(name) => Some(Small::named(name).ok_or_else(|| Failure::Usage(format!("no workload {name:?}")))?),
        };
        let plan = Plan { seed: self.seed, small, cuts: self.cut.map_or(Cuts::Only(0), Cuts::Only) };
        let totals = kaml_sim::run(&plan).map_err(|failure| Failure::Failed(failure.to_string()))?;
        show(&totals, Duration::ZERO, self.json)
    }
}

/// What a load came to in real time.
#[derive(serde::Serialize)]
struct Speed {
    what: &'static str,
    commands: u64,
    operations: u64,
    seconds: f64,
    operations_per_s: f64,
    virtual_seconds: f64,
}

impl SpeedArguments {
    fn run(self) -> Result<(), Failure> {
        let failed = |error: kaml_sim::RigError| Failure::Failed(error.to_string());
        let board = crate::experiment::board(&self.board)?;
        let mut rig = Rig::new(&board, self.seed).map_err(failed)?;
        let space = rig.create_records("records", Vec::new()).map_err(failed)?;
        rig.rest().map_err(failed)?;
        let insert = Load {
            space,
            ask: Ask::Put,
            bytes: self.bytes,
            batch: 1,
            records: 0..self.records,
            order: Order::Turn,
            hosts: self.hosts,
            warm_up: 0,
            commands: Some(self.records),
        };
        let update = Load { order: Order::Even, ..insert.clone() };
        let fetch = Load { ask: Ask::Get, ..update.clone() };
        let mut speeds = Vec::new();
        for (what, load) in [("insert", insert), ("update", update), ("fetch", fetch)] {
            let (begin, before, virtual_ns) = (Instant::now(), rig.operations(), rig.now_ns());
            rig.run(&[load]).map_err(failed)?;
            let (seconds, operations) = (begin.elapsed().as_secs_f64(), rig.operations() - before);
            speeds.push(Speed {
                what,
                commands: self.records,
                operations,
                seconds,
                operations_per_s: operations as f64 / seconds,
                virtual_seconds: (rig.now_ns() - virtual_ns) as f64 / 1e9,
            });
        }
        if self.json {
            return output::json(&speeds);
        }
        let head = ["", "commands", "operations", "seconds", "operations/s", "virtual seconds"];
        let row = |speed: &Speed| {
            vec![
                speed.what.to_owned(),
                size::show_count(speed.commands),
                size::show_count(speed.operations),
                format!("{:.2}", speed.seconds),
                size::show_count(speed.operations_per_s as u64),
                format!("{:.2}", speed.virtual_seconds),
            ]
        };
        output::line(output::table(&head, 1, speeds.iter().map(row)))
    }
}

/// Plans being run by several threads.
struct Work {
    bar: ProgressBar,
    threads: u64,
    next: AtomicU64,
    over: AtomicBool,
    totals: Mutex<Totals>,
    failure: Mutex<Option<Failure>>,
    interrupt: Interrupt,
    begin: Instant,
}

impl Work {
    fn new(bar: ProgressBar, threads: u64) -> Result<Work, Failure> {
        Ok(Work {
            bar,
            threads,
            next: AtomicU64::new(0),
            over: AtomicBool::new(false),
            totals: Mutex::default(),
            failure: Mutex::default(),
            interrupt: Interrupt::listen()?,
            begin: Instant::now(),
        })
    }

    /// Runs what `plan` gives until it gives nothing, something fails, or the person has had enough.
    fn run(&self, plan: impl Fn(u64) -> Option<Plan> + Sync) {
        // A panic of the firmware is reported with its seed; the default report would tear the display.
        std::panic::set_hook(Box::new(|_| {}));
        std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| self.thread(&plan));
            }
        });
        drop(std::panic::take_hook());
    }

    fn thread(&self, plan: &impl Fn(u64) -> Option<Plan>) {
        while !self.over.load(Ordering::Relaxed) {
            let Some(plan) = plan(self.next.fetch_add(1, Ordering::Relaxed)) else { return };
            match kaml_sim::run(&plan) {
                Ok(totals) => self.add(&totals),
                Err(failure) => self.fail(Failure::Failed(failure.to_string())),
            }
            if let Err(failure) = self.interrupt.check(|| "the totals above are of the seeds that ended".to_owned()) {
                self.fail(failure);
            }
        }
    }

    fn add(&self, more: &Totals) {
        let mut totals = self.totals.lock().expect("no panics under this lock");
        totals.add(more);
        self.bar.inc(1);
        if self.bar.length().is_some_and(|length| length < self.bar.position()) {
            self.bar.set_length(self.bar.position());
        }
        let count = size::show_count;
        self.bar.set_message(format!(
            "{} seeds, {} operations, {} power cuts, {} faults",
            count(totals.seeds),
            count(totals.counts.operations),
            count(totals.cuts),
            count(totals.faults.total())
        ));
    }

    fn fail(&self, failure: Failure) {
        self.over.store(true, Ordering::Relaxed);
        self.failure.lock().expect("no panics under this lock").get_or_insert(failure);
    }

    /// Shows the totals; fails as the run did.
    fn finish(self, json: bool) -> Result<Totals, Failure> {
        self.bar.finish_and_clear();
        let totals = self.totals.into_inner().expect("no panics under this lock");
        show(&totals, self.begin.elapsed(), json)?;
        match self.failure.into_inner().expect("no panics under this lock") {
            Some(failure) => Err(failure),
            None => Ok(totals),
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn show(totals: &Totals, elapsed: Duration, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(totals);
    }
    let paint = Paint::detect();
    let faults = &totals.faults;
    let rows = [
        ("seeds", totals.seeds),
        ("operations of hosts", totals.counts.operations),
        ("atomic puts", totals.counts.puts),
        ("medium operations that change something", totals.mutations),
        ("power cuts survived", totals.cuts),
        ("  of these, during recovery", totals.recovery_cuts),
        ("  while something was read at once", totals.read_cuts),
        ("  during formatting and the first opening", totals.format_cuts),
        ("    of these, with a device afterwards", totals.formats_whole),
        ("puts under conditions that held", totals.counts.conditions_held),
        ("  that did not", totals.counts.conditions_failed),
        ("records deleted as those of a range", totals.counts.deleted_in_ranges),
        ("records moved next to their neighbours", totals.counts.clustered),
        ("snapshots opened", totals.counts.snapshots),
        ("  that had expired when they were read", totals.counts.snapshots_expired),
        ("gets through snapshots", totals.counts.snapshot_reads),
        ("listings of snapshots", totals.counts.snapshot_listings),
        ("large values programmed by their callers", totals.counts.own_programs),
        ("gets of byte strings that found a value", totals.counts.strings_found),
        ("  that found none", totals.counts.strings_absent),
        ("namespaces moved to other logs", totals.counts.moves),
        ("  to logs that do not exist, or named twice", totals.counts.moves_refused),
        ("namespaces created", totals.counts.created),
        ("namespaces deleted", totals.counts.deleted),
        ("  begun while commands on them were under way", totals.counts.deleted_in_use),
        ("commands whose namespace had gone", totals.counts.orphaned),
        ("clean closes", totals.closes),
        ("failed ring, root and flush writes survived", totals.stops),
        ("faults survived", faults.total()),
        ("  failed programs", faults.programs),
        ("  failed erases", faults.erases),
        ("  flipped bits", faults.flips),
        ("  unreadable", faults.unreadable),
        ("  no space below", faults.no_space),
        ("  refused by a dead die", faults.dead_die),
        ("operations that were slow, or corrected by the flash", faults.slow + faults.corrected),
        ("reads that returned an error, data lost by flash", totals.counts.lost),
        ("devices given up, metadata lost by flash", totals.given_up),
    ];
    for (what, count) in rows {
        output::line(format!("{what:<50} {:>14}", paint.figure(size::show_count(count))))?;
    }
    output::line(format!("{:<50} {:>14}", "bytes moved by collection", size::show(totals.relocated_bytes)))?;
    output::line(format!("{:<50} {:016x}", "fingerprint", totals.trace_hash))?;
    if elapsed > Duration::ZERO {
        output::line(format!("{:<50} {:.1} s", "time", elapsed.as_secs_f64()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   every name that help shows is a workload, and those that are cut everywhere are shown.
    /// Method: look each up.
    #[test]
    fn workloads_have_their_names() {
        assert!(WORKLOADS.iter().all(|name| Small::named(name).is_some_and(|small| small.name() == *name)));
        assert!(Small::ALL.iter().all(|small| WORKLOADS.contains(&small.name())));
    }
}
