//! Phase 1 of an atomic Put: checking its records, finding room, placing them in write buffers and in the staging frame.
//!
//! Lives here:       what a Put is made of and needs, conditions, places of small and large records.
//! Lives elsewhere:  whether there is room (`space`), the frame's way to the ring (`ring`), commit and everything after it (`core`), blocks being filled
//!                   (`writers`).
//! Implements:       paper:KAML IV.D phase 1; docs/ARCHITECTURE.md "The life of a Put".

use crate::command::{Body, Condition, Op, StageError, refused_by};
use crate::compression::unpacked_bytes;
use crate::core::{Core, code};
use crate::error::Error;
use crate::format::crc32c_append;
use crate::format::record::DIRECT_BYTES;
use crate::format::record::{
    EXPIRY_BYTES, Form, LARGE_NUMBER_BYTES, MAPPING_BYTES, RING_ALIGN, Record, RecordHeader, RecordKind, record_bytes,
    suffix, suffix_bytes, trailer,
};
use crate::format::version::VersionStamp;
use crate::index::IndexWriter;
use crate::layout::{Door, Layout};
use crate::lifetime::Class;
use crate::namespace::Namespace;
use crate::ring::{self, Staged, sequences_ahead_max};
use crate::space::Purpose;
use crate::writers::NoBlock;
use kaml_flash::MediumError;
use kaml_index::{FullKey, Key, Slot};
use std::collections::HashMap;

/// Bytes of a value and of what is stored after it.
fn stored_bytes(space: &Namespace, op: &Op<'_>, value: &[u8]) -> usize {
    // Whether it expires does not depend on the time.
    let expiry_bytes = if space.expires_at(op.expires, || 0) == 0 { 0 } else { EXPIRY_BYTES };
    value.len() + expiry_bytes + suffix_bytes(&op.key)
}

/// Conditions of a Put up to which each looks through the uncommitted records by itself; more would take time that grows with both.
const CONDITIONS_LOOKED_UP: usize = 8;

/// Of keys with uncommitted records: the frame of the newest one, and whether the key exists after it.
type Uncommitted = HashMap<(u32, Key), (u64, bool)>;

impl Core {
    /// Phase 1 of an atomic Put: all of `ops` or none. Returns the frame that carries it; the Put is durable and
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
        self.admit_to_ring(bytes, ops.len())?;
        if chunks > self.log.geometry.chunks_per_block().into() {
            let (sum, longest) = self.chunks_to_place(ops);
            self.admit_blocks(sum, longest)?;
        }
        let mark = self.log.ring.mark();
        for op in ops {
            if self.stage_one(op).is_err() {
                self.unstage(mark);
                return Err(self.no_block_for(Purpose::Put));
            }
        }
        for op in ops {
            self.count(op);
            if let Body::Placed { ticket } = op.body {
                self.tickets.placed.remove(&ticket);
            }
        }
        self.log.ring.end_put();
        Ok(self.log.ring.staging_number())
    }

    /// Everything that can be wrong with a Put and does not change by waiting.
    fn check(&self, door: Door, ops: &[Op<'_>]) -> Result<(), StageError> {
        self.writable()?;
        if ops.is_empty() {
            return Err(Error::EmptyBatch.into());
        }
        let value_max = self.value_bytes_max();
        let condition_count = ops.iter().filter(|op| op.condition != Condition::Always).count();
        let has_many = condition_count > CONDITIONS_LOOKED_UP;
        let uncommitted = if has_many { self.uncommitted_keys() } else { None };
        for op in ops {
            let space = self.user_space(op.namespace)?;
            space.layout.admit(op.namespace, door)?;
            space.layout.check_full_key(&op.key).map_err(Error::Key)?;
            space.shared.note_use();
            space.check_expiry(op.namespace, op.expires)?;
            match space.layout {
                Layout::Versions(_) => {
                    self.check_version(op)?;
                    continue;
                }
                Layout::Records(_) | Layout::Blocks(_) => {}
            }
            match op.body {
                Body::Value { value, .. } | Body::Packed { value, .. }
                    if stored_bytes(space, op, value) as u64 > value_max =>
                {
                    let bytes = stored_bytes(space, op, value) as u64;
                    return Err(Error::ValueTooLarge { bytes, max: value_max, namespace: None }.into());
                }
                Body::Placed { ticket } => {
                    let placed = self.tickets.placed.get(&ticket).expect("tickets come from `place`");
                    assert!(placed.done);
                    assert!(placed.namespace == op.namespace && placed.key == *op.key.key());
                }
                Body::Value { value, .. } => {
                    assert!(space.layout.takes_value_of(value.len()), "units are written whole")
                }
                Body::Packed { .. } => assert!(space.layout.blocks().is_none(), "units are not compressed"),
                Body::Delete => {}
            }
            let Some(index) = &space.index else { return Err(StageError::NeedIndex(op.namespace)) };
            if op.condition != Condition::Always {
                self.check_condition(op, space, index, uncommitted.as_ref())?;
            }
        }
        Ok(())
    }

    /// Whether so many more sequences can be used before a root reports those that were: opening after a crash begins after them.
    pub(crate) fn has_sequences(&self, count: usize) -> bool {
        self.sequences_ahead() + count as u64 <= sequences_ahead_max(&self.log.geometry)
    }

    /// Whether enough of them were used for a root.
    pub(crate) fn sequences_are_short(&self) -> bool {
        self.sequences_ahead() > sequences_ahead_max(&self.log.geometry) / 2
    }

    fn sequences_ahead(&self) -> u64 {
        self.log.sequence - self.root.next_sequence
    }

    /// For each key with uncommitted records: the frame of the newest one, and whether the key exists after it. Nothing if some are about
    /// ranges.
    fn uncommitted_keys(&self) -> Option<Uncommitted> {
        let records = self.log.ring.uncommitted_in_frames();
        let of = |(frame, staged): (u64, &Staged)| {
            let key = (staged.namespace, *staged.key.key());
            staged.range.is_none().then_some((key, (frame, self.exists_after(staged))))
        };
        records.map(of).collect()
    }

    fn check_condition(
        &self,
        op: &Op<'_>,
        space: &Namespace,
        index: &IndexWriter,
        uncommitted: Option<&Uncommitted>,
    ) -> Result<(), StageError> {
        let same = |(_, s): &(u64, &Staged)| s.is_about(op.namespace, &op.key);
        let staged = match uncommitted {
            Some(keys) => keys.get(&(op.namespace, *op.key.key())).copied(),
            None => {
                let newest = self.log.ring.uncommitted_in_frames().rev().find(same);
                newest.map(|(frame, staged)| (frame, self.exists_after(staged)))
            }
        };
        let exists = || index.get(&op.key).is_some() && !space.is_due(op.key.key(), || self.clock.now_ms());
        let present = staged.map_or_else(exists, |(_, present)| present);
        match (op.condition, present) {
            (Condition::IfAbsent, true) | (Condition::IfPresent, false) => {
                let conflict = Error::Conflict { namespace: op.namespace, key: op.key.to_buf(), present };
                Err(refused_by(staged.map(|(frame, _)| frame), conflict))
            }
            (Condition::UnchangedSince(_), _) => Err(Error::KeepsNoVersions(op.namespace).into()),
            (Condition::Always, _) | (Condition::IfAbsent, false) | (Condition::IfPresent, true) => Ok(()),
        }
    }

    /// Chunks of a Put's records that are placed as it is staged, and of the longest of these.
    fn chunks_to_place(&self, ops: &[Op<'_>]) -> (u64, u32) {
        let placed = ops.iter().filter_map(|op| {
            let space = &self.spaces[&op.namespace];
            match (op.body, space.layout) {
                (Body::Value { value, .. } | Body::Packed { value, .. }, Layout::Records(_) | Layout::Blocks(_)) => {
                    Some(self.log.chunks_of(record_bytes(op.key.key(), stored_bytes(space, op, value))))
                }
                (Body::Value { .. } | Body::Packed { .. }, Layout::Versions(_))
                | (Body::Placed { .. } | Body::Delete, _) => None,
            }
        });
        placed.fold((0, 0), |(sum, longest), chunks| (sum + u64::from(chunks), longest.max(chunks)))
    }

    /// Whether there is room for a Put; returns its ring bytes, and the chunks of its values.
    fn admit(&self, ops: &[Op<'_>]) -> Result<(usize, u64), StageError> {
        let mut ring_bytes = 0;
        let mut chunks = 0u64;
        let mut tombstones = 0;
        let mut is_overfull = false;
        for op in ops {
            let space = &self.spaces[&op.namespace];
            let payload = match op.body {
                Body::Value { value, .. } | Body::Packed { value, .. } => {
                    let bytes = stored_bytes(space, op, value);
                    chunks += u64::from(self.log.chunks_of(record_bytes(op.key.key(), bytes)));
                    bytes
                }
                Body::Placed { .. } if space.versioned.is_some() => {
                    chunks += 1; // of the version, in a segment
                    RecordHeader::BYTES_MAX + MAPPING_BYTES + LARGE_NUMBER_BYTES + RING_ALIGN
                }
                Body::Placed { .. } => MAPPING_BYTES + EXPIRY_BYTES + suffix_bytes(&op.key),
                Body::Delete => suffix_bytes(&op.key),
            };
            let bytes = match space.versioned {
                // Deletes are versions too, with room of their own.
                Some(_) => {
                    tombstones += u64::from(matches!(op.body, Body::Delete));
                    is_overfull |= self.buffer_is_overfull(op.namespace);
                    Form::Long.header_bytes(op.key.key()) + VersionStamp::BYTES + payload
                }
                None if matches!(op.body, Body::Placed { .. }) => Form::Long.header_bytes(op.key.key()) + payload,
                None => record_bytes(op.key.key(), payload),
            };
            ring_bytes += bytes.next_multiple_of(RING_ALIGN);
        }
        let max = self.log.ring.payload_bytes_max();
        if ring_bytes > max {
            let direct_bytes = DIRECT_BYTES as u64;
            return Err(Error::BatchTooLarge { bytes: ring_bytes, max, direct_bytes }.into());
        }
        let purpose = match (chunks, tombstones) {
            (0, 0) => Purpose::Delete,
            // What page buffers take without sealing a row needs no page now.
            (0, _) if self.buffers_take(ops) => Purpose::Delete,
            (0, _) => Purpose::Tombstone,
            _ if !self.fits(chunks + tombstones) && self.are_overwrites(ops) => Purpose::Overwrite,
            _ => Purpose::Put,
        };
        self.admit_data(purpose, chunks + tombstones, is_overfull)?;
        Ok((ring_bytes, chunks))
    }

    /// Some programs or erases wait for space below.
    pub fn no_space_below(&self) -> Option<MediumError> {
        let waiting = |what: &str| MediumError::NoSpace { what: what.to_owned() };
        (!self.log.queue.retry.is_empty()).then(|| waiting("page programs wait until there is space"))
    }

    fn stage_one(&mut self, op: &Op<'_>) -> Result<(), NoBlock> {
        self.log.sequence += 1;
        let space = &self.spaces[&op.namespace];
        let indexed = match &space.layout {
            Layout::Versions(_) => {
                if let Body::Placed { ticket } = op.body {
                    self.stage_large_value(ticket);
                }
                self.stage_version(op);
                return Ok(());
            }
            layout @ (Layout::Records(_) | Layout::Blocks(_)) => layout.indexed(op.key),
        };
        let mut expires = space.expires_at(op.expires, || self.clock.now_ms());
        let mut record = Record {
            namespace: op.namespace,
            key: *op.key.key(),
            kind: RecordKind::Tombstone,
            value_len: 0,
            value_crc: 0,
            sequence: self.log.sequence,
            packed: false,
            form: Form::Long,
        };
        // What the ring or the pages have in addition to header and value: the time of expiry, the suffix of a long key, the place of a large value.
        let mut extra: Vec<u8>;
        let header;
        let (payload, to): ([&[u8]; 3], Option<Slot>) = match op.body {
            Body::Delete => {
                expires = 0;
                // The index may do without the bytes of a long key; a reader of changes needs them.
                extra = suffix(&op.key);
                record.value_len = extra.len() as u32;
                record.form = Form::of(&record.key, extra.len());
                header = RecordHeader::encode(&record);
                ([&extra, &[], &[]], None)
            }
            Body::Value { value, crc32c } | Body::Packed { value, crc32c } => {
                record.packed = matches!(op.body, Body::Packed { .. });
                extra = trailer(expires, &op.key);
                record.kind = if expires == 0 { RecordKind::Value } else { RecordKind::Expiring };
                record.value_len = (value.len() + extra.len()) as u32;
                record.form = Form::of(&record.key, value.len() + extra.len());
                record.value_crc = if extra.is_empty() { crc32c } else { crc32c_append(crc32c, &extra) };
                header = RecordHeader::encode(&record);
                let at = self.place_record(&record, &indexed, [&header, value, &extra])?;
                ([&[], value, &extra], Some(at))
            }
            Body::Placed { ticket } => {
                let placed = &self.tickets.placed[&ticket];
                let sequence = suffix_bytes(&indexed) as u64;
                expires = placed.expires;
                record = Record { kind: placed.record.kind.mapping(), sequence, form: Form::Long, ..placed.record };
                header = RecordHeader::encode(&record);
                extra = ring::mapping_payload(placed.at).to_vec();
                extra.extend_from_slice(&trailer(expires, &indexed));
                ([&extra, &[], &[]], Some(Slot { at: placed.at.0, len: code(placed.chunks) }))
            }
        };
        let is_mapping = record.kind.is_mapping();
        let staged = Staged::new(op.namespace, &indexed, to, is_mapping).expiring(expires);
        self.space.staged_chunks += staged.small_chunks();
        self.log.ring.stage(&header, payload, staged);
        Ok(())
    }

    /// Appends the mapping of a version's large value; the version follows.
    fn stage_large_value(&mut self, ticket: u64) {
        let placed = &self.tickets.placed[&ticket];
        let record = Record { kind: placed.record.kind.mapping(), sequence: 0, ..placed.record };
        let to = Some(Slot { at: placed.at.0, len: code(placed.chunks) });
        let payload = ring::mapping_payload(placed.at);
        let staged = Staged::new(placed.namespace, &placed.key.into(), to, true);
        self.log.ring.stage(&RecordHeader::encode(&record), [&payload, &[], &[]], staged);
    }

    /// Counts a record that is staged, now that the others of its Put are, too.
    fn count(&mut self, op: &Op<'_>) {
        let value_bytes = match op.body {
            Body::Delete => return self.log.counters.deletes += 1,
            Body::Value { value, .. } => value.len() as u64,
            Body::Packed { value, .. } => unpacked_bytes(value).unwrap_or(0),
            Body::Placed { ticket } => self.tickets.placed[&ticket].value_bytes,
        };
        self.log.counters.puts += 1;
        self.log.counters.host_bytes += value_bytes;
    }

    /// Packs a record of a host into a page of one of its namespace's logs, and holds the block for it.
    fn place_record(&mut self, record: &Record, key: &FullKey<'_>, parts: [&[u8]; 3]) -> Result<Slot, NoBlock> {
        let chunks = self.log.chunks_of(record.page_bytes());
        let turn = u64::from(self.log.geometry.chunks_per_page()) * 64;
        let log_count = self.log.geometry.die_count();
        let class = self.class_of_put(record.namespace, key);
        let space = self.spaces.get_mut(&record.namespace).expect("checked");
        let log = space.next_log(chunks, log_count, turn);
        let frame = Some(self.log.ring.staging_number());
        let floor = self.floor(Purpose::Put);
        let at = self.log.append(log, class, floor, chunks, parts, frame)?;
        self.log.blocks.note_written(self.log.block_of(at.0), record.sequence);
        self.log.counters.record_chunks += u64::from(chunks);
        self.space.pace.has_written(u64::from(chunks));
        Ok(Slot { at: at.0, len: code(chunks) })
    }

    /// The record that a put replaces shows how long the new one will live. Its block's mean has to do: its own time
    /// is in flash. One that is still uncommitted does not count, the one before it is young as well.
    fn class_of_put(&self, namespace: u32, key: &FullKey<'_>) -> Class {
        let lifetimes = &self.log.blocks.lifetimes;
        if !lifetimes.tells_puts_apart() {
            return lifetimes.of_put(None);
        }
        let index = self.spaces[&namespace].index.as_ref().expect("checked");
        lifetimes.of_put(index.get(key).map(|old| self.log.blocks.written_at(self.log.block_of(old.at))))
    }

    fn unstage(&mut self, mark: ring::Mark) {
        for staged in self.log.ring.rewind(mark) {
            self.space.staged_chunks -= staged.small_chunks();
            if staged.version != 0 {
                self.unstage_version(staged.namespace);
            }
            // A ticket's place keeps its hold: the caller stages it again.
            if let Some(to) = staged.to
                && !self.tickets.placed.values().any(|ticket| ticket.at.0 == to.at)
            {
                let block = self.log.block_of(to.at);
                self.log.blocks.unhold(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::NamespaceOptions;
    use kaml_flash::Completion;
    use std::ops::Range;

    /// Deletes a key and puts others.
    fn stage(core: &mut Core, keys: Range<u64>) -> Result<u64, StageError> {
        let value = [7; 20_000];
        let put = Body::Value { value: &value, crc32c: kaml_crc::crc32c(&value) };
        let namespace = core.namespace("n").unwrap();
        let op = |key, body| Op {
            namespace,
            key: Key::from(key).into(),
            body,
            condition: Condition::Always,
            expires: Default::default(),
        };
        let ops = keys.map(|key: u64| op(key, put));
        core.stage(&[op(0, Body::Delete)].into_iter().chain(ops).collect::<Vec<_>>())
    }

    /// Goal:   a Put that finds no block half way is counted after it is staged, and not each time it is tried.
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

    /// Goal:   a Put of more blocks than hosts may have is refused, when nothing will bring them, and takes nothing; shorter ones continue.
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
        let put = Body::Value { value: &[7; 8], crc32c: kaml_crc::crc32c(&[7; 8]) };
        let op = |key: u64| Op {
            namespace,
            key: Key::from(key).into(),
            body: put,
            condition: Condition::Always,
            expires: Default::default(),
        };
        let ops: Vec<_> = (0..u64::from(core.log.geometry.chunks_per_block()) + 1).map(op).collect();
        let refused = (0..10).find_map(|_| match core.stage(&ops) {
            Err(StageError::Busy) => core.drive_once(&medium).map(|()| None).unwrap(),
            answer => Some(answer),
        });
        assert!(matches!(refused, Some(Err(StageError::Refused(Error::Full { .. })))), "{refused:?}");
        assert_eq!((core.log.blocks.free_count(), core.wanted_blocks()), (left, 0));
        core.stage(&ops[1..]).unwrap();
    }
}
