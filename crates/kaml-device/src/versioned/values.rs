//! Large values of versioned namespaces: records of a hidden namespace, whose keys are numbers that versions name.
//!
//! Lives here:       making that namespace, numbers, when a value is released whose version a merge dropped.
//! Lives elsewhere:  placing large values (`large`), staging a version with one (`staging`, `versioned`), merges (`merging`), what a version
//!                   stores (`kaml_versions`).
//! Implements:       docs/versioned.md "Large values".
//!
//! Invariants
//! - a version and its value commit together: their records in the ring are in one frame, and its mapping precedes the version;
//! - a value is released after a root without its version is durable: neither segments, nor the kept stream, nor the ring have it by then.
//!   So opening never finds a version without its value. It can find a value without a version; the next merge of the namespace drops that.

use super::state::Versioned;
use crate::command::StageError;
use crate::core::Core;
use crate::error::Error;
use crate::format::journal::Change;
use crate::format::record::RecordHeader;
use crate::index::IndexWriter;
use crate::layout::Layout;
use crate::namespace::Namespace;
use crate::reader::{Buffered, FindError};
use crate::ring::Staged;
use kaml_flash::{AlignedBuf, Io, Medium};
use kaml_index::{FullKey, Key, KeyKind, Slot};
use kaml_versions::{LargeValue, MergePlan};
use std::collections::BTreeSet;

/// A merge requests a root for what it drops when that is this part of the capacity, and at its end.
const RELEASED_OF_CAPACITY: u64 = 64;
/// Bits of a number that count within an opening; the others are of the number of the opening.
const COUNT_BITS: u32 = 40;
/// Numbers that are listed at a time.
const LISTED: usize = 4096;

impl Core {
    /// The record that a large value of a key becomes: its namespace and key. Values of records are under their own keys; those of versions
    /// are numbered, in a namespace that nobody else sees. `image` of [`Core::place`] is of that record.
    ///
    /// # Errors
    /// There is no such namespace, or no room for the one of its large values; [`StageError::Busy`] until a root names that.
    pub fn place_of<'a>(&mut self, namespace: u32, key: FullKey<'a>) -> Result<(u32, FullKey<'a>), StageError> {
        self.writable()?;
        let space = self.user_space(namespace)?;
        let Some(versioned) = &space.versioned else { return Ok((namespace, key)) };
        let Some(values) = versioned.values else {
            self.create_values(namespace)?;
            return Err(StageError::Busy);
        };
        if values >= self.root.next_namespace {
            return Err(StageError::Busy);
        }
        let Some(index) = &self.spaces[&values].index else { return Err(StageError::NeedIndex(values)) };
        let epoch = self.log.ring.epoch << COUNT_BITS;
        // The number of an opening repeats after 2^24 of them.
        let number = loop {
            let number = epoch | (self.tickets.take() & ((1 << COUNT_BITS) - 1));
            if index.get(&Key::from(number).into()).is_none() {
                break number;
            }
        };
        Ok((values, Key::from(number).into()))
    }

    /// Makes the namespace of the large values of another one.
    fn create_values(&mut self, owner: u32) -> Result<(), Error> {
        let logs = self.spaces[&owner].logs.clone();
        self.check_room_for_namespace(0, logs.len())?;
        let id = self.catalog.next_id;
        let layout = Layout::Records(KeyKind::U64);
        let index = IndexWriter::new(self.index_layout(layout), self.seed(id))?;
        self.catalog.next_id += 1;
        let mut space = Namespace::of_values(owner, logs);
        space.snapshot_entry = self.log.journal.next_entry();
        space.install(index);
        self.catalog.unpublished.push(id);
        self.spaces.insert(id, space);
        self.versioned_mut(owner).values = Some(id);
        self.request_root(false);
        Ok(())
    }

    /// A namespace that users know.
    pub(crate) fn user_space(&self, id: u32) -> Result<&Namespace, Error> {
        let space = self.known_space(id)?;
        if space.shared.values_of.is_some() { Err(Error::UnknownNamespace(id)) } else { Ok(space) }
    }

    /// Large values of versions that exist, and records that only a merge would find to belong to none.
    pub fn large_version_values(&self) -> u64 {
        let values = self.spaces.values().filter(|space| space.shared.values_of.is_some());
        values.map(Namespace::record_count).sum()
    }

    /// Reads a large value while nobody else changes the core; nothing if it was dropped.
    ///
    /// # Errors
    /// [`FindError::NeedIndex`]; the medium's; what is read is damaged.
    pub fn read_large(&self, medium: &dyn Medium, namespace: u32, number: u64) -> Result<Option<Vec<u8>>, FindError> {
        let space = self.user_space(namespace)?;
        let Some(values) = space.versioned.as_ref().and_then(|versioned| versioned.values) else { return Ok(None) };
        match self.read_buffered(values, Key::from(number))? {
            Buffered::Absent => Ok(None),
            Buffered::Value(value) => Ok(Some(value)),
            Buffered::Packed(packed) => Ok(Some(packed.unpack()?)),
            Buffered::Programmed(read) => {
                let mut value = Vec::new();
                crate::metadata::read_again(|| {
                    let mut io = Io::Read { at: read.at, into: AlignedBuf::zeroed(read.bytes) };
                    medium.execute(&mut io)?;
                    let Io::Read { into, .. } = io else { unreachable!("still a read") };
                    read.copy_value(&into, &mut value)
                })?;
                Ok(Some(value))
            }
        }
    }

    /// Loads the index of the large values of a namespace, if that has any.
    ///
    /// # Errors
    /// As [`Core::load_index`].
    pub fn load_large_values(&mut self, medium: &dyn Medium, namespace: u32) -> Result<(), Error> {
        match self.user_space(namespace)?.versioned.as_ref().and_then(|versioned| versioned.values) {
            Some(values) => self.load_index(medium, values),
            None => Ok(()),
        }
    }

    /// The namespace of the large values of another one, which must be loaded for it.
    pub(crate) fn values_without_index(&self, space: &Namespace) -> Option<u32> {
        let values = space.versioned.as_ref()?.values?;
        self.spaces.get(&values).filter(|space| space.index.is_none()).map(|_| values)
    }

    /// Chunks of the large values of a namespace that versions take which are not the newest of their keys, as far as memory shows.
    pub(crate) fn dead_large_estimate(&self, space: &Namespace) -> u64 {
        let values = space.versioned.as_ref().and_then(|versioned| versioned.values);
        let Some(index) = values.and_then(|values| self.spaces.get(&values)?.index.as_ref()) else { return 0 };
        let mut chunks = 0;
        index.for_each_slot(|slot| chunks += u64::from(slot.len.chunks_max()));
        let counts = space.with_versions(|versions| {
            let columns = versions.columns();
            (columns.live_estimate(), columns.live_buffered())
        });
        let Some(((sealed, live_sealed), (buffered, live_buffered))) = counts else { return chunks };
        chunks * (sealed - live_sealed + buffered - live_buffered) / (sealed + buffered).max(1)
    }

    /// A large value counts from now on, without the ring: that of a version of a backup.
    pub(crate) fn commit_value(&mut self, namespace: u32, key: Key, to: Slot) {
        let staged = Staged::new(namespace, &key.into(), Some(to), true);
        self.commit(self.log.ring.staging_number(), &staged);
    }

    // --- merges -----------------------------------------------------------------------------------------------------

    /// A merge of a namespace begins with its first row: values without a version are those that no row claims.
    pub(crate) fn list_values(&mut self, namespace: u32) {
        let values = self.versioned_mut(namespace).values;
        let mut numbers = BTreeSet::new();
        if let Some(space) = values.and_then(|values| self.spaces.get(&values)) {
            let index = space.shared.index.read().expect("no panics under this lock");
            let mut cursor = None;
            while let Some((keys, next)) = index.as_ref().and_then(|index| index.list(cursor, LISTED)) {
                numbers.extend(keys.iter().filter_map(Key::as_u64));
                cursor = next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        self.versioned_mut(namespace).dropped.unclaimed = Some((numbers, 0));
    }

    /// A row is merged. After the last one, what no row has claimed belongs to no version: a crash came between a root and the release.
    pub(crate) fn claim_values(&mut self, namespace: u32, plan: &MergePlan) {
        let Some(rows) = self.spaces.get(&namespace).and_then(|space| Some(space.layout.versions()?.rows)) else {
            return;
        };
        let dropped = &mut self.versioned_mut(namespace).dropped;
        let Some((numbers, next)) = dropped.unclaimed.as_mut().filter(|(_, next)| *next == plan.row) else { return };
        for large in plan.large_values() {
            numbers.remove(&large.number);
        }
        *next += 1;
        if *next == rows
            && let Some((numbers, _)) = dropped.unclaimed.take()
        {
            dropped.ready.extend(numbers);
        }
    }

    /// Versions left segments, or the page buffer: these are their large values.
    pub(crate) fn drop_values(&mut self, namespace: u32, large: &[LargeValue], is_kept: bool) {
        if large.is_empty() {
            return;
        }
        let chunks: u64 = large
            .iter()
            .map(|large| u64::from(self.log.chunks_of(RecordHeader::BYTES_MAX + large.bytes as usize)))
            .sum();
        let enough = self.capacity_chunks() / RELEASED_OF_CAPACITY;
        let dropped = &mut self.versioned_mut(namespace).dropped;
        let list = if is_kept { &mut dropped.in_kept } else { &mut dropped.ready };
        list.extend(large.iter().map(|large| large.number));
        dropped.chunks += chunks;
        if !is_kept && dropped.chunks > enough {
            dropped.chunks = 0;
            self.request_root(false);
        }
    }

    /// No merge continues. Returns the request for the root that releases what it dropped, if anything waits for one.
    pub(crate) fn release_after_merge(&mut self, namespace: u32) -> Option<u64> {
        let versioned = self.spaces.get_mut(&namespace)?.versioned.as_mut()?;
        versioned.dropped.unclaimed = None;
        versioned.dropped.chunks = 0;
        if versioned.dropped.is_empty() || self.is_closing || self.stopped().is_some() {
            return None;
        }
        Some(self.request_root(true))
    }

    /// What a root that is prepared now makes free.
    pub(crate) fn dropped_values(&self) -> Vec<(u32, u64)> {
        let dropped = |(id, space): (u32, &Namespace)| Some((id, space.versioned.as_ref()?.dropped.prepared()?));
        self.version_spaces().filter_map(dropped).collect()
    }

    /// A root is durable that names none of these versions any more: their values are garbage.
    pub(crate) fn release_values(&mut self, prepared: &[(u32, u64)]) {
        if self.is_closing {
            return; // the last root can be on the medium already; the next merge finds them
        }
        for (owner, prepared) in prepared {
            let versioned = self.spaces.get_mut(owner).and_then(|space| space.versioned.as_mut());
            let Some(versioned) = versioned else { continue };
            let (values, numbers) = (versioned.values, versioned.dropped.take_until(*prepared));
            let Some(values) = values else { continue };
            numbers.into_iter().for_each(|number| self.remove_value(values, number));
        }
    }

    fn remove_value(&mut self, namespace: u32, number: u64) {
        let Some(space) = self.spaces.get_mut(&namespace) else { return };
        let Some(index) = &mut space.index else { return }; // the next merge finds that no version has it
        let key = Key::from(number);
        let Some(old) = index.remove(&key.into()) else { return };
        (self.log.table_is_exact, space.dirty) = (false, true);
        self.log.journal.append(&Change::Deleted { namespace, key });
        let block = self.log.block_of(old.at);
        let reclaimed = self.log.blocks.reclaimed_count();
        self.log.blocks.sub_valid(block, old.len.chunks_max());
        self.space.pace.is_deadlocked &= self.log.blocks.reclaimed_count() == reclaimed;
    }

    /// Whether a namespace of large values is about to be changed by a merge or after it.
    pub(crate) fn values_are_in_use(&self, space: &Namespace) -> bool {
        let owner = space.shared.values_of.and_then(|owner| self.spaces.get(&owner)?.versioned.as_ref());
        let in_use = |versioned: &Versioned| versioned.is_merging || !versioned.dropped.is_empty();
        owner.is_some_and(|versioned| in_use(versioned))
    }
}
