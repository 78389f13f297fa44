//! Copying what existed before the target followed.
//!
//! Lives here:       pieces of namespaces, keys that the source does not have any more.
//! Lives elsewhere:  applying changes (`apply`), how far a namespace is copied (`state`).
//!
//! A piece is read while others change the source. Then the changes are applied up to a position after the read, and what they touched is left out of the
//! piece: the change is newer. So nothing on the source waits, and the copy is exact at each position. A piece takes a moment, so the
//! change stream need not reach far back however long the whole copy takes. A copy that is interrupted continues after its last piece.

use super::apply::{Follower, Touched};
use super::state::Progress;
use super::{Stop, of_source, of_target};
use crate::place::Place;
use kaml::NamespaceId;

/// Records of a piece.
const RECORDS: usize = 2000;
/// Keys that are looked up at a time.
const KEYS: usize = 1000;

impl Follower<'_> {
    /// Copies a piece of a namespace that is not whole; false if all are.
    pub fn copy_piece(&mut self) -> Result<bool, Stop> {
        let mut spaces = self.target.spaces.iter();
        let next = spaces.find(|(_, followed)| followed.progress != Progress::Whole);
        let Some((source, progress)) = next.map(|(source, followed)| (*source, followed.progress.clone())) else {
            return Ok(false);
        };
        self.touched = Some((source, Touched::default()));
        let copied = match progress {
            Progress::Copying { after, sweeps } => self.copy(source, after, sweeps),
            Progress::Sweeping { after } => self.sweep(source, after),
            Progress::Whole => Ok(()),
        };
        self.touched = None;
        copied.map(|()| true)
    }

    /// What changed in the namespace that is being copied; nothing if it was deleted meanwhile.
    fn touched_after_now(&mut self, source: NamespaceId) -> Result<Option<(NamespaceId, Touched)>, Stop> {
        let until = self.source.position().map_err(of_source)?;
        self.catch_up(&until)?;
        let touched = self.touched.take().map(|(_, touched)| touched).unwrap_or_default();
        Ok(self.target.spaces.get(&source).map(|followed| (followed.target, touched)))
    }

    fn copy(&mut self, source: NamespaceId, after: Option<kaml::KeyBuf>, sweeps: bool) -> Result<(), Stop> {
        let (records, has_more) = self.source.timed_records(source, after.as_ref(), RECORDS).map_err(of_source)?;
        let Some((target, touched)) = self.touched_after_now(source)? else { return Ok(()) };
        let last = records.last().map(|(key, ..)| key.clone());
        for (key, value, expires) in records {
            if !touched.has(&key) {
                self.put(target, &key, &value, expires)?;
            }
        }
        let progress = match (has_more && last.is_some(), sweeps) {
            (true, _) => Progress::Copying { after: last, sweeps },
            (false, true) => Progress::Sweeping { after: None },
            (false, false) => Progress::Whole,
        };
        self.flush_progress(source, progress)
    }

    /// Deletes keys that the source does not have.
    fn sweep(&mut self, source: NamespaceId, after: Option<kaml::KeyBuf>) -> Result<(), Stop> {
        let Some(target) = self.target.spaces.get(&source).map(|followed| followed.target) else { return Ok(()) };
        let keys = Place::list(self.target.device(), target, after.as_ref(), KEYS).map_err(of_target)?;
        let Some(last) = keys.last().cloned() else { return self.flush_progress(source, Progress::Whole) };
        let exist = self.source.exist_many(source, &keys).map_err(of_source)?;
        let Some((target, touched)) = self.touched_after_now(source)? else { return Ok(()) };
        for (key, exists) in keys.iter().zip(exist) {
            if !exists && !touched.has(key) {
                self.delete(target, key)?;
            }
        }
        self.flush_progress(source, Progress::Sweeping { after: Some(last) })
    }
}
