//! What the properties of a YCSB core workload mean.
//!
//! Lives here:       names, defaults and bounds of the properties; the standard workloads.
//! Lives elsewhere:  the file format (`properties`), the choice of records (`choose`), their bytes (`record`).
//! Implements:       Cooper et al., "Benchmarking cloud serving systems with YCSB", and the property names, defaults and
//!                   meanings of its reference implementation's core workload.
//!
//! Missing: the request distributions `sequential`, `hotspot` and `exponential`. A file that requests them is refused. Properties of the reference implementation that have no
//! meaning here (time series, exporters) are passed over and listed in [`Settings::ignored`].

use super::properties::{Properties, PropertiesError};
use serde::Serialize;
use std::str::FromStr;

/// A record of more bytes is certainly a mistake.
const RECORD_BYTES_MAX: u64 = 16 << 20;
/// More fields than bytes of the largest sensible record make no sense either.
const FIELD_COUNT_MAX: u64 = 1 << 16;
/// Numbers of records stay far from overflow.
const RECORD_COUNT_MAX: u64 = 1 << 48;

/// The standard workloads that exist, by letter.
pub const STANDARD: [(&str, &str); 6] = [
    ("a", include_str!("../../workloads/ycsb-a.properties")),
    ("b", include_str!("../../workloads/ycsb-b.properties")),
    ("c", include_str!("../../workloads/ycsb-c.properties")),
    ("d", include_str!("../../workloads/ycsb-d.properties")),
    ("e", include_str!("../../workloads/ycsb-e.properties")),
    ("f", include_str!("../../workloads/ycsb-f.properties")),
];

/// A workload that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The file is none.
    #[error(transparent)]
    Format(#[from] PropertiesError),
    /// A value that is none of those the property takes.
    #[error("{name}={value}: must be {expected}")]
    Value {
        /// Of the property.
        name: String,
        /// What was found.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
    /// A property without which there is no workload.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// Something that YCSB has and this does not.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// No such standard workload.
    #[error("there is no standard workload `{0}`; there are a to f")]
    Unknown(String),
}

/// How records are chosen to be read and changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Requests {
    /// Each as likely as any other.
    Uniform,
    /// Zipf with 0.99, the frequent ones scattered.
    Zipfian,
    /// Zipf with 0.99, the last inserted ones most frequent.
    Latest,
}

/// How many records a scan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanLengths {
    /// Any number is as likely as any other.
    Uniform,
    /// Zipf with 0.99, short ones most frequent.
    Zipfian,
}

/// How keys follow from the numbers of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InsertOrder {
    /// By a hash: neighbours in time are not neighbours in key order.
    Hashed,
    /// The number itself.
    Ordered,
}

/// How long fields are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FieldLengths {
    /// All as long as the longest.
    Constant,
    /// Any length is as likely as any other.
    Uniform,
    /// Short ones are more frequent.
    Zipfian,
}

/// A core workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// `insertcount`: records that are loaded; those up to `recordcount`, if it is not given.
    pub record_count: u64,
    /// `insertstart`: the number of the first.
    pub insert_start: u64,
    /// `operationcount`: operations of a whole run; 0 for no limit.
    pub operation_count: u64,
    /// `fieldcount`.
    pub field_count: usize,
    /// `fieldlength`: bytes of the longest field.
    pub field_length: usize,
    /// `minfieldlength`: bytes of the shortest.
    pub field_length_min: usize,
    /// `fieldlengthdistribution`.
    pub lengths: FieldLengths,
    /// `writeallfields`: an update replaces the record; otherwise one field of it, so it has to be read.
    pub write_all_fields: bool,
    /// `readproportion`.
    pub read_share: f64,
    /// `updateproportion`.
    pub update_share: f64,
    /// `insertproportion`.
    pub insert_share: f64,
    /// `readmodifywriteproportion`.
    pub read_modify_write_share: f64,
    /// `scanproportion`.
    pub scan_share: f64,
    /// `minscanlength`: records of the shortest scan.
    pub scan_length_min: u64,
    /// `maxscanlength`: records of the longest.
    pub scan_length: u64,
    /// `scanlengthdistribution`.
    pub scan_lengths: ScanLengths,
    /// `requestdistribution`.
    pub requests: Requests,
    /// `insertorder`.
    pub insert_order: InsertOrder,
    /// Properties that existed and mean nothing here.
    pub ignored: Vec<String>,
}

/// All that is understood. `readallfields` and those from `dataintegrity` on that are not about scans change nothing about the records or
/// operations of this implementation: reads always see whole records, all reads are verified, runs end by their flags.
const KNOWN: [&str; 27] = [
    "recordcount",
    "insertcount",
    "insertstart",
    "operationcount",
    "fieldcount",
    "fieldlength",
    "minfieldlength",
    "fieldlengthdistribution",
    "readallfields",
    "writeallfields",
    "readproportion",
    "updateproportion",
    "insertproportion",
    "scanproportion",
    "readmodifywriteproportion",
    "requestdistribution",
    "insertorder",
    "workload",
    "dataintegrity",
    "table",
    "maxexecutiontime",
    "maxscanlength",
    "minscanlength",
    "scanlengthdistribution",
    "measurementtype",
    "threadcount",
    "fieldnameprefix",
];

impl Settings {
    /// A standard workload by its letter.
    pub fn standard(letter: &str) -> Result<Properties, SettingsError> {
        let found = STANDARD.iter().find(|(name, _)| name.eq_ignore_ascii_case(letter));
        let (_, text) = found.ok_or_else(|| SettingsError::Unknown(letter.to_owned()))?;
        Ok(Properties::parse(text)?)
    }

    /// The workload that a file describes.
    pub fn parse(text: &str) -> Result<Settings, SettingsError> {
        Settings::new(&Properties::parse(text)?)
    }

    /// The workload that properties describe.
    pub fn new(properties: &Properties) -> Result<Settings, SettingsError> {
        refuse_others(properties)?;
        let count = |name, default| number(properties, name, default, RECORD_COUNT_MAX);
        let (all, first) = (count("recordcount", 0)?, count("insertstart", 0)?);
        let record_count = count("insertcount", all.saturating_sub(first))?;
        if all == 0 && properties.get("insertcount").is_none() {
            return Err(SettingsError::Missing("recordcount"));
        }
        if record_count == 0 || all > 0 && first + record_count > all {
            let (name, value) = ("insertcount".to_owned(), record_count.to_string());
            return Err(SettingsError::Value {
                name,
                value,
                expected: "at least 1, and with insertstart at most recordcount",
            });
        }
        let share = |name, default| share(properties, name, default);
        let settings = Settings {
            record_count,
            insert_start: first,
            operation_count: count("operationcount", 0)?,
            field_count: number(properties, "fieldcount", 10, FIELD_COUNT_MAX)? as usize,
            field_length: number(properties, "fieldlength", 100, RECORD_BYTES_MAX)? as usize,
            field_length_min: number(properties, "minfieldlength", 1, RECORD_BYTES_MAX)? as usize,
            lengths: one_of(properties, "fieldlengthdistribution", &LENGTHS)?,
            write_all_fields: one_of(properties, "writeallfields", &[("false", false), ("true", true)])?,
            read_share: share("readproportion", 0.95)?,
            update_share: share("updateproportion", 0.05)?,
            insert_share: share("insertproportion", 0.0)?,
            read_modify_write_share: share("readmodifywriteproportion", 0.0)?,
            scan_share: share("scanproportion", 0.0)?,
            scan_length_min: count("minscanlength", 1)?,
            scan_length: count("maxscanlength", 1000)?,
            scan_lengths: one_of(properties, "scanlengthdistribution", &SCAN_LENGTHS)?,
            requests: one_of(properties, "requestdistribution", &REQUESTS)?,
            insert_order: one_of(properties, "insertorder", &INSERT_ORDERS)?,
            ignored: properties.names().filter(|name| !KNOWN.contains(name)).map(str::to_owned).collect(),
        };
        settings.check()?;
        Ok(settings)
    }

    /// Of reads, updates, inserts, read-modify-writes and scans.
    pub(super) fn shares(&self) -> [f64; 5] {
        [self.read_share, self.update_share, self.insert_share, self.read_modify_write_share, self.scan_share]
    }

    fn check(&self) -> Result<(), SettingsError> {
        let value =
            |name: &str, value: String, expected| Err(SettingsError::Value { name: name.to_owned(), value, expected });
        if self.field_count == 0 {
            return value("fieldcount", "0".into(), "at least 1");
        }
        if self.field_length == 0 {
            return value("fieldlength", "0".into(), "at least 1");
        }
        if self.field_count as u64 * self.field_length as u64 > RECORD_BYTES_MAX {
            return value("fieldlength", self.field_length.to_string(), "such that records stay below 16 MiB");
        }
        if self.lengths != FieldLengths::Constant && !(1..=self.field_length).contains(&self.field_length_min) {
            return value("minfieldlength", self.field_length_min.to_string(), "at least 1 and at most fieldlength");
        }
        if !(1..=self.scan_length).contains(&self.scan_length_min) {
            return value("minscanlength", self.scan_length_min.to_string(), "at least 1 and at most maxscanlength");
        }
        if self.shares().iter().sum::<f64>() <= 0.0 {
            return Err(SettingsError::Missing("an operation with a proportion above 0"));
        }
        Ok(())
    }
}

const LENGTHS: [(&str, FieldLengths); 3] =
    [("constant", FieldLengths::Constant), ("uniform", FieldLengths::Uniform), ("zipfian", FieldLengths::Zipfian)];
const REQUESTS: [(&str, Requests); 3] =
    [("uniform", Requests::Uniform), ("zipfian", Requests::Zipfian), ("latest", Requests::Latest)];
const SCAN_LENGTHS: [(&str, ScanLengths); 2] = [("uniform", ScanLengths::Uniform), ("zipfian", ScanLengths::Zipfian)];
const INSERT_ORDERS: [(&str, InsertOrder); 2] = [("hashed", InsertOrder::Hashed), ("ordered", InsertOrder::Ordered)];

/// What YCSB has and this has not.
fn refuse_others(properties: &Properties) -> Result<(), SettingsError> {
    let unsupported = |what: String| Err(SettingsError::Unsupported(what));
    if let Some(class) = properties.get("workload").filter(|class| class.rsplit('.').next() != Some("CoreWorkload")) {
        return unsupported(format!("workload={class}"));
    }
    for (name, values) in [
        ("requestdistribution", ["sequential", "hotspot", "exponential"].as_slice()),
        ("fieldlengthdistribution", &["histogram"]),
    ] {
        if let Some(value) = properties.get(name).filter(|value| values.contains(value)) {
            return unsupported(format!("{name}={value}"));
        }
    }
    Ok(())
}

fn number(properties: &Properties, name: &str, default: u64, max: u64) -> Result<u64, SettingsError> {
    parsed(properties, name, default, "a whole number that is not absurdly large", |number| *number <= max)
}

fn share(properties: &Properties, name: &str, default: f64) -> Result<f64, SettingsError> {
    parsed(properties, name, default, "a number from 0 to 1", |share| (0.0..=1.0).contains(share))
}

fn parsed<T: FromStr>(
    properties: &Properties,
    name: &str,
    default: T,
    expected: &'static str,
    fits: impl Fn(&T) -> bool,
) -> Result<T, SettingsError> {
    let Some(text) = properties.get(name) else { return Ok(default) };
    let error = || SettingsError::Value { name: name.to_owned(), value: text.to_owned(), expected };
    text.parse().ok().filter(fits).ok_or_else(error)
}

/// One of a few words, in either case; the first choice is the default.
fn one_of<T: Copy>(properties: &Properties, name: &str, choices: &[(&'static str, T)]) -> Result<T, SettingsError> {
    let Some(text) = properties.get(name) else { return Ok(choices[0].1) };
    let found = choices.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
    found.map(|(_, value)| *value).ok_or_else(|| SettingsError::Value {
        name: name.to_owned(),
        value: text.to_owned(),
        expected: "one of the words that YCSB documents for it",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Goal:   the standard workloads are those of the paper's Table III, with YCSB's default records.
    /// Method: parse each; compare shares, distribution and sizes.
    #[test]
    fn standard_workloads_are_as_published() {
        let table = [
            ("a", [0.5, 0.5, 0.0, 0.0, 0.0], Requests::Zipfian),
            ("b", [0.95, 0.05, 0.0, 0.0, 0.0], Requests::Zipfian),
            ("c", [1.0, 0.0, 0.0, 0.0, 0.0], Requests::Zipfian),
            ("d", [0.95, 0.0, 0.05, 0.0, 0.0], Requests::Latest),
            ("e", [0.0, 0.0, 0.05, 0.0, 0.95], Requests::Zipfian),
            ("f", [0.5, 0.0, 0.0, 0.5, 0.0], Requests::Zipfian),
        ];
        for (letter, shares, requests) in table {
            let s = Settings::new(&Settings::standard(letter).unwrap()).unwrap();
            assert_eq!(s.shares(), shares, "{letter}");
            assert_eq!((s.requests, s.field_count, s.field_length), (requests, 10, 100), "{letter}");
            assert_eq!((s.insert_order, s.write_all_fields), (InsertOrder::Hashed, false));
            assert!(s.ignored.is_empty());
        }
        let e = Settings::new(&Settings::standard("e").unwrap()).unwrap();
        assert_eq!((e.scan_length_min, e.scan_length, e.scan_lengths), (1, 100, ScanLengths::Uniform));
        assert!(matches!(Settings::standard("g"), Err(SettingsError::Unknown(_))));
    }

    /// Goal:   what is loaded are the records that requests may be for.
    /// Method: each way to state which, with what YCSB's core workload takes for it.
    #[test]
    fn loads_begin_and_end_as_told() {
        for (text, first, count) in [
            ("recordcount=10", 0, 10),
            ("recordcount=10\ninsertstart=4", 4, 6),
            ("recordcount=10\ninsertstart=4\ninsertcount=3", 4, 3),
            ("insertstart=4\ninsertcount=3", 4, 3),
        ] {
            let settings = Settings::parse(text).unwrap();
            assert_eq!((settings.insert_start, settings.record_count), (first, count), "{text}");
        }
    }

    /// Goal:   each mistake is refused by its name.
    /// Method: a good file with one wrong line each.
    #[test]
    fn mistakes_are_named() {
        for wrong in [
            "fieldcount=0",
            "fieldlength=0",
            "fieldlength=x",
            "fieldlength=99999999",
            "readproportion=1.5",
            "readproportion=NaN",
            "requestdistribution=latter",
            "insertorder=up",
            "recordcount=-1",
            "insertstart=10",
            "insertcount=0",
            "insertstart=4\ninsertcount=7",
            "writeallfields=maybe",
            "scanproportion=2",
            "minscanlength=0",
            "maxscanlength=0",
            "minscanlength=9\nmaxscanlength=8",
            "scanlengthdistribution=latest",
            "fieldlengthdistribution=uniform\nminfieldlength=200",
        ] {
            let result = Settings::parse(&format!("recordcount=10\n{wrong}"));
            assert!(matches!(result, Err(SettingsError::Value { .. })), "{wrong}: {result:?}");
        }
        for other in
            ["workload=x.TimeSeriesWorkload", "requestdistribution=hotspot", "fieldlengthdistribution=histogram"]
        {
            let result = Settings::parse(&format!("recordcount=10\n{other}"));
            assert!(matches!(result, Err(SettingsError::Unsupported(_))), "{other}: {result:?}");
        }
        assert_eq!(Settings::parse("fieldcount=1"), Err(SettingsError::Missing("recordcount")));
        let none = Settings::parse("recordcount=1\nreadproportion=0\nupdateproportion=0");
        assert!(matches!(none, Err(SettingsError::Missing(_))));
        assert_eq!(Settings::parse("recordcount=1\nexporter=x").unwrap().ignored, ["exporter"]);
    }

    proptest! {
        /// Goal:   whatever is in a file, it is taken with sane settings or refused.
        /// Method: known names with random values.
        #[test]
        fn any_values_are_taken_or_refused(
            lines in prop::collection::vec((0..KNOWN.len(), "[-0-9a-z.]{0,12}"), 0..20),
        ) {
            let text: String = lines.iter().map(|(at, value)| format!("{}={value}\n", KNOWN[*at])).collect();
            if let Ok(settings) = Settings::parse(&text) {
                prop_assert!(settings.record_count > 0 && settings.field_count > 0);
                prop_assert!(settings.field_count as u64 * settings.field_length as u64 <= RECORD_BYTES_MAX);
            }
        }
    }
}
