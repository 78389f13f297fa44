//! Large values whose versions are gone.
//!
//! Lives here:       the lists in which they wait for the root that releases them.
//! Lives elsewhere:  who puts them there and takes them (`values`).

use std::collections::{BTreeSet, VecDeque};

/// Large values whose versions merges dropped, until they are released.
#[derive(Debug, Default)]
pub(crate) struct DroppedValues {
    /// The kept stream still has their versions.
    pub(super) in_kept: VecDeque<u64>,
    /// How many have left that list.
    pub(super) written: u64,
    /// Nothing has their versions that a root made from now on names.
    pub(super) ready: VecDeque<u64>,
    /// How many have left that list.
    pub(super) released: u64,
    /// Chunks that were dropped since a root was requested for them.
    pub(super) chunks: u64,
    /// During a merge: values that existed when it began and belong to no version of the rows that are done.
    pub(super) unclaimed: Option<(BTreeSet<u64>, u32)>,
}

impl DroppedValues {
    /// How many entries of the first list a kept stream that is captured now does not have.
    pub(crate) fn captured(&self) -> u64 {
        self.written + self.in_kept.len() as u64
    }

    /// A kept stream was written that was captured then.
    pub(crate) fn kept_written(&mut self, captured: u64) {
        while self.written < captured
            && let Some(number) = self.in_kept.pop_front()
        {
            self.written += 1;
            self.ready.push_back(number);
        }
    }

    pub(super) fn prepared(&self) -> Option<u64> {
        (!self.ready.is_empty()).then_some(self.released + self.ready.len() as u64)
    }

    pub(super) fn take_until(&mut self, prepared: u64) -> Vec<u64> {
        let count = prepared.saturating_sub(self.released).min(self.ready.len() as u64);
        self.released += count;
        self.ready.drain(..count as usize).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_kept.is_empty() && self.ready.is_empty()
    }
}
