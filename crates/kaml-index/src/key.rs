//! Record keys.
//!
//! Lives here:       the types of keys and what makes a key valid for a namespace.
//! Lives elsewhere:  the digest of long keys (`kaml-device`), which needs the secret of a device.
//! May be called by: everyone.
//!
//! The firmware knows a record by its [`Key`], of fixed size. A key of at most 16 bytes is its own; that of a longer one is its digest,
//! and its bytes travel beside ([`FullKey`]). A user's key is a [`KeyRef`], one that is returned a [`KeyBuf`].

use std::fmt;

/// Which keys a namespace takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyKind {
    /// Exactly 8 bytes: 64-bit integers, stored big-endian. The fast and small case.
    U64,
    /// 1 to 16 bytes.
    Bytes,
    /// 1 byte to 1 KiB, in no order.
    Any,
    /// 1 byte to 1 KiB, in their order: the namespace is listed by ranges of keys.
    Ordered,
}

impl KeyKind {
    /// The longest key in bytes.
    pub const fn bytes_max(self) -> usize {
        match self {
            KeyKind::U64 => 8,
            KeyKind::Bytes => Key::BYTES_MAX,
            KeyKind::Any | KeyKind::Ordered => KEY_BYTES_MAX,
        }
    }
}

/// The longest key of any namespace in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// A key of 1 to 16 bytes, or the 128-bit digest of a longer one. Two keys are equal when length and bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    bytes: [u8; 16],
    /// One more than there are bytes: it is a digest.
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
    ///
    /// # Errors
    /// The key has another length.
    #[inline]
    pub fn new(bytes: &[u8]) -> Result<Key, KeyError> {
        // Most keys: one load instead of a call that copies.
        if let Ok(word) = <[u8; 8]>::try_from(bytes) {
            let bytes = u128::from(u64::from_le_bytes(word)).to_le_bytes();
            return Ok(Key { bytes, len: 8 });
        }
        if bytes.is_empty() || bytes.len() > Self::BYTES_MAX {
            return Err(KeyError { len: bytes.len(), must: "keys have 1 to 16 bytes" });
        }
        let mut key = Key { bytes: [0; 16], len: bytes.len() as u8 };
        key.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(key)
    }

    /// What stands for a longer key: its digest.
    pub const fn of_digest(digest: [u8; 16]) -> Key {
        Key { bytes: digest, len: Self::DIGEST }
    }

    /// The key that [`Key::stored`] was of.
    pub fn of_stored(bytes: &[u8; 16], code: u8) -> Option<Key> {
        match code {
            Self::DIGEST => Some(Key::of_digest(*bytes)),
            _ => {
                let (key, padding) = bytes.split_at_checked(code.into())?;
                Key::new(key).ok().filter(|_| padding.iter().all(|byte| *byte == 0))
            }
        }
    }

    /// How formats store it: 16 bytes padded with zeroes, and their number, or 17 for a digest.
    pub fn stored(&self) -> (&[u8; 16], u8) {
        (&self.bytes, self.len)
    }

    const DIGEST: u8 = Self::BYTES_MAX as u8 + 1;

    /// Whether it is the digest of a longer key.
    #[inline]
    pub fn is_digest(&self) -> bool {
        self.len == Self::DIGEST
    }

    /// The bytes, or those of the digest.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }

    /// The bytes, zero-padded to 16.
    pub fn padded(&self) -> &[u8; 16] {
        &self.bytes
    }

    /// The length in bytes, 1 to 16.
    #[allow(clippy::len_without_is_empty, reason = "a key is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.len).min(Self::BYTES_MAX)
    }

    /// The integer, if the key has 8 bytes.
    #[inline]
    pub fn as_u64(&self) -> Option<u64> {
        (self.len == 8).then(|| u64::from_be_bytes(self.bytes[..8].try_into().expect("8 bytes")))
    }

    /// Refuses a key that the kind does not take.
    ///
    /// # Errors
    /// The key has a length that namespaces of this kind do not take.
    #[inline]
    pub fn check(&self, kind: KeyKind) -> Result<(), KeyError> {
        match kind {
            KeyKind::U64 if self.len != 8 => {
                Err(KeyError { len: self.len(), must: "this namespace takes 8-byte (64-bit integer) keys" })
            }
            KeyKind::Bytes if self.is_digest() => {
                Err(KeyError { len: self.len(), must: "this namespace takes keys of 1 to 16 bytes" })
            }
            KeyKind::U64 | KeyKind::Bytes | KeyKind::Any | KeyKind::Ordered => Ok(()),
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
        if self.is_digest() {
            f.write_str("of more than 16 bytes with digest 0x")?;
            return write_hex(f, &self.bytes);
        }
        show(f, self.as_bytes())
    }
}

fn show(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    match std::str::from_utf8(bytes) {
        Ok(text) if bytes.iter().all(u8::is_ascii_graphic) => f.write_str(text),
        _ => {
            f.write_str("0x")?;
            write_hex(f, bytes)
        }
    }
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
}

/// A key as a caller gives it: an integer or up to 16 bytes by value, any bytes by reference.
///
/// # Examples
/// ```
/// use kaml_index::{Key, KeyRef};
///
/// assert_eq!(KeyRef::from(7u64).as_bytes(), [0, 0, 0, 0, 0, 0, 0, 7]);
/// assert_eq!(KeyRef::from("ada").as_bytes(), b"ada");
/// ```
#[derive(Clone, Copy, Debug)]
pub enum KeyRef<'a> {
    /// Up to 16 bytes.
    Short(Key),
    /// Bytes, of any number; a namespace may refuse them.
    Bytes(&'a [u8]),
}

impl KeyRef<'_> {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            KeyRef::Short(key) => key.as_bytes(),
            KeyRef::Bytes(bytes) => bytes,
        }
    }

    /// A copy.
    ///
    /// # Errors
    /// No namespace takes such a key.
    pub fn to_buf(&self) -> Result<KeyBuf, KeyError> {
        KeyBuf::new(self.as_bytes())
    }
}

impl PartialEq for KeyRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for KeyRef<'_> {}

impl From<Key> for KeyRef<'_> {
    #[inline]
    fn from(key: Key) -> Self {
        KeyRef::Short(key)
    }
}

impl From<&Key> for KeyRef<'_> {
    #[inline]
    fn from(key: &Key) -> Self {
        KeyRef::Short(*key)
    }
}

impl From<u64> for KeyRef<'_> {
    #[inline]
    fn from(key: u64) -> Self {
        KeyRef::Short(Key::from(key))
    }
}

impl<'a> From<&'a [u8]> for KeyRef<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        KeyRef::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for KeyRef<'a> {
    #[inline]
    fn from(bytes: &'a [u8; N]) -> Self {
        KeyRef::Bytes(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for KeyRef<'a> {
    #[inline]
    fn from(bytes: &'a Vec<u8>) -> Self {
        KeyRef::Bytes(bytes)
    }
}

impl<'a> From<&'a str> for KeyRef<'a> {
    #[inline]
    fn from(text: &'a str) -> Self {
        KeyRef::Bytes(text.as_bytes())
    }
}

impl<'a> From<&'a String> for KeyRef<'a> {
    #[inline]
    fn from(text: &'a String) -> Self {
        KeyRef::Bytes(text.as_bytes())
    }
}

impl<'a> From<&'a KeyBuf> for KeyRef<'a> {
    #[inline]
    fn from(key: &'a KeyBuf) -> Self {
        match &key.0 {
            Owned::Short(key) => KeyRef::Short(*key),
            Owned::Long(bytes) => KeyRef::Bytes(bytes),
        }
    }
}

/// A key as the firmware works with it: what it knows the record by, and the bytes if that is a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullKey<'a> {
    key: Key,
    long: &'a [u8],
}

impl<'a> FullKey<'a> {
    /// A long key and its digest.
    ///
    /// # Panics
    /// If the key is not of 17 bytes to 1 KiB, or a digest is missing.
    pub fn long(digest: Key, bytes: &'a [u8]) -> FullKey<'a> {
        assert!(digest.is_digest() && (Key::BYTES_MAX + 1..=KEY_BYTES_MAX).contains(&bytes.len()));
        FullKey { key: digest, long: bytes }
    }

    /// What the record is known by.
    #[inline]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Its bytes; of a digest without any, those of the digest.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        if self.long.is_empty() { self.key.as_bytes() } else { self.long }
    }

    /// The bytes that are stored beside the digest; none of a key that is stored itself.
    #[inline]
    pub fn long_bytes(&self) -> &'a [u8] {
        self.long
    }

    /// A copy.
    pub fn to_buf(&self) -> KeyBuf {
        match self.long {
            [] => KeyBuf(Owned::Short(self.key)),
            long => KeyBuf(Owned::Long(long.into())),
        }
    }
}

impl From<Key> for FullKey<'_> {
    /// A key of at most 16 bytes, or a digest where no bytes are needed.
    #[inline]
    fn from(key: Key) -> Self {
        FullKey { key, long: &[] }
    }
}

impl From<&Key> for FullKey<'_> {
    #[inline]
    fn from(key: &Key) -> Self {
        FullKey::from(*key)
    }
}

impl<'a> From<&FullKey<'a>> for FullKey<'a> {
    #[inline]
    fn from(key: &FullKey<'a>) -> Self {
        *key
    }
}

impl fmt::Display for FullKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.long {
            [] => self.key.fmt(f),
            long => show(f, long),
        }
    }
}

/// A [`FullKey`] that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptKey {
    key: Key,
    long: Option<Box<[u8]>>,
}

impl KeptKey {
    /// What the record is known by.
    #[inline]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The key.
    #[inline]
    pub fn full(&self) -> FullKey<'_> {
        FullKey { key: self.key, long: self.long.as_deref().unwrap_or_default() }
    }
}

impl From<&FullKey<'_>> for KeptKey {
    #[inline]
    fn from(key: &FullKey<'_>) -> Self {
        KeptKey { key: key.key, long: (!key.long.is_empty()).then(|| key.long.into()) }
    }
}

/// A key of 1 byte to 1 KiB with its bytes. Keys compare as their bytes do.
///
/// # Examples
/// ```
/// use kaml_index::KeyBuf;
///
/// let key = KeyBuf::new(b"articles/2026/a key of more than sixteen bytes")?;
/// assert!(key < KeyBuf::new(b"b")?);
/// assert!(KeyBuf::new(b"").is_err());
/// # Ok::<(), kaml_index::KeyError>(())
/// ```
#[derive(Clone)]
pub struct KeyBuf(Owned);

#[derive(Clone)]
enum Owned {
    Short(Key),
    Long(Box<[u8]>),
}

impl KeyBuf {
    /// A copy of some bytes.
    ///
    /// # Errors
    /// They are none, or more than [`KEY_BYTES_MAX`].
    pub fn new(bytes: &[u8]) -> Result<KeyBuf, KeyError> {
        match bytes.len() {
            1..=Key::BYTES_MAX => Ok(KeyBuf(Owned::Short(Key::new(bytes)?))),
            17..=KEY_BYTES_MAX => Ok(KeyBuf(Owned::Long(bytes.into()))),
            len => Err(KeyError { len, must: "keys have 1 to 1024 bytes" }),
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Owned::Short(key) => key.as_bytes(),
            Owned::Long(bytes) => bytes,
        }
    }

    /// The integer, if the key has 8 bytes.
    pub fn as_u64(&self) -> Option<u64> {
        match &self.0 {
            Owned::Short(key) => key.as_u64(),
            Owned::Long(_) => None,
        }
    }

    /// The key itself, if it has at most 16 bytes.
    pub fn as_short(&self) -> Option<Key> {
        match &self.0 {
            Owned::Short(key) => Some(*key),
            Owned::Long(_) => None,
        }
    }
}

impl From<Key> for KeyBuf {
    /// A key of at most 16 bytes. Of a digest it shows that it is one.
    fn from(key: Key) -> KeyBuf {
        KeyBuf(Owned::Short(key))
    }
}

impl AsRef<[u8]> for KeyBuf {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for KeyBuf {
    fn eq(&self, other: &KeyBuf) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for KeyBuf {}

impl PartialOrd for KeyBuf {
    fn partial_cmp(&self, other: &KeyBuf) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeyBuf {
    fn cmp(&self, other: &KeyBuf) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl std::hash::Hash for KeyBuf {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Owned::Short(key) => key.fmt(f),
            Owned::Long(bytes) => show(f, bytes),
        }
    }
}
