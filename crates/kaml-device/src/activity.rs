//! What the firmware is doing, for a monitor.
//!
//! Lives here:       the state of logs, collection and blocks as a person or a program watches it.
//! Lives elsewhere:  what was counted (`stats`), checking that it is right (`audit`).
//!
//! Each call takes a time that does not grow with the device, so it can be made under the lock that Puts need: blocks are shown a
//! range at a time.

use crate::blocks::BlockState;
use crate::core::Core;
use crate::lifetime::Class;
use std::ops::Range;

/// What a device is doing now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// Frames of the commit ring that have been committed since the device was opened.
    pub commit_count: u64,
    /// Bytes of the commit ring that no root has released yet.
    pub ring_used_bytes: u64,
    /// Pages of the journal since the last checkpoint: opening replays them.
    pub journal_pages: u64,
    /// Whether checkpoint images are being written.
    pub is_checkpointing: bool,
    /// Roots written since the device was created.
    pub root_count: u64,
    /// Operations of the housekeeping that are on their way to the medium or wait for it.
    pub operation_count: u64,
    /// Bytes in write buffers whose programs are in progress.
    pub programming_bytes: u64,
    /// The versioned namespace that is being merged because space is low.
    pub merging_namespace: Option<u32>,
    /// What collection is doing.
    pub collection: CollectionActivity,
    /// Each log, in the order of dies.
    pub logs: Vec<LogActivity>,
}

/// What collection is doing now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectionActivity {
    /// Whether a block is being emptied.
    pub is_running: bool,
    /// Whether Puts may write only as much as collection finds garbage, because free blocks are short.
    pub is_pacing: bool,
    /// The block that is being scanned.
    pub victim: Option<u32>,
    /// Blocks whose live records are being moved.
    pub draining_blocks: u32,
    /// Records on their way out of them.
    pub moving_records: u32,
    /// Empty blocks that become free with the next root.
    pub reclaimed_blocks: u32,
    /// Collection begins when fewer blocks than this are free.
    pub collect_below_blocks: u32,
    /// Victims chosen since the device was opened.
    pub victim_count: u64,
}

/// A log: the blocks of one die.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogActivity {
    /// Free blocks, erased or not.
    pub free_blocks: u32,
    /// Free blocks that are erased.
    pub erased_blocks: u32,
    /// Blocks that it appends to.
    pub open: Vec<OpenBlock>,
}

/// A block that a log appends to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenBlock {
    /// Its number.
    pub block: u32,
    /// What it is filled with: `hot`, `warm`, `cool`, `cold`, `direct`, `journal`, `images` or `segments`.
    pub class: &'static str,
    /// How much of it is in use.
    pub used_bytes: u64,
}

/// A block as a monitor sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockActivity {
    /// What it is doing.
    pub state: BlockState,
    /// Bytes in it that an index points at, in whole chunks.
    pub live_bytes: u64,
    /// How often it has been erased.
    pub erase_count: u32,
    /// Pages that the device has programmed since the block was full; 0 for one that is not.
    pub age_pages: u64,
}

/// The name of a class for people.
fn name_of(class: Class) -> &'static str {
    match class {
        Class::Hot => "hot",
        Class::Direct => "direct",
        Class::Cold => "cold",
        Class::Journal => "journal",
        Class::Snapshot => "images",
        Class::Warm => "warm",
        Class::Cool => "cool",
        Class::Segment => "segments",
    }
}

impl Core {
    /// What the firmware is doing now. Takes a time that grows with the dies, not with their blocks.
    pub fn activity(&self) -> Activity {
        let log = &self.log;
        Activity {
            commit_count: log.ring.committed().saturating_sub(1), // the first frame has the number 1
            ring_used_bytes: log.ring.used_bytes(),
            journal_pages: log.journal.pages_since_checkpoint,
            is_checkpointing: self.checkpoint.is_running(),
            root_count: self.root.generation,
            operation_count: log.queue.ops.len() as u64,
            programming_bytes: log.writers.programming_bytes,
            merging_namespace: self.space.low_merge.map(|merge| merge.namespace),
            collection: CollectionActivity {
                is_running: self.collector.is_running(),
                is_pacing: self.space.pace.is_active(),
                victim: self.collector.victim.as_ref().map(|victim| victim.block),
                draining_blocks: self.collector.draining_count(),
                moving_records: self.collector.moving_count(),
                reclaimed_blocks: log.blocks.reclaimed_count(),
                collect_below_blocks: self.collect_below(),
                victim_count: self.collector.picks,
            },
            logs: (0..log.geometry.die_count()).map(|die| self.log_activity(die)).collect(),
        }
    }

    fn log_activity(&self, die: u32) -> LogActivity {
        let log = &self.log;
        let chunk_bytes = u64::from(log.geometry.chunk_bytes);
        let open = log.writers.open_of(die).map(|(block, class, chunks)| OpenBlock {
            block,
            class: name_of(class),
            used_bytes: u64::from(chunks) * chunk_bytes,
        });
        LogActivity {
            free_blocks: log.blocks.free_on(die) as u32,
            erased_blocks: log.blocks.ready_on(die) as u32,
            open: open.collect(),
        }
    }

    /// Erase blocks of the device.
    pub fn block_count(&self) -> u32 {
        self.log.blocks.count()
    }

    /// Shows blocks of a range, as far as they exist.
    pub fn view_blocks(&self, blocks: Range<u32>, each: &mut dyn FnMut(u32, BlockActivity)) {
        let (chunk_bytes, now) = (u64::from(self.log.geometry.chunk_bytes), self.log.writers.sequence);
        for block in blocks.start..blocks.end.min(self.log.blocks.count()) {
            let entry = self.log.blocks.get(block);
            let is_full = matches!(entry.state, BlockState::Full | BlockState::Draining);
            each(
                block,
                BlockActivity {
                    state: entry.state,
                    live_bytes: u64::from(entry.valid_chunks) * chunk_bytes,
                    erase_count: entry.erase_count,
                    age_pages: if is_full { now.saturating_sub(entry.closed_at) } else { 0 },
                },
            );
        }
    }
}
