//! Plain gets and puts where they meet transactions.
//!
//! Lives here:       waiting for what was read to be durable, puts through a lock, puts that stay in the cache.
//! Lives elsewhere:  the calls (`Store`), transactions (`txn`), writing back (`clean`).

use super::cache::Peek;
use super::line::{CommitStatus, Ticket};
use super::shard::Content;
use super::{Store, Value, WriteMode};
use crate::{Error, Expiry, KeyRef, NamespaceId};
use std::sync::Arc;

impl Store {
    /// Waits until what was read may be shown: it is durable, or need not be. False if it was lost instead.
    pub(super) fn may_show(&self, ticket: Ticket) -> bool {
        let line = &self.inner.cache.line;
        match line.status(ticket) {
            CommitStatus::Durable => true,
            CommitStatus::Pending => match &self.inner.epochs {
                Some(epochs) => epochs.show(line, ticket) || epochs.wait(&self.inner.cache, ticket).is_ok(),
                None => self.inner.cache.wait_for(ticket).is_ok(),
            },
            CommitStatus::Lost => false,
        }
    }

    /// Reads a record that a transaction is changing: waits for it.
    pub(super) fn locked_get(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<Option<Value>, Error> {
        self.run_plain(|| self.run_once(|txn| txn.read(namespace, key)))
    }

    pub(super) fn change(
        &self,
        namespace: NamespaceId,
        key: KeyRef<'_>,
        value: Option<Arc<[u8]>>,
    ) -> Result<(), Error> {
        if self.inner.stays_in_cache(value.as_deref()) {
            return self.put_back(namespace, key, value.map_or(Content::Absent, Content::Value));
        }
        self.put_through(namespace, key, value.as_ref(), Expiry::Default)
    }

    /// Stores a record, or deletes it, on the device.
    pub(super) fn put_through(
        &self,
        namespace: NamespaceId,
        key: KeyRef<'_>,
        value: Option<&Arc<[u8]>>,
        expiry: Expiry,
    ) -> Result<(), Error> {
        let is_back = self.inner.write_mode == WriteMode::Back;
        self.run_plain(|| {
            let mut txn = self.begin()?;
            txn.set(namespace, key, value.cloned(), expiry)?;
            if is_back { txn.commit() } else { txn.commit_durable() }
        })
    }

    fn put_back(&self, namespace: NamespaceId, key: KeyRef<'_>, content: Content) -> Result<(), Error> {
        if self.try_put_back(namespace, key, &content)? {
            return Ok(());
        }
        if let Content::Value(value) = &content
            && self.inner.ranges.has_ttl(namespace)
        {
            return self.put_through(namespace, key, Some(value), Expiry::Default);
        }
        self.run_plain(|| self.begin()?.set_unflushed(namespace, key, content.clone()))?;
        let shard = self.inner.cache.place_of(namespace, key)?.shard;
        self.inner.cleaner.keep_budget(&self.inner.cache, shard);
        Ok(())
    }

    /// Stores a record in the cache alone, unless that would have to wait for a transaction; `false` then.
    pub(super) fn try_put_back(
        &self,
        namespace: NamespaceId,
        key: KeyRef<'_>,
        content: &Content,
    ) -> Result<bool, Error> {
        let cache = &self.inner.cache;
        let place = cache.place(namespace, cache.key(key)?);
        if matches!(content, Content::Value(_)) && !self.inner.ranges.is_plain(namespace) {
            return Ok(false); // it may come into a range that a transaction has read, or expire
        }
        if matches!(cache.peek(&place, |_| ()), Peek::Miss | Peek::Busy) {
            cache.backing.exists(namespace, key)?; // refuses unknown namespaces and keys that it does not take
        }
        self.inner.cleaner.admit(cache, content)?;
        let is_stored = self.inner.cleaner.try_put(cache, &place, &key, content);
        if is_stored {
            self.inner.cleaner.keep_budget(cache, place.shard);
        }
        Ok(is_stored)
    }
}
