//! The most garbage first.

use super::{CollectionCandidate, CollectionRule};

/// Each victim releases as much as any can now. It pays no attention to whether the garbage would have grown by itself.
#[derive(Debug)]
pub(super) struct Greedy;

impl CollectionRule for Greedy {
    fn worth(&self, candidate: &CollectionCandidate) -> f64 {
        1.0 - candidate.live
    }
}
