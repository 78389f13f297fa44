//! Opening a versioned namespace: directory, journal, tables, kept versions, the ring.
//!
//! Lives here:       reading back what the other parts have written.
//! Lives elsewhere:  the order of the steps after a crash (`recovery`).
//! Implements:       docs/versioned.md "In the device"; paper:Muninn 4.5.
//!
//! Of each key, the segments have all versions up to some sequence. So a version found outside of them is missing exactly
//! if it is newer than the key's newest in a segment, whether it is found once, twice, or was sealed long ago.

use crate::core::Core;
use crate::error::Error;
use crate::format::journal::Change;
use crate::format::record::{Record, RecordKind};
use crate::format::version::{Directory, Entry, VersionStamp, command_of, kept_versions, stamp};
use crate::metadata::{read_damaged_stream, read_stream};
use crate::recovery::PLACE_TRIES_MAX;
use kaml_flash::{ChunkAddr, Medium};
use kaml_versions::{
    Columns, Command, Error as Damage, Kind, Parameters, SegmentAt, SegmentTable, Source, Stamp, Version, Versions,
    View, newest,
};
use std::collections::HashSet;
use std::ops::Range;

/// A version that was kept, and its record.
type Kept = (Version, Box<[u8]>);

/// Something found in the ring, to be done again.
pub(crate) enum Again {
    Version(Version, Box<[u8]>),
    Command(Command, Stamp),
}

impl Again {
    fn sequence(&self) -> u64 {
        match self {
            Again::Version(version, _) => version.sequence,
            Again::Command(_, stamp) => stamp.sequence,
        }
    }

    /// What a whole record of the ring says.
    pub(crate) fn of_ring(record: &Record, body: &[u8]) -> Option<Again> {
        let (head, value) = body.split_at_checked(VersionStamp::BYTES)?;
        let VersionStamp { time_ns, user_version } = VersionStamp::decode(head)?;
        let kind = match record.kind {
            RecordKind::Version => Kind::Value,
            RecordKind::VersionTombstone => Kind::Tombstone,
            RecordKind::VersionCommand => {
                let about = record.key.as_u64().and_then(|about| u32::try_from(about).ok())?;
                return Some(Again::Command(command_of(user_version, about)?, stamp(record.sequence, time_ns)));
            }
            RecordKind::Value | RecordKind::Tombstone | RecordKind::Mapping => return None,
        };
        let (key, value_len, value_crc, sequence) = (record.key, record.value_len, record.value_crc, record.sequence);
        let version = Version { key, kind, value_len, value_crc, sequence, time_ns, user_version, ordinal: 0 };
        Some(Again::Version(version, version.record(value)))
    }
}

/// A segment as the directory has it.
struct Stored<'a> {
    namespace: u32,
    row: u32,
    entry: Entry,
    parameters: &'a Parameters,
}

impl Stored<'_> {
    /// Whether this is the table of another segment, as far as can be told.
    fn is_other(&self, table: &SegmentTable) -> bool {
        self.entry.identity != 0 && table.identity() != self.entry.identity
    }

    fn nowhere(&self) -> Error {
        Error::MetadataDamaged(format!("no segment can lie at {}", self.entry.at.get()))
    }
}

/// Segments read one after another while nobody else has the device.
struct Opened<'a> {
    versions: &'a Versions,
    core: &'a Core,
    medium: &'a dyn Medium,
    namespace: u32,
}

impl Source for Opened<'_> {
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
        self.core.read_part(self.medium, self.namespace, at, &bytes, take)
    }
}

impl Core {
    fn versions_damaged(&self, namespace: u32, what: impl ToString) -> Error {
        Error::IndexDamaged { namespace, name: self.spaces[&namespace].name.clone(), what: what.to_string() }
    }

    /// Loads a versioned namespace: nothing of it can be in the ring. Readers see it when it is complete.
    pub(crate) fn load_versions(&mut self, medium: &dyn Medium, id: u32) -> Result<(), Error> {
        if self.spaces[&id].is_loaded() {
            return Ok(());
        }
        self.load_directory(medium, id)?;
        self.read_versions(medium, id)?;
        self.wants_seal = true;
        Ok(())
    }

    /// The directory as of the namespace's snapshot.
    pub(crate) fn load_directory(&mut self, medium: &dyn Medium, id: u32) -> Result<(), Error> {
        let space = &self.spaces[&id];
        let rows = space.layout.versions().expect("a versioned namespace").rows;
        let damaged = |what: &dyn ToString| self.versions_damaged(id, what.to_string());
        let directory = match &space.snapshot {
            None => Directory::new(rows),
            Some(stream) => {
                let bytes = read_stream(medium, stream).or_else(|error| {
                    let bytes = Directory::mend(&read_damaged_stream(medium, stream), stream.crc32c);
                    tracing::warn!(%error, id, is_mended = bytes.is_some(), "a directory of segments is damaged");
                    bytes.ok_or_else(|| damaged(&error))
                })?;
                Directory::decode(&bytes, rows).ok_or_else(|| damaged(&"not a directory of segments"))?
            }
        };
        self.versioned_mut(id).directory = Some(directory);
        Ok(())
    }

    /// A journal entry about the segments or user versions of a namespace.
    pub(crate) fn replay_versions(&mut self, entry: u64, change: &Change) {
        let namespace = match change {
            Change::SegmentIn { namespace, .. }
            | Change::SegmentsOut { namespace, .. }
            | Change::Versions { namespace, .. } => *namespace,
            Change::Moved { .. } | Change::Deleted { .. } | Change::Block { .. } => return,
        };
        let Some(space) = self.spaces.get_mut(&namespace).filter(|space| entry >= space.snapshot_entry) else { return };
        let Some(directory) = space.versioned.as_mut().and_then(|v| v.directory.as_mut()) else { return };
        space.dirty = true;
        if !directory.replay(change) {
            tracing::warn!(?change, "a journal entry that fits no segment is ignored");
        }
    }

    /// Reads the segments that the directory names, and kept versions. These go into the page buffer at once: if what they are read
    /// from fails, they are written again from there.
    pub(crate) fn read_versions(&mut self, medium: &dyn Medium, id: u32) -> Result<(), Error> {
        let mut versions = self.read_tables(medium, id)?;
        let kept = match (self.read_kept(medium, id), &mut self.salvage) {
            (Err(error), Some(problems)) => {
                problems.push(format!("{error}: Puts are missing"));
                Vec::new()
            }
            (kept, _) => kept?,
        };
        for (version, record) in kept {
            let missing = self.is_missing(medium, id, &versions, &version);
            if self.or_unknown(missing)? {
                versions.insert(&version.key, record);
            }
        }
        *self.spaces[&id].shared.versions_mut() = Some(versions);
        Ok(())
    }

    /// Reads the tables of the segments that the directory names: each segment's own last pages.
    fn read_tables(&mut self, medium: &dyn Medium, id: u32) -> Result<Versions, Error> {
        let space = self.spaces.get_mut(&id).expect("its directory was loaded");
        let parameters = *space.layout.versions().expect("a versioned namespace");
        let directory = space.versioned.as_mut().and_then(|versioned| versioned.directory.take());
        let Directory { rows, timeline } = directory.expect("loaded before");
        let damaged = |what: &dyn ToString| self.versions_damaged(id, what.to_string());
        let mut columns = Columns::new(parameters).map_err(|error| damaged(&error))?;
        for (row, entries) in (0..).zip(rows) {
            let mut first_sequences = HashSet::new();
            for entry in entries {
                let stored = Stored { namespace: id, row, entry, parameters: &parameters };
                let table = match self.read_table(medium, &stored, &first_sequences) {
                    Ok(table) => table,
                    Err(error) => match self.mend_table(medium, &stored, error)? {
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
    /// another one does stands in that one's place.
    fn read_table(
        &self,
        medium: &dyn Medium,
        stored: &Stored<'_>,
        first_sequences: &HashSet<u64>,
    ) -> Result<SegmentTable, Error> {
        let parameters = stored.parameters;
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

    /// Makes a damaged table again from the records of its segment, if none is missing. Who salvages takes what there is; if there is
    /// nothing, the segment is left out.
    fn mend_table(
        &mut self,
        medium: &dyn Medium,
        stored: &Stored<'_>,
        error: Error,
    ) -> Result<Option<SegmentTable>, Error> {
        let (parameters, Entry { table_pages, identity, .. }) = (stored.parameters, stored.entry);
        let whole = |table: &SegmentTable| identity != 0 && !stored.is_other(table);
        let table = self.read_stored(medium, stored, 0..parameters.segment_bytes(), |segment| {
            SegmentTable::of_records(stored.row, segment, table_pages.into(), identity, parameters)
        });
        let what = match &table {
            Ok(table) if whole(table) => "it was made again from the segment's records".to_owned(),
            Ok(_) => "it was made again from those records of the segment that are left".to_owned(),
            Err(error) => format!("the segment's versions are missing: {error}"),
        };
        match (&mut self.salvage, table) {
            (None, Ok(table)) if whole(&table) => {
                tracing::warn!(%error, "a damaged table of a segment was made again from its records");
                Ok(Some(table))
            }
            (None, _) => Err(self.versions_damaged(stored.namespace, error)),
            (Some(problems), table) => {
                problems.push(format!("{error}, in row {}; {what}", stored.row));
                Ok(table.ok())
            }
        }
    }

    /// Reads a part of a segment, if it can lie where it is said to.
    fn read_stored<T>(
        &self,
        medium: &dyn Medium,
        stored: &Stored<'_>,
        bytes: Range<usize>,
        take: impl FnMut(&[u8]) -> Result<T, Damage>,
    ) -> Result<T, Error> {
        let at = stored.entry.at;
        let (_, chunk) = self.geometry.split(ChunkAddr(at.get()));
        let end = chunk + super::segment_chunks(stored.parameters, &self.geometry);
        if at.get() >= self.geometry.chunk_count() || end > self.geometry.chunks_per_block() {
            return Err(stored.nowhere());
        }
        // While the device is in use, a namespace may be loaded whose pages still wait to be programmed.
        self.read_part(medium, stored.namespace, at, &bytes, take)
    }

    /// The kept versions of a namespace, in the order of their sequences.
    fn read_kept(&mut self, medium: &dyn Medium, id: u32) -> Result<Vec<Kept>, Error> {
        let versioned = self.versioned_mut(id);
        versioned.kept_first = None;
        let Some(stream) = versioned.kept.clone() else { return Ok(Vec::new()) };
        let bytes = read_stream(medium, &stream).map_err(|error| self.versions_damaged(id, error))?;
        let kept = kept_versions(&bytes).ok_or_else(|| self.versions_damaged(id, "its kept versions are damaged"))?;
        let versioned = self.versioned_mut(id);
        versioned.kept_first = kept.iter().map(|(version, _)| version.sequence).min();
        // The root names this stream, unless it names an older one still.
        let in_root = versioned.kept_first_in_root.into_iter().chain(versioned.kept_first).min();
        versioned.kept_first_in_root = in_root;
        let mut kept: Vec<Kept> = kept.into_iter().map(|(v, record)| (v, record.into())).collect();
        kept.sort_by_key(|(version, _)| version.sequence);
        Ok(kept)
    }

    /// Puts versions into the buffer that are missing, in the order of their sequences, and carries out commands again.
    pub(crate) fn do_again(&mut self, medium: &dyn Medium, id: u32, mut again: Vec<Again>) -> Result<(), Error> {
        again.sort_by_key(Again::sequence);
        again.dedup_by_key(|again| again.sequence());
        for each in again {
            match each {
                Again::Command(command, stamp) => {
                    let done = self.spaces[&id].change_versions(|versions| versions.command(command, stamp));
                    if let Err(error) = done {
                        tracing::warn!(%error, id, "a command on user versions is ignored");
                        continue;
                    }
                    self.spaces.get_mut(&id).expect("just seen").dirty = true;
                    self.journal.append(&Change::Versions { namespace: id, command, stamp });
                }
                Again::Version(version, record) if self.is_missing_in(medium, id, &version)? => {
                    self.spaces[&id].change_versions(|versions| versions.insert(&version.key, record));
                    self.seal_overfull(medium, id)?;
                }
                Again::Version(..) => {}
            }
        }
        Ok(())
    }

    fn is_missing_in(&mut self, medium: &dyn Medium, id: u32, version: &Version) -> Result<bool, Error> {
        let missing = {
            let guard = self.spaces[&id].shared.versions();
            self.is_missing(medium, id, guard.as_ref().expect("loaded before"), version)
        };
        self.or_unknown(missing)
    }

    /// While as much as possible is saved, a version is missing if what its key has in segments cannot be read: better one version
    /// twice than none.
    fn or_unknown(&mut self, missing: Result<bool, Error>) -> Result<bool, Error> {
        match (missing, &mut self.salvage) {
            (Err(error), Some(problems)) => {
                problems.push(error.to_string());
                Ok(true)
            }
            (missing, _) => missing,
        }
    }

    fn is_missing(
        &self,
        medium: &dyn Medium,
        namespace: u32,
        versions: &Versions,
        version: &Version,
    ) -> Result<bool, Error> {
        let mut source = Opened { versions, core: self, medium, namespace };
        let known = newest(&mut source, &version.key, &View::everything())?;
        Ok(known.is_none_or(|known| known.sequence < version.sequence))
    }

    /// While the ring is replayed the buffer may take more than it should: more of it had been sealed before the crash.
    fn seal_overfull(&mut self, medium: &dyn Medium, id: u32) -> Result<(), Error> {
        for _ in 0..PLACE_TRIES_MAX {
            if !self.buffer_is_overfull(id) {
                return Ok(());
            }
            self.wants_seal = true;
            self.drive_once(medium)?;
        }
        Err(self.full_now())
    }
}

impl Directory {
    /// Makes a change; false if nothing that it is about is there.
    fn replay(&mut self, change: &Change) -> bool {
        match *change {
            Change::SegmentIn { row, place, entry, .. } => {
                let Some(row) = self.rows.get_mut(row as usize).filter(|row| place as usize <= row.len()) else {
                    return false;
                };
                row.insert(place as usize, entry);
                true
            }
            Change::SegmentsOut { row, place, count, .. } => {
                let end = place as usize + usize::from(count);
                let Some(row) = self.rows.get_mut(row as usize).filter(|row| end <= row.len()) else { return false };
                row.drain(place as usize..end);
                true
            }
            Change::Versions { command, stamp, .. } => self.timeline.carry_out(command, stamp).is_ok(),
            Change::Moved { .. } | Change::Deleted { .. } | Change::Block { .. } => false,
        }
    }
}
