//! What a file medium asks of the kernel, in the order in which it begins and ends: for checkers of crash states.
//!
//! Lives here:       the events, noting them.
//! Lives elsewhere:  the steps that they come from (`plan`), which crash states follow (`kaml-sim`).
//! Implements:       docs/simulation.md "The file medium".

use crate::plan::Need;
use std::sync::{Arc, Mutex};

/// A change of the file, or a sync.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileChange {
    /// Bytes written at an offset; durable when it has ended if `dsync`, else after a later sync.
    Write {
        /// Byte offset in the file.
        at: u64,
        /// The bytes.
        bytes: Arc<[u8]>,
        /// With `RWF_DSYNC`.
        dsync: bool,
    },
    /// A range released, which then reads as zeroes; durable after a later sync.
    Punch {
        /// Byte offset in the file.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// Everything that ended before it began is durable when it has ended.
    Sync,
}

/// Something that happened to the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileEvent {
    /// A change was requested, under a number of its own.
    Begin(u64, FileChange),
    /// The kernel has completed it, with success or not.
    End(u64, bool),
}

/// Notes all changes of one file. Reads are not noted.
#[derive(Debug, Default)]
pub struct FileTrace {
    noted: Mutex<(u64, Vec<FileEvent>)>,
}

impl FileTrace {
    /// The events from number `from` on.
    pub fn events(&self, from: usize) -> Vec<FileEvent> {
        let noted = self.noted.lock().expect("no panic under this lock");
        noted.1.get(from..).unwrap_or_default().to_vec()
    }

    /// Notes what is about to be asked; returns its number if that changes anything.
    pub(crate) fn begin(&self, need: Need, bytes: impl FnOnce() -> Arc<[u8]>) -> Option<u64> {
        let change = match need {
            Need::Write { at, dsync, .. } => FileChange::Write { at, bytes: bytes(), dsync },
            Need::Punch { at, len } => FileChange::Punch { at, len },
            Need::Sync => FileChange::Sync,
            Need::Read { .. } | Need::Turn(_) | Need::Prepare | Need::Finish | Need::Done => return None,
        };
        let (next, events) = &mut *self.noted.lock().expect("no panic under this lock");
        *next += 1;
        events.push(FileEvent::Begin(*next, change));
        Some(*next)
    }

    pub(crate) fn end(&self, number: u64, succeeded: bool) {
        self.noted.lock().expect("no panic under this lock").1.push(FileEvent::End(number, succeeded));
    }
}
