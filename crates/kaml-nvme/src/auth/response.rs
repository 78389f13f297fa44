//! What an end computes from its secret, the challenge of the other one, and what both share.
//!
//! Lives here:       the text that is hashed.
//! Lives elsewhere:  when it is computed (`verifier`, `prover`).
//! Implements:       spec:NVMe-Base "DH-HMAC-CHAP_Reply", "DH-HMAC-CHAP_Success1".

use super::{Hash, Secret};
use zeroize::Zeroizing;

/// Which end responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Host,
    Controller,
}

/// What a response is computed from.
pub(super) struct Question<'a> {
    pub(super) hash: Hash,
    pub(super) challenge: &'a [u8],
    pub(super) sequence: u32,
    pub(super) transaction: u16,
    /// What both ends have computed; nothing with the null group.
    pub(super) shared: Option<&'a [u8]>,
    pub(super) host: &'a str,
    pub(super) subsystem: &'a str,
}

impl Question<'_> {
    /// The response of an end that has this secret.
    pub(super) fn respond(&self, by: By, secret: &Secret) -> Vec<u8> {
        self.with(by, secret, |key, parts| self.hash.hmac(key, parts).to_vec())
    }

    /// Whether a response is that of an end with this secret; the time does not depend on where it differs.
    pub(super) fn accepts(&self, by: By, secret: &Secret, response: &[u8]) -> bool {
        self.with(by, secret, |key, parts| self.hash.verify(key, parts, response))
    }

    fn with<T>(&self, by: By, secret: &Secret, work: impl FnOnce(&[u8], &[&[u8]]) -> T) -> T {
        let challenge = match self.shared {
            None => Zeroizing::new(self.challenge.to_vec()),
            Some(shared) => self.hash.hmac(&self.hash.digest(shared), &[self.challenge]),
        };
        let (label, own, other) = match by {
            By::Host => ("HostHost", self.host, self.subsystem),
            By::Controller => ("Controller", self.subsystem, self.host),
        };
        let (sequence, transaction) = (self.sequence.to_le_bytes(), self.transaction.to_le_bytes());
        // The byte after the transaction is the secure channel: none.
        let parts: [&[u8]; 8] =
            [&challenge, &sequence, &transaction, &[0], label.as_bytes(), own.as_bytes(), &[0], other.as_bytes()];
        work(&secret.key_of(own), &parts)
    }
}
