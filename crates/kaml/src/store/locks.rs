//! Record locks: the word in a cache entry, and its queue while somebody waits.
//!
//! Lives here:       the holders of a lock, its waiters, and which is next. Plain data under the lock of its shard.
//! Lives elsewhere:  sleeping and deadlocks (`waits`), which record a lock means (`record`).
//! Implements:       docs/ARCHITECTURE.md "Transactions" (record locks).
//!
//! A lock that one transaction holds fits the word. A second holder, or a waiter, moves it to a queue of the shard;
//! it moves back when that is over. Locks are granted in the order of requests, so nobody starves; an upgrade comes
//! ahead of all that wait, because they wait for its shared lock anyway.

use std::collections::VecDeque;

/// Names a transaction control block.
pub(super) type XcbId = u32;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// With other readers.
    Shared,
    /// Alone.
    Exclusive,
}

impl Mode {
    fn conflicts(self, other: Mode) -> bool {
        self == Mode::Exclusive || other == Mode::Exclusive
    }
}

/// The lock word of an entry: two bits for its state, the others for a transaction or a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockWord(u32);

/// The state in a lock word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockState {
    /// Nobody holds it.
    Free,
    /// One transaction holds it, and nobody waits.
    One(XcbId, Mode),
    /// Index of its queue.
    Queue(u32),
}

const NAME_BITS: u32 = 30;
const NAME_MASK: u32 = (1 << NAME_BITS) - 1;

impl LockWord {
    /// A lock that nobody holds.
    pub(super) const FREE: LockWord = LockWord(0);

    pub(super) fn state(self) -> LockState {
        let name = self.0 & NAME_MASK;
        match self.0 >> NAME_BITS {
            0 => LockState::Free,
            1 => LockState::One(name, Mode::Shared),
            2 => LockState::One(name, Mode::Exclusive),
            _ => LockState::Queue(name),
        }
    }
}

impl From<LockState> for LockWord {
    fn from(state: LockState) -> LockWord {
        let (kind, name) = match state {
            LockState::Free => (0, 0),
            LockState::One(who, Mode::Shared) => (1, who),
            LockState::One(who, Mode::Exclusive) => (2, who),
            LockState::Queue(index) => (3, index),
        };
        assert!(name <= NAME_MASK, "fewer transactions and queues than names");
        LockWord(kind << NAME_BITS | name)
    }
}

/// What requesting a lock came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockOutcome {
    /// It is held now and was not before.
    Granted,
    /// It was held already, in this mode or a stronger one.
    Held,
    /// It was held as shared and is exclusive now.
    Upgraded,
    /// The asker is in the queue.
    Queued,
}

#[derive(Debug)]
struct Waiter {
    who: XcbId,
    mode: Mode,
    upgrade: bool,
}

#[derive(Debug)]
struct Queue {
    mode: Mode,
    holders: Vec<XcbId>,
    waiters: VecDeque<Waiter>,
}

/// The queues of a shard's contended locks.
#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: Vec<Queue>,
    free: Vec<u32>,
}

impl Queues {
    /// Requests a lock; a refused transaction is in the queue.
    pub(super) fn acquire(&mut self, word: &mut LockWord, who: XcbId, mode: Mode) -> LockOutcome {
        match word.state() {
            LockState::Free => {
                *word = LockState::One(who, mode).into();
                LockOutcome::Granted
            }
            LockState::One(owner, held) if owner == who => {
                if held == mode || held == Mode::Exclusive {
                    return LockOutcome::Held;
                }
                *word = LockState::One(who, Mode::Exclusive).into();
                LockOutcome::Upgraded
            }
            LockState::One(owner, held) => {
                let index = self.inflate(word, owner, held);
                self.enqueue(index, who, mode)
            }
            LockState::Queue(index) => self.enqueue(index, who, mode),
        }
    }

    /// Requests a lock without waiting for it.
    pub(super) fn try_acquire(&mut self, word: &mut LockWord, who: XcbId, mode: Mode) -> Option<LockOutcome> {
        let asked = self.acquire(word, who, mode);
        if asked != LockOutcome::Queued {
            return Some(asked);
        }
        let granted = self.cancel(word, who);
        debug_assert!(granted.is_empty(), "the last in a queue holds up nobody");
        None
    }

    fn inflate(&mut self, word: &mut LockWord, owner: XcbId, held: Mode) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.queues.push(Queue { mode: held, holders: Vec::new(), waiters: VecDeque::new() });
            self.queues.len() as u32 - 1
        });
        let queue = &mut self.queues[index as usize];
        queue.mode = held;
        queue.holders.push(owner);
        *word = LockState::Queue(index).into();
        index
    }

    fn enqueue(&mut self, index: u32, who: XcbId, mode: Mode) -> LockOutcome {
        let queue = &mut self.queues[index as usize];
        if queue.holders.contains(&who) {
            if queue.mode == Mode::Exclusive || mode == Mode::Shared {
                return LockOutcome::Held;
            }
            if queue.holders.len() == 1 {
                queue.mode = Mode::Exclusive;
                return LockOutcome::Upgraded;
            }
            let place = queue.waiters.iter().take_while(|waiter| waiter.upgrade).count();
            queue.waiters.insert(place, Waiter { who, mode, upgrade: true });
            return LockOutcome::Queued;
        }
        if queue.waiters.is_empty() && !queue.mode.conflicts(mode) {
            queue.holders.push(who);
            return LockOutcome::Granted;
        }
        queue.waiters.push_back(Waiter { who, mode, upgrade: false });
        LockOutcome::Queued
    }

    /// Releases a lock; returns the new holders.
    pub(super) fn release(&mut self, word: &mut LockWord, who: XcbId) -> Vec<XcbId> {
        match word.state() {
            LockState::Free => panic!("transaction {who} releases a lock that nobody holds"),
            LockState::One(owner, _) => {
                assert_eq!(owner, who, "a lock is released by its holder");
                *word = LockWord::FREE;
                Vec::new()
            }
            LockState::Queue(index) => {
                let queue = &mut self.queues[index as usize];
                let place = queue.holders.iter().position(|holder| *holder == who);
                queue.holders.swap_remove(place.expect("a lock is released by a holder"));
                self.settle(word, index)
            }
        }
    }

    /// Leaves the queue; returns the new holders of the lock. Nothing happens to a lock that was
    /// granted meanwhile: ask [`Queues::holds`].
    pub(super) fn cancel(&mut self, word: &mut LockWord, who: XcbId) -> Vec<XcbId> {
        let LockState::Queue(index) = word.state() else { return Vec::new() };
        self.queues[index as usize].waiters.retain(|waiter| waiter.who != who);
        self.settle(word, index)
    }

    /// Grants what can be granted, and takes the word back when one holder or none is left.
    fn settle(&mut self, word: &mut LockWord, index: u32) -> Vec<XcbId> {
        let queue = &mut self.queues[index as usize];
        let mut granted = Vec::new();
        while let Some(next) = queue.waiters.front() {
            let free = if next.upgrade {
                queue.holders.len() == 1
            } else {
                queue.holders.is_empty() || !queue.mode.conflicts(next.mode)
            };
            if !free {
                break;
            }
            queue.mode = next.mode;
            if !next.upgrade {
                queue.holders.push(next.who);
            }
            granted.push(next.who);
            queue.waiters.pop_front();
        }
        if queue.waiters.is_empty() && queue.holders.len() <= 1 {
            let state = queue.holders.pop().map_or(LockState::Free, |holder| LockState::One(holder, queue.mode));
            *word = state.into();
            self.free.push(index);
        }
        granted
    }

    /// Whether somebody holds a lock, in this mode or a stronger one.
    pub(super) fn holds(&self, word: LockWord, who: XcbId, mode: Mode) -> bool {
        let strong = |held| held == mode || held == Mode::Exclusive;
        match word.state() {
            LockState::Free => false,
            LockState::One(owner, held) => owner == who && strong(held),
            LockState::Queue(index) => {
                let queue = &self.queues[index as usize];
                queue.holders.contains(&who) && strong(queue.mode)
            }
        }
    }

    /// The only holder of a lock.
    pub(super) fn exclusive_owner(&self, word: LockWord) -> Option<XcbId> {
        match word.state() {
            LockState::One(owner, Mode::Exclusive) => Some(owner),
            LockState::Free | LockState::One(_, Mode::Shared) => None,
            LockState::Queue(index) => {
                let queue = &self.queues[index as usize];
                (queue.mode == Mode::Exclusive).then(|| queue.holders[0])
            }
        }
    }

    /// Whom a waiter waits for: holders, and those ahead of it that will not share the lock with it.
    pub(super) fn blockers(&self, word: LockWord, who: XcbId, out: &mut Vec<XcbId>) {
        let LockState::Queue(index) = word.state() else { return };
        let queue = &self.queues[index as usize];
        let Some(place) = queue.waiters.iter().position(|waiter| waiter.who == who) else { return };
        let mode = queue.waiters[place].mode;
        if queue.mode.conflicts(mode) {
            out.extend(queue.holders.iter().filter(|holder| **holder != who));
        }
        let ahead = queue.waiters.iter().take(place).filter(|waiter| waiter.mode.conflicts(mode));
        out.extend(ahead.map(|waiter| waiter.who));
    }
}
