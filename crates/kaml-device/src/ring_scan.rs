//! Walking the commit ring after a crash.
//!
//! Lives here:       finding frame after frame, distinguishing a power cut's end from damage.
//! Lives elsewhere:  what frames look like (`format::frame`), what their records mean (`recovery`).
//! Implements:       docs/formats/ring.md "When a frame counts".

use crate::error::Error;
use crate::format::frame::{Frame, FrameHeader};
use crate::metadata::READS_MAX;
use crate::ring::{PERSISTS_IN_FLIGHT_MAX, frame_bytes_max};
use crate::secret::{Sealer, Secret};
use kaml_flash::{AlignedBuf, Medium};
use std::cmp::Ordering;

/// What becomes of frames after one that is not whole, where no power cut leaves any.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gaps {
    /// Nobody looks for them.
    End,
    /// They are an error: what was acknowledged is damaged.
    Refused,
    /// They count as if nothing had been in front of them.
    Skipped,
}

/// Walks the frames of the ring from its tail.
pub(crate) struct RingScan<'a> {
    medium: &'a dyn Medium,
    /// What distinguishes frames from values; nothing if the frames of this epoch were written before the device had a secret.
    sealer: Option<Sealer>,
    epoch: u64,
    gaps: Gaps,
    /// After the last frame that was accepted.
    pub(crate) end: u64,
    /// Gaps that were skipped, for a person.
    pub(crate) skipped: Vec<String>,
    /// What was read last, and from where: one read brings many small frames.
    window: AlignedBuf,
    window_offset: u64,
    /// So much, if more than what is needed.
    look_bytes: u64,
}

/// Bytes read at a time while looking for frames.
const LOOK_BYTES: u64 = 1 << 20;

impl<'a> RingScan<'a> {
    pub(crate) fn new(medium: &'a dyn Medium, secret: Option<&Secret>, epoch: u64, tail: u64, gaps: Gaps) -> Self {
        let sealer = secret.filter(|secret| secret.covers(epoch)).map(Secret::sealer);
        let window = AlignedBuf::zeroed(0);
        let skipped = Vec::new();
        RingScan { medium, sealer, epoch, gaps, end: tail, skipped, window, window_offset: 0, look_bytes: LOOK_BYTES }
    }

    /// The next whole frame with its payload: after the last one, or at the start of the next lap.
    pub(crate) fn next(&mut self) -> Result<Option<(Frame, Vec<u8>)>, Error> {
        self.look_bytes = LOOK_BYTES;
        for _ in 0..READS_MAX {
            if let Some(found) = self.whole_behind(self.end)? {
                return Ok(Some(found));
            }
            // Read again, but no more than that.
            (self.window, self.look_bytes) = (AlignedBuf::zeroed(0), 0);
        }
        if self.gaps == Gaps::End {
            return Ok(None);
        }
        let Some(frame) = self.frame_behind_gap()? else { return Ok(None) };
        let offset = self.end % self.medium.geometry().ring_bytes;
        let what = format!("the frame at byte {offset} of the commit ring, which others follow");
        if self.gaps == Gaps::Refused {
            return Err(Error::MetadataDamaged(what));
        }
        self.skipped.push(what);
        if frame.epoch != self.epoch {
            return Ok(None);
        }
        self.end = frame.previous_end;
        self.whole_at(frame.lsn, frame.previous_end)
    }

    /// Whether a frame of a later life is where its first one would be: the root of that life is damaged.
    pub(crate) fn has_later_life(&self) -> Result<bool, Error> {
        // A bit that flips on its way hides one; none makes one.
        for lsn in self.places_behind(self.end).repeat(READS_MAX as usize) {
            if self.header_at(lsn)?.is_some_and(|frame| frame.epoch > self.epoch && frame.lsn >= self.end) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn accept(&mut self, frame: &Frame) {
        self.end = self.end_of(frame);
    }

    fn end_of(&self, frame: &Frame) -> u64 {
        frame.lsn + frame.ring_bytes(self.medium.geometry().sector_bytes)
    }

    /// Where a frame may begin whose predecessor ends at `end`.
    fn places_behind(&self, end: u64) -> [u64; 2] {
        [end, end.next_multiple_of(self.medium.geometry().ring_bytes)]
    }

    fn whole_behind(&mut self, end: u64) -> Result<Option<(Frame, Vec<u8>)>, Error> {
        for lsn in self.places_behind(end) {
            if let Some(found) = self.whole_at(lsn, end)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn whole_at(&mut self, lsn: u64, previous_end: u64) -> Result<Option<(Frame, Vec<u8>)>, Error> {
        let (medium, sealer) = (self.medium, self.sealer);
        let geometry = medium.geometry();
        let offset = lsn % geometry.ring_bytes;
        let head = self.read(offset, geometry.sector_bytes.into())?;
        let Some((frame, mask)) = FrameHeader::check(head, medium.uuid(), sealer.as_ref()) else { return Ok(None) };
        let bytes = frame.ring_bytes(geometry.sector_bytes);
        let expected = frame.epoch == self.epoch && frame.lsn == lsn && frame.previous_end == previous_end;
        if !expected || offset + bytes > geometry.ring_bytes {
            return Ok(None);
        }
        let mut payload = self.read(offset, bytes)?[FrameHeader::BYTES..][..frame.payload_len as usize].to_vec();
        if let Some(mask) = mask {
            mask.apply(&mut payload, geometry.sector_bytes);
        }
        Ok(frame.records(&payload).is_some().then_some((frame, payload)))
    }

    /// Bytes of the ring. More are read with them, for the next frames.
    fn read(&mut self, offset: u64, bytes: u64) -> Result<&[u8], Error> {
        let window = self.window_offset..self.window_offset + self.window.len() as u64;
        if !(window.contains(&offset) && offset + bytes <= window.end) {
            let ahead = self.look_bytes.max(bytes).min(self.medium.geometry().ring_bytes - offset);
            let mut read = AlignedBuf::zeroed(ahead as usize);
            self.medium.read_ring(offset, &mut read)?;
            (self.window, self.window_offset) = (read, offset);
        }
        Ok(&self.window[(offset - self.window_offset) as usize..][..bytes as usize])
    }

    fn header_at(&self, lsn: u64) -> Result<Option<Frame>, Error> {
        let geometry = self.medium.geometry();
        let mut head = AlignedBuf::zeroed(geometry.sector_bytes as usize);
        self.medium.read_ring(lsn % geometry.ring_bytes, &mut head)?;
        Ok(self.check(&head))
    }

    fn check(&self, head: &[u8]) -> Option<Frame> {
        FrameHeader::check(head, self.medium.uuid(), self.sealer.as_ref()).map(|(frame, _)| frame)
    }

    /// The first frame after one that should be at `end` and is not whole, if no power cut explains both. A few frames may
    /// be in flight, so those after a torn one may exist, but none after them; and no frame of a later lap or life is
    /// written over one that the root still needs.
    fn frame_behind_gap(&self) -> Result<Option<Frame>, Error> {
        let geometry = self.medium.geometry();
        let sector = u64::from(geometry.sector_bytes);
        let limit = self.end + frame_bytes_max(geometry) as u64;
        // At the end of a lap, what the next one may begin with comes first.
        let mut from = self.end;
        while from <= limit {
            let offset = from % geometry.ring_bytes;
            let bytes = LOOK_BYTES.min(geometry.ring_bytes - offset);
            let mut piece = AlignedBuf::zeroed(bytes as usize);
            self.medium.read_ring(offset, &mut piece)?;
            for (lsn, head) in (from..).step_by(sector as usize).zip(piece.chunks(sector as usize)) {
                let Some(frame) = self.check(head) else { continue };
                if frame.lsn % geometry.ring_bytes == lsn % geometry.ring_bytes && self.tells_a_gap(&frame, lsn)? {
                    return Ok(Some(frame));
                }
            }
            from += bytes;
        }
        Ok(None)
    }

    /// Whether no power cut leaves this frame, which is at `lsn` or where that was one or more laps ago.
    fn tells_a_gap(&self, frame: &Frame, lsn: u64) -> Result<bool, Error> {
        match frame.epoch.cmp(&self.epoch) {
            Ordering::Less => Ok(false),
            Ordering::Greater => Ok(frame.lsn >= self.end),
            // The one that should be at `end` may begin the next lap, and exist except for a part of it.
            Ordering::Equal if frame.previous_end <= self.end => Ok(false),
            Ordering::Equal => Ok(frame.lsn > lsn || self.proves_a_gap(frame)?),
        }
    }

    /// Whether this frame, or one that follows it, was begun when the one that should be at `end` was committed. No more
    /// need be looked at than can be in flight at once.
    fn proves_a_gap(&self, frame: &Frame) -> Result<bool, Error> {
        let mut frame = *frame;
        for _ in 1..PERSISTS_IN_FLIGHT_MAX {
            if frame.committed_end > self.end {
                return Ok(true);
            }
            let Some(next) = self.header_behind(&frame)? else { return Ok(false) };
            frame = next;
        }
        Ok(frame.committed_end > self.end)
    }

    /// The header of the frame that names this one as its predecessor.
    fn header_behind(&self, frame: &Frame) -> Result<Option<Frame>, Error> {
        let end = self.end_of(frame);
        for lsn in self.places_behind(end) {
            let names_it = |next: &Frame| (next.epoch, next.lsn, next.previous_end) == (frame.epoch, lsn, end);
            let next = self.header_at(lsn)?.filter(names_it);
            if next.is_some() {
                return Ok(next);
            }
        }
        Ok(None)
    }
}
