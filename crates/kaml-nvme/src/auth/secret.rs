//! Secrets of hosts and controllers, as `nvme gen-dhchap-key` writes them.
//!
//! Lives here:       reading, checking and writing them; the key that a name and a secret make.
//! Lives elsewhere:  files with secrets (`kaml-cli`).
//! Implements:       spec:NVMe-Base "DH-HMAC-CHAP secret representation".

use super::Hash;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// How each secret begins.
const PREFIX: &str = "DHHC-1:";
/// What is hashed with a name.
const LABEL: &[u8] = b"NVMe-over-Fabrics";
/// Lengths of keys in bytes.
const LENGTHS: [usize; 3] = [32, 48, 64];
/// Bytes of the checksum after a key.
const CHECKSUM_BYTES: usize = 4;
/// Characters of the longest secret.
pub(crate) const TEXT_BYTES_MAX: usize = 128;

/// A secret of a host or of a controller: `DHHC-1:HH:…:`. It shows itself to nobody; memory that held it is overwritten.
///
/// ```
/// use kaml_nvme::auth::Secret;
///
/// let text = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
/// let secret: Secret = text.parse()?;
/// assert_eq!(format!("{secret:?}"), "Secret(..)");
/// # Ok::<(), kaml_nvme::auth::BadSecret>(())
/// ```
#[derive(Clone)]
pub struct Secret {
    key: Zeroizing<Vec<u8>>,
    /// With which a name is hashed into the key; the key is used as it is without one.
    hash: Option<Hash>,
}

/// Why a text is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// It does not look like one.
    #[error("a secret has the form DHHC-1:HH:BASE64: as `nvme gen-dhchap-key` prints it")]
    Form,
    /// The number after the prefix names no hash function.
    #[error("the secret names an unknown hash function; 00, 01, 02 and 03 are known")]
    Hash,
    /// The key has another length.
    #[error("the key of a secret has 32, 48 or 64 bytes")]
    Length,
    /// The checksum does not match.
    #[error("the checksum of the secret is wrong: a character is missing or mistyped")]
    Checksum,
}

impl Secret {
    /// Of a key of 32, 48 or 64 bytes; with a hash function, a name is hashed into it.
    ///
    /// # Errors
    /// [`BadSecret::Length`] for keys of other lengths.
    pub fn new(key: &[u8], hash: Option<Hash>) -> Result<Secret, BadSecret> {
        if !LENGTHS.contains(&key.len()) {
            return Err(BadSecret::Length);
        }
        Ok(Secret { key: Zeroizing::new(key.to_vec()), hash })
    }

    /// The text that [`FromStr`] reads. It is as secret as the key.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(self.key.len() + CHECKSUM_BYTES));
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&kaml_crc::crc32(&self.key).to_le_bytes());
        let hash = self.hash.map_or(0, Hash::id);
        let encoded = Zeroizing::new(STANDARD.encode(&bytes));
        Zeroizing::new(format!("{PREFIX}{hash:02x}:{}:", encoded.as_str()))
    }

    /// The key of an end with this name.
    pub(super) fn key_of(&self, nqn: &str) -> Zeroizing<Vec<u8>> {
        match self.hash {
            None => self.key.clone(),
            Some(hash) => hash.hmac(&self.key, &[nqn.as_bytes(), LABEL]),
        }
    }
}

impl FromStr for Secret {
    type Err = BadSecret;

    fn from_str(text: &str) -> Result<Secret, BadSecret> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(BadSecret::Form);
        }
        let rest = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(':')).ok_or(BadSecret::Form)?;
        let (hash, encoded) = rest.split_once(':').ok_or(BadSecret::Form)?;
        if hash.len() != 2 {
            return Err(BadSecret::Form);
        }
        let hash = match hash.parse::<u8>().map_err(|_| BadSecret::Hash)? {
            0 => None,
            id => Some(Hash::from_id(id).ok_or(BadSecret::Hash)?),
        };
        let bytes = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| BadSecret::Form)?);
        let (key, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(BadSecret::Length)?;
        let secret = Secret::new(key, hash)?;
        if kaml_crc::crc32(key).to_le_bytes() != *checksum {
            return Err(BadSecret::Checksum);
        }
        Ok(secret)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl PartialEq for Secret {
    /// In a time that does not depend on where they differ.
    fn eq(&self, other: &Secret) -> bool {
        let differ = self.key.iter().zip(other.key.iter()).fold(0, |differ, (a, b)| differ | (a ^ b));
        std::hint::black_box(differ) == 0 && self.key.len() == other.key.len() && self.hash == other.hash
    }
}

impl Eq for Secret {}
