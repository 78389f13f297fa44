//! Linearizability: whatever threads saw of records and namespaces can have happened one command after the other, each between its
//! beginning and its end; and what completed before a power cut is true after it.
//!
//! Histories are small and are searched as a whole (Wing and Gong, with Lowe's memory of configurations): the next command is one that
//! began before any other one that is left ended.

use crate::explore::{device_on, explore};
use kaml::{AsyncQueue, Batch, Condition, Device, Error, KeyKind, NamespaceId, NamespaceOptions};
use kaml_device::Core;
use kaml_flash::Geometry;
use kaml_sim::{Scenario, SimMedium, Small};
use kaml_testkit::Rng;
use std::collections::{BTreeSet, HashSet};
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

const KEYS: usize = 2;
const NAMES: [&str; 2] = ["x", "y"];
const THREADS: u64 = 3;
/// Commands of each thread. Those of all threads, with the reads at the end, have a bit each in a word.
const STEPS: usize = 14;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Command {
    Get(usize),
    Exists(usize),
    /// The key's part of a list.
    Listed(usize),
    Put(usize, u64),
    PutIf(usize, u64, bool),
    /// The value under the first key, and under the other one if that is absent.
    PutBoth(usize, u64),
    Delete(usize),
    DeleteIfPresent(usize),
    Create(usize),
    Lookup(usize),
    DeleteSpace(NamespaceId),
    /// Of the only key in a namespace that was created.
    GetIn(NamespaceId),
    PutIn(NamespaceId, u64),
}

/// What it came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Found {
    Done,
    /// A condition does not hold, or a name is taken.
    Refused,
    Value(Option<u64>),
    Is(bool),
    Space(Option<NamespaceId>),
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    command: Command,
    begin: u64,
    /// Of one that was not completed: never, and it may have happened or not.
    end: u64,
    found: Option<Found>,
}

/// What a device holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct State {
    records: [Option<u64>; KEYS],
    /// The id of each name, 0 if that was not completed, and the value in it.
    spaces: [Option<(NamespaceId, Option<u64>)>; 2],
}

impl State {
    fn space(&mut self, id: NamespaceId) -> Option<&mut (NamespaceId, Option<u64>)> {
        self.spaces.iter_mut().flatten().find(|space| space.0 == id)
    }

    /// Executes a command; `None` if it cannot have had its result.
    fn after(&self, command: Command, found: Option<Found>) -> Option<State> {
        let mut next = self.clone();
        let is = match command {
            Command::Get(key) => Found::Value(self.records[key]),
            Command::Exists(key) | Command::Listed(key) => Found::Is(self.records[key].is_some()),
            Command::Put(key, value) => {
                next.records[key] = Some(value);
                Found::Done
            }
            Command::PutIf(key, value, present) if self.records[key].is_some() == present => {
                next.records[key] = Some(value);
                Found::Done
            }
            Command::PutBoth(key, value) if self.records[1 - key].is_none() => {
                next.records = [Some(value); KEYS];
                Found::Done
            }
            Command::Delete(key) => {
                next.records[key] = None;
                Found::Done
            }
            Command::DeleteIfPresent(key) if self.records[key].is_some() => {
                next.records[key] = None;
                Found::Done
            }
            Command::PutIf(..) | Command::PutBoth(..) | Command::DeleteIfPresent(_) => Found::Refused,
            Command::Create(name) if self.spaces[name].is_some() => Found::Refused,
            Command::Create(name) => {
                let id = if let Some(Found::Space(Some(id))) = found { id } else { 0 };
                next.spaces[name] = Some((id, None));
                Found::Space(Some(id))
            }
            Command::Lookup(name) => {
                if let (Some((id @ 0, _)), Some(Found::Space(Some(found)))) = (&mut next.spaces[name], found) {
                    *id = found; // nobody was notified before
                }
                Found::Space(next.spaces[name].map(|(id, _)| id))
            }
            Command::DeleteSpace(id) => {
                match next.spaces.iter_mut().find(|space| space.is_some_and(|space| space.0 == id)) {
                    Some(space) => {
                        *space = None;
                        Found::Done
                    }
                    None => Found::Unknown,
                }
            }
            Command::GetIn(id) => next.space(id).map_or(Found::Unknown, |space| Found::Value(space.1)),
            Command::PutIn(id, value) => match next.space(id) {
                Some(space) => {
                    space.1 = Some(value);
                    Found::Done
                }
                None => Found::Unknown,
            },
        };
        found.is_none_or(|found| found == is).then_some(next)
    }
}

/// Whether the events can have happened one after the other.
fn is_linearizable(events: &[Event]) -> bool {
    assert!(events.len() <= 128);
    let answered = events.iter().enumerate().filter(|(_, event)| event.found.is_some());
    let answered: u128 = answered.fold(0, |bits, (at, _)| bits | 1 << at);
    let mut seen: HashSet<(u128, State)> = HashSet::new();
    let mut open = vec![(0u128, State::default())];
    while let Some((done, state)) = open.pop() {
        if done & answered == answered {
            return true;
        }
        let left = || events.iter().enumerate().filter(|(at, _)| done >> at & 1 == 0);
        let first_end = left().map(|(_, event)| event.end).min().unwrap_or(u64::MAX);
        for (at, event) in left().filter(|(_, event)| event.begin < first_end) {
            if let Some(next) = state.after(event.command, event.found) {
                let configuration = (done | 1 << at, next);
                if seen.insert(configuration.clone()) {
                    open.push(configuration);
                }
            }
        }
    }
    false
}

/// What a thread does and notes.
struct Client<'a> {
    device: &'a Device,
    space: NamespaceId,
    clock: &'a AtomicU64,
    rng: Rng,
    /// Namespaces that it has heard of.
    known: Vec<NamespaceId>,
    next_value: u64,
    events: Vec<Event>,
}

impl<'a> Client<'a> {
    fn new(device: &'a Device, clock: &'a AtomicU64, (seed, thread): (u64, u64), space: NamespaceId) -> Client<'a> {
        let rng = Rng::new(seed << 8 | thread);
        Client { device, space, clock, rng, known: Vec::new(), next_value: thread * 1000, events: Vec::new() }
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value
    }

    fn draw(&mut self) -> Command {
        let (key, name) = (self.rng.below(KEYS as u64) as usize, self.rng.below(2) as usize);
        let id = self.known.last().copied();
        match (self.rng.below(16), id) {
            (0 | 1, _) => Command::Get(key),
            (2, _) => Command::Exists(key),
            (3, _) => Command::Put(key, self.value()),
            (4 | 5, _) => Command::PutIf(key, self.value(), false),
            (6, _) => Command::PutIf(key, self.value(), true),
            (7, _) => Command::PutBoth(key, self.value()),
            (8, _) => Command::Delete(key),
            (9, _) => Command::DeleteIfPresent(key),
            (10 | 11, _) => Command::Create(name),
            (12, Some(id)) => Command::DeleteSpace(id),
            (13, Some(id)) => Command::GetIn(id),
            (14, Some(id)) => Command::PutIn(id, self.value()),
            _ => Command::Lookup(name),
        }
    }

    /// One step, blocked or in a queue; false after the device has no power.
    fn step(&mut self, queue: Option<&mut AsyncQueue>) -> bool {
        if self.rng.below(16) == 0 {
            return self.list();
        }
        let command = self.draw();
        let begin = self.now();
        let result = match queue {
            Some(queue) => self.queued(queue, command),
            None => self.blocked(command),
        };
        let found = result.map(Some).unwrap_or_else(refusal);
        let end = if found.is_some() { self.now() } else { u64::MAX };
        if let Some(Found::Space(Some(id))) = found {
            self.known.push(id);
        }
        self.events.push(Event { command, begin, end, found });
        found.is_some()
    }

    /// A list is not of one moment: what it shows of each key is.
    fn list(&mut self) -> bool {
        let begin = self.now();
        let Ok(page) = self.device.list(self.space, None, 9) else { return true };
        let (end, keys) = (self.now(), page.keys.iter().filter_map(kaml::KeyBuf::as_u64).collect::<BTreeSet<_>>());
        self.events.extend((0..KEYS).map(|key| {
            let found = Some(Found::Is(keys.contains(&(key as u64))));
            Event { command: Command::Listed(key), begin, end, found }
        }));
        true
    }

    fn batch(&self, command: Command) -> Option<Batch> {
        let (mut batch, space) = (Batch::new(), self.space);
        match command {
            Command::Put(key, value) => batch.put(space, key as u64, &bytes(value)),
            Command::PutIf(key, value, true) => batch.put_if_present(space, key as u64, &bytes(value)),
            Command::PutIf(key, value, false) => batch.put_if_absent(space, key as u64, &bytes(value)),
            Command::PutBoth(key, value) => {
                batch.put(space, key as u64, &bytes(value));
                batch.put_if_absent(space, 1 - key as u64, &bytes(value))
            }
            Command::Delete(key) => batch.delete(space, key as u64),
            Command::DeleteIfPresent(key) => batch.delete_if_present(space, key as u64),
            Command::PutIn(id, value) => batch.put(id, 0u64, &bytes(value)),
            _ => return None,
        };
        Some(batch)
    }

    fn blocked(&self, command: Command) -> Result<Found, Error> {
        let value = |found: Option<Vec<u8>>| Found::Value(found.map(|value| number(&value)));
        if let Some(batch) = self.batch(command) {
            return match command {
                Command::PutIf(key, value, false) if value % 2 == 0 => {
                    self.device.put_if(self.space, key as u64, &bytes(value), Condition::IfAbsent)
                }
                _ => self.device.write(&batch),
            }
            .map(|()| Found::Done);
        }
        match command {
            Command::Get(key) => self.device.get(self.space, key as u64).map(value),
            Command::Exists(key) => self.device.exists(self.space, key as u64).map(Found::Is),
            Command::GetIn(id) => self.device.get(id, 0u64).map(value),
            Command::Create(name) => {
                self.device.create_namespace(NAMES[name], &keys()).map(|id| Found::Space(Some(id)))
            }
            Command::Lookup(name) => self.device.namespace(NAMES[name]).map(|id| Found::Space(Some(id))),
            Command::DeleteSpace(id) => self.device.delete_namespace(id).map(|()| Found::Done),
            _ => unreachable!("a Put"),
        }
    }

    fn queued(&self, queue: &mut AsyncQueue, command: Command) -> Result<Found, Error> {
        let is_get = match command {
            Command::Get(key) => queue.get(1, self.space, key as u64).map(|()| true)?,
            Command::GetIn(id) => queue.get(1, id, 0u64).map(|()| true)?,
            _ => match self.batch(command) {
                Some(batch) => queue.write(1, &batch).map(|()| false)?,
                None => return self.blocked(command),
            },
        };
        let mut answers = Vec::new();
        while answers.is_empty() {
            queue.poll(true, &mut answers);
        }
        let found = answers.remove(0).result?;
        Ok(if is_get { Found::Value(found.map(|value| number(&value))) } else { Found::Done })
    }
}

fn bytes(value: u64) -> [u8; 8] {
    value.to_le_bytes()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("as it was put"))
}

/// What an error reports about the device's content; nothing if it may have been executed.
fn refusal(error: Error) -> Option<Found> {
    match error {
        Error::Conflict { .. } | Error::NamespaceExists(_) => Some(Found::Refused),
        Error::UnknownNamespace(_) => Some(Found::Unknown),
        Error::UnknownNamespaceName(_) => Some(Found::Space(None)),
        _ => None,
    }
}

fn keys() -> NamespaceOptions {
    NamespaceOptions::records(KeyKind::U64)
}

/// What was met in all histories.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    answered: u64,
    refused: u64,
    unanswered: u64,
}

impl AddAssign for Met {
    fn add_assign(&mut self, other: Met) {
        self.answered += other.answered;
        self.refused += other.refused;
        self.unanswered += other.unanswered;
    }
}

/// Threads on a device until they are done, or until power fails; then what it has is read. Everything that was seen.
fn history(seed: u64, with_cut: bool) -> Vec<Event> {
    let Scenario { geometry, options, .. } = Scenario::small(Small::Puts, seed);
    let flash = SimMedium::new(Geometry { blocks_per_die: 29, ..geometry }, options).unwrap();
    Core::format(&flash).unwrap();
    let device = device_on(&flash);
    let space = device.create_namespace("n", &keys()).unwrap();
    let clock = AtomicU64::new(1);
    let mut clients: Vec<Client<'_>> =
        (0..THREADS).map(|thread| Client::new(&device, &clock, (seed, thread), space)).collect();
    if with_cut {
        flash.cut_after(1 + clients[0].rng.below(60));
    }
    shuttle::thread::scope(|scope| {
        for (thread, client) in clients.iter_mut().enumerate() {
            scope.spawn(move || {
                let mut queue = (thread == 0).then(|| client.device.queue(4));
                let _is_over = (0..STEPS).find(|_| !client.step(queue.as_mut()));
            });
        }
    });
    let mut events: Vec<Event> = clients.iter_mut().flat_map(|client| std::mem::take(&mut client.events)).collect();
    drop(clients);
    let device = if with_cut {
        drop(device);
        if !flash.is_cut() {
            flash.cut(seed);
        }
        flash.power_on();
        device_on(&flash)
    } else {
        device
    };
    let mut last = Client::new(&device, &clock, (seed, THREADS), space);
    let looks = (0..KEYS).map(Command::Get).chain((0..NAMES.len()).map(Command::Lookup));
    for command in looks {
        let begin = last.now();
        let found = last.blocked(command).map(Some).unwrap_or_else(refusal);
        last.events.push(Event { command, begin, end: last.now(), found });
    }
    events.append(&mut last.events);
    events
}

/// Goal:   whatever threads saw can have happened one command after the other, each while it was in progress; after a power cut what was
///         returned is true, and other commands have happened whole or not at all.
/// Method: for each seed an interleaving of threads with records, conditions and namespaces, some of them in a queue; in two of three
///         until power fails at a random operation of the flash. Histories are searched for an order.
#[test]
fn histories_have_an_order() {
    let met = explore(300, |seed| {
        let events = history(seed, seed % 3 != 0);
        assert!(is_linearizable(&events), "no order explains this history: {events:#?}");
        let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count() as u64;
        Met {
            answered: count(|event| event.found.is_some()),
            refused: count(|event| matches!(event.found, Some(Found::Refused | Found::Unknown))),
            unanswered: count(|event| event.found.is_none()),
        }
    });
    if let Some(met) = met {
        assert!(met.answered > 4000 && met.refused > 400 && met.unanswered > 100, "{met:?}");
    }
}

/// Goal:   the search finds what cannot have happened, and accepts what can.
/// Method: short histories: a refusal by a Put that a crash took back, a Get that sees nothing after it, a name that was taken and is not;
///         the same where the Put came through, or is in progress.
#[test]
fn the_search_tells_right_from_wrong() {
    let event = |command, begin, end, found| Event { command, begin, end, found };
    let put = |found| event(Command::Put(0, 1), 1, if found == None { u64::MAX } else { 4 }, found);
    let refused = event(Command::PutIf(0, 2, false), 2, 3, Some(Found::Refused));
    let get = |begin, value| event(Command::Get(0), begin, begin + 1, Some(Found::Value(value)));
    assert!(!is_linearizable(&[put(None), refused, get(8, None)]), "lost after it was reported");
    assert!(is_linearizable(&[put(None), refused, get(8, Some(1))]));
    assert!(!is_linearizable(&[put(Some(Found::Done)), refused, get(8, None)]));
    assert!(!is_linearizable(&[put(Some(Found::Done)), refused, get(4, None), get(8, Some(1))]));
    assert!(is_linearizable(&[put(Some(Found::Done)), get(2, None), get(8, Some(1))]));
    let create = event(Command::Create(0), 1, u64::MAX, None);
    let taken = event(Command::Create(0), 2, 3, Some(Found::Refused));
    let look = |found| event(Command::Lookup(0), 8, 9, Some(Found::Space(found)));
    assert!(!is_linearizable(&[create, taken, look(None)]));
    assert!(is_linearizable(&[create, taken, look(Some(7))]));
    let both = event(Command::PutBoth(0, 5), 1, 2, Some(Found::Done));
    let other = event(Command::Get(1), 3, 4, Some(Found::Value(None)));
    assert!(!is_linearizable(&[both, get(5, Some(5)), other]), "half of a batch");
}
