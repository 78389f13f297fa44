//! Random choices that a seed determines.

/// Marsaglia's xorshift64*. The same seed gives the same choices everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of a seed. Any number is a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next 48 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }
}

/// Bytes that a seed determines, so a value need not be kept to be compared.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.draw() as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   streams of neighbouring seeds differ, and every number below a bound appears.
    /// Method: the first bytes of a thousand seeds; a thousand choices of seven.
    #[test]
    fn seeds_differ() {
        let streams: std::collections::HashSet<_> = (0..1000).map(|seed| bytes(seed, 16)).collect();
        assert_eq!(streams.len(), 1000);
        let mut rng = Rng::new(0);
        let seen: std::collections::BTreeSet<_> = (0..1000).map(|_| rng.below(7)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), (0..7).collect::<Vec<_>>());
    }
}
