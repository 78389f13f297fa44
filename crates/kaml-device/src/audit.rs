//! Checking a block: are all live records in it whole, and is what is accounted for it there?
//!
//! Lives here:       reading one block outside the core, judging it against the index.
//! May be called by: scrubbers, with the device in use or not.

use crate::blocks::{BlockState, Pin};
use crate::core::{Core, code};
use crate::format::oob::{Extent, Oob, entries_of_block, extents};
use crate::format::record::{Record, RecordHeader};
use crate::lifetime::Class;
use crate::reader::{READS_MAX, Reader};
use kaml_flash::{AlignedBuf, BlockIndex, ChunkAddr, Geometry, Io, Medium, MediumError, PageAddr};
use kaml_index::Slot;
use std::collections::BTreeSet;

/// What was read of a block.
pub struct BlockAudit {
    block: u32,
    /// Chunks that were programmed before it was read: what is behind them may have been half there.
    programmed: u32,
    records: Vec<(Extent, Seen)>,
    /// Of each page that has an OOB entry, when it was programmed; else 0.
    page_sequences: Vec<u64>,
    errors: Vec<MediumError>,
    _pin: Pin,
}

enum Seen {
    Whole(Record),
    BadValue(Record),
    BadHeader,
    /// A segment of a versioned namespace, or one that was.
    Segment,
}

/// What a block came to.
#[derive(Debug, Default)]
pub struct Judgement {
    /// Live records that are whole.
    pub records: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// What is wrong.
    pub problems: Vec<String>,
}

/// Bytes read at a time, unless a record is longer.
const SLICE_BYTES: u32 = 1 << 20;

impl BlockAudit {
    /// Reads a block and checks every record's checksums; what does not match is read again before it counts. The block is not erased
    /// meanwhile; [`Core::hold_block`] makes sure that it was not before.
    pub fn read(reader: &Reader, medium: &dyn Medium, block: u32) -> BlockAudit {
        let geometry = medium.geometry();
        let pin = reader.pin_block(block);
        let programmed = reader.programmed_chunks(block);
        let (records, page_sequences, errors) = (Vec::new(), Vec::new(), Vec::new());
        let mut audit = BlockAudit { block, programmed, records, page_sequences, errors, _pin: pin };
        let pages = match read_entries(medium, block, programmed / geometry.chunks_per_page()) {
            Ok(pages) => pages,
            Err(error) => {
                audit.errors.push(error);
                return audit;
            }
        };
        let mut found = extents(&pages, geometry.chunks_per_page());
        found.retain(|extent| extent.start + extent.chunk_count <= programmed);
        audit.page_sequences = pages.iter().map(|page| page.map_or(0, |page| page.sequence)).collect();
        if pages.iter().flatten().any(|page| page.class == Class::Segment as u8) {
            audit.records = found.into_iter().map(|extent| (extent, Seen::Segment)).collect();
            return audit;
        }
        let mut rest = found.as_slice();
        while let Some(first) = rest.first() {
            let limit = first.start + SLICE_BYTES / geometry.chunk_bytes;
            let count = rest.iter().take_while(|e| e.start + e.chunk_count <= limit).count().max(1);
            let (slice, others) = rest.split_at(count);
            match read_slice(medium, block, slice) {
                Ok(seen) => audit.records.extend(slice.iter().copied().zip(seen)),
                Err(error) => audit.errors.push(error),
            }
            rest = others;
        }
        audit
    }

    /// What could not be read.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &MediumError> {
        self.errors.iter()
    }

    /// Records whose headers are whole: where, how many chunks, the header, when the first page was programmed.
    pub(crate) fn records(&self, geometry: &Geometry) -> impl Iterator<Item = (ChunkAddr, u32, &Record, u64)> {
        self.records.iter().filter_map(|(extent, seen)| {
            let (Seen::Whole(record) | Seen::BadValue(record)) = seen else { return None };
            let page = (extent.start / geometry.chunks_per_page()) as usize;
            let at = geometry.chunk_at(BlockIndex(self.block), extent.start);
            Some((at, extent.chunk_count, record, self.page_sequences[page]))
        })
    }

    /// A namespace whose index must be loaded first to judge what was read, unless it is one of those `without` one.
    pub fn needed_index(&self, core: &Core, without: &BTreeSet<u32>) -> Option<u32> {
        let is_needed = |id: &u32| !without.contains(id) && core.spaces.get(id).is_some_and(|space| !space.is_loaded());
        let of_record = |(_, seen): &(Extent, Seen)| match seen {
            Seen::Whole(record) | Seen::BadValue(record) => Some(record.namespace).filter(is_needed),
            Seen::Segment => core.version_spaces().map(|(id, _)| id).find(is_needed),
            Seen::BadHeader => None,
        };
        self.records.iter().find_map(of_record)
    }

    /// Judges what was read as the indexes stand now. Those that are not loaded name nothing
    /// ([`BlockAudit::needed_index`]).
    pub fn judge(self, core: &Core) -> Judgement {
        let mut judgement = Judgement::default();
        let mut live_chunks = 0;
        let mut bad_headers = Vec::new();
        let has_segments = self.records.iter().any(|(_, seen)| matches!(seen, Seen::Segment));
        let segments = if has_segments { core.segments_of_block(self.block) } else { BTreeSet::new() };
        for (extent, seen) in &self.records {
            let at = core.geometry.chunk_at(BlockIndex(self.block), extent.start);
            match seen {
                Seen::BadHeader => bad_headers.push(at),
                Seen::Segment if segments.contains(&at) => live_chunks += extent.chunk_count,
                Seen::Segment => {}
                Seen::Whole(record) | Seen::BadValue(record) => {
                    let slot = Slot { at: at.0, len: code(extent.chunk_count) };
                    if core.slot(record.namespace, &record.key) != Some(slot) {
                        continue; // a newer one is elsewhere
                    }
                    live_chunks += slot.len.chunks_max();
                    if matches!(seen, Seen::Whole(_)) {
                        judgement.records += 1;
                        judgement.value_bytes += u64::from(record.value_len);
                    } else {
                        let (namespace, key) = (record.namespace, record.key);
                        judgement.problems.push(format!(
                            "namespace {namespace}: key {key}: record at {at} is damaged (its value's checksum does not match)"
                        ));
                    }
                }
            }
        }
        let block = core.blocks.get(self.block);
        let is_changing = core.writers.is_active(self.block) || core.collector.is_running() || core.deletions > 0;
        let settled = block.holds == 0 && !is_changing && self.programmed == core.gate().programmed_chunks(self.block);
        if settled && block.valid_chunks != live_chunks {
            judgement
                .problems
                .extend(bad_headers.iter().map(|at| format!("record at {at}: its header's checksum does not match")));
            judgement.problems.push(format!(
                "block {}: {} chunks are accounted as live, {live_chunks} were found",
                self.block, block.valid_chunks
            ));
        }
        judgement.problems.extend(self.errors.iter().map(|error| error.to_string()));
        judgement
    }
}

/// The OOB entries of a block's pages, of those that were programmed as many as can be had: torn ones have none.
fn read_entries(medium: &dyn Medium, block: u32, programmed_pages: u32) -> Result<Vec<Option<Oob>>, MediumError> {
    let geometry = medium.geometry();
    let at = PageAddr { block: BlockIndex(block), page: 0 };
    let bytes = (geometry.pages_per_block * geometry.oob_bytes) as usize;
    let mut io = Io::ReadOob { at, into: AlignedBuf::zeroed(bytes) };
    let (mut best, mut best_count) = (Vec::new(), 0);
    for _ in 0..READS_MAX {
        medium.execute(&mut io)?;
        let Io::ReadOob { into, .. } = &io else { unreachable!("still an OOB read") };
        let pages = entries_of_block(into, geometry.oob_bytes as usize);
        let count = pages[..programmed_pages as usize].iter().flatten().count();
        if count >= best_count {
            (best, best_count) = (pages, count);
        }
        if best_count == programmed_pages as usize {
            break;
        }
    }
    Ok(best)
}

/// What stands where these records should, which follow each other.
fn read_slice(medium: &dyn Medium, block: u32, slice: &[Extent]) -> Result<Vec<Seen>, MediumError> {
    let geometry = medium.geometry();
    let chunk = geometry.chunk_bytes as usize;
    let (first, last) = (slice[0], slice[slice.len() - 1]);
    let bytes = (last.start + last.chunk_count - first.start) as usize * chunk;
    let at = geometry.chunk_at(BlockIndex(block), first.start);
    let mut io = Io::Read { at, into: AlignedBuf::zeroed(bytes) };
    let mut seen = Vec::new();
    for _ in 0..READS_MAX {
        medium.execute(&mut io)?;
        let Io::Read { into, .. } = &io else { unreachable!("still a read") };
        let bytes_of = |extent: &Extent| {
            let start = (extent.start - first.start) as usize * chunk;
            &into[start..start + extent.chunk_count as usize * chunk]
        };
        seen = slice.iter().map(|extent| look_at(bytes_of(extent))).collect();
        if seen.iter().all(|seen| matches!(seen, Seen::Whole(_))) {
            break;
        }
    }
    Ok(seen)
}

fn look_at(bytes: &[u8]) -> Seen {
    let Some(record) = RecordHeader::check(bytes) else { return Seen::BadHeader };
    match bytes.get(RecordHeader::BYTES..record.page_bytes()) {
        Some(value) if crc_fast::crc32_iscsi(value) == record.value_crc => Seen::Whole(record),
        _ => Seen::BadValue(record),
    }
}

impl Core {
    /// Blocks that hold live records.
    pub fn blocks_in_use(&self) -> Vec<u32> {
        self.blocks.iter().map(|(block, _)| block).filter(|block| self.is_in_use(*block)).collect()
    }

    /// Keeps a block from being erased for as long as the answer lives, so that it can be read; nothing if it holds no live
    /// records any more.
    pub fn hold_block(&self, block: u32) -> Option<Pin> {
        self.is_in_use(block).then(|| self.gate().pin(self.geometry.chunk_at(BlockIndex(block), 0)))
    }

    fn is_in_use(&self, block: u32) -> bool {
        let block = self.blocks.get(block);
        let has_records =
            matches!(block.state, BlockState::Open | BlockState::Full | BlockState::Draining | BlockState::Bad);
        block.valid_chunks > 0 && has_records
    }
}
