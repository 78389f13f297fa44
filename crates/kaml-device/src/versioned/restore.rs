//! Versions of a backup, put back as they were: with their sequences, times and user versions.
//!
//! Lives here:       taking over the order of the device that they come from, inserting them, their user versions.
//! Lives elsewhere:  the order in which they come (`kaml::backup`), sealing them (`segments`), keeping them (`keep`).
//! Implements:       docs/ARCHITECTURE.md "Backups".
//!
//! They do not go through the ring: a restore that is interrupted begins again. After the last one a settled root makes them durable, in
//! segments and in the kept stream.

use crate::command::StageError;
use crate::core::Core;
use crate::core::code;
use crate::error::Error;
use crate::first_root::FIRST_SEQUENCE_MAX;
use crate::format::record::{Record, RecordHeader};
use crate::layout::Door;
use crate::space::Purpose;
use kaml_index::{FullKey, Slot};
use kaml_versions::{Kind, Timeline, Version};

impl Core {
    /// From now on records have sequences after this one, so versions up to it can be restored.
    ///
    /// # Errors
    /// The device takes no changes; no device can have such a sequence.
    pub fn adopt_sequence(&mut self, sequence: u64) -> Result<(), Error> {
        self.writable()?;
        if sequence > FIRST_SEQUENCE_MAX {
            return Err(Error::MetadataDamaged(format!("a backup that counts {sequence} records")));
        }
        if sequence > self.log.sequence {
            self.log.sequence = sequence;
            self.root.next_sequence = sequence;
        }
        Ok(())
    }

    /// Inserts a version with its own sequence, which is larger than those of its row, and not larger than the adopted one.
    ///
    /// # Errors
    /// - [`Error::KeepsNoVersions`], [`Error::Key`], [`Error::ValueTooLarge`] if the namespace takes no such version.
    /// - [`StageError::NeedIndex`], [`StageError::Busy`]; refusals for want of room.
    pub fn restore_version(&mut self, namespace: u32, version: &Version, value: &[u8]) -> Result<(), StageError> {
        self.writable()?;
        let space = self.known_space(namespace)?;
        space.layout.admit(namespace, Door::Versions)?;
        let Some(parameters) = space.layout.versions() else { return Err(Error::KeepsNoVersions(namespace).into()) };
        space.layout.check_full_key(&FullKey::from(version.key)).map_err(Error::Key)?;
        let max = self.version_bytes_max(parameters);
        if value.len() as u64 > max {
            let bytes = value.len() as u64;
            return Err(Error::ValueTooLarge { bytes, max, namespace: Some(namespace) }.into());
        }
        if matches!(version.kind, Kind::Extent(_) | Kind::Large(_)) || version.sequence > self.log.sequence {
            return Err(Error::MetadataDamaged("a version of a backup".to_owned()).into());
        }
        if !space.is_loaded() {
            return Err(StageError::NeedIndex(namespace));
        }
        let is_overfull = self.buffer_is_overfull(namespace);
        let chunks = u64::from(self.log.chunks_of(RecordHeader::BYTES_MAX + value.len()));
        self.admit_data(Purpose::Put, chunks, is_overfull)?;
        self.begin_restore(namespace);
        self.insert_restored(namespace, version, version.record(value));
        Ok(())
    }

    /// As [`Core::restore_version`], of a version whose value is placed ([`Core::place`]) and on flash.
    ///
    /// # Errors
    /// As [`Core::restore_version`].
    pub fn restore_large_version(&mut self, namespace: u32, version: &Version, ticket: u64) -> Result<(), StageError> {
        self.writable()?;
        let space = self.user_space(namespace)?;
        space.layout.admit(namespace, Door::Versions)?;
        if !matches!(version.kind, Kind::Value) || version.sequence > self.log.sequence {
            return Err(Error::MetadataDamaged("a version of a backup".to_owned()).into());
        }
        if !space.is_loaded() {
            return Err(StageError::NeedIndex(namespace));
        }
        if let Some(values) = self.values_without_index(space) {
            return Err(StageError::NeedIndex(values));
        }
        let is_overfull = self.buffer_is_overfull(namespace);
        self.admit_data(Purpose::Put, 1, is_overfull)?;
        self.begin_restore(namespace);
        let placed = self.tickets.placed.remove(&ticket).expect("tickets come from `place`");
        assert!(placed.done && placed.version_of == Some((namespace, version.key)));
        let to = Slot { at: placed.at.0, len: code(placed.chunks) };
        self.commit_value(placed.namespace, placed.key, to);
        let number = placed.key.as_u64().expect("large values of versions have numbers");
        let Record { value_len, value_crc, .. } = placed.record;
        let version = Version { kind: Kind::Large(number), value_len, value_crc, ..*version };
        self.insert_restored(namespace, &version, version.record(&[]));
        Ok(())
    }

    fn insert_restored(&mut self, namespace: u32, version: &Version, record: Box<[u8]>) {
        let Some(space) = self.spaces.get_mut(&namespace) else { return };
        space.shared.note_use();
        let (row, is_full) = space.change_versions(|versions| {
            versions.insert(&version.key, record);
            let columns = versions.columns();
            let row = columns.row_of(&version.key);
            (columns.row_is_full(row).then_some(row), columns.buffer_is_full())
        });
        self.sealing.is_wanted |= row.is_some() || is_full;
        self.versioned_mut(namespace).full_rows.extend(row);
    }

    /// What is inserted from now on is neither in the ring nor kept, and is not kept before the last one is inserted.
    fn begin_restore(&mut self, namespace: u32) {
        let versioned = self.versioned_mut(namespace);
        if !versioned.is_restoring {
            (versioned.is_restoring, versioned.kept_before) = (true, 0);
            // An earlier request has been served: what it named is kept already.
            self.sealing.keep_until = None;
        }
    }

    /// The last version is inserted, or a restore is given up: versions are kept again as roots need it.
    pub fn end_restore(&mut self) {
        for space in self.spaces.values_mut() {
            if let Some(versioned) = &mut space.versioned {
                versioned.is_restoring = false;
            }
        }
    }

    /// Replaces the user versions of a namespace.
    ///
    /// # Errors
    /// - [`Error::KeepsNoVersions`], [`Error::UnknownNamespace`]; [`StageError::NeedIndex`].
    /// - [`Error::SnapshotsFull`] if the device has no room for so many snapshots.
    pub fn restore_timeline(&mut self, namespace: u32, timeline: Timeline) -> Result<(), StageError> {
        self.writable()?;
        self.known_space(namespace)?.layout.admit(namespace, Door::Versions)?;
        if !self.spaces[&namespace].is_loaded() {
            return Err(StageError::NeedIndex(namespace));
        }
        if timeline.changed() > self.log.sequence {
            return Err(Error::MetadataDamaged("the user versions of a backup".to_owned()).into());
        }
        let others = self.version_spaces().filter(|(id, _)| *id != namespace).map(|(_, space)| space.timeline_bytes());
        let bytes = others.sum::<u64>() + timeline.encoded_bytes();
        let max = self.timeline_bytes_max();
        if bytes > max {
            return Err(Error::SnapshotsFull { namespace, bytes, max }.into());
        }
        let Some(space) = self.spaces.get_mut(&namespace) else {
            return Err(Error::UnknownNamespace(namespace).into());
        };
        space.change_versions(|versions| versions.restore_timeline(timeline));
        space.dirty = true;
        self.log.table_is_exact = false;
        Ok(())
    }
}
