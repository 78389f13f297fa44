//! Support for tests: a generator of choices, and flash in memory that a test observes, lets fail, or blocks.
//!
//! Lives here:       what the tests of more than one crate use.
//! Lives elsewhere:  the laboratory's generator and its worlds (`kaml-sim`), what one test file needs.
//! May be called by: tests.

mod guides;
mod held;
mod held_queue;
mod rng;
mod watched;

pub use held::Held;
pub use held_queue::hold_back;
pub use rng::{Rng, bytes};
pub use watched::{Access, Watched};
