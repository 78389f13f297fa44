//! Opening a device: after a clean close at once, after a crash by replaying the journal and the ring.
//!
//! Lives here:       formatting, the steps of opening.
//! Lives elsewhere:  what is written so that this works (`roots`, `checkpoint`, `ring`), reading it (`metadata`, `loading`).
//! Implements:       docs/ARCHITECTURE.md "Opening after a crash"; docs/formats/root.md.
//!
//! Steps: read roots → block table → (clean: done) → indexes → journal from each snapshot's entry → count live
//! records → ring from the root's tail: records are placed again → one root that starts a new epoch.

use crate::blocks::BlockTable;
use crate::core::{Core, code};
use crate::error::Error;
use crate::first_root::{
    check_runs, check_unused, first_sequence, restore_blocks, root_to_go_on_from, with_secret, write_root,
};
use crate::format::journal::{self, Change, LongKey};
use crate::format::oob::{Extent, Oob, entries_of_block, extents};
use crate::format::range::KeyRange;
use crate::format::record::{MAPPING_BYTES, Record, RecordHeader, RecordKind};
use crate::format::root::Root;
use crate::journal::{Journal, JournalRun};
use crate::layout::Layout;
use crate::lifetime::Class;
use crate::metadata::READS_MAX;
use crate::metadata::{read_journal, read_root, read_stream};
use crate::namespace::{Namespace, NamespaceInfo};
use crate::ring::{PERSISTS_IN_FLIGHT_MAX, sequences_ahead_max};
use crate::ring_scan::{Gaps, RingScan};
use crate::secret::{Sealer, Secret};
use crate::space::Purpose;
use crate::versioned::Again;
use kaml_flash::{AlignedBuf, ChunkAddr, Completion, Io, Medium, MediumError, PageAddr};
use kaml_index::{FullKey, Slot};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// The device was closed cleanly.
    pub clean: bool,
    /// Journal entries replayed.
    pub journal_entries: u64,
    /// Ring frames replayed.
    pub ring_frames: u64,
    /// Records in them.
    pub ring_records: u64,
}

impl Core {
    /// Makes an empty device of a medium that was just created.
    pub fn format(medium: &dyn Medium) -> Result<(), Error> {
        let root = Root { generation: 1, clean: true, next_namespace: 1, next_sequence: 1, ..Root::default() };
        write_root(medium, &root)
    }

    /// Opens a device in a laboratory: as [`Core::open_with`], but nothing is drawn at random, so it does the same each time. The
    /// tag that distinguishes metadata from values then follows from the device's UUID, which tenants can know.
    pub fn open(medium: &dyn Medium) -> Result<(Core, OpenReport), Error> {
        Core::open_with(medium, &mut || 0)
    }

    /// Opens a device. `draw` returns numbers that nobody can foretell; a device without a secret draws one.
    pub fn open_with(medium: &dyn Medium, draw: &mut dyn FnMut() -> u64) -> Result<(Core, OpenReport), Error> {
        let root = with_secret(medium, root_to_go_on_from(medium)?, draw);
        let mut core = Core::restore(medium, root)?;
        let mut report = OpenReport { clean: core.root.clean, ..OpenReport::default() };
        if report.clean {
            check_unused(medium, &core.root)?;
            // Only erases can have been journaled since the block table was written.
            core.replay_journal(medium)?;
            core.log.blocks.finish_restore();
            core.log.ring.epoch += 1;
            core.root.generation += 1;
            core.root.epoch = core.log.ring.epoch;
            core.root.clean = false;
            write_root(medium, &core.root)?;
        } else {
            core.recover(medium, &mut report)?;
        }
        Ok((core, report))
    }

    /// Opens a device without one of its namespaces: it is gone, with everything in it. Nothing of it is read, so one that is
    /// damaged does not keep the others from being opened after a crash. Returns also what it was. `draw` is as in [`Core::open_with`].
    pub fn open_without(
        medium: &dyn Medium,
        name: &str,
        draw: &mut dyn FnMut() -> u64,
    ) -> Result<(Core, OpenReport, NamespaceInfo), Error> {
        let mut root = with_secret(medium, root_to_go_on_from(medium)?, draw);
        let found = root.namespaces.iter().position(|space| space.name == name && space.values_of.is_none());
        let gone = root.namespaces.remove(found.ok_or_else(|| Error::UnknownNamespaceName(name.to_owned()))?);
        root.namespaces.retain(|space| space.values_of != Some(gone.id));
        root.clean = false; // what the block table counts as live includes it
        let mut core = Core::restore(medium, root)?;
        let mut report = OpenReport::default();
        core.recover(medium, &mut report)?;
        Ok((core, report, Namespace::restore(&gone).info(gone.id)))
    }

    /// Opens a device for reading. If it was not closed cleanly ([`Core::was_closed`]), recovery writes: hand in a
    /// [`kaml_flash::Overlay`]. In its memory bad blocks are as good as others, so worn-out flash can be read.
    pub fn open_to_read(medium: &dyn Medium) -> Result<(Core, OpenReport), Error> {
        let root = read_root(medium)?;
        let mut core = Core::restore(medium, root)?;
        let mut report = OpenReport { clean: core.root.clean, ..OpenReport::default() };
        core.log.blocks.use_bad_blocks();
        match report.clean {
            true => {
                check_unused(medium, &core.root)?;
                core.log.blocks.finish_restore();
            }
            false => core.recover(medium, &mut report)?,
        }
        core.read_only = true;
        Ok((core, report))
    }

    /// Whether nothing has been written since the device was closed.
    pub fn was_closed(medium: &dyn Medium) -> Result<bool, Error> {
        Ok(read_root(medium)?.clean)
    }

    /// The firmware as the root describes it, indexes not loaded.
    pub(crate) fn restore(medium: &dyn Medium, mut root: Root) -> Result<Core, Error> {
        let geometry = medium.geometry().clone();
        // Opening for reading writes to memory only.
        let secret =
            *root.secret.get_or_insert_with(|| Secret::draw(medium.uuid(), root.epoch.saturating_add(1), &mut || 0));
        if !root.clean {
            // Records that never were acknowledged may are in pages, with sequences that neither root nor ring reports.
            root.next_sequence = root.next_sequence.saturating_add(sequences_ahead_max(&geometry));
        }
        let mut blocks = BlockTable::new(&geometry);
        check_runs(&root, &geometry)?;
        if let Some(stream) = &root.blocks {
            restore_blocks(&mut blocks, &read_stream(medium, stream)?, root.clean)?;
        }
        let streams = root.namespaces.iter().flat_map(|n| n.streams()).chain(&root.blocks);
        for run in streams.flat_map(|s| &s.runs).chain(&root.journal) {
            blocks.restore_holds(run.block, run.page_count);
        }
        let spaces: BTreeMap<u32, Namespace> = root.namespaces.iter().map(|n| (n.id, Namespace::restore(n))).collect();
        let runs = root.journal.iter().map(|run| JournalRun { run: *run, entries_end: root.journal_entries_end });
        let journal = Journal::new(geometry.page_bytes, root.journal_entries_end, runs.collect());
        let mut core = Core::assemble(geometry, medium.uuid(), blocks, journal, root, secret.sealer());
        core.grow_up_to(medium.grows_up_to().and_then(|bytes| medium.blocks_in(bytes)).unwrap_or(0));
        for (id, space) in &spaces {
            core.catalog.directory.insert(*id, space.shared.clone());
            core.catalog.directory.any_packing.note(space.shared.packing.method());
            if space.may_expire() {
                core.catalog.directory.note_expiry();
            }
        }
        let next = spaces.values().map(|space| space.shared.next_expiry.load(Ordering::SeqCst)).min();
        core.next_expiry = next.unwrap_or(u64::MAX);
        core.spaces = spaces;
        core.link_values();
        let keeps_versions = core.version_spaces().next().is_some();
        core.catalog.keeps_versions = keeps_versions;
        // Later openings program later pages: the order of page sequences holds over all of them.
        core.log.writers.sequence = first_sequence(core.root.epoch.saturating_add(1));
        core.log.blocks.set_age(core.log.writers.sequence, core.log.sequence);
        core.log.ring.begin_versions(core.log.sequence);
        core.update_sizes();
        Ok(core)
    }

    fn recover(&mut self, medium: &dyn Medium, report: &mut OpenReport) -> Result<(), Error> {
        let ids: Vec<u32> = self.spaces.keys().copied().collect();
        for id in ids {
            self.load_tables(medium, id)?;
        }
        report.journal_entries = self.replay_journal(medium)?;
        let versioned: Vec<u32> = self.version_spaces().map(|(id, _)| id).collect();
        for id in &versioned {
            self.read_versions(medium, *id)?;
        }
        self.recover_records(medium, report)
    }

    /// Loads what finds the records of a namespace, as of the last checkpoint.
    pub(crate) fn load_tables(&mut self, medium: &dyn Medium, id: u32) -> Result<(), Error> {
        match self.spaces[&id].layout {
            Layout::Versions(_) => self.load_directory(medium, id),
            Layout::Records(_) | Layout::Blocks(_) => self.load_image(medium, id),
        }
    }

    /// What the ring has beyond index and journal, and a root that starts a new life.
    pub(crate) fn recover_records(&mut self, medium: &dyn Medium, report: &mut OpenReport) -> Result<(), Error> {
        self.count_live();
        self.replay_ring(medium, report)?;
        let request = self.request_root(true);
        self.drive(medium, |core| core.roots_done() >= request)
    }

    pub(crate) fn replay_journal(&mut self, medium: &dyn Medium) -> Result<u64, Error> {
        let page_bytes = self.log.geometry.page_bytes as usize;
        let mut runs = Vec::new();
        let (mut count, mut next) = (0, None);
        let mut long = LongKey::default();
        for run in self.root.journal.clone() {
            let mut entries_end = 0;
            for (first, changes) in read_journal(medium, &run)? {
                self.check_follows(&mut next, first, changes.len())?;
                count += changes.len() as u64;
                entries_end = first + changes.len() as u64;
                self.replay_page(first, &changes, &mut long);
            }
            runs.push(JournalRun { run, entries_end });
        }
        let tail = journal::changes(&self.root.journal_tail);
        let tail = tail.ok_or_else(|| Error::MetadataDamaged("journal entries in the root".to_owned()))?;
        let first = self.root.journal_entries_end.checked_sub(tail.len() as u64);
        let first = first.ok_or_else(|| Error::MetadataDamaged("more journal entries than there are".to_owned()))?;
        self.check_follows(&mut next, first, 0)?;
        self.log.journal = Journal::new(page_bytes as u32, first, runs);
        self.replay_page(first, &tail, &mut long);
        tail.iter().for_each(|change| self.log.journal.append(change));
        Ok(count + tail.len() as u64)
    }

    /// Refuses a page whose entries are not those after the last one's: an older page is in its place, because a write was lost. A caller that
    /// salvages has left pages out.
    fn check_follows(&self, next: &mut Option<u64>, first: u64, count: usize) -> Result<(), Error> {
        match next.replace(first + count as u64).filter(|next| *next != first && self.salvage.is_none()) {
            Some(next) => Err(Error::MetadataDamaged(format!("journal entry {next} is not where {first} follows"))),
            None => Ok(()),
        }
    }

    fn replay_page(&mut self, first: u64, changes: &[Change], long: &mut LongKey) {
        for change in changes {
            if let Change::Moved { namespace, key, .. } | Change::Deleted { namespace, key } = change
                && let Some(index) = self.spaces.get(namespace).and_then(|s| s.index.as_ref())
            {
                index.prefetch(&key.into());
            }
        }
        let chunk_count = self.log.geometry.chunk_count();
        for (entry, change) in (first..).zip(changes) {
            match *change {
                Change::KeyBytes { namespace, from, len, bytes } => {
                    long.add(namespace, from, len, &bytes);
                    continue;
                }
                Change::Moved { namespace, key, to } if to.at < chunk_count => {
                    self.replay(entry, namespace, &long.of(namespace, key), Some(to));
                }
                Change::Deleted { namespace, key } => self.replay(entry, namespace, &long.of(namespace, key), None),
                Change::Expires { namespace, key, at } => {
                    self.replay_expiry(entry, namespace, &long.of(namespace, key), at);
                }
                Change::Expired { namespace, until } => self.replay_expired(entry, namespace, until),
                Change::RangeDeleted { namespace } => self.replay_range(entry, namespace, long.range(namespace)),
                Change::Block { block, erase_count, bad } if block < self.log.blocks.count() => {
                    if entry >= self.root.blocks_entry {
                        self.log.blocks.restore(block, erase_count, bad);
                    }
                }
                Change::SegmentIn { .. } | Change::SegmentsOut { .. } | Change::Versions { .. } => {
                    self.replay_versions(entry, change);
                }
                Change::Moved { .. } | Change::Block { .. } => {
                    tracing::warn!(?change, "a journal entry outside the device is ignored");
                }
            }
            long.clear();
        }
    }

    fn replay(&mut self, entry: u64, namespace: u32, key: &FullKey<'_>, to: Option<Slot>) {
        let Some(space) = self.spaces.get_mut(&namespace).filter(|s| entry >= s.snapshot_entry) else { return };
        let Some(index) = space.index.as_mut().filter(|_| space.layout.check_key(key.key()).is_ok()) else { return };
        if to.is_some_and(|to| !index.takes_len(to.len)) {
            tracing::warn!(namespace, %key, "a journal entry of a length that no unit has is ignored");
            return;
        }
        let key = &space.layout.indexed(*key);
        if space.layout.lacks_bytes_of(key) {
            tracing::warn!(namespace, %key, "a journal entry whose key is missing is ignored");
            return;
        }
        space.dirty = true;
        match to {
            Some(to) => index.insert(key, to),
            None => {
                space.expiries.set(key, 0);
                index.remove(key)
            }
        };
    }

    fn count_live(&mut self) {
        let mut chunks = vec![0; self.log.blocks.count() as usize];
        self.spaces.values().for_each(|space| space.count_chunks(&self.log.geometry, &mut chunks));
        (0..).zip(chunks).for_each(|(block, chunks)| self.log.blocks.restore_valid(block, chunks));
        self.log.blocks.finish_restore();
    }

    fn replay_ring(&mut self, medium: &dyn Medium, report: &mut OpenReport) -> Result<(), Error> {
        let epoch = self.root.epoch;
        // Roots made meanwhile must still send the next opening to these frames.
        self.recovering = Some((epoch, self.root.ring_tail));
        let end = self.ring_end(medium, epoch)?;
        // Records that are in their pages already must not be taken for free space while others are placed again.
        let gaps = if self.salvage.is_some() { Gaps::Skipped } else { Gaps::End };
        let mut scan = self.scan_ring(medium, gaps);
        // Large records of earlier versions do not know their sequence: salvage takes the one that was programmed last. Small ones
        // in front of them in the ring would be programmed after them, if they were placed again.
        let mut last_mapped = HashMap::new();
        while let Some((frame, payload)) = scan.next()?.filter(|(frame, _)| frame.lsn < end) {
            let records = frame.records(&payload).expect("checked by the scan");
            for (i, (record, body)) in records.iter().enumerate().filter(|(_, (r, _))| r.kind.is_mapping()) {
                if !self.takes(record) {
                    continue;
                }
                let block = self.log.block_of(self.mapped_at(record, body)?);
                self.log.blocks.hold_mapped(block);
                self.log.blocks.set_mapping_frame(block, self.log.ring.staging_number());
                last_mapped.insert((record.namespace, record.key), (frame.lsn, i));
            }
            scan.accept(&frame);
        }
        let mut again: BTreeMap<u32, Vec<Again>> = BTreeMap::new();
        let mut scan = self.scan_ring(medium, gaps);
        while let Some((frame, payload)) = scan.next()?.filter(|(frame, _)| frame.lsn < end) {
            let records = frame.records(&payload).expect("checked by the scan");
            report.ring_frames += 1;
            for (i, (record, body)) in records.into_iter().enumerate() {
                report.ring_records += 1;
                let mapped = last_mapped.get(&(record.namespace, record.key));
                if record.kind.is_value() && mapped.is_some_and(|mapped| (frame.lsn, i) < *mapped) {
                    continue;
                }
                if record.kind.is_versioned() {
                    self.log.sequence = self.log.sequence.max(record.sequence);
                    let known = self.takes(&record).then(|| Again::of_ring(&record, body)).flatten();
                    again.entry(record.namespace).or_default().extend(known);
                } else {
                    self.replay_record(medium, &record, body)?;
                    self.keep_pace(medium)?;
                }
            }
            scan.accept(&frame);
        }
        if let Some(problems) = &mut self.salvage {
            problems.extend(scan.skipped.iter().map(|what| format!("{what}: Puts are missing")));
        }
        self.replay_versions_of_ring(medium, again)?;
        // A root begun meanwhile was prepared for the old tail; the one that gives the frames up comes after it and
        // settles what was placed.
        self.drive(medium, Core::root_is_idle)?;
        let sealer = self.sealer();
        self.log.ring = crate::ring::CommitRing::new(&self.log.geometry, self.log.uuid, sealer, epoch + 1, scan.end);
        self.log.ring.begin_versions(self.log.sequence);
        self.recovering = None;
        // The first root from here on names the new epoch, so it may also release what only the old frames name.
        self.log.blocks.forget_mapping_frames();
        Ok(())
    }

    /// The frames that the present root sends an opening to.
    fn scan_ring<'a>(&self, medium: &'a dyn Medium, gaps: Gaps) -> RingScan<'a> {
        RingScan::new(medium, self.root.secret.as_ref(), self.root.epoch, self.root.ring_tail, gaps)
    }

    fn sealer(&self) -> Sealer {
        self.root.secret.expect("drawn when the device was opened").sealer()
    }

    /// Versions in the ring go into the page buffers again, where kept ones are, and all of these are kept: the ring is about to be given
    /// up.
    fn replay_versions_of_ring(
        &mut self,
        medium: &dyn Medium,
        mut again: BTreeMap<u32, Vec<Again>>,
    ) -> Result<(), Error> {
        let ids: Vec<u32> = self.version_spaces().map(|(id, _)| id).collect();
        for id in ids {
            self.do_again(medium, id, again.remove(&id).unwrap_or_default())?;
        }
        self.sealing.keep_until = Some(self.log.sequence);
        self.drive(medium, |core| !core.keeps_are_pending())
    }

    /// Where the frames that count end. The frames in flight when power failed are the last three at most. Such a ring
    /// write may be whole while pages that it relies on are not: such a frame was not acknowledged. One that was committed when
    /// another was begun was: what its pages lack is damage, which a Get reports.
    fn ring_end(&self, medium: &dyn Medium, epoch: u64) -> Result<u64, Error> {
        let gaps = if self.salvage.is_some() { Gaps::Skipped } else { Gaps::Refused };
        let mut scan = self.scan_ring(medium, gaps);
        let mut last: VecDeque<(u64, Vec<(Record, u64)>)> = VecDeque::new();
        let mut committed_end = 0;
        while let Some((frame, payload)) = scan.next()? {
            let records = frame.records(&payload).expect("checked by the scan");
            let mappings = records.iter().filter(|(r, _)| r.kind.is_mapping() && self.takes(r));
            let mappings =
                mappings.map(|(r, body)| Ok((*r, self.mapped_at(r, body)?))).collect::<Result<_, Error>>()?;
            last.push_back((frame.lsn, mappings));
            if last.len() > PERSISTS_IN_FLIGHT_MAX {
                last.pop_front();
            }
            committed_end = frame.committed_end;
            scan.accept(&frame);
        }
        let mut doubtful = last.iter().filter(|(lsn, _)| *lsn >= committed_end);
        let broken =
            doubtful.find(|(_, mappings)| !mappings.iter().all(|(r, at)| self.is_in_place(medium, epoch, r, *at)));
        Ok(broken.map_or(u64::MAX, |(lsn, _)| *lsn))
    }

    /// Whether the pages that a mapping record names hold its record, data and OOB. What a power cut left reads the same every
    /// time; a bit that flipped on its way does not, and must not take a frame back that was acknowledged. What cannot be read may
    /// have been acknowledged, too, and a Get returns it; one failed read among others decides nothing.
    fn is_in_place(&self, medium: &dyn Medium, epoch: u64, record: &Record, at: u64) -> bool {
        let (mut wrong, mut failed) = (0, 0);
        while wrong < READS_MAX && failed < READS_MAX {
            match self.reads_in_place(medium, epoch, record, at) {
                Ok(true) => return true,
                Ok(false) => wrong += 1,
                Err(_) => failed += 1,
            }
        }
        wrong < READS_MAX
    }

    /// As [`Core::is_in_place`], by one read.
    fn reads_in_place(&self, medium: &dyn Medium, epoch: u64, record: &Record, at: u64) -> Result<bool, MediumError> {
        let bytes = record.named_bytes();
        let chunks = self.log.chunks_of(bytes);
        let (block, start) = self.log.geometry.split(ChunkAddr(at));
        let per_page = self.log.geometry.chunks_per_page();
        if start + chunks > self.log.geometry.chunks_per_block() || !start.is_multiple_of(per_page) {
            return Ok(false);
        }
        let mut io = Io::Read { at: ChunkAddr(at), into: AlignedBuf::zeroed(bytes) };
        medium.execute(&mut io)?;
        let Io::Read { into, .. } = io else { unreachable!("still a read") };
        let found = RecordHeader::check(&into);
        let same = |r: &Record| (r.namespace, r.key, r.value_crc) == (record.namespace, record.key, record.value_crc);
        let is_whole = |r: &Record| kaml_crc::crc32c(&into[r.header_bytes()..]) == record.value_crc;
        if !found.is_some_and(|r| same(&r) && r.page_bytes() == bytes && is_whole(&r)) {
            return Ok(false);
        }
        // As collection will read them: an entry that an erase left behind looks like the one that is missing, but for its sequence.
        let oob_bytes = self.log.geometry.oob_bytes as usize;
        let (first, end) = ((start / per_page) as usize, (start + chunks).div_ceil(per_page) as usize);
        let mut io = Io::ReadOob { at: PageAddr { block, page: 0 }, into: AlignedBuf::zeroed(end * oob_bytes) };
        medium.execute(&mut io)?;
        let Io::ReadOob { into, .. } = io else { unreachable!("still a read") };
        let pages = entries_of_block(&into, oob_bytes);
        let of_this_life = |page: &Option<Oob>| page.is_some_and(|oob| oob.sequence >= first_sequence(epoch));
        Ok(pages[first..].iter().all(of_this_life)
            && extents(&pages, per_page).contains(&Extent { start, chunk_count: chunks }))
    }

    fn replay_record(&mut self, medium: &dyn Medium, record: &Record, body: &[u8]) -> Result<(), Error> {
        self.log.sequence = self.log.sequence.max(record.sequence);
        if !self.takes(record) {
            return Ok(());
        }
        #[cfg(feature = "broken")]
        if record.kind == RecordKind::Tombstone && crate::Broken::LosesTombstones.is() {
            return Ok(());
        }
        if record.kind == RecordKind::RangeTombstone {
            let range = KeyRange::decode(body);
            let range = range.ok_or_else(|| Error::MetadataDamaged("a range of keys in the ring".to_owned()))?;
            self.commit_range(record.namespace, &range);
            return Ok(());
        }
        let key = record.full_key(body).map(|key| self.spaces[&record.namespace].layout.indexed(key));
        let to = match record.kind {
            RecordKind::Version
            | RecordKind::VersionTombstone
            | RecordKind::VersionCommand
            | RecordKind::LargeVersion
            | RecordKind::RangeTombstone => return Ok(()),
            RecordKind::Tombstone => None,
            RecordKind::Value | RecordKind::Expiring => Some(self.place_again(medium, record, body)?),
            RecordKind::Mapping | RecordKind::ExpiringMapping => {
                let at = self.mapped_at(record, body)?;
                Some(Slot { at, len: code(self.log.chunks_of(record.named_bytes())) })
            }
        };
        let key = key.unwrap_or(record.key.into());
        if self.spaces[&record.namespace].layout.lacks_bytes_of(&key) {
            return Err(Error::MetadataDamaged(format!("the ring entry of key {key} lacks its bytes")));
        }
        let expires = record.expires(body);
        let expires = expires.ok_or_else(|| Error::MetadataDamaged(format!("when key {key} expires, in the ring")))?;
        self.apply_replayed(record.namespace, &key, to, expires);
        Ok(())
    }

    /// Lets the journal and roots keep pace with what is placed again: else it could take the blocks that they need.
    fn keep_pace(&mut self, medium: &dyn Medium) -> Result<(), Error> {
        let journal_waits = self.log.journal.wanting_count(self.log.geometry.pages_per_program) > 0;
        match journal_waits || self.blocks_are_wanted() || !self.root_is_idle() {
            true => self.drive_once(medium),
            false => Ok(()),
        }
    }

    /// Whether the namespace of a record exists and takes its key.
    pub(crate) fn takes(&self, record: &Record) -> bool {
        self.spaces.get(&record.namespace).is_some_and(|space| space.layout.takes(record))
    }

    /// Where a mapping record reports that its record lies.
    fn mapped_at(&self, record: &Record, body: &[u8]) -> Result<u64, Error> {
        let at = body.first_chunk::<MAPPING_BYTES>().map(|at| u64::from_le_bytes(*at)).expect("eight bytes");
        let fits = at < self.log.geometry.chunk_count() && u64::from(record.value_len) <= self.value_bytes_max();
        match fits {
            true => Ok(at),
            false => Err(Error::MetadataDamaged(format!("the ring entry of key {} points outside", record.key))),
        }
    }

    fn place_again(&mut self, medium: &dyn Medium, record: &Record, value: &[u8]) -> Result<Slot, Error> {
        let chunks = self.log.chunks_of(record.page_bytes());
        let header = RecordHeader::encode(record);
        let turn = u64::from(self.log.geometry.chunks_per_page()) * 64;
        let log_count = self.log.geometry.die_count();
        let log = self.spaces.get_mut(&record.namespace).expect("checked").next_log(chunks, log_count, turn);
        let floor = self.floor(Purpose::Replay);
        for _ in 0..PLACE_TRIES_MAX {
            let placed = self.log.append(log, Class::Hot, floor, chunks, [&header, value, &[]], None);
            if let Ok(at) = placed {
                self.log.blocks.note_written(self.log.block_of(at.0), record.sequence);
                return Ok(Slot { at: at.0, len: code(chunks) });
            }
            self.drive_once(medium)?;
        }
        Err(self.full_now())
    }

    // --- driving while nobody else does -----------------------------------------------------------------------------

    /// Executes background operations on this thread until `done`.
    pub fn drive(&mut self, medium: &dyn Medium, done: impl Fn(&Core) -> bool) -> Result<(), Error> {
        while !done(self) {
            self.drive_once(medium)?;
        }
        Ok(())
    }

    pub(crate) fn drive_once(&mut self, medium: &dyn Medium) -> Result<(), Error> {
        let mut started = Vec::new();
        self.poll(0, &mut started);
        for (id, mut io) in started {
            let result = medium.execute(&mut io);
            self.complete(Completion { id, io, result });
        }
        if let Some(id) = self.collector.wants_index.take() {
            self.load_index(medium, id)?;
        }
        match (self.stopped(), self.is_waiting_for_space()) {
            (Some(error), _) => Err(error),
            (None, true) => Err(Error::Medium(MediumError::NoSpace { what: "opening the device".into() })),
            (None, false) => Ok(()),
        }
    }
}

/// Rounds of background work after which a record that was committed before the crash counts as not placeable.
pub(crate) const PLACE_TRIES_MAX: u32 = 10_000;

#[cfg(test)]
mod tests;
