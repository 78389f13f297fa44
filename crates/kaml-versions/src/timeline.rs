//! User versions: which versions a snapshot sees, and what becomes of that when the namespace is rolled back.
//!
//! Lives here:       views, snapshots, rolling back; their bytes.
//! Lives elsewhere:  finding a version that a view sees (`versions`), what retention keeps for snapshots (`retention`).
//! Implements:       paper:Muninn 4.1, 4.4 (user versions); docs/versioned.md "Snapshots and rolling back".
//!
//! Nothing is copied, moved or rewritten for a snapshot or a rollback. A *view* is a set of sequences: a few ranges. A
//! rollback hides the range between the snapshot and now; what is put from then on is seen again:
//!
//! ```text
//!            ├─ snapshot 1 ─┤
//!            ├────────────── snapshot 2 ─────┤             taken by the rollback to 1, so it can be undone
//!            ├──────────────┤                ├─── present
//! sequences ─┴──────────────┴────────────────┴──────────▶
//! ```

use crate::Error;
use crate::versions::Stamp;
use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges of a view at most; each rollback to an older snapshot can add one.
const RANGES_MAX: usize = 1 << 16;
/// Snapshots of a namespace at most: 80 MiB of memory, and 64 MiB in each checkpoint image of its directory.
const SNAPSHOTS_MAX: usize = 1 << 20;
/// Bytes of an encoded timeline without views and snapshots.
const HEAD_BYTES: u64 = 24;
/// Bytes of an encoded snapshot without the ranges of its view, and of such a range.
const SNAPSHOT_BYTES: u64 = 16;
const RANGE_BYTES: u64 = 16;

/// The sequences that are seen: ranges in ascending order, with gaps between.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    ranges: Vec<Range<u64>>,
}

impl View {
    /// Sees everything.
    pub fn everything() -> View {
        View { ranges: std::iter::once(0..u64::MAX).collect() }
    }

    /// Whether a version with this sequence is seen.
    pub fn sees(&self, sequence: u64) -> bool {
        self.ranges.iter().rev().any(|range| range.contains(&sequence))
    }

    /// Nothing from here on is seen.
    pub fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |range| range.end)
    }

    /// The part before `end`.
    pub fn before(&self, end: u64) -> View {
        let cut = self.ranges.iter().map(|range| range.start..range.end.min(end));
        View { ranges: cut.filter(|range| !range.is_empty()).collect() }
    }

    /// This, which ends before `start`, and everything from there on.
    fn and_from(mut self, start: u64) -> View {
        match self.ranges.last_mut() {
            Some(last) if last.end >= start => last.end = u64::MAX,
            _ => self.ranges.push(start..u64::MAX),
        }
        self
    }

    /// Whether the two may differ on a sequence in the range.
    pub(crate) fn differs(&self, other: &View, within: &Range<u64>) -> bool {
        let edges = self.ranges.iter().chain(&other.ranges).flat_map(|range| [range.start, range.end]);
        let inside = edges.filter(|edge| within.contains(edge));
        inside.chain([within.start]).any(|at| self.sees(at) != other.sees(at))
    }
}

/// A user version that is finished.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// When it was taken: nanoseconds since 1970, as the caller reported.
    pub time_ns: u64,
    /// What it sees.
    pub view: View,
}

/// What can be done to user versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Finishes the present user version.
    Snapshot,
    /// Makes the namespace look as it did in a snapshot; what it looked like until now is taken as a snapshot first.
    RollBack(u32),
    /// Forgets a snapshot; the next merge drops what only it saw.
    Forget(u32),
    /// Forgets this snapshot and all before it. One command for all of them takes one journal entry, however many they are.
    ForgetThrough(u32),
}

/// A namespace's user versions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeline {
    /// The user version that puts belong to.
    present: u32,
    view: View,
    snapshots: BTreeMap<u32, Snapshot>,
    /// Ranges of all views of snapshots.
    ranges: u64,
    /// The sequence of the last command.
    changed: u64,
}

/// Snapshots that see the same sequences, but for where each of them ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Family {
    /// The ranges that each of them sees as a whole.
    before: Vec<Range<u64>>,
    /// Where the last range begins.
    start: u64,
    /// Where it ends, in ascending order: one end for each snapshot.
    ends: Vec<u64>,
}

impl Family {
    /// Calls `show` with the place of each version that is the newest one some snapshot of the family sees. `sequences` are those
    /// of the versions of one key, newest first.
    pub(crate) fn shown(&self, sequences: &[u64], mut show: impl FnMut(usize)) {
        let last = sequences.partition_point(|sequence| *sequence >= self.start);
        for (at, sequence) in sequences[..last].iter().enumerate() {
            // Some snapshot ends after this version and not after the next newer one.
            let end = self.ends[self.ends.partition_point(|end| end <= sequence)..].first();
            let newer = at.checked_sub(1).map(|newer| sequences[newer]);
            if end.is_some_and(|end| newer.is_none_or(|newer| *end <= newer)) {
                show(at);
            }
        }
        // Those that end before the oldest version in the last range show what is in the ranges before.
        let oldest = last.checked_sub(1).map(|oldest| sequences[oldest]);
        if self.ends.first().is_some_and(|end| oldest.is_none_or(|oldest| *end <= oldest)) {
            let sees = |sequence: &u64| self.before.iter().rev().any(|range| range.contains(sequence));
            if let Some(at) = sequences[last..].iter().position(sees) {
                show(last + at);
            }
        }
    }
}

impl Default for Timeline {
    /// User version 1, no snapshots, everything seen.
    fn default() -> Timeline {
        Timeline { present: 1, view: View::everything(), snapshots: BTreeMap::new(), ranges: 0, changed: 0 }
    }
}

impl Timeline {
    /// The user version that puts belong to.
    pub fn present(&self) -> u32 {
        self.present
    }

    /// The sequence of the last command.
    pub fn changed(&self) -> u64 {
        self.changed
    }

    /// What is seen now.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// All snapshots by user version.
    pub fn snapshots(&self) -> &BTreeMap<u32, Snapshot> {
        &self.snapshots
    }

    /// A snapshot.
    pub fn snapshot(&self, version: u32) -> Result<&Snapshot, Error> {
        self.snapshots.get(&version).ok_or(Error::NoSnapshot { version, present: self.present })
    }

    /// Executes a command, unless it was executed before; returns the user version that it finished, or forgot.
    pub fn carry_out(&mut self, command: Command, stamp: Stamp) -> Result<u32, Error> {
        if stamp.sequence <= self.changed {
            return Ok(self.present - 1);
        }
        let done = match command {
            Command::Snapshot => self.take(stamp.sequence, stamp.time_ns),
            Command::RollBack(to) => self.roll_back(to, stamp.sequence, stamp.time_ns),
            Command::Forget(version) => self.forget(version).map(|()| version),
            Command::ForgetThrough(version) => self.forget_through(version).map(|()| version),
        }?;
        self.changed = stamp.sequence;
        Ok(done)
    }

    /// What is wrong with a command just now, if anything is.
    pub fn check(&self, command: Command) -> Result<(), Error> {
        match command {
            Command::RollBack(version) | Command::Forget(version) => drop(self.snapshot(version)?),
            Command::ForgetThrough(version) => self.check_through(version)?,
            Command::Snapshot => {}
        }
        let takes_one = matches!(command, Command::Snapshot | Command::RollBack(_));
        let ranges = |view: &View| view.ranges.len() >= RANGES_MAX;
        let is_full =
            matches!(command, Command::RollBack(to) if self.snapshots.get(&to).is_some_and(|s| ranges(&s.view)));
        match is_full || takes_one && (self.present == u32::MAX || self.snapshots.len() >= SNAPSHOTS_MAX) {
            true => Err(Error::TooManySnapshots),
            false => Ok(()),
        }
    }

    /// Bytes of [`Timeline::encode`].
    pub fn encoded_bytes(&self) -> u64 {
        let ranges = self.ranges + self.view.ranges.len() as u64;
        HEAD_BYTES + 4 + self.snapshots.len() as u64 * SNAPSHOT_BYTES + ranges * RANGE_BYTES
    }

    /// By how many bytes a command makes that longer, at most.
    pub fn growth_of(&self, command: Command) -> u64 {
        let present = self.view.ranges.len() as u64;
        let taken = SNAPSHOT_BYTES + present * RANGE_BYTES;
        match command {
            Command::Snapshot => taken,
            Command::RollBack(to) => {
                let shown = self.snapshots.get(&to).map_or(0, |snapshot| snapshot.view.ranges.len() as u64) + 1;
                taken + shown.saturating_sub(present) * RANGE_BYTES
            }
            Command::Forget(_) | Command::ForgetThrough(_) => 0,
        }
    }

    /// The sequence from which on no version may have been put if a rollback to a snapshot is to change nothing: where that ends.
    /// Nothing if the present view differs from it also before that.
    pub fn rollback_does_nothing_since(&self, to: u32) -> Option<u64> {
        let snapshot = &self.snapshots.get(&to)?.view;
        let end = snapshot.end();
        (self.view.before(end) == *snapshot).then_some(end)
    }

    /// All snapshots: there is one family more than there were rollbacks, at most.
    pub(crate) fn families(&self) -> Vec<Family> {
        let mut families: Vec<Family> = Vec::new();
        for snapshot in self.snapshots.values() {
            let Some((last, before)) = snapshot.view.ranges.split_last() else { continue };
            match families.last_mut().filter(|family| family.start == last.start && family.before == before) {
                Some(family) => family.ends.push(last.end),
                None => families.push(Family { before: before.to_vec(), start: last.start, ends: vec![last.end] }),
            }
        }
        families
    }

    /// Finishes the present user version, all of whose sequences are before `end`; returns its number.
    fn take(&mut self, end: u64, time_ns: u64) -> Result<u32, Error> {
        let taken = self.present;
        self.present = taken.checked_add(1).ok_or(Error::TooManySnapshots)?;
        let view = self.view.before(end);
        self.ranges += view.ranges.len() as u64;
        self.snapshots.insert(taken, Snapshot { time_ns, view });
        Ok(taken)
    }

    /// Forgets a snapshot: retention no longer keeps anything for it. Its number is not used again.
    fn forget(&mut self, version: u32) -> Result<(), Error> {
        self.snapshot(version)?;
        let forgotten = self.snapshots.remove(&version);
        self.ranges -= forgotten.map_or(0, |snapshot| snapshot.view.ranges.len() as u64);
        Ok(())
    }

    /// The same for all up to this one.
    fn forget_through(&mut self, version: u32) -> Result<(), Error> {
        self.check_through(version)?;
        self.snapshots.retain(|taken, _| *taken > version);
        self.ranges = self.snapshots.values().map(|snapshot| snapshot.view.ranges.len() as u64).sum();
        Ok(())
    }

    fn check_through(&self, version: u32) -> Result<(), Error> {
        match self.snapshots.first_key_value() {
            Some((first, _)) if *first <= version => Ok(()),
            _ => Err(Error::NoSnapshot { version, present: self.present }),
        }
    }

    /// Makes the namespace look as it did in a snapshot, from sequence `end` on. What it looked like until now is taken as
    /// a snapshot first, whose number is returned: rolling back to that undoes it.
    fn roll_back(&mut self, to: u32, end: u64, time_ns: u64) -> Result<u32, Error> {
        let view = self.snapshot(to)?.view.clone();
        if view.ranges.len() >= RANGES_MAX {
            return Err(Error::TooManySnapshots);
        }
        let before = self.take(end, time_ns)?;
        self.view = view.and_from(end);
        Ok(before)
    }

    /// The bytes: all numbers little-endian; `"KVU1"`, CRC32C over what follows; present version, count of snapshots
    /// (4 bytes each); the sequence of the last command (8); the present view; for each snapshot its version (4), its time (8), its view. A view: count of ranges (4), then
    /// start and end of each (8 each).
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([0; 4]);
        bytes.extend(self.present.to_le_bytes());
        bytes.extend((self.snapshots.len() as u32).to_le_bytes());
        bytes.extend(self.changed.to_le_bytes());
        encode_view(&self.view, &mut bytes);
        for (version, snapshot) in &self.snapshots {
            bytes.extend(version.to_le_bytes());
            bytes.extend(snapshot.time_ns.to_le_bytes());
            encode_view(&snapshot.view, &mut bytes);
        }
        let crc = kaml_crc::crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The timeline that is in `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Timeline, Error> {
        let (head, body) = bytes.split_at_checked(8).ok_or(DAMAGED)?;
        if head[..4] != MAGIC || kaml_crc::crc32c(body).to_le_bytes() != head[4..] {
            return Err(DAMAGED);
        }
        let mut rest = body;
        let present = u32::from_le_bytes(take(&mut rest)?);
        let count = u32::from_le_bytes(take(&mut rest)?);
        let changed = u64::from_le_bytes(take(&mut rest)?);
        let view = decode_view(&mut rest)?;
        let mut snapshots = BTreeMap::new();
        for _ in 0..count {
            let version = u32::from_le_bytes(take(&mut rest)?);
            let time_ns = u64::from_le_bytes(take(&mut rest)?);
            let view = decode_view(&mut rest)?;
            let is_in_order = version < present && snapshots.keys().next_back().is_none_or(|last| *last < version);
            if !is_in_order {
                return Err(DAMAGED);
            }
            snapshots.insert(version, Snapshot { time_ns, view });
        }
        match rest.is_empty() && view.end() == u64::MAX {
            true => {
                let ranges = snapshots.values().map(|snapshot| snapshot.view.ranges.len() as u64).sum();
                Ok(Timeline { present, view, snapshots, ranges, changed })
            }
            false => Err(DAMAGED),
        }
    }
}

const MAGIC: [u8; 4] = *b"KVU1";
const DAMAGED: Error = Error::DamagedTable("not a timeline");

fn encode_view(view: &View, into: &mut Vec<u8>) {
    into.extend((view.ranges.len() as u32).to_le_bytes());
    let edges = view.ranges.iter().flat_map(|range| [range.start, range.end]);
    edges.for_each(|edge| into.extend(edge.to_le_bytes()));
}

fn decode_view(rest: &mut &[u8]) -> Result<View, Error> {
    let count = u32::from_le_bytes(take(rest)?);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for _ in 0..count {
        let range = u64::from_le_bytes(take(rest)?)..u64::from_le_bytes(take(rest)?);
        if range.is_empty() || ranges.last().is_some_and(|last| last.end >= range.start) {
            return Err(DAMAGED);
        }
        ranges.push(range);
    }
    Ok(View { ranges })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Error> {
    let (head, tail) = rest.split_first_chunk().ok_or(DAMAGED)?;
    *rest = tail;
    Ok(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(view: &View) -> Vec<u64> {
        (0..40).filter(|sequence| view.sees(*sequence)).collect()
    }

    /// All sets of one to three bits.
    fn few_of(bits: u64) -> impl Iterator<Item = u64> {
        (0..bits).flat_map(move |a| (a..bits).flat_map(move |b| (b..bits).map(move |c| 1 << a | 1 << b | 1 << c)))
    }

    fn rolled_back() -> Timeline {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.take(10, 100), Ok(1));
        assert_eq!(timeline.roll_back(1, 20, 200), Ok(2));
        timeline
    }

    /// Goal:   a rollback hides what was put since the snapshot, and can be undone, again and again.
    /// Method: the picture above, then back to what was before, and once more.
    #[test]
    fn rollbacks_hide_and_show() {
        let mut timeline = rolled_back();
        assert_eq!(seen(timeline.view()), (0..10).chain(20..40).collect::<Vec<_>>());
        assert_eq!(seen(&timeline.snapshots()[&2].view), (0..20).collect::<Vec<_>>());
        assert_eq!(timeline.roll_back(2, 30, 300), Ok(3));
        assert_eq!(seen(timeline.view()), (0..20).chain(30..40).collect::<Vec<_>>());
        assert_eq!(seen(&timeline.snapshots()[&3].view), (0..10).chain(20..30).collect::<Vec<_>>());
        assert_eq!(timeline.roll_back(3, 30, 400), Ok(4));
        assert_eq!(seen(timeline.view()), (0..10).chain(20..40).collect::<Vec<_>>(), "ranges that touch become one");
        assert_eq!(timeline.present(), 5);
        assert_eq!(timeline.roll_back(9, 30, 400), Err(Error::NoSnapshot { version: 9, present: 5 }));
        assert_eq!(timeline.forget(1), Ok(()));
        assert_eq!(timeline.forget(1), Err(Error::NoSnapshot { version: 1, present: 5 }));
    }

    /// Goal:   a scan skips a range of sequences exactly when two views agree on all of it.
    /// Method: compare with all sequences of every small range.
    #[test]
    fn differences_are_found() {
        let timeline = rolled_back();
        for other in [&timeline.snapshots()[&1].view, &timeline.snapshots()[&2].view, &View::everything()] {
            for start in 0..40 {
                for end in start + 1..40 {
                    let expected = (start..end).any(|s| timeline.view().sees(s) != other.sees(s));
                    assert_eq!(timeline.view().differs(other, &(start..end)), expected, "{start}..{end} {other:?}");
                }
            }
        }
    }

    /// Goal:   how long a timeline is, and becomes, is known without encoding it.
    /// Method: commands of every kind, one after another; compare with the bytes.
    #[test]
    fn lengths_are_known() {
        let mut timeline = Timeline::default();
        let commands = [Command::Snapshot, Command::Snapshot, Command::RollBack(1), Command::Snapshot]
            .into_iter()
            .chain([Command::RollBack(2), Command::RollBack(3), Command::Forget(2), Command::RollBack(1)])
            .chain([Command::Snapshot, Command::ForgetThrough(4), Command::Snapshot]);
        for (command, sequence) in commands.zip((10..).step_by(10)) {
            let most = timeline.encode().len() as u64 + timeline.growth_of(command);
            timeline.carry_out(command, Stamp { sequence, time_ns: 1 }).expect("possible");
            let bytes = timeline.encode();
            assert_eq!(bytes.len() as u64, timeline.encoded_bytes(), "{command:?}");
            assert!(bytes.len() as u64 <= most, "{command:?}");
            assert_eq!(Timeline::decode(&bytes).as_ref(), Ok(&timeline));
        }
        assert_eq!(timeline.snapshots().keys().copied().collect::<Vec<_>>(), [5, 6, 7, 8, 9]);
        let refused = timeline.check(Command::ForgetThrough(4));
        assert_eq!(refused, Err(Error::NoSnapshot { version: 4, present: 10 }));
    }

    /// Goal:   families show what their snapshots show one by one.
    /// Method: snapshots and rollbacks at every third sequence, all keys with up to three versions.
    #[test]
    fn families_show_what_snapshots_show() {
        let mut timeline = Timeline::default();
        let commands =
            [Command::Snapshot, Command::Snapshot, Command::RollBack(1), Command::Snapshot].into_iter().chain([
                Command::Snapshot,
                Command::RollBack(4),
                Command::Snapshot,
                Command::RollBack(2),
                Command::Snapshot,
            ]);
        for (command, sequence) in commands.zip((3..).step_by(3)) {
            timeline.carry_out(command, Stamp { sequence, time_ns: 1 }).expect("possible");
        }
        let families = timeline.families();
        assert!(families.len() <= 4, "{families:?}");
        for mask in few_of(30) {
            let sequences: Vec<u64> = (0..30).rev().filter(|bit| mask >> bit & 1 == 1).collect();
            let mut expected = vec![false; sequences.len()];
            let newest = |view: &View| sequences.iter().position(|sequence| view.sees(*sequence));
            timeline.snapshots().values().filter_map(|s| newest(&s.view)).for_each(|at| expected[at] = true);
            let mut shown = vec![false; sequences.len()];
            families.iter().for_each(|family| family.shown(&sequences, |at| shown[at] = true));
            assert_eq!(shown, expected, "{sequences:?}");
        }
    }

    /// Goal:   timelines written by one build are read by the next; damaged ones are refused.
    /// Method: freeze the bytes of one, flip each bit, cut it everywhere.
    #[test]
    fn golden_timeline() {
        let bytes = rolled_back().encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "4b56553191005155030000000200000000000000000000000200000000000000000000000a000000\
                        000000001400000000000000ffffffffffffffff0100000064000000000000000100000000000000\
                        000000000a0000000000000002000000c80000000000000001000000000000000000000014000000\
                        00000000";
        assert_eq!(hex, expected);
        assert_eq!(Timeline::decode(&bytes), Ok(rolled_back()));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Timeline::decode(&damaged).is_err(), "bit {bit}");
        }
        (0..bytes.len()).for_each(|len| assert!(Timeline::decode(&bytes[..len]).is_err(), "{len} bytes"));
    }
}
