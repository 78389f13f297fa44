//! The exact `hash` index: key → where its record lies in flash.
//!
//! Lives here:       keys, length codes, the concurrent table, its growth, listing, snapshots.
//! Lives elsewhere:  what an address means (`kaml-device`), where snapshots are stored (`kaml-device`).
//! Implements:       paper:KAML IV.C (mapping tables); design section 5.

mod key;

pub use key::{Key, KeyError, KeyKind};
