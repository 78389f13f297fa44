//! A segment being filled: each version has its place as soon as it is put.
//!
//! Lives here:       finding places, the filters and the map that show them; closing the segment.
//! Lives elsewhere:  the versions themselves, which are kept in the page buffer until then (`buffer`).
//! Implements:       paper:Muninn 4.2.1 (active version table, overflow map).
//!
//! The paper writes a version into its page in memory at once. Here the pages are made when the segment is closed, from the
//! versions and their places, so the buffer is the same for both indexes. Searches find what is in the buffer by its
//! table, not by these filters.
//!
//! Values longer than a page follow the hashed pages. How many pages are hashed must be known when a version is
//! placed: when a long value comes for which too few are set aside, all versions are placed again in fewer pages; if they
//! do not fit, the segment is full.

use super::{BloomParameters, FilterTable, Filters, OVERFLOW_PLACES, OverflowMap, overflow_places, page};
use crate::buffer::{BufferRow, Buffered};
use crate::hash::KeyHash;
use crate::parameters::Parameters;
use crate::record::{Kind, Version};
use crate::seal::{Placed, Sealed, Table, build};

/// Beyond what a long value needs, pages are set aside for later ones: so many parts of a segment.
const SET_ASIDE: u32 = 16;

/// The segment that a row's next versions go to.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    number: u32,
    filters: Filters,
    bits: Vec<u64>,
    /// Keys in each filter.
    counts: Vec<u32>,
    overflow: OverflowMap,
    /// Bytes of each hashed page that are taken.
    filled: Vec<u32>,
    /// Bytes set aside for long values, and taken of these.
    extent_room: usize,
    extent_bytes: usize,
    /// The place of each of the row's versions, oldest first, as far as they have one.
    places: Vec<u8>,
}

impl Open {
    /// An empty segment, of the row's `number`-th table.
    pub(crate) fn new(parameters: &Parameters, bloom: &BloomParameters, number: u32) -> Open {
        Open::with_extents(parameters, bloom, number, 0)
    }

    /// With so many pages for long values.
    fn with_extents(parameters: &Parameters, bloom: &BloomParameters, number: u32, extent_pages: u32) -> Open {
        let filters = bloom.filters(number);
        let hashed = parameters.segment_pages - bloom.table_pages(parameters.page_bytes) - extent_pages;
        Open {
            number,
            filters,
            bits: vec![0; filters.bits().div_ceil(64)],
            counts: vec![0; filters.hashes()],
            overflow: OverflowMap::default(),
            filled: vec![0; hashed as usize],
            extent_room: extent_pages as usize * parameters.page_bytes as usize,
            extent_bytes: 0,
            places: Vec::new(),
        }
    }

    /// Whether a version of the row found no place.
    pub(crate) fn is_full(&self, row: &BufferRow) -> bool {
        self.places.len() < row.entries().len()
    }

    /// Finds places for the row's versions that have none, oldest first, until one finds none.
    pub(crate) fn fill(&mut self, row: &BufferRow, parameters: &Parameters, bloom: &BloomParameters) {
        while let Some(entry) = row.entries().get(self.places.len()) {
            if self.take(entry, parameters, bloom) {
                continue;
            }
            let long = if is_long(entry, parameters) { entry.read().0.value_len as usize } else { 0 };
            if long == 0 || !self.set_aside(row, long, parameters, bloom) {
                return;
            }
        }
    }

    /// Places the row's next version; false if there is no place.
    fn take(&mut self, entry: &Buffered, parameters: &Parameters, bloom: &BloomParameters) -> bool {
        let version = version_of(entry, parameters);
        let long = if matches!(version.kind, Kind::Extent(_)) { version.value_len as usize } else { 0 };
        if self.extent_bytes + long > self.extent_room && long > 0 {
            return false;
        }
        let Some(place) = self.place(entry.hash, version.stored_bytes() as u32, parameters.page_bytes, bloom) else {
            return false;
        };
        let pages = self.filled.len() as u32;
        self.filled[page(entry.hash, place, pages) as usize] += version.stored_bytes() as u32;
        self.extent_bytes += long;
        self.places.push(place as u8);
        true
    }

    /// Places all versions again with room for this many more bytes of long values, and the next one; false, and nothing
    /// changes, if they do not fit.
    fn set_aside(&mut self, row: &BufferRow, bytes: usize, parameters: &Parameters, bloom: &BloomParameters) -> bool {
        let needed = (self.extent_bytes + bytes).div_ceil(parameters.page_bytes as usize) as u32;
        let max = parameters.segment_pages - bloom.table_pages(parameters.page_bytes) - 1;
        [needed + parameters.segment_pages / SET_ASIDE, needed].into_iter().any(|pages| {
            let mut again = Open::with_extents(parameters, bloom, self.number, pages.min(max));
            let mut versions = row.entries()[..=self.places.len()].iter();
            let fits = needed <= max && versions.all(|entry| again.take(entry, parameters, bloom));
            if fits {
                *self = again;
            }
            fits
        })
    }

    /// A place after those that the key has already; nothing if there is none.
    fn place(&mut self, hash: KeyHash, bytes: u32, page_bytes: u32, bloom: &BloomParameters) -> Option<u16> {
        let pages = self.filled.len() as u32;
        let hashes = self.filters.hashes();
        let after = 32 - self.places(hash).leading_zeros() as usize;
        let has_room =
            |open: &Open, place: usize| open.filled[page(hash, place as u16, pages) as usize] + bytes <= page_bytes;
        for filter in after..hashes {
            if self.counts[filter] < bloom.filter_keys[filter] && has_room(self, filter) {
                self.counts[filter] += 1;
                self.set(hash, filter);
                return Some(filter as u16);
            }
        }
        let known = self.overflow.keys.iter().position(|key| *key == hash.bits() as u32);
        if known.is_none() && self.overflow.keys.len() == bloom.overflow_keys as usize {
            return None;
        }
        let mut places = after.max(hashes)..hashes + OVERFLOW_PLACES;
        let place = places.find(|place| has_room(self, *place))?;
        let entry = known.unwrap_or_else(|| {
            self.overflow.keys.push(hash.bits() as u32);
            self.overflow.places.push(0);
            self.overflow.keys.len() - 1
        });
        self.overflow.places[entry] |= 1 << (place - hashes);
        self.set(hash, hashes);
        Some(place as u16)
    }

    /// The places that the key seems to have.
    fn places(&self, hash: KeyHash) -> u32 {
        let hashes = self.filters.hashes();
        let filters = (0..hashes).filter(|filter| self.has(hash, *filter)).fold(0, |sum, filter| sum | 1 << filter);
        match self.has(hash, hashes) {
            true => filters | overflow_places(&self.overflow.keys, &self.overflow.places, hash) << hashes,
            false => filters,
        }
    }

    fn has(&self, hash: KeyHash, filter: usize) -> bool {
        self.filters.positions(hash, filter).all(|bit| self.bits[bit / 64] >> (bit % 64) & 1 == 1)
    }

    fn set(&mut self, hash: KeyHash, filter: usize) {
        self.filters.positions(hash, filter).for_each(|bit| self.bits[bit / 64] |= 1 << (bit % 64));
    }

    /// The segment with all that has a place in it; nothing if the row is empty.
    pub(crate) fn seal(&self, index: u32, row: &BufferRow, parameters: &Parameters) -> Option<Sealed> {
        let hashed = self.filled.len() as u32;
        let placed = row.entries().iter().zip(&self.places).enumerate().map(|(at, (entry, place))| {
            let version = Version { ordinal: u16::from(*place), ..version_of(entry, parameters) };
            Placed { entry: at, version, page: page(entry.hash, u16::from(*place), hashed) }
        });
        let table = FilterTable {
            number: self.number,
            filters: self.filters,
            bits: self.bits.clone(),
            overflow: self.overflow.clone(),
        };
        (!self.places.is_empty())
            .then(|| build(index, row, parameters, hashed, placed.collect(), Table::Filters(table)))
    }
}

/// The version as it will are in a page.
fn version_of(entry: &Buffered, parameters: &Parameters) -> Version {
    let mut version = entry.read().0;
    if is_long(entry, parameters) {
        version.kind = Kind::Extent(0);
    }
    version
}

fn is_long(entry: &Buffered, parameters: &Parameters) -> bool {
    entry.len() > parameters.page_bytes as usize
}
