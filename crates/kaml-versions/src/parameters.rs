//! The numbers that shape a namespace.
//!
//! Lives here:       what can be chosen when a namespace is created, and what is allowed.
//! Lives elsewhere:  those that only the paper's filters have (`bloom`).
//! Implements:       paper:Muninn Table 1.

use crate::Error;
use crate::bloom::{BloomOptions, BloomParameters};
use crate::hash::{CHOICES_MAX, KeyHash};
use crate::record::HEADER_BYTES;
use crate::retrieval_columns::{PLANES_MAX, ValueShape};
use kaml_index::Key;

/// The index that finds in which segments, and where in them, a key's versions are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Index {
    /// Retrieval tables, and pages found when a segment is sealed.
    Columns(ValueShape),
    /// The paper's skewed Bloom filters, and pages found when a version is put.
    Bloom(BloomParameters),
}

/// The shape of a namespace. What is sealed can be read only with the same numbers, but for the buffer's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// Bytes of a page, the unit of a read.
    pub page_bytes: u32,
    /// Pages of a segment, its table's among them.
    pub segment_pages: u32,
    /// Rows: keys are spread over so many chains of segments.
    pub rows: u32,
    /// Memory of the page buffer, its own bookkeeping included.
    pub buffer_bytes: u64,
    /// The index that finds versions.
    pub index: Index,
    /// Chosen at random for each namespace, so nobody can choose keys that collide.
    pub seed: u64,
}

/// Rows for each segment that the buffer could hold. Rows are half full on average, because the fullest is sealed; so
/// the fullest has about a fifth more than a segment when the buffer is full, which placement can choose from. With more
/// rows chains are shorter and reads fewer; with 11 to 6, records of mixed sizes fill 95 % of a segment instead of 97 %.
const ROWS_PER_SEGMENT: (u64, u64) = (13, 8);

impl Parameters {
    /// The paper's shape (4 KiB pages, 1 MiB segments) for a buffer of this many bytes, and our own choices.
    pub fn for_buffer(buffer_bytes: u64, seed: u64) -> Parameters {
        Parameters::for_segments(buffer_bytes, 4096, 1 << 20, seed)
    }

    /// As [`Parameters::for_buffer`], with other segments.
    pub fn for_segments(buffer_bytes: u64, page_bytes: u32, segment_bytes: u64, seed: u64) -> Parameters {
        let segment_pages = (segment_bytes / u64::from(page_bytes)) as u32;
        let rows = (buffer_bytes * ROWS_PER_SEGMENT.0 / ROWS_PER_SEGMENT.1 / segment_bytes).clamp(1, 1 << 16) as u32;
        let index = Index::Columns(ValueShape::default());
        Parameters { page_bytes, segment_pages, rows, buffer_bytes, index, seed }
    }

    /// The same with the paper's index, whose rows each have a segment of the buffer.
    pub fn with_bloom(self, options: &BloomOptions) -> Parameters {
        let segment_bytes = self.segment_bytes() as u64;
        let rows = (self.buffer_bytes / segment_bytes).clamp(1, 1 << 16) as u32;
        Parameters { rows, index: Index::Bloom(options.parameters(segment_bytes)), ..self }
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> usize {
        self.page_bytes as usize * self.segment_pages as usize
    }

    /// The row of a key.
    pub(crate) fn row_of(&self, key: &Key) -> u32 {
        KeyHash::of(key, self.seed).row(self.rows)
    }

    /// The longest value: all pages but the one that states where it is and those of the table.
    pub fn value_bytes_max(&self) -> u64 {
        let table = match &self.index {
            Index::Columns(_) => 1,
            Index::Bloom(bloom) => bloom.table_pages(self.page_bytes),
        };
        u64::from(self.page_bytes) * u64::from(self.segment_pages - 1 - table)
    }

    /// Refuses what does not work.
    pub fn check(&self) -> Result<(), Error> {
        let fail = |what, value, must| Err(Error::BadParameter { what, value, must });
        if !self.page_bytes.is_power_of_two() || !(512..=1 << 16).contains(&self.page_bytes) {
            return fail("page_bytes", self.page_bytes.into(), "a power of two, 512 to 65536");
        }
        if !(4..=1 << 16).contains(&self.segment_pages) {
            return fail("segment_pages", self.segment_pages.into(), "4 to 65536");
        }
        if u64::from(self.page_bytes) * u64::from(self.segment_pages) > 1 << 28 {
            return fail("segment_pages", self.segment_pages.into(), "at most 256 MiB of pages");
        }
        if !(1..=1 << 16).contains(&self.rows) {
            return fail("rows", self.rows.into(), "1 to 65536");
        }
        if self.buffer_bytes < self.segment_bytes() as u64 {
            return fail("buffer_bytes", self.buffer_bytes, "at least one segment");
        }
        let shape = match &self.index {
            Index::Columns(shape) => shape,
            Index::Bloom(bloom) => return bloom.check(self.page_bytes, self.segment_pages),
        };
        if !(2..=CHOICES_MAX as u32).contains(&shape.choices) {
            return fail("choices", shape.choices.into(), "2 to 4");
        }
        if !(4..=PLANES_MAX - 4).contains(&shape.fingerprint_bits) {
            return fail("fingerprint_bits", shape.fingerprint_bits.into(), "4 to 28");
        }
        const { assert!(HEADER_BYTES < 512) };
        Ok(())
    }
}
