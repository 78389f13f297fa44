//! The firmware core: a deterministic single-writer state machine between commands and the medium.
//!
//! Lives here:       completions, the commit of Puts, background work, accounting.
//! Lives elsewhere:  staging Puts (`staging`), reads (`reader`, beside the core), collection (`gc`), roots and snapshots
//!                   (`checkpoint`), opening (`recovery`), everything that waits (the drivers in `kaml`).
//! Implements:       paper:KAML IV.D; design sections 2 and 4.
//!
//! The life of a Put: `stage` checks it, places its records in write buffers and appends them to the staging frame
//! (phase 1); `begin_persist` hands the frame out as one durable ring write; its completion commits it: index entries
//! swing to the records' places, which are still in write buffers (served from memory) until their pages are
//! programmed (phase 2); a root then moves the ring's tail (phase 3).

use crate::blocks::{BlockGate, BlockTable};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::RootCommit;
use crate::error::Error;
use crate::format::journal::Change;
use crate::format::record::RecordHeader;
use crate::format::root::{Root, Run};
use crate::gc::Collector;
use crate::in_flight::InFlight;
use crate::journal::Journal;
use crate::layout::{Layout, VersionLayout};
use crate::lifetime::{Class, record_classes};
use crate::namespace::{Directory, Namespace};
use crate::ring::{self, CommitRing, Staged};
use crate::staging::Ticket;
use crate::stats::Counters;
use crate::versioned::{KeepJob, Placing, Replaced};
use crate::writers::{Move, Writers};
use kaml_flash::{BlockIndex, ChunkAddr, Completion, Geometry, Io, IoId, MediumError, Packing, PageAddr};
use kaml_index::{DenseLayout, HashLayout, IndexLayout, Key, LenCode, Slot};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What an operation in flight is for.
pub(crate) enum Pending {
    Persist { frame: u64 },
    Program,
    Erase { block: u32 },
    Flush,
    Root,
    GcOob { block: u32 },
    GcRead { block: u32 },
}

/// The firmware.
pub struct Core {
    pub(crate) geometry: Geometry,
    pub(crate) uuid: [u8; 16],
    pub(crate) ring: CommitRing,
    pub(crate) blocks: BlockTable,
    pub(crate) writers: Writers,
    pub(crate) journal: Journal,
    pub(crate) spaces: BTreeMap<u32, Namespace>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) next_namespace: u32,
    pub(crate) sequence: u64,
    pub(crate) collector: Collector,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) root_commit: RootCommit,
    /// The present root.
    pub(crate) root: Root,
    pub(crate) ops: InFlight,
    next_io: IoId,
    pub(crate) outbox: VecDeque<(IoId, Io)>,
    /// Programs and erases that found no space below; tried again later under the same ids, so that a root that waits for what
    /// came before it waits for them.
    pub(crate) retry: BTreeMap<IoId, Io>,
    /// How often they found none.
    no_space_count: u64,
    pub(crate) failed_blocks: Vec<u32>,
    pub(crate) tickets: BTreeMap<u64, Ticket>,
    /// Chunks of all of them, and of those whose Puts are staged and not committed: they will be live, and nothing else may take their
    /// room.
    pub(crate) ticket_chunks: u64,
    /// Chunks of small values whose Puts are staged and not committed.
    pub(crate) staged_chunks: u64,
    pub(crate) next_ticket: u64,
    /// The ticket that was staged while its pages are being programmed, if one was.
    pub(crate) beside: Option<u64>,
    /// Segments of versioned namespaces being programmed.
    pub(crate) placing: BTreeMap<u64, Placing>,
    /// Segments that were placed again, for those who looked before that.
    pub(crate) replaced: Vec<Replaced>,
    /// There are versioned namespaces.
    pub(crate) keeps_versions: bool,
    /// A page buffer of versions, or one of its rows, is full.
    pub(crate) wants_seal: bool,
    /// There was no room for it; something must complete before it can go on.
    seal_stalled: bool,
    /// Versions being kept, and up to which sequence they should be.
    pub(crate) keep_job: Option<KeepJob>,
    pub(crate) keep_until: Option<u64>,
    /// The namespace that a driver merges because space is low.
    pub(crate) low_merge: Option<u32>,
    /// The host's clock, nanoseconds since 1970, as far as it was told.
    pub(crate) time_ns: u64,
    stopped: Option<MediumError>,
    /// How often in a row indexes that are needed could not be loaded.
    lost_index_tries: BTreeMap<u32, u32>,
    pub(crate) read_only: bool,
    /// The last root is being made, or was.
    pub(crate) is_closing: bool,
    pub(crate) counters: Counters,
    retry_at_ns: u64,
    /// While the ring is replayed: the epoch and tail that roots must go on naming.
    pub(crate) recovering: Option<(u64, u64)>,
    /// Opened for what can be read of it, however damaged: what was found to be missing in the ring.
    pub(crate) salvage: Option<Vec<String>>,
    /// No record has moved since the block table was written.
    pub(crate) table_is_exact: bool,
    /// Deleted namespaces whose records still count as live.
    pub(crate) deletions: u32,
    /// Memory of all indexes as of the last poll.
    pub(crate) index_bytes: u64,
    /// [`Core::capacity_chunks`] as of the last poll.
    pub(crate) capacity_cached: u64,
}

/// Page programs under way beyond which Puts wait.
pub(crate) const PROGRAMMING_BYTES_MAX: u64 = 32 << 20;
/// Records whose index lines are fetched together when they commit.
const COMMIT_FETCHED: usize = 16;
/// Loads of an index that moving records needs: one of them may work where another did not.
const LOST_INDEX_TRIES_MAX: u32 = 50;
/// Blocks that each die has erased ahead.
const ERASED_AHEAD: usize = 3;
/// How long to wait before a program that found no space below is tried again.
const RETRY_NS: u64 = 100_000_000;
/// Share of the blocks for records that may be live. The rest is garbage that collection may wait for: at four fifths
/// of such a device, three points of it are worth a tenth of all page programs.
const LIVE_PERCENT_MAX: u64 = 95;
/// Free blocks that sealing leaves, for the journal and for collection.
const COLLECTION_RESERVE: u32 = 2;

impl Core {
    pub(crate) fn assemble(
        geometry: Geometry,
        uuid: [u8; 16],
        blocks: BlockTable,
        journal: Journal,
        root: Root,
    ) -> Core {
        let ring = CommitRing::new(&geometry, uuid, root.epoch, root.ring_tail);
        let mut core = Core {
            writers: Writers::new(&geometry),
            uuid,
            ring,
            blocks,
            journal,
            spaces: BTreeMap::new(),
            directory: Arc::default(),
            next_namespace: root.next_namespace,
            sequence: root.next_sequence,
            collector: Collector::default(),
            checkpoint: Checkpoint::default(),
            root_commit: RootCommit::default(),
            counters: Counters::restore(&root.lifetime),
            root,
            ops: InFlight::default(),
            next_io: 1,
            outbox: VecDeque::new(),
            retry: BTreeMap::new(),
            no_space_count: 0,
            failed_blocks: Vec::new(),
            tickets: BTreeMap::new(),
            ticket_chunks: 0,
            staged_chunks: 0,
            next_ticket: 1,
            beside: None,
            placing: BTreeMap::new(),
            replaced: Vec::new(),
            keeps_versions: false,
            wants_seal: false,
            seal_stalled: false,
            keep_job: None,
            keep_until: None,
            low_merge: None,
            time_ns: 0,
            stopped: None,
            lost_index_tries: BTreeMap::new(),
            read_only: false,
            is_closing: false,
            retry_at_ns: 0,
            recovering: None,
            salvage: None,
            table_is_exact: false,
            deletions: 0,
            index_bytes: 0,
            capacity_cached: 0,
            geometry,
        };
        core.update_sizes();
        core
    }

    /// What readers share with the firmware.
    pub(crate) fn gate(&self) -> Arc<BlockGate> {
        self.blocks.gate.clone()
    }

    /// Hands out the staging frame as one durable write, if there is one to make and it may be made now.
    pub fn begin_persist(&mut self) -> Option<(IoId, Io)> {
        self.hand_out(CommitRing::begin_persist)
    }

    /// As [`Core::begin_persist`], beside writes in flight, for an event loop with half as many Puts staged as each of them
    /// has. With it at most `in_flight_max` are in flight, and never more than three.
    pub fn begin_overlapping_persist(&mut self, in_flight_max: usize) -> Option<(IoId, Io)> {
        self.hand_out(|ring| ring.begin_overlapping_persist(in_flight_max))
    }

    fn hand_out(&mut self, begin: impl FnOnce(&mut CommitRing) -> Option<(u64, Io)>) -> Option<(IoId, Io)> {
        if self.stopped.is_some() {
            return None;
        }
        let (frame, io) = begin(&mut self.ring)?;
        if let Io::Persist { len, .. } = &io {
            self.counters.ring_bytes += *len as u64;
        }
        let id = self.next_io;
        self.next_io += 1;
        self.ops.insert(id, Pending::Persist { frame });
        Some((id, io))
    }

    /// Frames before this one are committed.
    pub fn committed(&self) -> u64 {
        self.ring.committed()
    }

    /// Whether [`Core::begin_persist`] has something to hand out, if the ring has room for it.
    pub fn wants_persist(&self) -> bool {
        self.ring.wants_persist()
    }

    /// Whether the staged frame could be written now, and would soon be much larger if its writer let others go first.
    pub fn gains_by_a_pause(&self) -> bool {
        self.ring.wants_persist() && self.ring.is_small()
    }

    /// The frame that is being filled.
    pub fn staging_frame(&self) -> u64 {
        self.ring.staging_number()
    }

    /// Whether [`Core::poll`] would go on at once, without waiting for a completion.
    pub fn wants_poll(&self) -> bool {
        self.has_background() || self.goes_on() && self.checkpoint_can_go_on()
    }

    /// Whether [`Core::poll`] does anything but hand out what there is.
    fn goes_on(&self) -> bool {
        self.stopped.is_none() && !self.read_only
    }

    /// The namespace whose index is needed to move its records, out of a victim of collection or a failed block, if one is. They
    /// wait until [`Core::forget_wanted_index`].
    pub fn wanted_index(&self) -> Option<u32> {
        self.collector.wants_index
    }

    /// The index that was needed has been loaded.
    pub fn forget_wanted_index(&mut self) {
        if let Some(id) = self.collector.wants_index.take() {
            self.lost_index_tries.remove(&id);
        }
    }

    /// The index that was needed cannot be loaded; it will be asked for again. After many tries collection goes on without it.
    /// But records of failed blocks wait for it, and what is durable with them: then the device stops.
    pub fn wanted_index_is_lost(&mut self, why: &dyn std::fmt::Display) {
        let Some(id) = self.collector.wants_index.take() else { return };
        let tries = self.lost_index_tries.entry(id).or_default();
        *tries += 1;
        if *tries <= LOST_INDEX_TRIES_MAX {
            return;
        }
        self.lost_index_tries.remove(&id);
        if self.failed_blocks_need(id) {
            let what = format!("the index of namespace {id}, which records of a failed block need");
            self.stop(MediumError::ReadFailed { what, error: why.to_string() });
        } else {
            self.do_without_index(id, why);
        }
    }

    /// The error that stopped the device, if one did.
    pub fn stopped(&self) -> Option<Error> {
        self.stopped.clone().map(Error::Stopped)
    }

    /// Refuses changes if the device was opened to be read, or was stopped.
    pub fn writable(&self) -> Result<(), Error> {
        match &self.stopped {
            _ if self.read_only => Err(Error::ReadOnly),
            Some(error) => Err(Error::Stopped(error.clone())),
            None if self.is_closing => Err(Error::Closed),
            None => Ok(()),
        }
    }

    // --- completions ----------------------------------------------------------------------------------------------

    pub(crate) fn emit(&mut self, io: Io, pending: Pending) -> IoId {
        let id = self.next_io;
        self.next_io += 1;
        self.ops.insert(id, pending);
        self.outbox.push_back((id, io));
        id
    }

    pub(crate) fn emit_programs(&mut self, ios: Vec<Io>) {
        for io in ios {
            if let Io::Program { data, oob, .. } = &io {
                self.counters.page_bytes += data.len() as u64;
                self.counters.oob_bytes += oob.len() as u64;
            }
            self.emit(io, Pending::Program);
        }
    }

    /// The id that the next operation will get; all earlier ones are in `ops` until they complete.
    pub(crate) fn next_io(&self) -> IoId {
        self.next_io
    }

    /// Whether background operations wait to be started.
    pub fn has_background(&self) -> bool {
        !self.outbox.is_empty() || self.goes_on() && self.wants_seal && !self.seal_stalled
    }

    /// Takes what an operation came to.
    pub fn complete(&mut self, completion: Completion) {
        let Completion { id, io, result } = completion;
        self.checkpoint.may_go_on();
        self.seal_stalled = false;
        let pending = self.ops.remove(id).expect("a completion answers one operation in flight");
        match (pending, result) {
            (Pending::Persist { frame }, Ok(())) => {
                let Io::Persist { data, .. } = io else { unreachable!("the operation of a persist") };
                self.ring.persisted(frame, data);
                while let Some((frame, records)) = self.ring.next_commit() {
                    self.staged_chunks -= records.iter().map(Staged::small_chunks).sum::<u64>();
                    for records in records.chunks(COMMIT_FETCHED) {
                        if records.len() > 1 {
                            records.iter().for_each(|staged| self.prefetch(staged.namespace, &staged.key));
                        }
                        records.iter().for_each(|staged| self.commit(frame, *staged));
                    }
                    self.ring.give_back(records);
                }
            }
            (Pending::Program, result) => self.program_done(id, io, result),
            (Pending::Erase { block }, Ok(())) => {
                let erase_count = self.blocks.erased(block);
                self.counters.erases += 1;
                self.journal.append(&Change::Block { block, erase_count, bad: false });
            }
            (Pending::Erase { .. }, Err(MediumError::NoSpace { what })) => {
                tracing::warn!(what, "no space below the device; the erase is tried again");
                self.no_space_count += 1;
                self.retry.insert(id, io);
            }
            (Pending::Erase { block }, Err(MediumError::BlockFailed { .. })) => {
                self.blocks.erase_failed(block);
                self.retire(block);
            }
            (Pending::Flush, Ok(())) => self.flushed(),
            (Pending::Root, Ok(())) => self.root_written(),
            (Pending::GcOob { block }, result) => self.gc_oob_done(block, io, result),
            (Pending::GcRead { block }, result) => self.gc_read_done(block, io, result),
            (Pending::Persist { .. } | Pending::Erase { .. } | Pending::Flush | Pending::Root, Err(error)) => {
                self.stop(error)
            }
        }
    }

    /// Starts fetching the index lines of a key that will be asked for or put, if the index is in memory. Readers beside the
    /// core have [`crate::Reader::prefetch`].
    pub fn prefetch(&self, namespace: u32, key: &Key) {
        if let Some(index) = self.spaces.get(&namespace).and_then(|space| space.index.as_ref()) {
            index.prefetch(key);
        }
    }

    /// Nothing can be made durable any more.
    pub(crate) fn stop(&mut self, error: MediumError) {
        tracing::error!(%error, "the device stops accepting writes");
        self.stopped.get_or_insert(error);
    }

    /// The commit point is passed: the index entry swings to the record's new place.
    fn commit(&mut self, frame: u64, staged: Staged) {
        if staged.version != 0 {
            return self.commit_version(staged.namespace);
        }
        if let Some(to) = staged.to {
            let block = self.block_of(to.at);
            if staged.is_mapping {
                self.blocks.set_mapping_frame(block, frame);
                self.ticket_chunks -= u64::from(to.len.chunks_max());
            }
            if self.spaces.contains_key(&staged.namespace) {
                self.blocks.add_valid(block, to.len.chunks_max());
            }
            self.blocks.unhold(block);
        }
        let Some(space) = self.spaces.get_mut(&staged.namespace) else { return };
        self.table_is_exact = false;
        let index = space.index.as_mut().expect("an index stays loaded while Puts of its namespace are staged");
        space.dirty = true;
        let (old, change) = match staged.to {
            Some(to) => {
                (index.insert(&staged.key, to), Change::Moved { namespace: staged.namespace, key: staged.key, to })
            }
            None => (index.remove(&staged.key), Change::Deleted { namespace: staged.namespace, key: staged.key }),
        };
        self.journal.append(&change);
        if let Some(old) = old {
            let block = self.block_of(old.at);
            let reclaimed = self.blocks.reclaimed_count();
            self.blocks.sub_valid(block, old.len.chunks_max());
            // A block that is empty now may be all that was missing.
            self.collector.wedged &= self.blocks.reclaimed_count() == reclaimed;
        }
    }

    /// The index entry of a record found in the ring while opening swings to its place.
    pub(crate) fn apply_replayed(&mut self, namespace: u32, key: Key, to: Option<Slot>) {
        self.commit(self.ring.staging_number(), Staged { namespace, key, to, is_mapping: false, version: 0 });
    }

    fn program_done(&mut self, id: IoId, io: Io, result: Result<(), MediumError>) {
        let Io::Program { at, ref data, .. } = io else { unreachable!("the operation of a program") };
        let bytes = data.capacity() as u64;
        match result {
            Ok(()) => {
                drop(io);
                let settled = self.writers.programmed(at, bytes, &mut self.blocks);
                settled.moves.into_iter().for_each(|moved| self.install(moved));
                for ticket in settled.tickets {
                    if self.segment_programmed(ticket) {
                        continue;
                    }
                    if let Some(placed) = self.tickets.get_mut(&ticket) {
                        placed.done = true;
                    }
                }
            }
            Err(MediumError::BlockFailed { block, error, .. }) => {
                tracing::warn!(%block, error, "a program failed; the block is taken out of use");
                self.writers.programming_bytes -= bytes;
                self.counters.program_failures += 1;
                if !self.failed_blocks.contains(&block.0) {
                    self.failed_blocks.push(block.0);
                }
                self.writers.stop(block.0);
            }
            Err(MediumError::NoSpace { what }) => {
                tracing::warn!(what, "no space below the device; the program is tried again");
                self.no_space_count += 1;
                self.retry.insert(id, io);
            }
            // It was started before anybody knew that there was no space for the pages in front of it.
            Err(MediumError::OutOfOrder { at, .. }) if self.retries_before(at) => drop(self.retry.insert(id, io)),
            Err(error) => self.stop(error),
        }
    }

    /// Whether pages in front of this one wait for space below.
    fn retries_before(&self, at: PageAddr) -> bool {
        let is_before = |io: &Io| matches!(io, Io::Program { at: waits, .. } if waits.block == at.block && *waits < at);
        self.retry.values().any(is_before)
    }

    /// A moved record's new page is programmed: the index entry swings if it still says the old place.
    pub(crate) fn install(&mut self, moved: Move) {
        let to_block = self.block_of(moved.to.at);
        let from_block = self.block_of(moved.from.at);
        let space = self.spaces.get_mut(&moved.namespace);
        self.table_is_exact = false;
        let index = space.and_then(|space| {
            debug_assert!(space.is_loaded(), "an index stays loaded, or is loaded again, while its records move");
            space.dirty = true;
            space.index.as_mut()
        });
        let swung = index.is_some_and(|index| index.replace_if(&moved.key, moved.from, moved.to));
        if swung {
            self.blocks.add_valid(to_block, moved.to.len.chunks_max());
            self.blocks.sub_valid(from_block, moved.from.len.chunks_max());
            self.journal.append(&Change::Moved { namespace: moved.namespace, key: moved.key, to: moved.to });
        }
        self.blocks.unhold(to_block);
        self.gc_moved(from_block);
    }

    /// A block will never be used again: tell the journal.
    pub(crate) fn retire(&mut self, block: u32) {
        #[cfg(feature = "broken")]
        if crate::Broken::ForgetsBadBlocks.is() {
            return;
        }
        let erase_count = self.blocks.get(block).erase_count;
        self.journal.append(&Change::Block { block, erase_count, bad: true });
    }

    // --- background -------------------------------------------------------------------------------------------------

    /// Advances everything that goes on by itself and hands out the operations to be started. Call it when
    /// [`Core::has_background`], after completions, and now and then; `now_ns` may have any origin.
    pub fn poll(&mut self, now_ns: u64, out: &mut Vec<(IoId, Io)>) {
        if self.goes_on() {
            if !self.retry.is_empty() && now_ns >= self.retry_at_ns {
                self.retry_at_ns = now_ns + RETRY_NS;
                // Pages of a block were asked for in their order, and so are again, before what came up meanwhile.
                for (id, io) in std::mem::take(&mut self.retry).into_iter().rev() {
                    let pending = match io {
                        Io::Erase { block, .. } => Pending::Erase { block: block.0 },
                        _ => Pending::Program,
                    };
                    self.ops.insert(id, pending);
                    self.outbox.push_front((id, io));
                }
            }
            if !self.failed_blocks.is_empty() {
                self.rehome();
            }
            self.start_erases();
            self.step_gc();
            let has_kept = self.step_keep();
            self.step_sealing();
            self.seal_stalled = self.wants_seal && !has_kept;
            self.place_journal();
            self.step_checkpoint();
            self.step_root();
            self.stop_at_dead_end();
            self.note_wedged();
            self.forget_replaced();
        }
        self.update_sizes();
        out.extend(self.outbox.drain(..));
    }

    fn start_erases(&mut self) {
        // Space is given back only while there is plenty: a block about to be reused keeps its extents.
        let release = self.blocks.free_count() > self.blocks.count() / 4;
        for block in self.blocks.start_erases(ERASED_AHEAD.max(self.wanted_blocks() as usize)) {
            let fresh = self.blocks.get(block).erase_count == 0;
            self.emit(Io::Erase { block: BlockIndex(block), release: release && !fresh }, Pending::Erase { block });
        }
    }

    /// Gives waiting journal pages their places.
    pub(crate) fn place_journal(&mut self) {
        let chunks = self.geometry.chunks_per_page();
        let mut out = Vec::new();
        for _ in 0..self.journal.wanting_count(self.geometry.pages_per_program) {
            let floor = self.floor(Class::Journal);
            let ready = self.writers.ready(0, Class::Journal, chunks, floor, &mut self.blocks, &mut out);
            let Ok(block) = ready else { break };
            let page = self.journal.waiting().expect("counted");
            let at = self.writers.append_pages(block, page, &mut out);
            self.blocks.hold(block);
            self.journal.placed(at.block.0, at.page);
            self.counters.metadata_bytes += u64::from(self.geometry.page_bytes);
        }
        self.emit_programs(out);
    }

    pub(crate) fn release_pages(&mut self, runs: &[Run]) {
        for run in runs {
            (0..run.page_count).for_each(|_| self.blocks.unhold(run.block));
        }
    }

    /// Whether anything is under way or due: false means that nothing happens until the next command.
    pub fn is_idle(&self) -> bool {
        let is_still = self.ops.is_empty() && self.outbox.is_empty();
        let versions_rest = !self.wants_seal && self.keep_job.is_none();
        is_still && versions_rest && !self.collector.is_running() && !self.checkpoint.is_running()
    }

    /// Whether records are staged, on their way to the ring, or in write buffers: a Put was made that pages do not have yet.
    pub fn has_unprogrammed(&self) -> bool {
        self.ring.has_staged() || self.ring.in_flight() > 0 || self.writers.oldest_frame().is_some()
    }

    /// Whether some programs or erases wait for space below.
    pub fn is_waiting_for_space(&self) -> bool {
        !self.retry.is_empty()
    }

    /// How often they have found no space below: who waits for them can tell that they were tried again meanwhile.
    pub fn no_space_count(&self) -> u64 {
        self.no_space_count
    }

    // --- sizes ----------------------------------------------------------------------------------------------------------

    /// Draws the number that decides where indexes place keys, unless one was drawn: so that nobody can choose keys that collide, which
    /// are found more slowly. It counts for indexes that are made from now on, and is durable with the next root, which namespaces wait
    /// for before they take Puts. Without it places follow from the device's UUID, which hosts may know.
    pub fn draw_index_seed(&mut self, random: impl FnOnce() -> u64) {
        if self.root.index_seed == 0 {
            self.root.index_seed = random();
        }
    }

    /// Where the index of a namespace places its keys.
    pub(crate) fn seed(&self, namespace: u32) -> u64 {
        let (low, high) = self.uuid.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let id = u64::from(namespace).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word(low) ^ word(high).rotate_left(32) ^ id ^ self.root.index_seed
    }

    /// What a namespace's index must have room for.
    pub(crate) fn index_layout(&self, layout: Layout) -> IndexLayout {
        let addr_bits = 64 - (self.geometry.chunk_count() - 1).leading_zeros();
        match layout {
            Layout::Records(keys) | Layout::Versions(VersionLayout { keys, .. }) => {
                IndexLayout::Hash(HashLayout { keys, addr_bits })
            }
            Layout::Blocks(blocks) => {
                let len = code(self.chunks_of(blocks.unit_bytes as usize));
                IndexLayout::Dense(DenseLayout { key_count: blocks.unit_count(), addr_bits, len })
            }
        }
    }

    /// Chunks of a record with a value of so many bytes.
    pub(crate) fn chunks_of(&self, value_bytes: usize) -> u32 {
        (RecordHeader::BYTES + value_bytes).div_ceil(self.geometry.chunk_bytes as usize) as u32
    }

    pub(crate) fn block_of(&self, at: u64) -> u32 {
        self.geometry.split(ChunkAddr(at)).0.0
    }

    /// Largest value in bytes: a record lies in one erase block, in whole program units.
    pub fn value_bytes_max(&self) -> u64 {
        value_bytes_max(&self.geometry)
    }

    /// The sequence of the record that was staged last.
    pub fn last_sequence(&self) -> u64 {
        self.sequence
    }

    /// Largest sum of ring bytes of one Put.
    pub fn batch_bytes_max(&self) -> usize {
        self.ring.payload_bytes_max()
    }

    /// Free blocks that puts and metadata of a class must leave to those that need them more: the journal may take the
    /// last one, or no root could be made; snapshots wait for collection (`gc`), which has a floor of its own.
    pub(crate) fn floor(&self, class: Class) -> u32 {
        match class {
            Class::Journal => 0,
            // After metadata was lost nothing becomes free before a checkpoint has replaced it.
            Class::Snapshot if self.root_commit.awaits_checkpoint() => self.checkpoint.floor(),
            Class::Snapshot => 3,
            // What is in the page buffer was taken from hosts already.
            Class::Segment => COLLECTION_RESERVE,
            Class::Hot | Class::Warm | Class::Cool | Class::Cold | Class::Direct => self.reserve_blocks(),
        }
    }

    /// Free blocks that hosts must leave: for collection, the journal and a snapshot of all indexes.
    pub(crate) fn reserve_blocks(&self) -> u32 {
        let snapshot = self.index_bytes / self.geometry.block_bytes() + 1;
        self.geometry.die_count() + 3 + snapshot as u32
    }

    /// Free blocks below which collection runs.
    pub(crate) fn collect_below(&self) -> u32 {
        self.reserve_blocks() + self.geometry.die_count() + self.blocks.count() / 64
    }

    /// What admission looks at, worked out now and then.
    pub(crate) fn update_sizes(&mut self) {
        self.index_bytes = self.spaces.values().map(|space| space.snapshot_bytes()).sum();
        self.capacity_cached = self.capacity_chunks();
    }

    /// Chunks that may be live: all but open blocks, metadata, the reserve and what collection needs to be worth it.
    pub fn capacity_chunks(&self) -> u64 {
        // While a checkpoint is written, the snapshots before it are still there.
        let metadata_bytes = 2 * self.index_bytes + self.checkpoint_journal_bytes();
        let metadata = metadata_bytes / self.geometry.block_bytes() + 2;
        let buffers: u64 = self.version_spaces().filter_map(|(_, s)| s.layout.versions()).map(|p| p.buffer_bytes).sum();
        let metadata = metadata + buffers * 5 / 4 / self.geometry.block_bytes();
        let image_classes = 1 + u64::from(buffers > 0);
        let open = u64::from(self.geometry.die_count()) * (record_classes(&self.geometry).len() as u64 + image_classes);
        let blocks = u64::from(self.blocks.count() - self.blocks.bad_count());
        let usable = blocks.saturating_sub(metadata + open + u64::from(self.collect_below()));
        let percent = match self.geometry.packing {
            Packing::Across => LIVE_PERCENT_MAX,
            // Of two pages in a row only one may be half empty, or the next record would have fitted into the first.
            Packing::WithinPage => LIVE_PERCENT_MAX / 2,
        };
        usable * u64::from(self.geometry.chunks_per_block()) * percent / 100
    }

    /// The shape of the flash.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
}

/// Memory that frames and write buffers take at most.
pub fn buffer_bytes_max(geometry: &Geometry) -> u64 {
    let frames = (ring::PERSISTS_IN_FLIGHT_MAX + 1) * ring::frame_bytes_max(geometry);
    frames as u64 + Writers::memory_bytes_max(geometry, PROGRAMMING_BYTES_MAX)
}

/// Largest value that a device of this shape takes.
pub(crate) fn value_bytes_max(geometry: &Geometry) -> u64 {
    let code_max = u64::from(LenCode::LAST.chunks_max()) * u64::from(geometry.chunk_bytes);
    (geometry.block_bytes().min(code_max) - RecordHeader::BYTES as u64).min(u64::from(u32::MAX))
}

/// The length code of a record that fits a block.
pub(crate) fn code(chunks: u32) -> LenCode {
    LenCode::of(chunks).expect("records are shorter than the longest length code")
}
