//! A sealed segment's table as bytes.
//!
//! Lives here:       what stands in the last pages of a segment, so that opening need not read the others.
//! Lives elsewhere:  which segments there are, in which order (`kaml-device`), the records' format (`record`).
//! Implements:       paper:Muninn 4.5 (read-only tables are stored when they are complete); docs/versioned.md "Formats".

use crate::Error;
use crate::group::{CHOICE_BITS, ValueShape};
use crate::parameters::Parameters;
use std::ops::Range;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Stands before the table: position after position, of each its planes, lowest bit first, padded to a byte at the end.
///
/// | offset | bytes | field              | meaning                                                        |
/// |-------:|------:|--------------------|----------------------------------------------------------------|
/// |      0 |     4 | `magic`            | `"KVT1"`                                                       |
/// |      4 |     4 | `crc32c`           | over all that follows, the table included                      |
/// |      8 |     8 | `first_sequence`   | the smallest sequence of its versions                          |
/// |     16 |     8 | `end_sequence`     | one more than the largest                                      |
/// |     24 |     4 | `row`              | its row                                                        |
/// |     28 |     4 | `positions`        | of the table                                                   |
/// |     32 |     4 | `hashed_pages`     | pages that versions are hashed to                              |
/// |     36 |     4 | `records`          | versions in it                                                 |
/// |     40 |     1 | `fingerprint_bits` | as the namespace has them                                      |
/// |     41 |     1 | `choices`          | as the namespace has them                                      |
/// |     42 |     6 | `reserved`         | zero when written, refused when not zero                       |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TableHeader {
    magic: [u8; 4],
    crc32c: U32,
    first_sequence: U64,
    end_sequence: U64,
    row: U32,
    positions: U32,
    hashed_pages: U32,
    records: U32,
    fingerprint_bits: u8,
    choices: u8,
    reserved: [u8; 6],
}

const BYTES: usize = size_of::<TableHeader>();
const MAGIC: [u8; 4] = *b"KVT1";

const _: () = {
    assert!(BYTES == 48);
    assert!(std::mem::offset_of!(TableHeader, row) == 24 && std::mem::offset_of!(TableHeader, reserved) == 42);
};

/// What a stored table says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StoredTable {
    pub(crate) sequences: Range<u64>,
    pub(crate) row: u32,
    pub(crate) hashed_pages: u32,
    pub(crate) records: u16,
    pub(crate) table: Vec<u32>,
}

/// Pages that a table of so many positions takes.
pub(crate) fn table_pages(positions: u32, parameters: &Parameters) -> u32 {
    let bits = positions as usize * parameters.value_shape().planes() as usize;
    (BYTES + bits.div_ceil(8)).div_ceil(parameters.page_bytes as usize) as u32
}

/// Positions of the longest table that fits so many pages.
pub(crate) fn positions_max(pages: u32, parameters: &Parameters) -> u32 {
    let bits = (pages as usize * parameters.page_bytes as usize - BYTES) * 8;
    (bits / parameters.value_shape().planes() as usize) as u32
}

/// The bytes that stand at the start of a segment's table pages.
pub(crate) fn encode(stored: &StoredTable, shape: ValueShape) -> Vec<u8> {
    let header = TableHeader {
        magic: MAGIC,
        crc32c: U32::ZERO,
        first_sequence: stored.sequences.start.into(),
        end_sequence: stored.sequences.end.into(),
        row: stored.row.into(),
        positions: (stored.table.len() as u32).into(),
        hashed_pages: stored.hashed_pages.into(),
        records: u32::from(stored.records).into(),
        fingerprint_bits: shape.fingerprint_bits as u8,
        choices: shape.choices as u8,
        reserved: [0; 6],
    };
    let planes = shape.planes() as usize;
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(BYTES + (stored.table.len() * planes).div_ceil(8), 0);
    for (bit, set) in stored.table.iter().flat_map(|value| (0..planes).map(move |plane| value >> plane & 1)).enumerate()
    {
        bytes[BYTES + bit / 8] |= (set as u8) << (bit % 8);
    }
    let crc = crc32c::crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The table that stands at the start of `bytes`, if it is whole and belongs to a namespace of this shape.
pub(crate) fn decode(bytes: &[u8], parameters: &Parameters) -> Result<StoredTable, Error> {
    let damaged = |what| Err(Error::DamagedTable(what));
    let Ok((header, packed)) = TableHeader::read_from_prefix(bytes) else { return damaged("cut short") };
    if header.magic != MAGIC {
        return damaged("no table here");
    }
    let shape = parameters.value_shape();
    let planes = (shape.fingerprint_bits + CHOICE_BITS) as usize;
    let positions = header.positions.get() as usize;
    let is_of_shape = u32::from(header.fingerprint_bits) == shape.fingerprint_bits
        && u32::from(header.choices) == shape.choices
        && header.row.get() < parameters.rows
        && (1..=parameters.segment_pages).contains(&header.hashed_pages.get());
    let Some(packed) = packed.get(..(positions * planes).div_ceil(8)).filter(|_| is_of_shape) else {
        return damaged("not of this namespace");
    };
    if crc32c::crc32c(&bytes[8..BYTES + packed.len()]) != header.crc32c.get() || header.reserved != [0; 6] {
        return damaged("checksum");
    }
    let Ok(records) = u16::try_from(header.records.get()) else { return damaged("numbers too large") };
    let sequences = header.first_sequence.get()..header.end_sequence.get();
    if sequences.start > sequences.end {
        return damaged("sequences");
    }
    let bit = |at: usize| u32::from(packed[at / 8] >> (at % 8) & 1);
    let value = |position: usize| (0..planes).fold(0, |sum, plane| sum | bit(position * planes + plane) << plane);
    Ok(StoredTable {
        sequences,
        row: header.row.get(),
        hashed_pages: header.hashed_pages.get(),
        records,
        table: (0..positions).map(value).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> Parameters {
        Parameters { rows: 9, ..Parameters::for_buffer(1 << 20, 0) }
    }

    fn stored() -> StoredTable {
        StoredTable { sequences: 11..44, row: 7, hashed_pages: 250, records: 3, table: vec![0x1234, 0xffff, 0, 0x8001] }
    }

    /// Goal:   tables written by one build are read by the next.
    /// Method: freeze the bytes of one.
    #[test]
    fn golden_table() {
        let bytes = encode(&stored(), parameters().value_shape());
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "4b565431d9dba1b40b000000000000002c000000000000000700000004000000\
                        fa000000030000000e030000000000003412ffff00000180";
        assert_eq!(hex, expected);
    }

    /// Goal:   a table comes back as it was, whatever follows it; a damaged one, or one of another namespace, is refused.
    /// Method: decode it; flip each bit; cut it everywhere; another shape.
    #[test]
    fn whole_tables_come_back_and_others_are_refused() {
        let bytes = encode(&stored(), parameters().value_shape());
        assert_eq!(decode(&bytes, &parameters()), Ok(stored()));
        assert_eq!(decode(&[bytes.as_slice(), &[0; 99]].concat(), &parameters()), Ok(stored()));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged, &parameters()).is_err(), "bit {bit}");
        }
        (0..bytes.len()).for_each(|len| assert!(decode(&bytes[..len], &parameters()).is_err(), "{len} bytes"));
        assert!(decode(&bytes, &Parameters { rows: 7, ..parameters() }).is_err());
        assert!(decode(&bytes, &Parameters { fingerprint_bits: 13, ..parameters() }).is_err());
    }

    /// Goal:   what is said to fit a number of pages does, and no more.
    /// Method: the longest tables of one to forty pages, and one position more.
    #[test]
    fn tables_fit_their_pages() {
        for pages in 1..40 {
            let positions = positions_max(pages, &parameters());
            assert_eq!(table_pages(positions, &parameters()), pages);
            assert_eq!(table_pages(positions + 1, &parameters()), pages + 1);
        }
    }
}
