//! Open blocks and their write buffers: where records are packed into pages.
//!
//! Lives here:       open blocks of each log and class, write positions, buffers until they are programmed.
//! Lives elsewhere:  which log a record goes to (`staging`), what a program's completion means (`core`).
//! Implements:       paper:KAML IV.B (chunks, bitmap, buffering until a page's worth has collected).

use crate::block_map::BlockMap;
use crate::block_writer::{BlockWriter, Buffer, Data, Mark};
use crate::blocks::BlockTable;
use crate::format::oob::{Oob, PageOob, PageTagger};
use crate::lifetime::{Class, record_classes};
use crate::moves::Move;
use crate::secret::Sealer;
use kaml_flash::{AlignedBuf, BlockIndex, ChunkAddr, Geometry, Io, PageAddr};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a completed program settled.
pub(crate) struct Programmed {
    pub(crate) moves: Vec<Move>,
    pub(crate) tickets: Vec<u64>,
    /// The block is full and wholly programmed.
    pub(crate) block_done: bool,
}

/// All open blocks.
pub(crate) struct Writers {
    geometry: Geometry,
    tagger: PageTagger,
    buffer_pages: u32,
    /// The open block of each log and class; metadata uses log 0's places.
    open: Vec<[Option<u32>; Class::COUNT]>,
    active: BlockMap<BlockWriter>,
    pool: Vec<AlignedBuf>,
    /// Counts programmed pages over the device.
    pub(crate) sequence: u64,
    /// Memory of buffers whose programs are in progress.
    pub(crate) programming_bytes: u64,
    /// Bytes of chunks that hold nothing.
    pub(crate) padded_chunks: u64,
}

/// No erased block is to be had just now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoBlock;

/// Bytes of a write buffer: large enough that programming is cheap per byte.
const BUFFER_BYTES: u32 = 256 << 10;
/// So much of the next record's place is fetched ahead; the processor follows by itself.
const FETCHED_BYTES_MAX: usize = 1024;

impl Writers {
    pub(crate) fn new(geometry: &Geometry, sealer: Sealer) -> Writers {
        let unit = geometry.pages_per_program;
        let buffer_pages = (BUFFER_BYTES / geometry.page_bytes / unit).max(1) * unit;
        Writers {
            geometry: geometry.clone(),
            tagger: PageTagger::new(sealer),
            buffer_pages: buffer_pages.min(geometry.pages_per_block),
            open: vec![[None; Class::COUNT]; geometry.die_count() as usize],
            active: BlockMap::new(geometry.block_count()),
            pool: Vec::new(),
            sequence: 0,
            programming_bytes: 0,
            padded_chunks: 0,
        }
    }

    /// Appends nothing more to blocks from this one on.
    pub(crate) fn leave(&mut self, from: u32, blocks: &mut BlockTable, out: &mut Vec<Io>) {
        let open = self.open.iter_mut().flatten();
        let left: Vec<u32> = open.filter_map(|open| open.take_if(|block| *block >= from)).collect();
        left.into_iter().for_each(|block| self.close(block, blocks, out));
    }

    /// The device has this shape from now on.
    pub(crate) fn resize(&mut self, geometry: &Geometry) {
        self.active.resize(geometry.block_count());
        self.geometry = geometry.clone();
    }

    /// Most bytes that write buffers hold when `programming_bytes` stays under `in_flight_max`.
    pub(crate) fn memory_bytes_max(geometry: &Geometry, in_flight_max: u64) -> u64 {
        // Of each log: one of each class of records, and large ones. The journal, snapshots, one to spare.
        let buffers = u64::from(geometry.die_count()) * (record_classes(geometry).len() as u64 + 1) + 3;
        in_flight_max + buffers * u64::from(BUFFER_BYTES.max(geometry.page_bytes * geometry.pages_per_program))
    }

    /// The block that takes `chunks` more of a class; opens one if the present one has no room and more than `floor`
    /// blocks are free.
    pub(crate) fn ready(
        &mut self,
        log: u32,
        class: Class,
        chunks: u32,
        floor: u32,
        blocks: &mut BlockTable,
        out: &mut Vec<Io>,
    ) -> Result<u32, NoBlock> {
        let present = self.open[log as usize][class.place()];
        if let Some(block) = present
            && self.start_for(block, chunks) + chunks <= self.geometry.chunks_per_block()
        {
            return Ok(block);
        }
        if blocks.free_count() <= floor {
            return Err(NoBlock);
        }
        let die = if class.is_metadata() { blocks.roomiest_die().ok_or(NoBlock)? } else { log };
        let next = blocks.open(die, class).ok_or(NoBlock)?;
        if let Some(block) = present {
            self.close(block, blocks, out);
        }
        self.begin(log, class, next);
        Ok(next)
    }

    fn begin(&mut self, log: u32, class: Class, block: u32) {
        self.open[log as usize][class.place()] = Some(block);
        let writer = BlockWriter { class, log, next_chunk: 0, closed: false, buffers: VecDeque::new() };
        self.active.insert(block, writer);
    }

    /// Where a record of `chunks` would start.
    fn start_for(&self, block: u32, chunks: u32) -> u32 {
        let writer = &self.active[block];
        let per_page = self.geometry.chunks_per_page();
        let next = writer.next_chunk;
        let in_page = next % per_page;
        let must_align = match self.geometry.packing {
            kaml_flash::Packing::Across => false,
            kaml_flash::Packing::WithinPage => in_page + chunks > per_page,
        };
        if must_align && in_page != 0 { next + per_page - in_page } else { next }
    }

    /// Appends a record of `chunks` chunks made of `parts` to a block that has room for it.
    pub(crate) fn append(
        &mut self,
        block: u32,
        chunks: u32,
        parts: [&[u8]; 3],
        frame: Option<u64>,
        out: &mut Vec<Io>,
    ) -> ChunkAddr {
        let start = self.start_for(block, chunks);
        let mut at = start as usize * self.geometry.chunk_bytes as usize;
        for part in parts {
            let mut rest = part;
            while !rest.is_empty() {
                let chunk = at as u32 / self.geometry.chunk_bytes;
                let page_bytes = self.geometry.page_bytes as usize;
                let buffer = self.buffer_for(block, chunk, start, out);
                let room = buffer.data.filling().get_mut(at - buffer.first_page as usize * page_bytes..);
                let room = room.expect("the chunk lies in the buffer");
                let len = room.len().min(rest.len());
                room[..len].copy_from_slice(&rest[..len]);
                rest = &rest[len..];
                at += len;
            }
        }
        self.finish_record(block, start, chunks, at, frame, out);
        self.geometry.chunk_at(BlockIndex(block), start)
    }

    /// Pads the last chunk, marks the record's end, moves the write position.
    fn finish_record(
        &mut self,
        block: u32,
        start: u32,
        chunks: u32,
        end_byte: usize,
        frame: Option<u64>,
        out: &mut Vec<Io>,
    ) {
        let (per_page, chunk_bytes) = (self.geometry.chunks_per_page(), self.geometry.chunk_bytes as usize);
        let page_bytes = self.geometry.page_bytes as usize;
        let writer = self.active.get_mut(block).expect("the block is being written");
        if let Some(frame) = frame {
            for buffer in writer.buffers.iter_mut().rev() {
                buffer.first_frame = buffer.first_frame.min(frame);
                if buffer.first_page * per_page <= start {
                    break;
                }
            }
        }
        let last = start + chunks - 1;
        writer.next_chunk = last + 1;
        let buffer = writer.buffers.back_mut().expect("holds the record's end");
        buffer.mark_continuation(start, last / per_page, per_page);
        let base = buffer.first_page * per_page;
        buffer.marks[((last - base) / per_page) as usize].bitmap |= 1 << (last % per_page);
        buffer.used_chunks = last + 1 - base;
        let tail = end_byte - buffer.first_page as usize * page_bytes;
        let used = buffer.used_chunks as usize * chunk_bytes;
        let data = buffer.data.filling();
        data[tail..used].fill(0);
        // Many other logs are written to before this one's turn comes again, or at least another host's command: the place of a
        // record like this one is on its way by then.
        let next = used + (chunks as usize * chunk_bytes).min(FETCHED_BYTES_MAX);
        kaml_flash::prefetch(&data[used..next.min(data.len())]);
        if buffer.used_chunks == buffer.capacity_pages * per_page {
            self.seal(block, out);
        }
    }

    /// The filling buffer that takes `chunk` of a record that began at `start`; seals a full one and starts the next.
    fn buffer_for(&mut self, block: u32, chunk: u32, start: u32, out: &mut Vec<Io>) -> &mut Buffer {
        let per_page = self.geometry.chunks_per_page();
        let writer = self.active.get_mut(block).expect("the block is being written");
        let filling = writer.buffers.back_mut().filter(|b| !b.sealed);
        let is_full = |buffer: &Buffer| chunk >= (buffer.first_page + buffer.capacity_pages) * per_page;
        if filling.as_ref().is_none_or(|buffer| is_full(buffer)) {
            if let Some(buffer) = filling {
                if start < chunk {
                    buffer.spills = true;
                    buffer.used_chunks = buffer.capacity_pages * per_page;
                    buffer.mark_continuation(start, buffer.first_page + buffer.capacity_pages - 1, per_page);
                }
                self.seal(block, out);
            }
            let buffer = self.new_buffer(chunk / per_page);
            self.active.get_mut(block).expect("the block is being written").buffers.push_back(buffer);
        }
        let writer = self.active.get_mut(block).expect("the block is being written");
        writer.buffers.back_mut().expect("just made, or there before")
    }

    fn new_buffer(&mut self, first_page: u32) -> Buffer {
        let capacity_pages = self.buffer_pages.min(self.geometry.pages_per_block - first_page);
        let mut data = self.pool.pop().unwrap_or_else(|| AlignedBuf::zeroed(self.buffer_bytes()));
        data.set_len(capacity_pages as usize * self.geometry.page_bytes as usize);
        Buffer {
            first_page,
            capacity_pages,
            used_chunks: 0,
            data: Data::Own(data),
            marks: vec![Mark::default(); capacity_pages as usize],
            first_frame: u64::MAX,
            moves: Vec::new(),
            ticket: None,
            sealed: false,
            programmed: false,
            spills: false,
        }
    }

    fn buffer_bytes(&self) -> usize {
        self.buffer_pages as usize * self.geometry.page_bytes as usize
    }

    /// Appends an image of whole program units as a buffer of its own, programmed at once.
    pub(crate) fn append_image(
        &mut self,
        block: u32,
        chunks: u32,
        image: Arc<AlignedBuf>,
        ticket: u64,
        out: &mut Vec<Io>,
    ) -> ChunkAddr {
        self.seal(block, out);
        let per_page = self.geometry.chunks_per_page();
        let writer = self.active.get_mut(block).expect("the block is being written");
        let start = writer.next_chunk;
        let pages = (image.len() / self.geometry.page_bytes as usize) as u32;
        let mut marks = vec![Mark { bitmap: 0, continues: true }; pages as usize];
        marks[0].continues = false;
        let last = chunks - 1;
        for mark in &mut marks[(last / per_page) as usize + 1..] {
            mark.continues = false;
        }
        marks[(last / per_page) as usize].bitmap |= 1 << (last % per_page);
        writer.buffers.push_back(Buffer {
            first_page: start / per_page,
            capacity_pages: pages,
            used_chunks: chunks,
            data: Data::Shared(image),
            marks,
            first_frame: u64::MAX,
            moves: Vec::new(),
            ticket: Some(ticket),
            sealed: false,
            programmed: false,
            spills: false,
        });
        self.seal(block, out);
        self.geometry.chunk_at(BlockIndex(block), start)
    }

    /// Appends whole metadata pages; returns the block and page of the first.
    pub(crate) fn append_pages(&mut self, block: u32, bytes: &[u8], out: &mut Vec<Io>) -> PageAddr {
        let page_bytes = self.geometry.page_bytes as usize;
        let per_page = self.geometry.chunks_per_page();
        let first = self.active[block].next_chunk / per_page;
        for page in bytes.chunks(page_bytes) {
            let chunk = self.active[block].next_chunk;
            let buffer = self.buffer_for(block, chunk, chunk, out);
            let offset = (chunk / per_page - buffer.first_page) as usize * page_bytes;
            let place = &mut buffer.data.filling()[offset..offset + page_bytes];
            place[..page.len()].copy_from_slice(page);
            place[page.len()..].fill(0);
            buffer.used_chunks += per_page;
            let is_full = buffer.used_chunks == buffer.capacity_pages * per_page;
            self.active.get_mut(block).expect("the block is being written").next_chunk += per_page;
            if is_full {
                self.seal(block, out);
            }
        }
        PageAddr { block: BlockIndex(block), page: first }
    }

    /// Programs what the filling buffer of a block holds, padded to whole program units.
    pub(crate) fn seal(&mut self, block: u32, out: &mut Vec<Io>) {
        let geometry = &self.geometry;
        let per_page = geometry.chunks_per_page();
        let unit = geometry.pages_per_program;
        let writer = self.active.get_mut(block).expect("the block is being written");
        let (log, class) = (writer.log, writer.class);
        let Some(buffer) = writer.buffers.back_mut().filter(|b| !b.sealed && b.used_chunks > 0) else { return };
        let pages = buffer.used_chunks.div_ceil(per_page).next_multiple_of(unit);
        let bytes = pages as usize * geometry.page_bytes as usize;
        if buffer.ticket.is_none() {
            let used = buffer.used_chunks as usize * geometry.chunk_bytes as usize;
            let data = buffer.data.filling();
            data.set_len(bytes);
            data[used..].fill(0);
        }
        self.padded_chunks += u64::from(pages * per_page - buffer.used_chunks);
        buffer.sealed = true;
        buffer.capacity_pages = pages;
        buffer.marks.truncate(pages as usize);
        writer.next_chunk = (buffer.first_page + pages) * per_page;
        let oob_bytes = geometry.oob_bytes as usize;
        let mut oob = vec![0; oob_bytes * pages as usize];
        let page_datas = buffer.data.chunks(geometry.page_bytes as usize);
        for (page, ((mark, entry), data)) in
            (buffer.first_page..).zip(buffer.marks.iter().zip(oob.chunks_mut(oob_bytes)).zip(page_datas))
        {
            self.sequence += 1;
            let mut fields = Oob {
                bitmap: mark.bitmap,
                sequence: self.sequence,
                log: log as u16,
                class: class as u8,
                continues: mark.continues,
                tag: None,
            };
            let at = PageAddr { block: BlockIndex(block), page };
            fields.tag = Some(fields.tag_at(at, data, geometry.chunk_bytes, &mut self.tagger));
            PageOob::encode(&fields, entry);
        }
        self.programming_bytes += buffer.data.capacity() as u64;
        out.push(Io::Program {
            at: PageAddr { block: BlockIndex(block), page: buffer.first_page },
            data: buffer.data.share(),
            oob,
            urgent: buffer.ticket.is_some(),
        });
    }

    /// Programs everything of a class that waits in a buffer.
    pub(crate) fn seal_class(&mut self, class: Class, out: &mut Vec<Io>) {
        let open: Vec<u32> = self.open.iter().filter_map(|log| log[class.place()]).collect();
        open.into_iter().for_each(|block| self.seal(block, out));
    }

    /// Programs what waits in a buffer with records that collection moved.
    pub(crate) fn seal_moves(&mut self, out: &mut Vec<Io>) {
        let has_moves = |b: &u32| self.active[*b].buffers.back().is_some_and(|b| !b.sealed && !b.moves.is_empty());
        let blocks: Vec<u32> = self.open_blocks().filter(has_moves).collect();
        blocks.into_iter().for_each(|block| self.seal(block, out));
    }

    /// Programs host buffers that hold records of frames before `frame`.
    pub(crate) fn seal_older_than(&mut self, frame: u64, out: &mut Vec<Io>) {
        let old = |b: &u32| self.active[*b].buffers.back().is_some_and(|b| b.first_frame < frame);
        let blocks: Vec<u32> = self.open_blocks().filter(old).collect();
        blocks.into_iter().for_each(|block| self.seal(block, out));
    }

    /// Stops appending to a block.
    fn close(&mut self, block: u32, blocks: &mut BlockTable, out: &mut Vec<Io>) {
        self.seal(block, out);
        let writer = self.active.get_mut(block).expect("the block is being written");
        writer.closed = true;
        self.padded_chunks += u64::from(self.geometry.chunks_per_block() - writer.next_chunk);
        if writer.buffers.is_empty() {
            self.active.remove(block);
            blocks.gate.set_programmed(block, self.geometry.chunks_per_block());
            blocks.close(block, self.sequence);
        }
    }

    /// A program is done: returns what it settles, in page order.
    pub(crate) fn programmed(&mut self, at: PageAddr, bytes: u64, blocks: &mut BlockTable) -> Programmed {
        self.programming_bytes -= bytes;
        let mut settled = Programmed { moves: Vec::new(), tickets: Vec::new(), block_done: false };
        let block = at.block.0;
        let Some(writer) = self.active.get_mut(block) else { return settled };
        let found = writer.buffers.iter_mut().find(|b| b.first_page == at.page);
        found.expect("buffers are kept until they are programmed").programmed = true;
        let per_page = self.geometry.chunks_per_page();
        for buffer in writer.buffers.iter_mut().take_while(|b| b.programmed) {
            blocks.gate.set_programmed(block, (buffer.first_page + buffer.capacity_pages) * per_page);
            settled.moves.append(&mut buffer.moves);
            settled.tickets.extend(buffer.ticket.take());
            buffer.first_frame = u64::MAX;
        }
        while writer.buffers.front().is_some_and(|b| b.programmed) {
            if writer.buffers[0].spills && !writer.spilling_record_is_programmed() {
                break;
            }
            let buffer = writer.buffers.pop_front().expect("checked");
            if let Some(data) = buffer.data.take_back()
                && data.capacity() == self.buffer_pages as usize * self.geometry.page_bytes as usize
            {
                self.pool.push(data);
            }
        }
        if writer.closed && writer.buffers.is_empty() {
            self.active.remove(block);
            blocks.gate.set_programmed(block, self.geometry.chunks_per_block());
            blocks.close(block, self.sequence);
            settled.block_done = true;
        }
        settled
    }

    /// Attaches a move to the buffer that holds the last chunk of its new place.
    pub(crate) fn attach_move(&mut self, block: u32, moved: Move) {
        let writer = self.active.get_mut(block).expect("just appended to");
        writer.buffers.back_mut().expect("just appended to").moves.push(moved);
    }

    /// Appends nothing more to a block whose program failed.
    pub(crate) fn stop(&mut self, block: u32) {
        let places = self.open.iter_mut().flatten();
        places.filter(|open| **open == Some(block)).for_each(|open| *open = None);
    }

    /// All open blocks, by log and class.
    fn open_blocks(&self) -> impl Iterator<Item = u32> {
        self.open.iter().flatten().flatten().copied()
    }

    /// The most chunks that are left of some open block of these classes.
    pub(crate) fn room(&self, classes: &[Class]) -> u32 {
        let open = self.open.iter().flat_map(|log| classes.iter().filter_map(|class| log[class.place()]));
        open.map(|block| self.geometry.chunks_per_block() - self.start_for(block, 1)).max().unwrap_or(0)
    }

    /// The blocks that a log appends to, their classes, and how many chunks of each are in use.
    pub(crate) fn open_of(&self, log: u32) -> impl Iterator<Item = (u32, Class, u32)> {
        let open = self.open[log as usize].iter().flatten();
        open.map(|block| (*block, self.active[*block].class, self.active[*block].next_chunk))
    }

    /// Takes a block whose program failed out of use; returns its buffers that are not programmed, for placing their
    /// records again, and closes it.
    pub(crate) fn abandon(&mut self, block: u32, blocks: &mut BlockTable) -> Option<BlockWriter> {
        let writer = self.active.remove(block)?;
        self.stop(block);
        blocks.set_failing(block);
        blocks.close(block, self.sequence);
        Some(writer)
    }

    /// The oldest frame whose records are not all programmed.
    pub(crate) fn oldest_frame(&self) -> Option<u64> {
        let buffers = self.active.values().flat_map(|writer| &writer.buffers);
        buffers.map(|b| b.first_frame).min().filter(|frame| *frame != u64::MAX)
    }

    /// Whether a block that still has pages in buffers holds metadata.
    pub(crate) fn is_metadata(&self, block: u32) -> bool {
        self.active.get(block).is_some_and(|writer| writer.class.is_metadata())
    }

    /// Whether a block still has pages in buffers.
    pub(crate) fn is_active(&self, block: u32) -> bool {
        self.active.get(block).is_some()
    }

    /// Whether all pages of a block but those appended last are programmed.
    pub(crate) fn has_one_buffer(&self, block: u32) -> bool {
        self.active.get(block).is_some_and(|writer| writer.buffers.len() == 1)
    }

    /// Records of hosts that are not programmed of a block, if it holds such.
    pub(crate) fn unprogrammed_records(&self, block: u32) -> Option<Vec<crate::format::oob::Extent>> {
        let writer = self.active.get(block).filter(|w| !w.class.is_metadata() && w.class != Class::Segment)?;
        Some(writer.unprogrammed_records(&self.geometry))
    }

    /// Copies bytes that are in buffers of a block; false if any of them has left them (and is programmed by now).
    pub(crate) fn read(&self, block: u32, chunk: u32, into: &mut [u8]) -> bool {
        let Some(writer) = self.active.get(block) else { return false };
        writer.read(&self.geometry, chunk, into)
    }
}
