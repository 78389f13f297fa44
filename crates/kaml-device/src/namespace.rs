//! Namespaces: attributes, index, and what readers share of them.
//!
//! Lives here:       the per-namespace state of the firmware and the directory that readers look ids up in.
//! Lives elsewhere:  creating and deleting them durably (`namespace_commands`), index snapshots (`checkpoint`).
//! Implements:       paper:KAML IV.B-C (namespaces, their logs and mapping tables).

use crate::clock::DeviceClock;
use crate::compression::Compression;
use crate::expiries::Expiries;
use crate::format::part_list::list_bytes;
use crate::format::root::{NamespaceRoot, Stream};
use crate::index::{IndexReader, IndexWriter};
use crate::index_image::ImageUse;
use crate::index_place::IndexPlace;
use crate::layout::{BlockOptions, Layout, VersionLayout};
use crate::packing::{AnyPacking, Compressed, Packing};
use crate::superseded::Superseded;
use crate::versioned::merge_policy::MergePolicy;
use crate::versioned::state::{VersionOptions, Versioned, for_each_segment, segment_chunks};
use kaml_flash::{ChunkAddr, Geometry};
use kaml_index::KeyKind;
use kaml_versions::{Parameters, Versions};
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What a namespace holds. A new kind is a variant here, and the compiler names each place that must treat it.
///
/// `V` describes how versions are kept: [`VersionOptions`] of a namespace that is to be created, [`VersionShape`] of one that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceKind<V = VersionOptions> {
    /// Records under such keys.
    Records(KeyKind),
    /// Logical blocks.
    Blocks(BlockOptions),
    /// Records under such keys, with every version of each.
    Versions(KeyKind, V),
}

impl<V> NamespaceKind<V> {
    /// Its keys; units of blocks are numbers.
    pub fn keys(&self) -> KeyKind {
        match self {
            NamespaceKind::Records(keys) | NamespaceKind::Versions(keys, _) => *keys,
            NamespaceKind::Blocks(_) => KeyKind::U64,
        }
    }
}

/// How a namespace that exists keeps versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionShape {
    /// Sizes of its buffer, pages and segments, and its index.
    pub parameters: Parameters,
    /// It is merged when space runs low, within these rules.
    pub merge_when_low: Option<MergePolicy>,
}

/// Options of a namespace that is to be created: records under keys of 1 to 16 bytes, in all logs, by default.
///
/// # Examples
/// ```
/// use kaml_device::{BlockOptions, KeyKind, NamespaceOptions, VersionOptions};
///
/// let counters = NamespaceOptions::records(KeyKind::U64);
/// let disk = NamespaceOptions::from(BlockOptions::new(4096, 1 << 18));
/// let articles = NamespaceOptions::versions(KeyKind::Bytes, VersionOptions::default()).with_logs(vec![0, 1]);
/// # let _ = (counters, disk, articles);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespaceOptions {
    /// What it holds.
    pub kind: NamespaceKind,
    /// The logs (dies) it appends to; empty: all of them.
    pub logs: Vec<u32>,
    /// Records expire after so many milliseconds, unless a Put requests something else. Only of records without versions.
    pub default_ttl_ms: Option<NonZeroU64>,
    /// How values are stored. Only of records without versions.
    pub compression: Compression,
    /// Where its index is. Only of records without versions.
    pub index: IndexPlace,
}

impl NamespaceOptions {
    /// Options of a namespace of this kind, in all logs.
    pub fn new(kind: NamespaceKind) -> NamespaceOptions {
        let (compression, index) = (Compression::None, IndexPlace::Memory);
        NamespaceOptions { kind, logs: Vec::new(), default_ttl_ms: None, compression, index }
    }

    /// Of records under such keys.
    pub fn records(keys: KeyKind) -> NamespaceOptions {
        NamespaceOptions::new(NamespaceKind::Records(keys))
    }

    /// Options for records under such keys, with every version of each.
    pub fn versions(keys: KeyKind, versions: VersionOptions) -> NamespaceOptions {
        NamespaceOptions::new(NamespaceKind::Versions(keys, versions))
    }

    /// The same, in these logs; none: all.
    pub fn with_logs(self, logs: Vec<u32>) -> NamespaceOptions {
        NamespaceOptions { logs, ..self }
    }

    /// The same, with records that expire after so long, in milliseconds, unless a Put requests something else. A part of a millisecond
    /// counts as a whole one; zero means that they do not expire.
    pub fn with_ttl(self, ttl: std::time::Duration) -> NamespaceOptions {
        let ms = ttl.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX);
        NamespaceOptions { default_ttl_ms: NonZeroU64::new(ms), ..self }
    }

    /// The same, with values that are compressed so, where that saves room.
    pub fn with_compression(self, compression: Compression) -> NamespaceOptions {
        NamespaceOptions { compression, ..self }
    }
}

impl Default for NamespaceOptions {
    fn default() -> Self {
        NamespaceOptions::records(KeyKind::Bytes)
    }
}

impl From<BlockOptions> for NamespaceOptions {
    fn from(blocks: BlockOptions) -> Self {
        NamespaceOptions::new(NamespaceKind::Blocks(blocks))
    }
}

impl From<VersionOptions> for NamespaceOptions {
    fn from(versions: VersionOptions) -> Self {
        NamespaceOptions::versions(KeyKind::Bytes, versions)
    }
}

/// What can be changed of a namespace while it is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceChange {
    /// Its name.
    pub name: Option<String>,
    /// The logs it appends to from now on; empty: all. Present records are moved only by collection.
    pub logs: Option<Vec<u32>>,
    /// Of a versioned namespace: what may go when space runs low, or that nothing may.
    pub merge_when_low: Option<Option<MergePolicy>>,
    /// After how many milliseconds records that are put from now on expire, or that they do not. Present records keep their times.
    pub default_ttl_ms: Option<Option<NonZeroU64>>,
    /// How values that are put from now on are stored. Present records remain as they are.
    pub compression: Option<Compression>,
}

/// A namespace, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its id, never given to another one.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// What it holds.
    pub kind: NamespaceKind<VersionShape>,
    /// The logs it appends to; empty: all.
    pub logs: Vec<u32>,
    /// Records in it, or units of blocks that hold data, or versions of all records.
    pub record_count: u64,
    /// Memory of its index; 0 while it is not loaded.
    pub index_bytes: u64,
    /// Whether its index is in memory.
    pub loaded: bool,
    /// Records expire after so many milliseconds, unless a Put requests something else.
    pub default_ttl_ms: Option<NonZeroU64>,
    /// Records that expire; 0 while its index is not loaded.
    pub expiring_count: u64,
    /// How values that are put are stored.
    pub compression: Compression,
    /// What that came to since the device was opened.
    pub compressed: Compressed,
}

impl NamespaceInfo {
    /// Which keys it takes; units of blocks are numbers.
    pub fn keys(&self) -> KeyKind {
        self.kind.keys()
    }

    /// The rules within which it is merged when space runs low, if it is.
    pub fn merge_when_low(&self) -> Option<MergePolicy> {
        match self.kind {
            NamespaceKind::Versions(_, shape) => shape.merge_when_low,
            NamespaceKind::Records(_) | NamespaceKind::Blocks(_) => None,
        }
    }
}

/// What readers share.
pub(crate) struct NamespaceShared {
    pub(crate) layout: Layout,
    pub(crate) index: RwLock<Option<IndexReader>>,
    /// The state of a versioned namespace, in place of an index; changed by the core alone.
    pub(crate) versions: RwLock<Option<Versions>>,
    /// What open snapshots see and the index no longer has; changed by the core alone.
    superseded: RwLock<Superseded>,
    /// Whether that is anything. It is set before the index changes, so a reader that finds a newer state there looks at the table.
    has_superseded: AtomicBool,
    used: AtomicBool,
    /// No record expires before, in milliseconds since 1970; `u64::MAX` if none does. Of an index that is not in memory, too.
    pub(crate) next_expiry: AtomicU64,
    /// Records that are put expire after so many milliseconds, if nothing else is requested; 0: they do not.
    pub(crate) default_ttl_ms: AtomicU64,
    /// How values are compressed.
    pub(crate) packing: Packing,
    /// It has the large values of that namespace, and nobody else sees it.
    pub(crate) values_of: Option<u32>,
    /// Of a versioned namespace: the one of its large values; 0 before there is one.
    pub(crate) values: AtomicU32,
}

impl NamespaceShared {
    pub(crate) fn superseded(&self) -> RwLockReadGuard<'_, Superseded> {
        self.superseded.read().expect("no panics under this lock")
    }

    pub(crate) fn superseded_mut(&self) -> RwLockWriteGuard<'_, Superseded> {
        self.superseded.write().expect("no panics under this lock")
    }

    /// Whether open snapshots see anything that the index no longer has.
    #[inline]
    pub(crate) fn has_superseded(&self) -> bool {
        self.has_superseded.load(Ordering::SeqCst)
    }

    pub(crate) fn set_has_superseded(&self, has: bool) {
        self.has_superseded.store(has, Ordering::SeqCst);
    }

    /// Whether a record has expired that the index still has.
    #[inline]
    pub(crate) fn is_due(&self, clock: &DeviceClock) -> bool {
        let next = self.next_expiry.load(Ordering::SeqCst);
        next != u64::MAX && next <= clock.now_ms()
    }

    /// Somebody requests a record. Written only when it changes, so readers share the line.
    pub(crate) fn note_use(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether anybody asked since this was asked last.
    pub(crate) fn take_use(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}

/// Adds the chunks that an index, or versions, point at to those of each block.
pub(crate) fn count_chunks(
    index: Option<&IndexWriter>,
    versions: Option<&Versions>,
    geometry: &Geometry,
    of_blocks: &mut [u32],
) {
    let mut count = |at: u64, chunks: u32| of_blocks[geometry.split(ChunkAddr(at)).0.0 as usize] += chunks;
    if let Some(index) = index {
        index.for_each_slot(|slot| count(slot.at, slot.len.chunks_max()));
    }
    if let Some(columns) = versions.map(Versions::columns) {
        let chunks = segment_chunks(columns.parameters(), geometry);
        for_each_segment(columns, |segment| count(segment.at.get(), chunks));
    }
}

/// All namespaces by id, for readers.
#[derive(Default)]
pub(crate) struct Directory {
    /// Records of some namespace expire, or will; it stays so until the device is closed.
    has_expiry: AtomicBool,
    /// Some namespace has versions, or had some since the device was opened.
    has_versions: AtomicBool,
    pub(crate) any_packing: AnyPacking,
    spaces: RwLock<BTreeMap<u32, Arc<NamespaceShared>>>,
}

impl Directory {
    #[inline]
    pub(crate) fn has_expiry(&self) -> bool {
        self.has_expiry.load(Ordering::SeqCst)
    }

    /// Records of some namespace expire.
    pub(crate) fn note_expiry(&self) {
        if !self.has_expiry() {
            self.has_expiry.store(true, Ordering::SeqCst);
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<Arc<NamespaceShared>> {
        self.spaces.read().expect("no panics under this lock").get(&id).cloned()
    }

    #[inline]
    pub(crate) fn has_versions(&self) -> bool {
        self.has_versions.load(Ordering::SeqCst)
    }

    pub(crate) fn insert(&self, id: u32, shared: Arc<NamespaceShared>) {
        if matches!(shared.layout, Layout::Versions(_)) {
            self.has_versions.store(true, Ordering::SeqCst);
        }
        self.spaces.write().expect("no panics under this lock").insert(id, shared);
    }

    pub(crate) fn remove(&self, id: u32) {
        self.spaces.write().expect("no panics under this lock").remove(&id);
    }
}

/// A namespace in the firmware.
pub(crate) struct Namespace {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) logs: Vec<u32>,
    pub(crate) index: Option<IndexWriter>,
    pub(crate) shared: Arc<NamespaceShared>,
    /// Records, as far as known without the index.
    pub(crate) stored_count: u64,
    pub(crate) snapshot: Option<Stream>,
    pub(crate) snapshot_entry: u64,
    /// Changed since the snapshot was begun.
    pub(crate) dirty: bool,
    /// Chunks appended, which picks the log.
    pub(crate) appended_chunks: u64,
    /// Of a versioned namespace: what only the core knows of it.
    pub(crate) versioned: Option<Box<Versioned>>,
    /// When its records expire; nothing while its index is not in memory.
    pub(crate) expiries: Expiries,
    /// What readers do with its image while its index is not in memory.
    pub(crate) image_use: ImageUse,
}

impl Namespace {
    pub(crate) fn new(name: String, layout: Layout, logs: Vec<u32>) -> Namespace {
        Namespace::with(name, layout, logs, None)
    }

    /// The namespace of the large values of another one.
    pub(crate) fn of_values(owner: u32, logs: Vec<u32>) -> Namespace {
        Namespace::with(String::new(), Layout::Records(KeyKind::U64), logs, Some(owner))
    }

    fn with(name: String, layout: Layout, logs: Vec<u32>, values_of: Option<u32>) -> Namespace {
        Namespace {
            name,
            layout,
            logs,
            index: None,
            shared: Arc::new(NamespaceShared {
                layout,
                index: RwLock::new(None),
                versions: RwLock::new(None),
                superseded: RwLock::default(),
                has_superseded: AtomicBool::new(false),
                used: AtomicBool::new(false),
                next_expiry: AtomicU64::new(u64::MAX),
                default_ttl_ms: AtomicU64::new(0),
                packing: Packing::default(),
                values_of,
                values: AtomicU32::new(0),
            }),
            stored_count: 0,
            snapshot: None,
            snapshot_entry: 0,
            dirty: false,
            appended_chunks: 0,
            versioned: layout.versions().map(|_| Box::default()),
            expiries: Expiries::default(),
            image_use: ImageUse::Unused,
        }
    }

    pub(crate) fn restore(root: &NamespaceRoot) -> Namespace {
        let mut space = Namespace::with(root.name.clone(), root.layout, root.logs.clone(), root.values_of);
        space.stored_count = root.record_count;
        space.snapshot = root.snapshot.clone();
        space.snapshot_entry = root.snapshot_entry;
        space.shared.next_expiry.store(root.next_expiry, Ordering::SeqCst);
        space.shared.default_ttl_ms.store(root.default_ttl_ms, Ordering::SeqCst);
        space.shared.packing.set_method(root.compression);
        if let Some(versioned) = &mut space.versioned {
            (versioned.kept, versioned.kept_before) = (root.kept.clone(), root.kept_before);
            versioned.merge_when_low = root.merge_when_low;
        }
        space
    }

    pub(crate) fn root(&self, id: u32) -> NamespaceRoot {
        NamespaceRoot {
            id,
            name: self.name.clone(),
            layout: self.layout,
            logs: self.logs.clone(),
            record_count: self.record_count(),
            snapshot: self.snapshot.clone(),
            snapshot_entry: self.snapshot_entry,
            kept: self.versioned.as_ref().and_then(|versioned| versioned.kept.clone()),
            kept_before: self.versioned.as_ref().map_or(0, |versioned| versioned.kept_before),
            merge_when_low: self.merge_when_low(),
            next_expiry: self.shared.next_expiry.load(Ordering::SeqCst),
            default_ttl_ms: self.shared.default_ttl_ms.load(Ordering::SeqCst),
            compression: self.shared.packing.method(),
            values_of: self.shared.values_of,
        }
    }

    pub(crate) fn merge_when_low(&self) -> Option<MergePolicy> {
        self.versioned.as_ref().and_then(|versioned| versioned.merge_when_low)
    }

    pub(crate) fn record_count(&self) -> u64 {
        let versions = self.with_versions(|versions| versions.columns().version_count());
        self.index.as_ref().map(|index| index.len()).or(versions).unwrap_or(self.stored_count)
    }

    /// Memory of what finds its records, but for the page buffer of versions.
    pub(crate) fn index_bytes(&self) -> u64 {
        let versions = self.with_versions(|versions| versions.columns().memory().index_bytes as u64);
        self.index.as_ref().map(|index| index.memory_bytes()).or(versions).unwrap_or(0) + self.expiries.memory_bytes()
    }

    /// What a snapshot of it may take, kept versions included. Of an index that is not in memory it is the one that stands: else the
    /// device would take records for whose index, after it is in memory again, there is no room.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        let standing = || self.standing_bytes();
        match self.layout.versions() {
            Some(parameters) => {
                // The timeline is in it twice, as all of the directory does.
                let directory = self.with_versions(|versions| {
                    versions.columns().memory().index_bytes as u64 / 8 + 2 * versions.timeline().encoded_bytes()
                });
                directory.unwrap_or_else(standing) + parameters.buffer_bytes * 5 / 4
            }
            None => self.index.as_ref().map_or_else(standing, |index| {
                index.image_bytes() + list_bytes(index.image_parts_max()) + self.expiries.image_bytes()
            }),
        }
    }

    /// Bytes of its timeline; of one that is not in memory at most, its directory included.
    pub(crate) fn timeline_bytes(&self) -> u64 {
        let standing = || self.standing_bytes() / 2;
        self.with_versions(|versions| versions.timeline().encoded_bytes()).unwrap_or_else(standing)
    }

    /// Bytes of the snapshot of it on the medium.
    pub(crate) fn standing_bytes(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.bytes)
    }

    /// Adds the chunks that it points at to those of each block.
    pub(crate) fn count_chunks(&self, geometry: &Geometry, of_blocks: &mut [u32]) {
        count_chunks(self.index.as_ref(), self.shared.versions().as_ref(), geometry, of_blocks);
    }

    /// Makes a loaded index visible to readers, whose records expire then.
    pub(crate) fn install_with(&mut self, index: IndexWriter, expiries: Expiries) {
        self.expiries = expiries;
        self.note_next_expiry();
        self.install(index);
    }

    /// Makes an index visible to readers.
    pub(crate) fn install(&mut self, index: IndexWriter) {
        *self.shared.index.write().expect("no panics under this lock") = Some(index.reader());
        self.index = Some(index);
        self.image_use = ImageUse::Unused;
    }

    /// Takes the index out of memory; it must not have changed since its snapshot.
    pub(crate) fn unload(&mut self) {
        assert!(!self.dirty, "an index that changed since its snapshot cannot be dropped");
        self.stored_count = self.record_count();
        *self.shared.index.write().expect("no panics under this lock") = None;
        *self.shared.versions_mut() = None;
        self.index = None;
        self.image_use = ImageUse::Unused;
        self.expiries = Expiries::default(); // readers keep knowing when the next one is due
    }

    /// The log that takes the next `chunks`: the namespace's logs in turn, a buffer's worth each.
    pub(crate) fn next_log(&mut self, chunks: u32, log_count: u32, chunks_per_turn: u64) -> u32 {
        let turn = self.appended_chunks / chunks_per_turn;
        self.appended_chunks += u64::from(chunks);
        match self.logs.len() as u64 {
            0 => (turn % u64::from(log_count)) as u32,
            count => self.logs[(turn % count) as usize],
        }
    }

    /// Records expire after so many milliseconds by default.
    pub(crate) fn set_default_ttl(&self, ttl_ms: Option<NonZeroU64>) {
        self.shared.default_ttl_ms.store(ttl_ms.map_or(0, NonZeroU64::get), Ordering::SeqCst);
    }

    /// Whether its records expire, or will by default.
    pub(crate) fn may_expire(&self) -> bool {
        let has_default = self.shared.default_ttl_ms.load(Ordering::SeqCst) != 0;
        has_default || self.shared.next_expiry.load(Ordering::SeqCst) != u64::MAX
    }

    fn kind(&self) -> NamespaceKind<VersionShape> {
        match self.layout {
            Layout::Records(keys) => NamespaceKind::Records(keys),
            Layout::Blocks(blocks) => NamespaceKind::Blocks(blocks),
            Layout::Versions(VersionLayout { keys, parameters }) => {
                NamespaceKind::Versions(keys, VersionShape { parameters, merge_when_low: self.merge_when_low() })
            }
        }
    }

    pub(crate) fn info(&self, id: u32) -> NamespaceInfo {
        NamespaceInfo {
            id,
            name: self.name.clone(),
            kind: self.kind(),
            logs: self.logs.clone(),
            record_count: self.record_count(),
            index_bytes: self.index_bytes(),
            loaded: self.is_loaded(),
            default_ttl_ms: NonZeroU64::new(self.shared.default_ttl_ms.load(Ordering::SeqCst)),
            expiring_count: self.expiries.len(),
            compression: self.shared.packing.method(),
            compressed: self.shared.packing.totals(),
        }
    }
}
