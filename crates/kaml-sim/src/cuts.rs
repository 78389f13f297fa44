//! Which operations power is cut at, and what a cut leaves there.
//!
//! Lives here:       the choice, the same for every thread; a moment with the flash that it leaves.
//! Lives elsewhere:  what must have survived (`run`), what remains (`array`), noticing a moment within a read (`medium`).

use crate::medium::SimMedium;
use crate::rng::{Rng, mix};

/// Which operations power is cut at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cuts {
    /// Every one.
    Every,
    /// One in this many, as the seed determines.
    OneIn(u64),
    /// This one.
    Only(u64),
}

/// The cuts of one run. Drawn apart from everything else, so a replay of one cut sees the same run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutPoints {
    pub(crate) seed: u64,
    pub(crate) cuts: Cuts,
}

/// So much more often is power cut within reads: those are few moments.
const OFTENER_WITHIN_READS: u64 = 8;

impl CutPoints {
    /// Those within synchronous reads.
    pub(crate) fn within_reads(self) -> CutPoints {
        let cuts = match self.cuts {
            Cuts::OneIn(n) => Cuts::OneIn(n.div_ceil(OFTENER_WITHIN_READS)),
            cuts @ (Cuts::Every | Cuts::Only(_)) => cuts,
        };
        CutPoints { cuts, ..self }
    }

    /// If power is cut just before the operation of this number is done: what decides everything after that.
    pub(crate) fn at(&self, number: u64) -> Option<Rng> {
        let is_cut = match self.cuts {
            Cuts::Every => true,
            Cuts::OneIn(n) => Rng::new(mix(self.seed ^ mix(number))).one_in(n),
            Cuts::Only(only) => number == only,
        };
        is_cut.then(|| Rng::new(mix(self.seed.rotate_left(7) ^ mix(number))))
    }
}

/// A cut that is tried.
pub(crate) struct CutMoment {
    /// Of the operation that would have been done.
    pub(crate) number: u64,
    /// What chose what remains.
    pub(crate) state: u64,
    /// Other flash, with what remains.
    pub(crate) fork: SimMedium,
    pub(crate) draw: Rng,
}
