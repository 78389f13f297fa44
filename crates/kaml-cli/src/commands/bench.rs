//! `kaml bench`: floors, the raw device, and workloads.
//!
//! Lives here:       flags and tables.
//! Lives elsewhere:  what is run and measured (`kaml-workloads`).

use crate::failure::Failure;
use crate::{output, size};
use clap::{Args, Subcommand};
use kaml_workloads::floor::{self, Floor};
use kaml_workloads::raw::{self, RandomReads, Sequential};
use kaml_workloads::scratch::Scratch;
use kaml_workloads::{Error, Figures};
use std::path::PathBuf;
use std::time::Duration;

/// Flags of `kaml bench`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// The floor under durable puts: a bare group-commit append log
    #[command(after_help = "Examples:
  kaml bench floor
  kaml bench floor --bytes 1K --threads 1,8,32,128 --clients 32,128 --json
  kaml bench floor --batch 32 --threads 1,4,16 --clients none")]
    Floor(FloorArguments),
    /// The raw disk: random reads, durable sequential writes, sequential reads
    Raw(RawArguments),
}

#[derive(Args)]
struct Common {
    /// Where scratch files are made; should be on the disk to be measured
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seconds of each run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Figures as JSON
    #[arg(long)]
    json: bool,
}

impl Common {
    fn duration(&self) -> Result<Duration, Failure> {
        Duration::try_from_secs_f64(self.seconds).map_err(|error| Failure::Usage(format!("--seconds: {error}")))
    }

    fn show(&self, figures: &[Figures]) -> Result<(), Failure> {
        if self.json { output::json(&figures) } else { output::line(figures_table(figures)) }
    }
}

#[derive(Args)]
struct FloorArguments {
    #[command(flatten)]
    common: Common,
    /// Bytes of a record
    #[arg(long, default_value = "512", value_parser = size::parse)]
    bytes: u64,
    /// Records per put
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Blocking threads, a list, or `none`
    #[arg(long, default_value = "1,8,32,128")]
    threads: Counts,
    /// Logical clients of the event loop, a list, or `none`
    #[arg(long, default_value = "32,128")]
    clients: Counts,
    /// Writes in flight; without it one and two are tried and the better is reported (event loop: one)
    #[arg(long)]
    in_flight: Option<usize>,
}

#[derive(Args)]
struct RawArguments {
    #[command(flatten)]
    common: Common,
    /// Size of the file that is read and written
    #[arg(long, default_value = "1GiB", value_parser = size::parse)]
    file: u64,
    /// Bytes of a random read, a multiple of 512
    #[arg(long, default_value = "4KiB", value_parser = size::parse)]
    bytes: u64,
    /// Random reads in flight, a list
    #[arg(long, default_value = "1,16,64")]
    depths: Counts,
    /// Bytes of a sequential transfer
    #[arg(long, default_value = "1MiB", value_parser = size::parse)]
    transfer: u64,
    /// Sequential transfers in flight, a list
    #[arg(long, default_value = "1,4")]
    transfers: Counts,
    /// Writes per fdatasync in the run that does not sync each
    #[arg(long, default_value_t = 16)]
    writes_per_sync: usize,
}

/// A list of counts, or `none`.
#[derive(Clone, Debug)]
struct Counts(Vec<usize>);

impl std::str::FromStr for Counts {
    type Err = String;
    fn from_str(text: &str) -> Result<Counts, String> {
        if text == "none" {
            return Ok(Counts(Vec::new()));
        }
        let count = |word: &str| match word.trim().parse::<usize>() {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(format!("`{word}` is not a count; write for example 1,8,32")),
        };
        text.split(',').map(count).collect::<Result<_, _>>().map(Counts)
    }
}

impl Arguments {
    /// Measures and shows.
    pub fn run(self) -> Result<(), Failure> {
        match self.bench {
            Bench::Floor(arguments) => arguments.run(),
            Bench::Raw(arguments) => arguments.run(),
        }
    }
}

impl FloorArguments {
    fn run(self) -> Result<(), Failure> {
        let duration = self.common.duration()?;
        let scratch = Scratch::create(&self.common.dir, floor::LOG_BYTES)?;
        let floor = |clients, writes_in_flight| Floor {
            record_bytes: self.bytes as usize,
            batch_records: self.batch,
            clients,
            writes_in_flight,
            duration,
        };
        let mut figures = Vec::new();
        for threads in &self.threads.0 {
            figures.push(match self.in_flight {
                Some(writes) => floor::blocking_on(&scratch, &floor(*threads, writes))?,
                None => floor::better(&scratch, &floor(*threads, 1))?,
            });
        }
        for clients in &self.clients.0 {
            figures.push(floor::event_loop_on(&scratch, &floor(*clients, self.in_flight.unwrap_or(1)))?);
        }
        self.common.show(&figures)
    }
}

impl RawArguments {
    fn run(self) -> Result<(), Failure> {
        let scratch = Scratch::create(&self.common.dir, self.file)?;
        let figures = self.measure(&scratch, self.common.duration()?)?;
        self.common.show(&figures)
    }

    fn measure(&self, scratch: &Scratch, duration: Duration) -> Result<Vec<Figures>, Error> {
        let mut figures = Vec::new();
        for depth in &self.depths.0 {
            let reads = RandomReads { bytes: self.bytes as usize, depth: *depth, duration, seed: 1 };
            figures.push(raw::random_reads(scratch, &reads)?);
        }
        for depth in &self.transfers.0 {
            let run = Sequential { bytes: self.transfer as usize, depth: *depth, writes_per_sync: 1, duration };
            figures.push(raw::sequential_writes(scratch, &run)?);
            let fewer_syncs = Sequential { writes_per_sync: self.writes_per_sync, ..run };
            figures.push(raw::sequential_writes(scratch, &fewer_syncs)?);
            figures.push(raw::sequential_reads(scratch, &run)?);
        }
        Ok(figures)
    }
}

/// One row for each run.
fn figures_table(figures: &[Figures]) -> comfy_table::Table {
    let head = ["what", "ops/s", "records/s", "MB/s", "p50", "p99", "p99.9", "max", "CPU µs/op", "disk B/B"];
    let rows = figures.iter().map(|f| {
        vec![
            f.what.clone(),
            size::show_rate(f.operations_per_s),
            size::show_rate(f.records_per_s),
            format!("{:.0}", f.megabytes_per_s),
            size::show_ns(f.latency.p50_ns),
            size::show_ns(f.latency.p99_ns),
            size::show_ns(f.latency.p999_ns),
            size::show_ns(f.latency.max_ns),
            format!("{:.2}", f.cpu_us_per_operation),
            f.disk_bytes_per_byte().map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
        ]
    });
    output::table(&head, 1, rows)
}
