//! Records that expire, counters and expected values in a store.
//!
//! Lives here:       the calls of stores and transactions for them.
//! Lives elsewhere:  the same of a device (`crate::expiry`, `crate::counters`), commits (`txn`), which values are cached (`reads`).
//! Implements:       docs/ARCHITECTURE.md "Expiry", "Operands".
//!
//! The cache keeps no value that can expire: each read of such a record is one of the device, which alone decides whether it has expired. Its
//! absence is cached. A commit that stores one is strict, whatever the mode: nobody reads the record between its commit and its place in
//! the index. The time to live begins with that commit.

use super::Store;
use super::locks::Mode;
use super::txn::Transaction;
use crate::{Error, Expiry, KeyRef, NamespaceId, Operand};

impl Transaction {
    /// Stores a record that expires, whether it exists or not. [`Expiry::After`] begins with the commit.
    ///
    /// # Errors
    /// As [`Transaction::upsert`]; the commit returns [`Error::VersionsDoNotExpire`] if the namespace keeps versions.
    ///
    /// # Examples
    /// ```
    /// use kaml::store::{Store, StoreOptions};
    /// use kaml::{CreateOptions, Device, Expiry, NamespaceOptions};
    /// use std::time::Duration;
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let sessions = device.create_namespace("sessions", &NamespaceOptions::default())?;
    /// let store = Store::open(device, &StoreOptions::new(8 << 20))?;
    /// store.run(|txn| txn.upsert_expiring(sessions, "ada", b"", Expiry::After(Duration::from_secs(60))))?;
    /// assert!(store.exists(sessions, "ada")?);
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn upsert_expiring<'k>(
        &mut self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &[u8],
        expiry: Expiry,
    ) -> Result<(), Error> {
        let key: KeyRef<'_> = key.into();
        self.check_value(namespace, value)?;
        let at = self.touch(namespace, key, Mode::Exclusive)?;
        self.is_there(at)?; // refuses unknown namespaces and keys that they do not take
        self.guard_gap(namespace, key, at)?;
        self.set_change(at, Some(value.into()), expiry);
        Ok(())
    }

    /// Changes a counter and returns it as it is afterwards: 8 bytes, a signed number of 64 bits, little-endian. It is read and locked, and keeps the
    /// time at which it expires. Counters that many change at a time are better changed with [`Device::apply`](crate::Device::apply).
    ///
    /// # Errors
    /// - [`Error::NotACounter`] if the value does not have 8 bytes; [`Error::CounterOverflow`] if the sum does not fit. The transaction continues.
    /// - Otherwise as [`Transaction::upsert`].
    ///
    /// # Examples
    /// ```
    /// use kaml::store::{Store, StoreOptions};
    /// use kaml::{CreateOptions, Device, NamespaceOptions, Operand};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let stats = device.create_namespace("stats", &NamespaceOptions::default())?;
    /// let store = Store::open(device, &StoreOptions::new(8 << 20))?;
    /// let visits = store.run(|txn| {
    ///     txn.apply(stats, "longest", Operand::Max(17))?;
    ///     txn.apply(stats, "visits", Operand::Add(1))
    /// })?;
    /// assert_eq!(visits, 1);
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn apply<'k>(
        &mut self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        operand: Operand,
    ) -> Result<i64, Error> {
        let key: KeyRef<'_> = key.into();
        let at = self.touch(namespace, key, Mode::Exclusive)?;
        let mut expiry = self.kept_expiry(at)?;
        let before = match self.value(at)?.as_deref() {
            None => {
                expiry = Expiry::Default; // it may have expired just now
                None
            }
            Some(bytes) => match <[u8; 8]>::try_from(bytes) {
                Ok(bytes) => Some(i64::from_le_bytes(bytes)),
                Err(_) => {
                    let bytes = bytes.len() as u64;
                    return Err(self.refuse(Error::NotACounter { namespace, key: key.to_buf()?, bytes }));
                }
            },
        };
        let Some(after) = operand.apply(before) else {
            return Err(self.refuse(Error::CounterOverflow { namespace, key: key.to_buf()? }));
        };
        self.guard_gap(namespace, key, at)?;
        self.set_change(at, Some(after.to_le_bytes().as_slice().into()), expiry);
        Ok(after)
    }

    /// Lets the transaction read a record and returns an error unless it has this value; nothing: unless it does not exist.
    ///
    /// # Errors
    /// - [`Error::ValueDiffers`]; the transaction continues.
    /// - Otherwise as [`Transaction::read_for_update`].
    pub fn demand<'k>(
        &mut self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        expected: Option<&[u8]>,
    ) -> Result<(), Error> {
        let key: KeyRef<'_> = key.into();
        let found = self.read_for_update(namespace, key)?;
        if found.as_deref() == expected {
            return Ok(());
        }
        Err(self.refuse(Error::ValueDiffers { namespace, key: key.to_buf()?, present: found.is_some() }))
    }
}

impl Store {
    /// Stores a record that expires. It is durable when this returns, in each mode, and its value is not cached.
    ///
    /// # Errors
    /// As [`Store::put`]; [`Error::VersionsDoNotExpire`] if the namespace keeps versions.
    ///
    /// # Examples
    /// ```
    /// use kaml::store::{Store, StoreOptions};
    /// use kaml::{CreateOptions, Device, Expiry, NamespaceOptions};
    /// use std::time::Duration;
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let sessions = device.create_namespace("sessions", &NamespaceOptions::default())?;
    /// let store = Store::open(device.clone(), &StoreOptions::new(8 << 20))?;
    /// store.put_expiring(sessions, "ada", b"", Expiry::After(Duration::from_secs(60)))?;
    /// assert!(store.get(sessions, "ada")?.is_some());
    /// device.clock().advance_to(device.clock().now_ms() + 60_000);
    /// assert!(store.get(sessions, "ada")?.is_none());
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn put_expiring<'k>(
        &self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &[u8],
        expiry: Expiry,
    ) -> Result<(), Error> {
        if expiry == Expiry::Default {
            return self.put(namespace, key, value);
        }
        self.inner.check_value(namespace, value)?;
        self.put_through(namespace, key.into(), Some(&value.into()), expiry)
    }

    /// Changes a counter in a transaction of its own; as [`Transaction::apply`].
    ///
    /// # Errors
    /// As [`Transaction::apply`] and [`Transaction::commit`].
    pub fn apply<'k>(
        &self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        operand: Operand,
    ) -> Result<i64, Error> {
        let key: KeyRef<'_> = key.into();
        self.run(|txn| txn.apply(namespace, key, operand))
    }

    /// Stores a value, or deletes the record if it is nothing, provided that the record has the expected value, or does not exist if that is
    /// nothing. Durable as a commit ([the table](crate::store#what-is-durable-when)).
    ///
    /// # Errors
    /// [`Error::ValueDiffers`]; otherwise as [`Store::put`].
    ///
    /// # Examples
    /// ```
    /// use kaml::store::{Store, StoreOptions};
    /// use kaml::{CreateOptions, Device, Error, NamespaceOptions};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let users = device.create_namespace("users", &NamespaceOptions::default())?;
    /// let store = Store::open(device, &StoreOptions::new(8 << 20))?;
    /// store.compare_and_set(users, "ada", None, Some(b"1"))?;
    /// let refused = store.compare_and_set(users, "ada", None, Some(b"2"));
    /// assert!(matches!(refused, Err(Error::ValueDiffers { present: true, .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn compare_and_set<'k>(
        &self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        expected: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<(), Error> {
        let key: KeyRef<'_> = key.into();
        self.run(|txn| {
            txn.demand(namespace, key, expected)?;
            match (value, expected) {
                (Some(value), _) => txn.upsert(namespace, key, value),
                (None, Some(_)) => txn.delete(namespace, key),
                (None, None) => Ok(()),
            }
        })
    }
}
