//! Commands on the logical blocks of block namespaces.
//!
//! Lives here:       the commands of [`Device`] on blocks, reading units and putting them together.
//! Lives elsewhere:  many of them in flight (`queue::blocks`), what a write does (`kaml_device::BlockChange`).
//!
//! A read of several units looks all of them up in one visit to the core, so it sees each atomic write whole or not at
//! all; a read of one unit never enters the core. Units that follow each other on flash are read at once.

use crate::driver::{By, Shared};
use crate::sync::Instant;
use crate::{Device, Error, Key, NamespaceId};
use kaml_device::{
    BlockChange, BlockInfo, BlockStep, Buffered, Error as CommandError, FindError, FlashRead, Found, FoundValue, Span,
};
use kaml_flash::{ChunkAddr, Geometry};
use std::ops::Range;

/// Bytes of flash that one read takes at most, unless a unit is longer.
const RUN_BYTES_MAX: usize = 256 << 10;

impl Device {
    /// What a block namespace offers.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::HoldsRecords`] if it holds records.
    pub fn block_info(&self, namespace: NamespaceId) -> Result<BlockInfo, Error> {
        let core = self.shared().lock();
        core.block_info(namespace).map_err(|error| self.shared().refused_under(core, error))
    }

    /// Reads as many blocks as `into` has room for, which must be whole ones. Blocks never written or trimmed are zeroes.
    /// It sees each atomic write whole or not at all.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::HoldsRecords`] if it holds records.
    /// - [`Error::BlocksOutOfRange`], [`Error::PartialBlock`] if it has no such blocks.
    /// - [`Error::Corrupt`] if the record is damaged; [`Error::ReadFailed`] if the system fails to read.
    pub fn block_read(&self, namespace: NamespaceId, first_block: u64, into: &mut [u8]) -> Result<(), Error> {
        let (start, shared) = (Instant::now(), self.shared());
        for run in shared.find_blocks(namespace, first_block, into)? {
            shared.read_with(run.at, run.bytes, |bytes| run.copy(bytes, into))?;
        }
        shared.get_latency.record_since(start);
        Ok(())
    }

    /// Writes whole blocks; durable when it returns. Up to [`BlockInfo::atomic_blocks`] they are written all or none. A longer
    /// write is split, and a failure or a power cut may leave some of its parts.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::HoldsRecords`] if it holds records.
    /// - [`Error::BlocksOutOfRange`], [`Error::PartialBlock`] if it has no such blocks.
    /// - [`Error::Full`], [`Error::NoSpace`] if there is no room; [`Error::ReadOnly`], [`Error::Stopped`] if the device takes
    ///   no changes.
    pub fn block_write(&self, namespace: NamespaceId, first_block: u64, data: &[u8]) -> Result<(), Error> {
        let change = BlockChange::write(&self.shared().reader, namespace, first_block, data);
        let change = change.map_err(|error| self.shared().refused(error))?;
        self.shared().change_blocks(change, data)
    }

    /// Forgets what blocks hold and releases the space, also on a full device; durable when it returns. They read as
    /// zeroes. Units that are trimmed in part are written, which takes space. Not atomic.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::HoldsRecords`] if it holds records.
    /// - [`Error::BlocksOutOfRange`], [`Error::PartialBlock`] if it has no such blocks.
    /// - [`Error::Full`], [`Error::NoSpace`] if there is no room; [`Error::ReadOnly`], [`Error::Stopped`] if the device takes
    ///   no changes.
    pub fn block_trim(&self, namespace: NamespaceId, first_block: u64, count: u64) -> Result<(), Error> {
        let blocks = first_block..first_block.saturating_add(count);
        let change = BlockChange::trim(&self.shared().reader, namespace, std::slice::from_ref(&blocks));
        let change = change.map_err(|error| self.shared().refused(error))?;
        self.shared().change_blocks(change, &[])
    }

    /// Makes blocks read as zeroes: as [`Device::block_trim`], which promises that too.
    ///
    /// # Errors
    /// As [`Device::block_trim`].
    pub fn block_write_zeroes(&self, namespace: NamespaceId, first_block: u64, count: u64) -> Result<(), Error> {
        self.block_trim(namespace, first_block, count)
    }
}

impl Shared {
    /// Executes a change of blocks and waits until it is durable.
    fn change_blocks(&self, mut change: BlockChange, data: &[u8]) -> Result<(), Error> {
        let start = Instant::now();
        let staged = self.stage_change(&mut change, data);
        let done = change.frame().map_or(Ok(()), |frame| self.wait_committed(self.lock(), frame));
        self.put_latency.record_since(start);
        staged.and(done)
    }

    /// Writes whole blocks without waiting until that is durable; returns the frame that must be committed for that, if one must.
    pub(crate) fn submit_blocks(
        &self,
        namespace: NamespaceId,
        first_block: u64,
        data: &[u8],
    ) -> Result<Option<u64>, Error> {
        let change = BlockChange::write(&self.reader, namespace, first_block, data);
        let mut change = change.map_err(|error| self.refused(error))?;
        self.stage_change(&mut change, data)?;
        Ok(change.frame())
    }

    fn stage_change(&self, change: &mut BlockChange, data: &[u8]) -> Result<(), Error> {
        loop {
            let (core, step) = self.visit(By::Store, |core| change.stage(core, data))?;
            drop(core);
            match step {
                BlockStep::Done(_) => return Ok(()),
                BlockStep::More => {}
                BlockStep::Read(read) => {
                    let mut value = Vec::new();
                    self.read(&read, &mut value)?;
                    change.supply(read, value)?;
                }
            }
        }
    }

    /// Fills what needs no read of flash, and returns the reads that the remainder needs.
    pub(crate) fn find_blocks(
        &self,
        namespace: NamespaceId,
        first_block: u64,
        into: &mut [u8],
    ) -> Result<Vec<Run>, Error> {
        let options = self.reader.block_options(namespace).map_err(|error| self.refused(error))?;
        let bytes = options.bytes_of_buffer(namespace, first_block, into.len())?;
        let spans: Vec<Span> = options.spans(bytes).collect();
        let mut runs = Vec::new();
        if let [span] = spans.as_slice() {
            let found = self.find_unit(namespace, span.unit)?;
            take_unit(found, span.clone(), into, &self.geometry, &mut runs);
            return Ok(runs);
        }
        let core = self.load_index(self.lock(), namespace)?;
        for span in spans {
            let found = match core.read_buffered(namespace, Key::from(span.unit)) {
                Ok(found) => found,
                Err(FindError::Refused(error)) => return Err(self.refused_under(core, error)),
                Err(FindError::NeedIndex) => unreachable!("loaded under this lock"),
            };
            take_unit(found, span, into, &self.geometry, &mut runs);
        }
        Ok(runs)
    }

    /// As [`Shared::find_blocks`], for blocks of one unit; nothing if they are of several.
    pub(crate) fn find_one_unit(
        &self,
        namespace: NamespaceId,
        first_block: u64,
        bytes: usize,
    ) -> Result<Option<OneUnit>, Error> {
        let attempt = || self.reader.find_one_unit(namespace, first_block, bytes);
        let Some((span, found)) = self.look(namespace, attempt)? else { return Ok(None) };
        let found = match found {
            Found::Flash(read) => Buffered::Programmed(read),
            Found::Absent => Buffered::Absent,
            Found::Buffered => self.find_unit(namespace, span.unit)?,
        };
        Ok(Some(match found {
            Buffered::Absent => OneUnit::Here(vec![0; bytes]),
            Buffered::Value(unit) => OneUnit::Here(unit[span.in_unit].to_vec()),
            Buffered::Packed(packed) => OneUnit::Here(packed.unpack()?[span.in_unit].to_vec()),
            Buffered::Programmed(read) => OneUnit::Read(UnitRead { read, in_unit: span.in_unit }),
        }))
    }

    fn find_unit(&self, namespace: NamespaceId, unit: u64) -> Result<Buffered, Error> {
        let key = Key::from(unit);
        self.look(namespace, || {
            Ok(match self.reader.find_unit(namespace, unit) {
                Ok(Found::Absent) => Buffered::Absent,
                Ok(Found::Flash(read)) => Buffered::Programmed(read),
                Ok(Found::Buffered) => self.lock().read_buffered(namespace, key)?,
                Err(FindError::NeedIndex) => self.find_by_image(namespace, &key.into()).ok_or(FindError::NeedIndex)?,
                Err(refused) => return Err(refused),
            })
        })
    }
}

/// Takes what was found of a unit into the answer, or a read into the last run or a new one.
fn take_unit(found: Buffered, span: Span, into: &mut [u8], geometry: &Geometry, runs: &mut Vec<Run>) {
    match found {
        Buffered::Absent => into[span.in_range].fill(0),
        Buffered::Value(bytes) => into[span.in_range].copy_from_slice(&bytes[span.in_unit]),
        Buffered::Packed(_) => unreachable!("units are not compressed"),
        Buffered::Programmed(read) => {
            let part = Part { start: 0, read, in_unit: span.in_unit, into: span.in_range };
            match runs.last_mut().filter(|run| run.is_followed_by(&part, geometry)) {
                Some(run) => run.push(part),
                None => runs.push(Run { at: part.read.at, bytes: part.read.bytes, parts: vec![part] }),
            }
        }
    }
}

/// Blocks of one unit.
pub(crate) enum OneUnit {
    /// They need no read of flash.
    Here(Vec<u8>),
    /// They are a part of what is read.
    Read(UnitRead),
}

/// A read of one unit, of which some blocks are needed. Its block is pinned until it is dropped.
pub(crate) struct UnitRead {
    pub(crate) read: FlashRead,
    in_unit: Range<usize>,
}

impl UnitRead {
    /// Where the blocks lie in the bytes that were read, if they are the unit.
    pub(crate) fn blocks(&self, bytes: &[u8]) -> Result<Range<usize>, CommandError> {
        let FoundValue::In(value) = self.read.value(bytes)? else { return Err(other_size(&self.read)) };
        let blocks = value.start + self.in_unit.start..value.start + self.in_unit.end;
        if blocks.end <= value.end { Ok(blocks) } else { Err(other_size(&self.read)) }
    }
}

fn other_size(read: &FlashRead) -> CommandError {
    read.corrupt("a unit of another size is in its place")
}

/// A part of a read that one unit answers.
struct Part {
    /// Where the unit is in the bytes of its run.
    start: usize,
    read: FlashRead,
    in_unit: Range<usize>,
    into: Range<usize>,
}

/// Units after each other on flash: one read gets them. Their blocks are pinned until it is dropped.
pub(crate) struct Run {
    pub(crate) at: ChunkAddr,
    pub(crate) bytes: usize,
    parts: Vec<Part>,
}

impl Run {
    /// Whether a unit follows these directly, in the same erase block.
    fn is_followed_by(&self, next: &Part, geometry: &Geometry) -> bool {
        let (block, start) = geometry.split(self.at);
        let end = start + self.bytes as u32 / geometry.chunk_bytes;
        geometry.split(next.read.at) == (block, end) && self.bytes + next.read.bytes <= RUN_BYTES_MAX
    }

    fn push(&mut self, part: Part) {
        let start = self.bytes;
        self.bytes += part.read.bytes;
        self.parts.push(Part { start, ..part });
    }

    /// Copies the blocks out of the bytes that were read, if they are the units.
    pub(crate) fn copy(&self, bytes: &[u8], into: &mut [u8]) -> Result<(), CommandError> {
        for part in &self.parts {
            let record = &bytes[part.start..part.start + part.read.bytes];
            let found = part.read.value(record)?;
            let value = found.of(record);
            let blocks = value.get(part.in_unit.clone()).ok_or_else(|| other_size(&part.read))?;
            into[part.into.clone()].copy_from_slice(blocks);
        }
        Ok(())
    }
}
