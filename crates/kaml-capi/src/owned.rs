//! What a device owns besides its records: open iterators and snapshots.
//!
//! Lives here:       objects with numbers, dropped with their device.
//! Lives elsewhere:  handles, which name a device and a number (`handle`); the objects (`ranges`, `snapshots`).
//! May be called by: `device`, `ranges`, `snapshots`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Objects of a device. Clones of an object are the same one.
pub(crate) struct Owned<T>(Mutex<Numbered<T>>);

/// They have numbers that are not used again.
struct Numbered<T> {
    last: u64,
    all: BTreeMap<u64, T>,
}

/// The device of an object, and its number there.
pub(crate) struct OwnedBy {
    pub(crate) device: u64,
    pub(crate) number: u64,
}

impl<T> Default for Owned<T> {
    fn default() -> Owned<T> {
        Owned(Mutex::new(Numbered { last: 0, all: BTreeMap::new() }))
    }
}

impl<T: Clone> Owned<T> {
    fn lock(&self) -> MutexGuard<'_, Numbered<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, object: T) -> u64 {
        let mut open = self.lock();
        open.last += 1;
        let number = open.last;
        open.all.insert(number, object);
        number
    }

    pub(crate) fn get(&self, number: u64) -> Option<T> {
        self.lock().all.get(&number).cloned()
    }

    pub(crate) fn remove(&self, number: u64) {
        let removed = self.lock().all.remove(&number);
        drop(removed); // outside the lock: it may close a snapshot
    }
}
