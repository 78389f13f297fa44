//! What a device must hold while a trace is replayed, and after a power cut.
//!
//! Lives here:       objects and blocks by version, the bytes of a version, comparing a recovered device.
//! Lives elsewhere:  when a version is committed (`replay`).
//!
//! A version is a number. Its bytes are one word again and again, so nothing has to keep them.

use crate::load::Load;
use crate::medium::SimMedium;
use crate::rng::mix;
use crate::trace::Extent;
use kaml_device::{BlockOptions, Buffered, Core, FindError, FlashRead, Found, Key};
use kaml_flash::{AlignedBuf, Io, Medium};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// A hasher for numbers, the same in each run.
#[derive(Default)]
pub(super) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }
}

type Table<K, V> = HashMap<K, V, BuildHasherDefault<Mixed>>;

/// Blocks of a unit.
const PER_UNIT: usize = 8;
/// Blocks of an extent.
const PER_EXTENT: usize = (EXTENT_BYTES / BLOCK_BYTES) as usize;
const BLOCK_BYTES: u64 = super::BLOCK_BYTES as u64;
/// What volumes are placed in.
const EXTENT_BYTES: u64 = 1 << 20;

/// A version of an object's piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stored {
    pub(super) version: u32,
    pub(super) bytes: u32,
}

/// What a host's command must find, or stores.
pub(super) enum Expected {
    Nothing,
    Version(u32),
    Object(Option<Stored>),
    Blocks([u32; PER_UNIT]),
}

fn word(version: u32) -> u64 {
    if version == 0 { 0 } else { mix(u64::from(version)) }
}

/// The bytes of a version.
pub(super) fn fill_value(version: u32, bytes: u32, into: &mut Vec<u8>) {
    let word = word(version).to_le_bytes();
    into.clear();
    into.resize(bytes as usize, 0);
    for chunk in into.chunks_mut(word.len()) {
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

fn is_of(version: u32, value: &[u8]) -> bool {
    let word = word(version).to_le_bytes();
    let (chunks, end) = value.as_chunks::<8>();
    chunks.iter().all(|chunk| *chunk == word) && *end == word[..end.len()]
}

fn is_stored(stored: Option<Stored>, value: &[u8]) -> bool {
    match stored {
        Some(Stored { version, bytes }) => value.len() == bytes as usize && is_of(version, value),
        None => value.is_empty(),
    }
}

/// The blocks of a unit; an absent unit reads as zeroes.
fn blocks_of(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    (0..PER_UNIT).map(move |block| {
        let at = block * BLOCK_BYTES as usize;
        value.get(at..at + BLOCK_BYTES as usize).unwrap_or(&[])
    })
}

impl Expected {
    pub(super) fn is(&self, value: &[u8]) -> bool {
        match self {
            Expected::Object(stored) => is_stored(*stored, value),
            Expected::Blocks(versions) => {
                let blocks = versions.iter().zip(blocks_of(value));
                blocks
                    .into_iter()
                    .all(|(version, block)| is_of(*version, block) && (*version == 0 || !block.is_empty()))
            }
            Expected::Nothing | Expected::Version(_) => false,
        }
    }
}

/// Objects and their records.
#[derive(Default)]
pub(super) struct Objects {
    /// By the number of a piece; deleted ones have no version.
    stored: Table<u64, Option<Stored>>,
    /// Pieces of the objects that have several.
    pieces: Table<u64, u32>,
}

impl Objects {
    /// The number of a piece.
    pub(super) fn piece(key: u64, piece: u32) -> u64 {
        key.wrapping_add(u64::from(piece).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(super) fn pieces(&self, key: u64) -> u32 {
        if self.pieces.is_empty() { 1 } else { self.pieces.get(&key).copied().unwrap_or(1) }
    }

    pub(super) fn set_pieces(&mut self, key: u64, pieces: u32) {
        if pieces > 1 {
            self.pieces.insert(key, pieces);
        } else if !self.pieces.is_empty() {
            self.pieces.remove(&key);
        }
    }

    pub(super) fn get(&self, number: u64) -> Option<Stored> {
        self.stored.get(&number).copied().flatten()
    }

    pub(super) fn put(&mut self, number: u64, stored: Option<Stored>) {
        self.stored.insert(number, stored);
    }

    /// Compares a device that was opened after a power cut; returns how many records.
    pub(super) fn compare(
        &self,
        core: &mut Core,
        medium: &SimMedium,
        space: u32,
        pending: &[(u64, Option<Stored>)],
    ) -> Result<u64, String> {
        let mut allowed: Table<u64, Vec<Option<Stored>>> = Table::default();
        for (number, stored) in pending {
            allowed.entry(*number).or_default().push(*stored);
        }
        let new = allowed.keys().filter(|number| !self.stored.contains_key(number));
        let mut compared = 0;
        for number in self.stored.keys().chain(new) {
            let value = read(core, medium, space, Key::from(Load::key(*number)), None)?;
            let others = allowed.get(number).map_or(&[][..], Vec::as_slice);
            let is_right = is_stored(self.get(*number), &value) || others.iter().any(|other| is_stored(*other, &value));
            if !is_right {
                let was = self.get(*number);
                return Err(format!("record {number:#x} had {} other bytes instead of {was:?}", value.len()));
            }
            compared += 1;
        }
        Ok(compared)
    }
}

/// Volumes on a disk of blocks.
pub(super) struct Disk {
    extents: Table<(u64, u64), u32>,
    extents_max: u64,
    /// By extent of the disk, the version of each block.
    versions: Vec<Box<[u32]>>,
}

impl Disk {
    pub(super) fn new(bytes: u64) -> Disk {
        Disk { extents: Table::default(), extents_max: bytes / EXTENT_BYTES, versions: Vec::new() }
    }

    /// The bytes of the disk that hold an extent of a volume, in whole blocks; nothing if the disk is full.
    pub(super) fn place(&mut self, extent: &Extent, ranges: &mut Vec<Range<u64>>) -> Option<()> {
        let mut at = extent.offset / BLOCK_BYTES * BLOCK_BYTES;
        let end = (extent.offset + u64::from(extent.bytes)).next_multiple_of(BLOCK_BYTES);
        while at < end {
            let number = at / EXTENT_BYTES;
            let next = self.versions.len() as u32;
            let placed = *self.extents.entry((extent.volume, number)).or_insert(next);
            if placed == next {
                if u64::from(next) >= self.extents_max {
                    return None;
                }
                self.versions.push(vec![0; PER_EXTENT].into_boxed_slice());
            }
            let until = end.min((number + 1) * EXTENT_BYTES);
            let start = u64::from(placed) * EXTENT_BYTES + at % EXTENT_BYTES;
            let bytes = until - at;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += bytes,
                _ => ranges.push(start..start + bytes),
            }
            at = until;
        }
        Some(())
    }

    fn block(&self, block: u64) -> u32 {
        let extent = (block as usize) / PER_EXTENT;
        self.versions.get(extent).map_or(0, |blocks| blocks[block as usize % PER_EXTENT])
    }

    /// The versions of the blocks of the unit that a byte is in.
    pub(super) fn unit(&self, byte: u64) -> [u32; PER_UNIT] {
        let first = byte / (BLOCK_BYTES * PER_UNIT as u64) * PER_UNIT as u64;
        std::array::from_fn(|i| self.block(first + i as u64))
    }

    pub(super) fn written(&mut self, range: &Range<u64>, version: u32) {
        for block in range.start / BLOCK_BYTES..range.end / BLOCK_BYTES {
            self.versions[block as usize / PER_EXTENT][block as usize % PER_EXTENT] = version;
        }
    }

    /// As [`Objects::compare`], unit by unit.
    pub(super) fn compare(
        &self,
        core: &mut Core,
        medium: &SimMedium,
        space: u32,
        pending: &[(Range<u64>, u32)],
    ) -> Result<u64, String> {
        let unit_bytes = u64::from(BlockOptions::default().unit_bytes);
        let units = self.versions.len() as u64 * EXTENT_BYTES / unit_bytes;
        for unit in 0..units {
            let value = read(core, medium, space, Key::from(unit), Some(unit))?;
            let versions = self.unit(unit * unit_bytes);
            for (i, (version, block)) in versions.into_iter().zip(blocks_of(&value)).enumerate() {
                let at = unit * unit_bytes + i as u64 * BLOCK_BYTES;
                let is_right = |version: u32| is_of(version, block) && (version == 0 || !block.is_empty());
                let is_pending = || pending.iter().any(|(range, version)| range.contains(&at) && is_right(*version));
                if !is_right(version) && !is_pending() {
                    return Err(format!("block {} had other bytes than those of write {version}", at / BLOCK_BYTES));
                }
            }
        }
        Ok(units)
    }
}

/// The value of a record or a unit; nothing if it does not exist.
fn read(core: &mut Core, medium: &SimMedium, space: u32, key: Key, unit: Option<u64>) -> Result<Vec<u8>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("a read failed: {error}");
    let flash = |read: FlashRead| {
        let mut io = Io::Read { at: read.at, into: AlignedBuf::zeroed(read.bytes) };
        medium.execute(&mut io).map_err(|error| failed(&error))?;
        let Io::Read { into, .. } = io else { unreachable!("the operation of a read") };
        let value = read.value(&into).map_err(|error| failed(&error))?;
        Ok(value.of(&into).to_vec())
    };
    loop {
        let found = match unit {
            Some(unit) => core.reader().find_unit(space, unit),
            None => core.reader().find(space, key),
        };
        return match found {
            Ok(Found::Absent) => Ok(Vec::new()),
            Ok(Found::Flash(read)) => flash(read),
            Ok(Found::Buffered) => match core.read_buffered(space, key) {
                Ok(Buffered::Value(value)) => Ok(value.to_vec()),
                Ok(Buffered::Packed(packed)) => {
                    packed.unpack().map(|value| value.to_vec()).map_err(|error| failed(&error))
                }
                Ok(Buffered::Programmed(read)) => flash(read),
                Ok(Buffered::Absent) => Ok(Vec::new()),
                Err(FindError::NeedIndex) => continue,
                Err(FindError::Refused(error)) => Err(failed(&error)),
            },
            Err(FindError::NeedIndex) => {
                core.load_index(medium, space).map_err(|error| failed(&error))?;
                continue;
            }
            Err(FindError::Refused(error)) => Err(failed(&error)),
        };
    }
}
