//! The Key Value command set.
//!
//! Lives here:       Store, Retrieve, Delete, Exist, List, and the atomic Put of ours.
//! Lives elsewhere:  their fields (`wire::keyvalue`, `wire::manage`), what stores and finds (`engine`).
//! Implements:       spec:NVMe-KV "Key Value Command Set"; paper:KAML Table I (Get, Put).

use super::core::{Holds, Origin, Outcome, Space, Target};
use super::engine::status_of;
use crate::wire::command::{Command, kv};
use crate::wire::keyvalue::{encode_list, get_key, options, store};
use crate::wire::manage::decode_put;
use crate::wire::status::Status;
use kaml::{Batch, Condition, Key};

/// Keys of one List at most, so that none holds up other commands for long; hosts go on from the last one.
const LISTED_MAX: usize = 8192;
/// The least that a listed key takes.
const LISTED_BYTES_MIN: usize = 4;

impl Target {
    pub(crate) fn key_value(
        &mut self,
        origin: Origin,
        id: u16,
        space: &Space,
        command: &Command,
        data: Vec<u8>,
    ) -> Outcome {
        match command.opcode {
            kv::FLUSH => Status::SUCCESS.into(), // whatever was answered is durable
            kv::STORE => self.store(origin, space, command, data).into(),
            kv::RETRIEVE => self.retrieve(origin, space, command).into(),
            kv::DELETE => self.delete(origin, space, command).into(),
            kv::EXIST => self.exist(space, command).into(),
            kv::LIST => self.list(space, command).into(),
            kv::PUT => self.put(origin, id, command, &data).into(),
            _ => Status::INVALID_OPCODE.into(),
        }
    }

    fn store(&mut self, origin: Origin, space: &Space, command: &Command, mut data: Vec<u8>) -> Result<(), Status> {
        let key = key_of(command)?;
        let bytes = command.cdw10.get();
        if u64::from(bytes) > self.limits.value_bytes_max {
            return Err(Status::INVALID_VALUE_SIZE);
        }
        if bytes as usize > data.len() {
            return Err(Status::SGL_LENGTH);
        }
        data.truncate(bytes as usize);
        let options = options(command);
        let condition = match (options & store::MUST_EXIST != 0, options & store::MUST_NOT_EXIST != 0) {
            (false, false) => Condition::Always,
            (true, false) => Condition::IfPresent,
            (false, true) => Condition::IfAbsent,
            (true, true) => return Err(Status::INVALID_FIELD),
        };
        self.engine.store(origin, space.id, key, data, condition)
    }

    fn retrieve(&mut self, origin: Origin, space: &Space, command: &Command) -> Result<(), Status> {
        let key = key_of(command)?;
        self.engine.retrieve(origin, space.id, key, room(command))
    }

    fn delete(&mut self, origin: Origin, space: &Space, command: &Command) -> Result<(), Status> {
        let key = key_of(command)?;
        let mut batch = Batch::new();
        match space.delete_must_exist {
            true => batch.delete_if_present(space.id, key),
            false => batch.delete(space.id, key),
        };
        self.engine.write(origin, batch)
    }

    fn exist(&mut self, space: &Space, command: &Command) -> Result<u64, Status> {
        let key = key_of(command)?;
        match self.engine.device().exists(space.id, key) {
            Ok(true) => Ok(0),
            Ok(false) => Err(Status::NO_SUCH_KEY),
            Err(error) => Err(status_of(&error)),
        }
    }

    /// The start key first, if it is there, then those behind its place in the order of the index: what does not
    /// change meanwhile is listed once, however many commands it takes.
    fn list(&mut self, space: &Space, command: &Command) -> Result<Vec<u8>, Status> {
        let room = room(command);
        if room < 4 {
            return Err(Status::INVALID_FIELD);
        }
        let device = self.engine.device();
        let listed = || -> Result<Vec<Key>, kaml::Error> {
            let mut keys = Vec::new();
            let mut after = None;
            if let Some(start) = get_key(command).ok().flatten() {
                after = Some(device.cursor_at(space.id, start)?);
                keys.extend(device.exists(space.id, start)?.then_some(start));
            }
            let limit = (room / LISTED_BYTES_MIN).clamp(1, LISTED_MAX);
            keys.extend(device.list(space.id, after, limit)?.keys);
            Ok(keys)
        };
        get_key(command)?;
        Ok(encode_list(&listed().map_err(|error| status_of(&error))?, room))
    }

    /// Atomic Put over any Key Value namespaces (`docs/nvme-vendor.md`): dword 10 is the number of records.
    fn put(&mut self, origin: Origin, id: u16, command: &Command, data: &[u8]) -> Result<(), Status> {
        let batch = decode_put(data, command.cdw10.get())?;
        for record in batch.records() {
            if !matches!(self.attached(id, record.namespace)?.holds, Holds::Records(_)) {
                return Err(Status::INVALID_NAMESPACE);
            }
        }
        self.engine.write(origin, batch)
    }
}

/// The key of a command that must have one.
fn key_of(command: &Command) -> Result<Key, Status> {
    get_key(command)?.ok_or(Status::INVALID_KEY_SIZE)
}

/// Bytes that the host has room for.
fn room(command: &Command) -> usize {
    command.cdw10.get().min(command.sgl.length.get()) as usize
}
