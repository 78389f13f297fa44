//! The errors of the public API.
//!
//! Lives here:       what can go wrong with a device as a whole; commands answer with `kaml_device::Error`.

use kaml_flash::{FormatError, OpenError};

/// Why a call failed. Data stored before is untouched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A command was refused or failed.
    #[error(transparent)]
    Command(#[from] kaml_device::Error),
    /// The device could not be created.
    #[error(transparent)]
    Create(#[from] FormatError),
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Other handles are still in use.
    #[error("the device cannot be closed: {0} other handles are in use")]
    HandlesInUse(usize),
    /// A device behind a network cannot be reached, or answered what a local one does not.
    #[error("{0}")]
    Remote(String),
    /// The command was given up on request ([`crate::AsyncQueue::cancel_trims`]); a part of it may have been carried out.
    #[error("the command was cancelled")]
    Cancelled,
    /// The system refused a thread.
    #[error("the housekeeping thread cannot be started: {0}")]
    Thread(std::io::Error),
}

impl From<kaml_flash::MediumError> for Error {
    fn from(error: kaml_flash::MediumError) -> Self {
        Error::Command(error.into())
    }
}

impl From<kaml_device::KeyError> for Error {
    fn from(error: kaml_device::KeyError) -> Self {
        Error::Command(error.into())
    }
}

impl Error {
    /// The command's error, if it is one.
    pub fn command(&self) -> Option<&kaml_device::Error> {
        match self {
            Error::Command(error) => Some(error),
            Error::Create(_) | Error::Open(_) | Error::HandlesInUse(_) => None,
            Error::Remote(_) | Error::Cancelled | Error::Thread(_) => None,
        }
    }
}
