//! `kaml-lab reproduce`: the evaluation of a paper in one command.
//!
//! Lives here:       flags, the page of claims.
//! Lives elsewhere:  the experiments, the papers' values, why a claim is missed (`kaml_sim`), files and display (`experiment`).

use crate::experiment::{Scale, board, figures, run, write};
use clap::{Args, ValueEnum};
use kaml_sim::{Claim, Experiment, Outcome, Settings};
use kaml_terminal::failure::Failure;
use kaml_terminal::output;
use std::fmt::Write;
use std::path::PathBuf;

/// A paper.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Paper {
    /// HPCA 2017: Figures 5 to 10 and Table III
    Kaml,
    /// SYSTOR 2014: Figures 7 to 10
    Muninn,
}

/// Flags of `kaml-lab reproduce`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml-lab reproduce kaml --out kaml --runs 5
  kaml-lab reproduce muninn --out muninn --keys 50M
  kaml-lab reproduce kaml --out kaml --quick

Each figure is a table (NAME.csv) and a picture (NAME.svg) with the paper's values as marks. claims.md lists what the paper claims, the figures \
here, and why a claim is missed. The same board, seed and runs give the same bytes on every machine.")]
pub struct Arguments {
    /// The paper
    #[arg(value_enum)]
    paper: Paper,
    /// The directory for tables, pictures and claims.md; made if it does not exist
    #[arg(long)]
    out: PathBuf,
    /// Runs of each experiment, with seeds that follow each other [default: 3, with --quick 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Fill each device of the KAML paper with random data this many times before, and empty it [default: 2, with --quick 0]
    #[arg(long)]
    precondition: Option<u32>,
    #[command(flatten)]
    scale: Scale,
    /// Less than a minute; the figures mean little
    #[arg(long)]
    quick: bool,
    /// Tables and claims as JSON
    #[arg(long)]
    json: bool,
}

impl Paper {
    fn experiments(self) -> &'static [Experiment] {
        match self {
            Paper::Kaml => &Experiment::KAML,
            Paper::Muninn => &Experiment::MUNINN,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Paper::Kaml => "KAML: A Flexible, High-Performance Key-Value SSD (HPCA 2017)",
            Paper::Muninn => {
                "Muninn: a Versioning Flash Key-Value Store Using an Object-based Storage Model (SYSTOR 2014)"
            }
        }
    }

    /// What of the paper's evaluation is not modelled, or not as it was.
    fn missing(self) -> &'static str {
        match self {
            Paper::Kaml => {
                "Figures 9 and 10 compare KAML with Shore-MT. What the paper does not describe of it cannot be modelled honestly: its code, its \
                 buffer manager, the file system between its log and the device, and checkpoints. The engine here, \"pages and a log\", has pages of 8 KiB, \
                 strict two-phase locking of records or pages, and one log that one transaction at a time writes. It has none of the other costs, so it is \
                 faster than Shore-MT, and a factor over it is a lower bound. Both engines use the same processor time for a record, which is assumed. \
                 Locks have the paper's scale (factor 100); the device stores 1/64 of the large tables. Misses of a hit ratio below 1 are of the large \
                 tables only."
            }
            Paper::Muninn => {
                "All figures of the paper's evaluation are here; of Figure 7 two of the eight configurations, and KAML's own index."
            }
        }
    }
}

impl Arguments {
    /// Runs the experiments and writes their files.
    pub fn run(self) -> Result<(), Failure> {
        let runs = self.runs.unwrap_or(if self.quick { 2 } else { 3 });
        let preconditioned = self.precondition.unwrap_or(if self.quick { 0 } else { 2 });
        let settings = Settings {
            board: board(&self.scale.board)?,
            seed: self.scale.seed,
            quick: self.quick,
            keys: self.scale.keys,
            preconditioned: if self.paper == Paper::Kaml { preconditioned } else { 0 },
        };
        std::fs::create_dir_all(&self.out).map_err(Failure::io(self.out.display()))?;
        let mut outcomes = Vec::new();
        for experiment in self.paper.experiments() {
            let outcome = run(*experiment, &settings, runs)?;
            write(&self.out, &format!("{}.csv", outcome.name), &outcome.csv())?;
            write(&self.out, &format!("{}.svg", outcome.name), &outcome.svg())?;
            outcomes.push(outcome);
        }
        write(&self.out, "claims.md", &self.page(&outcomes, &settings, runs))?;
        if self.json {
            return output::json(&outcomes);
        }
        let claims = || outcomes.iter().flat_map(|outcome| &outcome.claims);
        let met = claims().filter(|claim| claim.met).count();
        let path = self.out.join("claims.md");
        output::line(format!("{met} of {} claims are met; {}", claims().count(), path.display()))
    }

    /// The page of claims.
    fn page(&self, outcomes: &[Outcome], settings: &Settings, runs: u32) -> String {
        let mut page = format!("# {}\n\n", self.paper.title());
        let quick = if self.quick { " This was a quick run: its figures mean little." } else { "" };
        let device = match (self.paper, settings.preconditioned) {
            (Paper::Muninn, _) if self.quick => "Few puts on the paper's flash".to_owned(),
            (Paper::Muninn, _) => format!("{} puts on the paper's flash", self.scale.keys),
            (Paper::Kaml, 0) => format!("Board {}, fresh devices", settings.board.name),
            (Paper::Kaml, fills) => {
                format!("Board {}, each device filled {fills} times with random data before", settings.board.name)
            }
        };
        let _ = writeln!(page, "{device}; {runs} runs with the seeds from {}.{quick}\n", self.scale.seed);
        let _ = writeln!(page, "{}\n", self.paper.missing());
        for outcome in outcomes {
            let _ = writeln!(page, "## {}\n\n![{}]({}.svg)\n", outcome.title, outcome.title, outcome.name);
            let _ = writeln!(page, "| claim | paper | bar | here | between runs | |\n|---|---:|---:|---:|---:|---|");
            for claim in &outcome.claims {
                let met = if claim.met { "met" } else { "**missed**" };
                let paper = if claim.paper.is_empty() { "none" } else { claim.paper };
                let (what, bar, between) = (&claim.what, claim.bar, claim.between_runs);
                let _ = writeln!(page, "| {what} | {paper} | {bar} | {} | {between:.3} | {met} |", figures(claim));
            }
            let missed: Vec<&Claim> = outcome.claims.iter().filter(|claim| !claim.met).collect();
            for claim in &missed {
                let reason = match (&claim.reason, self.quick) {
                    (Some(reason), _) => reason,
                    (None, true) => {
                        "A quick run is too short for it: its devices are small, and buffers hold most of what is put."
                    }
                    (None, false) => "The model gives no reason for it; the table has the figures.",
                };
                let _ = writeln!(page, "\n**{}** is missed. {reason}", claim.what);
            }
            let _ = writeln!(page, "\nAll figures: [{0}.csv]({0}.csv).\n", outcome.name);
        }
        page
    }
}
