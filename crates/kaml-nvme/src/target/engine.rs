//! Executing commands on the device without holding up the others.
//!
//! Lives here:       commands in flight in the device's queue, status of errors.
//! Lives elsewhere:  what commands do (`keyvalue`, `named`, `versions`, `blocks`, `namespaces`), threads for what has to
//!                   wait (`workers`), the wait for all of it (`reactor`).

use super::budget::Budget;
use super::core::{NewQueue, Origin};
use super::keyvalue::{found, found_in};
use super::workers::{Change, Done, Job, Step, Worker, Workers};
use crate::wire::status::Status;
use kaml::{AsyncQueue, Bytes, Condition, Device, Key, NamespaceId};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// Reads of the device in flight at a time; more wait in its queue.
const QUEUE_DEPTH: u32 = 256;
/// Values of this size and more are written by a worker: the device's queue would block for them.
pub(crate) const LARGE_BYTES: usize = 32 << 10;

/// A link that there never was, of commands that are forgotten.
const NOBODY: u64 = u64::MAX;

/// What a command came to, before it is an answer to somebody.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) origin: Origin,
    pub(crate) status: Status,
    pub(crate) result: u64,
    pub(crate) data: Bytes,
    /// A namespace was created or deleted by this command.
    pub(crate) namespace: Option<Change>,
    /// What happens to the link.
    pub(crate) after: After,
}

/// What happens to a link with a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing.
    Nothing,
    /// It has a queue.
    Queue(NewQueue),
    /// It is closed after the reply was sent.
    End,
}

impl Reply {
    /// One that returns a status and nothing else.
    pub(crate) fn of(origin: Origin, status: Status) -> Reply {
        Reply { origin, status, result: 0, data: Bytes::default(), namespace: None, after: After::Nothing }
    }
}

/// What to do when a command of the device's queue, or a job, is done.
enum Then {
    /// Success has no data.
    Store,
    /// Success has the value, cut to this many bytes.
    Retrieve(usize),
    /// Success has the blocks.
    Read,
    /// Success has no data; it is given up if its link closes.
    Trim,
    /// A worker has the answer.
    Job(Work),
}

/// A command in flight: its place, and its number, by which it is distinguished from later ones there.
pub(crate) struct UnderWay(usize, u64);

/// What a worker's job does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Nothing that others can read.
    Reads,
    /// It changes what others read.
    Changes,
    /// It creates or deletes namespaces, which the target waits for.
    Manages,
}

impl Then {
    /// Whether it matters to others when it is executed.
    fn changes(&self) -> bool {
        matches!(self, Then::Store | Then::Trim | Then::Job(Work::Changes | Work::Manages))
    }
}

/// See the module.
pub(crate) struct Engine {
    device: Device,
    queue: AsyncQueue,
    budget: Budget,
    in_flight: Vec<Option<(Origin, Then, u64)>>,
    /// Commands started so far, which numbers them.
    started_count: u64,
    free: Vec<usize>,
    workers: Workers,
    answers: Vec<kaml::Answer>,
    done: Vec<(u64, Done)>,
    /// Something was started since the last poll, which carries on with it.
    started: bool,
    /// Commands, as SMART counts them.
    pub(crate) read_count: u64,
    pub(crate) write_count: u64,
}

impl Engine {
    /// With `busy_poll` it is polled without a pause. What it reads beyond what hosts have room for counts in the budget.
    pub(crate) fn new(device: &Device, busy_poll: bool, budget: Budget) -> std::io::Result<Engine> {
        let mut queue = device.queue(QUEUE_DEPTH);
        if busy_poll {
            queue.enable_housekeeping();
        }
        Ok(Engine {
            device: device.clone(),
            queue,
            budget,
            in_flight: Vec::new(),
            started_count: 0,
            free: Vec::new(),
            workers: Workers::start_threads(device)?,
            answers: Vec::new(),
            done: Vec::new(),
            started: false,
            read_count: 0,
            write_count: 0,
        })
    }

    fn token(&mut self, origin: Origin, then: Then) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(None);
            self.in_flight.len() - 1
        });
        self.in_flight[place] = Some((origin, then, self.started_count));
        self.started_count += 1;
        self.started = true;
        place as u64
    }

    fn take(&mut self, token: u64) -> (Origin, Then) {
        self.free.push(token as usize);
        let (origin, then, _) = self.in_flight[token as usize].take().expect("a token completes one time");
        (origin, then)
    }

    /// Releases a token because its command was refused at once.
    fn answered_if_refused<T>(&mut self, token: u64, result: Result<T, kaml::Error>) -> Result<T, Status> {
        result.map_err(|error| {
            self.take(token);
            status_of(&error)
        })
    }

    /// Whether a command on a namespace reads its index first, so a worker has to execute it. The command itself reports
    /// what is wrong with a namespace.
    pub(crate) fn must_load(&self, namespace: NamespaceId) -> bool {
        matches!(self.device.is_namespace_loaded(namespace), Ok(false))
    }

    /// Stores a value.
    pub(crate) fn store(
        &mut self,
        origin: Origin,
        namespace: NamespaceId,
        key: Key,
        value: Cow<'_, [u8]>,
        condition: Condition,
    ) -> Result<(), Status> {
        if value.len() >= LARGE_BYTES || self.must_load(namespace) {
            self.store_slowly(origin, namespace, key, value.into_owned(), condition);
            return Ok(());
        }
        self.write_count += 1;
        let token = self.token(origin, Then::Store);
        let started = self.queue.put_if(token, namespace, key, &value, condition);
        self.answered_if_refused(token, started)
    }

    /// Has a worker store a value.
    pub(crate) fn store_slowly(
        &mut self,
        origin: Origin,
        namespace: NamespaceId,
        key: Key,
        value: Vec<u8>,
        condition: Condition,
    ) {
        self.write_count += 1;
        self.start(origin, move |worker| done(worker.device.put_if(namespace, key, &value, condition)));
    }

    /// Stores the records of a batch, all or none.
    pub(crate) fn write(&mut self, origin: Origin, batch: kaml::Batch) -> Result<(), Status> {
        self.write_count += 1;
        if batch.value_bytes() >= LARGE_BYTES || batch.records().any(|record| self.must_load(record.namespace)) {
            self.start(origin, move |worker| done(worker.device.write(&batch)));
            return Ok(());
        }
        let token = self.token(origin, Then::Store);
        let started = self.queue.write(token, &batch);
        self.answered_if_refused(token, started)
    }

    /// Has a worker read the records of a batch, and store them, all or none.
    pub(crate) fn write_slowly(
        &mut self,
        origin: Origin,
        decode: impl FnOnce() -> Result<kaml::Batch, Status> + Send + 'static,
    ) {
        self.write_count += 1;
        self.start(origin, move |worker| match decode() {
            Ok(batch) => done(worker.device.write(&batch)),
            Err(status) => Err::<u64, _>(status).into(),
        });
    }

    /// Reads a value; no more than `room` bytes of it complete, and its size as the result.
    pub(crate) fn retrieve(
        &mut self,
        origin: Origin,
        namespace: NamespaceId,
        key: Key,
        room: usize,
    ) -> Result<(), Status> {
        if self.must_load(namespace) {
            self.retrieve_slowly(origin, namespace, key, room);
            return Ok(());
        }
        self.read_count += 1;
        let token = self.token(origin, Then::Retrieve(room));
        self.queue.set_spare_bytes_max(self.budget.spare_max());
        let result = self.queue.get_with_room(token, namespace, key, room);
        self.budget.set_spare(self.queue.spare_bytes());
        self.answered_if_refused(token, result)
    }

    /// Has a worker read a value.
    pub(crate) fn retrieve_slowly(&mut self, origin: Origin, namespace: NamespaceId, key: Key, room: usize) {
        self.start_read(origin, move |worker| {
            found(worker.device.get(namespace, key).map(|value| value.map(Bytes::from)), room).into()
        });
    }

    /// Reads so many bytes of whole blocks.
    pub(crate) fn block_read(
        &mut self,
        origin: Origin,
        namespace: NamespaceId,
        first_block: u64,
        bytes: usize,
    ) -> Result<(), Status> {
        if self.must_load(namespace) {
            self.start_read(origin, move |worker| {
                let mut blocks = vec![0; bytes];
                let read = worker.device.block_read(namespace, first_block, &mut blocks);
                read.map(|()| (0, blocks)).map_err(|error| status_of(&error)).into()
            });
            return Ok(());
        }
        self.read_count += 1;
        let token = self.token(origin, Then::Read);
        let result = self.queue.submit_block_read(token, namespace, first_block, bytes);
        self.answered_if_refused(token, result)
    }

    /// Writes whole blocks.
    pub(crate) fn block_write(
        &mut self,
        origin: Origin,
        namespace: NamespaceId,
        first_block: u64,
        data: Cow<'_, [u8]>,
    ) -> Result<(), Status> {
        self.write_count += 1;
        if self.must_load(namespace) {
            let data = data.into_owned();
            self.start(origin, move |worker| done(worker.device.block_write(namespace, first_block, &data)));
            return Ok(());
        }
        let token = self.token(origin, Then::Store);
        let result = self.queue.submit_block_write(token, namespace, first_block, &data);
        self.answered_if_refused(token, result)
    }

    /// Releases what ranges of blocks hold; at least one range. They read as zeroes.
    pub(crate) fn block_trim(
        &mut self,
        origin: Origin,
        namespace: NamespaceId,
        ranges: &[Range<u64>],
    ) -> Result<(), Status> {
        if self.must_load(namespace) {
            let ranges = ranges.to_vec();
            self.start(origin, move |worker| {
                let trim =
                    |range: &Range<u64>| worker.device.block_trim(namespace, range.start, range.end - range.start);
                done(ranges.iter().try_for_each(trim))
            });
            return Ok(());
        }
        let token = self.token(origin, Then::Trim);
        let result = self.queue.submit_block_trims(token, namespace, ranges);
        self.answered_if_refused(token, result)
    }

    /// Has a worker read something.
    pub(crate) fn start_read(&mut self, origin: Origin, job: impl FnOnce(&mut Worker) -> Done + Send + 'static) {
        self.read_in_pieces(origin, |worker| Step::Done(job(worker)));
    }

    /// Has a worker read something piece by piece; others have their turns in between.
    pub(crate) fn read_in_pieces(&mut self, origin: Origin, job: impl FnOnce(&mut Worker) -> Step + Send + 'static) {
        self.read_count += 1;
        self.start_job(origin, Work::Reads, Box::new(job));
    }

    /// Has a worker change something.
    pub(crate) fn start(&mut self, origin: Origin, job: impl FnOnce(&mut Worker) -> Done + Send + 'static) {
        self.start_job(origin, Work::Changes, Box::new(|worker| Step::Done(job(worker))));
    }

    /// Lets a worker create or delete namespaces; it does, even if the host leaves.
    pub(crate) fn start_managing(&mut self, origin: Origin, job: impl FnOnce(&mut Worker) -> Done + Send + 'static) {
        self.start_job(origin, Work::Manages, Box::new(|worker| Step::Done(job(worker))));
    }

    fn start_job(&mut self, origin: Origin, work: Work, job: Job) {
        let token = self.token(origin, Then::Job(work));
        self.workers.start(origin.controller, token, job);
    }

    /// Gives a job to the worker for long jobs, after its earlier ones; it changes nothing that lasts.
    pub(crate) fn start_slow(&mut self, origin: Origin, job: impl FnOnce(&mut Worker) -> Done + Send + 'static) {
        let token = self.token(origin, Then::Job(Work::Reads));
        self.workers.start_slow(origin.controller, token, Box::new(|worker| Step::Done(job(worker))));
    }

    /// Jobs and trims that a link has requested are not begun any more, nor continued with: nobody waits for what they read, and what they
    /// change must not overwrite what the host does since by another way.
    fn give_up(&mut self, link: u64) {
        let (mut controller, mut jobs, mut trims) = (0, BTreeSet::new(), BTreeSet::new());
        for (token, place) in self.in_flight.iter().enumerate() {
            match place {
                Some((origin, Then::Job(Work::Reads | Work::Changes), _)) if origin.link == link => {
                    controller = origin.controller; // the link's own, in all of them
                    jobs.insert(token as u64);
                }
                Some((origin, Then::Trim, _)) if origin.link == link => drop(trims.insert(token as u64)),
                _ => {}
            }
        }
        if !jobs.is_empty() {
            self.workers.give_up(controller, &jobs);
        }
        if !trims.is_empty() {
            self.queue.cancel_trims(&trims);
        }
    }

    /// A link has gone. Its commands in progress continue, and take memory until they end.
    pub(crate) fn leave_behind(&mut self, link: u64) {
        self.give_up(link);
        let theirs = self.in_flight.iter().flatten().filter(|(origin, ..)| origin.link == link);
        theirs.for_each(|(origin, ..)| self.budget.take(origin.reserved));
    }

    /// A reset: commands of the link get no completion; those in progress continue as if the link had closed. Returns the
    /// commands.
    pub(crate) fn forget(&mut self, link: u64) -> Vec<Origin> {
        self.leave_behind(link);
        let origins = self.in_flight.iter_mut().flatten().map(|(origin, ..)| origin);
        let theirs = origins.filter(|origin| origin.link == link);
        theirs.map(|origin| std::mem::replace(origin, Origin { link: NOBODY, ..*origin })).collect()
    }

    /// What has been done since, without waiting.
    pub(crate) fn poll(&mut self, replies: &mut Vec<Reply>, has_gone: impl Fn(u64) -> bool) {
        let over = |budget: &Budget, origin: &Origin| {
            if has_gone(origin.link) {
                budget.give_back(origin.reserved);
            }
        };
        self.started = false;
        let mut answers = std::mem::take(&mut self.answers);
        self.queue.set_spare_bytes_max(self.budget.spare_max());
        self.queue.poll(false, &mut answers);
        for answer in answers.drain(..) {
            let (origin, then) = self.take(answer.token);
            over(&self.budget, &origin);
            replies.push(then.reply(origin, answer.result, |spent| self.queue.recycle(spent)));
        }
        self.answers = answers;
        self.budget.set_spare(self.queue.spare_bytes());
        let mut done = std::mem::take(&mut self.done);
        self.workers.take(&mut done);
        for (token, Done { result, namespace }) in done.drain(..) {
            let (origin, _) = self.take(token);
            over(&self.budget, &origin);
            let (status, (result, data)) = match result {
                Ok(answer) => (Status::SUCCESS, answer),
                Err(status) => (status, (0, Bytes::default())),
            };
            replies.push(Reply { result, data, namespace, ..Reply::of(origin, status) });
        }
        self.done = done;
    }

    /// Takes back the memory of a value or of blocks whose command has completed.
    pub(crate) fn recycle(&mut self, data: Bytes) {
        self.queue.recycle(data);
    }

    /// Whether anything is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.in_flight.len()
    }

    /// Commands in flight that are looked for.
    pub(crate) fn under_way(&self, is_sought: impl Fn(&Origin) -> bool) -> Vec<UnderWay> {
        let places = self.in_flight.iter().enumerate();
        let found =
            places.filter_map(|(place, command)| command.as_ref().map(|(origin, _, number)| (place, origin, number)));
        found.filter(|(_, origin, _)| is_sought(origin)).map(|(place, _, number)| UnderWay(place, *number)).collect()
    }

    /// Whether one of them is in flight still.
    pub(crate) fn is_under_way(&self, UnderWay(place, number): &UnderWay) -> bool {
        self.in_flight[*place].as_ref().is_some_and(|(_, _, other)| other == number)
    }

    /// Whether changes are in progress that came from such links.
    pub(crate) fn changes_for(&self, is_sought: impl Fn(u64) -> bool) -> bool {
        self.in_flight.iter().flatten().any(|(origin, then, _)| then.changes() && is_sought(origin.link))
    }

    /// Gets ready for waiting at the descriptors. False if there is something to poll already.
    pub(crate) fn arm(&mut self) -> bool {
        !self.started && self.queue.arm()
    }

    /// What becomes readable when an armed queue has something to poll.
    pub(crate) fn queue_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.fd()
    }

    /// What becomes readable when a worker is done.
    pub(crate) fn workers_fd(&self) -> BorrowedFd<'_> {
        self.workers.fd()
    }

    /// The device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}

impl Then {
    /// The answer. Memory that it does not need is spent.
    fn reply(self, origin: Origin, result: Result<Option<Bytes>, kaml::Error>, spend: impl FnOnce(Bytes)) -> Reply {
        let (status, result, data) = match (self, result) {
            (Then::Store | Then::Trim | Then::Read | Then::Job(_), Err(error)) => {
                (status_of(&error), 0, Bytes::default())
            }
            (Then::Store | Then::Trim | Then::Job(_), Ok(_)) => (Status::SUCCESS, 0, Bytes::default()),
            (Then::Read, Ok(blocks)) => (Status::SUCCESS, 0, blocks.unwrap_or_default()),
            (Then::Retrieve(room), value) => match found_in(value, room, spend) {
                Ok((bytes, value)) => (Status::SUCCESS, bytes, value),
                Err(status) => (status, 0, Bytes::default()),
            },
        };
        Reply { result, data, ..Reply::of(origin, status) }
    }
}

/// The result of a change that returns only whether it was made.
pub(crate) fn done(result: Result<(), kaml::Error>) -> Done {
    result.map(|()| 0).map_err(|error| status_of(&error)).into()
}

/// The status that a host gets for an error.
pub(crate) fn status_of(error: &kaml::Error) -> Status {
    use kaml::ErrorClass as E;
    match error.class() {
        E::UnknownNamespace | E::WrongKind => Status::INVALID_NAMESPACE,
        E::NamespaceExists | E::BadName | E::BadLogs | E::BadOptions | E::KeepsVersions | E::EmptyBatch => {
            Status::INVALID_FIELD
        }
        E::BatchTooLarge | E::PartialBlock | E::TooManySnapshots | E::BadCreateOptions => Status::INVALID_FIELD,
        E::TooManyNamespaces => Status::NAMESPACE_IDS_EXHAUSTED,
        E::KeepsNoVersions => Status::NO_VERSIONS,
        E::NoSnapshot => Status::NO_SUCH_SNAPSHOT,
        E::SnapshotTooOld => Status::SNAPSHOT_TOO_OLD,
        E::FellBehind => Status::FELL_BEHIND,
        E::TooFarBack => Status::TOO_FAR_BACK,
        E::OutOfRange => Status::LBA_OUT_OF_RANGE,
        E::BadKey => Status::INVALID_KEY_SIZE,
        E::ValueTooLarge => Status::INVALID_VALUE_SIZE,
        E::Exists => Status::KEY_EXISTS,
        E::NotFound => Status::NO_SUCH_KEY,
        E::Full | E::SnapshotsFull => Status::CAPACITY_EXCEEDED,
        // The program that serves the device changes its records through a store.
        E::ReadOnly | E::Busy => Status::WRITE_PROTECTED,
        E::Cancelled => Status::ABORT_REQUESTED,
        E::Corrupt | E::MetadataCorrupt | E::NewerVersion => {
            tracing::error!(%error, "the medium lost data");
            Status::UNRECOVERED_READ
        }
        E::NoSpace | E::Io | E::Stopped | E::Closed | E::Internal | E::NoResources | E::Remote => failed(error),
        // Commands of a host neither open a device nor use a store.
        E::Unsuitable | E::NotEmpty | E::InUse | E::NotADevice | E::NoFile | E::NoPermission => failed(error),
        E::Deadlock | E::LockTimeout | E::DependencyLost | E::CommitsLost | E::IllegalMove => failed(error),
        E::TooManyTransactions | E::CacheTooSmall | E::BadStoreOptions => failed(error),
    }
}

fn failed(error: &kaml::Error) -> Status {
    tracing::error!(%error, "a command failed");
    Status::INTERNAL
}
