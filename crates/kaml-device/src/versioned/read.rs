//! Reading versions next to the core: a short look at the index, pins, then reads of flash.
//!
//! Lives here:       looks, pins, where a part of a segment is just now.
//! Lives elsewhere:  what is looked for (`kaml_versions::Source` and what reads through it), the reads (the drivers).
//! Implements:       docs/versioned.md "In the device".
//!
//! Why a pin is enough: a segment's address changes under the lock that a look holds. A caller that pins a block during a look
//! has it pinned before the segment can move, and blocks are erased only after that, when nobody pins them. Where a block fails
//! before its segments are on flash, what was to be programmed is kept as long.

use super::state::Replaced;
use crate::core::Core;
use crate::error::Error;
use crate::gate::Pin;
use crate::layout::Door;
use crate::metadata::read_again;
use crate::namespace::NamespaceShared;
use crate::reader::{FindError, Found, Reader};
use kaml_flash::{AlignedBuf, ChunkAddr, Geometry, Io, Medium};
use kaml_index::Key;
use kaml_versions::{Error as Damage, SegmentAt, Versions};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A part of a segment, as whole chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRead {
    /// The first chunk.
    pub at: ChunkAddr,
    /// Bytes to read.
    pub bytes: usize,
    /// Which of them were requested.
    part: Range<usize>,
}

impl SegmentRead {
    pub(crate) fn new(geometry: &Geometry, at: SegmentAt, bytes: &Range<usize>) -> SegmentRead {
        let chunk = geometry.chunk_bytes as usize;
        let (first, end) = (bytes.start / chunk, bytes.end.div_ceil(chunk));
        let part = bytes.start - first * chunk..bytes.end - first * chunk;
        SegmentRead { at: ChunkAddr(at.get() + first as u64), bytes: (end - first) * chunk, part }
    }

    /// What was requested, of the bytes that were read.
    pub fn of<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.part.clone()]
    }

    /// Reads it from the medium.
    ///
    /// # Errors
    /// The medium's; [`Error::SegmentDamaged`] for what `take` refuses. Both are tried again first.
    pub(crate) fn fetch<T>(
        &self,
        medium: &dyn Medium,
        namespace: u32,
        mut take: impl FnMut(&[u8]) -> Result<T, Damage>,
    ) -> Result<T, Error> {
        read_again(|| {
            let mut io = Io::Read { at: self.at, into: AlignedBuf::zeroed(self.bytes) };
            medium.execute(&mut io)?;
            let Io::Read { into: found, .. } = io else { unreachable!("still a read") };
            take(self.of(&found)).map_err(|what| self.damaged(namespace, what))
        })
    }

    /// The error of a part that is not what it should be.
    pub fn damaged(&self, namespace: u32, what: Damage) -> Error {
        Error::SegmentDamaged { namespace, at: self.at, what }
    }
}

/// Reads one versioned namespace, next to the core.
pub struct VersionReader {
    reader: Reader,
    shared: Arc<NamespaceShared>,
    pins: Vec<Pin>,
}

impl Reader {
    /// A reader of the versions of a namespace.
    ///
    /// # Errors
    /// [`Error::KeepsNoVersions`], or there is no such namespace.
    pub fn versions(&self, namespace: u32) -> Result<VersionReader, Error> {
        let shared = self.space(namespace)?;
        shared.layout.admit(namespace, Door::Versions)?;
        Ok(VersionReader::new(self.clone(), shared))
    }
}

impl VersionReader {
    pub(crate) fn new(reader: Reader, shared: Arc<NamespaceShared>) -> VersionReader {
        VersionReader { reader, shared, pins: Vec::new() }
    }

    /// Looks at the versions as they are now. Segments that `look` holds stay readable until the next look.
    ///
    /// # Errors
    /// [`FindError::NeedIndex`] if the namespace must be loaded first ([`Core::load_index`]).
    pub fn look<T>(&mut self, look: impl FnOnce(&Versions, &mut dyn FnMut(SegmentAt)) -> T) -> Result<T, FindError> {
        self.pins.clear();
        self.shared.note_use();
        let versions = self.shared.versions();
        let versions = versions.as_ref().ok_or(FindError::NeedIndex)?;
        Ok(look(versions, &mut |at| self.pins.push(self.reader.pin(ChunkAddr(at.get())))))
    }

    /// The namespace of its large values, which [`VersionReader::find_large`] looks into; nothing if it has none.
    pub fn large_values(&self) -> Option<u32> {
        let values = self.shared.values.load(Ordering::SeqCst);
        (values != 0).then_some(values)
    }

    /// Finds the large value of a version by its number.
    ///
    /// # Errors
    /// The index of [`VersionReader::large_values`] must be loaded first.
    pub fn find_large(&self, number: u64) -> Result<Found, FindError> {
        let Some(values) = self.large_values() else { return Ok(Found::Absent) };
        let Some(space) = self.reader.directory().get(values) else { return Ok(Found::Absent) };
        space.note_use();
        self.reader.find_in(&space, values, &Key::from(number).into())
    }

    /// Refuses a key that the namespace does not take.
    pub fn check_key(&self, key: &Key) -> Result<(), Error> {
        Ok(self.shared.layout.check_key(key)?)
    }

    /// Chains of segments that the namespace has.
    pub fn row_count(&self) -> u32 {
        self.shared.layout.versions().expect("a versioned namespace").rows
    }

    /// How to read bytes of a segment, and whether they are on the medium; if not, try [`Core::read_segment`].
    pub fn locate(&self, at: SegmentAt, bytes: &Range<usize>) -> (SegmentRead, bool) {
        let geometry = self.reader.geometry();
        let read = SegmentRead::new(geometry, at, bytes);
        let (block, start) = geometry.split(read.at);
        let end = start + (read.bytes / geometry.chunk_bytes as usize) as u32;
        let is_programmed = self.reader.is_programmed(block, end);
        (read, is_programmed)
    }
}

impl Core {
    /// Reads a part of a segment, from memory or from the medium, while nobody else changes the core.
    ///
    /// # Errors
    /// The medium's; [`Error::SegmentDamaged`] for what `take` refuses. Both are tried again first.
    pub fn read_part<T>(
        &self,
        medium: &dyn Medium,
        namespace: u32,
        at: SegmentAt,
        bytes: &Range<usize>,
        mut take: impl FnMut(&[u8]) -> Result<T, Damage>,
    ) -> Result<T, Error> {
        let read = SegmentRead::new(&self.log.geometry, at, bytes);
        let mut buffered = vec![0; bytes.len()];
        if self.read_segment(&read, &mut buffered) {
            return take(&buffered).map_err(|what| read.damaged(namespace, what));
        }
        read.fetch(medium, namespace, take)
    }

    /// Copies a part of a segment that waits to be programmed, there or at another place since; false if it is on the medium by now.
    pub fn read_segment(&self, read: &SegmentRead, into: &mut [u8]) -> bool {
        let (block, chunk) = self.log.geometry.split(read.at);
        let mut bytes = vec![0; read.bytes];
        let is_buffered = self.log.writers.read(block.0, chunk, &mut bytes) || self.read_replaced(read.at, &mut bytes);
        if is_buffered {
            into.copy_from_slice(read.of(&bytes));
        }
        is_buffered
    }

    fn read_replaced(&self, at: ChunkAddr, into: &mut [u8]) -> bool {
        let chunk_bytes = self.log.geometry.chunk_bytes as usize;
        let found = self.sealing.replaced.iter().find_map(|replaced| {
            let start = usize::try_from(at.0.checked_sub(replaced.at.0)?).ok()?.checked_mul(chunk_bytes)?;
            replaced.image.get(start..start + into.len())
        });
        found.inspect(|found| into.copy_from_slice(found)).is_some()
    }

    /// Keeps a segment of a failed block that gets another place for those who have pinned it at the old one.
    pub(crate) fn keep_replaced(&mut self, at: ChunkAddr, image: Arc<AlignedBuf>) {
        self.sealing.replaced.push(Replaced { at, image });
    }

    /// Gives those up that nobody can have looked for.
    pub(crate) fn forget_replaced(&mut self) {
        let (geometry, gate) = (&self.log.geometry, &self.log.blocks.gate);
        self.sealing.replaced.retain(|replaced| gate.is_pinned(geometry.split(replaced.at).0.0));
    }
}
