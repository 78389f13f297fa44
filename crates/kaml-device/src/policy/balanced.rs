//! The default policy: garbage against age.

use super::{CollectionCandidate, CollectionRule};

/// Cost-benefit with the square root of age. Greedy is best for uniform overwrites, and the rule of the log-structured file
/// system, which counts all of the age, for skewed ones; this lies between them.
#[derive(Debug)]
pub(super) struct Balanced;

impl CollectionRule for Balanced {
    fn worth(&self, candidate: &CollectionCandidate) -> f64 {
        let age = (candidate.age as f64 + 1.0).sqrt();
        let score = (1.0 - candidate.live) / (1.0 + candidate.live) * age;
        // Dies that are short of free blocks come first.
        score * (1.0 + 1.0 / (1.0 + candidate.free_on_die as f64))
    }
}
