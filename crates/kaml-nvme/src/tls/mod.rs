//! TLS 1.3 with pre-shared keys under NVMe/TCP: what both ends need.
//!
//! Lives here:       keys (`key`), what is derived from them (`derive`), the first message of a host (`hello`), an encrypted connection without its
//!                   socket (`channel`; `channel_absent` in builds without the feature `tls`).
//! Lives elsewhere:  which host has which key and what listeners require (`target::access`, `target::secure`), sockets (`target::link`,
//!                   `host::secure`).
//! Implements:       spec:NVMe-TCP "Transport Security"; spec:RFC-8446; docs/nvme.md "Encryption".

#[cfg(feature = "tls")]
mod channel;
#[cfg(not(feature = "tls"))]
#[path = "channel_absent.rs"]
mod channel;
mod derive;
mod hello;
mod key;

#[cfg(test)]
mod tests;

pub use derive::{Identity, Suite};
pub use key::{BadTlsKey, TlsKey};

pub(crate) use channel::{Channel, Decrypted};
pub(crate) use derive::Psk;
pub(crate) use hello::{Chosen, HELLO_BYTES_MAX, Offer, Refusal, begins_tls};

/// Whether what a host sends first proves that it has a key, for a host and a subsystem of any names. For fuzzers.
#[doc(hidden)]
pub fn has_key(hello: &[u8], key: &TlsKey) -> bool {
    matches!(Offer::read(hello), Ok(Some(offer)) if offer.choose(|identity| Ok(key.named(identity))).is_ok())
}

/// Whether this build can encrypt connections.
pub const IS_BUILT: bool = cfg!(feature = "tls");

/// Why a connection cannot be encrypted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The feature `tls` is off.
    #[error(
        "this program was built without TLS; build it with the cargo feature `tls`, or leave the options for TLS out"
    )]
    NotBuilt,
    /// The library, or the system, cannot do it.
    #[error("TLS cannot be used: {0}")]
    Library(String),
    /// The other end does something else than a handshake.
    #[error("the other end does not use TLS at this address")]
    NotSpoken,
    /// The other end does not accept the key.
    #[error("the other end does not accept the TLS key of this host: it has another one for it, or none")]
    KeyRefused,
    /// The handshake did not come to its end.
    #[error("the TLS handshake failed: {0}")]
    Handshake(String),
    /// Bytes were changed on their way, or the connection was cut.
    #[error("the encrypted connection is broken: {0}")]
    Broken(String),
    /// Two names that are too long together.
    #[error("the names of host and subsystem are too long for an identity of version 0; use version 1")]
    NamesTooLong,
}
