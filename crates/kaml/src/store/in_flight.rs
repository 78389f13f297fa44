//! What a store's queues have on the device, within reach of the blocking calls of their thread.
//!
//! Lives here:       commands in flight, what their ends change in the cache, ending them before a thread sleeps.
//! Lives elsewhere:  the operations that they belong to (`queue`), the device's own loops (`crate::queue`).
//!
//! Only the thread that made a queue can take its answers. If it then waits in a blocking call, of this store or of another of its
//! queues, for a record that one of them reads or stores, or for somebody who waits for such a record, it would wait forever.
//! So every blocking call ends what the queues of its thread have in flight before it sleeps. Their operations continue when they are
//! polled.

use super::Store;
use super::backing::CommandQueue;
use super::cache::{Cache, LockHold, Place};
use super::line::{Lost, Ticket};
use super::locks::XcbId;
use super::reads::Load;
use super::shard::Content;
use super::xcb::Phase;
use crate::sync::thread_local;
use crate::{Answer, Error, KeyRef};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// A record that is locked to be changed.
pub(super) struct Held {
    pub(super) who: XcbId,
    pub(super) grip: LockHold,
    pub(super) dirty: bool,
}

impl Held {
    /// Releases the lock, and makes the change visible if there is one.
    pub(super) fn let_go(self, cache: &Cache, change: Option<(Content, Ticket)>) {
        cache.let_go(self.who, &self.grip, change);
        cache.xcbs.give_back(self.who);
        cache.make_room(self.grip.shard);
    }
}

/// A command of an operation, by the operation's number.
enum Command {
    /// Others see the record already, with this ticket.
    Store(Place, Ticket),
    /// The record is locked until it has this content, or keeps the one that it has.
    Replace(Held, Content),
    /// For the cache: the entry's slot and the number of the load.
    Read(Place, u32, Load),
}

/// How a command has ended.
pub(super) struct Ended {
    pub(super) at: usize,
    /// The result of a read.
    pub(super) result: Result<Option<Arc<[u8]>>, Error>,
    /// Of a read: nobody has stored the record meanwhile.
    pub(super) stands: bool,
}

/// Commands of a queue on the device.
pub(super) struct InFlight {
    store: Store,
    device: Box<dyn CommandQueue>,
    commands: Vec<Option<Command>>,
    answers: Vec<Answer>,
    /// Ended, and not looked at.
    ended: VecDeque<Ended>,
}

type Listed = (*const Cache, Weak<RefCell<InFlight>>);

thread_local!(static OF_THREAD: RefCell<Vec<Listed>> = const { RefCell::new(Vec::new()) });

impl InFlight {
    /// Of a new queue of this thread.
    pub(super) fn new(store: Store, device: Box<dyn CommandQueue>) -> Rc<RefCell<InFlight>> {
        let cache: *const Cache = &*store.inner.cache;
        let in_flight = InFlight { store, device, commands: Vec::new(), answers: Vec::new(), ended: VecDeque::new() };
        let in_flight = Rc::new(RefCell::new(in_flight));
        // A thread that ends makes no blocking calls during a queue that it has only now begun.
        let _ = OF_THREAD.try_with(|listed| {
            let mut listed = listed.borrow_mut();
            listed.retain(|(_, in_flight)| in_flight.strong_count() > 0);
            listed.push((cache, Rc::downgrade(&in_flight)));
        });
        in_flight
    }

    /// Commands that have not ended.
    pub(super) fn count(&self) -> usize {
        self.device.in_flight()
    }

    /// Starts a read for the cache; if that fails, it has ended.
    pub(super) fn read(
        &mut self,
        at: usize,
        place: Place,
        key: KeyRef<'_>,
        (slot, load): (u32, Load),
    ) -> Result<(), Error> {
        let started = self.device.get(at as u64, place.id.namespace, key);
        match started {
            Ok(()) => self.note(at, Command::Read(place, slot, load)),
            Err(_) => drop(self.store.inner.cache.end_load(&place, slot, load, None)),
        }
        started
    }

    /// Starts storing a record. It has a place in the durable order then, and a ticket.
    pub(super) fn store(
        &mut self,
        at: usize,
        place: Place,
        key: KeyRef<'_>,
        value: Option<&[u8]>,
    ) -> Result<Ticket, Error> {
        self.device.put(at as u64, place.id.namespace, key, value)?;
        let ticket = self.store.inner.cache.line.take();
        self.note(at, Command::Store(place, ticket));
        Ok(ticket)
    }

    /// Starts storing a record that replaces what only the cache has, which must not be lost with it: nobody sees it before it is
    /// durable, and if that fails all is as before. Nobody has waited for its answer then, so it is as if it had come first, should
    /// it have been stored after all.
    pub(super) fn replace(
        &mut self,
        at: usize,
        place: Place,
        key: KeyRef<'_>,
        held: Held,
        value: Option<Arc<[u8]>>,
    ) -> Result<(), Error> {
        let cache = &self.store.inner.cache;
        cache.xcbs.set_phase(held.who, Phase::Installing); // who reads now waits for what becomes of it
        let started = self.device.put(at as u64, place.id.namespace, key, value.as_deref());
        match started {
            Ok(()) => self.note(at, Command::Replace(held, value.map_or(Content::Absent, Content::Value))),
            Err(_) => held.let_go(cache, None),
        }
        started
    }

    fn note(&mut self, at: usize, command: Command) {
        if self.commands.len() <= at {
            self.commands.resize_with(at + 1, || None);
        }
        self.commands[at] = Some(command);
    }

    /// Looks what has ended; waits for one, if requested and none has ended that was not taken.
    pub(super) fn poll(&mut self, wait: bool) {
        if self.count() > 0 {
            self.device.poll(wait && self.ended.is_empty(), &mut self.answers);
            self.take_answers();
        }
    }

    /// Takes one that has ended.
    pub(super) fn next_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// Brings all to their end.
    fn finish(&mut self) {
        while self.count() > 0 {
            self.device.poll(true, &mut self.answers);
            self.take_answers();
        }
    }

    fn take_answers(&mut self) {
        let cache = &self.store.inner.cache;
        for Answer { token, result } in self.answers.drain(..) {
            let at = token as usize;
            let result = result.map(|value| value.map(|value| Arc::<[u8]>::from(&*value)));
            let stands = match self.commands[at].take().expect("a command ends once") {
                Command::Read(place, slot, load) => cache.end_load(&place, slot, load, result.as_ref().ok()),
                Command::Store(place, ticket) => {
                    if result.is_err() {
                        cache.forget(&place, ticket);
                    }
                    cache.line.end(ticket, result.as_ref().map(|_| ()).map_err(|_| Lost));
                    true
                }
                Command::Replace(held, content) => {
                    held.let_go(cache, result.is_ok().then_some((content, 0)));
                    true
                }
            };
            self.ended.push_back(Ended { at, result, stands });
        }
    }
}

/// Those of this thread's queues that have something in flight. One that is being used just now is none: the device does not wait
/// for the cache.
fn of_thread(cache: &Cache) -> Vec<Rc<RefCell<InFlight>>> {
    let is_busy = |in_flight: &Rc<RefCell<InFlight>>| in_flight.try_borrow().is_ok_and(|it| it.count() > 0);
    let here = OF_THREAD.try_with(|listed| {
        let listed = listed.borrow();
        let here = listed.iter().filter(|(of, _)| std::ptr::eq(*of, cache));
        here.filter_map(|(_, in_flight)| in_flight.upgrade()).filter(is_busy).collect()
    });
    here.unwrap_or_default()
}

/// Brings to their end what queues of this thread have in flight.
fn finish_own(cache: &Cache) {
    of_thread(cache).iter().for_each(|in_flight| in_flight.borrow_mut().finish());
}

/// Whether queues of this thread have something in flight.
pub(super) fn has_own(cache: &Cache) -> bool {
    !of_thread(cache).is_empty()
}

impl Cache {
    /// The thread is about to sleep until another one has done something. What it has begun itself, and others may wait for, comes
    /// to its end first. Call it without locks.
    pub(super) fn before_sleep(&self) {
        finish_own(self);
        self.backing.before_sleep();
    }
}
