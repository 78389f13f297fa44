//! Roots and checkpoints: what makes ring space and blocks free again, and keeps opening short.
//!
//! Lives here:       the steps of committing a root, of taking index snapshots, of trimming the journal.
//! Lives elsewhere:  reading them back (`recovery`), the formats (`format::root`, kaml-index snapshots).
//! Implements:       paper:KAML IV.D phase 3 ("frees the buffers"); design section 6.
//!
//! Committing a root:  seal ──▶ drain (programs done) ──▶ flush ──▶ write root ──▶ release ring, blocks, old pages
//!
//! A snapshot is fuzzy: it is taken segment by segment while Puts go on. The journal from the entry at which it was
//! begun is kept, and replaying it over the snapshot gives the index as of the root.

use crate::blocks::BlockState;
use crate::core::{Core, Pending};
use crate::format::crc32c_append;
use crate::format::journal::ENTRY_BYTES;
use crate::format::root::{HEADER_BYTES, NamespaceRoot, Root, Run, Stream};
use crate::lifetime::{Class, record_classes};
use kaml_flash::{AlignedBuf, BlockIndex, Io, IoId, MediumError};
use kaml_index::SnapshotCursor;

/// Where committing a root stands.
#[derive(Debug, Default)]
enum Step {
    #[default]
    Idle,
    /// Programs before `barrier` are under way.
    Draining {
        barrier: IoId,
        prepared: Box<Prepared>,
    },
    Flushing(Box<Prepared>),
    Writing(Box<Prepared>),
}

/// A root whose parts are in place, and what becomes free with it.
#[derive(Debug)]
struct Prepared {
    root: Root,
    /// Frames before this were committed, and so journaled, when the root was prepared.
    committed: u64,
    /// The oldest frame with a version that was in no segment in the journal then, and not kept.
    versions_frame: u64,
    /// Of each versioned namespace, the smallest sequence that it keeps.
    kept_firsts: Vec<(u32, Option<u64>)>,
    reclaimed: Vec<u32>,
    retired: Vec<Run>,
    /// Requests up to this one are answered with it.
    request: u64,
}

/// Committing roots.
#[derive(Debug, Default)]
pub(crate) struct RootCommit {
    step: Step,
    /// Metadata pages that the next root no longer needs.
    retired: Vec<Run>,
    requested: u64,
    done: u64,
    /// Also program everything that waits in buffers.
    settle: bool,
    /// Metadata was lost with a failed block: no root until a checkpoint has replaced it.
    awaits_checkpoint: bool,
    clean: bool,
    /// The newest request that must not be answered before a checkpoint which began after it is done.
    after_checkpoint: u64,
    /// Requests up to this one were made before the last checkpoint that is done began.
    checkpointed: u64,
}

impl RootCommit {
    pub(crate) fn retire(&mut self, runs: Vec<Run>) {
        self.retired.extend(runs);
    }

    /// Whether a request waits for a checkpoint.
    fn wants_checkpoint(&self) -> bool {
        self.after_checkpoint > self.checkpointed.max(self.done)
    }

    /// Whether roots wait for a checkpoint to replace lost metadata.
    pub(crate) fn awaits_checkpoint(&self) -> bool {
        self.awaits_checkpoint
    }
}

/// An index being written out.
#[derive(Debug)]
struct Job {
    namespace: u32,
    cursor: Option<SnapshotCursor>,
    /// Journal entries from here on are not part of it.
    entry: u64,
    out: StreamWriter,
}

/// A byte stream on its way into metadata pages.
#[derive(Default)]
pub(crate) struct StreamWriter {
    pub(crate) stream: Stream,
    /// Bytes that do not fill a page yet.
    pub(crate) tail: Vec<u8>,
}

impl std::fmt::Debug for StreamWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamWriter").field("stream", &self.stream).field("tail", &self.tail.len()).finish()
    }
}

/// Taking checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    requested: bool,
    running: bool,
    /// The last request when it began.
    began_after: u64,
    waiting: Vec<u32>,
    job: Option<Job>,
    /// There was no block for the snapshot; something must complete before it can go on.
    stalled: bool,
    /// The one that replaces lost metadata may have the last block.
    may_have_last: bool,
}

impl Checkpoint {
    /// A checkpoint is wanted soon.
    pub(crate) fn request(&mut self) {
        self.requested = true;
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running || self.requested
    }

    /// Whether a namespace's index is being written out: it is not marked as changed any more, and its snapshot is the old one.
    pub(crate) fn is_writing(&self, namespace: u32) -> bool {
        self.job.as_ref().is_some_and(|job| job.namespace == namespace)
    }

    /// Free blocks that a checkpoint which replaces lost metadata leaves to the journal.
    pub(crate) fn floor(&self) -> u32 {
        u32::from(!self.may_have_last)
    }

    /// An operation has completed or a block has become free: there may be a block now.
    pub(crate) fn may_go_on(&mut self) {
        self.stalled = false;
    }

    /// The namespace is gone.
    pub(crate) fn forget(&mut self, namespace: u32, roots: &mut RootCommit) {
        self.waiting.retain(|id| *id != namespace);
        if let Some(job) = self.job.take_if(|job| job.namespace == namespace) {
            roots.retire(job.out.stream.runs);
        }
    }
}

/// One part in so many of a root's slot may be journal entries.
const TAIL_SHARE: usize = 4;
/// Reclaimed blocks that a root is worth while free blocks are short, but not so short that hosts wait.
const RELEASED_TOGETHER: u32 = 3;
/// The same while there are enough.
const RELEASED_AT_LEISURE: u32 = 9;
/// Segments copied per step, so that no Put waits long: 48 KiB each.
const SEGMENTS_PER_STEP: usize = 4;
/// Snapshot programs under way beyond which a checkpoint waits.
const PROGRAMMING_BYTES_MAX: u64 = 4 << 20;

impl Core {
    // --- roots ------------------------------------------------------------------------------------------------------

    /// Asks for a root that includes everything committed so far; with `settle` all records are programmed too.
    /// Answers a number that [`Core::roots_done`] reaches when it is durable.
    pub fn request_root(&mut self, settle: bool) -> u64 {
        self.root_commit.requested += 1;
        self.root_commit.settle |= settle;
        if settle && self.wants_time() {
            self.keep_until = Some(self.sequence);
        }
        self.root_commit.requested
    }

    /// As [`Core::request_root`], for the last root before the device is closed: indexes are written out first. Nothing is
    /// staged from now on, for what stood in the ring behind that root would be lost.
    pub fn request_close(&mut self) -> u64 {
        self.is_closing = true;
        self.root_commit.clean = true;
        self.checkpoint.request();
        self.request_root(true)
    }

    /// Takes no changes any more: the device is closed, whether or not its last root could be written.
    pub fn end_changes(&mut self) {
        self.is_closing = true;
    }

    /// Requests up to this number are done.
    pub fn roots_done(&self) -> u64 {
        self.root_commit.done
    }

    /// Whether no root is being committed.
    pub(crate) fn root_is_idle(&self) -> bool {
        matches!(self.root_commit.step, Step::Idle)
    }

    /// One step towards the next root, if one is due.
    pub(crate) fn step_root(&mut self) {
        match std::mem::take(&mut self.root_commit.step) {
            Step::Idle => {
                if self.root_is_due() {
                    self.prepare_root();
                }
            }
            Step::Draining { barrier, prepared } => {
                let programs = self.ops.range(..barrier).any(|(_, op)| matches!(op, Pending::Program));
                #[cfg(feature = "broken")]
                let programs = programs && !crate::Broken::RootBeforePrograms.is();
                if programs || !self.retry.is_empty() {
                    self.root_commit.step = Step::Draining { barrier, prepared };
                } else if self.failed_blocks.is_empty() {
                    self.drained(prepared);
                } else if self.failed_blocks_want_room() && !prepared.reclaimed.is_empty() {
                    let prepared = self.without_failed_blocks(prepared);
                    self.drained(prepared);
                } else if self.failed_blocks_want_room() && self.blocks.can_release_before(self.ring.oldest_kept()) {
                    // Blocks were emptied since it was prepared: one that names them gives the failed ones room.
                    self.root_commit.step = Step::Draining { barrier, prepared };
                    self.restart_root();
                } else {
                    self.root_commit.step = Step::Draining { barrier, prepared };
                }
            }
            other => self.root_commit.step = other,
        }
    }

    /// Records of failed blocks wait for the very blocks that a root makes free: it is written without them and answers
    /// nobody. Their frames stay in the ring, and what collection moved is still at its old place.
    fn without_failed_blocks(&mut self, mut prepared: Box<Prepared>) -> Box<Prepared> {
        prepared.request = self.root_commit.done;
        prepared.root.clean = false;
        self.root_commit.settle = true;
        prepared
    }

    fn root_is_due(&self) -> bool {
        let commit = &self.root_commit;
        if commit.awaits_checkpoint || self.journal.is_urgent() {
            return false;
        }
        let asked = self.root_request_covered() > commit.done;
        asked || self.ring_is_filling() || self.sequences_are_short() || self.blocks_are_wanted()
    }

    /// Whether a checkpoint is being taken that will be finished without anybody's help.
    fn checkpoint_is_coming(&self) -> bool {
        self.checkpoint.is_running() && !self.collector.wedged
    }

    /// The same for versions that are to be kept; those that are not stay in the ring.
    fn keeps_are_coming(&self) -> bool {
        self.keeps_are_pending() && !self.collector.wedged
    }

    /// Whether reclaimed blocks should become free. Each root takes a barrier and a write, so several are released together
    /// unless somebody waits for them.
    pub(crate) fn blocks_are_wanted(&self) -> bool {
        let (free, reclaimed) = (self.blocks.free_count(), self.blocks.reclaimed_count());
        let wanted = match free {
            free if free <= self.reserve_blocks() + self.wanted_blocks() => 1,
            free if free <= self.collect_below() + 1 => RELEASED_TOGETHER,
            _ => RELEASED_AT_LEISURE,
        };
        reclaimed >= wanted && self.blocks.can_release_before(self.ring.staging_number())
    }

    /// Whether a good part of the ring could be released, or must be.
    fn ring_is_filling(&self) -> bool {
        let (used, ring_bytes) = (self.ring.used_bytes(), self.geometry.ring_bytes);
        if used <= ring_bytes / 4 {
            return false;
        }
        let versions = self.versions_frame();
        let oldest = self.writers.oldest_frame().unwrap_or(u64::MAX).min(versions);
        if self.ring.is_blocked() && self.ring.tail_before(versions) > self.ring.tail() {
            return true;
        }
        let gains = |oldest| self.ring.head() - self.ring.tail_before(oldest) + ring_bytes / 8 <= used;
        // Records can be programmed for the root; versions wait until their rows are sealed or they are kept.
        gains(oldest) || (used > ring_bytes / 2 && (versions == u64::MAX || gains(versions)))
    }

    /// Seals what the root needs and notes what it will say.
    fn prepare_root(&mut self) {
        let mut out = Vec::new();
        let settle = std::mem::take(&mut self.root_commit.settle);
        if settle {
            record_classes(&self.geometry).iter().for_each(|class| self.writers.seal_class(*class, &mut out));
        } else {
            let mut old = self.ring.frame_at_least_behind(self.geometry.ring_bytes / 4);
            if self.blocks_are_wanted() {
                // Ring frames that name places in reclaimed blocks keep them: what keeps those frames is programmed.
                old = old.max(self.blocks.reclaimed_frame_max() + 1);
            }
            self.writers.seal_older_than(old, &mut out);
        }
        self.emit_programs(out);
        self.place_journal();
        if !self.journal_fits_root(0) {
            self.journal.seal_tail();
            self.place_journal();
        }
        let mut out = Vec::new();
        [Class::Journal, Class::Snapshot].into_iter().for_each(|class| self.writers.seal_class(class, &mut out));
        self.emit_programs(out);
        if self.journal.is_urgent() {
            self.root_commit.settle |= settle;
            return; // no block for it just now
        }
        let prepared = Prepared {
            root: self.describe_root(),
            committed: self.ring.committed(),
            versions_frame: self.versions_frame(),
            kept_firsts: self.kept_firsts(),
            reclaimed: self.blocks.take_reclaimed(self.ring.oldest_kept()),
            retired: std::mem::take(&mut self.root_commit.retired),
            request: self.root_request_covered(),
        };
        self.root_commit.step = Step::Draining { barrier: self.next_io(), prepared: Box::new(prepared) };
        self.step_root();
    }

    /// Whether a root takes the journal's entries that have no place, and so many more.
    pub(crate) fn journal_fits_root(&self, more: usize) -> bool {
        self.journal.tail_bytes() + more * ENTRY_BYTES <= self.geometry.root_bytes as usize / TAIL_SHARE
    }

    /// The last request that a root prepared now answers.
    fn root_request_covered(&self) -> u64 {
        let commit = &self.root_commit;
        match self.checkpoint_is_coming() {
            _ if commit.requested > commit.done && self.keeps_are_coming() => commit.done,
            true if commit.clean => commit.done,
            // Whoever asks for one after the other keeps nobody waiting for the first.
            true if commit.wants_checkpoint() => commit.checkpointed.max(commit.done),
            true | false => commit.requested,
        }
    }

    pub(crate) fn describe_root(&self) -> Root {
        let clean = self.root_commit.clean
            && !self.checkpoint.is_running()
            && self.spaces.values().all(|space| !space.dirty)
            && !self.ring.has_staged()
            && self.ring.in_flight() == 0;
        let clean = clean && self.table_is_exact && self.deletions == 0;
        Root {
            generation: self.root.generation + 1,
            epoch: self.recovering.map_or(self.ring.epoch, |(epoch, _)| epoch),
            clean,
            ring_tail: self.ring.head(),
            next_sequence: self.sequence,
            next_namespace: self.next_namespace,
            namespaces: self.spaces.iter().map(|(id, space)| space.root(*id)).collect::<Vec<NamespaceRoot>>(),
            blocks: self.root.blocks.clone(),
            blocks_entry: self.root.blocks_entry,
            journal: self.journal.runs(),
            journal_entries_end: self.journal.next_entry(),
            journal_tail: self.journal.tail(),
            lifetime: self.counters.lifetime(),
            index_seed: self.root.index_seed,
        }
    }

    /// Everything the root needs is programmed: the ring is needed only from the oldest record that is not.
    fn drained(&mut self, mut prepared: Box<Prepared>) {
        let oldest = self.writers.oldest_frame().unwrap_or(u64::MAX);
        let tail = self.ring.tail_before(oldest.min(prepared.committed).min(prepared.versions_frame));
        prepared.root.ring_tail = self.recovering.map_or(tail, |(_, tail)| tail);
        prepared.root.clean &= prepared.root.ring_tail == self.ring.head();
        self.emit(Io::Flush, Pending::Flush);
        self.root_commit.step = Step::Flushing(prepared);
    }

    pub(crate) fn flushed(&mut self) {
        let Step::Flushing(prepared) = std::mem::take(&mut self.root_commit.step) else {
            unreachable!("flushes are part of committing a root")
        };
        let bytes = prepared.root.encode(self.uuid);
        let padded = bytes.len().next_multiple_of(self.geometry.sector_bytes as usize);
        assert!(padded <= self.geometry.root_bytes as usize, "a root of {} bytes does not fit its slot", bytes.len());
        let mut data = AlignedBuf::zeroed(padded);
        data[..bytes.len()].copy_from_slice(&bytes);
        self.counters.metadata_bytes += padded as u64;
        let slot = (prepared.root.generation % 2) as u8;
        self.root_commit.step = Step::Writing(prepared);
        self.emit(Io::WriteRoot { slot, data }, Pending::Root);
    }

    pub(crate) fn root_written(&mut self) {
        let Step::Writing(prepared) = std::mem::take(&mut self.root_commit.step) else {
            unreachable!("root writes are part of committing a root")
        };
        let Prepared { root, kept_firsts, reclaimed, retired, request, .. } = *prepared;
        self.kept_are_in_root(&kept_firsts);
        if self.recovering.is_none() {
            self.ring.release(root.ring_tail);
        }
        self.blocks.release(&reclaimed);
        self.release_pages(&retired);
        // A block table finished meanwhile is not in this root.
        let (blocks, blocks_entry) = (self.root.blocks.take(), self.root.blocks_entry);
        self.root = Root { blocks, blocks_entry, ..root };
        self.root_commit.done = self.root_commit.done.max(request);
    }

    /// Records have new places that a root being prepared does not say: it is prepared again. One that is past its
    /// drain needs nothing of what failed since.
    pub(crate) fn restart_root(&mut self) {
        match std::mem::take(&mut self.root_commit.step) {
            Step::Draining { prepared, .. } => {
                self.blocks.put_back_reclaimed(prepared.reclaimed);
                self.root_commit.retired.extend(prepared.retired);
                self.root_commit.settle = true;
            }
            other => self.root_commit.step = other,
        }
    }

    /// Metadata pages went down with a block: a checkpoint writes all of it again before the next root.
    pub(crate) fn metadata_lost(&mut self) {
        self.restart_root();
        for space in self.spaces.values_mut().filter(|space| space.is_loaded()) {
            space.dirty = true;
        }
        self.kept_lost();
        if let Some(job) = self.checkpoint.job.take() {
            self.root_commit.retire(job.out.stream.runs);
        }
        self.checkpoint.running = false;
        self.checkpoint.request();
        self.root_commit.awaits_checkpoint = true;
    }

    /// Blocks become free with roots only. Where blocks have failed there may be none left for what a root needs, the
    /// journal, metadata that was lost, records whose block failed: nothing more will be made durable, and the device
    /// says so.
    pub(crate) fn stop_at_dead_end(&mut self) {
        let under_way = !self.ops.is_empty() || !self.outbox.is_empty() || !self.retry.is_empty();
        if under_way || self.collector.wants_index.is_some() {
            return;
        }
        let free = self.blocks.free_count();
        let journal = self.journal.is_urgent() && free == 0 && self.root_is_idle();
        let snapshots = self.root_commit.awaits_checkpoint && self.checkpoint.stalled;
        let snapshots = snapshots && free <= self.floor(Class::Snapshot) && !self.checkpoint_in_last_block();
        let failed = self.failed_blocks_lack_room();
        if !journal && !snapshots && (!failed || self.rehome_in_last_block()) {
            return;
        }
        let failed = self.blocks.iter().find(|(_, block)| block.failing || block.state == BlockState::Bad);
        if let Some((block, _)) = failed {
            self.stop_without_blocks(block, "no block left to write what must be written");
        }
    }

    /// Stops because there is no block for what a failed one held.
    pub(crate) fn stop_without_blocks(&mut self, failed: u32, error: &str) {
        let bad_blocks = self.blocks.iter().filter(|(_, block)| block.failing || block.state == BlockState::Bad);
        let bad_blocks = bad_blocks.count() as u32;
        let none = self.blocks.free_count() == 0 && self.blocks.reclaimed_count() == 0;
        self.stop(match none {
            true => MediumError::WornOut { bad_blocks },
            false => MediumError::BlockFailed { block: BlockIndex(failed), what: "program", error: error.to_owned() },
        });
    }

    /// Gives the checkpoint that replaces lost metadata the last block, where the device would stop: if the root behind it needs
    /// none. False if that will not do.
    fn checkpoint_in_last_block(&mut self) -> bool {
        let will_do = !self.checkpoint.may_have_last
            && self.blocks.free_count() > 0
            && self.root_is_idle()
            && !self.journal.is_urgent()
            && self.journal_fits_root(0);
        if will_do {
            self.checkpoint.may_have_last = true;
            self.checkpoint.may_go_on();
        }
        will_do
    }

    // --- checkpoints ------------------------------------------------------------------------------------------------

    /// Journal bytes after which a checkpoint is taken: replaying them takes well under a second.
    pub(crate) fn checkpoint_journal_bytes(&self) -> u64 {
        let device = self.geometry.block_bytes() * u64::from(self.blocks.count());
        (64u64 << 20).min(device / 32).max(self.index_bytes / 2)
    }

    /// Asks for a checkpoint and the root behind it; as [`Core::request_root`].
    pub fn request_checkpoint(&mut self) -> u64 {
        self.checkpoint.request();
        self.root_commit.requested += 1;
        self.root_commit.after_checkpoint = self.root_commit.requested;
        self.root_commit.requested
    }

    pub(crate) fn checkpoint_can_go_on(&self) -> bool {
        self.checkpoint.running && !self.checkpoint.stalled && self.writers.programming_bytes <= PROGRAMMING_BYTES_MAX
    }

    /// One step of taking a checkpoint, if one is due.
    pub(crate) fn step_checkpoint(&mut self) {
        let journal = self.journal.pages_since_checkpoint * u64::from(self.geometry.page_bytes);
        if !self.checkpoint.running {
            if !self.checkpoint.requested && journal <= self.checkpoint_journal_bytes() {
                return;
            }
            self.checkpoint.requested = false;
            self.checkpoint.running = true;
            self.checkpoint.began_after = self.root_commit.requested;
            self.checkpoint.waiting = self.spaces.iter().filter(|(_, s)| s.dirty).map(|(id, _)| *id).collect();
        }
        while self.writers.programming_bytes <= PROGRAMMING_BYTES_MAX {
            let Some(mut job) = self.checkpoint.job.take().or_else(|| self.next_job()) else {
                self.finish_checkpoint();
                return;
            };
            let done = self.copy_segments(&mut job);
            let placed = self.write_stream(&mut job.out, done);
            if done && placed {
                self.finish_job(job);
            } else {
                self.checkpoint.job = Some(job);
                return;
            }
        }
    }

    fn next_job(&mut self) -> Option<Job> {
        let namespace = self.checkpoint.waiting.pop()?;
        let space = self.spaces.get_mut(&namespace).expect("deleted namespaces leave the list");
        space.dirty = false;
        let entry = self.journal.next_entry();
        Some(Job { namespace, cursor: Some(SnapshotCursor::START), entry, out: StreamWriter::default() })
    }

    /// Copies the next segments of an index; true when there are no more.
    fn copy_segments(&mut self, job: &mut Job) -> bool {
        let space = &self.spaces[&job.namespace];
        if let Some(directory) = space.encode_directory(self.geometry.page_bytes as usize) {
            // In one piece, so that it is as of the entry that the job began with.
            if job.cursor.take().is_some() {
                job.out.tail = directory;
            }
            return true;
        }
        let index = space.index.as_ref().expect("a changed index is loaded");
        for _ in 0..SEGMENTS_PER_STEP {
            let Some(cursor) = job.cursor.take() else { return true };
            job.cursor = index.snapshot_next(cursor, &mut job.out.tail);
        }
        job.cursor.is_none()
    }

    /// Moves whole pages of a stream into metadata pages, with `end` the last partial one too; false if some had to
    /// stay because there was no block.
    pub(crate) fn write_stream(&mut self, out: &mut StreamWriter, end: bool) -> bool {
        let page_bytes = self.geometry.page_bytes as usize;
        let chunks = self.geometry.chunks_per_page();
        let mut ios = Vec::new();
        let mut written = 0;
        while out.tail.len() - written >= page_bytes || (end && written < out.tail.len()) {
            let floor = self.floor(Class::Snapshot);
            let ready = self.writers.ready(0, Class::Snapshot, chunks, floor, &mut self.blocks, &mut ios);
            let Ok(block) = ready else {
                self.checkpoint.stalled = true;
                break;
            };
            let page = &out.tail[written..out.tail.len().min(written + page_bytes)];
            let at = self.writers.append_pages(block, page, &mut ios);
            self.blocks.hold(block);
            self.counters.metadata_bytes += page_bytes as u64;
            out.stream.crc32c = crc32c_append(out.stream.crc32c, page);
            out.stream.bytes += page.len() as u64;
            written += page.len();
            match out.stream.runs.last_mut() {
                Some(last) if last.block == at.block.0 && last.page + last.page_count == at.page => {
                    last.page_count += 1
                }
                _ => out.stream.runs.push(Run { block: at.block.0, page: at.page, page_count: 1 }),
            }
        }
        out.tail.drain(..written);
        self.emit_programs(ios);
        out.tail.is_empty() || !end
    }

    fn finish_job(&mut self, job: Job) {
        let space = self.spaces.get_mut(&job.namespace).expect("deleted namespaces drop their job");
        let old = space.snapshot.replace(job.out.stream);
        space.snapshot_entry = job.entry;
        self.root_commit.retire(old.map(|s| s.runs).unwrap_or_default());
    }

    /// All indexes are written: the block table follows, the journal shrinks, a root makes it count.
    fn finish_checkpoint(&mut self) {
        if self.kept_is_lost() {
            self.checkpoint.stalled = true; // no root may do without it; it is written as soon as it can be
            return;
        }
        let entry = self.journal.next_entry();
        let mut table = StreamWriter { tail: self.encode_blocks(), ..StreamWriter::default() };
        if !self.write_stream(&mut table, true) {
            // No block just now: try again with a fresh table.
            self.root_commit.retire(table.stream.runs);
            return;
        }
        let old = self.root.blocks.replace(table.stream);
        self.root.blocks_entry = entry;
        self.table_is_exact = true;
        self.root_commit.retire(old.map(|s| s.runs).unwrap_or_default());
        let dirty = self.spaces.values().filter(|s| s.dirty).map(|s| s.snapshot_entry);
        let trimmed = self.journal.trim(dirty.min().unwrap_or(entry).min(entry));
        self.root_commit.retire(trimmed);
        self.root_commit.awaits_checkpoint = false;
        self.checkpoint.may_have_last = false;
        self.checkpoint.running = false;
        self.root_commit.checkpointed = self.checkpoint.began_after;
        // Changed while the last snapshot was taken: a clean close needs another round.
        let dirty = self.spaces.values().any(|s| s.dirty);
        self.checkpoint.requested |= self.root_commit.clean && dirty;
        self.request_root(false);
    }

    /// The block table as a stream: for each block its erase count (u32), valid chunks (u32) and whether it is bad.
    fn encode_blocks(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.blocks.count() as usize * 9);
        for (_, block) in self.blocks.iter() {
            bytes.extend_from_slice(&block.erase_count.to_le_bytes());
            bytes.extend_from_slice(&block.valid_chunks.to_le_bytes());
            #[cfg(feature = "broken")]
            if crate::Broken::ForgetsBadBlocks.is() {
                bytes.push(0);
                continue;
            }
            // A failing block still drains, but its journal entry may be older than this table.
            bytes.push((block.state == BlockState::Bad || block.failing).into());
        }
        bytes
    }
}

/// Bytes of a root slot that are read first: enough to know how many more there are.
pub(crate) const ROOT_PEEK_BYTES: usize = 4096;
const _: () = assert!(HEADER_BYTES <= ROOT_PEEK_BYTES);
