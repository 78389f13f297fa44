//! Stores: a record cache over a device, and plain reads and puts through it.
//!
//! Lives here:       opening, closing, plain records.
//! Lives elsewhere:  transactions (`txn`).
//! Implements:       paper:KAML III.C.

use crate::arguments::{self, BufferOut, Out, ValueOut};
use crate::device::{DEVICES, kaml_device, kaml_namespace_id};
use crate::failure::{Failure, call};
use crate::handle::{Kind, Registry};
use crate::options::{self, kaml_store_options};
use crate::status::kaml_status::{self, KAML_IN_USE};
use kaml::store::Store;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

/// A store: a number, copied as you like. Zeros are never open.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_store {
    /// Only the library knows what it means.
    pub id: u64,
}

/// A store, the device below it, and how many transactions are not freed.
pub(crate) struct OpenStore {
    pub(crate) store: Store,
    device: u64,
    pub(crate) transactions: Arc<AtomicUsize>,
}

pub(crate) static STORES: Registry<OpenStore> = Registry::new(Kind::Store);

/// Opens a store over a device: a cache of records with transactions. While it is open, records of the device are
/// changed through it alone (`kaml_put`, `kaml_put_one`, `kaml_delete`, `kaml_roll_back` and `kaml_undo` answer
/// `KAML_IN_USE`), and the device is not closed.
/// `options` may be null.
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
            // Changes that are under way end first; they would go past the cache.
            let mut current = open.store.write().unwrap_or_else(PoisonError::into_inner);
            if current.is_some() {
                return Err(Failure::new(KAML_IN_USE, "a store is open over the device already"));
            }
            let store = Store::open(open.device.clone(), &options)?;
            let transactions = Arc::new(AtomicUsize::new(0));
            let id = STORES.insert(OpenStore { store: store.clone(), device: device.id, transactions })?;
            *current = Some(store);
            out.set(kaml_store { id });
            Ok(())
        })
    })
}

/// Flushes a store and closes it. The handle is closed whatever the answer, except `KAML_IN_USE` (transactions are not
/// freed, or another thread is in a call with it) and `KAML_BAD_HANDLE`; after another error unflushed puts are lost.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_store_close(store: kaml_store) -> kaml_status {
    call(|| {
        let closed = STORES.take(store.id, |open| match open.transactions.load(Ordering::Acquire) {
            0 => Ok(()),
            count => Err(Failure::new(KAML_IN_USE, format!("{count} transactions of the store are not freed"))),
        })?;
        let flushed = closed.store.flush();
        let device = closed.device;
        drop(closed);
        DEVICES.with(device, |open| {
            // The last handle: with it goes the cache, before the device may be changed past it.
            *open.store.write().unwrap_or_else(PoisonError::into_inner) = None;
            Ok(())
        })?;
        Ok(flushed?)
    })
}

/// Makes everything durable that was put or committed before.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_store_flush(store: kaml_store) -> kaml_status {
    call(|| STORES.with(store.id, |open| Ok(open.store.flush()?)))
}

/// Goes on after commits with a durability delay were lost (`KAML_COMMITS_LOST`): records are as they were before these.
/// `*count` is how many they were, 0 if none are; it may be null.
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

/// Reads a value through the cache. `*value` is the caller's from then on and is given back with `kaml_free`; it is null
/// if there is none (`KAML_NOT_FOUND`).
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

/// Reads a value through the cache into a buffer of the caller. If it does not fit, `KAML_BUFFER_TOO_SMALL` is answered,
/// the buffer is as it was, and `*value_length` is what it takes.
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
        STORES.with(store.id, |open| match open.store.get(namespace_id, key)? {
            Some(found) => out.set(&found),
            None => Err(Failure::no_record(namespace_id, key)),
        })
    })
}

/// Whether a key is there: `KAML_OK` or `KAML_NOT_FOUND`. Never reads flash.
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

/// Stores a record; durable as the store's `write_mode` says.
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
        let (key, value) =
            unsafe { (arguments::key(key, key_length)?, arguments::bytes(value, value_length, "value")?) };
        STORES.with(store.id, |open| Ok(open.store.put(namespace_id, key, value)?))
    })
}

/// Deletes a record, whether it is there or not; durable as the store's `write_mode` says.
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
