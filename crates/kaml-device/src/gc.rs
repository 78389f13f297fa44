//! Garbage collection, static wear levelling, and the pace of hosts while it runs.
//!
//! Lives here:       which block is collected, finding and moving its live records, when it counts as empty.
//! Lives elsewhere:  which class a moved record belongs to (`lifetime`), installing it (`core`), erasing (`core`,
//!                   `blocks`), freeing (`checkpoint`).
//! Implements:       paper:KAML IV.E; design section 6.
//!
//! A record is live when the index points at it. Live records go to logs of their age on the same die; when their new
//! pages are programmed their index entries swing by compare-and-set; when none is left the block is reclaimed, and it
//! is erased once a root no longer needs it.

use crate::core::{Core, Pending, code};
use crate::format::oob::{Extent, entries_of_block, extents};
use crate::format::record::RecordHeader;
use crate::lifetime::{Class, record_classes};
use crate::staging::{DIRECT_BYTES, StageError};
use crate::versioned::NoSegment;
use crate::writers::{Move, NoBlock};
use kaml_flash::{AlignedBuf, BlockIndex, Io, MediumError, Packing, PageAddr};
use kaml_index::Slot;
use std::collections::{BTreeMap, BTreeSet};

/// The block being scanned.
#[derive(Debug)]
struct Victim {
    block: u32,
    /// Its records, once the OOB entries are read.
    extents: Vec<Extent>,
    next: usize,
    /// Bytes read and not wholly worked off: first chunk, buffer.
    slice: Option<(u32, AlignedBuf)>,
    reading: bool,
    /// It holds segments of versioned namespaces.
    has_segments: bool,
}

/// What is left to do for a block whose records are on their way.
#[derive(Debug, Default)]
struct Drain {
    moving: u32,
    scanned: bool,
    /// How often a scan was begun.
    scans: u32,
    /// Records stay in it whose index cannot be loaded.
    is_stuck: bool,
}

/// The state of collection.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    victim: Option<Victim>,
    draining: BTreeMap<u32, Drain>,
    /// Of these, those that have live records left after a scan: bits that flip on their way may be right next time.
    again: Vec<u32>,
    /// Chunks that hosts may write before collection must have found more garbage.
    budget: i64,
    active: bool,
    picks: u64,
    /// Victims picked since hosts wrote, live data changed, or there was more room than before.
    vain: Vain,
    /// Blocks are short, and nothing that goes on by itself will change that.
    pub(crate) wedged: bool,
    /// Moved records took the last block: hosts wait until a root has given another back.
    took_last: bool,
    /// Erased blocks that a Put waits for, and whether it does so in vain.
    wanted: Wanted,
    /// The namespace whose index must be loaded before collection can go on.
    pub(crate) wants_index: Option<u32>,
    /// Namespaces whose index could not be loaded: their records stay where they are until somebody else has loaded it.
    lost_indexes: BTreeSet<u32>,
}

/// Erased blocks that a Put of several blocks waits for, besides those that are left to others.
#[derive(Debug, Default)]
struct Wanted {
    blocks: u32,
    /// Nothing that goes on by itself will bring them.
    in_vain: bool,
}

/// Collection that gains nothing: records that are long for their blocks leave as much of the new ones unused.
#[derive(Debug, Default)]
struct Vain {
    picks: u32,
    live_chunks: u64,
    /// The most free and reclaimed blocks since.
    room: u32,
}

/// Collection is in vain when it has picked each block so often.
const VAIN_ROUNDS: u32 = 2;

impl Collector {
    pub(crate) fn is_running(&self) -> bool {
        self.victim.is_some() || !self.draining.is_empty()
    }
}

/// Bytes read at a time.
const SLICE_BYTES: u32 = 256 << 10;
/// After so many scans what still does not match its checksum is damaged: it is moved as it is.
const SCANS_MAX: u32 = 4;
/// Programs under way beyond which collection waits.
const PROGRAMMING_BYTES_MAX: u64 = 8 << 20;
/// Blocks that may be reclaimed while waiting for a root before collection waits for it.
const RECLAIMED_MAX: u32 = 4;
/// Free blocks that collection leaves: the journal may take the last one, or no root could be made.
pub(crate) const COLLECTION_FLOOR: u32 = 1;
/// Static wear levelling keeps the spread of erase counts within this many erases, or 1/16 of the largest.
const WEAR_SPREAD_MIN: u32 = 6;

impl Core {
    /// Records cannot be moved before the index of this namespace is loaded. One is at a time: who asks in vain asks again.
    pub(crate) fn want_index(&mut self, namespace: u32) {
        self.collector.wants_index.get_or_insert(namespace);
    }

    /// Collection goes on without an index that cannot be loaded.
    pub(crate) fn do_without_index(&mut self, namespace: u32, why: &dyn std::fmt::Display) {
        tracing::warn!(namespace, %why, "blocks with records of a namespace are kept, because its index cannot be loaded");
        self.collector.lost_indexes.insert(namespace);
    }

    /// Whether records of a namespace stay where they are because its index cannot be loaded.
    pub(crate) fn does_without_index(&self, namespace: u32) -> bool {
        self.collector.lost_indexes.contains(&namespace)
    }

    /// Blocks can be collected again that were kept for an index which is back.
    fn note_found_indexes(&mut self) {
        let (spaces, lost) = (&self.spaces, &mut self.collector.lost_indexes);
        let before = lost.len();
        lost.retain(|id| spaces.get(id).is_some_and(|space| !space.is_loaded()));
        if lost.len() < before {
            self.blocks.release_stuck();
        }
    }

    /// Whether hosts may write now. While free blocks are short, they may write as much as collection finds
    /// garbage, so that it is never outrun and their latency grows by small steps.
    pub(crate) fn may_write(&self) -> bool {
        !self.collector.active || (self.collector.budget > 0 && !self.collector.took_last)
    }

    /// Whether hosts may delete now. Deletes make room and are not counted against the budget, but they fill the
    /// journal, which may take the last blocks: those are collection's while it works on giving some back.
    pub(crate) fn may_delete(&self) -> bool {
        self.blocks.free_count() > self.floor(Class::Snapshot) || !self.collector.is_running() || self.collector.wedged
    }

    /// The answer to a command for which there is no room now: it is told to wait only if waiting will help.
    pub(crate) fn no_room(&self) -> StageError {
        if self.collector.wedged && self.low_merge.is_none() { self.no_room_for_good() } else { StageError::Busy }
    }

    /// The same where collection stands for good, but that a namespace is being deleted: its blocks were left alone.
    pub(crate) fn no_room_for_good(&self) -> StageError {
        if self.deletions == 0 { self.full_now().into() } else { StageError::Busy }
    }

    /// Notes whether collection has come to a stand for good, after everything that can go on has gone on: records that do
    /// not fit together into whole blocks, or power cuts that left too many blocks half full, have taken the blocks that
    /// moving them needs. Deletes may still empty some.
    pub(crate) fn note_wedged(&mut self) {
        let collector = &self.collector;
        let stands = collector.victim.as_ref().is_none_or(|victim| victim.slice.is_some())
            && collector.draining.values().all(|drain| drain.moving == 0)
            && collector.wants_index.is_none()
            && !self.blocks_are_wanted();
        let under_way = !self.ops.is_empty() || !self.outbox.is_empty() || !self.retry.is_empty();
        let quiet = !under_way && self.failed_blocks.is_empty() && self.root_is_idle() && !self.ring.has_staged();
        let wedged = collector.active && stands && quiet;
        // Those that are free are erased with the next step.
        let wanted = self.wanted_blocks();
        let is_lacking = wanted > 0 && self.blocks.free_count() < self.floor(Class::Hot) + wanted;
        let in_vain = is_lacking && stands && quiet;
        if wedged && !collector.wedged {
            let (free, live) = (self.blocks.free_count(), self.blocks.live_chunks());
            tracing::warn!(
                free,
                live,
                "collection has no block to move records to; puts are refused until some are deleted"
            );
        }
        self.collector.wedged = wedged;
        self.collector.wanted.in_vain = in_vain;
    }

    /// Erased blocks that a Put waits for.
    pub(crate) fn wanted_blocks(&self) -> u32 {
        self.collector.wanted.blocks
    }

    /// Refuses a Put of so many chunks, of which no record has more than `longest`, as long as there are too few erased blocks for it,
    /// and has blocks erased and collected. What a Put has placed when it finds no block half way is garbage, and is so each time that it
    /// is tried again. One of less than a block goes on in the blocks that it has opened.
    pub(crate) fn check_blocks(&mut self, chunks: u64, longest: u32) -> Result<(), StageError> {
        let per_block = self.geometry.chunks_per_block();
        if chunks <= per_block.into() {
            return Ok(());
        }
        // A full block lacks less than a record, and two in a row are more than half full.
        let filled = (per_block - longest + 1).max(per_block / 2);
        let filled = match self.geometry.packing {
            Packing::Across => filled,
            Packing::WithinPage => filled / 2,
        };
        // Of each class that puts go to, each die may have one that is not full.
        let begun = (record_classes(&self.geometry).len() as u32 - 1) * self.geometry.die_count();
        let blocks = chunks.div_ceil(filled.max(1).into()) as u32 + begun;
        if self.blocks.ready_total() >= blocks as usize && self.blocks.free_count() >= self.floor(Class::Hot) + blocks {
            self.collector.wanted = Wanted::default();
            return Ok(());
        }
        let in_vain = self.collector.wanted.in_vain && self.collector.wanted.blocks >= blocks;
        let refused = if in_vain { self.no_room_for_good() } else { self.no_room() };
        self.collector.wanted = match &refused {
            StageError::Busy => Wanted { blocks, in_vain },
            _ => Wanted::default(), // nobody waits any more
        };
        Err(refused)
    }

    /// A host has written `chunks`.
    pub(crate) fn has_written(&mut self, chunks: u64) {
        self.collector.budget -= chunks as i64;
        self.collector.vain.picks = 0;
    }

    /// One step of collection.
    pub(crate) fn step_gc(&mut self) {
        self.collector.took_last &= self.blocks.free_count() == 0;
        self.note_found_indexes();
        self.update_pace();
        self.next_victim();
        if self.writers.programming_bytes > PROGRAMMING_BYTES_MAX {
            return;
        }
        self.work_off_slice();
        self.read_slice();
        self.next_victim();
        if self.collector.victim.is_none() && !self.collector.draining.is_empty() {
            // Nothing more will fill the buffers soon: what they hold would keep drained blocks.
            self.seal_moves();
        }
    }

    fn seal_moves(&mut self) {
        let mut out = Vec::new();
        self.writers.seal_moves(&mut out);
        self.emit_programs(out);
    }

    fn update_pace(&mut self) {
        let free = self.blocks.free_count() + self.blocks.reclaimed_count();
        let short = free < self.collect_below();
        if short && !self.collector.active {
            // What may be written until only the reserve is left, less what is already lost to open blocks.
            let spare = u64::from(self.blocks.free_count().saturating_sub(self.reserve_blocks()));
            self.collector.budget = (spare * u64::from(self.geometry.chunks_per_block()) / 2) as i64;
        }
        let roomy = free > self.collect_below() + 1;
        self.collector.active = short || (self.collector.active && !roomy);
    }

    fn should_collect(&self) -> bool {
        let free = self.blocks.free_count() + self.blocks.reclaimed_count();
        let wanted = self.collector.active || free <= self.collect_below() + self.wanted_blocks();
        let draining = self.collector.draining.len() as u32;
        wanted
            && self.live_chunks_max() > 0
            && !self.collects_in_vain()
            && draining + self.blocks.reclaimed_count() <= RECLAIMED_MAX
            && !self.root_commit.awaits_checkpoint()
            || self.blocks.has_failing()
    }

    /// Live chunks that a victim may have now. One that comes while others are on their way may need a block of its own before they
    /// give theirs back; where there is none, those that fit what is open come along: together they gain something even where
    /// each program takes a whole block.
    fn live_chunks_max(&self) -> u32 {
        let (free, draining) = (self.blocks.free_count(), &self.collector.draining);
        if draining.is_empty() || free > COLLECTION_FLOOR + 1 {
            return self.geometry.chunks_per_block();
        }
        let room = self.writers.room(record_classes(&self.geometry));
        // The root that gives them back may have to do without a block.
        let entries = draining.values().map(|drain| drain.moving).sum::<u32>() + room;
        if free <= COLLECTION_FLOOR && self.journal_fits_root(entries as usize) { room } else { 0 }
    }

    fn collects_in_vain(&self) -> bool {
        let vain = &self.collector.vain;
        vain.picks > VAIN_ROUNDS * self.blocks.count() && vain.live_chunks == self.blocks.live_chunks()
    }

    fn note_pick(&mut self) {
        let room = self.blocks.free_count() + self.blocks.reclaimed_count();
        let live_chunks = self.blocks.live_chunks();
        let vain = &mut self.collector.vain;
        if vain.live_chunks != live_chunks || room > vain.room {
            *vain = Vain { picks: 0, live_chunks, room };
        }
        vain.picks += 1;
    }

    fn next_victim(&mut self) {
        if self.collector.victim.is_some() {
            return;
        }
        if let Some(block) = self.collector.again.pop() {
            self.scan(block);
        } else if self.should_collect() {
            self.pick_victim();
        }
    }

    fn pick_victim(&mut self) {
        let Some(block) = self.choose_victim() else { return };
        self.note_pick();
        self.blocks.apply(block, crate::blocks::BlockEvent::Picked);
        self.collector.picks += 1;
        self.collector.draining.insert(block, Drain::default());
        self.scan(block);
    }

    fn scan(&mut self, block: u32) {
        let drain = self.collector.draining.get_mut(&block).expect("listed when picked");
        (drain.scans, drain.scanned) = (drain.scans + 1, false);
        self.collector.victim =
            Some(Victim { block, extents: Vec::new(), next: 0, slice: None, reading: true, has_segments: false });
        let bytes = self.geometry.pages_per_block * self.geometry.oob_bytes;
        let at = PageAddr { block: BlockIndex(block), page: 0 };
        self.emit(Io::ReadOob { at, into: AlignedBuf::zeroed(bytes as usize) }, Pending::GcOob { block });
    }

    /// Failing blocks first; now and then the least worn block; else the best of garbage against age.
    fn choose_victim(&self) -> Option<u32> {
        if let Some((block, _)) = self.blocks.iter().find(|(_, b)| b.may_be_drained() && b.failing) {
            return Some(block);
        }
        let live_max = self.live_chunks_max();
        let candidates = || self.blocks.iter().filter(|(_, b)| b.may_be_drained() && b.valid_chunks <= live_max);
        let (_, max, _) = self.blocks.erase_spread();
        if self.collector.picks.is_multiple_of(4)
            && let Some((block, entry)) = candidates().min_by_key(|(block, b)| (b.erase_count, *block))
            && max - entry.erase_count > WEAR_SPREAD_MIN.max(max / 16)
        {
            return Some(block);
        }
        let per_block = self.geometry.chunks_per_block();
        let now = self.writers.sequence;
        let score = |valid: u32, closed_at: u64| {
            let live = f64::from(valid) / f64::from(per_block);
            // Cost-benefit with the square root of age: between greedy (best for uniform overwrites) and the
            // log-structured file system's rule (best for skewed ones).
            let age = ((now - closed_at) as f64 + 1.0).sqrt();
            (1.0 - live) / (1.0 + live) * age
        };
        let garbage = |valid: u32| valid < per_block - per_block / 64;
        // Dies that are short of free blocks come first.
        let need = |block: u32| 1.0 + 1.0 / (1.0 + self.blocks.free_on(self.geometry.die_of(BlockIndex(block))) as f64);
        candidates()
            .filter(|(_, b)| garbage(b.valid_chunks))
            .map(|(block, b)| (block, score(b.valid_chunks, b.closed_at) * need(block)))
            .max_by(|(_, a), (_, b)| a.total_cmp(b))
            .map(|(block, _)| block)
    }

    pub(crate) fn gc_oob_done(&mut self, block: u32, io: Io, result: Result<(), MediumError>) {
        let Io::ReadOob { into, .. } = io else { unreachable!("the operation of an OOB read") };
        let victim = self.collector.victim.as_mut().filter(|v| v.block == block).expect("the block being scanned");
        victim.reading = false;
        if let Err(error) = result {
            tracing::warn!(block, %error, "the OOB entries of a block cannot be read");
        } else {
            let oob_bytes = self.geometry.oob_bytes as usize;
            let pages = entries_of_block(&into, oob_bytes);
            victim.extents = extents(&pages, self.geometry.chunks_per_page());
            victim.has_segments = pages.iter().flatten().any(|page| page.class == Class::Segment as u8);
        }
    }

    /// Reads the next records of the victim, or ends its scan.
    fn read_slice(&mut self) {
        let Some(victim) = &mut self.collector.victim else { return };
        if victim.reading || victim.slice.is_some() {
            return;
        }
        let block = victim.block;
        let Some(first) = victim.extents.get(victim.next).copied() else {
            self.collector.victim = None;
            self.collector.draining.get_mut(&block).expect("listed when picked").scanned = true;
            self.gc_finish(block);
            return;
        };
        let limit = first.start + SLICE_BYTES / self.geometry.chunk_bytes;
        let rest = &victim.extents[victim.next..];
        let last = rest.iter().take_while(|e| e.start + e.chunk_count <= limit).last().unwrap_or(&first);
        let bytes = (last.start + last.chunk_count - first.start) * self.geometry.chunk_bytes;
        victim.reading = true;
        let at = self.geometry.chunk_at(BlockIndex(block), first.start);
        self.emit(Io::Read { at, into: AlignedBuf::zeroed(bytes as usize) }, Pending::GcRead { block });
    }

    pub(crate) fn gc_read_done(&mut self, block: u32, io: Io, result: Result<(), MediumError>) {
        let Io::Read { at, into } = io else { unreachable!("the operation of a read") };
        let victim = self.collector.victim.as_mut().filter(|v| v.block == block).expect("the block being scanned");
        victim.reading = false;
        let start = self.geometry.split(at).1;
        match result {
            Ok(()) => victim.slice = Some((start, into)),
            Err(error) => {
                tracing::warn!(block, %error, "part of a block cannot be read");
                let end = start + into.len() as u32 / self.geometry.chunk_bytes;
                victim.next += victim.extents[victim.next..].iter().take_while(|e| e.start < end).count();
            }
        }
    }

    /// Moves the live records of the slice.
    fn work_off_slice(&mut self) {
        let Some(victim) = &mut self.collector.victim else { return };
        let Some((start, bytes)) = victim.slice.take() else { return };
        let block = victim.block;
        let chunk_bytes = self.geometry.chunk_bytes as usize;
        loop {
            let victim = self.collector.victim.as_mut().expect("still scanned");
            let Some(extent) = victim.extents.get(victim.next).copied() else { return };
            let at = (extent.start - start) as usize * chunk_bytes;
            let Some(record) = bytes.get(at..at + extent.chunk_count as usize * chunk_bytes) else { return };
            match self.move_if_live(block, extent, record) {
                Ok(live_chunks) => {
                    if self.collector.draining[&block].scans == 1 {
                        self.collector.budget += i64::from(extent.chunk_count - live_chunks);
                    }
                    self.collector.victim.as_mut().expect("still scanned").next += 1;
                }
                Err(NoBlock) => {
                    self.collector.victim.as_mut().expect("still scanned").slice = Some((start, bytes));
                    // What has been moved so far may be all that keeps earlier victims from becoming free.
                    self.seal_moves();
                    return;
                }
            }
        }
    }

    /// Starts moving a record if the index points at it; answers its chunks if so, else 0. What does not match its checksum stays
    /// where it is until the last scan.
    fn move_if_live(&mut self, block: u32, extent: Extent, bytes: &[u8]) -> Result<u32, NoBlock> {
        let is_last_scan = self.collector.draining[&block].scans == SCANS_MAX;
        if self.collector.victim.as_ref().is_some_and(|victim| victim.has_segments) {
            let from = self.geometry.chunk_at(BlockIndex(block), extent.start);
            match self.move_segment(from, bytes, COLLECTION_FLOOR, is_last_scan) {
                Ok(true) => {}
                Ok(false) => return Ok(0),
                Err(NoSegment::Damaged) => return Ok(extent.chunk_count),
                Err(NoSegment::Block) => return Err(NoBlock),
                Err(NoSegment::Index(id)) => return self.without_index(block, extent, id),
            }
            self.collector.draining.get_mut(&block).expect("listed when picked").moving += 1;
            self.counters.relocated_chunks += u64::from(extent.chunk_count);
            return Ok(extent.chunk_count);
        }
        let Some(record) = RecordHeader::check(bytes) else {
            self.counters.damaged_records += u64::from(is_last_scan);
            return Ok(0);
        };
        let from =
            Slot { at: self.geometry.chunk_at(BlockIndex(block), extent.start).0, len: code(extent.chunk_count) };
        let Some(space) = self.spaces.get(&record.namespace) else { return Ok(0) };
        let Some(index) = &space.index else {
            return self.without_index(block, extent, record.namespace);
        };
        if index.get(&record.key) != Some(from) {
            return Ok(0);
        }
        let value = bytes.get(RecordHeader::BYTES..record.page_bytes());
        if value.is_none_or(|value| crc_fast::crc32_iscsi(value) != record.value_crc) {
            if !is_last_scan {
                return Ok(extent.chunk_count);
            }
            // As it is, so that reading it goes on being refused rather than finding nothing.
            self.counters.damaged_records += 1;
            tracing::warn!(key = %record.key, namespace = record.namespace, at = from.at, "a damaged record is moved");
        }
        let log = self.geometry.die_of(BlockIndex(block));
        let len = extent.chunk_count as usize * self.geometry.chunk_bytes as usize;
        let whole = &bytes[..record.page_bytes().min(len)];
        // Large records do not know their time, only what was before it.
        let written =
            if record.value_len as usize >= DIRECT_BYTES { self.blocks.written_at(block) } else { record.sequence };
        let moved = self.append_moved(log, extent.chunk_count, (whole, written), COLLECTION_FLOOR);
        let at = match moved {
            Err(NoBlock) if self.may_take_last_block() => {
                self.collector.took_last = true;
                self.append_moved(log, extent.chunk_count, (whole, written), 0)
            }
            moved => moved,
        };
        let to = Slot { at: at?, len: from.len };
        let to_block = self.block_of(to.at);
        self.blocks.note_written(to_block, written);
        self.writers.attach_move(to_block, Move { namespace: record.namespace, key: record.key, from, to });
        self.collector.draining.get_mut(&block).expect("listed when picked").moving += 1;
        self.counters.relocated_chunks += u64::from(extent.chunk_count);
        Ok(extent.chunk_count)
    }

    /// A record whose index is not in memory: it waits for that, or stays where it is. In that case it counts as live.
    fn without_index(&mut self, block: u32, extent: Extent, namespace: u32) -> Result<u32, NoBlock> {
        if !self.does_without_index(namespace) {
            self.want_index(namespace);
            return Err(NoBlock);
        }
        self.collector.draining.get_mut(&block).expect("listed when picked").is_stuck = true;
        Ok(extent.chunk_count)
    }

    /// Appends to the log of a die, or of any die that has room, in the class of the record's age. If blocks are too
    /// short to open one for it, any class will do: else a victim whose records are of many ages could need more
    /// blocks than there are, and none would come back.
    fn append_moved(
        &mut self,
        log: u32,
        chunks: u32,
        (bytes, written): (&[u8], u64),
        floor: u32,
    ) -> Result<u64, NoBlock> {
        let wanted = self.blocks.lifetimes.of_moved(written);
        let mut alternatives = self.blocks.lifetimes.alternatives(wanted);
        let mut append = |class| {
            let parts = [bytes, &[]];
            self.on_some_log(log, |core, log| core.append(log, class, floor, chunks, parts, None))
        };
        let at = append(wanted).or_else(|NoBlock| alternatives.find_map(|class| append(class).ok()).ok_or(NoBlock));
        Ok(at?.0)
    }

    /// Whether the victim's records may have the last block. Where nothing else goes on they may, if it takes all that is live
    /// in the victim, and if what the journal will have to say of that fits the root which gives the victim back: that root
    /// needs no block, and there is one again, with room beside it. Power cuts that leave blocks half full, one after the
    /// other, lead here.
    fn may_take_last_block(&self) -> bool {
        let collector = &self.collector;
        let Some(victim) = collector.victim.as_ref().filter(|_| collector.draining.len() == 1) else { return false };
        let live = self.blocks.get(victim.block).valid_chunks;
        let fits = match self.geometry.packing {
            Packing::Across => true,
            Packing::WithinPage => live <= self.geometry.chunks_per_block() / 2,
        };
        let under_way = !self.ops.is_empty() || !self.outbox.is_empty() || !self.retry.is_empty();
        let quiet = !under_way && self.failed_blocks.is_empty() && self.root_is_idle() && !self.ring.has_staged();
        let entries = victim.extents.len().min(live as usize);
        let root_will_do = !self.root_commit.awaits_checkpoint() && self.journal_fits_root(entries);
        self.blocks.free_count() == 1 && self.blocks.reclaimed_count() == 0 && fits && quiet && root_will_do
    }

    /// One record that came from `block` has settled.
    pub(crate) fn gc_moved(&mut self, block: u32) {
        if let Some(drain) = self.collector.draining.get_mut(&block) {
            drain.moving = drain.moving.saturating_sub(1);
            self.gc_finish(block);
        }
    }

    /// Reclaims a block when its scan is over and its records have left.
    fn gc_finish(&mut self, block: u32) {
        let drain = &self.collector.draining[&block];
        if !drain.scanned || drain.moving > 0 {
            return;
        }
        // Records of a namespace that is being deleted are not moved, and still count as live.
        let is_stuck = drain.is_stuck || self.deletions > 0;
        let scans = drain.scans;
        let entry = self.blocks.get(block);
        if entry.valid_chunks > 0 && !is_stuck && scans < SCANS_MAX {
            self.collector.draining.get_mut(&block).expect("just seen").scanned = false;
            self.collector.again.push(block);
            return;
        }
        self.collector.draining.remove(&block);
        if entry.valid_chunks == 0 {
            self.blocks.emptied(block);
            return;
        }
        if is_stuck {
            self.blocks.put_back(block);
            return;
        }
        tracing::warn!(
            block,
            live_chunks = entry.valid_chunks,
            "records of a block cannot be moved; the block is kept"
        );
        self.blocks.quarantine(block);
        self.retire(block);
    }
}
