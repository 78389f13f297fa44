//! Version-aware merge: releasing the space of versions that no rule keeps.
//!
//! Lives here:       what a merge of a row would keep (the dry run), and executing it piece by piece.
//! Lives elsewhere:  the rules (`retention`), when to merge and at which pace (the caller).
//! Implements:       paper:Muninn 4.4.1; docs/versioned.md "Merge".
//!
//! Rows have disjoint keys, so a row is merged by itself. Planning reads the records of its segments once, newest first,
//! and decides exactly. Then *runs* of neighbouring segments with little that is kept are rewritten: their kept versions, in
//! time order, become new segments in the same place of the chain. A run is rewritten in *pieces*, the oldest first. Each
//! releases its segments before the next one writes any, so a merge needs little room. The last new segment of a piece is
//! often not full. Then the next piece rewrites it as well. Puts continue meanwhile: what they seal follows all runs.

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
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// The percentage of kept versions above which a group is left alone (paper:Muninn 6.5).
const KEPT_PERCENT_MAX: u64 = 80;
/// A segment with fewer eighths of its bytes in records is rewritten with those after it.
const FULL_EIGHTHS: usize = 7;
/// Segments of a piece at least: the one that was not full, and one that follows.
const PIECE_SEGMENTS_MIN: usize = 2;

/// What a merge of a row must not touch, and how hard it tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergeScope {
    /// Versions in segments with this sequence or a larger one are kept: a log still has them, and would bring them back.
    pub sealed_before: u64,
    /// The same of versions in the page buffer.
    pub buffered_before: u64,
    /// Versions with this sequence or a larger one were in the page buffer when the merge began. Those of them that no rule keeps go even
    /// if few others are in their segment, as they would have gone from the buffer.
    pub buffered_from: u64,
    /// Segments of the row, from the oldest, that the caller knows to be whole and durable. Later ones are kept as they are.
    pub segments: usize,
    /// Space is short: whatever releases a segment is worth it. Otherwise groups of which more than 80 % is kept are left alone.
    pub is_thorough: bool,
}

impl MergeScope {
    /// All versions, where no log has any.
    pub const ALL: MergeScope = MergeScope {
        sealed_before: u64::MAX,
        buffered_before: u64::MAX,
        buffered_from: u64::MAX,
        segments: usize::MAX,
        is_thorough: false,
    };
}

/// What a merge of a row would do, or what remains to be done of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MergePlan {
    /// The row.
    pub row: u32,
    /// Its versions, those in the page buffer among them.
    pub versions: u64,
    /// Those of them that the rules keep.
    pub kept: u64,
    /// Versions that would go: those not kept in the page buffer and in the segments that would be rewritten.
    pub dropped: u64,
    /// Bytes of the records and values that would go.
    pub dropped_bytes: u64,
    /// Segments that would be read and released; the kept versions take new ones.
    pub segments: u64,
    /// Segments that would be rewritten, in runs, the oldest first, and the sequences that go from them.
    runs: VecDeque<Range<usize>>,
    drop: BTreeSet<u64>,
    /// Versions that go from the page buffer, and their bytes.
    buffered: BTreeMap<u64, u64>,
    /// Tombstones among them, and older versions of their keys that go from the page buffer with them.
    tombstones: BTreeMap<u64, Vec<u64>>,
    /// The newest versions of their keys.
    newest: BTreeSet<u64>,
    /// The large values that the row has, by the sequences of their versions.
    large: BTreeMap<u64, LargeValue>,
    /// The first run begins with a segment that was written just now and is not full.
    is_begun: bool,
}

/// A value that is stored outside of segments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LargeValue {
    /// Its number.
    pub number: u64,
    /// Its bytes.
    pub bytes: u32,
}

/// A piece of a run, whose kept versions are in new segments, which wait to be programmed.
#[derive(Debug)]
pub struct Merged {
    /// The row.
    pub row: u32,
    old: Range<usize>,
    /// The new segments, oldest first.
    pub segments: Vec<Sealed>,
    /// For each, how many versions are the newest of their key.
    pub live: Vec<u16>,
    /// The last new segment is nearly full, or there is none.
    is_full: bool,
    /// Segments that were read, without what the piece before this one wrote.
    pub segments_read: u64,
    /// Versions that are not kept.
    pub dropped: u64,
    /// Bytes of their records and values.
    pub dropped_bytes: u64,
    /// Large values of these versions, which nothing refers to after the piece is installed.
    pub large: Vec<LargeValue>,
}

/// Versions that were dropped.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// How many.
    pub count: u64,
    /// Bytes of their records and values.
    pub bytes: u64,
    /// Their large values, which nothing refers to any more.
    pub large: Vec<LargeValue>,
}

/// Decisions about a row's versions while it is planned.
#[derive(Default)]
struct Decisions {
    keys: BTreeMap<Key, Vec<Candidate>>,
    /// By segment, oldest first: the sequences of its versions, and their bytes.
    segments: Vec<Vec<(u64, u64)>>,
    /// The same of the page buffer.
    buffered: Vec<(u64, u64)>,
    /// Segments of each group.
    sizes: Vec<usize>,
    /// Groups that no segment joins any more.
    closed: usize,
    large: BTreeMap<u64, LargeValue>,
    segment_bytes: u64,
}

/// What the rules decide about a row's versions, named by their sequences.
#[derive(Default)]
struct Verdict {
    drop: BTreeSet<u64>,
    newest: BTreeSet<u64>,
    /// Tombstones that go only with these older versions of their keys, or after them.
    with_older: Vec<(u64, Vec<u64>)>,
}

/// What merging a row under these rules would do; nothing is changed. Also the first step of doing it.
///
/// # Errors
/// Those of reading.
pub fn plan_merge<S: Source>(
    source: &mut S,
    row: u32,
    retention: &Retention,
    scope: &MergeScope,
) -> Result<MergePlan, S::Error> {
    let (mut decisions, timeline) = read_row(source, row, scope)?;
    decisions.mend_times();
    let verdict = decisions.verdict(retention, &timeline);
    Ok(decisions.plan(row, verdict, scope))
}

/// Reads all versions of a row, of each key the newest first.
fn read_row<S: Source>(source: &mut S, row: u32, scope: &MergeScope) -> Result<(Decisions, Timeline), S::Error> {
    let (buffered, segments, (sizes, closed), timeline, parameters) = source.look(|versions, hold| {
        let columns = &versions.columns;
        let buffered: Vec<Version> = columns.buffered(row).map(|(version, _)| version).collect();
        let segments: Vec<SegmentInfo> = columns.segments(row).collect();
        segments.iter().for_each(|segment| hold(segment.at));
        let parameters = *columns.parameters();
        let mut sizes = columns.group_sizes(row);
        let mut left = scope.segments;
        sizes.iter_mut().for_each(|size| {
            *size = left.min(*size);
            left -= *size;
        });
        let groups = (sizes, columns.closed_groups(row));
        (buffered, segments, groups, versions.timeline.clone(), parameters)
    })?;
    let segment_bytes = parameters.segment_bytes() as u64;
    let segments_of = vec![Vec::new(); segments.len()];
    let mut decisions = Decisions { segments: segments_of, sizes, closed, segment_bytes, ..Decisions::default() };
    for version in buffered.into_iter().rev() {
        // The page buffer is an internal version of its own.
        let internal = (version.sequence < scope.buffered_before).then_some(decisions.sizes.len() as u32);
        decisions.buffered.push((version.sequence, bytes_of(&version)));
        decisions.large.extend(large_of(&version).map(|large| (version.sequence, large)));
        decisions.keys.entry(version.key).or_default().push(Candidate { version, internal });
    }
    let groups = decisions.sizes.iter().enumerate().flat_map(|(group, size)| std::iter::repeat_n(group, *size));
    let groups: Vec<usize> = groups.collect();
    for (at, segment) in segments.iter().enumerate().rev() {
        let mut versions = read_segment(source, segment, &parameters, |version, _| Ok(version))?;
        versions.sort_unstable_by_key(|version| std::cmp::Reverse(version.sequence));
        for version in versions {
            decisions.segments[at].push((version.sequence, bytes_of(&version)));
            decisions.large.extend(large_of(&version).map(|large| (version.sequence, large)));
            let group = groups.get(at).filter(|_| version.sequence < scope.sealed_before);
            let internal = group.map(|group| *group as u32);
            decisions.keys.entry(version.key).or_default().push(Candidate { version, internal });
        }
    }
    Ok((decisions, timeline))
}

/// Rewrites the next piece of a plan, of at most so many segments: reads them, and seals what is kept into new ones. Nothing if all runs
/// are done. The namespace is as it was until [`Versions::install_merge`]; puts may come between, other merges of the row not. A piece
/// that is not installed is the next one again.
///
/// # Errors
/// Those of reading.
pub fn merge<S: Source>(source: &mut S, plan: &MergePlan, segments_max: usize) -> Result<Option<Merged>, S::Error> {
    let Some(run) = plan.runs.front() else { return Ok(None) };
    let old = run.start..run.end.min(run.start + segments_max.max(PIECE_SEGMENTS_MIN));
    let (segments, parameters, (room, number)) = source.look(|versions, hold| {
        let columns = &versions.columns;
        let segments: Vec<SegmentInfo> = columns.segments(plan.row).skip(old.start).take(old.len()).collect();
        segments.iter().for_each(|segment| hold(segment.at));
        (segments, *columns.parameters(), columns.room_after(plan.row, old.start))
    })?;
    let mut kept = Row::new(&parameters, number);
    let mut merged = Merged {
        row: plan.row,
        old,
        segments: Vec::new(),
        live: Vec::new(),
        is_full: true,
        segments_read: segments.len() as u64 - u64::from(plan.is_begun),
        dropped: 0,
        dropped_bytes: 0,
        large: Vec::new(),
    };
    for segment in &segments {
        copy_kept(source, segment, plan, &parameters, (&mut kept, &mut merged))?;
        while kept.is_full(&parameters) {
            seal_kept(&mut kept, plan, &parameters, (room, number), &mut merged);
        }
    }
    while !kept.buffer.entries().is_empty() {
        seal_kept(&mut kept, plan, &parameters, (room, number), &mut merged);
    }
    let is_full = |sealed: &Sealed| sealed.record_bytes * 8 >= parameters.segment_bytes() * FULL_EIGHTHS;
    merged.is_full = merged.segments.last().is_none_or(is_full);
    Ok(Some(merged))
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
            merged.dropped_bytes += bytes_of(&version) + large_bytes(&version);
            merged.large.extend(large_of(&version));
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

fn seal_kept(
    kept: &mut Row,
    plan: &MergePlan,
    parameters: &Parameters,
    (room, number): (Room, u32),
    merged: &mut Merged,
) {
    let room = merged.segments.last().map_or(room, |sealed| sealed.table.room());
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
    kept.leave(sealed, parameters, number + tables);
}

impl Versions {
    /// The new segments of a merge lie at `at`, in their order, from now on, in place of the old ones. Returns how many older
    /// segments their row has, and the addresses of the old ones, which nothing refers to any more.
    pub fn install_merge(&mut self, merged: &Merged, at: &[SegmentAt]) -> (u32, Vec<SegmentAt>) {
        assert_eq!(merged.segments.len(), at.len(), "an address for each segment");
        let freed = self.columns.replace(merged.row, &merged.old, &merged.segments, &merged.live, at);
        (merged.old.start as u32, freed)
    }

    /// Removes what a plan drops from the page buffer, after all pieces are installed. What was
    /// sealed since the row was planned is kept, and with it the tombstones that hide it. No segment of the row may be sealed and not installed.
    pub fn drop_buffered(&mut self, plan: &MergePlan) -> Dropped {
        let present: BTreeSet<u64> = self.columns.buffered(plan.row).map(|(version, _)| version.sequence).collect();
        let hides =
            |at: &u64| plan.tombstones.get(at).is_some_and(|older| older.iter().any(|at| !present.contains(at)));
        let leave = present.iter().filter(|at| !hides(at));
        let gone: BTreeMap<u64, u64> = leave.filter_map(|at| Some((*at, *plan.buffered.get(at)?))).collect();
        let count = self.columns.drop_buffered(plan.row, &gone.keys().copied().collect());
        let large: Vec<LargeValue> = gone.keys().filter_map(|sequence| plan.large.get(sequence)).copied().collect();
        let large_bytes: u64 = large.iter().map(|large| u64::from(large.bytes)).sum();
        Dropped { count, bytes: gone.values().sum::<u64>() + large_bytes, large }
    }
}

impl MergePlan {
    /// A piece of it is installed.
    pub fn note_installed(&mut self, merged: &Merged) {
        let Some(mut run) = self.runs.pop_front() else { return };
        let (old, new) = (merged.old.len(), merged.segments.len());
        let shift = |at: usize| at + new - old;
        self.is_begun = run.end > merged.old.end && !merged.is_full;
        run = merged.old.start + new - usize::from(self.is_begun)..shift(run.end);
        self.runs.iter_mut().for_each(|run| *run = shift(run.start)..shift(run.end));
        if !run.is_empty() {
            self.runs.push_front(run);
        }
    }

    /// The large values that the row has.
    pub fn large_values(&self) -> impl Iterator<Item = LargeValue> {
        self.large.values().copied()
    }

    /// How many versions go from the page buffer.
    pub fn buffered_drops(&self) -> u64 {
        self.buffered.len() as u64
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

    fn plan(self, row: u32, verdict: Verdict, scope: &MergeScope) -> MergePlan {
        let Verdict { mut drop, newest, with_older } = verdict;
        let runs = self.runs(&drop, scope);
        let rewritten = runs.iter().cloned().flatten().flat_map(|at| &self.segments[at]);
        let rewritten: BTreeSet<u64> =
            rewritten.chain(&self.buffered).map(|(sequence, _)| *sequence).filter(|at| drop.contains(at)).collect();
        // Some segments do not change: a tombstone that went before what it hides would let that be seen again. Older versions are in
        // older segments or in the same one, so they are not dropped after it.
        let mut tombstones = Vec::new();
        for (tombstone, older) in with_older {
            match older.iter().all(|sequence| rewritten.contains(sequence)) {
                true => tombstones.push((tombstone, older)),
                false => _ = drop.remove(&tombstone),
            }
        }
        let buffered: BTreeMap<u64, u64> =
            self.buffered.iter().copied().filter(|(sequence, _)| drop.contains(sequence)).collect();
        let tombstones = tombstones.into_iter().filter(|(tombstone, _)| buffered.contains_key(tombstone)).map(
            |(tombstone, mut older)| {
                older.retain(|sequence| buffered.contains_key(sequence));
                (tombstone, older)
            },
        );
        let tombstones = tombstones.collect();
        let all = || self.segments.iter().flatten().chain(&self.buffered);
        let mut plan = MergePlan {
            row,
            versions: all().count() as u64,
            kept: 0,
            dropped: 0,
            dropped_bytes: 0,
            segments: runs.iter().map(|run| run.len() as u64).sum(),
            runs,
            drop: BTreeSet::new(),
            buffered,
            tombstones,
            newest,
            large: BTreeMap::new(),
            is_begun: false,
        };
        for (sequence, bytes) in all() {
            if !drop.contains(sequence) {
                plan.kept += 1;
            } else if rewritten.contains(sequence) {
                plan.dropped += 1;
                plan.dropped_bytes += bytes + self.large_bytes(sequence);
                plan.drop.insert(*sequence);
            }
        }
        plan.large = self.large;
        plan
    }

    /// The segments that are worth rewriting, in runs.
    fn runs(&self, drop: &BTreeSet<u64>, scope: &MergeScope) -> VecDeque<Range<usize>> {
        // Segments that merges left half empty are room, too, if those around them are rewritten.
        let all = 0..self.sizes.iter().sum();
        let bytes = |at: usize| self.segments[at].iter().map(|(_, bytes)| bytes).sum::<u64>();
        let largest = all.clone().map(bytes).max().unwrap_or(0);
        let goes = |at: &usize| {
            let has_dropped = self.segments[*at].iter().any(|(sequence, _)| drop.contains(sequence));
            has_dropped || bytes(*at) * 8 < largest * FULL_EIGHTHS as u64
        };
        let (first, last) = (all.clone().find(goes), all.rev().find(goes));
        if scope.is_thorough
            && let (Some(first), Some(last)) = (first, last)
            && (self.gain(first..last + 1, drop) > 0 || self.dead_large(first..last + 1, drop) > 0)
        {
            return std::iter::once(first..last + 1).collect();
        }
        let mut runs: VecDeque<Range<usize>> = VecDeque::new();
        let mut begin = 0;
        for (group, size) in self.sizes.iter().enumerate() {
            let segments = begin..begin + size;
            begin += size;
            let versions = || self.segments[segments.clone()].iter().flatten();
            let (count, kept) = (versions().count(), versions().filter(|(at, _)| !drop.contains(at)).count());
            let dead_large = self.dead_large(segments.clone(), drop);
            let all_bytes: u64 = versions().map(|(at, bytes)| bytes + self.large_bytes(at)).sum();
            let is_dead = kept as u64 * 100 <= count as u64 * KEPT_PERCENT_MAX
                || dead_large * 100 >= all_bytes * (100 - KEPT_PERCENT_MAX) && dead_large > 0;
            // The last group grows: rewriting it brings as much later.
            let gains = |segments| self.gain(segments, drop) > 0 || dead_large >= self.segment_bytes;
            let was_buffered = versions().any(|(at, _)| *at >= scope.buffered_from && drop.contains(at));
            let is_worth_it = is_dead && (group < self.closed || gains(segments.clone()));
            if count == 0 || !(was_buffered || is_worth_it) {
                continue;
            }
            match runs.back_mut() {
                Some(run) if run.end == segments.start => run.end = segments.end,
                _ => runs.push_back(segments),
            }
        }
        runs
    }

    fn large_bytes(&self, sequence: &u64) -> u64 {
        self.large.get(sequence).map_or(0, |large| large.bytes.into())
    }

    /// Bytes of the large values that rewriting some segments releases.
    fn dead_large(&self, segments: Range<usize>, drop: &BTreeSet<u64>) -> u64 {
        let dropped = self.segments[segments].iter().flatten().filter(|(at, _)| drop.contains(at));
        dropped.map(|(at, _)| self.large_bytes(at)).sum()
    }

    /// Segments that rewriting some releases at least, as far as sizes show.
    fn gain(&self, segments: Range<usize>, drop: &BTreeSet<u64>) -> usize {
        let segments = &self.segments[segments];
        let bytes: Vec<u64> = segments.iter().map(|versions| versions.iter().map(|(_, bytes)| bytes).sum()).collect();
        let largest = bytes.iter().copied().max().unwrap_or(0);
        let full = || bytes.iter().filter(|bytes| **bytes * 8 >= largest * FULL_EIGHTHS as u64);
        let mean = full().sum::<u64>() / (full().count() as u64).max(1);
        let kept = segments.iter().flatten().filter(|(at, _)| !drop.contains(at)).map(|(_, bytes)| bytes).sum::<u64>();
        // The last new segment is chosen from fewer versions, so it takes a little less.
        let needed = if kept == 0 { 0 } else { (kept + mean / 10).div_ceil(mean.max(1)) };
        segments.len().saturating_sub(needed as usize)
    }
}

/// The large value of a version, if it has one.
fn large_of(version: &Version) -> Option<LargeValue> {
    match version.kind {
        Kind::Large(number) => Some(LargeValue { number, bytes: version.value_len }),
        Kind::Value | Kind::Tombstone | Kind::Extent(_) => None,
    }
}

fn large_bytes(version: &Version) -> u64 {
    large_of(version).map_or(0, |large| large.bytes.into())
}

/// What a version takes of a segment.
fn bytes_of(version: &Version) -> u64 {
    let extent = if matches!(version.kind, Kind::Extent(_)) { u64::from(version.value_len) } else { 0 };
    version.stored_bytes() as u64 + extent
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   a tombstone is kept as long as any version that it hides, not only the one before it.
    /// Method: a group of which nearly all is kept, one of which half is, and an open one of which nothing is; a key with a version in
    ///         the first, another and a tombstone in the second.
    #[test]
    fn tombstones_stay_before_all_that_they_hide() {
        let group = |sequences: Range<u64>| sequences.map(|sequence| (sequence, 1)).collect::<Vec<_>>();
        let segments = vec![group(0..10), group(10..14), group(14..18)];
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
        let decisions = Decisions { keys, segments, sizes: vec![1; 3], closed: 2, ..Decisions::default() };
        let only_newest = Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: false, keep_internal: false };
        let verdict = decisions.verdict(&only_newest, &Timeline::default());
        assert_eq!((&verdict.newest, verdict.drop.len()), (&BTreeSet::from([11, 18]), 7));
        let plan = decisions.plan(0, verdict, &MergeScope::ALL);
        assert_eq!((plan.runs.len(), &plan.runs[0]), (1, &(1..3)));
        assert_eq!((plan.drop, plan.segments), (BTreeSet::from([10, 14, 15, 16, 17]), 2));
    }
}
