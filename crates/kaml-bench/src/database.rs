//! `kaml-bench ycsb`, `scan`, `tpcb` and `tpcc`: database workloads on KAML's record cache and transactions.
//!
//! Lives here:       flags, progress and the table.
//! Lives elsewhere:  workloads, engine and figures (`kaml-workloads`).

use crate::commands::{in_flight_within, threads_within, time};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use kaml::CreateOptions;
use kaml::store::StoreOptions;
use kaml_terminal::failure::Failure;
use kaml_terminal::flags::Durability;
use kaml_terminal::passing::Passing;
use kaml_terminal::{output, size};
use kaml_workloads::drive::{Outcome, Run, Stage, Workload};
use kaml_workloads::engine::store::KamlEngine;
use kaml_workloads::{scans, tpcb, tpcc, ycsb};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The device is offered so many bytes for each byte that the workload loads or adds, by default: enough that garbage
/// collection has an easy life.
const CAPACITY_FACTOR: u64 = 3;
/// A guess of operations per second, for what a run adds to a device.
const OPERATIONS_PER_S: f64 = 50_000.0;
/// The smallest device that is made by default.
const CAPACITY_MIN: u64 = 1 << 30;

#[derive(Args)]
struct Common {
    /// Threads, a list: one row for each, on the same tables
    #[arg(long, default_value = "16", value_delimiter = ',')]
    threads: Vec<usize>,
    /// Operations that each thread has in flight, for workloads on single records; 0: it waits for each
    #[arg(long, default_value_t = 0)]
    in_flight: usize,
    /// Memory of the record cache: bytes, or a share of the data, for example 512MiB or 40%
    #[arg(long, default_value = "40%")]
    cache: CacheSize,
    /// Neighbouring keys that share a lock
    #[arg(long, default_value_t = 1)]
    records_per_lock: u32,
    /// Release locks when a commit's place in the durable order is fixed, not when it is durable
    #[arg(long)]
    early_release: bool,
    /// Commits return at once and become durable after about this many milliseconds, in order, many in one Put
    #[arg(long, value_name = "MS", default_value = "0", value_parser = milliseconds)]
    delay: Duration,
    /// Seconds of each measured run
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds that run before each, so the cache fills
    #[arg(long, default_value_t = 5.0)]
    warm_up: f64,
    /// Read every record once before the first run, so the cache is as full as it gets
    #[arg(long)]
    fill_cache: bool,
    /// Stop each run after this many operations
    #[arg(long)]
    operations: Option<u64>,
    /// Of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the device is made; should be on the disk to be measured
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Use a device in memory, which nothing waits for
    #[arg(long, conflicts_with = "dir")]
    in_memory: bool,
    /// Bytes of the new device [default: three times the data]
    #[arg(long, value_parser = size::parse)]
    capacity: Option<u64>,
    /// Write every block of the new device once beforehand, so the file system allocates nothing during the runs
    #[arg(long)]
    prewrite: bool,
    /// What an acknowledged transaction survives
    #[arg(long, value_enum, default_value_t)]
    durability: Durability,
    /// Reach the device over NVMe/TCP on loopback, by this many connections
    #[arg(long, value_name = "CONNECTIONS", value_parser = clap::value_parser!(u16).range(1..))]
    served: Option<u16>,
    /// Threads that load and check
    #[arg(long, default_value_t = 4)]
    load_threads: usize,
    /// Do not compare the tables afterwards with what was committed
    #[arg(long)]
    no_check: bool,
    /// Outcomes as JSON
    #[arg(long)]
    json: bool,
}

/// Bytes, or a share of the data.
#[derive(Clone, Copy, Debug)]
enum CacheSize {
    Bytes(u64),
    Share(f64),
}

impl FromStr for CacheSize {
    type Err = String;
    fn from_str(text: &str) -> Result<CacheSize, String> {
        let Some(percent) = text.trim().strip_suffix('%') else {
            return size::parse(text).map(CacheSize::Bytes).map_err(|error| error.to_string());
        };
        match percent.trim().parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 1000.0 => Ok(CacheSize::Share(percent / 100.0)),
            _ => Err(format!("`{text}` is no share; write for example 40%")),
        }
    }
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let number = text.trim().parse::<f64>().ok().and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok());
    number.ok_or_else(|| format!("`{text}` is no time; write for example 50 or 0.5"))
}

/// Flags of `kaml-bench ycsb`.
#[derive(Args)]
pub struct YcsbArguments {
    /// Standard workloads by letter (a to f), or YCSB property files
    #[arg(value_name = "WORKLOAD", required = true, value_delimiter = ',')]
    workloads: Vec<String>,
    /// Records to load, instead of the workload's number
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// A property to set, instead of the workload's value
    #[arg(long, short, value_name = "NAME=VALUE")]
    property: Vec<String>,
    /// Load as many records and run as many operations as the workload specifies
    #[arg(long)]
    as_is: bool,
    #[command(flatten)]
    common: Common,
}

/// Flags of `kaml-bench scan`.
#[derive(Args)]
pub struct ScanArguments {
    /// Records of the table
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Bytes of a record
    #[arg(long, default_value = "1K", value_parser = size::parse)]
    bytes: u64,
    /// Records of a scan, from a random position
    #[arg(long, default_value_t = 100, conflicts_with = "all")]
    length: u64,
    /// Scan the whole table
    #[arg(long)]
    all: bool,
    /// From greater keys to smaller ones
    #[arg(long)]
    reverse: bool,
    /// Load in the order of the keys, not at random
    #[arg(long)]
    sequential: bool,
    #[command(flatten)]
    common: Common,
}

/// Flags of `kaml-bench tpcb`.
#[derive(Args)]
pub struct TpcbArguments {
    /// Branches
    #[arg(long, default_value_t = 16)]
    scale: u64,
    /// Accounts of a branch
    #[arg(long, default_value_t = 100_000)]
    accounts_per_branch: u64,
    /// Choose branches by zipf with this skew, below 1, not evenly
    #[arg(long)]
    zipf: Option<f64>,
    /// Rows of 512 B, as in the KAML paper
    #[arg(long)]
    paper_sizes: bool,
    #[command(flatten)]
    common: Common,
}

/// Flags of `kaml-bench tpcc`.
#[derive(Args)]
pub struct TpccArguments {
    /// Warehouses
    #[arg(long, default_value_t = 16)]
    scale: u64,
    /// Which transactions
    #[arg(long, alias = "transaction", value_enum, default_value_t)]
    mix: Mix,
    /// Pause between transactions of a thread, as a share of the benchmark's keying and thinking times
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    think: f64,
    /// Each thread works for one warehouse only
    #[arg(long)]
    own_warehouse: bool,
    /// Items, and stocks of a warehouse
    #[arg(long, default_value_t = 100_000)]
    items: u64,
    /// Customers of a district, and orders that it begins with
    #[arg(long, default_value_t = 3000)]
    customers_per_district: u64,
    /// Rows of 512 B, customers of 1024 B, as in the KAML paper
    #[arg(long)]
    paper_sizes: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Mix {
    /// As many NewOrders as Payments, as in the KAML paper
    #[default]
    #[value(alias = "mix")]
    Paper,
    /// All five transactions, as the benchmark specifies
    Full,
    NewOrder,
    Payment,
}

impl YcsbArguments {
    /// Measures and shows.
    pub fn run(self) -> Result<(), Failure> {
        let mut outcomes = Vec::new();
        for workload in &self.workloads {
            let settings = self.settings(workload)?;
            let operations_max =
                if self.as_is { Some(settings.operation_count).filter(|count| *count > 0) } else { None };
            let name =
                std::path::Path::new(workload).file_name().map_or(workload.into(), |name| name.to_string_lossy());
            outcomes.extend(self.common.measure(&ycsb::Ycsb::new(&name, settings), operations_max)?);
        }
        self.common.show(&outcomes)
    }

    fn settings(&self, workload: &str) -> Result<ycsb::Settings, Failure> {
        let usage = |error: &dyn std::fmt::Display| Failure::Usage(format!("{workload}: {error}"));
        let mut properties = if workload.len() == 1 {
            ycsb::Settings::standard(workload).map_err(|error| usage(&error))?
        } else {
            let text = std::fs::read_to_string(workload).map_err(Failure::io(workload))?;
            ycsb::Properties::parse(&text).map_err(|error| usage(&error))?
        };
        if !self.as_is {
            properties.set("recordcount", self.records.to_string());
        }
        for property in &self.property {
            let (name, value) = property
                .split_once('=')
                .ok_or_else(|| Failure::Usage(format!("--property {property}: write NAME=VALUE")))?;
            properties.set(name.trim(), value);
        }
        ycsb::Settings::new(&properties).map_err(|error| usage(&error))
    }
}

impl ScanArguments {
    /// Measures and shows.
    pub fn run(self) -> Result<(), Failure> {
        let settings = scans::Settings {
            records: self.records,
            value_bytes: self.bytes as usize,
            sequential: self.sequential,
            length: (!self.all).then_some(self.length),
            reverse: self.reverse,
        };
        self.common.show(&self.common.measure(&scans::Scans::new(settings)?, None)?)
    }
}

impl TpcbArguments {
    /// Measures and shows.
    pub fn run(self) -> Result<(), Failure> {
        let sizes = if self.paper_sizes { tpcb::Settings::paper } else { tpcb::Settings::new };
        let settings =
            tpcb::Settings { accounts_per_branch: self.accounts_per_branch, zipf: self.zipf, ..sizes(self.scale) };
        self.common.show(&self.common.measure(&tpcb::Tpcb::new(settings)?, None)?)
    }
}

impl TpccArguments {
    /// Measures and shows.
    pub fn run(self) -> Result<(), Failure> {
        let sizes = if self.paper_sizes { tpcc::Settings::paper } else { tpcc::Settings::new };
        let settings = tpcc::Settings {
            items: self.items,
            customers_per_district: self.customers_per_district,
            own_warehouse: self.own_warehouse,
            mix: match self.mix {
                Mix::Paper => tpcc::Mix::Paper(0.5),
                Mix::Full => tpcc::Mix::Full,
                Mix::NewOrder => tpcc::Mix::Paper(1.0),
                Mix::Payment => tpcc::Mix::Paper(0.0),
            },
            think: self.think,
            ..sizes(self.scale)
        };
        self.common.show(&self.common.measure(&tpcc::Tpcc::new(settings)?, None)?)
    }
}

impl Common {
    /// Loads a workload on a new device, runs it with each number of threads, and checks it.
    fn measure(&self, workload: &dyn Workload, operations_max: Option<u64>) -> Result<Vec<Outcome>, Failure> {
        let runs = self.runs(operations_max)?;
        let scratch = Passing::directory(&self.dir).map_err(Failure::io(self.dir.display()))?;
        let path = scratch.path().join("bench.kaml");
        let path = (!self.in_memory).then_some(path.as_path());
        let store = self.store(workload);
        let mut engine = KamlEngine::create_for(path, &self.device(workload), &store, workload)?;
        if let Some(connections) = self.served {
            engine = engine.over_the_wire(&store, connections)?;
        }
        runs.iter().try_for_each(|run| workload.check_run(&engine, run))?;
        let bar = stage_bar();
        let progress = |stage, done, total| show_stage(&bar, stage, done, total);
        workload.load(&engine, self.load_threads, &progress)?;
        if self.fill_cache {
            workload.fill_cache(&engine, self.load_threads, &progress)?;
        }
        let mut outcomes =
            runs.iter().map(|run| workload.run(&engine, run, &progress)).collect::<Result<Vec<_>, _>>()?;
        if !self.no_check {
            let checked = workload.check(&mut engine, self.load_threads, &progress)?;
            outcomes.iter_mut().for_each(|outcome| outcome.checked.clone_from(&checked));
        }
        bar.finish_and_clear();
        Ok(outcomes)
    }

    fn runs(&self, operations_max: Option<u64>) -> Result<Vec<Run>, Failure> {
        let (duration, warm_up) = (time("seconds", self.seconds, false)?, time("warm-up", self.warm_up, true)?);
        threads_within("load-threads", self.load_threads)?;
        let operations_max = self.operations.or(operations_max).unwrap_or(u64::MAX);
        let run = |(at, &threads): (usize, &usize)| {
            threads_within("threads", threads)?;
            in_flight_within(self.in_flight, threads)?;
            let seed = self.seed.wrapping_add(at as u64);
            Ok(Run { threads, in_flight: self.in_flight, duration, warm_up, operations_max, seed })
        };
        self.threads.iter().enumerate().map(run).collect()
    }

    fn device(&self, workload: &dyn Workload) -> CreateOptions {
        let size = workload.size();
        let seconds = (self.seconds + self.warm_up).max(0.0) * self.threads.len() as f64;
        let operations = self.operations.map_or(seconds * OPERATIONS_PER_S, |most| most as f64);
        let added = (operations * size.operation_bytes as f64) as u64;
        let wanted = size.value_bytes.saturating_mul(CAPACITY_FACTOR).saturating_add(added);
        let capacity = self.capacity.unwrap_or(wanted.max(CAPACITY_MIN));
        CreateOptions { durability: self.durability.into(), prewrite: self.prewrite, ..CreateOptions::new(capacity) }
    }

    fn store(&self, workload: &dyn Workload) -> StoreOptions {
        let bytes = match self.cache {
            CacheSize::Bytes(bytes) => bytes,
            CacheSize::Share(share) => (workload.size().value_bytes as f64 * share) as u64,
        };
        StoreOptions {
            records_per_lock: self.records_per_lock,
            early_release: self.early_release,
            durability_delay: self.delay,
            ..StoreOptions::new(bytes)
        }
    }

    fn show(&self, outcomes: &[Outcome]) -> Result<(), Failure> {
        if self.json {
            return output::json(&outcomes);
        }
        let head = [
            "workload",
            "threads",
            "ops/s",
            "p50",
            "p99",
            "p99.9",
            "aborts",
            "disk B/B",
            "CPU µs/op",
            "peak memory",
            "hit ratio",
        ];
        output::line(output::table(&head, 1, outcomes.iter().flat_map(rows)))?;
        for outcome in outcomes {
            if outcome.workload.starts_with("scan") {
                let rate = size::show_rate(outcome.reads as f64 / outcome.seconds);
                output::line(format!("{}: {rate} records/s", outcome.workload))?;
            }
            if let Some(tpm_c) = outcome.tpm_c {
                let threads = &outcome.configuration["run"]["threads"];
                output::line(format!("{}, {threads} threads: {tpm_c:.0} tpmC", outcome.workload))?;
            }
            output::line(format!(
                "{} on {}, configuration {}",
                outcome.workload, outcome.engine, outcome.configuration_hash
            ))?;
        }
        let mut last = &[][..];
        for outcome in outcomes.iter().filter(|outcome| !outcome.checked.is_empty()) {
            if outcome.checked != last {
                outcome.checked.iter().try_for_each(|fact| output::line(format!("{}: {fact}", outcome.workload)))?;
            }
            last = &outcome.checked;
        }
        Ok(())
    }
}

/// A row for the run, and one for each kind of operation if there are several.
fn rows(outcome: &Outcome) -> Vec<Vec<String>> {
    let dash = || "-".to_owned();
    let ratio = |ratio: Option<f64>| ratio.map_or_else(dash, |ratio| format!("{ratio:.3}"));
    let latency = |l: &kaml_workloads::figures::Latency| [l.p50_ns, l.p99_ns, l.p999_ns].map(size::show_ns);
    let mut all = vec![outcome.workload.clone()];
    all.push(outcome.configuration["run"]["threads"].to_string());
    all.push(size::show_rate(outcome.operations_per_s));
    all.extend(latency(&outcome.latency));
    all.push(aborts(outcome));
    all.push(outcome.device_bytes_per_user_byte.map_or_else(dash, |ratio| format!("{ratio:.2}")));
    all.push(format!("{:.2}", outcome.cpu_us_per_operation));
    all.push(outcome.memory_bytes_max.map_or_else(dash, size::show));
    all.push(ratio(outcome.hit_ratio));
    let columns = all.len();
    let mut rows = vec![all];
    if outcome.kinds.len() > 1 {
        rows.extend(outcome.kinds.iter().map(|kind| {
            let per_s = size::show_rate(kind.operations as f64 / outcome.seconds);
            let mut row = vec![format!("  {}", kind.kind), String::new(), per_s];
            row.extend(latency(&kind.latency));
            row.resize(columns, String::new());
            row
        }));
    }
    rows
}

fn aborts(outcome: &Outcome) -> String {
    let a = &outcome.aborts;
    let causes = [
        ("deadlock", a.deadlock),
        ("timeout", a.timeout),
        ("conflict", a.conflict),
        ("lost", a.lost),
        ("rollback", a.rollback),
    ];
    let told: Vec<String> =
        causes.iter().filter(|(_, count)| *count > 0).map(|(cause, count)| format!("{count} {cause}")).collect();
    if told.is_empty() { "0".into() } else { told.join(", ") }
}

fn stage_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:17!} {wide_bar} {percent:>3} % {elapsed_precise}");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn show_stage(bar: &ProgressBar, stage: Stage, done: u64, total: u64) {
    bar.set_message(match stage {
        Stage::Load => "loading",
        Stage::Fill => "filling the cache",
        Stage::WarmUp => "warming up",
        Stage::Measure => "measuring",
        Stage::Settle => "settling",
        Stage::Check => "checking",
    });
    bar.set_length(total);
    bar.set_position(done);
}
