//! The keys of a namespace in a backup, and what was deleted since an earlier one.
//!
//! Lives here:       going through all keys of a namespace, comparing them with those of the earlier backup.
//! Lives elsewhere:  records and versions (`write`), the bytes (`format`).

use super::format::{Described, Holds, ListedKey, PieceKind};
use super::moment::Moment;
use super::read::BackupBase;
use super::write::Out;
use crate::error::Error;
use crate::{Cursor, KeyBuf, KeyKind, NamespaceId};
use kaml_device::{Key, RecordsAt};
use std::collections::BTreeSet;
use std::ops::Bound;

/// Keys that are listed at a time.
const KEYS_PER_PAGE: usize = 4096;

/// Lists the keys of a namespace, and compares them with those of the base.
pub(super) struct Listing<'a> {
    moment: &'a Moment<'a>,
    namespace: &'a Described,
    at: RecordsAt<'a>,
    bad: &'a BTreeSet<u64>,
    keys: Vec<u8>,
    deleted: Vec<u8>,
}

/// Where a listing continues.
enum After {
    Start,
    Cursor(Cursor),
    Key(KeyBuf),
}

impl<'a> Listing<'a> {
    pub(super) fn new(
        moment: &'a Moment<'a>,
        namespace: &'a Described,
        bad: &'a BTreeSet<u64>,
    ) -> Result<Listing<'a>, Error> {
        let (at, keys, deleted) = (moment.records(namespace.id)?, Vec::new(), Vec::new());
        Ok(Listing { moment, namespace, at, bad, keys, deleted })
    }

    fn is_ordered(&self) -> bool {
        matches!(self.namespace.holds, Holds::Records(KeyKind::Ordered))
    }

    pub(super) fn run(mut self, mut base: Option<&mut BackupBase>, out: &mut Out<'_>) -> Result<(), Error> {
        let id = self.namespace.id;
        let mut of_base = match &mut base {
            Some(base) => base.next_key(id)?,
            None => None,
        };
        let (mut after, mut count) = (After::Start, 0);
        loop {
            let (page, next) = self.page(&after)?;
            for key in page {
                count += 1;
                self.check(&key)?;
                // Keys of the base before this one exist no more.
                while let Some(old) = &of_base {
                    match self.order(old, &key)? {
                        std::cmp::Ordering::Less => self.delete(old, out)?,
                        std::cmp::Ordering::Equal => {}
                        std::cmp::Ordering::Greater => break,
                    }
                    let is_same = *old == key;
                    of_base = match &mut base {
                        Some(base) => base.next_key(id)?,
                        None => None,
                    };
                    if is_same {
                        break;
                    }
                }
                self.list(&key, out)?;
            }
            match next {
                Some(next) => after = next,
                None => break,
            }
        }
        while let Some(old) = of_base {
            self.delete(&old, out)?;
            of_base = match &mut base {
                Some(base) => base.next_key(id)?,
                None => None,
            };
        }
        out.flush(PieceKind::Deleted, &mut self.deleted, true)?;
        out.flush(PieceKind::Keys, &mut self.keys, true)?;
        match count == self.namespace.count {
            true => Ok(()),
            false => Err(Error::Internal(format!(
                "namespace {:?} had {} records, and {count} were listed",
                self.namespace.name, self.namespace.count
            ))),
        }
    }

    /// Some keys, and where to continue.
    fn page(&self, after: &After) -> Result<(Vec<ListedKey>, Option<After>), Error> {
        let id = self.namespace.id;
        if self.is_ordered() {
            let from = match after {
                After::Key(key) => Bound::Excluded(key.as_bytes()),
                After::Start | After::Cursor(_) => Bound::Unbounded,
            };
            let page = self.moment.look(id, || self.at.range((from, Bound::Unbounded), false, KEYS_PER_PAGE))?;
            let keys = page.0.iter().map(|key| ListedKey::Bytes(key.as_bytes().into())).collect();
            return Ok((keys, page.1.map(After::Key)));
        }
        let cursor = match after {
            After::Cursor(cursor) => Some(*cursor),
            After::Start | After::Key(_) => None,
        };
        let page = self.moment.look(id, || self.at.list(cursor, KEYS_PER_PAGE))?;
        Ok((page.0.iter().map(ListedKey::of).collect(), page.1.map(After::Cursor)))
    }

    /// Refuses a record that cannot be read, with its key.
    fn check(&self, key: &ListedKey) -> Result<(), Error> {
        if self.bad.is_empty() {
            return Ok(());
        }
        let id = self.namespace.id;
        let full = match key {
            ListedKey::Bytes(bytes) => self.moment.shared.key(crate::KeyRef::from(&bytes[..]))?,
            ListedKey::Digest(digest) => Key::of_digest(*digest).into(),
        };
        let slot = self.moment.look(id, || self.at.slot(&full))?;
        match slot.is_some_and(|slot| self.bad.contains(&slot.at)) {
            true => self.moment.fetch(&self.at, id, &full).map(drop),
            false => Ok(()),
        }
    }

    /// The order of two keys in the index.
    fn order(&self, one: &ListedKey, other: &ListedKey) -> Result<std::cmp::Ordering, Error> {
        if let (true, ListedKey::Bytes(one), ListedKey::Bytes(other)) = (self.is_ordered(), one, other) {
            return Ok(one.cmp(other));
        }
        Ok(self.place(one)?.cmp(&self.place(other)?))
    }

    fn place(&self, key: &ListedKey) -> Result<Option<Cursor>, Error> {
        let Some(key) = key.key() else { return Ok(None) };
        self.moment.look(self.namespace.id, || self.at.cursor_at(&key))
    }

    fn delete(&mut self, key: &ListedKey, out: &mut Out<'_>) -> Result<(), Error> {
        begin_list(&mut self.deleted, self.namespace.id);
        key.encode(&mut self.deleted);
        out.totals.deleted += 1;
        out.flush(PieceKind::Deleted, &mut self.deleted, false)
    }

    fn list(&mut self, key: &ListedKey, out: &mut Out<'_>) -> Result<(), Error> {
        begin_list(&mut self.keys, self.namespace.id);
        key.encode(&mut self.keys);
        out.flush(PieceKind::Keys, &mut self.keys, false)
    }
}

/// A list begins with the number of its namespace.
fn begin_list(list: &mut Vec<u8>, namespace: NamespaceId) {
    if list.is_empty() {
        list.extend_from_slice(&namespace.to_le_bytes());
    }
}
