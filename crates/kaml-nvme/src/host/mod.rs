//! Our own host, in user space: queues over TCP, and a controller with its admin and I/O queues.
//!
//! Lives here:       errors; which queue is used by whom.
//! Lives elsewhere:  one queue (`queue`), connecting and admin commands (`controller`), who is who (`authentication`), encryption
//!                   (`secure`), commands of the command sets
//!                   (`keyvalue`, `blocks`), on reservations, and of our own (`named`, `ranges`, `versions`, `backup`), ways to a device (`carrier`: TCP;
//!                   `passthrough`: Linux), the device after them
//!                   (`remote`, `remote_commands`, `remote_ranges`, `remote_backing`).
//! Implements:       spec:NVMe-TCP; spec:NVMe-oF; docs/nvme.md.

mod authentication;
mod backup;
mod blocks;
mod carrier;
mod changes;
mod controller;
mod keyvalue;
mod named;
mod passthrough;
mod queue;
mod ranges;
mod remote;
mod remote_backing;
mod remote_commands;
mod remote_ranges;
mod remote_snapshot;
mod reservations;
mod secure;
mod versions;

pub use authentication::{Credentials, NotAuthenticated};
pub use blocks::Blocks;
pub use changes::{RemoteChanges, TimedRecord};
pub use controller::{Controller, HostOptions};
pub use keyvalue::KeyValue;
pub use queue::{Finished, Queue, Ticket, Wait};
pub use remote::{RemoteDevice, RemoteUrl};
pub use remote_snapshot::RemoteSnapshot;
pub use reservations::Reservations;
pub use secure::HostKey;

use crate::wire::command::Command;
use crate::wire::pdu::Fatal;
use crate::wire::status::Status;

/// What executes a command of a namespace.
pub trait Execute {
    /// Executes one command: `data` go to the controller, at most `room` bytes are taken from it. More than the controller
    /// has sent may be returned: the result of a command states how much is its own.
    fn execute(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error>;
}

impl Execute for Queue {
    fn execute(&self, command: Command, data: &[u8], room: usize) -> Result<Finished, Error> {
        Queue::execute(self, command, data, room)
    }
}

/// Why a command got no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The controller's answer.
    #[error("the controller returned: {0}")]
    Status(Status),
    /// The connection cannot be made, or was lost; what was in flight may have been executed or not.
    #[error("connection to the target: {0}")]
    Connection(String),
    /// The connection was lost while a command was in flight that must not take effect twice; it was not sent again.
    #[error(
        "the connection to the target was lost before it acknowledged a command that must not be repeated ({0}); it may have taken \
         effect: look at the record, its history or the namespace before you send it again"
    )]
    OutcomeUnknown(String),
    /// The target sent something that makes no sense.
    #[error("the target broke the protocol: {0}")]
    Protocol(Fatal),
    /// More data than one command may carry.
    #[error("{bytes} bytes in one command; this controller takes at most {max}")]
    TooLong {
        /// What was to be moved.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The target and this host do not trust each other.
    #[error("the target cannot be used: {0}")]
    NotAuthenticated(#[from] NotAuthenticated),
    /// The connection to the target cannot be encrypted, or not with this key.
    #[error("TLS with the target: {0}")]
    NotSecured(#[from] crate::tls::TlsError),
    /// The target cannot do what is requested.
    #[error("the target does not support {0}")]
    Unsupported(&'static str),
    /// The system refused to open a node, or to pass a command through.
    #[error("{0}")]
    Refused(String),
    /// An address that makes no sense.
    #[error("{url:?} is no address of a device: {why}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong.
        why: &'static str,
    },
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::Connection(error.to_string())
    }
}

impl From<Fatal> for Error {
    fn from(fatal: Fatal) -> Error {
        Error::Protocol(fatal)
    }
}

impl Error {
    /// The controller's answer, if it is one.
    pub fn status(&self) -> Option<Status> {
        match self {
            Error::Status(status) => Some(*status),
            _ => None,
        }
    }
}
