//! Which versions of a key are kept when space is given back.
//!
//! Lives here:       the rules, applied to all versions of one key at once.
//! Lives elsewhere:  finding those versions and moving what is kept (`merge`).
//! Implements:       paper:Muninn 4.4.1 (version-aware merge); docs/versioned.md "Retention".

use crate::record::{Kind, Version};
use crate::timeline::{Timeline, View};

/// What is kept besides the newest version of each key. Rules add up: what one of them wants is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retention {
    /// So many of the newest versions of each key that are seen now; 0 counts as 1.
    pub keep_last: u32,
    /// Everything put at this time (nanoseconds since 1970) or later.
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

/// A version of the key in question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Candidate {
    pub(crate) version: Version,
    /// The internal version that it is in; nothing while it is in the buffer.
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
    /// What becomes of a key's versions, all of them, newest first.
    pub(crate) fn fates(&self, versions: &[Candidate], timeline: &Timeline) -> Vec<Fate> {
        let newest_seen = |view: &View| versions.iter().position(|v| view.sees(v.version.sequence));
        let by_rule = self.by_rule(versions, timeline);
        // Kept because a view shows them: a tombstone among these matters only while it hides something.
        let mut shown = vec![false; versions.len()];
        let mut show = |view: &View| {
            if let Some(at) = newest_seen(view) {
                shown[at] = true;
            }
        };
        show(timeline.view());
        if self.keep_snapshots {
            timeline.snapshots().values().for_each(|snapshot| show(&snapshot.view));
        }
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

    fn by_rule(&self, versions: &[Candidate], timeline: &Timeline) -> Vec<bool> {
        let mut seen = 0;
        let mut internal = None;
        let mut keep = Vec::with_capacity(versions.len());
        for Candidate { version, internal: here } in versions {
            let is_seen = timeline.view().sees(version.sequence);
            seen += u32::from(is_seen);
            let is_last = self.keep_last > 1 && is_seen && seen <= self.keep_last;
            let is_recent = self.keep_since_ns.is_some_and(|since| version.time_ns >= since);
            let is_newest_here = self.keep_internal && here.is_some() && *here != internal;
            internal = *here;
            // What is in the buffer costs no flash yet.
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
        retention.fates(&versions(kinds), timeline).into_iter().map(letter).collect()
    }

    /// Goal:   each rule keeps what it says, and the newest version stays whatever the rules.
    /// Method: five versions under each rule.
    #[test]
    fn rules_keep_what_they_say() {
        let mut timeline = Timeline::default();
        assert_eq!(kept(ONLY_NEWEST, "vvvvv", &timeline), "k....");
        assert_eq!(kept(Retention { keep_last: 3, ..ONLY_NEWEST }, "vvvvv", &timeline), "kkk..");
        assert_eq!(kept(Retention { keep_since_ns: Some(40), ..ONLY_NEWEST }, "vvvvv", &timeline), "kk...");
        assert_eq!(kept(Retention { keep_internal: true, ..ONLY_NEWEST }, "vvvvv", &timeline), "k.k.k");
        timeline.carry_out(Command::Snapshot, Stamp { sequence: 3, time_ns: 0 }).expect("few snapshots");
        assert_eq!(kept(ONLY_NEWEST, "vvvvv", &timeline), "k....");
        assert_eq!(kept(Retention { keep_snapshots: true, ..ONLY_NEWEST }, "vvvvv", &timeline), "k..k.");
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

    /// Goal:   a tombstone goes with the last version that it hides, and stays while a rule or an older version wants it.
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
    }
}
