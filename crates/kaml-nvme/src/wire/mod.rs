//! What is sent over the wire, byte for byte: every structure is declared once, here.
//!
//! Lives here:       structures with their offsets, and plain functions between bytes and values.
//! Lives elsewhere:  when to send what (`transport`, `target`, `host`).

pub mod auth;
pub mod backup;
pub mod blocks;
pub mod changes;
pub mod command;
pub mod fabrics;
pub mod identify;
pub mod keyvalue;
pub mod logs;
pub mod manage;
pub mod named;
pub mod pdu;
pub mod ranges;
pub mod reservations;
pub mod session;
pub mod status;
pub mod text;
pub mod vendor;
pub mod versions;

#[cfg(test)]
mod tests;
