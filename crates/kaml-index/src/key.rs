//! Record keys.
//!
//! Lives here:       the key type and what makes a key valid for a namespace.
//! May be called by: everyone.

use std::fmt;

/// Which keys a namespace takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyKind {
    /// Exactly 8 bytes: 64-bit integers, stored big-endian. The fast and small case.
    U64,
    /// 1 to 16 bytes.
    Bytes,
}

/// A key of 1 to 16 bytes. Two keys are equal when length and bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    bytes: [u8; 16],
    len: u8,
}

/// A key of a length that no namespace, or not this one, takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a key of {len} bytes; {must}")]
pub struct KeyError {
    /// The length that was given.
    pub len: usize,
    /// What is allowed.
    pub must: &'static str,
}

impl Key {
    /// The longest key in bytes.
    pub const BYTES_MAX: usize = 16;

    /// A key of 1 to 16 bytes.
    pub fn new(bytes: &[u8]) -> Result<Key, KeyError> {
        if bytes.is_empty() || bytes.len() > Self::BYTES_MAX {
            return Err(KeyError { len: bytes.len(), must: "keys have 1 to 16 bytes" });
        }
        let mut key = Key { bytes: [0; 16], len: bytes.len() as u8 };
        key.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(key)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The bytes, zero-padded to 16.
    pub fn padded(&self) -> &[u8; 16] {
        &self.bytes
    }

    /// The length in bytes, 1 to 16.
    #[allow(clippy::len_without_is_empty, reason = "a key is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// The integer, if the key has 8 bytes.
    #[inline]
    pub fn as_u64(&self) -> Option<u64> {
        (self.len == 8).then(|| u64::from_be_bytes(self.bytes[..8].try_into().expect("8 bytes")))
    }

    /// Refuses a key that the kind does not take.
    #[inline]
    pub fn check(&self, kind: KeyKind) -> Result<(), KeyError> {
        match kind {
            KeyKind::U64 if self.len != 8 => {
                Err(KeyError { len: self.len(), must: "this namespace takes 8-byte (64-bit integer) keys" })
            }
            KeyKind::U64 | KeyKind::Bytes => Ok(()),
        }
    }
}

impl From<u64> for Key {
    #[inline]
    fn from(value: u64) -> Key {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&value.to_be_bytes());
        Key { bytes, len: 8 }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.as_bytes().iter().all(|b| b.is_ascii_graphic()) {
            return f.write_str(std::str::from_utf8(self.as_bytes()).expect("ASCII"));
        }
        f.write_str("0x")?;
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}
