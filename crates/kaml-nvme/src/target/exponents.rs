//! A thread that computes what authentication takes long for.
//!
//! Lives here:       its bounded queue; it starts when it is first needed.
//! Lives elsewhere:  the computations (`auth`), which hosts wait for them (`authentication`), the wait (`reactor`).
//!
//! One thread does all of it: hosts that only pretend to know a secret then take no more than one processor, and none of the event
//! loop's. Work for a connection that is gone meanwhile is dropped.

use super::mailbox::Mailbox;
use crate::auth::{Finished, Work};
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// Work that waits at most; more is refused. It is more than one piece for each connection that may be authenticating.
const WAITING_MAX: usize = 256;

/// Work with the number of its connection. It is dropped if nobody holds the other end of the last one.
type Job = (u64, Work, Weak<()>);

/// See the module.
pub(super) struct Exponents {
    finished: Arc<Mailbox<Finished>>,
    thread: Option<(SyncSender<Job>, JoinHandle<()>)>,
}

impl Exponents {
    pub(super) fn new() -> std::io::Result<Exponents> {
        Ok(Exponents { finished: Arc::new(Mailbox::new()?), thread: None })
    }

    /// Has the thread do it, as long as `wanted` exists. False if too much waits, or if there is no thread.
    pub(super) fn start(&mut self, link: u64, work: Work, wanted: &Arc<()>) -> bool {
        let Some((sender, _)) = self.running() else { return false };
        sender.try_send((link, work, Arc::downgrade(wanted))).is_ok()
    }

    fn running(&mut self) -> Option<&(SyncSender<Job>, JoinHandle<()>)> {
        if self.thread.is_none() {
            let (sender, receiver) = sync_channel(WAITING_MAX);
            let finished = Arc::clone(&self.finished);
            let thread =
                std::thread::Builder::new().name("nvme-auth".into()).spawn(move || compute(&receiver, &finished));
            match thread {
                Ok(thread) => self.thread = Some((sender, thread)),
                Err(error) => tracing::error!(%error, "no thread for authentication can be started"),
            }
        }
        self.thread.as_ref()
    }

    /// Appends what is done, with the numbers of the connections.
    pub(super) fn take(&self, into: &mut Vec<(u64, Finished)>) {
        self.finished.take(into);
    }

    /// What becomes readable when something is done.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.finished.fd()
    }
}

fn compute(receiver: &Receiver<Job>, finished: &Mailbox<Finished>) {
    for (link, work, wanted) in receiver {
        if wanted.strong_count() > 0 {
            finished.push([(link, work.run())]);
        }
    }
}

impl Drop for Exponents {
    /// What waits is dropped with those that want it: they are gone before.
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            if thread.join().is_err() {
                tracing::error!("the thread for authentication panicked");
            }
        }
    }
}
