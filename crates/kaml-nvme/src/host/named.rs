//! Many keys in two commands of our own.
//!
//! Lives here:       building commands, reading answers.
//! Lives elsewhere:  their data (`wire::named`), sending them (`queue`, `carrier`).

use super::{Error, Execute, KeyValue};
use crate::wire::command::{Command, kv};
use crate::wire::named::{Found, decode_found, encode_keys};
use kaml::{Key, NamespaceId};

impl<E: Execute + ?Sized> KeyValue<'_, E> {
    /// Names up to `wire::named::KEYS_MAX` keys of any namespaces; returns the number of the list. The controller forgets
    /// the oldest lists of a host that has many.
    pub fn name_keys(&self, keys: &[(NamespaceId, Key)]) -> Result<u32, Error> {
        let mut command = Command::new(kv::NAME_KEYS, self.nsid);
        command.cdw10 = (keys.len() as u32).into();
        Ok(self.queue.execute(command, &encode_keys(keys.iter().copied()), 0)?.success()?.result as u32)
    }

    fn reading_named(&self, opcode: u8, list: u32, first: usize, room: usize) -> Command {
        let mut command = Command::new(opcode, self.nsid);
        (command.cdw10, command.cdw11, command.cdw12) = ((room as u32).into(), list.into(), (first as u32).into());
        command.cdw14 = self.snapshot.into();
        command
    }

    /// What there is of keys of a list, from number `first` on: as many as there is room for, at least one. A value that
    /// is longer than the room is returned without its bytes.
    pub fn retrieve_named(&self, list: u32, first: usize, room: usize) -> Result<Vec<Found>, Error> {
        let command = self.reading_named(kv::RETRIEVE_NAMED, list, first, room);
        let finished = self.queue.execute(command, &[], room)?.success()?;
        let found = decode_found(&finished.data, finished.result as u32 as usize);
        found.filter(|found| !found.is_empty()).ok_or(Error::Unsupported("Retrieve Named"))
    }

    /// Whether keys of a list exist, from number `first` on: as many as there is room for, at least one.
    pub fn exist_named(&self, list: u32, first: usize, room: usize) -> Result<Vec<bool>, Error> {
        let command = self.reading_named(kv::EXIST_NAMED, list, first, room);
        let finished = self.queue.execute(command, &[], room)?.success()?;
        let told = finished.data.get(..finished.result as u32 as usize).filter(|told| !told.is_empty());
        Ok(told.ok_or(Error::Unsupported("Exist Named"))?.iter().map(|told| *told == 1).collect())
    }
}
