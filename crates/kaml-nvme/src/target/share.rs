//! What one connection has of the memory of all.
//!
//! Lives here:       how much it has, what is reserved for it, whether it may have more.
//! Lives elsewhere:  the memory of all and whose turn it is (`budget`), what counts for a command (`connection`).

use super::budget::Budget;
use super::request::TRANSFER_BYTES_MAX;

/// Data of commands that one connection may have in progress: two of the longest transfers.
pub(super) const CONNECTION_BYTES_MAX: usize = 2 * TRANSFER_BYTES_MAX;
/// What commands of one connection may move, whatever others do: about as much as its receive buffer has.
pub(super) const CONNECTION_BYTES_MIN: usize = 64 << 10;

/// Counts in the budget; ends its turn and releases all when it is dropped.
pub(super) struct Share {
    /// Its number in the budget.
    id: u64,
    budget: Budget,
    /// Bytes of commands that are not completed.
    reserved: usize,
    /// What counts in the budget: those, and returns that are held until they are sent.
    counted: usize,
}

impl Share {
    /// Of a new connection.
    pub(super) fn new(budget: Budget) -> Share {
        Share { id: budget.next_connection(), budget, reserved: 0, counted: 0 }
    }

    /// Bytes of commands that are not completed.
    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    /// A command takes so many bytes until it completes; they count from the next [`Share::count`] on.
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.reserved += bytes;
    }

    /// A command that took so many completes.
    pub(super) fn release(&mut self, bytes: usize) {
        self.reserved -= bytes;
    }

    /// Brings what counts in the budget up to date; so many bytes of answers are held.
    pub(super) fn count(&mut self, held: usize) {
        let now = self.reserved + held;
        self.budget.count(self.counted, now);
        self.counted = now;
    }

    /// Whether a command of this many bytes is kept from beginning by nothing but what others have; so many bytes of answers are
    /// held.
    pub(super) fn waits_for_others(&self, held: usize, more: usize) -> bool {
        !self.is_too_much(held, more) && !self.has_room(held, more)
    }

    /// Whether a command of this many bytes is too much for one connection; so many bytes of answers are held.
    pub(super) fn is_too_much(&self, held: usize, more: usize) -> bool {
        self.reserved + held + more > CONNECTION_BYTES_MAX
    }

    /// Whether a command that takes so many bytes may begin; so many bytes of answers are held.
    pub(super) fn has_room(&self, held: usize, more: usize) -> bool {
        let mine = self.reserved + held;
        more == 0
            || mine + more <= CONNECTION_BYTES_MIN
            || mine == 0 && self.budget.used() == 0
            || mine + more <= CONNECTION_BYTES_MAX && self.budget.has_room(self.id, self.counted, more)
    }

    /// Whether all memory is in use, or kept for whose turn it is.
    pub(super) fn is_scarce(&self) -> bool {
        self.budget.is_exceeded() || self.budget.is_turn_of_another(self.id)
    }

    /// It has waited longest: it is its turn.
    pub(super) fn begin_turn(&self) {
        self.budget.begin_turn(self.id);
    }

    /// It needs its turn no more, if it has it.
    pub(super) fn end_turn(&self) {
        self.budget.end_turn(self.id);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.end_turn();
        self.budget.count(self.counted, 0);
    }
}
