//! Records on their way from one place to another.
//!
//! Lives here:       what is known of one, and of those that leave blocks that a backup has not read.
//! Lives elsewhere:  moving them (`gc`, `rehome`), installing them (`core`).

use kaml_index::{FullKey, KeptKey, Slot};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// The keys of records that moved before their blocks were read.
#[derive(Debug)]
pub struct MoveWatch {
    is_read: Vec<AtomicBool>,
    moved: Mutex<Vec<(u32, KeptKey)>>,
}

impl MoveWatch {
    pub(crate) fn new(is_read: Vec<AtomicBool>) -> MoveWatch {
        MoveWatch { is_read, moved: Mutex::default() }
    }

    /// A block is read and judged: moves out of it no longer matter.
    pub fn block_is_read(&self, block: u32) {
        self.is_read[block as usize].store(true, Ordering::SeqCst);
    }

    /// Takes what has moved since the last call: namespaces and keys.
    pub fn take_moved(&self) -> Vec<(u32, KeptKey)> {
        std::mem::take(&mut *self.moved.lock().expect("no panics under this lock"))
    }

    pub(crate) fn note(&self, from_block: u32, moved: &Move) {
        if !self.is_read[from_block as usize].load(Ordering::SeqCst) {
            self.moved.lock().expect("no panics under this lock").push((moved.namespace, moved.key.clone()));
        }
    }
}
