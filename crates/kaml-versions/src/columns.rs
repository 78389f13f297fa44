//! The index: rows of the page buffer, and for each row the groups of its sealed segments, oldest first.
//!
//! Lives here:       inserting, deciding which row is sealed, installing what was sealed, live counts, memory in use.
//! Lives elsewhere:  finding (`search`), sealing (`seal`), versions and snapshots (`space`).
//! Implements:       paper:Muninn 4.2-4.3; docs/versioned.md.

use crate::Error;
use crate::buffer::{BufferRow, Buffered, ENTRY_BYTES};
use crate::format;
use crate::group::{Group, Segment, SegmentAt, ValueShape};
use crate::hash::KeyHash;
use crate::parameters::Parameters;
use crate::record::{Kind, Version};
use crate::seal::{Room, Sealed, seal};
use crate::search::Search;
use kaml_index::Key;
use std::ops::Range;

/// A row fuller than this, in quarters of a segment, is sealed even while the buffer has room: a hot key must not fill
/// it.
const ROW_QUARTERS_MAX: usize = 5;

/// A chain of segments and what will be in its next one.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) buffer: BufferRow,
    pub(crate) groups: Vec<Group>,
}

/// Versions of many keys, found by hash.
#[derive(Debug)]
pub struct Columns {
    parameters: Parameters,
    rows: Vec<Row>,
    buffered_bytes: usize,
    segment_count: u64,
}

/// A sealed segment, for whoever reads all of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentInfo {
    /// Where it lies.
    pub at: SegmentAt,
    /// Its row.
    pub row: u32,
    /// All its versions' sequences are in this range; not every one in it is there.
    pub sequences: Range<u64>,
    /// Versions in it.
    pub records: u32,
    /// Of these, the newest of their key, as far as memory tells.
    pub live: u32,
    /// Pages, from the first, that have records.
    pub hashed_pages: u32,
}

/// Where memory goes, in bytes.
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
        let rows = (0..parameters.rows).map(|_| Row::default()).collect();
        Ok(Columns { parameters, rows, buffered_bytes: 0, segment_count: 0 })
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
        let groups = |row: &Row| row.groups.iter().map(Group::memory_bytes).sum::<usize>();
        let rows: usize = self.rows.iter().map(|row| size_of::<Row>() + groups(row)).sum();
        MemoryUse { buffer_bytes: self.buffered_bytes, index_bytes: rows + size_of::<Columns>() }
    }

    /// Puts a version into the buffer. `version` says what it is; its kind is a value or a tombstone, its sequence the
    /// largest of its key. Seal what [`Columns::wants_seal`] names afterwards.
    pub fn insert(&mut self, version: &Version, value: &[u8]) -> Result<(), Error> {
        let max = self.parameters.value_bytes_max();
        if value.len() as u64 > max {
            return Err(Error::ValueTooLarge { bytes: value.len() as u64, max });
        }
        debug_assert!(version.value_len as usize == value.len() && !matches!(version.kind, Kind::Extent(_)));
        let record = version.record(value);
        let hash = self.hash(&version.key);
        self.buffered_bytes += record.len() + ENTRY_BYTES;
        let row = hash.row(self.parameters.rows);
        self.rows[row as usize].buffer.push(hash, &version.key, record);
        Ok(())
    }

    /// The row that should be sealed now: the fullest one, if the buffer is full, or one that is full itself.
    pub fn wants_seal(&self, last: &Key) -> Option<u32> {
        let last = self.hash(last).row(self.parameters.rows);
        let row_max = self.parameters.segment_bytes() * ROW_QUARTERS_MAX / 4;
        if self.rows[last as usize].buffer.bytes() > row_max {
            return Some(last);
        }
        (self.buffered_bytes as u64 > self.parameters.buffer_bytes).then(|| self.fullest())
    }

    /// The row that has most in the buffer.
    pub fn fullest(&self) -> u32 {
        let rows = 0..self.parameters.rows;
        rows.max_by_key(|row| self.rows[*row as usize].buffer.cost()).expect("at least one row")
    }

    /// Takes a segment full of versions out of the buffer. Until it is installed, searches do not find them; so nothing
    /// comes between, and the address is known before the image is programmed.
    pub fn seal(&mut self, row_index: u32) -> Option<Sealed> {
        let row = &mut self.rows[row_index as usize];
        let before = row.buffer.cost();
        let room = match row.groups.last() {
            Some(group) if !group.is_full() => Room::Join(group.positions()),
            _ => Room::New,
        };
        let sealed = seal(row_index, &mut row.buffer, &self.parameters, room);
        self.buffered_bytes -= before - row.buffer.cost();
        sealed
    }

    /// A sealed segment lies at `at` from now on. Answers its table as bytes, for [`Columns::restore`].
    pub fn install(&mut self, sealed: &Sealed, at: SegmentAt) -> Vec<u8> {
        let row = &mut self.rows[sealed.row as usize];
        sealed.keys.iter().for_each(|key| row.outlive(*key));
        let number: usize = row.groups.iter().map(|group| group.segments.len()).sum();
        let shape = self.parameters.value_shape();
        let (records, keys) = (sealed.records as u16, sealed.keys.len() as u16);
        let segment = Segment::new(at, sealed.hashed_pages, sealed.sequences.clone(), records, keys);
        row.push(segment, &sealed.table, shape);
        self.segment_count += 1;
        format::encode(sealed, at, number as u32, shape)
    }

    /// Installs a segment again from the bytes of its table. Those of one row come in the order they were sealed in; live
    /// counts are as if nothing had been sealed since.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let stored = format::decode(bytes, &self.parameters)?;
        let row = &mut self.rows[stored.row as usize];
        if stored.number as usize != row.groups.iter().map(|group| group.segments.len()).sum::<usize>() {
            return Err(Error::DamagedTable("out of order"));
        }
        let segment = Segment::new(stored.at, stored.hashed_pages, stored.sequences, stored.records, stored.keys);
        row.push(segment, &stored.table, self.parameters.value_shape());
        self.segment_count += 1;
        Ok(())
    }

    /// Versions of a key, newest first, of those with a sequence before `before`.
    pub fn search(&self, key: &Key, before: u64) -> Search<'_> {
        let hash = self.hash(key);
        Search::new(&self.rows[hash.row(self.parameters.rows) as usize], *key, hash, before)
    }

    /// The segments of a row, oldest first.
    pub fn segments(&self, row: u32) -> impl DoubleEndedIterator<Item = SegmentInfo> {
        let segments = self.rows[row as usize].groups.iter().flat_map(|group| &group.segments);
        segments.map(move |segment| SegmentInfo {
            at: segment.at(),
            row,
            sequences: segment.first_sequence()..segment.end_sequence(),
            records: segment.records.into(),
            live: segment.live.into(),
            hashed_pages: segment.hashed_pages(),
        })
    }

    /// The smallest sequence in the buffer: whatever keeps the buffer durable may forget what is older.
    pub fn oldest_buffered(&self) -> Option<u64> {
        let first = |row: &Row| row.buffer.entries().first().map(|entry| entry.read().0.sequence);
        self.rows.iter().filter_map(first).min()
    }

    /// Versions in the buffer with sequences before `before`, row by row: those to be made durable again before what
    /// keeps them now is given back.
    pub fn stragglers(&self, before: u64) -> impl Iterator<Item = (Version, &[u8])> {
        let versions = (0..self.parameters.rows).map(|row| self.buffered(row));
        versions.flat_map(move |row| row.take_while(move |(version, _)| version.sequence < before))
    }

    /// The versions of a row that are in the buffer, oldest first.
    pub fn buffered(&self, row: u32) -> impl DoubleEndedIterator<Item = (Version, &[u8])> {
        self.rows[row as usize].buffer.entries().iter().map(Buffered::read)
    }

    /// Versions in segments, and how many of them are the newest of their key, by the counts kept when sealing.
    pub fn live_estimate(&self) -> (u64, u64) {
        let segments = self.rows.iter().flat_map(|row| &row.groups).flat_map(|group| &group.segments);
        segments.fold((0, 0), |(all, live), s| (all + u64::from(s.records), live + u64::from(s.live)))
    }

    pub(crate) fn hash(&self, key: &Key) -> KeyHash {
        KeyHash::of(key, self.parameters.seed)
    }

    /// Segments of each group of a row, oldest first.
    pub(crate) fn group_sizes(&self, row: u32) -> Vec<usize> {
        self.rows[row as usize].groups.iter().map(|group| group.segments.len()).collect()
    }

    /// Seals versions that are not in the buffer, to join segments with tables of so many positions if they can.
    pub(crate) fn seal_row(&self, row: u32, versions: &mut BufferRow, positions: Option<u32>) -> Option<Sealed> {
        seal(row, versions, &self.parameters, positions.map_or(Room::New, Room::Join))
    }

    /// Puts new segments in place of some groups of a row; answers the old segments' addresses and the new ones' tables.
    pub(crate) fn replace(
        &mut self,
        row: u32,
        groups: Range<usize>,
        sealed: &[Sealed],
        live: &[u16],
        at: &[SegmentAt],
    ) -> (Vec<SegmentAt>, Vec<Vec<u8>>) {
        let shape = self.parameters.value_shape();
        let first: usize = self.group_sizes(row)[..groups.start].iter().sum();
        let mut chain = Row::default();
        let mut tables = Vec::with_capacity(sealed.len());
        for (i, sealed) in sealed.iter().enumerate() {
            let records = sealed.records as u16;
            let segment = Segment::new(at[i], sealed.hashed_pages, sealed.sequences.clone(), records, live[i]);
            chain.push(segment, &sealed.table, shape);
            tables.push(format::encode(sealed, at[i], (first + i) as u32, shape));
        }
        let old: Vec<Group> = self.rows[row as usize].groups.splice(groups, chain.groups).collect();
        let freed: Vec<SegmentAt> = old.iter().flat_map(|group| &group.segments).map(Segment::at).collect();
        self.segment_count = self.segment_count + sealed.len() as u64 - freed.len() as u64;
        (freed, tables)
    }
}

impl Row {
    /// Adds the newest segment, to the open group if that has tables of this length.
    fn push(&mut self, segment: Segment, table: &[u32], shape: ValueShape) {
        let positions = table.len() as u32;
        let joins = self.groups.last().is_some_and(|group| !group.is_full() && group.positions() == positions);
        if !joins {
            self.groups.push(Group::new(positions, shape));
        }
        self.groups.last_mut().expect("one at least").push(segment, table);
    }

    /// A newer version of a key is sealed: the one before it, if there is one, is no longer the newest. Answered from
    /// memory, so it is wrong as often as a search reads a page in vain.
    fn outlive(&mut self, key: KeyHash) {
        let hash = key.version(0);
        for group in self.groups.iter_mut().rev() {
            let mask = group.probe(&hash).mask;
            if mask != 0 {
                let segment = &mut group.segments[63 - mask.leading_zeros() as usize];
                segment.live = segment.live.saturating_sub(1);
                return;
            }
        }
    }
}
