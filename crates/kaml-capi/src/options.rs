//! Options: structures whose zero is the default.
//!
//! Lives here:       the structures, and what they are in Rust.
//!
//! Each begins with its own size ([`arguments::sized`]), which the `KAML_..._INIT` macros of the header fill in.

use crate::arguments;
use crate::failure::Failure;
use kaml::store::{StoreOptions, WriteMode};
use kaml::{
    Compression, CreateOptions, Durability, IndexPlace, KeyKind, MergePolicy, NamespaceKind, NamespaceOptions,
    OpenOptions, VersionOptions,
};
use std::time::Duration;

/// As the device was created; `KAML_DURABLE_POWER` when creating.
pub const KAML_DURABLE_DEFAULT: u32 = 0;
/// What is durable survives the loss of power.
pub const KAML_DURABLE_POWER: u32 = 1;
/// What is durable survives the end of the process, but not the loss of power; much faster.
pub const KAML_DURABLE_PROCESS: u32 = 2;

/// Every key with its address in memory, 10 to 30 bytes for each.
pub const KAML_INDEX_MEMORY: u32 = 0;
/// About two bytes of memory for each stored record. For keys of at most 16 bytes; without order, times to live, compression and counters.
pub const KAML_INDEX_FLASH: u32 = 1;

/// Keys of 1 to 16 bytes.
pub const KAML_KEYS_BYTES: u32 = 0;
/// Keys of exactly 8 bytes: big-endian integers (`kaml_key_u64`). They take less memory.
pub const KAML_KEYS_U64: u32 = 1;
/// Keys of 1 to 1024 bytes, in no order.
pub const KAML_KEYS_ANY: u32 = 2;
/// Keys of 1 to 1024 bytes, in their order.
pub const KAML_KEYS_ORDERED: u32 = 3;

/// Values are stored as they are.
pub const KAML_COMPRESSION_NONE: u32 = 0;
/// Values are compressed with LZ4 where that saves room.
pub const KAML_COMPRESSION_LZ4: u32 = 1;
/// Values are compressed with Zstandard where that saves room.
pub const KAML_COMPRESSION_ZSTD: u32 = 2;

/// A plain put is durable when it returns.
pub const KAML_WRITE_THROUGH: u32 = 0;
/// A plain put is durable at the next `kaml_store_flush`.
pub const KAML_WRITE_BACK: u32 = 1;

/// How a device is created. Begin with `KAML_CREATE_OPTIONS_INIT`; 0 is the default of every field.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_create_options {
    /// Filled in by `KAML_CREATE_OPTIONS_INIT`.
    pub struct_size: usize,
    /// `KAML_DURABLE_...`.
    pub durability: u32,
    /// 1: format over what exists.
    pub force: u32,
    /// 1: write every block once now, so later puts are a quarter faster from the start.
    pub prewrite: u32,
    /// Dies, which is the number of logs.
    pub die_count: u32,
    /// Data bytes of an erase block.
    pub block_bytes: u64,
    /// Bytes of the commit ring.
    pub ring_bytes: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// 1: the file grows by itself when it runs low on space, as far as its file system lets it; `capacity_bytes` is its first size, from which the
    /// largest value and the largest Put follow.
    pub grows: u32,
    /// With `grows`: the file grows to so many bytes at most; 0: as far as its file system lets it.
    pub grow_up_to_bytes: u64,
}

/// How a device is opened. Begin with `KAML_OPEN_OPTIONS_INIT`; 0 is the default of every field.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_open_options {
    /// Filled in by `KAML_OPEN_OPTIONS_INIT`.
    pub struct_size: usize,
    /// `KAML_DURABLE_...`.
    pub durability: u32,
    /// 1: change nothing, and share the device with other readers.
    pub read_only: u32,
    /// 1: do without io_uring.
    pub no_io_uring: u32,
    /// 1: go through the page cache.
    pub no_direct: u32,
}

/// What a namespace is. Begin with `KAML_NAMESPACE_OPTIONS_INIT`; 0 is the default of every field.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_namespace_options {
    /// Filled in by `KAML_NAMESPACE_OPTIONS_INIT`.
    pub struct_size: usize,
    /// `KAML_KEYS_...`.
    pub keys: u32,
    /// How many `logs` there are; 0: all logs of the device.
    pub log_count: u32,
    /// The logs it appends to.
    pub logs: *const u32,
    /// 1: it keeps every version of every record.
    pub versioned: u32,
    /// `KAML_INDEX_...`: where its index is. Not of a versioned namespace.
    pub index_place: u32,
    /// Of a versioned namespace: bytes of its page buffer, memory and part of the commit ring.
    pub version_buffer_bytes: u64,
    /// For a versioned namespace: 1: old versions are dropped when space runs low, except those that the fields below keep
    /// or snapshots see. 0: nothing is ever dropped by itself.
    pub merge_when_low: u32,
    /// Number of the newest versions of each key that are kept then; 0 is 1.
    pub keep_last: u32,
    /// Everything put in this many nanoseconds before is kept then; 0: no such rule.
    pub keep_for_ns: u64,
    /// 1: the newest version of each key among those that were put around the same time is kept then.
    pub keep_internal: u32,
    /// `KAML_COMPRESSION_...`. Not of a versioned namespace.
    pub compression: u32,
    /// Records expire so many milliseconds after they are put, unless a put requests something else; 0: they do not. Not of a versioned namespace.
    pub time_to_live_ms: u64,
}

/// How many neighbouring keys of a namespace share a lock.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_lock_width {
    /// The namespace.
    pub namespace_id: u32,
    /// Keys that share a lock, at least 1.
    pub records_per_lock: u32,
}

/// How a store caches and locks. Begin with `KAML_STORE_OPTIONS_INIT`; 0 is the default of every field.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_store_options {
    /// Filled in by `KAML_STORE_OPTIONS_INIT`.
    pub struct_size: usize,
    /// `KAML_WRITE_...`: what plain puts are. A transaction is durable when it is committed, in either mode.
    pub write_mode: u32,
    /// Neighbouring keys that share a lock; 0 is 1.
    pub records_per_lock: u32,
    /// 1: release locks when a commit's place in the durable order is fixed, not when it is durable. Commits still
    /// return when they are durable.
    pub early_release: u32,
    /// Longest wait for a lock; 0 is two seconds.
    pub lock_timeout_ms: u32,
    /// Transactions that may be open at once; 0 is 1024.
    pub transactions_max: u32,
    /// How many `lock_widths` there are.
    pub lock_width_count: u32,
    /// 0: a transaction is durable when its commit returns. Else commits return at once and become durable after about this many
    /// microseconds, in order and many together: a crash loses the last of them, whole. `kaml_store_flush` waits for all.
    pub durability_delay_us: u64,
    /// Namespaces whose `records_per_lock` differs.
    pub lock_widths: *const kaml_lock_width,
}

/// A structure that begins with its size, or none.
///
/// # Safety
/// As for all of `arguments`; `T` is one of the structures of this module.
unsafe fn given<'a, T>(options: *const T, what: &str) -> Result<Option<&'a T>, Failure> {
    if options.is_null() {
        return Ok(None);
    }
    // SAFETY: every structure of this module begins with its size; the caller promised the other bytes.
    unsafe { arguments::sized(options, what) }.map(Some)
}

pub(crate) unsafe fn create(
    options: *const kaml_create_options,
    capacity_bytes: u64,
) -> Result<CreateOptions, Failure> {
    let mut create = CreateOptions::new(capacity_bytes);
    // SAFETY: the caller's promise is the same.
    let Some(given) = (unsafe { given(options, "create options")? }) else { return Ok(create) };
    create.grow_up_to = match (flag(given.grows, "grows")?, given.grow_up_to_bytes) {
        (false, 0) => None,
        (false, _) => return Err(Failure::argument("grow_up_to_bytes: only with grows")),
        (true, 0) => Some(u64::MAX),
        (true, limit) => Some(limit),
    };
    create.durability = durability(given.durability)?.unwrap_or_default();
    create.force = flag(given.force, "force")?;
    create.prewrite = flag(given.prewrite, "prewrite")?;
    create.die_count = (given.die_count != 0).then_some(given.die_count);
    create.block_bytes = (given.block_bytes != 0).then_some(given.block_bytes);
    create.ring_bytes = (given.ring_bytes != 0).then_some(given.ring_bytes);
    create.chunk_bytes = (given.chunk_bytes != 0).then_some(given.chunk_bytes);
    Ok(create)
}

pub(crate) unsafe fn open(options: *const kaml_open_options) -> Result<OpenOptions, Failure> {
    let mut open = OpenOptions::default();
    // SAFETY: the caller's promise is the same.
    let Some(given) = (unsafe { given(options, "open options")? }) else { return Ok(open) };
    open.durability = durability(given.durability)?;
    open.read_only = flag(given.read_only, "read_only")?;
    open.io_uring = !flag(given.no_io_uring, "no_io_uring")?;
    open.direct = !flag(given.no_direct, "no_direct")?;
    Ok(open)
}

/// No device has so many dies.
pub(crate) const LOGS_MAX: usize = 1 << 16;
/// No device has so many namespaces: their names are in a root.
const LOCK_WIDTHS_MAX: usize = 1 << 16;

pub(crate) unsafe fn namespace(options: *const kaml_namespace_options) -> Result<NamespaceOptions, Failure> {
    // SAFETY: the caller's promise is the same.
    let Some(given) = (unsafe { given(options, "namespace options")? }) else {
        return Ok(NamespaceOptions::default());
    };
    // SAFETY: the same.
    let logs = unsafe { arguments::few(given.logs, given.log_count as usize, LOGS_MAX, "logs")? }.to_vec();
    let keys = match given.keys {
        KAML_KEYS_BYTES => KeyKind::Bytes,
        KAML_KEYS_U64 => KeyKind::U64,
        KAML_KEYS_ANY => KeyKind::Any,
        KAML_KEYS_ORDERED => KeyKind::Ordered,
        other => return Err(Failure::argument(format!("keys: {other} is not one of KAML_KEYS_..."))),
    };
    let compression = match given.compression {
        KAML_COMPRESSION_NONE => Compression::None,
        KAML_COMPRESSION_LZ4 => Compression::Lz4,
        KAML_COMPRESSION_ZSTD => Compression::Zstd,
        other => return Err(Failure::argument(format!("compression: {other} is not one of KAML_COMPRESSION_..."))),
    };
    let versions = if flag(given.versioned, "versioned")? { Some(versions(given)?) } else { None };
    let wants_versions = given.version_buffer_bytes != 0 || given.merge_when_low != 0;
    let wants_to_keep = given.keep_last != 0 || given.keep_for_ns != 0 || given.keep_internal != 0;
    if versions.is_none() && (wants_versions || wants_to_keep) {
        let what = "version_buffer_bytes, merge_when_low and what is kept then";
        return Err(Failure::argument(format!("{what}: only of a versioned namespace")));
    }
    let kind = versions.map_or(NamespaceKind::Records(keys), |versions| NamespaceKind::Versions(keys, versions));
    let options = NamespaceOptions::new(kind).with_logs(logs).with_compression(compression);
    let options = match given.index_place {
        KAML_INDEX_MEMORY => options,
        KAML_INDEX_FLASH => options.with_index(IndexPlace::Flash),
        other => return Err(Failure::argument(format!("index_place: {other} is not one of KAML_INDEX_..."))),
    };
    Ok(match given.time_to_live_ms {
        0 => options,
        ms => options.with_ttl(Duration::from_millis(ms)),
    })
}

fn versions(given: &kaml_namespace_options) -> Result<VersionOptions, Failure> {
    let keep_internal = flag(given.keep_internal, "keep_internal")?;
    let (keep_last, keep_for_ns) = (given.keep_last, given.keep_for_ns);
    let policy = MergePolicy { keep_last, keep_for_ns, keep_internal, ..MergePolicy::default() };
    let merge_when_low = flag(given.merge_when_low, "merge_when_low")?.then_some(policy);
    if merge_when_low.is_none() && policy != MergePolicy::default() {
        return Err(Failure::argument("keep_last, keep_for_ns and keep_internal: only with merge_when_low"));
    }
    Ok(VersionOptions { buffer_bytes: given.version_buffer_bytes, merge_when_low, ..VersionOptions::default() })
}

pub(crate) unsafe fn store(options: *const kaml_store_options, cache_bytes: u64) -> Result<StoreOptions, Failure> {
    let mut store = StoreOptions::new(cache_bytes);
    // SAFETY: the caller's promise is the same.
    let Some(given) = (unsafe { given(options, "store options")? }) else { return Ok(store) };
    // SAFETY: the same.
    let widths =
        unsafe { arguments::few(given.lock_widths, given.lock_width_count as usize, LOCK_WIDTHS_MAX, "lock_widths")? };
    store.records_per_lock_of = widths.iter().map(|width| (width.namespace_id, width.records_per_lock)).collect();
    store.write_mode = match given.write_mode {
        KAML_WRITE_THROUGH => WriteMode::Through,
        KAML_WRITE_BACK => WriteMode::Back,
        other => return Err(Failure::argument(format!("write_mode: {other} is not one of KAML_WRITE_..."))),
    };
    store.early_release = flag(given.early_release, "early_release")?;
    if given.records_per_lock != 0 {
        store.records_per_lock = given.records_per_lock;
    }
    if given.lock_timeout_ms != 0 {
        store.lock_timeout = Duration::from_millis(given.lock_timeout_ms.into());
    }
    store.durability_delay = Duration::from_micros(given.durability_delay_us);
    if given.transactions_max != 0 {
        store.transactions_max = given.transactions_max;
    }
    Ok(store)
}

fn durability(number: u32) -> Result<Option<Durability>, Failure> {
    match number {
        KAML_DURABLE_DEFAULT => Ok(None),
        KAML_DURABLE_POWER => Ok(Some(Durability::Power)),
        KAML_DURABLE_PROCESS => Ok(Some(Durability::Process)),
        other => Err(Failure::argument(format!("durability: {other} is not one of KAML_DURABLE_..."))),
    }
}

pub(crate) fn flag(number: u32, what: &str) -> Result<bool, Failure> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Failure::argument(format!("{what}: {other} is neither 0 nor 1"))),
    }
}
