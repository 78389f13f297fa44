//! Garbage collection.
//!
//! Lives here:       finding and moving the live records of a block, when it counts as empty.
//! Lives elsewhere:  which block is worth most (`policy`), when collection runs (`space`), which class a moved record belongs
//!                   to (`lifetime`), installing it (`core`), erasing (`log`, `blocks`), freeing (`roots`).
//! Implements:       paper:KAML IV.E.
//!
//! A record is live when the index points at it. Live records go to logs of their age on the same die; when their new
//! pages are programmed their index entries swing by compare-and-set; when none is left the block is reclaimed, and it
//! is erased after a root no longer needs it.

use crate::blocks::Block;
use crate::collector::{Drain, Victim};
use crate::core::{Core, code};
use crate::format::oob::{Extent, entries_of_block, extents};
use crate::format::record::DIRECT_BYTES;
use crate::format::record::RecordHeader;
use crate::in_flight::Pending;
use crate::lifetime::Class;
use crate::moves::Move;
use crate::policy::{CollectionCandidate, CollectionPolicy, CollectionRule};
use crate::snapshots::steps::is_kept_in;
use crate::space::Purpose;
use crate::versioned::NoSegment;
use crate::writers::{NoBlock, Writers};
use kaml_flash::{AlignedBuf, BlockIndex, Io, MediumError, PageAddr};
use kaml_index::Slot;

/// Bytes read at a time.
const SLICE_BYTES: u32 = 256 << 10;
/// After so many scans what still does not match its checksum is damaged: it is moved as it is.
const SCANS_MAX: u32 = 4;
/// A block with less garbage than this share of it is not worth collecting.
const GARBAGE_SHARE: u32 = 64;

impl Core {
    /// Collects by another policy from now on. What is stored does not depend on it.
    pub fn set_collection_policy(&mut self, policy: CollectionPolicy) {
        (self.collector.policy, self.collector.own_rule) = (policy, None);
    }

    /// Collects by a rule of the caller's from now on. What is stored does not depend on it.
    pub fn set_collection_rule(&mut self, rule: Box<dyn CollectionRule>) {
        self.collector.own_rule = Some(rule);
    }

    /// Records cannot be moved before the index of this namespace is loaded. One is loaded at a time: a caller that asks in vain asks again.
    pub(crate) fn want_index(&mut self, namespace: u32) {
        self.collector.wants_index.get_or_insert(namespace);
    }

    /// Collection continues without an index that cannot be loaded.
    pub(crate) fn do_without_index(&mut self, namespace: u32, why: &dyn std::fmt::Display) {
        tracing::warn!(namespace, %why, "blocks with records of a namespace are kept, because its index cannot be loaded");
        self.collector.lost_indexes.insert(namespace);
    }

    /// Whether records of a namespace are not moved because its index cannot be loaded.
    pub(crate) fn does_without_index(&self, namespace: u32) -> bool {
        self.collector.lost_indexes.contains(&namespace)
    }

    /// Blocks can be collected again that were kept for an index which is back.
    fn note_found_indexes(&mut self) {
        let (spaces, lost) = (&self.spaces, &mut self.collector.lost_indexes);
        let before = lost.len();
        lost.retain(|id| spaces.get(id).is_some_and(|space| !space.is_loaded()));
        if lost.len() < before {
            self.log.blocks.release_stuck();
        }
    }

    /// One step of collection.
    pub(crate) fn step_gc(&mut self) {
        self.note_found_indexes();
        self.update_pace();
        self.next_victim();
        if !self.may_program(Purpose::Move) {
            return;
        }
        self.work_off_slice();
        self.read_slice();
        self.next_victim();
        if self.collector.victim.is_none() && !self.collector.draining.is_empty() {
            // Nothing more will fill the buffers soon: what they hold would keep drained blocks.
            self.log.seal(Writers::seal_moves);
        }
    }

    fn next_victim(&mut self) {
        if self.collector.victim.is_some() {
            return;
        }
        if let Some(block) = self.collector.again.pop() {
            self.scan(block);
        } else if let Some(live_max) = self.victim_chunks_max() {
            self.pick_victim(live_max);
        }
    }

    fn pick_victim(&mut self, live_max: u32) {
        let Some(block) = self.choose_victim(live_max) else { return };
        self.note_pick();
        self.log.blocks.apply(block, crate::blocks::BlockEvent::Picked);
        self.collector.picks += 1;
        self.collector.draining.insert(block, Drain::default());
        self.scan(block);
    }

    fn scan(&mut self, block: u32) {
        let drain = self.collector.draining.get_mut(&block).expect("listed when picked");
        (drain.scans, drain.scanned) = (drain.scans + 1, false);
        self.collector.victim =
            Some(Victim { block, extents: Vec::new(), next: 0, slice: None, reading: true, has_segments: false });
        let bytes = self.log.geometry.pages_per_block * self.log.geometry.oob_bytes;
        let at = PageAddr { block: BlockIndex(block), page: 0 };
        self.log.emit(Io::ReadOob { at, into: AlignedBuf::zeroed(bytes as usize) }, Pending::GcOob { block });
    }

    /// A failing block; else the least worn one if the policy levels wear now; else the one that is worth most to the policy.
    fn choose_victim(&self, live_max: u32) -> Option<u32> {
        if let Some((block, _)) = self.log.blocks.iter().find(|(_, b)| b.may_be_drained() && b.failing) {
            return Some(block);
        }
        if let Some(block) = self.log.blocks.leaving_victim(live_max) {
            return Some(block);
        }
        if self.growth.is_shrinking() && !self.space.pace.is_active() {
            return None;
        }
        let policy = self.collector.rule();
        let candidates = || self.log.blocks.iter().filter(|(_, b)| b.may_be_drained() && b.valid_chunks <= live_max);
        let (_, most, _) = self.log.blocks.erase_spread();
        if let Some((block, entry)) = candidates().min_by_key(|(block, b)| (b.erase_count, *block))
            && policy.levels_wear(self.collector.picks, most - entry.erase_count, most)
        {
            return Some(block);
        }
        let per_block = self.log.geometry.chunks_per_block();
        let has_garbage = |b: &Block| b.valid_chunks < per_block - per_block / GARBAGE_SHARE;
        let candidate = |block: u32, b: &Block| CollectionCandidate {
            live: f64::from(b.valid_chunks) / f64::from(per_block),
            age: self.log.writers.sequence - b.closed_at,
            free_on_die: self.log.blocks.free_on(self.log.geometry.die_of(BlockIndex(block))),
        };
        candidates()
            .filter(|(_, b)| has_garbage(b))
            .map(|(block, b)| (block, policy.worth(&candidate(block, b))))
            .max_by(|(_, a), (_, b)| a.total_cmp(b))
            .map(|(block, _)| block)
    }

    pub(crate) fn gc_oob_done(&mut self, block: u32, io: Io, result: Result<(), MediumError>) {
        let Io::ReadOob { into, .. } = io else { unreachable!("the operation of an OOB read") };
        self.log.counters.collection_read_bytes += into.len() as u64;
        let victim = self.collector.victim.as_mut().filter(|v| v.block == block).expect("the block being scanned");
        victim.reading = false;
        if let Err(error) = result {
            tracing::warn!(block, %error, "the OOB entries of a block cannot be read");
        } else {
            let oob_bytes = self.log.geometry.oob_bytes as usize;
            let pages = entries_of_block(&into, oob_bytes);
            victim.extents = extents(&pages, self.log.geometry.chunks_per_page());
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
        let limit = first.start + SLICE_BYTES / self.log.geometry.chunk_bytes;
        let rest = &victim.extents[victim.next..];
        let last = rest.iter().take_while(|e| e.start + e.chunk_count <= limit).last().unwrap_or(&first);
        let bytes = (last.start + last.chunk_count - first.start) * self.log.geometry.chunk_bytes;
        victim.reading = true;
        let at = self.log.geometry.chunk_at(BlockIndex(block), first.start);
        self.log.emit(Io::Read { at, into: AlignedBuf::zeroed(bytes as usize) }, Pending::GcRead { block });
    }

    pub(crate) fn gc_read_done(&mut self, block: u32, io: Io, result: Result<(), MediumError>) {
        let Io::Read { at, into } = io else { unreachable!("the operation of a read") };
        self.log.counters.collection_read_bytes += into.len() as u64;
        let victim = self.collector.victim.as_mut().filter(|v| v.block == block).expect("the block being scanned");
        victim.reading = false;
        let start = self.log.geometry.split(at).1;
        match result {
            Ok(()) => victim.slice = Some((start, into)),
            Err(error) => {
                tracing::warn!(block, %error, "part of a block cannot be read");
                let end = start + into.len() as u32 / self.log.geometry.chunk_bytes;
                victim.next += victim.extents[victim.next..].iter().take_while(|e| e.start < end).count();
            }
        }
    }

    /// Moves the live records of the slice.
    fn work_off_slice(&mut self) {
        let Some(victim) = &mut self.collector.victim else { return };
        let Some((start, bytes)) = victim.slice.take() else { return };
        let block = victim.block;
        let chunk_bytes = self.log.geometry.chunk_bytes as usize;
        loop {
            let victim = self.collector.victim.as_mut().expect("still scanned");
            let Some(extent) = victim.extents.get(victim.next).copied() else { return };
            let at = (extent.start - start) as usize * chunk_bytes;
            let Some(record) = bytes.get(at..at + extent.chunk_count as usize * chunk_bytes) else { return };
            match self.move_if_live(block, extent, record) {
                Ok(live_chunks) => {
                    if self.collector.draining[&block].scans == 1 {
                        let budget = self.collector.rule().budget_for(extent.chunk_count - live_chunks);
                        self.space.pace.add_budget(budget);
                    }
                    self.collector.victim.as_mut().expect("still scanned").next += 1;
                }
                Err(NoBlock) => {
                    self.collector.victim.as_mut().expect("still scanned").slice = Some((start, bytes));
                    // What has been moved so far may be all that keeps earlier victims from becoming free.
                    self.log.seal(Writers::seal_moves);
                    return;
                }
            }
        }
    }

    /// Starts moving a record if the index points at it; returns its chunks if so, else 0. A record that does not match its checksum
    /// is not moved before the last scan.
    fn move_if_live(&mut self, block: u32, extent: Extent, bytes: &[u8]) -> Result<u32, NoBlock> {
        let is_last_scan = self.collector.draining[&block].scans == SCANS_MAX;
        if self.collector.victim.as_ref().is_some_and(|victim| victim.has_segments) {
            let from = self.log.geometry.chunk_at(BlockIndex(block), extent.start);
            match self.move_segment(from, bytes, is_last_scan) {
                Ok(true) => {}
                Ok(false) => return Ok(0),
                Err(NoSegment::Damaged) => return Ok(extent.chunk_count),
                Err(NoSegment::Block) => return Err(NoBlock),
                Err(NoSegment::Index(id)) => return self.without_index(block, extent, id),
            }
            self.collector.draining.get_mut(&block).expect("listed when picked").moving += 1;
            self.log.counters.relocated_chunks += u64::from(extent.chunk_count);
            return Ok(extent.chunk_count);
        }
        let Some(record) = RecordHeader::check(bytes) else {
            self.log.counters.damaged_records += u64::from(is_last_scan);
            return Ok(0);
        };
        let from =
            Slot { at: self.log.geometry.chunk_at(BlockIndex(block), extent.start).0, len: code(extent.chunk_count) };
        let Some(space) = self.spaces.get(&record.namespace) else { return Ok(0) };
        let Some(index) = &space.index else {
            return self.without_index(block, extent, record.namespace);
        };
        let value = bytes.get(record.stored_range());
        // Of a damaged record, it may not be what it was: the record is not found then, and stays.
        let key = value.and_then(|value| record.full_key(value)).unwrap_or(record.key.into());
        let key = space.layout.indexed(key);
        let is_kept = || self.snapshots.keep_any() && is_kept_in(Some(index), &space.shared, &key, from);
        if index.get(&key) != Some(from) && !is_kept() {
            return Ok(0);
        }
        if value.is_none_or(|value| kaml_crc::crc32c(value) != record.value_crc) {
            if !is_last_scan {
                return Ok(extent.chunk_count);
            }
            // As it is, so reading it continues being refused rather than finding nothing.
            self.log.counters.damaged_records += 1;
            tracing::warn!(key = %record.key, namespace = record.namespace, at = from.at, "a damaged record is moved");
        }
        let log = self.log.geometry.die_of(BlockIndex(block));
        let len = extent.chunk_count as usize * self.log.geometry.chunk_bytes as usize;
        let whole = &bytes[..record.page_bytes().min(len)];
        // Large records do not know their time, only what was before it.
        let written =
            if record.value_len as usize >= DIRECT_BYTES { self.log.blocks.written_at(block) } else { record.sequence };
        let moved = self.append_moved(log, extent.chunk_count, (whole, written), self.floor(Purpose::Move));
        let at = match moved {
            Err(NoBlock) if self.may_use_last_block(Purpose::Move) => {
                self.space.pace.use_last_block();
                self.append_moved(log, extent.chunk_count, (whole, written), 0)
            }
            moved => moved,
        };
        let to = Slot { at: at?, len: from.len };
        let to_block = self.log.block_of(to.at);
        self.log.blocks.note_written(to_block, written);
        self.log.writers.attach_move(to_block, Move::new(record.namespace, &key, from, to));
        self.collector.draining.get_mut(&block).expect("listed when picked").moving += 1;
        self.log.counters.relocated_chunks += u64::from(extent.chunk_count);
        Ok(extent.chunk_count)
    }

    /// A record whose index is not in memory: it waits for that, or is not moved. In that case it counts as live.
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
        let wanted = self.log.blocks.lifetimes.of_moved(written);
        let mut alternatives = self.log.blocks.lifetimes.alternatives(wanted);
        let mut append = |class| {
            let parts = [bytes, &[], &[]];
            self.log.append(log, class, floor, chunks, parts, None)
        };
        let at = append(wanted).or_else(|NoBlock| alternatives.find_map(|class| append(class).ok()).ok_or(NoBlock));
        Ok(at?.0)
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
        let is_stuck = drain.is_stuck || self.space.deletions > 0;
        let scans = drain.scans;
        let entry = self.log.blocks.get(block);
        if entry.valid_chunks > 0 && !is_stuck && scans < SCANS_MAX {
            self.collector.draining.get_mut(&block).expect("just seen").scanned = false;
            self.collector.again.push(block);
            return;
        }
        self.collector.draining.remove(&block);
        if entry.valid_chunks == 0 {
            self.log.blocks.emptied(block);
            return;
        }
        if is_stuck {
            self.log.blocks.put_back(block);
            return;
        }
        tracing::warn!(
            block,
            live_chunks = entry.valid_chunks,
            "records of a block cannot be moved; the block is kept"
        );
        self.log.blocks.quarantine(block);
        self.log.retire(block);
    }
}
