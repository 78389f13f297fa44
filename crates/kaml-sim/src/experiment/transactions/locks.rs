//! Locks of groups of records: shared or exclusive, first come, first served.
//!
//! Lives here:       the holders of a lock, and the workers that wait for it.
//! Implements:       paper:KAML III.C (a lock for each record or for several), V.D.2.
//!
//! Transactions take locks in one order of all names, so none is ever deadlocked.

use std::collections::{BTreeMap, VecDeque};

/// A group of records of a table.
pub(super) type Name = (usize, u64);

#[derive(Default)]
struct Lock {
    holders: usize,
    is_exclusive: bool,
    /// Workers, and whether they need it alone.
    waiting: VecDeque<(usize, bool)>,
}

/// All locks that somebody has or waits for.
#[derive(Default)]
pub(super) struct Locks {
    locks: BTreeMap<Name, Lock>,
    /// Requests, and those of them that had to wait.
    pub(super) requests: u64,
    pub(super) waits: u64,
}

impl Locks {
    /// Requests a lock; false if the worker waits for it from now on.
    pub(super) fn acquire(&mut self, name: Name, worker: usize, exclusive: bool) -> bool {
        let lock = self.locks.entry(name).or_default();
        self.requests += 1;
        let compatible = lock.holders == 0 || (!exclusive && !lock.is_exclusive && lock.waiting.is_empty());
        if compatible {
            lock.holders += 1;
            lock.is_exclusive = exclusive;
        } else {
            self.waits += 1;
            lock.waiting.push_back((worker, exclusive));
        }
        compatible
    }

    /// Releases a lock; `granted` receives the workers that have it now.
    pub(super) fn release(&mut self, name: Name, granted: &mut Vec<usize>) {
        let lock = self.locks.get_mut(&name).expect("a lock that somebody has");
        lock.holders -= 1;
        while let Some((worker, exclusive)) = lock.waiting.front().copied()
            && (lock.holders == 0 || !(exclusive || lock.is_exclusive))
        {
            lock.waiting.pop_front();
            lock.holders += 1;
            lock.is_exclusive = exclusive;
            granted.push(worker);
        }
        if lock.holders == 0 {
            self.locks.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   readers share a lock, a writer has it alone, and nobody passes a writer that waits.
    /// Method: two readers, a writer, a third reader; then they release it one by one.
    #[test]
    fn readers_share_and_nobody_passes_a_writer() {
        let mut locks = Locks::default();
        let name = (0, 7);
        assert!(locks.acquire(name, 0, false) && locks.acquire(name, 1, false));
        assert!(!locks.acquire(name, 2, true) && !locks.acquire(name, 3, false));
        let mut granted = Vec::new();
        locks.release(name, &mut granted);
        assert!(granted.is_empty());
        locks.release(name, &mut granted);
        assert_eq!(granted, [2]);
        locks.release(name, &mut granted);
        assert_eq!(granted, [2, 3]);
        locks.release(name, &mut granted);
        assert!(locks.locks.is_empty() && (locks.requests, locks.waits) == (4, 2));
    }
}
