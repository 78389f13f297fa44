//! Records in the order of their keys, and keys of any length.
//!
//! Lives here:       iterators, first and last records, counting and deleting ranges; listing keys of any length.
//! Lives elsewhere:  what a range is (`kaml::Namespace`), ranges of snapshots (`snapshots`), of stores and transactions (`store`, `txn`), the memory
//!                   of a batch (`arguments`).
//!
//! An iterator belongs to its device, which drops it when it is closed; the handle of one only names device and iterator. A call with an iterator
//! holds the device's slot, so the device is not closed under it.

use crate::arguments::{self, ItemsOut, Out};
use crate::device::{DEVICES, OpenDevice, kaml_device, kaml_namespace_id};
use crate::failure::{Failure, call, call_quietly};
use crate::handle::{Kind, Registry};
use crate::owned::{Owned, OwnedBy};
use crate::records::kaml_cursor;
use crate::status::kaml_status::{self, KAML_BAD_HANDLE, KAML_NOT_FOUND};
use kaml::{Entries, KeyBuf, Namespace, OrderedKeys, Snapshot};
use std::ffi::c_void;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

/// From the end of the range downwards.
pub const KAML_RANGE_REVERSE: u32 = 1;
/// Keys without their values: no value is read, and `value` is null.
pub const KAML_RANGE_KEYS_ONLY: u32 = 2;
/// The range does not contain its bound `from`. Without this flag it does.
pub const KAML_RANGE_FROM_EXCLUDED: u32 = 4;
/// The range contains its bound `to`. Without this flag it does not.
pub const KAML_RANGE_TO_INCLUDED: u32 = 8;

/// The longest key of a namespace of `KAML_KEYS_ANY` or `KAML_KEYS_ORDERED`, in bytes.
pub const KAML_LONG_KEY_BYTES_MAX: usize = 1024;

/// A record of a batch that the library returns. Key and value are in the memory of the batch: `kaml_free` of the first item frees all.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_item {
    /// The key.
    pub key: *const c_void,
    /// Its bytes, 1 to `KAML_LONG_KEY_BYTES_MAX`.
    pub key_length: usize,
    /// The value; null if keys alone were requested.
    pub value: *const c_void,
    /// Its bytes.
    pub value_length: usize,
}

/// An iterator over a range: a number, copied as you like. Zeros are never open.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_range {
    /// Private to the library.
    pub id: u64,
}

/// Records of one call at most, and bytes of values after which a call returns what it has: a bound for its memory.
pub(crate) const ITEMS_MAX: usize = 4096;
const ITEM_BYTES_MAX: usize = 4 << 20;

pub(crate) static RANGES: Registry<OwnedBy, 1> = Registry::new(Kind::Range);

enum Walk {
    Records(Entries),
    Keys(OrderedKeys),
}

/// What is left of a range.
pub(crate) struct Iteration {
    walk: Walk,
    reverse: bool,
    /// Comes after the records that were found before it.
    failed: Option<kaml::Error>,
}

/// The iterators of a device.
pub(crate) type Iterations = Owned<Arc<Mutex<Iteration>>>;

pub(crate) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);
pub(crate) type Found = Vec<(KeyBuf, Vec<u8>)>;

/// Returns the records of a range.
pub(crate) fn set<V: AsRef<[u8]>>(out: &ItemsOut, found: &[(KeyBuf, V)], has_values: bool) -> Result<(), Failure> {
    out.set(found.iter().map(|(key, value)| (key.as_bytes(), has_values.then(|| value.as_ref()))))
}

/// What an iterator reads.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A namespace as it is when the first batch is read.
    Present(&'a Namespace),
    /// A namespace as a snapshot shows it.
    At(&'a Snapshot, kaml_namespace_id),
}

impl Source<'_> {
    /// Refuses namespaces without an order, and those that cannot be read.
    fn check(self) -> Result<(), kaml::Error> {
        match self {
            Source::Present(namespace) => {
                let all: Bounds<'_> = (Bound::Unbounded, Bound::Unbounded);
                namespace.estimate::<&[u8]>(all).map(|_| ())
            }
            Source::At(snapshot, id) => {
                let nothing: Bounds<'_> = (Bound::Included(&[0]), Bound::Excluded(&[0]));
                snapshot.range_keys::<&[u8]>(id, nothing).next().transpose().map(|_| ())
            }
        }
    }

    fn walk(self, bounds: Bounds<'_>, keys_only: bool) -> Walk {
        match (self, keys_only) {
            (Source::Present(namespace), false) => Walk::Records(namespace.range::<&[u8]>(bounds)),
            (Source::Present(namespace), true) => Walk::Keys(namespace.range_keys::<&[u8]>(bounds)),
            (Source::At(snapshot, id), false) => Walk::Records(snapshot.range::<&[u8]>(id, bounds)),
            (Source::At(snapshot, id), true) => Walk::Keys(snapshot.range_keys::<&[u8]>(id, bounds)),
        }
    }

    fn walk_prefix(self, prefix: &[u8], keys_only: bool) -> Walk {
        match (self, keys_only) {
            (Source::Present(namespace), false) => Walk::Records(namespace.prefix(prefix)),
            (Source::Present(namespace), true) => Walk::Keys(namespace.prefix_keys(prefix)),
            (Source::At(snapshot, id), false) => Walk::Records(snapshot.prefix(id, prefix)),
            (Source::At(snapshot, id), true) => Walk::Keys(snapshot.prefix_keys(id, prefix)),
        }
    }
}

impl Iteration {
    pub(crate) fn of_range(source: Source<'_>, bounds: Bounds<'_>, flags: u32) -> Iteration {
        Iteration::new(source.walk(bounds, flags & KAML_RANGE_KEYS_ONLY != 0), flags)
    }

    pub(crate) fn of_prefix(source: Source<'_>, prefix: &[u8], flags: u32) -> Iteration {
        Iteration::new(source.walk_prefix(prefix, flags & KAML_RANGE_KEYS_ONLY != 0), flags)
    }

    fn new(walk: Walk, flags: u32) -> Iteration {
        Iteration { walk, reverse: flags & KAML_RANGE_REVERSE != 0, failed: None }
    }

    fn step(&mut self) -> Option<Result<(KeyBuf, Vec<u8>), kaml::Error>> {
        match (&mut self.walk, self.reverse) {
            (Walk::Records(records), false) => records.next(),
            (Walk::Records(records), true) => records.next_back(),
            (Walk::Keys(keys), false) => keys.next().map(|key| Ok((key?, Vec::new()))),
            (Walk::Keys(keys), true) => keys.next_back().map(|key| Ok((key?, Vec::new()))),
        }
    }

    fn has_values(&self) -> bool {
        matches!(self.walk, Walk::Records(_))
    }

    /// The next records; none at the end.
    fn next(&mut self, count_max: usize) -> Result<Found, Failure> {
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        while found.len() < count_max.min(ITEMS_MAX) && bytes < ITEM_BYTES_MAX {
            match self.step() {
                None => break,
                Some(Ok((key, value))) => {
                    bytes += value.len();
                    found.push((key, value));
                }
                Some(Err(error)) if found.is_empty() => return Err(error.into()),
                Some(Err(error)) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        Ok(found)
    }
}

/// Bounds as C hands them in: a null pointer is none.
///
/// # Safety
/// They are as the header demands.
pub(crate) unsafe fn bounds<'a>(
    (from, from_length): (*const c_void, usize),
    (to, to_length): (*const c_void, usize),
    flags: u32,
) -> Result<Bounds<'a>, Failure> {
    let known = KAML_RANGE_REVERSE | KAML_RANGE_KEYS_ONLY | KAML_RANGE_FROM_EXCLUDED | KAML_RANGE_TO_INCLUDED;
    if flags & !known != 0 {
        return Err(Failure::argument(format!("flags: {flags} has bits that are none of KAML_RANGE_...")));
    }
    let bound = |pointer: *const c_void, length, included| match pointer.is_null() && length == 0 {
        true => Ok(Bound::Unbounded),
        // SAFETY: the caller's promise is the same.
        false => unsafe { arguments::key_bytes(pointer, length) }.map(|key| match included {
            true => Bound::Included(key),
            false => Bound::Excluded(key),
        }),
    };
    let from = bound(from, from_length, flags & KAML_RANGE_FROM_EXCLUDED == 0)?;
    Ok((from, bound(to, to_length, flags & KAML_RANGE_TO_INCLUDED != 0)?))
}

/// A prefix as C hands it in, and its flags.
///
/// # Safety
/// It is as the header demands.
pub(crate) unsafe fn prefix<'a>(prefix: *const c_void, prefix_length: usize, flags: u32) -> Result<&'a [u8], Failure> {
    if flags & !(KAML_RANGE_REVERSE | KAML_RANGE_KEYS_ONLY) != 0 {
        return Err(Failure::argument(format!("flags: {flags}; a prefix takes REVERSE and KEYS_ONLY")));
    }
    match prefix_length {
        0 => Ok(&[]),
        // SAFETY: the caller's promise is the same.
        _ => unsafe { arguments::key_bytes(prefix, prefix_length) },
    }
}

/// Opens an iterator that its device owns.
pub(crate) fn open(
    (id, device): (u64, &OpenDevice),
    out: &Out<kaml_range>,
    source: Source<'_>,
    begin: impl FnOnce(Source<'_>) -> Iteration,
) -> Result<(), Failure> {
    source.check()?;
    let number = device.ranges.add(Arc::new(Mutex::new(begin(source))));
    match RANGES.insert(OwnedBy { device: id, number }) {
        Ok(id) => out.set(kaml_range { id }),
        Err(failure) => {
            device.ranges.remove(number);
            return Err(failure);
        }
    }
    Ok(())
}

/// Opens an iterator over the present of a namespace.
fn open_present(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    out: &Out<kaml_range>,
    begin: impl FnOnce(Source<'_>) -> Iteration,
) -> Result<(), Failure> {
    DEVICES.with(device.id, |owner| {
        let namespace = owner.device.namespace_with_id(namespace_id);
        open((device.id, owner), out, Source::Present(&namespace), begin)
    })
}

/// Begins to read the records of an ordered namespace whose keys are in a range, in the order of their bytes. The range contains `from` and does not
/// contain `to`; flags change that (`KAML_RANGE_...`, 0 for none). A null bound with a length of 0 is no bound. A range that ends before it begins is
/// empty. Close the iterator with `kaml_range_close`; closing the device closes it, too.
///
/// The iterator sees the records as they are when the first batch is read, whatever is put or deleted meanwhile. Unflushed records of a store are not
/// among them. `KAML_BAD_ARGUMENT` if the namespace is not ordered, `KAML_BAD_KEY` for a bound above `KAML_LONG_KEY_BYTES_MAX`.
///
///     kaml_range range;
///     kaml_item *items;
///     size_t count;
///     status = kaml_range_open(device, users, "a", 1, "b", 1, 0, &range);
///     while (!status && !(status = kaml_range_next(range, 256, &items, &count)) && count > 0) {
///         for (size_t at = 0; at < count; at++) use(items[at].key, items[at].key_length);
///         kaml_free(items);
///     }
///     kaml_range_close(range);
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_range_open(
    device: kaml_device,
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
        open_present(device, namespace_id, &out, |source| Iteration::of_range(source, bounds, flags))
    })
}

/// As `kaml_range_open`, for the keys that begin with a prefix of at most `KAML_LONG_KEY_BYTES_MAX` bytes; all keys begin with an empty one.
/// Flags are `KAML_RANGE_REVERSE` and `KAML_RANGE_KEYS_ONLY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_prefix_open(
    device: kaml_device,
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
        let prefix = unsafe { self::prefix(prefix, prefix_length, flags)? };
        open_present(device, namespace_id, &out, |source| Iteration::of_prefix(source, prefix, flags))
    })
}

/// The next records of an iterator, at most `item_count_max`, and fewer if they are large. `*items` is an array of `*item_count` records that you
/// free with `kaml_free`. At the end it is null, and `*item_count` is 0. An error comes after the records before it; it does not end the iterator.
/// `KAML_UNKNOWN_NAMESPACE` if the namespace was deleted, `KAML_BAD_HANDLE` after the iterator or its device was closed,
/// `KAML_SNAPSHOT_TOO_OLD` if the records that it should show had to make room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_range_next(
    range: kaml_range,
    item_count_max: usize,
    items: *mut *mut kaml_item,
    item_count: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { ItemsOut::new(items, item_count)? };
        if item_count_max == 0 {
            return Err(Failure::argument("item_count_max is 0"));
        }
        RANGES.with_mut(range.id, |open| {
            DEVICES.with(open.device, |device| {
                let closed = || Failure::new(KAML_BAD_HANDLE, "the iterator is closed");
                let iteration = device.ranges.get(open.number).ok_or_else(closed)?;
                let mut iteration = iteration.lock().unwrap_or_else(PoisonError::into_inner);
                set(&out, &iteration.next(item_count_max)?, iteration.has_values())
            })
        })
    })
}

/// Closes an iterator.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_range_close(range: kaml_range) -> kaml_status {
    call(|| close(range))
}

/// As `kaml_range_close`, for destructors and finalizers: it leaves the message of `kaml_last_error` as it was.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_range_abandon(range: kaml_range) -> kaml_status {
    call_quietly(|| close(range))
}

fn close(range: kaml_range) -> Result<(), Failure> {
    let closed = RANGES.take(range.id, |_| Ok(()))?;
    // A device that was closed has dropped it already.
    let _ = DEVICES.with(closed.device, |device| {
        device.ranges.remove(closed.number);
        Ok(())
    });
    Ok(())
}

/// # Safety
/// `item` is as the header demands.
pub(crate) unsafe fn end_of(
    namespace_id: kaml_namespace_id,
    item: *mut *mut kaml_item,
    find: impl FnOnce() -> Result<Option<(KeyBuf, Vec<u8>)>, Failure>,
) -> Result<(), Failure> {
    let mut count = 0;
    // SAFETY: the caller's promise is the same.
    let out = unsafe { ItemsOut::new(item, &mut count)? };
    match find()? {
        Some(found) => set(&out, &[found], true),
        None => Err(Failure::new(KAML_NOT_FOUND, format!("namespace {namespace_id} has no records"))),
    }
}

fn end(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    find: impl FnOnce(&Namespace) -> Result<Option<(KeyBuf, Vec<u8>)>, kaml::Error>,
) -> Result<Option<(KeyBuf, Vec<u8>)>, Failure> {
    DEVICES.with(device.id, |open| Ok(find(&open.device.namespace_with_id(namespace_id))?))
}

/// The record with the least key of an ordered namespace; `KAML_NOT_FOUND` if there is none. You free `*item` with `kaml_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_first(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    item: *mut *mut kaml_item,
) -> kaml_status {
    // SAFETY: pointers are as the header demands.
    call(|| unsafe { end_of(namespace_id, item, || end(device, namespace_id, Namespace::first)) })
}

/// The record with the greatest key of an ordered namespace; `KAML_NOT_FOUND` if there is none. You free `*item` with `kaml_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_last(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    item: *mut *mut kaml_item,
) -> kaml_status {
    // SAFETY: pointers are as the header demands.
    call(|| unsafe { end_of(namespace_id, item, || end(device, namespace_id, Namespace::last)) })
}

/// Counts the keys of a range, whose bounds are those of `kaml_range_open`; flags are `KAML_RANGE_FROM_EXCLUDED` and `KAML_RANGE_TO_INCLUDED`. Reads
/// no flash; takes a second for some 50 million keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_count(
    device: kaml_device,
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
        DEVICES.with(device.id, |open| {
            out.set(open.device.namespace_with_id(namespace_id).count::<&[u8]>(bounds)?);
            Ok(())
        })
    })
}

/// About how many keys a range has, in the time of two look-ups; otherwise as `kaml_count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_estimate(
    device: kaml_device,
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
        DEVICES.with(device.id, |open| {
            out.set(open.device.namespace_with_id(namespace_id).estimate::<&[u8]>(bounds)?);
            Ok(())
        })
    })
}

/// Deletes the records of a range, whose bounds are those of `kaml_count`; durable when it returns. `*count` is how many there were; it may be null.
/// `KAML_IN_USE` while a store is open over the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_delete_range(
    device: kaml_device,
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
        let bounds = unsafe { bounds((from, from_length), (to, to_length), flags)? };
        // SAFETY: the same.
        let out = if count.is_null() { None } else { Some(unsafe { Out::new(count, "count")? }) };
        DEVICES.with(device.id, |open| {
            let deleted =
                open.change(|device| Ok(device.namespace_with_id(namespace_id).delete_range::<&[u8]>(bounds)?))?;
            out.into_iter().for_each(|out| out.set(deleted));
            Ok(())
        })
    })
}

/// Lists keys of any length, of a namespace that is not ordered, in no particular order, up to `item_count_max` with each call. `*items` is an array of
/// `*item_count` keys without values that you free with `kaml_free`; at the end it is null, and `*item_count` is 0. Every key that exists all the time
/// is listed exactly once. Keys above 16 bytes are read from flash. Unflushed records of a store are not listed. An ordered namespace is listed with
/// `kaml_range_open` (`KAML_BAD_ARGUMENT`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_list_keys(
    device: kaml_device,
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
        let found = DEVICES.with(device.id, |open| {
            let list = |after, limit| Ok(open.device.list(namespace_id, after, limit)?);
            next.next_keys(item_count_max.min(ITEMS_MAX), list)
        })?;
        out.set(found.iter().map(|key| (key.as_bytes(), None)))?;
        *cursor = next;
        Ok(())
    })
}
