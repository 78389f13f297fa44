//! The target, reached over loopback by the host of this crate and by bytes that no host would send.

mod admin;
mod blocks;
mod errors;
mod everything;
#[path = "../../../kaml/tests/support/held.rs"]
mod held;
mod hostile;
mod hosts;
mod keyvalue;
mod loading;
mod memory;
mod named;
mod remote;
mod reservations;
mod turns;
mod versions;
mod world;
