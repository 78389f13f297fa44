//! Length codes: how many chunks a record takes, in seven bits.
//!
//! Lives here:       the code and its two directions.
//! May be called by: the index, which stores a code in every slot, and the firmware's space accounting.
//!
//! An index slot has seven bits for the length, and one value must mean "empty". That leaves 127 codes for lengths up
//! to a million chunks, so longer records are rounded up; a reader then fetches at most an eighth too much (a quarter
//! above 2^15 chunks). Eight codes per doubling all the way would end at 2^17.8 chunks.
//!
//! | chunks                 | codes per doubling | codes     | rounded up by less than |
//! |-----------------------:|-------------------:|----------:|------------------------:|
//! |                1 .. 17 |              exact |   1 .. 17 |                       0 |
//! |         17 .. 2^15 + 1 |                  8 | 18 .. 105 |                     1/8 |
//! | 2^15 + 1 .. 1.5·2^20 + 1 |                4 | 106 .. 127 |                    1/4 |
//!
//! Steps end one chunk after the round numbers: values like to have round sizes, and the header is one chunk more.

use std::num::NonZeroU8;

/// A record's length in chunks as a code of 1 to 127. Codes order as the lengths do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LenCode(NonZeroU8);

/// Lengths up to this have codes of their own.
const EXACT_MAX: u32 = 17;
/// The last code with eight steps per doubling: the exact ones, then 11 doublings from 2^4 to 2^15.
const FINE_LAST: u32 = EXACT_MAX + 11 * 8;
const FINE_LAST_LOG2: u32 = 15;

impl LenCode {
    /// Bits that a code takes.
    pub const BITS: u32 = 7;
    /// The code of the longest record.
    pub const LAST: LenCode = LenCode(NonZeroU8::new(127).expect("not zero"));

    /// The smallest code that covers `chunks`; none for zero chunks or more than the last code covers.
    pub fn of(chunks: u32) -> Option<LenCode> {
        if chunks == 0 || chunks > Self::LAST.chunks_max() {
            return None;
        }
        if chunks <= EXACT_MAX {
            return NonZeroU8::new(chunks as u8).map(LenCode);
        }
        // One less for the header's chunk, one more to keep a power of two in the doubling that it ends.
        let body = chunks - 2;
        let log2 = body.ilog2();
        let code = if log2 < FINE_LAST_LOG2 {
            EXACT_MAX + 1 + (log2 - 4) * 8 + ((body >> (log2 - 3)) & 7)
        } else {
            FINE_LAST + 1 + (log2 - FINE_LAST_LOG2) * 4 + ((body >> (log2 - 2)) & 3)
        };
        NonZeroU8::new(code as u8).map(LenCode)
    }

    /// The largest number of chunks that has this code: what a reader must fetch and the firmware must account.
    pub fn chunks_max(self) -> u32 {
        let code = u32::from(self.get());
        if code <= EXACT_MAX {
            code
        } else if code <= FINE_LAST {
            let step = code - EXACT_MAX - 1;
            ((8 + step % 8 + 1) << (step / 8 + 1)) + 1
        } else {
            let step = code - FINE_LAST - 1;
            ((4 + step % 4 + 1) << (step / 4 + FINE_LAST_LOG2 - 2)) + 1
        }
    }

    /// The code that the low seven bits are; none if they are 0.
    #[inline]
    pub(crate) fn from_low_bits(bits: u64) -> Option<LenCode> {
        NonZeroU8::new(bits as u8 & Self::LAST.get()).map(LenCode)
    }

    /// The code as stored.
    #[inline]
    pub const fn get(self) -> u8 {
        self.0.get()
    }

    /// A stored code; none if it is 0 (an empty slot) or has more than seven bits.
    #[inline]
    pub fn from_stored(code: u8) -> Option<LenCode> {
        NonZeroU8::new(code).map(LenCode).filter(|&code| code <= Self::LAST)
    }
}

impl std::fmt::Debug for LenCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LenCode({}: up to {} chunks)", self.get(), self.chunks_max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   every length has the smallest code that covers it, within the promised rounding.
    /// Method: all lengths up to the longest; codes must step by one, exactly after `chunks_max`.
    #[test]
    fn codes_cover_lengths_tightly() {
        let longest = LenCode::LAST.chunks_max();
        assert_eq!(longest, (1 << 20) / 2 * 3 + 1);
        let mut last = LenCode::of(1).unwrap();
        assert_eq!(last.get(), 1);
        for chunks in 2..=longest {
            let code = LenCode::of(chunks).unwrap();
            let covered = code.chunks_max();
            assert!(covered >= chunks, "{chunks}: {code:?}");
            let slack = match chunks {
                0..=17 => 0,
                18..=32_769 => chunks / 8,
                _ => chunks / 4,
            };
            assert!(covered - chunks <= slack, "{chunks}: {code:?}");
            let step = u8::from(last.chunks_max() < chunks);
            assert_eq!(code.get(), last.get() + step, "{chunks}");
            last = code;
        }
        assert_eq!(last, LenCode::LAST);
    }

    /// Goal:   lengths and stored codes without a meaning are refused.
    /// Method: the values next to each end.
    #[test]
    fn ends_are_refused() {
        assert_eq!(LenCode::of(0), None);
        assert_eq!(LenCode::of(LenCode::LAST.chunks_max() + 1), None);
        assert_eq!(LenCode::of(u32::MAX), None);
        assert_eq!(LenCode::from_stored(0), None);
        assert_eq!(LenCode::from_stored(128), None);
        assert_eq!(LenCode::from_stored(127), Some(LenCode::LAST));
    }
}
