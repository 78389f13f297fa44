//! Transactions on the modelled device: the KAML paper's Figures 9 and 10 and its Table III.
//!
//! Lives here:       the figures and what the paper claims.
//! Lives elsewhere:  transactions (`work`), locks (`locks`), workers and both engines (`engine`).
//! Implements:       paper:KAML V.D, V.E.
//!
//! What the paper does not describe is not modelled: Shore-MT's code, the file system between it and its log, and checkpoints. The engine
//! over pages has none of their costs, so it is faster than Shore-MT, and the claims are harder to meet.

mod engine;
mod locks;
mod work;

use super::chart::{Chart, Marks, Panel, PaperMark, Series};
use super::paper::{self, PaperValue};
use super::{Cell, Claim, Outcome, Progress, Settings, Steps, device, slice};
use crate::board::Board;
use crate::rig::{Rig, RigError};
use crate::rng::Rng;
use engine::{Database, Found, PAGE_BYTES, Point, RECORD_NS, Store, WORKERS};
use work::{MIXES, Oltp, OltpWork, Table, Ycsb};

/// Hit ratios of the records' cache, in thousandths.
const HITS: [u64; 2] = [1000, 800];
/// Records of a lock: one, the paper's sixteen, and a page of 512-byte records.
const COARSE: u64 = 16;
const PAGE_RECORDS: u64 = PAGE_BYTES / 512;
/// Records of YCSB at the paper's scale, their bytes, and the share of them that memory holds.
const YCSB_RECORDS: u64 = 20_000_000;
const YCSB_BYTES: u32 = 1024;
const YCSB_MEMORY: (u64, u64) = (2, 5);

/// How large and how long.
struct Scale {
    share: u64,
    warm_up: u64,
    transactions: u64,
}

impl Scale {
    fn of(settings: &Settings) -> Scale {
        match settings.quick {
            true => Scale { share: 2048, warm_up: 100, transactions: 400 },
            false => Scale { share: 64, warm_up: 5000, transactions: 20_000 },
        }
    }

    fn point(&self, store: Store, records_per_lock: u64) -> Point {
        Point { store, records_per_lock, warm_up: self.warm_up, transactions: self.transactions }
    }
}

fn rig(settings: &Settings) -> Result<Rig, RigError> {
    let (blocks, pages) = if settings.quick { (24, 64) } else { (64, settings.board.geometry.pages_per_block) };
    device(&slice(&settings.board, (u32::MAX, u32::MAX), blocks, pages)?, settings)
}

/// A setting of Figure 9: its name, the engine, records of a lock.
const ENGINES: [(&str, Store, u64); 4] = [
    ("KAML, lock of 1 record", Store::Records, 1),
    ("KAML, lock of 16 records", Store::Records, COARSE),
    ("pages and a log, lock of 1 record", Store::Pages, 1),
    ("pages and a log, lock of a page", Store::Pages, PAGE_RECORDS),
];

/// Figure 9: thousands of transactions a second of each workload, engine and hit ratio; and the time to write a commit.
struct Oltps {
    per_s: Vec<[[Option<f64>; HITS.len()]; ENGINES.len()]>,
    rows: Vec<Vec<Cell>>,
    log_us: Vec<f64>,
}

fn oltps(settings: &Settings, progress: Progress<'_>) -> Result<Oltps, RigError> {
    let scale = Scale::of(settings);
    let mut steps = Steps::new(progress, Oltp::ALL.len() * (ENGINES.len() + 2));
    let mut all = Oltps { per_s: Vec::new(), rows: Vec::new(), log_us: Vec::new() };
    let mut from = 0;
    for kind in Oltp::ALL {
        let mut database = Database::new(rig(settings)?, kind.tables(), scale.share)?;
        let mut figures = [[None; HITS.len()]; ENGINES.len()];
        let mut log_us = 0.0;
        for (engine, (name, store, records_per_lock)) in ENGINES.into_iter().enumerate() {
            for (at, hits) in HITS.into_iter().enumerate() {
                // The paper gives the engine over pages memory for everything.
                if store == Store::Pages && hits < 1000 {
                    continue;
                }
                steps.next(&format!("{}, {name}, hit ratio {}", kind.name(), hits as f64 / 1e3));
                // The same transactions for all.
                let mut rng = Rng::new(settings.seed);
                let mut work = OltpWork::new(kind, hits, WORKERS, from);
                from += scale.warm_up + scale.transactions;
                let found = database.run(&scale.point(store, records_per_lock), &mut work, &mut rng)?;
                let per_s = found.sheet.commands_per_s();
                figures[engine][at] = Some(per_s / 1e3);
                if store == Store::Pages && records_per_lock == 1 {
                    log_us = found.write_us;
                }
                all.rows.push(row(kind.name(), name, hits, &found));
            }
        }
        all.per_s.push(figures);
        all.log_us.push(log_us);
    }
    Ok(all)
}

fn row(workload: &str, engine: &str, hits: u64, found: &Found) -> Vec<Cell> {
    let sheet = &found.sheet;
    let mut row: Vec<Cell> = vec![workload.into(), engine.into(), Cell::Words(format!("{}", hits as f64 / 1e3))];
    row.extend([sheet.commands_per_s(), sheet.mean_us(), sheet.quantile_us(0.99)].map(Cell::from));
    row.extend([found.waits_percent, found.write_us].map(Cell::from));
    row
}

const COLUMNS: [&str; 8] = [
    "workload",
    "engine",
    "hit_ratio",
    "transactions_per_s",
    "mean_us",
    "p99_us",
    "lock_waits_percent",
    "commit_write_us",
];

/// The paper's factors over the engine with pages, by workload.
const FACTORS: [PaperValue; 3] = [paper::TPCB, paper::NEW_ORDER, paper::PAYMENT];

/// Figure 9.
pub(super) fn oltp(settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
    let all = oltps(settings, progress)?;
    let factor = |workload: usize, hits: usize| Some(all.per_s[workload][0][hits]? / all.per_s[workload][2][0]?);
    let lost = |workload: usize, (fine, coarse): (usize, usize)| {
        let figures = &all.per_s[workload];
        let one = |hits: usize| Some(100.0 * (1.0 - figures[coarse][hits]? / figures[fine][hits]?));
        (0..HITS.len()).filter_map(one).fold(0.0, f64::max)
    };
    let names: Vec<String> = Oltp::ALL.iter().map(|kind| kind.name().to_owned()).collect();
    let hit = |at: usize| format!("hit ratio {}", HITS[at] as f64 / 1e3);
    let throughput = |(workload, kind): (usize, &Oltp)| Panel {
        title: kind.name().to_owned(),
        x: "hit ratio of the records' cache; pages are all in memory",
        y: "thousand transactions a second",
        marks: Marks::Bars,
        categories: HITS.iter().map(|hits| format!("{}", *hits as f64 / 1e3)).collect(),
        series: ENGINES
            .iter()
            .enumerate()
            .map(|(engine, (name, ..))| Series::new(*name, all.per_s[workload][engine].to_vec()))
            .collect(),
        paper: Vec::new(),
    };
    let mark = |category, series, range| PaperMark { category, series: Some(series), range };
    let factors = Panel {
        title: "KAML / pages, locks of 1 record".into(),
        x: "",
        y: "times",
        marks: Marks::Bars,
        categories: names.clone(),
        series: (0..HITS.len())
            .map(|at| Series::new(hit(at), (0..names.len()).map(|workload| factor(workload, at)).collect()))
            .collect(),
        paper: FACTORS.iter().enumerate().map(|(at, value)| mark(at, 0, value.range)).collect(),
    };
    let pairs = [(0, 1), (2, 3)];
    let losses = Panel {
        title: "Lost by coarse locks".into(),
        x: "",
        y: "%, the paper: up to",
        marks: Marks::Bars,
        categories: names.clone(),
        series: pairs
            .iter()
            .map(|pair| {
                Series::new(ENGINES[pair.1].0, (0..names.len()).map(|workload| Some(lost(workload, *pair))).collect())
            })
            .collect(),
        paper: [&paper::COARSE_RECORDS, &paper::COARSE_PAGES]
            .iter()
            .enumerate()
            .flat_map(|(series, value)| (0..3).map(move |at| mark(at, series, (value.range.1, value.range.1))))
            .collect(),
    };
    let mut claims = Vec::new();
    for (workload, value) in FACTORS.iter().enumerate() {
        let best = (0..HITS.len()).filter_map(|at| factor(workload, at)).fold(0.0, f64::max);
        let bar = [("at least 4.0", 4.0), ("at least 1.1", 1.1), ("at least 2.0", 2.0)][workload];
        let what = format!("{}: KAML / pages with locks of 1 record, best hit ratio", names[workload]);
        let kaml = all.per_s[workload][0].iter().flatten().copied().fold(0.0, f64::max);
        let reason = flush_reason(&settings.board, (bar.1, kaml), all.log_us[workload]);
        claims.push(Claim::new(&what, (value, bar.0), bar.1..=9e9, [best]).because(reason));
    }
    let worst = |pair| (0..names.len()).map(|workload| lost(workload, pair)).fold(0.0, f64::max);
    let coarse = (&paper::COARSE_RECORDS, "5 to 52");
    claims.push(Claim::new(
        "KAML: lost with 16 records a lock, worst workload, %",
        coarse,
        5.0..=52.0,
        [worst((0, 1))],
    ));
    let pages = (&paper::COARSE_PAGES, "5 to 85");
    claims.push(Claim::new("pages: lost with a lock of a page, worst workload, %", pages, 5.0..=85.0, [worst((2, 3))]));
    let chart = Chart {
        title: "Figure 9: transactions".into(),
        subtitle: format!(
            "board {}, {WORKERS} workers, {:.0} µs of a processor a record; pages: best case, without file system and checkpoints",
            settings.board.name,
            RECORD_NS as f64 / 1e3
        ),
        panels: Oltp::ALL.iter().enumerate().map(throughput).chain([factors, losses]).collect(),
    };
    Ok(Outcome::new(("fig9", "Transactions of TPC-B and TPC-C"), &COLUMNS, all.rows, claims, chart))
}

/// Why KAML gains less than in the paper.
fn flush_reason(board: &Board, (factor, kaml): (f64, f64), log_us: f64) -> String {
    let cores = &board.controller;
    let record_us = (cores.probe_cycles + cores.record_cycles) as f64 / cores.core_mhz as f64;
    format!(
        "KAML is limited by the core that has the firmware's state, which takes {record_us:.1} µs for each record of a Put. One transaction at a time writes the log, {log_us:.1} µs each on this device with nothing between engine and device. The paper's engine \
         writes a file and waits for `fsync`, whose cost it does not give. The factor is {factor} if writing the log takes {:.1} µs, at {kaml:.0} \
         thousand transactions a second of KAML.",
        factor * 1e3 / kaml
    )
}

/// Figure 10 and Table III.
pub(super) fn ycsb(settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
    let scale = Scale::of(settings);
    let mut steps = Steps::new(progress, MIXES.len() * 2 + 1);
    let count = (YCSB_RECORDS / scale.share).max(1);
    let (part, whole) = YCSB_MEMORY;
    steps.next("storing the records");
    let table = Table { records: count, bytes: YCSB_BYTES };
    let mut database = Database::new(rig(settings)?, vec![table], 1)?;
    let engines = [("KAML", Store::Records, 1), ("pages and a log", Store::Pages, PAGE_BYTES / u64::from(YCSB_BYTES))];
    let (mut rows, mut per_s, mut apart) = (Vec::new(), [Vec::new(), Vec::new()], Vec::new());
    for (name, store, per_page) in engines {
        for mix in MIXES {
            steps.next(&format!("{name}, workload {}", mix.name));
            let mut rng = Rng::new(settings.seed);
            let places = (count * part / whole / per_page).max(1) as usize;
            let mut work = Ycsb::new(mix, count, (places, per_page), &mut rng);
            let found = database.run(&scale.point(store, 1), &mut work, &mut rng)?;
            let done: u64 = work.done.iter().sum();
            let shares = work.done.map(|one| one as f64 / done.max(1) as f64);
            let mut row: Vec<Cell> = vec![mix.name.into(), name.into()];
            row.extend(shares.map(Cell::from));
            let of_paper = mix.of_100.map(|of_100| format!("{}", of_100 as f64 / 100.0));
            row.push(Cell::Words(of_paper.join(" ")));
            let sheet = &found.sheet;
            let hits = work.hits as f64 / work.reads.max(1) as f64;
            row.extend([hits, sheet.commands_per_s(), sheet.mean_us(), sheet.quantile_us(0.99)].map(Cell::from));
            rows.push(row);
            per_s[usize::from(store == Store::Pages)].push(sheet.commands_per_s() / 1e3);
            apart.extend(shares.into_iter().zip(mix.of_100).map(|(share, of)| (100.0 * share - of as f64).abs()));
        }
    }
    let factors: Vec<f64> = per_s[0].iter().zip(&per_s[1]).map(|(kaml, pages)| kaml / pages).collect();
    let mean = factors.iter().sum::<f64>() / factors.len() as f64;
    let categories: Vec<String> = MIXES.iter().map(|mix| mix.name.to_owned()).collect();
    let panel = |title: &str, y, series, paper| Panel {
        title: title.to_owned(),
        x: "workload",
        y,
        marks: Marks::Bars,
        categories: categories.clone(),
        series,
        paper,
    };
    let values = |figures: &[f64]| figures.iter().copied().map(Some).collect::<Vec<_>>();
    let series = engines.iter().zip(&per_s).map(|((name, ..), figures)| Series::new(*name, values(figures))).collect();
    let marks = (0..MIXES.len()).map(|category| PaperMark { category, series: None, range: paper::YCSB.range });
    let chart = Chart {
        title: "Figure 10: YCSB".into(),
        subtitle: format!(
            "board {}, {WORKERS} workers, {count} records of {YCSB_BYTES} B, of which memory holds {part} of {whole}",
            settings.board.name
        ),
        panels: vec![
            panel("Throughput", "thousand a second", series, Vec::new()),
            panel("KAML / pages", "times", vec![Series::new("KAML / pages", values(&factors))], marks.collect()),
        ],
    };
    let bar = |value, bar| (value, bar);
    let claims = vec![
        Claim::new("YCSB: KAML / pages, each workload", bar(&paper::YCSB, "at least 1.1"), 1.1..=9e9, factors.clone())
            .because(ycsb_reason(&factors)),
        Claim::new("YCSB: KAML / pages, mean", bar(&paper::YCSB_MEAN, "at least 2.3"), 2.3..=9e9, [mean])
            .because(ycsb_reason(&factors)),
        Claim::new("Table III: shares, points from the paper", bar(&paper::NONE, "at most 3"), 0.0..=3.0, apart),
    ];
    let columns = [
        "workload",
        "engine",
        "reads",
        "updates",
        "inserts",
        "reads_with_update",
        "paper_shares",
        "hit_ratio",
        "per_s",
        "mean_us",
        "p99_us",
    ];
    Ok(Outcome::new(("fig10", "YCSB and its mixes (Table III)"), &columns, rows, claims, chart))
}

fn ycsb_reason(factors: &[f64]) -> String {
    let named: Vec<String> =
        MIXES.iter().zip(factors).map(|(mix, factor)| format!("{} {factor:.2}", mix.name)).collect();
    format!(
        "Factors: {}. A read that misses takes one record or one page of flash, and memory for pages holds fewer of the popular records. The engine \
         over pages has no file system, no buffer manager and no checkpoints here, which the paper does not describe well enough to model.",
        named.join(", ")
    )
}
