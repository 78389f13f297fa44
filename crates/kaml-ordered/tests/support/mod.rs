//! Keys of many shapes.
#![allow(dead_code, reason = "each test file uses some of it")]

use kaml_ordered::{LenCode, Slot};

/// How many shapes `key` knows.
pub(crate) const SHAPES: u8 = 12;

fn mixed(i: u64) -> u64 {
    let mut x = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 32;
    x = x.wrapping_mul(0xbb67_ae85_84ca_a73b);
    x ^ x >> 32
}

/// Key number `i` of a shape; other numbers have other keys.
pub(crate) fn key(shape: u8, i: u64) -> Vec<u8> {
    let digits = |i: u64| format!("{i}").into_bytes();
    match shape {
        // Dense and scattered integers.
        0 => i.to_be_bytes().to_vec(),
        1 => mixed(i).to_be_bytes().to_vec(),
        // Decimal numbers: prefixes of each other.
        2 => digits(i),
        // Runs of one byte, and then the number: every byte value, and long common prefixes.
        3 => [vec![(i % 256) as u8; (i % 40) as usize], vec![0], i.to_be_bytes().to_vec()].concat(),
        // Paths.
        4 => format!("home/user_{:03}/projects/{:02}/src/module_{}/file_{i}.rs", i % 97, i % 7, i % 13).into_bytes(),
        // Textual UUIDs.
        5 => {
            let (a, b) = (mixed(i), mixed(!i));
            format!(
                "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                a >> 32,
                a >> 16 & 0xffff,
                a & 0xffff,
                b >> 48,
                b << 16 >> 16
            )
            .into_bytes()
        }
        // The longest keys, differing at the end, and at the beginning.
        6 => [vec![b'x'; 1016], i.to_be_bytes().to_vec()].concat(),
        7 => [mixed(i).to_be_bytes().to_vec(), vec![b'x'; 1016]].concat(),
        // Keys with long common prefixes, and very short ones.
        8 => match i % 3 {
            0 => [vec![b'm'; 600], digits(i)].concat(),
            1 => [vec![b'm'; 300], digits(i)].concat(),
            _ => digits(i),
        },
        // Zeros and prefixes: lengths and zero bytes must count.
        9 => [vec![0; (i % 200) as usize], digits(i / 200), vec![0; (i % 5) as usize]]
            .concat()
            .into_iter()
            .chain([1])
            .collect(),
        // Long random keys of all lengths.
        10 => {
            let len = 1 + (mixed(i) % 900) as usize;
            let random = (0..=len as u64 / 8).flat_map(|part| mixed(i * 131 + part).to_be_bytes());
            i.to_be_bytes().into_iter().skip(4).chain(random.take(len)).collect()
        }
        // Integers after a long prefix, with the highest byte ff.
        _ => [b"sixteen bytes at least".as_slice(), &[0xff; 3], &(i as u32).to_le_bytes()].concat(),
    }
}

pub(crate) fn slot(at: u64) -> Slot {
    Slot { at: at % (1 << 32), len: LenCode::of(1 + at as u32 % 1000).unwrap() }
}
