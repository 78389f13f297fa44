//! The tree as readers see it: optimistic descents next to one writer.
//!
//! Lives here:       look-ups, batches, reading a whole leaf with what bounds it, counting.
//! Lives elsewhere:  every change (`writer`), why reading is sound (`versions`), the bytes of nodes (`leaf`, `inner`).
//! May be called by: the public types, cursors, the writer.
//!
//! Invariants
//! - The root names a complete tree, or nothing if it is empty. All leaves are equally deep, and no leaf is empty.
//! - A separator is above every key on its left and not above any key on its right. Leaves and separators change in one step, for
//!   readers at least: all versions of the nodes that change are odd meanwhile.
//! - New nodes are complete before any other names them. The release that ends the change publishes them.

use std::hint;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::thread;

use kaml_index::{LenCode, Slot};

use crate::arena::Arena;
use crate::decode;
use crate::inner::{Inner, Wanted};
use crate::leaf;
use crate::node::{Entries, Head, NodeRef, View};
use crate::versions::{ReadVersion, Versions};

/// Keys in flight at a time in a batch: enough to hide memory's latency, few enough for the line fill buffers and L1.
const BATCH: usize = 24;
/// Repetitions of a reader before it lets others run: the writer may have lost its processor in the middle of a change.
const SPINS: u32 = 200;

pub(crate) struct Tree {
    pub(crate) arena: Arena,
    pub(crate) versions: Versions,
    pub(crate) root: AtomicU32,
    pub(crate) addr_bits: u32,
    /// Bytes of a value in a leaf.
    pub(crate) value_bytes: usize,
    pub(crate) stats: Stats,
}

/// Written by the writer alone; on a line of its own.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) key_count: AtomicU64,
    pub(crate) leaf_count: AtomicU64,
    pub(crate) memory_bytes: AtomicU64,
    pub(crate) image_bytes_max: AtomicU64,
}

/// The writer interfered with a read, which must start again.
struct Again;

/// Where a leaf is cut out of all keys: the separators on its sides, if there are any.
#[derive(Default)]
pub(crate) struct Fences {
    pub(crate) lower: Vec<u8>,
    pub(crate) has_lower: bool,
    pub(crate) upper: Vec<u8>,
    pub(crate) has_upper: bool,
}

/// Waits longer the more often it is called.
struct Patience(u32);

impl Patience {
    fn wait(&mut self) {
        self.0 += 1;
        if self.0 < SPINS { hint::spin_loop() } else { thread::yield_now() }
    }
}

impl Tree {
    pub(crate) fn value_of(&self, slot: Slot) -> u64 {
        assert!(slot.at >> self.addr_bits == 0, "chunk {} has more than {} bits", slot.at, self.addr_bits);
        u64::from(slot.len.get()) << self.addr_bits | slot.at
    }

    /// The slot of a value; none if it is none, as a late reader may find.
    #[inline]
    pub(crate) fn slot_of(&self, value: u64) -> Option<Slot> {
        let len = LenCode::from_stored(u8::try_from(value >> self.addr_bits).ok()?)?;
        Some(Slot { at: value & ((1 << self.addr_bits) - 1), len })
    }

    pub(crate) fn root(&self) -> NodeRef {
        NodeRef(self.root.load(Acquire))
    }

    /// The root, and its version; the node is none if the tree is empty.
    #[inline]
    fn begin(&self) -> Result<(NodeRef, ReadVersion), Again> {
        let root = self.root();
        if root == NodeRef::NONE {
            return Ok((root, ReadVersion::default()));
        }
        let seen = self.versions.begin_read(root.0).ok_or(Again)?;
        if self.root() == root { Ok((root, seen)) } else { Err(Again) }
    }

    /// A child, as it was at a moment when it was one.
    #[inline]
    fn step(&self, inner: Inner<'_>, i: usize, seen: ReadVersion) -> Result<(NodeRef, ReadVersion), Again> {
        let child = inner.child(i);
        let child_seen = self.versions.begin_read(child.0).ok_or(Again)?;
        if self.versions.is_unchanged(seen) { Ok((child, child_seen)) } else { Err(Again) }
    }

    /// The value of a key, or 0.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> u64 {
        let mut patience = Patience(0);
        loop {
            match self.try_get(key) {
                Ok(value) => return value,
                Err(Again) => patience.wait(),
            }
        }
    }

    #[inline]
    fn try_get(&self, key: &[u8]) -> Result<u64, Again> {
        let (mut node, mut seen) = self.begin()?;
        if node == NodeRef::NONE {
            return Ok(0);
        }
        loop {
            let view = View::of(&self.arena, node).ok_or(Again)?;
            let head = view.head();
            if !head.is_inner() {
                return self.value_in(view, &head, key, seen);
            }
            let inner = Inner::of(view, &head);
            let i = inner.find(Wanted::Key(key));
            // The child's first line leads to the right one, but that would be one load after the other.
            let probable = inner.probable_line(i, key);
            (probable.saturating_sub(1)..=probable.saturating_add(1)).for_each(|line| self.arena.prefetch(line));
            (node, seen) = self.step(inner, i, seen)?;
        }
    }

    #[inline]
    fn value_in(&self, view: View<'_>, head: &Head, key: &[u8], seen: ReadVersion) -> Result<u64, Again> {
        let at = leaf::find(view, head, key, self.value_bytes);
        let value = at.map_or(0, |at| view.number(at, self.value_bytes));
        if self.versions.is_unchanged(seen) { Ok(value) } else { Err(Again) }
    }

    /// Calls back with the value of each key, or 0, in their order. Descents of several keys take turns, so their loads from memory
    /// overlap.
    pub(crate) fn get_batch<K: AsRef<[u8]>>(&self, keys: &[K], mut found: impl FnMut(u64)) {
        for keys in keys.chunks(BATCH) {
            let mut at = [(NodeRef::NONE, ReadVersion::default()); BATCH];
            let begun = self.begin();
            let Ok((root, seen)) = begun else {
                keys.iter().for_each(|key| found(self.get(key.as_ref())));
                continue;
            };
            let at = &mut at[..keys.len()];
            at.fill((root, seen));
            while self.step_all(at, keys) {}
            for (&(node, seen), key) in at.iter().zip(keys) {
                let view = View::of(&self.arena, node);
                let value = view.ok_or(Again).and_then(|view| self.value_in(view, &view.head(), key.as_ref(), seen));
                found(value.unwrap_or_else(|Again| self.get(key.as_ref())));
            }
        }
    }

    /// Takes each key one node further down, in two rounds: one fetches what the node's hints name, the other reads it and fetches the child's
    /// first line. False if all are in leaves, whose entries are then being fetched. A key whose descent fails has no node then.
    fn step_all<K: AsRef<[u8]>>(&self, at: &mut [(NodeRef, ReadVersion)], keys: &[K]) -> bool {
        let mut is_inner = false;
        for ((node, _), key) in at.iter().zip(keys) {
            let Some(view) = View::of(&self.arena, *node) else { continue };
            let (head, key) = (view.head(), key.as_ref());
            match head.is_inner() {
                true => Inner::of(view, &head).prefetch(key),
                false => leaf::prefetch(view, &head, key, self.value_bytes),
            }
            is_inner |= head.is_inner();
        }
        for (at, key) in at.iter_mut().zip(keys).filter(|_| is_inner) {
            let Some(view) = View::of(&self.arena, at.0) else { continue };
            let head = view.head();
            if head.is_inner() {
                let inner = Inner::of(view, &head);
                *at = self.step(inner, inner.find(Wanted::Key(key.as_ref())), at.1).unwrap_or_default();
                self.prefetch(at.0);
            }
        }
        is_inner
    }

    /// Starts fetching a node.
    #[inline]
    fn prefetch(&self, node: NodeRef) {
        self.arena.prefetch(node.0);
    }

    /// Starts fetching what a `get` of the key reads first.
    pub(crate) fn prefetch_key(&self, key: &[u8]) {
        let Ok((mut node, mut seen)) = self.begin() else { return };
        while let Some(view) = View::of(&self.arena, node) {
            let head = view.head();
            if !head.is_inner() {
                return;
            }
            let inner = Inner::of(view, &head);
            let Ok(step) = self.step(inner, inner.find(Wanted::Key(key)), seen) else { return };
            (node, seen) = step;
            self.prefetch(node);
        }
    }

    /// Decodes the leaf where such a key would be, and reports where it is cut. False if the tree is empty. `bytes` is for use as a buffer.
    pub(crate) fn read_leaf(
        &self,
        wanted: Wanted<'_>,
        bytes: &mut Vec<u8>,
        out: &mut Entries,
        fences: &mut Fences,
    ) -> bool {
        out.clear();
        let is_there = self.copy_leaf(wanted, bytes, fences);
        if is_there {
            decode::decode(bytes, self.value_bytes, out);
        }
        is_there
    }

    /// Copies the leaf where such a key would be.
    pub(crate) fn copy_leaf(&self, wanted: Wanted<'_>, bytes: &mut Vec<u8>, fences: &mut Fences) -> bool {
        let mut patience = Patience(0);
        loop {
            bytes.clear();
            match self.try_copy_leaf(wanted, bytes, fences) {
                Ok(is_there) => return is_there,
                Err(Again) => patience.wait(),
            }
        }
    }

    fn try_copy_leaf(&self, wanted: Wanted<'_>, bytes: &mut Vec<u8>, fences: &mut Fences) -> Result<bool, Again> {
        (fences.has_lower, fences.has_upper) = (false, false);
        let (view, seen) = match self.descend(wanted, |inner, i| fences.note(inner, i))? {
            None => return Ok(false),
            Some(found) => found,
        };
        view.copy(view.head().used, bytes);
        if self.versions.is_unchanged(seen) { Ok(true) } else { Err(Again) }
    }

    /// The leaf where such a key would be, with its version; none if the tree is empty.
    fn descend<'a>(
        &'a self,
        wanted: Wanted<'_>,
        mut pass: impl FnMut(Inner<'a>, usize),
    ) -> Result<Option<(View<'a>, ReadVersion)>, Again> {
        let (mut node, mut seen) = self.begin()?;
        if node == NodeRef::NONE {
            return Ok(None);
        }
        loop {
            let view = View::of(&self.arena, node).ok_or(Again)?;
            let head = view.head();
            if !head.is_inner() {
                return Ok(Some((view, seen)));
            }
            let inner = Inner::of(view, &head);
            let i = inner.find(wanted);
            pass(inner, i);
            (node, seen) = self.step(inner, i, seen)?;
        }
    }

    /// About which share of all leaves is on the left of the middle of the one where such a key would be.
    pub(crate) fn share_below(&self, wanted: Wanted<'_>) -> f64 {
        let mut patience = Patience(0);
        loop {
            let (mut left, mut share) = (0.0, 1.0);
            let descent = self.descend(wanted, |inner, i| {
                share /= inner.count() as f64;
                left += share * i as f64;
            });
            match descent {
                Ok(_) => return left + share / 2.0,
                Err(Again) => patience.wait(),
            }
        }
    }
}

impl Fences {
    /// Notes the separators next to the child. Descents pass nodes from above, so later ones are closer.
    fn note(&mut self, inner: Inner<'_>, child: usize) {
        if child > 0 {
            inner.separator(child - 1, &mut self.lower);
            self.has_lower = true;
        }
        if child + 1 < inner.count() {
            inner.separator(child, &mut self.upper);
            self.has_upper = true;
        }
    }
}
