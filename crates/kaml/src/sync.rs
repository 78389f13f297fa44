//! The primitives that the hand-over waits with.
//!
//! Lives here:       one place to exchange them: the model tests compile `handover` over a scheduler of their own
//!                   (`tests/handover_model.rs`).

pub(crate) use std::sync::MutexGuard;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};
pub(crate) use std::thread::yield_now;

/// A word to sleep on while it has a value.
#[derive(Default)]
pub(crate) struct Futex(pub(crate) AtomicU32);

impl Futex {
    pub(crate) fn sleep(&self, seen: u32) {
        atomic_wait::wait(&self.0, seen);
    }

    pub(crate) fn wake_one(&self) {
        atomic_wait::wake_one(&self.0);
    }

    pub(crate) fn wake_all(&self) {
        atomic_wait::wake_all(&self.0);
    }
}
