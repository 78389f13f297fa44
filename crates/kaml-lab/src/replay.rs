//! `kaml-lab replay`: a trace of a real workload on the modelled device, in virtual time.
//!
//! Lives here:       flags, the file, the live display, the table.
//! Lives elsewhere:  formats and the replay (`kaml_sim::TraceReader`, `kaml_sim::Rig`).

use clap::Args;
use clap::builder::PossibleValuesParser;
use kaml_sim::{
    Board, Latencies, Pattern, Replay, ReplayCuts, ReplayReport, Rig, RigError, TraceError, TraceFormat, TraceReader,
    TraceRecord,
};
use kaml_terminal::failure::Failure;
use kaml_terminal::interrupt::Interrupt;
use kaml_terminal::output::{self, Paint};
use kaml_terminal::{progress, size};
use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::time::Instant;

/// Flags of `kaml-lab replay`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml-lab replay hm_0.csv --format msr
  kaml-lab replay conversation.jsonl --format mooncake --object 16KiB --cut-one-in 10000
  zstd -dc cluster10.zst | kaml-lab replay - --format twitter --limit 10000000 --json
  kaml-lab replay blk.txt --format regex --regex '(?<time>[0-9.]+) (?<op>[RW]) (?<offset>[0-9]+) (?<size>[0-9]+)' --time-unit 1s --unit 512

Block traces use a block namespace, cache traces use records; an object is stored after a miss if the trace contains its size. \
The same trace, board and seed give the same JSON on every machine. docs/guide/research.md describes the formats.")]
pub struct Arguments {
    /// The trace, or - for standard input
    trace: String,
    /// The format
    #[arg(long, value_parser = PossibleValuesParser::new(TraceFormat::NAMES))]
    format: String,
    /// The board: kaml-2017, tlc, or a file
    #[arg(long, default_value = "kaml-2017")]
    board: String,
    /// Bytes of flash of the device, at most; a small one collects garbage sooner [default: as the board]
    #[arg(long, value_parser = size::parse)]
    flash: Option<u64>,
    /// Records in progress at most
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: u32,
    /// Keep the times of the trace, this many times as fast; without it a record begins when another completes
    #[arg(long)]
    pace: Option<f64>,
    /// Bytes of the block namespace that all volumes are placed in
    #[arg(long, default_value = "64GiB", value_parser = size::parse)]
    disk: u64,
    /// Longer objects are cut to this
    #[arg(long, default_value = "1MiB", value_parser = size::parse)]
    object_max: u64,
    /// mooncake: bytes of an object, the cached keys and values of a block of 512 tokens
    #[arg(long, default_value = "16KiB", value_parser = size::parse)]
    object: u64,
    /// regex: the expression, with the groups op, size, and offset or key; time and volume if there are any
    #[arg(long, required_if_eq("format", "regex"))]
    regex: Option<String>,
    /// regex: the unit of times, as 1s, 1ms, 1us, 1ns or 100ns
    #[arg(long, default_value = "1s", value_parser = time_unit)]
    time_unit: u64,
    /// regex: bytes of the unit of offsets and sizes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    unit: u64,
    /// Records of the trace at most
    #[arg(long)]
    limit: Option<u64>,
    /// Leave out lines that cannot be understood
    #[arg(long)]
    skip_bad: bool,
    /// Cut power after so many records, open the device again, and compare it
    #[arg(long, conflicts_with = "cut_one_in")]
    cut_at: Option<u64>,
    /// Cut power after one in so many records, chosen by the seed
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    cut_one_in: Option<u64>,
    /// Of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The report as JSON
    #[arg(long)]
    json: bool,
}

fn time_unit(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match &text[split..] {
        "s" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" => 1_000,
        "ns" => 1,
        _ => 0,
    };
    let number: u64 = text[..split].parse().unwrap_or(0);
    match number.checked_mul(factor) {
        Some(ns) if ns > 0 => Ok(ns),
        _ => Err("a unit of time, as 1s, 1ms, 1us, 1ns or 100ns".to_owned()),
    }
}

impl Arguments {
    /// Replays the trace and shows what it came to.
    pub fn run(self) -> Result<(), Failure> {
        if self.pace.is_some_and(|pace| !(pace > 0.0 && pace.is_finite())) {
            return Err(Failure::Usage("--pace must be above 0; 1 keeps the times of the trace".to_owned()));
        }
        let bytes = |flag: &str, bytes: u64| {
            u32::try_from(bytes).map_err(|_| Failure::Usage(format!("{flag} must be below 4 GiB")))
        };
        let format = match self.format.as_str() {
            "msr" => TraceFormat::Msr,
            "alibaba" => TraceFormat::Alibaba,
            "tencent" => TraceFormat::Tencent,
            "mqsim" => TraceFormat::Mqsim,
            "twitter" => TraceFormat::Twitter,
            "cachelib" => TraceFormat::Cachelib,
            "oraclegeneral" => TraceFormat::OracleGeneral,
            "mooncake" => TraceFormat::Mooncake { block_bytes: bytes("--object", self.object)? },
            _ => {
                let text = self.regex.as_deref().unwrap_or_default();
                let pattern = Pattern::new(text, self.time_unit, self.unit);
                TraceFormat::Regex(Box::new(pattern.map_err(|error| Failure::Usage(error.to_string()))?))
            }
        };
        let options = Replay {
            depth: self.depth as usize,
            pace: self.pace,
            disk_bytes: self.disk,
            object_bytes_max: bytes("--object-max", self.object_max)?,
            cuts: match (self.cut_at, self.cut_one_in) {
                (Some(at), _) => ReplayCuts::At(at),
                (_, Some(n)) => ReplayCuts::OneIn(n),
                _ => ReplayCuts::Never,
            },
            seed: self.seed,
        };
        let (input, total): (Box<dyn BufRead>, u64) = match self.trace.as_str() {
            "-" => (Box::new(BufReader::with_capacity(1 << 20, std::io::stdin())), 0),
            path => {
                let file = std::fs::File::open(path).map_err(Failure::io(path))?;
                let total = file.metadata().map_or(0, |metadata| metadata.len());
                (Box::new(BufReader::with_capacity(1 << 20, file)), total)
            }
        };
        let mut trace = Limited {
            reader: TraceReader::new(input, format).skipping_bad(self.skip_bad),
            left: self.limit,
            read: &Cell::new(0),
        };
        let read = trace.read;
        let failed = |error: RigError| Failure::Failed(error.to_string());
        let mut rig = Rig::new(&self.board()?, self.seed).map_err(failed)?;
        rig.rest().map_err(failed)?;
        let bar = progress::bytes_bar(total);
        let interrupt = Interrupt::listen()?;
        let begin = Instant::now();
        let report = rig.replay(&mut trace, &options, &mut |begun| {
            bar.set_position(read.get());
            bar.set_message(format!("{} records", size::show_count(begun)));
            !interrupt.is_asked()
        });
        let seconds = begin.elapsed().as_secs_f64();
        bar.finish_and_clear();
        let report = report.map_err(|error| Failure::Failed(format!("{}: {error}", self.trace)))?;
        interrupt.check(|| format!(" after {} records", size::show_count(report.records)))?;
        if trace.reader.skipped() > 0 {
            output::note(format!("{} lines were left out", size::show_count(trace.reader.skipped())));
        }
        if self.json { output::json(&report) } else { show(&report, seconds) }
    }

    fn board(&self) -> Result<Board, Failure> {
        let board = crate::experiment::board(&self.board)?;
        let Some(flash) = self.flash else { return Ok(board) };
        let per_block = board.geometry.block_bytes() * u64::from(board.geometry.die_count());
        let blocks = u32::try_from(flash / per_block).unwrap_or(u32::MAX).min(board.geometry.blocks_per_die);
        board
            .with_blocks_per_die(blocks)
            .map_err(|error| Failure::Usage(format!("--flash {}: {error}", size::show(flash))))
    }
}

/// A trace up to a number of records, which shows how far it is read.
struct Limited<'a> {
    reader: TraceReader<Box<dyn BufRead>>,
    left: Option<u64>,
    read: &'a Cell<u64>,
}

impl Iterator for Limited<'_> {
    type Item = Result<TraceRecord, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1)?;
        }
        let record = self.reader.next();
        self.read.set(self.reader.bytes_read());
        record
    }
}

fn show(report: &ReplayReport, seconds: f64) -> Result<(), Failure> {
    let row = |latencies: &Latencies| {
        let mut row = vec![latencies.kind.to_owned(), size::show_count(latencies.count), size::show(latencies.bytes)];
        let times = [latencies.mean_us, latencies.p50_us, latencies.p99_us, latencies.p999_us, latencies.max_us]
            .map(|us| format!("{us:.1}"));
        row.extend(times);
        row
    };
    let head = ["", "records", "bytes", "mean us", "p50 us", "p99 us", "p99.9 us", "max us"];
    output::line(output::table(&head, 1, report.latencies.iter().map(row)))?;
    let paint = Paint::detect();
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
    let rows = [
        ("virtual time", format!("{:.3} s", report.virtual_seconds)),
        ("records per second of virtual time", size::show_rate(report.records_per_s)),
        ("MB per second of virtual time", format!("{:.1}", report.megabytes_per_s)),
        ("objects stored after a miss", size::show_count(report.fills)),
        ("objects cut to --object-max", size::show_count(report.cut_short)),
        ("gets that found their object", ratio(report.hit_ratio)),
        ("reads of flash for each of them", ratio(report.flash_reads_per_hit)),
        ("write amplification", ratio(report.write_amplification)),
        ("bytes moved by collection", size::show(report.relocated_bytes)),
        ("blocks erased", size::show_count(report.erases)),
        ("live at the end", size::show(report.live_bytes)),
        ("power cuts survived", size::show_count(report.cuts)),
        ("records and units compared after them", size::show_count(report.compared)),
        ("fingerprint", report.fingerprint.clone()),
        ("replayed in", format!("{seconds:.1} s, {}", size::show_rate(report.records as f64 / seconds.max(1e-9)))),
    ];
    for (what, figure) in rows {
        output::line(format!("{what:<40} {:>20}", paint.figure(figure)))?;
    }
    Ok(())
}
