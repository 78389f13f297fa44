//! In-band authentication by DH-HMAC-CHAP: what both ends compute, and what each does when.
//!
//! Lives here:       both ends without sockets, threads, clocks and random sources: secrets (`secret`), hashes (`hash`), groups (`group`,
//!                   `primes`), responses (`response`), the controller's side (`verifier`), the host's side (`prover`).
//! Lives elsewhere:  the bytes of messages (`wire::auth`), which host has which secret and what happens to its queue
//!                   (`target::authentication`, `host::authentication`).
//! Implements:       spec:NVMe-Base "DH-HMAC-CHAP Protocol"; spec:RFC-7919; docs/nvme.md "Who may connect".

mod group;
mod hash;
mod primes;
mod prover;
mod response;
mod secret;
mod verifier;

#[cfg(test)]
mod tests;

pub use group::Group;
pub use hash::Hash;
pub use secret::{BadSecret, Secret};

pub(crate) use group::KeyPair;
pub(crate) use prover::{Prover, Refusal, Step};
pub(crate) use verifier::{Draw, Finished, Parties, Received, Sent, Verifier, Work};

/// The weakest hash and the weakest group that an end agrees to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strength {
    /// Weaker hashes are not used.
    pub hash: Hash,
    /// Weaker groups are not used.
    pub group: Group,
}

impl Default for Strength {
    /// All hashes and groups.
    fn default() -> Strength {
        Strength { hash: Hash::Sha256, group: Group::Null }
    }
}

impl Strength {
    /// Whether a hash and a group are strong enough.
    pub fn allows(&self, hash: Hash, group: Group) -> bool {
        hash >= self.hash && group >= self.group
    }
}
