//! Keys of an ordered index: byte strings, compared as such.
//!
//! Lives here:       the limits of a key, and the helpers that compare keys.
//! May be called by: everyone.

/// The longest key in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// A key that no ordered index takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// A key without bytes.
    #[error("the key is empty; keys have 1 to {KEY_BYTES_MAX} bytes")]
    Empty,
    /// A key above the limit.
    #[error("the key has {len} bytes; keys have 1 to {KEY_BYTES_MAX} bytes")]
    TooLong {
        /// Its length.
        len: usize,
    },
}

/// Refuses a key that no index takes.
#[inline]
pub fn check_key(key: &[u8]) -> Result<(), KeyError> {
    match key.len() {
        0 => Err(KeyError::Empty),
        1..=KEY_BYTES_MAX => Ok(()),
        len => Err(KeyError::TooLong { len }),
    }
}

/// How many bytes two keys begin with in common.
#[inline]
pub(crate) fn common(a: &[u8], b: &[u8]) -> usize {
    let limit = a.len().min(b.len());
    let mut at = 0;
    while at + 8 <= limit {
        let differing = head(&a[at..]) ^ head(&b[at..]);
        if differing != 0 {
            return at + differing.leading_zeros() as usize / 8;
        }
        at += 8;
    }
    while at < limit && a[at] == b[at] {
        at += 1;
    }
    at
}

/// The first eight bytes, big-endian, with zeros after the end.
#[inline]
pub(crate) fn head(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => bytes.iter().fold(0, |all, &byte| all << 8 | u64::from(byte)) << (64 - 8 * bytes.len().max(1)),
    }
}

/// The shortest prefix of `right` that is above `left`, which is below `right`.
pub(crate) fn separator<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    &right[..common(left, right) + 1]
}

/// The first key after all that begin with `prefix`; none if there is no such key.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.len() - prefix.iter().rev().take_while(|&&byte| byte == u8::MAX).count();
    let mut after = prefix[..kept].to_vec();
    *after.last_mut()? += 1;
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   the helpers do what they document at their edges.
    /// Method: short, long, equal and nested keys, every length of a head.
    #[test]
    fn edges() {
        assert_eq!(common(b"", b"a"), 0);
        assert_eq!(common(b"abcdefghij", b"abcdefghik"), 9);
        assert_eq!(common(b"abcdefgh", b"abcdefgh"), 8);
        assert_eq!(common(b"abcdefgX12345678", b"abcdefgY12345678"), 7);
        assert_eq!(head(b""), 0);
        assert_eq!(head(b"\x01"), 1 << 56);
        assert_eq!(head(b"\x01\x02\x03\x04\x05\x06\x07\x08\x09"), 0x0102_0304_0506_0708);
        assert_eq!(separator(b"a", b"abc"), b"ab");
        assert_eq!(separator(b"abX", b"abz"), b"abz");
        assert_eq!(after_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff"), None);
        assert_eq!(after_prefix(b""), None);
        assert_eq!(check_key(&[0; KEY_BYTES_MAX]), Ok(()));
        assert_eq!(check_key(&[0; KEY_BYTES_MAX + 1]), Err(KeyError::TooLong { len: KEY_BYTES_MAX + 1 }));
        assert_eq!(check_key(b""), Err(KeyError::Empty));
    }
}
