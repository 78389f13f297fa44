//! Driver (i): blocked callers run the firmware. Who has something to commit and finds a free place writes
//! everybody's frame; the others sleep until their frame is durable.
//!
//! Lives here:       the lock around the core, ring writes, reads on the caller's thread.
//! Lives elsewhere:  who sleeps and who is woken (`handover`), everything but ring writes and Gets (`background`), event loops
//!                   (`queue`).
//! Implements:       design section 2, driver (i).

use crate::background::House;
use crate::bytes::{Bytes, COPIED_BYTES_MAX};
use crate::error::Error;
use crate::handover::{Caller, Frames, Handover, News};
use crate::latency::Latency;
use crate::queue::{finish_ring_writes, has_ring_writes};
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Instant, Mutex, MutexGuard};
use crate::{Key, NamespaceId};
use kaml_device::{
    Body, Buffered, Core, DIRECT_BYTES, Error as CommandError, FindError, FlashRead, Found, Op, Reader, StageError,
    encode_image, image_bytes, read_whole,
};
use kaml_flash::{AlignedBuf, ChunkAddr, Completion, Geometry, Io, IoId, Medium, Wake};
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Waits for room are repeated after this, should the world below have changed without telling.
const PROGRESS_WAIT: Duration = Duration::from_millis(50);

/// A ring write that takes longer is worth giving up the processor for, so that there are fewer. One without a sync is not:
/// who yields on a busy machine may wait for milliseconds.
const PAUSE_GAINS_NS: u64 = 30_000;

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
    pub(crate) read_count: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    images: ImagePool,
    /// A merge of versions goes on: there may be one.
    pub(crate) is_merging: AtomicBool,
    /// Held by whoever makes a round of housekeeping.
    pub(crate) house: Mutex<House>,
    /// Held by the one thread that loads an index.
    loading: Mutex<()>,
    /// The device is about to be closed: no merge for lack of space begins, and the one that goes on ends soon.
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
            read_count: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            images: ImagePool::default(),
            is_merging: AtomicBool::new(false),
            house: Mutex::default(),
            loading: Mutex::new(()),
            ends_merges: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("the core does not panic")
    }

    // --- Put ------------------------------------------------------------------------------------------------------

    /// Carries out an atomic Put and waits until it is durable.
    pub(crate) fn write(&self, ops: &mut [Op<'_>]) -> Result<(), Error> {
        let start = Instant::now();
        let placed = self.place_large(ops, true)?;
        let written = match placed.frame {
            Some(frame) => self.wait_committed(self.lock(), frame),
            None => self.stage(ops).and_then(|(core, frame)| self.wait_committed(core, frame)),
        };
        self.finish(placed, written.is_ok());
        self.put_latency.record_since(start);
        written
    }

    /// Fixes the place of an atomic Put in the order of commits; answers the frame that carries it.
    pub(crate) fn submit(&self, ops: &mut [Op<'_>]) -> Result<u64, Error> {
        let placed = self.place_large(ops, false)?;
        let staged = self.stage(ops).map(|(_, frame)| frame);
        self.finish(placed, staged.is_ok());
        staged
    }

    /// Stages a Put, waiting for room if there is none just now.
    fn stage(&self, ops: &[Op<'_>]) -> Result<(MutexGuard<'_, Core>, u64), Error> {
        self.prefetch(ops);
        let mut core = self.lock();
        Shared::tell_time(&mut core);
        loop {
            match core.stage(ops) {
                Ok(frame) => return Ok((core, frame)),
                Err(StageError::Refused(error)) => return Err(error.into()),
                Err(StageError::NeedIndex(id)) => core = self.load_index(core, id)?,
                Err(StageError::Busy) => core = self.make_room(core),
            }
        }
    }

    /// Loads an index if it is not in memory. Others go on with other namespaces meanwhile.
    pub(crate) fn load_index<'a>(
        &'a self,
        core: MutexGuard<'a, Core>,
        id: NamespaceId,
    ) -> Result<MutexGuard<'a, Core>, Error> {
        if self.reader.is_loaded(id)? {
            return Ok(core); // it stays as long as the core is locked
        }
        drop(core);
        finish_ring_writes(self);
        let _alone = self.loading.lock().expect("no panics under this lock");
        let mut core = self.lock();
        while let Some(load) = core.begin_load(id)? {
            drop(core);
            let loaded = load.read(&*self.medium);
            core = self.lock();
            self.reader.is_loaded(id)?; // what cannot be read of a namespace that was deleted meanwhile is not damaged
            core.finish_load(loaded?);
        }
        Ok(core)
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
        let news = self.news(&core);
        drop(core);
        self.spread(news, 0);
    }

    /// What has been committed since it was last told; call under the lock, then [`Shared::spread`] outside it.
    pub(crate) fn news(&self, core: &Core) -> News {
        self.handover.news(core)
    }

    /// Wakes whom the news concern, except the event loop that brings them (0: none), and who waits for whatever has happened.
    pub(crate) fn spread(&self, news: News, bringer: u64) {
        self.tell(news, bringer);
        self.wake_waiting();
    }

    /// Wakes whom the news concern, except the event loop that brings them.
    pub(crate) fn tell(&self, news: News, bringer: u64) {
        self.handover.tell(&news);
        if self.has_loops.load(Ordering::Relaxed) && news.concern_anybody() {
            let loops = self.loops.lock().expect("no panics under this lock");
            loops.iter().filter(|(id, _)| *id != bringer).for_each(|(_, wake)| wake.wake());
        }
    }

    /// Wakes who sleeps until something has happened.
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

    // --- large values ---------------------------------------------------------------------------------------------------

    /// Programs the large values of a Put ahead of it and replaces them by their places. One that is all of its Put may be staged as well.
    fn place_large(&self, ops: &mut [Op<'_>], may_stage: bool) -> Result<Placed, Error> {
        let mut large = Placed::default();
        // Versions of any length go through the page buffer.
        let is_large = |op: &Op<'_>| {
            matches!(op.body, Body::Value { value, .. } if value.len() >= DIRECT_BYTES)
                && !self.reader.keeps_versions(op.namespace)
        };
        let is_alone = ops.iter().filter(|op| is_large(op)).count() == 1;
        let may_stage = may_stage && ops.len() == 1;
        for op in ops.iter_mut().filter(|op| is_large(op)) {
            let Body::Value { value, crc32c } = op.body else { unreachable!("has been checked") };
            let (max, after) = {
                let core = self.lock();
                (core.value_bytes_max(), core.last_sequence())
            };
            if value.len() as u64 > max {
                self.finish(large, false);
                return Err(
                    kaml_device::Error::ValueTooLarge { bytes: value.len() as u64, max, namespace: None }.into()
                );
            }
            let buf = self.images.take(image_bytes(&self.geometry, value.len()));
            let image = encode_image(&self.geometry, op.namespace, op.key, (value, crc32c), after, buf);
            let placed = self.place(op, image.clone(), is_alone, may_stage);
            large.images.push(image);
            match placed {
                Ok((_, Some(frame))) => {
                    large.frame = Some(frame);
                    return Ok(large);
                }
                Ok((ticket, None)) => large.tickets.push(ticket),
                Err(error) => {
                    self.finish(large, false);
                    return Err(error);
                }
            }
        }
        if large.tickets.is_empty() {
            return Ok(large);
        }
        let mut core = self.lock();
        let no_space_count = core.no_space_count();
        while !large.tickets.iter().all(|ticket| core.is_placed(*ticket)) {
            if let Some(error) = programs_wait_for_ever(&core, no_space_count) {
                drop(core);
                self.finish(large, false);
                return Err(error);
            }
            core = self.wait_progress(core);
        }
        Ok(large)
    }

    /// Has a large value programmed: by the housekeeping thread beside others, by the caller itself if it would be the only one.
    /// Answers its ticket, and the frame that its Put was staged in, if it was.
    fn place(
        &self,
        op: &mut Op<'_>,
        image: Arc<AlignedBuf>,
        is_alone: bool,
        may_stage: bool,
    ) -> Result<(u64, Option<u64>), Error> {
        let mut core = self.lock();
        let ticket = loop {
            match core.place(op.namespace, op.key, image.clone()) {
                Ok(ticket) => break ticket,
                Err(StageError::Refused(error)) => return Err(error.into()),
                Err(StageError::NeedIndex(id)) => core = self.load_index(core, id)?,
                Err(StageError::Busy) => core = self.make_room(core),
            }
        };
        let own = if is_alone && !self.medium.is_immediate() { core.take_program(ticket) } else { None };
        op.body = Body::Placed { ticket };
        let Some((id, mut io)) = own else {
            drop(core);
            self.wake_background();
            return Ok((ticket, None));
        };
        let frame = core.staging_frame();
        if may_stage && let Some(write) = core.stage_beside(op) {
            let is_staged = self.write_both(core, (id, io), write);
            return Ok((ticket, is_staged.then_some(frame)));
        }
        let begun = self.medium.begin(&mut io); // the core is still locked: nobody programs the next pages before
        drop(core);
        self.wake_background();
        let result = begun.and_then(|carry_out| carry_out());
        let failed = result.is_err();
        let mut core = self.lock();
        core.complete(Completion { id, io, result });
        let news = self.news(&core);
        let wake = core.has_background() || failed; // its value needs another place
        drop(core);
        self.spread(news, 0);
        if wake {
            self.wake_background();
        }
        Ok((ticket, None))
    }

    /// Programs a large value and writes the frame that names it at once. Answers false if the program failed: the frame is empty, the
    /// value is on its way to another place, and its Put is to be staged when it is there.
    fn write_both(&self, core: MutexGuard<'_, Core>, program: (IoId, Io), write: (IoId, Io)) -> bool {
        let ((program_id, mut program), (id, mut write)) = (program, write);
        let begun = self.medium.begin_with(&mut program, &mut write); // the core is still locked, as above
        let wake = core.has_background();
        drop(core);
        if wake {
            self.wake_background();
        }
        let result = begun.and_then(|carry_out| carry_out());
        let mut core = self.lock();
        let empty = core.complete_beside((program_id, program), (id, write), result);
        let is_staged = empty.is_none();
        if let Some((id, io)) = empty {
            self.persist(core, (id, io));
            core = self.lock();
        }
        let news = self.news(&core);
        let wake = core.has_background() || !is_staged;
        drop(core);
        self.spread(news, 0);
        if wake {
            self.wake_background();
        }
        is_staged
    }

    /// Gives up what a Put that was not staged had placed, and takes the buffers back.
    fn finish(&self, placed: Placed, staged: bool) {
        if placed.images.is_empty() {
            return;
        }
        if !staged {
            let mut core = self.lock();
            placed.tickets.iter().for_each(|ticket| core.forget(*ticket));
        }
        placed.images.into_iter().for_each(|image| self.images.give(image));
    }

    // --- Get ------------------------------------------------------------------------------------------------------------

    /// Reads a value into `out`; false if the key is not there.
    pub(crate) fn get(&self, namespace: NamespaceId, key: &Key, out: &mut Vec<u8>) -> Result<bool, Error> {
        let start = Instant::now();
        let answer = self.find(namespace, key, out).and_then(|found| match found {
            Lookup::Absent => Ok(false),
            Lookup::Value => Ok(true),
            Lookup::Read(read) => self.read(&read, out).map(|()| true),
        });
        self.get_latency.record_since(start);
        answer
    }

    /// Reads a value, a large one without a copy.
    pub(crate) fn get_bytes(&self, namespace: NamespaceId, key: &Key, spent: Bytes) -> Result<Option<Bytes>, Error> {
        let start = Instant::now();
        let (mut out, buf) = spent.into_memory();
        let answer = self.find(namespace, key, &mut out).and_then(|found| match found {
            Lookup::Absent => Ok(None),
            Lookup::Value => Ok(Some(out.into())),
            Lookup::Read(read) if read.bytes > COPIED_BYTES_MAX => self.read_in_place(&read, buf).map(Some),
            Lookup::Read(read) => self.read(&read, &mut out).map(|()| Some(out.into())),
        });
        self.get_latency.record_since(start);
        answer
    }

    /// Reads flash on the caller's thread into memory that the value stays in.
    fn read_in_place(&self, read: &FlashRead, buf: Option<AlignedBuf>) -> Result<Bytes, Error> {
        let fits = buf.filter(|buf| buf.capacity() >= read.bytes);
        // Room for what the medium reads around it.
        let mut buf = fits.unwrap_or_else(|| AlignedBuf::for_transfers(read.bytes + 2 * AlignedBuf::ALIGN));
        buf.set_len(read.bytes);
        let mut io = Io::Read { at: read.at, into: buf };
        let range = self.read_into(&mut io, |bytes| read.value(bytes))?;
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        Ok(Bytes::of_read(into, range))
    }

    /// Looks a key up, and answers it at once if its record is in a write buffer.
    pub(crate) fn find(&self, namespace: NamespaceId, key: &Key, out: &mut Vec<u8>) -> Result<Lookup, Error> {
        loop {
            match self.reader.find(namespace, key) {
                Ok(Found::Absent) => return Ok(Lookup::Absent),
                Ok(Found::Flash(read)) => return Ok(Lookup::Read(read)),
                Ok(Found::Buffered) => match self.read_buffered(namespace, key)? {
                    Some(Buffered::Absent) => return Ok(Lookup::Absent),
                    Some(Buffered::Value(value)) => {
                        *out = value;
                        return Ok(Lookup::Value);
                    }
                    Some(Buffered::Programmed(read)) => return Ok(Lookup::Read(read)),
                    None => {}
                },
                Err(FindError::Refused(kaml_device::Error::KeepsVersions(_))) => {
                    return Ok(match self.find_version(namespace, key)? {
                        Some(value) => {
                            *out = value;
                            Lookup::Value
                        }
                        None => Lookup::Absent,
                    });
                }
                Err(FindError::Refused(error)) => return Err(error.into()),
                Err(FindError::NeedIndex) => drop(self.load_index(self.lock(), namespace)?),
            }
        }
    }

    /// What became of a record that was in a write buffer; none if its index has left memory since: look again.
    pub(crate) fn read_buffered(&self, namespace: NamespaceId, key: &Key) -> Result<Option<Buffered>, Error> {
        match self.lock().read_buffered(namespace, key) {
            Ok(found) => Ok(Some(found)),
            Err(FindError::NeedIndex) => Ok(None),
            Err(FindError::Refused(error)) => Err(error.into()),
        }
    }

    pub(crate) fn read(&self, read: &FlashRead, out: &mut Vec<u8>) -> Result<(), Error> {
        self.read_with(read.at, read.bytes, |bytes| read.copy_value(bytes, out))
    }

    /// Reads flash on the caller's thread and hands the bytes on.
    pub(crate) fn read_with(
        &self,
        at: ChunkAddr,
        bytes: usize,
        take: impl FnMut(&[u8]) -> Result<(), CommandError>,
    ) -> Result<(), Error> {
        thread_local! {
            static SCRATCH: RefCell<AlignedBuf> = RefCell::new(AlignedBuf::zeroed(16 << 10));
        }
        // A thread that ends has no scratch any more.
        let kept = SCRATCH.try_with(|scratch| scratch.replace(AlignedBuf::zeroed(0)));
        let mut buf =
            kept.ok().filter(|buf| buf.capacity() >= bytes).unwrap_or_else(|| AlignedBuf::for_transfers(bytes));
        buf.set_len(bytes);
        let mut io = Io::Read { at, into: buf };
        let taken = self.read_into(&mut io, take);
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        let _ = SCRATCH.try_with(|scratch| scratch.replace(into));
        taken
    }

    /// Carries a read out, again if `take` finds that something else came than was stored.
    fn read_into<T>(&self, io: &mut Io, mut take: impl FnMut(&[u8]) -> Result<T, CommandError>) -> Result<T, Error> {
        read_whole(|| {
            let result = self.medium.execute(io);
            let Io::Read { into, .. } = &*io else { unreachable!("still a read") };
            self.count_reads(1, into.len() as u64);
            result.map(|()| take(into)).map_err(Error::from)
        })
    }

    /// What `take` makes of a read that was carried out; if something else came than was stored, it is carried out again on the
    /// caller's thread.
    pub(crate) fn take_read<T>(
        &self,
        io: &mut Io,
        mut take: impl FnMut(&[u8]) -> Result<T, CommandError>,
    ) -> Result<T, Error> {
        let Io::Read { into, .. } = &*io else { unreachable!("ids of reads are told by a bit") };
        take(into).or_else(|_| self.read_into(io, take))
    }

    pub(crate) fn count_reads(&self, count: u64, bytes: u64) {
        self.read_count.fetch_add(count, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    // --- roots ------------------------------------------------------------------------------------------------------------

    /// Waits for a root that was asked for; gives up if programs that it waits for are tried again, and there is still no space
    /// below.
    pub(crate) fn wait_root<'a>(&'a self, mut core: MutexGuard<'a, Core>, request: u64) -> Result<(), Error> {
        self.wake_background();
        let no_space_count = core.no_space_count();
        while core.roots_done() < request {
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
fn takes_no_changes(core: &Core) -> Option<Error> {
    core.writable().err().filter(|error| *error != CommandError::Closed).map(Error::from)
}

/// Why whoever waits for page programs should not go on: the device takes no changes, or they found no space below again since it
/// began, when so many had.
fn programs_wait_for_ever(core: &Core, no_space_count: u64) -> Option<Error> {
    let no_space = || core.no_space_below().filter(|_| core.no_space_count() > no_space_count).map(Error::from);
    takes_no_changes(core).or_else(no_space)
}

impl Caller<Core> for Shared {
    fn lock(&self) -> MutexGuard<'_, Core> {
        Shared::lock(self)
    }

    /// One that takes time is carried out outside the lock.
    fn persist(&self, core: MutexGuard<'_, Core>, (id, mut io): (IoId, Io)) {
        let wake = core.has_background();
        if self.persists_at_once && !matches!(io, Io::Persist { barrier: true, .. }) {
            // Others would fall asleep over their frames meanwhile, which takes longer than waiting for the lock.
            let result = self.medium.execute(&mut io);
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
        self.ring_write_ns.store(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
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

    fn gains_by_a_pause(&self) -> bool {
        Core::gains_by_a_pause(self)
    }

    fn begin_persist(&mut self) -> Option<(IoId, Io)> {
        Core::begin_persist(self)
    }

    fn stopped(&self) -> Option<kaml_device::Error> {
        Core::stopped(self)
    }
}

/// The large values of a Put, on their way to their pages.
#[derive(Default)]
struct Placed {
    /// The frame that the Put was staged in, if it was.
    frame: Option<u64>,
    tickets: Vec<u64>,
    images: Vec<Arc<AlignedBuf>>,
}

/// Buffers for large values, kept because fresh memory costs as much as copying into it.
#[derive(Default)]
struct ImagePool(Mutex<Vec<AlignedBuf>>);

/// Bytes kept.
const IMAGE_POOL_BYTES: usize = 8 << 20;

impl ImagePool {
    fn take(&self, bytes: usize) -> AlignedBuf {
        let mut kept = self.0.lock().expect("no panics under this lock");
        let fits = kept.iter().rposition(|buf| buf.capacity() >= bytes && buf.capacity() / 2 <= bytes);
        let found = fits.map(|at| kept.swap_remove(at));
        drop(kept);
        found.unwrap_or_else(|| AlignedBuf::for_transfers(bytes))
    }

    /// Takes a buffer back, if nobody else reads it any more.
    fn give(&self, image: Arc<AlignedBuf>) {
        let Ok(buf) = Arc::try_unwrap(image) else { return };
        let mut kept = self.0.lock().expect("no panics under this lock");
        if kept.iter().map(AlignedBuf::capacity).sum::<usize>() + buf.capacity() <= IMAGE_POOL_BYTES {
            kept.push(buf);
        }
    }
}

/// What a key was found to be.
pub(crate) enum Lookup {
    /// Not there.
    Absent,
    /// Copied out of a write buffer.
    Value,
    /// One read away.
    Read(FlashRead),
}
