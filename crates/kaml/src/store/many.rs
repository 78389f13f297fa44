//! Batched gets.
//!
//! Lives here:       reading many records of a namespace through one reader of the device.
//! Lives elsewhere:  the reads that miss (`reads`).

use super::backing::BatchReader;
use super::reads::Loaded;
use super::{Store, Value};
use crate::{Error, KeyRef, NamespaceId};

/// Batched gets of one thread: what it reads the device with is opened at the first miss and kept.
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
/// let found = store.reader().get_many(users, [1u64, 2])?;
/// assert!(found[0].is_some() && found[1].is_none());
/// # Ok::<(), kaml::Error>(())
/// ```
pub struct StoreReader {
    store: Store,
    reader: Option<Box<dyn BatchReader>>,
}

impl StoreReader {
    pub(super) fn new(store: Store) -> StoreReader {
        StoreReader { store, reader: None }
    }

    /// Reads many records of a namespace; those that miss are read together.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn get_many<'k, K: Into<KeyRef<'k>>>(
        &mut self,
        namespace: NamespaceId,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>, Error> {
        let records: Vec<(NamespaceId, KeyRef<'_>)> = keys.into_iter().map(|key| (namespace, key.into())).collect();
        let store = &self.store;
        if let [(_, key)] = &records[..] {
            return Ok(vec![store.get(namespace, *key)?]);
        }
        let found = store.inner.cache.load_many(&mut self.reader, &records)?;
        let again = |(loaded, (_, key)): (Loaded, &(NamespaceId, KeyRef<'_>))| match loaded {
            Some((value, ticket)) if store.may_show(ticket) => Ok(value.map(Value)),
            Some(_) | None => store.get(namespace, *key),
        };
        found.into_iter().zip(&records).map(again).collect()
    }
}
