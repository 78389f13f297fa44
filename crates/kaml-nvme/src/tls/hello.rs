//! The first message of a host that uses TLS, before anything is known of it.
//!
//! Lives here:       collecting a ClientHello, the keys that it names, whether the host has one of them.
//! Lives elsewhere:  the keys (`derive`), which host has which (`target::access`), the handshake (`channel`).
//! Implements:       spec:RFC-8446 "Client Hello", "Pre-Shared Key Extension".
//!
//! Nothing is computed with public keys, and no memory but [`HELLO_BYTES_MAX`] is taken, before a host has shown that it has a key: it proves
//! that by a binder, which costs some hashes to check.

use super::derive::{Identity, Psk};
use crate::auth::Hash;
use std::ops::Range;

/// Bytes of the longest ClientHello. Those of GnuTLS have up to 2 KiB, with shares for post-quantum groups.
pub(crate) const HELLO_BYTES_MAX: usize = 8 << 10;
/// Keys of a ClientHello that are looked at. Hosts name one, or one in two versions.
const IDENTITIES_MAX: usize = 4;

/// Bytes of the head of a record.
const RECORD_HEAD_BYTES: usize = 5;
/// Types: a record of the handshake, its first message, two extensions.
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const PRE_SHARED_KEY: u16 = 41;
/// Bytes before the body of a message.
const MESSAGE_HEAD_BYTES: usize = 4;

/// Why a host is refused before the handshake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it does not use TLS")]
    Plain,
    #[error("its first message makes no sense")]
    Garbage,
    #[error("its first message is longer than {HELLO_BYTES_MAX} bytes")]
    TooLong,
    #[error("it offers no pre-shared key")]
    NoKey,
    #[error("it offers no pre-shared key of NVMe/TCP; its identity is {0:?}")]
    UnknownIdentity(String),
    #[error("the host {0:?} has no TLS key here")]
    UnknownHost(String),
    #[error("the host {host:?} offers a key for another subsystem, {subsystem:?}")]
    OtherSubsystem { host: String, subsystem: String },
    #[error("the host {0:?} has another TLS key")]
    WrongKey(String),
    #[error("the host {host:?} does not offer {suite}, which its key is for")]
    Suite { host: String, suite: &'static str },
    #[error(
        "the host {host:?} proves its key with another hash function than {hash}, which it is for; tlshd 1.0 does so with keys of 48 bytes: use one of 32"
    )]
    Hash { host: String, hash: Hash },
    #[error("the handshake failed: {0}")]
    Handshake(String),
}

impl Refusal {
    /// The alert that a host is shown (spec:RFC-8446 "Alert Protocol").
    pub(crate) fn alert(&self) -> u8 {
        match self {
            Refusal::Plain | Refusal::Garbage | Refusal::TooLong => 50, // decode_error
            Refusal::NoKey => 109,                                      // missing_extension
            Refusal::UnknownIdentity(_) | Refusal::UnknownHost(_) | Refusal::OtherSubsystem { .. } => 115, // unknown_psk_identity
            Refusal::WrongKey(_) => 51, // decrypt_error
            Refusal::Suite { .. } | Refusal::Hash { .. } | Refusal::Handshake(_) => 40, // handshake_failure
        }
    }
}

/// A key that a host names and has.
pub(crate) struct Chosen {
    pub(crate) identity: Identity,
    pub(crate) psk: Psk,
}

/// Whether the first byte of a connection begins TLS.
pub(crate) fn begins_tls(first: u8) -> bool {
    first == HANDSHAKE
}

/// A ClientHello, as far as it matters here.
#[derive(Debug)]
pub(crate) struct Offer {
    message: Vec<u8>,
    suites: Vec<u16>,
    /// Identities with their binders.
    keys: Vec<(Range<usize>, Range<usize>)>,
    /// The part of the message that binders cover.
    covered: usize,
}

impl Offer {
    /// Reads what has come so far; nothing if there is more to come.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Offer>, Refusal> {
        let mut message = Vec::new();
        let mut rest = bytes;
        loop {
            match rest.first() {
                None => return if bytes.len() < HELLO_BYTES_MAX { Ok(None) } else { Err(Refusal::TooLong) },
                Some(kind) if *kind != HANDSHAKE && rest.len() == bytes.len() => return Err(Refusal::Plain),
                Some(kind) if *kind != HANDSHAKE => return Err(Refusal::Garbage),
                Some(_) => {}
            }
            let Some((head, body)) = rest.split_at_checked(RECORD_HEAD_BYTES) else { return Ok(None) };
            let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
            if head[1] != 3 || length == 0 {
                return Err(Refusal::Garbage);
            }
            let body_bytes = length.min(body.len());
            message.extend_from_slice(&body[..body_bytes]);
            if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
                return Err(Refusal::Garbage);
            }
            if let Some(head) = message.first_chunk::<MESSAGE_HEAD_BYTES>() {
                let whole = MESSAGE_HEAD_BYTES + (u32::from_be_bytes(*head) & 0x00ff_ffff) as usize;
                if whole > HELLO_BYTES_MAX - RECORD_HEAD_BYTES {
                    return Err(Refusal::TooLong);
                }
                if message.len() > whole {
                    return Err(Refusal::Garbage); // nothing may follow before our response
                }
                if message.len() == whole {
                    return Offer::parse(message).map(Some);
                }
            }
            if body.len() < length {
                return if bytes.len() < HELLO_BYTES_MAX { Ok(None) } else { Err(Refusal::TooLong) };
            }
            rest = &body[length..];
        }
    }

    fn parse(message: Vec<u8>) -> Result<Offer, Refusal> {
        let found = Offer::find(&message).ok_or(Refusal::Garbage)?;
        let (suites, extension) = found;
        let Some(extension) = extension else { return Err(Refusal::NoKey) };
        let (keys, covered) = keys_of(&message, extension).ok_or(Refusal::Garbage)?;
        Ok(Offer { message, suites, keys, covered })
    }

    /// Its suites, and where its extension with keys is, which must be the last one.
    fn find(message: &[u8]) -> Option<(Vec<u16>, Option<Range<usize>>)> {
        let mut reader = Reader { bytes: message, at: MESSAGE_HEAD_BYTES, end: message.len() };
        reader.take(2 + 32)?; // version, random
        let _session = reader.vector(1)?;
        let suites = reader.vector(2)?;
        let suites = message[suites].chunks_exact(2).map(|suite| u16::from_be_bytes([suite[0], suite[1]])).collect();
        let _compression = reader.vector(1)?;
        if reader.is_over() {
            return Some((suites, None));
        }
        let extensions = reader.vector(2)?;
        reader.is_over().then_some(())?;
        let mut reader = Reader { bytes: message, at: extensions.start, end: extensions.end };
        let mut found = None;
        while !reader.is_over() {
            let kind = reader.number(2)?;
            let body = reader.vector(2)?;
            if kind == usize::from(PRE_SHARED_KEY) {
                reader.is_over().then_some(())?;
                found = Some(body);
            }
        }
        Some((suites, found))
    }

    /// The first key that it names and that the host has. `key_of` returns what an identity can be the name of, or why it is refused.
    pub(crate) fn choose(&self, key_of: impl Fn(&Identity) -> Result<Vec<Psk>, Refusal>) -> Result<Chosen, Refusal> {
        let mut first = None;
        for (identity, binder) in self.keys.iter().take(IDENTITIES_MAX) {
            let named = self.check(&self.message[identity.clone()], &self.message[binder.clone()], &key_of);
            match named {
                Ok(chosen) => return Ok(chosen),
                Err(refusal) => drop(first.get_or_insert(refusal)),
            }
        }
        Err(first.unwrap_or(Refusal::NoKey))
    }

    fn check(
        &self,
        name: &[u8],
        binder: &[u8],
        key_of: &impl Fn(&Identity) -> Result<Vec<Psk>, Refusal>,
    ) -> Result<Chosen, Refusal> {
        let text = std::str::from_utf8(name).ok();
        let Some(identity) = text.and_then(Identity::parse) else {
            let shown = String::from_utf8_lossy(&name[..name.len().min(100)]);
            return Err(Refusal::UnknownIdentity(shown.into_owned()));
        };
        let (host, suite) = (identity.host.clone(), identity.suite);
        let keys = key_of(&identity)?;
        if !self.suites.contains(&suite.code()) {
            return Err(Refusal::Suite { host, suite: suite.name() });
        }
        if binder.len() != suite.hash().bytes() {
            return Err(Refusal::Hash { host, hash: suite.hash() });
        }
        let covered = &self.message[..self.covered];
        match keys.into_iter().find(|psk| psk.has_made(binder, covered)) {
            Some(psk) => Ok(Chosen { identity, psk }),
            None => Err(Refusal::WrongKey(host)),
        }
    }
}

/// Identities with their binders, and how much of the message these cover.
#[allow(clippy::type_complexity, reason = "a list of pairs, and a length")]
fn keys_of(message: &[u8], extension: Range<usize>) -> Option<(Vec<(Range<usize>, Range<usize>)>, usize)> {
    let mut reader = Reader { bytes: message, at: extension.start, end: extension.end };
    let identities = reader.vector(2)?;
    let covered = reader.at;
    let binders = reader.vector(2)?;
    reader.is_over().then_some(())?;
    let mut identities = Reader { bytes: message, at: identities.start, end: identities.end };
    let mut binders = Reader { bytes: message, at: binders.start, end: binders.end };
    let mut keys = Vec::new();
    while !identities.is_over() {
        let identity = identities.vector(2)?;
        identities.take(4)?; // its age, of tickets only
        keys.push((identity, binders.vector(1)?));
    }
    (binders.is_over() && !keys.is_empty()).then_some((keys, covered))
}

/// Reads numbers and vectors of a message.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl Reader<'_> {
    fn is_over(&self) -> bool {
        self.at == self.end
    }

    fn take(&mut self, count: usize) -> Option<Range<usize>> {
        (count <= self.end - self.at).then(|| {
            self.at += count;
            self.at - count..self.at
        })
    }

    /// A number of one or two bytes.
    fn number(&mut self, bytes: usize) -> Option<usize> {
        let range = self.take(bytes)?;
        Some(self.bytes[range].iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// What follows a length of so many bytes.
    fn vector(&mut self, length_bytes: usize) -> Option<Range<usize>> {
        let length = self.number(length_bytes)?;
        self.take(length)
    }
}
