//! Records that keep their versions, as they must be.
//!
//! Lives here:       every version of one thread's keys, which of them must still exist, and what snapshots show.
//! Lives elsewhere:  the commands (`owner`).

use super::{Content, is_forgotten};
use kaml::{At, Device, Error, Key, NamespaceId, VersionKind};
use std::collections::HashMap;

/// This many versions of each key survive every merge.
pub(crate) const KEEP_LAST: u32 = 4;
/// Snapshots that are remembered, besides the one that may be rolled back to.
const SNAPSHOTS_MAX: usize = 4;

/// A version of a key.
#[derive(Clone, Copy, Debug)]
struct Past {
    /// A value, or a delete.
    content: Option<Content>,
    /// No rollback hides it.
    is_seen: bool,
    /// As long as it is among the last that are seen, it exists.
    is_kept: bool,
}

/// What was seen of each key's versions at some time.
struct Snapshot {
    number: u32,
    seen: HashMap<Key, Vec<bool>>,
    /// Nothing was in progress: it may be rolled back to.
    is_of_all: bool,
}

/// All versions of some keys, oldest first.
pub(crate) struct Pasts {
    space: NamespaceId,
    pasts: HashMap<Key, Vec<Past>>,
    snapshots: Vec<Snapshot>,
}

impl Pasts {
    pub(crate) fn new(space: NamespaceId) -> Pasts {
        Pasts { space, pasts: HashMap::new(), snapshots: Vec::new() }
    }

    pub(crate) fn changed(&mut self, key: Key, content: Option<Content>) {
        self.pasts.entry(key).or_default().push(Past { content, is_seen: true, is_kept: true });
    }

    fn seen(&self, key: &Key) -> impl Iterator<Item = &Past> {
        self.pasts.get(key).into_iter().flatten().rev().filter(|past| past.is_seen)
    }

    /// What undoing so many changes makes of a key, if it certainly can be done and does make a difference.
    pub(crate) fn undone(&self, key: &Key, count: u32) -> Option<Option<Content>> {
        let last = self.seen(key).take(count as usize + 1);
        let all: Vec<&Past> = last.take_while(|past| past.is_kept).collect();
        let (first, old) = (all.first()?, all.get(count as usize)?);
        (first.content != old.content).then_some(old.content)
    }

    pub(crate) fn snapshot_taken(&mut self, number: u32, is_of_all: bool) {
        let seen_of = |pasts: &Vec<Past>| pasts.iter().map(|past| past.is_seen).collect();
        let seen = self.pasts.iter().map(|(key, pasts)| (*key, seen_of(pasts))).collect();
        self.snapshots.retain(|snapshot| !(is_of_all && snapshot.is_of_all));
        self.snapshots.push(Snapshot { number, seen, is_of_all });
        if self.snapshots.len() > SNAPSHOTS_MAX + 1 {
            self.snapshots.remove(usize::from(self.snapshots[0].is_of_all));
        }
    }

    /// Compares a key with what each snapshot must show, and forgets those that a merge has forgotten.
    pub(crate) fn shown_in_snapshot(&mut self, device: &Device, key: &Key) -> Result<(), Error> {
        let mut forgotten = Vec::new();
        for Snapshot { number, seen, .. } in &self.snapshots {
            let then = seen.get(key).and_then(|seen| seen.iter().rposition(|seen| *seen));
            let known = then.and_then(|at| self.pasts[key][at].content);
            match device.get_version(self.space, *key, At::Snapshot(*number)) {
                Ok(found) => assert_eq!(
                    found.map(|record| record.value),
                    known.map(Content::bytes),
                    "{key} in snapshot {number}"
                ),
                Err(error) if is_forgotten(&error) => forgotten.push(*number),
                Err(error) => return Err(error),
            }
        }
        self.snapshots.retain(|snapshot| !forgotten.contains(&snapshot.number));
        Ok(())
    }

    /// Compares the value that a key had so many changes ago.
    pub(crate) fn compare_back(&self, device: &Device, key: &Key, back: u32) -> Result<(), Error> {
        let known: Vec<&Past> = self.seen(key).take(back as usize + 1).take_while(|past| past.is_kept).collect();
        let Some(past) = known.get(back as usize) else { return Ok(()) };
        let found = device.get_version(self.space, *key, At::Back(back))?;
        assert_eq!(found.map(|record| record.value), past.content.map(Content::bytes), "{key}, {back} back");
        Ok(())
    }

    /// Compares what there is of a key: all that must be, nothing that was not put, in the order of the puts.
    pub(crate) fn compare(&self, device: &Device, key: &Key) -> Result<(), Error> {
        let found = device.history(self.space, *key, 10_000)?;
        let mut rest = found.as_slice();
        let mut seen = 0;
        for past in self.pasts.get(key).into_iter().flatten().rev() {
            seen += u32::from(past.is_seen);
            let bytes = past.content.map(Content::bytes).unwrap_or_default();
            let is_it = |found: &kaml::Past| {
                let version = &found.version;
                let is_delete = version.kind == VersionKind::Tombstone;
                (found.is_seen, is_delete) == (past.is_seen, past.content.is_none())
                    && (version.value_len as usize, version.value_crc) == (bytes.len(), kaml_crc::crc32c(&bytes))
            };
            match rest.split_first().filter(|(found, _)| is_it(found)) {
                Some((_, older)) => rest = older,
                None => assert!(
                    !(past.is_seen && past.is_kept && seen <= KEEP_LAST),
                    "{key}: {past:?}, {seen} back, is missing: {found:?}"
                ),
            }
        }
        assert!(rest.is_empty(), "{key}: {rest:?} were not put, or not then: {:?}", self.pasts.get(key));
        Ok(())
    }

    /// What is seen now is what was seen in a snapshot: of older versions than the newest of each key some may be gone. Returns what
    /// the keys have become.
    pub(crate) fn rolled_back(&mut self, to: u32) -> Vec<(Key, Option<Content>)> {
        let snapshot = self.snapshots.iter().find(|snapshot| snapshot.number == to).expect("remembered");
        let mut newest_seen = Vec::new();
        for (key, pasts) in &mut self.pasts {
            let then = snapshot.seen.get(key).map_or(&[][..], Vec::as_slice);
            let newest = then.iter().rposition(|seen| *seen);
            for (at, past) in pasts.iter_mut().enumerate() {
                past.is_seen = then.get(at) == Some(&true);
                past.is_kept = newest == Some(at) && past.content.is_some(); // a delete is dropped with what it hid
            }
            newest_seen.push((*key, newest.and_then(|at| pasts[at].content)));
        }
        newest_seen
    }
}
