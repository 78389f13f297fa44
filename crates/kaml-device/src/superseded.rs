//! What open snapshots see and the index of a namespace no longer has.
//!
//! Lives here:       the table of superseded states of one namespace, and the sign that a snapshot is over.
//! Lives elsewhere:  filling and emptying it, the bound (`snapshots`), reading through it (`snapshot_reader`).
//! Implements:       docs/ARCHITECTURE.md "Snapshots".
//!
//! A snapshot is a number, and numbers grow. An entry (place of a key, number n) holds the state that the key had until it was
//! superseded while n was the newest open snapshot. A snapshot s sees the entry of the least n that is not below s; without one it sees
//! the index. So a key has at most one entry for each open snapshot, and entries need no numbers of Puts.

use kaml_index::{Cursor, KeyBuf, Slot};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory of one entry, the list that names it included; nodes of the table are two thirds full on average.
const ENTRY_BYTES: u64 = 160;

/// The place of a key in the order of its index, so listings can merge what the index has with what snapshots see.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Place {
    /// In a hash index.
    Listed(Cursor),
    /// In an ordered one.
    InOrder(KeyBuf),
}

impl Place {
    /// Memory of an entry with this place, besides [`ENTRY_BYTES`].
    fn more_bytes(&self) -> u64 {
        match self {
            Place::Listed(_) => 0,
            Place::InOrder(key) if key.as_short().is_some() => 0,
            Place::InOrder(key) => 2 * (key.as_bytes().len() as u64 + 16),
        }
    }

    /// Memory of an entry with this place.
    pub(crate) fn entry_bytes(&self) -> u64 {
        ENTRY_BYTES + self.more_bytes()
    }
}

/// Superseded states of the keys of a namespace.
#[derive(Debug, Default)]
pub(crate) struct Superseded {
    states: BTreeMap<(Place, u64), Option<Slot>>,
    /// Of each snapshot, the keys whose entries have its number.
    of_snapshot: BTreeMap<u64, Vec<Place>>,
}

/// What a step of releasing did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Released {
    /// Entries that no open snapshot needs any more.
    pub(crate) count: u64,
    /// Their memory.
    pub(crate) bytes: u64,
    /// Those of them that had a record.
    pub(crate) slots: Vec<Slot>,
    /// Entries of the snapshot remain.
    pub(crate) has_more: bool,
}

impl Superseded {
    /// The state of a key that a snapshot sees, if that was superseded since. The inner `None` means that the key did not exist.
    pub(crate) fn seen(&self, snapshot: u64, at: &Place) -> Option<Option<Slot>> {
        let ((place, _), state) = self.states.range((at.clone(), snapshot)..).next()?;
        (place == at).then_some(*state)
    }

    /// Keeps the state of a key that is about to be superseded, for the newest open snapshot and those before it. Returns false if
    /// none of them sees it: the key has changed since the newest one was opened.
    pub(crate) fn keep(&mut self, newest: u64, at: Place, state: Option<Slot>) -> bool {
        let last = self.states.range(..=(at.clone(), u64::MAX)).next_back();
        if last.is_some_and(|((place, number), _)| *place == at && *number >= newest) {
            return false;
        }
        self.states.insert((at.clone(), newest), state);
        self.of_snapshot.entry(newest).or_default().push(at);
        true
    }

    fn find(&mut self, at: &Place, slot: Slot) -> Option<&mut Option<Slot>> {
        let states = self.states.range_mut((at.clone(), 0)..=(at.clone(), u64::MAX));
        states.map(|(_, state)| state).find(|state| **state == Some(slot))
    }

    /// Whether a snapshot sees the record of a key at this place.
    pub(crate) fn holds(&self, at: &Place, slot: Slot) -> bool {
        self.states.range((at.clone(), 0)..=(at.clone(), u64::MAX)).any(|(_, state)| *state == Some(slot))
    }

    /// A record that snapshots see has moved. Returns false if none sees it.
    pub(crate) fn replace(&mut self, at: &Place, from: Slot, to: Slot) -> bool {
        self.find(at, from).map(|state| *state = Some(to)).is_some()
    }

    /// Releases up to `limit` entries of a snapshot that is over. Those that an earlier one of the `open` snapshots sees get its number.
    pub(crate) fn release<T>(&mut self, snapshot: u64, open: &BTreeMap<u64, T>, limit: usize) -> Released {
        let mut released = Released::default();
        let Some(mut keys) = self.of_snapshot.remove(&snapshot) else { return released };
        for at in keys.split_off(keys.len().saturating_sub(limit)) {
            let state = self.states.remove(&(at.clone(), snapshot)).expect("entries are listed with their snapshot");
            let before = self.states.range(..(at.clone(), snapshot)).next_back();
            let first = before.filter(|((place, _), _)| *place == at).map_or(0, |((_, number), _)| number + 1);
            match open.range(first..snapshot).next_back() {
                Some((&earlier, _)) => {
                    self.states.insert((at.clone(), earlier), state);
                    self.of_snapshot.entry(earlier).or_default().push(at);
                }
                None => {
                    released.count += 1;
                    released.bytes += at.entry_bytes();
                    released.slots.extend(state);
                }
            }
        }
        released.has_more = !keys.is_empty();
        if released.has_more {
            self.of_snapshot.insert(snapshot, keys);
        }
        released
    }

    /// Whether entries have the number of a snapshot.
    pub(crate) fn has_any_of(&self, snapshot: u64) -> bool {
        self.of_snapshot.contains_key(&snapshot)
    }

    /// Whether it has no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Entries, and their memory.
    pub(crate) fn size(&self) -> (u64, u64) {
        let bytes = self.states.keys().map(|(at, _)| at.entry_bytes()).sum();
        (self.states.len() as u64, bytes)
    }

    /// All records that snapshots see.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.states.values().copied().flatten()
    }

    /// Keys from one place to another, in order or from the back, whose states a snapshot sees here, and whether each existed. Looks at
    /// about `limit` entries; if there are more, also returns the last place that it has looked at.
    pub(crate) fn keys_seen(
        &self,
        snapshot: u64,
        range: (Bound<&Place>, Bound<&Place>),
        (from_back, limit): (bool, usize),
    ) -> (Vec<(Place, bool)>, Option<Place>) {
        let from = match range.0 {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Included(at) => Bound::Included((at.clone(), 0)),
            Bound::Excluded(at) => Bound::Excluded((at.clone(), u64::MAX)),
        };
        let to = match range.1 {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Included(at) => Bound::Included((at.clone(), u64::MAX)),
            Bound::Excluded(at) => Bound::Excluded((at.clone(), 0)),
        };
        let mut entries = self.states.range((from, to));
        let mut keys: Vec<(Place, bool)> = Vec::new();
        let mut last: Option<&Place> = None;
        for looked_at in 0.. {
            let entry = if from_back { entries.next_back() } else { entries.next() };
            let Some(((at, number), state)) = entry else { break };
            let is_new = last != Some(at);
            if is_new && looked_at >= limit {
                return (keys, last.cloned());
            }
            last = Some(at);
            let seen_before = keys.last_mut().filter(|(key, _)| key == at);
            match seen_before {
                _ if *number < snapshot => {}
                // From the back, the entry of the least number comes last.
                Some(seen) if from_back => seen.1 = state.is_some(),
                Some(_) => {}
                None => keys.push((at.clone(), state.is_some())),
            }
        }
        (keys, None)
    }
}

/// Whether a snapshot is over, shared by the core and readers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended(Arc<AtomicBool>);

impl Ended {
    /// The snapshot is over. Call it before the first of its entries is released.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether it is. A reader asks after it has read the table: if it has missed an entry that was released, it sees this.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::code;
    use kaml_index::Key;
    use kaml_testkit::Rng;
    use std::collections::BTreeSet;

    fn slot(at: u64) -> Slot {
        Slot { at, len: code(1) }
    }

    fn place(key: u64) -> Place {
        Place::InOrder(KeyBuf::from(Key::from(key)))
    }

    /// A table, what it should hold, and what each open snapshot should see.
    #[derive(Default)]
    struct World {
        table: Superseded,
        now: BTreeMap<u64, Slot>,
        open: BTreeMap<u64, BTreeMap<u64, Slot>>,
        closed: Vec<u64>,
        opened: u64,
        placed: u64,
        /// Places of records that the present state or a snapshot has.
        live: BTreeSet<u64>,
    }

    impl World {
        fn new_slot(&mut self) -> Slot {
            self.placed += 1;
            self.live.insert(self.placed);
            slot(self.placed)
        }

        fn supersede(&mut self, key: u64, is_put: bool) {
            let old = self.now.get(&key).copied();
            let newest = self.open.keys().next_back().copied();
            let is_kept = newest.is_some_and(|newest| self.table.keep(newest, place(key), old));
            if let Some(old) = old.filter(|_| !is_kept) {
                self.live.remove(&old.at);
            }
            if is_put {
                let to = self.new_slot();
                self.now.insert(key, to);
            } else {
                self.now.remove(&key);
            }
        }

        /// Collection moves a record, whether the present state or a snapshot has it.
        fn move_record(&mut self, from: u64) {
            self.live.remove(&from);
            let (from, to) = (slot(from), self.new_slot());
            let is_now = self.now.values_mut().find(|slot| **slot == from).map(|slot| *slot = to).is_some();
            let table = &mut self.table;
            assert!(
                is_now || (0..10).any(|key| table.holds(&place(key), from) && table.replace(&place(key), from, to))
            );
            let seen = self.open.values_mut().flat_map(|seen| seen.values_mut());
            seen.filter(|slot| **slot == from).for_each(|slot| *slot = to);
        }

        fn release(&mut self, number: u64, limit: usize) -> bool {
            let released = self.table.release(number, &self.open, limit);
            for slot in released.slots {
                assert!(self.live.remove(&slot.at), "a record is released once");
            }
            released.has_more
        }

        /// All keys after one and up to another, in pages.
        fn listed(&self, snapshot: u64, (from, to): (u64, u64), how: (bool, usize)) -> Vec<(Place, bool)> {
            let (mut from, mut to) = (Bound::Excluded(place(from)), Bound::Included(place(to)));
            let mut all = Vec::new();
            loop {
                let (keys, next) = self.table.keys_seen(snapshot, (from.as_ref(), to.as_ref()), how);
                all.extend(keys);
                match next {
                    None => return all,
                    Some(last) if how.0 => to = Bound::Excluded(last),
                    Some(last) => from = Bound::Excluded(last),
                }
            }
        }

        fn check(&self, rng: &mut Rng) {
            for (number, seen) in &self.open {
                for key in 0..10 {
                    let found = self.table.seen(*number, &place(key)).unwrap_or_else(|| self.now.get(&key).copied());
                    assert_eq!(found, seen.get(&key).copied(), "key {key} of snapshot {number}");
                }
                let from = rng.below(10);
                let to = from + rng.below(10 - from);
                let state = |key| Some((place(key), self.table.seen(*number, &place(key))?.is_some()));
                let mut expected: Vec<_> = (from + 1..=to).filter_map(state).collect();
                assert_eq!(self.listed(*number, (from, to), (false, 1 + rng.below(4) as usize)), expected);
                expected.reverse();
                assert_eq!(self.listed(*number, (from, to), (true, 1 + rng.below(4) as usize)), expected);
            }
            if self.closed.is_empty() {
                assert!(self.table.size().0 <= 10 * self.open.len() as u64);
            }
        }
    }

    /// Goal:   each open snapshot sees the state that every key had when it was opened, whatever is superseded, moved, closed and released
    ///         meanwhile; a key has at most one entry for each open snapshot; after the last one is released the table is empty, and each
    ///         record was released exactly once.
    /// Method: random steps on ten keys, with snapshots as copies of a map.
    #[test]
    fn snapshots_see_what_they_saw() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut world = World::default();
            for _ in 0..300 {
                match rng.below(10) {
                    0 => {
                        world.opened += 1;
                        world.open.insert(world.opened, world.now.clone());
                    }
                    1 => {
                        let nth = rng.below(world.open.len() as u64 + 1) as usize;
                        if let Some(number) = world.open.keys().nth(nth).copied() {
                            world.open.remove(&number);
                            world.closed.push(number);
                        }
                    }
                    2 => {
                        if let Some(number) = world.closed.first().copied()
                            && !world.release(number, 1 + rng.below(3) as usize)
                        {
                            world.closed.remove(0);
                        }
                    }
                    3 => {
                        let nth = rng.below(world.live.len() as u64 + 1) as usize;
                        if let Some(from) = world.live.iter().nth(nth).copied() {
                            world.move_record(from);
                        }
                    }
                    _ => world.supersede(rng.below(10), rng.below(3) > 0),
                }
                world.check(&mut rng);
            }
            world.closed.extend(std::mem::take(&mut world.open).into_keys());
            for number in std::mem::take(&mut world.closed) {
                assert!(!world.release(number, usize::MAX) && !world.table.has_any_of(number));
            }
            assert_eq!((world.table.size(), world.table.slots().count()), ((0, 0), 0));
            assert_eq!(world.live, world.now.values().map(|slot| slot.at).collect(), "seed {seed}");
        }
    }
}
