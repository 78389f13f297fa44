//! Returns that take many reads, one at a time: an old version of a key, its history, what differs between two views.
//!
//! Lives here:       how far they have come between two reads.
//! Lives elsewhere:  the walks (`reads`), what a view sees (`timeline`), how many steps are taken in a row (the caller).
//! Implements:       paper:Muninn 4.4; docs/versioned.md "Snapshots and rolling back".
//!
//! Nothing is held between two steps, when everything may change, as between two looks of a walk.

use crate::columns::SegmentInfo;
use crate::group::SegmentAt;
use crate::reads::{At, Found, Loaded, Record, Seek, Source, Walk, load, read_segment, refuse_again, view_of};
use crate::record::{Kind, Version};
use crate::timeline::View;
use crate::versions::Versions;
use kaml_index::Key;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Something that is found step by step.
pub trait Steps {
    /// One of what it finds.
    type Found;
    /// Reads a page of a segment, or all that have records, and appends what that finds; returns whether there is more to do. Not to be
    /// taken any more after an error.
    fn step<S: Source>(&mut self, source: &mut S, found: &mut Vec<Self::Found>) -> Result<bool, S::Error>;
}

/// A version of a key and its value; nothing if it does not exist or deleted.
#[derive(Debug)]
pub struct Lookup {
    view: View,
    seek: Seek,
    key: Key,
    back: u32,
    /// The version that was found and dropped before its value was read.
    dropped: Option<u64>,
}

impl Lookup {
    /// Which one.
    ///
    /// # Errors
    /// The source fails, or there is no such snapshot.
    pub fn new<S: Source>(source: &mut S, key: &Key, at: At) -> Result<Lookup, S::Error> {
        let (snapshot, back) = match at {
            At::Latest => (None, 0),
            At::Snapshot(version) => (Some(version), 0),
            At::Back(count) => (None, count),
        };
        let view = view_of(source, snapshot)?;
        Ok(Lookup { seek: Seek::new(key, &view, back), view, key: *key, back, dropped: None })
    }
}

impl Steps for Lookup {
    type Found = Record;

    fn step<S: Source>(&mut self, source: &mut S, found: &mut Vec<Record>) -> Result<bool, S::Error> {
        let ControlFlow::Break(version) = self.seek.step(source, &self.view)? else { return Ok(true) };
        match version.map(|version| load(source, version)).transpose()? {
            None => Ok(false),
            Some(Loaded::Record(record)) => {
                found.extend(record);
                Ok(false)
            }
            Some(Loaded::Dropped(sequence)) => {
                refuse_again(&mut self.dropped, sequence)?;
                self.seek = Seek::new(&self.key, &self.view, self.back);
                Ok(true)
            }
        }
    }
}

/// An entry of a key's history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Past {
    /// The version.
    pub version: Version,
    /// False if a rollback hid it.
    pub is_seen: bool,
}

/// The versions of a key, newest first: all that are kept, those that a rollback hid included.
#[derive(Debug)]
pub struct History {
    view: View,
    walk: Walk,
    /// This many more at most.
    limit: usize,
}

impl History {
    /// At most `limit` versions, those before a sequence.
    ///
    /// # Errors
    /// The source fails.
    pub fn new<S: Source>(source: &mut S, key: &Key, before: u64, limit: usize) -> Result<History, S::Error> {
        Ok(History { view: view_of(source, None)?, walk: Walk::new(key, before), limit })
    }
}

impl Steps for History {
    type Found = Past;

    fn step<S: Source>(&mut self, source: &mut S, found: &mut Vec<Past>) -> Result<bool, S::Error> {
        if self.limit == 0 {
            return Ok(false);
        }
        let ControlFlow::Break(next) = self.walk.step(source)? else { return Ok(true) };
        let Some(Found { version, .. }) = next else { return Ok(false) };
        found.push(Past { version, is_seen: self.view.sees(version.sequence) });
        self.limit -= 1;
        Ok(true)
    }
}

/// A [`History`], all at once.
pub fn history<S: Source>(source: &mut S, key: &Key, limit: usize) -> Result<Vec<Past>, S::Error> {
    let (mut history, mut past) = (History::new(source, key, u64::MAX, limit)?, Vec::new());
    while history.step(source, &mut past)? {}
    Ok(past)
}

/// How a key differs between two views.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// It exists in the second only.
    Added,
    /// It exists in the first only.
    Removed,
    /// Both have it, in different versions.
    Changed,
}

/// The keys that differ between two views, row after row, those of a row in order. Reads the segments on which the views disagree,
/// and looks up the keys in them.
#[derive(Debug)]
pub struct Diff {
    from: View,
    to: View,
    /// Rows before this are done.
    row: u32,
    /// Segments of the row that were read. Each is known by its address and its first sequence, for others may come to lie where it was.
    passed: BTreeSet<(SegmentAt, u64)>,
    /// Keys of the row with a version that one view sees and the other does not.
    touched: BTreeSet<Key>,
    comparison: Option<Comparison>,
}

/// A key that is looked up in one view after the other.
#[derive(Debug)]
struct Comparison {
    key: Key,
    seek: Seek,
    /// What the first view has, after that is known.
    old: Option<Option<Version>>,
}

impl Diff {
    /// Between these.
    pub fn new(from: View, to: View) -> Diff {
        Diff { from, to, row: 0, passed: BTreeSet::new(), touched: BTreeSet::new(), comparison: None }
    }

    fn touch(&mut self, version: &Version) {
        if self.from.sees(version.sequence) != self.to.sees(version.sequence) {
            self.touched.insert(version.key);
        }
    }

    /// Touches the keys in a segment of the row, before the first also those in the buffer; returns false if all are. What is put or
    /// moved meanwhile is read in vain, once.
    fn read_next<S: Source>(&mut self, source: &mut S) -> Result<bool, S::Error> {
        let next = source.look(|versions, hold| {
            let columns = &versions.columns;
            if self.passed.is_empty() {
                columns.buffered(self.row).for_each(|(version, _)| self.touch(&version));
            }
            let is_wanted = |segment: &SegmentInfo| {
                !self.passed.contains(&name_of(segment)) && self.from.differs(&self.to, &segment.sequences)
            };
            let next = columns.segments(self.row).find(is_wanted);
            next.iter().for_each(|segment| hold(segment.at));
            next.map(|segment| (segment, *columns.parameters()))
        })?;
        let Some((segment, parameters)) = next else { return Ok(false) };
        self.passed.insert(name_of(&segment));
        let versions = read_segment(source, &segment, &parameters, |version, _| Ok(version))?;
        versions.iter().for_each(|version| self.touch(version));
        Ok(true)
    }

    /// Continues to the next of the keys, after the last one to the next row.
    fn next_key(&mut self) {
        let next = self.touched.pop_first();
        self.comparison = next.map(|key| Comparison { key, seek: Seek::new(&key, &self.from, 0), old: None });
        if self.comparison.is_none() {
            self.row += 1;
            self.passed.clear();
        }
    }
}

fn name_of(segment: &SegmentInfo) -> (SegmentAt, u64) {
    (segment.at, segment.sequences.start)
}

impl Steps for Diff {
    type Found = (Key, Difference);

    fn step<S: Source>(&mut self, source: &mut S, found: &mut Vec<(Key, Difference)>) -> Result<bool, S::Error> {
        if let Some(comparison) = &mut self.comparison {
            if let ControlFlow::Break(difference) = comparison.step(source, &self.from, &self.to)? {
                found.extend(difference.map(|difference| (comparison.key, difference)));
                self.next_key();
            }
            return Ok(true);
        }
        let rows = source.look(|versions: &Versions, _| versions.columns.parameters().rows)?;
        if self.row == rows {
            return Ok(false);
        }
        if !self.read_next(source)? {
            self.next_key();
        }
        Ok(true)
    }
}

impl Comparison {
    fn step<S: Source>(
        &mut self,
        source: &mut S,
        from: &View,
        to: &View,
    ) -> Result<ControlFlow<Option<Difference>>, S::Error> {
        let view = if self.old.is_none() { from } else { to };
        let ControlFlow::Break(version) = self.seek.step(source, view)? else { return Ok(ControlFlow::Continue(())) };
        let version = version.map(|found| found.version).filter(|version| version.kind != Kind::Tombstone);
        let Some(old) = self.old else {
            (self.old, self.seek) = (Some(version), Seek::new(&self.key, to, 0));
            return Ok(ControlFlow::Continue(()));
        };
        Ok(ControlFlow::Break(match (old, version) {
            (None, Some(_)) => Some(Difference::Added),
            (Some(_), None) => Some(Difference::Removed),
            (Some(old), Some(new)) if old.sequence != new.sequence => Some(Difference::Changed),
            (Some(_), Some(_)) | (None, None) => None,
        }))
    }
}
