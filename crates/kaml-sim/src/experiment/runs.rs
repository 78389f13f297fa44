//! Several runs of an experiment with different seeds, as one result with spreads.
//!
//! Lives here:       means, lowest and highest, of tables, pictures and claims.
//! Lives elsewhere:  one run (`Experiment::run`), where the files are written (`kaml-lab`).

use super::chart::{Chart, Panel, Series};
use super::{Cell, Claim, Experiment, Outcome, Progress, Settings, rounded};
use crate::rig::RigError;

impl Experiment {
    /// Runs it so many times with seeds that follow each other, and combines what they came to: figures are means, and each
    /// measured column gets two more with the lowest and the highest.
    ///
    /// # Errors
    /// As [`run`](Experiment::run).
    pub fn repeat(self, settings: &Settings, runs: u32, progress: Progress<'_>) -> Result<Outcome, RigError> {
        let runs = u64::from(runs.max(1));
        let mut outcomes = Vec::new();
        for run in 0..runs {
            let settings = Settings { seed: settings.seed.wrapping_add(run), ..settings.clone() };
            let report = &mut |done, total, what: &str| {
                progress(run * total + done, runs * total, &format!("run {} of {runs}: {what}", run + 1));
            };
            outcomes.push(self.run(&settings, report)?);
        }
        Ok(combined(outcomes))
    }
}

fn combined(mut outcomes: Vec<Outcome>) -> Outcome {
    let mut first = outcomes.remove(0);
    if outcomes.is_empty() {
        return first;
    }
    let measured: Vec<bool> = (0..first.columns.len())
        .map(|column| first.rows.iter().any(|row| matches!(row[column], Cell::Figure(_))))
        .collect();
    let rows = first.rows.iter().enumerate().map(|(at, row)| {
        let others = || outcomes.iter().map(move |outcome| &outcome.rows[at]);
        let cells = row.iter().zip(&measured).enumerate().flat_map(|(column, (cell, measured))| {
            let figures = std::iter::once(cell).chain(others().map(|row| &row[column]));
            match mean_and_range(figures.map(Cell::figure)) {
                Some((mean, low, high)) if *measured => vec![mean.into(), low.into(), high.into()],
                None if *measured => vec![cell.clone(), "".into(), "".into()],
                _ => vec![cell.clone()],
            }
        });
        cells.collect()
    });
    first.rows = rows.collect();
    let columns = first.columns.iter().zip(&measured).flat_map(|(name, measured)| {
        let more = measured.then(|| [format!("{name}_low"), format!("{name}_high")]);
        std::iter::once(name.clone()).chain(more.into_iter().flatten())
    });
    first.columns = columns.collect();
    for (at, claim) in first.claims.iter_mut().enumerate() {
        combine_claim(claim, outcomes.iter().map(|outcome| &outcome.claims[at]));
    }
    let charts: Vec<&Chart> = outcomes.iter().map(|outcome| &outcome.chart).collect();
    for (at, panel) in first.chart.panels.iter_mut().enumerate() {
        combine_panel(panel, &charts.iter().map(|chart| &chart.panels[at]).collect::<Vec<_>>());
    }
    first.runs += outcomes.len() as u32;
    first.chart.subtitle += &format!("; means of {} runs, bars from lowest to highest", first.runs);
    first
}

/// Mean, lowest and highest, if all are figures.
fn mean_and_range(figures: impl Iterator<Item = Option<f64>>) -> Option<(f64, f64, f64)> {
    let figures: Vec<f64> = figures.collect::<Option<_>>()?;
    let (low, high) = figures.iter().fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
    Some((figures.iter().sum::<f64>() / figures.len() as f64, low, high))
}

fn combine_claim<'a>(claim: &mut Claim, others: impl Iterator<Item = &'a Claim>) {
    let (low, high) = claim.ours;
    let (mut lows, mut highs) = ((low, low), (high, high));
    for other in others {
        lows = (lows.0.min(other.ours.0), lows.1.max(other.ours.0));
        highs = (highs.0.min(other.ours.1), highs.1.max(other.ours.1));
        claim.met &= other.met;
        claim.reason = claim.reason.take().or_else(|| other.reason.clone());
    }
    claim.ours = (lows.0, highs.1);
    claim.between_runs = rounded((lows.1 - lows.0).max(highs.1 - highs.0));
}

fn combine_panel(panel: &mut Panel, others: &[&Panel]) {
    for (number, series) in panel.series.iter_mut().enumerate() {
        let at = |category: usize| {
            let same = |series: &Series| series.values.get(category).copied().flatten();
            mean_and_range(std::iter::once(same(series)).chain(others.iter().map(|panel| same(&panel.series[number]))))
        };
        let figures: Vec<Option<(f64, f64, f64)>> = (0..series.values.len()).map(at).collect();
        series.values = figures.iter().map(|figure| figure.map(|(mean, ..)| mean)).collect();
        series.spread = figures.iter().map(|figure| figure.map(|(_, low, high)| (low, high))).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::super::paper;
    use super::*;

    fn outcome(figure: f64) -> Outcome {
        let panel = Panel {
            title: String::new(),
            x: "",
            y: "",
            marks: super::super::chart::Marks::Bars,
            categories: vec!["a".into()],
            series: vec![Series::new("s", vec![Some(figure)])],
            paper: Vec::new(),
        };
        let claims = vec![Claim::new("c", (&paper::LOGS, "at most 2"), 0.0..=2.0, [figure, figure + 0.5])];
        let chart = Chart { panels: vec![panel], ..Chart::default() };
        let rows = vec![vec![Cell::from("x"), 3u64.into(), figure.into()], vec!["y".into(), 4u64.into(), "".into()]];
        Outcome::new(("n", "title"), &["what", "count", "figure"], rows, claims, chart)
    }

    /// Goal:   means and spreads are of all runs, what was run is kept, and a claim is met only if it was in each run.
    /// Method: two outcomes by hand; the second misses the bar.
    #[test]
    fn runs_are_combined() {
        let both = combined(vec![outcome(1.0), outcome(2.0)]);
        assert_eq!(both.csv(), "what,count,figure,figure_low,figure_high\nx,3,1.5000,1.0000,2.0000\ny,4,,,\n");
        let claim = &both.claims[0];
        assert_eq!((claim.ours, claim.between_runs, claim.met), ((1.0, 2.5), 1.0, false));
        assert_eq!(both.chart.panels[0].series[0].spread, [Some((1.0, 2.0))]);
        assert_eq!((both.runs, combined(vec![outcome(1.0)]).csv()), (2, outcome(1.0).csv()));
    }
}
