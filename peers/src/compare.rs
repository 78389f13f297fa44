//! Running engines in turns, and what it comes to.
//!
//! Lives here:       loading all, alternating runs, medians, ratios, the table.
//! Lives elsewhere:  one run of one engine (`kaml_workloads::drive`).
//!
//! A disk has fast and slow minutes. So every engine is loaded first, and then each has its turn in every round, and only
//! what was measured in one comparison is compared.

use crate::engines::{Kind, PageCache, Setup};
use comfy_table::{CellAlignment, Table as TextTable, presets};
use kaml_terminal::passing::Passing;
use kaml_workloads::Error;
use kaml_workloads::drive::{Outcome, Run, Stage, Workload};
use kaml_workloads::engine::{Engine, Table};
use serde::Serialize;
use std::path::PathBuf;

/// Threads that load and check.
const LOAD_THREADS: usize = 2;
/// A guess of operations per second, for what runs add.
const OPERATIONS_PER_S: f64 = 100_000.0;

/// What is to be compared, and how.
pub(crate) struct Plan {
    /// Each has its turns.
    pub engines: Vec<Kind>,
    /// Memory for caching, as a share of what is loaded.
    pub cache_share: f64,
    /// Turns of each.
    pub rounds: usize,
    /// Every record is read once before the first.
    pub fill_cache: bool,
    /// Where the engines have their directories.
    pub dir: PathBuf,
    /// One turn.
    pub run: Run,
}

/// What an engine did in all its turns.
#[derive(Serialize)]
pub(crate) struct Row {
    /// Its name.
    pub engine: String,
    /// Whether the system's page cache is used.
    pub page_cache: &'static str,
    /// Operations per second in the median run.
    pub operations_per_s: f64,
    /// Every run, in the order of the rounds.
    pub outcomes: Vec<Outcome>,
    /// What was found to be as it must be.
    pub checked: Vec<String>,
}

/// All rows, in the order that was requested.
#[derive(Serialize)]
pub(crate) struct Comparison {
    /// The workload.
    pub workload: String,
    /// Blocking threads.
    pub threads: usize,
    /// Memory for caching.
    pub cache_bytes: u64,
    /// What was loaded.
    pub data_bytes: u64,
    /// One for each engine.
    pub rows: Vec<Row>,
}

/// An engine with its workload, loaded.
struct Contender {
    kind: Kind,
    engine: Box<dyn Engine>,
    workload: Box<dyn Workload>,
    outcomes: Vec<Outcome>,
    /// After the engine, so it is closed before its files go.
    _dir: Passing,
}

impl Plan {
    /// Loads every engine, gives each its turns, and checks what exists then.
    pub(crate) fn run(&self, make: &dyn Fn() -> Result<Box<dyn Workload>, Error>) -> Result<Comparison, Error> {
        let size = make()?.size();
        let cache_bytes = (size.value_bytes as f64 * self.cache_share) as u64;
        let load = |kind: &Kind| self.load(*kind, make()?, cache_bytes);
        let mut contenders = self.engines.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        for round in 0..self.rounds {
            for contender in &mut contenders {
                let run = Run { seed: self.run.seed + round as u64, ..self.run };
                let outcome = contender.workload.run(&*contender.engine, &run, &progress(contender.kind))?;
                eprintln!("{}: {:.0}/s", contender.kind.name(), outcome.operations_per_s);
                contender.outcomes.push(outcome);
            }
        }
        let workload = contenders.first().map_or_else(String::new, |first| first.outcomes[0].workload.clone());
        let rows = contenders.into_iter().map(Contender::finish).collect::<Result<_, _>>()?;
        Ok(Comparison { workload, threads: self.run.threads, cache_bytes, data_bytes: size.value_bytes, rows })
    }

    fn load(&self, kind: Kind, workload: Box<dyn Workload>, cache_bytes: u64) -> Result<Contender, Error> {
        let dir = Passing::directory(&self.dir);
        let dir = dir.map_err(|error| Error::Parameters(format!("{}: {error}", self.dir.display())))?;
        let size = workload.size();
        let seconds = (self.run.duration + self.run.warm_up).as_secs_f64() * self.rounds as f64;
        let added = (seconds * OPERATIONS_PER_S * size.operation_bytes as f64) as u64;
        let setup = Setup {
            dir: dir.path().to_owned(),
            tables: workload.tables(),
            scanned: (0..workload.tables().len()).map(Table).filter(|table| workload.is_scanned(*table)).collect(),
            cache_bytes,
            data_bytes: size.value_bytes + added,
            threads: self.run.threads,
        };
        let engine = kind.open(&setup)?;
        workload.check_run(&*engine, &self.run)?;
        workload.load(&*engine, LOAD_THREADS, &progress(kind))?;
        if self.fill_cache {
            workload.fill_cache(&*engine, LOAD_THREADS, &progress(kind))?;
        }
        Ok(Contender { kind, engine, workload, outcomes: Vec::new(), _dir: dir })
    }
}

impl Contender {
    fn finish(mut self) -> Result<Row, Error> {
        let checked = self.workload.check(&mut *self.engine, LOAD_THREADS, &progress(self.kind))?;
        let page_cache = match self.kind.page_cache() {
            PageCache::Unused => "no",
            PageCache::Besides => "besides",
            PageCache::Only => "only",
        };
        let engine = self.kind.name();
        let operations_per_s = median(self.outcomes.iter().map(|outcome| outcome.operations_per_s));
        Ok(Row { engine, page_cache, operations_per_s, outcomes: self.outcomes, checked })
    }
}

/// Reports each stage one time.
fn progress(kind: Kind) -> impl Fn(Stage, u64, u64) + Sync {
    move |stage, done, _| {
        if done == 0 {
            eprintln!("{}: {stage:?}", kind.name());
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// At least three digits, so an operation in memory is not one of no time.
fn three_digits(value: f64) -> String {
    let decimals = [(100.0, 0), (10.0, 1), (1.0, 2)].into_iter().find(|(from, _)| value >= *from).map_or(3, |(_, n)| n);
    format!("{value:.decimals$}")
}

impl Comparison {
    /// For people: medians over the rounds, and how many times an engine's rate the first engine's is.
    pub(crate) fn table(&self) -> TextTable {
        let mut table = TextTable::new();
        let ratio = format!("{} / it", self.rows.first().map_or("first", |row| &row.engine));
        let head = ["engine", "page cache", "ops/s", &ratio, "p50 µs", "p99 µs", "p99.9 µs", "disk B/B", "CPU µs/op"];
        table.load_style(presets::ASCII_MARKDOWN).set_header(head.to_vec());
        let first = self.rows.first().map_or(f64::NAN, |row| row.operations_per_s);
        for row in &self.rows {
            let of = |figure: &dyn Fn(&Outcome) -> f64| median(row.outcomes.iter().map(figure));
            let us = |figure: &dyn Fn(&Outcome) -> u64| three_digits(of(&|o| figure(o) as f64 / 1e3));
            let written = of(&|outcome| outcome.device_bytes_per_user_byte.unwrap_or(f64::NAN));
            table.add_row([
                row.engine.clone(),
                row.page_cache.into(),
                format!("{:.0}", row.operations_per_s),
                format!("{:.2}", first / row.operations_per_s),
                us(&|outcome| outcome.latency.p50_ns),
                us(&|outcome| outcome.latency.p99_ns),
                us(&|outcome| outcome.latency.p999_ns),
                if written.is_nan() { "-".into() } else { format!("{written:.2}") },
                three_digits(of(&|outcome| outcome.cpu_us_per_operation)),
            ]);
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaml_workloads::tpcb::{Settings, Tpcb};

    /// Goal:   short times keep their digits.
    /// Method: times around each step.
    #[test]
    fn times_have_three_digits() {
        let shown = [0.1234, 1.0, 9.876, 12.34, 123.4, 4567.8].map(three_digits);
        assert_eq!(shown, ["0.123", "1.00", "9.88", "12.3", "123", "4568"]);
    }

    /// Goal:   a comparison has every engine's turns, ratios and a picture.
    /// Method: a tiny bank on two engines, twice.
    #[test]
    fn engines_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        let run = Run { duration: std::time::Duration::from_millis(50), ..Run::of(2, 100) };
        let plan = Plan {
            engines: vec![Kind::Kaml, Kind::Redb],
            cache_share: 100.0,
            rounds: 2,
            fill_cache: true,
            dir: dir.path().to_owned(),
            run,
        };
        let settings = Settings { accounts_per_branch: 1000, ..Settings::new(1) };
        let make = || Ok(Box::new(Tpcb::new(settings.clone())?) as Box<dyn Workload>);
        let comparison = plan.run(&make).unwrap();
        assert!(comparison.rows.iter().all(|row| row.outcomes.len() == 2 && row.checked.len() == 3));
        assert!(comparison.rows.iter().all(|row| row.outcomes.iter().all(|outcome| outcome.operations > 0)));
        let (table, picture) = (comparison.table().to_string(), crate::chart::svg(&comparison));
        assert!(["kaml", "redb"].iter().all(|name| table.contains(name) && picture.contains(name)), "{table}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }
}
