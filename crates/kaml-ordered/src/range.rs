//! Iterating over keys in their order, in both directions, next to the writer.
//!
//! Lives here:       the iterator, counting what lies in a range.
//! Lives elsewhere:  reading a leaf (`tree`).
//! May be called by: everyone, through `OrderedReader` and `OrderedWriter`.
//!
//! An iterator reads a leaf at a time, all of it as of one moment, and remembers the place where it ends: a separator of the
//! tree. It continues there however leaves have split, merged or moved. So every key that exists throughout is returned exactly once, in
//! order. A key that is inserted or removed meanwhile is returned or is not. What is returned can be older than the present by one leaf, so a caller
//! that reads the record looks the key up again or checks what it read.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use kaml_index::Slot;

use crate::inner::Wanted;
use crate::node::Entries;
use crate::tree::{Fences, Tree};

/// An owned bound of a range of keys.
pub(crate) type KeyBound = Bound<Vec<u8>>;

/// Iterates over a range of keys. `next_entry` and `next_entry_back` lend keys without allocating; as an [`Iterator`] it returns
/// owned keys, and `rev()` works as well.
pub struct Range {
    tree: Arc<Tree>,
    front: Side,
    back: Side,
    /// Where the front continues reading leaves, and the back must end; the same of the back.
    lower: KeyBound,
    upper: KeyBound,
    was_back: bool,
    fences: Fences,
    bytes: Vec<u8>,
}

/// Entries read and not returned yet.
#[derive(Default)]
struct Side {
    entries: Entries,
    /// Those that are left.
    start: usize,
    end: usize,
    has_returned: bool,
    is_finished: bool,
}

/// A copy of the bounds.
pub(crate) fn owned<K: AsRef<[u8]> + ?Sized>(bounds: &impl RangeBounds<K>) -> (KeyBound, KeyBound) {
    let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
    (own(bounds.start_bound()), own(bounds.end_bound()))
}

/// How many entries come before the range.
pub(crate) fn start_of(entries: &Entries, lower: Bound<&[u8]>) -> usize {
    match lower {
        Bound::Unbounded => 0,
        Bound::Included(key) => entries.keys.below(key),
        Bound::Excluded(key) => {
            let at = entries.keys.below(key);
            at + usize::from(at < entries.len() && entries.key(at) == key)
        }
    }
}

/// How many entries come before the range's end.
pub(crate) fn end_of(entries: &Entries, upper: Bound<&[u8]>) -> usize {
    match upper {
        Bound::Unbounded => entries.len(),
        Bound::Included(key) => start_of(entries, Bound::Excluded(key)),
        Bound::Excluded(key) => start_of(entries, Bound::Included(key)),
    }
}

pub(crate) fn as_slice(bound: &KeyBound) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Whether keys from `key` on can be in a range that ends so.
pub(crate) fn can_hold(upper: Bound<&[u8]>, key: &[u8]) -> bool {
    match upper {
        Bound::Unbounded => true,
        Bound::Included(end) => key <= end,
        Bound::Excluded(end) => key < end,
    }
}

impl Range {
    pub(crate) fn new(tree: Arc<Tree>, (lower, upper): (KeyBound, KeyBound)) -> Range {
        let mut range = Range {
            tree,
            front: Side::default(),
            back: Side::default(),
            lower,
            upper,
            was_back: false,
            fences: Fences::default(),
            bytes: vec![],
        };
        if range.is_inverted() {
            (range.front.is_finished, range.back.is_finished) = (true, true);
        }
        range
    }

    fn is_inverted(&self) -> bool {
        match (&self.lower, &self.upper) {
            (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
            (Bound::Included(lower) | Bound::Excluded(lower), Bound::Included(upper) | Bound::Excluded(upper)) => {
                lower >= upper
            }
            _ => false,
        }
    }

    /// The next entry from the front.
    #[inline]
    pub fn next_entry(&mut self) -> Option<(&[u8], Slot)> {
        self.turn(false);
        while self.front.start == self.front.end {
            if !self.read_front() {
                return None;
            }
        }
        let i = self.front.start;
        self.front.start += 1;
        self.front.has_returned = true;
        let slot = self.tree.slot_of(self.front.entries.values[i]).expect("entries have values");
        Some((self.front.entries.key(i), slot))
    }

    /// The next entry from the back.
    #[inline]
    pub fn next_entry_back(&mut self) -> Option<(&[u8], Slot)> {
        self.turn(true);
        while self.back.start == self.back.end {
            if !self.read_back() {
                return None;
            }
        }
        self.back.end -= 1;
        self.back.has_returned = true;
        let i = self.back.end;
        let slot = self.tree.slot_of(self.back.entries.values[i]).expect("entries have values");
        Some((self.back.entries.key(i), slot))
    }

    /// What the front has come to.
    fn floor(&self) -> Bound<&[u8]> {
        match self.front.has_returned {
            true => Bound::Excluded(self.front.entries.key(self.front.start - 1)),
            false => as_slice(&self.lower),
        }
    }

    /// What the back has come to.
    fn ceiling(&self) -> Bound<&[u8]> {
        match self.back.has_returned {
            true => Bound::Excluded(self.back.entries.key(self.back.end)),
            false => as_slice(&self.upper),
        }
    }

    /// Before a step in one direction after one in the other: leaves out what the other has returned.
    #[inline]
    fn turn(&mut self, back: bool) {
        if self.was_back != back {
            self.was_back = back;
            if back {
                let start = start_of(&self.back.entries, self.floor());
                self.back.start = self.back.start.max(start).min(self.back.end);
            } else {
                let end = end_of(&self.front.entries, self.ceiling());
                self.front.end = self.front.end.min(end).max(self.front.start);
            }
        }
    }

    /// Reads the next leaf at the front; false if there is none.
    fn read_front(&mut self) -> bool {
        if self.front.is_finished {
            return false;
        }
        let wanted = match &self.lower {
            Bound::Unbounded => Wanted::Key(&[]),
            Bound::Included(key) | Bound::Excluded(key) => Wanted::Key(key),
        };
        let entries = &mut self.front.entries;
        let is_there = self.tree.read_leaf(wanted, &mut self.bytes, entries, &mut self.fences);
        self.front.has_returned = false;
        self.front.start = start_of(&self.front.entries, as_slice(&self.lower));
        self.front.end = end_of(&self.front.entries, self.ceiling()).max(self.front.start);
        let goes_on = is_there && self.fences.has_upper && can_hold(self.ceiling(), &self.fences.upper);
        self.front.is_finished = !goes_on;
        if goes_on {
            self.lower = Bound::Included(self.fences.upper.clone());
        }
        is_there
    }

    /// Reads the next leaf at the back; false if there is none.
    fn read_back(&mut self) -> bool {
        if self.back.is_finished {
            return false;
        }
        let wanted = match &self.upper {
            Bound::Unbounded => Wanted::Last,
            Bound::Included(key) => Wanted::Key(key),
            Bound::Excluded(key) => Wanted::Below(key),
        };
        let entries = &mut self.back.entries;
        let is_there = self.tree.read_leaf(wanted, &mut self.bytes, entries, &mut self.fences);
        self.back.has_returned = false;
        self.back.end = end_of(&self.back.entries, as_slice(&self.upper));
        self.back.start = start_of(&self.back.entries, self.floor()).min(self.back.end);
        let lower = self.floor();
        let goes_on = is_there
            && self.fences.has_lower
            && match lower {
                Bound::Unbounded => true,
                Bound::Included(key) | Bound::Excluded(key) => key < self.fences.lower.as_slice(),
            };
        self.back.is_finished = !goes_on;
        if goes_on {
            self.upper = Bound::Excluded(self.fences.lower.clone());
        }
        is_there
    }

    /// Counts the entries that are left, a leaf at a time.
    pub(crate) fn count_left(mut self) -> u64 {
        self.turn(false);
        let mut count = 0;
        loop {
            count += (self.front.end - self.front.start) as u64;
            if !self.read_front() {
                return count;
            }
        }
    }
}

impl Iterator for Range {
    type Item = (Box<[u8]>, Slot);

    fn next(&mut self) -> Option<Self::Item> {
        self.next_entry().map(|(key, slot)| (key.into(), slot))
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_entry_back().map(|(key, slot)| (key.into(), slot))
    }
}

impl std::iter::FusedIterator for Range {}
