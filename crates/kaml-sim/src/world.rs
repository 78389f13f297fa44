//! The virtual-time driver: one thread that does what is due in an order that the seed decides.
//!
//! Lives here:       turns, commands in progress, handing operations to the medium and completions to the core, answers.
//! Lives elsewhere:  which commands (`host`), what must exist afterwards (`model`, `check`), many lives (`run`).
//! Implements:       the driver of the core in virtual time.
//!
//! A turn does some of: try a command that waits, hand out a ring write, poll the firmware, let one thing happen on
//! the medium. Each can be deferred, so anything overtakes anything that it may overtake.

mod counts;
mod end;
mod namespaces;
mod refusals;
mod resizing;
mod snapshots;

use crate::blocks::BlockPut;
use crate::check::{self, Violation};
use crate::cuts::CutMoment;
use crate::host::{Command, Put};
use crate::medium::{SimMedium, SimQueue};
use crate::model::{Model, Phase};
use crate::rng::{Rng, Trace, mix};
use crate::scenario::Workload;
use crate::value::Value;
use crate::versions::PastCommand;
pub use counts::Counts;
pub use end::End;
use kaml_device::{BlockStep, Core, Deletion, Error, FlashRead, KeyRange, Op, Reader, StageError};
use kaml_flash::{AlignedBuf, Completion, Io, MediumError, Queue, Wait};
use snapshots::Snapshots;
use std::collections::BTreeMap;
use std::ops::{Bound, Range};

/// A Get whose bytes are on their way.
struct Reading {
    read: FlashRead,
    address: (u32, u64),
    expected: Option<Value>,
    /// For a block, which bytes of its unit.
    block: Option<Range<usize>>,
}

/// A read of a unit that a write of a part of it needs.
struct UnitReading {
    read: FlashRead,
    put: BlockPut,
}

/// Gets have names above all that the firmware gives.
const GET_IDS: u64 = 1 << 63;
/// Turns without an answer after which a command counts as waiting forever.
const TURNS_MAX: u64 = 100_000;
/// The same where steps of merges are no answer: merging all rows of a namespace takes many.
const ENDLESS_TURNS_MAX: u64 = 2_000_000;
/// Turns that counting a deleted namespace takes on average, while others continue.
const DELETION_TURNS: u64 = 20;
/// Names that namespaces of crowded devices share.
const NAMES: u64 = 8;
/// One turn in this many lets time pass, and so many milliseconds less one at most.
const TIME_PASSES_ONE_IN: u64 = 4;
const TIME_STEP_MAX: u64 = 12;
/// What passes when nothing is in progress: more than the firmware's longest pause.
const IDLE_NS: u64 = 200_000_000;
/// An index whose image is read is loaded in one of so many nanoseconds.
const IMAGE_LOADS_ONE_IN: u64 = 8;

/// A device in use.
pub struct World {
    pub(crate) core: Core,
    pub(crate) reader: Reader,
    /// The flash.
    pub medium: SimMedium,
    queue: SimQueue,
    pub(crate) rng: Rng,
    pub(crate) workload: Workload,
    /// What it must hold.
    pub model: Model,
    /// What was done.
    pub counts: Counts,
    /// Commands that could not be staged yet.
    pub(crate) waiting: Vec<Command>,
    /// Namespaces being created or deleted, with the roots that make it durable.
    naming: Vec<(u64, u32)>,
    /// What is to be counted of deleted namespaces.
    deletions: Vec<(Deletion, u32)>,
    snapshots: Snapshots,
    sizes: Rng,
    resized: u64,
    /// Cuts within synchronous reads, and what the device had to hold then.
    pub(crate) cuts_of_reads: Vec<(CutMoment, Model)>,
    readings: BTreeMap<u64, Reading>,
    unit_readings: BTreeMap<u64, UnitReading>,
    next_get: u64,
    next_name: u64,
    idle_turns: u64,
    /// Turns without an end of a command, steps of merges not counted as such.
    endless_turns: u64,
    trace: Trace,
    done: Vec<Completion>,
    started: Vec<(u64, Io)>,
}

impl World {
    /// Continues with an open device.
    pub fn new(core: Core, medium: SimMedium, model: Model, workload: Workload, seed: u64) -> World {
        World {
            sizes: Rng::new(mix(seed ^ 0x5126)),
            resized: 0,
            reader: core.reader(),
            core,
            queue: SimQueue::new(&medium),
            medium,
            rng: Rng::new(seed),
            workload,
            model,
            counts: Counts::default(),
            waiting: Vec::new(),
            naming: Vec::new(),
            deletions: Vec::new(),
            snapshots: Snapshots::new(seed),
            cuts_of_reads: Vec::new(),
            readings: BTreeMap::new(),
            unit_readings: BTreeMap::new(),
            next_get: GET_IDS,
            next_name: 0,
            idle_turns: 0,
            endless_turns: 0,
            trace: Trace::default(),
            done: Vec::new(),
            started: Vec::new(),
        }
    }

    /// Fingerprint of all answers and of all that the medium did.
    pub fn trace_hash(&self) -> u64 {
        mix(self.trace.hash() ^ self.medium.trace_hash())
    }

    /// Whether every command has completed.
    pub fn is_quiet(&self) -> bool {
        self.depth() == 0 && self.naming.is_empty() && self.deletions.is_empty()
    }

    /// Commands in progress.
    pub fn depth(&self) -> usize {
        self.waiting.len() + self.model.unanswered.len() + self.readings.len() + self.unit_readings.len()
    }

    /// Hands in a command.
    pub fn submit(&mut self, mut command: Command) {
        self.idle_turns = 0;
        if let Command::Put(put) = &mut command {
            put.look(&self.core, &self.model);
        }
        self.waiting.push(command);
    }

    /// Some command has come to its end.
    fn answered(&mut self) {
        (self.idle_turns, self.endless_turns) = (0, 0);
    }

    fn lazy(&mut self) -> bool {
        self.rng.below(100) < self.workload.lazy_percent
    }

    /// One turn, without the medium: returns whether anything was done.
    pub fn turn(&mut self) -> Result<(), End> {
        if !self.waiting.is_empty() && !self.lazy() {
            let which = self.rng.below(self.waiting.len() as u64) as usize;
            self.attempt(which)?;
        }
        if !self.lazy() {
            // Alone, or with one or two others.
            let most = [3, 1, 1][self.rng.below(3) as usize];
            let persist = self.core.begin_persist();
            let persist = persist.or_else(|| self.core.begin_overlapping_persist(most));
            if let Some((id, io)) = persist {
                self.queue.submit(id, io);
            }
        }
        if !self.lazy() {
            self.poll()?;
        }
        self.finish_deletion();
        self.pass_time();
        self.use_snapshots()?;
        self.change_size();
        self.deliver()?;
        self.idle_turns += 1;
        self.endless_turns += 1;
        if self.idle_turns > TURNS_MAX || self.endless_turns > ENDLESS_TURNS_MAX {
            return Err(Violation::new(format!("a command waits for ever: {:?}", self.core)).into());
        }
        self.check_medium()
    }

    /// Time passes on the device occasionally, where records expire.
    fn pass_time(&mut self) {
        if self.workload.expiry_percent > 0 && self.rng.one_in(TIME_PASSES_ONE_IN) {
            let now = self.model.now + self.rng.below(TIME_STEP_MAX);
            self.core.clock().advance_to(now);
            self.counts.expired += self.model.advance_to(now);
        }
    }

    /// Lets the next thing happen on the medium.
    pub fn advance(&mut self) -> Result<(), End> {
        if !self.medium.advance() {
            self.medium.wait_until(self.medium.now_ns() + IDLE_NS);
            self.poll()?;
        }
        self.deliver()
    }

    fn check_medium(&self) -> Result<(), End> {
        if self.medium.is_cut() {
            return Err(End::Cut);
        }
        if let Some(misuse) = self.medium.misuse() {
            return Err(Violation::new(misuse).into());
        }
        match self.core.stopped() {
            None => Ok(()),
            Some(_) if self.medium.fault_counts().not_durable > 0 => Err(End::Stopped),
            Some(error) => match check::is_excused(&error, &self.medium) {
                true => Err(End::Stopped),
                false => Err(Violation::new(format!("the device stopped: {error}")).into()),
            },
        }
    }

    fn poll(&mut self) -> Result<(), End> {
        self.core.poll(self.medium.now_ns(), &mut self.started);
        for (id, io) in self.started.drain(..) {
            self.queue.submit(id, io);
        }
        if let Some(id) = self.core.wanted_index() {
            self.core.forget_wanted_index();
            self.load_index(id)?;
        }
        // Readers look keys up in an image for a while before its index is in memory.
        if let Some(id) = self.core.image_load().filter(|_| self.medium.now_ns().is_multiple_of(IMAGE_LOADS_ONE_IN)) {
            let is_loaded = self.load_index(id)?;
            self.core.end_image_load(id, !is_loaded);
        }
        if let Some((space, retention)) = self.core.take_low_merge() {
            self.counts.requested_merges += 1;
            self.submit(PastCommand::merge_when_low(space, retention));
        }
        let roots = self.core.roots_done();
        self.model.logs.values_mut().for_each(|logs| logs.settle(roots));
        while let Some(at) = self.naming.iter().position(|(request, _)| *request <= roots) {
            let (_, space) = self.naming.remove(at);
            self.named(space);
        }
        Ok(())
    }

    /// Loads an index; false if flash has lost it.
    pub(crate) fn load_index(&mut self, id: u32) -> Result<bool, End> {
        let loaded = self.core.load_index(&self.medium, id);
        self.note_cuts_of_reads();
        match loaded {
            Ok(()) => Ok(true),
            Err(_) if self.medium.is_cut() => Err(End::Cut),
            Err(error) if check::is_excused(&error, &self.medium) => Ok(false),
            Err(error) => Err(Violation::new(format!("index {id}: {error}")).into()),
        }
    }

    /// Things may have happened on the medium while something was read at once: they are cut here, too.
    pub(crate) fn note_cuts_of_reads(&mut self) {
        let cuts = self.medium.take_cuts();
        self.cuts_of_reads.extend(cuts.into_iter().map(|cut| (cut, self.model.clone())));
    }

    // --- completions ------------------------------------------------------------------------------------------------------

    fn deliver(&mut self) -> Result<(), End> {
        self.queue.reap(Wait::No, &mut self.done);
        let mut done = std::mem::take(&mut self.done);
        for completion in done.drain(..) {
            match completion.id >= GET_IDS {
                true => self.read_done(completion)?,
                false => self.core.complete(completion),
            }
        }
        self.done = done;
        let answered = self.model.answer(self.core.committed());
        if answered > 0 {
            self.answered();
            self.counts.operations += answered;
            self.trace.note(answered);
        }
        Ok(())
    }

    fn read_done(&mut self, completion: Completion) -> Result<(), End> {
        let Completion { id, io, result } = completion;
        if let Some(reading) = self.unit_readings.remove(&id) {
            return self.unit_read(reading, io, result);
        }
        let reading = self.readings.remove(&id).expect("a Get completes one time");
        let Io::Read { into, .. } = io else { unreachable!("the operation of a Get") };
        let value = match result {
            Err(MediumError::Gone) => return Err(End::Cut),
            Err(error) => Err(Error::Medium(error)),
            Ok(()) => check::value_of(&reading.read, &into, reading.block.as_ref()),
        };
        if self.clusters(reading.address.0) {
            self.counts.clustered += u64::from(self.core.cluster(reading.address.0, &reading.read, &into) == Ok(true));
        }
        self.got(reading.address, reading.expected, value)
    }

    fn got(
        &mut self,
        (space, key): (u32, u64),
        expected: Option<Value>,
        found: Result<Option<Vec<u8>>, Error>,
    ) -> Result<(), End> {
        self.answered();
        self.counts.gets += 1;
        self.counts.operations += 1;
        let wrong = |what: String| Err(Violation::new(format!("Get of namespace {space} key {key}: {what}")).into());
        match found {
            Ok(found) => {
                self.trace.note(found.as_ref().map_or(0, |bytes| u64::from(kaml_crc::crc32c(bytes))));
                if self.model.strings.contains_key(&space) {
                    let counts = &mut self.counts;
                    *if found.is_some() { &mut counts.strings_found } else { &mut counts.strings_absent } += 1;
                }
                let right = found == expected.map(Value::noise);
                if right { Ok(()) } else { wrong("a wrong answer".to_owned()) }
            }
            Err(error) if check::is_excused(&error, &self.medium) => {
                self.counts.lost += 1;
                Ok(())
            }
            Err(Error::UnknownNamespace(id)) if !self.model.has_space(id) => {
                self.counts.orphaned += 1;
                Ok(())
            }
            Err(error) => wrong(error.to_string()),
        }
    }

    /// Whether a record of a namespace that was read moves next to others now.
    fn clusters(&mut self, space: u32) -> bool {
        let is_record = !self.model.disks.contains_key(&space) && !self.model.pasts.contains_key(&space);
        let percent = self.workload.long_key_percent;
        percent > 0 && is_record && self.rng.below(100) < percent
    }

    // --- commands -----------------------------------------------------------------------------------------------------------

    fn attempt(&mut self, which: usize) -> Result<(), End> {
        match &mut self.waiting[which] {
            Command::Get(address) => {
                let address = *address;
                self.waiting.swap_remove(which);
                self.get(address)
            }
            Command::Put(_) => self.attempt_put(which),
            Command::Blocks(_) => self.attempt_blocks(which),
            Command::Past(_) => self.attempt_past(which),
            Command::Root { settle } => {
                self.core.request_root(*settle);
                self.waiting.swap_remove(which);
                Ok(())
            }
            Command::Unload(space) => {
                let space = *space;
                self.waiting.swap_remove(which);
                // The firmware forgets a namespace at once, the model when that is durable.
                let known = self.model.spaces.get(&space).filter(|(_, phase)| *phase != Phase::Deleting);
                if known.is_some() {
                    self.core.unload_index(space).expect("the model has it, too");
                }
                Ok(())
            }
            Command::Move(space) => {
                let space = *space;
                self.waiting.swap_remove(which);
                self.move_space(space)
            }
            Command::DeleteRange(space, from, to) => {
                let (space, bounds) = (*space, (*from, *to));
                self.delete_range(which, space, bounds)
            }
            Command::Create => self.create(which),
            Command::Delete(space) => {
                let space = *space;
                self.delete(which, space)
            }
        }
    }

    fn get(&mut self, address: (u32, u64)) -> Result<(), End> {
        let expected = self.model.records.get(&address).copied();
        let found = check::locate(&mut self.core, &self.reader, &self.medium, &self.model, address);
        self.note_cuts_of_reads();
        match found {
            Ok((check::Located::Flash(read), block)) => {
                let id = self.start_read(&read);
                self.readings.insert(id, Reading { read, address, expected, block });
                Ok(())
            }
            Ok((check::Located::Value(value), _)) => self.got(address, expected, Ok(value)),
            Err(_) if self.medium.is_cut() => Err(End::Cut),
            Err(error) => self.got(address, expected, Err(error)),
        }
    }

    fn start_read(&mut self, read: &FlashRead) -> u64 {
        let id = self.next_get;
        self.next_get += 1;
        self.queue.submit(id, Io::Read { at: read.at, into: AlignedBuf::zeroed(read.bytes) });
        id
    }

    /// Stages one Put of a change of blocks. The next, if there is one, is tried in another turn.
    fn attempt_blocks(&mut self, which: usize) -> Result<(), End> {
        let Command::Blocks(put) = &mut self.waiting[which] else { unreachable!("only changes of blocks come here") };
        if put.must_wait(&self.model) {
            return Ok(());
        }
        let (step, staged) = match put.stage(&mut self.core, &self.reader) {
            Ok(done) => done,
            Err(StageError::Busy) => return Ok(()),
            Err(StageError::RefusedAfter(..)) => unreachable!("changes of blocks have no conditions"),
            Err(StageError::NeedIndex(id)) => return self.load_for(which, id),
            Err(StageError::Refused(error)) => {
                self.waiting.swap_remove(which);
                return self.refused(error);
            }
        };
        if let Some(staged) = staged {
            self.counts.puts += 1;
            self.model.unanswered.push_back(staged);
        }
        match step {
            BlockStep::More => {}
            BlockStep::Done(_) => drop(self.waiting.swap_remove(which)),
            BlockStep::Read(read) => {
                let Command::Blocks(put) = self.waiting.swap_remove(which) else { unreachable!("just seen") };
                let id = self.start_read(&read);
                self.unit_readings.insert(id, UnitReading { read, put });
            }
        }
        self.answered();
        Ok(())
    }

    /// A change continues with what was read for it.
    fn unit_read(&mut self, reading: UnitReading, io: Io, result: Result<(), MediumError>) -> Result<(), End> {
        let UnitReading { read, mut put } = reading;
        let Io::Read { into, .. } = io else { unreachable!("the operation of a read") };
        let value = match result {
            Err(MediumError::Gone) => return Err(End::Cut),
            Err(error) => Err(Error::Medium(error)),
            Ok(()) => read.value(&into).map(|found| found.of(&into).to_vec()),
        };
        match value.and_then(|value| put.supply(read, value)) {
            Ok(()) => self.submit(Command::Blocks(put)),
            Err(error) => return self.refused(error),
        }
        Ok(())
    }

    fn attempt_put(&mut self, which: usize) -> Result<(), End> {
        let Command::Put(put) = &mut self.waiting[which] else { unreachable!("only Puts come here") };
        let mut answer = put.place(&mut self.core);
        if let Some(ticket) = put.lone_ticket()
            && self.workload.own_program_percent > 0
            && self.rng.below(100) < self.workload.own_program_percent
            && let Some((id, program)) = self.core.take_program(ticket)
        {
            // As its caller executes it that has nothing else to wait for.
            self.queue.submit(id, program);
            self.counts.own_programs += 1;
        }
        if answer.is_ok() {
            let ops: Vec<Op<'_>> = put.ops(&self.core.reader());
            answer = self.core.stage(&ops).map(Some);
        }
        match answer {
            Ok(Some(frame)) => {
                let Command::Put(put) = self.waiting.swap_remove(which) else { unreachable!("just seen") };
                self.staged(&put, frame)
            }
            // A refusal by what is not committed is decided again after it is.
            Ok(None) | Err(StageError::Busy | StageError::RefusedAfter(..)) => Ok(()),
            Err(StageError::NeedIndex(id)) => self.load_for(which, id),
            Err(StageError::Refused(error)) => {
                self.check_full(&error)?;
                let Command::Put(put) = self.waiting.swap_remove(which) else { unreachable!("just seen") };
                let Error::Conflict { namespace, key, present } = error else {
                    let is_too_much = self.is_too_much(&put, &error);
                    put.forget(&mut self.core);
                    return if is_too_much { self.given_up() } else { self.refused(error) };
                };
                put.was_wrong(namespace, &key, present, &self.model)?;
                put.forget(&mut self.core);
                self.answered();
                self.counts.conditions_failed += 1;
                Ok(())
            }
        }
    }

    fn staged(&mut self, put: &Put, frame: u64) -> Result<(), End> {
        put.was_right(&self.model)?;
        self.counts.puts += 1;
        self.counts.conditions_held += u64::from(put.is_conditional());
        self.model.unanswered.push_back((frame, put.changes.clone()));
        Ok(())
    }

    fn delete_range(&mut self, which: usize, space: u32, bounds: (Bound<u64>, Bound<u64>)) -> Result<(), End> {
        let key = |number| self.model.key((space, number)).as_bytes().to_vec();
        let range = KeyRange::new::<Vec<u8>>((bounds.0.map(key).as_ref(), bounds.1.map(key).as_ref()));
        let (frame, count) = match self.core.stage_delete_range(space, &range) {
            Ok(staged) => staged,
            Err(StageError::Busy | StageError::RefusedAfter(..)) => return Ok(()),
            Err(StageError::NeedIndex(id)) => return self.load_for(which, id),
            Err(StageError::Refused(error)) => {
                self.waiting.swap_remove(which);
                return self.refused(error);
            }
        };
        self.waiting.swap_remove(which);
        let changes = self.model.changes_of_range(space, &range);
        let present = changes.keys().filter(|address| self.model.is_present(address)).count() as u64;
        if present != count {
            return Err(Violation::new(format!("{count} of {present} keys of a range were deleted")).into());
        }
        self.counts.puts += 1;
        self.counts.deleted_in_ranges += count;
        self.model.unanswered.push_back((frame, changes));
        Ok(())
    }

    /// Loads an index that a command needs. If flash has lost it, the command is given up, as a driver answers the error.
    fn load_for(&mut self, which: usize, id: u32) -> Result<(), End> {
        if !self.load_index(id)? {
            if let Command::Put(put) = self.waiting.swap_remove(which) {
                put.forget(&mut self.core);
            }
            self.answered();
            self.counts.lost += 1;
        }
        Ok(())
    }

    // --- waiting ----------------------------------------------------------------------------------------------------------------

    /// Continues until `done`, without new commands; `step` lets things happen.
    pub fn drive(&mut self, step: Step<'_>, done: impl Fn(&World) -> bool) -> Result<(), End> {
        while !done(self) {
            self.turn()?;
            step(self)?;
        }
        Ok(())
    }

    /// Completes everything and programs it; afterwards all blocks that failed in this life are noted for good.
    pub fn settle(&mut self, step: Step<'_>) -> Result<(), End> {
        self.drive(step, World::is_quiet)?;
        let bad = self.medium.bad_blocks_told();
        // The first root waits until failed blocks are dealt with, the second one reports it.
        for _ in 0..2 {
            self.answered();
            let request = self.core.request_root(true);
            self.drive(step, |world| world.core.roots_done() >= request)?;
        }
        self.medium.bad_blocks_are_known(bad);
        Ok(())
    }

    /// Closes the device cleanly.
    pub fn close(&mut self, step: Step<'_>) -> Result<(), End> {
        self.settle(step)?;
        self.answered();
        let request = self.core.request_close();
        self.drive(step, |world| world.core.roots_done() >= request)
    }
}

/// Lets the next thing happen in a world, or looks at it first: [`World::advance`], or what tries cuts.
pub(crate) type Step<'a> = &'a mut dyn FnMut(&mut World) -> Result<(), End>;
