//! Keys above 16 bytes and ranges of keys, by commands of our own.
//!
//! Lives here:       building commands, reading answers.
//! Lives elsewhere:  their data (`wire::ranges`, `wire::named`, `wire::manage`), sending them (`queue`, `carrier`), a device that hides the
//!                   commands (`remote_ranges`).

use super::{Error, Execute, KeyValue};
use crate::wire::command::{Command, kv};
use crate::wire::keyvalue::KeyFormat;
use crate::wire::named::encode_long_keys;
use crate::wire::ranges::{KeyRange, Listed, decode_records, encode_range};
use kaml::{KeyBuf, NamespaceId};

impl<E: Execute + ?Sized> KeyValue<'_, E> {
    /// As [`KeyValue::put`], with keys of any length: `count` records from `wire::manage::encode_long_put`.
    pub fn put_long(&self, records: &[u8], count: u32) -> Result<(), Error> {
        let mut command = Command::new(kv::PUT, self.nsid);
        (command.cdw10, command.cdw11) = (count.into(), KeyFormat::Long.number().into());
        self.queue.execute(command, records, 0)?.success().map(drop)
    }

    /// As [`KeyValue::name_keys`], with keys of any length.
    pub fn name_long_keys(&self, keys: &[(NamespaceId, KeyBuf)]) -> Result<u32, Error> {
        let mut command = Command::new(kv::NAME_KEYS, self.nsid);
        (command.cdw10, command.cdw11) = ((keys.len() as u32).into(), KeyFormat::Long.number().into());
        let data = encode_long_keys(keys.iter().map(|(nsid, key)| (*nsid, key)));
        Ok(self.queue.execute(command, &data, 0)?.success()?.result as u32)
    }

    fn on_range(&self, opcode: u8, range: &KeyRange) -> Result<u64, Error> {
        let mut command = Command::new(opcode, self.nsid);
        if opcode == kv::COUNT_RANGE {
            command.cdw14 = self.snapshot.into();
        }
        Ok(self.queue.execute(command, &encode_range(range), 0)?.success()?.result)
    }

    /// Names a range of keys of the namespace; returns its number. The controller forgets the oldest ranges and lists of a host that has many.
    pub fn name_range(&self, range: &KeyRange) -> Result<u32, Error> {
        Ok(self.on_range(kv::NAME_RANGE, range)? as u32)
    }

    /// The first records of a range that was named, as many as there is room for, at most `limit` if that is not 0, and whether more may follow. The
    /// flags are those of `wire::ranges::flag`.
    pub fn retrieve_range(
        &self,
        range: u32,
        flags: u32,
        limit: u32,
        room: usize,
    ) -> Result<(Vec<Listed>, bool), Error> {
        let mut command = Command::new(kv::RETRIEVE_RANGE, self.nsid);
        (command.cdw10, command.cdw11) = ((room as u32).into(), range.into());
        (command.cdw12, command.cdw13, command.cdw14) = (limit.into(), flags.into(), self.snapshot.into());
        let finished = self.queue.execute(command, &[], room)?.success()?;
        let records = decode_records(&finished.data, finished.result as u32 as usize);
        Ok((records.ok_or(Error::Unsupported("Retrieve Range"))?, finished.result >> 32 & 1 == 1))
    }

    /// Opens a snapshot of the device, which the controller closes when it goes; returns its number. The namespace has no meaning, and may be that of
    /// all (FFFFFFFFh).
    pub fn open_snapshot(&self) -> Result<u32, Error> {
        Ok(self.queue.execute(Command::new(kv::OPEN_SNAPSHOT, self.nsid), &[], 0)?.success()?.result as u32)
    }

    /// Closes a snapshot.
    pub fn close_snapshot(&self, snapshot: u32) -> Result<(), Error> {
        let mut command = Command::new(kv::CLOSE_SNAPSHOT, self.nsid);
        command.cdw10 = snapshot.into();
        self.queue.execute(command, &[], 0)?.success().map(drop)
    }

    /// How many keys a range has.
    pub fn count_range(&self, range: &KeyRange) -> Result<u64, Error> {
        self.on_range(kv::COUNT_RANGE, range)
    }

    /// Deletes the keys of a range, all or none; how many there were.
    pub fn delete_range(&self, range: &KeyRange) -> Result<u64, Error> {
        self.on_range(kv::DELETE_RANGE, range)
    }
}
