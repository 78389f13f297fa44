//! The end of a transaction: its changes are stored, and its locks released.
//!
//! Lives here:       the modes of a commit (strict, early release, delayed), keeping or dropping the private copies.
//! Lives elsewhere:  what a transaction reads and changes (`txn`), epochs of delayed commits (`epochs`), who depends on what (`line`).
//! Implements:       paper:KAML IV.E commit and abort.

use super::super::cache::Place;
use super::super::epochs::Change;
use super::super::line::{CommitStatus, Lost, Ticket};
use super::super::ranges::Committed;
use super::super::shard::Content;
use super::super::xcb::{Phase, XcbState};
use super::{Access, Transaction};
use crate::{Batch, Error, KeyBuf, NamespaceId};

impl Transaction {
    pub(super) fn store_changes(&mut self, durable: bool) -> Result<(), Error> {
        if self.store.epochs.is_some() {
            return self.commit_delayed(durable);
        }
        let batch = self.batch();
        if batch.is_empty() {
            self.let_all_go(|_| None);
            return self.wait_for_what_was_read();
        }
        if self.tickets.iter().any(|ticket| self.store.cache.line.is_lost(*ticket)) {
            self.let_all_go(|_| None);
            return Err(Error::DependencyLost);
        }
        if batch.len() > 1
            && self.store.cache.backing.may_lose_answers()
            && let Err(error) = self.flush_replaced()
        {
            self.let_all_go(|_| None);
            return Err(error);
        }
        // What is not flushed would be lost with a commit that replaced it early, and the cache has nothing that expires to show early.
        let is_strict = |access: &Access| access.replaces_unflushed() || access.is_brief;
        let is_early = self.store.early_release && !self.accesses.iter().any(is_strict);
        if is_early { self.commit_early(&batch) } else { self.commit_strictly(&batch) }
    }

    /// The private copies, and what was read of records that are not flushed.
    fn batch(&self) -> Batch {
        let bytes = self.accesses.iter().filter_map(Access::stored).flatten().map(<[u8]>::len).sum();
        let mut batch = Batch::with_capacity(self.accesses.len(), bytes);
        for access in &self.accesses {
            let namespace = access.place.id.namespace;
            match access.stored() {
                Some(Some(value)) => batch.put(namespace, access.key(), value).expires(access.expiry),
                Some(None) => batch.delete(namespace, access.key()),
                None => continue,
            };
        }
        batch
    }

    /// Stores what is not flushed and about to be replaced. Should it never be known what became of the commit, keeping that would
    /// undo a part of it, and dropping it would lose a put: so the device has one or the other, and can be asked.
    fn flush_replaced(&mut self) -> Result<(), Error> {
        let cache = &self.store.cache;
        let mut batch = Batch::new();
        for access in self.accesses.iter().filter(|a| a.replaces_unflushed()) {
            let namespace = access.place.id.namespace;
            match &access.seen {
                Content::Value(value) => batch.put(namespace, access.key(), value),
                Content::Absent => batch.delete(namespace, access.key()),
                Content::Unknown | Content::Loading(_) => unreachable!("what is dirty is known"),
            };
        }
        if batch.is_empty() {
            return Ok(());
        }
        cache.backing.write(&batch)?;
        for access in self.accesses.iter_mut().filter(|a| a.replaces_unflushed()) {
            cache.shard(access.grip.shard).set_clean(access.grip.slot);
            access.dirty = false;
        }
        Ok(())
    }

    /// Locks are held until the Put is durable.
    fn commit_strictly(&mut self, batch: &Batch) -> Result<(), Error> {
        let written = self.store.cache.backing.write(batch);
        self.forget_inserted(); // the index has them, or never gets them
        match written {
            Ok(()) => self.install(0),
            Err(_) => self.let_all_go(unknown_after_failure),
        }
        written
    }

    /// Locks are released when the Put's place in the durable order is fixed.
    fn commit_early(&mut self, batch: &Batch) -> Result<(), Error> {
        let store = self.store.clone();
        let pending = match store.cache.backing.submit(batch) {
            Ok(pending) => pending,
            Err(error) => {
                self.let_all_go(unknown_after_failure);
                return Err(error);
            }
        };
        let ticket = store.cache.line.take();
        let changed: Vec<Place> = self.accesses.iter().filter(|a| a.change.is_some()).map(|a| a.place).collect();
        let inserted = self.commit_inserted(Committed::With(ticket));
        self.install(ticket);
        let durable = pending.wait();
        if durable.is_err() {
            changed.iter().for_each(|place| store.cache.forget(place, ticket));
        }
        store.cache.line.end(ticket, if durable.is_ok() { Ok(()) } else { Err(Lost) });
        inserted.into_iter().for_each(|(namespace, key)| store.ranges.settle(&store.cache, namespace, key));
        durable
    }

    /// Locks are released when the changes have joined an epoch.
    fn commit_delayed(&mut self, durable: bool) -> Result<(), Error> {
        let store = self.store.clone();
        let epochs = store.epochs.as_ref().expect("asked before");
        let changes = || self.accesses.iter().filter_map(|access| Some((access, access.change.as_ref()?)));
        let bytes: usize = changes().map(|(access, change)| Change::bytes(&access.long, change.as_deref())).sum();
        if bytes == 0 {
            self.let_all_go(|_| None);
            let line = &store.cache.line;
            let may_show = |ticket: &Ticket| match line.status(*ticket) {
                CommitStatus::Durable => true,
                CommitStatus::Pending => !durable && epochs.show(line, *ticket),
                CommitStatus::Lost => false,
            };
            return if self.tickets.iter().all(may_show) { Ok(()) } else { self.wait_for_what_was_read() };
        }
        if let Some(gone) = changes().map(|(access, _)| access.place.id.namespace).find(|id| store.cache.gone.has(*id))
        {
            self.let_all_go(|_| None);
            return Err(kaml_device::Error::UnknownNamespace(gone).into());
        }
        // The cache does not keep what expires until an epoch is durable.
        if !epochs.takes(bytes) || self.accesses.iter().any(|access| access.is_brief) {
            return self.commit_large();
        }
        let changes = changes().map(|(Access { place, long, .. }, change)| Change {
            id: place.id,
            long: long.clone(),
            hash: place.hash,
            value: change.clone(),
        });
        let joined = match epochs.join(&store.cache, &self.tickets, durable, bytes, changes) {
            Ok(joined) => joined,
            Err(error) => {
                self.let_all_go(|_| None);
                return Err(error);
            }
        };
        self.commit_inserted(Committed::With(joined.ticket));
        self.install(joined.ticket);
        if joined.must_wait { epochs.wait(&store.cache, joined.ticket) } else { Ok(()) }
    }

    /// Stores what no epoch takes, after everything before it.
    fn commit_large(&mut self) -> Result<(), Error> {
        let store = self.store.clone();
        let flushed = store.epochs.iter().try_for_each(|epochs| epochs.flush(&store.cache));
        if let Err(error) = flushed.and_then(|()| self.wait_for_what_was_read()) {
            self.let_all_go(|_| None);
            return Err(error);
        }
        let batch = self.batch();
        self.commit_strictly(&batch)
    }

    /// Replaces the records in the cache by the private copies and releases the locks.
    fn install(&mut self, ticket: Ticket) {
        self.store.cache.xcbs.set_phase(self.who, Phase::Installing);
        self.let_all_go(|access| {
            let change = access.change.take()?;
            if access.is_brief {
                return Some((Content::Unknown, 0));
            }
            Some((change.map_or(Content::Absent, Content::Value), ticket))
        });
    }

    fn wait_for_what_was_read(&mut self) -> Result<(), Error> {
        for ticket in std::mem::take(&mut self.tickets) {
            self.store.epochs.iter().for_each(|epochs| epochs.begin_to_write(ticket));
            self.store.cache.wait_for(ticket).map_err(|Lost| Error::DependencyLost)?;
        }
        Ok(())
    }

    /// The keys that were to be added are in the index, or do not come: before their locks are released.
    pub(super) fn forget_inserted(&mut self) {
        for (namespace, key) in std::mem::take(&mut self.inserted) {
            self.store.ranges.end(&self.store.cache, namespace, key);
        }
    }

    /// The keys that were to be added come into the index later: before their locks are released. Returns them.
    pub(super) fn commit_inserted(&mut self, committed: Committed) -> Vec<(NamespaceId, KeyBuf)> {
        let inserted = std::mem::take(&mut self.inserted);
        for (namespace, key) in &inserted {
            self.store.ranges.commit(*namespace, key.clone(), committed);
        }
        inserted
    }

    /// Releases all locks, in the opposite order: a lock that several records share came with the first of them.
    pub(super) fn let_all_go(&mut self, change: impl Fn(&mut Access) -> Option<(Content, Ticket)>) {
        self.forget_inserted();
        let cache = &self.store.cache;
        if cache.is_resting() {
            cache.can_leave(self.accesses.iter().map(Access::bytes).sum());
        }
        let mut shard = None;
        for mut access in self.accesses.drain(..).rev() {
            let change = change(&mut access);
            cache.let_go(self.who, &access.grip, change);
            shard = Some(access.grip.shard);
        }
        self.table.clear();
        if let Some(shard) = shard {
            cache.make_room(shard); // what was pinned can leave now
        }
    }
}

/// A Put that failed may have been stored: the device must be asked. What is not flushed is kept: either the Put surely was not
/// stored, or this record is all that it was about, and then it is as if the Put had come before.
fn unknown_after_failure(access: &mut Access) -> Option<(Content, Ticket)> {
    (access.change.is_some() && !access.replaces_unflushed()).then_some((Content::Unknown, 0))
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.state == XcbState::Active {
            self.let_all_go(|_| None);
        }
        self.store.cache.xcbs.give_back(self.who);
    }
}
