//! Histories that are in progress: a cursor of `kaml_history` continues one of them without reading anything again.
//!
//! Lives here:       which of them are kept, and how a cursor finds its own.
//! Lives elsewhere:  cursors (`records`), the walk over the versions (`kaml::Pieces`).
//!
//! A cursor belongs to C, which copies it, or forgets it without a word. It therefore holds only the sequence of the version that
//! was returned last, from which a history can begin at any time. A history that begins there reads again what lies before, so the
//! device keeps the last few: the next call with the same namespace, key and sequence continues. If that history is gone, the call
//! begins a new one.

use crate::device::kaml_namespace_id;
use crate::failure::Failure;
use kaml::{Device, History, Key, Past, Pieces};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Histories that are kept: more than threads that usually read them at once. Each takes some hundred bytes.
const KEPT_MAX: usize = 16;

/// Where a history is: its namespace and key, and the sequence that all its further versions are before.
pub(crate) type Place = (kaml_namespace_id, Key, u64);

/// The histories of a device that are in progress, the oldest first.
#[derive(Default)]
pub(crate) struct Histories(Mutex<VecDeque<(Place, Pieces<History>)>>);

impl Histories {
    /// The next versions from a place on: `count` of them, fewer at the end.
    pub(crate) fn next(&self, device: &Device, place: Place, count: usize) -> Result<Vec<Past>, Failure> {
        let (namespace_id, key, before) = place;
        let mut pieces = match self.take(place) {
            Some(pieces) => pieces,
            None => device.history_pieces(namespace_id, key, before, usize::MAX)?,
        };
        // Neither locked nor kept meanwhile: two calls with copies of one cursor read side by side, and one that fails begins again.
        let found = pieces.next_found(count)?;
        if let Some(last) = found.last()
            && found.len() == count
        {
            self.keep((namespace_id, key, last.version.sequence), pieces);
        }
        Ok(found)
    }

    fn take(&self, place: Place) -> Option<Pieces<History>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().rposition(|(of, _)| *of == place)?;
        kept.remove(at).map(|(_, pieces)| pieces)
    }

    fn keep(&self, place: Place, pieces: Pieces<History>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back((place, pieces));
    }
}
