//! Commands of hosts: which ones, and a Put until it is staged.
//!
//! Lives here:       drawing commands, large values placed ahead of their Put.
//! Lives elsewhere:  carrying them out (`world`).

use crate::blocks::BlockPut;
use crate::model::{Changes, Model, Phase};
use crate::rng::Rng;
use crate::scenario::Workload;
use crate::value::Value;
use crate::versions::PastCommand;
use kaml_device::{Body, Condition, Core, DIRECT_BYTES, Key, Op, StageError, encode_image, image_bytes};
use kaml_flash::AlignedBuf;

/// What a host wants.
pub enum Command {
    /// An atomic Put.
    Put(Put),
    /// A write or a trim of blocks.
    Blocks(BlockPut),
    /// A snapshot, a rollback, a merge.
    Past(PastCommand),
    /// A record, or a block.
    Get((u32, u64)),
    /// A root.
    Root {
        /// With everything programmed.
        settle: bool,
    },
    /// An index out of memory.
    Unload(u32),
    /// A new namespace.
    Create,
    /// A namespace gone.
    Delete(u32),
}

impl Command {
    /// Whether it concerns a namespace.
    pub fn touches(&self, space: u32) -> bool {
        match self {
            Command::Put(put) => put.changes.keys().any(|(id, _)| *id == space),
            Command::Blocks(put) => put.space == space,
            Command::Past(command) => command.space == space,
            Command::Get((id, _)) | Command::Delete(id) => *id == space,
            Command::Root { .. } | Command::Unload(_) | Command::Create => false,
        }
    }

    /// What some host wants next.
    pub fn draw(rng: &mut Rng, workload: &Workload, model: &Model) -> Command {
        let there = |(id, (_, phase)): (&u32, &(String, Phase))| (*phase == Phase::There).then_some(*id);
        let spaces: Vec<u32> = model.spaces.iter().filter_map(there).collect();
        if spaces.is_empty() {
            return Command::Create;
        }
        if workload.disk_percent > 0
            && rng.below(100) < workload.disk_percent
            && let Some(command) = BlockPut::draw(rng, workload, model, &spaces)
        {
            return command;
        }
        if workload.past_percent > 0
            && rng.below(100) < workload.past_percent
            && let Some(command) = PastCommand::draw(rng, model, &spaces)
        {
            return command;
        }
        let of_records: Vec<u32> = spaces.iter().copied().filter(|id| !model.disks.contains_key(id)).collect();
        let spaces = if of_records.is_empty() { return Command::Root { settle: false } } else { of_records };
        let last = spaces.len() - 1;
        let one_in = |rng: &mut Rng, n: u64| n < u64::MAX && rng.one_in(n);
        if one_in(rng, workload.root_one_in) {
            return Command::Root { settle: rng.one_in(3) };
        }
        let space = |rng: &mut Rng| spaces[rng.below(last as u64 + 1) as usize];
        if one_in(rng, workload.unload_one_in) {
            return Command::Unload(space(rng));
        }
        if one_in(rng, workload.namespace_one_in) {
            return if last > 0 && rng.one_in(2) { Command::Delete(space(rng)) } else { Command::Create };
        }
        if rng.below(100) < workload.get_percent {
            return Command::Get((space(rng), rng.below(workload.keys)));
        }
        let count = rng.within(1, workload.batch_max);
        let change = |_| ((space(rng), rng.below(workload.keys)), draw_value(rng, workload));
        Command::Put(Put::new((0..count).map(change).collect()))
    }
}

fn draw_value(rng: &mut Rng, workload: &Workload) -> Option<Value> {
    if rng.below(100) < workload.delete_percent {
        return None;
    }
    let len = match workload.direct_one_in < u64::MAX && rng.one_in(workload.direct_one_in) {
        true => DIRECT_BYTES as u64 + rng.below(workload.direct_len_more),
        false => rng.below(workload.len_max + 1),
    };
    Some(Value { seed: rng.draw(), len: len as u32 })
}

/// An atomic Put that waits to be staged.
pub struct Put {
    /// What it does.
    pub changes: Changes,
    /// The bytes of each value, and their checksums.
    bytes: Vec<Option<(Vec<u8>, u32)>>,
    /// The tickets of large values that have a place.
    tickets: Vec<Option<u64>>,
}

impl Put {
    /// Ready to be tried.
    pub fn new(changes: Changes) -> Put {
        let bytes = |value: &Option<Value>| {
            let bytes = value.map(Value::noise)?;
            let crc32c = crc_fast::crc32_iscsi(&bytes);
            Some((bytes, crc32c))
        };
        Put { bytes: changes.values().map(bytes).collect(), tickets: vec![None; changes.len()], changes }
    }

    /// The tickets of large values that have a place.
    pub fn tickets(&self) -> impl Iterator<Item = u64> {
        self.tickets.iter().copied().flatten()
    }

    /// Gives large values their places; an error while some are not programmed.
    pub fn place(&mut self, core: &mut Core) -> Result<Option<u64>, StageError> {
        let mut all_placed = true;
        for (i, (space, key)) in self.changes.keys().enumerate() {
            let Some((bytes, crc32c)) = self.bytes[i].as_ref().filter(|(bytes, _)| bytes.len() >= DIRECT_BYTES) else {
                continue;
            };
            if core.reader().keeps_versions(*space) {
                continue;
            }
            let ticket = match self.tickets[i] {
                Some(ticket) => ticket,
                None => {
                    let buf = AlignedBuf::zeroed(image_bytes(core.geometry(), bytes.len()));
                    let (value, after) = ((&bytes[..], *crc32c), core.last_sequence());
                    let image = encode_image(core.geometry(), *space, Key::from(*key), value, after, buf);
                    *self.tickets[i].insert(core.place(*space, Key::from(*key), image)?)
                }
            };
            all_placed &= core.is_placed(ticket);
        }
        if all_placed { Ok(None) } else { Err(StageError::Busy) }
    }

    /// As the firmware takes it.
    pub fn ops(&self) -> Vec<Op<'_>> {
        let body = |i: usize| match (self.tickets[i], &self.bytes[i]) {
            (Some(ticket), _) => Body::Placed { ticket },
            (None, Some((value, crc32c))) => Body::Value { value, crc32c: *crc32c },
            (None, None) => Body::Delete,
        };
        let op = |(i, (namespace, key)): (usize, &(u32, u64))| Op {
            namespace: *namespace,
            key: Key::from(*key),
            body: body(i),
            condition: Condition::Always,
        };
        self.changes.keys().enumerate().map(op).collect()
    }

    /// Gives it up.
    pub fn forget(self, core: &mut Core) {
        self.tickets.into_iter().flatten().for_each(|ticket| core.forget(ticket));
    }
}
