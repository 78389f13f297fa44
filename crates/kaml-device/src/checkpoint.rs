//! Checkpoints: what keeps the journal, and so opening, short.
//!
//! Lives here:       when a checkpoint is due, taking checkpoint images of indexes, trimming the journal.
//! Lives elsewhere:  reading them back (`recovery`), the root that names them (`roots`).
//!
//! An image is fuzzy: it is taken segment by segment while Puts continue. The journal from the entry at which it was
//! begun is kept, and replaying it over the image gives the index as of the root.

use crate::blocks::BlockState;
use crate::core::Core;
use crate::expiries::ExpiryCursor;
use crate::format::crc32c_append;
use crate::format::part_list::PartListWriter;
use crate::format::root::{Run, Stream};
use crate::index::ImageCursor;
use crate::layout::Layout;
use crate::lifetime::Class;
use crate::namespace::Namespace;
use crate::root_state::{Checkpoint, Job, RootCommit};
use crate::space::Purpose;
use crate::stream::StreamWriter;

/// Segments copied per step, so no Put waits long: 48 KiB each.
const SEGMENTS_PER_STEP: usize = 4;
/// Times of records copied per step: some 100 KiB.
const EXPIRIES_PER_STEP: usize = 4096;

/// Metadata blocks with at most this part of their pages in use are emptied by writing what they have again.
const SPARSE: u32 = 4;

/// The image of an index begins again, if it is being written: the index has been replaced by a copy with another layout.
pub(crate) fn restart(checkpoint: &mut Checkpoint, roots: &mut RootCommit, namespace: u32) {
    if let Some(job) = checkpoint.job.take_if(|job| job.namespace == namespace) {
        roots.retire(job.out.stream.runs);
        checkpoint.waiting.push(namespace);
    }
}

impl Core {
    /// Whether new snapshots would free more than a block: indexes have shrunk to less than half of those on the medium.
    fn snapshots_are_too_long(&self) -> bool {
        let excess = |space: &Namespace| space.standing_bytes().saturating_sub(2 * space.snapshot_bytes());
        // An unchanged index is not written again, and the length of a directory of versions is an estimate.
        let excess = |space: &Namespace| match space.layout {
            Layout::Records(_) | Layout::Blocks(_) => excess(space),
            Layout::Versions(_) => 0,
        };
        self.spaces.values().filter(|space| space.dirty).map(excess).sum::<u64>() > self.log.geometry.block_bytes()
    }

    /// Requests a checkpoint and the root after it; as [`Core::request_root`].
    pub fn request_checkpoint(&mut self) -> u64 {
        self.checkpoint.request();
        self.root_commit.requested += 1;
        self.root_commit.after_checkpoint = self.root_commit.requested;
        self.root_commit.requested
    }

    pub(crate) fn checkpoint_can_go_on(&self) -> bool {
        self.checkpoint.running && !self.checkpoint.stalled && self.may_program(Purpose::Image)
    }

    /// One step of taking a checkpoint, if one is due.
    pub(crate) fn step_checkpoint(&mut self) {
        let journal = self.log.journal.pages_since_checkpoint * u64::from(self.log.geometry.page_bytes);
        if !self.checkpoint.running {
            if !self.checkpoint.requested
                && journal <= self.checkpoint_journal_bytes()
                && !self.snapshots_are_too_long()
            {
                return;
            }
            self.checkpoint.requested = false;
            self.checkpoint.running = true;
            self.renew_sparse_images();
            self.checkpoint.began_after = self.root_commit.requested;
            self.checkpoint.waiting = self.spaces.iter().filter(|(_, s)| s.dirty).map(|(id, _)| *id).collect();
        }
        while self.may_program(Purpose::Image) {
            let Some(mut job) = self.checkpoint.job.take().or_else(|| self.next_job()) else {
                self.finish_checkpoint();
                return;
            };
            let done = self.copy_segments(&mut job);
            let placed = self.write_stream(&mut job.out, done);
            if done && placed {
                self.finish_job(job);
            } else {
                self.checkpoint.job = Some(job);
                return;
            }
        }
    }

    /// Images of unchanged indexes, and kept versions, are written again where little else is in use in their blocks. Otherwise each of many
    /// indexes that became idle one after the other would keep a block.
    fn renew_sparse_images(&mut self) {
        let pages = self.log.geometry.pages_per_block;
        let (blocks, spaces) = (&self.log.blocks, &mut self.spaces);
        let is_sparse = |run: &Run| {
            let block = blocks.get(run.block);
            block.state == BlockState::Full && block.holds * SPARSE <= pages
        };
        let all_sparse = |stream: &Stream| !stream.runs.is_empty() && stream.runs.iter().all(is_sparse);
        for space in spaces.values_mut().filter(|space| space.is_loaded()) {
            space.dirty |= space.snapshot.as_ref().is_some_and(all_sparse);
            if let Some(versioned) = &mut space.versioned {
                versioned.kept_is_stale |= versioned.kept.as_ref().is_some_and(all_sparse);
            }
        }
    }

    fn next_job(&mut self) -> Option<Job> {
        let namespace = self.checkpoint.waiting.pop()?;
        let space = self.spaces.get_mut(&namespace).expect("deleted namespaces leave the list");
        space.dirty = false;
        let entry = self.log.journal.next_entry();
        Some(Job {
            namespace,
            cursor: Some(ImageCursor::Start),
            expiries: ExpiryCursor::Start,
            entry,
            out: StreamWriter::default(),
            parts: Some(PartListWriter::default()),
        })
    }

    /// Copies the next segments of an index; true when there are no more.
    fn copy_segments(&mut self, job: &mut Job) -> bool {
        let space = &self.spaces[&job.namespace];
        if let Some(directory) = space.encode_directory(self.log.geometry.page_bytes as usize) {
            // In one piece, so it is as of the entry that the job began with.
            if job.cursor.take().is_some() {
                job.out.tail = directory;
            }
            return true;
        }
        let index = space.index.as_ref().expect("a changed index is loaded");
        // First, and before the index: a record that expires meanwhile leaves both, and its journal entry finds what the image has of it.
        while !matches!(job.expiries, ExpiryCursor::End) {
            let from = std::mem::replace(&mut job.expiries, ExpiryCursor::End);
            job.expiries = space.expiries.image_next(from, EXPIRIES_PER_STEP, &mut job.out.tail);
            if !matches!(job.expiries, ExpiryCursor::End) {
                return false;
            }
        }
        for _ in 0..SEGMENTS_PER_STEP {
            let Some(cursor) = job.cursor.take() else { break };
            let (place, at) = (cursor.place(), job.out.tail.len());
            job.cursor = index.image_next(cursor, &mut job.out.tail);
            let parts = job.parts.as_mut().expect("kept until the last part");
            parts.push(place, job.out.stream.bytes + at as u64, &job.out.tail[at..]);
        }
        if job.cursor.is_some() {
            return false;
        }
        if let Some(parts) = job.parts.take() {
            let crc32c = crc32c_append(job.out.stream.crc32c, &job.out.tail);
            job.out.stream.list_bytes = parts.finish(crc32c, &mut job.out.tail);
        }
        true
    }

    /// Moves whole pages of a stream into metadata pages, with `end` the last partial one too; false if some had to
    /// stay because there was no block.
    pub(crate) fn write_stream(&mut self, out: &mut StreamWriter, end: bool) -> bool {
        let page_bytes = self.log.geometry.page_bytes as usize;
        let mut written = 0;
        while out.tail.len() - written >= page_bytes || (end && written < out.tail.len()) {
            let page = &out.tail[written..out.tail.len().min(written + page_bytes)];
            let Ok(at) = self.log.append_page(Class::Snapshot, self.floor(Purpose::Image), page) else {
                self.checkpoint.stalled = true;
                break;
            };
            out.stream.crc32c = crc32c_append(out.stream.crc32c, page);
            out.stream.bytes += page.len() as u64;
            written += page.len();
            match out.stream.runs.last_mut() {
                Some(last) if last.block == at.block.0 && last.page + last.page_count == at.page => {
                    last.page_count += 1
                }
                _ => out.stream.runs.push(Run { block: at.block.0, page: at.page, page_count: 1 }),
            }
        }
        out.tail.drain(..written);
        out.tail.is_empty() || !end
    }

    fn finish_job(&mut self, job: Job) {
        let space = self.spaces.get_mut(&job.namespace).expect("deleted namespaces drop their job");
        let old = space.snapshot.replace(job.out.stream);
        space.snapshot_entry = job.entry;
        self.root_commit.retire(old.map(|s| s.runs).unwrap_or_default());
    }

    /// All indexes are written: the block table follows, the journal shrinks, a root makes it count.
    fn finish_checkpoint(&mut self) {
        if self.kept_is_lost() {
            self.checkpoint.stalled = true; // no root may do without it; it is written as soon as it can be
            return;
        }
        let entry = self.log.journal.next_entry();
        let mut table = StreamWriter { tail: self.encode_blocks(), ..StreamWriter::default() };
        if !self.write_stream(&mut table, true) {
            // No block just now: try again with a fresh table.
            self.root_commit.retire(table.stream.runs);
            return;
        }
        let old = self.root.blocks.replace(table.stream);
        self.root.blocks_entry = entry;
        self.log.table_is_exact = true;
        self.root_commit.retire(old.map(|s| s.runs).unwrap_or_default());
        let dirty = self.spaces.values().filter(|s| s.dirty).map(|s| s.snapshot_entry);
        let trimmed = self.log.journal.trim(dirty.min().unwrap_or(entry).min(entry));
        self.root_commit.retire(trimmed);
        self.root_commit.awaits_checkpoint = false;
        self.space.image_may_have_last = false;
        self.checkpoint.running = false;
        self.root_commit.checkpointed = self.checkpoint.began_after;
        // Changed while the last snapshot was taken: a clean close needs another round.
        let dirty = self.spaces.values().any(|s| s.dirty);
        self.checkpoint.requested |= self.root_commit.clean && dirty;
        self.request_root(false);
    }

    /// The block table as a stream: for each block its erase count (u32), valid chunks (u32) and whether it is bad.
    fn encode_blocks(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.log.blocks.count() as usize * 9);
        for (_, block) in self.log.blocks.iter() {
            bytes.extend_from_slice(&block.erase_count.to_le_bytes());
            bytes.extend_from_slice(&block.valid_chunks.to_le_bytes());
            #[cfg(feature = "broken")]
            if crate::Broken::ForgetsBadBlocks.is() {
                bytes.push(0);
                continue;
            }
            // A failing block still drains, but its journal entry may be older than this table.
            bytes.push((block.state == BlockState::Bad || block.failing).into());
        }
        bytes
    }
}
