//! A load and how far it is.
//!
//! Lives here:       its counters, and the value that it puts.

use crate::Value;
use crate::load::{Load, Sheet};

/// A load and how far it is.
pub(super) struct Loaded {
    pub(super) load: Load,
    pub(super) issued: u64,
    pub(super) completed: u64,
    pub(super) value: Vec<u8>,
    pub(super) crc32c: u32,
    pub(super) sheet: Sheet,
}

impl Loaded {
    pub(super) fn new(load: &Load) -> Loaded {
        let mut value = Vec::new();
        Value { seed: u64::from(load.space), len: load.bytes, expires: 0 }.run(&mut value);
        let crc32c = kaml_crc::crc32c(&value);
        Loaded { load: load.clone(), issued: 0, completed: 0, value, crc32c, sheet: Sheet::new() }
    }
}
