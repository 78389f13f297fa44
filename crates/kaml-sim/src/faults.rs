//! Faults below the firmware, drawn per seed.
//!
//! Lives here:       which faults a run has, which operation one strikes, how many there were.
//! Lives elsewhere:  power cuts (`array`), what the firmware may answer to a fault (`check`).
//! Implements:       swarm testing: each seed has a mix of its own, many seeds have none of a given fault at all.

use crate::rng::Rng;
use kaml_flash::{BlockIndex, Geometry, Io, MediumError};
use std::collections::BTreeSet;

/// The mix of one run; chances per million operations of the kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A program fails; the block never works again.
    pub program_ppm: u32,
    /// An erase fails; the block never works again.
    pub erase_ppm: u32,
    /// Erases that blocks endure: from half of this to one and a half, each its own number.
    pub endurance: Option<u32>,
    /// A read needs retries, and gets its bytes.
    pub correctable_ppm: u32,
    /// A read comes back with a bit flipped that no code noticed; the next read of the same place may be right.
    pub flip_ppm: u32,
    /// A read is refused; the next one of the same place may succeed.
    pub unreadable_ppm: u32,
    /// There is no space below for some programs in a row.
    pub no_space_ppm: u32,
    /// An operation takes a thousand times as long.
    pub slow_ppm: u32,
    /// A ring or root write or a flush fails.
    pub not_durable_ppm: u32,
    /// A die stops responding at this many operations that change something.
    pub die_dies_at: Option<u64>,
}

impl Faults {
    /// A mix; each fault occurs in some seeds only.
    pub fn draw(rng: &mut Rng) -> Faults {
        let mut some = |one_in: u64, ppm: u64| if rng.one_in(one_in) { rng.within(1, ppm) as u32 } else { 0 };
        let mut faults = Faults {
            program_ppm: some(4, 6_000),
            erase_ppm: some(4, 6_000),
            correctable_ppm: some(3, 50_000),
            flip_ppm: some(8, 1_000),
            unreadable_ppm: some(8, 1_000),
            no_space_ppm: some(8, 2_000),
            slow_ppm: some(2, 20_000),
            not_durable_ppm: some(12, 3_000),
            ..Faults::default()
        };
        faults.endurance = rng.one_in(8).then(|| rng.within(60, 400) as u32);
        faults.die_dies_at = rng.one_in(24).then(|| rng.within(100, 3_000));
        faults
    }

    /// Whether a read may fail or be found to be wrong, so the model must expect an error.
    pub fn disturb_reads(&self) -> bool {
        self.flip_ppm > 0 || self.unreadable_ppm > 0 || self.lose_data()
    }

    /// Whether data that was acknowledged may become unreadable for good (never wrong): the flash itself lost it.
    pub fn lose_data(&self) -> bool {
        self.die_dies_at.is_some()
    }
}

/// How often each fault struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FaultCounts {
    /// Programs that failed.
    pub programs: u64,
    /// Erases that failed.
    pub erases: u64,
    /// Reads that needed retries.
    pub corrected: u64,
    /// Reads with a flipped bit.
    pub flips: u64,
    /// Reads that were refused.
    pub unreadable: u64,
    /// Programs without space below.
    pub no_space: u64,
    /// Slow operations.
    pub slow: u64,
    /// Ring writes, root writes and flushes that failed.
    pub not_durable: u64,
    /// Operations that a dead die refused.
    pub dead_die: u64,
}

impl FaultCounts {
    /// All that failed or went wrong: neither what was slow, nor what the flash corrected.
    pub fn total(&self) -> u64 {
        self.programs + self.erases + self.flips + self.unreadable + self.no_space + self.not_durable + self.dead_die
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &FaultCounts) {
        self.programs += other.programs;
        self.erases += other.erases;
        self.corrected += other.corrected;
        self.flips += other.flips;
        self.unreadable += other.unreadable;
        self.no_space += other.no_space;
        self.slow += other.slow;
        self.not_durable += other.not_durable;
        self.dead_die += other.dead_die;
    }
}

/// How an operation ends that a fault strikes.
pub(crate) enum Strike {
    /// It was executed, to an unknown extent.
    Failed(MediumError),
    /// Nothing executed it.
    Dead(MediumError),
}

/// Programs without space in a row.
const NO_SPACE_RUN: u64 = 30;

/// The faults of one medium as they strike.
#[derive(Clone, Debug)]
pub(crate) struct Injector {
    pub(crate) faults: Faults,
    pub(crate) counts: FaultCounts,
    rng: Rng,
    pub(crate) bad: BTreeSet<u32>,
    /// Bad blocks whose failure completed since power came on: the firmware cannot know of others.
    pub(crate) told_bad: BTreeSet<u32>,
    /// Bad blocks that the firmware has durably noted.
    pub(crate) known_bad: BTreeSet<u32>,
    no_space_left: u64,
    /// Reading is left alone, so a checker sees what exists.
    pub(crate) reads_spared: bool,
}

impl Injector {
    pub(crate) fn new(faults: Faults, rng: Rng) -> Injector {
        Injector {
            faults,
            counts: FaultCounts::default(),
            rng,
            bad: BTreeSet::new(),
            told_bad: BTreeSet::new(),
            known_bad: BTreeSet::new(),
            no_space_left: 0,
            reads_spared: false,
        }
    }

    /// From now on this fails, and nothing that continued before.
    pub(crate) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
        self.no_space_left = 0;
    }

    /// The same flash under another power supply: what is broken stays broken.
    pub(crate) fn inherit(&mut self, other: &Injector) {
        self.bad.clone_from(&other.bad);
        self.known_bad.clone_from(&other.known_bad);
        self.reads_spared = other.reads_spared;
    }

    /// Whether an operation uses a block that the firmware has promised to leave alone.
    pub(crate) fn is_known_bad(&self, io: &Io) -> bool {
        match io {
            Io::Program { at, .. } => self.known_bad.contains(&at.block.0),
            Io::Erase { block, .. } => self.known_bad.contains(&block.0),
            _ => false,
        }
    }

    /// How much longer an operation takes: 1 for most.
    pub(crate) fn slowness(&mut self, io: &Io) -> u64 {
        let is_read = matches!(io, Io::Read { .. } | Io::ReadOob { .. });
        // Reads linger more often: firmware that must not erase under them is to be tempted.
        let ppm = self.faults.slow_ppm * if is_read { 10 } else { 1 };
        if self.rng.chance_ppm(ppm) {
            self.counts.slow += 1;
            return 1000;
        }
        if is_read && self.rng.chance_ppm(self.faults.correctable_ppm) {
            self.counts.corrected += 1;
            return 8; // a read retry table has about that many entries
        }
        1
    }

    /// Whether there is no space for a program that is about to be accepted: nothing has changed then.
    pub(crate) fn refuse(&mut self, io: &Io) -> Result<(), MediumError> {
        let Io::Program { at, .. } = io else { return Ok(()) };
        self.no_space_left = match self.no_space_left {
            0 if !self.rng.chance_ppm(self.faults.no_space_ppm) => return Ok(()),
            0 => self.rng.below(NO_SPACE_RUN),
            left => left - 1,
        };
        self.counts.no_space += 1;
        Err(MediumError::NoSpace { what: at.to_string() })
    }

    /// Whether and how an operation fails that is about to be applied.
    pub(crate) fn strike(
        &mut self,
        io: &Io,
        geometry: &Geometry,
        erase_count: u32,
        mutation: u64,
    ) -> Result<(), Strike> {
        let failed = |why| Err(Strike::Failed(refusal(io, why)));
        if self.die_is_dead(io, geometry, mutation) {
            self.counts.dead_die += 1;
            return Err(Strike::Dead(refusal(io, "the die does not respond")));
        }
        match io {
            Io::Program { at, .. } => {
                if self.bad.contains(&at.block.0) || self.rng.chance_ppm(self.faults.program_ppm) {
                    self.fail(at.block);
                    self.counts.programs += 1;
                    return failed("program status: fail");
                }
            }
            Io::Erase { block, .. } => {
                let worn = self.faults.endurance.is_some_and(|e| u64::from(erase_count) >= endurance_of(*block, e));
                if worn || self.bad.contains(&block.0) || self.rng.chance_ppm(self.faults.erase_ppm) {
                    self.fail(*block);
                    self.counts.erases += 1;
                    return failed("erase status: fail");
                }
            }
            Io::Read { .. } | Io::ReadOob { .. } => {
                if !self.reads_spared && self.rng.chance_ppm(self.faults.unreadable_ppm) {
                    self.counts.unreadable += 1;
                    return failed("uncorrectable");
                }
            }
            Io::Persist { .. } | Io::WriteRoot { .. } | Io::Flush | Io::Resize { .. } => {
                if self.rng.chance_ppm(self.faults.not_durable_ppm) {
                    self.counts.not_durable += 1;
                    return failed("input/output error");
                }
            }
        }
        Ok(())
    }

    fn fail(&mut self, block: BlockIndex) {
        self.bad.insert(block.0);
        self.told_bad.insert(block.0);
    }

    /// Flips a bit of what was read, if that is its fate.
    pub(crate) fn flip(&mut self, into: &mut [u8]) {
        if !self.reads_spared && self.rng.chance_ppm(self.faults.flip_ppm) {
            let at = self.rng.below(into.len() as u64) as usize;
            into[at] ^= 1 << self.rng.below(8);
            self.counts.flips += 1;
        }
    }

    fn die_is_dead(&self, io: &Io, geometry: &Geometry, mutation: u64) -> bool {
        let block = match io {
            Io::Program { at, .. } | Io::ReadOob { at, .. } => at.block,
            Io::Erase { block, .. } => *block,
            Io::Read { at, .. } => geometry.split(*at).0,
            Io::Persist { .. } | Io::WriteRoot { .. } | Io::Flush | Io::Resize { .. } => return false,
        };
        // The last die: as good as any, and the same in a replay.
        let dead = geometry.die_count() - 1;
        geometry.die_of(block) == dead && self.faults.die_dies_at.is_some_and(|at| mutation >= at)
    }
}

fn endurance_of(block: BlockIndex, typical: u32) -> u64 {
    u64::from(typical / 2) + crate::rng::mix(u64::from(block.0)) % u64::from(typical)
}

fn refusal(io: &Io, why: &str) -> MediumError {
    let error = why.to_owned();
    match io {
        Io::Program { at, .. } => MediumError::BlockFailed { block: at.block, what: "program", error },
        Io::Erase { block, .. } => MediumError::BlockFailed { block: *block, what: "erase", error },
        Io::Read { at, .. } => MediumError::ReadFailed { what: at.to_string(), error },
        Io::ReadOob { at, .. } => MediumError::ReadFailed { what: at.to_string(), error },
        Io::Persist { .. } => MediumError::NotDurable { what: "commit ring write", error },
        Io::WriteRoot { .. } => MediumError::NotDurable { what: "root write", error },
        Io::Flush => MediumError::NotDurable { what: "flush", error },
        Io::Resize { .. } => MediumError::NotDurable { what: "superblock write", error },
    }
}
