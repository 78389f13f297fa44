//! Devices and their namespaces.
//!
//! Lives here:       creating, opening and closing; namespaces; which store is open over which device.
//! Lives elsewhere:  records (`records`), stores (`store`).
//! Implements:       paper:KAML Table I, CreateNamespace and DeleteNamespace.

use crate::arguments::{self, Limits, Out};
use crate::changes::ChangeReaders;
use crate::failure::{Failure, call, call_quietly};
use crate::handle::{Kind, Registry, SHARED};
use crate::histories::Histories;
use crate::options::{
    self, KAML_KEYS_ANY, KAML_KEYS_BYTES, KAML_KEYS_ORDERED, KAML_KEYS_U64, LOGS_MAX, kaml_create_options,
    kaml_namespace_options, kaml_open_options,
};
use crate::ranges::Iterations;
use crate::snapshots::Snapshots;
use crate::status::kaml_status::{self, KAML_IN_USE};
use kaml::store::Store;
use kaml::{Device, KeyKind, NamespaceChange, NamespaceInfo, NamespaceKind};
use std::ffi::c_char;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// A device: a number, copied as you like. Zeros are never open.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_device {
    /// Private to the library.
    pub id: u64,
}

/// A namespace of a device; never given to another one.
pub type kaml_namespace_id = u32;

/// The longest name of a namespace, with the zero byte that ends it.
pub const KAML_NAME_BYTES: usize = 256;

/// A namespace, as a listing reports it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kaml_namespace_info {
    /// Records that the device has in it, or versions of all records.
    pub record_count: u64,
    /// Its id.
    pub namespace_id: kaml_namespace_id,
    /// `KAML_KEYS_...`.
    pub keys: u32,
    /// 1: it keeps every version of every record, or has its index on flash.
    pub versioned: u32,
    /// 1: it holds logical blocks, not records.
    pub blocks: u32,
    /// Its name.
    pub name: [c_char; KAML_NAME_BYTES],
}

impl From<&NamespaceInfo> for kaml_namespace_info {
    fn from(info: &NamespaceInfo) -> kaml_namespace_info {
        let (versioned, blocks) = match info.kind {
            NamespaceKind::Records(_) => (false, false),
            NamespaceKind::Versions(..) => (true, false),
            NamespaceKind::Blocks(_) => (false, true),
        };
        kaml_namespace_info {
            record_count: info.record_count,
            namespace_id: info.id,
            keys: match info.keys() {
                KeyKind::Bytes => KAML_KEYS_BYTES,
                KeyKind::U64 => KAML_KEYS_U64,
                KeyKind::Any => KAML_KEYS_ANY,
                KeyKind::Ordered => KAML_KEYS_ORDERED,
            },
            versioned: versioned.into(),
            blocks: blocks.into(),
            name: arguments::text(&info.name),
        }
    }
}

/// A device, and the store that is open over it. The store's cache would not notice changes that go past it, so while
/// there is one, nobody changes records of the device but through it; and there is one at most.
pub(crate) struct OpenDevice {
    pub(crate) device: Device,
    pub(crate) limits: Limits,
    pub(crate) histories: Histories,
    pub(crate) ranges: Iterations,
    pub(crate) snapshots: Snapshots,
    pub(crate) changes: ChangeReaders,
    pub(crate) store: RwLock<Option<Store>>,
}

pub(crate) static DEVICES: Registry<OpenDevice, SHARED> = Registry::new(Kind::Device);

impl OpenDevice {
    fn store(&self) -> RwLockReadGuard<'_, Option<Store>> {
        self.store.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes records, while no store is opened.
    pub(crate) fn change<R>(&self, body: impl FnOnce(&Device) -> Result<R, Failure>) -> Result<R, Failure> {
        let store = self.store();
        if store.is_some() {
            return Err(Failure::new(
                KAML_IN_USE,
                "a store is open over the device; change records through it, or close it first",
            ));
        }
        body(&self.device)
    }

    /// Takes a snapshot of what exists for those who read through the store, if one is open: it is flushed first.
    pub(crate) fn snapshot(&self, namespace_id: kaml_namespace_id) -> Result<u32, Failure> {
        self.flush_store()?;
        Ok(self.device.snapshot(namespace_id)?)
    }

    /// Makes durable what those have put who write through a store, if one is open.
    pub(crate) fn flush_store(&self) -> Result<(), Failure> {
        match &*self.store() {
            Some(store) => Ok(store.flush()?),
            None => Ok(()),
        }
    }
}

fn answer(out: &Out<kaml_device>, device: Device) -> Result<(), Failure> {
    let id = DEVICES.insert(OpenDevice {
        limits: Limits::of(&device),
        histories: Histories::default(),
        ranges: Iterations::default(),
        snapshots: Snapshots::default(),
        changes: ChangeReaders::default(),
        device,
        store: RwLock::new(None),
    })?;
    out.set(kaml_device { id });
    Ok(())
}

/// Creates a device on a new file or on a block device, and opens it. A `capacity_bytes` of 0 is the whole of a block device; a file then
/// takes up to 353 MiB and then grows by itself. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_create(
    path: *const c_char,
    capacity_bytes: u64,
    options: *const kaml_create_options,
    device: *mut kaml_device,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, path) = unsafe { (Out::new(device, "device")?, arguments::path(path)?) };
        out.set(kaml_device { id: 0 });
        // SAFETY: the same.
        let options = unsafe { options::create(options, capacity_bytes)? };
        answer(&out, Device::create(path, &options)?)
    })
}

/// Opens a device, or creates it first if its file does not exist or is empty. A device that exists keeps its capacity and its
/// options. `capacity_bytes` is as for `kaml_create`. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_open_or_create(
    path: *const c_char,
    capacity_bytes: u64,
    options: *const kaml_create_options,
    device: *mut kaml_device,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, path) = unsafe { (Out::new(device, "device")?, arguments::path(path)?) };
        out.set(kaml_device { id: 0 });
        // SAFETY: the same.
        let options = unsafe { options::create(options, capacity_bytes)? };
        answer(&out, Device::open_or_create(path, &options)?)
    })
}

/// Creates a device in memory, for tests. Closing it drops it. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_create_in_memory(
    capacity_bytes: u64,
    options: *const kaml_create_options,
    device: *mut kaml_device,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let out = unsafe { Out::new(device, "device")? };
        out.set(kaml_device { id: 0 });
        // SAFETY: the same.
        let options = unsafe { options::create(options, capacity_bytes)? };
        answer(&out, Device::in_memory(&options)?)
    })
}

/// Opens a device. After a crash this recovers everything that was acknowledged. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_open(
    path: *const c_char,
    options: *const kaml_open_options,
    device: *mut kaml_device,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, path) = unsafe { (Out::new(device, "device")?, arguments::path(path)?) };
        out.set(kaml_device { id: 0 });
        // SAFETY: the same.
        let options = unsafe { options::open(options)? };
        answer(&out, Device::open(path, &options)?)
    })
}

/// Closes a device, so it opens quickly the next time. The handle is closed whatever the call returns, except `KAML_IN_USE`
/// (a store is open over it, or another thread is in a call with it) and `KAML_BAD_HANDLE`; after another error the device
/// recovers when it is next opened.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_close(device: kaml_device) -> kaml_status {
    call(|| close(device))
}

/// As `kaml_close`, for destructors and finalizers: it leaves the message of `kaml_last_error` as it was.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_abandon(device: kaml_device) -> kaml_status {
    call_quietly(|| close(device))
}

fn close(device: kaml_device) -> Result<(), Failure> {
    let closed = DEVICES.take(device.id, |open| match &*open.store() {
        Some(_) => Err(Failure::new(KAML_IN_USE, "a store is open over the device; close it first")),
        None => Ok(()),
    })?;
    // They have handles of the device.
    drop((closed.histories, closed.ranges, closed.snapshots, closed.changes));
    Ok(closed.device.close()?)
}

/// The largest value, and the largest sum of one Put, in which a large value counts 48 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_limits(
    device: kaml_device,
    value_bytes_max: *mut u64,
    batch_bytes_max: *mut u64,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (value, batch) =
            unsafe { (Out::new(value_bytes_max, "value_bytes_max")?, Out::new(batch_bytes_max, "batch_bytes_max")?) };
        DEVICES.with(device.id, |open| {
            let info = open.device.info();
            value.set(info.value_bytes_max);
            batch.set(info.batch_bytes_max);
            Ok(())
        })
    })
}

/// Creates a namespace; durable when it returns. `name` has 1 to 255 bytes of UTF-8; `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_create_namespace(
    device: kaml_device,
    name: *const c_char,
    options: *const kaml_namespace_options,
    namespace_id: *mut kaml_namespace_id,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, name) = unsafe { (Out::new(namespace_id, "namespace_id")?, arguments::name(name)?) };
        // SAFETY: the same.
        let options = unsafe { options::namespace(options)? };
        DEVICES.with(device.id, |open| {
            out.set(open.device.create_namespace(name, &options)?);
            Ok(())
        })
    })
}

/// Finds a namespace by its name. The id needs no closing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_namespace(
    device: kaml_device,
    name: *const c_char,
    namespace_id: *mut kaml_namespace_id,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (out, name) = unsafe { (Out::new(namespace_id, "namespace_id")?, arguments::name(name)?) };
        DEVICES.with(device.id, |open| {
            out.set(open.device.namespace(name)?);
            Ok(())
        })
    })
}

/// Lists the namespaces of a device in the order of their ids, up to `namespace_count_max` of them. `*namespace_count` is how
/// many there are, also if they are more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_namespaces(
    device: kaml_device,
    namespaces: *mut kaml_namespace_info,
    namespace_count_max: usize,
    namespace_count: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (count, places) = unsafe {
            let count = Out::new(namespace_count, "namespace_count")?;
            count.set(0);
            (count, arguments::slice_out(namespaces, namespace_count_max, "namespaces")?)
        };
        let found = DEVICES.with(device.id, |open| Ok(open.device.namespaces()))?;
        places.iter_mut().zip(&found).for_each(|(place, info)| _ = place.write(info.into()));
        count.set(found.len());
        Ok(())
    })
}

/// The logs that a namespace appends to, up to `log_count_max` of them. `*log_count` is how many there are, also if they are more; 0: it uses all logs of the
/// device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_logs(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    logs: *mut u32,
    log_count_max: usize,
    log_count: *mut usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (count, places) = unsafe {
            let count = Out::new(log_count, "log_count")?;
            count.set(0);
            (count, arguments::slice_out(logs, log_count_max, "logs")?)
        };
        let found = DEVICES.with(device.id, |open| {
            let info = open.device.namespaces().into_iter().find(|info| info.id == namespace_id);
            Ok(info.ok_or(kaml::Error::UnknownNamespace(namespace_id))?.logs)
        })?;
        places.iter_mut().zip(&found).for_each(|(place, log)| _ = place.write(*log));
        count.set(found.len());
        Ok(())
    })
}

/// Has a namespace append to these logs from now on, while it is in use; durable when it returns. A device has one log for each die (`kaml_info`), numbered
/// from 0. With a `log_count` of 0 it uses all of them. Records that are stored already remain in their logs until they are overwritten or collected.
/// `KAML_BAD_ARGUMENT` for a log that the device does not have, or that is named twice.
///
///     const uint32_t first[2] = { 0, 1 };
///     if (kaml_set_logs(device, users, first, 2)) goto failed;
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_set_logs(
    device: kaml_device,
    namespace_id: kaml_namespace_id,
    logs: *const u32,
    log_count: usize,
) -> kaml_status {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let logs = unsafe { arguments::few(logs, log_count, LOGS_MAX, "logs")? };
        let change = NamespaceChange { logs: Some(logs.to_vec()), ..NamespaceChange::default() };
        DEVICES.with(device.id, |open| Ok(open.device.set_namespace(namespace_id, &change)?))
    })
}

/// Deletes a namespace with everything in it; durable when it returns. It also works while a store is open over the device:
/// transactions that use the namespace then fail.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_delete_namespace(device: kaml_device, namespace_id: kaml_namespace_id) -> kaml_status {
    call(|| {
        DEVICES.with(device.id, |open| match &*open.store() {
            Some(store) => Ok(store.delete_namespace(namespace_id)?),
            None => Ok(open.device.delete_namespace(namespace_id)?),
        })
    })
}
