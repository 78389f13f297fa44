//! What a connection hands out and takes back: commands with their data, answers; how much a command may move.
//!
//! Lives here:       these types, the longest transfers.
//! Lives elsewhere:  how they travel (`connection`).

use crate::wire::command::Command;
use crate::wire::status::Status;
use kaml::Bytes;
use std::ops::Range;

/// The longest transfer of a command, as the power of two of 4 KiB that Identify reports: 16 MiB.
pub(super) const MDTS: u8 = 12;
/// The same in bytes.
pub(super) const TRANSFER_BYTES_MAX: usize = 4096 << MDTS;
/// Data that may travel in a command's capsule, on every queue: what fabrics asks of the admin queue.
pub(super) const CAPSULE_DATA_BYTES: usize = 8192;
/// With a controller for discovery: 64 KiB, of which its log page takes two.
pub(super) const DISCOVERY_MDTS: u8 = 4;

/// A command with its data, ready to be executed. It is to be completed one time, by [`super::connection::Connection::answer`].
#[derive(Debug)]
pub(super) struct Request {
    /// The command.
    pub(super) command: Command,
    /// What the host sent with it; [`super::connection::Connection::data`] has it.
    pub(super) data: Data,
    /// Bytes that count for it until it completes; to be handed back with the answer.
    pub(super) reserved: usize,
}

/// What a host has sent with a command.
#[derive(Debug)]
pub(super) enum Data {
    /// It is still where it was received.
    Here(Range<usize>),
    /// It was gathered.
    Gathered(Vec<u8>),
}

impl Data {
    pub(super) fn len(&self) -> usize {
        match self {
            Data::Here(range) => range.len(),
            Data::Gathered(data) => data.len(),
        }
    }

    /// Keeps so many bytes, from `at` on.
    pub(super) fn keep(&mut self, at: usize, bytes: usize) {
        match self {
            Data::Here(range) => *range = range.start + at..range.start + at + bytes,
            Data::Gathered(data) => {
                data.drain(..at);
                data.truncate(bytes);
            }
        }
    }
}

/// The answer to a command.
#[derive(Debug)]
pub(super) struct Answer {
    /// The command's identifier.
    pub(super) cid: u16,
    /// What it came to.
    pub(super) status: Status,
    /// Dwords 0 and 1 of the completion.
    pub(super) result: u64,
    /// What goes to the host.
    pub(super) data: Bytes,
    /// As in the request.
    pub(super) reserved: usize,
}

/// How much a command may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfers {
    /// As much as a capsule takes: nobody knows yet what the connection is for.
    Capsules,
    /// With a controller for discovery.
    Discovery,
    /// [`TRANSFER_BYTES_MAX`].
    Long,
}

impl Transfers {
    pub(super) fn bytes_max(self) -> usize {
        match self {
            Transfers::Capsules => CAPSULE_DATA_BYTES,
            Transfers::Discovery => 4096 << DISCOVERY_MDTS,
            Transfers::Long => TRANSFER_BYTES_MAX,
        }
    }
}
