//! The times at which records expire, at the beginning of the checkpoint image of an index.
//!
//! Lives here:       the bytes of that part, checked decoding.
//! Lives elsewhere:  the tables that it is made of (`expiries`), the image of the index after it (`kaml-index`, `kaml-ordered`).
//! Implements:       docs/formats/expiries.md.
//!
//! | offset | bytes | field   | meaning                                                                             |
//! |-------:|------:|---------|-------------------------------------------------------------------------------------|
//! |      0 |     4 | `magic` | `"KEX1"`; an image that begins otherwise has no such part                           |
//! |      4 |       | entries | in the order of their times; one with a time of 0, of 8 bytes, is after the last one |
//!
//! An entry:
//!
//! | offset | bytes | field     | meaning                                                                  |
//! |-------:|------:|-----------|--------------------------------------------------------------------------|
//! |      0 |     8 | `time`    | milliseconds since 1970, 1 to 2^48-1                                     |
//! |      8 |     1 | `key_len` | 1..=16, or 17: a digest of 16 bytes                                      |
//! |      9 |       | `key`     | so many bytes                                                            |
//! |        |     2 | `long`    | of a digest: bytes of the key that follow, 0 if the index needs none     |

use super::record::EXPIRES_MAX;
use kaml_index::{FullKey, KEY_BYTES_MAX, Key};

const MAGIC: [u8; 4] = *b"KEX1";

/// Bytes of an entry without those of a long key, at most.
const ENTRY_BYTES_MAX: u64 = 8 + 1 + 16 + 2;

/// The times are damaged.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the times at which records expire are damaged at byte {0}")]
pub(crate) struct Bad(usize);

/// Begins the part.
pub(crate) fn begin(out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
}

/// Appends an entry.
pub(crate) fn append(out: &mut Vec<u8>, time: u64, key: &FullKey<'_>) {
    out.extend_from_slice(&time.to_le_bytes());
    let (bytes, code) = key.key().stored();
    out.push(code);
    out.extend_from_slice(&bytes[..usize::from(code).min(bytes.len())]);
    if key.key().is_digest() {
        out.extend_from_slice(&(key.long_bytes().len() as u16).to_le_bytes());
        out.extend_from_slice(key.long_bytes());
    }
}

/// Ends the part.
pub(crate) fn end(out: &mut Vec<u8>) {
    out.extend_from_slice(&0u64.to_le_bytes());
}

/// Bytes of the part at most.
pub(crate) fn image_bytes(entries: u64, long_bytes: u64) -> u64 {
    MAGIC.len() as u64 + entries * ENTRY_BYTES_MAX + long_bytes + 8
}

/// Passes the entries to `take`, which refuses keys that cannot be there. Returns what comes after them.
pub(crate) fn decode<'a>(image: &'a [u8], take: &mut dyn FnMut(u64, FullKey<'_>) -> bool) -> Result<&'a [u8], Bad> {
    let Some(mut rest) = image.strip_prefix(&MAGIC) else { return Ok(image) };
    loop {
        let bad = Bad(image.len() - rest.len());
        match entry(&mut rest, take) {
            Some(true) => {}
            Some(false) => return Ok(rest),
            None => return Err(bad),
        }
    }
}

/// Takes an entry; false if it is the end. Nothing if it is damaged.
fn entry(rest: &mut &[u8], take: &mut dyn FnMut(u64, FullKey<'_>) -> bool) -> Option<bool> {
    let time = u64::from_le_bytes(next(rest, 8)?.try_into().ok()?);
    if time == 0 {
        return Some(false);
    }
    let code = next(rest, 1)?[0];
    let mut bytes = [0; 16];
    let len = usize::from(code).min(bytes.len());
    bytes[..len].copy_from_slice(next(rest, len)?);
    let key = Key::of_stored(&bytes, code).filter(|_| time <= EXPIRES_MAX)?;
    let mut long: &[u8] = &[];
    if key.is_digest() {
        let len = u16::from_le_bytes(next(rest, 2)?.try_into().ok()?).into();
        long = next(rest, len)?;
        if len != 0 && !(Key::BYTES_MAX < len && len <= KEY_BYTES_MAX) {
            return None;
        }
    }
    let key = if long.is_empty() { key.into() } else { FullKey::long(key, long) };
    take(time, key).then_some(true)
}

fn next<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_image() {
        let mut image = Vec::new();
        begin(&mut image);
        append(&mut image, 0x0102_0304_0506, &Key::new(b"key").unwrap().into());
        append(&mut image, 0x0102_0304_0507, &FullKey::long(Key::of_digest([9; 16]), b"seventeen bytes!!"));
        end(&mut image);
        let expected = [
            &b"KEX1"[..],
            b"\x06\x05\x04\x03\x02\x01\x00\x00\x03key",
            b"\x07\x05\x04\x03\x02\x01\x00\x00\x11\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09",
            b"\x11\x00seventeen bytes!!",
            &[0; 8],
        ]
        .concat();
        assert_eq!(image, expected);
        let mut seen = Vec::new();
        let mut take = |time, key: FullKey<'_>| {
            seen.push((time, key.to_buf()));
            true
        };
        assert_eq!(decode(&image, &mut take), Ok(&[][..]));
        assert_eq!(seen.len(), 2);
        // Cut short, it is damaged wherever that is.
        for len in 4..image.len() {
            assert!(decode(&image[..len], &mut |_, _| true).is_err(), "{len}");
        }
    }

    proptest! {
        /// Goal:   no bytes break the decoder, and what it takes is within bounds.
        /// Method: arbitrary bytes after the magic.
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let image = [&MAGIC[..], &bytes].concat();
            let mut take = |time, key: FullKey<'_>| {
                assert!((1..=EXPIRES_MAX).contains(&time) && key.as_bytes().len() <= KEY_BYTES_MAX);
                true
            };
            let _ = decode(&image, &mut take);
        }
    }
}
