//! Committed changes, read from the commit ring.
//!
//! Lives here:       positions in the order of commits, reading one committed frame after another, the changes that a frame has.
//! Lives elsewhere:  writing frames (`ring`), recovery (`ring_scan`, `recovery`), waiting and namespaces (`kaml::changes`).
//! Implements:       docs/ARCHITECTURE.md "The change stream"; docs/formats/ring.md.
//!
//! The ring keeps every frame until later ones overwrite it, whether or not an opening would still need it. So a reader needs nothing of
//! the core but the position up to which frames are committed, and a Put does nothing for it. A frame that is being overwritten fails its
//! checksums.

use crate::compression::{Compression, pack};
use crate::core::Core;
use crate::format::frame::{Frame, FrameHeader};
use crate::format::range::KeyRange;
use crate::format::record::{MAPPING_BYTES, Record, RecordHeader, RecordKind};
use crate::format::version::{VersionStamp, command_of};
use crate::secret::Sealer;
use kaml_flash::{AlignedBuf, ChunkAddr, Io, Medium, MediumError};
use kaml_index::{Key, KeyBuf};
use kaml_versions::Command;
use std::collections::BTreeMap;

/// Bytes that are read of the ring at a time.
const READ_BYTES: u64 = 1 << 20;

/// A position in the order of commits: after everything that was committed before it, and before everything that is committed later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct RingPosition {
    /// The opening of the device in which the commit before it was written.
    pub epoch: u64,
    /// Bytes that the ring had taken up to here, since the device was created. It never decreases.
    pub lsn: u64,
}

/// What a reader of the ring needs to know of it.
#[derive(Clone, Copy, Debug)]
pub struct RingState {
    /// The position after the last commit.
    pub committed: RingPosition,
    /// Where the present opening began.
    begin: u64,
    /// Frames up to here are being written.
    head: u64,
    ring_bytes: u64,
}

impl RingState {
    /// Whether the frames after a position can be overwritten already.
    fn has_overwritten(&self, lsn: u64) -> bool {
        self.head.saturating_sub(lsn) > self.ring_bytes
    }
}

/// Why the commits after a position cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub enum RingReadError {
    /// No frame follows the position: later ones have overwritten it, or it is damaged.
    Gone,
    /// The position is one of commits that this device does not have: they were lost with a machine that failed, or the device is a copy.
    Unknown,
    /// The medium cannot be read.
    Medium(MediumError),
}

impl From<MediumError> for RingReadError {
    fn from(error: MediumError) -> Self {
        RingReadError::Medium(error)
    }
}

/// A change that was committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RingChange {
    /// A record, or a unit of blocks, is stored.
    Put {
        /// Its namespace.
        namespace: u32,
        /// Its key.
        key: KeyBuf,
        /// Its value.
        value: Vec<u8>,
        /// When it expires, milliseconds since 1970; 0 for never.
        expires: u64,
    },
    /// The same, of a large value, which is in pages.
    Placed(PlacedChange),
    /// A key is deleted.
    Delete {
        /// Its namespace.
        namespace: u32,
        /// The key.
        key: KeyBuf,
    },
    /// A key is deleted of which the ring has a digest alone: an earlier build has written it.
    DeleteOfDigest,
    /// The keys of a range are deleted.
    DeleteRange {
        /// Their namespace.
        namespace: u32,
        /// The range.
        range: KeyRange,
    },
    /// A version is stored.
    Version {
        /// Its namespace.
        namespace: u32,
        /// Its key.
        key: KeyBuf,
        /// Where the version is among all.
        at: VersionAt,
        /// Its value.
        value: VersionValue,
    },
    /// A command on user versions.
    VersionCommand {
        /// The namespace.
        namespace: u32,
        /// Where the command is among all versions.
        at: VersionAt,
        /// What it does.
        command: Command,
    },
}

/// Which version it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VersionAt {
    /// Its number in the order of all versions of the device.
    pub sequence: u64,
    /// When it was put: nanoseconds since 1970.
    pub time_ns: u64,
    /// The user version that it belongs to.
    pub user_version: u32,
}

/// What a version stores.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VersionValue {
    /// The key is deleted.
    Deleted,
    /// These bytes.
    Bytes(Vec<u8>),
    /// A value in pages.
    Placed(PlacedChange),
}

/// A value in pages, where it was when it was committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacedChange {
    record: Record,
    at: ChunkAddr,
}

impl PlacedChange {
    /// Its namespace: a hidden one, of a value of a version.
    pub fn namespace(&self) -> u32 {
        self.record.namespace
    }

    /// The key, unless it is above 16 bytes: then its digest.
    pub fn key(&self) -> &Key {
        &self.record.key
    }

    /// Bytes of the value and of what is stored with it.
    pub fn stored_bytes(&self) -> usize {
        self.record.value_len as usize
    }
}

/// A value that was read from pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedValue {
    /// Its key.
    pub key: KeyBuf,
    /// The value.
    pub value: Vec<u8>,
    /// When it expires, milliseconds since 1970; 0 for never.
    pub expires: u64,
}

impl Core {
    /// Up to where the ring is committed.
    pub fn ring_state(&self) -> RingState {
        let ring = &self.log.ring;
        let committed = RingPosition { epoch: ring.epoch, lsn: ring.committed_end() };
        RingState { committed, begin: ring.first_lsn(), head: ring.head(), ring_bytes: self.log.geometry.ring_bytes }
    }

    /// A reader of the commits after a position.
    pub fn ring_reader(&self, after: RingPosition) -> RingReader {
        let sealer = self.root.secret.expect("drawn when the device was opened").sealer();
        RingReader { sealer, at: after, window: AlignedBuf::zeroed(0), window_lsn: 0 }
    }
}

/// Reads committed frames one after another.
pub struct RingReader {
    sealer: Sealer,
    at: RingPosition,
    /// Committed bytes that were read last, and their position.
    window: AlignedBuf,
    window_lsn: u64,
}

impl RingReader {
    /// The position after the last frame that was returned.
    pub fn position(&self) -> RingPosition {
        self.at
    }

    /// The changes of the next committed frame, in their order; nothing if all frames are read. A frame has whole Puts, in the order in
    /// which they took effect.
    ///
    /// # Errors
    /// The frame cannot be read. One that is overwritten meanwhile does not match its checksums.
    pub fn next(&mut self, medium: &dyn Medium, state: &RingState) -> Result<Option<Vec<RingChange>>, RingReadError> {
        let (at, committed) = (self.at, state.committed);
        let is_lost = at.lsn > committed.lsn || at.epoch > committed.epoch;
        let is_lost = is_lost || !at.lsn.is_multiple_of(medium.geometry().sector_bytes.into());
        if is_lost || (at.epoch < committed.epoch && at.lsn > state.begin) {
            return Err(RingReadError::Unknown);
        }
        if at.lsn == committed.lsn {
            return Ok(None);
        }
        if state.has_overwritten(at.lsn) {
            return Err(RingReadError::Gone);
        }
        // A frame that never counted can be here from an earlier opening, if the first frame of the next one had no room here.
        let places = [at.lsn, at.lsn.next_multiple_of(state.ring_bytes)];
        let mut found: Option<(Frame, Vec<u8>)> = None;
        for lsn in places {
            if let Some(frame) = self.frame_at(medium, state, lsn)?
                && found.as_ref().is_none_or(|(other, _)| other.epoch < frame.0.epoch)
            {
                found = Some(frame);
            }
        }
        let Some((frame, payload)) = found else { return Err(RingReadError::Gone) };
        let changes = frame.records(&payload).and_then(changes_of).ok_or(RingReadError::Gone)?;
        self.at = RingPosition { epoch: frame.epoch, lsn: self.end_of(medium, &frame) };
        Ok(Some(changes))
    }

    fn end_of(&self, medium: &dyn Medium, frame: &Frame) -> u64 {
        frame.lsn + frame.ring_bytes(medium.geometry().sector_bytes)
    }

    /// The committed frame at a position that follows the last one.
    fn frame_at(
        &mut self,
        medium: &dyn Medium,
        state: &RingState,
        lsn: u64,
    ) -> Result<Option<(Frame, Vec<u8>)>, MediumError> {
        let sector = medium.geometry().sector_bytes;
        if lsn + u64::from(sector) > state.committed.lsn {
            return Ok(None);
        }
        let (sealer, at) = (self.sealer, self.at);
        let head = self.read(medium, state, lsn, sector.into())?;
        let Some((frame, mask)) = FrameHeader::check(head, medium.uuid(), Some(&sealer)) else { return Ok(None) };
        let bytes = frame.ring_bytes(sector);
        let end = lsn + bytes;
        let follows = frame.lsn == lsn && frame.previous_end == at.lsn && frame.epoch >= at.epoch;
        // A device that is only read has the epoch of the frames before it.
        let is_before = frame.epoch <= state.committed.epoch && end <= state.begin;
        let is_of_its_opening = is_before || (frame.epoch == state.committed.epoch && at.lsn >= state.begin);
        let is_in_lap = lsn % state.ring_bytes + bytes <= state.ring_bytes;
        if !(follows && is_of_its_opening && is_in_lap && end <= state.committed.lsn) {
            return Ok(None);
        }
        let whole = self.read(medium, state, lsn, bytes)?;
        let mut payload = whole[FrameHeader::BYTES..][..frame.payload_len as usize].to_vec();
        if let Some(mask) = mask {
            mask.apply(&mut payload, sector);
        }
        Ok(Some((frame, payload)))
    }

    /// Committed bytes of the ring, within a lap. More are read with them, for the next frames.
    fn read(&mut self, medium: &dyn Medium, state: &RingState, lsn: u64, bytes: u64) -> Result<&[u8], MediumError> {
        let window = self.window_lsn..self.window_lsn + self.window.len() as u64;
        if !(window.contains(&lsn) && lsn + bytes <= window.end) {
            let offset = lsn % state.ring_bytes;
            let ahead = READ_BYTES.max(bytes).min(state.ring_bytes - offset).min(state.committed.lsn - lsn);
            let mut read = AlignedBuf::zeroed(ahead as usize);
            medium.read_ring(offset, &mut read)?;
            (self.window, self.window_lsn) = (read, lsn);
        }
        Ok(&self.window[(lsn - self.window_lsn) as usize..][..bytes as usize])
    }
}

/// Reads a value from where it was when it was committed; nothing if something else is in its place.
///
/// # Errors
/// The medium's.
pub fn read_placed(medium: &dyn Medium, placed: &PlacedChange) -> Result<Option<PlacedValue>, MediumError> {
    let bytes = placed.record.named_bytes();
    let mut io = Io::Read { at: placed.at, into: AlignedBuf::zeroed(bytes) };
    medium.execute(&mut io)?;
    let Io::Read { into, .. } = io else { unreachable!("still a read") };
    Ok(placed.value_in(&into))
}

impl PlacedChange {
    /// The value in what was read of its place, if that still has its record.
    fn value_in(&self, bytes: &[u8]) -> Option<PlacedValue> {
        let record = RecordHeader::check(bytes)?;
        let same = |record: &Record| (record.namespace, record.key, record.value_len, record.value_crc);
        if !record.kind.is_value() || same(&record) != same(&self.record) {
            return None;
        }
        let stored = bytes.get(record.stored_range())?;
        if kaml_crc::crc32c(stored) != record.value_crc {
            return None;
        }
        let (key, expires) = (record.full_key(stored)?.to_buf(), record.expires(stored)?);
        let value = record.given_value(stored)?;
        Some(PlacedValue { key, value, expires })
    }

    /// Whether this is the value that was committed.
    pub fn is_value(&self, key: &KeyBuf, value: &[u8], expires: u64) -> bool {
        if !self.record.packed {
            return self.is_stored(key, value, expires);
        }
        // Equal values become equal bytes by the same method.
        let mut packed = Vec::new();
        Compression::ALL.into_iter().any(|method| {
            pack(method, value, value.len().saturating_sub(1), &mut packed) && self.is_stored(key, &packed, expires)
        })
    }

    fn is_stored(&self, key: &KeyBuf, value: &[u8], expires: u64) -> bool {
        let mut stored = kaml_crc::crc32c(value);
        let mut bytes = value.len();
        if self.record.key.is_digest() {
            let len = (key.as_bytes().len() as u16).to_le_bytes();
            stored = crate::format::crc32c_append(stored, key.as_bytes());
            stored = crate::format::crc32c_append(stored, &len);
            bytes += key.as_bytes().len() + len.len();
        }
        if expires != 0 {
            stored = crate::format::crc32c_append(stored, &expires.to_le_bytes());
            bytes += size_of::<u64>();
        }
        (stored, bytes) == (self.record.value_crc, self.record.value_len as usize)
    }
}

/// The changes of a frame; nothing if a record of it makes no sense.
fn changes_of(records: Vec<(Record, &[u8])>) -> Option<Vec<RingChange>> {
    // The mapping of a large value of a version precedes the version.
    let mut placed = BTreeMap::new();
    let mut changes = Vec::with_capacity(records.len());
    for (record, body) in records {
        let namespace = record.namespace;
        let at = || {
            let VersionStamp { time_ns, user_version } = VersionStamp::decode(body)?;
            Some(VersionAt { sequence: record.sequence, time_ns, user_version })
        };
        let key = || record.full_key(body).map(|key| key.to_buf());
        changes.push(match record.kind {
            RecordKind::Value | RecordKind::Expiring => {
                let value = record.given_value(body)?;
                RingChange::Put { namespace, key: key()?, value, expires: record.expires(body)? }
            }
            RecordKind::Tombstone if record.key.is_digest() && body.is_empty() => RingChange::DeleteOfDigest,
            RecordKind::Tombstone => RingChange::Delete { namespace, key: key()? },
            RecordKind::Mapping | RecordKind::ExpiringMapping => {
                let at = ChunkAddr(u64::from_le_bytes(*body.first_chunk::<MAPPING_BYTES>()?));
                let change = PlacedChange { record, at };
                placed.insert((record.key.as_u64(), namespace), change);
                RingChange::Placed(change)
            }
            RecordKind::RangeTombstone => RingChange::DeleteRange { namespace, range: KeyRange::decode(body)? },
            RecordKind::Version => {
                let value = VersionValue::Bytes(body[VersionStamp::BYTES..].to_vec());
                RingChange::Version { namespace, key: record.key.into(), at: at()?, value }
            }
            RecordKind::VersionTombstone => {
                let value = VersionValue::Deleted;
                RingChange::Version { namespace, key: record.key.into(), at: at()?, value }
            }
            RecordKind::LargeVersion => {
                let number = u64::from_le_bytes(*body[VersionStamp::BYTES..].first_chunk()?);
                let of = placed.iter().rev().find(|((key, _), _)| *key == Some(number));
                let value = VersionValue::Placed(*of?.1);
                RingChange::Version { namespace, key: record.key.into(), at: at()?, value }
            }
            RecordKind::VersionCommand => {
                let at = at()?;
                let number = u32::try_from(record.key.as_u64()?).ok()?;
                let command = command_of(at.user_version, number)?;
                RingChange::VersionCommand { namespace, at, command }
            }
        });
    }
    Some(changes)
}
