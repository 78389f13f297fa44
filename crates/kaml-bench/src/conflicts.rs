//! `kaml-bench conflicts`: what coarse record locks cost.
//!
//! Lives here:       flags, the table, writing the picture.
//! Lives elsewhere:  the experiment (`kaml_workloads::conflicts`).

use crate::commands::threads_within;
use clap::Args;
use kaml_terminal::failure::Failure;
use kaml_terminal::output;
use kaml_workloads::conflicts::{self, Row, Settings};
use std::path::PathBuf;

/// Flags of `kaml-bench conflicts`.
#[derive(Args)]
pub struct Arguments {
    /// Records that are chosen from
    #[arg(long, default_value_t = 10_000)]
    records: u64,
    /// Requests at the same time
    #[arg(long, default_value_t = 16)]
    threads: usize,
    /// Neighbouring keys that share a lock, a list
    #[arg(long, default_value = "1,4,16,64,256,1024", value_delimiter = ',')]
    records_per_lock: Vec<u32>,
    /// Rounds of requests
    #[arg(long, default_value_t = 2000)]
    rounds: u32,
    /// Of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw a picture into this file, as SVG
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Figures as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Measures and shows.
    pub fn run(self) -> Result<(), Failure> {
        threads_within("threads", self.threads)?;
        let settings = Settings {
            records: self.records,
            threads: self.threads,
            rounds: self.rounds,
            widths: self.records_per_lock,
            seed: self.seed,
        };
        let rows = conflicts::run(&settings)?;
        if let Some(path) = &self.svg {
            std::fs::write(path, conflicts::svg(&settings, &rows)).map_err(Failure::io(path.display()))?;
        }
        if self.json {
            return output::json(&rows);
        }
        let head = ["records per lock", "conflicts of a round", "expected", "off by chance up to"];
        let row = |row: &Row| {
            let figures = [row.measured, row.expected, row.tolerance].map(|figure| format!("{figure:.3}"));
            [&[row.records_per_lock.to_string()], &figures[..]].concat()
        };
        output::line(output::table(&head, 0, rows.iter().map(row)))
    }
}
