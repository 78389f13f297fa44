//! Reads of many records in one call: those that must be read from the medium are read at the same time.
//!
//! Implements:       paper:KAML Table I, Get, of several records.

use crate::arguments::{self, ItemsOut};
use crate::device::{DEVICES, kaml_device, kaml_namespace_id};
use crate::failure::{Failure, call};
use crate::ranges::{ITEMS_MAX, kaml_item};
use crate::status::kaml_status;
use crate::store::{STORES, kaml_store};
use kaml::{KeyBuf, KeyRef};
use std::ffi::c_void;

/// The keys of a call, which are read in the memory of the caller.
unsafe fn keys<'a>(
    keys: *const *const c_void,
    key_lengths: *const usize,
    key_count: usize,
) -> Result<Vec<KeyRef<'a>>, Failure> {
    // SAFETY: the caller's promise is the same.
    let (starts, lengths) = unsafe {
        let lengths = arguments::few(key_lengths, key_count, ITEMS_MAX, "key_lengths")?;
        (arguments::few(keys, key_count, ITEMS_MAX, "keys")?, lengths)
    };
    // SAFETY: the same, for each key.
    starts.iter().zip(lengths).map(|(start, length)| unsafe { arguments::key(*start, *length) }).collect()
}

fn set<V: AsRef<[u8]>>(out: &ItemsOut, keys: &[KeyRef<'_>], found: &[Option<V>]) -> Result<(), Failure> {
    out.set(keys.iter().zip(found).map(|(key, value)| (key.as_bytes(), value.as_ref().map(AsRef::as_ref))))
}

/// Reads the values of up to 4096 keys of a namespace; neighbours on the medium are read in one operation. `*items` is an array of
/// `key_count` items in the order of `keys`, which you free with `kaml_free`. `value` is null in the item of a key that does not exist; the call
/// returns `KAML_OK` all the same. The values are not of one moment: `kaml_snapshot_get` reads those.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_get_many(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    keys: *const *const c_void,
    key_lengths: *const usize,
    key_count: usize,
    items: *mut *mut kaml_item,
) -> kaml_status {
    call(|| {
        let mut count = 0;
        // SAFETY: pointers are as the header demands.
        let (out, keys) = unsafe { (ItemsOut::new(items, &mut count)?, self::keys(keys, key_lengths, key_count)?) };
        let owned: Vec<KeyBuf> = keys.iter().map(|key| key.to_buf()).collect::<Result<_, _>>()?;
        let found = DEVICES
            .with(device.id, |open| Ok(open.device.namespace_with_id(namespace_id).get_many(&owned, usize::MAX)?))?;
        set(&out, &keys, &found)
    })
}

/// As `kaml_get_many`, through the cache of a store. It also fills the cache: what it reads from the medium is cached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_store_get_many(
    store: kaml_store,
    namespace_id: kaml_namespace_id,
    keys: *const *const c_void,
    key_lengths: *const usize,
    key_count: usize,
    items: *mut *mut kaml_item,
) -> kaml_status {
    call(|| {
        let mut count = 0;
        // SAFETY: pointers are as the header demands.
        let (out, keys) = unsafe { (ItemsOut::new(items, &mut count)?, self::keys(keys, key_lengths, key_count)?) };
        let found = STORES.with(store.id, |open| Ok(open.store.get_many(namespace_id, keys.iter().copied())?))?;
        set(&out, &keys, &found)
    })
}
