//! The state of garbage collection.
//!
//! Lives here:       the block being scanned, blocks being emptied, indexes that are needed.
//! Lives elsewhere:  what is done about them (`gc`), when collection runs (`space`), which block is chosen (`policy`).

use crate::format::oob::Extent;
use crate::policy::{CollectionPolicy, CollectionRule};
use kaml_flash::AlignedBuf;
use std::collections::{BTreeMap, BTreeSet};

/// The block being scanned.
#[derive(Debug)]
pub(crate) struct Victim {
    pub(crate) block: u32,
    /// Its records, after the OOB entries are read.
    pub(crate) extents: Vec<Extent>,
    pub(crate) next: usize,
    /// Bytes read and not wholly worked off: first chunk, buffer.
    pub(crate) slice: Option<(u32, AlignedBuf)>,
    pub(crate) reading: bool,
    /// It holds segments of versioned namespaces.
    pub(crate) has_segments: bool,
}

/// What is left to do for a block whose records are on their way.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    pub(crate) moving: u32,
    pub(crate) scanned: bool,
    /// How often a scan was begun.
    pub(crate) scans: u32,
    /// It keeps records whose index cannot be loaded.
    pub(crate) is_stuck: bool,
}

/// What scans have moved, in chunks, and what limits it.
#[derive(Debug)]
pub(crate) struct Clustering {
    /// What was live when that began.
    pub(crate) live: u64,
    pub(crate) moved: u64,
}

/// The state of collection.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    pub(crate) victim: Option<Victim>,
    pub(crate) draining: BTreeMap<u32, Drain>,
    /// Those of them with live records left after a scan: bits that flipped in transit may be right next time.
    pub(crate) again: Vec<u32>,
    pub(crate) picks: u64,
    pub(crate) policy: CollectionPolicy,
    /// Decides in place of the policy.
    pub(crate) own_rule: Option<Box<dyn CollectionRule>>,
    /// Since the first scan after opening that moved records.
    pub(crate) clustering: Option<Clustering>,
    /// The namespace whose index must be loaded before collection can continue.
    pub(crate) wants_index: Option<u32>,
    /// Namespaces whose index could not be loaded: their records are not moved until another caller has loaded it.
    pub(crate) lost_indexes: BTreeSet<u32>,
    /// How often in a row indexes that are needed could not be loaded.
    pub(crate) lost_index_tries: BTreeMap<u32, u32>,
}

impl Collector {
    pub(crate) fn rule(&self) -> &dyn CollectionRule {
        self.own_rule.as_deref().unwrap_or(self.policy.policy())
    }

    pub(crate) fn is_running(&self) -> bool {
        self.victim.is_some() || !self.draining.is_empty()
    }

    /// Blocks whose records are on their way.
    pub(crate) fn draining_count(&self) -> u32 {
        self.draining.len() as u32
    }

    /// Records and segments on their way out of them.
    pub(crate) fn moving_count(&self) -> u32 {
        self.draining.values().map(|drain| drain.moving).sum()
    }

    /// Whether it cannot make progress by itself: it has read records that it cannot move, and no others are on their way.
    pub(crate) fn is_stuck(&self) -> bool {
        let has_read = self.victim.as_ref().is_none_or(|victim| victim.slice.is_some());
        has_read && self.moving_count() == 0 && self.wants_index.is_none()
    }

    /// The block that is being scanned and how many records it has, live or not, if no other is being emptied.
    pub(crate) fn only_victim(&self) -> Option<(u32, usize)> {
        let victim = self.victim.as_ref().filter(|_| self.draining.len() == 1)?;
        Some((victim.block, victim.extents.len()))
    }
}
