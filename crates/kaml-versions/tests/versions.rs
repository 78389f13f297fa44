//! Versions, snapshots, undo, rollback, diff and merge against a model.

#[allow(dead_code, reason = "shared by tests that need different parts")]
mod common;

use common::{Random, tiny, tiny_indexes, value_of};
use kaml_versions::{
    At, Columns, Command, Diff, Difference, Error, History, Key, Kind, Lookup, MergeScope, Parameters, Past, Record,
    Retention, SegmentAt, SegmentInfo, SegmentTable, Source, Stamp, Steps, Version, Versions, View, get, history, list,
    merge, newest, plan_merge, records, undone,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Segments in memory by address; freed ones are gone.
#[derive(Default)]
struct Flash {
    images: BTreeMap<u64, Vec<u8>>,
    next: u64,
    page_reads: u64,
}

/// A namespace and its flash.
struct Both<'a> {
    versions: &'a Versions,
    flash: &'a mut Flash,
    held: Vec<SegmentAt>,
}

impl Source for Both<'_> {
    type Error = Error;

    fn look<T>(&mut self, look: impl FnOnce(&Versions, &mut dyn FnMut(SegmentAt)) -> T) -> Result<T, Error> {
        self.held.clear();
        Ok(look(self.versions, &mut |at| self.held.push(at)))
    }

    fn read<T>(
        &mut self,
        at: SegmentAt,
        bytes: Range<usize>,
        mut take: impl FnMut(&[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        assert!(self.held.contains(&at), "what is read is held");
        self.flash.page_reads += 1;
        take(&self.flash.images[&at.get()][bytes])
    }
}

impl Flash {
    fn over<'a>(&'a mut self, versions: &'a Versions) -> Both<'a> {
        Both { versions, flash: self, held: Vec::new() }
    }

    fn program(&mut self, image: &[u8]) -> SegmentAt {
        self.images.insert(self.next, image.to_vec());
        self.next += 1;
        SegmentAt::new(self.next - 1).expect("few segments")
    }

    fn settle(&mut self, versions: &mut Versions, last: &Key) {
        while let Some(row) = versions.columns().wants_seal(last) {
            let sealed = versions.columns().seal(row).expect("not empty");
            let at = self.program(&sealed.image);
            versions.columns_mut().install(&sealed, at);
        }
    }

    /// Merges all rows; returns the number of versions dropped.
    fn merge(&mut self, versions: &mut Versions, retention: &Retention) -> u64 {
        let mut dropped = 0;
        for row in 0..versions.columns().parameters().rows {
            let is_thorough = self.next.is_multiple_of(2);
            let buffered_from = if self.next.is_multiple_of(3) { 0 } else { u64::MAX };
            let scope = MergeScope { is_thorough, buffered_from, ..MergeScope::ALL };
            let mut plan = plan_merge(&mut self.over(versions), row, retention, &scope).expect("undamaged");
            assert!(plan.kept <= plan.versions && plan.dropped <= plan.versions - plan.kept);
            assert!(buffered_from > 0 || plan.dropped == plan.versions - plan.kept, "{plan:?}");
            let mut planned = (plan.dropped, plan.dropped_bytes, plan.segments);
            while let Some(merged) = merge(&mut self.over(versions), &plan, 3).expect("undamaged") {
                planned.0 -= merged.dropped;
                planned.1 -= merged.dropped_bytes;
                planned.2 -= merged.segments_read;
                let at: Vec<SegmentAt> = merged.segments.iter().map(|sealed| self.program(&sealed.image)).collect();
                let (_, freed) = versions.install_merge(&merged, &at);
                freed.iter().for_each(|at| assert!(self.images.remove(&at.get()).is_some()));
                plan.note_installed(&merged);
            }
            let gone = versions.drop_buffered(&plan);
            planned.0 -= gone.count;
            planned.1 -= gone.bytes;
            assert_eq!(planned, (0, 0, 0), "the runs drop together what was planned");
            dropped += plan.dropped;
        }
        dropped
    }
}

/// A version in the model: its sequence, and its value if it is not a delete.
type Entry = (u64, Option<Vec<u8>>);

/// All that was ever put, and what each snapshot saw, as a copy.
#[derive(Default)]
struct Model {
    versions: BTreeMap<u64, Vec<Entry>>,
    /// The history that is seen, newest last.
    present: BTreeMap<u64, Vec<Entry>>,
    snapshots: BTreeMap<u32, BTreeMap<u64, Vec<Entry>>>,
}

impl Model {
    fn put(&mut self, key: u64, sequence: u64, value: Option<Vec<u8>>) {
        self.versions.entry(key).or_default().push((sequence, value.clone()));
        self.present.entry(key).or_default().push((sequence, value));
    }

    fn differences(&self, from: u32, to: u32) -> BTreeMap<Key, Difference> {
        let (old, new) = (keys_of(&self.snapshots[&from]), keys_of(&self.snapshots[&to]));
        let mut differences = BTreeMap::new();
        for key in old.keys().chain(new.keys()) {
            match (old.get(key), new.get(key)) {
                (None, _) => differences.insert(*key, Difference::Added),
                (_, None) => differences.insert(*key, Difference::Removed),
                (a, b) if a != b => differences.insert(*key, Difference::Changed),
                _ => None,
            };
        }
        differences
    }

    fn back(&self, key: u64, count: usize) -> Option<Vec<u8>> {
        self.present.get(&key).and_then(|all| all.iter().rev().nth(count)).and_then(|(_, value)| value.clone())
    }
}

struct World {
    versions: Versions,
    flash: Flash,
    model: Model,
    random: Random,
    sequence: u64,
    /// Whether changes are undone, and whether the namespace is rolled back: what a merge has dropped cannot come back.
    undoes: bool,
    rolls_back: bool,
}

const KEYS: u64 = 60;

impl World {
    fn new(parameters: Parameters) -> World {
        let versions = Versions::new(parameters).expect("legal");
        let (flash, model, random) = (Flash::default(), Model::default(), Random(parameters.seed * 2 + 1));
        World { versions, flash, model, random, sequence: 0, undoes: true, rolls_back: true }
    }

    fn stamp(&mut self) -> Stamp {
        self.sequence += 1 + self.random.below(3);
        Stamp { sequence: self.sequence, time_ns: self.sequence * 10 }
    }

    /// One random change.
    fn change(&mut self) {
        let key = if self.random.below(3) == 0 { self.random.below(3) } else { self.random.below(KEYS) };
        match self.random.below(100) {
            0..80 => self.put(key),
            80..90 => {
                let stamp = self.stamp();
                self.versions.delete(Key::from(key), stamp).expect("small");
                self.model.put(key, stamp.sequence, None);
            }
            90..97 if self.undoes => self.undo(key),
            97..99 => {
                let stamp = self.stamp();
                let taken = self.versions.command(Command::Snapshot, stamp).expect("few snapshots");
                assert_eq!(self.versions.command(Command::Snapshot, stamp), Ok(taken), "executed one time");
                self.model.snapshots.insert(taken, self.model.present.clone());
            }
            99 if self.rolls_back => self.roll_back(),
            _ => self.put(key),
        }
        self.flash.settle(&mut self.versions, &Key::from(key));
    }

    fn put(&mut self, key: u64) {
        let len = if self.random.below(20) == 0 { self.random.below(2000) } else { self.random.below(200) };
        let stamp = self.stamp();
        let value = value_of(stamp.sequence, len as usize);
        self.versions.put(Key::from(key), &value, stamp).expect("small");
        self.model.put(key, stamp.sequence, Some(value));
    }

    fn undo(&mut self, key: u64) {
        let count = 1 + self.random.below(3) as u32;
        let stamp = self.stamp();
        let known = self.model.present.get(&key).map_or(0, Vec::len) as u32;
        let old = self.model.back(key, count as usize);
        let undone = undone(&mut self.flash.over(&self.versions), &Key::from(key), count);
        if count > known {
            assert_eq!(undone, Err(Error::TooFarBack { count, available: known }));
            return;
        }
        let undone = undone.expect("undamaged").map(|record| record.value);
        assert_eq!(undone, old);
        match &undone {
            Some(value) => self.versions.put(Key::from(key), value, stamp).expect("small"),
            None => self.versions.delete(Key::from(key), stamp).expect("small"),
        }
        self.model.put(key, stamp.sequence, old);
    }

    fn roll_back(&mut self) {
        let all: Vec<u32> = self.model.snapshots.keys().copied().collect();
        if all.is_empty() {
            return;
        }
        let to = all[self.random.below(all.len() as u64) as usize];
        let stamp = self.stamp();
        let before = self.versions.command(Command::RollBack(to), stamp).expect("taken");
        let then = self.model.snapshots[&to].clone();
        self.model.snapshots.insert(before, std::mem::replace(&mut self.model.present, then));
    }

    fn view(&self, snapshot: u32) -> View {
        self.versions.timeline().snapshot(snapshot).expect("taken").view.clone()
    }

    fn value(&mut self, key: u64, at: At) -> Option<Vec<u8>> {
        get(&mut self.flash.over(&self.versions), &Key::from(key), at).expect("undamaged").map(|record| record.value)
    }

    /// What is seen now and in each snapshot is what the model has.
    fn check_views(&mut self) {
        for key in 0..KEYS {
            assert_eq!(self.value(key, At::Latest), self.model.back(key, 0), "key {key}");
            for snapshot in self.model.snapshots.keys().copied().collect::<Vec<_>>() {
                let seen = &self.model.snapshots[&snapshot];
                let expected = seen.get(&key).and_then(|all| all.last()).and_then(|(_, value)| value.clone());
                assert_eq!(self.value(key, At::Snapshot(snapshot)), expected, "key {key} in {snapshot}");
            }
        }
    }

    /// What is found in all steps, each of which reads little. Something happens after each.
    fn found<T: Steps>(&mut self, mut steps: T, mut then: impl FnMut(&mut World)) -> Vec<T::Found> {
        let mut found = Vec::new();
        loop {
            self.flash.page_reads = 0;
            let goes_on = steps.step(&mut self.flash.over(&self.versions), &mut found).expect("undamaged");
            assert!(self.flash.page_reads <= 2, "a page, or all of a segment, and the value of an extent");
            if !goes_on {
                return found;
            }
            then(self);
        }
    }

    fn past(&mut self, key: u64) -> Vec<Past> {
        history(&mut self.flash.over(&self.versions), &Key::from(key), usize::MAX).expect("undamaged")
    }

    fn list(&mut self, view: &View) -> BTreeSet<Key> {
        let rows = 0..self.versions.columns().parameters().rows;
        rows.flat_map(|row| list(&mut self.flash.over(&self.versions), row, view).expect("undamaged")).collect()
    }
}

fn keys_of(seen: &BTreeMap<u64, Vec<Entry>>) -> BTreeMap<Key, u64> {
    let newest = seen.iter().filter_map(|(key, all)| all.last().map(|(sequence, value)| (key, sequence, value)));
    newest.filter(|(.., value)| value.is_some()).map(|(key, sequence, _)| (Key::from(*key), *sequence)).collect()
}

/// Goal:   any version of any key is readable, whatever was put, deleted, undone, snapshot and rolled back.
/// Method: random changes; compare present, snapshots, n back, history and lists with a model.
#[test]
fn nothing_is_forgotten() {
    for parameters in (1..=4).flat_map(tiny_indexes) {
        let mut world = World::new(parameters);
        (0..1500).for_each(|_| world.change());
        world.check_views();
        for key in 0..KEYS {
            for back in 0..4 {
                assert_eq!(world.value(key, At::Back(back)), world.model.back(key, back as usize));
            }
            let past = world.past(key);
            let sequences: Vec<u64> = past.iter().map(|past| past.version.sequence).collect();
            let all = world.model.versions.get(&key).cloned().unwrap_or_default();
            assert_eq!(sequences, all.iter().rev().map(|(sequence, _)| *sequence).collect::<Vec<_>>());
            let seen: Vec<u64> = past.iter().filter(|p| p.is_seen).map(|p| p.version.sequence).collect();
            let present = world.model.present.get(&key).cloned().unwrap_or_default();
            assert_eq!(seen, present.iter().rev().map(|(sequence, _)| *sequence).collect::<Vec<_>>());
        }
        let view = world.versions.timeline().view().clone();
        assert_eq!(world.list(&view), keys_of(&world.model.present).into_keys().collect());
        let none = get(&mut world.flash.over(&world.versions), &Key::from(1), At::Snapshot(9999));
        assert!(matches!(none, Err(Error::NoSnapshot { version: 9999, .. })));
    }
}

/// Goal:   a page that was never programmed, or not where it should have been, is noticed by every read that needs it: nothing is taken for
///         absent, and no older version for the newest, by gets, lists and merges.
/// Method: of each segment zero each page with records, and put that of another row's segment there, one after another.
#[test]
fn lost_pages_are_noticed() {
    let damaged = |error: &Error| matches!(error, Error::DamagedRecord(_));
    for parameters in (1..=2).flat_map(tiny_indexes) {
        let mut world = World::new(parameters);
        (0..600).for_each(|_| world.change());
        let (page_bytes, rows) = (parameters.page_bytes as usize, 0..parameters.rows);
        let segments: Vec<SegmentInfo> =
            rows.clone().flat_map(|row| world.versions.columns().segments(row).collect::<Vec<_>>()).collect();
        let images = world.flash.images.clone();
        let view = world.versions.timeline().view().clone();
        let mut refused = 0;
        for segment in &segments {
            let other = segments.iter().find(|other| other.row != segment.row).expect("several rows");
            for page in 0..segment.hashed_pages as usize {
                let bytes = page * page_bytes..(page + 1) * page_bytes;
                let image = &images[&segment.at.get()];
                if records(&image[bytes.clone()]).next().is_none() {
                    continue;
                }
                for instead in [vec![0; page_bytes], images[&other.at.get()][bytes.clone()].to_vec()] {
                    world.flash.images.get_mut(&segment.at.get()).expect("there")[bytes.clone()]
                        .copy_from_slice(&instead);
                    for key in 0..KEYS {
                        match get(&mut world.flash.over(&world.versions), &Key::from(key), At::Latest) {
                            Ok(found) => assert_eq!(found.map(|record| record.value), world.model.back(key, 0)),
                            Err(error) => assert!(damaged(&error), "{error}"),
                        }
                    }
                    let mut over = world.flash.over(&world.versions);
                    assert!(list(&mut over, segment.row, &view).is_err_and(|error| damaged(&error)));
                    let keep =
                        Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: false, keep_internal: false };
                    assert!(
                        plan_merge(&mut over, segment.row, &keep, &MergeScope::ALL).is_err_and(|error| damaged(&error))
                    );
                    refused += 1;
                }
                world.flash.images.insert(segment.at.get(), image.clone());
            }
        }
        assert!(refused > 100, "{refused} pages were lost");
        world.check_views();
    }
}

/// Goal:   a flipped bit is never served, wherever it is, and brings nobody down: also in the place of a value outside the pages.
/// Method: random bits of random segments; every key is read, and all that completes is compared.
#[test]
fn flipped_bits_are_refused() {
    for parameters in (1..=2).flat_map(tiny_indexes) {
        let mut world = World::new(parameters);
        (0..600).for_each(|_| world.change());
        let segments: Vec<u64> = world.flash.images.keys().copied().collect();
        let mut refused = 0;
        for _ in 0..3000 {
            let at = segments[world.random.below(segments.len() as u64) as usize];
            let byte = world.random.below(world.flash.images[&at].len() as u64) as usize;
            let bit = 1 << world.random.below(8);
            world.flash.images.get_mut(&at).expect("there")[byte] ^= bit;
            for key in 0..KEYS {
                match get(&mut world.flash.over(&world.versions), &Key::from(key), At::Latest) {
                    Ok(found) => assert_eq!(found.map(|record| record.value), world.model.back(key, 0)),
                    Err(error) => {
                        assert!(matches!(error, Error::DamagedRecord(_)), "{error}");
                        refused += 1;
                    }
                }
            }
            world.flash.images.get_mut(&at).expect("there")[byte] ^= bit;
        }
        assert!(refused > 100, "{refused} were refused");
    }
}

/// Goal:   a diff names exactly the keys whose visible version differs.
/// Method: all pairs of some snapshots of a random history, compared with the model.
#[test]
fn diffs_name_what_changed() {
    let mut world = World::new(tiny(11));
    (0..1500).for_each(|_| world.change());
    let snapshots: Vec<u32> = world.model.snapshots.keys().copied().step_by(4).collect();
    assert!(snapshots.len() > 4);
    for from in &snapshots {
        for to in &snapshots {
            let expected = world.model.differences(*from, *to);
            let diff = Diff::new(world.view(*from), world.view(*to));
            let found = world.found(diff, |_| {});
            assert_eq!(found.into_iter().collect::<BTreeMap<_, _>>(), expected, "{from} to {to}");
        }
    }
}

/// Goal:   what takes many reads takes few with each step, and finds what it would all at once, whatever changes between two steps.
/// Method: random changes and merges between the steps of diffs and of looking for what a snapshot sees.
#[test]
fn steps_are_short_whatever_changes_between_them() {
    let keep = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: true, keep_internal: false };
    for parameters in (31..=33).flat_map(tiny_indexes) {
        let mut world = World { undoes: false, ..World::new(parameters) };
        (0..800).for_each(|_| world.change());
        let snapshots: Vec<u32> = world.model.snapshots.keys().copied().collect();
        let (first, last) = (snapshots[0], *snapshots.last().expect("taken"));
        let mut change = |world: &mut World| {
            world.change();
            if world.random.below(30) == 0 {
                world.flash.merge(&mut world.versions, &keep);
            }
        };
        for (from, to) in [(first, last), (last, first)] {
            let expected = world.model.differences(from, to);
            let diff = Diff::new(world.view(from), world.view(to));
            let found = world.found(diff, &mut change);
            assert_eq!(found.len(), expected.len(), "each once");
            assert_eq!(found.into_iter().collect::<BTreeMap<_, _>>(), expected, "{from} to {to}");
        }
        for key in 0..KEYS {
            let seen = world.model.snapshots[&first].get(&key);
            let expected = seen.and_then(|all| all.last()).and_then(|(_, value)| value.clone());
            let mut over = world.flash.over(&world.versions);
            let lookup = Lookup::new(&mut over, &Key::from(key), At::Snapshot(first)).expect("taken");
            let found: Vec<Record> = world.found(lookup, &mut change);
            assert_eq!(found.into_iter().map(|record| record.value).next(), expected, "key {key}");
        }
    }
}

/// Goal:   merging keeps the present, every snapshot, and what the rules keep, in order; it drops all others one time.
/// Method: random changes with merges between, under each rule; compare with the model after each.
#[test]
fn merges_keep_what_the_rules_keep() {
    let newest = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: true, keep_internal: false };
    for (seed, retention, keeps_last, rolls_back) in [
        (21, newest, 1, true),
        (22, Retention::default(), 1, true),
        (23, Retention { keep_last: 4, ..newest }, 4, false),
        (24, Retention { keep_since_ns: Some(0), ..newest }, 1000, true),
    ] {
        for parameters in tiny_indexes(seed) {
            let mut world = World { undoes: keeps_last >= 4, rolls_back, ..World::new(parameters) };
            let mut dropped = 0;
            for _ in 0..4 {
                (0..1200).for_each(|_| world.change());
                dropped += world.flash.merge(&mut world.versions, &retention);
                world.check_views();
                for key in 0..KEYS {
                    for back in 0..keeps_last.min(6) {
                        assert_eq!(
                            world.value(key, At::Back(back)),
                            world.model.back(key, back as usize),
                            "seed {seed}"
                        );
                    }
                }
            }
            let keeps_all = retention.keep_since_ns.is_some();
            assert_eq!(dropped == 0, keeps_all, "seed {seed} dropped {dropped}");
            if !keeps_all {
                // The model's versions that are still there are in the model's order.
                for key in 0..KEYS {
                    let past = world.past(key);
                    assert!(past.is_sorted_by(|a, b| a.version.sequence > b.version.sequence));
                }
            }
        }
    }
}

/// Goal:   without snapshots, a merge leaves one version of each key in closed groups, drops all others, and knows
///         how much is alive; a second one finds nothing to do.
/// Method: overwrite a few keys many times; forget the snapshots; dry run, merge, dry run.
#[test]
fn space_comes_back() {
    for parameters in tiny_indexes(31) {
        let mut world = World::new(parameters);
        (0..4000).for_each(|_| world.change());
        for snapshot in world.versions.timeline().snapshots().keys().copied().collect::<Vec<_>>() {
            let stamp = world.stamp();
            world.versions.command(Command::Forget(snapshot), stamp).expect("taken");
            world.model.snapshots.remove(&snapshot);
        }
        let retention = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: true, keep_internal: false };
        let before = world.flash.images.len();
        let dropped = world.flash.merge(&mut world.versions, &retention);
        world.check_views();
        assert!(
            dropped > 1000 && world.flash.images.len() * 2 < before,
            "{dropped}, {} segments",
            world.flash.images.len()
        );
        assert_eq!(world.flash.images.len() as u64, world.versions.columns().segment_count());
        assert_eq!(world.flash.merge(&mut world.versions, &retention), 0);
    }
}

/// Goal:   a tombstone stays while anything that it hides does: where older groups have too little to go to be rewritten, and
///         between two pieces of a merge.
/// Method: keys put once, some of them deleted, groups of hot keys in between; all deleted keys looked up after each piece.
#[test]
fn deleted_keys_stay_deleted() {
    for parameters in tiny_indexes(51) {
        let mut world = World::new(parameters);
        let newest = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: true, keep_internal: false };
        let put = |world: &mut World, key: u64, value: Option<&[u8]>| {
            let (key, stamp) = (Key::from(key), world.stamp());
            match value {
                Some(value) => world.versions.put(key, value, stamp).expect("small"),
                None => world.versions.delete(key, stamp).expect("small"),
            }
            world.flash.settle(&mut world.versions, &key);
        };
        (0..4000).for_each(|key| put(&mut world, key, Some(&[7; 100])));
        (0..4000).step_by(7).for_each(|key| put(&mut world, key, None));
        (0..6000).for_each(|n| put(&mut world, 10_000 + n % 50, Some(&[9; 100])));
        let mut runs = 0;
        for row in 0..world.versions.columns().parameters().rows {
            let scope = MergeScope { is_thorough: row % 2 == 1, ..MergeScope::ALL };
            let mut plan = plan_merge(&mut world.flash.over(&world.versions), row, &newest, &scope).expect("undamaged");
            while let Some(merged) = merge(&mut world.flash.over(&world.versions), &plan, 2).expect("undamaged") {
                let at: Vec<SegmentAt> =
                    merged.segments.iter().map(|sealed| world.flash.program(&sealed.image)).collect();
                world.versions.install_merge(&merged, &at);
                plan.note_installed(&merged);
                runs += 1;
                let keys = (runs % 40..4000).step_by(40); // all of them with 40 pieces
                keys.for_each(|key| assert_eq!(world.value(key, At::Latest).is_none(), key % 7 == 0, "key {key}"));
            }
            world.versions.drop_buffered(&plan);
            (0..4000).for_each(|key| assert_eq!(world.value(key, At::Latest).is_none(), key % 7 == 0, "key {key}"));
        }
        assert!(runs > 0, "something was merged");
    }
}

/// Goal:   a tombstone in the page buffer stays while what it hides is in a segment that was sealed after the row was planned.
/// Method: keys that are put and deleted, all in the buffer; a segment of each row is sealed between the plan and its end, for which large values
///         are chosen before tombstones.
#[test]
fn tombstones_stay_for_what_is_sealed_meanwhile() {
    const DELETED: u64 = 2000;
    for parameters in tiny_indexes(52) {
        let mut world = World::new(parameters);
        let newest = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: true, keep_internal: false };
        for key in (0..DELETED).map(Key::from) {
            let stamp = world.stamp();
            world.versions.put(key, &[7; 100], stamp).expect("small");
        }
        for key in (0..DELETED).map(Key::from) {
            let stamp = world.stamp();
            world.versions.delete(key, stamp).expect("small");
        }
        let (mut sealed_count, mut dropped) = (0, 0);
        for row in 0..world.versions.columns().parameters().rows {
            let plan = plan_merge(&mut world.flash.over(&world.versions), row, &newest, &MergeScope::ALL);
            let plan = plan.expect("undamaged");
            let before = world.versions.columns().buffered(row).count();
            let sealed = world.versions.columns().seal(row).expect("not empty");
            let at = world.flash.program(&sealed.image);
            world.versions.columns_mut().install(&sealed, at);
            sealed_count += before - world.versions.columns().buffered(row).count();
            assert!(merge(&mut world.flash.over(&world.versions), &plan, 2).expect("undamaged").is_none());
            dropped += world.versions.drop_buffered(&plan).count;
        }
        (0..DELETED).for_each(|key| assert_eq!(world.value(key, At::Latest), None, "key {key}"));
        assert!(sealed_count > 0 && dropped > 0, "{sealed_count} sealed, {dropped} dropped");
    }
}

/// A device that keeps committed versions in a ring until they are in segments that are known after a crash.
struct Durable {
    world: World,
    /// Versions and their records, oldest first.
    ring: Vec<(Version, Vec<u8>)>,
    /// Segments, in the order of sealing; those from `durable` on would be lost.
    segments: Vec<SegmentInfo>,
    durable: usize,
    /// What was still in the buffer when the ring gave it up.
    kept: Vec<(Version, Vec<u8>)>,
}

impl Durable {
    /// Puts, and seals as a device does; occasionally makes segments durable and releases ring space.
    fn put(&mut self) {
        let key = self.world.random.below(KEYS);
        self.world.put(key);
        let world = &mut self.world;
        let past = history(&mut world.flash.over(&world.versions), &Key::from(key), 1).expect("undamaged");
        let value = world.model.back(key, 0).expect("just put");
        self.ring.push((past[0].version, past[0].version.record(&value).to_vec()));
        while let Some(row) = world.versions.columns().wants_seal(&Key::from(key)) {
            let sealed = world.versions.columns().seal(row).expect("not empty");
            let at = world.flash.program(&sealed.image);
            world.versions.columns_mut().install(&sealed, at);
            self.segments.extend(world.versions.columns().segments(row).next_back());
        }
        match world.random.below(20) {
            0 => self.durable = self.segments.len(),
            1 => self.trim(),
            _ => {}
        }
    }

    /// Drops the older half of the ring; what of it is only in the buffer is kept elsewhere.
    fn trim(&mut self) {
        self.durable = self.segments.len();
        let Some((middle, _)) = self.ring.get(self.ring.len() / 2) else { return };
        let before = middle.sequence;
        let columns = self.world.versions.columns();
        self.kept = columns.stragglers(before).map(|(version, record)| (version, record.to_vec())).collect();
        assert_eq!(self.kept.is_empty(), columns.oldest_buffered(0).is_none_or(|oldest| oldest >= before));
        self.ring.retain(|(version, _)| version.sequence >= before);
    }

    fn lose_power(&mut self) {
        self.segments.truncate(self.durable);
        let parameters = *self.world.versions.columns().parameters();
        let mut columns = Columns::new(parameters).expect("legal");
        for segment in &self.segments {
            let image = &self.world.flash.images[&segment.at.get()];
            let start = (parameters.segment_pages - segment.table_pages) as usize * parameters.page_bytes as usize;
            let table = SegmentTable::decode(&image[start..], segment.row, &parameters).expect("whole");
            columns.restore(segment.at, segment.live as u16, &table);
        }
        let mut versions = Versions::restore(columns, self.world.versions.timeline().clone());
        let mut all: Vec<_> = self.kept.iter().chain(&self.ring).cloned().collect();
        all.sort_by_key(|(version, _)| version.sequence);
        for (version, record) in all {
            let mut source = self.world.flash.over(&versions);
            let known = newest(&mut source, &version.key, &View::everything()).expect("undamaged");
            if known.is_none_or(|known| known.sequence < version.sequence) {
                versions.insert(&version.key, record.into());
            }
        }
        self.world.versions = versions;
    }
}

/// Goal:   power may go at any time: no committed version is lost, doubled or out of order, although a row may keep
///         versions in the buffer forever and the ring is short.
/// Method: a ring in the test holds what is put; its older half is dropped again and again, stragglers kept elsewhere;
///         memory and segments not yet durable are lost; compare all histories with the model.
#[test]
fn power_may_go_at_any_time() {
    for parameters in (41..47).flat_map(tiny_indexes) {
        let world = World::new(parameters);
        let mut device = Durable { world, ring: Vec::new(), segments: Vec::new(), durable: 0, kept: Vec::new() };
        let mut kept_elsewhere = 0;
        for _ in 0..6 {
            let puts = device.world.random.below(400);
            (0..puts).for_each(|_| device.put());
            kept_elsewhere += device.kept.len();
            device.lose_power();
            device.world.check_views();
            for key in 0..KEYS {
                let past = device.world.past(key);
                let all = device.world.model.versions.get(&key).cloned().unwrap_or_default();
                let found: Vec<u64> = past.iter().rev().map(|past| past.version.sequence).collect();
                assert_eq!(found, all.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), "key {key}");
            }
        }
        assert!(kept_elsewhere > 0);
    }
}

/// Goal:   a history costs about a page read for each version.
/// Method: 64 versions of one key among others, in segments of the real shape.
#[test]
fn history_reads_each_version_once() {
    let parameters = Parameters { rows: 7, ..Parameters::for_buffer(4 << 20, 1) };
    let mut versions = Versions::new(parameters).expect("legal");
    let mut flash = Flash::default();
    let value = vec![7; 1024 - 44];
    for sequence in 0..40_000 {
        let key = if sequence % 400 == 0 && sequence < 64 * 400 { Key::from(0) } else { Key::from(sequence) };
        versions.put(key, &value, Stamp { sequence, time_ns: 0 }).expect("small");
        flash.settle(&mut versions, &key);
    }
    flash.page_reads = 0;
    let past = history(&mut flash.over(&versions), &Key::from(0), 64).expect("undamaged");
    assert_eq!(past.len(), 64);
    assert!(flash.page_reads <= 65, "{} reads", flash.page_reads);
}

/// A namespace whose segments move between two looks.
struct Moving<'a> {
    versions: &'a mut Versions,
    flash: &'a mut Flash,
    /// At the next looks: from where to where.
    moves: Vec<Vec<(SegmentAt, SegmentAt)>>,
}

impl Source for Moving<'_> {
    type Error = Error;

    fn look<T>(&mut self, look: impl FnOnce(&Versions, &mut dyn FnMut(SegmentAt)) -> T) -> Result<T, Error> {
        for (from, to) in self.moves.pop().unwrap_or_default() {
            let image = self.flash.images.remove(&from.get()).expect("a segment");
            self.flash.images.insert(to.get(), image);
            let rows = 0..self.versions.columns().parameters().rows;
            assert!(rows.filter_map(|row| self.versions.columns_mut().relocate(row, from, to)).count() == 1);
        }
        Ok(look(self.versions, &mut |_| {}))
    }

    fn read<T>(
        &mut self,
        at: SegmentAt,
        bytes: Range<usize>,
        mut take: impl FnMut(&[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        take(&self.flash.images[&at.get()][bytes])
    }
}

/// Goal:   a walk misses no version although a segment that it did not come to is moved to where it has been.
/// Method: a key in two segments; after the newer one was read, it is moved away and the older one to its place.
#[test]
fn moved_segments_are_not_passed_over() {
    let parameters = Parameters { rows: 1, ..tiny(3) };
    let mut versions = Versions::new(parameters).expect("legal");
    let mut flash = Flash::default();
    for sequence in 1..=2 {
        versions.put(Key::from(7), b"value", Stamp { sequence, time_ns: 0 }).expect("small");
        let sealed = versions.columns().seal(0).expect("not empty");
        let at = flash.program(&sealed.image);
        versions.columns_mut().install(&sealed, at);
    }
    let [old, new, free] = [0, 1, 2].map(|at| SegmentAt::new(at).expect("small"));
    // Looks, from the last: for the older version, for the newer one, at the view.
    let moves = vec![vec![(new, free), (old, new)], vec![], vec![]];
    let mut moving = Moving { versions: &mut versions, flash: &mut flash, moves };
    let past = history(&mut moving, &Key::from(7), usize::MAX).expect("undamaged");
    let sequences: Vec<u64> = past.iter().map(|past| past.version.sequence).collect();
    assert_eq!(sequences, [2, 1]);
}

/// Goal:   what a snapshot saw of a key is found in a moment, although thousands of small versions of it were put since.
/// Method: versions of one key that fill segments of a MiB alone; count reads of a snapshot and of pages of a history that begin anywhere.
#[test]
fn hot_keys_have_a_past() {
    const VERSIONS: u64 = 60_000;
    let mut versions = Versions::new(Parameters::for_buffer(1 << 20, 1)).expect("legal");
    let mut flash = Flash::default();
    let key = Key::from(7);
    for sequence in 1..=VERSIONS {
        versions.put(key, &sequence.to_le_bytes(), Stamp { sequence, time_ns: 0 }).expect("small");
        if sequence == 1 {
            versions.command(Command::Snapshot, Stamp { sequence: 2, time_ns: 0 }).expect("the first");
        }
        flash.settle(&mut versions, &key);
    }
    let sealed = versions.columns().live_estimate().0;
    assert!(sealed > VERSIONS / 2, "{sealed}");
    let begin = std::time::Instant::now();
    let first = get(&mut flash.over(&versions), &key, At::Snapshot(1)).expect("undamaged").expect("a value");
    assert_eq!(first.value, 1u64.to_le_bytes());
    // Some seconds on a slow machine; looking at all of them again with each step took minutes.
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
    flash.page_reads = 0;
    get(&mut flash.over(&versions), &key, At::Snapshot(1)).expect("undamaged");
    assert!(flash.page_reads <= 20, "{} reads of a snapshot", flash.page_reads);
    for before in [1000, 20_000, 40_000] {
        flash.page_reads = 0;
        let mut source = flash.over(&versions);
        let mut page = History::new(&mut source, &key, before, 16).expect("undamaged");
        let mut found = Vec::new();
        while page.step(&mut source, &mut found).expect("undamaged") {}
        assert!(found.iter().map(|past| past.version.sequence).eq((before - 16..before).rev()));
        assert!(flash.page_reads <= 16 + 20, "{} reads of a page before {before}", flash.page_reads);
    }
}

/// Goal:   a bit that flips in the record of a large value never makes it name another value.
/// Method: such a record in a page, with each of its bits flipped.
#[test]
fn flipped_bits_in_records_of_large_values_are_refused() {
    let (value_crc, sequence, time_ns) = (0x0102_0304, 0x0506_0708, 0x090a_0b0c);
    let (key, kind) = (Key::new(b"key").unwrap(), Kind::Large(0x1112_1314_1516_1718));
    let version = Version { key, kind, value_len: 100_000, value_crc, sequence, time_ns, user_version: 3, ordinal: 0 };
    let record = version.record(&[]);
    let page = [&record[..], &[0; 100]].concat();
    let whole: Vec<_> = kaml_versions::records(&page).map(|found| found.map(|(version, _)| version)).collect();
    assert_eq!(whole, [Ok(version)]);
    for bit in 0..record.len() * 8 {
        let mut damaged = page.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(kaml_versions::records(&damaged).next().is_some_and(|found| found.is_err()), "bit {bit}");
    }
}
