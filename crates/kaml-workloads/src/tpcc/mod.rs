//! TPC-C: the warehouses of a wholesaler; all five transactions, or NewOrder and Payment, its two most frequent ones.
//!
//! Lives here:       settings, and the workload as a whole.
//! Lives elsewhere:  tables (`schema`), random functions (`random`), the initial rows (`load`), the transactions
//!                   (`transactions`, `more`), their mix and pauses (`terminal`), the consistency conditions (`check`),
//!                   killing it (`kill`), the loop (`drive`).
//! Implements:       TPC Benchmark C, revision 5.11, clauses 1 to 4 and 5.2; paper:KAML V.D.
//!
//! Departures: a thread is a terminal, without pauses unless they are requested. It works for a warehouse chosen again for each
//! transaction, unless it is given one of its own, and for any district. Deliveries are not queued. History has no key in the benchmark; here it is the client's
//! number and its count.

mod check;
pub mod kill;
mod load;
mod more;
mod random;
mod schema;
mod terminal;
mod transactions;

pub use schema::RowBytes;

use crate::Error;
use crate::drive::{self, About, Outcome, Progress, Run, Size, Stage, Workload};
use crate::engine::{Engine, Stop, Table};
use crate::keys::Rng;
use crate::rows;
use load::Population;
use random::Constants;
use schema::{
    CUSTOMER, CUSTOMER_ORDER, Customer, DISTRICT, DISTRICTS, HISTORY, History, ITEM, NAME, NEW_ORDER, NewOrder, ORDER,
    ORDER_LINE, Order, OrderLine, STOCK, Stock, TABLES, WAREHOUSE, Warehouse,
};
use serde::Serialize;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;
use terminal::{KINDS, Terminal};
use transactions::{Client, Done};

/// Which transactions run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mix {
    /// All five as the benchmark specifies: ten NewOrders, ten Payments and one each of the others.
    Full,
    /// NewOrders, with this share, and Payments. These need no ranges.
    Paper(f64),
}

/// The options of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// The scale.
    pub warehouses: u64,
    /// 100 000 in the benchmark.
    pub items: u64,
    /// 3000 in the benchmark, and as many orders.
    pub customers_per_district: u64,
    /// Which transactions run.
    pub mix: Mix,
    /// Keying and thinking times, as a share of those of the benchmark; 0 for none.
    pub think: f64,
    /// Each thread works for one warehouse only.
    pub own_warehouse: bool,
    /// Bytes that rows are filled up to.
    pub row_bytes: RowBytes,
}

impl Settings {
    /// As the benchmark specifies, with as many NewOrders as Payments.
    pub fn new(warehouses: u64) -> Settings {
        Settings {
            warehouses,
            items: 100_000,
            customers_per_district: 3000,
            mix: Mix::Paper(0.5),
            think: 0.0,
            own_warehouse: false,
            row_bytes: RowBytes { customer: 0, other: 0 },
        }
    }

    /// With the row sizes of paper:KAML V.D.
    pub fn paper(warehouses: u64) -> Settings {
        Settings { row_bytes: RowBytes { customer: 1024, other: 512 }, ..Settings::new(warehouses) }
    }

    fn check(&self) -> Result<(), Error> {
        let bound = |what, value: u64, max: u64| {
            let fits = (1..=max).contains(&value);
            if fits { Ok(()) } else { Err(Error::Parameters(format!("{value} {what}: must be in 1..={max}"))) }
        };
        bound("warehouses", self.warehouses, schema::WAREHOUSES_MAX)?;
        bound("items", self.items, schema::ITEMS_MAX)?;
        bound("customers per district", self.customers_per_district, schema::CUSTOMERS_MAX)?;
        match self.mix {
            Mix::Paper(share) if !(0.0..=1.0).contains(&share) => {
                Err(Error::Parameters(format!("a share of {share} NewOrders: must be in 0..=1")))
            }
            _ if !(0.0..=THINK_MAX).contains(&self.think) => {
                Err(Error::Parameters(format!("think time {}: must be in 0..={THINK_MAX}", self.think)))
            }
            Mix::Full | Mix::Paper(_) => Ok(()),
        }
    }

    /// Whether transactions read ranges.
    fn is_scanned(&self) -> bool {
        self.mix == Mix::Full
    }

    fn districts(&self) -> u64 {
        self.warehouses * DISTRICTS
    }

    fn customers(&self) -> u64 {
        self.districts() * self.customers_per_district
    }

    /// Last names that customers of every district have.
    fn names(&self) -> u64 {
        random::NAMES.min(self.customers_per_district)
    }

    /// A row as it is stored.
    fn value(&self, table: Table, row: &impl rows::Row, key: u64) -> Vec<u8> {
        rows::make(row, if table == CUSTOMER { self.row_bytes.customer } else { self.row_bytes.other }, key)
    }

    fn row_bytes<T>(&self) -> u64 {
        size_of::<T>().max(self.row_bytes.other) as u64
    }
}

/// Longer pauses are a mistake.
const THINK_MAX: f64 = 1000.0;

/// Warehouses and what was done to them.
pub struct Tpcc {
    settings: Settings,
    /// The number of the first client; earlier ones have history already.
    first_client: u64,
    /// Of each client of all runs.
    clients: Mutex<Vec<Done>>,
}

impl Tpcc {
    /// Warehouses of this size.
    pub fn new(settings: Settings) -> Result<Tpcc, Error> {
        settings.check()?;
        Ok(Tpcc { settings, first_client: 0, clients: Mutex::default() })
    }

    fn clients(&self) -> MutexGuard<'_, Vec<Done>> {
        self.clients.lock().expect("no panics under this lock")
    }
}

impl Workload for Tpcc {
    fn tables(&self) -> &'static [&'static str] {
        &TABLES[..if self.settings.is_scanned() { TABLES.len() } else { CUSTOMER_ORDER.0 }]
    }

    /// History is scanned when it is checked.
    fn is_scanned(&self, table: Table) -> bool {
        self.settings.is_scanned() && [ORDER, NEW_ORDER, ORDER_LINE, HISTORY, CUSTOMER_ORDER].contains(&table)
    }

    fn check_run(&self, engine: &dyn Engine, run: &Run) -> Result<(), Error> {
        if self.settings.is_scanned() { drive::check_scans("tpcc with the full mix", engine, run) } else { Ok(()) }
    }

    /// Ten lines for an order on average; NewOrder writes far more than Payment.
    fn size(&self) -> Size {
        let s = &self.settings;
        let customer = size_of::<Customer>().max(s.row_bytes.customer) as u64;
        let order = s.row_bytes::<Order>() + s.row_bytes::<NewOrder>() + 10 * s.row_bytes::<OrderLine>();
        let of_customer = customer + s.row_bytes::<History>() + order;
        let stock = s.warehouses * s.items * s.row_bytes::<Stock>();
        let others = (s.items + s.districts() * (1 + s.names())) * s.row_bytes::<Warehouse>();
        Size {
            records: s.items * (s.warehouses + 1) + s.customers() * 15 + s.districts() * (1 + s.names()),
            value_bytes: s.customers() * of_customer + stock + others,
            operation_bytes: order + 10 * s.row_bytes::<Stock>() + s.row_bytes::<Warehouse>(),
        }
    }

    fn load(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<(), Error> {
        let population = Population::new(&self.settings);
        drive::share_out(engine, threads, population.places(), Stage::Load, progress, |session, range| {
            let mut rows = [const { Vec::new() }; TABLES.len()];
            range.for_each(|place| population.make(place, &mut rows));
            let load = |(at, rows): (usize, &Vec<_>)| session.load(Table(at), rows);
            rows.iter().enumerate().filter(|(_, rows)| !rows.is_empty()).try_for_each(load).map_err(Stop::into_error)
        })?;
        progress(Stage::Settle, 0, 0);
        engine.settle()
    }

    /// History of the load is left out, and with the paper's mix its orders: no transaction ever reads them.
    fn fill_cache(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<(), Error> {
        let population = Population::new(&self.settings);
        drive::share_out(engine, threads, population.places(), Stage::Fill, progress, |session, range| {
            let mut rows = [const { Vec::new() }; TABLES.len()];
            range.for_each(|place| population.make(place, &mut rows));
            let scanned = [ORDER, NEW_ORDER, ORDER_LINE];
            let scanned = scanned.iter().filter(|_| self.settings.is_scanned());
            for table in [ITEM, STOCK, CUSTOMER, NAME, DISTRICT, WAREHOUSE].iter().chain(scanned).copied() {
                drive::read_all(session, rows[table.0].iter().map(|(key, _)| (table, *key)))?;
            }
            Ok(())
        })?;
        Ok(())
    }

    fn run(&self, engine: &dyn Engine, run: &Run, progress: &Progress<'_>) -> Result<Outcome, Error> {
        self.check_run(engine, run)?;
        let s = &self.settings;
        let first_client = self.first_client + self.clients().len() as u64;
        let begun = Instant::now();
        let make = |thread: usize| Client {
            settings: s,
            terminal: Terminal::default(),
            constants: Constants::of_run(run.seed),
            rng: Rng::new(Rng::new(run.seed ^ (thread as u64).rotate_left(32)).next_u64()),
            home: s.own_warehouse.then_some(thread as u64 % s.warehouses + 1),
            number: first_client + thread as u64,
            begun,
            done: Done::default(),
            row: Vec::new(),
            other_row: Vec::new(),
        };
        let configuration = serde_json::json!({ "settings": s, "run": run });
        let about = About { workload: "tpcc".into(), kinds: &KINDS, configuration };
        let (mut outcome, clients) = drive::run(engine, run, &about, progress, make)?;
        let new_orders = outcome.kinds.iter().find(|kind| kind.kind == KINDS[0]).map_or(0, |kind| kind.operations);
        let committed = new_orders.saturating_sub(outcome.aborts.rollback);
        outcome.tpm_c = Some(committed as f64 * 60.0 / outcome.seconds);
        self.clients().extend(clients.iter().map(|client| client.done));
        Ok(outcome)
    }

    /// Conditions 1 to 12 of clause 3.3.2, and that what was committed, and nothing else, exists.
    fn compare(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<Vec<String>, Error> {
        check::check(&self.settings, &self.clients(), engine, threads, progress)
    }
}

#[cfg(test)]
mod tests {
    use super::schema::*;
    use super::*;
    use crate::engine::Transaction;
    use crate::engine::store::KamlEngine;
    use kaml::CreateOptions;
    use kaml::store::StoreOptions;

    fn tiny(settings: Settings) -> Settings {
        Settings { items: 200, customers_per_district: 30, ..settings }
    }

    fn loaded(settings: Settings, store: &StoreOptions) -> (Tpcc, KamlEngine) {
        let tpcc = Tpcc::new(settings).unwrap();
        let engine = KamlEngine::create_for(None, &CreateOptions::new(128 << 20), store, &tpcc).unwrap();
        tpcc.load(&engine, 3, &|_, _, _| ()).unwrap();
        tpcc.fill_cache(&engine, 3, &|_, _, _| ()).unwrap();
        (tpcc, engine)
    }

    fn full(settings: Settings) -> Settings {
        Settings { mix: Mix::Full, ..settings }
    }

    /// Goal:   the conditions hold after the load and after contended runs in every mode; about one NewOrder in a
    ///         hundred is rolled back.
    /// Method: 8 threads on 2 warehouses, strict and early release, 1 and 16 records for a lock, both row sizes, warehouses
    ///         of their own; two runs each.
    #[test]
    fn the_conditions_hold_in_every_mode() {
        for (early_release, records_per_lock) in [(false, 1), (true, 1), (false, 16), (true, 16)] {
            let store = StoreOptions { early_release, records_per_lock, ..StoreOptions::new(2 << 20) };
            let settings = if early_release { Settings::paper(2) } else { Settings::new(2) };
            let (tpcc, mut engine) = loaded(Settings { own_warehouse: early_release, ..tiny(settings) }, &store);
            tpcc.check(&mut engine, 2, &|_, _, _| ()).unwrap();
            for run in 1..=2 {
                let parameters = Run { seed: run, ..Run::of(8, 1500) };
                let outcome = tpcc.run(&engine, &parameters, &|_, _, _| ()).unwrap();
                assert_eq!(outcome.operations, 1500);
                assert!((1..30).contains(&outcome.aborts.rollback), "{:?}", outcome.aborts);
                assert!(outcome.kinds.iter().all(|kind| (600..900).contains(&kind.operations)), "{:?}", outcome.kinds);
                tpcc.check(&mut engine, 3, &|_, _, _| ()).unwrap();
            }
        }
    }

    /// Goal:   the conditions hold with all five transactions in every mode; tpmC is that of committed NewOrders; an engine
    ///         without ranges is refused.
    /// Method: 8 threads on 2 warehouses, both row sizes, strict, early release and delayed durability, two runs each; the
    ///         device over the wire, which has no ranges.
    #[test]
    fn the_conditions_hold_with_the_full_mix() {
        let delay = |ms| std::time::Duration::from_millis(ms);
        for (early_release, durability_delay, own_warehouse) in
            [(false, delay(0), false), (true, delay(0), true), (false, delay(2), false)]
        {
            let store = StoreOptions { early_release, durability_delay, ..StoreOptions::new(2 << 20) };
            let settings = if own_warehouse { Settings::paper(2) } else { Settings::new(2) };
            let (tpcc, mut engine) = loaded(Settings { own_warehouse, ..full(tiny(settings)) }, &store);
            tpcc.check(&mut engine, 2, &|_, _, _| ()).unwrap();
            for run in 1..=2 {
                let parameters = Run { seed: run, ..Run::of(8, 3000) };
                let outcome = tpcc.run(&engine, &parameters, &|_, _, _| ()).unwrap();
                let kinds: Vec<u64> = outcome.kinds.iter().map(|kind| kind.operations).collect();
                assert!(kinds.len() == 5 && kinds[..2].iter().all(|count| (1200..1400).contains(count)), "{kinds:?}");
                assert!(kinds[2..].iter().all(|count| (100..160).contains(count)), "{kinds:?}");
                let committed = (kinds[0] - outcome.aborts.rollback) as f64 * 60.0 / outcome.seconds;
                assert!((outcome.tpm_c.unwrap() / committed - 1.0).abs() < 1e-9);
                tpcc.check(&mut engine, 3, &|_, _, _| ()).unwrap();
            }
        }
        let store = StoreOptions::new(2 << 20);
        let (tpcc, engine) = loaded(full(tiny(Settings::new(1))), &store);
        let engine = engine.over_the_wire(&store, 1).unwrap();
        let result = tpcc.run(&engine, &Run::of(1, 1), &|_, _, _| ());
        assert!(matches!(&result, Err(Error::Parameters(what)) if what.contains("no ranges")), "{result:?}");
    }

    /// Goal:   with think time a run pauses between transactions, ends in time, and latencies do not contain the pauses.
    /// Method: pauses of 20 ms on average, and pauses far longer than the run.
    #[test]
    fn terminals_pause() {
        for (think, most) in [(0.001, 400), (1.0, 0)] {
            let (tpcc, engine) =
                loaded(Settings { think, ..full(tiny(Settings::new(1))) }, &StoreOptions::new(4 << 20));
            let run = Run { duration: std::time::Duration::from_secs(1), ..Run::of(4, u64::MAX) };
            let begun = Instant::now();
            let outcome = tpcc.run(&engine, &run, &|_, _, _| ()).unwrap();
            assert!(begun.elapsed().as_secs() < 10 && outcome.operations <= most, "{}", outcome.operations);
            assert!(most == 0 || outcome.operations > 10 && outcome.latency.p50_ns < 10_000_000, "{outcome:?}");
        }
    }

    type Change<'a> = &'a dyn Fn(&mut dyn Transaction) -> Result<(), Stop>;

    fn change<T: rows::Row>(
        txn: &mut dyn Transaction,
        table: Table,
        key: u64,
        with: impl FnOnce(&mut T),
    ) -> Result<(), Stop> {
        rows::update(txn, table, key, &mut Vec::new(), with)
    }

    /// The keys of the lines of an order.
    fn lines(txn: &mut dyn Transaction, order: u64) -> Result<Vec<u64>, Stop> {
        let mut value = Vec::new();
        let mut keys = Vec::new();
        for key in (1..=LINES_MAX).map(|number| line_key(order, number)) {
            if txn.read(ORDER_LINE, key, &mut value)? {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    /// Goal:   a violation of each condition is noticed as one of that condition, and so is a loss that none of them covers.
    /// Method: one change to rows after the workload's back for each, with both mixes.
    #[test]
    fn violations_are_noticed() {
        let key = in_district(1, 3, 28);
        let customer = in_district(1, 3, 7);
        let changes: [(&str, Change<'_>); 17] = [
            ("condition 1,", &|txn| change::<Warehouse>(txn, WAREHOUSE, 1, |row| row.ytd += 1)),
            ("condition 2,", &|txn| change::<District>(txn, DISTRICT, district_key(1, 3), |row| row.next_order += 1)),
            ("condition 2,", &|txn| {
                change::<District>(txn, DISTRICT, district_key(1, 3), |row| row.next_order = 0.into())
            }),
            ("condition 2,", &|txn| txn.delete(ORDER, key)),
            ("condition 3,", &|txn| txn.delete(NEW_ORDER, key)),
            ("condition 4,", &|txn| txn.delete(ORDER_LINE, line_key(key, 2))),
            ("condition 5,", &|txn| change::<Order>(txn, ORDER, key, |row| row.carrier = 1.into())),
            ("condition 6,", &|txn| {
                let orders = (25..28).map(|number| in_district(1, 3, number));
                let counted = orders.map(|order| Ok((order, lines(txn, order)?.len() as u64)));
                let counted = counted.collect::<Result<Vec<_>, Stop>>()?;
                let (order, count) = counted.into_iter().find(|(_, count)| *count < LINES_MAX).expect("a short order");
                let mut line = Vec::new();
                assert!(txn.read(ORDER_LINE, line_key(key, 2), &mut line)?);
                txn.delete(ORDER_LINE, line_key(key, 2))?;
                txn.insert(ORDER_LINE, line_key(order, count + 1), &line)
            }),
            ("condition 7,", &|txn| {
                change::<OrderLine>(txn, ORDER_LINE, line_key(key, 1), |row| row.delivery_us = 5.into())
            }),
            ("condition 8,", &|txn| {
                change::<Warehouse>(txn, WAREHOUSE, 1, |row| row.ytd += 1)?;
                change::<District>(txn, DISTRICT, district_key(1, 3), |row| row.ytd += 1)
            }),
            ("condition 9,", &|txn| {
                change::<District>(txn, DISTRICT, district_key(1, 3), |row| row.ytd += 1)?;
                change::<District>(txn, DISTRICT, district_key(1, 4), |row| row.ytd -= 1)
            }),
            ("condition 10,", &|txn| {
                change::<Customer>(txn, CUSTOMER, customer, |row| {
                    row.balance += 1;
                    row.ytd_payment -= 1;
                })
            }),
            ("condition 11:", &|txn| {
                let mut orders = (1..).map(|number| in_district(1, 3, number));
                let oldest = orders.find(|order| txn.read(NEW_ORDER, *order, &mut Vec::new()).unwrap()).unwrap();
                txn.delete(NEW_ORDER, oldest)?;
                change::<Order>(txn, ORDER, oldest, |row| row.carrier = 1.into())?;
                let lines = lines(txn, oldest)?;
                let deliver = |key| change::<OrderLine>(txn, ORDER_LINE, key, |row| row.delivery_us = 5.into());
                lines.into_iter().try_for_each(deliver)
            }),
            ("condition 12,", &|txn| change::<Customer>(txn, CUSTOMER, customer, |row| row.ytd_payment -= 1)),
            ("history", &|txn| txn.delete(HISTORY, history_key(0, 0))),
            ("payments that", &|txn| change::<Customer>(txn, CUSTOMER, customer, |row| row.payment_count += 1)),
            ("stocks", &|txn| change::<Stock>(txn, STOCK, stock_key(1, 77), |row| row.order_count += 1)),
        ];
        for settings in [Settings::new(1), full(Settings::new(1))] {
            let tampered = |change: Change<'_>| {
                let (tpcc, mut engine) = loaded(tiny(settings.clone()), &StoreOptions::new(8 << 20));
                tpcc.run(&engine, &Run::of(1, 50), &|_, _, _| ()).unwrap();
                engine.session().unwrap().transact(&mut |txn| change(txn)).unwrap();
                tpcc.check(&mut engine, 1, &|_, _, _| ())
            };
            tampered(&|_| Ok(())).unwrap();
            for (noticed, change) in changes {
                let result = tampered(change);
                let is_noticed = matches!(&result, Err(Error::Wrong(what)) if what.starts_with(noticed));
                assert!(is_noticed, "{noticed} {:?}: {result:?}", settings.mix);
            }
        }
    }

    /// Goal:   rows that the device has lost are missed, although the store had them in its cache.
    /// Method: a cache that holds everything; after the run, delete a row of the load and one of the run below the store.
    #[test]
    fn rows_that_the_device_lost_are_missed() {
        let lost = |rows: &[(Table, u64)]| {
            let (tpcc, mut engine) = loaded(tiny(Settings::new(1)), &StoreOptions::new(16 << 20));
            // One thread: of two, one may do all the transactions, and then the other writes no history.
            tpcc.run(&engine, &Run::of(1, 100), &|_, _, _| ()).unwrap();
            let device = engine.device().clone();
            for (table, key) in rows {
                let mut below = kaml::Batch::new();
                below.delete(device.namespace(TABLES[table.0]).unwrap(), *key);
                engine.store().write_past_the_cache(&below).unwrap();
            }
            drop(device);
            tpcc.check(&mut engine, 2, &|_, _, _| ())
        };
        lost(&[]).unwrap();
        for row in [(CUSTOMER, in_district(1, 3, 7)), (WAREHOUSE, 1), (HISTORY, history_key(0, 0))] {
            assert!(matches!(lost(&[row]), Err(Error::Wrong(_))), "{row:?}");
        }
    }

    /// Goal:   customers of a last name are found in the order of their first names, all of them.
    /// Method: read the index and the customers of a district.
    #[test]
    fn the_name_index_is_complete_and_ordered() {
        let settings = Settings { customers_per_district: 1200, ..tiny(Settings::new(1)) };
        let (_, engine) = loaded(settings, &StoreOptions::new(8 << 20));
        let mut session = engine.session().unwrap();
        let mut seen = 0;
        for name in 0..1000 {
            let mut value = Vec::new();
            assert!(session.get_into(NAME, in_district(1, 4, name), &mut value).unwrap());
            let numbers = value.as_chunks::<4>().0.iter().map(|number| u64::from(u32::from_le_bytes(*number)));
            let customers: Vec<Customer> =
                numbers.map(|number| rows::get(&mut *session, CUSTOMER, in_district(1, 4, number)).unwrap()).collect();
            assert!(customers.iter().all(|customer| customer.last == random::field(&random::last_name(name))));
            assert!(customers.is_sorted_by_key(|customer| customer.first));
            seen += customers.len();
        }
        assert_eq!(seen, 1200);
    }

    /// Goal:   settings that make no sense are refused.
    /// Method: each at its bound.
    #[test]
    fn senseless_settings_are_refused() {
        for settings in [
            Settings::new(0),
            Settings::new(1 << 16),
            Settings { items: 0, ..Settings::new(1) },
            Settings { customers_per_district: 0, ..Settings::new(1) },
            Settings { mix: Mix::Paper(f64::NAN), ..Settings::new(1) },
            Settings { think: f64::NAN, ..Settings::new(1) },
            Settings { think: -1.0, ..full(Settings::new(1)) },
        ] {
            assert!(matches!(Tpcc::new(settings), Err(Error::Parameters(_))));
        }
    }
}
