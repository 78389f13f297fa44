//! What a run has done.
//!
//! Lives here:       the counts, adding them up.
//! Lives elsewhere:  counting (`world`), showing them (`kaml-lab`).

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Records whose put or delete completed, and completed Gets.
    pub operations: u64,
    /// Atomic Puts staged.
    pub puts: u64,
    /// Completed Gets.
    pub gets: u64,
    /// Commands that were refused as they may be: full, no space, stopped.
    pub refused: u64,
    /// Gets that returned an error because flash had lost the data, and other commands because it had lost an index.
    pub lost: u64,
    /// Puts under conditions that were staged, all of which held.
    pub conditions_held: u64,
    /// Puts that were refused for a condition.
    pub conditions_failed: u64,
    /// Large values whose program the caller executed itself.
    pub own_programs: u64,
    /// Gets of byte strings that found a value.
    pub strings_found: u64,
    /// Gets of byte strings that found none.
    pub strings_absent: u64,
    /// Records deleted as those of a range.
    pub deleted_in_ranges: u64,
    /// Records that moved next to others after they were read.
    pub clustered: u64,
    /// Snapshots opened.
    pub snapshots: u64,
    /// Gets through them.
    pub snapshot_reads: u64,
    /// Listings through them that came to their end.
    pub snapshot_listings: u64,
    /// Snapshots that had expired when they were read.
    pub snapshots_expired: u64,
    /// Records that expired.
    pub expired: u64,
    /// Merges of versions that the firmware requested.
    pub requested_merges: u64,
    /// Namespaces moved to other logs.
    pub moves: u64,
    /// Changes of the device's size.
    pub resized: u64,
    /// Moves to logs that do not exist or named twice, refused.
    pub moves_refused: u64,
    /// Namespaces durably created.
    pub created: u64,
    /// Namespaces durably deleted.
    pub deleted: u64,
    /// Deletions begun while commands on the namespace were waiting or in progress.
    pub deleted_in_use: u64,
    /// Commands that found that their namespace had gone meanwhile.
    pub orphaned: u64,
}

impl Counts {
    /// Adds another run's.
    pub fn add(&mut self, other: &Counts) {
        self.operations += other.operations;
        self.puts += other.puts;
        self.gets += other.gets;
        self.refused += other.refused;
        self.lost += other.lost;
        self.conditions_held += other.conditions_held;
        self.conditions_failed += other.conditions_failed;
        self.own_programs += other.own_programs;
        self.strings_found += other.strings_found;
        self.strings_absent += other.strings_absent;
        self.deleted_in_ranges += other.deleted_in_ranges;
        self.clustered += other.clustered;
        self.snapshots += other.snapshots;
        self.snapshot_reads += other.snapshot_reads;
        self.snapshot_listings += other.snapshot_listings;
        self.snapshots_expired += other.snapshots_expired;
        self.expired += other.expired;
        self.requested_merges += other.requested_merges;
        self.moves += other.moves;
        self.moves_refused += other.moves_refused;
        self.resized += other.resized;
        self.created += other.created;
        self.deleted += other.deleted;
        self.deleted_in_use += other.deleted_in_use;
        self.orphaned += other.orphaned;
    }
}
