//! Changing the size of a file or block device, step by step.
//!
//! Lives here:       the order in which a new size is made durable, what is done to the bytes that come and go.
//! Lives elsewhere:  the system calls (`file`, `uring`), the steps of other operations (`plan`), when the size changes (`kaml-device`).
//! Implements:       docs/formats/superblock.md "Changing the size".
//!
//! ```text
//!  lengthen the file, empty the new blocks ─▶ write mirror and superblock C at the new end ─▶ sync
//!   ─▶ superblock A (durable: the new size counts) ─▶ superblock B ─▶ clear or cut off what was beyond
//! ```
//! Superblock, root slots and ring keep their places; only what lies after the blocks moves. Until superblock A is written the old end
//! is whole: new blocks overwrite it later, and blocks that go have nothing in them that the new end could overwrite.

use crate::file::{FileMedium, Media};
use crate::layout::{Layout, Tail};
use crate::plan::{Need, Place, Plan};
use crate::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::{AlignedBuf, BlockIndex, Geometry, MediumError, sys};
use rustix::io::Errno;
use std::sync::MutexGuard;

/// What a device that grows by itself leaves to others in its file system.
const SPARE_BYTES: u64 = 1 << 20;
/// The end of a device is made of whole pages of memory.
const TAIL_ALIGN: u64 = 4096;

/// Where a change of size is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResizeStep {
    Prepare,
    Mirror,
    CopyAtEnd,
    Sync,
    CopyA,
    CopyB,
    Finish,
}

/// A change of size in progress.
#[derive(Debug)]
pub(crate) struct Resizing {
    old: Superblock,
    new: Superblock,
    reserve: bool,
}

impl Geometry {
    /// The same with the most blocks that can be numbered.
    pub(crate) fn widest(&self) -> Geometry {
        Geometry { blocks_per_die: (1 << 24) / self.die_count(), ..self.clone() }
    }

    /// The most blocks of each die that a legal shape has.
    fn blocks_per_die_max(&self) -> u32 {
        let by_chunks = Self::CHUNK_COUNT_MAX / u64::from(self.chunks_per_block()) / u64::from(self.die_count());
        (by_chunks as u32).min((1 << 24) / self.die_count())
    }
}

fn not_resized<T>(why: String) -> Result<T, MediumError> {
    Err(MediumError::NotResized { why })
}

impl Resizing {
    /// Refuses what cannot be.
    pub(crate) fn new(
        media: &Media,
        blocks_per_die: u32,
        capacity_bytes: u64,
        reserve: bool,
    ) -> Result<Resizing, MediumError> {
        let old = media.superblock().clone();
        let geometry = Geometry { blocks_per_die, ..old.geometry.clone() };
        if let Err(error) = geometry.check() {
            return not_resized(error.to_string());
        }
        let least_bytes = bytes_of(&geometry);
        let capacity_bytes = capacity_bytes.max(least_bytes);
        if sys::is_block_device(&media.file).unwrap_or(false) {
            let actual_bytes = sys::size_of(&media.file).map_err(|errno| failed("reading the size", errno))?;
            if actual_bytes < capacity_bytes {
                return not_resized(format!(
                    "it takes {capacity_bytes} bytes, and the device below has {actual_bytes}"
                ));
            }
        }
        let tail = Tail::of(capacity_bytes, geometry.root_bytes);
        let grows_up_to = Some(match old.grows_up_to {
            Some(limit) if limit > 0 => limit.max(capacity_bytes),
            _ => 0,
        });
        // Blocks that are added were not written ahead.
        let prewritten = old.prewritten && geometry.blocks_per_die <= old.geometry.blocks_per_die;
        let new = Superblock { geometry, capacity_bytes, tail, grows_up_to, prewritten, ..old.clone() };
        Ok(Resizing { old, new, reserve })
    }

    fn tail(&self) -> Tail {
        self.new.tail.expect("a device that was resized has a tail")
    }

    fn old_count(&self) -> u32 {
        self.old.geometry.block_count()
    }
}

/// The least bytes that hold a device of this shape.
fn bytes_of(geometry: &Geometry) -> u64 {
    let end = Layout::of(geometry).end + u64::from(geometry.root_bytes) + SUPERBLOCK_BYTES as u64;
    end.next_multiple_of(TAIL_ALIGN)
}

impl Plan {
    /// Takes the outcome of a step of a change of size, and states what is needed next.
    pub(crate) fn resized(
        &mut self,
        media: &Media,
        step: ResizeStep,
        outcome: Result<(), Errno>,
    ) -> Result<Need, MediumError> {
        let resizing = self.resizing.as_ref().expect("this step belongs to a change of size");
        let (tail, copy) = (resizing.tail(), resizing.new.encode());
        let copy_at = |plan: &mut Plan, step, at, dsync| {
            plan.scratch = Some(AlignedBuf::copy_of(&copy));
            plan.then(step, Need::Write { at, len: copy.len(), place: Place::Scratch, dsync })
        };
        match step {
            ResizeStep::Prepare => {
                outcome.map_err(|errno| failed("making room at the new end", errno))?;
                let len = self.scratch.as_ref().expect("the mirror was read").len();
                let need = Need::Write { at: tail.mirror_offset, len, place: Place::Scratch, dsync: false };
                Ok(self.then(ResizeStep::Mirror, need))
            }
            ResizeStep::Mirror => {
                outcome.map_err(|errno| failed("writing the root's mirror at the new end", errno))?;
                Ok(copy_at(self, ResizeStep::CopyAtEnd, tail.superblock_offset, false))
            }
            ResizeStep::CopyAtEnd => {
                outcome.map_err(|errno| failed("writing the superblock at the new end", errno))?;
                Ok(self.then(ResizeStep::Sync, Need::Sync))
            }
            ResizeStep::Sync => {
                outcome.map_err(|errno| failed("syncing the new end", errno))?;
                Ok(copy_at(self, ResizeStep::CopyA, 0, true))
            }
            ResizeStep::CopyA => {
                // Nobody knows now which size counts.
                let error =
                    |errno: Errno| MediumError::NotDurable { what: "superblock write", error: errno.to_string() };
                outcome.map_err(error)?;
                Ok(copy_at(self, ResizeStep::CopyB, SUPERBLOCK_BYTES as u64, true))
            }
            ResizeStep::CopyB => {
                if let Err(errno) = outcome {
                    // One copy is enough, and the next opening writes the others again.
                    media.note_bad_copy(errno);
                }
                media.adopt(&resizing.new);
                Ok(self.then(ResizeStep::Finish, Need::Finish))
            }
            ResizeStep::Finish => {
                if let Err(errno) = outcome {
                    tracing::warn!(%errno, "what lies beyond the end of the device keeps its space");
                }
                Ok(Need::Done)
            }
        }
    }
}

fn failed(what: &str, errno: Errno) -> MediumError {
    match sys::is_no_space(errno) {
        true => MediumError::NoSpace { what: what.to_owned() },
        false => MediumError::NotResized { why: format!("{what}: {errno}") },
    }
}

impl Media {
    pub(crate) fn superblock(&self) -> MutexGuard<'_, Superblock> {
        self.superblock.lock().expect("no panic under this lock")
    }

    /// Refuses blocks that do not exist just now.
    pub(crate) fn check_block(&self, block: BlockIndex) -> Result<(), MediumError> {
        match block.0 < self.blocks.count() {
            true => Ok(()),
            false => Err(MediumError::BadRange { what: format!("{block} of {}", self.blocks.count()) }),
        }
    }

    /// Blocks of each die that fit so many bytes.
    pub(crate) fn blocks_in(&self, capacity_bytes: u64) -> u32 {
        let end = Tail::of(capacity_bytes, self.geometry.root_bytes).map_or(0, |tail| tail.mirror_offset);
        let fitting = end.saturating_sub(self.layout.blocks_offset) / self.layout.block_stride_bytes;
        let of_each = fitting / u64::from(self.geometry.die_count());
        of_each.min(self.geometry.blocks_per_die_max().into()) as u32
    }

    /// Bytes up to which the device grows by itself. A block device cannot become larger than it is.
    pub(crate) fn grows_up_to(&self) -> Option<u64> {
        let limit = self.superblock().grows_up_to.filter(|limit| *limit > 0)?;
        let is_device = sys::is_block_device(&self.file).unwrap_or(false);
        let below = if is_device { sys::size_of(&self.file).unwrap_or(limit) } else { limit };
        Some(limit.min(below))
    }

    /// Lengthens the file and empties the blocks that come, as far as the end that counts allows; reads the mirror as it is.
    pub(crate) fn prepare_resize(&self, plan: &mut Plan) -> Result<(), Errno> {
        let resizing = plan.resizing.as_ref().expect("prepared for a change of size");
        let (old, new) = (&resizing.old, &resizing.new);
        let length = sys::size_of(&self.file)?;
        let (old_end, new_end) = (Layout::of(&old.geometry).end, Layout::of(&new.geometry).end);
        // A file system that takes what there is before it refuses would refuse others meanwhile. What the device has not used yet needs
        // its space, too.
        let wanted = new.capacity_bytes.saturating_sub(sys::allocated_bytes(&self.file)) + SPARE_BYTES;
        if resizing.reserve && !sys::has_space(&self.file, wanted) {
            return Err(Errno::NOSPC);
        }
        if length < new.capacity_bytes {
            rustix::fs::ftruncate(&*self.file, new.capacity_bytes)?;
        }
        if resizing.reserve && new_end > old_end {
            let reserved = sys::allocate(&self.file, old_end, new.capacity_bytes - old_end);
            if let (Err(_), true) = (reserved, length < new.capacity_bytes) {
                // What was taken of the space is given back; the length says nothing.
                let _ = rustix::fs::ftruncate(&*self.file, length);
            }
            reserved?;
        }
        // A file that was just lengthened has zeroes there.
        if new_end > old.capacity_bytes && length > old.capacity_bytes {
            self.empty(old.capacity_bytes, new_end, resizing.old_count()..new.geometry.block_count())?;
        }
        let mut mirror = AlignedBuf::zeroed(new.geometry.root_bytes as usize);
        if let Some(tail) = old.tail
            && let Err(errno) = sys::read_exact(&self.file, &mut mirror, tail.mirror_offset)
        {
            tracing::warn!(%errno, "the root's mirror cannot be read; the next root writes it");
            mirror.fill(0);
        }
        plan.scratch = Some(mirror);
        Ok(())
    }

    /// Makes a range read as zeroes, or at least the OOB areas of these blocks in it.
    fn empty(&self, from: u64, until: u64, blocks: std::ops::Range<u32>) -> Result<(), Errno> {
        match sys::punch_hole(&self.file, from, until - from) {
            Err(errno) if sys::is_unsupported(errno) => {
                let zeroes = AlignedBuf::zeroed(self.layout.oob_area_bytes as usize);
                let places = blocks.map(|block| self.layout.oob(BlockIndex(block))).filter(|at| *at >= from);
                places.into_iter().try_for_each(|at| sys::write_all(&self.file, &zeroes, at, false))
            }
            result => result,
        }
    }

    /// The new size counts.
    pub(crate) fn adopt(&self, new: &Superblock) {
        *self.superblock() = new.clone();
        self.blocks.resize(new.geometry.block_count());
    }

    /// Clears what was the old end, which is part of new blocks, or cuts off what the device no longer takes.
    pub(crate) fn finish_resize(&self, plan: &mut Plan) -> Result<(), Errno> {
        let resizing = plan.resizing.as_ref().expect("finished after a change of size");
        let (old, new) = (&resizing.old, &resizing.new);
        let old_end = Layout::of(&old.geometry).end;
        let until = Layout::of(&new.geometry).end.min(old.capacity_bytes);
        if until > old_end {
            self.empty(old_end, until, resizing.old_count()..new.geometry.block_count())?;
        }
        if new.capacity_bytes < old.capacity_bytes {
            match sys::is_block_device(&self.file)? {
                true => sys::punch_hole(&self.file, new.capacity_bytes, old.capacity_bytes - new.capacity_bytes)?,
                false => rustix::fs::ftruncate(&*self.file, new.capacity_bytes)?,
            }
        }
        Ok(())
    }
}

impl FileMedium {
    /// Bytes up to which the device grows by itself when it runs low on space; nothing if it does not.
    pub fn grow_limit(&self) -> Option<u64> {
        self.media().superblock().grows_up_to.filter(|limit| *limit > 0)
    }
}
