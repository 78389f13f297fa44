//! Transactions.
//!
//! Lives here:       the calls of paper:KAML Table II, private copies, commit in strict, early-release and delayed order.
//! Lives elsewhere:  locks and their waits (`cache`, `waits`), states (`xcb`), tickets (`line`).
//! Implements:       paper:KAML III.D (SS2PL over the caching layer); docs/ARCHITECTURE.md "Transactions".
//!
//! A commit is one atomic Put of the private copies. *Strict*: locks are held until it is durable. *Early release*:
//! locks are released when the Put's place in the durable order is fixed. A transaction that then reads one of its records
//! and writes comes later in that order; a caller that reads and does not write waits for the ticket at its own commit. So
//! no acknowledgement comes before that of a transaction that was read from.
//!
//! *Delayed*: the commit joins an epoch, which is durable later (`epochs`), and returns.
//!
//! A record that was put in write-back mode and not flushed yet is stored along with the commit of any transaction
//! that read it, so what is durable never depends on what is not.

mod commit;

use super::Inner;
use super::cache::{CachedView, LockHold, Peek, Place};
use super::line::{CommitStatus, Ticket};
use super::locks::{Mode, XcbId};
use super::ranges::Committed;
use super::record::{LongKey, RecordId};
use super::shard::{Content, Entry};
use super::table::Table;
use super::value::Value;
use super::waits::Refused;
use super::xcb::{XcbEvent, XcbState};
use crate::{Error, Expiry, KeyBuf, KeyRef, NamespaceId};
use std::sync::Arc;

/// Above so many records a transaction finds its own through a table.
const LINEAR_MAX: usize = 16;

/// A record that a transaction has touched.
struct Access {
    place: Place,
    long: LongKey,
    grip: LockHold,
    exclusive: bool,
    seen: Content,
    dirty: bool,
    /// The private copy: a value, or its absence.
    change: Option<Option<Arc<[u8]>>>,
    /// When the private copy expires.
    expiry: Expiry,
    /// The private copy is a value that can expire: the cache does not keep it.
    is_brief: bool,
}

impl Access {
    fn key(&self) -> KeyRef<'_> {
        self.long.of(&self.place.id)
    }

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
/// [is retryable](Error::is_retryable). A caller that continues nevertheless, reading, changing or committing, is notified the same again.
///
/// # Examples
/// ```
/// use kaml::store::{Store, StoreOptions};
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// let store = Store::open(device, &StoreOptions::new(8 << 20))?;
/// let mut txn = store.begin()?;
/// txn.insert(users, 1u64, b"ada")?;
/// assert_eq!(txn.read(users, 1u64)?.as_deref(), Some(&b"ada"[..]));
/// txn.commit()?;
/// # Ok::<(), kaml::Error>(())
/// ```
pub struct Transaction {
    store: Arc<Inner>,
    state: XcbState,
    who: XcbId,
    accesses: Vec<Access>,
    /// Places in `accesses` by record, if there are many.
    table: Table,
    /// Commits that were read from and not durable then.
    tickets: Vec<Ticket>,
    /// The lock that it was refused, and aborted for.
    refusal: Option<(Refused, NamespaceId, KeyBuf)>,
    /// Keys that it may add to ordered namespaces.
    inserted: Vec<(NamespaceId, KeyBuf)>,
}

impl Transaction {
    pub(super) fn begin(store: &Arc<Inner>) -> Result<Transaction, Error> {
        let xcbs = &store.cache.xcbs;
        let who = xcbs.take().ok_or_else(|| Error::TooManyTransactions { max: store.transactions_max })?;
        let state = XcbState::Idle.after(XcbEvent::Begin)?;
        let (accesses, tickets) = (Vec::with_capacity(4), Vec::new());
        let (store, table) = (store.clone(), Table::default());
        Ok(Transaction { store, state, who, accesses, table, tickets, refusal: None, inserted: Vec::new() })
    }

    /// Its state.
    pub fn state(&self) -> XcbState {
        self.state
    }

    /// Reports which records the transaction is going to use. What the cache has of them is fetched from memory at once, and what it has not is
    /// read from the device, many records at the same time. That takes most of the time of a transaction that requests one after the other, and here it
    /// passes before anything is locked. Nothing is locked by it, and a record that is named and not used costs only its read.
    ///
    /// # Errors
    /// [`Error::IllegalMove`] if the transaction has ended. A record that cannot be read returns its error when it is used.
    pub fn expect<'k, K: Into<KeyRef<'k>>>(
        &mut self,
        records: impl IntoIterator<Item = (NamespaceId, K)>,
    ) -> Result<(), Error> {
        self.state = self.after(XcbEvent::Access)?;
        let cache = &self.store.cache;
        let records: Vec<(NamespaceId, KeyRef<'_>)> = records.into_iter().map(|(of, key)| (of, key.into())).collect();
        let places = records.iter().filter_map(|(namespace, key)| cache.place_of(*namespace, *key).ok());
        if !cache.prefetch(places) {
            self.bring_in(records);
        }
        Ok(())
    }

    /// Reads what the cache has not of some records, all together.
    #[cold]
    fn bring_in(&self, mut records: Vec<(NamespaceId, KeyRef<'_>)>) {
        let cache = &self.store.cache;
        let misses = |place: &Place| matches!(cache.peek(place, |_| ()), Peek::Miss);
        records.retain(|(namespace, key)| {
            // A key that is refused here is refused when it is used.
            let place = cache.place_of(*namespace, *key).ok().filter(|place| !self.knows(&place.id));
            place.is_some_and(|place| misses(&place))
        });
        let _ = cache.load_many(&mut None, &records); // the record that fails fails again when it is used
    }

    /// Reads a record (paper:KAML TransactionRead). Its absence is locked too.
    ///
    /// # Errors
    /// - [`Error::Deadlock`], [`Error::LockTimeout`], [`Error::DependencyLost`] if the transaction is aborted;
    ///   [`Error::is_retryable`] then holds.
    /// - [`Error::IllegalMove`] if it has ended.
    /// - The errors of [`crate::Device::get`] if the record must be read; the transaction continues.
    pub fn read<'k>(&mut self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<Option<Value>, Error> {
        let at = self.touch(namespace, key.into(), Mode::Shared)?;
        self.value(at)
    }

    /// Reads a record that is going to be changed, so nobody else reads it for that.
    ///
    /// # Errors
    /// - [`Error::Deadlock`], [`Error::LockTimeout`], [`Error::DependencyLost`] if the transaction is aborted;
    ///   [`Error::is_retryable`] then holds.
    /// - [`Error::IllegalMove`] if it has ended.
    /// - The errors of [`crate::Device::get`] if the record must be read; the transaction continues.
    pub fn read_for_update<'k>(
        &mut self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
    ) -> Result<Option<Value>, Error> {
        let at = self.touch(namespace, key.into(), Mode::Exclusive)?;
        self.value(at)
    }

    /// Changes a record that exists (paper:KAML TransactionUpdate).
    ///
    /// # Errors
    /// - [`Error::Deadlock`], [`Error::LockTimeout`], [`Error::DependencyLost`] if the transaction is aborted;
    ///   [`Error::is_retryable`] then holds.
    /// - [`Error::IllegalMove`] if it has ended.
    /// - The errors of [`crate::Device::get`] if the record must be read; the transaction continues.
    /// - [`Error::Conflict`] if the record does not exist; the transaction continues.
    pub fn update<'k>(
        &mut self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &[u8],
    ) -> Result<(), Error> {
        let key: KeyRef<'_> = key.into();
        self.check_value(namespace, value)?;
        let at = self.touch(namespace, key, Mode::Exclusive)?;
        if !self.is_there(at)? {
            return Err(self.refuse(Error::Conflict { namespace, key: key.to_buf()?, present: false }));
        }
        self.set_change(at, Some(value.into()), Expiry::Default);
        Ok(())
    }

    /// Stores a record that does not exist (paper:KAML TransactionInsert).
    ///
    /// # Errors
    /// - [`Error::Deadlock`], [`Error::LockTimeout`], [`Error::DependencyLost`] if the transaction is aborted;
    ///   [`Error::is_retryable`] then holds.
    /// - [`Error::IllegalMove`] if it has ended.
    /// - The errors of [`crate::Device::get`] if the record must be read; the transaction continues.
    /// - [`Error::Conflict`] if the record exists; the transaction continues.
    pub fn insert<'k>(
        &mut self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &[u8],
    ) -> Result<(), Error> {
        let key: KeyRef<'_> = key.into();
        self.check_value(namespace, value)?;
        let at = self.touch(namespace, key, Mode::Exclusive)?;
        if self.is_there(at)? {
            return Err(self.refuse(Error::Conflict { namespace, key: key.to_buf()?, present: true }));
        }
        self.guard_gap(namespace, key, at)?;
        self.set_change(at, Some(value.into()), Expiry::Default);
        Ok(())
    }

    /// Deletes a record that exists.
    ///
    /// # Errors
    /// - [`Error::Deadlock`], [`Error::LockTimeout`], [`Error::DependencyLost`] if the transaction is aborted;
    ///   [`Error::is_retryable`] then holds.
    /// - [`Error::IllegalMove`] if it has ended.
    /// - The errors of [`crate::Device::get`] if the record must be read; the transaction continues.
    /// - [`Error::Conflict`] if the record does not exist; the transaction continues.
    pub fn delete<'k>(&mut self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<(), Error> {
        let key: KeyRef<'_> = key.into();
        let at = self.touch(namespace, key, Mode::Exclusive)?;
        if !self.is_there(at)? {
            return Err(self.refuse(Error::Conflict { namespace, key: key.to_buf()?, present: false }));
        }
        self.set_change(at, None, Expiry::Default);
        Ok(())
    }

    /// Stores a record, whether it exists or not (in addition to paper:KAML Table II, which has no call for that).
    ///
    /// # Errors
    /// - [`Error::Deadlock`], [`Error::LockTimeout`], [`Error::DependencyLost`] if the transaction is aborted;
    ///   [`Error::is_retryable`] then holds.
    /// - [`Error::IllegalMove`] if it has ended.
    /// - The errors of [`crate::Device::get`] if the record must be read; the transaction continues.
    pub fn upsert<'k>(
        &mut self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &[u8],
    ) -> Result<(), Error> {
        let key: KeyRef<'_> = key.into();
        self.check_value(namespace, value)?;
        let at = self.touch(namespace, key, Mode::Exclusive)?;
        self.is_there(at)?; // refuses unknown namespaces and keys that they do not take
        self.guard_gap(namespace, key, at)?;
        self.set_change(at, Some(value.into()), Expiry::Default);
        Ok(())
    }

    /// Stores or deletes a record whether it exists or not.
    pub(super) fn set(
        &mut self,
        namespace: NamespaceId,
        key: KeyRef<'_>,
        value: Option<Arc<[u8]>>,
        expiry: Expiry,
    ) -> Result<(), Error> {
        let at = self.touch(namespace, key, Mode::Exclusive)?;
        if self.store.epochs.is_some() {
            self.is_there(at)?; // refuses what would fail an epoch: unknown namespaces and keys that they do not take
        }
        if value.is_some() {
            self.guard_gap(namespace, key, at)?;
        }
        self.set_change(at, value, expiry);
        Ok(())
    }

    /// Locks a record, changes it in the cache alone, and leaves the transaction without it.
    pub(super) fn set_unflushed(
        &mut self,
        namespace: NamespaceId,
        key: KeyRef<'_>,
        content: Content,
    ) -> Result<(), Error> {
        let at = self.touch(namespace, key, Mode::Exclusive)?;
        if matches!(content, Content::Value(_)) {
            self.guard_gap(namespace, key, at)?;
        }
        let Access { grip, long, .. } = &self.accesses[at];
        self.store.cleaner.put_locked(&self.store.cache, grip, long, content);
        self.commit_inserted(Committed::Unflushed);
        self.let_all_go(|_| None);
        self.state = self.state.after(XcbEvent::Abort)?;
        Ok(())
    }

    /// Makes all changes durable, together, and releases the locks (paper:KAML TransactionCommit). With a
    /// [`durability_delay`](super::StoreOptions::durability_delay) they are visible when it returns, and durable soon. After an
    /// error the transaction is aborted; if the device failed, its changes can nevertheless be stored, all or none. Changes of more than
    /// the device takes in one batch are refused here, not before ([`Limits::batch_bytes_max`](super::Limits::batch_bytes_max)).
    ///
    /// # Errors
    /// - [`Error::Deadlock`], [`Error::LockTimeout`], [`Error::DependencyLost`] if the transaction is aborted;
    ///   [`Error::is_retryable`] then holds.
    /// - [`Error::IllegalMove`] if it has ended.
    /// - The errors of [`crate::Device::write`]: the transaction is aborted. [`Error::CommitsLost`] with delayed durability.
    pub fn commit(&mut self) -> Result<(), Error> {
        self.end(false)
    }

    /// As [`commit`](Transaction::commit), and waits until the changes are durable whatever the store's delay is.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_durable(&mut self) -> Result<(), Error> {
        self.end(true)
    }

    fn end(&mut self, durable: bool) -> Result<(), Error> {
        let committed = self.after(XcbEvent::Commit)?;
        let result = self.store_changes(durable);
        self.state = if result.is_ok() { committed } else { self.state.after(XcbEvent::Abort)? };
        result
    }

    /// Abandons all changes and releases the locks (paper:KAML TransactionAbort).
    ///
    /// # Errors
    /// [`Error::IllegalMove`] if the transaction has ended.
    pub fn abort(&mut self) -> Result<(), Error> {
        self.state = self.state.after(XcbEvent::Abort)?;
        self.let_all_go(|_| None);
        Ok(())
    }

    /// Releases what the transaction used (paper:KAML TransactionFree); dropping it does the same.
    ///
    /// # Errors
    /// [`Error::IllegalMove`] if the transaction is still active.
    pub fn free(mut self) -> Result<(), Error> {
        self.state = self.state.after(XcbEvent::Free)?;
        Ok(())
    }

    // --- records --------------------------------------------------------------------------------------------------

    /// Makes a change of the private copy of a record.
    pub(super) fn set_change(&mut self, at: usize, value: Option<Arc<[u8]>>, expiry: Expiry) {
        let access = &mut self.accesses[at];
        let expires = || expiry != Expiry::Default || self.store.ranges.has_ttl(access.place.id.namespace);
        access.is_brief = value.is_some() && expires();
        (access.change, access.expiry) = (Some(value), expiry);
    }

    /// When the record that the transaction sees expires, as a change that keeps that has to request it. Call it before the record is read.
    pub(super) fn kept_expiry(&self, at: usize) -> Result<Expiry, Error> {
        let access = &self.accesses[at];
        let (backing, namespace) = (&self.store.cache.backing, access.place.id.namespace);
        match access.change {
            Some(_) => Ok(access.expiry),
            None if backing.expires(namespace) => Ok(backing.expiry(namespace, access.key())?.unwrap_or_default()),
            None => Ok(Expiry::Default),
        }
    }

    pub(super) fn check_value(&self, namespace: NamespaceId, value: &[u8]) -> Result<(), Error> {
        self.after(XcbEvent::Access)?;
        self.store.check_value(namespace, value)
    }

    /// Its state after an event. One that was aborted for a lock reports that rather than that it is aborted.
    fn after(&self, event: XcbEvent) -> Result<XcbState, Error> {
        self.state.after(event).or_else(|illegal| {
            self.check_refused()?;
            Err(illegal.into())
        })
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.store
    }

    /// A key may be added to an ordered namespace.
    pub(super) fn inserted(&mut self, namespace: NamespaceId, key: KeyBuf) {
        self.inserted.push((namespace, key));
    }

    /// How many records it has locked.
    pub(super) fn lock_count(&self) -> usize {
        self.accesses.len()
    }

    /// Releases the locks that were taken last, but for so many: nothing was read or changed under them.
    pub(super) fn release_last(&mut self, kept: usize) {
        while self.accesses.len() > kept
            && let Some(access) = self.accesses.pop()
        {
            if self.table.len() > 0 {
                self.table.remove(access.place.hash, self.accesses.len() as u32);
            }
            self.store.cache.let_go(self.who, &access.grip, None);
        }
        if self.accesses.len() <= LINEAR_MAX {
            self.table.clear();
        }
    }

    /// Whether it holds a lock of the record.
    pub(super) fn knows(&self, id: &RecordId) -> bool {
        self.find(id).is_some()
    }

    /// Locks a record; returns its place among the accesses.
    pub(super) fn touch(&mut self, namespace: NamespaceId, key: KeyRef<'_>, mode: Mode) -> Result<usize, Error> {
        self.state = self.after(XcbEvent::Access)?;
        let id = RecordId { namespace, key: self.store.cache.key(key)? };
        let known = self.find(&id);
        if let Some(at) = known
            && (mode == Mode::Shared || self.accesses[at].exclusive)
        {
            return Ok(at);
        }
        let place = self.store.cache.place(namespace, id.key);
        let (grip, seen) = match self.store.cache.acquire(&place, self.who, mode) {
            Ok(held) => held,
            Err(refused) => return Err(self.refused(refused, namespace, key.to_buf()?)),
        };
        match known {
            Some(at) => {
                self.store.cache.let_go(self.who, &grip, None); // the first hold continues
                self.accesses[at].exclusive = true;
                Ok(at)
            }
            None => Ok(self.add(place, LongKey::new(&key), grip, seen, mode)),
        }
    }

    fn add(&mut self, place: Place, long: LongKey, grip: LockHold, seen: CachedView, mode: Mode) -> usize {
        let at = self.accesses.len();
        self.note_ticket(seen.ticket);
        let exclusive = mode == Mode::Exclusive;
        let (seen, dirty) = (seen.content, seen.dirty);
        self.accesses.push(Access {
            place,
            long,
            grip,
            exclusive,
            seen,
            dirty,
            change: None,
            expiry: Expiry::Default,
            is_brief: false,
        });
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
        let found = self.table.find(self.store.cache.secret.hash(id), |at| self.accesses[at as usize].place.id == *id);
        found.map(|at| at as usize)
    }

    fn refused(&mut self, refused: Refused, namespace: NamespaceId, key: KeyBuf) -> Error {
        self.let_all_go(|_| None);
        self.state = XcbState::Aborted;
        self.store.count_refused(refused);
        self.refusal = Some((refused, namespace, key));
        self.check_refused().expect_err("just refused")
    }

    /// Repeats that a lock was refused, because the caller may have overlooked it.
    pub(super) fn check_refused(&self) -> Result<(), Error> {
        let Some((refused, namespace, key)) = &self.refusal else { return Ok(()) };
        let (namespace, key) = (*namespace, key.clone());
        Err(match refused {
            Refused::Deadlock => Error::Deadlock { namespace, key },
            Refused::Timeout => Error::LockTimeout { namespace, key, waited_ms: self.store.cache.lock_timeout_ms() },
        })
    }

    /// A change does not find its record as it must be. The caller may report that to others and not commit, so what was found has to be
    /// durable by now, as for a plain read; if it was lost, the transaction can be run again.
    pub(super) fn refuse(&mut self, error: Error) -> Error {
        let (line, epochs) = (&self.store.cache.line, self.store.epochs.as_ref());
        let may_show = |ticket: &Ticket| match line.status(*ticket) {
            CommitStatus::Durable => true,
            CommitStatus::Pending => epochs.is_some_and(|epochs| epochs.show(line, *ticket)),
            CommitStatus::Lost => false,
        };
        let tickets: Vec<Ticket> = self.tickets.iter().copied().filter(|ticket| !may_show(ticket)).collect();
        for ticket in tickets {
            self.store.epochs.iter().for_each(|epochs| epochs.begin_to_write(ticket));
            if self.store.cache.wait_for(ticket).is_err() {
                return Error::DependencyLost;
            }
        }
        error
    }

    fn note_ticket(&mut self, ticket: Ticket) {
        if self.store.cache.line.status(ticket) != CommitStatus::Durable && !self.tickets.contains(&ticket) {
            self.tickets.push(ticket);
        }
    }

    /// What the transaction sees of a record.
    pub(super) fn value(&mut self, at: usize) -> Result<Option<Value>, Error> {
        let access = &self.accesses[at];
        if let Some(change) = &access.change {
            return Ok(change.clone().map(Value));
        }
        match &access.seen {
            Content::Value(value) => return Ok(Some(Value(value.clone()))),
            Content::Absent => return Ok(None),
            Content::Unknown | Content::Loading(_) => {}
        }
        // One that can expire is read again each time. Looked up first: afterwards the device may have forgotten that it did.
        let can_expire = self.store.cache.backing.expires(access.place.id.namespace);
        let loaded = self.store.cache.load(&access.place, access.key(), Some(self.who))?;
        let (value, ticket) = loaded.expect("a holder's read is not put off");
        self.note_ticket(ticket);
        if !can_expire {
            self.accesses[at].seen = value.clone().map_or(Content::Absent, Content::Value);
        }
        Ok(value.map(Value))
    }

    /// Whether the transaction sees a record; never reads flash.
    pub(super) fn is_there(&mut self, at: usize) -> Result<bool, Error> {
        match &self.accesses[at].change {
            Some(change) => Ok(change.is_some()),
            None => self.was_there(at),
        }
    }

    /// Whether a record exists that the transaction may have changed; never reads flash.
    pub(super) fn was_there(&mut self, at: usize) -> Result<bool, Error> {
        let access = &mut self.accesses[at];
        match &access.seen {
            Content::Value(_) => Ok(true),
            Content::Absent => Ok(false),
            Content::Unknown | Content::Loading(_) => {
                let there = self.store.cache.backing.exists(access.place.id.namespace, access.key())?;
                if !there {
                    access.seen = Content::Absent;
                }
                Ok(there)
            }
        }
    }
}
