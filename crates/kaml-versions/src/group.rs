//! Up to 64 segments of a row, searched at once.
//!
//! Lives here:       their retrieval tables, interleaved bit by bit, and the directory of the segments.
//! Lives elsewhere:  how a table is solved (`retrieval`), the groups of a row (`columns`).
//! Implements:       paper:Muninn 4.3 (column-wise tables, Figure 5), with retrieval tables in place of Bloom filters.
//!
//! All tables of a group have the same length, so a version has the same positions in each. A position holds, plane
//! after plane, one bit of every segment:
//!
//! ```text
//! position p:  plane 0: s0 s1 … s63 │ plane 1: s0 s1 … s63 │ … │ plane 15: s0 s1 … s63
//! ```
//!
//! XOR over five positions gives the value in each segment; comparing it plane by plane with the wanted fingerprint
//! leaves a mask whose highest bit is the newest segment that may have the version. With fewer segments the planes are
//! narrower, to the bit, so a group that still grows takes no more memory than its tables.

use crate::hash::VersionHash;
use crate::packed::{Packed, WIDTH_MAX};
use std::ops::Range;

/// Segments of a group.
pub const SEGMENTS_MAX: usize = WIDTH_MAX;
/// Segments from which on an open group is closed for a merge.
const CLOSED_SEGMENTS_MIN: usize = 8;
/// The same if half of its versions are not the newest of their key.
const DYING_SEGMENTS_MIN: usize = 2;
/// Bits of a value that tell the candidate page.
pub(crate) const CHOICE_BITS: u32 = 2;
/// Planes at most: 30 bits of fingerprint are far more than anybody wants.
pub(crate) const PLANES_MAX: u32 = 32;

/// Where a segment lies on the medium, as the caller says: 48 bits.
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
    /// Of its sequences, as far as it goes.
    sequence_span: u32,
    pub(crate) records: u16,
    /// Keys whose newest version is here, as far as can be told from memory.
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

    pub(crate) fn first_sequence(&self) -> u64 {
        self.first_sequence
    }

    /// An upper bound of its sequences, exclusive.
    pub(crate) fn end_sequence(&self) -> u64 {
        match self.sequence_span {
            u32::MAX => u64::MAX,
            span => self.first_sequence + u64::from(span),
        }
    }
}

/// How a value is laid out: fingerprint in the low planes, choice in the two highest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ValueShape {
    pub(crate) fingerprint_bits: u32,
    /// Candidate pages; a choice beyond proves that the version is not there.
    pub(crate) choices: u32,
}

impl ValueShape {
    pub(crate) fn planes(self) -> u32 {
        self.fingerprint_bits + CHOICE_BITS
    }

    /// The value of a version placed at candidate `choice`.
    pub(crate) fn value(self, hash: &VersionHash, choice: u8) -> u32 {
        hash.fingerprint & ((1 << self.fingerprint_bits) - 1) | u32::from(choice) << self.fingerprint_bits
    }
}

/// The segments of a group and their tables.
#[derive(Debug)]
pub(crate) struct Group {
    positions: u32,
    shape: ValueShape,
    /// Of each position its planes.
    columns: Packed,
    pub(crate) segments: Vec<Segment>,
    /// No segment joins it any more, although it has room.
    is_closed: bool,
}

/// What a probe found: which segments may have the version, newest at the highest bit, and where.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probe {
    pub(crate) mask: u64,
    /// The bits of the choice, one word each.
    choice: [u64; CHOICE_BITS as usize],
}

impl Probe {
    /// The candidate page that a segment names.
    pub(crate) fn choice(&self, segment: u32) -> usize {
        self.choice.iter().rev().fold(0, |sum, word| sum << 1 | (word >> segment & 1)) as usize
    }
}

impl Group {
    pub(crate) fn new(positions: u32, shape: ValueShape) -> Group {
        Group { positions, shape, columns: Packed::default(), segments: Vec::new(), is_closed: false }
    }

    pub(crate) fn positions(&self) -> u32 {
        self.positions
    }

    pub(crate) fn is_full(&self) -> bool {
        self.is_closed || self.segments.len() == SEGMENTS_MAX
    }

    /// Whether a merge should close it. A small one is worth it only if much of it will go: else it would be one more to
    /// search for ever.
    pub(crate) fn is_worth_closing(&self) -> bool {
        let count = |of: fn(&Segment) -> u32| self.segments.iter().map(of).sum::<u32>();
        let (live, records) = (count(|segment| segment.live.into()), count(|segment| segment.records.into()));
        let (segments, is_dying) = (self.segments.len(), live * 2 <= records);
        segments >= CLOSED_SEGMENTS_MIN || (segments >= DYING_SEGMENTS_MIN && is_dying)
    }

    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.columns.memory_bytes() + self.segments.capacity() * size_of::<Segment>() + size_of::<Group>()
    }

    /// Adds the newest segment with its table.
    pub(crate) fn push(&mut self, segment: Segment, table: &[u32]) {
        assert!(table.len() == self.positions as usize, "all tables of a group are of one length");
        let planes = self.shape.planes();
        let bits = table.iter().flat_map(|value| (0..planes).map(move |plane| value >> plane & 1 == 1));
        self.columns.push(table.len() * planes as usize, bits);
        self.segments.reserve_exact(1);
        self.segments.push(segment);
    }

    /// The table of one segment, as it was pushed.
    #[cfg(test)]
    pub(crate) fn table(&self, segment: usize) -> Vec<u32> {
        let planes = self.shape.planes() as usize;
        let bit = |column: usize| (self.columns.read(column) >> segment) as u32 & 1;
        let value = |position: usize| (0..planes).fold(0, |sum, plane| sum | bit(position * planes + plane) << plane);
        (0..self.positions as usize).map(value).collect()
    }

    /// Which segments may have a version with this hash.
    pub(crate) fn probe(&self, hash: &VersionHash) -> Probe {
        let planes = self.shape.planes() as usize;
        let first = hash.positions(self.positions).map(|at| at as usize * planes);
        let words = first.map(|column| self.columns.words(column, planes));
        match words {
            [Some(a), Some(b), Some(c), Some(d), Some(e)] => {
                self.compare(hash, |plane| a[plane] ^ b[plane] ^ c[plane] ^ d[plane] ^ e[plane])
            }
            _ if self.columns.width() == 0 => Probe::default(),
            _ => self.compare(hash, |plane| first.iter().fold(0, |sum, at| sum ^ self.columns.read(at + plane))),
        }
    }

    /// Keeps the segments whose fingerprint is the wanted one, and stops when none is left.
    fn compare(&self, hash: &VersionHash, plane: impl Fn(usize) -> u64) -> Probe {
        let mut mask = self.columns.all();
        for at in 0..self.shape.fingerprint_bits {
            let wanted = 0u64.wrapping_sub(u64::from(hash.fingerprint >> at & 1));
            mask &= !(plane(at as usize) ^ wanted);
            if mask == 0 {
                return Probe::default();
            }
        }
        let choice = std::array::from_fn(|bit| plane(self.shape.fingerprint_bits as usize + bit));
        let illegal = (self.shape.choices..1 << CHOICE_BITS).fold(0, |sum, code| {
            let is = |bit: usize| if code >> bit & 1 == 1 { choice[bit] } else { !choice[bit] };
            sum | (is(0) & is(1))
        });
        Probe { mask: mask & !illegal, choice }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::KeyHash;
    use crate::retrieval::{System, positions_for};
    use kaml_index::Key;

    const SHAPE: ValueShape = ValueShape { fingerprint_bits: 14, choices: 3 };
    const RECORDS: u64 = 100;

    fn hash(segment: u64, record: u64) -> VersionHash {
        KeyHash::of(&Key::from(segment * RECORDS + record), 3).version(0)
    }

    /// Long enough for every seed to have a solution.
    fn positions() -> u32 {
        positions_for(RECORDS as usize) + 20
    }

    fn table(segment: u64) -> Vec<u32> {
        let count = positions();
        let mut system = System::new(count);
        for record in 0..RECORDS {
            let hash = hash(segment, record);
            assert!(system.add(&hash.positions(count), SHAPE.value(&hash, (record % 3) as u8)), "no contradictions");
        }
        system.solve(SHAPE.planes())
    }

    /// Goal:   at every width, a probe names the segment and the candidate of each record, and little else.
    /// Method: push 64 segments; after each, look for all records so far and for absent ones; read tables back.
    #[test]
    fn probes_find_every_record_at_every_width() {
        let mut group = Group::new(positions(), SHAPE);
        let mut false_hits = 0;
        for newest in 0..SEGMENTS_MAX as u64 {
            let at = SegmentAt::new(newest << 40).expect("48 bits");
            group.push(Segment::new(at, 256, newest..newest + 9, 100, 0), &table(newest));
            for segment in (0..=newest).step_by(7) {
                for record in 0..RECORDS {
                    let probe = group.probe(&hash(segment, record));
                    assert!(probe.mask >> segment & 1 == 1, "segment {segment} record {record} of {newest}");
                    assert_eq!(probe.choice(segment as u32), (record % 3) as usize);
                }
            }
            false_hits += (0..RECORDS).map(|r| group.probe(&hash(1000 + newest, r)).mask.count_ones()).sum::<u32>();
        }
        // 208000 comparisons, each wrong once in 16384 * 4 / 3: 9.5 expected.
        assert!(false_hits < 25, "{false_hits}");
        for segment in [0, 1, 31, 63] {
            assert_eq!(group.table(segment), table(segment as u64));
        }
        let last = group.segments[63];
        assert_eq!((last.at().get(), last.hashed_pages()), (63 << 40, 256));
        assert_eq!((last.first_sequence(), last.end_sequence()), (63, 72));
    }
}
