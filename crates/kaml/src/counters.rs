//! Counters, and values that are replaced if they are what a caller expects.
//!
//! Lives here:       the calls of a device for them.
//! Lives elsewhere:  the same in batches (`batch`), applying them (`kaml_device`, `driver`).
//! Implements:       docs/ARCHITECTURE.md "Operands".

use crate::batch::Batch;
use crate::device::Device;
use crate::error::Error;
use crate::{KeyRef, NamespaceId};
use kaml_device::{Merge, Op, Operand};

impl Device {
    /// As [`Device::write`], of a batch with operands: returns the counters after each, in their order.
    ///
    /// # Errors
    /// - [`Error::NotACounter`] if a value does not have 8 bytes; [`Error::CounterOverflow`] if a sum does not fit.
    /// - [`Error::ValueDiffers`] if a value is not what the batch expects ([`Batch::expect`]).
    /// - [`Error::KeepsVersions`], [`Error::HoldsBlocks`] if a namespace does not hold records without versions.
    /// - Otherwise as [`Device::write`]. Nothing of the batch is stored then.
    ///
    /// # Examples
    /// See [`Batch::apply`].
    pub fn write_returning(&self, batch: &Batch) -> Result<Vec<i64>, Error> {
        self.merge_batch(batch, |ops, merges| self.shared().write_merging(self.by(), ops, merges))
    }

    pub(crate) fn merge_batch<'a, T>(
        &self,
        batch: &'a Batch,
        put: impl Fn(&mut [Op<'a>], &[Merge<'a>]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let shared = self.shared();
        if batch.has_conditions() {
            let merges = batch.merging(shared)?.merges;
            return shared.put_judged(|| batch.ops(shared), |ops| put(ops, &merges));
        }
        let mut all = batch.merging(shared)?;
        put(&mut all.ops, &all.merges)
    }

    /// Changes a counter in one atomic step, without reading it, and returns it as it is afterwards; durable when it returns. A counter is a
    /// value of 8 bytes, a signed number of 64 bits, little-endian. Many callers can change the same one at a time.
    ///
    /// # Errors
    /// As [`Device::write_returning`].
    ///
    /// # Examples
    /// ```
    /// use kaml::{CreateOptions, Device, NamespaceOptions, Operand};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let stats = device.ensure_namespace("stats", &NamespaceOptions::default())?;
    /// assert_eq!(stats.add("visits", 5)?, 5);
    /// assert_eq!(stats.apply("visits", Operand::Min(3))?, 3);
    /// assert_eq!(stats.get("visits")?, Some(3i64.to_le_bytes().to_vec()));
    /// assert!(matches!(stats.add("visits", i64::MAX), Err(kaml::Error::CounterOverflow { .. })));
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn apply<'k>(
        &self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        operand: Operand,
    ) -> Result<i64, Error> {
        let mut batch = Batch::new();
        batch.apply(namespace, key, operand);
        let values = self.write_returning(&batch)?;
        values.first().copied().ok_or_else(|| Error::Internal("an operand has no result".to_owned()))
    }

    /// Adds a number to a counter; as [`Device::apply`] of [`Operand::Add`].
    ///
    /// # Errors
    /// As [`Device::write_returning`].
    pub fn add<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>, number: i64) -> Result<i64, Error> {
        self.apply(namespace, key, Operand::Add(number))
    }

    /// Stores a value, or deletes the key if it is nothing, provided that the key has the expected value, or does not exist if that is
    /// nothing; durable when it returns.
    ///
    /// # Errors
    /// [`Error::ValueDiffers`], [`Error::KeepsVersions`], [`Error::HoldsBlocks`]; otherwise as [`Device::put`].
    ///
    /// # Examples
    /// ```
    /// use kaml::{CreateOptions, Device, Error, NamespaceOptions};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let users = device.ensure_namespace("users", &NamespaceOptions::default())?;
    /// users.compare_and_set("ada", None, Some(b"1"))?;
    /// users.compare_and_set("ada", Some(b"1"), Some(b"2"))?;
    /// let refused = users.compare_and_set("ada", Some(b"1"), None);
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
        let key = key.into();
        let mut batch = Batch::new();
        batch.expect(namespace, key, expected);
        match value {
            Some(value) => batch.put(namespace, key, value),
            None => batch.delete(namespace, key),
        };
        self.write(&batch)
    }
}
