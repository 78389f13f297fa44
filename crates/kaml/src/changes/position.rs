//! A position in the order in which a device commits.
//!
//! Lives here:       its bytes and its text.
//! Lives elsewhere:  reading from it (`read`).

use crate::error::Error;
use kaml_device::RingPosition;
use std::fmt;
use std::str::FromStr;

/// A position in the order in which a device commits: after one commit and before the next one.
///
/// Positions of one device are ordered. They survive restarts and crashes of the device, and no position means two places. A position names
/// its device, so another device refuses it. Store it as [text](ToString) or as [bytes](Position::to_bytes).
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions, Position};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let before = device.position()?;
/// device.ensure_namespace("users", &NamespaceOptions::default())?.put("ada", b"1")?;
/// let after = device.position()?;
/// assert!(before < after);
/// assert_eq!(after.to_string().parse::<Position>()?, after);
/// assert_eq!(Position::from_bytes(&after.to_bytes()), after);
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    device: [u8; 16],
    lsn: u64,
    epoch: u64,
}

impl Position {
    /// Bytes of a position.
    pub const BYTES: usize = 32;

    pub(crate) fn new(device: [u8; 16], at: RingPosition) -> Position {
        Position { device, lsn: at.lsn, epoch: at.epoch }
    }

    pub(crate) fn ring(&self) -> RingPosition {
        RingPosition { epoch: self.epoch, lsn: self.lsn }
    }

    /// The identity of the device that it is of.
    pub fn device(&self) -> [u8; 16] {
        self.device
    }

    /// Bytes of the commit ring up to it, since the device was created. The difference of two positions is what was written between them.
    pub fn ring_bytes(&self) -> u64 {
        self.lsn
    }

    /// How often the device had been opened when the commit before it was written.
    pub fn opening(&self) -> u64 {
        self.epoch
    }

    /// A position from its parts, as a host on the network receives them.
    pub fn from_parts(device: [u8; 16], opening: u64, ring_bytes: u64) -> Position {
        Position { device, lsn: ring_bytes, epoch: opening }
    }

    /// Its bytes: the device, the opening and the bytes of the ring, little-endian.
    pub fn to_bytes(&self) -> [u8; Position::BYTES] {
        let mut bytes = [0; Position::BYTES];
        bytes[..16].copy_from_slice(&self.device);
        bytes[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[24..].copy_from_slice(&self.lsn.to_le_bytes());
        bytes
    }

    /// The position with these bytes.
    pub fn from_bytes(bytes: &[u8; Position::BYTES]) -> Position {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let mut device = [0; 16];
        device.copy_from_slice(&bytes[..16]);
        Position { device, epoch: word(16), lsn: word(24) }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.device.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{}-{}", self.epoch, self.lsn)
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Position {
    type Err = Error;

    fn from_str(text: &str) -> Result<Position, Error> {
        let parse = || {
            let mut parts = text.split('-');
            let (device, epoch, lsn) = (parts.next()?, parts.next()?, parts.next()?);
            let is_hex = device.len() == 32 && device.bytes().all(|byte| byte.is_ascii_hexdigit());
            if parts.next().is_some() || !is_hex {
                return None;
            }
            let device = u128::from_str_radix(device, 16).ok()?.to_be_bytes();
            Some(Position { device, epoch: epoch.parse().ok()?, lsn: lsn.parse().ok()? })
        };
        parse().ok_or_else(|| Error::BadPosition {
            why: format!("{text:?} is not a position; give one as `kaml watch` prints it"),
        })
    }
}
