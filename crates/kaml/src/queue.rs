//! Driver (ii) in the caller's hands: many commands in flight from one thread.
//!
//! Lives here:       an event loop's ring writes and reads, tokens, answers.
//! Lives elsewhere:  programs and collection (`background`), which continue next to it; commands on blocks (`blocks`).
//! Implements:       docs/ARCHITECTURE.md "Execution" (event loops).

mod blocks;
mod buffers;
mod gets;
mod ring_writes;
mod spare;

use crate::batch::Batch;
use crate::driver::{By, Shared};
use crate::error::Error;
use crate::sync::{Instant, MutexGuard};
use crate::{Bytes, NamespaceId};
use blocks::{BLOCK_BIT, BlockCommands};
use buffers::Buffers;
use gets::WaitingGet;
use kaml_device::{Body, Condition, Core, FullKey, KeyRef, Op, StageError};
use kaml_flash::{Completion, Io, Wait};
use ring_writes::{Operations, Parts, READ_BIT, WAIT_NS, finish_ring_writes_of};
pub(crate) use ring_writes::{finish_ring_writes, has_ring_writes};
use spare::{HeldGet, Spare};
use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a command came to.
///
/// # Examples
/// See [`AsyncQueue`].
#[derive(Debug)]
pub struct Answer {
    /// The caller's name for the command.
    pub token: u64,
    /// For a Get the value, if the key exists; for a read of blocks their bytes; for a Put nothing.
    pub result: Result<Option<Bytes>, Error>,
}

struct WaitingPut {
    frame: u64,
    token: u64,
    start: Instant,
    /// It is the part of a change that could not continue, or a Put that was refused because of what the frame holds.
    failed: Option<Box<Error>>,
}

/// Why a Put is not staged.
enum NotStaged {
    /// It is refused because of what this frame holds, and completes after that is committed.
    RefusedAfter(u64, Error),
    Failed(Error),
}

impl From<Error> for NotStaged {
    fn from(error: Error) -> Self {
        NotStaged::Failed(error)
    }
}

/// Many commands in flight from one thread, the one that made the queue. Commands complete in any order; Puts are durable on
/// completion.
///
/// It does not keep the device open: after the last [`crate::Device`] is closed, records can still be got, and Puts are refused.
///
/// A thread with Puts in flight here continues polling until they complete: what the queue writes to the commit ring has
/// the Puts of other threads in it, too, which wait for its completion.
///
/// Values of 32 KiB and more are written before `put` or `write` returns.
///
/// No more Gets than the queue's depth are read at the same time, each into a buffer of 16 KiB or a little more than its record. Those
/// beyond wait in their order, with some hundred bytes each. Values that complete are the caller's.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// let mut queue = device.queue(32);
/// queue.put(1, users, 7u64, b"seven")?; // 1 is the token of this command
/// let mut answers = Vec::new();
/// while queue.in_flight() > 0 {
///     queue.poll(true, &mut answers);
/// }
/// for answer in answers {
///     assert_eq!(answer.token, 1);
///     answer.result?;
/// }
/// # Ok::<(), kaml::Error>(())
/// ```
pub struct AsyncQueue {
    shared: Arc<Shared>,
    by: By,
    id: u64,
    /// A caller that commits frames wakes it; from its first Put on, since a loop that only reads waits for nobody.
    is_woken: bool,
    operations: Rc<RefCell<Operations>>,
    parts: Parts,
    /// What becomes readable when there is something to poll.
    fd: Option<OwnedFd>,
    puts: VecDeque<WaitingPut>,
    /// Gets that the medium reads; a read's id is its place here.
    gets: Vec<Option<WaitingGet>>,
    free_places: Vec<usize>,
    /// This many at most.
    depth: usize,
    /// Gets beyond that, in the order they came; there are none while fewer are read. They have no memory yet but this.
    behind: VecDeque<HeldGet>,
    ready: Vec<Answer>,
    /// Reads that are done and not completed.
    reads_done: VecDeque<Completion>,
    buffers: Buffers,
    spare: Spare,
    blocks: BlockCommands,
    tally: Tally,
    /// Got ready for waiting outside since the last reap, so a wake may wait there to be taken.
    armed: bool,
    /// Rounds of housekeeping are made here.
    does_housekeeping: bool,
    /// One is due, and so many polls have put it off.
    housekeeping_due: bool,
    put_off: usize,
}

/// What happened since the device's counters were notified.
#[derive(Default)]
struct Tally {
    get_ns: Vec<u64>,
    put_ns: Vec<u64>,
    read_count: u64,
    read_bytes: u64,
}

/// Reads that one poll returns at least, else a quarter of what has ever been in flight: what the caller starts in return
/// reaches the medium while the others are being returned, which mostly are done at the same time.
const READS_ANSWERED_MIN: usize = 4;
/// Polls with answers that may put a round of housekeeping off: it takes longer than to hand them on.
const PUT_OFF_MAX: usize = 4;

impl AsyncQueue {
    pub(crate) fn new(shared: Arc<Shared>, by: By, depth: u32) -> AsyncQueue {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let io = shared.medium.queue(depth.clamp(8, 4096));
        let fd = io.fd().and_then(|fd| fd.try_clone_to_owned().ok());
        let operations = Operations::new(&shared, io);
        AsyncQueue {
            parts: Parts::new(&shared),
            shared,
            by,
            id,
            is_woken: false,
            operations,
            fd,
            puts: VecDeque::new(),
            gets: Vec::new(),
            free_places: Vec::new(),
            depth: depth.max(1) as usize,
            behind: VecDeque::new(),
            ready: Vec::new(),
            reads_done: VecDeque::new(),
            buffers: Buffers::default(),
            spare: Spare::default(),
            tally: Tally::default(),
            armed: false,
            does_housekeeping: false,
            housekeeping_due: false,
            put_off: 0,
            blocks: BlockCommands::default(),
        }
    }

    fn operations(&self) -> RefMut<'_, Operations> {
        self.operations.borrow_mut()
    }

    fn persisting(&self) -> usize {
        self.operations().persisting
    }

    /// Commands not completed yet.
    pub fn in_flight(&self) -> usize {
        let held = self.behind.len() + self.spare.held.len();
        self.puts.len() + self.gets_in_flight() + held + self.blocks.len() + self.ready.len()
    }

    /// Whether the medium can be given another Get.
    fn has_place(&self) -> bool {
        self.gets_in_flight() < self.depth
    }

    /// Starts an atomic Put. An error is the command's answer; nothing else will come for its token.
    ///
    /// # Errors
    /// As [`crate::Device::write`].
    pub fn write(&mut self, token: u64, batch: &Batch) -> Result<(), Error> {
        if batch.has_merges() {
            return Err(Error::OperandInQueue);
        }
        let shared = self.shared.clone();
        self.submit(token, &mut batch.ops(&shared)?)
    }

    /// Starts a Put of one record.
    ///
    /// # Errors
    /// As [`crate::Device::put`].
    pub fn put<'k>(
        &mut self,
        token: u64,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &[u8],
    ) -> Result<(), Error> {
        let (shared, key) = (self.shared.clone(), key.into());
        self.submit(token, &mut [storing(namespace, shared.key(key)?, value, Condition::Always)])
    }

    /// Starts a Put of one record under a condition.
    ///
    /// # Errors
    /// As [`crate::Device::put_if`]. A condition that an uncommitted Put decides fails in the answer.
    pub fn put_if<'k>(
        &mut self,
        token: u64,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &[u8],
        condition: Condition,
    ) -> Result<(), Error> {
        let (shared, key) = (self.shared.clone(), key.into());
        self.submit(token, &mut [storing(namespace, shared.key(key)?, value, condition)])
    }

    /// Starts a delete.
    ///
    /// # Errors
    /// As [`crate::Device::delete`].
    pub fn delete<'k>(&mut self, token: u64, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<(), Error> {
        let (shared, key) = (self.shared.clone(), key.into());
        let key = shared.key(key)?;
        self.submit(
            token,
            &mut [Op { namespace, key, body: Body::Delete, condition: Condition::Always, expires: Default::default() }],
        )
    }

    fn submit(&mut self, token: u64, ops: &mut [Op<'_>]) -> Result<(), Error> {
        let start = Instant::now();
        match self.shared.pack(ops) {
            Some(packed) => self.submit_stored(token, &mut packed.ops(ops), start),
            None => self.submit_stored(token, ops, start),
        }
    }

    fn submit_stored(&mut self, token: u64, ops: &mut [Op<'_>], start: Instant) -> Result<(), Error> {
        let reader = &self.shared.reader;
        let is_large = |op: &Op<'_>| op.stored_bytes().is_some_and(|bytes| reader.places_first(op.namespace, bytes));
        if ops.iter().any(is_large) {
            self.shared.write_stored(self.by, ops, start)?;
            self.ready.push(Answer { token, result: Ok(None) });
            return Ok(());
        }
        self.ask_to_be_woken();
        let shared = self.shared.clone();
        shared.prefetch(ops);
        let (mut core, frame) = match self.stage(&shared, ops) {
            Ok(staged) => staged,
            Err(NotStaged::RefusedAfter(frame, error)) => {
                self.add_waiting(WaitingPut { frame, token, start, failed: Some(Box::new(error)) });
                return Ok(());
            }
            Err(NotStaged::Failed(error)) => {
                self.leave_nothing_behind();
                return Err(error);
            }
        };
        let wake = core.has_background();
        let persisting = self.persisting();
        let part = self.parts.staged(frame, persisting, &mut core);
        drop(core);
        if let Some(part) = part {
            let mut operations = self.operations();
            operations.start_persist(part);
            operations.reap(Wait::No);
        }
        if wake {
            self.wants_housekeeping();
        }
        self.puts.push_back(WaitingPut { frame, token, start, failed: None });
        Ok(())
    }

    /// Stages a Put, waiting for room if there is none just now.
    fn stage<'a>(&mut self, shared: &'a Arc<Shared>, ops: &[Op<'_>]) -> Result<(MutexGuard<'a, Core>, u64), NotStaged> {
        let by = self.by;
        let clear = |core: MutexGuard<'a, Core>, why| match why {
            StageError::RefusedAfter(frame, error) => Err(NotStaged::RefusedAfter(frame, error.into())),
            StageError::Busy => Ok(self.make_room(shared, core)),
            StageError::Refused(_) | StageError::NeedIndex(_) => Ok(shared.clear(core, why)?),
        };
        shared.visit_with(by, |core| core.stage(ops), clear)
    }

    /// From now on a caller that commits a frame wakes this loop: it may have something in it.
    fn ask_to_be_woken(&mut self) {
        if !std::mem::replace(&mut self.is_woken, true) {
            self.shared.add_loop(self.id, self.operations().io.waker());
        }
    }

    /// From now on page programs and collection are executed in [`AsyncQueue::poll`], too, where the medium takes no time but
    /// the caller's own: on a thread that never sleeps this costs less than handing them to another one. It must continue
    /// polling, even while nothing of its own is in flight. Elsewhere it changes nothing.
    pub fn enable_housekeeping(&mut self) {
        self.does_housekeeping = self.shared.medium.is_immediate();
    }

    /// The firmware has something to do by itself.
    fn wants_housekeeping(&mut self) {
        match self.does_housekeeping {
            true => self.housekeeping_due = true,
            false => self.shared.wake_background(),
        }
    }

    /// Makes the round of housekeeping that is due, unless the caller has answers to hand on first.
    fn keep_house_if_due(&mut self, has_answers: bool) {
        self.housekeeping_due |= self.does_housekeeping && self.blocks.has_later();
        if !self.housekeeping_due {
            return;
        }
        if has_answers && self.put_off < PUT_OFF_MAX {
            self.put_off += 1;
            return;
        }
        self.put_off = 0;
        self.housekeeping_due = self.shared.run_housekeeping();
    }

    /// Waits for room: by its own ring write if that is what it takes.
    fn make_room<'a>(&mut self, shared: &'a Arc<Shared>, mut core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        self.start_persist(&mut core);
        if self.persisting() == 0 {
            if self.does_housekeeping {
                drop(core);
                let has_more = shared.run_housekeeping();
                core = shared.lock();
                if has_more {
                    return core;
                }
            }
            shared.wake_background();
            return shared.wait_progress(core);
        }
        drop(core);
        self.operations().reap(Wait::ForNs(WAIT_NS));
        self.work_off();
        shared.lock()
    }

    /// Appends answers; with `wait` at least one, if anything is in flight.
    pub fn poll(&mut self, wait: bool, out: &mut Vec<Answer>) {
        self.poll_until(wait, || false, out);
    }

    /// As [`AsyncQueue::poll`], and waits, but returns at its next waking if `stop` reports it.
    #[cfg(feature = "async")]
    pub(crate) fn poll_unless(&mut self, stop: impl Fn() -> bool, out: &mut Vec<Answer>) {
        self.poll_until(true, stop, out);
    }

    /// What ends the sleep of a poll from any thread.
    #[cfg(feature = "async")]
    pub(crate) fn waker(&self) -> Arc<dyn kaml_flash::Wake> {
        self.operations().io.waker()
    }

    fn poll_until(&mut self, wait: bool, stop: impl Fn() -> bool, out: &mut Vec<Answer>) {
        let before = out.len();
        self.parts.polled(self.puts.len(), wait);
        self.start_held();
        loop {
            let has_turns = self.take_turns();
            self.start_what_is_staged();
            out.append(&mut self.ready);
            if wait && out.len() == before && !has_turns && self.only_waits_for_room() {
                let shared = self.shared.clone();
                shared.wake_background();
                drop(shared.wait_progress(shared.lock()));
                continue;
            }
            let idle = self.puts.is_empty() && self.reads_in_flight() == 0 && !self.blocks.has_later();
            let sleep =
                wait && out.len() == before && self.reads_done.is_empty() && !self.housekeeping_due && !has_turns;
            let pause = if sleep && !idle { Wait::ForNs(WAIT_NS) } else { Wait::No };
            if !idle || std::mem::take(&mut self.armed) {
                self.operations().reap(pause);
                self.work_off();
                out.append(&mut self.ready);
            }
            self.keep_house_if_due(out.len() > before);
            if !wait || idle || out.len() > before || stop() {
                break;
            }
        }
        self.leave_nothing_behind();
        self.notify_others();
    }

    /// A caller that has no command in flight may stay away for as long as it likes: no ring write with others' records waits for it.
    fn leave_nothing_behind(&mut self) {
        if self.in_flight() == 0 && self.persisting() > 0 {
            finish_ring_writes_of(&self.shared, &self.operations);
        }
    }

    /// Adds to the device's counters, once for all that a poll brought.
    fn notify_others(&mut self) {
        let tally = &mut self.tally;
        if tally.read_count > 0 {
            self.shared.count_reads(std::mem::take(&mut tally.read_count), std::mem::take(&mut tally.read_bytes));
        }
        if !tally.get_ns.is_empty() {
            self.shared.get_latency.record_all(tally.get_ns.drain(..));
        }
        if !tally.put_ns.is_empty() {
            self.shared.put_latency.record_all(tally.put_ns.drain(..));
        }
    }

    /// What becomes readable when an armed queue has something to poll; nothing on media that cannot determine.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Gets ready for waiting at [`AsyncQueue::fd`], until the next poll. Returns false if there is something to poll
    /// already.
    pub fn arm(&mut self) -> bool {
        self.armed = true;
        // Staged by the caller since the last poll, or by what that poll brought: nobody else starts it.
        self.start_what_is_staged();
        self.ready.is_empty()
            && self.reads_done.is_empty()
            && !(self.spare.can_go_on() && self.has_place())
            && !self.blocks.has_later()
            && self.operations().done.is_empty()
            && self.operations().io.arm()
    }

    /// Whether changes of blocks are all there is, and nothing of this loop's own will give them room.
    fn only_waits_for_room(&self) -> bool {
        self.blocks.has_later() && self.persisting() == 0 && self.reads_in_flight() == 0
    }

    /// Hands Puts that wait to the medium, if no ring write of this loop is in flight, whose end will.
    fn start_what_is_staged(&mut self) {
        if (!self.puts.is_empty() || self.blocks.has_later()) && self.persisting() == 0 {
            let shared = self.shared.clone();
            let mut core = shared.lock();
            self.start_own_persist(&mut core);
            self.answer_puts(&core);
        }
    }

    /// Hands the staged frame to the medium if something of this loop is in it, or will be when there is room.
    fn start_own_persist(&mut self, core: &mut Core) {
        if self.blocks.has_later() || self.puts.back().is_some_and(|put| put.frame >= core.staging_frame()) {
            self.start_persist(core);
        }
    }

    /// Hands the staged frame to the medium.
    fn start_persist(&mut self, core: &mut Core) {
        if self.persisting() == 0
            && let Some(persist) = core.begin_persist()
        {
            self.parts.started();
            self.operations().start_persist(persist);
        }
    }

    fn work_off(&mut self) {
        let mut done = std::mem::take(&mut self.operations().done);
        let shared = self.shared.clone();
        let mut core = None;
        let now = Instant::now();
        for completion in done.drain(..) {
            if completion.id & READ_BIT != 0 && completion.id & BLOCK_BIT != 0 {
                self.blocks.arrived.push(completion);
            } else if completion.id & READ_BIT != 0 {
                self.reads_done.push_back(completion);
            } else {
                let begun = self.operations().end_persist(completion.id);
                shared.commit_latency.record(now.saturating_duration_since(begun).as_nanos() as u64);
                core.get_or_insert_with(|| shared.lock()).complete(completion);
            }
        }
        self.operations().done = done;
        // Others may have committed frames with commands of ours.
        if core.is_none() && !self.puts.is_empty() && self.persisting() == 0 {
            core = Some(shared.lock());
        }
        if let Some(mut core) = core {
            self.start_own_persist(&mut core);
            self.answer_puts(&core);
            let progress = shared.progress(&core);
            drop(core);
            shared.notify(progress, self.id);
        }
        for _ in 0..READS_ANSWERED_MIN.max(self.gets.len() / 4).min(self.reads_done.len()) {
            if self.spare.is_overfull() {
                break; // the next poll continues
            }
            let completion = self.reads_done.pop_front().expect("counted");
            if let Some(Completion { io: Io::Read { into, .. }, .. }) = self.reads_done.front() {
                into.prefetch();
            }
            self.answer_get(completion, now);
        }
        self.start_behind();
        self.take_arrived(now);
    }

    fn answer_puts(&mut self, core: &Core) {
        let committed = core.committed();
        if self.puts.front().is_none_or(|put| put.frame >= committed) && core.stopped().is_none() {
            return;
        }
        let now = Instant::now();
        while self.puts.front().is_some_and(|put| put.frame < committed) {
            let put = self.puts.pop_front().expect("just seen");
            self.tally.put_ns.push((now - put.start).as_nanos() as u64);
            let result = put.failed.map_or(Ok(None), |error| Err(*error));
            self.ready.push(Answer { token: put.token, result });
        }
        if let Some(error) = core.stopped() {
            let failed = self.puts.drain(..).map(|put| Answer { token: put.token, result: Err(error.clone().into()) });
            self.ready.extend(failed);
        }
    }
}

/// The operation that stores a value.
fn storing<'a>(namespace: NamespaceId, key: FullKey<'a>, value: &'a [u8], condition: Condition) -> Op<'a> {
    let body = Body::Value { value, crc32c: kaml_crc::crc32c(value) };
    Op { namespace, key, body, condition, expires: Default::default() }
}

impl Drop for AsyncQueue {
    /// Waits for what is in flight: a ring write must not be forgotten, other callers' records are in it.
    fn drop(&mut self) {
        let mut answers = Vec::new();
        while self.in_flight() > 0 {
            self.poll(true, &mut answers);
            answers.clear();
        }
        self.leave_nothing_behind();
        if self.housekeeping_due {
            self.shared.wake_background();
        }
        self.shared.remove_loop(self.id);
    }
}
