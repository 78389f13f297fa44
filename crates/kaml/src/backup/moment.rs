//! The moment of a backup: what everything in it is as of.
//!
//! Lives here:       opening and closing it, reading a record as of it.
//! Lives elsewhere:  what the firmware keeps for it (`kaml_device`), the order of a backup (`write`).

use crate::NamespaceId;
use crate::driver::Shared;
use crate::error::Error;
use crate::merging::Turn;
use crate::queue::finish_ring_writes;
use crate::sync::Instant;
use kaml_device::{
    BackupMark, BackupTicket, Buffered, FindError, Found, FullKey, KeyBuf, RecordsAt, SnapshotTicket, key_of_stored,
};
use std::time::Duration;

/// How long a backup waits for what was in progress when it began. If that takes longer, the next incremental backup has everything.
const RESOLVED_WITHIN: Duration = Duration::from_secs(5);

/// A moment; it is over when this is dropped.
pub(super) struct Moment<'a> {
    pub(super) shared: &'a Shared,
    pub(super) ticket: BackupTicket,
    pub(super) mark: BackupMark,
    /// Nobody merges versions while this exists.
    pub(super) merges: Option<Turn<'a>>,
    /// Nothing after it is over.
    snapshot: Option<SnapshotTicket>,
}

impl Drop for Moment<'_> {
    fn drop(&mut self) {
        let Some(snapshot) = self.snapshot.take() else { return };
        let mut core = self.shared.lock();
        let had_background = core.has_background();
        core.close_backup(snapshot, &self.ticket.watch);
        let wake = core.has_background() && !had_background;
        drop(core);
        if wake {
            self.shared.wake_background();
        }
    }
}

impl<'a> Moment<'a> {
    /// Now, after merges that are in progress, unless nobody needs it any more by then.
    ///
    /// # Errors
    /// The device is closed, has stopped, or a versioned namespace cannot be loaded; [`Error::Cancelled`] if nobody needs it.
    pub(super) fn now(shared: &'a Shared, is_over: &dyn Fn() -> bool) -> Result<Moment<'a>, Error> {
        finish_ring_writes(shared);
        // A merge would drop versions that the moment still had.
        let keeps_versions = shared.lock().wants_time();
        let merges = match keeps_versions {
            true => Some(shared.merge_in_turn(|| !is_over()).ok_or(Error::Cancelled)?),
            false => None,
        };
        let mut core = shared.lock();
        while let Some(id) = core.due_without_index() {
            core = shared.load_index(core, id)?;
        }
        let (pending, begin) = (core.pending_mark(), Instant::now());
        let mark = loop {
            match core.is_resolved(&pending) {
                Some(mark) => break mark,
                None if begin.elapsed() > RESOLVED_WITHIN || core.stopped().is_some() => break BackupMark::default(),
                None => core = shared.make_room(core),
            }
        };
        loop {
            match core.open_backup()? {
                Ok((ticket, snapshot)) => {
                    return Ok(Moment { shared, ticket, mark, merges, snapshot: Some(snapshot) });
                }
                Err(unloaded) => core = shared.load_index(core, unloaded)?,
            }
        }
    }

    /// A namespace of records or blocks as it was.
    pub(super) fn records(&self, namespace: NamespaceId) -> Result<RecordsAt<'_>, Error> {
        let snapshot = self.snapshot.as_ref().ok_or(Error::Closed)?;
        self.shared.reader.backed_up(snapshot, namespace).map_err(|error| self.gone(namespace, error))
    }

    /// A namespace that was deleted since is named as it was.
    fn gone(&self, namespace: NamespaceId, error: kaml_device::Error) -> Error {
        let info = self.ticket.namespaces.iter().map(|(info, _)| info).find(|info| info.id == namespace);
        match (error, info) {
            (kaml_device::Error::UnknownNamespace(_), Some(info)) => {
                Error::DeletedDuringBackup { namespace: info.name.clone() }
            }
            (error, _) => self.shared.refused(error),
        }
    }

    /// Refuses to end a backup of namespaces some of which were deleted meanwhile: what they had is not all in it.
    pub(super) fn check_namespaces(&self) -> Result<(), Error> {
        for (info, _) in &self.ticket.namespaces {
            let looked = self.shared.reader.is_loaded(info.id);
            looked.map_err(|error| self.gone(info.id, error))?;
        }
        Ok(())
    }

    /// Looks at records, and loads the index of their namespace if that is missing.
    pub(super) fn look<T>(
        &self,
        namespace: NamespaceId,
        attempt: impl FnMut() -> Result<T, FindError>,
    ) -> Result<T, Error> {
        self.shared.look(namespace, attempt).map_err(|error| match error {
            Error::UnknownNamespace(_) => self.gone(namespace, kaml_device::Error::UnknownNamespace(namespace)),
            error => error,
        })
    }

    /// Reads the record of a key: its whole key, its value, and when it expires (0 for never). The key may be the digest of a long one.
    pub(super) fn fetch(
        &self,
        records: &RecordsAt<'_>,
        namespace: NamespaceId,
        key: &FullKey<'_>,
    ) -> Result<Option<(KeyBuf, Vec<u8>, u64)>, Error> {
        let snapshot = self.snapshot.as_ref().ok_or(Error::Closed)?;
        let (mut stored, mut expires) = (Vec::new(), 0);
        let found = self.look(namespace, || {
            Ok(match records.find(key)? {
                Found::Absent => Buffered::Absent,
                Found::Flash(read) => Buffered::Programmed(read),
                Found::Buffered => {
                    let core = self.shared.lock();
                    expires = core.buffered_expiry_at(snapshot, namespace, key)?;
                    core.read_buffered_at(snapshot, namespace, key)?
                }
            })
        })?;
        match found {
            Buffered::Absent => return Ok(None),
            Buffered::Value(value) => stored = value,
            Buffered::Packed(packed) => stored = packed.unpack()?,
            Buffered::Programmed(read) => self.shared.read_with(read.at, read.bytes, |bytes| {
                expires = read.expires(bytes);
                read.copy_value(bytes, &mut stored)
            })?,
        }
        if !key.key().is_digest() || !key.long_bytes().is_empty() {
            return Ok(Some((key.to_buf(), stored, expires)));
        }
        // What is stored ends with the key and its length.
        let long = key_of_stored(key.key(), &stored);
        let long = long.ok_or_else(|| Error::Internal(format!("namespace {namespace}: key {key} lacks its bytes")))?;
        stored.truncate(stored.len().saturating_sub(long.as_bytes().len() + size_of::<u16>()));
        Ok(Some((long, stored, expires)))
    }
}
