//! Versioned namespaces in the ring and in metadata pages: stamps, the directory of segments, kept versions.
//!
//! Lives here:       their bytes, checked decoding.
//! Lives elsewhere:  version records and tables (`kaml-versions`), entries of the journal (`journal`).
//! Implements:       docs/versioned.md "In the device"; docs/formats/ring.md, docs/formats/segment-directory.md.

use kaml_versions::{Command, SegmentAt, Stamp, Timeline, Version, records};

/// Follows the header of a version or a command in the ring.
///
/// | offset | bytes | field          | meaning                                                         |
/// |-------:|------:|----------------|-----------------------------------------------------------------|
/// |      0 |     8 | `time_ns`      | nanoseconds since 1970, by the host's clock                     |
/// |      8 |     4 | `user_version` | the user version that the version belongs to; for a command its |
/// |        |       |                | kind: 1 snapshot, 2 roll back, 3 forget, 4 forget through       |
/// |     12 |     4 | `reserved`     | zero                                                            |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct VersionStamp {
    pub(crate) time_ns: u64,
    pub(crate) user_version: u32,
}

impl VersionStamp {
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.user_version.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<VersionStamp> {
        let bytes: &[u8; Self::BYTES] = bytes.first_chunk()?;
        let time_ns = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let user_version = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
        (bytes[12..] == [0; 4]).then_some(VersionStamp { time_ns, user_version })
    }
}

/// A command as its kind and the number that it is about.
pub(crate) fn command_code(command: Command) -> (u32, u32) {
    match command {
        Command::Snapshot => (1, 0),
        Command::RollBack(version) => (2, version),
        Command::Forget(version) => (3, version),
        Command::ForgetThrough(version) => (4, version),
    }
}

/// The command of [`command_code`].
pub(crate) fn command_of(kind: u32, version: u32) -> Option<Command> {
    match kind {
        1 => Some(Command::Snapshot),
        2 => Some(Command::RollBack(version)),
        3 => Some(Command::Forget(version)),
        4 => Some(Command::ForgetThrough(version)),
        _ => None,
    }
}

/// A sealed segment in the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) at: SegmentAt,
    /// Pages of its table, its last ones.
    pub(crate) table_pages: u16,
    /// Versions in it that are the newest of their key.
    pub(crate) live: u16,
    /// What distinguishes it from others ([`kaml_versions::SegmentInfo::identity`]); 0 if an older device did not write it down.
    pub(crate) identity: u32,
}

/// The sealed segments of a namespace, row by row, oldest first, and its timeline.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Directory {
    pub(crate) rows: Vec<Vec<Entry>>,
    pub(crate) timeline: Timeline,
}

const MAGIC: [u8; 4] = *b"KVD2";
/// For directories without identities, one time.
const OLD_MAGIC: [u8; 4] = *b"KVD1";

impl Directory {
    /// A namespace without segments.
    pub(crate) fn new(rows: u32) -> Directory {
        Directory { rows: vec![Vec::new(); rows as usize], timeline: Timeline::default() }
    }

    /// The bytes: twice the same, each from a page's start. The stream that holds them has a checksum.
    pub(crate) fn encode(&self, page_bytes: usize) -> Vec<u8> {
        let mut copy = self.encode_once();
        copy.resize(copy.len().next_multiple_of(page_bytes), 0);
        copy.repeat(2)
    }

    fn encode_once(&self) -> Vec<u8> {
        let timeline = self.timeline.encode();
        let mut bytes = MAGIC.to_vec();
        bytes.extend((self.rows.len() as u32).to_le_bytes());
        bytes.extend((timeline.len() as u32).to_le_bytes());
        bytes.extend(timeline);
        for row in &self.rows {
            bytes.extend((row.len() as u32).to_le_bytes());
            for entry in row {
                bytes.extend(&entry.at.get().to_le_bytes()[..6]);
                bytes.extend(entry.table_pages.to_le_bytes());
                bytes.extend(entry.live.to_le_bytes());
                bytes.extend(entry.identity.to_le_bytes());
            }
        }
        bytes
    }

    /// Bytes that have this checksum, made again from those of which one half is damaged.
    pub(crate) fn mend(bytes: &[u8], crc32c: u32) -> Option<Vec<u8>> {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        [first, second].map(|half| half.repeat(2)).into_iter().find(|bytes| kaml_crc::crc32c(bytes) == crc32c)
    }

    /// The directory, of this many rows, that is in `bytes`.
    pub(crate) fn decode(bytes: &[u8], rows: u32) -> Option<Directory> {
        let is_old = bytes.starts_with(&OLD_MAGIC);
        let mut bytes = if is_old { bytes } else { &bytes[..bytes.len() / 2] };
        let rest = &mut bytes;
        let magic = take::<4>(rest)?;
        if !(is_old || magic == MAGIC) || u32::from_le_bytes(take(rest)?) != rows {
            return None;
        }
        let (timeline, mut entries) = {
            let len = u32::from_le_bytes(take(rest)?) as usize;
            rest.split_at_checked(len)?
        };
        let mut directory = Directory { rows: Vec::new(), timeline: Timeline::decode(timeline).ok()? };
        for _ in 0..rows {
            let count = u32::from_le_bytes(take(&mut entries)?);
            directory.rows.push((0..count).map(|_| entry(&mut entries, !is_old)).collect::<Option<_>>()?);
        }
        let is_end = if is_old { entries.is_empty() } else { entries.iter().all(|byte| *byte == 0) };
        is_end.then_some(directory)
    }
}

fn entry(rest: &mut &[u8], has_identity: bool) -> Option<Entry> {
    let mut at = [0; 8];
    at[..6].copy_from_slice(&take::<6>(rest)?);
    let at = SegmentAt::new(u64::from_le_bytes(at))?;
    let (table_pages, live) = (u16::from_le_bytes(take(rest)?), u16::from_le_bytes(take(rest)?));
    let identity = if has_identity { u32::from_le_bytes(take(rest)?) } else { 0 };
    Some(Entry { at, table_pages, live, identity })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}

/// Versions that a stream of kept ones holds: their records one after another.
pub(crate) fn kept_versions(bytes: &[u8]) -> Option<Vec<(Version, &[u8])>> {
    records(bytes).collect::<Result<_, _>>().ok()
}

/// When a command happened, as the journal has it.
pub(crate) fn stamp(sequence: u64, time_ns: u64) -> Stamp {
    Stamp { sequence, time_ns }
}
