//! The log of `kaml serve`: events as lines on standard error.
//!
//! Lives here:       levels, and the two forms of a line.
//! Lives elsewhere:  the events (`tracing`, in the libraries), the lines (`tracing-subscriber`).
//! May be called by: `serve`.

use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::filter::LevelFilter;

/// How much is reported.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Nothing
    Off,
    /// What was lost, or cannot continue
    Error,
    /// And what an operator should look at
    Warn,
    /// And occasional events
    Info,
    /// And each connection
    Debug,
}

impl Level {
    fn filter(self) -> LevelFilter {
        match self {
            Level::Off => LevelFilter::OFF,
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
        }
    }
}

/// What an event looks like.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// A line for people
    Text,
    /// A JSON object on a line, for programs
    Json,
}

/// From now on events of this level and above are reported.
pub fn start(level: Level, format: Format) {
    let lines = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level.filter());
    // Another subscriber can only be one of a test: then that one listens.
    let _ = match format {
        Format::Text => lines.try_init(),
        Format::Json => lines.json().flatten_event(true).try_init(),
    };
}
