//! Reads through a snapshot, next to the core.
//!
//! Lives here:       which state of a key a snapshot sees, listing its keys.
//! Lives elsewhere:  the table of superseded states (`superseded`), filling it (`snapshots`), reads of the present (`reader`).
//! Implements:       docs/ARCHITECTURE.md "Snapshots".
//!
//! A reader looks at the table, then at the index, then at the table again. The core fills the table before it changes the index: a
//! reader that finds a newer state in the index finds the older one in the table after that.

use crate::core::Core;
use crate::error::Error;
use crate::index::IndexReader;
use crate::layout::{Door, Layout};
use crate::namespace::NamespaceShared;
use crate::reader::{Buffered, FindError, Found, Reader};
use crate::snapshots::SnapshotTicket;
use crate::superseded::Place;
use kaml_flash::ChunkAddr;
use kaml_index::{Cursor, FullKey, KEY_BYTES_MAX, Key, KeyBuf, Slot};
use std::ops::Bound;
use std::sync::Arc;

/// Entries of the table that a page looks at, at least: some 20 µs during which the core cannot change it.
const ENTRIES_MIN: usize = 256;

/// The state of a key that a snapshot sees, given what the index has. The snapshot was not over when this was seen.
fn state_of(
    shared: &NamespaceShared,
    snapshot: &SnapshotTicket,
    at: impl Fn() -> Option<Place>,
    present: impl Fn() -> Option<Slot>,
) -> Result<Option<Slot>, Error> {
    let seen = || match shared.has_superseded() {
        true => at().and_then(|at| shared.superseded().seen(snapshot.number, &at)),
        false => None,
    };
    let state = match seen() {
        Some(state) => state,
        None => {
            let present = present();
            seen().unwrap_or(present)
        }
    };
    // Entries are released after the snapshot is over: one that was missed for that shows here.
    snapshot.check()?;
    Ok(state)
}

impl Reader {
    /// A namespace of records as a snapshot sees it.
    ///
    /// # Errors
    /// There was no such namespace, it was deleted since, or it does not hold records.
    pub fn at<'a>(&'a self, snapshot: &'a SnapshotTicket, namespace: u32) -> Result<RecordsAt<'a>, Error> {
        if namespace >= snapshot.next_namespace {
            return Err(Error::UnknownNamespace(namespace)); // it was created later
        }
        let space = self.space(namespace)?;
        space.layout.admit(namespace, Door::Records)?;
        Ok(RecordsAt { reader: self, space, snapshot, namespace })
    }
}

impl Reader {
    /// As [`Reader::at`], for a backup, whose snapshot also shows blocks: their units are records under their numbers.
    ///
    /// # Errors
    /// There was no such namespace, it was deleted since, or it keeps versions.
    pub fn backed_up<'a>(&'a self, snapshot: &'a SnapshotTicket, namespace: u32) -> Result<RecordsAt<'a>, Error> {
        let space = self.space(namespace)?;
        match space.layout {
            Layout::Records(_) => self.at(snapshot, namespace),
            Layout::Blocks(_) => Ok(RecordsAt { reader: self, space, snapshot, namespace }),
            Layout::Versions(_) => Err(space.layout.admit(namespace, Door::Records).expect_err("it keeps versions")),
        }
    }
}

/// A namespace of records as a snapshot sees it, to read next to the core.
pub struct RecordsAt<'a> {
    reader: &'a Reader,
    space: Arc<NamespaceShared>,
    snapshot: &'a SnapshotTicket,
    namespace: u32,
}

impl RecordsAt<'_> {
    fn with_index<T>(&self, act: impl FnOnce(&IndexReader) -> Result<T, FindError>) -> Result<T, FindError> {
        let index = self.space.index.read().expect("no panics under this lock");
        act(index.as_ref().ok_or(FindError::NeedIndex)?)
    }

    fn state(&self, index: &IndexReader, key: &FullKey<'_>) -> Result<Option<Slot>, Error> {
        state_of(&self.space, self.snapshot, || index.place(key), || index.get(key))
    }

    /// Finds the record of a key.
    ///
    /// # Errors
    /// The snapshot has expired, the namespace takes no such key, or its index must be loaded first.
    pub fn find(&self, key: &FullKey<'_>) -> Result<Found, FindError> {
        self.space.layout.check_full_key(key).map_err(Error::Key)?;
        self.with_index(|index| {
            loop {
                let Some(slot) = self.state(index, key)? else { return Ok(Found::Absent) };
                let pin = self.reader.pin(ChunkAddr(slot.at));
                // As for reads of the present: a record that is still there after the pin stays readable.
                if self.state(index, key)? == Some(slot) {
                    return Ok(self.reader.found(self.namespace, key, slot, pin));
                }
            }
        })
    }

    /// Whether the snapshot sees the record of a key in this place. Reads no flash.
    ///
    /// # Errors
    /// The snapshot has expired, or the index must be loaded first.
    pub fn sees(&self, key: &FullKey<'_>, slot: Slot) -> Result<bool, FindError> {
        let key = self.space.layout.indexed(*key);
        self.with_index(|index| Ok(self.state(index, &key)? == Some(slot)))
    }

    /// Where the record of a key lies. Reads no flash.
    ///
    /// # Errors
    /// As [`RecordsAt::find`].
    pub fn slot(&self, key: &FullKey<'_>) -> Result<Option<Slot>, FindError> {
        let key = self.space.layout.indexed(*key);
        self.with_index(|index| Ok(self.state(index, &key)?))
    }

    /// The place of a key in the order of [`RecordsAt::list`].
    ///
    /// # Errors
    /// The index must be loaded first.
    pub fn cursor_at(&self, key: &Key) -> Result<Option<Cursor>, FindError> {
        self.with_index(|index| Ok(index.cursor_at(key)))
    }

    /// Whether a key existed. Reads no flash.
    ///
    /// # Errors
    /// As [`RecordsAt::find`].
    pub fn exists(&self, key: &FullKey<'_>) -> Result<bool, FindError> {
        self.space.layout.check_full_key(key).map_err(Error::Key)?;
        self.with_index(|index| Ok(self.state(index, key)?.is_some()))
    }

    /// Keys after a cursor, in the order of the index, and where to continue. Each is listed exactly once. A page can be empty and not the
    /// last one.
    ///
    /// # Errors
    /// The snapshot has expired, the namespace is ordered ([`RecordsAt::range`]), or its index must be loaded first.
    pub fn list(&self, after: Option<Cursor>, limit: usize) -> Result<(Vec<Key>, Option<Cursor>), FindError> {
        self.with_index(|index| {
            // First the index: what is taken out of it meanwhile is in the table by then.
            let (present, next) = index.list(after, limit).ok_or(Error::ListedByRange(self.namespace))?;
            let page = Page {
                present,
                from: after.map_or(Bound::Unbounded, |after| Bound::Excluded(Place::Listed(after))),
                to: next.map_or(Bound::Unbounded, |next| Bound::Included(Place::Listed(next))),
                from_back: false,
                keys_max: limit.max(1),
                entries_max: limit.max(ENTRIES_MIN),
            };
            let key_at = |at: &Place| match at {
                Place::Listed(cursor) => index.key_at(cursor),
                Place::InOrder(_) => None,
            };
            let place_of = |key: &Key| index.place(&key.into());
            let (keys, stopped) = page.merge(self.snapshot, &self.space, place_of, key_at)?;
            let stopped = stopped.map(|at| match at {
                Place::Listed(cursor) => cursor,
                Place::InOrder(_) => unreachable!("hash indexes list by cursors"),
            });
            Ok((keys, stopped.or(next)))
        })
    }

    /// Up to `limit` (at least one) keys of a range of an ordered namespace, in their order, or from the back in the reverse one. Also
    /// returns the key after which the range continues; nothing at its end. A page can be empty and not the last one.
    ///
    /// # Errors
    /// The snapshot has expired, the namespace is not ordered, or its index must be loaded first.
    pub fn range(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        from_back: bool,
        limit: usize,
    ) -> Result<(Vec<KeyBuf>, Option<KeyBuf>), FindError> {
        self.space.layout.admit(self.namespace, Door::Ranges)?;
        self.with_index(|index| {
            let index = index.ordered().ok_or(Error::NotOrdered(self.namespace))?;
            if matches!(range.1, Bound::Included([]) | Bound::Excluded([])) {
                return Ok((Vec::new(), None)); // every key is after that
            }
            let mut entries = index.range::<[u8]>(range);
            let mut present: Vec<KeyBuf> = Vec::with_capacity(limit.max(1));
            let mut last = None;
            while let Some((key, _)) = if from_back { entries.next_entry_back() } else { entries.next_entry() } {
                present.push(KeyBuf::new(key).map_err(Error::Key)?);
                if present.len() >= limit {
                    last = present.last().cloned();
                    break;
                }
            }
            let (mut from, mut to) = (lower(range.0), upper(range.1));
            if let Some(last) = &last {
                let end = Bound::Included(Place::InOrder(last.clone()));
                *(if from_back { &mut from } else { &mut to }) = end;
            }
            let (keys_max, entries_max) = (limit.max(1), limit.max(ENTRIES_MIN));
            let page = Page { present, from, to, from_back, keys_max, entries_max };
            let key_at = |at: &Place| match at {
                Place::InOrder(key) => Some(key.clone()),
                Place::Listed(_) => None,
            };
            let place_of = |key: &KeyBuf| Some(Place::InOrder(key.clone()));
            let (keys, stopped) = page.merge(self.snapshot, &self.space, place_of, key_at)?;
            let stopped = stopped.as_ref().and_then(key_at);
            Ok((keys, stopped.or(last)))
        })
    }
}

/// Where a range of keys begins. What is too long to be a key lies after the key with its first bytes, and before the next one.
fn lower(bound: Bound<&[u8]>) -> Bound<Place> {
    if matches!(bound, Bound::Included([]) | Bound::Excluded([])) {
        return Bound::Unbounded; // every key is after that
    }
    match bound.map(place_at) {
        Bound::Included((at, true)) => Bound::Included(at),
        Bound::Included((at, false)) | Bound::Excluded((at, _)) => Bound::Excluded(at),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// Where a range of keys ends; as [`lower`].
fn upper(bound: Bound<&[u8]>) -> Bound<Place> {
    match bound.map(place_at) {
        Bound::Included((at, _)) | Bound::Excluded((at, false)) => Bound::Included(at),
        Bound::Excluded((at, true)) => Bound::Excluded(at),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// The place of the longest key that some bytes, which are not none, begin with, and whether that is all of them.
fn place_at(bytes: &[u8]) -> (Place, bool) {
    let cut = &bytes[..bytes.len().min(KEY_BYTES_MAX)];
    let key = KeyBuf::new(cut).expect("one to as many bytes as keys may have");
    (Place::InOrder(key), cut.len() == bytes.len())
}

/// Whether no place lies between two bounds.
fn is_empty(from: &Bound<Place>, to: &Bound<Place>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from >= to,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    }
}

/// A page of a listing: what the index has, in the direction of the listing, and the bounds of what it was searched for.
struct Page<K> {
    present: Vec<K>,
    from: Bound<Place>,
    to: Bound<Place>,
    from_back: bool,
    /// Keys that it returns at most.
    keys_max: usize,
    /// Superseded states that it looks at, at most.
    entries_max: usize,
}

impl<K> Page<K> {
    /// The keys that a snapshot sees: where it sees a superseded state, that decides. If there are too many keys or states for one page, also
    /// returns the place where it ends.
    fn merge(
        self,
        snapshot: &SnapshotTicket,
        space: &NamespaceShared,
        place_of: impl Fn(&K) -> Option<Place>,
        key_at: impl Fn(&Place) -> Option<K>,
    ) -> Result<(Vec<K>, Option<Place>), Error> {
        let (seen, end) = match !space.has_superseded() || is_empty(&self.from, &self.to) {
            true => (Vec::new(), None),
            false => {
                let range = (self.from.as_ref(), self.to.as_ref());
                space.superseded().keys_seen(snapshot.number, range, (self.from_back, self.entries_max))
            }
        };
        snapshot.check()?;
        if seen.is_empty() && end.is_none() {
            return Ok((self.present, None));
        }
        let is_before = |one: &Place, other: &Place| if self.from_back { one > other } else { one < other };
        let mut merged = Vec::with_capacity(self.present.len());
        let mut seen = seen.into_iter().peekable();
        for key in self.present {
            let Some(at) = place_of(&key) else { continue };
            if end.as_ref().is_some_and(|end| is_before(end, &at)) {
                break; // it belongs to the next page
            }
            while let Some((before, existed)) = seen.next_if(|(before, _)| is_before(before, &at)) {
                merged.extend(key_at(&before).filter(|_| existed).map(|key| (key, before)));
            }
            match seen.next_if(|(same, _)| *same == at) {
                Some((_, false)) => {}
                Some((_, true)) | None => merged.push((key, at)),
            }
        }
        merged.extend(seen.filter_map(|(at, existed)| Some((key_at(&at).filter(|_| existed)?, at))));
        let end = match merged.len() > self.keys_max {
            true => Some(merged[self.keys_max - 1].1.clone()),
            false => end,
        };
        Ok((merged.into_iter().take(self.keys_max).map(|(key, _)| key).collect(), end))
    }
}

impl Core {
    /// As [`Core::read_buffered`], of a record as a snapshot sees it.
    ///
    /// # Errors
    /// As [`RecordsAt::find`].
    pub fn read_buffered_at(
        &self,
        snapshot: &SnapshotTicket,
        namespace: u32,
        key: &FullKey<'_>,
    ) -> Result<Buffered, FindError> {
        let space = self.spaces.get(&namespace).ok_or_else(|| Error::UnknownNamespace(namespace))?;
        match space.layout {
            Layout::Records(_) | Layout::Blocks(_) => {} // only a backup looks for units of blocks
            Layout::Versions(_) => space.layout.admit(namespace, Door::Records)?,
        }
        let index = space.index.as_ref().ok_or(FindError::NeedIndex)?;
        match state_of(&space.shared, snapshot, || index.place(key), || index.get(key))? {
            Some(slot) => Ok(self.read_slot(namespace, key, slot)?),
            None => Ok(Buffered::Absent),
        }
    }

    /// When a record as a snapshot sees it expires, in milliseconds since 1970; 0 for never, and if it is not in a write buffer.
    ///
    /// # Errors
    /// As [`Core::read_buffered_at`].
    pub fn buffered_expiry_at(
        &self,
        snapshot: &SnapshotTicket,
        namespace: u32,
        key: &FullKey<'_>,
    ) -> Result<u64, FindError> {
        let space = self.spaces.get(&namespace).ok_or_else(|| Error::UnknownNamespace(namespace))?;
        let index = space.index.as_ref().ok_or(FindError::NeedIndex)?;
        let slot = state_of(&space.shared, snapshot, || index.place(key), || index.get(key))?;
        Ok(slot.map_or(0, |slot| self.expiry_in_buffer(slot)))
    }
}
