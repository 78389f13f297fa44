//! Which key comes next: uniform, zipfian, sequential; from a seed, always the same.
//!
//! Lives here:       the generator of random numbers and the distributions over `0..count`.
//! May be called by: every workload.
//! Implements:       Gray et al., "Quickly generating billion-record synthetic databases" (the zipfian generator that
//!                   YCSB uses), with a permutation instead of YCSB's hash so that hot keys are spread and none collide.

use serde::{Deserialize, Serialize};

/// SplitMix64: small, fast, and enough for choosing keys.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// Any 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound` (not 0); the bias of the multiplication is below 2^-32 for bounds that keys have.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below 0");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// In `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Each as likely as any other.
    Uniform,
    /// Rank `r` with a probability proportional to `1 / r^theta`; ranks are scattered over the keys.
    Zipf(f64),
    /// One after the other, round and round.
    Sequential,
}

/// Numbers in `0..count`.
#[derive(Clone, Debug)]
pub struct Chooser {
    rng: Rng,
    count: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Uniform,
    Zipf(Zipf, Scatter),
    Sequential(u64),
}

impl Chooser {
    /// Chooses among `count` keys (not 0).
    pub fn new(distribution: Distribution, count: u64, seed: u64) -> Chooser {
        assert!(count > 0, "no keys to choose from");
        let kind = match distribution {
            Distribution::Uniform => Kind::Uniform,
            Distribution::Zipf(theta) => Kind::Zipf(Zipf::new(count, theta), Scatter::new(count)),
            Distribution::Sequential => Kind::Sequential(seed % count),
        };
        Chooser { rng: Rng::new(seed), count, kind }
    }

    /// The same distribution with other random numbers; sequential choosers begin elsewhere.
    pub fn reseeded(&self, seed: u64) -> Chooser {
        let mut chooser = self.clone();
        chooser.rng = Rng::new(seed);
        if let Kind::Sequential(next) = &mut chooser.kind {
            *next = seed % self.count;
        }
        chooser
    }

    /// The next number.
    pub fn next_key(&mut self) -> u64 {
        match &mut self.kind {
            Kind::Uniform => self.rng.below(self.count),
            Kind::Zipf(zipf, scatter) => scatter.place(zipf.rank(self.rng.unit())),
            Kind::Sequential(next) => {
                let this = *next;
                *next = (this + 1) % self.count;
                this
            }
        }
    }
}

/// Ranks `0..count`, rank 0 the most frequent.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    count: f64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// `theta` in `0.0..1.0`.
    pub(crate) fn new(count: u64, theta: f64) -> Zipf {
        assert!((0.0..1.0).contains(&theta), "theta {theta} is not in 0..1");
        let mut zipf =
            Zipf { count: count as f64, theta, alpha: 1.0 / (1.0 - theta), zeta: zeta(count, theta), eta: 0.0 };
        zipf.set_eta();
        zipf
    }

    /// Over more ranks than before; costs one power for each of them.
    pub(crate) fn grow(&mut self, count: u64) {
        let old = self.count as u64;
        if count > old {
            self.zeta += (old + 1..=count).map(|i| (i as f64).powf(-self.theta)).sum::<f64>();
            self.count = count as f64;
            self.set_eta();
        }
    }

    fn set_eta(&mut self) {
        let (count, theta) = (self.count, self.theta);
        self.eta = (1.0 - (2.0 / count).powf(1.0 - theta)) / (1.0 - zeta_2(theta) / self.zeta);
    }

    pub(crate) fn rank(&self, u: f64) -> u64 {
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < zeta_2(self.theta) {
            return 1.min(self.count as u64 - 1);
        }
        let rank = self.count * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count as u64 - 1)
    }
}

fn zeta_2(theta: f64) -> f64 {
    1.0 + 0.5f64.powf(theta)
}

/// Sum of `1 / i^theta` for `i` in `1..=count`: exact up to 10^5, then by the Euler–Maclaurin formula (error below 1e-9).
fn zeta(count: u64, theta: f64) -> f64 {
    const EXACT: u64 = 100_000;
    let exact: f64 = (1..=count.min(EXACT)).map(|i| (i as f64).powf(-theta)).sum();
    if count <= EXACT {
        return exact;
    }
    let (a, b) = (EXACT as f64, count as f64);
    let integral = (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta);
    exact + integral + (b.powf(-theta) - a.powf(-theta)) / 2.0
}

/// A permutation of `0..count`: multiplication by a number that shares no factor with `count`.
#[derive(Clone, Debug)]
pub(crate) struct Scatter {
    count: u64,
    factor: u64,
}

impl Scatter {
    pub(crate) fn new(count: u64) -> Scatter {
        let golden = (count as f64 * 0.618_033_988_749_895) as u64;
        let factor = (golden.max(1)..).find(|factor| gcd(*factor, count) == 1).expect("count + 1 shares no factor");
        Scatter { count, factor }
    }

    /// The place of a rank below the count.
    pub(crate) fn place(&self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.factor) % u128::from(self.count)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(mut chooser: Chooser, count: usize, draws: u64) -> Vec<f64> {
        let mut hits = vec![0u64; count];
        (0..draws).for_each(|_| hits[chooser.next_key() as usize] += 1);
        hits.into_iter().map(|n| n as f64 / draws as f64).collect()
    }

    /// Goal:   the zipfian generator has the frequencies it should have.
    /// Method: 2 M draws over 1000 keys at theta 0.99; the share of the hottest key, of the second, and of the hottest
    ///         hundred against the sums of the definition.
    #[test]
    fn zipf_has_its_frequencies() {
        let mut shares = frequencies(Chooser::new(Distribution::Zipf(0.99), 1000, 7), 1000, 2_000_000);
        shares.sort_by(|a, b| b.total_cmp(a));
        let total: f64 = (1..=1000).map(|i| f64::from(i).powf(-0.99)).sum();
        let share = |rank: i32| f64::from(rank).powf(-0.99) / total;
        assert!((shares[0] / share(1) - 1.0).abs() < 0.02, "{} {}", shares[0], share(1));
        assert!((shares[1] / share(2) - 1.0).abs() < 0.02, "{} {}", shares[1], share(2));
        let hot: f64 = shares[..100].iter().sum();
        let expected: f64 = (1..=100).map(share).sum();
        assert!((hot / expected - 1.0).abs() < 0.03, "{hot} {expected}");
    }

    /// Goal:   the fast sum for large counts is the sum.
    /// Method: add up 3 million terms.
    #[test]
    fn zeta_of_many_is_right() {
        let slow: f64 = (1..=3_000_000u64).map(|i| (i as f64).powf(-0.99)).sum();
        assert!((zeta(3_000_000, 0.99) - slow).abs() < 1e-6);
    }

    /// Goal:   scattering loses no key and moves hot ones apart.
    /// Method: place all ranks for counts with many and few factors; each place once; neighbours far apart.
    #[test]
    fn scatter_is_a_permutation() {
        for count in [1, 2, 10, 720, 997, 65_536] {
            let scatter = Scatter::new(count);
            let mut seen = vec![false; count as usize];
            (0..count).for_each(|rank| seen[scatter.place(rank) as usize] = true);
            assert!(seen.iter().all(|s| *s), "{count}");
        }
        let scatter = Scatter::new(65_536);
        assert!(scatter.place(1).abs_diff(scatter.place(0)) > 20_000);
    }

    /// Goal:   uniform is uniform, sequential is sequential, and a seed is a sequence.
    /// Method: shares over 100 keys; the first numbers of a sequential chooser; two choosers of one seed.
    #[test]
    fn uniform_sequential_and_seeds() {
        for share in frequencies(Chooser::new(Distribution::Uniform, 100, 3), 100, 1_000_000) {
            assert!((share - 0.01).abs() < 0.001, "{share}");
        }
        let mut sequential = Chooser::new(Distribution::Sequential, 3, 1);
        assert_eq!([(); 5].map(|()| sequential.next_key()), [1, 2, 0, 1, 2]);
        let draw = |seed| {
            let mut chooser = Chooser::new(Distribution::Zipf(0.9), 1000, seed);
            [(); 8].map(|()| chooser.next_key())
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
