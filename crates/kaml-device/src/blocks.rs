//! The block table: the state, wear and live data of every erase block, and which are free.
//!
//! Lives here:       block states and their legal moves, erase counts, valid chunks, ages, free lists, reader pins.
//! Lives elsewhere:  what is written into a block (`writers`), which one is collected (`gc`), what ages mean
//!                   (`lifetime`).
//! Implements:       paper:KAML IV.E (free lists per log, blocks ordered by wear and valid data).
//!
//! Invariants
//! - once opened, a block is on a free list of its die exactly when it is `Dirty` or `Ready`, under its erase count;
//! - `valid_chunks` is the sum of the length codes' chunks over the records that an index points at;
//! - a block leaves `Full` only with no holds, and is erased only with no pins.

mod leaving;

use crate::gate::BlockGate;
use crate::lifetime::{Class, Lifetimes};
use crate::listed::listed;
use kaml_flash::{BlockIndex, Geometry};
use std::collections::BTreeSet;
use std::sync::Arc;

listed! {
    /// What an erase block is doing.
    #[non_exhaustive]
    pub enum BlockState {
        /// Free; must be erased before use.
        Dirty,
        /// Being erased.
        Erasing,
        /// Free and erased.
        Ready,
        /// A log appends to it.
        Open,
        /// No longer appended to.
        Full,
        /// Its live records are being moved.
        Draining,
        /// Nothing in it is live; free after the next root that no longer names it.
        Reclaimed,
        /// Never used again; what is in it may still be read.
        Bad,
    }
}

listed! {
    /// What may happen to a block.
    pub(crate) enum BlockEvent {
        EraseStarted,
        Erased,
        Opened,
        Closed,
        Picked,
        Emptied,
        PutBack,
        Released,
        Failed,
    }
}

impl BlockState {
    //  Dirty ─erase─▶ Erasing ─erased─▶ Ready ─opened─▶ Open ─closed─▶ Full ─picked──▶ Draining ─failed─▶ Bad
    //    ▲               └─failed─▶ Bad                                 │ ◀─put back─┘    │
    //    └─released─ Reclaimed ◀────────────────emptied─────────────────┴─────────────────┘
    /// The state after an event, or nothing where the event must not happen.
    pub(crate) fn after(self, event: BlockEvent) -> Option<BlockState> {
        use BlockEvent as E;
        use BlockState as S;
        match (self, event) {
            (S::Dirty, E::EraseStarted) => Some(S::Erasing),
            (S::Erasing, E::Erased) => Some(S::Ready),
            (S::Ready, E::Opened) => Some(S::Open),
            (S::Open, E::Closed) => Some(S::Full),
            (S::Full, E::Picked) => Some(S::Draining),
            (S::Full | S::Draining, E::Emptied) => Some(S::Reclaimed),
            (S::Draining, E::PutBack) => Some(S::Full),
            (S::Reclaimed, E::Released) => Some(S::Dirty),
            (S::Erasing | S::Draining, E::Failed) => Some(S::Bad),
            _ => None,
        }
    }
}

/// One block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) state: BlockState,
    pub(crate) erase_count: u32,
    pub(crate) valid_chunks: u32,
    /// Placements whose index entries do not exist yet, and metadata pages in use.
    pub(crate) holds: u32,
    /// Device-wide page count when it was closed: its age.
    pub(crate) closed_at: u64,
    /// It was opened for hot records.
    hot: bool,
    /// The newest record's sequence when it was opened.
    opened_at: u64,
    /// Sum of its records' sequences, each less `opened_at`.
    written_offsets: i64,
    /// How many records that sum is of.
    written_count: u32,
    /// A program failed here: drain it, then never use it again.
    pub(crate) failing: bool,
    /// Records are left in it that only an index can move which cannot be loaded.
    stuck: bool,
    /// The newest ring frame that names a place in it: it must not be erased while opening would read that frame.
    pub(crate) mapping_frame: u64,
}

impl Block {
    /// One that was never used.
    fn fresh() -> Block {
        Block {
            state: BlockState::Dirty,
            erase_count: 0,
            valid_chunks: 0,
            holds: 0,
            closed_at: 0,
            hot: false,
            opened_at: 0,
            written_offsets: 0,
            written_count: 0,
            failing: false,
            stuck: false,
            mapping_frame: 0,
        }
    }

    /// Whether its records can be moved out of it.
    pub(crate) fn may_be_drained(&self) -> bool {
        self.state == BlockState::Full && self.holds == 0 && (!self.stuck || self.valid_chunks == 0)
    }
}

/// Free blocks of a die by wear: (erase count, block).
#[derive(Clone, Default)]
struct FreeBlocks {
    dirty: BTreeSet<(u32, u32)>,
    ready: BTreeSet<(u32, u32)>,
}

impl FreeBlocks {
    fn count(&self) -> usize {
        self.dirty.len() + self.ready.len()
    }
}

/// All blocks.
pub(crate) struct BlockTable {
    pub(crate) lifetimes: Lifetimes,
    pub(crate) geometry: Geometry,
    blocks: Vec<Block>,
    /// Of each die.
    free: Vec<FreeBlocks>,
    free_count: u32,
    reclaimed: Vec<u32>,
    erasing_count: u32,
    bad_count: u32,
    /// Bad blocks are used as others are: what is written is kept in memory.
    uses_bad: bool,
    failing_count: u32,
    live_chunks: u64,
    /// Blocks that remain when the device has become smaller; all of them, unless it is about to.
    remaining: u32,
    /// Blocks from here on are not used any more.
    leaving_from: u32,
    pub(crate) gate: Arc<BlockGate>,
}

impl BlockTable {
    /// A table of blocks without content; [`BlockTable::finish_restore`] makes them free.
    pub(crate) fn new(geometry: &Geometry) -> BlockTable {
        let count = geometry.block_count();
        BlockTable {
            lifetimes: Lifetimes::new(geometry),
            geometry: geometry.clone(),
            blocks: vec![Block::fresh(); count as usize],
            free: vec![FreeBlocks::default(); geometry.die_count() as usize],
            free_count: 0,
            reclaimed: Vec::new(),
            erasing_count: 0,
            bad_count: 0,
            uses_bad: false,
            failing_count: 0,
            live_chunks: 0,
            remaining: count,
            leaving_from: count,
            gate: Arc::new(BlockGate::new(geometry)),
        }
    }

    /// Adds free blocks: the device has this shape from now on.
    pub(crate) fn grow(&mut self, geometry: &Geometry) {
        let (old, new) = (self.count(), geometry.block_count());
        self.geometry = geometry.clone();
        self.gate.grow(new);
        self.blocks.resize(new as usize, Block::fresh());
        (self.remaining, self.leaving_from) = (new, new);
        (old..new).for_each(|block| self.list_free(block));
    }

    pub(crate) fn get(&self, block: u32) -> &Block {
        &self.blocks[block as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        self.blocks.iter().enumerate().map(|(i, b)| (i as u32, b))
    }

    pub(crate) fn count(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks that can be used now or after an erase.
    pub(crate) fn free_count(&self) -> u32 {
        self.free_count + self.erasing_count
    }

    /// Blocks that become free with the next root.
    pub(crate) fn reclaimed_count(&self) -> u32 {
        self.reclaimed.len() as u32
    }

    /// Chunks that an index points at.
    pub(crate) fn live_chunks(&self) -> u64 {
        self.live_chunks
    }

    pub(crate) fn apply(&mut self, block: u32, event: BlockEvent) {
        let entry = &mut self.blocks[block as usize];
        let Some(next) = entry.state.after(event) else {
            panic!("block {block}: {event:?} cannot happen to a block that is {:?}", entry.state);
        };
        entry.state = next;
        self.bad_count += u32::from(next == BlockState::Bad);
    }

    /// The list of its die that a free block belongs on, and its place there.
    fn free_list(&mut self, block: u32) -> (&mut BTreeSet<(u32, u32)>, (u32, u32)) {
        let Block { state, erase_count, .. } = self.blocks[block as usize];
        let free = &mut self.free[self.geometry.die_of(BlockIndex(block)) as usize];
        let list = match state {
            BlockState::Dirty => &mut free.dirty,
            BlockState::Ready => &mut free.ready,
            _ => panic!("block {block} is {state:?}: only free blocks are listed"),
        };
        (list, (erase_count, block))
    }

    fn list_free(&mut self, block: u32) {
        if block >= self.leaving_from {
            return;
        }
        let (list, entry) = self.free_list(block);
        assert!(list.insert(entry), "block {block} is listed once");
        self.free_count += 1;
    }

    fn unlist_free(&mut self, block: u32) {
        let (list, entry) = self.free_list(block);
        assert!(list.remove(&entry), "free blocks are listed");
        self.free_count -= 1;
    }

    /// Takes an erased block of a die for appending; the least worn one, or for cold data the most worn one.
    pub(crate) fn open(&mut self, die: u32, class: Class) -> Option<u32> {
        let ready = &self.free[die as usize].ready;
        let &(_, block) = match class {
            Class::Cold => ready.last(),
            _ => ready.first(),
        }?;
        self.unlist_free(block);
        self.apply(block, BlockEvent::Opened);
        let opened_at = self.lifetimes.now();
        let entry = &mut self.blocks[block as usize];
        (entry.hot, entry.opened_at) = (class == Class::Hot, opened_at);
        (entry.written_offsets, entry.written_count) = (0, 0);
        self.gate.set_programmed(block, 0);
        Some(block)
    }

    /// The die with the most free blocks that has an erased one.
    pub(crate) fn roomiest_die(&self) -> Option<u32> {
        (0..self.free.len())
            .filter(|die| !self.free[*die].ready.is_empty())
            .max_by_key(|die| self.free[*die].count())
            .map(|die| die as u32)
    }

    /// Free blocks of a die.
    pub(crate) fn free_on(&self, die: u32) -> usize {
        self.free[die as usize].count()
    }

    /// Erased blocks of a die.
    pub(crate) fn ready_on(&self, die: u32) -> usize {
        self.free[die as usize].ready.len()
    }

    /// Erased blocks of all dies.
    pub(crate) fn ready_total(&self) -> usize {
        self.free.iter().map(|die| die.ready.len()).sum()
    }

    /// Starts erasing blocks until each die has `target` erased ones (or none is left); returns them.
    pub(crate) fn start_erases(&mut self, target: usize) -> Vec<u32> {
        let mut started = Vec::new();
        for die in 0..self.free.len() {
            for extra in self.free[die].ready.len()..target {
                // Both ends of the wear range are kept ready: fresh blocks for hot data, worn ones for cold.
                let may_go = |entry: &&(u32, u32)| !self.gate.is_pinned(entry.1);
                let dirty = &self.free[die].dirty;
                let picked = match extra % 3 {
                    2 => dirty.iter().rev().find(may_go),
                    _ => dirty.iter().find(may_go),
                };
                let Some(&(_, block)) = picked else { break };
                self.unlist_free(block);
                self.apply(block, BlockEvent::EraseStarted);
                self.erasing_count += 1;
                started.push(block);
            }
        }
        started
    }

    /// An erase is done; returns the new erase count.
    pub(crate) fn erased(&mut self, block: u32) -> u32 {
        self.apply(block, BlockEvent::Erased);
        self.erasing_count -= 1;
        self.blocks[block as usize].erase_count += 1;
        self.list_free(block);
        self.get(block).erase_count
    }

    /// An erase failed: the block is bad.
    pub(crate) fn erase_failed(&mut self, block: u32) {
        self.apply(block, BlockEvent::Failed);
        self.erasing_count -= 1;
    }

    /// An index points at `chunks` in the block now.
    pub(crate) fn add_valid(&mut self, block: u32, chunks: u32) {
        self.blocks[block as usize].valid_chunks += chunks;
        self.live_chunks += u64::from(chunks);
    }

    /// No index points at those `chunks` any more.
    pub(crate) fn sub_valid(&mut self, block: u32, chunks: u32) {
        let entry = &mut self.blocks[block as usize];
        entry.valid_chunks = entry.valid_chunks.checked_sub(chunks).expect("valid chunks were added before");
        self.live_chunks -= u64::from(chunks);
        self.reclaim_if_empty(block);
    }

    /// No index points at so many chunks of each block any more.
    pub(crate) fn sub_all_valid(&mut self, chunks: &[u32]) {
        (0..).zip(chunks).filter(|(_, chunks)| **chunks > 0).for_each(|(block, chunks)| self.sub_valid(block, *chunks));
    }

    /// A record that a host wrote as its `sequence`th is in the block now.
    pub(crate) fn note_written(&mut self, block: u32, sequence: u64) {
        self.lifetimes.advance(sequence);
        let entry = &mut self.blocks[block as usize];
        let offset = sequence as i64 - entry.opened_at as i64;
        entry.written_offsets = entry.written_offsets.saturating_add(offset);
        entry.written_count += 1;
    }

    /// When hosts wrote the records of a block, on average; the opening of the device if they did before that.
    pub(crate) fn written_at(&self, block: u32) -> u64 {
        let entry = self.get(block);
        entry.opened_at.saturating_add_signed(entry.written_offsets / i64::from(entry.written_count.max(1)))
    }

    pub(crate) fn hold(&mut self, block: u32) {
        self.blocks[block as usize].holds += 1;
    }

    /// A record found in the ring while opening lies in this block: it holds data, whatever else is known of it.
    pub(crate) fn hold_mapped(&mut self, block: u32) {
        if self.get(block).state == BlockState::Dirty {
            self.unlist_free(block);
            self.blocks[block as usize].state = BlockState::Full;
        }
        self.hold(block);
    }

    pub(crate) fn unhold(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        entry.holds = entry.holds.checked_sub(1).expect("holds were taken before");
        self.reclaim_if_empty(block);
    }

    /// A log is done with the block.
    pub(crate) fn close(&mut self, block: u32, now: u64) {
        self.apply(block, BlockEvent::Closed);
        self.blocks[block as usize].closed_at = now;
        self.reclaim_if_empty(block);
    }

    /// A program failed in the block.
    pub(crate) fn set_failing(&mut self, block: u32) {
        self.blocks[block as usize].failing = true;
        self.failing_count += 1;
    }

    /// Whether a block waits to be drained and retired.
    pub(crate) fn has_failing(&self) -> bool {
        self.failing_count > 0 && self.blocks.iter().any(|b| b.failing && b.may_be_drained())
    }

    /// A block that was to be drained keeps records that cannot be moved because an index is missing.
    pub(crate) fn put_back(&mut self, block: u32) {
        self.apply(block, BlockEvent::PutBack);
        self.blocks[block as usize].stuck = true;
    }

    /// An index is back that blocks were kept for.
    pub(crate) fn release_stuck(&mut self) {
        self.blocks.iter_mut().for_each(|block| block.stuck = false);
    }

    /// A ring frame names a place in the block.
    pub(crate) fn set_mapping_frame(&mut self, block: u32, frame: u64) {
        self.blocks[block as usize].mapping_frame = frame;
    }

    /// The frames that named places are of an epoch that is over.
    pub(crate) fn forget_mapping_frames(&mut self) {
        self.blocks.iter_mut().for_each(|block| block.mapping_frame = 0);
    }

    /// Whether a root, or one after it, can free a reclaimed block while frames from `staging` on are not written.
    pub(crate) fn can_release_before(&self, staging: u64) -> bool {
        self.reclaimed.iter().any(|block| self.get(*block).mapping_frame < staging)
    }

    /// A full block with nothing live needs no collecting. A draining one is finished by `gc`.
    fn reclaim_if_empty(&mut self, block: u32) {
        let entry = self.get(block);
        if entry.state == BlockState::Full && entry.valid_chunks == 0 && entry.holds == 0 {
            self.emptied(block);
        }
    }

    /// Nothing in the block is live any more.
    pub(crate) fn emptied(&mut self, block: u32) {
        let entry = self.get(block).clone();
        assert!(entry.valid_chunks == 0 && entry.holds == 0, "block {block} is not empty: {entry:?}");
        if entry.failing {
            self.failing_count -= 1;
            if entry.state == BlockState::Full {
                self.apply(block, BlockEvent::Picked);
            }
            self.apply(block, BlockEvent::Failed);
        } else {
            if entry.hot {
                self.lifetimes.hot_block_emptied(entry.opened_at);
            }
            self.apply(block, BlockEvent::Emptied);
            self.reclaimed.push(block);
        }
    }

    /// Live records are left that cannot be moved (their headers do not parse): the block is kept as it is.
    pub(crate) fn quarantine(&mut self, block: u32) {
        self.apply(block, BlockEvent::Failed);
    }

    /// The newest ring frame that names a place in a reclaimed block.
    pub(crate) fn reclaimed_frame_max(&self) -> u64 {
        self.reclaimed.iter().map(|block| self.get(*block).mapping_frame).max().unwrap_or(0)
    }

    /// The blocks reclaimed so far that no frame from `oldest_frame` on names; a root that no longer needs them is
    /// about to be written.
    pub(crate) fn take_reclaimed(&mut self, oldest_frame: u64) -> Vec<u32> {
        let blocks = &self.blocks;
        let (take, keep) = self.reclaimed.drain(..).partition(|b| blocks[*b as usize].mapping_frame < oldest_frame);
        self.reclaimed = keep;
        take
    }

    /// The root was not written.
    pub(crate) fn put_back_reclaimed(&mut self, blocks: Vec<u32>) {
        self.reclaimed.extend(blocks);
    }

    /// The root that no longer needs these blocks is durable.
    pub(crate) fn release(&mut self, blocks: &[u32]) {
        for &block in blocks {
            self.apply(block, BlockEvent::Released);
            self.list_free(block);
        }
    }

    /// Smallest and largest erase count, and the mean, over blocks that are not bad.
    pub(crate) fn erase_spread(&self) -> (u32, u32, f64) {
        let counts = self.blocks.iter().filter(|b| b.state != BlockState::Bad).map(|b| b.erase_count);
        let (mut min, mut max, mut sum, mut n) = (u32::MAX, 0, 0u64, 0u64);
        for count in counts {
            (min, max) = (min.min(count), max.max(count));
            (sum, n) = (sum + u64::from(count), n + 1);
        }
        (min.min(max), max, sum as f64 / n.max(1) as f64)
    }

    /// Blocks that are never used again.
    pub(crate) fn bad_count(&self) -> u32 {
        self.bad_count
    }

    // --- opening a device -------------------------------------------------------------------------------------

    /// Sets what a snapshot or the journal reports about a block; `valid` where the snapshot was exact.
    pub(crate) fn restore(&mut self, block: u32, erase_count: u32, bad: bool) {
        let entry = &mut self.blocks[block as usize];
        entry.erase_count = erase_count;
        if bad && entry.state != BlockState::Bad {
            entry.state = BlockState::Bad;
            self.bad_count += 1;
        }
    }

    /// All blocks count as closed at page `page` and written at record `record`: their true ages are not kept.
    pub(crate) fn set_age(&mut self, page: u64, record: u64) {
        self.lifetimes.advance(record);
        self.blocks.iter_mut().for_each(|block| (block.closed_at, block.opened_at) = (page, record));
    }

    /// Counts what the indexes point at while opening.
    pub(crate) fn restore_valid(&mut self, block: u32, chunks: u32) {
        self.blocks[block as usize].valid_chunks += chunks;
        self.live_chunks += u64::from(chunks);
    }

    /// Counts metadata pages while opening.
    pub(crate) fn restore_holds(&mut self, block: u32, pages: u32) {
        self.blocks[block as usize].holds += pages;
    }

    /// The medium keeps in memory what is written to it, so bad blocks without content count as free.
    pub(crate) fn use_bad_blocks(&mut self) {
        self.uses_bad = true;
    }

    /// Everything was restored: blocks with content are full, the others free.
    pub(crate) fn finish_restore(&mut self) {
        self.free.fill(FreeBlocks::default());
        self.free_count = 0;
        for block in 0..self.count() {
            let entry = &mut self.blocks[block as usize];
            let has_content = entry.valid_chunks > 0 || entry.holds > 0;
            if entry.state == BlockState::Bad && (has_content || !self.uses_bad) {
                continue;
            }
            if has_content {
                entry.state = BlockState::Full;
            } else {
                entry.state = BlockState::Dirty;
                self.list_free(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   the life of a block is as in the table, and a changed cell is seen.
    /// Method: all states × all events as the types list them, printed and compared.
    #[test]
    fn moves_of_a_block() {
        let cell = |next: Option<BlockState>| next.map_or("-".to_owned(), |next| format!("{next:?}"));
        let row = |state: &BlockState| {
            let cells: Vec<String> = BlockEvent::ALL.iter().map(|event| cell(state.after(*event))).collect();
            format!("{state:?}: {}", cells.join(" "))
        };
        let printed: Vec<String> = BlockState::ALL.iter().map(row).collect();
        let expected = [
            "Dirty: Erasing - - - - - - - -",
            "Erasing: - Ready - - - - - - Bad",
            "Ready: - - Open - - - - - -",
            "Open: - - - Full - - - - -",
            "Full: - - - - Draining Reclaimed - - -",
            "Draining: - - - - - Reclaimed Full - Bad",
            "Reclaimed: - - - - - - - Dirty -",
            "Bad: - - - - - - - - -",
        ];
        assert_eq!(printed, expected);
    }
}
