//! The shape of a segment: which keys it holds, in how many buckets of how many slots; and where a key goes in it.
//!
//! Lives here:       the header's layout, bucket choices, and how they are undone.
//! May be called by: the table, its writer, snapshots.
//!
//! A segment of depth `d` holds the keys whose top `d` mixed bits are its prefix. Of the other `X = 64 - d` bits, as an
//! integer `x`, the first bucket is `floor(x * B / 2^X)`: any `B` will do, so a segment grows by a page at a time. The
//! bucket says in which interval of `x` a key lies, and an interval is no longer than `2^k`; so the low `k` bits of `x`, the
//! remainder, are all that a slot must keep. The second bucket is the first plus an offset that depends on the
//! remainder (and the verbatim part), so that it can be undone without knowing `x`.

use crate::arena::{Line, PAGE_LINES};
use crate::bucket::{Fields, low_bits};
use crate::mixed::Mixed;
use std::sync::atomic::Ordering::Relaxed;

/// Pages of the largest segment: 768 buckets, 4608 of the narrowest slots. What fits a one-line header; rebuilding that
/// many entries is the longest an insert may take.
pub(crate) const PAGES_MAX: u32 = 12;
/// Segments of at most 2^24: 6 * 10^10 keys. Bounds the directory.
pub(crate) const DEPTH_MAX: u32 = 24;

/// Word 1 of a segment header, in one word so that a torn read cannot mix two shapes.
///
/// | bits     | field     |
/// |----------|-----------|
/// | 0 .. 16  | `count`   | entries
/// | 16 .. 20 | `pages`   | 1 to 12; buckets = 64 times that
/// | 20 .. 24 | `slots`   | per bucket, 2 to 6
/// | 24 .. 30 | `k`       | remainder bits
/// | 30 .. 40 | `depth`   | 0 to 24
/// | 40 .. 64 | `prefix`  | the top `depth` bits of its keys
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape(pub(crate) u64);

/// Words of a header line: version, shape, then the first lines of up to 12 pages, two a word.
pub(crate) const VERSION: usize = 0;
pub(crate) const SHAPE: usize = 1;
const FIRST_PAGE: usize = 2;

/// A key's two buckets and its remainder.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) first: u32,
    pub(crate) second: u32,
    pub(crate) remainder: u64,
}

impl Shape {
    /// The densest shape with so many pages.
    pub(crate) fn new(fields: &Fields, prefix: u32, depth: u32, pages: u32) -> Shape {
        assert!(depth <= DEPTH_MAX && u64::from(prefix) <= low_bits(depth), "prefix {prefix} of {depth} bits");
        assert!((1..=PAGES_MAX).contains(&pages), "{pages} pages");
        let k = remainder_bits(depth, pages * PAGE_LINES);
        let slots = u64::from(fields.slots_for(k));
        let shape = Shape(u64::from(prefix) << 40 | u64::from(depth) << 30 | u64::from(k) << 24 | slots << 20);
        Shape(shape.0 | u64::from(pages) << 16)
    }

    #[inline]
    pub(crate) fn count(self) -> u32 {
        self.0 as u32 & 0xffff
    }

    #[inline]
    pub(crate) fn with_count(self, count: u32) -> Shape {
        debug_assert!(count <= self.slots());
        Shape(self.0 & !0xffff | u64::from(count))
    }

    #[inline]
    pub(crate) fn pages(self) -> u32 {
        (self.0 >> 16) as u32 & 15
    }

    #[inline]
    pub(crate) fn buckets(self) -> u32 {
        self.pages() * PAGE_LINES
    }

    #[inline]
    pub(crate) fn slots_per_bucket(self) -> u32 {
        (self.0 >> 20) as u32 & 15
    }

    pub(crate) fn slots(self) -> u32 {
        self.buckets() * self.slots_per_bucket()
    }

    #[inline]
    pub(crate) fn remainder_bits(self) -> u32 {
        (self.0 >> 24) as u32 & 63
    }

    #[inline]
    pub(crate) fn depth(self) -> u32 {
        (self.0 >> 30) as u32 & 63
    }

    #[inline]
    pub(crate) fn prefix(self) -> u32 {
        (self.0 >> 40) as u32
    }

    /// Whether the segment is the one for `m`.
    #[inline]
    pub(crate) fn holds(self, m: u64) -> bool {
        top_bits(m, self.depth()) == u64::from(self.prefix())
    }

    /// The first mixed key that belongs here.
    pub(crate) fn start(self) -> u64 {
        if self.depth() == 0 { 0 } else { u64::from(self.prefix()) << (64 - self.depth()) }
    }

    /// The first mixed key behind the segment; none at the end of all keys.
    pub(crate) fn end(self) -> Option<u64> {
        let prefix = u64::from(self.prefix()) + 1;
        (prefix >> self.depth() == 0).then(|| prefix << (64 - self.depth()))
    }

    #[inline]
    pub(crate) fn first_bucket(self, m: u64) -> u32 {
        scaled(m << self.depth(), self.buckets().into()) as u32
    }

    /// Where a key belongs.
    #[inline]
    pub(crate) fn place(self, mixed: &Mixed, digest: u64) -> Place {
        let first = self.first_bucket(mixed.m);
        let remainder = mixed.m & low_bits(self.remainder_bits());
        Place { first, second: self.forward(first, remainder, digest), remainder }
    }

    /// The second bucket of a key whose first is `first`. Never the same.
    #[inline]
    pub(crate) fn forward(self, first: u32, remainder: u64, digest: u64) -> u32 {
        let to = first + 1 + self.offset(remainder, digest);
        if to >= self.buckets() { to - self.buckets() } else { to }
    }

    /// The first bucket of a key whose second is `second`.
    #[inline]
    pub(crate) fn backward(self, second: u32, remainder: u64, digest: u64) -> u32 {
        let by = 1 + self.offset(remainder, digest);
        if second >= by { second - by } else { second + self.buckets() - by }
    }

    /// 0 to `buckets - 2`. The number of buckets goes in as well, so that keys which share both buckets part when the
    /// segment grows.
    #[inline]
    fn offset(self, remainder: u64, digest: u64) -> u32 {
        let buckets = u64::from(self.buckets());
        let mut h = (remainder ^ digest ^ (buckets << 48)).wrapping_mul(0xa54f_f53a_5f1d_36f1);
        h ^= h >> 32;
        h = h.wrapping_mul(0x510e_527f_ade6_82d1);
        scaled(h, buckets - 1) as u32
    }
}

/// An evenly spread number as an evenly spread number below `count`.
#[inline]
pub(crate) fn scaled(spread: u64, count: u64) -> u64 {
    ((u128::from(spread) * u128::from(count)) >> 64) as u64
}

/// The top `count` bits.
#[inline]
pub(crate) fn top_bits(m: u64, count: u32) -> u64 {
    (m >> 1) >> (63 - count)
}

/// Bits that tell apart all `x` of one bucket: `ceil(log2(ceil(2^X / B)))`.
fn remainder_bits(depth: u32, buckets: u32) -> u32 {
    let longest = (1u128 << (64 - depth)).div_ceil(u128::from(buckets));
    u128::BITS - (longest - 1).leading_zeros()
}

/// Finds mixed keys again from bucket and remainder, with one division by a small number.
pub(crate) struct Undo {
    shape: Shape,
    whole: u64,
    rest: u32,
}

impl Undo {
    pub(crate) fn new(shape: Shape) -> Undo {
        let (range, buckets) = (1u128 << (64 - shape.depth()), u128::from(shape.buckets()));
        Undo { shape, whole: (range / buckets) as u64, rest: (range % buckets) as u32 }
    }

    /// The smallest `x` of a bucket: `ceil(b * 2^X / B)`, with `2^X = whole * B + rest`.
    #[inline]
    fn low(&self, bucket: u32) -> u64 {
        u64::from(bucket)
            .wrapping_mul(self.whole)
            .wrapping_add(u64::from((bucket * self.rest).div_ceil(self.shape.buckets())))
    }

    /// The mixed key with this first bucket and remainder.
    #[inline]
    pub(crate) fn mixed(&self, first: u32, remainder: u64) -> u64 {
        let low = self.low(first);
        let x = low.wrapping_add(remainder.wrapping_sub(low) & low_bits(self.shape.remainder_bits()));
        self.shape.start() | x & low_bits(64 - self.shape.depth())
    }
}

/// The `i`th page number of a header.
#[inline]
pub(crate) fn page(header: &Line, i: u32) -> u32 {
    (header.0[FIRST_PAGE + (i >> 1) as usize].load(Relaxed) >> (32 * (i & 1))) as u32
}

/// A header's words but the version.
pub(crate) fn header_words(shape: Shape, pages: &[u32]) -> [u64; 8] {
    let mut words = [0; 8];
    words[SHAPE] = shape.0;
    pages.iter().enumerate().for_each(|(i, &page)| words[FIRST_PAGE + i / 2] |= u64::from(page) << (32 * (i % 2)));
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyKind;
    use proptest::prelude::*;

    proptest! {
        /// Goal:   a key comes back from its first bucket and remainder, and its first bucket from its second.
        /// Method: random keys and shapes; and both ends of each bucket's interval, where rounding could go wrong.
        #[test]
        fn places_are_undone(m: u64, digest: u64, depth in 0u32..=DEPTH_MAX, pages in 1u32..=PAGES_MAX, near in -1i64..=1) {
            let fields = Fields::new(KeyKind::U64, 36);
            let shape = Shape::new(&fields, top_bits(m, depth) as u32, depth, pages);
            let undo = Undo::new(shape);
            let bucket = shape.place(&Mixed { m, high: 0, len_less_one: 0 }, digest).first;
            let edge = shape.start() | undo.low(bucket).wrapping_add_signed(near) & low_bits(64 - depth);
            for m in [m, edge] {
                prop_assert!(shape.holds(m));
                let place = shape.place(&Mixed { m, high: 0, len_less_one: 0 }, digest);
                prop_assert!(place.first < shape.buckets() && place.second < shape.buckets());
                prop_assert_ne!(place.first, place.second);
                prop_assert_eq!(undo.mixed(place.first, place.remainder), m);
                prop_assert_eq!(shape.backward(place.second, place.remainder, digest), place.first);
            }
        }
    }

    /// Goal:   the widths of the module's promise: six slots for 32-bit addresses from about three million keys on.
    /// Method: shapes at the depths in question.
    #[test]
    fn shapes_are_dense() {
        let slots = |kind, addr_bits, depth, pages| {
            Shape::new(&Fields::new(kind, addr_bits), 0, depth, pages).slots_per_bucket()
        };
        assert_eq!(slots(KeyKind::U64, 32, 0, 1), 5);
        assert_eq!(slots(KeyKind::U64, 32, 10, 8), 6);
        assert_eq!(slots(KeyKind::U64, 36, 14, 8), 6);
        assert_eq!(slots(KeyKind::U64, 36, 13, 12), 5);
        assert_eq!(slots(KeyKind::Bytes, 36, 0, 1), 3);
        assert_eq!(slots(KeyKind::Bytes, 48, 0, 1), 2);
    }
}
