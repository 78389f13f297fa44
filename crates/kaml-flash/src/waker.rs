//! Waking the thread that reaps an io_uring.
//!
//! Lives here:       the state of a sleeper, the events that end its sleep.
//! Lives elsewhere:  falling asleep and reaping (`uring`).

use crate::Wake;
use crate::blocks::Poke;
use io_uring::IoUring;
use rustix::event::EventfdFlags;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// A descriptor that is readable when there is something to reap, or a wake came.
///
/// The ring's own descriptor is not enough: it does not signal completions whose task work is deferred, which are made up
/// only when this thread enters the kernel. The event that the kernel signals instead must not have to signal the waker's,
/// as an armed waker's entry does for sleepers: an event signalled by an event is late by a grace period, or lost.
pub(crate) struct Notifier {
    pub(crate) either: OwnedFd,
    pub(crate) completions: OwnedFd,
}

impl Notifier {
    pub(crate) fn new(ring: &IoUring, waker: &UringWaker) -> io::Result<Self> {
        let completions = new_event()?;
        ring.submitter().register_eventfd(completions.as_raw_fd())?;
        let either = epoll::create(CreateFlags::CLOEXEC)?;
        for event in [&completions, &waker.event] {
            epoll::add(&either, event, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(Self { either, completions })
    }
}

fn new_event() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

pub(crate) fn reset(event: &OwnedFd) {
    // It can only be reset already.
    let _ = rustix::io::read(event, &mut [0; 8]);
}

/// Wakes a sleeper without a system call when nobody sleeps.
///
/// ```text
///  AWAKE ──fall asleep──▶ ASLEEP        wake: any ──▶ WOKEN, and an event if it was ASLEEP
///    ▲──────get up──────────┘           get up, forget: any ──▶ AWAKE
/// ```
pub(crate) struct UringWaker {
    state: AtomicU32,
    pub(crate) event: OwnedFd,
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const WOKEN: u32 = 2;

impl UringWaker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { state: AWAKE.into(), event: new_event()? })
    }

    /// Returns false when a wake came already.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns whether a wake came.
    pub(crate) fn get_up(&self) -> bool {
        // A woken state is left for `forget`, so the reap in progress is the one that ends.
        self.state.compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Acquire).is_err()
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.state.load(Ordering::Acquire) == ASLEEP
    }

    pub(crate) fn forget(&self) {
        self.state.swap(AWAKE, Ordering::AcqRel);
    }

    fn ring(&self) {
        // The counter cannot overflow: it would take 2^64 wakes. A failed write could only mean that.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl Wake for UringWaker {
    fn wake(&self) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            self.ring();
        }
    }
}

impl Poke for UringWaker {
    fn poke(&self) {
        if self.state.load(Ordering::Acquire) == ASLEEP {
            self.ring();
        }
    }
}
