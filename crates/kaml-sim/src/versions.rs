//! Hosts of versioned namespaces: what such a namespace must remember, commands on its past, merges.
//!
//! Lives here:       the past as the model has it, comparing it, drawing and staging commands, a merge step by step.
//! Lives elsewhere:  puts, gets and deletes, which are those of records (`host`, `world`); what a fault excuses (`check`).
//!
//! A command that finishes a user version is a change of a record of its own, whose key no host uses: so it has its place
//! among the Puts in progress, and whether it came through is found as for any Put.

use crate::check::{self, Violation};
use crate::host::Command;
use crate::model::{Address, Changes, Comparison, Model};
use crate::rng::Rng;
use crate::value::Value;
use crate::world::{End, World};
use kaml_device::{Core, Error, FindError, Key, StageError, VersionReader, segment_image};
use kaml_flash::Medium;
use kaml_versions::{
    At, Command as VersionCommand, Error as Damage, Kind, MergePlan, Merged, Past as Found, Retention, SegmentAt,
    Source, Version, Versions, get, history, merge, plan_merge,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// The key of the record that commands change.
pub(crate) const COMMAND: u64 = u64::MAX;
/// Snapshots of a namespace beyond which one is forgotten.
const SNAPSHOTS_MAX: usize = 3;

/// What is seen: for each key the place of a version among all of the key's, oldest first.
type View = BTreeMap<u64, usize>;

/// What a versioned namespace must remember.
#[derive(Clone, Debug, Default)]
pub struct Past {
    /// All acknowledged versions of each key, oldest first.
    versions: BTreeMap<u64, Vec<Option<Value>>>,
    seen: View,
    snapshots: BTreeMap<u32, View>,
    /// For commands that were staged, by the user version that they finish: what a rollback shows.
    commands: BTreeMap<u32, Option<View>>,
    /// Versions that nothing sees may be gone.
    is_merged: bool,
    /// Rollbacks that completed.
    rollbacks: usize,
}

impl Past {
    /// A Put or a command completed.
    pub(crate) fn apply(&mut self, space: u32, changes: &Changes) {
        if let Some(Some(command)) = changes.get(&(space, COMMAND)) {
            let finished = command.seed as u32;
            self.snapshots.insert(finished, self.seen.clone());
            if let Some(Some(seen)) = self.commands.remove(&finished) {
                self.seen = seen;
                self.rollbacks += 1;
            }
            return;
        }
        for ((_, key), value) in changes.range((space, 0)..(space, COMMAND)) {
            let versions = self.versions.entry(*key).or_default();
            self.seen.insert(*key, versions.len());
            versions.push(*value);
        }
    }

    fn value(&self, key: u64, seen: &View) -> Option<Value> {
        seen.get(&key).and_then(|at| self.versions[&key][*at])
    }

    /// Those that did not come through will not.
    pub(crate) fn forget_commands(&mut self) {
        self.commands.clear();
    }

    /// How often what a key shows may have changed.
    pub(crate) fn change_count(&self, key: u64) -> usize {
        self.rollbacks + self.versions.get(&key).map_or(0, Vec::len)
    }

    /// All versions, if none may be gone.
    pub(crate) fn version_count(&self) -> Option<u64> {
        (!self.is_merged).then(|| self.versions.values().map(|versions| versions.len() as u64).sum())
    }
}

// --- reading --------------------------------------------------------------------------------------------------------------

/// Reads versions as a driver does.
pub(crate) struct Reading<'a> {
    core: &'a mut Core,
    medium: &'a dyn Medium,
    reader: VersionReader,
    space: u32,
}

impl<'a> Reading<'a> {
    pub(crate) fn new(core: &'a mut Core, medium: &'a dyn Medium, space: u32) -> Result<Reading<'a>, Error> {
        let reader = core.reader().versions(space)?;
        Ok(Reading { core, medium, reader, space })
    }
}

impl Source for Reading<'_> {
    type Error = Error;

    fn look<T>(&mut self, look: impl FnOnce(&Versions, &mut dyn FnMut(SegmentAt)) -> T) -> Result<T, Error> {
        self.core.load_index(self.medium, self.space)?;
        self.reader.look(look).map_err(|error| match error {
            FindError::Refused(error) => error,
            FindError::NeedIndex => unreachable!("just loaded"),
        })
    }

    fn read<T>(
        &mut self,
        at: SegmentAt,
        bytes: Range<usize>,
        take: impl FnMut(&[u8]) -> Result<T, Damage>,
    ) -> Result<T, Error> {
        self.core.read_part(self.medium, self.space, at, &bytes, take)
    }

    fn large(&mut self, _: &Version, number: u64) -> Result<Option<Vec<u8>>, Error> {
        loop {
            match self.core.read_large(self.medium, self.space, number) {
                Ok(found) => return Ok(found),
                Err(FindError::Refused(error)) => return Err(error),
                Err(FindError::NeedIndex) => self.core.load_large_values(self.medium, self.space)?,
            }
        }
    }
}

/// The newest version of a key; of [`COMMAND`] which user version was finished last.
pub(crate) fn newest(
    core: &mut Core,
    medium: &dyn Medium,
    model: &Model,
    (space, key): Address,
) -> Result<Option<Vec<u8>>, Error> {
    let mut reading = Reading::new(core, medium, space)?;
    if key == COMMAND {
        let finished = reading.look(|versions, _| versions.timeline().present() - 1)?;
        return Ok((finished > 0).then(|| command(finished).noise()));
    }
    Ok(get(&mut reading, &short(model, (space, key)), At::Latest)?.map(|record| record.value))
}

/// The key of a record with versions.
fn short(model: &Model, address: Address) -> Key {
    model.key(address).as_short().expect("versions have keys of at most 16 bytes")
}

fn command(finished: u32) -> Value {
    Value { seed: finished.into(), len: 8, expires: 0 }
}

// --- comparing ------------------------------------------------------------------------------------------------------------

/// Compares the history of a key, and narrows down what of the Puts in progress came through.
pub(crate) fn compare(
    core: &mut Core,
    medium: &dyn Medium,
    model: &Model,
    comparison: &mut Comparison<'_>,
    (space, key): Address,
) -> Result<Result<(), String>, Error> {
    let found = history(&mut Reading::new(core, medium, space)?, &short(model, (space, key)), usize::MAX)?;
    let past = &model.pasts[&space];
    let answered = past.versions.get(&key).map_or(&[][..], Vec::as_slice);
    let put = |(at, (_, changes)): (usize, &(u64, Changes))| match changes.contains_key(&(space, COMMAND)) {
        true => None,
        false => changes.get(&(space, key)).map(|value| (at, *value)),
    };
    let under_way: Vec<(usize, Option<Value>)> = model.unanswered.iter().enumerate().filter_map(put).collect();
    let mut expected = answered.iter().copied().chain(under_way.iter().map(|(_, value)| *value));
    let wrong = |what: &str| Err(format!("namespace {space} key {key}: its history {what}"));
    for Found { version, .. } in found.iter().rev() {
        let is_there = match past.is_merged {
            true => expected.any(|value| is(version, value)),
            false => expected.next().is_some_and(|value| is(version, value)),
        };
        if !is_there {
            return Ok(wrong(&format!("has {version:?}, which was not put then")));
        }
    }
    if past.is_merged {
        return Ok(Ok(()));
    }
    let through = |n: usize| under_way.iter().filter(|(at, _)| *at < n).count();
    let fits = comparison.narrow(|n| answered.len() + through(n) == found.len());
    let (all, most) = (answered.len(), under_way.len());
    Ok(if fits { Ok(()) } else { wrong(&format!("has {} versions; {all} were put, {most} more may be", found.len())) })
}

fn is(version: &Version, value: Option<Value>) -> bool {
    match value {
        None => version.kind == Kind::Tombstone,
        Some(value) => {
            let is_value = version.kind != Kind::Tombstone && version.value_len == value.len;
            is_value && version.value_crc == kaml_crc::crc32c(&value.noise())
        }
    }
}

/// Compares what the oldest and the newest snapshot of a namespace see, after it is known which Puts came through.
pub(crate) fn compare_snapshots(
    core: &mut Core,
    medium: &dyn Medium,
    model: &Model,
    space: u32,
    keys: u64,
) -> Result<Result<(), String>, Error> {
    let past = &model.pasts[&space];
    let ends = [past.snapshots.first_key_value(), past.snapshots.last_key_value()];
    let mut reading = Reading::new(core, medium, space)?;
    for (version, seen) in ends.into_iter().flatten() {
        for key in 0..keys {
            let at = At::Snapshot(*version);
            let found = get(&mut reading, &short(model, (space, key)), at)?.map(|record| record.value);
            if found != past.value(key, seen).map(Value::noise) {
                return Ok(Err(format!("namespace {space} key {key}: snapshot {version} shows something else")));
            }
        }
    }
    Ok(Ok(()))
}

// --- commands -------------------------------------------------------------------------------------------------------------

/// What a host needs of a namespace's past.
pub struct PastCommand {
    /// The namespace.
    pub space: u32,
    act: Act,
}

enum Act {
    Snapshot,
    /// To some snapshot.
    RollBack(u64),
    Merge(Box<Merging>),
}

/// What became of a command.
enum Step {
    /// Not yet.
    Later,
    /// A step on.
    On,
    Done,
}

impl PastCommand {
    /// The merge that the firmware needs because space is low.
    pub(crate) fn merge_when_low(space: u32, retention: Retention) -> Command {
        let merging = Merging { space, retention, is_for_space: true, ..Merging::default() };
        Command::Past(PastCommand { space, act: Act::Merge(Box::new(merging)) })
    }

    /// What some host needs next; nothing if there are no versioned namespaces.
    pub(crate) fn draw(rng: &mut Rng, model: &Model, spaces: &[u32]) -> Option<Command> {
        let pasts: Vec<u32> = spaces.iter().copied().filter(|id| model.pasts.contains_key(id)).collect();
        let last = pasts.len().checked_sub(1)? as u64;
        let space = pasts[rng.below(last + 1) as usize];
        let act = match rng.below(6) {
            0..=2 => Act::Snapshot,
            3 => Act::RollBack(rng.draw()),
            _ => Act::Merge(Box::new(Merging { space, retention: KEEP, ..Merging::default() })),
        };
        Some(Command::Past(PastCommand { space, act }))
    }

    fn merges(&self, space: u32) -> bool {
        self.space == space && matches!(self.act, Act::Merge(_))
    }

    /// The merge, if it has not begun.
    fn new_merge(&self) -> Option<&Merging> {
        match &self.act {
            Act::Merge(merging) => Some(&**merging).filter(|merging| merging.root.is_none()),
            Act::Snapshot | Act::RollBack(_) => None,
        }
    }

    fn step(&mut self, core: &mut Core, medium: &dyn Medium, model: &mut Model) -> Result<Step, StageError> {
        let space = self.space;
        let Some(past) = model.pasts.get(&space) else { return Ok(Step::Done) };
        let snapshots: Vec<u32> = past.snapshots.keys().copied().collect();
        match &mut self.act {
            Act::Merge(merging) => return merging.step(core, medium, model),
            Act::Snapshot if snapshots.len() > SNAPSHOTS_MAX => {
                // Whether it is forgotten for good makes no difference: nothing reads it any more.
                core.stage_version_command(space, VersionCommand::Forget(snapshots[0]))?;
                model.pasts.get_mut(&space).expect("just seen").snapshots.remove(&snapshots[0]);
            }
            Act::Snapshot => stage(core, model, space, VersionCommand::Snapshot, None, Changes::new())?,
            Act::RollBack(_) if snapshots.is_empty() => {}
            // What it changes is known only after all that is in progress.
            Act::RollBack(_) if !model.unanswered.is_empty() => return Ok(Step::Later),
            Act::RollBack(draw) => {
                let to = snapshots[(*draw % snapshots.len() as u64) as usize];
                let seen = past.snapshots[&to].clone();
                let keys = past.versions.keys();
                let changes = keys.map(|key| ((space, *key), past.value(*key, &seen))).collect();
                stage(core, model, space, VersionCommand::RollBack(to), Some(seen), changes)?;
            }
        }
        Ok(Step::Done)
    }

    fn give_up(self, core: &mut Core) {
        if let Act::Merge(merging) = self.act {
            core.forget_merged(&merging.tickets);
            core.end_merge(self.space);
            if merging.is_for_space {
                core.end_low_merge();
            }
        }
    }
}

fn stage(
    core: &mut Core,
    model: &mut Model,
    space: u32,
    what: VersionCommand,
    shows: Option<View>,
    mut changes: Changes,
) -> Result<(), StageError> {
    let (frame, finished) = core.stage_version_command(space, what)?;
    changes.insert((space, COMMAND), Some(command(finished)));
    model.pasts.get_mut(&space).expect("requested").commands.insert(finished, shows);
    model.unanswered.push_back((frame, changes));
    Ok(())
}

/// A merge that keeps the newest versions and what snapshots see.
#[derive(Default)]
struct Merging {
    space: u32,
    retention: Retention,
    /// The firmware needs it because space is low.
    is_for_space: bool,
    root: Option<u64>,
    row: u32,
    plan: Option<MergePlan>,
    merged: Option<Merged>,
    tickets: Vec<u64>,
}

const KEEP: Retention = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: true, keep_internal: false };

impl Merging {
    fn step(&mut self, core: &mut Core, medium: &dyn Medium, model: &mut Model) -> Result<Step, StageError> {
        let Some(request) = self.root else {
            core.prepare_merge(self.space);
            self.root = Some(core.request_root(true));
            return Ok(Step::On);
        };
        if core.roots_done() < request {
            return Ok(Step::Later);
        }
        let Some(plan) = &mut self.plan else { return self.plan_row(core, medium) };
        let Some(merged) = &self.merged else {
            let segments_max = core.merge_segments_max(self.space);
            self.merged = merge(&mut Reading::new(core, medium, self.space)?, plan, segments_max)?;
            if self.merged.is_none() {
                model.pasts.get_mut(&self.space).expect("not deleted meanwhile").is_merged = true;
                core.drop_buffered(self.space, plan)?;
                (self.plan, self.row) = (None, self.row + 1);
            }
            return Ok(Step::On);
        };
        if let Some(sealed) = merged.segments.get(self.tickets.len()) {
            self.tickets.push(core.place_merged(self.space, sealed, &segment_image(sealed))?);
            return Ok(Step::On);
        }
        if !self.tickets.iter().all(|ticket| core.is_segment_programmed(*ticket)) {
            return Ok(Step::Later);
        }
        model.pasts.get_mut(&self.space).expect("not deleted meanwhile").is_merged = true;
        core.install_merge(self.space, merged, &self.tickets)?;
        plan.note_installed(merged);
        self.merged = None;
        self.tickets.clear();
        Ok(Step::On)
    }

    fn plan_row(&mut self, core: &mut Core, medium: &dyn Medium) -> Result<Step, StageError> {
        let rows = core.reader().versions(self.space)?.row_count();
        if self.row == rows {
            core.end_merge(self.space);
            if self.is_for_space {
                core.end_low_merge();
            }
            return Ok(Step::Done);
        }
        let scope = core.begin_merge(self.space, self.row, core.needs_thorough_merge())?;
        let plan = plan_merge(&mut Reading::new(core, medium, self.space)?, self.row, &self.retention, &scope)?;
        self.plan = Some(plan);
        Ok(Step::On)
    }
}

impl World {
    /// Tries a command on a past, or a step of it.
    pub(crate) fn attempt_past(&mut self, which: usize) -> Result<(), End> {
        let Command::Past(mut command) = self.waiting.swap_remove(which) else {
            unreachable!("only commands on pasts come here")
        };
        let merges = |other: &Command| matches!(other, Command::Past(other) if other.merges(command.space));
        if let Some(new) = command.new_merge()
            && self.waiting.iter().any(merges)
        {
            if new.is_for_space {
                self.waiting.push(Command::Past(command));
            }
            return Ok(());
        }
        if !self.model.pasts.contains_key(&command.space) {
            command.give_up(&mut self.core);
            return Ok(());
        }
        let step = command.step(&mut self.core, &self.medium, &mut self.model);
        self.note_cuts_of_reads();
        match step {
            Ok(Step::Done) => return Ok(()),
            Ok(Step::On) => self.submit(Command::Past(command)),
            Ok(Step::Later) | Err(StageError::Busy | StageError::RefusedAfter(..)) => {
                self.waiting.push(Command::Past(command))
            }
            Err(StageError::NeedIndex(id)) => match self.load_index(id)? {
                true => self.waiting.push(Command::Past(command)),
                false => command.give_up(&mut self.core),
            },
            Err(StageError::Refused(_)) if self.medium.is_cut() => return Err(End::Cut),
            Err(StageError::Refused(error)) => {
                command.give_up(&mut self.core);
                return self.refused(error);
            }
        }
        Ok(())
    }
}

/// As [`newest`], as a driver looks it up.
pub(crate) fn located(
    core: &mut Core,
    medium: &dyn Medium,
    model: &Model,
    address: Address,
) -> Result<check::Located, Error> {
    newest(core, medium, model, address).map(check::Located::Value)
}

/// Compares all histories of a device, and what was finished last; returns how many flash has lost.
pub(crate) fn histories(
    core: &mut Core,
    medium: &dyn Medium,
    model: &Model,
    comparison: &mut Comparison<'_>,
    keys: u64,
    is_excused: impl Fn(&Error) -> bool,
) -> Result<u64, Violation> {
    let mut lost = 0;
    for space in model.pasts.keys() {
        let finished = newest(core, medium, model, (*space, COMMAND));
        let compared = finished.map(|found| comparison.compare((*space, COMMAND), found.as_deref()));
        let mut all = vec![compared];
        all.extend((0..keys).map(|key| compare(core, medium, model, comparison, (*space, key))));
        for compared in all {
            match compared {
                Ok(compared) => compared.map_err(Violation::new)?,
                Err(error) if is_excused(&error) => lost += 1,
                Err(error) => return Err(Violation::new(format!("namespace {space}: a history: {error}"))),
            }
        }
    }
    Ok(lost)
}

/// Compares what snapshots see; returns how many namespaces flash has lost part of.
pub(crate) fn snapshots(
    core: &mut Core,
    medium: &dyn Medium,
    model: &Model,
    keys: u64,
    is_excused: impl Fn(&Error) -> bool,
) -> Result<u64, Violation> {
    let mut lost = 0;
    for space in model.pasts.keys() {
        match compare_snapshots(core, medium, model, *space, keys) {
            Ok(compared) => compared.map_err(Violation::new)?,
            Err(error) if is_excused(&error) => lost += 1,
            Err(error) => return Err(Violation::new(format!("namespace {space}: a snapshot: {error}"))),
        }
    }
    Ok(lost)
}
