//! Nodes in memory: references to them, and reading their bytes while the writer changes them.
//!
//! Lives here:       node references, loads of single fields, the head of a node, decoded keys.
//! Lives elsewhere:  leaves (`leaf`), inner nodes (`inner`).
//! May be called by: everything that looks at nodes.
//!
//! A node is a run of bytes in a block, big-endian in 64-bit words, so eight bytes from any place compare as one number.
//! A reader next to the writer can see halves of two contents. So no load here fails: what lies after the end reads as zero, and
//! the reader checks the version before it trusts what it found.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::arena::{Arena, LINE_BYTES};
use crate::blocks::BLOCK_LINES_MAX;
use crate::key::head;

/// The longest node.
pub(crate) const NODE_BYTES_MAX: usize = BLOCK_LINES_MAX as usize * LINE_BYTES;
/// The same in words.
pub(crate) const NODE_WORDS_MAX: usize = NODE_BYTES_MAX / 8;

/// Where a node is: its first line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeRef(pub(crate) u32);

impl NodeRef {
    /// No node. No arena has so many lines.
    pub(crate) const NONE: NodeRef = NodeRef(u32::MAX);
}

impl Default for NodeRef {
    fn default() -> NodeRef {
        NodeRef::NONE
    }
}

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A leaf of keys of one length that differ in their last eight bytes only, as differences from the first one.
    Numbers = 1,
    /// A leaf of keys of one length, each with what follows the common prefix.
    Rows = 2,
    /// A leaf of any keys, each with what follows the part that it shares with the key before.
    Coded = 3,
    /// Children and what separates them.
    Inner = 4,
}

/// The first sixteen bytes of a node.
///
/// | bits of word 0 | field        | bits of word 1 | field                                   |
/// |---------------:|--------------|---------------:|-----------------------------------------|
/// |         56..64 | `kind`       |         48..64 | `key_len` of `Numbers` and `Rows`       |
/// |         32..48 | `count`      |         32..48 | `width` of a key in an entry, of these  |
/// |         16..32 | `used` bytes |         16..32 | `groups` of `Coded`                     |
/// |          0..16 | `prefix_len` |          0..16 | `shift` of a hint of `Numbers`          |
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) kind: u8,
    pub(crate) count: usize,
    pub(crate) used: usize,
    pub(crate) prefix_len: usize,
    pub(crate) key_len: usize,
    pub(crate) width: usize,
    pub(crate) groups: usize,
    /// By how many bits a number is shifted to be a hint.
    pub(crate) shift: usize,
}

pub(crate) const HEAD_BYTES: usize = 16;

impl Head {
    #[inline]
    pub(crate) fn of_words(first: u64, second: u64) -> Head {
        let half = |word: u64, shift: u32| usize::from((word >> shift) as u16);
        Head {
            kind: (first >> 56) as u8,
            count: half(first, 32),
            used: half(first, 16),
            prefix_len: half(first, 0),
            key_len: half(second, 48),
            width: half(second, 32),
            groups: half(second, 16),
            shift: half(second, 0),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let first =
            u64::from(self.kind) << 56 | (self.count as u64) << 32 | (self.used as u64) << 16 | self.prefix_len as u64;
        let second =
            (self.key_len as u64) << 48 | (self.width as u64) << 32 | (self.groups as u64) << 16 | self.shift as u64;
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&first.to_be_bytes());
        bytes[8..].copy_from_slice(&second.to_be_bytes());
        bytes
    }

    pub(crate) fn of_bytes(bytes: &[u8]) -> Head {
        Head::of_words(head(bytes), head(&bytes[8..]))
    }

    pub(crate) fn is_inner(self) -> bool {
        self.kind == Kind::Inner as u8
    }
}

/// A node's words, and those after it up to the size of the longest node.
#[derive(Clone, Copy)]
pub(crate) struct View<'a>(&'a [AtomicU64; NODE_WORDS_MAX]);

impl<'a> View<'a> {
    /// The node's words; none if the reference is none, or half of two.
    #[inline]
    pub(crate) fn of(arena: &'a Arena, node: NodeRef) -> Option<View<'a>> {
        arena.words(node.0).map(View)
    }

    #[inline]
    pub(crate) fn word(self, i: usize) -> u64 {
        self.0.get(i).map_or(0, |word| word.load(Relaxed))
    }

    #[inline]
    pub(crate) fn head(self) -> Head {
        Head::of_words(self.word(0), self.word(1))
    }

    /// Eight bytes from this one on.
    #[inline]
    pub(crate) fn eight(self, byte: usize) -> u64 {
        let (i, shift) = (byte / 8, byte % 8 * 8);
        self.word(i) << shift | (self.word(i + 1) >> 1) >> (63 - shift)
    }

    /// The first `len` bytes of eight, as a number; `len` is at most 8.
    #[inline]
    pub(crate) fn number(self, byte: usize, len: usize) -> u64 {
        match len {
            0 => 0,
            len => self.eight(byte) >> (64 - 8 * len.min(8)),
        }
    }

    #[inline]
    pub(crate) fn u16(self, byte: usize) -> usize {
        self.number(byte, 2) as usize
    }

    /// Starts fetching the line of a byte.
    #[inline]
    pub(crate) fn prefetch(self, byte: usize) {
        if let Some(word) = self.0.get(byte / 8) {
            crate::arena::prefetch(word);
        }
    }

    /// How many bytes the `len` bytes from `byte` on have in common with the beginning of `key`.
    #[inline]
    pub(crate) fn common(self, byte: usize, len: usize, key: &[u8]) -> usize {
        let limit = len.min(key.len());
        let mut at = 0;
        while at < limit {
            let differing = self.eight(byte + at) ^ head(&key[at..]);
            if differing != 0 {
                return limit.min(at + differing.leading_zeros() as usize / 8);
            }
            at += 8;
        }
        limit
    }

    /// How the `len` bytes from `byte` on compare with `key`.
    #[inline]
    pub(crate) fn compare(self, byte: usize, len: usize, key: &[u8]) -> Ordering {
        let common = self.common(byte, len, key);
        if common < len && common < key.len() {
            return (self.eight(byte + common) >> 56).cmp(&u64::from(key[common]));
        }
        len.cmp(&key.len())
    }

    /// Appends the first `len` bytes.
    pub(crate) fn copy(self, len: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + len.next_multiple_of(8), 0);
        for (bytes, word) in out[start..].as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *bytes = word.load(Relaxed).to_be_bytes();
        }
        out.truncate(start + len);
    }

    /// Writes bytes from the node's first on. Only words that differ are stored. For the writer, while readers are kept from trusting
    /// the node, or where nobody can reach it.
    pub(crate) fn store(self, bytes: &[u8]) {
        assert!(bytes.len() <= NODE_BYTES_MAX, "nodes fit their blocks");
        let (words, end) = bytes.as_chunks::<8>();
        let put = |i: usize, value: u64| {
            if self.word(i) != value {
                self.store_word(i, value);
            }
        };
        words.iter().enumerate().for_each(|(i, bytes)| put(i, u64::from_be_bytes(*bytes)));
        if !end.is_empty() {
            put(words.len(), head(end));
        }
    }

    /// Writes one word, as `store`.
    pub(crate) fn store_word(self, i: usize, value: u64) {
        self.0[i].store(value, Relaxed);
    }

    /// Writes the first `len` bytes of a number's last ones from `byte` on, as `store`.
    pub(crate) fn store_number(self, byte: usize, len: usize, value: u64) {
        for i in 0..len {
            let (at, shift) = ((byte + i) / 8, 56 - (byte + i) % 8 * 8);
            let new = value >> (8 * (len - 1 - i)) & 0xff;
            let word = &self.0[at];
            word.store(word.load(Relaxed) & !(0xff << shift) | new << shift, Relaxed);
        }
    }
}

/// Keys, one after the other.
#[derive(Clone, Default, Debug)]
pub(crate) struct Keys {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Keys {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    #[inline]
    fn start(&self, i: usize) -> usize {
        if i == 0 { 0 } else { self.ends[i - 1] as usize }
    }

    #[inline]
    pub(crate) fn get(&self, i: usize) -> &[u8] {
        &self.bytes[self.start(i)..self.ends[i] as usize]
    }

    pub(crate) fn last(&self) -> Option<&[u8]> {
        self.len().checked_sub(1).map(|last| self.get(last))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i))
    }

    #[inline]
    pub(crate) fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len() as u32);
    }

    /// Appends a key that begins with `shared` bytes of the last one.
    #[inline]
    pub(crate) fn push_coded(&mut self, shared: usize, suffix: &[u8]) {
        let start = self.len().checked_sub(1).map_or(0, |last| self.start(last));
        self.bytes.extend_from_within(start..start + shared);
        self.push(suffix);
    }

    /// Appends a key of two parts.
    #[inline]
    pub(crate) fn push_joined(&mut self, prefix: &[u8], suffix: &[u8]) {
        self.bytes.extend_from_slice(prefix);
        self.push(suffix);
    }

    pub(crate) fn insert(&mut self, i: usize, key: &[u8]) {
        let start = self.start(i);
        self.bytes.splice(start..start, key.iter().copied());
        self.ends[i..].iter_mut().for_each(|end| *end += key.len() as u32);
        self.ends.insert(i, (start + key.len()) as u32);
    }

    pub(crate) fn remove(&mut self, range: std::ops::Range<usize>) {
        if range.is_empty() {
            return;
        }
        let (start, end) = (self.start(range.start), self.ends[range.end - 1] as usize);
        self.bytes.drain(start..end);
        self.ends.drain(range.clone());
        self.ends[range.start..].iter_mut().for_each(|of| *of -= (end - start) as u32);
    }

    /// How many keys are below `key`.
    pub(crate) fn below(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.get(middle) < key { low = middle + 1 } else { high = middle }
        }
        low
    }
}

/// Keys and their values.
#[derive(Clone, Default, Debug)]
pub(crate) struct Entries {
    pub(crate) keys: Keys,
    pub(crate) values: Vec<u64>,
}

impl Entries {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    #[inline]
    pub(crate) fn key(&self, i: usize) -> &[u8] {
        self.keys.get(i)
    }

    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.values.clear();
    }

    /// Makes room for entries with so many bytes of keys.
    pub(crate) fn reserve(&mut self, count: usize, key_bytes: usize) {
        self.keys.bytes.reserve(key_bytes);
        self.keys.ends.reserve(count);
        self.values.reserve(count);
    }

    #[inline]
    pub(crate) fn push(&mut self, key: &[u8], value: u64) {
        self.keys.push(key);
        self.values.push(value);
    }

    pub(crate) fn insert(&mut self, i: usize, key: &[u8], value: u64) {
        self.keys.insert(i, key);
        self.values.insert(i, value);
    }

    pub(crate) fn remove(&mut self, range: std::ops::Range<usize>) {
        self.keys.remove(range.clone());
        self.values.drain(range);
    }
}
