//! A device whose calls are counted, delayed and made to fail, and what all tests need.

use kaml::store::{Backing, BatchReader, CommandQueue, Limits, PendingPut, Store, StoreOptions};
use kaml::{
    Answer, Batch, Commit, CreateOptions, Device, Error, KeyBuf, KeyKind, KeyRef, NamespaceId, NamespaceOptions,
};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Controls {
    pub(crate) gets: AtomicU64,
    /// Opened for batched reads.
    pub(crate) readers: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) get_delay_us: AtomicU64,
    /// Before a Put.
    pub(crate) write_delay_us: AtomicU64,
    /// Between fixing the order of a submitted Put and its being durable.
    pub(crate) durable_delay_us: AtomicU64,
    /// After the index was asked for keys in their order.
    pub(crate) listed_delay_us: AtomicU64,
    hold_back: AtomicBool,
    pub(crate) fail_gets: AtomicBool,
    pub(crate) fail_writes: AtomicBool,
    /// Where the next look whether a key exists waits twice before it is made, and the next Put or Get after it was.
    pub(crate) looks: Gate,
    pub(crate) written: Gate,
    pub(crate) found: Gate,
    /// Where the next Put waits twice before it is made.
    pub(crate) writing: Gate,
    /// Submitted Puts are lost instead of becoming durable.
    pub(crate) lose_pending: AtomicBool,
    /// Puts of several records are executed, and nobody is notified.
    pub(crate) lose_answers: AtomicBool,
    /// There are queues, whose Puts are accepted and then fail.
    pub(crate) fail_queued: AtomicBool,
    pub(crate) panic_queued: AtomicBool,
}

pub(crate) type Gate = Mutex<Option<Arc<Barrier>>>;

/// Lets the next one who comes wait at a gate: the answer is waited at once to know that it exists, and again to let it go.
pub(crate) fn shut(gate: &Gate) -> Arc<Barrier> {
    let barrier = Arc::new(Barrier::new(2));
    *gate.lock().unwrap() = Some(barrier.clone());
    barrier
}

fn pass(gate: &Gate) {
    let barrier = gate.lock().unwrap().take();
    if let Some(barrier) = barrier {
        barrier.wait();
        barrier.wait();
    }
}

/// No Put comes to its end while this lives; a test that fails meanwhile does not hang.
pub(crate) struct HoldBack<'a>(&'a Controls);

impl Controls {
    pub(crate) fn hold_back(&self) -> HoldBack<'_> {
        self.hold_back.store(true, Ordering::Relaxed);
        HoldBack(self)
    }

    fn wait_while_held(&self) {
        while self.hold_back.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for HoldBack<'_> {
    fn drop(&mut self) {
        self.0.hold_back.store(false, Ordering::Relaxed);
    }
}

/// A real device after controls.
#[derive(Clone)]
pub(crate) struct Controlled {
    pub(crate) device: Device,
    pub(crate) controls: Arc<Controls>,
}

fn failure() -> Error {
    Error::ReadOnly
}

fn pause(us: &AtomicU64) {
    let us = us.load(Ordering::Relaxed);
    if us > 0 {
        std::thread::sleep(Duration::from_micros(us));
    }
}

struct Pending {
    commit: Commit,
    is_lost: bool,
    controls: Arc<Controls>,
}

impl PendingPut for Pending {
    fn wait(self: Box<Self>) -> Result<(), Error> {
        pause(&self.controls.durable_delay_us);
        self.controls.wait_while_held();
        self.commit.wait()?;
        if self.is_lost { Err(failure()) } else { Ok(()) }
    }
}

struct Counted {
    reader: Box<dyn BatchReader>,
    controls: Arc<Controls>,
}

impl BatchReader for Counted {
    fn get_many(
        &mut self,
        namespace: NamespaceId,
        keys: &[KeyRef<'_>],
        answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>, Error>),
    ) {
        self.controls.gets.fetch_add(keys.len() as u64, Ordering::Relaxed);
        self.reader.get_many(namespace, keys, answer);
    }

    fn get_records(
        &mut self,
        records: &[(NamespaceId, KeyRef<'_>)],
        answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>, Error>),
    ) {
        self.controls.gets.fetch_add(records.len() as u64, Ordering::Relaxed);
        self.reader.get_records(records, answer);
    }
}

struct Failing {
    queue: Box<dyn CommandQueue>,
    controls: Arc<Controls>,
    failed: Vec<Answer>,
}

impl CommandQueue for Failing {
    fn get(&mut self, token: u64, namespace: NamespaceId, key: KeyRef<'_>) -> Result<(), Error> {
        self.queue.get(token, namespace, key)
    }

    fn put(&mut self, token: u64, _: NamespaceId, _: KeyRef<'_>, _: Option<&[u8]>) -> Result<(), Error> {
        self.failed.push(Answer { token, result: Err(failure()) });
        Ok(())
    }

    fn poll(&mut self, wait: bool, answers: &mut Vec<Answer>) {
        assert!(!self.controls.panic_queued.load(Ordering::Relaxed), "asked to panic");
        self.queue.poll(wait && self.failed.is_empty(), answers);
        answers.append(&mut self.failed);
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight() + self.failed.len()
    }
}

impl Backing for Controlled {
    fn queue(&self, depth: u32) -> Option<Box<dyn CommandQueue>> {
        let fails = self.controls.fail_queued.load(Ordering::Relaxed);
        let controls = self.controls.clone();
        let failing = || Failing { queue: Box::new(self.device.queue(depth)), controls, failed: Vec::new() };
        fails.then(|| Box::new(failing()) as _)
    }

    fn get_into(&self, namespace: NamespaceId, key: KeyRef<'_>, value: &mut Vec<u8>) -> Result<bool, Error> {
        self.controls.gets.fetch_add(1, Ordering::Relaxed);
        pause(&self.controls.get_delay_us);
        if self.controls.fail_gets.load(Ordering::Relaxed) {
            return Err(failure());
        }
        let found = self.device.get_into(namespace, key, value);
        pass(&self.controls.found);
        found
    }

    fn reader(&self) -> Box<dyn BatchReader> {
        self.controls.readers.fetch_add(1, Ordering::Relaxed);
        Box::new(Counted { reader: self.device.reader(), controls: self.controls.clone() })
    }

    fn exists(&self, namespace: NamespaceId, key: KeyRef<'_>) -> Result<bool, Error> {
        pass(&self.controls.looks);
        self.device.exists(namespace, key)
    }

    fn is_ordered(&self, namespace: NamespaceId) -> Result<bool, Error> {
        Backing::is_ordered(&self.device, namespace)
    }

    fn ordered_keys(
        &self,
        namespace: NamespaceId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        reverse: bool,
        count: usize,
    ) -> Result<Vec<KeyBuf>, Error> {
        let keys = Backing::ordered_keys(&self.device, namespace, lower, upper, reverse, count);
        pause(&self.controls.listed_delay_us);
        keys
    }

    fn write(&self, batch: &Batch) -> Result<(), Error> {
        self.controls.writes.fetch_add(1, Ordering::Relaxed);
        pass(&self.controls.writing);
        self.controls.wait_while_held();
        if self.controls.fail_writes.load(Ordering::Relaxed) {
            return Err(failure());
        }
        pause(&self.controls.write_delay_us);
        let written = self.device.write(batch);
        pass(&self.controls.written);
        if batch.len() > 1 && self.controls.lose_answers.load(Ordering::Relaxed) {
            return Err(Error::Remote("the answer is lost".into()));
        }
        written
    }

    fn submit(&self, batch: &Batch) -> Result<Box<dyn PendingPut>, Error> {
        let is_lost = self.controls.lose_pending.load(Ordering::Relaxed);
        self.controls.writes.fetch_add(1, Ordering::Relaxed);
        if self.controls.fail_writes.load(Ordering::Relaxed) {
            return Err(failure());
        }
        let commit = self.device.submit(batch)?;
        Ok(Box::new(Pending { commit, is_lost, controls: self.controls.clone() }))
    }

    fn delete_namespace(&self, namespace: NamespaceId) -> Result<(), Error> {
        if self.controls.fail_writes.load(Ordering::Relaxed) {
            return Err(failure());
        }
        self.device.delete_namespace(namespace)
    }

    fn may_lose_answers(&self) -> bool {
        true
    }

    fn limits(&self) -> Limits {
        self.device.limits()
    }

    fn value_bytes_max(&self, namespace: NamespaceId) -> u64 {
        self.device.value_bytes_max(namespace)
    }
}

/// A device in memory with one namespace, of integer keys by default, and a store over it.
pub(crate) struct World {
    pub(crate) device: Device,
    pub(crate) controls: Arc<Controls>,
    pub(crate) ns: NamespaceId,
    pub(crate) store: Store,
}

impl World {
    pub(crate) fn new(options: &StoreOptions) -> World {
        World::with_keys(KeyKind::U64, options)
    }

    /// With keys of this kind.
    pub(crate) fn with_keys(kind: KeyKind, options: &StoreOptions) -> World {
        let device = Device::in_memory(&CreateOptions::new(256 << 20)).unwrap();
        let keys = NamespaceOptions::records(kind);
        let ns = device.create_namespace("n", &keys).unwrap();
        let controls = Arc::new(Controls::default());
        let store = Store::open(Controlled { device: device.clone(), controls: controls.clone() }, options).unwrap();
        World { device, controls, ns, store }
    }

    /// Waits until this many Puts were handed to the device: the locks of the last one's transaction are taken then.
    pub(crate) fn wait_for_writes(&self, count: u64) {
        while self.controls.writes.load(Ordering::Relaxed) < count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn gets(&self) -> u64 {
        self.controls.gets.load(Ordering::Relaxed)
    }
}
