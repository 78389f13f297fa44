//! Roots: what makes ring space and blocks free again.
//!
//! Lives here:       when a root is due, the steps of committing one.
//! Lives elsewhere:  checkpoints (`checkpoint`), reading roots (`recovery`, `metadata`), the format (`format::root`).
//! Implements:       paper:KAML IV.D phase 3 ("frees the buffers").
//!
//! Committing a root:  seal ──▶ drain (programs done) ──▶ flush ──▶ write root ──▶ release ring, blocks, old pages

use crate::core::Core;
use crate::format::journal::ENTRY_BYTES;
use crate::format::root::{NamespaceRoot, Root};
use crate::in_flight::Pending;
use crate::lifetime::Class;
use crate::root_state::{Prepared, Step};
use kaml_flash::{AlignedBuf, Io};

/// One part in this many of a root's slot may be journal entries.
const TAIL_SHARE: usize = 4;

impl Core {
    /// Requests a root that includes everything committed so far; with `settle` all records are programmed too.
    /// Returns a number that [`Core::roots_done`] reaches when it is durable.
    pub fn request_root(&mut self, settle: bool) -> u64 {
        self.root_commit.requested += 1;
        self.root_commit.settle |= settle;
        if settle && self.wants_time() {
            self.sealing.keep_until = Some(self.log.sequence);
        }
        self.root_commit.requested
    }

    /// As [`Core::request_root`], for the last root before the device is closed: indexes are written out first. Nothing is
    /// staged from now on, for what was in the ring after that root would be lost.
    pub fn request_close(&mut self) -> u64 {
        self.end_all_snapshots();
        self.is_closing = true;
        self.root_commit.clean = true;
        self.checkpoint.request();
        self.request_root(true)
    }

    /// Takes no changes any more: the device is closed, whether or not its last root could be written.
    pub fn end_changes(&mut self) {
        self.end_all_snapshots();
        self.is_closing = true;
    }

    /// Requests up to this number are done.
    pub fn roots_done(&self) -> u64 {
        self.root_commit.done
    }

    /// Whether no root is being committed.
    pub(crate) fn root_is_idle(&self) -> bool {
        matches!(self.root_commit.step, Step::Idle)
    }

    /// One step towards the next root, if one is due.
    pub(crate) fn step_root(&mut self) {
        match std::mem::take(&mut self.root_commit.step) {
            Step::Idle => {
                if self.root_is_due() {
                    self.prepare_root();
                }
            }
            Step::Draining { barrier, prepared } => {
                let programs = self.log.queue.ops.range(..barrier).any(|(_, op)| matches!(op, Pending::Program));
                #[cfg(feature = "broken")]
                let programs = programs && !crate::Broken::RootBeforePrograms.is();
                if programs || !self.log.queue.retry.is_empty() {
                    self.root_commit.step = Step::Draining { barrier, prepared };
                } else if self.failed_blocks.is_empty() {
                    self.drained(prepared);
                } else if self.failed_blocks_want_room() && !prepared.reclaimed.is_empty() {
                    let prepared = self.without_failed_blocks(prepared);
                    self.drained(prepared);
                } else if self.failed_blocks_want_room()
                    && self.log.blocks.can_release_before(self.log.ring.oldest_kept())
                {
                    // Blocks were emptied since it was prepared: one that names them gives the failed ones room.
                    self.root_commit.step = Step::Draining { barrier, prepared };
                    self.restart_root();
                } else {
                    self.root_commit.step = Step::Draining { barrier, prepared };
                }
            }
            other => self.root_commit.step = other,
        }
    }

    /// Records of failed blocks wait for the very blocks that a root makes free: it is written without them and completes
    /// no request. Their frames remain in the ring, and what collection moved is still at its old place.
    fn without_failed_blocks(&mut self, mut prepared: Box<Prepared>) -> Box<Prepared> {
        prepared.request = self.root_commit.done;
        prepared.root.clean = false;
        self.root_commit.settle = true;
        prepared
    }

    fn root_is_due(&self) -> bool {
        let commit = &self.root_commit;
        if commit.awaits_checkpoint || self.log.journal.is_urgent() || self.growth.is_resizing() {
            return false;
        }
        let asked = self.root_request_covered() > commit.done;
        asked || self.ring_is_filling() || self.sequences_are_short() || self.blocks_are_wanted()
    }

    /// Whether a checkpoint is being taken that will be finished without anybody's help.
    fn checkpoint_is_coming(&self) -> bool {
        self.checkpoint.is_running() && !self.space.pace.is_deadlocked
    }

    /// The same for versions that are to be kept; the others remain in the ring.
    fn keeps_are_coming(&self) -> bool {
        self.keeps_are_pending() && !self.space.pace.is_deadlocked
    }

    /// Whether a good part of the ring could be released, or must be.
    fn ring_is_filling(&self) -> bool {
        let (used, ring_bytes) = (self.log.ring.used_bytes(), self.log.geometry.ring_bytes);
        if used <= ring_bytes / 4 {
            return false;
        }
        let versions = self.versions_frame();
        let oldest = self.log.writers.oldest_frame().unwrap_or(u64::MAX).min(versions);
        if self.log.ring.is_blocked() && self.log.ring.tail_before(versions) > self.log.ring.tail() {
            return true;
        }
        let gains = |oldest| self.log.ring.head() - self.log.ring.tail_before(oldest) + ring_bytes / 8 <= used;
        // Records can be programmed for the root; versions wait until their rows are sealed or they are kept.
        gains(oldest) || (used > ring_bytes / 2 && (versions == u64::MAX || gains(versions)))
    }

    /// Seals what the root needs and notes what it will contain.
    fn prepare_root(&mut self) {
        let settle = std::mem::take(&mut self.root_commit.settle);
        if settle {
            let classes = self.log.blocks.lifetimes.classes();
            self.log.seal(|writers, out| classes.iter().for_each(|class| writers.seal_class(*class, out)));
        } else {
            let mut old = self.log.ring.frame_at_least_behind(self.log.geometry.ring_bytes / 4);
            if self.blocks_are_wanted() {
                // Ring frames that name places in reclaimed blocks keep them: what keeps those frames is programmed.
                old = old.max(self.log.blocks.reclaimed_frame_max() + 1);
            }
            self.log.seal(|writers, out| writers.seal_older_than(old, out));
        }
        self.place_journal();
        if !self.journal_fits_root(0) {
            self.log.journal.seal_tail();
            self.place_journal();
        }
        let metadata = [Class::Journal, Class::Snapshot];
        self.log.seal(|writers, out| metadata.into_iter().for_each(|class| writers.seal_class(class, out)));
        if self.log.journal.is_urgent() {
            self.root_commit.settle |= settle;
            return; // no block for it just now
        }
        let prepared = Prepared {
            root: self.describe_root(),
            committed: self.log.ring.committed(),
            versions_frame: self.versions_frame(),
            kept_firsts: self.kept_firsts(),
            dropped_values: self.dropped_values(),
            reclaimed: self.log.blocks.take_reclaimed(self.log.ring.oldest_kept()),
            retired: std::mem::take(&mut self.root_commit.retired),
            request: self.root_request_covered(),
        };
        self.root_commit.step = Step::Draining { barrier: self.log.next_io(), prepared: Box::new(prepared) };
        self.step_root();
    }

    /// Whether a root takes the journal's entries that have no place, and so many more.
    pub(crate) fn journal_fits_root(&self, more: usize) -> bool {
        self.log.journal.tail_bytes() + more * ENTRY_BYTES <= self.log.geometry.root_bytes as usize / TAIL_SHARE
    }

    /// The last request that a root prepared now fulfils.
    fn root_request_covered(&self) -> u64 {
        let commit = &self.root_commit;
        match self.checkpoint_is_coming() {
            _ if commit.requested > commit.done && self.keeps_are_coming() => commit.done,
            true if commit.clean => commit.done,
            // A caller that requests one after the other delays nobody that waits for the first.
            true if commit.wants_checkpoint() => commit.checkpointed.max(commit.done),
            true | false => commit.requested,
        }
    }

    pub(crate) fn describe_root(&self) -> Root {
        let clean = self.root_commit.clean
            && !self.checkpoint.is_running()
            && self.spaces.values().all(|space| !space.dirty)
            && !self.log.ring.has_staged()
            && self.log.ring.in_flight() == 0;
        let clean = clean && self.log.table_is_exact && self.space.deletions == 0;
        Root {
            generation: self.root.generation + 1,
            epoch: self.recovering.map_or(self.log.ring.epoch, |(epoch, _)| epoch),
            clean,
            ring_tail: self.log.ring.head(),
            next_sequence: self.log.sequence,
            next_namespace: self.catalog.next_id,
            namespaces: self.spaces.iter().map(|(id, space)| space.root(*id)).collect::<Vec<NamespaceRoot>>(),
            blocks: self.root.blocks.clone(),
            blocks_entry: self.root.blocks_entry,
            journal: self.log.journal.runs(),
            journal_entries_end: self.log.journal.next_entry(),
            journal_tail: self.log.journal.tail(),
            lifetime: self.log.counters.lifetime(),
            index_seed: self.root.index_seed,
            secret: self.root.secret,
            clock_ms: self.clock.latest_ms(),
        }
    }

    /// Everything the root needs is programmed: the ring is needed only from the oldest record that is not.
    fn drained(&mut self, mut prepared: Box<Prepared>) {
        let oldest = self.log.writers.oldest_frame().unwrap_or(u64::MAX);
        let tail = self.log.ring.tail_before(oldest.min(prepared.committed).min(prepared.versions_frame));
        prepared.root.ring_tail = self.recovering.map_or(tail, |(_, tail)| tail);
        prepared.root.clean &= prepared.root.ring_tail == self.log.ring.head();
        self.log.emit(Io::Flush, Pending::Flush);
        self.root_commit.step = Step::Flushing(prepared);
    }

    pub(crate) fn flushed(&mut self) {
        let Step::Flushing(prepared) = std::mem::take(&mut self.root_commit.step) else {
            unreachable!("flushes are part of committing a root")
        };
        let bytes = prepared.root.encode(self.log.uuid);
        let padded = bytes.len().next_multiple_of(self.log.geometry.sector_bytes as usize);
        assert!(
            padded <= self.log.geometry.root_bytes as usize,
            "a root of {} bytes does not fit its slot",
            bytes.len()
        );
        let mut data = AlignedBuf::zeroed(padded);
        data[..bytes.len()].copy_from_slice(&bytes);
        self.log.counters.metadata_bytes += padded as u64;
        let slot = (prepared.root.generation % 2) as u8;
        self.root_commit.step = Step::Writing(prepared);
        self.log.emit(Io::WriteRoot { slot, data }, Pending::Root);
    }

    pub(crate) fn root_written(&mut self) {
        let Step::Writing(prepared) = std::mem::take(&mut self.root_commit.step) else {
            unreachable!("root writes are part of committing a root")
        };
        let Prepared { root, kept_firsts, dropped_values, reclaimed, retired, request, .. } = *prepared;
        self.kept_are_in_root(&kept_firsts);
        if self.recovering.is_none() {
            self.log.ring.release(root.ring_tail);
        }
        self.log.blocks.release(&reclaimed);
        self.log.release_pages(&retired);
        // A block table finished meanwhile is not in this root.
        let (blocks, blocks_entry) = (self.root.blocks.take(), self.root.blocks_entry);
        self.root = Root { blocks, blocks_entry, ..root };
        self.publish_namespaces();
        self.release_values(&dropped_values);
        self.root_commit.done = self.root_commit.done.max(request);
    }

    /// Records have new places that a root being prepared does not contain: it is prepared again. One that is past its
    /// drain needs nothing of what failed since.
    pub(crate) fn restart_root(&mut self) {
        match std::mem::take(&mut self.root_commit.step) {
            Step::Draining { prepared, .. } => {
                self.log.blocks.put_back_reclaimed(prepared.reclaimed);
                self.root_commit.retired.extend(prepared.retired);
                self.root_commit.settle = true;
            }
            other => self.root_commit.step = other,
        }
    }

    /// Metadata pages went down with a block: a checkpoint writes all of it again before the next root.
    pub(crate) fn metadata_lost(&mut self) {
        self.restart_root();
        for space in self.spaces.values_mut().filter(|space| space.is_loaded()) {
            space.dirty = true;
        }
        self.kept_lost();
        if let Some(job) = self.checkpoint.job.take() {
            self.root_commit.retire(job.out.stream.runs);
        }
        self.checkpoint.running = false;
        self.checkpoint.request();
        self.root_commit.awaits_checkpoint = true;
    }
}
