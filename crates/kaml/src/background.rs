//! The housekeeping thread: page programs, erases, garbage collection, roots, checkpoints.
//!
//! Lives here:       one thread, one queue of operations in flight.
//! Lives elsewhere:  what there is to do (`kaml_device::Core::poll`).
//! Implements:       design section 2.

use crate::NamespaceId;
use crate::driver::Shared;
use crate::error::Error;
use crate::merging::LowMerge;
use kaml_flash::{Queue, Wait};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Operations in flight.
const DEPTH: u32 = 64;
/// How long the thread sleeps when nothing is going on; a wake ends it.
const IDLE: Duration = Duration::from_secs(10);
/// Nobody has asked for any record of a namespace for so long (to twice as long): its index leaves memory.
pub(crate) const INDEX_IDLE: Duration = Duration::from_secs(600);
/// How long it sleeps while something waits for the world below.
const RETRY: Duration = Duration::from_millis(100);

pub(crate) fn start(shared: Arc<Shared>) -> Result<JoinHandle<()>, Error> {
    let (ready, wait) = std::sync::mpsc::channel();
    let run = move || {
        let queue = shared.medium.queue(DEPTH); // queues stay in the thread that makes them
        shared.background.set(queue.waker()).unwrap_or_else(|_| panic!("a device has one housekeeping thread"));
        let _ = ready.send(());
        let mut loader = None;
        run(&shared, queue, &mut loader);
        loader.map(JoinHandle::join);
    };
    let thread = std::thread::Builder::new().name("kaml-background".to_owned()).spawn(run).map_err(Error::Thread)?;
    let _ = wait.recv(); // who needs housekeeping can wake it from now on
    Ok(thread)
}

fn run(shared: &Arc<Shared>, mut queue: Box<dyn Queue>, loader: &mut Option<JoinHandle<()>>) {
    let begin = Instant::now();
    let mut started = Vec::new();
    let mut done = Vec::new();
    let mut looked_at = Instant::now();
    let mut merge = LowMerge::default();
    loop {
        let index_idle = Duration::from_millis(shared.index_idle_ms.load(Ordering::Relaxed));
        let mut core = shared.lock();
        for completion in done.drain(..) {
            core.complete(completion);
        }
        core.poll(begin.elapsed().as_nanos() as u64, &mut started);
        if let Some(id) = core.wanted_index().filter(|_| loader.as_ref().is_none_or(JoinHandle::is_finished)) {
            *loader = load_for_collection(shared, id);
        }
        if looked_at.elapsed() >= index_idle {
            looked_at = Instant::now();
            core.unload_unused();
        }
        let low_merge = core.take_low_merge();
        let pause = match (core.is_idle(), core.is_waiting_for_space()) {
            (_, true) => RETRY,
            (true, false) => IDLE,
            (false, false) => RETRY,
        };
        let pause = pause.min(index_idle);
        let news = shared.news(&core);
        let again = core.wants_poll();
        drop(core);
        shared.spread(news, 0);
        for (id, io) in started.drain(..) {
            queue.submit(id, io);
        }
        if let Some((namespace, retention)) = low_merge {
            merge.start(shared, namespace, retention);
        }
        if shared.closing.load(Ordering::Acquire) && queue.in_flight() == 0 {
            merge.join();
            return;
        }
        let wait = if again { Wait::No } else { Wait::ForNs(pause.as_nanos() as u64) };
        queue.reap(wait, &mut done);
    }
}

/// Loads an index that collection needs on a thread of its own: page programs must go on meanwhile. None if there is no such
/// thread to be had now.
fn load_for_collection(shared: &Arc<Shared>, id: NamespaceId) -> Option<JoinHandle<()>> {
    let shared = shared.clone();
    let load = move || {
        let loaded = shared.load_index(shared.lock(), id).map(drop);
        shared.lock().forget_wanted_index();
        match loaded {
            Ok(()) => shared.wake_background(),
            Err(error) => tracing::error!(%error, "collection waits for an index that cannot be loaded"),
        }
    };
    std::thread::Builder::new().name("kaml-load".to_owned()).spawn(load).ok()
}
