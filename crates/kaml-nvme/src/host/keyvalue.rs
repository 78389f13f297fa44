//! Commands of the Key Value command set, one call each.
//!
//! Lives here:       building commands, reading answers.
//! Lives elsewhere:  their fields (`wire::keyvalue`, `wire::manage`), other commands of our own (`named`, `versions`), sending
//!                   them (`queue`, `carrier`).
//! Implements:       spec:NVMe-KV "Key Value Command Set".

use super::{Error, Execute, Finished, Queue, Ticket};
use crate::wire::command::{Command, kv};
use crate::wire::keyvalue::{decode_list, put_key};
use crate::wire::status::Status;
use kaml::Key;

/// A Key Value namespace, reached through one queue, or something else that executes commands.
pub struct KeyValue<'a, E: ?Sized = Queue> {
    pub(super) queue: &'a E,
    pub(super) nsid: u32,
    /// The snapshot that is read; 0 for the present.
    pub(super) snapshot: u32,
}

impl<E: ?Sized> Clone for KeyValue<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: ?Sized> Copy for KeyValue<'_, E> {}

impl KeyValue<'_, Queue> {
    /// Store under options (`wire::keyvalue::store`), without waiting.
    pub fn submit_store(&self, key: &Key, value: &[u8], options: u8) -> Result<Ticket, Error> {
        self.queue.submit(self.storing(key, value.len(), options), value, 0)
    }

    /// Retrieve into a buffer of `room` bytes, without waiting. The result is the size of the whole value.
    pub fn submit_retrieve(&self, key: &Key, room: usize) -> Result<Ticket, Error> {
        self.queue.submit(self.retrieving(key, room), &[], room)
    }
}

impl<'a, E: Execute + ?Sized> KeyValue<'a, E> {
    /// Names the namespace.
    pub fn new(queue: &'a E, nsid: u32) -> KeyValue<'a, E> {
        KeyValue { queue, nsid, snapshot: 0 }
    }

    /// The same namespace as a snapshot shows it, for the commands of our own that read: named keys and ranges.
    pub fn at(self, snapshot: u32) -> KeyValue<'a, E> {
        KeyValue { snapshot, ..self }
    }

    pub(super) fn command(&self, opcode: u8, key: &Key) -> Command {
        let mut command = Command::new(opcode, self.nsid);
        put_key(&mut command, key);
        command
    }

    /// The command that stores a value of this many bytes under options (`wire::keyvalue::store`).
    pub fn storing(&self, key: &Key, bytes: usize, options: u8) -> Command {
        let mut command = self.command(kv::STORE, key);
        command.cdw10 = (bytes as u32).into();
        command.cdw11 = (command.cdw11.get() | u32::from(options) << 8).into();
        command
    }

    /// The command that retrieves a value into a buffer of `room` bytes.
    pub fn retrieving(&self, key: &Key, room: usize) -> Command {
        let mut command = self.command(kv::RETRIEVE, key);
        command.cdw10 = (room as u32).into();
        command
    }

    /// The command that asks whether a key exists.
    pub fn existing(&self, key: &Key) -> Command {
        self.command(kv::EXIST, key)
    }

    /// The command that deletes a key.
    pub fn deleting(&self, key: &Key) -> Command {
        self.command(kv::DELETE, key)
    }

    /// Store.
    pub fn store(&self, key: &Key, value: &[u8], options: u8) -> Result<(), Error> {
        self.queue.execute(self.storing(key, value.len(), options), value, 0)?.success().map(drop)
    }

    /// The first `room` bytes of a value, and its size; none if the key does not exist.
    pub fn retrieve(&self, key: &Key, room: usize) -> Result<Option<(Vec<u8>, usize)>, Error> {
        value_of(self.queue.execute(self.retrieving(key, room), &[], room)?)
    }

    /// Whether a key exists.
    pub fn exist(&self, key: &Key) -> Result<bool, Error> {
        Ok(present(self.queue.execute(self.existing(key), &[], 0)?)?.is_some())
    }

    /// Deletes a key. By default it need not exist.
    pub fn delete(&self, key: &Key) -> Result<(), Error> {
        self.queue.execute(self.deleting(key), &[], 0)?.success().map(drop)
    }

    /// Keys from `start` on, as many as fit in `room` bytes; `start` itself is the first one, if it exists.
    pub fn list(&self, start: Option<&Key>, room: usize) -> Result<Vec<Key>, Error> {
        let mut command = Command::new(kv::LIST, self.nsid);
        if let Some(start) = start {
            put_key(&mut command, start);
        }
        command.cdw10 = (room as u32).into();
        let finished = self.queue.execute(command, &[], room)?.success()?;
        decode_list(&finished.data).ok_or(Error::Unsupported("a whole List"))
    }

    /// All keys, `room` bytes of them at a time.
    pub fn list_all(&self, room: usize) -> Result<Vec<Key>, Error> {
        let mut keys = self.list(None, room)?;
        while let Some(last) = keys.last().copied() {
            // The start key comes again, unless it was deleted meanwhile.
            let more = self.list(Some(&last), room)?;
            let before = keys.len();
            keys.extend(more.into_iter().filter(|key| *key != last));
            if keys.len() == before {
                break;
            }
        }
        Ok(keys)
    }

    /// An atomic Put (`docs/nvme-vendor.md`) of `count` records from `wire::manage::encode_put`.
    pub fn put(&self, records: &[u8], count: u32) -> Result<(), Error> {
        let mut command = Command::new(kv::PUT, self.nsid);
        command.cdw10 = count.into();
        self.queue.execute(command, records, 0)?.success().map(drop)
    }
}

/// A value, as much of it as there was room for, and its size; none if the key does not exist.
pub(super) fn value_of(finished: Finished) -> Result<Option<(Vec<u8>, usize)>, Error> {
    let Some(mut finished) = present(finished)? else { return Ok(None) };
    let bytes = finished.result as u32 as usize;
    finished.data.truncate(bytes);
    Ok(Some((finished.data, bytes)))
}

/// An answer, or none if the key does not exist.
fn present(finished: Finished) -> Result<Option<Finished>, Error> {
    if finished.status.is(Status::NO_SUCH_KEY) { Ok(None) } else { finished.success().map(Some) }
}
