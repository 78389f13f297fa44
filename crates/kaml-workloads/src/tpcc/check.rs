//! TPC-C's consistency conditions.
//!
//! Lives here:       conditions 1 to 4 of clause 3.3.2, and that what was committed, and nothing else, is there, in customers
//!                   and stocks too.
//!
//! Engines are asked for single rows, so "all rows of a district" are those with the numbers that there must be, and the
//! next ones must be absent.

use super::Settings;
use super::load::{first_new_order, loaded_payments, loaded_ytd};
use super::schema::*;
use super::transactions::Done;
use crate::Error;
use crate::drive::{self, Progress, Stage};
use crate::engine::{Engine, Session, Stop, Table};
use crate::rows;

/// What a district has.
#[derive(Clone, Copy)]
struct Sums {
    warehouse: u64,
    ytd: i64,
    orders: u64,
    lines: u64,
    /// Of the lines that NewOrders added.
    added: Taken,
}

/// What order lines say was taken from stocks, or stocks say themselves.
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

/// Checks all warehouses against what each client committed.
pub(super) fn check(
    settings: &Settings,
    clients: &[Done],
    engine: &dyn Engine,
    threads: usize,
    progress: &Progress<'_>,
) -> Result<Vec<String>, Error> {
    let sums =
        drive::share_out(engine, threads, settings.districts(), Stage::Check, progress, |session, mut range| {
            let one = |at| district(settings, session, at / DISTRICTS + 1, at % DISTRICTS + 1);
            range.by_ref().map(one).collect::<Result<Vec<Sums>, Error>>()
        })?;
    let sums: Vec<Sums> = sums.into_iter().flatten().collect();
    let mut session = engine.session()?;
    let mut ytd = 0;
    for warehouse in 1..=settings.warehouses {
        let row: Warehouse = rows::get(&mut *session, WAREHOUSE, warehouse)?;
        let districts: i64 = sums.iter().filter(|sum| sum.warehouse == warehouse).map(|sum| sum.ytd).sum();
        equal(&format!("condition 1, warehouse {warehouse}: its ytd and its districts'"), row.ytd.get(), districts)?;
        ytd += districts;
    }
    drop(session);
    let done = |of: fn(&Done) -> u64| clients.iter().map(of).sum::<u64>();
    let orders: u64 = sums.iter().map(|sum| sum.orders).sum();
    let (new_orders, payments) = (done(|client| client.new_orders), done(|client| client.payments));
    equal("orders, and those of the load with committed NewOrders", orders, settings.customers() + new_orders)?;
    let amount: i64 = clients.iter().map(|client| client.amount).sum();
    equal("ytd since the load and committed payments", ytd - loaded_ytd(settings), amount)?;
    for (client, done) in clients.iter().enumerate() {
        history(client as u64, done, engine, threads, progress)?;
    }
    customers(settings, amount, payments, engine, threads, progress)?;
    let mut added = Taken::default();
    sums.iter().for_each(|sum| added.add(sum.added));
    stocks(settings, added, engine, threads, progress)?;
    let lines: u64 = sums.iter().map(|sum| sum.lines).sum();
    Ok(vec![
        format!("condition 1: {} warehouses have the ytd of their districts", settings.warehouses),
        format!("conditions 2 and 3: orders and new-orders of {} districts have no gaps", settings.districts()),
        format!("condition 4: {orders} orders have the {lines} lines that they name"),
        format!(
            "{new_orders} committed NewOrders and {payments} Payments are there; {} rolled back are not",
            done(|c| c.rollbacks)
        ),
        format!(
            "{} customers have paid what was paid, {} lines were taken from stocks",
            settings.customers(),
            added.times
        ),
    ])
}

/// What customers paid, together, is what they paid when they were loaded and since.
fn customers(
    settings: &Settings,
    amount: i64,
    payments: u64,
    engine: &dyn Engine,
    threads: usize,
    progress: &Progress<'_>,
) -> Result<(), Error> {
    let count = settings.customers();
    let paid = drive::share_out(engine, threads, count, Stage::Check, progress, |session, mut range| {
        range.try_fold((0, 0, 0), |(balance, paid, payments), at| {
            let (district, customer) = (at / settings.customers_per_district, at % settings.customers_per_district + 1);
            let key = in_district(district / DISTRICTS + 1, district % DISTRICTS + 1, customer);
            let row: Customer = rows::get(session, CUSTOMER, key)?;
            let row = (row.balance.get(), row.ytd_payment.get(), u64::from(row.payment_count.get()));
            Ok::<_, Error>((balance + row.0, paid + row.1, payments + row.2))
        })
    })?;
    let sum = paid.into_iter().fold((0, 0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1, sum.2 + part.2));
    equal("what customers paid, and payments", sum.1, loaded_payments(settings) + amount)?;
    equal("balances of customers, and payments", sum.0, -sum.1)?;
    equal("payments that customers count, and payments", sum.2, count + payments)
}

/// What all stocks say was taken from them is what the lines of NewOrders took.
fn stocks(
    settings: &Settings,
    added: Taken,
    engine: &dyn Engine,
    threads: usize,
    progress: &Progress<'_>,
) -> Result<(), Error> {
    let count = settings.warehouses * settings.items;
    let taken = drive::share_out(engine, threads, count, Stage::Check, progress, |session, mut range| {
        range.try_fold(Taken::default(), |mut taken, at| {
            let key = stock_key(at / settings.items + 1, at % settings.items + 1);
            taken.add(Taken::of_stock(&rows::get(session, STOCK, key)?));
            Ok::<_, Error>(taken)
        })
    })?;
    let mut all = Taken::default();
    taken.into_iter().for_each(|part| all.add(part));
    match all == added {
        true => Ok(()),
        false => Err(Error::Wrong(format!("stocks were taken from {all:?}, order lines say {added:?}"))),
    }
}

/// Conditions 2, 3 and 4.
fn district(settings: &Settings, session: &mut dyn Session, warehouse: u64, district: u64) -> Result<Sums, Error> {
    let row: District = rows::get(session, DISTRICT, district_key(warehouse, district))?;
    let next = u64::from(row.next_order.get());
    let Some(orders) = next.checked_sub(1) else {
        return Err(Error::Wrong(format!("condition 2: the next order of district {district} has number 0")));
    };
    let (mut lines, mut added) = (0, Taken::default());
    for order in 1..=orders {
        let key = in_district(warehouse, district, order);
        let row: Order = rows::get(session, ORDER, key)?;
        equal(&format!("the number of order {key:#x}"), u64::from(row.order.get()), order)?;
        let count = u64::from(row.line_count.get());
        for number in 1..=count {
            let line: OrderLine = rows::get(session, ORDER_LINE, line_key(key, number))?;
            if order > settings.customers_per_district {
                added.add(Taken::of_line(&line));
            }
        }
        if count < LINES_MAX {
            must(session, ORDER_LINE, line_key(key, count + 1), false, "condition 4")?;
        }
        lines += count;
        must(session, NEW_ORDER, key, order >= first_new_order(settings), "conditions 2 and 3")?;
    }
    let beyond = in_district(warehouse, district, next);
    must(session, ORDER, beyond, false, "condition 2")?;
    must(session, NEW_ORDER, beyond, false, "condition 2")?;
    must(session, ORDER_LINE, line_key(beyond, 1), false, "condition 4")?;
    Ok(Sums { warehouse, ytd: row.ytd.get(), orders, lines, added })
}

/// A client's payments are all there, and come to what it committed.
fn history(
    client: u64,
    done: &Done,
    engine: &dyn Engine,
    threads: usize,
    progress: &Progress<'_>,
) -> Result<(), Error> {
    let amounts = drive::share_out(engine, threads, done.payments, Stage::Check, progress, |session, mut range| {
        range.try_fold(0, |sum, at| {
            Ok::<i64, Error>(sum + rows::get::<History>(session, HISTORY, history_key(client, at))?.amount.get())
        })
    })?;
    equal(&format!("history of client {client} and its payments"), amounts.iter().sum::<i64>(), done.amount)?;
    must(&mut *engine.session()?, HISTORY, history_key(client, done.payments), false, "history")
}

fn must(session: &mut dyn Session, table: Table, key: u64, there: bool, what: &str) -> Result<(), Error> {
    let found = session.get(table, key, &mut |_| ()).map_err(Stop::into_error)?;
    if found == there {
        return Ok(());
    }
    let is = if found { "there" } else { "missing" };
    Err(Error::Wrong(format!("{what}: {} {key:#x} is {is}", TABLES[table.0])))
}

fn equal<T: PartialEq + std::fmt::Display>(what: &str, left: T, right: T) -> Result<(), Error> {
    if left == right { Ok(()) } else { Err(Error::Wrong(format!("{what} differ: {left} and {right}"))) }
}
