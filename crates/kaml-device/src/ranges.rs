//! Deletes of ranges of keys: one record of the ring and one change of the journal, however many keys there are.
//!
//! Lives here:       staging, commit and replay of a delete of a range.
//! Lives elsewhere:  Puts (`staging`, `core`), the bytes of a range (`format::range`), finding the keys (`kaml-ordered`).
//! Implements:       docs/ARCHITECTURE.md "Ordered namespaces".

use crate::command::StageError;
use crate::core::Core;
use crate::format::range::KeyRange;
use crate::format::record::{Form, RANGE_KEY, RING_ALIGN, Record, RecordHeader, RecordKind};
use crate::layout::Door;
use crate::ring::Staged;
use crate::space::Purpose;
use kaml_index::Key;
use std::collections::HashMap;

impl Core {
    /// Phase 1 of a delete of all keys of a range, in one atomic step. Returns the frame that carries it, as [`Core::stage`] does, and how
    /// many keys there are.
    ///
    /// # Errors
    /// [`crate::Error::NotOrdered`]; as [`Core::stage`] of a delete.
    pub fn stage_delete_range(&mut self, namespace: u32, range: &KeyRange) -> Result<(u64, u64), StageError> {
        self.writable()?;
        let space = self.known_space(namespace)?;
        space.layout.admit(namespace, Door::Ranges)?;
        space.shared.note_use();
        let Some(index) = &space.index else { return Err(StageError::NeedIndex(namespace)) };
        if space.shared.is_due(&self.clock) {
            return Err(StageError::NeedIndex(namespace)); // what has expired is not counted
        }
        let mut uncommitted: HashMap<Key, i64> = HashMap::new();
        for staged in self.log.ring.uncommitted().filter(|staged| staged.namespace == namespace) {
            if staged.range.is_some() {
                return Err(StageError::Busy); // what is left of the range then, nobody can count yet
            }
            let key = staged.key.full();
            if range.contains(key.as_bytes()) {
                uncommitted
                    .insert(*key.key(), i64::from(self.exists_after(staged)) - i64::from(index.get(&key).is_some()));
            }
        }
        let count = index.count(range).saturating_add_signed(uncommitted.values().sum());
        let body = range.encode();
        let ring_bytes = (Form::Long.header_bytes(&RANGE_KEY) + body.len()).next_multiple_of(RING_ALIGN);
        self.admit_data(Purpose::Delete, 0, false)?;
        self.admit_to_ring(ring_bytes, 1)?;
        self.log.sequence += 1;
        let record = Record {
            namespace,
            key: RANGE_KEY,
            kind: RecordKind::RangeTombstone,
            value_len: body.len() as u32,
            value_crc: 0,
            sequence: self.log.sequence,
            packed: false,
            form: Form::Long,
        };
        let header = RecordHeader::encode(&record);
        self.log.ring.stage(&header, [&body, &[], &[]], Staged::range(namespace, range.clone()));
        self.log.ring.end_put();
        self.log.counters.deletes += count;
        Ok((self.log.ring.staging_number(), count))
    }

    /// The commit point is passed, or was before a crash: the keys are gone.
    pub(crate) fn commit_range(&mut self, namespace: u32, range: &KeyRange) {
        let digester = self.key_digester();
        let Some(space) = self.spaces.get_mut(&namespace) else { return };
        let index = space.index.as_mut().expect("an index stays loaded while Puts of its namespace are staged");
        (self.log.table_is_exact, space.dirty) = (false, true);
        let (log, snapshots, shared) = (&mut self.log, &mut self.snapshots, &space.shared);
        let expiries = &mut space.expiries;
        let reclaimed = log.blocks.reclaimed_count();
        index.remove_range(range, |key, old| {
            expiries.forget(&digester, key);
            if snapshots.are_open() && snapshots.keep_removed(namespace, shared, key, old) {
                return;
            }
            let block = log.block_of(old.at);
            log.blocks.sub_valid(block, old.len.chunks_max());
        });
        // Blocks that are empty now may be all that was missing.
        self.space.pace.is_deadlocked &= log.blocks.reclaimed_count() == reclaimed;
        log.journal.append_range(namespace, range);
        self.bound_snapshots();
    }

    /// A journal entry says that the keys of a range are gone.
    pub(crate) fn replay_range(&mut self, entry: u64, namespace: u32, range: Option<KeyRange>) {
        let digester = self.key_digester();
        let Some(space) = self.spaces.get_mut(&namespace).filter(|s| entry >= s.snapshot_entry) else { return };
        let Some(index) = space.index.as_mut().filter(|index| index.is_ordered()) else { return };
        let Some(range) = range else {
            tracing::warn!(namespace, "a journal entry whose range of keys is missing is ignored");
            return;
        };
        space.dirty = true;
        let expiries = &mut space.expiries;
        index.remove_range(&range, |key, _| expiries.forget(&digester, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Body, Condition, Op};
    use crate::error::Error;
    use crate::namespace::NamespaceOptions;
    use kaml_flash::Completion;
    use kaml_index::KeyKind;

    fn persist(core: &mut Core, medium: &dyn kaml_flash::Medium) {
        let (id, mut io) = core.begin_persist().unwrap();
        let result = medium.execute(&mut io);
        core.complete(Completion { id, io, result });
    }

    /// Goal:   before it commits, a deleted range already decides conditions, and is counted with what is staged before it; ranges of one namespace take
    ///         turns; a crash leaves it or nothing of it.
    /// Method: puts and a range in one frame, conditions after them, few and many; the device opened again from what was durable.
    #[test]
    fn ranges_count_from_the_moment_they_are_staged() {
        let medium = crate::small::formatted();
        let (mut core, _) = Core::open(&medium).unwrap();
        let options = NamespaceOptions::records(KeyKind::Ordered);
        let namespace = core.create_namespace("n", &options).unwrap();
        let hashed = core.create_namespace("h", &NamespaceOptions::default()).unwrap();
        let durable = core.request_root(false);
        core.drive(&medium, |core| core.roots_done() >= durable).unwrap();
        let put = Body::Value { value: b"v", crc32c: kaml_crc::crc32c(b"v") };
        let op = |key: u64, condition| Op {
            namespace,
            key: Key::from(key).into(),
            body: put,
            condition,
            expires: Default::default(),
        };
        let all = |keys: std::ops::Range<u64>, condition| keys.map(|key| op(key, condition)).collect::<Vec<_>>();
        let range = |from: u64, to: u64| KeyRange::new(&from.to_be_bytes()[..]..&to.to_be_bytes()[..]);
        core.stage(&all(0..20, Condition::Always)).unwrap();
        persist(&mut core, &medium);
        core.stage(&all(18..24, Condition::Always)).unwrap();
        let (frame, count) = core.stage_delete_range(namespace, &range(5, 22)).unwrap();
        assert_eq!(count, 17, "5 to 19, and 20 and 21, which are staged");
        assert_eq!(core.stage_delete_range(namespace, &range(0, 5)), Err(StageError::Busy));
        assert!(
            matches!(core.stage(&[op(7, Condition::IfPresent)]), Err(StageError::RefusedAfter(at, _)) if at == frame)
        );
        let many = core.stage(&all(12..22, Condition::IfPresent));
        assert!(matches!(many, Err(StageError::RefusedAfter(at, _)) if at == frame), "{many:?}");
        core.stage(&all(8..18, Condition::IfAbsent)).unwrap();
        core.stage(&[op(22, Condition::IfPresent)]).unwrap();
        let refused = core.stage_delete_range(hashed, &range(0, 5));
        assert_eq!(refused, Err(Error::NotOrdered(hashed).into()));
        persist(&mut core, &medium);
        let mut after = Core::open(&medium).unwrap().0;
        let index = |core: &Core| core.spaces[&namespace].index.as_ref().unwrap().len();
        assert_eq!((index(&core), index(&after)), (5 + 10 + 2, 5 + 10 + 2));
        assert_eq!(after.stage_delete_range(namespace, &range(0, 100)).unwrap().1, 17);
    }
}
