//! A sealed segment's table as bytes.
//!
//! Lives here:       what is stored of a segment beside its image, so that opening need not read the image.
//! Lives elsewhere:  where the bytes are kept (`kaml-device`), the image's own format (`record`).
//! Implements:       paper:Muninn 4.5 (read-only tables are stored when they are complete); docs/versioned.md "Formats".

use crate::Error;
use crate::group::{CHOICE_BITS, SegmentAt, ValueShape};
use crate::parameters::Parameters;
use crate::seal::Sealed;
use std::ops::Range;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Stands before the table: position after position, of each its planes, lowest bit first, padded to a byte at the end.
///
/// | offset | bytes | field              | meaning                                                        |
/// |-------:|------:|--------------------|----------------------------------------------------------------|
/// |      0 |     4 | `magic`            | `"KVT1"`                                                       |
/// |      4 |     4 | `crc32c`           | over all that follows, the table included                      |
/// |      8 |     8 | `at`               | the segment's address                                          |
/// |     16 |     8 | `first_sequence`   | the smallest sequence of its versions                          |
/// |     24 |     8 | `end_sequence`     | one more than the largest                                      |
/// |     32 |     4 | `row`              | its row                                                        |
/// |     36 |     4 | `number`           | how many segments of the row are older                         |
/// |     40 |     4 | `positions`        | of the table                                                   |
/// |     44 |     4 | `hashed_pages`     | pages that versions are hashed to                              |
/// |     48 |     4 | `records`          | versions in it                                                 |
/// |     52 |     4 | `keys`             | different keys in it                                           |
/// |     56 |     1 | `fingerprint_bits` | as the namespace has them                                      |
/// |     57 |     1 | `choices`          | as the namespace has them                                      |
/// |     58 |     6 | `reserved`         | zero when written, refused when not zero                       |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TableHeader {
    magic: [u8; 4],
    crc32c: U32,
    at: U64,
    first_sequence: U64,
    end_sequence: U64,
    row: U32,
    number: U32,
    positions: U32,
    hashed_pages: U32,
    records: U32,
    keys: U32,
    fingerprint_bits: u8,
    choices: u8,
    reserved: [u8; 6],
}

const BYTES: usize = size_of::<TableHeader>();
const MAGIC: [u8; 4] = *b"KVT1";

const _: () = {
    assert!(BYTES == 64);
    assert!(std::mem::offset_of!(TableHeader, row) == 32 && std::mem::offset_of!(TableHeader, reserved) == 58);
};

/// What a stored table says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StoredTable {
    pub(crate) at: SegmentAt,
    pub(crate) sequences: Range<u64>,
    pub(crate) row: u32,
    pub(crate) number: u32,
    pub(crate) hashed_pages: u32,
    pub(crate) records: u16,
    pub(crate) keys: u16,
    pub(crate) table: Vec<u32>,
}

/// The bytes of a segment that lies at `at` and has `number` older ones in its row.
pub(crate) fn encode(sealed: &Sealed, at: SegmentAt, number: u32, shape: ValueShape) -> Vec<u8> {
    let header = TableHeader {
        magic: MAGIC,
        crc32c: U32::ZERO,
        at: at.get().into(),
        first_sequence: sealed.sequences.start.into(),
        end_sequence: sealed.sequences.end.into(),
        row: sealed.row.into(),
        number: number.into(),
        positions: (sealed.table.len() as u32).into(),
        hashed_pages: sealed.hashed_pages.into(),
        records: sealed.records.into(),
        keys: (sealed.keys.len() as u32).into(),
        fingerprint_bits: shape.fingerprint_bits as u8,
        choices: shape.choices as u8,
        reserved: [0; 6],
    };
    let planes = shape.planes() as usize;
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(BYTES + (sealed.table.len() * planes).div_ceil(8), 0);
    for (bit, set) in sealed.table.iter().flat_map(|value| (0..planes).map(move |plane| value >> plane & 1)).enumerate()
    {
        bytes[BYTES + bit / 8] |= (set as u8) << (bit % 8);
    }
    let crc = crc32c::crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The table that stands in `bytes`, if it is whole and belongs to a namespace of this shape.
pub(crate) fn decode(bytes: &[u8], parameters: &Parameters) -> Result<StoredTable, Error> {
    let damaged = |what| Err(Error::DamagedTable(what));
    let Ok((header, packed)) = TableHeader::read_from_prefix(bytes) else { return damaged("cut short") };
    if header.magic != MAGIC {
        return damaged("no table here");
    }
    if crc32c::crc32c(&bytes[8..]) != header.crc32c.get() || header.reserved != [0; 6] {
        return damaged("checksum");
    }
    let shape = parameters.value_shape();
    let planes = (shape.fingerprint_bits + CHOICE_BITS) as usize;
    let positions = header.positions.get() as usize;
    let is_of_shape = u32::from(header.fingerprint_bits) == shape.fingerprint_bits
        && u32::from(header.choices) == shape.choices
        && header.row.get() < parameters.rows
        && (1..=parameters.segment_pages).contains(&header.hashed_pages.get());
    if !is_of_shape || packed.len() != (positions * planes).div_ceil(8) {
        return damaged("not of this namespace");
    }
    let counts = (u16::try_from(header.records.get()), u16::try_from(header.keys.get()));
    let (Some(at), (Ok(records), Ok(keys))) = (SegmentAt::new(header.at.get()), counts) else {
        return damaged("numbers too large");
    };
    let sequences = header.first_sequence.get()..header.end_sequence.get();
    if sequences.start > sequences.end {
        return damaged("sequences");
    }
    let bit = |at: usize| u32::from(packed[at / 8] >> (at % 8) & 1);
    let value = |position: usize| (0..planes).fold(0, |sum, plane| sum | bit(position * planes + plane) << plane);
    Ok(StoredTable {
        at,
        sequences,
        row: header.row.get(),
        number: header.number.get(),
        hashed_pages: header.hashed_pages.get(),
        records,
        keys,
        table: (0..positions).map(value).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> Parameters {
        Parameters { rows: 9, ..Parameters::for_buffer(1 << 20, 0) }
    }

    fn encoded() -> Vec<u8> {
        let sealed = Sealed {
            row: 7,
            image: Vec::new(),
            records: 3,
            record_bytes: 300,
            sequences: 11..44,
            hashed_pages: 250,
            table: vec![0x1234, 0xffff, 0, 0x8001],
            keys: Vec::new(),
        };
        let at = SegmentAt::new(0x1122_3344).expect("48 bits");
        encode(&sealed, at, 5, parameters().value_shape())
    }

    /// Goal:   tables written by one build are read by the next.
    /// Method: freeze the bytes of one.
    #[test]
    fn golden_table() {
        let hex: String = encoded().iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "4b565431988041f644332211000000000b000000000000002c00000000000000\
                        070000000500000004000000fa00000003000000000000000e03000000000000\
                        3412ffff00000180";
        assert_eq!(hex, expected);
    }

    /// Goal:   a table comes back as it was; a damaged one, or one of another namespace, is refused.
    /// Method: decode it; flip each bit; cut it everywhere; another shape.
    #[test]
    fn whole_tables_come_back_and_others_are_refused() {
        let bytes = encoded();
        let stored = decode(&bytes, &parameters()).expect("whole");
        assert_eq!((stored.row, stored.number, stored.sequences), (7, 5, 11..44));
        assert_eq!(stored.table, [0x1234, 0xffff, 0, 0x8001]);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged, &parameters()).is_err(), "bit {bit}");
        }
        (0..bytes.len()).for_each(|len| assert!(decode(&bytes[..len], &parameters()).is_err(), "{len} bytes"));
        assert!(decode(&bytes, &Parameters { rows: 7, ..parameters() }).is_err());
        assert!(decode(&bytes, &Parameters { fingerprint_bits: 13, ..parameters() }).is_err());
    }
}
