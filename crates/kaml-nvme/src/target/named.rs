//! Many keys at once, in two commands of our own: one names keys, one reads them.
//!
//! Lives here:       the lists of keys and ranges of a controller, Name Keys, Retrieve Named, Exist Named; values in the order of their keys.
//! Lives elsewhere:  their data (`wire::named`), who reads (`workers`); the page for people (`docs/nvme-vendor.md`).

use super::budget::Budget;
use super::core::{Origin, Target};
use super::engine::status_of;
use super::keyvalue::room;
use super::ranges::NamedRange;
use super::reservations::Use;
use super::workers::READS_AT_ONCE;
use crate::wire::command::Command;
use crate::wire::keyvalue::KeyFormat;
use crate::wire::named::{decode_keys, decode_long_keys, put_found};
use crate::wire::status::Status;
use kaml::{AsyncQueue, Bytes, Key, KeyBuf, NamespaceId, Snapshot};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

/// Lists of one controller at most: the oldest is dropped, and also while the lists of all take too much memory (`budget`).
const LISTS_MAX: usize = 64;

/// In a box, whose memory is freed with the list, even if a command still refers to it.
type Keys = Box<[(NamespaceId, KeyBuf)]>;

/// What they take of memory.
fn bytes_of(keys: &Keys) -> usize {
    let long = |key: &KeyBuf| key.as_bytes().len().saturating_sub(Key::BYTES_MAX);
    size_of_val(&**keys) + keys.iter().map(|(_, key)| long(key)).sum::<usize>()
}

/// What a host has named.
enum Named {
    Keys(Arc<Keys>),
    Range(Arc<NamedRange>),
}

impl Named {
    fn bytes(&self) -> usize {
        match self {
            Named::Keys(keys) => bytes_of(keys),
            Named::Range(range) => range.bytes(),
        }
    }
}

/// Keys and ranges that a host has named, oldest first.
pub(crate) struct Lists {
    lists: VecDeque<(u32, Named)>,
    last: u32,
    budget: Budget,
}

impl Lists {
    /// None yet.
    pub(crate) fn new(budget: Budget) -> Lists {
        Lists { lists: VecDeque::new(), last: 0, budget }
    }

    /// Returns the number of the range.
    pub(super) fn add_range(&mut self, range: NamedRange) -> u32 {
        self.add(Named::Range(Arc::new(range)))
    }

    fn add(&mut self, named: Named) -> u32 {
        self.budget.take_list(named.bytes());
        self.last = self.last.wrapping_add(1);
        self.lists.push_back((self.last, named));
        while self.lists.len() > LISTS_MAX || self.lists.len() > 1 && self.budget.has_too_many_lists() {
            self.forget_oldest();
        }
        self.last
    }

    fn forget_oldest(&mut self) {
        if let Some((_, named)) = self.lists.pop_front() {
            self.budget.give_list_back(named.bytes());
        }
    }

    fn get(&self, number: u32) -> Result<&Named, Status> {
        let found = self.lists.iter().find(|(of, _)| *of == number);
        found.map(|(_, named)| named).ok_or(Status::NO_SUCH_LIST)
    }

    fn keys(&self, number: u32) -> Result<&Arc<Keys>, Status> {
        match self.get(number)? {
            Named::Keys(keys) => Ok(keys),
            Named::Range(_) => Err(Status::NO_SUCH_LIST),
        }
    }

    /// The range of a number.
    pub(super) fn range(&self, number: u32) -> Result<&Arc<NamedRange>, Status> {
        match self.get(number)? {
            Named::Range(range) => Ok(range),
            Named::Keys(_) => Err(Status::NO_SUCH_LIST),
        }
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        (0..self.lists.len()).for_each(|_| self.forget_oldest());
    }
}

impl Target {
    /// Dword 10 is the number of keys, dword 11 their format, the result the number of the list.
    pub(crate) fn name_keys(&mut self, id: u16, command: &Command, data: &[u8]) -> Result<u64, Status> {
        let count = command.cdw10.get();
        let keys: Keys = match KeyFormat::of(command)? {
            KeyFormat::Short => decode_keys(data, count)?.into_iter().map(|(nsid, key)| (nsid, key.into())).collect(),
            KeyFormat::Long => decode_long_keys(data, count)?.into(),
        };
        keys.iter().try_for_each(|(nsid, _)| self.holds_records(id, *nsid, Use::Read))?;
        let controller = self.controllers.get_mut(&id).ok_or(Status::INTERNAL)?;
        Ok(controller.lists.add(Named::Keys(Arc::new(keys))).into())
    }

    /// The keys of list dword 11, and the number from which on, dword 12. The list may go before a worker reads it, so those that
    /// wait for workers hold no memory.
    fn named(&self, id: u16, command: &Command) -> Result<(Weak<Keys>, usize), Status> {
        let controller = self.controllers.get(&id).ok_or(Status::INTERNAL)?;
        let keys = controller.lists.keys(command.cdw11.get())?;
        let first = command.cdw12.get() as usize;
        if first >= keys.len() {
            return Err(Status::INVALID_FIELD);
        }
        keys.iter().try_for_each(|(nsid, _)| self.holds_records(id, *nsid, Use::Read))?;
        Ok((Arc::downgrade(keys), first))
    }

    /// Returns as many keys as there is room for; the result is their number.
    pub(crate) fn retrieve_named(&mut self, origin: Origin, id: u16, command: &Command) -> Result<(), Status> {
        let (keys, first) = self.named(id, command)?;
        let (room, snapshot) = (room(command), self.snapshot_of(id, command)?);
        self.engine.start_read(origin, move |worker| {
            let Some(keys) = keys.upgrade() else { return Err::<u64, _>(Status::NO_SUCH_LIST).into() };
            if let Some(snapshot) = snapshot {
                return retrieved_at(&snapshot, &keys[first..], room).into();
            }
            ListReply::new(&keys[first..], room).collect(worker.queue()).into()
        });
        Ok(())
    }

    /// Returns as many keys as there is room for, one byte each; the result is their number.
    pub(crate) fn exist_named(&mut self, origin: Origin, id: u16, command: &Command) -> Result<(), Status> {
        let (keys, first) = self.named(id, command)?;
        let (room, snapshot) = (room(command), self.snapshot_of(id, command)?);
        self.engine.start_read(origin, move |worker| {
            let Some(keys) = keys.upgrade() else { return Err::<u64, _>(Status::NO_SUCH_LIST).into() };
            let exists = |(nsid, key): &(NamespaceId, KeyBuf)| match &snapshot {
                Some(snapshot) => snapshot.exists(*nsid, key).map(u8::from),
                None => worker.device.exists(*nsid, key).map(u8::from),
            };
            let found: Result<Vec<u8>, _> = keys[first..].iter().take(room).map(exists).collect();
            found.map(|found| (found.len() as u64, found)).map_err(|error| status_of(&error)).into()
        });
        Ok(())
    }
}

/// Values as a snapshot has them, one after the other: as many as there is room for, and their number.
fn retrieved_at(snapshot: &Snapshot, keys: &[(NamespaceId, KeyBuf)], room: usize) -> Result<(u64, Vec<u8>), Status> {
    let (mut out, mut count) = (Vec::new(), 0);
    for (nsid, key) in keys {
        let value = snapshot.get(*nsid, key).map_err(|error| status_of(&error));
        let value = value.and_then(|value| value.ok_or(Status::NO_SUCH_KEY));
        if !put_found(&mut out, value.as_deref().map_err(|status| *status), room) {
            break;
        }
        count += 1;
    }
    if count == 0 { Err(Status::SGL_LENGTH) } else { Ok((count, out)) }
}

/// Values on their way into the answer, which has them in the order of their keys, as many as there is room for.
///
/// Values come in any order. Those that come early are kept until it is their turn, but not those for which there will be no room
/// then: so all together take no more than the answer may.
struct ListReply<'a> {
    keys: &'a [(NamespaceId, KeyBuf)],
    room: usize,
    out: Vec<u8>,
    done: usize,
    /// Reads that were started.
    started: usize,
    /// By their place.
    early: BTreeMap<usize, Result<Bytes, Status>>,
    early_bytes: usize,
    /// Keys from here on are not returned.
    end: usize,
}

impl<'a> ListReply<'a> {
    fn new(keys: &'a [(NamespaceId, KeyBuf)], room: usize) -> ListReply<'a> {
        let (early, end) = (BTreeMap::new(), keys.len());
        ListReply { keys, room, out: Vec::new(), done: 0, started: 0, early, early_bytes: 0, end }
    }

    fn collect(mut self, queue: &mut AsyncQueue) -> Result<(u64, Vec<u8>), Status> {
        let mut answers = Vec::new();
        while self.done < self.end {
            self.start(queue);
            if !self.early.contains_key(&self.done) {
                queue.poll(true, &mut answers);
            }
            answers.drain(..).for_each(|answer| self.came(answer.token as usize, answer.result, queue));
            self.append_early(queue);
        }
        // Those after the end are in flight, or have come.
        while queue.in_flight() > 0 {
            queue.poll(true, &mut answers);
            answers.drain(..).flat_map(|answer| answer.result.ok().flatten()).for_each(|value| queue.recycle(value));
        }
        if self.done == 0 { Err(Status::SGL_LENGTH) } else { Ok((self.done as u64, self.out)) }
    }

    fn start(&mut self, queue: &mut AsyncQueue) {
        while self.started < self.end && queue.in_flight() + self.early.len() < READS_AT_ONCE {
            let (place, (nsid, key)) = (self.started, &self.keys[self.started]);
            self.started += 1;
            if let Err(error) = queue.get_with_room(place as u64, *nsid, key, 0) {
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
            && self.early.last_key_value().is_some_and(|(last, _)| *last > self.done)
            && let Some((last, value)) = self.early.pop_last()
        {
            self.end = self.end.min(last);
            self.spend(value, queue);
        }
    }

    /// Returns those whose turn it is.
    fn append_early(&mut self, queue: &mut AsyncQueue) {
        while self.done < self.end
            && let Some(value) = self.early.remove(&self.done)
        {
            let bytes = value.as_ref().map(|value| &**value).map_err(|status| *status);
            match put_found(&mut self.out, bytes, self.room) {
                true => self.done += 1,
                false => self.end = self.done,
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

    /// Goal:   lists that hosts forget take no more than their part of the target's memory, whichever hosts have them, and the last one of a
    ///         controller is kept.
    /// Method: memory for sixteen lists, so two is their part, and three controllers.
    #[test]
    fn lists_are_bounded() {
        let keys: Arc<Keys> = Arc::new(vec![(1, KeyBuf::new(&[7; 1000]).unwrap()); 64].into());
        let budget = Budget::new(16 * bytes_of(&keys));
        let mut all = [(); 3].map(|()| Lists::new(budget.clone()));
        let numbers = |lists: &Lists| lists.lists.iter().map(|(number, _)| *number).collect::<Vec<_>>();
        let add = |lists: &mut Lists, count: usize| {
            for _ in 0..count {
                lists.add(Named::Keys(keys.clone()));
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
