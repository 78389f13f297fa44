//! A seed from beginning to end: lives of one device, a power cut at every operation or at some, recoveries cut too.
//!
//! Lives here:       lives, forks, what must hold after each, the line that replays a failure.
//! Lives elsewhere:  the scenario of a seed (`scenario`), one life (`world`), the comparison (`check`).
//!
//! A cut is tried on a fork: other flash that holds what the cut may have left. The device itself continues, so one
//! run tries thousands of cuts.

use crate::check::{self, Violation};
use crate::cuts::{CutMoment, CutPoints, Cuts};
use crate::faults::FaultCounts;
use crate::host::Command;
use crate::medium::SimMedium;
use crate::model::{Model, Phase};
use crate::rng::{Rng, mix};
use crate::scenario::{Scenario, Small, Workload, kind_of};
use crate::world::{Counts, End, World};
use kaml_device::{Core, Error, KeyKind, NamespaceOptions};
use kaml_flash::Overlay;
use std::sync::Arc;

/// What to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Everything follows from it.
    pub seed: u64,
    /// A small workload instead of what the seed means.
    pub small: Option<Small>,
    /// Where power is cut.
    pub cuts: Cuts,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Totals {
    /// Seeds run.
    pub seeds: u64,
    /// What hosts did.
    #[serde(flatten)]
    pub counts: Counts,
    /// Power cuts survived, each at another operation or moment.
    pub cuts: u64,
    /// Those of them during a recovery.
    pub recovery_cuts: u64,
    /// Those of them while something was read synchronously.
    pub read_cuts: u64,
    /// Those of them during formatting and the first opening.
    pub format_cuts: u64,
    /// Those of them that left a device; after the others nothing could be opened, and they were formatted again.
    pub formats_whole: u64,
    /// Clean closes.
    pub closes: u64,
    /// Failures of ring, root or flush survived.
    pub stops: u64,
    /// Devices given up with an honest error because flash had lost metadata.
    pub given_up: u64,
    /// Faults survived.
    pub faults: FaultCounts,
    /// Medium operations that changed something.
    pub mutations: u64,
    /// Chunks that collection moved, in bytes.
    pub relocated_bytes: u64,
    /// Fingerprint of all that happened; that of several runs does not depend on their order.
    pub trace_hash: u64,
}

impl Totals {
    /// Adds another run's.
    pub fn add(&mut self, other: &Totals) {
        self.seeds += other.seeds;
        self.counts.add(&other.counts);
        self.cuts += other.cuts;
        self.recovery_cuts += other.recovery_cuts;
        self.read_cuts += other.read_cuts;
        self.format_cuts += other.format_cuts;
        self.formats_whole += other.formats_whole;
        self.closes += other.closes;
        self.stops += other.stops;
        self.given_up += other.given_up;
        self.faults.add(&other.faults);
        self.mutations += other.mutations;
        self.relocated_bytes += other.relocated_bytes;
        self.trace_hash ^= other.trace_hash;
    }
}

/// A run that found something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}\n  replay: {replay}")]
pub struct Failure {
    /// What was found.
    pub what: String,
    /// The command line that shows it again.
    pub replay: String,
}

/// How often a device is opened in a row when faults of its medium prevent it.
const OPEN_TRIES_MAX: u32 = 30;
/// Operations of a recovery that is cut are counted up to this.
const RECOVERY_CUT_MAX: u64 = 60;
/// Operations of formatting that change something: the first root.
const FORMAT_MUTATIONS: u64 = 1;
/// This many cuts are followed by an opening for reading, too.
const READ_ONLY_ONE_IN: u64 = 8;
/// Commands after a recovery that is not continued with.
const AFTERMATH_COMMANDS: u64 = 60;

/// Runs a seed; panics of the firmware are failures too.
pub fn run(plan: &Plan) -> Result<Totals, Failure> {
    carry_out(Run::new(plan))
}

/// As [`run`], on a medium that breaks a promise.
#[cfg(feature = "broken")]
pub fn run_on(plan: &Plan, broken: Option<crate::BrokenMedium>) -> Result<Totals, Failure> {
    let mut run = Run::new(plan);
    run.broken = broken;
    carry_out(run)
}

fn carry_out(mut run: Run) -> Result<Totals, Failure> {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.lives()));
    let what = match outcome {
        Ok(Ok(())) => {
            run.totals.seeds = 1;
            return Ok(run.totals);
        }
        Ok(Err(violation)) => violation.to_string(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
            format!("the firmware panicked: {text}")
        }
    };
    Err(Failure { what, replay: run.replay() })
}

struct Run {
    plan: Plan,
    scenario: Scenario,
    totals: Totals,
    rng: Rng,
    /// The cut being tried.
    cut: Option<u64>,
    #[cfg(feature = "broken")]
    broken: Option<crate::BrokenMedium>,
}

/// How a device came back.
enum Opened {
    Open(Box<Core>),
    /// No block is left for what must be written.
    WornOut,
    /// Flash has lost what is needed, and the firmware reports it.
    GivenUp,
}

impl Run {
    fn new(plan: &Plan) -> Run {
        let scenario = match plan.small {
            Some(small) => Scenario::small(small, plan.seed),
            None => Scenario::draw(plan.seed),
        };
        let rng = Rng::new(mix(plan.seed ^ 0x5EED));
        Run {
            plan: *plan,
            scenario,
            totals: Totals::default(),
            rng,
            cut: None,
            #[cfg(feature = "broken")]
            broken: None,
        }
    }

    fn replay(&self) -> String {
        let mut line = format!("kaml-lab sim replay --seed {}", self.plan.seed);
        if let Some(small) = self.plan.small {
            line += &format!(" --workload {}", small.name());
        }
        if let Some(cut) = self.cut {
            line += &format!(" --cut {cut}");
        }
        line
    }

    fn lives(&mut self) -> Result<(), Violation> {
        let Scenario { geometry, options, workload, seed } = self.scenario.clone();
        let medium = SimMedium::new(geometry, options).map_err(|error| Violation::new(error.to_string()))?;
        #[cfg(feature = "broken")]
        medium.break_promise(self.broken);
        let mut opening = self.rng.branch(1);
        let Some(mut core) = self.format(&medium, &mut opening)? else { return Ok(()) };
        let mut model = Model::default();
        medium.cut_within_reads(Some(self.points().within_reads()));
        for life in 0..workload.lives {
            let mut world =
                World::new(core, medium.clone(), model, workload.clone(), mix(seed ^ u64::from(life) << 32));
            self.make_spaces(&mut world, life);
            let end = self.live(&mut world);
            self.totals.counts.add(&world.counts);
            self.totals.trace_hash ^= world.trace_hash().rotate_left(life);
            self.totals.relocated_bytes += world.core.stats().relocated_bytes;
            model = std::mem::take(&mut world.model);
            drop(world);
            self.end_life(end, &medium)?;
            medium.cut_within_reads(None); // recoveries are cut on forks
            match self.open(&medium, &mut opening)? {
                Opened::Open(next) => core = *next,
                Opened::WornOut => {
                    read_only(&medium, model, &workload)?;
                    return self.finish(&medium);
                }
                Opened::GivenUp => return self.finish(&medium),
            }
            check::contents(&mut core, &medium, &mut model, &workload)?;
            medium.cut_within_reads(Some(self.points().within_reads()));
        }
        self.finish(&medium)
    }

    /// Formats flash and opens it for the first time. Both are cut wherever something changes; nothing if flash refuses.
    fn format(&mut self, medium: &SimMedium, draw: &mut Rng) -> Result<Option<Core>, Violation> {
        let cuts = match self.plan.cuts {
            Cuts::Only(only) => Cuts::Only(only),
            Cuts::Every | Cuts::OneIn(_) => Cuts::Every,
        };
        medium.cut_within_reads(Some(CutPoints { seed: self.plan.seed, cuts }));
        let core = match Core::format(medium) {
            Err(error) => excuse(&error, medium).map(|()| None)?,
            Ok(()) => match self.open(medium, draw)? {
                Opened::Open(core) => Some(*core),
                Opened::WornOut | Opened::GivenUp => None,
            },
        };
        medium.cut_within_reads(None);
        for moment in medium.take_cuts() {
            self.cut = Some(moment.number);
            self.try_format_cut(moment)?;
            self.cut = None;
        }
        Ok(core)
    }

    /// Power was cut during formatting, and there is an empty device or none, and it can be formatted after all; or during the first
    /// opening, and there is one.
    fn try_format_cut(&mut self, moment: CutMoment) -> Result<(), Violation> {
        let CutMoment { number, fork, mut draw, .. } = moment;
        self.totals.cuts += 1;
        self.totals.format_cuts += 1;
        let core = match Core::open(&fork.handle()) {
            Err(Error::Root(_)) if number <= FORMAT_MUTATIONS => {
                let formatted = Core::format(&fork.handle());
                if let Err(error) = formatted {
                    return excuse(&error, &fork);
                }
                self.open(&fork, &mut draw)?
            }
            Ok((core, _)) => {
                self.totals.formats_whole += 1;
                Opened::Open(Box::new(core))
            }
            Err(error) => {
                excuse(&error, &fork)?;
                self.open(&fork, &mut draw)?
            }
        };
        let Opened::Open(mut core) = core else { return Ok(()) };
        let mut model = Model::default();
        check::contents(&mut core, &fork, &mut model, &self.scenario.workload)?;
        self.aftermath(*core, &fork, model, draw.draw())?;
        self.totals.faults.add(&fork.fault_counts());
        Ok(())
    }

    fn points(&self) -> CutPoints {
        CutPoints { seed: self.plan.seed, cuts: self.plan.cuts }
    }

    fn finish(&mut self, medium: &SimMedium) -> Result<(), Violation> {
        self.totals.mutations = medium.mutations();
        self.totals.faults.add(&medium.fault_counts());
        Ok(())
    }

    /// Namespaces of the beginning; what the first ones lack is made up for.
    fn make_spaces(&self, world: &mut World, life: u32) {
        let there = world.model.spaces.values().filter(|(_, phase)| *phase != Phase::Deleting).count() as u32;
        for number in there..self.scenario.workload.spaces {
            let name = format!("first {number} of life {life}");
            let disk = (number % 2 == 1).then(|| world.workload.disk(&mut world.rng)).flatten();
            let past = (number % 2 == 1 && world.workload.past_percent > 0)
                .then(|| world.workload.shape_of_past(&mut world.rng));
            let keys = if disk.is_some() { KeyKind::U64 } else { world.workload.key_kind(&mut world.rng) };
            if disk.is_some() && past.is_some() {
                continue; // no namespace is both
            }
            let kind = kind_of(keys, disk, past);
            let compression = world.workload.compression(&kind, u64::from(number));
            let options = NamespaceOptions::new(kind).with_compression(compression);
            if let Ok(id) = world.core.create_namespace(&name, &options) {
                world.model.add_space(id, name, &options);
            }
        }
    }

    fn live(&mut self, world: &mut World) -> End {
        match self.commands(world) {
            Ok(()) => End::Cut,
            Err(end) => end,
        }
    }

    fn commands(&mut self, world: &mut World) -> Result<(), End> {
        self.first_root(world)?;
        let mut left = self.scenario.workload.commands;
        while left > 0 {
            if world.depth() < self.scenario.workload.depth && !world.rng.one_in(4) {
                let command = Command::draw(&mut world.rng, &self.scenario.workload, &world.model);
                world.submit(command);
                left -= 1;
            }
            world.turn()?;
            self.step(world)?;
        }
        if self.rng.one_in(3) {
            world.close(&mut |world| self.step(world))?;
            self.totals.closes += 1;
            return Ok(());
        }
        if self.rng.one_in(2) {
            world.settle(&mut |world| self.step(world))?;
        }
        Ok(())
    }

    fn first_root(&mut self, world: &mut World) -> Result<(), End> {
        let request = world.core.request_root(false);
        while world.core.roots_done() < request {
            world.turn()?;
            self.step(world)?;
        }
        for (_, phase) in world.model.spaces.values_mut() {
            *phase = Phase::There;
        }
        Ok(())
    }

    /// Lets one thing happen; if it changes something, power may be cut just before it is done, on a fork.
    fn step(&mut self, world: &mut World) -> Result<(), End> {
        for (moment, model) in std::mem::take(&mut world.cuts_of_reads) {
            self.totals.read_cuts += 1;
            self.survive(moment, model)?;
        }
        if let Some(moment) = world.medium.cut_here(self.points()) {
            self.survive(moment, world.model.clone())?;
        }
        if world.rng.below(100) >= self.scenario.workload.lazy_percent / 2 { world.advance() } else { Ok(()) }
    }

    /// Power was cut, on a fork: everything that completed must come back.
    fn survive(&mut self, moment: CutMoment, model: Model) -> Result<(), Violation> {
        self.cut = Some(moment.number);
        self.try_cut(moment, model)?;
        self.cut = None;
        Ok(())
    }

    fn try_cut(&mut self, moment: CutMoment, mut model: Model) -> Result<(), Violation> {
        let CutMoment { state, fork, mut draw, .. } = moment;
        let draw = &mut draw;
        let workload = self.scenario.workload.clone();
        self.totals.cuts += 1;
        if state.is_multiple_of(READ_ONLY_ONE_IN) {
            read_only(&fork.fork_after_cut(state), model.clone(), &workload)?;
        }
        for _ in 0..draw.below(3) {
            fork.cut_after(draw.within(1, RECOVERY_CUT_MAX));
            let opened = Core::open(&fork.handle());
            if !fork.is_cut() {
                fork.power_on();
                break;
            }
            drop(opened);
            self.totals.cuts += 1;
            self.totals.recovery_cuts += 1;
            fork.power_on();
        }
        match self.open(&fork, draw)? {
            Opened::Open(mut core) => {
                check::contents(&mut core, &fork, &mut model, &workload)?;
                if draw.one_in(4) {
                    self.aftermath(*core, &fork, model, draw.draw())?;
                }
            }
            Opened::WornOut => read_only(&fork, model, &workload)?,
            Opened::GivenUp => {}
        }
        self.totals.faults.add(&fork.fault_counts());
        Ok(())
    }

    /// The recovered device can be used: Puts, collection, a root.
    fn aftermath(&mut self, core: Core, fork: &SimMedium, model: Model, seed: u64) -> Result<(), Violation> {
        let workload = self.scenario.workload.clone();
        let mut world = World::new(core, fork.clone(), model, workload.clone(), seed);
        let used = Self::use_it(&mut world);
        self.totals.counts.add(&world.counts);
        match used {
            Ok(()) => {}
            Err(End::Violation(violation)) => return Err(violation),
            Err(End::Cut | End::Stopped) => return Ok(()),
        }
        check::contents(&mut world.core, fork, &mut world.model, &workload).map(drop)
    }

    fn use_it(world: &mut World) -> Result<(), End> {
        for _ in 0..AFTERMATH_COMMANDS {
            let command = Command::draw(&mut world.rng, &world.workload, &world.model);
            world.submit(command);
            let depth = world.workload.depth;
            world.drive(&mut World::advance, |world| world.depth() < depth)?;
        }
        world.settle(&mut World::advance)
    }

    fn end_life(&mut self, end: End, medium: &SimMedium) -> Result<(), Violation> {
        match end {
            End::Violation(violation) => return Err(violation),
            End::Stopped => self.totals.stops += 1,
            End::Cut => {}
        }
        medium.cut(self.rng.draw());
        medium.power_on();
        self.totals.cuts += 1;
        Ok(())
    }

    /// Opens a device, again and again while faults of its medium prevent it.
    fn open(&mut self, medium: &SimMedium, draw: &mut Rng) -> Result<Opened, Violation> {
        let mut last = None;
        for attempt in 0..OPEN_TRIES_MAX {
            medium.spare_reads(attempt >= OPEN_TRIES_MAX / 2);
            let opened = Core::open(&medium.handle());
            medium.spare_reads(false);
            if let Some(misuse) = medium.misuse() {
                return Err(Violation::new(misuse));
            }
            match opened {
                Ok((core, _)) => return Ok(Opened::Open(Box::new(core))),
                Err(error) => {
                    excuse(&error, medium)?;
                    last = Some(error);
                }
            }
            // Its opener has gone; what was in progress is executed or not.
            medium.cut(draw.draw());
            medium.power_on();
        }
        self.totals.given_up += 1;
        if medium.faults().lose_data() {
            return Ok(Opened::GivenUp);
        }
        let worn_out = matches!(last, Some(Error::Stopped(kaml_flash::MediumError::WornOut { .. })));
        if worn_out || medium.bad_blocks().len() > 4 {
            return Ok(Opened::WornOut);
        }
        let why = last.map_or(String::new(), |error| error.to_string());
        Err(Violation::new(format!("the device cannot be opened any more: {why}")))
    }
}

/// A device that is opened for reading has everything that completed, and nothing on it changes.
fn read_only(medium: &SimMedium, mut model: Model, workload: &Workload) -> Result<(), Violation> {
    if medium.faults().lose_data() {
        return Ok(());
    }
    medium.spare_reads(true);
    let mutations = medium.mutations();
    let failed = |error: &dyn std::fmt::Display| Violation::new(format!("opening for reading: {error}"));
    let over = Overlay::new(Arc::new(medium.handle()));
    let (mut core, _) = Core::open_to_read(&over).map_err(|error| failed(&error))?;
    check::contents(&mut core, &over, &mut model, workload)?;
    match medium.mutations() == mutations {
        true => Ok(()),
        false => Err(failed(&"the medium was written to")),
    }
}

fn excuse(error: &Error, medium: &SimMedium) -> Result<(), Violation> {
    match check::is_excused(error, medium) {
        true => Ok(()),
        false => Err(Violation::new(format!("opening: {error}"))),
    }
}
