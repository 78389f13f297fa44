//! A byte stream on its way into metadata pages.
//!
//! Lives here:       what of it is written, and what waits to fill a page.
//! Lives elsewhere:  writing it (`checkpoint`), reading it (`metadata`).

use crate::format::root::Stream;

/// A byte stream on its way into metadata pages.
#[derive(Default)]
pub(crate) struct StreamWriter {
    pub(crate) stream: Stream,
    /// Bytes that do not fill a page yet.
    pub(crate) tail: Vec<u8>,
}

impl std::fmt::Debug for StreamWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamWriter").field("stream", &self.stream).field("tail", &self.tail.len()).finish()
    }
}
