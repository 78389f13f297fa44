//! Order-Status, Delivery and Stock-Level.
//!
//! Lives here:       the three transactions that read ranges.
//! Lives elsewhere:  the two others, and what one thread does (`transactions`).
//! Implements:       clauses 2.6 (Order-Status), 2.7 (Delivery) and 2.8 (Stock-Level).
//!
//! Delivery is executed when it is requested, in one transaction for the ten districts. Stock-Level reads committed rows outside
//! transactions, as clause 2.8.2.3 allows.

use super::random::between;
use super::schema::*;
use super::transactions::{By, Client, Work};
use crate::Error;
use crate::drive::Tally;
use crate::engine::{Scan, Session, Stop, Transaction};
use crate::rows;
use std::ops::RangeInclusive;

/// Clause 2.8.2.2: the orders of which Stock-Level looks at the items.
const RECENT_ORDERS: u64 = 20;
/// Clause 2.8.1.2.
const THRESHOLDS: RangeInclusive<u64> = 10..=20;
/// Clause 2.7.1.2.
const CARRIERS: RangeInclusive<u64> = 1..=10;

impl Client<'_> {
    pub(super) fn order_status(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<(), Error> {
        let (warehouse, district) = (self.warehouse(), between(&mut self.rng, 1, DISTRICTS));
        let customer = self.customer();
        let mut work = Work::new(self.settings, &mut self.row, &mut self.other_row);
        tally.transact(session, &mut |txn| {
            work.restart();
            work.order_status(txn, warehouse, district, &customer)
        })?;
        tally.reads += work.reads;
        Ok(())
    }

    pub(super) fn delivery(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<(), Error> {
        let (warehouse, carrier) = (self.warehouse(), between(&mut self.rng, *CARRIERS.start(), *CARRIERS.end()));
        let time_us = self.time_us();
        let mut work = Work::new(self.settings, &mut self.row, &mut self.other_row);
        let mut delivered = 0;
        tally.transact(session, &mut |txn| {
            work.restart();
            delivered = 0;
            for district in 1..=DISTRICTS {
                delivered += u64::from(work.deliver(txn, warehouse, district, carrier, time_us)?);
            }
            Ok(())
        })?;
        tally.reads += work.reads;
        tally.user_bytes += work.bytes as u64;
        self.done.deliveries += delivered;
        Ok(())
    }

    pub(super) fn stock_level(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<(), Error> {
        let (warehouse, district) = (self.warehouse(), between(&mut self.rng, 1, DISTRICTS));
        let threshold = between(&mut self.rng, *THRESHOLDS.start(), *THRESHOLDS.end()) as i32;
        let row: District = rows::get(session, DISTRICT, district_key(warehouse, district))?;
        let next = u64::from(row.next_order.get());
        let key = |order: u64, line: u64| line_key(in_district(warehouse, district, order), line);
        let first = next.saturating_sub(RECENT_ORDERS).max(1);
        let limit = (RECENT_ORDERS * LINES_MAX) as usize;
        let scan = Scan { limit, ..Scan::of(ORDER_LINE, key(first, 0), key(next, 0) - 1) };
        let (mut items, mut wrong) = (Vec::new(), None);
        let mut see = |_: u64, value: &[u8]| match rows::read::<OrderLine>(value) {
            Ok(line) => items.push(u64::from(line.item.get())),
            Err(stop) => wrong = Some(stop),
        };
        session.scan(scan, &mut see).map_err(Stop::into_error)?;
        if let Some(stop) = wrong {
            return Err(stop.into_error());
        }
        tally.reads += 1 + items.len() as u64;
        items.sort_unstable();
        items.dedup();
        let (mut low, mut found, mut wrong) = (0, 0, None);
        let keys: Vec<u64> = items.iter().map(|item| stock_key(warehouse, *item)).collect();
        let mut see = |_: u64, value: &[u8]| match rows::read::<Stock>(value) {
            Ok(stock) => (low, found) = (low + usize::from(stock.quantity.get() < threshold), found + 1),
            Err(stop) => wrong = Some(stop),
        };
        session.get_many(STOCK, &keys, &mut see).map_err(Stop::into_error)?;
        if let Some(stop) = wrong {
            return Err(stop.into_error());
        }
        if found != keys.len() {
            return Err(Error::Wrong(format!(
                "{} of {} rows of the stock are missing",
                keys.len() - found,
                keys.len()
            )));
        }
        tally.reads += items.len() as u64;
        // What the terminal would show; nothing stores it.
        if items.is_empty() {
            return Err(Error::Wrong(format!("{low} items of no recent order of district {district} are low")));
        }
        Ok(())
    }
}

impl Work<'_> {
    /// Clause 2.6.2: a customer's last order and its lines.
    fn order_status(
        &mut self,
        txn: &mut dyn Transaction,
        warehouse: u64,
        district: u64,
        customer: &By,
    ) -> Result<(), Stop> {
        let customer = self.number_of(txn, warehouse, district, customer)?;
        self.read::<Customer>(txn, CUSTOMER, in_district(warehouse, district, customer))?;
        let key = |order: u64| customer_order_key(warehouse, district, customer, order);
        let last = Scan { limit: 1, reverse: true, ..Scan::of(CUSTOMER_ORDER, key(0), key(ORDERS_MAX)) };
        let mut order = None;
        txn.scan(last, &mut |key, _| order = Some(key & ORDERS_MAX))?;
        let Some(order) = order else {
            return Err(Stop::wrong(format!("customer {customer} of district {district} has no order")));
        };
        let key = in_district(warehouse, district, order);
        let row: Order = self.read(txn, ORDER, key)?;
        let lines = self.lines(txn, key, false)?.len();
        self.reads += 1;
        if u64::from(row.customer.get()) != customer || lines as u64 != u64::from(row.line_count.get()) {
            let (named, of) = (row.line_count.get(), row.customer.get());
            return Err(Stop::wrong(format!("order {key:#x} of customer {of} has {lines} lines, it names {named}")));
        }
        Ok(())
    }

    /// Clause 2.7.4.2: delivers the oldest order of a district; false if all are delivered.
    fn deliver(
        &mut self,
        txn: &mut dyn Transaction,
        warehouse: u64,
        district: u64,
        carrier: u64,
        time_us: u64,
    ) -> Result<bool, Stop> {
        let key = |number: u64| in_district(warehouse, district, number);
        let oldest = Scan { limit: 1, for_update: true, ..Scan::of(NEW_ORDER, key(0), key(u32::MAX.into())) };
        let mut order = None;
        txn.scan(oldest, &mut |key, _| order = Some(key))?;
        let Some(order) = order else { return Ok(false) };
        txn.delete(NEW_ORDER, order)?;
        let (customer, line_count) = self.update::<Order, _>(txn, ORDER, order, |row| {
            row.carrier = (carrier as u32).into();
            (u64::from(row.customer.get()), row.line_count.get() as usize)
        })?;
        let mut amount = 0;
        let lines = self.lines(txn, order, true)?;
        if lines.len() != line_count {
            return Err(Stop::wrong(format!("order {order:#x} has {} lines, it names {line_count}", lines.len())));
        }
        for (key, mut value) in lines {
            let line = rows::change::<OrderLine>(&mut value)?;
            line.delivery_us = time_us.into();
            amount += line.amount.get();
            txn.update(ORDER_LINE, key, &value)?;
            self.bytes += value.len();
        }
        self.update::<Customer, _>(txn, CUSTOMER, key(customer), |row| {
            row.balance += amount;
            row.delivery_count += 1;
        })?;
        self.reads += 1;
        Ok(true)
    }

    /// The lines of an order.
    fn lines(
        &mut self,
        txn: &mut dyn Transaction,
        order_key: u64,
        for_update: bool,
    ) -> Result<Vec<(u64, Vec<u8>)>, Stop> {
        let range = Scan::of(ORDER_LINE, line_key(order_key, 0), line_key(order_key, LINES_MAX));
        let mut lines = Vec::with_capacity(LINES_MAX as usize);
        txn.scan(Scan { for_update, ..range }, &mut |key, value| lines.push((key, value.to_vec())))?;
        self.reads += lines.len() as u64;
        Ok(lines)
    }
}
