//! Protocol data units of the TCP transport.
//!
//! Lives here:       headers with their offsets, and which headers are legal for whom.
//! Lives elsewhere:  cutting a stream into them (`transport::framer`), the exchange (`target`, `host`).
//! Implements:       spec:NVMe-TCP "PDU Formats".
//!
//! Every PDU begins with these 8 bytes:
//!
//! | offset | bytes | field |
//! |-------:|------:|-------|
//! | 0 | 1 | type |
//! | 1 | 1 | flags: 0 header digest, 1 data digest, 2 last, 3 success |
//! | 2 | 1 | bytes of the header, digest not counted |
//! | 3 | 1 | where data begin; 0 without data |
//! | 4 | 4 | bytes of the whole PDU, digests counted |

use super::command::{Command, Completion};
use std::mem::size_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the table above names the fields")]
pub struct Common {
    pub kind: u8,
    pub flags: u8,
    pub header_bytes: u8,
    pub data_offset: u8,
    pub pdu_bytes: U32,
}

/// Flags of the common header.
#[allow(missing_docs, reason = "the table above names the fields")]
pub mod flags {
    pub const HEADER_DIGEST: u8 = 1;
    pub const DATA_DIGEST: u8 = 2;
    pub const LAST: u8 = 4;
    pub const SUCCESS: u8 = 8;
}

/// PDU types.
#[allow(missing_docs, reason = "named as in the specification")]
pub mod kind {
    pub const IC_REQ: u8 = 0x00;
    pub const IC_RESP: u8 = 0x01;
    pub const H2C_TERM: u8 = 0x02;
    pub const C2H_TERM: u8 = 0x03;
    pub const COMMAND: u8 = 0x04;
    pub const RESPONSE: u8 = 0x05;
    pub const H2C_DATA: u8 = 0x06;
    pub const C2H_DATA: u8 = 0x07;
    pub const R2T: u8 = 0x09;
}

/// Initialize Connection, request and response, after the common header.
///
/// | offset | bytes | request | response |
/// |-------:|------:|---------|----------|
/// | 8 | 2 | format, 0 | format, 0 |
/// | 10 | 1 | alignment of data to the host | of data to the controller |
/// | 11 | 1 | digests: 0 header, 1 data | digests agreed on |
/// | 12 | 4 | R2Ts the host takes at a time, less one | largest data PDU to the controller |
/// | 16 | 112 | reserved | reserved |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the table above names the fields")]
pub struct Init {
    pub format: U16,
    pub alignment: u8,
    pub digests: u8,
    pub limit: U32,
    pub reserved: [u8; 112],
}

/// Data in either direction, and Ready to Transfer, after the common header.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 8 | 2 | the command's identifier |
/// | 10 | 2 | transfer tag (H2CData, R2T) |
/// | 12 | 4 | offset in the command's data |
/// | 16 | 4 | bytes |
/// | 20 | 4 | reserved |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the table above names the fields")]
pub struct Transfer {
    pub cid: U16,
    pub tag: U16,
    pub offset: U32,
    pub length: U32,
    pub reserved: U32,
}

/// Terminate Connection, after the common header; up to 128 bytes of the offending header follow as data.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 8 | 2 | [`Fatal`] status |
/// | 10 | 4 | its information: the offset of a bad field, or a digest |
/// | 14 | 10 | reserved |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the table above names the fields")]
pub struct Terminate {
    pub status: U16,
    pub information: U32,
    pub reserved: [u8; 10],
}

const COMMON: usize = size_of::<Common>();

const _: () = {
    assert!(COMMON == 8 && COMMON + size_of::<Init>() == 128);
    assert!(COMMON + size_of::<Transfer>() == 24 && COMMON + size_of::<Terminate>() == 24);
    assert!(COMMON + size_of::<Command>() == 72 && COMMON + size_of::<Completion>() == 24);
};

/// The longest header.
pub const HEADER_BYTES_MAX: usize = 128;
/// Bytes of the offending header that a terminate request carries at most.
pub const TERMINATE_DATA_MAX: usize = 128;

/// A header, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Host asks to initialise the connection.
    InitRequest(Init),
    /// Controller answers it.
    InitResponse(Init),
    /// Either side gives up.
    Terminate(Terminate),
    /// A command, perhaps with data.
    Command(Command),
    /// A completion.
    Response(Completion),
    /// Data to the controller; true for the last PDU of a transfer.
    DataIn(Transfer, bool),
    /// Data to the host; whether it is the last PDU, and whether it means a successful completion as well.
    DataOut(Transfer, bool, bool),
    /// The controller requests data.
    ReadyToTransfer(Transfer),
}

/// What makes a connection end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// A header field makes no sense.
    #[error("invalid PDU header field at byte {offset}")]
    Field {
        /// Where it is.
        offset: u32,
    },
    /// A PDU that may not come now.
    #[error("PDU out of sequence")]
    Sequence,
    /// The header's digest does not match.
    #[error("header digest error")]
    HeaderDigest {
        /// The digest that was received.
        received: u32,
    },
    /// Data outside of what was requested.
    #[error("data transfer out of range")]
    Range,
    /// More than the limits allow.
    #[error("transfer limit exceeded")]
    Limit,
    /// An option that is not supported.
    #[error("unsupported parameter at byte {offset}")]
    Unsupported {
        /// Where it is.
        offset: u32,
    },
}

impl Fatal {
    /// The terminate request's fields that name the error.
    pub fn terminate(self) -> Terminate {
        let (status, information) = match self {
            Fatal::Field { offset } => (1, offset),
            Fatal::Sequence => (2, 0),
            Fatal::HeaderDigest { received } => (3, received),
            Fatal::Range => (4, 0),
            Fatal::Limit => (5, 0),
            Fatal::Unsupported { offset } => (6, offset),
        };
        Terminate { status: U16::new(status), information: information.into(), reserved: [0; 10] }
    }
}

impl Common {
    /// What follows these 8 bytes according to the type; an error if there is no such type.
    pub fn expected_header_bytes(&self) -> Result<usize, Fatal> {
        Ok(match self.kind {
            kind::IC_REQ | kind::IC_RESP => 128,
            kind::COMMAND => 72,
            kind::H2C_TERM | kind::C2H_TERM | kind::RESPONSE | kind::H2C_DATA | kind::C2H_DATA | kind::R2T => 24,
            _ => return Err(Fatal::Field { offset: 0 }),
        })
    }

    /// Whether PDUs of this type may carry data, and digests if they were agreed on.
    pub fn may_have_data(&self) -> bool {
        matches!(self.kind, kind::COMMAND | kind::H2C_DATA | kind::C2H_DATA | kind::H2C_TERM | kind::C2H_TERM)
    }

    /// Whether digests that were agreed on apply to this type.
    pub fn is_digested(&self) -> bool {
        !matches!(self.kind, kind::IC_REQ | kind::IC_RESP | kind::H2C_TERM | kind::C2H_TERM)
    }
}

impl Header {
    /// Reads a whole header. The length must be that of the type.
    pub fn parse(bytes: &[u8]) -> Result<Header, Fatal> {
        let (common, rest) = Common::read_from_prefix(bytes).map_err(|_| Fatal::Field { offset: 2 })?;
        if common.expected_header_bytes()? != bytes.len() {
            return Err(Fatal::Field { offset: 2 });
        }
        fn body<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> T {
            T::read_from_bytes(bytes).expect("the length of each type was just checked")
        }
        let is = |flag| common.flags & flag != 0;
        Ok(match common.kind {
            kind::IC_REQ => Header::InitRequest(body(rest)),
            kind::IC_RESP => Header::InitResponse(body(rest)),
            kind::H2C_TERM | kind::C2H_TERM => Header::Terminate(body(rest)),
            kind::COMMAND => Header::Command(body(rest)),
            kind::RESPONSE => Header::Response(body(rest)),
            kind::H2C_DATA => Header::DataIn(body(rest), is(flags::LAST)),
            kind::C2H_DATA if is(flags::SUCCESS) && !is(flags::LAST) => return Err(Fatal::Field { offset: 1 }),
            kind::C2H_DATA => Header::DataOut(body(rest), is(flags::LAST), is(flags::SUCCESS)),
            kind::R2T => Header::ReadyToTransfer(body(rest)),
            _ => return Err(Fatal::Field { offset: 0 }),
        })
    }

    /// Type, flags and body as bytes; `host` selects whose terminate request it is.
    pub fn encode(&self, host: bool, out: &mut Vec<u8>) {
        let (kind, flags) = match self {
            Header::InitRequest(_) => (kind::IC_REQ, 0),
            Header::InitResponse(_) => (kind::IC_RESP, 0),
            Header::Terminate(_) if host => (kind::H2C_TERM, 0),
            Header::Terminate(_) => (kind::C2H_TERM, 0),
            Header::Command(_) => (kind::COMMAND, 0),
            Header::Response(_) => (kind::RESPONSE, 0),
            Header::DataIn(_, last) => (kind::H2C_DATA, if *last { flags::LAST } else { 0 }),
            Header::DataOut(_, last, success) => {
                let success = if *success { flags::SUCCESS } else { 0 };
                (kind::C2H_DATA, success | if *last { flags::LAST } else { 0 })
            }
            Header::ReadyToTransfer(_) => (kind::R2T, 0),
        };
        let mut common = Common::new_zeroed();
        (common.kind, common.flags) = (kind, flags);
        common.header_bytes = common.expected_header_bytes().expect("types of our own") as u8;
        common.pdu_bytes = u32::from(common.header_bytes).into();
        out.extend_from_slice(common.as_bytes());
        out.extend_from_slice(match self {
            Header::InitRequest(body) | Header::InitResponse(body) => body.as_bytes(),
            Header::Terminate(body) => body.as_bytes(),
            Header::Command(body) => body.as_bytes(),
            Header::Response(body) => body.as_bytes(),
            Header::DataIn(body, _) | Header::DataOut(body, _, _) | Header::ReadyToTransfer(body) => body.as_bytes(),
        });
    }
}
