//! Commands of hosts: which ones, and a Put until it is staged.
//!
//! Lives here:       drawing commands, large values placed ahead of their Put, whether conditions were judged rightly.
//! Lives elsewhere:  executing them (`world`).

use crate::blocks::BlockPut;
use crate::check::Violation;
use crate::model::{Address, Changes, Model, Phase};
use crate::rng::Rng;
use crate::scenario::Workload;
use crate::value::Value;
use crate::versions::PastCommand;
use kaml_device::{
    Body, Condition, Core, DIRECT_BYTES, Expires, KeyBuf, KeyKind, Op, Reader, StageError, encode_expiring_image,
    expiring_image_bytes,
};
use kaml_flash::AlignedBuf;
use std::collections::BTreeMap;
use std::ops::Bound;

/// What a host needs.
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
    /// A namespace to other logs.
    Move(u32),
    /// The keys of a range gone, in one step: from that of one number to that of another.
    DeleteRange(u32, Bound<u64>, Bound<u64>),
}

/// One command in this many deletes a range, where keys are in order.
const RANGE_ONE_IN: u64 = 12;

impl Command {
    /// Whether it concerns a namespace.
    pub fn touches(&self, space: u32) -> bool {
        match self {
            Command::Put(put) => put.changes.keys().any(|(id, _)| *id == space),
            Command::Blocks(put) => put.space == space,
            Command::Past(command) => command.space == space,
            Command::Get((id, _)) | Command::Delete(id) | Command::Move(id) | Command::DeleteRange(id, ..) => {
                *id == space
            }
            Command::Root { .. } | Command::Unload(_) | Command::Create => false,
        }
    }

    /// What some host needs next.
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
        if one_in(rng, workload.move_one_in) {
            return Command::Move(space(rng));
        }
        if workload.long_key_percent > 0 && rng.one_in(RANGE_ONE_IN) {
            let space = space(rng);
            if model.strings.get(&space) == Some(&KeyKind::Ordered) {
                let mut bound = || match (rng.below(4), rng.below(workload.keys)) {
                    (0, _) => Bound::Unbounded,
                    (1, number) => Bound::Excluded(number),
                    (_, number) => Bound::Included(number),
                };
                return Command::DeleteRange(space, bound(), bound());
            }
        }
        if rng.below(100) < workload.get_percent {
            return Command::Get((space(rng), rng.below(workload.keys)));
        }
        let count = rng.within(1, workload.batch_max);
        let change = |_| ((space(rng), rng.below(workload.keys)), draw_value(rng, workload, model.now));
        let mut changes: Changes = (0..count).map(change).collect();
        for (address, value) in &mut changes {
            if let Some(value) = value.as_mut().filter(|_| model.pasts.contains_key(&address.0)) {
                value.expires = 0; // versions do not expire
            }
        }
        let mut put = Put::new(changes, model);
        if workload.condition_percent > 0 && rng.below(100) < workload.condition_percent {
            put.draw_conditions(rng, model);
        }
        Command::Put(put)
    }
}

/// The longest time to live: some hundred turns.
const TTL_MAX: u64 = 60;

fn draw_value(rng: &mut Rng, workload: &Workload, now: u64) -> Option<Value> {
    if rng.below(100) < workload.delete_percent {
        return None;
    }
    let len = match workload.direct_one_in < u64::MAX && rng.one_in(workload.direct_one_in) {
        true => DIRECT_BYTES as u64 + rng.below(workload.direct_len_more),
        false => rng.below(workload.len_max + 1),
    };
    let does_expire = workload.expiry_percent > 0 && rng.below(100) < workload.expiry_percent;
    let expires = if does_expire { now + rng.below(TTL_MAX) } else { 0 };
    Some(Value { seed: rng.draw(), len: len as u32, expires })
}

/// Bytes that are stored, and their checksum.
type Stored = (Vec<u8>, u32);

/// An atomic Put that waits to be staged.
pub struct Put {
    /// What it does.
    pub changes: Changes,
    keys: Vec<KeyBuf>,
    conditions: Vec<Condition>,
    /// For keys that must not have changed since a look at them, how often they had changed then.
    looked: BTreeMap<Address, usize>,
    /// The bytes of each value, and their checksums.
    bytes: Vec<Option<Stored>>,
    /// Those that are compressed, and their checksums; nothing before that was tried.
    packed: Option<Vec<Option<Stored>>>,
    /// When each record expires; 0 for never.
    expires: Vec<u64>,
    /// The tickets of large values that have a place.
    tickets: Vec<Option<u64>>,
}

impl Put {
    /// Ready to be tried, under no condition.
    pub fn new(changes: Changes, model: &Model) -> Put {
        let bytes = |value: &Option<Value>| {
            let bytes = value.map(Value::noise)?;
            let crc32c = kaml_crc::crc32c(&bytes);
            Some((bytes, crc32c))
        };
        Put {
            bytes: changes.values().map(bytes).collect(),
            packed: None,
            expires: changes.values().map(|value| value.map_or(0, |value| value.expires)).collect(),
            tickets: vec![None; changes.len()],
            keys: changes.keys().map(|address| model.key(*address)).collect(),
            conditions: vec![Condition::Always; changes.len()],
            looked: BTreeMap::new(),
            changes,
        }
    }

    /// Puts one record, half of them or all under conditions, most of which hold by what completed.
    fn draw_conditions(&mut self, rng: &mut Rng, model: &Model) {
        let (which, only) = (rng.below(3), rng.below(self.changes.len() as u64) as usize);
        let fails_one_in = 2 + self.changes.len() as u64;
        for (i, address) in self.changes.keys().enumerate() {
            let has_one = which == 0 || which == 1 && rng.one_in(2) || i == only;
            if has_one {
                let asks_for_present = model.records.contains_key(address) != rng.one_in(fails_one_in);
                self.conditions[i] = match asks_for_present {
                    _ if model.pasts.contains_key(&address.0) => Condition::UnchangedSince(0),
                    true => Condition::IfPresent,
                    false => Condition::IfAbsent,
                };
            }
        }
    }

    /// Its host looks at the keys that are not to change until it is staged.
    pub(crate) fn look(&mut self, core: &Core, model: &Model) {
        for (address, condition) in self.changes.keys().zip(&mut self.conditions) {
            if let Condition::UnchangedSince(sequence) = condition {
                *sequence = core.newest_committed(address.0);
                self.looked.insert(*address, model.pasts[&address.0].change_count(address.1));
            }
        }
    }

    /// Whether it is under conditions.
    pub(crate) fn is_conditional(&self) -> bool {
        self.conditions.iter().any(|condition| *condition != Condition::Always)
    }

    /// Bytes of its values that have places of their own.
    pub(crate) fn placed_bytes(&self) -> u64 {
        let stored = |i: usize| self.packed_at(i).or(self.bytes[i].as_ref()).map_or(0, |(bytes, _)| bytes.len() as u64);
        (0..self.tickets.len()).filter(|i| self.tickets[*i].is_some()).map(stored).sum()
    }

    /// Whether a record's condition holds, as the model knows.
    fn holds(&self, i: usize, address: &Address, model: &Model) -> bool {
        match self.conditions[i] {
            Condition::Always => true,
            Condition::IfAbsent => !model.is_present(address),
            Condition::IfPresent => model.is_present(address),
            Condition::UnchangedSince(_) => {
                let staged = model.unanswered.iter().filter(|(_, changes)| changes.contains_key(address)).count();
                model.pasts[&address.0].change_count(address.1) + staged == self.looked[address]
            }
        }
    }

    /// It was staged: all its conditions must hold.
    pub(crate) fn was_right(&self, model: &Model) -> Result<(), Violation> {
        let broken = self.changes.keys().enumerate().find(|(i, address)| !self.holds(*i, address, model));
        broken.map_or(Ok(()), |(i, address)| {
            let condition = self.conditions[i];
            Err(Violation::new(format!("a Put was taken although {condition:?} does not hold of {address:?}")))
        })
    }

    /// It was refused for a key: its condition must not hold. That of a version may do so nevertheless.
    pub(crate) fn was_wrong(
        &self,
        namespace: u32,
        key: &KeyBuf,
        present: bool,
        model: &Model,
    ) -> Result<(), Violation> {
        let is_it = |(i, address): &(usize, &Address)| address.0 == namespace && self.keys[*i] == *key;
        let right = self.changes.keys().enumerate().find(is_it).is_some_and(|(i, address)| {
            let is_version = matches!(self.conditions[i], Condition::UnchangedSince(_));
            is_version || !self.holds(i, address, model) && model.is_present(address) == present
        });
        let what =
            || format!("a Put was refused: key {key} of namespace {namespace} is reported as existing: {present}");
        if right { Ok(()) } else { Err(Violation::new(what())) }
    }

    /// The ticket of the large value that it consists of.
    pub(crate) fn lone_ticket(&self) -> Option<u64> {
        if self.tickets.len() == 1 { self.tickets[0] } else { None }
    }

    /// The tickets of large values that have a place.
    pub fn tickets(&self) -> impl Iterator<Item = u64> {
        self.tickets.iter().copied().flatten()
    }

    /// Gives large values their places; an error while some are not programmed.
    pub fn place(&mut self, core: &mut Core) -> Result<Option<u64>, StageError> {
        let mut all_placed = true;
        self.pack(&core.reader());
        for (i, ((space, _), key)) in self.changes.keys().zip(&self.keys).enumerate() {
            let reader = core.reader();
            let packed = self.packed.as_ref().and_then(|packed| packed[i].as_ref());
            let is_large = |(bytes, _): &&(Vec<u8>, u32)| reader.places_first(*space, bytes.len());
            let Some((bytes, crc32c)) = packed.or(self.bytes[i].as_ref()).filter(is_large) else { continue };
            let (value, crc32c) = (&bytes[..], *crc32c);
            let body = if packed.is_some() { Body::Packed { value, crc32c } } else { Body::Value { value, crc32c } };
            let ticket = match self.tickets[i] {
                Some(ticket) => ticket,
                None => {
                    let key = &core.reader().key(key.into()).expect("a key");
                    let expires = self.expires[i];
                    let (at, of) = core.place_of(*space, *key)?;
                    let buf = AlignedBuf::zeroed(expiring_image_bytes(core.geometry(), of, bytes.len(), expires));
                    let after = core.last_sequence();
                    let image = encode_expiring_image(core.geometry(), at, of, body, after, expires, buf);
                    *self.tickets[i].insert(core.place(*space, *key, image)?)
                }
            };
            all_placed &= core.is_placed(ticket);
        }
        if all_placed { Ok(None) } else { Err(StageError::Busy) }
    }

    fn packed_at(&self, i: usize) -> Option<&Stored> {
        self.packed.as_ref()?[i].as_ref()
    }

    /// Compresses its values, one time, as a driver does before it stages.
    fn pack(&mut self, reader: &Reader) {
        if self.packed.is_some() {
            return;
        }
        let pack = |op: Op<'_>| {
            let Body::Value { value, .. } = op.body else { return None };
            let mut packed = Vec::new();
            reader.pack(&op, value, &mut packed).then(|| {
                let crc32c = kaml_crc::crc32c(&packed);
                (packed, crc32c)
            })
        };
        self.packed = Some(self.ops(reader).into_iter().map(pack).collect());
    }

    /// As the firmware takes it.
    pub fn ops(&self, reader: &Reader) -> Vec<Op<'_>> {
        let body = |i: usize| match (self.tickets[i], self.packed_at(i), &self.bytes[i]) {
            (Some(ticket), ..) => Body::Placed { ticket },
            (None, Some((value, crc32c)), _) => Body::Packed { value, crc32c: *crc32c },
            (None, None, Some((value, crc32c))) => Body::Value { value, crc32c: *crc32c },
            (None, None, None) => Body::Delete,
        };
        let op = |(i, (namespace, _)): (usize, &Address)| Op {
            namespace: *namespace,
            key: reader.key((&self.keys[i]).into()).expect("a key"),
            body: body(i),
            condition: self.conditions[i],
            expires: if self.expires[i] == 0 { Expires::Never } else { Expires::At(self.expires[i]) },
        };
        self.changes.keys().enumerate().map(op).collect()
    }

    /// Gives it up.
    pub fn forget(self, core: &mut Core) {
        self.tickets.into_iter().flatten().for_each(|ticket| core.forget(ticket));
    }
}
