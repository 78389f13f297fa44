//! Flash that tests hold up.

#[path = "../../../kaml-device/tests/common/watched.rs"]
mod watched;

use kaml::CreateOptions;
use kaml_device::Core;
use kaml_flash::{Geometry, Io, Medium, MediumError, MemoryMedium, Queue};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use watched::{Seen, Watched};

/// What reads by blocked callers have to pass: it can hold them up, or let them fail.
#[derive(Default)]
pub(crate) struct Held {
    pub(crate) fails: AtomicBool,
    is_held: Mutex<bool>,
    let_go: Condvar,
    /// Callers that are held up.
    pub(crate) waiting: AtomicU64,
}

impl Held {
    /// One, and a formatted medium in memory behind it.
    #[allow(dead_code, reason = "some want other queues")]
    pub(crate) fn new() -> (Arc<Held>, Arc<dyn Medium>) {
        Held::with_queues(|queue| queue)
    }

    /// The same with something before the medium's queues.
    pub(crate) fn with_queues<Q>(before: Q) -> (Arc<Held>, Arc<dyn Medium>)
    where
        Q: Fn(Box<dyn Queue>) -> Box<dyn Queue> + Send + Sync + 'static,
    {
        let options = CreateOptions::new(64 << 20);
        let medium = MemoryMedium::new(Geometry::for_file(options.capacity_bytes, 512, &options).unwrap());
        Core::format(&medium).unwrap();
        let held = Arc::new(Held::default());
        let gate = held.clone();
        let watch = move |seen: Seen<'_>| match seen {
            Seen::Operation(Io::Read { .. }) => gate.pass(),
            Seen::Operation(_) | Seen::RingRead => Ok(()),
        };
        (held, Arc::new(Watched { medium, watch, before }))
    }

    pub(crate) fn hold(&self, is_held: bool) {
        *self.is_held.lock().unwrap() = is_held;
        self.let_go.notify_all();
    }

    fn pass(&self) -> Result<(), MediumError> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(MediumError::ReadFailed { what: "a read".into(), error: "uncorrectable".into() });
        }
        let is_held = self.is_held.lock().unwrap();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        drop(self.let_go.wait_while(is_held, |is_held| *is_held).unwrap());
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}
