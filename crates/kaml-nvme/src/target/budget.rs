//! Memory for data of all connections of a target.
//!
//! Lives here:       how much is in use, also by lists of keys, which connection may have more, whose turn it is.
//! Lives elsewhere:  what counts for a command, what one connection may have (`connection`), which one has waited for long (`reactor`).
//! May be called by: connections, the reactor that drives them, and the device's side (`engine`).

use super::share::CONNECTION_BYTES_MIN;
use crate::transport::framer::INBOX_BYTES;
use std::cell::Cell;
use std::rc::Rc;

/// What one connection has no more of is not counted as long: its reserve, and what came in its receive buffer before
/// anybody could have it wait. Short commands come without end, and would keep those out that are as long as all the memory.
const SHORT_BYTES_MAX: usize = CONNECTION_BYTES_MIN + INBOX_BYTES;
/// What others may have above that when a command begins whose turn it is.
const LONG_BYTES_MIN: usize = 1 << 20;

/// Spare memory that reads may take whatever commands hold, and how many such parts of all memory at most, so long commands
/// find room next to them.
const SPARE_BYTES_MIN: usize = 4 << 20;
const SPARE_PARTS: usize = 4;

/// Next to all memory, lists of keys take no more than such a part of it, but for the last list of each controller.
const LISTS_PARTS: usize = 8;

/// See the module.
#[derive(Clone)]
pub(super) struct Budget {
    used: Rc<Cell<usize>>,
    /// What of that connections have above [`SHORT_BYTES_MAX`] each, and all that is for hosts that have gone.
    long: Rc<Cell<usize>>,
    /// What reads of values take that are longer than what their hosts have room for.
    spare: Rc<Cell<usize>>,
    /// What lists of keys take.
    lists: Rc<Cell<usize>>,
    /// The connection whose turn it is, because it has waited for long: others begin nothing long until it could.
    turn: Rc<Cell<Option<u64>>>,
    /// Connections so far, by whose numbers they are distinguished.
    connections: Rc<Cell<u64>>,
    max: usize,
}

impl Budget {
    /// This many bytes.
    pub(super) fn new(max: usize) -> Budget {
        let (used, long, spare, lists) = (Rc::default(), Rc::default(), Rc::default(), Rc::default());
        Budget { used, long, spare, lists, turn: Rc::default(), connections: Rc::default(), max }
    }

    /// Bytes in use for what commands move.
    pub(super) fn used(&self) -> usize {
        self.used.get()
    }

    /// Whether more is in use than there is.
    pub(super) fn is_exceeded(&self) -> bool {
        self.used() > self.max
    }

    /// A connection that had so many bytes in use has so many now.
    pub(super) fn count(&self, before: usize, now: usize) {
        self.used.set(self.used.get() + now - before);
        self.long.set(self.long.get() + long_bytes(now) - long_bytes(before));
    }

    /// This many bytes more are in use for commands of a connection that has gone, which continue.
    pub(super) fn take(&self, bytes: usize) {
        self.used.set(self.used.get() + bytes);
        self.long.set(self.long.get() + bytes);
    }

    /// So many of these are free again.
    pub(super) fn give_back(&self, bytes: usize) {
        self.used.set(self.used.get() - bytes);
        self.long.set(self.long.get() - bytes);
    }

    /// Bytes that reads may take beyond what their hosts have room for.
    pub(super) fn spare_max(&self) -> usize {
        self.max.saturating_sub(self.used()).min(self.max / SPARE_PARTS).max(SPARE_BYTES_MIN)
    }

    /// What they take now.
    pub(super) fn set_spare(&self, bytes: usize) {
        self.spare.set(bytes);
    }

    /// Whether there are lists of keys that should go.
    pub(super) fn has_too_many_lists(&self) -> bool {
        self.lists.get() > self.max / LISTS_PARTS
    }

    /// A list of keys takes so many bytes.
    pub(super) fn take_list(&self, bytes: usize) {
        self.lists.set(self.lists.get() + bytes);
    }

    /// A list of this many bytes has gone.
    pub(super) fn give_list_back(&self, bytes: usize) {
        self.lists.set(self.lists.get() - bytes);
    }

    /// Whether connection `id`, for which `mine` count, may have more.
    pub(super) fn has_room(&self, id: u64, mine: usize, more: usize) -> bool {
        match self.turn.get() {
            None => self.used() + self.spare.get() + more <= self.max,
            Some(turn) if turn == id => {
                self.used() + more <= self.max || self.long.get() - long_bytes(mine) <= LONG_BYTES_MIN
            }
            Some(_) => false,
        }
    }

    /// Whether nobody has the turn.
    pub(super) fn is_nobodys_turn(&self) -> bool {
        self.turn.get().is_none()
    }

    /// Whether a connection other than `id` has the turn.
    pub(super) fn is_turn_of_another(&self, id: u64) -> bool {
        self.turn.get().is_some_and(|turn| turn != id)
    }

    /// A number for a new connection.
    pub(super) fn next_connection(&self) -> u64 {
        self.connections.set(self.connections.get() + 1);
        self.connections.get()
    }

    /// Connection `id` has waited for long.
    pub(super) fn begin_turn(&self, id: u64) {
        self.turn.set(Some(id));
    }

    /// It needs its turn no more, if it has it.
    pub(super) fn end_turn(&self, id: u64) {
        if self.turn.get() == Some(id) {
            self.turn.set(None);
        }
    }
}

/// What of a connection's bytes others wait for.
fn long_bytes(bytes: usize) -> usize {
    bytes.saturating_sub(SHORT_BYTES_MAX)
}
