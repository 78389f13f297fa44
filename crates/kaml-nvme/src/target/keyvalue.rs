//! The Key Value command set.
//!
//! Lives here:       Store, Retrieve, Delete, Exist, List, and the atomic Put of ours.
//! Lives elsewhere:  their fields (`wire::keyvalue`, `wire::manage`), other commands of ours (`named`, `ranges`, `versions`), what
//!                   stores and finds (`engine`).
//! Implements:       spec:NVMe-KV "Key Value Command Set"; paper:KAML Table I (Get, Put).

use super::core::{Origin, Outcome, Target};
use super::engine::{LARGE_BYTES, status_of};
use super::reservations::Use;
use super::spaces::{Holds, Space};
use crate::wire::command::{Command, kv};
use crate::wire::keyvalue::{KeyFormat, encode_list, get_key, options, store};
use crate::wire::manage::{decode_put, put_count_max, put_namespaces};
use crate::wire::status::Status;
use kaml::store::Backing;
use kaml::{Batch, Bytes, Condition, Device, Key, KeyBuf, NamespaceId};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Bound;

/// Keys of one List at most, so none holds up other commands for long; hosts continue from the last one.
const LISTED_MAX: usize = 8192;
/// The least that a listed key takes.
const LISTED_BYTES_MIN: usize = 4;
/// The least that a record of a Put takes of what a device takes at once: its header and a key there (`docs/formats/record.md`).
const PUT_RECORD_BYTES_MIN: u64 = 24;

impl Target {
    pub(crate) fn key_value(
        &mut self,
        origin: Origin,
        id: u16,
        space: &Space,
        command: &Command,
        data: Cow<'_, [u8]>,
    ) -> Outcome {
        match command.opcode {
            kv::FLUSH => Status::SUCCESS.into(), // whatever completed is durable
            kv::STORE => self.store(origin, space, command, data).into(),
            kv::RETRIEVE => self.retrieve(origin, space, command).into(),
            kv::DELETE => self.delete(origin, space, command).into(),
            kv::EXIST => self.exist(origin, space, command),
            kv::LIST => self.list(origin, space, command),
            kv::PUT => self.put(origin, id, command, data).into(),
            kv::NAME_KEYS => self.name_keys(id, command, &data).into(),
            kv::RETRIEVE_NAMED => self.retrieve_named(origin, id, command).into(),
            kv::EXIST_NAMED => self.exist_named(origin, id, command).into(),
            kv::NAME_RANGE => self.name_range(id, space, &data).into(),
            kv::RETRIEVE_RANGE => self.retrieve_range(origin, id, space, command).into(),
            kv::COUNT_RANGE => self.count_range(origin, id, space, command, &data).into(),
            kv::DELETE_RANGE => self.delete_range(origin, space, &data).into(),
            kv::OPEN_SNAPSHOT | kv::CLOSE_SNAPSHOT => self.snapshot_command(id, command).into(),
            kv::RETRIEVE_VERSION | kv::UNDO | kv::SNAPSHOT | kv::HISTORY | kv::VERSIONS | kv::DIFF | kv::MERGE => {
                self.versions(origin, space.id, command).into()
            }
            _ => Status::INVALID_OPCODE.into(),
        }
    }

    fn store(
        &mut self,
        origin: Origin,
        space: &Space,
        command: &Command,
        mut data: Cow<'_, [u8]>,
    ) -> Result<(), Status> {
        let key = key_of(command)?;
        let bytes = command.cdw10.get();
        if u64::from(bytes) > self.limits.value_bytes_max {
            return Err(Status::INVALID_VALUE_SIZE);
        }
        if bytes as usize > data.len() {
            return Err(Status::SGL_LENGTH);
        }
        match &mut data {
            Cow::Borrowed(data) => *data = &data[..bytes as usize],
            Cow::Owned(data) => data.truncate(bytes as usize),
        }
        let options = options(command);
        let condition = match (options & store::MUST_EXIST != 0, options & store::MUST_NOT_EXIST != 0) {
            (false, false) => Condition::Always,
            (true, false) => Condition::IfPresent,
            (false, true) => Condition::IfAbsent,
            (true, true) => return Err(Status::INVALID_FIELD),
        };
        if condition != Condition::Always && space.look_may_read() {
            // It reads first.
            self.engine.store_slowly(origin, space.id, key, data.into_owned(), condition);
            return Ok(());
        }
        self.engine.store(origin, space.id, key, data, condition)
    }

    fn retrieve(&mut self, origin: Origin, space: &Space, command: &Command) -> Result<(), Status> {
        let (key, room, id) = (key_of(command)?, room(command), space.id);
        if space.look_may_read() {
            self.engine.retrieve_slowly(origin, id, key, room);
            return Ok(());
        }
        self.engine.retrieve(origin, id, key, room)
    }

    fn delete(&mut self, origin: Origin, space: &Space, command: &Command) -> Result<(), Status> {
        let (key, id) = (key_of(command)?, space.id);
        let mut batch = Batch::new();
        match space.delete_must_exist {
            true => batch.delete_if_present(id, key),
            false => batch.delete(id, key),
        };
        if space.delete_must_exist && space.look_may_read() {
            // It reads first.
            self.engine.write_slowly(origin, move || Ok(batch));
            return Ok(());
        }
        self.engine.write(origin, batch)
    }

    /// The index knows, if it is in memory; where versions are kept, flash is read.
    fn exist(&mut self, origin: Origin, space: &Space, command: &Command) -> Outcome {
        let (id, key) = match key_of(command) {
            Ok(key) => (space.id, key),
            Err(status) => return status.into(),
        };
        if space.look_may_read() || self.engine.must_load(id) {
            self.engine.start_read(origin, move |worker| exists(&worker.device, id, key).into());
            return Outcome::Later;
        }
        exists(self.engine.device(), id, key).into()
    }

    fn list(&mut self, origin: Origin, space: &Space, command: &Command) -> Outcome {
        let (id, room) = (space.id, room(command));
        let start = match get_key(command) {
            Ok(start) if room >= 4 => start,
            Ok(_) => return Status::INVALID_FIELD.into(),
            Err(status) => return status.into(),
        };
        if space.look_may_read() || self.engine.must_load(id) {
            self.engine
                .start_read(origin, move |worker| listed(&worker.device, id, start, room).map(|d| (0, d)).into());
            return Outcome::Later;
        }
        listed(self.engine.device(), id, start, room).into()
    }

    /// Atomic Put over any Key Value namespaces (`docs/nvme-vendor.md`): dword 10 is the number of records, dword 11 the format of their keys. A long one a worker
    /// reads, because short records take several times as much memory as their data.
    fn put(&mut self, origin: Origin, id: u16, command: &Command, data: Cow<'_, [u8]>) -> Result<(), Status> {
        let (count, format) = (command.cdw10.get(), KeyFormat::of(command)?);
        if put_count_max(data.len(), count, format) * PUT_RECORD_BYTES_MIN > self.limits.batch_bytes_max {
            return Err(Status::INVALID_FIELD);
        }
        if data.len() < LARGE_BYTES {
            let batch = decode_put(&data, count, format)?;
            batch.records().try_for_each(|record| self.holds_records(id, record.namespace, Use::Write))?;
            let look_may_read = |id| self.spaces.get(&id).is_some_and(Space::look_may_read);
            if batch.records().any(|record| record.condition != Condition::Always && look_may_read(record.namespace)) {
                // It reads first.
                self.engine.write_slowly(origin, move || Ok(batch));
                return Ok(());
            }
            return self.engine.write(origin, batch);
        }
        let mut seen = BTreeSet::new();
        for nsid in put_namespaces(&data, count, format) {
            let nsid = nsid?;
            if seen.insert(nsid) {
                self.holds_records(id, nsid, Use::Write)?;
            }
        }
        let data = data.into_owned();
        self.engine.write_slowly(origin, move || decode_put(&data, count, format));
        Ok(())
    }

    /// Refuses a namespace that is not attached, has no keys, or is reserved.
    pub(crate) fn holds_records(&self, id: u16, nsid: NamespaceId, way: Use) -> Result<(), Status> {
        match self.attached(id, nsid)?.holds {
            Holds::Records(_) | Holds::Versions(_) => self.check_use(id, nsid, way),
            Holds::Blocks(_) => Err(Status::INVALID_NAMESPACE),
        }
    }
}

fn exists(device: &Device, nsid: NamespaceId, key: Key) -> Result<u64, Status> {
    match device.exists(nsid, key) {
        Ok(true) => Ok(0),
        Ok(false) => Err(Status::NO_SUCH_KEY),
        Err(error) => Err(status_of(&error)),
    }
}

/// The start key first, if it exists, then those after its place in the order of the index: what does not change meanwhile
/// is listed once, however many commands it takes. An ordered namespace lists in the order of its keys. A key above 16 bytes has no room in a
/// List: a page that would have one is refused, so no host takes a part of the keys for all of them.
fn listed(device: &Device, nsid: NamespaceId, start: Option<Key>, room: usize) -> Result<Vec<u8>, Status> {
    let short = |keys: &[KeyBuf]| -> Result<Vec<Key>, Status> {
        keys.iter().map(|key| key.as_short().ok_or(Status::HAS_LONG_KEYS)).collect()
    };
    let failed = |error: kaml::Error| status_of(&error);
    let keys = || -> Result<Vec<Key>, Status> {
        let limit = (room / LISTED_BYTES_MIN).clamp(1, LISTED_MAX);
        if Backing::is_ordered(device, nsid).map_err(failed)? {
            let lower = start.as_ref().map_or(Bound::Unbounded, |start| Bound::Included(start.as_bytes()));
            let page = Backing::ordered_keys(device, nsid, lower, Bound::Unbounded, false, limit);
            return short(&page.map_err(failed)?);
        }
        let mut keys = Vec::new();
        let mut after = None;
        if let Some(start) = start {
            after = Some(device.cursor_at(nsid, start).map_err(failed)?);
            keys.extend(device.exists(nsid, start).map_err(failed)?.then_some(start));
        }
        loop {
            let page = device.list(nsid, after, limit).map_err(failed)?;
            keys.extend(short(&page.keys)?);
            after = page.next;
            // A page of keys that have gone meanwhile is not the end.
            if !page.keys.is_empty() || after.is_none() {
                return Ok(keys);
            }
        }
    };
    Ok(encode_list(&keys()?, room))
}

/// A value, or none, as the answer of a command: its size, and as much of it as there is room for.
pub(crate) fn found(value: Result<Option<Bytes>, kaml::Error>, room: usize) -> Result<(u64, Bytes), Status> {
    found_in(value, room, drop)
}

/// As [`found`]. Where there is room for a part, that is copied, so the answer takes no more memory than its host has
/// room for; the value is spent.
pub(crate) fn found_in(
    value: Result<Option<Bytes>, kaml::Error>,
    room: usize,
    spend: impl FnOnce(Bytes),
) -> Result<(u64, Bytes), Status> {
    let value = value.map_err(|error| value_status(&error))?.ok_or(Status::NO_SUCH_KEY)?;
    let bytes = value.len() as u64;
    if value.len() <= room {
        return Ok((bytes, value));
    }
    let part = value[..room].to_vec();
    spend(value);
    Ok((bytes, part.into()))
}

/// The status for a value that cannot be read: a damaged one has a status of this command set.
fn value_status(error: &kaml::Error) -> Status {
    let status = status_of(error);
    if status.is(Status::UNRECOVERED_READ) { Status::UNRECOVERED } else { status }
}

/// The key of a command that must have one.
pub(crate) fn key_of(command: &Command) -> Result<Key, Status> {
    get_key(command)?.ok_or(Status::INVALID_KEY_SIZE)
}

/// Bytes that the host has room for.
pub(crate) fn room(command: &Command) -> usize {
    command.cdw10.get().min(command.sgl.length.get()) as usize
}
