//! A map from blocks to what is known of a few of them.
//!
//! Lives here:       finding a block's entry in two steps, however many blocks a device has.
//! May be called by: `writers`, for the blocks that are being written.
//!
//! A place for each block (four bytes) holds the position of its entry among the entries, which are few and without gaps.

use std::ops::Index;

/// The place of a block without an entry.
const NOWHERE: u32 = u32::MAX;

/// Entries of type `T` by block.
pub(crate) struct BlockMap<T> {
    places: Vec<u32>,
    entries: Vec<(u32, T)>,
}

impl<T> BlockMap<T> {
    /// No entries, for blocks below `block_count`.
    pub(crate) fn new(block_count: u32) -> BlockMap<T> {
        BlockMap { places: vec![NOWHERE; block_count as usize], entries: Vec::new() }
    }

    /// There are so many blocks from now on. Those that go have no entries.
    pub(crate) fn resize(&mut self, block_count: u32) {
        let is_gone = |place: &u32| *place == NOWHERE;
        assert!(self.places.iter().skip(block_count as usize).all(is_gone), "blocks with entries stay");
        self.places.resize(block_count as usize, NOWHERE);
    }

    pub(crate) fn get(&self, block: u32) -> Option<&T> {
        self.entries.get(self.places[block as usize] as usize).map(|(_, entry)| entry)
    }

    pub(crate) fn get_mut(&mut self, block: u32) -> Option<&mut T> {
        self.entries.get_mut(self.places[block as usize] as usize).map(|(_, entry)| entry)
    }

    /// Adds the entry of a block that has none.
    pub(crate) fn insert(&mut self, block: u32, entry: T) {
        let place = &mut self.places[block as usize];
        assert!(*place == NOWHERE, "block {block} has an entry");
        *place = self.entries.len() as u32;
        self.entries.push((block, entry));
    }

    pub(crate) fn remove(&mut self, block: u32) -> Option<T> {
        let place = std::mem::replace(&mut self.places[block as usize], NOWHERE);
        if place == NOWHERE {
            return None;
        }
        let (_, entry) = self.entries.swap_remove(place as usize);
        if let Some((moved, _)) = self.entries.get(place as usize) {
            self.places[*moved as usize] = place;
        }
        Some(entry)
    }

    /// All entries; their order follows from what was inserted and removed, and means nothing.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|(_, entry)| entry)
    }
}

impl<T> Index<u32> for BlockMap<T> {
    type Output = T;
    fn index(&self, block: u32) -> &T {
        self.get(block).expect("the block has an entry")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Goal:   entries keep their blocks when blocks come and go.
    /// Method: from two blocks to ten and back to five.
    #[test]
    fn it_is_resized() {
        let mut map = BlockMap::new(2);
        map.insert(1, 7);
        map.resize(10);
        map.insert(9, 8);
        assert_eq!((map.get(1), map.get(9), map.get(8)), (Some(&7), Some(&8), None));
        assert_eq!(map.remove(9), Some(8));
        map.resize(5);
        assert_eq!((map.get(1), map.get(4)), (Some(&7), None));
    }

    /// Goal:   it is a map.
    /// Method: insertions and removals in a mixed order, compared with a `BTreeMap` after each.
    #[test]
    fn it_is_a_map() {
        let (mut map, mut model) = (BlockMap::new(16), BTreeMap::new());
        for step in 0..1000u32 {
            let block = step.wrapping_mul(2_654_435_761) >> 28;
            let removed = model.remove(&block);
            assert_eq!(map.remove(block), removed);
            if removed.is_none() {
                map.insert(block, step);
                model.insert(block, step);
            }
            (0..16).for_each(|block| assert_eq!(map.get(block), model.get(&block)));
            let mut values: Vec<u32> = map.values().copied().collect();
            values.sort_unstable();
            let mut expected: Vec<u32> = model.values().copied().collect();
            expected.sort_unstable();
            assert_eq!(values, expected);
        }
    }
}
