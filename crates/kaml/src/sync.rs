//! The primitives that threads meet with, and the clock.
//!
//! Lives here:       one place to exchange them. With the feature `model` they are those of a scheduler that explores
//!                   interleavings, and time is the laboratory's (`tests/lab`).
//!
//! What is held without meeting anybody (histograms, process-wide counters) is the system's in either case.

#[cfg(feature = "model")]
pub(crate) use crate::model::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Condvar, Futex, Instant, JoinHandle, Mutex, MutexGuard,
    channel, sleep, spawn, thread_local, yield_now,
};
#[cfg(not(feature = "model"))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize},
    sync::mpsc::channel,
    sync::{Condvar, Mutex, MutexGuard},
    thread::{JoinHandle, sleep, yield_now},
    thread_local,
    time::Instant,
};

/// A number that nobody can foretell: the keys of the hash are the system's random numbers.
#[cfg(not(feature = "model"))]
pub(crate) fn secret_word(at: u64) -> u64 {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(at)
}

/// In the laboratory everything follows from a seed.
#[cfg(feature = "model")]
pub(crate) fn secret_word(at: u64) -> u64 {
    (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Starts a thread.
#[cfg(not(feature = "model"))]
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// A word to sleep on while it has a value.
#[cfg(not(feature = "model"))]
#[derive(Default)]
pub(crate) struct Futex(pub(crate) AtomicU32);

#[cfg(not(feature = "model"))]
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
