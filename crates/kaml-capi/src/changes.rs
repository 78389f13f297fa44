//! The change stream of a device.
//!
//! Lives here:       positions, readers, and the memory of the changes of a commit.
//! Lives elsewhere:  what is in the stream (`kaml::Device::changes`).
//!
//! A reader belongs to its device, which drops it when it is closed; the handle of one only names device and reader.

use crate::arguments::{self, Out};
use crate::device::{DEVICES, kaml_device, kaml_namespace_id};
use crate::failure::{Failure, call, call_quietly};
use crate::handle::{Kind, Registry};
use crate::owned::{Owned, OwnedBy};
use crate::ranges::{KAML_RANGE_FROM_EXCLUDED, KAML_RANGE_TO_INCLUDED};
use crate::status::kaml_status::{self, KAML_BAD_HANDLE, KAML_NO_RESOURCES};
use crate::writes::KAML_NEVER;
use kaml::{Change, Changes, Position, VersionCommand};
use std::ffi::c_void;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// A namespace exists; `key` is its name. The stream begins with one for each namespace, and has one when a namespace is created or changed.
pub const KAML_CHANGE_NAMESPACE: u32 = 1;
/// A namespace was deleted; `key` is its name.
pub const KAML_CHANGE_NAMESPACE_DELETED: u32 = 2;
/// A record was stored, or in a namespace of blocks a unit.
pub const KAML_CHANGE_PUT: u32 = 3;
/// A key was deleted, whether it existed or not.
pub const KAML_CHANGE_DELETE: u32 = 4;
/// The keys from `key` to `value` were deleted; a null one means no bound. `flags` are those of `kaml_range_open`.
pub const KAML_CHANGE_DELETE_RANGE: u32 = 5;
/// A version was stored; `value` is null if it states that the key is deleted.
pub const KAML_CHANGE_VERSION: u32 = 6;
/// A command on the user versions of a namespace; `command` is what it does.
pub const KAML_CHANGE_VERSION_COMMAND: u32 = 7;

/// A snapshot was taken.
pub const KAML_COMMAND_SNAPSHOT: u32 = 1;
/// The namespace was returned to its state in `snapshot`.
pub const KAML_COMMAND_ROLL_BACK: u32 = 2;
/// `snapshot` was forgotten.
pub const KAML_COMMAND_FORGET: u32 = 3;
/// `snapshot` and all before it were forgotten.
pub const KAML_COMMAND_FORGET_THROUGH: u32 = 4;

/// Bytes of a position.
pub const KAML_POSITION_BYTES: usize = 32;

/// A place in the change stream of a device: store it to continue there, also after the device was opened again.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_position {
    /// Its bytes.
    pub bytes: [u8; KAML_POSITION_BYTES],
}

/// A change that was committed. Key and value are in the memory of the array: `kaml_free` of the first change frees all.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_change {
    /// `KAML_CHANGE_...`; others come with later versions.
    pub kind: u32,
    /// The namespace.
    pub namespace_id: kaml_namespace_id,
    /// The key; null where there is none.
    pub key: *const c_void,
    /// Its bytes.
    pub key_length: usize,
    /// The value; null where there is none.
    pub value: *const c_void,
    /// Its bytes.
    pub value_length: usize,
    /// Of a put: when the record expires, in milliseconds since 1970, or `KAML_NEVER`. No change shows that it has expired.
    pub expires_at_ms: u64,
    /// Of versions and commands on them: the number in the order of all versions; else 0.
    pub sequence: u64,
    /// Of versions and commands on them: when it was put, in nanoseconds since 1970; else 0.
    pub time_ns: u64,
    /// Of versions: the user version that it belongs to; else 0.
    pub user_version: u32,
    /// Of deleted ranges: `KAML_RANGE_FROM_EXCLUDED`, `KAML_RANGE_TO_INCLUDED`.
    pub flags: u32,
    /// Of commands on user versions: `KAML_COMMAND_...`, others come with later versions; else 0.
    pub command: u32,
    /// Of commands on user versions: the snapshot that it is about; 0 for one that is taken, and if there is none.
    pub snapshot: u32,
}

/// A reader of the change stream: a number, copied as you like. Zeros are never open.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_changes {
    /// Private to the library.
    pub id: u64,
}

pub(crate) static READERS: Registry<OwnedBy, 1> = Registry::new(Kind::Changes);

/// The readers of a device.
pub(crate) type ChangeReaders = Owned<Arc<Mutex<Changes>>>;

/// The position after everything that is durable now: `kaml_changes_open` since it yields what is committed later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_position_now(device: kaml_device, position: *mut kaml_position) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { Out::new(position, "position")? };
        let found = DEVICES.with(device.id, |open| Ok(open.device.position()?))?;
        out.set(kaml_position { bytes: found.to_bytes() });
        Ok(())
    })
}

/// Opens a reader of what was committed after a position, in the order of the commits, each commit exactly one time. `since` null: of what is committed from now on.
/// Only what is durable is shown. The device keeps as many changes as its commit ring has bytes; no commit waits for a slow reader, which
/// loses its place instead. Close it with `kaml_changes_close`; closing the device closes it, too.
///
/// `KAML_BAD_ARGUMENT` if the position is of another device; `KAML_SNAPSHOT_TOO_OLD`, also later, if the changes after it are not on the device any more.
///
///     kaml_changes reader;
///     kaml_change *changes;
///     size_t count;
///     kaml_position position;
///     if (kaml_changes_open(device, NULL, &reader)) goto failed;
///     while (!kaml_changes_next(reader, 1000, &changes, &count, &position)) {
///         for (size_t i = 0; i < count; i++)
///             if (changes[i].kind == KAML_CHANGE_PUT) printf("%.*s\n", (int)changes[i].key_length, (const char *)changes[i].key);
///         kaml_free(changes);
///     }
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_changes_open(
    device: kaml_device,
    since: *const kaml_position,
    reader: *mut kaml_changes,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { Out::new(reader, "reader")? };
        out.set(kaml_changes { id: 0 });
        // SAFETY: the same.
        let since = if since.is_null() { None } else { Some(unsafe { arguments::structure(since, "since")? }) };
        let since = since.map(|since| Position::from_bytes(&since.bytes));
        DEVICES.with(device.id, |open| {
            let number = open.changes.add(Arc::new(Mutex::new(open.device.changes(since.as_ref())?)));
            match READERS.insert(OwnedBy { device: device.id, number }) {
                Ok(id) => out.set(kaml_changes { id }),
                Err(failure) => {
                    open.changes.remove(number);
                    return Err(failure);
                }
            }
            Ok(())
        })
    })
}

/// The changes of the next commit, of which there is at least one; none if nothing is committed within `timeout_ms`. `*changes` is an array of `*change_count`
/// changes that you free with `kaml_free`; it is null if there are none. `*position` is the one after them; it may be null. The first changes describe the namespaces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_changes_next(
    reader: kaml_changes,
    timeout_ms: u32,
    changes: *mut *mut kaml_change,
    change_count: *mut usize,
    position: *mut kaml_position,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, count) = unsafe { (Out::new(changes, "changes")?, Out::new(change_count, "change_count")?) };
        out.set(std::ptr::null_mut());
        count.set(0);
        // SAFETY: the same.
        let place = if position.is_null() { None } else { Some(unsafe { Out::new(position, "position")? }) };
        READERS.with_mut(reader.id, |open| {
            DEVICES.with(open.device, |device| {
                let closed = || Failure::new(KAML_BAD_HANDLE, "the reader of changes is closed");
                let reader = device.changes.get(open.number).ok_or_else(closed)?;
                let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
                let next = reader.next_within(Duration::from_millis(timeout_ms.into()))?;
                let found = next.as_ref().map_or(&[][..], |next| &next.changes);
                out.set(copied(found)?);
                count.set(found.len());
                place.iter().for_each(|place| place.set(kaml_position { bytes: reader.resume_position().to_bytes() }));
                Ok(())
            })
        })
    })
}

/// Closes a reader. `KAML_IN_USE` if another thread is in a call with it; it is then kept.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_changes_close(reader: kaml_changes) -> kaml_status {
    call(|| close(reader))
}

/// As `kaml_changes_close`, for destructors and finalizers: it leaves the message of `kaml_last_error` as it was.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_changes_abandon(reader: kaml_changes) -> kaml_status {
    call_quietly(|| close(reader))
}

fn close(reader: kaml_changes) -> Result<(), Failure> {
    let closed = READERS.take(reader.id, |_| Ok(()))?;
    // A device that was closed has dropped it already.
    let _ = DEVICES.with(closed.device, |device| {
        device.changes.remove(closed.number);
        Ok(())
    });
    Ok(())
}

/// The change without its pointers, and what these lead to.
fn parts(change: &Change) -> (kaml_change, Option<&[u8]>, Option<&[u8]>) {
    let of = |kind, namespace_id| kaml_change {
        kind,
        namespace_id,
        key: std::ptr::null(),
        key_length: 0,
        value: std::ptr::null(),
        value_length: 0,
        expires_at_ms: KAML_NEVER,
        sequence: 0,
        time_ns: 0,
        user_version: 0,
        flags: 0,
        command: 0,
        snapshot: 0,
    };
    match change {
        Change::Namespace(info) => (of(KAML_CHANGE_NAMESPACE, info.id), Some(info.name.as_bytes()), None),
        Change::NamespaceDeleted { namespace, name } => {
            (of(KAML_CHANGE_NAMESPACE_DELETED, *namespace), Some(name.as_bytes()), None)
        }
        Change::Put { namespace, key, value, expires } => {
            let since = expires.map(|time| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis());
            let expires_at_ms = since.and_then(|ms| u64::try_from(ms).ok()).unwrap_or(KAML_NEVER);
            (kaml_change { expires_at_ms, ..of(KAML_CHANGE_PUT, *namespace) }, Some(key.as_bytes()), Some(value))
        }
        Change::Delete { namespace, key } => (of(KAML_CHANGE_DELETE, *namespace), Some(key.as_bytes()), None),
        Change::DeleteRange { namespace, lower, upper } => {
            let (from, excluded) = match lower {
                Bound::Included(key) => (Some(&key[..]), 0),
                Bound::Excluded(key) => (Some(&key[..]), KAML_RANGE_FROM_EXCLUDED),
                Bound::Unbounded => (None, 0),
            };
            let (to, included) = match upper {
                Bound::Included(key) => (Some(&key[..]), KAML_RANGE_TO_INCLUDED),
                Bound::Excluded(key) => (Some(&key[..]), 0),
                Bound::Unbounded => (None, 0),
            };
            (kaml_change { flags: excluded | included, ..of(KAML_CHANGE_DELETE_RANGE, *namespace) }, from, to)
        }
        Change::Version { namespace, key, value, sequence, time_ns, user_version } => {
            let (sequence, time_ns, user_version) = (*sequence, *time_ns, *user_version);
            let version = kaml_change { sequence, time_ns, user_version, ..of(KAML_CHANGE_VERSION, *namespace) };
            (version, Some(key.as_bytes()), value.as_deref())
        }
        Change::VersionCommand { namespace, sequence, time_ns, command } => {
            let (command, snapshot) = match command {
                VersionCommand::Snapshot => (KAML_COMMAND_SNAPSHOT, 0),
                VersionCommand::RollBack(snapshot) => (KAML_COMMAND_ROLL_BACK, *snapshot),
                VersionCommand::Forget(snapshot) => (KAML_COMMAND_FORGET, *snapshot),
                VersionCommand::ForgetThrough(snapshot) => (KAML_COMMAND_FORGET_THROUGH, *snapshot),
            };
            let (sequence, time_ns) = (*sequence, *time_ns);
            let plain = of(KAML_CHANGE_VERSION_COMMAND, *namespace);
            (kaml_change { sequence, time_ns, command, snapshot, ..plain }, None, None)
        }
        // One that this interface does not have yet.
        _ => (of(0, 0), None, None),
    }
}

/// Copies in one piece of memory that the caller frees: the array, and then keys and values. Null if there are none.
fn copied(changes: &[Change]) -> Result<*mut kaml_change, Failure> {
    if changes.is_empty() {
        return Ok(std::ptr::null_mut());
    }
    let all: Vec<_> = changes.iter().map(parts).collect();
    let bytes: usize =
        all.iter().map(|(_, key, value)| key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len)).sum();
    let bytes = bytes + all.len() * size_of::<kaml_change>();
    // One more byte: a value of no bytes at the end is in this memory, too.
    // SAFETY: `malloc` takes any size.
    let memory = unsafe { libc::malloc(bytes + 1) };
    if memory.is_null() {
        return Err(Failure::new(KAML_NO_RESOURCES, format!("no memory for changes of {bytes} bytes")));
    }
    let array: *mut kaml_change = memory.cast();
    // SAFETY: the memory begins with the array.
    let mut free: *mut u8 = unsafe { array.add(all.len()) }.cast();
    let mut copy = |bytes: &[u8]| {
        let at = free;
        // SAFETY: the sum above has room for all that is copied; the memory is new, so it overlaps nothing.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
            free = at.add(bytes.len());
        }
        at.cast_const().cast::<c_void>()
    };
    for (at, (mut change, key, value)) in all.into_iter().enumerate() {
        change.key_length = key.map_or(0, <[u8]>::len);
        change.key = key.map_or(std::ptr::null(), &mut copy);
        change.value_length = value.map_or(0, <[u8]>::len);
        change.value = value.map_or(std::ptr::null(), &mut copy);
        // SAFETY: the array has a place for each; `malloc` aligns it for anything.
        unsafe { array.add(at).write(change) };
    }
    Ok(array)
}
