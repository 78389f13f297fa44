//! Pages kept as words and runs of words, so synthesised values take a few bytes each.
//!
//! Lives here:       packing a page, reading any part of a packed page.
//! Lives elsewhere:  which pages are kept so (`array`), values that pack well (`value`).
//!
//! It knows nothing of records: whatever repeats an eight-byte word shrinks, and any page comes back as it was.
//!
//! Pages that are programmed together are packed together: one allocation for all of them.
//!
//! A packed page has eight parts, so a small read unpacks little. A part is a sequence of `u64` words: a head (low
//! half: literal words that follow it; high half: how often the word after them is repeated, 0: there is none), the
//! literals, the repeated word.

use std::sync::Arc;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

/// Parts of a page.
const PARTS: usize = 8;
/// Parts that are being fetched while one is packed.
const FETCHED_PARTS: usize = 2;
/// Shorter runs cost more than they save.
const RUN_MIN: usize = 3;
/// Words of a run that are compared at once.
const COMPARED: usize = 8;

/// A packed page.
#[derive(Clone)]
pub(crate) struct Packed {
    /// Where each part begins, in words after `first`; the end of the last one.
    starts: [u16; PARTS + 1],
    /// The page's first word among those of all pages that were packed together.
    first: u32,
    words: Arc<[u8]>,
}

impl Packed {
    /// Packs pages, each of whole words, a multiple of eight and at most 64 KiB. `scratch` is for its memory.
    pub(crate) fn all<'a>(pages: impl ExactSizeIterator<Item = &'a [u8]>, scratch: &mut Vec<u8>) -> Vec<Packed> {
        scratch.clear();
        let shapes: Vec<_> = pages.map(|page| pack_page(page, scratch)).collect();
        let words: Arc<[u8]> = scratch[..].into();
        shapes.into_iter().map(|(first, starts)| Packed { starts, first, words: words.clone() }).collect()
    }

    /// Packs one page.
    pub(crate) fn new(page: &[u8]) -> Packed {
        Packed::all([page].into_iter(), &mut Vec::new()).pop().expect("one page was packed")
    }

    /// Asks the processor to fetch what a read of `len` bytes from byte `from` on of the page of `page_bytes` will need.
    pub(crate) fn prefetch(&self, page_bytes: usize, from: usize, len: usize) {
        let part_bytes = page_bytes / PARTS;
        let end = (from + len).div_ceil(part_bytes).clamp(1, PARTS);
        let bytes = |part: usize| (self.first as usize + usize::from(self.starts[part])) * WORD_BYTES;
        kaml_flash::prefetch(&self.words[bytes((from / part_bytes).min(end))..bytes(end)]);
    }

    /// Copies `into.len()` bytes from byte `from` of the page of `page_bytes`.
    pub(crate) fn read(&self, page_bytes: usize, from: usize, into: &mut [u8]) {
        let part_bytes = page_bytes / PARTS;
        let (mut part, mut offset, mut rest) = (from / part_bytes, from % part_bytes, into);
        while !rest.is_empty() {
            let (here, next) = rest.split_at_mut(rest.len().min(part_bytes - offset));
            let start = self.first as usize + usize::from(self.starts[part]);
            unpack(&self.words[start * WORD_BYTES..], offset, here);
            (part, offset, rest) = (part + 1, 0, next);
        }
    }
}

const WORD_BYTES: usize = size_of::<U64>();

/// Packs a page after what exists; returns its first word and where its parts begin after that.
fn pack_page(page: &[u8], out: &mut Vec<u8>) -> (u32, [u16; PARTS + 1]) {
    let words = <[U64]>::ref_from_bytes(page).expect("whole words");
    let first = out.len() / WORD_BYTES;
    let mut starts = [0; PARTS + 1];
    let part_words = words.len() / PARTS;
    for (i, part) in words.chunks_exact(part_words).enumerate() {
        // The firmware filled it a while ago.
        let ahead = (i + FETCHED_PARTS) * part_words;
        words.get(ahead..ahead + part_words).into_iter().for_each(kaml_flash::prefetch);
        pack(part, out);
        starts[i + 1] = (out.len() / WORD_BYTES - first) as u16;
    }
    (first as u32, starts)
}

fn pack(mut rest: &[U64], out: &mut Vec<u8>) {
    while !rest.is_empty() {
        let literals = literals(rest);
        let run = run(&rest[literals..]);
        let head = literals as u64 | (run as u64) << 32;
        let words = (literals + 1).min(rest.len());
        out.extend_from_slice(&head.to_le_bytes());
        out.extend_from_slice(rest[..words].as_bytes());
        rest = &rest[literals + run..];
    }
}

/// Words before the next run worth the name.
fn literals(words: &[U64]) -> usize {
    let starts_run = |w: &[U64]| w[0] == w[1] && w[1] == w[2];
    words.windows(RUN_MIN).position(starts_run).unwrap_or(words.len())
}

/// How often the first word occurs in a row.
fn run(words: &[U64]) -> usize {
    let Some(first) = words.first() else { return 0 };
    let are_first = |words: &&[U64]| words.iter().fold(0, |bits, w| bits | (w.get() ^ first.get())) == 0;
    let same = words.chunks_exact(COMPARED).take_while(are_first).count() * COMPARED;
    same + words[same..].iter().take_while(|w| *w == first).count()
}

/// Copies `into.len()` bytes from byte `from` of a part.
fn unpack(packed: &[u8], from: usize, into: &mut [u8]) {
    let packed = <[U64]>::ref_from_bytes(packed).expect("whole words");
    let end = from + into.len();
    let (mut at, mut here) = (0, 0);
    while here < end {
        let head = packed[at].get();
        let (literals, run) = (head as u32 as usize, (head >> 32) as usize);
        let (literal_end, run_end) = (here + literals * 8, here + (literals + run) * 8);
        if literal_end > from {
            let (low, high) = (here.max(from), literal_end.min(end));
            let words = packed[at + 1..at + 1 + literals].as_bytes();
            into[low - from..high - from].copy_from_slice(&words[low - here..high - here]);
        }
        if run > 0 && run_end > from {
            let repeated = packed[at + 1 + literals].get();
            fill(repeated, literal_end, (literal_end.max(from), run_end.min(end)), from, into);
        }
        here = run_end;
        at += 1 + literals + usize::from(run > 0);
    }
}

/// Writes the bytes `low..high` of a run that begins at `start`.
fn fill(repeated: u64, start: usize, (low, high): (usize, usize), from: usize, into: &mut [u8]) {
    if low >= high {
        return;
    }
    let shift = (low - start) % 8 * 8;
    let pattern = repeated.rotate_right(shift as u32).to_le_bytes();
    let (whole, rest) = into[low - from..high - from].as_chunks_mut();
    whole.fill(pattern);
    rest.copy_from_slice(&pattern[..rest.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Goal:   any part of any page comes back as it was, and runs take little.
    /// Method: pages of random runs and noise; random ranges.
    #[test]
    fn pages_come_back() {
        let mut rng = Rng::new(3);
        for _ in 0..300 {
            let mut page = Vec::new();
            while page.len() < 4096 {
                let (word, count) = (rng.draw(), if rng.one_in(2) { 1 } else { rng.within(1, 90) as usize });
                page.extend(std::iter::repeat_n(word.to_le_bytes(), count).flatten());
            }
            page.truncate(4096);
            let packed = Packed::new(&page);
            for _ in 0..20 {
                let from = rng.below(4096) as usize;
                let mut into = vec![0; rng.within(0, (4096 - from) as u64) as usize];
                packed.read(4096, from, &mut into);
                assert_eq!(into, page[from..from + into.len()]);
            }
        }
        assert_eq!(Packed::new(&[7; 8192]).words.len(), 2 * PARTS * WORD_BYTES);
    }
}
