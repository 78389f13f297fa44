//! Key Value commands.
//!
//! Lives here:       keys, options and sizes in the dwords of a command; the data of List.
//! Lives elsewhere:  executing them (`target::keyvalue`).
//! Implements:       spec:NVMe-KV "Key Value Command Set".
//!
//! | field | where |
//! |-------|-------|
//! | key bytes 0 to 7 | command bytes 8 to 15 (dwords 2, 3) |
//! | key bytes 8 to 15 | command bytes 56 to 63 (dwords 14, 15) |
//! | value size (Store), buffer size (Retrieve, List) | dword 10 |
//! | key length | dword 11, bits 7:0 |
//! | options | dword 11, bits 15:8 |

use super::command::Command;
use super::status::Status;
use kaml::Key;
use zerocopy::IntoBytes;

/// Options of Store.
pub mod store {
    /// Only if the key exists.
    pub const MUST_EXIST: u8 = 1;
    /// Only if the key does not exist.
    pub const MUST_NOT_EXIST: u8 = 2;
}

/// How keys are laid out in the data of our own commands: dword 11 of Put and of Name Keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFormat {
    /// In 16 bytes.
    Short,
    /// In as many bytes as they have, 1 to 1024.
    Long,
}

impl KeyFormat {
    /// By the number of the format.
    pub fn of(command: &Command) -> Result<KeyFormat, Status> {
        match command.cdw11.get() {
            0 => Ok(KeyFormat::Short),
            1 => Ok(KeyFormat::Long),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Its number.
    pub fn number(self) -> u32 {
        match self {
            KeyFormat::Short => 0,
            KeyFormat::Long => 1,
        }
    }
}

/// Puts a key into a command.
pub fn put_key(command: &mut Command, key: &Key) {
    let (bytes, padded) = (command.as_mut_bytes(), key.padded());
    bytes[8..16].copy_from_slice(&padded[..8]);
    bytes[56..64].copy_from_slice(&padded[8..]);
    command.cdw11 = (command.cdw11.get() & !0xff | key.len() as u32).into();
}

/// The key of a command; none for length 0. Longer than 16 bytes is an invalid field.
pub fn get_key(command: &Command) -> Result<Option<Key>, Status> {
    let bytes = command.as_bytes();
    let mut padded = [0; 16];
    padded[..8].copy_from_slice(&bytes[8..16]);
    padded[8..].copy_from_slice(&bytes[56..64]);
    match usize::from(command.cdw11.get() as u8) {
        0 => Ok(None),
        len => Key::new(padded.get(..len).ok_or(Status::INVALID_FIELD)?).map(Some).map_err(|_| Status::INVALID_FIELD),
    }
}

/// The options of a command.
pub fn options(command: &Command) -> u8 {
    (command.cdw11.get() >> 8) as u8
}

/// Bytes that a key takes in the data of List.
pub fn listed_bytes(key: &Key) -> usize {
    (2 + key.len()).next_multiple_of(4)
}

/// The data of List: a count, then for each key its length in 16 bits, its bytes, zeros up to a multiple of 4. As many
/// keys as fit in `room` bytes; only whole ones.
pub fn encode_list(keys: &[Key], room: usize) -> Vec<u8> {
    let mut out = vec![0; 4];
    let mut count = 0u32;
    for key in keys {
        if out.len() + listed_bytes(key) > room {
            break;
        }
        out.extend_from_slice(&(key.len() as u16).to_le_bytes());
        out.extend_from_slice(key.as_bytes());
        out.resize(out.len().next_multiple_of(4), 0);
        count += 1;
    }
    out[..4].copy_from_slice(&count.to_le_bytes());
    out
}

/// Reads the data of List; none if they are not whole.
pub fn decode_list(data: &[u8]) -> Option<Vec<Key>> {
    let (count, mut rest) = data.split_first_chunk::<4>()?;
    let count = u32::from_le_bytes(*count) as usize;
    let mut keys = Vec::with_capacity(count.min(data.len() / 4));
    for _ in 0..count {
        let (len, tail) = rest.split_first_chunk::<2>()?;
        let len = usize::from(u16::from_le_bytes(*len));
        keys.push(Key::new(tail.get(..len)?).ok()?);
        rest = rest.get((2 + len).next_multiple_of(4).min(rest.len())..)?;
    }
    Some(keys)
}
