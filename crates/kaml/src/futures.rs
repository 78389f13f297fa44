//! Commands as futures, for programs with an executor (tokio and others).
//!
//! Lives here:       [`AsyncDevice`]: the thread of its event loop, how commands reach it, how futures learn that they completed.
//! Lives elsewhere:  the event loop (`queue`).
//!
//! Why no command is forgotten: the loop announces that it is about to sleep, and then looks for commands. A caller adds its command,
//! and then looks whether the loop has announced that. One of the two sees what the other did (sequential consistency).

use crate::batch::Batch;
use crate::queue::{Answer, AsyncQueue};
use crate::sync::{AtomicBool, Condvar, JoinHandle, Mutex, MutexGuard, spawn};
use crate::{Bytes, Device, Error, KeyBuf, KeyError, KeyRef, NamespaceId};
use kaml_flash::Wake;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

/// A device whose commands are futures. Clones are further handles; all can be used from any thread or task, under any executor.
///
/// One thread executes the commands of all handles. It ends when the last handle is dropped, after the commands that were started.
/// [`Device::close`] needs that first.
///
/// # Examples
/// ```
/// use kaml::{AsyncDevice, CreateOptions, Device, NamespaceOptions};
///
/// let device = Device::in_memory(&CreateOptions::new(64 << 20))?;
/// let users = device.create_namespace("users", &NamespaceOptions::default())?;
/// let commands = AsyncDevice::new(&device, 128)?;
/// let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
/// runtime.block_on(async {
///     let (ada, grace) = (commands.put(users, 1u64, b"ada"), commands.put(users, 2u64, b"grace"));
///     ada.await?; // both were started already
///     grace.await?;
///     assert_eq!(commands.get(users, 1u64).await?.as_deref(), Some(&b"ada"[..]));
///     Ok::<(), kaml::Error>(())
/// })?;
/// # Ok::<(), kaml::Error>(())
/// ```
#[derive(Clone)]
pub struct AsyncDevice {
    inner: Arc<Inner>,
}

struct Inner {
    inbox: Arc<Inbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl AsyncDevice {
    /// Starts the thread that executes commands, `depth` of them at a time; the others wait in their order.
    ///
    /// # Errors
    /// [`Error::Thread`] if the system refuses the thread.
    pub fn new(device: &Device, depth: u32) -> Result<AsyncDevice, Error> {
        let inbox = Arc::new(Inbox::default());
        let (of_loop, device) = (inbox.clone(), device.clone());
        let work = move || run(&of_loop, &device, depth.max(1));
        let thread = spawn("kaml-async", work).map_err(|error| Error::Thread(Arc::new(error)))?;
        Ok(AsyncDevice { inner: Arc::new(Inner { inbox, thread: Mutex::new(Some(thread)) }) })
    }

    /// Reads a value; none if the key does not exist. As [`Device::get`].
    pub fn get<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Pending<Option<Bytes>> {
        self.start(Command::Get(namespace, key.into().to_buf()), |value| value)
    }

    /// Stores a value; durable when the future completes. As [`Device::put`].
    pub fn put<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>, value: &[u8]) -> Pending<()> {
        let mut batch = Batch::new();
        batch.put(namespace, key, value);
        self.write(batch)
    }

    /// Deletes a key, whether it exists or not; durable when the future completes. As [`Device::delete`].
    pub fn delete<'k>(&self, namespace: NamespaceId, key: impl Into<KeyRef<'k>>) -> Pending<()> {
        let mut batch = Batch::new();
        batch.delete(namespace, key);
        self.write(batch)
    }

    /// Stores the records of a batch, all or none; durable when the future completes. As [`Device::write`].
    pub fn write(&self, batch: Batch) -> Pending<()> {
        self.start(Command::Write(batch), |_| ())
    }

    fn start<T>(&self, command: Command, output: fn(Option<Bytes>) -> T) -> Pending<T> {
        let slot = Arc::new(Slot::default());
        self.inner.inbox.add(command, slot.clone());
        Pending { slot, output }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.inbox.close();
        if let Some(thread) = self.thread.lock().expect("no panics under this lock").take() {
            thread.join().expect("the loop does not panic");
        }
    }
}

/// A command that was started: it is executed whether anybody waits for it or not.
///
/// # Examples
/// See [`AsyncDevice`].
#[must_use = "without waiting for it nobody knows whether the command succeeded"]
pub struct Pending<T> {
    slot: Arc<Slot>,
    output: fn(Option<Bytes>) -> T,
}

impl<T> Future for Pending<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, Error>> {
        let mut state = self.slot.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result.map(self.output)),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Where a command's result is left.
#[derive(Default)]
struct Slot(Mutex<SlotState>);

#[derive(Default)]
struct SlotState {
    result: Option<Result<Option<Bytes>, Error>>,
    waker: Option<Waker>,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.0.lock().expect("no panics under this lock")
    }

    fn complete(&self, result: Result<Option<Bytes>, Error>) {
        let mut state = self.lock();
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

enum Command {
    /// A key that no namespace takes is refused with the other refusals of the loop.
    Get(NamespaceId, Result<KeyBuf, KeyError>),
    Write(Batch),
}

impl Command {
    fn start(&self, queue: &mut AsyncQueue, token: u64) -> Result<(), Error> {
        match self {
            Command::Get(namespace, Ok(key)) => queue.get(token, *namespace, key),
            Command::Get(_, Err(error)) => Err((*error).into()),
            Command::Write(batch) => queue.write(token, batch),
        }
    }
}

/// Commands on their way to the loop. There are as many as callers wait for; those have them in memory anyway.
#[derive(Default)]
struct Inbox {
    commands: Mutex<Commands>,
    arrived: Condvar,
    /// The loop sleeps, or is about to, until something completes on the device.
    sleeps: AtomicBool,
    wake: OnceLock<Arc<dyn Wake>>,
}

#[derive(Default)]
struct Commands {
    waiting: VecDeque<(Command, Arc<Slot>)>,
    is_closed: bool,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().expect("no panics under this lock")
    }

    fn add(&self, command: Command, slot: Arc<Slot>) {
        self.lock().waiting.push_back((command, slot));
        self.notify();
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.notify();
    }

    fn notify(&self) {
        self.arrived.notify_one();
        if self.sleeps.swap(false, Ordering::SeqCst)
            && let Some(wake) = self.wake.get()
        {
            wake.wake();
        }
    }

    fn take(&self) -> Option<(Command, Arc<Slot>)> {
        self.lock().waiting.pop_front()
    }

    /// Waits for a command while nothing is in flight. Returns false if none will come.
    fn wait(&self) -> bool {
        let mut commands = self.lock();
        while commands.waiting.is_empty() && !commands.is_closed {
            commands = self.arrived.wait(commands).expect("no panics under this lock");
        }
        !commands.waiting.is_empty()
    }
}

fn run(inbox: &Inbox, device: &Device, depth: u32) {
    let mut queue = device.queue(depth);
    let _ = inbox.wake.set(queue.waker());
    let (mut slots, mut next, mut answers) = (HashMap::new(), 0, Vec::new());
    loop {
        inbox.sleeps.store(true, Ordering::SeqCst);
        while queue.in_flight() < depth as usize
            && let Some((command, slot)) = inbox.take()
        {
            next += 1;
            match command.start(&mut queue, next) {
                Ok(()) => _ = slots.insert(next, slot),
                Err(error) => slot.complete(Err(error)),
            }
        }
        if queue.in_flight() > 0 {
            queue.poll_unless(|| !inbox.sleeps.load(Ordering::SeqCst), &mut answers);
        } else {
            inbox.sleeps.store(false, Ordering::SeqCst);
            if !inbox.wait() {
                return;
            }
        }
        for Answer { token, result } in answers.drain(..) {
            slots.remove(&token).expect("each command completes once").complete(result);
        }
    }
}
