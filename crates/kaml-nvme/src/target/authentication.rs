//! Queues that have to be authenticated before they do anything.
//!
//! Lives here:       which queues wait for it and for how long, Authentication Send and Receive, what becomes of a queue afterwards.
//! Lives elsewhere:  the protocol (`auth`), which host has which secret (`access`), Connect (`fabrics`), long computations (`exponents`).
//! Implements:       spec:NVMe-Base "Fabrics: In-band authentication"; docs/nvme.md "Who may connect".
//!
//! A queue of a host that has a secret gets a role with its controller only after it was authenticated; before, there is not even a controller.
//! So nothing that an unknown host does is seen by other parts of the target. At most [`PENDING_MAX`] queues wait: the one that has waited
//! longest makes room for another one.

use super::core::{NewQueue, Origin, Outcome, Role, Target};
use super::exponents::Exponents;
use super::fabrics::Admission;
use super::request::CAPSULE_DATA_BYTES;
use crate::auth::{Draw, Finished, Parties, Received, Sent, Verifier};
use crate::wire::auth::Carrier;
use crate::wire::auth::MESSAGE_BYTES_MAX;
use crate::wire::command::Command;
use crate::wire::status::Status;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Queues that may wait for authentication at a time.
const PENDING_MAX: usize = 128;
/// Entries of a queue that waits: hosts send one command after the other.
const PENDING_ENTRIES: usize = 2;
/// After this time a host that is connected can begin again, whatever became of its last attempt (spec: without a keep-alive time-out).
const TRANSACTION_MAX: Duration = Duration::from_secs(120);

/// A queue that can be authenticated.
struct Exchange {
    verifier: Verifier,
    parties: Arc<Parties>,
    /// What the queue becomes; nothing if it is that already, and its host authenticates it again.
    awaited: Option<Admission>,
    /// A Receive that waits for a computation, and its room.
    receive: Option<(Origin, usize)>,
    /// When the last transaction began.
    began: Instant,
    /// As long as it exists, computations for it are worth doing.
    wanted: Arc<()>,
}

/// See the module.
pub(crate) struct Authentication {
    exchanges: BTreeMap<u64, Exchange>,
    /// Links whose queues wait, the oldest first: links are numbered in their order.
    pending: BTreeSet<u64>,
    exponents: Exponents,
    /// What was hashed with the last challenge.
    sequence: u32,
    finished: Vec<(u64, Finished)>,
}

impl Authentication {
    pub(crate) fn new() -> std::io::Result<Authentication> {
        let mut sequence = [0; 4];
        getrandom::fill(&mut sequence)?;
        Ok(Authentication {
            exchanges: BTreeMap::new(),
            pending: BTreeSet::new(),
            exponents: Exponents::new()?,
            sequence: u32::from_le_bytes(sequence),
            finished: Vec::new(),
        })
    }

    /// What becomes readable when a computation is done.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.exponents.fd()
    }

    /// Whether a link's queue waits for authentication.
    pub(crate) fn is_pending(&self, link: u64) -> bool {
        self.pending.contains(&link)
    }

    /// Whether a controller number is promised to a queue that waits.
    pub(crate) fn has_promised(&self, id: u16) -> bool {
        self.awaited().any(|awaited| awaited.id == id)
    }

    fn awaited(&self) -> impl Iterator<Item = &Admission> {
        self.pending.iter().filter_map(|link| self.exchanges.get(link)?.awaited.as_ref())
    }

    /// A link is gone.
    pub(crate) fn on_disconnect(&mut self, link: u64) {
        self.exchanges.remove(&link);
        self.pending.remove(&link);
    }

    /// A Receive of a link that is not to complete any more.
    pub(crate) fn forget_receive(&mut self, link: u64) -> Option<Origin> {
        self.exchanges.get_mut(&link)?.receive.take().map(|(origin, _)| origin)
    }
}

/// Random bytes of the system.
pub(crate) fn draw() -> std::io::Result<Draw> {
    let (mut challenge, mut exponent) = (Zeroizing::new([0; 64]), Zeroizing::new([0; _]));
    getrandom::fill(&mut *challenge)?;
    getrandom::fill(&mut *exponent)?;
    Ok(Draw { challenge, exponent })
}

impl Target {
    /// Puts a queue off until its host has authenticated it. Returns what the connection is meanwhile.
    pub(crate) fn await_authentication(
        &mut self,
        link: u64,
        admission: Admission,
        parties: Arc<Parties>,
        now: Instant,
    ) -> NewQueue {
        if self.authentication.pending.len() >= PENDING_MAX
            && let Some(oldest) = self.authentication.pending.first().copied()
        {
            tracing::warn!(link = oldest, "closing a connection: it has not authenticated itself, and others wait");
            self.authentication.on_disconnect(oldest);
            self.roles.insert(oldest, Role::Nobody);
            self.to_close.push(oldest);
        }
        let flow_control = admission.flow_control;
        let exchange = Exchange {
            verifier: Verifier::new(),
            parties,
            awaited: Some(admission),
            receive: None,
            began: now,
            wanted: Arc::default(),
        };
        self.authentication.exchanges.insert(link, exchange);
        self.authentication.pending.insert(link);
        self.roles.insert(link, Role::Pending);
        NewQueue { entries: PENDING_ENTRIES, flow_control, is_authenticated: false }
    }

    /// Which hosts may connect has changed: queues that wait begin with another connection if their secrets are others; of queues that are
    /// authenticated the new ones count from now on.
    pub(crate) fn renew_authentication(&mut self) {
        let links: Vec<u64> = self.authentication.exchanges.keys().copied().collect();
        for link in links {
            let Some(exchange) = self.authentication.exchanges.get(&link) else { continue };
            let (is_pending, parties) = (exchange.awaited.is_some(), self.parties(&exchange.parties.host));
            let is_same = parties.as_ref().is_some_and(|now| **now == *exchange.parties);
            match parties {
                Some(parties) if !is_pending || is_same => {
                    if let Some(exchange) = self.authentication.exchanges.get_mut(&link) {
                        exchange.parties = parties;
                    }
                }
                _ => {
                    self.authentication.on_disconnect(link);
                    if is_pending {
                        self.roles.insert(link, Role::Nobody);
                        self.to_close.push(link);
                    }
                }
            }
        }
    }

    /// Authentication Send.
    pub(crate) fn authentication_send(&mut self, link: u64, command: &Command, data: &[u8], now: Instant) -> Outcome {
        let Some(exchange) = self.authentication.exchanges.get_mut(&link) else { return Status::INVALID_OPCODE.into() };
        if Carrier::length_of(command) != Some(data.len()) || data.len() > MESSAGE_BYTES_MAX {
            return Status::INVALID_FIELD.into();
        }
        let Ok(draw) = draw() else {
            tracing::error!("the system has no random bytes");
            return Status::INTERNAL.into();
        };
        if now.duration_since(exchange.began) > TRANSACTION_MAX && !exchange.verifier.is_idle() {
            exchange.verifier = Verifier::new();
        }
        if exchange.verifier.is_idle() {
            exchange.began = now;
        }
        self.authentication.sequence = self.authentication.sequence.wrapping_add(1).max(1);
        let sequence = self.authentication.sequence;
        let outcome = match exchange.verifier.send(data, &exchange.parties, draw, sequence) {
            Sent::Taken => Status::SUCCESS.into(),
            Sent::Work(work) if work.is_long() => {
                let transaction = work.transaction();
                if !self.authentication.exponents.start(link, *work, &exchange.wanted) {
                    tracing::warn!(link, host = ?exchange.parties.host, "refused: too many hosts are authenticating");
                    exchange.verifier.give_up(transaction);
                }
                Status::SUCCESS.into()
            }
            Sent::Work(work) => {
                exchange.verifier.finish(work.run());
                Status::SUCCESS.into()
            }
            Sent::Authenticated => self.authenticated(link, Vec::new()),
            Sent::HostRefuses(reason) => {
                let reason = reason.map_or("no reason that is known".to_owned(), |reason| reason.to_string());
                tracing::warn!(link, host = ?exchange.parties.host, reason, "the host does not accept this controller");
                self.refused(link, Vec::new())
            }
        };
        self.complete_receive(link);
        outcome
    }

    /// Authentication Receive.
    pub(crate) fn authentication_receive(&mut self, origin: Origin, command: &Command) -> Outcome {
        let Some(exchange) = self.authentication.exchanges.get_mut(&origin.link) else {
            return Status::INVALID_OPCODE.into();
        };
        let Some(room) = Carrier::length_of(command).filter(|room| *room <= CAPSULE_DATA_BYTES) else {
            return Status::INVALID_FIELD.into();
        };
        if exchange.receive.is_some() {
            return Status::COMMAND_SEQUENCE.into();
        }
        match exchange.verifier.receive(room) {
            Received::NotYet => {
                exchange.receive = Some((origin, room));
                Outcome::Later
            }
            received => self.received(origin.link, received, room),
        }
    }

    fn received(&mut self, link: u64, received: Received, room: usize) -> Outcome {
        let padded = |mut message: Vec<u8>| {
            message.resize(room, 0);
            message
        };
        match received {
            Received::NotYet | Received::OutOfOrder => Status::COMMAND_SEQUENCE.into(),
            Received::TooLong => Status::INVALID_FIELD.into(),
            Received::Message(message) => Outcome::Done(Status::SUCCESS, 0, padded(message)),
            Received::Authenticated(message) => self.authenticated(link, padded(message)),
            Received::Refused(message, reason) => {
                let exchange = self.authentication.exchanges.get(&link);
                let host = exchange.map(|exchange| exchange.parties.host.as_str());
                let peer = self.peers.get(&link);
                tracing::warn!(link, ?host, ?peer, %reason, "refused: the host could not be authenticated");
                self.refused(link, padded(message))
            }
        }
    }

    /// The host has proved what it had to: its queue gets its role.
    fn authenticated(&mut self, link: u64, message: Vec<u8>) -> Outcome {
        let Some(exchange) = self.authentication.exchanges.get_mut(&link) else { return Status::INTERNAL.into() };
        self.authentication.pending.remove(&link);
        let (hash, group) = exchange.verifier.agreed().unzip();
        let host = exchange.parties.host.clone();
        let Some(admission) = exchange.awaited.take() else {
            tracing::info!(link, ?host, ?hash, ?group, "a host has authenticated a queue again");
            return Outcome::Done(Status::SUCCESS, 0, message);
        };
        let (controller, queue) = (admission.id, admission.queue);
        match self.enter(link, admission) {
            Ok(entered) => {
                if queue == 0 {
                    tracing::info!(link, ?host, controller, ?hash, ?group, "a host has authenticated itself");
                } else {
                    tracing::debug!(link, ?host, controller, queue, ?hash, ?group, "a host has authenticated a queue");
                }
                Outcome::Connected(entered, 0, message)
            }
            Err((status, _)) => {
                tracing::warn!(link, ?host, controller, queue, %status, "an authenticated queue cannot be connected");
                self.roles.insert(link, Role::Nobody);
                Outcome::Ends(message)
            }
        }
    }

    /// Authentication has failed. A queue that was authenticated before remains so.
    fn refused(&mut self, link: u64, message: Vec<u8>) -> Outcome {
        if !self.authentication.is_pending(link) {
            return Outcome::Done(Status::SUCCESS, 0, message);
        }
        self.authentication.on_disconnect(link);
        self.roles.insert(link, Role::Nobody);
        Outcome::Ends(message)
    }

    /// Completes a Receive that has waited, if it can be now.
    fn complete_receive(&mut self, link: u64) {
        let Some(exchange) = self.authentication.exchanges.get_mut(&link) else { return };
        let Some((origin, room)) = exchange.receive else { return };
        match exchange.verifier.receive(room) {
            Received::NotYet => {}
            received => {
                exchange.receive = None;
                let outcome = self.received(link, received, room);
                self.replies.extend(outcome.into_reply(origin));
            }
        }
    }

    /// Continues with what was computed.
    pub(crate) fn poll_authentication(&mut self) {
        let mut finished = std::mem::take(&mut self.authentication.finished);
        self.authentication.exponents.take(&mut finished);
        for (link, finished) in finished.drain(..) {
            if let Some(exchange) = self.authentication.exchanges.get_mut(&link) {
                exchange.verifier.finish(finished);
                self.complete_receive(link);
            }
        }
        self.authentication.finished = finished;
    }
}
