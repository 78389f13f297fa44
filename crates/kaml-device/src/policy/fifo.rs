//! The oldest block first.

use super::{CollectionCandidate, CollectionRule};

/// The blocks form a ring, so records that live long are moved once in each round.
#[derive(Debug)]
pub(super) struct Fifo;

impl CollectionRule for Fifo {
    fn worth(&self, candidate: &CollectionCandidate) -> f64 {
        candidate.age as f64
    }

    /// The order levels wear by itself.
    fn levels_wear(&self, _picks: u64, _behind: u32, _most: u32) -> bool {
        false
    }
}
