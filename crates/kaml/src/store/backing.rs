//! What the cache needs of a device, local or remote.
//!
//! Lives here:       the traits, and how [`Device`] keeps them.
//! Implements:       docs/ARCHITECTURE.md "The record cache".

use crate::queue::{finish_ring_writes, has_ring_writes};
use crate::{Answer, AsyncQueue, Batch, Bytes, Commit, Device, Error, Expiry, KeyBuf, KeyRef, NamespaceId, Snapshot};
use kaml_device::{Expires, SpaceReader};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// What the device below takes.
///
/// # Examples
/// See [`Backing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest value, where the namespace takes no less ([`Backing::value_bytes_max`]).
    pub value_bytes_max: u64,
    /// Largest batch, where a large value counts little.
    pub batch_bytes_max: u64,
}

/// A Put whose place in the durable order is fixed.
///
/// # Examples
/// See [`Backing`].
pub trait PendingPut: Send {
    /// Waits until it is durable, and with it every Put submitted before it.
    ///
    /// # Errors
    /// As [`Commit::wait`].
    fn wait(self: Box<Self>) -> Result<(), Error>;
}

/// Reads many values at once.
///
/// # Examples
/// See [`Backing`].
pub trait BatchReader {
    /// Each answer goes to `answer` with the place of its key. They come in any order.
    fn get_many(
        &mut self,
        namespace: NamespaceId,
        keys: &[KeyRef<'_>],
        answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>, Error>),
    );

    /// As [`BatchReader::get_many`], of records of several namespaces. Unless a device does better, it reads those of one namespace after
    /// those of another.
    fn get_records(
        &mut self,
        records: &[(NamespaceId, KeyRef<'_>)],
        answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>, Error>),
    ) {
        let mut by_namespace: BTreeMap<NamespaceId, (Vec<usize>, Vec<KeyRef<'_>>)> = BTreeMap::new();
        for (place, (namespace, key)) in records.iter().enumerate() {
            let (places, keys) = by_namespace.entry(*namespace).or_default();
            places.push(place);
            keys.push(*key);
        }
        for (namespace, (places, keys)) in by_namespace {
            self.get_many(namespace, &keys, &mut |at, found| answer(places[at], found));
        }
    }
}

/// Commands in flight from one thread, the one that made the queue. An error of `get` or `put` is the command's answer;
/// nothing else comes for its token.
///
/// # Examples
/// See [`Backing`].
pub trait CommandQueue {
    /// Starts a Get.
    ///
    /// # Errors
    /// As [`Device::get`].
    fn get(&mut self, token: u64, namespace: NamespaceId, key: KeyRef<'_>) -> Result<(), Error>;

    /// Starts a Put of one record, or a delete; it is ordered before every later one when this returns.
    ///
    /// # Errors
    /// As [`Device::put`].
    fn put(&mut self, token: u64, namespace: NamespaceId, key: KeyRef<'_>, value: Option<&[u8]>) -> Result<(), Error>;

    /// Appends answers; with `wait` at least one, if anything is in flight.
    fn poll(&mut self, wait: bool, answers: &mut Vec<Answer>);

    /// Commands not completed yet.
    fn in_flight(&self) -> usize;
}

/// A key-value SSD as the cache sees it. All calls can be made from any thread at once.
///
/// # Examples
/// ```
/// use kaml::store::{Backing, Store, StoreOptions};
/// use kaml::{CreateOptions, Device};
/// use std::sync::Arc;
///
/// // A device of this process, or a remote one.
/// let device: Arc<dyn Backing> = Arc::new(Device::in_memory(&CreateOptions::new(64 << 20))?);
/// assert!(device.limits().value_bytes_max >= 1 << 16);
/// let mut reader = device.reader();
/// reader.get_many(1, &[7u64.into()], &mut |place, found| println!("key {place}: {found:?}"));
/// let store = Store::over(device, &StoreOptions::new(8 << 20))?;
/// # drop(store);
/// # Ok::<(), kaml::Error>(())
/// ```
pub trait Backing: Send + Sync + 'static {
    /// A handle for the store that is being opened, which alone changes records until that is dropped: changes by other handles fail
    /// then, and so does opening another store. `None` if this device cannot see to that; then the caller does.
    ///
    /// # Errors
    /// [`Error::StoreIsOpen`] if a store has taken it over already.
    fn take_over(&self) -> Result<Option<Arc<dyn Backing>>, Error> {
        Ok(None)
    }

    /// Reads a value into a buffer; false if the key does not exist.
    ///
    /// # Errors
    /// As [`Device::get`].
    fn get_into(&self, namespace: NamespaceId, key: KeyRef<'_>, value: &mut Vec<u8>) -> Result<bool, Error>;

    /// A door for reads of many values, for the thread that opens it. It is used again, so opening it may cost something.
    fn reader(&self) -> Box<dyn BatchReader>;

    /// A door for commands in flight, for the thread that opens it; nothing if there is none.
    fn queue(&self, depth: u32) -> Option<Box<dyn CommandQueue>> {
        let _ = depth;
        None
    }

    /// Whether a key exists.
    ///
    /// # Errors
    /// As [`Device::get`].
    fn exists(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<bool, Error>;

    /// Whether the keys of a namespace have an order ([`KeyKind::Ordered`](crate::KeyKind::Ordered)).
    ///
    /// # Errors
    /// [`Error::UnknownNamespace`].
    fn is_ordered(&self, namespace: NamespaceId) -> Result<bool, Error> {
        let _ = namespace;
        Ok(false)
    }

    /// Keys of an ordered namespace within bounds, in their order or in the reverse one, at most so many.
    ///
    /// # Errors
    /// [`Error::NotOrdered`], [`Error::UnknownNamespace`].
    fn ordered_keys(
        &self,
        namespace: NamespaceId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        reverse: bool,
        count: usize,
    ) -> Result<Vec<KeyBuf>, Error> {
        let _ = (lower, upper, reverse, count);
        Err(Error::NotOrdered(namespace))
    }

    /// Stores a batch, all or nothing; durable when it returns.
    ///
    /// # Errors
    /// As [`Device::write`].
    fn write(&self, batch: &Batch) -> Result<(), Error>;

    /// Stores a batch, all or nothing; ordered before every later one when it returns.
    ///
    /// # Errors
    /// As [`Device::write`].
    fn submit(&self, batch: &Batch) -> Result<Box<dyn PendingPut>, Error>;

    /// Deletes a namespace.
    ///
    /// # Errors
    /// As [`Device::delete_namespace`].
    fn delete_namespace(&self, namespace: NamespaceId) -> Result<(), Error>;

    /// The calling thread is about to sleep until another one has done something. What it has begun through its queues here, and
    /// others may wait for, comes to its end first.
    fn before_sleep(&self) {}

    /// Opens a snapshot of what is durable.
    ///
    /// # Errors
    /// As [`Device::open_snapshot`]; [`Error::Remote`] if it has no snapshots.
    fn open_snapshot(&self) -> Result<Snapshot, Error> {
        Err(Error::Remote("transactions that only read need the device itself, which is on another machine".into()))
    }

    /// Whether a Put may fail and nevertheless be executed: one whose answer was lost on its way.
    fn may_lose_answers(&self) -> bool {
        false
    }

    /// What it takes.
    fn limits(&self) -> Limits;

    /// Whether records of a namespace expire, or will unless a put requests something else. The cache keeps no values of such a namespace.
    fn expires(&self, namespace: NamespaceId) -> bool {
        let _ = namespace;
        false
    }

    /// Whether records of a namespace expire unless a put requests something else. It does not change while a store is open.
    fn has_ttl(&self, namespace: NamespaceId) -> bool {
        let _ = namespace;
        false
    }

    /// When the record of a key expires; nothing if the key does not exist.
    ///
    /// # Errors
    /// As [`Device::expiry`].
    fn expiry(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<Option<Expiry>, Error> {
        Ok(self.exists(namespace, key)?.then_some(Expiry::Never))
    }

    /// Largest value that a namespace takes; any number for an unknown one.
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

/// Versions in flight for one batched get: where the raw disk reaches its rate.
const READS_IN_FLIGHT: usize = 32;

/// Reads many records of a device at once.
struct DeviceReader {
    device: Device,
    /// For versions.
    queue: Option<AsyncQueue>,
    answers: Vec<Answer>,
}

impl BatchReader for DeviceReader {
    fn get_many(
        &mut self,
        namespace: NamespaceId,
        keys: &[KeyRef<'_>],
        answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>, Error>),
    ) {
        let records: Vec<_> = keys.iter().map(|key| (namespace, *key)).collect();
        self.get_records(&records, answer);
    }

    fn get_records(
        &mut self,
        records: &[(NamespaceId, KeyRef<'_>)],
        answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>, Error>),
    ) {
        let shared = self.device.shared();
        let is_gathered = |namespace| {
            let of = shared.reader.of(namespace);
            matches!(of, Ok(SpaceReader::Records(_))) && !shared.reader.has_expiry(namespace).unwrap_or(false)
        };
        let (mut together, mut alone): (Vec<usize>, Vec<usize>) =
            (0..records.len()).partition(|place| is_gathered(records[*place].0));
        let gathered: Vec<_> = together.iter().map(|place| records[*place]).collect();
        match shared.gather_refs(&gathered) {
            Ok(values) => values.into_iter().zip(&together).for_each(|(value, place)| answer(*place, Ok(value))),
            // Each is read by itself then, to learn which one the error is of.
            Err(_) => alone.append(&mut together),
        }
        if alone.is_empty() {
            return;
        }
        let mut queue = self.queue.take().unwrap_or_else(|| self.device.queue(READS_IN_FLIGHT as u32));
        for place in alone {
            let (namespace, key) = &records[place];
            self.wait_for(&mut queue, READS_IN_FLIGHT, answer);
            if let Err(error) = CommandQueue::get(&mut queue, place as u64, *namespace, *key) {
                answer(place, Err(error));
            }
        }
        self.wait_for(&mut queue, 1, answer);
        self.queue = Some(queue);
    }
}

impl DeviceReader {
    /// Returns what comes until fewer reads than this many are in flight.
    fn wait_for(
        &mut self,
        queue: &mut AsyncQueue,
        fewer_than: usize,
        answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>, Error>),
    ) {
        while queue.in_flight() >= fewer_than {
            queue.poll(true, &mut self.answers);
            let told = |found: Answer| (found.token as usize, found.result.map(|value| value.map(Bytes::into_vec)));
            self.answers.drain(..).map(told).for_each(|(place, value)| answer(place, value));
        }
    }
}

impl CommandQueue for AsyncQueue {
    fn get(&mut self, token: u64, namespace: NamespaceId, key: KeyRef<'_>) -> Result<(), Error> {
        AsyncQueue::get(self, token, namespace, key)
    }

    fn put(&mut self, token: u64, namespace: NamespaceId, key: KeyRef<'_>, value: Option<&[u8]>) -> Result<(), Error> {
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

/// Commands of a device that has no queue: each is executed when it is handed in.
pub(super) struct InlineQueue {
    pub(super) backing: Arc<dyn Backing>,
    pub(super) done: Vec<Answer>,
}

impl CommandQueue for InlineQueue {
    fn get(&mut self, token: u64, namespace: NamespaceId, key: KeyRef<'_>) -> Result<(), Error> {
        let mut value = Vec::new();
        let there = self.backing.get_into(namespace, key, &mut value)?;
        self.done.push(Answer { token, result: Ok(there.then_some(value.into())) });
        Ok(())
    }

    fn put(&mut self, token: u64, namespace: NamespaceId, key: KeyRef<'_>, value: Option<&[u8]>) -> Result<(), Error> {
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
    fn take_over(&self) -> Result<Option<Arc<dyn Backing>>, Error> {
        Ok(Some(Arc::new(self.for_store()?)))
    }

    fn get_into(&self, namespace: NamespaceId, key: KeyRef<'_>, value: &mut Vec<u8>) -> Result<bool, Error> {
        Device::get_into(self, namespace, key, value)
    }

    fn reader(&self) -> Box<dyn BatchReader> {
        Box::new(DeviceReader { device: self.clone(), queue: None, answers: Vec::new() })
    }

    fn queue(&self, depth: u32) -> Option<Box<dyn CommandQueue>> {
        Some(Box::new(Device::queue(self, depth)))
    }

    fn exists(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<bool, Error> {
        Device::exists(self, namespace, key)
    }

    fn is_ordered(&self, namespace: NamespaceId) -> Result<bool, Error> {
        Device::is_ordered(self, namespace)
    }

    fn ordered_keys(
        &self,
        namespace: NamespaceId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        reverse: bool,
        count: usize,
    ) -> Result<Vec<KeyBuf>, Error> {
        Device::ordered_keys(self, namespace, lower, upper, reverse, count)
    }

    fn open_snapshot(&self) -> Result<Snapshot, Error> {
        Device::open_snapshot(self)
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

    fn expires(&self, namespace: NamespaceId) -> bool {
        self.shared().reader.has_expiry(namespace).unwrap_or(false)
    }

    fn has_ttl(&self, namespace: NamespaceId) -> bool {
        self.shared().reader.expires_at(namespace, Expires::Default).is_ok_and(|time| time != 0)
    }

    fn expiry(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<Option<Expiry>, Error> {
        Device::expiry(self, namespace, key)
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

    fn value_bytes_max(&self, _: NamespaceId) -> u64 {
        self.shared().lock().value_bytes_max()
    }
}
