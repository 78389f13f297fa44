//! Changing the size of the device.
//!
//! Lives here:       what is known of growth: requests, whether there will be room.
//! Lives elsewhere:  each step of it (`steps`), emptying the end of a device (`shrink`), making a size durable (the medium), who is refused otherwise (`space`).
//! Implements:       docs/ARCHITECTURE.md "A device that grows".

use crate::error::Error;
use kaml_flash::MediumError;
use std::cell::Cell;

mod shrink;
mod steps;

/// The size that is wanted, and what became of the last change.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    /// Blocks of each die up to which the device grows by itself; 0 if it does not.
    limit: u32,
    blocks_per_die: u32,
    /// A command would have been refused.
    is_wanted: Cell<bool>,
    in_flight: Option<Cause>,
    pub(crate) request: Option<Request>,
    /// Blocks at the end are being emptied for the request.
    pub(crate) shrink: Option<Shrink>,
    /// Of the last request that is done.
    pub(crate) outcome: Option<(u64, Result<(), Error>)>,
    last_request: u64,
    /// Why the device could not grow by itself, and when that is tried again.
    failed: Option<(MediumError, u64)>,
    now_ns: u64,
    /// How often the size has changed.
    count: u64,
}

/// Why the size changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Space,
    /// The request of this number.
    Request(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) number: u64,
    pub(crate) blocks_per_die: u32,
    pub(crate) capacity_bytes: u64,
}

impl Growth {
    /// Whether the size is being changed: no root is written meanwhile.
    pub(crate) fn is_resizing(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether blocks at the end are being emptied.
    pub(crate) fn is_shrinking(&self) -> bool {
        self.shrink.is_some()
    }

    /// Whether a change of size was requested and is not done.
    pub(crate) fn is_requested(&self) -> bool {
        self.request.is_some()
    }

    /// Whether the device can still grow by itself, as far as anybody knows.
    fn may_grow(&self) -> bool {
        self.blocks_per_die < self.limit && self.failed.is_none() && self.shrink.is_none()
    }

    /// Whether there will be room because the device grows, which the next step sees to.
    pub(crate) fn make_room(&self) -> bool {
        self.is_wanted.set(self.is_wanted.get() || self.may_grow());
        self.may_grow()
    }

    /// Why a device that may grow cannot.
    pub(crate) fn refusal(&self) -> Option<MediumError> {
        let may = self.blocks_per_die < self.limit && self.shrink.is_none();
        self.failed.as_ref().filter(|_| may).map(|(error, _)| error.clone())
    }
}

/// A device that becomes smaller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shrink {
    number: u64,
    blocks_per_die: u32,
    capacity_bytes: u64,
    /// The blocks are empty, and the root of this request forgets them.
    last_root: Option<u64>,
}
