//! An event loop's operations on the medium, within reach of the blocking calls of its thread.
//!
//! Lives here:       operations in flight, when ring writes start, finishing them.
//! Lives elsewhere:  what is started and completed (`queue`), which thread sleeps for a frame (`driver`).
//!
//! A ring write holds the Puts of everybody, and only the thread that started it can take its completion. A thread that
//! then sleeps for a later frame in a blocking call would sleep forever, and everybody with it. So every blocking call
//! finishes the ring writes of its own thread before it sleeps, or is about to read for long.

use crate::driver::Shared;
use crate::sync::{Instant, thread_local};
use kaml_device::Core;
use kaml_flash::{Completion, Io, IoId, Queue, Wait};
use std::cell::RefCell;
use std::rc::{Rc, Weak};

/// How long one wait may last.
pub(super) const WAIT_NS: u64 = 1_000_000_000;
/// Reads are distinguished from ring writes by this bit of their id.
pub(super) const READ_BIT: u64 = 1 << 63;

/// Puts in flight from which on they are written in parts.
const ROUND_MIN: usize = 16;

/// What a loop has in flight.
pub(crate) struct Operations {
    pub(super) io: Box<dyn Queue>,
    /// Ring writes among them.
    pub(super) persisting: usize,
    /// When each of these began.
    begun: Vec<(IoId, Instant)>,
    /// Done, and not looked at.
    pub(super) done: Vec<Completion>,
}

/// When a ring write starts while Puts are still coming: the medium works on a part of what is in flight while the processor
/// works on the other half. Without it both would wait for each other in turn.
pub(super) struct Parts {
    /// Ring writes continue next to the caller.
    overlap: bool,
    /// Puts in flight when the caller last came to poll; of one that never waits, the most recently.
    round: usize,
    /// Parts of a round.
    count: usize,
    /// The frame of the Put staged last, and how many of this loop are in it.
    frame: u64,
    staged: usize,
}

impl Parts {
    pub(super) fn new(shared: &Shared) -> Parts {
        Parts { overlap: !shared.medium.is_immediate(), round: 0, count: 1, frame: 0, staged: 0 }
    }

    /// The caller polls. A caller that waits gets its completions together and then puts again, so a half is in flight and a half being
    /// staged. To others they come in pieces, and a third part is on its way.
    pub(super) fn polled(&mut self, puts: usize, waits: bool) {
        (self.round, self.count) = if waits { (puts, 2) } else { (puts.max(self.round), 3) };
    }

    /// A Put has been staged in `frame`. Returns the frame's write, if it is to start now; `persisting` are in flight.
    pub(super) fn staged(&mut self, frame: u64, persisting: usize, core: &mut Core) -> Option<(IoId, Io)> {
        self.staged = if frame == self.frame { self.staged + 1 } else { 1 };
        self.frame = frame;
        if !self.overlap || self.staged * self.count < self.round {
            return None;
        }
        let started = match persisting {
            // Few are one write: two take as long and cost twice.
            0 if self.round >= ROUND_MIN => core.begin_persist(),
            0 => None,
            _ => core.begin_overlapping_persist(self.count),
        };
        started.inspect(|_| self.started())
    }

    /// A ring write starts. A loop that had many Puts in flight may have few later.
    pub(super) fn started(&mut self) {
        self.round -= self.round / 16;
    }
}

type Listed = (*const Shared, Weak<RefCell<Operations>>);

thread_local!(static OF_THREAD: RefCell<Vec<Listed>> = const { RefCell::new(Vec::new()) });

impl Operations {
    /// Those of a new loop of this thread.
    pub(super) fn new(shared: &Shared, io: Box<dyn Queue>) -> Rc<RefCell<Operations>> {
        let operations = Rc::new(RefCell::new(Operations { io, persisting: 0, begun: Vec::new(), done: Vec::new() }));
        // A thread that ends makes no blocking calls during a loop that it has only now begun.
        let _ = OF_THREAD.try_with(|listed| {
            let mut listed = listed.borrow_mut();
            listed.retain(|(_, operations)| operations.strong_count() > 0);
            listed.push((shared, Rc::downgrade(&operations)));
        });
        operations
    }

    pub(super) fn start_persist(&mut self, (id, io): (IoId, Io)) {
        self.persisting += 1;
        self.begun.push((id, Instant::now()));
        self.io.submit(id, io);
    }

    /// A ring write is done; returns when it began.
    pub(super) fn end_persist(&mut self, id: IoId) -> Instant {
        self.persisting -= 1;
        let at = self.begun.iter().position(|(begun, _)| *begun == id).expect("the ring write was started here");
        self.begun.swap_remove(at).1
    }

    /// Takes what is done; waits as `wait` requests only if nothing was taken before.
    pub(super) fn reap(&mut self, wait: Wait) {
        let wait = if self.done.is_empty() { wait } else { Wait::No };
        self.io.reap(wait, &mut self.done);
    }

    /// Waits for the ring writes and takes them, and when they began, out of what is done.
    fn take_persists(&mut self) -> Vec<(Instant, Completion)> {
        let mut taken = Vec::new();
        loop {
            let done = std::mem::take(&mut self.done).into_iter();
            let (reads, persists): (Vec<_>, Vec<_>) = done.partition(|c| c.id & READ_BIT != 0);
            self.done = reads;
            taken.extend(persists.into_iter().map(|persist| (self.end_persist(persist.id), persist)));
            if self.persisting == 0 {
                return taken;
            }
            let before = self.done.len();
            while self.done.len() == before {
                self.io.reap(Wait::ForNs(WAIT_NS), &mut self.done);
            }
        }
    }
}

/// The loops of this thread on a device. A thread that ends has none that it could wait for in vain: those that it still holds
/// finish their own when they are dropped.
fn of_thread(shared: &Shared) -> Vec<Rc<RefCell<Operations>>> {
    let here = OF_THREAD.try_with(|listed| {
        let listed = listed.borrow();
        let here = listed.iter().filter(|(of, _)| std::ptr::eq(*of, shared));
        here.filter_map(|(_, operations)| operations.upgrade()).collect()
    });
    here.unwrap_or_default()
}

/// Whether loops of this thread have ring writes in flight.
pub(crate) fn has_ring_writes(shared: &Shared) -> bool {
    of_thread(shared).iter().any(|operations| operations.borrow().persisting > 0)
}

/// Finishes the ring writes that loops of this thread have in flight. Call it without the core's lock.
pub(crate) fn finish_ring_writes(shared: &Shared) {
    of_thread(shared).iter().for_each(|operations| finish_ring_writes_of(shared, operations));
}

/// As [`finish_ring_writes`], those of one loop.
pub(super) fn finish_ring_writes_of(shared: &Shared, operations: &RefCell<Operations>) {
    let persists = operations.borrow_mut().take_persists();
    let mut core = shared.lock();
    for (begun, completion) in persists {
        shared.commit_latency.record_since(begun);
        core.complete(completion);
    }
    let progress = shared.progress(&core);
    drop(core);
    shared.notify(progress, 0); // the loop itself has commands to complete too
}
