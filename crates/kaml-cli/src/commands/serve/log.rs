//! The log of `kaml serve`: events as lines on standard error.
//!
//! Lives here:       levels.
//! Lives elsewhere:  the events (`tracing`, in the libraries), the lines (`tracing-subscriber`).
//! May be called by: `serve`.

use clap::ValueEnum;
use tracing_subscriber::filter::LevelFilter;

/// How much is reported.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
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

/// From now on events of this level and above are reported.
pub fn start(level: Level) {
    let lines = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level.filter());
    // Another subscriber can only be one of a test: then that one listens.
    let _ = lines.try_init();
}
