//! Records that expire, counters, and values that are replaced if they are what the caller expects.
//!
//! Lives here:       batches of operations, the same one by one, of devices, stores and transactions; times to live of namespaces.
//! Lives elsewhere:  plain records (`records`, `store`, `txn`), what happens (`kaml::Batch`, `kaml::store`).

use crate::arguments::{self, Limits, Out};
use crate::device::{DEVICES, kaml_device, kaml_namespace_id};
use crate::failure::{Failure, call};
use crate::records::{KAML_PUT, KAML_PUT_DELETE, KAML_PUT_DELETE_IF_PRESENT, KAML_PUT_IF_ABSENT, KAML_PUT_IF_PRESENT};
use crate::status::kaml_status;
use crate::store::{STORES, kaml_store};
use crate::txn::{self, kaml_txn};
use kaml::{Batch, Expiry, KeyRef, NamespaceChange, Operand};
use std::ffi::c_void;
use std::num::NonZeroU64;
use std::time::{Duration, UNIX_EPOCH};

/// Add `number` to a counter. A key that does not exist counts as 0.
pub const KAML_ADD: u32 = 16;
/// The larger of a counter and `number`, which is the result if the key does not exist.
pub const KAML_MAX: u32 = 17;
/// The smaller of a counter and `number`, which is the result if the key does not exist.
pub const KAML_MIN: u32 = 18;
/// Store nothing, and let the whole batch fail with `KAML_VALUE_DIFFERS` unless the key had this value before the batch.
pub const KAML_EXPECT: u32 = 19;
/// The same unless the key did not exist. The value is not looked at.
pub const KAML_EXPECT_ABSENT: u32 = 20;

/// A time to live, or a time, that never comes.
pub const KAML_NEVER: u64 = u64::MAX;

/// An operation of `kaml_write`: belongs to the caller, and is only read. Set all of it to zeros first.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_operation {
    /// The namespace.
    pub namespace_id: kaml_namespace_id,
    /// `KAML_PUT...`, or one of `KAML_ADD`, `KAML_MAX`, `KAML_MIN`, `KAML_EXPECT`, `KAML_EXPECT_ABSENT`.
    pub action: u32,
    /// The key.
    pub key: *const c_void,
    /// Its bytes.
    pub key_length: usize,
    /// The value, of actions that have one; may be null if it has no bytes.
    pub value: *const c_void,
    /// Its bytes.
    pub value_length: usize,
    /// For `KAML_ADD`, `KAML_MAX` and `KAML_MIN`.
    pub number: i64,
    /// The record expires so many milliseconds after it is put. 0: after the time to live of its namespace; a counter that exists keeps its time.
    /// `KAML_NEVER`: it does not expire.
    pub time_to_live_ms: u64,
    /// It expires at this time, in milliseconds since 1970; 0: as `time_to_live_ms` specifies.
    pub expires_at_ms: u64,
}

fn after(time_to_live_ms: u64) -> Expiry {
    match time_to_live_ms {
        0 => Expiry::Default,
        KAML_NEVER => Expiry::Never,
        ms => Expiry::After(Duration::from_millis(ms)),
    }
}

impl kaml_operation {
    fn expiry(&self) -> Result<Expiry, Failure> {
        match (self.time_to_live_ms, self.expires_at_ms) {
            (ttl, 0) => Ok(after(ttl)),
            (0, KAML_NEVER) => Ok(Expiry::Never),
            (0, time) => Ok(Expiry::At(UNIX_EPOCH + Duration::from_millis(time))),
            _ => Err(Failure::argument("time_to_live_ms and expires_at_ms: set one of them")),
        }
    }

    /// Adds it; returns whether it has a counter as its result.
    ///
    /// # Safety
    /// Key and value are as the header demands.
    unsafe fn add_to(&self, batch: &mut Batch, limits: &Limits) -> Result<bool, Failure> {
        // SAFETY: the caller's promise is the same.
        let key = unsafe { arguments::key(self.key, self.key_length)? };
        let ns = self.namespace_id;
        // SAFETY: the same. Only looked at where there is a value.
        let value = || unsafe { limits.value(self.value, self.value_length) };
        match self.action {
            KAML_PUT => batch.put(ns, key, value()?),
            KAML_PUT_IF_ABSENT => batch.put_if_absent(ns, key, value()?),
            KAML_PUT_IF_PRESENT => batch.put_if_present(ns, key, value()?),
            KAML_PUT_DELETE => batch.delete(ns, key),
            KAML_PUT_DELETE_IF_PRESENT => batch.delete_if_present(ns, key),
            KAML_ADD => batch.apply(ns, key, Operand::Add(self.number)),
            KAML_MAX => batch.apply(ns, key, Operand::Max(self.number)),
            KAML_MIN => batch.apply(ns, key, Operand::Min(self.number)),
            KAML_EXPECT => batch.expect(ns, key, Some(value()?)),
            KAML_EXPECT_ABSENT => batch.expect(ns, key, None),
            other => {
                return Err(Failure::argument(format!(
                    "action: {other} is not one of KAML_PUT..., KAML_ADD, KAML_MAX, KAML_MIN, KAML_EXPECT..."
                )));
            }
        }
        .expires(self.expiry()?);
        Ok(matches!(self.action, KAML_ADD | KAML_MAX | KAML_MIN))
    }
}

/// Executes operations on records of any namespaces, all or none; durable when it returns. Later operations of one key apply to what earlier ones have put;
/// conditions and expected values are judged by the state before the call. Counters are values of 8 bytes, signed, little-endian, and are changed
/// without being read. `counters` is null or has `operation_count` places: that of an operation on a counter is set to the counter after it, others to 0.
///
/// `KAML_VALUE_DIFFERS` if a value is not the expected one; `KAML_BAD_ARGUMENT` if a value is not a counter, or a sum does not fit 64 bits, or the namespace keeps
/// versions; otherwise as `kaml_put`.
///
///     kaml_operation both[2] = { { users, KAML_PUT, "ada", 3, "1", 1, 0, 60000, 0 },    // for a minute
///                                { stats, KAML_ADD, "puts", 4, NULL, 0, 1, 0, 0 } };
///     int64_t counters[2];
///     if (kaml_write(device, both, 2, counters)) goto failed;
///     printf("put number %lld\n", (long long)counters[1]);
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_write(
    device: kaml_device,
    operations: *const kaml_operation,
    operation_count: usize,
    counters: *mut i64,
) -> kaml_status {
    call(|| {
        DEVICES.with(device.id, |open| {
            let limits = &open.limits;
            // SAFETY: pointers are as the header demands.
            let operations = unsafe { limits.records(operations, operation_count)? };
            let places = if counters.is_null() { 0 } else { operation_count };
            // SAFETY: the same.
            let places = unsafe { arguments::slice_out(counters, places, "counters")? };
            let mut batch = Batch::new();
            let mut is_counter = Vec::with_capacity(operations.len());
            for operation in operations {
                // SAFETY: so are those in each operation.
                is_counter.push(unsafe { operation.add_to(&mut batch, limits)? });
            }
            let found = open.change(|device| Ok(device.write_returning(&batch)?))?;
            let mut found = found.into_iter();
            for (place, is_counter) in places.iter_mut().zip(is_counter) {
                place.write(if is_counter { found.next().unwrap_or_default() } else { 0 });
            }
            Ok(())
        })
    })
}

/// Stores one record that expires after so many milliseconds; durable when it returns. `time_to_live_ms` is as in `kaml_operation`. From then on nobody
/// sees the record, and its room is released by itself. `KAML_BAD_ARGUMENT` if the namespace keeps versions; otherwise as `kaml_put_one`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_put_expiring(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    time_to_live_ms: u64,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let key = unsafe { arguments::key(key, key_length)? };
        DEVICES.with(device.id, |open| {
            // SAFETY: the same.
            let value = unsafe { open.limits.value(value, value_length)? };
            open.change(|device| Ok(device.put_expiring(namespace_id, key, value, after(time_to_live_ms))?))
        })
    })
}

/// When the record of a key expires: milliseconds since 1970 by the clock of the device, which never goes back, or `KAML_NEVER`. `KAML_NOT_FOUND` if the key
/// does not exist. Reads no flash. Unflushed records of a store are not seen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_expiry(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    expires_at_ms: *mut u64,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, key) = unsafe { (Out::new(expires_at_ms, "expires_at_ms")?, arguments::key(key, key_length)?) };
        let found = DEVICES.with(device.id, |open| Ok(open.device.expiry(namespace_id, key)?))?;
        out.set(match found.ok_or_else(|| Failure::no_record(namespace_id, key))? {
            Expiry::At(time) => {
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_millis()).unwrap_or(KAML_NEVER)
            }
            _ => KAML_NEVER,
        });
        Ok(())
    })
}

/// From now on records that are put expire after so many milliseconds, unless a put requests something else; 0: they do not. Present records keep their
/// times. Durable when it returns. `KAML_IN_USE` while a store is open over the device; `KAML_BAD_ARGUMENT` if the namespace keeps versions or holds blocks.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_set_time_to_live(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    time_to_live_ms: u64,
) -> kaml_status {
    call(|| {
        let ttl = NonZeroU64::new(time_to_live_ms).filter(|ttl| ttl.get() != KAML_NEVER);
        let change = NamespaceChange { default_ttl_ms: Some(ttl), ..NamespaceChange::default() };
        DEVICES.with(device.id, |open| open.change(|device| Ok(device.set_namespace(namespace_id, &change)?)))
    })
}

/// Adds a number to a counter without reading it; durable when it returns. `*counter` is the counter afterwards; `counter` may be null. Many threads
/// can change the same counter at a time. Otherwise as `KAML_ADD` of `kaml_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_add(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    number: i64,
    counter: *mut i64,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, key) = unsafe { (optional(counter, "counter")?, arguments::key(key, key_length)?) };
        let found =
            DEVICES.with(device.id, |open| open.change(|device| Ok(device.add(namespace_id, key, number)?)))?;
        out.into_iter().for_each(|out| out.set(found));
        Ok(())
    })
}

/// Stores a value, provided that the key has the expected value; durable when it returns. `expected` null: provided that the key does not exist. `value`
/// null: deletes the key instead. A value of no bytes is a pointer that is not null, with a length of 0. `KAML_VALUE_DIFFERS` if the key has another
/// value, or does not exist.
///
///     // Only one of several processes becomes the leader.
///     kaml_status status = kaml_compare_and_set(device, locks, "leader", 6, NULL, 0, "me", 2);
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_compare_and_set(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    expected: *const c_void,
    expected_length: usize,
    value: *const c_void,
    value_length: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let key = unsafe { arguments::key(key, key_length)? };
        DEVICES.with(device.id, |open| {
            let limits = &open.limits;
            // SAFETY: the same.
            let (expected, value) =
                unsafe { (perhaps(limits, expected, expected_length)?, perhaps(limits, value, value_length)?) };
            open.change(|device| Ok(device.compare_and_set(namespace_id, key, expected, value)?))
        })
    })
}

/// A place for an answer that the caller may not want.
unsafe fn optional<T: Copy>(pointer: *mut T, what: &str) -> Result<Option<Out<T>>, Failure> {
    // SAFETY: the caller's promise is the same.
    if pointer.is_null() { Ok(None) } else { unsafe { Out::new(pointer, what) }.map(Some) }
}

/// A value, or none.
unsafe fn perhaps<'a>(limits: &Limits, value: *const c_void, length: usize) -> Result<Option<&'a [u8]>, Failure> {
    match (value.is_null(), length) {
        (true, 0) => Ok(None),
        // SAFETY: the caller's promise is the same.
        _ => unsafe { limits.value(value, length) }.map(Some),
    }
}

// --- stores and transactions ------------------------------------------------------------------------------------------

/// Stores a record that expires; durable when it returns, whatever the `write_mode`. The cache keeps no value that can expire: its reads are those of the
/// device. `time_to_live_ms` is as in `kaml_operation`. Otherwise as `kaml_store_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_store_put_expiring(
    store: kaml_store,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    time_to_live_ms: u64,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let key = unsafe { arguments::key(key, key_length)? };
        STORES.with(store.id, |open| {
            // SAFETY: the same.
            let value = unsafe { open.limits.value(value, value_length)? };
            Ok(open.store.put_expiring(namespace_id, key, value, after(time_to_live_ms))?)
        })
    })
}

/// Adds a number to a counter in a transaction of its own, as `kaml_txn_add` does. `*counter` is the counter afterwards; `counter` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_store_add(
    store: kaml_store,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    number: i64,
    counter: *mut i64,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, key) = unsafe { (optional(counter, "counter")?, arguments::key(key, key_length)?) };
        let add = Operand::Add(number);
        let found = STORES.with(store.id, |open| Ok(open.store.apply(namespace_id, key, add)?))?;
        out.into_iter().for_each(|out| out.set(found));
        Ok(())
    })
}

/// As `kaml_compare_and_set`, in a transaction of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_store_compare_and_set(
    store: kaml_store,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    expected: *const c_void,
    expected_length: usize,
    value: *const c_void,
    value_length: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let key = unsafe { arguments::key(key, key_length)? };
        STORES.with(store.id, |open| {
            let limits = &open.limits;
            // SAFETY: the same.
            let (expected, value) =
                unsafe { (perhaps(limits, expected, expected_length)?, perhaps(limits, value, value_length)?) };
            Ok(open.store.compare_and_set(namespace_id, key, expected, value)?)
        })
    })
}

/// Stores a record that expires, whether it exists or not. Its time begins with the commit, which waits until the changes are durable.
/// `time_to_live_ms` is as in `kaml_operation`. Otherwise as `kaml_txn_upsert`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_upsert_expiring(
    txn: kaml_txn,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    time_to_live_ms: u64,
) -> kaml_status {
    let upsert = |txn: &mut kaml::store::Transaction, key: KeyRef<'_>, value: &[u8]| {
        txn.upsert_expiring(namespace_id, key, value, after(time_to_live_ms))
    };
    // SAFETY: pointers are as the header demands.
    call(|| unsafe { txn::put_with(txn, (key, key_length), (value, value_length), upsert) })
}

/// Adds a number to a counter, which is read and locked, and keeps the time at which it expires. `*counter` is the counter afterwards; `counter` may be
/// null. `KAML_BAD_ARGUMENT` if the value is not a counter, or the sum does not fit 64 bits: the transaction continues. Otherwise as `kaml_txn_upsert`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_txn_add(
    txn: kaml_txn,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    number: i64,
    counter: *mut i64,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, key) = unsafe { (optional(counter, "counter")?, arguments::key(key, key_length)?) };
        let found = txn::call_with(txn, |txn| txn.apply(namespace_id, key, Operand::Add(number)))?;
        out.into_iter().for_each(|out| out.set(found));
        Ok(())
    })
}
