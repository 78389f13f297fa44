//! `kaml-lab plan`: what the parameters of a paper's design cost, by its equations.
//!
//! Lives here:       flags and the table.
//! Lives elsewhere:  the equations (`kaml_sim::MuninnPlan`).

use crate::experiment::count;
use clap::{Args, Subcommand};
use kaml_sim::{MuninnCost, MuninnPlan, PlanError};
use kaml_terminal::failure::Failure;
use kaml_terminal::output;

/// Flags of `kaml-lab plan`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    design: Design,
}

#[derive(Subcommand)]
enum Design {
    /// The Muninn paper's equations 1 to 5: reads, false positives and memory of a versioned namespace with the index `bloom`
    Muninn(Muninn),
}

/// Flags of `kaml-lab plan muninn`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml-lab plan muninn --keys 50M
  kaml-lab plan muninn --keys 100M --reads-below 1.5
  kaml-lab plan muninn --keys 1M --value 4096 --rows 32 --json

Reads are those of the equations, which count each wrong filter as a page; `kaml-lab experiment muninn-fig9` measures them. The \
default index of KAML needs no filters: docs/versioned.md.")]
struct Muninn {
    /// Versions, as 50M
    #[arg(long, value_parser = count)]
    keys: u64,
    /// Bytes of a version in its page, header and key included
    #[arg(long, default_value_t = 1024)]
    value: u64,
    /// Rows of the index; each has a segment in the write buffer
    #[arg(long, default_value_t = 128)]
    rows: u64,
    /// Bytes of a segment
    #[arg(long, default_value_t = 1 << 20)]
    segment_bytes: u64,
    /// Filters of a segment with one place for each key
    #[arg(long, default_value_t = 7)]
    hashes: u64,
    /// Segments of a row that have one table
    #[arg(long, default_value_t = 64)]
    combined: u64,
    /// The rate of false positives of a filter of the oldest table
    #[arg(long, default_value_t = 0.0005, conflicts_with = "reads_below")]
    false_positives: f64,
    /// The rate of each next table over that of the one before it
    #[arg(long, default_value_t = 1.01)]
    factor: f64,
    /// The share of a segment that versions fill
    #[arg(long, default_value_t = 0.94)]
    utilisation: f64,
    /// Find the highest rate with fewer page reads of the oldest table than this
    #[arg(long)]
    reads_below: Option<f64>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Computes the plan and shows it.
    pub fn run(self) -> Result<(), Failure> {
        let Design::Muninn(flags) = self.design;
        let usage = |error: PlanError| Failure::Usage(error.to_string());
        let plan = MuninnPlan {
            item_bytes: flags.value,
            segment_bytes: flags.segment_bytes,
            rows: flags.rows,
            hashes: flags.hashes,
            combined: flags.combined,
            false_positives: flags.false_positives,
            rate_factor: flags.factor,
            utilisation: flags.utilisation,
            ..MuninnPlan::paper(flags.keys)
        };
        let plan = match flags.reads_below {
            Some(reads) => plan.with_reads_below(reads).map_err(usage)?,
            None => plan,
        };
        let cost = plan.cost().map_err(usage)?;
        if flags.json {
            return output::json(&serde_json::json!({ "false_positives": plan.false_positives, "cost": cost }));
        }
        show(&plan, &cost)
    }
}

fn show(plan: &MuninnPlan, cost: &MuninnCost) -> Result<(), Failure> {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let rows = [
        ("1", "versions in a segment", format!("{} of {} segments", cost.items_per_segment, cost.segments)),
        ("2", "utilisation, as given", format!("{:.2}", plan.utilisation)),
        ("", "tables of filters", format!("{}", cost.tables)),
        ("", "initial rate of false positives", format!("{:.6}", plan.false_positives)),
        ("3", "a table is wrong about a key", format!("{:.4}", cost.table_false_positives)),
        ("4", "any table is wrong about a key", format!("{:.4}", cost.system_false_positives)),
        ("", "page reads, oldest table, at most", format!("{:.3}", cost.page_reads_oldest)),
        ("", "page reads, average, at most", format!("{:.3}", cost.page_reads_average)),
        ("", "write buffer", mib(cost.buffer_bytes)),
        ("", "filters", mib(cost.filter_bytes)),
        ("5", "bytes of memory a version", format!("{:.3}", cost.bytes_per_item)),
        ("", "the same without the buffer", format!("{:.3}", cost.bytes_per_item_without_buffer)),
    ];
    let rows = rows.map(|(equation, what, figure)| vec![equation.to_owned(), what.to_owned(), figure]);
    output::line(output::table(&["equation", "", ""], 2, rows))
}
