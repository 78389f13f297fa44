//! Flash that tests hold up.

use kaml::CreateOptions;
use kaml_device::Core;
use kaml_flash::{AlignedBuf, Geometry, Io, Medium, MediumError, MemoryMedium, Queue};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// A medium in memory whose reads by blocked callers can be held up, or fail.
pub(crate) struct Held {
    medium: MemoryMedium,
    pub(crate) fails: AtomicBool,
    is_held: Mutex<bool>,
    let_go: Condvar,
    /// Callers that are held up.
    pub(crate) waiting: AtomicU64,
}

impl Held {
    pub(crate) fn new() -> Arc<Held> {
        let options = CreateOptions::new(64 << 20);
        let medium = MemoryMedium::new(Geometry::for_file(options.capacity_bytes, 512, &options).unwrap());
        Core::format(&medium).unwrap();
        let (fails, is_held) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Held { medium, fails, is_held, let_go: Condvar::new(), waiting: AtomicU64::new(0) })
    }

    pub(crate) fn hold(&self, is_held: bool) {
        *self.is_held.lock().unwrap() = is_held;
        self.let_go.notify_all();
    }
}

impl Medium for Held {
    fn geometry(&self) -> &Geometry {
        self.medium.geometry()
    }
    fn uuid(&self) -> [u8; 16] {
        self.medium.uuid()
    }
    fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
        if let Io::Read { at, .. } = io {
            if self.fails.load(Ordering::SeqCst) {
                return Err(MediumError::ReadFailed { what: at.to_string(), error: "uncorrectable".into() });
            }
            let mut is_held = self.is_held.lock().unwrap();
            self.waiting.fetch_add(1, Ordering::SeqCst);
            while *is_held {
                is_held = self.let_go.wait(is_held).unwrap();
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        self.medium.execute(io)
    }
    fn queue(&self, depth: u32) -> Box<dyn Queue> {
        self.medium.queue(depth)
    }
    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.medium.read_root(slot, into)
    }
    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.medium.read_ring(offset, into)
    }
    fn describe(&self) -> String {
        self.medium.describe()
    }
}
