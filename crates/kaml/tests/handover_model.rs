//! The hand-over between blocked callers under a scheduler that explores interleavings.
//!
//! The module is compiled here a second time, over the scheduler's primitives instead of the system's.

#[path = "../src/handover.rs"]
#[allow(dead_code, unreachable_pub, reason = "the model uses a part of the module")]
mod handover;
mod sync {
    pub(crate) use shuttle::sync::MutexGuard;
    pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64};
    use shuttle::sync::{Condvar, Mutex};
    pub(crate) use shuttle::thread::yield_now;
    use std::sync::atomic::Ordering;

    /// As the system's: what it compares before a sleep, and whom it wakes, is decided under one lock.
    #[derive(Default)]
    pub(crate) struct Futex(pub(crate) AtomicU32, Mutex<()>, Condvar);

    impl Futex {
        pub(crate) fn sleep(&self, seen: u32) {
            let bucket = self.1.lock().unwrap();
            if self.0.load(Ordering::SeqCst) == seen {
                drop(self.2.wait(bucket).unwrap());
            }
        }

        pub(crate) fn wake_one(&self) {
            let _bucket = self.1.lock().unwrap();
            self.2.notify_one();
        }

        pub(crate) fn wake_all(&self) {
            let _bucket = self.1.lock().unwrap();
            self.2.notify_all();
        }
    }
}

use handover::{Caller, Frames, Handover};
use shuttle::sync::{Arc, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Frames as the commit ring has them: numbered, committed in order, few writes in flight.
struct Ring {
    staging: u64,
    staged: u32,
    /// Puts of the frames in flight, and whether the write is over.
    in_flight: BTreeMap<u64, (u32, bool)>,
    committed: u64,
    stopped: bool,
    /// Writes in flight at most.
    most: usize,
    /// Writes during which others were in flight.
    beside: u64,
}

#[derive(Debug, PartialEq)]
struct Stopped;

impl Frames for Ring {
    type Write = u64;
    type Error = Stopped;

    fn committed(&self) -> u64 {
        self.committed
    }

    fn staging_frame(&self) -> u64 {
        self.staging
    }

    fn wants_persist(&self) -> bool {
        let writing = self.in_flight.values().filter(|(_, over)| !over);
        let second = self.staged * 2 >= writing.map(|(puts, _)| puts).sum();
        self.staged > 0 && (self.in_flight.is_empty() || second) && self.staging < self.committed + self.most as u64
    }

    fn should_wait_for_company(&self) -> bool {
        self.wants_persist()
    }

    fn begin_persist(&mut self) -> Option<u64> {
        self.wants_persist().then(|| {
            self.beside += u64::from(!self.in_flight.is_empty());
            self.in_flight.insert(self.staging, (std::mem::take(&mut self.staged), false));
            self.staging += 1;
            self.staging - 1
        })
    }

    fn stopped(&self) -> Option<Stopped> {
        self.stopped.then_some(Stopped)
    }
}

struct Device {
    ring: Mutex<Ring>,
    handover: Handover,
    pauses: bool,
    /// The write of this frame fails.
    fails: Option<u64>,
}

impl Device {
    fn new(most: usize, pauses: bool, fails: Option<u64>) -> Device {
        let in_flight = BTreeMap::new();
        let ring = Ring { staging: 1, staged: 0, in_flight, committed: 1, stopped: false, most, beside: 0 };
        Device { handover: Handover::new(&ring), ring: Mutex::new(ring), pauses, fails }
    }

    fn put(&self) -> Result<(), Stopped> {
        let mut ring = self.lock();
        ring.staged += 1;
        let frame = ring.staging;
        self.handover.wait(self, ring, frame)?;
        assert!(self.lock().committed > frame, "a Put that returns is committed");
        Ok(())
    }
}

impl Caller<Ring> for Device {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap()
    }

    fn persist(&self, ring: MutexGuard<'_, Ring>, write: u64) {
        drop(ring);
        shuttle::thread::yield_now();
        let mut ring = self.lock();
        if self.fails == Some(write) {
            ring.stopped = true;
        } else {
            ring.in_flight.get_mut(&write).unwrap().1 = true;
        }
        while ring.in_flight.first_key_value().is_some_and(|(_, (_, over))| *over) {
            ring.in_flight.pop_first();
            ring.committed += 1;
        }
        let progress = self.handover.progress(&*ring);
        drop(ring);
        self.handover.notify_waiters(&progress);
    }

    fn may_pause(&self) -> bool {
        self.pauses
    }

    fn leave(&self, ring: MutexGuard<'_, Ring>) -> bool {
        drop(ring);
        true
    }
}

const SCHEDULES: usize = 4000;

/// Runs callers of `puts` Puts each in many schedules; returns how many writes overlapped others. A caller that sleeps forever
/// is a deadlock, which the scheduler reports.
fn explore(callers: usize, puts: usize, most: usize, fails: Option<u64>) -> u64 {
    let beside = std::sync::Arc::new(AtomicU64::new(0));
    let sum = beside.clone();
    let run = move |pauses: bool| {
        let device = Arc::new(Device::new(most, pauses, fails));
        let caller = |_| {
            let device = device.clone();
            shuttle::thread::spawn(move || (0..puts).try_for_each(|_| device.put()))
        };
        let callers: Vec<_> = (0..callers).map(caller).collect();
        let results: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
        let ring = device.lock();
        match fails {
            None => assert!(results.iter().all(Result::is_ok) && ring.staged == 0 && ring.in_flight.is_empty()),
            Some(_) => assert!(results.contains(&Err(Stopped)), "every caller of the lost frame gets an error"),
        }
        sum.fetch_add(ring.beside, Ordering::Relaxed);
    };
    for pauses in [false, true] {
        let run = run.clone();
        shuttle::check_pct(
            {
                let run = run.clone();
                move || run(pauses)
            },
            SCHEDULES,
            3,
        );
        shuttle::check_random(move || run(pauses), SCHEDULES);
    }
    beside.load(Ordering::Relaxed)
}

/// Goal:   every caller completes when its frame is committed, and none sleeps forever.
/// Method: two to four callers that put several times, with one and with two writes in flight.
#[test]
fn nobody_sleeps_for_ever() {
    assert_eq!(explore(3, 2, 1, None), 0);
    assert!(explore(2, 3, 2, None) > 0);
    assert!(explore(4, 2, 2, None) > 0, "writes overlapped");
}

/// Goal:   when a write fails, all who wait are notified, whichever frame they wait for.
/// Method: the first or the second frame fails, while writes are in flight.
#[test]
fn failures_are_told_to_all() {
    explore(3, 3, 2, Some(1));
    explore(3, 3, 2, Some(2));
}
