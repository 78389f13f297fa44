//! Reading a versioned namespace while it changes: get as of, undo, list.
//!
//! Lives here:       walks over a key's versions, and over a row's.
//! Lives elsewhere:  what takes many reads, one at a time (`steps`), the order of places (`search`), what a view sees (`timeline`),
//!                   locks and flash (the [`Source`]).
//! Implements:       paper:Muninn 4.3-4.4; docs/versioned.md "Snapshots and rolling back".
//!
//! A look at the namespace is short and reads nothing; flash is read between two looks, when everything may have
//! changed. So a walk does not remember where it is but what it has seen: it continues below the sequence found last and
//! passes over versions of a segment that it has looked at already. What is put meanwhile has a larger sequence, what is sealed or
//! moved meanwhile is found at its new place, and nothing else that comes to its old one is taken for it.

use crate::columns::{Columns, SegmentInfo};
use crate::error::Error;
use crate::format;
use crate::group::SegmentAt;
use crate::parameters::Parameters;
use crate::record::{Kind, Version, records, records_among};
use crate::search::{Candidate, Passed, Place};
use crate::timeline::View;
use crate::versions::Versions;
use kaml_index::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};

/// A namespace to read from.
pub trait Source {
    /// Why it may fail.
    type Error: From<Error>;
    /// Looks at the namespace as it is now. What `look` holds (the second argument) stays readable until the next look.
    fn look<T>(&mut self, look: impl FnOnce(&Versions, &mut dyn FnMut(SegmentAt)) -> T) -> Result<T, Self::Error>;
    /// Reads bytes of a segment that the last look held, and returns what `take` makes of them. What it finds damaged is best read
    /// again: a bit that flipped on its way is right then. A page of records is read as a whole, the value of an extent as it lies.
    fn read<T>(
        &mut self,
        at: SegmentAt,
        bytes: Range<usize>,
        take: impl FnMut(&[u8]) -> Result<T, Error>,
    ) -> Result<T, Self::Error>;
    /// Reads a value that is stored outside of segments, as the record of this number; nothing if there is none: a merge may have dropped
    /// its version since that was found. The value is as long as the version reports and matches its checksum.
    fn large(&mut self, version: &Version, number: u64) -> Result<Option<Vec<u8>>, Self::Error> {
        let _ = (version, number);
        Err(Error::DamagedRecord("a large value, where there is no room for any").into())
    }
}

/// The damage of a version whose value is gone.
pub(crate) const VALUE_MISSING: &str = "its value is missing";

/// Which version of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// The newest.
    Latest,
    /// The newest that a snapshot sees.
    Snapshot(u32),
    /// This many versions before the newest; deletes count.
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

/// A version found by a walk, the bytes of its record, and the page that it is in.
pub(crate) struct Found {
    pub(crate) version: Version,
    record: Box<[u8]>,
    page: Option<Pages>,
}

/// Pages of a segment, all that have records or one of them.
pub(crate) struct Pages {
    at: SegmentAt,
    bytes: Range<usize>,
    parameters: Parameters,
}

impl Pages {
    /// All of a segment that have records.
    pub(crate) fn of(segment: &SegmentInfo, parameters: &Parameters) -> Pages {
        let bytes = 0..segment.hashed_pages as usize * parameters.page_bytes as usize;
        Pages { at: segment.at, bytes, parameters: *parameters }
    }

    fn one(at: SegmentAt, page: u32, parameters: &Parameters) -> Pages {
        let page_bytes = parameters.page_bytes as usize;
        let start = page as usize * page_bytes;
        Pages { at, bytes: start..start + page_bytes, parameters: *parameters }
    }

    fn read<S: Source, T>(&self, source: &mut S, take: impl FnMut(&[u8]) -> Result<T, Error>) -> Result<T, S::Error> {
        source.read(self.at, self.bytes.clone(), take)
    }

    /// Takes something from the record of a version that was found here before.
    fn read_again<S: Source, T>(
        &self,
        source: &mut S,
        version: &Version,
        take: impl Fn(Version, &[u8]) -> Result<T, Error>,
    ) -> Result<T, S::Error> {
        self.read(source, |pages| {
            let mut found = pages.chunks(self.parameters.page_bytes as usize).flat_map(records).filter_map(Result::ok);
            let found = found.find(|(found, _)| (found.key, found.sequence) == (version.key, version.sequence));
            let (version, record) = found.ok_or(Error::DamagedRecord("header checksum"))?;
            take(version, record)
        })
    }
}

/// A walk over a key's versions, newest first.
#[derive(Debug)]
pub(crate) struct Walk {
    key: Key,
    before: u64,
    /// How far it has come in segments.
    passed: Passed,
    bisection: Option<Bisection>,
    /// The segment in which the last bisection came to nothing.
    not_bisected: Option<(SegmentAt, u64)>,
}

/// Finding where the versions before a sequence begin in a segment that has newer ones, too. A segment may have thousands of versions of
/// one key; their ordinals ascend with their sequences.
#[derive(Debug)]
struct Bisection {
    segment: (SegmentAt, u64),
    /// Versions with ordinals below this one are old enough.
    low: u16,
    /// Those with this ordinal or a larger one are too new.
    high: u16,
}

impl Bisection {
    /// The ordinal to look at next: first the oldest, for often all of a segment is too new.
    fn middle(&self) -> u16 {
        if self.low == 0 { 0 } else { self.low + (self.high - self.low) / 2 }
    }
}

/// The next place of a walk.
enum Spot {
    Buffered(Version, Box<[u8]>),
    Page(Candidate),
}

impl Walk {
    pub(crate) fn new(key: &Key, before: u64) -> Walk {
        Walk { key: *key, before, passed: Passed::new(), bisection: None, not_bisected: None }
    }

    /// The newest place that was not looked at; within a bisection the one in the middle.
    fn spot(&mut self, columns: &Columns) -> Option<Spot> {
        if let Some(bisection) = &self.bisection {
            let (segment, middle) = (bisection.segment, bisection.middle());
            self.passed.insert(segment, middle + 1);
            match columns.search(&self.key, self.before).next_beyond(&self.passed) {
                Some(Place::Page(found)) if (found.segment(), found.ordinal) == (segment, middle) => {
                    return Some(Spot::Page(found));
                }
                // The segment was moved, or something older is not where it seemed to be.
                _ => self.end_bisection(true),
            }
        }
        Some(match columns.search(&self.key, self.before).next_beyond(&self.passed)? {
            Place::Buffered(version, record) => Spot::Buffered(version, record.into()),
            Place::Page(candidate) => Spot::Page(candidate),
        })
    }

    /// From now on it looks at one version after the other, first at the newest that may be old enough.
    fn end_bisection(&mut self, is_in_vain: bool) {
        if let Some(Bisection { segment, high, .. }) = self.bisection.take() {
            self.passed.insert(segment, high);
            self.not_bisected = is_in_vain.then_some(segment);
        }
    }

    /// Looks at the next place. It may have nothing; otherwise it has the next version, if there is one.
    pub(crate) fn step<S: Source>(&mut self, source: &mut S) -> Result<ControlFlow<Option<Found>>, S::Error> {
        let (spot, parameters) = source.look(|versions, hold| {
            let spot = self.spot(&versions.columns);
            if let Some(Spot::Page(candidate)) = &spot {
                hold(candidate.at);
            }
            (spot, *versions.columns.parameters())
        })?;
        let found = match spot {
            None => return Ok(ControlFlow::Break(None)),
            Some(Spot::Buffered(version, record)) => Some(Found { version, record, page: None }),
            Some(Spot::Page(candidate)) => {
                self.passed.insert(candidate.segment(), candidate.ordinal);
                let page = Pages::one(candidate.at, candidate.page, &parameters);
                let (found, is_odd) = page.read(source, |bytes| {
                    let found = candidate.find(&self.key, bytes)?;
                    let is_odd = found.is_none() && !shares_row(bytes, &self.key, &parameters);
                    Ok((found.map(|(version, record)| (version, record.into())), is_odd))
                })?;
                if is_odd {
                    check_segment(source, &self.key, candidate.at)?;
                }
                let found = found.map(|(version, record)| Found { version, record, page: Some(page) });
                self.bisect(&candidate, found)
            }
        };
        let Some(found) = found else { return Ok(ControlFlow::Continue(())) };
        self.before = found.version.sequence;
        Ok(ControlFlow::Break(Some(found)))
    }

    /// What is found is the next version, unless it is too new, or there may be a newer one that is old enough.
    fn bisect(&mut self, candidate: &Candidate, found: Option<Found>) -> Option<Found> {
        let Some(sequence) = found.as_ref().map(|found| found.version.sequence) else {
            self.end_bisection(true);
            return None;
        };
        match &mut self.bisection {
            None if sequence < self.before => return found,
            None if self.not_bisected == Some(candidate.segment()) => return None,
            None => {
                let (segment, high) = (candidate.segment(), candidate.ordinal);
                self.bisection = Some(Bisection { segment, low: 0, high });
            }
            Some(bisection) if sequence < self.before => bisection.low = candidate.ordinal + 1,
            Some(bisection) => bisection.high = candidate.ordinal,
        }
        if self.bisection.as_ref().is_some_and(|bisection| bisection.low == bisection.high) {
            self.end_bisection(false);
        }
        None
    }
}

/// A search for the version of a key that is so many before the newest in a view.
#[derive(Debug)]
pub(crate) struct Seek {
    walk: Walk,
    back: u32,
    /// Newer versions found so far.
    newer: u32,
}

impl Seek {
    pub(crate) fn new(key: &Key, view: &View, back: u32) -> Seek {
        Seek { walk: Walk::new(key, view.end()), back, newer: 0 }
    }

    /// Looks at the next place; the view is always the same. In the end the version is found, or it does not exist.
    pub(crate) fn step<S: Source>(
        &mut self,
        source: &mut S,
        view: &View,
    ) -> Result<ControlFlow<Option<Found>>, S::Error> {
        Ok(match self.walk.step(source)? {
            ControlFlow::Break(Some(found)) if !view.sees(found.version.sequence) => ControlFlow::Continue(()),
            ControlFlow::Break(Some(_)) if self.newer < self.back => {
                self.newer += 1;
                ControlFlow::Continue(())
            }
            step => step,
        })
    }

    fn finish<S: Source>(&mut self, source: &mut S, view: &View) -> Result<Option<Found>, S::Error> {
        loop {
            if let ControlFlow::Break(found) = self.step(source, view)? {
                return Ok(found);
            }
        }
    }
}

/// What a version found last has.
pub(crate) enum Loaded {
    /// Its value, or nothing if it is a tombstone.
    Record(Option<Record>),
    /// It was dropped since: what is looked for must be looked for again. It has this sequence.
    Dropped(u64),
}

/// The value of a version found last.
pub(crate) fn load<S: Source>(source: &mut S, found: Found) -> Result<Loaded, S::Error> {
    let Found { version, record, page } = found;
    let value = match (version.kind, page) {
        (Kind::Large(number), _) => match source.large(&version, number)? {
            Some(value) => Some(value),
            None => return Ok(Loaded::Dropped(version.sequence)),
        },
        (Kind::Extent(_), Some(page)) => Some(load_extent(source, &version, &page)?),
        // Its header came right with the page, but not the value.
        (Kind::Value, Some(page)) if version.value(&record).is_err() => {
            page.read_again(source, &version, |version, record| Ok(version.value(record)?.map(<[u8]>::to_vec)))?
        }
        _ => version.value(&record)?.map(<[u8]>::to_vec),
    };
    Ok(Loaded::Record(value.map(|value| Record { version, value })))
}

/// The value of an extent whose record is in these pages.
pub(crate) fn load_extent<S: Source>(source: &mut S, version: &Version, pages: &Pages) -> Result<Vec<u8>, S::Error> {
    // The value's checksum vouches for its place, too, which may have come wrong with its page.
    if let Some(value) = read_extent(source, version, pages, |value| Ok(value.ok()))? {
        return Ok(value);
    }
    let version = pages.read_again(source, version, |version, _| Ok(version))?;
    read_extent(source, &version, pages, |value| value)
}

fn read_extent<S: Source, T>(
    source: &mut S,
    version: &Version,
    pages: &Pages,
    take: impl Fn(Result<Vec<u8>, Error>) -> Result<T, Error>,
) -> Result<T, S::Error> {
    let Kind::Extent(start) = version.kind else { unreachable!("only extents are loaded so") };
    let bytes = start as usize..start as usize + version.value_len as usize;
    if bytes.end > pages.parameters.segment_bytes() {
        return Ok(take(Err(Error::DamagedRecord("a value outside its segment")))?);
    }
    source.read(pages.at, bytes, |value| {
        let is_whole = kaml_crc::crc32c(value) == version.value_crc;
        take(if is_whole { Ok(value.to_vec()) } else { Err(Error::DamagedRecord("value checksum")) })
    })
}

/// Whether all versions in the bytes of a segment match their checksums, and its table does.
pub fn is_whole(segment: &[u8], info: &SegmentInfo, parameters: &Parameters) -> bool {
    let page_bytes = parameters.page_bytes as usize;
    let value_of = |version: &Version, record: &[u8]| match version.kind {
        Kind::Extent(start) => segment
            .get(start as usize..)
            .and_then(|rest| rest.get(..version.value_len as usize))
            .is_some_and(|value| kaml_crc::crc32c(value) == version.value_crc),
        Kind::Value | Kind::Tombstone => version.value(record).is_ok(),
        Kind::Large(_) => true,
    };
    let mut count = 0;
    let is_good = |found: Result<(Version, &[u8]), Error>| {
        count += 1;
        found.is_ok_and(|(version, record)| value_of(&version, record))
    };
    let (hashed, table) = (info.hashed_pages as usize, info.table_pages as usize);
    let Some(table_at) = segment.len().checked_sub(table * page_bytes).filter(|at| *at >= hashed * page_bytes) else {
        return false;
    };
    let whole = segment[..hashed * page_bytes].chunks(page_bytes).flat_map(records).all(is_good);
    whole && count == info.records && format::decode(&segment[table_at..], parameters).is_ok()
}

/// A version of a key; nothing if it does not exist or deleted.
pub fn get<S: Source>(source: &mut S, key: &Key, at: At) -> Result<Option<Record>, S::Error> {
    let (view, back) = match at {
        At::Latest => (view_of(source, None)?, 0),
        At::Snapshot(version) => (view_of(source, Some(version))?, 0),
        At::Back(count) => (view_of(source, None)?, count),
    };
    Ok(get_back(source, key, &view, back)?.0)
}

/// What is seen now, or in a snapshot.
pub fn view_of<S: Source>(source: &mut S, snapshot: Option<u32>) -> Result<View, S::Error> {
    Ok(source.look(|versions, _| match snapshot {
        None => Ok(versions.timeline.view().clone()),
        Some(version) => versions.timeline.snapshot(version).map(|snapshot| snapshot.view.clone()),
    })??)
}

/// The version of a key that is `back` before the newest in a view, and how many newer ones there are, at most `back`.
fn get_back<S: Source>(source: &mut S, key: &Key, view: &View, back: u32) -> Result<(Option<Record>, u32), S::Error> {
    let mut dropped = None;
    loop {
        let mut seek = Seek::new(key, view, back);
        let Some(found) = seek.finish(source, view)? else { return Ok((None, seek.newer)) };
        match load(source, found)? {
            Loaded::Record(record) => return Ok((record, seek.newer)),
            Loaded::Dropped(sequence) => refuse_again(&mut dropped, sequence)?,
        }
    }
}

/// A version leaves the index before its value is dropped. One that is found again after its value was missing lacks it.
pub(crate) fn refuse_again(dropped: &mut Option<u64>, sequence: u64) -> Result<(), Error> {
    match dropped.replace(sequence) == Some(sequence) {
        true => Err(Error::DamagedRecord(VALUE_MISSING)),
        false => Ok(()),
    }
}

/// The newest version of a key that a view sees; nothing if it does not exist or deleted.
pub fn get_seen<S: Source>(source: &mut S, key: &Key, view: &View) -> Result<Option<Record>, S::Error> {
    Ok(get_back(source, key, view, 0)?.0)
}

/// Reads all versions of a row with their values; returns how many, and the values' bytes.
pub fn verify<S: Source>(source: &mut S, row: u32) -> Result<(u64, u64), S::Error> {
    let (count, bytes, missing) = verify_once(source, row)?;
    if missing.is_empty() {
        return Ok((count, bytes));
    }
    // They were dropped meanwhile, unless their versions are still there.
    let (count, bytes, still) = verify_once(source, row)?;
    match missing.is_disjoint(&still) {
        true => Ok((count, bytes)),
        false => Err(Error::DamagedRecord(VALUE_MISSING).into()),
    }
}

/// As [`verify`]; returns also the sequences of versions whose values are missing.
fn verify_once<S: Source>(source: &mut S, row: u32) -> Result<(u64, u64, BTreeSet<u64>), S::Error> {
    let (buffered, segments, parameters) = row_of(source, row, |_| true)?;
    let mut bytes: u64 = buffered.iter().map(|version| u64::from(version.value_len)).sum();
    let mut count = buffered.len() as u64;
    let mut missing = BTreeSet::new();
    let mut check = |source: &mut S, version: &Version| {
        if let Kind::Large(number) = version.kind
            && source.large(version, number)?.is_none()
        {
            missing.insert(version.sequence);
        }
        Ok::<_, S::Error>(())
    };
    buffered.iter().try_for_each(|version| check(source, version))?;
    for segment in &segments {
        let versions = read_segment(source, segment, &parameters, |version, record| {
            version.value(record)?;
            Ok(version)
        })?;
        for version in versions {
            bytes += u64::from(version.value_len);
            count += 1;
            if matches!(version.kind, Kind::Extent(_)) {
                load_extent(source, &version, &Pages::of(segment, &parameters))?;
            }
            check(source, &version)?;
        }
    }
    Ok((count, bytes, missing))
}

/// What undoing the last `count` changes of a key makes its newest version: a record, or nothing for a delete. Before its
/// oldest version a key did not exist; undoing more than that is refused.
pub fn undone<S: Source>(source: &mut S, key: &Key, count: u32) -> Result<Option<Record>, S::Error> {
    let view = view_of(source, None)?;
    let (old, available) = get_back(source, key, &view, count)?;
    if count > available {
        return Err(Error::TooFarBack { count, available }.into());
    }
    Ok(old)
}

/// Whether a key exists in a view.
pub fn exists<S: Source>(source: &mut S, key: &Key, view: &View) -> Result<bool, S::Error> {
    Ok(newest(source, key, view)?.is_some_and(|version| version.kind != Kind::Tombstone))
}

/// The newest version of a key that a view sees.
pub fn newest<S: Source>(source: &mut S, key: &Key, view: &View) -> Result<Option<Version>, S::Error> {
    Ok(Seek::new(key, view, 0).finish(source, view)?.map(|found| found.version))
}

/// The keys of a row that exist in a view, in order. Rows are independent; all of them are the namespace.
pub fn list<S: Source>(source: &mut S, row: u32, view: &View) -> Result<Vec<Key>, S::Error> {
    let (buffered, segments, parameters) = row_of(source, row, |_| true)?;
    let mut newest = BTreeMap::new();
    let mut note = |version: &Version| {
        if view.sees(version.sequence) {
            newest.entry(version.key).or_insert(version.kind);
        }
    };
    buffered.iter().rev().for_each(&mut note);
    for segment in segments.iter().rev() {
        let mut versions = read_segment(source, segment, &parameters, |version, _| Ok(version))?;
        versions.sort_unstable_by_key(|version| std::cmp::Reverse(version.sequence));
        versions.iter().for_each(&mut note);
    }
    Ok(newest.into_iter().filter(|(_, kind)| *kind != Kind::Tombstone).map(|(key, _)| key).collect())
}

/// The versions of a row in the buffer, and its segments that are needed, which are held.
fn row_of<S: Source>(
    source: &mut S,
    row: u32,
    wanted: impl Fn(&SegmentInfo) -> bool,
) -> Result<(Vec<Version>, Vec<SegmentInfo>, Parameters), S::Error> {
    source.look(|versions, hold| {
        let columns = &versions.columns;
        let buffered = columns.buffered(row).map(|(version, _)| version).collect();
        let segments: Vec<SegmentInfo> = columns.segments(row).filter(wanted).collect();
        segments.iter().for_each(|segment| hold(segment.at));
        (buffered, segments, *columns.parameters())
    })
}

/// Takes something from each version of a segment, in the order they are in. All of them exist, or the segment is damaged.
pub(crate) fn read_segment<S: Source, T>(
    source: &mut S,
    segment: &SegmentInfo,
    parameters: &Parameters,
    take: impl Fn(Version, &[u8]) -> Result<T, Error>,
) -> Result<Vec<T>, S::Error> {
    let page_bytes = parameters.page_bytes as usize;
    Pages::of(segment, parameters).read(source, |pages| {
        let mut taken = Vec::with_capacity(segment.records as usize);
        for record in pages.chunks(page_bytes).flat_map(|page| records_among(page, &segment.sequences)) {
            let (version, record) = record?;
            if parameters.row_of(&version.key) != segment.row {
                return Err(Error::DamagedRecord("of another row"));
            }
            taken.push(take(version, record)?);
        }
        match taken.len() == segment.records as usize {
            true => Ok(taken),
            false => Err(Error::DamagedRecord("a segment lacks versions")),
        }
    })
}

/// Whether a page has records, all of keys in the row of this one.
fn shares_row(page: &[u8], key: &Key, parameters: &Parameters) -> bool {
    let row = parameters.row_of(key);
    let mut records = records(page).peekable();
    records.peek().is_some()
        && records.all(|record| record.is_ok_and(|(version, _)| parameters.row_of(&version.key) == row))
}

/// Refuses a segment that has lost versions. A page of it was odd: that is rare, but a page that got no records looks the same as one
/// that was programmed in vain.
fn check_segment<S: Source>(source: &mut S, key: &Key, at: SegmentAt) -> Result<(), S::Error> {
    let row = source.look(|versions, _| versions.columns.row_of(key))?;
    let (_, segments, parameters) = row_of(source, row, |segment| segment.at == at)?;
    segments.iter().try_for_each(|segment| read_segment(source, segment, &parameters, |_, _| Ok(())).map(drop))
}
