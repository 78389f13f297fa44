//! The commit ring: frames being filled, in flight, and kept until their records are programmed.
//!
//! Lives here:       the staging frame, positions (`lsn`), the order of commits, the space of the ring.
//! Lives elsewhere:  what a committed record does (`core`), reading frames back (`recovery`).
//! Implements:       paper:KAML IV.D phase 1 (non-volatile buffer); docs/formats/ring.md.
//!
//! Invariants
//! - frames commit in the order of their numbers, whatever order their writes complete in;
//! - `tail <= start of every kept frame <= head`, and `head - tail <= ring_bytes`;
//! - the tail is the end of a frame, so the next one is found by it wherever it starts.

use crate::format::crc32c_append;
use crate::format::frame::{Frame, FrameHeader};
use crate::format::range::KeyRange;
use crate::format::record::{MAPPING_BYTES, RANGE_KEY, RING_ALIGN, RecordHeader};
use crate::secret::Sealer;
use kaml_flash::{AlignedBuf, ChunkAddr, Geometry, Io};
use kaml_index::{FullKey, KeptKey, Key, Slot};
use std::collections::VecDeque;

/// A record of a frame, applied to the index when the frame commits.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    pub(crate) namespace: u32,
    /// Its bytes too, if an ordered index needs them.
    pub(crate) key: KeptKey,
    /// Where it was placed; nothing for a delete.
    pub(crate) to: Option<Slot>,
    /// Its pages were programmed before; the ring holds only the place.
    pub(crate) is_mapping: bool,
    /// The sequence, if it belongs to a versioned namespace; else 0.
    pub(crate) version: u64,
    /// The keys that are deleted, if it is about a range of keys and not about one.
    pub(crate) range: Option<Box<KeyRange>>,
    /// When it expires; 0 for never.
    pub(crate) expires: u64,
}

impl Staged {
    /// Chunks of a value that was placed as it was staged.
    pub(crate) fn small_chunks(&self) -> u64 {
        self.to.filter(|_| !self.is_mapping).map_or(0, |to| to.len.chunks_max().into())
    }

    /// A record, or a delete, of a namespace without versions.
    pub(crate) fn new(namespace: u32, key: &FullKey<'_>, to: Option<Slot>, is_mapping: bool) -> Staged {
        Staged { namespace, key: key.into(), to, is_mapping, version: 0, range: None, expires: 0 }
    }

    /// The same, with a time at which it expires.
    pub(crate) fn expiring(self, expires: u64) -> Staged {
        Staged { expires, ..self }
    }

    /// A delete of all keys of a range.
    pub(crate) fn range(namespace: u32, range: KeyRange) -> Staged {
        let key = KeptKey::from(&FullKey::from(RANGE_KEY));
        Staged { namespace, key, to: None, is_mapping: false, version: 0, range: Some(Box::new(range)), expires: 0 }
    }

    /// Whether the key exists or not after it because of it.
    pub(crate) fn is_about(&self, namespace: u32, key: &FullKey<'_>) -> bool {
        let is_of_key = match &self.range {
            None => self.key.key() == key.key(),
            Some(range) => range.contains(key.as_bytes()),
        };
        self.namespace == namespace && is_of_key
    }

    /// A version or a command, which has no place yet.
    pub(crate) fn version(namespace: u32, key: Key, sequence: u64) -> Staged {
        let key = (&FullKey::from(key)).into();
        Staged { namespace, key, to: None, is_mapping: false, version: sequence, range: None, expires: 0 }
    }
}

struct Kept {
    number: u64,
    /// The end of the frame before; the frame itself may start in the next lap.
    start: u64,
    end: u64,
    durable: bool,
    /// Until they commit.
    records: Vec<Staged>,
    puts: usize,
    /// No version in it or before it has a larger sequence.
    version_end: u64,
}

/// The frame that collects Puts.
struct Staging {
    buf: AlignedBuf,
    len: usize,
    records: Vec<Staged>,
    records_crc: u32,
    /// Mapping records among them: the frame must not be durable before their pages are.
    mapping_count: usize,
    /// Puts that they belong to.
    puts: usize,
}

/// What a staging frame looked like before a Put, so the Put can be taken back.
pub(crate) struct Mark {
    len: usize,
    record_count: usize,
    records_crc: u32,
}

/// Frames in flight at once, by an event loop.
pub(crate) const PERSISTS_IN_FLIGHT_MAX: usize = 3;
/// Frames in flight at once otherwise. A second one gains 10 to 50 % for a few callers and costs as much for many.
const PERSISTS_OF_CALLERS_MAX: usize = 2;
/// Puts in flight up to which a second write may join.
const SECOND_PERSIST_PUTS_MAX: usize = 8;
/// Up to this many Puts a write costs the more for each the fewer they are.
const SMALL_FRAME_PUTS: usize = 32;

pub(crate) struct CommitRing {
    ring_bytes: u64,
    sector_bytes: u32,
    uuid: [u8; 16],
    sealer: Sealer,
    pub(crate) epoch: u64,
    head: u64,
    previous_end: u64,
    tail: u64,
    /// Where this opening of the device began.
    first_lsn: u64,
    /// Puts were refused because there is no room since the tail moved.
    is_blocked: bool,
    staging: Staging,
    staging_number: u64,
    spare: Vec<AlignedBuf>,
    /// Empty lists that the next staging frames use.
    spare_records: Vec<Vec<Staged>>,
    kept: VecDeque<Kept>,
    in_flight: usize,
    /// Puts of the frames in flight.
    in_flight_puts: usize,
    /// Puts of the frame that was written last.
    written_puts: usize,
    /// Frames before this one are committed, and end here.
    committed: u64,
    committed_end: u64,
    /// The largest sequence of a version staged so far.
    last_version: u64,
    /// No version in the kept frames has a sequence up to this one.
    released_version: u64,
    #[cfg(feature = "broken")]
    answered_early: u64,
    frame_bytes_max: usize,
}

impl CommitRing {
    pub(crate) fn new(geometry: &Geometry, uuid: [u8; 16], sealer: Sealer, epoch: u64, at: u64) -> CommitRing {
        let frame_bytes_max = frame_bytes_max(geometry);
        let staging = |()| Staging {
            buf: AlignedBuf::zeroed(frame_bytes_max),
            len: FrameHeader::BYTES,
            records: Vec::new(),
            records_crc: 0,
            mapping_count: 0,
            puts: 0,
        };
        CommitRing {
            ring_bytes: geometry.ring_bytes,
            sector_bytes: geometry.sector_bytes,
            uuid,
            sealer,
            epoch,
            head: at,
            previous_end: at,
            tail: at,
            first_lsn: at,
            is_blocked: false,
            staging: staging(()),
            staging_number: 1,
            spare: (0..PERSISTS_IN_FLIGHT_MAX).map(|_| AlignedBuf::zeroed(frame_bytes_max)).collect(),
            spare_records: Vec::new(),
            kept: VecDeque::new(),
            in_flight: 0,
            in_flight_puts: 0,
            written_puts: 0,
            committed: 1,
            committed_end: at,
            last_version: 0,
            released_version: 0,
            #[cfg(feature = "broken")]
            answered_early: 1,
            frame_bytes_max,
        }
    }

    /// Ring bytes that records of `payload_bytes` in all can take at most in one frame.
    pub(crate) fn payload_bytes_max(&self) -> usize {
        self.frame_bytes_max - FrameHeader::BYTES
    }

    /// Whether `bytes` more fit the staging frame, and that the ring: what is staged can be written whatever becomes of the flash.
    /// For what is refused the tail is to move.
    pub(crate) fn has_room(&mut self, bytes: usize) -> bool {
        let len = self.staging.len + bytes;
        if len > self.frame_bytes_max {
            return false;
        }
        let len = (len as u64).next_multiple_of(self.sector_bytes.into());
        let has_room = self.place(len).is_some();
        self.is_blocked |= !has_room;
        has_room
    }

    /// The frame being filled.
    pub(crate) fn staging_number(&self) -> u64 {
        self.staging_number
    }

    /// Frames before this one are committed.
    pub(crate) fn committed(&self) -> u64 {
        #[cfg(feature = "broken")]
        if crate::Broken::CommitsBeforePersist.is() {
            return self.committed.max(self.answered_early);
        }
        self.committed
    }

    pub(crate) fn has_staged(&self) -> bool {
        !self.staging.records.is_empty()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { len: self.staging.len, record_count: self.staging.records.len(), records_crc: self.staging.records_crc }
    }

    /// Takes back what was staged since the mark; returns it.
    pub(crate) fn rewind(&mut self, mark: Mark) -> Vec<Staged> {
        self.staging.len = mark.len;
        self.staging.records_crc = mark.records_crc;
        let back = self.staging.records.split_off(mark.record_count);
        self.staging.mapping_count -= back.iter().filter(|staged| staged.is_mapping).count();
        back
    }

    /// Appends a record to the staging frame, which has room for it: its header, what the frame's checksum covers, and what has a checksum
    /// of its own, a value and its suffix.
    pub(crate) fn stage(&mut self, header: &[u8], [head, value, suffix]: [&[u8]; 3], staged: Staged) {
        let staging = &mut self.staging;
        let begin = staging.len;
        let mut at = begin;
        for part in [header, head, value, suffix] {
            staging.buf[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let end = at.next_multiple_of(RING_ALIGN);
        staging.buf[at..end].fill(0);
        let checked = &staging.buf[begin..begin + header.len() + head.len()];
        staging.records_crc = crc32c_append(staging.records_crc, checked);
        self.last_version = self.last_version.max(staged.version);
        staging.len = end;
        staging.mapping_count += usize::from(staged.is_mapping);
        staging.records.push(staged);
    }

    /// All records of a Put are staged.
    pub(crate) fn end_put(&mut self) {
        self.staging.puts += 1;
    }

    /// Whether the staging frame should be written now. A second write in flight must carry half as many Puts as the
    /// first, and that one few: batches that are split cost more than the overlap gains.
    pub(crate) fn wants_persist(&self) -> bool {
        let staged = self.staging.puts;
        let second = staged * 2 >= self.in_flight_puts && self.in_flight_puts <= SECOND_PERSIST_PUTS_MAX;
        staged > 0 && (self.in_flight == 0 || second) && self.is_among(PERSISTS_OF_CALLERS_MAX)
    }

    /// Whether there are several callers, and few of them have staged.
    pub(crate) fn is_small(&self) -> bool {
        let staged = self.staging.puts;
        (staged > 1 || self.written_puts > 1) && staged <= SMALL_FRAME_PUTS
    }

    /// Closes the staging frame and returns its write, unless there is nothing to write, too much in flight, or no
    /// room in the ring until its tail moves.
    pub(crate) fn begin_persist(&mut self) -> Option<(u64, Io)> {
        if self.wants_persist() { self.begin() } else { None }
    }

    /// As [`CommitRing::begin_persist`], for an event loop: it has no callers to wake, so another write gains at any size,
    /// if it has half as many Puts as those in flight have on average. With it at most `in_flight_max` are, of
    /// [`PERSISTS_IN_FLIGHT_MAX`].
    pub(crate) fn begin_overlapping_persist(&mut self, in_flight_max: usize) -> Option<(u64, Io)> {
        let half = self.staging.puts * 2 * self.in_flight >= self.in_flight_puts;
        let among = self.is_among(in_flight_max.min(PERSISTS_IN_FLIGHT_MAX));
        if self.in_flight > 0 && half && self.has_staged() && among { self.begin() } else { None }
    }

    /// Whether the staging frame is one of the first so many that are not committed.
    fn is_among(&self, count: usize) -> bool {
        self.staging_number < self.committed + count as u64
    }

    fn begin(&mut self) -> Option<(u64, Io)> {
        let payload_len = self.staging.len - FrameHeader::BYTES;
        let len = (self.staging.len as u64).next_multiple_of(self.sector_bytes.into());
        let lsn = self.place(len)?;
        let frame = Frame {
            epoch: self.epoch,
            lsn,
            previous_end: self.previous_end,
            payload_len: payload_len as u32,
            record_count: self.staging.records.len() as u32,
            records_crc: self.staging.records_crc,
            committed_end: self.committed_end,
        };
        let next = Staging {
            buf: self.spare.pop().expect("checked"),
            len: FrameHeader::BYTES,
            records: self.spare_records.pop().unwrap_or_default(),
            records_crc: 0,
            mapping_count: 0,
            puts: 0,
        };
        let mut full = std::mem::replace(&mut self.staging, next);
        let (header, mask) = FrameHeader::encode(&frame, self.uuid, &self.sealer);
        full.buf[..FrameHeader::BYTES].copy_from_slice(&header);
        mask.apply(&mut full.buf[FrameHeader::BYTES..full.len], self.sector_bytes);
        full.buf[full.len..len as usize].fill(0);
        let number = self.staging_number;
        self.staging_number += 1;
        let start = self.previous_end;
        self.head = lsn + len;
        self.previous_end = self.head;
        self.in_flight += 1;
        self.in_flight_puts += full.puts;
        self.written_puts = full.puts;
        let barrier = full.mapping_count > 0;
        self.kept.push_back(Kept {
            number,
            start,
            end: self.head,
            durable: false,
            records: full.records,
            puts: full.puts,
            version_end: self.last_version,
        });
        #[cfg(feature = "broken")]
        if crate::Broken::CommitsBeforePersist.is() {
            self.answered_early = number + 1;
        }
        Some((number, Io::Persist { offset: lsn % self.ring_bytes, data: full.buf, len: len as usize, barrier }))
    }

    /// Where a frame of `len` bytes is written: at the head, or at the start of the next lap if it would wrap.
    fn place(&self, len: u64) -> Option<u64> {
        let in_lap = self.head % self.ring_bytes;
        let lsn = if in_lap + len > self.ring_bytes { self.head + self.ring_bytes - in_lap } else { self.head };
        (lsn + len - self.tail <= self.ring_bytes).then_some(lsn)
    }

    /// Whether Puts wait for the tail to move. A frame and what remains of the lap in front of it take up to a quarter of the ring
    /// together.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Where the tail is: what opening would begin with.
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Bytes between tail and head.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.head - self.tail
    }

    /// A frame is durable; [`CommitRing::next_commit`] states what this commits.
    pub(crate) fn persisted(&mut self, number: u64, buf: AlignedBuf) {
        self.in_flight -= 1;
        self.spare.push(buf);
        let at = self.place_of(number);
        let kept = &mut self.kept[at];
        kept.durable = true;
        self.in_flight_puts -= kept.puts;
    }

    /// The oldest durable frame that is not committed and its records; it counts as committed now.
    pub(crate) fn next_commit(&mut self) -> Option<(u64, Vec<Staged>)> {
        let at = self.place_of(self.committed);
        let kept = self.kept.get_mut(at).filter(|kept| kept.durable)?;
        self.committed += 1;
        self.committed_end = kept.end;
        Some((kept.number, std::mem::take(&mut kept.records)))
    }

    /// Takes the list of records that were committed, to use it again.
    pub(crate) fn give_back(&mut self, mut records: Vec<Staged>) {
        records.clear();
        self.spare_records.push(records);
    }

    /// Where the frame of a number, or the first one after it, stands among the kept ones: their numbers have no gaps.
    fn place_of(&self, number: u64) -> usize {
        let first = self.kept.front().map_or(number, |kept| kept.number);
        (number.saturating_sub(first) as usize).min(self.kept.len())
    }

    /// Records staged or in flight, oldest first.
    pub(crate) fn uncommitted(&self) -> impl DoubleEndedIterator<Item = &Staged> {
        self.kept.range(self.place_of(self.committed)..).flat_map(|kept| &kept.records).chain(&self.staging.records)
    }

    /// As [`CommitRing::uncommitted`], each with the number of its frame.
    pub(crate) fn uncommitted_in_frames(&self) -> impl DoubleEndedIterator<Item = (u64, &Staged)> {
        let kept = self.kept.range(self.place_of(self.committed)..);
        let in_flight = kept.flat_map(|kept| kept.records.iter().map(|staged| (kept.number, staged)));
        in_flight.chain(self.staging.records.iter().map(|staged| (self.staging_number, staged)))
    }

    /// As [`CommitRing::uncommitted`], to change where they lie.
    pub(crate) fn uncommitted_mut(&mut self) -> impl Iterator<Item = &mut Staged> {
        let first = self.place_of(self.committed);
        self.kept.range_mut(first..).flat_map(|kept| &mut kept.records).chain(&mut self.staging.records)
    }

    /// The oldest frame that opening the device would read.
    pub(crate) fn oldest_kept(&self) -> u64 {
        self.kept.front().map_or(self.staging_number, |kept| kept.number)
    }

    /// Where the tail may move if frames before `frame` are no longer needed.
    pub(crate) fn tail_before(&self, frame: u64) -> u64 {
        let needed = frame.min(self.committed);
        let at = self.place_of(needed);
        self.kept.get(at).map_or(self.head, |kept| kept.start)
    }

    /// The frame number at which a good part of the ring has been written since.
    pub(crate) fn frame_at_least_behind(&self, bytes: u64) -> u64 {
        let limit = self.head.saturating_sub(bytes);
        let at = self.kept.partition_point(|kept| kept.end <= limit);
        self.kept.get(at).map_or(self.staging_number, |kept| kept.number)
    }

    /// A root reports that nothing before `lsn` is needed.
    pub(crate) fn release(&mut self, lsn: u64) {
        assert!(lsn >= self.tail && lsn <= self.head, "tail moves from {} to {lsn}, head is {}", self.tail, self.head);
        self.is_blocked &= lsn == self.tail;
        self.tail = lsn;
        while self.kept.front().is_some_and(|kept| kept.end <= lsn)
            && let Some(kept) = self.kept.pop_front()
        {
            self.released_version = kept.version_end;
        }
    }

    /// continues after opening: no version in it has a sequence up to this one.
    pub(crate) fn begin_versions(&mut self, sequence: u64) {
        (self.last_version, self.released_version) = (sequence, sequence);
    }

    /// The frame that holds a committed version, or an earlier one.
    pub(crate) fn frame_of_version(&self, sequence: u64) -> u64 {
        let at = self.kept.partition_point(|kept| kept.version_end < sequence);
        self.kept.get(at).map_or(self.staging_number, |kept| kept.number)
    }

    /// The smallest sequence that a version in the ring can have.
    pub(crate) fn first_version(&self) -> u64 {
        self.released_version + 1
    }

    /// All versions in frames before this one have smaller sequences; 0 if there is no such frame.
    pub(crate) fn version_before(&self, frame: u64) -> u64 {
        let at = self.place_of(frame);
        let before = at.checked_sub(1).and_then(|at| self.kept.get(at));
        before.map_or(0, |kept| kept.version_end + 1)
    }

    /// Where this opening of the device began.
    pub(crate) fn first_lsn(&self) -> u64 {
        self.first_lsn
    }

    /// The position after the last committed frame.
    pub(crate) fn committed_end(&self) -> u64 {
        self.committed_end
    }

    /// The position after the last frame.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }
}

/// Largest frame: an eighth of the ring, at most 8 MiB.
pub(crate) fn frame_bytes_max(geometry: &Geometry) -> usize {
    (geometry.ring_bytes / 8).min(8 << 20).next_multiple_of(4096) as usize
}

/// This many sequences at most are used after those that the present root reports: more than a ring has records, for of Puts that find
/// no room the sequences are gone.
pub(crate) fn sequences_ahead_max(geometry: &Geometry) -> u64 {
    2 * geometry.ring_bytes / RecordHeader::RING_BYTES_MIN as u64
}

/// The payload of a mapping record.
pub(crate) fn mapping_payload(at: ChunkAddr) -> [u8; MAPPING_BYTES] {
    at.0.to_le_bytes()
}
