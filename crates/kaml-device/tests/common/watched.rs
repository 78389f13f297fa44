//! Flash in memory whose operations are looked at, and may be refused, before they are carried out.

use kaml_flash::{AlignedBuf, Geometry, Io, Medium, MediumError, MemoryMedium, Queue};

/// What is about to happen.
pub(crate) enum Seen<'a> {
    #[allow(dead_code, reason = "some look at reads of the ring alone")]
    Operation(&'a Io),
    RingRead,
}

/// The flash, who looks, and what comes before its queues.
pub(crate) struct Watched<F, Q> {
    pub(crate) medium: MemoryMedium,
    pub(crate) watch: F,
    pub(crate) before: Q,
}

impl<F, Q> Medium for Watched<F, Q>
where
    F: Fn(Seen<'_>) -> Result<(), MediumError> + Send + Sync,
    Q: Fn(Box<dyn Queue>) -> Box<dyn Queue> + Send + Sync,
{
    fn geometry(&self) -> &Geometry {
        self.medium.geometry()
    }

    fn uuid(&self) -> [u8; 16] {
        self.medium.uuid()
    }

    fn execute(&self, io: &mut Io) -> Result<(), MediumError> {
        (self.watch)(Seen::Operation(io))?;
        self.medium.execute(io)
    }

    fn queue(&self, depth: u32) -> Box<dyn Queue> {
        (self.before)(self.medium.queue(depth))
    }

    fn read_root(&self, slot: u8, into: &mut AlignedBuf) -> Result<(), MediumError> {
        self.medium.read_root(slot, into)
    }

    fn read_ring(&self, offset: u64, into: &mut AlignedBuf) -> Result<(), MediumError> {
        (self.watch)(Seen::RingRead)?;
        self.medium.read_ring(offset, into)
    }

    fn describe(&self) -> String {
        self.medium.describe()
    }
}
