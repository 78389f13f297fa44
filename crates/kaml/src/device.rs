//! The device: its handles, and its command set.
//!
//! Lives here:       handles, commands on records and on the device, after paper:KAML Table I.
//! Lives elsewhere:  how a device is opened (`opening`), commands on namespaces (`namespaces`), how commands run (`driver`, `queue`), what they do (`kaml-device`).

mod namespaces;
mod opening;
mod sizing;

use crate::batch::Batch;
use crate::bytes::Bytes;
use crate::check::CheckReport;
use crate::driver::{By, Shared};
use crate::error::Error;
use crate::queue::AsyncQueue;
use crate::stats::{BlockMap, BlockMapBuilder, DeviceInfo, LatencyHistograms, Stats, Wear};
use crate::sync::{JoinHandle, Mutex};
use crate::{Cursor, KeyBuf, NamespaceId};
use kaml_device::{Activity, BlockActivity, Body, Condition, FindError, KeyRef, Op, OpenReport, SpaceReader};
use kaml_flash::Durability;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Keys of a namespace.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// for key in 0..10u64 {
///     device.put(users, key, b"")?;
/// }
/// let (mut count, mut after) = (0, None);
/// loop {
///     let page = device.list(users, after, 4)?;
///     count += page.keys.len();
///     after = page.next;
///     if after.is_none() {
///         break;
///     }
/// }
/// assert_eq!(count, 10);
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage {
    /// In the order of the index, which is not that of the keys.
    pub keys: Vec<KeyBuf>,
    /// Where to continue, if there may be more.
    pub next: Option<Cursor>,
}

/// A key-value SSD. Clones are further handles to the same one; all calls can be made from any thread at once.
///
/// The device is closed cleanly when the last handle is dropped; [`Device::close`] also states whether that worked.
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("data.kaml");
/// let device = Device::open_or_create(&path, &CreateOptions::new(64 << 20))?;
/// let users = device.ensure_namespace("users", &NamespaceOptions::default())?;
/// users.put("ada", b"Ada Lovelace")?; // durable when it returns
/// drop(users);
/// device.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
    /// Of a store's handle: it alone changes records until this is dropped.
    right: Option<Arc<StoreRight>>,
}

/// The right of a store to change records alone.
struct StoreRight(Arc<Shared>);

impl Drop for StoreRight {
    fn drop(&mut self) {
        self.0.give_back();
    }
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

/// Blocks that are looked at while Puts wait: some 10 µs.
const BLOCKS_VIEWED: u32 = 2048;

impl Device {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// Whose changes come by this handle.
    pub(crate) fn by(&self) -> By {
        if self.right.is_some() { By::Store } else { By::Caller }
    }

    /// A handle for a store, which alone changes records from now on, until the handle is dropped.
    pub(crate) fn for_store(&self) -> Result<Device, Error> {
        let shared = self.shared();
        shared.take_over()?;
        Ok(Device { inner: self.inner.clone(), right: Some(Arc::new(StoreRight(shared.clone()))) })
    }

    /// Closes the device cleanly, so it opens at once. Needs the last handle. If it fails, because there is no space below
    /// for instance, the device is closed nevertheless, and recovers when it is next opened.
    ///
    /// # Errors
    /// - [`Error::HandlesInUse`] if this is not the last handle; the device then stays open.
    /// - [`Error::NoSpace`], [`Error::Stopped`], [`Error::Failed`] if the last root cannot be written; the device is closed
    ///   nevertheless.
    pub fn close(self) -> Result<(), Error> {
        let inner = Arc::try_unwrap(self.inner).map_err(|inner| Error::HandlesInUse(Arc::strong_count(&inner) - 1))?;
        inner.close()
    }

    // --- records --------------------------------------------------------------------------------------------------------

    /// Reads a value (paper:KAML Get).
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::HoldsBlocks`] if it holds logical blocks.
    /// - [`Error::BadKey`] if the namespace takes no such key.
    /// - [`Error::Corrupt`] if the record is damaged; [`Error::ReadFailed`] if the system fails to read.
    pub fn get<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(namespace, key, &mut value)?.then_some(value))
    }

    /// Reads a value into a buffer; false if the key does not exist.
    ///
    /// # Errors
    /// As [`Device::get`].
    pub fn get_into<'k>(
        &self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let key = key.into();
        let key = self.shared().key(key)?;
        self.shared().get(namespace, &key, value)
    }

    /// Reads a value and leaves a large one, of more than 64 KiB, in the memory that it was read into: it is not copied. The
    /// memory of `spent` is used again; [`Bytes::default`] has none.
    ///
    /// # Errors
    /// As [`Device::get`].
    pub fn get_bytes<'k>(
        &self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        spent: Bytes,
    ) -> Result<Option<Bytes>, Error> {
        let key = key.into();
        let key = self.shared().key(key)?;
        self.shared().get_bytes(namespace, &key, spent)
    }

    /// Whether a key exists; never reads flash, unless the namespace keeps versions or its index is not in memory yet.
    ///
    /// # Errors
    /// As [`Device::get`].
    pub fn exists<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<bool, Error> {
        let (shared, key) = (self.shared(), key.into());
        let key = shared.key(key)?;
        match self.kind(namespace)? {
            SpaceReader::Records(records) => shared.look(namespace, || match records.exists(key) {
                Err(FindError::NeedIndex) => shared.exists_by_image(namespace, &key).ok_or(FindError::NeedIndex),
                exists => exists,
            }),
            SpaceReader::Versions(_) => shared.version_exists(namespace, key.key()),
            SpaceReader::Blocks => Err(Error::HoldsBlocks(namespace)),
        }
    }

    /// Stores a value; durable when it returns.
    ///
    /// # Errors
    /// - [`Error::UnknownNamespace`] if the namespace was deleted; [`Error::HoldsBlocks`] if it holds logical blocks;
    ///   [`Error::BadKey`] if it takes no such key.
    /// - [`Error::ValueTooLarge`], [`Error::BatchTooLarge`] if a limit of the device ([`crate::DeviceInfo`]) is exceeded.
    /// - [`Error::Full`], [`Error::NoSpace`] if there is no room for new data. Deletes still succeed.
    /// - [`Error::ReadOnly`], [`Error::Stopped`], [`Error::Closed`] if the device takes no changes; [`Error::StoreIsOpen`] if a
    ///   store alone changes records.
    pub fn put<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>, value: &[u8]) -> Result<(), Error> {
        let body = Body::Value { value, crc32c: kaml_crc::crc32c(value) };
        let key = key.into();
        let op = Op {
            namespace,
            key: self.shared().key(key)?,
            body,
            condition: Condition::Always,
            expires: Default::default(),
        };
        self.shared().write(self.by(), &mut [op])
    }

    /// Stores a value under a condition; durable when it returns.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the condition does not hold; otherwise as [`Device::put`].
    pub fn put_if<'k>(
        &self,
        namespace: NamespaceId,
        key: impl Into<KeyRef<'k>>,
        value: &[u8],
        condition: Condition,
    ) -> Result<(), Error> {
        let key = key.into();
        let key = self.shared().key(key)?;
        let body = Body::Value { value, crc32c: kaml_crc::crc32c(value) };
        let op = Op { namespace, key, body, condition, expires: Default::default() };
        let asks = matches!(condition, Condition::IfAbsent | Condition::IfPresent);
        match asks.then(|| self.kind(namespace)).transpose()? {
            Some(SpaceReader::Versions(_)) => {
                self.shared().put_judged(|| Ok(vec![op]), |ops| self.shared().write(self.by(), ops))
            }
            Some(SpaceReader::Records(_) | SpaceReader::Blocks) | None => self.shared().write(self.by(), &mut [op]),
        }
    }

    /// Deletes a key, whether it exists or not; durable when it returns.
    ///
    /// # Errors
    /// As [`Device::put`]. A full device accepts deletes.
    pub fn delete<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<(), Error> {
        let key = key.into();
        let op = Op {
            namespace,
            key: self.shared().key(key)?,
            body: Body::Delete,
            condition: Condition::Always,
            expires: Default::default(),
        };
        self.shared().write(self.by(), &mut [op])
    }

    /// Stores the records of a batch, over any namespaces, all or none (paper:KAML Put); durable when it returns.
    ///
    /// # Errors
    /// - [`Error::Conflict`] if a condition does not hold, and [`Error::EmptyBatch`] if the batch holds nothing.
    /// - Otherwise as [`Device::put`].
    pub fn write(&self, batch: &Batch) -> Result<(), Error> {
        if batch.has_merges() {
            return self.write_returning(batch).map(drop);
        }
        self.put_batch(batch, |ops| self.shared().write(self.by(), ops))
    }

    /// Hands the records of a batch to `put`, those with conditions once these were judged as far as they read flash.
    fn put_batch<'a, T>(&self, batch: &'a Batch, put: impl Fn(&mut [Op<'a>]) -> Result<T, Error>) -> Result<T, Error> {
        if batch.has_conditions() {
            self.shared().put_judged(|| batch.ops(self.shared()), put)
        } else {
            put(&mut batch.ops(self.shared())?)
        }
    }

    /// Fixes the place of a batch in the order in which Puts become durable, and returns without waiting until it is:
    /// whatever is submitted or written later is durable later or at the same time. The batch can be read after it is
    /// durable; it certainly is when [`Commit::wait`] returns, and may never be if nobody waits for it.
    ///
    /// # Errors
    /// As [`Device::write`].
    pub fn submit(&self, batch: &Batch) -> Result<Commit, Error> {
        let frame = match batch.has_merges() {
            true => self.merge_batch(batch, |ops, merges| self.shared().submit_merging(self.by(), ops, merges))?,
            false => self.put_batch(batch, |ops| self.shared().submit(self.by(), ops))?,
        };
        Ok(Commit { shared: self.shared().clone(), frame })
    }

    /// Keys of a namespace after a cursor. Every key that exists all the time is listed exactly once.
    ///
    /// # Errors
    /// As [`Device::get`].
    pub fn list(&self, namespace: NamespaceId, after: Option<Cursor>, limit: usize) -> Result<ListPage, Error> {
        let (shared, limit) = (self.shared(), limit.max(1));
        match self.kind(namespace)? {
            SpaceReader::Records(records) => {
                let (keys, next) = shared.look(namespace, || records.list(after, limit))?;
                Ok(ListPage { keys: shared.keys_of_listed(namespace, keys)?, next })
            }
            SpaceReader::Versions(_) => shared.list_versions(namespace, None, after, limit),
            SpaceReader::Blocks => Err(Error::HoldsBlocks(namespace)),
        }
    }

    /// The cursor after which the keys that follow `key` in the order of the index are listed, whether it exists or
    /// not.
    ///
    /// # Errors
    /// As [`Device::get`].
    pub fn cursor_at<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Result<Cursor, Error> {
        let key = key.into();
        let key = *self.shared().key(key)?.key();
        match self.kind(namespace)? {
            SpaceReader::Records(records) => self.shared().look(namespace, || records.cursor_at(&key)),
            SpaceReader::Versions(_) => Ok(crate::versions::cursor_of_key(&key)),
            SpaceReader::Blocks => Err(Error::HoldsBlocks(namespace)),
        }
    }

    fn kind(&self, namespace: NamespaceId) -> Result<SpaceReader<'_>, Error> {
        self.shared().reader.of(namespace).map_err(|error| self.shared().refused(error))
    }

    /// Many commands in flight from one thread. `depth` is how many Gets are read at the same time; there may be more in flight, which
    /// wait for these.
    pub fn queue(&self, depth: u32) -> AsyncQueue {
        AsyncQueue::new(self.shared().clone(), self.by(), depth)
    }

    // --- the device itself ------------------------------------------------------------------------------------------------

    /// Programs everything that waits in write buffers and releases the commit ring. Puts are durable without it.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Stopped`], [`Error::Closed`] if the device takes no changes; [`Error::NoSpace`] if its
    /// file system is full.
    pub fn settle(&self) -> Result<(), Error> {
        let mut core = self.shared().lock();
        let request = core.request_root(true);
        self.shared().wait_root(core, request)
    }

    /// Reads everything and checks it: records against their checksums and the index, live data against what is
    /// accounted. `progress` receives blocks done and blocks in all. Others may continue meanwhile; what they change while it is
    /// being read is not judged.
    ///
    /// # Errors
    /// - [`Error::IndexDamaged`], [`Error::ReadFailed`] if the check cannot continue. Damaged records are in the report.
    /// - As [`Device::settle`], unless the device is open for reading only.
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

    /// What the device has done since it was opened, and how it is.
    pub fn stats(&self) -> Stats {
        let shared = self.shared();
        let mut stats = Stats::of_core(&shared.lock().stats_without_wear());
        let mut wear = Wear::default();
        self.view_blocks(&mut |_, seen| wear.add(seen));
        wear.put_into(&mut stats);
        stats.read_count = shared.read_count.load(Ordering::Relaxed);
        stats.read_bytes = shared.read_bytes.load(Ordering::Relaxed);
        stats.put_latency = shared.put_latency.stats();
        stats.get_latency = shared.get_latency.stats();
        stats.get_count = stats.get_latency.count;
        stats.open_ns = self.inner.about.open.as_nanos() as u64;
        stats.buffer_bytes_max = kaml_device::buffer_bytes_max(&shared.geometry);
        stats
    }

    /// What the device is doing now: logs, collection, the ring. Takes a time that does not grow with the device.
    ///
    /// # Examples
    /// ```
    /// use kaml::{CreateOptions, Device};
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let activity = device.activity();
    /// assert_eq!(activity.logs.len(), device.info().die_count as usize);
    /// assert!(!activity.collection.is_running);
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn activity(&self) -> Activity {
        self.shared().lock().activity()
    }

    /// All erase blocks as at most `cells_max` cells, but at least one for each log. Puts wait for it no longer than some
    /// tens of microseconds, however many blocks there are. Blocks can change meanwhile.
    pub fn block_map(&self, cells_max: usize) -> BlockMap {
        let geometry = &self.shared().geometry;
        let count = self.shared().lock().block_count();
        let mut map = BlockMapBuilder::new(count, geometry.die_count(), geometry.block_bytes(), cells_max);
        self.view_blocks(&mut |block, seen| map.add(block, seen));
        map.finish()
    }

    /// Shows all blocks, some thousand at a time under the core's lock.
    fn view_blocks(&self, each: &mut dyn FnMut(u32, BlockActivity)) {
        let (mut at, mut more) = (0, true);
        while more {
            let core = self.shared().lock();
            core.view_blocks(at..at + BLOCKS_VIEWED, each);
            at += BLOCKS_VIEWED;
            more = at < core.block_count();
        }
    }

    /// How often each latency occurred since the device was opened.
    pub fn latency_histograms(&self) -> LatencyHistograms {
        let shared = self.shared();
        LatencyHistograms {
            put: shared.put_latency.histogram(),
            get: shared.get_latency.histogram(),
            commit: shared.commit_latency.histogram(),
        }
    }

    /// Forgets the latencies recorded so far.
    pub fn reset_latencies(&self) {
        self.shared().put_latency.reset();
        self.shared().get_latency.reset();
        self.shared().commit_latency.reset();
    }

    /// What the device is.
    pub fn info(&self) -> DeviceInfo {
        let shared = self.shared();
        let geometry = &shared.geometry;
        let about = &self.inner.about;
        let core = shared.lock();
        DeviceInfo {
            path: about.path.clone(),
            uuid: shared.medium.identity().iter().map(|byte| format!("{byte:02x}")).collect(),
            flash_bytes: geometry.block_bytes() * u64::from(core.block_count()),
            file_bytes: shared.medium.capacity_bytes(),
            usable_bytes: core.capacity_chunks() * u64::from(geometry.chunk_bytes),
            grows_up_to_bytes: shared.medium.grows_up_to(),
            channel_count: geometry.channel_count,
            die_count: geometry.die_count(),
            block_count: core.block_count(),
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
///
/// # Examples
/// ```
/// use kaml::{CreateOptions, Device, NamespaceOptions, Batch};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// let (mut first, mut second) = (Batch::new(), Batch::new());
/// first.put(users, 1u64, b"ada");
/// second.put(users, 2u64, b"grace");
/// let (first, second) = (device.submit(&first)?, device.submit(&second)?);
/// second.wait()?; // both are durable now, in this order
/// first.wait()?;
/// # Ok::<(), kaml::Error>(())
/// ```
#[must_use = "it may never be durable if nobody waits for it"]
pub struct Commit {
    shared: Arc<Shared>,
    frame: u64,
}

impl Commit {
    /// Waits until the batch, and everything submitted before it, is durable.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Failed`] if the frame could not be made durable; whether it is, shows when the device is
    /// opened again.
    pub fn wait(self) -> Result<(), Error> {
        self.shared.wait_committed(self.shared.lock(), self.frame)
    }
}

impl Inner {
    fn close(&self) -> Result<(), Error> {
        let Some(thread) = self.background.lock().expect("no panics under this lock").take() else { return Ok(()) };
        // A merge that continues by itself ends first: nothing is written after the last root.
        self.shared.ends_merges.store(true, Ordering::Release);
        let alone = self.shared.merge_alone();
        let closed = if self.about.read_only { Ok(()) } else { self.last_root() };
        self.shared.lock().end_changes(); // queues may outlive it
        drop(alone);
        self.shared.read_queues.clear();
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake_background();
        thread.join().expect("the housekeeping thread does not panic");
        closed
    }

    /// Everything programmed, indexes written out, and a root that reports it.
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
