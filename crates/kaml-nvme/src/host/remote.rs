//! A device behind NVMe/TCP as the record cache and transactions take it.
//!
//! Lives here:       addresses, which queue a command takes, connecting again, errors of a local device.
//! Lives elsewhere:  the commands (`keyvalue`), the store on top (`kaml::store`).
//! Implements:       design section 7 (the cache and transactions run on anything that is a device).
//!
//! When the connection is lost, it is made again. Reads are repeated; so are Puts without conditions, for which twice is
//! as good as once. What a lost Put with a condition came to cannot be known: that is an error.

use super::{Controller, Error, HostOptions, KeyValue, Queue};
use crate::wire::command::{Command, admin};
use crate::wire::identify::{KvNamespace, cns};
use crate::wire::logs::{LogRequest, lid};
use crate::wire::manage::encode_batch;
use crate::wire::status::Status;
use kaml::store::{Backing, BatchReader, Limits, PendingPut};
use kaml::{Batch, Condition, Key, NamespaceId};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zerocopy::FromBytes;

/// Room for a value whose size is not known: what most values need; larger ones take a second command.
const ROOM_AT_FIRST: usize = 4096;
/// Reads of one batched get in flight.
const READS_IN_FLIGHT: usize = 32;
/// Attempts to connect again before a command fails, and the pause between them.
const RECONNECTS_MAX: u32 = 20;
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Where a device is: `nvme+tcp://HOST:PORT/SUBSYSTEM`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteUrl {
    /// Host and port.
    pub address: String,
    /// The subsystem's qualified name.
    pub subsystem: String,
}

impl FromStr for RemoteUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<RemoteUrl, Error> {
        let bad = |why| Error::Url { url: url.to_owned(), why };
        let rest = url.strip_prefix("nvme+tcp://").ok_or(bad("it must begin with nvme+tcp://"))?;
        let (address, subsystem) =
            rest.split_once('/').ok_or(bad("it must name a subsystem: nvme+tcp://host:port/nqn…"))?;
        if !crate::wire::text::is_nqn(subsystem) {
            return Err(bad("the subsystem's name must begin with `nqn.`"));
        }
        let address = if address.contains(':') { address.to_owned() } else { format!("{address}:4420") };
        Ok(RemoteUrl { address, subsystem: subsystem.to_owned() })
    }
}

/// See the module. All calls may be made from any thread at once; clones share their connections.
#[derive(Clone)]
pub struct RemoteDevice {
    url: RemoteUrl,
    options: HostOptions,
    controller: Arc<Mutex<Arc<Controller>>>,
    turn: Arc<AtomicUsize>,
    limits: Limits,
    /// Whether it takes our atomic Put.
    has_put: bool,
}

impl RemoteDevice {
    /// Connects.
    pub fn open(url: &RemoteUrl, options: &HostOptions) -> Result<RemoteDevice, Error> {
        let controller = Controller::connect(&url.address, &url.subsystem, options)?;
        if controller.queues().is_empty() {
            return Err(Error::Unsupported("I/O queues"));
        }
        let (limits, has_put) = limits_of(&controller)?;
        let controller = Arc::new(Mutex::new(Arc::new(controller)));
        Ok(RemoteDevice {
            url: url.clone(),
            options: options.clone(),
            controller,
            turn: Arc::default(),
            limits,
            has_put,
        })
    }

    /// The controller in use.
    pub fn controller(&self) -> Arc<Controller> {
        Arc::clone(&self.controller.lock().expect("no panics under this lock"))
    }

    /// Carries something out on one of the queues, again after connecting again if the connection is lost and
    /// `repeatable`.
    fn with_queue<T>(&self, repeatable: bool, act: impl Fn(&Queue) -> Result<T, Error>) -> Result<T, Error> {
        let mut attempt = 0;
        loop {
            let controller = self.controller();
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let done = act(&controller.queues()[turn % controller.queues().len()]);
            match done {
                Err(Error::Connection(_)) if attempt < RECONNECTS_MAX => {
                    attempt += 1;
                    let made = self.reconnect(&controller);
                    if !repeatable {
                        return done;
                    }
                    if made.is_err() {
                        std::thread::sleep(RECONNECT_PAUSE);
                    }
                }
                done => return done,
            }
        }
    }

    /// Connects again, unless somebody else has.
    fn reconnect(&self, lost: &Arc<Controller>) -> Result<(), Error> {
        let mut current = self.controller.lock().expect("no panics under this lock");
        if Arc::ptr_eq(&current, lost) {
            *current = Arc::new(Controller::connect(&self.url.address, &self.url.subsystem, &self.options)?);
        }
        Ok(())
    }

    fn put(&self, batch: &Batch) -> Result<(), Error> {
        let repeatable = batch.records().all(|record| record.condition == Condition::Always);
        let mut records = batch.records();
        if let (Some(record), None) = (records.next(), records.next())
            && let (Some(value), Condition::Always) = (record.value, record.condition)
        {
            return self.with_queue(true, |queue| KeyValue::new(queue, record.namespace).store(&record.key, value, 0));
        }
        let Some(first) = batch.records().next() else { return Err(Error::Status(Status::INVALID_FIELD)) };
        if !self.has_put {
            return Err(Error::Unsupported("Puts of several records, or with conditions on deletes"));
        }
        let mut data = Vec::new();
        let count = encode_batch(&mut data, batch);
        let max = self.controller().transfer_bytes_max();
        if data.len() > max {
            return Err(Error::TooLong { bytes: data.len(), max });
        }
        self.with_queue(repeatable, |queue| KeyValue::new(queue, first.namespace).put(&data, count))
    }
}

/// What the device takes; from the vendor specific page, or else from what a namespace says.
fn limits_of(controller: &Controller) -> Result<(Limits, bool), Error> {
    let transfer_max = controller.transfer_bytes_max() as u64;
    let page = controller.log_page(&LogRequest { lid: lid::KAML, retain: true, offset: 0, bytes: 512, csi: 0 });
    let number = |page: &[u8], at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
    if let Some(page) = page.ok().filter(|page| page.len() == 512 && page.starts_with(b"KAML")) {
        let value_bytes_max = number(&page, 16).min(transfer_max);
        let limits = Limits { value_bytes_max, batch_bytes_max: number(&page, 24) };
        return Ok((limits, number(&page, 8) & 1 != 0));
    }
    let list = controller.identify(cns::SET_ACTIVE_NAMESPACES, 0, 1)?;
    let nsid = list.first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let page = controller.identify(cns::SET_NAMESPACE, nsid, 1)?;
    let (space, _) =
        KvNamespace::read_from_prefix(&page).map_err(|_| Error::Unsupported("the Key Value command set"))?;
    let value_bytes_max = u64::from(space.formats[0].value_bytes_max.get()).min(transfer_max);
    Ok((Limits { value_bytes_max, batch_bytes_max: value_bytes_max }, false))
}

/// An error as a local device has it, as far as the answer tells.
fn local(error: Error, namespace: NamespaceId, key: Option<Key>) -> kaml::Error {
    use kaml_device::Error as E;
    let status = error.status();
    let conflict = [(Status::NO_SUCH_KEY, false), (Status::KEY_EXISTS, true)];
    let present = conflict.into_iter().find_map(|(of, present)| status.is_some_and(|s| s.is(of)).then_some(present));
    match (present, key) {
        (Some(present), Some(key)) => E::Conflict { namespace, key, present }.into(),
        _ if status.is_some_and(|status| status.is(Status::INVALID_NAMESPACE)) => E::UnknownNamespace(namespace).into(),
        _ => kaml::Error::Remote(error.to_string()),
    }
}

/// Carried out when it was made: commands over several connections have no order that could be fixed before.
struct Written;

impl PendingPut for Written {
    fn wait(self: Box<Self>) -> Result<(), kaml::Error> {
        Ok(())
    }
}

/// Batched gets: many commands in flight on one queue.
struct RemoteReader(RemoteDevice);

impl BatchReader for RemoteReader {
    fn get_many(
        &mut self,
        namespace: NamespaceId,
        keys: &[Key],
        answer: &mut dyn FnMut(usize, Result<Option<Vec<u8>>, kaml::Error>),
    ) {
        let device = &self.0;
        let single = |place: usize| {
            let mut value = Vec::new();
            device.get_into(namespace, keys[place], &mut value).map(|there| there.then_some(value))
        };
        let controller = device.controller();
        let turn = device.turn.fetch_add(1, Ordering::Relaxed);
        let queue = &controller.queues()[turn % controller.queues().len()];
        let space = KeyValue::new(queue, namespace);
        for (chunk, some) in keys.chunks(READS_IN_FLIGHT).enumerate() {
            let tickets: Vec<_> = some.iter().map(|key| space.submit_retrieve(key, ROOM_AT_FIRST)).collect();
            for (number, ticket) in tickets.into_iter().enumerate() {
                let place = chunk * READS_IN_FLIGHT + number;
                match ticket.and_then(|ticket| queue.wait(ticket)) {
                    Ok(found) if found.status.is(Status::NO_SUCH_KEY) => answer(place, Ok(None)),
                    Ok(found) if found.status.is_success() && found.data.len() as u64 == found.result => {
                        answer(place, Ok(Some(found.data)));
                    }
                    // Larger than the room, refused, or lost: all of that is looked after one by one.
                    _ => answer(place, single(place)),
                }
            }
        }
    }
}

impl Backing for RemoteDevice {
    fn get_into(&self, namespace: NamespaceId, key: Key, value: &mut Vec<u8>) -> Result<bool, kaml::Error> {
        let mut room = ROOM_AT_FIRST;
        loop {
            let found = self.with_queue(true, |queue| KeyValue::new(queue, namespace).retrieve(&key, room));
            match found.map_err(|error| local(error, namespace, None))? {
                None => return Ok(false),
                Some((bytes, size)) if bytes.len() == size => {
                    *value = bytes;
                    return Ok(true);
                }
                // It is larger than what there was room for.
                Some((_, size)) => room = size,
            }
        }
    }

    fn reader(&self) -> Box<dyn BatchReader> {
        Box::new(RemoteReader(self.clone()))
    }

    fn exists(&self, namespace: NamespaceId, key: Key) -> Result<bool, kaml::Error> {
        let exists = self.with_queue(true, |queue| KeyValue::new(queue, namespace).exist(&key));
        exists.map_err(|error| local(error, namespace, None))
    }

    fn write(&self, batch: &Batch) -> Result<(), kaml::Error> {
        let mut records = batch.records();
        let first = records.next();
        let only = first.filter(|_| records.next().is_none()).map(|record| record.key);
        self.put(batch).map_err(|error| local(error, first.map_or(0, |record| record.namespace), only))
    }

    fn submit(&self, batch: &Batch) -> Result<Box<dyn PendingPut>, kaml::Error> {
        self.write(batch)?;
        Ok(Box::new(Written))
    }

    fn delete_namespace(&self, namespace: NamespaceId) -> Result<(), kaml::Error> {
        let mut command = Command::new(admin::NAMESPACE_MANAGEMENT, namespace);
        command.cdw10 = 1.into();
        let deleted = self.controller().admin().execute(command, &[], 0).and_then(|finished| finished.success());
        deleted.map(drop).map_err(|error| local(error, namespace, None))
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}
