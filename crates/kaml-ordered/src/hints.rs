//! Hints: the first bits of some entries of a node, in its first line, which name the few entries among which a key is.
//!
//! Lives here:       which entries have hints, comparing all hints at once.
//! Lives elsewhere:  what the bits are (`leaf`, `inner`).
//! May be called by: leaves and inner nodes.
//!
//! The entries with hints divide a node evenly. So a look-up waits for two loads from memory, of the hints and of the entries that they
//! name, where a search by halves waits for each of its steps.

use crate::node::View;

/// Bits of a hint. A lane of 16 bits has one to spare, so four lanes are compared by one subtraction.
pub(crate) const HINT_BITS: u32 = 15;
const LANES: u64 = 0x0001_0001_0001_0001;
const TOPS: u64 = LANES << HINT_BITS;

/// How many hints there are in this many words.
pub(crate) const fn hints(words: usize) -> usize {
    4 * words
}

/// Which of `count` entries hint `i` is of.
#[inline]
pub(crate) fn entry<const WORDS: usize>(i: usize, count: usize) -> usize {
    (i + 1) * count / (hints(WORDS) + 1)
}

/// Bounds of the first entry that is not below a key with this hint, the upper one included: it can be `count`. All entries with a greater
/// hint come from the upper bound on.
#[inline]
pub(crate) fn between<const WORDS: usize>(view: View<'_>, word: usize, hint: u64, count: usize) -> (usize, usize) {
    // The top bit of a lane remains where one number is not below the other.
    let all = hint * LANES;
    let (mut not_above, mut not_below) = (0, 0);
    for i in word..word + WORDS {
        let hints = view.word(i) & !TOPS;
        not_above += ((all | TOPS) - hints) >> HINT_BITS & LANES;
        not_below += ((hints | TOPS) - all) >> HINT_BITS & LANES;
    }
    let sum = |lanes: u64| (lanes.wrapping_mul(LANES) >> 48) as usize;
    let (below, not_above) = (hints(WORDS) - sum(not_below), sum(not_above));
    let low = if below == 0 { 0 } else { count.min(entry::<WORDS>(below - 1, count) + 1) };
    let high = if not_above == hints(WORDS) { count } else { entry::<WORDS>(not_above, count) };
    (low, high.max(low))
}

/// Writes the hints of `count` entries.
pub(crate) fn write<const WORDS: usize>(out: &mut [u8], word: usize, count: usize, hint: impl Fn(&[u8], usize) -> u64) {
    for i in 0..hints(WORDS) {
        let hint = hint(out, entry::<WORDS>(i, count));
        out[8 * word + 2 * i..][..2].copy_from_slice(&(hint as u16).to_be_bytes());
    }
}
