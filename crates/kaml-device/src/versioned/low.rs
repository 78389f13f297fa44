//! Merges that a namespace allows when space runs low.
//!
//! Lives here:       what a namespace allows, when space is low, which namespace is merged then, who waits for it.
//! Lives elsewhere:  the merge, which drivers carry out step by step (`kaml`), what it keeps (`kaml_versions`).
//! Implements:       docs/versioned.md "When space runs low".
//!
//! A driver that carries out such merges asks for them with [`Core::take_low_merge`]. Puts wait for room only while one goes
//! on, so nobody waits where no driver asks.

use crate::core::Core;
use crate::namespace::Namespace;
use kaml_versions::Retention;

/// What may go when space runs low. The newest version of each key stays, and what snapshots see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MergePolicy {
    /// So many of the newest versions of each key stay; 0 counts as 1.
    pub keep_last: u32,
    /// Everything put in so many nanoseconds before the merge stays; 0: no such rule.
    pub keep_for_ns: u64,
    /// The newest version of each key among those that were put around the same time stays.
    pub keep_internal: bool,
}

impl MergePolicy {
    /// The rules of a merge that begins at this time, in nanoseconds since 1970.
    fn retention(&self, now_ns: u64) -> Retention {
        Retention {
            keep_last: self.keep_last,
            keep_since_ns: (self.keep_for_ns > 0).then(|| now_ns.saturating_sub(self.keep_for_ns)),
            keep_snapshots: true,
            keep_internal: self.keep_internal,
        }
    }
}

/// How the last merge for lack of space ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    live_chunks: u64,
    time_ns: u64,
}

/// Space is low with so many sixteenths of the capacity in use; merges then rest while hosts use the device.
const LOW_SIXTEENTHS: u64 = 12;
/// With so many they do not.
const URGENT_SIXTEENTHS: u64 = 13;
/// With so many Puts wait until the merge is over: it writes new segments of a row before it gives the old ones back.
const HELD_SIXTEENTHS: u64 = 14;
/// A merge may gain that part of the capacity, and so much has been put since the last one ended.
const WORTH: u64 = 64;
/// After so long another merge is tried, because rules of age let go more by then.
const AGAIN_NS: u64 = 60_000_000_000;

impl Core {
    /// The namespace that should be merged because space is low, and what it keeps. Whoever takes this carries it out and says
    /// so with [`Core::end_low_merge`], whatever came of it, also if it is deleted meanwhile; Puts that find no room wait until then.
    pub fn take_low_merge(&mut self) -> Option<(u32, Retention)> {
        if self.read_only || self.stopped().is_some() || !self.is_low(LOW_SIXTEENTHS) || self.low_merge.is_some() {
            return None;
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
        self.low_merge = Some(id);
        policy.map(|policy| (id, policy.retention(now_ns)))
    }

    /// The merge of [`Core::take_low_merge`] is over.
    pub fn end_low_merge(&mut self) {
        if let Some(id) = self.low_merge.take() {
            let ended = self.ended();
            self.note_low_merge(id, ended);
        }
    }

    /// Whether so little space is left that merges should not rest for the sake of hosts.
    pub fn is_nearly_full(&self) -> bool {
        self.is_low(URGENT_SIXTEENTHS)
    }

    /// Whether Puts of so many chunks wait for the merge that goes on.
    pub(crate) fn low_merge_holds(&self, chunks: u64) -> bool {
        self.low_merge.is_some() && (self.taken_chunks() + chunks) * 16 > self.capacity_cached * HELD_SIXTEENTHS
    }

    fn is_low(&self, sixteenths: u64) -> bool {
        self.taken_chunks() * 16 > self.capacity_cached * sixteenths
    }

    /// Chunks that make another merge worth it: at least one, or a device whose page buffers take all of its capacity would merge
    /// for ever.
    fn worth(&self) -> u64 {
        (self.capacity_cached / WORTH).max(1)
    }

    fn ended(&self) -> Ended {
        Ended { live_chunks: self.blocks.live_chunks(), time_ns: self.time_ns }
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
            let is_fuller = self.blocks.live_chunks() >= ended.live_chunks + self.worth();
            is_fuller || self.time_ns.abs_diff(ended.time_ns) >= AGAIN_NS
        })
    }

    /// Chunks that versions take which are not the newest of their keys, as far as memory tells: at most that may go.
    fn low_merge_gain(&self, space: &Namespace) -> u64 {
        let estimate = space.with_versions(|versions| {
            let columns = versions.columns();
            let (sealed, live) = columns.live_estimate();
            let bytes = columns.segment_count() * columns.parameters().segment_bytes() as u64;
            bytes / u64::from(self.geometry.chunk_bytes) * (sealed - live) / sealed.max(1)
        });
        // Nobody has used it since the device was opened: only a merge can tell.
        estimate.unwrap_or(self.capacity_cached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{encode_image, image_bytes};
    use crate::namespace::NamespaceOptions;
    use crate::staging::{DIRECT_BYTES, StageError};
    use crate::versioned::VersionOptions;
    use kaml_flash::AlignedBuf;
    use kaml_index::Key;

    /// Goal:   large values whose Puts are not committed yet count as taken: with them space is low, and they leave a merge its room.
    /// Method: a merge is said to go on; large values are placed and not put, until one has to wait.
    #[test]
    fn large_values_on_their_way_count() {
        let medium = crate::small::formatted();
        let (mut core, _) = Core::open(&medium).unwrap();
        let records = core.create_namespace("records", &NamespaceOptions::default()).unwrap();
        let versions = core.create_namespace("versions", &VersionOptions::default().into()).unwrap();
        let durable = core.request_root(false);
        core.drive(&medium, |core| core.roots_done() >= durable).unwrap();
        core.low_merge = Some(versions);
        let value = vec![7; DIRECT_BYTES];
        let refused = (0u64..).find_map(|key| {
            let buf = AlignedBuf::zeroed(image_bytes(&core.geometry, value.len()));
            let value = (value.as_slice(), crc_fast::crc32_iscsi(&value));
            let image = encode_image(&core.geometry, records, Key::from(key), value, core.last_sequence(), buf);
            let placed = core.place(records, Key::from(key), image);
            placed.map(|ticket| core.drive(&medium, |core| core.is_placed(ticket)).unwrap()).err()
        });
        assert_eq!(refused, Some(StageError::Busy));
        assert!(core.is_nearly_full());
        let (taken, capacity) = (core.ticket_chunks, core.capacity_cached);
        assert!(taken * 16 <= capacity * HELD_SIXTEENTHS, "{taken} of {capacity} chunks");
        core.end_low_merge();
    }
}
