//! The lock word, its queue and the waits-for graph under a scheduler that explores interleavings.
//!
//! The modules are compiled here a second time, over the scheduler's primitives instead of the system's.

#[path = "../src/store/locks.rs"]
#[allow(dead_code, unreachable_pub, reason = "the model uses a part of the module")]
mod locks;
mod sync {
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::time::Instant;
}
#[path = "../src/store/waits.rs"]
#[allow(dead_code, unreachable_pub, reason = "the model uses a part of the module")]
mod waits;

use locks::{LockOutcome, LockWord, Mode, Queues, XcbId};
use shuttle::sync::{Arc, Mutex};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use waits::{LockAddr, LockSpace, Refused, Waits};

/// One lock in each shard, and what is done under it: the owners that the lock should keep apart.
struct Shard {
    word: LockWord,
    queues: Queues,
    readers: u32,
    writers: u32,
}

struct Space {
    shards: Vec<Mutex<Shard>>,
    waits: Waits,
    /// Victims.
    deadlocks: AtomicU32,
}

impl LockSpace for Space {
    fn with<R>(&self, at: LockAddr, change: impl FnOnce(&mut LockWord, &mut Queues) -> R) -> R {
        let mut shard = self.shards[at.shard as usize].lock().unwrap();
        let Shard { word, queues, .. } = &mut *shard;
        change(word, queues)
    }
}

/// So long that a schedule which needs it hangs: a deadlock that was not found is a failure.
const FOREVER: Duration = Duration::from_secs(1 << 20);

impl Space {
    fn new(locks: usize, transactions: usize) -> Space {
        let shard = || Shard { word: LockWord::FREE, queues: Queues::default(), readers: 0, writers: 0 };
        Space {
            shards: (0..locks).map(|_| Mutex::new(shard())).collect(),
            waits: Waits::new(transactions),
            deadlocks: AtomicU32::new(0),
        }
    }

    fn acquire(&self, lock: u32, who: XcbId, mode: Mode) -> Result<LockOutcome, Refused> {
        let at = LockAddr { shard: lock, slot: 0 };
        let asked = self.with(at, |word, queues| self.waits.ask(word, queues, at, who, mode));
        if asked == LockOutcome::Queued {
            self.waits.wait(self, at, who, mode, FOREVER)?;
        }
        Ok(asked)
    }

    fn release(&self, lock: u32, who: XcbId) {
        let granted = self.with(LockAddr { shard: lock, slot: 0 }, |word, queues| {
            let granted = queues.release(word, who);
            self.waits.grant(&granted);
            granted
        });
        self.waits.wake(&granted);
    }

    /// Reports that a lock is held, and checks that it has no holder that it should not have.
    fn enter(&self, lock: u32, mode: Mode) {
        let mut shard = self.shards[lock as usize].lock().unwrap();
        match mode {
            Mode::Shared => shard.readers += 1,
            Mode::Exclusive => shard.writers += 1,
        }
        assert!(shard.writers == 0 || (shard.writers == 1 && shard.readers == 0), "a writer is alone");
    }

    fn leave(&self, lock: u32, mode: Mode) {
        let mut shard = self.shards[lock as usize].lock().unwrap();
        match mode {
            Mode::Shared => shard.readers -= 1,
            Mode::Exclusive => shard.writers -= 1,
        }
    }

    /// A transaction that takes locks in an order and releases them, or is a victim on the way.
    fn transact(&self, who: XcbId, steps: &[(u32, Mode)]) -> Result<(), Refused> {
        let mut held: Vec<(u32, Mode)> = Vec::new();
        let mut end = Ok(());
        for (lock, mode) in steps {
            let before = held.iter().position(|(other, _)| other == lock);
            if let Some(before) = before {
                self.leave(*lock, held[before].1);
            }
            let result = self.acquire(*lock, who, *mode);
            match (result, before) {
                (Ok(_), Some(before)) => {
                    if *mode == Mode::Exclusive {
                        held[before].1 = Mode::Exclusive;
                    }
                    self.enter(*lock, held[before].1);
                }
                (Ok(_), None) => {
                    held.push((*lock, *mode));
                    self.enter(*lock, *mode);
                }
                (Err(refused), before) => {
                    if let Some(before) = before {
                        self.enter(*lock, held[before].1);
                    }
                    end = Err(refused);
                    break;
                }
            }
        }
        for (lock, mode) in held.iter().rev() {
            self.leave(*lock, *mode);
            self.release(*lock, who);
        }
        if end == Err(Refused::Deadlock) {
            self.deadlocks.fetch_add(1, Ordering::Relaxed);
        }
        end
    }
}

/// Runs transactions side by side in many schedules, each until it succeeds; returns the victims of all schedules.
fn explore(locks: usize, programs: &'static [&'static [(u32, Mode)]]) -> u64 {
    explore_for(SCHEDULES, locks, programs)
}

fn explore_for(schedules: usize, locks: usize, programs: &'static [&'static [(u32, Mode)]]) -> u64 {
    let victims = std::sync::Arc::new(AtomicU64::new(0));
    let sum = victims.clone();
    let run = move || {
        let space = Arc::new(Space::new(locks, programs.len()));
        let threads: Vec<_> = (0u32..)
            .zip(programs)
            .map(|(who, steps)| {
                let space = space.clone();
                shuttle::thread::spawn(move || while space.transact(who, steps).is_err() {})
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        for shard in &space.shards {
            assert_eq!(shard.lock().unwrap().word, LockWord::FREE, "everything was released");
        }
        sum.fetch_add(u64::from(space.deadlocks.load(Ordering::Relaxed)), Ordering::Relaxed);
    };
    shuttle::check_pct(run.clone(), schedules, 3);
    shuttle::check_random(run, schedules);
    victims.load(Ordering::Relaxed)
}

const SCHEDULES: usize = 3000;
/// A fault in one schedule of some thousand.
const RARE_SCHEDULES: usize = 60_000;
const S: Mode = Mode::Shared;
const X: Mode = Mode::Exclusive;

/// Goal:   a circle of waits ends with a victim, and everybody gets through; nobody sleeps forever.
/// Method: two and three transactions that take two locks each in a circle.
#[test]
fn circles_are_broken() {
    assert!(explore(2, &[&[(0, X), (1, X)], &[(1, X), (0, X)]]) > 0);
    assert!(explore(3, &[&[(0, X), (1, S)], &[(1, X), (2, S)], &[(2, X), (0, S)]]) > 0);
}

/// Goal:   two readers of a lock that both request to write are a deadlock; one among readers is not.
/// Method: upgrades next to each other, and with plain readers and a writer.
#[test]
fn upgrades_meet() {
    assert!(explore(1, &[&[(0, S), (0, X)], &[(0, S), (0, X)]]) > 0);
    assert_eq!(explore(1, &[&[(0, S), (0, X)], &[(0, S)], &[(0, X)]]), 0);
}

/// Goal:   a walk that meets a circle which no longer exists continues looking for one that does.
/// Method: a circle of two that passes through writers in a queue, some of which are victims of it and ask again.
#[test]
fn circles_hide_no_others() {
    let [there, back, writer]: [&'static [(u32, Mode)]; 3] = [&[(0, S), (1, X)], &[(1, X), (0, S)], &[(0, X)]];
    assert!(explore_for(RARE_SCHEDULES, 2, vec![there, back, writer, writer, writer].leak()) > 0);
}

/// Goal:   there is no victim without a deadlock.
/// Method: transactions that take their locks in one order, in all modes, with queues of several waiters.
#[test]
fn no_phantom_deadlocks() {
    assert_eq!(explore(3, &[&[(0, X), (1, X), (2, S)], &[(0, S), (1, X)], &[(1, S), (2, X)], &[(0, X), (2, X)]]), 0);
    assert_eq!(explore(1, &[&[(0, X)], &[(0, S)], &[(0, X)], &[(0, S)]]), 0);
}

/// Goal:   locks are given in the order of asking, so nobody starves; those who share one wait for whom neither shares it with.
/// Method: a reader, after it a writer and two readers.
#[test]
fn locks_are_given_in_order() {
    let (mut word, mut queues) = (LockWord::FREE, Queues::default());
    assert_eq!(queues.acquire(&mut word, 0, S), LockOutcome::Granted);
    for (who, mode) in [(1, X), (2, S), (3, S)] {
        assert_eq!(queues.acquire(&mut word, who, mode), LockOutcome::Queued, "{who}");
    }
    let mut blockers = Vec::new();
    queues.blockers(word, 3, &mut blockers);
    assert_eq!(blockers, [1]);
    assert_eq!(queues.release(&mut word, 0), [1]);
    assert_eq!(queues.release(&mut word, 1), [2, 3]);
}

/// Goal:   who gives up in the very moment when it is given the lock has it, or does not, and knows.
/// Method: one holds the lock, the other waits for no time at all, in many schedules; in the end the lock is free.
#[test]
fn who_gives_up_holds_nothing() {
    let run = || {
        let space = Arc::new(Space::new(1, 2));
        let (at, holder) = (LockAddr { shard: 0, slot: 0 }, space.clone());
        space.acquire(0, 0, X).unwrap();
        let holder = shuttle::thread::spawn(move || holder.release(0, 0));
        let asked = space.with(at, |word, queues| space.waits.ask(word, queues, at, 1, X));
        if asked != LockOutcome::Queued || space.waits.wait(&*space, at, 1, X, Duration::ZERO).is_ok() {
            space.release(0, 1);
        }
        holder.join().unwrap();
        assert_eq!(space.shards[0].lock().unwrap().word, LockWord::FREE);
    };
    shuttle::check_random(run, SCHEDULES);
}
