//! Clustering: records of an ordered namespace move next to their neighbours, so that a scan reads few extents.
//!
//! Lives here:       moving one record after the other to the end of a block.
//! Lives elsewhere:  which records move, and reading them (`kaml`); installing moves (`core`).
//! Implements:       docs/ARCHITECTURE.md "Ordered namespaces".
//!
//! A move is one of collection, except that nobody waits for it to erase a block: the record is copied to a write buffer, and the index changes
//! when that is programmed, unless the record was replaced meanwhile. So nothing is written to the ring, and a power cut loses nothing.
//! It takes room as a Put does, and is refused where one would be.

use crate::collector::Clustering;
use crate::command::StageError;
use crate::core::{Core, code};
use crate::format::record::RecordHeader;
use crate::lifetime::Class;
use crate::moves::Move;
use crate::reader::FlashRead;
use crate::space::Purpose;
use crate::writers::NoBlock;
use kaml_index::Slot;

impl Core {
    /// As [`Core::cluster`], of a record that a scan has read from far away; also refused after as much was moved as was live when that began
    /// and hosts have put since. So no record is written more than twice as often because of scans.
    ///
    /// # Errors
    /// As [`Core::cluster`]; [`StageError::Busy`] when nothing more may move now.
    pub fn cluster_scanned(&mut self, read: &FlashRead, bytes: &[u8]) -> Result<bool, StageError> {
        let live = self.log.blocks.live_chunks();
        let budget = self.collector.clustering.get_or_insert(Clustering { live, moved: 0 });
        if budget.moved >= budget.live.max(self.log.counters.record_chunks / 2) {
            return Err(StageError::Busy);
        }
        let has_moved = self.cluster(read.namespace(), read, bytes)?;
        if has_moved && let Some(budget) = &mut self.collector.clustering {
            budget.moved += u64::from(self.log.chunks_of(read.bytes));
        }
        Ok(has_moved)
    }

    /// Copies a record that was read, whole, to the end of the block that takes clustered ones; false if it has been replaced or moved since it
    /// was found. The index changes after the copy is programmed.
    ///
    /// # Errors
    /// As [`Core::stage`].
    pub fn cluster(&mut self, namespace: u32, read: &FlashRead, bytes: &[u8]) -> Result<bool, StageError> {
        self.writable()?;
        read.value(bytes)?;
        let record = RecordHeader::check(bytes).expect("just checked");
        let space = self.known_space(namespace)?;
        let key = space.layout.indexed(read.full_key());
        let Some(index) = &space.index else { return Err(StageError::NeedIndex(namespace)) };
        let chunks = self.log.chunks_of(record.page_bytes());
        let from = Slot { at: read.at.0, len: code(chunks) };
        if index.get(&key) != Some(from) {
            return Ok(false);
        }
        let moved = Move::new(namespace, &key, from, from).of_clustering();
        self.admit_data(Purpose::Put, chunks.into(), false)?;
        let die = namespace % self.log.geometry.die_count();
        let (floor, parts) = (self.floor(Purpose::Put), [&bytes[..record.page_bytes()], &[], &[]]);
        let placed = self.log.append(die, Class::Cold, floor, chunks, parts, None);
        let at = placed.map_err(|NoBlock| self.no_block_for(Purpose::Put))?;
        let block = self.log.block_of(at.0);
        self.log.blocks.note_written(block, record.sequence);
        self.log.writers.attach_move(block, moved.to(Slot { at: at.0, len: from.len }));
        self.log.counters.relocated_chunks += u64::from(chunks);
        self.space.pace.has_written(u64::from(chunks));
        Ok(true)
    }
}
