//! `kaml-lab workload`: a workload from a file on a modelled board.
//!
//! Lives here:       flags, the live display, the table.
//! Lives elsewhere:  the file and executing it (`kaml_sim::WorkloadFile`).

use crate::experiment::board;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use kaml_sim::{LoadReport, Policies, WorkloadError, WorkloadFile};
use kaml_terminal::failure::Failure;
use kaml_terminal::output;
use std::path::PathBuf;

/// Flags of `kaml-lab workload`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml-lab workload mixed.toml
  kaml-lab workload mixed.toml --policy greedy --seed 7 --json

The form of the file is in docs/guide/research.md. The same file, board and seed give the same results on every machine.")]
pub struct Arguments {
    /// The workload, a TOML file
    file: PathBuf,
    /// The board: kaml-2017, tlc, or a file
    #[arg(long, default_value = "kaml-2017")]
    board: String,
    /// The policy of collection, in place of the file's
    #[arg(long)]
    policy: Option<String>,
    /// Of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Executes the workload and shows what it came to.
    pub fn run(self) -> Result<(), Failure> {
        let board = board(&self.board)?;
        let text = std::fs::read_to_string(&self.file).map_err(Failure::io(self.file.display()))?;
        let failed = |error: WorkloadError| match error {
            WorkloadError::Rig(error) => Failure::Failed(error.to_string()),
            other => Failure::Usage(format!("{}: {other}", self.file.display())),
        };
        let mut workload = WorkloadFile::parse(&text).map_err(failed)?;
        if let Some(policy) = &self.policy {
            workload.policy = Some(policy.clone());
        }
        let style = ProgressStyle::with_template("{bar:20} {pos}/{len} commands {elapsed}");
        let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let report = workload.run(&board, self.seed, &Policies::new(), &mut |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let report = report.map_err(failed)?;
        if self.json {
            return output::json(&report);
        }
        let row = |load: &LoadReport| {
            let figure = |figure: f64| format!("{figure:.1}");
            let figures =
                [load.per_s, load.megabytes_per_s, load.mean_us, load.p50_us, load.p99_us, load.p999_us].map(figure);
            let mut row = vec![load.namespace.clone(), load.command.to_owned(), load.commands.to_string()];
            row.extend(figures);
            row
        };
        let head = ["namespace", "command", "commands", "per s", "MB/s", "mean µs", "50 %", "99 %", "99.9 %"];
        output::line(output::table(&head, 2, report.loads.iter().map(row)))?;
        let (amplification, erases) = (report.write_amplification, report.erases);
        output::line(format!(
            "write amplification {amplification:.3}, {erases} erases, fingerprint {}",
            report.fingerprint
        ))
    }
}
