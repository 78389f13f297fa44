//! Checking a block: are all live records in it whole, and is what is accounted for it there?
//!
//! Lives here:       reading one block outside the core, judging it against the index.
//! May be called by: scrubbers, with the device in use or not.

use crate::blocks::BlockState;
use crate::core::{Core, code};
use crate::first_root::first_sequence;
use crate::format::oob::{Extent, Oob, PageTagger, entries_of_block, extents};
use crate::format::record::{Record, RecordHeader};
use crate::gate::Pin;
use crate::lifetime::Class;
use crate::metadata::READS_MAX;
use crate::reader::Reader;
use crate::secret::Secret;
use kaml_flash::{AlignedBuf, BlockIndex, ChunkAddr, Geometry, Io, Medium, MediumError, PageAddr};
use kaml_index::{FullKey, Slot};
use std::collections::BTreeSet;

/// What was read of a block.
pub struct BlockAudit {
    block: u32,
    /// Chunks that were programmed before it was read: what is after them may have been half there.
    programmed: u32,
    records: Vec<(Extent, Examined)>,
    /// When each page that has an OOB entry was programmed; else 0.
    page_sequences: Vec<u64>,
    errors: Vec<MediumError>,
    _pin: Pin,
}

enum Examined {
    Whole(FoundRecord),
    BadValue(FoundRecord),
    /// Its checksum matches, and its value cannot be decompressed.
    BadPacked(FoundRecord),
    BadHeader,
    /// A segment of a versioned namespace, or one that was.
    Segment,
}

/// A record whose header is whole.
struct FoundRecord {
    record: Record,
    /// The bytes of a key that is a digest, as far as they can be determined.
    long: Option<Box<[u8]>>,
    /// Bytes of the value that a caller gave.
    value_bytes: u64,
    /// When it expires; 0 for never, and if that is damaged.
    expires: u64,
}

impl FoundRecord {
    fn full_key(&self) -> FullKey<'_> {
        match &self.long {
            Some(long) => FullKey::long(self.record.key, long),
            None => self.record.key.into(),
        }
    }
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
        BlockAudit::read_what(reader, medium, block, None)
    }

    /// As [`BlockAudit::read`], for a scan that no index guides: pages whose tags do not match count as not programmed.
    pub(crate) fn read_authentic(reader: &Reader, medium: &dyn Medium, block: u32, secret: &Secret) -> BlockAudit {
        BlockAudit::read_what(reader, medium, block, Some(secret))
    }

    fn read_what(reader: &Reader, medium: &dyn Medium, block: u32, secret: Option<&Secret>) -> BlockAudit {
        let geometry = medium.geometry();
        let pin = reader.pin_block(block);
        let programmed = reader.programmed_chunks(block);
        let (records, page_sequences, errors) = (Vec::new(), Vec::new(), Vec::new());
        let mut audit = BlockAudit { block, programmed, records, page_sequences, errors, _pin: pin };
        let mut pages = match read_entries(medium, block, programmed / geometry.chunks_per_page()) {
            Ok(pages) => pages,
            Err(error) => {
                audit.errors.push(error);
                return audit;
            }
        };
        if let Some(secret) = secret {
            drop_unauthentic(medium, block, secret, &mut pages);
        }
        let mut found = extents(&pages, geometry.chunks_per_page());
        found.retain(|extent| extent.start + extent.chunk_count <= programmed);
        audit.page_sequences = pages.iter().map(|page| page.map_or(0, |page| page.sequence)).collect();
        if pages.iter().flatten().any(|page| page.class == Class::Segment as u8) {
            audit.records = found.into_iter().map(|extent| (extent, Examined::Segment)).collect();
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
    pub(crate) fn records(
        &self,
        geometry: &Geometry,
    ) -> impl Iterator<Item = (ChunkAddr, u32, &Record, FullKey<'_>, [u64; 2])> {
        self.records.iter().filter_map(|(extent, seen)| {
            let (Examined::Whole(seen) | Examined::BadValue(seen) | Examined::BadPacked(seen)) = seen else {
                return None;
            };
            let page = (extent.start / geometry.chunks_per_page()) as usize;
            let at = geometry.chunk_at(BlockIndex(self.block), extent.start);
            Some((at, extent.chunk_count, &seen.record, seen.full_key(), [self.page_sequences[page], seen.expires]))
        })
    }

    /// A namespace whose index must be loaded first to judge what was read, unless it is one of those `without` one.
    pub fn needed_index(&self, core: &Core, without: &BTreeSet<u32>) -> Option<u32> {
        let is_needed = |id: &u32| !without.contains(id) && core.spaces.get(id).is_some_and(|space| !space.is_loaded());
        let of_record = |(_, seen): &(Extent, Examined)| match seen {
            Examined::Whole(seen) | Examined::BadValue(seen) | Examined::BadPacked(seen) => {
                Some(seen.record.namespace).filter(is_needed)
            }
            Examined::Segment => core.version_spaces().map(|(id, _)| id).find(is_needed),
            Examined::BadHeader => None,
        };
        self.records.iter().find_map(of_record)
    }

    /// Judges what was read as the indexes stand now. Those that are not loaded name nothing
    /// ([`BlockAudit::needed_index`]).
    pub fn judge(self, core: &Core) -> Judgement {
        let mut judgement = Judgement::default();
        let mut live_chunks = 0;
        let mut bad_headers = Vec::new();
        let has_segments = self.records.iter().any(|(_, seen)| matches!(seen, Examined::Segment));
        let segments = if has_segments { core.segments_of_block(self.block) } else { BTreeSet::new() };
        for (extent, seen) in &self.records {
            let at = core.log.geometry.chunk_at(BlockIndex(self.block), extent.start);
            match seen {
                Examined::BadHeader => bad_headers.push(at),
                Examined::Segment if segments.contains(&at) => live_chunks += extent.chunk_count,
                Examined::Segment => {}
                Examined::Whole(found) | Examined::BadValue(found) | Examined::BadPacked(found) => {
                    let (record, key) = (&found.record, found.full_key());
                    let slot = Slot { at: at.0, len: code(extent.chunk_count) };
                    if core.slot(record.namespace, key) != Some(slot) {
                        let of_index =
                            core.spaces.get(&record.namespace).map_or(key, |space| space.layout.indexed(key));
                        if core.is_kept(record.namespace, &of_index, slot) {
                            live_chunks += slot.len.chunks_max();
                        }
                        continue; // a newer one is elsewhere
                    }
                    live_chunks += slot.len.chunks_max();
                    if matches!(seen, Examined::Whole(_)) {
                        judgement.records += 1;
                        judgement.value_bytes += found.value_bytes;
                    } else {
                        let namespace = record.namespace;
                        let why = match seen {
                            Examined::BadPacked(_) => "its value cannot be decompressed",
                            _ => "its value's checksum does not match",
                        };
                        judgement
                            .problems
                            .push(format!("namespace {namespace}: key {key}: record at {at} is damaged ({why})"));
                    }
                }
            }
        }
        let block = core.log.blocks.get(self.block);
        let is_changing =
            core.log.writers.is_active(self.block) || core.collector.is_running() || core.space.deletions > 0;
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
pub(crate) fn read_entries(
    medium: &dyn Medium,
    block: u32,
    programmed_pages: u32,
) -> Result<Vec<Option<Oob>>, MediumError> {
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

/// Leaves out the entries of pages whose tags do not match what is in the pages.
fn drop_unauthentic(medium: &dyn Medium, block: u32, secret: &Secret, pages: &mut [Option<Oob>]) {
    let geometry = medium.geometry();
    let mut tagger = PageTagger::new(secret.sealer());
    let first_tagged = first_sequence(secret.since_epoch);
    let step = (SLICE_BYTES / geometry.page_bytes).max(1) as usize;
    for (first, entries) in (0..).step_by(step).zip(pages.chunks_mut(step)) {
        if entries.iter().all(Option::is_none) {
            continue;
        }
        let mut at = PageAddr { block: BlockIndex(block), page: first };
        let mut is_authentic = vec![false; entries.len()];
        for _ in 0..READS_MAX {
            let data = read_pages(medium, at, entries.len());
            for ((entry, is_authentic), data) in entries.iter().zip(&mut is_authentic).zip(&data) {
                *is_authentic |= match (entry, data) {
                    (Some(Oob { tag: None, sequence, .. }), _) => *sequence < first_tagged,
                    (Some(oob @ Oob { tag: Some(tag), .. }), Some(data)) => {
                        oob.tag_at(at, data, geometry.chunk_bytes, &mut tagger) == *tag
                    }
                    (Some(_), None) | (None, _) => false,
                };
                at.page += 1;
            }
            at.page = first;
            if entries.iter().zip(&is_authentic).all(|(entry, is_authentic)| entry.is_none() || *is_authentic) {
                break;
            }
        }
        for (entry, is_authentic) in entries.iter_mut().zip(is_authentic) {
            entry.take_if(|_| !is_authentic);
        }
    }
}

/// The data of pages of a block, of those that can be read.
fn read_pages(medium: &dyn Medium, first: PageAddr, count: usize) -> Vec<Option<Vec<u8>>> {
    let geometry = medium.geometry();
    let page_bytes = geometry.page_bytes as usize;
    let read = |page: u32, count: usize| {
        let at = geometry.chunk_at(first.block, page * geometry.chunks_per_page());
        let mut io = Io::Read { at, into: AlignedBuf::zeroed(count * page_bytes) };
        medium.execute(&mut io).ok()?;
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        Some(into)
    };
    match read(first.page, count) {
        Some(all) => all.chunks(page_bytes).map(|page| Some(page.to_vec())).collect(),
        None => (first.page..).take(count).map(|page| read(page, 1).map(|page| page.to_vec())).collect(),
    }
}

/// What is in the place of these records, which follow each other.
fn read_slice(medium: &dyn Medium, block: u32, slice: &[Extent]) -> Result<Vec<Examined>, MediumError> {
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
        if seen.iter().all(|seen| matches!(seen, Examined::Whole(_))) {
            break;
        }
    }
    Ok(seen)
}

fn look_at(bytes: &[u8]) -> Examined {
    let Some(record) = RecordHeader::check(bytes) else { return Examined::BadHeader };
    let stored = bytes.get(record.stored_range());
    let key = stored.and_then(|stored| record.full_key(stored));
    let long = key.filter(|key| !key.long_bytes().is_empty()).map(|key| key.long_bytes().into());
    let value_bytes = stored.map_or(0, |stored| record.given_value_bytes(stored));
    let expires = stored.and_then(|stored| record.expires(stored)).unwrap_or(0);
    let seen = FoundRecord { record, long, value_bytes, expires };
    match stored {
        Some(stored) if kaml_crc::crc32c(stored) == record.value_crc => match record.can_be_unpacked(stored) {
            true => Examined::Whole(seen),
            false => Examined::BadPacked(seen),
        },
        _ => Examined::BadValue(seen),
    }
}

impl Core {
    /// Blocks that hold live records.
    pub fn blocks_in_use(&self) -> Vec<u32> {
        self.log.blocks.iter().map(|(block, _)| block).filter(|block| self.is_in_use(*block)).collect()
    }

    /// Keeps a block from being erased for as long as the answer lives, so it can be read; nothing if it holds no live
    /// records any more.
    pub fn hold_block(&self, block: u32) -> Option<Pin> {
        self.is_in_use(block).then(|| self.gate().pin(self.log.geometry.chunk_at(BlockIndex(block), 0)))
    }

    fn is_in_use(&self, block: u32) -> bool {
        if block >= self.log.blocks.count() {
            return false; // the device has become smaller
        }
        let block = self.log.blocks.get(block);
        let has_records =
            matches!(block.state, BlockState::Open | BlockState::Full | BlockState::Draining | BlockState::Bad);
        block.valid_chunks > 0 && has_records
    }
}
