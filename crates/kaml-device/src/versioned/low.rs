//! Merges that a namespace allows when space runs low.
//!
//! Lives here:       what a namespace allows, when space is low, which namespace is merged then, what waits for it.
//! Lives elsewhere:  the merge, which drivers execute step by step (`kaml`), what it keeps (`kaml_versions`).
//! Implements:       docs/versioned.md "When space runs low".
//!
//! A driver that executes such merges requests them with [`Core::take_low_merge`]. Puts wait for room only while one runs
//! on, so nobody waits where no driver asks.

use super::state::Ended;
use crate::core::Core;
use crate::namespace::Namespace;
use kaml_versions::Retention;

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
        if self.read_only || self.stopped().is_some() || self.space.low_merge.is_some() {
            return None;
        }
        if !self.is_filled(LOW_SIXTEENTHS) {
            return self.take_merge_of_old();
        }
        let due = self.version_spaces().filter(|(_, space)| self.low_merge_is_due(space));
        let gains: Vec<(u64, u32)> = due.map(|(id, space)| (self.low_merge_gain(space), id)).collect();
        let (gain, id) = gains.iter().copied().max()?;
        let (ended, now_ns) = (self.ended(), self.time_ns);
        if gain < self.worth() {
            // Counting what may go takes a while: not with every step.
            gains.into_iter().for_each(|(_, id)| self.note_low_merge(id, ended));
            return None;
        }
        let policy = self.spaces[&id].versioned.as_ref().and_then(|versioned| versioned.merge_when_low);
        if self.snapshots.make_room() {
            return None; // before versions go, snapshots of the device do
        }
        self.space.low_merge = Some(id);
        policy.map(|policy| (id, policy.retention(now_ns)))
    }

    /// The merge of [`Core::take_low_merge`] is over.
    pub fn end_low_merge(&mut self) {
        if let Some(id) = self.space.low_merge.take() {
            let old = self.spaces.get(&id).and_then(old_and_newest).map_or(0, |(old, _)| old);
            let ended = Ended { old, ..self.ended() };
            self.note_low_merge(id, ended);
        }
    }

    /// A namespace that keeps only newest versions and has as many old ones, and what it keeps: with more its index would outgrow what it
    /// promises, and space would run low for no use.
    fn take_merge_of_old(&mut self) -> Option<(u32, Retention)> {
        if !self.catalog.keeps_versions {
            return None;
        }
        let (live_chunks, step) = (self.log.blocks.live_chunks(), self.worth());
        let (chunk_bytes, now_ns) = (u64::from(self.log.geometry.chunk_bytes), self.time_ns);
        for (id, space) in &mut self.spaces {
            let Some(versioned) = &mut space.versioned else { continue };
            let Some(policy) = versioned.merge_when_low.filter(|policy| policy.newest_only) else { continue };
            // Counting takes a while: after every part of a row or so.
            let segment = space.layout.versions().map_or(0, |parameters| parameters.segment_bytes() as u64);
            let counts_again = (segment * COUNTED_SEGMENTS / chunk_bytes).min(step);
            if versioned.counted_at.is_some_and(|counted| live_chunks.abs_diff(counted) < counts_again) {
                continue;
            }
            versioned.counted_at = Some(live_chunks);
            let left = versioned.low_merge_ended.map_or(0, |ended| ended.old);
            if old_and_newest(space).is_some_and(|(old, newest)| is_half_old(space, old, newest, left)) {
                self.space.low_merge = Some(*id);
                return Some((*id, policy.retention(now_ns)));
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

    fn ended(&self) -> Ended {
        Ended { live_chunks: self.log.blocks.live_chunks(), time_ns: self.time_ns, old: 0 }
    }

    fn note_low_merge(&mut self, id: u32, ended: Ended) {
        if let Some(versioned) = self.spaces.get_mut(&id).and_then(|space| space.versioned.as_mut()) {
            versioned.low_merge_ended = Some(ended);
        }
    }

    fn low_merge_is_due(&self, space: &Namespace) -> bool {
        let Some(versioned) = space.versioned.as_ref().filter(|versioned| versioned.merge_when_low.is_some()) else {
            return false;
        };
        versioned.low_merge_ended.is_none_or(|ended| {
            let is_fuller = self.log.blocks.live_chunks() >= ended.live_chunks + self.worth();
            is_fuller || self.time_ns.abs_diff(ended.time_ns) >= AGAIN_NS
        })
    }

    /// Chunks that versions take which are not the newest of their keys, as far as memory shows: at most that can be dropped.
    fn low_merge_gain(&self, space: &Namespace) -> u64 {
        let estimate = space.with_versions(|versions| {
            let columns = versions.columns();
            let (sealed, live) = columns.live_estimate();
            let bytes = columns.segment_count() * columns.parameters().segment_bytes() as u64;
            bytes / u64::from(self.log.geometry.chunk_bytes) * (sealed - live) / sealed.max(1)
        });
        // Nobody has used it since the device was opened: only a merge can determine.
        estimate.map_or(self.space.sizes.capacity_chunks, |chunks| chunks + self.dead_large_estimate(space))
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
    use crate::versioned::state::VersionOptions;
    use kaml_flash::AlignedBuf;
    use kaml_index::Key;

    /// Goal:   large values whose Puts are not committed yet count as taken: with them space is low, and they leave a merge its room.
    /// Method: a merge is marked as running; large values are placed and not put, until one has to wait.
    #[test]
    fn large_values_on_their_way_count() {
        let medium = crate::small::formatted();
        let (mut core, _) = Core::open(&medium).unwrap();
        let records = core.create_namespace("records", &NamespaceOptions::default()).unwrap();
        let versions = core.create_namespace("versions", &VersionOptions::default().into()).unwrap();
        let durable = core.request_root(false);
        core.drive(&medium, |core| core.roots_done() >= durable).unwrap();
        core.space.low_merge = Some(versions);
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
