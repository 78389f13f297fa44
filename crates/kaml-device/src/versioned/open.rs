//! Opening a versioned namespace after a crash: what the journal and the ring have beyond its directory.
//!
//! Lives here:       repeating what the journal and the ring contain.
//! Lives elsewhere:  the order of the steps (`recovery`), reading directory, tables and kept versions (`load`).
//! Implements:       docs/versioned.md "In the device"; paper:Muninn 4.5.
//!
//! Of each key, the segments have all versions up to some sequence. So a version found outside of them is missing exactly
//! if it is newer than the key's newest in a segment, whether it is found once, twice, or was sealed long ago.

use crate::core::Core;
use crate::error::Error;
use crate::format::journal::Change;
use crate::format::record::{LARGE_NUMBER_BYTES, Record, RecordKind};
use crate::format::version::{Directory, VersionStamp, command_of, stamp};
use crate::recovery::PLACE_TRIES_MAX;
use crate::versioned::load::Segments;
use kaml_flash::Medium;
use kaml_versions::{Command, Kind, Stamp, Version};

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

    /// The content of a whole record of the ring.
    pub(crate) fn of_ring(record: &Record, body: &[u8]) -> Option<Again> {
        let (head, mut value) = body.split_at_checked(VersionStamp::BYTES)?;
        let VersionStamp { time_ns, user_version } = VersionStamp::decode(head)?;
        let kind = match record.kind {
            RecordKind::Version => Kind::Value,
            RecordKind::VersionTombstone => Kind::Tombstone,
            RecordKind::LargeVersion => {
                let number = Kind::Large(u64::from_le_bytes(*value.first_chunk::<LARGE_NUMBER_BYTES>()?));
                value = &[];
                number
            }
            RecordKind::VersionCommand => {
                let about = record.key.as_u64().and_then(|about| u32::try_from(about).ok())?;
                return Some(Again::Command(command_of(user_version, about)?, stamp(record.sequence, time_ns)));
            }
            RecordKind::Value
            | RecordKind::Tombstone
            | RecordKind::Mapping
            | RecordKind::RangeTombstone
            | RecordKind::Expiring
            | RecordKind::ExpiringMapping => return None,
        };
        let (key, value_len, value_crc, sequence) = (record.key, record.value_len, record.value_crc, record.sequence);
        let version = Version { key, kind, value_len, value_crc, sequence, time_ns, user_version, ordinal: 0 };
        Some(Again::Version(version, version.record(value)))
    }
}

impl Core {
    /// The directory as of the namespace's snapshot.
    pub(crate) fn load_directory(&mut self, medium: &dyn Medium, id: u32) -> Result<(), Error> {
        self.versioned_mut(id).directory = Some(self.versions_load(id).read_directory(medium)?);
        Ok(())
    }

    /// Reads the segments that the directory names, and kept versions. These go into the page buffer at once: if what they are read
    /// from fails, they are written again from there.
    pub(crate) fn read_versions(&mut self, medium: &dyn Medium, id: u32) -> Result<(), Error> {
        let directory = self.versioned_mut(id).directory.take().expect("loaded before");
        let loaded = self.versions_load(id).read(medium, directory, self.salvage.as_mut())?;
        self.install_versions(loaded);
        Ok(())
    }

    /// A journal entry about the segments or user versions of a namespace.
    pub(crate) fn replay_versions(&mut self, entry: u64, change: &Change) {
        let namespace = match change {
            Change::SegmentIn { namespace, .. }
            | Change::SegmentsOut { namespace, .. }
            | Change::Versions { namespace, .. } => *namespace,
            Change::Moved { .. }
            | Change::Deleted { .. }
            | Change::RangeDeleted { .. }
            | Change::KeyBytes { .. }
            | Change::Expires { .. }
            | Change::Expired { .. }
            | Change::Block { .. } => return,
        };
        let Some(space) = self.spaces.get_mut(&namespace).filter(|space| entry >= space.snapshot_entry) else { return };
        let Some(directory) = space.versioned.as_mut().and_then(|v| v.directory.as_mut()) else { return };
        space.dirty = true;
        if !directory.replay(change) {
            tracing::warn!(?change, "a journal entry that fits no segment is ignored");
        }
    }

    /// Puts versions into the buffer that are missing, in the order of their sequences, and executes commands again.
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
                    self.log.journal.append(&Change::Versions { namespace: id, command, stamp });
                }
                Again::Version(version, record) if self.is_missing(medium, id, &version)? => {
                    self.spaces[&id].change_versions(|versions| versions.insert(&version.key, record));
                    self.seal_overfull(medium, id)?;
                }
                Again::Version(..) => {}
            }
        }
        Ok(())
    }

    /// Whether a version is in no segment and in no buffer.
    fn is_missing(&mut self, medium: &dyn Medium, id: u32, version: &Version) -> Result<bool, Error> {
        let mut salvage = self.salvage.take();
        let missing = {
            let guard = self.spaces[&id].shared.versions();
            let versions = guard.as_ref().expect("loaded before");
            Segments { versions, core: Some(self), medium, namespace: id }.lack(version, salvage.as_mut())
        };
        self.salvage = salvage;
        missing
    }

    /// While the ring is replayed the buffer may take more than it should: more of it had been sealed before the crash.
    fn seal_overfull(&mut self, medium: &dyn Medium, id: u32) -> Result<(), Error> {
        for _ in 0..PLACE_TRIES_MAX {
            if !self.buffer_is_overfull(id) {
                return Ok(());
            }
            self.sealing.is_wanted = true;
            self.drive_once(medium)?;
        }
        Err(self.full_now())
    }
}

impl Directory {
    /// Makes a change; false if what it changes does not exist.
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
            Change::Moved { .. }
            | Change::Deleted { .. }
            | Change::RangeDeleted { .. }
            | Change::KeyBytes { .. }
            | Change::Expires { .. }
            | Change::Expired { .. }
            | Change::Block { .. } => false,
        }
    }
}
