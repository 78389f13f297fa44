//! Records that expire: they leave the index at their time, before anybody looks.
//!
//! Lives here:       noting times, removing what has expired, its replay, when the next record expires.
//! Lives elsewhere:  the times (`expiries`), the clock (`clock`), how readers notice that something is due (`reader`).
//! Implements:       docs/ARCHITECTURE.md "Expiry".
//!
//! Nobody sees a record after its time, because nobody looks at an index in which a record is due: a reader that finds one due enters the core
//! first, which removes it. So everything that looks at indexes is right without knowing of expiry.

use crate::command::Expires;
use crate::core::Core;
use crate::error::{Error, NotForVersions};
use crate::format::journal::Change;
use crate::format::record::{EXPIRES_MAX, RecordHeader};
use crate::layout::Layout;
use crate::namespace::{Namespace, NamespaceShared};
use crate::reader::Reader;
use crate::ring::Staged;
use kaml_flash::ChunkAddr;
use kaml_index::{FullKey, KeptKey, Key, Slot};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Records that a step removes: some hundred microseconds of the core.
const EXPIRED_PER_STEP: usize = 1024;

impl NamespaceShared {
    /// When a record that is put now expires; 0 for never.
    #[inline]
    pub(crate) fn expires_at(&self, expires: Expires, now: impl Fn() -> u64) -> u64 {
        match expires {
            Expires::Never => 0,
            Expires::At(time) if time > EXPIRES_MAX => 0,
            Expires::At(time) => time.max(1),
            Expires::Default => match self.default_ttl_ms.load(Ordering::Relaxed) {
                0 => 0,
                ttl => Some(now().saturating_add(ttl)).filter(|time| *time <= EXPIRES_MAX).unwrap_or(0),
            },
        }
    }
}

impl Reader {
    /// When a record that is put now expires, in milliseconds since 1970; 0 for never. For images of large values.
    ///
    /// # Errors
    /// There is no such namespace.
    pub fn expires_at(&self, namespace: u32, expires: Expires) -> Result<u64, Error> {
        Ok(self.space(namespace)?.expires_at(expires, || self.clock().now_ms()))
    }

    /// Whether records of any namespace expire, or have since the device was opened.
    pub fn has_any_expiry(&self) -> bool {
        self.directory().has_expiry()
    }

    /// Whether records of a namespace expire, or will unless a Put requests something else.
    ///
    /// # Errors
    /// There is no such namespace.
    pub fn has_expiry(&self, namespace: u32) -> Result<bool, Error> {
        if !self.directory().has_expiry() {
            return Ok(false);
        }
        let space = self.space(namespace)?;
        let has_default = space.default_ttl_ms.load(Ordering::Relaxed) != 0;
        Ok(has_default || space.next_expiry.load(Ordering::SeqCst) != u64::MAX)
    }
}

impl Namespace {
    /// The record of a key expires then, or never if that is 0. Returns whether that is new.
    pub(crate) fn set_expiry(&mut self, key: &FullKey<'_>, time: u64) -> bool {
        let is_new = self.expiries.set(key, time);
        if is_new && time != 0 {
            self.shared.next_expiry.fetch_min(time, Ordering::SeqCst);
        }
        is_new
    }

    /// Readers learn when the next record expires.
    pub(crate) fn note_next_expiry(&self) {
        self.shared.next_expiry.store(self.expiries.next().unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// When a record that is put now expires; 0 for never.
    #[inline]
    pub(crate) fn expires_at(&self, expires: Expires, now: impl Fn() -> u64) -> u64 {
        self.shared.expires_at(expires, now)
    }

    /// Whether the record of a key has expired and is still in the index.
    pub(crate) fn is_due(&self, key: &Key, now: impl Fn() -> u64) -> bool {
        let time = self.expiries.of(key);
        time != 0 && time <= now()
    }

    /// Refuses a time of a record that cannot have one.
    pub(crate) fn check_expiry(&self, id: u32, expires: Expires) -> Result<(), Error> {
        match (self.layout, expires) {
            (Layout::Versions(_), Expires::At(_)) => Err(NotForVersions::Expiry(id).into()),
            (Layout::Records(_) | Layout::Blocks(_), _) | (Layout::Versions(_), Expires::Default | Expires::Never) => {
                Ok(())
            }
        }
    }
}

impl Core {
    /// The clock by which records expire. Without a source it is where it was advanced to.
    pub fn clock(&self) -> &Arc<crate::DeviceClock> {
        &self.clock
    }

    /// Whether a key exists after a record that is not committed.
    pub(crate) fn exists_after(&self, staged: &Staged) -> bool {
        staged.to.is_some() && (staged.expires == 0 || staged.expires > self.clock.now_ms())
    }

    /// A record that expires was committed, or one that does not has taken its place.
    pub(crate) fn note_expiry(&mut self, namespace: u32, key: &FullKey<'_>, time: u64) {
        let Some(space) = self.spaces.get_mut(&namespace) else { return };
        if space.set_expiry(key, time) {
            self.log.journal.append_of(key, &Change::Expires { namespace, key: *key.key(), at: time });
            if time != 0 {
                self.next_expiry = self.next_expiry.min(time);
                self.catalog.directory.note_expiry();
            }
        }
    }

    /// When the record of a key expires, in milliseconds since 1970; 0 for never. Nothing if the index is not in memory, or has no such key.
    pub fn expiry_of(&self, namespace: u32, key: &FullKey<'_>) -> Option<u64> {
        let space = self.spaces.get(&namespace)?;
        let key = space.layout.indexed(*key);
        space.index.as_ref()?.get(&key)?;
        Some(space.expiries.of(key.key())).filter(|time| *time == 0 || *time > self.clock.now_ms())
    }

    /// When the record in this place expires, if it is in a write buffer; else 0.
    pub(crate) fn expiry_in_buffer(&self, slot: Slot) -> u64 {
        let (block, start) = self.log.geometry.split(ChunkAddr(slot.at));
        let mut head = [0; RecordHeader::BYTES_MAX];
        if !self.log.writers.read(block.0, start, &mut head) {
            return 0;
        }
        let Some(record) = RecordHeader::check(&head) else { return 0 };
        let mut bytes = vec![0; record.page_bytes()];
        let is_whole = self.log.writers.read(block.0, start, &mut bytes);
        let time = record.expires(&bytes[record.header_bytes()..]);
        time.filter(|_| is_whole).unwrap_or(0)
    }

    /// Whether a record has expired in a namespace, loaded or not, that a command is about to look at.
    pub fn has_due(&self, namespace: u32) -> bool {
        let due = |space: &Namespace| space.shared.is_due(&self.clock);
        self.spaces.get(&namespace).is_some_and(due)
    }

    /// A namespace that is not in memory, and in which a record has expired: it is to be loaded before a snapshot is opened.
    pub fn due_without_index(&self) -> Option<u32> {
        let mut due = self.spaces.iter().filter(|(_, space)| !space.is_loaded() && space.shared.is_due(&self.clock));
        due.next().map(|(id, _)| *id)
    }

    /// Whether records have expired that wait for a step of housekeeping.
    #[inline]
    pub(crate) fn expiry_is_due(&self) -> bool {
        self.next_expiry != u64::MAX && !self.is_closing && self.next_expiry <= self.clock.now_ms()
    }

    /// Milliseconds until the next record expires, if one of a namespace in memory does.
    pub fn ms_to_next_expiry(&self) -> Option<u64> {
        (self.next_expiry != u64::MAX).then(|| self.next_expiry.saturating_sub(self.clock.now_ms()))
    }

    /// Removes records that have expired, some of each namespace. Those of an index that is not in memory wait until it is.
    pub(crate) fn step_expiry(&mut self) {
        if !self.expiry_is_due() {
            return;
        }
        let ids: Vec<u32> =
            self.spaces.iter().filter(|(_, s)| s.shared.is_due(&self.clock)).map(|(id, _)| *id).collect();
        for id in ids {
            if self.spaces[&id].is_loaded() {
                self.expire(id, EXPIRED_PER_STEP);
            } else {
                self.want_index(id);
            }
        }
        let loaded = self.spaces.values().filter(|space| space.is_loaded());
        self.next_expiry = loaded.filter_map(|space| space.expiries.next()).min().unwrap_or(u64::MAX);
    }

    /// Removes all records of a namespace that have expired, if its index is in memory.
    pub fn expire_due(&mut self, namespace: u32) {
        while self.expire(namespace, EXPIRED_PER_STEP) {}
    }

    /// Removes everything that has expired in namespaces that are in memory.
    pub(crate) fn expire_all_due(&mut self) {
        if !self.expiry_is_due() {
            return;
        }
        let ids: Vec<u32> = self.spaces.keys().copied().collect();
        ids.into_iter().for_each(|id| self.expire_due(id));
    }

    /// Removes up to `limit` records that have expired. Returns whether there may be more.
    fn expire(&mut self, id: u32, limit: usize) -> bool {
        let now = self.clock.now_ms();
        let Some(space) = self.spaces.get_mut(&id).filter(|space| space.index.is_some()) else { return false };
        let due = space.expiries.take_due(now, limit);
        for (_, key) in &due.keys {
            self.remove_expired(id, key);
        }
        // What is only read has no journal, and finds the same times when it is opened again.
        if self.goes_on() {
            if due.keys.first().is_some_and(|(time, _)| *time <= due.until) {
                self.log.journal.append(&Change::Expired { namespace: id, until: due.until });
            }
            for (_, key) in due.keys.iter().filter(|(time, _)| *time > due.until) {
                let change = Change::Deleted { namespace: id, key: *key.key() };
                self.log.journal.append_of(&key.full(), &change);
            }
        }
        self.log.counters.expired += due.keys.len() as u64;
        let space = &self.spaces[&id];
        space.note_next_expiry();
        due.keys.len() == limit
    }

    fn remove_expired(&mut self, id: u32, key: &KeptKey) {
        let key = key.full();
        let is_kept = self.snapshots.are_open() && self.keep_for_snapshots(id, &key, false);
        let Some(space) = self.spaces.get_mut(&id) else { return };
        let Some(index) = &mut space.index else { return };
        (self.log.table_is_exact, space.dirty) = (false, true);
        if let Some(old) = index.remove(&key).filter(|_| !is_kept) {
            let block = self.log.block_of(old.at);
            let reclaimed = self.log.blocks.reclaimed_count();
            self.log.blocks.sub_valid(block, old.len.chunks_max());
            self.space.pace.is_deadlocked &= self.log.blocks.reclaimed_count() == reclaimed;
        }
    }

    /// A journal entry reports when the record of a key expires.
    pub(crate) fn replay_expiry(&mut self, entry: u64, namespace: u32, key: &FullKey<'_>, time: u64) {
        let Some(space) = self.spaces.get_mut(&namespace).filter(|s| entry >= s.snapshot_entry) else { return };
        if space.index.is_none() || space.layout.check_key(key.key()).is_err() {
            return;
        }
        let key = space.layout.indexed(*key);
        if !space.layout.lacks_bytes_of(&key) {
            space.set_expiry(&key, time);
        }
    }

    /// A journal entry reports that the records which expire up to a time are gone.
    pub(crate) fn replay_expired(&mut self, entry: u64, namespace: u32, until: u64) {
        let Some(space) = self.spaces.get_mut(&namespace).filter(|s| entry >= s.snapshot_entry) else { return };
        let Some(index) = &mut space.index else { return };
        space.dirty = true;
        for (_, key) in space.expiries.take_until(until).keys {
            index.remove(&key.full());
        }
        space.note_next_expiry();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Body, Condition, Op};
    use crate::namespace::NamespaceOptions;
    use kaml_flash::{BlockIndex, Completion, Io, Medium};

    /// Goal:   salvage finds the times of records in their pages.
    /// Method: a device without the image of its index, whose records are read from pages, before and after their time.
    #[test]
    fn salvage_knows_the_times() {
        let medium = crate::small::formatted();
        let (mut core, _) = Core::open(&medium).unwrap();
        let namespace = core.create_namespace("n", &NamespaceOptions::default()).unwrap();
        let durable = core.request_root(false);
        core.drive(&medium, |core| core.roots_done() >= durable).unwrap();
        for key in 0..20u64 {
            let body = Body::Value { value: &[7; 600], crc32c: kaml_crc::crc32c(&[7; 600]) };
            let expires = if key % 2 == 0 { Expires::Never } else { Expires::At(3000) };
            let key = Key::from(key).into();
            core.stage(&[Op { namespace, key, body, condition: Condition::Always, expires }]).unwrap();
        }
        let (id, mut io) = core.begin_persist().unwrap();
        let result = medium.execute(&mut io);
        core.complete(Completion { id, io, result });
        let settled = core.request_root(true);
        core.drive(&medium, |core| core.roots_done() >= settled).unwrap();
        let closed = core.request_close();
        core.drive(&medium, |core| core.roots_done() >= closed).unwrap();
        let image = core.root.namespaces[0].snapshot.clone().unwrap();
        drop(core);
        medium.execute(&mut Io::Erase { block: BlockIndex(image.runs[0].block), release: false }).unwrap();
        let (mut core, report) = Core::salvage(&medium, &mut |_, _| {}).unwrap();
        assert!(!report.rebuilt.is_empty(), "{report:?}");
        assert_eq!((core.namespaces()[0].record_count, core.namespaces()[0].expiring_count), (20, 10));
        core.clock().advance_to(3000);
        core.expire_due(namespace);
        assert_eq!(core.namespaces()[0].record_count, 10);
    }
}
