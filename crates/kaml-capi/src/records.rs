//! Records of a device: without a cache, durable when a call returns.
//!
//! Implements:       paper:KAML Table I, Get and Put; spec:NVMe-KV Exist, List and Delete.

use crate::arguments::{self, BufferOut, Out, ValueOut};
use crate::device::{DEVICES, kaml_device, kaml_namespace_id};
use crate::failure::{Failure, call};
use crate::status::kaml_status;
use kaml::{Batch, Condition, Cursor, Key, ListPage, Past};
use std::ffi::c_void;

/// Store, whether the key is there or not.
pub const KAML_PUT: u32 = 0;
/// Store a key that is not there; else nothing of the batch is stored.
pub const KAML_PUT_IF_ABSENT: u32 = 1;
/// Store a key that is there; else nothing of the batch is stored.
pub const KAML_PUT_IF_PRESENT: u32 = 2;
/// Delete, whether the key is there or not. The value is not looked at.
pub const KAML_PUT_DELETE: u32 = 3;
/// Delete a key that is there; else nothing of the batch is stored. The value is not looked at.
pub const KAML_PUT_DELETE_IF_PRESENT: u32 = 4;

/// The longest key.
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
    /// Its bytes, 1 to `KAML_KEY_BYTES_MAX`.
    pub key_length: usize,
    /// The value; may be null if it has no bytes.
    pub value: *const c_void,
    /// Its bytes.
    pub value_length: usize,
}

/// A key that the library answers.
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
    /// Only the library knows what it means.
    pub place: [u8; 24],
}

/// Nothing was told yet.
const CURSOR_START: u32 = 0;
/// Some was told.
const CURSOR_BETWEEN: u32 = 1;
/// All was told.
const CURSOR_END: u32 = 2;
/// Keys listed at once: a bound for the memory that a call takes.
const LIST_KEYS_MAX: usize = 4096;

impl kaml_record {
    /// # Safety
    /// Key and value are as the header demands.
    unsafe fn add_to(&self, batch: &mut Batch) -> Result<(), Failure> {
        // SAFETY: the caller's promise is the same.
        let key = unsafe { arguments::key(self.key, self.key_length)? };
        let ns = self.namespace_id;
        // SAFETY: the same. Only looked at where there is a value.
        let value = || unsafe { arguments::bytes(self.value, self.value_length, "value") };
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

/// Reads a value. `*value` is the caller's from then on and is given back with `kaml_free`; it is null if there is none
/// (`KAML_NOT_FOUND`).
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

/// Reads a value into a buffer of the caller. If it does not fit, `KAML_BUFFER_TOO_SMALL` is answered, the buffer is as
/// it was, and `*value_length` is what it takes.
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

/// Whether a key is there: `KAML_OK` or `KAML_NOT_FOUND`. Never reads flash.
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

/// Stores records over any namespaces, all or none; durable when it returns. Later records of one key win over earlier
/// ones; conditions are judged as things stood before. Versioned namespaces know the conditions `KAML_PUT_IF_ABSENT` and
/// `KAML_PUT_IF_PRESENT`, of one record that is put alone; all others there are `KAML_BAD_ARGUMENT`, and nothing is stored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_put(
    device: kaml_device,
    records: *const kaml_record,
    record_count: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let records = unsafe { arguments::slice(records, record_count, "records")? };
        if let [one] = records
            && let Some(condition) = one.condition()
        {
            // SAFETY: so are those in each record.
            let (key, value) = unsafe {
                (arguments::key(one.key, one.key_length)?, arguments::bytes(one.value, one.value_length, "value")?)
            };
            let ns = one.namespace_id;
            return DEVICES.with(device.id, |open| open.change(|device| Ok(device.put_if(ns, key, value, condition)?)));
        }
        let mut batch = Batch::new();
        for record in records {
            // SAFETY: the same.
            unsafe { record.add_to(&mut batch)? };
        }
        DEVICES.with(device.id, |open| open.change(|device| Ok(device.write(&batch)?)))
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
        let (key, value) =
            unsafe { (arguments::key(key, key_length)?, arguments::bytes(value, value_length, "value")?) };
        DEVICES.with(device.id, |open| open.change(|device| Ok(device.put(namespace_id, key, value)?)))
    })
}

/// Deletes a record, whether it is there or not; durable when it returns.
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

/// Lists the keys of a namespace, up to `key_count_max` with each call, in no order that means anything. A
/// `*key_count` of 0 is the end. Every key that is there all the time is listed exactly once. What is unflushed in a
/// store is not seen.
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
        let found = DEVICES.with(device.id, |open| {
            cursor.next_keys(places, |after, limit| Ok(open.device.list(namespace_id, after, limit)?))
        })?;
        keys.iter_mut().zip(&found).for_each(|(place, key)| _ = place.write(kaml_key::from(*key)));
        count.set(found.len());
        Ok(())
    })
}

impl kaml_cursor {
    /// The next keys; none at the end.
    fn next_keys(
        &mut self,
        limit: usize,
        list: impl Fn(Option<Cursor>, usize) -> Result<ListPage, Failure>,
    ) -> Result<Vec<Key>, Failure> {
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

    /// The next versions of a history, which tells so many of those before a sequence, newest first; none at the end. A place is the
    /// sequence of the version that was told last.
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

    /// Goal:   a history is told once and whole, newest first, while versions come and go; limits may be absurd.
    /// Method: a thousand versions in pages of several lengths; with each page 20 are put and one that was told is dropped.
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
