//! Threads for what has to wait, next to the event loop.
//!
//! Lives here:       the threads, handing jobs to them and taking back what they came to.
//! Lives elsewhere:  the jobs (`keyvalue`, `named`, `versions`, `blocks`, `namespaces`), who they are for (`engine`).
//!
//! Jobs of one controller are begun in their order; controllers take turns, so none waits for everything that another one
//! has requested. A long job yields after a piece of it, and continues when it is its controller's turn again; one that has no pieces
//! checks occasionally whether it is given up ([`Worker::is_given_up`]).

use super::mailbox::Mailbox;
use crate::wire::status::Status;
use kaml::{AsyncQueue, Bytes, Device, NamespaceId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
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
    /// The result and data of a command that was executed.
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
    inbox: Arc<Inbox>,
    /// The job that it is about.
    token: u64,
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

    /// Whether nobody needs its result any more: the host has gone or has reset the controller, or the target ends.
    pub(crate) fn is_given_up(&self) -> bool {
        let waiting = self.inbox.lock();
        waiting.is_over || waiting.under_way.get(&self.token) == Some(&true)
    }
}

/// What a worker is asked to do.
pub(crate) type Job = Box<dyn FnOnce(&mut Worker) -> Step + Send>;

/// How far a job has come.
pub(crate) enum Step {
    Done(Done),
    /// A piece of it is done; this is what remains.
    More(Job),
}

/// Jobs that no worker has begun, or continued with, and those in progress.
#[derive(Default)]
struct Waiting {
    /// By controller; none is empty.
    queues: BTreeMap<u16, VecDeque<(u64, Job)>>,
    /// Controllers with jobs, in the order of their turns.
    turns: VecDeque<u16>,
    /// Jobs that a worker is about, and whether what remains of them after the piece that is in progress is given up.
    under_way: BTreeMap<u64, bool>,
    /// Nobody begins any more.
    is_over: bool,
}

impl Waiting {
    /// The queue of a controller, which is about to get a job.
    fn queue(&mut self, controller: u16) -> &mut VecDeque<(u64, Job)> {
        self.queues.entry(controller).or_insert_with(|| {
            self.turns.push_back(controller);
            VecDeque::new()
        })
    }

    /// The next job, and whose it is.
    fn next(&mut self) -> Option<(u16, u64, Job)> {
        let controller = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&controller).expect("whose turn it is has jobs");
        let (token, job) = queue.pop_front().expect("no queue is empty");
        match queue.is_empty() {
            true => drop(self.queues.remove(&controller)),
            false => self.turns.push_back(controller),
        }
        self.under_way.insert(token, false);
        Some((controller, token, job))
    }

    /// A piece of a job is done, and there is more of it; returns false if that is given up.
    fn go_on(&mut self, controller: u16, token: u64, rest: Job) -> bool {
        let is_given_up = self.under_way.remove(&token).expect("it was under way");
        if !is_given_up {
            self.queue(controller).push_front((token, rest));
        }
        !is_given_up
    }

    /// Removes such jobs of a controller; the remaining pieces of jobs in progress are dropped.
    fn take_out(&mut self, controller: u16, tokens: &BTreeSet<u64>) -> Vec<(u64, Job)> {
        let under_way = self.under_way.iter_mut().filter(|(token, _)| tokens.contains(token));
        under_way.for_each(|(_, is_given_up)| *is_given_up = true);
        let Some(queue) = self.queues.remove(&controller) else { return Vec::new() };
        let (out, rest): (VecDeque<_>, VecDeque<_>) = queue.into_iter().partition(|(token, _)| tokens.contains(token));
        match rest.is_empty() {
            true => self.turns.retain(|turn| *turn != controller),
            false => drop(self.queues.insert(controller, rest)),
        }
        out.into()
    }
}

/// Where workers find jobs.
#[derive(Default)]
struct Inbox {
    waiting: Mutex<Waiting>,
    has_come: Condvar,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no panics under this lock")
    }

    /// The next job, when there is one; none after it is over.
    fn next(&self) -> Option<(u16, u64, Job)> {
        let is_idle = |waiting: &mut Waiting| waiting.turns.is_empty() && !waiting.is_over;
        let mut waiting = self.has_come.wait_while(self.lock(), is_idle).expect("no panics under this lock");
        if waiting.is_over { None } else { waiting.next() }
    }
}

/// What workers have done.
type Finished = Mailbox<Done>;

/// See the module.
pub(crate) struct Workers {
    /// For jobs that are soon done, and for those that take minutes.
    inboxes: [Arc<Inbox>; 2],
    finished: Arc<Finished>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(crate) fn start_threads(device: &Device) -> std::io::Result<Workers> {
        let finished = Arc::new(Finished::new()?);
        let mut workers = Workers { inboxes: Default::default(), finished, threads: Vec::new() };
        let [quick, slow] = workers.inboxes.clone();
        for inbox in std::iter::repeat_n(quick, WORKER_COUNT).chain([slow]) {
            let (device, finished) = (device.clone(), Arc::clone(&workers.finished));
            let work = move || work(Worker { device, queue: None, inbox, token: 0 }, &finished);
            workers.threads.push(std::thread::Builder::new().name("nvme-worker".into()).spawn(work)?);
        }
        Ok(workers)
    }

    /// Has one of them do it, for a controller.
    pub(crate) fn start(&self, controller: u16, token: u64, job: Job) {
        self.send(0, controller, token, job);
    }

    /// Has the one for slow jobs do it.
    pub(crate) fn start_slow(&self, controller: u16, token: u64, job: Job) {
        self.send(1, controller, token, job);
    }

    fn send(&self, inbox: usize, controller: u16, token: u64, job: Job) {
        self.inboxes[inbox].lock().queue(controller).push_back((token, job));
        self.inboxes[inbox].has_come.notify_one();
    }

    /// Jobs of a controller that are not to be begun any more, nor continued with. They are done.
    pub(crate) fn give_up(&self, controller: u16, tokens: &BTreeSet<u64>) {
        for inbox in &self.inboxes {
            let given_up = inbox.lock().take_out(controller, tokens);
            if !given_up.is_empty() {
                self.finished.push(given_up.into_iter().map(|(token, _)| (token, aborted())));
            }
        }
    }

    /// Appends what they have done.
    pub(crate) fn take(&self, into: &mut Vec<(u64, Done)>) {
        self.finished.take(into);
    }

    /// What becomes readable when one of them is done.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.finished.fd()
    }
}

fn work(mut worker: Worker, finished: &Finished) {
    while let Some((controller, token, job)) = worker.inbox.next() {
        worker.token = token;
        match job(&mut worker) {
            Step::Done(done) => {
                worker.inbox.lock().under_way.remove(&token);
                finished.push([(token, done)]);
            }
            Step::More(rest) => {
                if !worker.inbox.lock().go_on(controller, token, rest) {
                    finished.push([(token, aborted())]);
                }
            }
        }
    }
}

/// Of a job that is given up.
fn aborted() -> Done {
    Err::<u64, _>(Status::ABORT_REQUESTED).into()
}

impl Drop for Workers {
    /// Waits for what they are doing. Jobs that they have not begun are dropped; nobody gets their result.
    fn drop(&mut self) {
        for inbox in &self.inboxes {
            inbox.lock().is_over = true;
            inbox.has_come.notify_all();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker panicked");
            }
        }
    }
}
