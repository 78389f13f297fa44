//! Driver (i): blocked callers run the firmware. A caller that has something to commit and finds a free place writes
//! everybody's frame; the others sleep until their frame is durable.
//!
//! Lives here:       the lock around the core, ring writes, waiting.
//! Lives elsewhere:  large values (`large`), Gets (`reads`), who sleeps and a caller that is woken (`handover`), everything but ring writes and Gets (`background`), event loops
//!                   (`queue`).
//! Implements:       docs/ARCHITECTURE.md "Execution".

mod by_image;
mod large;
mod merging;
mod packing;
mod reads;

pub(crate) use by_image::load_read_images;
pub(crate) use reads::Lookup;

use crate::NamespaceId;
use crate::background::Housekeeper;
use crate::changes::NamespaceList;
use crate::error::Error;
use crate::gather::ReadQueues;
use crate::handover::{Caller, Frames, Handover, Progress};
use crate::latency::Latency;
use crate::queue::{finish_ring_writes, has_ring_writes};
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Instant, Mutex, MutexGuard};
use kaml_device::{Core, Error as CommandError, FullKey, KeyRange, KeyRef, Op, Reader};
use kaml_flash::{Completion, Geometry, Io, IoId, Medium, Wake};
use large::ImagePool;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Waits for room are repeated after this, in case the medium below has changed without a notice.
const PROGRESS_WAIT: Duration = Duration::from_millis(50);

/// A ring write that takes longer is worth giving up the processor for, so there are fewer. One without a sync is not:
/// a thread that yields on a busy machine can wait for milliseconds.
const PAUSE_GAINS_NS: u64 = 30_000;

/// Ring writes that take no time but the caller's own are timed so seldom, because the clock costs a tenth of them; one then counts for all.
const TIMED_ONE_IN: u64 = 16;

/// What changes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A program that uses the device.
    Caller,
    /// The store that is open over it.
    Store,
}

/// What all handles, the housekeeping thread and the event loops of a device share.
pub(crate) struct Shared {
    core: Mutex<Core>,
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) reader: Reader,
    pub(crate) geometry: Geometry,
    handover: Handover,
    /// Ring writes take no time but the caller's own.
    persists_at_once: bool,
    /// How long a caller's last ring write took.
    ring_write_ns: AtomicU64,
    /// Something that a caller may have waited for has happened: room, a placed value, a root.
    progress: Condvar,
    progress_waiters: AtomicUsize,
    pub(crate) background: OnceLock<Arc<dyn Wake>>,
    /// Wakers of event loops with uncommitted commands.
    loops: Mutex<Vec<(u64, Arc<dyn Wake>)>>,
    has_loops: AtomicBool,
    pub(crate) closing: AtomicBool,
    /// After how long an index that nobody uses leaves memory.
    pub(crate) index_idle_ms: AtomicU64,
    pub(crate) put_latency: Latency,
    pub(crate) get_latency: Latency,
    /// Of ring writes.
    pub(crate) commit_latency: Latency,
    pub(crate) read_count: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    /// What readers of changes know of namespaces.
    pub(crate) namespaces_of_changes: NamespaceList,
    images: ImagePool,
    pub(crate) read_queues: ReadQueues,
    /// A merge of versions continues: there may be one.
    pub(crate) is_merging: AtomicBool,
    /// Held by a caller that makes a round of housekeeping.
    pub(crate) housekeeper: Mutex<Housekeeper>,
    /// Held by the one thread that loads an index.
    loading: Mutex<()>,
    /// A store is open, and alone changes records. Changed under the core's lock.
    is_taken_over: AtomicBool,
    /// The device is about to be closed: no merge because there is no space begins, and the one that continues ends soon.
    pub(crate) ends_merges: AtomicBool,
}

impl Shared {
    pub(crate) fn new(core: Core, medium: Arc<dyn Medium>) -> Shared {
        Shared {
            reader: core.reader(),
            geometry: core.geometry().clone(),
            handover: Handover::new(&core),
            ring_write_ns: AtomicU64::new(0),
            core: Mutex::new(core),
            persists_at_once: medium.persists_at_once(),
            medium,
            progress: Condvar::new(),
            progress_waiters: AtomicUsize::new(0),
            background: OnceLock::new(),
            loops: Mutex::new(Vec::new()),
            has_loops: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            index_idle_ms: AtomicU64::new(crate::background::INDEX_IDLE.as_millis() as u64),
            put_latency: Latency::new(),
            get_latency: Latency::new(),
            commit_latency: Latency::new(),
            read_count: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            namespaces_of_changes: NamespaceList::default(),
            images: ImagePool::default(),
            read_queues: ReadQueues::default(),
            is_merging: AtomicBool::new(false),
            housekeeper: Mutex::default(),
            loading: Mutex::new(()),
            is_taken_over: AtomicBool::new(false),
            ends_merges: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("the core does not panic")
    }

    // --- who changes records ----------------------------------------------------------------------------------------

    /// From now on a store alone changes records. What others have begun is committed when this returns.
    pub(crate) fn take_over(&self) -> Result<(), Error> {
        let core = self.lock();
        if self.is_taken_over.swap(true, Ordering::Relaxed) {
            return Err(Error::StoreIsOpen);
        }
        // Of a device that has stopped nothing changes any more.
        let last = core.staging_frame() - u64::from(!core.has_staged());
        if core.committed() <= last && core.stopped().is_none() {
            let _ = self.wait_committed(core, last);
        }
        Ok(())
    }

    /// The store is closed: anybody changes records again.
    pub(crate) fn give_back(&self) {
        self.is_taken_over.store(false, Ordering::Relaxed);
    }

    /// Refuses changes of records that go past an open store. Call under the core's lock.
    pub(crate) fn admit(&self, by: By) -> Result<(), Error> {
        match by == By::Caller && self.is_taken_over.load(Ordering::Relaxed) {
            true => Err(Error::StoreIsOpen),
            false => Ok(()),
        }
    }

    // --- Put ------------------------------------------------------------------------------------------------------

    /// Executes an atomic Put and waits until it is durable.
    pub(crate) fn write(&self, by: By, ops: &mut [Op<'_>]) -> Result<(), Error> {
        let start = Instant::now();
        match self.pack(ops) {
            Some(packed) => self.write_stored(by, &mut packed.ops(ops), start),
            None => self.write_stored(by, ops, start),
        }
    }

    /// As [`Shared::write`], of values as they are to be stored.
    pub(crate) fn write_stored(&self, by: By, ops: &mut [Op<'_>], start: Instant) -> Result<(), Error> {
        let placed = self.place_large(by, ops)?;
        let written = self.stage(by, ops).and_then(|(core, frame)| self.wait_committed(core, frame));
        self.finish(placed, written.is_ok());
        self.put_latency.record_since(start);
        written
    }

    /// Deletes the keys of a range in one atomic step and waits until that is durable; how many there were.
    pub(crate) fn delete_range(&self, by: By, namespace: NamespaceId, range: &KeyRange) -> Result<u64, Error> {
        let start = Instant::now();
        let (core, (frame, count)) = self.visit(by, |core| core.stage_delete_range(namespace, range))?;
        let deleted = self.wait_committed(core, frame);
        self.put_latency.record_since(start);
        deleted.map(|()| count)
    }

    /// Fixes the place of an atomic Put in the order of commits; returns the frame that carries it.
    pub(crate) fn submit(&self, by: By, ops: &mut [Op<'_>]) -> Result<u64, Error> {
        match self.pack(ops) {
            Some(packed) => self.submit_stored(by, &mut packed.ops(ops)),
            None => self.submit_stored(by, ops),
        }
    }

    fn submit_stored(&self, by: By, ops: &mut [Op<'_>]) -> Result<u64, Error> {
        let placed = self.place_large(by, ops)?;
        let staged = self.stage(by, ops).map(|(_, frame)| frame);
        self.finish(placed, staged.is_ok());
        staged
    }

    /// Stages a Put, waiting for room if there is none just now.
    fn stage(&self, by: By, ops: &[Op<'_>]) -> Result<(MutexGuard<'_, Core>, u64), Error> {
        self.prefetch(ops);
        self.visit(by, |core| core.stage(ops))
    }

    /// An error of a command, once what it was decided by is durable. A namespace that is unknown because it is being deleted can be
    /// back after a crash, until a root is written without it.
    pub(crate) fn refused(&self, error: CommandError) -> Error {
        match error {
            CommandError::UnknownNamespace(_) | CommandError::NamespaceExists(_) => {
                self.refused_under(self.lock(), error)
            }
            error => error.into(),
        }
    }

    /// As [`Shared::refused`], where the core is locked already.
    pub(crate) fn refused_under(&self, mut core: MutexGuard<'_, Core>, error: CommandError) -> Error {
        if !core.waits_for_root(&error) {
            return error.into();
        }
        // A caller that has closed the device writes no more roots.
        if let Err(why) = core.writable() {
            return why.into();
        }
        let request = core.request_root(false);
        self.wait_root(core, request).err().unwrap_or_else(|| error.into())
    }

    /// Loads an index if it is not in memory, and removes from it what has expired. Others continue with other namespaces meanwhile.
    pub(crate) fn load_index<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        id: NamespaceId,
    ) -> Result<MutexGuard<'a, Core>, Error> {
        match self.reader.is_loaded(id) {
            Ok(true) => {
                core.expire_due(id);
                return Ok(core); // it is kept as long as the core is locked
            }
            Ok(false) => {}
            Err(error) => return Err(self.refused_under(core, error)),
        }
        drop(core);
        finish_ring_writes(self);
        let _alone = self.loading.lock().expect("no panics under this lock");
        let mut core = self.lock();
        loop {
            match core.begin_load(id) {
                Ok(None) => {
                    core.expire_due(id);
                    return Ok(core);
                }
                Ok(Some(load)) => {
                    drop(core);
                    let loaded = load.read(&*self.medium);
                    core = self.lock();
                    // What cannot be read of a namespace that was deleted meanwhile is not damaged.
                    if let Err(error) = self.reader.is_loaded(id) {
                        return Err(self.refused_under(core, error));
                    }
                    core.finish_load(loaded?);
                }
                Err(error) => return Err(self.refused_under(core, error)),
            }
        }
    }

    /// A key as the firmware works with it.
    #[inline]
    pub(crate) fn key<'a>(&self, key: KeyRef<'a>) -> Result<FullKey<'a>, Error> {
        Ok(self.reader.key(key)?)
    }

    /// Memory is slow, and the core's lock is short: what a Put needs of the index comes meanwhile.
    pub(crate) fn prefetch(&self, ops: &[Op<'_>]) {
        self.reader.prefetch(ops.iter().map(|op| (op.namespace, &op.key)));
    }

    /// Writes the staged frame if that can be done now; else waits for the housekeeping thread.
    pub(crate) fn make_room<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        match core.begin_persist() {
            Some(write) => {
                self.persist(core, write);
                self.lock()
            }
            None => {
                if !core.is_waiting_for_space() {
                    self.wake_background(); // else it tries again in its own time
                }
                self.wait_progress(core)
            }
        }
    }

    /// Sleeps until something has happened that a caller may have waited for.
    pub(crate) fn wait_progress<'a>(&'a self, core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        if has_ring_writes(self) {
            drop(core);
            finish_ring_writes(self);
            return self.lock();
        }
        self.progress_waiters.fetch_add(1, Ordering::Relaxed);
        let (core, _) = self.progress.wait_timeout(core, PROGRESS_WAIT).expect("the core does not panic");
        self.progress_waiters.fetch_sub(1, Ordering::Relaxed);
        core
    }

    pub(crate) fn wait_committed<'a>(&'a self, core: MutexGuard<'a, Core>, frame: u64) -> Result<(), Error> {
        Ok(self.handover.wait(self, core, frame)?)
    }

    fn end_persist(&self, mut core: MutexGuard<'_, Core>, completion: Completion) {
        core.complete(completion);
        let progress = self.progress(&core);
        drop(core);
        self.notify(progress, 0);
    }

    /// What has been committed since the last notice; call under the lock, then [`Shared::spread`] outside it.
    pub(crate) fn progress(&self, core: &Core) -> Progress {
        self.handover.progress(core)
    }

    /// Wakes the waiters that the progress concerns, except the event loop that brings it (0: none), and callers that wait for any event.
    pub(crate) fn notify(&self, progress: Progress, bringer: u64) {
        self.notify_waiters(progress, bringer);
        self.wake_waiting();
    }

    /// Wakes the waiters that the progress concerns, except the event loop that brings it.
    pub(crate) fn notify_waiters(&self, progress: Progress, bringer: u64) {
        self.handover.notify_waiters(&progress);
        if self.has_loops.load(Ordering::Relaxed) && progress.concern_anybody() {
            let loops = self.loops.lock().expect("no panics under this lock");
            loops.iter().filter(|(id, _)| *id != bringer).for_each(|(_, wake)| wake.wake());
        }
    }

    /// Wakes threads that sleep until something has happened.
    pub(crate) fn wake_waiting(&self) {
        if self.progress_waiters.load(Ordering::Relaxed) > 0 {
            self.progress.notify_all();
        }
    }

    pub(crate) fn wake_background(&self) {
        if let Some(wake) = self.background.get() {
            wake.wake();
        }
    }

    pub(crate) fn add_loop(&self, id: u64, wake: Arc<dyn Wake>) {
        let mut loops = self.loops.lock().expect("no panics under this lock");
        loops.push((id, wake));
        self.has_loops.store(true, Ordering::Relaxed);
    }

    pub(crate) fn remove_loop(&self, id: u64) {
        let mut loops = self.loops.lock().expect("no panics under this lock");
        loops.retain(|(other, _)| *other != id);
        self.has_loops.store(!loops.is_empty(), Ordering::Relaxed);
    }

    // --- roots ------------------------------------------------------------------------------------------------------------

    /// Waits for a root that was requested; gives up if programs that it waits for are tried again, and there is still no space
    /// below.
    pub(crate) fn wait_root<'a>(&'a self, mut core: MutexGuard<'a, Core>, request: u64) -> Result<(), Error> {
        self.wake_background();
        let no_space_count = core.no_space_count();
        while core.roots_done() < request {
            // Closing has failed, and nobody makes roots any more.
            if self.closing.load(Ordering::Acquire) {
                return Err(CommandError::Closed.into());
            }
            core = self.wait_for_programs(core, no_space_count)?;
        }
        Ok(())
    }

    /// Waits for what comes with page programs, unless the device takes no changes, or they found no space below again since there
    /// had been `no_space_count` that did not.
    pub(crate) fn wait_for_programs<'a>(
        &'a self,
        core: MutexGuard<'a, Core>,
        no_space_count: u64,
    ) -> Result<MutexGuard<'a, Core>, Error> {
        match programs_wait_for_ever(&core, no_space_count) {
            Some(error) => Err(error),
            None => Ok(self.make_room(core)),
        }
    }
}

/// Why no root will come: the device has stopped, or is only read. Of one that is being closed the last one comes.
pub(crate) fn takes_no_changes(core: &Core) -> Option<Error> {
    core.writable().err().filter(|error| *error != CommandError::Closed).map(Error::from)
}

/// Why a caller that waits for page programs should not continue: the device takes no changes, or they found no space below again since it
/// began, when so many had.
fn programs_wait_for_ever(core: &Core, no_space_count: u64) -> Option<Error> {
    let no_space = || core.no_space_below().filter(|_| core.no_space_count() > no_space_count).map(Error::from);
    takes_no_changes(core).or_else(no_space)
}

impl Caller<Core> for Shared {
    fn lock(&self) -> MutexGuard<'_, Core> {
        Shared::lock(self)
    }

    /// One that takes time is executed outside the lock.
    fn persist(&self, core: MutexGuard<'_, Core>, (id, mut io): (IoId, Io)) {
        let wake = core.has_background();
        if self.persists_at_once && !matches!(io, Io::Persist { barrier: true, .. }) {
            // Others would fall asleep over their frames meanwhile, which takes longer than waiting for the lock.
            let begin = core.staging_frame().is_multiple_of(TIMED_ONE_IN).then(Instant::now);
            let result = self.medium.execute(&mut io);
            if let Some(begin) = begin {
                self.commit_latency.record_many(begin.elapsed().as_nanos() as u64, TIMED_ONE_IN);
            }
            self.end_persist(core, Completion { id, io, result });
            if wake {
                self.wake_background();
            }
            return;
        }
        drop(core);
        if wake {
            self.wake_background();
        }
        if self.progress_waiters.load(Ordering::Relaxed) > 0 {
            self.progress.notify_all(); // the staging frame is empty again
        }
        let begin = Instant::now();
        let result = self.medium.execute(&mut io);
        let ns = begin.elapsed().as_nanos() as u64;
        self.ring_write_ns.store(ns, Ordering::Relaxed);
        self.commit_latency.record(ns);
        self.end_persist(self.lock(), Completion { id, io, result });
    }

    fn may_pause(&self) -> bool {
        self.ring_write_ns.load(Ordering::Relaxed) > PAUSE_GAINS_NS
    }

    fn leave(&self, core: MutexGuard<'_, Core>) -> bool {
        let wake = core.has_background();
        drop(core);
        if wake {
            self.wake_background();
        }
        let sleeps = !has_ring_writes(self);
        if !sleeps {
            finish_ring_writes(self);
        }
        sleeps
    }
}

impl Frames for Core {
    type Write = (IoId, Io);
    type Error = kaml_device::Error;

    fn committed(&self) -> u64 {
        Core::committed(self)
    }

    fn staging_frame(&self) -> u64 {
        Core::staging_frame(self)
    }

    fn wants_persist(&self) -> bool {
        Core::wants_persist(self)
    }

    fn should_wait_for_company(&self) -> bool {
        Core::should_wait_for_company(self)
    }

    fn begin_persist(&mut self) -> Option<(IoId, Io)> {
        Core::begin_persist(self)
    }

    fn stopped(&self) -> Option<kaml_device::Error> {
        Core::stopped(self)
    }
}
