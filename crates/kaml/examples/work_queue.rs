//! A durable work queue with leases: a job is done at least once, even if a worker dies. It can be run again and again.
//!
//! cargo run -p kaml --example work_queue
//!
//! A worker that takes a job gets a lease: the job moves from `ready` to `leased`, under the time at which the lease ends. A worker that
//! finishes deletes it. When a lease ends first, the job returns to `ready` and is taken again.

use kaml::store::{Store, StoreOptions};
use kaml::{CreateOptions, Device, Error, KeyBuf, KeyKind, NamespaceId, NamespaceOptions};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A job that a worker has taken.
pub(crate) struct Job {
    pub(crate) number: u64,
    pub(crate) text: Vec<u8>,
    lease: KeyBuf,
}

/// A queue on a device. Any number of threads can call it.
pub(crate) struct WorkQueue {
    store: Store,
    ready: NamespaceId,
    leased: NamespaceId,
    counts: NamespaceId,
}

impl WorkQueue {
    pub(crate) fn open(device: Device) -> Result<WorkQueue, Error> {
        let ordered = NamespaceOptions::records(KeyKind::Ordered);
        let ready = device.ensure_namespace("ready", &ordered)?.id();
        let leased = device.ensure_namespace("leased", &ordered)?.id();
        let counts = device.ensure_namespace("counts", &NamespaceOptions::default())?.id();
        Ok(WorkQueue { store: Store::open(device, &StoreOptions::new(8 << 20))?, ready, leased, counts })
    }

    /// Appends jobs, all or none; durable when it returns.
    pub(crate) fn put(&self, texts: &[&str]) -> Result<(), Error> {
        self.store.run(|txn| {
            let mut last = txn.read_for_update(self.counts, "last")?.map_or(0, |value| number(&value));
            for text in texts {
                last += 1;
                txn.insert(self.ready, last, text.as_bytes())?;
            }
            txn.upsert(self.counts, "last", &last.to_be_bytes())
        })
    }

    /// Takes the oldest job for some time; nothing if there is none.
    pub(crate) fn take(&self, lease: Duration) -> Result<Option<Job>, Error> {
        let now = microseconds();
        self.store.run(|txn| {
            for (key, text) in txn.range(self.leased, ..now, 100)? {
                // This lease has ended.
                txn.delete(self.leased, &key)?;
                txn.insert(self.ready, number(&key.as_bytes()[8..]), &text)?;
            }
            let Some((key, text)) = txn.range::<u64>(self.ready, .., 1)?.into_iter().next() else { return Ok(None) };
            let number = number(key.as_bytes());
            let end = (now + lease.as_micros() as u64).to_be_bytes();
            let lease = KeyBuf::new(&[end, number.to_be_bytes()].concat())?;
            txn.delete(self.ready, &key)?;
            txn.insert(self.leased, &lease, &text)?;
            Ok(Some(Job { number, text: text.to_vec(), lease }))
        })
    }

    /// Removes a job that is done. Returns false if its lease had ended and another worker has it.
    pub(crate) fn finish(&self, job: &Job) -> Result<bool, Error> {
        self.store.run(|txn| {
            let is_ours = txn.read_for_update(self.leased, &job.lease)?.is_some();
            if is_ours {
                txn.delete(self.leased, &job.lease)?;
            }
            Ok(is_ours)
        })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_be_bytes)
}

fn microseconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
}

/// What `main` runs, on a device in this directory.
pub(crate) fn demo(directory: &Path) -> Result<(), Error> {
    let queue = WorkQueue::open(Device::open_or_create(directory.join("jobs.kaml"), &CreateOptions::new(64 << 20))?)?;
    queue.put(&["resize photo 17", "send mail 4"])?;
    while let Some(job) = queue.take(Duration::from_secs(30))? {
        println!("job {}: {}", job.number, String::from_utf8_lossy(&job.text));
        if !queue.finish(&job)? {
            println!("job {} took too long, and is done again", job.number);
        }
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    demo(Path::new("."))
}
