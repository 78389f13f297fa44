//! A queue for media without asynchronous operations: executes everything inside `reap`, in the order submitted.
//!
//! Lives here:       the waiting list and the waker.
//! Lives elsewhere:  the operations themselves (`Medium::execute`).
//! May be called by: `memory`; `file`, where the kernel has no io_uring.

use crate::{Completion, Io, IoId, Medium, Queue, Wait, Wake};
use rustix::event::EventfdFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

/// Runs operations on the thread that reaps.
pub(crate) struct InlineQueue<M> {
    medium: M,
    accepted: Vec<(IoId, Io)>,
    waker: Arc<InlineWaker>,
}

#[derive(Default)]
struct InlineWaker {
    woken: Mutex<bool>,
    changed: Condvar,
    /// Readable while a wake waits for the next `reap`; made for the first caller that requests it, nothing if the system refuses it.
    event: OnceLock<Option<OwnedFd>>,
}

impl<M: Medium> InlineQueue<M> {
    pub(crate) fn new(medium: M) -> Self {
        Self { medium, accepted: Vec::new(), waker: Arc::default() }
    }
}

impl InlineWaker {
    /// Takes the wake that came, waiting for it as `wait` specifies.
    fn take(&self, wait: Wait) {
        let mut woken = self.woken.lock().expect("no panic under this lock");
        if let Wait::ForNs(ns) = wait {
            let timeout = Duration::from_nanos(ns);
            (woken, _) =
                self.changed.wait_timeout_while(woken, timeout, |woken| !*woken).expect("no panic under this lock");
        }
        if std::mem::take(&mut *woken)
            && let Some(Some(event)) = self.event.get()
        {
            // It can only be empty already, which is what is needed.
            let _ = rustix::io::read(event, &mut [0; 8]);
        }
    }
}

impl Wake for InlineWaker {
    fn wake(&self) {
        let mut woken = self.woken.lock().expect("no panic under this lock");
        if std::mem::replace(&mut *woken, true) {
            return; // a waiting thread has been notified, or sees it before it waits
        }
        if let Some(Some(event)) = self.event.get() {
            // The counter goes from 0 to 1, so it has room.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
        self.changed.notify_all();
    }
}

impl<M: Medium> Queue for InlineQueue<M> {
    fn submit(&mut self, id: IoId, io: Io) {
        self.medium.prefetch(&io);
        self.accepted.push((id, io));
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) {
        let wait = if self.accepted.is_empty() { wait } else { Wait::No };
        for (id, mut io) in self.accepted.drain(..) {
            let result = self.medium.execute(&mut io);
            done.push(Completion { id, io, result });
        }
        self.waker.take(wait);
    }

    fn in_flight(&self) -> usize {
        self.accepted.len()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.waker) as Arc<dyn Wake>
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        let make = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        self.waker.event.get_or_init(make).as_ref().map(AsFd::as_fd)
    }

    fn arm(&mut self) -> bool {
        self.accepted.is_empty() && !*self.waker.woken.lock().expect("no panic under this lock")
    }
}
