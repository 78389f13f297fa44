//! The virtual-time driver: one thread that does what is due in an order that the seed decides.
//!
//! Lives here:       turns, commands under way, handing operations to the medium and completions to the core, answers.
//! Lives elsewhere:  which commands (`host`), what must be there afterwards (`model`, `check`), many lives (`run`).
//! Implements:       design section 2, driver (iii).
//!
//! A turn does some of: try a command that waits, hand out a ring write, poll the firmware, let one thing happen on
//! the medium. Each may be put off, so that anything overtakes anything that it may overtake.

mod beside;

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
use beside::{BESIDE_FLUSH_ID, Beside};
use kaml_device::{
    BlockStep, Core, DIRECT_BYTES, Deletion, Error, FlashRead, Key, KeyKind, NamespaceChange, NamespaceOptions, Op,
    Reader, StageError,
};
use kaml_flash::{AlignedBuf, Completion, Io, MediumError, Queue, Wait};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Why a life ended.
#[derive(Debug)]
pub enum End {
    /// Power is gone.
    Cut,
    /// A ring write, root write or flush failed: the device takes nothing any more until it is opened again.
    Stopped,
    /// A promise is broken.
    Violation(Violation),
}

impl From<Violation> for End {
    fn from(violation: Violation) -> End {
        End::Violation(violation)
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Records put or deleted and answered, and Gets answered.
    pub operations: u64,
    /// Atomic Puts staged.
    pub puts: u64,
    /// Gets answered.
    pub gets: u64,
    /// Commands that were refused as they may be: full, no space, stopped.
    pub refused: u64,
    /// Gets that answered an error because flash had lost the data, and other commands because it had lost an index.
    pub lost: u64,
    /// Puts under conditions that were staged, all of which held.
    pub conditions_held: u64,
    /// Puts that were refused for a condition.
    pub conditions_failed: u64,
    /// Large values that were programmed beside the frames that name them.
    pub beside: u64,
    /// Such frames that were written again without them, because the program failed.
    pub withdrawn: u64,
    /// Gets of byte strings that found a value.
    pub strings_found: u64,
    /// Gets of byte strings that found none.
    pub strings_absent: u64,
    /// Namespaces moved to other logs.
    pub moves: u64,
    /// Moves to logs that are not there or named twice, refused.
    pub moves_refused: u64,
    /// Namespaces durably created.
    pub created: u64,
    /// Namespaces durably deleted.
    pub deleted: u64,
    /// Deletions begun while commands on the namespace were waiting or under way.
    pub deleted_in_use: u64,
    /// Commands that found that their namespace had gone meanwhile.
    pub orphaned: u64,
}

impl Counts {
    /// Adds another run's.
    pub fn add(&mut self, other: &Counts) {
        self.operations += other.operations;
        self.puts += other.puts;
        self.gets += other.gets;
        self.refused += other.refused;
        self.lost += other.lost;
        self.conditions_held += other.conditions_held;
        self.conditions_failed += other.conditions_failed;
        self.beside += other.beside;
        self.withdrawn += other.withdrawn;
        self.strings_found += other.strings_found;
        self.strings_absent += other.strings_absent;
        self.moves += other.moves;
        self.moves_refused += other.moves_refused;
        self.created += other.created;
        self.deleted += other.deleted;
        self.deleted_in_use += other.deleted_in_use;
        self.orphaned += other.orphaned;
    }
}

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
/// Turns without an answer after which a command counts as waiting for ever.
const TURNS_MAX: u64 = 100_000;
/// The same where steps of merges are no answer: merging all rows of a namespace takes many.
const ENDLESS_TURNS_MAX: u64 = 2_000_000;
/// Turns that counting a deleted namespace takes on average, while others go on.
const DELETION_TURNS: u64 = 20;
/// Names that namespaces of crowded devices share.
const NAMES: u64 = 8;
/// What passes when nothing is under way: more than the firmware's longest pause.
const IDLE_NS: u64 = 200_000_000;

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
    /// Of deleted namespaces, what is to be counted.
    deletions: Vec<(Deletion, u32)>,
    beside: Option<Beside>,
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
    /// Goes on with an open device.
    pub fn new(core: Core, medium: SimMedium, model: Model, workload: Workload, seed: u64) -> World {
        World {
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
            beside: None,
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

    /// Whether nothing is asked for that was not answered.
    pub fn is_quiet(&self) -> bool {
        self.depth() == 0 && self.naming.is_empty() && self.deletions.is_empty()
    }

    /// Commands under way.
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

    /// One turn, without the medium: answers whether anything was done.
    pub fn turn(&mut self) -> Result<(), End> {
        if !self.waiting.is_empty() && !self.lazy() {
            let which = self.rng.below(self.waiting.len() as u64) as usize;
            self.attempt(which)?;
        }
        if !self.lazy() {
            // Alone, or beside one or two.
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
        self.deliver()?;
        self.idle_turns += 1;
        self.endless_turns += 1;
        if self.idle_turns > TURNS_MAX || self.endless_turns > ENDLESS_TURNS_MAX {
            return Err(Violation::new(format!("a command waits for ever: {:?}", self.core)).into());
        }
        self.check_medium()
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
        if let Some((space, retention)) = self.core.take_low_merge() {
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
            let is_beside =
                |beside: &Beside| [beside.program_id, beside.write_id, BESIDE_FLUSH_ID].contains(&completion.id);
            match completion.id >= GET_IDS {
                true => self.read_done(completion)?,
                false if self.beside.as_ref().is_some_and(is_beside) => self.go_on_beside(completion)?,
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
        let reading = self.readings.remove(&id).expect("a Get is answered once");
        let Io::Read { into, .. } = io else { unreachable!("the operation of a Get") };
        let value = match result {
            Err(MediumError::Gone) => return Err(End::Cut),
            Err(error) => Err(Error::Medium(error)),
            Ok(()) => check::value_of(&reading.read, &into, reading.block.as_ref()),
        };
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
                self.trace.note(found.as_ref().map_or(0, |bytes| u64::from(crc_fast::crc32_iscsi(bytes))));
                if self.model.strings.contains(&space) {
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

    /// A change goes on with what was read for it.
    fn unit_read(&mut self, reading: UnitReading, io: Io, result: Result<(), MediumError>) -> Result<(), End> {
        let UnitReading { read, mut put } = reading;
        let Io::Read { into, .. } = io else { unreachable!("the operation of a read") };
        let value = match result {
            Err(MediumError::Gone) => return Err(End::Cut),
            Err(error) => Err(Error::Medium(error)),
            Ok(()) => read.value(&into).map(|range| into[range].to_vec()),
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
            && self.begin_beside(which, ticket)?
        {
            return Ok(());
        }
        let Command::Put(put) = &mut self.waiting[which] else { unreachable!("as above") };
        if answer.is_ok() {
            let ops: Vec<Op<'_>> = put.ops();
            answer = self.core.stage(&ops).map(Some);
        }
        match answer {
            Ok(Some(frame)) => {
                let Command::Put(put) = self.waiting.swap_remove(which) else { unreachable!("just seen") };
                self.staged(&put, frame)
            }
            Ok(None) | Err(StageError::Busy) => Ok(()),
            Err(StageError::NeedIndex(id)) => self.load_for(which, id),
            Err(StageError::Refused(error)) => {
                self.check_full(&error)?;
                let Command::Put(put) = self.waiting.swap_remove(which) else { unreachable!("just seen") };
                let Error::Conflict { namespace, key, present } = error else {
                    let is_too_much = self.is_too_much(&put, &error);
                    put.forget(&mut self.core);
                    return if is_too_much { self.given_up() } else { self.refused(error) };
                };
                self.check_doubt(&put, Some(&key))?;
                put.was_wrong(namespace, &key, present, &self.model)?;
                put.forget(&mut self.core);
                self.answered();
                self.counts.conditions_failed += 1;
                Ok(())
            }
        }
    }

    /// A device that is full counts what lies in its blocks, and large values that have places and whose Puts are not committed.
    fn check_full<'a>(&'a self, error: &Error) -> Result<(), Violation> {
        let Error::Full { live_bytes, .. } = error else { return Ok(()) };
        let put = |command: &'a Command| if let Command::Put(put) = command { Some(put) } else { None };
        let waiting = self.waiting.iter().filter_map(put).chain(self.beside.iter().map(|beside| &beside.put));
        let staged = self.model.unanswered.iter().flat_map(|(_, changes)| changes.values().flatten());
        let large = staged.map(|value| u64::from(value.len)).filter(|len| *len >= DIRECT_BYTES as u64);
        // Places are somewhat longer than values.
        let known = self.core.stats().live_bytes + 2 * waiting.map(Put::placed_bytes).chain(large).sum::<u64>();
        let what = || format!("full with {live_bytes} bytes, of which {known} at most are anywhere");
        if *live_bytes <= known { Ok(()) } else { Err(Violation::new(what())) }
    }

    /// Whether there was no room for all values of a Put, each with its header in whole chunks.
    fn is_too_much(&self, put: &Put, error: &Error) -> bool {
        let Error::Full { live_bytes, capacity_bytes } = error else { return false };
        let beside = 2 * u64::from(self.core.geometry().chunk_bytes);
        let put_bytes = put.changes.values().flatten().map(|value| u64::from(value.len) + beside).sum::<u64>();
        live_bytes + put_bytes > *capacity_bytes
    }

    fn given_up(&mut self) -> Result<(), End> {
        self.answered();
        self.counts.refused += 1;
        Ok(())
    }

    /// No condition is judged by a large value whose program may still fail.
    fn check_doubt(&self, put: &Put, key: Option<&Key>) -> Result<(), Violation> {
        let beside = self.beside.iter().flat_map(|beside| beside.put.changes.keys());
        let mut doubtful = beside.filter(|address| key.is_none_or(|key| self.model.key(**address) == *key));
        match doubtful.find(|address| put.has_condition_on(address)) {
            None => Ok(()),
            Some(address) => Err(Violation::new(format!("a Put was judged by {address:?}, which is in doubt"))),
        }
    }

    fn staged(&mut self, put: &Put, frame: u64) -> Result<(), End> {
        self.check_doubt(put, None)?;
        put.was_right(&self.model)?;
        self.counts.puts += 1;
        self.counts.conditions_held += u64::from(put.is_conditional());
        self.model.unanswered.push_back((frame, put.changes.clone()));
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

    pub(crate) fn refused(&mut self, error: Error) -> Result<(), End> {
        self.answered();
        if matches!(error, Error::UnknownNamespace(id) if !self.model.has_space(id)) {
            self.counts.orphaned += 1;
            return Ok(());
        }
        self.counts.refused += 1;
        let may = matches!(error, Error::Stopped(_)) || check::is_excused(&error, &self.medium);
        if may { Ok(()) } else { Err(Violation::new(format!("refused: {error}")).into()) }
    }

    // --- namespaces -----------------------------------------------------------------------------------------------------------

    fn create(&mut self, which: usize) -> Result<(), End> {
        let is_crowded = self.workload.is_crowded;
        if !is_crowded && !self.naming.is_empty() {
            return Ok(());
        }
        self.waiting.swap_remove(which);
        let name = match is_crowded {
            true => format!("space {}", self.rng.below(NAMES)),
            false => format!("space {} {}", self.next_name, self.model.spaces.len()),
        };
        self.next_name += 1;
        let disk = self.workload.disk(&mut self.rng);
        let options = NamespaceOptions {
            keys: if disk.is_some() { KeyKind::U64 } else { self.workload.key_kind(&mut self.rng) },
            logs: self.draw_logs(),
            blocks: disk,
            versions: self.workload.past(&mut self.rng, disk.is_some()),
        };
        match self.core.create_namespace(&name, &options) {
            Ok(id) => {
                self.model.add_space(id, name, &options);
                self.naming.push((self.core.request_root(false), id));
                Ok(())
            }
            Err(Error::NamespaceExists(_)) => {
                let has_it = |(other, phase): &(String, Phase)| *other == name && *phase != Phase::Deleting;
                match self.model.spaces.values().any(has_it) {
                    true => Ok(()),
                    false => {
                        Err(Violation::new(format!("there is no namespace {name:?}, it was said to exist")).into())
                    }
                }
            }
            // Not every shape of flash can have versions.
            Err(Error::TooManyNamespaces { .. } | Error::BadVersionOptions(_)) => Ok(()),
            Err(error) => self.refused(error),
        }
    }

    /// From now on a namespace appends to other logs, some of which may not be there, or be named twice.
    fn move_space(&mut self, space: u32) -> Result<(), End> {
        let (count, last) = (self.rng.below(4), self.core.geometry().die_count() - 1);
        let logs: Vec<u32> = (0..count).map(|_| self.rng.below(u64::from(last) + 1) as u32).collect();
        let is_wrong = self.rng.one_in(8);
        let logs: Vec<u32> = logs.into_iter().chain(is_wrong.then_some(last + 1)).collect();
        let is_twice = logs.iter().collect::<BTreeSet<_>>().len() < logs.len();
        let change = NamespaceChange { logs: Some(logs.clone()), ..NamespaceChange::default() };
        match self.core.set_namespace(space, &change) {
            Ok(()) if is_wrong || is_twice => return Err(Violation::new(format!("logs {logs:?} were taken")).into()),
            Ok(()) => {
                let root = self.core.request_root(false);
                self.model.logs.get_mut(&space).expect("made with it").move_to(logs, root);
                self.counts.moves += 1;
                self.answered();
            }
            Err(Error::UnknownLog { log, .. }) if is_wrong && log == last + 1 => self.counts.moves_refused += 1,
            Err(Error::LogTwice(_)) if is_twice => self.counts.moves_refused += 1,
            Err(Error::TooManyNamespaces { .. }) => {}
            Err(error) => self.refused(error)?,
        }
        let found = self.core.namespaces().into_iter().find(|info| info.id == space).map(|info| info.logs);
        match (found, self.model.logs.get(&space)) {
            (Some(found), Some(logs)) if found != logs.newest() => {
                Err(Violation::new(format!("namespace {space} has logs {found:?}, and was given {logs:?}")).into())
            }
            _ => Ok(()),
        }
    }

    fn draw_logs(&mut self) -> Vec<u32> {
        let count = self.core.geometry().die_count();
        if self.rng.one_in(2) { Vec::new() } else { vec![self.rng.below(count.into()) as u32] }
    }

    fn delete(&mut self, which: usize, space: u32) -> Result<(), End> {
        let touches = |command: &Command| command.touches(space);
        let there = self.model.spaces.get(&space).is_some_and(|(_, phase)| *phase == Phase::There);
        let is_crowded = self.workload.is_crowded;
        let busy = self.model.is_busy(space)
            || self.waiting.iter().enumerate().any(|(i, command)| i != which && touches(command))
            || self.readings.values().any(|reading| reading.address.0 == space)
            || self.unit_readings.values().any(|reading| reading.put.space == space);
        if !there || !is_crowded && (busy || !self.naming.is_empty() || !self.deletions.is_empty()) {
            self.waiting.swap_remove(which);
            return Ok(());
        }
        match self.core.delete_namespace(space, &BTreeSet::new()) {
            Ok(deletion) => {
                self.waiting.swap_remove(which);
                self.model.spaces.get_mut(&space).expect("just seen").1 = Phase::Deleting;
                self.deletions.push((deletion, space));
                self.counts.deleted_in_use += u64::from(busy);
                Ok(())
            }
            Err(StageError::NeedIndex(id)) => self.load_for(which, id),
            Err(StageError::Busy) => Ok(()),
            Err(StageError::Refused(error)) => {
                self.waiting.swap_remove(which);
                self.refused(error)
            }
        }
    }

    /// What a deleted namespace had is counted at some time, or many turns later.
    fn finish_deletion(&mut self) {
        let may = self.workload.is_crowded || self.naming.is_empty();
        if may && !self.deletions.is_empty() && self.rng.one_in(DELETION_TURNS) {
            let (deletion, space) = self.deletions.remove(0);
            self.core.finish_deletion(deletion.count(self.core.geometry()));
            self.naming.push((self.core.request_root(false), space));
        }
    }

    fn named(&mut self, space: u32) {
        self.answered();
        let (_, phase) = self.model.spaces.get_mut(&space).expect("asked for");
        match phase {
            Phase::Creating => {
                *phase = Phase::There;
                self.counts.created += 1;
            }
            Phase::Deleting => {
                self.model.remove_space(space);
                self.counts.deleted += 1;
            }
            Phase::There => {}
        }
    }

    // --- waiting ----------------------------------------------------------------------------------------------------------------

    /// Goes on until `done`, without new commands; `step` lets things happen.
    pub fn drive(&mut self, step: Step<'_>, done: impl Fn(&World) -> bool) -> Result<(), End> {
        while !done(self) {
            self.turn()?;
            step(self)?;
        }
        Ok(())
    }

    /// Answers everything and programs it; afterwards all blocks that failed in this life are noted for good.
    pub fn settle(&mut self, step: Step<'_>) -> Result<(), End> {
        self.drive(step, World::is_quiet)?;
        let bad = self.medium.bad_blocks_told();
        // The first root waits until failed blocks are dealt with, the second one says so.
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
