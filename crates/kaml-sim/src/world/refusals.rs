//! Commands that the firmware refuses.
//!
//! Lives here:       whether a refusal is one that may be.
//! Lives elsewhere:  which faults of the flash excuse one (`check`).

use super::{End, World};
use crate::check::{self, Violation};
use crate::host::{Command, Put};
use kaml_device::Error;

impl World {
    /// A device that is full counts what lies in its blocks, and large values that have places and whose Puts are not committed.
    pub(super) fn check_full<'a>(&'a self, error: &Error) -> Result<(), Violation> {
        let Error::Full { live_bytes, .. } = error else { return Ok(()) };
        let put = |command: &'a Command| if let Command::Put(put) = command { Some(put) } else { None };
        let waiting = self.waiting.iter().filter_map(put);
        let staged = self.model.unanswered.iter().flat_map(|(_, changes)| changes);
        let stored = staged.filter_map(|((space, _), value)| Some((*space, value.as_ref()?.len)));
        let reader = self.core.reader();
        let large = stored.filter(|(space, len)| reader.places_first(*space, *len as usize)).map(|(_, len)| len.into());
        // Places are somewhat longer than values.
        let known = self.core.stats().live_bytes + 2 * waiting.map(Put::placed_bytes).chain(large).sum::<u64>();
        let what = || format!("full with {live_bytes} bytes, of which {known} at most are anywhere");
        if *live_bytes <= known { Ok(()) } else { Err(Violation::new(what())) }
    }

    /// Whether there was no room for all values of a Put, each with its header in whole chunks.
    pub(super) fn is_too_much(&self, put: &Put, error: &Error) -> bool {
        let Error::Full { live_bytes, capacity_bytes } = error else { return false };
        let beside = 2 * u64::from(self.core.geometry().chunk_bytes);
        let put_bytes = put.changes.values().flatten().map(|value| u64::from(value.len) + beside).sum::<u64>();
        live_bytes + put_bytes > *capacity_bytes
    }

    pub(super) fn given_up(&mut self) -> Result<(), End> {
        self.answered();
        self.counts.refused += 1;
        Ok(())
    }

    pub(crate) fn refused(&mut self, error: Error) -> Result<(), End> {
        self.answered();
        if matches!(error, Error::UnknownNamespace(id) if !self.model.has_space(id)) {
            self.counts.orphaned += 1;
            return Ok(());
        }
        self.counts.refused += 1;
        let may = matches!(error, Error::Stopped(_)) || check::is_excused(&error, &self.medium);
        if may { Ok(()) } else { Err(Violation::new(format!("refused: {error}")).into()) }
    }
}
