//! Large records as the medium takes them: whole program units, made outside any lock.
//!
//! Lives here:       encoding; copying and checksumming in one go.
//! Lives elsewhere:  where they are placed (`staging`).

#[cfg(doc)]
use crate::Core;
use crate::format::crc32c_append;
use crate::format::record::{Record, RecordHeader, RecordKind, suffix, suffix_bytes};
use crc_fast::{CrcAlgorithm, Digest};
use kaml_flash::{AlignedBuf, Geometry};
use kaml_index::FullKey;
use std::sync::Arc;

/// Bytes of a large record as whole program units.
pub fn image_bytes<'a>(geometry: &Geometry, key: impl Into<FullKey<'a>>, value_bytes: usize) -> usize {
    let value_bytes = value_bytes + suffix_bytes(&key.into());
    let unit = (geometry.page_bytes * geometry.pages_per_program) as usize;
    (RecordHeader::BYTES + value_bytes).next_multiple_of(unit)
}

/// Encodes a large record as whole program units, ready for [`crate::Core::place`]. Done outside any lock, into a buffer with
/// room for [`image_bytes`]. `value_crc` is the CRC32C of the value, `after` what [`Core::last_sequence`] returned when its Put began.
///
/// The copy goes through the caches: the device reads it next, and mostly from there.
pub fn encode_image<'a>(
    geometry: &Geometry,
    namespace: u32,
    key: impl Into<FullKey<'a>>,
    (value, value_crc): (&[u8], u32),
    after: u64,
    mut image: AlignedBuf,
) -> Arc<AlignedBuf> {
    let key = key.into();
    image.set_len(image_bytes(geometry, key, value.len()));
    let suffix = suffix(&key);
    let record = Record {
        namespace,
        key: *key.key(),
        kind: RecordKind::Value,
        value_len: (value.len() + suffix.len()) as u32,
        value_crc: crc32c_append(value_crc, &suffix),
        // Its place in the order is not known before its ring entry. A scan takes it for newer than all that were staged
        // before its Put began, whenever their pages were programmed.
        sequence: after,
    };
    let (head, rest) = image.split_at_mut(RecordHeader::BYTES);
    head.copy_from_slice(&RecordHeader::encode(&record));
    let (body, rest) = rest.split_at_mut(value.len());
    body.copy_from_slice(value);
    let (end, padding) = rest.split_at_mut(suffix.len());
    end.copy_from_slice(&suffix);
    padding.fill(0);
    Arc::new(image)
}

/// Passes bytes on piece by piece and returns their CRC32C, so each piece comes from memory once.
pub(crate) fn copy_checked(from: &[u8], mut copy: impl FnMut(&[u8])) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for piece in from.chunks(COPY_BYTES) {
        digest.update(piece);
        copy(piece);
    }
    digest.finalize() as u32
}

/// A piece that the first levels of a cache hold twice.
const COPY_BYTES: usize = 16 << 10;
