//! Delayed durability: commits return at once and become durable soon after, many of them in one atomic Put.
//!
//! Lives here:       the epoch that commits join, the thread that writes epochs one after the other, what happens when one fails.
//! Lives elsewhere:  locks and private copies (`txn`), tickets (`line`), records that must remain in the cache until then (`evict`).
//! Implements:       epoch-based group commit (Tu et al., SOSP 2013), with the device's atomic Put in place of logs.
//!
//! A transaction joins the open epoch while it holds all of its locks. So a transaction that reads or overwrites what it wrote joins the same
//! epoch or a later one, and an epoch with all before it is a state that some serial order leads to. A record that several
//! transactions of an epoch wrote is stored once.
//!
//! If an epoch cannot be stored, its commits are lost, and with them those of the epoch that was open meanwhile, which may have
//! read from them; the cache forgets what they wrote. If any of them had returned, or had been shown to anybody who did not wait,
//! nothing is committed any more until somebody has acknowledged that. And commits and reads wait until what they need is durable,
//! until an epoch is.

use super::cache::Cache;
use super::line::{CommitOrder, CommitStatus, Lost, Ticket};
use super::record::{LongKey, RecordId};
use super::table::Table;
use crate::sync::{AtomicBool, AtomicU64, Condvar, Instant, Mutex, MutexGuard};
use crate::{Batch, Error};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// Bytes of an epoch at most, if device and cache are large enough.
const EPOCH_BYTES_MAX: usize = 8 << 20;
/// No more than this share of the cache: what is not durable cannot leave it.
const CACHE_SHARE: usize = 8;
/// What a change takes besides its value, in memory and in the commit ring.
const CHANGE_BYTES: usize = 64;

/// What a commit stores of a record.
pub(super) struct Change {
    pub(super) id: RecordId,
    pub(super) long: LongKey,
    pub(super) hash: u64,
    /// The value, or its absence.
    pub(super) value: Option<Arc<[u8]>>,
}

impl Change {
    pub(super) fn bytes(long: &LongKey, value: Option<&[u8]>) -> usize {
        CHANGE_BYTES + long.len() + value.map_or(0, <[u8]>::len)
    }
}

/// Commits that become durable together.
struct Epoch {
    /// 0 as long as nobody has joined.
    ticket: Ticket,
    /// In the order of the commits; later ones of a record win.
    changes: Vec<Change>,
    bytes: usize,
    commits: u64,
    /// Those that returned and are not durable.
    unwaited: u64,
    begun: Instant,
}

impl Epoch {
    fn empty() -> Epoch {
        Epoch { ticket: 0, changes: Vec::new(), bytes: 0, commits: 0, unwaited: 0, begun: Instant::now() }
    }

    fn clear(&mut self) {
        self.changes.clear();
        (self.ticket, self.bytes, self.commits, self.unwaited) = (0, 0, 0, 0);
    }

    /// One Put of what the records are in the end.
    fn batch(&self, newest: &mut Table) -> Batch {
        newest.clear();
        let mut batch = Batch::with_capacity(self.changes.len(), self.bytes);
        for (at, change) in self.changes.iter().enumerate().rev() {
            if newest.find(change.hash, |at| self.changes[at as usize].id == change.id).is_some() {
                continue;
            }
            newest.insert(change.hash, at as u32);
            match &change.value {
                Some(value) => batch.put(change.id.namespace, change.long.of(&change.id), value),
                None => batch.delete(change.id.namespace, change.long.of(&change.id)),
            };
        }
        batch
    }
}

struct State {
    open: Epoch,
    /// The newest epoch's.
    newest: Ticket,
    /// Somebody waits for the open epoch.
    hurry: bool,
    closing: bool,
    /// Commits that had returned or been shown and are lost, until that is acknowledged.
    lost: u64,
    /// Why an epoch was lost at last.
    why: Option<Arc<Error>>,
    /// Commits that were lost since the store was opened.
    lost_count: u64,
}

impl State {
    fn check(&self) -> Result<(), Error> {
        match &self.why {
            Some(why) if self.lost > 0 => Err(Error::CommitsLost { commits: self.lost, why: why.clone() }),
            _ => Ok(()),
        }
    }
}

/// The epochs of a store with delayed durability.
pub(super) struct Epochs {
    delay: Duration,
    bytes_max: usize,
    state: Mutex<State>,
    /// The last epoch was lost: commits and reads wait. Changed under the lock.
    suspect: AtomicBool,
    /// The newest epoch that somebody was shown records of who did not wait for it.
    shown: AtomicU64,
    /// For the thread that writes: there is something to do.
    wake: Condvar,
    /// For commits: the open epoch has been taken.
    room: Condvar,
}

/// What joining came to.
pub(super) struct Joined {
    pub(super) ticket: Ticket,
    /// The commit does not count before it is durable: the caller requested that, or the device failed last time.
    pub(super) must_wait: bool,
}

impl Epochs {
    pub(super) fn new(cache: &Cache, delay: Duration) -> Epochs {
        let device = cache.limits.batch_bytes_max as usize / 2;
        Epochs {
            delay,
            bytes_max: EPOCH_BYTES_MAX.min(device).min(cache.budget / CACHE_SHARE),
            state: Mutex::new(State {
                open: Epoch::empty(),
                newest: 0,
                hurry: false,
                closing: false,
                lost: 0,
                why: None,
                lost_count: 0,
            }),
            suspect: AtomicBool::new(false),
            shown: AtomicU64::new(0),
            wake: Condvar::new(),
            room: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panics under this lock")
    }

    /// Whether changes of this many bytes may join: others are committed by a Put of their own after a flush.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        bytes <= self.bytes_max
    }

    /// Adds a commit whose records are locked, and which has read from those of `tickets`, unless one of these was lost.
    pub(super) fn join(
        &self,
        cache: &Cache,
        tickets: &[Ticket],
        will_wait: bool,
        bytes: usize,
        changes: impl Iterator<Item = Change>,
    ) -> Result<Joined, Error> {
        let mut state = self.lock();
        let is_full = |state: &State| state.open.ticket > 0 && state.open.bytes + bytes > self.bytes_max;
        while is_full(&state) {
            self.hurry(&mut state);
            drop(state);
            cache.before_sleep();
            state = self.lock();
            if !is_full(&state) {
                break;
            }
            state = self.room.wait(state).expect("no panics under this lock");
        }
        state.check()?;
        if tickets.iter().any(|ticket| cache.line.status(*ticket) == CommitStatus::Lost) {
            return Err(Error::DependencyLost);
        }
        if state.open.ticket == 0 {
            state.open.ticket = cache.line.take();
            state.newest = state.open.ticket;
            state.open.begun = Instant::now();
            self.wake.notify_one();
        }
        state.open.changes.extend(changes);
        state.open.bytes += bytes;
        let must_wait = will_wait || self.suspect.load(Ordering::Relaxed);
        state.open.commits += 1;
        state.open.unwaited += u64::from(!must_wait);
        Ok(Joined { ticket: state.open.ticket, must_wait })
    }

    /// Whether records of a commit that was not durable just now may be shown without a wait; if not, their readers have to wait.
    pub(super) fn show(&self, line: &CommitOrder, ticket: Ticket) -> bool {
        if self.suspect.load(Ordering::Relaxed) {
            return false;
        }
        if self.shown.load(Ordering::Relaxed) < ticket {
            self.shown.fetch_max(ticket, Ordering::Relaxed);
        }
        // Either it is seen here that the epoch is lost, or `lose` sees that it was shown.
        fence(Ordering::SeqCst);
        line.status(ticket) != CommitStatus::Lost
    }

    /// Has the open epoch written without delay.
    fn hurry(&self, state: &mut State) {
        if state.open.ticket > 0 && !state.hurry {
            state.hurry = true;
            self.wake.notify_one();
        }
    }

    /// Waits until a commit is durable.
    pub(super) fn wait(&self, cache: &Cache, ticket: Ticket) -> Result<(), Error> {
        self.begin_to_write(ticket);
        cache.wait_for(ticket).map_err(|Lost| self.why_lost())
    }

    /// Has a commit written without delay.
    pub(super) fn begin_to_write(&self, ticket: Ticket) {
        let mut state = self.lock();
        if state.open.ticket == ticket {
            self.hurry(&mut state);
        }
    }

    /// The error of a caller that waited for a lost commit.
    pub(super) fn why_lost(&self) -> Error {
        let Some(why) = self.lock().why.clone() else { return Error::DependencyLost };
        (*why).clone()
    }

    /// Makes every commit durable that has joined, and reports if any were lost.
    pub(super) fn flush(&self, cache: &Cache) -> Result<(), Error> {
        let newest = self.begin_to_write_all();
        if cache.line.status(newest) == CommitStatus::Pending {
            let _ = cache.wait_for(newest); // what was lost is notified next, to those who had it
        }
        self.check()
    }

    /// Has every commit that has joined written without delay; returns the newest one's ticket.
    pub(super) fn begin_to_write_all(&self) -> Ticket {
        let mut state = self.lock();
        self.hurry(&mut state);
        state.newest
    }

    /// Reports if commits were lost, until that is acknowledged.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.lock().check()
    }

    /// continues after commits were lost; returns how many.
    pub(super) fn acknowledge_lost(&self) -> u64 {
        std::mem::take(&mut self.lock().lost)
    }

    /// Commits that were lost since the store was opened.
    pub(super) fn lost_count(&self) -> u64 {
        self.lock().lost_count
    }

    // --- the thread that writes ---------------------------------------------------------------------------------------

    /// Writes epochs until the store is closed.
    pub(super) fn run(&self, cache: &Cache) {
        let (mut epoch, mut newest) = (Epoch::empty(), Table::default());
        while self.take(&mut epoch) {
            match self.write(cache, &mut epoch, &mut newest) {
                Ok(()) => {
                    self.trust();
                    cache.line.end(epoch.ticket, Ok(()));
                }
                Err(why) => self.lose(cache, &epoch, Arc::new(why)),
            }
            epoch.clear();
        }
    }

    /// Waits for an epoch that is due, and opens the next; false if there will be none.
    fn take(&self, epoch: &mut Epoch) -> bool {
        let mut state = self.lock();
        loop {
            let is_empty = state.open.ticket == 0;
            let age = state.open.begun.elapsed();
            state = match (is_empty, state.closing) {
                (true, true) => return false,
                (true, false) => self.wake.wait(state).expect("no panics under this lock"),
                (false, closing) if closing || state.hurry || age >= self.delay => break,
                (false, _) => self.wake.wait_timeout(state, self.delay - age).expect("no panics under this lock").0,
            };
        }
        state.hurry = false;
        std::mem::swap(&mut state.open, epoch);
        drop(state);
        self.room.notify_all();
        true
    }

    fn write(&self, cache: &Cache, epoch: &mut Epoch, newest: &mut Table) -> Result<(), Error> {
        loop {
            let batch = epoch.batch(newest);
            let written = if batch.is_empty() { Ok(()) } else { cache.backing.write(&batch) };
            match written {
                // It was deleted meanwhile, which nobody can determine from having been deleted after the commits.
                Err(Error::UnknownNamespace(gone))
                    if epoch.changes.iter().any(|change| change.id.namespace == gone) =>
                {
                    epoch.changes.retain(|change| change.id.namespace != gone);
                }
                result => return result,
            }
        }
    }

    fn trust(&self) {
        let _state = self.lock();
        self.suspect.store(false, Ordering::Relaxed);
    }

    /// Takes an epoch back that could not be stored, and the open one, which may have read from it.
    fn lose(&self, cache: &Cache, epoch: &Epoch, why: Arc<Error>) {
        let mut state = self.lock();
        let after = std::mem::replace(&mut state.open, Epoch::empty());
        self.suspect.store(true, Ordering::Relaxed);
        // Under the lock: a transaction that read from them and joins later sees that they are lost.
        for epoch in [epoch, &after].into_iter().filter(|epoch| epoch.ticket > 0) {
            cache.line.end(epoch.ticket, Err(Lost));
        }
        fence(Ordering::SeqCst); // see `show`
        let shown = self.shown.load(Ordering::Relaxed);
        let known = |epoch: &Epoch| if shown >= epoch.ticket { epoch.commits } else { epoch.unwaited };
        let lost = known(epoch) + known(&after);
        tracing::warn!(%why, commits = lost, "commits that were not durable yet are lost");
        state.hurry = false;
        state.lost += lost;
        state.lost_count += lost;
        state.why = Some(why);
        drop(state);
        self.room.notify_all();
        for epoch in [epoch, &after] {
            for Change { id, .. } in &epoch.changes {
                cache.forget(&cache.place(id.namespace, id.key), epoch.ticket);
            }
        }
    }

    /// Ends the thread's work after everything is written.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.wake.notify_one();
    }
}
