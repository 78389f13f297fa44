//! The record cache and transactions over a device (libkaml's upper half).
//!
//! Lives here:       `Store`: plain reads and puts through the cache, `flush`, and beginning transactions.
//! Lives elsewhere:  the cache (`cache`, `shard`, `evict`, `reads`, `clean`), transactions (`txn`, `locks`, `waits`,
//!                   `line`, `epochs`, `xcb`), the device itself (`crate::Device`).
//! Implements:       paper:KAML III.C-D; docs/ARCHITECTURE.md "The record cache".
//!
//! ```
//! use kaml::store::{Store, StoreOptions};
//! use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions};
//!
//! let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
//! let keys = NamespaceOptions::records(KeyKind::U64);
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
//!
//! # What is durable when
//!
//! This table is the promise of each mode; the documentation of single calls refers to it. *Through* and *back* are the
//! [`WriteMode`], *delay* is a [`durability_delay`](StoreOptions::durability_delay) above zero, with either write mode.
//! [`early_release`](StoreOptions::early_release) changes no cell.
//!
//! | call | through | back | delay, through | delay, back |
//! |---|---|---|---|---|
//! | [`Store::put`], [`Store::delete`] return | durable | cached ¹ | durable | visible, durable after the delay |
//! | [`StoreQueue::put`], [`StoreQueue::delete`] complete | durable | cached ¹ | durable | visible, durable after the delay |
//! | [`StoreQueue::update`] completes | durable | durable | durable | durable |
//! | [`Transaction::commit`] returns | durable | durable, and with it what it read | visible, durable after the delay | as left |
//! | [`Transaction::commit_durable`] returns | durable | durable, and with it what it read | durable | durable |
//! | [`Store::get`], [`Store::exists`], [`StoreReader::get_many`], [`StoreQueue::get`] show | what is durable | also what is cached | also what is visible | as left |
//! | [`Store::flush`] returns | nothing to do | all is durable that was put before | all is durable that was committed or put before | as left |
//! | the last handle is dropped | nothing to do | as flush | as flush | as flush |
//!
//! *Cached*: in memory alone. It becomes durable with the next flush, or sooner if memory runs out. A crash keeps any of the
//! cached changes and loses the others. ¹ A value of more than an eighth of the cache is not cached: it is durable then.
//!
//! *Visible*: others see it, and a crash takes back the last of such changes and no others, in an order in which they may have
//! happened. What a caller was shown of them can be taken back, too; after a flush has returned, all is durable that anybody was
//! shown before.
//!
//! A change that does not find its record as it must be ([`Error::Conflict`]) is refused after what
//! was found is durable or visible, by this table.

mod backing;
mod cache;
mod clean;
mod epochs;
mod evict;
mod expiring;
mod gone;
mod in_flight;
mod line;
mod locks;
mod many;
mod options;
mod plain;
mod queue;
mod ranges;
mod read_only;
mod reads;
mod record;
mod shard;
mod table;
mod txn;
mod value;
mod waits;
mod xcb;

pub use backing::{Backing, BatchReader, CommandQueue, Limits, PendingPut};
pub use many::StoreReader;
pub use options::{StoreOptions, StoreStats, WriteMode};
pub use queue::{StoreAnswer, StoreQueue, Update};
pub use txn::Transaction;
pub use value::Value;
pub use xcb::{IllegalMove, XcbEvent, XcbState};

use crate::sync::{AtomicU64, JoinHandle, Mutex, sleep, spawn};
use crate::{Error, KeyRef, NamespaceId};
use backing::InlineQueue;
use cache::{Cache, Peek, Place};
use clean::Cleaner;
use epochs::Epochs;
use ranges::Ranges;
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

/// A record cache with transactions over a device. Clones are further handles to the same one; all calls can be made
/// from any thread at once.
///
/// A store over a [`Device`](crate::Device) takes over changing its records, because its cache would not know of other changes: while
/// the store is open, puts, deletes, rollbacks and deletions of namespaces by other handles of the device return
/// [`Error::StoreIsOpen`], over a network, too, and so does opening a second store. Reads, blocks, snapshots
/// and new namespaces continue. A store over a remote device cannot see to that: nobody else may change the records meanwhile.
///
/// What is durable when is in the [table of promises](self#what-is-durable-when).
///
/// # Examples
/// ```
/// use kaml::store::{Store, StoreOptions};
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// let store = Store::open(device, &StoreOptions::new(8 << 20))?;
/// store.put(users, 1u64, b"ada")?;
/// assert_eq!(store.get(users, 1u64)?.as_deref(), Some(&b"ada"[..]));
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    cache: Arc<Cache>,
    cleaner: Arc<Cleaner>,
    /// With delayed durability.
    epochs: Option<Arc<Epochs>>,
    ranges: Ranges,
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
    ///
    /// # Errors
    /// [`Error::StoreIsOpen`] if a store is open over the device; [`Error::CacheTooSmall`], [`Error::BadStoreOptions`] for the
    /// options; [`Error::Thread`] if the system refuses a thread.
    pub fn open(device: impl Backing, options: &StoreOptions) -> Result<Store, Error> {
        Store::over(Arc::new(device), options)
    }

    /// Opens a store over a shared device.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn over(device: Arc<dyn Backing>, options: &StoreOptions) -> Result<Store, Error> {
        options.check()?;
        let device = device.take_over()?.unwrap_or(device);
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
            ranges: Ranges::new(cache.backing.clone()),
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

    fn of(inner: Arc<Inner>) -> Store {
        Store { inner }
    }

    // --- plain records ----------------------------------------------------------------------------------------------

    /// Reads a record; nothing is copied.
    ///
    /// # Errors
    /// - [`Error::LockTimeout`] if a transaction holds the record for too long.
    /// - The errors of [`crate::Device::get`] if the record must be read.
    pub fn get<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<Option<Value>, Error> {
        match key.into() {
            KeyRef::Short(key) => self.get_at(&self.inner.cache.place(namespace, key), None),
            KeyRef::Bytes(bytes) => self.get_by_bytes(namespace, bytes),
        }
    }

    #[inline(never)]
    fn get_by_bytes(&self, namespace: NamespaceId, bytes: &[u8]) -> Result<Option<Value>, Error> {
        self.get_at(&self.inner.cache.place_of(namespace, bytes.into())?, Some(bytes))
    }

    /// Reads a record. `long` has the bytes of its key, unless the key is known by them. Inlined: hits with short keys pay nothing for it.
    #[inline(always)]
    fn get_at(&self, place: &Place, long: Option<&[u8]>) -> Result<Option<Value>, Error> {
        let cache = &self.inner.cache;
        loop {
            let (value, ticket) = match cache.peek(place, Arc::clone) {
                Peek::Hit(value, ticket) => (Some(value), ticket),
                Peek::Absent(ticket) => (None, ticket),
                Peek::Miss => match cache.load(place, place.key(long), None)? {
                    Some(loaded) => loaded,
                    None => return self.locked_get(place.id.namespace, place.key(long)),
                },
                Peek::Busy => return self.locked_get(place.id.namespace, place.key(long)),
            };
            if self.may_show(ticket) {
                return Ok(value.map(Value));
            }
        }
    }

    /// Reads a record into a buffer; false if it does not exist.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn get_into<'k>(
        &self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let copied = self.get_with(namespace, key, |found| {
            value.clear();
            value.extend_from_slice(found);
        });
        Ok(copied?.is_some())
    }

    /// Reads a record where it is: `read` gets the value, and its result is returned; `None` if the record does not exist. A hit
    /// changes no memory that other threads read, except the lock of its part of the cache.
    ///
    /// A value of at most 4096 bytes is lent under that lock, so `read` must be short and must not use the store. It is called
    /// again, and its last result is returned, if the commit that wrote the value is lost meanwhile.
    ///
    /// ```
    /// # use kaml::store::{Store, StoreOptions};
    /// # use kaml::{CreateOptions, Device, NamespaceOptions};
    /// # let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// # let users = device.create_namespace("users", &NamespaceOptions::default())?;
    /// # let store = Store::open(device, &StoreOptions::new(8 << 20))?;
    /// store.put(users, 1u64, b"Ada Lovelace")?;
    /// let initial = store.get_with(users, 1u64, |name| name[0])?;
    /// assert_eq!(initial, Some(b'A'));
    /// # Ok::<(), kaml::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn get_with<'k, R>(
        &self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        read: impl FnMut(&[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        match key.into() {
            KeyRef::Short(key) => self.get_with_at(&self.inner.cache.place(namespace, key), None, read),
            KeyRef::Bytes(bytes) => {
                let place = self.inner.cache.place_of(namespace, bytes.into())?;
                self.get_with_at(&place, Some(bytes), read)
            }
        }
    }

    #[inline(always)]
    fn get_with_at<R>(
        &self,
        place: &Place,
        long: Option<&[u8]>,
        mut read: impl FnMut(&[u8]) -> R,
    ) -> Result<Option<R>, Error> {
        let peek = self.inner.cache.peek(place, |found| (found.len() <= COPY_BYTES_MAX).then(|| read(found)));
        match peek {
            Peek::Hit(Some(result), ticket) if self.may_show(ticket) => return Ok(Some(result)),
            Peek::Absent(ticket) if self.may_show(ticket) => return Ok(None),
            Peek::Hit(..) | Peek::Absent(_) | Peek::Miss | Peek::Busy => {}
        }
        Ok(self.get_at(place, long)?.map(|found| read(&found)))
    }

    /// A door for batched gets, for this thread.
    pub fn reader(&self) -> StoreReader {
        StoreReader::new(self.clone())
    }

    /// A door for many operations in flight, for this thread; `depth` is how many reads the device does at the same time.
    pub fn queue(&self, depth: u32) -> StoreQueue {
        let backing = &self.inner.cache.backing;
        let inline = || Box::new(InlineQueue { backing: backing.clone(), done: Vec::new() }) as Box<dyn CommandQueue>;
        StoreQueue::new(self.clone(), backing.queue(depth).unwrap_or_else(inline))
    }

    /// Reads many records of a namespace; those that miss are read together. A caller that does this often keeps a
    /// [reader](Store::reader).
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn get_many<'k, K: Into<KeyRef<'k>>>(
        &self,
        namespace: NamespaceId,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>, Error> {
        self.reader().get_many(namespace, keys)
    }

    /// Whether a record exists; never reads flash.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn exists<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<bool, Error> {
        let key: KeyRef<'_> = key.into();
        let cache = &self.inner.cache;
        let place = cache.place(namespace, cache.key(key)?);
        let mut on_device = None;
        loop {
            return match (self.inner.cache.peek(&place, |_| ()), on_device) {
                (Peek::Hit((), ticket), _) if self.may_show(ticket) => Ok(true),
                (Peek::Absent(ticket), _) if self.may_show(ticket) => Ok(false),
                // Whatever transaction it is of has come so far that others see the remainder of it, too.
                (Peek::Miss, Some(there)) => Ok(there),
                (Peek::Miss, None) => {
                    on_device = Some(self.inner.cache.backing.exists(namespace, key)?);
                    continue;
                }
                (Peek::Hit(..) | Peek::Absent(_) | Peek::Busy, _) => Ok(self.get(namespace, key)?.is_some()),
            };
        }
    }

    /// Stores a record; durable as in the [table](self#what-is-durable-when). In write-back mode an error may be about unflushed records of others;
    /// nothing of this one is stored then.
    ///
    /// # Errors
    /// - [`Error::LockTimeout`] if a transaction holds the record for too long.
    /// - The errors of [`crate::Device::put`]; with delayed durability also [`Error::CommitsLost`].
    pub fn put<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>, value: &[u8]) -> Result<(), Error> {
        self.inner.check_value(namespace, value)?;
        self.change(namespace, key.into(), Some(value.into()))
    }

    /// Deletes a record, whether it exists or not; durable as in the [table](self#what-is-durable-when).
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn delete<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<(), Error> {
        self.change(namespace, key.into(), None)
    }

    /// Stores the records of a batch on the device and leaves the cache alone, which continues to serve what it has: for filling a store
    /// with records that nobody has requested yet.
    ///
    /// # Errors
    /// As those of a Put of the device.
    #[doc(hidden)]
    pub fn write_past_the_cache(&self, batch: &crate::Batch) -> Result<(), Error> {
        self.inner.cache.backing.write(batch)
    }

    /// Makes everything durable that was put or committed before. Then all that was read before is durable, too.
    ///
    /// # Errors
    /// [`Error::CommitsLost`] if commits with delayed durability were lost; otherwise the error that kept records from being
    /// written.
    pub fn flush(&self) -> Result<(), Error> {
        match &self.inner.epochs {
            Some(epochs) => epochs.flush(&self.inner.cache),
            None => self.inner.cleaner.flush(&self.inner.cache),
        }
    }

    /// Continues after commits with delayed durability were lost ([`Error::CommitsLost`]): records are as they were before
    /// these. Returns how many they were; 0 if none are.
    pub fn acknowledge_lost(&self) -> u64 {
        self.inner.epochs.as_ref().map_or(0, |epochs| epochs.acknowledge_lost())
    }

    /// Deletes a namespace with everything in it, unflushed records included. Transactions that change records of it and are not
    /// committed yet fail.
    ///
    /// # Errors
    /// As [`crate::Device::delete_namespace`].
    pub fn delete_namespace(&self, namespace: NamespaceId) -> Result<(), Error> {
        if self.inner.epochs.is_some() {
            self.flush()?;
        }
        self.inner.cache.backing.delete_namespace(namespace)?;
        self.inner.cache.forget_namespace(namespace);
        Ok(())
    }

    // --- transactions -------------------------------------------------------------------------------------------------

    /// Begins a transaction (paper:KAML TransactionBegin).
    ///
    /// # Errors
    /// [`Error::TooManyTransactions`] if as many are open as [`StoreOptions`] allow.
    pub fn begin(&self) -> Result<Transaction, Error> {
        Transaction::begin(&self.inner)
    }

    /// Runs a transaction and commits it, and runs it again when it was the victim of a deadlock
    /// ([`retries_max`](StoreOptions::retries_max) times), or waited too long for a lock (twice). A body that aborts the transaction
    /// itself ends it with its result.
    ///
    /// The body uses its transaction alone: a [`put`](Store::put) of a record that this has locked waits for it in vain, and
    /// `run` returns [`Error::LockTimeout`] after three times the [`lock_timeout`](StoreOptions::lock_timeout).
    ///
    /// # Errors
    /// What `body` returns, unless [`Error::is_retryable`] holds and another attempt is left; otherwise as [`Transaction::commit`].
    pub fn run<T>(&self, mut body: impl FnMut(&mut Transaction) -> Result<T, Error>) -> Result<T, Error> {
        self.try_again(Error::is_retryable, || self.run_once(&mut body))
    }

    fn run_once<T>(&self, body: impl FnOnce(&mut Transaction) -> Result<T, Error>) -> Result<T, Error> {
        let mut txn = self.begin()?;
        let answer = body(&mut txn);
        txn.check_refused()?; // the body may have overlooked it
        let answer = answer?;
        if txn.state() == XcbState::Active {
            txn.commit()?;
        }
        Ok(answer)
    }

    /// Begins a transaction with a lock to change one record, trying again when the lock is refused; returns what it sees
    /// of the record.
    fn run_locked(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<(Transaction, Option<Value>), Error> {
        self.try_again(Error::is_retryable, || {
            let mut txn = self.begin()?;
            let value = txn.read_for_update(namespace, key)?;
            Ok((txn, value))
        })
    }

    /// A call of one lock. Even that may be the victim of a deadlock: when others wait after it for those ahead of it.
    fn run_plain<T>(&self, attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        self.try_again(|error| matches!(error, Error::Deadlock { .. }), attempt)
    }

    /// Makes an attempt, and others after longer and longer pauses as long as they fail in this way.
    fn try_again<T>(
        &self,
        in_vain: impl Fn(&Error) -> bool,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (mut tries, mut timeouts) = (0, 0);
        loop {
            match attempt() {
                Err(error) if in_vain(&error) && tries < self.inner.retries_max && timeouts < TIMEOUT_RETRIES_MAX => {
                    if tries > 0 {
                        sleep(RETRY_PAUSE * (1 << tries.min(6)));
                    }
                    tries += 1;
                    timeouts += u32::from(matches!(error, Error::LockTimeout { .. }));
                }
                result => return result,
            }
        }
    }

    /// What the store did, and how it is.
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
}

impl Inner {
    /// Whether a plain put of a value, or of its absence, is one in the cache alone.
    fn stays_in_cache(&self, value: Option<&[u8]>) -> bool {
        let cachable = value.is_none_or(|value| self.cache.is_cachable(value.len()));
        self.write_mode == WriteMode::Back && cachable && self.epochs.is_none()
    }

    /// Refuses at once what the device would refuse later, when it would take others along: a round of cleaning or an epoch.
    fn check_value(&self, namespace: NamespaceId, value: &[u8]) -> Result<(), Error> {
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

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    spawn(name, work).map_err(|error| Error::Thread(Arc::new(error)))
}
