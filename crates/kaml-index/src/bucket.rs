//! Buckets: 512 bits cut into 2 to 6 slots, and the fields of a slot.
//!
//! Lives here:       bit positions; nothing here knows where a bucket lies.
//! May be called by: the table, its writer, snapshots.
//!
//! A slot is `512 / n` bits wide. From the lowest bit up, then from the highest down, so that what is looked for first
//! lies at the same bits whatever the other widths are:
//!
//! | bits            | field      | meaning                                                       |
//! |-----------------|------------|---------------------------------------------------------------|
//! | 1               | `choice`   | 0: the slot lies in the key's first bucket, 1: in its second  |
//! | `remainder`     | `r`        | the low bits of the mixed key, which the bucket does not tell  |
//! | 0 or 68         | `verbatim` | `Bytes` keys: first 8 bytes, then length less one in 4 bits     |
//! | (rest)          |            | zero                                                          |
//! | `addr`          | `at`       | chunk number                                                   |
//! | 7 (the highest) | `len`      | length code; 0 = the slot is empty, and all its bits are zero  |

use crate::arena::Line;
use crate::mixed::{Mixed, VERBATIM_BITS};
use crate::{KeyKind, LenCode, Slot};

use std::sync::atomic::Ordering::Relaxed;

/// The eight words of a bucket, read at one go.
pub(crate) type Words = [u64; 8];
/// A slot's bits, moved as they are.
pub(crate) type Raw = [u64; 4];

/// Slots of the sparsest and the densest bucket.
pub(crate) const SLOTS_MIN: u32 = 2;
pub(crate) const SLOTS_MAX: u32 = 6;

/// Field widths that hold for a whole index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fields {
    pub(crate) addr_bits: u32,
    pub(crate) verbatim_bits: u32,
}

impl Fields {
    pub(crate) fn new(kind: KeyKind, addr_bits: u32) -> Fields {
        Fields { addr_bits, verbatim_bits: if kind == KeyKind::Bytes { VERBATIM_BITS } else { 0 } }
    }

    /// The most slots per bucket that have room for `remainder_bits`.
    pub(crate) fn slots_for(&self, remainder_bits: u32) -> u32 {
        let width = 1 + remainder_bits + LenCode::BITS + self.addr_bits + self.verbatim_bits;
        (512 / width).clamp(SLOTS_MIN, SLOTS_MAX)
    }

    #[inline]
    pub(crate) fn addr_mask(&self) -> u64 {
        low_bits(self.addr_bits)
    }

    /// A slot's bits.
    #[inline]
    pub(crate) fn pack<const N: usize>(&self, remainder_bits: u32, tag: u64, value: u64, mixed: &Mixed) -> Raw {
        let mut raw = [tag, 0, 0, 0];
        if self.verbatim_bits != 0 {
            or_bits(&mut raw, 1 + remainder_bits, mixed.high);
            or_bits(&mut raw, 1 + remainder_bits + 64, u64::from(mixed.len_less_one));
        }
        or_bits(&mut raw, width::<N>() as u32 - self.value_bits(), value);
        raw
    }

    /// The verbatim part of slot `i`.
    #[inline]
    pub(crate) fn verbatim<const N: usize>(&self, words: &Words, i: usize, remainder_bits: u32) -> (u64, u8) {
        if self.verbatim_bits == 0 {
            return (0, 0);
        }
        let at = i * width::<N>() + 1 + remainder_bits as usize;
        (window(words, at), (window(words, at + 64) & 15) as u8)
    }

    /// Length code and address of slot `i`.
    #[inline]
    pub(crate) fn value<const N: usize>(&self, words: &Words, i: usize) -> u64 {
        window(words, (i + 1) * width::<N>() - self.value_bits() as usize) & low_bits(self.value_bits())
    }

    /// Length code and address as one number, as they lie in a slot: 0 in an empty one, never else.
    #[inline]
    pub(crate) fn value_of(&self, slot: Slot) -> u64 {
        u64::from(slot.len.get()) << self.addr_bits | slot.at
    }

    /// The reverse of `value_of`; none if the slot is empty.
    #[inline]
    pub(crate) fn slot_of(&self, value: u64) -> Option<Slot> {
        let len = LenCode::from_stored((value >> self.addr_bits) as u8)?;
        Some(Slot { at: value & self.addr_mask(), len })
    }

    #[inline]
    fn value_bits(&self) -> u32 {
        LenCode::BITS + self.addr_bits
    }
}

#[inline]
pub(crate) const fn low_bits(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// Bits of one of `N` slots.
pub(crate) const fn width<const N: usize>() -> usize {
    512 / N
}

/// 64 bits from bit `at` on. Past the end the bucket repeats; callers mask what they do not mean.
#[inline]
fn window(words: &Words, at: usize) -> u64 {
    let (word, shift) = (at >> 6, at & 63);
    words[word & 7] >> shift | (words[(word + 1) & 7] << 1) << (63 - shift)
}

#[inline]
fn or_bits(raw: &mut Raw, at: u32, value: u64) {
    let (word, shift) = ((at >> 6) as usize, at & 63);
    raw[word] |= value << shift;
    if shift != 0 && word + 1 < raw.len() {
        raw[word + 1] |= value >> (64 - shift);
    }
}

/// Which slots carry `tag` in their bits under `mask`. Empty ones may be among them, if the tag is 0.
#[inline]
pub(crate) fn matching<const N: usize>(words: &Words, tag: u64, mask: u64) -> u32 {
    (0..N).fold(0, |found, i| found | u32::from((window(words, i * width::<N>()) ^ tag) & mask == 0) << i)
}

/// The low 64 bits of slot `i`: choice and remainder, then others.
#[inline]
pub(crate) fn tag<const N: usize>(words: &Words, i: usize) -> u64 {
    window(words, i * width::<N>())
}

/// Which slots are empty.
#[inline]
pub(crate) fn empties<const N: usize>(words: &Words) -> u32 {
    let at = width::<N>() - LenCode::BITS as usize;
    let mask = low_bits(LenCode::BITS);
    (0..N).fold(0, |empty, i| empty | u32::from(window(words, i * width::<N>() + at) & mask == 0) << i)
}

/// Slot `i` as it is.
#[inline]
pub(crate) fn raw<const N: usize>(words: &Words, i: usize) -> Raw {
    let mut raw = [0; 4];
    for (part, bits) in parts::<N>() {
        raw[part] = window(words, i * width::<N>() + part * 64) & low_bits(bits);
    }
    raw
}

/// Replaces slot `i` of a bucket.
#[inline]
pub(crate) fn set_raw<const N: usize>(line: &Line, i: usize, raw: &Raw) {
    let change = |word: usize, mask: u64, bits: u64| {
        line.0[word].store(line.0[word].load(Relaxed) & !mask | bits, Relaxed);
    };
    for (part, bits) in parts::<N>() {
        let at = i * width::<N>() + part * 64;
        let (word, shift, mask) = (at >> 6, at & 63, low_bits(bits));
        let value = raw[part] & mask;
        change(word, mask << shift, value << shift);
        if shift as u32 + bits > 64 {
            change(word + 1, mask >> (64 - shift), value >> (64 - shift));
        }
    }
}

/// The 64-bit parts of a slot and how many bits each has.
#[inline]
fn parts<const N: usize>() -> impl Iterator<Item = (usize, u32)> {
    (0..width::<N>().div_ceil(64)).map(|part| (part, (width::<N>() - part * 64).min(64) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write_and_read<const N: usize>(slots: &[Raw]) -> Result<(), TestCaseError> {
        let line = Line::default();
        line.store(&[u64::MAX; 8]);
        let mut wanted = vec![];
        for (i, slot) in slots.iter().take(N).enumerate() {
            set_raw::<N>(&line, i, slot);
            let mut want = *slot;
            (0..4).for_each(|part| {
                want[part] &= parts::<N>().nth(part).map_or(0, |(_, bits)| low_bits(bits));
            });
            wanted.push(want);
        }
        let words = line.load();
        for (i, want) in wanted.iter().enumerate() {
            prop_assert_eq!(&raw::<N>(&words, i), want);
        }
        let used = N * width::<N>();
        prop_assert_eq!(window(&words, used.min(511)) & 1, if used < 512 { 1 } else { words[7] >> 63 });
        Ok(())
    }

    proptest! {
        /// Goal:   slots of every width lie side by side without touching each other or the bits left over.
        /// Method: fill a bucket of ones with random slots, read each back.
        #[test]
        fn slots_do_not_touch(slots in prop::collection::vec(any::<Raw>(), 6)) {
            write_and_read::<2>(&slots)?;
            write_and_read::<3>(&slots)?;
            write_and_read::<4>(&slots)?;
            write_and_read::<5>(&slots)?;
            write_and_read::<6>(&slots)?;
        }

        /// Goal:   each field comes back from a packed slot, at all widths.
        /// Method: pack random fields cut to size, read them from the bucket.
        #[test]
        fn fields_come_back(
            remainder_bits in 30u32..=58, addr_bits in 1u32..=48, tag: u64, at: u64, code in 1u8..=127, high: u64,
            len_less_one in 0u8..16, i in 0usize..2,
        ) {
            let fields = Fields::new(KeyKind::Bytes, addr_bits);
            let slot = Slot { at: at & fields.addr_mask(), len: LenCode::from_stored(code).unwrap() };
            let mixed = Mixed { m: 0, high, len_less_one };
            let tag_bits = tag & low_bits(remainder_bits + 1);
            let line = Line::default();
            prop_assert_eq!(empties::<2>(&line.load()), 0b11);
            set_raw::<2>(&line, i, &fields.pack::<2>(remainder_bits, tag_bits, fields.value_of(slot), &mixed));
            let words = line.load();
            prop_assert_eq!(empties::<2>(&words), 0b11 & !(1 << i));
            prop_assert_eq!(fields.slot_of(fields.value::<2>(&words, i)), Some(slot));
            prop_assert_eq!(fields.verbatim::<2>(&words, i, remainder_bits), (high, len_less_one));
            prop_assert_ne!(matching::<2>(&words, tag_bits, low_bits(remainder_bits + 1)) & 1 << i, 0);
        }
    }
}
