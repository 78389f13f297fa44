//! Keys of TLS connections, as `nvme gen-tls-key` writes them.
//!
//! Lives here:       reading, checking and writing them.
//! Lives elsewhere:  what is derived from them (`derive`), files with keys (`kaml-cli`).
//! Implements:       spec:NVMe-TCP "PSK Interchange Format".

use crate::auth::Hash;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// How each key begins.
const PREFIX: &str = "NVMeTLSkey-1:";
/// Bytes of the checksum after a key.
const CHECKSUM_BYTES: usize = 4;
/// Characters of the longest key.
const TEXT_BYTES_MAX: usize = 128;

/// A key that a host and a target share for TLS: `NVMeTLSkey-1:HH:…:`. Its `Debug` output hides it, and memory that held it is overwritten.
///
/// ```
/// use kaml_nvme::tls::TlsKey;
///
/// let text = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
/// let key: TlsKey = text.parse()?;
/// assert_eq!(format!("{key:?}"), "TlsKey(..)");
/// # Ok::<(), kaml_nvme::tls::BadTlsKey>(())
/// ```
#[derive(Clone)]
pub struct TlsKey {
    pub(super) bytes: Zeroizing<Vec<u8>>,
    /// With which the name of a host is hashed into the key; the key is used as it is without one.
    pub(super) hash: Option<Hash>,
}

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTlsKey {
    /// It does not look like one.
    #[error("a TLS key has the form NVMeTLSkey-1:HH:BASE64: as `nvme gen-tls-key` prints it")]
    Form,
    /// The number after the prefix names no hash function.
    #[error("the TLS key names an unknown hash function; 00, 01 and 02 are known")]
    Hash,
    /// The key has another length.
    #[error("a TLS key has 32 or 48 bytes; one with hash 01 has 32, one with hash 02 has 48")]
    Length,
    /// The checksum does not match.
    #[error("the checksum of the TLS key is wrong: a character is missing or mistyped")]
    Checksum,
}

impl TlsKey {
    /// Of 32 or 48 bytes. With a hash function, SHA-256 for 32 bytes or SHA-384 for 48, the name of the host is hashed into it.
    ///
    /// # Errors
    /// [`BadTlsKey::Length`] for other lengths, and [`BadTlsKey::Hash`] for SHA-512.
    pub fn new(bytes: &[u8], hash: Option<Hash>) -> Result<TlsKey, BadTlsKey> {
        match (hash, bytes.len()) {
            (Some(Hash::Sha512), _) => Err(BadTlsKey::Hash),
            (None, 32 | 48) | (Some(Hash::Sha256), 32) | (Some(Hash::Sha384), 48) => {
                Ok(TlsKey { bytes: Zeroizing::new(bytes.to_vec()), hash })
            }
            _ => Err(BadTlsKey::Length),
        }
    }

    /// The text that [`FromStr`] reads. It is as secret as the key.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(self.bytes.len() + CHECKSUM_BYTES));
        bytes.extend_from_slice(&self.bytes);
        bytes.extend_from_slice(&kaml_crc::crc32(&self.bytes).to_le_bytes());
        let encoded = Zeroizing::new(STANDARD.encode(&bytes));
        Zeroizing::new(format!("{PREFIX}{:02x}:{}:", self.hash.map_or(0, Hash::id), encoded.as_str()))
    }
}

impl FromStr for TlsKey {
    type Err = BadTlsKey;

    fn from_str(text: &str) -> Result<TlsKey, BadTlsKey> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(BadTlsKey::Form);
        }
        let rest = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(':')).ok_or(BadTlsKey::Form)?;
        let (hash, encoded) = rest.split_once(':').ok_or(BadTlsKey::Form)?;
        let hash = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            _ if hash.len() == 2 => return Err(BadTlsKey::Hash),
            _ => return Err(BadTlsKey::Form),
        };
        let bytes = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| BadTlsKey::Form)?);
        let (key, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(BadTlsKey::Length)?;
        let tls_key = TlsKey::new(key, hash)?;
        if kaml_crc::crc32(key).to_le_bytes() != *checksum {
            return Err(BadTlsKey::Checksum);
        }
        Ok(tls_key)
    }
}

impl fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsKey(..)")
    }
}

impl PartialEq for TlsKey {
    /// In a time that does not depend on where they differ.
    fn eq(&self, other: &TlsKey) -> bool {
        let differ = self.bytes.iter().zip(other.bytes.iter()).fold(0, |differ, (a, b)| differ | (a ^ b));
        std::hint::black_box(differ) == 0 && self.bytes.len() == other.bytes.len() && self.hash == other.hash
    }
}

impl Eq for TlsKey {}
