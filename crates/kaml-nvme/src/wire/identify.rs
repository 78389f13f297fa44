//! The pages of Identify.
//!
//! Lives here:       4096-byte structures with their offsets, identifier descriptors, lists.
//! Lives elsewhere:  what is in them (`target::identify`).
//! Implements:       spec:NVMe-Base "Identify Command"; spec:NVMe-NVM and spec:NVMe-KV "Identify Namespace".

use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of every page.
pub const PAGE_BYTES: usize = 4096;

/// The requested page (CNS).
#[allow(missing_docs, reason = "named as in the specification")]
pub mod cns {
    pub const NAMESPACE: u8 = 0x00;
    pub const CONTROLLER: u8 = 0x01;
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    pub const DESCRIPTORS: u8 = 0x03;
    pub const SET_NAMESPACE: u8 = 0x05;
    pub const SET_CONTROLLER: u8 = 0x06;
    pub const SET_ACTIVE_NAMESPACES: u8 = 0x07;
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    pub const FORMAT: u8 = 0x0a;
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    pub const ATTACHED_CONTROLLERS: u8 = 0x12;
    pub const CONTROLLERS: u8 = 0x13;
    pub const SET_ALLOCATED_NAMESPACES: u8 = 0x1a;
    pub const SET_ALLOCATED_NAMESPACE: u8 = 0x1b;
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// Identify Controller; reserved fields and those that stay zero are left out of the names.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "named as in the specification; the offsets are asserted below")]
pub struct Controller {
    pub vid: U16,
    pub ssvid: U16,
    pub sn: [u8; 20],
    pub mn: [u8; 40],
    pub fr: [u8; 8],
    pub rab: u8,
    pub ieee: [u8; 3],
    pub cmic: u8,
    pub mdts: u8,
    pub cntlid: U16,
    pub ver: U32,
    pub rtd3: [u8; 8],
    pub oaes: U32,
    pub ctratt: U32,
    pub reserved_100: [u8; 11],
    pub cntrltype: u8,
    pub reserved_112: [u8; 144],
    pub oacs: U16,
    pub acl: u8,
    pub aerl: u8,
    pub frmw: u8,
    pub lpa: u8,
    pub elpe: u8,
    pub npss: u8,
    pub avscc: u8,
    pub apsta: u8,
    pub wctemp: U16,
    pub cctemp: U16,
    pub reserved_270: [u8; 10],
    pub tnvmcap: [U64; 2],
    pub unvmcap: [U64; 2],
    pub reserved_312: [u8; 8],
    pub kas: U16,
    pub reserved_322: [u8; 190],
    pub sqes: u8,
    pub cqes: u8,
    pub maxcmd: U16,
    pub nn: U32,
    pub oncs: U16,
    pub fuses: U16,
    pub fna: u8,
    pub vwc: u8,
    pub awun: U16,
    pub awupf: U16,
    pub icsvscc: u8,
    pub nwpc: u8,
    pub acwu: U16,
    pub cdfs: U16,
    pub sgls: U32,
    pub mnan: U32,
    pub reserved_544: [u8; 224],
    pub subnqn: [u8; 256],
    pub reserved_1024: [u8; 768],
    pub ioccsz: U32,
    pub iorcsz: U32,
    pub icdoff: U16,
    pub fcatt: u8,
    pub msdbd: u8,
    pub ofcs: U16,
    pub dctype: u8,
    pub reserved_1807: [u8; 241],
    pub power_state_0: [u8; 32],
    pub reserved_2080: [u8; 2016],
}

/// Identify Namespace of the NVM command set.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "named as in the specification; the offsets are asserted below")]
pub struct NvmNamespace {
    pub nsze: U64,
    pub ncap: U64,
    pub nuse: U64,
    pub nsfeat: u8,
    pub nlbaf: u8,
    pub flbas: u8,
    pub mc: u8,
    pub dpc: u8,
    pub dps: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub dlfeat: u8,
    pub nawun: U16,
    pub nawupf: U16,
    pub nacwu: U16,
    pub reserved_40: [u8; 8],
    pub nvmcap: [U64; 2],
    pub npwg: U16,
    pub npwa: U16,
    pub npdg: U16,
    pub npda: U16,
    pub nows: U16,
    pub reserved_74: [u8; 18],
    pub anagrpid: U32,
    pub reserved_96: [u8; 3],
    pub nsattr: u8,
    pub reserved_100: [u8; 4],
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
    pub lbaf: [U32; 64],
    pub reserved_384: [u8; 3712],
}

/// Identify Namespace of the Key Value command set.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "named as in the specification; the offsets are asserted below")]
pub struct KvNamespace {
    pub nsze: U64,
    pub reserved_8: U64,
    pub nuse: U64,
    pub nsfeat: u8,
    pub nkvf: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub kvfc: u8,
    pub reserved_30: [u8; 2],
    pub novg: U32,
    pub anagrpid: U32,
    pub reserved_40: [u8; 3],
    pub nsattr: u8,
    pub nvmsetid: U16,
    pub endgid: U16,
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
    pub formats: [KvFormat; 16],
    pub reserved_328: [u8; 3512],
    pub vendor: [u8; 256],
}

/// What keys and values a Key Value namespace takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "named as in the specification; the offsets are asserted below")]
pub struct KvFormat {
    pub key_bytes_max: U16,
    pub reserved: u8,
    pub additional: u8,
    pub value_bytes_max: U32,
    pub keys_max: U32,
    pub reserved_12: U32,
}

/// Identify Namespace, independent of the command set.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "named as in the specification; the offsets are asserted below")]
pub struct IndependentNamespace {
    pub nsfeat: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub anagrpid: U32,
    pub nsattr: u8,
    pub reserved_9: u8,
    pub nvmsetid: U16,
    pub endgid: U16,
    pub nstat: u8,
    pub reserved_15: [u8; 4081],
}

const _: () = {
    use Controller as C;
    assert!(size_of::<C>() == PAGE_BYTES && offset_of!(C, cntlid) == 78 && offset_of!(C, oaes) == 92);
    assert!(offset_of!(C, cntrltype) == 111 && offset_of!(C, oacs) == 256 && offset_of!(C, wctemp) == 266);
    assert!(offset_of!(C, tnvmcap) == 280 && offset_of!(C, kas) == 320 && offset_of!(C, sqes) == 512);
    assert!(offset_of!(C, oncs) == 520 && offset_of!(C, vwc) == 525 && offset_of!(C, sgls) == 536);
    assert!(offset_of!(C, subnqn) == 768 && offset_of!(C, ioccsz) == 1792 && offset_of!(C, ofcs) == 1804);
    assert!(offset_of!(C, power_state_0) == 2048);
    use NvmNamespace as N;
    assert!(size_of::<N>() == PAGE_BYTES && offset_of!(N, nsfeat) == 24 && offset_of!(N, dlfeat) == 33);
    assert!(
        offset_of!(N, nvmcap) == 48
            && offset_of!(N, npwg) == 64
            && offset_of!(N, anagrpid) == 92
            && offset_of!(N, nsattr) == 99
    );
    assert!(offset_of!(N, nguid) == 104 && offset_of!(N, lbaf) == 128);
    use KvNamespace as K;
    assert!(size_of::<K>() == PAGE_BYTES && size_of::<KvFormat>() == 16 && offset_of!(K, nkvf) == 25);
    assert!(offset_of!(K, novg) == 32 && offset_of!(K, nsattr) == 43 && offset_of!(K, nguid) == 48);
    assert!(offset_of!(K, formats) == 72 && offset_of!(K, vendor) == 3840);
    assert!(offset_of!(KvFormat, value_bytes_max) == 4 && offset_of!(KvFormat, keys_max) == 8);
    use IndependentNamespace as I;
    assert!(size_of::<I>() == PAGE_BYTES && offset_of!(I, anagrpid) == 4 && offset_of!(I, nstat) == 14);
};

/// Formats that a block namespace may have, by their index: the power of two of a block's bytes.
pub const LBA_FORMATS: [u8; 2] = [9, 12];

/// Appends one identifier descriptor (CNS 03h): type, length, two reserved bytes, the identifier.
pub fn put_descriptor(out: &mut Vec<u8>, kind: u8, id: &[u8]) {
    out.extend_from_slice(&[kind, id.len() as u8, 0, 0]);
    out.extend_from_slice(id);
}

/// Types of identifier descriptors.
#[allow(missing_docs, reason = "named as in the specification")]
pub mod descriptor {
    pub const NGUID: u8 = 2;
    pub const UUID: u8 = 3;
    pub const CSI: u8 = 4;
}

/// A list of namespaces: ascending, at most 1024, ended by 0.
pub fn namespace_list(ids: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut page: Vec<u8> = ids.take(PAGE_BYTES / 4).flat_map(u32::to_le_bytes).collect();
    page.resize(PAGE_BYTES, 0);
    page
}

/// A list of controllers: the count, then ascending numbers, at most 2047.
pub fn controller_list(ids: impl Iterator<Item = u16>) -> Vec<u8> {
    let ids: Vec<u16> = ids.take(PAGE_BYTES / 2 - 1).collect();
    let mut page: Vec<u8> = (ids.len() as u16).to_le_bytes().to_vec();
    page.extend(ids.into_iter().flat_map(u16::to_le_bytes));
    page.resize(PAGE_BYTES, 0);
    page
}

/// Reads a list of controllers; none if its count is more than fits.
pub fn read_controller_list(page: &[u8]) -> Option<Vec<u16>> {
    let numbers: Vec<u16> = page.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    let (count, ids) = numbers.split_first()?;
    Some(ids.get(..usize::from(*count))?.to_vec())
}
