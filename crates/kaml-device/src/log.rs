//! The log: the ring, the blocks being filled, the journal, and the operations on their way to the medium.
//!
//! Lives here:       appending records and images, handing out operations, the end of all writing.
//! Lives elsewhere:  when anything is written, and to whom room is given (`core` and the policies around it).
//!
//! The log is mechanism. It knows nothing of namespaces, roots, or the reasons of its callers.

use crate::blocks::BlockTable;
use crate::counters::Counters;
use crate::format::journal::Change;
use crate::format::root::{Root, Run};
use crate::in_flight::{InFlight, Pending};
use crate::journal::Journal;
use crate::lifetime::Class;
use crate::ring::CommitRing;
use crate::secret::Sealer;
use crate::writers::{NoBlock, Writers};
use kaml_flash::{AlignedBuf, BlockIndex, ChunkAddr, Geometry, Io, IoId, MediumError, PageAddr};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// All that is written, and how.
pub(crate) struct Log {
    pub(crate) geometry: Geometry,
    pub(crate) uuid: [u8; 16],
    pub(crate) ring: CommitRing,
    pub(crate) blocks: BlockTable,
    pub(crate) writers: Writers,
    pub(crate) journal: Journal,
    /// Of the record that was staged last.
    pub(crate) sequence: u64,
    pub(crate) queue: Queue,
    pub(crate) counters: Counters,
    pub(crate) stopped: Option<MediumError>,
    /// No record has moved since the block table was written.
    pub(crate) table_is_exact: bool,
}

/// Operations on their way to the medium.
pub(crate) struct Queue {
    pub(crate) ops: InFlight,
    pub(crate) next_io: IoId,
    pub(crate) outbox: VecDeque<(IoId, Io)>,
    /// Programs and erases that found no space below. They are tried again later under the same ids, so a root that waits for what
    /// came before it waits for them.
    pub(crate) retry: BTreeMap<IoId, Io>,
    pub(crate) retry_at_ns: u64,
    /// How often they found none.
    pub(crate) no_space_count: u64,
}

/// How long to wait before a program that found no space below is tried again.
const RETRY_NS: u64 = 100_000_000;

impl Log {
    pub(crate) fn new(
        geometry: Geometry,
        uuid: [u8; 16],
        (blocks, journal): (BlockTable, Journal),
        root: &Root,
        sealer: Sealer,
    ) -> Log {
        Log {
            ring: CommitRing::new(&geometry, uuid, sealer, root.epoch, root.ring_tail),
            writers: Writers::new(&geometry, sealer),
            uuid,
            blocks,
            journal,
            sequence: root.next_sequence,
            queue: Queue {
                ops: InFlight::default(),
                next_io: 1,
                outbox: VecDeque::new(),
                retry: BTreeMap::new(),
                retry_at_ns: 0,
                no_space_count: 0,
            },
            counters: Counters::restore(&root.lifetime),
            stopped: None,
            table_is_exact: false,
            geometry,
        }
    }

    pub(crate) fn emit(&mut self, io: Io, pending: Pending) -> IoId {
        let id = self.queue.next_io;
        self.queue.next_io += 1;
        self.queue.ops.insert(id, pending);
        self.queue.outbox.push_back((id, io));
        id
    }

    pub(crate) fn emit_programs(&mut self, ios: Vec<Io>) {
        for io in ios {
            if let Io::Program { data, oob, .. } = &io {
                self.counters.page_bytes += data.len() as u64;
                self.counters.oob_bytes += oob.len() as u64;
            }
            self.emit(io, Pending::Program);
        }
    }

    /// The id that the next operation will get; all earlier ones are in `ops` until they complete.
    pub(crate) fn next_io(&self) -> IoId {
        self.queue.next_io
    }

    /// Nothing can be made durable any more.
    pub(crate) fn stop(&mut self, error: MediumError) {
        tracing::error!(%error, "the device stops accepting writes");
        self.stopped.get_or_insert(error);
    }

    /// Whether pages in front of this one wait for space below.
    pub(crate) fn retries_before(&self, at: PageAddr) -> bool {
        let is_before = |io: &Io| matches!(io, Io::Program { at: waits, .. } if waits.block == at.block && *waits < at);
        self.queue.retry.values().any(is_before)
    }

    /// A block will never be used again: record it in the journal.
    pub(crate) fn retire(&mut self, block: u32) {
        #[cfg(feature = "broken")]
        if crate::Broken::ForgetsBadBlocks.is() {
            return;
        }
        let erase_count = self.blocks.get(block).erase_count;
        self.journal.append(&Change::Block { block, erase_count, bad: true });
    }

    pub(crate) fn release_pages(&mut self, runs: &[Run]) {
        for run in runs {
            (0..run.page_count).for_each(|_| self.blocks.unhold(run.block));
        }
    }

    /// Chunks of a record of this many bytes, its header included.
    pub(crate) fn chunks_of(&self, record_bytes: usize) -> u32 {
        record_bytes.div_ceil(self.geometry.chunk_bytes as usize) as u32
    }

    pub(crate) fn block_of(&self, at: u64) -> u32 {
        self.geometry.split(ChunkAddr(at)).0.0
    }

    /// Appends a record to a die and holds its block until its index entry exists.
    pub(crate) fn append(
        &mut self,
        die: u32,
        class: Class,
        floor: u32,
        chunks: u32,
        parts: [&[u8]; 3],
        frame: Option<u64>,
    ) -> Result<ChunkAddr, NoBlock> {
        self.on_some_die(die, class, chunks, floor, |writers, block, out| {
            writers.append(block, chunks, parts, frame, out)
        })
    }

    /// The same with an image of whole program units that is programmed at once.
    pub(crate) fn append_image(
        &mut self,
        die: u32,
        class: Class,
        floor: u32,
        chunks: u32,
        (image, ticket): (&Arc<AlignedBuf>, u64),
    ) -> Result<ChunkAddr, NoBlock> {
        self.on_some_die(die, class, self.whole_chunks(image), floor, |writers, block, out| {
            writers.append_image(block, chunks, image.clone(), ticket, out)
        })
    }

    /// Chunks of the pages of an image.
    pub(crate) fn whole_chunks(&self, image: &AlignedBuf) -> u32 {
        (image.len() / self.geometry.page_bytes as usize) as u32 * self.geometry.chunks_per_page()
    }

    /// Tries a die first and the others after it: one without free blocks must not hold up what fits elsewhere.
    fn on_some_die(
        &mut self,
        first: u32,
        class: Class,
        chunks: u32,
        floor: u32,
        append: impl FnOnce(&mut Writers, u32, &mut Vec<Io>) -> ChunkAddr,
    ) -> Result<ChunkAddr, NoBlock> {
        let count = self.geometry.die_count();
        let mut out = Vec::new();
        let blocks = &mut self.blocks;
        let mut ready = |i| self.writers.ready((first + i) % count, class, chunks, floor, blocks, &mut out).ok();
        let at = (0..count).find_map(&mut ready).map(|block| {
            self.blocks.hold(block);
            append(&mut self.writers, block, &mut out)
        });
        self.emit_programs(out);
        at.ok_or(NoBlock)
    }

    /// Appends a page of metadata, and holds its block as long as the page is in use.
    pub(crate) fn append_page(&mut self, class: Class, floor: u32, page: &[u8]) -> Result<PageAddr, NoBlock> {
        let mut out = Vec::new();
        let chunks = self.geometry.chunks_per_page();
        let block = self.writers.ready(0, class, chunks, floor, &mut self.blocks, &mut out)?;
        let at = self.writers.append_pages(block, page, &mut out);
        self.blocks.hold(block);
        self.counters.metadata_bytes += u64::from(self.geometry.page_bytes);
        self.emit_programs(out);
        Ok(at)
    }

    /// Gives waiting journal pages their places, as long as more than `floor` blocks are free.
    pub(crate) fn place_journal(&mut self, floor: u32) {
        for _ in 0..self.journal.wanting_count(self.geometry.pages_per_program) {
            let page = self.journal.waiting().expect("counted").to_vec();
            let Ok(at) = self.append_page(Class::Journal, floor, &page) else { break };
            self.journal.placed(at.block.0, at.page);
        }
    }

    /// Starts programs of buffers that are not full.
    pub(crate) fn seal(&mut self, seal: impl FnOnce(&mut Writers, &mut Vec<Io>)) {
        let mut out = Vec::new();
        seal(&mut self.writers, &mut out);
        self.emit_programs(out);
    }

    /// Starts erasing blocks until each die has `target` erased ones. The medium may have their space if it `may_release` it.
    pub(crate) fn start_erases(&mut self, target: usize, may_release: bool) {
        for block in self.blocks.start_erases(target) {
            let is_fresh = self.blocks.get(block).erase_count == 0;
            self.emit(
                Io::Erase { block: BlockIndex(block), release: may_release && !is_fresh },
                Pending::Erase { block },
            );
        }
    }

    /// Tries again what found no space below, after a while.
    pub(crate) fn try_again(&mut self, now_ns: u64) {
        if self.queue.retry.is_empty() || now_ns < self.queue.retry_at_ns {
            return;
        }
        self.queue.retry_at_ns = now_ns + RETRY_NS;
        // Pages of a block were requested in their order, and so are again, before what came up meanwhile.
        for (id, io) in std::mem::take(&mut self.queue.retry).into_iter().rev() {
            let pending = match io {
                Io::Erase { block, .. } => Pending::Erase { block: block.0 },
                _ => Pending::Program,
            };
            self.queue.ops.insert(id, pending);
            self.queue.outbox.push_front((id, io));
        }
    }

    /// Whether operations are in flight, are about to be, or wait for space below.
    pub(crate) fn is_under_way(&self) -> bool {
        !self.queue.ops.is_empty() || !self.queue.outbox.is_empty() || !self.queue.retry.is_empty()
    }
}
