//! How far a backup or a restore is.
//!
//! Lives here:       counting bytes, reporting them to the caller, ending when the caller requests it.
//! Lives elsewhere:  what is counted (`write`, `restore`).

use crate::error::Error;
use std::ops::ControlFlow;

/// Receives bytes done and bytes in all.
type Hear<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

/// The caller that receives the progress, and what it has received.
pub(super) struct Progress<'a> {
    hear: &'a mut Hear<'a>,
    done: u64,
    total: u64,
}

impl<'a> Progress<'a> {
    /// Of so many bytes.
    pub(super) fn new(total: u64, hear: &'a mut Hear<'a>) -> Progress<'a> {
        Progress { hear, done: 0, total }
    }

    /// So many more bytes are done.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the caller requests the end.
    pub(super) fn advance(&mut self, bytes: u64) -> Result<(), Error> {
        self.done = self.total.min(self.done.saturating_add(bytes));
        match (self.hear)(self.done, self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }
}
