//! `kaml follow`: a device that follows another one.
//!
//! Lives here:       flags, opening both devices, connecting again.
//! Lives elsewhere:  what the target knows of its source (`state`), applying changes (`apply`), copying what existed before (`copy`),
//!                   comparing (`verify`).
//! Implements:       docs/ARCHITECTURE.md "The change stream".

mod apply;
mod copy;
mod state;
mod verify;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::store::{self, PlaceArgument};
use crate::whole::{self, Temporary};
use crate::{output, size};
use apply::Follower;
use clap::Args;
use kaml::{CreateOptions, Device, OpenOptions};
use kaml_nvme::host::RemoteDevice;
use kaml_terminal::flags::Durability;
use state::Target;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pauses between two attempts to reach the source.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// With `--once`, a source that cannot be reached for so long is an error.
const GIVE_UP: Duration = Duration::from_secs(10);

/// Flags of `kaml follow`.
#[derive(Args)]
#[command(after_help = "Examples:
  kaml follow nvme+tcp://127.0.0.1:4420/NQN copy.kaml
  kaml follow nvme+tcp://127.0.0.1:4420/NQN copy.kaml --once
  kaml follow nvme+tcp://127.0.0.1:4420/NQN copy.kaml --once --verify

Copies all namespaces of records to the target, and then applies what is committed on the source, until it is ended. The target is created if it \
does not exist. Each commit is applied as a whole together with its position, so either side can be killed at any moment: the next start continues. \
If changes that the target lacks are not kept any more, everything is copied again by itself. Namespaces of blocks and of versions are not followed. \
This process has the target open; end it to use the target.")]
pub struct Arguments {
    #[command(flatten)]
    source: PlaceArgument,
    /// Device file or block device that follows; a file is created if it does not exist
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// Bytes of a target that is created [default: as the source, and it grows when it must]
    #[arg(long, short, value_parser = size::parse)]
    capacity: Option<u64>,
    /// What an applied change survives, of a target that is created
    #[arg(long, value_enum, default_value_t)]
    durability: Durability,
    /// End when the target has caught up
    #[arg(long)]
    once: bool,
    /// When the target has caught up, compare every record with the source; exit code 1 if one differs
    #[arg(long)]
    verify: bool,
    /// Print each second how much of what the source has committed the target lacks
    #[arg(long)]
    progress: bool,
}

/// Why following the source ends, for a moment or for good.
pub enum Stop {
    /// The source cannot be reached, or has to be looked at anew.
    Again(String),
    /// The changes after the target's position are gone.
    Behind,
    /// For good.
    Fatal(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Fatal(failure)
    }
}

/// An error of the source.
pub fn of_source(error: kaml::Error) -> Stop {
    match error {
        kaml::Error::FellBehind => Stop::Behind,
        // A namespace that was deleted meanwhile, or that a new connection has attached.
        kaml::Error::Remote(_) | kaml::Error::UnknownNamespace(_) => Stop::Again(error.to_string()),
        error => Stop::Fatal(error.into()),
    }
}

/// An error of the target.
pub fn of_target(error: kaml::Error) -> Stop {
    Stop::Fatal(error.into())
}

impl Arguments {
    /// Follows until it is ended.
    pub fn run(self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let first = self.connect_first(&interrupt)?;
        let source = first.position()?.device();
        let device = self.open_target(&first)?;
        let name = self.target.display().to_string();
        let mut target = Target::open(device, source, &name)?;
        let outcome = self.follow(&mut target, first, &interrupt);
        let closed = target.into_device().close().map_err(Failure::from);
        outcome.and(closed)
    }

    fn connect(&self) -> Result<RemoteDevice, Failure> {
        self.source.remote()?.ok_or_else(|| {
            let what = "the source must be served: run `kaml serve` on it and name its address, nvme+tcp://HOST:PORT/SUBSYSTEM";
            Failure::Usage(what.to_owned())
        })
    }

    /// A target that exists waits for its source.
    fn connect_first(&self, interrupt: &Interrupt) -> Result<RemoteDevice, Failure> {
        let mut has_told = false;
        loop {
            match self.connect() {
                Err(Failure::Failed(why)) if !self.once && exists(&self.target) && !interrupt.is_asked() => {
                    if !has_told {
                        output::note(format!("{why}; trying again"));
                        has_told = true;
                    }
                    std::thread::sleep(PAUSE_MAX / 10);
                }
                outcome => return outcome,
            }
        }
    }

    fn open_target(&self, source: &RemoteDevice) -> Result<Device, Failure> {
        store::refuse_remote(&self.target)?;
        if exists(&self.target) {
            return store::open(&self.target, &OpenOptions::default());
        }
        let page = source.page().ok().flatten();
        let page = page.ok_or_else(|| Failure::Failed("the source is not a device of KAML".to_owned()))?;
        // As the source is: values and commits of the source fit. A smaller target may be too small for that.
        let given = |bytes: u64| (bytes != 0).then_some(bytes);
        let (block_bytes, ring_bytes) = (given(page.block_bytes.get()), given(page.commit_ring_bytes.get()));
        let options = |block_bytes, ring_bytes| CreateOptions {
            block_bytes,
            ring_bytes,
            durability: self.durability.into(),
            // The source may grow.
            grow_up_to: self.capacity.is_none().then_some(u64::MAX),
            ..CreateOptions::new(self.capacity.unwrap_or(page.file_bytes.get()))
        };
        self.create(&options(block_bytes, ring_bytes)).or_else(|failure| match self.capacity {
            Some(_) => self.create(&options(None, None)),
            None => Err(failure),
        })?;
        store::open(&self.target, &OpenOptions::default())
    }

    /// Creates the target, which gets its name when it is whole.
    fn create(&self, options: &CreateOptions) -> Result<(), Failure> {
        let failed = Failure::io(self.target.display());
        // The device locks the file as long as it is open.
        let (temporary, file) = Temporary::file(&self.target, 0o600).map_err(&failed)?;
        drop(file);
        Device::create(temporary.path(), options)?.close()?;
        temporary.rename_new(&self.target).map_err(&failed)?;
        whole::sync_directory(&self.target).map_err(failed)
    }

    fn follow(&self, target: &mut Target, first: RemoteDevice, interrupt: &Interrupt) -> Result<(), Failure> {
        let (mut next, mut pause, mut reached, mut told) = (Some(first), PAUSE_MIN, Instant::now(), String::new());
        while !interrupt.is_asked() {
            let stop = match next.take().map_or_else(|| self.connect(), Ok) {
                Ok(source) => match self.session(target, &source, interrupt) {
                    Ok(()) => return Ok(()),
                    Err((stop, has_progress)) => {
                        if has_progress {
                            (pause, reached) = (PAUSE_MIN, Instant::now());
                        }
                        stop
                    }
                },
                Err(failure) => Stop::Again(failure.to_string()),
            };
            match stop {
                Stop::Fatal(failure) => return Err(failure),
                Stop::Behind => {
                    output::note("the changes after the target's position are gone; everything is copied again");
                    target.begin_again()?;
                }
                Stop::Again(why) if self.once && reached.elapsed() > GIVE_UP => return Err(Failure::Failed(why)),
                Stop::Again(why) => {
                    if why != told {
                        output::note(format!("{why}; trying again"));
                        told = why;
                    }
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
        Ok(())
    }

    /// Follows over one connection.
    fn session(&self, target: &mut Target, source: &RemoteDevice, interrupt: &Interrupt) -> Result<(), (Stop, bool)> {
        let mut follower = Follower::new(target, source).map_err(|stop| (stop, false))?;
        let (mut has_told, mut shown) = (false, Instant::now());
        let mut pause = Duration::from_millis(2);
        loop {
            if interrupt.is_asked() {
                return Ok(());
            }
            if self.progress && shown.elapsed() >= Duration::from_secs(1) {
                let line = format!("{}: lacks {}", follower.position(), size::show(follower.lag_bytes()));
                output::line(line).map_err(|failure| (failure.into(), true))?;
                shown = Instant::now();
            }
            let step = follower.step();
            let has_progress = follower.has_progress();
            match step.map_err(|stop| (stop, has_progress))? {
                true => pause = Duration::from_millis(2),
                false => {
                    if !has_told {
                        let position = follower.position();
                        output::line(format!("{}: has caught up at {position}", self.target.display()))
                            .map_err(|failure| (failure.into(), true))?;
                        has_told = true;
                        if self.verify {
                            let verified = follower.verify().map_err(|stop| (stop, true))?;
                            output::line(verified).map_err(|failure| (failure.into(), true))?;
                        }
                        if self.once {
                            return Ok(());
                        }
                    }
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(50));
                }
            }
        }
    }
}

fn exists(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}
