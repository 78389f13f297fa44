//! The state of versioned namespaces: what the core knows of one in addition to its index, and their segments on the way to flash.
//!
//! Lives here:       the options, what is staged, sealed, kept, merged.
//! Lives elsewhere:  what is done with it (the other modules of `versioned`).

use super::dropped::DroppedValues;
use super::merge_policy::MergePolicy;
use crate::blocks::BlockTable;
use crate::format::root::Stream;
use crate::format::version::Directory;
use crate::stream::StreamWriter;
use kaml_flash::{AlignedBuf, ChunkAddr, Geometry};
use kaml_versions::{BloomOptions, Columns, Command, Parameters, Sealed, SegmentInfo, Stamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// What a versioned namespace is asked to be when it is created. Zero: as suits the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VersionOptions {
    /// Bytes of its page buffer: memory, and ring space that it may hold. At most a third of the commit ring, all versioned
    /// namespaces together; a quarter if zero.
    pub buffer_bytes: u64,
    /// Bytes of a segment: whole program units that fill an erase block but for a 64th. Up to 1 MiB if zero.
    pub segment_bytes: u32,
    /// Chains of segments that keys are spread over.
    pub rows: u32,
    /// Bits compared before a page is read, 4 to 28; 14 if zero. One more costs an eighth of a byte a version. Not with
    /// `bloom`.
    pub fingerprint_bits: u32,
    /// Find versions as the paper does, by its Bloom filters, in place of what is better: a baseline to measure.
    pub bloom: Option<BloomOptions>,
    /// Merge it when space runs low, within these rules; nothing: never by itself.
    pub merge_when_low: Option<MergePolicy>,
}

/// How the last merge because there is no space ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ended {
    pub(crate) live_chunks: u64,
    pub(crate) time_ns: u64,
    /// Old versions that were left, as far as memory showed.
    pub(crate) old: u64,
    /// [`Versioned::deletes`] when it began.
    pub(crate) deletes: u64,
    /// With so many deletes another one may be worth it.
    pub(crate) due_deletes: u64,
    /// Chunks that it could have released and did not, as far as memory showed.
    pub(crate) left_chunks: u64,
    /// Chunks that it released.
    pub(crate) released_chunks: u64,
}

/// A segment on its way to flash that the journal does not name yet.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) ticket: u64,
    pub(crate) row: u32,
    pub(crate) at: ChunkAddr,
    pub(crate) is_programmed: bool,
    /// The oldest ring frame that has a version of it.
    pub(crate) frame: u64,
    /// Its smallest sequence.
    pub(crate) first_sequence: u64,
}

/// What is staged and not committed.
#[derive(Debug)]
pub(crate) enum StagedVersion {
    Record { sequence: u64, record: Box<[u8]> },
    Command(Command, Stamp),
}

impl StagedVersion {
    pub(crate) fn sequence(&self) -> u64 {
        match self {
            StagedVersion::Record { sequence, .. } => *sequence,
            StagedVersion::Command(_, stamp) => stamp.sequence,
        }
    }
}

/// The smallest sequence of each row that has any.
pub(crate) type Firsts = Arc<BTreeMap<u32, u64>>;

/// The state of a versioned namespace that only the core sees.
#[derive(Debug, Default)]
pub(crate) struct Versioned {
    /// In the order of their commits.
    pub(crate) staged: VecDeque<StagedVersion>,
    /// In the order of sealing.
    pub(crate) fresh: VecDeque<Fresh>,
    /// Rows that are full although the buffer is not.
    pub(crate) full_rows: BTreeSet<u32>,
    /// Sealed, and not placed because there is no a block.
    pub(crate) sealed: Option<Box<Sealed>>,
    pub(crate) kept: Option<Stream>,
    pub(crate) kept_before: u64,
    /// The smallest sequence of each row in the kept stream, after that was read or written.
    pub(crate) kept_first: Firsts,
    /// The same of the stream that the root on the medium names.
    pub(crate) kept_first_in_root: Firsts,
    /// The kept stream has versions that are not in the page buffer any more, and they are in the way of a merge.
    pub(crate) kept_is_stale: bool,
    /// A merge in progress dropped versions from the page buffer that the kept stream has.
    pub(crate) kept_has_dropped: bool,
    /// Versions of a backup are being inserted, which are neither in the ring nor kept.
    pub(crate) is_restoring: bool,
    /// The kept stream went down with a block.
    pub(crate) kept_is_lost: bool,
    /// A merge is in progress, which knows segments by their places in a row: they are kept in memory.
    pub(crate) is_merging: bool,
    /// What may go when space runs low; nothing: it is not merged by itself.
    pub(crate) merge_when_low: Option<MergePolicy>,
    /// Of a namespace that keeps only newest versions: live chunks of the device when its old ones were last counted.
    pub(crate) counted_at: Option<u64>,
    /// When it was last merged for that reason, or would have been.
    pub(crate) low_merge_ended: Option<Ended>,
    /// Deletes since it was loaded. Each makes a version old, maybe before it is in a segment, where it would be counted.
    pub(crate) deletes: u64,
    /// Chunks that merges have released since it was loaded.
    pub(crate) released_chunks: u64,
    /// The namespace of its large values, after there was one.
    pub(crate) values: Option<u32>,
    /// Large values whose versions were dropped.
    pub(crate) dropped: DroppedValues,
    /// While opening: segments that are not restored yet.
    pub(crate) directory: Option<Directory>,
}

impl Versioned {
    /// The namespace is gone: releases the blocks of segments that were programmed and not journaled. Returns the kept
    /// stream.
    pub(crate) fn forget(self, blocks: &mut BlockTable, geometry: &Geometry) -> Option<Stream> {
        let programmed = self.fresh.iter().filter(|fresh| fresh.is_programmed);
        programmed.for_each(|fresh| blocks.unhold(geometry.split(fresh.at).0.0));
        self.kept
    }
}

/// Versions being written.
#[derive(Debug)]
pub(crate) struct KeepJob {
    pub(crate) namespace: u32,
    pub(crate) before: u64,
    pub(crate) first: BTreeMap<u32, u64>,
    /// How many large values, whose versions were in the kept stream before, were dropped when it was captured.
    pub(crate) dropped: u64,
    pub(crate) out: StreamWriter,
}

/// A segment being programmed.
pub(crate) struct Placing {
    pub(crate) namespace: u32,
    pub(crate) row: u32,
    pub(crate) at: ChunkAddr,
    pub(crate) image: Arc<AlignedBuf>,
    pub(crate) purpose: Use,
}

#[derive(Clone, Copy)]
pub(crate) enum Use {
    /// Just sealed; installed already.
    Fresh,
    /// On its way out of a block.
    Moved { from: ChunkAddr },
    /// Part of a merge; installed with the others.
    Merged { is_programmed: bool },
    /// Part of a merge that was given up while this was programmed.
    Abandoned,
}

/// A segment whose block failed while it was in a buffer there.
pub(crate) struct Replaced {
    pub(crate) at: ChunkAddr,
    pub(crate) image: Arc<AlignedBuf>,
}

/// Rows of page buffers on their way to flash.
#[derive(Default)]
pub(crate) struct Sealing {
    /// Segments being programmed.
    pub(crate) placing: BTreeMap<u64, Placing>,
    /// Segments that were placed again, for those who looked before that.
    pub(crate) replaced: Vec<Replaced>,
    /// A page buffer, or one of its rows, is full.
    pub(crate) is_wanted: bool,
    /// There was no room for it; something must complete before it can continue.
    pub(crate) is_stalled: bool,
    /// Versions being kept, and up to which sequence they should be.
    pub(crate) keep_job: Option<KeepJob>,
    pub(crate) keep_until: Option<u64>,
}

/// Chunks of a segment.
pub(crate) fn segment_chunks(parameters: &Parameters, geometry: &Geometry) -> u32 {
    (parameters.segment_bytes() / geometry.chunk_bytes as usize) as u32
}

pub(crate) fn for_each_segment(columns: &Columns, mut each: impl FnMut(&SegmentInfo)) {
    (0..columns.parameters().rows).flat_map(|row| columns.segments(row)).for_each(|segment| each(&segment));
}
