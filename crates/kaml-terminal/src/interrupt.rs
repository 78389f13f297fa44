//! Ctrl-C, and a terminal that closes: noticed between two steps of a long command, or the end of one that has no steps.
//!
//! Lives here:       both; inputs that may never come; that child processes do not outlive us.
//! Lives elsewhere:  what must go when a process ends (`passing`).

use crate::failure::Failure;
use crate::passing;
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What is in progress when the person asks to stop may take so long to end by itself.
const ENDS_AFTER: Duration = Duration::from_secs(1);

/// How often an input may be reported to have something to read and then have nothing.
const SPURIOUS_MAX: u32 = 1000;

/// Whether the user has asked to stop.
#[derive(Clone)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
    /// There is something to read from it after it was asked.
    woken: Arc<UnixStream>,
}

impl Interrupt {
    /// From now on the first Ctrl-C is noticed instead of ending the process; the second ends it.
    pub fn listen() -> Result<Interrupt, Failure> {
        let asked = Arc::new(AtomicBool::new(false));
        let listen = || {
            let (woken, wakes) = UnixStream::pair()?;
            for signal in signals() {
                signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&asked))?;
                signal_hook::flag::register(signal, Arc::clone(&asked))?;
                signal_hook::low_level::pipe::register(signal, wakes.try_clone()?)?;
            }
            Ok(woken)
        };
        let woken = listen().map_err(Failure::io("listening for signals"))?;
        Ok(Interrupt { asked, woken: Arc::new(woken) })
    }

    /// The same input, reading of which fails after the user asked to stop, however long no input comes.
    pub fn reads<R: Read + AsFd>(&self, input: R) -> impl Read + use<R> {
        Awaited { input, interrupt: self.clone() }
    }

    /// Ends the process soon after the person asked to stop, even if a call does not return, with what has been `done` so far;
    /// what must not outlive the process is removed. For work whose every step may be cut off, such as that of a device somewhere
    /// else: nothing is recovered there when it is opened again.
    pub fn ends_soon(&self, done: impl FnOnce() -> String + Send + 'static) -> Result<(), Failure> {
        let interrupt = self.clone();
        let wait = move || {
            while !interrupt.is_asked() {
                let mut fds = [PollFd::from_borrowed_fd(interrupt.woken.as_fd(), PollFlags::IN)];
                let _ = poll(&mut fds, None); // interrupted, or there is something
            }
            std::thread::sleep(ENDS_AFTER);
            let _closed = passing::remove_all();
            let failure = Failure::Interrupted(done());
            failure.report();
            std::process::exit(failure.code().into());
        };
        let made = std::thread::Builder::new().name("interrupt".into()).spawn(wait);
        made.map(drop).map_err(Failure::io("listening for signals"))
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

/// See [`Interrupt::reads`].
struct Awaited<R> {
    input: R,
    interrupt: Interrupt,
}

impl<R: Read + AsFd> Read for Awaited<R> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        for _ in 0..SPURIOUS_MAX {
            let mut fds = [
                PollFd::new(&self.input, PollFlags::IN),
                PollFd::from_borrowed_fd(self.interrupt.woken.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => {}
                polled => drop(polled?),
            }
            if self.interrupt.is_asked() {
                // Not of the kind that readers try again.
                return Err(std::io::Error::other("interrupted"));
            }
            match self.input.read(bytes) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
        Err(std::io::Error::other("the input reports that there is something to read, and then that there is not"))
    }
}

/// What asks a command to end, without what it was started to ignore: a shell's `nohup` and `&` do that.
pub fn signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}

/// From now on Ctrl-C removes what is passing, states what was `interrupted`, and ends the process.
pub fn ends_it(interrupted: String) -> Result<(), Failure> {
    let mut signals = Signals::new(signals()).map_err(Failure::io("listening for signals"))?;
    let ends = move || {
        if signals.forever().next().is_some() {
            let _closed = passing::remove_all();
            let failure = Failure::Interrupted(interrupted);
            failure.report();
            std::process::exit(failure.code().into());
        }
    };
    std::thread::Builder::new().spawn(ends).map_err(Failure::io("starting a thread that waits for signals"))?;
    Ok(())
}

/// For a child process: it is killed when its parent ends, which may have removed its device by then.
pub fn dies_with_parent() -> Result<(), Failure> {
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| Failure::io("asking to be killed with the parent")(error.into()))?;
    if rustix::process::getppid() == parent { Ok(()) } else { Err(Failure::Interrupted(String::new())) }
}
