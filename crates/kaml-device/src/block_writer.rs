//! A block being filled: its buffers until they are programmed.
//!
//! Lives here:       buffers, which records are in them and where these end.
//! Lives elsewhere:  filling them (`writers`).
//!
//! Invariants
//! - the buffers of a block follow each other without gaps, only the last one is filling;
//! - a buffer is kept until it is programmed, and as long as a record that it ends with is not wholly programmed.

use crate::format::oob::{Extent, Oob};
use crate::lifetime::Class;
use crate::moves::Move;
use kaml_flash::{AlignedBuf, Geometry};
use std::collections::VecDeque;
use std::sync::Arc;

/// Pages of a block that are not known to be programmed yet.
pub(crate) struct Buffer {
    pub(crate) first_page: u32,
    pub(crate) capacity_pages: u32,
    /// Chunks in use.
    pub(crate) used_chunks: u32,
    pub(crate) data: Data,
    pub(crate) marks: Vec<Mark>,
    /// The oldest frame with a record here; `u64::MAX` if there is none.
    pub(crate) first_frame: u64,
    pub(crate) moves: Vec<Move>,
    /// The large put that waits for this buffer.
    pub(crate) ticket: Option<u64>,
    pub(crate) sealed: bool,
    pub(crate) programmed: bool,
    /// The last record continues in the next buffer.
    pub(crate) spills: bool,
}

/// Bytes of a buffer.
pub(crate) enum Data {
    /// It is being filled.
    Own(AlignedBuf),
    /// It is sealed: a program has them, too.
    Shared(Arc<AlignedBuf>),
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Mark {
    pub(crate) bitmap: u64,
    pub(crate) continues: bool,
}

/// A block being filled, or filled and not wholly programmed.
pub(crate) struct BlockWriter {
    pub(crate) class: Class,
    pub(crate) log: u32,
    pub(crate) next_chunk: u32,
    pub(crate) closed: bool,
    pub(crate) buffers: VecDeque<Buffer>,
}

impl Data {
    /// To be written to.
    #[inline]
    pub(crate) fn filling(&mut self) -> &mut AlignedBuf {
        match self {
            Data::Own(data) => data,
            Data::Shared(_) => panic!("a sealed buffer is not written to"),
        }
    }

    /// For a program; nobody writes to it any more.
    pub(crate) fn share(&mut self) -> Arc<AlignedBuf> {
        if let Data::Own(data) = self {
            *self = Data::Shared(Arc::new(std::mem::replace(data, AlignedBuf::zeroed(0))));
        }
        let Data::Shared(data) = self else { unreachable!("just made so") };
        data.clone()
    }

    /// To be filled again, if no program has it any more.
    pub(crate) fn take_back(self) -> Option<AlignedBuf> {
        match self {
            Data::Own(data) => Some(data),
            Data::Shared(data) => Arc::try_unwrap(data).ok(),
        }
    }
}

impl std::ops::Deref for Data {
    type Target = AlignedBuf;
    #[inline]
    fn deref(&self) -> &AlignedBuf {
        match self {
            Data::Own(data) => data,
            Data::Shared(data) => data,
        }
    }
}

impl Buffer {
    /// A record that began at chunk `start` continues in the pages after its first, up to `last_page`.
    pub(crate) fn mark_continuation(&mut self, start: u32, last_page: u32, chunks_per_page: u32) {
        for page in self.first_page.max(start / chunks_per_page + 1)..=last_page {
            self.marks[(page - self.first_page) as usize].continues = true;
        }
    }
}

impl BlockWriter {
    /// As [`Writers::read`].
    pub(crate) fn read(&self, geometry: &Geometry, chunk: u32, into: &mut [u8]) -> bool {
        let page_bytes = geometry.page_bytes as usize;
        let mut at = chunk as usize * geometry.chunk_bytes as usize;
        let mut filled = 0;
        for buffer in &self.buffers {
            let start = buffer.first_page as usize * page_bytes;
            let end = start + buffer.capacity_pages as usize * page_bytes;
            if at < start {
                return false;
            }
            if at < end {
                let len = (end - at).min(into.len() - filled);
                into[filled..filled + len].copy_from_slice(&buffer.data[at - start..at - start + len]);
                filled += len;
                at += len;
            }
            if filled == into.len() {
                return true;
            }
        }
        false
    }

    /// Whether all of the record is programmed that continues after the first buffer: up to the next one in which a record ends.
    pub(crate) fn spilling_record_is_programmed(&self) -> bool {
        let ends = |buffer: &Buffer| buffer.marks.iter().any(|mark| mark.bitmap != 0);
        let end = self.buffers.iter().skip(1).position(ends);
        end.is_some_and(|end| self.buffers.range(..end + 2).all(|buffer| buffer.programmed))
    }

    /// The records that end in buffers which are not programmed: (first chunk, chunks).
    pub(crate) fn unprogrammed_records(&self, geometry: &Geometry) -> Vec<Extent> {
        let per_page = geometry.chunks_per_page();
        let Some(first) = self.buffers.front().map(|b| b.first_page) else { return Vec::new() };
        let pages: Vec<Option<Oob>> = self
            .buffers
            .iter()
            .flat_map(|b| &b.marks)
            .map(|m| Some(Oob { bitmap: m.bitmap, continues: m.continues, ..Oob::default() }))
            .collect();
        let unprogrammed = self.buffers.iter().find(|b| !b.programmed).map_or(u32::MAX, |b| b.first_page * per_page);
        crate::format::oob::extents(&pages, per_page)
            .into_iter()
            .map(|mut e| {
                e.start += first * per_page;
                e
            })
            .filter(|e| e.start + e.chunk_count > unprogrammed)
            .collect()
    }
}
