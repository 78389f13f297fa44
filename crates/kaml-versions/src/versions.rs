//! A versioned namespace: what is put, deleted, finished as a user version, rolled back.
//!
//! Lives here:       changes, in the order of their sequences.
//! Lives elsewhere:  reading (`reads`), what a snapshot sees (`timeline`), finding (`columns`), releasing space (`merge`).
//! Implements:       paper:Muninn 4.4; docs/versioned.md "Snapshots and rolling back".

use crate::columns::Columns;
use crate::error::Error;
use crate::parameters::Parameters;
use crate::record::{Kind, Version};
use crate::timeline::{Command, Timeline};
use kaml_index::Key;

/// When a command happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Its place in the commit order of the device; larger than any before.
    pub sequence: u64,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
}

/// A versioned namespace.
#[derive(Debug)]
pub struct Versions {
    pub(crate) columns: Columns,
    pub(crate) timeline: Timeline,
}

impl Versions {
    /// An empty namespace.
    pub fn new(parameters: Parameters) -> Result<Versions, Error> {
        Ok(Versions { columns: Columns::new(parameters)?, timeline: Timeline::default() })
    }

    /// A namespace opened again: its timeline, and its segments ([`Columns::restore`]). [`Versions::insert`] brings back
    /// what was in the buffer.
    pub fn restore(columns: Columns, timeline: Timeline) -> Versions {
        Versions { columns, timeline }
    }

    /// Where versions are: for sealing and installing.
    pub fn columns_mut(&mut self) -> &mut Columns {
        &mut self.columns
    }

    /// Where versions are.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Its user versions.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Replaces its user versions by those of a backup.
    pub fn restore_timeline(&mut self, timeline: Timeline) {
        self.timeline = timeline;
    }

    /// Stores a value.
    pub fn put(&mut self, key: Key, value: &[u8], stamp: Stamp) -> Result<(), Error> {
        let version = self.version(key, Kind::Value, value, stamp);
        self.columns.insert(&version, value)
    }

    /// Deletes a key: its newest version records that.
    pub fn delete(&mut self, key: Key, stamp: Stamp) -> Result<(), Error> {
        let version = self.version(key, Kind::Tombstone, &[], stamp);
        self.columns.insert(&version, &[])
    }

    fn version(&self, key: Key, kind: Kind, value: &[u8], stamp: Stamp) -> Version {
        Version {
            key,
            kind,
            value_len: value.len() as u32,
            value_crc: kaml_crc::crc32c(value),
            sequence: stamp.sequence,
            time_ns: stamp.time_ns,
            user_version: self.timeline.present(),
            ordinal: 0,
        }
    }

    /// Puts a version into the buffer, the newest of its key: its bytes as [`Version::record`] makes them.
    pub fn insert(&mut self, key: &Key, record: Box<[u8]>) {
        self.columns.insert_record(key, record);
    }

    /// Executes a command on user versions; all versions put so far have smaller sequences, all later ones larger. Returns
    /// the user version that it finished, or forgot. One that was executed already (when a log is replayed) changes
    /// nothing.
    pub fn command(&mut self, command: Command, stamp: Stamp) -> Result<u32, Error> {
        self.timeline.carry_out(command, stamp)
    }
}
