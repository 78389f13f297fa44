//! Columns of bits, one bit for each segment, as narrow as there are segments.
//!
//! Lives here:       reading a column as a word, adding a segment to all columns.
//! Lives elsewhere:  what a column means (`group`, `bloom`).
//! Implements:       paper:Muninn 4.3 (Figure 4), without memory for segments that do not exist yet.

use std::ops::Range;

/// Segments at most: the bits of a word.
pub(crate) const WIDTH_MAX: usize = 64;

/// Columns of equal width, one after another without gaps.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    /// One word more than needed, so any column can be read from two words.
    bits: Vec<u64>,
    width: usize,
}

impl Packed {
    /// Segments in it.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.bits.capacity() * 8
    }

    /// The bits of a column; bit 0 is the oldest segment.
    #[inline]
    pub(crate) fn read(&self, column: usize) -> u64 {
        if self.width == WIDTH_MAX {
            return self.bits[column];
        }
        let (word, shift) = (column * self.width / 64, column * self.width % 64);
        let wide = u128::from(self.bits[word]) | u128::from(self.bits[word + 1]) << 64;
        (wide >> shift) as u64 & self.all()
    }

    /// The words of some columns, if columns are words.
    pub(crate) fn words(&self, column: usize, count: usize) -> Option<&[u64]> {
        (self.width == WIDTH_MAX).then(|| &self.bits[column..column + count])
    }

    /// A mask of all segments.
    pub(crate) fn all(&self) -> u64 {
        u64::MAX.checked_shr((WIDTH_MAX - self.width) as u32).unwrap_or(0)
    }

    /// Adds the newest segment: its bits, column by column.
    pub(crate) fn push(&mut self, column_count: usize, new: impl Iterator<Item = bool>) {
        let values = new.take(column_count).enumerate();
        let values = values.map(|(column, bit)| self.read_any(column) | u64::from(bit) << self.width);
        *self = Packed::of(column_count, self.width + 1, values);
    }

    /// The columns of some of the segments.
    pub(crate) fn slice(&self, column_count: usize, segments: Range<usize>) -> Packed {
        let (start, width) = (segments.start, segments.len());
        let mask = u64::MAX.checked_shr((WIDTH_MAX - width) as u32).unwrap_or(0);
        let values =
            (0..column_count).map(|column| self.read_any(column).checked_shr(start as u32).unwrap_or(0) & mask);
        Packed::of(column_count, width, values)
    }

    /// Adds segments that are newer, as many columns of them.
    pub(crate) fn append(&mut self, column_count: usize, newer: &Packed) {
        let above = |column| newer.read_any(column).checked_shl(self.width as u32).unwrap_or(0);
        let values = (0..column_count).map(|column| self.read_any(column) | above(column));
        *self = Packed::of(column_count, self.width + newer.width, values);
    }

    /// As [`Packed::read`], also while there is no segment.
    fn read_any(&self, column: usize) -> u64 {
        if self.width == 0 { 0 } else { self.read(column) }
    }

    fn of(column_count: usize, width: usize, values: impl Iterator<Item = u64>) -> Packed {
        assert!(width <= WIDTH_MAX, "a word has 64 bits");
        let mut bits = vec![0u64; (column_count * width).div_ceil(64) + 1];
        for (column, value) in values.enumerate() {
            let (word, shift) = (column * width / 64, column * width % 64);
            bits[word] |= value << shift;
            if shift + width > 64 {
                bits[word + 1] |= value >> (64 - shift);
            }
        }
        Packed { bits, width }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   every bit is read back, at every width.
    /// Method: 67 columns of bits that follow from column and segment.
    #[test]
    fn bits_come_back_at_every_width() {
        let bit = |column: usize, segment: usize| (column * 7 + segment * 13 + column * segment).is_multiple_of(3);
        let mut packed = Packed::default();
        assert_eq!(packed.all(), 0);
        for newest in 0..WIDTH_MAX {
            packed.push(67, (0..67).map(|column| bit(column, newest)));
            for column in 0..67 {
                let expected = (0..=newest).fold(0, |sum, segment| sum | u64::from(bit(column, segment)) << segment);
                assert_eq!(packed.read(column), expected, "column {column} of {newest}");
            }
        }
        assert_eq!(packed.words(3, 2), Some(&[packed.read(3), packed.read(4)][..]));
    }

    /// Goal:   segments that are taken apart and put together again have the same bits.
    /// Method: columns of 64 segments, divided at every place, both parts compared, and joined again.
    #[test]
    fn parts_are_put_together_again() {
        let mut packed = Packed::default();
        for segment in 0..WIDTH_MAX {
            packed.push(67, (0..67).map(|column| (column * 5 + segment * 3) % 7 < 3));
        }
        for at in 0..=WIDTH_MAX {
            let (mut older, newer) = (packed.slice(67, 0..at), packed.slice(67, at..WIDTH_MAX));
            assert_eq!((older.width(), newer.width()), (at, WIDTH_MAX - at));
            if at > 0 && at < WIDTH_MAX {
                (0..67).for_each(|column| assert_eq!(older.read(column), packed.read(column) & older.all()));
                (0..67).for_each(|column| assert_eq!(newer.read(column), packed.read(column) >> at));
            }
            older.append(67, &newer);
            (0..67).for_each(|column| assert_eq!(older.read(column), packed.read(column), "column {column}, {at}"));
        }
    }
}
