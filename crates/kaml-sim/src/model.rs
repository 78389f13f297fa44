//! What a device must hold: what was answered, and what may or may not have come through.
//!
//! Lives here:       namespaces and records as a `BTreeMap`, Puts under way, comparing with a device.
//! Lives elsewhere:  reading a device (`check`), deciding what is put (`host`).
//!
//! Puts that were not answered come through as a prefix of the order they were staged in: frames of the commit ring
//! commit in their order. So a device that was cut off must hold the answered records and the first `n` of the others,
//! each whole, for one `n`.

use crate::value::Value;
use crate::versions::Past;
use kaml_device::{BlockOptions, Key, KeyKind, NamespaceOptions};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A namespace and a key.
pub type Address = (u32, u64);

/// What one atomic Put does: the value of each key, or nothing where it is deleted.
pub type Changes = BTreeMap<Address, Option<Value>>;

/// Where creating or deleting a namespace stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Asked for, not answered: there or not.
    Creating,
    /// There.
    There,
    /// Asked to go, not answered: there with all its records or not.
    Deleting,
}

/// The logs that a namespace was told to append to.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    /// As of a root that is durable.
    durable: Vec<u32>,
    /// Since then, in that order, with the roots that make them durable.
    since: Vec<(u64, Vec<u32>)>,
}

impl Logs {
    /// Of a namespace that was created with them.
    pub fn new(logs: Vec<u32>) -> Logs {
        Logs { durable: logs, since: Vec::new() }
    }

    /// It was moved to others; a root was asked for.
    pub fn move_to(&mut self, logs: Vec<u32>, root: u64) {
        self.since.push((root, logs));
    }

    /// So many roots are durable.
    pub fn settle(&mut self, roots: u64) {
        let settled = self.since.partition_point(|(root, _)| *root <= roots);
        if let Some((_, logs)) = self.since.drain(..settled).next_back() {
            self.durable = logs;
        }
    }

    /// Those that it appends to now.
    pub fn newest(&self) -> &[u32] {
        self.since.last().map_or(&self.durable, |(_, logs)| logs)
    }

    /// A device that was cut off has these; false if it cannot.
    pub(crate) fn adopt(&mut self, found: &[u32]) -> bool {
        let may_be = self.durable == found || self.since.iter().any(|(_, logs)| logs == found);
        *self = Logs::new(found.to_vec());
        may_be
    }
}

/// What a device must hold.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Namespaces by id.
    pub spaces: BTreeMap<u32, (String, Phase)>,
    /// Those that hold blocks. A block is an address like a key; one that holds zeroes is absent.
    pub disks: BTreeMap<u32, BlockOptions>,
    /// Those that keep versions.
    pub pasts: BTreeMap<u32, Past>,
    /// Those whose keys are byte strings.
    pub strings: BTreeSet<u32>,
    /// The logs of each, where they are watched.
    pub logs: BTreeMap<u32, Logs>,
    /// Answered records, of a versioned namespace the newest.
    pub records: BTreeMap<Address, Value>,
    /// Staged and not answered, in that order, with the frames that carry them.
    pub unanswered: VecDeque<(u64, Changes)>,
    /// The frame of them whose large value could not be programmed beside it. It is being written again without its Put, which is
    /// made again later; until then it may or may not be there, whatever comes behind it.
    pub withdrawn: Option<u64>,
}

/// What came through of the Puts under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CameThrough {
    /// So many, from the first on,
    pub count: usize,
    /// but the withdrawn one, if there is one, only if this is set.
    pub withdrawn: bool,
}

impl Model {
    /// The key of a number.
    pub fn key(&self, (space, number): Address) -> Key {
        if self.strings.contains(&space) { string(number) } else { Key::from(number) }
    }

    /// Whether a key is there once all that is under way is committed.
    pub fn is_present(&self, address: &Address) -> bool {
        let counts = |(frame, _): &&(u64, Changes)| self.withdrawn != Some(*frame);
        let staged = self.unanswered.iter().rev().filter(counts).find_map(|(_, changes)| changes.get(address));
        staged.map_or_else(|| self.records.contains_key(address), Option::is_some)
    }

    /// Whether a namespace is known that was not asked to go.
    pub fn has_space(&self, space: u32) -> bool {
        self.spaces.get(&space).is_some_and(|(_, phase)| *phase != Phase::Deleting)
    }

    /// All Puts of frames before `committed` were answered.
    pub fn answer(&mut self, committed: u64) -> u64 {
        let mut answered = 0;
        while let Some((frame, changes)) = self.unanswered.pop_front_if(|(frame, _)| *frame < committed) {
            if self.withdrawn.take_if(|withdrawn| *withdrawn == frame).is_some() {
                continue;
            }
            self.apply(&changes);
            answered += changes.len() as u64;
        }
        answered
    }

    fn apply(&mut self, changes: &Changes) {
        self.pasts.iter_mut().for_each(|(space, past)| past.apply(*space, changes));
        for (address, value) in changes.iter().filter(|((space, _), _)| self.spaces.contains_key(space)) {
            match value {
                Some(value) => drop(self.records.insert(*address, *value)),
                None => drop(self.records.remove(address)),
            }
        }
    }

    /// It is known what of the Puts under way came through; the others did not.
    pub fn adopt(&mut self, came_through: CameThrough) {
        let unanswered = std::mem::take(&mut self.unanswered);
        let withdrawn = self.withdrawn.take().filter(|_| !came_through.withdrawn);
        let through = unanswered.iter().take(came_through.count).filter(|(frame, _)| withdrawn != Some(*frame));
        through.for_each(|(_, changes)| self.apply(changes));
        self.pasts.values_mut().for_each(Past::forget_commands);
    }

    /// A namespace was asked for.
    pub fn add_space(&mut self, id: u32, name: String, options: &NamespaceOptions) {
        self.spaces.insert(id, (name, Phase::Creating));
        self.disks.extend(options.blocks.map(|blocks| (id, blocks)));
        self.pasts.extend(options.versions.map(|_| (id, Past::default())));
        self.strings.extend((options.blocks.is_none() && options.keys == KeyKind::Bytes).then_some(id));
        self.logs.insert(id, Logs::new(options.logs.clone()));
    }

    /// A namespace is gone.
    pub fn remove_space(&mut self, space: u32) {
        self.spaces.remove(&space);
        self.disks.remove(&space);
        self.pasts.remove(&space);
        self.strings.remove(&space);
        self.logs.remove(&space);
        self.records.retain(|(id, _), _| *id != space);
    }

    /// Whether a Put under way touches a namespace.
    pub fn is_busy(&self, space: u32) -> bool {
        self.unanswered.iter().any(|(_, changes)| changes.keys().any(|(id, _)| *id == space))
    }
}

/// Byte strings that look alike: a few short ones each of which goes on as the next with a zero behind it, and long ones of one
/// beginning.
fn string(number: u64) -> Key {
    let (stem, kind) = (number / 5, number as usize % 5);
    let mut bytes = b"the same ".to_vec();
    if kind == 4 {
        bytes.extend_from_slice(&stem.to_be_bytes()[1..]);
    } else {
        let used = (8 - stem.leading_zeros() as usize / 8).max(1);
        bytes = stem.to_le_bytes()[..used].to_vec();
        bytes.resize(used + kind, 0);
    }
    Key::new(&bytes).expect("1 to 16 bytes")
}

/// Narrows down how many of the Puts under way came through, key by key.
pub struct Comparison<'a> {
    model: &'a Model,
    /// Values of keys that Puts under way touch, with the position of each Put.
    touched: BTreeMap<Address, Vec<(usize, Option<Value>)>>,
    /// Whether the first `n` may be all that came through.
    possible: Vec<bool>,
    /// The position of the one that was withdrawn, and whether it is there.
    withdrawn: Option<usize>,
    has_withdrawn: bool,
}

impl<'a> Comparison<'a> {
    /// Before anything was compared.
    pub fn new(model: &'a Model) -> Comparison<'a> {
        let mut touched: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (position, (_, changes)) in model.unanswered.iter().enumerate() {
            for (address, value) in changes {
                touched.entry(*address).or_default().push((position, *value));
            }
        }
        let withdrawn = model.unanswered.iter().position(|(frame, _)| model.withdrawn == Some(*frame));
        let possible = vec![true; model.unanswered.len() + 1];
        Comparison { model, touched, possible, withdrawn, has_withdrawn: false }
    }

    /// The device holds `found` for a key; says what is wrong if that cannot be.
    pub fn compare(&mut self, address: Address, found: Option<&[u8]>) -> Result<(), String> {
        let old = self.model.records.get(&address).copied();
        let Some(writers) = self.touched.get(&address) else {
            return if is(found, old) { Ok(()) } else { Err(differs(address, found, &[old])) };
        };
        // Runs of `n` between two writers expect the same value, or one of two behind what was withdrawn: compare once each.
        let (mut from, mut expected) = (0, vec![old]);
        let mut allowed = vec![old];
        for (position, value) in writers.iter().copied().chain([(self.model.unanswered.len(), None)]) {
            if !expected.iter().any(|value| is(found, *value)) {
                self.possible[from..=position].fill(false);
            }
            match self.withdrawn == Some(position) {
                true => self.has_withdrawn |= is(found, value),
                false => expected.clear(),
            }
            expected.push(value);
            from = position + 1;
            allowed.push(value);
        }
        allowed.pop();
        if self.possible.contains(&true) { Ok(()) } else { Err(differs(address, found, &allowed)) }
    }

    /// Only those of the first `n` for which `fits` holds can be what came through; answers whether any can.
    pub(crate) fn narrow(&mut self, fits: impl Fn(usize) -> bool) -> bool {
        self.possible.iter_mut().enumerate().for_each(|(n, possible)| *possible &= fits(n));
        self.possible.contains(&true)
    }

    /// What of the Puts under way came through: the most that agrees with everything compared.
    pub fn came_through(&self) -> CameThrough {
        let count = self.possible.iter().rposition(|possible| *possible).expect("`compare` fails when none is left");
        CameThrough { count, withdrawn: self.has_withdrawn }
    }
}

fn is(found: Option<&[u8]>, expected: Option<Value>) -> bool {
    match (found, expected) {
        (None, None) => true,
        (Some(found), Some(value)) => found.len() == value.len as usize && found == value.noise(),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

fn differs((space, key): Address, found: Option<&[u8]>, allowed: &[Option<Value>]) -> String {
    let show =
        |value: &Option<Value>| value.map_or("absent".to_owned(), |v| format!("{} bytes of {:x}", v.len, v.seed));
    let allowed: Vec<String> = allowed.iter().map(show).collect();
    let found = found.map_or("absent".to_owned(), |bytes| {
        format!("{} bytes beginning {:02x?}", bytes.len(), &bytes[..bytes.len().min(8)])
    });
    format!(
        "namespace {space} key {key}: found {found}; may be {}, if the others are as they are",
        allowed.join(" or ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   whole prefixes of the Puts under way pass, anything else does not.
    /// Method: two Puts over two keys; all combinations of old and new.
    #[test]
    fn prefixes_pass() {
        let value = |seed| Value { seed, len: 9 };
        let put = |a: u64, b: u64| Changes::from([((1, 0), Some(value(a))), ((1, 1), Some(value(b)))]);
        let model = Model {
            records: BTreeMap::from([((1, 0), value(1)), ((1, 1), value(2))]),
            unanswered: VecDeque::from([(1, put(3, 4)), (1, put(5, 6))]),
            ..Model::default()
        };
        for (i, a) in [1, 3, 5].into_iter().enumerate() {
            for (j, b) in [2, 4, 6].into_iter().enumerate() {
                let mut comparison = Comparison::new(&model);
                let first = comparison.compare((1, 0), Some(&value(a).noise()));
                let second = comparison.compare((1, 1), Some(&value(b).noise()));
                assert!(first.is_ok());
                assert_eq!(second.is_ok(), i == j, "{second:?}");
                if i == j {
                    assert_eq!(comparison.came_through().count, i);
                }
            }
        }
        let mut comparison = Comparison::new(&model);
        assert!(comparison.compare((1, 0), None).is_err() && comparison.compare((1, 7), Some(b"x")).is_err());
    }

    /// Goal:   a Put that was withdrawn may be there or not, whatever came through behind it; others may not.
    /// Method: one of two Puts withdrawn, or none; the first missing beside the second, or there; what the model makes of it.
    #[test]
    fn withdrawn_puts_may_be_missing() {
        let value = |seed| Value { seed, len: 9 };
        let put = |key, seed| Changes::from([((1, key), Some(value(seed)))]);
        for withdrawn in [None, Some(1)] {
            let model = Model {
                spaces: BTreeMap::from([(1, (String::new(), Phase::There))]),
                unanswered: VecDeque::from([(1, put(0, 3)), (2, put(1, 4))]),
                withdrawn,
                ..Model::default()
            };
            for first in [None, Some(value(3))] {
                let mut comparison = Comparison::new(&model);
                let compared = comparison.compare((1, 1), Some(&value(4).noise()));
                let both = compared.and_then(|()| comparison.compare((1, 0), first.map(Value::noise).as_deref()));
                assert_eq!(both.is_ok(), withdrawn.is_some() || first.is_some());
                if both.is_ok() {
                    let mut model = model.clone();
                    model.adopt(comparison.came_through());
                    assert_eq!(model.records.get(&(1, 0)).copied(), first);
                    assert!(model.records.contains_key(&(1, 1)) && model.withdrawn.is_none());
                }
            }
        }
    }

    /// Goal:   numbers that differ have keys that differ.
    /// Method: a few thousand of them.
    #[test]
    fn strings_are_told_apart() {
        let keys: BTreeSet<Vec<u8>> = (0..5_000).map(|number| string(number).as_bytes().to_vec()).collect();
        assert_eq!(keys.len(), 5_000);
    }
}
