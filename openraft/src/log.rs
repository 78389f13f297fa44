//! The log of a node.
//!
//! Lives here:       entries, the vote, what was committed and purged.
//! Lives elsewhere:  what entries do (`state`).
//! Implements:       `RaftLogStorage`, `RaftLogReader`.
//!
//! The namespace `NAME.log` has the entries under their indexes; `NAME.state` has the vote and the ids. Entries are consecutive also
//! after a crash: they are put in their order, and deleted as one range.

use crate::{batch_bytes, blocking, decode, encode, ordered};
use kaml::{AsyncDevice, Batch, Device, Error, Namespace};
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{LogId, OptionalSend, RaftLogId, RaftLogReader, RaftTypeConfig, StorageError, StorageIOError, Vote};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";
/// Puts of a log that are under way at a time.
const DEPTH: u32 = 64;

/// The log of one node on a device. Clones are further handles to the same log.
///
/// # Examples
/// See the crate.
pub struct LogStore<C> {
    log: Namespace,
    state: Namespace,
    commands: AsyncDevice,
    batch_bytes: usize,
    types: PhantomData<fn() -> C>,
}

impl<C> Clone for LogStore<C> {
    fn clone(&self) -> Self {
        let LogStore { log, state, commands, batch_bytes, types } = self;
        LogStore {
            log: log.clone(),
            state: state.clone(),
            commands: commands.clone(),
            batch_bytes: *batch_bytes,
            types: *types,
        }
    }
}

impl<C: RaftTypeConfig> LogStore<C> {
    /// Opens the log `name` of a device, or begins it. It has the namespaces `NAME.log` and `NAME.state`.
    ///
    /// # Errors
    /// Those of [`Device::ensure_namespace`] and [`AsyncDevice::new`].
    pub fn open(device: &Device, name: &str) -> Result<Self, Error> {
        Ok(LogStore {
            log: ordered(device, &format!("{name}.log"))?,
            state: ordered(device, &format!("{name}.state"))?,
            commands: AsyncDevice::new(device, DEPTH)?,
            batch_bytes: batch_bytes(device),
            types: PhantomData,
        })
    }

    async fn load<T: DeserializeOwned + Send + 'static>(&self, key: &'static str) -> io::Result<Option<T>> {
        let state = self.state.clone();
        blocking(move || {
            let found = state.get(key).map_err(io::Error::other)?;
            found.map(|bytes| decode(key, &bytes)).transpose()
        })
        .await
    }

    async fn save<T: Serialize>(&self, key: &str, value: &T) -> io::Result<()> {
        let mut batch = Batch::new();
        batch.put(self.state.id(), key, &encode(value)?);
        self.commands.write(batch).await.map_err(io::Error::other)
    }

    /// Stores entries in their order, all that fit into one Put together.
    async fn put(&self, entries: impl Iterator<Item = C::Entry>) -> io::Result<()> {
        let mut batch = Batch::new();
        for entry in entries {
            let bytes = encode(&entry)?;
            if !batch.is_empty() && batch.value_bytes() + bytes.len() > self.batch_bytes {
                self.commands.write(std::mem::take(&mut batch)).await.map_err(io::Error::other)?;
            }
            batch.put(self.log.id(), entry.get_log_id().index, &bytes);
        }
        if batch.is_empty() { Ok(()) } else { self.commands.write(batch).await.map_err(io::Error::other) }
    }

    async fn delete(&self, indexes: (Bound<u64>, Bound<u64>)) -> io::Result<()> {
        let log = self.log.clone();
        blocking(move || log.delete_range(indexes).map(drop).map_err(io::Error::other)).await
    }
}

impl<C: RaftTypeConfig> RaftLogReader<C> for LogStore<C> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        let (log, bounds) = (self.log.clone(), (range.start_bound().cloned(), range.end_bound().cloned()));
        let read = move || {
            let entry = |found: Result<_, Error>| {
                found.map_err(io::Error::other).and_then(|(_, bytes): (_, Vec<u8>)| decode("a log entry", &bytes))
            };
            log.range(bounds).map(entry).collect()
        };
        blocking(read).await.map_err(|error| StorageIOError::read_logs(&error).into())
    }
}

impl<C: RaftTypeConfig> RaftLogStorage<C> for LogStore<C> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<C>, StorageError<C::NodeId>> {
        let failed = |error: io::Error| StorageIOError::read_logs(&error);
        let purged: Option<LogId<C::NodeId>> = self.load(PURGED).await.map_err(failed)?;
        let log = self.log.clone();
        let last = blocking(move || log.last().map_err(io::Error::other)).await.map_err(failed)?;
        let last: Option<C::Entry> =
            last.map(|(_, bytes)| decode("a log entry", &bytes)).transpose().map_err(failed)?;
        // After a crash, entries may be there that were purged.
        let last = last.map(|entry| entry.get_log_id().clone()).max(purged.clone());
        Ok(LogState { last_purged_log_id: purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        self.save(VOTE, vote).await.map_err(|error| StorageIOError::write_vote(&error).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<C::NodeId>>, StorageError<C::NodeId>> {
        self.load(VOTE).await.map_err(|error| StorageIOError::read_vote(&error).into())
    }

    async fn save_committed(&mut self, committed: Option<LogId<C::NodeId>>) -> Result<(), StorageError<C::NodeId>> {
        self.save(COMMITTED, &committed).await.map_err(|error| StorageIOError::write(&error).into())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<C::NodeId>>, StorageError<C::NodeId>> {
        let found: Option<Option<LogId<C::NodeId>>> =
            self.load(COMMITTED).await.map_err(|error| StorageIOError::read(&error))?;
        Ok(found.flatten())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<C>) -> Result<(), StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.put(entries.into_iter()).await.map_err(|error| StorageIOError::write_logs(&error))?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, from: LogId<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        let deleted = self.delete((Bound::Included(from.index), Bound::Unbounded)).await;
        deleted.map_err(|error| StorageIOError::write_logs(&error).into())
    }

    async fn purge(&mut self, through: LogId<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        // The id first: a crash in between leaves entries that nobody looks for.
        let saved = self.save(PURGED, &through).await;
        saved.map_err(|error| StorageIOError::write_logs(&error))?;
        let deleted = self.delete((Bound::Unbounded, Bound::Included(through.index))).await;
        deleted.map_err(|error| StorageIOError::write_logs(&error).into())
    }
}
