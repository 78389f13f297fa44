//! The out-of-band entry of a page.
//!
//! Lives here:       the entry, its checks, how records are found in a block without the index.
//! Implements:       paper:KAML IV.B and Figure 4 (bitmap of last chunks); docs/formats/page.md.

use super::record::RecordHeader;
use crate::secret::Sealer;
use kaml_flash::PageAddr;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Written with each page, so a scan alone can find the records in it.
///
/// | offset | bytes | field      | meaning                                                           |
/// |-------:|------:|------------|-------------------------------------------------------------------|
/// |      0 |     4 | `magic`    | `"OOB2"`, before devices had a secret `"OOB1"`; an erased page reads all ones or zeroes, never this |
/// |      4 |     4 | `crc32c`   | over bytes 8..32                                                  |
/// |      8 |     8 | `bitmap`   | bit `i`: chunk `i` is the last of a record                        |
/// |     16 |     8 | `sequence` | program order over the life of the device; the opening above bit 40 |
/// |     24 |     2 | `log`      | the log this page was appended to                                 |
/// |     26 |     1 | `class`    | 1 hot, 2 direct, 3 cold, 4 journal, 5 snapshot, 6 warm, 7 cool    |
/// |     27 |     1 | `flags`    | bit 0: the first chunk continues a record that began in an earlier page |
/// |     28 |     4 | `tag`      | follows from the secret, the page's address, bytes 8..28 and the headers of records that begin in the page; zero if none can, and in `"OOB1"` |
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
    tag: U32,
}

const _: () = {
    assert!(size_of::<PageOob>() == 32);
    assert!(std::mem::offset_of!(PageOob, sequence) == 16 && std::mem::offset_of!(PageOob, tag) == 28);
};

/// A checked entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Oob {
    pub(crate) bitmap: u64,
    pub(crate) sequence: u64,
    pub(crate) log: u16,
    pub(crate) class: u8,
    pub(crate) continues: bool,
    /// What authenticates it; nothing if it was written before the device had a secret.
    pub(crate) tag: Option<u32>,
}

impl Oob {
    /// The chunks of the page in which a record can begin, as far as this entry shows.
    fn starts(&self, chunks_per_page: u32) -> impl Iterator<Item = u32> {
        let mut bits = self.bitmap;
        let behind = std::iter::from_fn(move || {
            let last = (bits != 0).then(|| bits.trailing_zeros())?;
            bits &= bits - 1;
            Some(last + 1)
        });
        let first = (!self.continues).then_some(0);
        first.into_iter().chain(behind).filter(move |chunk| *chunk < chunks_per_page)
    }

    /// The tag of this entry at a page with these data. It covers the beginning of each record, so an entry that an erase left behind
    /// does not make records of what was programmed later.
    pub(crate) fn tag_at(&self, at: PageAddr, data: &[u8], chunk_bytes: u32, tagger: &mut PageTagger) -> u32 {
        let chunk = chunk_bytes as usize;
        let mut starts = self.starts((data.len() / chunk) as u32).peekable();
        if starts.peek().is_none() {
            return 0;
        }
        let covered = &mut tagger.covered;
        covered.clear();
        let mut prefix = [0; 32];
        prefix[..4].copy_from_slice(&at.block.0.to_le_bytes());
        prefix[4..8].copy_from_slice(&at.page.to_le_bytes());
        prefix[8..16].copy_from_slice(&self.bitmap.to_le_bytes());
        prefix[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        prefix[24..26].copy_from_slice(&self.log.to_le_bytes());
        prefix[26] = self.class;
        prefix[27] = self.continues.into();
        covered.extend_from_slice(&prefix);
        for start in starts {
            let header = data[start as usize * chunk..].first_chunk().expect("a chunk is longer than a header");
            covered.extend_from_slice(&header[..RecordHeader::len_at(header)]);
        }
        tagger.sealer.page(covered)
    }
}

/// Makes the tags of pages.
pub(crate) struct PageTagger {
    sealer: Sealer,
    /// What a tag covers, to be used again: address and fields, then the headers of records.
    covered: Vec<u8>,
}

impl PageTagger {
    pub(crate) fn new(sealer: Sealer) -> PageTagger {
        PageTagger { sealer, covered: Vec::new() }
    }
}

impl PageOob {
    const MAGIC: [u8; 4] = *b"OOB2";
    /// Before devices had a secret.
    const MAGIC_UNTAGGED: [u8; 4] = *b"OOB1";

    /// The entry's bytes at the start of `into`; the remainder is zeroed.
    pub(crate) fn encode(oob: &Oob, into: &mut [u8]) {
        let mut entry = PageOob {
            magic: if oob.tag.is_some() { Self::MAGIC } else { Self::MAGIC_UNTAGGED },
            crc32c: U32::ZERO,
            bitmap: oob.bitmap.into(),
            sequence: oob.sequence.into(),
            log: oob.log.into(),
            class: oob.class,
            flags: oob.continues.into(),
            tag: oob.tag.unwrap_or(0).into(),
        };
        entry.crc32c = kaml_crc::crc32c(&entry.as_bytes()[8..]).into();
        into.fill(0);
        into[..32].copy_from_slice(entry.as_bytes());
    }

    /// The entry at `bytes`; nothing if the page is erased or the entry torn.
    pub(crate) fn check(bytes: &[u8]) -> Option<Oob> {
        let (entry, _) = PageOob::read_from_prefix(bytes).ok()?;
        let tag = match entry.magic {
            Self::MAGIC => Some(entry.tag.get()),
            Self::MAGIC_UNTAGGED if entry.tag.get() == 0 => None,
            _ => return None,
        };
        let whole = entry.crc32c.get() == kaml_crc::crc32c(&entry.as_bytes()[8..]) && entry.flags <= 1;
        whole.then(|| Oob {
            bitmap: entry.bitmap.get(),
            sequence: entry.sequence.get(),
            log: entry.log.get(),
            class: entry.class,
            continues: entry.flags == 1,
            tag,
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
        // A record left open by the page before continues here, or else what looked open was padding.
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
        // A record that filled the page to its end leaves nothing open; the next page states whether anything is.
        open = start.filter(|start| *start < base + chunks_per_page);
    }
    found
}
