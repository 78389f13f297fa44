//! Whether the value of a Put is compressed, and what that saved.
//!
//! Lives here:       the attribute of a namespace, when compressing is tried, how much was given and stored.
//! Lives elsewhere:  compressing one value (`values`), the methods (`compression`), calling this outside the core's lock (`kaml::driver`).
//! Implements:       docs/ARCHITECTURE.md "Compression".

use crate::compression::Compression;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

pub(crate) mod values;

/// After so many values in a row that saved nothing, fewer are tried.
const MISSES_BEFORE_REST: u32 = 8;
/// In the end one of so many.
const TRIED_ONE_IN_MAX: u32 = 64;

/// Bytes of values of a namespace that compresses, since the device was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compressed {
    /// As callers gave them.
    pub given_bytes: u64,
    /// As they were stored, compressed or not.
    pub stored_bytes: u64,
}

impl Compressed {
    /// Stored bytes for each given one; 1 if nothing was given.
    pub fn ratio(&self) -> f64 {
        if self.given_bytes == 0 { 1.0 } else { self.stored_bytes as f64 / self.given_bytes as f64 }
    }
}

/// The compression of a namespace, shared by those that put.
#[derive(Default)]
pub(crate) struct Packing {
    method: AtomicU8,
    given_bytes: AtomicU64,
    stored_bytes: AtomicU64,
    /// Values in a row that saved nothing.
    misses: AtomicU32,
    /// Counts values while few are tried.
    turn: AtomicU32,
}

impl Packing {
    pub(crate) fn method(&self) -> Compression {
        Compression::of_code(self.method.load(Ordering::Relaxed)).unwrap_or_default()
    }

    pub(crate) fn set_method(&self, method: Compression) {
        self.method.store(method.code(), Ordering::Relaxed);
        self.misses.store(0, Ordering::Relaxed);
    }

    pub(crate) fn totals(&self) -> Compressed {
        let [given_bytes, stored_bytes] =
            [&self.given_bytes, &self.stored_bytes].map(|bytes| bytes.load(Ordering::Relaxed));
        Compressed { given_bytes, stored_bytes }
    }

    /// Whether the next value is worth a try.
    fn tries_next(&self) -> bool {
        let misses = self.misses.load(Ordering::Relaxed);
        if misses < MISSES_BEFORE_REST {
            return true;
        }
        let one_in = (misses - MISSES_BEFORE_REST + 2).min(TRIED_ONE_IN_MAX);
        self.turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(one_in)
    }

    fn note_tried(&self, has_saved: bool) {
        let misses = self.misses.load(Ordering::Relaxed);
        let after = if has_saved { 0 } else { misses.saturating_add(1) };
        if after != misses {
            self.misses.store(after, Ordering::Relaxed);
        }
    }

    fn note_stored(&self, given: usize, stored: usize) {
        self.given_bytes.fetch_add(given as u64, Ordering::Relaxed);
        self.stored_bytes.fetch_add(stored as u64, Ordering::Relaxed);
    }
}

/// Whether any namespace compresses; it stays so until the device is closed.
#[derive(Default)]
pub(crate) struct AnyPacking(AtomicBool);

impl AnyPacking {
    pub(crate) fn note(&self, method: Compression) {
        if method != Compression::None {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[inline]
    fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
