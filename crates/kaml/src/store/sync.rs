//! The primitives that the lock protocol waits with.
//!
//! Lives here:       one place to exchange them: the model tests compile `locks` and `waits` over a scheduler of
//!                   their own (`tests/store_model.rs`).

pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
