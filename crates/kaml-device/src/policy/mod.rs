//! Policies of collection: which block is emptied next, when wear is levelled, what hosts may write meanwhile.
//!
//! Lives here:       the trait, the policies by name.
//! Lives elsewhere:  reading a block and moving its records (`gc`), when collection runs and which purpose may have room (`space`).
//!
//! A policy only decides. Whatever it decides, failing blocks are emptied first, blocks without garbage are left alone, and hosts never
//! take the blocks that collection needs. So a policy can make a device slower, and can break no promise.

mod balanced;
mod fifo;
mod greedy;

use std::fmt::Debug;
use std::str::FromStr;

/// A block that can be collected, as policies see it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CollectionCandidate {
    /// Which part of its chunks is live, from 0 to 1.
    pub live: f64,
    /// Pages that the device has programmed since the block was filled.
    pub age: u64,
    /// Free blocks of its die.
    pub free_on_die: usize,
}

/// Decides for the collector: a policy of collection that is not one of [`CollectionPolicy`], of another crate for example.
///
/// A rule only decides. Whatever it returns, failing blocks are emptied first, blocks without garbage are left alone, and hosts never take
/// the blocks that collection needs. The simplest rule is greedy:
///
/// ```
/// use kaml_device::{CollectionCandidate, CollectionRule};
///
/// #[derive(Debug)]
/// struct MostGarbage;
///
/// impl CollectionRule for MostGarbage {
///     fn worth(&self, candidate: &CollectionCandidate) -> f64 {
///         1.0 - candidate.live
///     }
/// }
/// ```
pub trait CollectionRule: Debug + Send + Sync {
    /// How much it is worth to collect a block. The block of the largest worth is collected; of equal ones the last.
    fn worth(&self, candidate: &CollectionCandidate) -> f64;

    /// Whether the least worn block is collected instead, after this many picks: it has been erased `behind` times less than the most worn
    /// one, which has been erased `most` times.
    fn levels_wear(&self, picks: u64, behind: u32, most: u32) -> bool {
        picks.is_multiple_of(LEVELLED_ONE_IN) && behind > WEAR_SPREAD_MIN.max(most / 16)
    }

    /// The chunks that hosts may write when collection begins, out of those that are free beyond the reserve.
    fn first_budget(&self, spare_chunks: u64) -> u64 {
        spare_chunks / 2 // open blocks take a part
    }

    /// The chunks that hosts may write because so many chunks of garbage were found.
    fn budget_for(&self, garbage_chunks: u32) -> u32 {
        garbage_chunks
    }
}

/// One pick in this many can level wear.
const LEVELLED_ONE_IN: u64 = 4;
/// Static wear levelling keeps the spread of erase counts within this many erases, or 1/16 of the largest.
const WEAR_SPREAD_MIN: u32 = 6;

/// Which block garbage collection empties next.
///
/// A policy is a choice for the time that a device is open, and is stored nowhere: any device can be opened with any policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum CollectionPolicy {
    /// Garbage against age: the largest `(1 - u) / (1 + u) * sqrt(age)`, where `u` is the live part. This lies between greedy and the
    /// cost-benefit policy of the log-structured file system. Dies that are short of free blocks get a bonus.
    #[default]
    Balanced,
    /// The block with the most garbage. It is best for overwrites that are spread evenly.
    Greedy,
    /// The block that was filled first. All blocks wear evenly.
    Fifo,
}

impl CollectionPolicy {
    /// All policies; the first is the default.
    pub const ALL: [CollectionPolicy; 3] =
        [CollectionPolicy::Balanced, CollectionPolicy::Greedy, CollectionPolicy::Fifo];

    /// Its name, as [`FromStr`] reads it.
    pub fn name(self) -> &'static str {
        match self {
            CollectionPolicy::Balanced => "balanced",
            CollectionPolicy::Greedy => "greedy",
            CollectionPolicy::Fifo => "fifo",
        }
    }

    pub(crate) fn policy(self) -> &'static dyn CollectionRule {
        match self {
            CollectionPolicy::Balanced => &balanced::Balanced,
            CollectionPolicy::Greedy => &greedy::Greedy,
            CollectionPolicy::Fifo => &fifo::Fifo,
        }
    }
}

impl std::fmt::Display for CollectionPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CollectionPolicy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<CollectionPolicy, UnknownPolicy> {
        let named = CollectionPolicy::ALL.into_iter().find(|policy| policy.name() == name);
        named.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// There is no collection policy of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no collection policy is named {0:?}; there are balanced, greedy and fifo")]
pub struct UnknownPolicy(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    fn best(policy: CollectionPolicy, candidates: &[CollectionCandidate]) -> usize {
        let worth = |at: &usize| policy.policy().worth(&candidates[*at]);
        (0..candidates.len()).max_by(|a, b| worth(a).total_cmp(&worth(b))).unwrap()
    }

    /// Goal:   each policy collects what its name promises; the balanced one lies between garbage and age.
    /// Method: a block with most garbage, one that is old, one that has fair shares of both; dies that are short.
    #[test]
    fn policies_choose_by_garbage_and_age() {
        let candidate = |live, age| CollectionCandidate { live, age, free_on_die: 100 };
        let blocks = [candidate(0.2, 10), candidate(0.9, 10_000), candidate(0.4, 900)];
        assert_eq!(CollectionPolicy::ALL.map(|policy| best(policy, &blocks)), [2, 0, 1]);
        let short = CollectionCandidate { free_on_die: 0, ..candidate(0.4, 800) };
        assert_eq!(best(CollectionPolicy::Balanced, &[blocks[2], short]), 1);
    }

    /// Goal:   names lead to policies and back; another name is refused with those that exist.
    /// Method: all of them, and one more.
    #[test]
    fn policies_have_names() {
        for policy in CollectionPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let refused = "lazy".parse::<CollectionPolicy>().unwrap_err().to_string();
        assert!(CollectionPolicy::ALL.iter().all(|policy| refused.contains(policy.name())), "{refused}");
    }
}
