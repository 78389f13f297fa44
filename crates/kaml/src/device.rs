//! The device: creating, opening, closing, and its command set.
//!
//! Lives here:       handles and the commands of paper:KAML Table I with their extensions.
//! Lives elsewhere:  how commands run (`driver`, `queue`), what they do (`kaml-device`).

use crate::batch::Batch;
use crate::bytes::Bytes;
use crate::check::CheckReport;
use crate::driver::Shared;
use crate::error::Error;
use crate::queue::{AsyncQueue, finish_ring_writes};
use crate::stats::{DeviceInfo, Stats};
use crate::sync::{Instant, JoinHandle, Mutex};
use crate::{Cursor, Key, NamespaceChange, NamespaceId, NamespaceInfo, NamespaceOptions, background};
use kaml_device::{Body, Condition, Core, FindError, Op, OpenReport, SalvageReport, StageError};
use kaml_flash::{
    Durability, FileMedium, FormatOptions as CreateOptions, Geometry, Medium, MemoryMedium, OpenOptions, Overlay,
};
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Keys of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage {
    /// In the order of the index, which is not that of the keys.
    pub keys: Vec<Key>,
    /// Where to go on, if there may be more.
    pub next: Option<Cursor>,
}

/// A key-value SSD. Clones are further handles to the same one; all calls may be made from any thread at once.
///
/// The device is closed cleanly when the last handle is dropped; [`Device::close`] also says whether that worked.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    background: Mutex<Option<JoinHandle<()>>>,
    about: About,
}

/// What does not change while a device is open.
struct About {
    path: String,
    durability: Durability,
    report: OpenReport,
    open: Duration,
    read_only: bool,
}

/// A medium in memory of the shape that a file would have.
fn memory(options: &CreateOptions) -> Result<MemoryMedium, Error> {
    let geometry = Geometry::for_file(options.capacity_bytes, 512, options)?;
    Ok(MemoryMedium::try_new(geometry).map_err(kaml_flash::FormatError::from)?)
}

/// A number that nobody can foretell.
fn random() -> u64 {
    // The keys of the hash are the system's random numbers.
    std::hash::RandomState::new().hash_one(0)
}

impl Device {
    /// Creates a device on a file (made sparse, of the given capacity) or a block device, and opens it.
    pub fn create(path: impl AsRef<Path>, options: &CreateOptions) -> Result<Device, Error> {
        Device::create_with(path, options, &mut |_, _| {})
    }

    /// As [`Device::create`]; `progress` is told bytes written and bytes in all while the blocks are written ahead
    /// ([`CreateOptions::prewrite`]).
    pub fn create_with(
        path: impl AsRef<Path>,
        options: &CreateOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Device, Error> {
        let medium = FileMedium::create_with(path.as_ref(), options, progress)?;
        Core::format(&medium)?;
        let durability = medium.durability();
        Device::start(Arc::new(medium), path.as_ref(), durability, false, random)
    }

    /// Opens a device. After a crash this brings back exactly what was acknowledged.
    ///
    /// With [`OpenOptions::read_only`] nothing is ever written to it. If its last user was killed, it is recovered in memory
    /// each time, which takes up to the size of the commit ring and a few blocks of it. So one that is worn out, or lies
    /// where nothing may be written, can be read.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Device, Error> {
        let medium = FileMedium::open(path.as_ref(), options)?;
        let durability = medium.durability();
        let medium: Arc<dyn Medium> = match options.read_only && !Core::was_closed(&medium)? {
            true => Arc::new(Overlay::new(Arc::new(medium))),
            false => Arc::new(medium),
        };
        Device::start(medium, path.as_ref(), durability, options.read_only, random)
    }

    /// A device in memory, gone when it is closed: for tests and for measuring what the medium costs.
    pub fn in_memory(options: &CreateOptions) -> Result<Device, Error> {
        Device::in_memory_of(memory(options)?, options)
    }

    /// As [`Device::in_memory`], but all of its memory is taken from the system before anything is written.
    pub fn in_allocated_memory(options: &CreateOptions) -> Result<Device, Error> {
        let medium = memory(options)?;
        medium.allocate();
        Device::in_memory_of(medium, options)
    }

    fn in_memory_of(medium: MemoryMedium, options: &CreateOptions) -> Result<Device, Error> {
        Core::format(&medium)?;
        Device::start(Arc::new(medium), Path::new(""), options.durability, false, random)
    }

    /// Opens a device on any medium that was formatted before. It does the same each time: nothing is drawn at random.
    pub fn on_medium(medium: Arc<dyn Medium>) -> Result<Device, Error> {
        Device::start(medium, Path::new(""), Durability::Power, false, || 0)
    }

    /// Opens a device without one of its namespaces, which is deleted with everything in it: for a device that cannot be opened
    /// after a crash because that namespace is damaged. [`Device::salvage`] reads what is left of it before. Answers also what it
    /// was.
    pub fn open_without(path: impl AsRef<Path>, name: &str) -> Result<(Device, NamespaceInfo), Error> {
        let begin = Instant::now();
        let medium = FileMedium::open(path.as_ref(), &OpenOptions::default())?;
        let durability = medium.durability();
        let (mut core, report, gone) = Core::open_without(&medium, name)?;
        let path = path.as_ref().display().to_string();
        let about = About { path, durability, report, open: begin.elapsed(), read_only: false };
        core.draw_index_seed(random);
        Ok((Device::run(core, Arc::new(medium), about)?, gone))
    }

    /// Opens a damaged device, or one whose last user was killed, for reading, and changes nothing on it: what recovery
    /// writes stays in memory, up to the size of the commit ring and a few blocks. Indexes that cannot be read are made again
    /// from a scan of all pages; the report says which, and what else is damaged. Of a file that was cut short what is left is read.
    /// `progress` is told blocks read and blocks in
    /// all meanwhile.
    ///
    /// Fails if there is no superblock, or no root that can be read: neither at the beginning of the device nor at its end.
    pub fn salvage(
        path: impl AsRef<Path>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Device, SalvageReport), Error> {
        let begin = Instant::now();
        let (medium, why) = FileMedium::open_damaged(path.as_ref())?;
        let durability = medium.durability();
        let medium = Arc::new(Overlay::of_damaged(Arc::new(medium)));
        let (core, mut found) = Core::salvage(&*medium, progress)?;
        found.problems.splice(0..0, why.map(|why| why.to_string()));
        let path = path.as_ref().display().to_string();
        let about = About { path, durability, report: OpenReport::default(), open: begin.elapsed(), read_only: true };
        Ok((Device::run(core, medium, about)?, found))
    }

    fn start(
        medium: Arc<dyn Medium>,
        path: &Path,
        durability: Durability,
        read_only: bool,
        seed: fn() -> u64,
    ) -> Result<Device, Error> {
        let begin = Instant::now();
        let (mut core, report) = if read_only { Core::open_to_read(&*medium)? } else { Core::open(&*medium)? };
        core.draw_index_seed(seed);
        let path = path.display().to_string();
        let about = About { path, durability, report, open: begin.elapsed(), read_only };
        Device::run(core, medium, about)
    }

    fn run(core: Core, medium: Arc<dyn Medium>, about: About) -> Result<Device, Error> {
        let shared = Arc::new(Shared::new(core, medium));
        let background = background::start(shared.clone())?;
        Ok(Device { inner: Arc::new(Inner { shared, background: Mutex::new(Some(background)), about }) })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// Closes the device cleanly, so that it opens at once. Needs the last handle. If it fails, because there is no space below
    /// for instance, the device is closed nevertheless, and recovers when it is next opened.
    pub fn close(self) -> Result<(), Error> {
        let inner = Arc::try_unwrap(self.inner).map_err(|inner| Error::HandlesInUse(Arc::strong_count(&inner) - 1))?;
        inner.close()
    }

    // --- namespaces -----------------------------------------------------------------------------------------------------

    /// Creates a namespace (paper:KAML CreateNamespace); durable when it returns. Without space below it is told so, and the
    /// namespace, which is there but takes no Puts, is durable when there is space again; the same holds of changing and deleting.
    pub fn create_namespace(&self, name: &str, options: &NamespaceOptions) -> Result<NamespaceId, Error> {
        let mut core = self.shared().lock();
        let id = core.create_namespace(name, options)?;
        let request = core.request_root(false);
        self.shared().wait_root(core, request)?;
        Ok(id)
    }

    /// The id of a namespace.
    pub fn namespace(&self, name: &str) -> Result<NamespaceId, Error> {
        Ok(self.shared().lock().namespace(name)?)
    }

    /// All namespaces in the order of their ids.
    pub fn namespaces(&self) -> Vec<NamespaceInfo> {
        self.shared().lock().namespaces()
    }

    /// Renames a namespace or maps it to other logs, while it is in use; durable when it returns.
    pub fn set_namespace(&self, id: NamespaceId, change: &NamespaceChange) -> Result<(), Error> {
        let mut core = self.shared().lock();
        core.set_namespace(id, change)?;
        let request = core.request_root(false);
        self.shared().wait_root(core, request)
    }

    /// Deletes a namespace with everything in it (paper:KAML DeleteNamespace); durable when it returns. That its index cannot be
    /// read any more does not matter.
    pub fn delete_namespace(&self, id: NamespaceId) -> Result<(), Error> {
        let mut core = self.shared().lock();
        let mut lost = BTreeSet::new();
        let deletion = loop {
            match core.delete_namespace(id, &lost) {
                Ok(deletion) => break deletion,
                Err(StageError::NeedIndex(needed)) => {
                    core = self.shared().load_index(core, needed).unwrap_or_else(|why| {
                        tracing::warn!(namespace = needed, %why, deleting = id, "a namespace is deleted without this index");
                        lost.insert(needed);
                        self.shared().lock()
                    });
                }
                Err(StageError::Refused(error)) => return Err(error.into()),
                Err(StageError::Busy) => core = self.shared().make_room(core),
            }
        };
        drop(core);
        finish_ring_writes(self.shared());
        let counted = deletion.count(&self.shared().geometry); // others go on meanwhile
        let mut core = self.shared().lock();
        core.finish_deletion(counted);
        let request = core.request_root(false);
        self.shared().wait_root(core, request)
    }

    /// Takes the index of an idle namespace out of memory; it is loaded again when it is next used. False if it is in
    /// use just now.
    pub fn unload_namespace(&self, id: NamespaceId) -> Result<bool, Error> {
        for _ in 0..2 {
            let mut core = self.shared().lock();
            if core.unload_index(id)? {
                return Ok(true);
            }
            // Its snapshot is older than the index: take another one.
            let request = core.request_checkpoint();
            self.shared().wait_root(core, request)?;
        }
        Ok(self.shared().lock().unload_index(id)?)
    }

    /// Whether the index of a namespace is in memory. If not, the next command on it reads it first, which takes a quarter of a
    /// second for ten million keys, also in an event loop ([`Device::queue`]): one with other things to do has another thread carry
    /// that command out.
    pub fn is_namespace_loaded(&self, id: NamespaceId) -> Result<bool, Error> {
        Ok(self.shared().reader.is_loaded(id)?)
    }

    /// After how long without use the index of a namespace leaves memory, to be loaded again when it is next used: between
    /// `idle` and twice that. 10 minutes unless told; at least a millisecond.
    pub fn unload_idle_after(&self, idle: Duration) {
        let millis = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        self.shared().index_idle_ms.store(millis.max(1), Ordering::Relaxed);
        self.shared().wake_background();
    }

    // --- records --------------------------------------------------------------------------------------------------------

    /// Reads a value (paper:KAML Get).
    pub fn get(&self, namespace: NamespaceId, key: impl Into<Key>) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(namespace, key, &mut value)?.then_some(value))
    }

    /// Reads a value into a buffer; false if the key is not there.
    pub fn get_into(&self, namespace: NamespaceId, key: impl Into<Key>, value: &mut Vec<u8>) -> Result<bool, Error> {
        self.shared().get(namespace, &key.into(), value)
    }

    /// Reads a value and leaves a large one, of more than 64 KiB, in the memory that it was read into: it is not copied. The
    /// memory of `spent` is used again; [`Bytes::default`] has none.
    pub fn get_bytes(&self, namespace: NamespaceId, key: impl Into<Key>, spent: Bytes) -> Result<Option<Bytes>, Error> {
        self.shared().get_bytes(namespace, &key.into(), spent)
    }

    /// Whether a key is there; never reads flash, unless the namespace keeps versions.
    pub fn exists(&self, namespace: NamespaceId, key: impl Into<Key>) -> Result<bool, Error> {
        let key = key.into();
        loop {
            match self.shared().reader.exists(namespace, &key) {
                Ok(exists) => return Ok(exists),
                Err(FindError::Refused(kaml_device::Error::KeepsVersions(_))) => {
                    return self.shared().version_exists(namespace, &key);
                }
                Err(error) => self.load(namespace, error)?,
            }
        }
    }

    /// Stores a value; durable when it returns.
    pub fn put(&self, namespace: NamespaceId, key: impl Into<Key>, value: &[u8]) -> Result<(), Error> {
        let body = Body::Value { value, crc32c: crc_fast::crc32_iscsi(value) };
        let op = Op { namespace, key: key.into(), body, condition: Condition::Always };
        self.shared().write(&mut [op])
    }

    /// Stores a value under a condition; durable when it returns.
    pub fn put_if(
        &self,
        namespace: NamespaceId,
        key: impl Into<Key>,
        value: &[u8],
        condition: Condition,
    ) -> Result<(), Error> {
        let asks = matches!(condition, Condition::IfAbsent | Condition::IfPresent);
        if asks && self.shared().reader.keeps_versions(namespace) {
            return self.shared().put_version_if(namespace, key.into(), value, condition);
        }
        let body = Body::Value { value, crc32c: crc_fast::crc32_iscsi(value) };
        self.shared().write(&mut [Op { namespace, key: key.into(), body, condition }])
    }

    /// Deletes a key, whether it is there or not; durable when it returns.
    pub fn delete(&self, namespace: NamespaceId, key: impl Into<Key>) -> Result<(), Error> {
        let op = Op { namespace, key: key.into(), body: Body::Delete, condition: Condition::Always };
        self.shared().write(&mut [op])
    }

    /// Stores the records of a batch, over any namespaces, all or none (paper:KAML Put); durable when it returns.
    pub fn write(&self, batch: &Batch) -> Result<(), Error> {
        self.shared().write(&mut batch.ops())
    }

    /// Fixes the place of a batch in the order in which Puts become durable, and returns without waiting until it is:
    /// whatever is submitted or written later is durable later or at the same time. The batch can be read once it is
    /// durable; it certainly is when [`Commit::wait`] returns, and may never be if nobody waits for it.
    pub fn submit(&self, batch: &Batch) -> Result<Commit, Error> {
        let frame = self.shared().submit(&mut batch.ops())?;
        Ok(Commit { shared: self.shared().clone(), frame })
    }

    /// Keys of a namespace behind a cursor. Every key that is there all the time is listed exactly once.
    pub fn list(&self, namespace: NamespaceId, after: Option<Cursor>, limit: usize) -> Result<ListPage, Error> {
        loop {
            match self.shared().reader.list(namespace, after, limit.max(1)) {
                Ok((keys, next)) => return Ok(ListPage { keys, next }),
                Err(FindError::Refused(kaml_device::Error::KeepsVersions(_))) => {
                    return self.shared().list_versions(namespace, None, after, limit.max(1));
                }
                Err(error) => self.load(namespace, error)?,
            }
        }
    }

    /// The cursor behind which the keys that follow `key` in the order of the index are listed, whether it is there or
    /// not.
    pub fn cursor_at(&self, namespace: NamespaceId, key: impl Into<Key>) -> Result<Cursor, Error> {
        let key = key.into();
        if self.shared().reader.keeps_versions(namespace) {
            return Ok(crate::versions::cursor_of_key(&key));
        }
        loop {
            match self.shared().reader.cursor_at(namespace, &key) {
                Ok(cursor) => return Ok(cursor),
                Err(error) => self.load(namespace, error)?,
            }
        }
    }

    fn load(&self, namespace: NamespaceId, error: FindError) -> Result<(), Error> {
        match error {
            FindError::Refused(error) => Err(error.into()),
            FindError::NeedIndex => self.shared().load_index(self.shared().lock(), namespace).map(drop),
        }
    }

    /// Many commands in flight from one thread. `depth` is how many Gets are read at the same time; there may be more in flight, which
    /// wait for these.
    pub fn queue(&self, depth: u32) -> AsyncQueue {
        AsyncQueue::new(self.shared().clone(), depth)
    }

    // --- the device itself ------------------------------------------------------------------------------------------------

    /// Programs everything that waits in write buffers and releases the commit ring. Puts are durable without it.
    pub fn settle(&self) -> Result<(), Error> {
        let mut core = self.shared().lock();
        let request = core.request_root(true);
        self.shared().wait_root(core, request)
    }

    /// Reads everything and checks it: records against their checksums and the index, live data against what is
    /// accounted. `progress` is told blocks done and blocks in all. Others may go on meanwhile; what they change while it is
    /// being read is not judged.
    pub fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, Error> {
        if !self.inner.about.read_only {
            self.settle()?;
        }
        crate::check::check(self.shared(), progress)
    }

    /// The error that stopped the device, if one did: it takes no more changes, and what was put can still be read.
    pub fn stopped(&self) -> Option<Error> {
        self.shared().lock().stopped().map(Error::from)
    }

    /// What the device has done since it was opened, and how it stands.
    pub fn stats(&self) -> Stats {
        let shared = self.shared();
        let mut stats = Stats::of_core(&shared.lock().stats());
        stats.read_count = shared.read_count.load(Ordering::Relaxed);
        stats.read_bytes = shared.read_bytes.load(Ordering::Relaxed);
        stats.put_latency = shared.put_latency.stats();
        stats.get_latency = shared.get_latency.stats();
        stats.get_count = stats.get_latency.count;
        stats.open_ns = self.inner.about.open.as_nanos() as u64;
        stats.buffer_bytes_max = kaml_device::buffer_bytes_max(&shared.geometry);
        stats
    }

    /// Forgets the latencies recorded so far.
    pub fn reset_latencies(&self) {
        self.shared().put_latency.reset();
        self.shared().get_latency.reset();
    }

    /// What the device is.
    pub fn info(&self) -> DeviceInfo {
        let shared = self.shared();
        let geometry = &shared.geometry;
        let about = &self.inner.about;
        let core = shared.lock();
        DeviceInfo {
            path: about.path.clone(),
            uuid: shared.medium.uuid().iter().map(|byte| format!("{byte:02x}")).collect(),
            flash_bytes: geometry.block_bytes() * u64::from(geometry.block_count()),
            channel_count: geometry.channel_count,
            die_count: geometry.die_count(),
            block_count: geometry.block_count(),
            block_bytes: geometry.block_bytes(),
            page_bytes: geometry.page_bytes,
            chunk_bytes: geometry.chunk_bytes,
            ring_bytes: geometry.ring_bytes,
            sector_bytes: geometry.sector_bytes,
            durability: match about.durability {
                Durability::Power => "power".to_owned(),
                Durability::Process => "process".to_owned(),
            },
            value_bytes_max: core.value_bytes_max(),
            batch_bytes_max: core.batch_bytes_max() as u64,
            description: shared.medium.describe(),
            was_clean: about.report.clean,
            replayed_journal_entries: about.report.journal_entries,
            replayed_ring_records: about.report.ring_records,
        }
    }
}

/// A batch whose place in the order of Puts is fixed.
#[must_use = "it may never be durable if nobody waits for it"]
pub struct Commit {
    shared: Arc<Shared>,
    frame: u64,
}

impl Commit {
    /// Waits until the batch, and everything submitted before it, is durable.
    pub fn wait(self) -> Result<(), Error> {
        self.shared.wait_committed(self.shared.lock(), self.frame)
    }
}

impl Inner {
    fn close(&self) -> Result<(), Error> {
        let Some(thread) = self.background.lock().expect("no panics under this lock").take() else { return Ok(()) };
        // A merge that goes on by itself ends first: nothing is written behind the last root.
        self.shared.ends_merges.store(true, Ordering::Release);
        let alone = self.shared.merge_alone();
        let closed = if self.about.read_only { Ok(()) } else { self.last_root() };
        self.shared.lock().end_changes(); // queues may outlive it
        drop(alone);
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake_background();
        thread.join().expect("the housekeeping thread does not panic");
        closed
    }

    /// Everything programmed, indexes written out, and a root that says so.
    fn last_root(&self) -> Result<(), Error> {
        let mut core = self.shared.lock();
        let settled = core.request_root(true);
        self.shared.wait_root(core, settled)?;
        let mut core = self.shared.lock();
        let last = core.request_close();
        self.shared.wait_root(core, last)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "the device was not closed cleanly; it recovers when it is next opened");
        }
    }
}
