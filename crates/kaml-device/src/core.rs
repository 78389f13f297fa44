//! The firmware core: a deterministic single-writer state machine between commands and the medium.
//!
//! Lives here:       completions, the commit of Puts, the order of background work.
//! Lives elsewhere:  writing (`log`), staging Puts (`staging`), reads next to the core (`reader`), which purpose may have room (`space`),
//!                   collection (`gc`), roots and checkpoints (`roots`, `checkpoint`), opening (`recovery`), everything
//!                   that waits (the drivers in `kaml`).
//! Implements:       paper:KAML IV.D.
//!
//! The life of a Put: `stage` checks it, places its records in write buffers and appends them to the staging frame
//! (phase 1); `begin_persist` hands the frame out as one durable ring write; its completion commits it: index entries
//! swing to the records' places, which are still in write buffers (served from memory) until their pages are
//! programmed (phase 2); a root then moves the ring's tail (phase 3).

use crate::blocks::BlockTable;
use crate::clock::DeviceClock;
use crate::collector::Collector;
use crate::error::Error;
use crate::format::journal::Change;
use crate::format::record::{RecordHeader, record_bytes};
use crate::format::root::Root;
use crate::gate::BlockGate;
use crate::growth::Growth;
use crate::in_flight::Pending;
use crate::index::IndexLayout;
use crate::journal::Journal;
use crate::layout::{Layout, VersionLayout};
use crate::log::Log;
use crate::moves::Move;
use crate::namespace::{Directory, Namespace};
use crate::ring::{self, CommitRing, Staged};
use crate::root_state::{Checkpoint, RootCommit};
use crate::secret::KeyDigester;
use crate::secret::Sealer;
use crate::snapshots::Snapshots;
use crate::space::{PROGRAMMING_BYTES_MAX, Purpose, Space};
use crate::tickets::Tickets;
use crate::versioned::state::Sealing;
use crate::writers::Writers;
use kaml_flash::{Completion, Geometry, Io, IoId, MediumError};
use kaml_index::{DenseLayout, FullKey, HashLayout, Key, KeyKind, LenCode, Slot};
use kaml_ordered::OrderedLayout;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The firmware.
///
/// `log` is the mechanism: it knows how to write and not when. The other parts decide.
pub struct Core {
    pub(crate) log: Log,
    pub(crate) spaces: BTreeMap<u32, Namespace>,
    pub(crate) catalog: Catalog,
    pub(crate) space: Space,
    pub(crate) growth: Growth,
    pub(crate) snapshots: Snapshots,
    pub(crate) collector: Collector,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) root_commit: RootCommit,
    /// The present root.
    pub(crate) root: Root,
    pub(crate) failed_blocks: Vec<u32>,
    pub(crate) tickets: Tickets,
    pub(crate) sealing: Sealing,
    /// The host's clock, nanoseconds since 1970, as last reported by the driver.
    pub(crate) time_ns: u64,
    /// By which records expire.
    pub(crate) clock: Arc<DeviceClock>,
    /// No record of a namespace in memory expires before.
    pub(crate) next_expiry: u64,
    pub(crate) read_only: bool,
    /// The last root is being made, or was.
    pub(crate) is_closing: bool,
    /// While the ring is replayed: the epoch and tail that roots must continue naming.
    pub(crate) recovering: Option<(u64, u64)>,
    /// Opened for what can be read of it, however damaged: what was found to be missing in the ring.
    pub(crate) salvage: Option<Vec<String>>,
}

/// What is known of all namespaces together.
#[derive(Default)]
pub(crate) struct Catalog {
    /// For readers.
    pub(crate) directory: Arc<Directory>,
    pub(crate) next_id: u32,
    /// Namespaces that were created and that no root names yet.
    pub(crate) unpublished: Vec<u32>,
    /// Namespaces whose images are read, and whose indexes should therefore be loaded.
    pub(crate) image_loads: BTreeSet<u32>,
    /// Some keep versions.
    pub(crate) keeps_versions: bool,
}

/// Records whose index lines are fetched together when they commit.
const COMMIT_FETCHED: usize = 16;
/// Loads of an index that moving records needs: one of them may work where another did not.
const LOST_INDEX_TRIES_MAX: u32 = 50;
impl Core {
    pub(crate) fn assemble(
        geometry: Geometry,
        uuid: [u8; 16],
        blocks: BlockTable,
        journal: Journal,
        root: Root,
        sealer: Sealer,
    ) -> Core {
        let mut core = Core {
            log: Log::new(geometry, uuid, (blocks, journal), &root, sealer),
            spaces: BTreeMap::new(),
            catalog: Catalog { next_id: root.next_namespace, ..Catalog::default() },
            space: Space::default(),
            growth: Growth::default(),
            snapshots: Snapshots::default(),
            collector: Collector::default(),
            checkpoint: Checkpoint::default(),
            root_commit: RootCommit::default(),
            root,
            failed_blocks: Vec::new(),
            tickets: Tickets::default(),
            sealing: Sealing::default(),
            time_ns: 0,
            clock: Arc::default(),
            next_expiry: u64::MAX,
            read_only: false,
            is_closing: false,
            recovering: None,
            salvage: None,
        };
        core.clock.advance_to(core.root.clock_ms);
        core.update_sizes();
        core
    }

    /// What readers share with the firmware.
    pub(crate) fn gate(&self) -> Arc<BlockGate> {
        self.log.blocks.gate.clone()
    }

    /// Hands out the staging frame as one durable write, if there is one to make and it can be made now.
    pub fn begin_persist(&mut self) -> Option<(IoId, Io)> {
        self.hand_out(CommitRing::begin_persist)
    }

    /// As [`Core::begin_persist`], while writes are in flight, for an event loop with half as many Puts staged as each of them
    /// has. With it at most `in_flight_max` are in flight, and never more than three.
    pub fn begin_overlapping_persist(&mut self, in_flight_max: usize) -> Option<(IoId, Io)> {
        self.hand_out(|ring| ring.begin_overlapping_persist(in_flight_max))
    }

    fn hand_out(&mut self, begin: impl FnOnce(&mut CommitRing) -> Option<(u64, Io)>) -> Option<(IoId, Io)> {
        if self.log.stopped.is_some() {
            return None;
        }
        let (frame, io) = begin(&mut self.log.ring)?;
        if let Io::Persist { len, .. } = &io {
            self.log.counters.ring_bytes += *len as u64;
        }
        let id = self.log.queue.next_io;
        self.log.queue.next_io += 1;
        self.log.queue.ops.insert(id, Pending::Persist { frame });
        Some((id, io))
    }

    /// Frames before this one are committed.
    pub fn committed(&self) -> u64 {
        self.log.ring.committed()
    }

    /// Whether the frame that is being filled holds anything.
    pub fn has_staged(&self) -> bool {
        self.log.ring.has_staged()
    }

    /// Whether [`Core::begin_persist`] has something to hand out, if the ring has room for it.
    pub fn wants_persist(&self) -> bool {
        self.log.ring.wants_persist()
    }

    /// Whether the staged frame could be written now, and would soon be much larger if its writer let others go first.
    pub fn should_wait_for_company(&self) -> bool {
        self.log.ring.wants_persist() && self.log.ring.is_small()
    }

    /// The frame that is being filled.
    pub fn staging_frame(&self) -> u64 {
        self.log.ring.staging_number()
    }

    /// Whether [`Core::poll`] would continue at once, without waiting for a completion.
    pub fn wants_poll(&self) -> bool {
        self.has_background() || self.goes_on() && self.checkpoint_can_go_on()
    }

    /// Whether [`Core::poll`] does anything but hand out what there is.
    pub(crate) fn goes_on(&self) -> bool {
        self.log.stopped.is_none() && !self.read_only
    }

    /// The namespace whose index is needed to move its records, out of a victim of collection or a failed block, if one is. They
    /// wait until [`Core::forget_wanted_index`].
    pub fn wanted_index(&self) -> Option<u32> {
        self.collector.wants_index
    }

    /// The index that was needed has been loaded.
    pub fn forget_wanted_index(&mut self) {
        if let Some(id) = self.collector.wants_index.take() {
            self.collector.lost_index_tries.remove(&id);
        }
    }

    /// The index that was needed cannot be loaded; it will be read again. After many tries collection continues without it.
    /// But records of failed blocks wait for it, and what is durable with them: then the device stops.
    pub fn wanted_index_is_lost(&mut self, why: &dyn std::fmt::Display) {
        let Some(id) = self.collector.wants_index.take() else { return };
        let tries = self.collector.lost_index_tries.entry(id).or_default();
        *tries += 1;
        if *tries <= LOST_INDEX_TRIES_MAX {
            return;
        }
        self.collector.lost_index_tries.remove(&id);
        if self.failed_blocks_need(id) {
            let what = format!("the index of namespace {id}, which records of a failed block need");
            self.log.stop(MediumError::ReadFailed { what, error: why.to_string() });
        } else {
            self.do_without_index(id, why);
        }
    }

    /// The error that stopped the device, if one did.
    pub fn stopped(&self) -> Option<Error> {
        self.log.stopped.clone().map(Error::Stopped)
    }

    /// Refuses changes if the device was opened to be read, or was stopped.
    pub fn writable(&self) -> Result<(), Error> {
        match &self.log.stopped {
            _ if self.read_only => Err(Error::ReadOnly),
            Some(error) => Err(Error::Stopped(error.clone())),
            None if self.is_closing => Err(Error::Closed),
            None => Ok(()),
        }
    }

    // --- completions ----------------------------------------------------------------------------------------------

    /// Whether background operations wait to be started.
    pub fn has_background(&self) -> bool {
        let has_work = self.sealing.is_wanted && !self.sealing.is_stalled
            || self.snapshots.are_releasing()
            || self.expiry_is_due();
        !self.log.queue.outbox.is_empty() || self.goes_on() && has_work
    }

    /// Takes what an operation came to.
    pub fn complete(&mut self, completion: Completion) {
        let Completion { id, io, result } = completion;
        self.checkpoint.may_go_on();
        self.sealing.is_stalled = false;
        let pending = self.log.queue.ops.remove(id).expect("a completion belongs to one operation in flight");
        match (pending, result) {
            (Pending::Persist { frame }, Ok(())) => {
                let Io::Persist { data, .. } = io else { unreachable!("the operation of a persist") };
                self.log.ring.persisted(frame, data);
                while let Some((frame, records)) = self.log.ring.next_commit() {
                    self.space.staged_chunks -= records.iter().map(Staged::small_chunks).sum::<u64>();
                    for records in records.chunks(COMMIT_FETCHED) {
                        if records.len() > 1 {
                            records.iter().for_each(|staged| self.prefetch(staged.namespace, &staged.key.full()));
                        }
                        records.iter().for_each(|staged| self.commit(frame, staged));
                    }
                    self.log.ring.give_back(records);
                }
            }
            (Pending::Program, result) => self.program_done(id, io, result),
            (Pending::Erase { block }, Ok(())) => {
                let erase_count = self.log.blocks.erased(block);
                self.log.counters.erases += 1;
                self.log.journal.append(&Change::Block { block, erase_count, bad: false });
            }
            (Pending::Erase { .. }, Err(MediumError::NoSpace { what })) => {
                tracing::warn!(what, "no space below the device; the erase is tried again");
                self.log.queue.no_space_count += 1;
                self.log.queue.retry.insert(id, io);
            }
            (Pending::Erase { block }, Err(MediumError::BlockFailed { .. })) => {
                self.log.blocks.erase_failed(block);
                self.log.retire(block);
            }
            (Pending::Flush, Ok(())) => self.flushed(),
            (Pending::Root, Ok(())) => self.root_written(),
            (Pending::Resize, result) => self.resize_done(io, result),
            (Pending::GcOob { block }, result) => self.gc_oob_done(block, io, result),
            (Pending::GcRead { block }, result) => self.gc_read_done(block, io, result),
            (Pending::Persist { .. } | Pending::Erase { .. } | Pending::Flush | Pending::Root, Err(error)) => {
                self.log.stop(error)
            }
        }
    }

    /// Starts fetching the index lines of a key that will be requested or put, if the index is in memory. Readers next to the
    /// core have [`crate::Reader::prefetch`].
    pub fn prefetch(&self, namespace: u32, key: &FullKey<'_>) {
        if let Some(index) = self.spaces.get(&namespace).and_then(|space| space.index.as_ref()) {
            index.prefetch(key);
        }
    }

    /// The commit point is passed: the index entry swings to the record's new place.
    pub(crate) fn commit(&mut self, frame: u64, staged: &Staged) {
        if staged.version != 0 {
            return self.commit_version(staged.namespace);
        }
        if let Some(range) = &staged.range {
            return self.commit_range(staged.namespace, range);
        }
        if let Some(to) = staged.to {
            let block = self.log.block_of(to.at);
            if staged.is_mapping {
                self.log.blocks.set_mapping_frame(block, frame);
                self.space.ticket_chunks -= u64::from(to.len.chunks_max());
            }
            if self.spaces.contains_key(&staged.namespace) {
                self.log.blocks.add_valid(block, to.len.chunks_max());
            }
            self.log.blocks.unhold(block);
        }
        let is_kept = self.snapshots.are_open()
            && self.keep_for_snapshots(staged.namespace, &staged.key.full(), staged.to.is_some());
        let Some(space) = self.spaces.get_mut(&staged.namespace) else { return };
        self.log.table_is_exact = false;
        let index = space.index.as_mut().expect("an index stays loaded while Puts of its namespace are staged");
        space.dirty = true;
        let (key, namespace) = (staged.key.full(), staged.namespace);
        let (old, change) = match staged.to {
            Some(to) => (index.insert(&key, to), Change::Moved { namespace, key: *key.key(), to }),
            None => (index.remove(&key), Change::Deleted { namespace, key: *key.key() }),
        };
        self.log.journal.append_of(&key, &change);
        if staged.expires != 0 || !space.expiries.is_empty() {
            match staged.to {
                Some(_) => self.note_expiry(namespace, &key, staged.expires),
                None => {
                    space.set_expiry(&key, 0); // the journal entry of a delete includes it
                }
            }
        }
        if let Some(old) = old.filter(|_| !is_kept) {
            let block = self.log.block_of(old.at);
            let reclaimed = self.log.blocks.reclaimed_count();
            self.log.blocks.sub_valid(block, old.len.chunks_max());
            // A block that is empty now may be all that was missing.
            self.space.pace.is_deadlocked &= self.log.blocks.reclaimed_count() == reclaimed;
        }
    }

    /// The index entry of a record found in the ring while opening swings to its place.
    pub(crate) fn apply_replayed(&mut self, namespace: u32, key: &FullKey<'_>, to: Option<Slot>, expires: u64) {
        let staged = Staged::new(namespace, key, to, false).expiring(expires);
        self.commit(self.log.ring.staging_number(), &staged);
    }

    fn program_done(&mut self, id: IoId, io: Io, result: Result<(), MediumError>) {
        let Io::Program { at, ref data, .. } = io else { unreachable!("the operation of a program") };
        let bytes = data.capacity() as u64;
        match result {
            Ok(()) => {
                drop(io);
                let settled = self.log.writers.programmed(at, bytes, &mut self.log.blocks);
                settled.moves.into_iter().for_each(|moved| self.install(moved));
                for ticket in settled.tickets {
                    if self.segment_programmed(ticket) {
                        continue;
                    }
                    if let Some(placed) = self.tickets.placed.get_mut(&ticket) {
                        placed.done = true;
                    }
                }
            }
            Err(MediumError::BlockFailed { block, error, .. }) => {
                tracing::warn!(%block, error, "a program failed; the block is taken out of use");
                self.log.writers.programming_bytes -= bytes;
                self.log.counters.program_failures += 1;
                if !self.failed_blocks.contains(&block.0) {
                    self.failed_blocks.push(block.0);
                }
                self.log.writers.stop(block.0);
            }
            Err(MediumError::NoSpace { what }) => {
                tracing::warn!(what, "no space below the device; the program is tried again");
                self.log.queue.no_space_count += 1;
                self.log.queue.retry.insert(id, io);
            }
            // It was started before anybody knew that there was no space for the pages in front of it.
            Err(MediumError::OutOfOrder { at, .. }) if self.log.retries_before(at) => {
                drop(self.log.queue.retry.insert(id, io))
            }
            Err(error) => self.log.stop(error),
        }
    }

    /// A moved record's new page is programmed: the index entry changes if it still has the old place.
    pub(crate) fn install(&mut self, moved: Move) {
        let to_block = self.log.block_of(moved.to.at);
        let from_block = self.log.block_of(moved.from.at);
        let space = self.spaces.get_mut(&moved.namespace);
        self.log.table_is_exact = false;
        let index = space.and_then(|space| {
            debug_assert!(space.is_loaded(), "an index stays loaded, or is loaded again, while its records move");
            space.dirty = true;
            space.index.as_mut()
        });
        let key = moved.key.full();
        let swung = index.is_some_and(|index| index.replace_if(&key, moved.from, moved.to));
        if swung {
            self.log.blocks.add_valid(to_block, moved.to.len.chunks_max());
            self.log.blocks.sub_valid(from_block, moved.from.len.chunks_max());
            let change = Change::Moved { namespace: moved.namespace, key: *key.key(), to: moved.to };
            self.log.journal.append_of(&key, &change);
            self.note_move(&moved);
        } else if self.move_kept(moved.namespace, &key, moved.from, moved.to) {
            // Superseded since, or before: it moves, and no journal needs to know of what only snapshots see.
            self.log.blocks.add_valid(to_block, moved.to.len.chunks_max());
            self.log.blocks.sub_valid(from_block, moved.from.len.chunks_max());
            self.note_move(&moved);
        }
        self.log.blocks.unhold(to_block);
        if moved.empties_block {
            self.gc_moved(from_block);
        }
    }

    // --- background -------------------------------------------------------------------------------------------------

    /// Advances everything that continues by itself and hands out the operations to be started. Call it when
    /// [`Core::has_background`], after completions, and occasionally; `now_ns` may have any origin.
    pub fn poll(&mut self, now_ns: u64, out: &mut Vec<(IoId, Io)>) {
        if self.goes_on() {
            self.log.try_again(now_ns);
            if !self.failed_blocks.is_empty() {
                self.rehome();
            }
            self.step_snapshots();
            self.step_expiry();
            let (erased, may_release) = self.erased_ahead();
            self.log.start_erases(erased, may_release);
            self.step_gc();
            let has_kept = self.step_keep();
            self.step_sealing();
            self.sealing.is_stalled = self.sealing.is_wanted && !has_kept;
            self.place_journal();
            self.step_checkpoint();
            self.step_shrink();
            self.step_growth(now_ns);
            self.step_root();
            self.stop_at_dead_end();
            self.note_deadlock();
            self.forget_replaced();
        }
        self.update_sizes();
        out.extend(self.log.queue.outbox.drain(..));
    }

    /// Gives waiting journal pages their places.
    pub(crate) fn place_journal(&mut self) {
        self.log.place_journal(self.floor(Purpose::Journal));
    }

    /// Whether anything is in progress or due: false means that nothing happens until the next command.
    pub fn is_idle(&self) -> bool {
        let is_still = self.log.queue.ops.is_empty() && self.log.queue.outbox.is_empty();
        let versions_rest = !self.sealing.is_wanted && self.sealing.keep_job.is_none();
        let snapshots_rest = !self.goes_on() || !self.snapshots.are_releasing();
        is_still
            && versions_rest
            && snapshots_rest
            && !self.growth.is_requested()
            && !self.collector.is_running()
            && !self.checkpoint.is_running()
    }

    /// Whether records are staged, on their way to the ring, or in write buffers: a Put was made that pages do not have yet.
    pub fn has_unprogrammed(&self) -> bool {
        self.log.ring.has_staged() || self.log.ring.in_flight() > 0 || self.log.writers.oldest_frame().is_some()
    }

    /// Whether some programs or erases wait for space below.
    pub fn is_waiting_for_space(&self) -> bool {
        !self.log.queue.retry.is_empty()
    }

    /// How often they have found no space below: a waiting caller can determine that they were tried again meanwhile.
    pub fn no_space_count(&self) -> u64 {
        self.log.queue.no_space_count
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
        let (low, high) = self.log.uuid.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let id = u64::from(namespace).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word(low) ^ word(high).rotate_left(32) ^ id ^ self.root.index_seed
    }

    /// What makes the digests of long keys.
    pub(crate) fn key_digester(&self) -> KeyDigester {
        KeyDigester::new(self.root.secret.as_ref())
    }

    /// What a namespace's index must have room for.
    pub(crate) fn index_layout(&self, layout: Layout) -> IndexLayout {
        let addr_bits = self.index_addr_bits();
        match layout {
            Layout::Records(KeyKind::Ordered) => IndexLayout::Ordered(OrderedLayout { addr_bits }),
            Layout::Records(keys) | Layout::Versions(VersionLayout { keys, .. }) => {
                IndexLayout::Exact(kaml_index::IndexLayout::Hash(HashLayout { keys, addr_bits }))
            }
            Layout::Blocks(blocks) => {
                let len = code(self.log.chunks_of(record_bytes(&Key::from(0), blocks.unit_bytes as usize)));
                let layout = DenseLayout { key_count: blocks.unit_count(), addr_bits, len };
                IndexLayout::Exact(kaml_index::IndexLayout::Dense(layout))
            }
        }
    }

    /// Whether it was opened to be read only.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Largest value in bytes: a record lies in one erase block, in whole program units.
    pub fn value_bytes_max(&self) -> u64 {
        value_bytes_max(&self.log.geometry)
    }

    /// The sequence of the record that was staged last.
    pub fn last_sequence(&self) -> u64 {
        self.log.sequence
    }

    /// Largest sum of ring bytes of one Put.
    pub fn batch_bytes_max(&self) -> usize {
        self.log.ring.payload_bytes_max()
    }

    /// The shape of the flash.
    pub fn geometry(&self) -> &Geometry {
        &self.log.geometry
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
    (geometry.block_bytes().min(code_max) - RecordHeader::BYTES_MAX as u64).min(u64::from(u32::MAX))
}

/// The length code of a record that fits a block.
pub(crate) fn code(chunks: u32) -> LenCode {
    LenCode::of(chunks).expect("records are shorter than the longest length code")
}
