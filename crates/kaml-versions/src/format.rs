//! A sealed segment's table as bytes.
//!
//! Lives here:       what is in the last pages of a segment, so opening need not read the others.
//! Lives elsewhere:  which segments there are, in which order (`kaml-device`), the records' format (`record`).
//! Implements:       paper:Muninn 4.5 (read-only tables are stored when they are complete); docs/versioned.md "Formats".

use crate::Error;
use crate::bloom::{FilterColumns, FilterTable, OVERFLOW_ENTRY_BYTES};
#[cfg(doc)]
use crate::columns::SegmentInfo;
use crate::parameters::{Index, Parameters};
use crate::retrieval_columns::{RetrievalTable, ValueShape};
use crate::seal::Table;
use std::ops::Range;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

/// Stands before the table. A retrieval table follows position after position, of each its planes, lowest bit first, padded to a
/// byte at the end; of the paper's index all filters, padded likewise, then the keys of the overflow map, 4 bytes each, then their
/// places, 2 bytes each.
///
/// | offset | bytes | field            | meaning                                                        |
/// |-------:|------:|------------------|----------------------------------------------------------------|
/// |      0 |     4 | `magic`          | `"KVT1"`: a retrieval table; `"KVB1"`: filters                 |
/// |      4 |     4 | `crc32c`         | over all that follows, the table included                      |
/// |      8 |     8 | `first_sequence` | the smallest sequence of its versions                          |
/// |     16 |     8 | `end_sequence`   | one more than the largest                                      |
/// |     24 |     4 | `row`            | its row                                                        |
/// |     28 |     4 | `length`         | positions of the table; of filters the number of their table   |
/// |     32 |     4 | `hashed_pages`   | pages that versions are hashed to                              |
/// |     36 |     4 | `records`        | versions in it                                                 |
/// |     40 |     8 | `shape`          | [`RetrievalHead`] or [`FilterHead`]                            |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TableHeader {
    magic: [u8; 4],
    crc32c: U32,
    first_sequence: U64,
    end_sequence: U64,
    row: U32,
    length: U32,
    hashed_pages: U32,
    records: U32,
    shape: [u8; 8],
}

/// | offset | bytes | field              | meaning                                  |
/// |-------:|------:|--------------------|------------------------------------------|
/// |      0 |     1 | `fingerprint_bits` | as the namespace has them                |
/// |      1 |     1 | `choices`          | as the namespace has them                |
/// |      2 |     6 | `reserved`         | zero when written, refused when not zero |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RetrievalHead {
    fingerprint_bits: u8,
    choices: u8,
    reserved: [u8; 6],
}

/// | offset | bytes | field       | meaning                                              |
/// |-------:|------:|-------------|------------------------------------------------------|
/// |      0 |     4 | `millibits` | length of a filter for each key, in thousandths      |
/// |      4 |     2 | `keys`      | in the overflow map                                  |
/// |      6 |     1 | `positions` | bits of a key in a filter                            |
/// |      7 |     1 | `reserved`  | zero when written, refused when not zero             |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FilterHead {
    millibits: U32,
    keys: U16,
    positions: u8,
    reserved: u8,
}

const BYTES: usize = size_of::<TableHeader>();
const RETRIEVAL_MAGIC: [u8; 4] = *b"KVT1";
const FILTERS_MAGIC: [u8; 4] = *b"KVB1";

const _: () = {
    assert!(BYTES == 48);
    assert!(size_of::<RetrievalHead>() == 8 && size_of::<FilterHead>() == 8);
    assert!(std::mem::offset_of!(TableHeader, row) == 24 && std::mem::offset_of!(TableHeader, shape) == 40);
};

/// What a segment's stored table contains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentTable {
    pub(crate) sequences: Range<u64>,
    pub(crate) row: u32,
    pub(crate) hashed_pages: u32,
    pub(crate) records: u16,
    pub(crate) table: Table,
}

impl SegmentTable {
    /// The table that is at the start of `bytes`, if it is whole and of this row.
    pub fn decode(bytes: &[u8], row: u32, parameters: &Parameters) -> Result<SegmentTable, Error> {
        let table = decode(bytes, parameters)?;
        if table.row != row {
            return Err(Error::DamagedTable("of another row"));
        }
        Ok(table)
    }

    /// All its versions' sequences are in this range; no other segment has the first one.
    pub fn sequences(&self) -> Range<u64> {
        self.sequences.clone()
    }

    /// That of its segment ([`SegmentInfo::identity`]).
    pub fn identity(&self) -> u32 {
        identity(&self.sequences, self.records.into(), self.hashed_pages)
    }
}

/// A checksum of what is known of a segment in memory, not 0. Where it lies is not part of it, nor how many of its versions are live.
pub(crate) fn identity(sequences: &Range<u64>, records: u32, hashed_pages: u32) -> u32 {
    // Memory has no more of the span.
    let span = (sequences.end - sequences.start).min(u32::MAX.into()) as u32;
    let words = [records, hashed_pages, span].map(u32::to_le_bytes);
    let bytes = [sequences.start.to_le_bytes().as_slice(), words.as_flattened()].concat();
    kaml_crc::crc32c(&bytes).max(1)
}

/// Pages that so many bytes after a header take.
pub(crate) fn pages_of(bytes: usize, page_bytes: u32) -> u32 {
    (BYTES + bytes).div_ceil(page_bytes as usize) as u32
}

/// Pages that a retrieval table of this many positions takes.
pub(crate) fn table_pages(positions: u32, shape: ValueShape, page_bytes: u32) -> u32 {
    pages_of((positions as usize * shape.planes() as usize).div_ceil(8), page_bytes)
}

/// Pages that are kept for a table, the last ones of its segment.
pub(crate) fn pages_of_table(table: &Table, parameters: &Parameters) -> u32 {
    match (table, &parameters.index) {
        (Table::Retrieval(table), _) => table_pages(table.values.len() as u32, table.shape, parameters.page_bytes),
        (Table::Filters(_), Index::Bloom(bloom)) => bloom.table_pages(parameters.page_bytes),
        (Table::Filters(_), Index::Columns(_)) => unreachable!("tables are of the namespace's index"),
    }
}

/// Positions of the longest table that fits so many pages.
pub(crate) fn positions_max(pages: u32, shape: ValueShape, page_bytes: u32) -> u32 {
    let bits = (pages as usize * page_bytes as usize).saturating_sub(BYTES) * 8;
    (bits / shape.planes() as usize) as u32
}

/// The bytes that are at the start of a segment's table pages.
pub(crate) fn encode(stored: &SegmentTable) -> Vec<u8> {
    let (magic, length, shape, body) = match &stored.table {
        Table::Retrieval(table) => {
            let (fingerprint_bits, choices) = (table.shape.fingerprint_bits as u8, table.shape.choices as u8);
            let head = RetrievalHead { fingerprint_bits, choices, reserved: [0; 6] };
            (RETRIEVAL_MAGIC, table.values.len() as u32, transmute!(head), pack(table))
        }
        Table::Filters(table) => {
            let keys = (table.overflow.keys.len() as u16).into();
            let (millibits, positions) = (table.filters.millibits.into(), table.filters.positions);
            let head = FilterHead { millibits, keys, positions, reserved: 0 };
            (FILTERS_MAGIC, table.number, transmute!(head), table.encode())
        }
    };
    let header = TableHeader {
        magic,
        crc32c: U32::ZERO,
        first_sequence: stored.sequences.start.into(),
        end_sequence: stored.sequences.end.into(),
        row: stored.row.into(),
        length: length.into(),
        hashed_pages: stored.hashed_pages.into(),
        records: u32::from(stored.records).into(),
        shape,
    };
    let mut bytes = [header.as_bytes(), &body].concat();
    let crc = kaml_crc::crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn pack(table: &RetrievalTable) -> Vec<u8> {
    let planes = table.shape.planes() as usize;
    let mut bytes = vec![0; (table.values.len() * planes).div_ceil(8)];
    let bits = table.values.iter().flat_map(|value| (0..planes).map(move |plane| value >> plane & 1));
    for (bit, set) in bits.enumerate() {
        bytes[bit / 8] |= (set as u8) << (bit % 8);
    }
    bytes
}

/// The table that is at the start of `bytes`, if it is whole and belongs to a namespace of this shape.
pub(crate) fn decode(bytes: &[u8], parameters: &Parameters) -> Result<SegmentTable, Error> {
    let damaged = Error::DamagedTable;
    let Ok((header, rest)) = TableHeader::read_from_prefix(bytes) else { return Err(damaged("cut short")) };
    let fits =
        header.row.get() < parameters.rows && (1..=parameters.segment_pages).contains(&header.hashed_pages.get());
    let body_bytes = body_bytes(&header, parameters)?.filter(|_| fits);
    let Some(body) = body_bytes.and_then(|len| rest.get(..len)) else { return Err(damaged("not of this namespace")) };
    if kaml_crc::crc32c(&bytes[8..BYTES + body.len()]) != header.crc32c.get() {
        return Err(damaged("checksum"));
    }
    let Ok(records) = u16::try_from(header.records.get()) else { return Err(damaged("numbers too large")) };
    let sequences = header.first_sequence.get()..header.end_sequence.get();
    if sequences.start > sequences.end {
        return Err(damaged("sequences"));
    }
    let table = match &parameters.index {
        Index::Columns(shape) => Table::Retrieval(unpack(*shape, header.length.get(), body)),
        Index::Bloom(bloom) => {
            let head: FilterHead = transmute!(header.shape);
            let filters = FilterColumns::filters_of(bloom, head.millibits.get(), head.positions);
            let filters = filters.ok_or(damaged("filters"))?;
            Table::Filters(FilterTable::decode(header.length.get(), filters, head.keys.get(), body)?)
        }
    };
    Ok(SegmentTable { sequences, row: header.row.get(), hashed_pages: header.hashed_pages.get(), records, table })
}

/// Bytes of the table after a header; nothing if it is not of the namespace's index.
fn body_bytes(header: &TableHeader, parameters: &Parameters) -> Result<Option<usize>, Error> {
    match (&parameters.index, header.magic) {
        (Index::Columns(shape), RETRIEVAL_MAGIC) => {
            let head: RetrievalHead = transmute!(header.shape);
            let is_it = (head.fingerprint_bits.into(), head.choices.into()) == (shape.fingerprint_bits, shape.choices);
            let bits = header.length.get() as usize * shape.planes() as usize;
            Ok((is_it && head.reserved == [0; 6]).then(|| bits.div_ceil(8)))
        }
        (Index::Bloom(bloom), FILTERS_MAGIC) => {
            let head: FilterHead = transmute!(header.shape);
            let filters = FilterColumns::filters_of(bloom, head.millibits.get(), head.positions);
            let map = usize::from(head.keys.get()) * OVERFLOW_ENTRY_BYTES;
            let is_it = head.reserved == 0 && u32::from(head.keys.get()) <= bloom.overflow_keys;
            Ok(filters.filter(|_| is_it).map(|filters| filters.bytes() + map))
        }
        (_, RETRIEVAL_MAGIC | FILTERS_MAGIC) => Ok(None),
        _ => Err(Error::DamagedTable("no table here")),
    }
}

fn unpack(shape: ValueShape, positions: u32, packed: &[u8]) -> RetrievalTable {
    let planes = shape.planes() as usize;
    let bit = |at: usize| u32::from(packed[at / 8] >> (at % 8) & 1);
    let value = |position: usize| (0..planes).fold(0, |sum, plane| sum | bit(position * planes + plane) << plane);
    RetrievalTable { shape, values: (0..positions as usize).map(value).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bloom::{BloomOptions, OverflowMap};

    fn parameters() -> Parameters {
        Parameters { rows: 9, ..Parameters::for_buffer(1 << 20, 0) }
    }

    const SHAPE: ValueShape = ValueShape { fingerprint_bits: 14, choices: 3 };

    fn bloom() -> Parameters {
        let options = BloomOptions { hashes: 2, segment_keys: 8, ..BloomOptions::default() };
        Parameters { rows: 9, ..Parameters::for_buffer(1 << 20, 0).with_bloom(&options) }
    }

    fn stored() -> SegmentTable {
        let table = RetrievalTable { shape: SHAPE, values: vec![0x1234, 0xffff, 0, 0x8001] };
        SegmentTable { sequences: 11..44, row: 7, hashed_pages: 250, records: 3, table: Table::Retrieval(table) }
    }

    fn stored_filters() -> SegmentTable {
        let Index::Bloom(bloom) = bloom().index else { unreachable!("made so") };
        let filters = bloom.filters(3);
        let overflow = OverflowMap { keys: vec![0x0102_0304], places: vec![0x0506] };
        let table = FilterTable { number: 3, filters, bits: vec![0xfedc_ba98, 0x1_0000], overflow };
        SegmentTable { table: Table::Filters(table), ..stored() }
    }

    /// Goal:   tables written by one build are read by the next.
    /// Method: freeze the bytes of one of each index.
    #[test]
    fn golden_tables() {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let expected = "4b565431d9dba1b40b000000000000002c000000000000000700000004000000\
                        fa000000030000000e030000000000003412ffff00000180";
        assert_eq!(hex(encode(&stored())), expected);
        let expected = "4b564231c523cd540b000000000000002c000000000000000700000003000000\
                        fa000000030000008f3d000001000b00\
                        98badcfe00000000000001000000040302010605";
        assert_eq!(hex(encode(&stored_filters())), expected);
    }

    /// Goal:   a table comes back as it was, whatever follows it; a damaged one, or one of another namespace, is refused.
    /// Method: decode it; flip each bit; cut it everywhere; other shapes, the other index.
    #[test]
    fn whole_tables_come_back_and_others_are_refused() {
        let all = [(stored(), parameters(), bloom()), (stored_filters(), bloom(), parameters())];
        for (stored, parameters, other) in all {
            let bytes = encode(&stored);
            assert_eq!(decode(&bytes, &parameters), Ok(stored.clone()));
            assert_eq!(decode(&[bytes.as_slice(), &[0; 99]].concat(), &parameters), Ok(stored));
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&damaged, &parameters).is_err(), "bit {bit}");
            }
            (0..bytes.len()).for_each(|len| assert!(decode(&bytes[..len], &parameters).is_err(), "{len} bytes"));
            assert!(decode(&bytes, &Parameters { rows: 7, ..parameters }).is_err());
            assert!(decode(&bytes, &other).is_err());
        }
        let narrow = Index::Columns(ValueShape { fingerprint_bits: 13, ..SHAPE });
        assert!(decode(&encode(&stored()), &Parameters { index: narrow, ..parameters() }).is_err());
    }

    /// Goal:   what is reported to fit a number of pages does, and no more.
    /// Method: the longest tables of one to forty pages, and one position more.
    #[test]
    fn tables_fit_their_pages() {
        for pages in 1..40 {
            let positions = positions_max(pages, SHAPE, 4096);
            assert_eq!(table_pages(positions, SHAPE, 4096), pages);
            assert_eq!(table_pages(positions + 1, SHAPE, 4096), pages + 1);
        }
    }
}
