//! Many operations in flight through io_uring.
//!
//! Lives here:       one ring per queue: submission, completion, waiting, waking.
//! Lives elsewhere:  what each operation needs next (`plan`).
//! May be called by: `file`.
//!
//! A queue remains in the thread that made it (it is not `Send`), so the ring can be set up for a single issuer and with
//! deferred task work: completions are made up in batches when the thread enters the kernel to wait, instead of
//! interrupting it one by one. Registered buffers, polling threads and the other options were measured and gain nothing here.
//!
//! Invariants
//! - an operation in flight has at most one entry in the ring, so a ring with room for `depth` never fills up;
//! - a buffer the kernel may touch is kept in its slot, unread, until its completion is seen; `Drop` waits for all.
//!
//! The OOB of an urgent program goes to the kernel together with its data, as an operation of our own that nobody is notified of. A
//! queue that helps does the same for programs that are executed by other threads.
//! The program itself then finds its OOB written, waits for the turn to end, or, if that write failed, makes it again.

use crate::blocks::Poke;
use crate::file::Media;
use crate::plan::{Need, Plan, ScratchPool, UrgentOob, leak};
use crate::waker::{Notifier, UringWaker, reset};
use crate::{Completion, Io, IoId, Queue, Wait, Wake, sys};
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Operations in the ring at a time; what is accepted beyond waits in the queue. More than any disk makes use of.
const DEPTH_MAX: u32 = 4096;
/// Entries are pushed before the kernel is notified of them, at least this many and a quarter of what is in flight: it starts on
/// them while the caller makes up more. Notifying it costs as much as an operation.
const PUSHED_MIN: usize = 4;
/// Names the completions of the waker.
const WAKER: u64 = u64::MAX;

pub(crate) struct UringQueue {
    ring: IoUring,
    media: Arc<Media>,
    slots: Vec<Option<Op>>,
    free: Vec<usize>,
    /// Accepted, but the ring is full.
    backlog: VecDeque<(IoId, Io)>,
    /// Waiting for another's OOB write.
    turns: Vec<usize>,
    finished: Vec<Completion>,
    waker: Arc<UringWaker>,
    waker_armed: bool,
    /// Made when a caller first requests a descriptor to wait at.
    notifier: OnceCell<Option<Notifier>>,
    pool: ScratchPool,
    in_flight: usize,
    /// Our own, in addition to those.
    own_in_flight: usize,
    /// Takes what others have begun.
    helps: bool,
    /// Entries that the kernel has not taken yet, in order.
    unsubmitted: VecDeque<u64>,
    /// The kernel refuses to serve the ring any more: operations are executed on this thread.
    is_dead: bool,
    /// How often in a row the kernel refused to take entries for the moment.
    idle_entries: u32,
    /// When the first of the waits began that were interrupted in a row.
    interrupted_since: Option<Instant>,
}

/// A ring for one thread; kernels before 6.1 do not know how to defer task work.
fn new_ring(entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    builder.build(entries).or_else(|_| IoUring::new(entries))
}

struct Op {
    /// None if it is one of our own.
    id: Option<IoId>,
    io: Io,
    plan: Plan,
    need: Need,
    /// Bytes of the present transfer that are done.
    done: usize,
    /// How often the ring has refused the present step for the moment.
    refusals: u32,
}

/// How often a step goes to the ring again before this thread makes the system call itself.
const REFUSALS_MAX: u32 = 3;

impl UringQueue {
    /// Whether rings can be had at all.
    pub(crate) fn probe() -> io::Result<()> {
        let mut ring = IoUring::new(2)?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring is too old"));
        }
        // A filter may allow setting rings up and forbid entering them.
        // SAFETY: the entry points to nothing.
        let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
        assert!(pushed.is_ok(), "a new ring has room");
        ring.submit_and_wait(1)?;
        Ok(())
    }

    pub(crate) fn new(media: Arc<Media>, depth: u32) -> io::Result<Self> {
        let depth = depth.clamp(1, DEPTH_MAX);
        // One more for the waker's entry.
        let ring = new_ring((depth + 1).next_power_of_two())?;
        let waker = Arc::new(UringWaker::new()?);
        let poke: Arc<dyn Poke> = Arc::clone(&waker) as Arc<dyn Poke>;
        media.blocks.add_queue(Arc::downgrade(&poke));
        Ok(Self {
            ring,
            media,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth as usize).rev().collect(),
            backlog: VecDeque::new(),
            turns: Vec::new(),
            finished: Vec::new(),
            waker,
            waker_armed: false,
            notifier: OnceCell::new(),
            pool: ScratchPool::default(),
            in_flight: 0,
            own_in_flight: 0,
            helps: false,
            unsubmitted: VecDeque::new(),
            is_dead: false,
            idle_entries: 0,
            interrupted_since: None,
        })
    }

    /// Starts an operation in a free slot.
    fn start(&mut self, id: IoId, io: Io) {
        let slot = self.occupy(Some(id), io, Plan::new());
        if self.free.is_empty() {
            return;
        }
        let begun = self.slots[slot].as_ref().and_then(|op| op.plan.urgent_oob(&op.io));
        if let Some(oob) = begun {
            self.write_urgent(oob);
        }
    }

    /// Writes OOB next to the program that needs it, in a free slot.
    fn write_urgent(&mut self, oob: UrgentOob) {
        self.own_in_flight += 1;
        self.occupy(None, Io::Flush, Plan::of_oob(oob));
    }

    /// Puts an operation into a free slot and takes its first step.
    fn occupy(&mut self, id: Option<IoId>, io: Io, plan: Plan) -> usize {
        let slot = self.free.pop().expect("the caller saw a free slot");
        self.slots[slot] = Some(Op { id, io, plan, need: Need::Done, done: 0, refusals: 0 });
        self.advance(slot, Ok(()));
        slot
    }

    /// Takes an operation one step on.
    fn advance(&mut self, slot: usize, outcome: Result<(), Errno>) {
        let op = self.slots[slot].as_mut().expect("only operations in flight advance");
        match op.plan.step(&self.media, &mut op.io, outcome, &mut self.pool) {
            Ok(Need::Done) => self.finish(slot, Ok(())),
            Err(error) => self.finish(slot, Err(error)),
            Ok(need) => {
                (op.need, op.done, op.refusals) = (need, 0, 0);
                match need {
                    Need::Turn(_) => self.turns.push(slot),
                    // Rare, and no single system call.
                    Need::Prepare | Need::Finish => self.execute(slot),
                    _ => self.push(slot),
                }
            }
        }
    }

    fn finish(&mut self, slot: usize, result: Result<(), crate::MediumError>) {
        let op = self.slots[slot].take().expect("an operation ends once");
        self.free.push(slot);
        match op.id {
            Some(id) => self.finished.push(Completion { id, io: op.io, result }),
            None => self.own_in_flight -= 1,
        }
    }

    /// Makes the system call of an operation's step on this thread.
    fn execute(&mut self, slot: usize) {
        let op = self.slots[slot].as_mut().expect("only operations in flight are executed");
        let outcome = self.media.carry_out(op.need, &mut op.plan, &mut op.io);
        self.advance(slot, outcome);
    }

    /// Puts what an operation needs into the submission queue.
    fn push(&mut self, slot: usize) {
        if self.is_dead {
            return self.execute(slot);
        }
        let op = self.slots[slot].as_mut().expect("only operations in flight are pushed");
        let entry = op.entry(Fd(self.media.file.as_raw_fd())).user_data(slot as u64);
        // SAFETY: the entry points into a buffer owned by the operation in its slot. The slot keeps it, and nobody
        // touches the bytes, until `handle` sees the completion; `Drop` waits for every completion.
        unsafe { self.push_entry(&entry) }
    }

    /// # Safety
    /// What the entry points to stays valid and otherwise unused until its completion is seen.
    unsafe fn push_entry(&mut self, entry: &squeue::Entry) {
        // SAFETY: passed on to the caller.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the ring has an entry for each slot and one for the waker");
        self.unsubmitted.push_back(entry.get_user_data());
    }

    fn take_completions(&mut self) {
        loop {
            let Some(entry) = self.ring.completion().next() else { break };
            if entry.user_data() == WAKER {
                self.waker_armed = io_uring::cqueue::more(entry.flags());
            } else {
                self.handle(entry.user_data() as usize, entry.result());
            }
        }
    }

    /// Handles every completion that exists.
    fn drain(&mut self) {
        self.take_completions();
        for slot in std::mem::take(&mut self.turns) {
            self.advance(slot, Ok(()));
        }
        while !self.free.is_empty() {
            let Some((id, io)) = self.backlog.pop_front() else { break };
            self.start(id, io);
        }
        while self.helps && !self.free.is_empty() {
            let Some(oob) = self.media.urgent.take() else { break };
            self.write_urgent(oob);
        }
    }

    fn handle(&mut self, slot: usize, result: i32) {
        self.interrupted_since = None;
        let op = self.slots[slot].as_mut().expect("completions come for operations in flight");
        match op.take(result) {
            Taken::Done(outcome) => self.advance(slot, outcome),
            Taken::Again => self.push(slot),
            Taken::Refused => self.execute(slot),
        }
    }

    /// Submits what was pushed, and waits for at least one completion if a time is given.
    fn enter(&mut self, wait: Option<Duration>) {
        let result = match wait {
            None => self.ring.submit(),
            Some(limit) => {
                let limit = Timespec::new().sec(limit.as_secs()).nsec(limit.subsec_nanos());
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        let left = self.ring.submission().len();
        self.unsubmitted.drain(..self.unsubmitted.len().saturating_sub(left));
        match result.as_ref().map_err(|error| error.raw_os_error()) {
            Ok(_) => (self.idle_entries, self.interrupted_since) = (0, None),
            Err(Some(libc::ETIME)) => self.interrupted_since = None,
            // A signal came during the wait. Signals may come often while the disk is slow.
            Err(Some(libc::EINTR)) if self.unsubmitted.is_empty() => {
                if self.interrupted_since.get_or_insert_with(Instant::now).elapsed() > INTERRUPTED_MAX {
                    self.give_up_the_ring("each wait is interrupted");
                }
            }
            // Completions must be taken before more can be submitted; memory is short; a signal came.
            Err(Some(libc::EBUSY | libc::EAGAIN | libc::ENOMEM | libc::EINTR))
                if self.idle_entries < IDLE_ENTRIES_MAX =>
            {
                self.idle_entries += 1;
                // Nothing may be left to wait for in the ring: give the kernel a moment.
                std::thread::sleep(Duration::from_micros(100));
            }
            Err(_) => self.give_up_the_ring(&result.map_or_else(|error| error.to_string(), |_| String::new())),
        }
    }

    /// From now on this thread makes all system calls itself. What the kernel has not taken is executed at once. Of what it has
    /// taken nobody learns any more: reads are made again, into other memory; a change that may come late would undo a newer one, so it
    /// counts as failed. Memory that the kernel may still use is never released.
    fn give_up_the_ring(&mut self, why: &str) {
        self.is_dead = true;
        self.media.note_ring_lost(why);
        // What has completed is known.
        self.take_completions();
        let unsubmitted = std::mem::take(&mut self.unsubmitted);
        for slot in 0..self.slots.len() {
            let waits = self.turns.contains(&slot);
            let Some(op) = self.slots[slot].as_mut().filter(|_| !waits) else { continue };
            if unsubmitted.contains(&(slot as u64)) {
                self.execute(slot);
                continue;
            }
            match op.abandon() {
                Ok(()) => self.execute(slot),
                Err(errno) => self.advance(slot, Err(errno)),
            }
        }
    }

    /// Whether entering the kernel would do anything: submit, or bring completions.
    fn has_pushed(&mut self) -> bool {
        let submission = self.ring.submission();
        !submission.is_empty() || submission.cq_overflow() || submission.taskrun()
    }

    fn submit_pushed(&mut self) {
        if !self.is_dead && self.has_pushed() {
            self.enter(None);
        }
    }

    fn arm_waker(&mut self) {
        if self.waker_armed {
            return;
        }
        let events = libc::POLLIN as u32;
        let entry = opcode::PollAdd::new(Fd(self.waker.event.as_raw_fd()), events).multi(true).build();
        // SAFETY: the entry points to nothing; its file descriptor lives as long as the waker, which the queue holds.
        unsafe { self.push_entry(&entry.user_data(WAKER)) }
        self.waker_armed = true;
    }

    /// Sleeps without the ring.
    fn wait_for_a_wake(&self, left: Duration) {
        let left = if self.turns.is_empty() { left } else { left.min(TURN_POLL) };
        let limit = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut events = [PollFd::new(&self.waker.event, PollFlags::IN)];
        // Interrupted or refused, it looks again.
        let _ = rustix::event::poll(&mut events, Some(&limit));
        reset(&self.waker.event);
    }

    /// Sleeps until a completion, a wake, a poke or the deadline. Returns false when there is no reason to sleep again.
    fn sleep(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !self.waker.fall_asleep() {
            return false;
        }
        if self.is_dead {
            self.wait_for_a_wake(left);
            return !self.waker.get_up();
        }
        self.arm_waker();
        // A turn may have ended after it was refused and before the waker could be poked: look again before sleeping.
        let left = if self.turns.is_empty() { left } else { left.min(TURN_POLL) };
        self.enter(Some(left));
        !self.waker.get_up()
    }
}

/// How often in a row the kernel may refuse to take entries for the moment.
const IDLE_ENTRIES_MAX: u32 = 1000;

/// How long waits may be interrupted, one after the other, without any completion: longer than any working disk takes.
const INTERRUPTED_MAX: Duration = Duration::from_secs(30);

/// How long an operation that waits for another's OOB write waits before it asks.
const TURN_POLL: Duration = Duration::from_millis(1);

impl Op {
    fn entry(&mut self, file: Fd) -> squeue::Entry {
        match self.need {
            Need::Read { at, len, place } => {
                let rest = &mut self.plan.read_buffer(&mut self.io, place)[self.done..len];
                let len = rest.len().min(TRANSFER_BYTES_MAX) as u32;
                opcode::Read::new(file, rest.as_mut_ptr(), len).offset(at + self.done as u64).build()
            }
            Need::Write { at, len, place, dsync } => {
                let rest = &self.plan.write_buffer(&self.io, place)[self.done..len];
                let flags = if dsync { libc::RWF_DSYNC } else { 0 };
                let len = rest.len().min(TRANSFER_BYTES_MAX) as u32;
                opcode::Write::new(file, rest.as_ptr(), len).offset(at + self.done as u64).rw_flags(flags).build()
            }
            Need::Sync => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
            Need::Punch { at, len } => {
                opcode::Fallocate::new(file, len).offset(at).mode(sys::PUNCH.bits() as i32).build()
            }
            Need::Turn(_) | Need::Prepare | Need::Finish | Need::Done => unreachable!("nothing for the ring to do"),
        }
    }

    /// What a completion means for the step.
    fn take(&mut self, result: i32) -> Taken {
        let count = match usize::try_from(result) {
            Ok(count) => count,
            Err(_) => {
                let errno = Errno::from_raw_os_error(-result);
                if !sys::is_of_the_ring(errno) {
                    return Taken::Done(Err(errno));
                }
                self.refusals += 1;
                let again = sys::is_transient(errno) && self.refusals < REFUSALS_MAX;
                return if again { Taken::Again } else { Taken::Refused };
            }
        };
        let (Need::Read { len, .. } | Need::Write { len, .. }) = self.need else { return Taken::Done(Ok(())) };
        if count == 0 {
            return Taken::Done(Err(sys::CUT_SHORT));
        }
        self.done += count;
        if self.done < len { Taken::Again } else { Taken::Done(Ok(())) }
    }

    /// Takes an operation away from a kernel that may still execute it: the memory that it may use is never released. A read can be
    /// made again, into other memory. A change of the file may come at any time, so it has failed.
    fn abandon(&mut self) -> Result<(), Errno> {
        match self.need {
            Need::Read { place, .. } => {
                leak(self.plan.read_buffer(&mut self.io, place));
                Ok(())
            }
            Need::Write { place, .. } => {
                self.plan.leak_write_buffer(&mut self.io, place);
                Err(Errno::CANCELED)
            }
            Need::Sync | Need::Punch { .. } | Need::Turn(_) | Need::Prepare | Need::Finish | Need::Done => {
                Err(Errno::CANCELED)
            }
        }
    }
}

/// What a completion means for a step.
enum Taken {
    /// It is over.
    Done(Result<(), Errno>),
    /// The rest has to be submitted again.
    Again,
    /// The ring does not serve it: the system call may.
    Refused,
}

/// The kernel moves at most 2 GiB less one page at a time.
const TRANSFER_BYTES_MAX: usize = 1 << 30;

impl Queue for UringQueue {
    fn submit(&mut self, id: IoId, io: Io) {
        self.in_flight += 1;
        if self.backlog.is_empty() && !self.free.is_empty() {
            self.start(id, io);
            if !self.is_dead && self.ring.submission().len() >= PUSHED_MIN.max(self.in_flight / 4) {
                self.enter(None);
            }
        } else {
            self.backlog.push_back((id, io));
        }
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) {
        let deadline = match wait {
            Wait::No => None,
            // A deadline beyond the clock's range is a century away, whatever it was.
            Wait::ForNs(ns) => Some(Instant::now() + Duration::from_nanos(ns.min(CENTURY_NS))),
        };
        // What is to be submitted costs a system call anyway, which may bring more completions: look after it.
        if self.is_dead || !self.has_pushed() {
            self.drain();
        }
        loop {
            let asleep = match deadline {
                Some(deadline) if self.finished.is_empty() => self.sleep(deadline),
                _ => {
                    self.submit_pushed();
                    false
                }
            };
            self.drain();
            if !asleep || !self.finished.is_empty() {
                break;
            }
        }
        self.submit_pushed();
        self.waker.forget();
        self.in_flight -= self.finished.len();
        done.append(&mut self.finished);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn help(&mut self) {
        self.helps = true;
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.waker) as Arc<dyn Wake>
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        let make = || Notifier::new(&self.ring, &self.waker).ok();
        self.notifier.get_or_init(make).as_ref().map(|notifier| notifier.either.as_fd())
    }

    fn arm(&mut self) -> bool {
        if !self.waker.fall_asleep() {
            return false;
        }
        if let Some(Some(notifier)) = self.notifier.get() {
            // Whatever was signalled until now is looked for below.
            reset(&notifier.completions);
            reset(&self.waker.event);
        }
        self.submit_pushed();
        // From here on a turn that ends pokes the waker: a caller that was refused one before looks again now.
        self.drain();
        self.submit_pushed();
        // The event of a wake that came meanwhile may have been reset.
        self.finished.is_empty() && self.waker.is_asleep()
    }
}

const CENTURY_NS: u64 = 100 * 365 * 86_400 * 1_000_000_000;

impl Drop for UringQueue {
    /// What has not started never will. What has is brought to its end: the kernel may still write into buffers, and
    /// others may wait for an OOB write.
    fn drop(&mut self) {
        self.in_flight -= self.backlog.len();
        self.backlog.clear();
        let mut done = Vec::new();
        while self.in_flight + self.own_in_flight > 0 {
            self.reap(Wait::ForNs(1_000_000_000), &mut done);
            done.clear();
        }
    }
}
