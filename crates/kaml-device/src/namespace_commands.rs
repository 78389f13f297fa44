//! The commands that create, change, delete and list namespaces, and that take their indexes out of memory.
//!
//! Lives here:       what is checked of a name, of logs and of options, and what a deleted namespace releases.
//! Lives elsewhere:  the state of a namespace (`namespace`), making a change durable (`roots`).
//! Implements:       paper:KAML Table I (CreateNamespace, DeleteNamespace), IV.C.

use crate::command::StageError;
use crate::core::Core;
use crate::error::Error;
use crate::format::record::NAMESPACE_MAX;
use crate::format::root::{NamespaceRoot, Run};
use crate::index::IndexWriter;
use crate::layout::Layout;
use crate::namespace::{Namespace, NamespaceChange, NamespaceInfo, NamespaceKind, NamespaceOptions, count_chunks};
use crate::packing::values::check_compression;
use crate::superseded::Superseded;
use crate::versioned::merge_policy::MergePolicy;
use crate::versioned::state::Versioned;
use kaml_flash::{BlockIndex, ChunkAddr, Geometry};
use kaml_versions::Versions;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

/// What a namespace takes of a root, but for its name and logs, and with the first runs of its snapshots.
const NAMESPACE_ROOT_BYTES: usize = 256;
/// The part of them that is kept free for images of each existing namespace.
const SNAPSHOT_ROOT_BYTES: usize = 64;
/// Longest namespace name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// What is left of a deleted namespace: nobody can request it any more, and the blocks with its records are kept.
#[must_use = "its space comes back with `Core::finish_deletion`"]
pub struct Deletion {
    index: Option<IndexWriter>,
    versions: Option<Versions>,
    /// Records that only snapshots saw.
    kept: Superseded,
}

/// What a deleted namespace had in each block.
#[derive(Debug)]
#[must_use = "its space comes back with `Core::finish_deletion`"]
pub struct CountedDeletion {
    chunks: Vec<u32>,
}

/// Refuses a time to live of what cannot expire.
fn check_ttl<V>(kind: &NamespaceKind<V>, ttl_ms: Option<NonZeroU64>) -> Result<(), Error> {
    match (kind, ttl_ms) {
        (NamespaceKind::Records(_), _) | (_, None) => Ok(()),
        (NamespaceKind::Versions(..), Some(_)) => {
            Err(Error::BadTimeToLive("versions (merge it with a retention time instead)"))
        }
        (NamespaceKind::Blocks(_), Some(_)) => Err(Error::BadTimeToLive("logical blocks")),
    }
}

impl Deletion {
    /// Counts what the namespace has in each block, and gives the memory of its index back: a tenth of a second for ten million
    /// keys, which nobody need wait for.
    pub fn count(self, geometry: &Geometry) -> CountedDeletion {
        let mut chunks = vec![0; geometry.block_count() as usize];
        count_chunks(self.index.as_ref(), self.versions.as_ref(), geometry, &mut chunks);
        for slot in self.kept.slots() {
            chunks[geometry.split(ChunkAddr(slot.at)).0.0 as usize] += slot.len.chunks_max();
        }
        CountedDeletion { chunks }
    }
}

impl Core {
    /// Creates a namespace. It exists for others, and takes Puts, after a root was committed ([`Core::request_root`]).
    pub fn create_namespace(&mut self, name: &str, options: &NamespaceOptions) -> Result<u32, Error> {
        self.create_with_seed(name, options, None)
    }

    /// As [`Core::create_namespace`]; a versioned namespace places its versions by this seed, as the one that it is restored from did.
    ///
    /// # Errors
    /// As [`Core::create_namespace`].
    pub fn create_with_seed(
        &mut self,
        name: &str,
        options: &NamespaceOptions,
        seed: Option<u64>,
    ) -> Result<u32, Error> {
        self.writable()?;
        let options = &options.resolved()?;
        self.check_name(name)?;
        self.check_logs(&options.logs)?;
        check_ttl(&options.kind, options.default_ttl_ms)?;
        check_compression(&options.kind, options.compression)?;
        let mut layout = match &options.kind {
            NamespaceKind::Records(keys) => Layout::Records(*keys),
            NamespaceKind::Blocks(blocks) => {
                self.check_block_options(blocks)?;
                Layout::Blocks(*blocks)
            }
            NamespaceKind::Versions(keys, versions) => Layout::Versions(self.version_layout(*keys, versions)?),
        };
        if let (Layout::Versions(versions), Some(seed)) = (&mut layout, seed) {
            versions.parameters.seed = seed;
        }
        if let Layout::Versions(versions) = &layout {
            if self.check_room_for_buffer(versions.parameters.buffer_bytes).is_err() {
                self.end_all_snapshots();
            }
            self.check_room_for_buffer(versions.parameters.buffer_bytes)?;
        }
        self.check_room_for_namespace(name.len(), options.logs.len())?;
        let id = self.catalog.next_id;
        if id > NAMESPACE_MAX {
            return Err(Error::NamespaceNumbersUsed);
        }
        let index = match layout {
            Layout::Versions(_) => None,
            Layout::Records(_) | Layout::Blocks(_) => Some(IndexWriter::new(self.index_layout(layout), self.seed(id))?),
        };
        self.catalog.next_id += 1;
        let mut space = Namespace::new(name.to_owned(), layout, options.logs.clone());
        space.snapshot_entry = self.log.journal.next_entry();
        space.set_default_ttl(options.default_ttl_ms);
        space.shared.packing.set_method(options.compression);
        self.catalog.directory.any_packing.note(options.compression);
        if space.may_expire() {
            self.catalog.directory.note_expiry();
        }
        if let Some(index) = index {
            space.install(index);
        }
        if let (Layout::Versions(versions), Some(versioned), NamespaceKind::Versions(_, wanted)) =
            (layout, &mut space.versioned, &options.kind)
        {
            versioned.kept_before = self.log.sequence + 1;
            versioned.merge_when_low = wanted.merge_when_low;
            *space.shared.versions_mut() = Some(Versions::new(versions.parameters).expect("checked"));
            self.catalog.keeps_versions = true;
        }
        self.catalog.unpublished.push(id);
        self.spaces.insert(id, space);
        self.request_root(false); // Puts wait for one
        Ok(id)
    }

    /// Deletes a namespace and everything in it; durable with the next root. Its index must be loaded, unless it is one of those
    /// that are `lost` because that fails. Then all others must be: what none of them points at was its own. While some of these
    /// are lost, too, its records count as live until the last of them is deleted. What is left of the namespace is to be
    /// [counted](Deletion::count), and handed to [`Core::finish_deletion`].
    ///
    /// # Errors
    /// Of a lost one [`StageError::Busy`], while another deletion continues.
    pub fn delete_namespace(&mut self, id: u32, lost: &BTreeSet<u32>) -> Result<Deletion, StageError> {
        self.writable()?;
        let values = self.user_space(id)?.versioned.as_ref().and_then(|versioned| versioned.values);
        let values = self.take_values_of(id, values, lost)?;
        if !self.spaces[&id].is_loaded()
            && let Err(why) = self.give_back_lost(id, lost)
        {
            self.spaces.extend(values);
            return Err(why);
        }
        let values = values.map(|(values, space)| self.forget_space(values, space));
        let mut space = self.spaces.remove(&id).expect("just seen");
        let versions = space.shared.versions_mut().take();
        let kept =
            space.versioned.take().and_then(|versioned| versioned.forget(&mut self.log.blocks, &self.log.geometry));
        let job = self.sealing.keep_job.take_if(|job| job.namespace == id).map(|job| job.out.stream);
        self.root_commit.retire(kept.into_iter().chain(job).flat_map(|stream| stream.runs).collect());
        let (index, kept) = self.forget_space(id, space);
        self.space.deletions += 1;
        // A versioned namespace has no index of its own, and snapshots show nothing of it.
        match values {
            Some((index, kept)) => Ok(Deletion { index, versions, kept }),
            None => Ok(Deletion { index, versions, kept }),
        }
    }

    /// Takes the namespace of the large values of another one out, which is about to be deleted.
    fn take_values_of(
        &mut self,
        id: u32,
        values: Option<u32>,
        lost: &BTreeSet<u32>,
    ) -> Result<Option<(u32, Namespace)>, StageError> {
        let Some(values) = values.filter(|values| self.spaces.contains_key(values)) else { return Ok(None) };
        match (self.spaces[&values].is_loaded(), self.spaces[&id].is_loaded()) {
            (true, _) => {}
            (false, true) => self.give_back_lost(values, lost)?,
            (false, false) if lost.contains(&values) => {}
            (false, false) => return Err(StageError::NeedIndex(values)),
        }
        Ok(self.spaces.remove(&values).map(|space| (values, space)))
    }

    /// What is left of a namespace that is gone: its index, and records that only snapshots saw.
    fn forget_space(&mut self, id: u32, mut space: Namespace) -> (Option<IndexWriter>, Superseded) {
        self.catalog.directory.remove(id);
        self.catalog.image_loads.remove(&id);
        self.catalog.unpublished.retain(|unpublished| *unpublished != id);
        self.collector.wants_index.take_if(|wanted| *wanted == id);
        *space.shared.index.write().expect("no panics under this lock") = None;
        let kept = self.snapshots.forget_space(id, &space.shared);
        self.root_commit.retire(space.snapshot.take().into_iter().flat_map(|stream| stream.runs).collect());
        self.checkpoint.forget(id, &mut self.root_commit);
        (space.index, kept)
    }

    /// What a deleted namespace pointed at is no longer live. Until now the blocks that it lies in were kept.
    pub fn finish_deletion(&mut self, counted: CountedDeletion) {
        self.log.blocks.sub_all_valid(&counted.chunks);
        self.space.pace.is_deadlocked = false; // what it took may be all that was in the way
        self.space.deletions -= 1;
        self.log.table_is_exact = false;
        self.log.blocks.release_stuck();
    }

    /// What a namespace takes whose index cannot be loaded is no longer live.
    fn give_back_lost(&mut self, id: u32, lost: &BTreeSet<u32>) -> Result<(), StageError> {
        let not_loaded = |other: &u32| !self.spaces[other].is_loaded();
        let missing = || self.spaces.keys().copied().filter(not_loaded);
        if let Some(needed) = missing().find(|other| !lost.contains(other)) {
            return Err(StageError::NeedIndex(needed));
        }
        if missing().any(|other| other != id) {
            return Ok(());
        }
        if self.space.deletions > 0 {
            return Err(StageError::Busy); // theirs would be taken for its own
        }
        self.end_all_snapshots(); // what they keep would be taken for its own
        let mut others = vec![0; self.log.blocks.count() as usize];
        self.spaces.values().for_each(|space| space.count_chunks(&self.log.geometry, &mut others));
        let own: Vec<u32> =
            self.log.blocks.iter().zip(others).map(|((_, block), others)| block.valid_chunks - others).collect();
        self.log.blocks.sub_all_valid(&own);
        Ok(())
    }

    /// Changes attributes of a namespace; durable with the next root.
    pub fn set_namespace(&mut self, id: u32, change: &NamespaceChange) -> Result<(), Error> {
        self.writable()?;
        let current = self.user_space(id)?.name.clone();
        if let Some(name) = change.name.as_ref().filter(|name| **name != current) {
            self.check_name(name)?;
        }
        if let Some(logs) = &change.logs {
            self.check_logs(logs)?;
        }
        let space = &self.spaces[&id];
        let kind = space.info(id).kind;
        check_ttl(&kind, change.default_ttl_ms.flatten())?;
        check_compression(&kind, change.compression.unwrap_or_default())?;
        let grown_name = change.name.as_ref().map_or(0, |name| name.len().saturating_sub(space.name.len()));
        let grown_logs = change.logs.as_ref().map_or(0, |logs| logs.len().saturating_sub(space.logs.len()));
        if grown_name + grown_logs > 0 {
            self.check_root_has_room(grown_name + grown_logs * 4)?;
        }
        let space = self.spaces.get_mut(&id).expect("just seen");
        if let Some(policy) = change.merge_when_low {
            let versioned = space.versioned.as_mut().ok_or(Error::KeepsNoVersions(id))?;
            let newest_only = |policy: Option<MergePolicy>| policy.is_some_and(|policy| policy.newest_only);
            if newest_only(versioned.merge_when_low) != newest_only(policy) {
                let why = "the place of the index of a namespace cannot change, and with it what is kept; copy its records to a new namespace";
                return Err(Error::BadVersionOptions(why.to_owned()));
            }
            (versioned.merge_when_low, versioned.low_merge_ended) = (policy, None);
        }
        if let Some(ttl) = change.default_ttl_ms {
            space.set_default_ttl(ttl);
            if ttl.is_some() {
                self.catalog.directory.note_expiry();
            }
        }
        if let Some(compression) = change.compression {
            space.shared.packing.set_method(compression);
            self.catalog.directory.any_packing.note(compression);
        }
        space.name = change.name.clone().unwrap_or(current);
        space.logs = change.logs.clone().unwrap_or_else(|| space.logs.clone());
        let (logs, values) = (space.logs.clone(), space.versioned.as_ref().and_then(|versioned| versioned.values));
        if let Some(values) = values.and_then(|values| self.spaces.get_mut(&values)) {
            values.logs = logs;
        }
        Ok(())
    }

    /// Refuses another namespace if the next root has no room for it.
    pub(crate) fn check_room_for_namespace(&self, name_bytes: usize, log_count: usize) -> Result<(), Error> {
        self.check_root_has_room(NAMESPACE_ROOT_BYTES + name_bytes + log_count * 4)
    }

    /// Refuses so many bytes more of namespaces than the next root has room for: half of it, the remainder is the journal's.
    fn check_root_has_room(&self, more: usize) -> Result<(), Error> {
        let root = self.describe_root();
        let bytes = root.encode(self.log.uuid).len() - root.journal_tail.len();
        let bytes = bytes + self.spaces.len() * SNAPSHOT_ROOT_BYTES + more;
        let max = self.log.geometry.root_bytes as usize / 2;
        if bytes > max { Err(Error::TooManyNamespaces { bytes, max }) } else { Ok(()) }
    }

    fn check_name(&self, name: &str) -> Result<(), Error> {
        let bad = |why| Err(Error::BadName { name: name.to_owned(), why });
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return bad("must have 1 to 255 bytes");
        }
        if name.chars().any(char::is_control) {
            return bad("must not contain control characters");
        }
        match self.spaces.values().any(|space| space.name == name) {
            true => Err(Error::NamespaceExists(name.to_owned())),
            false => Ok(()),
        }
    }

    fn check_logs(&self, logs: &[u32]) -> Result<(), Error> {
        let last = self.log.geometry.die_count() - 1;
        if let Some(&log) = logs.iter().find(|log| **log > last) {
            return Err(Error::UnknownLog { log, last });
        }
        let mut seen = BTreeSet::new();
        logs.iter().find(|log| !seen.insert(**log)).map_or(Ok(()), |log| Err(Error::LogTwice(*log)))
    }

    /// The id of a namespace, as the last root has it: a crash leaves it so.
    pub fn namespace(&self, name: &str) -> Result<u32, Error> {
        let found = self.durable_namespaces().find(|space| space.name == name).map(|space| space.id);
        found.ok_or_else(|| Error::UnknownNamespaceName(name.to_owned()))
    }

    /// All namespaces in the order of their ids, as the last root has them.
    pub fn namespaces(&self) -> Vec<NamespaceInfo> {
        let info = |durable: &NamespaceRoot| {
            let now = self.spaces.get(&durable.id).map(|space| space.info(durable.id));
            let mut info = now.unwrap_or_else(|| Namespace::restore(durable).info(durable.id));
            (info.name, info.logs) = (durable.name.clone(), durable.logs.clone());
            if let NamespaceKind::Versions(_, shape) = &mut info.kind {
                shape.merge_when_low = durable.merge_when_low;
            }
            info
        };
        self.durable_namespaces().map(info).collect()
    }

    /// Those that the last root names, without what salvage could not read.
    fn durable_namespaces(&self) -> impl Iterator<Item = &NamespaceRoot> {
        let known = |space: &&NamespaceRoot| !self.read_only || self.spaces.contains_key(&space.id);
        self.root.namespaces.iter().filter(|space| space.values_of.is_none()).filter(known)
    }

    /// A namespace that a root names. One that is being created does not exist for anybody yet.
    pub(crate) fn known_space(&self, id: u32) -> Result<&Namespace, Error> {
        let space = self.spaces.get(&id).filter(|_| id < self.root.next_namespace);
        space.ok_or_else(|| Error::UnknownNamespace(id))
    }

    /// Whether this error was decided by a change of namespaces that no root has yet. It becomes true with the next root, and is reported
    /// after that.
    pub fn waits_for_root(&self, error: &Error) -> bool {
        match error {
            Error::UnknownNamespace(id) => {
                !self.spaces.contains_key(id) && self.durable_namespaces().any(|space| space.id == *id)
            }
            Error::NamespaceExists(name) => self.durable_namespaces().all(|space| space.name != *name),
            _ => false,
        }
    }

    /// A root names namespaces that were created: they exist from now on.
    pub(crate) fn publish_namespaces(&mut self) {
        let end = self.root.next_namespace;
        let published = self.catalog.unpublished.extract_if(.., |id| *id < end);
        for (id, space) in published.filter_map(|id| Some((id, self.spaces.get(&id)?))) {
            self.catalog.directory.insert(id, space.shared.clone());
        }
        self.link_values();
    }

    /// Versioned namespaces know those of their large values that a root names.
    pub(crate) fn link_values(&mut self) {
        let end = self.root.next_namespace;
        let of_values = self.spaces.range(..end).filter_map(|(id, space)| Some((*id, space.shared.values_of?)));
        for (id, owner) in of_values.collect::<Vec<_>>() {
            if let Some(space) = self.spaces.get_mut(&owner)
                && let Some(versioned) = &mut space.versioned
            {
                versioned.values = Some(id);
                space.shared.values.store(id, Ordering::SeqCst);
            }
        }
    }

    /// Takes an idle namespace's index out of memory; false while it cannot be (not snapshotted since it changed, or
    /// Puts of it are in progress).
    pub fn unload_index(&mut self, id: u32) -> Result<bool, Error> {
        let space = self.known_space(id)?;
        if self.index_needs_memory(id, space) {
            return Ok(false);
        }
        self.spaces.get_mut(&id).expect("just seen").unload();
        Ok(true)
    }

    fn index_needs_memory(&self, id: u32, space: &Namespace) -> bool {
        let in_use = self.log.ring.uncommitted().any(|s| s.namespace == id) || self.collector.is_running();
        let (gate, per_page) = (self.gate(), self.log.geometry.chunks_per_page());
        let needs_ring = space.versioned.as_ref().is_some_and(|_| self.versions_frame_of(space) != u64::MAX);
        let wants_seal = |versioned: &Versioned| versioned.sealed.is_some() || !versioned.full_rows.is_empty();
        let is_sealing = space.versioned.as_deref().is_some_and(wants_seal);
        let is_merging = space.versioned.as_ref().is_some_and(|versioned| versioned.is_merging);
        let is_stale = space.versioned.as_ref().is_some_and(|versioned| versioned.kept_is_stale);
        let is_placing = self.sealing.placing.values().any(|placing| placing.namespace == id);
        // Loading reads the medium, not write buffers.
        let is_programmed =
            |run: &Run| gate.is_programmed(BlockIndex(run.block), (run.page + run.page_count) * per_page);
        let kept = space.versioned.iter().flat_map(|versioned| &versioned.kept);
        space.dirty
            || self.checkpoint.is_writing(id)
            || in_use
            || !space.is_loaded()
            || needs_ring
            || is_sealing
            || is_merging
            || is_stale
            || is_placing
            || self.sealing.keep_job.is_some()
            || self.values_are_in_use(space)
            || !space.snapshot.iter().chain(kept).flat_map(|stream| &stream.runs).all(is_programmed)
    }

    /// Takes indexes out of memory that nobody has requested since this was called last. One that changed since its snapshot
    /// is kept; the caller requests another one.
    pub fn unload_unused(&mut self) {
        if self.read_only || self.stopped().is_some() {
            return;
        }
        let loaded = self.spaces.iter().filter(|(_, space)| space.is_loaded());
        let unused: Vec<u32> = loaded.filter(|(_, space)| !space.shared.take_use()).map(|(id, _)| *id).collect();
        let mut wants_snapshot = false;
        for id in unused {
            wants_snapshot |= self.unload_index(id) == Ok(false) && self.spaces[&id].dirty;
        }
        if wants_snapshot && !self.checkpoint.is_running() {
            self.request_checkpoint();
        }
    }
}
