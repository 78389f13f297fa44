//! Which record an operation is about.
//!
//! Lives here:       request distributions over a growing number of records, keys from numbers, and which inserts can be
//!                   chosen already.
//! Implements:       the generators of YCSB's reference implementation: zipfian 0.99 over ten thousand million items,
//!                   hashed onto the records ("scrambled"); "latest", zipfian 0.99 backwards from the last insert.

use super::settings::{InsertOrder, Requests, Settings};
use crate::keys::{Rng, Zipf};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// YCSB's constant.
const THETA: f64 = 0.99;
/// Scrambled requests are drawn from this many items, however many records there are.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;

/// 64-bit FNV-1a over the eight bytes of a number, made positive: YCSB's hash of record numbers.
pub(super) fn hash(number: u64) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 1_099_511_628_211;
    let hash = number.to_le_bytes().iter().fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    (hash as i64).unsigned_abs()
}

/// The key of a record.
pub(super) fn key(number: u64, order: InsertOrder) -> u64 {
    match order {
        InsertOrder::Hashed => hash(number),
        InsertOrder::Ordered => number,
    }
}

/// Numbers of records below `first + count`, `count` growing.
#[derive(Clone)]
pub(super) struct Chooser {
    rng: Rng,
    first: u64,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    /// Over the records that were loaded.
    Uniform(u64),
    /// Over as many as there may be at the end; those that do not exist yet are drawn again.
    Scrambled(Zipf, u64),
    Latest(Zipf),
}

impl Chooser {
    pub(super) fn new(settings: &Settings, operations_max: u64) -> Chooser {
        let loaded = settings.record_count;
        let expected = if settings.insert_share > 0.0 && operations_max < u64::MAX {
            (operations_max as f64 * settings.insert_share * 2.0) as u64
        } else {
            0
        };
        let kind = match settings.requests {
            Requests::Uniform => Kind::Uniform(loaded),
            Requests::Zipfian => Kind::Scrambled(Zipf::new(SCRAMBLED_ITEMS, THETA), loaded + expected),
            Requests::Latest => Kind::Latest(Zipf::new(loaded, THETA)),
        };
        Chooser { rng: Rng::new(0), first: settings.insert_start, kind }
    }

    pub(super) fn reseeded(&self, seed: u64) -> Chooser {
        Chooser { rng: Rng::new(seed), ..self.clone() }
    }

    /// One of the records that exist; `end` is the number after the last.
    pub(super) fn next(&mut self, end: u64) -> u64 {
        let count = end - self.first;
        let at = match &mut self.kind {
            Kind::Uniform(loaded) => self.rng.below(*loaded),
            Kind::Scrambled(zipf, items) => loop {
                let at = hash(zipf.rank(self.rng.unit())) % *items;
                if at < count {
                    break at;
                }
            },
            Kind::Latest(zipf) => {
                zipf.grow(count);
                count - 1 - zipf.rank(self.rng.unit()).min(count - 1)
            }
        };
        self.first + at
    }
}

/// Numbers for inserts. A record can be chosen by others when it and all before it are acknowledged.
pub(super) struct Inserts {
    next: AtomicU64,
    end: AtomicU64,
    early: Mutex<BTreeSet<u64>>,
}

impl Inserts {
    pub(super) fn from(next: u64) -> Inserts {
        Inserts { next: AtomicU64::new(next), end: AtomicU64::new(next), early: Mutex::new(BTreeSet::new()) }
    }

    /// The number of a new record.
    pub(super) fn begin(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The record exists.
    pub(super) fn acknowledge(&self, number: u64) {
        let mut early = self.early.lock().expect("no panics under this lock");
        early.insert(number);
        let mut end = self.end.load(Ordering::Relaxed);
        while early.remove(&end) {
            end += 1;
        }
        self.end.store(end, Ordering::Release);
    }

    /// The number after the last record that is certainly there.
    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(requests: &str) -> Settings {
        Settings::parse(&format!("recordcount=1000\ninsertproportion=0.05\nrequestdistribution={requests}")).unwrap()
    }

    fn counts(chooser: &mut Chooser, end: u64) -> Vec<u64> {
        let mut counts = vec![0; end as usize];
        (0..1_000_000).for_each(|_| counts[chooser.next(end) as usize] += 1);
        counts
    }

    /// Goal:   the hash is FNV-1a.
    /// Method: zero gives the published offset multiplied eight times; a few numbers differ.
    #[test]
    fn the_hash_is_fnv() {
        let expected = (0..8).fold(0xcbf2_9ce4_8422_2325u64, |hash, _| hash.wrapping_mul(0x0100_0000_01b3));
        assert_eq!(hash(0), (expected as i64).unsigned_abs());
        let all: BTreeSet<u64> = (0..100_000).map(hash).collect();
        assert_eq!(all.len(), 100_000);
    }

    /// Goal:   scrambled requests have the share that zipf 0.99 over ten thousand million items gives its first, about
    ///         1 in 26.5, wherever that lies; latest ones fall off from the last record; uniform ones are even.
    /// Method: a million draws each over 1000 records.
    #[test]
    fn requests_are_distributed_as_named() {
        let scrambled = counts(&mut Chooser::new(&settings("zipfian"), u64::MAX), 1000);
        let most = *scrambled.iter().max().unwrap() as f64 / 1e6;
        assert!((most - 1.0 / 26.469).abs() < 0.003, "{most}");
        assert!(scrambled[hash(0) as usize % 1000] as f64 / 1e6 > 0.035);

        let latest = counts(&mut Chooser::new(&settings("latest"), u64::MAX), 1000);
        let zeta: f64 = (1..=1000).map(|i| f64::from(i).powf(-0.99)).sum();
        assert!((latest[999] as f64 / 1e6 - 1.0 / zeta).abs() < 0.003);
        assert!(latest[999] > latest[998] && latest[998] > latest[900] && latest[900] > latest[0]);

        let uniform = counts(&mut Chooser::new(&settings("uniform"), u64::MAX), 1000);
        assert!(uniform.iter().all(|count| (800..1200).contains(count)));
    }

    /// Goal:   inserts become likely as soon as they exist, and never before.
    /// Method: choose among more and more records.
    #[test]
    fn new_records_are_chosen_when_they_are_there() {
        let mut latest = Chooser::new(&settings("latest"), u64::MAX);
        let mut zipfian = Chooser::new(&settings("zipfian"), 100_000);
        for end in 1000..3000 {
            assert!(latest.next(end) < end && zipfian.next(end) < end);
        }
        assert!(counts(&mut latest, 3000)[2999] > 100_000);
        assert!(counts(&mut zipfian, 3000)[1500..].iter().sum::<u64>() > 100_000);
    }

    /// Goal:   no record counts as there before all earlier ones are.
    /// Method: acknowledge out of order.
    #[test]
    fn inserts_are_acknowledged_in_order() {
        let inserts = Inserts::from(10);
        let numbers = [(); 4].map(|()| inserts.begin());
        assert_eq!((numbers, inserts.end()), ([10, 11, 12, 13], 10));
        for (number, end) in [(11, 10), (13, 10), (10, 12), (12, 14)] {
            inserts.acknowledge(number);
            assert_eq!(inserts.end(), end);
        }
    }
}
