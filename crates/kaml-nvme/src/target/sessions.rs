//! Commands that take effect once, however often they are sent.
//!
//! Lives here:       sessions of hosts, the outcomes of their last numbered commands, how much is remembered.
//! Lives elsewhere:  where a command has its number (`wire::session`), when outcomes are recorded (`core`).
//!
//! A session outlives its connections: a host that lost one joins the session again by the next one. Nothing of this outlives the target.

use super::core::Origin;
use crate::wire::reservations::HostId;
use crate::wire::status::Status;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{BuildHasher, RandomState};

/// Sessions that are remembered: more than there can be controllers, so one without any can always be dropped.
const SESSIONS_MAX: usize = 512;
/// Outcomes that are remembered of a session: more than an honest host has commands in flight.
const OUTCOMES_MAX: u32 = 512;

/// A numbered command of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbered {
    pub(crate) session: u64,
    pub(crate) number: u32,
}

/// What a command came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) status: Status,
    pub(crate) result: u64,
    pub(crate) data: Vec<u8>,
}

/// What to do with a numbered command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Execute it, and record its outcome.
    New,
    /// It is in progress; the outcome will be sent to this sender, too.
    UnderWay,
    /// It was executed.
    Over(Remembered),
    /// It is older than what is remembered.
    Forgotten,
}

enum State {
    /// Other commands that wait for its outcome.
    UnderWay(Vec<Origin>),
    Over(Remembered),
}

struct Session {
    name: (HostId, u128),
    controllers: usize,
    /// When it was last joined, as a count.
    joined: u64,
    newest: u32,
    commands: BTreeMap<u32, State>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Sessions {
    /// By an identifier drawn at random, which distinguishes a session from others of the same name, of this target and others.
    sessions: BTreeMap<u64, Session>,
    random: RandomState,
    joined: u64,
}

/// How far a number is after another one; numbers begin again after the largest one.
fn age(number: u32, newest: u32) -> i32 {
    newest.wrapping_sub(number) as i32
}

impl Sessions {
    /// A controller of a host begins a session, or joins it. The identifier is another one if anything may have been forgotten.
    pub(crate) fn join(&mut self, host: HostId, name: u128) -> Option<u64> {
        self.joined += 1;
        let known = self.sessions.iter_mut().find(|(_, session)| session.name == (host, name));
        if let Some((id, session)) = known {
            (session.controllers, session.joined) = (session.controllers + 1, self.joined);
            return Some(*id);
        }
        if self.sessions.len() >= SESSIONS_MAX {
            let idle = self.sessions.iter().filter(|(_, session)| session.controllers == 0);
            let oldest = *idle.min_by_key(|(_, session)| session.joined)?.0;
            self.sessions.remove(&oldest);
        }
        let id = self.random.hash_one(self.joined);
        let session =
            Session { name: (host, name), controllers: 1, joined: self.joined, newest: 0, commands: BTreeMap::new() };
        self.sessions.insert(id, session);
        Some(id)
    }

    /// A controller that had joined a session ends.
    pub(crate) fn leave(&mut self, id: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.controllers -= 1;
        }
    }

    /// A numbered command has come.
    pub(crate) fn admit(&mut self, command: Numbered, origin: Origin) -> Admission {
        let Some(session) = self.sessions.get_mut(&command.session) else { return Admission::Forgotten };
        let newest = if session.commands.is_empty() { command.number } else { session.newest };
        match session.commands.entry(command.number) {
            Entry::Occupied(mut known) => match known.get_mut() {
                State::UnderWay(waiting) => {
                    waiting.push(origin);
                    Admission::UnderWay
                }
                State::Over(outcome) => Admission::Over(outcome.clone()),
            },
            Entry::Vacant(_) if age(command.number, newest) >= OUTCOMES_MAX as i32 => Admission::Forgotten,
            Entry::Vacant(place) => {
                place.insert(State::UnderWay(Vec::new()));
                session.newest = if age(command.number, newest) < 0 { command.number } else { newest };
                session.trim();
                Admission::New
            }
        }
    }

    /// A numbered command is over; returns the other commands that wait for its outcome.
    pub(crate) fn record(&mut self, command: Numbered, outcome: Remembered) -> Vec<Origin> {
        let session = self.sessions.get_mut(&command.session);
        match session.and_then(|session| session.commands.insert(command.number, State::Over(outcome))) {
            Some(State::UnderWay(waiting)) => waiting,
            Some(State::Over(_)) | None => Vec::new(),
        }
    }

    /// Nobody after a link waits any more.
    pub(crate) fn leave_behind(&mut self, link: u64, session: u64) {
        let commands = self.sessions.get_mut(&session).into_iter().flat_map(|session| session.commands.values_mut());
        for state in commands {
            if let State::UnderWay(waiting) = state {
                waiting.retain(|origin| origin.link != link);
            }
        }
    }
}

impl Session {
    /// Forgets outcomes that are too old, when there are many.
    fn trim(&mut self) {
        if self.commands.len() >= 2 * OUTCOMES_MAX as usize {
            let newest = self.newest;
            self.commands.retain(|number, state| {
                matches!(state, State::UnderWay(_)) || age(*number, newest) < OUTCOMES_MAX as i32
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::command::{Command, kv};

    fn origin(link: u64) -> Origin {
        Origin::of(link, &Command::new(kv::PUT, 1), 0)
    }

    fn outcome(result: u64) -> Remembered {
        Remembered { status: Status::SUCCESS, result, data: vec![7] }
    }

    /// Goal:   a repeated command gets the outcome of the first one, also while that is in progress; an old one is refused.
    /// Method: numbers around the largest one, in order and not; as many as are remembered and one more.
    #[test]
    fn outcomes_are_remembered() {
        for first in [1, u32::MAX - 5, u32::MAX - OUTCOMES_MAX] {
            let mut sessions = Sessions::default();
            let session = sessions.join([1; 16], 5).unwrap();
            let numbered = |number| Numbered { session, number: first.wrapping_add(number) };
            assert_eq!(sessions.admit(numbered(1), origin(1)), Admission::New);
            assert_eq!(sessions.admit(numbered(0), origin(1)), Admission::New, "it overtook the other one");
            assert_eq!(sessions.admit(numbered(0), origin(2)), Admission::UnderWay);
            assert_eq!(sessions.admit(numbered(0), origin(3)), Admission::UnderWay);
            sessions.leave_behind(3, session);
            let waiting = sessions.record(numbered(0), outcome(8));
            assert_eq!(waiting.iter().map(|origin| origin.link).collect::<Vec<_>>(), [2]);
            assert_eq!(sessions.admit(numbered(0), origin(4)), Admission::Over(outcome(8)));
            for number in 2..4 * OUTCOMES_MAX {
                assert_eq!(sessions.admit(numbered(number), origin(1)), Admission::New);
                assert!(sessions.record(numbered(number), outcome(number.into())).is_empty());
            }
            let last = 4 * OUTCOMES_MAX - 1;
            for number in last + 1 - OUTCOMES_MAX..=last {
                assert_eq!(sessions.admit(numbered(number), origin(1)), Admission::Over(outcome(number.into())));
            }
            assert_eq!(sessions.admit(numbered(0), origin(1)), Admission::Forgotten);
            assert_eq!(sessions.admit(numbered(1), origin(5)), Admission::UnderWay, "it is not over yet");
            assert!(sessions.sessions[&session].commands.len() <= 2 * OUTCOMES_MAX as usize);
        }
    }

    /// Goal:   sessions are bounded; a host can determine that its session was forgotten; hosts do not share sessions.
    /// Method: one more than the most, of which one has a controller; the first ones joined again.
    #[test]
    fn forgotten_sessions_have_other_identifiers() {
        let mut sessions = Sessions::default();
        let ids: Vec<u64> = (0..SESSIONS_MAX as u128).map(|name| sessions.join([1; 16], name).unwrap()).collect();
        assert_ne!(sessions.join([1; 16], 0), None, "it is known");
        assert_eq!(sessions.join([2; 16], 0), None, "all of them are in use");
        ids[1..].iter().for_each(|id| sessions.leave(*id));
        let other = sessions.join([2; 16], 0).unwrap();
        assert_ne!(other, ids[0]);
        assert_eq!(sessions.join([1; 16], 0), Some(ids[0]));
        assert_ne!(sessions.join([1; 16], 1), Some(ids[1]), "the oldest one was dropped");
        assert_eq!(sessions.sessions.len(), SESSIONS_MAX);
        assert_eq!(sessions.admit(Numbered { session: ids[1], number: 1 }, origin(1)), Admission::Forgotten);
    }
}
