//! What one thread of a history does: random transactions, plain reads, blind puts and deletes.
//!
//! Lives here:       drawing and making them; what they found and did.
//! Lives elsewhere:  threads (`history`, `power`, `crash`, `lab`), whether all of it has a serial order (`serial`).

use crate::serial::{Access, Did, Saw};
use kaml::store::{Store, Transaction, Value};
use kaml::{Key, KeyBuf, NamespaceId};
pub(crate) use kaml_testkit::Rng;

/// A namespace, and what its keys are called.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub(crate) ns: NamespaceId,
    pub(crate) name: fn(u64) -> KeyBuf,
}

impl From<NamespaceId> for Table {
    /// Its keys are integers.
    fn from(ns: NamespaceId) -> Table {
        Table { ns, name: |number| Key::from(number).into() }
    }
}

/// What a value contains about its writer.
pub(crate) fn saw(value: &Option<Value>) -> Saw {
    value.as_ref().map_or(Saw::Absent, |value| Saw::Version(u64::from_le_bytes(value[..8].try_into().unwrap())))
}

/// A value that names its writer, of some length.
pub(crate) fn value_of(id: u64, rng: &mut Rng) -> Vec<u8> {
    let mut value = vec![id as u8; 8 + rng.below(6000) as usize];
    value[..8].copy_from_slice(&id.to_le_bytes());
    value
}

/// A random transaction: up to four keys, each read, or read and replaced in one of two ways, or, if it `may_delete`,
/// deleted occasionally.
pub(crate) fn transact(
    txn: &mut Transaction,
    table: impl Into<Table>,
    id: u64,
    rng: &mut Rng,
    keys: u64,
    may_delete: bool,
) -> Result<Vec<Access>, kaml::Error> {
    let Table { ns, name } = table.into();
    let read_only = rng.below(4) == 0;
    let mut found: Vec<Access> = Vec::new();
    for _ in 0..1 + rng.below(4) {
        let key = rng.below(keys) * rng.below(keys) / keys; // some are hotter
        if found.iter().any(|other| other.key == key) {
            continue;
        }
        let called = &name(key);
        let wrote = !read_only && rng.below(3) > 0;
        let now = if wrote && rng.below(2) == 0 { txn.read_for_update(ns, called)? } else { txn.read(ns, called)? };
        let did = match (wrote, &now) {
            (false, _) => Did::Read,
            (true, Some(_)) if may_delete && rng.below(4) == 0 => Did::Delete,
            (true, _) => Did::Write,
        };
        match (did, &now) {
            (Did::Read, _) => {}
            (Did::Delete, _) => txn.delete(ns, called)?,
            (Did::Write, Some(_)) => txn.update(ns, called, &value_of(id, rng))?,
            (Did::Write, None) => txn.insert(ns, called, &value_of(id, rng))?,
        }
        found.push(Access { key, saw: saw(&now), did });
    }
    Ok(found)
}

/// A plain call: reads a record, puts one, or deletes one, without looking.
pub(crate) fn plainly(
    store: &Store,
    table: impl Into<Table>,
    id: u64,
    rng: &mut Rng,
    keys: u64,
) -> Result<Vec<Access>, kaml::Error> {
    let Table { ns, name } = table.into();
    let key = rng.below(keys);
    let called = &name(key);
    let (saw, did) = match rng.below(8) {
        0 => {
            store.delete(ns, called)?;
            (Saw::Unknown, Did::Delete)
        }
        1 | 2 => {
            store.put(ns, called, &value_of(id, rng))?;
            (Saw::Unknown, Did::Write)
        }
        _ => (saw(&store.get(ns, called)?), Did::Read),
    };
    Ok(vec![Access { key, saw, did }])
}
