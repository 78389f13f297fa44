//! NewOrder and Payment.
//!
//! Lives here:       what one thread does, and the two transactions.
//! Lives elsewhere:  the other three (`more`), which comes next and when (`terminal`).
//! Implements:       clauses 2.4 (NewOrder) and 2.5 (Payment). Rows are touched in the order of the clauses, so a
//!                   warehouse is always locked before its district, and that before customers and stocks.

use super::random::{Constants, between};
use super::schema::*;
use super::terminal::{Kind, Terminal};
use super::{Mix, Settings};
use crate::Error;
use crate::drive::{Tally, Worker};
use crate::engine::{Session, Stop, Table, Transaction, must_read};
use crate::keys::Rng;
use crate::rows;
use std::time::{Duration, Instant};

/// Clause 2.4.1.4: share of NewOrders that request an item that does not exist.
const ROLLBACK_SHARE: f64 = 0.01;
/// Clause 2.4.1.5: share of lines that another warehouse supplies.
const REMOTE_LINE_SHARE: f64 = 0.01;
/// Clause 2.5.1.2: share of customers that pay at a warehouse that is not theirs, and of those known by name only.
const REMOTE_PAYMENT_SHARE: f64 = 0.15;
const BY_NAME_SHARE: f64 = 0.6;
/// Clause 2.4.2.2: stocks below this after an order are filled up by 91.
const STOCK_MIN: i32 = 10;
const STOCK_FILL: i32 = 91;

/// What one thread does and did.
pub(super) struct Client<'a> {
    pub(super) settings: &'a Settings,
    pub(super) terminal: Terminal,
    pub(super) constants: Constants,
    pub(super) rng: Rng,
    /// Always this warehouse, or any.
    pub(super) home: Option<u64>,
    pub(super) number: u64,
    pub(super) begun: Instant,
    pub(super) done: Done,
    /// Room for the rows that are read.
    pub(super) row: Vec<u8>,
    pub(super) other_row: Vec<u8>,
}

/// What a client committed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) new_orders: u64,
    pub(super) rollbacks: u64,
    /// As many history rows.
    pub(super) payments: u64,
    pub(super) amount: i64,
    /// Orders.
    pub(super) deliveries: u64,
}

struct LineInput {
    item: u64,
    supply: u64,
    quantity: u32,
}

struct NewOrderInput {
    warehouse: u64,
    district: u64,
    customer: u64,
    lines: Vec<LineInput>,
    time_us: u64,
}

struct PaymentInput {
    warehouse: u64,
    district: u64,
    customer_warehouse: u64,
    customer_district: u64,
    customer: By,
    amount: i64,
    time_us: u64,
    history_key: u64,
}

pub(super) enum By {
    Number(u64),
    LastName(u64),
}

impl Worker for Client<'_> {
    fn operate(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<usize, Error> {
        let kind = self.terminal.next(self.settings, &mut self.rng);
        match kind {
            Kind::NewOrder => self.new_order(session, tally)?,
            Kind::Payment => self.payment(session, tally)?,
            Kind::OrderStatus => self.order_status(session, tally)?,
            Kind::Delivery => self.delivery(session, tally)?,
            Kind::StockLevel => self.stock_level(session, tally)?,
        }
        Ok(kind as usize)
    }

    fn pause(&mut self) -> Duration {
        self.terminal.pause(self.settings, &mut self.rng)
    }
}

impl Client<'_> {
    fn new_order(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<(), Error> {
        let input = self.new_order_input();
        let mut work = Work::new(self.settings, &mut self.row, &mut self.other_row);
        let committed = tally.transact(session, &mut |txn| {
            work.restart();
            work.new_order(txn, &input)
        })?;
        tally.reads += work.reads;
        if committed {
            tally.user_bytes += work.bytes as u64;
            self.done.new_orders += 1;
        } else {
            self.done.rollbacks += 1;
        }
        Ok(())
    }

    fn payment(&mut self, session: &mut dyn Session, tally: &mut Tally) -> Result<(), Error> {
        let input = self.payment_input();
        let mut work = Work::new(self.settings, &mut self.row, &mut self.other_row);
        tally.transact(session, &mut |txn| {
            work.restart();
            work.payment(txn, &input)
        })?;
        tally.reads += work.reads;
        tally.user_bytes += work.bytes as u64;
        self.done.payments += 1;
        self.done.amount += input.amount;
        Ok(())
    }

    pub(super) fn warehouse(&mut self) -> u64 {
        self.home.unwrap_or_else(|| between(&mut self.rng, 1, self.settings.warehouses))
    }

    /// Another warehouse; the same if there is only one.
    fn other_warehouse(&mut self, warehouse: u64) -> u64 {
        match self.settings.warehouses {
            1 => warehouse,
            count => {
                let other = between(&mut self.rng, 1, count - 1);
                other + u64::from(other >= warehouse)
            }
        }
    }

    pub(super) fn time_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64 + 1
    }

    fn new_order_input(&mut self) -> NewOrderInput {
        let s = self.settings;
        let warehouse = self.warehouse();
        let district = between(&mut self.rng, 1, DISTRICTS);
        let customer = self.constants.customer(&mut self.rng, s.customers_per_district);
        let line_count = between(&mut self.rng, LINES_MIN, LINES_MAX);
        let mut lines: Vec<LineInput> = (0..line_count).map(|_| self.line(warehouse)).collect();
        if self.rng.unit() < ROLLBACK_SHARE {
            let last = lines.last_mut().expect("an order has lines");
            last.item = s.items + 1;
        }
        NewOrderInput { warehouse, district, customer, lines, time_us: self.time_us() }
    }

    fn line(&mut self, warehouse: u64) -> LineInput {
        let item = self.constants.item(&mut self.rng, self.settings.items);
        let remote = self.rng.unit() < REMOTE_LINE_SHARE;
        let supply = if remote { self.other_warehouse(warehouse) } else { warehouse };
        LineInput { item, supply, quantity: between(&mut self.rng, 1, 10) as u32 }
    }

    /// Known by last name or by number.
    pub(super) fn customer(&mut self) -> By {
        if self.rng.unit() < BY_NAME_SHARE {
            By::LastName(self.constants.last_name(&mut self.rng, self.settings.names()))
        } else {
            By::Number(self.constants.customer(&mut self.rng, self.settings.customers_per_district))
        }
    }

    fn payment_input(&mut self) -> PaymentInput {
        let warehouse = self.warehouse();
        let district = between(&mut self.rng, 1, DISTRICTS);
        let (customer_warehouse, customer_district) = if self.rng.unit() < REMOTE_PAYMENT_SHARE {
            (self.other_warehouse(warehouse), between(&mut self.rng, 1, DISTRICTS))
        } else {
            (warehouse, district)
        };
        let customer = self.customer();
        PaymentInput {
            warehouse,
            district,
            customer_warehouse,
            customer_district,
            customer,
            amount: between(&mut self.rng, CENTS as u64, 5000 * CENTS as u64) as i64,
            time_us: self.time_us(),
            history_key: history_key(self.number, self.done.payments),
        }
    }
}

/// One try of a transaction.
pub(super) struct Work<'a> {
    settings: &'a Settings,
    row: &'a mut Vec<u8>,
    other_row: &'a mut Vec<u8>,
    /// Written so far.
    pub(super) bytes: usize,
    /// Records read so far.
    pub(super) reads: u64,
}

impl<'a> Work<'a> {
    pub(super) fn new(settings: &'a Settings, row: &'a mut Vec<u8>, other_row: &'a mut Vec<u8>) -> Work<'a> {
        Work { settings, row, other_row, bytes: 0, reads: 0 }
    }

    /// Nothing is done yet.
    pub(super) fn restart(&mut self) {
        (self.bytes, self.reads) = (0, 0);
    }

    pub(super) fn update<T: rows::Row, R>(
        &mut self,
        txn: &mut dyn Transaction,
        table: Table,
        key: u64,
        with: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Stop> {
        let answer = rows::update(txn, table, key, self.row, with)?;
        self.bytes += self.row.len();
        self.reads += 1;
        Ok(answer)
    }

    fn insert(&mut self, txn: &mut dyn Transaction, table: Table, key: u64, row: &impl rows::Row) -> Result<(), Stop> {
        let value = self.settings.value(table, row, key);
        self.bytes += value.len();
        txn.insert(table, key, &value)
    }

    pub(super) fn read<T: rows::Row + Copy>(
        &mut self,
        txn: &mut dyn Transaction,
        table: Table,
        key: u64,
    ) -> Result<T, Stop> {
        self.reads += 1;
        must_read(txn, table, key, self.row, false)?;
        rows::read::<T>(self.row).copied()
    }

    /// Clause 2.4.2.
    fn new_order(&mut self, txn: &mut dyn Transaction, input: &NewOrderInput) -> Result<(), Stop> {
        let NewOrderInput { warehouse, district, customer, .. } = *input;
        let of_line = |line: &LineInput| [(ITEM, line.item), (STOCK, stock_key(line.supply, line.item))];
        let lines = input.lines.iter().flat_map(of_line);
        txn.expect(&lines.chain([(CUSTOMER, in_district(warehouse, district, customer))]).collect::<Vec<_>>())?;
        let warehouse_tax = self.read::<Warehouse>(txn, WAREHOUSE, warehouse)?.tax.get();
        let (order, district_tax) =
            self.update::<District, _>(txn, DISTRICT, district_key(warehouse, district), |row| {
                let order = row.next_order.get();
                row.next_order = (order + 1).into();
                (u64::from(order), row.tax.get())
            })?;
        let discount = self.read::<Customer>(txn, CUSTOMER, in_district(warehouse, district, customer))?.discount.get();
        let key = in_district(warehouse, district, order);
        let [order_number, district_number, warehouse_number, customer_number] =
            [order, district, warehouse, customer].map(|number| (number as u32).into());
        let all_local = input.lines.iter().all(|line| line.supply == warehouse);
        let row = Order {
            order: order_number,
            district: district_number,
            warehouse: warehouse_number,
            customer: customer_number,
            entry_us: input.time_us.into(),
            carrier: 0.into(),
            line_count: (input.lines.len() as u32).into(),
            all_local: u32::from(all_local).into(),
        };
        self.insert(txn, ORDER, key, &row)?;
        let row = NewOrder { order: order_number, district: district_number, warehouse: warehouse_number };
        self.insert(txn, NEW_ORDER, key, &row)?;
        if self.settings.mix == Mix::Full {
            if order > ORDERS_MAX {
                let what = format!("district {district} has {ORDERS_MAX} orders; its keys have no room for more");
                return Err(Stop::Failed(Error::Parameters(what)));
            }
            txn.insert(CUSTOMER_ORDER, customer_order_key(warehouse, district, customer, order), &[])?;
        }
        let mut total = 0;
        for (number, line) in (1..).zip(&input.lines) {
            let (amount, district_info) = self.take_from_stock(txn, warehouse, district, line)?;
            total += amount;
            let row = OrderLine {
                order: order_number,
                district: district_number,
                warehouse: warehouse_number,
                number: (number as u32).into(),
                item: (line.item as u32).into(),
                supply_warehouse: (line.supply as u32).into(),
                delivery_us: 0.into(),
                quantity: line.quantity.into(),
                amount: amount.into(),
                district_info,
            };
            self.insert(txn, ORDER_LINE, line_key(key, number), &row)?;
        }
        // What the terminal would show; nothing stores it.
        let taxed =
            total as f64 * (1.0 - f64::from(discount) / 1e4) * (1.0 + f64::from(warehouse_tax + district_tax) / 1e4);
        if taxed < 0.0 { Err(Stop::wrong(format!("an order comes to {taxed} cents"))) } else { Ok(()) }
    }

    /// What a line costs, and what its stock contains about the district.
    fn take_from_stock(
        &mut self,
        txn: &mut dyn Transaction,
        warehouse: u64,
        district: u64,
        line: &LineInput,
    ) -> Result<(i64, [u8; 24]), Stop> {
        self.reads += 1;
        if !txn.read(ITEM, line.item, self.row)? {
            return Err(Stop::Rollback);
        }
        let price = rows::read::<Item>(self.row)?.price.get();
        let quantity = line.quantity as i32;
        let district_info = self.update::<Stock, _>(txn, STOCK, stock_key(line.supply, line.item), |row| {
            let left = row.quantity.get() - quantity;
            row.quantity = if left >= STOCK_MIN { left } else { left + STOCK_FILL }.into();
            row.ytd += quantity as u64;
            row.order_count += 1;
            row.remote_count += u32::from(line.supply != warehouse);
            row.districts[district as usize - 1]
        })?;
        Ok((i64::from(quantity) * price as i64, district_info))
    }

    /// Clause 2.5.2.
    fn payment(&mut self, txn: &mut dyn Transaction, input: &PaymentInput) -> Result<(), Stop> {
        let PaymentInput { warehouse, district, customer_warehouse, customer_district, amount, .. } = *input;
        // What may have to be read from flash comes first: others wait for the warehouse.
        let customer = self.number_of(txn, customer_warehouse, customer_district, &input.customer)?;
        let key = in_district(customer_warehouse, customer_district, customer);
        txn.expect(&[(CUSTOMER, key)])?;
        let warehouse_name = self.update::<Warehouse, _>(txn, WAREHOUSE, warehouse, |row| {
            row.ytd += amount;
            row.name
        })?;
        let district_name = self.update::<District, _>(txn, DISTRICT, district_key(warehouse, district), |row| {
            row.ytd += amount;
            row.name
        })?;
        let numbers = [customer, customer_district, customer_warehouse, district, warehouse];
        self.update::<Customer, _>(txn, CUSTOMER, key, |row| {
            row.balance -= amount;
            row.ytd_payment += amount;
            row.payment_count += 1;
            if row.credit == *b"BC" {
                note(&mut row.data, &numbers, amount);
            }
        })?;
        let mut data = [b' '; 24];
        data[..10].copy_from_slice(&warehouse_name);
        data[14..].copy_from_slice(&district_name);
        let numbers = numbers.map(|number| (number as u32).into());
        let row = History {
            customer: numbers[0],
            customer_district: numbers[1],
            customer_warehouse: numbers[2],
            district: numbers[3],
            warehouse: numbers[4],
            time_us: input.time_us.into(),
            amount: amount.into(),
            data,
        };
        self.insert(txn, HISTORY, input.history_key, &row)
    }

    pub(super) fn number_of(
        &mut self,
        txn: &mut dyn Transaction,
        warehouse: u64,
        district: u64,
        customer: &By,
    ) -> Result<u64, Stop> {
        match customer {
            By::Number(number) => Ok(*number),
            By::LastName(name) => self.middle_of(txn, in_district(warehouse, district, *name)),
        }
    }

    /// The middle customer of a last name, ordered by first name, rounded up.
    fn middle_of(&mut self, txn: &mut dyn Transaction, name_key: u64) -> Result<u64, Stop> {
        self.reads += 1;
        must_read(txn, NAME, name_key, self.other_row, false)?;
        let (customers, _) = self.other_row.as_chunks::<4>();
        match customers.get(customers.len().saturating_sub(1) / 2) {
            Some(customer) => Ok(u64::from(u32::from_le_bytes(*customer))),
            None => Err(Stop::wrong(format!("no customer has the last name {name_key:#x}"))),
        }
    }
}

/// Puts a payment before what is known of a customer with bad credit; what does not fit falls off the end.
fn note(data: &mut [u8; 500], numbers: &[u64; 5], amount: i64) {
    let [customer, customer_district, customer_warehouse, district, warehouse] = numbers;
    let text = format!("{customer} {customer_district} {customer_warehouse} {district} {warehouse} {amount} | ");
    data.rotate_right(text.len());
    data[..text.len()].copy_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   notes pile up at the front, old ones fall off, the length does not change.
    /// Method: more notes than fit.
    #[test]
    fn notes_pile_up() {
        let mut data = [b'x'; 500];
        note(&mut data, &[1, 2, 3, 4, 5], 678);
        assert!(data.starts_with(b"1 2 3 4 5 678 | xxx"));
        (0..100).for_each(|amount| note(&mut data, &[9, 9, 9, 9, 9], amount));
        assert!(data.starts_with(b"9 9 9 9 9 99 | 9 9 9 9 9 98 | "));
        assert!(!data.contains(&b'x'));
    }
}
