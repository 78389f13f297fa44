//! The device experiments of both papers and some of our own, each from a board and a seed.
//!
//! Lives here:       their names, their results: a table, a picture, the paper's claims next to ours.
//! Lives elsewhere:  executing commands (`rig`), the experiments (`micro`, `logs`, `transactions`, `collection`; `muninn`), pictures
//!                   (`chart`), the papers' values (`paper`), why claims are missed (`reasons`), several runs (`runs`).
//! Implements:       paper:KAML V.B-E (Figures 5 to 10, Table III), paper:Muninn 6 (Figures 7 to 10); docs/experiments.md.
//!
//! The same board and seed give the same bytes on every machine.

mod chart;
mod collection;
mod logs;
mod micro;
mod muninn;
mod paper;
mod reasons;
mod runs;
mod transactions;

use crate::board::Board;
use crate::rig::{Rig, RigError};
use chart::Chart;
pub use paper::PaperValue;
use serde::Serialize;

/// An experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Experiment {
    /// Bandwidth of Fetch, Update and Insert, by value size and load factor.
    Fig5,
    /// Latency of the same at load factor 0.4.
    Fig6,
    /// Bandwidth by records of a Put.
    Fig7,
    /// Bandwidth by logs of a namespace.
    Fig8,
    /// Transactions of TPC-B and TPC-C, by hit ratio and records of a lock, and over pages with a log.
    Fig9,
    /// YCSB and its mixes (Table III), and over pages with a log.
    Fig10,
    /// Write amplification and tail latency by utilisation.
    Gc,
    /// Spread of erase counts as the device is written again and again.
    Wear,
    /// Two namespaces with logs of their own, and with the same.
    Logs,
    /// Of versions: utilisation of segments and memory, by distribution of keys.
    MuninnFig7,
    /// Of versions: page reads and memory, by rate of false positives.
    MuninnFig8,
    /// Of versions: page reads and writes of lookups and inserts.
    MuninnFig9,
    /// Of versions: how well memory shows what is live.
    MuninnFig10,
}

/// What all experiments are run with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The board; those on versions have the Muninn paper's flash instead.
    pub board: Board,
    /// Of all chances.
    pub seed: u64,
    /// So short that the figures mean little: to see that everything works.
    pub quick: bool,
    /// Puts of an experiment on versions; the Muninn paper has 50 million.
    pub keys: u64,
    /// Before Figures 5 to 10 of the KAML paper, each device is filled with random data this many times, and emptied.
    pub preconditioned: u32,
}

/// A field of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// What was run.
    Words(String),
    /// A count.
    Count(u64),
    /// What was measured; four digits after the point are kept.
    Figure(f64),
}

/// A claim of the paper, next to the result here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// What is compared.
    pub what: String,
    /// The paper's result, empty if it reports none.
    pub paper: &'static str,
    /// The bar.
    pub bar: &'static str,
    /// Lowest and highest figure here.
    pub ours: (f64, f64),
    /// How far the lowest or the highest figures of two runs are apart at most.
    pub between_runs: f64,
    /// Whether all figures are within the bar.
    pub met: bool,
    /// If it is missed, why, as the model has it, and the parameter that would meet it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What an experiment came to.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The experiment.
    pub name: &'static str,
    /// In words.
    pub title: &'static str,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The table.
    pub rows: Vec<Vec<Cell>>,
    /// The paper's claims.
    pub claims: Vec<Claim>,
    /// How many runs it is the mean of.
    pub runs: u32,
    #[serde(skip)]
    chart: Chart,
}

/// Receives the progress of an experiment: steps done, steps in all, the present one.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64, &str);

impl Experiment {
    /// The figures of the KAML paper.
    pub const KAML: [Experiment; 6] =
        [Experiment::Fig5, Experiment::Fig6, Experiment::Fig7, Experiment::Fig8, Experiment::Fig9, Experiment::Fig10];
    /// The figures of the Muninn paper.
    pub const MUNINN: [Experiment; 4] =
        [Experiment::MuninnFig7, Experiment::MuninnFig8, Experiment::MuninnFig9, Experiment::MuninnFig10];
    /// All of them.
    pub const ALL: [Experiment; 13] = [
        Experiment::Fig5,
        Experiment::Fig6,
        Experiment::Fig7,
        Experiment::Fig8,
        Experiment::Fig9,
        Experiment::Fig10,
        Experiment::Gc,
        Experiment::Wear,
        Experiment::Logs,
        Experiment::MuninnFig7,
        Experiment::MuninnFig8,
        Experiment::MuninnFig9,
        Experiment::MuninnFig10,
    ];

    /// As one writes it.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Fig5 => "fig5",
            Experiment::Fig6 => "fig6",
            Experiment::Fig7 => "fig7",
            Experiment::Fig8 => "fig8",
            Experiment::Fig9 => "fig9",
            Experiment::Fig10 => "fig10",
            Experiment::Gc => "gc",
            Experiment::Wear => "wear",
            Experiment::Logs => "logs",
            Experiment::MuninnFig7 => "muninn-fig7",
            Experiment::MuninnFig8 => "muninn-fig8",
            Experiment::MuninnFig9 => "muninn-fig9",
            Experiment::MuninnFig10 => "muninn-fig10",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Experiment> {
        Experiment::ALL.into_iter().find(|experiment| experiment.name() == name)
    }

    /// Runs it.
    ///
    /// # Errors
    /// The board cannot be scaled as the experiment needs it, or the firmware refused something.
    pub fn run(self, settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
        match self {
            Experiment::Fig5 => micro::bandwidth(settings, progress),
            Experiment::Fig6 => micro::latency(settings, progress),
            Experiment::Fig7 => micro::batches(settings, progress),
            Experiment::Fig8 => logs::bandwidth(settings, progress),
            Experiment::Fig9 => transactions::oltp(settings, progress),
            Experiment::Fig10 => transactions::ycsb(settings, progress),
            Experiment::Gc => collection::amplification(settings, progress),
            Experiment::Wear => collection::wear(settings, progress),
            Experiment::Logs => logs::interference(settings, progress),
            Experiment::MuninnFig7 => muninn::utilisation(settings, progress),
            Experiment::MuninnFig8 => muninn::false_positives(settings, progress),
            Experiment::MuninnFig9 => muninn::amplification(settings, progress),
            Experiment::MuninnFig10 => muninn::thresholds(settings, progress),
        }
    }
}

impl Outcome {
    fn new(
        (name, title): (&'static str, &'static str),
        columns: &[&'static str],
        rows: Vec<Vec<Cell>>,
        claims: Vec<Claim>,
        chart: Chart,
    ) -> Outcome {
        assert!(rows.iter().all(|row| row.len() == columns.len()), "{name}: a row for other columns");
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Outcome { name, title, columns, rows, claims, runs: 1, chart }
    }

    /// The picture, which follows the reader's preference for light or dark.
    pub fn svg(&self) -> String {
        self.chart.svg()
    }

    /// The table as comma-separated values with a head.
    pub fn csv(&self) -> String {
        let line = |row: &Vec<Cell>| row.iter().map(Cell::to_string).collect::<Vec<_>>().join(",");
        let rows: Vec<String> = self.rows.iter().map(line).collect();
        format!("{}\n{}\n", self.columns.join(","), rows.join("\n"))
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cell::Words(words) => write!(f, "{}", words.replace(',', ";")),
            Cell::Count(count) => write!(f, "{count}"),
            Cell::Figure(figure) => write!(f, "{figure:.4}"),
        }
    }
}

impl From<&str> for Cell {
    fn from(words: &str) -> Cell {
        Cell::Words(words.to_owned())
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Cell {
        Cell::Count(count)
    }
}

impl From<f64> for Cell {
    /// Rounded as it is printed, so tables and JSON agree.
    fn from(figure: f64) -> Cell {
        Cell::Figure(rounded(figure))
    }
}

impl Claim {
    /// A claim about figures that must all lie within `bar`'s bounds.
    fn new(
        what: &str,
        (paper, bar): (&PaperValue, &'static str),
        within: std::ops::RangeInclusive<f64>,
        ours: impl IntoIterator<Item = f64>,
    ) -> Claim {
        let (low, high) = ours.into_iter().fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
        let met = within.contains(&low) && within.contains(&high);
        let ours = (rounded(low), rounded(high));
        Claim { what: what.to_owned(), paper: paper.says, bar, ours, between_runs: 0.0, met, reason: None }
    }

    /// Why it is missed, if it is.
    #[must_use]
    fn because(self, reason: String) -> Claim {
        Claim { reason: (!self.met).then_some(reason), ..self }
    }
}

impl Cell {
    fn figure(&self) -> Option<f64> {
        if let Cell::Figure(figure) = self { Some(*figure) } else { None }
    }
}

fn rounded(figure: f64) -> f64 {
    (figure * 1e4).round() / 1e4
}

/// Counts steps and reports them.
struct Steps<'a> {
    progress: Progress<'a>,
    done: u64,
    total: u64,
}

impl<'a> Steps<'a> {
    fn new(progress: Progress<'a>, total: usize) -> Steps<'a> {
        Steps { progress, done: 0, total: total as u64 }
    }

    /// The next step begins.
    fn next(&mut self, what: &str) {
        (self.progress)(self.done, self.total, what);
        self.done += 1;
    }
}

/// A device on a board, filled before as the settings demand.
fn device(board: &Board, settings: &Settings) -> Result<Rig, RigError> {
    let mut rig = Rig::new(board, settings.seed)?;
    rig.precondition(settings.preconditioned)?;
    Ok(rig)
}

/// A share of the board: fewer channels, dies and blocks of the same kind.
fn slice(board: &Board, (channels, dies): (u32, u32), blocks: u32, pages: u32) -> Result<Board, RigError> {
    let mut board = board.clone();
    let geometry = &mut board.geometry;
    geometry.channel_count = geometry.channel_count.min(channels);
    geometry.dies_per_channel = geometry.dies_per_channel.min(dies);
    geometry.blocks_per_die = blocks;
    geometry.pages_per_block = pages.next_multiple_of(geometry.pages_per_program);
    geometry.check()?;
    Ok(board)
}
