//! From the oldest versions of a row to a segment.
//!
//! Lives here:       choosing versions, their ordinals, pages and equations; the image, for either index.
//! Lives elsewhere:  when a row is sealed (`columns`), where the image is written (the caller), the paper's way (`bloom`).
//! Implements:       docs/versioned.md "Placement"; paper:Muninn 4.2.1, 4.4 (write order).
//!
//! A segment is chosen in steps, each of which may leave versions to the next segment. Whenever one is left, so are all
//! newer versions of its key: the segments of a row are in time order for each key.

use crate::bloom::FilterTable;
use crate::buffer::{BufferRow, Buffered, NONE};
use crate::format::{self, SegmentTable};
use crate::hash::{CHOICES_MAX, KeyHash, VersionHash};
use crate::parameters::Parameters;
use crate::placement::Placement;
use crate::record::{HEADER_BYTES, Kind, Version};
use crate::retrieval::{System, positions_for, records_for};
use crate::retrieval_columns::{RetrievalTable, ValueShape};
use kaml_index::Key;
use std::ops::Range;

/// Versions of a segment at most: ordinals and counts have 16 bits.
const RECORDS_MAX: usize = 60_000;
/// Versions are tried until their bytes exceed a segment's by this, in sixteenths.
const TRIED_SIXTEENTHS: usize = 20;
/// A table has room for this many sixteenths of the versions that fill a segment.
const RECORDS_SIXTEENTHS: usize = 18;
/// After so many versions in a row that found no place, the segment counts as full.
const MISSES_MAX: usize = 48;

/// A segment that waits to be programmed.
#[derive(Debug)]
pub struct Sealed {
    /// Its row.
    pub row: u32,
    /// All its pages.
    pub image: Vec<u8>,
    /// Versions in it.
    pub records: u32,
    /// Bytes of the records in it, extents included.
    pub record_bytes: usize,
    /// Sequences of its versions.
    pub sequences: Range<u64>,
    /// Pages that versions are hashed to: the first ones of the image.
    pub hashed_pages: u32,
    /// Pages of its table: the last ones of the image.
    pub table_pages: u32,
    /// The index of its versions.
    pub(crate) table: Table,
    /// Each key once.
    pub(crate) keys: Vec<KeyHash>,
    /// Those of the row's first versions that are in it.
    pub(crate) leaves: Vec<bool>,
}

/// The index of a segment's versions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Table {
    Retrieval(RetrievalTable),
    Filters(FilterTable),
}

impl Table {
    /// What the next segment's table should be like to be searched together with this one.
    pub(crate) fn room(&self) -> Room {
        match self {
            Table::Retrieval(table) => Room::Join(table.values.len() as u32),
            Table::Filters(_) => Room::New,
        }
    }
}

/// A version that leaves the buffer: its number there, and its page.
pub(crate) struct Placed {
    pub(crate) entry: usize,
    /// As it will be stored, except for the place of a long value.
    pub(crate) version: Version,
    pub(crate) page: u32,
}

/// The positions of the group that the segment might join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// There is no such group, or it is full.
    New,
    /// A group with this many positions.
    Join(u32),
}

/// A version on its way into the segment.
struct Chosen {
    /// Its number in the row's buffer.
    entry: usize,
    version: Version,
    hash: VersionHash,
    /// Its number in `placement`.
    placed: usize,
}

/// How the pages of a segment are divided: hashed ones, extents, the table.
#[derive(Clone, Copy, Debug)]
struct Division {
    hashed: u32,
    extents: u32,
    table: u32,
}

/// Seals what it can of a row's versions; nothing if the row is empty. They are kept in the row until they are removed.
pub(crate) fn seal(
    row_index: u32,
    row: &BufferRow,
    parameters: &Parameters,
    shape: ValueShape,
    room: Room,
) -> Option<Sealed> {
    if row.entries().is_empty() {
        return None;
    }
    let pages = divide(row, parameters, shape);
    let mut placement = Placement::new(pages.hashed as usize, parameters.page_bytes, shape.choices as usize);
    let mut chosen = choose(row, parameters, pages, &mut placement);
    let max = format::positions_max(pages.table, shape, parameters.page_bytes);
    let slots = slots(&chosen, parameters, pages);
    let positions = positions(&mut chosen, room, max, slots);
    let table = RetrievalTable { shape, values: solve(&mut chosen, &placement, positions, shape, row) };
    let page = |each: &Chosen| u32::from(placement.page_of(each.placed).0);
    let placed = |each: Chosen| Placed { entry: each.entry, page: page(&each), version: each.version };
    let placed = chosen.into_iter().map(placed).collect();
    Some(build(row_index, row, parameters, pages.hashed, placed, Table::Retrieval(table)))
}

/// Pages for the table, for the values of extents, and for records, as the row's oldest segment full of versions needs them.
fn divide(row: &BufferRow, parameters: &Parameters, shape: ValueShape) -> Division {
    let (mut total, mut extents, mut count) = (0, 0, 0);
    for entry in row.entries() {
        let is_extent = entry.len() > parameters.page_bytes as usize;
        // Its record has to find a page as well; a header and the longest key is enough for that.
        total += entry.len() + if is_extent { HEADER_BYTES + Key::BYTES_MAX } else { 0 };
        if total > parameters.segment_bytes() {
            break;
        }
        count += 1;
        extents += if is_extent { entry.len() } else { 0 };
    }
    // Of mixed sizes more may find room than come first.
    let records = (count * RECORDS_SIXTEENTHS / 16).clamp(1, RECORDS_MAX);
    let table =
        format::table_pages(positions_for(records), shape, parameters.page_bytes).min(parameters.segment_pages - 1);
    let rest = parameters.segment_pages - table;
    let extents = (extents.div_ceil(parameters.page_bytes as usize) as u32).min(rest - 1);
    Division { hashed: rest - extents, extents, table }
}

/// Places versions: those that have waited long, then large ones first and of equal ones the oldest first.
fn choose(row: &BufferRow, parameters: &Parameters, pages: Division, placement: &mut Placement) -> Vec<Chosen> {
    let mut chosen: Vec<Chosen> = Vec::with_capacity(row.entries().len());
    // The ordinal that a key's next version would have, for each entry that is in.
    let mut next_ordinal = vec![0u16; row.entries().len()];
    let mut extent_room = pages.extents as usize * parameters.page_bytes as usize;
    let mut misses = Misses::default();
    for at in order(row, parameters) {
        if chosen.len() == RECORDS_MAX {
            break;
        }
        let entry = &row.entries()[at];
        if misses.is_hopeless(entry.len()) {
            continue;
        }
        let ordinal = match entry.older {
            NONE => 0,
            // Zero there: the older version waits, and so must this one.
            older => match next_ordinal[older as usize] {
                0 => continue,
                ordinal => ordinal,
            },
        };
        let (mut version, record) = entry.read();
        if record.len() > parameters.page_bytes as usize {
            if version.value_len as usize > extent_room {
                continue;
            }
            version.kind = Kind::Extent(0);
        }
        version.ordinal = ordinal;
        let hash = entry.hash.version(ordinal);
        let candidates = std::array::from_fn::<u16, CHOICES_MAX, _>(|choice| hash.page(choice, pages.hashed) as u16);
        let Some(placed) = placement.place(version.stored_bytes() as u32, candidates) else {
            misses.note(record.len());
            continue;
        };
        misses.count = 0;
        if version.kind == Kind::Extent(0) {
            extent_room -= version.value_len as usize;
        }
        next_ordinal[at] = ordinal + 1;
        chosen.push(Chosen { entry: at, version, hash, placed });
    }
    chosen.sort_unstable_by_key(|each| each.entry);
    chosen
}

/// The entries to try, in the order of trying. A version counts as large as the largest newer one of its key, so
/// it comes before them.
fn order(row: &BufferRow, parameters: &Parameters) -> Vec<usize> {
    let limit = parameters.segment_bytes() * TRIED_SIXTEENTHS / 16;
    let mut bytes = 0;
    let in_limit = |entry: &&Buffered| {
        bytes += entry.len();
        bytes <= limit + entry.len()
    };
    let mut weights: Vec<usize> = row.entries().iter().take_while(in_limit).map(Buffered::len).collect();
    for at in (0..weights.len()).rev() {
        let older = row.entries()[at].older;
        if older != NONE {
            weights[older as usize] = weights[older as usize].max(weights[at]);
        }
    }
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse((row.entries()[*at].is_urgent(), weights[*at])));
    order
}

/// Versions of about one size that found no place, one after another.
#[derive(Default)]
struct Misses {
    count: usize,
    bytes: usize,
}

impl Misses {
    /// Whether so many found no place that others of their size, and larger ones, need not be tried.
    fn is_hopeless(&self, bytes: usize) -> bool {
        self.count > MISSES_MAX && bytes * 16 >= self.bytes * 15
    }

    fn note(&mut self, bytes: usize) {
        if bytes * 16 < self.bytes * 15 || self.count == 0 {
            *self = Misses { count: 0, bytes };
        }
        self.count += 1;
    }
}

/// How long the table is. A segment joins the open group of its row if that costs neither much memory nor much room.
fn positions(chosen: &mut Vec<Chosen>, room: Room, max: u32, slots: usize) -> u32 {
    chosen.truncate(records_for(max));
    let needed = positions_for(chosen.len());
    if let Room::Join(positions) = room
        && positions <= max
    {
        let fit = records_for(positions);
        if needed <= positions && positions <= needed + needed / 12 + 16 {
            return positions;
        }
        if chosen.len() > fit && fit >= chosen.len() * 49 / 50 {
            chosen.truncate(fit);
            return positions;
        }
    }
    // A new group, made for the segments that will join it as well. Records of one size fill the slots that there are.
    // Numbers of mixed ones vary by some two percent: most fit if this one has three percent to spare.
    let joined = if slots >= chosen.len() && slots * 9 / 10 <= chosen.len() { slots } else { chosen.len() * 33 / 32 };
    positions_for(joined.min(RECORDS_MAX)).min(max)
}

/// Versions as large as the largest one that the hashed pages take.
fn slots(chosen: &[Chosen], parameters: &Parameters, pages: Division) -> usize {
    let largest = chosen.iter().map(|each| each.version.stored_bytes()).max().unwrap_or(1);
    pages.hashed as usize * (parameters.page_bytes as usize / largest)
}

/// Solves the table. Versions whose equations contradict older ones are left out, and newer ones of their keys.
fn solve(
    chosen: &mut Vec<Chosen>,
    placement: &Placement,
    positions: u32,
    shape: ValueShape,
    row: &BufferRow,
) -> Vec<u32> {
    let mut system = System::new(positions);
    let mut refused: Vec<KeyHash> = Vec::new();
    chosen.retain(|each| {
        let key = row.entries()[each.entry].hash;
        let (_, choice) = placement.page_of(each.placed);
        let fits =
            !refused.contains(&key) && system.add(&each.hash.positions(positions), shape.value(&each.hash, choice));
        if !fits {
            refused.push(key);
        }
        fits
    });
    system.solve(shape.planes())
}

/// Writes the pages.
pub(crate) fn build(
    row_index: u32,
    row: &BufferRow,
    parameters: &Parameters,
    hashed_pages: u32,
    placed: Vec<Placed>,
    table: Table,
) -> Sealed {
    let page_bytes = parameters.page_bytes as usize;
    let mut image = vec![0; parameters.segment_bytes()];
    let mut filled = vec![0usize; hashed_pages as usize];
    let mut extents_end = hashed_pages as usize * page_bytes;
    let mut leaves = vec![false; row.entries().len()];
    let (mut first, mut last) = (u64::MAX, 0);
    let mut keys = Vec::with_capacity(placed.len());
    let records = placed.len() as u32;
    for Placed { entry, mut version, page } in placed {
        leaves[entry] = true;
        let entry = &row.entries()[entry];
        let value = &entry.record()[HEADER_BYTES + version.key.len()..];
        if version.kind == Kind::Extent(0) {
            version.kind = Kind::Extent(extents_end as u32);
            image[extents_end..extents_end + value.len()].copy_from_slice(value);
            extents_end += value.len();
        }
        let page = page as usize;
        let at = page * page_bytes + filled[page];
        let head = version.encode(&mut image[at..]);
        if version.kind == Kind::Value {
            image[at + head..at + head + value.len()].copy_from_slice(value);
        }
        filled[page] += version.stored_bytes();
        first = first.min(version.sequence);
        last = last.max(version.sequence);
        if entry.older == NONE {
            keys.push(entry.hash);
        }
    }
    let record_bytes = filled.iter().sum::<usize>() + extents_end - hashed_pages as usize * page_bytes;
    let sequences = if records == 0 { 0..0 } else { first..last + 1 };
    let stored =
        SegmentTable { sequences: sequences.clone(), row: row_index, hashed_pages, records: records as u16, table };
    let bytes = format::encode(&stored);
    let table_pages = format::pages_of_table(&stored.table, parameters);
    let start = (parameters.segment_pages - table_pages) as usize * page_bytes;
    image[start..start + bytes.len()].copy_from_slice(&bytes);
    Sealed {
        row: row_index,
        image,
        records,
        record_bytes,
        sequences,
        hashed_pages,
        table_pages,
        table: stored.table,
        keys,
        leaves,
    }
}
