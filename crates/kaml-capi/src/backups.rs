//! Backups of a device, and its size.
//!
//! Lives here:       backing up, checking a backup, restoring, resizing.
//! Implements:       docs/operating.md "Backups".

use crate::arguments::{self, Out};
use crate::device::{DEVICES, kaml_device};
use crate::failure::{Failure, call};
use crate::options::{self, kaml_create_options};
use crate::status::kaml_status::{self, KAML_CANCELLED};
use kaml::{Device, RestoreSource, verify_backup_file};
use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::path::Path;

/// Backups of which one device is restored, at most.
const BACKUPS_MAX: usize = 1 << 16;

/// What is in a backup. Begin with `KAML_BACKUP_REPORT_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_backup_report {
    /// Filled in by `KAML_BACKUP_REPORT_INIT`.
    pub struct_size: usize,
    /// Namespaces in it.
    pub namespace_count: u64,
    /// Records and units of blocks in it. A few that moved meanwhile may count twice.
    pub record_count: u64,
    /// Versions in it.
    pub version_count: u64,
    /// Keys in it that were deleted since the backup that it adds to.
    pub deleted_count: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// 1: it adds to an earlier backup.
    pub incremental: u32,
    /// 0.
    pub reserved: u32,
}

/// Hears of a backup or a restore while it continues, at least once for each megabyte that it writes or reads: bytes that are done, and bytes in all. They are
/// bytes of the device for a backup, and of the files for a restore; the last part of a backup adds none. 0: continue; anything else ends it. It is called by
/// the thread that made the call. It may make any call but a merge of the same device, which would wait for the backup. It has to return: no exception and no
/// `longjmp` may leave it.
pub type kaml_backup_callback =
    Option<unsafe extern "C" fn(context: *mut c_void, bytes_done: u64, byte_count: u64) -> c_int>;

/// What a callback has requested.
struct Hearing {
    callback: kaml_backup_callback,
    context: *mut c_void,
}

impl Hearing {
    fn hear(&self, bytes_done: u64, byte_count: u64) -> ControlFlow<()> {
        // SAFETY: the caller handed in a function of this type.
        match self.callback.is_some_and(|callback| unsafe { callback(self.context, bytes_done, byte_count) } != 0) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

fn cancelled(error: kaml::Error, what: &str) -> Failure {
    match error {
        kaml::Error::Cancelled => Failure::new(KAML_CANCELLED, what),
        error => error.into(),
    }
}

/// Writes all that is on a device now to a file, while others read and write: all namespaces with their attributes, records, blocks and versions. With
/// `since`, the path of an earlier backup of this device, only what has changed since; null for all. The file gets its name when it is whole and durable, and replaces
/// what had that name. A store over the device is flushed first. `report` may be null.
///
/// `KAML_SNAPSHOT_TOO_OLD` if what is overwritten meanwhile needs too much room; `KAML_IN_USE` if a namespace is deleted meanwhile; `KAML_BAD_ARGUMENT` if `since`
/// is a backup of another device; `KAML_NOT_A_DEVICE`, `KAML_CORRUPT` if it is no backup or a damaged one; `KAML_IO` if the file cannot be written.
///
///     if (kaml_backup(device, "monday.backup", NULL, NULL)) goto failed;
///     if (kaml_backup(device, "tuesday.backup", "monday.backup", NULL)) goto failed;
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_backup(
    device: kaml_device,
    path: *const c_char,
    since: *const c_char,
    report: *mut kaml_backup_report,
) -> kaml_status {
    // SAFETY: pointers are as the header demands.
    unsafe { kaml_backup_with_progress(device, path, since, None, std::ptr::null_mut(), report) }
}

/// As `kaml_backup`, and reports its progress to `callback`. `KAML_CANCELLED` if the callback requested the end: there is no new file then, a file that had the
/// name is as it was, and the next backup begins anew. `callback` and `report` may be null; `context` is passed to the callback and not used otherwise.
///
///     static int show(void *stop, uint64_t bytes_done, uint64_t byte_count) {
///         fprintf(stderr, "\r%3d %%", (int)(100 * bytes_done / (byte_count ? byte_count : 1)));
///         return *(volatile sig_atomic_t *)stop; // which a handler of SIGINT has set
///     }
///     status = kaml_backup_with_progress(device, "monday.backup", NULL, show, (void *)&stop, NULL);
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_backup_with_progress(
    device: kaml_device,
    path: *const c_char,
    since: *const c_char,
    callback: kaml_backup_callback,
    context: *mut c_void,
    report: *mut kaml_backup_report,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, path) = unsafe { (report_out(report)?, arguments::path(path)?) };
        // SAFETY: the same.
        let since = if since.is_null() { None } else { Some(unsafe { arguments::path(since)? }) };
        let done = DEVICES.with(device.id, |open| {
            open.flush_store()?;
            let hearing = Hearing { callback, context };
            let done = open.device.backup_to_file(path, since, &mut |done, count| hearing.hear(done, count));
            done.map_err(|error| cancelled(error, "the callback ended the backup, and no file was made"))
        })?;
        out.into_iter().for_each(|out| {
            out.set(kaml_backup_report {
                struct_size: size_of::<kaml_backup_report>(),
                namespace_count: done.namespaces,
                record_count: done.records,
                version_count: done.versions,
                deleted_count: done.deleted,
                bytes: done.bytes,
                incremental: done.is_incremental.into(),
                reserved: 0,
            });
        });
        Ok(())
    })
}

/// Reads a backup and checks all of it. `report` may be null. `KAML_NOT_A_DEVICE` if it is no backup, `KAML_NEWER_VERSION` if a later version of this software has
/// made it, `KAML_CORRUPT` if it is damaged or ends early.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_backup_verify(path: *const c_char, report: *mut kaml_backup_report) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, path) = unsafe { (report_out(report)?, arguments::path(path)?) };
        let found = verify_backup_file(path)?;
        out.into_iter().for_each(|out| {
            out.set(kaml_backup_report {
                struct_size: size_of::<kaml_backup_report>(),
                namespace_count: found.namespaces.len() as u64,
                record_count: found.records,
                version_count: found.versions,
                deleted_count: found.deleted,
                bytes: found.bytes,
                incremental: found.base.is_some().into(),
                reserved: 0,
            });
        });
        Ok(())
    })
}

/// Makes a device of a full backup, and of incremental ones in their order. It is closed afterwards. A file gets its name when it is whole; over contents this
/// needs `force` in `options`, which may be null. With a `capacity_bytes` of 0 the device is as large as the one that was backed up.
///
/// As `kaml_backup_verify` for each backup; `KAML_BAD_ARGUMENT` if one does not continue the one before it, or the device is too small; as `kaml_create`.
///
///     const char *backups[2] = { "monday.backup", "tuesday.backup" };
///     if (kaml_restore(backups, 2, "copy.kaml", 0, NULL)) goto failed;
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_restore(
    backups: *const *const c_char,
    backup_count: usize,
    path: *const c_char,
    capacity_bytes: u64,
    options: *const kaml_create_options,
) -> kaml_status {
    // SAFETY: pointers are as the header demands.
    unsafe {
        kaml_restore_with_progress(backups, backup_count, path, capacity_bytes, options, None, std::ptr::null_mut())
    }
}

/// As `kaml_restore`, and reports its progress to `callback`. `KAML_CANCELLED` if the callback requested the end: a file that did not exist is then removed;
/// other contents are lost and cannot be opened until a restore over them ends. `callback` may be null; `context` is passed to it and not used otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_restore_with_progress(
    backups: *const *const c_char,
    backup_count: usize,
    path: *const c_char,
    capacity_bytes: u64,
    options: *const kaml_create_options,
    callback: kaml_backup_callback,
    context: *mut c_void,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (backups, path, options) = unsafe {
            let backups = arguments::few(backups, backup_count, BACKUPS_MAX, "backups")?;
            (backups, arguments::path(path)?, options::create(options, capacity_bytes)?)
        };
        // SAFETY: so is each path.
        let backups = backups.iter().map(|backup| unsafe { arguments::path(*backup) });
        let backups = backups.collect::<Result<Vec<&Path>, Failure>>()?;
        let byte_count = backups.iter().map(|backup| std::fs::metadata(backup).map_or(0, |found| found.len())).sum();
        let hearing = Hearing { callback, context };
        let sources = backups.into_iter().map(RestoreSource::file).collect();
        let restored = Device::restore(sources, path, &options, &mut |done| hearing.hear(done, byte_count));
        restored.map_err(|error| cancelled(error, "the callback ended the restore, and there is no device"))?;
        Ok(())
    })
}

unsafe fn report_out(report: *mut kaml_backup_report) -> Result<Option<Out<kaml_backup_report>>, Failure> {
    // SAFETY: the caller's promise is the same.
    if report.is_null() { Ok(None) } else { unsafe { arguments::sized_out(report, "report") }.map(Some) }
}

/// Makes a device larger or smaller, while others read and write: it takes as many whole erase blocks of each log as fit `capacity_bytes` of its file or block
/// device. `*taken_bytes` is what it takes; `taken_bytes` may be null. A smaller device is emptied from its end on first. A crash leaves the old size or the new one.
///
/// `KAML_BAD_ARGUMENT` if the device cannot have this size; `KAML_FULL` if what is in it does not fit; `KAML_NO_SPACE` if the file system has no room; it then keeps
/// its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_resize(device: kaml_device, capacity_bytes: u64, taken_bytes: *mut u64) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = if taken_bytes.is_null() { None } else { Some(unsafe { Out::new(taken_bytes, "taken_bytes")? }) };
        let taken = DEVICES.with(device.id, |open| Ok(open.device.resize(capacity_bytes)?))?;
        out.into_iter().for_each(|out| out.set(taken));
        Ok(())
    })
}
