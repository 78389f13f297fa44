//! Transactions.
//!
//! Lives here:       the calls of paper:KAML Table II, private copies, commit in strict, early-release and delayed order.
//! Lives elsewhere:  locks and their waits (`cache`, `waits`), states (`xcb`), tickets (`line`).
//! Implements:       paper:KAML III.D (SS2PL over the caching layer); design section 7.
//!
//! A commit is one atomic Put of the private copies. *Strict*: locks are held until it is durable. *Early release*:
//! locks are given back when the Put's place in the durable order is fixed. Whoever then reads one of its records
//! and writes comes later in that order; whoever reads and does not write waits for the ticket at its own commit. So
//! no acknowledgement comes before that of a transaction that was read from.
//!
//! *Delayed*: the commit joins an epoch, which is durable later (`epochs`), and returns.
//!
//! A record that was put in write-back mode and not flushed yet is stored along with the commit of any transaction
//! that read it, so that what is durable never depends on what is not.

use super::Inner;
use super::cache::{Grip, Place, Seen};
use super::epochs::Change;
use super::error::StoreError;
use super::line::{Lost, Standing, Ticket};
use super::locks::{Mode, XcbId};
use super::record::RecordId;
use super::shard::{Content, Entry};
use super::table::Table;
use super::value::Value;
use super::waits::Refused;
use super::xcb::{Phase, XcbEvent, XcbState};
use crate::{Batch, Key, NamespaceId};
use std::sync::Arc;

/// Above so many records a transaction finds its own through a table.
const LINEAR_MAX: usize = 16;

/// A record that a transaction has touched.
struct Access {
    place: Place,
    grip: Grip,
    exclusive: bool,
    seen: Content,
    dirty: bool,
    /// The private copy: a value, or its absence.
    change: Option<Option<Arc<[u8]>>>,
}

impl Access {
    /// Whether the commit replaces what only the cache has.
    fn replaces_unflushed(&self) -> bool {
        self.dirty && self.change.is_some()
    }

    /// What the cache keeps of it at least while it is pinned.
    fn bytes(&self) -> usize {
        let value = if let Content::Value(value) = &self.seen { value.len() } else { 0 };
        size_of::<Entry>() + value
    }

    /// What the commit stores of it: a value, its absence, or nothing.
    fn stored(&self) -> Option<Option<&[u8]>> {
        match (&self.change, &self.seen) {
            (Some(change), _) => Some(change.as_deref()),
            (None, Content::Value(value)) if self.dirty => Some(Some(value)),
            (None, Content::Absent) if self.dirty => Some(None),
            (None, _) => None,
        }
    }
}

/// A transaction. It is active from [`Store::begin`](super::Store::begin) on; dropping an active one aborts it.
///
/// A deadlock or a lock that is not given in time aborts it at once; the error
/// [is retryable](StoreError::is_retryable). Whoever goes on nevertheless, reading, changing or committing, is told the same again.
pub struct Transaction {
    store: Arc<Inner>,
    state: XcbState,
    who: XcbId,
    accesses: Vec<Access>,
    /// Places in `accesses` by record, once there are many.
    table: Table,
    /// Commits that were read from and not durable then.
    tickets: Vec<Ticket>,
    /// The lock that it was refused, and aborted for.
    refusal: Option<(Refused, RecordId)>,
}

impl Transaction {
    pub(super) fn begin(store: &Arc<Inner>) -> Result<Transaction, StoreError> {
        let xcbs = &store.cache.xcbs;
        let who = xcbs.take().ok_or(StoreError::TooManyTransactions { max: store.transactions_max })?;
        let state = XcbState::Idle.after(XcbEvent::Begin)?;
        let (accesses, tickets) = (Vec::with_capacity(4), Vec::new());
        let (store, table) = (store.clone(), Table::default());
        Ok(Transaction { store, state, who, accesses, table, tickets, refusal: None })
    }

    /// Its state.
    pub fn state(&self) -> XcbState {
        self.state
    }

    /// Says which records the transaction is going to use. Nothing is locked or read from the device; what the cache has of them
    /// is fetched from memory at once, which takes much of the time of a transaction that asks for one after the other.
    pub fn expect<K: Into<Key>>(
        &mut self,
        records: impl IntoIterator<Item = (NamespaceId, K)>,
    ) -> Result<(), StoreError> {
        self.state = self.after(XcbEvent::Access)?;
        self.store.cache.prefetch(records.into_iter().map(|(namespace, key)| (namespace, key.into())));
        Ok(())
    }

    /// Reads a record (paper:KAML TransactionRead). Its absence is locked too.
    pub fn read(&mut self, namespace: NamespaceId, key: impl Into<Key>) -> Result<Option<Value>, StoreError> {
        let at = self.touch(namespace, key.into(), Mode::Shared)?;
        self.value(at)
    }

    /// Reads a record that is going to be changed, so that nobody else reads it for that.
    pub fn read_for_update(
        &mut self,
        namespace: NamespaceId,
        key: impl Into<Key>,
    ) -> Result<Option<Value>, StoreError> {
        let at = self.touch(namespace, key.into(), Mode::Exclusive)?;
        self.value(at)
    }

    /// Changes a record that is there (paper:KAML TransactionUpdate).
    pub fn update(&mut self, namespace: NamespaceId, key: impl Into<Key>, value: &[u8]) -> Result<(), StoreError> {
        let key = key.into();
        self.check_value(namespace, value)?;
        let at = self.touch(namespace, key, Mode::Exclusive)?;
        if !self.is_there(at)? {
            return Err(StoreError::NotFound { namespace, key });
        }
        self.accesses[at].change = Some(Some(value.into()));
        Ok(())
    }

    /// Stores a record that is not there (paper:KAML TransactionInsert).
    pub fn insert(&mut self, namespace: NamespaceId, key: impl Into<Key>, value: &[u8]) -> Result<(), StoreError> {
        let key = key.into();
        self.check_value(namespace, value)?;
        let at = self.touch(namespace, key, Mode::Exclusive)?;
        if self.is_there(at)? {
            return Err(StoreError::Exists { namespace, key });
        }
        self.accesses[at].change = Some(Some(value.into()));
        Ok(())
    }

    /// Deletes a record that is there.
    pub fn delete(&mut self, namespace: NamespaceId, key: impl Into<Key>) -> Result<(), StoreError> {
        let key = key.into();
        let at = self.touch(namespace, key, Mode::Exclusive)?;
        if !self.is_there(at)? {
            return Err(StoreError::NotFound { namespace, key });
        }
        self.accesses[at].change = Some(None);
        Ok(())
    }

    /// Stores a record, whether it is there or not (beside paper:KAML Table II, which has no call for that).
    pub fn upsert(&mut self, namespace: NamespaceId, key: impl Into<Key>, value: &[u8]) -> Result<(), StoreError> {
        self.check_value(namespace, value)?;
        let at = self.touch(namespace, key.into(), Mode::Exclusive)?;
        self.is_there(at)?; // refuses unknown namespaces and keys that they do not take
        self.accesses[at].change = Some(Some(value.into()));
        Ok(())
    }

    /// Stores or deletes a record whether it is there or not.
    pub(super) fn set(&mut self, namespace: NamespaceId, key: Key, value: Option<Arc<[u8]>>) -> Result<(), StoreError> {
        let at = self.touch(namespace, key, Mode::Exclusive)?;
        if self.store.epochs.is_some() {
            self.is_there(at)?; // refuses what would fail an epoch: unknown namespaces and keys that they do not take
        }
        self.accesses[at].change = Some(value);
        Ok(())
    }

    /// Locks a record, changes it in the cache alone, and leaves the transaction without it.
    pub(super) fn set_unflushed(
        &mut self,
        namespace: NamespaceId,
        key: Key,
        content: Content,
    ) -> Result<(), StoreError> {
        let at = self.touch(namespace, key, Mode::Exclusive)?;
        let grip = &self.accesses[at].grip;
        self.store.cleaner.put_locked(&self.store.cache, grip.shard, grip.slot, content);
        self.let_all_go(|_| None);
        self.state = self.state.after(XcbEvent::Abort)?;
        Ok(())
    }

    /// Makes all changes durable, together, and gives the locks back (paper:KAML TransactionCommit). With a
    /// [`durability_delay`](super::StoreOptions::durability_delay) they are visible when it returns, and durable soon. After an
    /// error the transaction is aborted; if the device failed, its changes may nevertheless be there, all or none. Changes of more than
    /// the device takes in one batch are refused here, not before ([`Limits::batch_bytes_max`](super::Limits::batch_bytes_max)).
    pub fn commit(&mut self) -> Result<(), StoreError> {
        self.end(false)
    }

    /// As [`commit`](Transaction::commit), and waits until the changes are durable whatever the store's delay is.
    pub fn commit_durable(&mut self) -> Result<(), StoreError> {
        self.end(true)
    }

    fn end(&mut self, durable: bool) -> Result<(), StoreError> {
        let committed = self.after(XcbEvent::Commit)?;
        let result = self.store_changes(durable);
        self.state = if result.is_ok() { committed } else { self.state.after(XcbEvent::Abort)? };
        result
    }

    /// Abandons all changes and gives the locks back (paper:KAML TransactionAbort).
    pub fn abort(&mut self) -> Result<(), StoreError> {
        self.state = self.state.after(XcbEvent::Abort)?;
        self.let_all_go(|_| None);
        Ok(())
    }

    /// Gives back what the transaction used (paper:KAML TransactionFree); dropping it does the same.
    pub fn free(mut self) -> Result<(), StoreError> {
        self.state = self.state.after(XcbEvent::Free)?;
        Ok(())
    }

    // --- records --------------------------------------------------------------------------------------------------

    fn check_value(&self, namespace: NamespaceId, value: &[u8]) -> Result<(), StoreError> {
        self.after(XcbEvent::Access)?;
        self.store.check_value(namespace, value)
    }

    /// Its state after an event. One that was aborted for a lock says that rather than that it is aborted.
    fn after(&self, event: XcbEvent) -> Result<XcbState, StoreError> {
        self.state.after(event).or_else(|illegal| {
            self.check_refused()?;
            Err(illegal.into())
        })
    }

    /// Locks a record; answers its place among the accesses.
    fn touch(&mut self, namespace: NamespaceId, key: Key, mode: Mode) -> Result<usize, StoreError> {
        self.state = self.after(XcbEvent::Access)?;
        let known = self.find(&RecordId { namespace, key });
        if let Some(at) = known
            && (mode == Mode::Shared || self.accesses[at].exclusive)
        {
            return Ok(at);
        }
        let place = self.store.cache.place(namespace, key);
        let (grip, seen) = match self.store.cache.acquire(&place, self.who, mode) {
            Ok(held) => held,
            Err(refused) => return Err(self.refused(refused, namespace, key)),
        };
        match known {
            Some(at) => {
                self.store.cache.let_go(self.who, &grip, None); // the first hold goes on
                self.accesses[at].exclusive = true;
                Ok(at)
            }
            None => Ok(self.add(place, grip, seen, mode)),
        }
    }

    fn add(&mut self, place: Place, grip: Grip, seen: Seen, mode: Mode) -> usize {
        let at = self.accesses.len();
        self.note_ticket(seen.ticket);
        let exclusive = mode == Mode::Exclusive;
        let (seen, dirty) = (seen.content, seen.dirty);
        self.accesses.push(Access { place, grip, exclusive, seen, dirty, change: None });
        if at + 1 > LINEAR_MAX {
            let from = if self.table.len() == 0 { 0 } else { at };
            for at in from..=at {
                self.table.insert(self.accesses[at].place.hash, at as u32);
            }
        }
        at
    }

    fn find(&self, id: &RecordId) -> Option<usize> {
        if self.table.len() == 0 {
            return self.accesses.iter().position(|access| access.place.id == *id);
        }
        let found = self.table.find(id.hash(), |at| self.accesses[at as usize].place.id == *id);
        found.map(|at| at as usize)
    }

    fn refused(&mut self, refused: Refused, namespace: NamespaceId, key: Key) -> StoreError {
        self.let_all_go(|_| None);
        self.state = XcbState::Aborted;
        self.store.count_refused(refused);
        self.refusal = Some((refused, RecordId { namespace, key }));
        self.check_refused().expect_err("just refused")
    }

    /// Says once more that a lock was refused, to whom it may have escaped.
    pub(super) fn check_refused(&self) -> Result<(), StoreError> {
        match self.refusal {
            None => Ok(()),
            Some((Refused::Deadlock, RecordId { namespace, key })) => Err(StoreError::Deadlock { namespace, key }),
            Some((Refused::Timeout, RecordId { namespace, key })) => {
                Err(StoreError::LockTimeout { namespace, key, waited_ms: self.store.cache.lock_timeout_ms() })
            }
        }
    }

    fn note_ticket(&mut self, ticket: Ticket) {
        if self.store.cache.line.standing(ticket) != Standing::Durable && !self.tickets.contains(&ticket) {
            self.tickets.push(ticket);
        }
    }

    /// What the transaction sees of a record.
    fn value(&mut self, at: usize) -> Result<Option<Value>, StoreError> {
        let access = &self.accesses[at];
        if let Some(change) = &access.change {
            return Ok(change.clone().map(Value));
        }
        match &access.seen {
            Content::Value(value) => return Ok(Some(Value(value.clone()))),
            Content::Absent => return Ok(None),
            Content::Unknown | Content::Loading(_) => {}
        }
        let loaded = self.store.cache.load(&access.place, Some(self.who))?;
        let (value, ticket) = loaded.expect("a holder's read is not put off");
        self.note_ticket(ticket);
        self.accesses[at].seen = value.clone().map_or(Content::Absent, Content::Value);
        Ok(value.map(Value))
    }

    /// Whether the transaction sees a record; never reads flash.
    fn is_there(&mut self, at: usize) -> Result<bool, StoreError> {
        let access = &mut self.accesses[at];
        if let Some(change) = &access.change {
            return Ok(change.is_some());
        }
        match &access.seen {
            Content::Value(_) => Ok(true),
            Content::Absent => Ok(false),
            Content::Unknown | Content::Loading(_) => {
                let id = &access.place.id;
                let there = self.store.cache.backing.exists(id.namespace, id.key)?;
                if !there {
                    access.seen = Content::Absent;
                }
                Ok(there)
            }
        }
    }

    // --- the end ---------------------------------------------------------------------------------------------------

    fn store_changes(&mut self, durable: bool) -> Result<(), StoreError> {
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
            return Err(StoreError::DependencyLost);
        }
        if batch.len() > 1
            && self.store.cache.backing.may_lose_answers()
            && let Err(error) = self.flush_replaced()
        {
            self.let_all_go(|_| None);
            return Err(error);
        }
        // What is not flushed would be lost with a commit that replaced it early.
        let is_early = self.store.early_release && !self.accesses.iter().any(Access::replaces_unflushed);
        if is_early { self.commit_early(&batch) } else { self.commit_strictly(&batch) }
    }

    /// The private copies, and what was read of records that are not flushed.
    fn batch(&self) -> Batch {
        let bytes = self.accesses.iter().filter_map(Access::stored).flatten().map(<[u8]>::len).sum();
        let mut batch = Batch::with_capacity(self.accesses.len(), bytes);
        for access in &self.accesses {
            let id = &access.place.id;
            match access.stored() {
                Some(Some(value)) => batch.put(id.namespace, id.key, value),
                Some(None) => batch.delete(id.namespace, id.key),
                None => continue,
            };
        }
        batch
    }

    /// Stores what is not flushed and about to be replaced. Should it never be known what became of the commit, keeping that would
    /// undo a part of it, and dropping it would lose a put: so the device has one or the other, and can be asked.
    fn flush_replaced(&mut self) -> Result<(), StoreError> {
        let cache = &self.store.cache;
        let mut batch = Batch::new();
        for Access { place: Place { id, .. }, seen, .. } in self.accesses.iter().filter(|a| a.replaces_unflushed()) {
            match seen {
                Content::Value(value) => batch.put(id.namespace, id.key, value),
                Content::Absent => batch.delete(id.namespace, id.key),
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
    fn commit_strictly(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let written = self.store.cache.backing.write(batch);
        match written {
            Ok(()) => self.install(0),
            Err(_) => self.let_all_go(unknown_after_failure),
        }
        Ok(written?)
    }

    /// Locks are given back when the Put's place in the durable order is fixed.
    fn commit_early(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let store = self.store.clone();
        let pending = match store.cache.backing.submit(batch) {
            Ok(pending) => pending,
            Err(error) => {
                self.let_all_go(unknown_after_failure);
                return Err(error.into());
            }
        };
        let ticket = store.cache.line.take();
        let changed: Vec<Place> = self.accesses.iter().filter(|a| a.change.is_some()).map(|a| a.place).collect();
        self.install(ticket);
        let durable = pending.wait();
        if durable.is_err() {
            changed.iter().for_each(|place| store.cache.forget(place, ticket));
        }
        store.cache.line.end(ticket, if durable.is_ok() { Ok(()) } else { Err(Lost) });
        Ok(durable?)
    }

    /// Locks are given back when the changes have joined an epoch.
    fn commit_delayed(&mut self, durable: bool) -> Result<(), StoreError> {
        let store = self.store.clone();
        let epochs = store.epochs.as_ref().expect("asked before");
        let changes = || self.accesses.iter().filter_map(|access| Some((access, access.change.as_ref()?)));
        let bytes: usize = changes().map(|(_, change)| Change::bytes(change.as_deref())).sum();
        if bytes == 0 {
            self.let_all_go(|_| None);
            let line = &store.cache.line;
            let may_show = |ticket: &Ticket| match line.standing(*ticket) {
                Standing::Durable => true,
                Standing::Pending => !durable && epochs.show(line, *ticket),
                Standing::Lost => false,
            };
            return if self.tickets.iter().all(may_show) { Ok(()) } else { self.wait_for_what_was_read() };
        }
        if let Some(gone) = changes().map(|(access, _)| access.place.id.namespace).find(|id| store.cache.gone.has(*id))
        {
            self.let_all_go(|_| None);
            return Err(kaml_device::Error::UnknownNamespace(gone).into());
        }
        if !epochs.takes(bytes) {
            return self.commit_large();
        }
        let changes = changes().map(|(Access { place, .. }, change)| Change {
            id: place.id,
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
        self.install(joined.ticket);
        if joined.must_wait { epochs.wait(&store.cache, joined.ticket) } else { Ok(()) }
    }

    /// Stores what no epoch takes, after everything before it.
    fn commit_large(&mut self) -> Result<(), StoreError> {
        let store = self.store.clone();
        let flushed = store.epochs.iter().try_for_each(|epochs| epochs.flush(&store.cache));
        if let Err(error) = flushed.and_then(|()| self.wait_for_what_was_read()) {
            self.let_all_go(|_| None);
            return Err(error);
        }
        let batch = self.batch();
        self.commit_strictly(&batch)
    }

    /// Replaces the records in the cache by the private copies and gives the locks back.
    fn install(&mut self, ticket: Ticket) {
        self.store.cache.xcbs.set_phase(self.who, Phase::Installing);
        self.let_all_go(|access| {
            let change = access.change.take()?;
            Some((change.map_or(Content::Absent, Content::Value), ticket))
        });
    }

    fn wait_for_what_was_read(&mut self) -> Result<(), StoreError> {
        for ticket in std::mem::take(&mut self.tickets) {
            self.store.epochs.iter().for_each(|epochs| epochs.begin_to_write(ticket));
            self.store.cache.wait_for(ticket).map_err(|Lost| StoreError::DependencyLost)?;
        }
        Ok(())
    }

    /// Gives all locks back, in the opposite order: a lock that several records share came with the first of them.
    fn let_all_go(&mut self, change: impl Fn(&mut Access) -> Option<(Content, Ticket)>) {
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
