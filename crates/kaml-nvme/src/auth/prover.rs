//! The host's side of DH-HMAC-CHAP: it responds to a controller's challenge, and challenges the controller.
//!
//! Lives here:       what the host sends in which order, what it checks.
//! Lives elsewhere:  the messages (`wire::auth`), the controller's side (`verifier`), sending and receiving (`host::authentication`).

use super::response::{By, Question};
use super::verifier::{Draw, Parties};
use super::{Group, Hash, KeyPair, Strength};
use crate::wire::auth::{Challenge, FromController, FromHost, Negotiate, Reason, Reply};
use std::mem::replace;
use zeroize::Zeroizing;

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send this, and receive a message.
    Exchange(Vec<u8>),
    /// Send this; the host is authenticated, and so is the controller.
    Finish(Vec<u8>),
    /// The host is authenticated.
    Done,
}

/// Why it ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The controller refuses the host.
    ByController(Option<Reason>),
    /// The host refuses the controller, which gets this message.
    ByHost(Reason, Vec<u8>),
}

enum State {
    Negotiating,
    /// What the controller has to respond to, if anything.
    Replied(Option<(Challenge, Zeroizing<Vec<u8>>)>, Hash),
    Over,
}

/// See the module. The secret of the controller, if there is one, is what it has to prove.
pub(crate) struct Prover<'a> {
    parties: &'a Parties,
    transaction: u16,
    draw: Draw,
    state: State,
}

impl<'a> Prover<'a> {
    /// Begins a transaction; returns its first message.
    pub(crate) fn begin(parties: &'a Parties, transaction: u16, draw: Draw) -> (Prover<'a>, Step) {
        let Strength { hash, group } = parties.strength;
        let offer = Negotiate {
            transaction,
            secure_channel: 0,
            is_known: true,
            hashes: Hash::ALL.into_iter().filter(|offered| *offered >= hash).map(Hash::id).collect(),
            groups: Group::ALL.into_iter().filter(|offered| *offered >= group).map(Group::id).collect(),
        };
        let prover = Prover { parties, transaction, draw, state: State::Negotiating };
        (prover, Step::Exchange(FromHost::Negotiate(offer).write()))
    }

    /// A message of the controller.
    pub(crate) fn receive(&mut self, message: &[u8]) -> Result<Step, Refusal> {
        let state = replace(&mut self.state, State::Over);
        let message = FromController::read(message).map_err(|reason| self.refuse(reason))?;
        match (state, message) {
            (_, FromController::Failure1 { reason, .. }) => Err(Refusal::ByController(reason)),
            (State::Negotiating, FromController::Challenge(challenge)) => {
                self.reply(challenge).map_err(|reason| self.refuse(reason))
            }
            (State::Replied(asked, hash), FromController::Success1 { transaction, response, .. }) => {
                self.conclude(asked, hash, transaction, response).map_err(|reason| self.refuse(reason))
            }
            _ => Err(self.refuse(Reason::Message)),
        }
    }

    fn refuse(&self, reason: Reason) -> Refusal {
        let message = FromHost::Failure2 { transaction: self.transaction, reason: Some(reason) };
        Refusal::ByHost(reason, message.write())
    }

    /// What the controller sends must be what was offered.
    fn terms(&self, challenge: &Challenge) -> Result<(Hash, Group), Reason> {
        if challenge.transaction != self.transaction {
            return Err(Reason::Payload);
        }
        let strength = self.parties.strength;
        let hash = Hash::from_id(challenge.hash).filter(|hash| *hash >= strength.hash).ok_or(Reason::Hash)?;
        let group = Group::from_id(challenge.group).filter(|group| *group >= strength.group).ok_or(Reason::Group)?;
        let fits = challenge.challenge.len() == hash.bytes() && challenge.public.len() == group.public_bytes();
        if fits { Ok((hash, group)) } else { Err(Reason::Payload) }
    }

    fn reply(&mut self, challenge: Challenge) -> Result<Step, Reason> {
        let (hash, group) = self.terms(&challenge)?;
        let pair = (group != Group::Null).then(|| KeyPair::new(group, &self.draw.exponent));
        let shared = match &pair {
            None => None,
            Some(pair) => Some(pair.shared(&challenge.public).ok_or(Reason::Payload)?),
        };
        let response = self.question(hash, &challenge, shared.as_ref()).respond(By::Host, &self.parties.secret);
        let own = self.parties.controller_secret.is_some().then(|| Challenge {
            transaction: self.transaction,
            hash: hash.id(),
            group: group.id(),
            // Any number but 0 will do: the challenge is new each time.
            sequence: u32::from_le_bytes([self.draw.exponent[0], self.draw.exponent[1], 0, 1]),
            challenge: self.draw.challenge[..hash.bytes()].to_vec(),
            public: Vec::new(),
        });
        let reply = Reply {
            transaction: self.transaction,
            response,
            challenge: own.as_ref().map(|own| (own.sequence, own.challenge.clone())),
            public: pair.map_or(Vec::new(), |pair| pair.public().to_vec()),
        };
        self.state = State::Replied(own.map(|own| (own, shared.unwrap_or_default())), hash);
        Ok(Step::Exchange(FromHost::Reply(reply).write()))
    }

    fn conclude(
        &mut self,
        asked: Option<(Challenge, Zeroizing<Vec<u8>>)>,
        hash: Hash,
        transaction: u16,
        response: Option<Vec<u8>>,
    ) -> Result<Step, Reason> {
        if transaction != self.transaction {
            return Err(Reason::Payload);
        }
        let (Some((own, shared)), Some(secret)) = (asked, &self.parties.controller_secret) else {
            return Ok(Step::Done);
        };
        // A controller that sends no response has proved nothing.
        let response = response.ok_or(Reason::Failed)?;
        let shared = (!shared.is_empty()).then_some(&shared);
        if !self.question(hash, &own, shared).accepts(By::Controller, secret, &response) {
            return Err(Reason::Failed);
        }
        Ok(Step::Finish(FromHost::Success2 { transaction }.write()))
    }

    fn question<'b>(
        &'b self,
        hash: Hash,
        challenge: &'b Challenge,
        shared: Option<&'b Zeroizing<Vec<u8>>>,
    ) -> Question<'b> {
        Question {
            hash,
            challenge: &challenge.challenge,
            sequence: challenge.sequence,
            transaction: self.transaction,
            shared: shared.map(|shared| shared.as_slice()),
            host: &self.parties.host,
            subsystem: &self.parties.subsystem,
        }
    }
}
