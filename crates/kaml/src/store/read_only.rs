//! Transactions that only read, on a snapshot.
//!
//! Lives here:       opening the snapshot, and what it shows in each mode.
//! Lives elsewhere:  the snapshot (`crate::snapshot`), transactions with locks (`txn`).
//! Implements:       docs/ARCHITECTURE.md "Snapshots".
//!
//! Commits of transactions reach the device in an order in which they can have happened, each as one atomic Put. What is durable at a moment is
//! therefore the state after the first transactions of a serial order, and reading it is a transaction of its own at that place in the order.

use super::Store;
use crate::{Error, Snapshot};

impl Store {
    /// Begins a transaction that only reads: a snapshot of what is durable. It takes no locks, waits for nobody and is never aborted for a
    /// deadlock; nobody waits for it.
    ///
    /// It shows every commit that has returned, and every put in write-through mode. Changes that the [table](crate::store#what-is-durable-when)
    /// calls *cached* or *visible* it does not show until they are durable; [`Store::flush`] makes them so. Its reads are those of the
    /// device and not of the cache.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Remote`] if the device is on another machine.
    ///
    /// # Examples
    /// ```
    /// use kaml::store::{Store, StoreOptions};
    /// use kaml::{CreateOptions, Device, KeyKind, NamespaceOptions};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let accounts = device.create_namespace("accounts", &NamespaceOptions::records(KeyKind::Ordered))?;
    /// let store = Store::open(device, &StoreOptions::new(8 << 20))?;
    /// (0..10u64).try_for_each(|account| store.put(accounts, account, &[100]))?;
    /// let view = store.read_only()?;
    /// store.run(|txn| {
    ///     txn.update(accounts, 1u64, &[50])?;
    ///     txn.update(accounts, 2u64, &[150])
    /// })?;
    /// let mut total = 0;
    /// for account in view.iter(accounts) {
    ///     total += u64::from(account?.1[0]);
    /// }
    /// assert_eq!((total, view.get(accounts, 1u64)?), (1000, Some(vec![100])));
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn read_only(&self) -> Result<Snapshot, Error> {
        self.inner.cache.backing.open_snapshot()
    }
}
