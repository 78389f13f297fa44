//! What the firmware counts.
//!
//! Lives here:       the counters, how they are kept over reopening.
//! Lives elsewhere:  what callers get of them (`stats`).

/// Counted by the core.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) puts: u64,
    pub(crate) deletes: u64,
    pub(crate) expired: u64,
    pub(crate) host_bytes: u64,
    pub(crate) record_chunks: u64,
    pub(crate) relocated_chunks: u64,
    pub(crate) collection_read_bytes: u64,
    pub(crate) ring_bytes: u64,
    pub(crate) page_bytes: u64,
    pub(crate) oob_bytes: u64,
    pub(crate) metadata_bytes: u64,
    pub(crate) erases: u64,
    pub(crate) program_failures: u64,
    pub(crate) damaged_records: u64,
    /// Totals of earlier openings, in the order of [`Counters::lifetime`].
    before: [u64; 8],
}

impl Counters {
    pub(crate) fn restore(lifetime: &[u64; 8]) -> Counters {
        Counters { before: *lifetime, ..Counters::default() }
    }

    /// Totals since the device was created: puts, deletes, host bytes, record chunks, relocated chunks, ring bytes,
    /// page bytes, erases.
    pub(crate) fn lifetime(&self) -> [u64; 8] {
        let now = [
            self.puts,
            self.deletes,
            self.host_bytes,
            self.record_chunks,
            self.relocated_chunks,
            self.ring_bytes,
            self.page_bytes,
            self.erases,
        ];
        std::array::from_fn(|i| self.before[i] + now[i])
    }
}
