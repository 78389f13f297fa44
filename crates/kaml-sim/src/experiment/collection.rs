//! Garbage collection and wear on a device that is written again and again.
//!
//! Lives here:       write amplification and tail latency by utilisation, the spread of erase counts.
//! Implements:       paper:KAML IV.E; docs/experiments.md.
//!
//! Both run on a slice of the board: collection works die by die, so a few dies show as much as all, and the share of open
//! blocks is that of the slice.

use super::chart::{Chart, Marks, Panel, Series};
use super::micro::one;
use super::{Cell, Outcome, Progress, Settings, Steps, slice};
use crate::board::Board;
use crate::load::{Ask, Load, Order};
use crate::rig::{Rig, RigError};
use kaml_device::CollectionPolicy;
use kaml_flash::Packing;

/// Live records of what the firmware takes, in percent.
const UTILISATIONS: [u64; 6] = [25, 50, 70, 80, 90, 98];
/// Writes that go to a hundredth of the records, in percent; 0: all are even.
const SKEWS: [(&str, u64); 2] = [("even", 0), ("90 % of the writes to 1 %", 90)];
/// Values; with its header a record takes a chunk more.
const BYTES: u32 = 4096;
const HOSTS: usize = 8;

fn board(settings: &Settings, (channels, dies): (u32, u32)) -> Result<Board, RigError> {
    let (blocks, pages) = if settings.quick { (48, 16) } else { (64, 64) };
    let mut board = slice(&settings.board, (channels, dies), blocks, pages)?;
    board.geometry.packing = Packing::Across;
    // As much of the buffer as a slice has of the dies.
    board.geometry.ring_bytes = 8 << 20;
    Ok(board)
}

/// A device with records up to a share of what it takes.
fn filled(board: &Board, settings: &Settings, percent: u64) -> Result<(Rig, Load), RigError> {
    let mut rig = Rig::new(board, settings.seed)?;
    let space = rig.create_records("records", Vec::new())?;
    rig.rest()?;
    let record = u64::from(BYTES + board.geometry.chunk_bytes);
    let count = rig.stats().capacity_bytes * percent / 100 / record;
    let load = Load {
        space,
        ask: Ask::Put,
        bytes: BYTES,
        batch: 1,
        records: 0..count,
        order: Order::Turn,
        hosts: HOSTS,
        warm_up: 0,
        commands: Some(count),
    };
    one(&mut rig, &load)?;
    Ok((rig, load))
}

fn order(hot_percent: u64) -> Order {
    if hot_percent == 0 { Order::Even } else { Order::Hot(hot_percent) }
}

/// What the Puts of one run came to.
struct Measured {
    amplification: f64,
    megabytes_per_s: f64,
    /// Half of the Puts took no longer, 99 %, 99.9 %, all.
    latency_us: [f64; 4],
}

/// Ages a device under a policy until things remain as they are, and measures it for as long as it takes to write the device once.
fn aged(
    board: &Board,
    settings: &Settings,
    policy: CollectionPolicy,
    (hot_percent, live_percent): (u64, u64),
) -> Result<Measured, RigError> {
    let (mut rig, load) = filled(board, settings, live_percent)?;
    rig.set_collection_policy(policy);
    let device = board.geometry.block_bytes() * u64::from(board.geometry.block_count()) / u64::from(BYTES);
    let aged = Load { order: order(hot_percent), commands: Some(2 * device), ..load };
    one(&mut rig, &aged)?;
    let before = rig.stats();
    let sheet = one(&mut rig, &Load { commands: Some(device), ..aged })?;
    let after = rig.stats();
    let pages = (after.page_bytes - before.page_bytes) as f64;
    Ok(Measured {
        amplification: pages / (after.record_bytes - before.record_bytes) as f64,
        megabytes_per_s: sheet.megabytes_per_s(),
        latency_us: [0.5, 0.99, 0.999, 1.0].map(|quantile| sheet.quantile_us(quantile)),
    })
}

/// Write amplification and latency of Puts, under each policy.
pub(super) fn amplification(settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
    let board = board(settings, (4, 2))?;
    let policies = CollectionPolicy::ALL;
    let mut steps = Steps::new(progress, SKEWS.len() * policies.len() * UTILISATIONS.len());
    let mut rows = Vec::new();
    let mut panels = Vec::new();
    for (name, hot_percent) in SKEWS {
        let (mut amplified, mut tails) = (Vec::new(), Vec::new());
        for policy in policies {
            let (mut amplification, mut tail) = (Vec::new(), Vec::new());
            for percent in UTILISATIONS {
                steps.next(&format!("{policy}, {name}, {percent} % live"));
                let found = aged(&board, settings, policy, (hot_percent, percent))?;
                let mut row: Vec<Cell> = vec![policy.name().into(), name.into(), percent.into()];
                row.extend([found.amplification.into(), found.megabytes_per_s.into()]);
                row.extend(found.latency_us.map(Cell::from));
                rows.push(row);
                amplification.push(Some(found.amplification));
                tail.push(Some(found.latency_us[2] / 1e3));
            }
            let series = |values| Series::new(policy.name().to_owned(), values);
            amplified.push(series(amplification));
            tails.push(series(tail));
        }
        let short = if hot_percent == 0 { "even writes" } else { "90 % to 1 %" };
        let panel = |what: &str, y, series| Panel {
            title: format!("{what}, {short}"),
            x: "live records, % of what the device takes",
            y,
            marks: Marks::Lines,
            categories: UTILISATIONS.map(|percent| percent.to_string()).to_vec(),
            series,
            paper: Vec::new(),
        };
        panels.push(panel("Amplification", "pages per byte", amplified));
        panels.push(panel("Put, 99.9 %", "ms", tails));
    }
    let chart = Chart {
        title: "Garbage collection by utilisation, under each policy".into(),
        subtitle: format!("board {}, {} dies, {HOSTS} hosts, {BYTES} B", board.name, board.geometry.die_count()),
        panels,
    };
    let columns = [
        "policy",
        "writes",
        "live_percent",
        "write_amplification",
        "mb_per_s",
        "p50_us",
        "p99_us",
        "p999_us",
        "max_us",
    ];
    Ok(Outcome::new(("gc", "Write amplification and tail latency"), &columns, rows, Vec::new(), chart))
}

/// Spread of erase counts over the life of a device.
pub(super) fn wear(settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
    const PERCENT: u64 = 70;
    let board = board(settings, (2, 2))?;
    let turns = if settings.quick { 4 } else { 12 };
    let mut steps = Steps::new(progress, SKEWS.len() * turns);
    let mut rows = Vec::new();
    let mut panels = Vec::new();
    for (name, hot_percent) in SKEWS {
        let (mut rig, load) = filled(&board, settings, PERCENT)?;
        let device = board.geometry.block_bytes() * u64::from(board.geometry.block_count()) / u64::from(BYTES);
        let per_turn = if settings.quick { device / 2 } else { 4 * device };
        let load = Load { order: order(hot_percent), commands: Some(per_turn), ..load };
        let mut curves = [Vec::new(), Vec::new(), Vec::new()];
        let mut times = Vec::new();
        for turn in 1..=turns as u64 {
            steps.next(&format!("{name}, {turn} of {turns}"));
            one(&mut rig, &load)?;
            let stats = rig.stats();
            let written = (turn * per_turn) as f64 / device as f64;
            let spread = [stats.erase_min.into(), stats.erase_mean, stats.erase_max.into()];
            rows.push(vec![name.into(), written.into(), spread[0].into(), spread[1].into(), spread[2].into()]);
            for (curve, erases) in curves.iter_mut().zip(spread) {
                curve.push(Some(erases));
            }
            times.push(format!("{written:.1}").trim_end_matches(".0").to_owned());
        }
        let series = ["least worn block", "mean", "most worn block"].into_iter().zip(curves);
        panels.push(Panel {
            title: name.to_owned(),
            x: "device written, times its size",
            y: "erases",
            marks: Marks::Lines,
            categories: times,
            series: series.map(|(name, values)| Series::new(name.to_owned(), values)).collect(),
            paper: Vec::new(),
        });
    }
    let chart = Chart {
        title: "Erase counts".into(),
        subtitle: format!("board {}, {} dies, {PERCENT} % live, {BYTES} B", board.name, board.geometry.die_count()),
        panels,
    };
    let columns = ["writes", "device_writes", "erases_min", "erases_mean", "erases_max"];
    Ok(Outcome::new(("wear", "Spread of erase counts"), &columns, rows, Vec::new(), chart))
}
