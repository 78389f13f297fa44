//! `kaml-peers`: KAML compared with other storage engines, workload by workload.
//!
//! Lives here:       flags.
//! Lives elsewhere:  the engines (`engines`), running them in turns (`compare`), the picture (`chart`), the workloads
//!                   (`kaml-workloads`).

mod chart;
mod compare;
mod engines;

use clap::{Args, Parser, Subcommand, ValueEnum};
use compare::{Comparison, Plan};
use engines::Kind;
use kaml_terminal::interrupt;
use kaml_workloads::drive::{Run, Workload};
use kaml_workloads::{Error, scans, tpcb, tpcc, ycsb};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Runs one workload on several storage engines in turns, each with a flush per commit and the same memory for caching.
///
/// Engines with "page cache" in the table, alone or next to their own cache, have more memory than the others unless it is bounded
/// from outside, as in `systemd-run --scope -p MemoryMax=2G kaml-peers ...`.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    workload: Chosen,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// Engines, a list; all there are by default
    #[arg(long, value_delimiter = ',', global = true)]
    engines: Vec<Kind>,
    /// Blocking threads
    #[arg(long, default_value_t = 16, global = true)]
    threads: usize,
    /// Memory for caching, in percent of what is loaded
    #[arg(long, default_value_t = 40.0, global = true)]
    cache_percent: f64,
    /// Seconds of each measured run
    #[arg(long, default_value_t = 5.0, global = true)]
    seconds: f64,
    /// Seconds that run before each, so caches fill
    #[arg(long, default_value_t = 1.0, global = true)]
    warm_up: f64,
    /// How often each engine has its turn; the median is shown
    #[arg(long, default_value_t = 3, global = true)]
    rounds: usize,
    /// Read every record once before the first run
    #[arg(long, global = true)]
    fill_cache: bool,
    /// Where the engines keep their files; should be on the disk to be measured
    #[arg(long, default_value = ".", global = true)]
    dir: PathBuf,
    /// Of all random choices
    #[arg(long, default_value_t = 1, global = true)]
    seed: u64,
    /// Write all outcomes to this file, as JSON
    #[arg(long, global = true)]
    json: Option<PathBuf>,
    /// Draw the comparison into this file, as SVG
    #[arg(long, global = true)]
    svg: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Chosen {
    /// YCSB A to F
    Ycsb {
        /// The letter of a standard workload, or a YCSB property file
        workload: String,
        /// Records to load, instead of the workload's number
        #[arg(long, default_value_t = 200_000)]
        records: u64,
        /// Choose records evenly
        #[arg(long)]
        uniform: bool,
        /// An update writes the whole record, without reading it
        #[arg(long)]
        write_all_fields: bool,
    },
    /// Scans of a number of records from a random position, or of the whole table
    Scan {
        /// Records of the table
        #[arg(long, default_value_t = 200_000)]
        records: u64,
        /// Bytes of a record
        #[arg(long, default_value_t = 1000)]
        bytes: usize,
        /// Records of a scan
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
    },
    /// TPC-B AccountUpdate
    Tpcb {
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
    },
    /// TPC-C: NewOrder and Payment, or all five transactions
    Tpcc {
        /// Warehouses
        #[arg(long, default_value_t = 16)]
        scale: u64,
        /// Items, and stocks of a warehouse
        #[arg(long, default_value_t = 100_000)]
        items: u64,
        /// Customers of a district, and orders that it begins with
        #[arg(long, default_value_t = 3000)]
        customers_per_district: u64,
        /// Share of NewOrders; the others are Payments
        #[arg(long, default_value_t = 0.5, conflicts_with = "full")]
        new_orders: f64,
        /// All five transactions, as the benchmark specifies
        #[arg(long)]
        full: bool,
        /// Pause between transactions of a thread, as a share of the benchmark's keying and thinking times
        #[arg(long, default_value_t = 0.0)]
        think: f64,
        /// Rows of 512 B, customers of 1024 B, as in the KAML paper
        #[arg(long)]
        paper_sizes: bool,
    },
}

impl Chosen {
    /// Makes the workload again: it remembers what it did, so each engine has one of its own.
    fn make(&self) -> Result<Box<dyn Workload>, Error> {
        match self {
            Chosen::Ycsb { workload, records, uniform, write_all_fields } => {
                let mut properties = if workload.len() == 1 {
                    ycsb::Settings::standard(workload).map_err(refused)?
                } else {
                    let text = std::fs::read_to_string(workload)
                        .map_err(|error| Error::Parameters(format!("{workload}: {error}")))?;
                    ycsb::Properties::parse(&text).map_err(refused)?
                };
                properties.set("recordcount", records.to_string());
                if *uniform {
                    properties.set("requestdistribution", "uniform");
                }
                if *write_all_fields {
                    properties.set("writeallfields", "true");
                }
                let settings = ycsb::Settings::new(&properties).map_err(refused)?;
                Ok(Box::new(ycsb::Ycsb::new(workload, settings)))
            }
            Chosen::Scan { records, bytes, length, all, reverse, sequential } => {
                Ok(Box::new(scans::Scans::new(scans::Settings {
                    records: *records,
                    value_bytes: *bytes,
                    sequential: *sequential,
                    length: (!all).then_some(*length),
                    reverse: *reverse,
                })?))
            }
            Chosen::Tpcb { scale, accounts_per_branch, zipf, paper_sizes } => {
                let sizes = if *paper_sizes { tpcb::Settings::paper } else { tpcb::Settings::new };
                let accounts_per_branch = *accounts_per_branch;
                Ok(Box::new(tpcb::Tpcb::new(tpcb::Settings { accounts_per_branch, zipf: *zipf, ..sizes(*scale) })?))
            }
            Chosen::Tpcc { scale, items, customers_per_district, new_orders, full, think, paper_sizes } => {
                let sizes = if *paper_sizes { tpcc::Settings::paper } else { tpcc::Settings::new };
                Ok(Box::new(tpcc::Tpcc::new(tpcc::Settings {
                    items: *items,
                    customers_per_district: *customers_per_district,
                    mix: if *full { tpcc::Mix::Full } else { tpcc::Mix::Paper(*new_orders) },
                    think: *think,
                    ..sizes(*scale)
                })?))
            }
        }
    }
}

fn refused(error: impl std::fmt::Display) -> Error {
    Error::Parameters(error.to_string())
}

impl Common {
    fn plan(&self) -> Result<Plan, Error> {
        let duration = |name, seconds| {
            Duration::try_from_secs_f64(seconds).map_err(|error| Error::Parameters(format!("--{name}: {error}")))
        };
        if self.cache_percent.is_nan() || self.cache_percent <= 0.0 {
            return Err(Error::Parameters("--cache-percent must be above 0".into()));
        }
        let (seconds, warm_up) = (duration("seconds", self.seconds)?, duration("warm-up", self.warm_up)?);
        let engines = if self.engines.is_empty() { Kind::value_variants().to_vec() } else { self.engines.clone() };
        let run = Run {
            threads: self.threads,
            in_flight: 0,
            duration: seconds,
            operations_max: u64::MAX,
            warm_up,
            seed: self.seed,
        };
        Ok(Plan {
            engines,
            cache_share: self.cache_percent / 100.0,
            rounds: self.rounds.max(1),
            fill_cache: self.fill_cache,
            dir: self.dir.clone(),
            run,
        })
    }

    fn show(&self, comparison: &Comparison) -> Result<(), Error> {
        println!("{}", comparison.table());
        let write = |path: &PathBuf, text: String| {
            std::fs::write(path, text).map_err(|error| Error::Parameters(format!("{}: {error}", path.display())))
        };
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(comparison).map_err(|error| Error::Wrong(error.to_string()))?;
            write(path, text)?;
        }
        if let Some(path) = &self.svg {
            write(path, chart::svg(comparison))?;
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // What the engines have written must not outlive the program.
    if let Err(failure) = interrupt::ends_it(String::new()) {
        return failure.report();
    }
    let compared = arguments.common.plan().and_then(|plan| {
        let comparison = plan.run(&|| arguments.workload.make())?;
        arguments.common.show(&comparison)
    });
    match compared {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kaml-peers: {error}");
            ExitCode::FAILURE
        }
    }
}
