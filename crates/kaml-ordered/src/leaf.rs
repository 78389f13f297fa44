//! Leaves: sorted keys with their values, in one of three encodings.
//!
//! Lives here:       looking a key up, encoding, changes that leave the encoding as it is.
//! Lives elsewhere:  decoding (`decode`), what a value is (`tree`), when leaves split and merge (`writer`).
//! May be called by: the tree, its writer, cursors and the builder.
//!
//! ```text
//!  Numbers  ┌ head 16 B ┬ base 8 B ┬ hints 40 B ┬ prefix ┬ entries: difference to base, value ┐
//!  Rows     ┌ head 16 B ┬ hints 40 B ┬ prefix ┬ entries: remainder of the key, value ┐
//!  Coded    ┌ head 16 B ┬ place of each group, 2 B ┬ prefix ┬ groups ┐
//!  group    ┌ first: length, rest of the key, value ┬ next: shared, length, rest, value ┬ … ┐   up to 16 entries
//! ```
//!
//! The *prefix* is what all keys of the leaf begin with. `Numbers` keeps the last eight bytes of its keys (or all, if they have fewer) as a number,
//! less that of the first key, in as few bytes as the largest takes: random 64-bit keys take six bytes when there are millions.
//! `Rows` and `Coded` are chosen by size. In `Coded`, *shared* counts the bytes that an entry has in common with the one before it, after
//! the prefix. Lengths take one byte below 128, two above.
//!
//! The first line of `Numbers` and `Rows` has hints of their entries (`hints`).

use std::cmp::Ordering;
use std::ops::Range;

use crate::arena::LINE_BYTES;
use crate::hints::{self, HINT_BITS};
use crate::key::{common, head as key_head};
use crate::node::{Entries, HEAD_BYTES, Head, Kind, View};

/// Entries of a leaf at most: what a change moves stays small.
pub(crate) const ENTRIES_MAX: usize = 128;
pub(crate) const BASE_BYTES: usize = 8;
/// Hints of a leaf of numbers or rows: what a line has room for after head and base.
const HINT_WORDS: usize = 5;
pub(crate) const HINT_BYTES: usize = 8 * HINT_WORDS;
/// The first word of the hints.
const NUMBERS_HINTS: usize = 3;
const ROWS_HINTS: usize = 2;
/// Entries of a group at most.
pub(crate) const GROUP: usize = 16;

/// Where the value of a key is in its leaf, in bytes; none if the key does not exist. Next to the writer the answer can be wrong; it never
/// fails.
#[inline]
pub(crate) fn find(view: View<'_>, head: &Head, key: &[u8], value_bytes: usize) -> Option<usize> {
    if head.kind == Kind::Numbers as u8 {
        let (at, difference) = position(view, head, key, value_bytes)?;
        let entry = numbers_at(head) + at * (head.width + value_bytes);
        (at < head.count && view.number(entry, head.width) == difference).then_some(entry + head.width)
    } else if head.kind == Kind::Rows as u8 {
        let at = row_position(view, head, key, value_bytes).ok()?;
        Some(rows_at(head) + at * (head.width + value_bytes) + head.width)
    } else {
        find_coded(view, head, key, value_bytes)
    }
}

/// Starts fetching the entries among which a key is, of a leaf whose first line is in the cache.
#[inline]
pub(crate) fn prefetch(view: View<'_>, head: &Head, key: &[u8], value_bytes: usize) {
    let Some(rest) = key.get(head.prefix_len..) else { return };
    let (start, (low, high)) = if head.kind == Kind::Numbers as u8 {
        let hint = number_of(rest).wrapping_sub(view.word(2)) >> head.shift.min(63);
        let hint = hint & ((1 << HINT_BITS) - 1);
        (numbers_at(head), hints::between::<HINT_WORDS>(view, NUMBERS_HINTS, hint, head.count))
    } else if head.kind == Kind::Rows as u8 {
        (rows_at(head), hints::between::<HINT_WORDS>(view, ROWS_HINTS, row_hint(rest), head.count))
    } else {
        return;
    };
    let step = head.width + value_bytes;
    let (from, to) = (start + low * step, start + (high + 1) * step);
    (from / LINE_BYTES..to.div_ceil(LINE_BYTES)).for_each(|line| view.prefetch(line * LINE_BYTES));
}

/// How many entries of a leaf of numbers are below the key, and its difference to the base; none if it does not fit the encoding.
#[inline]
pub(crate) fn position(view: View<'_>, head: &Head, key: &[u8], value_bytes: usize) -> Option<(usize, u64)> {
    let prefix_len = head.prefix_len;
    if key.len() != head.key_len || prefix_len > key.len() {
        return None;
    }
    if view.common(HEAD_BYTES + BASE_BYTES + HINT_BYTES, prefix_len, key) < prefix_len {
        return None;
    }
    let difference = number_of(&key[prefix_len..]).checked_sub(view.word(2))?;
    let hint = difference >> head.shift.min(63);
    if hint >> HINT_BITS != 0 || head.width < 8 && difference >> (8 * head.width) != 0 {
        return None;
    }
    let (mut low, high) = hints::between::<HINT_WORDS>(view, NUMBERS_HINTS, hint, head.count);
    let (start, step) = (numbers_at(head), head.width + value_bytes);
    view.prefetch(start + low * step);
    view.prefetch(start + high * step);
    let mut count = high - low;
    while count > 0 {
        let half = count / 2;
        let is_below = view.number(start + (low + half) * step, head.width) < difference;
        low = std::hint::select_unpredictable(is_below, low + half + 1, low);
        count = std::hint::select_unpredictable(is_below, count - half - 1, half);
    }
    Some((low, difference))
}

/// Writes the hints of a leaf of numbers or rows, whose entries are in their places.
fn write_hints(out: &mut [u8], head: &Head, value_bytes: usize) {
    let is_numbers = head.kind == Kind::Numbers as u8;
    let (word, start) = if is_numbers { (NUMBERS_HINTS, numbers_at(head)) } else { (ROWS_HINTS, rows_at(head)) };
    hints::write::<HINT_WORDS>(out, word, head.count, |out, i| {
        let at = start + i * (head.width + value_bytes);
        let entry = &out[at..at + head.width];
        if is_numbers { number_of(entry) >> head.shift } else { row_hint(entry) }
    });
}

#[inline]
fn row_hint(rest: &[u8]) -> u64 {
    key_head(rest) >> (64 - HINT_BITS)
}

#[inline]
pub(crate) fn numbers_at(head: &Head) -> usize {
    HEAD_BYTES + BASE_BYTES + HINT_BYTES + head.prefix_len
}

#[inline]
pub(crate) fn rows_at(head: &Head) -> usize {
    HEAD_BYTES + HINT_BYTES + head.prefix_len
}

/// Up to eight bytes as a number.
#[inline]
pub(crate) fn number_of(bytes: &[u8]) -> u64 {
    match bytes.len() {
        0 => 0,
        len => key_head(bytes) >> (64 - 8 * len.min(8)),
    }
}

/// Where a key of a leaf of rows is, or would be; none as `Err(None)` if it does not fit the encoding.
fn row_position(view: View<'_>, head: &Head, key: &[u8], value_bytes: usize) -> Result<usize, Option<usize>> {
    let prefix_len = head.prefix_len;
    if key.len() != head.key_len || prefix_len > key.len() || head.width != key.len() - prefix_len {
        return Err(None);
    }
    if view.common(HEAD_BYTES + HINT_BYTES, prefix_len, key) < prefix_len {
        return Err(None);
    }
    let (rest, start, step) = (&key[prefix_len..], rows_at(head), head.width + value_bytes);
    let (mut low, mut high) = hints::between::<HINT_WORDS>(view, ROWS_HINTS, row_hint(rest), head.count);
    (low..high).for_each(|i| view.prefetch(start + i * step));
    while low < high {
        let middle = (low + high) / 2;
        match view.compare(start + middle * step, rest.len(), rest) {
            Ordering::Less => low = middle + 1,
            Ordering::Equal => return Ok(middle),
            Ordering::Greater => high = middle,
        }
    }
    Err(Some(low))
}

/// A length, and how many bytes it takes.
#[inline]
fn length_at(view: View<'_>, at: usize) -> (usize, usize) {
    let two = view.u16(at);
    match two >> 8 {
        one @ ..128 => (one, 1),
        low => (low & 127 | (two & 255) << 7, 2),
    }
}

fn find_coded(view: View<'_>, head: &Head, key: &[u8], value_bytes: usize) -> Option<usize> {
    let (prefix_len, groups) = (head.prefix_len, head.groups);
    let prefix_at = HEAD_BYTES + 2 * groups;
    if key.len() < prefix_len || view.common(prefix_at, prefix_len, key) < prefix_len {
        return None;
    }
    let rest = &key[prefix_len..];
    let group_at = |group: usize| view.u16(HEAD_BYTES + 2 * group);
    let (mut low, mut high) = (0, groups);
    while low < high {
        let middle = (low + high) / 2;
        let at = group_at(middle);
        let (len, bytes) = length_at(view, at);
        match view.compare(at + bytes, len, rest) {
            Ordering::Equal => return Some(at + bytes + len),
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
        }
    }
    let group = low.checked_sub(1)?;
    let end = if low < groups { group_at(low) } else { head.used };
    let mut at = group_at(group);
    let (len, bytes) = length_at(view, at);
    let mut matched = view.common(at + bytes, len, rest);
    at += bytes + len + value_bytes;
    // All entries so far are below the key and have `matched` bytes in common with it.
    while at < end {
        let (shared, bytes) = length_at(view, at);
        at += bytes;
        let (len, bytes) = length_at(view, at);
        at += bytes;
        if shared < matched {
            return None;
        }
        if shared == matched {
            let more = view.common(at, len, &rest[matched..]);
            let key_ends = matched + more == rest.len();
            if more == len && key_ends {
                return Some(at + len);
            }
            if key_ends || more < len && view.number(at + more, 1) > u64::from(rest[matched + more]) {
                return None;
            }
            matched += more;
        }
        at += len + value_bytes;
    }
    None
}

/// The leaf of some entries, in the encoding that suits them. It can be longer than a node.
pub(crate) fn encode(entries: &Entries, range: Range<usize>, value_bytes: usize, out: &mut Vec<u8>) {
    out.clear();
    let (first, last) = (entries.key(range.start), entries.key(range.end - 1));
    let prefix_len = common(first, last);
    let is_one_length = range.clone().all(|i| entries.key(i).len() == first.len());
    if is_one_length && first.len() <= prefix_len + 8 {
        return encode_numbers(entries, range, value_bytes, out);
    }
    encode_coded(entries, range.clone(), prefix_len, value_bytes, out);
    let width = first.len().wrapping_sub(prefix_len);
    if is_one_length
        && HEAD_BYTES + HINT_BYTES + prefix_len + range.len() * (width + value_bytes) <= out.len() + out.len() / 16
    {
        encode_rows(entries, range, prefix_len, value_bytes, out);
    }
}

fn encode_numbers(entries: &Entries, range: Range<usize>, value_bytes: usize, out: &mut Vec<u8>) {
    let (first, last) = (entries.key(range.start), entries.key(range.end - 1));
    let prefix_len = first.len().saturating_sub(8);
    let base = number_of(&first[prefix_len..]);
    let largest = number_of(&last[prefix_len..]) - base;
    let width = (8 - largest.leading_zeros() as usize / 8).max(1);
    // A key above the largest fits while it has no more bits, in at least as many as the hints take.
    let shift = (64 - largest.leading_zeros()).saturating_sub(HINT_BITS) as usize;
    out.resize(HEAD_BYTES, 0);
    out.extend_from_slice(&base.to_be_bytes());
    out.resize(out.len() + HINT_BYTES, 0);
    out.extend_from_slice(&first[..prefix_len]);
    let count = range.len();
    for i in range {
        let difference = number_of(&entries.key(i)[prefix_len..]) - base;
        push_number(out, width, difference);
        push_number(out, value_bytes, entries.values[i]);
    }
    let head =
        Head { kind: Kind::Numbers as u8, count, prefix_len, key_len: first.len(), width, shift, ..Head::default() };
    write_hints(out, &head, value_bytes);
    finish(out, head);
}

fn encode_rows(entries: &Entries, range: Range<usize>, prefix_len: usize, value_bytes: usize, out: &mut Vec<u8>) {
    out.clear();
    let first = entries.key(range.start);
    out.resize(HEAD_BYTES + HINT_BYTES, 0);
    out.extend_from_slice(&first[..prefix_len]);
    let count = range.len();
    for i in range {
        out.extend_from_slice(&entries.key(i)[prefix_len..]);
        push_number(out, value_bytes, entries.values[i]);
    }
    let width = first.len() - prefix_len;
    let head = Head { kind: Kind::Rows as u8, count, prefix_len, key_len: first.len(), width, ..Head::default() };
    write_hints(out, &head, value_bytes);
    finish(out, head);
}

fn encode_coded(entries: &Entries, range: Range<usize>, prefix_len: usize, value_bytes: usize, out: &mut Vec<u8>) {
    let (count, start) = (range.len(), range.start);
    let groups = count.div_ceil(GROUP);
    out.resize(HEAD_BYTES + 2 * groups, 0);
    out.extend_from_slice(&entries.key(start)[..prefix_len]);
    for i in range {
        let rest = &entries.key(i)[prefix_len..];
        // Groups of equal size, so none is full.
        let group = (i - start) * groups / count;
        let is_first = i == start || (i - start - 1) * groups / count != group;
        let shared = if is_first { 0 } else { common(&entries.key(i - 1)[prefix_len..], rest) };
        if is_first {
            let at = u16::try_from(out.len()).unwrap_or(u16::MAX).to_be_bytes(); // too long for a node: the caller cuts it
            out[HEAD_BYTES + 2 * group..][..2].copy_from_slice(&at);
        } else {
            push_length(out, shared);
        }
        push_length(out, rest.len() - shared);
        out.extend_from_slice(&rest[shared..]);
        push_number(out, value_bytes, entries.values[i]);
    }
    finish(out, Head { kind: Kind::Coded as u8, count, prefix_len, groups, ..Head::default() });
}

fn finish(out: &mut [u8], head: Head) {
    let used = out.len().min(usize::from(u16::MAX)); // too long for a node: the caller cuts it
    out[..HEAD_BYTES].copy_from_slice(&Head { used, ..head }.to_bytes());
}

fn push_number(out: &mut Vec<u8>, bytes: usize, number: u64) {
    out.extend_from_slice(&number.to_be_bytes()[8 - bytes..]);
}

fn push_length(out: &mut Vec<u8>, len: usize) {
    match len {
        ..128 => out.push(len as u8),
        _ => out.extend_from_slice(&[len as u8 | 128, (len >> 7) as u8]),
    }
}

/// A change of one entry that a leaf's encoding allows.
pub(crate) enum Splice {
    /// Insert an entry before this one, with this many bytes of key.
    Insert(usize, RestOfKey, u64),
    /// Remove this entry.
    Remove(usize),
}

/// What an entry of `Numbers` or `Rows` holds of a key.
pub(crate) enum RestOfKey {
    /// The difference to the base.
    Difference(u64),
    /// Bytes of the key from here on.
    From(usize),
}

/// How the key could be inserted without encoding the leaf again; none if that is impossible.
pub(crate) fn insertion(view: View<'_>, head: &Head, key: &[u8], value: u64, value_bytes: usize) -> Option<Splice> {
    if head.count >= ENTRIES_MAX {
        return None;
    }
    if head.kind == Kind::Numbers as u8 {
        let (at, difference) = position(view, head, key, value_bytes)?;
        return Some(Splice::Insert(at, RestOfKey::Difference(difference), value));
    }
    if head.kind == Kind::Rows as u8 {
        let at = row_position(view, head, key, value_bytes).err()??;
        return Some(Splice::Insert(at, RestOfKey::From(head.prefix_len), value));
    }
    None
}

/// How the entry whose value is at this byte could be removed without encoding the leaf again.
pub(crate) fn removal(head: &Head, value_at: usize, value_bytes: usize) -> Option<Splice> {
    let start = match head.kind {
        kind if kind == Kind::Numbers as u8 => numbers_at(head),
        kind if kind == Kind::Rows as u8 => rows_at(head),
        _ => return None,
    };
    (head.count > 1).then(|| Splice::Remove((value_at - start) / (head.width + value_bytes)))
}

/// Changes a leaf's bytes.
pub(crate) fn splice(bytes: &mut Vec<u8>, head: &Head, key: &[u8], change: &Splice, value_bytes: usize) {
    let start = if head.kind == Kind::Numbers as u8 { numbers_at(head) } else { rows_at(head) };
    let step = head.width + value_bytes;
    bytes.truncate(head.used);
    let count = match *change {
        Splice::Insert(at, ref rest, value) => {
            let at = start + at * step;
            let end = bytes.len();
            bytes.resize(end + step, 0);
            bytes.copy_within(at..end, at + step);
            match *rest {
                RestOfKey::Difference(difference) => {
                    bytes[at..at + head.width].copy_from_slice(&difference.to_be_bytes()[8 - head.width..]);
                }
                RestOfKey::From(from) => bytes[at..at + head.width].copy_from_slice(&key[from..]),
            }
            bytes[at + head.width..at + step].copy_from_slice(&value.to_be_bytes()[8 - value_bytes..]);
            head.count + 1
        }
        Splice::Remove(at) => {
            let at = start + at * step;
            bytes.drain(at..at + step);
            head.count - 1
        }
    };
    let head = Head { count, ..*head };
    write_hints(bytes, &head, value_bytes);
    finish(bytes, head);
}

/// Bytes that a checkpoint image of the leaf's entries takes at most.
pub(crate) fn image_bytes_max(head: &Head, value_bytes: usize) -> u64 {
    let bytes = match head.kind {
        kind if kind == Kind::Numbers as u8 => {
            head.prefix_len + head.count * (2 + 2 + head.key_len.min(8) + value_bytes)
        }
        kind if kind == Kind::Rows as u8 => head.used + 4 * head.count,
        _ => head.used + head.count + 2 * head.groups + head.prefix_len + 4,
    };
    bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::decode::decode;
    use crate::node::NodeRef;
    use proptest::prelude::*;

    /// Stores a leaf where a reader finds it.
    fn stored(arena: &Arena, bytes: &[u8]) -> NodeRef {
        let node = NodeRef(0);
        View::of(arena, node).unwrap().store(bytes);
        node
    }

    fn keys() -> impl Strategy<Value = std::collections::BTreeSet<Vec<u8>>> {
        let free = prop::collection::vec(any::<u8>(), 1..20);
        let few = prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 1..12);
        let eight = any::<u64>().prop_map(|n| n.to_be_bytes().to_vec());
        let close = any::<u16>().prop_map(|n| [b"a long common prefix".as_slice(), &n.to_be_bytes()].concat());
        let wide = prop::collection::vec(any::<u8>(), 30..31);
        let one = |one: BoxedStrategy<Vec<u8>>| prop::collection::btree_set(one, 1..60).boxed();
        prop_oneof![one(free.boxed()), one(few.boxed()), one(eight.boxed()), one(close.boxed()), one(wide.boxed()),]
    }

    proptest! {
        /// Goal:   every encoding returns what was encoded, finds what exists and nothing else, and takes changes in place.
        /// Method: key sets of the shapes that lead to each encoding; all keys, their neighbours and their prefixes are looked up;
        ///         splices are compared with encoding the changed entries.
        #[test]
        fn leaves_are_maps(keys in keys(), value_bytes in 1usize..=7, pick: prop::sample::Index) {
            let arena = Arena::reserve(2 << 20).unwrap();
            let mut entries = Entries::default();
            keys.iter().zip(1u64..).for_each(|(key, value)| entries.push(key, value));
            let mut bytes = vec![];
            encode(&entries, 0..entries.len(), value_bytes, &mut bytes);
            prop_assume!(bytes.len() <= 4096);
            let view = View::of(&arena, stored(&arena, &bytes)).unwrap();
            let of = view.head();
            let mut decoded = Entries::default();
            decode(&bytes, value_bytes, &mut decoded);
            prop_assert!(decoded.keys.iter().eq(entries.keys.iter()));
            prop_assert_eq!(&decoded.values, &entries.values);
            for i in 0..entries.len() {
                let at = find(view, &of, entries.key(i), value_bytes).unwrap();
                prop_assert_eq!(view.number(at, value_bytes), entries.values[i]);
            }
            let near = keys.iter().flat_map(|key| {
                let (longer, shorter) = ([key.as_slice(), &[0]].concat(), key[..key.len() - 1].to_vec());
                let mut next = key.clone();
                *next.last_mut().unwrap() ^= 1;
                let mut flipped = key.clone();
                flipped[0] ^= 0x80;
                [longer, shorter, next, flipped]
            });
            for absent in near.filter(|key| !keys.contains(key)) {
                prop_assert_eq!(find(view, &of, &absent, value_bytes), None);
                if let Some(change) = insertion(view, &of, &absent, 77, value_bytes) {
                    let mut spliced = bytes.clone();
                    splice(&mut spliced, &of, &absent, &change, value_bytes);
                    let mut changed = Entries::default();
                    decode(&spliced, value_bytes, &mut changed);
                    let mut wanted = entries.clone();
                    wanted.insert(wanted.keys.below(&absent), &absent, 77);
                    prop_assert!(changed.keys.iter().eq(wanted.keys.iter()));
                    prop_assert_eq!(changed.values, wanted.values);
                }
            }
            let gone = pick.index(entries.len());
            let at = find(view, &of, entries.key(gone), value_bytes).unwrap();
            if let Some(change) = removal(&of, at, value_bytes) {
                let mut spliced = bytes.clone();
                splice(&mut spliced, &of, b"", &change, value_bytes);
                let mut changed = Entries::default();
                decode(&spliced, value_bytes, &mut changed);
                entries.remove(gone..gone + 1);
                prop_assert!(changed.keys.iter().eq(entries.keys.iter()));
            }
        }

        /// Goal:   looking at anything, as a late reader may, ends without a panic.
        /// Method: random words, and leaves with random words among theirs, with every kind.
        #[test]
        fn any_bytes_can_be_looked_at(mut bytes in prop::collection::vec(any::<u8>(), 64..400), kind in 0u8..6, key in prop::collection::vec(any::<u8>(), 1..20)) {
            let arena = Arena::reserve(2 << 20).unwrap();
            bytes[0] = kind;
            let node = stored(&arena, &bytes);
            let view = View::of(&arena, node).unwrap();
            let _ = find(view, &view.head(), &key, 5);
        }
    }
}
