//! Large records as the medium takes them: whole program units, made outside any lock.
//!
//! Lives here:       encoding; copying and checksumming in one go.
//! Lives elsewhere:  where they are placed (`staging`).

#[cfg(doc)]
use crate::Core;
use crate::command::Body;
use crate::format::crc32c_append;
use crate::format::record::{EXPIRES_MAX, EXPIRY_BYTES, Form, Record, RecordHeader, RecordKind, suffix_bytes, trailer};
use kaml_flash::{AlignedBuf, Geometry};
use kaml_index::FullKey;
use std::sync::Arc;

/// Bytes of a large record as whole program units.
pub fn image_bytes<'a>(geometry: &Geometry, key: impl Into<FullKey<'a>>, value_bytes: usize) -> usize {
    expiring_image_bytes(geometry, key, value_bytes, 0)
}

/// As [`image_bytes`], of a record that expires then; 0 for never.
pub fn expiring_image_bytes<'a>(
    geometry: &Geometry,
    key: impl Into<FullKey<'a>>,
    value_bytes: usize,
    expires: u64,
) -> usize {
    let expiry_bytes = if expires == 0 { 0 } else { EXPIRY_BYTES };
    let key = key.into();
    let value_bytes = value_bytes + expiry_bytes + suffix_bytes(&key);
    let unit = (geometry.page_bytes * geometry.pages_per_program) as usize;
    (Form::Long.header_bytes(key.key()) + value_bytes).next_multiple_of(unit)
}

/// Encodes a large record as whole program units, ready for [`crate::Core::place`]. Done outside any lock, into a buffer with
/// room for [`image_bytes`]. `value_crc` is the CRC32C of the value, `after` what [`Core::last_sequence`] returned when its Put began.
///
/// The copy goes through the caches: the device reads it next, and mostly from there.
pub fn encode_image<'a>(
    geometry: &Geometry,
    namespace: u32,
    key: impl Into<FullKey<'a>>,
    value: (&[u8], u32),
    after: u64,
    image: AlignedBuf,
) -> Arc<AlignedBuf> {
    let (value, crc32c) = value;
    encode_expiring_image(geometry, namespace, key, Body::Value { value, crc32c }, after, 0, image)
}

/// As [`encode_image`], of a record that expires then, in milliseconds since 1970; 0 for never. `body` has a value, compressed or not. The buffer
/// has room for [`expiring_image_bytes`].
pub fn encode_expiring_image<'a>(
    geometry: &Geometry,
    namespace: u32,
    key: impl Into<FullKey<'a>>,
    body: Body<'_>,
    after: u64,
    expires: u64,
    mut image: AlignedBuf,
) -> Arc<AlignedBuf> {
    let (Body::Value { value, crc32c } | Body::Packed { value, crc32c }) = body else {
        unreachable!("other operations have no image")
    };
    let key = key.into();
    let expires = if expires > EXPIRES_MAX { 0 } else { expires };
    image.set_len(expiring_image_bytes(geometry, key, value.len(), expires));
    let suffix = trailer(expires, &key);
    let value_len = value.len() + suffix.len();
    let record = Record {
        namespace,
        key: *key.key(),
        kind: if expires == 0 { RecordKind::Value } else { RecordKind::Expiring },
        value_len: value_len as u32,
        value_crc: crc32c_append(crc32c, &suffix),
        // Its place in the order is not known before its ring entry. A scan takes it for newer than all that were staged
        // before its Put began, whenever their pages were programmed.
        sequence: after,
        packed: matches!(body, Body::Packed { .. }),
        form: Form::Long,
    };
    let (head, rest) = image.split_at_mut(record.header_bytes());
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
    from.chunks(COPY_BYTES).fold(0, |crc, piece| {
        copy(piece);
        crc32c_append(crc, piece)
    })
}

/// A piece that the first levels of a cache hold twice.
const COPY_BYTES: usize = 16 << 10;
