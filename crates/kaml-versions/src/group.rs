//! Up to 64 segments of a row, searched at once.
//!
//! Lives here:       the directory of the segments, which tables go together, dividing and joining groups.
//! Lives elsewhere:  their tables, column by column (`retrieval_columns`, `bloom`), the groups of a row (`row`).
//! Implements:       paper:Muninn 4.3 (read-only version tables, Figure 5).

use crate::bloom::{self, FilterColumns, FilterProbe};
use crate::hash::KeyHash;
use crate::packed::WIDTH_MAX;
use crate::parameters::{Index, Parameters};
use crate::retrieval_columns::{RetrievalColumns, RetrievalProbe};
use crate::seal::{Room, Table};
use std::ops::Range;

/// Segments of a group.
pub const SEGMENTS_MAX: usize = WIDTH_MAX;

/// Where a segment lies on the medium, as the caller reports it: 48 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentAt(u64);

impl SegmentAt {
    const BITS: u32 = 48;

    /// An address of at most 48 bits.
    pub fn new(at: u64) -> Option<SegmentAt> {
        (at >> Self::BITS == 0).then_some(SegmentAt(at))
    }

    /// The address.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// A segment in memory: 24 bytes, for there is one for each thousand records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    /// Address below, hashed pages less one above.
    place: u64,
    first_sequence: u64,
    /// The part of its sequences that fits.
    sequence_span: u32,
    pub(crate) records: u16,
    /// Keys whose newest version is here, as far as can be determined from memory.
    pub(crate) live: u16,
}

impl Segment {
    pub(crate) fn new(at: SegmentAt, hashed_pages: u32, sequences: Range<u64>, records: u16, live: u16) -> Segment {
        let span = (sequences.end - sequences.start).min(u64::from(u32::MAX)) as u32;
        let place = at.0 | u64::from(hashed_pages - 1) << SegmentAt::BITS;
        Segment { place, first_sequence: sequences.start, sequence_span: span, records, live }
    }

    pub(crate) fn at(&self) -> SegmentAt {
        SegmentAt(self.place & ((1 << SegmentAt::BITS) - 1))
    }

    pub(crate) fn set_at(&mut self, at: SegmentAt) {
        self.place = at.0 | u64::from(self.hashed_pages() - 1) << SegmentAt::BITS;
    }

    /// Pages that records are hashed to.
    pub(crate) fn hashed_pages(&self) -> u32 {
        (self.place >> SegmentAt::BITS) as u32 + 1
    }

    /// All its versions' sequences are in this range.
    pub(crate) fn sequences(&self) -> Range<u64> {
        let end = match self.sequence_span {
            u32::MAX => u64::MAX,
            span => self.first_sequence + u64::from(span),
        };
        self.first_sequence..end
    }
}

/// Tables of segments as columns.
#[derive(Debug)]
enum Tables {
    Retrieval(RetrievalColumns),
    Filters(Box<FilterColumns>),
}

/// The segments of a group and their tables.
#[derive(Debug)]
pub(crate) struct Group {
    tables: Tables,
    pub(crate) segments: Vec<Segment>,
    segments_max: usize,
}

/// What a probe of a group found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Probe {
    Retrieval(RetrievalProbe),
    Filters(FilterProbe),
}

impl Probe {
    /// Segments that may have the key, the newest at the highest bit.
    pub(crate) fn mask(&self) -> u64 {
        match self {
            Probe::Retrieval(probe) => probe.mask,
            Probe::Filters(probe) => probe.mask(),
        }
    }
}

/// Ordinals that a key's versions seem to have in a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ordinals {
    /// All below this.
    Below(u16),
    /// Those whose bits are set.
    Set(u32),
}

impl Ordinals {
    /// Takes the last one, which is the newest version's.
    pub(crate) fn take_last(&mut self) -> Option<u16> {
        match self {
            Ordinals::Below(end) => {
                *end = end.checked_sub(1)?;
                Some(*end)
            }
            Ordinals::Set(bits) => {
                let last = 31u32.checked_sub(bits.leading_zeros())?;
                *bits &= !(1 << last);
                Some(last as u16)
            }
        }
    }
}

impl Group {
    /// An empty group for segments with tables like this one.
    pub(crate) fn new(table: &Table, parameters: &Parameters) -> Group {
        let segments_max = match parameters.index {
            Index::Columns(_) => SEGMENTS_MAX,
            Index::Bloom(bloom) => bloom.combined as usize,
        };
        let tables = match table {
            Table::Retrieval(table) => Tables::Retrieval(RetrievalColumns::new(table)),
            Table::Filters(table) => Tables::Filters(Box::new(FilterColumns::new(table))),
        };
        Group { tables, segments: Vec::new(), segments_max }
    }

    /// Whether a segment with such a table may join.
    pub(crate) fn takes(&self, table: &Table) -> bool {
        let is_alike = match (&self.tables, table) {
            (Tables::Retrieval(tables), Table::Retrieval(table)) => tables.takes(table),
            (Tables::Filters(tables), Table::Filters(table)) => tables.takes(table),
            (Tables::Retrieval(_), Table::Filters(_)) | (Tables::Filters(_), Table::Retrieval(_)) => false,
        };
        is_alike && !self.is_full()
    }

    /// What the next segment's table should be like to join.
    pub(crate) fn room(&self) -> Room {
        match &self.tables {
            Tables::Retrieval(tables) if !self.is_full() => Room::Join(tables.positions()),
            Tables::Retrieval(_) | Tables::Filters(_) => Room::New,
        }
    }

    /// The same if it had only its first segments.
    pub(crate) fn room_below(&self, segments: usize) -> Room {
        match &self.tables {
            Tables::Retrieval(tables) if segments > 0 => Room::Join(tables.positions()),
            Tables::Retrieval(_) | Tables::Filters(_) => Room::New,
        }
    }

    /// Which of the row's tables of filters this is, and the next segment's.
    pub(crate) fn table_numbers(&self) -> (u32, u32) {
        match &self.tables {
            Tables::Retrieval(_) => (0, 0),
            Tables::Filters(tables) => (tables.number(), tables.number() + u32::from(self.is_full())),
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.segments.len() >= self.segments_max
    }

    /// A group of some of its segments.
    pub(crate) fn slice(&self, segments: Range<usize>) -> Group {
        let tables = match &self.tables {
            Tables::Retrieval(tables) => Tables::Retrieval(tables.slice(segments.clone())),
            Tables::Filters(tables) => Tables::Filters(Box::new(tables.slice(segments.clone()))),
        };
        Group { tables, segments: self.segments[segments].to_vec(), segments_max: self.segments_max }
    }

    /// Takes the newer segments of another group, if there is room and their tables are alike; returns whether it did.
    pub(crate) fn append(&mut self, newer: &Group) -> bool {
        if self.segments.len() + newer.segments.len() > self.segments_max {
            return false;
        }
        let is_alike = match (&mut self.tables, &newer.tables) {
            (Tables::Retrieval(tables), Tables::Retrieval(newer)) => tables.append(newer),
            (Tables::Filters(tables), Tables::Filters(newer)) => tables.append(newer),
            (Tables::Retrieval(_), Tables::Filters(_)) | (Tables::Filters(_), Tables::Retrieval(_)) => false,
        };
        if is_alike {
            self.segments.reserve_exact(newer.segments.len());
            self.segments.extend(&newer.segments);
        }
        is_alike
    }

    /// Memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let tables = match &self.tables {
            Tables::Retrieval(tables) => tables.memory_bytes(),
            Tables::Filters(tables) => tables.memory_bytes(),
        };
        tables + self.segments.capacity() * size_of::<Segment>() + size_of::<Group>()
    }

    /// Pages that the table of each segment takes.
    pub(crate) fn table_pages(&self, parameters: &Parameters) -> u32 {
        match (&self.tables, &parameters.index) {
            (Tables::Retrieval(tables), _) => tables.table_pages(parameters.page_bytes),
            (Tables::Filters(_), Index::Bloom(bloom)) => bloom.table_pages(parameters.page_bytes),
            (Tables::Filters(_), Index::Columns(_)) => unreachable!("tables are of the namespace's index"),
        }
    }

    /// Adds the newest segment with its table, which the group takes.
    pub(crate) fn push(&mut self, segment: Segment, table: &Table) {
        match (&mut self.tables, table) {
            (Tables::Retrieval(tables), Table::Retrieval(table)) => tables.push(table),
            (Tables::Filters(tables), Table::Filters(table)) => tables.push(table),
            (Tables::Retrieval(_), Table::Filters(_)) | (Tables::Filters(_), Table::Retrieval(_)) => {
                unreachable!("all tables of a namespace are of its index")
            }
        }
        self.segments.reserve_exact(1);
        self.segments.push(segment);
    }

    /// Which segments may have a key.
    pub(crate) fn probe(&self, hash: KeyHash) -> Probe {
        match &self.tables {
            Tables::Retrieval(tables) => Probe::Retrieval(tables.probe(&hash.version(0))),
            Tables::Filters(tables) => Probe::Filters(tables.probe(hash)),
        }
    }

    /// Which versions of the key a segment of the probe's mask seems to have; with `below`, which was one of them, those before it.
    pub(crate) fn ordinals(&self, probe: &Probe, hash: KeyHash, segment: u32, below: Option<u16>) -> Ordinals {
        match (&self.tables, probe) {
            // Requesting thousands of them with each step would take a walk over them minutes.
            (Tables::Retrieval(tables), _) => Ordinals::Below(below.unwrap_or_else(|| tables.ordinals(hash, segment))),
            (Tables::Filters(tables), Probe::Filters(probe)) => {
                let all = tables.places(probe, segment, hash);
                Ordinals::Set(below.map_or(all, |below| all & ((1 << below) - 1)))
            }
            (Tables::Filters(_), Probe::Retrieval(_)) => unreachable!("a probe of this group"),
        }
    }

    /// The page where a version of the key would be.
    pub(crate) fn page(&self, probe: &Probe, hash: KeyHash, segment: u32, ordinal: u16) -> u32 {
        let pages = self.segments[segment as usize].hashed_pages();
        match (&self.tables, probe) {
            (Tables::Retrieval(tables), Probe::Retrieval(probe)) => tables.page(probe, hash, segment, ordinal, pages),
            (Tables::Retrieval(_), Probe::Filters(_)) | (Tables::Filters(_), _) => bloom::page(hash, ordinal, pages),
        }
    }

    /// The share of bits that all tables of some groups of filters have set; nothing of other groups.
    pub(crate) fn bits_in_common(groups: &[Group]) -> Option<f64> {
        let tables = groups.iter().map(|group| match &group.tables {
            Tables::Retrieval(_) => None,
            Tables::Filters(tables) => Some(&**tables),
        });
        tables.collect::<Option<Vec<_>>>().map(|tables| FilterColumns::bits_in_common(&tables))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   what a segment's directory entry packs comes back.
    /// Method: one at the limits of its fields, and one whose sequences span more than it can express.
    #[test]
    fn segments_are_packed_without_loss() {
        let at = SegmentAt::new((1 << 48) - 1).expect("48 bits");
        let segment = Segment::new(at, 1 << 16, 5..72, 100, 7);
        assert_eq!((segment.at(), segment.hashed_pages()), (at, 1 << 16));
        assert_eq!(segment.sequences(), 5..72);
        assert_eq!(Segment::new(at, 1, 5..1 << 40, 1, 0).sequences(), 5..u64::MAX);
        assert_eq!(SegmentAt::new(1 << 48), None);
    }
}
