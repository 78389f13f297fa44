//! Flash that keeps of each record all but its value, which is made up again when it is read.

use kaml_versions::{Error, HEADER_BYTES, SegmentAt, records};

/// Pages, and how often they were read and written.
pub(crate) struct MadeUpFlash {
    page_bytes: usize,
    segment_pages: usize,
    heads: Vec<u8>,
    /// Where the heads of each page begin.
    pages: Vec<u64>,
    /// Whether each key was ever written.
    seen: Vec<bool>,
    pub(crate) distinct_keys: u64,
    pub(crate) page_writes: u64,
    pub(crate) page_reads: u64,
    /// What was read last.
    pub(crate) page: Vec<u8>,
}

/// The value of a version.
pub(crate) fn fill_value(sequence: u64, value: &mut [u8]) {
    let mut chunks = value.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&sequence.to_le_bytes());
    }
    chunks.into_remainder().fill(sequence as u8);
}

impl MadeUpFlash {
    pub(crate) fn new(page_bytes: u32, segment_pages: u32, key_space: u64) -> MadeUpFlash {
        MadeUpFlash {
            page_bytes: page_bytes as usize,
            segment_pages: segment_pages as usize,
            heads: Vec::new(),
            pages: vec![0],
            seen: vec![false; key_space as usize],
            distinct_keys: 0,
            page_writes: 0,
            page_reads: 0,
            page: Vec::new(),
        }
    }

    /// Programs a segment whose first pages hold records.
    pub(crate) fn program(&mut self, image: &[u8], hashed_pages: usize) -> Result<SegmentAt, Error> {
        let at = (self.pages.len() - 1) / self.segment_pages;
        for (number, page) in image.chunks_exact(self.page_bytes).enumerate() {
            for record in records(if number < hashed_pages { page } else { &[] }) {
                let (version, bytes) = record?;
                let seen = &mut self.seen[version.key.as_u64().expect("keys are integers") as usize];
                self.distinct_keys += u64::from(!std::mem::replace(seen, true));
                self.heads.extend_from_slice(&bytes[..HEADER_BYTES + version.key.len()]);
            }
            self.pages.push(self.heads.len() as u64);
            self.page_writes += 1;
        }
        Ok(SegmentAt::new(at as u64).expect("fewer than 2^48 segments"))
    }

    pub(crate) fn read(&mut self, at: SegmentAt, page: u32) {
        self.page_reads += 1;
        let page = at.get() as usize * self.segment_pages + page as usize;
        let mut heads = &self.heads[self.pages[page] as usize..self.pages[page + 1] as usize];
        self.page.clear();
        while !heads.is_empty() {
            let key_len = usize::from(heads[14]);
            let value_len = u32::from_le_bytes(heads[8..12].try_into().expect("four bytes")) as usize;
            let sequence = u64::from_le_bytes(heads[16..24].try_into().expect("eight bytes"));
            let (head, rest) = heads.split_at(HEADER_BYTES + key_len);
            self.page.extend_from_slice(head);
            let start = self.page.len();
            self.page.resize(start + value_len, 0);
            fill_value(sequence, &mut self.page[start..]);
            heads = rest;
        }
        self.page.resize(self.page_bytes, 0);
    }
}
