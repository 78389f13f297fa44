//! TPC-C's random functions.
//!
//! Lives here:       NURand with its constants, last names, texts.
//! Implements:       clauses 2.1.6 (NURand), 4.3.2 (texts, last names, zip codes).

use crate::keys::Rng;

/// Clause 4.3.2.3.
const SYLLABLES: [&str; 10] = ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
/// Last names there are.
pub(super) const NAMES: u64 = 1000;

const LAST_NAME_A: u64 = 255;
const CUSTOMER_A: u64 = 1023;
const ITEM_A: u64 = 8191;

/// The constants `C` of NURand, fixed for a load or a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Constants {
    last_name: u64,
    customer: u64,
    item: u64,
}

impl Constants {
    /// Of the load.
    pub(super) fn of_load() -> Constants {
        Constants { last_name: 17, customer: 0, item: 0 }
    }

    /// Of a run. Clause 2.1.6.1: the last names' constant differs from the load's by 65 to 119, but not 96 or 112.
    pub(super) fn of_run(seed: u64) -> Constants {
        let mut rng = Rng::new(seed);
        let delta = loop {
            let delta = between(&mut rng, 65, 119);
            if delta != 96 && delta != 112 {
                break delta;
            }
        };
        let last_name = Constants::of_load().last_name + delta;
        Constants { last_name, customer: rng.below(CUSTOMER_A + 1), item: rng.below(ITEM_A + 1) }
    }

    /// The number of a last name below `names`.
    pub(super) fn last_name(&self, rng: &mut Rng, names: u64) -> u64 {
        nu_rand(rng, LAST_NAME_A, self.last_name, 0, names - 1)
    }

    /// A customer in `1..=customers`.
    pub(super) fn customer(&self, rng: &mut Rng, customers: u64) -> u64 {
        nu_rand(rng, CUSTOMER_A, self.customer, 1, customers)
    }

    /// An item in `1..=items`.
    pub(super) fn item(&self, rng: &mut Rng, items: u64) -> u64 {
        nu_rand(rng, ITEM_A, self.item, 1, items)
    }
}

/// Evenly in `low..=high`.
pub(super) fn between(rng: &mut Rng, low: u64, high: u64) -> u64 {
    low + rng.below(high - low + 1)
}

/// Unevenly in `low..=high`.
fn nu_rand(rng: &mut Rng, a: u64, c: u64, low: u64, high: u64) -> u64 {
    ((rng.below(a + 1) | between(rng, low, high)) + c) % (high - low + 1) + low
}

/// A last name by its number.
pub(super) fn last_name(number: u64) -> String {
    [number / 100 % 10, number / 10 % 10, number % 10].map(|digit| SYLLABLES[digit as usize]).concat()
}

/// A text in a field, padded with blanks; what does not fit is cut off.
pub(super) fn field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    let cut = text.len().min(N);
    field[..cut].copy_from_slice(&text.as_bytes()[..cut]);
    field
}

/// Letters and digits, at least `min`, padded with blanks.
pub(super) fn text<const N: usize>(rng: &mut Rng, min: usize) -> [u8; N] {
    const CHARACTERS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-.";
    let mut field = [b' '; N];
    let length = between(rng, min as u64, N as u64) as usize;
    for part in field[..length].chunks_mut(10) {
        let mut bits = rng.next_u64();
        for byte in part {
            *byte = CHARACTERS[(bits & 63) as usize];
            bits >>= 6;
        }
    }
    field
}

/// A text of which one in ten has `ORIGINAL` somewhere.
pub(super) fn data(rng: &mut Rng) -> [u8; 50] {
    const WORD: &[u8] = b"ORIGINAL";
    const MIN: usize = 26;
    let mut data: [u8; 50] = text(rng, MIN);
    if rng.below(10) == 0 {
        let at = rng.below((MIN - WORD.len()) as u64) as usize;
        data[at..at + WORD.len()].copy_from_slice(WORD);
    }
    data
}

/// Digits.
pub(super) fn digits<const N: usize>(rng: &mut Rng) -> [u8; N] {
    [(); N].map(|()| b'0' + rng.below(10) as u8)
}

/// Four random digits, then `11111`.
pub(super) fn zip(rng: &mut Rng) -> [u8; 9] {
    let mut zip = *b"000011111";
    zip[..4].copy_from_slice(&digits::<4>(rng));
    zip
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   last names are built as the specification's example: 371 is PRICALLYOUGHT.
    /// Method: that, and the ends.
    #[test]
    fn last_names_are_as_specified() {
        assert_eq!(last_name(371), "PRICALLYOUGHT");
        assert_eq!((last_name(0), last_name(999)), ("BARBARBAR".into(), "EINGEINGEING".into()));
    }

    /// Goal:   NURand keeps to its range, reaches all of it, and is as uneven as its definition makes it.
    /// Method: two million draws of customers; the densest value against the exact probability from all pairs.
    #[test]
    fn nu_rand_is_as_uneven_as_defined() {
        const COUNT: usize = 3000;
        let constants = Constants { last_name: 0, customer: 259, item: 0 };
        let mut exact = vec![0u64; COUNT];
        for a in 0..=CUSTOMER_A {
            for x in 1..=COUNT as u64 {
                exact[(((a | x) + 259) % COUNT as u64) as usize] += 1;
            }
        }
        let most = exact.iter().copied().enumerate().max_by_key(|(_, count)| *count).unwrap();
        let expected = most.1 as f64 / ((CUSTOMER_A + 1) * COUNT as u64) as f64;
        let mut rng = Rng::new(5);
        let mut counts = vec![0u64; COUNT];
        for _ in 0..2_000_000 {
            counts[constants.customer(&mut rng, COUNT as u64) as usize - 1] += 1;
        }
        let found = counts[most.0] as f64 / 2e6;
        assert!((found / expected - 1.0).abs() < 0.05, "{found} of {expected}");
        assert!(expected > 5.0 / COUNT as f64);
        assert!(counts.iter().zip(&exact).all(|(count, exact)| (*count == 0) == (*exact == 0) || *exact < 20));
    }

    /// Goal:   the constants obey clause 2.1.6.1.
    /// Method: a thousand seeds.
    #[test]
    fn constants_obey_the_clause() {
        for seed in 0..1000 {
            let constants = Constants::of_run(seed);
            let delta = constants.last_name - Constants::of_load().last_name;
            assert!((65..=119).contains(&delta) && delta != 96 && delta != 112, "{delta}");
            assert!(constants.customer <= CUSTOMER_A && constants.item <= ITEM_A);
        }
    }

    /// Goal:   texts have their length and alphabet, and a tenth of the data is original.
    /// Method: ten thousand of them.
    #[test]
    fn texts_are_as_specified() {
        let mut rng = Rng::new(1);
        let original = |data: &[u8; 50]| data.windows(8).any(|word| word == b"ORIGINAL");
        let found = (0..10_000).filter(|_| original(&data(&mut rng))).count();
        assert!((800..1200).contains(&found), "{found}");
        let name: [u8; 20] = text(&mut rng, 10);
        assert!(name[..10].iter().all(|byte| *byte != b' '));
        assert_eq!(field::<5>("abcdefg"), *b"abcde");
        assert_eq!(field::<5>("ab"), *b"ab   ");
        assert!(zip(&mut rng).ends_with(b"11111"));
    }
}
