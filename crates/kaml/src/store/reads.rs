//! Reading through the cache.
//!
//! Lives here:       hits, loads (one device Get for all who miss a key), batched reads.
//! Lives elsewhere:  locks and memory (`cache`), reads of transactions (`txn`).
//! Implements:       paper:KAML III.D (probe the cache, else Get and insert).

use super::backing::BatchReader;
use super::cache::{Cache, LockHold, Locked, Peek, Place};
use super::evict::USES_MAX;
use super::line::Ticket;
use super::locks::XcbId;
use super::shard::{Content, Shard, View};
use super::xcb::Phase;
use crate::{Error, KeyRef, NamespaceId};
use std::sync::Arc;

/// What a read through the cache came to: the value and the commit it is durable with; or nothing, because a
/// transaction is changing the record.
pub(super) type Loaded = Option<(Option<Arc<[u8]>>, Ticket)>;

/// A read of the device in progress.
#[derive(Clone, Copy)]
pub(super) struct Load {
    number: u32,
    /// Whether the cache keeps a value that it finds. It does not where records expire.
    is_kept: bool,
}

impl Cache {
    /// Looks a record up and shows it, under the lock of its shard.
    pub(super) fn peek<R>(&self, place: &Place, see: impl FnOnce(&Arc<[u8]>) -> R) -> Peek<R> {
        let mut shard = self.raw(place.shard);
        let Some(slot) = shard.find(&place.id, place.hash) else { return Peek::Miss };
        if self.is_changing(&shard, place, slot) {
            return Peek::Busy;
        }
        let entry = shard.entry(slot);
        let peek = match entry.view() {
            View::Value(value) => Peek::Hit(see(value), entry.ticket()),
            View::Absent => Peek::Absent(entry.ticket()),
            View::Unknown | View::Loading(_) => return Peek::Miss,
        };
        if entry.uses < USES_MAX {
            entry.uses += 1;
        }
        shard.counts.hits += 1;
        peek
    }

    /// Whether a plain read must wait for a transaction: what it would see may be older than what others see.
    /// The old content of a locked record can be read until the first change of its transaction is visible.
    fn is_changing(&self, shard: &Shard, place: &Place, slot: u32) -> bool {
        let lock_slot = if place.lock == place.id { Some(slot) } else { shard.find(&place.lock, place.lock_hash) };
        let Some(lock_slot) = lock_slot else { return false };
        let Some(owner) = shard.queues.exclusive_owner(shard.entries[lock_slot as usize].lock) else { return false };
        let known = matches!(shard.entries[slot as usize].view(), View::Value(_) | View::Absent);
        !known || self.xcbs.is(owner, Phase::Installing)
    }

    /// Reads a record that a look did not find. `holder` has it locked.
    pub(super) fn load(&self, place: &Place, key: KeyRef<'_>, holder: Option<XcbId>) -> Result<Loaded, Error> {
        loop {
            let mut shard = self.shard(place.shard);
            let slot = shard.find_or_make(&place.id, place.hash);
            if holder.is_none() && self.is_changing(&shard, place, slot) {
                if shard.entry(slot).pins == 0 && matches!(shard.entry(slot).view(), View::Unknown) {
                    shard.remove(slot);
                }
                return Ok(None);
            }
            let entry = shard.entry(slot);
            match entry.view() {
                View::Value(value) => return Ok(Some((Some(value.clone()), entry.ticket()))),
                View::Absent => return Ok(Some((None, entry.ticket()))),
                View::Loading(_) => {
                    drop(self.wait_loaded(place.shard, shard));
                    continue;
                }
                View::Unknown => {}
            }
            let load = self.begin(&mut shard, slot);
            drop(shard);
            let mut buffer = Vec::new();
            let found = self.backing.get_into(place.id.namespace, key, &mut buffer);
            let found = found.map(|there| there.then(|| Arc::<[u8]>::from(buffer)));
            let is_current = self.end_load(place, slot, load, found.as_ref().ok());
            let value = found?;
            if is_current {
                return Ok(Some((value, 0)));
            }
        }
    }

    /// Ends a read of the device; false if somebody has stored the record meanwhile.
    pub(super) fn end_load(&self, place: &Place, slot: u32, load: Load, found: Option<&Option<Arc<[u8]>>>) -> bool {
        let mut shard = self.shard(place.shard);
        let is_current = matches!(shard.entry(slot).view(), View::Loading(number) if number == load.number);
        if is_current {
            let content = match found {
                Some(Some(value)) if load.is_kept && self.is_cachable(value.len()) => Content::Value(value.clone()),
                Some(None) => Content::Absent,
                Some(Some(_)) | None => Content::Unknown,
            };
            shard.set_content(slot, content, 0);
        }
        shard.unpin(slot);
        let wake = shard.load_waiters > 0;
        let full = self.account_and_is_full(&mut shard);
        drop(shard);
        if wake {
            self.wake_loaded(place.shard);
        }
        if full {
            self.make_room(place.shard);
        }
        is_current
    }

    fn account_and_is_full(&self, shard: &mut Locked<'_>) -> bool {
        shard.account();
        self.used() > self.budget
    }

    /// Reads many records. Those that miss are read together, by a reader that is opened if there is none
    /// yet; an answer is `None` for a record that a transaction is changing.
    pub(super) fn load_many(
        &self,
        reader: &mut Option<Box<dyn BatchReader>>,
        records: &[(NamespaceId, KeyRef<'_>)],
    ) -> Result<Vec<Loaded>, Error> {
        let mut answers = vec![None; records.len()];
        let mut own: Vec<(usize, Place, u32, Load)> = Vec::new();
        let mut others = Vec::new();
        // A key that is refused is found before anything is begun.
        let place = |(namespace, key): &(NamespaceId, KeyRef<'_>)| self.place_of(*namespace, *key);
        let places = records.iter().map(place).collect::<Result<Vec<Place>, Error>>()?;
        self.prefetch(places.iter().copied());
        for (at, place) in places.into_iter().enumerate() {
            match self.peek(&place, Arc::clone) {
                Peek::Hit(value, ticket) => answers[at] = Some((Some(value), ticket)),
                Peek::Absent(ticket) => answers[at] = Some((None, ticket)),
                Peek::Busy => {}
                Peek::Miss => match self.begin_own(&place) {
                    Some((slot, load)) => own.push((at, place, slot, load)),
                    None => others.push((at, place)),
                },
            }
        }
        let wanted: Vec<(NamespaceId, KeyRef<'_>)> = own.iter().map(|(at, ..)| records[*at]).collect();
        let mut failed: Option<Error> = None;
        if !wanted.is_empty() {
            let reader = reader.get_or_insert_with(|| self.backing.reader());
            reader.get_records(&wanted, &mut |which, found| {
                let (at, place, slot, load) = &own[which];
                let found = found.map(|value| value.map(Arc::<[u8]>::from));
                let is_current = self.end_load(place, *slot, *load, found.as_ref().ok());
                match found {
                    Ok(value) if is_current => answers[*at] = Some((value, 0)),
                    Ok(_) => others.push((*at, *place)),
                    Err(error) => failed = Some(error),
                }
            });
        }
        if let Some(error) = failed {
            return Err(error);
        }
        for (at, place) in others {
            answers[at] = self.load(&place, records[at].1, None)?;
        }
        Ok(answers)
    }

    /// Begins a read of the device, if this record needs one and nobody else does it.
    pub(super) fn begin_own(&self, place: &Place) -> Option<(u32, Load)> {
        let mut shard = self.shard(place.shard);
        let slot = shard.find_or_make(&place.id, place.hash);
        if !matches!(shard.entry(slot).view(), View::Unknown) || self.is_changing(&shard, place, slot) {
            return None;
        }
        Some((slot, self.begin(&mut shard, slot)))
    }

    /// Begins a read of the device for the holder of an exclusive lock.
    pub(super) fn begin_held(&self, grip: &LockHold) -> Load {
        self.begin(&mut self.shard(grip.shard), grip.slot)
    }

    /// Pins an entry and marks it as being read. Whether its record can expire is looked up before the read: afterwards the device may have
    /// forgotten that it did. Nobody puts the record meanwhile.
    fn begin(&self, shard: &mut Shard, slot: u32) -> Load {
        shard.counts.misses += 1;
        shard.entry(slot).pins += 1;
        let is_kept = !self.backing.expires(shard.entry(slot).id().namespace);
        Load { number: shard.begin_load(slot), is_kept }
    }
}
