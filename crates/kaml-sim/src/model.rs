//! What a device must hold: what completed, and what may or may not have come through.
//!
//! Lives here:       namespaces and records as a `BTreeMap`, Puts in progress, comparing with a device.
//! Lives elsewhere:  reading a device (`check`), deciding what is put (`host`).
//!
//! Puts that were not completed come through as a prefix of the order they were staged in: frames of the commit ring
//! commit in their order. So a device that was cut off must hold the acknowledged records and the first `n` of the others,
//! each whole, for one `n`.

use crate::value::Value;
use crate::versions::Past;
use kaml_device::{BlockOptions, KEY_BYTES_MAX, Key, KeyBuf, KeyKind, KeyRange, NamespaceKind, NamespaceOptions};
use std::collections::{BTreeMap, VecDeque};

/// A namespace and a key.
pub type Address = (u32, u64);

/// What one atomic Put does: the value of each key, or nothing where it is deleted.
pub type Changes = BTreeMap<Address, Option<Value>>;

/// Where creating or deleting a namespace is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Requested, not completed: there or not.
    Creating,
    /// There.
    There,
    /// Asked to go, not completed: there with all its records or not.
    Deleting,
}

/// The logs that a namespace was asked to append to.
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

    /// It was moved to others; a root was requested.
    pub fn move_to(&mut self, logs: Vec<u32>, root: u64) {
        self.since.push((root, logs));
    }

    /// This many roots are durable.
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

    /// Whether a device may report these: what is durable, or was requested since and may be durable by now.
    pub(crate) fn may_be_reported(&self, found: &[u32]) -> bool {
        self.durable == found || self.since.iter().any(|(_, logs)| logs == found)
    }

    /// A device that was cut off has these; false if it cannot.
    pub(crate) fn adopt(&mut self, found: &[u32]) -> bool {
        let may_be = self.may_be_reported(found);
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
    /// Which keys the others take, but for numbers.
    pub strings: BTreeMap<u32, KeyKind>,
    /// The logs of each, where they are watched.
    pub logs: BTreeMap<u32, Logs>,
    /// Answered records, of a versioned namespace the newest.
    pub records: BTreeMap<Address, Value>,
    /// The clock of the device, in milliseconds. Records have left `records` at their times.
    pub now: u64,
    /// Staged and not completed, in that order, with the frames that carry them.
    pub unanswered: VecDeque<(u64, Changes)>,
}

impl Model {
    /// The key of a number.
    pub fn key(&self, (space, number): Address) -> KeyBuf {
        match self.strings.get(&space) {
            None | Some(KeyKind::U64) => Key::from(number).into(),
            Some(KeyKind::Bytes) => string(number).into(),
            Some(KeyKind::Any | KeyKind::Ordered) => long_string(number),
        }
    }

    /// Whether a key exists after all that is in progress is committed.
    pub fn is_present(&self, address: &Address) -> bool {
        let staged = self.unanswered.iter().rev().find_map(|(_, changes)| changes.get(address));
        let is_seen = |value: &Option<Value>| value.is_some_and(|value| value.is_live(self.now));
        staged.map_or_else(|| self.records.contains_key(address), is_seen)
    }

    /// What a delete of a range does: each key of it that exists, or may after what is in progress, is gone.
    pub fn changes_of_range(&self, space: u32, range: &KeyRange) -> Changes {
        let staged = self.unanswered.iter().flat_map(|(_, changes)| changes.keys());
        let known = self.records.keys().chain(staged).filter(|address| address.0 == space);
        let within = known.filter(|address| range.contains(self.key(**address).as_bytes()));
        within.map(|address| (*address, None)).collect()
    }

    /// The clock of the device shows this time; returns how many records have expired.
    pub fn advance_to(&mut self, now: u64) -> u64 {
        let count = self.records.len();
        self.now = now;
        self.records.retain(|_, value| value.is_live(now));
        (count - self.records.len()) as u64
    }

    /// Whether a namespace is known that was not asked to go.
    pub fn has_space(&self, space: u32) -> bool {
        self.spaces.get(&space).is_some_and(|(_, phase)| *phase != Phase::Deleting)
    }

    /// All Puts of frames before `committed` completed.
    pub fn answer(&mut self, committed: u64) -> u64 {
        let mut answered = 0;
        while self.unanswered.front().is_some_and(|(frame, _)| *frame < committed)
            && let Some((_, changes)) = self.unanswered.pop_front()
        {
            self.apply(&changes);
            answered += changes.len() as u64;
        }
        answered
    }

    fn apply(&mut self, changes: &Changes) {
        self.pasts.iter_mut().for_each(|(space, past)| past.apply(*space, changes));
        for (address, value) in changes.iter().filter(|((space, _), _)| self.spaces.contains_key(space)) {
            match value.filter(|value| value.is_live(self.now)) {
                Some(value) => drop(self.records.insert(*address, value)),
                None => drop(self.records.remove(address)),
            }
        }
    }

    /// It is known that so many of the Puts in progress came through, from the first on; the others did not.
    pub fn adopt(&mut self, came_through: usize) {
        let unanswered = std::mem::take(&mut self.unanswered);
        unanswered.iter().take(came_through).for_each(|(_, changes)| self.apply(changes));
        self.pasts.values_mut().for_each(Past::forget_commands);
    }

    /// A namespace was requested.
    pub fn add_space(&mut self, id: u32, name: String, options: &NamespaceOptions) {
        self.spaces.insert(id, (name, Phase::Creating));
        match options.kind {
            NamespaceKind::Records(_) => {}
            NamespaceKind::Blocks(blocks) => _ = self.disks.insert(id, blocks),
            NamespaceKind::Versions(..) => _ = self.pasts.insert(id, Past::default()),
        }
        self.strings.extend(Some((id, options.kind.keys())).filter(|(_, keys)| *keys != KeyKind::U64));
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

    /// Whether a Put in progress touches a namespace.
    pub fn is_busy(&self, space: u32) -> bool {
        self.unanswered.iter().any(|(_, changes)| changes.keys().any(|(id, _)| *id == space))
    }
}

/// Byte strings that look alike: a few short ones each of which continues as the next with a zero after it, and long ones of one
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

/// Byte strings of which some have more than 16 bytes: shorter ones, some that part from each other after 16 bytes, paths, and some as long as can
/// be that differ in the middle.
fn long_string(number: u64) -> KeyBuf {
    let stem = number / 4;
    let text = match number % 4 {
        0 => return string(stem).into(),
        1 => format!("the same sixteen{stem}"),
        2 => format!("articles/{}/{stem:020}/{}", stem % 3, "page".repeat(1 + stem as usize % 8)),
        _ => format!("{stem:0>500}{}", "z".repeat(KEY_BYTES_MAX - 500)),
    };
    KeyBuf::new(text.as_bytes()).expect("1 to 1024 bytes")
}

/// Narrows down how many of the Puts in progress came through, key by key.
pub struct Comparison<'a> {
    model: &'a Model,
    /// Values of keys that Puts in progress touch, with the position of each Put.
    touched: BTreeMap<Address, Vec<(usize, Option<Value>)>>,
    /// Whether the first `n` may be all that came through.
    possible: Vec<bool>,
}

impl<'a> Comparison<'a> {
    /// Before anything was compared.
    pub fn new(model: &'a Model) -> Comparison<'a> {
        let mut touched: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (position, (_, changes)) in model.unanswered.iter().enumerate() {
            for (address, value) in changes {
                let value = value.filter(|value| value.is_live(model.now));
                touched.entry(*address).or_default().push((position, value));
            }
        }
        let possible = vec![true; model.unanswered.len() + 1];
        Comparison { model, touched, possible }
    }

    /// The device holds `found` for a key; states what is wrong if that cannot be.
    pub fn compare(&mut self, address: Address, found: Option<&[u8]>) -> Result<(), String> {
        let old = self.model.records.get(&address).copied();
        let Some(writers) = self.touched.get(&address) else {
            return if is(found, old) { Ok(()) } else { Err(differs(address, found, &[old])) };
        };
        // Runs of `n` between two writers expect the same value: compare once each.
        let (mut from, mut expected) = (0, old);
        let mut allowed = vec![old];
        for (position, value) in writers.iter().copied().chain([(self.model.unanswered.len(), None)]) {
            if !is(found, expected) {
                self.possible[from..=position].fill(false);
            }
            expected = value;
            from = position + 1;
            allowed.push(value);
        }
        allowed.pop();
        if self.possible.contains(&true) { Ok(()) } else { Err(differs(address, found, &allowed)) }
    }

    /// Only those of the first `n` for which `fits` holds can be what came through; returns whether any can.
    pub(crate) fn narrow(&mut self, fits: impl Fn(usize) -> bool) -> bool {
        self.possible.iter_mut().enumerate().for_each(|(n, possible)| *possible &= fits(n));
        self.possible.contains(&true)
    }

    /// How many of the Puts in progress came through: the most that agrees with everything compared.
    pub fn came_through(&self) -> usize {
        self.possible.iter().rposition(|possible| *possible).expect("`compare` fails when none is left")
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
    use std::collections::BTreeSet;

    /// Goal:   whole prefixes of the Puts in progress pass, anything else does not.
    /// Method: two Puts over two keys; all combinations of old and new.
    #[test]
    fn prefixes_pass() {
        let value = |seed| Value { seed, len: 9, expires: 0 };
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
                    assert_eq!(comparison.came_through(), i);
                }
            }
        }
        let mut comparison = Comparison::new(&model);
        assert!(comparison.compare((1, 0), None).is_err() && comparison.compare((1, 7), Some(b"x")).is_err());
    }

    /// Goal:   numbers that differ have keys that differ.
    /// Method: a few thousand of them.
    #[test]
    fn strings_are_told_apart() {
        let keys: BTreeSet<Vec<u8>> = (0..5_000).map(|number| string(number).as_bytes().to_vec()).collect();
        assert_eq!(keys.len(), 5_000);
        let keys: BTreeSet<KeyBuf> = (0..5_000).map(long_string).collect();
        assert_eq!(keys.len(), 5_000);
    }
}
