//! What the cache needs of a device, local or remote.
//!
//! Lives here:       the traits, and how [`Device`] keeps them.
//! Implements:       design section 7 (the cache runs on anything that is a device).

use crate::queue::{finish_ring_writes, has_ring_writes};
use crate::{Answer, AsyncQueue, Batch, Bytes, Commit, Device, Error, Key, NamespaceId};
use std::sync::Arc;

/// What the device below takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest value, where the namespace takes no less ([`Backing::value_bytes_max`]).
    pub value_bytes_max: u64,
    /// Largest batch, where a large value counts little.
    pub batch_bytes_max: u64,
}

/// A Put whose place in the durable order is fixed.
pub trait PendingPut: Send {
    /// Waits until it is durable, and with it every Put submitted before it.
    fn wait(self: Box<Self>) -> Result<(), Error>;
}

/// Reads many values at once.
pub trait BatchReader {
    /// Each answer goes to `answer` with the place of its key. They come in any order.
    fn get_many(
        &mut self,
        namespace: NamespaceId,
        keys: &[Key],
        answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>, Error>),
    );
}

/// Commands in flight from one thread, the one that made the queue. An error of `get` or `put` is the command's answer;
/// nothing else comes for its token.
pub trait CommandQueue {
    /// Starts a Get.
    fn get(&mut self, token: u64, namespace: NamespaceId, key: Key) -> Result<(), Error>;

    /// Starts a Put of one record, or a delete; it is ordered before every later one when this returns.
    fn put(&mut self, token: u64, namespace: NamespaceId, key: Key, value: Option<&[u8]>) -> Result<(), Error>;

    /// Appends answers; with `wait` at least one, if anything is in flight.
    fn poll(&mut self, wait: bool, answers: &mut Vec<Answer>);

    /// Commands not answered yet.
    fn in_flight(&self) -> usize;
}

/// A key-value SSD as the cache sees it. All calls may be made from any thread at once.
pub trait Backing: Send + Sync + 'static {
    /// Reads a value into a buffer; false if the key is not there.
    fn get_into(&self, namespace: NamespaceId, key: Key, value: &mut Vec<u8>) -> Result<bool, Error>;

    /// A door for reads of many values, for the thread that opens it. It is used again, so opening it may cost something.
    fn reader(&self) -> Box<dyn BatchReader>;

    /// A door for commands in flight, for the thread that opens it; nothing if there is none.
    fn queue(&self, depth: u32) -> Option<Box<dyn CommandQueue>> {
        let _ = depth;
        None
    }

    /// Whether a key is there.
    fn exists(&self, namespace: NamespaceId, key: Key) -> Result<bool, Error>;

    /// Stores a batch, all or nothing; durable when it returns.
    fn write(&self, batch: &Batch) -> Result<(), Error>;

    /// Stores a batch, all or nothing; ordered before every later one when it returns.
    fn submit(&self, batch: &Batch) -> Result<Box<dyn PendingPut>, Error>;

    /// Deletes a namespace.
    fn delete_namespace(&self, namespace: NamespaceId) -> Result<(), Error>;

    /// The calling thread is about to sleep until another one has done something. What it has begun through its queues here, and
    /// others may wait for, comes to its end first.
    fn before_sleep(&self) {}

    /// Whether a Put may fail and nevertheless be carried out: one whose answer was lost on its way.
    fn may_lose_answers(&self) -> bool {
        false
    }

    /// What it takes.
    fn limits(&self) -> Limits;

    /// Largest value that a namespace takes; whatever an unknown one is said to take.
    fn value_bytes_max(&self, namespace: NamespaceId) -> u64 {
        let _ = namespace;
        self.limits().value_bytes_max
    }
}

impl PendingPut for Commit {
    fn wait(self: Box<Self>) -> Result<(), Error> {
        Commit::wait(*self)
    }
}

/// Reads in flight for one batched get: where the raw disk reaches its rate.
const READS_IN_FLIGHT: usize = 32;

/// A queue of the device that only reads.
struct DeviceReader {
    queue: AsyncQueue,
    answers: Vec<Answer>,
}

impl BatchReader for DeviceReader {
    fn get_many(
        &mut self,
        namespace: NamespaceId,
        keys: &[Key],
        answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>, Error>),
    ) {
        for (place, key) in keys.iter().enumerate() {
            self.wait_for(READS_IN_FLIGHT, answer);
            if let Err(error) = self.queue.get(place as u64, namespace, *key) {
                answer(place, Err(error));
            }
        }
        self.wait_for(1, answer);
    }
}

impl DeviceReader {
    /// Answers what comes until fewer reads than so many are in flight.
    fn wait_for(&mut self, fewer_than: usize, answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>, Error>)) {
        while self.queue.in_flight() >= fewer_than {
            self.queue.poll(true, &mut self.answers);
            let told = |found: Answer| (found.token as usize, found.result.map(|value| value.map(Bytes::into_vec)));
            self.answers.drain(..).map(told).for_each(|(place, value)| answer(place, value));
        }
    }
}

impl CommandQueue for AsyncQueue {
    fn get(&mut self, token: u64, namespace: NamespaceId, key: Key) -> Result<(), Error> {
        AsyncQueue::get(self, token, namespace, key)
    }

    fn put(&mut self, token: u64, namespace: NamespaceId, key: Key, value: Option<&[u8]>) -> Result<(), Error> {
        match value {
            Some(value) => AsyncQueue::put(self, token, namespace, key, value),
            None => AsyncQueue::delete(self, token, namespace, key),
        }
    }

    fn poll(&mut self, wait: bool, answers: &mut Vec<Answer>) {
        AsyncQueue::poll(self, wait, answers);
    }

    fn in_flight(&self) -> usize {
        AsyncQueue::in_flight(self)
    }
}

/// Commands of a device that has no queue: each is carried out when it is handed in.
pub(super) struct InlineQueue {
    pub(super) backing: Arc<dyn Backing>,
    pub(super) done: Vec<Answer>,
}

impl CommandQueue for InlineQueue {
    fn get(&mut self, token: u64, namespace: NamespaceId, key: Key) -> Result<(), Error> {
        let mut value = Vec::new();
        let there = self.backing.get_into(namespace, key, &mut value)?;
        self.done.push(Answer { token, result: Ok(there.then_some(value.into())) });
        Ok(())
    }

    fn put(&mut self, token: u64, namespace: NamespaceId, key: Key, value: Option<&[u8]>) -> Result<(), Error> {
        let mut batch = Batch::new();
        match value {
            Some(value) => batch.put(namespace, key, value),
            None => batch.delete(namespace, key),
        };
        self.backing.write(&batch)?;
        self.done.push(Answer { token, result: Ok(None) });
        Ok(())
    }

    fn poll(&mut self, _wait: bool, answers: &mut Vec<Answer>) {
        answers.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }
}

impl Backing for Device {
    fn get_into(&self, namespace: NamespaceId, key: Key, value: &mut Vec<u8>) -> Result<bool, Error> {
        Device::get_into(self, namespace, key, value)
    }

    fn reader(&self) -> Box<dyn BatchReader> {
        Box::new(DeviceReader { queue: self.queue(READS_IN_FLIGHT as u32), answers: Vec::new() })
    }

    fn queue(&self, depth: u32) -> Option<Box<dyn CommandQueue>> {
        Some(Box::new(Device::queue(self, depth)))
    }

    fn exists(&self, namespace: NamespaceId, key: Key) -> Result<bool, Error> {
        Device::exists(self, namespace, key)
    }

    fn write(&self, batch: &Batch) -> Result<(), Error> {
        Device::write(self, batch)
    }

    fn submit(&self, batch: &Batch) -> Result<Box<dyn PendingPut>, Error> {
        Ok(Box::new(Device::submit(self, batch)?))
    }

    fn delete_namespace(&self, namespace: NamespaceId) -> Result<(), Error> {
        Device::delete_namespace(self, namespace)
    }

    fn before_sleep(&self) {
        if has_ring_writes(self.shared()) {
            finish_ring_writes(self.shared());
        }
    }

    fn limits(&self) -> Limits {
        let info = self.info();
        Limits { value_bytes_max: info.value_bytes_max, batch_bytes_max: info.batch_bytes_max }
    }

    fn value_bytes_max(&self, namespace: NamespaceId) -> u64 {
        self.shared().lock().value_bytes_max_of(namespace)
    }
}
