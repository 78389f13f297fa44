//! Applying changes of the source to the target.
//!
//! Lives here:       batches of whole commits with their position, what was touched while something is copied.
//! Lives elsewhere:  the state of a target (`state`), copying (`copy`).
//!
//! Many commits of the source are one batch of the target, up to a size: the target is always as the source was after some commit, or after a
//! part of one that no batch has room for. Records are put and deleted without conditions, so what is applied a second time, because a
//! crash came before its position was stored, has no effect.

use super::state::Target;
use super::{Stop, of_source, of_target};
use crate::output;
use kaml::{Batch, Change, ChangesCursor, Expiry, KeyBuf, NamespaceId, NamespaceInfo, NamespaceKind, Position};
use kaml_nvme::host::RemoteDevice;
use std::collections::{BTreeSet, HashSet};
use std::ops::{Bound, RangeBounds};
use std::time::SystemTime;

/// Bytes of a batch that are enough.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of values that a batch holds at most; those of 32 KiB and more take little room in it.
const VALUE_BYTES_MAX: usize = 64 << 20;
/// What a record takes of a batch besides its key and value, at most.
const RECORD_BYTES: usize = 64;
/// Values of this size and more are not in the batch itself.
const LARGE_BYTES: usize = 32 << 10;
/// Room for the state of the target.
const STATE_BYTES: usize = 4096;

/// Where a range of keys begins and ends.
type KeyBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// What changed in a namespace while something was read of it.
#[derive(Default)]
pub struct Touched {
    keys: HashSet<KeyBuf>,
    ranges: Vec<KeyBounds>,
}

impl Touched {
    pub fn has(&self, key: &KeyBuf) -> bool {
        let is_in = |(lower, upper): &KeyBounds| {
            let bounds = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
            RangeBounds::<[u8]>::contains(&bounds, key.as_bytes())
        };
        self.keys.contains(key) || self.ranges.iter().any(is_in)
    }
}

/// A target that follows over one connection.
pub struct Follower<'a> {
    pub target: &'a mut Target,
    pub source: &'a RemoteDevice,
    /// What was read; the target has everything up to its own cursor.
    read: ChangesCursor,
    generation: u64,
    batch: Batch,
    batch_bytes: usize,
    batch_bytes_max: usize,
    /// Up to where the batch has whole commits.
    boundary: ChangesCursor,
    /// A namespace that is being copied.
    pub touched: Option<(NamespaceId, Touched)>,
    not_followed: BTreeSet<NamespaceId>,
    has_progress: bool,
    newest: Position,
}

impl<'a> Follower<'a> {
    pub fn new(target: &'a mut Target, source: &'a RemoteDevice) -> Result<Follower<'a>, Stop> {
        if !target.has_position() {
            let cursor = ChangesCursor::from(source.position().map_err(of_source)?);
            let mut batch = Batch::new();
            target.note_cursor(&mut batch, cursor);
            target.device().write(&batch).map_err(of_target)?;
        }
        let batch_bytes_max = target.device().info().batch_bytes_max as usize;
        let cursor = target.cursor;
        Ok(Follower {
            target,
            source,
            read: cursor,
            generation: 0,
            batch: Batch::new(),
            batch_bytes: 0,
            batch_bytes_max: batch_bytes_max.saturating_sub(STATE_BYTES),
            boundary: cursor,
            touched: None,
            not_followed: BTreeSet::new(),
            has_progress: false,
            newest: cursor.position,
        })
    }

    /// Up to where the target has everything.
    pub fn position(&self) -> Position {
        self.target.cursor.position
    }

    /// Bytes of the source's commit ring that the target lacked when the source was last asked.
    pub fn lag_bytes(&self) -> u64 {
        self.newest.ring_bytes().saturating_sub(self.position().ring_bytes())
    }

    /// Whether anything was read of the source.
    pub fn has_progress(&self) -> bool {
        self.has_progress
    }

    /// Applies what was committed, or copies a piece; false if there is nothing to do now.
    pub fn step(&mut self) -> Result<bool, Stop> {
        let has_applied = self.apply_page()?;
        Ok(self.copy_piece()? || has_applied)
    }

    /// Applies everything that was committed up to a position.
    pub fn catch_up(&mut self, until: &Position) -> Result<(), Stop> {
        // The opening is another one after the source was opened again, even if nothing was committed.
        while self.target.cursor.position.ring_bytes() < until.ring_bytes() {
            self.apply_page()?;
        }
        Ok(())
    }

    /// Reads once and applies it; whether there was anything.
    fn apply_page(&mut self) -> Result<bool, Stop> {
        let reply = self.source.read_changes(Some(&self.read), self.generation).map_err(of_source)?;
        (self.generation, self.newest, self.has_progress) = (reply.generation, reply.newest, true);
        if let Some(infos) = &reply.namespaces {
            self.flush()?;
            self.warn(infos)?;
            self.target.reconcile(infos)?;
        }
        for part in reply.parts {
            let is_last = part.is_last();
            for change in part.changes {
                self.apply(change)?;
            }
            if is_last {
                self.boundary = part.next;
                if self.batch_bytes >= BATCH_BYTES {
                    self.flush()?;
                }
            }
        }
        let has_more = reply.next != self.read;
        self.read = reply.next;
        if reply.next.skip == 0 {
            self.boundary = reply.next;
            self.flush()?;
        }
        Ok(has_more)
    }

    /// States which namespaces are not followed.
    fn warn(&mut self, infos: &[NamespaceInfo]) -> Result<(), Stop> {
        for info in infos {
            let what = match info.kind {
                NamespaceKind::Records(_) => continue,
                NamespaceKind::Blocks(_) => "blocks",
                NamespaceKind::Versions(..) => "versions",
            };
            if self.not_followed.insert(info.id) {
                output::note(format!(
                    "namespace {:?} holds {what} and is not followed; `kaml backup` copies it",
                    info.name
                ));
            }
        }
        Ok(())
    }

    fn apply(&mut self, change: Change) -> Result<(), Stop> {
        match change {
            Change::Put { namespace, key, value, expires } => {
                let Some(target) = self.target_of(namespace) else { return Ok(()) };
                self.put(target, &key, &value, expires)?;
                self.touch(namespace, key);
            }
            Change::Delete { namespace, key } => {
                let Some(target) = self.target_of(namespace) else { return Ok(()) };
                self.delete(target, &key)?;
                self.touch(namespace, key);
            }
            Change::DeleteRange { namespace, lower, upper } => {
                let Some(target) = self.target_of(namespace) else { return Ok(()) };
                // It is no part of a batch: what precedes it is applied before.
                self.flush()?;
                let bounds = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
                let space = self.target.device().namespace_with_id(target);
                space.delete_range::<&[u8]>(bounds).map_err(of_target)?;
                if let Some((_, touched)) = self.touched.as_mut().filter(|(of, _)| *of == namespace) {
                    touched.ranges.push((lower, upper));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn target_of(&self, namespace: NamespaceId) -> Option<NamespaceId> {
        self.target.spaces.get(&namespace).map(|followed| followed.target)
    }

    fn touch(&mut self, namespace: NamespaceId, key: KeyBuf) {
        if let Some((_, touched)) = self.touched.as_mut().filter(|(of, _)| *of == namespace) {
            touched.keys.insert(key);
        }
    }

    /// Adds a record to the batch; one that is full is written first.
    pub fn put(
        &mut self,
        target: NamespaceId,
        key: &KeyBuf,
        value: &[u8],
        expires: Option<SystemTime>,
    ) -> Result<(), Stop> {
        let stored = if value.len() < LARGE_BYTES { value.len() } else { 0 };
        self.reserve(RECORD_BYTES + 2 * key.as_bytes().len() + stored, value.len())?;
        let expiry = expires.map_or(Expiry::Never, Expiry::At);
        self.batch.put(target, key, value).expires(expiry);
        Ok(())
    }

    /// Adds a delete to the batch.
    pub fn delete(&mut self, target: NamespaceId, key: &KeyBuf) -> Result<(), Stop> {
        self.reserve(RECORD_BYTES + 2 * key.as_bytes().len(), 0)?;
        self.batch.delete(target, key);
        Ok(())
    }

    fn reserve(&mut self, bytes: usize, value_bytes: usize) -> Result<(), Stop> {
        let is_full =
            self.batch_bytes + bytes > self.batch_bytes_max || self.batch.value_bytes() + value_bytes > VALUE_BYTES_MAX;
        if is_full && !self.batch.is_empty() {
            self.flush()?;
        }
        self.batch_bytes += bytes;
        Ok(())
    }

    /// Writes the batch, with the position up to which it has whole commits.
    pub fn flush(&mut self) -> Result<(), Stop> {
        if self.boundary != self.target.cursor {
            self.target.note_cursor(&mut self.batch, self.boundary);
        }
        if self.batch.is_empty() {
            return Ok(());
        }
        let batch = std::mem::replace(&mut self.batch, Batch::new());
        self.batch_bytes = 0;
        self.target.device().write(&batch).map_err(of_target)
    }

    /// Writes the batch together with how far a namespace is copied.
    pub fn flush_progress(&mut self, source: NamespaceId, progress: super::state::Progress) -> Result<(), Stop> {
        self.target.note_progress(&mut self.batch, source, progress);
        self.flush()
    }
}
