//! Versioned namespaces under power cuts, together with records, on flash in memory.

mod common;
#[path = "common/merging.rs"]
mod merging;

use common::{Cut, Life, Rng, value};
use kaml_device::{Body, Condition, Core, Error, Key, KeyKind, NamespaceOptions, Op, StageError, VersionOptions};
use kaml_flash::{BlockIndex, Geometry, Io, MediumError, MemoryMedium, Packing};
use kaml_testkit::{Access, Watched};
use kaml_versions::{At, BloomOptions, Command, Kind, Past, Retention, get, history, verify};
use merging::{Reading, Stopped};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

fn geometry(packing: Packing) -> Geometry {
    common::geometry(packing, if packing == Packing::Across { 34 } else { 60 })
}

const KEYS: u64 = 40;

/// The default, and the paper's index with filters that are often wrong.
const COLUMNS: Option<BloomOptions> = None;
const BLOOM: Option<BloomOptions> = Some(BloomOptions {
    hashes: 0,
    is_even: false,
    segment_keys: 0,
    overflow_keys: 0,
    false_positives_ppm: 20_000,
    growth_permille: 0,
    combined: 5,
});

/// Seed and length of a value; nothing: deleted.
type Content = Option<(u64, usize)>;

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

/// What must exist.
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
            Step::Command(Command::ForgetThrough(version)) => self.snapshots.retain(|taken, _| taken > version),
        }
    }

    fn take(&mut self) {
        self.user_version += 1;
        self.snapshots.insert(self.user_version, self.present.clone());
    }
}

/// A life of a device with a namespace of records and a versioned one.
struct World {
    life: Life,
    records: u32,
    versions: u32,
    /// Some values are longer than a segment.
    has_large: bool,
}

impl World {
    fn open(medium: &MemoryMedium, seed: u64) -> Result<World, Error> {
        let life = Life::open(medium, seed)?;
        let named = |name| life.core.namespace(name).unwrap_or(0);
        let (records, versions) = (named("records"), named("versions"));
        Ok(World { life, records, versions, has_large: false })
    }

    /// A device with both namespaces, durable.
    fn new(medium: &MemoryMedium, seed: u64, index: Option<BloomOptions>) -> World {
        Core::format(medium).unwrap();
        let mut world = World::open(medium, seed).unwrap();
        let keys = NamespaceOptions::records(KeyKind::U64);
        world.records = world.life.core.create_namespace("records", &keys).unwrap();
        let versions = VersionOptions { bloom: index, ..VersionOptions::default() };
        let options = NamespaceOptions::versions(KeyKind::U64, versions);
        world.versions = world.life.core.create_namespace("versions", &options).unwrap();
        world.root(false).unwrap();
        world
    }

    fn root(&mut self, settle: bool) -> Result<(), Cut> {
        let request = self.life.core.request_root(settle);
        self.life.until(|core| core.roots_done() >= request)
    }

    /// Takes the versions out of memory; returns how far a merge could go.
    fn unload(&mut self) -> Vec<u64> {
        self.root(true).expect("power stays");
        let request = self.life.core.request_checkpoint();
        self.life.until(|core| core.roots_done() >= request).expect("power stays");
        let limit = self.limit().unwrap();
        assert_eq!(self.life.core.unload_index(self.versions), Ok(true));
        limit
    }

    /// How far a merge could go in each row.
    fn limit(&self) -> Result<Vec<u64>, StageError> {
        let scope = |row| Some(self.life.core.merge_scope(self.versions, row, false));
        let first = self.life.core.merge_scope(self.versions, 0, false)?;
        let rows = self.life.core.reader().versions(self.versions).map_or(0, |reader| reader.row_count());
        (0..rows).filter_map(scope).chain([Ok(first)]).map(|scope| scope.map(|scope| scope.sealed_before)).collect()
    }

    fn apply(&mut self, step: &Step) -> Result<Result<(), Error>, Cut> {
        self.life.core.set_time(7);
        let (records, versions) = (self.records, self.versions);
        match step {
            Step::Command(command) => {
                self.life.commit(|core| core.stage_version_command(versions, *command).map(|(frame, _)| frame))
            }
            Step::Put(changes) => {
                let values: Vec<_> = changes.values().map(|content| bytes_of(*content)).collect();
                let mut ops = Vec::new();
                for ((is_version, key), value) in changes.keys().zip(&values) {
                    let namespace = if *is_version { versions } else { records };
                    let key = Key::from(*key);
                    let body = match value.as_deref() {
                        None => Body::Delete,
                        Some(value) if self.life.core.reader().places_first(namespace, value.len()) => {
                            match self.life.place(namespace, key, value)? {
                                Ok(ticket) => Body::Placed { ticket },
                                Err(error) => {
                                    self.forget(&ops);
                                    return Ok(Err(error));
                                }
                            }
                        }
                        Some(value) => Body::Value { value, crc32c: kaml_crc::crc32c(value) },
                    };
                    let (condition, expires) = (Condition::Always, Default::default());
                    ops.push(Op { namespace, key: key.into(), body, condition, expires });
                }
                let answer = self.life.commit(|core| core.stage(&ops))?;
                if answer.is_err() {
                    self.forget(&ops);
                }
                Ok(answer)
            }
        }
    }

    fn forget(&mut self, ops: &[Op<'_>]) {
        for op in ops {
            if let Body::Placed { ticket } = op.body {
                self.life.core.forget(ticket);
            }
        }
    }

    fn choose(&mut self, model: &Model) -> Step {
        let snapshots: Vec<u32> = model.snapshots.keys().copied().collect();
        match self.life.rng.below(40) {
            0 => Step::Command(Command::Snapshot),
            1 if !snapshots.is_empty() => {
                let version = snapshots[self.life.rng.below(snapshots.len() as u64) as usize];
                let is_forgotten = snapshots.len() > 4 || self.life.rng.below(3) > 0;
                Step::Command(if is_forgotten { Command::Forget(version) } else { Command::RollBack(version) })
            }
            _ => {
                let count = 1 + self.life.rng.below(4);
                let one = |_| {
                    let key =
                        if self.life.rng.below(3) == 0 { self.life.rng.below(3) } else { self.life.rng.below(KEYS) };
                    let len = match self.life.rng.below(30) {
                        0 => self.life.rng.below(20_000),
                        1..4 if self.has_large => 30_000 + self.life.rng.below(95_000),
                        _ => self.life.rng.below(1500),
                    };
                    let content = (self.life.rng.below(6) > 0).then(|| (self.life.rng.below(1 << 30), len as usize));
                    ((self.life.rng.below(4) > 0, key), content)
                };
                Step::Put((0..count).map(one).collect())
            }
        }
    }

    /// Runs for some steps; if power is cut, returns the step that was in progress.
    fn run(&mut self, model: &mut Model, steps: u64, merges: bool) -> Result<(), Option<Step>> {
        let merge_every = if steps < 400 { 20 } else { 400 };
        for at in 0..steps {
            let step = self.choose(model);
            match self.apply(&step) {
                Err(Cut) => return Err(Some(step)),
                Ok(Err(Error::Full { .. })) => {}
                Ok(Err(error)) => panic!("{error}"),
                Ok(Ok(())) => model.step(&step),
            }
            if merges && at % merge_every == merge_every - 1 {
                self.merge().map_err(|Cut| None)?;
            }
            if self.life.rng.below(300) == 0 {
                self.root(true).map_err(|Cut| None)?;
            }
            self.life.background(false).map_err(|Cut| None)?;
        }
        Ok(())
    }

    fn reading(&mut self) -> Reading<'_> {
        self.life.reading(self.versions)
    }

    /// Merges all rows, keeping what snapshots see, in pieces of several lengths.
    fn merge(&mut self) -> Result<(), Cut> {
        let retention = Retention { keep_internal: false, ..Retention::default() };
        let segments_max = 2 + self.life.rng.below(6) as usize;
        match self.life.merge(self.versions, &retention, |_| segments_max) {
            Ok(_) | Err(Stopped::Full) => Ok(()),
            Err(Stopped::Cut) => Err(Cut),
        }
    }

    /// Each version has its value; after a merge nothing else has one.
    fn check_large(&mut self, merges: bool, replay: &str) {
        self.life.core.load_large_values(&self.life.medium, self.versions).unwrap();
        let large = |world: &mut World| {
            let of_key = |key: u64| {
                let past = history(&mut world.reading(), &Key::from(key), usize::MAX).unwrap();
                past.iter().filter(|past| matches!(past.version.kind, Kind::Large(_))).count() as u64
            };
            (0..KEYS).map(of_key).sum::<u64>()
        };
        for row in 0..self.life.core.reader().versions(self.versions).unwrap().row_count() {
            verify(&mut self.reading(), row).unwrap_or_else(|e| panic!("{replay}: row {row}: {e}"));
        }
        let (versions, values) = (large(self), self.life.core.large_version_values());
        assert!(versions <= values, "{replay}: {values} values of {versions} versions");
        if merges && self.has_large && self.life.rng.below(2) == 0 {
            assert!(self.merge().is_ok());
            let (versions, values) = (large(self), self.life.core.large_version_values());
            assert_eq!(versions, values, "{replay}: values of versions, after a merge");
        }
    }

    /// What is wrong, if anything is.
    fn compare(&mut self, model: &Model, is_merged: bool) -> Result<(), String> {
        for key in 0..KEYS {
            let expected = bytes_of(model.records.get(&key).copied());
            if self.life.get(self.records, key) != expected {
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
}

/// Without merges all versions exist, with them some of these in the same order.
fn compare_history(key: u64, full: &[(u64, Content)], past: &[Past], is_merged: bool) -> Result<(), String> {
    let mut expected = full.iter().rev();
    for Past { version, .. } in past {
        let is_it = |(_, content): &&(u64, Content)| match content {
            None => version.kind == Kind::Tombstone,
            Some((seed, len)) => {
                version.value_len as usize == *len && version.value_crc == kaml_crc::crc32c(&value(*seed, *len))
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

/// How pages hold records, and the index of the versions.
type Shape = (Packing, Option<BloomOptions>);

/// Runs a seeded workload over several lives of one device, each ended by a power cut, and compares after each. Returns
/// whether the first run ended before its cut.
fn survive(seed: u64, shape: Shape, first_cut: u64, steps: u64, lives: u64, merges: bool) -> bool {
    survive_with(seed, shape, false, first_cut, steps, lives, merges)
}

/// The same; with large values or without.
fn survive_with(
    seed: u64,
    shape: Shape,
    has_large: bool,
    first_cut: u64,
    steps: u64,
    lives: u64,
    merges: bool,
) -> bool {
    let replay = format!("seed {seed} {shape:?} large {has_large} first cut {first_cut}");
    let medium = MemoryMedium::new(geometry(shape.0));
    let mut world = World::new(&medium, seed, shape.1);
    world.has_large = has_large;
    let mut model = Model::default();
    let mut rng = Rng::new(seed.wrapping_mul(77));
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
        world.has_large = has_large;
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
        world.life.audit();
        world.check_large(merges, &replay);
    }
    uncut
}

/// Goal:   after any power cut, each acknowledged Put over records and versions is whole, no other exists in part, every version
///         ever put is where it was in its history, and snapshots and rollbacks show what they did.
/// Method: cut at medium operation n = 1, 2, 3, … of a short run, until a run ends before its cut.
#[test]
fn every_cut_of_a_short_run_is_survived() {
    for shape in [(Packing::Across, COLUMNS), (Packing::WithinPage, COLUMNS), (Packing::Across, BLOOM)] {
        for cut in (1..).step_by(3) {
            if survive(1 + cut % 7, shape, cut, 60, 2, false) {
                break;
            }
        }
    }
}

/// Goal:   the same while segments are sealed, versions kept and the ring wraps around.
/// Method: random cuts, several lives of one device.
#[test]
fn long_lives_survive_random_cuts() {
    for seed in 1..=8 {
        let packing = if seed % 3 == 0 { Packing::WithinPage } else { Packing::Across };
        let index = if seed % 2 == 0 { BLOOM } else { COLUMNS };
        survive(seed, (packing, index), 900 + seed * 397, 1500, 3, false);
    }
}

/// Goal:   merges lose nothing that the rules keep, wherever they are cut off, and release space.
/// Method: as above, with a merge after every four hundred steps, on a device so small that collection runs too.
#[test]
fn merges_survive_cuts() {
    for seed in 21..=24 {
        for index in [COLUMNS, BLOOM] {
            survive(seed, (Packing::Across, index), 2900 + seed * 51, 2500, 3, true);
        }
    }
}

/// Goal:   the same of values longer than a segment: after any cut a version has its value, and a value without a version is dropped by the
///         next merge.
/// Method: cut at medium operation n = 1, 2, 3, … of a short run with merges, until a run ends before its cut; verify all versions, count
///         values and the versions that have some.
#[test]
fn large_versions_survive_every_cut() {
    for shape in [(Packing::Across, COLUMNS), (Packing::WithinPage, BLOOM)] {
        for cut in (1..).step_by(3) {
            if survive_with(1 + cut % 7, shape, true, cut, 60, 2, cut % 2 == 0) {
                break;
            }
        }
    }
}

/// Goal:   the same where rows are sealed, merged, and collection runs, over several lives.
/// Method: random cuts in long runs with a merge after every four hundred steps.
#[test]
fn large_versions_survive_merges_and_cuts() {
    for seed in 41..=44 {
        for index in [COLUMNS, BLOOM] {
            survive_with(seed, (Packing::Across, index), true, 2900 + seed * 51, 1800, 3, true);
        }
    }
}

/// Goal:   a version that remains in the page buffer holds the ring only as long as there is room for the next frame, also where that
///         needs the remainder of a lap besides.
/// Method: one version, after it the longest Puts of records, twice around the ring; from many places of the lap.
#[test]
fn a_buffered_version_does_not_stop_the_ring() {
    for start in 0..16 {
        let medium = MemoryMedium::new(geometry(Packing::Across));
        let mut world = World::new(&medium, start + 1, COLUMNS);
        let put = |world: &mut World, is_version: bool, values: u64, len: usize| {
            let changes = (0..values).map(|key| ((is_version, key), Some((key, len)))).collect();
            let done = world.apply(&Step::Put(changes));
            assert!(matches!(done, Ok(Ok(()))), "from {start}");
        };
        put(&mut world, false, 1, 1 + start as usize * 900);
        (0..start).for_each(|_| put(&mut world, false, 1, 4_000));
        assert!(world.root(true).is_ok(), "the ring is empty");
        put(&mut world, true, 1, 100);
        (0..20).for_each(|_| put(&mut world, false, 4, 32_500));
    }
}

/// Goal:   a block that fails while a device is opened after a crash takes no version along, whatever was in it.
/// Method: a device that was closed, so a stream has what its page buffer had, was opened and used, and crashed; opened with a
///         block failing at the first, second, third, … program, and then once more.
#[test]
fn blocks_that_fail_while_opening_take_no_versions_along() {
    let medium = MemoryMedium::new(geometry(Packing::Across));
    let mut world = World::new(&medium, 5, COLUMNS);
    let mut model = Model::default();
    assert!(world.run(&mut model, 60, false).is_ok());
    let request = world.life.core.request_close();
    world.life.until(|core| core.roots_done() >= request).unwrap();
    drop(world);
    let mut world = World::open(&medium, 6).unwrap();
    assert!(world.run(&mut model, 60, false).is_ok());
    for many in 0..30 {
        let records = (0..300).map(|key| ((false, KEYS + many * 300 + key), Some((key, 20))));
        assert!(matches!(world.apply(&Step::Put(records.collect())), Ok(Ok(()))));
    }
    drop(world);
    let mut fails_at = 0;
    loop {
        let crashed = medium.clone_state().reopen();
        let (programs, failed) = (Mutex::new(0), Mutex::new(None));
        let watch = |seen: Access<'_>| {
            let Access::Operation(Io::Program { at, .. }) = seen else { return Ok(()) };
            let (mut programs, mut failed) = (programs.lock().unwrap(), failed.lock().unwrap());
            if *programs == fails_at {
                *failed = Some(at.block);
            }
            *programs += 1;
            match *failed {
                Some(block) if block == at.block => Err(refusal(block)),
                _ => Ok(()),
            }
        };
        drop(Core::open(&Watched { medium: crashed.clone(), watch, before: |queue| queue }).unwrap());
        let mut world = World::open(&crashed.reopen(), 7).unwrap();
        assert_eq!(world.compare(&model, false), Ok(()), "program {fails_at} failed");
        if failed.into_inner().unwrap().is_none() {
            break;
        }
        fails_at += 1;
    }
    assert!(fails_at > 5, "{fails_at} programs");
}

fn refusal(block: BlockIndex) -> MediumError {
    MediumError::BlockFailed { block, what: "program", error: "worn out".into() }
}

/// Goal:   a clean close keeps what is in the page buffer, and opening needs no recovery.
/// Method: put, close, open, compare; several times.
#[test]
fn a_clean_close_keeps_the_buffer() {
    for index in [COLUMNS, BLOOM] {
        let medium = MemoryMedium::new(geometry(Packing::Across));
        let mut world = World::new(&medium, 5, index);
        let mut model = Model::default();
        for life in 0..4 {
            assert!(world.run(&mut model, 120, false).is_ok());
            world.root(true).unwrap();
            let request = world.life.core.request_close();
            world.life.until(|core| core.roots_done() >= request).unwrap();
            drop(world);
            let (_, report) = Core::open_to_read(&medium).unwrap();
            assert!(report.clean, "life {life}");
            world = World::open(&medium, life + 9).unwrap();
            assert_eq!(world.compare(&model, false), Ok(()), "life {life}");
            world.life.audit();
        }
    }
}

/// Goal:   what looked at a key before a rollback is not put after it: the key may look otherwise by now.
/// Method: a Put that must find the namespace unchanged since before a rollback, and since after it.
#[test]
fn a_rollback_is_a_change() {
    let medium = MemoryMedium::new(geometry(Packing::Across));
    let mut world = World::new(&medium, 5, COLUMNS);
    let versions = world.versions;
    let put = |world: &mut World, since: u64| {
        let body = Body::Value { value: b"seen", crc32c: kaml_crc::crc32c(b"seen") };
        let op = [Op {
            namespace: versions,
            key: Key::from(1).into(),
            body,
            condition: Condition::UnchangedSince(since),
            expires: Default::default(),
        }];
        world.life.commit(|core| core.stage(&op)).unwrap()
    };
    assert_eq!(world.apply(&Step::Command(Command::Snapshot)).unwrap(), Ok(()));
    let before = world.life.core.newest_committed(versions);
    assert_eq!(world.apply(&Step::Command(Command::RollBack(1))).unwrap(), Ok(()));
    assert_eq!(
        put(&mut world, before),
        Err(Error::Conflict { namespace: versions, key: Key::from(1).into(), present: true })
    );
    let after = world.life.core.newest_committed(versions);
    assert_eq!(put(&mut world, after), Ok(()));
}

/// Goal:   versions that were read next to the core are not put in place after there are newer ones, or others were faster. Merges keep
///         after the oldest one that is kept.
/// Method: read them next to the core; before they are put in place others are, are changed, written out and leave memory, once by a
///         put that is only in the kept stream, once by one that is in a segment.
#[test]
fn stale_versions_are_not_installed() {
    let medium = MemoryMedium::new(geometry(Packing::Across));
    let (mut world, mut model) = (World::new(&medium, 1, COLUMNS), Model::default());
    let put = |world: &mut World, model: &mut Model, seeds: Range<u64>| {
        for seed in seeds {
            let step = Step::Put(BTreeMap::from([((true, seed % KEYS), Some((seed, 900)))]));
            world.apply(&step).expect("power stays").unwrap();
            model.step(&step);
        }
    };
    put(&mut world, &mut model, 0..100);
    for count in [1, 2000] {
        let limit = world.unload();
        assert_eq!(world.limit(), Err(StageError::NeedIndex(world.versions)));
        let read = |world: &mut World| {
            let load = world.life.core.begin_load(world.versions).unwrap().expect("it left memory");
            load.read(&world.life.medium).unwrap()
        };
        let (late, loaded, stale) = (read(&mut world), read(&mut world), read(&mut world));
        world.life.core.finish_load(loaded);
        assert_eq!(world.limit(), Ok(limit));
        put(&mut world, &mut model, 1000..1000 + count);
        world.life.core.finish_load(late);
        world.compare(&model, false).unwrap();
        let limit = world.unload();
        world.life.core.finish_load(stale);
        world.compare(&model, false).unwrap();
        world.unload();
        let closed = world.life.core.request_close();
        world.life.until(|core| core.roots_done() >= closed).expect("power stays");
        world = World::open(&medium, 2).unwrap();
        world.life.core.load_index(&medium, world.versions).unwrap();
        assert_eq!(world.limit(), Ok(limit));
    }
}
