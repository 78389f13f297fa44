//! Many operations on a store in flight from one thread.
//!
//! Lives here:       the steps of an operation between its start and its answer, and what waits for others.
//! Lives elsewhere:  what is on the device (`in_flight`), the cache and its locks (`cache`, `reads`).
//! Implements:       docs/ARCHITECTURE.md "The record cache" (queues).
//!
//! An operation holds at most one lock, and only while the record is read to be changed: it is released when the
//! change's place in the durable order is fixed, as with early release (`txn`), whatever the store does otherwise; one that
//! replaces what is not flushed yet holds it until it is durable, and so keeps that until then. One that meets a lock of somebody else is
//! put off; when nothing else is in flight the first of these waits for its lock as a blocking call does. With delayed
//! durability changes join an epoch that is written at once (`epochs`). One that no epoch takes keeps its lock and is put off
//! until everything before it is durable, for which others of the queue may have to be polled.

use super::backing::CommandQueue;
use super::cache::{Peek, Place};
use super::epochs::{Change, Epochs};
use super::in_flight::{Ended, Held, InFlight};
use super::line::{CommitStatus, Ticket};
use super::reads::Load;
use super::record::LongKey;
use super::shard::Content;
use super::value::Value;
use super::{Store, WriteMode};
use crate::{Error, Expiry, KeyRef, NamespaceId};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;

/// What an update makes of a record.
///
/// # Examples
/// See [`StoreQueue`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Update {
    /// It does not change.
    Keep,
    /// It is stored.
    Store(Vec<u8>),
    /// It is deleted.
    Delete,
}

/// What an operation came to.
///
/// # Examples
/// See [`StoreQueue`].
#[derive(Debug)]
pub struct StoreAnswer {
    /// The caller's name for it.
    pub token: u64,
    /// For a get the value, if the record exists; nothing for a change.
    pub result: Result<Option<Value>, Error>,
}

type UpdateFn = Box<dyn FnOnce(Option<&[u8]>) -> Update>;

enum Work {
    Get,
    Set(Option<Arc<[u8]>>),
    Update(UpdateFn),
}

enum Step {
    /// Not begun, or put off.
    Waiting,
    /// The device reads it for the cache.
    Reading,
    /// The same, under a lock.
    ReadingHeld(Held),
    /// The device stores it; others see it already, or wait for it.
    Storing,
    /// It found this, which is not durable yet.
    Settling(Option<Arc<[u8]>>, Ticket),
    /// It is stored when what came before it is durable.
    Following(Following),
}

/// A change that no epoch takes.
struct Following {
    held: Held,
    new: Option<Arc<[u8]>>,
    /// Of what it replaces.
    read: Ticket,
    /// The newest commit before it.
    after: Ticket,
}

struct Operation {
    token: u64,
    place: Place,
    long: LongKey,
    work: Work,
    step: Step,
}

/// Many operations in flight from one thread, the one that made the queue ([`Store::queue`]). Operations complete in any order;
/// two operations on one record take effect in any order too, but each as a whole. What is durable when an operation completes
/// depends on how the store was opened, as for the blocking calls: [the table](super#what-is-durable-when) has a row for each.
///
/// Poll it: a record that is being read to be changed is locked until its read was seen by [`StoreQueue::poll`]. Blocking calls of the
/// same thread see what its queues have in flight; a transaction that needs such a lock ends with a time-out.
///
/// # Examples
/// ```
/// use kaml::store::{Store, StoreOptions, Update};
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// let store = Store::open(device, &StoreOptions::new(8 << 20))?;
/// let mut queue = store.queue(32);
/// queue.put(1, users, 7u64, b"one");
/// queue.update(2, users, 8u64, |old| match old {
///     None => Update::Store(b"new".to_vec()),
///     Some(_) => Update::Keep,
/// });
/// let mut answers = Vec::new();
/// while queue.in_flight() > 0 {
///     queue.poll(true, &mut answers);
/// }
/// assert!(answers.iter().all(|answer| answer.result.is_ok()));
/// # Ok::<(), kaml::Error>(())
/// ```
pub struct StoreQueue {
    store: Store,
    in_flight: Rc<RefCell<InFlight>>,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// Operations that wait for others; their order is kept.
    later: VecDeque<usize>,
    ready: Vec<StoreAnswer>,
}

impl StoreQueue {
    pub(super) fn new(store: Store, device: Box<dyn CommandQueue>) -> StoreQueue {
        StoreQueue {
            in_flight: InFlight::new(store.clone(), device),
            store,
            operations: Vec::new(),
            free: Vec::new(),
            later: VecDeque::new(),
            ready: Vec::new(),
        }
    }

    /// Operations not completed yet.
    pub fn in_flight(&self) -> usize {
        self.operations.len() - self.free.len() + self.ready.len()
    }

    /// Starts reading a record.
    pub fn get<'k>(&mut self, token: u64, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) {
        self.begin(token, namespace, key.into(), Work::Get);
    }

    /// Starts storing a record.
    pub fn put<'k>(&mut self, token: u64, namespace: NamespaceId, key: impl Into<KeyRef<'k>>, value: &[u8]) {
        match self.store.inner.check_value(namespace, value) {
            Ok(()) => self.begin(token, namespace, key.into(), Work::Set(Some(value.into()))),
            Err(error) => self.ready.push(StoreAnswer { token, result: Err(error) }),
        }
    }

    /// Starts deleting a record, whether it exists or not.
    pub fn delete<'k>(&mut self, token: u64, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) {
        self.begin(token, namespace, key.into(), Work::Set(None));
    }

    /// Starts a read-modify-write of one record: `change` sees it, or its absence, and nobody comes in between.
    pub fn update<'k>(
        &mut self,
        token: u64,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        change: impl FnOnce(Option<&[u8]>) -> Update + 'static,
    ) {
        self.begin(token, namespace, key.into(), Work::Update(Box::new(change)));
    }

    /// Appends answers; with `wait` at least one, if anything is in flight.
    pub fn poll(&mut self, wait: bool, out: &mut Vec<StoreAnswer>) {
        let before = out.len();
        loop {
            let sleep = wait && self.ready.is_empty() && out.len() == before;
            self.in_flight.borrow_mut().poll(sleep);
            self.take_ends();
            for _ in 0..self.later.len() {
                let at = self.later.pop_front().expect("counted");
                self.go_on(at);
            }
            out.append(&mut self.ready);
            if !wait || out.len() > before || self.in_flight() == 0 {
                return;
            }
            if self.commands_in_flight() == 0
                && let Some(at) = self.take_later()
            {
                self.finish_blocking(at);
            }
        }
    }

    fn begin(&mut self, token: u64, namespace: NamespaceId, key: KeyRef<'_>, work: Work) {
        let place = match self.store.inner.cache.place_of(namespace, key) {
            Ok(place) => place,
            Err(error) => return self.ready.push(StoreAnswer { token, result: Err(error) }),
        };
        let operation = Operation { token, place, long: LongKey::new(&key), work, step: Step::Waiting };
        let at = match self.free.pop() {
            Some(at) => {
                self.operations[at] = Some(operation);
                at
            }
            None => {
                self.operations.push(Some(operation));
                self.operations.len() - 1
            }
        };
        self.go_on(at);
    }

    fn commands_in_flight(&self) -> usize {
        self.in_flight.borrow().count()
    }

    fn operation(&mut self, at: usize) -> &mut Operation {
        self.operations[at].as_mut().expect("an operation in flight has a place")
    }

    fn take_out(&mut self, at: usize) -> Operation {
        self.free.push(at);
        self.operations[at].take().expect("an operation completes one time")
    }

    fn answer(&mut self, at: usize, result: Result<Option<Value>, Error>) {
        let operation = self.take_out(at);
        self.ready.push(StoreAnswer { token: operation.token, result });
    }

    fn put_off(&mut self, at: usize) {
        self.later.push_back(at);
    }

    /// One that was put off, to be waited for. Others may wait for the lock of one that follows.
    fn take_later(&mut self) -> Option<usize> {
        let follows = |at: &usize| matches!(&self.operations[*at], Some(Operation { step: Step::Following(_), .. }));
        let place = self.later.iter().position(follows).unwrap_or(0);
        self.later.remove(place)
    }

    /// Begins an operation, or tries again what was put off.
    fn go_on(&mut self, at: usize) {
        let inner = self.store.inner.clone();
        let operation = self.operation(at);
        match (&operation.step, &operation.work) {
            (Step::Settling(..), _) => self.settle(at),
            (Step::Following(_), _) => self.follow(at),
            (_, Work::Get) => self.look(at),
            // What is added to an ordered namespace may have to wait for transactions that have read ranges, and what expires for epochs.
            (Step::Waiting, Work::Set(Some(_)) | Work::Update(_))
                if !inner.ranges.is_plain(operation.place.id.namespace) =>
            {
                self.finish_blocking(at);
            }
            (_, Work::Set(value)) if inner.stays_in_cache(value.as_deref()) => self.set_unflushed(at),
            (_, Work::Set(_) | Work::Update(_)) => self.lock(at),
        }
    }

    /// Changes a record in the cache alone, unless somebody has it locked.
    fn set_unflushed(&mut self, at: usize) {
        let Some(Operation { place, long, work: Work::Set(value), .. }) = &self.operations[at] else {
            unreachable!("it is a change")
        };
        let content = value.clone().map_or(Content::Absent, Content::Value);
        match self.store.try_put_back(place.id.namespace, long.of(&place.id), &content) {
            Ok(true) => self.answer(at, Ok(None)),
            Ok(false) => self.put_off(at),
            Err(error) => self.answer(at, Err(error)),
        }
    }

    // --- gets ---------------------------------------------------------------------------------------------------------

    fn look(&mut self, at: usize) {
        let inner = self.store.inner.clone();
        let place = self.operation(at).place;
        let (value, ticket) = match inner.cache.peek(&place, Arc::clone) {
            Peek::Hit(value, ticket) => (Some(value), ticket),
            Peek::Absent(ticket) => (None, ticket),
            Peek::Busy => return self.put_off(at),
            Peek::Miss => {
                let Some(load) = inner.cache.begin_own(&place) else { return self.put_off(at) };
                self.operation(at).step = Step::Reading;
                return self.read(at, load);
            }
        };
        self.operation(at).step = Step::Settling(value, ticket);
        self.settle(at);
    }

    /// Completes with what was found when that is durable.
    fn settle(&mut self, at: usize) {
        let Step::Settling(value, ticket) = std::mem::replace(&mut self.operation(at).step, Step::Waiting) else {
            unreachable!("the step of what was found")
        };
        let is_get = matches!(self.operation(at).work, Work::Get);
        let inner = self.store.inner.clone();
        let may_show = || inner.epochs.as_ref().is_some_and(|epochs| epochs.show(&inner.cache.line, ticket));
        match inner.cache.line.status(ticket) {
            CommitStatus::Durable => self.answer(at, Ok(is_get.then_some(value).flatten().map(Value))),
            CommitStatus::Pending if is_get && may_show() => self.answer(at, Ok(value.map(Value))),
            CommitStatus::Pending => {
                self.operation(at).step = Step::Settling(value, ticket);
                self.put_off(at);
            }
            // A get looks again; an update decided on what never was, or was lost itself.
            CommitStatus::Lost if is_get => self.put_off(at),
            CommitStatus::Lost => {
                let why = inner.epochs.as_ref().map_or(Error::DependencyLost, |epochs| epochs.why_lost());
                self.answer(at, Err(why));
            }
        }
    }

    /// Starts the device's read for the cache.
    fn read(&mut self, at: usize, load: (u32, Load)) {
        let Operation { place, long, .. } = self.operation(at);
        let (place, long) = (*place, long.clone());
        let started = self.in_flight.borrow_mut().read(at, place, long.of(&place.id), load);
        if let Err(error) = started {
            self.take_end(Ended { at, result: Err(error), stands: false });
        }
    }

    /// continues with what commands have come to, one after the other: a change that panics takes no answer of others along.
    fn take_ends(&mut self) {
        loop {
            let ended = self.in_flight.borrow_mut().next_ended();
            let Some(ended) = ended else { return };
            self.take_end(ended);
        }
    }

    /// continues with what a command has come to.
    fn take_end(&mut self, Ended { at, result, stands }: Ended) {
        match (std::mem::replace(&mut self.operation(at).step, Step::Waiting), result) {
            (Step::Reading, Ok(value)) if stands => self.answer(at, Ok(value.map(Value))),
            (Step::Reading, Ok(_)) => self.put_off(at), // somebody has stored it meanwhile
            (Step::ReadingHeld(held), Ok(value)) => self.change(at, held, value, 0),
            (Step::ReadingHeld(held), Err(error)) => self.give_up(at, held, error),
            (Step::Storing, Ok(_)) => self.answer(at, Ok(None)),
            (Step::Reading | Step::Storing, Err(error)) => self.answer(at, Err(error)),
            (Step::Waiting | Step::Settling(..) | Step::Following(_), _) => unreachable!("a command was under way"),
        }
    }

    // --- changes ------------------------------------------------------------------------------------------------------

    fn lock(&mut self, at: usize) {
        let inner = self.store.inner.clone();
        let cache = &inner.cache;
        let place = self.operation(at).place;
        let Some(who) = cache.xcbs.take() else { return self.put_off(at) };
        let Some((grip, seen)) = cache.try_acquire(&place, who) else {
            cache.xcbs.give_back(who);
            return self.put_off(at);
        };
        let held = Held { who, grip, dirty: seen.dirty };
        let value = match seen.content {
            Content::Value(value) => Some(value),
            Content::Absent => None,
            Content::Unknown if matches!(self.operation(at).work, Work::Set(_)) => None,
            Content::Unknown | Content::Loading(_) => {
                let load = (held.grip.slot, cache.begin_held(&held.grip));
                self.operation(at).step = Step::ReadingHeld(held);
                return self.read(at, load);
            }
        };
        self.change(at, held, value, seen.ticket);
    }

    /// Makes the change of a locked record whose present content is known.
    fn change(&mut self, at: usize, held: Held, value: Option<Arc<[u8]>>, ticket: Ticket) {
        let is_plain = matches!(self.operation(at).work, Work::Set(_));
        let new = match std::mem::replace(&mut self.operation(at).work, Work::Set(None)) {
            Work::Set(new) => new,
            Work::Update(change) => match catch_unwind(AssertUnwindSafe(|| change(value.as_deref()))) {
                Ok(Update::Store(new)) => Some(Arc::from(new)),
                Ok(Update::Delete) => None,
                Ok(Update::Keep) => {
                    held.let_go(&self.store.inner.cache, None);
                    self.operation(at).step = Step::Settling(None, ticket);
                    return self.settle(at);
                }
                // The program's own affair; but the lock is released, and nobody waits for an answer.
                Err(panic) => {
                    held.let_go(&self.store.inner.cache, None);
                    self.take_out(at);
                    resume_unwind(panic)
                }
            },
            Work::Get => unreachable!("a get changes nothing"),
        };
        let namespace = self.operation(at).place.id.namespace;
        if let Some(Err(error)) = new.as_ref().map(|value| self.store.inner.check_value(namespace, value)) {
            return self.give_up(at, held, error);
        }
        let inner = self.store.inner.clone();
        if let Some(epochs) = &inner.epochs {
            let will_wait = !(is_plain && inner.write_mode == WriteMode::Back);
            return self.change_delayed(at, held, new, ticket, (epochs, will_wait));
        }
        self.store_held(at, held, new);
    }

    /// The change joins an epoch, and completes when that is durable, if it is to wait for that.
    fn change_delayed(
        &mut self,
        at: usize,
        held: Held,
        new: Option<Arc<[u8]>>,
        read: Ticket,
        (epochs, will_wait): (&Epochs, bool),
    ) {
        let inner = self.store.inner.clone();
        let Operation { place: Place { id, hash, .. }, long, .. } = self.operation(at);
        let (id, hash, long) = (*id, *hash, long.clone());
        let bytes = Change::bytes(&long, new.as_deref());
        if !epochs.takes(bytes) {
            let after = epochs.begin_to_write_all();
            self.operation(at).step = Step::Following(Following { held, new, read, after });
            return self.follow(at);
        }
        let known = inner.cache.backing.exists(id.namespace, long.of(&id));
        let change = Change { id, long, hash, value: new.clone() };
        match known.and_then(|_| epochs.join(&inner.cache, &[read], will_wait, bytes, std::iter::once(change))) {
            Ok(joined) => {
                held.let_go(&inner.cache, Some((new.map_or(Content::Absent, Content::Value), joined.ticket)));
                if !joined.must_wait {
                    return self.answer(at, Ok(None));
                }
                epochs.begin_to_write(joined.ticket);
                self.operation(at).step = Step::Settling(None, joined.ticket);
                self.settle(at);
            }
            Err(error) => self.give_up(at, held, error),
        }
    }

    /// Stores a change that no epoch takes if everything before it has come to its end.
    fn follow(&mut self, at: usize) {
        let Step::Following(change) = std::mem::replace(&mut self.operation(at).step, Step::Waiting) else {
            unreachable!("the step of a change that follows others")
        };
        let inner = self.store.inner.clone();
        let (line, epochs) = (&inner.cache.line, inner.epochs.as_ref().expect("changes follow epochs"));
        if line.status(change.after) == CommitStatus::Pending {
            self.operation(at).step = Step::Following(change);
            return self.put_off(at);
        }
        let Following { held, new, read, .. } = change;
        match epochs.check() {
            Ok(()) if line.status(read) == CommitStatus::Lost => self.give_up(at, held, Error::DependencyLost),
            Ok(()) => self.store_held(at, held, new),
            Err(error) => self.give_up(at, held, error),
        }
    }

    /// The device stores a locked record; the lock is released when its place in the durable order is fixed.
    fn store_held(&mut self, at: usize, held: Held, new: Option<Arc<[u8]>>) {
        let operation = self.operation(at);
        operation.step = Step::Storing;
        let (place, long) = (operation.place, operation.long.clone());
        let started = match held.dirty {
            true => self.in_flight.borrow_mut().replace(at, place, long.of(&place.id), held, new),
            false => self.store_ahead(at, held, new),
        };
        if let Err(error) = started {
            self.answer(at, Err(error));
        }
    }

    /// Others see the record as soon as its place in the durable order is fixed.
    fn store_ahead(&mut self, at: usize, held: Held, new: Option<Arc<[u8]>>) -> Result<(), Error> {
        let Operation { place, long, .. } = self.operation(at);
        let (place, long) = (*place, long.clone());
        let started = self.in_flight.borrow_mut().store(at, place, long.of(&place.id), new.as_deref());
        let change = match &started {
            Ok(ticket) => (new.map_or(Content::Absent, Content::Value), *ticket),
            Err(_) => (Content::Unknown, 0), // it may have been stored: the device must be asked
        };
        held.let_go(&self.store.inner.cache, Some(change));
        started.map(drop)
    }

    fn give_up(&mut self, at: usize, held: Held, error: Error) {
        held.let_go(&self.store.inner.cache, None);
        self.answer(at, Err(error));
    }

    // --- waiting for others -------------------------------------------------------------------------------------------

    /// Executes an operation as the blocking calls do.
    fn finish_blocking(&mut self, at: usize) {
        let store = self.store.clone();
        if let Step::Settling(_, ticket) = self.operation(at).step {
            store.inner.epochs.iter().for_each(|epochs| epochs.begin_to_write(ticket));
            let _ = store.inner.cache.wait_for(ticket); // how it ended is asked next
            return self.settle(at);
        }
        if let Step::Following(Following { after, .. }) = self.operation(at).step {
            let _ = store.inner.cache.wait_for(after);
            return self.follow(at);
        }
        let Operation { token, place, long, work, .. } = self.take_out(at); // a change may panic
        let (namespace, key) = (place.id.namespace, long.of(&place.id));
        let result = match work {
            Work::Get => store.get(namespace, key),
            Work::Set(value) => store.change(namespace, key, value).map(|()| None),
            Work::Update(change) => update_blocking(&store, namespace, key, change).map(|()| None),
        };
        self.ready.push(StoreAnswer { token, result });
    }
}

/// A transaction on one record; only the wait for its lock is tried again.
fn update_blocking(store: &Store, namespace: NamespaceId, key: KeyRef<'_>, change: UpdateFn) -> Result<(), Error> {
    let (mut txn, value) = store.run_locked(namespace, key)?;
    match change(value.as_deref()) {
        Update::Keep => {}
        Update::Store(new) => {
            store.inner.check_value(namespace, &new)?;
            txn.set(namespace, key, Some(new.into()), Expiry::Default)?;
        }
        Update::Delete => txn.set(namespace, key, None, Expiry::Default)?,
    }
    txn.commit_durable()
}

impl Drop for StoreQueue {
    /// Brings everything to its end: others wait for its locks and tickets. The first change that panics is heard of when all is over,
    /// unless the thread panics already.
    fn drop(&mut self) {
        let (mut answers, mut panic) = (Vec::new(), None);
        while self.in_flight() > 0 {
            let before = self.in_flight();
            if let Err(caught) = catch_unwind(AssertUnwindSafe(|| self.poll(true, &mut answers))) {
                panic.get_or_insert(caught);
                if self.in_flight() == before {
                    break; // it was not a change of ours, and comes again
                }
            }
            answers.clear();
        }
        if let Some(panic) = panic.filter(|_| !std::thread::panicking()) {
            resume_unwind(panic);
        }
    }
}
