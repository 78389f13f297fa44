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

use crate::decode::{self, Part};
use crate::inner::Wanted;
use crate::leaf::ENTRIES_MAX;
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
    /// Entries of a leaf that are decoded at a time, at least; the others are read again when they are wanted.
    page: usize,
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
            page: usize::MAX,
            fences: Fences::default(),
            bytes: vec![],
        };
        if range.is_inverted() {
            (range.front.is_finished, range.back.is_finished) = (true, true);
        }
        range
    }

    /// For a caller that takes no more than about so many entries: the rest of their leaves is not decoded.
    ///
    /// # Examples
    /// ```
    /// use kaml_ordered::{LenCode, OrderedLayout, OrderedWriter, Slot};
    ///
    /// let mut index = OrderedWriter::new(OrderedLayout { addr_bits: 33 });
    /// for key in 0..1000u64 {
    ///     index.insert(&key.to_be_bytes(), Slot { at: key, len: LenCode::LAST })?;
    /// }
    /// let mut above = index.range(500u64.to_be_bytes().to_vec()..).in_pages_of(1);
    /// assert_eq!(above.next_entry().map(|(key, _)| key.to_vec()), Some(500u64.to_be_bytes().to_vec()));
    /// # Ok::<(), kaml_ordered::KeyError>(())
    /// ```
    pub fn in_pages_of(mut self, count: usize) -> Range {
        self.page = count.max(1);
        self
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
        let is_there = self.tree.copy_leaf(wanted, &mut self.bytes, &mut self.fences);
        let mut entries = std::mem::take(&mut self.front.entries);
        self.front.has_returned = false;
        let is_cut = self.decode(is_there, false, &mut entries);
        self.front.start = start_of(&entries, as_slice(&self.lower));
        self.front.end = end_of(&entries, self.ceiling()).max(self.front.start);
        let next = match is_cut {
            true => entries.keys.last().map(|last| Bound::Excluded(last.to_vec())),
            false => self.fences.has_upper.then(|| Bound::Included(self.fences.upper.clone())),
        };
        let goes_on = matches!(&next, Some(Bound::Included(key) | Bound::Excluded(key)) if is_there && can_hold(self.ceiling(), key));
        self.front.is_finished = !goes_on;
        self.front.entries = entries;
        if let Some(next) = next.filter(|_| goes_on) {
            self.lower = next;
        }
        is_there
    }

    /// Decodes what is wanted of the leaf that was copied; whether there is more of it in the range.
    fn decode(&self, is_there: bool, is_back: bool, entries: &mut Entries) -> bool {
        entries.clear();
        let (bytes, value_bytes) = (&self.bytes, self.tree.value_bytes);
        if is_there && self.page < ENTRIES_MAX {
            let bounds = match is_back {
                true => (self.floor(), as_slice(&self.upper)),
                false => (as_slice(&self.lower), self.ceiling()),
            };
            return decode::decode_part(bytes, value_bytes, &Part { bounds, limit: self.page, is_back }, entries);
        }
        if is_there {
            decode::decode(bytes, value_bytes, entries);
        }
        false
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
        let is_there = self.tree.copy_leaf(wanted, &mut self.bytes, &mut self.fences);
        let mut entries = std::mem::take(&mut self.back.entries);
        self.back.has_returned = false;
        let is_cut = self.decode(is_there, true, &mut entries);
        self.back.end = end_of(&entries, as_slice(&self.upper));
        self.back.start = start_of(&entries, self.floor()).min(self.back.end);
        let next = match is_cut {
            true => (entries.len() > 0).then(|| entries.key(0).to_vec()),
            false => self.fences.has_lower.then(|| self.fences.lower.clone()),
        };
        let is_above = |key: &Vec<u8>| match self.floor() {
            Bound::Unbounded => true,
            Bound::Included(floor) | Bound::Excluded(floor) => floor < key.as_slice(),
        };
        let next = next.filter(|key| is_there && is_above(key));
        self.back.is_finished = next.is_none();
        self.back.entries = entries;
        if let Some(next) = next {
            self.upper = Bound::Excluded(next);
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
