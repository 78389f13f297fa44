//! Versioned namespaces: any version of a record, snapshots, rolling back, releasing space.
//!
//! Lives here:       the structures and calls of versioned namespaces.
//! Lives elsewhere:  puts, gets and deletes of the newest version, which are those of any namespace (`records`).
//! Implements:       paper:Muninn 4.4 as C knows it; docs/versioned.md.

use crate::arguments::{self, Out, ValueOut};
use crate::device::{DEVICES, kaml_device, kaml_namespace_id};
use crate::failure::{Failure, call};
use crate::options::flag;
use crate::records::kaml_cursor;
use crate::status::kaml_status::{self, KAML_CANCELLED};
use kaml::{At, MergeReport, Retention};
use std::ffi::{c_int, c_void};
use std::ops::ControlFlow;

/// A version of a record.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_version_info {
    /// Its place in the order of all changes of the device.
    pub sequence: u64,
    /// When it was put: nanoseconds since 1970.
    pub time_ns: u64,
    /// The user version that it belongs to; the snapshot of that number and later ones see it, or something newer.
    pub user_version: u32,
    /// Bytes of its value.
    pub value_length: u32,
    /// 1: the record was deleted then.
    pub deleted: u32,
    /// 1: a rollback hid it.
    pub hidden: u32,
}

/// A snapshot.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_snapshot_info {
    /// When it was taken: nanoseconds since 1970.
    pub time_ns: u64,
    /// Its number.
    pub snapshot: u32,
    /// 0.
    pub reserved: u32,
}

/// What a merge keeps besides the newest version of each key: whatever one of the rules keeps. Begin with
/// `KAML_RETENTION_INIT`, which keeps what snapshots see.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_retention {
    /// Filled in by `KAML_RETENTION_INIT`.
    pub struct_size: usize,
    /// Everything put at this time (nanoseconds since 1970) or later; 0: no such rule.
    pub keep_since_ns: u64,
    /// So many of the newest versions of each key; 0 is 1.
    pub keep_last: u32,
    /// 1: what any snapshot sees. 0: all snapshots are forgotten first.
    pub keep_snapshots: u32,
    /// 1: the newest version of each key among those put around the same time.
    pub keep_internal: u32,
    /// 1: change nothing, only show what would go.
    pub dry_run: u32,
}

/// What a merge did, or would do.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_merge_report {
    /// Versions that were looked at.
    pub versions: u64,
    /// Those of them that the rules keep.
    pub kept: u64,
    /// Those that went.
    pub dropped: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
    /// Segments released.
    pub segments_read: u64,
    /// Segments that took their place; not known in a dry run.
    pub segments_written: u64,
}

impl From<MergeReport> for kaml_merge_report {
    fn from(report: MergeReport) -> kaml_merge_report {
        let MergeReport { versions, kept, dropped, dropped_bytes, segments_read, segments_written } = report;
        kaml_merge_report { versions, kept, dropped, dropped_bytes, segments_read, segments_written }
    }
}

unsafe fn get_at(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    (key, key_length): (*const c_void, usize),
    at: At,
    (value, value_length): (*mut *mut c_void, *mut usize),
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, key) = unsafe { (ValueOut::new(value, value_length)?, arguments::short_key(key, key_length)?) };
        DEVICES.with(device.id, |open| match open.device.get_version(namespace_id, key, at)? {
            Some(found) => out.set(&found.value),
            None => Err(Failure::no_record(namespace_id, key.into())),
        })
    })
}

/// Reads a value as a snapshot sees it. Otherwise as `kaml_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_get_as_of(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    snapshot: u32,
    key: *const c_void,
    key_length: usize,
    value: *mut *mut c_void,
    value_length: *mut usize,
) -> kaml_status {
    // SAFETY: pointers are as the header demands.
    unsafe { get_at(device, namespace_id, (key, key_length), At::Snapshot(snapshot), (value, value_length)) }
}

/// Reads a value as it was so many changes of its key ago; deletes count. Otherwise as `kaml_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_get_back(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    changes: u32,
    key: *const c_void,
    key_length: usize,
    value: *mut *mut c_void,
    value_length: *mut usize,
) -> kaml_status {
    // SAFETY: pointers are as the header demands.
    unsafe { get_at(device, namespace_id, (key, key_length), At::Back(changes), (value, value_length)) }
}

/// Lists the versions of a key, newest first, up to `version_count_max` with each call: all that are kept, including those
/// that a rollback hid. A `*version_count` of 0 is the end, also if the key was never put. Versions put after the first
/// call are not listed. A cursor reads nothing twice, whatever `version_count_max` is, except if more than 16 histories of
/// a device are in progress or a copy of the cursor has continued: then it reads the segments up to its place again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_history(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    cursor: *mut kaml_cursor,
    versions: *mut kaml_version_info,
    version_count_max: usize,
    version_count: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let count = unsafe { Out::new(version_count, "version_count")? };
        count.set(0);
        if version_count_max == 0 {
            return Err(Failure::argument("version_count_max is 0"));
        }
        // SAFETY: the same.
        let (key, cursor, places) = unsafe {
            (
                arguments::short_key(key, key_length)?,
                arguments::structure_mut(cursor, "cursor")?,
                arguments::slice_out(versions, version_count_max, "versions")?,
            )
        };
        let found = DEVICES.with(device.id, |open| {
            cursor.next_versions(places.len(), |before, limit| {
                open.histories.next(&open.device, (namespace_id, key, before), limit)
            })
        })?;
        let version = |past: &kaml::Past| kaml_version_info {
            sequence: past.version.sequence,
            time_ns: past.version.time_ns,
            user_version: past.version.user_version,
            value_length: past.version.value_len,
            deleted: u32::from(past.version.kind == kaml::VersionKind::Tombstone),
            hidden: u32::from(!past.is_seen),
        };
        places.iter_mut().zip(&found).for_each(|(place, past)| _ = place.write(version(past)));
        count.set(found.len());
        Ok(())
    })
}

/// Takes a snapshot, which costs next to nothing: what exists now can be read by its number. Durable when it returns. A
/// store that is open over the device is flushed first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshot(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    snapshot: *mut u32,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { Out::new(snapshot, "snapshot")? };
        DEVICES.with(device.id, |open| {
            out.set(open.snapshot(namespace_id)?);
            Ok(())
        })
    })
}

/// Lists the snapshots of a namespace, oldest first, up to `snapshot_count_max` of them. `*snapshot_count` is how many there
/// are, also if they are more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_snapshots(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    snapshots: *mut kaml_snapshot_info,
    snapshot_count_max: usize,
    snapshot_count: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (count, places) = unsafe {
            let count = Out::new(snapshot_count, "snapshot_count")?;
            count.set(0);
            (count, arguments::slice_out(snapshots, snapshot_count_max, "snapshots")?)
        };
        let found = DEVICES.with(device.id, |open| Ok(open.device.version_stats(namespace_id)?.snapshots))?;
        for (place, info) in places.iter_mut().zip(&found) {
            place.write(kaml_snapshot_info { time_ns: info.time_ns, snapshot: info.version, reserved: 0 });
        }
        count.set(found.len());
        Ok(())
    })
}

/// Forgets a snapshot: the next merge drops what only it sees. Durable when it returns.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_forget_snapshot(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    snapshot: u32,
) -> kaml_status {
    call(|| DEVICES.with(device.id, |open| Ok(open.device.forget_snapshot(namespace_id, snapshot)?)))
}

/// Returns a namespace to its state in a snapshot. Takes a snapshot of the present state first, `*before`; rolling back to
/// that one undoes this. Durable when it returns. `KAML_IN_USE` while a store is open over the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_roll_back(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    snapshot: u32,
    before: *mut u32,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { Out::new(before, "before")? };
        DEVICES.with(device.id, |open| {
            open.change(|device| {
                out.set(device.roll_back(namespace_id, snapshot)?);
                Ok(())
            })
        })
    })
}

/// Undoes the last changes of a key: what it was before them becomes its newest version, or it is deleted if it did not
/// exist. Durable when it returns. `KAML_IN_USE` while a store is open over the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_undo(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    key: *const c_void,
    key_length: usize,
    changes: u32,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let key = unsafe { arguments::short_key(key, key_length)? };
        DEVICES.with(device.id, |open| open.change(|device| Ok(device.undo(namespace_id, key, changes).map(drop)?)))
    })
}

/// Hears of a merge while it continues, many times in each row: rows that are done, and all rows. 0: continue; anything else ends the
/// merge. It is called by the thread that called `kaml_merge_with_progress` and may make any call but a merge of the same device,
/// which would wait for this one. It has to return: no exception and no `longjmp` may leave it.
pub type kaml_merge_callback =
    Option<unsafe extern "C" fn(context: *mut c_void, rows_done: u32, row_count: u32) -> c_int>;

/// Drops the versions that the rules do not keep, and frees their space. Other threads can put and get meanwhile, also
/// through a store. `report` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_merge(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    rules: *const kaml_retention,
    report: *mut kaml_merge_report,
) -> kaml_status {
    // SAFETY: pointers are as the header demands.
    unsafe { kaml_merge_with_progress(device, namespace_id, rules, None, std::ptr::null_mut(), report) }
}

/// As `kaml_merge`, and reports its progress to `callback`. `KAML_CANCELLED` if the callback requested the end: the
/// versions in the report are dropped, all others are kept, and a later merge continues with them. `callback` and `report`
/// may be null; `context` is passed to the callback and not used otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_merge_with_progress(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    rules: *const kaml_retention,
    callback: kaml_merge_callback,
    context: *mut c_void,
    report: *mut kaml_merge_report,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let rules = unsafe { arguments::sized(rules, "rules")? };
        let retention = Retention {
            keep_last: rules.keep_last,
            keep_since_ns: (rules.keep_since_ns != 0).then_some(rules.keep_since_ns),
            keep_snapshots: flag(rules.keep_snapshots, "keep_snapshots")?,
            keep_internal: flag(rules.keep_internal, "keep_internal")?,
        };
        // SAFETY: the same.
        let out = unsafe { (!report.is_null()).then(|| Out::new(report, "report")).transpose()? };
        let dry_run = flag(rules.dry_run, "dry_run")?;
        let mut is_cancelled = false;
        let mut hear = |rows_done, row_count| {
            // SAFETY: the caller handed in a function of this type.
            is_cancelled |= callback.is_some_and(|callback| unsafe { callback(context, rows_done, row_count) } != 0);
            if is_cancelled { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        // The newest versions are kept, so a store's cache has nothing to notice.
        let merged = DEVICES.with(device.id, |open| match dry_run {
            true => Ok(open.device.merge_dry_run(namespace_id, &retention, &mut hear)?),
            false => Ok(open.device.merge(namespace_id, &retention, &mut hear)?),
        })?;
        if let Some(out) = out {
            out.set(merged.into());
        }
        if is_cancelled {
            return Err(Failure::new(KAML_CANCELLED, "the callback ended the merge"));
        }
        Ok(())
    })
}
