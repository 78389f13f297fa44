//! Many keys at once, in two commands of our own: one names keys, one reads them.
//!
//! Lives here:       the lists of a controller, Name Keys, Retrieve Named, Exist Named; values in the order of their keys.
//! Lives elsewhere:  their data (`wire::named`), who reads (`workers`); the page for people (`docs/nvme-vendor.md`).

use super::budget::Budget;
use super::core::{Origin, Target};
use super::engine::status_of;
use super::keyvalue::room;
use super::reservations::Use;
use super::workers::READS_AT_ONCE;
use crate::wire::command::Command;
use crate::wire::named::{decode_keys, put_found};
use crate::wire::status::Status;
use kaml::{AsyncQueue, Bytes, Key, NamespaceId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

/// Lists of one controller at most: the oldest goes, and also while the lists of all take too much memory (`budget`).
const LISTS_MAX: usize = 64;

/// In a box, whose memory goes with the list, also if somebody still asks for it.
type Keys = Box<[(NamespaceId, Key)]>;

/// Keys that a host has named, oldest first.
pub(crate) struct Lists {
    lists: VecDeque<(u32, Arc<Keys>)>,
    last: u32,
    budget: Budget,
}

impl Lists {
    /// None yet.
    pub(crate) fn new(budget: Budget) -> Lists {
        Lists { lists: VecDeque::new(), last: 0, budget }
    }

    fn add(&mut self, keys: Arc<Keys>) -> u32 {
        self.budget.take_list(size_of_val(&**keys));
        self.last = self.last.wrapping_add(1);
        self.lists.push_back((self.last, keys));
        while self.lists.len() > LISTS_MAX || self.lists.len() > 1 && self.budget.has_too_many_lists() {
            self.forget_oldest();
        }
        self.last
    }

    fn forget_oldest(&mut self) {
        if let Some((_, keys)) = self.lists.pop_front() {
            self.budget.give_list_back(size_of_val(&**keys));
        }
    }

    fn get(&self, number: u32) -> Result<&Arc<Keys>, Status> {
        let found = self.lists.iter().find(|(of, _)| *of == number);
        found.map(|(_, keys)| keys).ok_or(Status::NO_SUCH_LIST)
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        (0..self.lists.len()).for_each(|_| self.forget_oldest());
    }
}

impl Target {
    /// Dword 10 is the number of keys, the result that of the list.
    pub(crate) fn name_keys(&mut self, id: u16, command: &Command, data: &[u8]) -> Result<u64, Status> {
        let keys = decode_keys(data, command.cdw10.get())?;
        keys.iter().try_for_each(|(nsid, _)| self.holds_records(id, *nsid, Use::Read))?;
        let controller = self.controllers.get_mut(&id).ok_or(Status::INTERNAL)?;
        Ok(controller.lists.add(Arc::new(keys.into())).into())
    }

    /// The keys of list dword 11, and the number from which on, dword 12. The list may go before a worker reads it, so that those that
    /// wait for workers hold no memory.
    fn named(&self, id: u16, command: &Command) -> Result<(Weak<Keys>, usize), Status> {
        let controller = self.controllers.get(&id).ok_or(Status::INTERNAL)?;
        let keys = controller.lists.get(command.cdw11.get())?;
        let first = command.cdw12.get() as usize;
        if first >= keys.len() {
            return Err(Status::INVALID_FIELD);
        }
        keys.iter().try_for_each(|(nsid, _)| self.holds_records(id, *nsid, Use::Read))?;
        Ok((Arc::downgrade(keys), first))
    }

    /// Tells of as many keys as there is room for; the result says of how many.
    pub(crate) fn retrieve_named(&mut self, origin: Origin, id: u16, command: &Command) -> Result<(), Status> {
        let (keys, first) = self.named(id, command)?;
        let room = room(command);
        self.engine.start_read(origin, move |worker| {
            let Some(keys) = keys.upgrade() else { return Err::<u64, _>(Status::NO_SUCH_LIST).into() };
            Telling::new(&keys[first..], room).tell(worker.queue()).into()
        });
        Ok(())
    }

    /// Tells of as many keys as there is room for, one byte each; the result says of how many.
    pub(crate) fn exist_named(&mut self, origin: Origin, id: u16, command: &Command) -> Result<(), Status> {
        let (keys, first) = self.named(id, command)?;
        let room = room(command);
        self.engine.start_read(origin, move |worker| {
            let Some(keys) = keys.upgrade() else { return Err::<u64, _>(Status::NO_SUCH_LIST).into() };
            let exists = |(nsid, key): &(NamespaceId, Key)| worker.device.exists(*nsid, *key).map(u8::from);
            let told: Result<Vec<u8>, _> = keys[first..].iter().take(room).map(exists).collect();
            told.map(|told| (told.len() as u64, told)).map_err(|error| status_of(&error)).into()
        });
        Ok(())
    }
}

/// Values on their way into the answer, which has them in the order of their keys, as many as there is room for.
///
/// Values come in any order. Those that come early are kept until it is their turn, but not those for which there will be no room
/// then: so all together take no more than the answer may.
struct Telling<'a> {
    keys: &'a [(NamespaceId, Key)],
    room: usize,
    out: Vec<u8>,
    told: usize,
    /// Reads that were started.
    started: usize,
    /// By their place.
    early: BTreeMap<usize, Result<Bytes, Status>>,
    early_bytes: usize,
    /// Keys from here on are not told.
    end: usize,
}

impl<'a> Telling<'a> {
    fn new(keys: &'a [(NamespaceId, Key)], room: usize) -> Telling<'a> {
        let (early, end) = (BTreeMap::new(), keys.len());
        Telling { keys, room, out: Vec::new(), told: 0, started: 0, early, early_bytes: 0, end }
    }

    fn tell(mut self, queue: &mut AsyncQueue) -> Result<(u64, Vec<u8>), Status> {
        let mut answers = Vec::new();
        while self.told < self.end {
            self.start(queue);
            if !self.early.contains_key(&self.told) {
                queue.poll(true, &mut answers);
            }
            answers.drain(..).for_each(|answer| self.came(answer.token as usize, answer.result, queue));
            self.tell_early(queue);
        }
        // Those behind the end are in flight, or have come.
        while queue.in_flight() > 0 {
            queue.poll(true, &mut answers);
            answers.drain(..).flat_map(|answer| answer.result.ok().flatten()).for_each(|value| queue.recycle(value));
        }
        if self.told == 0 { Err(Status::SGL_LENGTH) } else { Ok((self.told as u64, self.out)) }
    }

    fn start(&mut self, queue: &mut AsyncQueue) {
        while self.started < self.end && queue.in_flight() + self.early.len() < READS_AT_ONCE {
            let (place, (nsid, key)) = (self.started, self.keys[self.started]);
            self.started += 1;
            if let Err(error) = queue.get_with_room(place as u64, nsid, key, 0) {
                self.came(place, Err(error), queue);
            }
        }
    }

    fn came(&mut self, place: usize, value: Result<Option<Bytes>, kaml::Error>, queue: &mut AsyncQueue) {
        let value = value.map_err(|error| status_of(&error)).and_then(|value| value.ok_or(Status::NO_SUCH_KEY));
        self.early_bytes += value.as_ref().map_or(0, |value| value.len());
        if place >= self.end {
            return self.spend(value, queue);
        }
        self.early.insert(place, value);
        while self.out.len() + self.early_bytes > self.room
            && self.early.last_key_value().is_some_and(|(last, _)| *last > self.told)
            && let Some((last, value)) = self.early.pop_last()
        {
            self.end = self.end.min(last);
            self.spend(value, queue);
        }
    }

    /// Tells of those whose turn it is.
    fn tell_early(&mut self, queue: &mut AsyncQueue) {
        while self.told < self.end
            && let Some(value) = self.early.remove(&self.told)
        {
            let bytes = value.as_ref().map(|value| &**value).map_err(|status| *status);
            match put_found(&mut self.out, bytes, self.room) {
                true => self.told += 1,
                false => self.end = self.told,
            }
            self.spend(value, queue);
        }
    }

    fn spend(&mut self, value: Result<Bytes, Status>, queue: &mut AsyncQueue) {
        if let Ok(value) = value {
            self.early_bytes -= value.len();
            queue.recycle(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   lists that hosts forget take no more than their part of the target's memory, whoever has them, and the last one of a
    ///         controller stays.
    /// Method: memory for sixteen lists, so that two is their part, and three controllers.
    #[test]
    fn lists_are_bounded() {
        let keys: Arc<Keys> = Arc::new(vec![(1, Key::new(b"k").unwrap()); 64].into());
        let budget = Budget::new(16 * size_of_val(&**keys));
        let mut all = [(); 3].map(|()| Lists::new(budget.clone()));
        let numbers = |lists: &Lists| lists.lists.iter().map(|(number, _)| *number).collect::<Vec<_>>();
        let add = |lists: &mut Lists, count: usize| {
            for _ in 0..count {
                lists.add(keys.clone());
            }
        };
        add(&mut all[0], 5);
        assert_eq!(numbers(&all[0]), [4, 5]);
        all[1..].iter_mut().for_each(|lists| add(lists, 3));
        assert_eq!(all.each_ref().map(numbers), [vec![4, 5], vec![3], vec![3]]);
        assert!(budget.has_too_many_lists());
        add(&mut all[0], 1);
        assert_eq!(numbers(&all[0]), [6]);
        drop(all);
        let mut lists = Lists::new(budget);
        add(&mut lists, 3);
        assert_eq!(numbers(&lists), [2, 3], "those of controllers that have gone do not count");
    }
}
