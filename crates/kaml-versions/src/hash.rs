//! What is hashed from a key and from the ordinal of one of its versions.
//!
//! Lives here:       rows, table positions, fingerprints, candidate pages: everything that replaces an index on flash.
//! Lives elsewhere:  what is done with them (`placement`, `group`, `bloom`).
//! Implements:       paper:Muninn 4.2 (hash-based placement); docs/versioned.md "Placement".
//!
//! These numbers state where records lie in sealed segments, so they are part of the format: `golden` freezes them.

use kaml_index::Key;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Candidate pages of a version at most; the bits of a choice leave room for no more.
pub(crate) const CHOICES_MAX: usize = 4;
/// Positions of a retrieval table that are combined for one version. With 5, a table one percent longer than its
/// records are many almost always has a solution; with 4 it takes three percent, with 3 more than six.
pub(crate) const POSITIONS: usize = 5;

/// 128 evenly spread bits of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeyHash {
    low: u64,
    high: u64,
}

/// What is hashed from one version of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct VersionHash {
    places: [u32; POSITIONS],
    pub(crate) fingerprint: u32,
    pages: u64,
}

impl KeyHash {
    /// The hash of a key in a namespace with this seed.
    pub(crate) fn of(key: &Key, seed: u64) -> KeyHash {
        // Keys of different lengths differ in padding alone, so the length goes into the seed.
        let both = xxh3_128_with_seed(key.as_bytes(), seed ^ key.len() as u64);
        KeyHash { low: both as u64, high: (both >> 64) as u64 }
    }

    /// The row, of `count`.
    pub(crate) fn row(self, count: u32) -> u32 {
        scale((self.high >> 32) as u32, count)
    }

    /// 64 bits to find the key in memory by.
    pub(crate) fn bits(self) -> u64 {
        self.low
    }

    /// More bits, independent of all others with another `salt`.
    pub(crate) fn salted(self, salt: u64) -> u64 {
        fold(self.low ^ salt.wrapping_mul(SPREAD[0]), self.high ^ SPREAD[1])
    }

    /// The hash of the version that is the `ordinal`-th of this key in its segment, from 0.
    pub(crate) fn version(self, ordinal: u16) -> VersionHash {
        let base = self.salted(u64::from(ordinal) + 1);
        let draw = |i: usize| fold(base ^ SPREAD[i + 2], self.high.rotate_left(17) ^ SPREAD[i]);
        let [a, b, c, pages] = [draw(0), draw(1), draw(2), draw(3)];
        VersionHash {
            places: [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32, c as u32],
            fingerprint: (c >> 32) as u32,
            pages,
        }
    }
}

impl VersionHash {
    /// Positions in a table of `count`.
    pub(crate) fn positions(&self, count: u32) -> [u32; POSITIONS] {
        self.places.map(|place| scale(place, count))
    }

    /// Candidate page `choice` of `count`; at most 2^16 pages.
    pub(crate) fn page(&self, choice: usize, count: u32) -> u32 {
        debug_assert!(choice < CHOICES_MAX);
        let bits = (self.pages >> (16 * choice)) as u16;
        (u32::from(bits) * count) >> 16
    }
}

/// Odd constants without structure: digits of pi.
const SPREAD: [u64; 6] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7345,
    0xa409_3822_299f_31d1,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6d,
];

/// A 64 by 64 bit product, its halves combined: one multiplication spreads every bit of both.
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b | 1);
    (wide as u64) ^ (wide >> 64) as u64
}

/// Maps 32 bits to `0..count` without a division.
fn scale(bits: u32, count: u32) -> u32 {
    ((u64::from(bits) * u64::from(count)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   segments sealed by one build are read by the next.
    /// Method: freeze the hashes of one version.
    #[test]
    fn golden() {
        let hash = KeyHash::of(&Key::from(1), 7);
        let version = hash.version(2);
        let pages: Vec<u32> = (0..CHOICES_MAX).map(|choice| version.page(choice, 256)).collect();
        let seen = (hash.row(235), version.positions(1034), version.fingerprint, pages);
        assert_eq!(seen, (166, [247, 32, 17, 115, 686], 4_258_877_116, vec![152, 171, 69, 49]));
    }

    /// Goal:   no ordinal, position or candidate is favoured or tied to another.
    /// Method: count how often each of 64 values is drawn, and how often two draws of one version agree.
    #[test]
    fn draws_are_even_and_independent() {
        const DRAWS: u64 = 64 * 1000;
        let mut counts = [[0u32; 64]; POSITIONS + CHOICES_MAX];
        let mut equal = 0;
        for i in 0..DRAWS {
            let version = KeyHash::of(&Key::from(i / 4), 0).version((i % 4) as u16);
            let positions = version.positions(64);
            let pages = std::array::from_fn::<u32, CHOICES_MAX, _>(|choice| version.page(choice, 64));
            let all: Vec<u32> = positions.into_iter().chain(pages).collect();
            all.iter().enumerate().for_each(|(at, value)| counts[at][*value as usize] += 1);
            equal += all.iter().enumerate().map(|(at, a)| all[..at].iter().filter(|b| *b == a).count()).sum::<usize>();
        }
        // 1000 expected each; six standard deviations are 190.
        assert!(counts.iter().flatten().all(|count| count.abs_diff(1000) < 190), "{counts:?}");
        // 36 pairs agree once in 64.
        let expected = DRAWS as usize * 36 / 64;
        assert!(equal.abs_diff(expected) < expected / 20, "{equal} of {expected}");
    }
}
