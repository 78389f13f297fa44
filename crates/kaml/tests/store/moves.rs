//! What one thread of a history does: random transactions, plain reads, blind puts and deletes.
//!
//! Lives here:       drawing and making them; what they found and did.
//! Lives elsewhere:  threads (`history`, `power`, `crash`, `lab`), whether all of it has a serial order (`serial`).

use crate::serial::{Access, Did, Saw};
use kaml::NamespaceId;
use kaml::store::{Store, StoreError, Transaction, Value};

/// A small seeded generator (xorshift64*).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// What a value says of who wrote it.
pub(crate) fn saw(value: &Option<Value>) -> Saw {
    value.as_ref().map_or(Saw::Absent, |value| Saw::Version(u64::from_le_bytes(value[..8].try_into().unwrap())))
}

/// A value that says who wrote it, of some length.
pub(crate) fn value_of(id: u64, rng: &mut Rng) -> Vec<u8> {
    let mut value = vec![id as u8; 8 + rng.below(6000) as usize];
    value[..8].copy_from_slice(&id.to_le_bytes());
    value
}

/// A random transaction: up to four keys, each read, or read and replaced in one of two ways, or, if it `may_delete`,
/// deleted now and then.
pub(crate) fn transact(
    txn: &mut Transaction,
    ns: NamespaceId,
    id: u64,
    rng: &mut Rng,
    keys: u64,
    may_delete: bool,
) -> Result<Vec<Access>, StoreError> {
    let read_only = rng.below(4) == 0;
    let mut found: Vec<Access> = Vec::new();
    for _ in 0..1 + rng.below(4) {
        let key = rng.below(keys) * rng.below(keys) / keys; // some are hotter
        if found.iter().any(|other| other.key == key) {
            continue;
        }
        let wrote = !read_only && rng.below(3) > 0;
        let now = if wrote && rng.below(2) == 0 { txn.read_for_update(ns, key)? } else { txn.read(ns, key)? };
        let did = match (wrote, &now) {
            (false, _) => Did::Read,
            (true, Some(_)) if may_delete && rng.below(4) == 0 => Did::Delete,
            (true, _) => Did::Write,
        };
        match (did, &now) {
            (Did::Read, _) => {}
            (Did::Delete, _) => txn.delete(ns, key)?,
            (Did::Write, Some(_)) => txn.update(ns, key, &value_of(id, rng))?,
            (Did::Write, None) => txn.insert(ns, key, &value_of(id, rng))?,
        }
        found.push(Access { key, saw: saw(&now), did });
    }
    Ok(found)
}

/// A plain call: reads a record, puts one, or deletes one, without looking.
pub(crate) fn plainly(
    store: &Store,
    ns: NamespaceId,
    id: u64,
    rng: &mut Rng,
    keys: u64,
) -> Result<Vec<Access>, StoreError> {
    let key = rng.below(keys);
    let (saw, did) = match rng.below(8) {
        0 => {
            store.delete(ns, key)?;
            (Saw::Unknown, Did::Delete)
        }
        1 | 2 => {
            store.put(ns, key, &value_of(id, rng))?;
            (Saw::Unknown, Did::Write)
        }
        _ => (saw(&store.get(ns, key)?), Did::Read),
    };
    Ok(vec![Access { key, saw, did }])
}
