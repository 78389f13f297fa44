//! The paper's own index: skewed Bloom filters that state which hash function placed a key.
//!
//! Lives here:       the parameters of Table 1, what is hashed for filters and places.
//! Lives elsewhere:  placing versions as they are put (`open`), filters of closed segments (`columns`), their bytes
//!                   (`format`), the better default (`retrieval_columns`, `seal`).
//! Implements:       paper:Muninn 4.2.1 (insert), 4.3 (search), Table 1. Where the paper leaves a choice, the reading
//!                   is taken that gives its figures; docs/versioned.md "The paper's index" lists them.
//!
//! A *place* is a hash function for pages: one for each of the filters, then sixteen of the overflow map. A key's later
//! version in a segment has a later place, so the last place is the newest version's. Its number is in the record as
//! the ordinal.

mod columns;
mod open;

pub(crate) use columns::{FilterColumns, FilterProbe, FilterTable};
pub(crate) use open::Open;

use crate::Error;
use crate::format;
use crate::hash::KeyHash;
use crate::packed::WIDTH_MAX;

/// Filters with one place each, at most.
pub const BLOOM_HASHES_MAX: usize = 15;
/// With the filter of the keys that are in the overflow map.
const FILTERS_MAX: usize = BLOOM_HASHES_MAX + 1;
/// Places that an entry of the overflow map distinguishes.
const OVERFLOW_PLACES: usize = 16;
/// An entry of the overflow map: 4 bytes of hash and a bitmap.
pub(crate) const OVERFLOW_ENTRY_BYTES: usize = 6;
/// Positions of a key in a filter at most.
const POSITIONS_MAX: u32 = 32;
/// Versions of a segment at most: they are counted in 16 bits.
const RECORDS_MAX: u64 = 60_000;
/// Rates beyond which filters neither shrink nor grow from table to table, in millionths.
const RATE_PPM: (u32, u32) = (1, 500_000);

/// What a namespace with the paper's index is asked to be. Zero: as the paper chose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BloomOptions {
    /// *hashes*: filters with one place each, at most 15; 7 if zero.
    pub hashes: u32,
    /// All filters take as many keys; else each takes half of those of the one before it.
    pub is_even: bool,
    /// Keys that the filters of a segment take together: about the versions that fill it. One for each KiB if zero.
    pub segment_keys: u32,
    /// Keys that the overflow map of a segment takes; a 32nd of `segment_keys` if zero.
    pub overflow_keys: u32,
    /// `fpr_int`: false positives of each filter of the first table, in millionths; 500 if zero.
    pub false_positives_ppm: u32,
    /// `r`: each next table of a row has so many thousandths of the rate; 1010 if zero.
    pub growth_permille: u32,
    /// *combined*: segments of a table, 1 to 64; 64 if zero.
    pub combined: u32,
}

impl BloomOptions {
    /// Keys of a MiB of segment, and of its overflow map.
    const KEY_BYTES: u64 = 1024;
    const OVERFLOW_PART: u32 = 32;

    /// The parameters, for segments of this many bytes.
    pub fn parameters(&self, segment_bytes: u64) -> BloomParameters {
        let or = |asked: u32, chosen: u32| if asked == 0 { chosen } else { asked };
        let hashes = or(self.hashes, 7).min(BLOOM_HASHES_MAX as u32) as usize;
        let keys = or(self.segment_keys, (segment_bytes / BloomOptions::KEY_BYTES) as u32);
        let share = |at: usize| if self.is_even { keys / hashes as u32 } else { keys >> (at + 1) };
        BloomParameters {
            filter_keys: std::array::from_fn(|at| if at < hashes { share(at).max(1) } else { 0 }),
            overflow_keys: or(self.overflow_keys, (keys / BloomOptions::OVERFLOW_PART).max(1)),
            false_positives_ppm: or(self.false_positives_ppm, 500),
            growth_permille: or(self.growth_permille, 1010),
            combined: or(self.combined, WIDTH_MAX as u32),
        }
    }
}

/// The parameters of Table 1 that concern filters; rows and segments are the namespace's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BloomParameters {
    /// Keys that each filter takes; zero after the last filter.
    pub filter_keys: [u32; BLOOM_HASHES_MAX],
    /// Keys that the overflow map of a segment takes.
    pub overflow_keys: u32,
    /// `fpr_int`: false positives of each filter of the first table, in millionths.
    pub false_positives_ppm: u32,
    /// `r`: each next table of a row has so many thousandths of the rate.
    pub growth_permille: u32,
    /// *combined*: segments of a table, 1 to 64.
    pub combined: u32,
}

impl BloomParameters {
    /// Filters with one place each.
    pub fn hashes(&self) -> usize {
        self.filter_keys.iter().take_while(|keys| **keys > 0).count()
    }

    /// Refuses what does not work with segments of this many pages of this many bytes.
    pub(crate) fn check(&self, page_bytes: u32, segment_pages: u32) -> Result<(), Error> {
        let fail = |what, value, must| Err(Error::BadParameter { what, value, must });
        let hashes = self.hashes();
        if hashes == 0 || self.filter_keys[hashes..].iter().any(|keys| *keys > 0) {
            return fail("filter_keys", hashes as u64, "one filter at least, none after the last");
        }
        if !(1..=1 << 12).contains(&self.overflow_keys) {
            return fail("overflow_keys", self.overflow_keys.into(), "1 to 4096");
        }
        let keys: u64 = self.filter_keys.iter().map(|keys| u64::from(*keys)).sum();
        let records = keys + u64::from(self.overflow_keys) * OVERFLOW_PLACES as u64;
        if records > RECORDS_MAX {
            return fail("filter_keys", records, "at most 60000 versions of a segment");
        }
        if !(1..=WIDTH_MAX as u32).contains(&self.combined) {
            return fail("combined", self.combined.into(), "1 to 64");
        }
        if !(RATE_PPM.0..=RATE_PPM.1).contains(&self.false_positives_ppm) {
            return fail("false_positives_ppm", self.false_positives_ppm.into(), "1 to 500000");
        }
        if !(500..=2000).contains(&self.growth_permille) {
            return fail("growth_permille", self.growth_permille.into(), "500 to 2000");
        }
        if self.table_pages(page_bytes) + 2 > segment_pages {
            return fail("filter_keys", keys, "so few that filters leave two pages of a segment");
        }
        Ok(())
    }

    /// The filters of a row's `number`-th table.
    pub(crate) fn filters(&self, number: u32) -> Filters {
        let growth = f64::from(self.growth_permille) / 1e3;
        let ppm = f64::from(self.false_positives_ppm) * growth.powi(number.min(1 << 20) as i32);
        let rate = ppm.clamp(RATE_PPM.0.into(), RATE_PPM.1.into()) / 1e6;
        let bits_of_key = -rate.ln() / (std::f64::consts::LN_2 * std::f64::consts::LN_2);
        let positions = ((-rate.log2()).round() as u32).clamp(1, POSITIONS_MAX);
        Filters::new(self, (bits_of_key * 1e3).ceil() as u32, positions as u8)
    }

    /// Pages of a segment's filters and map: as many in all segments.
    pub(crate) fn table_pages(&self, page_bytes: u32) -> u32 {
        // The rate is smallest, and filters are longest, in the first table or in one that is far away.
        let longest = if self.growth_permille >= 1000 { 0 } else { u32::MAX };
        let bytes = self.filters(longest).bytes() + self.overflow_keys as usize * OVERFLOW_ENTRY_BYTES;
        format::pages_of(bytes, page_bytes)
    }

    /// Memory of a segment that is being filled, but for its versions.
    pub(crate) fn open_bytes(&self, segment_pages: u32) -> usize {
        let keys: u32 = self.filter_keys.iter().sum();
        let map = self.overflow_keys as usize * OVERFLOW_ENTRY_BYTES;
        self.filters(0).bytes() + map + keys as usize + segment_pages as usize * size_of::<u32>() + size_of::<Open>()
    }
}

/// The filters of one segment, as one string of bits: those of the places, then the one of the overflow map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Filters {
    starts: [u32; FILTERS_MAX + 1],
    /// With one place each.
    hashes: u8,
    /// Bits of a key in a filter.
    pub(crate) positions: u8,
    /// Length of a filter for each of its keys, in thousandths of a bit. Stored with each table, for floating point may
    /// come out differently elsewhere.
    pub(crate) millibits: u32,
}

impl Filters {
    pub(crate) fn new(parameters: &BloomParameters, millibits: u32, positions: u8) -> Filters {
        let hashes = parameters.hashes();
        let mut starts = [0; FILTERS_MAX + 1];
        let keys = parameters.filter_keys[..hashes].iter().chain([&parameters.overflow_keys]);
        for (at, keys) in keys.enumerate() {
            let bits = (u64::from(*keys) * u64::from(millibits)).div_ceil(1000);
            starts[at + 1] = starts[at] + bits as u32;
        }
        Filters { starts, hashes: hashes as u8, positions, millibits }
    }

    /// Filters with one place each; the filter of this number is that of the overflow map.
    fn hashes(&self) -> usize {
        self.hashes.into()
    }

    fn bits(&self) -> usize {
        self.starts[self.hashes() + 1] as usize
    }

    /// Bytes of all filters.
    pub(crate) fn bytes(&self) -> usize {
        self.bits().div_ceil(8)
    }

    /// The bits of a key in a filter.
    fn positions(&self, hash: KeyHash, filter: usize) -> impl Iterator<Item = usize> + use<> {
        let (start, len) = (self.starts[filter], self.starts[filter + 1] - self.starts[filter]);
        (0..u32::from(self.positions)).map(move |i| {
            let both = hash.salted(FILTER_SALT + (filter as u64) * u64::from(POSITIONS_MAX) + u64::from(i / 2));
            let bits = (both >> (32 * (i % 2))) as u32;
            (start + ((u64::from(bits) * u64::from(len)) >> 32) as u32) as usize
        })
    }
}

const FILTER_SALT: u64 = 1 << 32;
const PLACE_SALT: u64 = 1 << 33;

/// The page of a place.
pub(crate) fn page(hash: KeyHash, place: u16, count: u32) -> u32 {
    let bits = hash.salted(PLACE_SALT + u64::from(place)) as u32;
    ((u64::from(bits) * u64::from(count)) >> 32) as u32
}

/// Keys that no filter had a place for, by 32 bits of their hash, and which places they have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct OverflowMap {
    pub(crate) keys: Vec<u32>,
    pub(crate) places: Vec<u16>,
}

/// The places, counted after those of the filters, that a part of a map has for a key.
fn overflow_places(keys: &[u32], places: &[u16], hash: KeyHash) -> u32 {
    let entry = keys.iter().position(|key| *key == hash.bits() as u32);
    entry.map_or(0, |at| places[at].into())
}
