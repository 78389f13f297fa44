//! A table of slots by hash, one cache line for most lookups.
//!
//! Lives here:       linear probing over 8-byte cells: the upper half of a hash, and a slot.
//! Lives elsewhere:  what a slot is; whether it is the one that was meant is for the caller to decide.

/// A cell without a slot.
const EMPTY: u64 = 0;
const CELLS_MIN: usize = 16;

/// Slots by hash. Hashes are spread well in their upper half.
#[derive(Default)]
pub(super) struct Table {
    /// Tag in the upper half, slot and one in the lower.
    cells: Vec<u64>,
    count: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn bytes(&self) -> usize {
        self.cells.capacity() * size_of::<u64>()
    }

    /// The slot of this hash that is the one.
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        if self.cells.is_empty() {
            return None;
        }
        let mask = self.cells.len() - 1;
        let tag = hash >> 32;
        let mut at = tag as usize & mask;
        loop {
            let cell = self.cells[at];
            if cell == EMPTY {
                return None;
            }
            if cell >> 32 == tag && is_it(cell as u32 - 1) {
                return Some(cell as u32 - 1);
            }
            at = (at + 1) & mask;
        }
    }

    /// Asks the processor to fetch where the slots of this hash begin.
    pub(super) fn prefetch(&self, hash: u64) {
        if let Some(cell) = self.cells.get((hash >> 32) as usize & self.cells.len().wrapping_sub(1)) {
            kaml_flash::prefetch(cell);
        }
    }

    /// Adds a slot that does not exist.
    pub(super) fn insert(&mut self, hash: u64, slot: u32) {
        // At most three quarters full: a miss looks at 8.5 cells on the average then, a hit at 2.5.
        if (self.count + 1) * 4 > self.cells.len() * 3 {
            let cells = vec![EMPTY; (self.cells.len() * 2).max(CELLS_MIN)];
            let old = std::mem::replace(&mut self.cells, cells);
            old.into_iter().filter(|cell| *cell != EMPTY).for_each(|cell| self.place(cell));
        }
        self.place((hash >> 32) << 32 | u64::from(slot + 1));
        self.count += 1;
    }

    fn place(&mut self, cell: u64) {
        let mask = self.cells.len() - 1;
        let mut at = (cell >> 32) as usize & mask;
        while self.cells[at] != EMPTY {
            at = (at + 1) & mask;
        }
        self.cells[at] = cell;
    }

    /// Takes a slot out that exists.
    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        let mask = self.cells.len() - 1;
        let wanted = (hash >> 32) << 32 | u64::from(slot + 1);
        let mut hole = (hash >> 32) as usize & mask;
        while self.cells[hole] != wanted {
            assert_ne!(self.cells[hole], EMPTY, "a slot is removed that exists");
            hole = (hole + 1) & mask;
        }
        // Those after it move up, unless they are where they belong.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let cell = self.cells[at];
            if cell == EMPTY {
                break;
            }
            let home = (cell >> 32) as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.cells[hole] = cell;
                hole = at;
            }
        }
        self.cells[hole] = EMPTY;
        self.count -= 1;
    }

    /// Frees memory that was needed for more slots than exist now, with room for half as many more.
    pub(super) fn shrink(&mut self) {
        let len = (self.count * 2).next_power_of_two().max(CELLS_MIN);
        if len < self.cells.len() {
            let old = std::mem::replace(&mut self.cells, vec![EMPTY; len]);
            old.into_iter().filter(|cell| *cell != EMPTY).for_each(|cell| self.place(cell));
        }
    }

    /// Takes everything out.
    pub(super) fn clear(&mut self) {
        self.cells.clear();
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Goal:   the table has what was inserted and not removed, with colliding hashes too.
    /// Method: 20 000 random inserts, removes and lookups over few hashes, against a map.
    #[test]
    fn it_behaves_like_a_map() {
        let (mut table, mut model) = (Table::default(), BTreeMap::new());
        let mut x = 1u64;
        for round in 0..20_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let slot = (x >> 40) as u32 % 500;
            let hash = (u64::from(slot) % 97 * 0x9e37_79b9) << 32;
            if model.remove(&slot).is_some() {
                table.remove(hash, slot);
            } else {
                table.insert(hash, slot);
                model.insert(slot, round);
            }
            let probe = (x >> 20) as u32 % 500;
            let found = table.find((u64::from(probe) % 97 * 0x9e37_79b9) << 32, |slot| slot == probe);
            assert_eq!(found.is_some(), model.contains_key(&probe));
            assert_eq!(table.len(), model.len());
            if round % 100 == 0 {
                table.shrink();
            }
        }
    }
}
