//! CRC-32C, the checksum of every format of KAML: [`crc32c`] and [`crc32c_append`]; and the CRC-32 of key files, [`crc32`].
//!
//! Lives here:       sums by the instruction of the processor, and by tables where it has none.
//! Lives elsewhere:  what a sum covers (the formats of each crate).
//! May be called by: everyone.
//!
//! On x86-64 the instruction takes eight bytes in each cycle, but waits three cycles for the sum before. Three lanes keep it busy, and a
//! product of polynomials joins their sums. A record of 1 KiB takes about 200 instructions.

/// The polynomial of CRC-32C, bits reversed.
const CASTAGNOLI: u32 = 0x82f6_3b78;
/// The polynomial of CRC-32, bits reversed.
const IEEE: u32 = 0xedb8_8320;

/// The CRC-32C of some bytes.
///
/// ```
/// assert_eq!(kaml_crc::crc32c(b"123456789"), 0xe306_9283);
/// ```
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// The CRC-32C of what `crc` is of, and `more` after it. That of no bytes is 0.
///
/// ```
/// let first = kaml_crc::crc32c(b"1234");
/// assert_eq!(kaml_crc::crc32c_append(first, b"56789"), kaml_crc::crc32c(b"123456789"));
/// ```
#[inline]
#[allow(unsafe_code, reason = "instructions are used after looking for them")]
pub fn crc32c_append(crc: u32, more: &[u8]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::is_x86_feature_detected!("sse4.2") && std::is_x86_feature_detected!("pclmulqdq") {
        // SAFETY: the processor has the instructions.
        return !unsafe { lanes::append(!crc, more) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    if std::arch::is_aarch64_feature_detected!("crc") {
        // SAFETY: the processor has the instruction.
        return !unsafe { words::append(!crc, more) };
    }
    !by_tables(&CASTAGNOLI_TABLES, !crc, more)
}

/// The CRC-32 of some bytes, as in zip files and in the formats of NVMe keys. It is slower.
///
/// ```
/// assert_eq!(kaml_crc::crc32(b"123456789"), 0xcbf4_3926);
/// ```
pub fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { IEEE } else { 0 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

/// Of each byte, what it adds to a sum after 0 to 7 more bytes.
type Tables = [[u32; 256]; 8];

static CASTAGNOLI_TABLES: Tables = tables(CASTAGNOLI);

const fn tables(polynomial: u32) -> Tables {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { polynomial } else { 0 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut place = 256;
    while place < 8 * 256 {
        let before = tables[place / 256 - 1][place % 256];
        tables[place / 256][place % 256] = before >> 8 ^ tables[0][(before & 0xff) as usize];
        place += 1;
    }
    tables
}

fn by_tables(tables: &Tables, crc: u32, bytes: &[u8]) -> u32 {
    let (words, left) = bytes.as_chunks::<8>();
    let crc = words.iter().fold(crc, |crc, word| {
        let mixed = (u64::from_le_bytes(*word) ^ u64::from(crc)).to_le_bytes();
        tables.iter().rev().zip(mixed).fold(0, |sum, (table, byte)| sum ^ table[usize::from(byte)])
    });
    left.iter().fold(crc, |crc, byte| crc >> 8 ^ tables[0][usize::from(crc as u8 ^ *byte)])
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod words {
    use std::arch::aarch64::{__crc32cb, __crc32cd};

    /// As [`super::crc32c_append`], with sums that are not inverted.
    #[target_feature(enable = "crc")]
    pub(super) fn append(crc: u32, bytes: &[u8]) -> u32 {
        let (words, left) = bytes.as_chunks::<8>();
        let crc = words.iter().fold(crc, |crc, word| __crc32cd(crc, u64::from_le_bytes(*word)));
        left.iter().fold(crc, |crc, byte| __crc32cb(crc, *byte))
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod lanes {
    use std::arch::x86_64::{
        _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64, _mm_cvtsi64_si128,
        _mm_cvtsi128_si64, _mm_xor_si128,
    };

    use super::CASTAGNOLI;

    const WORD: usize = 8;

    /// What a sum is multiplied by to move it `bytes` ahead. The product is one bit too low, and reducing it moves it by 32 bits.
    const fn ahead(bytes: usize) -> i64 {
        let mut power = 1u32 << 31;
        let mut bit = 0;
        while bit < bytes * 8 - 33 {
            power = power >> 1 ^ if power & 1 == 1 { CASTAGNOLI } else { 0 };
            bit += 1;
        }
        power as i64
    }

    /// As [`super::crc32c_append`], with sums that are not inverted.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    pub(super) fn append(crc: u32, bytes: &[u8]) -> u32 {
        let (crc, bytes) = in_three::<1024, 3072>(crc, bytes);
        let (crc, bytes) = in_three::<256, 768>(crc, bytes);
        let (crc, bytes) = in_three::<64, 192>(crc, bytes);
        let (words, bytes) = bytes.as_chunks::<WORD>();
        let mut crc = u64::from(crc);
        for word in words {
            crc = _mm_crc32_u64(crc, u64::from_le_bytes(*word));
        }
        let mut crc = crc as u32;
        let mut left = bytes;
        if let Some((head, more)) = left.split_first_chunk() {
            crc = _mm_crc32_u32(crc, u32::from_le_bytes(*head));
            left = more;
        }
        if let Some((head, more)) = left.split_first_chunk() {
            crc = _mm_crc32_u16(crc, u16::from_le_bytes(*head));
            left = more;
        }
        left.iter().fold(crc, |crc, byte| _mm_crc32_u8(crc, *byte))
    }

    /// Sums pieces of three lanes; returns what is left over.
    #[inline]
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    fn in_three<const LANE: usize, const PIECE: usize>(crc: u32, bytes: &[u8]) -> (u32, &[u8]) {
        const { assert!(PIECE == 3 * LANE && LANE == LANE / (4 * WORD) * (4 * WORD)) }
        let (pieces, left) = bytes.as_chunks::<PIECE>();
        let mut crc = u64::from(crc);
        for piece in pieces {
            let (words, _) = piece.as_chunks::<WORD>();
            let (first, others) = words.split_at(LANE / WORD);
            let (second, third) = others.split_at(LANE / WORD);
            let (first, second, third) =
                (first.as_chunks::<4>().0, second.as_chunks::<4>().0, third.as_chunks::<4>().0);
            let (mut b, mut c) = (0, 0);
            for ((first, second), third) in first.iter().zip(second).zip(third) {
                for at in 0..4 {
                    crc = _mm_crc32_u64(crc, u64::from_le_bytes(first[at]));
                    b = _mm_crc32_u64(b, u64::from_le_bytes(second[at]));
                    c = _mm_crc32_u64(c, u64::from_le_bytes(third[at]));
                }
            }
            let by =
                |sum: u64, bytes| _mm_clmulepi64_si128::<0>(_mm_cvtsi64_si128(sum as i64), _mm_cvtsi64_si128(bytes));
            let moved = _mm_xor_si128(by(crc, const { ahead(2 * LANE) }), by(b, const { ahead(LANE) }));
            crc = c ^ _mm_crc32_u64(0, _mm_cvtsi128_si64(moved) as u64);
        }
        (crc as u32, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   the sum is CRC32C, whatever the length and the address.
    /// Method: a bit by bit sum of every length up to a few pieces of lanes, at each offset of a word; the same by tables.
    #[test]
    fn sums_are_those_of_the_polynomial() {
        let bytes: Vec<u8> = (0..10_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let bitwise = |bytes: &[u8]| {
            let step = |crc: u32, byte: &u8| {
                (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { CASTAGNOLI } else { 0 })
            };
            !bytes.iter().fold(!0, step)
        };
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let lengths = (0..300).chain(760..1100).chain(1500..1560).chain((3060..3090).chain([4096, 9000]));
        for (place, len) in lengths.enumerate() {
            let span = &bytes[place % 9..][..len];
            assert_eq!(crc32c(span), bitwise(span), "{len} bytes");
            assert_eq!(!by_tables(&CASTAGNOLI_TABLES, !0, span), bitwise(span), "{len} bytes");
        }
    }

    /// Goal:   a sum continues where it ended.
    /// Method: two parts of all lengths, and the whole.
    #[test]
    fn parts_sum_to_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|at| (at * 7 % 251) as u8).collect();
        for split in 0..bytes.len() {
            let (first, second) = bytes.split_at(split);
            assert_eq!(crc32c_append(crc32c(first), second), crc32c(&bytes), "{split}");
        }
    }
}
