//! How well memory shows what is live: what a merge decides by before it reads anything.
//!
//! Lives here:       Figure 10.
//! Implements:       paper:Muninn 4.4.1, 6.5.
//!
//! The paper counts bits that the filters of an internal version have in common; ours counts live versions when segments are
//! sealed. *Live* means the newest of its key: in the internal version there, in the namespace here.

use super::device::Device;
use super::keys::{Order, Workload};
use super::measure::{FILL_STEPS, Index, Scale, fill};
use super::panel;
use crate::experiment::chart::{Chart, Marks};
use crate::experiment::{Cell, Claim, Outcome, Progress, Settings, Steps, paper};
use crate::rig::RigError;
use kaml_device::Key;
use kaml_versions::{BloomOptions, SegmentInfo};
use std::collections::BTreeSet;

/// Puts of each key, on average, in quarters.
const QUARTERS: [u64; 5] = [1, 2, 4, 8, 16];
/// Segments of a version table here, so chains have tables enough for internal versions.
const COMBINED: u32 = 16;
/// Tables of an internal version, as two sizes.
const TABLES: [usize; 2] = [2, 4];

/// Of internal versions: percent live, and percent of bits in common.
type Point = (Option<f64>, Option<f64>);

/// Figure 10.
pub(in crate::experiment) fn thresholds(settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
    let scale = Scale::of(settings);
    let mut steps = Steps::new(progress, 2 * QUARTERS.len() * FILL_STEPS);
    let (mut rows, mut estimates, mut bits) = (Vec::new(), Vec::new(), TABLES.map(|_| Vec::new()));
    for quarters in QUARTERS {
        let space = (scale.keys * 4 / quarters).max(1);
        let workload =
            Workload { name: "random", order: Order::Random, space, ..Workload::sequential(scale.keys, scale.seed) };
        let puts = format!("{:.2} puts a key", quarters as f64 / 4.0);
        let (estimate, live) = estimate(&scale, &workload, &format!("columns, {puts}"), &mut steps)?;
        rows.push(vec!["columns".into(), Cell::Words(puts.clone()), Cell::from(live), estimate.into(), "".into()]);
        estimates.push((estimate, live));
        let shared = shared(&scale, &workload, &format!("bloom, {puts}"), &mut steps)?;
        for ((tables, found), curve) in TABLES.iter().zip(shared).zip(&mut bits) {
            let (common, live) = found.unzip();
            let name = Cell::Words(format!("bloom, {tables} tables"));
            let figure = |figure: Option<f64>| figure.map_or(Cell::from(""), Cell::from);
            rows.push(vec![name, Cell::Words(puts.clone()), figure(live), "".into(), figure(common)]);
            curve.push((live, common));
        }
    }
    let categories: Vec<String> = QUARTERS.iter().map(|quarters| format!("{:.2}", *quarters as f64 / 4.0)).collect();
    let line = |name: &str, figure: fn(&(f64, f64)) -> f64| {
        (name.to_owned(), estimates.iter().map(|pair| Some(figure(pair))).collect())
    };
    let of_tables = |what: &str, figure: fn(&Point) -> Option<f64>| {
        let line = |(tables, curve): (&usize, &Vec<Point>)| {
            (format!("{what}, {tables} tables"), curve.iter().map(figure).collect())
        };
        TABLES.iter().zip(&bits).map(line).collect()
    };
    let x = "puts of a key";
    let lines = |title, y, series| panel(title, (x, y), Marks::Lines, &categories, series);
    let chart = Chart {
        title: "Muninn, Figure 10: what memory knows of live versions".into(),
        subtitle: format!("random keys; {}", scale.words()),
        panels: vec![
            lines("columns: the namespace", "% live", vec![line("estimate", |p| p.0), line("truth", |p| p.1)]),
            lines("bloom: an internal version", "% live", of_tables("live", |point| point.0)),
            lines("bloom: bits in common", "% of the bits", of_tables("bits", |point| point.1)),
        ],
    };
    let errors = estimates.iter().map(|(estimate, live)| (estimate - live).abs());
    let claim =
        Claim::new("columns: live estimate, points from the truth", (&paper::NONE, "at most 2"), 0.0..=2.0, errors);
    let columns = ["index", "workload", "live_percent", "estimate_percent", "common_bits_percent"];
    let name = ("muninn-fig10", "What memory knows of live versions");
    Ok(Outcome::new(name, &columns, rows, vec![claim], chart))
}

/// Percent of the sealed versions that are their key's newest: as memory has it, and in truth.
fn estimate(scale: &Scale, workload: &Workload, what: &str, steps: &mut Steps<'_>) -> Result<(f64, f64), RigError> {
    let mut device = scale.device(workload.puts * workload.pair_bytes.1, Index::Columns(0))?;
    fill(&mut device, workload, what, steps)?;
    let mut sealed_of = vec![0u32; workload.space as usize];
    (0..workload.puts).for_each(|put| sealed_of[workload.key(put) as usize] += 1);
    device.look(|columns| {
        for row in 0..columns.parameters().rows {
            for (version, _) in columns.buffered(row) {
                sealed_of[number(&version.key) as usize] -= 1;
            }
        }
        let (all, live) = columns.live_estimate();
        let truth = sealed_of.iter().filter(|count| **count > 0).count();
        let percent = |count: u64| 100.0 * count as f64 / all.max(1) as f64;
        (percent(live), percent(truth as u64))
    })
}

fn number(key: &Key) -> u64 {
    key.as_u64().expect("keys are numbers")
}

/// For each size of an internal version: percent of bits that its tables have in common, and of versions that are the newest
/// in it; nothing if no row has so many full tables.
fn shared(
    scale: &Scale,
    workload: &Workload,
    what: &str,
    steps: &mut Steps<'_>,
) -> Result<[Option<(f64, f64)>; TABLES.len()], RigError> {
    // All tables have the same shape, so bits can be compared.
    let bloom = BloomOptions { growth_permille: 1000, combined: COMBINED, ..BloomOptions::default() };
    let mut device = scale.device(workload.puts * workload.pair_bytes.1, Index::Bloom(bloom))?;
    fill(&mut device, workload, what, steps)?;
    let mut found = [None; TABLES.len()];
    for (found, tables) in found.iter_mut().zip(TABLES) {
        let internal = device.look(|columns| columns.bits_in_common(tables))?;
        let (mut common, mut live) = (0.0, 0.0);
        for (share, segments) in &internal {
            common += 100.0 * share;
            live += 100.0 * distinct(&mut device, segments)?;
        }
        let count = internal.len() as f64;
        *found = (!internal.is_empty()).then(|| (common / count, live / count));
    }
    Ok(found)
}

/// The share of versions in some segments that are the newest of their key there.
fn distinct(device: &mut Device, segments: &[SegmentInfo]) -> Result<f64, RigError> {
    let (mut keys, mut count) = (BTreeSet::new(), 0u64);
    for segment in segments {
        for version in device.versions_of(segment)? {
            keys.insert(version.key);
            count += 1;
        }
    }
    Ok(keys.len() as f64 / count.max(1) as f64)
}
