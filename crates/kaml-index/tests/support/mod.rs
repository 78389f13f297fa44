//! Keys chosen against an index whose seed is known.

use kaml_index::{Key, KeyKind};

/// The inverse of an odd number modulo 2^64.
const fn inverse(odd: u64) -> u64 {
    let (mut x, mut round) = (odd, 0);
    while round < 6 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        round += 1;
    }
    x
}

const A: u64 = 0x9e37_79b9_7f4a_7c15;
const B: u64 = 0xbb67_ae85_84ca_a73b;
const C: u64 = 0x3c6e_f372_fe94_f82b;

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 32).wrapping_mul(A);
    x = (x ^ x >> 32).wrapping_mul(B);
    x ^ x >> 32
}

fn unmix(mut x: u64) -> u64 {
    x = (x ^ x >> 32).wrapping_mul(inverse(B));
    x = (x ^ x >> 32).wrapping_mul(inverse(A));
    x ^ x >> 32
}

/// The key whose 64 mixed bits are `m`; one of 16 bytes begins with eight zeros.
pub(crate) fn of_mixed(kind: KeyKind, seed: u64, m: u64) -> Key {
    match kind {
        KeyKind::U64 => Key::from(unmix(m) ^ seed),
        KeyKind::Bytes | KeyKind::Any | KeyKind::Ordered => {
            let low = unmix(m) ^ mix(seed).wrapping_add(C.wrapping_mul(15)) ^ seed.rotate_left(32);
            Key::new(&u128::from(low).to_be_bytes()).unwrap()
        }
    }
}

/// This many keys that all belong to the same two buckets, however often segments split: more than twelve have no place.
pub(crate) fn colliding(kind: KeyKind, seed: u64, count: usize) -> Vec<Key> {
    let digest = if kind == KeyKind::U64 { 0 } else { 15 };
    let between = |rest: u64| (u128::from((rest ^ digest).wrapping_mul(0xa54f_f53a_5f1d_36f1)) * 511) >> 64;
    let rests = (1..1 << 31).filter(|rest| between(*rest) == between(1));
    rests.take(count).map(|rest| of_mixed(kind, seed, rest << 9 | 5)).collect()
}
