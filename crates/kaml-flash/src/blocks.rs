//! What the file medium remembers of each block: pages programmed, and OOB bytes not yet in the file.
//!
//! Lives here:       NAND state, OOB images of blocks being programmed, whose turn it is to write one.
//! Lives elsewhere:  the writing (`plan`).
//! May be called by: `plan`.
//!
//! OOB entries are far smaller than a sector. They are collected in an image in RAM and written when somebody needs
//! them on the medium: a flush, a barrier after an urgent program, or the program that completes the block.
//!
//! Invariants
//! - of each block at most one OOB write is in progress, so an older image never lands on a newer one;
//! - an image exists exactly for blocks with OOB bytes that are not all written;
//! - bytes of an image below its written pages never change.

use crate::rules::Programmed;
use crate::{AlignedBuf, BlockIndex, Geometry, MediumError, PageAddr};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// How long a caller waits for another's OOB write. Only an owner that stopped reaping its queue is that slow.
const TURN_WAIT_MAX: Duration = Duration::from_secs(30);

/// Whom to notify when a turn ends.
pub(crate) trait Poke: Send + Sync {
    fn poke(&self);
}

pub(crate) struct Blocks {
    table: Mutex<Table>,
    turn_ended: Condvar,
}

struct Table {
    blocks: Vec<Block>,
    /// Blocks with an image, for flushes.
    with_image: BTreeSet<BlockIndex>,
    /// Those with OOB of urgent programs that is not written, for barriers.
    with_urgent: BTreeSet<BlockIndex>,
    /// Programs that were accepted and found no space below, by their first page; each may be executed again.
    without_space: BTreeSet<PageAddr>,
    queues: Vec<Weak<dyn Poke>>,
}

#[derive(Clone)]
struct Block {
    programmed: Programmed,
    /// Programs whose data is on its way.
    programs_in_flight: u32,
    /// The page after the last urgent program whose data arrived.
    urgent_end: u32,
    turn: Turn,
    /// Somebody was refused the turn since it was taken.
    is_awaited: bool,
    /// Its range was allocated in the file since it was opened.
    allocated: bool,
    image: Option<Box<Image>>,
}

/// Which thread may write to a block's OOB area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    Free,
    WritingOob,
    Erasing,
}

#[derive(Clone)]
struct Image {
    /// The whole OOB area.
    bytes: Box<[u8]>,
    /// Pages whose OOB is in the file.
    written_pages: u32,
    /// Nothing is known of the area in the file: the first write covers all of it.
    stale: bool,
}

/// The answer to a request to write a block's OOB.
pub(crate) enum OobTurn {
    /// Nothing to do: they are in the file already.
    Written,
    /// Somebody else is at it; ask again after `wait_turn` or a poke.
    Busy,
    /// The caller's turn, until `oob_done`.
    Write {
        /// Whole sectors.
        bytes: AlignedBuf,
        /// Where in the OOB area.
        at: u64,
        /// Pages that are written when it is done.
        pages: u32,
    },
}

impl Blocks {
    pub(crate) fn new(block_count: u32) -> Self {
        let blocks = vec![Block::untouched(); block_count as usize];
        let (with_image, with_urgent, without_space) = Default::default();
        let table = Table { blocks, with_image, with_urgent, without_space, queues: Vec::new() };
        Self { table: Mutex::new(table), turn_ended: Condvar::new() }
    }

    /// Sets how many blocks exist. Nothing is on its way to those that are gone.
    pub(crate) fn resize(&self, block_count: u32) {
        let mut table = self.table();
        let is_gone = |block: &BlockIndex| block.0 >= block_count;
        table.with_image.retain(|block| !is_gone(block));
        table.with_urgent.retain(|block| !is_gone(block));
        table.without_space.retain(|program| !is_gone(&program.block));
        table.blocks.resize(block_count as usize, Block::untouched());
    }

    /// How many blocks exist.
    pub(crate) fn count(&self) -> u32 {
        self.table().blocks.len() as u32
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no panic under this lock")
    }

    /// Pokes `queue` whenever a turn ends that somebody waits for, as long as it lives.
    pub(crate) fn add_queue(&self, queue: Weak<dyn Poke>) {
        let mut table = self.table();
        table.queues.retain(|queue| queue.strong_count() > 0);
        table.queues.push(queue);
    }

    /// Accepts a program and its OOB. `allocate` is asked once for a block and fails before anything has changed; it
    /// runs under the lock so that the next program of the block finds this one accepted.
    pub(crate) fn start_program(
        &self,
        geometry: &Geometry,
        (at, data_len, oob): (PageAddr, usize, &[u8]),
        oob_area_bytes: u64,
        allocate: impl FnOnce() -> Result<(), MediumError>,
    ) -> Result<u32, MediumError> {
        let mut table = self.table();
        table.check(at.block)?;
        let is_again = table.without_space.contains(&at);
        let known = || if is_again { at.page } else { table.blocks[at.block.0 as usize].programmed.next() };
        let end = geometry.check_program(at, data_len, oob.len(), known)?;
        let Table { blocks, with_image, without_space, .. } = &mut *table;
        let block = &mut blocks[at.block.0 as usize];
        if is_again {
            without_space.remove(&at);
            block.programs_in_flight += 1;
            return Ok(end);
        }
        if block.turn == Turn::Erasing {
            return Err(MediumError::OutOfOrder { at, expected: geometry.pages_per_block });
        }
        if !block.allocated {
            allocate()?;
            block.allocated = true;
        }
        let stale = block.programmed == Programmed::Unknown;
        let image = block.image.get_or_insert_with(|| {
            let bytes = vec![0; oob_area_bytes as usize].into_boxed_slice();
            Box::new(Image { bytes, written_pages: at.page, stale })
        });
        let from = at.page as usize * geometry.oob_bytes as usize;
        image.bytes[from..from + oob.len()].copy_from_slice(oob);
        with_image.insert(at.block);
        block.programmed = Programmed::Pages(end);
        block.programs_in_flight += 1;
        Ok(end)
    }

    /// The data of a program arrived or failed; of an urgent one that did, up to this page. Returns whether the block is
    /// completely programmed.
    pub(crate) fn program_done(&self, geometry: &Geometry, at: BlockIndex, urgent_end: Option<u32>) -> bool {
        let mut table = self.table();
        let Table { blocks, with_urgent, .. } = &mut *table;
        let block = &mut blocks[at.0 as usize];
        assert!(block.programs_in_flight > 0, "a program ends once");
        block.programs_in_flight -= 1;
        if let Some(end) = urgent_end {
            block.urgent_end = block.urgent_end.max(end);
            if block.needs_oob(block.urgent_end) {
                with_urgent.insert(at);
            }
        }
        block.programmed == Programmed::Pages(geometry.pages_per_block)
    }

    /// An accepted program found no space below: it may come again.
    pub(crate) fn no_space_for(&self, at: PageAddr) {
        self.table().without_space.insert(at);
    }

    /// Requests the turn to write the OOB of a block's first `pages` pages.
    pub(crate) fn take_oob(&self, geometry: &Geometry, block: BlockIndex, pages: u32) -> OobTurn {
        let mut table = self.table();
        let block = &mut table.blocks[block.0 as usize];
        if !block.needs_oob(pages) {
            return OobTurn::Written;
        }
        if block.is_taken() {
            return OobTurn::Busy;
        }
        let image = block.image.as_ref().expect("it has what is needed");
        block.turn = Turn::WritingOob;
        let (bytes, at) = image.unwritten(geometry, block.programmed.next());
        OobTurn::Write { bytes, at, pages: block.programmed.next() }
    }

    /// Ends the turn to write OOB; `pages` are written now, or what was, if `None`.
    pub(crate) fn oob_done(&self, geometry: &Geometry, at: BlockIndex, pages: Option<u32>) {
        let mut table = self.table();
        let Table { blocks, with_image, with_urgent, .. } = &mut *table;
        let block = &mut blocks[at.0 as usize];
        assert_eq!(block.turn, Turn::WritingOob, "a turn ends once");
        if let (Some(pages), Some(image)) = (pages, &mut block.image) {
            image.written_pages = pages;
            image.stale = false;
            if pages == geometry.pages_per_block {
                block.image = None;
                with_image.remove(&at);
            }
            if !block.needs_oob(block.urgent_end) {
                with_urgent.remove(&at);
            }
        }
        self.end_turn(table, at);
    }

    /// Releases a turn. Waking takes time, so it is done only if somebody may be waiting: a caller that was refused the turn asks again
    /// before it sleeps.
    fn end_turn(&self, mut table: MutexGuard<'_, Table>, at: BlockIndex) {
        let block = &mut table.blocks[at.0 as usize];
        block.turn = Turn::Free;
        if !std::mem::take(&mut block.is_awaited) {
            return;
        }
        let queues: Vec<Arc<dyn Poke>> = table.queues.iter().filter_map(Weak::upgrade).collect();
        drop(table);
        self.turn_ended.notify_all();
        for queue in queues {
            queue.poke();
        }
    }

    /// Waits until nobody has the turn. Returns false when that takes unreasonably long.
    pub(crate) fn wait_turn(&self, at: BlockIndex) -> bool {
        let taken = |table: &mut Table| table.blocks[at.0 as usize].is_taken();
        let waited = self.turn_ended.wait_timeout_while(self.table(), TURN_WAIT_MAX, taken);
        !waited.expect("no panic under this lock").1.timed_out()
    }

    /// Copies OOB bytes from a block's image. Returns false when it has none, so the file has them.
    pub(crate) fn read_oob(&self, block: BlockIndex, from: u64, into: &mut [u8]) -> bool {
        let table = self.table();
        let Some(image) = &table.blocks[block.0 as usize].image else { return false };
        let from = from as usize;
        into.copy_from_slice(&image.bytes[from..from + into.len()]);
        true
    }

    /// Blocks with OOB to write, and how many pages each.
    pub(crate) fn unwritten(&self) -> Vec<(BlockIndex, u32)> {
        let table = self.table();
        let blocks = table.with_image.iter().map(|&at| (at, &table.blocks[at.0 as usize]));
        blocks
            .map(|(at, block)| (at, block.programmed.next(), block))
            .filter(|(_, pages, block)| block.needs_oob(*pages))
            .map(|(at, pages, _)| (at, pages))
            .collect()
    }

    /// As [`Blocks::unwritten`], of urgent programs whose data arrived.
    pub(crate) fn unwritten_urgent(&self) -> Vec<(BlockIndex, u32)> {
        let table = self.table();
        table.with_urgent.iter().map(|&at| (at, table.blocks[at.0 as usize].urgent_end)).collect()
    }

    /// Requests the turn to erase: `Ok(false)` when somebody is writing there.
    pub(crate) fn start_erase(&self, at: BlockIndex) -> Result<bool, MediumError> {
        let mut table = self.table();
        table.check(at)?;
        let block = &mut table.blocks[at.0 as usize];
        if block.programs_in_flight > 0 {
            return Err(MediumError::BadRange { what: format!("erase of {at} while it is being programmed") });
        }
        if block.is_taken() {
            return Ok(false);
        }
        block.turn = Turn::Erasing;
        Ok(true)
    }

    /// Ends the turn to erase. A failed erase leaves the block as the firmware knew it.
    pub(crate) fn erase_done(&self, at: BlockIndex, erased: bool, released: bool) {
        let mut table = self.table();
        let block = &mut table.blocks[at.0 as usize];
        assert_eq!(block.turn, Turn::Erasing, "a turn ends once");
        if erased {
            block.programmed = Programmed::Pages(0);
            block.image = None;
            block.urgent_end = 0;
            block.allocated &= !released;
            table.with_image.remove(&at);
            table.with_urgent.remove(&at);
            table.without_space.retain(|program| program.block != at);
        }
        self.end_turn(table, at);
    }
}

impl Table {
    /// Refuses blocks that do not exist.
    fn check(&self, block: BlockIndex) -> Result<(), MediumError> {
        match (block.0 as usize) < self.blocks.len() {
            true => Ok(()),
            false => Err(MediumError::BadRange { what: format!("{block} of {}", self.blocks.len()) }),
        }
    }
}

impl Block {
    /// One that was not touched since the medium was opened.
    fn untouched() -> Block {
        Block {
            programmed: Programmed::Unknown,
            programs_in_flight: 0,
            urgent_end: 0,
            turn: Turn::Free,
            is_awaited: false,
            allocated: false,
            image: None,
        }
    }

    /// Whether somebody has the turn, so the caller is notified of its end.
    fn is_taken(&mut self) -> bool {
        let is_taken = self.turn != Turn::Free;
        self.is_awaited |= is_taken;
        is_taken
    }

    /// Whether the OOB of the first `pages` pages is not all in the file.
    fn needs_oob(&self, pages: u32) -> bool {
        // Fewer pages than requested are programmed when the block was erased since: that ended the need for the others.
        let pages = pages.min(self.programmed.next());
        self.image.as_ref().is_some_and(|image| image.stale || image.written_pages < pages)
    }
}

impl Image {
    /// The sectors with entries of pages that are not written, up to `pages`.
    fn unwritten(&self, geometry: &Geometry, pages: u32) -> (AlignedBuf, u64) {
        let entries = |pages: u32| pages as usize * geometry.oob_bytes as usize;
        let sector = geometry.sector_bytes as usize;
        let range = if self.stale {
            0..self.bytes.len()
        } else {
            entries(self.written_pages) / sector * sector..entries(pages).next_multiple_of(sector)
        };
        (AlignedBuf::copy_of(&self.bytes[range.clone()]), range.start as u64)
    }
}

/// How a program or erase that the system refused completes.
pub(crate) fn block_failure(block: BlockIndex, what: &'static str, errno: Errno) -> MediumError {
    if crate::sys::is_no_space(errno) {
        return MediumError::NoSpace { what: format!("{what} of {block}") };
    }
    MediumError::BlockFailed { block, what, error: errno.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FormatOptions;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Default)]
    struct Counted(AtomicU32);

    impl Poke for Counted {
        fn poke(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Goal:   the end of a turn wakes those who were refused it, and nobody else.
    /// Method: turns to write OOB and to erase, with and without somebody who asks meanwhile, or waits; pokes are counted.
    #[test]
    fn only_awaited_turns_wake() {
        let geometry = Geometry::for_file(32 << 20, 512, &FormatOptions::new(32 << 20)).unwrap();
        let (blocks, at) = (Blocks::new(4), BlockIndex(1));
        let queue = Arc::new(Counted::default());
        let poke: Arc<dyn Poke> = queue.clone();
        blocks.add_queue(Arc::downgrade(&poke));
        let pokes = || queue.0.swap(0, Ordering::Relaxed);
        for asks in [false, true] {
            assert!(blocks.start_erase(at).unwrap());
            if asks {
                assert!(!blocks.start_erase(at).unwrap());
            }
            blocks.erase_done(at, true, false);
            assert_eq!(pokes(), u32::from(asks), "an erase");
            let page = PageAddr { block: at, page: 0 };
            let unit = geometry.page_bytes * geometry.pages_per_program;
            let oob = vec![1; (geometry.oob_bytes * geometry.pages_per_program) as usize];
            let end = blocks.start_program(&geometry, (page, unit as usize, &oob), 4096, || Ok(())).unwrap();
            blocks.program_done(&geometry, at, None);
            assert!(matches!(blocks.take_oob(&geometry, at, end), OobTurn::Write { .. }));
            if asks {
                assert!(matches!(blocks.take_oob(&geometry, at, end), OobTurn::Busy));
            }
            blocks.oob_done(&geometry, at, Some(end));
            assert_eq!(pokes(), u32::from(asks), "OOB");
            assert!(matches!(blocks.take_oob(&geometry, at, end), OobTurn::Written));
        }
        assert!(blocks.start_erase(at).unwrap());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| blocks.wait_turn(at));
            while !blocks.table().blocks[1].is_awaited {
                std::thread::yield_now();
            }
            blocks.erase_done(at, true, false);
            assert!(waiting.join().unwrap(), "the waiter is woken");
        });
    }
}
