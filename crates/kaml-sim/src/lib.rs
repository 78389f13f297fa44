//! The laboratory: the shipped firmware on modelled NAND, in virtual time, with every fault that flash and power have.
//!
//! Lives here:       simulated NAND, the virtual-time driver, faults and power cuts, the model and the checkers.
//! Lives elsewhere:  the firmware (`kaml-device`), the medium's contract (`kaml-flash`).
//! Implements:       docs/simulation.md.
//!
//! Everything follows from a seed: no thread, no wall clock, no chance but `rng`.

mod array;
mod blocks;
mod board;
#[cfg(feature = "broken")]
mod broken;
pub mod check;
mod controller;
mod cuts;
mod engine;
mod experiment;
mod faults;
mod file_states;
mod host;
mod load;
mod medium;
mod model;
mod pack;
mod plan;
mod rig;
mod rng;
mod run;
mod scenario;
mod timing;
mod trace;
mod value;
mod versions;
mod workload;
mod world;

pub use array::Keep;
pub use blocks::BlockPut;
pub use board::{Board, BoardError};
#[cfg(feature = "broken")]
pub use broken::BrokenMedium;
pub use check::Violation;
pub use controller::{ControllerTiming, LinkTiming};
pub use cuts::Cuts;
pub use engine::PageCounts;
pub use experiment::{Cell, Claim, Experiment, Outcome, PaperValue, Progress, Settings};
pub use faults::{FaultCounts, Faults};
pub use file_states::{BrokenDisk, FileStates};
pub use host::{Command, Put};
pub use kaml_device::{CollectionCandidate, CollectionRule};
pub use load::{Ask, Load, Order, Sheet};
pub use medium::{Options, SimMedium, SimQueue};
pub use model::{Address, Changes, Comparison, Logs, Model, Phase};
pub use plan::{MuninnCost, MuninnPlan, PlanError};
pub use rig::{Latencies, Replay, ReplayCuts, ReplayError, ReplayReport, Rig, RigError};
pub use rng::{Rng, Trace, mix};
#[cfg(feature = "broken")]
pub use run::run_on;
pub use run::{Failure, Plan, Totals, run};
pub use scenario::{Scenario, Small, Workload};
pub use timing::{NandTiming, Timing};
pub use trace::{Extent, Pattern, PatternError, TraceError, TraceFormat, TraceOp, TraceReader, TraceRecord};
pub use value::Value;
pub use versions::{Past, PastCommand};
pub use workload::{
    CommandMix, HostLoad, Keys, LoadReport, MakePolicy, Policies, Sizes, Space, Weight, WorkloadError, WorkloadFile,
    WorkloadReport,
};
pub use world::{Counts, End, World};
