//! How a store is opened, and what it reports itself.

use crate::Error;
use crate::NamespaceId;
use std::time::Duration;

/// Each of them may pin an entry four times, while it waits for a lock; pins are counted in 16 bits.
const TRANSACTIONS_MAX: u32 = 10_000;
const _: () = assert!(4 * (TRANSACTIONS_MAX + 1) < 1 << 16);

/// When a plain put is durable.
///
/// # Examples
/// See [`StoreOptions`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteMode {
    /// When it returns.
    #[default]
    Through,
    /// At the next flush; sooner if memory runs out. A crash may keep any of the unflushed puts and lose the others. (With a
    /// [`durability_delay`](StoreOptions::durability_delay) they are durable after it, and in order.)
    ///
    /// If the device does not take them, because it is full or has failed, they are kept in the cache and can be flushed later. When they
    /// have three quarters of it, further puts are refused with the device's error, and leave records as they are; a full device
    /// still takes deletes.
    Back,
}

/// How a store caches and locks.
///
/// # Examples
/// ```
/// use kaml::store::{StoreOptions, WriteMode};
/// use std::time::Duration;
///
/// let mut options = StoreOptions::new(64 << 20);
/// options.write_mode = WriteMode::Back;
/// options.durability_delay = Duration::from_millis(10);
/// assert_eq!(options.cache_bytes, 64 << 20);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Memory of the cache, everything included but what transactions and readers hold themselves.
    pub cache_bytes: u64,
    /// What a plain put is. `durability_delay` decides when transactions are durable, in either mode.
    pub write_mode: WriteMode,
    /// Neighbouring keys that share a lock.
    pub records_per_lock: u32,
    /// The same for single namespaces, where it differs.
    pub records_per_lock_of: Vec<(NamespaceId, u32)>,
    /// Release locks when a commit's place in the durable order is fixed, not when it is durable.
    pub early_release: bool,
    /// Zero: a transaction is durable when its commit returns. Else commits return at once and become durable after about
    /// this time, in an order that they may have happened in, many in one atomic Put: a crash loses the last of them and no
    /// other, and never a part of one. Reads do not wait either. [`Store::flush`](super::Store::flush) makes all of them
    /// durable. Plain puts in [`WriteMode::Back`] are commits of this kind, too. A record that changes several times meanwhile
    /// is stored once, and keeps one version where versions are kept.
    pub durability_delay: Duration,
    /// Longest wait for a lock.
    pub lock_timeout: Duration,
    /// Transactions that may be open at once.
    pub transactions_max: u32,
    /// How often [`Store::run`](super::Store::run) tries a transaction again; at most twice of them after waits for locks.
    pub retries_max: u32,
}

impl StoreOptions {
    /// Defaults for a cache of this many bytes: write-through, a lock for each record, strict.
    pub fn new(cache_bytes: u64) -> StoreOptions {
        StoreOptions {
            cache_bytes,
            write_mode: WriteMode::Through,
            records_per_lock: 1,
            records_per_lock_of: Vec::new(),
            early_release: false,
            durability_delay: Duration::ZERO,
            lock_timeout: Duration::from_secs(2),
            transactions_max: 1024,
            retries_max: 100,
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if self.transactions_max == 0 {
            return Err(Error::BadStoreOptions("a store needs at least one transaction"));
        }
        if self.transactions_max > TRANSACTIONS_MAX {
            return Err(Error::BadStoreOptions("a store has at most 10000 transactions at once"));
        }
        if self.records_per_lock == 0 || self.records_per_lock_of.iter().any(|(_, count)| *count == 0) {
            return Err(Error::BadStoreOptions("a lock covers at least one record"));
        }
        Ok(())
    }
}

/// What a store did since it was opened, and how it is.
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
/// store.get(users, 1u64)?;
/// assert_eq!(store.stats().hit_count, 1);
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StoreStats {
    /// Plain reads served from memory.
    pub hit_count: u64,
    /// Reads of the device.
    pub miss_count: u64,
    /// Records that left the cache.
    pub eviction_count: u64,
    /// Records in it, absent ones that it remembers included.
    pub record_count: u64,
    /// Its memory.
    pub used_bytes: u64,
    /// The most it may use.
    pub cache_bytes: u64,
    /// Memory of records that are not flushed.
    pub dirty_bytes: u64,
    /// Locks that were not given at once.
    pub lock_wait_count: u64,
    /// Transactions aborted because of deadlocks.
    pub deadlock_count: u64,
    /// Transactions aborted because a lock was not given in time.
    pub timeout_count: u64,
    /// Commits with delayed durability that could not be made durable.
    pub lost_commit_count: u64,
}
