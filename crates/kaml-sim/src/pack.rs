//! Pages kept as words and runs of words, so that synthesised values take a few bytes each.
//!
//! Lives here:       packing a page, reading any part of a packed page.
//! Lives elsewhere:  which pages are kept so (`array`), values that pack well (`value`).
//!
//! It knows nothing of records: whatever repeats an eight-byte word shrinks, and any page comes back as it was.
//!
//! A packed page is a sequence of `u64` words: a head (low half: literal words that follow it; high half: how often
//! the word behind them is repeated, 0: there is none), the literals, the repeated word.

/// Shorter runs cost more than they save.
const RUN_MIN: usize = 3;

/// Packs whole words; `bytes` is a multiple of eight long.
pub(crate) fn pack(bytes: &[u8]) -> Box<[u64]> {
    let words: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
    let mut out = Vec::with_capacity(32);
    let mut at = 0;
    while at < words.len() {
        let literals = literals(&words[at..]);
        let rest = &words[at + literals..];
        let run = rest.first().map_or(0, |first| rest.iter().take_while(|w| *w == first).count());
        out.push(literals as u64 | (run as u64) << 32);
        out.extend_from_slice(&words[at..at + literals]);
        out.extend(rest.first().filter(|_| run > 0));
        at += literals + run;
    }
    out.into_boxed_slice()
}

/// Words before the next run worth the name.
fn literals(words: &[u64]) -> usize {
    let starts_run = |w: &[u64]| w.iter().all(|x| *x == w[0]);
    words.windows(RUN_MIN).position(starts_run).unwrap_or(words.len())
}

/// Copies `into.len()` bytes from byte `from` of the page.
pub(crate) fn unpack(packed: &[u64], from: usize, into: &mut [u8]) {
    let end = from + into.len();
    let (mut at, mut here) = (0, 0);
    while here < end {
        let head = packed[at];
        let (literals, run) = (head as u32 as usize, (head >> 32) as usize);
        let (words, repeated) = (&packed[at + 1..at + 1 + literals], packed.get(at + 1 + literals));
        let (literal_end, run_end) = (here + literals * 8, here + (literals + run) * 8);
        for byte in here.max(from)..literal_end.min(end) {
            into[byte - from] = (words[(byte - here) / 8] >> ((byte - here) % 8 * 8)) as u8;
        }
        if let Some(repeated) = repeated.filter(|_| run > 0) {
            fill(*repeated, literal_end, (literal_end.max(from), run_end.min(end)), from, into);
        }
        here = run_end;
        at += 1 + literals + usize::from(run > 0);
    }
}

/// Writes the bytes `range` of a run that begins at `start`.
fn fill(repeated: u64, start: usize, (low, high): (usize, usize), from: usize, into: &mut [u8]) {
    if low >= high {
        return;
    }
    let shift = (low - start) % 8 * 8;
    let pattern = repeated.rotate_right(shift as u32).to_le_bytes();
    for chunk in into[low - from..high - from].chunks_mut(8) {
        chunk.copy_from_slice(&pattern[..chunk.len()]);
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
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
            let packed = pack(&page);
            for _ in 0..20 {
                let from = rng.below(4096) as usize;
                let mut into = vec![0; rng.within(0, (4096 - from) as u64) as usize];
                unpack(&packed, from, &mut into);
                assert_eq!(into, page[from..from + into.len()]);
            }
        }
        assert!(pack(&[7; 8192]).len() == 2);
    }
}
