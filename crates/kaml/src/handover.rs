//! The hand-over between blocked callers: which thread writes the staged frame, which ones sleep until it is committed, which is woken.
//!
//! Lives here:       the wait of a caller whose Put is staged, the words that callers sleep on.
//! Lives elsewhere:  the frames (`kaml_device::Core`), executing their writes (`driver`).
//! Implements:       docs/ARCHITECTURE.md "Execution".
//!
//! Why no wake-up is lost: a caller reads its frame's word under the core's lock, where it also sees that the frame
//! is not committed, and sleeps only while the word has that value; the thread that commits a frame changes the word after
//! it has left the lock. When a place for a ring write becomes free while records are staged, one sleeper of the
//! staged frame is woken to take it. `tests/handover_model.rs` runs this source under a scheduler that explores
//! interleavings.

use crate::sync::{AtomicU32, AtomicU64, Futex, MutexGuard, yield_now};
use std::sync::atomic::Ordering;

/// Words that callers sleep on; more than frames can be staged and in flight.
const FRAME_WORDS: usize = 16;

/// What is staged, in flight, and committed.
pub(crate) trait Frames {
    /// The write of a frame.
    type Write;
    /// Why there will be no more.
    type Error;
    /// Frames before this one are committed.
    fn committed(&self) -> u64;
    /// The frame that is being filled.
    fn staging_frame(&self) -> u64;
    /// Whether the staged frame should be written now.
    fn wants_persist(&self) -> bool;
    /// Whether it would soon be much larger if its writer let others go first.
    fn should_wait_for_company(&self) -> bool;
    /// The write of the staged frame, if it should be written now and there is room.
    fn begin_persist(&mut self) -> Option<Self::Write>;
    /// The error that ended everything, if one did.
    fn stopped(&self) -> Option<Self::Error>;
}

/// What a caller does on behalf of all.
pub(crate) trait Caller<F: Frames> {
    /// Locks the frames.
    fn lock(&self) -> MutexGuard<'_, F>;
    /// Executes a write, completes it and returns the [`Progress`].
    fn persist(&self, frames: MutexGuard<'_, F>, write: F::Write);
    /// Whether writes take so long that a pause before them is worth while.
    fn may_pause(&self) -> bool;
    /// Leaves the lock, to sleep. Returns false if something else had to be done that may have committed the frame.
    fn leave(&self, frames: MutexGuard<'_, F>) -> bool;
}

/// A futex word on a cache line of its own, and the number of its sleepers, so no wake-up is in vain.
#[repr(align(64))]
#[derive(Default)]
struct Word {
    value: Futex,
    sleepers: AtomicU32,
}

impl Word {
    fn value(&self) -> u32 {
        self.value.0.load(Ordering::Relaxed)
    }

    /// Sleeps unless the value has changed since it was `seen`.
    fn sleep(&self, seen: u32) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.value.sleep(seen);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Changes the value. A caller that is not counted here yet will find it changed before falling asleep: one of two that store
    /// and then load what the other stores sees the other's (sequential consistency).
    fn change(&self, wake: impl FnOnce(&Futex)) {
        self.value.0.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            wake(&self.value);
        }
    }
}

/// Where callers meet.
pub(crate) struct Handover {
    words: [Word; FRAME_WORDS],
    committed: AtomicU64,
}

/// What a completion changed for others.
pub(crate) struct Progress {
    before: u64,
    committed: u64,
    orphan: Option<u64>,
    stopped: bool,
}

impl Progress {
    /// Whether there are any.
    pub(crate) fn concern_anybody(&self) -> bool {
        self.before != self.committed || self.orphan.is_some() || self.stopped
    }
}

impl Handover {
    pub(crate) fn new(frames: &impl Frames) -> Handover {
        Handover { words: Default::default(), committed: AtomicU64::new(frames.committed()) }
    }

    fn word(&self, frame: u64) -> &Word {
        &self.words[frame as usize % FRAME_WORDS]
    }

    fn is_committed(&self, frame: u64) -> bool {
        self.committed.load(Ordering::Acquire) > frame
    }

    /// Waits until a frame is committed, and writes it, or others, if that is to be done.
    pub(crate) fn wait<'a, F: Frames>(
        &self,
        caller: &'a impl Caller<F>,
        mut frames: MutexGuard<'a, F>,
        frame: u64,
    ) -> Result<(), F::Error> {
        let word = self.word(frame);
        let mut has_paused = false;
        loop {
            if frames.committed() > frame {
                return Ok(());
            }
            // Those whom the last frame woke are about to stage: a moment for them makes fewer and larger writes.
            if !has_paused && caller.may_pause() && frames.should_wait_for_company() {
                has_paused = true;
                drop(frames);
                yield_now();
                frames = caller.lock();
                continue;
            }
            if let Some(error) = frames.stopped() {
                return Err(error);
            }
            if let Some(write) = frames.begin_persist() {
                caller.persist(frames, write);
            } else {
                let seen = word.value();
                if caller.leave(frames) {
                    word.sleep(seen);
                }
            }
            if self.is_committed(frame) {
                return Ok(());
            }
            frames = caller.lock();
        }
    }

    /// What has been committed since the last notice; call under the lock, then [`Handover::tell`] outside it.
    pub(crate) fn progress(&self, frames: &impl Frames) -> Progress {
        let committed = frames.committed();
        let before = self.committed.swap(committed, Ordering::AcqRel);
        // A frame waits for somebody to write it.
        let orphan = frames.wants_persist().then(|| frames.staging_frame());
        Progress { before, committed, orphan, stopped: frames.stopped().is_some() }
    }

    /// Wakes the callers that the progress concerns.
    pub(crate) fn notify_waiters(&self, progress: &Progress) {
        if let Some(frame) = progress.orphan {
            self.word(frame).change(Futex::wake_one);
        }
        let frames = if progress.stopped { 0..FRAME_WORDS as u64 } else { progress.before..progress.committed };
        frames.for_each(|frame| self.word(frame).change(Futex::wake_all));
    }
}
