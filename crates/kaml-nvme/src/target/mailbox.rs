//! What other threads have done for the event loop.
//!
//! Lives here:       a list that wakes the event loop, and costs one load to look at while it is empty.
//! Lives elsewhere:  the threads (`workers`, `exponents`), the wait (`reactor`).

use rustix::event::EventfdFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module. Each item has the number of what it is for.
pub(super) struct Mailbox<T> {
    list: Mutex<Vec<(u64, T)>>,
    /// Whether the list holds anything, for those who look often.
    is_there: AtomicBool,
    event: OwnedFd,
}

impl<T> Mailbox<T> {
    pub(super) fn new() -> std::io::Result<Mailbox<T>> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox { list: Mutex::default(), is_there: AtomicBool::new(false), event })
    }

    pub(super) fn push(&self, items: impl IntoIterator<Item = (u64, T)>) {
        let mut list = self.list.lock().expect("no panics under this lock");
        list.extend(items);
        self.is_there.store(true, Ordering::Release);
        drop(list);
        // The counter cannot overflow: it would take 2^64 items.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Appends what there is.
    pub(super) fn take(&self, into: &mut Vec<(u64, T)>) {
        if !self.is_there.load(Ordering::Acquire) {
            return;
        }
        let mut list = self.list.lock().expect("no panics under this lock");
        self.is_there.store(false, Ordering::Release);
        // It can only be empty already.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        into.append(&mut list);
    }

    /// What becomes readable when there is something.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
