//! Reading a versioned namespace back: its directory, the tables of its segments, kept versions.
//!
//! Lives here:       what a thread does next to the core, which others use meanwhile; putting what it read in place.
//! Lives elsewhere:  the steps of opening after a crash (`open`), loading other namespaces (`crate::loading`).
//! Implements:       docs/versioned.md "In the device"; paper:Muninn 4.5.
//!
//! Why nothing changes meanwhile: only a namespace that is in memory takes Puts and has segments moved, and one leaves memory
//! only when all its segments are on flash and its directory names them.

use crate::core::Core;
use crate::error::Error;
use crate::format::root::Stream;
use crate::format::version::{Directory, Entry, kept_versions};
use crate::gate::Pin;
use crate::metadata::{read_damaged_stream, read_stream};
use crate::versioned::SegmentRead;
use crate::versioned::state::segment_chunks;
use kaml_flash::{ChunkAddr, Medium};
use kaml_versions::{
    Columns, Error as Damage, Parameters, SegmentAt, SegmentTable, Source, Version, Versions, View, newest,
};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// What there is of a namespace on flash; its directory and kept versions are kept from being erased until they have been read.
pub(crate) struct VersionsLoad {
    id: u32,
    name: String,
    parameters: Parameters,
    /// Of the device, when the load began.
    chunk_count: u64,
    snapshot: Option<Stream>,
    kept: Option<Stream>,
    _pins: Vec<Pin>,
}

/// A namespace as flash has it.
pub(crate) struct LoadedVersions {
    id: u32,
    snapshot: Option<Stream>,
    kept: Option<Stream>,
    kept_first: BTreeMap<u32, u64>,
    versions: Versions,
}

/// A version that was kept, and its record.
type Kept = (Version, Box<[u8]>);

/// Receives what is missing during salvage; all other callers get an error.
type Problems<'a> = Option<&'a mut Vec<String>>;

/// A segment as the directory has it.
struct Stored {
    row: u32,
    entry: Entry,
}

impl Stored {
    /// Whether this is the table of another segment, as far as can be determined.
    fn is_other(&self, table: &SegmentTable) -> bool {
        self.entry.identity != 0 && table.identity() != self.entry.identity
    }

    fn nowhere(&self) -> Error {
        Error::MetadataDamaged(format!("no segment can lie at {}", self.entry.at.get()))
    }
}

/// Segments read one after another.
pub(super) struct Segments<'a> {
    pub(super) versions: &'a Versions,
    /// Some may still be in its buffers.
    pub(super) core: Option<&'a Core>,
    pub(super) medium: &'a dyn Medium,
    pub(super) namespace: u32,
}

impl Source for Segments<'_> {
    type Error = Error;

    fn look<T>(&mut self, look: impl FnOnce(&Versions, &mut dyn FnMut(SegmentAt)) -> T) -> Result<T, Error> {
        Ok(look(self.versions, &mut |_| {}))
    }

    fn read<T>(
        &mut self,
        at: SegmentAt,
        bytes: Range<usize>,
        take: impl FnMut(&[u8]) -> Result<T, Damage>,
    ) -> Result<T, Error> {
        match self.core {
            Some(core) => core.read_part(self.medium, self.namespace, at, &bytes, take),
            None => SegmentRead::new(self.medium.geometry(), at, &bytes).fetch(self.medium, self.namespace, take),
        }
    }
}

impl Segments<'_> {
    /// Whether a version is in no segment. While as much as possible is saved, it is missing if what its key has in segments
    /// cannot be read: better one version twice than none.
    pub(super) fn lack(&mut self, version: &Version, problems: Problems<'_>) -> Result<bool, Error> {
        match (newest(self, &version.key, &View::everything()), problems) {
            (Ok(known), _) => Ok(known.is_none_or(|known| known.sequence < version.sequence)),
            (Err(error), Some(problems)) => {
                problems.push(error.to_string());
                Ok(true)
            }
            (Err(error), None) => Err(error),
        }
    }
}

impl VersionsLoad {
    fn damaged(&self, what: impl ToString) -> Error {
        Error::IndexDamaged { namespace: self.id, name: self.name.clone(), what: what.to_string() }
    }

    /// Reads the directory as of the namespace's snapshot.
    pub(crate) fn read_directory(&self, medium: &dyn Medium) -> Result<Directory, Error> {
        let (id, rows) = (self.id, self.parameters.rows);
        let Some(stream) = &self.snapshot else { return Ok(Directory::new(rows)) };
        let bytes = read_stream(medium, stream).or_else(|error| {
            let bytes = Directory::mend(&read_damaged_stream(medium, stream), stream.crc32c);
            tracing::warn!(%error, id, is_mended = bytes.is_some(), "a directory of segments is damaged");
            bytes.ok_or_else(|| self.damaged(&error))
        })?;
        Directory::decode(&bytes, rows).ok_or_else(|| self.damaged("not a directory of segments"))
    }

    /// Reads the segments that the directory names, and kept versions.
    pub(crate) fn read(
        self,
        medium: &dyn Medium,
        directory: Directory,
        mut problems: Problems<'_>,
    ) -> Result<LoadedVersions, Error> {
        let mut versions = self.read_tables(medium, directory, problems.as_deref_mut())?;
        let kept = match (self.read_kept(medium), problems.as_deref_mut()) {
            (Err(error), Some(problems)) => {
                problems.push(format!("{error}: Puts are missing"));
                Vec::new()
            }
            (kept, _) => kept?,
        };
        let mut kept_first = BTreeMap::new();
        for (version, _) in &kept {
            kept_first.entry(versions.columns().row_of(&version.key)).or_insert(version.sequence);
        }
        for (version, record) in kept {
            let mut segments = Segments { versions: &versions, core: None, medium, namespace: self.id };
            if segments.lack(&version, problems.as_deref_mut())? {
                versions.insert(&version.key, record);
            }
        }
        let VersionsLoad { id, snapshot, kept, .. } = self;
        Ok(LoadedVersions { id, snapshot, kept, kept_first, versions })
    }

    /// Reads the tables of the segments that the directory names: each segment's own last pages.
    fn read_tables(
        &self,
        medium: &dyn Medium,
        directory: Directory,
        mut problems: Problems<'_>,
    ) -> Result<Versions, Error> {
        let Directory { rows, timeline } = directory;
        let mut columns = Columns::new(self.parameters).map_err(|error| self.damaged(error))?;
        for (row, entries) in (0..).zip(rows) {
            let mut first_sequences = HashSet::new();
            for entry in entries {
                let stored = Stored { row, entry };
                let table = match self.read_table(medium, &stored, &first_sequences) {
                    Ok(table) => table,
                    Err(error) => match self.mend_table(medium, &stored, error, problems.as_deref_mut())? {
                        Some(table) => table,
                        None => continue,
                    },
                };
                first_sequences.insert(table.sequences().start);
                columns.restore(stored.entry.at, stored.entry.live, &table);
            }
        }
        Ok(Versions::restore(columns, timeline))
    }

    /// The table of a segment that begins with another version than these. No version is in two segments: a table that begins as
    /// another one does is in that one's place.
    fn read_table(
        &self,
        medium: &dyn Medium,
        stored: &Stored,
        first_sequences: &HashSet<u64>,
    ) -> Result<SegmentTable, Error> {
        let parameters = &self.parameters;
        let segment_bytes = parameters.segment_bytes();
        let start = segment_bytes.checked_sub(usize::from(stored.entry.table_pages) * parameters.page_bytes as usize);
        self.read_stored(medium, stored, start.ok_or_else(|| stored.nowhere())?..segment_bytes, |table| {
            let table = SegmentTable::decode(table, stored.row, parameters)?;
            let begins_as_another = first_sequences.contains(&table.sequences().start) && !table.sequences().is_empty();
            match stored.is_other(&table) || begins_as_another {
                true => Err(Damage::DamagedTable("of another segment")),
                false => Ok(table),
            }
        })
    }

    /// Rebuilds a damaged table from the records of its segment, if none is missing. Salvage takes what exists; if there is
    /// nothing, the segment is left out.
    fn mend_table(
        &self,
        medium: &dyn Medium,
        stored: &Stored,
        error: Error,
        problems: Problems<'_>,
    ) -> Result<Option<SegmentTable>, Error> {
        let (parameters, Entry { table_pages, identity, .. }) = (&self.parameters, stored.entry);
        let whole = |table: &SegmentTable| identity != 0 && !stored.is_other(table);
        let table = self.read_stored(medium, stored, 0..parameters.segment_bytes(), |segment| {
            SegmentTable::of_records(stored.row, segment, table_pages.into(), identity, parameters)
        });
        let what = match &table {
            Ok(table) if whole(table) => "it was made again from the segment's records".to_owned(),
            Ok(_) => "it was made again from those records of the segment that are left".to_owned(),
            Err(error) => format!("the segment's versions are missing: {error}"),
        };
        match (problems, table) {
            (None, Ok(table)) if whole(&table) => {
                tracing::warn!(%error, "a damaged table of a segment was made again from its records");
                Ok(Some(table))
            }
            (None, _) => Err(self.damaged(error)),
            (Some(problems), table) => {
                problems.push(format!("{error}, in row {}; {what}", stored.row));
                Ok(table.ok())
            }
        }
    }

    /// Reads a part of a segment, if it can lie where the directory puts it.
    fn read_stored<T>(
        &self,
        medium: &dyn Medium,
        stored: &Stored,
        bytes: Range<usize>,
        take: impl FnMut(&[u8]) -> Result<T, Damage>,
    ) -> Result<T, Error> {
        let (at, geometry) = (stored.entry.at, medium.geometry());
        let (_, chunk) = geometry.split(ChunkAddr(at.get()));
        let end = chunk + segment_chunks(&self.parameters, geometry);
        if at.get() >= self.chunk_count || end > geometry.chunks_per_block() {
            return Err(stored.nowhere());
        }
        SegmentRead::new(geometry, at, &bytes).fetch(medium, self.id, take)
    }

    /// The kept versions of the namespace, in the order of their sequences.
    fn read_kept(&self, medium: &dyn Medium) -> Result<Vec<Kept>, Error> {
        let Some(stream) = &self.kept else { return Ok(Vec::new()) };
        let bytes = read_stream(medium, stream).map_err(|error| self.damaged(error))?;
        let kept = kept_versions(&bytes).ok_or_else(|| self.damaged("its kept versions are damaged"))?;
        let mut kept: Vec<Kept> = kept.into_iter().map(|(version, record)| (version, record.into())).collect();
        kept.sort_by_key(|(version, _)| version.sequence);
        Ok(kept)
    }
}

impl Core {
    /// What is to be read of a versioned namespace.
    pub(crate) fn versions_load(&self, id: u32) -> VersionsLoad {
        let space = &self.spaces[&id];
        let kept = space.versioned.as_ref().and_then(|versioned| versioned.kept.clone());
        let pins = self.pin_streams(space.snapshot.iter().chain(&kept));
        VersionsLoad {
            id,
            name: space.name.clone(),
            parameters: *space.layout.versions().expect("a versioned namespace"),
            chunk_count: self.log.geometry.chunk_count(),
            snapshot: space.snapshot.clone(),
            kept,
            _pins: pins,
        }
    }

    /// Puts what was read in place, if it is still needed and valid: readers see it from now on.
    pub(crate) fn install_versions(&mut self, loaded: LoadedVersions) {
        let Some(space) = self.spaces.get_mut(&loaded.id).filter(|space| !space.is_loaded()) else { return };
        let versioned = space.versioned.as_mut().expect("a versioned namespace");
        if (&space.snapshot, &versioned.kept) != (&loaded.snapshot, &loaded.kept) {
            return;
        }
        // The root names this stream, unless it names an older one still.
        let in_root = Arc::make_mut(&mut versioned.kept_first_in_root);
        for (row, first) in &loaded.kept_first {
            in_root.entry(*row).and_modify(|known| *known = (*first).min(*known)).or_insert(*first);
        }
        versioned.kept_first = Arc::new(loaded.kept_first);
        if versioned.low_merge_ended.is_none() {
            // A merge may have begun before its namespace was loaded, and has noted how many there were: their number never falls.
            versioned.deletes = versioned.deletes.max(loaded.versions.columns().buffered_deletes());
        }
        *space.shared.versions_mut() = Some(loaded.versions);
    }
}
