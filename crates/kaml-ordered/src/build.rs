//! Building an index from keys in their order.
//!
//! Lives here:       the builder: full leaves, then the levels above them.
//! Lives elsewhere:  encodings (`leaf`, `inner`), checkpoint images (`image`), which are loaded through here.
//! May be called by: `OrderedWriter`.

use std::sync::atomic::Ordering::Relaxed;

use kaml_index::Slot;

use crate::inner::Children;
use crate::key::{KeyError, check_key, separator};
use crate::leaf::ENTRIES_MAX;
use crate::node::{Entries, NodeRef};
use crate::{OrderedLayout, OrderedWriter};

/// Why entries cannot be built into an index.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BuildError {
    /// A key that no index takes.
    #[error("entry {entry}: {error}")]
    Key {
        /// How many entries came before.
        entry: u64,
        /// What is wrong with it.
        error: KeyError,
    },
    /// Keys do not ascend.
    #[error("entry {entry} has a key that is not above the one before")]
    NotAscending {
        /// How many entries came before.
        entry: u64,
    },
    /// The index has no address space for more.
    #[error("the index has no room for entry {entry}")]
    NoRoom {
        /// How many entries came before.
        entry: u64,
    },
}

/// Slabs that the leaves of one step, and the nodes above all leaves, can take.
const ROOM_SLABS: usize = 64;

/// Builds an index from entries with ascending keys. Leaves are full, so it takes the least memory, and an entry takes some ten nanoseconds.
pub struct OrderedBuilder {
    index: OrderedWriter,
    entries: Entries,
    last: Vec<u8>,
    count: u64,
    nodes: Vec<NodeRef>,
    separators: Vec<Vec<u8>>,
}

impl OrderedBuilder {
    /// A builder of an index.
    ///
    /// # Panics
    /// As [`OrderedWriter::new`].
    pub fn new(layout: OrderedLayout) -> OrderedBuilder {
        OrderedBuilder::of_empty(OrderedWriter::new(layout))
    }

    pub(crate) fn of_empty(index: OrderedWriter) -> OrderedBuilder {
        OrderedBuilder { index, entries: Entries::default(), last: vec![], count: 0, nodes: vec![], separators: vec![] }
    }

    /// Appends an entry. One that is refused leaves the builder as it was.
    ///
    /// # Panics
    /// When `slot.at` has more than `addr_bits` bits.
    pub fn push(&mut self, key: &[u8], slot: Slot) -> Result<(), BuildError> {
        let value = self.index.tree().value_of(slot);
        check_key(key).map_err(|error| BuildError::Key { entry: self.count, error })?;
        if self.entries.keys.last().unwrap_or(&self.last) >= key {
            return Err(BuildError::NotAscending { entry: self.count });
        }
        if self.entries.len() == ENTRIES_MAX {
            let owner = self.index.owner_mut();
            if !owner.blocks.has_room(&owner.tree.arena, ROOM_SLABS + self.nodes.len() / ROOM_SLABS) {
                return Err(BuildError::NoRoom { entry: self.count });
            }
            self.end_leaf();
        }
        self.entries.push(key, value);
        self.count += 1;
        Ok(())
    }

    fn end_leaf(&mut self) {
        if self.entries.len() == 0 {
            return;
        }
        if !self.nodes.is_empty() {
            self.separators.push(separator(&self.last, self.entries.key(0)).to_vec());
        }
        self.index.owner_mut().new_leaves(&self.entries, &mut self.nodes, &mut self.separators);
        self.last.clear();
        self.last.extend_from_slice(self.entries.key(self.entries.len() - 1));
        self.entries.clear();
    }

    /// The index.
    pub fn finish(mut self) -> OrderedWriter {
        self.end_leaf();
        let owner = self.index.owner_mut();
        let (mut nodes, mut separators) = (self.nodes, self.separators);
        while nodes.len() > 1 {
            let mut children = Children { nodes: std::mem::take(&mut nodes), ..Children::default() };
            separators.drain(..).for_each(|separator| children.separators.push(&separator));
            owner.new_inner_level(&children, &mut nodes, &mut separators);
        }
        owner.publish_root(nodes.first().copied().unwrap_or_default(), vec![]);
        owner.tree.stats.key_count.store(self.count, Relaxed);
        owner.count_memory();
        self.index
    }
}
