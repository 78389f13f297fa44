//! What callers get of the firmware's counters.
//!
//! Lives here:       what is counted, how it is kept over reopening.
//! Lives elsewhere:  latencies and reads (the drivers in `kaml`).

/// What the firmware has done since the device was opened, and its state. Units are bytes by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoreStats {
    /// Values stored.
    pub put_count: u64,
    /// Deletes stored.
    pub delete_count: u64,
    /// Records that expired and were removed.
    pub expired_count: u64,
    /// Values of hosts.
    pub host_bytes: u64,
    /// Records of hosts in whole chunks, headers included.
    pub record_bytes: u64,
    /// Records moved by garbage collection, in whole chunks.
    pub relocated_bytes: u64,
    /// Read by garbage collection, data and OOB entries.
    pub collection_read_bytes: u64,
    /// Written to the commit ring.
    pub ring_bytes: u64,
    /// Programmed into pages, metadata included.
    pub page_bytes: u64,
    /// Programmed into OOB areas.
    pub oob_bytes: u64,
    /// Journal, snapshots and roots.
    pub metadata_bytes: u64,
    /// Chunks left empty at the end of program units and blocks.
    pub padded_bytes: u64,
    /// Live records in whole chunks.
    pub live_bytes: u64,
    /// How much may be live.
    pub capacity_bytes: u64,
    /// Memory of all loaded indexes.
    pub index_bytes: u64,
    /// Ring bytes not released yet.
    pub ring_used_bytes: u64,
    /// Blocks of the device.
    pub block_count: u32,
    /// Blocks free or about to be.
    pub free_blocks: u32,
    /// Blocks never used again.
    pub bad_blocks: u32,
    /// Blocks erased.
    pub erase_count: u64,
    /// Smallest erase count of a block.
    pub erase_min: u32,
    /// Largest erase count of a block.
    pub erase_max: u32,
    /// Mean erase count.
    pub erase_mean: f64,
    /// Programs that failed.
    pub program_failures: u64,
    /// Damaged records that collection came across.
    pub damaged_records: u64,
    /// Since the device was created: values, deletes, host bytes, record chunks, relocated chunks, ring bytes, page
    /// bytes, erases.
    pub lifetime: [u64; 8],
}

impl crate::core::Core {
    /// How the firmware is. Looks at every block, for their wear.
    pub fn stats(&self) -> CoreStats {
        let (erase_min, erase_max, erase_mean) = self.log.blocks.erase_spread();
        CoreStats { erase_min, erase_max, erase_mean, ..self.stats_without_wear() }
    }

    /// As `stats`, without the erase counts of blocks, in a time that does not grow with the device.
    pub fn stats_without_wear(&self) -> CoreStats {
        let c = &self.log.counters;
        let chunk = u64::from(self.log.geometry.chunk_bytes);
        CoreStats {
            put_count: c.puts,
            delete_count: c.deletes,
            expired_count: c.expired,
            host_bytes: c.host_bytes,
            record_bytes: c.record_chunks * chunk,
            relocated_bytes: c.relocated_chunks * chunk,
            collection_read_bytes: c.collection_read_bytes,
            ring_bytes: c.ring_bytes,
            page_bytes: c.page_bytes,
            oob_bytes: c.oob_bytes,
            metadata_bytes: c.metadata_bytes,
            padded_bytes: self.log.writers.padded_chunks * chunk,
            live_bytes: self.log.blocks.live_chunks() * chunk,
            capacity_bytes: self.capacity_chunks() * chunk,
            index_bytes: self.spaces.values().map(|space| space.index_bytes()).sum(),
            ring_used_bytes: self.log.ring.used_bytes(),
            block_count: self.log.blocks.count(),
            free_blocks: self.log.blocks.free_count() + self.log.blocks.reclaimed_count(),
            bad_blocks: self.log.blocks.bad_count(),
            erase_count: c.erases,
            erase_min: 0,
            erase_max: 0,
            erase_mean: 0.0,
            program_failures: c.program_failures,
            damaged_records: c.damaged_records,
            lifetime: c.lifetime(),
        }
    }
}

impl std::fmt::Debug for crate::core::Core {
    /// Where everything stands that a Put may wait for.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut states = std::collections::BTreeMap::new();
        for (_, block) in self.log.blocks.iter() {
            *states.entry(format!("{:?}", block.state)).or_insert(0) += 1;
        }
        f.debug_struct("Core")
            .field("stats", &self.stats())
            .field("blocks", &states)
            .field("held_by_metadata", &self.log.blocks.iter().filter(|(_, block)| block.holds > 0).count())
            .field("journal", &self.log.journal)
            .field("reserve_blocks", &self.reserve_blocks())
            .field("collect_below", &self.collect_below())
            .field("programming_bytes", &self.log.writers.programming_bytes)
            .field("operations", &self.log.queue.ops.len())
            .field("oldest_frame", &self.log.writers.oldest_frame())
            .field("committed", &self.committed())
            .field("collector", &self.collector)
            .field("root_commit", &self.root_commit)
            .field("checkpoint", &self.checkpoint)
            .field("versions", &self.versions_state())
            .finish_non_exhaustive()
    }
}
