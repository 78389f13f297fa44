//! Threads for what has to wait, beside the event loop.
//!
//! Lives here:       the threads, handing jobs to them and taking back what they came to.
//! Lives elsewhere:  the jobs (`keyvalue`, `named`, `versions`, `blocks`, `namespaces`), who they are for (`engine`).

use crate::wire::status::Status;
use kaml::{AsyncQueue, Bytes, Device, NamespaceId};
use rustix::event::EventfdFlags;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

/// Threads for large values, which are written before they are committed, for lists of keys, versions and namespaces.
const WORKER_COUNT: usize = 2;
/// Values that one of them reads at a time, and memory for those that may be longer than what there is room for.
pub(crate) const READS_AT_ONCE: usize = 32;
const READ_BYTES_AT_ONCE: usize = 4 << 20;

/// What a worker did to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Created(NamespaceId),
    Deleted(NamespaceId),
    /// Neither, after all.
    Failed,
}

/// What a worker's job comes to.
pub(crate) struct Done {
    /// The result and data of a command that was carried out.
    pub(crate) result: Result<(u64, Bytes), Status>,
    /// A namespace was created or deleted.
    pub(crate) namespace: Option<Change>,
}

impl<T: Into<Bytes>> From<Result<(u64, T), Status>> for Done {
    fn from(result: Result<(u64, T), Status>) -> Done {
        Done { result: result.map(|(result, data)| (result, data.into())), namespace: None }
    }
}

impl From<Result<u64, Status>> for Done {
    fn from(result: Result<u64, Status>) -> Done {
        result.map(|result| (result, Bytes::default())).into()
    }
}

/// What a job works with.
pub(crate) struct Worker {
    pub(crate) device: Device,
    /// Opened when it is first needed.
    queue: Option<AsyncQueue>,
}

impl Worker {
    /// For reading many values at once; nothing is in flight in it between two jobs.
    pub(crate) fn queue(&mut self) -> &mut AsyncQueue {
        self.queue.get_or_insert_with(|| {
            let mut queue = self.device.queue(READS_AT_ONCE as u32);
            queue.set_spare_bytes_max(READ_BYTES_AT_ONCE);
            queue
        })
    }
}

/// What a worker is told to do.
pub(crate) type Job = Box<dyn FnOnce(&mut Worker) -> Done + Send>;
type Inbox = Arc<Mutex<mpsc::Receiver<(u64, Job)>>>;

/// What workers have done.
struct Finished {
    list: Mutex<Vec<(u64, Done)>>,
    /// Jobs that need not be begun any more.
    given_up: Mutex<BTreeSet<u64>>,
    /// Whether the list holds anything, for those who look often.
    is_there: AtomicBool,
    event: OwnedFd,
}

impl Finished {
    fn push(&self, token: u64, done: Done) {
        let mut list = self.list.lock().expect("no panics under this lock");
        list.push((token, done));
        self.is_there.store(true, Ordering::Release);
        drop(list);
        // The counter cannot overflow: it would take 2^64 jobs.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// See the module.
pub(crate) struct Workers {
    /// For jobs that are soon done, and for those that take minutes; none once they are to end.
    outboxes: Option<[mpsc::Sender<(u64, Job)>; 2]>,
    finished: Arc<Finished>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(crate) fn start_threads(device: &Device) -> std::io::Result<Workers> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let finished = Arc::new(Finished {
            list: Mutex::default(),
            given_up: Mutex::default(),
            is_there: AtomicBool::new(false),
            event,
        });
        let (quick, quick_inbox) = mpsc::channel();
        let (slow, slow_inbox) = mpsc::channel();
        let (quick_inbox, slow_inbox) = (Arc::new(Mutex::new(quick_inbox)), Arc::new(Mutex::new(slow_inbox)));
        let mut threads = Vec::new();
        for inbox in std::iter::repeat_n(quick_inbox, WORKER_COUNT).chain([slow_inbox]) {
            let (device, finished) = (device.clone(), Arc::clone(&finished));
            let work = move || work(Worker { device, queue: None }, &inbox, &finished);
            threads.push(std::thread::Builder::new().name("nvme-worker".into()).spawn(work)?);
        }
        Ok(Workers { outboxes: Some([quick, slow]), finished, threads })
    }

    /// Has one of them do it.
    pub(crate) fn start(&self, token: u64, job: Job) {
        self.send(0, token, job);
    }

    /// Has the one for slow jobs do it.
    pub(crate) fn start_slow(&self, token: u64, job: Job) {
        self.send(1, token, job);
    }

    fn send(&self, outbox: usize, token: u64, job: Job) {
        let outboxes = self.outboxes.as_ref().expect("closed only when dropped");
        outboxes[outbox].send((token, job)).expect("workers live");
    }

    /// Jobs that need not be begun any more. Those that are under way go on.
    pub(crate) fn give_up(&self, tokens: impl Iterator<Item = u64>) {
        self.finished.given_up.lock().expect("no panics under this lock").extend(tokens);
    }

    /// Appends what they have done.
    pub(crate) fn take(&self, into: &mut Vec<(u64, Done)>) {
        if !self.finished.is_there.load(Ordering::Acquire) {
            return;
        }
        let mut list = self.finished.list.lock().expect("no panics under this lock");
        self.finished.is_there.store(false, Ordering::Release);
        // It can only be empty already.
        let _ = rustix::io::read(&self.finished.event, &mut [0; 8]);
        let mut given_up = self.finished.given_up.lock().expect("no panics under this lock");
        given_up.retain(|given_up| list.iter().all(|(token, _)| token != given_up));
        into.append(&mut list);
    }

    /// What becomes readable when one of them is done.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.finished.event.as_fd()
    }
}

fn work(mut worker: Worker, inbox: &Inbox, finished: &Finished) {
    loop {
        let job = inbox.lock().expect("no panics under this lock").recv();
        let Ok((token, job)) = job else { return };
        let is_given_up = finished.given_up.lock().expect("no panics under this lock").contains(&token);
        let done = if is_given_up { Err::<u64, _>(Status::ABORT_REQUESTED).into() } else { job(&mut worker) };
        finished.push(token, done);
    }
}

impl Drop for Workers {
    /// Waits for what they are doing.
    fn drop(&mut self) {
        self.outboxes = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker panicked");
            }
        }
    }
}
