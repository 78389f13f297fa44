//! Indexes that come back into memory while others are at work.
//!
//! Lives here:       what a thread reads next to the core, and puts in place.
//! Lives elsewhere:  versions (`versioned::load`), when an index leaves memory (`namespace_commands`), opening (`recovery`).
//! Implements:       docs/ARCHITECTURE.md "Metadata" (an index is loaded at first use).

use crate::core::Core;
use crate::error::Error;
use crate::expiries::Expiries;
use crate::format::root::Stream;
use crate::gate::Pin;
use crate::index::{BadImage, IndexLayout, IndexWriter};
use crate::layout::Layout;
use crate::metadata::read_stream_unless;
use crate::versioned::{LoadedVersions, VersionsLoad};
use kaml_flash::{BlockIndex, Medium};
use kaml_index::SnapshotError;
use kaml_ordered::ImageError;

/// Whether a load should give up.
type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// What finds the records of a namespace, on flash, kept from being erased until it has been read.
pub struct IndexLoad(Load);

enum Load {
    Records(SnapshotLoad),
    Versions(VersionsLoad),
}

struct SnapshotLoad {
    id: u32,
    name: String,
    layout: (Layout, IndexLayout),
    /// Of an index that has no snapshot.
    seed: u64,
    snapshot: Option<Stream>,
    _pins: Vec<Pin>,
}

/// What finds the records of a namespace, as flash has it.
pub struct LoadedIndex(Loaded);

enum Loaded {
    Records { id: u32, snapshot: Option<Stream>, index: Box<IndexWriter>, expiries: Box<Expiries> },
    Versions(Box<LoadedVersions>),
}

impl IndexLoad {
    /// Reads and checks it: a second for ten million keys, so not under a lock that others wait for.
    pub fn read(self, medium: &dyn Medium) -> Result<LoadedIndex, Error> {
        Ok(self.read_unless(medium, &|| false)?.expect("nothing stops it"))
    }

    /// As [`IndexLoad::read`], but gives up once `stop` returns true; it then returns nothing.
    ///
    /// # Errors
    /// As [`IndexLoad::read`].
    pub fn read_unless(self, medium: &dyn Medium, stop: Stop<'_>) -> Result<Option<LoadedIndex>, Error> {
        Ok(Some(LoadedIndex(match self.0 {
            Load::Records(load) => match load.read(medium, stop)? {
                Some(loaded) => loaded,
                None => return Ok(None),
            },
            Load::Versions(load) => {
                let directory = load.read_directory(medium)?;
                Loaded::Versions(Box::new(load.read(medium, directory, None)?))
            }
        })))
    }
}

impl SnapshotLoad {
    fn read(self, medium: &dyn Medium, stop: Stop<'_>) -> Result<Option<Loaded>, Error> {
        let SnapshotLoad { id, name, layout, seed, snapshot, .. } = self;
        let damaged = |what: String| Error::IndexDamaged { namespace: id, name: name.clone(), what };
        let (index, expiries) = match &snapshot {
            Some(stream) => {
                let bytes = read_stream_unless(medium, stream, stop).map_err(|e| damaged(e.to_string()))?;
                let Some(bytes) = bytes else { return Ok(None) };
                let parts = bytes.len().saturating_sub(stream.list_bytes as usize);
                let (expiries, image) =
                    Expiries::of_image(layout.0, &bytes[..parts]).map_err(|e| damaged(e.to_string()))?;
                let index = IndexWriter::of_image(layout.1, image).map_err(|error| match error {
                    BadImage::Exact(SnapshotError::NoAddressSpace(refused))
                    | BadImage::Ordered(ImageError::NoAddressSpace(refused)) => refused.into(),
                    error => damaged(error.to_string()),
                })?;
                (index, expiries)
            }
            None => (IndexWriter::new(layout.1, seed)?, Expiries::default()),
        };
        Ok(Some(Loaded::Records { id, snapshot, index: Box::new(index), expiries: Box::new(expiries) }))
    }
}

impl Core {
    /// Loads the index of a namespace from its snapshot, if it is not in memory.
    /// Records of it that have expired leave it.
    pub fn load_index(&mut self, medium: &dyn Medium, id: u32) -> Result<(), Error> {
        self.load_image(medium, id)?;
        self.expire_due(id);
        Ok(())
    }

    /// As [`Core::load_index`], with all records that the image has.
    pub(crate) fn load_image(&mut self, medium: &dyn Medium, id: u32) -> Result<(), Error> {
        if let Some(load) = self.begin_load(id)? {
            let loaded = load.read(medium)?;
            self.finish_load(loaded);
        }
        Ok(())
    }

    /// What a thread needs to load the index of a namespace next to the core; nothing if it is in memory.
    pub fn begin_load(&self, id: u32) -> Result<Option<IndexLoad>, Error> {
        let space = self.spaces.get(&id).ok_or_else(|| Error::UnknownNamespace(id))?;
        space.shared.note_use(); // it is about to be used
        if space.is_loaded() {
            return Ok(None);
        }
        match space.layout {
            Layout::Versions(_) => return Ok(Some(IndexLoad(Load::Versions(self.versions_load(id))))),
            Layout::Records(_) | Layout::Blocks(_) => {}
        }
        let pins = self.pin_streams(&space.snapshot);
        let (layout, seed) = ((space.layout, self.index_layout(space.layout)), self.seed(id));
        let (name, snapshot) = (space.name.clone(), space.snapshot.clone());
        Ok(Some(IndexLoad(Load::Records(SnapshotLoad { id, name, layout, seed, snapshot, _pins: pins }))))
    }

    /// Keeps streams from being erased for as long as the answer lives.
    pub(crate) fn pin_streams<'a>(&self, streams: impl IntoIterator<Item = &'a Stream>) -> Vec<Pin> {
        let gate = self.gate();
        let runs = streams.into_iter().flat_map(|stream| &stream.runs);
        runs.map(|run| gate.pin(self.log.geometry.chunk_at(BlockIndex(run.block), 0))).collect()
    }

    /// Puts a loaded index in place, if it is still needed and valid.
    pub fn finish_load(&mut self, loaded: LoadedIndex) {
        let (id, found, index, expiries) = match loaded.0 {
            Loaded::Records { id, snapshot, index, expiries } => (id, snapshot, index, expiries),
            Loaded::Versions(loaded) => {
                self.sealing.is_wanted = true;
                return self.install_versions(*loaded);
            }
        };
        let addr_bits = self.addr_bits_needed();
        // Nothing changes a namespace whose index is not in memory, but another may have loaded it, or deleted it.
        if let Some(space) = self.spaces.get_mut(&id).filter(|space| space.index.is_none() && space.snapshot == found) {
            // A device that has grown since needs more bits for chunk numbers: the caller loads it again.
            if index.addr_bits() >= addr_bits {
                space.install_with(*index, *expiries);
                self.next_expiry = self.next_expiry.min(space.expiries.next().unwrap_or(u64::MAX));
            }
        }
    }
}
