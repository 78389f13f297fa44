//! KAML itself as an engine: the record cache and transactions (`kaml::store`) over a device.
//!
//! Lives here:       opening, and the translation of calls and errors.
//! May be called by: the command line, tests; not by workloads.

use super::{
    Answered, Body, Cause, Change, Counts, Each, Engine, Pipeline, Ranges, Record, Scan, Session, Stop, Table,
    Transaction,
};
use crate::Error;
use crate::drive::Workload;
use crate::network::Served;
use kaml::store::{self, Store, StoreAnswer, StoreOptions, StoreQueue, StoreReader, Update, WriteMode};
use kaml::{Batch, CreateOptions, Device, Key, KeyBuf, KeyKind, Namespace, NamespaceId, NamespaceOptions, OpenOptions};
use kaml_nvme::host::{HostOptions, RemoteDevice, RemoteUrl};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Payload that is loaded with one Put: large enough that its flush costs little.
const LOAD_BYTES: usize = 256 << 10;
/// Scans of at most so many records read through the cache. Longer ones would only replace what it has, so they show what the
/// device has.
const CACHED_SCAN_MAX: usize = 1000;

/// A store on a device of its own.
pub struct KamlEngine {
    /// Not there only while it is opened again, and after that failed.
    open: Option<Open>,
    names: Vec<String>,
    tables: Vec<NamespaceId>,
    description: String,
    /// Of the device; none in memory.
    path: Option<PathBuf>,
    options: StoreOptions,
    /// How many lead to the device, if it is reached over the wire.
    connections: Option<u16>,
}

/// A device and what is open over it.
struct Open {
    device: Device,
    store: Store,
    /// Of each table, to scan it.
    namespaces: Vec<Namespace>,
    /// What the store reaches the device through, if it does not have it in hand.
    served: Option<Served>,
}

impl Open {
    fn new(device: Device, names: &[String], options: &StoreOptions, connections: Option<u16>) -> Result<Open, Error> {
        let namespaces = names.iter().map(|name| device.open_namespace(name)).collect::<Result<_, _>>()?;
        let Some(queues) = connections else {
            let store = Store::open(device.clone(), options).map_err(engine_error)?;
            return Ok(Open { device, store, namespaces, served: None });
        };
        let served = Served::start(&device, false)?;
        let host = HostOptions { queues, ..HostOptions::default() };
        let store = Store::open(RemoteDevice::open(&served.url, &host)?, options).map_err(engine_error)?;
        Ok(Open { device, store, namespaces, served: Some(served) })
    }
}

impl KamlEngine {
    /// Makes a device at `path` (in memory without one), with an unordered namespace for each table, and opens a store over it.
    pub fn create(
        path: Option<&Path>,
        device: &CreateOptions,
        options: &StoreOptions,
        tables: &[&str],
    ) -> Result<KamlEngine, Error> {
        KamlEngine::create_with(path, device, options, tables, |_| false)
    }

    /// As [`KamlEngine::create`], for a workload: the tables that it scans are ordered namespaces.
    pub fn create_for(
        path: Option<&Path>,
        device: &CreateOptions,
        options: &StoreOptions,
        workload: &dyn Workload,
    ) -> Result<KamlEngine, Error> {
        KamlEngine::create_with(path, device, options, workload.tables(), |table| workload.is_scanned(table))
    }

    /// Opens a device that was made with these tables.
    pub fn open_at(path: &Path, options: &StoreOptions, names: &[&str]) -> Result<KamlEngine, Error> {
        let device = Device::open(path, &OpenOptions::default())?;
        let tables = names.iter().map(|name| device.namespace(name)).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let open = Some(Open::new(device, &names, options, None)?);
        let (path, options) = (Some(path.to_owned()), options.clone());
        Ok(KamlEngine { open, names, tables, description: "kaml on file".into(), path, options, connections: None })
    }

    /// Closes the device.
    pub fn close(mut self) -> Result<(), Error> {
        let Some(Open { device, store, namespaces, served }) = self.open.take() else { return Ok(()) };
        drop((store, namespaces));
        served.map_or(Ok(()), Served::stop)?;
        Ok(device.close()?)
    }

    /// As [`KamlEngine::create`]; the tables that are scanned are ordered namespaces.
    pub fn create_with(
        path: Option<&Path>,
        device: &CreateOptions,
        options: &StoreOptions,
        names: &[&str],
        is_scanned: impl Fn(Table) -> bool,
    ) -> Result<KamlEngine, Error> {
        let place = if path.is_some() { "file" } else { "memory" };
        let device = match path {
            Some(path) => Device::create(path, device)?,
            None => Device::in_memory(device)?,
        };
        let create = |(at, name): (usize, &&str)| {
            let keys = if is_scanned(Table(at)) { KeyKind::Ordered } else { KeyKind::U64 };
            device.create_namespace(name, &NamespaceOptions::records(keys))
        };
        let tables = names.iter().enumerate().map(create).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let open = Some(Open::new(device, &names, options, None)?);
        let release = match options.durability_delay {
            Duration::ZERO if options.early_release => "early release".to_owned(),
            Duration::ZERO => "strict".to_owned(),
            delay => format!("durable after {delay:?}"),
        };
        let description = format!(
            "kaml on {place}: cache {} MiB, {} record(s) per lock, {release}, {:?}",
            options.cache_bytes >> 20,
            options.records_per_lock,
            options.write_mode,
        );
        let (path, options) = (path.map(Path::to_owned), options.clone());
        Ok(KamlEngine { open, names, tables, description, path, options, connections: None })
    }

    /// The same device and namespaces, with a store that reaches them over NVMe/TCP on loopback, by this many connections.
    /// What was loaded exists.
    pub fn over_the_wire(mut self, options: &StoreOptions, connections: u16) -> Result<KamlEngine, Error> {
        (self.options, self.connections) = (options.clone(), Some(connections));
        self.description = format!("{}, over {connections} connection(s) on loopback", self.description);
        let gone = || Error::Engine("the device could not be opened again before".into());
        let Open { device, store, namespaces, .. } = self.open.take().ok_or_else(gone)?;
        drop((store, namespaces));
        self.open = Some(Open::new(device, &self.names, &self.options, self.connections)?);
        Ok(self)
    }

    /// Where it is served, if it is reached over the wire.
    pub fn url(&self) -> Option<&RemoteUrl> {
        self.open().served.as_ref().map(|served| &served.url)
    }

    /// The device below.
    pub fn device(&self) -> &Device {
        &self.open().device
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.open().store
    }

    fn open(&self) -> &Open {
        self.open.as_ref().expect("an engine that could not be opened again is not used")
    }
}

impl Engine for KamlEngine {
    fn describe(&self) -> String {
        self.description.clone()
    }

    fn ranges(&self) -> Ranges {
        let has_ranges = self.options.write_mode == WriteMode::Through && self.connections.is_none();
        if has_ranges { Ranges::Serializable } else { Ranges::None }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, Error> {
        Ok(Box::new(KamlSession { engine: self, reader: self.store().reader() }))
    }

    fn pipeline(&self, in_flight: usize) -> Option<Box<dyn Pipeline + '_>> {
        let queue = self.store().queue(in_flight as u32);
        Some(Box::new(KamlPipeline { tables: &self.tables, queue, answers: Vec::new(), wrong: Rc::default() }))
    }

    fn settle(&self) -> Result<(), Error> {
        self.store().flush().map_err(engine_error)?;
        // What others do while they compact: neighbours come to lie together.
        for info in self.device().namespaces().iter().filter(|info| info.keys() == KeyKind::Ordered) {
            self.device().open_namespace(&info.name)?.cluster::<u64>(..)?;
        }
        Ok(self.device().settle()?)
    }

    /// A device in memory is gone when it is closed: there, only the store is a new one.
    fn reopen(&mut self) -> Result<(), Error> {
        let gone = || Error::Engine("the device could not be opened again before".into());
        let Open { device, store, namespaces, served } = self.open.take().ok_or_else(gone)?;
        drop((store, namespaces));
        served.map_or(Ok(()), Served::stop)?;
        let device = match &self.path {
            Some(path) => {
                device.close()?;
                Device::open(path, &OpenOptions::default())?
            }
            None => device,
        };
        self.open = Some(Open::new(device, &self.names, &self.options, self.connections)?);
        Ok(())
    }

    fn counts(&self) -> Counts {
        let stats = self.store().stats();
        Counts { cache_misses: Some(stats.miss_count), cache_bytes: Some(stats.used_bytes) }
    }
}

impl KamlEngine {
    /// The keys of a scan that the device has, in the order of the scan.
    fn keys(&self, scan: Scan) -> Result<Box<dyn Iterator<Item = Result<u64, Stop>>>, Stop> {
        let namespace = self.ordered(scan)?;
        let keys = namespace.range_keys(scan.first..=scan.last);
        let number = |key: Result<KeyBuf, kaml::Error>| number_of(&key.map_err(stop)?);
        Ok(if scan.reverse { Box::new(keys.rev().map(number)) } else { Box::new(keys.map(number)) })
    }

    fn ordered(&self, scan: Scan) -> Result<&Namespace, Stop> {
        match self.ranges() {
            Ranges::None => Err(Stop::Failed(Error::NoRanges)),
            Ranges::Records | Ranges::Serializable => Ok(&self.open().namespaces[scan.table.0]),
        }
    }
}

fn number_of(key: &KeyBuf) -> Result<u64, Stop> {
    key.as_u64().ok_or_else(|| Stop::wrong(format!("key {key} is no number")))
}

struct KamlSession<'a> {
    engine: &'a KamlEngine,
    reader: StoreReader,
}

impl KamlSession<'_> {
    /// Takes keys from the index and their values from the cache; those that it has not are read together.
    fn scan_cached(&mut self, scan: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        let keys = self.engine.keys(scan)?.take(scan.limit).collect::<Result<Vec<u64>, Stop>>()?;
        let names: Vec<Key> = keys.iter().map(|key| Key::from(*key)).collect();
        let values = self.reader.get_many(self.engine.tables[scan.table.0], &names).map_err(stop)?;
        // A record that was deleted meanwhile has no value.
        let found = keys.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?)));
        Ok(found.map(|(key, value)| each(key, &value)).count())
    }
}

impl Session for KamlSession<'_> {
    fn get(&mut self, table: Table, key: u64, see: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let found = self.engine.store().get(self.engine.tables[table.0], key).map_err(stop)?;
        Ok(found.map(|value| see(&value)).is_some())
    }

    fn get_into(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        self.engine.store().get_into(self.engine.tables[table.0], key, value).map_err(stop)
    }

    fn get_many(&mut self, table: Table, keys: &[u64], each: &mut Each<'_>) -> Result<(), Stop> {
        let values = self.reader.get_many(self.engine.tables[table.0], keys.iter().copied()).map_err(stop)?;
        let found = keys.iter().zip(values).filter_map(|(key, value)| Some((*key, value?)));
        found.for_each(|(key, value)| each(key, &value));
        Ok(())
    }

    fn scan(&mut self, scan: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        let StoreOptions { early_release, durability_delay, .. } = self.engine.options;
        if scan.limit <= CACHED_SCAN_MAX && !early_release && durability_delay.is_zero() {
            return self.scan_cached(scan, each);
        }
        if scan.limit <= CACHED_SCAN_MAX {
            // The index of the device does not have all that was committed.
            let namespace = self.engine.tables[scan.table.0];
            self.engine.ordered(scan)?;
            let found = self.engine.store().run(|txn| range(txn, namespace, scan)).map_err(stop)?;
            return show(found, each);
        }
        let mut entries = self.engine.ordered(scan)?.range(scan.first..=scan.last);
        let next = || if scan.reverse { entries.next_back() } else { entries.next() };
        let mut count = 0;
        for entry in std::iter::from_fn(next).take(scan.limit) {
            let (key, value) = entry.map_err(stop)?;
            each(number_of(&key)?, &value);
            count += 1;
        }
        Ok(count)
    }

    fn put(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.engine.store().put(self.engine.tables[table.0], key, value).map_err(stop)
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<(), Stop> {
        let txn = self.engine.store().begin().map_err(stop)?;
        let mut txn = KamlTransaction { txn, engine: self.engine };
        body(&mut txn)?; // dropped, it aborts
        txn.txn.commit().map_err(stop)
    }

    /// Past the cache, which knows nothing of these keys yet.
    fn load(&mut self, table: Table, records: &[Record]) -> Result<(), Stop> {
        let namespace = self.engine.tables[table.0];
        let mut batch = Batch::new();
        let mut bytes = 0;
        for (key, value) in records {
            batch.put(namespace, *key, value);
            bytes += value.len() + size_of::<u64>();
            if bytes >= LOAD_BYTES {
                self.engine.store().write_past_the_cache(&batch).map_err(engine_error)?;
                batch.clear();
                bytes = 0;
            }
        }
        if bytes > 0 {
            self.engine.store().write_past_the_cache(&batch).map_err(engine_error)?;
        }
        Ok(())
    }
}

struct KamlPipeline<'a> {
    tables: &'a [NamespaceId],
    queue: StoreQueue,
    answers: Vec<StoreAnswer>,
    /// What an update found in the record.
    wrong: Rc<RefCell<Option<String>>>,
}

impl Pipeline for KamlPipeline<'_> {
    fn get(&mut self, token: u64, table: Table, key: u64) {
        self.queue.get(token, self.tables[table.0], key);
    }

    fn put(&mut self, token: u64, table: Table, key: u64, value: &[u8]) {
        self.queue.put(token, self.tables[table.0], key, value);
    }

    fn update(&mut self, token: u64, table: Table, key: u64, change: Change) {
        let wrong = self.wrong.clone();
        self.queue.update(token, self.tables[table.0], key, move |old| {
            let new = old.ok_or_else(|| format!("record {key} is missing")).and_then(change);
            new.map_or_else(
                |what| {
                    *wrong.borrow_mut() = Some(what);
                    Update::Keep
                },
                Update::Store,
            )
        });
    }

    fn poll(&mut self, answered: &mut Answered<'_>) -> Result<(), Error> {
        self.queue.poll(true, &mut self.answers);
        if let Some(what) = self.wrong.take() {
            return Err(Error::Wrong(what));
        }
        self.answers.drain(..).try_for_each(|StoreAnswer { token, result }| {
            let value = result.map_err(engine_error)?;
            answered(token, value.as_deref())
        })
    }
}

struct KamlTransaction<'a> {
    txn: store::Transaction,
    engine: &'a KamlEngine,
}

impl KamlTransaction<'_> {
    fn namespace(&self, table: Table) -> NamespaceId {
        self.engine.tables[table.0]
    }
}

impl Transaction for KamlTransaction<'_> {
    fn expect(&mut self, records: &[(Table, u64)]) -> Result<(), Stop> {
        let tables = &self.engine.tables;
        let named = records.iter().map(|(table, key)| (tables[table.0], *key));
        self.txn.expect(named).map_err(stop)
    }

    fn read(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        Ok(copy(self.txn.read(self.namespace(table), key).map_err(stop)?, value))
    }

    fn read_for_update(&mut self, table: Table, key: u64, value: &mut Vec<u8>) -> Result<bool, Stop> {
        Ok(copy(self.txn.read_for_update(self.namespace(table), key).map_err(stop)?, value))
    }

    fn update(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.txn.update(self.namespace(table), key, value).map_err(stop)
    }

    fn insert(&mut self, table: Table, key: u64, value: &[u8]) -> Result<(), Stop> {
        self.txn.insert(self.namespace(table), key, value).map_err(stop)
    }

    fn scan(&mut self, scan: Scan, each: &mut Each<'_>) -> Result<usize, Stop> {
        self.engine.ordered(scan)?;
        let namespace = self.namespace(scan.table);
        show(range(&mut self.txn, namespace, scan).map_err(stop)?, each)
    }

    fn delete(&mut self, table: Table, key: u64) -> Result<(), Stop> {
        self.txn.delete(self.namespace(table), key).map_err(stop)
    }
}

/// The records of a scan; nobody inserts others before the transaction ends.
fn range(
    txn: &mut store::Transaction,
    namespace: NamespaceId,
    scan: Scan,
) -> Result<Vec<(KeyBuf, store::Value)>, kaml::Error> {
    let keys = scan.first..=scan.last;
    match (scan.reverse, scan.for_update) {
        (true, _) => txn.range_back(namespace, keys, scan.limit),
        (false, true) => txn.range_for_update(namespace, keys, scan.limit),
        (false, false) => txn.range(namespace, keys, scan.limit),
    }
}

fn show(found: Vec<(KeyBuf, store::Value)>, each: &mut Each<'_>) -> Result<usize, Stop> {
    found.iter().try_for_each(|(key, value)| {
        each(number_of(key)?, value);
        Ok::<(), Stop>(())
    })?;
    Ok(found.len())
}

fn copy(found: Option<store::Value>, value: &mut Vec<u8>) -> bool {
    let Some(found) = found else { return false };
    value.clear();
    value.extend_from_slice(&found);
    true
}

fn stop(error: kaml::Error) -> Stop {
    match error {
        kaml::Error::Deadlock { .. } => Stop::Again(Cause::Deadlock),
        kaml::Error::LockTimeout { .. } => Stop::Again(Cause::Timeout),
        kaml::Error::DependencyLost => Stop::Again(Cause::Lost),
        other => Stop::Failed(engine_error(other)),
    }
}

fn engine_error(error: kaml::Error) -> Error {
    match error {
        // What the caller requested, not what the engine did.
        kaml::Error::CacheTooSmall { .. } | kaml::Error::BadStoreOptions(_) => Error::Parameters(error.to_string()),
        other => Error::Device(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   the engine keeps the contract of the traits: commits, rollbacks, loads, absent records.
    /// Method: one session on a device in memory, call after call.
    #[test]
    fn the_contract_is_kept() {
        let options = StoreOptions::new(4 << 20);
        let engine = KamlEngine::create(None, &CreateOptions::new(64 << 20), &options, &["a", "b"]).unwrap();
        let (a, b) = (Table(0), Table(1));
        let mut session = engine.session().unwrap();
        session.load(a, &(0..1000).map(|key| (key, vec![key as u8; 300])).collect::<Vec<_>>()).unwrap();
        let mut value = Vec::new();
        assert!(session.get_into(a, 999, &mut value).unwrap());
        assert_eq!(value, vec![231; 300]);
        assert!(!session.get_into(b, 999, &mut value).unwrap());

        let result = session.transact(&mut |txn| {
            txn.update(a, 5, b"five")?;
            txn.insert(b, 5, b"new")?;
            Err(Stop::Rollback)
        });
        assert!(matches!(result, Err(Stop::Rollback)), "{result:?}");
        assert!(!session.get(b, 5, &mut |_| ()).unwrap());

        let moved = session.transact(&mut |txn| {
            let mut value = Vec::new();
            assert!(txn.read_for_update(a, 5, &mut value)?);
            txn.insert(b, 5, &value)?;
            txn.delete(a, 5)
        });
        moved.unwrap();
        assert!(!session.get(a, 5, &mut |_| ()).unwrap());
        let mut seen = 0;
        assert!(session.get(b, 5, &mut |value| seen = value.len()).unwrap());
        assert_eq!(seen, 300);
        assert!(matches!(session.transact(&mut |txn| txn.delete(a, 5)), Err(Stop::Failed(_))));
        engine.settle().unwrap();
        assert!(engine.counts().cache_misses.unwrap() > 0);
    }

    /// Goal:   an engine that was opened again has every record, and returns what its device has, not what it had cached.
    /// Method: in memory, on a file, and over the wire; change a record below the store; count what was not in the cache.
    #[test]
    fn what_was_cached_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let (file, served) = (dir.path().join("a.kaml"), dir.path().join("b.kaml"));
        let options = StoreOptions::new(4 << 20);
        for (path, connections) in [(None, None), (Some(&file), None), (Some(&served), Some(2))] {
            let device = CreateOptions::new(64 << 20);
            let path = path.map(PathBuf::as_path);
            let mut engine = KamlEngine::create(path, &device, &options, &["a"]).unwrap();
            if let Some(connections) = connections {
                engine = engine.over_the_wire(&options, connections).unwrap();
            }
            let value = |engine: &KamlEngine, key| {
                let mut value = Vec::new();
                engine.session().unwrap().get_into(Table(0), key, &mut value).unwrap().then_some(value)
            };
            for key in 0..100 {
                engine.session().unwrap().put(Table(0), key, b"put").unwrap();
            }
            engine.settle().unwrap();
            let mut below = Batch::new();
            below.put(engine.tables[0], 7, b"below");
            engine.store().write_past_the_cache(&below).unwrap();
            assert_eq!(value(&engine, 7), Some(b"put".to_vec()));
            engine.reopen().unwrap();
            assert_eq!(value(&engine, 7), Some(b"below".to_vec()));
            assert!((8..100).all(|key| value(&engine, key) == Some(b"put".to_vec())));
            assert!(engine.counts().cache_misses.unwrap() >= 93);
            assert_eq!(engine.url().is_some(), connections.is_some());
        }
    }
}
