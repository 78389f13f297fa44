//! The file medium under power cuts: a recorded trace of its writes, holes and syncs, and every legal state that a cut may
//! leave opened on a real file, with the checkers of the laboratory.

use kaml_device::{Core, KeyKind, NamespaceOptions, StageError};
use kaml_flash::{
    Completion, FileChange, FileEvent, FileMedium, FileTrace, FormatOptions, Medium, OpenOptions, Queue, Wait,
};
use kaml_sim::{BrokenDisk, Command, FileStates, Model, Phase, Put, Rng, Scenario, Small, Workload, check};
use std::path::PathBuf;
use std::sync::Arc;

/// No io_uring, so the same seed writes the same trace; its steps are the same.
fn options() -> OpenOptions {
    OpenOptions { io_uring: false, ..OpenOptions::default() }
}

/// Roots, small and large values.
fn mixed() -> Workload {
    Workload {
        spaces: 2,
        keys: 60,
        direct_one_in: 5,
        root_one_in: 8,
        get_percent: 0,
        commands: 150,
        ..Scenario::small(Small::Puts, 1).workload
    }
}

/// The device written several times over, half of it live.
fn overwrites() -> Workload {
    Workload { keys: 120, len_max: 60_000, direct_one_in: u64::MAX, root_one_in: 40, commands: 2_000, ..mixed() }
}

/// One large value after the other.
fn large() -> Workload {
    Workload { direct_one_in: 1, batch_max: 1, delete_percent: 5, root_one_in: 30, commands: 120, ..mixed() }
}

/// What was opened.
#[derive(Debug, Default)]
struct Totals {
    moments: u64,
    states: u64,
    events: u64,
    /// Programs that callers executed.
    own_programs: u64,
    /// Events that release space.
    holes: u64,
}

/// A device on a traced file, driven step by step.
struct World {
    core: Core,
    medium: FileMedium,
    queue: Box<dyn Queue>,
    trace: Arc<FileTrace>,
    noted: usize,
    workload: Workload,
    states: FileStates,
    model: Model,
    waiting: Option<Put>,
    rng: Rng,
    now_ns: u64,
    dir: tempfile::TempDir,
    totals: Totals,
    /// One moment in this many is a power cut.
    one_in: u64,
}

impl World {
    fn new(seed: u64, workload: Workload, broken: Option<BrokenDisk>, one_in: u64) -> World {
        // In memory where that can be had: power cuts are made here, so nothing has to reach a disk.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let path = dir.path().join("device");
        let format = FormatOptions {
            block_bytes: Some(256 << 10),
            die_count: Some(2),
            ring_bytes: Some(1 << 20),
            ..FormatOptions::new(32 << 20)
        };
        let medium = FileMedium::create(&path, &format).unwrap();
        Core::format(&medium).unwrap();
        let sector_bytes = medium.geometry().sector_bytes;
        drop(medium);
        let states = FileStates::of(&path, sector_bytes, broken).unwrap();
        let trace = Arc::new(FileTrace::default());
        let medium = FileMedium::open_traced(&path, &options(), Some(trace.clone())).unwrap();
        let (mut core, _) = Core::open(&medium).unwrap();
        let mut model = Model::default();
        for name in ["a", "b"] {
            let options = NamespaceOptions::records(KeyKind::U64);
            let id = core.create_namespace(name, &options).unwrap();
            model.spaces.insert(id, (name.to_owned(), Phase::Creating));
        }
        let queue = medium.queue(64);
        let (rng, totals) = (Rng::new(seed), Totals::default());
        World {
            core,
            medium,
            queue,
            trace,
            noted: 0,
            workload,
            states,
            model,
            waiting: None,
            rng,
            now_ns: 0,
            dir,
            totals,
            one_in,
        }
    }

    fn run(mut self) -> Result<Totals, String> {
        let request = self.core.request_root(false);
        while self.core.roots_done() < request {
            self.turn()?;
        }
        for (_, phase) in self.model.spaces.values_mut() {
            *phase = Phase::There;
        }
        let mut left = self.workload.commands;
        while left > 0 || self.waiting.is_some() || !self.model.unanswered.is_empty() {
            if self.waiting.is_none() && left > 0 {
                left -= 1;
                match Command::draw(&mut self.rng, &self.workload, &self.model) {
                    Command::Put(put) => self.waiting = Some(put),
                    Command::Root { settle } => drop(self.core.request_root(settle)),
                    _ => {}
                }
            }
            self.stage();
            self.turn()?;
        }
        Ok(self.totals)
    }

    fn stage(&mut self) {
        let Some(mut put) = self.waiting.take() else { return };
        let placed = put.place(&mut self.core);
        if self.rng.one_in(2) {
            put.tickets().for_each(|ticket| self.program(ticket));
        }
        let answer = placed.and_then(|_| {
            let reader = self.core.reader();
            self.core.stage(&put.ops(&reader))
        });
        match answer {
            Ok(frame) => self.model.unanswered.push_back((frame, put.changes)),
            Err(StageError::Busy) => self.waiting = Some(put),
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Programs a large value as its caller would, if it may: its OOB is left to the barrier.
    fn program(&mut self, ticket: u64) {
        let Some((id, mut io)) = self.core.take_program(ticket) else { return };
        let result = self.medium.begin(&mut io).and_then(|carry_out| carry_out());
        self.core.complete(Completion { id, io, result });
        self.totals.own_programs += 1;
    }

    /// Lets the medium execute what the firmware emits, with power cuts on the way: nothing of it completes before.
    fn turn(&mut self) -> Result<(), String> {
        // Now and then nothing is written, so frames carry several Puts.
        if self.rng.one_in(3) {
            return Ok(());
        }
        self.now_ns += 1_000_000;
        if let Some((id, io)) = self.core.begin_persist() {
            self.queue.submit(id, io);
        }
        let mut started = Vec::new();
        self.core.poll(self.now_ns, &mut started);
        for (id, io) in started {
            self.queue.submit(id, io);
        }
        let mut done = Vec::new();
        self.queue.reap(Wait::No, &mut done);
        for event in self.trace.events(self.noted) {
            self.noted += 1;
            self.totals.holes += u64::from(matches!(event, FileEvent::Begin(_, FileChange::Punch { .. })));
            self.states.note(event);
            if self.rng.one_in(self.one_in) {
                self.cut()?;
            }
        }
        for completion in done {
            completion.result.as_ref().map_err(|error| error.to_string())?;
            self.core.complete(completion);
        }
        self.model.answer(self.core.committed());
        Ok(())
    }

    /// All states that a cut at this moment may leave, or a sample: each opens, and holds what completed.
    fn cut(&mut self) -> Result<(), String> {
        self.totals.moments += 1;
        self.totals.events = self.noted as u64;
        for which in 0..self.states.count() {
            self.totals.states += 1;
            let path: PathBuf = self.dir.path().join("state");
            self.states.write(&path, which, &mut self.rng).unwrap();
            let medium = FileMedium::open(&path, &options()).map_err(|error| error.to_string())?;
            let at = |what: String| format!("event {}, state {which}: {what}", self.noted);
            let (mut core, _) = Core::open(&medium).map_err(|error| at(format!("opening: {error}")))?;
            let mut model = self.model.clone();
            check::contents(&mut core, &medium, &mut model, &self.workload).map_err(|error| at(error.to_string()))?;
        }
        Ok(())
    }
}

fn run(seed: u64, workload: Workload, broken: Option<BrokenDisk>, one_in: u64) -> Result<Totals, String> {
    let world = World::new(seed, workload, broken, one_in);
    let described = world.medium.describe();
    assert!(["survives power loss", "as durable as"].iter().any(|claim| described.contains(claim)), "{described}");
    world.run()
}

/// Goal:   whatever a power cut leaves of a file, acknowledged Puts are whole and the accounts are exact.
/// Method: run a seed on a traced file; at some of its events open the states that a cut may leave there: all of them
///         where they are few, else samples (nothing, everything, a prefix, all but one change, one, any sectors).
#[test]
fn every_legal_state_opens() {
    for seed in 0..2 {
        let totals = run(seed, mixed(), None, 20).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        println!("{totals:?}");
        assert!(totals.states > 100 && totals.own_programs > 5, "{totals:?}");
    }
}

/// Goal:   the same of large values.
/// Method: one after the other, half of them programmed by their callers.
#[test]
fn large_values_survive() {
    for seed in 0..2 {
        let totals = run(seed, large(), None, 5).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        println!("{totals:?}");
        assert!(totals.states > 100 && totals.own_programs > 10, "{totals:?}");
    }
}

/// Goal:   the same while blocks are collected, erased and released to the file system.
/// Method: a device that is written several times over; few of its many events.
#[test]
fn collection_survives() {
    let totals = run(0, overwrites(), None, 2_000).unwrap_or_else(|what| panic!("{what}"));
    println!("{totals:?}");
    assert!(totals.states > 50 && totals.holes > 20, "{totals:?}");
}

/// Goal:   the tests above can fail.
/// Method: disks that ignore syncs, or take DSYNC writes for others; each must be noticed.
#[test]
fn broken_disks_are_noticed() {
    for broken in [BrokenDisk::IgnoresSyncs, BrokenDisk::IgnoresDsync] {
        let noticed = (0..10).find_map(|seed| run(seed, mixed(), Some(broken), 20).err());
        println!("{broken:?}: {}", noticed.unwrap_or_else(|| panic!("{broken:?} was not noticed")));
    }
}
