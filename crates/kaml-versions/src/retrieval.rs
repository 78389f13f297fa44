//! One segment's retrieval table: a value for each of its records, readable by hash, without the keys.
//!
//! Lives here:       the linear system of a table and its solution.
//! Lives elsewhere:  what the values mean (`seal`), how 64 tables are read at once (`group`).
//! Implements:       docs/versioned.md "Retrieval tables" (a static function by XOR of positions).
//!
//! A record's value is the XOR of five positions of the table. Each record is thus one linear equation over GF(2), and a
//! table one percent longer than its records are many nearly always satisfies all of them. A record whose equation
//! contradicts older ones is refused: it waits for the next segment instead.

use crate::hash::POSITIONS;

/// The equations so far, in echelon form: the row of a pivot has no bit below it.
#[derive(Debug)]
pub(crate) struct System {
    count: usize,
    words: usize,
    /// For each position: the row whose lowest bit it is, if `present`.
    rows: Vec<u64>,
    present: Vec<bool>,
    values: Vec<u32>,
    scratch: Vec<u64>,
}

impl System {
    /// No equations over `count` positions.
    pub(crate) fn new(count: u32) -> System {
        let count = count as usize;
        let words = count.div_ceil(64);
        System {
            count,
            words,
            rows: vec![0; words * count],
            present: vec![false; count],
            values: vec![0; count],
            scratch: vec![0; words],
        }
    }

    /// Adds the equation that these positions' XOR is `value`; false, and nothing changes, if it contradicts others.
    pub(crate) fn add(&mut self, positions: &[u32; POSITIONS], mut value: u32) -> bool {
        self.scratch.fill(0);
        positions.iter().for_each(|at| self.scratch[*at as usize / 64] ^= 1 << (at % 64));
        let mut word = 0;
        while word < self.words {
            if self.scratch[word] == 0 {
                word += 1;
                continue;
            }
            let pivot = word * 64 + self.scratch[word].trailing_zeros() as usize;
            let row = &mut self.rows[pivot * self.words..(pivot + 1) * self.words];
            if !self.present[pivot] {
                row[word..].copy_from_slice(&self.scratch[word..]);
                self.present[pivot] = true;
                self.values[pivot] = value;
                return true;
            }
            self.scratch[word..].iter_mut().zip(&row[word..]).for_each(|(bits, other)| *bits ^= other);
            value ^= self.values[pivot];
        }
        value == 0
    }

    /// Values of all positions that satisfy every equation; those that nothing determines are zero. `planes` is how many
    /// bits of a value count.
    pub(crate) fn solve(&self, planes: u32) -> Vec<u32> {
        // One bit vector for each plane, so an equation is settled by the parity of two vectors' common bits.
        let mut solved = vec![0u64; self.words * planes as usize];
        let mut table = vec![0; self.count];
        for pivot in (0..self.count).rev().filter(|pivot| self.present[*pivot]) {
            let first = pivot / 64;
            let row = &self.rows[pivot * self.words + first..(pivot + 1) * self.words];
            let mut value = 0;
            for (plane, bits) in solved.chunks_exact_mut(self.words).enumerate() {
                let known = row.iter().zip(&bits[first..]).fold(0, |sum, (a, b)| sum ^ (a & b));
                let bit = (known.count_ones() ^ (self.values[pivot] >> plane)) & 1;
                value |= bit << plane;
                bits[first] |= u64::from(bit) << (pivot % 64);
            }
            table[pivot] = value;
        }
        table
    }
}

/// Positions that a table for this many records has. One percent more than records, and four more in any case: a
/// solution exists nearly always, whatever the size.
pub(crate) fn positions_for(records: usize) -> u32 {
    (records + (records / 100).max(4)) as u32
}

/// The most records that a table of this many positions is made for.
pub(crate) fn records_for(positions: u32) -> usize {
    let positions = positions as usize;
    let guess = positions.saturating_sub((positions / 101).max(4));
    (guess.saturating_sub(1)..=guess + 1).rev().find(|n| positions_for(*n) as usize <= positions).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::KeyHash;
    use kaml_index::Key;

    fn equation(key: u64, count: u32) -> ([u32; POSITIONS], u32) {
        let hash = KeyHash::of(&Key::from(key), 5).version(0);
        (hash.positions(count), hash.fingerprint & 0xffff)
    }

    /// Goal:   a table answers the value of every record that was not refused, and hardly any is refused.
    /// Method: tables of 0 to 1024 records.
    #[test]
    fn tables_answer_what_was_put_in() {
        let mut refused = 0;
        for records in [0, 1, 2, 15, 64, 100, 500, 1024] {
            for seed in 0..4 {
                let count = positions_for(records);
                let mut system = System::new(count);
                let keys = (0..records as u64).map(|key| key + seed * 10_000);
                let kept: Vec<u64> = keys
                    .filter(|key| {
                        let (positions, value) = equation(*key, count);
                        system.add(&positions, value)
                    })
                    .collect();
                refused += records - kept.len();
                let table = system.solve(16);
                for key in kept {
                    let (positions, value) = equation(key, count);
                    assert_eq!(positions.iter().fold(0, |sum, at| sum ^ table[*at as usize]), value);
                }
            }
        }
        // 32 tables; the smallest ones, whose positions often coincide, refuse most.
        assert!(refused <= 32, "{refused} of 6824 refused");
    }

    /// Goal:   an equation that contradicts others is refused and leaves them as they were.
    /// Method: the same positions with another value.
    #[test]
    fn contradictions_are_refused() {
        let mut system = System::new(10);
        assert!(system.add(&[1, 2, 3, 4, 5], 7));
        assert!(system.add(&[1, 2, 3, 4, 5], 7), "an equation that follows from others is no contradiction");
        assert!(!system.add(&[1, 2, 3, 4, 5], 8));
        let table = system.solve(4);
        assert_eq!(table[1..=5].iter().fold(0, |sum, value| sum ^ value), 7);
    }

    /// Goal:   the two sizes belong together.
    /// Method: every number of records up to some thousands.
    #[test]
    fn sizes_agree() {
        for records in 0..5000 {
            assert_eq!(records_for(positions_for(records)), records);
        }
    }
}
