//! `kaml-bench compare` and `kaml-bench index`: figures beside their floors.
//!
//! Lives here:       flags and tables of both.
//! Lives elsewhere:  what is run and measured (`kaml-workloads`).

use crate::commands::{Common, time};
use clap::Args;
use kaml_terminal::failure::Failure;
use kaml_terminal::{output, size};
use kaml_workloads::compare::{self, Bar, Group, Options, Progress, Row};
use std::io::Write;

#[derive(Args)]
pub struct CompareArguments {
    /// Only these rows: puts, async, batch, get, index, written, large, steady, reopen, kill, memory
    #[arg(long, value_delimiter = ',', value_parser = group)]
    only: Vec<Group>,
    /// Turns of each side
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Records of the uncached gets
    #[arg(long, default_value_t = 1_000_000)]
    get_records: u64,
    /// Keys of the index rows, a list
    #[arg(long, default_value = "10000000,100000000")]
    index_keys: Counts,
    /// Bytes of the device of the steady state
    #[arg(long, default_value = "4GiB", value_parser = size::parse)]
    steady_capacity: u64,
    /// Seconds that each steady-state run may overwrite at most
    #[arg(long, default_value_t = 300.0)]
    steady_seconds_max: f64,
    /// Records of the reopening
    #[arg(long, default_value_t = 10_000_000)]
    reopen_records: u64,
    /// Kill cycles
    #[arg(long, default_value_t = 300)]
    kill_cycles: u32,
    /// Bytes of values stored while the resident memory is watched
    #[arg(long, default_value = "20GiB", value_parser = size::parse)]
    memory_bytes: u64,
    #[command(flatten)]
    pub common: Common,
}

fn group(name: &str) -> Result<Group, String> {
    let names = || Group::ALL.map(Group::name).join(", ");
    let found = Group::ALL.into_iter().find(|group| group.name() == name);
    found.ok_or_else(|| format!("no rows are called `{name}`; there are {}", names()))
}

/// A list of counts, or `none`.
#[derive(Clone, Debug)]
pub struct Counts(pub Vec<usize>);

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

impl CompareArguments {
    fn options(&self) -> Result<Options, Failure> {
        Ok(Options {
            dir: self.common.dir.clone(),
            duration: self.common.duration()?,
            repeats: self.repeats,
            groups: if self.only.is_empty() { Group::ALL.to_vec() } else { self.only.clone() },
            get_records: self.get_records.max(1),
            index_keys: self.index_keys.0.iter().map(|keys| *keys as u64).collect(),
            steady_capacity: self.steady_capacity,
            steady_duration_max: time("steady-seconds-max", self.steady_seconds_max, true)?,
            reopen_records: self.reopen_records.max(1),
            kill_cycles: self.kill_cycles,
            memory_bytes: self.memory_bytes,
            program: std::env::current_exe().map_err(Failure::io("finding our own program"))?,
        })
    }

    pub fn run(self) -> Result<(), Failure> {
        let options = self.options()?;
        let told = |line: String| {
            // Only for those who wait; a closed standard error is no reason to stop.
            let _ = writeln!(std::io::stderr(), "{line}");
        };
        let rows = compare::run(&options, &mut |progress| match progress {
            Progress::Step(step) => told(format!("... {step}")),
            Progress::Row(row) => told(row_cells(row).join("  ")),
        });
        show(&rows, self.common.json)
    }
}

/// The rows as a table, and below it what disturbed them.
fn show(rows: &[Row], json: bool) -> Result<(), Failure> {
    if json {
        return output::json(&rows);
    }
    output::line(output::table(&["what", "floor", "kaml", "ratio", "bar", "met"], 1, rows.iter().map(row_cells)))?;
    let why = |row: &Row| Some(format!("{}: {}", row.what, row.disturbed.as_ref()?));
    let disturbed: Vec<String> = rows.iter().filter_map(why).collect();
    if disturbed.is_empty() {
        return Ok(());
    }
    output::line("\nDisturbed; measure these again on a quiet machine:")?;
    disturbed.into_iter().try_for_each(output::line)
}

/// What, floor, kaml, ratio, bar, met.
fn row_cells(row: &Row) -> Vec<String> {
    let value = |value: f64| match row.unit.as_str() {
        unit if unit.ends_with("/s") && unit != "MB/s" && unit != "M/s" => size::show_rate(value),
        unit => format!("{} {unit}", size::show_number(value)).trim_end().to_owned(),
    };
    let dash = || "-".to_owned();
    vec![
        row.what.clone(),
        row.floor.map_or_else(dash, value),
        value(row.kaml),
        row.ratio.map_or_else(dash, |ratio| format!("{ratio:.2}")),
        match row.bar {
            None => dash(),
            Some(Bar::AtLeast(bar)) => format!(">= {}", size::show_number(bar)),
            Some(Bar::AtMost(bar)) => format!("<= {}", size::show_number(bar)),
        },
        match (row.met, &row.disturbed) {
            (_, Some(_)) => "disturbed".to_owned(),
            (Some(met), None) => if met { "yes" } else { "NO" }.to_owned(),
            (None, None) => dash(),
        },
    ]
}

pub fn index(keys: &Counts, json: bool) -> Result<(), Failure> {
    let options = Options { index_keys: keys.0.iter().map(|keys| *keys as u64).collect(), ..Options::default() };
    let rows = compare::run(&Options { groups: vec![Group::Index], ..options }, &mut |_| {});
    show(&rows, json)
}
