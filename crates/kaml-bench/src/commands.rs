//! `kaml-bench`: floors, the raw device, and workloads.
//!
//! Lives here:       flags and tables.
//! Lives elsewhere:  what is run and measured (`kaml-workloads`).

use crate::compare::{CompareArguments, Counts, index};
use crate::conflicts;
use crate::database::{ScanArguments, TpcbArguments, TpccArguments, YcsbArguments};
use crate::kill::{CHILD, ChildArguments, kill_cycles, kill_tpcc};
use crate::served;
use clap::{Args, Subcommand, ValueEnum};
use kaml::{CreateOptions, Device, NamespaceId};
use kaml_terminal::failure::Failure;
use kaml_terminal::flags::Durability;
use kaml_terminal::passing::Passing;
use kaml_terminal::{interrupt, output, size};
use kaml_workloads::floor::{self, Floor, Mix};
use kaml_workloads::micro::{self, Gets, Puts, Records, Stop};
use kaml_workloads::raw::{self, RandomReads, Sequential};
use kaml_workloads::scratch::Scratch;
use kaml_workloads::{Error, Figures, compression, keys, snapshots};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// A run takes a week at most.
const SECONDS_MAX: f64 = 7.0 * 24.0 * 3600.0;
/// Each thread has a stack, histograms and buffers: more are no use to any machine.
const THREADS_MAX: usize = 4096;
/// Each operation in flight has a buffer.
const IN_FLIGHT_MAX: usize = 1 << 16;
/// Records in one Put, or writes of a floor at once: far more than there is a use for.
const BATCH_MAX: usize = 1 << 16;
const WRITES_MAX: usize = 1024;

/// The time in a flag.
pub fn time(flag: &str, seconds: f64, may_be_0: bool) -> Result<Duration, Failure> {
    let fits = |time: &Duration| (may_be_0 || !time.is_zero()) && time.as_secs_f64() <= SECONDS_MAX;
    let least = if may_be_0 { "not below" } else { "above" };
    let refused = || Failure::Usage(format!("--{flag} {seconds}: must be {least} 0 and at most {SECONDS_MAX}"));
    Duration::try_from_secs_f64(seconds).ok().filter(fits).ok_or_else(refused)
}

/// Checks the number in a flag.
fn within(flag: &str, number: usize, range: RangeInclusive<usize>) -> Result<(), Failure> {
    if range.contains(&number) {
        return Ok(());
    }
    Err(Failure::Usage(format!("--{flag} {number}: must be in {} to {}", range.start(), range.end())))
}

/// Demands a share of the operations.
fn is_share(flag: &str, share: f64) -> Result<(), Failure> {
    if (0.0..=1.0).contains(&share) {
        return Ok(());
    }
    Err(Failure::Usage(format!("--{flag} {share}: must be in 0 to 1")))
}

/// Demands a number of threads that can be had.
pub fn threads_within(flag: &str, number: usize) -> Result<(), Failure> {
    within(flag, number, 1..=THREADS_MAX)
}

/// Demands so many operations in flight, on each of this many threads, that there is memory for all; 0: threads wait for each.
pub fn in_flight_within(in_flight: usize, threads: usize) -> Result<(), Failure> {
    within("in-flight", in_flight, 0..=IN_FLIGHT_MAX)?;
    match in_flight * threads {
        all if all <= 16 * IN_FLIGHT_MAX => Ok(()),
        all => {
            let most = 16 * IN_FLIGHT_MAX;
            Err(Failure::Usage(format!("--in-flight {in_flight} on {threads} threads are {all}: at most {most}")))
        }
    }
}

/// What to measure.
#[derive(Subcommand)]
pub enum Bench {
    /// The floor under durable puts: a bare group-commit append log
    #[command(after_help = "Examples:
  kaml-bench floor
  kaml-bench floor --bytes 1K --threads 1,8,32,128 --clients 32,128 --json
  kaml-bench floor --batch 32 --threads 1,4,16 --clients none
  kaml-bench floor --bytes 1K --threads 16 --clients none --put-share 0.5 --read-share 0.36 --pages  # YCSB A")]
    Floor(FloorArguments),
    /// Durable puts on a new device
    #[command(after_help = "Examples:
  kaml-bench put --bytes 1K --threads 32
  kaml-bench put --bytes 512 --in-flight 128 --keys 10000000 --distribution zipf")]
    Put(DeviceArguments),
    /// Uncached gets on a new device
    #[command(after_help = "Examples:
  kaml-bench get --bytes 1K --in-flight 64
  kaml-bench get --threads 8 --keys 1000000")]
    Get(DeviceArguments),
    /// Gets and durable puts at once
    #[command(after_help = "Examples:
  kaml-bench mixed --threads 16 --get-share 0.95 --distribution zipf")]
    Mixed(DeviceArguments),
    /// The index alone: memory, time, pauses
    Index {
        /// Keys, a list
        #[arg(long, default_value = "10000000")]
        keys: Counts,
        /// Figures as JSON
        #[arg(long)]
        json: bool,
    },
    /// Every bar against its floor, side by side
    #[command(after_help = "Examples:
  kaml-bench compare
  kaml-bench compare --only puts,get --seconds 1 --repeats 3 --dir /mnt/nvme
  kaml-bench compare --only steady --steady-capacity 8G --json > figures.json")]
    Compare(Box<CompareArguments>),
    /// Kill a writing process again and again; verify that nothing acknowledged is lost and no batch is half there
    Kill {
        /// How many times
        #[arg(long, default_value_t = 300)]
        cycles: u32,
        /// Bytes of the device
        #[arg(long, default_value = "256MiB", value_parser = size::parse)]
        capacity: u64,
        /// Of the moments of the kills [default: from the clock]
        #[arg(long)]
        seed: Option<u64>,
        /// Kill TPC-C, and check its consistency conditions
        #[arg(long)]
        tpcc: bool,
        /// Where the device is made
        #[arg(long, default_value = ".")]
        dir: PathBuf,
        /// The outcome as JSON
        #[arg(long)]
        json: bool,
    },
    /// The raw disk: random reads, durable sequential writes, sequential reads
    Raw(RawArguments),
    /// YCSB on the record cache: records read, updated, inserted, read to be changed, scanned
    #[command(after_help = "Examples:
  kaml-bench ycsb a --records 2000000 --cache 40% --threads 1,16
  kaml-bench ycsb a --threads 1 --in-flight 128
  kaml-bench ycsb a,b,c,d,e,f --property writeallfields=true --json
  kaml-bench ycsb workloads/workloada --as-is")]
    Ycsb(Box<YcsbArguments>),
    /// Scans of an ordered table: a number of records from a random position, or all of them
    #[command(after_help = "Examples:
  kaml-bench scan --records 2000000 --threads 1,8
  kaml-bench scan --all --threads 1 --cache 64M --sequential")]
    Scan(Box<ScanArguments>),
    /// What an open snapshot and a full scan through it cost puts: rounds with and without, in turn
    #[command(after_help = "Examples:
  kaml-bench snapshot --records 2000000 --threads 8 --seconds 10")]
    Snapshot {
        #[command(flatten)]
        common: Common,
        /// Records
        #[arg(long, default_value_t = 200_000)]
        records: u64,
        /// Bytes of a value
        #[arg(long, default_value = "1KiB", value_parser = size::parse)]
        bytes: u64,
        /// Threads that put
        #[arg(long, default_value_t = 4)]
        threads: usize,
        /// Rounds of each side
        #[arg(long, default_value_t = 3)]
        rounds: u32,
    },
    /// What compression saves and costs: durable puts and gets of JSON and of random bytes, under each method in turn
    #[command(after_help = "Examples:
  kaml-bench compression
  kaml-bench compression --threads 8 --rounds 9 --json")]
    Compression {
        #[command(flatten)]
        common: Common,
        /// Records of each side
        #[arg(long, default_value_t = 50_000)]
        records: u64,
        /// Bytes of a value
        #[arg(long, default_value = "1KiB", value_parser = size::parse)]
        bytes: u64,
        /// Threads that put and get
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Rounds of each side
        #[arg(long, default_value_t = 5)]
        rounds: u32,
    },
    /// TPC-B on transactions: AccountUpdate, checked afterwards
    #[command(after_help = "Examples:
  kaml-bench tpcb --scale 100 --threads 1,8,16
  kaml-bench tpcb --zipf 0.99 --early-release
  kaml-bench tpcb --in-memory --threads 2 --delay 50
  kaml-bench tpcb --paper-sizes --records-per-lock 16 --cache 100%")]
    Tpcb(Box<TpcbArguments>),
    /// TPC-C on transactions, checked afterwards: NewOrder and Payment, or all five with `--mix full`
    #[command(after_help = "Examples:
  kaml-bench tpcc --scale 16 --threads 8,16 --mix full
  kaml-bench tpcc --mix payment --early-release --paper-sizes")]
    Tpcc(Box<TpccArguments>),
    /// What coarse record locks cost: requests that meet in one lock, measured and expected
    #[command(after_help = "Examples:
  kaml-bench conflicts
  kaml-bench conflicts --records 100000 --threads 32 --svg conflicts.svg")]
    Conflicts(conflicts::Arguments),
    /// The device over NVMe/TCP on loopback, compared with bare sockets and the device without a network
    #[command(after_help = "Examples:
  kaml-bench serve
  kaml-bench serve --poll --only blocks --json
  kaml-bench serve --target nvme+tcp://10.0.0.2:4420/NQN --blocks 2 --records 1")]
    Serve(served::Arguments),
    /// The child processes of the others
    #[command(hide = true, name = CHILD)]
    Child(ChildArguments),
}

#[derive(Args)]
pub struct Common {
    /// Where scratch files are made; should be on the disk to be measured
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Seconds of each run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Figures as JSON
    #[arg(long)]
    pub json: bool,
}

impl Common {
    pub fn duration(&self) -> Result<Duration, Failure> {
        time("seconds", self.seconds, false)
    }

    pub fn show(&self, figures: &[Figures]) -> Result<(), Failure> {
        if self.json { output::json(&figures) } else { output::line(figures_table(figures)) }
    }
}

#[derive(Args)]
pub struct FloorArguments {
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
    /// Writes in flight; without it one and two are tried, by the event loop three too, and the best is reported
    #[arg(long)]
    in_flight: Option<usize>,
    /// What writes are padded to
    #[arg(long, default_value = "4KiB", value_parser = size::parse)]
    sector: u64,

    /// Blocking threads: write every record a second time, in pages of 256 KiB next to the log
    #[arg(long)]
    pages: bool,
    /// Blocking threads: share of the operations that put, from 0 to 1
    #[arg(long, default_value_t = Mix::PUTS.puts)]
    put_share: f64,
    /// Blocking threads: share of the operations that begin with a random read of a record, from 0 to 1
    #[arg(long, default_value_t = Mix::PUTS.reads)]
    read_share: f64,
}

#[derive(Args)]
pub struct RawArguments {
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
    /// Keep what is transferred in huge pages, which the kernel need not split
    #[arg(long)]
    huge_pages: bool,
}

#[derive(Args)]
pub struct DeviceArguments {
    #[command(flatten)]
    common: Common,
    /// Bytes of a value
    #[arg(long, default_value = "1KiB", value_parser = size::parse)]
    bytes: u64,
    /// Records in one atomic Put
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Blocking threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Operations in flight from one thread, instead of blocking threads
    #[arg(long, conflicts_with = "threads")]
    in_flight: Option<usize>,
    /// Keys to choose from; for gets, records that are stored first
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// How keys are chosen
    #[arg(long, value_enum, default_value_t)]
    distribution: Distribution,
    /// Skew of zipf, below 1
    #[arg(long, default_value_t = 0.99)]
    theta: f64,
    /// Share of gets, for `mixed`, from 0 to 1
    #[arg(long, default_value_t = 0.5)]
    get_share: f64,
    /// Stop after this many operations
    #[arg(long)]
    count: Option<u64>,
    /// Bytes of the new device [default: enough to see no garbage collection]
    #[arg(long, value_parser = size::parse)]
    capacity: Option<u64>,
    /// What an acknowledged put survives
    #[arg(long, value_enum, default_value_t)]
    durability: Durability,
}

/// How keys are chosen.
#[derive(Clone, Copy, Default, ValueEnum)]
enum Distribution {
    #[default]
    Uniform,
    Zipf,
    Sequential,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Put,
    Get,
    Mixed,
}

impl Bench {
    /// Measures and shows.
    pub fn run(self) -> Result<(), Failure> {
        if let Bench::Child(arguments) = self {
            return arguments.run();
        }
        interrupt::ends_it(String::new())?;
        match self {
            Bench::Child(arguments) => arguments.run(),
            Bench::Floor(arguments) => arguments.run(),
            Bench::Raw(arguments) => arguments.run(),
            Bench::Ycsb(arguments) => arguments.run(),
            Bench::Scan(arguments) => arguments.run(),
            Bench::Snapshot { common, records, bytes, threads, rounds } => {
                threads_within("threads", threads)?;
                let scratch = Passing::directory(&common.dir).map_err(Failure::io(common.dir.display()))?;
                let (value_bytes, duration) = (bytes as usize, common.duration()?);
                let settings = snapshots::Settings { records, value_bytes, threads, rounds, duration };
                common.show(&snapshots::run(&scratch.path().join("device"), &settings)?)
            }
            Bench::Compression { common, records, bytes, threads, rounds } => {
                threads_within("threads", threads)?;
                let scratch = Passing::directory(&common.dir).map_err(Failure::io(common.dir.display()))?;
                let (value_bytes, duration) = (bytes as usize, common.duration()?);
                let settings = compression::Settings { records, value_bytes, threads, rounds, duration };
                let rows = compression::run(&scratch.path().join("device"), &settings)?;
                if common.json { output::json(&rows) } else { output::line(compression_table(&rows)) }
            }
            Bench::Tpcb(arguments) => arguments.run(),
            Bench::Tpcc(arguments) => arguments.run(),
            Bench::Conflicts(arguments) => arguments.run(),
            Bench::Serve(arguments) => arguments.run(),
            Bench::Put(arguments) => arguments.run(Work::Put),
            Bench::Get(arguments) => arguments.run(Work::Get),
            Bench::Mixed(arguments) => arguments.run(Work::Mixed),
            Bench::Index { keys, json } => index(&keys, json),
            Bench::Compare(arguments) => arguments.run(),
            Bench::Kill { cycles, capacity, seed, tpcc: true, dir, json } => {
                kill_tpcc(cycles, capacity, seed, &dir, json)
            }
            Bench::Kill { cycles, capacity, seed, dir, json, .. } => kill_cycles(cycles, capacity, seed, &dir, json),
        }
    }
}

fn compression_table(rows: &[compression::Row]) -> comfy_table::Table {
    let cells = rows.iter().map(|row| {
        let ratios = [row.space, row.stored].map(|ratio| format!("{ratio:.3}"));
        let speeds = [(row.puts_per_s, row.puts_ratio), (row.gets_per_s, row.gets_ratio)];
        let speeds = speeds.map(|(speed, ratio)| format!("{speed:.0} ({ratio:.3})"));
        [vec![row.values.to_owned(), row.method.clone()], ratios.to_vec(), speeds.to_vec()].concat()
    });
    output::table(&["values", "method", "space", "stored", "puts/s (of none)", "gets/s (of none)"], 2, cells)
}

impl FloorArguments {
    fn run(self) -> Result<(), Failure> {
        let duration = self.common.duration()?;
        self.threads.0.iter().try_for_each(|threads| threads_within("threads", *threads))?;
        self.clients.0.iter().try_for_each(|clients| within("clients", *clients, 1..=IN_FLIGHT_MAX))?;
        within("batch", self.batch, 1..=BATCH_MAX)?;
        within("in-flight", self.in_flight.unwrap_or(1), 1..=WRITES_MAX)?;
        is_share("put-share", self.put_share)?;
        is_share("read-share", self.read_share)?;
        let mix = Mix { puts: self.put_share, reads: self.read_share };
        if mix != Mix::PUTS && !self.clients.0.is_empty() {
            return Err(Failure::Usage(
                "--put-share and --read-share are for blocking threads: add --clients none".into(),
            ));
        }
        let floor = |clients, writes_in_flight| Floor {
            record_bytes: self.bytes as usize,
            batch_records: self.batch,
            clients,
            writes_in_flight,
            sector_bytes: self.sector as usize,
            pages: self.pages,
            mix,
            duration,
        };
        let scratch = floor(1, 1).scratch(&self.common.dir)?;
        let mut figures = Vec::new();
        for threads in &self.threads.0 {
            figures.push(match self.in_flight {
                Some(writes) => floor::blocking_on(&scratch, &floor(*threads, writes))?,
                None => floor::better(&scratch, &floor(*threads, 1))?,
            });
        }
        for clients in &self.clients.0 {
            figures.push(match self.in_flight {
                Some(writes) => floor::event_loop_on(&scratch, &floor(*clients, writes))?,
                None => floor::better_event_loop(&scratch, &floor(*clients, 1))?,
            });
        }
        self.common.show(&figures)
    }
}

impl RawArguments {
    fn run(self) -> Result<(), Failure> {
        let duration = self.common.duration()?;
        self.depths.0.iter().try_for_each(|depth| within("depths", *depth, 1..=THREADS_MAX))?;
        self.transfers.0.iter().try_for_each(|threads| threads_within("transfers", *threads))?;
        let scratch = Scratch::create(&self.common.dir, self.file)?;
        let figures = self.measure(&scratch, duration)?;
        self.common.show(&figures)
    }

    fn measure(&self, scratch: &Scratch, duration: Duration) -> Result<Vec<Figures>, Error> {
        let mut figures = Vec::new();
        for depth in &self.depths.0 {
            let reads = RandomReads { bytes: self.bytes as usize, depth: *depth, duration, seed: 1 };
            figures.push(raw::random_reads(scratch, &reads)?);
        }
        let (bytes, huge_pages) = (self.transfer as usize, self.huge_pages);
        for depth in &self.transfers.0 {
            let run = Sequential { bytes, depth: *depth, skipped: 0, writes_per_sync: 1, huge_pages, duration };
            figures.push(raw::sequential_writes(scratch, &run)?);
            let fewer_syncs = Sequential { writes_per_sync: self.writes_per_sync, ..run };
            figures.push(raw::sequential_writes(scratch, &fewer_syncs)?);
            figures.push(raw::sequential_reads(scratch, &run)?);
        }
        Ok(figures)
    }
}

impl DeviceArguments {
    fn run(self, work: Work) -> Result<(), Failure> {
        self.common.duration()?;
        threads_within("threads", self.threads)?;
        within("in-flight", self.in_flight.unwrap_or(1), 1..=IN_FLIGHT_MAX)?;
        within("batch", self.batch, 1..=BATCH_MAX)?;
        is_share("get-share", self.get_share)?;
        if self.keys == 0 {
            return Err(Failure::Usage("--keys must not be 0".into()));
        }
        let scratch = Passing::directory(&self.common.dir).map_err(Failure::io(self.common.dir.display()))?;
        let capacity = self.capacity.unwrap_or_else(|| {
            let record_bytes = self.bytes.saturating_add(256).saturating_mul(2);
            self.keys.saturating_mul(record_bytes).max(32 << 30)
        });
        let options = CreateOptions { durability: self.durability.into(), ..CreateOptions::new(capacity) };
        let device = Device::create(scratch.path().join("bench.kaml"), &options)?;
        let bytes_max = device.info().value_bytes_max;
        if self.bytes > bytes_max {
            return Err(Failure::Usage(format!("--bytes {}: this device takes at most {bytes_max}", self.bytes)));
        }
        let namespace = micro::namespace(&device, "bench")?;
        if work != Work::Put {
            micro::fill(&device, namespace, self.bytes as usize, self.keys)?;
            device.settle()?;
        }
        let figures = self.measure(work, &device, namespace)?;
        device.close()?;
        self.common.show(&figures)
    }

    fn measure(&self, work: Work, device: &Device, namespace: NamespaceId) -> Result<Vec<Figures>, Failure> {
        let distribution = match self.distribution {
            Distribution::Uniform => keys::Distribution::Uniform,
            Distribution::Zipf if (0.0..1.0).contains(&self.theta) => keys::Distribution::Zipf(self.theta),
            Distribution::Zipf => return Err(Failure::Usage(format!("--theta {}: must be in 0..1", self.theta))),
            Distribution::Sequential => keys::Distribution::Sequential,
        };
        let records = Records { value_bytes: self.bytes as usize, count: self.keys, distribution, seed: 1 };
        let stop = Stop { duration: self.common.duration()?, operations: self.count.unwrap_or(u64::MAX) };
        let in_flight = self.in_flight.unwrap_or(self.threads);
        let puts = Puts { records, batch_records: self.batch, in_flight, stop };
        let gets = Gets { records, in_flight, stop };
        Ok(match (work, self.in_flight.is_some()) {
            (Work::Put, false) => vec![micro::puts(device, namespace, &puts)?],
            (Work::Put, true) => vec![micro::puts_in_flight(device, namespace, &puts)?],
            (Work::Get, false) => vec![micro::gets(device, namespace, &gets)?],
            (Work::Get, true) => vec![micro::gets_in_flight(device, namespace, &gets)?],
            (Work::Mixed, false) => {
                let (all, puts) = micro::mixed(device, namespace, &puts, self.get_share)?;
                vec![all, puts]
            }
            (Work::Mixed, true) => return Err(Failure::Usage("mixed runs on --threads".into())),
        })
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
            f.cpu_us_per_operation.map_or_else(|| "-".into(), |us| format!("{us:.2}")),
            f.disk_bytes_per_byte().map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
        ]
    });
    output::table(&head, 1, rows)
}
