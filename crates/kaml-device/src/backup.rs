//! What a backup needs of the firmware: a moment, the records that a block has, and notice of records that move meanwhile.
//!
//! Lives here:       opening the snapshot of a backup, the mark that later backups begin after, reading a block for a backup.
//! Lives elsewhere:  what a snapshot sees (`snapshot_reader`), the order of a backup and its format (`kaml::backup`).
//! Implements:       docs/ARCHITECTURE.md "Backups".
//!
//! A backup reads blocks in their order on flash, and passes on the records that its snapshot sees in the place where they were read. A
//! record that moves before its block was read would be missed. So the firmware notes its key, and the backup reads it by that.

use crate::compression::unpack;
use crate::core::{Core, code};
use crate::error::Error;
use crate::format::oob::{Extent, extents};
use crate::format::record::DIRECT_BYTES;
use crate::format::record::{Record, RecordHeader};
use crate::gate::Pin;
use crate::lifetime::Class;
use crate::moves::Move;
use crate::moves::MoveWatch;
use crate::namespace::NamespaceInfo;
use crate::reader::Reader;
use crate::snapshots::SnapshotTicket;
use kaml_flash::{AlignedBuf, BlockIndex, Geometry, Io, Medium, MediumError};
use kaml_index::{FullKey, Slot};
use kaml_versions::Timeline;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a block that are read at a time, unless a record is longer.
const SLICE_BYTES: u32 = 1 << 20;
/// Records that are passed on together: what the processor needs for all of them is on its way before the first is looked at.
const GROUP: usize = 16;
/// Bytes of a record that are fetched ahead: its header, key and the beginning of its value. The processor goes on by itself.
const FETCHED_BYTES: usize = 128;

/// What separates what a backup has from what is new after it. Everything that is committed after the backup is in pages above `page`, and
/// has a sequence of at least `record` or is a large value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackupMark {
    /// The number of the page that was programmed last.
    pub page: u64,
    /// The sequence of the record that was staged last.
    pub record: u64,
}

/// A mark, and what was in progress when it was set.
#[derive(Clone, Copy, Debug)]
pub struct PendingMark {
    mark: BackupMark,
    frame: u64,
    ticket: u64,
}

/// A versioned namespace at the moment of a backup.
#[derive(Clone, Debug)]
pub struct VersionsAt {
    /// Versions after this sequence were committed later.
    pub newest: u64,
    /// Versions that it had.
    pub count: u64,
    /// Bytes of the segments that they are in.
    pub bytes: u64,
    /// Its user versions.
    pub timeline: Timeline,
}

/// The moment of a backup, besides its snapshot.
pub struct BackupTicket {
    /// Notes what moves.
    pub watch: Arc<MoveWatch>,
    /// The namespaces, and how those with versions were.
    pub namespaces: Vec<(NamespaceInfo, Option<VersionsAt>)>,
    /// The sequence of the record that was staged last.
    pub sequence: u64,
    /// Bytes of live records, in whole chunks.
    pub live_bytes: u64,
    /// Blocks with records, to be read in this order.
    pub full_blocks: Vec<u32>,
    /// Blocks with records that were being filled: to be read after a root that settles what is in write buffers.
    pub open_blocks: Vec<u32>,
}

impl Core {
    /// Sets the mark of a backup that is about to begin. It counts when [`Core::is_resolved`].
    pub fn pending_mark(&self) -> PendingMark {
        let mark = BackupMark { page: self.log.writers.sequence, record: self.log.sequence };
        let frame = self.log.ring.staging_number() + u64::from(self.log.ring.has_staged());
        PendingMark { mark, frame, ticket: self.tickets.given() }
    }

    /// The mark, after everything that was in progress when it was set is committed or given up. A device that is only read has none: what
    /// it programs is in memory.
    pub fn is_resolved(&self, pending: &PendingMark) -> Option<BackupMark> {
        if self.read_only {
            return Some(BackupMark::default());
        }
        let has_ticket = self.tickets.placed.keys().next().is_some_and(|ticket| *ticket <= pending.ticket);
        (self.committed() >= pending.frame && !has_ticket).then_some(pending.mark)
    }

    /// Opens the snapshot of a backup: all namespaces of records and blocks as they are now, and how those with versions are. It is to be
    /// closed with [`Core::close_backup`]. Returns the number of a versioned namespace that must be loaded first, if one must.
    ///
    /// # Errors
    /// The device is closed.
    pub fn open_backup(&mut self) -> Result<Result<(BackupTicket, SnapshotTicket), u32>, Error> {
        let mut namespaces = Vec::new();
        for info in self.readable_namespaces() {
            let space = &self.spaces[&info.id];
            let versions = match space.versioned {
                None => None,
                Some(_) => {
                    let newest = self.newest_committed(info.id);
                    let at = space.with_versions(|versions| {
                        let columns = versions.columns();
                        let bytes = columns.segment_count() * columns.parameters().segment_bytes() as u64;
                        let timeline = versions.timeline().clone();
                        VersionsAt { newest, count: columns.version_count(), bytes, timeline }
                    });
                    let Some(at) = at else { return Ok(Err(info.id)) };
                    Some(at)
                }
            };
            namespaces.push((info, versions));
        }
        let snapshot = self.open_snapshot()?;
        let (open_blocks, full_blocks): (Vec<u32>, Vec<u32>) =
            self.blocks_in_use().into_iter().partition(|block| self.log.writers.is_active(*block));
        let is_read: Vec<AtomicBool> = (0..self.log.blocks.count()).map(|_| AtomicBool::new(true)).collect();
        for block in full_blocks.iter().chain(&open_blocks) {
            is_read[*block as usize].store(false, Ordering::SeqCst);
        }
        let watch = Arc::new(MoveWatch::new(is_read));
        self.snapshots.begin_backup(watch.clone());
        let live_bytes = self.taken_chunks() * u64::from(self.log.geometry.chunk_bytes);
        let sequence = self.log.sequence;
        let ticket = BackupTicket { watch, namespaces, sequence, live_bytes, full_blocks, open_blocks };
        Ok(Ok((ticket, snapshot)))
    }

    /// Ends a backup, and releases what only it saw.
    pub fn close_backup(&mut self, snapshot: SnapshotTicket, watch: &Arc<MoveWatch>) {
        self.snapshots.end_backup(watch);
        self.close_snapshot(snapshot);
    }

    /// A record has a new place.
    pub(crate) fn note_move(&self, moved: &Move) {
        for watch in self.snapshots.watches() {
            watch.note(self.log.block_of(moved.from.at), moved);
        }
    }
}

/// What was read of a block for a backup. The block is not erased until it is dropped.
pub struct BlockRead {
    /// Which block.
    pub block: u32,
    /// Bytes that were read.
    pub bytes: u64,
    slices: Vec<Slice>,
    _pin: Pin,
}

/// Records of a block that were read together.
struct Slice {
    extents: Vec<Extent>,
    data: AlignedBuf,
}

/// A record that was found in a block.
pub enum Scanned<'a> {
    /// Its header is whole.
    Record(ScannedRecord<'a>),
    /// No record can be recognized here, where one begins.
    Unreadable(u64),
}

/// A record whose header is whole.
pub struct ScannedRecord<'a> {
    /// Its namespace.
    pub namespace: u32,
    /// Its key.
    pub key: FullKey<'a>,
    /// Where it lies.
    pub slot: Slot,
    /// Its value; nothing if that does not match its checksum, or cannot be decompressed.
    pub value: Option<Cow<'a, [u8]>>,
    /// When it expires, in milliseconds since 1970; 0 for never, and if its value is nothing.
    pub expires: u64,
    /// Bytes that are stored of it besides the header.
    stored_bytes: u32,
    sequence: u64,
}

impl ScannedRecord<'_> {
    /// Whether it can be newer than a mark.
    pub fn may_be_after(&self, mark: &BackupMark) -> bool {
        self.sequence >= mark.record || self.stored_bytes as usize >= DIRECT_BYTES
    }
}

impl BlockRead {
    /// Reads the records of a block from the medium, those in pages after the mark. The caller holds the block ([`Core::hold_block`]).
    /// `spare` are buffers of earlier blocks ([`BlockRead::into_buffers`]).
    ///
    /// # Errors
    /// The medium's.
    pub fn read(
        reader: &Reader,
        medium: &dyn Medium,
        block: u32,
        after: &BackupMark,
        spare: &mut Vec<AlignedBuf>,
    ) -> Result<BlockRead, MediumError> {
        let geometry = medium.geometry();
        let mut read = BlockRead { block, bytes: 0, slices: Vec::new(), _pin: reader.pin_block(block) };
        let programmed = reader.programmed_chunks(block);
        let pages = crate::audit::read_entries(medium, block, programmed / geometry.chunks_per_page())?;
        read.bytes += u64::from(geometry.pages_per_block * geometry.oob_bytes);
        let has_records = |class: u8| {
            [Class::Hot, Class::Direct, Class::Cold, Class::Warm, Class::Cool].iter().any(|of| *of as u8 == class)
        };
        if pages.iter().flatten().any(|page| !has_records(page.class)) {
            return Ok(read);
        }
        let per_page = geometry.chunks_per_page();
        let is_after = |extent: &Extent| {
            let page = pages[(extent.start / per_page) as usize];
            extent.start + extent.chunk_count <= programmed && page.is_none_or(|page| page.sequence > after.page)
        };
        let found: Vec<Extent> = extents(&pages, per_page).into_iter().filter(is_after).collect();
        let mut rest = found.as_slice();
        while let Some(first) = rest.first() {
            let limit = first.start + SLICE_BYTES / geometry.chunk_bytes;
            let count = rest.iter().take_while(|extent| extent.start + extent.chunk_count <= limit).count().max(1);
            let (slice, others) = rest.split_at(count);
            let end = slice.last().map_or(first.start, |last| last.start + last.chunk_count);
            let at = geometry.chunk_at(BlockIndex(block), first.start);
            let bytes = ((end - first.start) * geometry.chunk_bytes) as usize;
            let known = spare.pop().filter(|buffer| buffer.capacity() >= bytes);
            let mut into = known.unwrap_or_else(|| AlignedBuf::for_transfers(bytes.max(SLICE_BYTES as usize)));
            into.set_len(bytes);
            let mut io = Io::Read { at, into };
            medium.execute(&mut io)?;
            let Io::Read { into, .. } = io else { unreachable!("still a read") };
            read.bytes += bytes as u64;
            read.slices.push(Slice { extents: slice.to_vec(), data: into });
            rest = others;
        }
        Ok(read)
    }

    /// Passes the records to `each`, several at a time, in the order of their places.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn for_each<'a, E>(
        &'a self,
        geometry: &Geometry,
        mut each: impl FnMut(&[Scanned<'a>]) -> Result<(), E>,
    ) -> Result<(), E> {
        let chunk = geometry.chunk_bytes as usize;
        let mut group = Vec::with_capacity(GROUP);
        for slice in &self.slices {
            let first = slice.extents[0].start;
            let bytes_of = |extent: &Extent| {
                let start = (extent.start - first) as usize * chunk;
                &slice.data[start..start + extent.chunk_count as usize * chunk]
            };
            for extents in slice.extents.chunks(GROUP) {
                for bytes in extents.iter().map(bytes_of) {
                    kaml_flash::prefetch(&bytes[..bytes.len().min(FETCHED_BYTES)]);
                }
                group.extend(extents.iter().map(|extent| {
                    let at = geometry.chunk_at(BlockIndex(self.block), extent.start);
                    let slot = Slot { at: at.0, len: code(extent.chunk_count) };
                    scan(bytes_of(extent), slot).map_or(Scanned::Unreadable(at.0), Scanned::Record)
                }));
                each(&group)?;
                group.clear();
            }
        }
        Ok(())
    }

    /// Its buffers, for the next block.
    pub fn into_buffers(self) -> impl Iterator<Item = AlignedBuf> {
        self.slices.into_iter().map(|slice| slice.data)
    }
}

fn scan(bytes: &[u8], slot: Slot) -> Option<ScannedRecord<'_>> {
    let record: Record = RecordHeader::check(bytes).filter(|record| record.kind.is_value())?;
    let stored = bytes.get(record.stored_range())?;
    let is_whole = kaml_crc::crc32c(stored) == record.value_crc;
    // The bytes of a long key follow the value: they are as whole as that is.
    if !is_whole && record.key.is_digest() {
        return None;
    }
    let key = record.full_key(stored)?;
    let own = &stored[..record.own_value_bytes(stored)?];
    let value = match (is_whole, record.packed) {
        (true, false) => Some(Cow::Borrowed(own)),
        (true, true) => {
            let mut value = Vec::new();
            unpack(own, &mut value).ok().map(|()| Cow::Owned(value))
        }
        (false, _) => None,
    };
    let expires = if is_whole { record.expires(stored)? } else { 0 };
    let (namespace, stored_bytes, sequence) = (record.namespace, record.value_len, record.sequence);
    Some(ScannedRecord { namespace, key, slot, value, expires, stored_bytes, sequence })
}
