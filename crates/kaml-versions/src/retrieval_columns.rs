//! Retrieval tables of up to 64 segments, interleaved bit by bit and searched at once.
//!
//! Lives here:       adding a table, probing all of them, the page that a value names.
//! Lives elsewhere:  how a table is solved (`retrieval`), the segments' directory (`group`).
//! Implements:       paper:Muninn 4.3 (column-wise tables, Figure 5), with retrieval tables in place of Bloom filters.
//!
//! All tables of a group have the same length, so a version has the same positions in each. A position holds, plane
//! after plane, one bit of every segment:
//!
//! ```text
//! position p:  plane 0: s0 s1 … s63 │ plane 1: s0 s1 … s63 │ … │ plane 15: s0 s1 … s63
//! ```
//!
//! XOR over five positions gives the value in each segment; comparing it plane by plane with the requested fingerprint
//! leaves a mask whose highest bit is the newest segment that may have the version. With fewer segments the planes are
//! narrower, to the bit, so a group that still grows takes no more memory than its tables.

use crate::format;
use crate::hash::{KeyHash, VersionHash};
use crate::packed::Packed;
use std::ops::Range;

/// Bits of a value that name the candidate page.
pub(crate) const CHOICE_BITS: u32 = 2;
/// Planes at most: 30 bits of fingerprint are far more than anybody needs.
pub(crate) const PLANES_MAX: u32 = 32;

/// How a value is laid out: fingerprint in the low planes, choice in the two highest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueShape {
    /// Bits compared before a page is read, 4 to 28. One more halves the needless reads and costs an eighth of a byte a key.
    pub fingerprint_bits: u32,
    /// Candidate pages of a version, 2 to 4. With 3, equal records fill 99.9 % of a segment; mixed ones like 4 better. A
    /// choice beyond proves that a version does not exist.
    pub choices: u32,
}

impl Default for ValueShape {
    fn default() -> ValueShape {
        ValueShape { fingerprint_bits: 14, choices: 3 }
    }
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

/// A retrieval table of one segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RetrievalTable {
    pub(crate) shape: ValueShape,
    pub(crate) values: Vec<u32>,
}

/// The tables of a group.
#[derive(Debug)]
pub(crate) struct RetrievalColumns {
    positions: u32,
    shape: ValueShape,
    /// Of each position its planes.
    columns: Packed,
}

/// What a probe found: which segments may have the version, newest at the highest bit, and where.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetrievalProbe {
    pub(crate) mask: u64,
    /// The bits of the choice, one word each.
    choice: [u64; CHOICE_BITS as usize],
}

impl RetrievalProbe {
    /// The candidate page that a segment names.
    fn choice(&self, segment: u32) -> usize {
        self.choice.iter().rev().fold(0, |sum, word| sum << 1 | (word >> segment & 1)) as usize
    }
}

impl RetrievalColumns {
    /// For tables as long as this one.
    pub(crate) fn new(table: &RetrievalTable) -> RetrievalColumns {
        RetrievalColumns { positions: table.values.len() as u32, shape: table.shape, columns: Packed::default() }
    }

    pub(crate) fn positions(&self) -> u32 {
        self.positions
    }

    /// Whether a table may join.
    pub(crate) fn takes(&self, table: &RetrievalTable) -> bool {
        (self.positions as usize, self.shape) == (table.values.len(), table.shape)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.columns.memory_bytes()
    }

    /// Pages that each table takes.
    pub(crate) fn table_pages(&self, page_bytes: u32) -> u32 {
        format::table_pages(self.positions, self.shape, page_bytes)
    }

    /// Adds the newest segment's.
    pub(crate) fn push(&mut self, table: &RetrievalTable) {
        assert!(table.values.len() == self.positions as usize, "all tables of a group are of one length");
        let planes = self.shape.planes();
        let bits = table.values.iter().flat_map(|value| (0..planes).map(move |plane| value >> plane & 1 == 1));
        self.columns.push(table.values.len() * planes as usize, bits);
    }

    fn column_count(&self) -> usize {
        self.positions as usize * self.shape.planes() as usize
    }

    /// The tables of some of the segments.
    pub(crate) fn slice(&self, segments: Range<usize>) -> RetrievalColumns {
        RetrievalColumns { columns: self.columns.slice(self.column_count(), segments), ..*self }
    }

    /// Adds the tables of newer segments, if they are of this length; returns whether they are.
    pub(crate) fn append(&mut self, newer: &RetrievalColumns) -> bool {
        let is_alike = (self.positions, self.shape) == (newer.positions, newer.shape);
        if is_alike {
            self.columns.append(self.column_count(), &newer.columns);
        }
        is_alike
    }

    /// How many versions of the key a segment seems to have: one has ordinal 0, the others are tested in turn.
    pub(crate) fn ordinals(&self, hash: KeyHash, segment: u32) -> u16 {
        let has = |ordinal: &u16| self.probe(&hash.version(*ordinal)).mask >> segment & 1 == 1;
        1 + (1..u16::MAX).take_while(has).count() as u16
    }

    /// The page, of this many, where a version would be; `probe` is that of ordinal 0.
    pub(crate) fn page(&self, probe: &RetrievalProbe, hash: KeyHash, segment: u32, ordinal: u16, pages: u32) -> u32 {
        let hash = hash.version(ordinal);
        let choice = if ordinal == 0 { probe.choice(segment) } else { self.probe(&hash).choice(segment) };
        hash.page(choice, pages)
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
    pub(crate) fn probe(&self, hash: &VersionHash) -> RetrievalProbe {
        let planes = self.shape.planes() as usize;
        let first = hash.positions(self.positions).map(|at| at as usize * planes);
        let words = first.map(|column| self.columns.words(column, planes));
        match words {
            [Some(a), Some(b), Some(c), Some(d), Some(e)] => {
                self.compare(hash, |plane| a[plane] ^ b[plane] ^ c[plane] ^ d[plane] ^ e[plane])
            }
            _ if self.columns.width() == 0 => RetrievalProbe::default(),
            _ => self.compare(hash, |plane| first.iter().fold(0, |sum, at| sum ^ self.columns.read(at + plane))),
        }
    }

    /// Keeps the segments whose fingerprint is the requested one, and stops when none is left.
    fn compare(&self, hash: &VersionHash, plane: impl Fn(usize) -> u64) -> RetrievalProbe {
        let mut mask = self.columns.all();
        for at in 0..self.shape.fingerprint_bits {
            let wanted = 0u64.wrapping_sub(u64::from(hash.fingerprint >> at & 1));
            mask &= !(plane(at as usize) ^ wanted);
            if mask == 0 {
                return RetrievalProbe::default();
            }
        }
        let choice = std::array::from_fn(|bit| plane(self.shape.fingerprint_bits as usize + bit));
        let illegal = (self.shape.choices..1 << CHOICE_BITS).fold(0, |sum, code| {
            let is = |bit: usize| if code >> bit & 1 == 1 { choice[bit] } else { !choice[bit] };
            sum | (is(0) & is(1))
        });
        RetrievalProbe { mask: mask & !illegal, choice }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::WIDTH_MAX;
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

    fn table(segment: u64) -> RetrievalTable {
        let count = positions();
        let mut system = System::new(count);
        for record in 0..RECORDS {
            let hash = hash(segment, record);
            assert!(system.add(&hash.positions(count), SHAPE.value(&hash, (record % 3) as u8)), "no contradictions");
        }
        RetrievalTable { shape: SHAPE, values: system.solve(SHAPE.planes()) }
    }

    /// Goal:   at every width, a probe names the segment and the candidate of each record, and little else.
    /// Method: push 64 segments; after each, look for all records so far and for absent ones; read tables back.
    #[test]
    fn probes_find_every_record_at_every_width() {
        let mut group = RetrievalColumns::new(&table(0));
        let mut false_hits = 0;
        for newest in 0..WIDTH_MAX as u64 {
            group.push(&table(newest));
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
            assert_eq!(group.table(segment), table(segment as u64).values);
        }
    }
}
