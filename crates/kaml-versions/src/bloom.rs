//! The paper's own index, as a baseline: skewed Bloom filters that say which hash function placed a key.
//!
//! Lives here:       placement at insert, flushing, column-wise search, with the parameters of Table 1.
//! Lives elsewhere:  the better default (`columns`).
//! Implements:       paper:Muninn 4.2.1 (insert), 4.3 (search), Table 1. Where the paper leaves a choice, the reading
//!                   is taken that gives its figures; docs/versioned.md "The baseline" lists them.
//!
//! A *place* is a hash function for pages: one for each of seven filters, then sixteen of the overflow map. A key's later
//! version in a segment has a later place, so the last place is the newest version's. Its number stands in the record as
//! the ordinal.

use crate::Error;
use crate::group::SegmentAt;
use crate::hash::KeyHash;
use crate::packed::{Packed, WIDTH_MAX};
use crate::record::{HEADER_BYTES, Version, find};
use kaml_index::Key;

/// Filters with one place each.
const FILTERS: usize = 7;
/// The filter of keys that are in the overflow map.
const OVERFLOW: usize = FILTERS;
/// Places that an entry of the overflow map tells apart.
const OVERFLOW_PLACES: usize = 16;
/// An entry of the overflow map: 4 bytes of hash and a bitmap.
const OVERFLOW_ENTRY_BYTES: usize = 6;
/// Positions of a filter at most.
const HASHES_MAX: u32 = 32;

/// The parameters of Table 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BloomParameters {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Pages of a segment.
    pub segment_pages: u32,
    /// Rows, each with an open segment in memory.
    pub rows: u32,
    /// Keys that each filter takes: *hashes* of them, skewed.
    pub filter_keys: [u32; FILTERS],
    /// Keys that the overflow map of a segment takes.
    pub overflow_keys: u32,
    /// `fpr_int`: false positives of each filter of the first table.
    pub false_positive_rate: f64,
    /// `r`: each next table of a row has this many times the rate.
    pub growth: f64,
    /// *combined*: segments of a table, 1 to 64.
    pub combined: u32,
    /// The namespace's.
    pub seed: u64,
}

impl Default for BloomParameters {
    /// S8/7: what the paper chose.
    fn default() -> BloomParameters {
        BloomParameters {
            page_bytes: 4096,
            segment_pages: 256,
            rows: 128,
            filter_keys: [512, 256, 128, 64, 32, 16, 8],
            overflow_keys: 32,
            false_positive_rate: 0.0005,
            growth: 1.01,
            combined: 64,
            seed: 0,
        }
    }
}

impl BloomParameters {
    fn check(&self) -> Result<(), Error> {
        let fail = |what, value, must| Err(Error::BadParameter { what, value, must });
        if !(512..=1 << 16).contains(&self.page_bytes) {
            return fail("page_bytes", self.page_bytes.into(), "512 to 65536");
        }
        if !(1..=1 << 16).contains(&self.segment_pages) {
            return fail("segment_pages", self.segment_pages.into(), "1 to 65536");
        }
        if !(1..=1 << 16).contains(&self.rows) {
            return fail("rows", self.rows.into(), "1 to 65536");
        }
        if !(1..=WIDTH_MAX as u32).contains(&self.combined) {
            return fail("combined", self.combined.into(), "1 to 64");
        }
        if self.filter_keys.iter().chain([&self.overflow_keys]).any(|keys| !(1..=1 << 20).contains(keys)) {
            return fail("filter_keys", 0, "1 to 2^20 each");
        }
        let rate = self.false_positive_rate;
        if !(1e-6..=0.5).contains(&rate) || !(0.5..=2.0).contains(&self.growth) {
            return fail("false_positive_rate", (rate * 1e6) as u64, "1e-6 to 0.5, growing by 0.5 to 2");
        }
        Ok(())
    }

    /// The filters of a row's `table`-th table.
    fn filters(&self, table: usize) -> Filters {
        let rate = (self.false_positive_rate * self.growth.powi(table.min(1 << 20) as i32)).clamp(1e-9, 0.5);
        let bits_per_key = -rate.ln() / (std::f64::consts::LN_2 * std::f64::consts::LN_2);
        let hashes = ((-rate.log2()).round() as u32).clamp(1, HASHES_MAX);
        let mut starts = [0; FILTERS + 2];
        let keys = self.filter_keys.iter().chain([&self.overflow_keys]);
        for (at, keys) in keys.enumerate() {
            starts[at + 1] = starts[at] + (f64::from(*keys) * bits_per_key).ceil() as u32;
        }
        Filters { starts, hashes }
    }
}

/// The filters of one segment, as one string of bits.
#[derive(Clone, Copy, Debug)]
struct Filters {
    starts: [u32; FILTERS + 2],
    hashes: u32,
}

impl Filters {
    fn bits(&self) -> usize {
        self.starts[FILTERS + 1] as usize
    }

    /// The bits of a key in a filter.
    fn positions(self, hash: KeyHash, filter: usize) -> impl Iterator<Item = usize> {
        let (start, len) = (self.starts[filter], self.starts[filter + 1] - self.starts[filter]);
        (0..self.hashes).map(move |i| {
            let both = hash.salted(FILTER_SALT + (filter as u64) * u64::from(HASHES_MAX) + u64::from(i / 2));
            let bits = (both >> (32 * (i % 2))) as u32;
            (start + ((u64::from(bits) * u64::from(len)) >> 32) as u32) as usize
        })
    }
}

const FILTER_SALT: u64 = 1 << 32;
const PLACE_SALT: u64 = 1 << 33;

/// The page of a place.
fn page(hash: KeyHash, place: usize, count: u32) -> u32 {
    let bits = hash.salted(PLACE_SALT + place as u64) as u32;
    ((u64::from(bits) * u64::from(count)) >> 32) as u32
}

/// Keys that no filter had a place for, by 32 bits of their hash, and which places they have.
type OverflowMap = Vec<(u32, u16)>;

/// A segment being filled.
#[derive(Debug)]
struct Open {
    filters: Filters,
    bits: Vec<bool>,
    counts: [u32; FILTERS],
    overflow: OverflowMap,
    image: Vec<u8>,
    filled: Vec<u32>,
    records: u32,
    record_bytes: usize,
}

impl Open {
    fn new(parameters: &BloomParameters, table: usize) -> Open {
        let filters = parameters.filters(table);
        let pages = parameters.segment_pages as usize;
        Open {
            filters,
            bits: vec![false; filters.bits()],
            counts: [0; FILTERS],
            overflow: Vec::new(),
            image: vec![0; pages * parameters.page_bytes as usize],
            filled: vec![0; pages],
            records: 0,
            record_bytes: 0,
        }
    }

    fn has(&self, hash: KeyHash, filter: usize) -> bool {
        self.filters.positions(hash, filter).all(|bit| self.bits[bit])
    }

    fn set(&mut self, hash: KeyHash, filter: usize) {
        self.filters.positions(hash, filter).for_each(|bit| self.bits[bit] = true);
    }

    /// The places that the key seems to have.
    fn places(&self, hash: KeyHash) -> u32 {
        let filters = (0..FILTERS).filter(|filter| self.has(hash, *filter)).fold(0, |sum, filter| sum | 1 << filter);
        if self.has(hash, OVERFLOW) { filters | overflow_places(&self.overflow, hash) } else { filters }
    }

    /// Finds a place after those that the key has already; nothing if there is none.
    fn place(&mut self, hash: KeyHash, bytes: u32, parameters: &BloomParameters) -> Option<usize> {
        let pages = self.filled.len() as u32;
        let after = 32 - self.places(hash).leading_zeros() as usize;
        let has_room =
            |open: &Open, place: usize| open.filled[page(hash, place, pages) as usize] + bytes <= parameters.page_bytes;
        for filter in after..FILTERS {
            if self.counts[filter] < parameters.filter_keys[filter] && has_room(self, filter) {
                self.counts[filter] += 1;
                self.set(hash, filter);
                return Some(filter);
            }
        }
        let known = self.overflow.iter().position(|(key, _)| *key == hash.bits() as u32);
        if known.is_none() && self.overflow.len() == parameters.overflow_keys as usize {
            return None;
        }
        let mut places = after.max(FILTERS)..FILTERS + OVERFLOW_PLACES;
        let place = places.find(|place| has_room(self, *place))?;
        let entry = known.unwrap_or_else(|| {
            self.overflow.push((hash.bits() as u32, 0));
            self.overflow.len() - 1
        });
        self.overflow[entry].1 |= 1 << (place - FILTERS);
        self.set(hash, OVERFLOW);
        Some(place)
    }
}

/// The places that an overflow map has for a key.
fn overflow_places(map: &OverflowMap, hash: KeyHash) -> u32 {
    let entry = map.iter().find(|(key, _)| *key == hash.bits() as u32);
    entry.map_or(0, |(_, places)| u32::from(*places) << FILTERS)
}

/// A read-only version table: the filters of up to `combined` segments of a row.
#[derive(Debug)]
struct Table {
    filters: Filters,
    columns: Packed,
    overflow: Vec<OverflowMap>,
    segments: Vec<SegmentAt>,
}

impl Table {
    /// For each filter, the segments that may have the key.
    fn probe(&self, hash: KeyHash) -> [u64; FILTERS + 1] {
        std::array::from_fn(|filter| {
            let mut mask = self.columns.all();
            for column in self.filters.positions(hash, filter) {
                mask &= self.columns.read(column);
                if mask == 0 {
                    break;
                }
            }
            mask
        })
    }

    /// The places that a key seems to have in a segment.
    fn places(&self, masks: &[u64; FILTERS + 1], segment: u32, hash: KeyHash) -> u32 {
        let is_set = |filter: &usize| masks[*filter] >> segment & 1 == 1;
        let filters = (0..FILTERS).filter(is_set).fold(0, |sum, filter| sum | 1 << filter);
        if is_set(&OVERFLOW) { filters | overflow_places(&self.overflow[segment as usize], hash) } else { filters }
    }
}

/// A segment that is full and waits to be programmed.
#[derive(Debug)]
pub struct Flushed {
    row: u32,
    /// All its pages.
    pub image: Vec<u8>,
    /// Versions in it.
    pub records: u32,
    /// Their bytes.
    pub record_bytes: usize,
    bits: Vec<bool>,
    overflow: OverflowMap,
    filters: Filters,
}

/// A row: the open segment and the tables of the closed ones, oldest first.
#[derive(Debug)]
struct Row {
    open: Open,
    tables: Vec<Table>,
}

/// The paper's index.
#[derive(Debug)]
pub struct Bloom {
    parameters: BloomParameters,
    rows: Vec<Row>,
    segment_count: u64,
}

/// A page that may hold a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BloomPlace<'a> {
    /// In memory: the page of an open segment.
    Open(&'a [u8], u16),
    /// In a segment: the page and the place that the record would bear.
    Page(SegmentAt, u32, u16),
}

impl Bloom {
    /// No versions.
    pub fn new(parameters: BloomParameters) -> Result<Bloom, Error> {
        parameters.check()?;
        let rows = (0..parameters.rows).map(|_| Row { open: Open::new(&parameters, 0), tables: Vec::new() }).collect();
        Ok(Bloom { parameters, rows, segment_count: 0 })
    }

    /// The shape.
    pub fn parameters(&self) -> &BloomParameters {
        &self.parameters
    }

    /// Segments flushed.
    pub fn segment_count(&self) -> u64 {
        self.segment_count
    }

    /// Memory of filters, maps and directory in bytes, without the open segments' pages.
    pub fn index_bytes(&self) -> usize {
        let table = |table: &Table| {
            let maps: usize = table.overflow.iter().map(|map| map.len() * OVERFLOW_ENTRY_BYTES).sum();
            table.columns.memory_bytes() + maps + table.segments.len() * size_of::<SegmentAt>()
        };
        let row = |row: &Row| row.open.bits.len() / 8 + row.tables.iter().map(table).sum::<usize>();
        self.rows.iter().map(row).sum()
    }

    /// Writes a version to its page in memory. If the row's segment has no place for it, that segment is flushed first:
    /// program it and [`Bloom::install`] it before anything else.
    pub fn insert(&mut self, version: &Version, value: &[u8]) -> Result<Option<Flushed>, Error> {
        let bytes = version.stored_bytes();
        if bytes > self.parameters.page_bytes as usize {
            let max = u64::from(self.parameters.page_bytes) - (HEADER_BYTES + version.key.len()) as u64;
            return Err(Error::ValueTooLarge { bytes: value.len() as u64, max });
        }
        let hash = KeyHash::of(&version.key, self.parameters.seed);
        let index = hash.row(self.parameters.rows);
        if let Some(place) = self.rows[index as usize].open.place(hash, bytes as u32, &self.parameters) {
            self.write(index, hash, place, version, value);
            return Ok(None);
        }
        let flushed = self.flush(index);
        let open = &mut self.rows[index as usize].open;
        let place = open.place(hash, bytes as u32, &self.parameters).expect("an empty segment has a place");
        self.write(index, hash, place, version, value);
        Ok(Some(flushed))
    }

    fn write(&mut self, row: u32, hash: KeyHash, place: usize, version: &Version, value: &[u8]) {
        let open = &mut self.rows[row as usize].open;
        let page = page(hash, place, self.parameters.segment_pages) as usize;
        let at = page * self.parameters.page_bytes as usize + open.filled[page] as usize;
        let placed = Version { ordinal: place as u16, ..*version };
        let head = placed.encode(&mut open.image[at..]);
        open.image[at + head..at + head + value.len()].copy_from_slice(value);
        open.filled[page] += version.stored_bytes() as u32;
        open.records += 1;
        open.record_bytes += version.stored_bytes();
    }

    fn flush(&mut self, index: u32) -> Flushed {
        let row = &mut self.rows[index as usize];
        // The flushed segment may complete a table; the next one's filters belong to the next table then.
        let flushed: usize = row.tables.iter().map(|table| table.segments.len()).sum::<usize>() + 1;
        let next = Open::new(&self.parameters, flushed / self.parameters.combined as usize);
        let Open { filters, bits, overflow, image, records, record_bytes, .. } = std::mem::replace(&mut row.open, next);
        Flushed { row: index, image, records, record_bytes, bits, overflow, filters }
    }

    /// A flushed segment lies at `at` from now on. Answers how many bytes would be stored of its filters.
    pub fn install(&mut self, flushed: Flushed, at: SegmentAt) -> usize {
        let metadata_bytes = flushed.bits.len().div_ceil(8) + flushed.overflow.len() * OVERFLOW_ENTRY_BYTES;
        let tables = &mut self.rows[flushed.row as usize].tables;
        let is_full = |table: &Table| table.segments.len() == self.parameters.combined as usize;
        if tables.last().is_none_or(is_full) {
            let columns = Packed::default();
            tables.push(Table { filters: flushed.filters, columns, overflow: Vec::new(), segments: Vec::new() });
        }
        let table = tables.last_mut().expect("one at least");
        table.columns.push(flushed.bits.len(), flushed.bits.into_iter());
        table.overflow.push(flushed.overflow);
        table.segments.push(at);
        self.segment_count += 1;
        metadata_bytes
    }

    /// Goes through the places where versions of a key may be, newest first, until `look` has found what it wants.
    pub fn search<E>(&self, key: &Key, mut look: impl FnMut(BloomPlace<'_>) -> Result<bool, E>) -> Result<bool, E> {
        let hash = KeyHash::of(key, self.parameters.seed);
        let row = &self.rows[hash.row(self.parameters.rows) as usize];
        let pages = self.parameters.segment_pages;
        for place in bits_from_highest(row.open.places(hash)) {
            let at = page(hash, place, pages) as usize * self.parameters.page_bytes as usize;
            let page = &row.open.image[at..at + self.parameters.page_bytes as usize];
            if look(BloomPlace::Open(page, place as u16))? {
                return Ok(true);
            }
        }
        for table in row.tables.iter().rev() {
            let masks = table.probe(hash);
            let mut any = masks.iter().fold(0, |sum, mask| sum | mask);
            while any != 0 {
                let segment = 63 - any.leading_zeros();
                any &= !(1 << segment);
                for place in bits_from_highest(table.places(&masks, segment, hash)) {
                    let at = table.segments[segment as usize];
                    if look(BloomPlace::Page(at, page(hash, place, pages), place as u16))? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Runs of `count` full tables of a row, the paper's internal versions: the share of bits that all tables of a run have
    /// set, by which the paper guesses how much of it is live, and its segments.
    ///
    /// Tables have bits at the same positions only where [`BloomParameters::growth`] is 1.
    pub fn internal_versions(&self, count: usize) -> Vec<(f64, Vec<SegmentAt>)> {
        let is_full = |table: &&Table| table.segments.len() == self.parameters.combined as usize;
        let full = self.rows.iter().map(|row| row.tables.iter().filter(is_full).collect::<Vec<_>>());
        full.flat_map(|tables| tables.chunks_exact(count).map(shared_bits).collect::<Vec<_>>()).collect()
    }

    /// The version that stands in a page for a place.
    pub fn check<'p>(key: &Key, place: u16, page: &'p [u8]) -> Result<Option<(Version, &'p [u8])>, Error> {
        find(page, key, place)
    }
}

fn shared_bits(tables: &[&Table]) -> (f64, Vec<SegmentAt>) {
    let columns = tables[0].filters.bits();
    let common = |column: usize| tables.iter().fold(u64::MAX, |sum, table| sum & table.columns.read(column));
    let set: u32 = (0..columns).map(|column| common(column).count_ones()).sum();
    let share = f64::from(set) / (columns * tables[0].columns.width()) as f64;
    (share, tables.iter().flat_map(|table| table.segments.iter().copied()).collect())
}

/// The numbers of the bits that are set, the highest first.
fn bits_from_highest(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let highest = 31u32.checked_sub(bits.leading_zeros())?;
        bits &= !(1 << highest);
        Some(highest as usize)
    })
}
