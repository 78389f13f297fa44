//! Ranges of keys, by commands of our own: one names a range, one reads it; others count and delete.
//!
//! Lives here:       Name Range, Retrieve Range, Count Range, Delete Range.
//! Lives elsewhere:  their data (`wire::ranges`), the ranges that a controller has named (`named`), who reads (`workers`), the order of keys
//!                   (`kaml`); the page for people (`docs/nvme-vendor.md`).
//!
//! Workers do all of it, and what may take long piece by piece.

use super::core::{Origin, Target};
use super::engine::status_of;
use super::keyvalue::room;
use super::spaces::{Holds, Space};
use super::workers::{Done, Step};
use crate::wire::changes::expiry_ms;
use crate::wire::command::Command;
use crate::wire::ranges::{KeyRange, PAGE_BYTES_MIN, decode_range, flag, put_record};
use crate::wire::status::Status;
use kaml::store::Backing;
use kaml::{Cursor, Device, Expiry, KeyBuf, KeyKind, NamespaceId, OrderedKeys, Snapshot};
use std::ops::Bound;

/// Keys that one piece of a Retrieve Range returns, without values and with them.
const KEYS_AT_ONCE: usize = 1024;
const RECORDS_AT_ONCE: usize = 256;
/// Keys of a namespace without order that are listed at once: those above 16 bytes are read from their records.
const LISTED_AT_ONCE: usize = 64;
/// Bytes of the records of one piece, unless one record has more.
const BYTES_AT_ONCE: usize = 1 << 20;
/// Keys that are counted without a pause, which takes about 20 ms. More are counted one by one, in pieces of a 16th.
const COUNTED_AT_ONCE: u64 = 1 << 20;

/// A range of a namespace, that a host has named.
#[derive(Debug)]
pub(super) struct NamedRange {
    nsid: NamespaceId,
    order: Order,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
}

/// How the keys of a namespace follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As their bytes do.
    OfKeys,
    /// As the index has them.
    OfIndex,
}

impl NamedRange {
    /// A range of a namespace. One without order has all keys, or those after one in the order of its index.
    fn of(space: &Space, range: &KeyRange) -> Result<NamedRange, Status> {
        let order = match space.holds {
            Holds::Records(KeyKind::Ordered) => Order::OfKeys,
            Holds::Records(KeyKind::Bytes | KeyKind::U64 | KeyKind::Any) => Order::OfIndex,
            Holds::Versions(_) | Holds::Blocks(_) => return Err(Status::NOT_ORDERED),
        };
        let is_listing = range.prefix.is_empty()
            && range.upper == Bound::Unbounded
            && matches!(range.lower, Bound::Unbounded | Bound::Excluded(_));
        if order == Order::OfIndex && !is_listing {
            return Err(Status::NOT_ORDERED);
        }
        let (lower, upper) = range.bounds();
        Ok(NamedRange { nsid: space.id, order, lower, upper })
    }

    /// A range of an ordered namespace.
    fn ordered(space: &Space, data: &[u8]) -> Result<NamedRange, Status> {
        let range = NamedRange::of(space, &decode_range(data)?)?;
        if range.order == Order::OfKeys { Ok(range) } else { Err(Status::NOT_ORDERED) }
    }

    /// What it takes of memory.
    pub(super) fn bytes(&self) -> usize {
        let bytes = |bound: &Bound<Vec<u8>>| match bound {
            Bound::Included(bytes) | Bound::Excluded(bytes) => bytes.len(),
            Bound::Unbounded => 0,
        };
        size_of::<NamedRange>() + bytes(&self.lower) + bytes(&self.upper)
    }

    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice))
    }
}

impl Target {
    /// The result is the number of the range.
    pub(crate) fn name_range(&mut self, id: u16, space: &Space, data: &[u8]) -> Result<u64, Status> {
        let range = NamedRange::of(space, &decode_range(data)?)?;
        let controller = self.controllers.get_mut(&id).ok_or(Status::INTERNAL)?;
        Ok(controller.lists.add_range(range).into())
    }

    /// Returns as many records of range dword 11 as there is room for, at most dword 12; the result is their number, and in bit 32 whether more
    /// may follow.
    pub(crate) fn retrieve_range(
        &mut self,
        origin: Origin,
        id: u16,
        space: &Space,
        command: &Command,
    ) -> Result<(), Status> {
        let (room, flags) = (room(command), command.cdw13.get());
        let controller = self.controllers.get(&id).ok_or(Status::INTERNAL)?;
        let range = controller.lists.range(command.cdw11.get())?;
        if flags & !flag::ALL != 0 || range.nsid != space.id {
            return Err(Status::INVALID_FIELD);
        }
        if flags & flag::REVERSE != 0 && range.order == Order::OfIndex {
            return Err(Status::NOT_ORDERED);
        }
        if room < PAGE_BYTES_MIN {
            return Err(Status::SGL_LENGTH);
        }
        let limit = match command.cdw12.get() {
            0 => usize::MAX,
            limit => limit as usize,
        };
        // Those that wait for workers hold no memory.
        let range = std::sync::Arc::downgrade(range);
        let snapshot = controller.snapshots.of(command)?;
        // A snapshot does not know the times, and keys alone have none.
        if flags & flag::TIMES != 0 && (snapshot.is_some() || flags & flag::KEYS_ONLY != 0) {
            return Err(Status::INVALID_FIELD);
        }
        self.engine.read_in_pieces(origin, move |worker| match range.upgrade() {
            Some(range) => Page::new(&range, snapshot, flags, limit, room).go_on(&worker.device),
            None => Step::Done(Err::<u64, _>(Status::NO_SUCH_LIST).into()),
        });
        Ok(())
    }

    /// The result is the number of keys.
    pub(crate) fn count_range(
        &mut self,
        origin: Origin,
        id: u16,
        space: &Space,
        command: &Command,
        data: &[u8],
    ) -> Result<(), Status> {
        let range = NamedRange::ordered(space, data)?;
        let snapshot = self.snapshot_of(id, command)?;
        self.engine.read_in_pieces(origin, move |worker| {
            if let Some(snapshot) = snapshot {
                return count_on(snapshot.range_keys::<&[u8]>(range.nsid, range.bounds()), 0);
            }
            let namespace = worker.device.namespace_with_id(range.nsid);
            match namespace.estimate::<&[u8]>(range.bounds()) {
                Ok(0..=COUNTED_AT_ONCE) => Step::Done(result(namespace.count::<&[u8]>(range.bounds()))),
                Ok(_) => count_on(namespace.range_keys::<&[u8]>(range.bounds()), 0),
                Err(error) => Step::Done(result(Err(error))),
            }
        });
        Ok(())
    }

    /// The result is how many keys there were.
    pub(crate) fn delete_range(&mut self, origin: Origin, space: &Space, data: &[u8]) -> Result<(), Status> {
        let range = NamedRange::ordered(space, data)?;
        self.engine.write_count += 1;
        self.engine.start(origin, move |worker| {
            result(worker.device.namespace_with_id(range.nsid).delete_range::<&[u8]>(range.bounds()))
        });
        Ok(())
    }
}

/// When a record expires: milliseconds since 1970, 0 for never.
fn time_of(device: &Device, namespace: NamespaceId, key: &KeyBuf) -> Result<u64, kaml::Error> {
    Ok(match device.expiry(namespace, key)? {
        Some(Expiry::At(time)) => expiry_ms(Some(time)),
        _ => 0,
    })
}

fn result(number: Result<u64, kaml::Error>) -> Done {
    number.map_err(|error| status_of(&error)).into()
}

/// Counts keys one by one.
fn count_on(mut keys: OrderedKeys, before: u64) -> Step {
    let mut count = before;
    for key in keys.by_ref().take(COUNTED_AT_ONCE as usize / 16) {
        match key {
            Ok(_) => count += 1,
            Err(error) => return Step::Done(result(Err(error))),
        }
    }
    match count - before < COUNTED_AT_ONCE / 16 {
        true => Step::Done(result(Ok(count))),
        false => Step::More(Box::new(move |_| count_on(keys, count))),
    }
}

/// The answer of a Retrieve Range, on its way. Between two pieces it holds nothing but what it returns.
struct Page {
    nsid: NamespaceId,
    /// Of the present if there is none.
    snapshot: Option<Snapshot>,
    order: Order,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    flags: u32,
    /// Nothing of the range is left.
    is_over: bool,
    /// Records that may be returned yet.
    left: usize,
    room: usize,
    count: u64,
    out: Vec<u8>,
}

impl Page {
    fn new(range: &NamedRange, snapshot: Option<Snapshot>, flags: u32, limit: usize, room: usize) -> Page {
        let (lower, upper) = (range.lower.clone(), range.upper.clone());
        let (nsid, order) = (range.nsid, range.order);
        Page {
            nsid,
            snapshot,
            order,
            lower,
            upper,
            flags,
            is_over: false,
            left: limit,
            room,
            count: 0,
            out: Vec::new(),
        }
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Appends what one piece has room for.
    fn go_on(mut self, device: &Device) -> Step {
        match self.piece(device) {
            Ok(true) => Step::More(Box::new(move |worker| self.go_on(&worker.device))),
            Ok(false) => {
                let result = self.count | u64::from(!self.is_over) << 32;
                Step::Done(Ok::<_, Status>((result, self.out)).into())
            }
            Err(error) => Step::Done(result(Err(error))),
        }
    }

    /// Returns whether to continue.
    fn piece(&mut self, device: &Device) -> Result<bool, kaml::Error> {
        let keys = self.keys(device)?;
        if keys.is_empty() {
            self.is_over = true;
            return Ok(false);
        }
        let mut values = Vec::new();
        if !self.has(flag::KEYS_ONLY) {
            let bytes_max = BYTES_AT_ONCE.min(self.room - self.out.len());
            values = match &self.snapshot {
                Some(snapshot) => snapshot.get_many(self.nsid, &keys, bytes_max)?,
                None => device.namespace_with_id(self.nsid).get_many(&keys, bytes_max)?,
            };
        }
        let mut values = values.into_iter();
        for key in &keys {
            let mut value = match (self.has(flag::KEYS_ONLY), values.next()) {
                (true, _) => Vec::new(),
                (false, Some(Some(value))) => value,
                // Deleted meanwhile.
                (false, Some(None)) => {
                    self.pass(key);
                    continue;
                }
                // These are for the next piece.
                (false, None) => break,
            };
            if self.has(flag::TIMES) {
                value.splice(..0, time_of(device, self.nsid, key)?.to_le_bytes());
            }
            if !put_record(&mut self.out, key.as_bytes(), &value, self.room) {
                return Ok(false);
            }
            self.pass(key);
            (self.count, self.left) = (self.count + 1, self.left - 1);
        }
        Ok(self.left > 0)
    }

    /// The next keys.
    fn keys(&self, device: &Device) -> Result<Vec<KeyBuf>, kaml::Error> {
        let at_once = match (self.order, self.has(flag::KEYS_ONLY)) {
            (Order::OfIndex, _) => LISTED_AT_ONCE,
            (Order::OfKeys, true) => KEYS_AT_ONCE,
            (Order::OfKeys, false) => RECORDS_AT_ONCE,
        };
        let count = at_once.min(self.left);
        if self.order == Order::OfKeys {
            let (lower, upper) = (self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice));
            let reverse = self.has(flag::REVERSE);
            let Some(snapshot) = &self.snapshot else {
                return Backing::ordered_keys(device, self.nsid, lower, upper, reverse, count);
            };
            let keys = snapshot.range_keys::<&[u8]>(self.nsid, (lower, upper));
            return if reverse { keys.rev().take(count).collect() } else { keys.take(count).collect() };
        }
        let mut after: Option<Cursor> = match &self.lower {
            Bound::Included(key) | Bound::Excluded(key) => Some(device.cursor_at(self.nsid, key)?),
            Bound::Unbounded => None,
        };
        loop {
            let page = match &self.snapshot {
                Some(snapshot) => snapshot.list(self.nsid, after, count)?,
                None => device.list(self.nsid, after, count)?,
            };
            if !page.keys.is_empty() || page.next.is_none() {
                return Ok(page.keys);
            }
            after = page.next; // all of them have gone meanwhile
        }
    }

    /// A key has been dealt with.
    fn pass(&mut self, key: &KeyBuf) {
        let bound = Bound::Excluded(key.as_bytes().to_vec());
        if self.has(flag::REVERSE) {
            self.upper = bound;
        } else {
            self.lower = bound;
        }
    }
}
