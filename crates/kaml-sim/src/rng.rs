//! Choices that are the same on every machine, and the fingerprint of what came of them.
//!
//! Lives here:       the generator, the trace hash.
//! May be called by: everything in this crate; nothing here has another source of chance.

/// SplitMix64 (Steele, Lea, Flood 2014): any seed will do, and streams of different seeds do not resemble each other.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// A number of `low..=high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True so many times in a million.
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// True one time in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Another stream, which does not disturb this one whatever is drawn from it.
    pub fn branch(&mut self, label: u64) -> Rng {
        Rng(mix(self.draw() ^ mix(label)))
    }
}

/// Spreads every bit over all others, one to one.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A fingerprint of everything that happened, in its order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    hash: u64,
}

impl Trace {
    /// Something happened.
    pub fn note(&mut self, what: u64) {
        self.hash = mix(self.hash.rotate_left(5) ^ what.wrapping_add(0x9E37_79B9_7F4A_7C15));
    }

    /// Of everything so far.
    pub fn hash(self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   the stream of a seed never changes, or no stored seed would replay.
    /// Method: its first values, written down once.
    #[test]
    fn streams_are_frozen() {
        let mut rng = Rng::new(1);
        assert_eq!([rng.draw(), rng.draw()], [0x910A_2DEC_8902_5CC1, 0xBEEB_8DA1_658E_EC67]);
        assert!((0..1000).all(|_| rng.below(7) < 7 && (3..=5).contains(&rng.within(3, 5))));
    }
}
