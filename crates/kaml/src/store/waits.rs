//! Waiting for record locks, and finding deadlocks among those who wait.
//!
//! Lives here:       the wait of a transaction, its bound, the waits-for graph.
//! Lives elsewhere:  the lock words and queues that the graph is read from (`locks`).
//! Implements:       docs/ARCHITECTURE.md "Transactions" (deadlocks).
//!
//! The graph is stored nowhere. A waiter publishes which lock it waits for; a walker reads holders out of the lock
//! itself, under its shard's lock. Cached owners would be out of date and abort transactions that are not stuck.
//!
//! Why every deadlock is found: an edge of the graph comes into being only when its waiter begins to wait, or leads
//! to a transaction that is running and will look for itself when it waits. So the transaction that begins to wait last in a
//! cycle sees all of it.
//!
//! Why only deadlocks are found: a walk reads its locks one after the other, so a cycle that it saw may never have
//! stood all at once. It is walked a second time in the same order. A transaction that waits through both walks takes and releases no
//! lock between them; so each edge that both walks saw existed at the moment between them. One that no longer exists may
//! hide another that does, after a transaction that the walk came to first; so the walk begins again.

use super::locks::{LockOutcome, LockWord, Mode, Queues, XcbId};
use crate::sync::{Condvar, Instant, Mutex, MutexGuard};
use std::time::Duration;

/// No wait is longer, or the clock might have no name for its end.
const WAIT_MAX: Duration = Duration::from_secs(1 << 30);

/// Where a lock word is: the shard, and the entry in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockAddr {
    pub(super) shard: u32,
    pub(super) slot: u32,
}

/// Where lock words can be reached.
pub(super) trait LockSpace {
    /// Reads or changes a lock under the lock of its shard.
    fn with<R>(&self, at: LockAddr, change: impl FnOnce(&mut LockWord, &mut Queues) -> R) -> R;
}

/// Why a lock was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Those ahead wait for the asker.
    Deadlock,
    /// Nobody gave way in time.
    Timeout,
}

#[derive(Default)]
struct Wait {
    at: Option<LockAddr>,
    /// Counts waits, to distinguish one from the next.
    episode: u64,
    granted: bool,
}

#[derive(Default)]
struct Cell {
    wait: Mutex<Wait>,
    woken: Condvar,
}

/// The waits of all transactions.
pub(super) struct Waits {
    cells: Box<[Cell]>,
    /// One walk at a time, so of two that close a cycle together only one gives way.
    detector: Mutex<()>,
}

/// One edge of a cycle: the waiter, its episode, where it waits, and for whom.
struct Edge {
    who: XcbId,
    at: LockAddr,
    episode: u64,
    blocker: XcbId,
}

impl Waits {
    pub(super) fn new(count: usize) -> Waits {
        Waits { cells: (0..count).map(|_| Cell::default()).collect(), detector: Mutex::new(()) }
    }

    /// Bytes of memory for each transaction.
    pub(super) const CELL_BYTES: usize = size_of::<Cell>();

    /// Requests a lock and publishes the wait, if there must be one. Call under the lock of the shard; after
    /// [`LockOutcome::Queued`] leave it and call [`Waits::wait`].
    pub(super) fn ask(
        &self,
        word: &mut LockWord,
        queues: &mut Queues,
        at: LockAddr,
        who: XcbId,
        mode: Mode,
    ) -> LockOutcome {
        let asked = queues.acquire(word, who, mode);
        if asked == LockOutcome::Queued {
            let mut wait = self.lock(who);
            wait.at = Some(at);
            wait.episode += 1;
            wait.granted = false;
        }
        asked
    }

    /// Notifies a waiter that it holds the lock. Call under the lock of the shard, before [`Waits::wake`].
    pub(super) fn grant(&self, granted: &[XcbId]) {
        for who in granted {
            let mut wait = self.lock(*who);
            wait.at = None;
            wait.granted = true;
        }
    }

    /// Wakes those that were granted a lock; call outside the lock of the shard.
    pub(super) fn wake(&self, granted: &[XcbId]) {
        granted.iter().for_each(|who| self.cells[*who as usize].woken.notify_one());
    }

    /// Waits for a lock that was requested.
    pub(super) fn wait(
        &self,
        space: &impl LockSpace,
        at: LockAddr,
        who: XcbId,
        mode: Mode,
        timeout: Duration,
    ) -> Result<(), Refused> {
        if self.is_deadlocked(space, who) {
            return self.give_up(space, at, who, mode, Refused::Deadlock);
        }
        let end = Instant::now() + timeout.min(WAIT_MAX);
        let mut wait = self.lock(who);
        while !wait.granted {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(wait);
                return self.give_up(space, at, who, mode, Refused::Timeout);
            }
            wait = self.cells[who as usize].woken.wait_timeout(wait, left).expect("no panics under this lock").0;
        }
        Ok(())
    }

    /// Leaves a queue, unless the lock was granted just now.
    fn give_up(
        &self,
        space: &impl LockSpace,
        at: LockAddr,
        who: XcbId,
        mode: Mode,
        why: Refused,
    ) -> Result<(), Refused> {
        let (held, granted) = space.with(at, |word, queues| {
            if queues.holds(*word, who, mode) {
                return (true, Vec::new());
            }
            let granted = queues.cancel(word, who);
            self.lock(who).at = None;
            self.grant(&granted);
            (false, granted)
        });
        self.wake(&granted);
        if held { Ok(()) } else { Err(why) }
    }

    /// Whether somebody who waits is waited for by those it waits for. Only one walk runs at a time, and a victim's
    /// wait is over before the next begins.
    fn is_deadlocked(&self, space: &impl LockSpace, who: XcbId) -> bool {
        let _one = self.detector.lock().expect("no panics under this lock");
        // Ends: a thread that changes the graph and waits again looks for a deadlock too, and remains there until this is over.
        while let Some(cycle) = self.find_cycle(space, who) {
            if cycle.iter().all(|edge| self.still_stands(space, edge)) {
                self.lock(who).at = None;
                return true;
            }
        }
        false
    }

    /// The edges of a cycle through `who`, its own first.
    fn find_cycle(&self, space: &impl LockSpace, who: XcbId) -> Option<Vec<Edge>> {
        let mut seen: Vec<(XcbId, Option<usize>)> = vec![(who, None)];
        let mut edges: Vec<(Edge, usize)> = Vec::new();
        let mut blockers = Vec::new();
        let mut next = 0;
        while next < seen.len() {
            let node = seen[next].0;
            let Some((at, episode)) = self.waiting_at(node) else {
                next += 1;
                continue;
            };
            blockers.clear();
            space.with(at, |word, queues| queues.blockers(*word, node, &mut blockers));
            for blocker in &blockers {
                let edge = Edge { who: node, at, episode, blocker: *blocker };
                if *blocker == who {
                    return Some(path(edge, next, &seen, edges));
                }
                if seen.iter().all(|(other, _)| other != blocker) {
                    edges.push((edge, next));
                    seen.push((*blocker, Some(edges.len() - 1)));
                }
            }
            next += 1;
        }
        None
    }

    fn still_stands(&self, space: &impl LockSpace, edge: &Edge) -> bool {
        let mut blockers = Vec::new();
        space.with(edge.at, |word, queues| queues.blockers(*word, edge.who, &mut blockers));
        blockers.contains(&edge.blocker) && self.waiting_at(edge.who) == Some((edge.at, edge.episode))
    }

    fn waiting_at(&self, who: XcbId) -> Option<(LockAddr, u64)> {
        let wait = self.lock(who);
        wait.at.map(|at| (at, wait.episode))
    }

    fn lock(&self, who: XcbId) -> MutexGuard<'_, Wait> {
        self.cells[who as usize].wait.lock().expect("no panics under this lock")
    }
}

/// The way from the first node to the edge that closes the cycle.
fn path(last: Edge, from: usize, seen: &[(XcbId, Option<usize>)], edges: Vec<(Edge, usize)>) -> Vec<Edge> {
    let mut edges: Vec<_> = edges.into_iter().map(Some).collect();
    let mut cycle = vec![last];
    let mut node = from;
    while let Some(edge) = seen[node].1 {
        let (edge, from) = edges[edge].take().expect("a way passes an edge once");
        cycle.push(edge);
        node = from;
    }
    cycle.reverse();
    cycle
}
