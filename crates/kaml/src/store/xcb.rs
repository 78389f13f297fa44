//! Transaction control blocks: the states of a transaction, and the array of blocks.
//!
//! Lives here:       the legal moves of paper:KAML Figure 2; which blocks are free; what others see of a transaction.
//! Lives elsewhere:  what a transaction holds (`txn`), what it waits for (`waits`).
//! Implements:       paper:KAML III.D, Figure 2 and Table II.

use super::locks::XcbId;
use crate::sync::{AtomicU8, AtomicU64};
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The state of a transaction (paper:KAML Figure 2).
///
/// # Examples
/// See [`IllegalMove`].
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
///
/// # Examples
/// See [`IllegalMove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XcbEvent {
    /// TransactionBegin.
    Begin,
    /// TransactionRead, TransactionUpdate, TransactionInsert, upsert and delete.
    Access,
    /// TransactionCommit.
    Commit,
    /// TransactionAbort, or a deadlock.
    Abort,
    /// TransactionFree.
    Free,
}

/// A call that the state of a transaction does not allow.
///
/// # Examples
/// ```
/// use kaml::store::{XcbEvent, XcbState};
///
/// let refused = XcbState::Committed.after(XcbEvent::Commit).unwrap_err();
/// assert_eq!(refused.from, XcbState::Committed);
/// ```
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
    ///
    /// # Errors
    /// [`IllegalMove`] if the event is not allowed in this state.
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

/// Blocks in one word; each thread begins its search in a word of its own, so threads do not meet in a cache line.
const WORD_BLOCKS: u32 = u64::BITS;

/// Which blocks of 64 are taken, on a cache line of its own.
#[repr(align(64))]
struct Taken(AtomicU64);

/// The array of blocks.
pub(super) struct Xcbs {
    phases: Box<[AtomicU8]>,
    taken: Box<[Taken]>,
}

/// The word that this thread begins with, among as many as there may be.
fn first_word() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<Option<usize>> = const { Cell::new(None) });
    OWN.with(|own| {
        own.get().unwrap_or_else(|| {
            let word = NEXT.fetch_add(1, Ordering::Relaxed);
            own.set(Some(word));
            word
        })
    })
}

impl Xcbs {
    pub(super) fn new(count: u32) -> Xcbs {
        // Blocks that the last word has too many of are taken forever.
        let beyond = |word: u32| match count - word * WORD_BLOCKS {
            WORD_BLOCKS.. => 0,
            there => u64::MAX << there,
        };
        let taken = (0..count.div_ceil(WORD_BLOCKS)).map(|word| Taken(AtomicU64::new(beyond(word)))).collect();
        Xcbs { phases: (0..count).map(|_| AtomicU8::new(0)).collect(), taken }
    }

    /// Bytes of memory for each block, the words' not quite used lines included.
    pub(super) const BLOCK_BYTES: usize = size_of::<AtomicU8>() + size_of::<Taken>() / WORD_BLOCKS as usize;

    /// A block; none if all are taken, or were in the moments when their words were looked at.
    pub(super) fn take(&self) -> Option<XcbId> {
        let first = first_word();
        (0..self.taken.len()).find_map(|step| {
            let word = (first + step) % self.taken.len();
            let lowest = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
            let before = self.taken[word].0.fetch_update(Ordering::Acquire, Ordering::Relaxed, lowest).ok()?;
            Some(word as u32 * WORD_BLOCKS + before.trailing_ones())
        })
    }

    pub(super) fn give_back(&self, id: XcbId) {
        self.set_phase(id, Phase::Private);
        self.taken[(id / WORD_BLOCKS) as usize].0.fetch_and(!(1 << (id % WORD_BLOCKS)), Ordering::Release);
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

    /// Goal:   every block is given out once, all of them are, and one that is released can be had again.
    /// Method: counts around the size of a word; several threads that take and release all the time.
    #[test]
    fn blocks_are_given_out_once() {
        for count in [1, 63, 64, 65, 200] {
            let xcbs = Xcbs::new(count);
            let mut all: Vec<XcbId> = std::iter::from_fn(|| xcbs.take()).collect();
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
            xcbs.give_back(count - 1);
            assert_eq!((xcbs.take(), xcbs.take()), (Some(count - 1), None));
        }
        let (xcbs, held) = (Xcbs::new(200), [const { AtomicU8::new(0) }; 200]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let taken: Vec<XcbId> = (0..17).filter_map(|_| xcbs.take()).collect();
                        assert_eq!(taken.len(), 17, "many more are free");
                        for id in taken {
                            assert_eq!(held[id as usize].swap(1, Ordering::Relaxed), 0, "block {id} is held twice");
                            held[id as usize].store(0, Ordering::Relaxed);
                            xcbs.give_back(id);
                        }
                    }
                });
            }
        });
    }

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
