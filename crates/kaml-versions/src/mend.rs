//! A segment's table made again from its records, where the stored one is damaged.
//!
//! Lives here:       finding the records and how many pages they were hashed to, solving the table.
//! Lives elsewhere:  how tables are made when sealing (`seal`), when one is needed (`kaml-device`).
//! Implements:       docs/versioned.md "Formats".
//!
//! The contents of the table's header are not known then. The segment's identity, which the directory has, shows that no record is missing:
//! without an identity this is for salvaging only.

use crate::Error;
use crate::format::{self, SegmentTable};
use crate::hash::KeyHash;
use crate::parameters::{Index, Parameters};
use crate::record::{Kind, Version, records};
use crate::retrieval::{System, positions_for};
use crate::retrieval_columns::{RetrievalTable, ValueShape};
use crate::seal::Table;

/// Lengths of the table that are tried: each has a solution nearly always.
const LENGTHS_MAX: u32 = 16;

impl SegmentTable {
    /// The table of a segment, from all its bytes. It takes so many pages, as the one that was lost. Its identity is this one only if no
    /// record is missing. Of the paper's index none can be made: it is not known which table of the row's the filters belong to.
    pub fn of_records(
        row: u32,
        segment: &[u8],
        table_pages: u32,
        identity: u32,
        parameters: &Parameters,
    ) -> Result<Self, Error> {
        let Index::Columns(shape) = parameters.index else { return Err(Error::DamagedTable("filters")) };
        let lost = Error::DamagedTable("its records do not contain it");
        let pages =
            parameters.segment_pages.checked_sub(table_pages).filter(|_| table_pages > 0).ok_or(lost.clone())?;
        let found = Found::in_pages(row, &segment[..(pages * parameters.page_bytes) as usize], parameters);
        let counts = found.hashed_pages(pages, shape);
        let sequences = found.records.iter().map(|(version, ..)| version.sequence);
        let (first, last) = (sequences.clone().min().ok_or(lost.clone())?, sequences.max().ok_or(lost.clone())?);
        let (sequences, records) = (first..last + 1, found.records.len());
        let is_it = |count: &&u32| format::identity(&sequences, records as u32, **count) == identity;
        let hashed_pages = *counts.iter().find(is_it).or(counts.first()).ok_or(lost.clone())?;
        let min = format::positions_max(table_pages - 1, shape, parameters.page_bytes) + 1;
        let max = format::positions_max(table_pages, shape, parameters.page_bytes);
        let first = positions_for(records).max(min);
        let table =
            (first..=max).take(LENGTHS_MAX as usize).find_map(|length| found.solve(length, hashed_pages, shape));
        Ok(SegmentTable {
            sequences,
            row,
            hashed_pages,
            records: u16::try_from(records).map_err(|_| lost.clone())?,
            table: Table::Retrieval(table.ok_or(lost)?),
        })
    }
}

/// The records of a segment and their pages.
struct Found {
    records: Vec<(Version, KeyHash, u32)>,
    page_bytes: u32,
}

impl Found {
    /// After the hashed pages are long values, which are no records of this row.
    fn in_pages(row: u32, pages: &[u8], parameters: &Parameters) -> Found {
        let page_bytes = parameters.page_bytes;
        let of_page = |(page, bytes)| {
            let whole = records(bytes).map_while(Result::ok);
            whole.map(move |(version, _)| (version, KeyHash::of(&version.key, parameters.seed), page))
        };
        let found = (0..).zip(pages.chunks_exact(page_bytes as usize)).flat_map(of_page);
        Found { records: found.filter(|(_, hash, _)| hash.row(parameters.rows) == row).collect(), page_bytes }
    }

    /// To how many pages, of at most this many, the records may have been hashed: each is where that puts it. The first long value
    /// begins after them.
    fn hashed_pages(&self, pages: u32, shape: ValueShape) -> Vec<u32> {
        let extents = self.records.iter().filter_map(|(version, ..)| match version.kind {
            Kind::Extent(at) => Some(at / self.page_bytes),
            Kind::Value | Kind::Tombstone | Kind::Large(_) => None,
        });
        let is_it = |count: &u32| self.records.iter().all(|record| self.choice(record, *count, shape).is_some());
        match extents.min() {
            Some(count) => Some(count).filter(|count| (1..=pages).contains(count)).filter(is_it).into_iter().collect(),
            None => (1..=pages).rev().filter(is_it).collect(),
        }
    }

    /// Which of a version's candidates its page is.
    fn choice(
        &self,
        (version, hash, page): &(Version, KeyHash, u32),
        hashed_pages: u32,
        shape: ValueShape,
    ) -> Option<u8> {
        let hash = hash.version(version.ordinal);
        (0..shape.choices as u8).find(|choice| hash.page((*choice).into(), hashed_pages) == *page)
    }

    fn solve(&self, length: u32, hashed_pages: u32, shape: ValueShape) -> Option<RetrievalTable> {
        let mut system = System::new(length);
        for record in &self.records {
            let (version, hash, _) = record;
            let hash = hash.version(version.ordinal);
            let choice = self.choice(record, hashed_pages, shape)?;
            if !system.add(&hash.positions(length), shape.value(&hash, choice)) {
                return None;
            }
        }
        Some(RetrievalTable { shape, values: system.solve(shape.planes()) })
    }
}
