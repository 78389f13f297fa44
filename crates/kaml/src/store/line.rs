//! The line of commits whose locks were released before they were durable.
//!
//! Lives here:       tickets, up to which of them everything is durable, which were lost.
//! Lives elsewhere:  what takes a ticket and what waits for one (`txn`, `cache`).
//! Implements:       docs/ARCHITECTURE.md "Transactions" (early release).
//!
//! A transaction that releases its locks early takes a ticket after its commit's place in the durable order is
//! fixed, and marks its records with it. A reader of such a record returns after that ticket is durable.

use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

/// A commit's number; 0 marks what has been durable all the time.
pub(super) type Ticket = u64;

/// A commit that others could see was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

/// How the commit of a ticket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitStatus {
    Durable,
    Pending,
    Lost,
}

#[derive(Default)]
struct State {
    /// Tickets from `durable + 1` on: whether their commit has come to an end.
    ended: VecDeque<bool>,
    /// Lost commits, which mostly follow each other: a device that failed or is full fails the next one, too.
    lost: Vec<RangeInclusive<Ticket>>,
    waiters: usize,
}

impl State {
    fn lose(&mut self, ticket: Ticket) {
        match self.lost.last_mut() {
            Some(last) if *last.end() + 1 == ticket => *last = *last.start()..=ticket,
            _ => self.lost.push(ticket..=ticket),
        }
    }

    fn is_lost(&self, ticket: Ticket) -> bool {
        self.lost.iter().any(|lost| lost.contains(&ticket))
    }
}

/// Up to where commits are durable.
#[derive(Default)]
pub(super) struct CommitOrder {
    settled: AtomicU64,
    /// Some commit was lost, so an end is not enough to go by. Set before `settled` moves beyond it.
    has_lost: AtomicBool,
    state: Mutex<State>,
    moved: Condvar,
}

impl CommitOrder {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panics under this lock")
    }

    /// A ticket for a commit whose place is fixed.
    pub(super) fn take(&self) -> Ticket {
        let mut state = self.lock();
        state.ended.push_back(false);
        self.settled.load(Ordering::Relaxed) + state.ended.len() as u64
    }

    /// The commit of a ticket is durable, or lost.
    pub(super) fn end(&self, ticket: Ticket, result: Result<(), Lost>) {
        let mut state = self.lock();
        let settled = self.settled.load(Ordering::Relaxed);
        state.ended[(ticket - settled - 1) as usize] = true;
        if result.is_err() {
            state.lose(ticket);
            self.has_lost.store(true, Ordering::Release);
        }
        let done = state.ended.iter().take_while(|ended| **ended).count();
        state.ended.drain(..done);
        self.settled.store(settled + done as u64, Ordering::Release);
        let wake = state.waiters > 0;
        drop(state);
        if wake {
            self.moved.notify_all();
        }
    }

    /// Every commit up to this one has come to an end.
    pub(super) fn settled(&self) -> Ticket {
        self.settled.load(Ordering::Acquire)
    }

    /// How a commit stands just now.
    pub(super) fn status(&self, ticket: Ticket) -> CommitStatus {
        if ticket > self.settled() {
            return CommitStatus::Pending;
        }
        match ticket > 0 && self.has_lost.load(Ordering::Acquire) && self.is_lost(ticket) {
            true => CommitStatus::Lost,
            false => CommitStatus::Durable,
        }
    }

    /// Whether a commit is known to be lost.
    pub(super) fn is_lost(&self, ticket: Ticket) -> bool {
        self.lock().is_lost(ticket)
    }

    /// Waits until a commit has come to its end.
    pub(super) fn wait(&self, ticket: Ticket) -> Result<(), Lost> {
        let mut state = self.lock();
        state.waiters += 1;
        while self.settled.load(Ordering::Relaxed) < ticket {
            state = self.moved.wait(state).expect("no panics under this lock");
        }
        state.waiters -= 1;
        if state.is_lost(ticket) { Err(Lost) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   a ticket counts as durable only when all before it do, and a lost one is reported.
    /// Method: three tickets that end out of order, one of them lost.
    #[test]
    fn tickets_settle_in_order() {
        let line = CommitOrder::default();
        let tickets = [line.take(), line.take(), line.take()];
        assert_eq!(tickets, [1, 2, 3]);
        line.end(2, Err(Lost));
        line.end(3, Ok(()));
        assert_eq!(line.settled(), 0);
        line.end(1, Ok(()));
        assert_eq!(line.settled(), 3);
        assert_eq!(tickets.map(|ticket| line.wait(ticket)), [Ok(()), Err(Lost), Ok(())]);
        let standings = [0, 1, 2, 3, 4].map(|ticket| line.status(ticket));
        use CommitStatus as S;
        assert_eq!(standings, [S::Durable, S::Durable, S::Lost, S::Durable, S::Pending]);
        assert_eq!(line.take(), 4);
    }

    /// Goal:   a commit between two lost ones is not lost.
    /// Method: three tickets that end in order.
    #[test]
    fn who_ends_between_the_lost_is_not() {
        let line = CommitOrder::default();
        let results = [Err(Lost), Ok(()), Err(Lost)];
        results.into_iter().for_each(|result| line.end(line.take(), result));
        assert_eq!([1, 2, 3].map(|ticket| line.wait(ticket)), results);
    }
}
