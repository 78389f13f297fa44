//! Housekeeping: page programs, erases, garbage collection, roots, checkpoints.
//!
//! Lives here:       rounds of it, and the thread that makes them, with one queue of operations in flight.
//! Lives elsewhere:  what there is to do (`kaml_device::Core::poll`); loops that make rounds, too (`queue`).
//! Implements:       docs/ARCHITECTURE.md "Execution" (the housekeeping thread).

use crate::NamespaceId;
use crate::driver::{Shared, load_read_images};
use crate::error::Error;
use crate::merging::LowMerge;
use crate::sync::{Instant, JoinHandle, channel, spawn};
use kaml_flash::{Completion, Io, IoId, Queue, Wait};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Operations in flight.
const DEPTH: u32 = 64;
/// How long the thread sleeps when nothing is continuing; a wake ends it.
const IDLE: Duration = Duration::from_secs(10);
/// After this long (to twice as long) without use of a namespace, its index leaves memory.
pub(crate) const INDEX_IDLE: Duration = Duration::from_secs(600);
/// How long it sleeps while something waits for the world below.
const RETRY: Duration = Duration::from_millis(100);

/// What is kept from one round to the next. Operations of a block must be executed in the order in which rounds hand them
/// out; so the thread of a round keeps it locked until they are submitted.
pub(crate) struct Housekeeper {
    began: Instant,
    looked_at: Instant,
    started: Vec<(IoId, Io)>,
    /// Executed operations, for the next round.
    done: Vec<Completion>,
    loader: Option<JoinHandle<()>>,
    merge: LowMerge,
}

/// When the next round is due.
struct Next {
    /// At once.
    again: bool,
    /// After this time, if nothing wakes it before.
    pause: Duration,
}

impl Default for Housekeeper {
    fn default() -> Housekeeper {
        Housekeeper {
            began: Instant::now(),
            looked_at: Instant::now(),
            started: Vec::new(),
            done: Vec::new(),
            loader: None,
            merge: LowMerge::default(),
        }
    }
}

impl Housekeeper {
    /// Hands in what is done, lets the firmware continue, and starts what it emits.
    fn round(&mut self, shared: &Arc<Shared>, mut start: impl FnMut(IoId, Io)) -> Next {
        let index_idle = Duration::from_millis(shared.index_idle_ms.load(Ordering::Relaxed));
        let mut core = shared.lock();
        let mut has_news = !self.done.is_empty();
        for completion in self.done.drain(..) {
            core.complete(completion);
        }
        core.poll(self.began.elapsed().as_nanos() as u64, &mut self.started);
        if let Some(id) = core.wanted_index().filter(|_| self.loader.as_ref().is_none_or(JoinHandle::is_finished)) {
            self.loader = load_for_moves(shared, id);
        } else if core.image_load().is_some() && self.loader.as_ref().is_none_or(JoinHandle::is_finished) {
            self.loader = load_read_images(shared);
        }
        if self.looked_at.elapsed() >= index_idle {
            self.looked_at = Instant::now();
            core.unload_unused();
        }
        let low_merge = core.take_low_merge();
        let pause = match (core.is_idle(), core.is_waiting_for_space() || core.is_waiting_to_grow()) {
            (_, true) => RETRY,
            (true, false) => IDLE,
            (false, false) => RETRY,
        };
        // The thread that would load it may be about to end.
        let pause = if core.image_load().is_some() { pause.min(RETRY) } else { pause };
        let pause = pause.min(index_idle);
        // What has expired is released in time; nobody sees it in any case.
        let pause = core.ms_to_next_expiry().map_or(pause, |ms| pause.min(Duration::from_millis(ms + 1)));
        let progress = shared.progress(&core);
        let again = core.wants_poll();
        // Waiting callers request rounds: if each round woke them again, neither would sleep until something happens.
        has_news |= again || !self.started.is_empty() || core.stopped().is_some();
        drop(core);
        shared.notify_waiters(progress, 0);
        if has_news {
            shared.wake_waiting();
        }
        for (id, io) in self.started.drain(..) {
            start(id, io);
        }
        if let Some((namespace, retention)) = low_merge {
            self.merge.start(shared, namespace, retention);
        }
        Next { again, pause }
    }
}

impl Shared {
    /// Makes a round of housekeeping on the caller's thread, on a medium whose operations are immediate. Returns whether there is
    /// more to do, or somebody else at it.
    pub(crate) fn run_housekeeping(self: &Arc<Shared>) -> bool {
        let Ok(mut housekeeper) = self.housekeeper.try_lock() else { return true };
        let mut done = Vec::new();
        let next = housekeeper.round(self, |id, mut io| {
            let result = self.medium.execute(&mut io);
            done.push(Completion { id, io, result });
        });
        housekeeper.done.append(&mut done);
        next.again || !housekeeper.done.is_empty()
    }
}

pub(crate) fn start(shared: Arc<Shared>) -> Result<JoinHandle<()>, Error> {
    let (ready, wait) = channel();
    let run = move || {
        let mut queue = shared.medium.queue(DEPTH); // queues remain in the thread that makes them
        queue.help();
        shared.background.set(queue.waker()).unwrap_or_else(|_| panic!("a device has one housekeeping thread"));
        let _ = ready.send(());
        run(&shared, queue);
    };
    let thread = spawn("kaml-background", run).map_err(|error| Error::Thread(Arc::new(error)))?;
    let _ = wait.recv(); // who needs housekeeping can wake it from now on
    Ok(thread)
}

fn run(shared: &Arc<Shared>, mut queue: Box<dyn Queue>) {
    let mut done = Vec::new();
    loop {
        let mut housekeeper = shared.housekeeper.lock().expect("rounds do not panic");
        housekeeper.done.append(&mut done);
        let next = housekeeper.round(shared, |id, io| queue.submit(id, io));
        if shared.closing.load(Ordering::Acquire) && queue.in_flight() == 0 {
            let (mut merge, loader) = (std::mem::take(&mut housekeeper.merge), housekeeper.loader.take());
            drop(housekeeper);
            merge.join();
            loader.map(JoinHandle::join);
            return;
        }
        if shared.medium.is_immediate() && queue.in_flight() > 0 {
            queue.reap(Wait::No, &mut done); // before anybody else makes a round
        }
        drop(housekeeper);
        let at_once = next.again || !done.is_empty();
        let wait = if at_once { Wait::No } else { Wait::ForNs(next.pause.as_nanos() as u64) };
        queue.reap(wait, &mut done);
    }
}

/// Loads an index that moving records needs on a thread of its own: page programs must continue meanwhile. None if there is no such
/// thread to be had now.
fn load_for_moves(shared: &Arc<Shared>, id: NamespaceId) -> Option<JoinHandle<()>> {
    let shared = shared.clone();
    let load = move || {
        let loaded = shared.load_index(shared.lock(), id).map(drop);
        let mut core = shared.lock();
        match &loaded {
            Ok(()) => core.forget_wanted_index(),
            Err(error) => {
                tracing::error!(%error, "records cannot be moved without an index that cannot be loaded");
                core.wanted_index_is_lost(error);
            }
        }
        let progress = shared.progress(&core);
        drop(core);
        shared.notify(progress, 0);
        if loaded.is_ok() {
            shared.wake_background(); // else it tries again in its own time
        }
    };
    spawn("kaml-load", load).ok()
}
