//! Log pages of our own: what the device can do and has done, and what its namespaces are.
//!
//! Lives here:       structures with their offsets, and reading them.
//! Lives elsewhere:  what is in them (`target::logs`); the page for people (`docs/nvme-vendor.md`).

use super::versions::{get_policy, put_policy};
use kaml::{
    BlockOptions, Compressed, Compression, DeviceInfo, KeyKind, NamespaceInfo, NamespaceKind, Stats, VersionShape,
};
use kaml_versions::{Index, Parameters, ValueShape};
use std::mem::{offset_of, size_of};
use std::num::NonZeroU64;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 4] = *b"KAML";
const VERSION: u16 = 1;

/// Bits of the features field.
#[allow(missing_docs, reason = "`docs/nvme-vendor.md` names them")]
pub mod feature {
    pub const PUT: u64 = 1;
    pub const NAMED: u64 = 1 << 1;
    pub const VERSIONS: u64 = 1 << 2;
    pub const NAMESPACES: u64 = 1 << 3;
    pub const CHANGES: u64 = 1 << 4;
    pub const SESSIONS: u64 = 1 << 5;
    pub const LONG_KEYS: u64 = 1 << 6;
    pub const RANGES: u64 = 1 << 7;
    pub const SNAPSHOTS: u64 = 1 << 8;
    pub const CHANGE_STREAM: u64 = 1 << 9;
    pub const COMPRESSION: u64 = 1 << 10;
    pub const NEWEST_ONLY: u64 = 1 << 11;
    pub const BACKUPS: u64 = 1 << 13;
    /// All of them.
    pub const ALL: u64 = PUT
        | NAMED
        | VERSIONS
        | NAMESPACES
        | CHANGES
        | SESSIONS
        | LONG_KEYS
        | RANGES
        | SNAPSHOTS
        | CHANGE_STREAM
        | COMPRESSION
        | NEWEST_ONLY
        | BACKUPS;
}

/// Log page C0h. Times 1000 is the unit of the write amplification; the offsets are asserted below.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "`docs/nvme-vendor.md` has the table")]
pub struct DevicePage {
    pub magic: [u8; 4],
    pub version: U16,
    pub reserved_6: U16,
    pub features: U64,
    pub value_bytes_max: U64,
    pub batch_bytes_max: U64,
    pub log_count: U64,
    pub put_count: U64,
    pub delete_count: U64,
    pub get_count: U64,
    pub host_bytes: U64,
    pub ring_bytes: U64,
    pub page_bytes: U64,
    pub relocated_bytes: U64,
    pub metadata_bytes: U64,
    pub live_bytes: U64,
    pub capacity_bytes: U64,
    pub free_blocks: U64,
    pub bad_blocks: U64,
    pub erase_count: U64,
    pub erase_min: U64,
    pub erase_max: U64,
    pub write_amplification_milli: U64,
    pub file_bytes: U64,
    pub block_bytes: U64,
    pub commit_ring_bytes: U64,
    pub reserved_192: [U64; 40],
}

impl DevicePage {
    /// What is in it of a device.
    pub fn of(info: &DeviceInfo, stats: &Stats) -> DevicePage {
        DevicePage {
            magic: MAGIC,
            version: VERSION.into(),
            reserved_6: U16::ZERO,
            features: feature::ALL.into(),
            value_bytes_max: info.value_bytes_max.into(),
            batch_bytes_max: info.batch_bytes_max.into(),
            log_count: u64::from(info.die_count).into(),
            put_count: stats.put_count.into(),
            delete_count: stats.delete_count.into(),
            get_count: stats.get_count.into(),
            host_bytes: stats.host_bytes.into(),
            ring_bytes: stats.ring_bytes.into(),
            page_bytes: stats.page_bytes.into(),
            relocated_bytes: stats.relocated_bytes.into(),
            metadata_bytes: stats.metadata_bytes.into(),
            live_bytes: stats.live_bytes.into(),
            capacity_bytes: stats.capacity_bytes.into(),
            free_blocks: u64::from(stats.free_blocks).into(),
            bad_blocks: u64::from(stats.bad_blocks).into(),
            erase_count: stats.erase_count.into(),
            erase_min: u64::from(stats.erase_min).into(),
            erase_max: u64::from(stats.erase_max).into(),
            write_amplification_milli: ((stats.write_amplification() * 1000.0) as u64).into(),
            file_bytes: info.file_bytes.unwrap_or(info.flash_bytes + info.flash_bytes / 8 + info.ring_bytes).into(),
            block_bytes: info.block_bytes.into(),
            commit_ring_bytes: info.ring_bytes.into(),
            reserved_192: [U64::ZERO; 40],
        }
    }

    /// Reads it; none if it is another maker's page.
    pub fn read(data: &[u8]) -> Option<DevicePage> {
        DevicePage::read_from_prefix(data).ok().map(|(page, _)| page).filter(|page| page.magic == MAGIC)
    }
}

/// The head of log page C1h; the entries follow.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | `"KAML"` |
/// | 4 | 2 | version, 1 |
/// | 6 | 2 | bytes of an entry, 512 |
/// | 8 | 4 | entries |
/// | 12 | 4 | reserved, 0 |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct NamespacesHead {
    magic: [u8; 4],
    version: U16,
    entry_bytes: U16,
    count: U32,
    reserved: U32,
}

/// A namespace.
///
/// | offset | bytes | field |
/// |-------:|------:|-------|
/// | 0 | 4 | namespace |
/// | 4 | 1 | 0 keys of 1 to 16 bytes, 1 64-bit integers, 2 logical blocks, 3 keys of 1 to 1024 bytes, 4 the same in their order |
/// | 5 | 1 | 1 if it keeps versions |
/// | 6 | 1 | bytes of the name |
/// | 7 | 1 | logs that it is mapped to; 0 for all |
/// | 8 | 8 | records, units of blocks that hold data, or versions of all keys |
/// | 16 | 8 | memory of its index |
/// | 24 | 8 | blocks |
/// | 32 | 4 | bytes of a block |
/// | 36 | 4 | bytes that are mapped together |
/// | 40 | 8 | memory of the page buffer of versions |
/// | 48 | 4 | bytes of a segment of versions |
/// | 52 | 1 | 1 if its index is in memory |
/// | 53 | 1 | what may go when space runs low, as in the attributes of a new namespace |
/// | 54 | 10 | reserved, 0 |
/// | 64 | 128 | logs, 2 bytes each |
/// | 192 | 8 | keep what was put in this many nanoseconds before then |
/// | 200 | 4 | keep so many of the newest versions of each key then |
/// | 204 | 4 | reserved, 0 |
/// | 208 | 8 | records expire after so many milliseconds; 0: they do not |
/// | 216 | 40 | reserved, 0 |
/// | 256 | 256 | name, UTF-8 |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct NamespaceEntry {
    nsid: U32,
    kind: u8,
    keeps_versions: u8,
    name_bytes: u8,
    log_count: u8,
    record_count: U64,
    index_bytes: U64,
    block_count: U64,
    block_bytes: U32,
    unit_bytes: U32,
    buffer_bytes: U64,
    segment_bytes: U32,
    loaded: u8,
    policy: u8,
    compression: u8,
    reserved_55: [u8; 9],
    logs: [U16; 64],
    keep_for_ns: U64,
    keep_last: U32,
    reserved_204: U32,
    default_ttl_ms: U64,
    given_bytes: U64,
    stored_bytes: U64,
    reserved_232: [u8; 24],
    name: [u8; 256],
}

const HEAD_BYTES: usize = size_of::<NamespacesHead>();
const ENTRY_BYTES: usize = size_of::<NamespaceEntry>();
/// Bytes of a page of versions, which mean nothing to a host.
const VERSION_PAGE_BYTES: u32 = 4096;

const _: () = {
    assert!(size_of::<DevicePage>() == 512 && offset_of!(DevicePage, put_count) == 40);
    assert!(offset_of!(DevicePage, live_bytes) == 104 && offset_of!(DevicePage, write_amplification_milli) == 160);
    assert!(offset_of!(DevicePage, file_bytes) == 168 && offset_of!(DevicePage, commit_ring_bytes) == 184);
    assert!(HEAD_BYTES == 16 && ENTRY_BYTES == 512 && offset_of!(NamespaceEntry, block_count) == 24);
    assert!(offset_of!(NamespaceEntry, loaded) == 52 && offset_of!(NamespaceEntry, name) == 256);
    assert!(offset_of!(NamespaceEntry, keep_for_ns) == 192 && offset_of!(NamespaceEntry, keep_last) == 200);
    assert!(offset_of!(NamespaceEntry, default_ttl_ms) == 208);
    assert!(offset_of!(NamespaceEntry, compression) == 54 && offset_of!(NamespaceEntry, given_bytes) == 216);
};

impl NamespaceEntry {
    fn of(info: &NamespaceInfo) -> NamespaceEntry {
        let mut entry = NamespaceEntry::new_zeroed();
        entry.nsid = info.id.into();
        let name = &info.name.as_bytes()[..info.name.len().min(usize::from(u8::MAX))];
        entry.name[..name.len()].copy_from_slice(name);
        entry.name_bytes = name.len() as u8;
        let logs = &info.logs[..info.logs.len().min(entry.logs.len())];
        entry.log_count = logs.len() as u8;
        entry.logs.iter_mut().zip(logs).for_each(|(place, log)| *place = U16::new(*log as u16));
        (entry.record_count, entry.index_bytes) = (info.record_count.into(), info.index_bytes.into());
        entry.loaded = u8::from(info.loaded);
        entry.default_ttl_ms = info.default_ttl_ms.map_or(0, NonZeroU64::get).into();
        entry.compression = info.compression.code();
        entry.given_bytes = info.compressed.given_bytes.into();
        entry.stored_bytes = info.compressed.stored_bytes.into();
        let of_keys = |keys| match keys {
            KeyKind::Bytes => 0,
            KeyKind::U64 => 1,
            KeyKind::Any => 3,
            KeyKind::Ordered => 4,
        };
        match &info.kind {
            NamespaceKind::Records(keys) => entry.kind = of_keys(*keys),
            NamespaceKind::Blocks(blocks) => {
                entry.kind = 2;
                entry.block_count = blocks.block_count.into();
                (entry.block_bytes, entry.unit_bytes) = (blocks.block_bytes.into(), blocks.unit_bytes.into());
            }
            NamespaceKind::Versions(keys, versions) => {
                (entry.kind, entry.keeps_versions) = (of_keys(*keys), 1);
                entry.buffer_bytes = versions.parameters.buffer_bytes.into();
                entry.segment_bytes = (versions.parameters.segment_bytes() as u32).into();
                (entry.policy, entry.keep_last, entry.keep_for_ns) = put_policy(versions.merge_when_low);
            }
        }
        entry
    }

    fn info(&self) -> Option<NamespaceInfo> {
        let blocks = || BlockOptions {
            unit_bytes: self.unit_bytes.get(),
            ..BlockOptions::new(self.block_bytes.get(), self.block_count.get())
        };
        let parameters = || Parameters {
            page_bytes: VERSION_PAGE_BYTES,
            segment_pages: self.segment_bytes.get() / VERSION_PAGE_BYTES,
            rows: 1,
            buffer_bytes: self.buffer_bytes.get(),
            index: Index::Columns(ValueShape::default()),
            seed: 0,
        };
        let merge_when_low = || get_policy(self.policy, self.keep_last, self.keep_for_ns);
        let versions = || VersionShape { parameters: parameters(), merge_when_low: merge_when_low() };
        let to_keys = |kind| match kind {
            0 => KeyKind::Bytes,
            3 => KeyKind::Any,
            4 => KeyKind::Ordered,
            _ => KeyKind::U64,
        };
        let name = std::str::from_utf8(&self.name[..usize::from(self.name_bytes)]).ok()?;
        let logs = self.logs.get(..usize::from(self.log_count))?;
        Some(NamespaceInfo {
            id: self.nsid.get(),
            name: name.to_owned(),
            kind: match (self.kind, self.keeps_versions) {
                (2, _) => NamespaceKind::Blocks(blocks()),
                (keys, 1) => NamespaceKind::Versions(to_keys(keys), versions()),
                (keys, _) => NamespaceKind::Records(to_keys(keys)),
            },
            logs: logs.iter().map(|log| u32::from(log.get())).collect(),
            record_count: self.record_count.get(),
            index_bytes: self.index_bytes.get(),
            loaded: self.loaded == 1,
            default_ttl_ms: NonZeroU64::new(self.default_ttl_ms.get()),
            expiring_count: 0,
            compression: Compression::of_code(self.compression).unwrap_or_default(),
            compressed: Compressed { given_bytes: self.given_bytes.get(), stored_bytes: self.stored_bytes.get() },
        })
    }
}

/// Log page C1h.
pub fn encode_namespaces<'a>(infos: impl Iterator<Item = &'a NamespaceInfo>) -> Vec<u8> {
    let mut out = vec![0; HEAD_BYTES];
    infos.for_each(|info| out.extend_from_slice(NamespaceEntry::of(info).as_bytes()));
    let count = ((out.len() - HEAD_BYTES) / ENTRY_BYTES) as u32;
    let head = NamespacesHead {
        magic: MAGIC,
        version: VERSION.into(),
        entry_bytes: (ENTRY_BYTES as u16).into(),
        count: count.into(),
        reserved: U32::ZERO,
    };
    out[..HEAD_BYTES].copy_from_slice(head.as_bytes());
    out
}

/// Bytes of log page C1h with the first so many of its entries.
pub fn namespaces_bytes(count: usize) -> usize {
    HEAD_BYTES + count * ENTRY_BYTES
}

/// Reads log page C1h: the namespaces that exist, and how many there are in all; none if it makes no sense. Numbers of
/// versions that do not matter to a host are made up.
pub fn decode_namespaces(data: &[u8]) -> Option<(Vec<NamespaceInfo>, usize)> {
    let (head, rest) = NamespacesHead::read_from_prefix(data).ok()?;
    if head.magic != MAGIC || usize::from(head.entry_bytes.get()) != ENTRY_BYTES {
        return None;
    }
    let count = head.count.get() as usize;
    let here = count.min(rest.len() / ENTRY_BYTES);
    let (entries, _) = <[NamespaceEntry]>::ref_from_prefix_with_elems(rest, here).ok()?;
    Some((entries.iter().map(NamespaceEntry::info).collect::<Option<_>>()?, count))
}
