//! Kept versions: what lets the ring continue although somebody's version is still in the page buffer.
//!
//! Lives here:       when the buffer's older versions are written to metadata pages, and writing them; the directory.
//! Lives elsewhere:  what that frees (`roots`), reading it back (`open`).
//! Implements:       docs/versioned.md "In the device".
//!
//! A row is sealed about once while twice the buffer is put, so the oldest frames of a ring of four times the buffer are
//! nearly always empty of versions. The few that are left there when the ring is nearly used up, in a row that nobody
//! writes to, are kept. When the ring must be given up as a whole, before a clean close or after opening, the whole buffer
//! is.

use super::segments::entry_of;
use super::state::{Firsts, KeepJob, Versioned};
use crate::core::Core;
use crate::format::version::Directory;
use crate::namespace::Namespace;
use crate::space::Purpose;
use crate::stream::StreamWriter;
use std::collections::BTreeMap;
use std::sync::Arc;

/// With so many eighths of the ring in use, versions are kept that are so many eighths after its head.
const USED_EIGHTHS: u64 = 7;
const KEPT_EIGHTHS: u64 = 5;
/// The same while a frame finds no place: then the longest one and the remainder of its lap fit, whatever the frame that the tail
/// moves to.
const KEPT_EIGHTHS_BLOCKED: u64 = 4;

impl Core {
    /// One step of keeping versions, if that is due. Returns whether some are kept now.
    pub(crate) fn step_keep(&mut self) -> bool {
        if self.sealing.keep_job.is_none() {
            let wanted = self.version_spaces().find_map(|(id, space)| Some((id, self.keep_wanted(space)?)));
            let Some((id, before)) = wanted else { return false };
            if self.spaces[&id].versioned.as_ref().is_some_and(|versioned| !versioned.fresh.is_empty()) {
                return false;
            }
            self.sealing.keep_job = Some(self.capture(id, before));
            self.versioned_mut(id).kept_is_stale = false;
        }
        if !self.may_program(Purpose::Keep) {
            return false;
        }
        let mut job = self.sealing.keep_job.take().expect("just made");
        let is_written = self.write_stream(&mut job.out, true);
        match is_written {
            true => self.finish_keep(job),
            false => self.sealing.keep_job = Some(job),
        }
        is_written
    }

    /// Whether a segment of a namespace must not be sealed now: its versions are about to be kept.
    pub(crate) fn keep_waits_for(&self, id: u32) -> bool {
        self.sealing.keep_job.is_none() && self.keep_wanted(&self.spaces[&id]).is_some()
    }

    /// The sequence before which versions of a namespace should be kept, if there are any that are not.
    fn keep_wanted(&self, space: &Namespace) -> Option<u64> {
        let versioned = space.versioned.as_ref().expect("a versioned namespace");
        if versioned.is_restoring {
            return None; // what is inserted after it was captured would be taken for kept
        }
        let ring_bytes = self.log.geometry.ring_bytes;
        let behind = match self.log.ring.used_bytes() > ring_bytes / 8 * USED_EIGHTHS {
            _ if self.log.ring.is_blocked() => {
                self.log.ring.frame_at_least_behind(ring_bytes / 8 * KEPT_EIGHTHS_BLOCKED)
            }
            true => self.log.ring.frame_at_least_behind(ring_bytes / 8 * KEPT_EIGHTHS),
            false => 0,
        };
        let named = if self.blocks_are_wanted() { self.log.blocks.reclaimed_frame_max() + 1 } else { 0 };
        let asked = self.sealing.keep_until.map_or(0, |until| until + 1);
        let before = self.log.ring.version_before(behind.max(named)).max(asked);
        // What is staged is not in the buffer yet.
        let before = versioned.staged.front().map_or(before, |staged| before.min(staged.sequence()));
        if versioned.kept_is_lost || (versioned.kept_is_stale && space.is_loaded()) {
            return Some(before.max(versioned.kept_before));
        }
        if before <= versioned.kept_before {
            return None; // without asking all rows: this is asked with every step
        }
        let oldest = space.with_versions(|v| v.columns().oldest_buffered(versioned.kept_before)).flatten()?;
        (oldest < before).then_some(before)
    }

    fn capture(&self, namespace: u32, before: u64) -> KeepJob {
        let dropped = self.spaces[&namespace].versioned.as_ref().map_or(0, |versioned| versioned.dropped.captured());
        let mut job = KeepJob { namespace, before, first: BTreeMap::new(), dropped, out: StreamWriter::default() };
        self.spaces[&namespace].with_versions(|versions| {
            let columns = versions.columns();
            for (version, record) in columns.stragglers(before) {
                job.first.entry(columns.row_of(&version.key)).or_insert(version.sequence); // a row's are in order
                job.out.tail.extend_from_slice(record);
            }
        });
        job
    }

    fn finish_keep(&mut self, job: KeepJob) {
        let space = self.spaces.get_mut(&job.namespace).expect("deleted namespaces drop their job");
        let versioned = space.versioned.as_mut().expect("a versioned namespace");
        let kept = (job.out.stream.bytes > 0).then_some(job.out.stream);
        let old = std::mem::replace(&mut versioned.kept, kept);
        (versioned.kept_before, versioned.kept_first) = (job.before, Arc::new(job.first));
        versioned.kept_is_lost = false;
        versioned.dropped.kept_written(job.dropped);
        self.root_commit.retire(old.map(|stream| stream.runs).unwrap_or_default());
    }

    /// What the ring may wait for, for a person.
    pub(crate) fn versions_state(&self) -> Vec<String> {
        let state = |(id, space): (u32, &Namespace)| {
            let versioned = space.versioned.as_ref().expect("a versioned namespace");
            let Versioned { staged, fresh, sealed, kept_before, kept_is_lost, is_merging, .. } = &**versioned;
            let oldest = space.with_versions(|v| v.columns().oldest_buffered(*kept_before));
            format!(
                "namespace {id}: {} staged, fresh {fresh:?}, sealed {}, oldest buffered {oldest:?}, kept before {kept_before}, \
                 lost {kept_is_lost}, merging {is_merging}, has to keep {:?}, has to seal {}, needs frame {}",
                staged.len(),
                sealed.is_some(),
                self.keep_wanted(space),
                self.sealing.is_wanted,
                self.versions_frame_of(space),
            )
        };
        self.version_spaces().map(state).collect()
    }

    /// The smallest sequences of the kept streams that a root made now names.
    pub(crate) fn kept_firsts(&self) -> Vec<(u32, Firsts)> {
        let loaded = self.version_spaces().filter(|(_, space)| space.is_loaded());
        loaded.filter_map(|(id, space)| Some((id, space.versioned.as_ref()?.kept_first.clone()))).collect()
    }

    /// A root names these.
    pub(crate) fn kept_are_in_root(&mut self, firsts: &[(u32, Firsts)]) {
        for (id, first) in firsts {
            if let Some(versioned) = self.spaces.get_mut(id).and_then(|space| space.versioned.as_mut()) {
                versioned.kept_first_in_root = first.clone();
            }
        }
    }

    /// Whether versions that a request for a root covers are still needed in the ring.
    pub(crate) fn keeps_are_pending(&self) -> bool {
        let Some(until) = self.sealing.keep_until else { return false };
        self.version_spaces().any(|(_, space)| {
            let versioned = space.versioned.as_ref().expect("a versioned namespace");
            let oldest = space.with_versions(|v| v.columns().oldest_buffered(versioned.kept_before)).flatten();
            let is_fresh = versioned.fresh.iter().any(|fresh| fresh.first_sequence <= until);
            versioned.kept_is_lost
                || versioned.kept_is_stale
                || is_fresh
                || oldest.is_some_and(|oldest| oldest <= until)
        })
    }

    /// The kept streams of loaded namespaces went down with a block: they are written again.
    pub(crate) fn kept_lost(&mut self) {
        if let Some(job) = self.sealing.keep_job.take() {
            self.root_commit.retire(job.out.stream.runs);
        }
        for space in self.spaces.values_mut().filter(|space| space.is_loaded()) {
            if let Some(versioned) = &mut space.versioned {
                versioned.kept_is_lost |= versioned.kept.is_some();
            }
        }
    }

    /// Whether a stream must be written again before a root may be.
    pub(crate) fn kept_is_lost(&self) -> bool {
        self.spaces.values().filter_map(|space| space.versioned.as_ref()).any(|versioned| versioned.kept_is_lost)
    }
}

impl Namespace {
    /// The directory as the journal has it: without the segments that it does not name yet, the newest of their rows.
    pub(crate) fn encode_directory(&self, page_bytes: usize) -> Option<Vec<u8>> {
        let fresh = &self.versioned.as_ref()?.fresh;
        self.with_versions(|versions| {
            let columns = versions.columns();
            let row = |row: u32| {
                let skipped = fresh.iter().filter(|fresh| fresh.row == row).count();
                let count = columns.segments(row).count() - skipped;
                columns.segments(row).take(count).map(|segment| entry_of(&segment)).collect()
            };
            let rows = (0..columns.parameters().rows).map(row).collect();
            Directory { rows, timeline: versions.timeline().clone() }.encode(page_bytes)
        })
    }
}
