//! Transactions.
//!
//! Lives here:       the calls of paper:KAML Table II, and upsert, delete and read-for-update.
//! Lives elsewhere:  what they do (`kaml::store`).
//!
//! A transaction belongs to one thread at a time; calls with it from several threads wait for each other.
//!
//! One that was aborted because of others says so whatever it is asked from then on: the first answer may not have reached
//! whoever would run it again.

use crate::arguments::{self, Out, ValueOut};
use crate::device::kaml_namespace_id;
use crate::failure::{Failure, call};
use crate::handle::{Kind, Registry};
use crate::status::kaml_status;
use crate::store::{STORES, kaml_store};
use kaml::Key;
use kaml::store::{StoreError, Transaction, Value, XcbEvent};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A transaction: a number, copied as you like. Zeros are never open.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_txn {
    /// Only the library knows what it means.
    pub id: u64,
}

/// A transaction that its store counts until it is freed.
pub(crate) struct OpenTxn {
    txn: Transaction,
    /// Behind `txn`, so that the transaction is gone when the store counts one less: a store that counts none may close.
    _counted: Counted,
}

struct Counted(Arc<AtomicUsize>);

pub(crate) static TRANSACTIONS: Registry<OpenTxn> = Registry::new(Kind::Transaction);

/// A call with a transaction.
fn call_with<R>(txn: kaml_txn, body: impl FnOnce(&mut Transaction) -> Result<R, StoreError>) -> Result<R, Failure> {
    TRANSACTIONS.with_mut(txn.id, |open| Ok(body(&mut open.txn)?))
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

/// Begins a transaction. It is freed with `kaml_txn_free`, after it was committed or aborted. If a call aborts it
/// (`KAML_DEADLOCK`, `KAML_LOCK_TIMEOUT`, `KAML_DEPENDENCY_LOST`), all later calls but that one answer the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_begin(store: kaml_store, txn: *mut kaml_txn) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { Out::new(txn, "txn")? };
        out.set(kaml_txn { id: 0 });
        STORES.with(store.id, |open| {
            // Counted under the store's handle, so that the store is not closed before it knows of this one.
            let txn = OpenTxn { txn: open.store.begin()?, _counted: Counted::new(&open.transactions) };
            let id = TRANSACTIONS.insert(txn)?;
            out.set(kaml_txn { id });
            Ok(())
        })
    })
}

/// Reads a record, or that there is none (`KAML_NOT_FOUND`): nobody changes it until the transaction ends. `*value` is
/// the caller's from then on and is given back with `kaml_free`.
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

/// As `kaml_txn_read`, for a record that is going to be changed: nobody else reads it for that either. This avoids
/// deadlocks.
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

fn answer(out: &ValueOut, (namespace_id, key): (kaml_namespace_id, Key), found: Option<Value>) -> Result<(), Failure> {
    match found {
        Some(value) => out.set(&value),
        None => Err(Failure::no_record(namespace_id, key)),
    }
}

/// Changes a record that is there; else `KAML_NOT_FOUND`, and the transaction goes on.
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
        let (key, value) =
            unsafe { (arguments::key(key, key_length)?, arguments::bytes(value, value_length, "value")?) };
        call_with(txn, |txn| txn.update(namespace_id, key, value))
    })
}

/// Stores a record, whether it is there or not.
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
        let (key, value) =
            unsafe { (arguments::key(key, key_length)?, arguments::bytes(value, value_length, "value")?) };
        call_with(txn, |txn| txn.upsert(namespace_id, key, value))
    })
}

/// Stores a record that is not there; else `KAML_EXISTS`, and the transaction goes on.
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
        let (key, value) =
            unsafe { (arguments::key(key, key_length)?, arguments::bytes(value, value_length, "value")?) };
        call_with(txn, |txn| txn.insert(namespace_id, key, value))
    })
}

/// Deletes a record that is there; else `KAML_NOT_FOUND`, and the transaction goes on.
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

/// Makes all changes durable, together; with a `durability_delay_us` they are visible when it returns, and durable soon. After
/// an error the transaction is aborted; if the device failed, its changes may nevertheless be there, all or none.
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

/// Gives back a transaction that was committed or aborted, by its user or by a deadlock. One that is active stays as it
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
