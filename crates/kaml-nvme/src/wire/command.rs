//! Submission and completion entries, SGL descriptors, and opcodes.
//!
//! Lives here:       the 64-byte command, the 16-byte completion, where data are.
//! Lives elsewhere:  what commands mean (`target`), how they travel (`pdu`).
//! Implements:       spec:NVMe-Base "Common Command Format", "Common Completion Queue Entry"; spec:NVMe-oF "SGLs".

use super::status::Status;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A command.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 1 | opcode; bits 1:0 are the direction of data |
/// | 1 | 1 | flags; fabrics sets 40h (an SGL is used) |
/// | 2 | 2 | command identifier |
/// | 4 | 4 | namespace; for fabrics commands byte 4 is their type |
/// | 8 | 8 | dwords 2 and 3; key bytes 0 to 7 of Key Value commands |
/// | 16 | 8 | metadata pointer, unused |
/// | 24 | 16 | SGL descriptor |
/// | 40 | 24 | dwords 10 to 15; 14 and 15 are key bytes 8 to 15 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the table above names the fields")]
pub struct Command {
    pub opcode: u8,
    pub flags: u8,
    pub cid: U16,
    pub nsid: U32,
    pub cdw2: U32,
    pub cdw3: U32,
    pub metadata: U64,
    pub sgl: Sgl,
    pub cdw10: U32,
    pub cdw11: U32,
    pub cdw12: U32,
    pub cdw13: U32,
    pub cdw14: U32,
    pub cdw15: U32,
}

/// Where a command's data are.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 8 | address: offset in the capsule, else 0 |
/// | 8 | 4 | length in bytes |
/// | 12 | 3 | reserved |
/// | 15 | 1 | 01h in the capsule, 5Ah by the transport |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the table above names the fields")]
pub struct Sgl {
    pub address: U64,
    pub length: U32,
    pub reserved: [u8; 3],
    pub kind: u8,
}

/// A completion.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 8 | dwords 0 and 1: the command's result |
/// | 8 | 2 | head of the submission queue |
/// | 10 | 2 | reserved over fabrics |
/// | 12 | 2 | command identifier |
/// | 14 | 2 | [`Status`] |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the table above names the fields")]
pub struct Completion {
    pub result: U64,
    pub sq_head: U16,
    pub reserved: U16,
    pub cid: U16,
    pub status: U16,
}

const _: () = {
    assert!(size_of::<Command>() == 64 && size_of::<Completion>() == 16 && size_of::<Sgl>() == 16);
    assert!(offset_of!(Command, sgl) == 24 && offset_of!(Command, cdw10) == 40 && offset_of!(Command, cdw14) == 56);
    assert!(offset_of!(Completion, cid) == 12 && offset_of!(Sgl, kind) == 15);
};

/// Which way a command's data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// From the host to the controller.
    In,
    /// From the controller to the host.
    Out,
    /// Both; never used here.
    Both,
}

/// Opcode of all fabrics commands.
pub const FABRICS: u8 = 0x7f;
/// Command flags: an SGL describes the data.
pub const FLAGS_SGL: u8 = 0x40;
/// Command flags: what describes the data.
pub const FLAGS_PSDT: u8 = 0xc0;
/// Command flags: one of two commands that are executed as one.
pub const FLAGS_FUSED: u8 = 0x03;

/// Admin opcodes.
#[allow(missing_docs, reason = "named as in the specification")]
pub mod admin {
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0a;
    pub const ASYNC_EVENT: u8 = 0x0c;
    pub const NAMESPACE_MANAGEMENT: u8 = 0x0d;
    pub const NAMESPACE_ATTACHMENT: u8 = 0x15;
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Vendor specific, `docs/nvme-vendor.md`: begins or joins a session of numbered commands.
    pub const BEGIN_SESSION: u8 = 0xc0;
    /// Vendor specific: changes attributes of a namespace.
    pub const SET_NAMESPACE: u8 = 0xc1;
}

/// Key Value opcodes (spec:NVMe-KV).
#[allow(missing_docs, reason = "named as in the specification")]
pub mod kv {
    pub const FLUSH: u8 = 0x00;
    pub const STORE: u8 = 0x01;
    pub const RETRIEVE: u8 = 0x02;
    pub const LIST: u8 = 0x06;
    pub const DELETE: u8 = 0x10;
    pub const EXIST: u8 = 0x14;
    /// Vendor specific, `docs/nvme-vendor.md`: several records at once, all or none.
    pub const PUT: u8 = 0xc1;
    /// Vendor specific: names keys for the next two.
    pub const NAME_KEYS: u8 = 0xc5;
    pub const RETRIEVE_NAMED: u8 = 0xc6;
    pub const EXIST_NAMED: u8 = 0xca;
    /// Vendor specific: names a range of keys for the next one.
    pub const NAME_RANGE: u8 = 0xc9;
    pub const RETRIEVE_RANGE: u8 = 0xde;
    /// Vendor specific: counts or deletes the keys of a range.
    pub const COUNT_RANGE: u8 = 0xcd;
    pub const DELETE_RANGE: u8 = 0xd1;
    /// Vendor specific: opens a snapshot of the device for commands that read, or closes it.
    pub const OPEN_SNAPSHOT: u8 = 0xcc;
    pub const CLOSE_SNAPSHOT: u8 = 0xd0;
    /// Vendor specific: what was committed after a position.
    pub const READ_CHANGES: u8 = 0xe2;
    /// Vendor specific: a backup of the device, its base, its stream, and its end.
    pub const BEGIN_BACKUP: u8 = 0xec;
    pub const SEND_BASE: u8 = 0xed;
    pub const READ_BACKUP: u8 = 0xee;
    pub const END_BACKUP: u8 = 0xf0;
    /// Vendor specific, for namespaces that keep versions, as all that follow.
    pub const RETRIEVE_VERSION: u8 = 0xc2;
    pub const UNDO: u8 = 0xc4;
    pub const SNAPSHOT: u8 = 0xc8;
    pub const HISTORY: u8 = 0xce;
    pub const VERSIONS: u8 = 0xd2;
    pub const DIFF: u8 = 0xd6;
    pub const MERGE: u8 = 0xda;
}

/// Block opcodes (spec:NVMe-NVM).
#[allow(missing_docs, reason = "named as in the specification")]
pub mod nvm {
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const COMPARE: u8 = 0x05;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    pub const VERIFY: u8 = 0x0c;
}

/// An I/O command set (CSI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandSet {
    /// Blocks.
    Nvm,
    /// Keys and values.
    KeyValue,
}

impl CommandSet {
    /// By its identifier.
    pub fn from_csi(csi: u8) -> Option<CommandSet> {
        match csi {
            0 => Some(CommandSet::Nvm),
            1 => Some(CommandSet::KeyValue),
            _ => None,
        }
    }

    /// Its identifier.
    pub fn csi(self) -> u8 {
        match self {
            CommandSet::Nvm => 0,
            CommandSet::KeyValue => 1,
        }
    }
}

impl Sgl {
    const IN_CAPSULE: u8 = 0x01;
    const TRANSPORT: u8 = 0x5a;

    /// Data that follow the command in its capsule.
    pub fn in_capsule(length: u32) -> Sgl {
        Sgl { length: length.into(), kind: Sgl::IN_CAPSULE, ..Sgl::default() }
    }

    /// Data that the transport moves when the controller requests or sends them.
    pub fn transport(length: u32) -> Sgl {
        Sgl { length: length.into(), kind: Sgl::TRANSPORT, ..Sgl::default() }
    }

    /// Whether the data are in the capsule; an error if neither there nor moved by the transport.
    pub fn is_in_capsule(&self) -> Result<bool, Status> {
        match self.kind {
            Sgl::IN_CAPSULE => Ok(true),
            Sgl::TRANSPORT => Ok(false),
            // Nothing is moved, so nothing need describe it.
            _ if self.length == 0 => Ok(false),
            _ => Err(Status::SGL_TYPE),
        }
    }
}

impl Command {
    /// A command without data; all else is zero.
    pub fn new(opcode: u8, nsid: u32) -> Command {
        let mut command = <Command as zerocopy::FromZeros>::new_zeroed();
        (command.opcode, command.flags, command.nsid) = (opcode, FLAGS_SGL, nsid.into());
        command.sgl = Sgl::transport(0);
        command
    }

    /// Which way its data go: bits 1:0 of the opcode, or of a fabrics command's type.
    pub fn direction(&self) -> Direction {
        let code = if self.opcode == FABRICS { self.fabrics_type() } else { self.opcode };
        match code & 3 {
            0 => Direction::None,
            1 => Direction::In,
            2 => Direction::Out,
            _ => Direction::Both,
        }
    }

    /// The type of a fabrics command.
    pub fn fabrics_type(&self) -> u8 {
        self.nsid.get() as u8
    }

    /// Bits 31:24 of dword 11 of Identify, or of dword 14 of Get Log Page, or of dword 11 of Namespace Management.
    pub fn csi_of(dword: U32) -> u8 {
        (dword.get() >> 24) as u8
    }
}

impl Completion {
    /// The answer to a command.
    pub fn new(cid: u16, sq_head: u16, status: Status, result: u64) -> Completion {
        let status = status.field().into();
        Completion { result: result.into(), sq_head: sq_head.into(), reserved: U16::ZERO, cid: cid.into(), status }
    }

    /// What the command came to.
    pub fn status(&self) -> Status {
        Status::from_field(self.status.get())
    }
}
