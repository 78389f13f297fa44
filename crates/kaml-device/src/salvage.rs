//! Opening a damaged device for what can still be read of it.
//!
//! Lives here:       doing without metadata that cannot be read, finding records by the contents of pages.
//! Lives elsewhere:  opening a device in order (`recovery`), keeping the medium untouched (`kaml_flash::Overlay`).
//! Implements:       paper:KAML IV.D (a scan of the pages rebuilds the mapping tables).
//!
//! Steps: take a root, or the mirror of one → leave out what is damaged of block table, journal and snapshots → open as after a crash → where anything was left
//! out, take of each key the newest record that any page holds.

use crate::audit::BlockAudit;
use crate::core::{Core, code};
use crate::error::Error;
use crate::error::RootError;
use crate::format::journal::{self, Change};
use crate::format::record::DIRECT_BYTES;
use crate::format::root::{NamespaceRoot, Root, Run};
use crate::index::IndexWriter;
use crate::layout::Layout;
use crate::metadata::{FoundRoot, find_root, read_mirror, read_run, read_stream};
use crate::recovery::OpenReport;
use kaml_flash::Medium;
use kaml_index::{FullKey, Key, KeyBuf, Slot};
use std::collections::{BTreeSet, HashMap, HashSet};

/// What salvaging a device came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// What could not be read, one sentence each; empty for a device in order.
    pub problems: Vec<String>,
    /// Ids of namespaces whose records were found by scanning pages. Some deleted records may be back.
    pub rebuilt: Vec<u32>,
    /// Ids and names of namespaces that nothing is left of.
    pub dropped: Vec<(u32, String)>,
}

/// The newest record of a key so far.
#[derive(Clone)]
struct Candidate {
    /// For a large record, that of the last one before its Put began; 0: a large one of an earlier version, which does not know it.
    sequence: u64,
    is_large: bool,
    page_sequence: u64,
    slot: Slot,
    /// As the index needs it.
    key: KeyBuf,
    expires: u64,
}

impl Candidate {
    fn is_newer_than(&self, other: &Candidate) -> bool {
        match self.sequence == 0 || other.sequence == 0 {
            true => self.page_sequence > other.page_sequence,
            false => self.order() > other.order(),
        }
    }

    /// Pages do not show the order of a small record and a large one: the small one may wait in a buffer until the large one is
    /// programmed, or be copied by collection until it is committed.
    fn order(&self) -> (u64, bool, u64) {
        (self.sequence, self.is_large, self.page_sequence)
    }
}

/// What is known before anything is opened.
#[derive(Default)]
struct Damage {
    report: SalvageReport,
    rebuild: BTreeSet<u32>,
    /// Keys whose last change is a delete, as far as the journal can be read to its end.
    deleted: HashSet<(u32, Key)>,
}

impl Core {
    /// Opens a device for reading, doing without metadata that is damaged. The medium is written to, as after a crash: hand
    /// in a [`kaml_flash::Overlay`]. `progress` receives blocks read and blocks in all while pages are scanned.
    ///
    /// Fails if neither a root nor its mirror can be read, or if the ring names places outside the device.
    pub fn salvage(medium: &dyn Medium, progress: &mut dyn FnMut(u64, u64)) -> Result<(Core, SalvageReport), Error> {
        let mut damage = Damage::default();
        let mut root = damage.find_root(medium)?;
        damage.leave_out_block_table(medium, &mut root);
        damage.leave_out_journal_pages(medium, &mut root);
        let mut core = Core::restore(medium, root)?;
        core.salvage = Some(Vec::new());
        core.load_what_can_be(medium, &mut damage)?;
        core.replay_journal(medium)?;
        core.load_versions_that_can_be(medium, &mut damage);
        core.rebuild(medium, &mut damage, progress);
        core.recover_records(medium, &mut OpenReport::default())?;
        core.read_only = true;
        damage.report.problems.extend(core.salvage.take().unwrap_or_default());
        let owner = |id: u32| core.spaces.get(&id).and_then(|space| space.shared.values_of).unwrap_or(id);
        let rebuilt: BTreeSet<u32> = damage.rebuild.into_iter().map(owner).collect();
        damage.report.rebuilt = rebuilt.into_iter().collect();
        Ok((core, damage.report))
    }

    fn load_what_can_be(&mut self, medium: &dyn Medium, damage: &mut Damage) -> Result<(), Error> {
        let ids: Vec<u32> = self.spaces.keys().copied().collect();
        for id in ids {
            let layout = self.spaces[&id].layout;
            let Err(error) = self.load_tables(medium, id) else { continue };
            if matches!(error, Error::NoAddressSpace(_)) {
                return Err(error); // nothing is damaged
            }
            damage.report.problems.push(error.to_string());
            match layout {
                Layout::Versions(_) => self.drop_space(id, damage),
                Layout::Records(_) | Layout::Blocks(_) => {
                    let index = IndexWriter::new(self.index_layout(layout), self.seed(id))?;
                    self.spaces.get_mut(&id).expect("just seen").install(index);
                    damage.rebuild.insert(id);
                }
            }
        }
        Ok(())
    }

    fn load_versions_that_can_be(&mut self, medium: &dyn Medium, damage: &mut Damage) {
        let ids: Vec<u32> = self.version_spaces().map(|(id, _)| id).collect();
        for id in ids {
            if let Err(error) = self.read_versions(medium, id) {
                damage.report.problems.push(error.to_string());
                self.drop_space(id, damage);
            }
        }
    }

    fn drop_space(&mut self, id: u32, damage: &mut Damage) {
        let space = self.spaces.remove(&id).expect("it was loaded");
        self.catalog.directory.remove(id);
        damage.report.dropped.push((id, space.name));
    }

    /// The newest record that is found of each key of the namespaces in question counts.
    fn rebuild(&mut self, medium: &dyn Medium, damage: &mut Damage, progress: &mut dyn FnMut(u64, u64)) {
        if damage.rebuild.is_empty() {
            return;
        }
        let mut newest: HashMap<(u32, Key), Candidate> = HashMap::new();
        let (reader, total) = (self.reader(), self.log.blocks.count());
        // A root of a build without tags may be the older one of a device that has them since: its pages cannot be determined from others.
        let secret = self.root.secret.filter(|secret| secret.covers(self.root.epoch));
        for block in 0..total {
            progress(block.into(), total.into());
            let audit = match &secret {
                Some(secret) => BlockAudit::read_authentic(&reader, medium, block, secret),
                None => BlockAudit::read(&reader, medium, block),
            };
            damage.report.problems.extend(audit.errors().map(|error| error.to_string()));
            for (at, chunks, record, key, [page_sequence, expires]) in audit.records(&self.log.geometry) {
                self.log.sequence = self.log.sequence.max(record.sequence);
                let wanted = damage.rebuild.contains(&record.namespace) && self.takes(record);
                let slot = Slot { at: at.0, len: code(chunks) };
                let takes_len = |core: &Core| {
                    let index = core.spaces[&record.namespace].index.as_ref();
                    index.is_some_and(|index| index.takes_len(slot.len))
                };
                if !wanted || !takes_len(self) || damage.deleted.contains(&(record.namespace, record.key)) {
                    continue;
                }
                let is_large = record.value_len as usize >= DIRECT_BYTES;
                let key = self.spaces[&record.namespace].layout.indexed(key);
                if self.spaces[&record.namespace].layout.lacks_bytes_of(&key) {
                    continue;
                }
                let (sequence, key) = (record.sequence, key.to_buf());
                let found = Candidate { sequence, is_large, page_sequence, slot, key, expires };
                let known = newest.entry((record.namespace, record.key));
                known
                    .and_modify(|known| {
                        if found.is_newer_than(known) {
                            *known = found.clone();
                        }
                    })
                    .or_insert(found);
            }
        }
        progress(total.into(), total.into());
        for ((namespace, digest), Candidate { slot, key, expires, .. }) in newest {
            let space = self.spaces.get_mut(&namespace).expect("looked up before");
            space.dirty = true;
            let key = match key.as_short() {
                Some(_) => digest.into(),
                None => FullKey::long(digest, key.as_bytes()),
            };
            space.index.as_mut().expect("loaded or made").insert(&key, slot);
            space.set_expiry(&key, expires);
        }
    }
}

impl Damage {
    /// A root, or its mirror. A device that loses both slots mostly loses some of the ring, too, after them: what only that knew of can be
    /// found in pages. So can what a newer root knew of that may are in a slot which cannot be read.
    fn find_root(&mut self, medium: &dyn Medium) -> Result<Root, Error> {
        let (root, is_newest) = match find_root(medium).map(FoundRoot::with_doubt) {
            Ok((root, None)) => return Ok(root),
            Ok((root, Some(doubt))) => {
                self.report.problems.push(format!("{doubt}; the root in the other slot is whole"));
                (root, false)
            }
            Err(error @ Error::Root(RootError::Damaged(..))) => {
                let Some(root) = read_mirror(medium)? else { return Err(error) };
                self.report.problems.push(format!("{error}; the root's mirror is whole"));
                (root, true)
            }
            Err(error) => return Err(error),
        };
        if !root.clean || !is_newest {
            let has_index = |space: &&NamespaceRoot| match space.layout {
                Layout::Records(_) | Layout::Blocks(_) => true,
                Layout::Versions(_) => false,
            };
            self.rebuild.extend(root.namespaces.iter().filter(has_index).map(|space| space.id));
        }
        Ok(root)
    }

    fn leave_out_block_table(&mut self, medium: &dyn Medium, root: &mut Root) {
        let Some(stream) = &root.blocks else { return };
        if let Err(error) = read_stream(medium, stream) {
            self.report.problems.push(format!("the block table: {error}"));
            (root.blocks, root.blocks_entry) = (None, 0);
        }
    }

    fn leave_out_journal_pages(&mut self, medium: &dyn Medium, root: &mut Root) {
        let mut whole: Vec<Run> = Vec::new();
        let (mut is_damaged, mut entries_end, mut is_known) = (false, 0, false);
        for run in std::mem::take(&mut root.journal) {
            for page in run.page..run.page + run.page_count {
                let single = Run { block: run.block, page, page_count: 1 };
                let mut changes = None;
                let read = read_run(medium, &single, &mut |_, bytes| changes = journal::check(bytes));
                // After a page that is left out it is not known how many entries are missing.
                let follows = |first| if is_known { first == entries_end } else { first >= entries_end };
                match (read, changes) {
                    (Ok(()), Some((first, changes))) if follows(first) => {
                        self.note(&changes);
                        whole.push(single);
                        (entries_end, is_known) = (first + changes.len() as u64, true);
                    }
                    (read, changes) => {
                        is_known = false;
                        let why = match (read, changes) {
                            (Err(error), _) => error.to_string(),
                            (Ok(()), None) => "its checksum does not match".to_owned(),
                            (Ok(()), Some(_)) => "another page is in its place".to_owned(),
                        };
                        self.report.problems.push(format!("journal page {page} of block {}: {why}", run.block));
                        // What was deleted before may have been put again there.
                        self.deleted.clear();
                        is_damaged = true;
                    }
                }
            }
        }
        root.journal = whole;
        self.note(&journal::changes(&root.journal_tail).unwrap_or_default());
        if !is_damaged {
            return;
        }
        for space in &mut root.namespaces {
            match space.layout {
                // Segments are named by their places in a row, which are right only if no entry is missing.
                Layout::Versions(_) => {
                    self.report.problems.push(format!("namespace {:?} is as of its last checkpoint", space.name));
                    space.snapshot_entry = u64::MAX;
                }
                Layout::Records(_) | Layout::Blocks(_) => drop(self.rebuild.insert(space.id)),
            }
        }
    }

    fn note(&mut self, changes: &[Change]) {
        for change in changes {
            match *change {
                Change::Deleted { namespace, key } => drop(self.deleted.insert((namespace, key))),
                Change::Moved { namespace, key, .. } => drop(self.deleted.remove(&(namespace, key))),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Body, Condition, Op};
    use crate::format::oob::{Oob, PageOob};
    use crate::format::record::{Record, RecordHeader};
    use crate::image::{encode_image, image_bytes};
    use crate::namespace::{NamespaceChange, NamespaceOptions};
    use crate::small;
    use kaml_flash::{AlignedBuf, BlockIndex, Completion, Io, MemoryMedium, PageAddr};
    use kaml_index::KeyKind;
    use std::sync::Arc;

    struct Device {
        core: Core,
        medium: MemoryMedium,
        namespace: u32,
    }

    impl Device {
        /// With a namespace in one log and a record in it that is programmed, so what comes next lies in a block that remains in use.
        fn new() -> Device {
            let medium = small::formatted();
            let core = Core::open(&medium).unwrap().0;
            let mut device = Device { core, medium, namespace: 0 };
            let options = NamespaceOptions::records(KeyKind::U64);
            device.namespace = device.core.create_namespace("n", &options).unwrap();
            device.settle();
            let one_log = NamespaceChange { logs: Some(vec![0]), ..NamespaceChange::default() };
            device.core.set_namespace(device.namespace, &one_log).unwrap();
            device.settle();
            device.put(1000, b"stays");
            device.settle();
            device
        }

        fn settle(&mut self) {
            let request = self.core.request_root(true);
            self.core.drive(&self.medium, |core| core.roots_done() >= request).unwrap();
        }

        fn execute(&mut self, (id, mut io): (u64, Io)) {
            let result = self.medium.execute(&mut io);
            self.core.complete(Completion { id, io, result });
        }

        fn stage(&mut self, key: u64, value: &[u8]) {
            let body = Body::Value { value, crc32c: kaml_crc::crc32c(value) };
            let (namespace, key) = (self.namespace, Key::from(key));
            self.core
                .stage(&[Op {
                    namespace,
                    key: key.into(),
                    body,
                    condition: Condition::Always,
                    expires: Default::default(),
                }])
                .unwrap();
        }

        fn put(&mut self, key: u64, value: &[u8]) {
            self.stage(key, value);
            let write = self.core.begin_persist().unwrap();
            self.execute(write);
        }

        fn put_large(&mut self, key: u64, value: &[u8]) {
            let ticket = self.place_large(key, value);
            self.commit_large(key, ticket);
        }

        /// Programs a large value.
        fn place_large(&mut self, key: u64, value: &[u8]) -> u64 {
            let (namespace, key) = (self.namespace, Key::from(key));
            let buf = AlignedBuf::zeroed(image_bytes(&self.core.log.geometry, key, value.len()));
            let crc = kaml_crc::crc32c(value);
            let image =
                encode_image(&self.core.log.geometry, namespace, key, (value, crc), self.core.last_sequence(), buf);
            let ticket = self.core.place(namespace, key, image).unwrap();
            self.core.drive(&self.medium, |core| core.is_placed(ticket)).unwrap();
            ticket
        }

        fn commit_large(&mut self, key: u64, ticket: u64) {
            let (namespace, key, body) = (self.namespace, Key::from(key), Body::Placed { ticket });
            self.core
                .stage(&[Op {
                    namespace,
                    key: key.into(),
                    body,
                    condition: Condition::Always,
                    expires: Default::default(),
                }])
                .unwrap();
            let write = self.core.begin_persist().unwrap();
            self.execute(write);
        }

        /// Has a block collected, as one in which a program failed is, and waits until what was live has moved.
        fn collect(&mut self, at: u64) {
            let (block, core) = (self.core.log.block_of(at), &mut self.core);
            core.log.writers.abandon(block, &mut core.log.blocks).unwrap();
            let is_over = |core: &Core| !core.log.blocks.has_failing() && !core.collector.is_running();
            core.drive(&self.medium, is_over).unwrap();
        }

        fn reopen(&mut self) {
            self.core = Core::open(&self.medium).unwrap().0;
        }

        /// What salvage finds under a key after the index's image is damaged.
        fn salvaged(mut self, key: u64) -> Option<Vec<u8>> {
            let request = self.core.request_checkpoint();
            self.core.drive(&self.medium, |core| core.roots_done() >= request).unwrap();
            self.settle();
            let snapshot = self.core.spaces[&self.namespace].snapshot.clone().unwrap();
            let block = BlockIndex(snapshot.runs[0].block);
            self.medium.execute(&mut Io::Erase { block, release: false }).unwrap();
            let (core, report) = Core::salvage(&self.medium, &mut |_, _| {}).unwrap();
            assert_eq!(report.rebuilt, [self.namespace], "{report:?}");
            let slot = core.slot(self.namespace, Key::from(key))?;
            let bytes = slot.len.chunks_max() as usize * core.log.geometry.chunk_bytes as usize;
            let mut io = Io::Read { at: kaml_flash::ChunkAddr(slot.at), into: AlignedBuf::zeroed(bytes) };
            self.medium.execute(&mut io).unwrap();
            let Io::Read { into, .. } = io else { unreachable!("still a read") };
            let record = crate::format::record::RecordHeader::check(&into).unwrap();
            assert_eq!(record.key, Key::from(key));
            Some(into[record.stored_range()].to_vec())
        }
    }

    /// Goal:   a record whose Put was not acknowledged before a crash is older than all that are put after it.
    /// Method: several are staged and programmed, and power fails before the ring write is made; another one is put under the key of
    ///         the last; then the index has to be found again from pages.
    #[test]
    fn records_after_a_crash_are_newer() {
        for unanswered in [1, 2, 50] {
            let mut device = Device::new();
            (0..unanswered).for_each(|_| device.stage(1, b"never acknowledged"));
            device.core.request_root(true);
            let mut started = Vec::new();
            device.core.poll(0, &mut started);
            let programs = started.iter_mut().map(|(_, io)| io).filter(|io| matches!(io, Io::Program { .. }));
            assert!(programs.map(|io| device.medium.execute(io).unwrap()).count() > 0);
            device.reopen();
            device.put(1, b"answered");
            assert_eq!(device.salvaged(1).unwrap(), b"answered", "{unanswered}");
        }
    }

    /// Goal:   a large value is newer than a small one that was put before it, also if opening found both in the ring.
    /// Method: both under one key, and a crash; then the index has to be found again from pages.
    #[test]
    fn large_values_in_the_ring_are_newer_than_small_ones_before_them() {
        let mut device = Device::new();
        device.put(1, b"small");
        device.put(2, b"other");
        let large = vec![7; DIRECT_BYTES];
        device.put_large(1, &large);
        device.reopen();
        assert!(device.salvaged(1).unwrap() == large);
    }

    /// Goal:   a small value is newer than a large one that was put before it, also if opening found both in the ring.
    /// Method: as above, the other way round.
    #[test]
    fn small_values_in_the_ring_are_newer_than_large_ones_before_them() {
        let mut device = Device::new();
        device.put_large(1, &vec![7; DIRECT_BYTES]);
        device.put(1, b"small");
        device.reopen();
        assert_eq!(device.salvaged(1).unwrap(), b"small");
    }

    /// Goal:   a large value is newer than a small one that was put before it, whenever the small one's page is programmed.
    /// Method: the small one still waits in its buffer when the large one is in its pages; then the index has to be found again from
    ///         pages.
    #[test]
    fn large_values_are_newer_than_small_ones_that_wait_in_buffers() {
        let mut device = Device::new();
        device.put(1, b"small");
        let large = vec![7; DIRECT_BYTES];
        device.put_large(1, &large);
        assert!(device.salvaged(1).unwrap() == large);
    }

    /// Goal:   the same during collection, which may copy the small one while the large one is in its pages, but not committed.
    /// Method: the small one's block is collected between the phases of the Put, and after it.
    #[test]
    fn large_values_are_newer_than_copies_of_small_ones() {
        for collected_before_commit in [true, false] {
            let mut device = Device::new();
            device.put(1, b"small");
            device.settle();
            let small = device.core.slot(device.namespace, Key::from(1)).unwrap();
            let large = vec![7; DIRECT_BYTES];
            let ticket = device.place_large(1, &large);
            if collected_before_commit {
                device.collect(small.at);
                assert_ne!(device.core.slot(device.namespace, Key::from(1)).unwrap(), small, "copied");
            }
            device.commit_large(1, ticket);
            if !collected_before_commit {
                device.collect(small.at);
            }
            assert!(device.salvaged(1).unwrap() == large, "before: {collected_before_commit}");
        }
    }

    /// The block of a key's record: data and entries of its programmed pages.
    fn block_of(device: &Device, key: u64) -> (BlockIndex, AlignedBuf, Vec<u8>) {
        let slot = device.core.slot(device.namespace, Key::from(key)).unwrap();
        let block = device.core.log.block_of(slot.at);
        let geometry = &device.core.log.geometry;
        let pages = device.core.gate().programmed_chunks(block) / geometry.chunks_per_page();
        let at = geometry.chunk_at(BlockIndex(block), 0);
        let mut io = Io::Read { at, into: AlignedBuf::zeroed((pages * geometry.page_bytes) as usize) };
        device.medium.execute(&mut io).unwrap();
        let Io::Read { into: data, .. } = io else { unreachable!("still a read") };
        let at = PageAddr { block: BlockIndex(block), page: 0 };
        let mut io = Io::ReadOob { at, into: AlignedBuf::zeroed((pages * geometry.oob_bytes) as usize) };
        device.medium.execute(&mut io).unwrap();
        let Io::ReadOob { into: oob, .. } = io else { unreachable!("still an OOB read") };
        (BlockIndex(block), data, oob.to_vec())
    }

    fn program_again(device: &Device, block: BlockIndex, data: AlignedBuf, oob: Vec<u8>) {
        device.medium.execute(&mut Io::Erase { block, release: false }).unwrap();
        let at = PageAddr { block, page: 0 };
        device.medium.execute(&mut Io::Program { at, data: Arc::new(data), oob, urgent: false }).unwrap();
    }

    /// Goal:   bytes of a value that look like a record are not taken for one, though an entry of an earlier life of the block, which an
    ///         erase left behind, reports that a record begins there.
    /// Method: in a page with many small records another key's record is put where one of them began, with a larger sequence; the entry
    ///         is kept, or is one as builds without tags wrote it.
    #[test]
    fn values_are_not_taken_for_records() {
        for is_untagged in [false, true] {
            let mut device = Device::new();
            device.put(1, b"true");
            device.settle();
            (10..40).for_each(|key| device.put(key, &[7; 100]));
            device.settle();
            let (block, mut data, mut oob) = block_of(&device, 20);
            let start = device.core.slot(device.namespace, Key::from(20)).unwrap().at;
            let at = device.core.log.geometry.split(kaml_flash::ChunkAddr(start)).1 as usize * 64;
            let forged = Record {
                value_len: 6,
                value_crc: kaml_crc::crc32c(b"forged"),
                sequence: 1 << 40,
                ..record(&data[at..])
            };
            let forged = Record { key: Key::from(1), ..forged };
            let header = RecordHeader::encode(&forged);
            data[at..][..header.len()].copy_from_slice(&header);
            data[at + header.len()..][..6].copy_from_slice(b"forged");
            if is_untagged {
                untag(&mut oob[at / 4096 * 32..][..32]);
            }
            program_again(&device, block, data, oob);
            assert_eq!(device.salvaged(1).unwrap(), b"true", "untagged: {is_untagged}");
        }
    }

    /// Goal:   pages of builds without tags can be salvaged, also after builds with tags have used the device.
    /// Method: entries and root as they were; the device is opened again.
    #[test]
    fn pages_of_older_builds_are_salvaged() {
        let mut device = Device::new();
        device.put(1, b"old");
        device.settle();
        let (block, data, mut oob) = block_of(&device, 1);
        oob.chunks_mut(32).for_each(untag);
        program_again(&device, block, data, oob);
        let root = Root { secret: None, ..device.core.root.clone() };
        let mut bytes = root.encode(device.medium.uuid());
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        for slot in 0..2 {
            let mut data = AlignedBuf::zeroed(bytes.len());
            data.copy_from_slice(&bytes);
            device.medium.execute(&mut Io::WriteRoot { slot, data }).unwrap();
        }
        device.reopen();
        device.put(2, b"new");
        device.settle();
        assert_eq!(device.salvaged(1).unwrap(), b"old");
    }

    fn record(bytes: &[u8]) -> Record {
        RecordHeader::check(bytes).unwrap()
    }

    /// Makes an entry one of a build without tags.
    fn untag(entry: &mut [u8]) {
        let oob = PageOob::check(entry).unwrap();
        PageOob::encode(&Oob { tag: None, ..oob }, entry);
    }
}
