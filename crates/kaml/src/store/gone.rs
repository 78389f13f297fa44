//! Namespaces that were deleted.
//!
//! Lives here:       which namespaces: a change of a record of one that is in progress leaves nothing in the cache.
//! Lives elsewhere:  forgetting what is in the cache already (`cache`).
//!
//! A namespace is noted before the shards are gone through. So a change of a record in a shard that has been gone through sees the
//! note, by the shard's lock.

use crate::NamespaceId;
use crate::sync::{AtomicU64, Mutex};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// See the module.
#[derive(Default)]
pub(super) struct Gone {
    /// A bit for each 64th number: nearly all who ask find that nothing has gone, without meeting others.
    some: AtomicU64,
    /// Numbers are never used again.
    all: Mutex<BTreeSet<NamespaceId>>,
}

impl Gone {
    pub(super) fn add(&self, namespace: NamespaceId) {
        self.all.lock().expect("no panics under this lock").insert(namespace);
        self.some.fetch_or(1 << (namespace % u64::BITS), Ordering::Release);
    }

    pub(super) fn has(&self, namespace: NamespaceId) -> bool {
        self.some.load(Ordering::Acquire) >> (namespace % u64::BITS) & 1 != 0
            && self.all.lock().expect("no panics under this lock").contains(&namespace)
    }
}
