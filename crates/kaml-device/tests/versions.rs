//! Versioned namespaces under power cuts, beside records, on flash in memory.

use kaml_device::{
    Body, Buffered, Condition, Core, Error, FindError, Found, Key, KeyKind, NamespaceOptions, Op, StageError,
    VersionOptions, VersionReader,
};
use kaml_flash::{AlignedBuf, Completion, Geometry, Io, Medium, MemoryMedium, Packing};
use kaml_versions::{At, Command, Kind, Past, Retention, SegmentAt, Source, Versions, get, history, merge, plan_merge};
use std::collections::BTreeMap;
use std::ops::Range;

/// A deterministic source of choices.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }
}

fn geometry(packing: Packing) -> Geometry {
    let (page_bytes, chunk_bytes, pages_per_program) = match packing {
        Packing::Across => (4096, 64, 1),
        Packing::WithinPage => (8192, 128, 2),
    };
    Geometry {
        channel_count: 2,
        dies_per_channel: 1,
        blocks_per_die: if packing == Packing::Across { 34 } else { 60 },
        pages_per_block: 32,
        page_bytes,
        oob_bytes: 32,
        chunk_bytes,
        pages_per_program,
        packing,
        ring_bytes: 1 << 20,
        sector_bytes: 512,
        root_bytes: 1 << 16,
    }
}

const KEYS: u64 = 40;

/// Seed and length of a value; nothing: deleted.
type Content = Option<(u64, usize)>;

fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed | 1);
    (0..len).map(|_| rng.below(256) as u8).collect()
}

fn bytes_of(content: Content) -> Option<Vec<u8>> {
    content.map(|(seed, len)| value(seed, len))
}

/// What is put at once: records, and versions.
type Changes = BTreeMap<(bool, u64), Content>;

/// What happens to the versioned namespace, or to both.
#[derive(Clone, Debug)]
enum Step {
    Put(Changes),
    Command(Command),
}

/// What must be there.
#[derive(Clone, Default)]
struct Model {
    records: BTreeMap<u64, (u64, usize)>,
    /// All versions of each key, oldest first, by their number.
    versions: BTreeMap<u64, Vec<(u64, Content)>>,
    /// What is seen now, of each key, oldest first.
    present: BTreeMap<u64, Vec<(u64, Content)>>,
    snapshots: BTreeMap<u32, BTreeMap<u64, Vec<(u64, Content)>>>,
    user_version: u32,
    number: u64,
}

impl Model {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Put(changes) => {
                for ((is_version, key), content) in changes {
                    self.number += 1;
                    let entry = (self.number, *content);
                    match (is_version, content) {
                        (true, _) => {
                            self.versions.entry(*key).or_default().push(entry);
                            self.present.entry(*key).or_default().push(entry);
                        }
                        (false, Some(content)) => drop(self.records.insert(*key, *content)),
                        (false, None) => drop(self.records.remove(key)),
                    }
                }
            }
            Step::Command(Command::Snapshot) => self.take(),
            Step::Command(Command::RollBack(to)) => {
                let then = self.snapshots[to].clone();
                self.take();
                self.present = then;
            }
            Step::Command(Command::Forget(version)) => drop(self.snapshots.remove(version)),
        }
    }

    fn take(&mut self) {
        self.user_version += 1;
        self.snapshots.insert(self.user_version, self.present.clone());
    }
}

/// Power is gone.
#[derive(Debug)]
struct Cut;

/// The firmware and its medium, driven on one thread.
struct World {
    core: Core,
    medium: MemoryMedium,
    rng: Rng,
    started: Vec<(u64, Io)>,
    records: u32,
    versions: u32,
}

/// The versions of a world, read as a driver reads them.
struct Reading<'a> {
    core: &'a mut Core,
    medium: &'a MemoryMedium,
    reader: VersionReader,
    namespace: u32,
    bytes: Vec<u8>,
}

impl Source for Reading<'_> {
    type Error = Error;

    fn look<T>(&mut self, look: impl FnOnce(&Versions, &mut dyn FnMut(SegmentAt)) -> T) -> Result<T, Error> {
        self.core.load_index(self.medium, self.namespace)?;
        self.reader.look(look).map_err(|error| match error {
            FindError::Refused(error) => error,
            FindError::NeedIndex => unreachable!("just loaded"),
        })
    }

    fn read(&mut self, at: SegmentAt, bytes: Range<usize>) -> Result<&[u8], Error> {
        let (read, is_programmed) = self.reader.locate(at, &bytes);
        self.bytes.resize(bytes.len(), 0);
        if is_programmed || !self.core.read_segment(&read, &mut self.bytes) {
            let mut io = Io::Read { at: read.at, into: AlignedBuf::zeroed(read.bytes) };
            self.medium.execute(&mut io)?;
            let Io::Read { into, .. } = io else { unreachable!("still a read") };
            self.bytes.copy_from_slice(read.of(&into));
        }
        Ok(&self.bytes)
    }
}

impl World {
    fn open(medium: &MemoryMedium, seed: u64) -> Result<World, Error> {
        let (core, _) = Core::open(medium, false)?;
        let (records, versions) = (core.namespace("records").unwrap_or(0), core.namespace("versions").unwrap_or(0));
        Ok(World { core, medium: medium.clone(), rng: Rng(seed | 1), started: Vec::new(), records, versions })
    }

    /// A device with both namespaces, durable.
    fn new(medium: &MemoryMedium, seed: u64) -> World {
        Core::format(medium).unwrap();
        let mut world = World::open(medium, seed).unwrap();
        let keys = NamespaceOptions { keys: KeyKind::U64, ..NamespaceOptions::default() };
        world.records = world.core.create_namespace("records", &keys).unwrap();
        let options = NamespaceOptions { versions: Some(VersionOptions::default()), ..keys };
        world.versions = world.core.create_namespace("versions", &options).unwrap();
        world.root(false).unwrap();
        world
    }

    fn root(&mut self, settle: bool) -> Result<(), Cut> {
        let request = self.core.request_root(settle);
        self.until(|core| core.roots_done() >= request)
    }

    fn until(&mut self, done: impl Fn(&Core) -> bool) -> Result<(), Cut> {
        for _ in 0..100_000 {
            if done(&self.core) {
                return Ok(());
            }
            self.background(true)?;
        }
        panic!("this never ends: {:?}", self.core);
    }

    fn execute(&mut self, id: u64, mut io: Io) -> Result<(), Cut> {
        let result = self.medium.execute(&mut io);
        self.core.complete(Completion { id, io, result });
        if self.medium.is_cut() { Err(Cut) } else { Ok(()) }
    }

    /// Carries out background work in any order: all of it, or as much as the seed says.
    fn background(&mut self, all: bool) -> Result<(), Cut> {
        self.core.poll(0, &mut self.started);
        while !self.started.is_empty() && (all || self.rng.below(3) > 0) {
            // Programs of one block stay in order.
            let at = if self.rng.below(4) == 0 { self.other_block() } else { 0 };
            let (id, io) = self.started.remove(at);
            self.execute(id, io)?;
            self.core.poll(0, &mut self.started);
        }
        Ok(())
    }

    /// A program that may overtake the first operation.
    fn other_block(&self) -> usize {
        let block = |io: &Io| if let Io::Program { at, .. } = io { Some(at.block) } else { None };
        let (Some(first), Some((_, second))) = (block(&self.started[0].1), self.started.get(1)) else { return 0 };
        usize::from(block(second).is_some_and(|second| second != first))
    }

    fn persist(&mut self) -> Result<(), Cut> {
        match self.core.begin_persist() {
            Some((id, io)) => self.execute(id, io),
            None => Ok(()),
        }
    }

    /// Stages something and waits until it is durable.
    fn commit(&mut self, stage: impl Fn(&mut Core) -> Result<u64, StageError>) -> Result<Result<(), Error>, Cut> {
        let mut tries = 0;
        let frame = loop {
            tries += 1;
            assert!(tries < 20_000, "a Put waits for ever: {:?}", self.core);
            match stage(&mut self.core) {
                Ok(frame) => break frame,
                Err(StageError::Refused(error)) => return Ok(Err(error)),
                Err(StageError::NeedIndex(id)) => self.core.load_index(&self.medium, id).expect("whole"),
                Err(StageError::Busy) => {
                    self.persist()?;
                    self.background(true)?;
                }
            }
        };
        while self.core.committed() <= frame {
            self.persist()?;
            self.background(false)?;
        }
        Ok(Ok(()))
    }

    fn apply(&mut self, step: &Step) -> Result<Result<(), Error>, Cut> {
        self.core.set_time(7);
        let (records, versions) = (self.records, self.versions);
        match step {
            Step::Command(command) => {
                self.commit(|core| core.stage_version_command(versions, *command).map(|(frame, _)| frame))
            }
            Step::Put(changes) => {
                let values: Vec<_> = changes.values().map(|content| bytes_of(*content)).collect();
                let op = |((is_version, key), value): (&(bool, u64), &'_ Option<Vec<u8>>)| {
                    let namespace = if *is_version { versions } else { records };
                    (namespace, Key::from(*key), value.as_deref().map_or(0, crc32c::crc32c))
                };
                let heads: Vec<_> = changes.keys().zip(&values).map(op).collect();
                self.commit(|core| {
                    let op = |((namespace, key, crc32c), value): (&(u32, Key, u32), _)| Op {
                        namespace: *namespace,
                        key: *key,
                        body: Option::map_or(value, Body::Delete, |value| Body::Value { value, crc32c: *crc32c }),
                        condition: Condition::Always,
                    };
                    let ops: Vec<Op<'_>> = heads.iter().zip(values.iter().map(Option::as_deref)).map(op).collect();
                    core.stage(&ops)
                })
            }
        }
    }

    fn choose(&mut self, model: &Model) -> Step {
        let snapshots: Vec<u32> = model.snapshots.keys().copied().collect();
        match self.rng.below(40) {
            0 => Step::Command(Command::Snapshot),
            1 if !snapshots.is_empty() => {
                let version = snapshots[self.rng.below(snapshots.len() as u64) as usize];
                let is_forgotten = snapshots.len() > 4 || self.rng.below(3) > 0;
                Step::Command(if is_forgotten { Command::Forget(version) } else { Command::RollBack(version) })
            }
            _ => {
                let count = 1 + self.rng.below(4);
                let one = |_| {
                    let key = if self.rng.below(3) == 0 { self.rng.below(3) } else { self.rng.below(KEYS) };
                    let len = match self.rng.below(30) {
                        0 => self.rng.below(20_000),
                        _ => self.rng.below(1500),
                    };
                    let content = (self.rng.below(6) > 0).then(|| (self.rng.below(1 << 30), len as usize));
                    ((self.rng.below(4) > 0, key), content)
                };
                Step::Put((0..count).map(one).collect())
            }
        }
    }

    /// Runs for some steps; if power is cut, answers the step that was under way.
    fn run(&mut self, model: &mut Model, steps: u64, merges: bool) -> Result<(), Option<Step>> {
        for at in 0..steps {
            let step = self.choose(model);
            match self.apply(&step) {
                Err(Cut) => return Err(Some(step)),
                Ok(Err(Error::Full { .. })) => {}
                Ok(Err(error)) => panic!("{error}"),
                Ok(Ok(())) => model.step(&step),
            }
            if merges && at % 400 == 399 {
                self.merge().map_err(|Cut| None)?;
            }
            if self.rng.below(300) == 0 {
                self.root(true).map_err(|Cut| None)?;
            }
            self.background(false).map_err(|Cut| None)?;
        }
        Ok(())
    }

    fn reading(&mut self) -> Reading<'_> {
        let reader = self.core.reader().versions(self.versions).unwrap();
        Reading { core: &mut self.core, medium: &self.medium, reader, namespace: self.versions, bytes: Vec::new() }
    }

    /// Merges all rows, keeping what snapshots see.
    fn merge(&mut self) -> Result<(), Cut> {
        let retention = Retention { keep_internal: false, ..Retention::default() };
        self.root(true)?;
        let rows = self.core.reader().versions(self.versions).unwrap().row_count();
        let limit = self.core.merge_limit(self.versions).unwrap();
        for row in 0..rows {
            let versions = self.versions;
            loop {
                match self.core.begin_merge(versions, row) {
                    Ok(()) => break,
                    Err(StageError::Busy) => self.background(true)?,
                    Err(StageError::NeedIndex(id)) => self.core.load_index(&self.medium, id).expect("whole"),
                    Err(StageError::Refused(error)) => panic!("{error}"),
                }
            }
            let plan = plan_merge(&mut self.reading(), row, &retention, limit).unwrap();
            for run in (0..plan.run_count()).rev() {
                let merged = merge(&mut self.reading(), &plan, run).unwrap();
                let mut tickets = Vec::new();
                for sealed in &merged.segments {
                    let ticket = loop {
                        match self.core.place_merged(versions, sealed) {
                            Ok(ticket) => break Some(ticket),
                            Err(StageError::Refused(Error::Full { .. })) => break None,
                            Err(StageError::Busy) => self.background(true)?,
                            Err(other) => panic!("{other:?}"),
                        }
                    };
                    let Some(ticket) = ticket else {
                        self.core.forget_merged(&tickets);
                        self.core.end_merge(versions);
                        return Ok(());
                    };
                    tickets.push(ticket);
                }
                self.until(|core| tickets.iter().all(|ticket| core.is_segment_programmed(*ticket)))?;
                self.core.install_merge(versions, &merged, &tickets).unwrap();
            }
        }
        self.core.end_merge(self.versions);
        Ok(())
    }

    fn record(&mut self, key: u64) -> Option<Vec<u8>> {
        let (namespace, key) = (self.records, Key::from(key));
        self.core.load_index(&self.medium, namespace).unwrap();
        let read = match self.core.reader().find(namespace, &key).unwrap() {
            Found::Absent => return None,
            Found::Flash(read) => read,
            Found::Buffered => match self.core.read_buffered(namespace, &key).unwrap() {
                (Buffered::Value(value), _) => return Some(value),
                (Buffered::Programmed, Some(read)) => read,
                other => panic!("{other:?}"),
            },
        };
        let mut io = Io::Read { at: read.at, into: AlignedBuf::zeroed(read.bytes) };
        self.medium.execute(&mut io).unwrap();
        let Io::Read { into, .. } = io else { unreachable!() };
        Some(into[read.value(&into).unwrap()].to_vec())
    }

    /// What is wrong, if anything is.
    fn compare(&mut self, model: &Model, is_merged: bool) -> Result<(), String> {
        for key in 0..KEYS {
            let expected = bytes_of(model.records.get(&key).copied());
            if self.record(key) != expected {
                return Err(format!("record {key}"));
            }
            let full = model.versions.get(&key).cloned().unwrap_or_default();
            let past = history(&mut self.reading(), &Key::from(key), usize::MAX).map_err(|e| e.to_string())?;
            compare_history(key, &full, &past, is_merged)?;
            let mut views = vec![(At::Latest, &model.present)];
            views.extend(model.snapshots.iter().map(|(version, view)| (At::Snapshot(*version), view)));
            for (at, view) in views {
                let newest = view.get(&key).and_then(|all| all.last());
                let found = get(&mut self.reading(), &Key::from(key), at).map_err(|e| format!("{at:?}: {e}"))?;
                if found.map(|record| record.value) != newest.and_then(|(_, content)| bytes_of(*content)) {
                    return Err(format!("version {key} at {at:?}"));
                }
            }
        }
        Ok(())
    }

    fn audit(&mut self) {
        for block in self.core.blocks_in_use() {
            let found = kaml_device::BlockAudit::read(&self.core.reader(), &self.medium, block).judge(&self.core);
            assert_eq!(found.problems, Vec::<String>::new());
        }
    }
}

/// Without merges all versions are there, with them some of these in the same order.
fn compare_history(key: u64, full: &[(u64, Content)], past: &[Past], is_merged: bool) -> Result<(), String> {
    let mut expected = full.iter().rev();
    for Past { version, .. } in past {
        let is_it = |(_, content): &&(u64, Content)| match content {
            None => version.kind == Kind::Tombstone,
            Some((seed, len)) => {
                version.value_len as usize == *len && version.value_crc == crc32c::crc32c(&value(*seed, *len))
            }
        };
        let found = if is_merged { expected.find(is_it) } else { expected.next().filter(is_it) };
        if found.is_none() {
            return Err(format!("key {key}: {version:?} was not put, or not there"));
        }
    }
    match is_merged || expected.next().is_none() {
        true => Ok(()),
        false => Err(format!("key {key}: {} versions of {}", past.len(), full.len())),
    }
}

/// Runs a seeded workload over several lives of one device, each ended by a power cut, and compares after each. Answers
/// whether the first run ended before its cut.
fn survive(seed: u64, packing: Packing, first_cut: u64, steps: u64, lives: u64, merges: bool) -> bool {
    let replay = format!("seed {seed} {packing:?} first cut {first_cut}");
    let medium = MemoryMedium::new(geometry(packing));
    let mut world = World::new(&medium, seed);
    let mut model = Model::default();
    let mut rng = Rng(seed.wrapping_mul(77) | 1);
    let mut uncut = false;
    for life in 0..lives {
        medium.cut_after(if life == 0 { first_cut } else { 1 + rng.below(steps * 3) });
        let under_way = world.run(&mut model, steps, merges);
        uncut |= life == 0 && under_way.is_ok();
        drop(world);
        // Another cut may hit the recovery itself.
        for _ in 0..rng.below(3) {
            medium.power_on(rng.below(1 << 30));
            medium.cut_after(1 + rng.below(60));
            drop(World::open(&medium, seed));
        }
        medium.power_on(rng.below(1 << 30));
        world = World::open(&medium, rng.below(1 << 30)).unwrap_or_else(|e| panic!("{replay} life {life}: {e}"));
        let mut with = model.clone();
        if let Err(Some(step)) = &under_way {
            with.step(step);
        }
        match world.compare(&with, merges) {
            Ok(()) => model = with,
            Err(as_if_done) => {
                let found = world.compare(&model, merges);
                assert_eq!(found, Ok(()), "{replay} life {life}; if done: {as_if_done}; under way: {under_way:?}");
            }
        }
        world.audit();
    }
    uncut
}

/// Goal:   after any power cut, each answered Put over records and versions is whole, no other is half there, every version
///         ever put is where it was in its history, and snapshots and rollbacks show what they did.
/// Method: cut at medium operation n = 1, 2, 3, … of a short run, until a run ends before its cut.
#[test]
fn every_cut_of_a_short_run_is_survived() {
    for packing in [Packing::Across, Packing::WithinPage] {
        for cut in (1..).step_by(3) {
            if survive(1 + cut % 7, packing, cut, 60, 2, false) {
                break;
            }
        }
    }
}

/// Goal:   the same while segments are sealed, versions kept and the ring goes round.
/// Method: random cuts, several lives of one device.
#[test]
fn long_lives_survive_random_cuts() {
    for seed in 1..=6 {
        let packing = if seed % 3 == 0 { Packing::WithinPage } else { Packing::Across };
        survive(seed, packing, 900 + seed * 397, 1500, 3, false);
    }
}

/// Goal:   merges lose nothing that the rules keep, wherever they are cut off, and give space back.
/// Method: as above, with a merge after every four hundred steps, on a device so small that collection runs too.
#[test]
fn merges_survive_cuts() {
    for seed in 21..=24 {
        survive(seed, Packing::Across, 2900 + seed * 51, 2500, 3, true);
    }
}

/// Goal:   a clean close keeps what is in the page buffer, and opening needs no recovery.
/// Method: put, close, open, compare; several times.
#[test]
fn a_clean_close_keeps_the_buffer() {
    let medium = MemoryMedium::new(geometry(Packing::Across));
    let mut world = World::new(&medium, 5);
    let mut model = Model::default();
    for life in 0..4 {
        assert!(world.run(&mut model, 120, false).is_ok());
        world.root(true).unwrap();
        let request = world.core.request_close();
        world.until(|core| core.roots_done() >= request).unwrap();
        drop(world);
        let (_, report) = Core::open(&medium, true).unwrap();
        assert!(report.clean, "life {life}");
        world = World::open(&medium, life + 9).unwrap();
        assert_eq!(world.compare(&model, false), Ok(()), "life {life}");
        world.audit();
    }
}
