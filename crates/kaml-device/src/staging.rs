//! Phase 1 of an atomic Put: checking its records, finding room, placing them in write buffers and in the staging frame.
//!
//! Lives here:       what a Put is made of, admission, conditions, places of small and large records.
//! Lives elsewhere:  the frame's way to the ring (`ring`), commit and everything after it (`core`), blocks being filled
//!                   (`writers`).
//! Implements:       paper:KAML IV.D phase 1; design sections 2 and 4.

use crate::core::{Core, PROGRAMMING_BYTES_MAX, Pending, code};
use crate::error::Error;
use crate::format::record::{Record, RecordHeader, RecordKind};
use crate::format::version::VersionStamp;
use crate::layout::Door;
use crate::lifetime::Class;
use crate::ring::{self, Staged, sequences_ahead_max};
use crate::writers::NoBlock;
use kaml_flash::{AlignedBuf, ChunkAddr, Completion, Io, IoId, MediumError};
use kaml_index::{IndexWriter, Key, Slot};
use std::collections::HashMap;
use std::sync::Arc;

/// When a record of a Put is to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Condition {
    /// Always.
    #[default]
    Always,
    /// Only if the key is not there (spec:NVMe-KV Store option).
    IfAbsent,
    /// Only if the key is there.
    IfPresent,
    /// Only if no version of the key was put after this sequence, for certain; versioned namespaces only. Whoever has looked
    /// at [`Core::newest_committed`] before reading a version knows by it that what was read is still the newest.
    UnchangedSince(u64),
}

/// What a record of a Put does.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// Stores a value.
    Value {
        /// Its bytes.
        value: &'a [u8],
        /// Their CRC32C, computed by the caller outside any lock.
        crc32c: u32,
    },
    /// Stores a large value whose pages are programmed already.
    Placed {
        /// The answer to [`Core::place`], done.
        ticket: u64,
    },
    /// Deletes the key.
    Delete,
}

/// One record of a Put.
#[derive(Clone, Copy, Debug)]
pub struct Op<'a> {
    /// The namespace.
    pub namespace: u32,
    /// The key.
    pub key: Key,
    /// What happens to it.
    pub body: Body<'a>,
    /// On what condition.
    pub condition: Condition,
}

/// Why a Put was not staged.
#[derive(Debug, PartialEq, Eq)]
pub enum StageError {
    /// It never will be.
    Refused(Error),
    /// The index of this namespace must be loaded first ([`Core::load_index`]).
    NeedIndex(u32),
    /// Not now: wait until the firmware has made progress, then try again.
    Busy,
}

impl From<Error> for StageError {
    fn from(error: Error) -> Self {
        StageError::Refused(error)
    }
}

/// A large value on its way to its pages.
pub(crate) struct Ticket {
    pub(crate) namespace: u32,
    pub(crate) key: Key,
    pub(crate) image: Arc<AlignedBuf>,
    pub(crate) record: Record,
    pub(crate) chunks: u32,
    pub(crate) at: ChunkAddr,
    pub(crate) done: bool,
}

/// Conditions of a Put up to which each looks through the uncommitted records by itself; more would take time that grows with both.
const CONDITIONS_LOOKED_UP: usize = 8;

/// Values from this size on are programmed before they are committed, and only their place goes through the ring.
pub const DIRECT_BYTES: usize = 32 << 10;

/// Chunks that a record will count as live, whose index entry says its length in steps.
fn counted(chunks: u32) -> u64 {
    u64::from(code(chunks).chunks_max())
}

impl Core {
    /// Phase 1 of an atomic Put: all of `ops` or none. Answers the frame that carries it; the Put is durable and
    /// visible once [`Core::committed`] is beyond that.
    pub fn stage(&mut self, ops: &[Op<'_>]) -> Result<u64, StageError> {
        self.stage_through(Door::Puts, ops)
    }

    /// As [`Core::stage`], of units of block namespaces.
    pub(crate) fn stage_units(&mut self, ops: &[Op<'_>]) -> Result<u64, StageError> {
        self.stage_through(Door::Blocks, ops)
    }

    fn stage_through(&mut self, door: Door, ops: &[Op<'_>]) -> Result<u64, StageError> {
        self.check(door, ops)?;
        let (bytes, chunks) = self.admit(ops)?;
        self.check_ring_has_room(bytes, ops.len())?;
        if chunks > self.geometry.chunks_per_block().into() {
            let (sum, longest) = self.chunks_to_place(ops);
            self.check_blocks(sum, longest)?;
        }
        let mark = self.ring.mark();
        for op in ops {
            if self.stage_one(op).is_err() {
                self.unstage(mark);
                return Err(self.no_room());
            }
        }
        for op in ops {
            self.count(op);
            if let Body::Placed { ticket } = op.body
                && self.beside != Some(ticket)
            {
                self.tickets.remove(&ticket);
            }
        }
        self.ring.end_put();
        Ok(self.ring.staging_number())
    }

    /// Everything that can be wrong with a Put and does not change by waiting.
    fn check(&self, door: Door, ops: &[Op<'_>]) -> Result<(), StageError> {
        self.writable()?;
        if ops.is_empty() {
            return Err(Error::EmptyBatch.into());
        }
        let value_max = self.value_bytes_max();
        let condition_count = ops.iter().filter(|op| op.condition != Condition::Always).count();
        let uncommitted = (condition_count > CONDITIONS_LOOKED_UP).then(|| self.uncommitted_keys());
        for op in ops {
            let space = self.spaces.get(&op.namespace).ok_or(Error::UnknownNamespace(op.namespace))?;
            space.layout.admit(op.namespace, door)?;
            space.layout.check_key(&op.key).map_err(Error::Key)?;
            self.check_durable(op.namespace)?;
            space.shared.note_use();
            if space.versioned.is_some() {
                self.check_version(op)?;
                continue;
            }
            match op.body {
                Body::Value { value, .. } if value.len() as u64 > value_max => {
                    return Err(
                        Error::ValueTooLarge { bytes: value.len() as u64, max: value_max, namespace: None }.into()
                    );
                }
                Body::Placed { ticket } => {
                    let placed = self.tickets.get(&ticket).expect("tickets come from `place`");
                    assert!(placed.done || self.beside == Some(ticket));
                    assert!(placed.namespace == op.namespace && placed.key == op.key);
                }
                Body::Value { value, .. } => {
                    assert!(space.layout.takes_value_of(value.len()), "units are written whole")
                }
                Body::Delete => {}
            }
            let Some(index) = &space.index else { return Err(StageError::NeedIndex(op.namespace)) };
            if op.condition != Condition::Always {
                if self.is_in_doubt(op) {
                    return Err(StageError::Busy);
                }
                self.check_condition(op, index, uncommitted.as_ref())?;
            }
        }
        Ok(())
    }

    /// What is put into a namespace that no root knows yet would be lost with it, and so waits for one.
    pub(crate) fn check_durable(&self, namespace: u32) -> Result<(), StageError> {
        match namespace < self.root.next_namespace {
            true => Ok(()),
            false => Err(self.wait_for_programs()),
        }
    }

    /// The answer to a command that has to wait for page programs: if there is no space for them nobody knows for how long.
    fn wait_for_programs(&self) -> StageError {
        self.no_space_below().map_or(StageError::Busy, |error| Error::Medium(error).into())
    }

    /// The ring has room for so many bytes of so many records; a root gives back some.
    pub(crate) fn check_ring_has_room(&mut self, bytes: usize, records: usize) -> Result<(), StageError> {
        match self.ring.has_room(bytes) && self.has_sequences(records) {
            true => Ok(()),
            false => Err(self.wait_for_programs()),
        }
    }

    /// Whether so many more sequences may be used before a root tells of those that were: opening after a crash begins behind them.
    pub(crate) fn has_sequences(&self, count: usize) -> bool {
        self.sequences_ahead() + count as u64 <= sequences_ahead_max(&self.geometry)
    }

    /// Whether enough of them were used for a root.
    pub(crate) fn sequences_are_short(&self) -> bool {
        self.sequences_ahead() > sequences_ahead_max(&self.geometry) / 2
    }

    fn sequences_ahead(&self) -> u64 {
        self.sequence - self.root.next_sequence
    }

    /// Whether each key with uncommitted records is there once they are committed.
    fn uncommitted_keys(&self) -> HashMap<(u32, Key), bool> {
        self.ring.uncommitted().map(|staged| ((staged.namespace, staged.key), staged.to.is_some())).collect()
    }

    /// Whether a Put under conditions has to wait until somebody's large value is programmed ([`Core::stage_beside`]).
    pub fn waits_for_large_value(&self, ops: &[Op<'_>]) -> bool {
        ops.iter().any(|op| op.condition != Condition::Always && self.is_in_doubt(op))
    }

    /// Whether the newest record of a key is a large value beside its frame: it is taken back if its program fails, so nothing is
    /// judged by it.
    fn is_in_doubt(&self, op: &Op<'_>) -> bool {
        let is_own = |ticket: &u64| matches!(op.body, Body::Placed { ticket: own } if own == *ticket);
        let beside = self.beside.filter(|ticket| !is_own(ticket)).and_then(|ticket| self.tickets.get(&ticket));
        beside.is_some_and(|placed| placed.namespace == op.namespace && placed.key == op.key)
    }

    fn check_condition(
        &self,
        op: &Op<'_>,
        index: &IndexWriter,
        uncommitted: Option<&HashMap<(u32, Key), bool>>,
    ) -> Result<(), Error> {
        let same = |s: &&Staged| s.namespace == op.namespace && s.key == op.key;
        let staged = match uncommitted {
            Some(keys) => keys.get(&(op.namespace, op.key)).copied(),
            None => self.ring.uncommitted().rev().find(same).map(|staged| staged.to.is_some()),
        };
        let present = staged.unwrap_or_else(|| index.get(&op.key).is_some());
        match (op.condition, present) {
            (Condition::IfAbsent, true) | (Condition::IfPresent, false) => {
                Err(Error::Conflict { namespace: op.namespace, key: op.key, present })
            }
            (Condition::UnchangedSince(_), _) => Err(Error::KeepsNoVersions(op.namespace)),
            (Condition::Always, _) | (Condition::IfAbsent, false) | (Condition::IfPresent, true) => Ok(()),
        }
    }

    /// Chunks of a Put's records that are placed as it is staged, and of the longest of these.
    fn chunks_to_place(&self, ops: &[Op<'_>]) -> (u64, u32) {
        let placed = ops.iter().filter_map(|op| match op.body {
            Body::Value { value, .. } => {
                self.spaces[&op.namespace].versioned.is_none().then(|| self.chunks_of(value.len()))
            }
            Body::Placed { .. } | Body::Delete => None,
        });
        placed.fold((0, 0), |(sum, longest), chunks| (sum + u64::from(chunks), longest.max(chunks)))
    }

    /// Whether there is room for a Put; answers its ring bytes, and the chunks of its values.
    fn admit(&self, ops: &[Op<'_>]) -> Result<(usize, u64), StageError> {
        let mut ring_bytes = 0;
        let mut chunks = 0u64;
        let mut is_overfull = false;
        for op in ops {
            let payload = match op.body {
                Body::Value { value, .. } => {
                    chunks += u64::from(self.chunks_of(value.len()));
                    value.len()
                }
                Body::Placed { .. } => 8,
                Body::Delete => 0,
            };
            let payload = match self.spaces[&op.namespace].versioned {
                // Deletes are versions too.
                Some(_) => {
                    chunks += u64::from(matches!(op.body, Body::Delete));
                    is_overfull |= self.buffer_is_overfull(op.namespace);
                    VersionStamp::BYTES + payload
                }
                None => payload,
            };
            ring_bytes += (RecordHeader::BYTES + payload).next_multiple_of(crate::format::record::RING_ALIGN);
        }
        let max = self.ring.payload_bytes_max();
        if ring_bytes > max {
            let direct_bytes = DIRECT_BYTES as u64;
            return Err(Error::BatchTooLarge { bytes: ring_bytes, max, direct_bytes }.into());
        }
        if chunks > 0 {
            self.admit_chunks(chunks)?;
        } else if !self.may_delete() {
            return Err(self.wait_for_programs());
        } else if self.collector.wedged && self.blocks.free_count() == 0 {
            return Err(self.no_room_for_good()); // the journal that deletes need could not go on
        }
        if is_overfull {
            return Err(self.no_room());
        }
        if self.writers.programming_bytes > PROGRAMMING_BYTES_MAX {
            return Err(self.wait_for_programs());
        }
        Ok((ring_bytes, chunks))
    }

    /// Whether `chunks` of new data may be written now.
    fn admit_chunks(&self, chunks: u64) -> Result<(), StageError> {
        if let Some(error) = self.no_space_below() {
            return Err(Error::Medium(error).into());
        }
        if self.low_merge_holds(chunks) {
            return Err(StageError::Busy);
        }
        let capacity = self.capacity_cached;
        let taken = self.taken_chunks() + chunks;
        if taken > capacity {
            return Err(self.full(capacity).into());
        }
        if taken + self.staged_chunks > capacity {
            return Err(StageError::Busy); // it may be in place of something
        }
        if self.may_write() { Ok(()) } else { Err(self.no_room()) }
    }

    pub(crate) fn full_now(&self) -> Error {
        self.full(self.capacity_chunks())
    }

    fn full(&self, capacity: u64) -> Error {
        let bytes = u64::from(self.geometry.chunk_bytes);
        Error::Full { live_bytes: self.taken_chunks() * bytes, capacity_bytes: capacity * bytes }
    }

    /// Chunks that are live or will be: large values that are placed have their room already.
    pub(crate) fn taken_chunks(&self) -> u64 {
        self.blocks.live_chunks() + self.ticket_chunks
    }

    /// Some programs or erases wait for space below.
    pub fn no_space_below(&self) -> Option<MediumError> {
        let waiting = |what: &str| MediumError::NoSpace { what: what.to_owned() };
        (!self.retry.is_empty()).then(|| waiting("page programs wait until there is space"))
    }

    fn stage_one(&mut self, op: &Op<'_>) -> Result<(), NoBlock> {
        self.sequence += 1;
        if self.spaces[&op.namespace].versioned.is_some() {
            self.stage_version(op);
            return Ok(());
        }
        let mut record = Record {
            namespace: op.namespace,
            key: op.key,
            kind: RecordKind::Tombstone,
            value_len: 0,
            value_crc: 0,
            sequence: self.sequence,
        };
        let mapping;
        let header;
        let (payload, to): ([&[u8]; 2], Option<Slot>) = match op.body {
            Body::Delete => {
                header = RecordHeader::encode(&record);
                ([&[], &[]], None)
            }
            Body::Value { value, crc32c } => {
                record.kind = RecordKind::Value;
                record.value_len = value.len() as u32;
                record.value_crc = crc32c;
                header = RecordHeader::encode(&record);
                let at = self.place_record(&record, &header, value)?;
                ([&[], value], Some(at))
            }
            Body::Placed { ticket } => {
                let placed = &self.tickets[&ticket];
                record = Record { kind: RecordKind::Mapping, sequence: 0, ..placed.record };
                header = RecordHeader::encode(&record);
                mapping = ring::mapping_payload(placed.at);
                ([&mapping, &[]], Some(Slot { at: placed.at.0, len: code(placed.chunks) }))
            }
        };
        let is_mapping = record.kind == RecordKind::Mapping;
        let staged = Staged { namespace: op.namespace, key: op.key, to, is_mapping, version: 0 };
        self.staged_chunks += staged.small_chunks();
        self.ring.stage(&header, payload, staged);
        Ok(())
    }

    /// Counts a record that is staged, now that the others of its Put are, too.
    fn count(&mut self, op: &Op<'_>) {
        let value_bytes = match op.body {
            Body::Delete => return self.counters.deletes += 1,
            Body::Value { value, .. } => value.len() as u64,
            Body::Placed { ticket } => self.tickets[&ticket].record.value_len.into(),
        };
        self.counters.puts += 1;
        self.counters.host_bytes += value_bytes;
    }

    /// Packs a record of a host into a page of one of its namespace's logs, and holds the block for it.
    fn place_record(
        &mut self,
        record: &Record,
        header: &[u8; RecordHeader::BYTES],
        value: &[u8],
    ) -> Result<Slot, NoBlock> {
        let chunks = self.chunks_of(value.len());
        let turn = u64::from(self.geometry.chunks_per_page()) * 64;
        let log_count = self.geometry.die_count();
        let class = self.class_of_put(record);
        let space = self.spaces.get_mut(&record.namespace).expect("checked");
        let log = space.next_log(chunks, log_count, turn);
        let frame = Some(self.ring.staging_number());
        let floor = self.floor(class);
        let at = self.on_some_log(log, |core, log| core.append(log, class, floor, chunks, [header, value], frame))?;
        self.blocks.note_written(self.block_of(at.0), record.sequence);
        self.counters.record_chunks += u64::from(chunks);
        self.has_written(u64::from(chunks));
        Ok(Slot { at: at.0, len: code(chunks) })
    }

    /// The record that a put replaces tells how long the new one will live. Its block's mean has to do: its own time
    /// stands in flash. One that is still uncommitted does not count, the one before it is young as well.
    fn class_of_put(&self, record: &Record) -> Class {
        let lifetimes = &self.blocks.lifetimes;
        if !lifetimes.tells_puts_apart() {
            return lifetimes.of_put(None);
        }
        let index = self.spaces[&record.namespace].index.as_ref().expect("checked");
        lifetimes.of_put(index.get(&record.key).map(|old| self.blocks.written_at(self.block_of(old.at))))
    }

    /// Tries a log first and the others after it: a die without free blocks must not hold up what fits elsewhere.
    pub(crate) fn on_some_log<T>(
        &mut self,
        log: u32,
        mut append: impl FnMut(&mut Core, u32) -> Result<T, NoBlock>,
    ) -> Result<T, NoBlock> {
        let count = self.geometry.die_count();
        (0..count).find_map(|i| append(self, (log + i) % count).ok()).ok_or(NoBlock)
    }

    /// Appends a record to a log and holds its block until its index entry is there.
    pub(crate) fn append(
        &mut self,
        log: u32,
        class: Class,
        floor: u32,
        chunks: u32,
        parts: [&[u8]; 2],
        frame: Option<u64>,
    ) -> Result<ChunkAddr, NoBlock> {
        let mut out = Vec::new();
        let block = self.writers.ready(log, class, chunks, floor, &mut self.blocks, &mut out);
        let at = block.map(|block| {
            self.blocks.hold(block);
            self.writers.append(block, chunks, parts, frame, &mut out)
        });
        self.emit_programs(out);
        at
    }

    fn unstage(&mut self, mark: ring::Mark) {
        for staged in self.ring.rewind(mark) {
            self.staged_chunks -= staged.small_chunks();
            if staged.version != 0 {
                self.unstage_version(staged.namespace);
            }
            // A ticket's place keeps its hold: the caller stages it again.
            if let Some(to) = staged.to
                && !self.tickets.values().any(|ticket| ticket.at.0 == to.at)
            {
                let block = self.block_of(to.at);
                self.blocks.unhold(block);
            }
        }
    }

    /// Programs a large value ahead of its Put: `image` is the encoded record ([`crate::encode_image`]). The answer's ticket
    /// becomes usable in [`Body::Placed`] once [`Core::is_placed`].
    pub fn place(&mut self, namespace: u32, key: Key, image: Arc<AlignedBuf>) -> Result<u64, StageError> {
        self.writable()?;
        let record = RecordHeader::check(&image).expect("an encoded record");
        let chunks = self.chunks_of(record.value_len as usize);
        let value_max = self.value_bytes_max();
        if u64::from(record.value_len) > value_max {
            return Err(Error::ValueTooLarge { bytes: record.value_len.into(), max: value_max, namespace: None }.into());
        }
        let space = self.spaces.get(&namespace).ok_or(Error::UnknownNamespace(namespace))?;
        space.layout.admit(namespace, Door::Records)?;
        space.layout.check_key(&key).map_err(Error::Key)?;
        self.admit_chunks(counted(chunks))?;
        if self.writers.programming_bytes > PROGRAMMING_BYTES_MAX {
            return Err(StageError::Busy);
        }
        let id = self.take_ticket();
        let floor = self.floor(Class::Direct);
        let at = self.place_image(namespace, chunks, &image, id, floor).map_err(|NoBlock| self.no_room())?;
        self.tickets.insert(id, Ticket { namespace, key, image, record, chunks, at, done: false });
        self.ticket_chunks += counted(chunks);
        Ok(id)
    }

    /// The program of the large value that was just placed, to be carried out by the caller, if handing it to another thread would
    /// only take time: nothing else is to be done in the background, no other large value is under way.
    pub fn take_program(&mut self, ticket: u64) -> Option<(IoId, Io)> {
        let at = self.tickets.get(&ticket).filter(|_| self.tickets.len() == 1)?.at;
        let (block, chunk) = self.geometry.split(at);
        // The first program of a block may wait for the file system.
        if self.outbox.len() > 1 || chunk == 0 || !self.writers.has_one_buffer(block.0) {
            return None;
        }
        self.outbox.pop_front_if(|(_, io)| matches!(io, Io::Program { at, .. } if at.block == block))
    }

    /// Stages a Put of nothing but the large value whose program was just taken ([`Core::take_program`]), and hands out its ring
    /// write: to be carried out beside the program ([`kaml_flash::Medium::begin_with`]), then [`Core::complete_beside`]. Nothing has
    /// happened if that cannot be done now.
    ///
    /// What a power cut leaves of the two is what it leaves of a ring write behind a program, for one flush makes both durable: opening
    /// doubts frames whose pages are not there.
    pub fn stage_beside(&mut self, op: &Op<'_>) -> Option<(IoId, Io)> {
        let Body::Placed { ticket } = op.body else { panic!("only placed values are staged beside their program") };
        if self.beside.is_some() || !self.ring.takes_mapping_beside() {
            return None;
        }
        self.beside = Some(ticket);
        if self.stage(std::slice::from_ref(op)).is_err() {
            self.beside = None;
            return None;
        }
        Some(self.begin_persist().expect("the ring is idle and has room"))
    }

    /// Takes what a program and the ring write beside it came to: an error is the program's. Answers the ring write again if the program
    /// failed: it says nothing now, and must be carried out. The value gets another place, and its Put is to be staged again.
    pub fn complete_beside(
        &mut self,
        (program_id, program): (IoId, Io),
        (id, mut write): (IoId, Io),
        result: Result<Result<(), MediumError>, MediumError>,
    ) -> Option<(IoId, Io)> {
        let ticket = self.beside.take().expect("one is staged beside its program");
        let (programmed, written) = match result {
            Ok(written) => (Ok(()), Some(written)),
            Err(error) => (Err(error), None),
        };
        self.complete(Completion { id: program_id, io: program, result: programmed });
        let Some(result) = written else {
            let placed = &self.tickets[&ticket];
            self.counters.puts -= 1;
            self.counters.host_bytes -= u64::from(placed.record.value_len);
            let mut writes = self.ops.range(..id + 1);
            let Some((_, &Pending::Persist { frame })) = writes.find(|(other, _)| *other == id) else {
                unreachable!("the ring write is in flight")
            };
            drop(writes);
            self.ring.withdraw(frame, &mut write);
            return Some((id, write));
        };
        self.tickets.remove(&ticket);
        self.complete(Completion { id, io: write, result });
        None
    }

    pub(crate) fn place_image(
        &mut self,
        namespace: u32,
        chunks: u32,
        image: &Arc<AlignedBuf>,
        ticket: u64,
        floor: u32,
    ) -> Result<ChunkAddr, NoBlock> {
        self.place_image_as(Class::Direct, namespace, chunks, image, ticket, floor)
    }

    /// As [`Core::place_image`], in a block of a class of images.
    pub(crate) fn place_image_as(
        &mut self,
        class: Class,
        namespace: u32,
        chunks: u32,
        image: &Arc<AlignedBuf>,
        ticket: u64,
        floor: u32,
    ) -> Result<ChunkAddr, NoBlock> {
        let pages = (image.len() / self.geometry.page_bytes as usize) as u32;
        let whole = pages * self.geometry.chunks_per_page();
        let log_count = self.geometry.die_count();
        let Some(space) = self.spaces.get_mut(&namespace) else { return Err(NoBlock) };
        let log = space.next_log(whole, log_count, 1);
        let at = self.on_some_log(log, |core, log| {
            let mut out = Vec::new();
            let block = core.writers.ready(log, class, whole, floor, &mut core.blocks, &mut out);
            let at = block.map(|block| {
                core.blocks.hold(block);
                core.writers.append_image(block, chunks, image.clone(), ticket, &mut out)
            });
            core.emit_programs(out);
            at
        })?;
        self.counters.record_chunks += u64::from(chunks);
        self.has_written(u64::from(whole));
        Ok(at)
    }

    pub(crate) fn take_ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket - 1
    }

    /// Whether the pages of a ticket are programmed and durable.
    pub fn is_placed(&self, ticket: u64) -> bool {
        self.tickets.get(&ticket).is_some_and(|t| t.done)
    }

    /// Gives up a ticket that will not be staged.
    pub fn forget(&mut self, ticket: u64) {
        if let Some(placed) = self.tickets.remove(&ticket) {
            self.ticket_chunks -= counted(placed.chunks);
            let block = self.block_of(placed.at.0);
            self.blocks.unhold(block);
            self.collector.wedged = false; // what it kept may be all that stood in the way
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::NamespaceOptions;
    use std::ops::Range;

    /// Deletes a key and puts others.
    fn stage(core: &mut Core, keys: Range<u64>) -> Result<u64, StageError> {
        let value = [7; 20_000];
        let put = Body::Value { value: &value, crc32c: crc_fast::crc32_iscsi(&value) };
        let namespace = core.namespace("n").unwrap();
        let op = |key, body| Op { namespace, key: Key::from(key), body, condition: Condition::Always };
        let ops = keys.map(|key: u64| op(key, put));
        core.stage(&[op(0, Body::Delete)].into_iter().chain(ops).collect::<Vec<_>>())
    }

    /// Goal:   a Put that finds no block half way is counted once it is staged, and not each time it is tried.
    /// Method: a block that takes some of its records, and no other one.
    #[test]
    fn puts_are_counted_when_they_are_staged() {
        let medium = crate::small::formatted();
        let (mut core, _) = Core::open(&medium).unwrap();
        core.create_namespace("n", &NamespaceOptions::default()).unwrap();
        let durable = core.request_root(false);
        core.drive(&medium, |core| core.roots_done() >= durable).unwrap();
        let counts = |core: &Core| {
            let stats = core.stats();
            (stats.put_count, stats.delete_count, stats.host_bytes)
        };
        stage(&mut core, 1..2).unwrap();
        let (id, mut io) = core.begin_persist().unwrap();
        let result = kaml_flash::Medium::execute(&medium, &mut io);
        core.complete(Completion { id, io, result });
        assert_eq!(counts(&core), (1, 1, 20_000));
        let reserve = core.reserve_blocks();
        crate::small::take_blocks(&mut core, &medium, reserve);
        assert_eq!(stage(&mut core, 2..8), Err(StageError::Busy));
        assert_eq!(counts(&core), (1, 1, 20_000));
    }

    /// Goal:   a Put of more blocks than hosts may have is refused, when nothing will bring them, and takes nothing; shorter ones go on.
    /// Method: a batch of more than a block, where there are a few too few.
    #[test]
    fn puts_of_more_blocks_than_there_are_are_refused() {
        let medium = crate::small::formatted();
        let (mut core, _) = Core::open(&medium).unwrap();
        let namespace = core.create_namespace("n", &NamespaceOptions::default()).unwrap();
        let durable = core.request_root(false);
        core.drive(&medium, |core| core.roots_done() >= durable).unwrap();
        let left = core.collect_below();
        crate::small::take_blocks(&mut core, &medium, left);
        let put = Body::Value { value: &[7; 8], crc32c: crc_fast::crc32_iscsi(&[7; 8]) };
        let op = |key: u64| Op { namespace, key: Key::from(key), body: put, condition: Condition::Always };
        let ops: Vec<_> = (0..u64::from(core.geometry.chunks_per_block()) + 1).map(op).collect();
        let refused = (0..10).find_map(|_| match core.stage(&ops) {
            Err(StageError::Busy) => core.drive_once(&medium).map(|()| None).unwrap(),
            answer => Some(answer),
        });
        assert!(matches!(refused, Some(Err(StageError::Refused(Error::Full { .. })))), "{refused:?}");
        assert_eq!((core.blocks.free_count(), core.wanted_blocks()), (left, 0));
        core.stage(&ops[1..]).unwrap();
    }
}
