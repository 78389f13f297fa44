//! Transactions of the KAML paper: TPC-B, TPC-C's NewOrder and Payment, and YCSB.
//!
//! Lives here:       which records a transaction reads and writes, and which of them are in memory.
//! Lives elsewhere:  executing it (`engine`), the figures (`super`).
//! Implements:       paper:KAML V.D (scale factor 100, values of 512 and 1024 bytes), V.E (Table III).
//!
//! Keys have the paper's numbers, so conflicts are as frequent as there; the device stores a part of the records (`Table::stored`).

use crate::rng::{Rng, mix};
use std::collections::BTreeMap;

/// What a transaction does to a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Read,
    Update,
    Insert,
}

/// One record of a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) table: usize,
    pub(super) key: u64,
    pub(super) mode: Mode,
    /// It is not in memory, and the device is read.
    pub(super) is_missed: bool,
    /// Then a changed page must be written first.
    pub(super) evicts: bool,
}

impl Access {
    fn new(table: usize, key: u64, mode: Mode) -> Access {
        Access { table, key, mode, is_missed: false, evicts: false }
    }
}

/// A table: its records of the paper, the bytes of a value, and how many are stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub(super) records: u64,
    pub(super) bytes: u32,
}

/// Tables up to this size are stored whole.
const WHOLE: u64 = 10_000;

impl Table {
    /// Records on the device, if it has one of `share` of a large table.
    pub(super) fn stored(&self, share: u64) -> u64 {
        if self.records <= WHOLE { self.records } else { (self.records / share).max(1) }
    }
}

/// The paper's scale factor.
const SCALE: u64 = 100;

/// A workload of Figure 9.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Oltp {
    AccountUpdate,
    NewOrder,
    Payment,
}

impl Oltp {
    pub(super) const ALL: [Oltp; 3] = [Oltp::AccountUpdate, Oltp::NewOrder, Oltp::Payment];

    pub(super) fn name(self) -> &'static str {
        match self {
            Oltp::AccountUpdate => "TPC-B",
            Oltp::NewOrder => "NewOrder",
            Oltp::Payment => "Payment",
        }
    }

    /// The tables, in the order in which transactions use them.
    pub(super) fn tables(self) -> Vec<Table> {
        let table = |records: u64, bytes| Table { records: records * SCALE, bytes };
        match self {
            // Accounts, tellers, branches, history.
            Oltp::AccountUpdate => vec![table(100_000, 512), table(10, 512), table(1, 512), table(1, 512)],
            // Warehouses, districts, customers, items (the same for all warehouses), stock, orders, new orders, order lines.
            Oltp::NewOrder => vec![
                table(1, 512),
                table(10, 512),
                table(30_000, 1024),
                table(1000, 512),
                table(100_000, 512),
                table(1, 512),
                table(1, 512),
                table(1, 512),
            ],
            // Warehouses, districts, customers, history.
            Oltp::Payment => vec![table(1, 512), table(10, 512), table(30_000, 1024), table(1, 512)],
        }
    }

    /// The tables that memory does not hold, if it does not hold all.
    fn large(self) -> &'static [usize] {
        match self {
            Oltp::AccountUpdate => &[0],
            Oltp::NewOrder => &[2, 4],
            Oltp::Payment => &[2],
        }
    }

    /// The next transaction of a worker, its `number`-th: records in the order of tables and keys, each once.
    fn accesses(self, (worker, number): (usize, u64), rng: &mut Rng) -> Vec<Access> {
        use Mode::{Insert, Read, Update};
        // Each worker inserts into a range of keys of its own.
        let fresh = |table, i: u64| Access::new(table, ((worker as u64 + 1) << 40) + number * 16 + i, Insert);
        match self {
            Oltp::AccountUpdate => {
                let teller = rng.below(10 * SCALE);
                let branch = teller / 10;
                // Of 100 accounts 85 are the branch's.
                let of = if rng.below(100) < 85 { branch } else { rng.below(SCALE) };
                let account = of * 100_000 + rng.below(100_000);
                vec![
                    Access::new(0, account, Update),
                    Access::new(1, teller, Update),
                    Access::new(2, branch, Update),
                    fresh(3, 0),
                ]
            }
            Oltp::NewOrder => {
                let warehouse = rng.below(SCALE);
                let district = warehouse * 10 + rng.below(10);
                let customer = district * 3000 + rng.below(3000);
                let mut all = vec![
                    Access::new(0, warehouse, Read),
                    Access::new(1, district, Update),
                    Access::new(2, customer, Read),
                ];
                let lines = rng.within(5, 15);
                let mut items: Vec<u64> = (0..lines).map(|_| rng.below(1000 * SCALE)).collect();
                items.sort_unstable();
                items.dedup();
                all.extend(items.iter().map(|item| Access::new(3, *item, Read)));
                all.extend(items.iter().map(|item| Access::new(4, warehouse * 100_000 + item, Update)));
                all.extend([fresh(5, 0), fresh(6, 0)]);
                all.extend((0..items.len() as u64).map(|line| fresh(7, line)));
                all
            }
            Oltp::Payment => {
                let warehouse = rng.below(SCALE);
                let district = warehouse * 10 + rng.below(10);
                // Of 100 customers 85 are of this district.
                let of = if rng.below(100) < 85 { district } else { rng.below(10 * SCALE) };
                vec![
                    Access::new(0, warehouse, Update),
                    Access::new(1, district, Update),
                    Access::new(2, of * 3000 + rng.below(3000), Update),
                    fresh(3, 0),
                ]
            }
        }
    }
}

/// Where transactions come from.
pub(super) trait Work {
    fn next(&mut self, worker: usize, rng: &mut Rng) -> Vec<Access>;
}

/// Transactions of which a share of the reads misses.
pub(super) struct OltpWork {
    pub(super) kind: Oltp,
    /// Hits in thousandths of all reads and updates.
    pub(super) hits_permille: u64,
    numbers: Vec<u64>,
}

impl OltpWork {
    pub(super) fn new(kind: Oltp, hits_permille: u64, workers: usize, from: u64) -> OltpWork {
        OltpWork { kind, hits_permille, numbers: vec![from; workers] }
    }
}

impl Work for OltpWork {
    fn next(&mut self, worker: usize, rng: &mut Rng) -> Vec<Access> {
        self.numbers[worker] += 1;
        let mut all = self.kind.accesses((worker, self.numbers[worker]), rng);
        // Memory keeps records that are used all the time, so all misses are of the large tables.
        let is_large = |access: &Access| self.kind.large().contains(&access.table);
        let found = all.iter().filter(|access| access.mode != Mode::Insert).count() as u64;
        let large = all.iter().filter(|access| is_large(access)).count().max(1) as u64;
        let misses = found * (1000 - self.hits_permille) * 1000 / large;
        for access in all.iter_mut().filter(|access| is_large(access)) {
            access.is_missed = rng.chance_ppm(misses as u32);
        }
        all
    }
}

/// A workload of Table III: shares of 100 of reads, updates, inserts, and reads that are followed by an update.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mix {
    pub(super) name: &'static str,
    pub(super) of_100: [u64; 4],
}

pub(super) const MIXES: [Mix; 5] = [
    Mix { name: "a", of_100: [50, 50, 0, 0] },
    Mix { name: "b", of_100: [95, 5, 0, 0] },
    Mix { name: "c", of_100: [100, 0, 0, 0] },
    Mix { name: "d", of_100: [95, 0, 5, 0] },
    Mix { name: "f", of_100: [50, 0, 0, 50] },
];

/// YCSB over a memory that holds a part of the data.
pub(super) struct Ycsb {
    mix: Mix,
    count: u64,
    zipf: Vec<f64>,
    memory: Memory,
    /// Records of what memory holds and reads.
    per_page: u64,
    /// What was done: reads, updates, inserts, reads with an update.
    pub(super) done: [u64; 4],
    pub(super) reads: u64,
    pub(super) hits: u64,
}

impl Ycsb {
    /// Over `count` records, with memory for `places` pages of `per_page` records each, which hold what was used last.
    pub(super) fn new(mix: Mix, count: u64, (places, per_page): (usize, u64), rng: &mut Rng) -> Ycsb {
        let mut sum = 0.0;
        let weight = |rank: u64| {
            sum += 1.0 / (rank + 1) as f64;
            sum
        };
        let zipf = (0..count).map(weight).collect();
        let memory = Memory::new(places);
        let mut work = Ycsb { mix, count, zipf, memory, per_page, done: [0; 4], reads: 0, hits: 0 };
        for _ in 0..4 * places {
            let (key, changes) = (work.pick(rng), rng.below(100) < mix.of_100[1] + mix.of_100[3]);
            work.memory.touch(key / per_page, changes);
        }
        work
    }

    /// A record: popular ones are anywhere, but the newest are the popular ones if records are inserted.
    fn pick(&self, rng: &mut Rng) -> u64 {
        let unit = (rng.draw() >> 11) as f64 / (1u64 << 53) as f64;
        let at = unit * self.zipf[self.zipf.len() - 1];
        let rank = self.zipf.partition_point(|sum| *sum <= at) as u64;
        if self.mix.of_100[2] > 0 { self.count - 1 - rank.min(self.count - 1) } else { mix(rank) % self.count }
    }
}

impl Work for Ycsb {
    fn next(&mut self, _: usize, rng: &mut Rng) -> Vec<Access> {
        let mut chance = rng.below(100);
        let mut what = 0;
        while chance >= self.mix.of_100[what] {
            chance -= self.mix.of_100[what];
            what += 1;
        }
        self.done[what] += 1;
        let (key, mode) = match what {
            0 => (self.pick(rng), Mode::Read),
            2 => {
                self.count += 1;
                (self.count - 1, Mode::Insert)
            }
            _ => (self.pick(rng), Mode::Update),
        };
        let (is_hit, evicts) = self.memory.touch(key / self.per_page, mode != Mode::Read);
        // An update changes a field, so it reads the record too.
        let needs = what != 2;
        if needs {
            self.reads += 1;
            self.hits += u64::from(is_hit);
        }
        vec![Access { is_missed: needs && !is_hit, evicts: evicts && self.per_page > 1, ..Access::new(0, key, mode) }]
    }
}

/// Pages in memory, of which one that was not used for long is dropped for another (CLOCK).
struct Memory {
    places: Vec<Place>,
    at: BTreeMap<u64, usize>,
    hand: usize,
    limit: usize,
}

struct Place {
    page: u64,
    used: bool,
    changed: bool,
}

impl Memory {
    fn new(limit: usize) -> Memory {
        Memory { places: Vec::new(), at: BTreeMap::new(), hand: 0, limit }
    }

    /// Uses a page; returns whether memory had it, and whether a changed one was dropped for it.
    fn touch(&mut self, page: u64, changes: bool) -> (bool, bool) {
        if let Some(at) = self.at.get(&page) {
            let place = &mut self.places[*at];
            place.used = true;
            place.changed |= changes;
            return (true, false);
        }
        let new = Place { page, used: false, changed: changes };
        if self.places.len() < self.limit {
            self.at.insert(page, self.places.len());
            self.places.push(new);
            return (false, false);
        }
        while std::mem::take(&mut self.places[self.hand].used) {
            self.hand = (self.hand + 1) % self.limit;
        }
        let old = std::mem::replace(&mut self.places[self.hand], new);
        self.at.remove(&old.page);
        self.at.insert(page, self.hand);
        self.hand = (self.hand + 1) % self.limit;
        (false, old.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   transactions use each record once, in one order, and miss as often as they should.
    /// Method: many of each kind; the shares of misses of all reads.
    #[test]
    fn transactions_are_ordered_and_miss_as_often_as_set() {
        let mut rng = Rng::new(1);
        for kind in Oltp::ALL {
            let mut work = OltpWork::new(kind, 800, 2, 0);
            let (mut reads, mut misses) = (0u64, 0u64);
            for i in 0..20_000 {
                let all = work.next(i % 2, &mut rng);
                assert!(all.windows(2).all(|two| (two[0].table, two[0].key) < (two[1].table, two[1].key)), "{all:?}");
                let tables = kind.tables();
                assert!(
                    all.iter().all(|one| one.mode == Mode::Insert || one.key < tables[one.table].records),
                    "{all:?}"
                );
                reads += all.iter().filter(|access| access.mode != Mode::Insert).count() as u64;
                misses += all.iter().filter(|access| access.is_missed).count() as u64;
            }
            let share = misses as f64 / reads as f64;
            assert!((share - 0.2).abs() < 0.01, "{kind:?}: {share}");
        }
    }

    /// Goal:   YCSB has the shares of Table III, and popular records are in memory.
    /// Method: each mix over a memory of two fifths.
    #[test]
    fn mixes_have_their_shares() {
        for mix in MIXES {
            let mut rng = Rng::new(2);
            let mut work = Ycsb::new(mix, 10_000, (4000, 1), &mut rng);
            (0..20_000).for_each(|_| drop(work.next(0, &mut rng)));
            for (done, of_100) in work.done.into_iter().zip(mix.of_100) {
                assert!((done as f64 / 200.0 - of_100 as f64).abs() < 1.5, "{mix:?}: {done}");
            }
            let hits = work.hits as f64 / work.reads as f64;
            assert!((0.7..1.0).contains(&hits), "{mix:?}: {hits}");
        }
    }
}
