//! Inner nodes: children, and the short keys that separate them.
//!
//! Lives here:       choosing a child, its neighbours' separators, decoding and encoding.
//! Lives elsewhere:  what is done with children (`tree`, `writer`).
//! May be called by: the tree, its writer and the builder.
//!
//! ```text
//!  ┌ head 8 B ┬ prefix, its first 8 B ┬ hints 48 B ┬ children, 8 B each ┬ places of tails, 4 B each ┬ prefix ┬ tails ┐
//!  child  ┌ head of the separator on its left, 3 B ┬ its lines, 1 B ┬ the number of the first, 4 B ┐
//! ```
//!
//! Child `i` has the keys from separator `i - 1` on that are below separator `i`. The *prefix* is what all separators begin with. A *head*
//! is the first three bytes after it, padded with zeros, a *tail* what follows. A place is the tail's first byte, and the separator's length
//! after the prefix, two bytes each. Separators are as short as they can be, so few have a tail. A look-up reads the first line and the children that the
//! hints name; the remainder only where heads are equal.

use std::cmp::Ordering;
use std::ops::Range;

use crate::hints::{self, HINT_BITS};
use crate::key::{common, head};
use crate::node::{Head, Keys, Kind, NodeRef, View};

/// Words of the first line.
const PREFIX_WORD: usize = 1;
const HINTS_WORD: usize = 2;
const HINT_WORDS: usize = 6;
const CHILDREN_WORD: usize = 8;
/// Bytes of a separator's head, and of the prefix in the first line.
const HEAD_LEN: usize = 3;
const HEAD_BITS: u32 = 8 * HEAD_LEN as u32;
const PREFIX_LEN: usize = 8;

/// Which child of several.
#[derive(Clone, Copy)]
pub(crate) enum Wanted<'a> {
    /// The one with this key.
    Key(&'a [u8]),
    /// The one with the greatest keys below this one.
    Below(&'a [u8]),
    /// The last.
    Last,
}

/// An inner node as a reader sees it.
#[derive(Clone, Copy)]
pub(crate) struct Inner<'a> {
    view: View<'a>,
    count: usize,
    prefix_len: usize,
}

/// The first three bytes, as a number.
#[inline]
fn short_head(bytes: &[u8]) -> u64 {
    head(bytes) >> (64 - HEAD_BITS)
}

#[inline]
fn hint(short_head: u64) -> u64 {
    short_head >> (HEAD_BITS - HINT_BITS)
}

#[inline]
fn child_word(left: u64, child: NodeRef, lines: u32) -> u64 {
    left << (64 - HEAD_BITS) | u64::from(lines) << 32 | u64::from(child.0)
}

impl<'a> Inner<'a> {
    #[inline]
    pub(crate) fn of(view: View<'a>, head: &Head) -> Inner<'a> {
        Inner { view, count: head.count.max(1), prefix_len: head.prefix_len }
    }

    #[inline]
    pub(crate) fn child(self, i: usize) -> NodeRef {
        NodeRef(self.view.word(CHILDREN_WORD + i) as u32)
    }

    /// Names another child. For the writer, while readers are kept from trusting the node.
    pub(crate) fn set_child(self, i: usize, child: NodeRef, lines: u32) {
        let left = self.view.word(CHILDREN_WORD + i) >> (64 - HEAD_BITS);
        self.view.store_word(CHILDREN_WORD + i, child_word(left, child, lines));
    }

    #[inline]
    pub(crate) fn count(self) -> usize {
        self.count
    }

    /// The head of separator `i`.
    #[inline]
    fn head(self, i: usize) -> u64 {
        self.view.word(CHILDREN_WORD + 1 + i) >> (64 - HEAD_BITS)
    }

    /// The line in which the key probably is, if the keys of child `i` are spread evenly between its separators.
    #[inline]
    pub(crate) fn probable_line(self, i: usize, key: &[u8]) -> u32 {
        let word = self.view.word(CHILDREN_WORD + i);
        let (left, lines) = (word >> (64 - HEAD_BITS), word >> 32 & 0xff);
        let right = if i + 1 < self.count { self.head(i) } else { 1 << HEAD_BITS };
        let at = short_head(key.get(self.prefix_len..).unwrap_or_default()).saturating_sub(left);
        let share = at * lines.saturating_sub(1) / right.saturating_sub(left).max(1);
        (word as u32).saturating_add(1 + share.min(63) as u32)
    }

    #[inline]
    fn places_at(self) -> usize {
        8 * (CHILDREN_WORD + self.count)
    }

    fn place(self, i: usize) -> (usize, usize) {
        let both = self.view.number(self.places_at() + 4 * i, 4) as usize;
        (both >> 16, both & 0xffff)
    }

    #[inline]
    fn prefix_at(self) -> usize {
        self.places_at() + 4 * (self.count - 1)
    }

    /// How the prefix compares with a key; equal if the key begins with it.
    #[inline]
    fn compare_prefix(self, key: &[u8]) -> Ordering {
        let in_line = self.prefix_len.min(PREFIX_LEN);
        let shared = self.view.common(8 * PREFIX_WORD, in_line, key);
        if shared < in_line {
            return self.view.compare(8 * PREFIX_WORD, in_line, key);
        }
        if self.prefix_len <= PREFIX_LEN {
            return Ordering::Equal;
        }
        let (at, len) = (self.prefix_at(), self.prefix_len);
        if self.view.common(at, len, key) == len { Ordering::Equal } else { self.view.compare(at, len, key) }
    }

    /// How separator `i`, without the prefix, compares with a key of the same head.
    #[cold]
    fn compare_tail(self, i: usize, rest: &[u8]) -> Ordering {
        let (tail, len) = self.place(i);
        if len < HEAD_LEN || rest.len() < HEAD_LEN {
            return len.cmp(&rest.len());
        }
        self.view.compare(tail, len - HEAD_LEN, &rest[HEAD_LEN..])
    }

    /// Starts fetching the children among which the one with this key is; the first line is in the cache.
    #[inline]
    pub(crate) fn prefetch(self, key: &[u8]) {
        let wanted = hint(short_head(key.get(self.prefix_len..).unwrap_or_default()));
        let (start, end) = hints::between::<HINT_WORDS>(self.view, HINTS_WORD, wanted, self.count - 1);
        self.view.prefetch(8 * (CHILDREN_WORD + start));
        self.view.prefetch(8 * (CHILDREN_WORD + 1 + end));
    }

    /// Which child it is.
    #[inline]
    pub(crate) fn find(self, wanted: Wanted<'_>) -> usize {
        // A separator that equals the key is on its left, or on its right if the keys below it are meant.
        let (key, equal_is_left) = match wanted {
            Wanted::Key(key) => (key, true),
            Wanted::Below(key) => (key, false),
            Wanted::Last => return self.count - 1,
        };
        match self.compare_prefix(key) {
            Ordering::Less => return self.count - 1,
            Ordering::Greater => return 0,
            Ordering::Equal => {}
        }
        let rest = key.get(self.prefix_len..).unwrap_or_default();
        let wanted_head = short_head(rest);
        let (start, end) = hints::between::<HINT_WORDS>(self.view, HINTS_WORD, hint(wanted_head), self.count - 1);
        self.view.prefetch(8 * (CHILDREN_WORD + 1 + end));
        let low = self.partition(start..end, |of| of < wanted_head);
        if low + 1 < self.count && self.head(low) == wanted_head {
            return self.find_among_equals(low..end, wanted_head, rest, equal_is_left);
        }
        low
    }

    /// The same, where some separators have the head of the key.
    #[cold]
    fn find_among_equals(self, range: Range<usize>, wanted_head: u64, rest: &[u8], equal_is_left: bool) -> usize {
        let mut low = range.start;
        let mut high = self.partition(low..range.end, |of| of <= wanted_head);
        while low < high {
            let middle = (low + high) / 2;
            let is_left = match self.compare_tail(middle, rest) {
                Ordering::Less => true,
                Ordering::Equal => equal_is_left,
                Ordering::Greater => false,
            };
            if is_left { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// The first separator of a range for whose head this is not so.
    #[inline]
    fn partition(self, range: Range<usize>, is_left: impl Fn(u64) -> bool) -> usize {
        let (mut low, mut count) = (range.start, range.len());
        while count > 0 {
            let half = count / 2;
            let is_below = is_left(self.head(low + half));
            low = std::hint::select_unpredictable(is_below, low + half + 1, low);
            count = std::hint::select_unpredictable(is_below, count - half - 1, half);
        }
        low
    }

    /// Writes separator `i` over `out`.
    pub(crate) fn separator(self, i: usize, out: &mut Vec<u8>) {
        out.clear();
        let (tail, len) = self.place(i);
        copy_bytes(self.view, self.prefix_at(), self.prefix_len, out);
        let head = (self.head(i) << (64 - HEAD_BITS)).to_be_bytes();
        out.extend_from_slice(&head[..len.min(HEAD_LEN)]);
        copy_bytes(self.view, tail, len.saturating_sub(HEAD_LEN), out);
    }
}

fn copy_bytes(view: View<'_>, at: usize, len: usize, out: &mut Vec<u8>) {
    let end = out.len() + len;
    (0..len).step_by(8).for_each(|i| out.extend_from_slice(&view.eight(at + i).to_be_bytes()));
    out.truncate(end);
}

/// A decoded inner node.
#[derive(Default)]
pub(crate) struct Children {
    pub(crate) nodes: Vec<NodeRef>,
    pub(crate) separators: Keys,
}

impl Children {
    /// The children of a node. For the writer.
    pub(crate) fn of(inner: Inner<'_>) -> Children {
        let mut children = Children::default();
        let mut separator = vec![];
        children.nodes.extend((0..inner.count).map(|i| inner.child(i)));
        for i in 0..inner.count - 1 {
            inner.separator(i, &mut separator);
            children.separators.push(&separator);
        }
        children
    }

    /// Puts nodes in the place of some children, with what separates them from each other.
    pub(crate) fn replace(&mut self, range: Range<usize>, nodes: &[NodeRef], separators: &[Vec<u8>]) {
        let (first, count) = (range.start, range.len());
        self.nodes.splice(range, nodes.iter().copied());
        // `count` children have `count - 1` separators between them; if no node replaces them, a separator next to them is removed as well.
        let removed = if nodes.is_empty() {
            let from = first.saturating_sub(1);
            from..(from + count).min(self.separators.len())
        } else {
            first..first + count - 1
        };
        let at = removed.start;
        self.separators.remove(removed);
        separators.iter().rev().for_each(|separator| self.separators.insert(at, separator));
    }

    /// The node of some children. It can be longer than a node.
    pub(crate) fn encode(&self, range: Range<usize>, lines_of: impl Fn(NodeRef) -> u32, out: &mut Vec<u8>) {
        let (count, separators) = (range.len(), range.start..range.end - 1);
        let prefix = match separators.is_empty() {
            true => &[],
            false => {
                let (first, last) = (self.separators.get(separators.start), self.separators.get(separators.end - 1));
                &first[..common(first, last)]
            }
        };
        let rest = |i: usize| &self.separators.get(i)[prefix.len()..];
        out.clear();
        out.resize(8 * CHILDREN_WORD, 0);
        out[8 * PREFIX_WORD..8 * HINTS_WORD].copy_from_slice(&head(prefix).to_be_bytes());
        for i in range.clone() {
            let left = if i == range.start { 0 } else { short_head(rest(i - 1)) };
            out.extend_from_slice(&child_word(left, self.nodes[i], lines_of(self.nodes[i])).to_be_bytes());
        }
        let mut tail_at = out.len() + 4 * separators.len() + prefix.len();
        for i in separators.clone() {
            let len = rest(i).len();
            // A place beyond 64 KiB is cut: the node is too long, and the caller makes several of it.
            out.extend_from_slice(&(((tail_at & 0xffff) << 16 | len) as u32).to_be_bytes());
            tail_at += len.saturating_sub(HEAD_LEN);
        }
        out.extend_from_slice(prefix);
        separators.clone().for_each(|i| out.extend_from_slice(rest(i).get(HEAD_LEN..).unwrap_or_default()));
        if !separators.is_empty() {
            hints::write::<HINT_WORDS>(out, HINTS_WORD, separators.len(), |_, i| {
                hint(short_head(rest(separators.start + i)))
            });
        }
        let used = out.len().min(usize::from(u16::MAX));
        let head = Head { kind: Kind::Inner as u8, count, used, prefix_len: prefix.len(), ..Head::default() };
        out[..8].copy_from_slice(&head.to_bytes()[..8]);
    }
}
