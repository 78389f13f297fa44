//! How a command ends when it does not end well.
//!
//! Lives here:       the exit codes and the one line on standard error.
//!
//! | code | meaning |
//! |-----:|---------|
//! | 0 | done |
//! | 1 | something failed: the device, a file, the system |
//! | 2 | the command line made no sense |
//! | 3 | the thing asked for is not there |
//! | 4 | the condition of a conditional put or delete does not hold |
//! | 130 | interrupted (Ctrl-C) |

use kaml_device::Error as Command;
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
    /// The thing asked for is not there.
    #[error("{0}")]
    NotFound(String),
    /// The condition of a conditional command does not hold.
    #[error("{0}")]
    Condition(String),
    /// Ctrl-C.
    #[error("interrupted{0}")]
    Interrupted(String),
    /// Whoever read our output has gone; nobody is left to tell.
    #[error("output closed")]
    OutputClosed,
}

impl Failure {
    /// Puts what was being done before what the system said.
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

    /// Says it on standard error and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if !matches!(self, Failure::OutputClosed) {
            // If standard error is closed as well, the exit code has to do.
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("kaml: {self}\n"));
        }
        ExitCode::from(self.code())
    }
}

impl From<kaml_workloads::Error> for Failure {
    fn from(error: kaml_workloads::Error) -> Failure {
        match error {
            kaml_workloads::Error::Parameters(what) => Failure::Usage(what),
            kaml_workloads::Error::Device(error) => error.into(),
            other => Failure::Failed(other.to_string()),
        }
    }
}

impl From<kaml::Error> for Failure {
    fn from(error: kaml::Error) -> Failure {
        let text = error.to_string();
        match error.command() {
            Some(Command::UnknownNamespace(_) | Command::UnknownNamespaceName(_)) => Failure::NotFound(text),
            Some(Command::Key(_) | Command::BadName { .. } | Command::UnknownLog { .. } | Command::LogTwice(_)) => {
                Failure::Usage(text)
            }
            Some(Command::BadBlockOptions { .. } | Command::HoldsBlocks(_) | Command::BadVersionOptions(_)) => {
                Failure::Usage(text)
            }
            Some(Command::KeepsVersions(_) | Command::KeepsNoVersions(_)) => Failure::Usage(text),
            Some(Command::Versions(kaml::VersionError::NoSnapshot { .. } | kaml::VersionError::TooFarBack { .. })) => {
                Failure::NotFound(text)
            }
            Some(Command::Conflict { .. }) => Failure::Condition(text),
            _ => Failure::Failed(text),
        }
    }
}

/// Whether a conditional command failed for its condition.
pub fn is_conflict(error: &kaml::Error) -> bool {
    matches!(error.command(), Some(Command::Conflict { .. }))
}
