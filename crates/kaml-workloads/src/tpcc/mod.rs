//! TPC-C: the warehouses of a wholesaler; NewOrder and Payment, its two most frequent transactions.
//!
//! Lives here:       settings, and the workload as a whole.
//! Lives elsewhere:  tables (`schema`), random functions (`random`), the initial rows (`load`), the transactions
//!                   (`transactions`), the consistency conditions (`check`), the loop (`drive`).
//! Implements:       TPC Benchmark C, revision 5.11, clauses 1 to 4 as far as the two transactions need them;
//!                   paper:KAML V.D.
//!
//! Departures: there are no terminals, so no keying and thinking times; every thread works for a warehouse chosen anew
//! for each transaction, unless it is given one of its own. History has no key in the benchmark; here it is the client's
//! number and its count.

mod check;
mod load;
mod random;
mod schema;
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
    CUSTOMER, Customer, DISTRICT, DISTRICTS, History, ITEM, NAME, NewOrder, Order, OrderLine, STOCK, Stock, TABLES,
    WAREHOUSE, Warehouse,
};
use serde::Serialize;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;
use transactions::{Client, Done, KINDS};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// The scale.
    pub warehouses: u64,
    /// 100 000 in the benchmark.
    pub items: u64,
    /// 3000 in the benchmark, and as many orders.
    pub customers_per_district: u64,
    /// Share of NewOrders; the others are Payments.
    pub new_order_share: f64,
    /// Each thread works for one warehouse only.
    pub own_warehouse: bool,
    /// Bytes that rows are filled up to.
    pub row_bytes: RowBytes,
}

impl Settings {
    /// As the benchmark says, with as many NewOrders as Payments.
    pub fn new(warehouses: u64) -> Settings {
        Settings {
            warehouses,
            items: 100_000,
            customers_per_district: 3000,
            new_order_share: 0.5,
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
        bound("items", self.items, schema::COUNT_MAX)?;
        bound("customers per district", self.customers_per_district, schema::COUNT_MAX)?;
        if !(0.0..=1.0).contains(&self.new_order_share) {
            return Err(Error::Parameters(format!("a share of {} NewOrders: must be in 0..=1", self.new_order_share)));
        }
        Ok(())
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

/// Warehouses and what was done to them.
pub struct Tpcc {
    settings: Settings,
    /// Of each client of all runs.
    clients: Mutex<Vec<Done>>,
}

impl Tpcc {
    /// Warehouses of this size.
    pub fn new(settings: Settings) -> Result<Tpcc, Error> {
        settings.check()?;
        Ok(Tpcc { settings, clients: Mutex::default() })
    }

    fn clients(&self) -> MutexGuard<'_, Vec<Done>> {
        self.clients.lock().expect("no panics under this lock")
    }
}

impl Workload for Tpcc {
    fn tables(&self) -> &'static [&'static str] {
        &TABLES
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
            records: s.items * (s.warehouses + 1) + s.customers() * 14 + s.districts() * (1 + s.names()),
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
            rows.iter().enumerate().try_for_each(load).map_err(Stop::into_error)
        })?;
        progress(Stage::Settle, 0, 0);
        engine.settle()
    }

    /// Orders and history of the load are left out: neither transaction ever reads them.
    fn fill_cache(&self, engine: &dyn Engine, threads: usize, progress: &Progress<'_>) -> Result<(), Error> {
        let population = Population::new(&self.settings);
        drive::share_out(engine, threads, population.places(), Stage::Fill, progress, |session, range| {
            let mut rows = [const { Vec::new() }; TABLES.len()];
            range.for_each(|place| population.make(place, &mut rows));
            for table in [ITEM, STOCK, CUSTOMER, NAME, DISTRICT, WAREHOUSE] {
                drive::read_all(session, rows[table.0].iter().map(|(key, _)| (table, *key)))?;
            }
            Ok(())
        })?;
        Ok(())
    }

    fn run(&self, engine: &dyn Engine, run: &Run, progress: &Progress<'_>) -> Result<Outcome, Error> {
        let s = &self.settings;
        let first_client = self.clients().len();
        let begun = Instant::now();
        let make = |thread: usize| Client {
            settings: s,
            constants: Constants::of_run(run.seed),
            rng: Rng::new(Rng::new(run.seed ^ (thread as u64).rotate_left(32)).next_u64()),
            home: s.own_warehouse.then_some(thread as u64 % s.warehouses + 1),
            number: (first_client + thread) as u64,
            begun,
            done: Done::default(),
            row: Vec::new(),
            other_row: Vec::new(),
        };
        let configuration = serde_json::json!({ "settings": s, "run": run });
        let about = About { workload: "tpcc".into(), kinds: &KINDS, configuration };
        let (outcome, clients) = drive::run(engine, run, &about, progress, make)?;
        self.clients().extend(clients.iter().map(|client| client.done));
        Ok(outcome)
    }

    /// Conditions 1 to 4 of clause 3.3.2, and that what was committed is there, in customers and stocks too.
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
        let engine = KamlEngine::create(None, &CreateOptions::new(128 << 20), store, tpcc.tables()).unwrap();
        tpcc.load(&engine, 3, &|_, _, _| ()).unwrap();
        tpcc.fill_cache(&engine, 3, &|_, _, _| ()).unwrap();
        (tpcc, engine)
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

    /// Goal:   a violation of each condition is noticed.
    /// Method: one change to a row behind the workload's back for each.
    #[test]
    fn violations_are_noticed() {
        type Change<'a> = &'a dyn Fn(&mut dyn Transaction) -> Result<(), Stop>;
        let tampered = |change: Change<'_>| {
            let (tpcc, mut engine) = loaded(tiny(Settings::new(1)), &StoreOptions::new(8 << 20));
            tpcc.run(&engine, &Run::of(1, 50), &|_, _, _| ()).unwrap();
            engine.session().unwrap().transact(&mut |txn| change(txn)).unwrap();
            tpcc.check(&mut engine, 1, &|_, _, _| ())
        };
        tampered(&|_| Ok(())).unwrap();
        let key = in_district(1, 3, 28);
        let changes: [Change<'_>; 10] = [
            &|txn| rows::update::<Warehouse, _>(txn, WAREHOUSE, 1, &mut Vec::new(), |row| row.ytd += 1),
            &|txn| {
                rows::update::<District, _>(txn, DISTRICT, district_key(1, 3), &mut Vec::new(), |r| r.next_order += 1)
            },
            &|txn| {
                rows::update::<District, _>(txn, DISTRICT, district_key(1, 3), &mut Vec::new(), |r| {
                    r.next_order = 0.into()
                })
            },
            &|txn| txn.delete(ORDER, key),
            &|txn| txn.delete(NEW_ORDER, key),
            &|txn| txn.delete(ORDER_LINE, line_key(key, 2)),
            &|txn| txn.delete(HISTORY, history_key(0, 0)),
            &|txn| {
                rows::update::<Customer, _>(txn, CUSTOMER, in_district(1, 3, 7), &mut Vec::new(), |row| {
                    row.ytd_payment -= 1
                })
            },
            &|txn| {
                rows::update::<Customer, _>(txn, CUSTOMER, in_district(1, 3, 7), &mut Vec::new(), |row| {
                    row.balance += 1
                })
            },
            &|txn| rows::update::<Stock, _>(txn, STOCK, stock_key(1, 77), &mut Vec::new(), |row| row.order_count += 1),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            assert!(matches!(tampered(change), Err(Error::Wrong(_))), "change {at}");
        }
    }

    /// Goal:   rows that the device has lost are missed, although the store had them in its cache.
    /// Method: a cache that holds everything; after the run, delete a row of the load and one of the run below the store.
    #[test]
    fn rows_that_the_device_lost_are_missed() {
        let lost = |rows: &[(Table, u64)]| {
            let (tpcc, mut engine) = loaded(tiny(Settings::new(1)), &StoreOptions::new(16 << 20));
            tpcc.run(&engine, &Run::of(2, 100), &|_, _, _| ()).unwrap();
            let device = engine.device().clone();
            for (table, key) in rows {
                device.delete(device.namespace(TABLES[table.0]).unwrap(), *key).unwrap();
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
            Settings { new_order_share: f64::NAN, ..Settings::new(1) },
        ] {
            assert!(matches!(Tpcc::new(settings), Err(Error::Parameters(_))));
        }
    }
}
