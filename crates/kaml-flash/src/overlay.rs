//! A medium that is only read, with everything that is written to it kept in memory.
//!
//! Lives here:       which bytes come from below and which from above.
//! Lives elsewhere:  the bytes above (`memory`).
//! May be called by: whoever wants to recover a device without touching it.
//!
//! Invariants
//! - nothing below is ever changed;
//! - a block is above from its first erase or program on.

use crate::inline::InlineQueue;
use crate::{AlignedBuf, BlockIndex, Geometry, Io, Medium, MediumError, MemoryMedium, Queue};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Another medium as it is, to which nothing is written: changes stay in memory and are gone with the last clone. Ring and
/// roots are copied, blocks when they are first changed.
#[derive(Clone)]
pub struct Overlay {
    shared: Arc<Shared>,
}

struct Shared {
    below: Arc<dyn Medium>,
    above: MemoryMedium,
    is_above: Vec<AtomicBool>,
}

/// Bytes of the ring copied at a time.
const COPY_BYTES: u64 = 1 << 20;

impl Overlay {
    /// What lies below, for changing in memory. Fails if ring or roots cannot be read.
    pub fn new(below: Arc<dyn Medium>) -> Result<Overlay, MediumError> {
        Overlay::copying(below, Err)
    }

    /// As [`Overlay::new`], but parts of ring and roots that cannot be read are zeroes.
    pub fn of_damaged(below: Arc<dyn Medium>) -> Overlay {
        let copied = Overlay::copying(below, |error| {
            tracing::warn!(%error, "not copied");
            Ok(())
        });
        copied.expect("errors are passed over")
    }

    /// `unread` answers what to do about a part that cannot be read.
    fn copying(
        below: Arc<dyn Medium>,
        unread: impl Fn(MediumError) -> Result<(), MediumError>,
    ) -> Result<Overlay, MediumError> {
        let geometry = below.geometry().clone();
        let above = MemoryMedium::new(geometry.clone());
        let is_above = (0..geometry.block_count()).map(|_| AtomicBool::new(false)).collect();
        for slot in [0, 1] {
            let mut data = AlignedBuf::zeroed(geometry.root_bytes as usize);
            let read = below.read_root(slot, &mut data);
            read.and_then(|()| above.execute(&mut Io::WriteRoot { slot, data })).or_else(&unread)?;
        }
        for offset in (0..geometry.ring_bytes).step_by(COPY_BYTES as usize) {
            let len = COPY_BYTES.min(geometry.ring_bytes - offset) as usize;
            let mut data = AlignedBuf::zeroed(len);
            let read = below.read_ring(offset, &mut data);
            let mut write = Io::Persist { offset, data, len, barrier: false };
            read.and_then(|()| above.execute(&mut write)).or_else(&unread)?;
        }
        Ok(Overlay { shared: Arc::new(Shared { below, above, is_above }) })
    }

    fn of_block(&self, block: BlockIndex) -> &dyn Medium {
        let Shared { below, above, is_above } = &*self.shared;
        match is_above.get(block.0 as usize).is_some_and(|is| is.load(Ordering::Acquire)) {
            true => above,
            false => &**below,
        }
    }
}

impl Medium for Overlay {
    fn geometry(&self) -> &Geometry {
        self.shared.below.geometry()
    }

    fn uuid(&self) -> [u8; 16] {
        self.shared.below.uuid()
    }

    fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
        let Shared { above, is_above, .. } = &*self.shared;
        let changed = match io {
            Io::Read { at, .. } => return self.of_block(self.geometry().split(*at).0).execute(io),
            Io::ReadOob { at, .. } => return self.of_block(at.block).execute(io),
            Io::Program { at, .. } => Some(at.block),
            Io::Erase { block, .. } => Some(*block),
            Io::Persist { .. } | Io::WriteRoot { .. } | Io::Flush => None,
        };
        above.execute(io)?;
        if let Some(block) = changed {
            is_above[block.0 as usize].store(true, Ordering::Release);
        }
        Ok(())
    }

    fn queue(&self, _depth: u32) -> Box<dyn Queue> {
        Box::new(InlineQueue::new(self.clone()))
    }

    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.shared.above.read_root(slot, into)
    }

    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.shared.above.read_ring(offset, into)
    }

    fn describe(&self) -> String {
        format!("{}; changes stay in memory", self.shared.below.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FormatOptions, PageAddr};

    /// Goal:   what is written is read back, and nothing of it arrives below.
    /// Method: a block with content below is erased and programmed above; ring and a root are changed.
    #[test]
    fn changes_stay_above() {
        let geometry = Geometry::for_file(32 << 20, 512, &FormatOptions::new(32 << 20)).unwrap();
        let page = geometry.page_bytes as usize;
        let below = MemoryMedium::new(geometry);
        let at = PageAddr { block: BlockIndex(1), page: 0 };
        program(&below, at, 1);
        let over = Overlay::new(Arc::new(below.clone())).unwrap();
        assert_eq!(read(&over, at), vec![1; page], "what is below is seen");
        over.execute(&mut Io::Erase { block: at.block, release: true }).unwrap();
        assert_eq!(read(&over, at), vec![0; page]);
        program(&over, at, 2);
        let data = AlignedBuf::copy_of(&[3; 4096]);
        over.execute(&mut Io::Persist { offset: 0, data, len: 4096, barrier: true }).unwrap();
        over.execute(&mut Io::WriteRoot { slot: 1, data: AlignedBuf::copy_of(&[4; 4096]) }).unwrap();
        let mut found = AlignedBuf::zeroed(4096);
        assert_eq!((read(&over, at), read(&below, at)), (vec![2; page], vec![1; page]));
        for (medium, ring, root) in [(&over as &dyn Medium, 3, 4), (&below, 0, 0)] {
            medium.read_ring(0, &mut found).unwrap();
            assert_eq!(found[0], ring);
            medium.read_root(1, &mut found).unwrap();
            assert_eq!(found[0], root);
        }
    }

    fn program(medium: &dyn Medium, at: PageAddr, byte: u8) {
        let geometry = medium.geometry();
        let pages = geometry.pages_per_program as usize;
        let data = Arc::new(AlignedBuf::copy_of(&vec![byte; pages * geometry.page_bytes as usize]));
        let oob = vec![byte; pages * geometry.oob_bytes as usize];
        medium.execute(&mut Io::Program { at, data, oob, urgent: false }).unwrap();
    }

    fn read(medium: &dyn Medium, at: PageAddr) -> Vec<u8> {
        let geometry = medium.geometry();
        let into = AlignedBuf::zeroed(geometry.page_bytes as usize);
        let mut io = Io::Read { at: geometry.chunk_at(at.block, at.page * geometry.chunks_per_page()), into };
        medium.execute(&mut io).unwrap();
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        into.to_vec()
    }
}
