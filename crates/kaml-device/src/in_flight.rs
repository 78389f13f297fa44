//! Operations in flight, by their ids.
//!
//! Lives here:       what each of them is for.
//! Lives elsewhere:  giving ids and taking completions (`core`).
//!
//! Ids are given in turn and operations end soon after each other, so a window over the ids is all that it takes.

use kaml_flash::IoId;
use std::collections::VecDeque;
use std::ops::RangeTo;

/// What an operation in flight is for.
pub(crate) enum Pending {
    Persist { frame: u64 },
    Program,
    Erase { block: u32 },
    Flush,
    Root,
    Resize,
    GcOob { block: u32 },
    GcRead { block: u32 },
}

/// What is in progress.
#[derive(Default)]
pub(crate) struct InFlight {
    /// The id that the window begins with.
    first: IoId,
    window: VecDeque<Option<Pending>>,
    count: usize,
}

impl InFlight {
    /// Adds an operation whose id no other one in flight has.
    pub(crate) fn insert(&mut self, id: IoId, pending: Pending) {
        if self.count == 0 {
            self.window.clear();
            self.first = id;
        }
        // Only what is tried again has an id from before.
        while id < self.first {
            self.window.push_front(None);
            self.first -= 1;
        }
        let place = (id - self.first) as usize;
        while self.window.len() <= place {
            self.window.push_back(None);
        }
        let before = self.window[place].replace(pending);
        assert!(before.is_none(), "operation {id} is in flight");
        self.count += 1;
    }

    /// Takes an operation that has ended; nothing if there is none of this id.
    pub(crate) fn remove(&mut self, id: IoId) -> Option<Pending> {
        let pending = self.window.get_mut(id.checked_sub(self.first)? as usize)?.take()?;
        self.count -= 1;
        while self.window.front().is_some_and(Option::is_none) {
            self.window.pop_front();
            self.first += 1;
        }
        Some(pending)
    }

    /// Those with smaller ids.
    pub(crate) fn range(&self, ids: RangeTo<IoId>) -> impl Iterator<Item = (IoId, &Pending)> {
        let ids = self.first..ids.end.max(self.first);
        ids.zip(&self.window).filter_map(|(id, pending)| Some((id, pending.as_ref()?)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ops: &InFlight, end: IoId) -> Vec<IoId> {
        ops.range(..end).map(|(id, _)| id).collect()
    }

    /// Goal:   operations are found by their ids, whatever order they end in, and again under an id from before.
    /// Method: a few, ended out of order; one that comes back.
    #[test]
    fn operations_are_found() {
        let mut ops = InFlight::default();
        (5..9).for_each(|id| ops.insert(id, Pending::Program));
        assert!(ops.remove(6).is_some() && ops.remove(6).is_none());
        assert!(ops.remove(4).is_none() && ops.remove(9).is_none());
        assert_eq!((ids(&ops, 8), ids(&ops, 3), ops.len()), (vec![5, 7], vec![], 3));
        assert!(ops.remove(5).is_some());
        ops.insert(6, Pending::Program);
        assert_eq!(ids(&ops, 100), [6, 7, 8]);
        (6..9).for_each(|id| assert!(ops.remove(id).is_some()));
        assert!(ops.is_empty());
        ops.insert(2, Pending::Flush);
        assert_eq!(ids(&ops, 100), [2]);
    }
}
