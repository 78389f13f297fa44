//! The journal: which key moved where, in commit order.
//!
//! Lives here:       entries and pages of them, checked decoding.
//! Implements:       docs/formats/journal.md.

use super::range::KeyRange;
use super::version::{Entry, command_code, command_of, stamp};
use kaml_index::{FullKey, KEY_BYTES_MAX, Key, LenCode, Slot};
use kaml_versions::{Command, SegmentAt, Stamp};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Stands at the start of each journal page.
///
/// | offset | bytes | field         | meaning                                        |
/// |-------:|------:|---------------|------------------------------------------------|
/// |      0 |     4 | `magic`       | `"KJP1"`                                       |
/// |      4 |     4 | `crc32c`      | over bytes 8.. of the page                     |
/// |      8 |     8 | `first_entry` | number of the first entry, counted from format |
/// |     16 |     4 | `entry_count` | entries that follow                            |
/// |     20 |    12 | `reserved`    | zero                                           |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct JournalPage {
    magic: [u8; 4],
    crc32c: U32,
    first_entry: U64,
    entry_count: U32,
    reserved: [u8; 12],
}

/// | offset | bytes | field       | meaning                                                          |
/// |-------:|------:|-------------|------------------------------------------------------------------|
/// |      0 |     4 | `namespace` | the namespace; 0: the entry is about a block                     |
/// |      4 |     1 | `key_len`   | 1..=16, 17: a digest; for a block 0; for a versioned namespace   |
/// |        |       |             | 0; 18: bytes of the key whose digest comes next, or of the range |
/// |        |       |             | that comes next; 19: a range is deleted; 20: records expired     |
/// |      5 |     1 | `len_code`  | length code of the record, 0: deleted; for a block 1: bad; for a |
/// |        |       |             | versioned namespace 1 segment in, 2 segments out, 3 command; for |
/// |        |       |             | bytes of a key 0; 128: the entry is when the record expires      |
/// |      6 |     6 | `at`        | chunk number; for a block its erase count; for a command its     |
/// |        |       |             | sequence; for bytes of a key where they begin in it and its      |
/// |        |       |             | length (u16 each); for an expiry milliseconds since 1970, 0:     |
/// |        |       |             | never; for expired records the time up to which                  |
/// |     12 |    16 | `key`       | the key, zero-padded; for a block its number (u32); for segments |
/// |        |       |             | row, place in it (u32 each), pages of the table (out: segments), |
/// |        |       |             | live versions (u16 each); for a command its time (u64), its kind |
/// |        |       |             | and the user version it is about (u32 each)                      |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct JournalEntry {
    namespace: U32,
    key_len: u8,
    len_code: u8,
    at: [u8; 6],
    key: [u8; 16],
}

const _: () = {
    assert!(size_of::<JournalPage>() == HEADER_BYTES);
    assert!(size_of::<JournalEntry>() == ENTRY_BYTES);
};

const MAGIC: [u8; 4] = *b"KJP1";
const HEADER_BYTES: usize = 32;
pub(crate) const ENTRY_BYTES: usize = 28;

/// One change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// The key's record lies there now.
    Moved { namespace: u32, key: Key, to: Slot },
    /// The key is gone.
    Deleted { namespace: u32, key: Key },
    /// The block has been erased so often, or is bad.
    Block { block: u32, erase_count: u32, bad: bool },
    /// A segment exists in its row; those from this place on move one further.
    SegmentIn { namespace: u32, row: u32, place: u32, entry: Entry },
    /// This many segments from this place of the row on are gone.
    SegmentsOut { namespace: u32, row: u32, place: u32, count: u16 },
    /// The keys of a range are gone. The bytes of the range are in entries in front of this one, as those of a long key are.
    RangeDeleted { namespace: u32 },
    /// Sixteen bytes of a key, of so many in all, from there on, the last ones padded with zeroes. The entry that follows the last of
    /// them has the digest of the key. Only of ordered namespaces.
    KeyBytes { namespace: u32, from: u16, len: u16, bytes: [u8; KEY_BYTES_PER_ENTRY] },
    /// The record of the key expires then, in milliseconds since 1970; 0: it does not.
    Expires { namespace: u32, key: Key, at: u64 },
    /// The records that expire up to this time are gone.
    Expired { namespace: u32, until: u64 },
    /// A command on user versions.
    Versions { namespace: u32, command: Command, stamp: Stamp },
}

/// Entries that fit a page.
pub(crate) fn entries_per_page(page_bytes: usize) -> usize {
    (page_bytes - HEADER_BYTES) / ENTRY_BYTES
}

/// Writes entry `index` of a page.
pub(crate) fn write_entry(page: &mut [u8], index: usize, change: &Change) {
    let entry = match *change {
        Change::Moved { namespace, key, to } => JournalEntry {
            namespace: namespace.into(),
            key_len: key.stored().1,
            len_code: to.len.get(),
            at: to.at.to_le_bytes()[..6].try_into().expect("six bytes"),
            key: *key.stored().0,
        },
        Change::Deleted { namespace, key } => JournalEntry {
            namespace: namespace.into(),
            key_len: key.stored().1,
            len_code: 0,
            at: [0; 6],
            key: *key.stored().0,
        },
        Change::Expires { namespace, key, at } => JournalEntry {
            namespace: namespace.into(),
            key_len: key.stored().1,
            len_code: EXPIRES,
            at: at.to_le_bytes()[..6].try_into().expect("six bytes"),
            key: *key.stored().0,
        },
        Change::Expired { namespace, until } => {
            let at = until.to_le_bytes()[..6].try_into().expect("six bytes");
            JournalEntry { namespace: namespace.into(), key_len: EXPIRED, len_code: 0, at, key: [0; 16] }
        }
        Change::RangeDeleted { namespace } => {
            JournalEntry { namespace: namespace.into(), key_len: RANGE, len_code: 0, at: [0; 6], key: [0; 16] }
        }
        Change::KeyBytes { namespace, from, len, bytes } => {
            let at = u64::from(from) | u64::from(len) << 16;
            let at = at.to_le_bytes()[..6].try_into().expect("six bytes");
            JournalEntry { namespace: namespace.into(), key_len: KEY_BYTES, len_code: 0, at, key: bytes }
        }
        Change::Block { block, erase_count, bad } => {
            let mut key = [0; 16];
            key[..4].copy_from_slice(&block.to_le_bytes());
            let at = u64::from(erase_count).to_le_bytes()[..6].try_into().expect("six bytes");
            JournalEntry { namespace: U32::ZERO, key_len: 0, len_code: bad.into(), at, key }
        }
        Change::SegmentIn { namespace, row, place, entry } => {
            let words = [row, place, u32::from(entry.table_pages) | u32::from(entry.live) << 16, entry.identity];
            versioned(namespace, SEGMENT_IN, entry.at.get(), words)
        }
        Change::SegmentsOut { namespace, row, place, count } => {
            versioned(namespace, SEGMENTS_OUT, 0, [row, place, count.into(), 0])
        }
        Change::Versions { namespace, command, stamp } => {
            let (kind, version) = command_code(command);
            let time = [stamp.time_ns as u32, (stamp.time_ns >> 32) as u32];
            versioned(namespace, COMMAND, stamp.sequence, [time[0], time[1], kind, version])
        }
    };
    let at = HEADER_BYTES + index * ENTRY_BYTES;
    page[at..at + ENTRY_BYTES].copy_from_slice(entry.as_bytes());
}

/// As `key_len`: bytes of a key.
const KEY_BYTES: u8 = 18;
pub(crate) const KEY_BYTES_PER_ENTRY: usize = 16;

/// As `key_len`: a range.
const RANGE: u8 = 19;

/// As `key_len`: records expired.
const EXPIRED: u8 = 20;

/// As `len_code`: when the record of the key expires.
const EXPIRES: u8 = 128;

/// The entries that precede one of a long key, or of a range: its bytes.
pub(crate) fn key_bytes(namespace: u32, bytes: &[u8]) -> impl Iterator<Item = Change> {
    let len = bytes.len() as u16;
    let pieces = (0u16..).step_by(KEY_BYTES_PER_ENTRY).zip(bytes.chunks(KEY_BYTES_PER_ENTRY));
    pieces.map(move |(from, piece)| {
        let mut bytes = [0; KEY_BYTES_PER_ENTRY];
        bytes[..piece.len()].copy_from_slice(piece);
        Change::KeyBytes { namespace, from, len, bytes }
    })
}

/// Puts the bytes of long keys and of ranges together again.
#[derive(Debug, Default)]
pub(crate) struct LongKey {
    namespace: u32,
    bytes: Vec<u8>,
    len: usize,
}

impl LongKey {
    /// Takes the next bytes. Those that do not follow the last ones begin no key.
    pub(crate) fn add(&mut self, namespace: u32, from: u16, len: u16, bytes: &[u8; KEY_BYTES_PER_ENTRY]) {
        if from == 0 {
            *self = LongKey { namespace, bytes: std::mem::take(&mut self.bytes), len: len.into() };
            self.bytes.clear();
        }
        if (self.namespace, self.bytes.len(), self.len) == (namespace, from.into(), len.into()) {
            let rest = self.len.saturating_sub(self.bytes.len()).min(bytes.len());
            self.bytes.extend_from_slice(&bytes[..rest]);
        } else {
            self.len = 0;
        }
    }

    /// The key of an entry: of a digest, with the bytes that came before it, if all of them did.
    pub(crate) fn of(&self, namespace: u32, key: Key) -> FullKey<'_> {
        match key.is_digest() && self.is_whole(namespace) && (Key::BYTES_MAX + 1..=KEY_BYTES_MAX).contains(&self.len) {
            true => FullKey::long(key, &self.bytes),
            false => key.into(),
        }
    }

    fn is_whole(&self, namespace: u32) -> bool {
        self.namespace == namespace && self.bytes.len() == self.len
    }

    /// The range whose bytes came before, if all of them did.
    pub(crate) fn range(&self, namespace: u32) -> Option<KeyRange> {
        self.is_whole(namespace).then(|| KeyRange::decode(&self.bytes)).flatten()
    }

    /// Forgets them: they belong to one entry.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.len = 0;
    }
}

const SEGMENT_IN: u8 = 1;
const SEGMENTS_OUT: u8 = 2;
const COMMAND: u8 = 3;

fn versioned(namespace: u32, kind: u8, at: u64, words: [u32; 4]) -> JournalEntry {
    let mut key = [0; 16];
    key.chunks_exact_mut(4).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
    let at = at.to_le_bytes()[..6].try_into().expect("six bytes");
    JournalEntry { namespace: namespace.into(), key_len: 0, len_code: kind, at, key }
}

fn decode_versioned(namespace: u32, kind: u8, at: u64, key: &[u8; 16]) -> Option<Change> {
    let word = |i: usize| u32::from_le_bytes(key[i * 4..i * 4 + 4].try_into().expect("four bytes"));
    match kind {
        SEGMENT_IN => {
            let (table_pages, live) = (word(2) as u16, (word(2) >> 16) as u16);
            let entry = Entry { at: SegmentAt::new(at)?, table_pages, live, identity: word(3) };
            Some(Change::SegmentIn { namespace, row: word(0), place: word(1), entry })
        }
        SEGMENTS_OUT => Some(Change::SegmentsOut { namespace, row: word(0), place: word(1), count: word(2) as u16 }),
        COMMAND => {
            let time_ns = u64::from(word(0)) | u64::from(word(1)) << 32;
            let command = command_of(word(2), word(3))?;
            Some(Change::Versions { namespace, command, stamp: stamp(at, time_ns) })
        }
        _ => None,
    }
}

/// The entries of a page, as bytes.
pub(crate) fn entry_bytes(page: &[u8], entry_count: usize) -> &[u8] {
    &page[HEADER_BYTES..HEADER_BYTES + entry_count * ENTRY_BYTES]
}

/// The changes that entries say, or nothing unless each is one.
pub(crate) fn changes(entries: &[u8]) -> Option<Vec<Change>> {
    let entries = entries.chunks(ENTRY_BYTES);
    entries.map(decode).collect()
}

/// Completes a page of `entry_count` entries.
pub(crate) fn seal(page: &mut [u8], first_entry: u64, entry_count: usize) {
    page[HEADER_BYTES + entry_count * ENTRY_BYTES..].fill(0);
    let mut header = JournalPage {
        magic: MAGIC,
        crc32c: U32::ZERO,
        first_entry: first_entry.into(),
        entry_count: (entry_count as u32).into(),
        reserved: [0; 12],
    };
    page[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    header.crc32c = kaml_crc::crc32c(&page[8..]).into();
    page[..HEADER_BYTES].copy_from_slice(header.as_bytes());
}

/// The changes of a page and the number of the first, or nothing unless the page is whole.
pub(crate) fn check(page: &[u8]) -> Option<(u64, Vec<Change>)> {
    let (header, _) = JournalPage::read_from_prefix(page).ok()?;
    let count = header.entry_count.get() as usize;
    let whole = header.magic == MAGIC
        && header.crc32c.get() == kaml_crc::crc32c(&page[8..])
        && header.reserved == [0; 12]
        && count <= entries_per_page(page.len());
    if !whole {
        return None;
    }
    Some((header.first_entry.get(), changes(entry_bytes(page, count))?))
}

fn decode(bytes: &[u8]) -> Option<Change> {
    let entry = JournalEntry::read_from_bytes(bytes).ok()?;
    let mut at = [0; 8];
    at[..6].copy_from_slice(&entry.at);
    let at = u64::from_le_bytes(at);
    let namespace = entry.namespace.get();
    if namespace == 0 {
        let block = u32::from_le_bytes(entry.key[..4].try_into().expect("four bytes"));
        return Some(Change::Block { block, erase_count: u32::try_from(at).ok()?, bad: entry.len_code == 1 });
    }
    if entry.key_len == 0 {
        return decode_versioned(namespace, entry.len_code, at, &entry.key);
    }
    if entry.key_len == KEY_BYTES {
        let (from, len) = (at as u16, (at >> 16) as u16);
        let is_one = entry.len_code == 0 && at >> 32 == 0;
        return is_one.then_some(Change::KeyBytes { namespace, from, len, bytes: entry.key });
    }
    if entry.key_len == RANGE {
        let is_one = entry.len_code == 0 && at == 0 && entry.key == [0; 16];
        return is_one.then_some(Change::RangeDeleted { namespace });
    }
    if entry.key_len == EXPIRED {
        let is_one = entry.len_code == 0 && entry.key == [0; 16];
        return is_one.then_some(Change::Expired { namespace, until: at });
    }
    let key = Key::of_stored(&entry.key, entry.key_len)?;
    if entry.len_code == EXPIRES {
        return Some(Change::Expires { namespace, key, at });
    }
    match LenCode::from_stored(entry.len_code) {
        Some(len) => Some(Change::Moved { namespace, key, to: Slot { at, len } }),
        None if entry.len_code == 0 => Some(Change::Deleted { namespace, key }),
        None => None,
    }
}
