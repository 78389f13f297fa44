//! What `kaml serve` says while it runs: events as lines on standard error.
//!
//! Lives here:       levels, the lines.
//! Lives elsewhere:  the events (`tracing`, in the libraries).
//! May be called by: `serve`.

use crate::commands::versions::show_time;
use clap::ValueEnum;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// How much is said.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Nothing
    Off,
    /// What was lost, or cannot go on
    Error,
    /// And what somebody should look at
    Warn,
    /// And what happens now and then
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

/// From now on events of this level and above are said.
pub fn start(level: Level) {
    // Another subscriber can only be one of a test: then that one listens.
    let _ = tracing::subscriber::set_global_default(Lines(level.filter()));
}

struct Lines(LevelFilter);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.0
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.0)
    }

    fn event(&self, event: &Event<'_>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let metadata = event.metadata();
        let mut line = Line { said: String::new(), rest: String::new() };
        event.record(&mut line);
        let Line { said, rest } = line;
        let line = format!("{} {:5} {}: {said}{rest}\n", show_time(now), metadata.level(), metadata.target());
        // One write, so that lines of several threads stay whole. Nobody may be listening.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    // Spans are not said.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The message of an event, and its other fields.
struct Line {
    said: String,
    rest: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.said, "{value:?}"),
            name => write!(self.rest, " {name}={value:?}"),
        };
    }
}
