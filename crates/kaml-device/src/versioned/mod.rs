//! Versioned namespaces in the firmware: what the core knows of one in addition to its index.
//!
//! Lives here:       staging and committing versions, which frames of the ring a namespace needs, the attributes.
//! Lives elsewhere:  the index and its algorithms (`kaml-versions`), sealing and moving segments (`segments`), merges (`merging`),
//!                   what makes ring space free without sealing (`keep`), merges because there is no space (`low`), opening (`open`), reading
//!                   next to the core (`reader`).
//! Implements:       docs/versioned.md "In the device".
//!
//! A version's life: `stage` appends it to the commit ring; its commit puts it into the page buffer; sealing copies it into
//! a segment, which is placed like a large value; when the segment is programmed the journal names it. Until a root has
//! that journal entry, the version's ring frame is kept, or a stream of *kept* versions has it.
//!
//! Invariants
//! - segments of a namespace are journaled in the order of sealing, so of each key a crash leaves all versions up to some
//!   sequence in segments;
//! - a version in the buffer is in the ring, or it is older than `kept_before` and in the kept stream;
//! - the kept stream is replaced only while every segment is journaled: what the old one alone had is in one of them.

mod dropped;
mod keep;
mod load;
mod low;
pub(crate) mod merge_policy;
mod merging;
mod open;
mod read;
mod restore;
mod segments;
pub(crate) mod state;
mod values;

pub(crate) use load::{LoadedVersions, VersionsLoad};
pub(crate) use open::Again;
pub use read::{SegmentRead, VersionReader};
pub(crate) use segments::NoSegment;
pub use segments::segment_image;

use self::state::{StagedVersion, VersionOptions, Versioned};
use crate::command::{Body, Condition, Op, StageError, refused_by};
use crate::core::Core;
use crate::error::{Error, NotForVersions};
use crate::format::frame::FrameHeader;
use crate::format::journal::Change;
use crate::format::record::{Form, RING_ALIGN, Record, RecordHeader, RecordKind};
use crate::format::version::{VersionStamp, command_code};
use crate::layout::{Door, VersionLayout};
use crate::namespace::{Namespace, NamespaceShared};
use crate::ring::{Staged, frame_bytes_max};
use crate::space::Purpose;
use kaml_flash::Geometry;
use kaml_index::{Key, KeyKind};
use kaml_versions::{
    BLOOM_HASHES_MAX, Command, Index, Kind, Parameters, Place, Stamp, Timeline, ValueShape, Version, Versions,
};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

/// Segments are this long where the device allows it (paper:Muninn Table 1).
const SEGMENT_BYTES: u64 = 1 << 20;
/// The same of a namespace that keeps only newest versions. It is merged often, and has four times as many rows that way: a merge has all versions of
/// a row in memory.
const NEWEST_SEGMENT_BYTES: u64 = 256 << 10;
/// A page of versions, the unit of a read.
const PAGE_BYTES: u32 = 4096;
/// Part of the ring that the buffers of all versioned namespaces may hold, and the part that one gets by default.
const BUFFERS_OF_RING: u64 = 3;
const BUFFER_OF_RING: u64 = 4;
/// The smallest buffer that a namespace gets by default: segments of 16 KiB.
const BUFFER_BYTES_MIN: u64 = 64 << 10;

/// Part of the device that the timelines of all namespaces may take, with all their copies: each stands twice in a directory, and two of
/// these exist while a checkpoint replaces one.
const TIMELINES_OF_DEVICE: u64 = 16;
const TIMELINE_COPIES: u64 = 4;

/// The longest value that goes through the page buffer of a versioned namespace: a frame of the ring and a segment take it.
pub(crate) fn version_bytes_max(parameters: &Parameters, geometry: &Geometry) -> u64 {
    let frame = frame_bytes_max(geometry) - FrameHeader::BYTES;
    let ring = frame - RecordHeader::BYTES_MAX - VersionStamp::BYTES - RING_ALIGN;
    parameters.value_bytes_max().min(ring as u64)
}

impl NamespaceShared {
    pub(crate) fn versions(&self) -> RwLockReadGuard<'_, Option<Versions>> {
        self.versions.read().expect("no panics under this lock")
    }

    pub(crate) fn versions_mut(&self) -> RwLockWriteGuard<'_, Option<Versions>> {
        self.versions.write().expect("no panics under this lock")
    }
}

impl Namespace {
    /// Whether what finds its records is in memory.
    pub(crate) fn is_loaded(&self) -> bool {
        self.index.is_some() || self.shared.versions().is_some()
    }

    /// Looks at the versions of a namespace that is loaded.
    pub(crate) fn with_versions<T>(&self, look: impl FnOnce(&Versions) -> T) -> Option<T> {
        self.shared.versions().as_ref().map(look)
    }

    pub(crate) fn change_versions<T>(&self, change: impl FnOnce(&mut Versions) -> T) -> T {
        change(self.shared.versions_mut().as_mut().expect("versions stay loaded while they are in use"))
    }
}

impl Core {
    /// What the core knows of a namespace that exists and versioned.
    fn versioned_mut(&mut self, id: u32) -> &mut Versioned {
        self.spaces.get_mut(&id).and_then(|space| space.versioned.as_mut()).expect("a versioned namespace")
    }

    // --- attributes -------------------------------------------------------------------------------------------------

    /// The shape that a namespace gets, or why it cannot.
    pub(crate) fn version_layout(&self, keys: KeyKind, options: &VersionOptions) -> Result<VersionLayout, Error> {
        let bad = |why: String| Error::BadVersionOptions(why);
        if keys.bytes_max() > Key::BYTES_MAX {
            return Err(bad("they take keys of at most 16 bytes; choose u64 or bytes as its keys".to_owned()));
        }
        let geometry = &self.log.geometry;
        let buffers = self.version_spaces().filter_map(|(_, space)| space.layout.versions().map(|p| p.buffer_bytes));
        let free = (geometry.ring_bytes / BUFFERS_OF_RING).saturating_sub(buffers.sum());
        let is_first = self.version_spaces().next().is_none();
        let buffer_bytes = match options.buffer_bytes {
            0 if is_first => geometry.ring_bytes / BUFFER_OF_RING,
            // Half of what the others have left: however many there are, there is some for the next one.
            0 => (free / 2).max(BUFFER_BYTES_MIN),
            bytes => bytes,
        };
        if buffer_bytes > free {
            let what = format!("a buffer of {buffer_bytes} bytes; the commit ring has {free} left for buffers");
            let count = self.version_spaces().count();
            return Err(bad(format!(
                "{what} in addition to those of {count} namespaces; choose smaller buffers, or make a device with a larger ring"
            )));
        }
        let unit = u64::from(geometry.page_bytes * geometry.pages_per_program);
        let newest_only = options.merge_when_low.is_some_and(|policy| policy.newest_only);
        let segment_bytes_max = if newest_only { NEWEST_SEGMENT_BYTES } else { SEGMENT_BYTES };
        let segment_bytes = match u64::from(options.segment_bytes) {
            0 => self.segment_bytes_for(buffer_bytes, segment_bytes_max),
            bytes => Some(bytes).filter(|bytes| bytes.is_multiple_of(unit) && self.segments_fill_block(*bytes)),
        };
        let Some(segment_bytes) = segment_bytes else {
            if options.segment_bytes == 0 {
                let what = format!("a buffer of {buffer_bytes} bytes is too small for any segments");
                return Err(bad(format!("{what}; the commit ring has {free} left for buffers")));
            }
            let why = "segments are whole program units and fill a block but for a 64th";
            return Err(bad(format!("{why}; units have {unit} bytes, blocks {}", geometry.block_bytes())));
        };
        let page_bytes = PAGE_BYTES.max(geometry.chunk_bytes);
        let or = |asked: u32, chosen: u32| if asked == 0 { chosen } else { asked };
        let parameters =
            Parameters::for_segments(buffer_bytes, page_bytes, segment_bytes, self.seed(self.catalog.next_id));
        let parameters = match &options.bloom {
            Some(_) if options.fingerprint_bits > 0 => return Err(bad("filters have no fingerprints".to_owned())),
            Some(bloom) if bloom.hashes as usize > BLOOM_HASHES_MAX => {
                return Err(bad(format!("{} filters; there may be {BLOOM_HASHES_MAX}", bloom.hashes)));
            }
            Some(bloom) => parameters.with_bloom(bloom),
            None => {
                let chosen = ValueShape::default();
                let fingerprint_bits = or(options.fingerprint_bits, chosen.fingerprint_bits);
                Parameters { index: Index::Columns(ValueShape { fingerprint_bits, ..chosen }), ..parameters }
            }
        };
        let parameters = Parameters { rows: or(options.rows, parameters.rows), ..parameters };
        parameters.check().map_err(|error| bad(error.to_string()))?;
        Ok(VersionLayout { keys, parameters })
    }

    /// The longest segments that fit a small buffer a few times.
    fn segment_bytes_for(&self, buffer_bytes: u64, segment_bytes_max: u64) -> Option<u64> {
        let unit = u64::from(self.log.geometry.page_bytes * self.log.geometry.pages_per_program);
        let max = segment_bytes_max.min(buffer_bytes / 4);
        let units = (1..=max / unit).rev().find(|units| self.segments_fill_block(units * unit))?;
        Some(units * unit)
    }

    /// Whether segments of this many bytes leave no more of a block than collection takes for garbage.
    fn segments_fill_block(&self, segment_bytes: u64) -> bool {
        let block = self.log.geometry.block_bytes();
        (1..=block).contains(&segment_bytes) && block % segment_bytes < block / 64
    }

    pub(crate) fn version_spaces(&self) -> impl Iterator<Item = (u32, &Namespace)> {
        self.spaces.iter().filter(|(_, space)| space.layout.versions().is_some()).map(|(id, space)| (*id, space))
    }

    /// The time that versions staged from now on bear: nanoseconds since 1970.
    pub fn set_time(&mut self, unix_ns: u64) {
        self.time_ns = unix_ns;
    }

    /// Whether somebody needs to know the time of puts.
    pub fn wants_time(&self) -> bool {
        self.catalog.keeps_versions
    }

    // --- staging ----------------------------------------------------------------------------------------------------

    /// What can be wrong with one operation on versions and does not change by waiting.
    pub(crate) fn check_version(&self, op: &Op<'_>) -> Result<(), StageError> {
        let space = &self.spaces[&op.namespace];
        let max = self.version_bytes_max(space.layout.versions().expect("checked"));
        match op.body {
            Body::Value { value, .. } if value.len() as u64 > max => {
                let (bytes, namespace) = (value.len() as u64, Some(op.namespace));
                return Err(Error::ValueTooLarge { bytes, max, namespace }.into());
            }
            Body::Placed { ticket } => {
                let placed = self.tickets.placed.get(&ticket).expect("tickets come from `place`");
                assert!(placed.done);
                assert!(placed.version_of == Some((op.namespace, *op.key.key())));
                if let Some(values) = self.values_without_index(space) {
                    return Err(StageError::NeedIndex(values));
                }
            }
            Body::Packed { .. } => unreachable!("versions are not compressed"),
            Body::Value { .. } | Body::Delete => {}
        }
        if !space.is_loaded() {
            return Err(StageError::NeedIndex(op.namespace));
        }
        match op.condition {
            Condition::Always => Ok(()),
            Condition::UnchangedSince(sequence) if self.is_unchanged(space, op.key.key(), sequence) => Ok(()),
            Condition::UnchangedSince(sequence) => {
                let conflict = Error::Conflict { namespace: op.namespace, key: op.key.to_buf(), present: true };
                Err(refused_by(self.frame_that_changes(space, op, sequence), conflict))
            }
            Condition::IfAbsent | Condition::IfPresent => {
                let (namespace, key, present) = (op.namespace, *op.key.key(), op.condition == Condition::IfPresent);
                Err(Error::from(NotForVersions::Condition { namespace, key, present }).into())
            }
        }
    }

    /// The longest value of a versioned namespace that goes through its page buffer.
    pub(crate) fn version_bytes_max(&self, parameters: &Parameters) -> u64 {
        version_bytes_max(parameters, &self.log.geometry)
    }

    /// Whether no version of a key can have been put after that sequence, and no command can have changed which is seen.
    fn is_unchanged(&self, space: &Namespace, key: &Key, sequence: u64) -> bool {
        let is_newer = |staged: &StagedVersion| match staged {
            StagedVersion::Record { sequence: of, record } => *of > sequence && Version::key_of(record) == *key,
            StagedVersion::Command(_, stamp) => stamp.sequence > sequence,
        };
        let versioned = space.versioned.as_ref().expect("checked");
        !versioned.staged.iter().any(is_newer) && self.is_unchanged_by_committed(space, key, sequence)
    }

    /// The newest frame that may change a key after that sequence, unless committed versions have changed it already.
    fn frame_that_changes(&self, space: &Namespace, op: &Op<'_>, sequence: u64) -> Option<u64> {
        let changes = |(_, staged): &(u64, &Staged)| staged.namespace == op.namespace && staged.version > sequence;
        let newest = self.log.ring.uncommitted_in_frames().rev().find(changes).map(|(frame, _)| frame);
        newest.filter(|_| self.is_unchanged_by_committed(space, op.key.key(), sequence))
    }

    /// As [`Core::is_unchanged`], by what is committed.
    fn is_unchanged_by_committed(&self, space: &Namespace, key: &Key, sequence: u64) -> bool {
        let in_buffer = |versions: &Versions| match versions.columns().search(key, u64::MAX).next() {
            Some(Place::Buffered(version, _)) => version.sequence > sequence,
            Some(Place::Page(_)) | None => false,
        };
        // What was put since may even be sealed by now.
        let sealed = |versions: &Versions| {
            let columns = versions.columns();
            columns.sealed_end(columns.row_of(key)) > sequence + 1
        };
        let commanded = |versions: &Versions| versions.timeline().changed() > sequence;
        let changed = |versions: &Versions| commanded(versions) || in_buffer(versions) || sealed(versions);
        !space.with_versions(changed).unwrap_or(true)
    }

    /// A sequence: versions of a namespace up to it are committed, later ones are not yet or will be staged.
    pub fn newest_committed(&self, namespace: u32) -> u64 {
        let versioned = self.spaces.get(&namespace).and_then(|space| space.versioned.as_ref());
        versioned.and_then(|v| v.staged.front()).map_or(self.log.sequence, |staged| staged.sequence() - 1)
    }

    /// Whether the buffer of a namespace has no room just now.
    pub(crate) fn buffer_is_overfull(&self, namespace: u32) -> bool {
        let space = &self.spaces[&namespace];
        let over = |versions: &Versions| {
            let columns = versions.columns();
            let max = columns.parameters().buffer_bytes + 2 * columns.parameters().segment_bytes() as u64;
            columns.memory().buffer_bytes as u64 > max
        };
        space.with_versions(over).unwrap_or(false)
    }

    /// Whether the page buffers take deletes of these keys, and those that are staged, without sealing a row.
    pub(crate) fn buffers_take(&self, ops: &[Op<'_>]) -> bool {
        let versioned = |op: &&Op<'_>| self.spaces[&op.namespace].versioned.is_some();
        ops.iter().filter(versioned).all(|op| {
            let space = &self.spaces[&op.namespace];
            let staged = space.versioned.as_ref().map_or(0, |versioned| versioned.staged.len());
            let takes = |versions: &Versions| versions.columns().takes_deletes(op.key.key(), ops.len() + staged);
            space.with_versions(takes).unwrap_or(false)
        })
    }

    pub(crate) fn stage_version(&mut self, op: &Op<'_>) {
        let space = &self.spaces[&op.namespace];
        let versioned = space.versioned.as_ref().expect("checked");
        let starts_next = |staged: &StagedVersion| {
            matches!(staged, StagedVersion::Command(Command::Snapshot | Command::RollBack(_), _))
        };
        let pending = versioned.staged.iter().filter(|staged| starts_next(staged)).count() as u32;
        let user_version = space.with_versions(|v| v.timeline().present()).expect("checked") + pending;
        let mut head = VersionStamp { time_ns: self.time_ns, user_version }.encode().to_vec();
        let is_delete = matches!(op.body, Body::Delete);
        let (kind, record_kind, value) = match op.body {
            Body::Value { value, .. } | Body::Packed { value, .. } => (Kind::Value, RecordKind::Version, value),
            Body::Delete => (Kind::Tombstone, RecordKind::VersionTombstone, &[][..]),
            Body::Placed { ticket } => {
                let number = self.tickets.placed[&ticket].key.as_u64();
                let number = number.expect("large values of versions have numbers");
                head.extend_from_slice(&number.to_le_bytes());
                (Kind::Large(number), RecordKind::LargeVersion, &[][..])
            }
        };
        let (value_len, value_crc) = match op.body {
            Body::Value { value, crc32c } | Body::Packed { value, crc32c } => (value.len() as u32, crc32c),
            Body::Delete => (0, kaml_crc::crc32c(&[])),
            Body::Placed { ticket } => {
                let placed = &self.tickets.placed[&ticket].record;
                (placed.value_len, placed.value_crc)
            }
        };
        let version = Version {
            key: *op.key.key(),
            kind,
            value_len,
            value_crc,
            sequence: self.log.sequence,
            time_ns: self.time_ns,
            user_version,
            ordinal: 0,
        };
        let record = Record {
            namespace: op.namespace,
            key: *op.key.key(),
            kind: record_kind,
            value_len,
            value_crc,
            sequence: self.log.sequence,
            packed: false,
            form: Form::Long,
        };
        let staged = Staged::version(op.namespace, *op.key.key(), self.log.sequence);
        self.log.ring.stage(&RecordHeader::encode(&record), [&head, value, &[]], staged);
        let staged = StagedVersion::Record { sequence: self.log.sequence, record: version.record(value) };
        let versioned = self.versioned_mut(op.namespace);
        versioned.deletes += u64::from(is_delete);
        versioned.staged.push_back(staged);
    }

    /// Whether there is room for a command: what makes timelines longer has a budget, and what makes them shorter is taken as deletes are.
    fn admit_command(&self, namespace: u32, command: Command, growth: u64) -> Result<(), StageError> {
        if matches!(command, Command::Forget(_) | Command::ForgetThrough(_)) {
            return self.admit_data(Purpose::Forget, 0, false);
        }
        let max = self.timeline_bytes_max();
        let bytes = self.version_spaces().map(|(_, space)| space.timeline_bytes()).sum::<u64>() + growth;
        if bytes > max {
            return Err(Error::SnapshotsFull { namespace, bytes, max }.into());
        }
        let chunks = (growth * TIMELINE_COPIES).div_ceil(self.log.geometry.chunk_bytes.into());
        self.admit_data(Purpose::Timeline, chunks, false)
    }

    /// Bytes that the timelines of all namespaces may have together.
    pub(crate) fn timeline_bytes_max(&self) -> u64 {
        self.log.geometry.block_bytes() * u64::from(self.log.blocks.count()) / TIMELINES_OF_DEVICE / TIMELINE_COPIES
    }

    /// Whether a rollback would change nothing: no version was put since the snapshot ended, and none is about to be. False of what is not
    /// in memory.
    pub fn rollback_does_nothing(&self, namespace: u32, to: u32) -> bool {
        let Some((space, versioned)) = self.spaces.get(&namespace).and_then(|s| Some((s, s.versioned.as_ref()?)))
        else {
            return false;
        };
        let is_new = |versions: &Versions, end: u64| {
            let columns = versions.columns();
            let rows = 0..columns.parameters().rows;
            columns.oldest_buffered(end).is_some() || rows.into_iter().any(|row| columns.sealed_end(row) > end)
        };
        let nothing = |versions: &Versions| {
            versions.timeline().rollback_does_nothing_since(to).is_some_and(|end| !is_new(versions, end))
        };
        versioned.staged.is_empty() && space.with_versions(nothing).unwrap_or(false)
    }

    /// Stages a command on user versions, in its place among the Puts. Returns the frame that carries it and the user version
    /// that it finishes, or forgets.
    pub fn stage_version_command(&mut self, namespace: u32, command: Command) -> Result<(u64, u32), StageError> {
        self.writable()?;
        let space = self.known_space(namespace)?;
        space.layout.admit(namespace, Door::Versions)?;
        let check = |timeline: &Timeline| (timeline.check(command), timeline.present(), timeline.growth_of(command));
        let Some((checked, present, growth)) = space.with_versions(|v| check(v.timeline())) else {
            return Err(StageError::NeedIndex(namespace));
        };
        let versioned = space.versioned.as_ref().expect("admitted");
        let has_command = versioned.staged.iter().any(|staged| matches!(staged, StagedVersion::Command(..)));
        if has_command {
            return Err(StageError::Busy); // it may change what this one can do
        }
        checked.map_err(Error::Versions)?;
        self.admit_command(namespace, command, growth)?;
        self.admit_to_ring(RecordHeader::BYTES_MAX + VersionStamp::BYTES + RING_ALIGN, 1)?;
        if growth > 0 {
            self.space.pace.has_written(1); // while blocks are short, collection sets the pace of what takes journal, too
        }
        self.log.sequence += 1;
        let (kind, about) = command_code(command);
        let key = Key::from(u64::from(about));
        let record = Record {
            namespace,
            key,
            kind: RecordKind::VersionCommand,
            value_len: 0,
            value_crc: 0,
            sequence: self.log.sequence,
            packed: false,
            form: Form::Long,
        };
        let stamp = VersionStamp { time_ns: self.time_ns, user_version: kind }.encode();
        let staged = Staged::version(namespace, key, self.log.sequence);
        self.log.ring.stage(&RecordHeader::encode(&record), [&stamp, &[], &[]], staged);
        self.log.ring.end_put();
        let stamp = Stamp { sequence: self.log.sequence, time_ns: self.time_ns };
        let versioned = self.versioned_mut(namespace);
        versioned.staged.push_back(StagedVersion::Command(command, stamp));
        let finished = match command {
            Command::Forget(version) | Command::ForgetThrough(version) => version,
            Command::Snapshot | Command::RollBack(_) => present,
        };
        Ok((self.log.ring.staging_number(), finished))
    }

    pub(crate) fn unstage_version(&mut self, namespace: u32) {
        if let Some(versioned) = self.spaces.get_mut(&namespace).and_then(|space| space.versioned.as_mut()) {
            versioned.staged.pop_back();
        }
    }

    // --- committing -------------------------------------------------------------------------------------------------

    /// The commit point of a version is passed: it is in the page buffer from now on.
    pub(crate) fn commit_version(&mut self, namespace: u32) {
        let Some(space) = self.spaces.get_mut(&namespace) else { return };
        let versioned = space.versioned.as_mut().expect("a versioned namespace");
        match versioned.staged.pop_front().expect("staged with its record in the ring") {
            StagedVersion::Record { record, .. } => {
                let key = Version::key_of(&record);
                let is_full = |versions: &Versions| {
                    let row = versions.columns().row_of(&key);
                    (versions.columns().row_is_full(row).then_some(row), versions.columns().buffer_is_full())
                };
                let (row, buffer) = space.change_versions(|versions| {
                    versions.insert(&key, record);
                    is_full(versions)
                });
                let versioned = space.versioned.as_mut().expect("just seen");
                versioned.full_rows.extend(row);
                self.sealing.is_wanted |= row.is_some() || buffer;
            }
            StagedVersion::Command(command, stamp) => {
                let done = space.change_versions(|versions| versions.command(command, stamp));
                done.expect("checked when it was staged, and no other came between");
                space.dirty = true;
                self.log.table_is_exact = false;
                self.log.journal.append(&Change::Versions { namespace, command, stamp });
            }
        }
    }

    // --- which frames are needed ------------------------------------------------------------------------------------

    /// The oldest ring frame with a version that is neither in a segment the journal names nor kept; `u64::MAX` if none.
    pub(crate) fn versions_frame(&self) -> u64 {
        self.version_spaces().map(|(_, space)| self.versions_frame_of(space)).min().unwrap_or(u64::MAX)
    }

    pub(crate) fn versions_frame_of(&self, space: &Namespace) -> u64 {
        let versioned = space.versioned.as_ref().expect("a versioned namespace");
        let buffered = space.with_versions(|v| v.columns().oldest_buffered(versioned.kept_before)).flatten();
        let buffered = buffered.map(|sequence| self.log.ring.frame_of_version(sequence));
        versioned.fresh.iter().map(|fresh| fresh.frame).chain(buffered).min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::NamespaceOptions;
    use kaml_flash::{Completion, MemoryMedium};

    /// A Put that is durable, while nothing else continues.
    fn put(core: &mut Core, medium: &MemoryMedium, namespace: u32, condition: Condition) -> Result<(), StageError> {
        let value = [7; 3000];
        let body = Body::Value { value: &value, crc32c: kaml_crc::crc32c(&value) };
        let frame =
            core.stage(&[Op { namespace, key: Key::from(1).into(), body, condition, expires: Default::default() }])?;
        let (id, mut io) = core.begin_persist().expect("one at a time");
        let result = kaml_flash::Medium::execute(medium, &mut io);
        core.complete(Completion { id, io, result });
        assert!(core.committed() > frame);
        Ok(())
    }

    fn commit(core: &mut Core, medium: &MemoryMedium, namespace: u32, condition: Condition) -> Result<(), StageError> {
        put(core, medium, namespace, condition)?;
        core.drive_once(medium).expect("nothing fails");
        Ok(())
    }

    /// A device with a versioned namespace that needs a row sealed and has no block for it; and the blocks that it had.
    fn without_blocks() -> (Core, MemoryMedium, u32, Vec<u32>) {
        let medium = crate::small::formatted();
        let (mut core, _) = Core::open(&medium).unwrap();
        let id = core.create_namespace("versions", &VersionOptions::default().into()).unwrap();
        let durable = core.request_checkpoint();
        core.drive(&medium, |core| core.roots_done() >= durable).unwrap();
        while !core.sealing.is_wanted {
            put(&mut core, &medium, id, Condition::Always).unwrap();
        }
        let taken = crate::small::take_blocks(&mut core, &medium, 2);
        (0..10).for_each(|_| core.drive_once(&medium).unwrap());
        assert!(core.sealing.is_wanted && core.spaces[&id].versioned.as_ref().unwrap().sealed.is_some());
        (core, medium, id, taken)
    }

    /// Goal:   a merge that finds no block where none will come gets an error, and a row that waits for one to be sealed into is not in its way:
    ///         each would wait for the other.
    /// Method: such a row, and the first steps of a merge.
    #[test]
    fn merges_do_not_wait_for_blocks_that_never_come() {
        let (mut core, medium, id, _) = without_blocks();
        let row = core.spaces[&id].with_versions(|versions| versions.columns().row_of(&Key::from(1))).unwrap();
        let sealed = core.spaces[&id].with_versions(|versions| versions.columns().seal(row)).flatten().unwrap();
        let is_full = |answer: &StageError| matches!(answer, StageError::Refused(Error::Full { .. }));
        let placed = core.place_merged(id, &sealed, &segment_image(&sealed)).unwrap_err();
        assert!(is_full(&placed), "{placed:?}");
        let scope = core.begin_merge(id, row, false).unwrap();
        assert_eq!(scope.segments, 0, "{scope:?}");
        core.drive_once(&medium).unwrap();
    }

    /// Goal:   a namespace is kept in memory while one of its rows waits to be sealed, although nothing of it is needed in the ring.
    /// Method: such a row, all of which is kept; then there are blocks again.
    #[test]
    fn rows_that_wait_to_be_sealed_stay_in_memory() {
        let (mut core, medium, id, taken) = without_blocks();
        let settled = core.request_root(true);
        core.drive(&medium, |core| core.roots_done() >= settled).unwrap();
        assert_eq!(core.versions_frame(), u64::MAX, "all of it is kept");
        let left = core.unload_index(id);
        taken.into_iter().for_each(|block| core.log.blocks.close(block, 0));
        core.drive(&medium, Core::is_idle).unwrap();
        assert_eq!(left, Ok(false));
        assert_eq!(core.spaces[&id].with_versions(|versions| versions.columns().segment_count()), Some(1));
        let snapshot = core.request_checkpoint();
        core.drive(&medium, |core| core.roots_done() >= snapshot && core.is_idle()).unwrap();
        assert_eq!(core.unload_index(id), Ok(true));
    }

    /// Goal:   a key can be changed under a condition also if a segment of its row has versions from long ago and from now.
    /// Method: 2^33 changes of others between two versions that are sealed together.
    #[test]
    fn wide_segments_are_no_change() {
        let medium = crate::small::formatted();
        let (mut core, _) = Core::open(&medium).unwrap();
        let options = NamespaceOptions::from(VersionOptions::default());
        let id = core.create_namespace("versions", &options).unwrap();
        let durable = core.request_root(false);
        core.drive(&medium, |core| core.roots_done() >= durable).unwrap();
        commit(&mut core, &medium, id, Condition::Always).unwrap();
        core.log.sequence += 1 << 33;
        core.root.next_sequence = core.log.sequence;
        while core.spaces[&id].with_versions(|versions| versions.columns().segment_count()) == Some(0) {
            commit(&mut core, &medium, id, Condition::Always).unwrap();
        }
        let since = core.newest_committed(id);
        assert_eq!(commit(&mut core, &medium, id, Condition::UnchangedSince(since)), Ok(()));
        let refused = commit(&mut core, &medium, id, Condition::UnchangedSince(since));
        assert!(matches!(refused, Err(StageError::Refused(Error::Conflict { .. }))), "{refused:?}");
    }
}
