//! Write-back: records that the cache has and the device does not have yet.
//!
//! Lives here:       storing without the device, `flush`, cleaning in the background and when memory runs out.
//! Lives elsewhere:  dirty marks and lists (`shard`), durable stores (`txn`).
//! Implements:       docs/ARCHITECTURE.md "The record cache" (write-back).
//!
//! While a record is being written its lock is held as shared, so no transaction commits a newer content before
//! an older one has reached the device. A plain write-back put may continue meanwhile: the record stays dirty then. One
//! round of cleaning runs at a time, so two contents of one record are never on their way together. Nobody waits for a
//! record's lock in a round: puts wait for rounds, and the holder of the lock may be one of them.

use super::cache::{Cache, LockHold, Place};
use super::locks::{LockState, LockWord, Mode, XcbId};
use super::record::{LongKey, RecordId, value_bytes};
use super::shard::{Content, Shard, View};
use super::waits::Refused;
use super::xcb::Phase;
use crate::sync::{AtomicBool, AtomicU32, Condvar, Mutex, MutexGuard, sleep};
use crate::{Batch, Error, KeyRef, NamespaceId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Records of one cleaning Put, so a lock is not held for long.
const RECORDS_PER_PUT: usize = 256;
/// Bytes of one cleaning Put, if the device takes as many.
const BYTES_PER_PUT: usize = 1 << 20;
/// Nor more than this share of the budget: what is on its way cannot leave the cache.
const PUT_SHARE: usize = 8;
/// Cleaning begins when dirty records have this many eighths of the budget, and ends at so many.
const DIRTY_EIGHTHS_BEGIN: usize = 4;
const DIRTY_EIGHTHS_END: usize = 2;
/// For more than this many eighths puts clean first: there must be enough clean records to evict.
const DIRTY_EIGHTHS_MAX: usize = 6;
/// After a failure cleaning is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Control blocks that cleaning keeps for itself.
pub(super) const CLEANER_XCBS: u32 = 2;

/// Which thread writes dirty records.
pub(super) struct Cleaner {
    /// Has the locks of a round.
    who: XcbId,
    /// Has the one lock that a flush has waited for.
    flusher: XcbId,
    one_round: Mutex<()>,
    one_flush: Mutex<()>,
    /// Where the next round begins.
    hand: AtomicU32,
    wanted: Mutex<bool>,
    wake: Condvar,
    closing: AtomicBool,
}

/// A dirty record on its way to the device.
struct Moving {
    shard: u32,
    slot: u32,
    lock_slot: Option<u32>,
    id: RecordId,
    long: LongKey,
    content: Content,
    /// It was taken from its shard's list.
    is_listed: bool,
}

impl Cleaner {
    /// For a cache that nobody uses yet.
    pub(super) fn new(cache: &Cache) -> Cleaner {
        let [who, flusher] = [(); CLEANER_XCBS as usize].map(|()| {
            let who = cache.xcbs.take().expect("there are more than transactions may use");
            cache.xcbs.set_phase(who, Phase::Cleaning);
            who
        });
        Cleaner {
            who,
            flusher,
            one_round: Mutex::new(()),
            one_flush: Mutex::new(()),
            hand: AtomicU32::new(0),
            wanted: Mutex::new(false),
            wake: Condvar::new(),
            closing: AtomicBool::new(false),
        }
    }

    /// Stores a record in the cache alone, if no transaction is using it; `false` if one is.
    pub(super) fn try_put(&self, cache: &Cache, place: &Place, key: &KeyRef<'_>, content: &Content) -> bool {
        let mut shard = cache.shard(place.shard);
        let slot = shard.find_or_make(&place.id, place.hash);
        let lock_slot = if place.lock == place.id { Some(slot) } else { shard.find(&place.lock, place.lock_hash) };
        let word = lock_slot.map_or(LockWord::FREE, |slot| shard.entries[slot as usize].lock);
        let free = match word.state() {
            LockState::Free => true,
            LockState::One(owner, Mode::Shared) => cache.xcbs.is(owner, Phase::Cleaning),
            LockState::One(_, Mode::Exclusive) | LockState::Queue(_) => false,
        };
        if free {
            store(cache, &mut shard, slot, &LongKey::new(key), content.clone());
        }
        free
    }

    /// The same by a transaction that has the record locked.
    pub(super) fn put_locked(&self, cache: &Cache, grip: &LockHold, long: &LongKey, content: Content) {
        store(cache, &mut cache.shard(grip.shard), grip.slot, long, content);
    }

    /// Cleans before a write-back put if too much is dirty. An error refuses the put while nothing of it exists: what the device does
    /// not take must not fill the cache. A full one takes deletes.
    pub(super) fn admit(&self, cache: &Cache, content: &Content) -> Result<(), Error> {
        let eighth = cache.budget / 8;
        let (is_delete, more) = match content {
            Content::Value(value) => (false, value_bytes(value.len())),
            Content::Unknown | Content::Loading(_) | Content::Absent => (true, 0),
        };
        if cache.dirty_bytes() + more <= DIRTY_EIGHTHS_MAX * eighth {
            return Ok(());
        }
        match self.clean(cache, DIRTY_EIGHTHS_BEGIN * eighth) {
            Err(error) if is_delete && is_full(&error) => Ok(()),
            cleaned => cleaned.map(drop),
        }
    }

    /// Keeps the budget after a write-back put, and wakes the cleaner in time.
    pub(super) fn keep_budget(&self, cache: &Cache, shard: u32) {
        if cache.dirty_bytes() > DIRTY_EIGHTHS_BEGIN * (cache.budget / 8) {
            *self.wanted.lock().expect("no panics under this lock") = true;
            self.wake.notify_one();
        }
        cache.make_room(shard);
    }

    /// The cleaner's thread.
    pub(super) fn run(&self, cache: &Cache) {
        while !self.closing.load(Ordering::Acquire) {
            let mut wanted = self.wanted.lock().expect("no panics under this lock");
            while !*wanted && !self.closing.load(Ordering::Acquire) {
                wanted = self.wake.wait(wanted).expect("no panics under this lock");
            }
            *wanted = false;
            drop(wanted);
            if let Err(error) = self.clean(cache, DIRTY_EIGHTHS_END * (cache.budget / 8)) {
                tracing::warn!(%error, "unflushed records could not be written; trying again");
                sleep(RETRY_PAUSE);
            }
        }
    }

    /// Ends the thread's work.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let _wanted = self.wanted.lock().expect("no panics under this lock");
        self.wake.notify_all();
    }

    /// Writes every record that is dirty now, waiting for the transactions that have some of them locked.
    pub(super) fn flush(&self, cache: &Cache) -> Result<(), Error> {
        let _one = take_turn(cache, &self.one_flush);
        let locked = self.clean(cache, 0)?;
        locked.iter().try_for_each(|(id, long)| self.write_locked(cache, id, long))
    }

    /// Writes dirty records until at most this many bytes of them are left; returns those that transactions have locked.
    fn clean(&self, cache: &Cache, target: usize) -> Result<Vec<(RecordId, LongKey)>, Error> {
        let _one = take_turn(cache, &self.one_round);
        if target > 0 && cache.dirty_bytes() <= target {
            return Ok(Vec::new()); // somebody else has done it
        }
        match self.round(cache, target, false) {
            // A full device takes deletes, and what they release may do for the others.
            Err(error) if is_full(&error) => {
                self.round(cache, 0, true)?;
                Ok(self.round(cache, target, false)?)
            }
            done => Ok(done?),
        }
    }

    /// One round through all shards, perhaps for deletes alone.
    fn round(&self, cache: &Cache, target: usize, deletes_only: bool) -> Result<Vec<(RecordId, LongKey)>, Error> {
        let mut locked = Vec::new();
        let bytes_max = BYTES_PER_PUT.min(cache.limits.batch_bytes_max as usize / 2).min(cache.budget / PUT_SHARE);
        let mut moving = Vec::new();
        let mut bytes = 0;
        let first = self.hand.load(Ordering::Relaxed);
        for at in 0..cache.shard_count() {
            let at = first.wrapping_add(at) % cache.shard_count();
            while self.collect(cache, (at, deletes_only), bytes_max, &mut moving, &mut bytes, &mut locked) {
                self.write_out(cache, self.who, &mut moving)?;
                bytes = 0;
            }
            if target > 0 && cache.dirty_bytes().saturating_sub(bytes) <= target {
                self.hand.store(at, Ordering::Relaxed);
                break;
            }
        }
        self.write_out(cache, self.who, &mut moving)?;
        Ok(locked)
    }

    /// Takes dirty records of a shard; true if the Put is full and there may be more.
    fn collect(
        &self,
        cache: &Cache,
        (at, deletes_only): (u32, bool),
        bytes_max: usize,
        moving: &mut Vec<Moving>,
        bytes: &mut usize,
        locked: &mut Vec<(RecordId, LongKey)>,
    ) -> bool {
        let mut shard = cache.shard(at);
        if shard.dirty.is_empty() {
            return false;
        }
        let mut slots = std::mem::take(&mut shard.dirty);
        let mut kept = Vec::new();
        while let Some(slot) = slots.pop() {
            if !shard.entry(slot).dirty {
                continue;
            }
            if deletes_only && !matches!(shard.entry(slot).view(), View::Absent) {
                kept.push(slot);
                continue;
            }
            // Versions of any length go through the ring: one after many others may be too much.
            let more = bytes_of(shard.entry(slot).view()) + shard.long_key(slot).len();
            if !moving.is_empty() && (moving.len() >= RECORDS_PER_PUT || *bytes + more > bytes_max) {
                slots.push(slot);
                break;
            }
            match self.take(cache, &mut shard, at, slot) {
                Some(record) => {
                    shard.take_dirty();
                    *bytes += more;
                    moving.push(record);
                }
                None => {
                    locked.push((shard.entry(slot).id(), shard.long_key(slot)));
                    kept.push(slot);
                }
            }
        }
        let more = !slots.is_empty();
        slots.append(&mut kept);
        shard.dirty = slots;
        shard.count_structure();
        more
    }

    /// Locks and pins a dirty record, unless a transaction has it.
    fn take(&self, cache: &Cache, shard: &mut Shard, at: u32, slot: u32) -> Option<Moving> {
        let id = shard.entry(slot).id();
        let place = cache.place(id.namespace, id.key);
        let lock_slot = if place.lock == id { slot } else { shard.find_or_make(&place.lock, place.lock_hash) };
        let Shard { entries, queues, .. } = shard;
        let word = &mut entries[lock_slot as usize].lock;
        let held = queues.holds(*word, self.who, Mode::Shared);
        queues.try_acquire(word, self.who, Mode::Shared)?;
        shard.entry(slot).pins += 1;
        if !held {
            shard.entry(lock_slot).pins += 1;
        }
        let content = shard.entry(slot).content();
        let long = shard.long_key(slot);
        Some(Moving { shard: at, slot, lock_slot: (!held).then_some(lock_slot), id, long, content, is_listed: true })
    }

    /// Stores what was taken by `who`; what was put meanwhile, or could not be stored, stays dirty. Records of a namespace that was
    /// deleted next to the store have nowhere to go: they are forgotten with it, and keep no others back.
    fn write_out(&self, cache: &Cache, who: XcbId, moving: &mut Vec<Moving>) -> Result<(), Error> {
        let (written, gone) = write_what_has_a_place(cache, moving);
        // A lock that several records share came with the first of them, so it is released with the last.
        for record in moving.drain(..).rev() {
            let mut shard = cache.shard(record.shard);
            if written.is_ok() && same(shard.entry(record.slot).view(), &record.content) {
                shard.set_clean(record.slot);
            }
            if record.is_listed {
                shard.give_dirty_back(record.slot);
            }
            let granted = record.lock_slot.map(|lock| cache.unlock(&mut shard, lock, who)).unwrap_or_default();
            shard.unpin(record.slot);
            drop(shard);
            cache.waits.wake(&granted);
        }
        gone.into_iter().for_each(|namespace| cache.forget_namespace(namespace));
        written
    }

    /// Waits for the transaction that has a record, and stores the record if it is still dirty.
    fn write_locked(&self, cache: &Cache, id: &RecordId, long: &LongKey) -> Result<(), Error> {
        let place = cache.place(id.namespace, id.key);
        let who = self.flusher;
        let grip = loop {
            match cache.acquire(&place, who, Mode::Shared) {
                Ok((grip, _)) => break grip,
                // It holds no other lock: leaving the queue has let those continue that waited after it.
                Err(Refused::Deadlock) => {}
                Err(Refused::Timeout) => {
                    let waited_ms = cache.lock_timeout_ms();
                    let key = long.of(id).to_buf()?;
                    return Err(Error::LockTimeout { namespace: id.namespace, key, waited_ms });
                }
            }
        };
        let _one = take_turn(cache, &self.one_round);
        let (dirty, content) = {
            let mut shard = cache.shard(grip.shard);
            let entry = shard.entry(grip.slot);
            (entry.dirty, entry.content())
        };
        if !dirty {
            cache.let_go(who, &grip, None);
            return Ok(());
        }
        let LockHold { shard, slot, lock_slot } = grip;
        let record = Moving { shard, slot, lock_slot, id: *id, long: long.clone(), content, is_listed: false };
        self.write_out(cache, who, &mut vec![record])
    }
}

impl Moving {
    fn add_to(&self, batch: &mut Batch) {
        match &self.content {
            Content::Value(value) => batch.put(self.id.namespace, self.long.of(&self.id), value),
            Content::Absent => batch.delete(self.id.namespace, self.long.of(&self.id)),
            Content::Unknown | Content::Loading(_) => unreachable!("what is dirty is known"),
        };
    }
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Full { .. })
}

/// Takes a lock that others hold while they write.
fn take_turn<'a>(cache: &Cache, turns: &'a Mutex<()>) -> MutexGuard<'a, ()> {
    turns.try_lock().unwrap_or_else(|_| {
        cache.before_sleep();
        turns.lock().expect("no panics under this lock")
    })
}

/// What a record takes of a Put.
fn bytes_of(record: View<'_>) -> usize {
    match record {
        View::Value(value) => value.len() + size_of::<Moving>(),
        View::Unknown | View::Loading(_) | View::Absent => size_of::<Moving>(),
    }
}

/// Stores records, except those of namespaces that turn out to be gone, which are returned.
fn write_what_has_a_place(cache: &Cache, moving: &[Moving]) -> (Result<(), Error>, Vec<NamespaceId>) {
    let mut gone = Vec::new();
    loop {
        let mut batch = Batch::new();
        moving
            .iter()
            .filter(|record| !gone.contains(&record.id.namespace))
            .for_each(|record| record.add_to(&mut batch));
        if batch.is_empty() {
            return (Ok(()), gone);
        }
        match cache.backing.write(&batch) {
            Err(Error::UnknownNamespace(id)) if !gone.contains(&id) => {
                tracing::warn!(namespace = id, "unflushed records of a deleted namespace are dropped");
                gone.push(id);
            }
            written => return (written, gone),
        }
    }
}

/// Replaces a record in the cache alone.
fn store(cache: &Cache, shard: &mut Shard, slot: u32, long: &LongKey, content: Content) {
    if !cache.gone.has(shard.entry(slot).id().namespace) {
        shard.set_content(slot, content, 0);
        shard.set_dirty(slot, long);
    }
}

/// Whether a record is still as it was taken.
fn same(now: View<'_>, then: &Content) -> bool {
    match (now, then) {
        (View::Value(now), Content::Value(then)) => Arc::ptr_eq(now, then),
        (View::Absent, Content::Absent) => true,
        _ => false,
    }
}
