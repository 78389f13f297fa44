//! Operations in flight in virtual time: when each is done, what it then does to the array, and which queue is notified.
//!
//! Lives here:       the clock, the event queue, counting what changes something, power.
//! Lives elsewhere:  bytes (`array`), durations (`timing`), failures (`faults`), the `Medium` face (`medium`).
//! May be called by: `medium`, under its lock.

use crate::array::{Array, Done};
#[cfg(feature = "broken")]
use crate::broken::BrokenMedium;
use crate::cuts::{CutMoment, CutPoints};
use crate::faults::{Injector, Strike};
use crate::rng::{Rng, Trace, mix};
use crate::timing::{Clocks, Next, Progress, Timing};
use kaml_flash::{BlockIndex, Completion, Geometry, Io, IoId, MediumError};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

struct Op {
    /// Of submission.
    turn: u64,
    queue: usize,
    id: IoId,
    io: Io,
    marker: Done,
    progress: Progress,
    refused: Option<MediumError>,
}

/// Pages of flash that were requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageCounts {
    /// Pages that a read touched any part of.
    pub read: u64,
    /// Pages programmed, and those that roots would fill.
    pub written: u64,
}

pub(crate) struct Engine {
    pub(crate) geometry: Arc<Geometry>,
    pub(crate) array: Array,
    pub(crate) injector: Injector,
    pub(crate) trace: Trace,
    timing: Timing,
    clocks: Clocks,
    rng: Rng,
    now_ns: u64,
    /// Operations in progress, each at its number.
    ops: Vec<Option<Op>>,
    /// Numbers that no operation has.
    free_numbers: Vec<u32>,
    next_turn: u64,
    /// (when, a draw that orders what is due at once, operation).
    events: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// Completions of each queue, not reaped yet.
    done: Vec<Vec<Completion>>,
    in_flight: Vec<usize>,
    mutations: u64,
    pub(crate) pages: PageCounts,
    cut_at: Option<u64>,
    /// Cuts that are tried while something is read at once, and those that were.
    pub(crate) cut_points: Option<CutPoints>,
    pub(crate) cuts: Vec<CutMoment>,
    powered: bool,
    /// A rule that a medium cannot refuse by an answer was broken.
    pub(crate) misuse: Option<String>,
    #[cfg(feature = "broken")]
    pub(crate) broken: Option<BrokenMedium>,
}

impl Engine {
    pub(crate) fn new(geometry: Arc<Geometry>, array: Array, timing: Timing, injector: Injector, rng: Rng) -> Engine {
        Engine {
            clocks: Clocks::new(&geometry),
            geometry,
            array,
            injector,
            trace: Trace::default(),
            timing,
            rng,
            now_ns: 0,
            ops: Vec::new(),
            free_numbers: Vec::new(),
            next_turn: 0,
            events: BinaryHeap::new(),
            done: Vec::new(),
            in_flight: Vec::new(),
            mutations: 0,
            pages: PageCounts::default(),
            cut_at: None,
            cut_points: None,
            cuts: Vec::new(),
            powered: true,
            misuse: None,
            #[cfg(feature = "broken")]
            broken: None,
        }
    }

    pub(crate) fn add_queue(&mut self) -> usize {
        self.done.push(Vec::new());
        self.in_flight.push(0);
        self.done.len() - 1
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Operations so far that change something and came to their end.
    pub(crate) fn mutations(&self) -> u64 {
        self.mutations
    }

    pub(crate) fn is_powered(&self) -> bool {
        self.powered
    }

    pub(crate) fn in_flight(&self, queue: usize) -> usize {
        self.in_flight[queue]
    }

    pub(crate) fn take_done(&mut self, queue: usize, into: &mut Vec<Completion>) {
        self.in_flight[queue] -= self.done[queue].len();
        into.append(&mut self.done[queue]);
    }

    pub(crate) fn has_done(&self, queue: usize) -> bool {
        !self.done[queue].is_empty()
    }

    // --- operations -----------------------------------------------------------------------------------------------------

    pub(crate) fn submit(&mut self, queue: usize, id: IoId, io: Io) {
        self.in_flight[queue] += 1;
        if !self.powered {
            self.done[queue].push(Completion { id, io, result: Err(MediumError::Gone) });
            return;
        }
        if self.injector.is_known_bad(&io) {
            self.misuse.get_or_insert_with(|| format!("a bad block is used again: {}", name(&io)));
        }
        let refused = self.refuse(&io).err();
        let slowness = self.injector.slowness(&io);
        let mut progress = Progress::new(&io, &self.timing, &self.geometry, slowness);
        let turn = self.next_turn;
        self.next_turn += 1;
        let marker = self.array.marker();
        if refused.is_some() {
            return self.finish(Op { turn, queue, id, io, marker, progress, refused });
        }
        let number = self.free_numbers.pop().unwrap_or(self.ops.len() as u32);
        let shared = (&self.timing, &mut self.rng);
        match &io {
            Io::Read { at, .. } => self.array.prefetch_page(*at),
            Io::Persist { offset, len, .. } => self.array.prefetch_ring(*offset, *len),
            _ => {}
        }
        let when = (self.now_ns, erase_count(&self.array, &io));
        let next = self.clocks.arrive((number, &io, &mut progress), when, shared);
        if number as usize == self.ops.len() {
            self.ops.push(None);
        }
        self.ops[number as usize] = Some(Op { turn, queue, id, io, marker, progress, refused });
        self.follow(number, next);
    }

    fn refuse(&mut self, io: &Io) -> Result<(), MediumError> {
        self.injector.refuse(io)?;
        let geometry = &self.geometry;
        match io {
            Io::Read { at, into } => geometry.check_read(*at, into.len()).map(drop),
            Io::ReadOob { at, into } => geometry.check_read_oob(*at, into.len()).map(drop),
            Io::Program { at, data, oob, .. } => self.array.start_program(*at, data, oob),
            Io::Erase { block, .. } => geometry.check_erase(*block),
            Io::Persist { offset, data, len, .. } => geometry.check_ring("write", *offset, *len, data.len()),
            Io::WriteRoot { slot, data } => geometry.check_root("write", *slot, data),
            Io::Flush | Io::Resize { .. } => Ok(()),
        }
    }

    fn op(&self, number: u32) -> &Op {
        self.ops[number as usize].as_ref().expect("events belong to operations under way")
    }

    fn follow(&mut self, number: u32, next: Next) {
        match next {
            Next::At(when) => self.plan(when, number),
            Next::Waits => {}
            Next::Done => unreachable!("nothing is done before its first event"),
            Next::Yields(reader, now) => self.resume(reader, now),
        }
    }

    fn plan(&mut self, when: u64, number: u32) {
        self.events.push(Reverse((when, self.rng.draw(), number)));
    }

    fn resume(&mut self, number: u32, now: u64) {
        let op = self.ops[number as usize].as_mut().expect("operations wait until they are done");
        let shared = (&self.timing, &mut self.rng);
        let when = self.clocks.resume(&mut op.progress, (now, erase_count(&self.array, &op.io)), shared);
        self.plan(when, number);
    }

    /// When something happens next.
    pub(crate) fn next_event(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((when, ..))| *when)
    }

    /// Whether the next event is the end of an operation that changes something.
    pub(crate) fn next_mutates(&self) -> bool {
        self.events.peek().is_some_and(|Reverse((.., number))| mutates(&self.op(*number).io))
    }

    /// Lets time pass without anything happening.
    pub(crate) fn wait_until(&mut self, when: u64) {
        self.now_ns = self.now_ns.max(when);
    }

    /// Goes to the next event and lets it happen; false if there is none.
    pub(crate) fn advance(&mut self) -> bool {
        let Some(Reverse((when, _, number))) = self.events.pop() else { return false };
        self.wait_until(when);
        let op = self.ops[number as usize].as_mut().expect("events belong to operations under way");
        let shared = (&self.timing, &mut self.rng);
        let when = (self.now_ns, erase_count(&self.array, &op.io));
        match self.clocks.advance((number, &mut op.progress), when, shared) {
            Next::Done => self.end(number),
            next => {
                if let Io::Read { at, into } = &op.io {
                    self.array.prefetch_data(*at, into.len());
                }
                self.follow(number, next);
            }
        }
        true
    }

    /// Lets everything happen that is due by `until`, at most until an operation of the queue is done or `stop` returns true.
    pub(crate) fn run_until(&mut self, until: u64, queue: usize, stop: impl Fn() -> bool) {
        while !self.has_done(queue) && !stop() {
            match self.next_event() {
                Some(when) if when <= until => drop(self.advance()),
                Some(_) | None => return self.wait_until(until),
            }
        }
    }

    fn end(&mut self, number: u32) {
        if mutates(&self.op(number).io) {
            self.mutations += 1;
            if self.cut_at == Some(self.mutations) {
                self.cut(self.mutations);
                return;
            }
        }
        let op = self.ops[number as usize].take().expect("ends once");
        self.free_numbers.push(number);
        self.count_pages(&op.io);
        if let Some(next) = self.clocks.leave(&op.progress) {
            self.resume(next, self.now_ns);
        }
        self.finish(op);
    }

    fn count_pages(&mut self, io: &Io) {
        let page_bytes = self.geometry.page_bytes as usize;
        match io {
            Io::Read { at, into } => {
                let chunk_bytes = self.geometry.chunk_bytes as usize;
                let start = self.geometry.split(*at).1 as usize * chunk_bytes % page_bytes;
                self.pages.read += (start + into.len()).div_ceil(page_bytes) as u64;
            }
            Io::Program { data, .. } => self.pages.written += data.len().div_ceil(page_bytes) as u64,
            Io::WriteRoot { data, .. } => self.pages.written += data.len().div_ceil(page_bytes) as u64,
            Io::ReadOob { .. } | Io::Erase { .. } | Io::Persist { .. } | Io::Flush | Io::Resize { .. } => {}
        }
    }

    /// Applies an operation and notifies its queue.
    fn finish(&mut self, op: Op) {
        let Op { queue, id, mut io, marker, refused, .. } = op;
        let result = match refused {
            Some(error) => Err(error),
            None => {
                let erase_count = erase_count(&self.array, &io);
                match self.injector.strike(&io, &self.geometry, erase_count, self.mutations) {
                    Ok(()) => {
                        let applied = self.apply(&mut io, marker);
                        self.geometry = self.array.geometry().clone();
                        applied
                    }
                    Err(Strike::Dead(error)) => Err(error),
                    Err(Strike::Failed(error)) => {
                        self.array.fail(&io, marker, &mut self.rng);
                        self.geometry = self.array.geometry().clone();
                        Err(error)
                    }
                }
            }
        };
        if let (Ok(()), Io::Read { into, .. } | Io::ReadOob { into, .. }) = (&result, &mut io) {
            self.injector.flip(into);
        }
        self.trace.note(self.now_ns);
        self.trace.note(fingerprint(&io) ^ mix(u64::from(result.is_ok())));
        self.done[queue].push(Completion { id, io, result });
    }

    #[cfg(not(feature = "broken"))]
    fn apply(&mut self, io: &mut Io, marker: Done) -> Result<(), MediumError> {
        self.array.apply(io, marker)
    }

    /// Keeps the promise, or only reports it.
    #[cfg(feature = "broken")]
    fn apply(&mut self, io: &mut Io, marker: Done) -> Result<(), MediumError> {
        let skipped = match self.broken {
            Some(BrokenMedium::SkipsPersists) => matches!(io, Io::Persist { .. }) && self.rng.one_in(8),
            Some(BrokenMedium::IgnoresFlushes) => matches!(io, Io::Flush),
            Some(BrokenMedium::LosesUrgency) => {
                if let Io::Program { urgent, .. } = io {
                    *urgent = false;
                }
                false
            }
            None => false,
        };
        if skipped { Ok(()) } else { self.array.apply(io, marker) }
    }

    // --- power -----------------------------------------------------------------------------------------------------------

    /// Power fails when the `n`-th operation from the beginning that changes something would be done.
    pub(crate) fn cut_at(&mut self, n: Option<u64>) {
        self.cut_at = n;
    }

    /// The array as a power cut at this moment may leave it.
    pub(crate) fn array_after_cut(&self, choice: u64) -> Array {
        let mut array = self.array.clone();
        let mut under_way: Vec<&Op> = self.ops.iter().flatten().collect();
        under_way.sort_by_key(|op| op.turn);
        array.lose_power(under_way.into_iter().map(|op| &op.io), &mut Rng::new(choice));
        array
    }

    /// What stays the same when another engine continues with this one's flash.
    pub(crate) fn inherit(&mut self, other: &Engine) {
        self.injector.inherit(&other.injector);
        self.mutations = other.mutations;
        #[cfg(feature = "broken")]
        {
            self.broken = other.broken;
        }
    }

    /// Power fails now.
    pub(crate) fn cut(&mut self, choice: u64) {
        self.array = self.array_after_cut(choice);
        self.geometry = self.array.geometry().clone();
        self.powered = false;
        self.cut_at = None;
        self.injector.told_bad.clear();
        self.events.clear();
        let mut under_way: Vec<Op> = std::mem::take(&mut self.ops).into_iter().flatten().collect();
        under_way.sort_by_key(|op| op.turn);
        self.free_numbers.clear();
        for op in under_way {
            self.done[op.queue].push(Completion { id: op.id, io: op.io, result: Err(MediumError::Gone) });
        }
        self.clocks = Clocks::new(&self.geometry);
    }

    /// Power is back.
    pub(crate) fn power_on(&mut self) {
        self.powered = true;
    }
}

/// Of the block that an operation changes.
fn erase_count(array: &Array, io: &Io) -> u32 {
    match io {
        Io::Program { at, .. } => array.erase_count(at.block),
        Io::Erase { block, .. } => array.erase_count(*block),
        _ => 0,
    }
}

/// Whether an operation changes something: what power cuts are counted by.
pub(crate) fn mutates(io: &Io) -> bool {
    !matches!(io, Io::Read { .. } | Io::ReadOob { .. })
}

fn fingerprint(io: &Io) -> u64 {
    let (kind, at, len) = match io {
        Io::Read { at, into } => (1, at.0, into.len()),
        Io::ReadOob { at, into } => (2, block_and_page(at.block, at.page), into.len()),
        Io::Program { at, data, .. } => (3, block_and_page(at.block, at.page), data.len()),
        Io::Erase { block, .. } => (4, block_and_page(*block, 0), 0),
        Io::Persist { offset, len, .. } => (5, *offset, *len),
        Io::WriteRoot { slot, data } => (6, u64::from(*slot), data.len()),
        Io::Flush => (7, 0, 0),
        Io::Resize { blocks_per_die, .. } => (8, u64::from(*blocks_per_die), 0),
    };
    mix(kind << 56 ^ at << 20 ^ len as u64)
}

fn block_and_page(block: BlockIndex, page: u32) -> u64 {
    u64::from(block.0) << 24 | u64::from(page)
}

fn name(io: &Io) -> String {
    match io {
        Io::Program { at, .. } => format!("program at {at}"),
        Io::Erase { block, .. } => format!("erase of {block}"),
        other => format!("{other:?}"),
    }
}
