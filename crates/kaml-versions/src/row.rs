//! A row: the versions of some keys, in the page buffer and in a chain of segments.
//!
//! Lives here:       putting a version into the buffer, when the row is full, what joins which group.
//! Lives elsewhere:  all rows together (`columns`), how a segment is made (`seal`, `bloom`).
//! Implements:       paper:Muninn 4.2.1; docs/versioned.md "Placement", "The paper's index".
//!
//! With retrieval tables versions find their pages when they are sealed, all at once. With the paper's filters each finds its
//! page when it is put, and the row is full when one finds none.

use crate::bloom::Open;
use crate::buffer::BufferRow;
use crate::group::{Group, Segment};
use crate::hash::KeyHash;
use crate::parameters::{Index, Parameters};
use crate::seal::{Room, Sealed, Table, seal};
use kaml_index::Key;
use std::collections::BTreeSet;
use std::ops::Range;

/// A row fuller than this, in quarters of a segment, is sealed even while the buffer has room: a hot key must not fill
/// it.
const ROW_QUARTERS_MAX: usize = 5;

/// A chain of segments and what will be in its next ones.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) buffer: BufferRow,
    /// Oldest first.
    pub(crate) groups: Vec<Group>,
    /// All versions that were ever in segments have sequences before this.
    pub(crate) sealed_end: u64,
    /// With the paper's index: the segment that is being filled.
    open: Option<Box<Open>>,
}

impl Row {
    /// An empty row, its first segment for the `number`-th table of filters.
    pub(crate) fn new(parameters: &Parameters, number: u32) -> Row {
        let mut row = Row::default();
        row.reopen(parameters, number);
        row
    }

    /// Adds the newest version of a key.
    pub(crate) fn insert(&mut self, hash: KeyHash, key: &Key, record: Box<[u8]>, parameters: &Parameters) {
        self.buffer.push(hash, key, record);
        self.fill(parameters);
    }

    /// Whether it should be sealed even if the buffer has room.
    pub(crate) fn is_full(&self, parameters: &Parameters) -> bool {
        match &self.open {
            Some(open) => open.is_full(&self.buffer),
            None => self.buffer.bytes() > parameters.segment_bytes() * ROW_QUARTERS_MAX / 4,
        }
    }

    /// A segment full of its versions, which are kept in the buffer; nothing if it is empty. Its table suits `room`.
    pub(crate) fn seal(&self, index: u32, parameters: &Parameters, room: Room) -> Option<Sealed> {
        match (&parameters.index, &self.open) {
            (Index::Columns(shape), _) => seal(index, &self.buffer, parameters, *shape, room),
            (Index::Bloom(_), open) => open.as_ref()?.seal(index, &self.buffer, parameters),
        }
    }

    /// Removes the versions of a sealed segment from the buffer; the next segment is for the `number`-th table of filters.
    pub(crate) fn leave(&mut self, sealed: &Sealed, parameters: &Parameters, number: u32) {
        self.buffer.remove(&sealed.leaves);
        self.reopen(parameters, number);
    }

    /// Begins the segment that is filled again.
    pub(crate) fn reopen(&mut self, parameters: &Parameters, number: u32) {
        if let Index::Bloom(bloom) = &parameters.index {
            self.open = Some(Box::new(Open::new(parameters, bloom, number)));
            self.fill(parameters);
        }
    }

    fn fill(&mut self, parameters: &Parameters) {
        if let (Index::Bloom(bloom), Some(open)) = (&parameters.index, &mut self.open) {
            open.fill(&self.buffer, parameters, bloom);
        }
    }

    /// What the table of the next segment should be like.
    pub(crate) fn room(&self) -> Room {
        self.groups.last().map_or(Room::New, Group::room)
    }

    /// The table of filters that the next segment is for.
    pub(crate) fn next_table(&self) -> u32 {
        self.groups.last().map_or(0, |group| group.table_numbers().1)
    }

    pub(crate) fn group_bytes(&self) -> usize {
        self.groups.iter().map(Group::memory_bytes).sum()
    }

    /// Adds the newest segment, to the open group if that has tables like it.
    pub(crate) fn push(&mut self, segment: Segment, table: &Table, parameters: &Parameters) {
        if !self.groups.last().is_some_and(|group| group.takes(table)) {
            self.groups.push(Group::new(table, parameters));
        }
        self.groups.last_mut().expect("one at least").push(segment, table);
    }

    /// Puts new groups in place of some segments, joined with their neighbours where that is possible; returns the segments that were
    /// there.
    pub(crate) fn splice(&mut self, segments: &Range<usize>, new: Vec<Group>) -> Vec<Segment> {
        let (mut before, mut after, mut old, mut at) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for group in std::mem::take(&mut self.groups) {
            let (begin, len) = (at, group.segments.len());
            at += len;
            let (first, end) = (segments.start.clamp(begin, at) - begin, segments.end.clamp(begin, at) - begin);
            old.extend(&group.segments[first..end]);
            match (first, end) {
                (first, _) if first == len => before.push(group),
                (_, 0) => after.push(group),
                (first, end) => {
                    before.extend((first > 0).then(|| group.slice(0..first)));
                    after.extend((end < len).then(|| group.slice(end..len)));
                }
            }
        }
        self.groups = before;
        for group in new.into_iter().chain(after) {
            if !self.groups.last_mut().is_some_and(|last| last.append(&group)) {
                self.groups.push(group);
            }
        }
        old
    }

    /// What the table of a segment that follows the first `segments` should be like, and the number of the table of filters there.
    pub(crate) fn room_after(&self, segments: usize) -> (Room, u32) {
        let (mut at, mut room) = (0, Room::New);
        for group in &self.groups {
            if at == segments {
                return (room, group.table_numbers().0);
            }
            at += group.segments.len();
            if at > segments {
                return (group.room_below(segments + group.segments.len() - at), group.table_numbers().0);
            }
            room = group.room();
        }
        (room, self.next_table())
    }

    /// Removes versions with these sequences from the buffer. They count as sealed for those that compare sequences.
    pub(crate) fn drop_buffered(&mut self, sequences: &BTreeSet<u64>, parameters: &Parameters, number: u32) -> u64 {
        let leaves: Vec<bool> = self.buffer.entries().iter().map(|e| sequences.contains(&e.sequence())).collect();
        let last = self.buffer.entries().iter().zip(&leaves).filter(|(_, leaves)| **leaves).map(|(e, _)| e.sequence());
        let Some(last) = last.max() else { return 0 };
        self.note_sealed(&(last..last + 1));
        self.buffer.remove(&leaves);
        self.reopen(parameters, number);
        leaves.into_iter().map(u64::from).sum()
    }

    /// Versions with these sequences are in segments.
    pub(crate) fn note_sealed(&mut self, sequences: &Range<u64>) {
        self.sealed_end = self.sealed_end.max(sequences.end);
    }

    /// A newer version of a key is sealed: the one before it, if there is one, is no longer the newest. Answered from
    /// memory, so it is wrong as often as a search reads a page in vain.
    pub(crate) fn outlive(&mut self, key: KeyHash) {
        for group in self.groups.iter_mut().rev() {
            let mask = group.probe(key).mask();
            if mask != 0 {
                let segment = &mut group.segments[63 - mask.leading_zeros() as usize];
                segment.live = segment.live.saturating_sub(1);
                return;
            }
        }
    }
}
