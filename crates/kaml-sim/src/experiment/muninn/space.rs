//! How full segments are and how much memory a key takes, by distribution and by rate of false positives.
//!
//! Lives here:       Figures 7 and 8.
//! Implements:       paper:Muninn 6.1, 6.2, 6.4.

use super::device::Device;
use super::keys::{Order, Workload};
use super::measure::{Age, FILL_STEPS, Filled, Index, Reads, Scale, Stored, fill, look_up};
use super::{panel, with_paper};
use crate::experiment::chart::{Chart, Marks};
use crate::experiment::{Cell, Claim, Outcome, Progress, Settings, Steps, paper};
use crate::rig::RigError;
use kaml_versions::BloomOptions;

/// Fills a namespace.
fn filled(
    index: Index,
    scale: &Scale,
    workload: &Workload,
    what: &str,
    steps: &mut Steps<'_>,
) -> Result<(Device, Filled), RigError> {
    let mut device = scale.device(workload.puts * workload.pair_bytes.1, index)?;
    let filled = fill(&mut device, workload, what, steps)?;
    Ok((device, filled))
}

/// A Pareto workload where the paper reports that segments stay a third empty has few keys: about this many puts of each.
const PARETO_PUTS_OF_KEY: u64 = 400;
/// So many keys a row has then at the paper's scale. With fewer, hardly a segment would have room for the next put of any of them.
const PARETO_KEYS_OF_ROW: u64 = 976;
/// Pairs of mixed sizes.
const MIXED_BYTES: (u64, u64) = (64, 1983);

/// Figure 7.
pub(in crate::experiment) fn utilisation(settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
    let scale = Scale::of(settings);
    let skewed = BloomOptions::default();
    let even = BloomOptions { is_even: true, ..skewed };
    let indexes = [
        ("bloom, even filters (N8/7)", Index::Bloom(even)),
        ("bloom, skewed filters (S8/7)", Index::Bloom(skewed)),
        ("columns", Index::Columns(0)),
    ];
    let plain = Workload::sequential(scale.keys, scale.seed);
    let few = (scale.keys / PARETO_PUTS_OF_KEY).max(PARETO_KEYS_OF_ROW * scale.rows());
    let workloads = [
        plain.clone(),
        Workload { name: "random", order: Order::Random, ..plain.clone() },
        Workload { name: "pareto", order: Order::Pareto, ..plain.clone() },
        Workload { name: "few keys", order: Order::Pareto, space: few, ..plain.clone() },
        Workload { name: "mixed", pair_bytes: MIXED_BYTES, ..plain },
    ];
    let mut steps = Steps::new(progress, indexes.len() * workloads.len() * FILL_STEPS);
    let (mut rows, mut curves, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for (name, index) in indexes {
        let mut all: Vec<Stored> = Vec::new();
        for workload in &workloads {
            let what = format!("{name}, {}", workload.name);
            let stored = filled(index, &scale, workload, &what, &mut steps)?.1.stored;
            rows.push(vec![
                name.into(),
                workload.name.into(),
                Cell::from(stored.utilisation()),
                stored.index_bytes_per_key().into(),
                stored.pages_per_insert().into(),
            ]);
            all.push(stored);
        }
        let curve = |figure: fn(&Stored) -> f64| (name.to_owned(), all.iter().map(|s| Some(figure(s))).collect());
        curves.push((curve(Stored::utilisation), curve(Stored::index_bytes_per_key)));
        found.push(all);
    }
    let categories: Vec<String> = workloads.iter().map(|workload| workload.name.to_owned()).collect();
    let (full, memory) = curves.into_iter().unzip();
    let bars = |title, y, series| panel(title, ("distribution of keys", y), Marks::Bars, &categories, series);
    let full_paper = [0, 1, 2].map(|at| (at, &paper::UTILISATION)).into_iter().chain([(3, &paper::UTILISATION_FEW)]);
    let memory_paper = [0, 1, 2].map(|at| (at, &paper::BYTES)).into_iter().chain([(3, &paper::BYTES_FEW)]);
    let (full_paper, memory_paper): (Vec<_>, Vec<_>) = (full_paper.collect(), memory_paper.collect());
    let chart = Chart {
        title: "Muninn, Figure 7: segments and memory".into(),
        subtitle: format!("every version kept; {}", scale.words()),
        panels: vec![
            with_paper(bars("Segment utilisation", "%", full), &full_paper),
            with_paper(bars("Memory without the buffer", "bytes a key", memory), &memory_paper),
        ],
    };
    let columns = ["index", "workload", "utilisation_percent", "bytes_per_key", "page_writes_per_insert"];
    let claims = claims(&found);
    Ok(Outcome::new(("muninn-fig7", "Utilisation of segments and memory"), &columns, rows, claims, chart))
}

fn claims(found: &[Vec<Stored>]) -> Vec<Claim> {
    let (bloom, columns) = (&found[1], &found[2]);
    let equal = |all: &[Stored], figure: fn(&Stored) -> f64| all[..3].iter().map(figure).collect::<Vec<_>>();
    let all = 0.0..=9e9;
    vec![
        Claim::new(
            "bloom: utilisation, %",
            (&paper::UTILISATION, "at least 92"),
            92.0..=100.0,
            equal(bloom, Stored::utilisation),
        ),
        Claim::new("bloom: few keys, %", (&paper::UTILISATION_FEW, "50 to 80"), 50.0..=80.0, [bloom[3].utilisation()]),
        Claim::new(
            "bloom: bytes a key",
            (&paper::BYTES, "at most 2.4"),
            0.0..=2.4,
            equal(bloom, Stored::index_bytes_per_key),
        ),
        Claim::new("bloom: few keys, bytes a key", (&paper::BYTES_FEW, "none"), all, [bloom[3].index_bytes_per_key()]),
        Claim::new(
            "columns: utilisation, %",
            (&paper::UTILISATION, "at least 99.5"),
            99.5..=100.0,
            columns[..4].iter().map(Stored::utilisation),
        ),
        Claim::new("columns: mixed sizes, %", (&paper::NONE, "at least 97"), 97.0..=100.0, [columns[4].utilisation()]),
        Claim::new(
            "columns: bytes a key",
            (&paper::BYTES, "at most 2.08"),
            0.0..=2.08,
            columns[..4].iter().map(Stored::index_bytes_per_key),
        ),
    ]
}

/// Initial rates of false positives of the paper's filters, in millionths.
const RATES_PPM: [u32; 6] = [100, 250, 500, 1000, 2000, 5000];
/// Bits of fingerprints of ours.
const BITS: [u32; 6] = [16, 15, 14, 13, 12, 10];

/// Factors of the rate from a table to the next, in thousandths.
const FACTORS_PERMILLE: [u32; 5] = [900, 1000, 1010, 1050, 1100];

/// Figure 8.
pub(in crate::experiment) fn false_positives(settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
    let scale = Scale::of(settings);
    let workload = Workload::sequential(scale.keys, scale.seed);
    let mut steps = Steps::new(progress, (RATES_PPM.len() + FACTORS_PERMILLE.len() + BITS.len()) * FILL_STEPS);
    let mut rows = Vec::new();
    let mut sweep = |name: &str, settings: Vec<(String, Index)>| -> Result<Vec<(Reads, Reads, f64)>, RigError> {
        let mut points = Vec::new();
        for (setting, index) in settings {
            let what = format!("{name}, {setting}");
            let (mut device, filled) = filled(index, &scale, &workload, &what, &mut steps)?;
            let mut reads = |age| look_up(&mut device, &workload, &filled, age, scale.lookups);
            let (oldest, absent) = (reads(Age::Oldest)?, reads(Age::Absent)?);
            let bytes = filled.stored.index_bytes_per_key();
            rows.push(vec![
                name.into(),
                Cell::Words(setting),
                oldest.mean().into(),
                absent.mean().into(),
                Cell::from(bytes),
            ]);
            points.push((oldest, absent, bytes));
        }
        Ok(points)
    };
    let rates: Vec<String> = RATES_PPM.iter().map(|rate| format!("{:.3}", f64::from(*rate) / 1e4)).collect();
    let with = |rate| BloomOptions { false_positives_ppm: rate, ..BloomOptions::default() };
    let bloom = sweep("bloom", rates.iter().cloned().zip(RATES_PPM.map(|rate| Index::Bloom(with(rate)))).collect())?;
    let factors: Vec<String> =
        FACTORS_PERMILLE.iter().map(|factor| format!("{:.2}", f64::from(*factor) / 1e3)).collect();
    let by = |factor| Index::Bloom(BloomOptions { growth_permille: factor, ..BloomOptions::default() });
    let grown = sweep("bloom, factor", factors.iter().cloned().zip(FACTORS_PERMILLE.map(by)).collect())?;
    let bits: Vec<String> = BITS.iter().map(u32::to_string).collect();
    let columns = sweep("columns", bits.iter().cloned().zip(BITS.map(Index::Columns)).collect())?;
    let lines = |title, x, categories: &[String], points: &[(Reads, Reads, f64)]| {
        let line = |name: &str, figure: fn(&(Reads, Reads, f64)) -> f64| {
            (name.to_owned(), points.iter().map(|point| Some(figure(point))).collect())
        };
        let series = vec![
            line("page reads, oldest 2 %", |point| point.0.mean()),
            line("page reads, absent key", |point| point.1.mean()),
            line("bytes a key", |point| point.2),
        ];
        panel(title, (x, "reads, bytes"), Marks::Lines, categories, series)
    };
    let chart = Chart {
        title: "Muninn, Figure 8: false positives".into(),
        subtitle: format!("sequential keys; {}", scale.words()),
        panels: vec![
            with_paper(
                lines("bloom, factor 1.01", "initial rate of false positives, %", &rates, &bloom),
                &[(2, &paper::READS_OLDEST)],
            ),
            with_paper(
                lines("bloom, initial rate 0.05 %", "factor of the rate from table to table", &factors, &grown),
                &[(2, &paper::READS_OLDEST)],
            ),
            lines("columns", "bits of a fingerprint", &bits, &columns),
        ],
    };
    let columns = ["index", "setting", "page_reads_oldest", "page_reads_absent", "bytes_per_key"];
    let bar = (&paper::READS_OLDEST, "1.6 to 1.9");
    let claim = Claim::new("bloom, 0.05 %: page reads, oldest 2 %", bar, 1.6..=1.9, [bloom[2].0.mean()]);
    Ok(Outcome::new(("muninn-fig8", "Reads and memory by false positives"), &columns, rows, vec![claim], chart))
}
