//! `kaml-lab experiment`: the papers' device experiments, and some of our own, on a modelled board.
//!
//! Lives here:       flags, files, the live display, the claims as a table.
//! Lives elsewhere:  the experiments (`kaml_sim::Experiment`).

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use kaml_sim::{Board, Claim, Experiment, Outcome, Settings};
use kaml_terminal::failure::Failure;
use kaml_terminal::output::{self, Paint};
use std::path::{Path, PathBuf};

/// Flags of `kaml-lab experiment`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml-lab experiment all --out figures
  kaml-lab experiment fig5 --out figures --quick
  kaml-lab experiment gc --board tlc --out figures --json
  kaml-lab experiment muninn-fig9 --keys 50M --out figures

Each experiment writes NAME.csv and NAME.svg. The same board and seed give the same bytes on every machine. \
fig5 to fig10 are those of the KAML paper, section V; muninn-fig7 to muninn-fig10 those of the Muninn paper, section 6, on \
its own flash whatever the board. With fewer keys than its 50M these have fewer rows of segments, each as long.")]
pub struct Arguments {
    /// fig5 to fig10, gc, wear, logs, muninn-fig7 to muninn-fig10, or all
    #[arg(value_parser = named)]
    experiment: Chosen,
    /// The directory for tables and pictures; made if it does not exist
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    scale: Scale,
    /// Before fig5 to fig10, fill each device with random data this many times, and empty it, as the paper does
    #[arg(long, default_value_t = 0)]
    precondition: u32,
    /// Seconds instead of minutes; the figures mean little
    #[arg(long)]
    quick: bool,
    /// Tables and claims as JSON
    #[arg(long)]
    json: bool,
}

/// What is simulated: flags of `kaml-lab experiment` and `kaml-lab reproduce`.
#[derive(Args)]
pub struct Scale {
    /// The board of the KAML paper's experiments: kaml-2017, tlc, or a file
    #[arg(long, default_value = "kaml-2017")]
    pub board: String,
    /// The seed of all random choices, or of the first of several runs
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Puts of the experiments of the Muninn paper, which has 50M, as 3125000, 500K or 50M
    #[arg(long, default_value = "3125K", value_parser = count)]
    pub keys: u64,
}

#[derive(Clone)]
struct Chosen(Vec<Experiment>);

fn named(name: &str) -> Result<Chosen, String> {
    match (name, Experiment::named(name)) {
        ("all", _) => Ok(Chosen(Experiment::ALL.to_vec())),
        (_, Some(one)) => Ok(Chosen(vec![one])),
        (_, None) => {
            let names: Vec<&str> = Experiment::ALL.iter().map(|experiment| experiment.name()).collect();
            Err(format!("there is {}, and all", names.join(", ")))
        }
    }
}

/// Puts at most: their numbers have 32 bits.
const KEYS_MAX: u64 = 1 << 31;

/// Reads a count: `3125000`, `500K`, `50M`.
pub fn count(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1_000),
        None => text.strip_suffix(['M', 'm']).map_or((text, 1), |digits| (digits, 1_000_000)),
    };
    let count = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(factor));
    count
        .filter(|count| (1..=KEYS_MAX).contains(count))
        .ok_or_else(|| "a count of 1 to 2^31, as 500K or 50M".to_owned())
}

/// A preset, or a file.
pub fn board(name: &str) -> Result<Board, Failure> {
    if let Some(board) = Board::preset(name) {
        return Ok(board);
    }
    let text = std::fs::read_to_string(name).map_err(Failure::io(name))?;
    Board::parse(&text).map_err(|error| Failure::Usage(format!("{name}: {error}")))
}

impl Arguments {
    /// Runs experiments and writes what they came to.
    pub fn run(self) -> Result<(), Failure> {
        let settings = Settings {
            board: board(&self.scale.board)?,
            seed: self.scale.seed,
            quick: self.quick,
            keys: self.scale.keys,
            preconditioned: self.precondition,
        };
        std::fs::create_dir_all(&self.out).map_err(Failure::io(self.out.display()))?;
        let mut outcomes = Vec::new();
        for experiment in self.experiment.0 {
            let outcome = run(experiment, &settings, 1)?;
            write(&self.out, &format!("{}.csv", outcome.name), &outcome.csv())?;
            write(&self.out, &format!("{}.svg", outcome.name), &outcome.svg())?;
            if !self.json {
                show(&outcome, &self.out)?;
            }
            outcomes.push(outcome);
        }
        if self.json { output::json(&outcomes) } else { Ok(()) }
    }
}

/// Runs an experiment some times with a live display.
pub fn run(experiment: Experiment, settings: &Settings, runs: u32) -> Result<Outcome, Failure> {
    let style = ProgressStyle::with_template("{prefix:5} {bar:10} {pos}/{len} {elapsed} {wide_msg}");
    let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(experiment.name());
    let outcome = experiment.repeat(settings, runs, &mut |done, total, what| {
        bar.set_length(total);
        bar.set_position(done);
        bar.set_message(what.to_owned());
    });
    bar.finish_and_clear();
    outcome.map_err(|error| Failure::Failed(format!("{}: {error}", experiment.name())))
}

/// Writes a file of the results.
pub fn write(out: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let path = out.join(name);
    std::fs::write(&path, text).map_err(Failure::io(path.display()))
}

fn show(outcome: &Outcome, out: &Path) -> Result<(), Failure> {
    let paint = Paint::detect();
    let path = out.join(outcome.name);
    output::line(format!("{}: {}.csv, {}.svg", paint.bold(outcome.title), path.display(), path.display()))?;
    if outcome.claims.is_empty() {
        return Ok(());
    }
    let row = |claim: &Claim| {
        let met = if claim.met { "yes" } else { "no" };
        [claim.what.as_str(), claim.paper, claim.bar, &figures(claim), met].map(str::to_owned).to_vec()
    };
    let head = ["", "paper", "bar", "here", "met"];
    output::line(output::table(&head, 1, outcome.claims.iter().map(row)))
}

/// The figures of a claim: one, or the lowest and the highest.
pub fn figures(claim: &Claim) -> String {
    let (low, high) = claim.ours;
    if low == high { format!("{low:.3}") } else { format!("{low:.3} to {high:.3}") }
}
