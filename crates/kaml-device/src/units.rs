//! Block namespaces: changing and finding the units that logical blocks are mapped in.
//!
//! Lives here:       writes and trims of blocks as Puts of units, the newest content of a unit, what a namespace offers.
//! Lives elsewhere:  the attributes (`layout`), Puts (`staging`), waiting and reading (the drivers in `kaml`).
//! Implements:       docs/ARCHITECTURE.md "Block namespaces".
//!
//! **Writes of less than a unit** merge with the unit's newest content, staged Puts included, in one visit to the core: so
//! units change in the order in which Puts are staged, which is the order in which they commit, and nobody holds a lock.
//! Newest content in a write buffer exists at once. Content on flash is read before, outside the core; the visit after
//! that looks whether the newest content is still the one that was read, by its place and its block's erase count, and
//! requests another read if not. Each repetition means that somebody else's write was staged, and that one is in a buffer.

use crate::command::{Body, Condition, Op, StageError};
use crate::core::Core;
use crate::error::Error;
use crate::format::record::{RING_ALIGN, record_bytes};
use crate::layout::{BlockOptions, Door, Span};
use crate::reader::{Buffered, FindError, FlashRead, Found, Reader};
use crate::ring::Staged;
use kaml_index::Key;
use std::ops::Range;

/// What a block namespace offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Logical blocks.
    pub block_count: u64,
    /// Bytes that are mapped together; writes that are multiples of it, in place and length, read nothing.
    pub unit_bytes: u32,
    /// Blocks of the longest write that is atomic wherever it begins, over a power cut and for readers. Longer ones are
    /// split.
    pub atomic_blocks: u32,
    /// Blocks in units that hold data.
    pub used_blocks: u64,
}

/// Units of one Put at most: 1 MiB at 4 KiB, so nobody waits long for the core.
const UNITS_PER_PUT_MAX: u64 = 256;
/// Units that one step of a trim deletes at most.
const UNITS_PER_TRIM: usize = 256;
/// Lines of the index that it looks at for them: some ten microseconds.
const LINES_PER_TRIM: u64 = 1024;

impl Core {
    /// What a block namespace offers.
    pub fn block_info(&self, namespace: u32) -> Result<BlockInfo, Error> {
        let space = self.known_space(namespace)?;
        space.layout.admit(namespace, Door::Blocks)?;
        let options = space.layout.blocks().expect("admitted");
        let per_unit = options.blocks_per_unit();
        // A write that begins within a unit ends within another one.
        let whole = if per_unit == 1 { self.units_per_put(&options) } else { self.units_per_put(&options) - 1 };
        Ok(BlockInfo {
            block_bytes: options.block_bytes,
            block_count: options.block_count,
            unit_bytes: options.unit_bytes,
            atomic_blocks: (whole * per_unit).max(1) as u32,
            used_blocks: (space.record_count() * per_unit).min(options.block_count),
        })
    }

    /// Units that one Put takes: at least one, or the namespace could not have been created.
    fn units_per_put(&self, options: &BlockOptions) -> u64 {
        (self.batch_bytes_max() / unit_ring_bytes(options)).min(UNITS_PER_PUT_MAX as usize) as u64
    }

    /// Refuses block namespaces that the device cannot hold.
    pub(crate) fn check_block_options(&self, options: &BlockOptions) -> Result<(), Error> {
        options.check().map_err(|why| Error::BadBlockOptions { why })?;
        let fits = u64::from(options.unit_bytes) <= self.value_bytes_max() && self.units_per_put(options) > 0;
        if fits { Ok(()) } else { Err(Error::BadBlockOptions { why: "a mapping unit does not fit the commit ring" }) }
    }

    /// The newest content of a unit, staged Puts included, and the frame that it is committed with, unless it is committed.
    fn newest_unit(&self, namespace: u32, key: &Key) -> Result<(Buffered, Option<u64>), StageError> {
        let space = self.spaces.get(&namespace).ok_or_else(|| Error::UnknownNamespace(namespace))?;
        let Some(index) = &space.index else { return Err(StageError::NeedIndex(namespace)) };
        let same = |(_, s): &(u64, &Staged)| s.namespace == namespace && s.key.key() == key;
        let staged = self.log.ring.uncommitted_in_frames().rev().find(same);
        let found = match staged.map_or_else(|| index.get(&key.into()), |(_, staged)| staged.to) {
            Some(slot) => self.read_slot(namespace, &key.into(), slot)?,
            None => Buffered::Absent,
        };
        Ok((found, staged.map(|(frame, _)| frame)))
    }
}

fn unit_ring_bytes(options: &BlockOptions) -> usize {
    record_bytes(&Key::from(0), options.unit_bytes as usize).next_multiple_of(RING_ALIGN)
}

impl Reader {
    /// The attributes of a block namespace.
    pub fn block_options(&self, namespace: u32) -> Result<BlockOptions, Error> {
        let layout = self.layout(namespace)?;
        layout.admit(namespace, Door::Blocks)?;
        Ok(layout.blocks().expect("admitted"))
    }

    /// Finds the unit that so many bytes from a block on are in, and where in it they are; nothing if they are of several.
    pub fn find_one_unit(
        &self,
        namespace: u32,
        first_block: u64,
        bytes: usize,
    ) -> Result<Option<(Span, Found)>, FindError> {
        let space = self.space(namespace)?;
        space.layout.admit(namespace, Door::Blocks)?;
        let options = space.layout.blocks().expect("admitted");
        let mut spans = options.spans(options.bytes_of_buffer(namespace, first_block, bytes)?);
        let (Some(span), None) = (spans.next(), spans.next()) else { return Ok(None) };
        let found = self.find_in(&space, namespace, &Key::from(span.unit).into())?;
        Ok(Some((span, found)))
    }

    /// Finds a unit of a block namespace; an absent one reads as zeroes.
    pub fn find_unit(&self, namespace: u32, unit: u64) -> Result<Found, FindError> {
        self.find_through(Door::Blocks, namespace, &Key::from(unit).into())
    }
}

/// A write or a trim of blocks on its way, which may take several Puts.
#[derive(Debug)]
pub struct BlockChange {
    namespace: u32,
    options: BlockOptions,
    /// The bytes that it is about, and where the next Put begins.
    range: Range<u64>,
    at: u64,
    /// Those that it is about after these, the last ones first; none of them empty.
    rest: Vec<Range<u64>>,
    /// Checksums of the units that a write fills, in order; nothing for a trim.
    whole_crcs: Option<Vec<u32>>,
    /// Contents that were read for units that are changed in part.
    known: Vec<(Place, Vec<u8>)>,
    /// Where the last requested read finds its content.
    asked: Option<Place>,
    /// The frame of the last Put so far.
    frame: Option<u64>,
    /// The frame and the bytes of the Put that the last call staged.
    last: Option<(u64, Range<u64>)>,
}

/// How far a change of blocks has come.
#[derive(Debug)]
pub enum BlockStep {
    /// All of it is staged and durable after this frame is committed; at once if there is none.
    Done(Option<u64>),
    /// A piece of it is staged, or looked at and empty; call again for the next.
    More,
    /// This must be read and given to [`BlockChange::supply`] first.
    Read(FlashRead),
}

/// A place in one life of its block: its content does not change until the block is erased. A pin would keep the block
/// from being erased instead, and changes that wait for room must not keep blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    at: u64,
    erase_count: u32,
}

/// What is known of a unit.
enum Content {
    /// With the frame of the trim that makes it so, unless that is committed.
    Absent(Option<u64>),
    Bytes(Vec<u8>),
    Unread(FlashRead, Place),
}

impl BlockChange {
    /// A write. `data` is given again to each [`BlockChange::stage`]; checksums are computed here, outside any lock.
    pub fn write(reader: &Reader, namespace: u32, first_block: u64, data: &[u8]) -> Result<BlockChange, Error> {
        let options = reader.block_options(namespace)?;
        let range = options.bytes_of_buffer(namespace, first_block, data.len())?;
        let whole = options.spans(range.clone()).filter(|span| span.in_unit.len() == options.unit_bytes as usize);
        let whole_crcs = whole.map(|span| kaml_crc::crc32c(&data[span.in_range])).collect();
        Ok(BlockChange::new(options, namespace, vec![range], Some(whole_crcs)))
    }

    /// A trim of ranges of blocks, one after the other: they read as zeroes and release their space. Units that are trimmed in part
    /// are written.
    pub fn trim(reader: &Reader, namespace: u32, ranges: &[Range<u64>]) -> Result<BlockChange, Error> {
        let options = reader.block_options(namespace)?;
        let bytes_of = |blocks: &Range<u64>| {
            let count = blocks.end.saturating_sub(blocks.start);
            let range = options.bytes_of(namespace, blocks.start, count)?;
            // What the last unit has after the last block belongs to nobody.
            let end = if count > 0 && blocks.end == options.block_count { options.unit_count() } else { 0 };
            Ok(range.start..range.end.max(end * u64::from(options.unit_bytes)))
        };
        let ranges = ranges.iter().map(bytes_of).collect::<Result<_, Error>>()?;
        Ok(BlockChange::new(options, namespace, ranges, None))
    }

    fn new(
        options: BlockOptions,
        namespace: u32,
        mut ranges: Vec<Range<u64>>,
        whole_crcs: Option<Vec<u32>>,
    ) -> BlockChange {
        ranges.retain(|range| !range.is_empty());
        ranges.reverse();
        let range = ranges.pop().unwrap_or(0..0);
        BlockChange {
            namespace,
            options,
            at: range.start,
            range,
            rest: ranges,
            whole_crcs,
            known: Vec::new(),
            asked: None,
            frame: None,
            last: None,
        }
    }

    /// Stages the next Put of it. `data` is all that is written, nothing for a trim. After [`StageError::NeedIndex`] or
    /// [`StageError::Busy`] call it again, as after `core.stage`.
    pub fn stage(&mut self, core: &mut Core, data: &[u8]) -> Result<BlockStep, StageError> {
        self.last = None;
        if self.at == self.range.end {
            match self.rest.pop() {
                None => return Ok(BlockStep::Done(self.frame)),
                Some(next) => (self.at, self.range) = (next.start, next),
            }
        }
        let from = self.at;
        let next = match self.whole_crcs.is_some() {
            true => self.stage_write(core, data)?,
            false => self.stage_trim(core)?,
        };
        if let Some(read) = next {
            return Ok(BlockStep::Read(read));
        }
        if let Some((_, bytes)) = &mut self.last {
            *bytes = from - self.range.start..self.at - self.range.start;
        }
        self.known.clear();
        let is_done = self.at == self.range.end && self.rest.is_empty();
        Ok(if is_done { BlockStep::Done(self.frame) } else { BlockStep::More })
    }

    /// Whether it is about one range of no more units than one step of a trim deletes.
    pub fn is_one_step(&self) -> bool {
        let unit_bytes = u64::from(self.options.unit_bytes);
        let units = (self.range.end - self.range.start).div_ceil(unit_bytes);
        units <= UNITS_PER_TRIM as u64 && self.rest.is_empty()
    }

    /// Takes the value of the read that `stage` requested.
    pub fn supply(&mut self, read: FlashRead, value: Vec<u8>) -> Result<(), Error> {
        if value.len() != self.options.unit_bytes as usize {
            return Err(read.corrupt("a unit of another size is in its place"));
        }
        self.known.extend(self.asked.take().map(|place| (place, value)));
        Ok(())
    }

    /// The last frame with a Put of it, so far. A change that cannot continue returns after this frame is committed, so nothing happens afterwards.
    pub fn frame(&self) -> Option<u64> {
        self.frame
    }

    /// The Put that the last `stage` staged, if it was one: its frame, and which bytes of its range, counted from the range's start,
    /// it is about. For checkers, which follow each Put.
    pub fn last_put(&self) -> Option<(u64, Range<u64>)> {
        self.last.clone()
    }

    fn staged(&mut self, frame: u64) {
        self.frame = Some(frame);
        self.last = Some((frame, 0..0));
    }

    fn stage_write(&mut self, core: &mut Core, data: &[u8]) -> Result<Option<FlashRead>, StageError> {
        let unit_bytes = u64::from(self.options.unit_bytes);
        let end = self.range.end.min((self.at / unit_bytes + core.units_per_put(&self.options)) * unit_bytes);
        let data = &data[(self.at - self.range.start) as usize..(end - self.range.start) as usize];
        let is_whole = |span: &Span| span.in_unit.len() as u64 == unit_bytes;
        if self.range.end - self.range.start == unit_bytes && self.range.start.is_multiple_of(unit_bytes) {
            // One whole unit, as most writes are.
            let crc32c = self.whole_crcs.as_deref().expect("a write")[0];
            let op = self.op(self.at / unit_bytes, Body::Value { value: data, crc32c });
            let frame = core.stage_units(&[op])?;
            self.staged(frame);
            self.at = end;
            return Ok(None);
        }
        let spans: Vec<Span> = self.options.spans(self.at..end).collect();
        let mut merged = Vec::new();
        for span in spans.iter().filter(|span| !is_whole(span)) {
            let mut bytes = match self.content(core, span.unit)? {
                Content::Absent(_) => vec![0; unit_bytes as usize], // this Put commits after the trim
                Content::Bytes(bytes) => bytes,
                Content::Unread(read, place) => return Ok(Some(self.ask(read, place))),
            };
            bytes[span.in_unit.clone()].copy_from_slice(&data[span.in_range.clone()]);
            merged.push(bytes);
        }
        // Whole units before this Put: those of the Puts before it.
        let crcs = self.whole_crcs.as_deref().expect("a write");
        let before = (self.at / unit_bytes).saturating_sub(self.range.start.div_ceil(unit_bytes));
        let mut crcs = crcs[before as usize..].iter();
        let mut merged_next = merged.iter();
        let body = |span: &Span| match is_whole(span) {
            true => (&data[span.in_range.clone()], *crcs.next().expect("one for each whole unit")),
            false => {
                let bytes = merged_next.next().expect("one for each other unit").as_slice();
                (bytes, kaml_crc::crc32c(bytes))
            }
        };
        let bodies: Vec<(&[u8], u32)> = spans.iter().map(body).collect();
        let op = |(span, (value, crc32c)): (&Span, (_, u32))| self.op(span.unit, Body::Value { value, crc32c });
        let ops: Vec<Op<'_>> = spans.iter().zip(bodies).map(op).collect();
        let frame = core.stage_units(&ops)?;
        self.staged(frame);
        self.at = end;
        Ok(None)
    }

    fn stage_trim(&mut self, core: &mut Core) -> Result<Option<FlashRead>, StageError> {
        let unit_bytes = u64::from(self.options.unit_bytes);
        let span = self.options.spans(self.at..self.range.end).next().expect("not at its end");
        if span.in_unit.len() as u64 == unit_bytes {
            return self.stage_deletes(core).map(|()| None);
        }
        match self.content(core, span.unit)? {
            // Nothing is left to do, and it is done when the trim that did it is committed.
            Content::Absent(frame) => self.frame = self.frame.max(frame),
            Content::Unread(read, place) => return Ok(Some(self.ask(read, place))),
            Content::Bytes(mut bytes) => {
                bytes[span.in_unit.clone()].fill(0);
                let body = Body::Value { value: &bytes, crc32c: kaml_crc::crc32c(&bytes) };
                let frame = core.stage_units(&[self.op(span.unit, body)])?;
                self.staged(frame);
            }
        }
        self.at += span.in_unit.len() as u64;
        Ok(None)
    }

    /// Deletes the next units that hold data. What others stage meanwhile comes after the trim.
    fn stage_deletes(&mut self, core: &mut Core) -> Result<(), StageError> {
        let unit_bytes = u64::from(self.options.unit_bytes);
        let units = self.at / unit_bytes..self.range.end / unit_bytes;
        let space = core.spaces.get(&self.namespace).ok_or_else(|| Error::UnknownNamespace(self.namespace))?;
        let Some(index) = &space.index else { return Err(StageError::NeedIndex(self.namespace)) };
        let found = index.some_numbers(units, UNITS_PER_TRIM, LINES_PER_TRIM);
        let (found, next) = found.expect("block namespaces have an index of numbers");
        let ops: Vec<Op<'_>> = found.iter().map(|unit| self.op(*unit, Body::Delete)).collect();
        if !ops.is_empty() {
            let frame = core.stage_units(&ops)?;
            self.staged(frame);
        }
        self.at = next * unit_bytes;
        Ok(())
    }

    fn op<'a>(&self, unit: u64, body: Body<'a>) -> Op<'a> {
        Op {
            namespace: self.namespace,
            key: Key::from(unit).into(),
            body,
            condition: Condition::Always,
            expires: Default::default(),
        }
    }

    fn ask(&mut self, read: FlashRead, place: Place) -> FlashRead {
        self.asked = Some(place);
        read
    }

    /// The newest content of a unit, or how to get it.
    fn content(&self, core: &Core, unit: u64) -> Result<Content, StageError> {
        let (newest, frame) = core.newest_unit(self.namespace, &Key::from(unit))?;
        Ok(match newest {
            Buffered::Absent => Content::Absent(frame),
            Buffered::Value(bytes) => Content::Bytes(bytes),
            Buffered::Packed(packed) => Content::Bytes(packed.unpack()?),
            Buffered::Programmed(read) => {
                let erase_count = core.log.blocks.get(core.log.block_of(read.at.0)).erase_count;
                let place = Place { at: read.at.0, erase_count };
                let known = self.known.iter().find(|(known, _)| *known == place);
                known.map_or_else(|| Content::Unread(read, place), |(_, bytes)| Content::Bytes(bytes.clone()))
            }
        })
    }
}
