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
use kaml_device::BlockOptions;
use std::collections::{BTreeMap, VecDeque};

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

/// What a device must hold.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Namespaces by id.
    pub spaces: BTreeMap<u32, (String, Phase)>,
    /// Those that hold blocks. A block is an address like a key; one that holds zeroes is absent.
    pub disks: BTreeMap<u32, BlockOptions>,
    /// Those that keep versions.
    pub pasts: BTreeMap<u32, Past>,
    /// Answered records, of a versioned namespace the newest.
    pub records: BTreeMap<Address, Value>,
    /// Staged and not answered, in that order, with the frames that carry them.
    pub unanswered: VecDeque<(u64, Changes)>,
}

impl Model {
    /// All Puts of frames before `committed` were answered.
    pub fn answer(&mut self, committed: u64) -> u64 {
        let mut answered = 0;
        while let Some((_, changes)) = self.unanswered.pop_front_if(|(frame, _)| *frame < committed) {
            self.apply(&changes);
            answered += changes.len() as u64;
        }
        answered
    }

    fn apply(&mut self, changes: &Changes) {
        self.pasts.iter_mut().for_each(|(space, past)| past.apply(*space, changes));
        for (address, value) in changes {
            match value {
                Some(value) => drop(self.records.insert(*address, *value)),
                None => drop(self.records.remove(address)),
            }
        }
    }

    /// The first `n` Puts under way came through, the others did not.
    pub fn adopt(&mut self, n: usize) {
        let unanswered = std::mem::take(&mut self.unanswered);
        unanswered.iter().take(n).for_each(|(_, changes)| self.apply(changes));
    }

    /// A namespace is gone.
    pub fn remove_space(&mut self, space: u32) {
        self.spaces.remove(&space);
        self.disks.remove(&space);
        self.pasts.remove(&space);
        self.records.retain(|(id, _), _| *id != space);
    }

    /// Whether a Put under way touches a namespace.
    pub fn is_busy(&self, space: u32) -> bool {
        self.unanswered.iter().any(|(_, changes)| changes.keys().any(|(id, _)| *id == space))
    }
}

/// Narrows down how many of the Puts under way came through, key by key.
pub struct Comparison<'a> {
    model: &'a Model,
    /// Values of keys that Puts under way touch, with the position of each Put.
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
                touched.entry(*address).or_default().push((position, *value));
            }
        }
        Comparison { model, touched, possible: vec![true; model.unanswered.len() + 1] }
    }

    /// The device holds `found` for a key; says what is wrong if that cannot be.
    pub fn compare(&mut self, address: Address, found: Option<&[u8]>) -> Result<(), String> {
        let old = self.model.records.get(&address).copied();
        let Some(writers) = self.touched.get(&address) else {
            return if is(found, old) { Ok(()) } else { Err(differs(address, found, &[old])) };
        };
        // Runs of `n` between two writers expect the same value: compare once each.
        let mut expected = (0, old);
        let mut allowed = vec![old];
        for (position, value) in writers.iter().copied().chain([(self.model.unanswered.len(), None)]) {
            if !is(found, expected.1) {
                self.possible[expected.0..=position].fill(false);
            }
            expected = (position + 1, value);
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

    /// How many of the Puts under way came through: the most that agree with everything compared.
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
                    assert_eq!(comparison.came_through(), i);
                }
            }
        }
        let mut comparison = Comparison::new(&model);
        assert!(comparison.compare((1, 0), None).is_err() && comparison.compare((1, 7), Some(b"x")).is_err());
    }
}
