//! An array that grows while others read it.
//!
//! Lives here:       [`Growing`].
//! Lives elsewhere:  what is in it (`memory`; the gate of the firmware).
//!
//! What existed from the beginning lies in one piece, so reading it costs what reading a slice does. What is added lies in pieces of one
//! size, which never move.

use std::ops::Index;
use std::sync::OnceLock;

/// Elements of a piece.
const PIECE: usize = 1024;
/// Elements that were added together, once they exist.
type Piece<T> = OnceLock<Box<[T]>>;
/// As many pieces as it takes for 2^24 elements.
const PIECES: usize = (1 << 24) / PIECE;

/// An array of elements that are changed through shared references only. It never becomes shorter.
///
/// # Examples
/// ```
/// use kaml_flash::Growing;
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// let counts: Growing<AtomicU32> = Growing::new((0..3).map(|_| AtomicU32::new(7)));
/// counts.grow(2000, || AtomicU32::new(1));
/// assert_eq!((counts[2].load(Ordering::Relaxed), counts[1999].load(Ordering::Relaxed)), (7, 1));
/// ```
pub struct Growing<T> {
    first: Box<[T]>,
    /// Made with the first piece.
    more: OnceLock<Box<[Piece<T>]>>,
}

impl<T> Growing<T> {
    /// These elements.
    pub fn new(first: impl Iterator<Item = T>) -> Growing<T> {
        Growing { first: first.collect(), more: OnceLock::new() }
    }

    /// Has at least `count` elements from now on, of at most 2^24 more than at the beginning.
    pub fn grow(&self, count: usize, make: impl Fn() -> T) {
        let pieces = count.saturating_sub(self.first.len()).div_ceil(PIECE);
        if pieces == 0 {
            return;
        }
        assert!(pieces <= PIECES, "{count} elements are more than there can be");
        let more = self.more.get_or_init(|| (0..PIECES).map(|_| OnceLock::new()).collect());
        for piece in &more[..pieces] {
            piece.get_or_init(|| (0..PIECE).map(|_| make()).collect());
        }
    }

    /// An element, if it exists.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        match self.first.get(index) {
            Some(element) => Some(element),
            None => self.get_added(index - self.first.len()),
        }
    }

    #[cold]
    fn get_added(&self, index: usize) -> Option<&T> {
        self.more.get()?.get(index / PIECE)?.get()?.get(index % PIECE)
    }
}

impl<T> Index<usize> for Growing<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        self.get(index).expect("the element exists")
    }
}

impl<T> std::fmt::Debug for Growing<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pieces = self.more.get().map_or(0, |more| more.iter().filter(|piece| piece.get().is_some()).count());
        write!(f, "{} elements and {pieces} pieces of {PIECE}", self.first.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    /// Goal:   elements keep their values and their places while the array grows, and none is missing or made twice.
    /// Method: counts on both sides of each boundary; each new element is written once and all are read after each step.
    #[test]
    fn elements_stay() {
        let array = Growing::new((0..5).map(AtomicU32::new));
        let mut known = 5;
        for count in [0, 5, 6, 5 + PIECE, 5 + PIECE + 1, 5 + 3 * PIECE, 7] {
            array.grow(count, || AtomicU32::new(u32::MAX));
            for index in known..count {
                assert_eq!(array[index].swap(index as u32, Relaxed), u32::MAX);
            }
            known = known.max(count);
            assert!((0..known).all(|index| array[index].load(Relaxed) == index as u32), "{count}");
        }
        assert!(array.get(5 + 3 * PIECE).is_none() && array.get(usize::MAX).is_none());
    }
}
