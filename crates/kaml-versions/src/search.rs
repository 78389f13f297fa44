//! A key's versions, newest first.
//!
//! Lives here:       the order in which buffer and pages are looked at.
//! Lives elsewhere:  reading the pages (the caller), deciding whether a version is visible (`space`).
//! Implements:       paper:Muninn 4.3 (Figure 5).
//!
//! Within a segment, a key's versions have ordinals, older ones smaller ones, and memory shows which there seem to be; the
//! last one is read first. A page that does not have the version it was read for was read in vain; the search continues.

use crate::Error;
use crate::buffer::NONE;
use crate::group::{Group, Ordinals, Probe, SegmentAt};
use crate::hash::KeyHash;
use crate::record::{Version, records_among};
use crate::row::Row;
use kaml_index::Key;
use std::collections::BTreeMap;
use std::ops::Range;

/// How far a search that was broken off had come in segments: the ordinal looked at last, below which it continues. A segment is
/// known by its address and its first sequence, for others may come to lie where it was.
pub(crate) type Passed = BTreeMap<(SegmentAt, u64), u16>;

/// A page that may hold a version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The segment.
    pub at: SegmentAt,
    /// All its versions' sequences are in this range.
    pub sequences: Range<u64>,
    /// The page in it.
    pub page: u32,
    /// The ordinal that the version would bear.
    pub ordinal: u16,
}

impl Candidate {
    /// The version of `key` that the candidate's page was read for, if it exists with a sequence before `before`.
    pub(crate) fn check<'p>(
        &self,
        key: &Key,
        before: u64,
        page: &'p [u8],
    ) -> Result<Option<(Version, &'p [u8])>, Error> {
        Ok(self.find(key, page)?.filter(|(version, _)| version.sequence < before))
    }

    /// The version of `key` that the candidate's page was read for, if it exists.
    pub(crate) fn find<'p>(&self, key: &Key, page: &'p [u8]) -> Result<Option<(Version, &'p [u8])>, Error> {
        for record in records_among(page, &self.sequences) {
            let (version, bytes) = record?;
            if version.key == *key && version.ordinal == self.ordinal {
                return Ok(Some((version, bytes)));
            }
        }
        Ok(None)
    }

    /// The segment, and its first sequence: others may come to lie where it was.
    pub(crate) fn segment(&self) -> (SegmentAt, u64) {
        (self.at, self.sequences.start)
    }
}

/// Where the next version is.
#[derive(Clone, Debug)]
pub enum Place<'a> {
    /// In the buffer: here.
    Buffered(Version, &'a [u8]),
    /// Perhaps in this page.
    Page(Candidate),
}

/// A search in progress.
#[derive(Clone, Debug)]
pub struct Search<'a> {
    row: &'a Row,
    key: Key,
    hash: KeyHash,
    before: u64,
    /// The next version in the buffer.
    buffered: u32,
    /// Groups not probed yet.
    groups_left: usize,
    /// Of the group last probed: its answer, and the segments not looked at.
    probe: Option<Probe>,
    segments_left: u64,
    /// Of the segment being looked at: its number, and the ordinals not looked at.
    run: Option<(u32, Ordinals)>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(row: &'a Row, key: Key, hash: KeyHash, before: u64) -> Search<'a> {
        let buffered = row.buffer.behind(hash, &key, before);
        let groups_left = row.groups.len();
        Search { row, key, hash, before, buffered, groups_left, probe: None, segments_left: 0, run: None }
    }

    /// The next place to look at; nothing when there are no more.
    #[allow(clippy::should_implement_trait, reason = "an iterator would hide that the caller reads in between")]
    pub fn next(&mut self) -> Option<Place<'a>> {
        self.next_beyond(&Passed::new())
    }

    /// The same, without what was passed in segments.
    pub(crate) fn next_beyond(&mut self, passed: &Passed) -> Option<Place<'a>> {
        while self.buffered != NONE {
            let entry = &self.row.buffer.entries()[self.buffered as usize];
            self.buffered = entry.older;
            let (version, record) = entry.read();
            if version.sequence < self.before {
                return Some(Place::Buffered(version, record));
            }
        }
        loop {
            if let Some(candidate) = self.next_of_run() {
                return Some(Place::Page(candidate));
            }
            while self.segments_left == 0 {
                self.groups_left = self.groups_left.checked_sub(1)?;
                let probe = self.group().probe(self.hash);
                self.segments_left = probe.mask();
                self.probe = Some(probe);
            }
            let newest = 63 - self.segments_left.leading_zeros();
            self.segments_left &= !(1 << newest);
            let group = self.group();
            let segment = &group.segments[newest as usize];
            let first = segment.sequences().start;
            if let Some(probe) = &self.probe
                && first < self.before
            {
                let below = passed.get(&(segment.at(), first)).copied();
                self.run = Some((newest, group.ordinals(probe, self.hash, newest, below)));
            }
        }
    }

    fn group(&self) -> &'a Group {
        &self.row.groups[self.groups_left]
    }

    fn next_of_run(&mut self) -> Option<Candidate> {
        let (segment, ordinals) = self.run.as_mut()?;
        let (segment, ordinal) = (*segment, ordinals.take_last());
        let (Some(ordinal), Some(probe)) = (ordinal, &self.probe) else {
            self.run = None;
            return None;
        };
        let group = self.group();
        let page = group.page(probe, self.hash, segment, ordinal);
        let segment = &group.segments[segment as usize];
        Some(Candidate { at: segment.at(), sequences: segment.sequences(), page, ordinal })
    }

    /// The version that a candidate's page was read for, if it exists and old enough.
    pub fn check<'p>(&self, candidate: &Candidate, page: &'p [u8]) -> Result<Option<(Version, &'p [u8])>, Error> {
        candidate.check(&self.key, self.before, page)
    }
}
