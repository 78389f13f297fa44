//! Firmware that breaks its own promises, to see that the laboratory's checkers notice. Compiled only with the feature
//! `broken`, and then only in threads that enable it.
//!
//! Lives here:       the list, and what the present thread has enabled.
//! Lives elsewhere:  one line at each place that keeps the promise.

use std::cell::Cell;

/// A promise that the firmware does not keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// A Put counts as committed when its ring write is handed out, not when it is done.
    CommitsBeforePersist,
    /// Blocks are erased under readers.
    ErasesPinned,
    /// Values are served without looking at their checksum.
    DropsValueChecksum,
    /// Deletes found in the ring while opening are passed over.
    LosesTombstones,
    /// The journal and the block table do not state which blocks failed.
    ForgetsBadBlocks,
    /// A root is written without waiting for the programs that it relies on.
    RootBeforePrograms,
}

impl Broken {
    /// All of them.
    pub const ALL: [Broken; 6] = [
        Broken::CommitsBeforePersist,
        Broken::ErasesPinned,
        Broken::DropsValueChecksum,
        Broken::LosesTombstones,
        Broken::ForgetsBadBlocks,
        Broken::RootBeforePrograms,
    ];

    /// From now on this thread's firmware breaks this promise; nothing: none.
    pub fn set(broken: Option<Broken>) {
        BROKEN.set(broken);
    }

    /// Whether this promise is broken.
    pub(crate) fn is(self) -> bool {
        BROKEN.get() == Some(self)
    }
}

thread_local! {
    static BROKEN: Cell<Option<Broken>> = const { Cell::new(None) };
}
