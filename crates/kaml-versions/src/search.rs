//! A key's versions, newest first.
//!
//! Lives here:       the order in which buffer and pages are looked at.
//! Lives elsewhere:  reading the pages (the caller), deciding whether a version is visible (`space`).
//! Implements:       paper:Muninn 4.3 (Figure 5).
//!
//! Within a segment, a key's versions have the ordinals 0, 1, 2 …, oldest first. Whoever finds ordinal 0 in memory asks
//! for 1, 2 … as well, until one is not there, and reads the last one first. A page that does not have the version it was
//! read for was read in vain; the search goes on.

use crate::Error;
use crate::buffer::NONE;
use crate::columns::Row;
use crate::group::{Group, Probe, SegmentAt};
use crate::hash::KeyHash;
use crate::record::{Version, find};
use kaml_index::Key;

/// A page that may hold a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The segment.
    pub at: SegmentAt,
    /// The page in it.
    pub page: u32,
    /// Which of the key's versions in that segment it would be.
    pub ordinal: u16,
}

impl Candidate {
    /// The version of `key` that the candidate's page was read for, if it is there with a sequence before `before`.
    pub(crate) fn check<'p>(
        &self,
        key: &Key,
        before: u64,
        page: &'p [u8],
    ) -> Result<Option<(Version, &'p [u8])>, Error> {
        let found = find(page, key, self.ordinal)?;
        Ok(found.filter(|(version, _)| version.sequence < before))
    }
}

/// Where the next version is.
#[derive(Clone, Copy, Debug)]
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
    /// Of the group last probed: its answer for ordinal 0, and the segments not looked at.
    probe: Probe,
    /// Of the segment being looked at: its number, and the ordinals not looked at.
    run: Option<(u32, u16)>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(row: &'a Row, key: Key, hash: KeyHash, before: u64) -> Search<'a> {
        let buffered = row.buffer.newest(hash, &key);
        Search { row, key, hash, before, buffered, groups_left: row.groups.len(), probe: Probe::default(), run: None }
    }

    /// The next place to look at; nothing when there are no more.
    #[allow(clippy::should_implement_trait, reason = "an iterator would hide that the caller reads in between")]
    pub fn next(&mut self) -> Option<Place<'a>> {
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
            while self.probe.mask == 0 {
                self.groups_left = self.groups_left.checked_sub(1)?;
                self.probe = self.row.groups[self.groups_left].probe(&self.hash.version(0));
            }
            let newest = 63 - self.probe.mask.leading_zeros();
            self.probe.mask &= !(1 << newest);
            let group = self.group();
            if group.segments[newest as usize].first_sequence() < self.before {
                self.run = Some((newest, self.ordinals(group, newest)));
            }
        }
    }

    fn group(&self) -> &'a Group {
        &self.row.groups[self.groups_left]
    }

    /// How many versions of the key a segment seems to have.
    fn ordinals(&self, group: &Group, segment: u32) -> u16 {
        let has = |ordinal: &u16| group.probe(&self.hash.version(*ordinal)).mask >> segment & 1 == 1;
        1 + (1..u16::MAX).take_while(has).count() as u16
    }

    fn next_of_run(&mut self) -> Option<Candidate> {
        let (segment, left) = self.run?;
        let ordinal = left - 1;
        self.run = (ordinal > 0).then_some((segment, ordinal));
        let group = self.group();
        let hash = self.hash.version(ordinal);
        // Ordinal 0 is still in the last probe.
        let choice = if ordinal == 0 { self.probe.choice(segment) } else { group.probe(&hash).choice(segment) };
        let segment = &group.segments[segment as usize];
        Some(Candidate { at: segment.at(), page: hash.page(choice, segment.hashed_pages()), ordinal })
    }

    /// The version that a candidate's page was read for, if it is there and old enough.
    pub fn check<'p>(&self, candidate: &Candidate, page: &'p [u8]) -> Result<Option<(Version, &'p [u8])>, Error> {
        candidate.check(&self.key, self.before, page)
    }
}
