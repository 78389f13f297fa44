//! The TCP transport without sockets: bytes in, PDUs out, and the other way round. Both ends use it.

pub mod framer;
pub mod outbox;

/// Which digests were agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// CRC32C after each header.
    pub header: bool,
    /// CRC32C after the data of each PDU that has any.
    pub data: bool,
}

impl Digests {
    /// As in Initialize Connection.
    pub fn bits(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }

    /// From Initialize Connection; other bits are ignored.
    pub fn from_bits(bits: u8) -> Digests {
        Digests { header: bits & 1 != 0, data: bits & 2 != 0 }
    }
}

/// Bytes of a digest.
const DIGEST_BYTES: usize = 4;

/// What SPDK takes for the digest of data: that of the data filled up with zeros to a multiple of 4 bytes. Others do not fill
/// up, and the specification knows no data of other lengths, which values of any length need.
fn padded_digest(digest: u32, data_bytes: usize) -> u32 {
    kaml_crc::crc32c_append(digest, &[0; 3][..data_bytes.wrapping_neg() % 4])
}

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The one who sends commands.
    Host,
    /// The one who answers them.
    Target,
}

#[cfg(test)]
mod tests;
