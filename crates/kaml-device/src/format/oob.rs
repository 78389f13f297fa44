//! The out-of-band entry of a page.
//!
//! Lives here:       the entry, its checks, how records are found in a block without the index.
//! Implements:       paper:KAML IV.B and Figure 4 (bitmap of last chunks); docs/formats/page.md.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Written with each page, so that a scan alone can find the records in it.
///
/// | offset | bytes | field      | meaning                                                           |
/// |-------:|------:|------------|-------------------------------------------------------------------|
/// |      0 |     4 | `magic`    | `"OOB1"`; an erased page reads all ones or zeroes, never this     |
/// |      4 |     4 | `crc32c`   | over bytes 8..32                                                  |
/// |      8 |     8 | `bitmap`   | bit `i`: chunk `i` is the last of a record                        |
/// |     16 |     8 | `sequence` | program order over the life of the device; the opening above bit 40 |
/// |     24 |     2 | `log`      | the log this page was appended to                                 |
/// |     26 |     1 | `class`    | 1 hot, 2 direct, 3 cold, 4 journal, 5 snapshot, 6 warm, 7 cool    |
/// |     27 |     1 | `flags`    | bit 0: the first chunk continues a record that began in an earlier page |
/// |     28 |     4 | `reserved` | zero when written, refused when not zero                          |
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct PageOob {
    magic: [u8; 4],
    crc32c: U32,
    bitmap: U64,
    sequence: U64,
    log: U16,
    class: u8,
    flags: u8,
    reserved: [u8; 4],
}

const _: () = {
    assert!(size_of::<PageOob>() == 32);
    assert!(std::mem::offset_of!(PageOob, sequence) == 16 && std::mem::offset_of!(PageOob, reserved) == 28);
};

/// A checked entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Oob {
    pub(crate) bitmap: u64,
    pub(crate) sequence: u64,
    pub(crate) log: u16,
    pub(crate) class: u8,
    pub(crate) continues: bool,
}

impl PageOob {
    const MAGIC: [u8; 4] = *b"OOB1";

    /// The entry's bytes at the start of `into`; the rest is zeroed.
    pub(crate) fn encode(oob: &Oob, into: &mut [u8]) {
        let mut entry = PageOob {
            magic: Self::MAGIC,
            crc32c: U32::ZERO,
            bitmap: oob.bitmap.into(),
            sequence: oob.sequence.into(),
            log: oob.log.into(),
            class: oob.class,
            flags: oob.continues.into(),
            reserved: [0; 4],
        };
        entry.crc32c = crc_fast::crc32_iscsi(&entry.as_bytes()[8..]).into();
        into.fill(0);
        into[..32].copy_from_slice(entry.as_bytes());
    }

    /// The entry at `bytes`; nothing if the page is erased or the entry torn.
    pub(crate) fn check(bytes: &[u8]) -> Option<Oob> {
        let (entry, _) = PageOob::read_from_prefix(bytes).ok()?;
        let whole = entry.magic == Self::MAGIC
            && entry.crc32c.get() == crc_fast::crc32_iscsi(&entry.as_bytes()[8..])
            && entry.reserved == [0; 4]
            && entry.flags <= 1;
        whole.then(|| Oob {
            bitmap: entry.bitmap.get(),
            sequence: entry.sequence.get(),
            log: entry.log.get(),
            class: entry.class,
            continues: entry.flags == 1,
        })
    }
}

/// The entries of a block's pages, from their bytes. Pages are programmed in their order, so one that is older than a page in
/// front of it was left by an erase that was not durable when the block was used again: it does not count.
pub(crate) fn entries_of_block(bytes: &[u8], oob_bytes: usize) -> Vec<Option<Oob>> {
    let mut newest = 0;
    let mut counts = |entry: &Oob| {
        let is_newer = entry.sequence >= newest;
        newest = newest.max(entry.sequence);
        is_newer
    };
    bytes.chunks(oob_bytes).map(|page| PageOob::check(page).filter(&mut counts)).collect()
}

/// Where a record lies in a block, in chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) start: u32,
    pub(crate) chunk_count: u32,
}

/// Finds the records of a block from its pages' entries alone. A page without an entry ends every record in it.
pub(crate) fn extents(pages: &[Option<Oob>], chunks_per_page: u32) -> Vec<Extent> {
    let mut found = Vec::new();
    let mut open: Option<u32> = None; // start of a record that has not ended yet
    for (page, entry) in pages.iter().enumerate() {
        let base = page as u32 * chunks_per_page;
        let Some(oob) = entry else {
            open = None;
            continue;
        };
        // A record left open by the page before goes on here, or else what looked open was padding.
        let mut start = match (oob.continues, open) {
            (true, kept) => kept,
            (false, _) => Some(base),
        };
        for chunk in 0..chunks_per_page {
            if oob.bitmap >> chunk & 1 == 1 {
                if let Some(start) = start {
                    found.push(Extent { start, chunk_count: base + chunk + 1 - start });
                }
                start = Some(base + chunk + 1);
            }
        }
        // A record that filled the page to its end leaves nothing open; the next page says whether anything is.
        open = start.filter(|start| *start < base + chunks_per_page);
    }
    found
}
