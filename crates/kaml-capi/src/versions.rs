//! Versioned namespaces: any version of a record, snapshots, rolling back, giving space back.
//!
//! Lives here:       the structures and calls of versioned namespaces.
//! Lives elsewhere:  puts, gets and deletes of the newest version, which are those of any namespace (`records`).
//! Implements:       paper:Muninn 4.4 as C knows it; docs/versioned.md.

use crate::arguments::{self, Out, ValueOut};
use crate::device::{DEVICES, kaml_device, kaml_namespace_id};
use crate::failure::{Failure, call};
use crate::options::flag;
use crate::records::kaml_cursor;
use crate::status::kaml_status;
use kaml::{At, MergeReport, Retention};
use std::ffi::c_void;

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

/// What a merge keeps besides the newest version of each key: whatever one of the rules wants. Begin with
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
    /// 1: change nothing, only tell what would go.
    pub dry_run: u32,
}

/// What a merge did, or would do.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_merge_report {
    /// Versions that were looked at.
    pub versions: u64,
    /// Of these, the ones that the rules keep.
    pub kept: u64,
    /// Those that went.
    pub dropped: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
    /// Segments given back.
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
        let (out, key) = unsafe { (ValueOut::new(value, value_length)?, arguments::key(key, key_length)?) };
        DEVICES.with(device.id, |open| match open.device.get_version(namespace_id, key, at)? {
            Some(found) => out.set(&found.value),
            None => Err(Failure::no_record(namespace_id, key)),
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

/// Tells the versions of a key, newest first, up to `version_count_max` with each call: all that are kept, those that a rollback
/// hid included. A `*version_count` of 0 is the end: at once if the key was never put. What is put after the first call is not
/// told.
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
                arguments::key(key, key_length)?,
                arguments::structure_mut(cursor, "cursor")?,
                arguments::slice_out(versions, version_count_max, "versions")?,
            )
        };
        let found = DEVICES.with(device.id, |open| {
            cursor.next_versions(places.len(), |before, limit| {
                Ok(open.device.history_pieces(namespace_id, key, before, limit)?.all()?)
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

/// Takes a snapshot, which costs nothing: what is there now stays readable under its number. Durable when it returns. A
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

/// Tells the snapshots of a namespace, oldest first, up to `snapshot_count_max` of them. `*snapshot_count` is how many there
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

/// Forgets a snapshot: what only it sees goes with the next merge. Durable when it returns.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_forget_snapshot(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    snapshot: u32,
) -> kaml_status {
    call(|| DEVICES.with(device.id, |open| Ok(open.device.forget_snapshot(namespace_id, snapshot)?)))
}

/// Makes a namespace look as it did in a snapshot. What it looked like before is taken as a snapshot first, `*before`:
/// rolling back to that one undoes it. Durable when it returns. `KAML_IN_USE` while a store is open over the device.
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

/// Undoes the last changes of a key: what it was before them becomes its newest version, or it is deleted if it was not
/// there. Durable when it returns. `KAML_IN_USE` while a store is open over the device.
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
        let key = unsafe { arguments::key(key, key_length)? };
        DEVICES.with(device.id, |open| open.change(|device| Ok(device.undo(namespace_id, key, changes).map(drop)?)))
    })
}

/// Gives the space of versions back that the rules do not keep, while others put and get, also through a store. `report`
/// may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_merge(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    rules: *const kaml_retention,
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
        // The newest versions stay, so that a store's cache has nothing to notice.
        let merged = DEVICES.with(device.id, |open| match dry_run {
            true => Ok(open.device.merge_dry_run(namespace_id, &retention, &mut kaml::to_the_end)?),
            false => Ok(open.device.merge(namespace_id, &retention, &mut kaml::to_the_end)?),
        })?;
        if let Some(out) = out {
            out.set(merged.into());
        }
        Ok(())
    })
}
