//! `kaml check`.

use crate::failure::Failure;
use crate::store::DeviceArgument;
use crate::{output, size};
use clap::Args;

/// Flags of `kaml check`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml check data.kaml
  kaml check data.kaml --json

Exits with 1 if anything is damaged; each problem is one line.")]
pub struct Arguments {
    #[command(flatten)]
    device: DeviceArgument,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Reads everything; fails if anything is damaged.
    pub fn run(self) -> Result<(), Failure> {
        let device = self.device.open_to_read()?;
        let bar = kaml_terminal::progress::bar(0);
        let report = device.check(&mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })?;
        bar.finish_and_clear();
        if self.json {
            output::json(&report)?;
        } else {
            report.problems.iter().try_for_each(output::line)?;
            let (records, bytes) = (size::show_count(report.records), size::show(report.value_bytes));
            let versions = match report.versions {
                0 => String::new(),
                count => format!("{} versions, ", size::show_count(count)),
            };
            output::line(format!("{records} records, {versions}{bytes}, {} problems", report.problems.len()))?;
        }
        match report.problems.len() {
            0 => Ok(()),
            n => Err(Failure::Failed(format!("{}: {n} problems found", self.device.path().display()))),
        }
    }
}
