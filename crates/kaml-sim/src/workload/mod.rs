//! Workloads from a file: namespaces, hosts, mixes of commands and sizes of values.
//!
//! Lives here:       the file's form, and what is refused in it.
//! Lives elsewhere:  executing it (`run`), the device (`rig`), policies (`kaml_device::CollectionRule`).
//! Implements:       docs/guide/research.md "Workloads".

mod run;

use crate::rig::RigError;
use kaml_device::{CollectionPolicy, CollectionRule};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What hosts do to a device, as a file has it.
///
/// ```
/// let text = r#"
///     [[namespace]]
///     name = "users"
///     records = 1000
///     value_bytes = [{ bytes = 512, weight = 9 }, { bytes = 4096 }]
///
///     [[load]]
///     namespace = "users"
///     hosts = 4
///     mix = { get = 95, put = 5 }
///     commands = 1000
/// "#;
/// assert_eq!(kaml_sim::WorkloadFile::parse(text).unwrap().namespaces[0].name, "users");
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadFile {
    /// The policy of collection, by name; the firmware's own if there is none.
    #[serde(default)]
    pub policy: Option<String>,
    /// The namespaces, which are filled before anything is measured.
    #[serde(rename = "namespace")]
    pub namespaces: Vec<Space>,
    /// What is done to them, at the same time.
    #[serde(rename = "load")]
    pub loads: Vec<HostLoad>,
}

/// A namespace of a workload.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Space {
    /// Its name.
    pub name: String,
    /// Records that it has before.
    pub records: u64,
    /// Sizes of values.
    pub value_bytes: Sizes,
    /// Its logs; all if there are none.
    #[serde(default)]
    pub logs: Vec<u32>,
}

/// Sizes of values.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Sizes {
    /// All have this size.
    Fixed(u32),
    /// Evenly from `low` to `high`, in 32 steps.
    Even {
        /// The least.
        low: u32,
        /// The most.
        high: u32,
    },
    /// Some sizes, as often as their weights.
    Weighted(Vec<Weight>),
}

/// A size and how often it is.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// Bytes of a value.
    pub bytes: u32,
    /// How often, in relation to the other sizes.
    #[serde(default = "one")]
    pub weight: u32,
}

fn one() -> u32 {
    1
}

/// What some hosts do.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostLoad {
    /// The namespace.
    pub namespace: String,
    /// Hosts with one command in progress each. Of an open loop: commands in progress at most.
    pub hosts: usize,
    /// An open loop: commands arrive so many times a second, whether others are done or not. Without it, a host requests the next
    /// command when one completes.
    #[serde(default)]
    pub per_s: Option<f64>,
    /// How often each command is.
    pub mix: CommandMix,
    /// Which records.
    #[serde(default)]
    pub keys: Keys,
    /// Records of a Put.
    #[serde(default = "one")]
    pub batch: u32,
    /// Commands that are measured.
    pub commands: u64,
    /// Commands before.
    #[serde(default)]
    pub warm_up: u64,
}

/// Weights of commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommandMix {
    /// Get of a record.
    pub get: u32,
    /// Put of records that exist.
    pub put: u32,
    /// Put of new records.
    pub insert: u32,
}

/// Which records commands use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keys {
    /// Any, evenly.
    #[default]
    Even,
    /// By Zipf's law with the exponent 1; popular records are anywhere.
    Zipf,
    /// The newest are the most popular ones, by Zipf's law.
    Latest,
    /// This percentage of the commands uses the first hundredth of the records.
    Hot(u32),
}

/// Why a workload cannot be executed.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The file is not of this form.
    #[error("{0}")]
    Form(#[from] toml::de::Error),
    /// A number or a name in it cannot be.
    #[error("{place}: {what}")]
    Value {
        /// The table of the file.
        place: String,
        /// What is wrong, and what can be.
        what: String,
    },
    /// There is no policy of this name.
    #[error("no collection policy is named {name:?}; there are {known}")]
    Policy {
        /// As the file has it.
        name: String,
        /// All names.
        known: String,
    },
    /// The device refused something.
    #[error(transparent)]
    Rig(#[from] RigError),
}

/// Makes a policy.
pub type MakePolicy = fn() -> Box<dyn CollectionRule>;

/// Policies of collection by name: the firmware's, and those of the caller.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    own: BTreeMap<String, MakePolicy>,
}

impl Policies {
    /// The firmware's policies.
    pub fn new() -> Policies {
        Policies::default()
    }

    /// With a policy of the caller's, which hides one of the same name.
    #[must_use]
    pub fn with(mut self, name: &str, make: MakePolicy) -> Policies {
        self.own.insert(name.to_owned(), make);
        self
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        let own = self.own.keys().cloned();
        let known = CollectionPolicy::ALL.iter().map(|policy| policy.name().to_owned());
        known.filter(|name| !self.own.contains_key(name)).chain(own).collect()
    }

    fn choose(&self, name: &str, rig: &mut crate::Rig) -> Result<(), WorkloadError> {
        if let Some(make) = self.own.get(name) {
            rig.set_own_collection_policy(make());
            return Ok(());
        }
        let known = || WorkloadError::Policy { name: name.to_owned(), known: self.names().join(", ") };
        rig.set_collection_policy(name.parse().map_err(|_| known())?);
        Ok(())
    }
}

/// What a load came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadReport {
    /// The namespace.
    pub namespace: String,
    /// The command.
    pub command: &'static str,
    /// Commands that were measured.
    pub commands: u64,
    /// Commands a second of virtual time.
    pub per_s: f64,
    /// Value bytes in 10^6 a second.
    pub megabytes_per_s: f64,
    /// Mean latency in microseconds; of an open loop from the arrival.
    pub mean_us: f64,
    /// Half of the commands took no longer.
    pub p50_us: f64,
    /// 99 % took no longer.
    pub p99_us: f64,
    /// 99.9 % took no longer.
    pub p999_us: f64,
}

/// What a workload came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkloadReport {
    /// Each load and command.
    pub loads: Vec<LoadReport>,
    /// Bytes of pages programmed for each byte of records, while it ran.
    pub write_amplification: f64,
    /// Blocks erased.
    pub erases: u64,
    /// Fingerprint of all that the flash did and when.
    pub fingerprint: String,
}

/// Bounds of a file: more is a mistake.
const RECORDS_MAX: u64 = 1 << 28;
/// Ranks have a table in memory.
const RANKS_MAX: u64 = 1 << 24;
const HOSTS_MAX: usize = 1 << 12;
const COMMANDS_MAX: u64 = 1 << 36;
const BATCH_MAX: u32 = 64;
const VALUE_MAX: u32 = 16 << 10;
const WEIGHTS_MAX: usize = 256;

impl WorkloadFile {
    /// Reads a workload.
    ///
    /// # Errors
    /// [`WorkloadError::Form`] with the line, or [`WorkloadError::Value`] with the table and what can be.
    pub fn parse(text: &str) -> Result<WorkloadFile, WorkloadError> {
        let workload: WorkloadFile = toml::from_str(text)?;
        workload.check()?;
        Ok(workload)
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let wrong = |place: String, what: String| Err(WorkloadError::Value { place, what });
        for (at, space) in self.namespaces.iter().enumerate() {
            let place = || format!("namespace {:?}", space.name);
            if self.namespaces[..at].iter().any(|other| other.name == space.name) {
                return wrong(place(), "there are two of this name".into());
            }
            if !(1..=RECORDS_MAX).contains(&space.records) {
                return wrong(place(), format!("records is {}; it must be 1 to {RECORDS_MAX}", space.records));
            }
            if let Err(what) = space.value_bytes.check() {
                return wrong(place(), what);
            }
        }
        for (at, load) in self.loads.iter().enumerate() {
            let place = || format!("load {} (of {:?})", at + 1, load.namespace);
            let Some(space) = self.namespaces.iter().find(|space| space.name == load.namespace) else {
                return wrong(place(), "there is no namespace of this name".into());
            };
            if !(1..=HOSTS_MAX).contains(&load.hosts) {
                return wrong(place(), format!("hosts is {}; it must be 1 to {HOSTS_MAX}", load.hosts));
            }
            if load.per_s.is_some_and(|per_s| !(1e-3..=1e9).contains(&per_s)) {
                return wrong(place(), "per_s must be 0.001 to 1e9".into());
            }
            if !(1..=BATCH_MAX).contains(&load.batch) || u64::from(load.batch) > space.records {
                return wrong(place(), format!("batch must be 1 to {BATCH_MAX}, and at most the records"));
            }
            if !(1..=COMMANDS_MAX).contains(&load.commands) || load.warm_up > COMMANDS_MAX {
                return wrong(place(), format!("commands must be 1 to {COMMANDS_MAX}, and warm_up at most that"));
            }
            if load.mix.weights().iter().map(|weight| u64::from(*weight)).sum::<u64>() == 0 {
                return wrong(place(), "mix needs get, put or insert above 0".into());
            }
            if matches!(load.keys, Keys::Hot(percent) if percent > 100) {
                return wrong(place(), "keys = { hot = … } is a percentage".into());
            }
            if matches!(load.keys, Keys::Zipf | Keys::Latest) && space.records > RANKS_MAX {
                return wrong(place(), format!("zipf and latest need at most {RANKS_MAX} records"));
            }
            // Hosts take turns at records that others use.
            if (load.hosts as u64 + 1) * u64::from(load.batch) * 2 > space.records {
                return wrong(place(), format!("{} records are too few for so many hosts", space.records));
            }
        }
        if self.namespaces.is_empty() || self.loads.is_empty() {
            return wrong("the file".into(), "a [[namespace]] and a [[load]] are needed".into());
        }
        Ok(())
    }
}

impl CommandMix {
    fn weights(&self) -> [u32; 3] {
        [self.get, self.put, self.insert]
    }
}

impl Sizes {
    /// Each size with its weight.
    fn all(&self) -> Vec<Weight> {
        const STEPS: u32 = 32;
        match self {
            Sizes::Fixed(bytes) => vec![Weight { bytes: *bytes, weight: 1 }],
            Sizes::Even { low, high } => {
                let step = |i: u32| low + (u64::from(high - low) * u64::from(i) / u64::from(STEPS - 1)) as u32;
                (0..STEPS).map(|i| Weight { bytes: step(i), weight: 1 }).collect()
            }
            Sizes::Weighted(all) => all.clone(),
        }
    }

    fn check(&self) -> Result<(), String> {
        if let Sizes::Even { low, high } = self
            && low > high
        {
            return Err(format!("value_bytes: low is {low} and high is {high}"));
        }
        let all = self.all();
        if all.is_empty() || all.len() > WEIGHTS_MAX {
            return Err(format!("value_bytes must have 1 to {WEIGHTS_MAX} sizes"));
        }
        if all.iter().any(|one| one.bytes > VALUE_MAX || one.bytes == 0 || one.weight == 0) {
            return Err(format!("value_bytes must be 1 to {VALUE_MAX}, with weights of at least 1"));
        }
        Ok(())
    }
}
