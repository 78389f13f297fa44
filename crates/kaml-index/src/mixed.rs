//! Mixed keys: keys spread evenly over 64 bits, reversibly.
//!
//! Lives here:       the mixer, its inverse, and the part of a long key that is stored as it is.
//! May be called by: the table only; keys enter and leave it through here.
//!
//! The table stores most of a key's 64 mixed bits as its *place*, so mixing must lose nothing. An 8-byte key is mixed as
//! one word. A longer or shorter one is two padded words and a length: `high` and the length are stored verbatim, and the
//! low word is XORed with a function of both before it is mixed, which is undone as easily.

use crate::{Key, KeyKind};

/// A key as the table sees it. The derived order (`m`, then the verbatim part) is the order of listings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Mixed {
    /// 64 evenly spread bits: the place and the remainder.
    pub(crate) m: u64,
    /// The first 8 padded bytes of a key that is no integer, else 0.
    pub(crate) high: u64,
    /// The length of such a key less one, or 16 of a digest, else 0.
    pub(crate) len_less_one: u8,
}

/// Bits of the verbatim part of a key that is no integer: its first 8 bytes and its length, which can also say that it is a digest.
pub(crate) const fn verbatim_bits(kind: KeyKind) -> u32 {
    match kind {
        KeyKind::U64 => 0,
        KeyKind::Bytes => 64 + 4,
        KeyKind::Any | KeyKind::Ordered => 64 + 5,
    }
}

/// Mixes keys of one namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mixer {
    kind: KeyKind,
    seed: u64,
}

// Odd multipliers with about half of their bits set: the fractional parts of the golden ratio and of two square roots.
const A: u64 = 0x9e37_79b9_7f4a_7c15;
const B: u64 = 0xbb67_ae85_84ca_a73b;
const C: u64 = 0x3c6e_f372_fe94_f82b;
const A_INVERSE: u64 = inverse(A);
const B_INVERSE: u64 = inverse(B);

/// The inverse of an odd number modulo 2^64 by Newton's iteration: each round doubles the correct bits, from 3.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut round = 0;
    while round < 5 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        round += 1;
    }
    x
}

/// A bijection of 64 bits: each output bit depends on every input bit.
#[inline]
pub(crate) fn mix(mut x: u64) -> u64 {
    x ^= x >> 32;
    x = x.wrapping_mul(A);
    x ^= x >> 32;
    x = x.wrapping_mul(B);
    x ^ (x >> 32)
}

fn unmix(mut x: u64) -> u64 {
    x ^= x >> 32; // a shift by half of the bits is its own inverse
    x = x.wrapping_mul(B_INVERSE);
    x ^= x >> 32;
    x = x.wrapping_mul(A_INVERSE);
    x ^ (x >> 32)
}

impl Mixer {
    pub(crate) fn new(kind: KeyKind, seed: u64) -> Mixer {
        Mixer { kind, seed }
    }

    /// The mixed key of an integer, in a namespace of integers.
    #[inline]
    pub(crate) fn integer(&self, key: &Key) -> Option<u64> {
        if self.kind != KeyKind::U64 {
            return None;
        }
        key.as_u64().map(|k| mix(k ^ self.seed))
    }

    /// The mixed key; none if the namespace takes no such keys.
    #[inline]
    pub(crate) fn mixed(&self, key: &Key) -> Option<Mixed> {
        match self.kind {
            KeyKind::U64 => self.integer(key).map(Mixed::of_integer),
            KeyKind::Bytes if key.is_digest() => None,
            KeyKind::Bytes | KeyKind::Any | KeyKind::Ordered => {
                let (padded, len) = key.stored();
                let padded = u128::from_be_bytes(*padded);
                let (high, low) = ((padded >> 64) as u64, padded as u64);
                let len_less_one = len - 1;
                Some(Mixed { m: mix(low ^ self.fold(high, len_less_one)), high, len_less_one })
            }
        }
    }

    /// The key of a mixed key; none if no key has it (a `Bytes` key padded with something else than zeros).
    pub(crate) fn key(&self, mixed: &Mixed) -> Option<Key> {
        match self.kind {
            KeyKind::U64 => Some(Key::from(unmix(mixed.m) ^ self.seed)),
            KeyKind::Bytes | KeyKind::Any | KeyKind::Ordered => {
                let low = unmix(mixed.m) ^ self.fold(mixed.high, mixed.len_less_one);
                let padded = (u128::from(mixed.high) << 64 | u128::from(low)).to_be_bytes();
                let key = Key::of_stored(&padded, mixed.len_less_one.checked_add(1)?)?;
                (self.kind != KeyKind::Bytes || !key.is_digest()).then_some(key)
            }
        }
    }

    fn fold(&self, high: u64, len_less_one: u8) -> u64 {
        mix(high ^ self.seed).wrapping_add(u64::from(len_less_one).wrapping_mul(C)) ^ self.seed.rotate_left(32)
    }
}

impl Mixed {
    #[inline]
    pub(crate) fn of_integer(m: u64) -> Mixed {
        Mixed { m, high: 0, len_less_one: 0 }
    }

    /// A digest of the verbatim part, so long keys with equal `m` part in their second choice.
    #[inline]
    pub(crate) fn verbatim_digest(&self) -> u64 {
        if self.high == 0 { u64::from(self.len_less_one) } else { mix(self.high) ^ u64::from(self.len_less_one) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Goal:   mixing loses nothing, for both kinds of keys and any seed.
        /// Method: random keys there and back.
        #[test]
        fn mixing_is_reversible(bytes in prop::collection::vec(any::<u8>(), 1..=16), n: u64, seed: u64) {
            let key = Key::new(&bytes).unwrap();
            let mixer = Mixer::new(KeyKind::Bytes, seed);
            prop_assert_eq!(mixer.key(&mixer.mixed(&key).unwrap()), Some(key));
            let mixer = Mixer::new(KeyKind::U64, seed);
            prop_assert_eq!(mixer.key(&mixer.mixed(&Key::from(n)).unwrap()), Some(Key::from(n)));
        }
    }

    /// Goal:   dense and sparse integers spread evenly over the leading bits, which choose segment and bucket.
    /// Method: 2^16 keys of each pattern over 2^10 groups: chi-square within 6 sigma of its mean.
    #[test]
    fn patterns_spread() {
        for shift in [0, 8, 16, 32, 48] {
            let mut groups = vec![0u32; 1 << 10];
            (0..1u64 << 16).for_each(|i| groups[(mix(i << shift) >> 54) as usize] += 1);
            let chi: f64 = groups.iter().map(|&g| (f64::from(g) - 64.0).powi(2) / 64.0).sum();
            assert!((chi - 1023.0).abs() < 6.0 * (2.0f64 * 1023.0).sqrt(), "shift {shift}: {chi}");
        }
    }
}
