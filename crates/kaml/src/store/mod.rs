//! The record cache and transactions over a device (libkaml's upper half).
//!
//! Lives here:       `Store`: plain reads and puts through the cache, `flush`, and beginning transactions.
//! Lives elsewhere:  the cache (`cache`, `shard`, `evict`, `reads`, `clean`), transactions (`txn`, `locks`, `waits`,
//!                   `line`, `epochs`, `xcb`), the device itself (`crate::Device`).
//! Implements:       paper:KAML III.C-D; design section 7.
//!
//! ```
//! use kaml::store::{Store, StoreOptions};
//! use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions};
//!
//! let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
//! let keys = NamespaceOptions { keys: KeyKind::U64, ..NamespaceOptions::default() };
//! let accounts = device.create_namespace("accounts", &keys)?;
//! let store = Store::open(device, &StoreOptions::new(8 << 20))?;
//! store.put(accounts, 1u64, b"100")?;
//! store.put(accounts, 2u64, b"0")?;
//!
//! store.run(|txn| {
//!     let from = txn.read_for_update(accounts, 1u64)?.expect("it was put");
//!     txn.update(accounts, 2u64, &from)?;
//!     txn.update(accounts, 1u64, b"0")
//! })?;
//! assert_eq!(&store.get(accounts, 2u64)?.expect("it was put")[..], b"100");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backing;
mod cache;
mod clean;
mod epochs;
mod error;
mod evict;
mod gone;
mod in_flight;
mod line;
mod locks;
mod options;
mod queue;
mod reads;
mod record;
mod shard;
mod table;
mod txn;
mod value;
mod waits;
mod xcb;

pub use backing::{Backing, BatchReader, CommandQueue, Limits, PendingPut};
pub use error::StoreError;
pub use options::{StoreOptions, StoreStats, WriteMode};
pub use queue::{StoreAnswer, StoreQueue, Update};
pub use txn::Transaction;
pub use value::Value;
pub use xcb::{IllegalMove, XcbEvent, XcbState};

use crate::sync::{AtomicU64, JoinHandle, Mutex, sleep, spawn};
use crate::{Key, NamespaceId};
use backing::InlineQueue;
use cache::{Cache, Peek, Place};
use clean::Cleaner;
use epochs::Epochs;
use line::Standing;
use reads::Loaded;
use shard::Content;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use waits::Refused;

/// Values up to this size are copied under the lock of their shard: less work than counting another reference.
const COPY_BYTES_MAX: usize = 4096;
/// Values up to this size are taken by every namespace: the shortest segment of versions has room for more.
const VALUE_BYTES_SURE: u64 = 4096;
/// Waits for locks that `run` begins again after one took too long. A wait is long already, and one that the body itself keeps in vain
/// (by a put of a record that its transaction has locked) is in vain each time.
const TIMEOUT_RETRIES_MAX: u32 = 2;
/// Pause before a transaction is run again the second time; doubled each time up to 64 times as long.
const RETRY_PAUSE: Duration = Duration::from_micros(20);

/// A record cache with transactions over a device. Clones are further handles to the same one; all calls may be made
/// from any thread at once.
///
/// Nobody else may change the records of the device meanwhile: the cache would not know.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    cache: Arc<Cache>,
    cleaner: Arc<Cleaner>,
    /// With delayed durability.
    epochs: Option<Arc<Epochs>>,
    /// The one that cleans, or the one that writes epochs.
    thread: Mutex<Option<JoinHandle<()>>>,
    write_mode: WriteMode,
    early_release: bool,
    transactions_max: u32,
    retries_max: u32,
    deadlocks: AtomicU64,
    timeouts: AtomicU64,
}

impl Store {
    /// Opens a store over a device.
    pub fn open(device: impl Backing, options: &StoreOptions) -> Result<Store, StoreError> {
        Store::over(Arc::new(device), options)
    }

    /// Opens a store over a shared device.
    pub fn over(device: Arc<dyn Backing>, options: &StoreOptions) -> Result<Store, StoreError> {
        options.check()?;
        let cache = Arc::new(Cache::new(device, options)?);
        let cleaner = Arc::new(Cleaner::new(&cache));
        let delay = options.durability_delay;
        let epochs = (!delay.is_zero()).then(|| Arc::new(Epochs::new(&cache, delay)));
        let thread = match (&epochs, options.write_mode) {
            (Some(epochs), _) => {
                let (cache, epochs) = (cache.clone(), epochs.clone());
                Some(start("kaml-epochs", move || epochs.run(&cache))?)
            }
            (None, WriteMode::Back) => {
                let (cache, cleaner) = (cache.clone(), cleaner.clone());
                Some(start("kaml-clean", move || cleaner.run(&cache))?)
            }
            (None, WriteMode::Through) => None,
        };
        let inner = Inner {
            cache,
            cleaner,
            epochs,
            thread: Mutex::new(thread),
            write_mode: options.write_mode,
            early_release: options.early_release,
            transactions_max: options.transactions_max,
            retries_max: options.retries_max,
            deadlocks: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
        };
        Ok(Store { inner: Arc::new(inner) })
    }

    // --- plain records ----------------------------------------------------------------------------------------------

    /// Reads a record; nothing is copied.
    pub fn get(&self, namespace: NamespaceId, key: impl Into<Key>) -> Result<Option<Value>, StoreError> {
        let cache = &self.inner.cache;
        let place = cache.place(namespace, key.into());
        loop {
            let (value, ticket) = match cache.peek(&place, Arc::clone) {
                Peek::Hit(value, ticket) => (Some(value), ticket),
                Peek::Absent(ticket) => (None, ticket),
                Peek::Miss => match cache.load(&place, None)? {
                    Some(loaded) => loaded,
                    None => return self.locked_get(&place),
                },
                Peek::Busy => return self.locked_get(&place),
            };
            if self.may_show(ticket) {
                return Ok(value.map(Value));
            }
        }
    }

    /// Reads a record into a buffer; false if it is not there.
    pub fn get_into(
        &self,
        namespace: NamespaceId,
        key: impl Into<Key>,
        value: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        let place = self.inner.cache.place(namespace, key.into());
        let copied = self.inner.cache.peek(&place, |found| {
            let small = found.len() <= COPY_BYTES_MAX;
            if small {
                value.clear();
                value.extend_from_slice(found);
            }
            small
        });
        match copied {
            Peek::Hit(true, ticket) if self.may_show(ticket) => return Ok(true),
            Peek::Absent(ticket) if self.may_show(ticket) => return Ok(false),
            Peek::Hit(..) | Peek::Absent(_) | Peek::Miss | Peek::Busy => {}
        }
        let Some(found) = self.get(namespace, place.id.key)? else { return Ok(false) };
        value.clear();
        value.extend_from_slice(&found);
        Ok(true)
    }

    /// A door for batched gets, for this thread.
    pub fn reader(&self) -> StoreReader {
        StoreReader { store: self.clone(), reader: None }
    }

    /// A door for many operations in flight, for this thread; `depth` is how many reads the device does at the same time.
    pub fn queue(&self, depth: u32) -> StoreQueue {
        let backing = &self.inner.cache.backing;
        let inline = || Box::new(InlineQueue { backing: backing.clone(), done: Vec::new() }) as Box<dyn CommandQueue>;
        StoreQueue::new(self.clone(), backing.queue(depth).unwrap_or_else(inline))
    }

    /// Reads many records of a namespace; those that miss are read together. Whoever does this often keeps a
    /// [reader](Store::reader).
    pub fn get_many(&self, namespace: NamespaceId, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.reader().get_many(namespace, keys)
    }

    /// Whether a record is there; never reads flash.
    pub fn exists(&self, namespace: NamespaceId, key: impl Into<Key>) -> Result<bool, StoreError> {
        let place = self.inner.cache.place(namespace, key.into());
        let mut on_device = None;
        loop {
            return match (self.inner.cache.peek(&place, |_| ()), on_device) {
                (Peek::Hit((), ticket), _) if self.may_show(ticket) => Ok(true),
                (Peek::Absent(ticket), _) if self.may_show(ticket) => Ok(false),
                // Whatever transaction it is of has come so far that others see the rest of it, too.
                (Peek::Miss, Some(there)) => Ok(there),
                (Peek::Miss, None) => {
                    on_device = Some(self.inner.cache.backing.exists(namespace, place.id.key)?);
                    continue;
                }
                (Peek::Hit(..) | Peek::Absent(_) | Peek::Busy, _) => Ok(self.get(namespace, place.id.key)?.is_some()),
            };
        }
    }

    /// Stores a record; durable as the [mode](WriteMode) says. In write-back mode an error may be about unflushed records of others;
    /// nothing of this one is there then.
    pub fn put(&self, namespace: NamespaceId, key: impl Into<Key>, value: &[u8]) -> Result<(), StoreError> {
        self.inner.check_value(namespace, value)?;
        self.change(namespace, key.into(), Some(value.into()))
    }

    /// Deletes a record, whether it is there or not; durable as the [mode](WriteMode) says.
    pub fn delete(&self, namespace: NamespaceId, key: impl Into<Key>) -> Result<(), StoreError> {
        self.change(namespace, key.into(), None)
    }

    /// Makes everything durable that was put or committed before. Then all that was read before is durable, too.
    pub fn flush(&self) -> Result<(), StoreError> {
        match &self.inner.epochs {
            Some(epochs) => epochs.flush(&self.inner.cache),
            None => self.inner.cleaner.flush(&self.inner.cache),
        }
    }

    /// Goes on after commits with delayed durability were lost ([`StoreError::CommitsLost`]): records are as they were before
    /// these. Answers how many they were; 0 if none are.
    pub fn acknowledge_lost(&self) -> u64 {
        self.inner.epochs.as_ref().map_or(0, |epochs| epochs.acknowledge_lost())
    }

    /// Deletes a namespace with everything in it, unflushed records included. Transactions that change records of it and are not
    /// committed yet fail.
    pub fn delete_namespace(&self, namespace: NamespaceId) -> Result<(), StoreError> {
        if self.inner.epochs.is_some() {
            self.flush()?;
        }
        self.inner.cache.backing.delete_namespace(namespace)?;
        self.inner.cache.forget_namespace(namespace);
        Ok(())
    }

    // --- transactions -------------------------------------------------------------------------------------------------

    /// Begins a transaction (paper:KAML TransactionBegin).
    pub fn begin(&self) -> Result<Transaction, StoreError> {
        Transaction::begin(&self.inner)
    }

    /// Runs a transaction and commits it, and runs it again when it was the victim of a deadlock
    /// ([`retries_max`](StoreOptions::retries_max) times), or waited too long for a lock (twice). A body that aborts the transaction
    /// itself ends it with what it answers.
    ///
    /// The body uses its transaction alone: a [`put`](Store::put) of a record that this has locked waits for it in vain, and
    /// `run` answers [`StoreError::LockTimeout`] after three times the [`lock_timeout`](StoreOptions::lock_timeout).
    pub fn run<T>(&self, mut body: impl FnMut(&mut Transaction) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.try_again(StoreError::is_retryable, || self.run_once(&mut body))
    }

    fn run_once<T>(&self, body: impl FnOnce(&mut Transaction) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut txn = self.begin()?;
        let answer = body(&mut txn);
        txn.check_refused()?; // the body may have overlooked it
        let answer = answer?;
        if txn.state() == XcbState::Active {
            txn.commit()?;
        }
        Ok(answer)
    }

    /// Begins a transaction with a lock to change one record, trying again when the lock is refused; answers what it sees
    /// of the record.
    fn run_locked(&self, namespace: NamespaceId, key: Key) -> Result<(Transaction, Option<Value>), StoreError> {
        self.try_again(StoreError::is_retryable, || {
            let mut txn = self.begin()?;
            let value = txn.read_for_update(namespace, key)?;
            Ok((txn, value))
        })
    }

    /// A call of one lock. Even that may be the victim of a deadlock: when others wait behind it for those ahead of it.
    fn run_plain<T>(&self, attempt: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.try_again(|error| matches!(error, StoreError::Deadlock { .. }), attempt)
    }

    /// Makes an attempt, and others after longer and longer pauses as long as they fail in this way.
    fn try_again<T>(
        &self,
        in_vain: impl Fn(&StoreError) -> bool,
        mut attempt: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (mut tries, mut timeouts) = (0, 0);
        loop {
            match attempt() {
                Err(error) if in_vain(&error) && tries < self.inner.retries_max && timeouts < TIMEOUT_RETRIES_MAX => {
                    if tries > 0 {
                        sleep(RETRY_PAUSE * (1 << tries.min(6)));
                    }
                    tries += 1;
                    timeouts += u32::from(matches!(error, StoreError::LockTimeout { .. }));
                }
                result => return result,
            }
        }
    }

    /// What the store did, and how it stands.
    pub fn stats(&self) -> StoreStats {
        let cache = &self.inner.cache;
        let mut stats = StoreStats {
            used_bytes: cache.used() as u64,
            cache_bytes: cache.budget as u64,
            dirty_bytes: cache.dirty_bytes() as u64,
            deadlock_count: self.inner.deadlocks.load(Ordering::Relaxed),
            timeout_count: self.inner.timeouts.load(Ordering::Relaxed),
            lost_commit_count: self.inner.epochs.as_ref().map_or(0, |epochs| epochs.lost_count()),
            ..StoreStats::default()
        };
        for at in 0..cache.shard_count() {
            let shard = cache.raw(at);
            stats.hit_count += shard.counts.hits;
            stats.miss_count += shard.counts.misses;
            stats.eviction_count += shard.counts.evictions;
            stats.lock_wait_count += shard.counts.lock_waits;
            stats.record_count += shard.len() as u64;
        }
        stats
    }

    // --- helpers -------------------------------------------------------------------------------------------------------

    /// Waits until what was read may be shown: it is durable, or need not be. False if it was lost instead.
    fn may_show(&self, ticket: line::Ticket) -> bool {
        let line = &self.inner.cache.line;
        match line.standing(ticket) {
            Standing::Durable => true,
            Standing::Pending => match &self.inner.epochs {
                Some(epochs) => epochs.show(line, ticket) || epochs.wait(&self.inner.cache, ticket).is_ok(),
                None => self.inner.cache.wait_for(ticket).is_ok(),
            },
            Standing::Lost => false,
        }
    }

    /// Reads a record that a transaction is changing: waits for it.
    fn locked_get(&self, place: &Place) -> Result<Option<Value>, StoreError> {
        self.run_plain(|| self.run_once(|txn| txn.read(place.id.namespace, place.id.key)))
    }

    fn change(&self, namespace: NamespaceId, key: Key, value: Option<Arc<[u8]>>) -> Result<(), StoreError> {
        let is_back = self.inner.write_mode == WriteMode::Back;
        if self.inner.stays_in_cache(value.as_deref()) {
            return self.put_back(namespace, key, value.map_or(Content::Absent, Content::Value));
        }
        self.run_plain(|| {
            let mut txn = self.begin()?;
            txn.set(namespace, key, value.clone())?;
            if is_back { txn.commit() } else { txn.commit_durable() }
        })
    }

    fn put_back(&self, namespace: NamespaceId, key: Key, content: Content) -> Result<(), StoreError> {
        if self.try_put_back(namespace, key, &content)? {
            return Ok(());
        }
        self.run_plain(|| self.begin()?.set_unflushed(namespace, key, content.clone()))?;
        self.inner.cleaner.keep_budget(&self.inner.cache, self.inner.cache.place(namespace, key).shard);
        Ok(())
    }

    /// Stores a record in the cache alone, unless that would have to wait for a transaction; `false` then.
    fn try_put_back(&self, namespace: NamespaceId, key: Key, content: &Content) -> Result<bool, StoreError> {
        let cache = &self.inner.cache;
        let place = cache.place(namespace, key);
        if matches!(cache.peek(&place, |_| ()), Peek::Miss | Peek::Busy) {
            cache.backing.exists(namespace, key)?; // refuses unknown namespaces and keys that it does not take
        }
        self.inner.cleaner.admit(cache, content)?;
        let is_stored = self.inner.cleaner.try_put(cache, &place, content);
        if is_stored {
            self.inner.cleaner.keep_budget(cache, place.shard);
        }
        Ok(is_stored)
    }
}

/// Batched gets of one thread: what it reads the device with is opened at the first miss and kept.
pub struct StoreReader {
    store: Store,
    reader: Option<Box<dyn BatchReader>>,
}

impl StoreReader {
    /// Reads many records of a namespace; those that miss are read together.
    pub fn get_many(&mut self, namespace: NamespaceId, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        let store = &self.store;
        if let [key] = keys {
            return Ok(vec![store.get(namespace, *key)?]);
        }
        let found = store.inner.cache.load_many(&mut self.reader, namespace, keys)?;
        let again = |(loaded, key): (Loaded, &Key)| match loaded {
            Some((value, ticket)) if store.may_show(ticket) => Ok(value.map(Value)),
            Some(_) | None => store.get(namespace, *key),
        };
        found.into_iter().zip(keys).map(again).collect()
    }
}

impl Inner {
    /// Whether a plain put of a value, or of its absence, is one in the cache alone.
    fn stays_in_cache(&self, value: Option<&[u8]>) -> bool {
        let cachable = value.is_none_or(|value| self.cache.is_cachable(value.len()));
        self.write_mode == WriteMode::Back && cachable && self.epochs.is_none()
    }

    /// Refuses at once what the device would refuse later, when it would take others along: a round of cleaning or an epoch.
    fn check_value(&self, namespace: NamespaceId, value: &[u8]) -> Result<(), StoreError> {
        let bytes = value.len() as u64;
        if bytes <= VALUE_BYTES_SURE.min(self.cache.limits.value_bytes_max) {
            return Ok(());
        }
        let max = self.cache.backing.value_bytes_max(namespace);
        if bytes <= max {
            return Ok(());
        }
        let namespace = (max < self.cache.limits.value_bytes_max).then_some(namespace);
        Err(kaml_device::Error::ValueTooLarge { bytes, max, namespace }.into())
    }

    fn count_refused(&self, refused: Refused) {
        match refused {
            Refused::Deadlock => self.deadlocks.fetch_add(1, Ordering::Relaxed),
            Refused::Timeout => self.timeouts.fetch_add(1, Ordering::Relaxed),
        };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let thread = self.thread.lock().expect("no panics under this lock").take();
        self.cleaner.close();
        self.epochs.iter().for_each(|epochs| epochs.close());
        self.cache.before_sleep();
        if let Some(thread) = thread {
            thread.join().expect("a thread of the store does not panic");
        }
        if let Err(error) = self.cleaner.flush(&self.cache) {
            tracing::warn!(%error, "unflushed records are lost");
        }
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    spawn(name, work).map_err(StoreError::Thread)
}
