//! Reading committed changes from the ring of a device.
//!
//! Lives here:       pages of changes, large values, waiting for the next commit.
//! Lives elsewhere:  frames and their records (`kaml_device`), the iterator (`mod`).

use super::{Change, Position};
use crate::device::Device;
use crate::driver::Shared;
use crate::error::Error;
use crate::sync::{Instant, Mutex};
use crate::{KeyBuf, NamespaceId, NamespaceInfo};
use kaml_device::{Core, PlacedChange, PlacedValue, RingChange, RingReadError, VersionValue, read_placed};
use kaml_flash::MediumError;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// A large value that does not match its checksum is read this often.
const READS_MAX: u32 = 4;
/// What a change counts for in a page, besides its key and its value.
const CHANGE_BYTES: usize = 64;

/// The namespaces as of the last root, listed once for each root.
#[derive(Default)]
pub(crate) struct NamespaceList(Mutex<Option<(u64, Arc<Vec<NamespaceInfo>>)>>);

impl NamespaceList {
    fn at(&self, core: &Core) -> (u64, Arc<Vec<NamespaceInfo>>) {
        let generation = core.roots_done();
        let mut list = self.0.lock().expect("no panics under this lock");
        if let Some((of, infos)) = list.as_ref().filter(|(of, _)| *of == generation) {
            return (*of, infos.clone());
        }
        let infos = Arc::new(core.readable_namespaces());
        *list = Some((generation, infos.clone()));
        (generation, infos)
    }
}

/// Where a reader of pages is: after a position, and after so many changes of the next commit.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangesCursor {
    /// After all of this.
    pub position: Position,
    /// After so many changes of the next commit, those that the reader cannot see included.
    pub skip: u32,
}

impl From<Position> for ChangesCursor {
    fn from(position: Position) -> ChangesCursor {
        ChangesCursor { position, skip: 0 }
    }
}

/// Changes of one commit, or some of them.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesPart {
    /// After it: the position after the commit if these are its last changes.
    pub next: ChangesCursor,
    /// The changes that the reader can see.
    pub changes: Vec<Change>,
}

impl ChangesPart {
    /// Whether the commit has no more changes.
    pub fn is_last(&self) -> bool {
        self.next.skip == 0
    }
}

/// Some changes after a position, for a reader that keeps its place itself, such as one on the network.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct ChangesPage {
    /// The changes, in their order. Commits without a change that the reader could see are left out.
    pub parts: Vec<ChangesPart>,
    /// After what was read: where the next page begins.
    pub next: ChangesCursor,
    /// After the last commit of the device.
    pub newest: Position,
    /// A number that is another one after namespaces have changed.
    pub generation: u64,
    /// The namespaces that existed when the page was read.
    pub namespaces: Arc<Vec<NamespaceInfo>>,
}

impl Device {
    /// The changes after a position until they have so many bytes; at least one, if there is one and that is not 0. A commit with more of them is
    /// divided. Does not wait.
    ///
    /// # Errors
    /// As [`Device::changes`] and [`Changes::next_within`](super::Changes::next_within).
    #[doc(hidden)]
    pub fn changes_page(&self, after: &ChangesCursor, bytes: usize) -> Result<ChangesPage, Error> {
        let shared = self.shared();
        let device = shared.medium.identity();
        if after.position.device() != device {
            let why = "is of another device; give one of this device, or read all records again";
            return Err(Error::BadPosition { why: format!("position {} {why}", after.position) });
        }
        let (state, mut reader, (generation, namespaces), stopped) = {
            let core = shared.lock();
            let reader = core.ring_reader(after.position.ring());
            (core.ring_state(), reader, shared.namespaces_of_changes.at(&core), core.stopped())
        };
        let known: BTreeSet<NamespaceId> = namespaces.iter().map(|info| info.id).collect();
        let (mut parts, mut next, mut size) = (Vec::new(), *after, 0);
        // A position that cannot be read from is reported even if no bytes are requested.
        'commits: while size < bytes || parts.is_empty() {
            let frame = reader.next(&*shared.medium, &state).map_err(error_of)?;
            let Some(frame) = frame.filter(|_| bytes > 0) else { break };
            let (first, mut changes) = (std::mem::take(&mut next.skip), Vec::new());
            for (number, change) in (0..).zip(frame).skip(first as usize) {
                let Some(change) = shared.change_of(change, &known)? else { continue };
                let more = CHANGE_BYTES + change.bytes();
                if size + more > bytes && size > 0 {
                    next.skip = number;
                    if !changes.is_empty() {
                        parts.push(ChangesPart { next, changes });
                    }
                    break 'commits;
                }
                size += more;
                changes.push(change);
            }
            next.position = Position::new(device, reader.position());
            if !changes.is_empty() || first > 0 {
                parts.push(ChangesPart { next, changes });
            }
        }
        if let Some(why) = stopped.filter(|_| parts.is_empty() && next.position.ring_bytes() == state.committed.lsn) {
            return Err(why.into());
        }
        Ok(ChangesPage { parts, next, newest: Position::new(device, state.committed), generation, namespaces })
    }

    /// Returns when something is committed after a position, or namespaces may have changed, or after so long.
    ///
    /// # Errors
    /// The device has stopped.
    #[doc(hidden)]
    pub fn wait_for_changes(&self, after: &Position, generation: u64, timeout: Duration) -> Result<(), Error> {
        let (shared, begin) = (self.shared(), Instant::now());
        let mut core = shared.lock();
        loop {
            let is_due = core.ring_state().committed.lsn != after.ring_bytes() || core.roots_done() != generation;
            if is_due || begin.elapsed() >= timeout {
                return Ok(());
            }
            if let Some(why) = core.stopped() {
                return Err(why.into());
            }
            core = shared.wait_progress(core);
        }
    }
}

impl Change {
    /// Bytes of its keys and values.
    fn bytes(&self) -> usize {
        let bound = |bound: &Bound<Vec<u8>>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.len(),
            Bound::Unbounded => 0,
        };
        match self {
            Change::Put { key, value, .. } => key.as_bytes().len() + value.len(),
            Change::Delete { key, .. } => key.as_bytes().len(),
            Change::DeleteRange { lower, upper, .. } => bound(lower) + bound(upper),
            Change::Version { key, value, .. } => key.as_bytes().len() + value.as_ref().map_or(0, Vec::len),
            Change::Namespace(_) | Change::NamespaceDeleted { .. } | Change::VersionCommand { .. } => 0,
        }
    }
}

impl Shared {
    /// A change as callers see it; nothing if its namespace is hidden or was deleted meanwhile.
    fn change_of(&self, change: RingChange, known: &BTreeSet<NamespaceId>) -> Result<Option<Change>, Error> {
        let is_known = |namespace: &NamespaceId| known.contains(namespace);
        let time = |ms: u64| (ms != 0).then(|| UNIX_EPOCH + Duration::from_millis(ms));
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        Ok(Some(match change {
            RingChange::Put { namespace, key, value, expires } if is_known(&namespace) => {
                Change::Put { namespace, key, value, expires: time(expires) }
            }
            RingChange::Placed(placed) if is_known(&placed.namespace()) => {
                let PlacedValue { key, value, expires } = self.placed_value(&placed)?;
                Change::Put { namespace: placed.namespace(), key, value, expires: time(expires) }
            }
            RingChange::Delete { namespace, key } if is_known(&namespace) => Change::Delete { namespace, key },
            RingChange::DeleteRange { namespace, range } if is_known(&namespace) => {
                let (lower, upper) = range.bounds();
                Change::DeleteRange { namespace, lower: owned(lower), upper: owned(upper) }
            }
            RingChange::Version { namespace, key, at, value } if is_known(&namespace) => {
                let value = match value {
                    VersionValue::Deleted => None,
                    VersionValue::Bytes(bytes) => Some(bytes),
                    VersionValue::Placed(placed) => Some(self.placed_value(&placed)?.value),
                };
                let (sequence, time_ns, user_version) = (at.sequence, at.time_ns, at.user_version);
                Change::Version { namespace, key, value, sequence, time_ns, user_version }
            }
            RingChange::VersionCommand { namespace, at, command } if is_known(&namespace) => {
                Change::VersionCommand { namespace, sequence: at.sequence, time_ns: at.time_ns, command }
            }
            RingChange::DeleteOfDigest => return Err(Error::FellBehind),
            _ => return Ok(None),
        }))
    }

    /// A large value: from where it was when it was committed, or from where it is now if it has moved.
    fn placed_value(&self, placed: &PlacedChange) -> Result<PlacedValue, Error> {
        for _ in 0..READS_MAX {
            match read_placed(&*self.medium, placed) {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => {}
                // The device has become smaller.
                Err(MediumError::BadRange { .. }) => break,
                Err(error) => return Err(kaml_device::Error::Medium(error).into()),
            }
        }
        let key = *placed.key();
        if !key.is_digest() {
            let (key, mut value) = (KeyBuf::from(key), Vec::new());
            let full = self.key((&key).into())?;
            if self.get(placed.namespace(), &full, &mut value)? {
                let expires = self.load_index(self.lock(), placed.namespace())?.expiry_of(placed.namespace(), &full);
                let expires = expires.unwrap_or(0);
                if placed.is_value(&key, &value, expires) {
                    return Ok(PlacedValue { key, value, expires });
                }
            }
        }
        Err(Error::FellBehind)
    }
}

fn error_of(error: RingReadError) -> Error {
    match error {
        RingReadError::Gone | RingReadError::Unknown => Error::FellBehind,
        RingReadError::Medium(error) => kaml_device::Error::Medium(error).into(),
    }
}
