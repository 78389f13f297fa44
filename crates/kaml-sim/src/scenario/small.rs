//! The small workloads, each for one matter.
//!
//! Lives here:       which there are, their names.
//! Lives elsewhere:  what each draws (`scenario`).

/// A small workload whose every cut is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Small {
    /// Puts of several records over several namespaces and logs.
    Puts,
    /// Overwrites of a nearly full device.
    Collection,
    /// Many small keys, so index segments split.
    Growth,
    /// The size of the device changes all the time, by command and by itself, while it is filled.
    Resized,
    /// Roots and checkpoints all the time, indexes out of memory and back.
    Checkpoint,
    /// Values too large for the ring.
    Direct,
    /// Namespaces come and go.
    Namespaces,
    /// Writes, trims and reads of blocks, together with records.
    Blocks,
    /// The same on flash with faults, over several lives; not in the list of those cut everywhere.
    Disks,
    /// Versions together with records, snapshots, rollbacks, merges.
    Versions,
    /// The same on flash with faults, over several lives; not in the list of those cut everywhere.
    Pasts,
    /// A namespace with its index on flash, which merges by itself, and records.
    OnFlash,
    /// Gets that linger while their blocks are collected; quick to run, so not in the list of those cut everywhere.
    Readers,
    /// Gets of flash that flips bits; not in that list either.
    Flips,
    /// Blocks that fail, over several lives; not in that list either.
    Failures,
    /// Puts under conditions, few keys, some of them byte strings, some with versions; namespaces that move to other logs.
    Conditions,
    /// Keys above 16 bytes among shorter ones, in order and in none, under conditions, of small values and of large ones.
    LongKeys,
    /// Snapshots that are opened, read and closed all the time, of keys of all kinds, while collection moves records.
    Snapshots,
    /// Records that expire, of keys of all kinds, small and large, while indexes leave memory and snapshots are open.
    Expiry,
    /// One large value after the other, most of them programmed by their callers.
    Large,
    /// The same on flash where programs fail or find no space below, over several lives; not in that list either.
    LargeFailures,
    /// What a seed meant before hosts put under conditions and what came with that, as the seeds of older finds
    /// need it.
    Plain,
}

impl Small {
    /// Those that are cut at every operation.
    pub const ALL: [Small; 15] = [
        Small::Puts,
        Small::Collection,
        Small::Growth,
        Small::Resized,
        Small::Checkpoint,
        Small::Direct,
        Small::Namespaces,
        Small::Blocks,
        Small::Versions,
        Small::OnFlash,
        Small::Conditions,
        Small::LongKeys,
        Small::Snapshots,
        Small::Expiry,
        Small::Large,
    ];

    /// As one writes it.
    pub fn name(self) -> &'static str {
        match self {
            Small::Puts => "puts",
            Small::Collection => "collection",
            Small::Growth => "growth",
            Small::Resized => "resized",
            Small::Checkpoint => "checkpoint",
            Small::Direct => "direct",
            Small::Namespaces => "namespaces",
            Small::Blocks => "blocks",
            Small::Disks => "disks",
            Small::Versions => "versions",
            Small::Pasts => "pasts",
            Small::OnFlash => "on-flash",
            Small::Readers => "readers",
            Small::Flips => "flips",
            Small::Failures => "failures",
            Small::Conditions => "conditions",
            Small::LongKeys => "long-keys",
            Small::Snapshots => "snapshots",
            Small::Expiry => "expiry",
            Small::Large => "large",
            Small::LargeFailures => "large-failures",
            Small::Plain => "plain",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Small> {
        let others = [Small::Disks, Small::Pasts, Small::Readers, Small::Flips, Small::Failures, Small::LargeFailures];
        Small::ALL.into_iter().chain(others).chain([Small::Plain]).find(|small| small.name() == name)
    }
}
