//! Values made from a seed and a length.
//!
//! Lives here:       the bytes of a value; nothing else has to keep them.

use crate::rng::mix;

/// A value, without its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value {
    /// Where its bytes come from.
    pub seed: u64,
    /// How many.
    pub len: u32,
    /// When its record expires, by the clock of the device; 0 for never.
    pub expires: u64,
}

impl Value {
    /// Whether its record is seen at a time.
    pub fn is_live(&self, now: u64) -> bool {
        self.expires == 0 || self.expires > now
    }

    /// Bytes that resemble no other value's: for finding mistakes. One value in four has each word several times, so it can be compressed.
    pub fn noise(self) -> Vec<u8> {
        let times = if self.seed % 4 == 1 { 5 } else { 1 };
        let mut bytes = Vec::with_capacity(self.len as usize + 8 * times);
        let mut word = self.seed;
        while bytes.len() < self.len as usize {
            word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
            (0..times).for_each(|_| bytes.extend_from_slice(&mix(word).to_le_bytes()));
        }
        bytes.truncate(self.len as usize);
        bytes
    }

    /// One word, repeated: the medium keeps it in a few bytes whatever its length.
    pub fn run(self, into: &mut Vec<u8>) {
        let word = mix(self.seed).to_le_bytes();
        into.clear();
        into.resize(self.len as usize, 0);
        for chunk in into.chunks_mut(word.len()) {
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}
