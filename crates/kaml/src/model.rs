//! Threads under a scheduler that explores interleavings, and virtual time, in place of the system's.
//!
//! Lives here:       what `sync` exchanges the system's primitives for.
//! Lives elsewhere:  the runs (`tests/lab`).
//!
//! A wait with a bound of minutes or less is a short one that may end without reason, and lets time pass: time continues only
//! while somebody waits for it or for the flash. One with a longer bound is forever, so a thread that waits in vain is noticed.

pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
pub(crate) use shuttle::sync::mpsc::channel;
use shuttle::sync::{self, LockResult, TryLockResult};
pub(crate) use shuttle::thread::yield_now;
pub(crate) use shuttle::thread_local;
use std::cell::Cell;
use std::ops::{Add, Deref, DerefMut, Sub};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bounds above this are none.
const FOR_EVER: Duration = Duration::from_secs(3600);
/// The share of a bounded wait that passes at once.
const STEPS_OF_A_WAIT: u32 = 4;
const STEP_MIN: Duration = Duration::from_micros(1);

// All threads of a run are executed by one of the system's.
std::thread_local!(static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) });

/// Virtual time since the run began.
pub fn now() -> Duration {
    NOW.get()
}

/// Lets time pass; it never runs backwards.
pub fn advance_to(then: Duration) {
    NOW.set(now().max(then));
}

/// Begins a run.
pub fn restart() {
    NOW.set(Duration::ZERO);
}

/// A moment of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Instant {
        Instant(now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        now() - self.0
    }

    pub(crate) fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time)
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

pub(crate) fn sleep(time: Duration) {
    advance_to(now() + time);
    yield_now();
}

/// Starts a thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    let is_finished = Arc::new(AtomicBool::new(false));
    let at_end = is_finished.clone();
    let work = move || {
        work();
        at_end.store(true, Ordering::SeqCst);
    };
    let handle = shuttle::thread::Builder::new().name(name.to_owned()).spawn(work)?;
    Ok(JoinHandle { handle, is_finished })
}

/// As the system's.
pub(crate) struct JoinHandle<T> {
    handle: shuttle::thread::JoinHandle<T>,
    is_finished: Arc<AtomicBool>,
}

impl<T> JoinHandle<T> {
    pub(crate) fn join(self) -> std::thread::Result<T> {
        self.handle.join()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::SeqCst)
    }
}

/// As the system's.
#[derive(Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

/// As the system's, and knows what it guards.
pub(crate) struct MutexGuard<'a, T>(sync::MutexGuard<'a, T>, &'a Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Nobody panics under a lock, or the run is over.
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        Ok(MutexGuard(self.0.lock().expect("no panics under locks"), self))
    }

    pub(crate) fn try_lock(&self) -> Result<MutexGuard<'_, T>, ()> {
        let guard: TryLockResult<_> = self.0.try_lock();
        guard.map(|guard| MutexGuard(guard, self)).map_err(drop)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// As the system's; waits are bounded as this module documents.
#[derive(Default)]
pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    pub(crate) fn wait<'a, T>(&self, MutexGuard(guard, lock): MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        Ok(MutexGuard(self.0.wait(guard).expect("no panics under locks"), lock))
    }

    /// The caller looks at the clock itself: the call does not return whether the time was over.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        bound: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, ())> {
        if bound > FOR_EVER {
            return self.wait(guard).map(|guard| (guard, ())).map_err(|_| unreachable!("nothing is poisoned here"));
        }
        // As if it had been woken for nothing.
        let lock = guard.1;
        drop(guard);
        sleep((bound / STEPS_OF_A_WAIT).max(STEP_MIN));
        Ok((lock.lock().expect("no panics under locks"), ()))
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// As the system's: what it compares before a sleep, and whom it wakes, is decided under one lock.
#[derive(Default)]
pub(crate) struct Futex(pub(crate) AtomicU32, Mutex<()>, Condvar);

impl Futex {
    pub(crate) fn sleep(&self, seen: u32) {
        let bucket = self.1.lock().expect("no panics under this lock");
        if self.0.load(Ordering::SeqCst) == seen {
            drop(self.2.wait(bucket).expect("no panics under this lock"));
        }
    }

    pub(crate) fn wake_one(&self) {
        let _bucket = self.1.lock().expect("no panics under this lock");
        self.2.notify_one();
    }

    pub(crate) fn wake_all(&self) {
        let _bucket = self.1.lock().expect("no panics under this lock");
        self.2.notify_all();
    }
}
