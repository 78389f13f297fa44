//! How a target is set up.
//!
//! Lives here:       options with their limits and defaults.

use super::access::Access;
use super::identity::Identity;
use super::persistence::KeepReservations;
use crate::wire::text::{NQN_BYTES_MAX, is_nqn};
use kaml::Device;

/// Entries of a queue at most.
pub const QUEUE_ENTRIES_MAX: u32 = 1024;

/// Whether the connections of a listener are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// Never. Hosts that have a TLS key cannot connect there.
    #[default]
    Plain,
    /// Those of hosts that begin TLS. Hosts that have a TLS key must.
    Optional,
    /// All of them: only hosts that have a TLS key can connect.
    Required,
}

/// How a target is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The subsystem's qualified name.
    pub subsystem: String,
    /// Which hosts may connect, and what they have to prove.
    pub access: Access,
    /// Whether connections of listeners are encrypted that name nothing else.
    pub security: Security,
    /// Where reservations are kept that hosts want to persist through power loss.
    pub reservations: KeepReservations,
    /// Connections at a time; further ones are closed at once.
    pub connections_max: usize,
    /// Memory for data of commands, all connections together, in bytes.
    pub memory_bytes: usize,
    /// Never sleep: the lowest latency, for a whole core.
    pub busy_poll: bool,
}

/// An option that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not an NVMe qualified name: those begin with `nqn.` and have at most {NQN_BYTES_MAX} bytes")]
pub struct BadName {
    /// What was given.
    pub name: String,
}

impl Options {
    /// Defaults for a device: named after its identity, open to all hosts.
    pub fn for_device(device: &Device) -> Options {
        Options {
            subsystem: Identity::of_hex(&device.info().uuid).subsystem(),
            access: Access::open(),
            security: Security::Plain,
            reservations: KeepReservations::default(),
            connections_max: 1024,
            memory_bytes: 1 << 30,
            busy_poll: false,
        }
    }

    /// Refuses names that are none.
    pub fn check(&self) -> Result<(), BadName> {
        let bad = Some(&self.subsystem).filter(|name| !is_nqn(name)).or_else(|| self.access.bad_name());
        bad.map_or(Ok(()), |name| Err(BadName { name: name.clone() }))
    }
}
