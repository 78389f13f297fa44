//! A medium in RAM, for unit tests and speed ceilings, that can lose its power.
//!
//! Lives here:       the bytes, the NAND rules applied to them, what a power cut takes away.
//!                   Memory of erased blocks is kept for the next ones: the system takes longer to give it than a program takes.
//! Lives elsewhere:  virtual time, bit errors, worn-out blocks (a simulator).
//! Implements:       the power cut column of `medium`.

use crate::inline::InlineQueue;
use crate::rules::Programmed;
use crate::{AlignedBuf, BlockIndex, Geometry, GeometryError, Io, Medium, MediumError, PageAddr, Queue};
use std::sync::{Arc, Mutex, MutexGuard};

/// Flash in RAM. A clone is another handle on the same bytes.
#[derive(Clone)]
pub struct MemoryMedium {
    shared: Arc<Shared>,
}

struct Shared {
    geometry: Geometry,
    uuid: [u8; 16],
    state: Mutex<State>,
}

#[derive(Clone)]
struct State {
    blocks: Vec<Block>,
    ring: Vec<u8>,
    roots: [Vec<u8>; 2],
    power: Power,
    /// Memory of blocks that were erased, whatever it holds.
    spare: Vec<Bytes>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Power {
    On,
    /// On until this many more mutating operations; the last one is applied in part.
    Failing(u64),
    Off,
}

#[derive(Clone)]
struct Block {
    programmed: Programmed,
    /// `None` reads as zeroes.
    bytes: Option<Bytes>,
    /// What a power cut may do to the data and OOB of each page.
    pages: Vec<Fate>,
    /// What the block held before an erase that was not flushed.
    before_erase: Option<Option<Bytes>>,
}

/// What becomes of a page's data and OOB in a power cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Uncertain,
    /// Uncertain until the next barrier.
    Urgent,
    Durable,
}

#[derive(Clone)]
struct Bytes {
    data: Box<[u8]>,
    oob: Box<[u8]>,
    /// Pages that were programmed; what stands behind them is of an earlier life of the memory, and reads as zeroes.
    page_count: usize,
}

impl MemoryMedium {
    /// Erased flash of this shape.
    ///
    /// # Panics
    /// When [`Geometry::check`] refuses the geometry; [`MemoryMedium::try_new`] answers it.
    pub fn new(geometry: Geometry) -> Self {
        Self::try_new(geometry).expect("a geometry that `Geometry::check` accepts")
    }

    /// Erased flash of this shape, if it is a legal one.
    pub fn try_new(geometry: Geometry) -> Result<Self, GeometryError> {
        geometry.check()?;
        let blank = Block { programmed: Programmed::Unknown, bytes: None, pages: Vec::new(), before_erase: None };
        let state = State {
            blocks: vec![blank; geometry.block_count() as usize],
            ring: vec![0; geometry.ring_bytes as usize],
            roots: std::array::from_fn(|_| vec![0; geometry.root_bytes as usize]),
            power: Power::On,
            spare: Vec::new(),
        };
        let uuid = *b"KAML in memory\0\0";
        Ok(Self { shared: Arc::new(Shared { geometry, uuid, state: Mutex::new(state) }) })
    }

    /// Takes the memory of all blocks from the system now, so that no program waits for it: for measuring.
    pub fn allocate(&self) {
        let mut state = self.state();
        let empty = state.blocks.iter().filter(|block| block.bytes.is_none()).count();
        let missing = empty.saturating_sub(state.spare.len());
        state.spare.extend((0..missing).map(|_| Bytes::filled(&self.shared.geometry, ALLOCATED)));
    }

    /// Other flash with the same bytes; what happens to one does not happen to the other.
    pub fn clone_state(&self) -> Self {
        let Shared { geometry, uuid, .. } = &*self.shared;
        let mut present = self.state();
        let spare = std::mem::take(&mut present.spare);
        let state = Mutex::new(present.clone());
        present.spare = spare;
        Self { shared: Arc::new(Shared { geometry: geometry.clone(), uuid: *uuid, state }) }
    }

    /// Forgets which pages were programmed, as a medium does that is opened again. Bytes stay.
    pub fn reopen(&self) -> Self {
        for block in &mut self.state().blocks {
            block.programmed = Programmed::Unknown;
        }
        self.clone()
    }

    /// Power fails during the `count`-th mutating operation from now (program, erase, persist, root, flush): a prefix
    /// of its sectors is applied, and it and every later operation answer [`MediumError::Gone`]. 0 means at once.
    pub fn cut_after(&self, count: u64) {
        self.state().power = if count == 0 { Power::Off } else { Power::Failing(count) };
    }

    /// Whether the power failed.
    pub fn is_cut(&self) -> bool {
        self.state().power == Power::Off
    }

    /// Restores power. Of what no flush covered, `seed` chooses what is left: for each page the data and the OOB, apart,
    /// new or old; each erased block whole, erased, or in between.
    pub fn power_on(&self, seed: u64) {
        let geometry = &self.shared.geometry;
        let mut choice = XorShift::new(seed);
        let mut state = self.state();
        for block in &mut state.blocks {
            block.lose_power(geometry, &mut choice);
        }
        state.power = Power::On;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().expect("no panic under this lock")
    }
}

impl State {
    /// Counts a mutating operation. Answers whether it is the one during which power fails.
    fn mutate(&mut self) -> bool {
        match self.power {
            Power::Failing(1) => {
                self.power = Power::Off;
                true
            }
            Power::Failing(left) => {
                self.power = Power::Failing(left - 1);
                false
            }
            Power::On | Power::Off => false,
        }
    }

    fn program(
        &mut self,
        geometry: &Geometry,
        at: PageAddr,
        data: &[u8],
        oob: &[u8],
        urgent: bool,
    ) -> Result<(), MediumError> {
        let end =
            geometry.check_program(at, data.len(), oob.len(), || self.blocks[at.block.0 as usize].programmed.next())?;
        let torn = self.mutate();
        let block = &mut self.blocks[at.block.0 as usize];
        block.programmed = Programmed::Pages(end);
        block.pages.resize(geometry.pages_per_block as usize, Fate::Uncertain);
        let spare = &mut self.spare;
        let bytes = block.bytes.get_or_insert_with(|| spare.pop().unwrap_or_else(|| Bytes::filled(geometry, 0)));
        // A torn program leaves its data in part and no OOB: OOB is written after.
        match torn {
            true => bytes.program(geometry, at.page, end, sector_prefix(geometry, data), &[]),
            false => bytes.program(geometry, at.page, end, data, oob),
        }
        let fate = if urgent && !torn { Fate::Urgent } else { Fate::Uncertain };
        block.pages[at.page as usize..end as usize].fill(fate);
        gone_if(torn)
    }

    fn erase(&mut self, block: BlockIndex) -> Result<(), MediumError> {
        let torn = self.mutate();
        let block = &mut self.blocks[block.0 as usize];
        let old = block.bytes.take();
        // Of two erases without a flush between, the bytes before the first are the older ones and may come back too;
        // the younger ones are as legal, and kept because they are what the firmware has most use for losing.
        let older = block.before_erase.replace(old);
        self.spare.extend(older.flatten().map(Bytes::emptied));
        block.pages.clear();
        block.programmed = Programmed::Pages(0);
        gone_if(torn)
    }

    fn flush(&mut self) -> Result<(), MediumError> {
        if self.mutate() {
            return Err(MediumError::Gone);
        }
        for block in &mut self.blocks {
            self.spare.extend(block.before_erase.take().flatten().map(Bytes::emptied));
            block.pages.fill(Fate::Durable);
        }
        Ok(())
    }

    /// When power fails during it, the bytes are there and what they rely on may not be: the worst that can happen.
    fn persist_barrier(&mut self, at: usize, bytes: &[u8]) -> Result<(), MediumError> {
        let torn = self.mutate();
        copy_at(&mut self.ring, at, bytes);
        if !torn {
            let urgent = |fate: &&mut Fate| **fate == Fate::Urgent;
            self.blocks.iter_mut().flat_map(|block| block.pages.iter_mut().filter(urgent)).for_each(|fate| {
                *fate = Fate::Durable;
            });
        }
        gone_if(torn)
    }

    /// Overwrites part of the ring or a root slot.
    fn overwrite(
        &mut self,
        geometry: &Geometry,
        region: fn(&mut Self) -> &mut Vec<u8>,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), MediumError> {
        let torn = self.mutate();
        let bytes = if torn { sector_prefix(geometry, bytes) } else { bytes };
        copy_at(region(self), at, bytes);
        gone_if(torn)
    }
}

impl Block {
    fn lose_power(&mut self, geometry: &Geometry, choice: &mut XorShift) {
        self.programmed = Programmed::Unknown;
        let pages = std::mem::take(&mut self.pages);
        let is_durable = |page: usize| pages.get(page) == Some(&Fate::Durable);
        let before = self.before_erase.take();
        if before.is_none() && pages.is_empty() {
            return;
        }
        let whole = |bytes: Option<Bytes>| bytes.unwrap_or_else(|| Bytes::filled(geometry, 0)).whole(geometry);
        let (older, mut bytes) = (whole(before.flatten()), whole(self.bytes.take()));
        // 0: all old, 1: all new, else page by page.
        let mode = choice.below(4);
        for page in (0..geometry.pages_per_block as usize).filter(|&page| !is_durable(page)) {
            for (new, old, each) in [
                (&mut bytes.data, &older.data, geometry.page_bytes as usize),
                (&mut bytes.oob, &older.oob, geometry.oob_bytes as usize),
            ] {
                if mode == 0 || (mode > 1 && choice.below(2) == 0) {
                    let range = page * each..(page + 1) * each;
                    new[range.clone()].copy_from_slice(&old[range]);
                }
            }
        }
        self.bytes = Some(bytes);
    }
}

impl Bytes {
    /// Memory of a block without a page that was programmed.
    fn filled(geometry: &Geometry, with: u8) -> Self {
        let memory = |each: u32| vec![with; each as usize * geometry.pages_per_block as usize].into_boxed_slice();
        Self { data: memory(geometry.page_bytes), oob: memory(geometry.oob_bytes), page_count: 0 }
    }

    fn emptied(self) -> Self {
        Self { page_count: 0, ..self }
    }

    /// With zeroes in the pages up to `end`, where they were not programmed; they count as programmed now.
    fn reach(&mut self, geometry: &Geometry, end: usize) {
        for (bytes, each) in [(&mut self.data, geometry.page_bytes), (&mut self.oob, geometry.oob_bytes)] {
            let each = each as usize;
            bytes[self.page_count.min(end) * each..end * each].fill(0);
        }
        self.page_count = self.page_count.max(end);
    }

    /// With zeroes in all pages that were not programmed.
    fn whole(mut self, geometry: &Geometry) -> Self {
        self.reach(geometry, geometry.pages_per_block as usize);
        self
    }

    /// Puts data and OOB into pages up to `end`; where they are too short, the pages keep what is there.
    fn program(&mut self, geometry: &Geometry, page: u32, end: u32, data: &[u8], oob: &[u8]) {
        let (page, page_bytes, oob_bytes) = (page as usize, geometry.page_bytes as usize, geometry.oob_bytes as usize);
        let is_whole = data.len() == (end as usize - page) * page_bytes;
        self.reach(geometry, if is_whole { page } else { end as usize });
        copy_at(&mut self.data, page * page_bytes, data);
        copy_at(&mut self.oob, page * oob_bytes, oob);
        self.page_count = self.page_count.max(end as usize);
    }

    /// The part of all pages' data, or OOB, that was programmed.
    fn programmed<'a>(&self, bytes: &'a [u8], each: u32) -> &'a [u8] {
        &bytes[..self.page_count * each as usize]
    }
}

/// What memory is filled with that is taken before it is needed: anything that makes the system give it.
const ALLOCATED: u8 = 0xff;

fn gone_if(torn: bool) -> Result<(), MediumError> {
    if torn { Err(MediumError::Gone) } else { Ok(()) }
}

fn copy_at(to: &mut [u8], at: usize, from: &[u8]) {
    to[at..at + from.len()].copy_from_slice(from);
}

/// Half of the sectors, from the first.
fn sector_prefix<'a>(geometry: &Geometry, bytes: &'a [u8]) -> &'a [u8] {
    let sector = geometry.sector_bytes as usize;
    &bytes[..bytes.len() / sector / 2 * sector]
}

/// Reads bytes, and zeroes behind their end.
fn read_back(from: &[u8], at: u64, into: &mut [u8]) {
    let from = &from[(at as usize).min(from.len())..];
    let (known, rest) = into.split_at_mut(from.len().min(into.len()));
    known.copy_from_slice(&from[..known.len()]);
    rest.fill(0);
}

/// Marsaglia's xorshift64: enough to choose among crash states, and the same everywhere.
struct XorShift(u64);

impl XorShift {
    fn new(seed: u64) -> Self {
        // Any seed will do except the fixed point zero; the multiplier spreads small seeds over all bits.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) % bound
    }
}

impl Medium for MemoryMedium {
    fn geometry(&self) -> &Geometry {
        &self.shared.geometry
    }

    fn uuid(&self) -> [u8; 16] {
        self.shared.uuid
    }

    fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
        let geometry = &self.shared.geometry;
        let mut state = self.state();
        if state.power == Power::Off {
            return Err(MediumError::Gone);
        }
        match io {
            Io::Read { at, into } => {
                let (block, from) = geometry.check_read(*at, into.len())?;
                let bytes = state.blocks[block.0 as usize].bytes.as_ref();
                read_back(bytes.map_or(&[], |b| b.programmed(&b.data, geometry.page_bytes)), from, into);
                Ok(())
            }
            Io::ReadOob { at, into } => {
                let from = geometry.check_read_oob(*at, into.len())?;
                let bytes = state.blocks[at.block.0 as usize].bytes.as_ref();
                read_back(bytes.map_or(&[], |b| b.programmed(&b.oob, geometry.oob_bytes)), from, into);
                Ok(())
            }
            Io::Program { at, data, oob, urgent } => state.program(geometry, *at, data, oob, *urgent),
            Io::Erase { block, release: _ } => {
                geometry.check_erase(*block)?;
                state.erase(*block)
            }
            Io::Persist { offset, data, len, barrier } => {
                geometry.check_ring("write", *offset, *len, data.len())?;
                if *barrier {
                    return state.persist_barrier(*offset as usize, &data[..*len]);
                }
                state.overwrite(geometry, |state| &mut state.ring, *offset as usize, &data[..*len])
            }
            Io::WriteRoot { slot, data } => {
                geometry.check_root("write", *slot, data)?;
                let region: fn(&mut State) -> &mut Vec<u8> =
                    if *slot == 0 { |state| &mut state.roots[0] } else { |state| &mut state.roots[1] };
                state.overwrite(geometry, region, 0, data)
            }
            Io::Flush => state.flush(),
        }
    }

    fn queue(&self, _depth: u32) -> Box<dyn Queue> {
        Box::new(InlineQueue::new(self.clone()))
    }

    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.shared.geometry.check_root("read", slot, into)?;
        let state = self.state();
        if state.power == Power::Off {
            return Err(MediumError::Gone);
        }
        read_back(&state.roots[usize::from(slot)], 0, into);
        Ok(())
    }

    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.shared.geometry.check_ring("read", offset, into.len(), into.len())?;
        let state = self.state();
        if state.power == Power::Off {
            return Err(MediumError::Gone);
        }
        read_back(&state.ring, offset, into);
        Ok(())
    }

    fn describe(&self) -> String {
        format!("memory, {} bytes", self.shared.geometry.block_bytes() * u64::from(self.shared.geometry.block_count()))
    }
}
