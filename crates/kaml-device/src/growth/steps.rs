//! The device grows.
//!
//! Lives here:       when it grows by itself and by how much, requests of another size, what the firmware does with new blocks.
//! Lives elsewhere:  what is known of it (`growth`), making a size durable (the medium), who is refused otherwise (`space`).
//! Implements:       docs/ARCHITECTURE.md "A device that grows".

use super::{Cause, Request};
use crate::checkpoint::restart;
use crate::core::Core;
use crate::error::Error;
use crate::in_flight::Pending;
use kaml_flash::{Geometry, Io, MediumError};

/// The device grows by itself when more than so many sixteenths of its capacity are taken: collection is cheap below that.
const GROWS_AT_SIXTEENTHS: u64 = 12;
/// By this part of its blocks, and by so many bytes at least.
const STEP_PART: u32 = 4;
const STEP_BYTES_MIN: u64 = 16 << 20;
/// How long after a failure to grow it is tried again.
const RETRY_NS: u64 = 1_000_000_000;
/// Indexes have room for chunk numbers of so many bits where that costs no more than fewer bits do. A device whose chunk numbers have
/// more copies its indexes to wider ones.
const ADDR_BITS_FREE: u32 = 33;
/// The next step: as many as fit six slots of a line.
const ADDR_BITS_NEXT: u32 = 38;

/// Bits of the chunk numbers of a device of this shape.
fn addr_bits_of(geometry: &Geometry) -> u32 {
    64 - (geometry.chunk_count() - 1).leading_zeros()
}

impl Core {
    /// From now on the device grows by itself, up to this many blocks of each die, when it runs low on space.
    pub fn grow_up_to(&mut self, blocks_per_die: u32) {
        self.growth.limit = blocks_per_die;
        self.growth.blocks_per_die = self.log.geometry.blocks_per_die;
    }

    /// Requests another size; the number under which [`Core::resize_outcome`] reports the end. Only one request is in progress at a time: the
    /// next one replaces one that has not begun.
    pub fn request_resize(&mut self, blocks_per_die: u32, capacity_bytes: u64) -> u64 {
        self.growth.last_request += 1;
        let number = self.growth.last_request;
        self.growth.request = Some(Request { number, blocks_per_die, capacity_bytes });
        number
    }

    /// What a request has come to; nothing while it is in progress. Of a request that was replaced the outcome is the next one's.
    pub fn resize_outcome(&self, number: u64) -> Option<Result<(), Error>> {
        let (done, outcome) = self.growth.outcome.as_ref()?;
        (*done >= number).then(|| outcome.clone())
    }

    /// Whether the device could not grow, and tries again after a second: the driver polls it then.
    pub fn is_waiting_to_grow(&self) -> bool {
        self.growth.failed.is_some()
    }

    /// How often the size has changed since the device was opened.
    pub fn resize_count(&self) -> u64 {
        self.growth.count
    }

    /// Begins a change of size, if one is due. The root that is being committed is written first.
    pub(crate) fn step_growth(&mut self, now_ns: u64) {
        self.growth.now_ns = now_ns;
        self.growth.failed.take_if(|(_, again_ns)| now_ns >= *again_ns);
        if self.growth.is_resizing() || self.growth.is_shrinking() || !self.root_is_idle() {
            return;
        }
        if let Some(Request { number, blocks_per_die, capacity_bytes }) = self.growth.request {
            let present = self.log.geometry.blocks_per_die;
            if blocks_per_die < present {
                return self.begin_shrink(number, blocks_per_die, capacity_bytes);
            }
            return self.begin_resize(Cause::Request(number), blocks_per_die, capacity_bytes, false);
        }
        let is_wanted = self.growth.is_wanted.take();
        if self.growth.may_grow() && !self.is_closing && (is_wanted || self.is_filled(GROWS_AT_SIXTEENTHS)) {
            let blocks_per_die = self.grown();
            self.begin_resize(Cause::Space, blocks_per_die, 0, true);
        }
    }

    /// The blocks of each die after the next step.
    fn grown(&self) -> u32 {
        let Geometry { blocks_per_die, .. } = self.log.geometry;
        let die_bytes = self.log.geometry.block_bytes() * u64::from(self.log.geometry.die_count());
        let step = (blocks_per_die / STEP_PART).max(STEP_BYTES_MIN.div_ceil(die_bytes) as u32);
        blocks_per_die.saturating_add(step).min(self.growth.limit)
    }

    pub(crate) fn begin_resize(&mut self, cause: Cause, blocks_per_die: u32, capacity_bytes: u64, reserve: bool) {
        self.growth.in_flight = Some(cause);
        self.log.emit(Io::Resize { blocks_per_die, capacity_bytes, reserve }, Pending::Resize);
    }

    /// A change of size has ended.
    pub(crate) fn resize_done(&mut self, io: Io, result: Result<(), MediumError>) {
        let Io::Resize { blocks_per_die, .. } = io else { unreachable!("the operation of a change of size") };
        let cause = self.growth.in_flight.take().expect("it was in flight");
        let outcome = match result {
            Ok(()) if self.growth.is_shrinking() => {
                self.adopt_smaller(blocks_per_die);
                Ok(())
            }
            Ok(()) => self.adopt_size(blocks_per_die),
            Err(error @ (MediumError::NoSpace { .. } | MediumError::NotResized { .. })) => {
                tracing::warn!(%error, blocks_per_die, "the size of the device does not change");
                Err(error)
            }
            Err(error) => {
                self.log.stop(error.clone());
                Err(error)
            }
        };
        match cause {
            Cause::Request(number) => {
                self.stop_shrinking();
                self.growth.request.take_if(|request| request.number == number);
                self.growth.outcome = Some((number, outcome.map_err(Error::Medium)));
            }
            Cause::Space => {
                self.growth.failed = outcome.err().map(|error| (error, self.growth.now_ns + RETRY_NS));
            }
        }
    }

    /// The medium has the new size.
    fn adopt_size(&mut self, blocks_per_die: u32) -> Result<(), MediumError> {
        let geometry = Geometry { blocks_per_die, ..self.log.geometry.clone() };
        if let Err(error) = self.widen_indexes(&geometry) {
            // New blocks cannot be addressed; they are used when the device is next opened.
            return Err(MediumError::NotResized {
                why: format!("{error}; the new size counts when the device is opened again"),
            });
        }
        tracing::info!(from = self.log.geometry.blocks_per_die, to = blocks_per_die, "blocks of each die");
        self.log.blocks.grow(&geometry);
        self.has_size(geometry);
        Ok(())
    }

    /// The tables of blocks have this shape.
    pub(crate) fn has_size(&mut self, geometry: Geometry) {
        self.log.writers.resize(&geometry);
        self.growth.blocks_per_die = geometry.blocks_per_die;
        self.growth.count += 1;
        self.log.geometry = geometry;
        self.checkpoint.may_go_on();
        self.update_sizes();
    }

    // --- chunk numbers ----------------------------------------------------------------------------------------------------

    /// The fewest bits for chunk numbers that an index needs.
    pub(crate) fn addr_bits_needed(&self) -> u32 {
        addr_bits_of(&self.log.geometry)
    }

    /// Bits for chunk numbers that an index gets: enough for the size up to which the device grows, as long as they cost nothing.
    pub(crate) fn index_addr_bits(&self) -> u32 {
        let needed = self.addr_bits_needed();
        if self.growth.limit <= self.log.geometry.blocks_per_die {
            return needed;
        }
        let later = addr_bits_of(&Geometry { blocks_per_die: self.growth.limit, ..self.log.geometry.clone() });
        needed.max(later.min(ADDR_BITS_FREE))
    }

    /// Copies indexes that have no room for the chunk numbers of a shape.
    fn widen_indexes(&mut self, geometry: &Geometry) -> Result<(), kaml_index::NoAddressSpace> {
        let needed = addr_bits_of(geometry);
        let wide = if needed <= ADDR_BITS_FREE { ADDR_BITS_FREE } else { needed.max(ADDR_BITS_NEXT) };
        for (id, space) in &mut self.spaces {
            let Some(index) = space.index.as_ref().filter(|index| index.addr_bits() < needed) else { continue };
            let copy = index.with_addr_bits(wide)?;
            space.install(copy);
            space.dirty = true;
            restart(&mut self.checkpoint, &mut self.root_commit, *id);
        }
        Ok(())
    }
}
