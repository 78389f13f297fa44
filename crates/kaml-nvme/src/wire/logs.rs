//! Log pages.
//!
//! Lives here:       structures with their offsets, the fields of Get Log Page, commands-and-effects bits.
//! Lives elsewhere:  what is in them (`target::logs`).
//! Implements:       spec:NVMe-Base "Get Log Page Command"; spec:NVMe-oF "Discovery Log Page".

use super::command::Command;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Log page identifiers.
#[allow(missing_docs, reason = "named as in the specification")]
pub mod lid {
    pub const SUPPORTED: u8 = 0x00;
    pub const ERRORS: u8 = 0x01;
    pub const HEALTH: u8 = 0x02;
    pub const FIRMWARE: u8 = 0x03;
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    pub const EFFECTS: u8 = 0x05;
    pub const DISCOVERY: u8 = 0x70;
    pub const RESERVATIONS: u8 = 0x80;
    /// Vendor specific: features and counters of KAML (`docs/nvme-vendor.md`).
    pub const KAML: u8 = 0xc0;
    /// Vendor specific: namespaces with their names.
    pub const KAML_NAMESPACES: u8 = 0xc1;
}

/// Bits of the commands supported and effects page.
#[allow(missing_docs, reason = "named as in the specification")]
pub mod effect {
    pub const SUPPORTED: u32 = 1;
    pub const CONTENT_CHANGE: u32 = 1 << 1;
    pub const INVENTORY_CHANGE: u32 = 1 << 3;
}

/// The fields of Get Log Page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRequest {
    /// The page.
    pub lid: u8,
    /// Leave the asynchronous event that announced it in place.
    pub retain: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: usize,
    /// Command set.
    pub csi: u8,
}

impl LogRequest {
    /// From a command. Reading by index (OT) is not supported: none.
    pub fn of(command: &Command) -> Option<LogRequest> {
        let (dw10, dw14) = (command.cdw10.get(), command.cdw14.get());
        let dwords = u64::from(dw10 >> 16) | u64::from(command.cdw11.get() & 0xffff) << 16;
        let offset = u64::from(command.cdw12.get()) | u64::from(command.cdw13.get()) << 32;
        (dw14 & 1 << 23 == 0 && offset.is_multiple_of(4)).then(|| LogRequest {
            lid: dw10 as u8,
            retain: dw10 & 1 << 15 != 0,
            offset,
            bytes: usize::try_from((dwords + 1) * 4).expect("34 bits fit 64"),
            csi: Command::csi_of(command.cdw14),
        })
    }

    /// As a command.
    pub fn command(&self, nsid: u32) -> Command {
        let mut command = Command::new(super::command::admin::GET_LOG_PAGE, nsid);
        let dwords = (self.bytes / 4 - 1) as u32;
        command.cdw10 = (u32::from(self.lid) | u32::from(self.retain) << 15 | dwords << 16).into();
        command.cdw11 = (dwords >> 16).into();
        command.cdw12 = (self.offset as u32).into();
        command.cdw13 = ((self.offset >> 32) as u32).into();
        command.cdw14 = (u32::from(self.csi) << 24).into();
        command
    }
}

/// SMART / health information.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "named as in the specification; the offsets are asserted below")]
pub struct Health {
    pub critical_warning: u8,
    pub temperature_kelvin: U16,
    pub spare_percent: u8,
    pub spare_threshold_percent: u8,
    pub used_percent: u8,
    pub endurance_warning: u8,
    pub reserved_7: [u8; 25],
    pub units_read: [U64; 2],
    pub units_written: [U64; 2],
    pub host_reads: [U64; 2],
    pub host_writes: [U64; 2],
    pub busy_minutes: [U64; 2],
    pub power_cycles: [U64; 2],
    pub power_on_hours: [U64; 2],
    pub unsafe_shutdowns: [U64; 2],
    pub media_errors: [U64; 2],
    pub error_entries: [U64; 2],
    pub reserved_192: [u8; 320],
}

/// An entry of the error log.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 8 | number of the error, from 1 on |
/// | 8 | 2 | queue |
/// | 10 | 2 | command identifier |
/// | 12 | 2 | status, as in the completion |
/// | 14 | 2 | where in the command: byte in bits 7:0, bit in 10:8; FFFFh: nowhere in particular |
/// | 16 | 8 | first block |
/// | 24 | 4 | namespace |
/// | 28 | 1 | vendor specific log page |
/// | 29 | 1 | transport: 3 is TCP |
/// | 30 | 1 | command set |
/// | 31 | 1 | opcode |
/// | 32 | 31 | more of the command, 0 |
/// | 63 | 1 | 1: command set and opcode are reported |
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "named as in the specification; the offsets are asserted below")]
pub struct ErrorEntry {
    pub number: U64,
    pub queue: U16,
    pub cid: U16,
    pub status: U16,
    pub location: U16,
    pub lba: U64,
    pub nsid: U32,
    pub vendor: u8,
    pub transport: u8,
    pub csi: u8,
    pub opcode: u8,
    pub reserved: [u8; 31],
    pub version: u8,
}

/// The head of the discovery page.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "named as in the specification; the offsets are asserted below")]
pub struct DiscoveryHead {
    pub generation: U64,
    pub record_count: U64,
    pub format: U16,
    pub reserved: [u8; 1006],
}

/// The first byte of the security field of a discovery record: TLS 1.3.
pub const SECURITY_TLS_1_3: u8 = 2;

/// A record of the discovery page.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "named as in the specification; the offsets are asserted below")]
pub struct DiscoveryRecord {
    pub transport: u8,
    pub family: u8,
    pub subsystem_type: u8,
    pub requirements: u8,
    pub port: U16,
    pub cntlid: U16,
    pub admin_queue_size: U16,
    pub flags: U16,
    pub reserved_12: [u8; 20],
    pub service: [u8; 32],
    pub reserved_64: [u8; 192],
    pub subsystem: [u8; 256],
    pub address: [u8; 256],
    pub security: [u8; 256],
}

const _: () = {
    assert!(size_of::<Health>() == 512 && offset_of!(Health, units_read) == 32);
    assert!(offset_of!(Health, unsafe_shutdowns) == 144 && offset_of!(Health, error_entries) == 176);
    assert!(size_of::<ErrorEntry>() == 64 && offset_of!(ErrorEntry, status) == 12);
    assert!(offset_of!(ErrorEntry, nsid) == 24 && offset_of!(ErrorEntry, transport) == 29);
    assert!(offset_of!(ErrorEntry, opcode) == 31 && offset_of!(ErrorEntry, version) == 63);
    assert!(size_of::<DiscoveryHead>() == 1024 && size_of::<DiscoveryRecord>() == 1024);
    assert!(offset_of!(DiscoveryRecord, service) == 32 && offset_of!(DiscoveryRecord, subsystem) == 256);
    assert!(offset_of!(DiscoveryRecord, address) == 512 && offset_of!(DiscoveryRecord, security) == 768);
};
