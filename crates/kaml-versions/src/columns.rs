//! The index, of either kind: rows of the page buffer, and for each row the groups of its sealed segments, oldest first.
//!
//! Lives here:       inserting, deciding which row is sealed, installing what was sealed, live counts, memory in use.
//! Lives elsewhere:  one row (`row`), finding (`search`), sealing (`seal`), versions and snapshots (`versions`).
//! Implements:       paper:Muninn 4.2-4.3; docs/versioned.md.

use crate::Error;
use crate::buffer::{Buffered, ENTRY_BYTES, NONE};
use crate::format::{self, SegmentTable};
use crate::group::{Group, Segment, SegmentAt};
use crate::hash::KeyHash;
use crate::parameters::{Index, Parameters};
use crate::record::{HEADER_BYTES, Kind, Version};
use crate::row::Row;
use crate::seal::{Room, Sealed};
use crate::search::Search;
use kaml_index::Key;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;

const UNPOISONED: &str = "no panics under this lock";

/// Versions of many keys, found by hash.
#[derive(Debug)]
pub struct Columns {
    parameters: Parameters,
    rows: Vec<Row>,
    buffered_bytes: usize,
    /// Memory of all rows' groups.
    group_bytes: usize,
    segment_count: u64,
    /// The last result: the firmware asks with every step, and each row would be a miss or two.
    oldest: Mutex<Option<Oldest>>,
}

/// The oldest version in the buffer that is not before `from`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Oldest {
    from: u64,
    /// Its sequence and row, if there is one.
    found: Option<(u64, u32)>,
}

/// A sealed segment, for a caller that reads all of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentInfo {
    /// Where it lies.
    pub at: SegmentAt,
    /// Its row.
    pub row: u32,
    /// All its versions' sequences are in this range; not every one in it exists.
    pub sequences: Range<u64>,
    /// Versions in it.
    pub records: u32,
    /// The newest of their key among these, as far as memory shows.
    pub live: u32,
    /// Pages, from the first, that have records.
    pub hashed_pages: u32,
    /// Pages, the last ones, that have the table.
    pub table_pages: u32,
}

impl SegmentInfo {
    /// Distinguishes the segment from others of its row, and from a part of itself. Never 0.
    pub fn identity(&self) -> u32 {
        format::identity(&self.sequences, self.records, self.hashed_pages)
    }
}

/// How memory is used, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryUse {
    /// The page buffer with its bookkeeping.
    pub buffer_bytes: usize,
    /// Tables, directory of segments, rows: everything else.
    pub index_bytes: usize,
}

impl Columns {
    /// No versions.
    pub fn new(parameters: Parameters) -> Result<Columns, Error> {
        parameters.check()?;
        let rows = (0..parameters.rows).map(|_| Row::new(&parameters, 0)).collect();
        let oldest = Mutex::new(None);
        Ok(Columns { parameters, rows, buffered_bytes: 0, group_bytes: 0, segment_count: 0, oldest })
    }

    /// The shape.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Sealed segments.
    pub fn segment_count(&self) -> u64 {
        self.segment_count
    }

    /// Memory in use.
    pub fn memory(&self) -> MemoryUse {
        let open = match &self.parameters.index {
            Index::Columns(_) => 0,
            Index::Bloom(bloom) => bloom.open_bytes(self.parameters.segment_pages),
        };
        let rows = self.rows.len() * (size_of::<Row>() + open);
        MemoryUse { buffer_bytes: self.buffered_bytes, index_bytes: rows + self.group_bytes + size_of::<Columns>() }
    }

    /// Changes the groups of a row, keeping count of their memory: it is read with every Put.
    fn change_row<T>(&mut self, row: u32, change: impl FnOnce(&mut Row) -> T) -> T {
        let row = &mut self.rows[row as usize];
        let before = row.group_bytes();
        let answer = change(row);
        self.group_bytes = self.group_bytes + row.group_bytes() - before;
        answer
    }

    /// Puts a version into the buffer. `version` states what it is; its kind is a value or a tombstone, its sequence the
    /// largest of its key. Seal what [`Columns::wants_seal`] names afterwards.
    pub fn insert(&mut self, version: &Version, value: &[u8]) -> Result<(), Error> {
        let max = self.parameters.value_bytes_max();
        if value.len() as u64 > max {
            return Err(Error::ValueTooLarge { bytes: value.len() as u64, max });
        }
        debug_assert!(version.value_len as usize == value.len() && !matches!(version.kind, Kind::Extent(_)));
        self.insert_record(&version.key, version.record(value));
        Ok(())
    }

    /// As [`Columns::insert`], of the version's bytes ([`Version::record`]), not too large.
    pub(crate) fn insert_record(&mut self, key: &Key, record: Box<[u8]>) {
        let hash = self.hash(key);
        self.buffered_bytes += record.len() + ENTRY_BYTES;
        let row = hash.row(self.parameters.rows);
        let sequence = Version::sequence_of(&record);
        if let Some(known) = self.oldest.get_mut().expect(UNPOISONED)
            && sequence >= known.from
            && known.found.is_none_or(|(oldest, _)| sequence < oldest)
        {
            known.found = Some((sequence, row));
        }
        self.rows[row as usize].insert(hash, key, record, &self.parameters);
    }

    /// The row of a key.
    pub fn row_of(&self, key: &Key) -> u32 {
        self.parameters.row_of(key)
    }

    /// The row that should be sealed now: the fullest one, if the buffer is full, or that of the key put `last`, if that
    /// is full itself.
    pub fn wants_seal(&self, last: &Key) -> Option<u32> {
        let last = self.row_of(last);
        if self.row_is_full(last) {
            return Some(last);
        }
        self.buffer_is_full().then(|| self.fullest())
    }

    /// Whether the buffer has taken more than it may.
    pub fn buffer_is_full(&self) -> bool {
        self.buffered_bytes as u64 > self.parameters.buffer_bytes
    }

    /// Whether a row alone has more than it may.
    pub fn row_is_full(&self, row: u32) -> bool {
        self.rows[row as usize].is_full(&self.parameters)
    }

    /// Whether the buffer takes so many deletes like that of a key without the need to seal a row.
    pub fn takes_deletes(&self, key: &Key, count: usize) -> bool {
        let bytes = count * (HEADER_BYTES + Key::BYTES_MAX);
        let row = &self.rows[self.row_of(key) as usize];
        let row_takes = !row.is_full(&self.parameters) && row.buffer.bytes() + bytes <= self.parameters.segment_bytes();
        row_takes && (self.buffered_bytes + bytes + count * ENTRY_BYTES) as u64 <= self.parameters.buffer_bytes
    }

    /// The row that has most in the buffer.
    pub fn fullest(&self) -> u32 {
        let rows = 0..self.parameters.rows;
        rows.max_by_key(|row| self.rows[*row as usize].buffer.cost()).expect("at least one row")
    }

    /// A segment full of a row's versions. They are kept in the buffer, where searches find them, until it is installed; so
    /// nothing else of the row is sealed in between.
    pub fn seal(&self, row: u32) -> Option<Sealed> {
        let chain = &self.rows[row as usize];
        chain.seal(row, &self.parameters, chain.room())
    }

    /// A sealed segment lies at `at` from now on, in place of what it has of the buffer.
    pub fn install(&mut self, sealed: &Sealed, at: SegmentAt) {
        let parameters = self.parameters;
        let (records, keys) = (sealed.records as u16, sealed.keys.len() as u16);
        let segment = Segment::new(at, sealed.hashed_pages, sealed.sequences.clone(), records, keys);
        self.change_row(sealed.row, |row| {
            sealed.keys.iter().for_each(|key| row.outlive(*key));
            row.push(segment, &sealed.table, &parameters);
        });
        let row = &mut self.rows[sealed.row as usize];
        let before = row.buffer.cost();
        row.note_sealed(&sealed.sequences);
        row.leave(sealed, &parameters, row.next_table());
        self.oldest.get_mut().expect(UNPOISONED).take_if(|known| known.found.is_some_and(|(_, row)| row == sealed.row));
        self.buffered_bytes -= before - row.buffer.cost();
        self.segment_count += 1;
    }

    /// Installs a segment again that lies at `at`, with this many live versions. Those of one row come in the order they were sealed
    /// in.
    pub fn restore(&mut self, at: SegmentAt, live: u16, stored: &SegmentTable) {
        let segment = Segment::new(at, stored.hashed_pages, stored.sequences(), stored.records, live);
        let parameters = self.parameters;
        self.change_row(stored.row, |row| {
            row.push(segment, &stored.table, &parameters);
            row.note_sealed(&stored.sequences);
            row.reopen(&parameters, row.next_table());
        });
        self.segment_count += 1;
    }

    /// A segment lies elsewhere from now on; returns its place in the row, or nothing if it does not exist any more.
    pub fn relocate(&mut self, row: u32, from: SegmentAt, to: SegmentAt) -> Option<u32> {
        let mut segments = self.rows[row as usize].groups.iter_mut().flat_map(|group| &mut group.segments);
        let position = segments.position(|segment| segment.at() == from)?;
        let mut segments = self.rows[row as usize].groups.iter_mut().flat_map(|group| &mut group.segments);
        segments.nth(position).expect("just seen").set_at(to);
        Some(position as u32)
    }

    /// Versions of a key, newest first, of those with a sequence before `before`.
    pub fn search(&self, key: &Key, before: u64) -> Search<'_> {
        let hash = self.hash(key);
        Search::new(&self.rows[hash.row(self.parameters.rows) as usize], *key, hash, before)
    }

    /// The segments of a row, oldest first.
    pub fn segments(&self, row: u32) -> impl DoubleEndedIterator<Item = SegmentInfo> {
        self.rows[row as usize].groups.iter().flat_map(move |group| self.segments_of(row, group))
    }

    /// All versions of a row that are or were in segments have sequences before this. The sequences in the segments themselves may be too high.
    pub fn sealed_end(&self, row: u32) -> u64 {
        self.rows[row as usize].sealed_end
    }

    fn segments_of(&self, row: u32, group: &Group) -> impl DoubleEndedIterator<Item = SegmentInfo> {
        let table_pages = group.table_pages(&self.parameters);
        group.segments.iter().map(move |segment| SegmentInfo {
            at: segment.at(),
            row,
            sequences: segment.sequences(),
            records: segment.records.into(),
            live: segment.live.into(),
            hashed_pages: segment.hashed_pages(),
            table_pages,
        })
    }

    /// The smallest sequence in the buffer that is not before `from`.
    pub fn oldest_buffered(&self, from: u64) -> Option<u64> {
        let mut known = self.oldest.lock().expect(UNPOISONED);
        let oldest = match *known {
            Some(oldest) if oldest.from == from => oldest,
            _ => Oldest { from, found: self.find_oldest(from) },
        };
        debug_assert_eq!(
            oldest.found.map(|(sequence, _)| sequence),
            self.find_oldest(from).map(|(sequence, _)| sequence)
        );
        *known = Some(oldest);
        oldest.found.map(|(sequence, _)| sequence)
    }

    fn find_oldest(&self, from: u64) -> Option<(u64, u32)> {
        let oldest = |row: &Row| {
            let entries = row.buffer.entries(); // in the order of their sequences
            let first = entries.first()?.sequence();
            if first >= from {
                return Some(first);
            }
            entries.get(entries.partition_point(|entry| entry.sequence() < from)).map(Buffered::sequence)
        };
        (0..).zip(&self.rows).filter_map(|(at, row)| Some((oldest(row)?, at))).min()
    }

    /// Versions in the buffer with sequences before `before`, row by row: those to be made durable elsewhere before what
    /// keeps them now is released.
    pub fn stragglers(&self, before: u64) -> impl Iterator<Item = (Version, &[u8])> {
        let versions = (0..self.parameters.rows).map(|row| self.buffered(row));
        versions.flat_map(move |row| row.take_while(move |(version, _)| version.sequence < before))
    }

    /// The versions of a row that are in the buffer, oldest first.
    pub fn buffered(&self, row: u32) -> impl DoubleEndedIterator<Item = (Version, &[u8])> {
        self.rows[row as usize].buffer.entries().iter().map(Buffered::read)
    }

    /// Versions of all keys.
    pub fn version_count(&self) -> u64 {
        let buffered: usize = self.rows.iter().map(|row| row.buffer.entries().len()).sum();
        self.live_estimate().0 + buffered as u64
    }

    /// Versions in the page buffer, and how many of them are the newest of their key there.
    pub fn live_buffered(&self) -> (u64, u64) {
        let entries = self.rows.iter().flat_map(|row| row.buffer.entries());
        entries.fold((0, 0), |(all, live), entry| {
            // An older one next to it is no longer the newest.
            (all + 1, live + u64::from(entry.older == NONE))
        })
    }

    /// Deletes in the page buffer.
    pub fn buffered_deletes(&self) -> u64 {
        let entries = self.rows.iter().flat_map(|row| row.buffer.entries());
        entries.filter(|entry| entry.read().0.kind == Kind::Tombstone).count() as u64
    }

    /// Versions in segments, and how many of them are the newest of their key, by the counts kept when sealing.
    pub fn live_estimate(&self) -> (u64, u64) {
        let segments = self.rows.iter().flat_map(|row| &row.groups).flat_map(|group| &group.segments);
        segments.fold((0, 0), |(all, live), s| (all + u64::from(s.records), live + u64::from(s.live)))
    }

    pub(crate) fn hash(&self, key: &Key) -> KeyHash {
        KeyHash::of(key, self.parameters.seed)
    }

    /// Groups of a row that no segment joins any more: all but the last, or all.
    pub(crate) fn closed_groups(&self, row: u32) -> usize {
        let groups = &self.rows[row as usize].groups;
        groups.len() - usize::from(groups.last().is_some_and(|group| !group.is_full()))
    }

    /// Segments of each group of a row, oldest first.
    pub(crate) fn group_sizes(&self, row: u32) -> Vec<usize> {
        self.rows[row as usize].groups.iter().map(|group| group.segments.len()).collect()
    }

    /// What the table of a segment should be like that follows the first `segments` of a row, and the number of its table of filters.
    pub(crate) fn room_after(&self, row: u32, segments: usize) -> (Room, u32) {
        self.rows[row as usize].room_after(segments)
    }

    /// Removes versions of a row from the buffer; how many. No segment of the row may be sealed and not installed.
    pub(crate) fn drop_buffered(&mut self, row_index: u32, sequences: &BTreeSet<u64>) -> u64 {
        let parameters = self.parameters;
        let row = &mut self.rows[row_index as usize];
        let before = row.buffer.cost();
        let dropped = row.drop_buffered(sequences, &parameters, row.next_table());
        self.buffered_bytes -= before - row.buffer.cost();
        self.oldest.get_mut().expect(UNPOISONED).take_if(|known| known.found.is_some_and(|(_, row)| row == row_index));
        dropped
    }

    /// With the paper's index: runs of `count` full tables of a row, the paper's internal versions. For each, the share of bits
    /// that all its tables have set, by which the paper guesses how much of it is live, and its segments.
    ///
    /// Tables have bits at the same positions only where [`crate::BloomParameters::growth_permille`] is 1000.
    pub fn bits_in_common(&self, count: usize) -> Vec<(f64, Vec<SegmentInfo>)> {
        let full = |row: &Row| row.groups.iter().take_while(|group| group.is_full()).count();
        let runs = (0..)
            .zip(&self.rows)
            .flat_map(|(number, row)| row.groups[..full(row)].chunks_exact(count).map(move |run| (number, run)));
        let segments = |row: u32, run: &[Group]| run.iter().flat_map(|group| self.segments_of(row, group)).collect();
        runs.filter_map(|(row, run)| Some((Group::bits_in_common(run)?, segments(row, run)))).collect()
    }

    /// Puts new segments in place of some others of a row; returns their addresses.
    pub(crate) fn replace(
        &mut self,
        row: u32,
        segments: &Range<usize>,
        sealed: &[Sealed],
        live: &[u16],
        at: &[SegmentAt],
    ) -> Vec<SegmentAt> {
        let mut chain = Row::default();
        for (i, sealed) in sealed.iter().enumerate() {
            let records = sealed.records as u16;
            let segment = Segment::new(at[i], sealed.hashed_pages, sealed.sequences.clone(), records, live[i]);
            chain.push(segment, &sealed.table, &self.parameters);
        }
        let old = self.change_row(row, |row| row.splice(segments, chain.groups));
        let freed: Vec<SegmentAt> = old.iter().map(Segment::at).collect();
        self.segment_count = self.segment_count + sealed.len() as u64 - freed.len() as u64;
        freed
    }
}
