//! The journal: which key moved where, in commit order.
//!
//! Lives here:       entries and pages of them, checked decoding.
//! Implements:       design section 6 (recovery); docs/formats/journal.md.

use super::version::{Entry, command_code, command_of, stamp};
use kaml_index::{Key, LenCode, Slot};
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
/// |      4 |     1 | `key_len`   | 1..=16; for a block 0; for a versioned namespace 0               |
/// |      5 |     1 | `len_code`  | length code of the record, 0: deleted; for a block 1: bad; for a |
/// |        |       |             | versioned namespace 1 segment in, 2 segments out, 3 command      |
/// |      6 |     6 | `at`        | chunk number; for a block its erase count; for a command its     |
/// |        |       |             | sequence                                                         |
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
    /// A segment stands there in its row; those from this place on stand one further.
    SegmentIn { namespace: u32, row: u32, place: u32, entry: Entry },
    /// So many segments from this place of the row on are gone.
    SegmentsOut { namespace: u32, row: u32, place: u32, count: u16 },
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
            key_len: key.len() as u8,
            len_code: to.len.get(),
            at: to.at.to_le_bytes()[..6].try_into().expect("six bytes"),
            key: *key.padded(),
        },
        Change::Deleted { namespace, key } => JournalEntry {
            namespace: namespace.into(),
            key_len: key.len() as u8,
            len_code: 0,
            at: [0; 6],
            key: *key.padded(),
        },
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
    header.crc32c = crc_fast::crc32_iscsi(&page[8..]).into();
    page[..HEADER_BYTES].copy_from_slice(header.as_bytes());
}

/// The changes of a page and the number of the first, or nothing unless the page is whole.
pub(crate) fn check(page: &[u8]) -> Option<(u64, Vec<Change>)> {
    let (header, _) = JournalPage::read_from_prefix(page).ok()?;
    let count = header.entry_count.get() as usize;
    let whole = header.magic == MAGIC
        && header.crc32c.get() == crc_fast::crc32_iscsi(&page[8..])
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
    let key = Key::new(entry.key.get(..usize::from(entry.key_len))?).ok()?;
    match LenCode::from_stored(entry.len_code) {
        Some(len) => Some(Change::Moved { namespace, key, to: Slot { at, len } }),
        None if entry.len_code == 0 => Some(Change::Deleted { namespace, key }),
        None => None,
    }
}
