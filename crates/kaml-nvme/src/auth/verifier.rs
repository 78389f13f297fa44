//! The controller's side of DH-HMAC-CHAP: it challenges a host, and responds to the host's challenge.
//!
//! Lives here:       which message is due when, what each is checked for.
//! Lives elsewhere:  the messages (`wire::auth`), the host's side (`prover`), what becomes of the queue (`target::authentication`).
//!
//! ```text
//!  Idle ──Negotiate──▶ Preparing ──work──▶ Challenging ──Receive──▶ Awaiting ──Reply──▶ Checking ──work──▶ Accepting
//!  Accepting ──Receive──▶ Idle, or AwaitingHost ──Success2──▶ Idle        anything that is not due ──▶ Refusing ──Receive──▶ Idle
//! ```
//!
//! The host is authenticated with the last Receive, or with Success2 if it has challenged the controller. Exponentiations are [`Work`]
//! that another thread can do; with the null group there is none.

use super::group::EXPONENT_BYTES_MAX;
use super::response::{By, Question};
use super::{Group, Hash, KeyPair, Secret, Strength};
use crate::wire::auth::{Challenge, FromController, FromHost, Negotiate, Reason, Reply, transaction_of};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Between whom, and with what.
#[derive(PartialEq, Eq)]
pub(crate) struct Parties {
    pub(crate) host: String,
    pub(crate) subsystem: String,
    pub(crate) secret: Secret,
    /// Of the controller, if it can prove to the host that it is the right one.
    pub(crate) controller_secret: Option<Secret>,
    pub(crate) strength: Strength,
}

/// What has to be random.
pub(crate) struct Draw {
    pub(crate) challenge: Zeroizing<[u8; 64]>,
    pub(crate) exponent: Zeroizing<[u8; EXPONENT_BYTES_MAX]>,
}

/// What both ends have agreed on, and what the host gets.
struct Terms {
    transaction: u16,
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
    /// None with the null group.
    pair: Option<KeyPair>,
}

enum State {
    Idle,
    Preparing,
    Challenging(Terms),
    Awaiting(Terms),
    Checking,
    Accepting { transaction: u16, hash: Hash, response: Option<Vec<u8>> },
    AwaitingHost { transaction: u16 },
    Refusing { transaction: u16, reason: Reason },
}

/// What a message of the host has come to.
pub(crate) enum Sent {
    /// It was taken.
    Taken,
    /// It was taken, and this is to be done for it.
    Work(Box<Work>),
    /// The host has accepted the controller: both are authenticated.
    Authenticated,
    /// The host has refused the controller.
    HostRefuses(Option<Reason>),
}

/// What the host receives.
pub(crate) enum Received {
    /// Work has to be done first.
    NotYet,
    /// Nothing is due.
    OutOfOrder,
    /// The host has too little room.
    TooLong,
    /// This; more messages follow.
    Message(Vec<u8>),
    /// This, and the host is authenticated.
    Authenticated(Vec<u8>),
    /// This, and the host is refused.
    Refused(Vec<u8>, Reason),
}

/// See the module.
pub(crate) struct Verifier {
    state: State,
    /// How many times work was handed out: what finishes must be the last one.
    work_count: u64,
    /// What was agreed on last, for the log.
    agreed: Option<(Hash, Group)>,
}

/// Something that takes long.
pub(crate) struct Work {
    number: u64,
    parties: Arc<Parties>,
    task: Task,
}

enum Task {
    Prepare(Terms, Draw),
    Check(Terms, Reply),
}

/// What work came to.
pub(crate) struct Finished {
    number: u64,
    state: State,
}

impl Verifier {
    /// Nothing has begun.
    pub(crate) fn new() -> Verifier {
        Verifier { state: State::Idle, work_count: 0, agreed: None }
    }

    /// The hash function and the group of the last transaction.
    pub(crate) fn agreed(&self) -> Option<(Hash, Group)> {
        self.agreed
    }

    /// Whether no transaction is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// A message of the host. `sequence` is hashed with a challenge; it is never 0 nor used twice.
    pub(crate) fn send(&mut self, message: &[u8], parties: &Arc<Parties>, draw: Draw, sequence: u32) -> Sent {
        if matches!(self.state, State::Refusing { .. }) {
            return Sent::Taken; // the first reason counts
        }
        let due = std::mem::replace(&mut self.state, State::Idle);
        let transaction = due.transaction().unwrap_or_else(|| transaction_of(message));
        let taken = FromHost::read(message).and_then(|message| self.take(due, message, parties, draw, sequence));
        let (state, sent) = taken.unwrap_or_else(|reason| (State::Refusing { transaction, reason }, Sent::Taken));
        self.state = state;
        sent
    }

    fn take(
        &mut self,
        due: State,
        message: FromHost,
        parties: &Arc<Parties>,
        draw: Draw,
        sequence: u32,
    ) -> Result<(State, Sent), Reason> {
        match (due, message) {
            (State::Idle, FromHost::Negotiate(offer)) => {
                let terms = agree(&offer, parties.strength, &draw, sequence)?;
                self.agreed = Some((terms.hash, terms.group));
                Ok((State::Preparing, self.work(parties, Task::Prepare(terms, draw))))
            }
            (State::Awaiting(terms), FromHost::Reply(reply)) => {
                check_form(&terms, &reply)?;
                Ok((State::Checking, self.work(parties, Task::Check(terms, reply))))
            }
            (State::AwaitingHost { transaction }, FromHost::Success2 { transaction: same }) if transaction == same => {
                Ok((State::Idle, Sent::Authenticated))
            }
            (State::AwaitingHost { .. }, FromHost::Success2 { .. }) => Err(Reason::Payload),
            (State::Awaiting(_) | State::AwaitingHost { .. }, FromHost::Failure2 { reason, .. }) => {
                Ok((State::Idle, Sent::HostRefuses(reason)))
            }
            _ => Err(Reason::Message),
        }
    }

    fn work(&mut self, parties: &Arc<Parties>, task: Task) -> Sent {
        self.work_count += 1;
        Sent::Work(Box::new(Work { number: self.work_count, parties: Arc::clone(parties), task }))
    }

    /// Work is done; of work that nobody waits for any more nothing is taken.
    pub(crate) fn finish(&mut self, finished: Finished) {
        let is_waiting = matches!(self.state, State::Preparing | State::Checking);
        if is_waiting && finished.number == self.work_count {
            self.state = finished.state;
        }
    }

    /// Work cannot be done: the host is refused.
    pub(crate) fn give_up(&mut self, transaction: u16) {
        self.state = State::Refusing { transaction, reason: Reason::Failed };
    }

    /// What the host receives, if it has room for so many bytes.
    pub(crate) fn receive(&mut self, room: usize) -> Received {
        let message = match &self.state {
            State::Preparing | State::Checking => return Received::NotYet,
            State::Idle | State::Awaiting(_) | State::AwaitingHost { .. } => return Received::OutOfOrder,
            State::Challenging(terms) => FromController::Challenge(terms.challenge()),
            State::Accepting { transaction, hash, response } => FromController::Success1 {
                transaction: *transaction,
                hash_bytes: hash.bytes() as u8,
                response: response.clone(),
            },
            State::Refusing { transaction, reason } => {
                FromController::Failure1 { transaction: *transaction, reason: Some(*reason) }
            }
        };
        let message = message.write();
        if message.len() > room {
            return Received::TooLong;
        }
        let (state, received) = match std::mem::replace(&mut self.state, State::Idle) {
            State::Challenging(terms) => (State::Awaiting(terms), Received::Message(message)),
            State::Accepting { response: None, .. } => (State::Idle, Received::Authenticated(message)),
            State::Accepting { transaction, .. } => (State::AwaitingHost { transaction }, Received::Message(message)),
            State::Refusing { reason, .. } => (State::Idle, Received::Refused(message, reason)),
            other => (other, Received::OutOfOrder),
        };
        self.state = state;
        received
    }
}

impl State {
    fn transaction(&self) -> Option<u16> {
        match self {
            State::Idle | State::Preparing | State::Checking => None,
            State::Challenging(terms) | State::Awaiting(terms) => Some(terms.transaction),
            State::Accepting { transaction, .. }
            | State::AwaitingHost { transaction }
            | State::Refusing { transaction, .. } => Some(*transaction),
        }
    }
}

impl Terms {
    fn challenge(&self) -> Challenge {
        Challenge {
            transaction: self.transaction,
            hash: self.hash.id(),
            group: self.group.id(),
            sequence: self.sequence,
            challenge: self.challenge.clone(),
            public: self.pair.as_ref().map_or(Vec::new(), |pair| pair.public().to_vec()),
        }
    }
}

/// The strongest hash that both ends allow, because it costs nothing, and the weakest group but the null one, because strong ones take
/// long: an operator that needs another one sets the strength.
fn agree(offer: &Negotiate, strength: Strength, draw: &Draw, sequence: u32) -> Result<Terms, Reason> {
    if !offer.is_known {
        return Err(Reason::Protocol);
    }
    if offer.secure_channel != 0 {
        return Err(Reason::SecureChannel);
    }
    let hashes = offer.hashes.iter().filter_map(|id| Hash::from_id(*id));
    let hash = hashes.filter(|hash| *hash >= strength.hash).max().ok_or(Reason::Hash)?;
    let groups = offer.groups.iter().filter_map(|id| Group::from_id(*id));
    let groups = groups.filter(|group| *group >= strength.group);
    let group = groups.min_by_key(|group| (*group == Group::Null, *group)).ok_or(Reason::Group)?;
    let challenge = draw.challenge[..hash.bytes()].to_vec();
    Ok(Terms { transaction: offer.transaction, hash, group, sequence, challenge, pair: None })
}

/// What can be seen of a reply without secrets.
fn check_form(terms: &Terms, reply: &Reply) -> Result<(), Reason> {
    let is_right = reply.transaction == terms.transaction
        && reply.response.len() == terms.hash.bytes()
        && reply.public.len() == terms.group.public_bytes();
    if is_right { Ok(()) } else { Err(Reason::Payload) }
}

impl Work {
    /// Whether it takes so long that an event loop must not do it.
    pub(crate) fn is_long(&self) -> bool {
        let (Task::Prepare(terms, _) | Task::Check(terms, _)) = &self.task;
        terms.group != Group::Null
    }

    /// The transaction that it is for.
    pub(crate) fn transaction(&self) -> u16 {
        let (Task::Prepare(terms, _) | Task::Check(terms, _)) = &self.task;
        terms.transaction
    }

    /// Does it.
    pub(crate) fn run(self) -> Finished {
        let Work { number, parties, task } = self;
        let state = match task {
            Task::Prepare(terms, draw) => State::Challenging(prepare(terms, &draw)),
            Task::Check(terms, reply) => check(&parties, &terms, reply)
                .unwrap_or_else(|reason| State::Refusing { transaction: terms.transaction, reason }),
        };
        Finished { number, state }
    }
}

fn prepare(terms: Terms, draw: &Draw) -> Terms {
    let pair = (terms.group != Group::Null).then(|| KeyPair::new(terms.group, &draw.exponent));
    Terms { pair, ..terms }
}

/// Verifies a reply, and responds to the challenge in it.
fn check(parties: &Parties, terms: &Terms, reply: Reply) -> Result<State, Reason> {
    let shared = match &terms.pair {
        None => None,
        Some(pair) => Some(pair.shared(&reply.public).ok_or(Reason::Payload)?),
    };
    let question = |challenge, sequence| Question {
        hash: terms.hash,
        challenge,
        sequence,
        transaction: terms.transaction,
        shared: shared.as_ref().map(|shared| shared.as_slice()),
        host: &parties.host,
        subsystem: &parties.subsystem,
    };
    let host = question(&terms.challenge, terms.sequence);
    if !host.accepts(By::Host, &parties.secret, &reply.response) {
        return Err(Reason::Failed);
    }
    let response = match &reply.challenge {
        None => None,
        Some((sequence, challenge)) => {
            let secret = parties.controller_secret.as_ref().ok_or(Reason::Failed)?;
            Some(question(challenge, *sequence).respond(By::Controller, secret))
        }
    };
    Ok(State::Accepting { transaction: terms.transaction, hash: terms.hash, response })
}

#[cfg(test)]
#[path = "verifier_tests.rs"]
mod tests;
