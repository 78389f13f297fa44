//! Transaction control blocks: the states of a transaction, and the array of blocks.
//!
//! Lives here:       the legal moves of paper:KAML Figure 2; which blocks are free; what others see of a transaction.
//! Lives elsewhere:  what a transaction holds (`txn`), what it waits for (`waits`).
//! Implements:       paper:KAML III.D, Figure 2 and Table II.

use super::locks::XcbId;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

/// The state of a transaction (paper:KAML Figure 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XcbState {
    /// Not begun, or freed.
    Idle,
    /// In progress.
    Active,
    /// Its changes are durable.
    Committed,
    /// Its changes are abandoned.
    Aborted,
}

/// What moves a transaction (paper:KAML Table II).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XcbEvent {
    /// TransactionBegin.
    Begin,
    /// TransactionRead, TransactionUpdate, TransactionInsert, and delete.
    Access,
    /// TransactionCommit.
    Commit,
    /// TransactionAbort, or a deadlock.
    Abort,
    /// TransactionFree.
    Free,
}

/// A call that the state of a transaction does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event} is not allowed: the transaction is {from}")]
pub struct IllegalMove {
    /// The state it is in.
    pub from: XcbState,
    /// What was called.
    pub event: XcbEvent,
}

//  Idle ──begin──▶ Active ──commit──▶ Committed ──free──▶ Idle
//                  │   ▲└────abort──▶ Aborted ────free──▶ Idle
//                  └access┘
impl XcbState {
    /// All states.
    pub const ALL: [XcbState; 4] = [XcbState::Idle, XcbState::Active, XcbState::Committed, XcbState::Aborted];

    /// The state after an event.
    pub fn after(self, event: XcbEvent) -> Result<XcbState, IllegalMove> {
        use {XcbEvent::*, XcbState::*};
        match (self, event) {
            (Idle, Begin) => Ok(Active),
            (Active, Access) => Ok(Active),
            (Active, Commit) => Ok(Committed),
            (Active, Abort) => Ok(Aborted),
            (Committed | Aborted, Free) => Ok(Idle),
            (from, event) => Err(IllegalMove { from, event }),
        }
    }
}

impl XcbEvent {
    /// All events.
    pub const ALL: [XcbEvent; 5] =
        [XcbEvent::Begin, XcbEvent::Access, XcbEvent::Commit, XcbEvent::Abort, XcbEvent::Free];
}

impl fmt::Display for XcbState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            XcbState::Idle => "idle",
            XcbState::Active => "active",
            XcbState::Committed => "committed",
            XcbState::Aborted => "aborted",
        })
    }
}

impl fmt::Display for XcbEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            XcbEvent::Begin => "begin",
            XcbEvent::Access => "access",
            XcbEvent::Commit => "commit",
            XcbEvent::Abort => "abort",
            XcbEvent::Free => "free",
        })
    }
}

/// What plain reads and puts need to know of a transaction whose lock they meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// Its private copies are private.
    Private = 0,
    /// They are becoming visible, one after the other.
    Installing = 1,
    /// Not a transaction: unflushed records are being written to the device.
    Cleaning = 2,
}

/// The array of blocks.
pub(super) struct Xcbs {
    phases: Box<[AtomicU8]>,
    free: Mutex<Vec<XcbId>>,
}

impl Xcbs {
    pub(super) fn new(count: u32) -> Xcbs {
        Xcbs { phases: (0..count).map(|_| AtomicU8::new(0)).collect(), free: Mutex::new((0..count).rev().collect()) }
    }

    /// Bytes of memory for each block.
    pub(super) const BLOCK_BYTES: usize = size_of::<AtomicU8>() + size_of::<XcbId>();

    pub(super) fn take(&self) -> Option<XcbId> {
        self.free.lock().expect("no panics under this lock").pop()
    }

    pub(super) fn give_back(&self, id: XcbId) {
        self.set_phase(id, Phase::Private);
        self.free.lock().expect("no panics under this lock").push(id);
    }

    pub(super) fn set_phase(&self, id: XcbId, phase: Phase) {
        self.phases[id as usize].store(phase as u8, Ordering::Release);
    }

    pub(super) fn is(&self, id: XcbId, phase: Phase) -> bool {
        self.phases[id as usize].load(Ordering::Acquire) == phase as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   exactly the moves of Figure 2 are legal.
    /// Method: all states × all events, compared as a printed matrix.
    #[test]
    fn legal_moves_are_those_of_the_paper() {
        let mut matrix = String::new();
        for state in XcbState::ALL {
            let row = XcbEvent::ALL.map(|event| match state.after(event) {
                Ok(after) => format!("{event}->{after}"),
                Err(error) => {
                    assert_eq!((error.from, error.event), (state, event));
                    "-".to_owned()
                }
            });
            matrix += &format!("{state}: {}\n", row.join(" "));
        }
        let stored = "idle: begin->active - - - -\n\
                      active: - access->active commit->committed abort->aborted -\n\
                      committed: - - - - free->idle\n\
                      aborted: - - - - free->idle\n";
        assert_eq!(matrix, stored);
    }
}
