//! Decoding a leaf, whole or in part.
//!
//! Lives here:       the entries of a leaf's bytes; which of them a range asks for.
//! Lives elsewhere:  the encodings (`leaf`), continuing with the next leaf (`range`).
//! May be called by: the tree and cursors.

use std::cmp::Ordering;
use std::ops::{Bound, Range};

use crate::key::{common, head as key_head};
use crate::leaf::{BASE_BYTES, GROUP, HINT_BYTES, number_of, numbers_at, rows_at};
use crate::node::{Entries, HEAD_BYTES, Head, Kind};

/// Which entries of a leaf are wanted.
pub(crate) struct Part<'a> {
    pub(crate) bounds: (Bound<&'a [u8]>, Bound<&'a [u8]>),
    /// At least so many of those within the bounds, from the end that is read first, if there are as many.
    pub(crate) limit: usize,
    /// The last ones.
    pub(crate) is_back: bool,
}

/// Appends the entries of a leaf's bytes.
pub(crate) fn decode(bytes: &[u8], value_bytes: usize, out: &mut Entries) {
    let of = Head::of_bytes(bytes);
    match Fixed::of(bytes, &of, value_bytes) {
        Some(fixed) => fixed.decode(0..of.count, out),
        None => {
            let coded = Coded { bytes, of, value_bytes };
            coded.decode(0..of.groups, out);
        }
    }
}

/// Appends a part of the entries of a leaf's bytes; some outside of its bounds can be among them. Returns whether more entries within the bounds
/// come after these, in the direction of reading.
pub(crate) fn decode_part(bytes: &[u8], value_bytes: usize, part: &Part<'_>, out: &mut Entries) -> bool {
    let of = Head::of_bytes(bytes);
    match Fixed::of(bytes, &of, value_bytes) {
        Some(fixed) => {
            let within = fixed.within(part.bounds);
            let wanted = match part.is_back {
                true => within.start.max(within.end.saturating_sub(part.limit))..within.end,
                false => within.start..within.end.min(within.start + part.limit),
            };
            fixed.decode(wanted.clone(), out);
            wanted.len() < within.len()
        }
        None => Coded { bytes, of, value_bytes }.decode_part(part, out),
    }
}

/// A leaf whose entries have one length.
struct Fixed<'a> {
    prefix: &'a [u8],
    entries: &'a [u8],
    count: usize,
    width: usize,
    value_bytes: usize,
    /// Of `Numbers`: what differences are added to, and the bytes of a number that belong to the key.
    base: Option<(u64, usize)>,
}

impl<'a> Fixed<'a> {
    #[inline]
    fn of(bytes: &'a [u8], of: &Head, value_bytes: usize) -> Option<Fixed<'a>> {
        let (prefix_at, start, base) = if of.kind == Kind::Numbers as u8 {
            let base = (key_head(&bytes[HEAD_BYTES..]), of.key_len - of.prefix_len);
            (HEAD_BYTES + BASE_BYTES + HINT_BYTES, numbers_at(of), Some(base))
        } else if of.kind == Kind::Rows as u8 {
            (HEAD_BYTES + HINT_BYTES, rows_at(of), None)
        } else {
            return None;
        };
        let (prefix, entries) = (&bytes[prefix_at..start], &bytes[start..]);
        Some(Fixed { prefix, entries, count: of.count, width: of.width, value_bytes, base })
    }

    fn decode(&self, range: Range<usize>, out: &mut Entries) {
        out.reserve(range.len(), range.len() * (self.prefix.len() + self.width.max(8)));
        let step = self.width + self.value_bytes;
        let mut at = range.start * step;
        for _ in range {
            match self.base {
                Some((base, tail_len)) => {
                    let number = base + (key_head(&self.entries[at..]) >> (64 - 8 * self.width));
                    out.keys.push_joined(self.prefix, &number.to_be_bytes()[8 - tail_len..]);
                    out.values.push(key_head(&self.entries[at + self.width..]) >> (64 - 8 * self.value_bytes));
                }
                None => {
                    let (rest, value) = self.entries[at..at + step].split_at(self.width);
                    out.keys.push_joined(self.prefix, rest);
                    out.values.push(number_of(value));
                }
            }
            at += step;
        }
    }

    fn compare(&self, i: usize, rest: &[u8]) -> Ordering {
        let own = &self.entries[i * (self.width + self.value_bytes)..];
        match self.base {
            Some((base, tail_len)) => {
                let number = base + (key_head(own) >> (64 - 8 * self.width));
                number.to_be_bytes()[8 - tail_len..].cmp(rest)
            }
            None => own[..self.width].cmp(rest),
        }
    }

    /// The entries within bounds.
    fn within(&self, (lower, upper): (Bound<&[u8]>, Bound<&[u8]>)) -> Range<usize> {
        let start = match lower {
            Bound::Unbounded => 0,
            Bound::Included(key) => self.up_to(key, false),
            Bound::Excluded(key) => self.up_to(key, true),
        };
        let end = match upper {
            Bound::Unbounded => self.count,
            Bound::Included(key) => self.up_to(key, true),
            Bound::Excluded(key) => self.up_to(key, false),
        };
        start..end.max(start)
    }

    /// How many keys are below `key`, or, `with` it, not above it.
    fn up_to(&self, key: &[u8], with: bool) -> usize {
        let prefix_len = self.prefix.len();
        let shared = common(self.prefix, key);
        if shared < prefix_len {
            let is_below = shared < key.len() && self.prefix[shared] < key[shared];
            return if is_below { self.count } else { 0 };
        }
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = (low + high) / 2;
            match self.compare(middle, &key[prefix_len..]) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return middle + usize::from(with),
                Ordering::Greater => high = middle,
            }
        }
        low
    }
}

/// A leaf of groups, of which only the first entry is whole.
struct Coded<'a> {
    bytes: &'a [u8],
    of: Head,
    value_bytes: usize,
}

impl Coded<'_> {
    fn prefix(&self) -> &[u8] {
        let prefix_at = HEAD_BYTES + 2 * self.of.groups;
        &self.bytes[prefix_at..prefix_at + self.of.prefix_len]
    }

    fn start_of(&self, group: usize) -> usize {
        let at = HEAD_BYTES + 2 * group;
        usize::from(u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    fn length(&self, at: &mut usize) -> usize {
        let one = usize::from(self.bytes[*at]);
        *at += 1;
        if one < 128 {
            return one;
        }
        *at += 1;
        one & 127 | usize::from(self.bytes[*at - 1]) << 7
    }

    fn decode(&self, groups: Range<usize>, out: &mut Entries) {
        for group in groups {
            let mut at = self.start_of(group);
            let end = if group + 1 < self.of.groups { self.start_of(group + 1) } else { self.of.used };
            let mut is_first = true;
            while at < end {
                let shared = if is_first { 0 } else { self.length(&mut at) };
                let len = self.length(&mut at);
                let rest = &self.bytes[at..at + len];
                if is_first {
                    out.keys.push_joined(self.prefix(), rest);
                } else {
                    out.keys.push_coded(self.of.prefix_len + shared, rest);
                }
                is_first = false;
                at += len;
                out.values.push(number_of(&self.bytes[at..at + self.value_bytes]));
                at += self.value_bytes;
            }
        }
    }

    /// How the first key of a group compares with `key`.
    fn compare(&self, group: usize, key: &[u8]) -> Ordering {
        let (prefix, shared) = (self.prefix(), common(self.prefix(), key));
        if shared < prefix.len() {
            return if shared < key.len() { prefix[shared].cmp(&key[shared]) } else { Ordering::Greater };
        }
        let mut at = self.start_of(group);
        let len = self.length(&mut at);
        self.bytes[at..at + len].cmp(&key[prefix.len()..])
    }

    /// How many groups begin below `key` or with it.
    fn begun(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.of.groups);
        while low < high {
            let middle = (low + high) / 2;
            if self.compare(middle, key).is_le() { low = middle + 1 } else { high = middle }
        }
        low
    }

    fn decode_part(&self, part: &Part<'_>, out: &mut Entries) -> bool {
        let first = match part.bounds.0 {
            Bound::Unbounded => 0,
            Bound::Included(key) | Bound::Excluded(key) => self.begun(key).saturating_sub(1),
        };
        let end = match part.bounds.1 {
            Bound::Unbounded => self.of.groups,
            Bound::Included(key) | Bound::Excluded(key) => self.begun(key).max(first),
        };
        // The group at a bound can have entries beyond it.
        let wanted = part.limit + GROUP;
        if part.is_back {
            let least = (self.of.count / self.of.groups.max(1)).max(1);
            let start = first.max(end.saturating_sub(wanted.div_ceil(least)));
            self.decode(start..end, out);
            return start > first;
        }
        let mut next = first;
        while next < end && out.len() < wanted {
            self.decode(next..next + 1, out);
            next += 1;
        }
        next < end
    }
}
