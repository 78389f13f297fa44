//! The simulated NAND as a `Medium`: the same face as a file has, over virtual time.
//!
//! Lives here:       handles, queues, forks of the bytes as a power cut would leave them.
//! Lives elsewhere:  what happens below (`engine`).
//! Implements:       `kaml_flash::{Medium, Queue}`; docs/simulation.md.

use crate::array::{Array, Keep};
use crate::cuts::{CutMoment, CutPoints};
use crate::engine::{Engine, PageCounts};
use crate::faults::{FaultCounts, Faults, Injector};
use crate::rng::Rng;
use crate::timing::Timing;
use kaml_flash::{AlignedBuf, Completion, Geometry, GeometryError, Io, IoId, Medium, MediumError, Queue, Wait, Wake};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// What a simulated medium is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long operations take.
    pub timing: Timing,
    /// The faults.
    pub faults: Faults,
    /// How bytes are kept.
    pub keep: Keep,
    /// What erased pages read: 0x00 or 0xFF.
    pub blank: u8,
    /// Of all chances below.
    pub seed: u64,
}

/// Simulated NAND. A clone is another handle on the same flash.
#[derive(Clone)]
pub struct SimMedium {
    /// As of the last opening or fork.
    geometry: Arc<Geometry>,
    options: Arc<Options>,
    engine: Arc<Mutex<Engine>>,
}

/// Synchronous operations have a queue of their own.
const SYNCHRONOUS: usize = 0;

impl SimMedium {
    /// Erased flash.
    pub fn new(geometry: Geometry, options: Options) -> Result<SimMedium, GeometryError> {
        geometry.check()?;
        let geometry = Arc::new(geometry);
        let array = Array::new(geometry.clone(), options.keep, options.blank);
        Ok(Self::assemble(geometry, options, array))
    }

    fn assemble(geometry: Arc<Geometry>, options: Options, array: Array) -> SimMedium {
        let mut rng = Rng::new(options.seed);
        let injector = Injector::new(options.faults.clone(), rng.branch(1));
        let mut engine = Engine::new(geometry.clone(), array, options.timing.clone(), injector, rng.branch(2));
        assert_eq!(engine.add_queue(), SYNCHRONOUS);
        SimMedium { geometry, options: Arc::new(options), engine: Arc::new(Mutex::new(engine)) }
    }

    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().expect("the engine does not panic")
    }

    /// Virtual time.
    pub fn now_ns(&self) -> u64 {
        self.engine().now_ns()
    }

    /// Operations that changed something, so far: power cuts are named by this number.
    pub fn mutations(&self) -> u64 {
        self.engine().mutations()
    }

    /// Pages that operations read and wrote so far.
    pub fn page_counts(&self) -> PageCounts {
        self.engine().pages
    }

    /// Fingerprint of all completions so far.
    pub fn trace_hash(&self) -> u64 {
        self.engine().trace.hash()
    }

    /// How often faults struck.
    pub fn fault_counts(&self) -> FaultCounts {
        self.engine().injector.counts
    }

    /// The faults that it was made with.
    pub fn faults(&self) -> &Faults {
        &self.options.faults
    }

    /// From now on these go wrong instead; what is broken stays broken.
    pub fn set_faults(&self, faults: Faults) {
        self.engine().injector.set_faults(faults);
    }

    /// From now on no read fails and no bit flips; what is stored does not change.
    pub fn spare_reads(&self, spared: bool) {
        self.engine().injector.reads_spared = spared;
    }

    /// Blocks that failed so far.
    pub fn bad_blocks(&self) -> BTreeSet<u32> {
        self.engine().injector.bad.clone()
    }

    /// Those of them whose failure was reported since power came on.
    pub fn bad_blocks_told(&self) -> BTreeSet<u32> {
        self.engine().injector.told_bad.clone()
    }

    /// The firmware has durably noted that these blocks failed, too: using one again is a mistake from now on.
    pub fn bad_blocks_are_known(&self, blocks: BTreeSet<u32>) {
        self.engine().injector.known_bad.extend(blocks);
    }

    /// A use of the medium that no answer could refuse, if there was one.
    pub fn misuse(&self) -> Option<String> {
        self.engine().misuse.clone()
    }

    /// Power fails when the `n`-th operation from now that changes something would be done.
    pub fn cut_after(&self, n: u64) {
        let mut engine = self.engine();
        let at = engine.mutations() + n;
        engine.cut_at(Some(at));
    }

    /// Time of the next event, if anything is in progress.
    pub fn next_event(&self) -> Option<u64> {
        self.engine().next_event()
    }

    /// Whether the next event ends an operation that changes something.
    pub fn next_mutates(&self) -> bool {
        self.engine().next_mutates()
    }

    /// Goes to the next event and lets it happen; false if there is none.
    pub fn advance(&self) -> bool {
        self.engine().advance()
    }

    /// Lets time pass without anything happening.
    pub fn wait_until(&self, when: u64) {
        self.engine().wait_until(when);
    }

    /// Power fails now; `choice` states what remains of what was not durable.
    pub fn cut(&self, choice: u64) {
        self.engine().cut(choice);
    }

    /// Whether power is gone.
    pub fn is_cut(&self) -> bool {
        !self.engine().is_powered()
    }

    /// Power is back.
    pub fn power_on(&self) {
        let mut engine = self.engine();
        engine.cut_at(None);
        engine.power_on();
    }

    /// The handle with which the firmware is opened again: it has the shape of now.
    #[must_use]
    pub fn handle(&self) -> SimMedium {
        SimMedium { geometry: self.engine().array.geometry().clone(), ..self.clone() }
    }

    /// The firmware was closed cleanly and is dropped: the medium forgets what it knew of its blocks' pages.
    pub fn reopen(&self) {
        self.engine().array.reopen();
    }

    /// Other flash, powered, with what a cut at this moment might have left of this one; this one continues.
    pub fn fork_after_cut(&self, choice: u64) -> SimMedium {
        self.fork(&self.engine(), choice)
    }

    fn fork(&self, engine: &Engine, choice: u64) -> SimMedium {
        let mut options = (*self.options).clone();
        options.seed = crate::rng::mix(options.seed ^ choice);
        let array = engine.array_after_cut(choice);
        let fork = Self::assemble(array.geometry().clone(), options, array);
        fork.engine().inherit(engine);
        fork
    }

    /// From now on these cuts are tried where something happens while [`Medium::execute`] waits for what it was requested; nobody
    /// else sees those moments.
    pub(crate) fn cut_within_reads(&self, points: Option<CutPoints>) {
        self.engine().cut_points = points;
    }

    /// Those that were tried since this was asked last.
    pub(crate) fn take_cuts(&self) -> Vec<CutMoment> {
        std::mem::take(&mut self.engine().cuts)
    }

    /// The cut just before the operation that is done next, if it is one of `points`.
    pub(crate) fn cut_here(&self, points: CutPoints) -> Option<CutMoment> {
        self.cut_moment(&self.engine(), points)
    }

    fn cut_moment(&self, engine: &Engine, points: CutPoints) -> Option<CutMoment> {
        let number = engine.mutations() + 1;
        let mut draw = points.at(number).filter(|_| engine.next_mutates())?;
        let state = draw.draw();
        Some(CutMoment { number, state, fork: self.fork(engine, state), draw })
    }

    /// Breaks one of the medium's promises from now on.
    #[cfg(feature = "broken")]
    pub fn break_promise(&self, broken: Option<crate::broken::BrokenMedium>) {
        self.engine().broken = broken;
    }
}

impl Medium for SimMedium {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn uuid(&self) -> [u8; 16] {
        *b"KAML simulated\0\0"
    }

    fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
        let mut engine = self.engine();
        engine.submit(SYNCHRONOUS, 0, std::mem::replace(io, Io::Flush));
        while !engine.has_done(SYNCHRONOUS) {
            let cut = engine.cut_points.and_then(|points| self.cut_moment(&engine, points));
            engine.cuts.extend(cut);
            assert!(engine.advance(), "an operation in flight has an event to come");
        }
        let mut done = Vec::new();
        engine.take_done(SYNCHRONOUS, &mut done);
        let completion = done.pop().expect("just seen");
        *io = completion.io;
        completion.result
    }

    fn blocks_in(&self, capacity_bytes: u64) -> Option<u32> {
        let die_bytes = self.geometry.block_bytes() * u64::from(self.geometry.die_count());
        Some((capacity_bytes / die_bytes).min(1 << 20) as u32)
    }

    fn queue(&self, _depth: u32) -> Box<dyn Queue> {
        Box::new(SimQueue::new(self))
    }

    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.geometry.check_root("read", slot, into)?;
        let mut engine = self.engine();
        engine.array.read_root(slot, into);
        engine.injector.flip(into);
        if engine.is_powered() { Ok(()) } else { Err(MediumError::Gone) }
    }

    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.geometry.check_ring("read", offset, into.len(), into.len())?;
        let mut engine = self.engine();
        engine.array.read_ring(offset, into);
        engine.injector.flip(into);
        if engine.is_powered() { Ok(()) } else { Err(MediumError::Gone) }
    }

    fn describe(&self) -> String {
        let g = &self.geometry;
        format!(
            "simulated NAND, {} channels of {} dies, {} blocks of {} pages a die",
            g.channel_count, g.dies_per_channel, g.blocks_per_die, g.pages_per_block
        )
    }
}

/// Operations in flight on a [`SimMedium`]; waiting makes virtual time pass.
pub struct SimQueue {
    medium: SimMedium,
    number: usize,
    /// Before this moment nothing happens on the medium, unless somebody else uses it: as of the last look.
    still_until: u64,
    wake: Arc<SimWake>,
}

#[derive(Default)]
struct SimWake(AtomicBool);

impl Wake for SimWake {
    fn wake(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl SimQueue {
    /// A queue of its own.
    pub fn new(medium: &SimMedium) -> SimQueue {
        let number = medium.engine().add_queue();
        SimQueue { medium: medium.clone(), number, still_until: 0, wake: Arc::default() }
    }

    /// Lets things happen until one of this queue's operations is done, at most what is due by `when`; returns the time
    /// then and appends what is done. A caller that uses the medium in other ways meanwhile lets it [`SimMedium::wait_until`] that time
    /// first: when nothing is due, the medium is not asked.
    pub(crate) fn run_until(&mut self, when: u64, done: &mut Vec<Completion>) -> u64 {
        if when < self.still_until {
            return when;
        }
        let mut engine = self.medium.engine();
        engine.run_until(when, self.number, || false);
        if engine.has_done(self.number) {
            engine.take_done(self.number, done);
        }
        self.still_until = engine.next_event().unwrap_or(u64::MAX);
        engine.now_ns()
    }

    /// Somebody else has used the medium.
    pub(crate) fn look_again(&mut self) {
        self.still_until = 0;
    }

    /// Hands an operation over at a time that [`SimQueue::run_until`] has returned.
    pub(crate) fn submit_at(&mut self, now: u64, id: IoId, io: Io) {
        let mut engine = self.medium.engine();
        engine.wait_until(now);
        engine.submit(self.number, id, io);
        // What is refused is done at once.
        let is_done = engine.has_done(self.number);
        self.still_until = if is_done { 0 } else { engine.next_event().unwrap_or(u64::MAX) };
    }
}

impl Queue for SimQueue {
    fn submit(&mut self, id: IoId, io: Io) {
        self.medium.engine().submit(self.number, id, io);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) {
        let mut engine = self.medium.engine();
        if let Wait::ForNs(ns) = wait {
            let until = engine.now_ns().saturating_add(ns);
            engine.run_until(until, self.number, || self.wake.0.load(Ordering::Acquire));
        }
        self.wake.0.store(false, Ordering::Release);
        engine.take_done(self.number, done);
    }

    fn in_flight(&self) -> usize {
        self.medium.engine().in_flight(self.number)
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.wake.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaml_flash::{BlockIndex, Packing, PageAddr};

    fn geometry() -> Geometry {
        Geometry {
            channel_count: 2,
            dies_per_channel: 2,
            blocks_per_die: 4,
            pages_per_block: 8,
            page_bytes: 4096,
            oob_bytes: 64,
            chunk_bytes: 64,
            pages_per_program: 1,
            packing: Packing::WithinPage,
            ring_bytes: 1 << 20,
            sector_bytes: 512,
            root_bytes: 1 << 14,
        }
    }

    fn medium(keep: Keep) -> SimMedium {
        let timing = Timing::Chaos { ns_max: 1000 };
        let options = Options { timing, faults: Faults::default(), keep, blank: 0xFF, seed: 5 };
        SimMedium::new(geometry(), options).unwrap()
    }

    fn program(block: u32, page: u32, byte: u8, urgent: bool) -> Io {
        let at = PageAddr { block: BlockIndex(block), page };
        Io::Program { at, data: Arc::new(AlignedBuf::copy_of(&[byte; 4096])), oob: vec![byte; 64], urgent }
    }

    fn read(medium: &SimMedium, block: u32, page: u32) -> (Vec<u8>, Vec<u8>) {
        let at = geometry().chunk_at(BlockIndex(block), page * 64);
        let mut io = Io::Read { at, into: AlignedBuf::zeroed(4096) };
        medium.execute(&mut io).unwrap();
        let Io::Read { into: data, .. } = io else { unreachable!() };
        let at = PageAddr { block: BlockIndex(block), page };
        let mut io = Io::ReadOob { at, into: AlignedBuf::zeroed(64) };
        medium.execute(&mut io).unwrap();
        let Io::ReadOob { into: oob, .. } = io else { unreachable!() };
        (data.to_vec(), oob.to_vec())
    }

    /// Goal:   bytes come back, NAND rules are refused, whichever way pages are kept.
    /// Method: program, read, program again, out of order, after an erase.
    #[test]
    fn nand_rules_hold() {
        for keep in [Keep::Bytes, Keep::Runs] {
            let medium = medium(keep);
            assert_eq!(read(&medium, 3, 0), (vec![0xFF; 4096], vec![0xFF; 64]));
            medium.execute(&mut program(3, 0, 7, false)).unwrap();
            assert_eq!(read(&medium, 3, 0), (vec![7; 4096], vec![7; 64]));
            for page in [0, 2] {
                let refused = medium.execute(&mut program(3, page, 8, false));
                assert!(matches!(refused, Err(MediumError::OutOfOrder { expected: 1, .. })), "{refused:?}");
            }
            medium.reopen();
            let refused = medium.execute(&mut program(3, 0, 8, false));
            assert!(matches!(refused, Err(MediumError::OutOfOrder { expected: 8, .. })), "{refused:?}");
            medium.execute(&mut Io::Erase { block: BlockIndex(3), release: false }).unwrap();
            medium.execute(&mut program(3, 0, 9, false)).unwrap();
            assert_eq!(read(&medium, 3, 0).0, vec![9; 4096]);
            assert!(medium.execute(&mut program(99, 0, 9, false)).is_err());
        }
    }

    /// Goal:   a power cut loses what may be lost in some states, and never what must be kept.
    /// Method: many forks of one moment: flushed, urgent before a barrier, completed and in-flight programs, an erase, a
    ///         ring write.
    #[test]
    fn cuts_leave_what_they_may() {
        let medium = medium(Keep::Bytes);
        let erase = |block| Io::Erase { block: BlockIndex(block), release: false };
        medium.execute(&mut program(0, 0, 1, false)).unwrap();
        medium.execute(&mut program(4, 0, 1, false)).unwrap();
        medium.execute(&mut Io::Flush).unwrap();
        medium.execute(&mut program(1, 0, 2, true)).unwrap();
        let barrier = Io::Persist { offset: 8192, data: AlignedBuf::zeroed(512), len: 512, barrier: true };
        medium.execute(&mut { barrier }).unwrap();
        medium.execute(&mut program(2, 0, 3, true)).unwrap();
        medium.execute(&mut erase(4)).unwrap();
        let mut queue = SimQueue::new(&medium);
        queue.submit(1, program(3, 0, 4, true));
        queue.submit(2, Io::Persist { offset: 512, data: AlignedBuf::copy_of(&[5; 4096]), len: 4096, barrier: true });
        let (mut kept, mut torn) = ([0; 5], [0; 5]);
        for choice in 0..200 {
            let fork = medium.fork_after_cut(choice);
            assert_eq!(read(&fork, 0, 0), (vec![1; 4096], vec![1; 64]));
            assert_eq!(read(&fork, 1, 0), (vec![2; 4096], vec![2; 64]));
            let mut ring = AlignedBuf::zeroed(4096);
            fork.read_ring(512, &mut ring).unwrap();
            let data = [(2, 3), (3, 4), (4, 1)].map(|(block, byte)| (read(&fork, block, 0).0, byte));
            for (i, (bytes, byte)) in data.into_iter().chain([(ring.to_vec(), 5)]).enumerate() {
                kept[i] += u32::from(bytes == vec![byte; 4096]);
                torn[i] += u32::from(bytes.contains(&byte) && bytes != vec![byte; 4096]);
            }
        }
        assert!(kept[..4].iter().all(|n| (10..190).contains(n)), "{kept:?}");
        assert!(torn[..4].iter().all(|n| *n >= 5), "{torn:?}");
    }

    /// Goal:   a flush covers what was done before it was submitted, and nothing after.
    /// Method: submit a flush, complete a program next to it, cut.
    #[test]
    fn a_flush_covers_the_past() {
        let medium = medium(Keep::Bytes);
        medium.execute(&mut program(0, 0, 1, false)).unwrap();
        let mut queue = SimQueue::new(&medium);
        queue.submit(1, Io::Flush);
        medium.execute(&mut program(1, 0, 2, false)).unwrap();
        let mut done = Vec::new();
        queue.reap(Wait::ForNs(1 << 20), &mut done);
        let mut lost = 0;
        for choice in 0..100 {
            let fork = medium.fork_after_cut(choice);
            assert_eq!(read(&fork, 0, 0).0, vec![1; 4096]);
            lost += u32::from(read(&fork, 1, 0).0 != vec![2; 4096]);
        }
        assert!(lost > 10);
    }
}
