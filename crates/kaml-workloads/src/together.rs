//! Threads that work together: how they are started, meet and end, also when one of them panics or cannot be made.
//!
//! Lives here:       the gate, starting and joining.
//! May be called by: everything here that has threads.

use crate::Error;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Where a number of threads wait for each other, again and again, unless one of them will never come.
pub(crate) struct Gate {
    thread_count: usize,
    state: Mutex<State>,
    moved: Condvar,
    given_up: AtomicBool,
}

/// Which threads have arrived, and how often all have.
#[derive(Default)]
struct State {
    here_count: usize,
    passed_count: u64,
}

impl Gate {
    /// For so many threads.
    pub(crate) fn new(thread_count: usize) -> Gate {
        Gate { thread_count, state: Mutex::default(), moved: Condvar::new(), given_up: AtomicBool::new(false) }
    }

    /// Waits until all are here; an error, at once, if one of them will never come.
    pub(crate) fn pass(&self) -> Result<(), Error> {
        let mut state = self.lock();
        state.here_count += 1;
        let passed_count = state.passed_count;
        if state.here_count == self.thread_count {
            (state.here_count, state.passed_count) = (0, passed_count + 1);
            self.moved.notify_all();
        }
        while state.passed_count == passed_count && !self.is_given_up() {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match self.is_given_up() {
            true => Err(Error::Wrong("another thread ended before its work began".into())),
            false => Ok(()),
        }
    }

    /// Whether somebody will never come.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// For each thread that passes: if it panics, nobody waits for it.
    pub(crate) fn held(&self) -> impl Drop {
        Held(self)
    }

    fn give_up(&self) {
        let _state = self.lock(); // or a caller that is about to wait would not see it
        self.given_up.store(true, Ordering::Relaxed);
        self.moved.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Held<'a>(&'a Gate);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_up();
        }
    }
}

/// Starts a thread for each piece of work. The gate, where they meet if there is one, is given up if one of them cannot be
/// made, or panics.
pub(crate) fn start<'scope, T: Send + 'scope, W: FnOnce() -> T + Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    gate: Option<&'scope Gate>,
    work: impl Iterator<Item = W>,
) -> Result<Vec<ScopedJoinHandle<'scope, T>>, Error> {
    let one = |work: W| {
        Builder::new().spawn_scoped(scope, move || {
            let _held = gate.map(Gate::held);
            work()
        })
    };
    let started = work.map(one).collect::<std::io::Result<Vec<_>>>();
    started.map_err(|error| {
        gate.inspect(|gate| gate.give_up());
        Error::io("starting a thread")(error)
    })
}

/// Waits for all. Reports a panic rather than the results of the others, which it may have ended too.
pub(crate) fn join<T>(threads: Vec<ScopedJoinHandle<'_, Result<T, Error>>>) -> Result<Vec<T>, Error> {
    let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().map_err(|what| panicked(&*what))).collect();
    let answers = ended.into_iter().collect::<Result<Vec<_>, Error>>()?;
    answers.into_iter().collect()
}

fn panicked(what: &(dyn Any + Send)) -> Error {
    let text = what.downcast_ref::<&str>().copied().or_else(|| what.downcast_ref::<String>().map(String::as_str));
    Error::Wrong(format!("a thread panicked: {}", text.unwrap_or("without words")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Goal:   nobody passes before all are here, again and again.
    /// Method: four threads count, and compare at each of a hundred gates.
    #[test]
    fn all_pass_together() {
        let (gate, count) = (Gate::new(4), AtomicUsize::new(0));
        let work = || {
            for round in 1..=100 {
                count.fetch_add(1, Ordering::SeqCst);
                gate.pass()?;
                assert_eq!(count.load(Ordering::SeqCst), 4 * round);
                gate.pass()?;
            }
            Ok(())
        };
        let joined = std::thread::scope(|scope| join(start(scope, Some(&gate), (0..4).map(|_| work))?));
        assert_eq!(joined.unwrap().len(), 4);
    }

    /// Goal:   a panic before a gate ends the others, those that come later too, and is what the caller sees.
    /// Method: one of four threads panics; so does the one that started them.
    #[test]
    fn panics_leave_nobody_waiting() {
        let gate = Gate::new(5);
        let work = |thread| {
            let gate = &gate;
            move || {
                assert!(thread != 2, "thread {thread} has had enough");
                gate.pass()
            }
        };
        let joined = std::thread::scope(|scope| {
            let threads = start(scope, Some(&gate), (0..4).map(work))?;
            assert!(gate.pass().is_err());
            join(threads)
        });
        assert!(matches!(joined, Err(Error::Wrong(what)) if what.contains("thread 2 has had enough")));

        let gate = Gate::new(2);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            std::thread::scope(|scope| {
                let _held = gate.held();
                let threads = start(scope, Some(&gate), std::iter::once(|| gate.pass()));
                assert!(threads.is_err(), "a panic while a thread waits");
            });
        }));
        assert!(caught.is_err());
    }
}
