//! Ranges of ordered namespaces in transactions, without phantoms.
//!
//! Lives here:       which key comes next, those of transactions that have not committed included; reading a range, and guarding what is
//!                   inserted into one.
//! Lives elsewhere:  locks and their waits (`cache`), records (`txn`).
//! Implements:       next-key locking (Mohan, ARIES/KVL, VLDB 1990) over the locks of paper:KAML III.D; docs/ARCHITECTURE.md "Transactions".
//!
//! **The lock of a key also guards the gap below it.** A transaction that reads a range locks each key in it and the first key after it, shared;
//! after the last key of a namespace comes an *end* that is locked like a key. A transaction that inserts a key locks it, states it
//! in the list of *pending* keys, and then locks the next key, exclusively, for a moment. So one of the two waits for the other:
//!
//! - If the reader has locked the next key, the insertion waits for the end of the reader.
//! - Otherwise the reader finds the key among the pending ones when it compares what it has locked with what there is, and waits for its lock.
//!
//! **The index lags behind the records.** Where locks are released before a commit is durable, the index still has the keys that the commit deleted,
//! and does not have those that it inserted. Four rules follow:
//!
//! - A key stays pending until the commit that inserted it has come to its end.
//! - Who looks for keys reads the pending ones first and the index afterwards: a key moves from the former to the latter.
//! - A key whose record does not exist guards no gap, although the index has it, because it can leave the index while it is locked. A reader
//!   locks it, and goes on to the next.
//! - Storing a record that does not exist is an insertion, although the index still has its key.

use super::Store;
use super::backing::Backing;
use super::cache::{Cache, Peek};
use super::line::{CommitStatus, Ticket};
use super::locks::Mode;
use super::txn::Transaction;
use super::value::Value;
use crate::sync::{AtomicU64, Mutex, MutexGuard};
use crate::{Error, KEY_BYTES_MAX, Key, KeyBuf, KeyRef, NamespaceId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Keys that are locked and compared at a time.
const PAGE_KEYS: usize = 64;
/// Pending keys beyond which those that the index has are looked for, at least.
const PENDING_MAX: usize = 1024;
/// Namespaces of which it is known without a lock what kind they are.
const KINDS: usize = 64;
/// The kind of a namespace: its keys have an order, its records expire by default.
const ORDERED: u64 = 1;
const TTL: u64 = 2;
const KIND_BITS: u32 = 2;
const KIND_MASK: u64 = 3;

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// What a store knows of ordered namespaces.
pub(super) struct Ranges {
    backing: Arc<dyn Backing>,
    /// For some ids: the id, and its kind in the two lowest bits; 0 if nothing is known.
    kinds: [AtomicU64; KINDS],
    pending: Mutex<Pending>,
}

/// Keys that may not be in the index yet.
struct Pending {
    keys: BTreeMap<(NamespaceId, KeyBuf), Insertion>,
    /// How many there may be before those that the index has are looked for.
    max: usize,
}

/// Why a key is pending.
#[derive(Default)]
struct Insertion {
    /// A transaction that has locked the key may insert it.
    is_open: bool,
    /// An insertion was committed.
    committed: Option<Committed>,
}

/// When the index has a key whose insertion was committed.
#[derive(Clone, Copy)]
pub(super) enum Committed {
    /// When the commit of this ticket has come to its end.
    With(Ticket),
    /// When the record was flushed.
    Unflushed,
}

impl Committed {
    /// Whether the index may not have the key yet.
    fn is_awaited(self, cache: &Cache, namespace: NamespaceId, key: &KeyBuf) -> bool {
        match self {
            Committed::With(ticket) => cache.line.status(ticket) == CommitStatus::Pending,
            Committed::Unflushed => cache.is_dirty(namespace, key.into()),
        }
    }
}

impl Ranges {
    pub(super) fn new(backing: Arc<dyn Backing>) -> Ranges {
        let pending = Mutex::new(Pending { keys: BTreeMap::new(), max: PENDING_MAX });
        Ranges { backing, kinds: std::array::from_fn(|_| AtomicU64::new(0)), pending }
    }

    /// Whether a namespace is ordered; one that does not exist is not.
    pub(super) fn is_ordered(&self, namespace: NamespaceId) -> bool {
        self.kind(namespace) & ORDERED != 0
    }

    /// Whether records of a namespace expire unless a put requests something else. That does not change while a store is open.
    pub(super) fn has_ttl(&self, namespace: NamespaceId) -> bool {
        self.kind(namespace) & TTL != 0
    }

    /// Whether a put to a namespace needs nothing but the lock of its record.
    pub(super) fn is_plain(&self, namespace: NamespaceId) -> bool {
        self.kind(namespace) == 0
    }

    #[inline]
    fn kind(&self, namespace: NamespaceId) -> u64 {
        let known = self.kinds[namespace as usize % KINDS].load(Ordering::Relaxed);
        if known >> KIND_BITS == u64::from(namespace) { known & KIND_MASK } else { self.find_kind(namespace) }
    }

    #[cold]
    fn find_kind(&self, namespace: NamespaceId) -> u64 {
        match self.backing.is_ordered(namespace) {
            Ok(is_ordered) => {
                let ttl = if self.backing.has_ttl(namespace) { TTL } else { 0 };
                let kind = ttl | if is_ordered { ORDERED } else { 0 };
                let known = u64::from(namespace) << KIND_BITS | kind;
                self.kinds[namespace as usize % KINDS].store(known, Ordering::Relaxed);
                kind
            }
            Err(_) => 0, // the command itself reports why
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().expect("no panics under this lock")
    }

    /// A transaction that has locked a key may insert it. Returns false if it has stated that before.
    fn open(&self, cache: &Cache, namespace: NamespaceId, key: KeyBuf) -> bool {
        let mut pending = self.pending();
        let insertion = pending.keys.entry((namespace, key)).or_default();
        let is_new = !std::mem::replace(&mut insertion.is_open, true);
        if pending.keys.len() > pending.max {
            pending.keys.retain(|(namespace, key), insertion| {
                insertion.is_open || insertion.committed.is_some_and(|it| it.is_awaited(cache, *namespace, key))
            });
            pending.max = PENDING_MAX.max(2 * pending.keys.len());
        }
        is_new
    }

    /// The insertion of a key was committed: the index has it later.
    pub(super) fn commit(&self, namespace: NamespaceId, key: KeyBuf, committed: Committed) {
        let insertion = Insertion { is_open: false, committed: Some(committed) };
        self.pending().keys.insert((namespace, key), insertion);
    }

    /// The index has a key, or it is not inserted.
    pub(super) fn end(&self, cache: &Cache, namespace: NamespaceId, key: KeyBuf) {
        let mut pending = self.pending();
        let Entry::Occupied(mut entry) = pending.keys.entry((namespace, key)) else { return };
        let (namespace, key) = entry.key();
        // Another transaction may have inserted it before.
        match entry.get().committed.is_some_and(|it| it.is_awaited(cache, *namespace, key)) {
            true => entry.get_mut().is_open = false,
            false => _ = entry.remove(),
        }
    }

    /// The commit of a ticket has come to its end, and with it the insertion of a key.
    pub(super) fn settle(&self, cache: &Cache, namespace: NamespaceId, key: KeyBuf) {
        let mut pending = self.pending();
        let Entry::Occupied(mut entry) = pending.keys.entry((namespace, key)) else { return };
        let (namespace, key) = entry.key();
        if !entry.get().committed.is_some_and(|it| it.is_awaited(cache, *namespace, key)) {
            entry.get_mut().committed = None;
            if !entry.get().is_open {
                entry.remove();
            }
        }
    }

    /// The next keys of the namespace within bounds, pending ones included.
    fn keys(
        &self,
        namespace: NamespaceId,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        count: usize,
    ) -> Result<Vec<KeyBuf>, Error> {
        // Before the index is read: it has by then what is pending no more. Of both, the first ones are enough.
        let mut keys = self.pending_keys(namespace, (lower, upper), reverse, count);
        let indexed = self.backing.ordered_keys(namespace, lower, upper, reverse, count)?;
        if keys.is_empty() {
            return Ok(indexed);
        }
        keys.extend(indexed);
        keys.sort_unstable();
        keys.dedup();
        if reverse {
            keys.reverse();
        }
        keys.truncate(count);
        Ok(keys)
    }

    /// The next pending keys of the namespace within bounds.
    fn pending_keys(
        &self,
        namespace: NamespaceId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        count: usize,
    ) -> Vec<KeyBuf> {
        let pending = self.pending();
        if pending.keys.is_empty() {
            return Vec::new();
        }
        let from = match bounds.0 {
            Bound::Included(key) | Bound::Excluded(key) if !key.is_empty() => &key[..key.len().min(KEY_BYTES_MAX)],
            _ => &[0],
        };
        let Ok(from) = KeyBuf::new(from) else { return Vec::new() };
        let is_below = |key: &KeyBuf| (Bound::Unbounded, bounds.1).contains(key.as_bytes());
        let others = pending.keys.range((namespace, from)..).map(|(of, _)| of);
        let others = others.take_while(|(of, key)| *of == namespace && is_below(key)).map(|(_, key)| key);
        let mut within = others.filter(|key| bounds.contains(key.as_bytes()));
        if !reverse {
            return within.by_ref().take(count).cloned().collect();
        }
        // The last ones, of which there are few.
        let all: Vec<&KeyBuf> = within.collect();
        all.into_iter().rev().take(count).cloned().collect()
    }

    fn page(&self, namespace: NamespaceId, bounds: &Bounds, reverse: bool, count: usize) -> Result<Vec<KeyBuf>, Error> {
        let [lower, upper] = [&bounds.0, &bounds.1].map(|bound| bound.as_ref().map(Vec::as_slice));
        self.keys(namespace, (lower, upper), reverse, count)
    }

    /// The first key after a range that ends so.
    fn next(&self, namespace: NamespaceId, upper: Bound<&[u8]>) -> Result<Option<KeyBuf>, Error> {
        let lower = match upper {
            Bound::Included(key) => Bound::Excluded(key),
            Bound::Excluded(key) => Bound::Included(key),
            Bound::Unbounded => return Ok(None),
        };
        Ok(self.keys(namespace, (lower, Bound::Unbounded), false, 1)?.pop())
    }
}

/// What the lock of a key, or of the end of a namespace, is known by.
fn lock_key(key: Option<&KeyBuf>) -> KeyRef<'_> {
    match key {
        // No key is known by this digest: nobody can choose one that is, and by chance it does not happen.
        None => KeyRef::Short(Key::of_digest([0xff; 16])),
        Some(key) => key.into(),
    }
}

impl Transaction {
    /// Reads the records of a range of keys of an ordered namespace, in their order, at most `limit`. Nobody inserts into the range, or changes
    /// or deletes a record of it, until the transaction ends.
    ///
    /// # Errors
    /// - [`Error::NotOrdered`] if the namespace has no order; [`Error::NotInStore`] if its records expire.
    /// - Otherwise as [`Transaction::read`].
    ///
    /// # Examples
    /// ```
    /// use kaml::store::{Store, StoreOptions};
    /// use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let seats = device.create_namespace("seats", &NamespaceOptions::records(KeyKind::Ordered))?;
    /// let store = Store::open(device, &StoreOptions::new(8 << 20))?;
    /// // At most one reservation of a row: two transactions at once cannot both find it empty.
    /// store.run(|txn| match txn.range(seats, "row 7/".."row 70", usize::MAX)?.is_empty() {
    ///     true => txn.insert(seats, "row 7/seat 3, at the window", b"ada"),
    ///     false => Ok(()),
    /// })?;
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn range<'k, K: Into<KeyRef<'k>> + Clone>(
        &mut self,
        namespace: NamespaceId,
        range: impl RangeBounds<K>,
        limit: usize,
    ) -> Result<Vec<(KeyBuf, Value)>, Error> {
        self.scan(namespace, owned(range), Mode::Shared, false, limit)
    }

    /// As [`Transaction::range`], of records that are going to be changed, so nobody else reads them for that.
    ///
    /// # Errors
    /// As [`Transaction::range`].
    ///
    /// # Examples
    /// ```
    /// use kaml::store::{Store, StoreOptions};
    /// use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let jobs = device.create_namespace("jobs", &NamespaceOptions::records(KeyKind::Ordered))?;
    /// let store = Store::open(device, &StoreOptions::new(8 << 20))?;
    /// store.put(jobs, "0001-mail", b"to ada")?;
    /// // The oldest job. Two workers never take the same one.
    /// let job = store.run(|txn| {
    ///     let job = txn.range_for_update::<&str>(jobs, .., 1)?.pop();
    ///     if let Some((key, _)) = &job {
    ///         txn.delete(jobs, key)?;
    ///     }
    ///     Ok(job.map(|(key, _)| key.to_string()))
    /// })?;
    /// assert_eq!(job.as_deref(), Some("0001-mail"));
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn range_for_update<'k, K: Into<KeyRef<'k>> + Clone>(
        &mut self,
        namespace: NamespaceId,
        range: impl RangeBounds<K>,
        limit: usize,
    ) -> Result<Vec<(KeyBuf, Value)>, Error> {
        self.scan(namespace, owned(range), Mode::Exclusive, false, limit)
    }

    /// As [`Transaction::range`], from the end of the range downwards.
    ///
    /// # Errors
    /// As [`Transaction::range`].
    pub fn range_back<'k, K: Into<KeyRef<'k>> + Clone>(
        &mut self,
        namespace: NamespaceId,
        range: impl RangeBounds<K>,
        limit: usize,
    ) -> Result<Vec<(KeyBuf, Value)>, Error> {
        self.scan(namespace, owned(range), Mode::Shared, true, limit)
    }

    /// As [`Transaction::range_for_update`], from the end of the range downwards.
    ///
    /// # Errors
    /// As [`Transaction::range`].
    pub fn range_back_for_update<'k, K: Into<KeyRef<'k>> + Clone>(
        &mut self,
        namespace: NamespaceId,
        range: impl RangeBounds<K>,
        limit: usize,
    ) -> Result<Vec<(KeyBuf, Value)>, Error> {
        self.scan(namespace, owned(range), Mode::Exclusive, true, limit)
    }

    fn scan(
        &mut self,
        namespace: NamespaceId,
        mut bounds: Bounds,
        mode: Mode,
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<(KeyBuf, Value)>, Error> {
        let mut found = Vec::new();
        let inner = self.inner().clone();
        let store = Store::of(inner.clone());
        if !inner.ranges.is_ordered(namespace) {
            inner.ranges.backing.ordered_keys(namespace, Bound::Unbounded, Bound::Unbounded, false, 1)?; // reports why
            return Err(Error::NotOrdered(namespace));
        }
        // The record that guards the end of the range could expire while its lock is held.
        if inner.ranges.backing.expires(namespace) {
            return Err(Error::NotInStore(namespace));
        }
        if reverse {
            self.lock_above(namespace, &bounds.1)?;
        }
        // More than were asked for, where many were deleted.
        let mut widened = 1;
        while found.len() < limit {
            let count = PAGE_KEYS.min(limit - found.len()).saturating_mul(widened);
            let mut page = inner.ranges.page(namespace, &bounds, reverse, count)?;
            // Those that miss are read together, before they are locked: nobody reads past a lock.
            let misses = |key: &KeyRef<'_>| {
                let place = inner.cache.place_of(namespace, *key)?;
                let is_missed = !self.knows(&place.id) && matches!(inner.cache.peek(&place, |_| ()), Peek::Miss);
                Ok::<bool, Error>(is_missed)
            };
            let mut unknown = Vec::new();
            for key in page.iter().map(KeyRef::from) {
                if misses(&key)? {
                    unknown.push(key);
                }
            }
            if unknown.len() > 1 {
                store.get_many(namespace, unknown)?;
            }
            let mut locked = Vec::with_capacity(page.len());
            loop {
                locked.clear();
                for key in &page {
                    locked.push(self.touch(namespace, key.into(), mode)?);
                }
                if page.len() < count && !reverse {
                    self.lock_above(namespace, &bounds.1)?; // downwards each key guards the gap below it
                }
                let again = inner.ranges.page(namespace, &bounds, reverse, count)?;
                if again == page {
                    break;
                }
                page = again; // others have committed meanwhile
            }
            let is_last = page.len() < count;
            let lowest = page.last().map(|key| key.as_bytes().to_vec());
            let mut highest = None;
            for (key, at) in page.into_iter().zip(locked) {
                if let Some(value) = self.value(at)? {
                    highest = Some(key.as_bytes().to_vec());
                    found.push((key, value));
                }
            }
            match (is_last, reverse, lowest, highest) {
                (true, ..) => break,
                (false, true, Some(lowest), _) => bounds.1 = Bound::Excluded(lowest),
                // What comes after the last record that exists is not guarded yet, whatever keys the index has there.
                (false, false, _, Some(highest)) => (bounds.0, widened) = (Bound::Excluded(highest), 1),
                (false, ..) => widened *= 2,
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Locks what guards the last gap of a range: the first key above it whose record exists, or the end of the namespace, and the keys before
    /// that, which can leave the index.
    fn lock_above(&mut self, namespace: NamespaceId, upper: &Bound<Vec<u8>>) -> Result<(), Error> {
        let inner = self.inner().clone();
        let mut locked = Vec::new();
        let mut bound = upper.clone();
        loop {
            let next = inner.ranges.next(namespace, bound.as_ref().map(Vec::as_slice))?;
            let at = self.touch(namespace, lock_key(next.as_ref()), Mode::Shared)?;
            if !locked.contains(&next) {
                // Others may have inserted something before it was locked: from the beginning.
                locked.push(next);
                bound = upper.clone();
                continue;
            }
            match next {
                Some(key) if !self.is_there(at)? => bound = Bound::Included(key.as_bytes().to_vec()),
                _ => return Ok(()),
            }
        }
    }

    /// A record that is locked will be stored: if that adds a key to an ordered namespace, the gap that it comes into is locked.
    pub(super) fn guard_gap(&mut self, namespace: NamespaceId, key: KeyRef<'_>, at: usize) -> Result<(), Error> {
        let inner = self.inner().clone();
        if !inner.ranges.is_ordered(namespace) || self.was_there(at)? {
            return Ok(());
        }
        let kept_key = key.to_buf()?;
        if inner.ranges.open(&inner.cache, namespace, kept_key.clone()) {
            self.inserted(namespace, kept_key);
        }
        let above = Bound::Included(key.as_bytes());
        let kept = self.lock_count();
        loop {
            let next = inner.ranges.next(namespace, above)?;
            self.touch(namespace, lock_key(next.as_ref()), Mode::Exclusive)?;
            if inner.ranges.next(namespace, above)? == next {
                // From now on readers find the key among the pending ones, and wait for its lock.
                self.release_last(kept);
                return Ok(());
            }
        }
    }
}

impl Store {
    /// The records of a range of keys of an ordered namespace as of one moment, at most `limit`: a transaction that only reads.
    ///
    /// # Errors
    /// As [`Transaction::range`].
    pub fn range<'k, K: Into<KeyRef<'k>> + Clone>(
        &self,
        namespace: NamespaceId,
        range: impl RangeBounds<K>,
        limit: usize,
    ) -> Result<Vec<(KeyBuf, Value)>, Error> {
        let bounds = owned(range);
        self.run(|txn| txn.scan(namespace, bounds.clone(), Mode::Shared, false, limit))
    }
}

fn owned<'k, K: Into<KeyRef<'k>> + Clone>(range: impl RangeBounds<K>) -> Bounds {
    let own = |bound: Bound<&K>| bound.map(|key| key.clone().into().as_bytes().to_vec());
    (own(range.start_bound()), own(range.end_bound()))
}
