//! What lookups and inserts cost, counted by the flash.
//!
//! Lives here:       Figure 9, a history of many versions.
//! Implements:       paper:Muninn 6.3.

use super::device::Device;
use super::keys::Workload;
use super::measure::{Age, FILL_STEPS, Index, Reads, Scale, Stored, fill, look_up};
use super::{panel, with_paper};
use crate::experiment::chart::{Chart, Marks};
use crate::experiment::paper::{self, PaperValue};
use crate::experiment::{Cell, Claim, Outcome, Progress, Settings, Steps};
use crate::rig::RigError;
use crate::rng::Rng;
use kaml_versions::BloomOptions;

/// Versions of each key whose history is read.
const VERSIONS: u64 = 64;
/// Puts of that experiment at most: rows are as long as the paper's with any number.
const HISTORY_PUTS_MAX: u64 = 3_200_000;
/// Histories that are read.
const HISTORIES: u64 = 2000;
/// Page reads, and thousands of lookups a second, that the paper has: new, average, oldest, absent.
const PAPER: [(PaperValue, PaperValue); 4] = [
    (paper::NONE, paper::RATE_NEW),
    (paper::READS_AVERAGE, paper::RATE_AVERAGE),
    (paper::READS_OLDEST, paper::RATE_OLDEST),
    (paper::NONE, paper::NONE),
];

/// What one index came to.
struct Sheet {
    stored: Stored,
    reads: Vec<Reads>,
}

fn sheet(
    device: &mut Device,
    workload: &Workload,
    (name, lookups): (&str, u64),
    steps: &mut Steps<'_>,
) -> Result<Sheet, RigError> {
    let filled = fill(device, workload, name, steps)?;
    let mut reads = Vec::new();
    for age in Age::ALL {
        steps.next(&format!("{name}: {}", age.name()));
        reads.push(look_up(device, workload, &filled, age, lookups)?);
    }
    Ok(Sheet { stored: filled.stored, reads })
}

/// Figure 9.
pub(in crate::experiment) fn amplification(settings: &Settings, progress: Progress<'_>) -> Result<Outcome, RigError> {
    let scale = Scale::of(settings);
    let workload = Workload::sequential(scale.keys, scale.seed);
    let bytes = workload.puts * workload.pair_bytes.1;
    let mut steps = Steps::new(progress, 3 * FILL_STEPS + 2 * Age::ALL.len() + 1);
    // One after the other: each takes gigabytes at the paper's scale.
    let mut with = |index, name| sheet(&mut scale.device(bytes, index)?, &workload, (name, scale.lookups), &mut steps);
    let bloom = with(Index::Bloom(BloomOptions::default()), "bloom")?;
    let columns = with(Index::Columns(0), "columns")?;
    let history = history(&scale, &mut steps)?;
    let mut rows = Vec::new();
    for (name, sheet) in [("bloom", &bloom), ("columns", &columns)] {
        let row = |(age, (reads, paper)): (&Age, (&Reads, &(PaperValue, PaperValue)))| {
            let figures = [reads.mean(), reads.three_or_more_in_10000(), reads.per_s()].map(Cell::from);
            let [mean, three, per_s] = figures;
            vec![name.into(), age.name().into(), mean, three, per_s, paper.0.says.into(), paper.1.says.into()]
        };
        rows.extend(Age::ALL.iter().zip(sheet.reads.iter().zip(&PAPER)).map(row));
        let writes = Cell::from(sheet.stored.pages_per_insert());
        rows.push(vec![
            name.into(),
            "insert".into(),
            writes,
            "".into(),
            "".into(),
            paper::WRITES.says.into(),
            "".into(),
        ]);
    }
    let chart = chart(&scale, &bloom, &columns);
    let columns_of_table =
        ["index", "what", "pages", "three_or_more_in_10000", "per_s", "paper_pages", "paper_thousands_per_s"];
    let mut claims = claims(&bloom, &columns);
    let bar = (&paper::NONE, "at most 1.02");
    claims.push(Claim::new("columns: history of 64, page reads a version", bar, 0.0..=1.02, [history]));
    let name = ("muninn-fig9", "Page reads and writes of lookups and inserts");
    Ok(Outcome::new(name, &columns_of_table, rows, claims, chart))
}

/// Page reads a version when histories of many versions are read.
fn history(scale: &Scale, steps: &mut Steps<'_>) -> Result<f64, RigError> {
    let scale = Scale::with(scale.keys.min(HISTORY_PUTS_MAX), scale.seed);
    let space = scale.keys.div_ceil(VERSIONS);
    let workload = Workload { name: "64 versions", space, ..Workload::sequential(space * VERSIONS, scale.seed) };
    let mut device = scale.device(workload.puts * workload.pair_bytes.1, Index::Columns(0))?;
    fill(&mut device, &workload, "columns, 64 versions of each key", steps)?;
    steps.next("columns: histories");
    let before = device.medium().page_counts().read;
    let mut versions = 0;
    let mut rng = Rng::new(scale.seed);
    for _ in 0..HISTORIES {
        let found = device.history(rng.below(space))?;
        if found != VERSIONS {
            return Err(RigError::Wrong(format!("a history has {found} versions instead of {VERSIONS}")));
        }
        versions += found;
    }
    Ok((device.medium().page_counts().read - before) as f64 / versions as f64)
}

fn chart(scale: &Scale, bloom: &Sheet, columns: &Sheet) -> Chart {
    let series = |name: &str, sheet: &Sheet, figure: fn(&Reads) -> f64| {
        (name.to_owned(), sheet.reads.iter().map(|reads| Some(figure(reads))).collect())
    };
    let ages: Vec<String> = Age::ALL.iter().map(|age| age.name().to_owned()).collect();
    let pages = vec![series("bloom", bloom, Reads::mean), series("columns", columns, Reads::mean)];
    // Absent keys are not shown: memory alone answers most of them.
    let rate = |sheet: &Sheet| sheet.reads[..3].iter().map(|reads| Some(reads.per_s() / 1e3)).collect();
    let rates = vec![("bloom".to_owned(), rate(bloom)), ("columns".to_owned(), rate(columns))];
    let writes = [("bloom", bloom.stored.pages_per_insert()), ("columns", columns.stored.pages_per_insert())];
    let writes = writes.map(|(name, figure)| (name.to_owned(), vec![Some(figure)])).to_vec();
    Chart {
        title: "Muninn, Figure 9: page reads and writes".into(),
        subtitle: format!("sequential keys, 15 µs an access, one thread; {}", scale.words()),
        panels: vec![
            with_paper(
                panel("Lookup", ("key", "page reads"), Marks::Bars, &ages, pages),
                &[(1, &paper::READS_AVERAGE), (2, &paper::READS_OLDEST)],
            ),
            with_paper(
                panel("Lookup", ("key", "thousands a second"), Marks::Bars, &ages[..3], rates),
                &[(0, &paper::RATE_NEW), (1, &paper::RATE_AVERAGE), (2, &paper::RATE_OLDEST)],
            ),
            with_paper(
                panel("Insert, metadata included", ("", "page writes"), Marks::Bars, &["1 KiB".to_owned()], writes),
                &[(0, &paper::WRITES)],
            ),
        ],
    }
}

fn claims(bloom: &Sheet, columns: &Sheet) -> Vec<Claim> {
    let [_, average, oldest, absent] = [0, 1, 2, 3];
    let mean = |sheet: &Sheet, age: usize| [sheet.reads[age].mean()];
    vec![
        Claim::new(
            "bloom: page reads, average",
            (&paper::READS_AVERAGE, "1.3 to 1.5"),
            1.3..=1.5,
            mean(bloom, average),
        ),
        Claim::new(
            "bloom: page reads, oldest 2 %",
            (&paper::READS_OLDEST, "1.6 to 1.9"),
            1.6..=1.9,
            mean(bloom, oldest),
        ),
        Claim::new("bloom: page reads, absent", (&paper::NONE, "at most 0.95"), 0.0..=0.95, mean(bloom, absent)),
        Claim::new(
            "bloom: page writes an insert",
            (&paper::WRITES, "at most 0.267"),
            0.0..=0.267,
            [bloom.stored.pages_per_insert()],
        ),
        Claim::new(
            "bloom: utilisation, %",
            (&paper::UTILISATION, "at least 92"),
            92.0..=100.0,
            [bloom.stored.utilisation()],
        ),
        Claim::new(
            "bloom: bytes a key",
            (&paper::BYTES, "at most 2.4"),
            0.0..=2.4,
            [bloom.stored.index_bytes_per_key()],
        ),
        Claim::new(
            "columns: page reads, average",
            (&paper::READS_AVERAGE, "at most 1.006"),
            0.0..=1.006,
            mean(columns, average),
        ),
        Claim::new(
            "columns: page reads, oldest 2 %",
            (&paper::READS_OLDEST, "at most 1.011"),
            0.0..=1.011,
            mean(columns, oldest),
        ),
        Claim::new(
            "columns: of 10 000 of these, with 3 reads or more",
            (&paper::NONE, "at most 1"),
            0.0..=1.0,
            [columns.reads[oldest].three_or_more_in_10000()],
        ),
        Claim::new("columns: page reads, absent", (&paper::NONE, "at most 0.011"), 0.0..=0.011, mean(columns, absent)),
        Claim::new(
            "columns: page writes an insert",
            (&paper::WRITES, "at most 0.252"),
            0.0..=0.252,
            [columns.stored.pages_per_insert()],
        ),
        Claim::new(
            "columns: utilisation, %",
            (&paper::UTILISATION, "at least 99.5"),
            99.5..=100.0,
            [columns.stored.utilisation()],
        ),
        Claim::new(
            "columns: bytes a key",
            (&paper::BYTES, "at most 2.08"),
            0.0..=2.08,
            [columns.stored.index_bytes_per_key()],
        ),
        Claim::new(
            "columns: thousand lookups a second, average",
            (&paper::RATE_AVERAGE, "at least 34"),
            34.0..=9e9,
            [columns.reads[average].per_s() / 1e3],
        ),
    ]
}
