//! A medium in RAM, for unit tests and speed ceilings, that can lose its power.
//!
//! Lives here:       the bytes, the NAND rules applied to them, what a power cut takes away.
//!                   Memory of erased blocks is kept for the next ones: the system takes longer to give it than a program takes.
//! Lives elsewhere:  virtual time, bit errors, worn-out blocks (a simulator).
//! Implements:       the power cut column of `medium`.

use crate::buffer::PREFETCH_BYTES;
use crate::inline::InlineQueue;
use crate::rules::Programmed;
use crate::{AlignedBuf, BlockIndex, Geometry, GeometryError, Growing, Io, Medium, MediumError, PageAddr, Queue};
use crate::{copy_past_caches, prefer_huge_pages};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Flash in RAM. A clone is another handle on the same bytes.
#[derive(Clone)]
pub struct MemoryMedium {
    shared: Arc<Shared>,
    /// As of opening.
    geometry: Geometry,
}

/// Each part has a lock of its own, so operations wait for others on the same block only. Nobody holds two locks, but for
/// those of `spare` and `urgent`, which are taken last.
struct Shared {
    /// With the most blocks.
    geometry: Geometry,
    blocks_per_die: AtomicU32,
    /// Whether the size can be changed.
    resizes: AtomicBool,
    uuid: [u8; 16],
    power: Power,
    blocks: Growing<RwLock<Block>>,
    /// Blocks with pages that the next barrier makes durable.
    urgent: Mutex<Vec<BlockIndex>>,
    ring: Mutex<Region>,
    roots: [Mutex<Region>; 2],
    /// Memory of blocks that were erased, whatever it holds.
    spare: Mutex<Vec<Bytes>>,
}

/// How many mutating operations are left before power fails; the last one is applied in part.
struct Power(AtomicU64);

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
    data: Region,
    oob: Region,
    /// Pages that were programmed; what follows them is of an earlier life of the memory, and reads as zeroes.
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

    /// Erased flash of this shape, if it is a legal one. All such media have one UUID, so tests that use them are the same each time.
    pub fn try_new(geometry: Geometry) -> Result<Self, GeometryError> {
        MemoryMedium::with_uuid(geometry, *b"KAML in memory\0\0")
    }

    /// As [`MemoryMedium::try_new`], with a UUID of its own.
    pub fn with_uuid(geometry: Geometry, uuid: [u8; 16]) -> Result<Self, GeometryError> {
        geometry.check()?;
        let blank = || RwLock::new(Block::erased(Programmed::Unknown));
        let shared = Shared {
            uuid,
            power: Power(AtomicU64::new(Power::ON)),
            blocks: Growing::new((0..geometry.block_count()).map(|_| blank())),
            blocks_per_die: AtomicU32::new(geometry.blocks_per_die),
            resizes: AtomicBool::new(true),
            urgent: Mutex::default(),
            ring: Mutex::new(Region::zeroed(geometry.ring_bytes as usize)),
            roots: std::array::from_fn(|_| Mutex::new(Region::zeroed(geometry.root_bytes as usize))),
            spare: Mutex::default(),
            geometry: geometry.widest(),
        };
        Ok(Self { shared: Arc::new(shared), geometry })
    }

    /// Takes the memory of all blocks from the system now, so no program waits for it: for measuring.
    pub fn allocate(&self) {
        let shared = &self.shared;
        let empty = shared.blocks().filter(|block| read(block).bytes.is_none()).count();
        let mut spare = lock(&shared.spare);
        let missing = empty.saturating_sub(spare.len());
        spare.extend((0..missing).map(|_| Bytes::filled(&shared.geometry, ALLOCATED)));
    }

    /// Other flash with the same bytes; what happens to one does not happen to the other.
    pub fn clone_state(&self) -> Self {
        let shared = &self.shared;
        let copy = Shared {
            geometry: shared.geometry.clone(),
            uuid: shared.uuid,
            power: Power(AtomicU64::new(shared.power.0.load(Ordering::Relaxed))),
            blocks: Growing::new(shared.blocks().map(|block| RwLock::new(read(block).clone()))),
            blocks_per_die: AtomicU32::new(shared.blocks_per_die.load(Ordering::Acquire)),
            resizes: AtomicBool::new(true),
            urgent: Mutex::new(lock(&shared.urgent).clone()),
            ring: Mutex::new(lock(&shared.ring).clone()),
            roots: shared.roots.each_ref().map(|root| Mutex::new(lock(root).clone())),
            spare: Mutex::default(),
        };
        let geometry = self.geometry_now();
        Self { shared: Arc::new(copy), geometry }
    }

    /// Forgets which pages were programmed, as a medium does that is opened again. Bytes are kept.
    pub fn reopen(&self) -> Self {
        for block in self.shared.blocks() {
            write(block).programmed = Programmed::Unknown;
        }
        Self { shared: self.shared.clone(), geometry: self.geometry_now() }
    }

    /// Power fails during the `count`-th mutating operation from now (program, erase, persist, root, flush): a prefix
    /// of its sectors is applied, and it and every later operation answer [`MediumError::Gone`]. 0 means at once.
    pub fn cut_after(&self, count: u64) {
        self.shared.power.0.store(count, Ordering::Relaxed);
    }

    /// The shape as it is now.
    fn geometry_now(&self) -> Geometry {
        Geometry { blocks_per_die: self.shared.blocks_per_die.load(Ordering::Acquire), ..self.geometry.clone() }
    }

    /// From now on the size can be changed, or every change finds no space, as in a full file system.
    pub fn allow_resizing(&self, may: bool) {
        self.shared.resizes.store(may, Ordering::Relaxed);
    }

    /// Whether the power failed.
    pub fn is_cut(&self) -> bool {
        self.shared.power.is_off()
    }

    /// Restores power. `seed` chooses what remains of everything that no flush covered: for each page the data and the OOB, apart,
    /// new or old; each erased block whole, erased, or in between.
    pub fn power_on(&self, seed: u64) {
        let mut choice = XorShift::new(seed);
        for block in self.shared.blocks() {
            write(block).lose_power(&self.shared.geometry, &mut choice);
        }
        lock(&self.shared.urgent).clear();
        self.shared.power.0.store(Power::ON, Ordering::Relaxed);
    }
}

impl Power {
    const ON: u64 = u64::MAX;
    const OFF: u64 = 0;

    fn is_off(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::OFF
    }

    /// Counts a mutating operation. Returns whether power failed during it.
    fn mutate(&self) -> bool {
        let count = |left| (left != Self::ON).then(|| u64::saturating_sub(left, 1));
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_ok_and(|left| left <= 1)
    }
}

impl Shared {
    fn block(&self, block: BlockIndex) -> &RwLock<Block> {
        &self.blocks[block.0 as usize]
    }

    fn count(&self) -> u32 {
        self.blocks_per_die.load(Ordering::Acquire) * self.geometry.die_count()
    }

    fn blocks(&self) -> impl Iterator<Item = &RwLock<Block>> {
        (0..self.count()).map(|block| self.block(BlockIndex(block)))
    }

    /// Refuses blocks that do not exist just now.
    fn check_block(&self, block: BlockIndex) -> Result<(), MediumError> {
        match block.0 < self.count() {
            true => Ok(()),
            false => Err(MediumError::BadRange { what: format!("{block} of {}", self.count()) }),
        }
    }

    /// A power cut during it leaves the old size.
    fn resize(&self, blocks_per_die: u32) -> Result<(), MediumError> {
        if let Err(error) = (Geometry { blocks_per_die, ..self.geometry.clone() }).check() {
            return Err(MediumError::NotResized { why: error.to_string() });
        }
        if !self.resizes.load(Ordering::Relaxed) {
            return Err(MediumError::NoSpace { what: "a change of size".to_owned() });
        }
        let torn = self.power.mutate();
        if !torn {
            let (old, new) = (self.count(), blocks_per_die * self.geometry.die_count());
            self.blocks.grow(new as usize, || RwLock::new(Block::erased(Programmed::Unknown)));
            (new..old).for_each(|block| *write(self.block(BlockIndex(block))) = Block::erased(Programmed::Unknown));
            self.blocks_per_die.store(blocks_per_die, Ordering::Release);
        }
        gone_if(torn)
    }

    /// Memory for a block.
    fn bytes(&self) -> Bytes {
        let spare = lock(&self.spare).pop();
        spare.unwrap_or_else(|| Bytes::filled(&self.geometry, 0))
    }

    fn program(&self, at: PageAddr, data: &[u8], oob: &[u8], urgent: bool) -> Result<(), MediumError> {
        let geometry = &self.geometry;
        self.check_block(at.block)?;
        let mut block = self.blocks.get(at.block.0 as usize).map(write);
        let next = || block.as_ref().map_or(0, |block| block.programmed.next());
        let end = geometry.check_program(at, data.len(), oob.len(), next)?;
        let block = block.as_mut().expect("its address was checked");
        let torn = self.power.mutate();
        block.programmed = Programmed::Pages(end);
        block.pages.resize(geometry.pages_per_block as usize, Fate::Uncertain);
        let bytes = block.bytes.get_or_insert_with(|| self.bytes());
        // A torn program leaves its data in part and no OOB: OOB is written after.
        match torn {
            true => bytes.program(geometry, at.page, end, sector_prefix(geometry, data), &[]),
            false => bytes.program(geometry, at.page, end, data, oob),
        }
        let fate = if urgent && !torn { Fate::Urgent } else { Fate::Uncertain };
        block.pages[at.page as usize..end as usize].fill(fate);
        if fate == Fate::Urgent {
            lock(&self.urgent).push(at.block);
        }
        gone_if(torn)
    }

    fn erase(&self, at: BlockIndex) -> Result<(), MediumError> {
        let mut block = write(self.block(at));
        let torn = self.power.mutate();
        let old = block.bytes.take();
        // If there were two erases without a flush between them, the bytes before the first are the older ones and may come back too;
        // the younger ones are as legal, and kept because they are what the firmware has most use for losing.
        let older = block.before_erase.replace(old);
        lock(&self.spare).extend(older.flatten().map(Bytes::emptied));
        block.pages.clear();
        block.programmed = Programmed::Pages(0);
        gone_if(torn)
    }

    fn flush(&self) -> Result<(), MediumError> {
        if self.power.mutate() {
            return Err(MediumError::Gone);
        }
        for block in self.blocks() {
            let mut block = write(block);
            if let Some(before) = block.before_erase.take() {
                lock(&self.spare).extend(before.map(Bytes::emptied));
            }
            block.pages.fill(Fate::Durable);
        }
        Ok(())
    }

    /// When power fails during it, the bytes exist and what they rely on may be missing: the worst that can happen.
    fn persist_barrier(&self, at: usize, bytes: &[u8]) -> Result<(), MediumError> {
        let urgent = std::mem::take(&mut *lock(&self.urgent));
        let torn = self.power.mutate();
        copy_past_caches(&mut lock(&self.ring)[at..at + bytes.len()], bytes);
        if !torn {
            for at in urgent {
                let mut block = write(self.block(at));
                block.pages.iter_mut().filter(|fate| **fate == Fate::Urgent).for_each(|fate| *fate = Fate::Durable);
            }
        }
        gone_if(torn)
    }

    /// Overwrites part of the ring or a root slot.
    fn overwrite(&self, region: &Mutex<Region>, at: usize, bytes: &[u8]) -> Result<(), MediumError> {
        let torn = self.power.mutate();
        let bytes = if torn { sector_prefix(&self.geometry, bytes) } else { bytes };
        copy_past_caches(&mut lock(region)[at..at + bytes.len()], bytes);
        gone_if(torn)
    }
}

impl Block {
    fn erased(programmed: Programmed) -> Self {
        Self { programmed, bytes: None, pages: Vec::new(), before_erase: None }
    }

    fn bytes(&self) -> Option<&Bytes> {
        self.bytes.as_ref()
    }

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
        let memory = |each: u32| {
            let mut bytes = Region::zeroed(each as usize * geometry.pages_per_block as usize);
            if with != 0 {
                bytes.fill(with);
            }
            bytes
        };
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

    /// Puts data and OOB into pages up to `end`; where they are too short, the pages keep what exists.
    fn program(&mut self, geometry: &Geometry, page: u32, end: u32, data: &[u8], oob: &[u8]) {
        let (page, page_bytes, oob_bytes) = (page as usize, geometry.page_bytes as usize, geometry.oob_bytes as usize);
        let is_whole = data.len() == (end as usize - page) * page_bytes;
        self.reach(geometry, if is_whole { page } else { end as usize });
        copy_past_caches(&mut self.data[page * page_bytes..][..data.len()], data);
        self.oob[page * oob_bytes..][..oob.len()].copy_from_slice(oob);
        self.page_count = self.page_count.max(end as usize);
    }

    /// The part of all pages' data, or OOB, that was programmed.
    fn programmed<'a>(&self, bytes: &'a [u8], each: u32) -> &'a [u8] {
        &bytes[..self.page_count * each as usize]
    }
}

/// Bytes that lie on huge pages where the system has them, but for the remainder of them at the end.
struct Region {
    memory: Box<[u8]>,
    /// Where they begin in it.
    start: usize,
    len: usize,
}

/// The least memory that is worth an alignment.
const HUGE_PAGE_BYTES: usize = 2 << 20;

impl Region {
    fn zeroed(len: usize) -> Self {
        let slack = if len < HUGE_PAGE_BYTES { 0 } else { HUGE_PAGE_BYTES };
        let memory = vec![0; len + slack].into_boxed_slice();
        let start = memory.as_ptr().align_offset(HUGE_PAGE_BYTES).min(slack);
        prefer_huge_pages(&memory[start..][..len]);
        Self { memory, start, len }
    }
}

impl Clone for Region {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len);
        copy.copy_from_slice(self);
        copy
    }
}

impl Deref for Region {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

/// What memory is filled with that is taken before it is needed: anything that makes the system give it.
const ALLOCATED: u8 = 0xff;

fn gone_if(torn: bool) -> Result<(), MediumError> {
    if torn { Err(MediumError::Gone) } else { Ok(()) }
}

fn lock<T>(part: &Mutex<T>) -> MutexGuard<'_, T> {
    part.lock().expect("no panic under this lock")
}

fn read(block: &RwLock<Block>) -> RwLockReadGuard<'_, Block> {
    block.read().expect("no panic under this lock")
}

fn write(block: &RwLock<Block>) -> RwLockWriteGuard<'_, Block> {
    block.write().expect("no panic under this lock")
}

/// Half of the sectors, from the first.
fn sector_prefix<'a>(geometry: &Geometry, bytes: &'a [u8]) -> &'a [u8] {
    let sector = geometry.sector_bytes as usize;
    &bytes[..bytes.len() / sector / 2 * sector]
}

/// Reads bytes, and zeroes after their end.
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
        &self.geometry
    }

    fn blocks_in(&self, capacity_bytes: u64) -> Option<u32> {
        let die_bytes = self.geometry.block_bytes() * u64::from(self.geometry.die_count());
        Some((capacity_bytes / die_bytes).min(u64::from(self.shared.geometry.blocks_per_die)) as u32)
    }

    fn uuid(&self) -> [u8; 16] {
        self.shared.uuid
    }

    fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
        let Shared { geometry, ring, roots, .. } = &*self.shared;
        if self.is_cut() {
            return Err(MediumError::Gone);
        }
        match io {
            Io::Read { at, into } => {
                let (block, from) = geometry.check_read(*at, into.len())?;
                self.shared.check_block(block)?;
                let block = read(self.shared.block(block));
                read_back(block.bytes().map_or(&[], |b| b.programmed(&b.data, geometry.page_bytes)), from, into);
                Ok(())
            }
            Io::ReadOob { at, into } => {
                let from = geometry.check_read_oob(*at, into.len())?;
                self.shared.check_block(at.block)?;
                let block = read(self.shared.block(at.block));
                read_back(block.bytes().map_or(&[], |b| b.programmed(&b.oob, geometry.oob_bytes)), from, into);
                Ok(())
            }
            Io::Program { at, data, oob, urgent } => self.shared.program(*at, data, oob, *urgent),
            Io::Erase { block, release: _ } => {
                geometry.check_erase(*block)?;
                self.shared.check_block(*block)?;
                self.shared.erase(*block)
            }
            Io::Persist { offset, data, len, barrier } => {
                geometry.check_ring("write", *offset, *len, data.len())?;
                match barrier {
                    true => self.shared.persist_barrier(*offset as usize, &data[..*len]),
                    false => self.shared.overwrite(ring, *offset as usize, &data[..*len]),
                }
            }
            Io::WriteRoot { slot, data } => {
                geometry.check_root("write", *slot, data)?;
                self.shared.overwrite(&roots[usize::from(*slot)], 0, data)
            }
            Io::Flush => self.shared.flush(),
            Io::Resize { blocks_per_die, .. } => self.shared.resize(*blocks_per_die),
        }
    }

    fn queue(&self, _depth: u32) -> Box<dyn Queue> {
        Box::new(InlineQueue::new(self.clone()))
    }

    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.shared.geometry.check_root("read", slot, into)?;
        if self.is_cut() {
            return Err(MediumError::Gone);
        }
        read_back(&lock(&self.shared.roots[usize::from(slot)]), 0, into);
        Ok(())
    }

    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.shared.geometry.check_ring("read", offset, into.len(), into.len())?;
        if self.is_cut() {
            return Err(MediumError::Gone);
        }
        read_back(&lock(&self.shared.ring), offset, into);
        Ok(())
    }

    fn prefetch(&self, io: &Io) {
        let Io::Read { at, into } = io else { return };
        let geometry = &self.shared.geometry;
        if let Ok((block, from)) = geometry.check_read(*at, into.len())
            && self.shared.check_block(block).is_ok()
        {
            let block = read(self.shared.block(block));
            let bytes = block.bytes().map_or(&[][..], |b| b.programmed(&b.data, geometry.page_bytes));
            if let Some(bytes) = bytes.get(from as usize..from as usize + into.len()) {
                crate::prefetch(&bytes[..bytes.len().min(PREFETCH_BYTES)]);
            }
        }
    }

    fn is_immediate(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        format!("memory, {} bytes", self.geometry.block_bytes() * u64::from(self.shared.count()))
    }
}
