//! The paper's microbenchmarks: Fetch, Update and Insert of records and of blocks.
//!
//! Lives here:       Figures 5, 6 and 7.
//! Implements:       paper:KAML V.B.
//!
//! A load factor is meant as in the paper, entries over the places of a fixed table; ours grows with its entries, so what
//! changes is how many records there are. Records and blocks are on the same firmware and the same board.

use super::chart::{Chart, Marks, Panel, PaperMark, Series};
use super::paper::{self, PaperValue};
use super::{Claim, Outcome, Progress, Settings, Steps, device, reasons, slice};
use crate::board::Board;
use crate::load::{Ask, Load, Order, Sheet};
use crate::rig::{Rig, RigError};
use kaml_flash::Packing;

/// Value sizes of the paper.
const SIZES: [u32; 4] = [512, 1024, 2048, 4096];
/// Load factors of the paper, in tenths.
const LOADS: [u64; 3] = [1, 4, 7];
/// The paper's threads for bandwidth.
const HOSTS: usize = 8;

/// What holds the records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Logical blocks, the conventional device.
    Blocks,
    /// Records that may cross pages.
    Records,
    /// Records within pages, as the paper has them.
    PaperRecords,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Blocks, Kind::Records, Kind::PaperRecords];

    fn name(self) -> &'static str {
        match self {
            Kind::Blocks => "block",
            Kind::Records => "KAML",
            Kind::PaperRecords => "KAML, records within pages",
        }
    }

    fn packing(self) -> Packing {
        match self {
            Kind::Blocks | Kind::Records => Packing::Across,
            Kind::PaperRecords => Packing::WithinPage,
        }
    }

    fn asks(self) -> (Ask, Ask) {
        match self {
            Kind::Blocks => (Ask::Read, Ask::Write),
            Kind::Records | Kind::PaperRecords => (Ask::Get, Ask::Put),
        }
    }
}

/// How large and how long.
struct Scale {
    board: Board,
    /// Places of the table that load factors are counted in.
    entries: u64,
    /// Records written before measuring: of the larger sizes more than buffers take.
    warm_up: u64,
    /// Records written while measuring.
    records: u64,
    /// Reads that are measured.
    reads: u64,
    settings: Settings,
}

impl Scale {
    fn of(settings: &Settings) -> Result<Scale, RigError> {
        let board = settings.board.clone();
        let board = &board;
        let all = (u32::MAX, u32::MAX);
        let settings = settings.clone();
        // A device that is filled before need not be larger than what is stored then.
        let blocks = if settings.preconditioned > 0 { 64 } else { 160 };
        Ok(match settings.quick {
            false => Scale {
                board: slice(board, all, blocks, board.geometry.pages_per_block)?,
                entries: 1 << 20, // 1/64 of the paper's
                warm_up: 32 << 10,
                records: 64 << 10,
                reads: 32 << 10,
                settings,
            },
            true => Scale {
                board: slice(board, all, 24, 64)?,
                entries: 1 << 14,
                warm_up: 512,
                records: 1024,
                reads: 512,
                settings,
            },
        })
    }

    fn rig(&self, kind: Kind, bytes: u32) -> Result<(Rig, Load), RigError> {
        let mut board = self.board.clone();
        board.geometry.packing = kind.packing();
        let mut rig = device(&board, &self.settings)?;
        let space = match kind {
            Kind::Blocks => rig.create_blocks("blocks", self.entries * u64::from(bytes))?,
            Kind::Records | Kind::PaperRecords => rig.create_records("records", Vec::new())?,
        };
        rig.rest()?;
        let load = Load {
            space,
            ask: kind.asks().1,
            bytes,
            batch: 1,
            records: 0..self.entries,
            order: Order::Turn,
            hosts: HOSTS,
            warm_up: 0,
            commands: None,
        };
        Ok((rig, load))
    }
}

/// Runs one load.
pub(super) fn one(rig: &mut Rig, load: &Load) -> Result<Sheet, RigError> {
    Ok(rig.run(std::slice::from_ref(load))?.pop().expect("one sheet for each load"))
}

/// Records that fill whole units of blocks, whatever their size.
fn whole_units(records: u64) -> u64 {
    let per_unit = u64::from(SIZES[SIZES.len() - 1] / SIZES[0]);
    records / per_unit * per_unit
}

/// Stores the records `from..to`, by many hosts; blocks in large pieces.
fn fill(rig: &mut Rig, load: &Load, from: u64, to: u64) -> Result<(), RigError> {
    let size = if load.ask == Ask::Write { SIZES[SIZES.len() - 1] } else { load.bytes };
    let per_write = u64::from(size / load.bytes);
    let records = from / per_write..to / per_write;
    let commands = Some(records.end - records.start);
    let load = Load { bytes: size, records, commands, hosts: 4 * HOSTS, warm_up: 0, ..load.clone() };
    one(rig, &load).and_then(|_| rig.rest())
}

/// The three microbenchmarks up to a device with `count` records: Insert stores the last of them.
fn measure(
    rig: &mut Rig,
    kind: Kind,
    load: &Load,
    (stored, count): (u64, u64),
    scale: &Scale,
) -> Result<[Sheet; 3], RigError> {
    let (warm_up, commands) = (scale.warm_up, scale.records);
    let from = whole_units(count - (warm_up + commands).min(count)).max(stored);
    fill(rig, load, stored, from)?;
    let load = Load { records: from..count, warm_up, commands: Some(count - from - warm_up), ..load.clone() };
    let inserted = one(rig, &load)?;
    rig.rest()?;
    let update = Load { records: 0..count, order: Order::Even, commands: Some(commands), ..load };
    let updated = one(rig, &update)?;
    rig.settle()?; // so that all reads are of flash
    let reads = Load { ask: kind.asks().0, warm_up: 0, commands: Some(scale.reads), ..update };
    Ok([one(rig, &reads)?, updated, inserted])
}

const BENCHES: [&str; 3] = ["Fetch", "Update", "Insert"];
const COLUMNS: [&str; 10] = [
    "bench",
    "device",
    "value_bytes",
    "load_factor",
    "mb_per_s",
    "commands_per_s",
    "mean_us",
    "p50_us",
    "p99_us",
    "p999_us",
];

/// A figure with its place in a table.
struct Point {
    bench: usize,
    kind: Kind,
    bytes: u32,
    tenths: u64,
    sheet: Sheet,
}

impl Point {
    fn row(&self) -> Vec<super::Cell> {
        let sheet = &self.sheet;
        vec![
            BENCHES[self.bench].into(),
            self.kind.name().into(),
            u64::from(self.bytes).into(),
            (self.tenths as f64 / 10.0).into(),
            sheet.megabytes_per_s().into(),
            sheet.commands_per_s().into(),
            sheet.mean_us().into(),
            sheet.quantile_us(0.5).into(),
            sheet.quantile_us(0.99).into(),
            sheet.quantile_us(0.999).into(),
        ]
    }
}

fn points(settings: &Settings, loads: &[u64], hosts: usize, steps: &mut Steps<'_>) -> Result<Vec<Point>, RigError> {
    let scale = Scale::of(settings)?;
    let mut points = Vec::new();
    for kind in Kind::ALL {
        for bytes in SIZES {
            let (mut rig, load) = scale.rig(kind, bytes)?;
            let load = Load { hosts, ..load };
            let mut stored = 0;
            for tenths in loads {
                steps.next(&format!("{}, {bytes} B, load factor 0.{tenths}", kind.name()));
                let count = whole_units(scale.entries * tenths / 10);
                let sheets = measure(&mut rig, kind, &load, (stored, count), &scale)?;
                stored = count;
                let point = |(bench, sheet)| Point { bench, kind, bytes, tenths: *tenths, sheet };
                points.extend(sheets.into_iter().enumerate().map(point));
            }
        }
    }
    Ok(points)
}

fn sizes() -> Vec<String> {
    SIZES.iter().map(|bytes| format!("{bytes} B")).collect()
}

/// Ratios of two devices at each value size of a range.
fn ratios(
    points: &[Point],
    (bench, over, under): (usize, Kind, Kind),
    tenths: u64,
    sizes: std::ops::RangeInclusive<u32>,
    figure: impl Fn(&Sheet) -> f64,
) -> Vec<f64> {
    let find = |kind, bytes| {
        let is = |p: &&Point| p.bench == bench && p.kind == kind && p.bytes == bytes && p.tenths == tenths;
        points.iter().find(is).map(|point| figure(&point.sheet))
    };
    let ratio = |bytes| Some(find(over, bytes)? / find(under, bytes)?);
    SIZES.into_iter().filter(|bytes| sizes.contains(bytes)).filter_map(ratio).collect()
}

/// KAML over block by value size, next to the paper's values below 4 KiB and at 4 KiB; `tenths` with their name.
fn ratio_panel(
    points: &[Point],
    bench: usize,
    tenths: &[(u64, String)],
    paper: &[(usize, usize, &PaperValue)],
    (y, figure): (&'static str, fn(&Sheet) -> f64),
) -> Panel {
    let one = |(tenths, name): &(u64, String)| {
        let found = ratios(points, (bench, Kind::Records, Kind::Blocks), *tenths, 0..=u32::MAX, figure);
        Series::new(name.clone(), found.into_iter().map(Some).collect())
    };
    let mark = |(series, category, value): &(usize, usize, &PaperValue)| PaperMark {
        category: *category,
        series: (tenths.len() > 1).then_some(*series),
        range: value.range,
    };
    Panel {
        title: format!("{}, KAML / block", BENCHES[bench]),
        x: "value size",
        y,
        marks: Marks::Bars,
        categories: sizes(),
        series: tenths.iter().map(one).collect(),
        paper: paper.iter().map(mark).collect(),
    }
}

/// A value of the paper for the sizes below 4 KiB, and one for 4 KiB, over the same series.
fn small_and_unit<'a>(
    series: usize,
    small: &'a PaperValue,
    unit: &'a PaperValue,
) -> Vec<(usize, usize, &'a PaperValue)> {
    (0..SIZES.len()).map(|at| (series, at, if at + 1 < SIZES.len() { small } else { unit })).collect()
}

/// Figure 5.
pub(super) fn bandwidth(settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
    let mut steps = Steps::new(progress, Kind::ALL.len() * SIZES.len() * LOADS.len());
    let points = points(settings, &LOADS, HOSTS, &mut steps)?;
    let series = |bench: usize| {
        let one = |kind: Kind, tenths: u64, name: String| {
            let is = |p: &&Point| p.bench == bench && p.kind == kind && p.tenths == tenths;
            let values = points.iter().filter(is).map(|p| Some(p.sheet.megabytes_per_s())).collect();
            Series::new(name, values)
        };
        let mut series = vec![one(Kind::Blocks, 4, "block".into())];
        series.extend(LOADS.map(|tenths| one(Kind::Records, tenths, format!("KAML, load 0.{tenths}"))));
        series.push(one(Kind::PaperRecords, 4, "KAML, records within pages, load 0.4".into()));
        series
    };
    let panel = |(bench, title): (usize, &&str)| Panel {
        title: (*title).to_owned(),
        x: "value size",
        y: "MB/s",
        marks: Marks::Bars,
        categories: sizes(),
        series: series(bench),
        paper: Vec::new(),
    };
    let loads: Vec<(u64, String)> = LOADS.map(|tenths| (tenths, format!("KAML, load 0.{tenths}"))).to_vec();
    let all = |series, value| small_and_unit(series, value, value);
    let fetch = [all(0, &paper::GET_LOAD_1), all(1, &paper::GET_LOAD_4), all(2, &paper::GET_LOAD_7)].concat();
    let update = small_and_unit(1, &paper::UPDATE_SMALL, &paper::UPDATE_UNIT);
    let insert = small_and_unit(1, &paper::INSERT_SMALL, &paper::INSERT_UNIT);
    let relative = [fetch, update, insert].into_iter().enumerate();
    let relative =
        relative.map(|(bench, paper)| ratio_panel(&points, bench, &loads, &paper, ("times", Sheet::megabytes_per_s)));
    let chart = Chart {
        title: "Figure 5: bandwidth of records and of blocks".into(),
        subtitle: format!("board {}, {HOSTS} hosts, one command each", settings.board.name),
        panels: BENCHES.iter().enumerate().map(panel).chain(relative).collect(),
    };
    let speed = Sheet::megabytes_per_s;
    let of = |bench, tenths, sizes| ratios(&points, (bench, Kind::Records, Kind::Blocks), tenths, sizes, speed);
    let claims = vec![
        Claim::new(
            "Get / read bandwidth, load 0.1",
            (&paper::GET_LOAD_1, "at least 1"),
            1.0..=9e9,
            of(0, 1, 512..=4096),
        ),
        Claim::new(
            "Get / read bandwidth, load 0.4",
            (&paper::GET_LOAD_4, "0.9 to 1.1"),
            0.9..=1.1,
            of(0, 4, 512..=4096),
        )
        .because(reasons::small_gets(&settings.board)),
        Claim::new(
            "Get / read bandwidth, load 0.7",
            (&paper::GET_LOAD_7, "at least 0.9"),
            0.9..=9e9,
            of(0, 7, 512..=4096),
        ),
        Claim::new(
            "Update / write bandwidth below 4 KiB",
            (&paper::UPDATE_SMALL, "at least 6.7"),
            6.7..=9e9,
            of(1, 4, 512..=2048),
        ),
        Claim::new(
            "Update / write bandwidth at 4 KiB",
            (&paper::UPDATE_UNIT, "at least 1"),
            0.995..=9e9,
            of(1, 4, 4096..=4096),
        ),
        Claim::new(
            "Insert / write bandwidth below 4 KiB",
            (&paper::INSERT_SMALL, "at least 1"),
            1.0..=9e9,
            of(2, 4, 512..=2048),
        ),
        Claim::new(
            "Insert / write bandwidth at 4 KiB",
            (&paper::INSERT_UNIT, "at least 1"),
            0.995..=9e9,
            of(2, 4, 4096..=4096),
        ),
    ];
    let rows = points.iter().map(Point::row).collect();
    Ok(Outcome::new(("fig5", "Bandwidth of Fetch, Update and Insert"), &COLUMNS, rows, claims, chart))
}

/// Figure 6.
pub(super) fn latency(settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
    let mut steps = Steps::new(progress, Kind::ALL.len() * SIZES.len());
    let points = points(settings, &[4], 1, &mut steps)?;
    let series = |bench: usize, kind: Kind| {
        let is = |p: &&Point| p.bench == bench && p.kind == kind;
        let values = points.iter().filter(is).map(|p| Some(p.sheet.mean_us())).collect();
        Series::new(kind.name().to_owned(), values)
    };
    let panel = |(bench, title): (usize, &&str)| Panel {
        title: (*title).to_owned(),
        x: "value size",
        y: "mean latency, µs",
        marks: Marks::Bars,
        categories: sizes(),
        series: Kind::ALL.map(|kind| series(bench, kind)).to_vec(),
        paper: Vec::new(),
    };
    let load = [(4, Kind::Records.name().to_owned())];
    let fetch = small_and_unit(0, &paper::GET_LATENCY, &paper::GET_LATENCY);
    let update: Vec<_> = (0..3).map(|at| (0, at, &paper::UPDATE_LATENCY)).collect();
    let insert = small_and_unit(0, &paper::INSERT_LATENCY_SMALL, &paper::INSERT_LATENCY_UNIT);
    let relative = [fetch, update, insert].into_iter().enumerate();
    let relative = relative.map(|(bench, paper)| ratio_panel(&points, bench, &load, &paper, ("times", Sheet::mean_us)));
    let chart = Chart {
        title: "Figure 6: latency of records and of blocks".into(),
        subtitle: format!("board {}, one host, load factor 0.4", settings.board.name),
        panels: BENCHES.iter().enumerate().map(panel).chain(relative).collect(),
    };
    let of = |bench, sizes| ratios(&points, (bench, Kind::Records, Kind::Blocks), 4, sizes, Sheet::mean_us);
    let claims = vec![
        Claim::new("Get / read latency", (&paper::GET_LATENCY, "0.9 to 1.1"), 0.9..=1.1, of(0, 512..=4096))
            .because(reasons::small_gets(&settings.board)),
        Claim::new(
            "Update / write latency below 4 KiB",
            (&paper::UPDATE_LATENCY, "at most 0.25"),
            0.0..=0.25,
            of(1, 512..=2048),
        ),
        Claim::new(
            "Insert / write latency below 4 KiB",
            (&paper::INSERT_LATENCY_SMALL, "at most 0.75"),
            0.0..=0.75,
            of(2, 512..=2048),
        )
        .because(reasons::small_insert(&settings.board, 0.75)),
        Claim::new(
            "Insert / write latency at 4 KiB",
            (&paper::INSERT_LATENCY_UNIT, "at most 1"),
            0.0..=1.005,
            of(2, 4096..=4096),
        ),
    ];
    let rows = points.iter().map(Point::row).collect();
    Ok(Outcome::new(("fig6", "Latency of Fetch, Update and Insert"), &COLUMNS, rows, claims, chart))
}

/// Records of a Put.
const BATCHES: [u64; 6] = [1, 2, 4, 8, 16, 32];

/// Figure 7.
pub(super) fn batches(settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
    let scale = Scale::of(settings)?;
    let mut steps = Steps::new(progress, SIZES.len() * BATCHES.len());
    let mut rows = Vec::new();
    let (mut updates, mut fills) = (Vec::new(), Vec::new());
    for bytes in SIZES {
        let (mut update, mut fill_s) = (Vec::new(), Vec::new());
        for batch in BATCHES {
            steps.next(&format!("{bytes} B, {batch} records a Put"));
            let (mut rig, load) = scale.rig(Kind::Records, bytes)?;
            let load = Load { batch, ..load };
            // A quarter of the table is enough to show how long filling takes.
            let count = (scale.entries / 4 * 7 / 10).next_multiple_of(batch);
            let whole = Load { records: 0..count, commands: Some(count / batch), ..load.clone() };
            let filled = one(&mut rig, &whole)?;
            rig.rest()?;
            let updated = one(
                &mut rig,
                &Load {
                    records: 0..count,
                    order: Order::Even,
                    warm_up: scale.warm_up / batch,
                    commands: Some(scale.records / batch),
                    ..load
                },
            )?;
            let seconds = (filled.time_ns.end - filled.time_ns.start) as f64 / 1e9;
            rows.push(vec![
                u64::from(bytes).into(),
                batch.into(),
                updated.megabytes_per_s().into(),
                updated.mean_us().into(),
                filled.megabytes_per_s().into(),
                seconds.into(),
            ]);
            update.push(updated.megabytes_per_s());
            fill_s.push(seconds);
        }
        updates.push(update);
        fills.push(fill_s);
    }
    let series = |figures: &[Vec<f64>], relative: bool| {
        let one = |(bytes, figures): (u32, &Vec<f64>)| {
            let figure = |figure: &f64| Some(if relative { figure / figures[0] } else { *figure });
            Series::new(format!("{bytes} B"), figures.iter().map(figure).collect())
        };
        SIZES.into_iter().zip(figures).map(one).collect()
    };
    let four = BATCHES.iter().position(|batch| *batch == 4).expect("one of them");
    let mark = |value: &PaperValue| vec![PaperMark { category: four, series: None, range: value.range }];
    let panel = |title: &str, y, series, paper| Panel {
        title: title.to_owned(),
        x: "records of a Put",
        y,
        marks: Marks::Lines,
        categories: BATCHES.map(|batch| batch.to_string()).to_vec(),
        series,
        paper,
    };
    let chart = Chart {
        title: "Figure 7: records of a Put".into(),
        subtitle: format!("board {}, {HOSTS} hosts", settings.board.name),
        panels: vec![
            panel("Update", "MB/s", series(&updates, false), Vec::new()),
            panel("Update", "times one record", series(&updates, true), mark(&paper::BATCH_UPDATE)),
            panel("Fill to load 0.7, time", "times one record", series(&fills, true), mark(&paper::BATCH_FILL)),
        ],
    };
    let gain = |figures: &Vec<Vec<f64>>| figures.iter().map(|f| f[four] / f[0]).collect::<Vec<_>>();
    let per_s = |(bytes, figures): (u32, &Vec<f64>)| figures[four] * 1e6 / f64::from(bytes);
    let updates_per_s: Vec<f64> = SIZES.into_iter().zip(&updates).map(per_s).collect();
    let filled = (scale.entries / 4 * 7 / 10) as f64;
    let fills_per_s: Vec<f64> = fills.iter().map(|seconds| filled / seconds[four]).collect();
    let claims = vec![
        Claim::new(
            "Update bandwidth, 4 records / 1",
            (&paper::BATCH_UPDATE, "at least 1.2"),
            1.2..=9e9,
            gain(&updates),
        )
        .because(reasons::batches(&settings.board, (HOSTS, &updates_per_s), 1.2)),
        Claim::new(
            "time to fill to load 0.7, 4 records / 1",
            (&paper::BATCH_FILL, "at most 0.6"),
            0.0..=0.6,
            gain(&fills),
        )
        .because(reasons::batches(&settings.board, (HOSTS, &fills_per_s), 1.0 / 0.6)),
    ];
    let columns = ["value_bytes", "batch", "update_mb_per_s", "update_mean_us", "fill_mb_per_s", "fill_s"];
    Ok(Outcome::new(("fig7", "Bandwidth by records of a Put"), &columns, rows, claims, chart))
}
