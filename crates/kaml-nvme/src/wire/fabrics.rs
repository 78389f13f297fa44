//! Fabrics commands and the controller's registers.
//!
//! Lives here:       Connect, Property Get and Set; the bits of CAP, CC and CSTS.
//! Lives elsewhere:  what they do (`target::fabrics`).
//! Implements:       spec:NVMe-Base "Fabrics Command Set", "Controller Properties".

use super::command::{Command, FABRICS};
use super::status::Status;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Types of fabrics commands.
#[allow(missing_docs, reason = "named as in the specification")]
pub mod kind {
    pub const PROPERTY_SET: u8 = 0x00;
    pub const CONNECT: u8 = 0x01;
    pub const PROPERTY_GET: u8 = 0x04;
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
}

/// Controller number that means any free one.
pub const CNTLID_DYNAMIC: u16 = 0xffff;
/// The name that discovery controllers are connected by.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// What the completion of a Connect has for the queue's head when flow control is off.
pub const NO_FLOW_CONTROL: u16 = 0xffff;

/// The fields of a Connect command, bytes 40 to 63.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 40 | 2 | record format, 0 |
/// | 42 | 2 | queue; 0 is the admin queue |
/// | 44 | 2 | entries of the queue, less one |
/// | 46 | 1 | attributes: bit 2 disables flow control |
/// | 48 | 4 | keep-alive time-out in ms |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the table above names the fields")]
pub struct Connect {
    pub format: U16,
    pub queue: U16,
    pub queue_size: U16,
    pub attributes: u8,
    pub reserved: u8,
    pub keep_alive_ms: U32,
    pub reserved_tail: [u8; 12],
}

/// The data of a Connect command.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 16 | host identifier |
/// | 16 | 2 | controller; FFFFh for a free one |
/// | 256 | 256 | subsystem name |
/// | 512 | 256 | host name |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the table above names the fields")]
pub struct ConnectData {
    pub host_id: [u8; 16],
    pub cntlid: U16,
    pub reserved: [u8; 238],
    pub subsystem: [u8; 256],
    pub host: [u8; 256],
    pub reserved_tail: [u8; 256],
}

/// The fields of Property Get and Set, bytes 40 to 63.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 40 | 1 | size: 0 for 4 bytes, 1 for 8 |
/// | 44 | 4 | offset of the property |
/// | 48 | 8 | value (Set) |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the table above names the fields")]
pub struct Property {
    pub size: u8,
    pub reserved: [u8; 3],
    pub offset: U32,
    pub value: U64,
    pub reserved_tail: [u8; 8],
}

const _: () = {
    assert!(size_of::<Connect>() == 24 && size_of::<Property>() == 24 && size_of::<ConnectData>() == 1024);
    assert!(offset_of!(ConnectData, subsystem) == 256 && offset_of!(ConnectData, host) == 512);
    assert!(offset_of!(Connect, keep_alive_ms) == 8 && offset_of!(Property, value) == 8);
};

impl Connect {
    /// Attribute: the host does without the queue's head in completions.
    pub const NO_FLOW_CONTROL: u8 = 1 << 2;

    /// Bit of the result: the host has to authenticate the queue.
    pub const AUTHENTICATION_REQUIRED: u64 = 1 << 17;
    /// Bit of the result: the host has to authenticate the queue, and to make a secure channel of it.
    pub const SECURE_CHANNEL_REQUIRED: u64 = 1 << 18;

    /// From a command.
    pub fn of(command: &Command) -> Connect {
        Connect::read_from_bytes(&command.as_bytes()[40..]).expect("24 bytes are left")
    }

    /// As a command that carries its data in the capsule.
    pub fn command(&self) -> Command {
        let mut command = Command::new(FABRICS, u32::from(kind::CONNECT));
        command.sgl = super::command::Sgl::in_capsule(size_of::<ConnectData>() as u32);
        command.as_mut_bytes()[40..].copy_from_slice(self.as_bytes());
        command
    }

    /// The answer to a Connect with a bad parameter: its offset, and whether that is in the data.
    pub fn refusal(offset: usize, in_data: bool) -> (Status, u64) {
        (Status::CONNECT_PARAMETERS, offset as u64 | u64::from(in_data) << 16)
    }
}

impl Property {
    /// From a command.
    pub fn of(command: &Command) -> Property {
        Property::read_from_bytes(&command.as_bytes()[40..]).expect("24 bytes are left")
    }

    /// Bytes of the property.
    pub fn bytes(&self) -> usize {
        if self.size & 7 == 1 { 8 } else { 4 }
    }

    /// A command of the type that reads or writes a property.
    pub fn command(kind: u8, offset: u32, wide: bool, value: u64) -> Command {
        let mut command = Command::new(FABRICS, u32::from(kind));
        let property = Property {
            size: u8::from(wide),
            reserved: [0; 3],
            offset: offset.into(),
            value: value.into(),
            reserved_tail: [0; 8],
        };
        command.as_mut_bytes()[40..].copy_from_slice(property.as_bytes());
        command
    }
}

/// Offsets of properties.
#[allow(missing_docs, reason = "named as in the specification")]
pub mod register {
    pub const CAP: u32 = 0x00;
    pub const VS: u32 = 0x08;
    pub const CC: u32 = 0x14;
    pub const CSTS: u32 = 0x1c;
    pub const CRTO: u32 = 0x68;
}

/// Controller configuration (CC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configuration(pub u32);

impl Configuration {
    /// What a host sets to enable a controller with all command sets: entries of 64 and 16 bytes.
    pub const ALL_COMMAND_SETS: Configuration = Configuration(4 << 20 | 6 << 16 | 0b110 << 4 | 1);
    /// Shutdown notification: normal.
    pub const SHUTDOWN: u32 = 1 << 14;

    /// EN.
    pub fn enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// CSS: 0 blocks alone, 6 all that the controller supports, 7 admin alone.
    pub fn command_sets(self) -> u32 {
        self.0 >> 4 & 7
    }

    /// SHN: anything but 0 requests a shutdown.
    pub fn shutdown(self) -> bool {
        self.0 >> 14 & 3 != 0
    }

    /// Whether a controller that takes 4 KiB pages, round robin, and entries of 64 and 16 bytes can be enabled so.
    pub fn is_supported(self) -> bool {
        let (page, arbitration) = (self.0 >> 7 & 15, self.0 >> 11 & 7);
        let (submission, completion) = (self.0 >> 16 & 15, self.0 >> 20 & 15);
        matches!(self.command_sets(), 0 | 6 | 7)
            && page == 0
            && arbitration == 0
            && matches!((submission, completion), (6, 4) | (0, 0))
    }
}

/// Bits of controller status (CSTS).
pub mod ready {
    /// RDY.
    pub const READY: u32 = 1;
    /// CFS.
    pub const FATAL: u32 = 1 << 1;
    /// SHST: shutdown is complete.
    pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;
}
