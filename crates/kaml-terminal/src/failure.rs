//! How a command ends when it does not end well.
//!
//! Lives here:       the exit codes and the one line on standard error.
//!
//! | code | meaning |
//! |-----:|---------|
//! | 0 | done |
//! | 1 | something failed: the device, a file, the system |
//! | 2 | the command line made no sense |
//! | 3 | the thing requested does not exist |
//! | 4 | the condition of a conditional put or delete does not hold |
//! | 130 | interrupted (Ctrl-C) |

use std::path::Path;
use std::process::ExitCode;

/// Why a command stopped.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something failed.
    #[error("{0}")]
    Failed(String),
    /// The command line parses but makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The thing requested does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The condition of a conditional command does not hold.
    #[error("{0}")]
    Condition(String),
    /// Ctrl-C.
    #[error("interrupted{0}")]
    Interrupted(String),
    /// The reader of the output has gone, so there is no place to report it.
    #[error("output closed")]
    OutputClosed,
}

impl Failure {
    /// Puts what was being done before the error of the system.
    pub fn io(what: impl std::fmt::Display) -> impl Fn(std::io::Error) -> Failure {
        move |error| Failure::Failed(format!("{what}: {error}"))
    }

    /// Writing to standard output failed.
    pub fn output(error: std::io::Error) -> Failure {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Failure::OutputClosed;
        }
        Failure::Failed(format!("standard output: {error}"))
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::OutputClosed => 0,
            Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
            Failure::NotFound(_) => 3,
            Failure::Condition(_) => 4,
            Failure::Interrupted(_) => 130,
        }
    }

    /// Prints it on standard error and returns the exit code.
    pub fn report(&self) -> ExitCode {
        if !matches!(self, Failure::OutputClosed) {
            // If standard error is closed as well, the exit code has to do.
            let line = one_line(&self.to_string());
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}: {line}\n", program()));
        }
        ExitCode::from(self.code())
    }
}

/// Names of files, keys and namespaces may have line breaks in them, and what a terminal obeys.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for c in text.chars() {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

impl From<kaml::Error> for Failure {
    fn from(error: kaml::Error) -> Failure {
        let text = error.to_string();
        use kaml::ErrorClass as E;
        match error.class() {
            E::UnknownNamespace | E::NoSnapshot | E::SnapshotTooOld | E::TooFarBack | E::FellBehind => {
                Failure::NotFound(text)
            }
            E::Exists | E::NotFound => Failure::Condition(text),
            E::BadKey | E::BadName | E::BadLogs | E::BadOptions | E::BadCreateOptions => Failure::Usage(text),
            E::WrongKind | E::KeepsVersions | E::KeepsNoVersions => Failure::Usage(text),
            E::CacheTooSmall | E::BadStoreOptions => Failure::Usage(text),
            E::NamespaceExists | E::TooManyNamespaces | E::ValueTooLarge | E::BatchTooLarge => Failure::Failed(text),
            E::EmptyBatch | E::OutOfRange | E::PartialBlock => Failure::Failed(text),
            E::TooManySnapshots | E::SnapshotsFull | E::Full | E::NoSpace => Failure::Failed(text),
            E::Corrupt | E::MetadataCorrupt | E::NewerVersion | E::NotADevice => Failure::Failed(text),
            E::Unsuitable | E::NotEmpty | E::InUse | E::NoFile | E::NoPermission => Failure::Failed(text),
            E::Io | E::Remote | E::Stopped | E::Closed | E::ReadOnly | E::Busy => Failure::Failed(text),
            E::Cancelled | E::NoResources | E::Internal => Failure::Failed(text),
            E::Deadlock | E::LockTimeout | E::DependencyLost | E::CommitsLost => Failure::Failed(text),
            E::IllegalMove | E::TooManyTransactions => Failure::Failed(text),
        }
    }
}

/// The name that the program was called by.
fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    Path::new(&path).file_name().map_or_else(|| "kaml".into(), |name| name.to_string_lossy().into_owned())
}
