//! Version-aware merge: releasing the space of versions that no rule keeps.
//!
//! Lives here:       what a merge of a row would keep (the dry run), and executing it group by group.
//! Lives elsewhere:  the rules (`retention`), when to merge and at which pace (the caller).
//! Implements:       paper:Muninn 4.4.1; docs/versioned.md "Merge".
//!
//! Rows have disjoint keys, so a row is merged by itself. Planning reads the records of its segments once, newest first,
//! and decides exactly. Then runs of groups with little that is kept are rewritten: their kept versions, in time order,
//! become new segments in the same place of the chain. The open group, the last one, is left alone or closed first, so puts
//! continue.

use crate::columns::SegmentInfo;
use crate::group::SegmentAt;
use crate::hash::KeyHash;
use crate::parameters::{Index, Parameters};
use crate::reads::{Pages, Source, load_extent, read_segment};
use crate::record::{Kind, Version};
use crate::retention::{Candidate, Fate, Retention, mend_times};
use crate::row::Row;
use crate::seal::{Room, Sealed};
use crate::timeline::Timeline;
use crate::versions::Versions;
use kaml_index::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The percentage of kept versions above which a group is left alone (paper:Muninn 6.5).
const KEPT_PERCENT_MAX: u64 = 80;

/// What a merge of a row would do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MergePlan {
    /// The row.
    pub row: u32,
    /// Versions in its segments.
    pub versions: u64,
    /// Those of them that the rules keep.
    pub kept: u64,
    /// Versions that would go: those not kept in the groups that would be rewritten.
    pub dropped: u64,
    /// Bytes of the records and values that would go.
    pub dropped_bytes: u64,
    /// Segments that would be read and released; the kept versions take new ones.
    pub segments: u64,
    /// Groups that would be rewritten, in runs, and the sequences that go from them.
    runs: Vec<Range<usize>>,
    drop: BTreeSet<u64>,
    /// The newest versions of their keys.
    newest: BTreeSet<u64>,
}

/// A run of groups whose kept versions are in new segments, which wait to be programmed.
#[derive(Debug)]
pub struct Merged {
    /// The row.
    pub row: u32,
    groups: Range<usize>,
    /// The new segments, oldest first.
    pub segments: Vec<Sealed>,
    /// For each, how many versions are the newest of their key.
    pub live: Vec<u16>,
    /// Segments that were read.
    pub segments_read: u64,
    /// Versions that are not kept.
    pub dropped: u64,
    /// Bytes of their records and values.
    pub dropped_bytes: u64,
}

/// Decisions about a row's versions while it is planned.
#[derive(Default)]
struct Decisions {
    keys: BTreeMap<Key, Vec<Candidate>>,
    /// By group: versions, and which sequences are in it.
    groups: Vec<Vec<(u64, u64)>>,
    sizes: Vec<usize>,
    /// Groups that no segment joins any more.
    closed: usize,
}

/// What the rules decide about a row's versions, named by their sequences.
#[derive(Default)]
struct Verdict {
    drop: BTreeSet<u64>,
    newest: BTreeSet<u64>,
    /// Tombstones that go only together with these older versions of their keys.
    with_older: Vec<(u64, Vec<u64>)>,
}

/// As [`plan_merge`] would answer after [`Versions::close_group`]: what a merge would do. Not to be executed.
pub fn preview_merge<S: Source>(
    source: &mut S,
    row: u32,
    retention: &Retention,
    kept_from: u64,
) -> Result<MergePlan, S::Error> {
    decide(source, row, retention, kept_from, true)
}

/// What merging a row under these rules would do; nothing is changed. Also the first step of doing it. Whatever has a
/// sequence of `kept_from` or more is kept: a log still has it, and would bring it back.
pub fn plan_merge<S: Source>(
    source: &mut S,
    row: u32,
    retention: &Retention,
    kept_from: u64,
) -> Result<MergePlan, S::Error> {
    decide(source, row, retention, kept_from, false)
}

/// The plan; with `closes` as if an open group that is worth it were closed.
fn decide<S: Source>(
    source: &mut S,
    row: u32,
    retention: &Retention,
    kept_from: u64,
    closes: bool,
) -> Result<MergePlan, S::Error> {
    let (mut decisions, timeline) = read_row(source, row, kept_from, closes)?;
    decisions.mend_times();
    let verdict = decisions.verdict(retention, &timeline);
    Ok(decisions.plan(row, verdict))
}

/// Reads all versions of a row, of each key the newest first.
fn read_row<S: Source>(
    source: &mut S,
    row: u32,
    kept_from: u64,
    closes: bool,
) -> Result<(Decisions, Timeline), S::Error> {
    let (buffered, segments, (sizes, closed), timeline, parameters) = source.look(|versions, hold| {
        let columns = &versions.columns;
        let buffered: Vec<Version> = columns.buffered(row).map(|(version, _)| version).collect();
        let segments: Vec<SegmentInfo> = columns.segments(row).collect();
        segments.iter().for_each(|segment| hold(segment.at));
        let parameters = *columns.parameters();
        let groups = (columns.group_sizes(row), columns.closed_groups(row, closes));
        (buffered, segments, groups, versions.timeline.clone(), parameters)
    })?;
    let mut decisions = Decisions { groups: vec![Vec::new(); sizes.len()], sizes, closed, ..Decisions::default() };
    for version in buffered.into_iter().rev() {
        decisions.keys.entry(version.key).or_default().push(Candidate { version, internal: None });
    }
    let groups = decisions.sizes.iter().enumerate().flat_map(|(group, size)| std::iter::repeat_n(group, *size));
    let groups: Vec<usize> = groups.collect();
    for (segment, group) in segments.iter().zip(groups).rev() {
        let mut versions = read_segment(source, segment, &parameters, |version, _| Ok(version))?;
        versions.sort_unstable_by_key(|version| std::cmp::Reverse(version.sequence));
        for version in versions {
            decisions.groups[group].push((version.sequence, bytes_of(&version)));
            let internal = (version.sequence < kept_from).then_some(group as u32);
            decisions.keys.entry(version.key).or_default().push(Candidate { version, internal });
        }
    }
    Ok((decisions, timeline))
}

impl Versions {
    /// Closes the last group of a row if it is worth merging; call it before planning what will be executed.
    pub fn close_group(&mut self, row: u32) {
        self.columns.close_group(row);
    }
}

/// Rewrites a run of groups of a plan: reads its segments, and seals what is kept into new ones. The namespace is as it
/// was until [`Versions::install_merge`]; puts may come between, other merges of the row not.
pub fn merge<S: Source>(source: &mut S, plan: &MergePlan, run: usize) -> Result<Merged, S::Error> {
    let groups = plan.runs[run].clone();
    let (segments, parameters, first_table) = source.look(|versions, hold| {
        let columns = &versions.columns;
        let sizes = columns.group_sizes(plan.row);
        let skipped = sizes[..groups.start].iter().sum();
        let count = sizes[groups.clone()].iter().sum();
        let segments: Vec<SegmentInfo> = columns.segments(plan.row).skip(skipped).take(count).collect();
        segments.iter().for_each(|segment| hold(segment.at));
        (segments, *columns.parameters(), columns.table_number(plan.row, groups.start))
    })?;
    let mut kept = Row::new(&parameters, first_table);
    let mut merged = Merged {
        row: plan.row,
        groups,
        segments: Vec::new(),
        live: Vec::new(),
        segments_read: segments.len() as u64,
        dropped: 0,
        dropped_bytes: 0,
    };
    for segment in &segments {
        copy_kept(source, segment, plan, &parameters, (&mut kept, &mut merged))?;
        while kept.is_full(&parameters) {
            seal_kept(&mut kept, plan, &parameters, first_table, &mut merged);
        }
    }
    while !kept.buffer.entries().is_empty() {
        seal_kept(&mut kept, plan, &parameters, first_table, &mut merged);
    }
    Ok(merged)
}

/// Appends the versions of a segment that are kept, oldest first; counts the others.
fn copy_kept<S: Source>(
    source: &mut S,
    segment: &SegmentInfo,
    plan: &MergePlan,
    parameters: &Parameters,
    (kept, merged): (&mut Row, &mut Merged),
) -> Result<(), S::Error> {
    let mut found = read_segment(source, segment, parameters, |version, record| {
        let is_kept = !plan.drop.contains(&version.sequence);
        let value = if is_kept { Some(version.value(record)?.unwrap_or_default().to_vec()) } else { None };
        Ok((version, value))
    })?;
    found.sort_unstable_by_key(|(version, _)| version.sequence);
    for (mut version, value) in found {
        let Some(mut value) = value else {
            merged.dropped += 1;
            merged.dropped_bytes += bytes_of(&version);
            continue;
        };
        if matches!(version.kind, Kind::Extent(_)) {
            value = load_extent(source, &version, &Pages::of(segment, parameters))?;
            version.kind = Kind::Value;
        }
        version.ordinal = 0;
        let hash = KeyHash::of(&version.key, parameters.seed);
        kept.insert(hash, &version.key, version.record(&value), parameters);
    }
    Ok(())
}

fn seal_kept(kept: &mut Row, plan: &MergePlan, parameters: &Parameters, first_table: u32, merged: &mut Merged) {
    let room = merged.segments.last().map_or(Room::New, |sealed| sealed.table.room());
    let Some(sealed) = kept.seal(plan.row, parameters, room) else { return };
    // A key's newest version is in the last segment that has the key, so counting hashes of newest versions there
    // and in earlier ones would count it twice; its sequence is what decides.
    let leaving = kept.buffer.entries().iter().zip(&sealed.leaves).filter(|(_, leaves)| **leaves);
    let live = leaving.filter(|(entry, _)| plan.newest.contains(&entry.sequence())).count();
    merged.live.push(live as u16);
    merged.segments.push(sealed);
    let tables = match &parameters.index {
        Index::Columns(_) => 0,
        Index::Bloom(bloom) => merged.segments.len() as u32 / bloom.combined,
    };
    let sealed = merged.segments.last().expect("just pushed");
    kept.leave(sealed, parameters, first_table + tables);
}

impl Versions {
    /// The new segments of a merge lie at `at`, in their order, from now on, in place of the old ones. Returns how many older
    /// segments their row has, and the addresses of the old ones, which nothing refers to any more.
    pub fn install_merge(&mut self, merged: &Merged, at: &[SegmentAt]) -> (u32, Vec<SegmentAt>) {
        assert_eq!(merged.segments.len(), at.len(), "an address for each segment");
        let first: usize = self.columns.group_sizes(merged.row)[..merged.groups.start].iter().sum();
        let freed = self.columns.replace(merged.row, merged.groups.clone(), &merged.segments, &merged.live, at);
        (first as u32, freed)
    }
}

impl MergePlan {
    /// How many runs of groups are to be rewritten, each by [`merge`]. Merge the last one first: numbers of groups
    /// before a run do not change with it.
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }
}

impl Decisions {
    /// Times of versions come from the clocks of hosts.
    fn mend_times(&mut self) {
        let mut versions: Vec<&mut Version> =
            self.keys.values_mut().flatten().map(|candidate| &mut candidate.version).collect();
        versions.sort_unstable_by_key(|version| version.sequence);
        mend_times(versions.into_iter());
    }

    fn verdict(&self, retention: &Retention, timeline: &Timeline) -> Verdict {
        let mut verdict = Verdict::default();
        let kept = retention.kept_snapshots(timeline);
        for candidates in self.keys.values() {
            let sequences: Vec<u64> = candidates.iter().map(|candidate| candidate.version.sequence).collect();
            verdict.newest.extend(sequences.first());
            for (at, fate) in retention.fates(candidates, timeline, &kept).into_iter().enumerate() {
                if fate != Fate::Kept {
                    verdict.drop.insert(sequences[at]);
                }
                if fate == Fate::GoesWithOlder && at + 1 < sequences.len() {
                    verdict.with_older.push((sequences[at], sequences[at + 1..].to_vec()));
                }
            }
        }
        verdict
    }

    fn plan(self, row: u32, verdict: Verdict) -> MergePlan {
        let Verdict { mut drop, newest, with_older } = verdict;
        let is_kept = |(sequence, _): &&(u64, u64)| !drop.contains(sequence);
        let kept_in = |group: &Vec<(u64, u64)>| group.iter().filter(is_kept).count() as u64;
        let versions = self.groups.iter().map(|group| group.len() as u64).sum();
        let kept = self.groups.iter().map(kept_in).sum();
        let mut plan = MergePlan {
            row,
            versions,
            kept,
            dropped: 0,
            dropped_bytes: 0,
            segments: 0,
            runs: Vec::new(),
            drop: BTreeSet::new(),
            newest,
        };
        for (at, group) in self.groups[..self.closed].iter().enumerate() {
            if kept_in(group) * 100 > group.len() as u64 * KEPT_PERCENT_MAX {
                continue;
            }
            match plan.runs.last_mut() {
                Some(run) if run.end == at => run.end = at + 1,
                _ => plan.runs.push(at..at + 1),
            }
            plan.segments += self.sizes[at] as u64;
        }
        // Runs are installed one after another, and some groups do not change: a tombstone that went before what it hides
        // would let that be seen again.
        let run_of = if with_older.is_empty() { BTreeMap::new() } else { self.runs_of_sequences(&plan.runs) };
        for (tombstone, older) in with_older {
            let run = run_of.get(&tombstone);
            if older.iter().any(|sequence| run_of.get(sequence) != run) {
                drop.remove(&tombstone);
            }
        }
        for (sequence, bytes) in plan.runs.iter().flat_map(|run| self.groups[run.clone()].iter().flatten()) {
            if drop.contains(sequence) {
                plan.dropped += 1;
                plan.dropped_bytes += bytes;
                plan.drop.insert(*sequence);
            }
        }
        plan
    }

    /// The run that each version is rewritten with.
    fn runs_of_sequences(&self, runs: &[Range<usize>]) -> BTreeMap<u64, usize> {
        let of_run = |(at, run): (usize, &Range<usize>)| {
            let groups = &self.groups[run.clone()];
            groups.iter().flatten().map(move |(sequence, _)| (*sequence, at)).collect::<Vec<_>>()
        };
        runs.iter().enumerate().flat_map(of_run).collect()
    }
}

/// Flash that a version takes.
fn bytes_of(version: &Version) -> u64 {
    let extent = if matches!(version.kind, Kind::Extent(_)) { u64::from(version.value_len) } else { 0 };
    version.stored_bytes() as u64 + extent
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   a tombstone is kept as long as any version that it hides, not only the one before it; the open group is left alone.
    /// Method: a group of which nearly all is kept, one of which half is, and an open one of which nothing is; a key with a version in
    ///         the first, another and a tombstone in the second.
    #[test]
    fn tombstones_stay_before_all_that_they_hide() {
        let group = |sequences: Range<u64>| sequences.map(|sequence| (sequence, 1)).collect::<Vec<_>>();
        let groups = vec![group(0..10), group(10..14), group(14..18)];
        let versions = |key: u64, kind, sequences: &[u64]| {
            let candidate = |sequence: &u64| {
                let kind = if *sequence == sequences[0] { kind } else { Kind::Value };
                let (key, sequence) = (Key::from(key), *sequence);
                let (value_len, value_crc, time_ns, user_version, ordinal) = (0, 0, sequence, 1, 0);
                let version = Version { key, kind, value_len, value_crc, sequence, time_ns, user_version, ordinal };
                Candidate { version, internal: Some(0) }
            };
            (Key::from(key), sequences.iter().map(candidate).collect())
        };
        let deleted = versions(1, Kind::Tombstone, &[11, 10, 0]);
        let replaced = versions(2, Kind::Value, &[18, 17, 16, 15, 14]);
        let keys = BTreeMap::from([deleted, replaced]);
        let decisions = Decisions { keys, groups, sizes: vec![1; 3], closed: 2 };
        let only_newest = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: false, keep_internal: false };
        let verdict = decisions.verdict(&only_newest, &Timeline::default());
        assert_eq!((&verdict.newest, verdict.drop.len()), (&BTreeSet::from([11, 18]), 7));
        let plan = decisions.plan(0, verdict);
        assert!(plan.runs.into_iter().flatten().eq([1]));
        assert_eq!((plan.drop, plan.segments), (BTreeSet::from([10]), 1));
    }
}
