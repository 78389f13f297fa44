//! Transactions.
//!
//! Lives here:       the calls of paper:KAML Table II, and upsert, delete, read-for-update and expect.
//! Lives elsewhere:  what they do (`kaml::store`).
//!
//! A transaction belongs to one thread at a time; calls with it from several threads wait for each other.
//!
//! One that was aborted because of others returns that status to every call from then on: the first status may not have reached
//! the code that would run it again.

use crate::arguments::{self, BufferOut, ItemsOut, Limits, Out, ValueOut};
use crate::device::kaml_namespace_id;
use crate::failure::{Failure, call, call_quietly};
use crate::handle::{Kind, Registry};
use crate::ranges::{self, KAML_RANGE_KEYS_ONLY, KAML_RANGE_REVERSE, bounds, kaml_item};
use crate::records::kaml_record;
use crate::status::kaml_status;
use crate::store::{STORES, kaml_store};
use kaml::KeyRef;
use kaml::store::{Transaction, Value, XcbEvent};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A transaction: a number, copied as you like. Zeros are never open.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_txn {
    /// Private to the library.
    pub id: u64,
}

/// A transaction that its store counts until it is freed.
pub(crate) struct OpenTxn {
    txn: Transaction,
    limits: Limits,
    /// After `txn`, so the transaction is gone when the store counts one less: a store that counts none may close.
    _counted: Counted,
}

struct Counted(Arc<AtomicUsize>);

pub(crate) static TRANSACTIONS: Registry<OpenTxn, 1> = Registry::new(Kind::Transaction);

/// A call with a transaction.
pub(crate) fn call_with<R>(
    txn: kaml_txn,
    body: impl FnOnce(&mut Transaction) -> Result<R, kaml::Error>,
) -> Result<R, Failure> {
    TRANSACTIONS.with_mut(txn.id, |open| Ok(body(&mut open.txn)?))
}

/// A call with a transaction, a key and a value.
///
/// # Safety
/// Key and value are as the header demands.
pub(crate) unsafe fn put_with(
    txn: kaml_txn,
    (key, key_length): (*const c_void, usize),
    (value, value_length): (*const c_void, usize),
    body: impl FnOnce(&mut Transaction, KeyRef<'_>, &[u8]) -> Result<(), kaml::Error>,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise is the same.
    let key = unsafe { arguments::key(key, key_length)? };
    TRANSACTIONS.with_mut(txn.id, |open| {
        // SAFETY: the same.
        let value = unsafe { open.limits.value(value, value_length)? };
        Ok(body(&mut open.txn, key, value)?)
    })
}

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::AcqRel);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Begins a transaction. Free it with `kaml_txn_free` after it was committed or aborted. If a call aborts it
/// (`KAML_DEADLOCK`, `KAML_LOCK_TIMEOUT`, `KAML_DEPENDENCY_LOST`), all later calls except `kaml_txn_free` return the same
/// status.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_begin(store: kaml_store, txn: *mut kaml_txn) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { Out::new(txn, "txn")? };
        out.set(kaml_txn { id: 0 });
        STORES.with(store.id, |open| {
            // Counted under the store's handle, so the store is not closed before it knows of this one.
            let txn = open.store.begin()?;
            let txn = OpenTxn { txn, limits: open.limits, _counted: Counted::new(&open.transactions) };
            let id = TRANSACTIONS.insert(txn)?;
            out.set(kaml_txn { id });
            Ok(())
        })
    })
}

/// Reports which records a transaction is going to use; only their namespaces and keys are looked at. Those that the cache has not are read from the
/// device together, before anything is locked. It changes no result, and a record that is not used costs only its read. A record that cannot be read
/// returns its status when it is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_expect(
    txn: kaml_txn,
    records: *const kaml_record,
    record_count: usize,
) -> kaml_status {
    call(|| {
        TRANSACTIONS.with_mut(txn.id, |open| {
            // SAFETY: pointers are as the header demands.
            let records = unsafe { open.limits.records(records, record_count)? };
            let keys: Result<Vec<_>, Failure> = records
                .iter()
                // SAFETY: so are those in each record.
                .map(|record| Ok((record.namespace_id, unsafe { arguments::key(record.key, record.key_length)? })))
                .collect();
            Ok(open.txn.expect(keys?)?)
        })
    })
}

/// Reads a record, or learns that there is none (`KAML_NOT_FOUND`). No other transaction can change it until this one ends.
/// The caller owns `*value` and frees it with `kaml_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_read(
    txn: kaml_txn,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    value: *mut *mut c_void,
    value_length: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, key) = unsafe { (ValueOut::new(value, value_length)?, arguments::key(key, key_length)?) };
        answer(&out, (namespace_id, key), call_with(txn, |txn| txn.read(namespace_id, key))?)
    })
}

/// As `kaml_txn_read`, into a buffer of the caller. If the value does not fit, the call returns `KAML_BUFFER_TOO_SMALL`, the buffer does not change,
/// and `*value_length` is the length of the value; the record is locked all the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_read_into(
    txn: kaml_txn,
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
        match call_with(txn, |txn| txn.read(namespace_id, key))? {
            Some(value) => out.set(&value),
            None => Err(Failure::no_record(namespace_id, key)),
        }
    })
}

/// As `kaml_txn_read`, for a record that will be changed: no other transaction can read it for update meanwhile. This
/// avoids deadlocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_read_for_update(
    txn: kaml_txn,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    value: *mut *mut c_void,
    value_length: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, key) = unsafe { (ValueOut::new(value, value_length)?, arguments::key(key, key_length)?) };
        answer(&out, (namespace_id, key), call_with(txn, |txn| txn.read_for_update(namespace_id, key))?)
    })
}

fn answer(
    out: &ValueOut,
    (namespace_id, key): (kaml_namespace_id, KeyRef<'_>),
    found: Option<Value>,
) -> Result<(), Failure> {
    match found {
        Some(value) => out.set(&value),
        None => Err(Failure::no_record(namespace_id, key)),
    }
}

/// Reads the records of a range of an ordered namespace, as `kaml_store_range`, with what this transaction has changed itself. Until it ends nobody adds
/// a record to the range, or changes or deletes one of it; of a range that `item_count_max` cut off, of the part that was read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_range(
    txn: kaml_txn,
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
        let found = call_with(txn, |txn| match flags & KAML_RANGE_REVERSE {
            0 => txn.range::<&[u8]>(namespace_id, bounds, item_count_max),
            _ => txn.range_back::<&[u8]>(namespace_id, bounds, item_count_max),
        })?;
        ranges::set(&out, &found, flags & KAML_RANGE_KEYS_ONLY == 0)
    })
}

/// As `kaml_txn_range`, of records that will be changed: no other transaction can read them for update meanwhile. With an `item_count_max` of 1 two
/// transactions never take the same first record, or with `KAML_RANGE_REVERSE` the same last one: the second one waits for the first.
///
///     kaml_item *job;
///     size_t count;
///     if (kaml_txn_range_for_update(txn, jobs, NULL, 0, NULL, 0, 0, 1, &job, &count)) goto failed;
///     if (count > 0) status = kaml_txn_delete(txn, jobs, job->key, job->key_length);
///     kaml_free(job);
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_range_for_update(
    txn: kaml_txn,
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
        let found = call_with(txn, |txn| match flags & KAML_RANGE_REVERSE {
            0 => txn.range_for_update::<&[u8]>(namespace_id, bounds, item_count_max),
            _ => txn.range_back_for_update::<&[u8]>(namespace_id, bounds, item_count_max),
        })?;
        ranges::set(&out, &found, flags & KAML_RANGE_KEYS_ONLY == 0)
    })
}

/// Changes a record that exists; else `KAML_NOT_FOUND`, and the transaction continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_update(
    txn: kaml_txn,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        unsafe {
            put_with(txn, (key, key_length), (value, value_length), |txn, key, value| {
                txn.update(namespace_id, key, value)
            })
        }
    })
}

/// Stores a record, whether it exists or not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_upsert(
    txn: kaml_txn,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        unsafe {
            put_with(txn, (key, key_length), (value, value_length), |txn, key, value| {
                txn.upsert(namespace_id, key, value)
            })
        }
    })
}

/// Stores a record that does not exist; else `KAML_EXISTS`, and the transaction continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_insert(
    txn: kaml_txn,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        unsafe {
            put_with(txn, (key, key_length), (value, value_length), |txn, key, value| {
                txn.insert(namespace_id, key, value)
            })
        }
    })
}

/// Deletes a record that exists; else `KAML_NOT_FOUND`, and the transaction continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_delete(
    txn: kaml_txn,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let key = unsafe { arguments::key(key, key_length)? };
        call_with(txn, |txn| txn.delete(namespace_id, key))
    })
}

/// Makes all changes durable, together. With a `durability_delay_us` they are visible when it returns, and durable soon.
/// After an error the transaction is aborted; if the device failed, its changes can nevertheless be stored, all or none.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_txn_commit(txn: kaml_txn) -> kaml_status {
    call(|| call_with(txn, Transaction::commit))
}

/// As `kaml_txn_commit`, and waits until the changes are durable whatever the store's delay is.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_txn_commit_durable(txn: kaml_txn) -> kaml_status {
    call(|| call_with(txn, Transaction::commit_durable))
}

/// Abandons all changes.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_txn_abort(txn: kaml_txn) -> kaml_status {
    call(|| call_with(txn, Transaction::abort))
}

/// Releases a transaction that was committed or aborted, by its user or by a deadlock. An active one is left as it
/// is (`KAML_BAD_STATE`): commit or abort it first.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_txn_free(txn: kaml_txn) -> kaml_status {
    call(|| {
        let freed = TRANSACTIONS.take(txn.id, |open| {
            open.txn.state().after(XcbEvent::Free)?;
            Ok(())
        })?;
        drop(freed);
        Ok(())
    })
}

/// Aborts a transaction if it is active, and frees it, in one step. It is for destructors and finalizers: it leaves the message of
/// `kaml_last_error` as it was. `KAML_IN_USE` if another thread is in a call with the transaction; it is then kept.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_txn_abandon(txn: kaml_txn) -> kaml_status {
    // Dropping an active transaction aborts it.
    call_quietly(|| TRANSACTIONS.take(txn.id, |_| Ok(())).map(drop))
}
