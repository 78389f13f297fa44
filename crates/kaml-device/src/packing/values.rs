//! Values as they are to be stored.
//!
//! Lives here:       compressing the value of an operation, restoring it.
//! Lives elsewhere:  whether a namespace compresses, and how well that goes (`packing`); the methods (`compression`).

use crate::command::{Expires, Op};
use crate::compression::{Compression, looks_random, pack, unpack, unpacked_bytes};
use crate::core::value_bytes_max;
use crate::error::Error;
use crate::format::record::{DIRECT_BYTES, EXPIRY_BYTES, record_bytes, suffix_bytes};
use crate::image::image_bytes;
use crate::namespace::{NamespaceKind, NamespaceShared};
use crate::reader::Reader;
use kaml_flash::{ChunkAddr, Geometry};
use kaml_index::KeyBuf;
use std::sync::atomic::Ordering;

/// Shorter values are stored as they are: few of them can save a chunk.
const VALUE_BYTES_MIN: usize = 64;

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
