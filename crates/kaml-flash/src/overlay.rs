//! A medium that is only read, with everything that is written to it kept in memory.
//!
//! Lives here:       which bytes come from below and which from above.
//! Lives elsewhere:  the bytes above (`memory`).
//! May be called by: a caller that needs to recover a device without touching it.
//!
//! Invariants
//! - nothing below is ever changed;
//! - a block is above from its first erase or program on, a piece of the ring or a root from its first write on.

use crate::inline::InlineQueue;
use crate::{AlignedBuf, BlockIndex, Geometry, Io, Medium, MediumError, MemoryMedium, Queue};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Another medium as it is, to which nothing is written: changes are kept in memory and lost with the last clone. Blocks and
/// pieces of the ring are copied when they are first changed.
#[derive(Clone)]
pub struct Overlay {
    shared: Arc<Shared>,
}

struct Shared {
    below: Arc<dyn Medium>,
    above: MemoryMedium,
    is_above: Vec<AtomicBool>,
    /// Pieces of the ring that are above.
    ring_is_above: Mutex<Vec<bool>>,
    root_is_above: [AtomicBool; 2],
    /// What cannot be read of the ring is zeroes.
    passes_over_damage: bool,
}

/// Bytes of a piece of the ring.
const PIECE_BYTES: u64 = 1 << 20;

impl Overlay {
    /// What lies below, for changing in memory.
    pub fn new(below: Arc<dyn Medium>) -> Overlay {
        Overlay::over(below, false)
    }

    /// As [`Overlay::new`], but parts of the ring that cannot be read are zeroes.
    pub fn of_damaged(below: Arc<dyn Medium>) -> Overlay {
        Overlay::over(below, true)
    }

    fn over(below: Arc<dyn Medium>, passes_over_damage: bool) -> Overlay {
        let geometry = below.geometry().clone();
        let above = MemoryMedium::new(geometry.clone());
        let is_above = (0..geometry.block_count()).map(|_| AtomicBool::new(false)).collect();
        let ring_is_above = Mutex::new(vec![false; geometry.ring_bytes.div_ceil(PIECE_BYTES) as usize]);
        let root_is_above = Default::default();
        let shared = Shared { below, above, is_above, ring_is_above, root_is_above, passes_over_damage };
        Overlay { shared: Arc::new(shared) }
    }

    fn of_block(&self, block: BlockIndex) -> &dyn Medium {
        let Shared { below, above, is_above, .. } = &*self.shared;
        match is_above.get(block.0 as usize).is_some_and(|is| is.load(Ordering::Acquire)) {
            true => above,
            false => &**below,
        }
    }
}

impl Shared {
    /// Reads a part of the ring from below. For a damaged part, the sectors that can be read.
    fn ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        match self.below.read_ring(offset, into) {
            Err(error) if self.passes_over_damage => {
                tracing::warn!(%error, "sectors of the commit ring are taken for zeroes");
                let mut sector = AlignedBuf::zeroed(self.below.geometry().sector_bytes as usize);
                for (at, bytes) in (offset..).step_by(sector.len()).zip(into.chunks_mut(sector.len())) {
                    match self.below.read_ring(at, &mut sector) {
                        Ok(()) => bytes.copy_from_slice(&sector),
                        Err(_) => bytes.fill(0),
                    }
                }
                Ok(())
            }
            result => result,
        }
    }

    /// Has the pieces above that a ring write begins or ends in.
    fn take_up(&self, offset: u64, len: u64) -> Result<(), MediumError> {
        let mut is_above = self.ring_is_above.lock().expect("no panics under this lock");
        let ring_bytes = self.below.geometry().ring_bytes;
        for number in offset / PIECE_BYTES..(offset + len).div_ceil(PIECE_BYTES) {
            if is_above[number as usize] {
                continue;
            }
            let offset = number * PIECE_BYTES;
            let len = PIECE_BYTES.min(ring_bytes - offset) as usize;
            let mut data = AlignedBuf::zeroed(len);
            self.ring(offset, &mut data)?;
            self.above.execute(&mut Io::Persist { offset, data, len, barrier: false })?;
            is_above[number as usize] = true;
        }
        Ok(())
    }
}

impl Medium for Overlay {
    fn geometry(&self) -> &Geometry {
        self.shared.below.geometry()
    }

    fn uuid(&self) -> [u8; 16] {
        self.shared.below.uuid()
    }

    fn identity(&self) -> [u8; 16] {
        self.shared.below.identity()
    }

    fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
        let Shared { above, is_above, root_is_above, .. } = &*self.shared;
        let changed = match io {
            Io::Read { at, .. } => return self.of_block(self.geometry().split(*at).0).execute(io),
            Io::ReadOob { at, .. } => return self.of_block(at.block).execute(io),
            Io::Program { at, .. } => Some(at.block),
            Io::Erase { block, .. } => Some(*block),
            Io::Persist { offset, data, len, .. } => {
                self.geometry().check_ring("write", *offset, *len, data.len())?;
                self.shared.take_up(*offset, *len as u64)?;
                None
            }
            Io::Resize { .. } => {
                return Err(MediumError::NotResized { why: "the device is opened for reading".to_owned() });
            }
            Io::WriteRoot { .. } | Io::Flush => None,
        };
        above.execute(io)?;
        if let Some(block) = changed {
            is_above[block.0 as usize].store(true, Ordering::Release);
        }
        if let Io::WriteRoot { slot, .. } = *io {
            root_is_above[usize::from(slot)].store(true, Ordering::Release);
        }
        Ok(())
    }

    fn queue(&self, _depth: u32) -> Box<dyn Queue> {
        Box::new(InlineQueue::new(self.clone()))
    }

    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
        let Shared { below, above, root_is_above, .. } = &*self.shared;
        match root_is_above.get(usize::from(slot)).is_some_and(|is| is.load(Ordering::Acquire)) {
            true => above.read_root(slot, into),
            false => below.read_root(slot, into),
        }
    }

    /// As it is below.
    fn read_mirror(&self, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.shared.below.read_mirror(into)
    }

    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.geometry().check_ring("read", offset, into.len(), into.len())?;
        let is_above = self.shared.ring_is_above.lock().expect("no panics under this lock");
        let end = offset + into.len() as u64;
        let mut at = offset;
        while at < end {
            let number = at / PIECE_BYTES;
            let len = (end - at).min((number + 1) * PIECE_BYTES - at);
            let mut piece = AlignedBuf::zeroed(len as usize);
            match is_above[number as usize] {
                true => self.shared.above.read_ring(at, &mut piece)?,
                false => self.shared.ring(at, &mut piece)?,
            }
            into[(at - offset) as usize..][..len as usize].copy_from_slice(&piece);
            at += len;
        }
        Ok(())
    }

    fn describe(&self) -> String {
        format!("{}; changes are kept in memory", self.shared.below.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FormatOptions, PageAddr};

    /// Goal:   what is written is read back, and nothing of it arrives below.
    /// Method: a block with content below is erased and programmed above; a root is changed; the ring, over the end of one piece
    ///         and in the middle of what existed before.
    #[test]
    fn changes_stay_above() {
        let geometry = Geometry::for_file(32 << 20, 512, &FormatOptions::new(32 << 20)).unwrap();
        let page = geometry.page_bytes as usize;
        let below = MemoryMedium::new(geometry);
        let at = PageAddr { block: BlockIndex(1), page: 0 };
        program(&below, at, 1);
        persist(&below, PIECE_BYTES - 8192, &[3; 16384]);
        let over = Overlay::new(Arc::new(below.clone()));
        assert_eq!(read(&over, at), vec![1; page], "what is below is seen");
        over.execute(&mut Io::Erase { block: at.block, release: true }).unwrap();
        assert_eq!(read(&over, at), vec![0; page]);
        program(&over, at, 2);
        assert_eq!((read(&over, at), read(&below, at)), (vec![2; page], vec![1; page]));

        let ring = |medium: &dyn Medium| {
            let mut found = AlignedBuf::zeroed(24576);
            medium.read_ring(PIECE_BYTES - 8192, &mut found).unwrap();
            found.chunks(4096).map(|bytes| bytes[0]).collect::<Vec<_>>()
        };
        assert_eq!(ring(&over), [3, 3, 3, 3, 0, 0]);
        persist(&over, PIECE_BYTES, &[4; 4096]);
        assert_eq!(ring(&over), [3, 3, 4, 3, 0, 0]);
        persist(&over, PIECE_BYTES - 4096, &[5; 8192]);
        assert_eq!((ring(&over), ring(&below)), (vec![3, 5, 5, 3, 0, 0], vec![3, 3, 3, 3, 0, 0]));
        let mut beyond = AlignedBuf::zeroed(4096);
        assert!(over.read_ring(over.geometry().ring_bytes, &mut beyond).is_err());

        over.execute(&mut Io::WriteRoot { slot: 1, data: AlignedBuf::copy_of(&[6; 4096]) }).unwrap();
        let mut found = AlignedBuf::zeroed(4096);
        for (medium, root) in [(&over as &dyn Medium, 6), (&below, 0)] {
            medium.read_root(1, &mut found).unwrap();
            assert_eq!(found[0], root);
        }
    }

    /// Flash whose ring and first root cannot be read whole.
    struct Damaged {
        medium: MemoryMedium,
        sector: u64,
    }

    impl Medium for Damaged {
        fn geometry(&self) -> &Geometry {
            self.medium.geometry()
        }
        fn uuid(&self) -> [u8; 16] {
            self.medium.uuid()
        }
        fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
            self.medium.execute(io)
        }
        fn queue(&self, depth: u32) -> Box<dyn Queue> {
            self.medium.queue(depth)
        }
        fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
            if slot == 0 { Err(MediumError::Gone) } else { self.medium.read_root(slot, into) }
        }
        fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
            let is_whole = !(offset..offset + into.len() as u64).contains(&self.sector);
            if is_whole { self.medium.read_ring(offset, into) } else { Err(MediumError::Gone) }
        }
        fn describe(&self) -> String {
            self.medium.describe()
        }
    }

    /// Goal:   of a damaged device all is seen but the sectors that cannot be read, also next to what is written; roots that cannot be
    ///         read are named until they are written.
    /// Method: a sector in the middle of the ring and a root fail; reads across it, before and after a write next to it.
    #[test]
    fn damage_is_zeroes_and_no_more() {
        let medium = MemoryMedium::new(Geometry::for_file(32 << 20, 512, &FormatOptions::new(32 << 20)).unwrap());
        persist(&medium, 0, &[7; 8192]);
        let write = |medium: &dyn Medium, slot, byte| {
            medium.execute(&mut Io::WriteRoot { slot, data: AlignedBuf::copy_of(&[byte; 4096]) }).unwrap();
        };
        [0, 1].iter().for_each(|slot| write(&medium, *slot, 9));
        let damaged = Arc::new(Damaged { medium, sector: 1024 });
        let mut found = AlignedBuf::zeroed(4096);
        assert!(Overlay::new(damaged.clone()).read_ring(0, &mut found).is_err());
        let over = Overlay::of_damaged(damaged);
        assert!(over.read_root(0, &mut found).is_err() && over.read_root(2, &mut found).is_err());
        over.read_root(1, &mut found).unwrap();
        assert_eq!(found[0], 9);
        for slot in [0, 1] {
            write(&over, slot, 6);
            over.read_root(slot, &mut found).unwrap();
            assert_eq!(found[0], 6);
        }
        for written in [false, true] {
            over.read_ring(0, &mut found).unwrap();
            let sectors: Vec<u8> = found.chunks(512).map(|bytes| bytes[511]).collect();
            assert_eq!(sectors, [7, 7, 0, 7, if written { 8 } else { 7 }, 7, 7, 7]);
            persist(&over, 2048, &[8; 512]);
        }
    }

    fn persist(medium: &dyn Medium, offset: u64, bytes: &[u8]) {
        let (data, len) = (AlignedBuf::copy_of(bytes), bytes.len());
        medium.execute(&mut Io::Persist { offset, data, len, barrier: true }).unwrap();
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
