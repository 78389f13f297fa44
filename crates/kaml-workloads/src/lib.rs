//! The benchmark harness: floors, the raw device, micro workloads over the `kaml` API, and database workloads over
//! any storage engine.
//!
//! Lives here:       what is run, how it is timed, and the figures that come out.
//! Lives elsewhere:  printing and flags (`kaml-bench`); everything that is measured (`kaml`).
//! May be called by: `kaml-bench` and tests.
//!
//! Each workload returns a serialisable struct of figures; nothing here prints.

pub mod compare;
pub mod compression;
pub mod conflicts;
pub mod disturbance;
pub mod drive;
pub mod engine;
pub mod figures;
pub mod floor;
pub mod keys;
pub mod kill;
pub mod memory;
pub mod micro;
pub mod network;
pub mod outcome;
pub mod raw;
pub mod reopen;
mod rows;
pub mod scans;
pub mod scratch;
pub mod snapshots;
pub mod steady;
mod together;
pub mod tpcb;
pub mod tpcc;
mod uring;
pub mod ycsb;

pub use figures::Figures;

use kaml_terminal::failure::Failure;

/// What may stop a workload.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// The operation and its object.
        what: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The device refused something.
    #[error(transparent)]
    Device(#[from] kaml::Error),
    /// A target, or the way to it, failed.
    #[error(transparent)]
    Host(#[from] kaml_nvme::host::Error),
    /// A target could not be started.
    #[error(transparent)]
    Target(#[from] kaml_nvme::target::Error),
    /// A storage engine refused or failed something.
    #[error("engine: {0}")]
    Engine(String),
    /// A scan of an engine that has no ranges.
    #[error("this engine has no ranges of keys")]
    NoRanges,
    /// The device returned something impossible.
    #[error("wrong: {0}")]
    Wrong(String),
    /// Parameters that make no sense together.
    #[error("{0}")]
    Parameters(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Parameters(what) => Failure::Usage(what),
            Error::Device(error) => error.into(),
            other => Failure::Failed(other.to_string()),
        }
    }
}

impl Error {
    /// Adds what was being done to the error of the system.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}
