//! Messages of in-band authentication, and the commands that carry them.
//!
//! Lives here:       Authentication Send and Receive; Negotiate, Challenge, Reply, Success, Failure; reading them strictly.
//! Lives elsewhere:  what they mean (`auth`), when a queue needs them (`target::authentication`, `host::authentication`).
//! Implements:       spec:NVMe-Base "Authentication Send command", "Authentication Receive command", "DH-HMAC-CHAP Protocol".

use super::command::{Command, FABRICS, Sgl};
use super::fabrics::kind;
use std::fmt;
use std::mem::size_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the longest message: a Reply with two hashes of 64 bytes and a public value of 8192 bits, with room to spare.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// The protocol's identifier in a Negotiate message.
const DH_HMAC_CHAP: u8 = 1;
/// Identifiers that a descriptor has room for.
const IDS_MAX: usize = 30;
/// Bytes of the longest hash.
const HASH_BYTES_MAX: usize = 64;

/// Numbers of messages, with their types.
mod id {
    pub(super) const NEGOTIATE: (u8, u8) = (0, 0x00);
    pub(super) const CHALLENGE: (u8, u8) = (1, 0x01);
    pub(super) const REPLY: (u8, u8) = (1, 0x02);
    pub(super) const SUCCESS_1: (u8, u8) = (1, 0x03);
    pub(super) const SUCCESS_2: (u8, u8) = (1, 0x04);
    pub(super) const FAILURE_2: (u8, u8) = (0, 0xf0);
    pub(super) const FAILURE_1: (u8, u8) = (0, 0xf1);
}

/// Why an end refuses the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The responses do not match, or the peer has no secret.
    Failed = 1,
    /// No common protocol.
    Protocol = 2,
    /// Secure channels are not supported.
    SecureChannel = 3,
    /// No common hash function.
    Hash = 4,
    /// No common group.
    Group = 5,
    /// A message has a bad length or field.
    Payload = 6,
    /// A message came that was not due.
    Message = 7,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 7] = [
        Reason::Failed,
        Reason::Protocol,
        Reason::SecureChannel,
        Reason::Hash,
        Reason::Group,
        Reason::Payload,
        Reason::Message,
    ];

    fn from_code(code: u8) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| *reason as u8 == code)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Failed => "authentication failed: the secrets differ, or one is missing",
            Reason::Protocol => "no common authentication protocol",
            Reason::SecureChannel => "secure channels are not supported",
            Reason::Hash => "no common hash function",
            Reason::Group => "no common Diffie-Hellman group",
            Reason::Payload => "a message had a bad length or field",
            Reason::Message => "a message came that was not due",
        })
    }
}

/// The fields of Authentication Send and Receive, bytes 40 to 47.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 41 | 2 | specific to the protocol: 01h, 01h |
/// | 43 | 1 | protocol, E9h |
/// | 44 | 4 | bytes that are sent, or for which the host has room; as long as the SGL's data |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the table above names the fields")]
pub struct Carrier {
    pub reserved: u8,
    pub specific: [u8; 2],
    pub protocol: u8,
    pub length: U32,
}

impl Carrier {
    const PROTOCOL: u8 = 0xe9;

    /// The number of bytes that a command moves, if all of its fields are right.
    pub fn length_of(command: &Command) -> Option<usize> {
        let carrier = Carrier::read_from_bytes(&command.as_bytes()[40..48]).expect("eight bytes");
        let is_right = carrier.specific == [1, 1] && carrier.protocol == Carrier::PROTOCOL;
        let length = carrier.length.get();
        (is_right && length == command.sgl.length.get() && length > 0).then_some(length as usize)
    }

    /// A command that sends so many bytes in its capsule.
    pub fn send(bytes: usize) -> Command {
        Carrier::command(kind::AUTHENTICATION_SEND, Sgl::in_capsule(bytes as u32))
    }

    /// A command that receives at most so many bytes.
    pub fn receive(bytes: usize) -> Command {
        Carrier::command(kind::AUTHENTICATION_RECEIVE, Sgl::transport(bytes as u32))
    }

    fn command(kind: u8, sgl: Sgl) -> Command {
        let mut command = Command::new(FABRICS, u32::from(kind));
        let carrier = Carrier { reserved: 0, specific: [1, 1], protocol: Carrier::PROTOCOL, length: sgl.length };
        command.sgl = sgl;
        command.as_mut_bytes()[40..48].copy_from_slice(carrier.as_bytes());
        command
    }
}

/// What each message begins with.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 1 | type: 0 common, 1 DH-HMAC-CHAP |
/// | 1 | 1 | message |
/// | 4 | 2 | transaction |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    kind: u8,
    id: u8,
    reserved: U16,
    transaction: U16,
}

/// Negotiate, before its descriptors: 6 secure channel, 7 number of descriptors.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct NegotiateHead {
    head: Head,
    secure_channel: u8,
    descriptor_count: u8,
}

/// What a host offers.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 1 | protocol: 1 |
/// | 2 | 1 | number of hash functions |
/// | 3 | 1 | number of groups |
/// | 4 | 30 | hash functions |
/// | 34 | 30 | groups |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Descriptor {
    protocol: u8,
    reserved: u8,
    hash_count: u8,
    group_count: u8,
    hashes: [u8; IDS_MAX],
    groups: [u8; IDS_MAX],
}

/// Challenge, Reply and Success, before their hashes and public values.
///
/// | offset | bytes | Challenge | Reply | Success1 |
/// |-------:|------:|-----------|-------|----------|
/// | 6 | 1 | bytes of a hash | the same | the same |
/// | 8 | 1 | hash function | whether the host sends a challenge | whether a response follows |
/// | 9 | 1 | group | | |
/// | 10 | 2 | bytes of the public value | the same | |
/// | 12 | 4 | sequence number | that of the host's challenge | |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Body {
    head: Head,
    hash_bytes: u8,
    reserved: u8,
    first: u8,
    group: u8,
    public_bytes: U16,
    sequence: U32,
}

/// Failure: 6 reason (1), 7 explanation.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Failure {
    head: Head,
    reason: u8,
    explanation: u8,
}

const _: () = {
    assert!(size_of::<Carrier>() == 8 && size_of::<Head>() == 6 && size_of::<NegotiateHead>() == 8);
    assert!(size_of::<Descriptor>() == 64 && size_of::<Body>() == 16 && size_of::<Failure>() == 8);
    assert!(size_of::<Body>() + 2 * HASH_BYTES_MAX + 1024 <= MESSAGE_BYTES_MAX);
};

/// A message of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromHost {
    /// It begins a transaction, with what it offers.
    Negotiate(Negotiate),
    /// It responds to a challenge.
    Reply(Reply),
    /// It accepts the controller.
    Success2 {
        /// The transaction.
        transaction: u16,
    },
    /// It refuses the controller.
    Failure2 {
        /// The transaction.
        transaction: u16,
        /// Why; nothing if the number is unknown.
        reason: Option<Reason>,
    },
}

/// A message of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromController {
    /// What the host is to respond to.
    Challenge(Challenge),
    /// It accepts the host; with a response to the challenge of the host, if there was one.
    Success1 {
        /// The transaction.
        transaction: u16,
        /// Bytes of a hash.
        hash_bytes: u8,
        /// The response.
        response: Option<Vec<u8>>,
    },
    /// It refuses the host.
    Failure1 {
        /// The transaction.
        transaction: u16,
        /// Why; nothing if the number is unknown.
        reason: Option<Reason>,
    },
}

/// What a host offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// The transaction.
    pub transaction: u16,
    /// 0 for none; others are not supported.
    pub secure_channel: u8,
    /// Whether DH-HMAC-CHAP is among the protocols; no more is known of others.
    pub is_known: bool,
    /// Numbers of hash functions.
    pub hashes: Vec<u8>,
    /// Numbers of groups.
    pub groups: Vec<u8>,
}

/// What a controller requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The transaction.
    pub transaction: u16,
    /// Number of the hash function.
    pub hash: u8,
    /// Number of the group.
    pub group: u8,
    /// The number that is hashed with the challenge.
    pub sequence: u32,
    /// Random bytes, as many as the hash has.
    pub challenge: Vec<u8>,
    /// The controller's public value; empty with the null group.
    pub public: Vec<u8>,
}

/// A host's response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The transaction.
    pub transaction: u16,
    /// The response; its length is that of the hash.
    pub response: Vec<u8>,
    /// The host's own challenge and its number, if it needs to know that the controller is the right one.
    pub challenge: Option<(u32, Vec<u8>)>,
    /// The host's public value; empty with the null group.
    pub public: Vec<u8>,
}

fn head(id: (u8, u8), transaction: u16) -> Head {
    Head { kind: id.0, id: id.1, reserved: 0.into(), transaction: transaction.into() }
}

/// The type and the number of a message, and its transaction.
fn head_of(message: &[u8]) -> Result<((u8, u8), u16), Reason> {
    let (head, _) = Head::read_from_prefix(message).map_err(|_| Reason::Payload)?;
    Ok(((head.kind, head.id), head.transaction.get()))
}

/// The transaction that a message states, whatever else it has; 0 if it is too short for one.
pub fn transaction_of(message: &[u8]) -> u16 {
    head_of(message).map_or(0, |(_, transaction)| transaction)
}

/// Exactly as many bytes as announced.
fn exactly<'a>(rest: &'a [u8], lengths: &[usize]) -> Result<Vec<&'a [u8]>, Reason> {
    if rest.len() != lengths.iter().sum::<usize>() {
        return Err(Reason::Payload);
    }
    let mut rest = rest;
    Ok(lengths.iter().map(|length| rest.split_off(..*length).expect("the sum is right")).collect())
}

fn is_hash_length(bytes: u8) -> bool {
    matches!(bytes, 32 | 48 | 64)
}

fn failure(message: &[u8]) -> Result<Option<Reason>, Reason> {
    let failure = Failure::read_from_bytes(message).map_err(|_| Reason::Payload)?;
    Ok(Reason::from_code(failure.explanation))
}

fn write_failure(id: (u8, u8), transaction: u16, reason: Option<Reason>) -> Vec<u8> {
    let explanation = reason.map_or(0, |reason| reason as u8);
    Failure { head: head(id, transaction), reason: 1, explanation }.as_bytes().to_vec()
}

impl FromHost {
    /// Reads a message that must be as long as it states.
    ///
    /// # Errors
    /// [`Reason::Payload`] for lengths and fields, [`Reason::Message`] for messages that no host sends.
    pub fn read(message: &[u8]) -> Result<FromHost, Reason> {
        let (kind, transaction) = head_of(message)?;
        match kind {
            id::NEGOTIATE => read_negotiate(message).map(FromHost::Negotiate),
            id::REPLY => read_reply(message).map(FromHost::Reply),
            id::SUCCESS_2 if message.len() == size_of::<Body>() => Ok(FromHost::Success2 { transaction }),
            id::SUCCESS_2 => Err(Reason::Payload),
            id::FAILURE_2 => Ok(FromHost::Failure2 { transaction, reason: failure(message)? }),
            _ => Err(Reason::Message),
        }
    }

    /// Its bytes.
    pub fn write(&self) -> Vec<u8> {
        match self {
            FromHost::Negotiate(negotiate) => write_negotiate(negotiate),
            FromHost::Reply(reply) => write_reply(reply),
            FromHost::Success2 { transaction } => {
                let mut body = Body::new_zeroed();
                body.head = head(id::SUCCESS_2, *transaction);
                body.as_bytes().to_vec()
            }
            FromHost::Failure2 { transaction, reason } => write_failure(id::FAILURE_2, *transaction, *reason),
        }
    }
}

fn read_negotiate(message: &[u8]) -> Result<Negotiate, Reason> {
    let (head, rest) = NegotiateHead::read_from_prefix(message).map_err(|_| Reason::Payload)?;
    if head.descriptor_count == 0 || rest.len() != usize::from(head.descriptor_count) * size_of::<Descriptor>() {
        return Err(Reason::Payload);
    }
    let descriptors = <[Descriptor]>::ref_from_bytes(rest).map_err(|_| Reason::Payload)?;
    let found = descriptors.iter().find(|descriptor| descriptor.protocol == DH_HMAC_CHAP);
    let ids = |count: u8, ids: &[u8; IDS_MAX]| ids.get(..usize::from(count)).map(<[u8]>::to_vec).ok_or(Reason::Payload);
    Ok(Negotiate {
        transaction: head.head.transaction.get(),
        secure_channel: head.secure_channel,
        is_known: found.is_some(),
        hashes: found.map_or(Ok(Vec::new()), |found| ids(found.hash_count, &found.hashes))?,
        groups: found.map_or(Ok(Vec::new()), |found| ids(found.group_count, &found.groups))?,
    })
}

fn write_negotiate(negotiate: &Negotiate) -> Vec<u8> {
    let mut descriptor = Descriptor::new_zeroed();
    descriptor.protocol = if negotiate.is_known { DH_HMAC_CHAP } else { 0xff };
    let put = |ids: &[u8], into: &mut [u8; IDS_MAX]| {
        let count = ids.len().min(IDS_MAX);
        into[..count].copy_from_slice(&ids[..count]);
        count as u8
    };
    descriptor.hash_count = put(&negotiate.hashes, &mut descriptor.hashes);
    descriptor.group_count = put(&negotiate.groups, &mut descriptor.groups);
    let head = NegotiateHead {
        head: head(id::NEGOTIATE, negotiate.transaction),
        secure_channel: negotiate.secure_channel,
        descriptor_count: 1,
    };
    [head.as_bytes(), descriptor.as_bytes()].concat()
}

fn read_reply(message: &[u8]) -> Result<Reply, Reason> {
    let (body, rest) = Body::read_from_prefix(message).map_err(|_| Reason::Payload)?;
    if !is_hash_length(body.hash_bytes) || body.first > 1 {
        return Err(Reason::Payload);
    }
    let hash_bytes = usize::from(body.hash_bytes);
    let parts = exactly(rest, &[hash_bytes, hash_bytes, usize::from(body.public_bytes.get())])?;
    let challenge = (body.first == 1).then(|| (body.sequence.get(), parts[1].to_vec()));
    if challenge.as_ref().is_some_and(|(sequence, _)| *sequence == 0) {
        return Err(Reason::Payload);
    }
    Ok(Reply {
        transaction: body.head.transaction.get(),
        response: parts[0].to_vec(),
        challenge,
        public: parts[2].to_vec(),
    })
}

fn write_reply(reply: &Reply) -> Vec<u8> {
    let mut body = Body::new_zeroed();
    (body.head, body.hash_bytes) = (head(id::REPLY, reply.transaction), reply.response.len() as u8);
    (body.first, body.public_bytes) = (u8::from(reply.challenge.is_some()), (reply.public.len() as u16).into());
    body.sequence = reply.challenge.as_ref().map_or(0, |(sequence, _)| *sequence).into();
    let none = vec![0; reply.response.len()];
    let challenge = reply.challenge.as_ref().map_or(&none, |(_, challenge)| challenge);
    [body.as_bytes(), &reply.response, challenge, &reply.public].concat()
}

impl FromController {
    /// Reads a message; bytes after what it states are ignored, because controllers fill the host's buffer.
    ///
    /// # Errors
    /// [`Reason::Payload`] for lengths and fields, [`Reason::Message`] for messages that no controller sends.
    pub fn read(message: &[u8]) -> Result<FromController, Reason> {
        let (kind, transaction) = head_of(message)?;
        match kind {
            id::CHALLENGE => read_challenge(message).map(FromController::Challenge),
            id::SUCCESS_1 => {
                let (body, rest) = Body::read_from_prefix(message).map_err(|_| Reason::Payload)?;
                let response = match body.first {
                    0 => None,
                    1 if is_hash_length(body.hash_bytes) => {
                        Some(rest.get(..usize::from(body.hash_bytes)).ok_or(Reason::Payload)?.to_vec())
                    }
                    _ => return Err(Reason::Payload),
                };
                Ok(FromController::Success1 { transaction, hash_bytes: body.hash_bytes, response })
            }
            id::FAILURE_1 => {
                let message = message.get(..size_of::<Failure>()).ok_or(Reason::Payload)?;
                Ok(FromController::Failure1 { transaction, reason: failure(message)? })
            }
            _ => Err(Reason::Message),
        }
    }

    /// Its bytes.
    pub fn write(&self) -> Vec<u8> {
        match self {
            FromController::Challenge(challenge) => write_challenge(challenge),
            FromController::Success1 { transaction, hash_bytes, response } => {
                let mut body = Body::new_zeroed();
                (body.head, body.hash_bytes) = (head(id::SUCCESS_1, *transaction), *hash_bytes);
                body.first = u8::from(response.is_some());
                [body.as_bytes(), response.as_deref().unwrap_or_default()].concat()
            }
            FromController::Failure1 { transaction, reason } => write_failure(id::FAILURE_1, *transaction, *reason),
        }
    }
}

fn read_challenge(message: &[u8]) -> Result<Challenge, Reason> {
    let (body, rest) = Body::read_from_prefix(message).map_err(|_| Reason::Payload)?;
    if !is_hash_length(body.hash_bytes) || body.sequence.get() == 0 {
        return Err(Reason::Payload);
    }
    let (hash_bytes, public_bytes) = (usize::from(body.hash_bytes), usize::from(body.public_bytes.get()));
    let parts = exactly(rest.get(..hash_bytes + public_bytes).ok_or(Reason::Payload)?, &[hash_bytes, public_bytes])?;
    Ok(Challenge {
        transaction: body.head.transaction.get(),
        hash: body.first,
        group: body.group,
        sequence: body.sequence.get(),
        challenge: parts[0].to_vec(),
        public: parts[1].to_vec(),
    })
}

fn write_challenge(challenge: &Challenge) -> Vec<u8> {
    let body = Body {
        head: head(id::CHALLENGE, challenge.transaction),
        hash_bytes: challenge.challenge.len() as u8,
        reserved: 0,
        first: challenge.hash,
        group: challenge.group,
        public_bytes: (challenge.public.len() as u16).into(),
        sequence: challenge.sequence.into(),
    };
    [body.as_bytes(), &challenge.challenge, &challenge.public].concat()
}
