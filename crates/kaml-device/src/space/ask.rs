//! Requesting room, and what the caller of the firmware gets.
//!
//! Lives here:       requests of data, ring space and blocks, refusals as errors, floors as numbers.
//! Lives elsewhere:  the answers (`space`), what a Put needs (`staging`).

use super::facts::{Data, Erased, Programs};
use super::{Answer, Need, Purpose, Situation, Why};
use crate::command::StageError;
use crate::core::Core;
use crate::error::Error;

impl Core {
    /// Refuses a command while there is no room for this many chunks of its data.
    #[inline]
    pub(crate) fn admit_data(
        &self,
        purpose: Purpose,
        chunks: u64,
        is_page_buffer_full: bool,
    ) -> Result<(), StageError> {
        let data = match self.fit_of(purpose, chunks) {
            Data::Fits if is_page_buffer_full => Data::ExceedsPageBuffer,
            data => data,
        };
        self.ask(purpose, Need::Command(data), &self.situation(purpose))
    }

    /// Refuses so many bytes of this many records while the ring has no room for them; a root releases some.
    pub(crate) fn admit_to_ring(&mut self, bytes: usize, records: usize) -> Result<(), StageError> {
        if self.log.ring.has_room(bytes) && self.has_sequences(records) {
            return Ok(());
        }
        let now = self.situation(Purpose::Put);
        self.ask(Purpose::Put, Need::Ring, &self.with_background(now))
    }

    /// Requests room for a command; a refusal becomes what the caller of the firmware gets.
    #[inline]
    pub(super) fn ask(&self, purpose: Purpose, need: Need, now: &Situation) -> Result<(), StageError> {
        match now.ask(purpose, need) {
            Answer::Granted => Ok(()),
            Answer::Wait(what) => {
                tracing::trace!(?purpose, ?what, "a command waits for room");
                Err(StageError::Busy)
            }
            Answer::Never(why) => Err(self.refusal(purpose, why)),
        }
    }

    /// The answer to a command of a host or a merge that found no block.
    pub(crate) fn no_block_for(&self, purpose: Purpose) -> StageError {
        let answer = self.ask(purpose, Need::Erased(Erased::Few), &self.situation(purpose));
        answer.err().unwrap_or(StageError::Busy)
    }

    #[cold]
    fn refusal(&self, purpose: Purpose, why: Why) -> StageError {
        if why != Why::NoSpaceBelow && self.snapshots.make_room() {
            return StageError::Busy; // no Put is refused for what snapshots keep
        }
        if why != Why::NoSpaceBelow && self.growth.make_room() {
            return StageError::Busy; // nor while the device can grow
        }
        if why != Why::NoSpaceBelow && self.merge_makes_room(purpose) {
            return StageError::Busy; // nor for what a merge drops
        }
        let not_grown = self.growth.refusal().filter(|_| why != Why::NoSpaceBelow);
        if let Some(error) = not_grown {
            return Error::Medium(error).into();
        }
        match why {
            Why::Full => self.full(self.space.sizes.capacity_chunks).into(),
            Why::Deadlock | Why::NoBlocks => self.full_now().into(),
            Why::NoSpaceBelow => Error::Medium(self.no_space_below().expect("seen just now")).into(),
        }
    }

    /// Nothing more fits: the numbers as of now.
    pub(crate) fn full_now(&self) -> Error {
        self.full(self.capacity_chunks())
    }

    pub(super) fn full(&self, capacity: u64) -> Error {
        let bytes = u64::from(self.log.geometry.chunk_bytes);
        Error::Full { live_bytes: self.taken_chunks() * bytes, capacity_bytes: capacity * bytes }
    }

    /// Chunks that are live or will be: large values that are placed have their room already.
    pub(crate) fn taken_chunks(&self) -> u64 {
        self.log.blocks.live_chunks() + self.space.ticket_chunks
    }

    /// Free blocks that a purpose leaves to others.
    pub(crate) fn floor(&self, purpose: Purpose) -> u32 {
        purpose.floor(self.metadata(), self.last_block_of(purpose)).blocks(self.reserve_blocks())
    }

    /// Whether so few programs are in progress that a purpose may add some.
    pub(crate) fn may_program(&self, purpose: Purpose) -> bool {
        Programs::of(self.log.writers.programming_bytes) <= purpose.programs_max()
    }

    /// Whether more than this many sixteenths of the capacity are taken.
    pub(crate) fn is_filled(&self, sixteenths: u64) -> bool {
        self.taken_chunks() * 16 > self.space.sizes.capacity_chunks * sixteenths
    }
}
