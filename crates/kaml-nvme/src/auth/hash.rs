//! Hash functions that authentication uses, with HMAC.
//!
//! Lives here:       SHA-256, SHA-384 and SHA-512 by their numbers in messages and secrets.
//! Lives elsewhere:  what is hashed (`response`, `secret`).
//! Implements:       spec:NVMe-Base "DH-HMAC-CHAP hash function identifiers".

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use std::fmt;
use zeroize::Zeroizing;

/// A hash function, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hash {
    /// 32 bytes.
    Sha256 = 1,
    /// 48 bytes.
    Sha384 = 2,
    /// 64 bytes.
    Sha512 = 3,
}

/// Runs `$body` with `$name` as the type of the function.
macro_rules! with {
    ($hash:expr, $name:ident => $body:expr) => {
        match $hash {
            Hash::Sha256 => {
                type $name = Sha256;
                $body
            }
            Hash::Sha384 => {
                type $name = Sha384;
                $body
            }
            Hash::Sha512 => {
                type $name = Sha512;
                $body
            }
        }
    };
}

impl Hash {
    /// All, the weakest first.
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

    /// By its number in messages and secrets.
    pub fn from_id(id: u8) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Its number in messages and secrets.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// Bytes of a result.
    pub fn bytes(self) -> usize {
        16 * (self as usize + 1)
    }

    pub(crate) fn digest(self, data: &[u8]) -> Zeroizing<Vec<u8>> {
        with!(self, Function => Zeroizing::new(Function::digest(data).to_vec()))
    }

    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        with!(self, Function => Zeroizing::new(mac::<Hmac<Function>>(key, parts).finalize().into_bytes().to_vec()))
    }

    /// Whether `claimed` is the HMAC; the time does not depend on where they differ.
    pub(crate) fn verify(self, key: &[u8], parts: &[&[u8]], claimed: &[u8]) -> bool {
        with!(self, Function => mac::<Hmac<Function>>(key, parts).verify_slice(claimed).is_ok())
    }
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> M {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hash::Sha256 => "sha256",
            Hash::Sha384 => "sha384",
            Hash::Sha512 => "sha512",
        })
    }
}

impl std::str::FromStr for Hash {
    type Err = String;

    fn from_str(name: &str) -> Result<Hash, String> {
        let found = Hash::ALL.into_iter().find(|hash| hash.to_string() == name);
        found.ok_or_else(|| format!("{name:?} is no hash function; use sha256, sha384 or sha512"))
    }
}
