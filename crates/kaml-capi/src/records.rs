//! Records of a device: without a cache, durable when a call returns.
//!
//! Implements:       paper:KAML Table I, Get and Put; spec:NVMe-KV Exist, List and Delete.

use crate::arguments::{self, BufferOut, Limits, Out, ValueOut};
use crate::device::{DEVICES, kaml_device, kaml_namespace_id};
use crate::failure::{Failure, call};
use crate::status::kaml_status;
use kaml::{Batch, Condition, Cursor, Key, KeyBuf, ListPage, Past};
use std::ffi::c_void;

/// Store, whether the key exists or not.
pub const KAML_PUT: u32 = 0;
/// Store a key that does not exist; else nothing of the batch is stored.
pub const KAML_PUT_IF_ABSENT: u32 = 1;
/// Store a key that exists; else nothing of the batch is stored.
pub const KAML_PUT_IF_PRESENT: u32 = 2;
/// Delete, whether the key exists or not. The value is not looked at.
pub const KAML_PUT_DELETE: u32 = 3;
/// Delete a key that exists; else nothing of the batch is stored. The value is not looked at.
pub const KAML_PUT_DELETE_IF_PRESENT: u32 = 4;

/// The longest key of a namespace of `KAML_KEYS_BYTES`; others take up to `KAML_LONG_KEY_BYTES_MAX`.
pub const KAML_KEY_BYTES_MAX: usize = 16;

/// A record of a Put: belongs to the caller, and is only read.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_record {
    /// The namespace.
    pub namespace_id: kaml_namespace_id,
    /// `KAML_PUT...`: 0 stores.
    pub action: u32,
    /// The key.
    pub key: *const c_void,
    /// Its bytes, 1 to `KAML_KEY_BYTES_MAX`, or to `KAML_LONG_KEY_BYTES_MAX` where the namespace takes longer keys.
    pub key_length: usize,
    /// The value; may be null if it has no bytes.
    pub value: *const c_void,
    /// Its bytes.
    pub value_length: usize,
}

/// A key of at most 16 bytes that the library returns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_key {
    /// Its bytes, followed by zeros.
    pub bytes: [u8; KAML_KEY_BYTES_MAX],
    /// How many there are.
    pub length: u32,
}

/// How far a listing, or a history, has come. Begin with `KAML_CURSOR_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_cursor {
    /// 0: at the beginning, 1: in between, 2: at the end.
    pub state: u32,
    /// Private to the library.
    pub place: [u8; 24],
}

/// Nothing was returned yet.
const CURSOR_START: u32 = 0;
/// Some was returned.
const CURSOR_BETWEEN: u32 = 1;
/// All was returned.
const CURSOR_END: u32 = 2;
/// Keys listed at once: a bound for the memory that a call takes.
const LIST_KEYS_MAX: usize = 4096;

impl kaml_record {
    /// # Safety
    /// Key and value are as the header demands.
    unsafe fn add_to(&self, batch: &mut Batch, limits: &Limits) -> Result<(), Failure> {
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
            other => return Err(Failure::argument(format!("action: {other} is not one of KAML_PUT..."))),
        };
        Ok(())
    }

    /// The condition under which a value is stored; nothing for a delete, and for what is no action.
    fn condition(&self) -> Option<Condition> {
        match self.action {
            KAML_PUT => Some(Condition::Always),
            KAML_PUT_IF_ABSENT => Some(Condition::IfAbsent),
            KAML_PUT_IF_PRESENT => Some(Condition::IfPresent),
            _ => None,
        }
    }
}

/// The key of a number, for namespaces of `KAML_KEYS_U64`: 8 bytes, big-endian.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_key_u64(number: u64) -> kaml_key {
    Key::from(number).into()
}

/// Reads a value. The caller owns `*value` and frees it with `kaml_free`; it is null if there is none (`KAML_NOT_FOUND`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_get(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    value: *mut *mut c_void,
    value_length: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, key) = unsafe { (ValueOut::new(value, value_length)?, arguments::key(key, key_length)?) };
        DEVICES.with(device.id, |open| match open.device.get(namespace_id, key)? {
            Some(found) => out.set(&found),
            None => Err(Failure::no_record(namespace_id, key)),
        })
    })
}

/// Reads a value into a buffer of the caller. If it does not fit, the call returns `KAML_BUFFER_TOO_SMALL`, the buffer does
/// not change, and `*value_length` is the length of the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_get_into(
    device: kaml_device,
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
        DEVICES.with(device.id, |open| match open.device.get(namespace_id, key)? {
            Some(found) => out.set(&found),
            None => Err(Failure::no_record(namespace_id, key)),
        })
    })
}

/// Whether a key exists: `KAML_OK` or `KAML_NOT_FOUND`. Reads no flash, except in a versioned namespace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_exists(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let key = unsafe { arguments::key(key, key_length)? };
        let there = DEVICES.with(device.id, |open| Ok(open.device.exists(namespace_id, key)?))?;
        if there { Ok(()) } else { Err(Failure::no_record(namespace_id, key)) }
    })
}

/// Stores records in any namespaces, all or none; durable when it returns. Later records of one key win over earlier ones.
/// Conditions are judged by the state before the call. In a versioned namespace they read flash.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_put(
    device: kaml_device,
    records: *const kaml_record,
    record_count: usize,
) -> kaml_status {
    call(|| {
        DEVICES.with(device.id, |open| {
            let limits = &open.limits;
            // SAFETY: pointers are as the header demands.
            let records = unsafe { limits.records(records, record_count)? };
            if let [one] = records
                && let Some(condition) = one.condition()
            {
                // SAFETY: so are those in each record.
                let (key, value) =
                    unsafe { (arguments::key(one.key, one.key_length)?, limits.value(one.value, one.value_length)?) };
                let ns = one.namespace_id;
                return open.change(|device| Ok(device.put_if(ns, key, value, condition)?));
            }
            let mut batch = Batch::new();
            for record in records {
                // SAFETY: the same.
                unsafe { record.add_to(&mut batch, limits)? };
            }
            open.change(|device| Ok(device.write(&batch)?))
        })
    })
}

/// Stores one record; durable when it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_put_one(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let key = unsafe { arguments::key(key, key_length)? };
        DEVICES.with(device.id, |open| {
            // SAFETY: the same.
            let value = unsafe { open.limits.value(value, value_length)? };
            open.change(|device| Ok(device.put(namespace_id, key, value)?))
        })
    })
}

/// Deletes a record, whether it exists or not; durable when it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_delete(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let key = unsafe { arguments::key(key, key_length)? };
        DEVICES.with(device.id, |open| open.change(|device| Ok(device.delete(namespace_id, key)?)))
    })
}

/// Lists the keys of a namespace in no particular order, up to `key_count_max` with each call. A `*key_count` of 0 is the
/// end. Every key that exists all the time is listed exactly once. Unflushed records of a store are not listed. Keys above 16 bytes
/// need `kaml_list_keys`: here they return `KAML_BAD_ARGUMENT`, and the cursor is kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_list(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    cursor: *mut kaml_cursor,
    keys: *mut kaml_key,
    key_count_max: usize,
    key_count: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let count = unsafe { Out::new(key_count, "key_count")? };
        count.set(0);
        if key_count_max == 0 {
            return Err(Failure::argument("key_count_max is 0"));
        }
        let places = key_count_max.min(LIST_KEYS_MAX);
        // SAFETY: the same.
        let (cursor, keys) =
            unsafe { (arguments::structure_mut(cursor, "cursor")?, arguments::slice_out(keys, places, "keys")?) };
        let mut next = *cursor;
        let found = DEVICES.with(device.id, |open| {
            next.next_keys(places, |after, limit| Ok(open.device.list(namespace_id, after, limit)?))
        })?;
        let found = short_keys(&found)?;
        *cursor = next;
        keys.iter_mut().zip(&found).for_each(|(place, key)| _ = place.write(kaml_key::from(*key)));
        count.set(found.len());
        Ok(())
    })
}

/// Keys of the size that this interface has. A listing without the others would look whole.
fn short_keys(keys: &[KeyBuf]) -> Result<Vec<Key>, Failure> {
    let long = || Failure::argument("namespace_id: it has keys above 16 bytes, which kaml_list_keys lists");
    keys.iter().map(|key| key.as_short().ok_or_else(long)).collect()
}

impl kaml_cursor {
    /// The next keys; none at the end.
    pub(crate) fn next_keys(
        &mut self,
        limit: usize,
        list: impl Fn(Option<Cursor>, usize) -> Result<ListPage, Failure>,
    ) -> Result<Vec<KeyBuf>, Failure> {
        let mut after = match self.state {
            CURSOR_START => None,
            CURSOR_BETWEEN => Some(Cursor::from_bytes(self.place)),
            CURSOR_END => return Ok(Vec::new()),
            other => return Err(unknown_state(other)),
        };
        loop {
            let page = list(after, limit)?;
            assert!(page.keys.len() <= limit, "a page of a listing keeps to its limit");
            match page.next {
                Some(next) if page.keys.is_empty() => after = Some(next),
                Some(next) => {
                    *self = kaml_cursor { state: CURSOR_BETWEEN, place: next.to_bytes() };
                    return Ok(page.keys);
                }
                None => {
                    self.state = CURSOR_END;
                    return Ok(page.keys);
                }
            }
        }
    }

    /// The next versions of a history: so many of those before a sequence, newest first; none at the end. A place is the
    /// sequence of the version that was returned last.
    pub(crate) fn next_versions(
        &mut self,
        limit: usize,
        history: impl FnOnce(u64, usize) -> Result<Vec<Past>, Failure>,
    ) -> Result<Vec<Past>, Failure> {
        let before = match self.state {
            CURSOR_START => u64::MAX,
            CURSOR_BETWEEN => u64::from_le_bytes(self.place[..8].try_into().expect("8 bytes")),
            CURSOR_END => return Ok(Vec::new()),
            other => return Err(unknown_state(other)),
        };
        let found = history(before, limit)?;
        match found.last() {
            Some(last) if found.len() == limit => {
                self.state = CURSOR_BETWEEN;
                self.place[..8].copy_from_slice(&last.version.sequence.to_le_bytes());
            }
            _ => self.state = CURSOR_END,
        }
        Ok(found)
    }
}

fn unknown_state(state: u32) -> Failure {
    Failure::argument(format!("cursor: a state of {state} (not initialised?)"))
}

impl From<Key> for kaml_key {
    fn from(key: Key) -> kaml_key {
        kaml_key { bytes: *key.padded(), length: key.len() as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaml::{Version, VersionKind};
    use std::cell::RefCell;

    fn past(sequence: u64) -> Past {
        let (key, kind) = (Key::from(7u64), VersionKind::Tombstone);
        let version =
            Version { key, kind, value_len: 0, value_crc: 0, sequence, time_ns: 0, user_version: 0, ordinal: 0 };
        Past { version, is_seen: true }
    }

    const START: kaml_cursor = kaml_cursor { state: CURSOR_START, place: [0; 24] };

    /// Goal:   a history is returned one time and whole, newest first, while versions come and go; limits may be absurd.
    /// Method: a thousand versions in pages of several lengths; with each page 20 are put and one that was returned is dropped.
    #[test]
    fn a_history_is_told_once() {
        for limit in [1, 7, 999, 1000, 1001, usize::MAX] {
            let kept = RefCell::new((0..1000).rev().map(past).collect::<Vec<_>>());
            let (mut cursor, mut told) = (START, Vec::new());
            loop {
                let before = |before, count| {
                    let kept = kept.borrow();
                    Ok(kept.iter().filter(|past| past.version.sequence < before).take(count).copied().collect())
                };
                let page = cursor.next_versions(limit, before).expect("nothing fails");
                assert!(page.len() <= limit);
                if page.is_empty() {
                    break;
                }
                told.extend(page.iter().map(|past| past.version.sequence));
                let mut kept = kept.borrow_mut();
                kept.retain(|past| past.version.sequence != page[0].version.sequence);
                let next = kept[0].version.sequence.max(1000);
                (1..=20).for_each(|more| kept.insert(0, past(next + more)));
            }
            assert_eq!(told, (0..1000).rev().collect::<Vec<_>>(), "limit {limit}");
            assert_eq!(cursor.state, CURSOR_END);
        }
    }
}
