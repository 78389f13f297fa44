//! Whether the value of a Put is compressed, and what that saved.
//!
//! Lives here:       the attribute of a namespace, when compressing is tried, when its result is kept, how much was given and stored.
//! Lives elsewhere:  the methods (`compression`), calling this outside the core's lock (`kaml::driver`).
//! Implements:       docs/ARCHITECTURE.md "Compression".

use crate::command::{DIRECT_BYTES, Expires, Op};
use crate::compression::{Compression, looks_random, pack, unpack, unpacked_bytes};
use crate::core::value_bytes_max;
use crate::error::Error;
use crate::format::record::{EXPIRY_BYTES, record_bytes, suffix_bytes};
use crate::image::image_bytes;
use crate::namespace::{NamespaceKind, NamespaceShared};
use crate::reader::Reader;
use kaml_flash::{ChunkAddr, Geometry};
use kaml_index::KeyBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Shorter values are stored as they are: few of them can save a chunk.
const VALUE_BYTES_MIN: usize = 64;
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

/// Refuses compression of what has other means.
pub(crate) fn check_compression<V>(kind: &NamespaceKind<V>, method: Compression) -> Result<(), Error> {
    match (kind, method) {
        (NamespaceKind::Records(_), _) | (_, Compression::None) => Ok(()),
        (NamespaceKind::Versions(..), _) => Err(Error::BadCompression("versions")),
        (NamespaceKind::Blocks(_), _) => Err(Error::BadCompression("logical blocks")),
    }
}

impl Reader {
    /// Whether [`Reader::pack`] can find anything to do.
    #[inline]
    pub fn compresses(&self) -> bool {
        self.directory().any_packing.is()
    }

    /// Compresses the value of an operation into `packed`, in place of what is there, if its namespace compresses and the record takes less
    /// room so. To be called outside any lock. Returns whether it did; if so, the operation is to have a [`Packed`](crate::Body::Packed)
    /// body.
    pub fn pack(&self, op: &Op<'_>, value: &[u8], packed: &mut Vec<u8>) -> bool {
        let Ok(space) = self.space(op.namespace) else { return false }; // staging refuses it
        let packing = &space.packing;
        let method = packing.method();
        if method == Compression::None {
            return false;
        }
        let geometry = self.geometry();
        let can_save = value.len() >= VALUE_BYTES_MIN && value.len() as u64 <= value_bytes_max(geometry);
        let is_tried = can_save && packing.tries_next();
        let has_saved = is_tried
            && !looks_random(value)
            && pack(method, value, value.len() - 1, packed)
            && room(geometry, &space, op, packed.len()) < room(geometry, &space, op, value.len());
        if is_tried {
            packing.note_tried(has_saved);
        }
        packing.note_stored(value.len(), if has_saved { packed.len() } else { value.len() });
        has_saved
    }
}

/// Bytes of flash that a record takes.
fn room(geometry: &Geometry, space: &NamespaceShared, op: &Op<'_>, value_bytes: usize) -> usize {
    if value_bytes + suffix_bytes(&op.key) >= DIRECT_BYTES {
        return image_bytes(geometry, op.key, value_bytes);
    }
    let has_expiry = match op.expires {
        Expires::Never => false,
        Expires::At(_) => true,
        Expires::Default => space.default_ttl_ms.load(Ordering::Relaxed) != 0,
    };
    let expiry_bytes = if has_expiry { EXPIRY_BYTES } else { 0 };
    let bytes = record_bytes(op.key.key(), value_bytes + suffix_bytes(&op.key) + expiry_bytes);
    bytes.next_multiple_of(geometry.chunk_bytes as usize)
}

/// A compressed value that was copied out of a write buffer under the core's lock, to be decompressed outside it.
#[derive(Debug, PartialEq, Eq)]
pub struct PackedValue {
    /// The compressed value, and what follows it in the record, which is not compressed.
    stored: Vec<u8>,
    packed_bytes: usize,
    namespace: u32,
    key: KeyBuf,
    at: ChunkAddr,
}

impl PackedValue {
    pub(crate) fn new(stored: Vec<u8>, packed_bytes: usize, namespace: u32, key: KeyBuf, at: ChunkAddr) -> PackedValue {
        PackedValue { stored, packed_bytes, namespace, key, at }
    }

    /// Bytes of the value; nothing if it is damaged.
    pub fn value_bytes(&self) -> Option<u64> {
        unpacked_bytes(&self.stored[..self.packed_bytes])
    }

    /// The value, and what follows it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it cannot be decompressed.
    pub fn unpack(&self) -> Result<Vec<u8>, Error> {
        let mut value = Vec::new();
        let (packed, after) = self.stored.split_at(self.packed_bytes);
        let corrupt = |what| Error::Corrupt { namespace: self.namespace, key: self.key.clone(), at: self.at, what };
        unpack(packed, &mut value).map_err(corrupt)?;
        value.extend_from_slice(after);
        Ok(value)
    }
}
