//! A test rig: hosts in a closed loop, link, cores, the shipped firmware and modelled flash, in virtual time.
//!
//! Lives here:       who waits for what; handing commands to the firmware and operations to the flash when they are due.
//! Lives elsewhere:  what hosts request (`load`), what link and cores take (`controller`), flash (`medium`, `timing`).
//! Implements:       docs/simulation.md, with a driver without chance.
//!
//! The way of a command: link ▶ a command core ▶ (Get) index, flash, link; (Put) data over the link ▶ the writer core:
//! staged ▶ ring write ▶ committed ▶ link. What the firmware starts by itself takes its place at the writer core.

mod error;
mod loaded;
mod precondition;
mod program;
mod replay;
mod replay_model;
mod replay_report;
mod spaces;

pub use error::RigError;
pub(crate) use program::{Class, Command, Record};
pub use replay::{Replay, ReplayCuts, ReplayError};
pub use replay_report::{Latencies, ReplayReport};

use crate::Keep;
use crate::board::Board;
use crate::controller::Controller;
use crate::faults::Faults;
use crate::load::{Ask, Load, Sheet};
use crate::medium::{Options, SimMedium, SimQueue};
use crate::rng::Rng;
use crate::timing::Timing;
use kaml_device::{
    BlockChange, BlockOptions, BlockStep, Body, Buffered, CollectionPolicy, CollectionRule, Condition, Core, CoreStats,
    FindError, FlashRead, Found, Key, Op, Reader, StageError,
};
use kaml_flash::{AlignedBuf, Completion, Io, IoId, MediumError, Queue};
use loaded::Loaded;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What a host waits for.
enum Job {
    Nothing,
    Get { number: u64 },
    Put { number: u64 },
    Batch { records: Vec<Record> },
    Delete { number: u64 },
    Read { range: std::ops::Range<u64> },
    Write { change: Box<BlockChange>, range: std::ops::Range<u64> },
}

struct Host {
    load: usize,
    began: u64,
    job: Job,
    reading: Option<FlashRead>,
}

/// What happens outside of flash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A host requests the next thing.
    Ask,
    /// The device has its command and data.
    Taken,
    /// A core starts its read.
    Read,
}

/// What the writer core is about to do.
enum Task {
    Stage(usize),
    Start(IoId, Io),
}

/// Reads of hosts have names above all that the firmware gives.
const READ_IDS: u64 = 1 << 63;
/// What passes when nothing is in progress: more than the firmware's longest pause.
const IDLE_NS: u64 = 200_000_000;
/// So long may nothing at all happen before commands count as waiting forever.
const IDLE_TURNS_MAX: u32 = 1000;
/// A logical block; units are of the usual size.
const BLOCK_BYTES: u32 = 512;
/// All reads of hosts fit.
const BUFFER_BYTES: usize = 32 << 10;

/// A device and its hosts.
pub struct Rig {
    core: Core,
    reader: Reader,
    medium: SimMedium,
    queue: SimQueue,
    /// Virtual time.
    now_ns: u64,
    controller: Controller,
    rng: Rng,
    loads: Vec<Loaded>,
    hosts: Vec<Host>,
    events: BinaryHeap<Reverse<(u64, u64, Event, usize)>>,
    next_event: u64,
    tasks: VecDeque<(u64, Task)>,
    /// Hosts whose command could not be staged.
    waiting: VecDeque<usize>,
    /// Hosts whose command is staged, by frame.
    staged: VecDeque<(u64, usize)>,
    active: usize,
    limited: usize,
    relocated_bytes: u64,
    operations: u64,
    buffers: Vec<AlignedBuf>,
    done: Vec<Completion>,
    started: Vec<(IoId, Io)>,
    replaying: Option<Box<replay::Replaying>>,
    program: Option<program::Program>,
}

impl Rig {
    /// A formatted device on a board.
    pub fn new(board: &Board, seed: u64) -> Result<Rig, RigError> {
        let mut rng = Rng::new(seed);
        let timing = Timing::Board(board.flash.clone());
        let options = Options { timing, faults: Faults::default(), keep: Keep::Runs, blank: 0xFF, seed: rng.draw() };
        let medium = SimMedium::new(board.geometry.clone(), options)?;
        Core::format(&medium)?;
        let (core, _) = Core::open(&medium)?;
        Ok(Rig {
            reader: core.reader(),
            core,
            queue: SimQueue::new(&medium),
            now_ns: medium.now_ns(),
            medium,
            controller: Controller::new(board.link.clone(), board.controller.clone()),
            rng,
            loads: Vec::new(),
            hosts: Vec::new(),
            events: BinaryHeap::new(),
            next_event: 0,
            tasks: VecDeque::new(),
            waiting: VecDeque::new(),
            staged: VecDeque::new(),
            active: 0,
            limited: 0,
            relocated_bytes: 0,
            operations: 0,
            buffers: Vec::new(),
            done: Vec::new(),
            started: Vec::new(),
            replaying: None,
            program: None,
        })
    }

    /// Collects by another policy from now on.
    pub fn set_collection_policy(&mut self, policy: CollectionPolicy) {
        self.core.set_collection_policy(policy);
    }

    /// Collects by a rule of the caller's from now on.
    pub fn set_own_collection_policy(&mut self, rule: Box<dyn CollectionRule>) {
        self.core.set_collection_rule(rule);
    }

    /// Virtual time.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// What the firmware has done.
    pub fn stats(&self) -> CoreStats {
        self.core.stats()
    }

    /// Commands of hosts and operations of the medium executed.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Fingerprint of all that the flash did and when.
    pub fn trace_hash(&self) -> u64 {
        self.medium.trace_hash()
    }

    /// Runs loads side by side until each that has an end is at it; returns what each came to.
    pub fn run(&mut self, loads: &[Load]) -> Result<Vec<Sheet>, RigError> {
        self.loads = loads.iter().map(Loaded::new).collect();
        self.limited = loads.iter().filter(|load| load.commands.is_some()).count();
        self.hosts.clear();
        let now = self.now_ns;
        for (number, load) in loads.iter().enumerate() {
            for _ in 0..load.hosts {
                self.hosts.push(Host { load: number, began: 0, job: Job::Nothing, reading: None });
                self.push(now, Event::Ask, self.hosts.len() - 1);
            }
        }
        self.active = self.hosts.len();
        let mut idle_turns = 0;
        while self.active > 0 {
            idle_turns = if self.step()? { 0 } else { idle_turns + 1 };
            if idle_turns > IDLE_TURNS_MAX {
                return Err(RigError::Stuck(format!("{:?}", self.core)));
            }
        }
        Ok(self.loads.drain(..).map(|loaded| loaded.sheet).collect())
    }

    /// Lets everything come to its end that continues without hosts: programs, erases, collection, roots.
    pub fn rest(&mut self) -> Result<(), RigError> {
        self.poll()?;
        while !self.core.is_idle() || !self.tasks.is_empty() {
            self.step()?;
        }
        Ok(())
    }

    /// Programs everything that waits in buffers, too.
    pub fn settle(&mut self) -> Result<(), RigError> {
        let request = self.core.request_root(true);
        self.poll()?;
        while self.core.roots_done() < request {
            self.step()?;
        }
        self.rest()
    }

    // --- time ---------------------------------------------------------------------------------------------------------

    fn push(&mut self, when: u64, event: Event, host: usize) {
        self.events.push(Reverse((when, self.next_event, event, host)));
        self.next_event += 1;
    }

    /// Lets the next thing happen; false if nothing was due and time passed instead.
    fn step(&mut self) -> Result<bool, RigError> {
        let never = u64::MAX;
        let event = self.events.peek().map_or(never, |Reverse((when, ..))| *when);
        let task = self.tasks.front().map_or(never, |(when, _)| *when);
        let next = event.min(task);
        if next == never && self.queue.in_flight() == 0 {
            self.now_ns += IDLE_NS;
            self.medium.wait_until(self.now_ns);
            self.poll()?;
            return Ok(false);
        }
        self.now_ns = self.queue.run_until(next, &mut self.done);
        if !self.done.is_empty() {
            self.deliver()?;
        } else if next == task {
            let (_, task) = self.tasks.pop_front().expect("just seen");
            self.do_task(task)?;
        } else {
            let Reverse((_, _, event, host)) = self.events.pop().expect("just seen");
            match event {
                Event::Ask if self.replaying.is_some() => self.replay_event(host),
                Event::Ask => match &mut self.program {
                    Some(program) => program.done.push_back(host),
                    None => self.ask(host)?,
                },
                Event::Taken => self.taken(next, host)?,
                Event::Read => self.start_read(host),
            }
        }
        Ok(true)
    }

    /// Loads an index while everything else waits.
    fn load_index(&mut self, space: u32) -> Result<(), RigError> {
        self.medium.wait_until(self.now_ns);
        self.core.load_index(&self.medium, space)?;
        self.queue.look_again();
        self.now_ns = self.medium.now_ns();
        Ok(())
    }

    // --- commands -----------------------------------------------------------------------------------------------------

    fn ask(&mut self, host: usize) -> Result<(), RigError> {
        let now = self.now_ns;
        let entry = &mut self.hosts[host];
        let loaded = &mut self.loads[entry.load];
        let over = loaded.load.total().map_or(self.limited == 0, |total| loaded.issued >= total);
        if over {
            self.active -= 1;
            return Ok(());
        }
        let load = &loaded.load;
        let number = load.pick(loaded.issued, &mut self.rng);
        loaded.issued += 1;
        let value_bytes = u64::from(load.bytes);
        let (probes, data) = match load.ask {
            Ask::Get | Ask::Read => (1, 0),
            Ask::Put => (0, load.batch * value_bytes),
            Ask::Write => (0, value_bytes),
        };
        if matches!(load.ask, Ask::Get | Ask::Put) {
            // As the drivers of real devices do: other hosts' commands pass before this one comes to the index.
            for i in 0..load.batch {
                self.core.prefetch(load.space, &Key::from(Load::key(load.wrap(number + i))).into());
            }
        }
        entry.job = match load.ask {
            Ask::Get => Job::Get { number },
            Ask::Put => Job::Put { number },
            Ask::Read => Job::Read { range: number * value_bytes..(number + 1) * value_bytes },
            Ask::Write => {
                let first = number * value_bytes / u64::from(BLOCK_BYTES);
                let change = BlockChange::write(&self.reader, load.space, first, &loaded.value)?;
                Job::Write { change: Box::new(change), range: number * value_bytes..(number + 1) * value_bytes }
            }
        };
        entry.began = now;
        let taken = self.controller.take(now, data, probes);
        self.push(taken, Event::Taken, host);
        Ok(())
    }

    /// The device has a command and what it needs of the host.
    fn taken(&mut self, now: u64, host: usize) -> Result<(), RigError> {
        let records = match &self.hosts[host].job {
            Job::Put { .. } => self.loads[self.hosts[host].load].load.batch,
            Job::Batch { records } => records.len() as u64,
            Job::Write { .. } | Job::Delete { .. } => 1,
            Job::Get { .. } | Job::Read { .. } => return self.look_up(now, host),
            Job::Nothing => unreachable!("a command was taken"),
        };
        let when = self.controller.write(now, records);
        self.tasks.push_back((when, Task::Stage(host)));
        Ok(())
    }

    fn do_task(&mut self, task: Task) -> Result<(), RigError> {
        match task {
            Task::Stage(host) if self.waiting.is_empty() => {
                if !self.stage(host)? {
                    self.waiting.push_back(host);
                }
            }
            Task::Stage(host) => self.waiting.push_back(host),
            Task::Start(id, io) => {
                self.queue.submit_at(self.now_ns, id, io);
                return Ok(());
            }
        }
        self.go_on()
    }

    /// Returns whether the firmware took it.
    fn stage(&mut self, host: usize) -> Result<bool, RigError> {
        let Host { load, job, .. } = &mut self.hosts[host];
        let loads = &self.loads;
        let Loaded { load, value, crc32c, .. } = &loads[*load];
        let frame = match job {
            Job::Batch { records } => self.core.stage(&program::ops(loads, records)),
            Job::Put { number } => {
                let op = |number| Op {
                    namespace: load.space,
                    key: Key::from(Load::key(number)).into(),
                    body: Body::Value { value, crc32c: *crc32c },
                    condition: Condition::Always,
                    expires: Default::default(),
                };
                match load.batch {
                    1 => self.core.stage(&[op(*number)]),
                    batch => self.core.stage(&(0..batch).map(|i| op(load.wrap(*number + i))).collect::<Vec<_>>()),
                }
            }
            Job::Delete { number } => self.core.stage(&[Op {
                namespace: load.space,
                key: Key::from(Load::key(*number)).into(),
                body: Body::Delete,
                condition: Condition::Always,
                expires: Default::default(),
            }]),
            Job::Write { change, .. } => match change.stage(&mut self.core, value) {
                Ok(BlockStep::Done(frame)) => Ok(frame.expect("a write stages something")),
                Ok(BlockStep::More) => return self.stage(host),
                Ok(BlockStep::Read(read)) => {
                    self.hosts[host].reading = Some(read);
                    let when = self.controller.operate(self.now_ns);
                    self.push(when, Event::Read, host);
                    return Ok(true);
                }
                Err(error) => Err(error),
            },
            _ => unreachable!("only what changes something is staged"),
        };
        match frame {
            Ok(frame) => {
                self.staged.push_back((frame, host));
                Ok(true)
            }
            Err(StageError::Busy | StageError::RefusedAfter(..)) => Ok(false),
            Err(StageError::NeedIndex(id)) => {
                self.load_index(id)?;
                self.stage(host)
            }
            Err(StageError::Refused(error)) => Err(error.into()),
        }
    }

    fn look_up(&mut self, now: u64, host: usize) -> Result<(), RigError> {
        if self.replaying.is_some() {
            self.expect(host);
        }
        let Host { load, job, .. } = &self.hosts[host];
        let space = self.loads[*load].load.space;
        let (found, key) = match job {
            Job::Get { number } => {
                let key = Key::from(Load::key(*number));
                (self.reader.find(space, key), key)
            }
            Job::Read { range } => {
                let unit = range.start / u64::from(BlockOptions::default().unit_bytes);
                (self.reader.find_unit(space, unit), Key::from(unit))
            }
            _ => unreachable!("only reads look up"),
        };
        let read = match found {
            Ok(Found::Flash(read)) => read,
            Ok(Found::Buffered) => match self.core.read_buffered(space, key) {
                Ok(Buffered::Value(value)) => return self.found(host, &value),
                Ok(Buffered::Packed(packed)) => return self.found(host, &packed.unpack()?),
                Ok(Buffered::Programmed(read)) => read,
                Ok(Buffered::Absent) => return self.found(host, &[]),
                Err(FindError::NeedIndex) => unreachable!("found under the same core"),
                Err(FindError::Refused(error)) => return Err(error.into()),
            },
            Ok(Found::Absent) => return self.found(host, &[]),
            Err(FindError::NeedIndex) => {
                self.load_index(space)?;
                return self.look_up(now, host);
            }
            Err(FindError::Refused(error)) => return Err(error.into()),
        };
        self.hosts[host].reading = Some(read);
        let when = self.controller.read(now);
        self.push(when, Event::Read, host);
        Ok(())
    }

    fn start_read(&mut self, host: usize) {
        let read = self.hosts[host].reading.as_ref().expect("it is about to be read");
        let mut into = self.buffers.pop().unwrap_or_else(|| AlignedBuf::zeroed(BUFFER_BYTES));
        into.set_len(read.bytes);
        self.queue.submit_at(self.now_ns, READ_IDS + host as u64, Io::Read { at: read.at, into });
    }

    fn read_done(&mut self, host: usize, io: Io, result: Result<(), MediumError>) -> Result<(), RigError> {
        result?;
        let Io::Read { into, .. } = io else { unreachable!("the operation of a read") };
        let read = self.hosts[host].reading.take().expect("a read completes one time");
        let found = read.value(&into)?;
        match &mut self.hosts[host].job {
            Job::Write { change, .. } => {
                change.supply(read, found.of(&into).to_vec())?;
                let when = self.controller.write(self.now_ns, 1);
                self.tasks.push_back((when, Task::Stage(host)));
            }
            _ if self.replaying.is_some() => self.replay_found(host, found.of(&into), true)?,
            _ => self.found(host, found.of(&into))?,
        }
        self.buffers.push(into);
        Ok(())
    }

    /// The value of a Get, or the unit that a read is about: it must be what was put, and the host gets its part.
    fn found(&mut self, host: usize, value: &[u8]) -> Result<(), RigError> {
        if self.replaying.is_some() {
            return self.replay_found(host, value, false);
        }
        let loaded = &self.loads[self.hosts[host].load];
        let right = match &self.hosts[host].job {
            Job::Get { .. } => value == loaded.value,
            Job::Read { range } => {
                let start = (range.start % value.len().max(1) as u64) as usize;
                value.get(start..start + loaded.value.len()) == Some(&loaded.value[..])
            }
            _ => unreachable!("only reads find something"),
        };
        if !right {
            return Err(RigError::Wrong(format!("a {:?} found {} other bytes", loaded.load.ask, value.len())));
        }
        self.answer(host, u64::from(loaded.load.bytes));
        Ok(())
    }

    fn answer(&mut self, host: usize, bytes: u64) {
        let now = self.now_ns;
        let when = self.controller.answer(now, bytes);
        if self.replaying.is_some() {
            return self.replay_committed(host, when);
        }
        let entry = &mut self.hosts[host];
        let loaded = &mut self.loads[entry.load];
        entry.job = Job::Nothing;
        loaded.completed += 1;
        self.operations += 1;
        if loaded.completed > loaded.load.warm_up {
            loaded.sheet.note(entry.began, when, u64::from(loaded.load.bytes) * loaded.load.batch);
        }
        if loaded.load.total() == Some(loaded.completed) {
            self.limited -= 1;
        }
        self.push(when, Event::Ask, host);
    }

    // --- firmware -----------------------------------------------------------------------------------------------------

    /// Takes what the flash has done.
    fn deliver(&mut self) -> Result<(), RigError> {
        let mut done = std::mem::take(&mut self.done);
        let (mut moved, mut polls) = (false, false);
        for completion in done.drain(..) {
            self.operations += 1;
            if completion.id >= READ_IDS {
                self.read_done((completion.id - READ_IDS) as usize, completion.io, completion.result)?;
                continue;
            }
            moved |= matches!(completion.io, Io::Read { .. });
            polls |= !matches!(completion.io, Io::Persist { .. });
            self.core.complete(completion);
        }
        self.done = done;
        if polls {
            self.poll()?;
        }
        if moved {
            self.charge_moves();
        }
        self.go_on()
    }

    /// What collection moves takes time of the writer core.
    fn charge_moves(&mut self) {
        let relocated = self.core.stats().relocated_bytes;
        let record = match &self.replaying {
            Some(replaying) => replaying.value_bytes_mean(),
            None => self.loads.first().map_or(u64::MAX, |loaded| u64::from(loaded.load.bytes)),
        };
        self.controller.relocate(self.now_ns, (relocated - self.relocated_bytes) / record.max(1));
        self.relocated_bytes = relocated;
    }

    /// Something has changed: completions, the commands that wait, the next ring write, whatever the firmware emits.
    fn go_on(&mut self) -> Result<(), RigError> {
        let committed = self.core.committed();
        while self.staged.front().is_some_and(|(frame, _)| *frame < committed)
            && let Some((_, host)) = self.staged.pop_front()
        {
            self.answer(host, 0);
        }
        while let Some(host) = self.waiting.front().copied() {
            if !self.stage(host)? {
                break;
            }
            self.waiting.pop_front();
        }
        while let Some((id, io)) = self.core.begin_persist().or_else(|| self.core.begin_overlapping_persist(2)) {
            self.start(id, io);
        }
        if self.core.wants_poll() { self.poll() } else { Ok(()) }
    }

    fn poll(&mut self) -> Result<(), RigError> {
        let mut started = std::mem::take(&mut self.started);
        self.core.poll(self.now_ns, &mut started);
        for (id, io) in started.drain(..) {
            self.start(id, io);
        }
        self.started = started;
        if let Some(id) = self.core.wanted_index() {
            self.core.forget_wanted_index();
            self.load_index(id)?;
        }
        match self.core.stopped() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    fn start(&mut self, id: IoId, io: Io) {
        let when = self.controller.operate(self.now_ns);
        self.tasks.push_back((when, Task::Start(id, io)));
    }
}
