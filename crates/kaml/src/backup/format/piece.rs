//! The frame of a piece of a backup, and the trailer behind the last.
//!
//! Lives here:       kinds of pieces, headers with checksums, the trailer.
//! Lives elsewhere:  what pieces contain (`format`).
//! Implements:       docs/formats/backup.md.

use super::{Cursor, PIECE_BYTES_MAX, PIECE_MAGIC, TRAILER_MAGIC};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a piece contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum PieceKind {
    /// [`Head`]. The first piece.
    Head = 1,
    /// [`Described`]. One for each namespace, after the head.
    Namespace = 2,
    /// [`Entry`] one after another.
    Records = 3,
    /// Versions one after another.
    Versions = 4,
    /// The number of a versioned namespace whose versions follow all: what an earlier backup has of it is dropped.
    Reset = 5,
    /// The number of a namespace, and keys that were deleted since the earlier backup.
    Deleted = 6,
    /// The number of a namespace, and all of its keys in the order of its index.
    Keys = 7,
    /// [`Totals`]. The last piece.
    End = 8,
}

impl PieceKind {
    fn of(byte: u8) -> Option<PieceKind> {
        use PieceKind as P;
        [P::Head, P::Namespace, P::Records, P::Versions, P::Reset, P::Deleted, P::Keys, P::End]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Precedes the contents of a piece.
///
/// | offset | bytes | field        | meaning                                                                         |
/// |-------:|------:|--------------|---------------------------------------------------------------------------------|
/// |      0 |     4 | `magic`      | `"KBP1"`                                                                        |
/// |      4 |     1 | `kind`       | 1 head, 2 namespace, 3 records, 4 versions, 5 reset, 6 deleted, 7 keys, 8 end   |
/// |      5 |     3 | `reserved`   | zero                                                                            |
/// |      8 |     8 | `number`     | how many pieces precede it                                                      |
/// |     16 |     4 | `len`        | bytes of its contents                                                           |
/// |     20 |     4 | `crc`        | CRC32C over the contents                                                        |
/// |     24 |     4 | `header_crc` | CRC32C over the number of the backup (zeroes for the head) and bytes 0..24      |
/// |     28 |     4 | `reserved_2` | zero                                                                            |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(in super::super) struct PieceHeader {
    magic: [u8; 4],
    kind: u8,
    reserved: [u8; 3],
    number: U64,
    len: U32,
    crc: U32,
    header_crc: U32,
    reserved_2: U32,
}

const _: () = {
    assert!(size_of::<PieceHeader>() == PieceHeader::BYTES);
    assert!(std::mem::offset_of!(PieceHeader, header_crc) == 24);
};

/// A checked header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Piece {
    pub(in super::super) kind: PieceKind,
    pub(in super::super) number: u64,
    pub(in super::super) len: usize,
    pub(in super::super) crc: u32,
}

impl PieceHeader {
    pub(in super::super) const BYTES: usize = 32;

    fn checksum(&self, backup: &[u8; 16]) -> u32 {
        let bytes = [&backup[..], &self.as_bytes()[..24]].concat();
        kaml_crc::crc32c(&bytes)
    }

    /// The bytes before a piece's contents.
    pub(in super::super) fn encode(piece: &Piece, backup: &[u8; 16]) -> [u8; PieceHeader::BYTES] {
        let mut header = PieceHeader {
            magic: PIECE_MAGIC,
            kind: piece.kind as u8,
            reserved: [0; 3],
            number: piece.number.into(),
            len: (piece.len as u32).into(),
            crc: piece.crc.into(),
            header_crc: U32::ZERO,
            reserved_2: U32::ZERO,
        };
        header.header_crc = header.checksum(backup).into();
        zerocopy::transmute!(header)
    }

    /// The piece that begins so; `backup` is its number, or zeroes where it is not known yet.
    pub(in super::super) fn check(bytes: &[u8; PieceHeader::BYTES], backup: &[u8; 16]) -> Result<Piece, &'static str> {
        let header: PieceHeader = zerocopy::transmute!(*bytes);
        if header.magic != PIECE_MAGIC {
            return Err("no piece begins here");
        }
        if header.checksum(backup) != header.header_crc.get() {
            return Err("the checksum of a piece's header does not match, or it is a piece of another backup");
        }
        if header.reserved != [0; 3] || header.reserved_2 != U32::ZERO {
            return Err("reserved bytes of a piece are not zero");
        }
        let kind = PieceKind::of(header.kind).ok_or("a piece of an unknown kind")?;
        let len = header.len.get() as usize;
        if len > PIECE_BYTES_MAX {
            return Err("a piece is too long");
        }
        Ok(Piece { kind, number: header.number.get(), len, crc: header.crc.get() })
    }
}

/// Follows the last piece, so the keys can be found without reading everything.
///
/// | offset | bytes | field   | meaning                                                          |
/// |-------:|------:|---------|------------------------------------------------------------------|
/// |      0 |     4 | `magic` | `"KBE1"`                                                         |
/// |      4 |     4 | `crc`   | CRC32C over the number of the backup and bytes 8..24             |
/// |      8 |     8 | `tail`  | where the first piece after records and versions begins          |
/// |     16 |     8 | `piece` | the number of that piece                                         |
pub(in super::super) const TRAILER_BYTES: usize = 24;

/// The bytes after the last piece.
pub(in super::super) fn encode_trailer(backup: &[u8; 16], tail: u64, piece: u64) -> [u8; TRAILER_BYTES] {
    let mut bytes = [0; TRAILER_BYTES];
    bytes[..4].copy_from_slice(&TRAILER_MAGIC);
    bytes[8..16].copy_from_slice(&tail.to_le_bytes());
    bytes[16..].copy_from_slice(&piece.to_le_bytes());
    let crc = kaml_crc::crc32c(&[&backup[..], &bytes[8..]].concat());
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Where the tail begins, and the number of its first piece.
pub(in super::super) fn decode_trailer(backup: &[u8; 16], bytes: &[u8; TRAILER_BYTES]) -> Option<(u64, u64)> {
    let crc = kaml_crc::crc32c(&[&backup[..], &bytes[8..]].concat());
    let is_whole = bytes[..4] == TRAILER_MAGIC && bytes[4..8] == crc.to_le_bytes();
    let mut rest = Cursor(&bytes[8..]);
    Some((rest.u64()?, rest.u64()?)).filter(|_| is_whole)
}
