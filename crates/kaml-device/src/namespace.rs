//! Namespaces: attributes, index, and what readers share of them.
//!
//! Lives here:       the per-namespace state of the firmware and the directory that readers look ids up in.
//! Lives elsewhere:  creating and deleting them durably (`namespace_commands`), index snapshots (`checkpoint`).
//! Implements:       paper:KAML IV.B-C (namespaces, their logs and mapping tables).

use crate::format::root::{NamespaceRoot, Stream};
use crate::layout::{BlockOptions, Layout};
use crate::versioned::{MergePolicy, VersionOptions, Versioned, for_each_segment, segment_chunks};
use kaml_flash::{ChunkAddr, Geometry};
use kaml_index::{IndexReader, IndexWriter, KeyKind};
use kaml_versions::{Parameters, Versions};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

/// What a namespace is asked to be when it is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceOptions {
    /// Which keys it takes.
    pub keys: KeyKind,
    /// The logs (dies) it appends to; empty: all of them.
    pub logs: Vec<u32>,
    /// It holds logical blocks; `keys` does not matter then.
    pub blocks: Option<BlockOptions>,
    /// It keeps every version of every record.
    pub versions: Option<VersionOptions>,
}

impl Default for NamespaceOptions {
    fn default() -> Self {
        NamespaceOptions { keys: KeyKind::Bytes, logs: Vec::new(), blocks: None, versions: None }
    }
}

impl From<BlockOptions> for NamespaceOptions {
    fn from(blocks: BlockOptions) -> Self {
        NamespaceOptions { blocks: Some(blocks), ..NamespaceOptions::default() }
    }
}

impl From<VersionOptions> for NamespaceOptions {
    fn from(versions: VersionOptions) -> Self {
        NamespaceOptions { versions: Some(versions), ..NamespaceOptions::default() }
    }
}

/// What may be changed of a namespace while it is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceChange {
    /// Its name.
    pub name: Option<String>,
    /// The logs it appends to from now on; empty: all. Records stay where they are until they are moved.
    pub logs: Option<Vec<u32>>,
    /// Of a versioned namespace: what may go when space runs low, or that nothing may.
    pub merge_when_low: Option<Option<MergePolicy>>,
}

/// A namespace, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its id, never given to another one.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Which keys it takes; units of blocks are numbers.
    pub keys: KeyKind,
    /// It holds logical blocks of this kind.
    pub blocks: Option<BlockOptions>,
    /// It keeps every version of every record, in this shape.
    pub versions: Option<Parameters>,
    /// It is merged when space runs low, within these rules.
    pub merge_when_low: Option<MergePolicy>,
    /// The logs it appends to; empty: all.
    pub logs: Vec<u32>,
    /// Records in it, or units of blocks that hold data, or versions of all records.
    pub record_count: u64,
    /// Memory of its index; 0 while it is not loaded.
    pub index_bytes: u64,
    /// Whether its index is in memory.
    pub loaded: bool,
}

/// What readers share.
pub(crate) struct NamespaceShared {
    pub(crate) layout: Layout,
    pub(crate) index: RwLock<Option<IndexReader>>,
    /// Of a versioned namespace, in place of an index; changed by the core alone.
    pub(crate) versions: RwLock<Option<Versions>>,
    used: AtomicBool,
}

impl NamespaceShared {
    /// Somebody asks for a record. Written only when it changes, so that readers share the line.
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
    spaces: RwLock<BTreeMap<u32, Arc<NamespaceShared>>>,
}

impl Directory {
    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<Arc<NamespaceShared>> {
        self.spaces.read().expect("no panics under this lock").get(&id).cloned()
    }

    pub(crate) fn insert(&self, id: u32, shared: Arc<NamespaceShared>) {
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
}

impl Namespace {
    pub(crate) fn new(name: String, layout: Layout, logs: Vec<u32>) -> Namespace {
        Namespace {
            name,
            layout,
            logs,
            index: None,
            shared: Arc::new(NamespaceShared {
                layout,
                index: RwLock::new(None),
                versions: RwLock::new(None),
                used: AtomicBool::new(false),
            }),
            stored_count: 0,
            snapshot: None,
            snapshot_entry: 0,
            dirty: false,
            appended_chunks: 0,
            versioned: layout.versions().map(|_| Box::default()),
        }
    }

    pub(crate) fn restore(root: &NamespaceRoot) -> Namespace {
        let mut space = Namespace::new(root.name.clone(), root.layout, root.logs.clone());
        space.stored_count = root.record_count;
        space.snapshot = root.snapshot.clone();
        space.snapshot_entry = root.snapshot_entry;
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
        self.index.as_ref().map(|index| index.memory_bytes()).or(versions).unwrap_or(0)
    }

    /// What a snapshot of it may take, kept versions included. Of an index that is not in memory it is the one that stands: else the
    /// device would take records for whose index, once it is in memory again, there is no room.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        let standing = || self.snapshot.as_ref().map_or(0, |snapshot| snapshot.bytes);
        match self.layout.versions() {
            Some(parameters) => {
                let directory = self.with_versions(|versions| versions.columns().memory().index_bytes as u64 / 8);
                directory.unwrap_or_else(standing) + parameters.buffer_bytes * 5 / 4
            }
            None => self.index.as_ref().map_or_else(standing, |index| index.memory_bytes()),
        }
    }

    /// Adds the chunks that it points at to those of each block.
    pub(crate) fn count_chunks(&self, geometry: &Geometry, of_blocks: &mut [u32]) {
        count_chunks(self.index.as_ref(), self.shared.versions().as_ref(), geometry, of_blocks);
    }

    /// Makes a loaded index visible to readers.
    pub(crate) fn install(&mut self, index: IndexWriter) {
        *self.shared.index.write().expect("no panics under this lock") = Some(index.reader());
        self.index = Some(index);
    }

    /// Takes the index out of memory; it must not have changed since its snapshot.
    pub(crate) fn unload(&mut self) {
        assert!(!self.dirty, "an index that changed since its snapshot cannot be dropped");
        self.stored_count = self.record_count();
        *self.shared.index.write().expect("no panics under this lock") = None;
        *self.shared.versions_mut() = None;
        self.index = None;
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

    pub(crate) fn info(&self, id: u32) -> NamespaceInfo {
        NamespaceInfo {
            id,
            name: self.name.clone(),
            keys: self.layout.keys(),
            blocks: self.layout.blocks(),
            versions: self.layout.versions().copied(),
            merge_when_low: self.merge_when_low(),
            logs: self.logs.clone(),
            record_count: self.record_count(),
            index_bytes: self.index_bytes(),
            loaded: self.is_loaded(),
        }
    }
}
