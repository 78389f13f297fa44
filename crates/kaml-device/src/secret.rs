//! The secret of a device: what distinguishes its metadata from bytes that tenants chose.
//!
//! Lives here:       the secret, and the tags that follow from it.
//! Lives elsewhere:  what a tag covers (`format::frame`, `format::oob`), where the secret is stored (`format::root`).
//! Implements:       docs/formats/README.md "What tenants can write".
//!
//! Tenants choose the bytes of values, and values are stored in the commit ring and in pages. Tenants see neither the secret nor any tag.

use kaml_index::{FullKey, KEY_BYTES_MAX, Key, KeyBuf, KeyError, KeyRef};
use siphasher::{sip, sip128};

/// Drawn when a device is first opened. No command returns it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Secret {
    pub(crate) key: [u8; Secret::BYTES],
    /// The first epoch whose frames and pages bear tags.
    pub(crate) since_epoch: u64,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").field("since_epoch", &self.since_epoch).finish_non_exhaustive()
    }
}

impl Secret {
    pub(crate) const BYTES: usize = 16;

    /// A secret of random numbers. A laboratory draws only zeroes: there the secret follows from the device's UUID, so each run
    /// does the same.
    pub(crate) fn draw(uuid: [u8; 16], since_epoch: u64, draw: &mut dyn FnMut() -> u64) -> Secret {
        let mut key = u128::from(draw()) | u128::from(draw()) << 64;
        if key == 0 {
            key = sip128::SipHasher24::new().hash(&uuid).as_u128() | 1;
        }
        Secret { key: key.to_le_bytes(), since_epoch }
    }

    /// Whether what was written in this epoch bears tags.
    pub(crate) fn covers(&self, epoch: u64) -> bool {
        epoch >= self.since_epoch
    }

    /// What makes tags.
    pub(crate) fn sealer(&self) -> Sealer {
        let derive = |what: &[u8]| sip128::SipHasher24::new_with_key(&self.key).hash(what).as_bytes();
        Sealer {
            frames: sip128::SipHasher24::new_with_key(&derive(b"frames of the commit ring")),
            pages: sip::SipHasher13::new_with_key(&derive(b"entries of pages")),
        }
    }
}

/// Makes the digests that stand for keys of more than 16 bytes: 128 bits that nobody can choose who lacks the secret. Two of 10⁹ keys have the
/// same one with a chance of 10⁻²¹; a Get compares the whole key nevertheless.
#[derive(Clone, Copy)]
pub struct KeyDigester(sip128::SipHasher24);

impl KeyDigester {
    pub(crate) fn new(secret: Option<&Secret>) -> KeyDigester {
        let key = secret.map_or([0; Secret::BYTES], |secret| secret.key);
        let derived = sip128::SipHasher24::new_with_key(&key).hash(b"keys of records").as_bytes();
        KeyDigester(sip128::SipHasher24::new_with_key(&derived))
    }

    /// Of one that keeps records by their keys in memory alone, with a secret of its own.
    pub fn with_secret(secret: [u64; 2]) -> KeyDigester {
        KeyDigester(sip128::SipHasher24::new_with_keys(secret[0], secret[1]))
    }

    /// A key with its digest, if it has one.
    ///
    /// # Errors
    /// No namespace takes such a key.
    #[inline]
    pub fn key<'a>(&self, key: KeyRef<'a>) -> Result<FullKey<'a>, KeyError> {
        match key {
            KeyRef::Short(key) => Ok(key.into()),
            KeyRef::Bytes(bytes) if bytes.len() <= Key::BYTES_MAX => Key::new(bytes).map(FullKey::from),
            KeyRef::Bytes(bytes) if bytes.len() <= KEY_BYTES_MAX => {
                Ok(FullKey::long(Key::of_digest(self.0.hash(bytes).as_bytes()), bytes))
            }
            KeyRef::Bytes(bytes) => Err(KeyBuf::new(bytes).err().unwrap_or(KeyError { len: bytes.len(), must: "" })),
        }
    }
}

/// Makes tags. Each kind of structure has a key of its own, so the tag of one is none of another.
#[derive(Clone, Copy)]
pub(crate) struct Sealer {
    frames: sip128::SipHasher24,
    pages: sip::SipHasher13,
}

impl Sealer {
    /// The tag of a frame, and its mask: two numbers that nobody can foretell.
    pub(crate) fn frame(&self, fields: &[u8]) -> (u64, u64) {
        let hash = self.frames.hash(fields);
        (hash.h1, hash.h2)
    }

    /// The tag of a page's entry.
    pub(crate) fn page(&self, fields: &[u8]) -> u32 {
        self.pages.hash(fields) as u32
    }
}

impl std::fmt::Debug for KeyDigester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyDigester").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").finish_non_exhaustive()
    }
}
