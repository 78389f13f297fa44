//! The progress of a root and of a checkpoint.
//!
//! Lives here:       their steps, requests, what becomes free with a root.
//! Lives elsewhere:  executing them (`roots`, `checkpoint`).

use crate::expiries::ExpiryCursor;
use crate::format::part_list::PartListWriter;
use crate::format::root::{Root, Run};
use crate::index::ImageCursor;
use crate::stream::StreamWriter;
use crate::versioned::state::Firsts;
use kaml_flash::IoId;

/// Where committing a root is.
#[derive(Debug, Default)]
pub(crate) enum Step {
    #[default]
    Idle,
    /// Programs before `barrier` are in progress.
    Draining {
        barrier: IoId,
        prepared: Box<Prepared>,
    },
    Flushing(Box<Prepared>),
    Writing(Box<Prepared>),
}

/// A root whose parts are in place, and what becomes free with it.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) root: Root,
    /// Frames before this were committed, and so journaled, when the root was prepared.
    pub(crate) committed: u64,
    /// The oldest frame with a version that was in no segment in the journal then, and not kept.
    pub(crate) versions_frame: u64,
    /// The smallest sequence that each versioned namespace keeps.
    pub(crate) kept_firsts: Vec<(u32, Firsts)>,
    /// Large values of how many versions each versioned namespace has dropped that it does not name.
    pub(crate) dropped_values: Vec<(u32, u64)>,
    pub(crate) reclaimed: Vec<u32>,
    pub(crate) retired: Vec<Run>,
    /// It serves all requests up to this one.
    pub(crate) request: u64,
}

/// Committing roots.
#[derive(Debug, Default)]
pub(crate) struct RootCommit {
    pub(crate) step: Step,
    /// Metadata pages that the next root no longer needs.
    pub(crate) retired: Vec<Run>,
    pub(crate) requested: u64,
    pub(crate) done: u64,
    /// Also program everything that waits in buffers.
    pub(crate) settle: bool,
    /// Metadata was lost with a failed block: no root until a checkpoint has replaced it.
    pub(crate) awaits_checkpoint: bool,
    pub(crate) clean: bool,
    /// The newest request that must not complete before a checkpoint which began after it is done.
    pub(crate) after_checkpoint: u64,
    /// Requests up to this one were made before the last checkpoint that is done began.
    pub(crate) checkpointed: u64,
}

impl RootCommit {
    pub(crate) fn retire(&mut self, runs: Vec<Run>) {
        self.retired.extend(runs);
    }

    /// Whether a request waits for a checkpoint.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.after_checkpoint > self.checkpointed.max(self.done)
    }

    /// Whether roots wait for a checkpoint to replace lost metadata.
    pub(crate) fn awaits_checkpoint(&self) -> bool {
        self.awaits_checkpoint
    }
}

/// An index being written out.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) namespace: u32,
    pub(crate) cursor: Option<ImageCursor>,
    /// The times at which records expire come first.
    pub(crate) expiries: ExpiryCursor,
    /// Journal entries from here on are not part of it.
    pub(crate) entry: u64,
    pub(crate) out: StreamWriter,
    /// The parts of the index that it has so far; nothing after they were written.
    pub(crate) parts: Option<PartListWriter>,
}

/// Taking checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    pub(crate) requested: bool,
    pub(crate) running: bool,
    /// The last request when it began.
    pub(crate) began_after: u64,
    pub(crate) waiting: Vec<u32>,
    pub(crate) job: Option<Job>,
    /// There was no block for the snapshot; some operation must complete before it can continue.
    pub(crate) stalled: bool,
}

impl Checkpoint {
    /// A checkpoint is needed soon.
    pub(crate) fn request(&mut self) {
        self.requested = true;
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running || self.requested
    }

    /// Whether a namespace's index is being written out: it is not marked as changed any more, and its snapshot is the old one.
    pub(crate) fn is_writing(&self, namespace: u32) -> bool {
        self.job.as_ref().is_some_and(|job| job.namespace == namespace)
    }

    /// Whether it found no block and nothing has completed since.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// An operation has completed or a block has become free: there may be a block now.
    pub(crate) fn may_go_on(&mut self) {
        self.stalled = false;
    }

    /// The namespace is gone.
    pub(crate) fn forget(&mut self, namespace: u32, roots: &mut RootCommit) {
        self.waiting.retain(|id| *id != namespace);
        if let Some(job) = self.job.take_if(|job| job.namespace == namespace) {
            roots.retire(job.out.stream.runs);
        }
    }
}
