//! Many keys at once, in two commands of our own: one names keys, one reads them.
//!
//! Lives here:       the lists of a controller, Name Keys, Retrieve Named, Exist Named.
//! Lives elsewhere:  their data (`wire::named`), who reads (`workers`); the page for people (`docs/nvme-vendor.md`).

use super::core::{Origin, Target};
use super::engine::status_of;
use super::keyvalue::room;
use super::reservations::Use;
use super::workers::Worker;
use crate::wire::command::Command;
use crate::wire::named::{decode_keys, put_found};
use crate::wire::status::Status;
use kaml::{Key, NamespaceId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Lists of one controller at most, so that hosts which forget theirs cost no more than 6 MiB: the oldest goes.
const LISTS_MAX: usize = 64;
/// Values read before it is looked whether there is room for more.
const READ_AT_ONCE: usize = 32;

type Keys = Arc<[(NamespaceId, Key)]>;

/// Keys that a host has named, oldest first.
#[derive(Default)]
pub(crate) struct Lists {
    lists: VecDeque<(u32, Keys)>,
    last: u32,
}

impl Lists {
    fn add(&mut self, keys: Keys) -> u32 {
        if self.lists.len() >= LISTS_MAX {
            self.lists.pop_front();
        }
        self.last = self.last.wrapping_add(1);
        self.lists.push_back((self.last, keys));
        self.last
    }

    fn get(&self, number: u32) -> Result<&Keys, Status> {
        let found = self.lists.iter().find(|(of, _)| *of == number);
        found.map(|(_, keys)| keys).ok_or(Status::NO_SUCH_LIST)
    }
}

impl Target {
    /// Dword 10 is the number of keys, the result that of the list.
    pub(crate) fn name_keys(&mut self, id: u16, command: &Command, data: &[u8]) -> Result<u64, Status> {
        let keys = decode_keys(data, command.cdw10.get())?;
        keys.iter().try_for_each(|(nsid, _)| self.holds_records(id, *nsid, Use::Read))?;
        let controller = self.controllers.get_mut(&id).ok_or(Status::INTERNAL)?;
        Ok(controller.lists.add(keys.into()).into())
    }

    /// The keys of list dword 11 from number dword 12 on.
    fn named(&self, id: u16, command: &Command) -> Result<(Keys, usize), Status> {
        let controller = self.controllers.get(&id).ok_or(Status::INTERNAL)?;
        let keys = controller.lists.get(command.cdw11.get())?;
        let first = command.cdw12.get() as usize;
        if first >= keys.len() {
            return Err(Status::INVALID_FIELD);
        }
        keys.iter().try_for_each(|(nsid, _)| self.holds_records(id, *nsid, Use::Read))?;
        Ok((Arc::clone(keys), first))
    }

    /// Tells of as many keys as there is room for; the result says of how many.
    pub(crate) fn retrieve_named(&mut self, origin: Origin, id: u16, command: &Command) -> Result<(), Status> {
        let (keys, first) = self.named(id, command)?;
        let room = room(command);
        self.engine.start_read(origin, move |worker| {
            let mut out = Vec::new();
            let mut told = 0;
            for some in keys[first..].chunks(READ_AT_ONCE) {
                let found = read(worker, some);
                let fit = found.iter().take_while(|found| put_found(&mut out, found, room)).count();
                told += fit;
                if fit < some.len() {
                    break;
                }
            }
            if told == 0 { Err(Status::SGL_LENGTH) } else { Ok((told as u64, out)) }.into()
        });
        Ok(())
    }

    /// Tells of as many keys as there is room for, one byte each; the result says of how many.
    pub(crate) fn exist_named(&mut self, origin: Origin, id: u16, command: &Command) -> Result<(), Status> {
        let (keys, first) = self.named(id, command)?;
        let room = room(command);
        self.engine.start_read(origin, move |worker| {
            let exists = |(nsid, key): &(NamespaceId, Key)| worker.device.exists(*nsid, *key).map(u8::from);
            let told: Result<Vec<u8>, _> = keys[first..].iter().take(room).map(exists).collect();
            told.map(|told| (told.len() as u64, told)).map_err(|error| status_of(&error)).into()
        });
        Ok(())
    }
}

/// Values of a few keys, in their order; keys of one namespace that stand together are read together.
fn read(worker: &mut Worker, keys: &[(NamespaceId, Key)]) -> Vec<Result<Vec<u8>, Status>> {
    let mut all = vec![Err(Status::NO_SUCH_KEY); keys.len()];
    let mut begin = 0;
    for some in keys.chunk_by(|a, b| a.0 == b.0) {
        let names: Vec<Key> = some.iter().map(|(_, key)| *key).collect();
        worker.reader().get_many(some[0].0, &names, &mut |place, value| {
            all[begin + place] = match value {
                Ok(value) => value.ok_or(Status::NO_SUCH_KEY),
                Err(error) => Err(status_of(&error)),
            };
        });
        begin += some.len();
    }
    all
}
