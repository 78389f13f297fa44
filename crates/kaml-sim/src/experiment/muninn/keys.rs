//! What is put in the experiments on versions: keys in an order, values made up from the number of the put.
//!
//! Lives here:       the paper's distributions of keys.
//! Implements:       paper:Muninn 6 ("sequential, random, and pareto distributions").
//!
//! A put's key and value follow from its number, so nothing has to be kept of them.

use crate::rng::{Rng, mix};
use crate::value::Value;
use kaml_versions::HEADER_BYTES;

/// Which key comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// One after the other, again and again.
    Sequential,
    /// Any, evenly.
    Random,
    /// Basho's `pareto_int`: Lomax with shape 1.5 and a mean of a fifth of the keys; larger draws are drawn again.
    Pareto,
}

/// Puts of one experiment.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    /// As the tables name it.
    pub(super) name: &'static str,
    pub(super) order: Order,
    /// How many.
    pub(super) puts: u64,
    /// Keys that they are drawn from.
    pub(super) space: u64,
    /// Bytes of a version in its page, header and key included: least and most.
    pub(super) pair_bytes: (u64, u64),
    pub(super) seed: u64,
}

/// The paper's pairs.
pub(super) const PAIR_BYTES: u64 = 1024;
/// Keys are 64-bit numbers.
const KEY_BYTES: u64 = 8;

impl Workload {
    /// Each key once, in order.
    pub(super) fn sequential(puts: u64, seed: u64) -> Workload {
        let pair_bytes = (PAIR_BYTES, PAIR_BYTES);
        Workload { name: "sequential", order: Order::Sequential, puts, space: puts, pair_bytes, seed }
    }

    /// The key of a put.
    pub(super) fn key(&self, put: u64) -> u64 {
        match self.order {
            Order::Sequential => put % self.space,
            Order::Random => self.draws(put).below(self.space),
            Order::Pareto => {
                let mut draws = self.draws(put);
                let scale = self.space as f64 * 0.1;
                loop {
                    let unit = ((draws.draw() >> 11) + 1) as f64 / (1u64 << 53) as f64;
                    let root = cube_root(unit);
                    let key = scale * (1.0 / (root * root) - 1.0);
                    if key < self.space as f64 {
                        return key as u64;
                    }
                }
            }
        }
    }

    /// The value of a put.
    pub(super) fn value(&self, put: u64, into: &mut Vec<u8>) {
        let (low, high) = self.pair_bytes;
        let pair = if low == high { low } else { self.draws(!put).within(low, high) };
        let len = pair.saturating_sub(HEADER_BYTES as u64 + KEY_BYTES) as u32;
        Value { seed: put, len, expires: 0 }.run(into);
    }

    fn draws(&self, put: u64) -> Rng {
        Rng::new(mix(self.seed ^ mix(put)))
    }
}

/// The root of a number of 0 to 1, by Newton's method: sums and quotients are the same on every machine, a library's roots need
/// not be.
fn cube_root(x: f64) -> f64 {
    let mut root = 1.0;
    loop {
        let next = (2.0 * root + x / (root * root)) / 3.0;
        if next >= root {
            return root;
        }
        root = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   Pareto keys are as skewed as Basho's: the truncated distribution has its quantiles where the formula puts them.
    /// Method: many draws; the share below two bounds.
    #[test]
    fn pareto_is_skewed_as_its_formula_says() {
        let workload = Workload { order: Order::Pareto, space: 1000, ..Workload::sequential(1, 7) };
        let (mut low, mut middle) = (0, 0);
        for put in 0..20_000 {
            let key = workload.key(put);
            assert!(key < 1000);
            low += u32::from(key < 50);
            middle += u32::from(key < 300);
        }
        // 1 - (1 + x / 100)^-1.5 over the same for x = 1000.
        let all = 1.0 - 11f64.powf(-1.5);
        let share = |x: f64| (1.0 - (1.0 + x / 100.0).powf(-1.5)) / all;
        assert!((f64::from(low) / 20_000.0 - share(50.0)).abs() < 0.01, "{low}");
        assert!((f64::from(middle) / 20_000.0 - share(300.0)).abs() < 0.01, "{middle}");
    }
}
