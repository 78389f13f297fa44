//! What coarse locks cost: how many of the requests that come at the same time meet in one lock.
//!
//! Lives here:       the experiment, the formula that it is held against, and the picture of both.
//! Implements:       paper:KAML V.D.2 (locking granularity as balls into bins).
//!
//! In each round every thread requests the exclusive lock of one record, chosen evenly, and nobody releases a lock
//! before all have asked. A request that is not granted at once is a *conflict*. With `m` locks for all records and `n`
//! threads the expected number is `n - m (1 - (1 - 1/m)^n)`: requests less the locks that are requested at all.

use crate::Error;
use crate::keys::Rng;
use crate::together::{self, Gate};
use kaml::store::{Store, StoreOptions};
use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Between two looks at whether all have asked.
const LOOK_PAUSE: Duration = Duration::from_micros(20);
/// Longer than any round, so nobody gives up on a lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(600);
const DEVICE_BYTES: u64 = 64 << 20;
const CACHE_BYTES: u64 = 1 << 20;

/// The options of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Records that threads choose from; they need not exist to be locked.
    pub records: u64,
    /// Requests of a round.
    pub threads: usize,
    /// Rounds for each width.
    pub rounds: u32,
    /// Numbers of neighbouring records that share a lock.
    pub widths: Vec<u32>,
    /// Of all random choices.
    pub seed: u64,
}

/// Conflicts with one width of locks.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// Neighbouring records that share a lock.
    pub records_per_lock: u32,
    /// Conflicts of a round, the mean.
    pub measured: f64,
    /// The same, as the formula has it.
    pub expected: f64,
    /// How far `measured` may be from it by chance: two standard errors, conflicts counted as a Poisson variable.
    pub tolerance: f64,
}

/// The formula.
pub fn expected(records: u64, records_per_lock: u32, threads: usize) -> f64 {
    let (locks, requests) = (records.div_ceil(u64::from(records_per_lock)) as f64, threads as f64);
    requests - locks * (1.0 - (1.0 - 1.0 / locks).powf(requests))
}

/// Measures every width.
pub fn run(settings: &Settings) -> Result<Vec<Row>, Error> {
    if settings.records == 0 || settings.threads == 0 || settings.rounds == 0 {
        return Err(Error::Parameters("records, threads and rounds must not be 0".into()));
    }
    settings.widths.iter().map(|width| measure(settings, *width)).collect()
}

fn measure(settings: &Settings, records_per_lock: u32) -> Result<Row, Error> {
    let device = Device::in_memory(&CreateOptions::new(DEVICE_BYTES))?;
    let keys = NamespaceOptions::records(KeyKind::U64);
    let namespace = device.create_namespace("records", &keys)?;
    let transactions_max = settings.threads as u32;
    let lock_timeout = LOCK_TIMEOUT;
    let options = StoreOptions { records_per_lock, transactions_max, lock_timeout, ..StoreOptions::new(CACHE_BYTES) };
    let store = Store::open(device, &options).map_err(|error| Error::Parameters(error.to_string()))?;
    let (gate, granted) = (Gate::new(settings.threads), AtomicU64::new(0));
    let one = |thread: u64| {
        let mut rng = Rng::new(settings.seed ^ thread.rotate_left(32));
        let mut result = Ok(());
        for round in 0..u64::from(settings.rounds) {
            // Nobody waits now: all waiters of the last round waited before it ended.
            let (waited, asked) = (store.stats().lock_wait_count, settings.threads as u64);
            gate.pass()?;
            // After a failure the round continues, or the others would wait forever.
            let mut txn = store.begin();
            let key = rng.below(settings.records);
            let held = txn
                .as_mut()
                .map_err(|error| error.to_string())
                .and_then(|txn| txn.read_for_update(namespace, key).map(drop).map_err(|error| error.to_string()));
            granted.fetch_add(1, Ordering::SeqCst);
            let all_asked =
                || granted.load(Ordering::SeqCst) - round * asked + store.stats().lock_wait_count - waited >= asked;
            while !all_asked() && !gate.is_given_up() {
                std::thread::sleep(LOOK_PAUSE);
            }
            result = result.and(held.map_err(Error::Engine));
            drop(txn);
            gate.pass()?;
        }
        result
    };
    std::thread::scope(|scope| {
        let work = (0..settings.threads as u64).map(|thread| move || one(thread));
        together::join(together::start(scope, Some(&gate), work)?)
    })?;
    let rounds = f64::from(settings.rounds);
    let expected = expected(settings.records, records_per_lock, settings.threads);
    let measured = store.stats().lock_wait_count as f64 / rounds;
    Ok(Row { records_per_lock, measured, expected, tolerance: 2.0 * (expected / rounds).sqrt() })
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
/// Room for the axes: left of the plot and below it; above it for the title.
const LEFT: f64 = 70.0;
const BELOW: f64 = 50.0;
const ABOVE: f64 = 46.0;
const RIGHT: f64 = 20.0;
/// The lowest mark of the vertical axis, in conflicts.
const LOWEST: f64 = 0.01;

/// A picture: the formula as a line, what was measured as dots; both axes are logarithmic.
pub fn svg(settings: &Settings, rows: &[Row]) -> String {
    let widest = rows.iter().map(|row| row.records_per_lock).max().unwrap_or(1).max(2);
    let decades = (settings.threads as f64 / LOWEST).log10().ceil();
    let x = |width: f64| LEFT + (WIDTH - LEFT - RIGHT) * width.log2() / f64::from(widest).log2();
    let y = |conflicts: f64| {
        let height = HEIGHT - ABOVE - BELOW;
        HEIGHT - BELOW - height * ((conflicts / LOWEST).log10() / decades).clamp(0.0, 1.0)
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"15\">Conflicts of {} requests at once on {} records</text>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">records per lock</text>\n",
        settings.threads,
        settings.records,
        WIDTH / 2.0,
        HEIGHT - 12.0,
    );
    for decade in 0..=decades as i32 {
        let mark = LOWEST * 10f64.powi(decade);
        let (at, text) = (y(mark), LEFT - 8.0);
        svg += &format!(
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{text}\" y=\"{:.1}\" text-anchor=\"end\">{mark}</text>\n",
            WIDTH - RIGHT,
            at + 4.0,
        );
    }
    let point =
        |width: f64| format!("{:.1},{:.1}", x(width), y(expected(settings.records, width as u32, settings.threads)));
    let line: Vec<String> = (0..=widest.ilog2()).map(|power| point(f64::from(1u32 << power))).collect();
    svg += &format!("<polyline points=\"{}\" fill=\"none\" stroke=\"#9aa5b1\" stroke-width=\"2\"/>\n", line.join(" "));
    for row in rows {
        let width = f64::from(row.records_per_lock);
        svg += &format!(
            "<circle cx=\"{0:.1}\" cy=\"{1:.1}\" r=\"4\" fill=\"#1f6f8b\"/>\
             <text x=\"{0:.1}\" y=\"{2}\" text-anchor=\"middle\">{width}</text>\n",
            x(width),
            y(row.measured),
            HEIGHT - BELOW + 18.0,
        );
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   locks conflict as often as the formula predicts: as locks get wider, and always when there is one.
    /// Method: 8 threads on 512 records, few and many records for a lock, within four standard errors.
    #[test]
    fn conflicts_are_those_of_balls_into_bins() {
        let settings = Settings { records: 512, threads: 8, rounds: 300, widths: vec![1, 16, 512], seed: 3 };
        let rows = run(&settings).unwrap();
        for row in &rows {
            assert!((row.measured - row.expected).abs() <= 2.0 * row.tolerance + 1e-9, "{row:?}");
        }
        assert_eq!(rows[2].measured, 7.0, "all but one wait for the one lock");
        assert!(rows[1].measured > 4.0 * rows[0].measured, "{rows:?}");
        assert_eq!(svg(&settings, &rows).matches("<circle").count(), 3);
    }

    /// Goal:   the formula is that of the classic problem.
    /// Method: one lock, two requests, and the limit of many locks.
    #[test]
    fn the_formula_is_that_of_balls_into_bins() {
        assert_eq!(expected(16, 16, 5), 4.0);
        assert!((expected(1000, 1, 2) - 0.001).abs() < 1e-9);
        assert!((expected(1 << 40, 1, 2)).abs() < 1e-3);
    }
}
