//! Snapshots of the device in the random workloads.
//!
//! Lives here:       opening and closing them, reads and listings through them, what each must show.
//! Lives elsewhere:  reads in progress (`world`), what exists now (`model`).
//!
//! A snapshot must show what was committed when it was opened, until it is closed or expires. After a cut there is none.

use super::{End, Reading, World};
use crate::check::{self, Violation};
use crate::model::{Address, Phase};
use crate::rng::Rng;
use crate::value::Value;
use kaml_device::{Buffered, Cursor, Error, FindError, Found, Key, KeyBuf, KeyKind, SnapshotTicket};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Open at once, at most.
const OPEN_MAX: usize = 4;
/// Turns without an end of a command after which nothing is read any more, so a command that waits forever is noticed.
const IDLE_TURNS_MAX: u64 = 1000;

/// A snapshot, and what it must show.
struct OpenSnapshot {
    ticket: SnapshotTicket,
    records: BTreeMap<Address, Value>,
    spaces: Vec<u32>,
    listing: Option<Listing>,
}

/// A listing in progress.
struct Listing {
    space: u32,
    /// Keys that it has yet to return.
    remaining: BTreeSet<Key>,
    at: At,
}

enum At {
    Cursor(Option<Cursor>),
    /// In an ordered namespace, in the order of the keys or from the back.
    Key(Option<KeyBuf>, bool),
}

/// The snapshots that are open.
pub(super) struct Snapshots {
    rng: Rng,
    open: Vec<OpenSnapshot>,
}

impl Snapshots {
    pub(super) fn new(seed: u64) -> Snapshots {
        Snapshots { rng: Rng::new(crate::rng::mix(seed ^ 0x54A9)), open: Vec::new() }
    }
}

/// What a page of a listing has, and whether it was the last one.
type Page = (Vec<Key>, bool);

impl World {
    /// Now and then opens a snapshot, closes one, or reads something through one.
    pub(super) fn use_snapshots(&mut self) -> Result<(), End> {
        let percent = self.workload.snapshot_percent;
        let rng = &mut self.snapshots.rng;
        if percent == 0 || rng.below(100) >= percent || self.idle_turns > IDLE_TURNS_MAX {
            return Ok(());
        }
        let (what, count) = (rng.below(12), self.snapshots.open.len());
        if count == 0 || what == 0 && count < OPEN_MAX {
            self.open_snapshot();
            return Ok(());
        }
        let which = rng.below(count as u64) as usize;
        let result = match what {
            0 | 1 => {
                self.core.close_snapshot(self.snapshots.open.swap_remove(which).ticket);
                return Ok(());
            }
            2..=5 => self.list_snapshot(which),
            _ => self.get_of_snapshot(which),
        };
        match result {
            Ok(()) => Ok(()),
            Err(Failed::End(end)) => Err(end),
            Err(Failed::Error(Error::SnapshotTooOld)) => {
                self.counts.snapshots_expired += 1;
                self.core.close_snapshot(self.snapshots.open.swap_remove(which).ticket);
                Ok(())
            }
            Err(Failed::Error(error)) => {
                self.snapshots.open[which].listing = None;
                let may = check::is_excused(&error, &self.medium)
                    || matches!(error, Error::UnknownNamespace(id) if !self.model.has_space(id));
                if may { Ok(()) } else { Err(Violation::new(format!("a read of a snapshot: {error}")).into()) }
            }
        }
    }

    fn open_snapshot(&mut self) {
        // What has expired is not in a snapshot: indexes in which a record is due come into memory first.
        while let Some(id) = self.core.due_without_index() {
            match self.load_index(id) {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
        }
        let Ok(ticket) = self.core.open_snapshot() else { return }; // it is being closed
        let model = &self.model;
        let is_readable = |(id, (_, phase)): &(&u32, &(String, Phase))| {
            *phase == Phase::There && !model.disks.contains_key(id) && !model.pasts.contains_key(id)
        };
        let spaces: Vec<u32> = model.spaces.iter().filter(is_readable).map(|(id, _)| *id).collect();
        if spaces.is_empty() {
            return self.core.close_snapshot(ticket);
        }
        self.counts.snapshots += 1;
        self.snapshots.open.push(OpenSnapshot { ticket, records: model.records.clone(), spaces, listing: None });
    }

    fn get_of_snapshot(&mut self, which: usize) -> Result<(), Failed> {
        let rng = &mut self.snapshots.rng;
        let seen = &self.snapshots.open[which];
        let space = seen.spaces[rng.below(seen.spaces.len() as u64) as usize];
        let address = (space, rng.below(self.workload.keys));
        let expected = seen.records.get(&address).copied();
        let Some(key) = self.known_key(address)? else { return Ok(()) };
        let found = self.with_index(space, |world| {
            let key = world.reader.key((&key).into()).map_err(Error::Key)?;
            let ticket = &world.snapshots.open[which].ticket;
            Ok(match world.reader.at(ticket, space)?.find(&key)? {
                Found::Absent => Buffered::Absent,
                Found::Flash(read) => Buffered::Programmed(read),
                Found::Buffered => world.core.read_buffered_at(ticket, space, &key)?,
            })
        })?;
        let value = match found {
            None => return Ok(()), // its index is lost
            Some(Buffered::Absent) => None,
            Some(Buffered::Value(value)) => Some(value),
            Some(Buffered::Packed(packed)) => Some(packed.unpack()?),
            Some(Buffered::Programmed(read)) => {
                let id = self.start_read(&read);
                self.readings.insert(id, Reading { read, address, expected, block: None });
                self.counts.snapshot_reads += 1;
                return Ok(());
            }
        };
        self.counts.snapshot_reads += 1;
        let what = || format!("a snapshot shows something else of namespace {space} key {}", address.1);
        if value == expected.map(Value::noise) { Ok(()) } else { Err(Violation::new(what()).into()) }
    }

    /// Continues a listing by a page, or begins one.
    fn list_snapshot(&mut self, which: usize) -> Result<(), Failed> {
        let mut listing = match self.snapshots.open[which].listing.take() {
            Some(listing) => listing,
            None => match self.begin_listing(which)? {
                Some(listing) => listing,
                None => return Ok(()),
            },
        };
        let limit = 1 + self.snapshots.rng.below(20) as usize;
        let space = listing.space;
        let page = self.with_index(space, |world| world.page(which, &mut listing, limit))?;
        let Some((keys, is_last)) = page else { return Ok(()) };
        for key in keys {
            if !listing.remaining.remove(&key) {
                let what = format!("a snapshot lists key {key} of namespace {space}, twice or without reason");
                return Err(Violation::new(what).into());
            }
        }
        if !is_last {
            self.snapshots.open[which].listing = Some(listing);
            return Ok(());
        }
        self.counts.snapshot_listings += 1;
        match listing.remaining.first() {
            None => Ok(()),
            Some(key) => Err(Violation::new(format!("a snapshot does not list key {key} of namespace {space}")).into()),
        }
    }

    fn begin_listing(&mut self, which: usize) -> Result<Option<Listing>, Failed> {
        let rng = &mut self.snapshots.rng;
        let seen = &self.snapshots.open[which];
        let space = seen.spaces[rng.below(seen.spaces.len() as u64) as usize];
        let from_back = rng.one_in(2);
        if !self.model.spaces.contains_key(&space) {
            return Ok(None); // nothing is known of its keys any more
        }
        let mut remaining = BTreeSet::new();
        for address in seen.records.keys().filter(|(id, _)| *id == space) {
            let key = self.model.key(*address);
            remaining.insert(*self.reader.key((&key).into()).map_err(Error::Key)?.key());
        }
        let at = match self.model.strings.get(&space) {
            Some(KeyKind::Ordered) => At::Key(None, from_back),
            _ => At::Cursor(None),
        };
        Ok(Some(Listing { space, remaining, at }))
    }

    fn page(&self, which: usize, listing: &mut Listing, limit: usize) -> Result<Page, FindError> {
        let records = self.reader.at(&self.snapshots.open[which].ticket, listing.space)?;
        match &mut listing.at {
            At::Cursor(after) => {
                let (keys, next) = records.list(*after, limit)?;
                assert!(keys.len() <= limit, "a page of a snapshot has {} keys, not at most {limit}", keys.len());
                *after = next;
                Ok((keys, next.is_none()))
            }
            At::Key(after, from_back) => {
                let bound = after.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_bytes()));
                let range = if *from_back { (Bound::Unbounded, bound) } else { (bound, Bound::Unbounded) };
                let (keys, next) = records.range(range, *from_back, limit)?;
                let is_in_order = |pair: &[KeyBuf]| if *from_back { pair[0] > pair[1] } else { pair[0] < pair[1] };
                assert!(keys.windows(2).all(is_in_order), "a snapshot lists keys in another order");
                assert!(keys.len() <= limit, "a page of a snapshot has {} keys, not at most {limit}", keys.len());
                let short = |key: &KeyBuf| Ok(*self.reader.key(key.into()).map_err(Error::Key)?.key());
                let listed = keys.iter().map(short).collect::<Result<Vec<Key>, Error>>()?;
                *after = next;
                Ok((listed, after.is_none()))
            }
        }
    }

    /// The key of a number, if its namespace is known.
    fn known_key(&self, address: Address) -> Result<Option<KeyBuf>, Failed> {
        Ok(self.model.spaces.contains_key(&address.0).then(|| self.model.key(address)))
    }

    /// Does something that needs an index, which is loaded if it must be; nothing if flash has lost it.
    fn with_index<T>(
        &mut self,
        space: u32,
        mut act: impl FnMut(&World) -> Result<T, FindError>,
    ) -> Result<Option<T>, Failed> {
        loop {
            match act(self) {
                Ok(done) => return Ok(Some(done)),
                Err(FindError::Refused(error)) => return Err(Failed::Error(error)),
                Err(FindError::NeedIndex) => {
                    if !self.load_index(space)? {
                        return Ok(None);
                    }
                }
            }
        }
    }
}

/// Why a read through a snapshot failed.
enum Failed {
    End(End),
    Error(Error),
}

impl From<End> for Failed {
    fn from(end: End) -> Failed {
        Failed::End(end)
    }
}

impl From<Violation> for Failed {
    fn from(violation: Violation) -> Failed {
        Failed::End(violation.into())
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Error(error)
    }
}
