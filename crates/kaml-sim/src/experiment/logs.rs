//! Logs of namespaces: how much bandwidth they give, and what they keep apart.
//!
//! Lives here:       Figure 8, interference of two namespaces.
//! Implements:       paper:KAML V.C, IV.B ("the SSD can control the allocation of resources").

use super::chart::{Chart, Marks, Panel, PaperMark, Series};
use super::micro::one;
use super::{Cell, Claim, Outcome, Progress, Settings, Steps, device, paper, reasons, slice};
use crate::board::Board;
use crate::load::{Ask, Load, Order, Sheet};
use crate::rig::{Rig, RigError};
use kaml_flash::Packing;

/// Logs of the namespace; the paper has 16 to 64.
const LOGS: [u32; 5] = [8, 16, 32, 48, 64];

/// Records that may cross pages, on all dies of a board. Each die has room for all that is written to it: a log without
/// erased blocks would continue to other dies.
fn board(settings: &Settings) -> Result<Board, RigError> {
    let (blocks, pages) = if settings.quick { (24, 64) } else { (64, settings.board.geometry.pages_per_block) };
    let mut board = slice(&settings.board, (u32::MAX, u32::MAX), blocks, pages)?;
    board.geometry.packing = Packing::Across;
    Ok(board)
}

/// Commands before measuring, of the larger values more than buffers take, and measured.
fn window(settings: &Settings) -> (u64, u64) {
    if settings.quick { (256, 512) } else { (32 << 10, 64 << 10) }
}

fn load(space: u32, bytes: u32, hosts: usize) -> Load {
    Load {
        space,
        ask: Ask::Put,
        bytes,
        batch: 1,
        records: 0..1 << 13,
        order: Order::Even,
        hosts,
        warm_up: 0,
        commands: None,
    }
}

/// Figure 8.
pub(super) fn bandwidth(settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
    let board = board(settings)?;
    let (warm_up, commands) = window(settings);
    let cases = [(512, 8), (4096, 8), (512, 64), (4096, 64)];
    let mut steps = Steps::new(progress, cases.len() * LOGS.len());
    let dies = board.geometry.die_count();
    let logs: Vec<u32> = LOGS.into_iter().filter(|count| *count <= dies).collect();
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    for (size, hosts) in cases {
        let mut speeds = Vec::new();
        for count in &logs {
            steps.next(&format!("{size} B, {hosts} hosts, {count} logs"));
            let mut rig = device(&board, settings)?;
            let space = rig.create_records("records", (0..*count).collect())?;
            rig.rest()?;
            let load = load(space, size, hosts);
            let sheet = one(&mut rig, &Load { warm_up, commands: Some(commands), ..load })?;
            speeds.push(sheet.megabytes_per_s());
            rows.push(vec![
                u64::from(size).into(),
                (hosts as u64).into(),
                u64::from(*count).into(),
                sheet.megabytes_per_s().into(),
                sheet.mean_us().into(),
                sheet.quantile_us(0.99).into(),
            ]);
        }
        series.push((format!("{size} B, {hosts} hosts"), speeds));
    }
    let at = |count| logs.iter().position(|logs| *logs == count);
    let gain = at(16).zip(at(64)).map(|(few, many)| series[3].1[many] / series[3].1[few]);
    let claims = gain.map(|gain| {
        let what = "Update bandwidth of 4 KiB, 64 logs / 16, 64 hosts";
        Claim::new(what, (&paper::LOGS, "at least 3.9"), 3.9..=9e9, [gain]).because(reasons::logs(&board, 16, 64))
    });
    let relative = |(name, speeds): &(String, Vec<f64>)| {
        let base = at(16).map(|at| speeds[at]);
        Series::new(name.clone(), speeds.iter().map(|speed| base.map(|base| speed / base)).collect())
    };
    let mark = at(64).map(|category| PaperMark { category, series: None, range: paper::LOGS.range });
    let times = Panel {
        title: "Update".into(),
        x: "logs",
        y: "times 16 logs",
        marks: Marks::Lines,
        categories: logs.iter().map(u32::to_string).collect(),
        series: series.iter().map(relative).collect(),
        paper: mark.into_iter().collect(),
    };
    let panel = Panel {
        title: "Update".into(),
        x: "logs",
        y: "MB/s",
        marks: Marks::Lines,
        categories: logs.iter().map(u32::to_string).collect(),
        series: named(series),
        paper: Vec::new(),
    };
    let chart = Chart {
        title: "Figure 8: logs of a namespace".into(),
        subtitle: format!("board {}", settings.board.name),
        panels: vec![panel, times],
    };
    let columns = ["value_bytes", "hosts", "logs", "mb_per_s", "mean_us", "p99_us"];
    let claims = claims.into_iter().collect();
    Ok(Outcome::new(("fig8", "Bandwidth by logs of a namespace"), &columns, rows, claims, chart))
}

fn named(series: Vec<(String, Vec<f64>)>) -> Vec<Series> {
    let one = |(name, values): (String, Vec<f64>)| Series::new(name, values.into_iter().map(Some).collect());
    series.into_iter().map(one).collect()
}

/// Hosts of the quiet namespace and of the one that writes all the time.
const READERS: usize = 4;
const WRITERS: usize = 32;
/// Values of both.
const BYTES: u32 = 4096;

/// Two namespaces: one is read, the other one written as fast as possible.
pub(super) fn interference(settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
    let board = board(settings)?;
    let dies = board.geometry.die_count();
    let quarter: Vec<u32> = (0..dies / 4).collect();
    let others: Vec<u32> = (dies / 4..dies).collect();
    let cases = [
        ("alone", Vec::new(), None),
        ("same logs", Vec::new(), Some(Vec::new())),
        ("logs of its own", quarter, Some(others)),
    ];
    let mut steps = Steps::new(progress, cases.len());
    let mut figures = Vec::new();
    for (name, logs, noise) in cases {
        steps.next(name);
        figures.push((name, beside(&board, settings, logs, noise)?));
    }
    let row = |(name, (read, written)): &(&str, (Sheet, Option<Sheet>))| {
        let write = written.as_ref().map_or(0.0, Sheet::megabytes_per_s);
        let quantiles = [0.5, 0.99, 0.999].map(|q| Cell::from(read.quantile_us(q)));
        let [p50, p99, p999] = quantiles;
        vec![(*name).into(), read.megabytes_per_s().into(), read.mean_us().into(), p50, p99, p999, write.into()]
    };
    let rows = figures.iter().map(row).collect();
    let of = |quantile: f64| figures.iter().map(|(_, (read, _))| Some(read.quantile_us(quantile) / 1e3)).collect();
    let series = |name: &str, values| Series::new(name.to_owned(), values);
    let categories: Vec<String> = figures.iter().map(|(name, _)| (*name).to_owned()).collect();
    let write = |(_, (_, written)): &(&str, (Sheet, Option<Sheet>))| Some(written.as_ref()?.megabytes_per_s());
    let panels = vec![
        Panel {
            title: "Get".into(),
            x: "logs of the namespace that is read",
            y: "latency, ms",
            marks: Marks::Bars,
            categories: categories.clone(),
            series: vec![series("median", of(0.5)), series("99 %", of(0.99)), series("99.9 %", of(0.999))],
            paper: Vec::new(),
        },
        Panel {
            title: "Put at the same time".into(),
            x: "logs of the namespace that is read",
            y: "MB/s",
            marks: Marks::Bars,
            categories,
            series: vec![series("written at the same time", figures.iter().map(write).collect())],
            paper: Vec::new(),
        },
    ];
    let chart = Chart {
        title: "Two namespaces, one read and one written".into(),
        subtitle: format!("board {}, {READERS} readers, {WRITERS} writers, {BYTES} B", settings.board.name),
        panels,
    };
    let columns = ["logs", "get_mb_per_s", "get_mean_us", "get_p50_us", "get_p99_us", "get_p999_us", "put_mb_per_s"];
    Ok(Outcome::new(("logs", "Interference of two namespaces"), &columns, rows, Vec::new(), chart))
}

/// Gets from one namespace, while another is written if there is one.
fn beside(
    board: &Board,
    settings: &Settings,
    logs: Vec<u32>,
    noise: Option<Vec<u32>>,
) -> Result<(Sheet, Option<Sheet>), RigError> {
    let mut rig = Rig::new(board, settings.seed)?;
    let read = rig.create_records("read", logs)?;
    let written = noise.map(|logs| rig.create_records("written", logs)).transpose()?;
    rig.rest()?;
    let fill = |space| {
        let load = load(space, BYTES, WRITERS);
        Load { order: Order::Turn, commands: Some(load.records.end), ..load }
    };
    for space in [Some(read), written].into_iter().flatten() {
        one(&mut rig, &fill(space))?;
    }
    rig.settle()?;
    let reads = if settings.quick { 2_000 } else { 50_000 };
    let warm_up = reads / 10;
    let gets = Load { ask: Ask::Get, warm_up, commands: Some(reads), ..load(read, BYTES, READERS) };
    let puts = written.map(|space| load(space, BYTES, WRITERS));
    let mut sheets = rig.run(&[Some(gets), puts].into_iter().flatten().collect::<Vec<_>>())?.into_iter();
    Ok((sheets.next().expect("one for the Gets"), sheets.next()))
}
