//! Snapshots of a whole device.
//!
//! Lives here:       opening and closing them; reads, ranges and lists as of their moment; what all of them keep.
//! Lives elsewhere:  what a snapshot shows (`kaml::Snapshot`), iterators (`ranges`), snapshots of versioned namespaces (`versions`).
//!
//! A snapshot belongs to its device, which drops it when it is closed; the handle of one only names device and snapshot. A call with a snapshot holds
//! the device's slot, so the device is not closed under it.

use crate::arguments::{self, BufferOut, ItemsOut, Out, ValueOut};
use crate::device::{DEVICES, OpenDevice, kaml_device, kaml_namespace_id, kaml_namespace_info};
use crate::failure::{Failure, call, call_quietly};
use crate::handle::{Kind, Registry, SHARED};
use crate::owned::{Owned, OwnedBy};
use crate::ranges::{self, ITEMS_MAX, Iteration, Source, bounds, kaml_item, kaml_range};
use crate::records::kaml_cursor;
use crate::status::kaml_status::{self, KAML_BAD_HANDLE};
use kaml::Snapshot;
use std::ffi::c_void;

/// A snapshot of a whole device: a number, copied as you like. Zeros are never open.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_device_snapshot {
    /// Private to the library.
    pub id: u64,
}

/// What open snapshots keep, those of iterators included. Begin with `KAML_DEVICE_SNAPSHOT_USAGE_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_device_snapshot_usage {
    /// Filled in by `KAML_DEVICE_SNAPSHOT_USAGE_INIT`.
    pub struct_size: usize,
    /// Moments of which snapshots are open. Snapshots of one moment count once.
    pub open_count: u64,
    /// Moments whose snapshots expired since the device was opened.
    pub expired_count: u64,
    /// Bytes of overwritten and deleted records that are kept on flash, in whole chunks.
    pub kept_bytes: u64,
    /// Overwritten and deleted records that are kept, and keys that did not exist.
    pub entry_count: u64,
    /// Bytes of memory for them.
    pub memory_bytes: u64,
}

pub(crate) static SNAPSHOTS: Registry<OwnedBy, SHARED> = Registry::new(Kind::Snapshot);

/// The snapshots of a device.
pub(crate) type Snapshots = Owned<Snapshot>;

/// Gives a snapshot to its device, and its handle to the caller.
pub(crate) fn answer(
    (id, device): (u64, &OpenDevice),
    out: &Out<kaml_device_snapshot>,
    snapshot: Snapshot,
) -> Result<(), Failure> {
    let number = device.snapshots.add(snapshot);
    match SNAPSHOTS.insert(OwnedBy { device: id, number }) {
        Ok(id) => out.set(kaml_device_snapshot { id }),
        Err(failure) => {
            device.snapshots.remove(number);
            return Err(failure);
        }
    }
    Ok(())
}

/// A call with a snapshot.
fn with<R>(
    snapshot: kaml_device_snapshot,
    body: impl FnOnce((u64, &OpenDevice), &Snapshot) -> Result<R, Failure>,
) -> Result<R, Failure> {
    SNAPSHOTS.with(snapshot.id, |open| {
        DEVICES.with(open.device, |device| {
            let closed = || Failure::new(KAML_BAD_HANDLE, "the snapshot is closed");
            body((open.device, device), &device.snapshots.get(open.number).ok_or_else(closed)?)
        })
    })
}

/// Opens a snapshot of all namespaces of records: what is durable now, to be read whatever is put or deleted meanwhile. Nobody waits for it. It keeps
/// what is overwritten and deleted; when that is in the way, the oldest snapshots expire (`KAML_SNAPSHOT_TOO_OLD`). It is in memory alone. Close it
/// with `kaml_snapshot_close`; closing the device closes it, too.
///
/// Unflushed records of a store are not in it. Namespaces of blocks and of versions cannot be read through it (`KAML_BAD_ARGUMENT`); for these there
/// is `kaml_snapshot`.
///
///     kaml_device_snapshot before;
///     if (kaml_snapshot_open(device, &before)) goto failed;
///     kaml_put_one(device, users, "ada", 3, "after", 5);
///     kaml_snapshot_get(before, users, "ada", 3, &value, &length);    // what it was before
///     kaml_snapshot_close(before);
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshot_open(device: kaml_device, snapshot: *mut kaml_device_snapshot) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { Out::new(snapshot, "snapshot")? };
        out.set(kaml_device_snapshot { id: 0 });
        DEVICES.with(device.id, |open| answer((device.id, open), &out, open.device.open_snapshot()?))
    })
}

/// Closes a snapshot. Iterators over it can be read to their end; what it keeps is released when they are closed. `KAML_IN_USE` if another thread is in
/// a call with it; it is then kept.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_snapshot_close(snapshot: kaml_device_snapshot) -> kaml_status {
    call(|| close(snapshot))
}

/// As `kaml_snapshot_close`, for destructors and finalizers: it leaves the message of `kaml_last_error` as it was.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_snapshot_abandon(snapshot: kaml_device_snapshot) -> kaml_status {
    call_quietly(|| close(snapshot))
}

fn close(snapshot: kaml_device_snapshot) -> Result<(), Failure> {
    let closed = SNAPSHOTS.take(snapshot.id, |_| Ok(()))?;
    // A device that was closed has dropped it already.
    let _ = DEVICES.with(closed.device, |device| {
        device.snapshots.remove(closed.number);
        Ok(())
    });
    Ok(())
}

/// Lists the namespaces that existed, as they were, also those that cannot be read through a snapshot. Otherwise as `kaml_namespaces`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshot_namespaces(
    snapshot: kaml_device_snapshot,
    namespaces: *mut kaml_namespace_info,
    namespace_count_max: usize,
    namespace_count: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (count, places) = unsafe {
            let count = Out::new(namespace_count, "namespace_count")?;
            count.set(0);
            (count, arguments::slice_out(namespaces, namespace_count_max, "namespaces")?)
        };
        with(snapshot, |_, snapshot| {
            let found = snapshot.namespaces();
            places.iter_mut().zip(found).for_each(|(place, info)| _ = place.write(info.into()));
            count.set(found.len());
            Ok(())
        })
    })
}

/// Reads a value as it was. `KAML_UNKNOWN_NAMESPACE` if the namespace was created after the snapshot, or is deleted. Otherwise as `kaml_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshot_get(
    snapshot: kaml_device_snapshot,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    value: *mut *mut c_void,
    value_length: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, key) = unsafe { (ValueOut::new(value, value_length)?, arguments::key(key, key_length)?) };
        with(snapshot, |_, snapshot| match snapshot.get(namespace_id, key)? {
            Some(found) => out.set(&found),
            None => Err(Failure::no_record(namespace_id, key)),
        })
    })
}

/// Reads a value as it was into a buffer of the caller. Otherwise as `kaml_get_into` and `kaml_snapshot_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshot_get_into(
    snapshot: kaml_device_snapshot,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    buffer: *mut c_void,
    buffer_bytes: usize,
    value_length: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, key) =
            unsafe { (BufferOut::new(buffer, buffer_bytes, value_length)?, arguments::key(key, key_length)?) };
        with(snapshot, |_, snapshot| match snapshot.get(namespace_id, key)? {
            Some(found) => out.set(&found),
            None => Err(Failure::no_record(namespace_id, key)),
        })
    })
}

/// Whether a key existed: `KAML_OK` or `KAML_NOT_FOUND`. Reads no flash.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshot_exists(
    snapshot: kaml_device_snapshot,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let key = unsafe { arguments::key(key, key_length)? };
        let existed = with(snapshot, |_, snapshot| Ok(snapshot.exists(namespace_id, key)?))?;
        if existed { Ok(()) } else { Err(Failure::no_record(namespace_id, key)) }
    })
}

/// Lists the keys of a namespace as they were, each exactly once. Otherwise as `kaml_list_keys`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshot_list_keys(
    snapshot: kaml_device_snapshot,
    namespace_id: kaml_namespace_id,
    cursor: *mut kaml_cursor,
    item_count_max: usize,
    items: *mut *mut kaml_item,
    item_count: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, cursor) = unsafe { (ItemsOut::new(items, item_count)?, arguments::structure_mut(cursor, "cursor")?) };
        if item_count_max == 0 {
            return Err(Failure::argument("item_count_max is 0"));
        }
        let mut next = *cursor;
        let found = with(snapshot, |_, snapshot| {
            let list = |after, limit| Ok(snapshot.list(namespace_id, after, limit)?);
            next.next_keys(item_count_max.min(ITEMS_MAX), list)
        })?;
        out.set(found.iter().map(|key| (key.as_bytes(), None)))?;
        *cursor = next;
        Ok(())
    })
}

/// Begins to read a range of an ordered namespace as it was, with `kaml_range_next`. The iterator shows the moment of the snapshot, also after the
/// snapshot was closed. Otherwise as `kaml_range_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshot_range_open(
    snapshot: kaml_device_snapshot,
    namespace_id: kaml_namespace_id,
    from: *const c_void,
    from_length: usize,
    to: *const c_void,
    to_length: usize,
    flags: u32,
    range: *mut kaml_range,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { Out::new(range, "range")? };
        out.set(kaml_range { id: 0 });
        // SAFETY: the same.
        let bounds = unsafe { bounds((from, from_length), (to, to_length), flags)? };
        with(snapshot, |device, snapshot| {
            let source = Source::At(snapshot, namespace_id);
            ranges::open(device, &out, source, |source| Iteration::of_range(source, bounds, flags))
        })
    })
}

/// As `kaml_snapshot_range_open`, for the keys that begin with a prefix. Prefix and flags are those of `kaml_prefix_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshot_prefix_open(
    snapshot: kaml_device_snapshot,
    namespace_id: kaml_namespace_id,
    prefix: *const c_void,
    prefix_length: usize,
    flags: u32,
    range: *mut kaml_range,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { Out::new(range, "range")? };
        out.set(kaml_range { id: 0 });
        // SAFETY: the same.
        let prefix = unsafe { ranges::prefix(prefix, prefix_length, flags)? };
        with(snapshot, |device, snapshot| {
            let source = Source::At(snapshot, namespace_id);
            ranges::open(device, &out, source, |source| Iteration::of_prefix(source, prefix, flags))
        })
    })
}

/// The record with the least key of an ordered namespace as it was. Otherwise as `kaml_first`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshot_first(
    snapshot: kaml_device_snapshot,
    namespace_id: kaml_namespace_id,
    item: *mut *mut kaml_item,
) -> kaml_status {
    let find = || with(snapshot, |_, snapshot| Ok(snapshot.first(namespace_id)?));
    // SAFETY: pointers are as the header demands.
    call(|| unsafe { ranges::end_of(namespace_id, item, find) })
}

/// The record with the greatest key of an ordered namespace as it was. Otherwise as `kaml_last`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshot_last(
    snapshot: kaml_device_snapshot,
    namespace_id: kaml_namespace_id,
    item: *mut *mut kaml_item,
) -> kaml_status {
    let find = || with(snapshot, |_, snapshot| Ok(snapshot.last(namespace_id)?));
    // SAFETY: pointers are as the header demands.
    call(|| unsafe { ranges::end_of(namespace_id, item, find) })
}

/// Counts the keys that a range had. Bounds and flags are those of `kaml_count`. Reads no flash.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshot_count(
    snapshot: kaml_device_snapshot,
    namespace_id: kaml_namespace_id,
    from: *const c_void,
    from_length: usize,
    to: *const c_void,
    to_length: usize,
    flags: u32,
    count: *mut u64,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, bounds) =
            unsafe { (Out::new(count, "count")?, bounds((from, from_length), (to, to_length), flags)?) };
        with(snapshot, |_, snapshot| {
            out.set(snapshot.count::<&[u8]>(namespace_id, bounds)?);
            Ok(())
        })
    })
}

/// What open snapshots keep.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshot_usage(
    device: kaml_device,
    usage: *mut kaml_device_snapshot_usage,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { arguments::sized_out(usage, "usage")? };
        DEVICES.with(device.id, |open| {
            let stats = open.device.snapshot_stats();
            out.set(kaml_device_snapshot_usage {
                struct_size: size_of::<kaml_device_snapshot_usage>(),
                open_count: stats.open_count,
                expired_count: stats.expired_count,
                kept_bytes: stats.kept_bytes,
                entry_count: stats.entry_count,
                memory_bytes: stats.memory_bytes,
            });
            Ok(())
        })
    })
}

/// Sets the memory that open snapshots take for what is overwritten and deleted meanwhile; 512 MiB by default, at some 160 bytes a record. With less
/// than they take, the oldest expire at the next change.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_limit_snapshot_memory(device: kaml_device, bytes: u64) -> kaml_status {
    call(|| {
        DEVICES.with(device.id, |open| {
            open.device.limit_snapshot_memory(bytes);
            Ok(())
        })
    })
}
