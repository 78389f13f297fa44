//! Large values that are programmed ahead of their Puts.
//!
//! Lives here:       which there are.
//! Lives elsewhere:  placing and staging them (`large`).

use crate::format::record::Record;
use kaml_flash::{AlignedBuf, ChunkAddr};
use kaml_index::Key;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A large value on its way to its pages.
pub(crate) struct Ticket {
    pub(crate) namespace: u32,
    pub(crate) key: Key,
    /// The versioned namespace and the key that it is a value of.
    pub(crate) version_of: Option<(u32, Key)>,
    pub(crate) image: Arc<AlignedBuf>,
    pub(crate) record: Record,
    /// When it expires; 0 for never.
    /// Bytes of the value as the caller gave it.
    pub(crate) value_bytes: u64,
    pub(crate) expires: u64,
    pub(crate) chunks: u32,
    pub(crate) at: ChunkAddr,
    pub(crate) done: bool,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Tickets {
    pub(crate) placed: BTreeMap<u64, Ticket>,
    /// How many tickets were given, segments of versions included.
    given: u64,
}

impl Tickets {
    /// The ticket that was given last.
    pub(crate) fn given(&self) -> u64 {
        self.given
    }

    /// A ticket that nobody has.
    pub(crate) fn take(&mut self) -> u64 {
        self.given += 1;
        self.given
    }
}
