//! Flash in memory whose reads a test can block or let fail.

use crate::{Access, Watched};
use kaml_device::Core;
use kaml_flash::{FormatOptions, Geometry, Io, Medium, MediumError, MemoryMedium, Queue};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// A gate that reads of blocked callers pass. A closed gate blocks them.
#[derive(Default)]
pub struct Held {
    /// Reads fail from now on.
    pub fails: AtomicBool,
    /// Reads of fewer bytes neither fail nor are blocked.
    pub least_bytes: AtomicUsize,
    is_held: Mutex<bool>,
    let_go: Condvar,
    /// Callers that the gate blocks now.
    pub waiting: AtomicU64,
}

impl Held {
    /// A gate, and a formatted medium in memory after it.
    pub fn new() -> (Arc<Held>, Arc<dyn Medium>) {
        Held::with_queues(|queue| queue)
    }

    /// As [`Held::new`], and `before` wraps each queue of the medium.
    pub fn with_queues<Q>(before: Q) -> (Arc<Held>, Arc<dyn Medium>)
    where
        Q: Fn(Box<dyn Queue>) -> Box<dyn Queue> + Send + Sync + 'static,
    {
        let geometry = Geometry::for_file(64 << 20, 512, &FormatOptions::default()).expect("a common size");
        let medium = MemoryMedium::with_uuid(geometry, own_uuid()).expect("a valid geometry");
        Core::format(&medium).expect("memory does not fail");
        let held = Arc::new(Held::default());
        let gate = held.clone();
        let watch = move |seen: Access<'_>| match seen {
            Access::Operation(Io::Read { into, .. }) if into.len() >= gate.least_bytes.load(Ordering::SeqCst) => {
                gate.pass()
            }
            Access::Operation(_) | Access::RingRead => Ok(()),
        };
        (held, Arc::new(Watched { medium, watch, before }))
    }

    /// Blocks reads, or lets blocked ones continue.
    pub fn hold(&self, is_held: bool) {
        *self.is_held.lock().expect("no panics under this lock") = is_held;
        self.let_go.notify_all();
    }

    fn pass(&self) -> Result<(), MediumError> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(MediumError::ReadFailed { what: "a read".into(), error: "uncorrectable".into() });
        }
        let is_held = self.is_held.lock().expect("no panics under this lock");
        self.waiting.fetch_add(1, Ordering::SeqCst);
        drop(self.let_go.wait_while(is_held, |is_held| *is_held).expect("no panics under this lock"));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

/// One for each medium, because a host serves a UUID once at a time.
fn own_uuid() -> [u8; 16] {
    use std::hash::BuildHasher;
    let word = |at: u64| std::hash::RandomState::new().hash_one(at);
    (u128::from(word(0)) << 64 | u128::from(word(1))).to_be_bytes()
}
