//! The record cache: reading through it, its memory budget, and locks on its records.
//!
//! Lives here:       shards, one device Get for all who miss a key, making room, granting and releasing locks.
//! Lives elsewhere:  a shard's insides (`shard`, `evict`), transactions (`txn`), unflushed records (`clean`).
//! Implements:       paper:KAML III.D; docs/ARCHITECTURE.md "The record cache".
//!
//! Locks are taken in this order: a shard, then the wait of a transaction (`waits`). No two shards at once, and no
//! shard while the device is called.

use super::StoreOptions;
use super::backing::{Backing, Limits};
use super::clean::CLEANER_XCBS;
use super::evict::{ListName, Rest, USES_MAX};
use super::gone::Gone;
use super::in_flight;
use super::line::{CommitOrder, CommitStatus, Lost, Ticket};
use super::locks::{LockOutcome, LockWord, Mode, Queues, XcbId};
use super::record::{RecordId, Secret, heap_bytes, value_bytes};
use super::shard::{Content, STEPS_TO_VALUE, Shard, View};
use super::waits::{LockAddr, LockSpace, Refused, Waits};
use super::xcb::Xcbs;
use crate::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, secret_word};
use crate::{Error, Key, KeyRef, NamespaceId};
use kaml_device::KeyDigester;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Memory for each shard, so its two queues have enough records to distinguish hot from cold.
const SHARD_BYTES_MIN: usize = 256 << 10;
/// Shards for each processor: two threads seldom meet in one, and their heads remain in the processor's cache.
const SHARDS_PER_CPU: usize = 64;
const SHARDS_MAX: usize = 1024;
/// A record above this share of the budget is not cached: it would drive out everything else.
const RECORD_SHARE: usize = 8;
/// A shard with less than what shards typically have is spared, but for this share of it. Sparing also those that have almost as
/// much would leave it to the few with large values to make room.
const SPARED_SLACK: usize = 64;
/// Shards tried in vain, besides each of them twice, before the budget is exceeded: nearly all is pinned then.
const ROUNDS_IN_VAIN: u32 = 64;
/// Memory may grow by this share of the budget before shards are looked through again that had nothing to give.
const GROWTH_IN_VAIN: usize = 64;
/// How soon it is noticed that shards have become larger or smaller: with steps of a thousandth, in some hundred evictions.
const TYPICAL_LOG2: u32 = 6;
/// Records whose memory is fetched at the same time: no processor has many more lines in progress.
const FETCHED_AT_ONCE: usize = 8;
/// The smallest budget above the fixed part.
const BUDGET_MIN: usize = 64 << 10;

/// A shard on cache lines of its own.
#[repr(align(128))]
struct ShardCell {
    shard: Mutex<Shard>,
    loaded: Condvar,
}

/// Where a record belongs.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) id: RecordId,
    pub(super) hash: u64,
    /// The record whose entry has the lock; it is in the same shard.
    pub(super) lock: RecordId,
    pub(super) lock_hash: u64,
    pub(super) shard: u32,
}

impl Place {
    /// The key, whose bytes these are if it is a long one.
    pub(super) fn key<'a>(&self, long: Option<&'a [u8]>) -> KeyRef<'a> {
        long.map_or(KeyRef::Short(self.id.key), KeyRef::Bytes)
    }
}

/// What a look at the cache came to.
pub(super) enum Peek<R> {
    Hit(R, Ticket),
    Absent(Ticket),
    Miss,
    /// A transaction is changing the record: request a shared lock.
    Busy,
}

/// What the cache knows of a record that a transaction has locked.
pub(super) struct CachedView {
    pub(super) content: Content,
    pub(super) ticket: Ticket,
    pub(super) dirty: bool,
}

/// A transaction's hold on a record: the entry is pinned, and may have got its lock with this hold.
pub(super) struct LockHold {
    pub(super) shard: u32,
    pub(super) slot: u32,
    /// The entry with the lock, if this hold brought it.
    pub(super) lock_slot: Option<u32>,
}

/// The record cache.
pub(super) struct Cache {
    shards: Box<[ShardCell]>,
    /// Bytes of all shards, and fixed ones.
    used: AtomicUsize,
    dirty: AtomicUsize,
    pub(super) budget: usize,
    hand: AtomicUsize,
    pub(super) secret: Secret,
    /// Makes what keys above 16 bytes are known by here. The device has its own.
    digester: KeyDigester,
    /// Bytes of a shard, about the median: a few that have large values mean nothing for the others.
    typical: AtomicUsize,
    rest: Rest,
    pub(super) waits: Waits,
    pub(super) xcbs: Xcbs,
    pub(super) line: CommitOrder,
    pub(super) gone: Gone,
    pub(super) backing: Arc<dyn Backing>,
    pub(super) limits: Limits,
    /// For namespaces that are not locked as the others are.
    records_per_lock: Vec<(NamespaceId, u32)>,
    records_per_lock_default: u32,
    lock_timeout: Duration,
}

/// A shard under its lock. What changes in its memory is accounted when it is dropped.
pub(super) struct Locked<'a> {
    cache: &'a Cache,
    shard: Option<MutexGuard<'a, Shard>>,
    before: (usize, usize),
}

impl Deref for Locked<'_> {
    type Target = Shard;
    fn deref(&self) -> &Shard {
        self.shard.as_ref().expect("held until it is dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Shard {
        self.shard.as_mut().expect("held until it is dropped")
    }
}

impl Locked<'_> {
    /// Brings the totals up to date.
    pub(super) fn account(&mut self) {
        let now = (self.bytes, self.dirty_bytes);
        if now.0 != self.before.0 {
            self.cache.used.fetch_add(now.0.wrapping_sub(self.before.0), Ordering::Relaxed);
        }
        if now.1 != self.before.1 {
            self.cache.dirty.fetch_add(now.1.wrapping_sub(self.before.1), Ordering::Relaxed);
        }
        self.before = now;
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.shard.is_some() {
            self.account();
        }
    }
}

impl LockSpace for Cache {
    fn with<R>(&self, at: LockAddr, change: impl FnOnce(&mut LockWord, &mut Queues) -> R) -> R {
        let mut shard = self.raw(at.shard);
        let Shard { entries, queues, .. } = &mut *shard;
        change(&mut entries[at.slot as usize].lock, queues)
    }
}

impl Cache {
    pub(super) fn new(backing: Arc<dyn Backing>, options: &StoreOptions) -> Result<Cache, Error> {
        let budget = usize::try_from(options.cache_bytes).unwrap_or(usize::MAX / 2);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let shard_count = (budget / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX.min(cpus * SHARDS_PER_CPU));
        let shard_count = if shard_count.is_power_of_two() { shard_count } else { shard_count.next_power_of_two() / 2 };
        let xcb_count = options.transactions_max.saturating_add(CLEANER_XCBS);
        let xcb_bytes = xcb_count as usize * (Waits::CELL_BYTES + Xcbs::BLOCK_BYTES);
        let fixed = heap_bytes(shard_count * size_of::<ShardCell>()) + heap_bytes(xcb_bytes);
        if budget < fixed + BUDGET_MIN {
            return Err(Error::CacheTooSmall { bytes: options.cache_bytes, min: (fixed + BUDGET_MIN) as u64 });
        }
        let secret = Secret::draw();
        let cell = |_| ShardCell { shard: Mutex::new(Shard::new(secret)), loaded: Condvar::new() };
        Ok(Cache {
            shards: (0..shard_count).map(cell).collect(),
            used: AtomicUsize::new(fixed),
            dirty: AtomicUsize::new(0),
            budget,
            hand: AtomicUsize::new(0),
            secret,
            digester: KeyDigester::with_secret([4, 5].map(secret_word)),
            typical: AtomicUsize::new(budget / shard_count),
            rest: Rest::default(),
            waits: Waits::new(xcb_count as usize),
            xcbs: Xcbs::new(xcb_count),
            line: CommitOrder::default(),
            gone: Gone::default(),
            limits: backing.limits(),
            backing,
            records_per_lock: options.records_per_lock_of.clone(),
            records_per_lock_default: options.records_per_lock,
            lock_timeout: options.lock_timeout,
        })
    }

    pub(super) fn shard_count(&self) -> u32 {
        self.shards.len() as u32
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn dirty_bytes(&self) -> usize {
        self.dirty.load(Ordering::Relaxed)
    }

    pub(super) fn lock_timeout_ms(&self) -> u64 {
        self.lock_timeout.as_millis() as u64
    }

    pub(super) fn raw(&self, shard: u32) -> MutexGuard<'_, Shard> {
        self.shards[shard as usize].shard.lock().expect("no panics under a shard's lock")
    }

    pub(super) fn shard(&self, shard: u32) -> Locked<'_> {
        let shard = self.raw(shard);
        let before = (shard.bytes, shard.dirty_bytes);
        Locked { cache: self, shard: Some(shard), before }
    }

    /// Waits until a read of the device in this shard is over, perhaps another one than was meant.
    pub(super) fn wait_loaded<'a>(&'a self, at: u32, mut shard: Locked<'a>) -> Locked<'a> {
        if in_flight::has_own(self) {
            drop(shard);
            self.before_sleep();
            return self.shard(at);
        }
        shard.load_waiters += 1;
        shard.account();
        let guard = shard.shard.take().expect("held until it is dropped");
        let guard = self.shards[at as usize].loaded.wait(guard).expect("no panics under a shard's lock");
        let before = (guard.bytes, guard.dirty_bytes);
        let mut shard = Locked { cache: self, shard: Some(guard), before };
        shard.load_waiters -= 1;
        shard
    }

    /// Wakes those who wait for a read in this shard; call outside its lock.
    pub(super) fn wake_loaded(&self, at: u32) {
        self.shards[at as usize].loaded.notify_all();
    }

    /// Waits until a commit has come to its end.
    pub(super) fn wait_for(&self, ticket: Ticket) -> Result<(), Lost> {
        if ticket > self.line.settled() {
            self.before_sleep();
        }
        self.line.wait(ticket)
    }

    fn records_per_lock(&self, namespace: NamespaceId) -> u32 {
        let own = self.records_per_lock.iter().find(|(id, _)| *id == namespace);
        own.map_or(self.records_per_lock_default, |(_, count)| *count)
    }

    /// What a record is known by. Inlined: of a key that is one already nothing is left.
    #[inline(always)]
    pub(super) fn key(&self, key: KeyRef<'_>) -> Result<Key, Error> {
        match key {
            KeyRef::Short(key) => Ok(key),
            KeyRef::Bytes(bytes) => self.key_of_bytes(bytes),
        }
    }

    #[inline(never)]
    fn key_of_bytes(&self, bytes: &[u8]) -> Result<Key, Error> {
        Ok(*self.digester.key(KeyRef::Bytes(bytes))?.key())
    }

    /// Where a record belongs.
    pub(super) fn place_of(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<Place, Error> {
        Ok(self.place(namespace, self.key(key)?))
    }

    /// Where a record belongs.
    pub(super) fn place(&self, namespace: NamespaceId, key: Key) -> Place {
        let id = RecordId { namespace, key };
        let hash = self.secret.hash(&id);
        let lock = id.lock_record(self.records_per_lock(namespace));
        let lock_hash = if lock == id { hash } else { self.secret.hash(&lock) };
        // Tables use the upper half.
        let shard = lock_hash as u32 & (self.shards.len() as u32 - 1);
        Place { id, hash, lock, lock_hash, shard }
    }

    /// Evicts until the budget is kept, beginning with a shard that has just grown; false if nothing more can go. A shard with less
    /// than shards typically have evicts nothing while others have more. Without that shards drift apart, and what is used
    /// leaves the small ones while unused records remain in the large ones.
    pub(super) fn make_room(&self, first: u32) -> bool {
        let mut at = first;
        let mut in_vain = 0;
        if self.rest.is_on() && self.rest.takes(self.used(), self.budget) {
            return false;
        }
        while self.used() > self.budget {
            if in_vain > 2 * self.shard_count() + ROUNDS_IN_VAIN {
                self.rest.begin(in_vain, self.used() + self.budget / GROWTH_IN_VAIN);
                return false;
            }
            let settled = self.line.settled();
            let mut shard = self.shard(at);
            let mut evicted = false;
            let typical = self.typical(shard.bytes);
            let is_spared = shard.bytes < typical - typical / SPARED_SLACK && in_vain < self.shard_count();
            while !is_spared && self.used() > self.budget && shard.evict_one(settled) {
                shard.account();
                evicted = true;
            }
            drop(shard);
            in_vain = if evicted { 0 } else { in_vain + 1 };
            at = self.hand.fetch_add(1, Ordering::Relaxed) as u32 % self.shard_count();
        }
        true
    }

    /// Reports that a transaction releases this much, if it matters.
    pub(super) fn can_leave(&self, bytes: usize) {
        self.rest.can_leave(bytes);
    }

    /// Whether more was pinned lately than the budget.
    pub(super) fn is_resting(&self) -> bool {
        self.rest.is_on()
    }

    /// What shards typically have, now that one was seen with this many bytes. Outliers move it no more than others do.
    fn typical(&self, seen: usize) -> usize {
        let typical = self.typical.load(Ordering::Relaxed);
        let near = seen.clamp(typical - typical / 16, typical + typical / 16);
        let moved = typical - (typical >> TYPICAL_LOG2) + (near >> TYPICAL_LOG2);
        self.typical.store(moved, Ordering::Relaxed);
        moved
    }

    /// Whether the device has an older content of a record.
    pub(super) fn is_dirty(&self, namespace: NamespaceId, key: KeyRef<'_>) -> bool {
        let Ok(place) = self.place_of(namespace, key) else { return false };
        let mut shard = self.shard(place.shard);
        let slot = shard.find(&place.id, place.hash);
        slot.is_some_and(|slot| shard.entry(slot).dirty)
    }

    /// Whether a value is small enough to be cached.
    pub(super) fn is_cachable(&self, len: usize) -> bool {
        value_bytes(len) <= self.budget / RECORD_SHARE
    }

    /// Fetches the memory of records that will be needed soon into the processor's cache, of several of them at the same time.
    /// False if it has not all of them.
    pub(super) fn prefetch(&self, places: impl Iterator<Item = Place>) -> bool {
        let (mut places, mut has_all) = (places.peekable(), true);
        while places.peek().is_some() {
            let some: [Option<Place>; FETCHED_AT_ONCE] = std::array::from_fn(|_| places.next());
            for step in 0..STEPS_TO_VALUE {
                for place in some.iter().flatten() {
                    has_all &= self.raw(place.shard).prefetch(&place.id, place.hash, step);
                }
            }
        }
        has_all
    }

    // --- locks ----------------------------------------------------------------------------------------------------

    /// Locks a record for a transaction and pins its entry. No read of the device is in progress when an exclusive lock
    /// is given, and none but the owner's begins while it is held.
    pub(super) fn acquire(&self, place: &Place, who: XcbId, mode: Mode) -> Result<(LockHold, CachedView), Refused> {
        let mut shard = self.shard(place.shard);
        let slot = shard.find_or_make(&place.id, place.hash);
        shard.entry(slot).pins += 1;
        let lock_slot = if place.lock == place.id { slot } else { shard.find_or_make(&place.lock, place.lock_hash) };
        shard.entry(lock_slot).pins += 1;
        let at = LockAddr { shard: place.shard, slot: lock_slot };
        let (held, asked) = {
            let Shard { entries, queues, .. } = &mut *shard;
            let word = &mut entries[lock_slot as usize].lock;
            let held = queues.holds(*word, who, Mode::Shared);
            (held, self.waits.ask(word, queues, at, who, mode))
        };
        if asked == LockOutcome::Queued {
            shard.counts.lock_waits += 1;
            drop(shard);
            self.before_sleep();
            let waited = self.waits.wait(self, at, who, mode, self.lock_timeout);
            shard = self.shard(place.shard);
            if let Err(refused) = waited {
                shard.unpin(lock_slot);
                shard.unpin(slot);
                return Err(refused);
            }
        }
        if held {
            shard.unpin(lock_slot);
        }
        while mode == Mode::Exclusive && matches!(shard.entry(slot).view(), View::Loading(_)) {
            shard = self.wait_loaded(place.shard, shard);
        }
        let grip = LockHold { shard: place.shard, slot, lock_slot: (!held).then_some(lock_slot) };
        let entry = shard.entry(slot);
        if !matches!(entry.view(), View::Unknown) {
            entry.uses = (entry.uses + 1).min(USES_MAX); // else this use is what brings it in
        }
        let seen = CachedView { content: entry.content(), ticket: entry.ticket(), dirty: entry.dirty };
        let grown = self.used() > self.budget;
        drop(shard);
        if grown {
            self.make_room(place.shard);
        }
        Ok((grip, seen))
    }

    /// Locks a record exclusively for an operation that holds no other lock, unless it would have to wait for somebody.
    pub(super) fn try_acquire(&self, place: &Place, who: XcbId) -> Option<(LockHold, CachedView)> {
        let mut shard = self.shard(place.shard);
        let slot = shard.find_or_make(&place.id, place.hash);
        shard.entry(slot).pins += 1;
        let lock_slot = if place.lock == place.id { slot } else { shard.find_or_make(&place.lock, place.lock_hash) };
        shard.entry(lock_slot).pins += 1;
        let Shard { entries, queues, .. } = &mut *shard;
        let is_read = matches!(entries[slot as usize].view(), View::Loading(_));
        let word = &mut entries[lock_slot as usize].lock;
        if is_read || queues.try_acquire(word, who, Mode::Exclusive).is_none() {
            shard.unpin(lock_slot);
            shard.unpin(slot);
            return None;
        }
        let entry = shard.entry(slot);
        if !matches!(entry.view(), View::Unknown) {
            entry.uses = (entry.uses + 1).min(USES_MAX);
        }
        let seen = CachedView { content: entry.content(), ticket: entry.ticket(), dirty: entry.dirty };
        Some((LockHold { shard: place.shard, slot, lock_slot: Some(lock_slot) }, seen))
    }

    /// Ends a transaction's hold on a record, and makes its change visible if there is one.
    pub(super) fn let_go(&self, who: XcbId, grip: &LockHold, change: Option<(Content, Ticket)>) {
        let mut shard = self.shard(grip.shard);
        if let Some((content, ticket)) = change {
            self.install(&mut shard, grip.slot, content, ticket);
        }
        let granted = match grip.lock_slot {
            Some(lock_slot) => self.unlock(&mut shard, lock_slot, who),
            None => Vec::new(),
        };
        shard.unpin(grip.slot);
        drop(shard);
        self.waits.wake(&granted);
    }

    /// Replaces a record by what the device has, or will have when `ticket` is durable.
    fn install(&self, shard: &mut Shard, slot: u32, content: Content, ticket: Ticket) {
        let cachable = match &content {
            Content::Value(value) => self.is_cachable(value.len()),
            Content::Unknown | Content::Loading(_) | Content::Absent => true,
        };
        shard.set_clean(slot);
        // Its epoch may have been lost since it was joined, or its namespace deleted, and what it wrote been forgotten before it was
        // here.
        if self.line.status(ticket) == CommitStatus::Lost || self.gone.has(shard.entry(slot).id().namespace) {
            return shard.set_content(slot, Content::Unknown, 0);
        }
        // Until it is durable the device has an older content, so the cache must serve it.
        shard.set_content(slot, if cachable || ticket > 0 { content } else { Content::Unknown }, ticket);
    }

    /// Releases a lock and its pin; the answer goes to [`Waits::wake`].
    pub(super) fn unlock(&self, shard: &mut Shard, lock_slot: u32, who: XcbId) -> Vec<XcbId> {
        let Shard { entries, queues, .. } = shard;
        let granted = queues.release(&mut entries[lock_slot as usize].lock, who);
        self.waits.grant(&granted);
        shard.unpin(lock_slot);
        granted
    }

    /// What was written with a lost commit is not known any more.
    pub(super) fn forget(&self, place: &Place, ticket: Ticket) {
        let mut shard = self.shard(place.shard);
        let Some(slot) = shard.find(&place.id, place.hash) else { return };
        if shard.entry(slot).ticket() != ticket {
            return;
        }
        shard.set_content(slot, Content::Unknown, 0); // it was clean: what is not flushed has no ticket
        if shard.entry(slot).pins == 0 {
            shard.remove(slot);
        }
    }

    /// Forgets everything about a namespace, unflushed records included.
    pub(super) fn forget_namespace(&self, namespace: NamespaceId) {
        self.gone.add(namespace);
        for at in 0..self.shard_count() {
            let mut shard = self.shard(at);
            for slot in 0..shard.entries.len() as u32 {
                let entry = shard.entry(slot);
                if entry.id().namespace != namespace || entry.list == ListName::None {
                    continue;
                }
                if entry.pins == 0 {
                    shard.remove(slot);
                } else {
                    // What is being read does not come in, either: its load is not the one that counts any more.
                    shard.set_clean(slot);
                    shard.set_content(slot, Content::Unknown, 0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateOptions, Device, NamespaceOptions};

    /// Goal:   while what a transaction has pinned is more than the budget, nobody goes through all shards again and again; what can
    ///         leave leaves nevertheless, and the remainder after the transaction is over.
    /// Method: pins of three times the budget; shards looked at are counted over reads of as many other records, and over calls that
    ///         find nothing; then the pins go.
    #[test]
    fn looking_in_vain_ends() {
        const RECORDS: u64 = 3000;
        let device = Device::in_memory(&CreateOptions::new(64 << 20)).unwrap();
        let space = device.create_namespace("n", &NamespaceOptions::default()).unwrap();
        (0..2 * RECORDS).for_each(|key| device.put(space, key, &[1; 900]).unwrap());
        let cache = Cache::new(Arc::new(device), &StoreOptions::new(1 << 20)).unwrap();
        let who = cache.xcbs.take().unwrap();
        let places = |from: u64| (from..from + RECORDS).map(|key| cache.place(space, Key::from(key)));
        let looked_at = || cache.hand.load(Ordering::Relaxed);
        let mut grips = Vec::new();
        for place in places(0) {
            grips.push(cache.acquire(&place, who, Mode::Shared).unwrap().0);
            cache.load(&place, place.id.key.into(), Some(who)).unwrap();
        }
        assert!(cache.used() > 2 << 20 && looked_at() < 20_000, "{} shards for {RECORDS} pins", looked_at());
        let (used, before) = (cache.used(), looked_at());
        places(RECORDS).for_each(|place| drop(cache.load(&place, place.id.key.into(), None).unwrap()));
        assert!(cache.used() < used + used / 4, "{} bytes with {used} pinned", cache.used());
        (0..RECORDS).for_each(|_| assert!(!cache.make_room(0)));
        let count = looked_at() - before;
        assert!(count < 40_000, "{count} shards for {RECORDS} reads and as many calls in vain");
        grips.iter().for_each(|grip| cache.let_go(who, grip, None));
        cache.can_leave(used);
        assert!(cache.make_room(0) && cache.used() <= cache.budget);
    }
}
