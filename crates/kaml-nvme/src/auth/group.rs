//! Diffie-Hellman groups: exponentiation in time that does not depend on the exponent.
//!
//! Lives here:       the groups by their numbers, a key pair, the shared secret.
//! Lives elsewhere:  the primes (`primes`), which thread computes (`target::authentication`).
//! Implements:       spec:RFC-7919; spec:NVMe-Base "DH-HMAC-CHAP Diffie-Hellman group identifiers".
//!
//! Exponents have twice the bits of the group's strength (RFC 7919, 5.2), not those of the prime: an exponentiation in ffdhe8192 takes
//! a twentieth of the time, and nothing is known that would find a short exponent faster in these groups.

use super::primes;
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use std::fmt;
use std::sync::OnceLock;
use zeroize::{Zeroize, Zeroizing};

/// A Diffie-Hellman group, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// None: a challenge is used as it is.
    Null = 0,
    /// 2048 bits.
    Ffdhe2048 = 1,
    /// 3072 bits.
    Ffdhe3072 = 2,
    /// 4096 bits.
    Ffdhe4096 = 3,
    /// 6144 bits.
    Ffdhe6144 = 4,
    /// 8192 bits.
    Ffdhe8192 = 5,
}

/// Bytes of the longest exponent.
pub(crate) const EXPONENT_BYTES_MAX: usize = 56;

impl Group {
    /// All, the weakest first.
    pub const ALL: [Group; 6] =
        [Group::Null, Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096, Group::Ffdhe6144, Group::Ffdhe8192];

    /// By its number in messages.
    pub fn from_id(id: u8) -> Option<Group> {
        Group::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Its number in messages.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// Bytes of a public value; none of the null group.
    pub fn public_bytes(self) -> usize {
        self.bits() as usize / 8
    }

    fn bits(self) -> u32 {
        [0, 2048, 3072, 4096, 6144, 8192][self as usize]
    }

    /// Bits of an exponent: at least 225, 275, 325, 375 and 400, in whole words.
    fn exponent_bits(self) -> u32 {
        [0, 256, 320, 384, 384, 448][self as usize]
    }

    fn prime(self) -> &'static str {
        match self {
            Group::Null => "",
            Group::Ffdhe2048 => primes::FFDHE2048,
            Group::Ffdhe3072 => primes::FFDHE3072,
            Group::Ffdhe4096 => primes::FFDHE4096,
            Group::Ffdhe6144 => primes::FFDHE6144,
            Group::Ffdhe8192 => primes::FFDHE8192,
        }
    }

    /// What arithmetic modulo the prime needs; computed when it is first used. None of the null group.
    fn modulus(self) -> Option<&'static BoxedMontyParams> {
        static MADE: [OnceLock<BoxedMontyParams>; 6] = [const { OnceLock::new() }; 6];
        let make = || {
            let prime = BoxedUint::from_be_hex(self.prime(), self.bits()).expect("the primes are hexadecimal");
            BoxedMontyParams::new_vartime(Odd::new(prime).expect("the primes are odd"))
        };
        (self != Group::Null).then(|| MADE[self as usize].get_or_init(make))
    }

    /// `base` to the power of `exponent`, padded to the length of the prime.
    fn power(self, base: BoxedUint, exponent: &[u8]) -> Zeroizing<Vec<u8>> {
        let Some(modulus) = self.modulus() else { return Zeroizing::default() };
        let mut exponent = BoxedUint::from_be_slice_truncated(exponent, self.exponent_bits());
        let mut power = BoxedMontyForm::new(base, modulus).pow_bounded_exp(&exponent, self.exponent_bits());
        exponent.zeroize();
        let mut result = power.retrieve();
        power.zeroize();
        let bytes = Zeroizing::new(result.to_be_bytes().into_vec());
        result.zeroize();
        bytes
    }

    /// A public value of the peer as a number, if it has the right length and is none of 0, 1 and p - 1, whose powers everyone knows.
    fn read_public(self, public: &[u8]) -> Option<BoxedUint> {
        let modulus = self.modulus()?;
        if public.len() != self.public_bytes() {
            return None;
        }
        let public = BoxedUint::from_be_slice(public, self.bits()).ok()?;
        let one = BoxedUint::one_with_precision(self.bits());
        let last = modulus.modulus().as_ref().wrapping_sub(&one);
        (public > one && public < last).then_some(public)
    }
}

/// A secret exponent of one transaction, and its public value.
pub(crate) struct KeyPair {
    group: Group,
    exponent: Zeroizing<Vec<u8>>,
    public: Vec<u8>,
}

impl KeyPair {
    /// Makes one of random bytes. One exponentiation.
    pub(crate) fn new(group: Group, random: &[u8; EXPONENT_BYTES_MAX]) -> KeyPair {
        let exponent = Zeroizing::new(random[..group.exponent_bits() as usize / 8].to_vec());
        let two = BoxedUint::from_be_slice_truncated(&[2], group.bits().max(64));
        let public = group.power(two, &exponent).to_vec();
        KeyPair { group, exponent, public }
    }

    /// What the peer gets: as long as the prime, most significant byte first.
    pub(crate) fn public(&self) -> &[u8] {
        &self.public
    }

    /// What only the two ends can compute; nothing if the public value of the peer is not acceptable. One exponentiation.
    pub(crate) fn shared(&self, public: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        Some(self.group.power(self.group.read_public(public)?, &self.exponent))
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Group::Null => f.write_str("null"),
            group => write!(f, "ffdhe{}", group.bits()),
        }
    }
}

impl std::str::FromStr for Group {
    type Err = String;

    fn from_str(name: &str) -> Result<Group, String> {
        let found = Group::ALL.into_iter().find(|group| group.to_string() == name);
        found.ok_or_else(|| {
            format!("{name:?} is no group; use null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144 or ffdhe8192")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crypto_bigint::Resize;

    /// Goal:   the primes are those of RFC 7919.
    /// Method: its formula, 2^b - 2^(b-64) + (floor(2^(b-130) e) + X) 2^64 - 1, with e summed up as a series.
    #[test]
    fn primes_are_those_of_the_standard() {
        let offsets = [560_316u64, 2_625_351, 5_736_041, 15_705_020, 10_965_728];
        for (group, offset) in Group::ALL.into_iter().skip(1).zip(offsets) {
            let bits = group.bits();
            let precision = bits + 64;
            let number = |value: u64| BoxedUint::from(value).resize(precision);
            // 64 guard bits: each of the terms is rounded down.
            let mut term = number(1).shl(bits - 130 + 64);
            let (mut sum, mut divisor) = (term.clone(), 1u64);
            while !bool::from(term.is_zero()) {
                term = term.div_rem(&crypto_bigint::NonZero::new(number(divisor)).unwrap()).0;
                sum = sum.wrapping_add(&term);
                divisor += 1;
            }
            let e = sum.shr(64);
            let prime = e.wrapping_add(number(offset)).shl(64);
            let prime = prime.wrapping_add(number(1).shl(bits)).wrapping_sub(number(1).shl(bits - 64));
            let prime = prime.wrapping_sub(number(1));
            let stored = group.modulus().unwrap().modulus().as_ref().clone().resize(precision);
            assert_eq!(prime, stored, "{group}");
        }
    }

    /// Goal:   both ends compute the same, and another exponent something else, in each group.
    #[test]
    fn both_ends_share_a_secret() {
        for group in Group::ALL.into_iter().skip(1) {
            let [a, b, c] = [1, 2, 3].map(|seed| KeyPair::new(group, &[seed; EXPONENT_BYTES_MAX]));
            assert_eq!(a.public().len(), group.public_bytes());
            let shared = a.shared(b.public()).unwrap();
            assert_eq!(shared.len(), group.public_bytes());
            assert_eq!(shared, b.shared(a.public()).unwrap());
            assert_ne!(shared, c.shared(a.public()).unwrap());
        }
    }

    /// Goal:   public values whose powers everyone knows, and ones of a wrong length, are refused.
    #[test]
    fn trivial_public_values_are_refused() {
        let group = Group::Ffdhe2048;
        let pair = KeyPair::new(group, &[7; EXPONENT_BYTES_MAX]);
        let prime = group.modulus().unwrap().modulus().as_ref().to_be_bytes().into_vec();
        let last = |value: u8| {
            let mut bytes = vec![0; group.public_bytes()];
            bytes[255] = value;
            bytes
        };
        let mut before = prime.clone();
        before[255] -= 1;
        for bad in
            [last(0), last(1), prime.clone(), before.clone(), vec![0xff; 256], vec![3; 255], vec![3; 384], vec![]]
        {
            assert!(pair.shared(&bad).is_none(), "{} bytes, the last is {:?}", bad.len(), bad.last());
        }
        before[255] -= 1;
        assert!(pair.shared(&last(2)).is_some() && pair.shared(&before).is_some());
    }
}
