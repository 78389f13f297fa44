//! Which versions of a key are kept when space is released.
//!
//! Lives here:       the rules, applied to all versions of one key at once.
//! Lives elsewhere:  finding those versions and moving what is kept (`merge`).
//! Implements:       paper:Muninn 4.4.1 (version-aware merge); docs/versioned.md "Retention".

use crate::record::{Kind, Version};
use crate::timeline::{Family, Timeline};

/// What is kept besides the newest version of each key. Rules add up: what one of them keeps is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retention {
    /// So many of the newest versions of each key that are seen now; 0 counts as 1.
    pub keep_last: u32,
    /// Everything that was the newest version of its key at this time (nanoseconds since 1970) or later. A version's age is counted
    /// from the moment its successor was put. Time does not run backwards: where a clock was set back, versions count as put no earlier
    /// than those that were put before them.
    pub keep_since_ns: Option<u64>,
    /// What any snapshot sees.
    pub keep_snapshots: bool,
    /// The newest version of each key in each *internal version*: a group of segments, put around the same time.
    pub keep_internal: bool,
}

impl Default for Retention {
    /// The paper's merge, and no snapshot loses anything.
    fn default() -> Retention {
        Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: true, keep_internal: true }
    }
}

/// Gives the versions of a row, in the order of their sequences, times that do not run backwards: each is put no earlier than any before
/// it.
pub(crate) fn mend_times<'a>(versions: impl Iterator<Item = &'a mut Version>) {
    let mut latest_ns = 0;
    for version in versions {
        latest_ns = latest_ns.max(version.time_ns);
        version.time_ns = latest_ns;
    }
}

/// A version of the key in question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Candidate {
    pub(crate) version: Version,
    /// The internal version that it is in; nothing if it must be kept because a log still has it.
    pub(crate) internal: Option<u32>,
}

/// What becomes of a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Kept,
    /// Nobody misses it.
    Goes,
    /// A tombstone that a view shows, and that hides nothing which is kept: it may go together with all that it hides, not before.
    GoesWithOlder,
}

impl Retention {
    /// The snapshots of a namespace that keep what they see.
    pub(crate) fn kept_snapshots(&self, timeline: &Timeline) -> Vec<Family> {
        if self.keep_snapshots { timeline.families() } else { Vec::new() }
    }

    /// What becomes of a key's versions, all of them, newest first.
    ///
    /// `kept` are the snapshots whose versions are kept ([`Retention::kept_snapshots`]).
    pub(crate) fn fates(&self, versions: &[Candidate], timeline: &Timeline, kept: &[Family]) -> Vec<Fate> {
        let by_rule = self.by_rule(versions, timeline);
        let sequences: Vec<u64> = versions.iter().map(|candidate| candidate.version.sequence).collect();
        // Kept because a view shows them: a tombstone among these matters only while it hides something.
        let mut shown = vec![false; versions.len()];
        if let Some(at) = sequences.iter().position(|sequence| timeline.view().sees(*sequence)) {
            shown[at] = true;
        }
        kept.iter().for_each(|family| family.shown(&sequences, |at| shown[at] = true));
        self.mark_older_deletes(versions, &mut shown);
        let mut hides = false;
        let mut fates = vec![Fate::Goes; versions.len()];
        for at in (0..versions.len()).rev() {
            let is_value = versions[at].version.kind != Kind::Tombstone;
            fates[at] = match (by_rule[at], shown[at]) {
                (true, _) => Fate::Kept,
                (false, true) if hides || is_value => Fate::Kept,
                (false, true) => Fate::GoesWithOlder,
                (false, false) => Fate::Goes,
            };
            hides |= fates[at] == Fate::Kept;
        }
        fates
    }

    /// Deletes before the time from which everything is kept, of keys that did not exist at that time: they matter only while they hide
    /// something. Kept forever, they would fill a device that is merged by age alone.
    fn mark_older_deletes(&self, versions: &[Candidate], shown: &mut [bool]) {
        let Some(since) = self.keep_since_ns else { return };
        let mut successor_ns = u64::MAX;
        for (Candidate { version, .. }, shown) in versions.iter().zip(shown) {
            *shown |= version.kind == Kind::Tombstone && successor_ns >= since && version.time_ns < since;
            successor_ns = version.time_ns;
        }
    }

    fn by_rule(&self, versions: &[Candidate], timeline: &Timeline) -> Vec<bool> {
        let mut seen = 0;
        let mut internal = None;
        let mut successor_ns = u64::MAX;
        let mut keep = Vec::with_capacity(versions.len());
        for Candidate { version, internal: here } in versions {
            let is_seen = timeline.view().sees(version.sequence);
            seen += u32::from(is_seen);
            let is_last = self.keep_last > 1 && is_seen && seen <= self.keep_last;
            let is_delete = version.kind == Kind::Tombstone;
            let is_recent = self
                .keep_since_ns
                .is_some_and(|since| successor_ns >= since && (!is_delete || version.time_ns >= since));
            successor_ns = version.time_ns;
            let is_newest_here = self.keep_internal && here.is_some() && *here != internal;
            internal = *here;
            // A log has it, and would bring it back.
            keep.push(here.is_none() || is_last || is_recent || is_newest_here);
        }
        keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Command;
    use crate::versions::Stamp;
    use kaml_index::Key;

    const ONLY_NEWEST: Retention =
        Retention { keep_last: 1, keep_since_ns: None, keep_snapshots: false, keep_internal: false };

    /// Versions 5, 4 … 1 of a key, two to an internal version; `kinds` from the newest, `-` a tombstone.
    fn versions(kinds: &str) -> Vec<Candidate> {
        let version = |(at, kind): (usize, char)| {
            let sequence = (kinds.len() - at) as u64;
            let kind = if kind == '-' { Kind::Tombstone } else { Kind::Value };
            let version = Version {
                key: Key::from(1),
                kind,
                value_len: 0,
                value_crc: 0,
                sequence,
                time_ns: sequence * 10,
                user_version: 1,
                ordinal: 0,
            };
            Candidate { version, internal: Some(sequence as u32 / 2) }
        };
        kinds.char_indices().map(version).collect()
    }

    fn kept(retention: Retention, kinds: &str, timeline: &Timeline) -> String {
        let letter = |fate| match fate {
            Fate::Kept => 'k',
            Fate::Goes => '.',
            Fate::GoesWithOlder => 'w',
        };
        retention
            .fates(&versions(kinds), timeline, &retention.kept_snapshots(timeline))
            .into_iter()
            .map(letter)
            .collect()
    }

    /// Goal:   each rule keeps what it defines, and the newest version is kept whatever the rules.
    /// Method: five versions under each rule.
    #[test]
    fn rules_keep_what_they_say() {
        let mut timeline = Timeline::default();
        assert_eq!(kept(ONLY_NEWEST, "vvvvv", &timeline), "k....");
        assert_eq!(kept(Retention { keep_last: 3, ..ONLY_NEWEST }, "vvvvv", &timeline), "kkk..");
        assert_eq!(kept(Retention { keep_since_ns: Some(40), ..ONLY_NEWEST }, "vvvvv", &timeline), "kkk..");
        assert_eq!(kept(Retention { keep_since_ns: Some(51), ..ONLY_NEWEST }, "vvvvv", &timeline), "k....");
        assert_eq!(kept(Retention { keep_internal: true, ..ONLY_NEWEST }, "vvvvv", &timeline), "k.k.k");
        timeline.carry_out(Command::Snapshot, Stamp { sequence: 3, time_ns: 0 }).expect("few snapshots");
        assert_eq!(kept(ONLY_NEWEST, "vvvvv", &timeline), "k....");
        assert_eq!(kept(Retention { keep_snapshots: true, ..ONLY_NEWEST }, "vvvvv", &timeline), "k..k.");
    }

    /// Goal:   what was the newest version of its key at a time is kept, wherever the host's clock stood when it was put.
    /// Method: five versions a day apart, the clock right; wrong from the start until it was set right; set back once; ahead once. The
    ///         last day is to be kept: the last two versions, and the one that existed when it began.
    #[test]
    fn clocks_that_are_wrong_let_nothing_go() {
        for (times, expected) in [
            ([50, 40, 30, 20, 10], "kkk.."),
            ([50, 3, 2, 1, 0], "kk..."),
            ([50, 4, 45, 20, 10], "kkkk."),
            ([50, 40, 99, 20, 10], "kkkk."),
            ([50, 49, 3, 2, 40], "kkkkk"),
        ] {
            let mut candidates = versions("vvvvv");
            candidates.iter_mut().zip(times).for_each(|(candidate, time_ns)| candidate.version.time_ns = time_ns);
            mend_times(candidates.iter_mut().rev().map(|candidate| &mut candidate.version));
            let rules = Retention { keep_since_ns: Some(40), ..ONLY_NEWEST };
            let fates = rules.fates(&candidates, &Timeline::default(), &[]);
            let kept: String = fates.iter().map(|fate| if *fate == Fate::Kept { 'k' } else { '.' }).collect();
            assert_eq!(kept, expected, "{times:?}");
        }
    }

    /// Goal:   after a rollback, what is seen is kept, not what is newest; what undoing it shows is kept for its snapshot.
    /// Method: roll back to a snapshot after version 2; merge with and without snapshots.
    #[test]
    fn rolled_back_versions_go_unless_a_snapshot_sees_them() {
        let mut timeline = Timeline::default();
        timeline.carry_out(Command::Snapshot, Stamp { sequence: 3, time_ns: 0 }).expect("few snapshots");
        timeline.carry_out(Command::RollBack(1), Stamp { sequence: 6, time_ns: 0 }).expect("taken");
        assert_eq!(kept(ONLY_NEWEST, "vvvvv", &timeline), "...k.");
        assert_eq!(kept(Retention { keep_last: 9, ..ONLY_NEWEST }, "vvvvv", &timeline), "...kk");
        assert_eq!(kept(Retention { keep_snapshots: true, ..ONLY_NEWEST }, "vvvvv", &timeline), "k..k.");
    }

    /// Goal:   a tombstone is dropped with the last version that it hides, and kept while a rule or an older version needs it.
    /// Method: deleted keys.
    #[test]
    fn tombstones_go_with_what_they_hide() {
        let mut timeline = Timeline::default();
        assert_eq!(kept(ONLY_NEWEST, "-vvvv", &timeline), "w....");
        assert_eq!(kept(ONLY_NEWEST, "-", &timeline), "w");
        assert_eq!(kept(Retention { keep_last: 2, ..ONLY_NEWEST }, "-vvvv", &timeline), "kk...");
        timeline.carry_out(Command::Snapshot, Stamp { sequence: 3, time_ns: 0 }).expect("few snapshots");
        assert_eq!(kept(Retention { keep_snapshots: true, ..ONLY_NEWEST }, "-vvvv", &timeline), "k..k.");
        assert_eq!(kept(Retention { keep_snapshots: true, ..ONLY_NEWEST }, "-vv--", &timeline), "w..w.");
        // Times are 50, 40 … 10.
        for (since, versions, fates) in [(51, "-vvvv", "w...."), (50, "-vvvv", "kk..."), (45, "-vvvv", "kk...")] {
            let rules = Retention { keep_since_ns: Some(since), ..ONLY_NEWEST };
            assert_eq!(kept(rules, versions, &timeline), fates, "since {since}");
        }
        for (since, versions, fates) in [(45, "v-vvv", "kw..."), (35, "v-vvv", "kkk.."), (41, "v--vv", "kw...")] {
            let rules = Retention { keep_since_ns: Some(since), ..ONLY_NEWEST };
            assert_eq!(kept(rules, versions, &timeline), fates, "since {since}");
        }
    }
}
