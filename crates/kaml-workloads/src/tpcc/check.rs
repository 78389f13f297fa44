//! TPC-C's consistency conditions.
//!
//! Lives here:       conditions 1 to 12 of clause 3.3.2, and that what was committed, and nothing else, exists.
//!
//! An engine with ranges shows all rows of a district. One without ranges is asked for the rows that can exist and for the
//! next ones, which must be absent.

use super::Settings;
use super::load::{first_new_order, loaded_payments};
use super::schema::*;
use super::transactions::Done;
use crate::Error;
use crate::drive::{self, Progress, Stage};
use crate::engine::{Engine, Ranges, Scan, Session, Stop, Table};
use crate::rows;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, Ordering};

/// What a district has.
struct Sums {
    warehouse: u64,
    ytd: i64,
    orders: u64,
    new_orders: u64,
    lines: u64,
    /// Of the lines that NewOrders added.
    added: Taken,
}

/// What an order and its lines contain.
struct OrderFacts {
    customer: u64,
    line_count: u64,
    is_delivered: bool,
    lines: u64,
    /// Lines with a delivery date, and what they come to.
    dated_lines: u64,
    dated_amount: i64,
}

/// What was taken from stocks, by the order lines or by the stocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    times: u64,
    quantity: u64,
    remote: u64,
}

impl Taken {
    fn add(&mut self, other: Taken) {
        self.times += other.times;
        self.quantity += other.quantity;
        self.remote += other.remote;
    }

    fn of_line(line: &OrderLine) -> Taken {
        let remote = line.supply_warehouse != line.warehouse;
        Taken { times: 1, quantity: line.quantity.get().into(), remote: remote.into() }
    }

    fn of_stock(stock: &Stock) -> Taken {
        let (times, remote) = (stock.order_count.get().into(), stock.remote_count.get().into());
        Taken { times, quantity: stock.ytd.get(), remote }
    }
}

/// What customers paid, and what they count.
#[derive(Default)]
struct OfCustomers {
    paid: i64,
    payments: u64,
    deliveries: u64,
}

impl OfCustomers {
    fn add(&mut self, other: &OfCustomers) {
        self.paid += other.paid;
        self.payments += other.payments;
        self.deliveries += other.deliveries;
    }
}

/// Reads the rows of one thread.
struct Tables<'a> {
    session: &'a mut dyn Session,
    has_ranges: bool,
}

impl Tables<'_> {
    /// Shows the rows with keys in a range. Without ranges, those with the keys that can exist.
    fn each<T: rows::Row + Copy>(
        &mut self,
        table: Table,
        range: RangeInclusive<u64>,
        keys: impl Iterator<Item = u64>,
        mut see: impl FnMut(u64, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut result = Ok(());
        let mut each = |key: u64, value: &[u8]| {
            if result.is_ok() {
                result = rows::read::<T>(value).map_err(Stop::into_error).and_then(|row| see(key, *row));
            }
        };
        if self.has_ranges {
            let scan = Scan::of(table, *range.start(), *range.end());
            self.session.scan(scan, &mut each).map_err(Stop::into_error)?;
        } else {
            for key in keys {
                self.session.get(table, key, &mut |value| each(key, value)).map_err(Stop::into_error)?;
            }
        }
        result
    }
}

/// Sums over rows of other tables, by customer or by district.
struct Found<'a> {
    settings: &'a Settings,
    /// Of delivered lines, by customer.
    delivered: Vec<AtomicI64>,
    /// Of history, by customer and by district.
    paid: Vec<AtomicI64>,
    paid_in_district: Vec<AtomicI64>,
}

impl Found<'_> {
    fn new(settings: &Settings) -> Found<'_> {
        let zeros = |count: u64| (0..count).map(|_| AtomicI64::new(0)).collect();
        let (customers, districts) = (settings.customers(), settings.districts());
        Found { settings, delivered: zeros(customers), paid: zeros(customers), paid_in_district: zeros(districts) }
    }

    fn add(&self, row: &History) -> Result<(), Error> {
        let [warehouse, district] = [row.warehouse, row.district].map(|number| number.get().into());
        let [of_warehouse, of_district, customer] =
            [row.customer_warehouse, row.customer_district, row.customer].map(|number| number.get().into());
        let customer = self.customer(of_warehouse, of_district, customer)?;
        self.paid[customer].fetch_add(row.amount.get(), Ordering::Relaxed);
        let district = self.district(warehouse, district)?;
        self.paid_in_district[district].fetch_add(row.amount.get(), Ordering::Relaxed);
        Ok(())
    }

    fn district(&self, warehouse: u64, district: u64) -> Result<usize, Error> {
        let exists = (1..=self.settings.warehouses).contains(&warehouse) && (1..=DISTRICTS).contains(&district);
        let none = || Error::Wrong(format!("a row names district {district} of warehouse {warehouse}"));
        exists.then_some(((warehouse - 1) * DISTRICTS + district - 1) as usize).ok_or_else(none)
    }

    fn customer(&self, warehouse: u64, district: u64, customer: u64) -> Result<usize, Error> {
        let (district, count) = (self.district(warehouse, district)?, self.settings.customers_per_district);
        let none = || Error::Wrong(format!("a row names customer {customer} of a district"));
        let exists = (1..=count).contains(&customer);
        exists.then_some((district as u64 * count + customer - 1) as usize).ok_or_else(none)
    }
}

/// Checks the conditions alone, of an engine with ranges whose clients are not known; how many orders there are.
pub(super) fn check_conditions(
    settings: &Settings,
    engine: &dyn Engine,
    threads: usize,
    progress: &Progress<'_>,
) -> Result<u64, Error> {
    let found = Found::new(settings);
    let check = Check { settings, engine, threads, progress, found: &found };
    let sums = check.districts()?;
    let warehouse_ytd = check.warehouses(&sums)?;
    check.all_history()?;
    check.paid(&warehouse_ytd)?;
    let deliveries = check.each_customer()?.deliveries;
    let undelivered: u64 = sums.iter().map(|sum| sum.new_orders).sum();
    let orders: u64 = sums.iter().map(|sum| sum.orders).sum();
    check.delivered(orders - undelivered, deliveries)?;
    Ok(orders)
}

/// Checks all warehouses against what each client committed.
pub(super) fn check(
    settings: &Settings,
    clients: &[Done],
    engine: &dyn Engine,
    threads: usize,
    progress: &Progress<'_>,
) -> Result<Vec<String>, Error> {
    let found = Found::new(settings);
    let check = Check { settings, engine, threads, progress, found: &found };
    let sums = check.districts()?;
    let warehouse_ytd = check.warehouses(&sums)?;
    let done = |of: fn(&Done) -> u64| clients.iter().map(of).sum::<u64>();
    let of_all = |of: fn(&Sums) -> u64| sums.iter().map(of).sum::<u64>();
    let (orders, new_orders) = (of_all(|sum| sum.orders), done(|client| client.new_orders));
    let (deliveries, payments) = (done(|client| client.deliveries), done(|client| client.payments));
    let undelivered = of_all(|sum| sum.new_orders);
    let delivered = orders - undelivered;
    check.delivered(delivered, deliveries)?;
    equal("orders, and those of the load with committed NewOrders", orders, settings.customers() + new_orders)?;
    let amount: i64 = clients.iter().map(|client| client.amount).sum();
    check.histories(clients)?;
    check.paid(&warehouse_ytd)?;
    let ytd: i64 = warehouse_ytd.iter().sum();
    equal("ytd since the load and committed payments", ytd - loaded_payments(settings), amount)?;
    check.customers(amount, payments, deliveries)?;
    let mut added = Taken::default();
    sums.iter().for_each(|sum| added.add(sum.added));
    check.stocks(added)?;
    let (lines, rollbacks) = (of_all(|sum| sum.lines), done(|client| client.rollbacks));
    Ok(vec![
        format!(
            "conditions 1, 8 and 9: {} warehouses and their districts have the ytd of history",
            settings.warehouses
        ),
        format!("conditions 2 and 3: orders and new-orders of {} districts have no gaps", settings.districts()),
        format!("conditions 4 and 6: {orders} orders have the {lines} lines that they name"),
        format!(
            "conditions 5, 7 and 11: {delivered} orders are delivered, with all their lines, {undelivered} are not"
        ),
        format!("conditions 10 and 12: {} customers owe what was delivered and not paid", settings.customers()),
        format!("{new_orders} committed NewOrders, {payments} Payments and {deliveries} deliveries exist"),
        format!("{rollbacks} rolled back NewOrders do not exist; {} lines were taken from stocks", added.times),
    ])
}

struct Check<'a> {
    settings: &'a Settings,
    engine: &'a dyn Engine,
    threads: usize,
    progress: &'a Progress<'a>,
    found: &'a Found<'a>,
}

impl Check<'_> {
    fn share_out<T: Send>(
        &self,
        count: u64,
        work: impl Fn(&mut Tables<'_>, std::ops::Range<u64>) -> Result<T, Error> + Sync,
    ) -> Result<Vec<T>, Error> {
        let has_ranges = self.settings.is_scanned() && self.engine.ranges() != Ranges::None;
        drive::share_out(self.engine, self.threads, count, Stage::Check, self.progress, |session, range| {
            work(&mut Tables { session, has_ranges }, range)
        })
    }

    fn districts(&self) -> Result<Vec<Sums>, Error> {
        let sums = self.share_out(self.settings.districts(), |tables, range| {
            range.map(|at| self.district(tables, at / DISTRICTS + 1, at % DISTRICTS + 1)).collect::<Result<Vec<_>, _>>()
        })?;
        Ok(sums.into_iter().flatten().collect())
    }

    /// Condition 11.
    fn delivered(&self, delivered: u64, deliveries: u64) -> Result<(), Error> {
        let loaded = self.settings.districts() * (first_new_order(self.settings) - 1);
        equal("condition 11: orders without new-orders, and committed deliveries", delivered, loaded + deliveries)
    }

    /// Conditions 2 to 7.
    fn district(&self, tables: &mut Tables<'_>, warehouse: u64, district: u64) -> Result<Sums, Error> {
        let row: District = rows::get(tables.session, DISTRICT, district_key(warehouse, district))?;
        let next = u64::from(row.next_order.get());
        let is = |condition: &str| format!("condition {condition}, district {district} of warehouse {warehouse}");
        let Some(last) = next.checked_sub(1) else {
            return Err(Error::Wrong(format!("{}: the next order has number 0", is("2"))));
        };
        let range = in_district(warehouse, district, 0)..=in_district(warehouse, district, u32::MAX.into());
        let number_of = |key: u64| key & u64::from(u32::MAX);
        let keys = || (1..=next).map(|number| in_district(warehouse, district, number));
        let mut orders = BTreeMap::new();
        tables.each(ORDER, range.clone(), keys(), |key, row: Order| {
            equal(&format!("the number of order {key:#x}"), u64::from(row.order.get()), number_of(key))?;
            orders.insert(number_of(key), OrderFacts::of(&row));
            Ok(())
        })?;
        let mut new_orders = BTreeSet::new();
        tables.each(NEW_ORDER, range, keys(), |key, _: NewOrder| {
            new_orders.insert(number_of(key));
            Ok(())
        })?;
        equal(&format!("{}: its last order, and one below its next", is("2")), last_of(orders.keys()), last)?;
        equal(&format!("{}: its orders, and the number of the last", is("2")), orders.len() as u64, last)?;
        if let (Some(least), Some(greatest)) = (new_orders.first(), new_orders.last()) {
            equal(&format!("{}: its last new-order and its last order", is("2")), *greatest, last)?;
            let span = greatest - least + 1;
            equal(&format!("{}: its new-orders, and their span", is("3")), new_orders.len() as u64, span)?;
        }
        let (lines, added) = self.lines(tables, warehouse, district, &mut orders)?;
        let named = orders.values().map(|order| order.line_count).sum();
        equal(&format!("{}: lines, and those that its orders name", is("4")), lines, named)?;
        for (number, order) in &orders {
            let one = |condition: &str, what: &str| format!("{}, order {number}: {what}", is(condition));
            let is_new = new_orders.contains(number);
            equal(&one("5", "that it has a carrier, and that it is no new-order"), order.is_delivered, !is_new)?;
            equal(&one("6", "its lines, and those it names"), order.lines, order.line_count)?;
            let dated = if order.is_delivered { order.lines } else { 0 };
            equal(&one("7", "lines with a delivery date, and those that were delivered"), order.dated_lines, dated)?;
            let customer = self.found.customer(warehouse, district, order.customer)?;
            self.found.delivered[customer].fetch_add(order.dated_amount, Ordering::Relaxed);
        }
        let (orders, new_orders) = (orders.len() as u64, new_orders.len() as u64);
        Ok(Sums { warehouse, ytd: row.ytd.get(), orders, new_orders, lines, added })
    }

    /// Adds the lines of a district to its orders; how many there are, and what NewOrders added.
    fn lines(
        &self,
        tables: &mut Tables<'_>,
        warehouse: u64,
        district: u64,
        orders: &mut BTreeMap<u64, OrderFacts>,
    ) -> Result<(u64, Taken), Error> {
        let key = |order: u64, line: u64| line_key(in_district(warehouse, district, order), line);
        let range = key(0, 0)..=key(u32::MAX.into(), LINES_MAX);
        let next = orders.last_key_value().map_or(0, |(number, _)| *number) + 1;
        let of_order = |(number, order): (&u64, &OrderFacts)| (*number, (order.line_count + 1).min(LINES_MAX));
        let candidates: Vec<(u64, u64)> = orders.iter().map(of_order).chain([(next, 1)]).collect();
        let keys = candidates.into_iter().flat_map(|(order, last)| (1..=last).map(move |line| key(order, line)));
        let (mut count, mut added) = (0, Taken::default());
        tables.each(ORDER_LINE, range, keys, |key, row: OrderLine| {
            let number = key >> LINE_BITS & u64::from(u32::MAX);
            let Some(order) = orders.get_mut(&number) else {
                return Err(Error::Wrong(format!("condition 6: line {key:#x} has no order")));
            };
            count += 1;
            order.lines += 1;
            if row.delivery_us.get() != 0 {
                order.dated_lines += 1;
                order.dated_amount += row.amount.get();
            }
            if number > self.settings.customers_per_district {
                added.add(Taken::of_line(&row));
            }
            Ok(())
        })?;
        Ok((count, added))
    }

    /// Condition 1; the ytd of each warehouse.
    fn warehouses(&self, sums: &[Sums]) -> Result<Vec<i64>, Error> {
        let mut session = self.engine.session()?;
        (1..=self.settings.warehouses)
            .map(|warehouse| {
                let row: Warehouse = rows::get(&mut *session, WAREHOUSE, warehouse)?;
                let districts: i64 = sums.iter().filter(|sum| sum.warehouse == warehouse).map(|sum| sum.ytd).sum();
                let what = format!("condition 1, warehouse {warehouse}: its ytd and its districts'");
                equal(&what, row.ytd.get(), districts)?;
                Ok(row.ytd.get())
            })
            .collect()
    }

    /// Conditions 8 and 9.
    fn paid(&self, warehouse_ytd: &[i64]) -> Result<(), Error> {
        let paid: Vec<i64> = self.found.paid_in_district.iter().map(|sum| sum.load(Ordering::Relaxed)).collect();
        for (at, (ytd, paid)) in warehouse_ytd.iter().zip(paid.chunks(DISTRICTS as usize)).enumerate() {
            let what = format!("condition 8, warehouse {}: its ytd and its history", at + 1);
            equal(&what, *ytd, paid.iter().sum())?;
        }
        let mut session = self.engine.session()?;
        for (at, paid) in (0..).zip(paid) {
            let (warehouse, district) = (at / DISTRICTS + 1, at % DISTRICTS + 1);
            let row: District = rows::get(&mut *session, DISTRICT, district_key(warehouse, district))?;
            let what = format!("condition 9, district {district} of warehouse {warehouse}: its ytd and its history");
            equal(&what, row.ytd.get(), paid)?;
        }
        Ok(())
    }

    /// Adds up history. Each client's is complete, and nobody else has any.
    fn histories(&self, clients: &[Done]) -> Result<(), Error> {
        self.history(LOADER, self.settings.customers(), loaded_payments(self.settings))?;
        for (client, done) in (0..).zip(clients) {
            self.history(client, done.payments, done.amount)?;
        }
        let others = history_key(clients.len() as u64, 0)..=history_key(LOADER, 0) - 1;
        let first = *others.start();
        self.no_history(others, first)
    }

    fn history(&self, client: u64, payments: u64, amount: i64) -> Result<(), Error> {
        let amounts = self.share_out(payments, |tables, range| {
            let key = |at| history_key(client, at);
            let (mut count, mut sum) = (0, 0);
            let keys = key(range.start)..=key(range.end - 1);
            tables.each(HISTORY, keys, range.clone().map(key), |_, row: History| {
                (count, sum) = (count + 1, sum + row.amount.get());
                self.found.add(&row)
            })?;
            equal(&format!("history of client {client} and its payments"), count, range.end - range.start)?;
            Ok(sum)
        })?;
        equal(&format!("history of client {client} and its payments"), amounts.iter().sum::<i64>(), amount)?;
        let beyond = history_key(client, payments);
        self.no_history(beyond..=history_key(client + 1, 0) - 1, beyond)
    }

    /// Adds up the history of all clients, whoever they are.
    fn all_history(&self) -> Result<(), Error> {
        self.share_out(1, |tables, _| {
            tables.each(HISTORY, 0..=u64::MAX, std::iter::empty(), |_, row: History| self.found.add(&row))
        })?;
        Ok(())
    }

    fn no_history(&self, range: RangeInclusive<u64>, likely: u64) -> Result<(), Error> {
        self.share_out(1, |tables, _| {
            tables.each(HISTORY, range.clone(), [likely].into_iter(), |key, _: History| {
                Err(Error::Wrong(format!("history {key:#x} exists, which nobody committed")))
            })
        })?;
        Ok(())
    }

    /// Customers together paid what they paid when they were loaded and since.
    fn customers(&self, amount: i64, payments: u64, deliveries: u64) -> Result<(), Error> {
        let all = self.each_customer()?;
        equal("what customers paid, and payments", all.paid, loaded_payments(self.settings) + amount)?;
        equal("payments that customers count, and payments", all.payments, self.settings.customers() + payments)?;
        equal("deliveries that customers count, and deliveries", all.deliveries, deliveries)
    }

    /// Conditions 10 and 12.
    fn each_customer(&self) -> Result<OfCustomers, Error> {
        let per_district = self.settings.customers_per_district;
        let all = self.share_out(self.settings.customers(), |tables, mut range| {
            range.try_fold(OfCustomers::default(), |mut sum, at| {
                let (district, customer) = (at / per_district, at % per_district + 1);
                let key = in_district(district / DISTRICTS + 1, district % DISTRICTS + 1, customer);
                let row: Customer = rows::get(tables.session, CUSTOMER, key)?;
                let of = |sums: &[AtomicI64]| sums[at as usize].load(Ordering::Relaxed);
                let (delivered, history) = (of(&self.found.delivered), of(&self.found.paid));
                let (balance, ytd) = (row.balance.get(), row.ytd_payment.get());
                let what = format!("condition 10, customer {key:#x}: its balance, and delivered lines less history");
                equal(&what, balance, delivered - history)?;
                let what = format!("condition 12, customer {key:#x}: balance with payments, and delivered lines");
                equal(&what, balance + ytd, delivered)?;
                let (payments, deliveries) = (row.payment_count.get().into(), row.delivery_count.get().into());
                sum.add(&OfCustomers { paid: ytd, payments, deliveries });
                Ok::<_, Error>(sum)
            })
        })?;
        let mut sum = OfCustomers::default();
        all.iter().for_each(|part| sum.add(part));
        Ok(sum)
    }

    /// The sum taken from all stocks is that of the lines of NewOrders.
    fn stocks(&self, added: Taken) -> Result<(), Error> {
        let items = self.settings.items;
        let taken = self.share_out(self.settings.warehouses * items, |tables, mut range| {
            range.try_fold(Taken::default(), |mut taken, at| {
                let key = stock_key(at / items + 1, at % items + 1);
                taken.add(Taken::of_stock(&rows::get(tables.session, STOCK, key)?));
                Ok::<_, Error>(taken)
            })
        })?;
        let mut all = Taken::default();
        taken.into_iter().for_each(|part| all.add(part));
        match all == added {
            true => Ok(()),
            false => Err(Error::Wrong(format!("stocks were taken from {all:?}, order lines contain {added:?}"))),
        }
    }
}

impl OrderFacts {
    fn of(row: &Order) -> OrderFacts {
        OrderFacts {
            customer: row.customer.get().into(),
            line_count: row.line_count.get().into(),
            is_delivered: row.carrier.get() != 0,
            lines: 0,
            dated_lines: 0,
            dated_amount: 0,
        }
    }
}

fn last_of<'a>(mut numbers: impl DoubleEndedIterator<Item = &'a u64>) -> u64 {
    numbers.next_back().copied().unwrap_or(0)
}

fn equal<T: PartialEq + std::fmt::Display>(what: &str, left: T, right: T) -> Result<(), Error> {
    if left == right { Ok(()) } else { Err(Error::Wrong(format!("{what} differ: {left} and {right}"))) }
}
