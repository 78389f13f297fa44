//! One operation on a file, step by step: what it needs from the kernel next, and what its answer means.
//!
//! Lives here:       the steps of each operation, and how failures are named.
//! Lives elsewhere:  the system calls, made one at a time (`file`) or many in flight (`uring`).
//! May be called by: `file` and `uring`.
//!
//! ```text
//!  Read      ── read ─▶ trimmed
//!  ReadOob   ── from the image, or read ─▶ trimmed
//!  Program   ── write data ─▶ [turn ▶ write OOB, if urgent and not left to the barrier, or the block is complete]
//!  Erase     ── turn ▶ punch a hole, if released ─▶ write an empty OOB area, if not punched
//!  Persist   ── write (DSYNC), or to the page cache alone
//!   with barrier ── write or copy ─▶ for each urgent program whose OOB is in RAM: turn ▶ write OOB ─▶ sync
//!  WriteRoot ── write the mirror ─▶ write ─▶ sync; where there is no mirror: write (DSYNC)
//!  Flush     ── for each block with OOB in RAM: turn ▶ write OOB ─▶ sync
//!  Resize    ── `resize`
//! ```
//! With `Durability::Process` the syncs are omitted.

use crate::blocks::{OobTurn, block_failure};
use crate::file::Media;
use crate::resize::{ResizeStep, Resizing};
use crate::{AlignedBuf, BlockIndex, Durability, Io, MediumError, sys};
use rustix::io::Errno;
use std::sync::Arc;

/// Which buffer a transfer uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The one in the operation.
    Caller,
    /// The plan's own.
    Scratch,
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    Read {
        at: u64,
        len: usize,
        place: Place,
    },
    Write {
        at: u64,
        len: usize,
        place: Place,
        dsync: bool,
    },
    Sync,
    Punch {
        at: u64,
        len: u64,
    },
    Turn(BlockIndex),
    /// What a change of size begins with, and what it ends with.
    Prepare,
    Finish,
    Done,
}

#[derive(Debug)]
enum Step {
    Start,
    Read { skip: usize, len: usize, place: Place },
    ReadOob { skip: usize },
    ProgramData { block: BlockIndex, end: u32 },
    ProgramTurn { block: BlockIndex, end: u32 },
    ProgramOob { block: BlockIndex, pages: u32 },
    EraseTurn,
    Punch,
    EmptyOob,
    Ring,
    RingBarrier,
    Mirror,
    Root,
    RootSync,
    FlushTurn,
    FlushOob { block: BlockIndex, pages: u32 },
    FlushSync,
    Resize(ResizeStep),
}

/// OOB that an urgent program needs: of a block's pages up to this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UrgentOob {
    block: BlockIndex,
    end: u32,
}

/// Where an operation is on its way.
pub(crate) struct Plan {
    step: Step,
    pub(crate) resizing: Option<Box<Resizing>>,
    pub(crate) scratch: Option<AlignedBuf>,
    /// Urgent OOB is written by a queue that helps, or else by the barrier that needs it.
    leaves_oob: bool,
    /// What a flush still has to write.
    unwritten: Vec<(BlockIndex, u32)>,
    /// The number of what is being asked of the kernel, where that is traced.
    traced: Option<u64>,
}

/// Buffers for small reads that do not fit where they go.
#[derive(Default)]
pub(crate) struct ScratchPool(Vec<AlignedBuf>);

impl ScratchPool {
    /// A page and its neighbours; larger buffers are rare and not worth keeping.
    const BUF_BYTES: usize = 16 << 10;
    /// As many as one batch of reads is likely to use.
    const BUF_COUNT_MAX: usize = 64;

    fn take(&mut self, len: usize) -> AlignedBuf {
        if len > Self::BUF_BYTES {
            return AlignedBuf::zeroed(len);
        }
        let mut buf = self.0.pop().unwrap_or_else(|| AlignedBuf::zeroed(Self::BUF_BYTES));
        buf.set_len(len);
        buf
    }

    fn give(&mut self, buf: AlignedBuf) {
        if buf.capacity() == Self::BUF_BYTES && self.0.len() < Self::BUF_COUNT_MAX {
            self.0.push(buf);
        }
    }
}

/// Puts a copy in the place of a buffer, which is never released: the kernel may still use it.
pub(crate) fn leak(buffer: &mut AlignedBuf) {
    let mut copy = AlignedBuf::zeroed(buffer.capacity());
    copy.set_len(buffer.len());
    copy.copy_from_slice(buffer);
    std::mem::forget(std::mem::replace(buffer, copy));
}

impl Plan {
    pub(crate) fn new() -> Self {
        Self {
            step: Step::Start,
            resizing: None,
            scratch: None,
            leaves_oob: false,
            unwritten: Vec::new(),
            traced: None,
        }
    }

    /// As [`Plan::new`], for a caller that cannot write OOB next to the data.
    pub(crate) fn leaving_oob() -> Self {
        Self { leaves_oob: true, ..Self::new() }
    }

    /// The pages whose OOB an urgent program needs, while its data is on its way.
    pub(crate) fn urgent_oob(&self, io: &Io) -> Option<UrgentOob> {
        match (&self.step, io) {
            (&Step::ProgramData { block, end }, Io::Program { urgent: true, .. }) => Some(UrgentOob { block, end }),
            _ => None,
        }
    }

    /// How to write them next to it.
    pub(crate) fn of_oob(oob: UrgentOob) -> Self {
        Self { step: Step::ProgramTurn { block: oob.block, end: oob.end }, ..Self::new() }
    }

    /// The buffer for the requested read.
    pub(crate) fn read_buffer<'a>(&'a mut self, io: &'a mut Io, place: Place) -> &'a mut AlignedBuf {
        match (place, io) {
            (Place::Scratch, _) => self.scratch.as_mut().expect("a step that uses the scratch buffer has one"),
            (Place::Caller, Io::Read { into, .. } | Io::ReadOob { into, .. }) => into,
            (Place::Caller, _) => panic!("this operation reads nothing"),
        }
    }

    /// The buffer of the requested write.
    pub(crate) fn write_buffer<'a>(&'a self, io: &'a Io, place: Place) -> &'a AlignedBuf {
        match (place, io) {
            (Place::Scratch, _) => self.scratch.as_ref().expect("a step that uses the scratch buffer has one"),
            (Place::Caller, Io::Program { data, .. }) => data,
            (Place::Caller, Io::Persist { data, .. } | Io::WriteRoot { data, .. }) => data,
            (Place::Caller, _) => panic!("this operation writes nothing"),
        }
    }

    /// Puts a copy in the place of the bytes that the write reads, which are never released.
    pub(crate) fn leak_write_buffer(&mut self, io: &mut Io, place: Place) {
        match (place, io) {
            (Place::Scratch, _) => leak(self.scratch.as_mut().expect("a step that uses the scratch buffer has one")),
            (Place::Caller, Io::Program { data, .. }) => std::mem::forget(Arc::clone(data)),
            (Place::Caller, Io::Persist { data, .. } | Io::WriteRoot { data, .. }) => leak(data),
            (Place::Caller, _) => panic!("this operation writes nothing"),
        }
    }

    /// Takes the outcome of what was needed last (anything, the first time) and states what is needed next. After an
    /// error or [`Need::Done`] the operation is over.
    pub(crate) fn step(
        &mut self,
        media: &Media,
        io: &mut Io,
        outcome: Result<(), Errno>,
        pool: &mut ScratchPool,
    ) -> Result<Need, MediumError> {
        let Some(trace) = &media.trace else { return self.next(media, io, outcome, pool) };
        if let Some(number) = self.traced.take() {
            trace.end(number, outcome.is_ok());
        }
        let need = self.next(media, io, outcome, pool)?;
        self.traced = trace.begin(need, || match need {
            Need::Write { len, place, .. } => self.write_buffer(io, place)[..len].into(),
            _ => unreachable!("only writes have bytes"),
        });
        Ok(need)
    }

    fn next(
        &mut self,
        media: &Media,
        io: &mut Io,
        outcome: Result<(), Errno>,
        pool: &mut ScratchPool,
    ) -> Result<Need, MediumError> {
        match std::mem::replace(&mut self.step, Step::Start) {
            Step::Start => self.start(media, io, pool),
            Step::Read { skip, len, place } => self.read_done(io, outcome, (skip, len, place), pool),
            Step::ReadOob { skip } => self.read_oob_done(io, outcome, skip, pool),
            Step::ProgramData { block, end } => {
                let is_urgent = matches!(io, Io::Program { urgent: true, .. }) && outcome.is_ok();
                let complete = media.blocks.program_done(&media.geometry, block, is_urgent.then_some(end));
                outcome.map_err(|errno| program_failure(media, block, io, errno))?;
                let is_wanted = complete || is_urgent && !self.leaves_oob;
                if is_wanted { self.program_turn(media, block, end) } else { Ok(Need::Done) }
            }
            Step::ProgramTurn { block, end } => {
                outcome.map_err(|errno| program_failure(media, block, io, errno))?;
                self.program_turn(media, block, end)
            }
            Step::ProgramOob { block, pages } => {
                media.blocks.oob_done(&media.geometry, block, outcome.is_ok().then_some(pages));
                outcome.map_err(|errno| program_failure(media, block, io, errno))?;
                Ok(Need::Done)
            }
            Step::EraseTurn => {
                let Io::Erase { block, .. } = *io else { unreachable!("this step belongs to an erase") };
                outcome.map_err(|errno| block_failure(block, "erase", errno))?;
                self.erase(media, io)
            }
            Step::Punch => self.punch_done(media, io, outcome),
            Step::EmptyOob => {
                let Io::Erase { block, .. } = *io else { unreachable!("this step belongs to an erase") };
                media.blocks.erase_done(block, outcome.is_ok(), false);
                outcome.map_err(|errno| block_failure(block, "erase", errno))?;
                Ok(Need::Done)
            }
            Step::Ring => durable_done("commit ring write", outcome),
            Step::RingBarrier => {
                durable_done("commit ring write", outcome)?;
                self.barrier(media)
            }
            Step::Mirror => {
                if let Err(errno) = outcome {
                    media.note_no_mirror(errno);
                }
                let Io::WriteRoot { slot, data } = io else { unreachable!("this step belongs to a root") };
                Ok(self.root(media, *slot, data.len()))
            }
            Step::Root => {
                durable_done("root write", outcome)?;
                if !media.syncs() || media.mirror().is_none() {
                    return Ok(Need::Done);
                }
                self.step = Step::RootSync;
                Ok(Need::Sync)
            }
            Step::RootSync => durable_done("root write", outcome),
            Step::FlushTurn => {
                durable_done("flush", outcome)?;
                self.flush(media)
            }
            Step::FlushOob { block, pages } => {
                media.blocks.oob_done(&media.geometry, block, outcome.is_ok().then_some(pages));
                durable_done("flush", outcome)?;
                self.flush(media)
            }
            Step::FlushSync => durable_done("flush", outcome),
            Step::Resize(step) => self.resized(media, step, outcome),
        }
    }

    fn start(&mut self, media: &Media, io: &mut Io, pool: &mut ScratchPool) -> Result<Need, MediumError> {
        media.check_writable(io)?;
        match io {
            Io::Read { .. } => self.read(media, io, pool),
            Io::ReadOob { .. } => self.read_oob(media, io, pool),
            Io::Program { .. } => self.program(media, io),
            Io::Erase { block, .. } => {
                media.widest.check_erase(*block)?;
                self.erase(media, io)
            }
            Io::Persist { .. } => self.persist(media, io),
            Io::WriteRoot { slot, data } => {
                media.geometry.check_root("write", *slot, data)?;
                // The mirror first, and one sync for both: it is never older than a slot whose write has ended.
                let Some(at) = media.mirror() else { return Ok(self.root(media, *slot, data.len())) };
                self.step = Step::Mirror;
                Ok(Need::Write { at, len: data.len(), place: Place::Caller, dsync: false })
            }
            Io::Flush => {
                self.unwritten = media.blocks.unwritten();
                self.flush(media)
            }
            Io::Resize { blocks_per_die, capacity_bytes, reserve } => {
                self.resizing = Some(Box::new(Resizing::new(media, *blocks_per_die, *capacity_bytes, *reserve)?));
                Ok(self.then(ResizeStep::Prepare, Need::Prepare))
            }
        }
    }

    /// The next step of a change of size, and what it needs.
    pub(crate) fn then(&mut self, step: ResizeStep, need: Need) -> Need {
        self.step = Step::Resize(step);
        need
    }

    fn root(&mut self, media: &Media, slot: u8, len: usize) -> Need {
        self.step = Step::Root;
        // A DSYNC write would leave the mirror in the cache of a disk with FUA, as it would the pages of a barrier.
        let dsync = media.syncs() && media.mirror().is_none();
        Need::Write { at: media.root(slot), len, place: Place::Caller, dsync }
    }

    fn read(&mut self, media: &Media, io: &mut Io, pool: &mut ScratchPool) -> Result<Need, MediumError> {
        let Io::Read { at, into } = io else { unreachable!("called for reads") };
        let len = into.len();
        let (block, from) = media.widest.check_read(*at, len)?;
        media.check_block(block)?;
        if len == 0 {
            return Ok(Need::Done);
        }
        let (at, skip, span) = media.widen(media.layout.block(block) + from, len);
        // Widened reads mostly fit the caller's buffer, whose capacity is whole pages; then the bytes are not moved.
        let place = if span <= into.capacity() {
            into.set_len(span);
            Place::Caller
        } else {
            self.scratch = Some(pool.take(span));
            Place::Scratch
        };
        self.step = Step::Read { skip, len, place };
        Ok(Need::Read { at, len: span, place })
    }

    fn read_done(
        &mut self,
        io: &mut Io,
        outcome: Result<(), Errno>,
        (skip, len, place): (usize, usize, Place),
        pool: &mut ScratchPool,
    ) -> Result<Need, MediumError> {
        let Io::Read { at, into } = io else { unreachable!("this step belongs to a read") };
        if place == Place::Caller {
            into.show(skip, len);
        } else {
            let scratch = self.scratch.take().expect("the read went to the scratch buffer");
            into.copy_from_slice(&scratch[skip..skip + len]);
            pool.give(scratch);
        }
        outcome.map_err(|errno| MediumError::ReadFailed { what: at.to_string(), error: errno.to_string() })?;
        Ok(Need::Done)
    }

    fn read_oob(&mut self, media: &Media, io: &mut Io, pool: &mut ScratchPool) -> Result<Need, MediumError> {
        let Io::ReadOob { at, into } = io else { unreachable!("called for OOB reads") };
        let from = media.widest.check_read_oob(*at, into.len())?;
        media.check_block(at.block)?;
        if into.is_empty() || media.blocks.read_oob(at.block, from, into) {
            return Ok(Need::Done);
        }
        let (at, skip, span) = media.widen(media.layout.oob(at.block) + from, into.len());
        self.scratch = Some(pool.take(span));
        self.step = Step::ReadOob { skip };
        Ok(Need::Read { at, len: span, place: Place::Scratch })
    }

    fn read_oob_done(
        &mut self,
        io: &mut Io,
        outcome: Result<(), Errno>,
        skip: usize,
        pool: &mut ScratchPool,
    ) -> Result<Need, MediumError> {
        let Io::ReadOob { at, into } = io else { unreachable!("this step belongs to an OOB read") };
        let scratch = self.scratch.take().expect("the read went to the scratch buffer");
        let len = into.len();
        into.copy_from_slice(&scratch[skip..skip + len]);
        pool.give(scratch);
        outcome.map_err(|errno| MediumError::ReadFailed { what: format!("OOB of {at}"), error: errno.to_string() })?;
        Ok(Need::Done)
    }

    fn program(&mut self, media: &Media, io: &mut Io) -> Result<Need, MediumError> {
        let Io::Program { at, data, oob, .. } = io else { unreachable!("called for programs") };
        let allocate = || media.allocate(at.block);
        let program = (*at, data.len(), &oob[..]);
        let end = media.blocks.start_program(&media.widest, program, media.layout.oob_area_bytes, allocate)?;
        self.step = Step::ProgramData { block: at.block, end };
        let offset = media.layout.block(at.block) + u64::from(at.page) * u64::from(media.geometry.page_bytes);
        Ok(Need::Write { at: offset, len: data.len(), place: Place::Caller, dsync: false })
    }

    fn program_turn(&mut self, media: &Media, block: BlockIndex, end: u32) -> Result<Need, MediumError> {
        match media.blocks.take_oob(&media.geometry, block, end) {
            OobTurn::Written => Ok(Need::Done),
            OobTurn::Busy => {
                self.step = Step::ProgramTurn { block, end };
                Ok(Need::Turn(block))
            }
            OobTurn::Write { bytes, at, pages } => {
                self.step = Step::ProgramOob { block, pages };
                Ok(self.write_oob(media, block, bytes, at))
            }
        }
    }

    fn write_oob(&mut self, media: &Media, block: BlockIndex, bytes: AlignedBuf, at: u64) -> Need {
        let len = bytes.len();
        self.scratch = Some(bytes);
        Need::Write { at: media.layout.oob(block) + at, len, place: Place::Scratch, dsync: false }
    }

    fn erase(&mut self, media: &Media, io: &Io) -> Result<Need, MediumError> {
        let Io::Erase { block, release } = *io else { unreachable!("called for erases") };
        if !media.blocks.start_erase(block)? {
            self.step = Step::EraseTurn;
            return Ok(Need::Turn(block));
        }
        if release && media.can_punch() {
            self.step = Step::Punch;
            return Ok(Need::Punch { at: media.layout.block(block), len: media.layout.block_stride_bytes });
        }
        Ok(self.empty_oob(media, block))
    }

    /// Overwriting a hundredth of the block is cheaper than changing its extents, and keeps them for the next life.
    fn empty_oob(&mut self, media: &Media, block: BlockIndex) -> Need {
        self.step = Step::EmptyOob;
        self.write_oob(media, block, AlignedBuf::zeroed(media.layout.oob_area_bytes as usize), 0)
    }

    fn punch_done(&mut self, media: &Media, io: &Io, outcome: Result<(), Errno>) -> Result<Need, MediumError> {
        let Io::Erase { block, .. } = *io else { unreachable!("this step belongs to an erase") };
        match outcome {
            Err(errno) if sys::is_unsupported(errno) => {
                media.note_no_punch(errno);
                Ok(self.empty_oob(media, block))
            }
            outcome => {
                media.blocks.erase_done(block, outcome.is_ok(), true);
                outcome.map_err(|errno| block_failure(block, "erase", errno))?;
                Ok(Need::Done)
            }
        }
    }

    fn persist(&mut self, media: &Media, io: &Io) -> Result<Need, MediumError> {
        let Io::Persist { offset, data, len, barrier } = io else { unreachable!("called for ring writes") };
        media.geometry.check_ring("write", *offset, *len, data.len())?;
        if let Some(written) = media.write_cached(*offset, &data[..*len]) {
            durable_done("commit ring write", written)?;
            return if *barrier { self.barrier(media) } else { Ok(Need::Done) };
        }
        // A barrier takes one sync for ring and pages. A DSYNC write of the ring would not do: on a disk with FUA it makes
        // its own bytes durable and leaves the pages in the disk's cache.
        self.step = if *barrier { Step::RingBarrier } else { Step::Ring };
        let at = media.layout.ring_offset + offset;
        Ok(Need::Write { at, len: *len, place: Place::Caller, dsync: media.syncs() && !barrier })
    }

    /// After the ring write: the OOB that was started with its program is mostly written by now.
    fn barrier(&mut self, media: &Media) -> Result<Need, MediumError> {
        self.unwritten = media.blocks.unwritten_urgent();
        self.flush(media)
    }

    fn flush(&mut self, media: &Media) -> Result<Need, MediumError> {
        while let Some(&(block, pages)) = self.unwritten.last() {
            match media.blocks.take_oob(&media.geometry, block, pages) {
                OobTurn::Written => {}
                OobTurn::Busy => {
                    self.step = Step::FlushTurn;
                    return Ok(Need::Turn(block));
                }
                OobTurn::Write { bytes, at, pages } => {
                    self.unwritten.pop();
                    self.step = Step::FlushOob { block, pages };
                    return Ok(self.write_oob(media, block, bytes, at));
                }
            }
            self.unwritten.pop();
        }
        if !media.syncs() {
            return Ok(Need::Done);
        }
        self.step = Step::FlushSync;
        Ok(Need::Sync)
    }
}

/// What stopped a program after the point where it was accepted. One without space below comes again.
fn program_failure(media: &Media, block: BlockIndex, io: &Io, errno: Errno) -> MediumError {
    if let (true, Io::Program { at, .. }) = (sys::is_no_space(errno), io) {
        media.blocks.no_space_for(*at);
    }
    block_failure(block, "program", errno)
}

fn durable_done(what: &'static str, outcome: Result<(), Errno>) -> Result<Need, MediumError> {
    match outcome {
        Ok(()) => Ok(Need::Done),
        Err(errno) if sys::is_no_space(errno) => Err(MediumError::NoSpace { what: what.into() }),
        Err(errno) => Err(MediumError::NotDurable { what, error: errno.to_string() }),
    }
}

impl Media {
    /// Whether durable means synced.
    pub(crate) fn syncs(&self) -> bool {
        self.durability == Durability::Power
    }

    /// The whole sectors around a range: where they start, how many bytes to skip, and how many there are.
    fn widen(&self, at: u64, len: usize) -> (u64, usize, usize) {
        let sector = u64::from(self.geometry.sector_bytes);
        let skip = (at % sector) as usize;
        (at - skip as u64, skip, (skip + len).next_multiple_of(sector as usize))
    }
}
