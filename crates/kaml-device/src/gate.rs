//! What readers share with the block table.
//!
//! Lives here:       reader pins against erase, how much of a block is on the medium.
//! Lives elsewhere:  the block table (`blocks`), readers (`reader`).

use kaml_flash::{BlockIndex, ChunkAddr, Geometry, Growing};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What readers share with the firmware: pins against erase, and how much of a block is on the medium.
#[derive(Debug)]
pub(crate) struct BlockGate {
    geometry: Geometry,
    pins: Growing<AtomicU32>,
    programmed_chunks: Growing<AtomicU32>,
}

/// Keeps an erase block from being erased for as long as it lives.
#[derive(Debug)]
pub struct Pin {
    gate: Arc<BlockGate>,
    block: u32,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.gate.pins[self.block as usize].fetch_sub(1, Ordering::SeqCst);
    }
}

impl BlockGate {
    pub(crate) fn new(geometry: &Geometry) -> BlockGate {
        let count = geometry.block_count();
        BlockGate {
            geometry: geometry.clone(),
            pins: Growing::new((0..count).map(|_| AtomicU32::new(0))),
            programmed_chunks: Growing::new((0..count).map(|_| AtomicU32::new(geometry.chunks_per_block()))),
        }
    }

    /// There are at least so many blocks from now on.
    pub(crate) fn grow(&self, block_count: u32) {
        self.pins.grow(block_count as usize, || AtomicU32::new(0));
        self.programmed_chunks.grow(block_count as usize, || AtomicU32::new(self.geometry.chunks_per_block()));
    }

    /// Pins the block of a chunk. The caller looks its key up again afterwards: if the index still points at `at`, the
    /// record stays readable until the pin is dropped.
    pub(crate) fn pin(self: &Arc<Self>, at: ChunkAddr) -> Pin {
        let block = self.geometry.split(at).0.0;
        self.pins[block as usize].fetch_add(1, Ordering::SeqCst);
        Pin { gate: self.clone(), block }
    }

    /// Whether chunks up to `end` of a block are on the medium rather than in a write buffer.
    pub(crate) fn is_programmed(&self, block: BlockIndex, end: u32) -> bool {
        end <= self.programmed_chunks(block.0)
    }

    /// Chunks of a block that are on the medium; all, unless it is being filled.
    pub(crate) fn programmed_chunks(&self, block: u32) -> u32 {
        self.programmed_chunks[block as usize].load(Ordering::Acquire)
    }

    pub(crate) fn set_programmed(&self, block: u32, chunks: u32) {
        self.programmed_chunks[block as usize].store(chunks, Ordering::Release);
    }

    pub(crate) fn is_pinned(&self, block: u32) -> bool {
        #[cfg(feature = "broken")]
        if crate::Broken::ErasesPinned.is() {
            return false;
        }
        self.pins[block as usize].load(Ordering::SeqCst) != 0
    }
}
