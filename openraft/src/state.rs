//! The state of a node.
//!
//! Lives here:       applying commands to records; building and installing snapshots.
//! Lives elsewhere:  what a command does ([`Application`]), the file of a snapshot (`snapshot`).
//! Implements:       `RaftStateMachine`, `RaftSnapshotBuilder`.
//!
//! The record `machine` of the namespace `NAME.state` names the namespace of the records, `NAME.records.N`, and the last command that was applied to them.
//! A snapshot is installed into a new namespace; the Put of that record is the moment at which it becomes the state. What a crash left is deleted
//! when the state is opened.

use crate::snapshot::{self, Meta};
use crate::{batch_bytes, blocking, decode, encode, ordered};
use kaml::{Batch, Device, Error, KeyBuf, Namespace, Snapshot as Moment};
use openraft::entry::RaftPayload;
use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{
    Entry, EntryPayload, LogId, OptionalSend, RaftLogId, RaftSnapshotBuilder, RaftTypeConfig, SnapshotMeta,
    StorageError, StorageIOError, StoredMembership,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MACHINE: &str = "machine";

/// What the commands of a log do.
///
/// # Examples
/// See the crate.
pub trait Application<C: RaftTypeConfig>: Send + Sync + 'static {
    /// Applies a command to the records, and returns the response to who proposed it. It must do the same on every node: it depends on
    /// nothing but the command and the records.
    ///
    /// # Errors
    /// Those of the records. They end the node; a command that is refused is a response.
    fn apply(&self, command: &C::D, records: &mut Changes<'_>) -> Result<C::R, Error>;

    /// The response to an entry without a command.
    fn nothing(&self) -> C::R;
}

/// The records as a command sees and changes them.
///
/// # Examples
/// See the crate.
pub struct Changes<'a> {
    records: &'a Namespace,
    changed: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    bytes: usize,
}

impl Changes<'_> {
    /// A value, with the changes of the commands before.
    ///
    /// # Errors
    /// Those of [`Namespace::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self.changed.get(key) {
            Some(changed) => Ok(changed.clone()),
            None => self.records.get(key),
        }
    }

    /// Stores a value under a key of 1 to 1024 bytes.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.bytes += value.len();
        self.changed.insert(key.to_vec(), Some(value.to_vec()));
    }

    /// Deletes a key, whether it exists or not.
    pub fn delete(&mut self, key: &[u8]) {
        self.changed.insert(key.to_vec(), None);
    }
}

/// The state of one node on a device, and its snapshots as files. Clones are further handles to the same state.
///
/// # Examples
/// See the crate.
pub struct StateMachine<C: RaftTypeConfig, A> {
    shared: Arc<Shared<C, A>>,
}

struct Shared<C: RaftTypeConfig, A> {
    state: Mutex<State<C>>,
    application: A,
    batch_bytes: usize,
    /// Where snapshots are: `PATH.snapshot`, and unfinished ones.
    path: PathBuf,
    types: PhantomData<fn() -> C>,
}

struct State<C: RaftTypeConfig> {
    device: Device,
    name: String,
    meta: Namespace,
    records: Namespace,
    machine: Machine<C>,
}

#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
struct Machine<C: RaftTypeConfig> {
    /// The number of the namespace of the records.
    records: u64,
    applied: Option<LogId<C::NodeId>>,
    membership: StoredMembership<C::NodeId, C::Node>,
}

impl<C: RaftTypeConfig> Clone for Machine<C> {
    fn clone(&self) -> Self {
        let Machine { records, applied, membership } = self;
        Machine { records: *records, applied: applied.clone(), membership: membership.clone() }
    }
}

impl<C: RaftTypeConfig, A> Clone for StateMachine<C, A> {
    fn clone(&self) -> Self {
        StateMachine { shared: self.shared.clone() }
    }
}

impl<C, A> StateMachine<C, A>
where
    C: RaftTypeConfig<SnapshotData = tokio::fs::File, Entry = Entry<C>>,
    A: Application<C>,
{
    /// Opens the state `name` of a device, or begins it. Its snapshots are files of the directory `snapshots`, whose names begin with `name`.
    ///
    /// # Errors
    /// Those of [`Device::ensure_namespace`]; [`Error::Io`] if what is stored cannot be decoded, because the types of the application were changed.
    pub fn open(device: &Device, name: &str, snapshots: &Path, application: A) -> Result<Self, Error> {
        let meta = ordered(device, &format!("{name}.state"))?;
        let machine = match meta.get(MACHINE)? {
            Some(bytes) => decode("the state", &bytes).map_err(|source| Error::Io {
                path: name.into(),
                what: "opening the state",
                source: Arc::new(source),
            })?,
            None => Machine { records: 0, applied: None, membership: StoredMembership::default() },
        };
        let current = records_name(name, machine.records);
        let records = ordered(device, &current)?;
        let prefix = records_name(name, 0).trim_end_matches('0').to_owned();
        for left in
            device.namespaces().into_iter().filter(|info| info.name.starts_with(&prefix) && info.name != current)
        {
            device.delete_namespace(left.id)?;
        }
        let path = snapshots.join(name);
        let state = State { device: device.clone(), name: name.to_owned(), meta, records, machine };
        let batch_bytes = batch_bytes(device);
        Ok(StateMachine {
            shared: Arc::new(Shared { state: Mutex::new(state), application, batch_bytes, path, types: PhantomData }),
        })
    }

    /// The records, for reading. What is read may be older than what other nodes have: see `Raft::ensure_linearizable`. Installing a snapshot replaces the namespace,
    /// so ask again for each read.
    pub fn records(&self) -> Namespace {
        self.shared.lock().records.clone()
    }
}

fn command<C: RaftTypeConfig>(entry: &Entry<C>) -> Option<&C::D> {
    match &entry.payload {
        EntryPayload::Normal(command) => Some(command),
        EntryPayload::Blank | EntryPayload::Membership(_) => None,
    }
}

fn records_name(name: &str, number: u64) -> String {
    format!("{name}.records.{number}")
}

impl<C, A> Shared<C, A>
where
    C: RaftTypeConfig<SnapshotData = tokio::fs::File, Entry = Entry<C>>,
    A: Application<C>,
{
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        // A panic of the application leaves what the device has, which is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, entries: Vec<C::Entry>) -> io::Result<Vec<C::R>> {
        let mut state = self.lock();
        let mut machine = state.machine.clone();
        let records = state.records.clone();
        let mut changes = Changes { records: &records, changed: BTreeMap::new(), bytes: 0 };
        let mut responses = Vec::with_capacity(entries.len());
        for entry in entries {
            if let Some(membership) = entry.get_membership() {
                machine.membership = StoredMembership::new(Some(entry.get_log_id().clone()), membership.clone());
            }
            machine.applied = Some(entry.get_log_id().clone());
            responses.push(match command(&entry) {
                Some(command) => self.application.apply(command, &mut changes).map_err(io::Error::other)?,
                None => self.application.nothing(),
            });
            if changes.bytes > self.batch_bytes {
                state.write(&mut changes, &machine)?;
            }
        }
        state.write(&mut changes, &machine)?;
        Ok(responses)
    }

    fn build(&self) -> io::Result<(Meta<C>, File)> {
        let (moment, records, machine) = {
            let state = self.lock();
            let moment: Moment = state.device.open_snapshot().map_err(io::Error::other)?;
            (moment, state.records.id(), state.machine.clone())
        };
        let term_and_index = machine.applied.as_ref().map_or_else(|| "0".to_owned(), |id| id.to_string());
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let meta = SnapshotMeta {
            last_log_id: machine.applied,
            last_membership: machine.membership,
            snapshot_id: format!("{term_and_index}-{}", since.as_nanos()),
        };
        let unfinished = self.file("building");
        snapshot::write::<C>(&unfinished, &meta, moment.iter(records))?;
        self.finish(&unfinished).map(|file| (meta, file))
    }

    /// A snapshot that is whole becomes the current one.
    fn finish(&self, unfinished: &Path) -> io::Result<File> {
        let finished = self.file("snapshot");
        fs::rename(unfinished, &finished)?;
        let directory = finished.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory)?.sync_all()?;
        File::open(&finished)
    }

    fn install(&self, meta: &Meta<C>, mut file: File) -> io::Result<()> {
        file.rewind()?;
        let copy = file.try_clone()?;
        let mut state = self.lock();
        let number = state.machine.records + 1;
        let fresh = ordered(&state.device, &records_name(&state.name, number)).map_err(io::Error::other)?;
        let filled = snapshot::read::<C>(copy).and_then(|(_, records)| self.fill(&fresh, records));
        if let Err(error) = filled {
            // Half of a snapshot is of no use to anybody.
            state.device.delete_namespace(fresh.id()).map_err(io::Error::other)?;
            return Err(error);
        }
        let SnapshotMeta { last_log_id, last_membership, .. } = meta.clone();
        let machine = Machine { records: number, applied: last_log_id, membership: last_membership };
        state.meta.put(MACHINE, &encode(&machine)?).map_err(io::Error::other)?;
        let old = std::mem::replace(&mut state.records, fresh);
        state.machine = machine;
        state.device.delete_namespace(old.id()).map_err(io::Error::other)?;
        drop(state);
        file.rewind()?;
        let unfinished = self.file("building");
        let mut kept = File::create(&unfinished)?;
        io::copy(&mut file, &mut kept)?;
        kept.sync_all()?;
        self.finish(&unfinished)?;
        match fs::remove_file(self.file("received")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn fill(&self, fresh: &Namespace, records: impl Iterator<Item = io::Result<(Vec<u8>, Vec<u8>)>>) -> io::Result<()> {
        let mut batch = Batch::new();
        for record in records {
            let (key, value) = record?;
            if batch.value_bytes() + value.len() > self.batch_bytes {
                fresh.device().write(&batch).map_err(io::Error::other)?;
                batch.clear();
            }
            batch.put(fresh.id(), &KeyBuf::new(&key).map_err(io::Error::other)?, &value);
        }
        // A state without records has a snapshot, too.
        if batch.is_empty() { Ok(()) } else { fresh.device().write(&batch).map_err(io::Error::other) }
    }

    fn current(&self) -> io::Result<Option<(Meta<C>, File)>> {
        let path = self.file("snapshot");
        match File::open(&path).and_then(snapshot::read::<C>) {
            Ok((meta, _)) => Ok(Some((meta, File::open(path)?))),
            // Raft builds another one.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn file(&self, end: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".");
        path.push(end);
        path.into()
    }
}

impl<C: RaftTypeConfig> State<C> {
    /// Stores the changes and how far they go, in one Put.
    fn write(&mut self, changes: &mut Changes<'_>, machine: &Machine<C>) -> io::Result<()> {
        let mut batch = Batch::new();
        for (key, value) in std::mem::take(&mut changes.changed) {
            let key = KeyBuf::new(&key).map_err(io::Error::other)?;
            match value {
                Some(value) => batch.put(self.records.id(), &key, &value),
                None => batch.delete(self.records.id(), &key),
            };
        }
        changes.bytes = 0;
        batch.put(self.meta.id(), MACHINE, &encode(machine)?);
        self.device.write(&batch).map_err(io::Error::other)?;
        self.machine = machine.clone();
        Ok(())
    }
}

impl<C, A> RaftSnapshotBuilder<C> for StateMachine<C, A>
where
    C: RaftTypeConfig<SnapshotData = tokio::fs::File, Entry = Entry<C>>,
    A: Application<C>,
{
    async fn build_snapshot(&mut self) -> Result<Snapshot<C>, StorageError<C::NodeId>> {
        let shared = self.shared.clone();
        let built = blocking(move || shared.build()).await;
        let (meta, file) = built.map_err(|error| StorageIOError::write_snapshot(None, &error))?;
        Ok(Snapshot { meta, snapshot: Box::new(tokio::fs::File::from_std(file)) })
    }
}

impl<C, A> RaftStateMachine<C> for StateMachine<C, A>
where
    C: RaftTypeConfig<SnapshotData = tokio::fs::File, Entry = Entry<C>>,
    A: Application<C>,
{
    type SnapshotBuilder = Self;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<C::NodeId>>, StoredMembership<C::NodeId, C::Node>), StorageError<C::NodeId>> {
        let Machine { applied, membership, .. } = self.shared.lock().machine.clone();
        Ok((applied, membership))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<C::R>, StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let (shared, entries) = (self.shared.clone(), entries.into_iter().collect());
        let applied = blocking(move || shared.apply(entries)).await;
        applied.map_err(|error| StorageIOError::write_state_machine(&error).into())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<tokio::fs::File>, StorageError<C::NodeId>> {
        let path = self.shared.file("received");
        let opened = tokio::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).await;
        opened.map(Box::new).map_err(|error| StorageIOError::write_snapshot(None, &error).into())
    }

    async fn install_snapshot(
        &mut self,
        meta: &Meta<C>,
        snapshot: Box<tokio::fs::File>,
    ) -> Result<(), StorageError<C::NodeId>> {
        let file = snapshot.into_std().await; // what is written is in the file then
        let (shared, of) = (self.shared.clone(), meta.clone());
        let installed = blocking(move || shared.install(&of, file)).await;
        installed.map_err(|error| StorageIOError::write_snapshot(Some(meta.signature()), &error).into())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<C>>, StorageError<C::NodeId>> {
        let shared = self.shared.clone();
        let found = blocking(move || shared.current()).await;
        let found = found.map_err(|error| StorageIOError::read_snapshot(None, &error))?;
        Ok(found.map(|(meta, file)| Snapshot { meta, snapshot: Box::new(tokio::fs::File::from_std(file)) }))
    }
}
