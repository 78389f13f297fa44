//! Stores: a record cache over a device, and plain reads and puts through it.
//!
//! Lives here:       opening, closing, plain records.
//! Lives elsewhere:  transactions (`txn`).
//! Implements:       paper:KAML III.C.

use crate::arguments::{self, BufferOut, ItemsOut, Limits, Out, ValueOut};
use crate::device::{DEVICES, kaml_device, kaml_namespace_id};
use crate::failure::{Failure, call, call_quietly};
use crate::handle::{Kind, Registry, SHARED};
use crate::options::{self, kaml_store_options};
use crate::ranges::{self, KAML_RANGE_KEYS_ONLY, KAML_RANGE_REVERSE, bounds, kaml_item};
use crate::snapshots::{self, kaml_device_snapshot};
use crate::status::kaml_status::{self, KAML_IN_USE};
use kaml::store::Store;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

/// A store: a number, copied as you like. Zeros are never open.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_store {
    /// Private to the library.
    pub id: u64,
}

/// A store, the device below it, and how many transactions are not freed.
pub(crate) struct OpenStore {
    pub(crate) store: Store,
    pub(crate) limits: Limits,
    device: u64,
    pub(crate) transactions: Arc<AtomicUsize>,
}

pub(crate) static STORES: Registry<OpenStore, SHARED> = Registry::new(Kind::Store);

/// Opens a store over a device: a cache of records with transactions. While it is open, records of the device change only
/// through the store (`kaml_put`, `kaml_put_one`, `kaml_delete`, `kaml_roll_back` and `kaml_undo` return `KAML_IN_USE`),
/// and the device cannot be closed. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_store_open(
    device: kaml_device,
    cache_bytes: u64,
    options: *const kaml_store_options,
    store: *mut kaml_store,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { Out::new(store, "store")? };
        out.set(kaml_store { id: 0 });
        // SAFETY: the same.
        let options = unsafe { options::store(options, cache_bytes)? };
        DEVICES.with(device.id, |open| {
            // Changes that are in progress end first; they would go past the cache.
            let mut current = open.store.write().unwrap_or_else(PoisonError::into_inner);
            if current.is_some() {
                return Err(Failure::new(KAML_IN_USE, "a store is open over the device already"));
            }
            let store = Store::open(open.device.clone(), &options)?;
            let transactions = Arc::new(AtomicUsize::new(0));
            let opened = OpenStore { store: store.clone(), limits: open.limits, device: device.id, transactions };
            let id = STORES.insert(opened)?;
            *current = Some(store);
            out.set(kaml_store { id });
            Ok(())
        })
    })
}

/// Flushes a store and closes it. The handle is closed whatever the call returns, except `KAML_IN_USE` (transactions are not
/// freed, or another thread is in a call with it) and `KAML_BAD_HANDLE`; after another error unflushed puts are lost.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_store_close(store: kaml_store) -> kaml_status {
    call(|| close(store))
}

/// As `kaml_store_close`, for destructors and finalizers: it leaves the message of `kaml_last_error` as it was.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_store_abandon(store: kaml_store) -> kaml_status {
    call_quietly(|| close(store))
}

fn close(store: kaml_store) -> Result<(), Failure> {
    let closed = STORES.take(store.id, |open| match open.transactions.load(Ordering::Acquire) {
        0 => Ok(()),
        count => Err(Failure::new(KAML_IN_USE, format!("{count} transactions of the store are not freed"))),
    })?;
    let flushed = closed.store.flush();
    let device = closed.device;
    drop(closed);
    DEVICES.with(device, |open| {
        // The last handle: the cache is dropped with it, before the device can be changed past it.
        *open.store.write().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    })?;
    Ok(flushed?)
}

/// Makes everything durable that was put or committed before.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_store_flush(store: kaml_store) -> kaml_status {
    call(|| STORES.with(store.id, |open| Ok(open.store.flush()?)))
}

/// Acknowledges that commits with a durability delay were lost (`KAML_COMMITS_LOST`): records are as they were before these
/// commits, and new ones are accepted again. `*count` is the number of lost commits, 0 if there are none; it may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_store_acknowledge_lost(store: kaml_store, count: *mut u64) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = if count.is_null() { None } else { Some(unsafe { Out::new(count, "count")? }) };
        STORES.with(store.id, |open| {
            let lost = open.store.acknowledge_lost();
            out.into_iter().for_each(|out| out.set(lost));
            Ok(())
        })
    })
}

/// Reads a value through the cache. The caller owns `*value` and frees it with `kaml_free`; it is null if there is none
/// (`KAML_NOT_FOUND`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_store_get(
    store: kaml_store,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    value: *mut *mut c_void,
    value_length: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, key) = unsafe { (ValueOut::new(value, value_length)?, arguments::key(key, key_length)?) };
        STORES.with(store.id, |open| match open.store.get(namespace_id, key)? {
            Some(found) => out.set(&found),
            None => Err(Failure::no_record(namespace_id, key)),
        })
    })
}

/// Reads a value through the cache into a buffer of the caller. If it does not fit, the call returns
/// `KAML_BUFFER_TOO_SMALL`, the buffer does not change, and `*value_length` is the length of the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_store_get_into(
    store: kaml_store,
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
        STORES.with(store.id, |open| {
            let copied = open.store.get_with(namespace_id, key, |found| out.set(found))?;
            copied.unwrap_or_else(|| Err(Failure::no_record(namespace_id, key)))
        })
    })
}

/// Whether a key exists: `KAML_OK` or `KAML_NOT_FOUND`. Reads no flash, except in a versioned namespace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_store_exists(
    store: kaml_store,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let key = unsafe { arguments::key(key, key_length)? };
        let there = STORES.with(store.id, |open| Ok(open.store.exists(namespace_id, key)?))?;
        if there { Ok(()) } else { Err(Failure::no_record(namespace_id, key)) }
    })
}

/// Stores a record; durable as the store's `write_mode` specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_store_put(
    store: kaml_store,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let key = unsafe { arguments::key(key, key_length)? };
        STORES.with(store.id, |open| {
            // SAFETY: the same.
            let value = unsafe { open.limits.value(value, value_length)? };
            Ok(open.store.put(namespace_id, key, value)?)
        })
    })
}

/// Deletes a record, whether it exists or not; durable as the store's `write_mode` specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_store_delete(
    store: kaml_store,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let key = unsafe { arguments::key(key, key_length)? };
        STORES.with(store.id, |open| Ok(open.store.delete(namespace_id, key)?))
    })
}

/// Reads the records of a range of an ordered namespace through the cache, as of one moment: unflushed ones are among them. Bounds and flags are those of
/// `kaml_range_open`. `*items` is an array of `*item_count` records, at most `item_count_max`, that you free with `kaml_free`; it is null if there are
/// none. All of them are in memory at once: to read a long range, begin again after the last key (`KAML_RANGE_FROM_EXCLUDED`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_store_range(
    store: kaml_store,
    namespace_id: kaml_namespace_id,
    from: *const c_void,
    from_length: usize,
    to: *const c_void,
    to_length: usize,
    flags: u32,
    item_count_max: usize,
    items: *mut *mut kaml_item,
    item_count: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, bounds) =
            unsafe { (ItemsOut::new(items, item_count)?, bounds((from, from_length), (to, to_length), flags)?) };
        let found = STORES.with(store.id, |open| {
            let read = |txn: &mut kaml::store::Transaction| match flags & KAML_RANGE_REVERSE {
                0 => txn.range::<&[u8]>(namespace_id, bounds, item_count_max),
                _ => txn.range_back::<&[u8]>(namespace_id, bounds, item_count_max),
            };
            Ok(open.store.run(read)?)
        })?;
        ranges::set(&out, &found, flags & KAML_RANGE_KEYS_ONLY == 0)
    })
}

/// Begins a transaction that only reads: a snapshot of what is durable, to be read with `kaml_snapshot_get` and others. It takes no locks, waits for
/// nobody, and is never aborted. It shows every commit that has returned, except with a `durability_delay_us`, and every put in write-through mode;
/// `kaml_store_flush` makes the others durable. Close it with `kaml_snapshot_close`. It can be read after the store was closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_store_read_only(store: kaml_store, snapshot: *mut kaml_device_snapshot) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { Out::new(snapshot, "snapshot")? };
        out.set(kaml_device_snapshot { id: 0 });
        STORES.with(store.id, |open| {
            let taken = open.store.read_only()?;
            DEVICES.with(open.device, |device| snapshots::answer((open.device, device), &out, taken))
        })
    })
}
