//! A row of the table: a figure next to its floor, and whether the bar is met.
//!
//! Lives here:       ratios of neighbouring runs, bars.
//! Lives elsewhere:  what is measured (`bench`).

use super::Group;
use crate::Error;
use crate::disturbance::varies;
use serde::{Deserialize, Serialize};

/// One row of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The group it belongs to.
    pub group: Group,
    /// What was measured.
    pub what: String,
    /// In which unit.
    pub unit: String,
    /// The floor or the raw device, where there is one.
    pub floor: Option<f64>,
    /// KAML.
    pub kaml: f64,
    /// KAML over floor, the median of neighbours.
    pub ratio: Option<f64>,
    /// What is demanded of the ratio, or of the figure where there is none.
    pub bar: Option<Bar>,
    /// Whether it is met; not known of a row that was disturbed.
    pub met: Option<bool>,
    /// What disturbed the measurement, if anything did.
    pub disturbed: Option<String>,
}

/// What is demanded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    /// Not less.
    AtLeast(f64),
    /// Not more.
    AtMost(f64),
}

impl Bar {
    pub(super) fn is_met(self, value: f64) -> bool {
        match self {
            Bar::AtLeast(bar) => value >= bar,
            Bar::AtMost(bar) => value <= bar,
        }
    }
}

impl Row {
    /// A ratio to a floor; pairs of (floor, kaml) from neighbouring runs.
    pub(super) fn ratio(group: Group, what: String, unit: &str, pairs: &[(f64, f64)], bar: Bar) -> Row {
        let ratio = median(pairs.iter().map(|(floor, kaml)| kaml / floor));
        Row {
            group,
            what,
            unit: unit.into(),
            floor: Some(median(pairs.iter().map(|pair| pair.0))),
            kaml: median(pairs.iter().map(|pair| pair.1)),
            ratio: Some(ratio),
            bar: Some(bar),
            met: Some(bar.is_met(ratio)),
            disturbed: None,
        }
        .varied(pairs)
    }

    /// A group that could not be measured to its end.
    pub(super) fn failure(group: Group, error: &Error) -> Row {
        let what = format!("{}: failed: {error}", group.name());
        let unit = String::new();
        Row {
            group,
            what,
            unit,
            floor: None,
            kaml: f64::NAN,
            ratio: None,
            bar: None,
            met: Some(false),
            disturbed: None,
        }
    }

    /// A figure that has a bar of its own.
    pub(super) fn figure(group: Group, what: impl Into<String>, unit: &str, kaml: f64, bar: Option<Bar>) -> Row {
        let met = bar.map(|bar| bar.is_met(kaml));
        let (what, unit) = (what.into(), unit.into());
        Row { group, what, unit, floor: None, kaml, ratio: None, bar, met, disturbed: None }
    }

    /// The same, marked if its runs vary too much to show anything.
    fn varied(self, pairs: &[(f64, f64)]) -> Row {
        let floor = varies("the floor", pairs.iter().map(|pair| pair.0));
        let ratio = || varies("the ratio", pairs.iter().map(|(floor, kaml)| kaml / floor));
        match floor.or_else(ratio) {
            Some(why) => self.disturbed(&why),
            None => self,
        }
    }

    /// The same, marked as disturbed: whether its bar is met is not known.
    pub(super) fn disturbed(self, why: &str) -> Row {
        Row { met: None, disturbed: self.disturbed.or_else(|| Some(why.to_owned())), ..self }
    }
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   the ratio is that of neighbours, and a bar is met when it is reached.
    /// Method: pairs whose medians divide to something else than the median ratio.
    #[test]
    fn ratios_are_of_neighbours() {
        let pairs = [(100.0, 90.0), (120.0, 80.0), (90.0, 81.0)];
        let row = Row::ratio(Group::Puts, "x".into(), "puts/s", &pairs, Bar::AtLeast(0.9));
        assert_eq!((row.floor, row.kaml, row.ratio, row.met), (Some(100.0), 81.0, Some(0.9), Some(true)));
        assert_eq!(row.disturbed, None);
        assert!(!Bar::AtMost(2.0).is_met(2.1) && Bar::AtMost(2.0).is_met(2.0));
        assert_eq!(median([4.0, 1.0, 3.0, 2.0].into_iter()), 2.5);
    }

    /// Goal:   a row whose runs vary too much, or that other work disturbed, shows nothing about its bar.
    /// Method: a floor that halves, a ratio that doubles, and a row that is marked from outside.
    #[test]
    fn disturbed_rows_meet_nothing() {
        let row = |pairs: &[(f64, f64)]| Row::ratio(Group::Puts, "x".into(), "puts/s", pairs, Bar::AtLeast(0.1));
        for pairs in [[(100.0, 90.0), (50.0, 45.0), (100.0, 90.0)], [(100.0, 90.0), (100.0, 45.0), (100.0, 90.0)]] {
            let row = row(&pairs);
            assert!(row.met.is_none() && row.disturbed.is_some(), "{row:?}");
        }
        let row = row(&[(100.0, 90.0)]);
        assert_eq!(row.met, Some(true));
        assert_eq!(row.disturbed("a neighbour").met, None);
    }
}
