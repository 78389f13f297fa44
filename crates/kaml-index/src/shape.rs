//! The shape of a segment: which keys it holds, in how many pages of how many slots; and where a key goes in it.
//!
//! Lives here:       the header's layout, bucket choices, and how they are undone.
//! May be called by: the table, its writer, snapshots.
//!
//! The 64 mixed bits of a key, from the lowest: 6 bits name a bucket in a page, 3 bits name one of eight pages, and of the
//! other 55, the *upper bits* (`rest` in the code), a segment of depth `d` holds the keys whose top `d` bits are its prefix. Bucket and page bits
//! together are the key's *cell*. Its second cell is the first XOR a number that depends on the upper bits (and the verbatim
//! part), so either gives the other.
//!
//! Pages are added one at a time, by linear hashing: of `p` pages with `2^b <= p < 2^(b+1)`, the first `p - 2^b` are split,
//! each with its partner `2^b` after it. What splits a page is the next page bit of the cell while there are fewer than
//! eight, then the next of the upper bits; so with sixteen pages the segment falls into two of eight, and no slot moves.
//!
//! A slot must keep the bits of its key that place and segment do not imply. From eight pages on these are the upper bits without
//! the prefix, and before that upper bits and page bits. The *remainder* is the upper bits, with the page bits of the slot's own
//! cell above them. A slot keeps the low `R` bits of the remainder (`bucket`), no fewer than it must.

use std::array;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering::*, fence};

use crate::arena::PAGE_LINES;
use crate::bucket::{Fields, REMAINDER_BITS_MAX, low_bits};
use crate::mixed::Mixed;

/// A segment with this many pages becomes two: 1024 buckets, 6144 of the narrowest slots.
pub(crate) const PAGES_MAX: u32 = 16;
/// From so many pages on, they imply all page bits of their keys.
pub(crate) const PAGES_FULL: u32 = 8;
/// Segments of at most 2^24: 8 * 10^10 keys. Bounds the directory.
pub(crate) const DEPTH_MAX: u32 = 24;
const CELL_BITS: u32 = 9;
const REST_BITS: u32 = 64 - CELL_BITS;
const LINE_BITS: u32 = PAGE_LINES.ilog2();

/// A segment's header: a line of its own.
///
/// Pages have numbers of 24 bits, enough for 64 GiB (`arena`). They stand by the upper four bits of *wide cells*, and a page
/// that has no partner yet is in place of the partner too: so a look-up need not ask how many pages there are.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Header {
    pub(crate) version: AtomicU64,
    pub(crate) shape: AtomicU64,
    /// The low 16 bits of page numbers.
    pages_low: [AtomicU16; PAGES_MAX as usize],
    /// The high 8 bits.
    pages_high: [AtomicU8; PAGES_MAX as usize],
}

/// A segment's shape in one word, so a torn read cannot mix two shapes.
///
/// | bits     | field     |
/// |----------|-----------|
/// | 0 .. 16  | `count`   | entries
/// | 16 .. 21 | `pages`   | 1 to 16
/// | 21 .. 24 | `slots`   | per bucket, 2 to 6
/// | 24 .. 32 | `depth`   | 0 to 24
/// | 32 .. 40 |           | zero
/// | 40 .. 64 | `prefix`  | the top `depth` bits of its keys
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape(pub(crate) u64);

/// Lines after a header that show the writer which buckets are full (`writer`).
pub(crate) const FULL_LINES: usize = PAGES_MAX as usize / 8;
/// Lines of a header with them.
pub(crate) const HEADER_LINES: u32 = 1 + FULL_LINES as u32;

/// Where a key belongs: by its first and by its second choice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// Page << 6 | line of the page.
    pub(crate) buckets: [u32; 2],
    pub(crate) remainders: [u64; 2],
}

/// Where a key belongs, as look-ups need it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WidePlace {
    pub(crate) cells: [WideCell; 2],
    pub(crate) remainders: [u64; 2],
}

/// A cell with the bit above it that splits pages from eight on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WideCell(u32);

impl WideCell {
    /// The line of the page.
    #[inline]
    pub(crate) fn line(self) -> u32 {
        self.0 & (PAGE_LINES - 1)
    }
}

impl Shape {
    /// An empty segment with the densest buckets that so many pages can have.
    pub(crate) fn new(fields: &Fields, prefix: u32, depth: u32, pages: u32) -> Shape {
        let slots = fields.slots_for(remainder_bits(depth, pages));
        Self::with_slots(prefix, depth, pages, slots)
    }

    pub(crate) fn with_slots(prefix: u32, depth: u32, pages: u32, slots: u32) -> Shape {
        assert!(depth <= DEPTH_MAX && u64::from(prefix) <= low_bits(depth), "prefix {prefix} of {depth} bits");
        assert!((1..=PAGES_MAX).contains(&pages), "{pages} pages");
        let (prefix, depth, slots, pages) = (u64::from(prefix), u64::from(depth), u64::from(slots), u64::from(pages));
        Shape(prefix << 40 | depth << 24 | slots << 21 | pages << 16)
    }

    /// The shape of a header without a segment: it holds no key.
    pub(crate) const NONE: Shape = Shape(1 << 40);

    /// The slots per bucket that the segment could have as it is.
    pub(crate) fn slots_possible(self, fields: &Fields) -> u32 {
        fields.slots_for(remainder_bits(self.depth(), self.pages()))
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
        (self.0 >> 16) as u32 & 31
    }

    #[inline]
    pub(crate) fn buckets(self) -> u32 {
        self.pages() * PAGE_LINES
    }

    #[inline]
    pub(crate) fn slots_per_bucket(self) -> u32 {
        (self.0 >> 21) as u32 & 7
    }

    pub(crate) fn slots(self) -> u32 {
        self.buckets() * self.slots_per_bucket()
    }

    #[inline]
    pub(crate) fn depth(self) -> u32 {
        (self.0 >> 24) as u32 & 0xff
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

    /// The first mixed key after the segment; none at the end of all keys.
    pub(crate) fn end(self) -> Option<u64> {
        let prefix = u64::from(self.prefix()) + 1;
        (prefix >> self.depth() == 0).then(|| prefix << (64 - self.depth()))
    }

    /// Where a key belongs.
    #[inline]
    pub(crate) fn place(self, mixed: &Mixed) -> Place {
        let (rest, cells) = (mixed.m >> CELL_BITS, cells(mixed));
        Place {
            buckets: [self.bucket(cells[0], rest), self.bucket(cells[1], rest)],
            remainders: [remainder(cells[0], rest), remainder(cells[1], rest)],
        }
    }

    /// The same for look-ups, by wide cells instead of buckets.
    #[inline]
    pub(crate) fn wide_place(self, mixed: &Mixed) -> WidePlace {
        let (rest, cells) = (mixed.m >> CELL_BITS, cells(mixed));
        let split_bit = self.split_bit(rest);
        WidePlace {
            cells: [WideCell(cells[0] | split_bit), WideCell(cells[1] | split_bit)],
            remainders: [remainder(cells[0], rest), remainder(cells[1], rest)],
        }
    }

    #[inline]
    fn bucket(self, cell: u32, rest: u64) -> u32 {
        let wide = cell | self.split_bit(rest);
        self.page_of(wide >> LINE_BITS) << LINE_BITS | cell & (PAGE_LINES - 1)
    }

    /// The one of the upper bits that splits pages from eight on, where wide cells have it.
    #[inline]
    fn split_bit(self, rest: u64) -> u32 {
        ((rest >> (REST_BITS - 1 - self.depth())) as u32 & 1) << CELL_BITS
    }

    /// The page that a wide cell's upper four bits name.
    #[inline]
    fn page_of(self, upper: u32) -> u32 {
        let base = self.base_log2();
        let page = upper & ((2 << base) - 1);
        if page < self.pages() { page } else { page & ((1 << base) - 1) }
    }

    /// `b`: pages up to `2^b` have no partner before them.
    #[inline]
    pub(crate) fn base_log2(self) -> u32 {
        self.pages().ilog2()
    }

    /// Which bit of remainders decides whether a slot moves from its page to the partner that is added now.
    #[inline]
    pub(crate) fn splitting_bit(self) -> u32 {
        if self.pages() < PAGES_FULL { REST_BITS + self.base_log2() } else { REST_BITS - 1 - self.depth() }
    }

    /// The mixed key of a slot, from its bucket, choice, and what it keeps of its remainder.
    #[inline]
    pub(crate) fn mixed(self, bucket: u32, choice: u64, kept: u64, verbatim: &Mixed) -> Mixed {
        let rest = self.rest(kept);
        let cell = self.cell(bucket, kept);
        let first = if choice == 0 { cell } else { cell ^ between(rest, verbatim) };
        Mixed { m: rest << CELL_BITS | u64::from(first), ..*verbatim }
    }

    /// The other bucket of a slot, and its remainder there.
    #[inline]
    pub(crate) fn other(self, bucket: u32, kept: u64, verbatim: &Mixed) -> (u32, u64) {
        let rest = self.rest(kept);
        let cell = self.cell(bucket, kept) ^ between(rest, verbatim);
        (self.bucket(cell, rest), remainder(cell, rest))
    }

    #[inline]
    fn rest(self, kept: u64) -> u64 {
        let own = REST_BITS - self.depth();
        u64::from(self.prefix()) << own | kept & low_bits(own)
    }

    #[inline]
    fn cell(self, bucket: u32, kept: u64) -> u32 {
        let page = if self.pages() < PAGES_FULL {
            (kept >> REST_BITS) as u32
        } else {
            (bucket >> LINE_BITS) & (PAGES_FULL - 1)
        };
        page << LINE_BITS | bucket & (PAGE_LINES - 1)
    }
}

const CELL_MASK: u32 = (1 << CELL_BITS) - 1;

/// The two cells of a key.
#[inline]
fn cells(mixed: &Mixed) -> [u32; 2] {
    let first = mixed.m as u32 & CELL_MASK;
    [first, first ^ between(mixed.m >> CELL_BITS, mixed)]
}

/// The upper bits and the page bits of a cell.
#[inline]
fn remainder(cell: u32, rest: u64) -> u64 {
    rest | u64::from(cell >> LINE_BITS) << REST_BITS
}

/// One cell of a key XOR its other: 1 to 511.
#[inline]
fn between(rest: u64, mixed: &Mixed) -> u32 {
    let h = (rest ^ mixed.verbatim_digest()).wrapping_mul(0xa54f_f53a_5f1d_36f1);
    1 + scaled(h, u64::from(CELL_MASK)) as u32
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

/// Bits that slots must keep.
fn remainder_bits(depth: u32, pages: u32) -> u32 {
    if pages < PAGES_FULL { REMAINDER_BITS_MAX } else { REST_BITS - depth }
}

impl Header {
    /// A header that nobody knows yet.
    pub(crate) fn of(shape: Shape, pages: &[u32]) -> Header {
        let header = Header::default();
        header.store(shape, pages);
        header
    }

    /// All but the version.
    pub(crate) fn store(&self, shape: Shape, pages: &[u32]) {
        self.shape.store(shape.0, Relaxed);
        for (i, (low, high)) in (0..).zip(self.pages_low.iter().zip(&self.pages_high)) {
            let page = pages[shape.page_of(i) as usize];
            low.store(page as u16, Relaxed);
            high.store((page >> 16) as u8, Relaxed);
        }
    }

    /// Takes the segment away.
    pub(crate) fn retire(&self) {
        self.shape.store(Shape::NONE.0, Relaxed);
    }

    /// A copy that does not change.
    pub(crate) fn copied(&self) -> Header {
        Header {
            version: self.version.load(Relaxed).into(),
            shape: self.shape.load(Relaxed).into(),
            pages_low: array::from_fn(|i| self.pages_low[i].load(Relaxed).into()),
            pages_high: array::from_fn(|i| self.pages_high[i].load(Relaxed).into()),
        }
    }

    #[inline]
    pub(crate) fn shape(&self) -> Shape {
        Shape(self.shape.load(Relaxed))
    }

    /// Whether nothing of the segment has changed since the header had this version.
    #[inline]
    pub(crate) fn stood(&self, version: u64) -> bool {
        fence(Acquire);
        self.version.load(Relaxed) == version
    }

    /// The number of the `i`th page.
    #[inline]
    pub(crate) fn page(&self, i: u32) -> u32 {
        let i = (i % PAGES_MAX) as usize;
        u32::from(self.pages_low[i].load(Relaxed)) | u32::from(self.pages_high[i].load(Relaxed)) << 16
    }

    /// The number of the page where a wide cell is.
    #[inline]
    pub(crate) fn page_of(&self, cell: WideCell) -> u32 {
        self.page(cell.0 >> LINE_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyKind;
    use proptest::prelude::*;

    proptest! {
        /// Goal:   a key comes back from either of its places and what a slot keeps there, and each place from the other; look-ups
        ///         find the same places by the header.
        /// Method: random keys and shapes, remainders cut to what slots must keep.
        #[test]
        fn places_are_undone(m: u64, high: u64, len_less_one in 0u8..16, depth in 0u32..=DEPTH_MAX, pages in 1u32..=PAGES_MAX) {
            let fields = Fields::new(KeyKind::Bytes, 36);
            let shape = Shape::new(&fields, top_bits(m, depth) as u32, depth, pages);
            let mixed = Mixed { m, high, len_less_one };
            prop_assert!(shape.holds(m));
            let place = shape.place(&mixed);
            let page_numbers: Vec<u32> = (0..pages).map(|i| (i << 16) | (0xfff0 + i)).collect();
            let header = Header::of(shape, &page_numbers);
            let wide = shape.wide_place(&mixed);
            prop_assert_eq!(wide.remainders, place.remainders);
            for (bucket, cell) in place.buckets.into_iter().zip(wide.cells) {
                prop_assert_eq!((bucket / PAGE_LINES, bucket % PAGE_LINES), (header.page_of(cell) >> 16, cell.line()));
                prop_assert_eq!(header.page_of(cell), page_numbers[(bucket / PAGE_LINES) as usize]);
            }
            let verbatim = Mixed { m: 0, ..mixed };
            for choice in 0..2 {
                let bucket = place.buckets[choice];
                prop_assert!(bucket < shape.buckets());
                let kept = place.remainders[choice] & low_bits(remainder_bits(depth, pages));
                prop_assert_eq!(shape.mixed(bucket, choice as u64, kept, &verbatim), mixed);
                let other = (place.buckets[1 - choice], place.remainders[1 - choice]);
                prop_assert_eq!(shape.other(bucket, kept, &verbatim), other);
            }
        }

        /// Goal:   adding a page moves only the keys that go to it, all of them from the page that is split and by the one
        ///         bit; sixteen pages are two segments of eight.
        /// Method: random keys, each number of pages and one more.
        #[test]
        fn growth_is_linear(m: u64, depth in 0u32..DEPTH_MAX, pages in 1u32..PAGES_MAX) {
            let fields = Fields::new(KeyKind::U64, 36);
            let mixed = Mixed { m, ..Mixed::default() };
            let shape = |depth, pages| Shape::new(&fields, top_bits(m, depth) as u32, depth, pages);
            let (small, large) = (shape(depth, pages), shape(depth, pages + 1));
            let (before, after) = (small.place(&mixed), large.place(&mixed));
            prop_assert_eq!(before.remainders, after.remainders);
            for (i, (from, to)) in before.buckets.into_iter().zip(after.buckets).enumerate() {
                let page = from / PAGE_LINES;
                let moves = page == pages - (1 << small.base_log2()) && before.remainders[i] >> small.splitting_bit() & 1 == 1;
                prop_assert_eq!(to, if moves { from + (PAGE_LINES << small.base_log2()) } else { from });
            }
            let (whole, half) = (shape(depth, PAGES_MAX).place(&mixed), shape(depth + 1, PAGES_FULL).place(&mixed));
            let half_of = (m >> (63 - depth)) as u32 & 1;
            prop_assert_eq!(whole.buckets, half.buckets.map(|bucket| bucket + half_of * PAGES_FULL * PAGE_LINES));
        }
    }

    /// Goal:   the widths of the module's promise: six slots for 33-bit addresses from about five million keys on, for
    ///         36-bit ones as well.
    /// Method: shapes at the depths in question.
    #[test]
    fn shapes_are_dense() {
        let slots = |kind, addr_bits, depth, pages| {
            Shape::new(&Fields::new(kind, addr_bits), 0, depth, pages).slots_per_bucket()
        };
        assert_eq!(slots(KeyKind::U64, 32, 0, 1), 5);
        assert_eq!(slots(KeyKind::U64, 36, 0, 1), 5);
        assert_eq!(slots(KeyKind::U64, 33, 10, 15), 5);
        assert_eq!(slots(KeyKind::U64, 33, 11, 8), 6);
        assert_eq!(slots(KeyKind::U64, 36, 11, 8), 6);
        assert_eq!(slots(KeyKind::U64, 36, 11, 7), 5, "a segment that has shrunk");
        assert_eq!(slots(KeyKind::Bytes, 36, 0, 1), 3);
        assert_eq!(slots(KeyKind::Bytes, 48, 0, 1), 2);
    }
}
