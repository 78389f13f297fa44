//! The flash array, the commit ring and the root slots as bytes, and what a power cut leaves of them.
//!
//! Lives here:       pages, which of them are durable, NAND rules that need the array's state, crash states.
//! Lives elsewhere:  when an operation is done (`timing`, `engine`), which ones fail (`faults`).
//! Implements:       the power cut column of `kaml_flash::Medium`'s contract, at its weakest: whatever the table allows
//!                   to be lost is lost in some crash state.

use crate::pack::Packed;
use crate::rng::Rng;
use kaml_flash::{BlockIndex, ChunkAddr, Geometry, Io, MediumError, PageAddr};
use std::ops::Range;
use std::sync::Arc;

/// How page data is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// As it is.
    Bytes,
    /// As words and runs of words: small for synthesised values, exact for all.
    Runs,
}

/// The processor itself prefetches the remainder of a longer write to the ring.
const RING_PREFETCH_BYTES: usize = 1024;
/// Counts completed operations; page states name the one that made them.
pub(crate) type Done = u64;
/// Never durable: not completed before the power cut.
const UNFINISHED: Done = u64::MAX;

#[derive(Clone)]
enum Data {
    Bytes(Arc<[u8]>),
    Runs(Packed),
}

#[derive(Clone)]
struct Page {
    data: Data,
    oob: Arc<[u8]>,
    /// The completion that it depends on; 0: durable.
    done: Done,
}

#[derive(Clone, Default)]
struct Block {
    /// The opening of the medium that `programmed` belongs to.
    life: u32,
    /// Pages programmed or about to be, from page 0.
    programmed: u32,
    /// Erased in this life.
    erased: bool,
    /// Empty: nothing programmed since the last erase.
    pages: Vec<Option<Page>>,
    /// What existed before an erase that may not be durable, and the completion of that erase.
    before: Option<(Done, Vec<Option<Page>>)>,
    erase_count: u32,
}

/// The bytes. A clone shares pages until one of the two changes them.
#[derive(Clone)]
pub(crate) struct Array {
    geometry: Arc<Geometry>,
    keep: Keep,
    /// What an erased page reads.
    blank: u8,
    blocks: Vec<Arc<Block>>,
    ring: Vec<u8>,
    roots: [Vec<u8>; 2],
    life: u32,
    done: Done,
    durable: Done,
    /// Exactly the blocks with a `before`.
    unsettled: Vec<u32>,
    /// Programs that the next barrier makes durable: block, pages, completion.
    urgent: Vec<(BlockIndex, Range<u32>, Done)>,
    /// What pages are packed in before they are kept.
    scratch: Vec<u8>,
}

impl Array {
    pub(crate) fn new(geometry: Arc<Geometry>, keep: Keep, blank: u8) -> Array {
        let root = || vec![0; geometry.root_bytes as usize];
        let ring = vec![0; geometry.ring_bytes as usize];
        if keep == Keep::Runs {
            // Long runs go round in it.
            kaml_flash::prefer_huge_pages(&ring);
        }
        Array {
            keep,
            blank,
            blocks: vec![Arc::default(); geometry.block_count() as usize],
            ring,
            roots: [root(), root()],
            life: 1,
            done: 0,
            durable: 0,
            unsettled: Vec::new(),
            urgent: Vec::new(),
            scratch: Vec::new(),
            geometry,
        }
    }

    /// The shape as it is now.
    pub(crate) fn geometry(&self) -> &Arc<Geometry> {
        &self.geometry
    }

    /// Blocks are added and read as blank, or those beyond the end are gone.
    fn resize(&mut self, blocks_per_die: u32) -> Result<(), MediumError> {
        let geometry = Geometry { blocks_per_die, ..(*self.geometry).clone() };
        if let Err(error) = geometry.check() {
            return Err(MediumError::NotResized { why: error.to_string() });
        }
        let count = geometry.block_count();
        self.blocks.resize(count as usize, Arc::default());
        self.unsettled.retain(|block| *block < count);
        self.urgent.retain(|(block, ..)| block.0 < count);
        self.geometry = Arc::new(geometry);
        Ok(())
    }

    pub(crate) fn erase_count(&self, block: BlockIndex) -> u32 {
        self.blocks[block.0 as usize].erase_count
    }

    // --- NAND rules ---------------------------------------------------------------------------------------------------

    /// Checks a program and notes its pages as taken: the next one of the block starts after it.
    pub(crate) fn start_program(&mut self, at: PageAddr, data: &[u8], oob: &[u8]) -> Result<(), MediumError> {
        let pages_per_block = self.geometry.pages_per_block;
        let next = || {
            let block = &self.blocks[at.block.0 as usize];
            match block.life == self.life {
                true => block.programmed,
                // Stricter than a file: cells that may hold something take no program before an erase.
                false if block.pages.iter().any(Option::is_some) => pages_per_block,
                false => 0,
            }
        };
        let end = self.geometry.check_program(at, data.len(), oob.len(), next)?;
        let life = self.life;
        let block = self.block(at.block);
        (block.life, block.programmed) = (life, end);
        Ok(())
    }

    fn block(&mut self, block: BlockIndex) -> &mut Block {
        Arc::make_mut(&mut self.blocks[block.0 as usize])
    }

    // --- effects ------------------------------------------------------------------------------------------------------

    /// What an operation that is submitted now makes durable when it is done, if it is a flush or a barrier.
    pub(crate) fn marker(&self) -> Done {
        self.done
    }

    /// Applies a completed operation; `marker` is [`Array::marker`] as of its submission.
    pub(crate) fn apply(&mut self, io: &mut Io, marker: Done) -> Result<(), MediumError> {
        match io {
            Io::Read { at, into } => {
                let (block, from) = self.geometry.check_read(*at, into.len())?;
                self.read(block, from as usize, into);
            }
            Io::ReadOob { at, into } => {
                self.geometry.check_read_oob(*at, into.len())?;
                self.read_oob(*at, into);
            }
            Io::Program { at, data, oob, urgent } => {
                self.done += 1;
                self.program(*at, data, oob, self.done);
                if *urgent {
                    let end = at.page + (data.len() / self.geometry.page_bytes as usize) as u32;
                    self.urgent.push((at.block, at.page..end, self.done));
                }
            }
            Io::Erase { block, .. } => {
                self.geometry.check_erase(*block)?;
                self.done += 1;
                self.erase(*block, self.done);
            }
            Io::Persist { offset, data, len, barrier } => {
                self.geometry.check_ring("write", *offset, *len, data.len())?;
                self.ring[*offset as usize..*offset as usize + *len].copy_from_slice(&data[..*len]);
                if *barrier {
                    self.settle_urgent(marker);
                }
            }
            Io::WriteRoot { slot, data } => {
                self.geometry.check_root("write", *slot, data)?;
                self.roots[usize::from(*slot)][..data.len()].copy_from_slice(data);
            }
            Io::Flush => self.settle(marker),
            Io::Resize { blocks_per_die, .. } => self.resize(*blocks_per_die)?,
        }
        Ok(())
    }

    /// Urgent programs completed up to `marker` are durable.
    fn settle_urgent(&mut self, marker: Done) {
        for (block, pages, done) in std::mem::take(&mut self.urgent) {
            if done > marker {
                self.urgent.push((block, pages, done));
                continue;
            }
            let block = self.block(block);
            // An erase meanwhile leaves fewer pages, or others.
            let end = (pages.end as usize).min(block.pages.len());
            let range = (pages.start as usize).min(end)..end;
            let same = |page: &&mut Page| page.done == done;
            block.pages[range].iter_mut().flatten().filter(same).for_each(|page| page.done = 0);
        }
    }

    fn settle(&mut self, marker: Done) {
        self.durable = self.durable.max(marker);
        let durable = self.durable;
        for block in std::mem::take(&mut self.unsettled) {
            let entry = &self.blocks[block as usize];
            match entry.before.as_ref().is_some_and(|(done, _)| *done > durable) {
                true => self.unsettled.push(block),
                false => self.block(BlockIndex(block)).before = None,
            }
        }
    }

    fn program(&mut self, at: PageAddr, data: &[u8], oob: &[u8], done: Done) {
        let (page_bytes, oob_bytes) = (self.geometry.page_bytes as usize, self.geometry.oob_bytes as usize);
        let pages_per_block = self.geometry.pages_per_block as usize;
        let pages = data.chunks(page_bytes);
        let data: Vec<Data> = match self.keep {
            Keep::Bytes => pages.map(|page| Data::Bytes(page.into())).collect(),
            Keep::Runs => Packed::all(pages, &mut self.scratch).into_iter().map(Data::Runs).collect(),
        };
        let block = self.block(at.block);
        block.pages.resize(pages_per_block, None);
        let places = block.pages[at.page as usize..].iter_mut();
        for (place, (data, oob)) in places.zip(data.into_iter().zip(oob.chunks(oob_bytes))) {
            let used = oob.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
            *place = Some(Page { data, oob: oob[..used].into(), done });
        }
    }

    fn erase(&mut self, block: BlockIndex, done: Done) {
        let (life, index) = (self.life, block.0);
        let entry = self.block(block);
        let old = std::mem::take(&mut entry.pages);
        // If two erases may both be lost, the older content may come back too; the younger is as legal, and what
        // the firmware has most use for losing.
        let is_listed = entry.before.replace((done, old)).is_some();
        (entry.life, entry.programmed, entry.erased) = (life, 0, true);
        entry.erase_count += 1;
        if !is_listed {
            self.unsettled.push(index);
        }
    }

    // --- reading ------------------------------------------------------------------------------------------------------

    fn read(&self, block: BlockIndex, from: usize, into: &mut [u8]) {
        let page_bytes = self.geometry.page_bytes as usize;
        let pages = &self.blocks[block.0 as usize].pages;
        let (mut page, mut offset, mut rest) = (from / page_bytes, from % page_bytes, into);
        while !rest.is_empty() {
            let len = rest.len().min(page_bytes - offset);
            let (part, next) = rest.split_at_mut(len);
            match pages.get(page).and_then(Option::as_ref) {
                Some(Page { data, .. }) => data.read(page_bytes, offset, part),
                None => part.fill(self.blank),
            }
            (page, offset, rest) = (page + 1, 0, next);
        }
    }

    /// Asks the processor to fetch what reports where the page is kept in which a read begins.
    pub(crate) fn prefetch_page(&self, at: ChunkAddr) {
        if let Some(page) = self.page_of(at).0 {
            kaml_flash::prefetch(page);
        }
    }

    /// Asks it to fetch the part of the ring that will be written to.
    pub(crate) fn prefetch_ring(&self, offset: u64, len: usize) {
        kaml_flash::prefetch(&self.ring[offset as usize..][..len.min(RING_PREFETCH_BYTES)]);
    }

    /// Asks it to fetch the data of that page, as far as `len` bytes go.
    pub(crate) fn prefetch_data(&self, at: ChunkAddr, len: usize) {
        if let (Some(Page { data: Data::Runs(packed), .. }), from) = self.page_of(at) {
            packed.prefetch(self.geometry.page_bytes as usize, from, len);
        }
    }

    /// The page of a chunk, and where in it the chunk begins.
    fn page_of(&self, at: ChunkAddr) -> (Option<&Page>, usize) {
        let (block, chunk) = self.geometry.split(at);
        let page = chunk / self.geometry.chunks_per_page();
        let from = (chunk % self.geometry.chunks_per_page() * self.geometry.chunk_bytes) as usize;
        let pages = self.blocks.get(block.0 as usize).map(|block| &block.pages);
        (pages.and_then(|pages| pages.get(page as usize)?.as_ref()), from)
    }

    fn read_oob(&self, at: PageAddr, into: &mut [u8]) {
        let pages = &self.blocks[at.block.0 as usize].pages;
        for (i, oob) in into.chunks_mut(self.geometry.oob_bytes as usize).enumerate() {
            match pages.get(at.page as usize + i).and_then(Option::as_ref) {
                Some(page) => {
                    oob[..page.oob.len()].copy_from_slice(&page.oob);
                    oob[page.oob.len()..].fill(0);
                }
                None => oob.fill(self.blank),
            }
        }
    }

    pub(crate) fn read_ring(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.ring[offset as usize..offset as usize + into.len()]);
    }

    pub(crate) fn read_root(&self, slot: u8, into: &mut [u8]) {
        into.copy_from_slice(&self.roots[usize::from(slot)][..into.len()]);
    }

    // --- power cuts -----------------------------------------------------------------------------------------------------

    /// Power fails while `in_flight` (in the order of submission) is in progress: `choice` states what remains.
    pub(crate) fn lose_power<'a>(&mut self, in_flight: impl Iterator<Item = &'a Io>, choice: &mut Rng) {
        for io in in_flight {
            match io {
                Io::Program { at, data, oob, .. } => self.program(*at, data, oob, UNFINISHED),
                Io::Erase { block, .. } => self.erase(*block, UNFINISHED),
                Io::Persist { offset, data, len, .. } => {
                    let region = &mut self.ring[*offset as usize..*offset as usize + *len];
                    tear(region, &data[..*len], self.geometry.sector_bytes as usize, choice);
                }
                Io::WriteRoot { slot, data } => {
                    let region = &mut self.roots[usize::from(*slot)][..data.len()];
                    tear(region, data, self.geometry.sector_bytes as usize, choice);
                }
                Io::Resize { blocks_per_die, .. } if choice.one_in(2) => {
                    // One that cannot be is refused, and leaves nothing.
                    let _ = self.resize(*blocks_per_die);
                }
                Io::Read { .. } | Io::ReadOob { .. } | Io::Flush | Io::Resize { .. } => {}
            }
        }
        for block in 0..self.geometry.block_count() {
            self.block_loses_power(block, choice);
        }
        for block in std::mem::take(&mut self.unsettled) {
            self.block(BlockIndex(block)).before = None;
        }
        self.urgent.clear();
        self.life += 1;
        self.durable = self.done;
    }

    /// An operation fails. What it leaves is nothing, all of it, or a part; after a power cut a program or an erase may have left
    /// something else.
    pub(crate) fn fail(&mut self, io: &Io, marker: Done, choice: &mut Rng) {
        let leaves = choice.below(3);
        if leaves == 0 {
            return;
        }
        let sector = self.geometry.sector_bytes as usize;
        match io {
            Io::Program { at, data, oob, .. } => {
                self.program(*at, data, oob, UNFINISHED);
                if leaves == 1 {
                    let pages = at.page as usize..at.page as usize + data.len() / self.geometry.page_bytes as usize;
                    let (mode, geometry, kind) = (Left::choose(choice), self.geometry.clone(), (self.keep, self.blank));
                    for page in &mut self.block(at.block).pages[pages] {
                        *page = mode.leave(None, page.as_ref(), &geometry, kind, choice);
                    }
                }
            }
            Io::Erase { block, .. } => self.erase(*block, UNFINISHED),
            Io::Persist { offset, data, len, .. } => {
                let region = &mut self.ring[*offset as usize..*offset as usize + *len];
                tear(region, &data[..*len], sector, choice);
            }
            Io::WriteRoot { slot, data } => {
                let region = &mut self.roots[usize::from(*slot)][..data.len()];
                tear(region, data, sector, choice);
            }
            Io::Flush => self.settle(marker),
            // Nobody knows which size counts: the firmware stops, and finds out when it opens the device.
            Io::Resize { blocks_per_die, .. } => drop(self.resize(*blocks_per_die)),
            Io::Read { .. } | Io::ReadOob { .. } => {}
        }
    }

    /// A clean end: nothing is lost, but the medium forgets what was programmed.
    pub(crate) fn reopen(&mut self) {
        self.life += 1;
    }

    fn block_loses_power(&mut self, index: u32, choice: &mut Rng) {
        let (durable, blank) = (self.durable, self.blank);
        let entry = &self.blocks[index as usize];
        let is_lost = |done: Done| done > durable;
        let erase_lost = entry.before.as_ref().is_some_and(|(done, _)| is_lost(*done));
        if !erase_lost && !entry.pages.iter().flatten().any(|page| is_lost(page.done)) {
            return;
        }
        let geometry = self.geometry.clone();
        let keep = self.keep;
        let block = self.block(BlockIndex(index));
        let before = block.before.take().filter(|_| erase_lost).map(|(_, pages)| pages).unwrap_or_default();
        block.pages.resize(geometry.pages_per_block as usize, None);
        let mode = Left::choose(choice);
        for (page, new) in block.pages.iter_mut().enumerate() {
            let old = before.get(page).and_then(Option::as_ref);
            let at_risk = match &new {
                Some(new) => is_lost(new.done),
                None => old.is_some(),
            };
            if at_risk {
                *new = mode.leave(old, new.as_ref(), &geometry, (keep, blank), choice);
            }
            if let Some(page) = new {
                page.done = 0;
            }
        }
    }
}

/// What a power cut leaves of a block's pages that were not durable.
#[derive(Clone, Copy)]
enum Left {
    Old,
    New,
    /// Each page old or new; data and OOB apart.
    Pages,
    /// Each sector old or new; OOB apart.
    Sectors,
}

impl Left {
    fn choose(choice: &mut Rng) -> Left {
        match choice.below(5) {
            0 => Left::Old,
            1 => Left::New,
            2 => Left::Sectors,
            _ => Left::Pages,
        }
    }

    fn leave(
        self,
        old: Option<&Page>,
        new: Option<&Page>,
        geometry: &Geometry,
        (keep, blank): (Keep, u8),
        choice: &mut Rng,
    ) -> Option<Page> {
        let data = match self {
            Left::Old => return old.cloned(),
            Left::New => return new.cloned(),
            Left::Pages => pick(old, new, choice).map(|page| page.data.clone()),
            Left::Sectors => {
                let page_bytes = geometry.page_bytes as usize;
                let mut bytes = vec![blank; page_bytes];
                for (i, sector) in bytes.chunks_mut(geometry.sector_bytes as usize).enumerate() {
                    if let Some(page) = pick(old, new, choice) {
                        page.data.read(page_bytes, i * geometry.sector_bytes as usize, sector);
                    }
                }
                Some(Data::of(&bytes, keep))
            }
        };
        let oob = pick(old, new, choice).map(|page| page.oob.clone());
        if data.is_none() && oob.is_none() {
            return None;
        }
        let blank_data = || Data::of(&vec![blank; geometry.page_bytes as usize], keep);
        let blank_oob = || vec![blank; geometry.oob_bytes as usize].into();
        Some(Page { data: data.unwrap_or_else(blank_data), oob: oob.unwrap_or_else(blank_oob), done: 0 })
    }
}

fn pick<'a>(old: Option<&'a Page>, new: Option<&'a Page>, choice: &mut Rng) -> Option<&'a Page> {
    if choice.one_in(2) { old } else { new }
}

/// Writes any subset of the sectors.
fn tear(region: &mut [u8], new: &[u8], sector: usize, choice: &mut Rng) {
    let mode = choice.below(4);
    let cut = choice.below((new.len() / sector) as u64 + 1) as usize;
    for (i, (old, new)) in region.chunks_mut(sector).zip(new.chunks(sector)).enumerate() {
        let written = match mode {
            0 => true,
            1 => i < cut,
            2 => i >= cut,
            _ => choice.one_in(2),
        };
        if written {
            old.copy_from_slice(new);
        }
    }
}

impl Data {
    fn of(bytes: &[u8], keep: Keep) -> Data {
        match keep {
            Keep::Bytes => Data::Bytes(bytes.into()),
            Keep::Runs => Data::Runs(Packed::new(bytes)),
        }
    }

    /// Copies a part of a page of `page_bytes`, from byte `from` on.
    fn read(&self, page_bytes: usize, from: usize, into: &mut [u8]) {
        match self {
            Data::Bytes(bytes) => into.copy_from_slice(&bytes[from..from + into.len()]),
            Data::Runs(packed) => packed.read(page_bytes, from, into),
        }
    }
}
