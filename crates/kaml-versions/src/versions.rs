//! A versioned namespace: puts, and reads of any of its versions.
//!
//! Lives here:       get as of, history, undo, diff, list.
//! Lives elsewhere:  what a snapshot sees (`timeline`), finding (`columns`), giving space back (`merge`).
//! Implements:       paper:Muninn 4.4; docs/versioned.md "Snapshots and rolling back".
//!
//! Reads go through [`Pages`], which the caller implements over whatever has the pages. Nothing else is asked of the
//! world: sequence and time come with each command.

use crate::columns::{Columns, SegmentInfo};
use crate::error::Error;
use crate::group::SegmentAt;
use crate::parameters::Parameters;
use crate::record::{Kind, Version, records};
use crate::search::{Place, Search};
use crate::timeline::{Timeline, View};
use kaml_index::Key;
use std::collections::BTreeMap;
use std::ops::Range;

/// Reads parts of segments.
pub trait Pages {
    /// Why it may fail.
    type Error: From<Error>;
    /// Reads bytes of a segment. A page of records is read as a whole, the value of an extent as it lies.
    fn read(&mut self, at: SegmentAt, bytes: Range<usize>) -> Result<&[u8], Self::Error>;
}

/// When a command happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Its place in the commit order of the device; larger than any before.
    pub sequence: u64,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
}

/// Which version of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// The newest.
    Latest,
    /// The newest that a snapshot sees.
    Snapshot(u32),
    /// So many versions before the newest; deletes count.
    Back(u32),
}

/// A version and its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The version.
    pub version: Version,
    /// Its value.
    pub value: Vec<u8>,
}

/// An entry of a key's history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Past {
    /// The version.
    pub version: Version,
    /// False if a rollback hid it.
    pub is_seen: bool,
}

/// How a key differs between two views.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// It is there in the second only.
    Added,
    /// It is there in the first only.
    Removed,
    /// Both have it, in different versions.
    Changed,
}

/// A version found by a walk, and where its value is.
enum Found<'a> {
    Buffered(Version, &'a [u8]),
    /// The record's bytes were copied out of the page.
    Sealed(Version, SegmentAt, Vec<u8>),
}

impl Found<'_> {
    fn version(&self) -> &Version {
        match self {
            Found::Buffered(version, _) | Found::Sealed(version, ..) => version,
        }
    }
}

/// A versioned namespace.
#[derive(Debug)]
pub struct Versions {
    pub(crate) columns: Columns,
    timeline: Timeline,
    /// The smallest sequence that the next put may have.
    next_sequence: u64,
}

impl Versions {
    /// An empty namespace.
    pub fn new(parameters: Parameters) -> Result<Versions, Error> {
        Ok(Versions { columns: Columns::new(parameters)?, timeline: Timeline::default(), next_sequence: 0 })
    }

    /// Where versions are: for sealing and installing.
    pub fn columns_mut(&mut self) -> &mut Columns {
        &mut self.columns
    }

    /// Where versions are.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Its user versions.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    // --- changes --------------------------------------------------------------------------------------------------

    /// Stores a value.
    pub fn put(&mut self, key: Key, value: &[u8], stamp: Stamp) -> Result<(), Error> {
        self.insert(key, Kind::Value, value, stamp)
    }

    /// Deletes a key: its newest version says so.
    pub fn delete(&mut self, key: Key, stamp: Stamp) -> Result<(), Error> {
        self.insert(key, Kind::Tombstone, &[], stamp)
    }

    fn insert(&mut self, key: Key, kind: Kind, value: &[u8], stamp: Stamp) -> Result<(), Error> {
        assert!(stamp.sequence >= self.next_sequence, "sequences follow commit order");
        let version = Version {
            key,
            kind,
            value_len: value.len() as u32,
            value_crc: crc32c::crc32c(value),
            sequence: stamp.sequence,
            time_ns: stamp.time_ns,
            user_version: self.timeline.present(),
            ordinal: 0,
        };
        self.columns.insert(&version, value)?;
        self.next_sequence = stamp.sequence + 1;
        Ok(())
    }

    /// Opens a namespace again: its timeline, and the tables of its segments, of each row in the order of sealing; all
    /// their sequences are before `next_sequence`. [`Versions::replay`] brings back what was in the buffer.
    pub fn restore<'t>(
        parameters: Parameters,
        timeline: &[u8],
        mut tables: impl Iterator<Item = &'t [u8]>,
        next_sequence: u64,
    ) -> Result<Versions, Error> {
        let mut columns = Columns::new(parameters)?;
        tables.try_for_each(|table| columns.restore(table))?;
        Ok(Versions { columns, timeline: Timeline::decode(timeline)?, next_sequence })
    }

    /// Puts a version into the buffer again that was committed before the power went, unless a segment has it. Of each
    /// key the oldest one first; the same version may come more than once. Answers whether it was missing.
    pub fn replay<P: Pages>(&mut self, pages: &mut P, version: &Version, value: &[u8]) -> Result<bool, P::Error> {
        let mut search = self.columns.search(&version.key, u64::MAX);
        let newest = self.step(pages, &mut search)?.map(|found| found.version().sequence);
        // A row's segments become durable in order, so of each key all versions up to some sequence are there.
        if newest.is_some_and(|newest| newest >= version.sequence) {
            return Ok(false);
        }
        self.columns.insert(version, value)?;
        self.next_sequence = self.next_sequence.max(version.sequence + 1);
        Ok(true)
    }

    /// Finishes the present user version; answers its number.
    pub fn snapshot(&mut self, time_ns: u64) -> Result<u32, Error> {
        self.timeline.take(self.next_sequence, time_ns)
    }

    /// Forgets a snapshot; what only it saw goes with the next merge.
    pub fn forget_snapshot(&mut self, version: u32) -> Result<(), Error> {
        self.timeline.forget(version)
    }

    /// Makes the namespace look as it did in a snapshot; answers the snapshot to roll back to in order to undo that.
    pub fn roll_back(&mut self, to: u32, time_ns: u64) -> Result<u32, Error> {
        self.timeline.roll_back(to, self.next_sequence, time_ns)
    }

    /// Undoes the last `count` changes of a key: what it was before them becomes its newest version. Answers whether
    /// that is a value; otherwise the key is deleted. Before its oldest version a key was not there; undoing more than
    /// that is refused. An undo is a change, and can be undone.
    pub fn undo<P: Pages>(&mut self, pages: &mut P, key: Key, count: u32, stamp: Stamp) -> Result<bool, P::Error> {
        let (old, available) = self.get_back(pages, &key, self.timeline.view(), count)?;
        if count > available {
            return Err(Error::TooFarBack { count, available }.into());
        }
        match &old {
            Some(record) => self.put(key, &record.value, stamp)?,
            None => self.delete(key, stamp)?,
        }
        Ok(old.is_some())
    }

    // --- reads ----------------------------------------------------------------------------------------------------

    /// A version of a key; nothing if it is not there or deleted.
    pub fn get<P: Pages>(&self, pages: &mut P, key: &Key, at: At) -> Result<Option<Record>, P::Error> {
        let (view, back) = match at {
            At::Latest => (self.timeline.view(), 0),
            At::Snapshot(version) => (&self.timeline.snapshot(version)?.view, 0),
            At::Back(count) => (self.timeline.view(), count),
        };
        Ok(self.get_back(pages, key, view, back)?.0)
    }

    /// The version of a key that is `back` before the newest in a view, and how many newer ones there are, at most `back`.
    fn get_back<P: Pages>(
        &self,
        pages: &mut P,
        key: &Key,
        view: &View,
        back: u32,
    ) -> Result<(Option<Record>, u32), P::Error> {
        let mut search = self.columns.search(key, view.end());
        let mut newer = 0;
        while let Some(found) = self.step(pages, &mut search)? {
            if !view.sees(found.version().sequence) {
                continue;
            }
            if newer == back {
                return Ok((self.load(pages, found)?, newer));
            }
            newer += 1;
        }
        Ok((None, newer))
    }

    /// Whether a key is there.
    pub fn exists<P: Pages>(&self, pages: &mut P, key: &Key, view: &View) -> Result<bool, P::Error> {
        Ok(self.newest(pages, key, view)?.is_some_and(|version| version.kind != Kind::Tombstone))
    }

    /// Versions of a key, newest first, at most `limit`: all that are kept, those that a rollback hid included.
    pub fn history<P: Pages>(&self, pages: &mut P, key: &Key, limit: usize) -> Result<Vec<Past>, P::Error> {
        let mut search = self.columns.search(key, u64::MAX);
        let mut history = Vec::new();
        while let (true, Some(found)) = (history.len() < limit, self.step(pages, &mut search)?) {
            let version = *found.version();
            history.push(Past { version, is_seen: self.timeline.view().sees(version.sequence) });
        }
        Ok(history)
    }

    /// The keys of a row that are there in a view, in order. Rows are independent; all of them are the namespace.
    pub fn list<P: Pages>(&self, pages: &mut P, row: u32, view: &View) -> Result<Vec<Key>, P::Error> {
        let mut newest = BTreeMap::new();
        self.scan(
            pages,
            row,
            |_| true,
            |version| {
                if view.sees(version.sequence) {
                    newest.entry(version.key).or_insert(version.kind);
                }
            },
        )?;
        Ok(newest.into_iter().filter(|(_, kind)| *kind != Kind::Tombstone).map(|(key, _)| key).collect())
    }

    /// The keys of a row that differ between two views, in order. Reads the segments on which the views disagree, and
    /// looks up the keys in them.
    pub fn diff<P: Pages>(
        &self,
        pages: &mut P,
        row: u32,
        from: &View,
        to: &View,
    ) -> Result<Vec<(Key, Difference)>, P::Error> {
        let mut touched = BTreeMap::new();
        self.scan(
            pages,
            row,
            |segment| from.differs(to, &segment.sequences),
            |version| {
                if from.sees(version.sequence) != to.sees(version.sequence) {
                    touched.insert(version.key, ());
                }
            },
        )?;
        let mut differences = Vec::new();
        for key in touched.into_keys() {
            let there = |version: Option<Version>| version.filter(|version| version.kind != Kind::Tombstone);
            let old = there(self.newest(pages, &key, from)?);
            let new = there(self.newest(pages, &key, to)?);
            let difference = match (old, new) {
                (None, Some(_)) => Difference::Added,
                (Some(_), None) => Difference::Removed,
                (Some(old), Some(new)) if old.sequence != new.sequence => Difference::Changed,
                (Some(_), Some(_)) | (None, None) => continue,
            };
            differences.push((key, difference));
        }
        Ok(differences)
    }

    /// The newest version of a key that a view sees.
    fn newest<P: Pages>(&self, pages: &mut P, key: &Key, view: &View) -> Result<Option<Version>, P::Error> {
        let mut search = self.columns.search(key, view.end());
        while let Some(found) = self.step(pages, &mut search)? {
            if view.sees(found.version().sequence) {
                return Ok(Some(*found.version()));
            }
        }
        Ok(None)
    }

    /// The next version of a search.
    fn step<'a, P: Pages>(&self, pages: &mut P, search: &mut Search<'a>) -> Result<Option<Found<'a>>, P::Error> {
        let page_bytes = self.columns.parameters().page_bytes as usize;
        while let Some(place) = search.next() {
            let candidate = match place {
                Place::Buffered(version, record) => return Ok(Some(Found::Buffered(version, record))),
                Place::Page(candidate) => candidate,
            };
            let start = candidate.page as usize * page_bytes;
            let page = pages.read(candidate.at, start..start + page_bytes)?;
            if let Some((version, record)) = search.check(&candidate, page)? {
                return Ok(Some(Found::Sealed(version, candidate.at, record.to_vec())));
            }
        }
        Ok(None)
    }

    /// The value of a version; nothing if it is a tombstone.
    fn load<P: Pages>(&self, pages: &mut P, found: Found<'_>) -> Result<Option<Record>, P::Error> {
        let value = match &found {
            Found::Buffered(version, record) => version.value(record)?.map(<[u8]>::to_vec),
            Found::Sealed(version, at, record) => match version.kind {
                Kind::Extent(start) => Some(load_extent(pages, version, *at, start)?),
                Kind::Value | Kind::Tombstone => version.value(record)?.map(<[u8]>::to_vec),
            },
        };
        Ok(value.map(|value| Record { version: *found.version(), value }))
    }

    /// Hands out all versions of a row, of each key the newest first; of the segments, those that are `wanted`.
    fn scan<P: Pages>(
        &self,
        pages: &mut P,
        row: u32,
        wanted: impl Fn(&SegmentInfo) -> bool,
        mut each: impl FnMut(&Version),
    ) -> Result<(), P::Error> {
        self.columns.buffered(row).rev().for_each(|(version, _)| each(&version));
        for segment in self.columns.segments(row).rev().filter(wanted) {
            let mut versions = self.read_segment(pages, &segment)?;
            versions.sort_unstable_by_key(|version| std::cmp::Reverse(version.sequence));
            versions.iter().for_each(&mut each);
        }
        Ok(())
    }

    /// All versions of a segment, in the order they stand in.
    pub(crate) fn read_segment<P: Pages>(
        &self,
        pages: &mut P,
        segment: &SegmentInfo,
    ) -> Result<Vec<Version>, P::Error> {
        let page_bytes = self.columns.parameters().page_bytes as usize;
        let mut versions = Vec::with_capacity(segment.records as usize);
        for page in 0..segment.hashed_pages as usize {
            for record in records(pages.read(segment.at, page * page_bytes..(page + 1) * page_bytes)?) {
                versions.push(record?.0);
            }
        }
        if versions.len() != segment.records as usize {
            return Err(Error::DamagedRecord("a segment lacks versions").into());
        }
        Ok(versions)
    }
}

/// The value of an extent.
pub(crate) fn load_extent<P: Pages>(
    pages: &mut P,
    version: &Version,
    at: SegmentAt,
    start: u32,
) -> Result<Vec<u8>, P::Error> {
    let value = pages.read(at, start as usize..start as usize + version.value_len as usize)?;
    if crc32c::crc32c(value) != version.value_crc {
        return Err(Error::DamagedRecord("value checksum").into());
    }
    Ok(value.to_vec())
}
