//! Flash in memory. A test sees each operation before it is executed, and can refuse it.

use kaml_flash::{AlignedBuf, Geometry, Io, Medium, MediumError, MemoryMedium, Queue};

/// An access that is about to be executed.
pub enum Access<'a> {
    /// An operation of the queue or of a blocked caller.
    Operation(&'a Io),
    /// A read of the commit ring.
    RingRead,
}

/// Flash in memory, with the closures that observe it.
pub struct Watched<F, Q> {
    /// The flash.
    pub medium: MemoryMedium,
    /// Sees each operation first, and can refuse it.
    pub watch: F,
    /// Wraps each queue that the device opens.
    pub before: Q,
}

impl<F, Q> Medium for Watched<F, Q>
where
    F: Fn(Access<'_>) -> Result<(), MediumError> + Send + Sync,
    Q: Fn(Box<dyn Queue>) -> Box<dyn Queue> + Send + Sync,
{
    fn geometry(&self) -> &Geometry {
        self.medium.geometry()
    }

    fn uuid(&self) -> [u8; 16] {
        self.medium.uuid()
    }

    fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
        (self.watch)(Access::Operation(io))?;
        self.medium.execute(io)
    }

    fn queue(&self, depth: u32) -> Box<dyn Queue> {
        (self.before)(self.medium.queue(depth))
    }

    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.medium.read_root(slot, into)
    }

    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        (self.watch)(Access::RingRead)?;
        self.medium.read_ring(offset, into)
    }

    fn describe(&self) -> String {
        self.medium.describe()
    }
}
