//! Changing the tree: the one writer.
//!
//! Lives here:       inserting, replacing, removing, splitting and merging nodes, moving nodes out of sparse slabs.
//! Lives elsewhere:  how readers are kept from trusting what changes (`versions`), the bytes of nodes (`leaf`, `inner`).
//! May be called by: `OrderedWriter`, the builder.
//!
//! A change makes the bytes of the changed leaf, then publishes them: in place if they take as many lines as before, else in a new block, to which
//! the parent's word then points. A leaf that is too long becomes several. Then the parent is encoded again, and so on upwards
//! until a node can be changed in place, or the root. Nothing that a reader can reach is written before the last step, in which the versions of all
//! nodes that change or die are odd. Blocks of dead nodes are released after it.

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::arena::LINE_BYTES;
use crate::blocks::Blocks;
use crate::decode::decode;
use crate::inner::{Children, Inner, Wanted};
use crate::key::separator;
use crate::leaf::{self, ENTRIES_MAX, image_bytes_max};
use crate::node::{Entries, Head, NODE_BYTES_MAX, NodeRef, View};
use crate::range::{KeyBound, as_slice, can_hold, end_of, start_of};
use crate::tree::Tree;
use crate::versions::Changing;

/// A leaf with fewer entries and bytes looks for a neighbour to merge with.
const SMALL_LEAF: (usize, usize) = (ENTRIES_MAX / 4, NODE_BYTES_MAX / 4);
/// Two leaves merge if together they have no more.
const MERGED_LEAF: (usize, usize) = (ENTRIES_MAX * 5 / 8, NODE_BYTES_MAX * 5 / 8);
/// An inner node with fewer children looks for a neighbour to merge with, and is merged if both have no more.
const SMALL_INNER: usize = 16;
const MERGED_INNER_BYTES: usize = NODE_BYTES_MAX * 5 / 8;
/// A node that shrinks keeps its block until this many lines of it are free.
const SPARE_LINES: u32 = 2;
/// Nodes moved out of a sparse slab by one change.
const MOVED_PER_CHANGE: usize = 4;

/// The writer's side of a tree.
pub(crate) struct Owner {
    pub(crate) tree: Arc<Tree>,
    pub(crate) blocks: Blocks,
    changing: Changing,
    /// A slab out of which nodes are being moved.
    sparse: Option<u32>,
    /// Buffers.
    bytes: Vec<u8>,
    entries: Entries,
    path: Vec<Step>,
}

/// A node on the way down, and which of its children the way takes.
#[derive(Clone, Copy)]
struct Step {
    node: NodeRef,
    child: usize,
}

/// Nodes that take the place of some children, and what separates them.
#[derive(Default)]
struct Pieces {
    nodes: Vec<NodeRef>,
    separators: Vec<Vec<u8>>,
}

impl Owner {
    pub(crate) fn new(tree: Arc<Tree>) -> Owner {
        let owner = Owner {
            tree,
            blocks: Blocks::new(),
            changing: Changing::default(),
            sparse: None,
            bytes: vec![],
            entries: Entries::default(),
            path: vec![],
        };
        owner.count_memory();
        owner
    }

    fn view(&self, node: NodeRef) -> View<'_> {
        View::of(&self.tree.arena, node).expect("the writer's nodes lie in the arena")
    }

    fn inner(&self, node: NodeRef) -> Inner<'_> {
        let view = self.view(node);
        Inner::of(view, &view.head())
    }

    /// The leaf where such a key would be, and the way to it in `path`; none if the tree is empty.
    fn descend(&mut self, wanted: Wanted<'_>) -> NodeRef {
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let mut node = self.tree.root();
        while node != NodeRef::NONE {
            let view = self.view(node);
            let head = view.head();
            if !head.is_inner() {
                break;
            }
            let inner = Inner::of(view, &head);
            let child = inner.find(wanted);
            path.push(Step { node, child });
            node = inner.child(child);
        }
        self.path = path;
        node
    }

    /// Sets a key's value; the old one, or 0.
    pub(crate) fn insert(&mut self, key: &[u8], value: u64) -> u64 {
        let node = self.descend(Wanted::Key(key));
        let value_bytes = self.tree.value_bytes;
        if node == NodeRef::NONE {
            let mut entries = Entries::default();
            entries.push(key, value);
            self.rewrite(node, &entries, 1);
        } else {
            let view = self.view(node);
            let head = view.head();
            if let Some(at) = leaf::find(view, &head, key, value_bytes) {
                let old = view.number(at, value_bytes);
                self.set_value(node, at, value);
                return old;
            }
            match leaf::insertion(view, &head, key, value, value_bytes) {
                Some(change) if head.used + head.width + value_bytes <= NODE_BYTES_MAX => {
                    self.splice(node, &head, key, &change);
                }
                _ => self.insert_decoded(node, key, value),
            }
        }
        self.tree.stats.key_count.store(self.tree.stats.key_count.load(Relaxed) + 1, Relaxed);
        self.settle();
        0
    }

    fn set_value(&mut self, node: NodeRef, at: usize, value: u64) {
        let tree = &*self.tree;
        tree.versions.begin_change(node.0, &mut self.changing);
        let view = View::of(&tree.arena, node).expect("the writer's nodes lie in the arena");
        view.store_number(at, tree.value_bytes, value);
        tree.versions.commit(&mut self.changing);
    }

    fn splice(&mut self, node: NodeRef, head: &Head, key: &[u8], change: &leaf::Splice) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        self.view(node).copy(head.used, &mut bytes);
        leaf::splice(&mut bytes, head, key, change, self.tree.value_bytes);
        self.put_leaf(node, &bytes);
        self.bytes = bytes;
    }

    fn insert_decoded(&mut self, node: NodeRef, key: &[u8], value: u64) {
        let mut entries = self.decoded(node);
        let at = entries.keys.below(key);
        entries.insert(at, key, value);
        // Keys that come in order fill leaves: what is last goes into a leaf of its own.
        let cut = if at + 1 == entries.len() { at } else { entries.len() / 2 };
        self.rewrite(node, &entries, cut);
        self.entries = entries;
    }

    /// The entries of a leaf, in the buffer.
    fn decoded(&mut self, node: NodeRef) -> Entries {
        let mut entries = std::mem::take(&mut self.entries);
        entries.clear();
        self.append_decoded(node, &mut entries);
        entries
    }

    fn append_decoded(&mut self, node: NodeRef, entries: &mut Entries) {
        self.bytes.clear();
        let mut bytes = std::mem::take(&mut self.bytes);
        let view = self.view(node);
        view.copy(view.head().used, &mut bytes);
        decode(&bytes, self.tree.value_bytes, entries);
        self.bytes = bytes;
    }

    /// Forgets a key; the value it had, or 0.
    pub(crate) fn remove(&mut self, key: &[u8]) -> u64 {
        let node = self.descend(Wanted::Key(key));
        if node == NodeRef::NONE {
            return 0;
        }
        let (view, value_bytes) = (self.view(node), self.tree.value_bytes);
        let head = view.head();
        let Some(at) = leaf::find(view, &head, key, value_bytes) else { return 0 };
        let old = view.number(at, value_bytes);
        let is_small = head.count <= SMALL_LEAF.0 && head.used <= SMALL_LEAF.1;
        match leaf::removal(&head, at, value_bytes) {
            Some(change) => self.splice(node, &head, key, &change),
            None => {
                let mut entries = self.decoded(node);
                let at = entries.keys.below(key);
                entries.remove(at..at + 1);
                self.rewrite(node, &entries, entries.len() / 2);
                self.entries = entries;
            }
        }
        if is_small {
            self.merge_small(key);
        }
        self.tree.stats.key_count.store(self.tree.stats.key_count.load(Relaxed) - 1, Relaxed);
        self.settle();
        old
    }

    /// Sets the value of a key that has the expected one.
    pub(crate) fn replace_if(&mut self, key: &[u8], expected: u64, value: u64) -> bool {
        let node = self.descend(Wanted::Key(key));
        if node == NodeRef::NONE {
            return false;
        }
        let (view, value_bytes) = (self.view(node), self.tree.value_bytes);
        let Some(at) = leaf::find(view, &view.head(), key, value_bytes) else { return false };
        let is_expected = view.number(at, value_bytes) == expected;
        if is_expected {
            self.set_value(node, at, value);
        }
        is_expected
    }

    /// Forgets all keys of a range, a leaf at a time, and visits them; how many there were.
    pub(crate) fn remove_range(
        &mut self,
        (mut lower, upper): (KeyBound, KeyBound),
        mut visit: impl FnMut(&[u8], u64),
    ) -> u64 {
        let mut removed = 0;
        loop {
            let wanted = match &lower {
                Bound::Unbounded => Wanted::Key(&[]),
                Bound::Included(key) | Bound::Excluded(key) => Wanted::Key(key),
            };
            let node = self.descend(wanted);
            if node == NodeRef::NONE {
                return removed;
            }
            let next = self.upper_fence();
            let mut entries = self.decoded(node);
            let range = start_of(&entries, as_slice(&lower))..end_of(&entries, as_slice(&upper));
            if !range.is_empty() {
                range.clone().for_each(|i| visit(entries.key(i), entries.values[i]));
                removed += range.len() as u64;
                let left = self.tree.stats.key_count.load(Relaxed) - range.len() as u64;
                self.tree.stats.key_count.store(left, Relaxed);
                let at = entries.key(range.start).to_vec();
                entries.remove(range);
                self.rewrite(node, &entries, entries.len() / 2);
                if entries.len() <= SMALL_LEAF.0 {
                    self.merge_small(&at);
                }
                self.settle();
            }
            self.entries = entries;
            match next {
                Some(next) if can_hold(as_slice(&upper), &next) => lower = Bound::Included(next),
                _ => return removed,
            }
        }
    }

    /// The separator on the right of the leaf that `path` leads to.
    fn upper_fence(&self) -> Option<Vec<u8>> {
        let step = self.path.iter().rev().find(|step| step.child + 1 < self.inner(step.node).count())?;
        let mut fence = vec![];
        self.inner(step.node).separator(step.child, &mut fence);
        Some(fence)
    }

    /// Puts entries in the place of the leaf that `path` leads to. If they are too many for one leaf, the first cut is made before entry `cut`.
    fn rewrite(&mut self, node: NodeRef, entries: &Entries, cut: usize) {
        let mut bytes = std::mem::take(&mut self.bytes);
        if entries.len() > 0 && entries.len() <= ENTRIES_MAX && node != NodeRef::NONE {
            leaf::encode(entries, 0..entries.len(), self.tree.value_bytes, &mut bytes);
            if bytes.len() <= NODE_BYTES_MAX {
                self.put_leaf(node, &bytes);
                self.bytes = bytes;
                return;
            }
        }
        let mut pieces = Pieces::default();
        if entries.len() > 0 {
            self.cut_leaves(entries, 0..entries.len(), cut, &mut bytes, &mut pieces);
        }
        self.bytes = bytes;
        let dead = if node == NodeRef::NONE { vec![] } else { vec![node] };
        self.publish(pieces, 1, dead);
    }

    /// Writes entries to as many new leaves as they take.
    pub(crate) fn new_leaves(&mut self, entries: &Entries, nodes: &mut Vec<NodeRef>, separators: &mut Vec<Vec<u8>>) {
        let (mut bytes, mut pieces) = (vec![], Pieces::default());
        self.cut_leaves(entries, 0..entries.len(), entries.len() / 2, &mut bytes, &mut pieces);
        nodes.append(&mut pieces.nodes);
        separators.append(&mut pieces.separators);
    }

    /// Writes inner nodes that name all children, as few as take them.
    pub(crate) fn new_inner_level(
        &mut self,
        children: &Children,
        nodes: &mut Vec<NodeRef>,
        separators: &mut Vec<Vec<u8>>,
    ) {
        let (mut bytes, mut pieces) = (vec![], Pieces::default());
        self.cut_inner(children, 0..children.nodes.len(), &mut bytes, &mut pieces);
        nodes.append(&mut pieces.nodes);
        separators.append(&mut pieces.separators);
    }

    fn cut_leaves(
        &mut self,
        entries: &Entries,
        range: Range<usize>,
        cut: usize,
        bytes: &mut Vec<u8>,
        pieces: &mut Pieces,
    ) {
        leaf::encode(entries, range.clone(), self.tree.value_bytes, bytes);
        if range.len() <= ENTRIES_MAX && bytes.len() <= NODE_BYTES_MAX {
            let node = self.new_node(bytes);
            self.count_leaf(&Head::of_bytes(bytes), true);
            pieces.nodes.push(node);
            return;
        }
        assert!(range.len() > 1, "one entry fits a node");
        let halves = [range.start..cut, cut..range.end];
        let [first, second] = halves.map(|half| (half.clone(), half.start + half.len() / 2));
        self.cut_leaves(entries, first.0, first.1, bytes, pieces);
        pieces.separators.push(separator(entries.key(cut - 1), entries.key(cut)).to_vec());
        self.cut_leaves(entries, second.0, second.1, bytes, pieces);
    }

    fn new_node(&mut self, bytes: &[u8]) -> NodeRef {
        let lines = bytes.len().div_ceil(LINE_BYTES) as u32;
        let node = NodeRef(self.blocks.take(&self.tree.arena, lines));
        self.view(node).store(bytes);
        node
    }

    fn count_leaf(&self, head: &Head, comes: bool) {
        let (stats, bytes) = (&self.tree.stats, image_bytes_max(head, self.tree.value_bytes));
        let (images, leaves) = (stats.image_bytes_max.load(Relaxed), stats.leaf_count.load(Relaxed));
        let (images, leaves) = if comes { (images + bytes, leaves + 1) } else { (images - bytes, leaves - 1) };
        stats.image_bytes_max.store(images, Relaxed);
        stats.leaf_count.store(leaves, Relaxed);
    }

    /// Whether a node of this many bytes can have the block of this one.
    fn fits(&self, node: NodeRef, bytes: &[u8]) -> bool {
        let (lines, has) = (bytes.len().div_ceil(LINE_BYTES) as u32, self.blocks.lines_of(node.0));
        lines <= has && has < lines + SPARE_LINES
    }

    /// Gives the leaf that `path` leads to other bytes.
    fn put_leaf(&mut self, node: NodeRef, bytes: &[u8]) {
        let old = self.view(node).head();
        if self.fits(node, bytes) {
            self.count_leaf(&old, false);
            self.count_leaf(&Head::of_bytes(bytes), true);
            let tree = &*self.tree;
            tree.versions.begin_change(node.0, &mut self.changing);
            View::of(&tree.arena, node).expect("the writer's nodes lie in the arena").store(bytes);
            tree.versions.commit(&mut self.changing);
        } else {
            let new = self.new_node(bytes);
            self.count_leaf(&Head::of_bytes(bytes), true);
            self.publish(Pieces { nodes: vec![new], separators: vec![] }, 1, vec![node]);
        }
    }

    /// Puts nodes in the place of the `span` children from the one on that `path` leads to. Nobody can reach the nodes before, and nobody
    /// those in `dead` after.
    fn publish(&mut self, mut pieces: Pieces, mut span: usize, mut dead: Vec<NodeRef>) {
        while let Some(Step { node, child }) = self.path.pop() {
            if span == 1 && pieces.nodes.len() == 1 {
                let new = pieces.nodes[0];
                let lines = self.blocks.lines_of(new.0);
                return self
                    .change_and_bury(node, dead, |view| Inner::of(view, &view.head()).set_child(child, new, lines));
            }
            let mut children = Children::of(self.inner(node));
            children.replace(child..child + span, &pieces.nodes, &pieces.separators);
            let is_root = self.path.is_empty();
            pieces = Pieces::default();
            span = 1;
            match children.nodes.len() {
                0 => {}
                1 if is_root => pieces.nodes = children.nodes,
                count => {
                    let mut bytes = std::mem::take(&mut self.bytes);
                    children.encode(0..count, |node| self.blocks.lines_of(node.0), &mut bytes);
                    if self.fits(node, &bytes) {
                        self.change_and_bury(node, dead, |view| view.store(&bytes));
                        self.bytes = bytes;
                        return;
                    }
                    self.cut_inner(&children, 0..count, &mut bytes, &mut pieces);
                    self.bytes = bytes;
                }
            }
            dead.push(node);
        }
        while pieces.nodes.len() > 1 {
            let Pieces { nodes, separators } = std::mem::take(&mut pieces);
            let mut children = Children { nodes, ..Children::default() };
            separators.iter().for_each(|separator| children.separators.push(separator));
            let mut bytes = std::mem::take(&mut self.bytes);
            self.cut_inner(&children, 0..children.nodes.len(), &mut bytes, &mut pieces);
            self.bytes = bytes;
        }
        self.publish_root(pieces.nodes.first().copied().unwrap_or_default(), dead);
    }

    /// Makes another node the root.
    pub(crate) fn publish_root(&mut self, root: NodeRef, dead: Vec<NodeRef>) {
        let tree = Arc::clone(&self.tree);
        dead.iter().for_each(|node| tree.versions.begin_change(node.0, &mut self.changing));
        tree.root.store(root.0, Release);
        tree.versions.commit(&mut self.changing);
        self.bury(dead);
    }

    /// Changes a node in place, in one step with the death of others.
    fn change_and_bury(&mut self, node: NodeRef, dead: Vec<NodeRef>, change: impl FnOnce(View<'_>)) {
        let tree = Arc::clone(&self.tree);
        tree.versions.begin_change(node.0, &mut self.changing);
        dead.iter().for_each(|node| tree.versions.begin_change(node.0, &mut self.changing));
        change(self.view(node));
        tree.versions.commit(&mut self.changing);
        self.bury(dead);
    }

    fn bury(&mut self, dead: Vec<NodeRef>) {
        for node in dead {
            let head = self.view(node).head();
            if !head.is_inner() {
                self.count_leaf(&head, false);
            }
            let lines = self.blocks.lines_of(node.0);
            self.blocks.give_back(&self.tree.arena, node.0);
            if self.sparse.is_none() {
                self.sparse = self.blocks.sparse(lines);
            }
        }
    }

    fn cut_inner(&mut self, children: &Children, range: Range<usize>, bytes: &mut Vec<u8>, pieces: &mut Pieces) {
        children.encode(range.clone(), |node| self.blocks.lines_of(node.0), bytes);
        if bytes.len() <= NODE_BYTES_MAX {
            let node = self.new_node(bytes);
            pieces.nodes.push(node);
            return;
        }
        let cut = range.start + range.len() / 2;
        self.cut_inner(children, range.start..cut, bytes, pieces);
        pieces.separators.push(children.separators.get(cut - 1).to_vec());
        self.cut_inner(children, cut..range.end, bytes, pieces);
    }

    /// Merges what is small on the way to the leaf where such a key would be.
    fn merge_small(&mut self, key: &[u8]) {
        let node = self.descend(Wanted::Key(key));
        if node == NodeRef::NONE {
            return;
        }
        let head = self.view(node).head();
        if head.count <= SMALL_LEAF.0 && head.used <= SMALL_LEAF.1 {
            self.merge_leaf();
        }
        let mut depth = 1;
        loop {
            self.descend(Wanted::Key(key));
            if depth >= self.path.len() {
                return;
            }
            self.merge_inner(depth);
            depth += 1;
        }
    }

    /// Where a node's neighbour is that has the same parent: the first of both.
    fn pair(&self, parent: Step) -> Option<usize> {
        match self.inner(parent.node).count() {
            1 => None,
            count if parent.child + 1 < count => Some(parent.child),
            _ => Some(parent.child - 1),
        }
    }

    /// Merges the leaf that `path` leads to with a neighbour, if both are small enough.
    fn merge_leaf(&mut self) {
        let Some(&parent) = self.path.last() else { return };
        let Some(first) = self.pair(parent) else { return };
        let inner = self.inner(parent.node);
        let both = [inner.child(first), inner.child(first + 1)];
        let heads = both.map(|node| self.view(node).head());
        let (count, used) = (heads[0].count + heads[1].count, heads[0].used + heads[1].used);
        if count > MERGED_LEAF.0 || used > MERGED_LEAF.1 {
            return;
        }
        let mut entries = Entries::default();
        both.into_iter().for_each(|node| self.append_decoded(node, &mut entries));
        let (mut bytes, mut pieces) = (vec![], Pieces::default());
        leaf::encode(&entries, 0..entries.len(), self.tree.value_bytes, &mut bytes);
        if bytes.len() > NODE_BYTES_MAX {
            return;
        }
        pieces.nodes.push(self.new_node(&bytes));
        self.count_leaf(&Head::of_bytes(&bytes), true);
        self.path.last_mut().expect("it has a parent").child = first;
        self.publish(pieces, 2, both.to_vec());
    }

    /// Merges the node at this depth of `path` with a neighbour, if it and both are small enough.
    fn merge_inner(&mut self, depth: usize) {
        let (node, parent) = (self.path[depth].node, self.path[depth - 1]);
        if self.inner(node).count() > SMALL_INNER {
            return;
        }
        let Some(first) = self.pair(parent) else { return };
        let inner = self.inner(parent.node);
        let both = [inner.child(first), inner.child(first + 1)];
        if both.iter().map(|node| self.view(*node).head().used).sum::<usize>() > MERGED_INNER_BYTES {
            return;
        }
        let mut separator = vec![];
        inner.separator(first, &mut separator);
        let [mut children, right] = both.map(|node| Children::of(self.inner(node)));
        children.nodes.extend(right.nodes);
        children.separators.push(&separator);
        right.separators.iter().for_each(|separator| children.separators.push(separator));
        let mut bytes = vec![];
        children.encode(0..children.nodes.len(), |node| self.blocks.lines_of(node.0), &mut bytes);
        if bytes.len() > NODE_BYTES_MAX {
            return;
        }
        let merged = self.new_node(&bytes);
        self.path.truncate(depth);
        self.path[depth - 1].child = first;
        self.publish(Pieces { nodes: vec![merged], separators: vec![] }, 2, both.to_vec());
    }

    /// After a change: moves a few nodes out of a sparse slab, and counts memory.
    fn settle(&mut self) {
        for _ in 0..MOVED_PER_CHANGE {
            let Some(slab) = self.sparse else { break };
            match self.blocks.block_of(slab) {
                Some(line) => self.move_node(NodeRef(line)),
                None => self.sparse = None,
            }
        }
        self.count_memory();
    }

    /// Moves a node to another block.
    fn move_node(&mut self, node: NodeRef) {
        let mut bytes = vec![];
        let key = self.some_key(node);
        self.descend(Wanted::Key(&key));
        if let Some(depth) = self.path.iter().position(|step| step.node == node) {
            self.path.truncate(depth);
        }
        let head = self.view(node).head();
        let lines = self.blocks.lines_of(node.0);
        self.view(node).copy(lines as usize * LINE_BYTES, &mut bytes);
        let new = NodeRef(self.blocks.take(&self.tree.arena, lines));
        self.view(new).store(&bytes);
        if !head.is_inner() {
            self.count_leaf(&head, true);
        }
        self.publish(Pieces { nodes: vec![new], separators: vec![] }, 1, vec![node]);
    }

    /// A key that is below the node.
    fn some_key(&mut self, mut node: NodeRef) -> Vec<u8> {
        while self.view(node).head().is_inner() {
            node = self.inner(node).child(0);
        }
        let entries = self.decoded(node);
        let key = entries.key(0).to_vec();
        self.entries = entries;
        key
    }

    pub(crate) fn count_memory(&self) {
        let own = size_of::<Tree>() + self.tree.versions.memory_bytes();
        self.tree.stats.memory_bytes.store(self.blocks.memory_bytes() + own as u64, Relaxed);
    }
}
