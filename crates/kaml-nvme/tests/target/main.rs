//! The target, reached over loopback by the host of this crate and by bytes that no host would send.

mod admin;
mod authentication;
mod backup;
mod blocks;
mod changes;
mod errors;
mod everything;
mod hostile;
mod hosts;
mod keyvalue;
mod loading;
mod lost;
mod memory;
mod named;
mod ranges;
mod remote;
mod reservations;
mod rights;
mod snapshots;
#[cfg(feature = "tls")]
mod tls;
mod turns;
mod versions;
mod world;
