//! What a namespace allows when space runs low.
//!
//! Lives here:       the rules of such merges.
//! Lives elsewhere:  when one is due (`low`).

use kaml_versions::Retention;

/// The versions to drop when space runs low. The newest version of each key is kept, and what snapshots see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MergePolicy {
    /// Number of the newest versions of each key that are kept; 0 counts as 1.
    pub keep_last: u32,
    /// Everything put in this many nanoseconds before the merge is kept; 0: no such rule.
    pub keep_for_ns: u64,
    /// The newest version of each key among those that were put around the same time is kept.
    pub keep_internal: bool,
    /// Old versions have no use: they are also dropped when space is not low, as soon as there are as many as newest ones.
    pub newest_only: bool,
}

impl MergePolicy {
    /// Of a namespace that keeps only the newest version of each key.
    pub(crate) fn newest_only() -> MergePolicy {
        MergePolicy { keep_last: 1, newest_only: true, ..MergePolicy::default() }
    }

    /// The rules of a merge that begins at this time, in nanoseconds since 1970.
    pub(crate) fn retention(&self, now_ns: u64) -> Retention {
        Retention {
            keep_last: self.keep_last,
            keep_since_ns: (self.keep_for_ns > 0).then(|| now_ns.saturating_sub(self.keep_for_ns)),
            keep_snapshots: true,
            keep_internal: self.keep_internal,
        }
    }
}
