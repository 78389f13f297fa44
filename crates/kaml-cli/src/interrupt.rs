//! Ctrl-C, and a terminal that goes: noticed between two steps of a long command, or the end of one that has no steps.
//!
//! Lives here:       both; that child processes do not outlive us.
//! Lives elsewhere:  what must go when a process ends (`kaml_workloads::scratch`).

use crate::failure::Failure;
use kaml_workloads::scratch;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the person wants us to stop.
#[derive(Clone)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// From now on the first Ctrl-C is noticed instead of ending the process; the second ends it.
    pub fn listen() -> Result<Interrupt, Failure> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in signals() {
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&asked))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&asked)))
                .map_err(Failure::io("listening for signals"))?;
        }
        Ok(Interrupt { asked })
    }

    /// Whether the person asked to stop.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Fails with what has been done so far if the person asked to stop.
    pub fn check(&self, done: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.is_asked() { Err(Failure::Interrupted(format!(": {}", done()))) } else { Ok(()) }
    }
}

/// What asks a command to end, without what it was started to ignore: a shell's `nohup` and `&` do that.
pub fn signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}

/// From now on Ctrl-C removes what is passing, says what was `interrupted`, and ends the process.
pub fn ends_it(interrupted: String) -> Result<(), Failure> {
    let mut signals = Signals::new(signals()).map_err(Failure::io("listening for signals"))?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            let _closed = scratch::remove_all();
            let failure = Failure::Interrupted(interrupted);
            failure.report();
            std::process::exit(failure.code().into());
        }
    });
    Ok(())
}

/// For a child process: it is killed when its parent ends, which may have removed its device by then.
pub fn dies_with_parent() -> Result<(), Failure> {
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| Failure::io("asking to be killed with the parent")(error.into()))?;
    if rustix::process::getppid() == parent { Ok(()) } else { Err(Failure::Interrupted(String::new())) }
}
