//! Merges that a namespace allows when space runs low.
//!
//! Lives here:       what a namespace allows, when space is low, which namespace is merged then, what waits for it and for how long.
//! Lives elsewhere:  the merge, which drivers execute step by step (`kaml`), what it keeps (`kaml_versions`).
//! Implements:       docs/versioned.md "When space runs low".
//!
//! A driver that executes such merges requests them with [`Core::take_low_merge`]. Puts wait for room only while one runs
//! on, so nobody waits where no driver asks.

use super::state::Ended;
use crate::command::{Body, Op};
use crate::core::Core;
use crate::namespace::Namespace;
use crate::space::{LowMerge, Purpose};
use kaml_index::Key;
use kaml_versions::{Kind, LargeValue, Place, Retention, Versions};

/// Space is low with this many sixteenths of the capacity in use; merges then rest while hosts use the device.
const LOW_SIXTEENTHS: u64 = 12;
/// With so many they do not.
const URGENT_SIXTEENTHS: u64 = 13;
/// A merge may gain that part of the capacity, and so much has been put since the last one ended.
const WORTH: u64 = 64;
/// Old versions are counted again after so many segments were sealed or released.
const COUNTED_SEGMENTS: u64 = 64;
/// A merge of old versions begins with at least so many segments in each row: fewer take little memory and space.
const SEGMENTS_PER_ROW_MIN: u64 = 4;
/// After so long another merge is tried, because rules of age let go more by then.
const AGAIN_NS: u64 = 60_000_000_000;

impl Core {
    /// The namespace that should be merged because space is low, and what it keeps. A caller that takes this executes it and reports
    /// so with [`Core::end_low_merge`], whatever came of it, also if it is deleted meanwhile; Puts that find no room wait until then.
    pub fn take_low_merge(&mut self) -> Option<(u32, Retention)> {
        self.space.has_low_merges = true;
        if self.read_only || self.stopped().is_some() || self.space.low_merge.is_some() {
            return None;
        }
        if let Some(wanted) = self.space.low_merge_wanted.take()
            && let Some(id) = self.most_promising(wanted)
        {
            return self.begin_low_merge(id, true);
        }
        if !self.is_filled(LOW_SIXTEENTHS) {
            return self.take_merge_of_old();
        }
        let due = self.version_spaces().filter(|(_, space)| self.low_merge_is_due(space));
        let gains: Vec<(u64, u32)> = due.map(|(id, space)| (self.low_merge_gain(space), id)).collect();
        let (gain, id) = gains.iter().copied().max()?;
        if gain < self.worth() {
            // Counting what may go takes a while: not with every step.
            for (_, id) in gains {
                let before = self.spaces[&id].versioned.as_ref().and_then(|versioned| versioned.low_merge_ended);
                self.note_low_merge(id, before.unwrap_or_default());
            }
            return None;
        }
        if self.snapshots.make_room() {
            return None; // before versions go, snapshots of the device do
        }
        self.begin_low_merge(id, false)
    }

    fn begin_low_merge(&mut self, namespace: u32, is_awaited: bool) -> Option<(u32, Retention)> {
        let versioned = self.spaces[&namespace].versioned.as_ref()?;
        let (deletes, released_chunks) = (versioned.deletes, versioned.released_chunks);
        let policy = versioned.merge_when_low?;
        self.space.low_merge = Some(LowMerge { namespace, is_awaited, deletes, released_chunks });
        Some((namespace, policy.retention(self.time_ns)))
    }

    /// The merge of [`Core::take_low_merge`] is over.
    pub fn end_low_merge(&mut self) {
        let Some(LowMerge { namespace: id, deletes, released_chunks, .. }) = self.space.low_merge.take() else {
            return;
        };
        self.space.no_merge_at.set(None);
        let Some(space) = self.spaces.get_mut(&id) else { return };
        let old = old_and_newest(space).map_or(0, |(old, _)| old);
        let Some(versioned) = &mut space.versioned else { return };
        let released_chunks = versioned.released_chunks - released_chunks;
        // What was deleted since it began is not among what it left.
        let ended = Ended { old, deletes: versioned.deletes, ..Ended::default() };
        versioned.low_merge_ended = Some(ended);
        let left_chunks = self.low_merge_gain(&self.spaces[&id]);
        self.note_low_merge(id, Ended { deletes, left_chunks, released_chunks, ..ended });
    }

    /// Whether a command of a host that would be refused can wait for a merge: one is in progress, or one that the driver begins with its next
    /// step may release enough. If that one releases too little, the next call returns false.
    pub(crate) fn merge_makes_room(&self, purpose: Purpose) -> bool {
        let is_change = match purpose {
            Purpose::Put | Purpose::Large | Purpose::Timeline => false,
            Purpose::Overwrite | Purpose::Tombstone => true,
            _ => return false,
        };
        let is_asleep = self.read_only || self.is_closing || self.stopped().is_some();
        if !self.space.has_low_merges || is_asleep {
            return false;
        }
        if self.space.low_merge.is_some() {
            return true;
        }
        // What is refused again and again should not count versions each time.
        let (live_chunks, deletes) = (self.log.blocks.live_chunks(), self.log.counters.deletes);
        let is_as_before = |(live, deleted): (u64, u64)| {
            let few = if is_change { 0 } else { COUNTED_SEGMENTS };
            live.abs_diff(live_chunks) <= few && deletes - deleted <= few
        };
        if self.space.no_merge_at.get().is_some_and(is_as_before) {
            return false;
        }
        // Changes of what exists have room beyond the capacity: where that is used up, whatever a merge releases is worth it.
        let wanted = if is_change { 1 } else { self.worth() };
        let is_found = self.most_promising(wanted).is_some();
        match is_found {
            true => {
                let other = self.space.low_merge_wanted.get();
                self.space.low_merge_wanted.set(Some(other.map_or(wanted, |other| other.min(wanted))));
            }
            false => self.space.no_merge_at.set(Some((live_chunks, deletes))),
        }
        is_found
    }

    /// The namespace whose merge releases most, of those that may release so many chunks. What the last merge could not release does not count,
    /// unless it released as much as that.
    fn most_promising(&self, wanted: u64) -> Option<u32> {
        let promising = self.version_spaces().filter_map(|(id, space)| {
            let versioned = space.versioned.as_ref().filter(|versioned| versioned.merge_when_low.is_some())?;
            let in_vain = versioned.low_merge_ended.filter(|ended| ended.released_chunks < wanted);
            let left = in_vain.map_or(0, |ended| ended.left_chunks);
            let gain = self.low_merge_gain(space).saturating_sub(left);
            (gain >= wanted).then_some((gain, id))
        });
        promising.max().map(|(_, id)| id)
    }

    /// Whether these commands only replace or delete what exists, as far as memory shows, where old versions have no use.
    #[cold]
    pub(crate) fn are_overwrites(&self, ops: &[Op<'_>]) -> bool {
        ops.iter().all(|op| matches!(op.body, Body::Delete) || self.is_overwrite(op.namespace, op.key.key()))
    }

    /// Whether a key exists, as far as memory shows, in a namespace that keeps only newest versions.
    pub(crate) fn is_overwrite(&self, namespace: u32, key: &Key) -> bool {
        let exists = |versions: &Versions| match versions.columns().search(key, u64::MAX).next() {
            Some(Place::Buffered(version, _)) => version.kind != Kind::Tombstone,
            Some(Place::Page(_)) => true,
            None => false,
        };
        let space = self.spaces.get(&namespace).filter(|space| space.keeps_newest_only());
        space.and_then(|space| space.with_versions(exists)).unwrap_or(false)
    }

    /// Whether a namespace keeps only the newest version of each key.
    pub fn keeps_newest_only(&self, namespace: u32) -> bool {
        self.spaces.get(&namespace).is_some_and(Namespace::keeps_newest_only)
    }

    /// Segments and large values were released.
    pub(crate) fn note_released(&mut self, namespace: u32, chunks: u64, large: &[LargeValue]) {
        let chunk_bytes = u64::from(self.log.geometry.chunk_bytes);
        let large_chunks: u64 = large.iter().map(|value| u64::from(value.bytes) / chunk_bytes).sum();
        self.versioned_mut(namespace).released_chunks += chunks + large_chunks;
    }

    /// A namespace that keeps only newest versions and has as many old ones, and what it keeps: with more its index would outgrow what it
    /// promises, and space would run low for no use.
    fn take_merge_of_old(&mut self) -> Option<(u32, Retention)> {
        if !self.catalog.keeps_versions {
            return None;
        }
        let (live_chunks, step) = (self.log.blocks.live_chunks(), self.worth());
        let chunk_bytes = u64::from(self.log.geometry.chunk_bytes);
        for (id, space) in &mut self.spaces {
            let Some(versioned) = &mut space.versioned else { continue };
            if !versioned.merge_when_low.is_some_and(|policy| policy.newest_only) {
                continue;
            }
            // Counting takes a while: after every part of a row or so.
            let segment = space.layout.versions().map_or(0, |parameters| parameters.segment_bytes() as u64);
            let counts_again = (segment * COUNTED_SEGMENTS / chunk_bytes).min(step);
            if versioned.counted_at.is_some_and(|counted| live_chunks.abs_diff(counted) < counts_again) {
                continue;
            }
            versioned.counted_at = Some(live_chunks);
            let left = versioned.low_merge_ended.map_or(0, |ended| ended.old);
            if old_and_newest(space).is_some_and(|(old, newest)| is_half_old(space, old, newest, left)) {
                let id = *id;
                return self.begin_low_merge(id, false);
            }
        }
        None
    }

    /// Whether so little space is left that merges should not rest for the sake of hosts.
    pub fn is_nearly_full(&self) -> bool {
        self.is_filled(URGENT_SIXTEENTHS)
    }

    /// Chunks that make another merge worth it: at least one, or a device whose page buffers take all of its capacity would merge
    /// forever.
    fn worth(&self) -> u64 {
        (self.space.sizes.capacity_chunks / WORTH).max(1)
    }

    /// Notes when a namespace was merged, or would have been if that were worth it.
    fn note_low_merge(&mut self, id: u32, ended: Ended) {
        let (live_chunks, time_ns) = (self.log.blocks.live_chunks(), self.time_ns);
        let Some(space) = self.spaces.get_mut(&id) else { return };
        let sealed = old_and_newest(space).map_or(0, |(old, newest)| old + newest);
        let Some(versioned) = &mut space.versioned else { return };
        let due_deletes = versioned.deletes + (sealed / WORTH).max(1);
        versioned.low_merge_ended = Some(Ended { live_chunks, time_ns, due_deletes, ..ended });
    }

    fn low_merge_is_due(&self, space: &Namespace) -> bool {
        let Some(versioned) = space.versioned.as_ref().filter(|versioned| versioned.merge_when_low.is_some()) else {
            return false;
        };
        versioned.low_merge_ended.is_none_or(|ended| {
            let is_fuller = self.log.blocks.live_chunks() >= ended.live_chunks + self.worth();
            is_fuller || versioned.deletes >= ended.due_deletes || self.time_ns.abs_diff(ended.time_ns) >= AGAIN_NS
        })
    }

    /// Chunks that versions take which are not the newest of their keys, as far as memory shows: at most that can be dropped. Each delete since
    /// the last merge has made a version old, maybe one in a segment that does not know of it.
    fn low_merge_gain(&self, space: &Namespace) -> u64 {
        let versioned = space.versioned.as_ref();
        let (ended, deletes) = versioned.map_or((None, 0), |versioned| (versioned.low_merge_ended, versioned.deletes));
        let deleted = deletes - ended.map_or(0, |ended| ended.deletes);
        let estimate = space.with_versions(|versions| {
            let columns = versions.columns();
            let (sealed, live) = columns.live_estimate();
            let bytes = columns.segment_count() * columns.parameters().segment_bytes() as u64;
            let old = (sealed - live).max(deleted).min(sealed);
            bytes / u64::from(self.log.geometry.chunk_bytes) * old / sealed.max(1)
        });
        let known = ended.filter(|_| space.keeps_newest_only()).map(|ended| ended.left_chunks);
        match (estimate, known) {
            (Some(chunks), _) => chunks + self.dead_large_estimate(space),
            // Nobody has used it since then.
            (None, Some(chunks)) => chunks,
            // Nobody has used it since the device was opened, or rules of age let more go by now: only a merge can determine.
            (None, None) => self.space.sizes.capacity_chunks,
        }
    }
}

impl Namespace {
    /// Whether it keeps only the newest version of each key.
    pub(crate) fn keeps_newest_only(&self) -> bool {
        let policy = self.versioned.as_ref().and_then(|versioned| versioned.merge_when_low);
        policy.is_some_and(|policy| policy.newest_only)
    }
}

/// Versions in segments that are not the newest of their key, and those that are, as far as memory shows.
fn old_and_newest(space: &Namespace) -> Option<(u64, u64)> {
    space.with_versions(|versions| {
        let (sealed, newest) = versions.columns().live_estimate();
        (sealed - newest, newest)
    })
}

/// Whether at least half of the versions in segments can be dropped, and at least a few segments of each row. Those that the last merge left,
/// because snapshots see them, count as newest ones.
fn is_half_old(space: &Namespace, old: u64, newest: u64, left: u64) -> bool {
    let left = left.min(old);
    let segments_per_row = space.with_versions(|versions| {
        let columns = versions.columns();
        columns.segment_count() / u64::from(columns.parameters().rows)
    });
    old - left >= newest + left && segments_per_row.is_some_and(|count| count >= SEGMENTS_PER_ROW_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::StageError;
    use crate::format::record::DIRECT_BYTES;
    use crate::image::{encode_image, image_bytes};
    use crate::namespace::NamespaceOptions;
    use crate::space::HELD_SIXTEENTHS;
    use crate::versioned::merge_policy::MergePolicy;
    use crate::versioned::state::VersionOptions;
    use kaml_flash::AlignedBuf;

    /// Goal:   large values whose Puts are not committed yet count as taken: with them space is low, and they leave a merge its room.
    /// Method: a merge is marked as running; large values are placed and not put, until one has to wait.
    #[test]
    fn large_values_on_their_way_count() {
        let medium = crate::small::formatted();
        let (mut core, _) = Core::open(&medium).unwrap();
        let records = core.create_namespace("records", &NamespaceOptions::default()).unwrap();
        let allows = VersionOptions { merge_when_low: Some(MergePolicy::default()), ..VersionOptions::default() };
        let versions = core.create_namespace("versions", &allows.into()).unwrap();
        let durable = core.request_root(false);
        core.drive(&medium, |core| core.roots_done() >= durable).unwrap();
        assert!(core.begin_low_merge(versions, false).is_some());
        let value = vec![7; DIRECT_BYTES];
        let refused = (0u64..).find_map(|key| {
            let buf = AlignedBuf::zeroed(image_bytes(&core.log.geometry, Key::from(key), value.len()));
            let value = (value.as_slice(), kaml_crc::crc32c(&value));
            let image = encode_image(&core.log.geometry, records, Key::from(key), value, core.last_sequence(), buf);
            let placed = core.place(records, Key::from(key), image);
            placed.map(|ticket| core.drive(&medium, |core| core.is_placed(ticket)).unwrap()).err()
        });
        assert_eq!(refused, Some(StageError::Busy));
        assert!(core.is_nearly_full());
        let (taken, capacity) = (core.space.ticket_chunks, core.space.sizes.capacity_chunks);
        assert!(taken * 16 <= capacity * HELD_SIXTEENTHS, "{taken} of {capacity} chunks");
        core.end_low_merge();
    }
}
