//! Keys above 16 bytes and ranges of keys on a device somewhere else, as a local one has them.
//!
//! Lives here:       gets by long keys, pages of ranges, listings of namespaces that can have long keys.
//! Lives elsewhere:  the commands (`ranges`), other calls (`remote_commands`).
//!
//! A command moves data one way, so a get by a long key, or a page, is two: one hands the key or the bounds over, the other returns what is
//! found. The controller forgets what was named after 64 others, or with the connection; then it is named again.

use super::carrier::ATTEMPTS_MAX;
use super::remote::{Once, RemoteDevice, local};
use super::remote_commands::ROOM_AT_FIRST;
use super::{Error, KeyValue};
use crate::wire::manage::{LONG_PUT_RECORD_BYTES_MAX, PutAction, encode_long_put};
use crate::wire::named::{FOUND_BYTES, Found};
use crate::wire::ranges::{KeyRange, Listed, PAGE_BYTES_MIN, flag};
use crate::wire::status::Status;
use crate::wire::vendor::feature;
use kaml::{KeyBuf, KeyKind, NamespaceId, NamespaceKind};
use std::ops::Bound;

/// Room for a page of a range at most.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// A record of a range.
type Record = (KeyBuf, Vec<u8>);

/// Names something and reads it; again if it was forgotten in between.
pub(super) fn read_named<T>(
    name: impl Fn() -> Result<u32, Error>,
    read: impl Fn(u32) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut done = name().and_then(&read);
    for _ in 0..ATTEMPTS_MAX {
        match &done {
            Err(error) if error.status().is_some_and(|status| status.is(Status::NO_SUCH_LIST)) => {
                std::thread::yield_now(); // others name much now
                done = name().and_then(&read);
            }
            Ok(_) | Err(_) => break,
        }
    }
    done
}

impl RemoteDevice {
    pub(super) fn need_long_keys(&self) -> Result<(), Error> {
        if self.can(feature::LONG_KEYS) { Ok(()) } else { Err(Error::Unsupported("keys above 16 bytes")) }
    }

    fn need_ranges(&self) -> Result<(), Error> {
        if self.can(feature::RANGES) { Ok(()) } else { Err(Error::Unsupported("ranges of keys")) }
    }

    /// What there is of a key above 16 bytes, if there is room for the value.
    fn find_long(&self, at: u32, namespace: NamespaceId, key: &KeyBuf, room: usize) -> Result<Found, Error> {
        self.need_long_keys()?;
        let space = KeyValue::new(self, namespace).at(at);
        let name = || space.name_long_keys(&[(namespace, key.clone())]);
        let found = read_named(name, |list| space.retrieve_named(list, 0, room))?;
        found.into_iter().next().ok_or(Error::Unsupported("Retrieve Named"))
    }

    /// Reads a value by a key of any length, of a snapshot if `at` is not 0.
    pub(super) fn get_long(&self, at: u32, namespace: NamespaceId, key: &KeyBuf) -> Result<Option<Vec<u8>>, Error> {
        let mut room = FOUND_BYTES + ROOM_AT_FIRST;
        loop {
            match self.find_long(at, namespace, key, room)? {
                Found { value: Some(value), .. } => return Ok(Some(value)),
                Found { status, .. } if status.is(Status::NO_SUCH_KEY) => return Ok(None),
                Found { status, value_bytes, .. } if status.is_success() => {
                    room = FOUND_BYTES + value_bytes.next_multiple_of(4);
                }
                Found { status, .. } => return Err(Error::Status(status)),
            }
        }
    }

    pub(super) fn exists_long(&self, at: u32, namespace: NamespaceId, key: &KeyBuf) -> Result<bool, Error> {
        self.need_long_keys()?;
        let space = KeyValue::new(self, namespace).at(at);
        let name = || space.name_long_keys(&[(namespace, key.clone())]);
        let found = read_named(name, |list| space.exist_named(list, 0, 1))?;
        Ok(found.first() == Some(&true))
    }

    /// Stores a value by a key above 16 bytes, `repeatable` if a second Put has the effect of the first.
    pub(super) fn put_long(
        &self,
        namespace: NamespaceId,
        key: &KeyBuf,
        action: PutAction<'_>,
        repeatable: bool,
    ) -> Result<(), Error> {
        self.need_long_keys()?;
        let mut data = Vec::new();
        encode_long_put(&mut data, namespace, key.as_bytes(), action);
        match repeatable {
            true => KeyValue::new(self, namespace).put_long(&data, 1),
            false => KeyValue::new(&Once(self), namespace).put_long(&data, 1),
        }
    }

    /// The longest value that a Put has room for next to a key above 16 bytes.
    pub(super) fn long_value_bytes_max(&self) -> u64 {
        (self.transfer_bytes_max() - LONG_PUT_RECORD_BYTES_MAX) as u64
    }

    /// Whether a namespace can have keys above 16 bytes.
    pub(super) fn has_long_keys(&self, namespace: NamespaceId) -> Result<bool, Error> {
        if !self.can(feature::NAMESPACES) {
            return Ok(false);
        }
        let kind = self.kind_of(namespace)?;
        Ok(matches!(kind, Some(NamespaceKind::Records(KeyKind::Any | KeyKind::Ordered))))
    }

    /// Whether the keys of a namespace have an order.
    pub(super) fn has_order(&self, namespace: NamespaceId) -> Result<bool, kaml::Error> {
        if !self.can(feature::RANGES) {
            return Ok(false);
        }
        match self.kind_of(namespace).map_err(|error| local(error, namespace, None))? {
            Some(kind) => Ok(kind == NamespaceKind::Records(KeyKind::Ordered)),
            None => Err(kaml::Error::UnknownNamespace(namespace)),
        }
    }

    /// A page of a range, and whether more may follow.
    pub(super) fn range_page(
        &self,
        (at, namespace): (u32, NamespaceId),
        range: &KeyRange,
        flags: u32,
        limit: usize,
        room: usize,
    ) -> Result<(Vec<Listed>, bool), Error> {
        let (space, limit) = (KeyValue::new(self, namespace).at(at), u32::try_from(limit).unwrap_or(0));
        read_named(|| space.name_range(range), |number| space.retrieve_range(number, flags, limit, room))
    }

    /// Records of a range in pages, at most `limit`. `each` takes the records of a page.
    fn pages(
        &self,
        of: (u32, NamespaceId),
        mut range: KeyRange,
        flags: u32,
        limit: usize,
        mut each: impl FnMut(Vec<Listed>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.need_ranges()?;
        let mut left = limit;
        while left > 0 {
            let room = left.saturating_mul(PAGE_BYTES_MIN).min(PAGE_BYTES_MAX);
            let (page, has_more) = self.range_page(of, &range, flags, left, room)?;
            let Some(last) = page.last().map(|record| Bound::Excluded(record.key.clone())) else { break };
            *(if flags & flag::REVERSE != 0 { &mut range.upper } else { &mut range.lower }) = last;
            left = left.saturating_sub(page.len());
            each(page)?;
            if !has_more {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn keys_of(
        &self,
        (at, namespace): (u32, NamespaceId),
        range: KeyRange,
        flags: u32,
        limit: usize,
    ) -> Result<Vec<KeyBuf>, kaml::Error> {
        let mut keys = Vec::new();
        let take = |page: Vec<Listed>| {
            keys.extend(page.into_iter().map(|record| record.key));
            Ok(())
        };
        let read = self.pages((at, namespace), range, flags | flag::KEYS_ONLY, limit, take);
        read.map(|()| keys).map_err(|error| range_error(error, namespace))
    }

    /// Keys of an ordered namespace within bounds, in their order or in the reverse one, at most `limit`.
    pub fn range_keys(
        &self,
        namespace: NamespaceId,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<KeyBuf>, kaml::Error> {
        self.range_keys_at(0, namespace, (lower, upper), reverse, limit)
    }

    pub(super) fn range_keys_at(
        &self,
        at: u32,
        namespace: NamespaceId,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<KeyBuf>, kaml::Error> {
        let Some(range) = KeyRange::within(lower, upper) else { return Ok(Vec::new()) };
        self.ordered(namespace)?;
        self.keys_of((at, namespace), range, if reverse { flag::REVERSE } else { 0 }, limit)
    }

    /// Records of an ordered namespace within bounds, in the order of their keys or in the reverse one, at most `limit`. All of them are in
    /// memory: a caller with a long range takes it in several.
    pub fn range(
        &self,
        namespace: NamespaceId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<(KeyBuf, Vec<u8>)>, kaml::Error> {
        self.range_at(0, namespace, bounds, reverse, limit)
    }

    pub(super) fn range_at(
        &self,
        at: u32,
        namespace: NamespaceId,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<Record>, kaml::Error> {
        let Some(range) = KeyRange::within(lower, upper) else { return Ok(Vec::new()) };
        self.ordered(namespace)?;
        let mut found = Vec::new();
        let take = |page: Vec<Listed>| {
            found.extend(page);
            Ok(())
        };
        let read = self.pages((at, namespace), range, if reverse { flag::REVERSE } else { 0 }, limit, take);
        read.map_err(|error| range_error(error, namespace))?;
        let whole = |record: Listed| match record.value {
            Some(value) => Ok(Some((record.key, value))),
            // It is longer than a page; it may be deleted meanwhile.
            None => {
                let value = self.get_long(at, namespace, &record.key).map_err(|error| range_error(error, namespace))?;
                Ok(value.map(|value| (record.key, value)))
            }
        };
        found.into_iter().filter_map(|record| whole(record).transpose()).collect()
    }

    /// How many keys of an ordered namespace are within bounds.
    pub fn count_range(
        &self,
        namespace: NamespaceId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<u64, kaml::Error> {
        self.count_range_at(0, namespace, bounds)
    }

    pub(super) fn count_range_at(
        &self,
        at: u32,
        namespace: NamespaceId,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<u64, kaml::Error> {
        let Some(range) = KeyRange::within(lower, upper) else { return Ok(0) };
        self.ordered(namespace)?;
        KeyValue::new(self, namespace).at(at).count_range(&range).map_err(|error| range_error(error, namespace))
    }

    /// Deletes the keys of an ordered namespace within bounds, all or none; how many there were. Durable when it returns.
    pub fn delete_range(
        &self,
        namespace: NamespaceId,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<u64, kaml::Error> {
        let Some(range) = KeyRange::within(lower, upper) else { return Ok(0) };
        self.ordered(namespace)?;
        KeyValue::new(&Once(self), namespace).delete_range(&range).map_err(|error| range_error(error, namespace))
    }

    /// Refuses a namespace without order, before anything is sent that could mean something else there.
    fn ordered(&self, namespace: NamespaceId) -> Result<(), kaml::Error> {
        self.need_ranges().map_err(|error| local(error, namespace, None))?;
        if self.has_order(namespace)? { Ok(()) } else { Err(kaml::Error::NotOrdered(namespace)) }
    }

    /// Keys after one, of a namespace that can have keys above 16 bytes.
    pub(super) fn list_long(
        &self,
        namespace: NamespaceId,
        after: Option<&KeyBuf>,
        limit: usize,
    ) -> Result<Vec<KeyBuf>, kaml::Error> {
        let lower = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        self.keys_of((0, namespace), KeyRange { lower, ..KeyRange::ALL }, 0, limit)
    }
}

/// As [`local`], of a range.
pub(super) fn range_error(error: Error, namespace: NamespaceId) -> kaml::Error {
    match error.status() {
        Some(status) if status.is(Status::NOT_ORDERED) => kaml::Error::NotOrdered(namespace),
        Some(_) | None => local(error, namespace, None),
    }
}
