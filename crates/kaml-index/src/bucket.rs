//! Buckets: 512 bits cut into 2 to 6 slots, and the fields of a slot.
//!
//! Lives here:       bit positions; nothing here knows where a bucket lies.
//! May be called by: the table, its writer, snapshots.
//!
//! A bucket of `n` slots has `n` *heads*, its first `n` words, and the other `512 - 64 n` bits cut into `n` *tails*. A look-up
//! compares whole words, one a slot, and opens a tail only of the slot that it found.
//!
//! | bits of a head    | field     | meaning                                                       |
//! |-------------------|-----------|---------------------------------------------------------------|
//! | 0                 | `choice`  | 0: the slot lies in the key's first bucket, 1: in its second  |
//! | 1 .. 1 + H        | `tag`     | the low `H = min(R, 56)` bits of the remainder                |
//! | 1 + H .. 57       | `payload` | its low bits; the tail has the others                         |
//! | 57 .. 64          | `len`     | length code; 0 = the slot is empty, and all its bits are zero |
//!
//! The payload is, from the lowest bit up: the chunk number; the other `R - H` bits of the remainder, if any; for `Bytes` keys
//! their first 8 bytes and, in 4 bits, their length less one.
//!
//! `R` is what remains: as many bits of the remainder as a slot has room for. Slots so keep more than they must, and do
//! not change while their segment grows (`shape`).
//!
//! Six slots have tails of 21 bits, too few for wide chunk numbers until an index has very many keys. Indexes with such
//! numbers have 3 bits more for each slot in three lines after each page: 4.7 % of memory instead of the 20 % that five
//! slots would take. Only a look-up that found its key reads them.

use crate::mixed::{Mixed, verbatim_bits};
use crate::{KeyKind, LenCode, Slot};

/// The eight words of a bucket, and the bits that it has after its page.
pub(crate) type Words = [u64; 9];
const EXTRA: usize = 8;

/// A slot's bits, moved as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Raw {
    pub(crate) head: u64,
    pub(crate) tail: u128,
}

/// Slots of the sparsest and the densest bucket.
pub(crate) const SLOTS_MIN: u32 = 2;
pub(crate) const SLOTS_MAX: u32 = 6;
/// Bits of the remainder that a head has room for, next to choice and length code.
const TAG_BITS_MAX: u32 = 63 - LenCode::BITS;
/// Where a head has its length code.
const LEN_AT: u32 = 64 - LenCode::BITS;
/// Bits that each of six slots may have after the page.
const EXTRA_BITS: u32 = 3;
/// Bits that a bucket has after its page: 18 are used, and three buckets share a word.
pub(crate) const EXTRA_BUCKET_BITS: u32 = 21;
/// Chunk numbers for which that is worth its memory: narrower ones do without from two million keys on, wider ones do
/// not fit six slots with it before there are fifty million.
const EXTRA_ADDR_BITS: std::ops::RangeInclusive<u32> = 34..=38;
/// Bits of a remainder with nothing implied but the bucket in a page of 64.
pub(crate) const REMAINDER_BITS_MAX: u32 = 58;

/// A bucket to be read, wherever it is.
pub(crate) trait Bucket {
    /// One of its eight words.
    fn word(&self, i: usize) -> u64;
    /// What it has after its page.
    fn extra(&self) -> u64;
}

impl Bucket for Words {
    #[inline]
    fn word(&self, i: usize) -> u64 {
        self[i]
    }

    #[inline]
    fn extra(&self) -> u64 {
        self[EXTRA]
    }
}

/// Field widths that hold for a whole index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fields {
    pub(crate) addr_bits: u32,
    pub(crate) verbatim_bits: u32,
    /// Whether pages have lines with more bits after them.
    pub(crate) extra: bool,
    addr_mask: u64,
    /// How many slots a bucket has whose heads alone distinguish keys, if there is room for this many; 0 if they never do.
    pub(crate) slots_by_head: u32,
    /// By slots per bucket.
    cuts: [Cut; SLOTS_MAX as usize + 1],
}

/// How slots of one width are cut. Masks are kept, not computed: look-ups are short enough for that to count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Cut {
    /// The bits of a head that distinguish keys: choice and tag.
    mask: u64,
    /// `H`.
    tag_bits: u32,
    /// `R`.
    remainder_bits: u32,
    /// Whether the payload has more bits that distinguish keys.
    has_upper: bool,
}

impl Fields {
    pub(crate) fn new(kind: KeyKind, addr_bits: u32) -> Fields {
        let verbatim_bits = verbatim_bits(kind);
        let extra = kind == KeyKind::U64 && EXTRA_ADDR_BITS.contains(&addr_bits);
        let mut cuts = [Cut::default(); SLOTS_MAX as usize + 1];
        for slots in SLOTS_MIN..=SLOTS_MAX {
            let extra_bits = if extra && slots == SLOTS_MAX { EXTRA_BITS } else { 0 };
            let others = 1 + LenCode::BITS + addr_bits + verbatim_bits;
            let remainder_bits = (512 / slots + extra_bits).saturating_sub(others).min(REMAINDER_BITS_MAX);
            let tag_bits = remainder_bits.min(TAG_BITS_MAX);
            let has_upper = verbatim_bits != 0 || remainder_bits > TAG_BITS_MAX;
            cuts[slots as usize] = Cut { mask: low_bits(1 + tag_bits), tag_bits, remainder_bits, has_upper };
        }
        let slots_by_head = if cuts[SLOTS_MAX as usize].has_upper { 0 } else { SLOTS_MAX };
        Fields { addr_bits, verbatim_bits, extra, addr_mask: low_bits(addr_bits), slots_by_head, cuts }
    }

    /// The most slots per bucket that have room for `remainder_bits`.
    pub(crate) fn slots_for(&self, remainder_bits: u32) -> u32 {
        (SLOTS_MIN..=SLOTS_MAX).rev().find(|&slots| self.remainder_bits(slots) >= remainder_bits).unwrap_or(SLOTS_MIN)
    }

    /// Bits of the remainder that each of this many slots keeps.
    #[inline]
    pub(crate) fn remainder_bits(&self, slots: u32) -> u32 {
        self.cuts[slots as usize].remainder_bits
    }

    #[inline]
    pub(crate) fn addr_mask(&self) -> u64 {
        self.addr_mask
    }

    /// `H` and `R`.
    #[inline]
    fn widths<const N: usize>(&self) -> (u32, u32) {
        (self.cuts[N].tag_bits, self.cuts[N].remainder_bits)
    }

    /// The bits of a head that distinguish keys.
    #[inline]
    pub(crate) fn tag_mask<const N: usize>(&self) -> u64 {
        self.cuts[N].mask
    }

    /// Those bits, of a key.
    #[inline]
    pub(crate) fn tag<const N: usize>(&self, remainder: u64, choice: u64) -> u64 {
        (remainder << 1 | choice) & self.tag_mask::<N>()
    }

    /// The remaining bits that distinguish keys: they are in the payload, above the chunk number.
    #[inline]
    pub(crate) fn upper<const N: usize>(&self, remainder: u64, mixed: &Mixed) -> u128 {
        let (head, all) = self.widths::<N>();
        let verbatim = u128::from(mixed.len_less_one) << 64 | u128::from(mixed.high);
        u128::from((remainder & low_bits(all)) >> head) | verbatim << (all - head)
    }

    /// Whether keys have such bits.
    #[inline]
    pub(crate) fn has_upper<const N: usize>(&self) -> bool {
        self.cuts[N].has_upper
    }

    /// A slot's bits.
    #[inline]
    pub(crate) fn pack<const N: usize>(&self, remainder: u64, choice: u64, value: u64, mixed: &Mixed) -> Raw {
        let head_bits = self.widths::<N>().0;
        let payload = u128::from(value & self.addr_mask()) | self.upper::<N>(remainder, mixed) << self.addr_bits;
        let in_head = TAG_BITS_MAX - head_bits;
        let low = (payload as u64 & low_bits(in_head)) << (1 + head_bits);
        let head = self.tag::<N>(remainder, choice) | low | (value >> self.addr_bits) << LEN_AT;
        Raw { head, tail: payload >> in_head }
    }

    /// Length code and chunk number of slot `i`.
    #[inline]
    pub(crate) fn value<const N: usize>(&self, bucket: &impl Bucket, i: usize) -> u64 {
        let head = bucket.word(i);
        let head_bits = self.widths::<N>().0;
        let in_head = TAG_BITS_MAX - head_bits;
        let low = (head & low_bits(LEN_AT)) >> (1 + head_bits);
        let at = (low | tail_low::<N>(bucket, i) << in_head) & self.addr_mask();
        head >> LEN_AT << self.addr_bits | at
    }

    /// Whether a slot of six has this head because it is the key's. Such slots have nothing else that distinguishes keys
    /// (`slots_by_head`).
    #[inline]
    pub(crate) fn is_head_of(&self, head: u64, remainder: u64, choice: u64) -> bool {
        head >> LEN_AT != 0 && (head ^ (remainder << 1 | choice)) & self.tag_mask::<6>() == 0
    }

    /// The slot of six that has this head and these tails, the two last words of its bucket, and is not empty.
    #[inline(always)]
    pub(crate) fn slot_of_six(&self, head: u64, tails: [u64; 2], extra: u64, i: usize) -> Option<Slot> {
        let head_bits = self.widths::<6>().0;
        let tails = u128::from(tails[0]) | u128::from(tails[1]) << 64;
        let tail = (tails >> (tail_bits::<6>() as usize * i)) as u64 & low_bits(tail_bits::<6>());
        let tail = tail | extra_of(extra, i) << tail_bits::<6>();
        let low = (head << LenCode::BITS >> 1) >> (LenCode::BITS + head_bits);
        let at = (low | tail << (TAG_BITS_MAX - head_bits)) & self.addr_mask();
        LenCode::from_low_bits(head >> LEN_AT).map(|len| Slot { at, len })
    }

    /// What slot `i` has above its chunk number.
    #[inline]
    pub(crate) fn upper_of<const N: usize>(&self, bucket: &impl Bucket, i: usize) -> u128 {
        let head_bits = self.widths::<N>().0;
        let in_head = TAG_BITS_MAX - head_bits;
        let low = (bucket.word(i) & low_bits(LEN_AT)) >> (1 + head_bits);
        (u128::from(low) | tail::<N>(bucket, i) << in_head) >> self.addr_bits
    }

    /// Choice, remainder (its low `R` bits) and verbatim part of slot `i`.
    #[inline]
    pub(crate) fn key_of<const N: usize>(&self, bucket: &impl Bucket, i: usize) -> (u64, u64, Mixed) {
        let (head_bits, all) = self.widths::<N>();
        let tag = bucket.word(i) & self.tag_mask::<N>();
        let mut mixed = Mixed::default();
        let mut remainder = tag >> 1;
        if self.has_upper::<N>() {
            let upper = self.upper_of::<N>(bucket, i);
            remainder |= (upper as u64 & low_bits(all - head_bits)) << head_bits;
            let verbatim = upper >> (all - head_bits);
            if self.verbatim_bits != 0 {
                // Damaged images may have more bits there; `snapshot` refuses them.
                let len_bits = self.verbatim_bits - u64::BITS;
                (mixed.high, mixed.len_less_one) = (verbatim as u64, (verbatim >> 64) as u8 & low_bits(len_bits) as u8);
            }
        }
        (tag & 1, remainder, mixed)
    }

    /// The bits of the remainder that slot `i` has in its head.
    #[inline]
    pub(crate) fn remainder_in_head<const N: usize>(&self, bucket: &impl Bucket, i: usize) -> u64 {
        (bucket.word(i) & self.tag_mask::<N>()) >> 1
    }

    /// A bit of the remainder that slot `i` keeps; 0 in an empty slot.
    #[inline]
    pub(crate) fn remainder_bit<const N: usize>(&self, bucket: &impl Bucket, i: usize, bit: u32) -> bool {
        if bit < self.widths::<N>().0 {
            bucket.word(i) >> (1 + bit) & 1 != 0
        } else {
            self.key_of::<N>(bucket, i).1 >> bit & 1 != 0
        }
    }

    /// The slot that has this key, and its value.
    #[inline]
    pub(crate) fn find<const N: usize>(
        &self,
        bucket: &impl Bucket,
        remainder: u64,
        choice: u64,
        mixed: &Mixed,
    ) -> Option<(usize, u64)> {
        let mut found = matching::<N>(bucket, self.tag::<N>(remainder, choice), self.tag_mask::<N>());
        while found != 0 {
            let i = found.trailing_zeros() as usize;
            if self.holds::<N>(bucket, i, remainder, mixed) {
                return Some((i, self.value::<N>(bucket, i)));
            }
            found &= found - 1;
        }
        None
    }

    /// Whether slot `i`, whose tag is the key's, is the key's: an empty slot looks like remainder 0 in its first bucket.
    #[inline]
    pub(crate) fn holds<const N: usize>(&self, bucket: &impl Bucket, i: usize, remainder: u64, mixed: &Mixed) -> bool {
        bucket.word(i) >> LEN_AT != 0
            && (!self.has_upper::<N>() || self.upper_of::<N>(bucket, i) == self.upper::<N>(remainder, mixed))
    }

    /// Length code and address as one number: 0 for an empty slot, never else.
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
}

#[inline]
pub(crate) const fn low_bits(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// Where tail `i` begins.
const fn tail_at<const N: usize>(i: usize) -> usize {
    64 * N + i * ((512 - 64 * N) / N)
}

/// Bits of a tail in the bucket itself. Two or three slots have more than anybody needs.
const fn tail_bits<const N: usize>() -> u32 {
    let bits = (512 - 64 * N) / N;
    if bits < 128 { bits as u32 } else { 128 }
}

/// 64 bits from bit `at` on. Past the end the bucket repeats; callers mask what they do not mean.
#[inline]
fn window(bucket: &impl Bucket, at: usize) -> u64 {
    let (word, shift) = (at >> 6, at & 63);
    bucket.word(word & 7) >> shift | (bucket.word((word + 1) & 7) << 1) << (63 - shift)
}

/// The low 64 bits of tail `i`.
#[inline]
fn tail_low<const N: usize>(bucket: &impl Bucket, i: usize) -> u64 {
    let low = window(bucket, tail_at::<N>(i)) & low_bits(tail_bits::<N>());
    if N as u32 == SLOTS_MAX { low | extra_of(bucket.extra(), i) << tail_bits::<N>() } else { low }
}

#[inline]
fn tail<const N: usize>(bucket: &impl Bucket, i: usize) -> u128 {
    let low = u128::from(tail_low::<N>(bucket, i));
    match tail_bits::<N>() {
        bits @ 65.. => low | u128::from(window(bucket, tail_at::<N>(i) + 64) & low_bits(bits - 64)) << 64,
        _ => low,
    }
}

#[inline]
fn extra_of(extra: u64, i: usize) -> u64 {
    extra >> (EXTRA_BITS as usize * i) & low_bits(EXTRA_BITS)
}

/// Which slots carry `tag` in their head under `mask`. Empty ones may be among them, if the tag is 0.
#[inline]
pub(crate) fn matching<const N: usize>(bucket: &impl Bucket, tag: u64, mask: u64) -> u32 {
    let mut found = 0;
    for i in 0..N {
        found |= u32::from((bucket.word(i) ^ tag) & mask == 0) << i;
    }
    found
}

/// Which slots are empty.
#[inline]
pub(crate) fn empties<const N: usize>(bucket: &impl Bucket) -> u32 {
    let mut empty = 0;
    for i in 0..N {
        empty |= u32::from(bucket.word(i) >> LEN_AT == 0) << i;
    }
    empty
}

/// Slot `i` as it is.
#[inline]
pub(crate) fn raw<const N: usize>(bucket: &impl Bucket, i: usize) -> Raw {
    Raw { head: bucket.word(i), tail: tail::<N>(bucket, i) }
}

/// Replaces slot `i` of a bucket.
#[inline]
pub(crate) fn set_raw<const N: usize>(words: &mut Words, i: usize, raw: &Raw) {
    words[i] = raw.head;
    let (at, bits) = (tail_at::<N>(i), tail_bits::<N>());
    let (word, shift) = (at >> 6, at as u32 & 63);
    let mask = u128::MAX >> (128 - bits);
    let tail = raw.tail & mask;
    let mut change = |word: usize, mask: u64, bits: u64| {
        if mask != 0 {
            words[word] = words[word] & !mask | bits;
        }
    };
    change(word, (mask << shift) as u64, (tail << shift) as u64);
    change(word + 1, (mask << shift >> 64) as u64, (tail << shift >> 64) as u64);
    if shift != 0 {
        change(word + 2, (mask >> (128 - shift)) as u64, (tail >> (128 - shift)) as u64);
    }
    if N as u32 == SLOTS_MAX {
        let (shift, extra) = (EXTRA_BITS as usize * i, (raw.tail >> bits) as u64 & low_bits(EXTRA_BITS));
        change(EXTRA, low_bits(EXTRA_BITS) << shift, extra << shift);
    }
}

/// All bits of slot `i`.
#[inline]
pub(crate) fn slot_mask<const N: usize>(i: usize) -> Words {
    let mut words = [0; 9];
    set_raw::<N>(&mut words, i, &Raw { head: u64::MAX, tail: u128::MAX });
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write_and_read<const N: usize>(slots: &[(u64, u128)]) -> Result<(), TestCaseError> {
        let mut words = [u64::MAX; 9];
        let bits = tail_bits::<N>() + if N == 6 { EXTRA_BITS } else { 0 };
        let slots: Vec<Raw> =
            slots.iter().map(|&(head, tail)| Raw { head, tail: tail & u128::MAX >> (128 - bits) }).collect();
        slots.iter().take(N).enumerate().for_each(|(i, slot)| set_raw::<N>(&mut words, i, slot));
        for (i, slot) in slots.iter().take(N).enumerate() {
            prop_assert_eq!(&raw::<N>(&words, i), slot);
        }
        let mut masks = [0u64; 9];
        for i in 0..N {
            for (all, mask) in masks.iter_mut().zip(slot_mask::<N>(i)) {
                prop_assert_eq!(*all & mask, 0, "slots overlap");
                *all |= mask;
            }
        }
        for (word, mask) in words.iter().zip(masks) {
            prop_assert_eq!(word | mask, u64::MAX, "bits of no slot are left alone");
        }
        Ok(())
    }

    fn pack_and_unpack<const N: usize>(fields: &Fields, slot: Slot, random: u64, len_less_one: u8) {
        let remainder = random & low_bits(fields.remainder_bits(N as u32));
        let mut mixed = Mixed::default();
        if fields.verbatim_bits != 0 {
            (mixed.high, mixed.len_less_one) = (random.rotate_left(17), len_less_one);
        }
        for i in 0..N {
            let mut words = [0; 9];
            assert_eq!(empties::<N>(&words), low_bits(N as u32) as u32);
            let raw = fields.pack::<N>(remainder, random >> 63, fields.value_of(slot), &mixed);
            set_raw::<N>(&mut words, i, &raw);
            assert_eq!(super::raw::<N>(&words, i), raw, "nothing of a slot is cut off");
            assert_eq!(empties::<N>(&words), low_bits(N as u32) as u32 & !(1 << i));
            assert_eq!(fields.slot_of(fields.value::<N>(&words, i)), Some(slot));
            assert_eq!(fields.key_of::<N>(&words, i), (random >> 63, remainder, mixed));
            let found = fields.find::<N>(&words, remainder, random >> 63, &mixed);
            assert_eq!(found, Some((i, fields.value_of(slot))));
            assert_eq!(fields.find::<N>(&words, remainder ^ 1, random >> 63, &mixed), None);
        }
    }

    proptest! {
        /// Goal:   slots of every width lie side by side without touching each other or the bits left over.
        /// Method: fill a bucket of ones with random slots, read each back; masks are apart and cover what was written.
        #[test]
        fn slots_do_not_touch(slots in prop::collection::vec(any::<(u64, u128)>(), 6)) {
            write_and_read::<2>(&slots)?;
            write_and_read::<3>(&slots)?;
            write_and_read::<4>(&slots)?;
            write_and_read::<5>(&slots)?;
            write_and_read::<6>(&slots)?;
        }

        /// Goal:   each field comes back from a packed slot, at all widths.
        /// Method: pack random fields in every slot, for all numbers of slots that leave 31 bits of remainder at least.
        #[test]
        fn fields_come_back(addr_bits in 1u32..=48, at: u64, code in 1u8..=127, random: u64, len_less_one in 0u8..17) {
            for (kind, len_less_one) in [(KeyKind::U64, 0), (KeyKind::Bytes, len_less_one & 15), (KeyKind::Any, len_less_one)] {
                let fields = Fields::new(kind, addr_bits);
                let slot = Slot { at: at & fields.addr_mask(), len: LenCode::from_stored(code).unwrap() };
                for slots in (SLOTS_MIN..=SLOTS_MAX).filter(|&slots| fields.remainder_bits(slots) >= 31) {
                    crate::table::by_slots!(slots, N => pack_and_unpack::<N>(&fields, slot, random, len_less_one));
                }
            }
        }
    }
}
