//! The change stream: what is committed, in its order.
//!
//! Lives here:       changes and changesets, the iterator over them.
//! Lives elsewhere:  positions (`position`), reading the ring (`read`, `kaml_device`), a device that follows another one (`kaml-cli`).
//! Implements:       docs/ARCHITECTURE.md "The change stream".

mod namespaces;
mod position;
mod read;

pub use namespaces::KnownNamespaces;
pub use position::Position;
pub(crate) use read::NamespaceList;
pub use read::{ChangesCursor, ChangesPage, ChangesPart};

use crate::device::Device;
use crate::error::Error;
use crate::sync::Instant;
use crate::{KeyBuf, NamespaceId, NamespaceInfo};
use std::collections::VecDeque;
use std::ops::Bound;
use std::time::{Duration, SystemTime};

/// Bytes of changes that a reader takes from the device at a time, unless one changeset has more.
const PAGE_BYTES: usize = 1 << 20;

/// What one commit changed, in order: all of it is durable, or none of it was ever shown.
///
/// The batches that several callers write at the same moment share a commit. A batch is always whole within one changeset.
///
/// # Examples
/// See [`Device::changes`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changeset {
    /// The position after it. [`Device::changes`] since this position continues with the next changeset.
    pub position: Position,
    /// The changes, in the order in which they took effect.
    pub changes: Vec<Change>,
}

impl Changeset {
    /// A changeset.
    pub fn new(position: Position, changes: Vec<Change>) -> Changeset {
        Changeset { position, changes }
    }
}

/// A change that was committed.
///
/// # Examples
/// See [`Device::changes`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A namespace exists, with this name and these attributes. The stream begins with one for each namespace, and has one when a namespace is
    /// created or its name or its attributes change.
    Namespace(NamespaceInfo),
    /// A namespace was deleted with everything in it.
    NamespaceDeleted {
        /// Its number.
        namespace: NamespaceId,
        /// Its name.
        name: String,
    },
    /// A record was stored, or in a namespace of blocks a unit, under its number.
    Put {
        /// Its namespace.
        namespace: NamespaceId,
        /// Its key.
        key: KeyBuf,
        /// Its value.
        value: Vec<u8>,
        /// When it expires. No change shows that it has expired.
        expires: Option<SystemTime>,
    },
    /// A key was deleted, whether it existed or not.
    Delete {
        /// Its namespace.
        namespace: NamespaceId,
        /// The key.
        key: KeyBuf,
    },
    /// The keys of a range were deleted.
    DeleteRange {
        /// Their namespace.
        namespace: NamespaceId,
        /// Where the range begins.
        lower: Bound<Vec<u8>>,
        /// Where it ends.
        upper: Bound<Vec<u8>>,
    },
    /// A version was stored.
    Version {
        /// Its namespace.
        namespace: NamespaceId,
        /// Its key.
        key: KeyBuf,
        /// Its value; nothing if the version states that the key is deleted.
        value: Option<Vec<u8>>,
        /// Its number in the order of all versions, as [`Version`](crate::Version) has it.
        sequence: u64,
        /// When it was put: nanoseconds since 1970.
        time_ns: u64,
        /// The user version that it belongs to.
        user_version: u32,
    },
    /// A command on the user versions of a namespace.
    VersionCommand {
        /// The namespace.
        namespace: NamespaceId,
        /// Its number in the order of all versions.
        sequence: u64,
        /// When it was executed: nanoseconds since 1970.
        time_ns: u64,
        /// What it does.
        command: VersionCommand,
    },
}

/// A command on the user versions of a namespace.
pub use kaml_versions::Command as VersionCommand;

/// The committed changes of a device, in their order; see [`Device::changes`].
///
/// As an iterator it waits for the next changeset, however long that takes. [`Changes::next_within`] waits at most so long.
///
/// # Examples
/// See [`Device::changes`].
pub struct Changes {
    device: Device,
    known: KnownNamespaces,
    queue: VecDeque<Changeset>,
    /// After what was read of the device.
    read: ChangesCursor,
    /// Changes of a commit of which more follow.
    partial: Vec<Change>,
    /// After what the caller has taken.
    position: Position,
    failed: bool,
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Changes").field("position", &self.position).finish_non_exhaustive()
    }
}

impl Device {
    /// The position after everything that is durable now. [`Device::changes`] since it yields what is committed later.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Stopped`].
    pub fn position(&self) -> Result<Position, Error> {
        let shared = self.shared();
        Ok(Position::new(shared.medium.identity(), shared.lock().ring_state().committed))
    }

    /// The changes that were committed after a position, in the order in which they were committed, each of them once; without a position,
    /// what is committed from now on. The first changeset describes the namespaces.
    ///
    /// Only what is durable is shown. A crash of the device loses nothing that was shown. With
    /// [`Durability::Process`](crate::Durability::Process) that holds for crashes of the process, and a failure of the machine can lose
    /// changes that were shown; the position after them is then refused as [`Error::FellBehind`]. A commit that a store delays is
    /// shown when it is durable.
    ///
    /// The device keeps as many changes as its commit ring has bytes, as long as it lives ([`CreateOptions::ring_bytes`](crate::CreateOptions)
    /// sets them). Readers cost Puts nothing, and a slow reader holds none up: it falls behind.
    ///
    /// # Errors
    /// - [`Error::BadPosition`] if the position is of another device.
    /// - [`Error::FellBehind`], also later, if the changes after it are not on the device any more.
    /// - [`Error::Closed`].
    ///
    /// # Examples
    /// ```
    /// use kaml::{Change, CreateOptions, Device, NamespaceOptions};
    /// use std::time::Duration;
    ///
    /// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
    /// let users = device.ensure_namespace("users", &NamespaceOptions::default())?;
    /// let mut changes = device.changes(None)?;
    /// users.put("ada", b"1")?;
    /// let first = changes.next_within(Duration::from_secs(1))?.expect("the namespaces");
    /// assert!(matches!(&first.changes[..], [Change::Namespace(info)] if info.name == "users"));
    /// let second = changes.next_within(Duration::from_secs(1))?.expect("the put");
    /// assert!(matches!(&second.changes[..], [Change::Put { value, .. }] if value == b"1"));
    ///
    /// // A reader that stored the position of what it has seen continues after it, also when the device was opened again.
    /// users.delete("ada")?;
    /// let mut changes = device.changes(Some(&second.position))?;
    /// changes.next().expect("it waits")?; // the namespaces
    /// let third = changes.next().expect("it waits")?;
    /// assert!(matches!(&third.changes[..], [Change::Delete { .. }]));
    /// # Ok::<(), kaml::Error>(())
    /// ```
    pub fn changes(&self, since: Option<&Position>) -> Result<Changes, Error> {
        let position = match since {
            Some(position) => *position,
            None => self.position()?,
        };
        // What is wrong with the position is reported now.
        self.changes_page(&position.into(), 0)?;
        let (known, queue) = (KnownNamespaces::default(), VecDeque::new());
        let (read, partial) = (position.into(), Vec::new());
        Ok(Changes { device: self.clone(), known, queue, read, partial, position, failed: false })
    }
}

impl Changes {
    /// The position after the last changeset that was returned. Store it to continue there.
    pub fn resume_position(&self) -> Position {
        self.position
    }

    /// Bytes of the commit ring that were written since [`Changes::resume_position`].
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn lag_bytes(&self) -> Result<u64, Error> {
        Ok(self.device.position()?.ring_bytes().saturating_sub(self.position.ring_bytes()))
    }

    /// The next changeset; nothing if none is committed within so long.
    ///
    /// # Errors
    /// As [`Device::changes`]; [`Error::Stopped`] if the device has stopped and everything before that was returned;
    /// [`Error::ReadFailed`] if the system fails to read. The iterator ends then.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Changeset>, Error> {
        let begin = Instant::now();
        loop {
            if let Some(next) = self.queue.pop_front() {
                self.position = next.position;
                return Ok(Some(next));
            }
            let page = self.device.changes_page(&self.read, PAGE_BYTES)?;
            let generation = page.generation;
            if self.known.is_older_than(generation) {
                let changes = self.known.update(generation, &page.namespaces);
                if !changes.is_empty() {
                    self.queue.push_back(Changeset::new(self.read.position, changes));
                }
            }
            self.read = page.next;
            for part in page.parts {
                let is_last = part.is_last();
                self.partial.extend(part.changes);
                if is_last && !self.partial.is_empty() {
                    let changes = std::mem::take(&mut self.partial);
                    self.queue.push_back(Changeset::new(part.next.position, changes));
                }
            }
            if !self.queue.is_empty() || self.read.skip > 0 {
                continue;
            }
            let Some(left) = timeout.checked_sub(begin.elapsed()) else { return Ok(None) };
            self.device.wait_for_changes(&self.read.position, generation, left)?;
        }
    }
}

impl Iterator for Changes {
    type Item = Result<Changeset, Error>;

    /// Waits for the next changeset. There is none after an error.
    fn next(&mut self) -> Option<Result<Changeset, Error>> {
        while !self.failed {
            match self.next_within(Duration::from_secs(3600)) {
                Ok(Some(next)) => return Some(Ok(next)),
                Ok(None) => {}
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
