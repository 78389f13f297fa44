//! Driver (ii) in the caller's hands: many commands in flight from one thread.
//!
//! Lives here:       an event loop's ring writes and reads, tokens, answers.
//! Lives elsewhere:  programs and collection (`background`), which go on beside it; commands on blocks (`blocks`).
//! Implements:       design section 2, driver (ii).

mod blocks;
mod buffers;
mod ring_writes;
mod spare;

use crate::batch::Batch;
use crate::driver::{Lookup, Shared};
use crate::error::Error;
use crate::sync::{Instant, MutexGuard};
use crate::{Bytes, Key, NamespaceId};
use blocks::{BLOCK_BIT, BlockCommands};
use buffers::Buffers;
use kaml_device::{Body, Condition, Core, DIRECT_BYTES, FlashRead, Op, StageError};
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
#[derive(Debug)]
pub struct Answer {
    /// The caller's name for the command.
    pub token: u64,
    /// For a Get the value, if the key is there; for a read of blocks their bytes; for a Put nothing.
    pub result: Result<Option<Bytes>, Error>,
}

struct WaitingPut {
    frame: u64,
    token: u64,
    start: Instant,
    /// It is the part of a change that could not go on.
    failed: Option<Box<Error>>,
}

struct WaitingGet {
    token: u64,
    read: FlashRead,
    start: Instant,
    spare_bytes: usize,
}

/// Many commands in flight from one thread, the one that made the queue. Answers come in any order; Puts are durable when
/// answered.
///
/// It does not keep the device open: once the last [`crate::Device`] is closed, records can still be got, and Puts are refused.
///
/// A thread with Puts in flight here goes on polling until they are answered: what the queue writes to the commit ring has
/// the Puts of other threads in it, too, which wait for its completion.
///
/// Values of 32 KiB and more are written before `put` or `write` returns.
///
/// No more Gets than the queue's depth are read at the same time, each into a buffer of 16 KiB or a little more than its record. Those
/// beyond wait in their order, with some hundred bytes each. Values that are answered are the caller's.
pub struct AsyncQueue {
    shared: Arc<Shared>,
    id: u64,
    /// Whoever commits frames wakes it; from its first Put on, since a loop that only reads waits for nobody.
    is_woken: bool,
    operations: Rc<RefCell<Operations>>,
    parts: Parts,
    /// What becomes readable when there is something to poll.
    fd: Option<OwnedFd>,
    puts: VecDeque<WaitingPut>,
    /// Gets that the medium reads; a read's id is its place here.
    gets: Vec<Option<WaitingGet>>,
    free_places: Vec<usize>,
    /// So many at most.
    depth: usize,
    /// Gets beyond that, in the order they came; there are none while fewer are read. They have no memory yet but this.
    behind: VecDeque<HeldGet>,
    ready: Vec<Answer>,
    /// Reads that are done and not answered.
    reads_done: VecDeque<Completion>,
    buffers: Buffers,
    spare: Spare,
    blocks: BlockCommands,
    tally: Tally,
    /// Got ready for waiting outside since the last reap, so a wake may wait there to be taken.
    armed: bool,
    /// Rounds of housekeeping are made here.
    keeps_house: bool,
    /// One is due, and so many polls have put it off.
    house_is_due: bool,
    put_off: usize,
}

/// What happened since the device's counters were told.
#[derive(Default)]
struct Tally {
    get_ns: Vec<u64>,
    put_ns: Vec<u64>,
    read_count: u64,
    read_bytes: u64,
}

/// Reads answered by one poll at least, else a quarter of what has ever been in flight: what the caller starts in return
/// reaches the medium while the others are being answered, which mostly are done at the same time.
const READS_ANSWERED_MIN: usize = 4;
/// Polls with answers that may put a round of housekeeping off: it takes longer than to hand them on.
const PUT_OFF_MAX: usize = 4;

impl AsyncQueue {
    pub(crate) fn new(shared: Arc<Shared>, depth: u32) -> AsyncQueue {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let io = shared.medium.queue(depth.clamp(8, 4096));
        let fd = io.fd().and_then(|fd| fd.try_clone_to_owned().ok());
        let operations = Operations::new(&shared, io);
        AsyncQueue {
            parts: Parts::new(&shared),
            shared,
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
            keeps_house: false,
            house_is_due: false,
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

    /// Commands not answered yet.
    pub fn in_flight(&self) -> usize {
        let held = self.behind.len() + self.spare.held.len();
        self.puts.len() + self.gets_in_flight() + held + self.blocks.len() + self.ready.len()
    }

    fn gets_in_flight(&self) -> usize {
        self.gets.len() - self.free_places.len()
    }

    /// Whether the medium may be given another Get.
    fn has_place(&self) -> bool {
        self.gets_in_flight() < self.depth
    }

    fn reads_in_flight(&self) -> usize {
        self.gets_in_flight() + self.blocks.reads_in_flight()
    }

    /// Starts an atomic Put. An error is the command's answer; nothing else will come for its token.
    pub fn write(&mut self, token: u64, batch: &Batch) -> Result<(), Error> {
        self.submit(token, &mut batch.ops())
    }

    /// Starts a Put of one record.
    pub fn put(&mut self, token: u64, namespace: NamespaceId, key: impl Into<Key>, value: &[u8]) -> Result<(), Error> {
        self.submit(token, &mut [storing(namespace, key, value, Condition::Always)])
    }

    /// Starts a Put of one record under a condition.
    pub fn put_if(
        &mut self,
        token: u64,
        namespace: NamespaceId,
        key: impl Into<Key>,
        value: &[u8],
        condition: Condition,
    ) -> Result<(), Error> {
        self.submit(token, &mut [storing(namespace, key, value, condition)])
    }

    /// As [`AsyncQueue::put_if`], but answers false, having done nothing, where that would wait for somebody's large value under the key:
    /// its condition is judged once that is written. A large value of its own is written all the same before it returns.
    pub fn try_put_if(
        &mut self,
        token: u64,
        namespace: NamespaceId,
        key: impl Into<Key>,
        value: &[u8],
        condition: Condition,
    ) -> Result<bool, Error> {
        self.try_submit(token, &mut [storing(namespace, key, value, condition)], false)
    }

    /// As [`AsyncQueue::write`], but answers false where [`AsyncQueue::try_put_if`] does.
    pub fn try_write(&mut self, token: u64, batch: &Batch) -> Result<bool, Error> {
        self.try_submit(token, &mut batch.ops(), false)
    }

    /// Starts a delete.
    pub fn delete(&mut self, token: u64, namespace: NamespaceId, key: impl Into<Key>) -> Result<(), Error> {
        self.submit(token, &mut [Op { namespace, key: key.into(), body: Body::Delete, condition: Condition::Always }])
    }

    fn submit(&mut self, token: u64, ops: &mut [Op<'_>]) -> Result<(), Error> {
        self.try_submit(token, ops, true).map(|is_started| debug_assert!(is_started))
    }

    /// Answers false if it would wait for a large value and is not `patient`.
    fn try_submit(&mut self, token: u64, ops: &mut [Op<'_>], patient: bool) -> Result<bool, Error> {
        let large = |op: &Op<'_>| matches!(op.body, Body::Value { value, .. } if value.len() >= DIRECT_BYTES);
        if ops.iter().any(large) {
            if !patient && self.shared.lock().waits_for_large_value(ops) {
                return Ok(false);
            }
            self.shared.write(ops)?;
            self.ready.push(Answer { token, result: Ok(None) });
            return Ok(true);
        }
        self.ask_to_be_woken();
        let start = Instant::now();
        let shared = self.shared.clone();
        shared.prefetch(ops);
        let (mut core, frame) = match self.stage(&shared, ops, patient) {
            Ok(Some(staged)) => staged,
            not_staged => {
                self.leave_nothing_behind();
                return not_staged.map(|_| false);
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
        Ok(true)
    }

    /// Stages a Put, waiting for room if there is none just now, and if it is `patient` for a large value.
    fn stage<'a>(
        &mut self,
        shared: &'a Arc<Shared>,
        ops: &[Op<'_>],
        patient: bool,
    ) -> Result<Option<(MutexGuard<'a, Core>, u64)>, Error> {
        let mut core = shared.lock();
        Shared::tell_time(&mut core);
        loop {
            match core.stage(ops) {
                Ok(frame) => return Ok(Some((core, frame))),
                Err(StageError::Refused(error)) => return Err(error.into()),
                Err(StageError::NeedIndex(id)) => core = shared.load_index(core, id)?,
                Err(StageError::Busy) if !patient && core.waits_for_large_value(ops) => return Ok(None),
                Err(StageError::Busy) => core = self.make_room(shared, core),
            }
        }
    }

    /// From now on whoever commits a frame wakes this loop: it may have something in it.
    fn ask_to_be_woken(&mut self) {
        if !std::mem::replace(&mut self.is_woken, true) {
            self.shared.add_loop(self.id, self.operations().io.waker());
        }
    }

    /// From now on page programs and collection are carried out in [`AsyncQueue::poll`], too, where the medium takes no time but
    /// the caller's own: on a thread that never sleeps this costs less than handing them to another one. It must go on
    /// polling, even while nothing of its own is in flight. Elsewhere it changes nothing.
    pub fn keep_house(&mut self) {
        self.keeps_house = self.shared.medium.is_immediate();
    }

    /// The firmware has something to do by itself.
    fn wants_housekeeping(&mut self) {
        match self.keeps_house {
            true => self.house_is_due = true,
            false => self.shared.wake_background(),
        }
    }

    /// Makes the round of housekeeping that is due, unless the caller has answers to hand on first.
    fn keep_house_if_due(&mut self, has_answers: bool) {
        self.house_is_due |= self.keeps_house && self.blocks.has_later();
        if !self.house_is_due {
            return;
        }
        if has_answers && self.put_off < PUT_OFF_MAX {
            self.put_off += 1;
            return;
        }
        self.put_off = 0;
        self.house_is_due = self.shared.keep_house();
    }

    /// Waits for room: by its own ring write if that is what it takes.
    fn make_room<'a>(&mut self, shared: &'a Arc<Shared>, mut core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        self.start_persist(&mut core);
        if self.persisting() == 0 {
            if self.keeps_house {
                drop(core);
                let has_more = shared.keep_house();
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

    /// Starts a Get, or holds it while as many are being read as the queue's depth. An error is the command's answer.
    pub fn get(&mut self, token: u64, namespace: NamespaceId, key: impl Into<Key>) -> Result<(), Error> {
        self.get_with_room(token, namespace, key, usize::MAX)
    }

    /// Starts a Get whose caller has memory for `room` bytes. The answer has the whole value nevertheless: what it takes beyond
    /// that is limited by [`AsyncQueue::set_spare_bytes_max`], and the Get waits for it.
    pub fn get_with_room(
        &mut self,
        token: u64,
        namespace: NamespaceId,
        key: impl Into<Key>,
        room: usize,
    ) -> Result<(), Error> {
        let get = HeldGet { token, namespace, key: key.into(), room, start: Instant::now() };
        if !self.has_place() {
            self.behind.push_back(get);
        } else if !self.start_get(&get)? {
            self.spare.held.push_back(get);
        }
        Ok(())
    }

    /// Answers false if there is no memory for it now.
    #[inline]
    fn start_get(&mut self, get: &HeldGet) -> Result<bool, Error> {
        let mut value = Vec::new();
        let found = self.shared.find(get.namespace, &get.key, &mut value)?;
        let bytes = match &found {
            Lookup::Absent => 0,
            Lookup::Value => value.len(),
            Lookup::Read(read) => read.bytes,
        };
        let Some(spare_bytes) = self.spare.take(bytes, get.room) else { return Ok(false) };
        let &HeldGet { token, start, .. } = get;
        let result = match found {
            Lookup::Absent => Ok(None),
            Lookup::Value => {
                self.spare.answered(spare_bytes);
                Ok(Some(value.into()))
            }
            Lookup::Read(read) => {
                self.start_read(WaitingGet { token, read, start, spare_bytes });
                return Ok(true);
            }
        };
        self.tally.get_ns.push(start.elapsed().as_nanos() as u64);
        self.ready.push(Answer { token, result });
        Ok(true)
    }

    #[inline]
    fn start_read(&mut self, get: WaitingGet) {
        let (at, bytes) = (get.read.at, get.read.bytes);
        let buf = self.buffers.take(bytes);
        let place = self.free_places.pop().unwrap_or_else(|| {
            self.gets.push(None);
            self.gets.len() - 1
        });
        self.tally.read_count += 1;
        self.tally.read_bytes += bytes as u64;
        self.operations().io.submit(place as u64 | READ_BIT, Io::Read { at, into: buf });
        self.gets[place] = Some(get);
    }

    /// Limits the memory that Gets take beyond what their callers have room for, until the poll after the one that answered
    /// them. One value may always be read, however large; without a call there is no limit.
    pub fn set_spare_bytes_max(&mut self, bytes: usize) {
        self.spare.bytes_max = bytes;
    }

    /// Memory that Gets take beyond what their callers have room for, until they are answered.
    pub fn spare_bytes(&self) -> usize {
        self.spare.taken
    }

    /// Starts Gets that waited for memory: the caller has dealt with what the last poll answered.
    fn start_held(&mut self) {
        self.spare.release();
        let mut held = std::mem::take(&mut self.spare.held);
        while self.has_place()
            && let Some(get) = held.pop_front()
        {
            match self.start_get(&get) {
                Ok(true) => {}
                Ok(false) => {
                    held.push_front(get);
                    break;
                }
                Err(error) => self.ready.push(Answer { token: get.token, result: Err(error) }),
            }
        }
        self.spare.held = held;
    }

    /// Starts Gets that waited for others to be read.
    fn start_behind(&mut self) {
        while self.has_place()
            && let Some(get) = self.behind.pop_front()
        {
            match self.start_get(&get) {
                Ok(true) => {}
                Ok(false) => self.spare.held.push_back(get),
                Err(error) => self.ready.push(Answer { token: get.token, result: Err(error) }),
            }
        }
    }

    /// Gives back the memory of a large value that was answered, for the next ones.
    pub fn recycle(&mut self, value: Bytes) {
        if let Some(buf) = value.into_read() {
            self.buffers.give(buf);
        }
    }

    /// Appends answers; with `wait` at least one, if anything is in flight.
    pub fn poll(&mut self, wait: bool, out: &mut Vec<Answer>) {
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
            let sleep = wait && out.len() == before && self.reads_done.is_empty() && !self.house_is_due && !has_turns;
            let pause = if sleep && !idle { Wait::ForNs(WAIT_NS) } else { Wait::No };
            if !idle || std::mem::take(&mut self.armed) {
                self.operations().reap(pause);
                self.work_off();
                out.append(&mut self.ready);
            }
            self.keep_house_if_due(out.len() > before);
            if !wait || idle || out.len() > before {
                break;
            }
        }
        self.leave_nothing_behind();
        self.tell();
    }

    /// Who has no command in flight may stay away for as long as it likes: no ring write with others' records waits for it.
    fn leave_nothing_behind(&mut self) {
        if self.in_flight() == 0 && self.persisting() > 0 {
            finish_ring_writes_of(&self.shared, &self.operations);
        }
    }

    /// Adds to the device's counters, once for all that a poll brought.
    fn tell(&mut self) {
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

    /// What becomes readable when an armed queue has something to poll; nothing on media that cannot tell.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Gets ready for waiting at [`AsyncQueue::fd`], until the next poll. Answers false if there is something to poll
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
                self.operations().persisting -= 1;
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
            let news = shared.news(&core);
            drop(core);
            shared.spread(news, self.id);
        }
        for _ in 0..READS_ANSWERED_MIN.max(self.gets.len() / 4).min(self.reads_done.len()) {
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

    fn answer_get(&mut self, completion: Completion, now: Instant) {
        let Completion { id, mut io, result } = completion;
        let place = (id & !READ_BIT) as usize;
        let WaitingGet { token, read, start, spare_bytes } = self.gets[place].take().expect("a read is answered once");
        self.free_places.push(place);
        self.spare.answered(spare_bytes);
        let range =
            result.map_err(Error::from).and_then(|()| self.shared.take_read(&mut io, |bytes| read.value(bytes)));
        let Io::Read { into, .. } = io else { unreachable!("ids of reads are told by a bit") };
        let value = match range {
            Ok(range) => Ok(self.buffers.value(into, range)),
            Err(error) => {
                self.buffers.give(into);
                Err(error)
            }
        };
        self.tally.get_ns.push((now - start).as_nanos() as u64);
        self.ready.push(Answer { token, result: value.map(Some) });
    }
}

/// The operation that stores a value.
fn storing(namespace: NamespaceId, key: impl Into<Key>, value: &[u8], condition: Condition) -> Op<'_> {
    let body = Body::Value { value, crc32c: crc_fast::crc32_iscsi(value) };
    Op { namespace, key: key.into(), body, condition }
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
        if self.house_is_due {
            self.shared.wake_background();
        }
        self.shared.remove_loop(self.id);
    }
}
