//! A range of keys: what a tombstone of a range is about.
//!
//! Lives here:       the range, its bytes in ring and journal.
//! Lives elsewhere:  deleting it (`staging`, `core`), the entries around its bytes (`record`, `journal`).
//! Implements:       docs/formats/record.md "Ranges of keys".

use kaml_index::KEY_BYTES_MAX;
use std::ops::{Bound, RangeBounds};

/// A range of keys of an ordered namespace. One that ends before it begins is empty.
///
/// # Examples
/// ```
/// use kaml_device::KeyRange;
///
/// let range = KeyRange::new(&b"a"[..]..&b"b"[..]);
/// assert!(range.contains(b"apple") && !range.contains(b"b"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyRange {
    lower: Bound<Box<[u8]>>,
    upper: Bound<Box<[u8]>>,
}

/// Before the bytes of the bounds: the kind of each, and their lengths.
const HEADER_BYTES: usize = 6;

impl KeyRange {
    /// The keys within bounds, which can be any byte strings. One that is longer than any key is the same as its first bytes:
    /// no key is between them.
    pub fn new<K: AsRef<[u8]> + ?Sized>(bounds: impl RangeBounds<K>) -> KeyRange {
        let cut = |key: &K| (Box::from(&key.as_ref()[..key.as_ref().len().min(KEY_BYTES_MAX)]), key.as_ref().len());
        let lower = match bounds.start_bound().map(cut) {
            Bound::Included((key, len)) if len <= KEY_BYTES_MAX => Bound::Included(key),
            Bound::Included((key, _)) | Bound::Excluded((key, _)) => Bound::Excluded(key),
            Bound::Unbounded => Bound::Unbounded,
        };
        let upper = match bounds.end_bound().map(cut) {
            Bound::Excluded((key, len)) if len <= KEY_BYTES_MAX => Bound::Excluded(key),
            Bound::Included((key, _)) | Bound::Excluded((key, _)) => Bound::Included(key),
            Bound::Unbounded => Bound::Unbounded,
        };
        KeyRange { lower, upper }
    }

    /// Whether it has this key.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.bounds().contains(key)
    }

    /// Its bounds.
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (self.lower.as_ref().map(|key| &**key), self.upper.as_ref().map(|key| &**key))
    }

    /// Its bytes.
    ///
    /// | offset | bytes | meaning                                                      |
    /// |-------:|------:|--------------------------------------------------------------|
    /// |      0 |     1 | the lower bound: 0 there is none, 1 included, 2 excluded     |
    /// |      1 |     1 | the upper bound, likewise                                    |
    /// |      2 |     2 | bytes of the lower bound                                     |
    /// |      4 |     2 | bytes of the upper bound                                     |
    /// |      6 |       | the lower bound, then the upper one                          |
    pub(crate) fn encode(&self) -> Vec<u8> {
        let of = |bound: Bound<&[u8]>| match bound {
            Bound::Unbounded => (0, Vec::new()),
            Bound::Included(key) => (1, key.to_vec()),
            Bound::Excluded(key) => (2, key.to_vec()),
        };
        let (lower, upper) = self.bounds();
        let ((lower_kind, lower), (upper_kind, upper)) = (of(lower), of(upper));
        let mut bytes = vec![lower_kind, upper_kind];
        bytes.extend_from_slice(&(lower.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&(upper.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&lower);
        bytes.extend_from_slice(&upper);
        bytes
    }

    /// The range with these bytes, or nothing if none has.
    pub(crate) fn decode(bytes: &[u8]) -> Option<KeyRange> {
        let (header, keys) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let len = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let (lower, upper) = keys.split_at_checked(len(2))?;
        if upper.len() != len(4) {
            return None;
        }
        let of = |kind: u8, key: &[u8]| match kind {
            0 if key.is_empty() => Some(Bound::Unbounded),
            1 if key.len() <= KEY_BYTES_MAX => Some(Bound::Included(key.into())),
            2 if key.len() <= KEY_BYTES_MAX => Some(Bound::Excluded(key.into())),
            _ => None,
        };
        Some(KeyRange { lower: of(header[0], lower)?, upper: of(header[1], upper)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaml_testkit::Rng;

    /// Goal:   ranges are decoded as they were encoded; other bytes are refused and never fail.
    /// Method: ranges of all kinds of bounds, also too long ones; each of their bytes changed, cut, added to.
    #[test]
    fn ranges_are_decoded_as_encoded() {
        let long = vec![7; KEY_BYTES_MAX + 1];
        let keys: [&[u8]; 4] = [b"", b"a", &long[1..], &long];
        let bound = |kind: usize, key: usize| match kind {
            0 => Bound::Unbounded,
            1 => Bound::Included(keys[key]),
            _ => Bound::Excluded(keys[key]),
        };
        let mut rng = Rng::new(1);
        for case in 0..144 {
            let bounds = (bound(case % 3, case / 9 % 4), bound(case / 3 % 3, case / 36));
            let range = KeyRange::new::<[u8]>(bounds);
            let mut bytes = range.encode();
            assert!(bytes.len() <= HEADER_BYTES + 2 * KEY_BYTES_MAX);
            assert_eq!(KeyRange::decode(&bytes), Some(range.clone()));
            // Keys of at most the longest length, next to the bounds.
            for key in [&b"\0"[..], b"a", b"a\0", b"b", &long[1..], &long[2..], &[7, 8]] {
                assert_eq!(range.contains(key), bounds.contains(key), "{bounds:?} {key:?}");
            }
            assert_eq!(KeyRange::decode(&bytes[..bytes.len() - 1]), None);
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
            if let Some(other) = KeyRange::decode(&bytes) {
                assert_eq!(other.encode(), bytes);
            }
            bytes.push(0);
            assert!(KeyRange::decode(&bytes).is_none_or(|other| other.encode() == bytes));
        }
    }
}
