//! Records on their way from one place to another.
//!
//! Lives here:       what is known of one.
//! Lives elsewhere:  moving them (`gc`, `rehome`), installing them (`core`).

use kaml_index::{FullKey, KeptKey, Slot};

/// A record on its way from one place to another; installed when the buffer that ends it is programmed.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub(crate) namespace: u32,
    pub(crate) key: KeptKey,
    pub(crate) from: Slot,
    pub(crate) to: Slot,
    /// Collection waits for it, to erase the block that it leaves.
    pub(crate) empties_block: bool,
}

impl Move {
    pub(crate) fn new(namespace: u32, key: &FullKey<'_>, from: Slot, to: Slot) -> Move {
        Move { namespace, key: key.into(), from, to, empties_block: true }
    }

    /// The same of a record whose block is not collected for that.
    pub(crate) fn of_clustering(self) -> Move {
        Move { empties_block: false, ..self }
    }

    /// The same to another place.
    pub(crate) fn to(&self, to: Slot) -> Move {
        Move { to, ..self.clone() }
    }
}
