//! A read-only version table: the filters of up to 64 segments of a row, searched at once.
//!
//! Lives here:       filters column by column, overflow maps one after another, probing both.
//! Lives elsewhere:  what is hashed (`bloom`), the segments' directory (`group`).
//! Implements:       paper:Muninn 4.3 (Figures 4 and 5).

use super::{BloomParameters, FILTERS_MAX, Filters, OVERFLOW_ENTRY_BYTES, OverflowMap, overflow_places};
use crate::Error;
use crate::hash::KeyHash;
use crate::packed::Packed;
use std::ops::Range;

/// The filters and the overflow map of one segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FilterTable {
    /// Which table of its row, counted from the oldest, it was made for.
    pub(crate) number: u32,
    pub(crate) filters: Filters,
    pub(crate) bits: Vec<u64>,
    pub(crate) overflow: OverflowMap,
}

impl FilterTable {
    fn bits(&self) -> impl Iterator<Item = bool> {
        (0..self.filters.bits()).map(|bit| self.bits[bit / 64] >> (bit % 64) & 1 == 1)
    }

    /// All filters, then the map's keys, then their places.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let words = self.bits.iter().flat_map(|word| word.to_le_bytes());
        let mut bytes: Vec<u8> = words.take(self.filters.bytes()).collect();
        bytes.extend(self.overflow.keys.iter().flat_map(|key| key.to_le_bytes()));
        bytes.extend(self.overflow.places.iter().flat_map(|places| places.to_le_bytes()));
        bytes
    }

    /// What [`FilterTable::encode`] made, of filters of this shape and so many keys in the map.
    pub(crate) fn decode(number: u32, filters: Filters, keys: u16, bytes: &[u8]) -> Result<FilterTable, Error> {
        let keys = usize::from(keys);
        let (bits, rest) = bytes.split_at_checked(filters.bytes()).ok_or(Error::DamagedTable("cut short"))?;
        if rest.len() != keys * OVERFLOW_ENTRY_BYTES {
            return Err(Error::DamagedTable("cut short"));
        }
        let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let (map, places) = rest.split_at(keys * 4);
        let overflow = OverflowMap {
            keys: map.chunks(4).map(|chunk| word(chunk) as u32).collect(),
            places: places.chunks(2).map(|chunk| word(chunk) as u16).collect(),
        };
        Ok(FilterTable { number, filters, bits: bits.chunks(8).map(word).collect(), overflow })
    }
}

/// The filters of a table's segments.
#[derive(Debug)]
pub(crate) struct FilterColumns {
    number: u32,
    filters: Filters,
    columns: Packed,
    /// The maps of all segments, and where that of each ends.
    overflow: OverflowMap,
    ends: Vec<u32>,
}

/// For each filter, the segments that may have the key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilterProbe([u64; FILTERS_MAX]);

impl FilterProbe {
    /// The segments that may have the key.
    pub(crate) fn mask(&self) -> u64 {
        self.0.iter().fold(0, |sum, mask| sum | mask)
    }
}

impl FilterColumns {
    /// For segments with tables like this one.
    pub(crate) fn new(table: &FilterTable) -> FilterColumns {
        let (number, filters) = (table.number, table.filters);
        FilterColumns {
            number,
            filters,
            columns: Packed::default(),
            overflow: OverflowMap::default(),
            ends: Vec::new(),
        }
    }

    /// Whether a segment with such a table may join.
    pub(crate) fn takes(&self, table: &FilterTable) -> bool {
        (self.number, self.filters) == (table.number, table.filters)
    }

    /// Which table of its row this is.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let map = self.overflow.keys.capacity() * size_of::<u32>() + self.overflow.places.capacity() * size_of::<u16>();
        self.columns.memory_bytes() + map + self.ends.capacity() * size_of::<u32>() + size_of::<FilterColumns>()
    }

    /// Adds the newest segment's.
    pub(crate) fn push(&mut self, table: &FilterTable) {
        self.columns.push(self.filters.bits(), table.bits());
        self.overflow.keys.reserve_exact(table.overflow.keys.len());
        self.overflow.keys.extend(&table.overflow.keys);
        self.overflow.places.reserve_exact(table.overflow.places.len());
        self.overflow.places.extend(&table.overflow.places);
        self.ends.reserve_exact(1);
        self.ends.push(self.overflow.keys.len() as u32);
    }

    /// The filters of some of the segments.
    pub(crate) fn slice(&self, segments: Range<usize>) -> FilterColumns {
        let (start, end) = (self.map_end(segments.start), self.map_end(segments.end));
        let (keys, places) = (self.overflow.keys[start..end].to_vec(), self.overflow.places[start..end].to_vec());
        FilterColumns {
            number: self.number,
            filters: self.filters,
            columns: self.columns.slice(self.filters.bits(), segments.clone()),
            overflow: OverflowMap { keys, places },
            ends: self.ends[segments].iter().map(|end| end - start as u32).collect(),
        }
    }

    /// Adds those of newer segments, if they are of the same table of the row; returns whether they are.
    pub(crate) fn append(&mut self, newer: &FilterColumns) -> bool {
        let is_alike = (self.number, self.filters) == (newer.number, newer.filters);
        if is_alike {
            let start = self.overflow.keys.len() as u32;
            self.columns.append(self.filters.bits(), &newer.columns);
            self.overflow.keys.extend(&newer.overflow.keys);
            self.overflow.places.extend(&newer.overflow.places);
            self.ends.extend(newer.ends.iter().map(|end| end + start));
        }
        is_alike
    }

    /// Where the maps of the first segments end.
    fn map_end(&self, segments: usize) -> usize {
        segments.checked_sub(1).map_or(0, |last| self.ends[last] as usize)
    }

    /// Asks all filters of all segments.
    pub(crate) fn probe(&self, hash: KeyHash) -> FilterProbe {
        let of_filter = |filter: usize| {
            let mut mask = self.columns.all();
            for column in self.filters.positions(hash, filter) {
                mask &= self.columns.read(column);
                if mask == 0 {
                    break;
                }
            }
            mask
        };
        let filters = self.filters.hashes() + 1;
        FilterProbe(std::array::from_fn(|filter| if filter < filters { of_filter(filter) } else { 0 }))
    }

    /// The places that a key seems to have in a segment.
    pub(crate) fn places(&self, probe: &FilterProbe, segment: u32, hash: KeyHash) -> u32 {
        let hashes = self.filters.hashes();
        let is_set = |filter: &usize| probe.0[*filter] >> segment & 1 == 1;
        let places = (0..hashes).filter(is_set).fold(0, |sum, filter| sum | 1 << filter);
        if !is_set(&hashes) {
            return places;
        }
        let map = self.map_end(segment as usize)..self.ends[segment as usize] as usize;
        places | overflow_places(&self.overflow.keys[map.clone()], &self.overflow.places[map], hash) << hashes
    }

    /// The share of bits that all of some tables have set, by which the paper guesses how much of them is live.
    pub(crate) fn bits_in_common(tables: &[&FilterColumns]) -> f64 {
        let columns = tables[0].filters.bits();
        let common = |column: usize| tables.iter().fold(u64::MAX, |sum, table| sum & table.columns.read(column));
        let set: u32 = (0..columns).map(|column| common(column).count_ones()).sum();
        f64::from(set) / (columns * tables[0].columns.width()) as f64
    }

    /// The shape of the filters as a table's header has it.
    pub(crate) fn filters_of(bloom: &BloomParameters, millibits: u32, positions: u8) -> Option<Filters> {
        // No rate that is allowed has more, and lengths are counted in 32 bits.
        const MILLIBITS_MAX: u32 = 64_000;
        let is_possible =
            (1..=MILLIBITS_MAX).contains(&millibits) && (1..=super::POSITIONS_MAX as u8).contains(&positions);
        is_possible.then(|| Filters::new(bloom, millibits, positions))
    }
}
