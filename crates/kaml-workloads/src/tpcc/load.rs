//! The rows that TPC-C begins with.
//!
//! Lives here:       the initial population (clause 4.3.3). Every row follows from its place alone, so threads can
//!                   make them in any order and an index without reading what it is about.

use super::random::{self, Constants, between, data, digits, field, last_name, text, zip};
use super::schema::*;
use super::{Mix, Settings};
use crate::engine::Record;
use crate::keys::{Rng, Scatter};
use crate::rows;

const CREDIT_LIMIT: i64 = 50_000 * CENTS;
const FIRST_PAYMENT: i64 = 10 * CENTS;
/// Rates are in ten-thousandths.
const TAX_MAX: u64 = 2000;
const DISCOUNT_MAX: u64 = 5000;
/// Clause 4.3.3.1: one customer in ten has bad credit.
const BAD_CREDIT_SHARE: f64 = 0.1;
/// Share of orders that are delivered: 2100 of 3000.
const DELIVERED_SHARE: f64 = 0.7;
/// Microseconds after the epoch of time zero of the load: any moment that is not 0.
const LOADED_US: u64 = 1_000_000;

/// Rows for each table.
pub(super) type Rows = [Vec<Record>; TABLES.len()];

/// Makes rows, place by place.
pub(super) struct Population<'a> {
    settings: &'a Settings,
    customers: Scatter,
}

impl<'a> Population<'a> {
    pub(super) fn new(settings: &'a Settings) -> Population<'a> {
        Population { settings, customers: Scatter::new(settings.customers_per_district) }
    }

    /// How many places there are: items, warehouses, districts, stocks, customers each with an order.
    pub(super) fn places(&self) -> u64 {
        let s = self.settings;
        s.items + s.warehouses + s.districts() + s.warehouses * s.items + s.customers()
    }

    /// The rows of a place.
    pub(super) fn make(&self, place: u64, rows: &mut Rows) {
        let s = self.settings;
        let mut rng = Rng::new(place.wrapping_mul(0xd134_2543_de82_ef95));
        let mut at = place;
        if at < s.items {
            return self.item(at + 1, &mut rng, rows);
        }
        at -= s.items;
        if at < s.warehouses {
            return self.warehouse(at + 1, &mut rng, rows);
        }
        at -= s.warehouses;
        if at < s.districts() {
            return self.district(at / DISTRICTS + 1, at % DISTRICTS + 1, &mut rng, rows);
        }
        at -= s.districts();
        if at < s.warehouses * s.items {
            return self.stock(at / s.items + 1, at % s.items + 1, &mut rng, rows);
        }
        at -= s.warehouses * s.items;
        let (district, number) = (at / s.customers_per_district, at % s.customers_per_district + 1);
        let (warehouse, district) = (district / DISTRICTS + 1, district % DISTRICTS + 1);
        self.customer(warehouse, district, number, at, &mut rng, rows);
        self.order(warehouse, district, number, &mut rng, rows);
    }

    fn push(&self, rows: &mut Rows, table: crate::engine::Table, key: u64, row: &impl rows::Row) {
        rows[table.0].push((key, self.settings.value(table, row, key)));
    }

    fn item(&self, item: u64, rng: &mut Rng, rows: &mut Rows) {
        let row = Item {
            item: (item as u32).into(),
            image: (between(rng, 1, 10_000) as u32).into(),
            name: text(rng, 14),
            price: between(rng, CENTS as u64, 100 * CENTS as u64).into(),
            data: data(rng),
        };
        self.push(rows, ITEM, item, &row);
    }

    fn warehouse(&self, warehouse: u64, rng: &mut Rng, rows: &mut Rows) {
        let row = Warehouse {
            warehouse: (warehouse as u32).into(),
            name: text(rng, 6),
            address: address(rng),
            tax: (between(rng, 0, TAX_MAX) as u32).into(),
            ytd: (district_ytd(self.settings) * DISTRICTS as i64).into(),
        };
        self.push(rows, WAREHOUSE, warehouse, &row);
    }

    /// The district, and the index over its customers' last names.
    fn district(&self, warehouse: u64, district: u64, rng: &mut Rng, rows: &mut Rows) {
        let row = District {
            district: (district as u32).into(),
            warehouse: (warehouse as u32).into(),
            name: text(rng, 6),
            address: address(rng),
            tax: (between(rng, 0, TAX_MAX) as u32).into(),
            ytd: district_ytd(self.settings).into(),
            next_order: (self.settings.customers_per_district as u32 + 1).into(),
        };
        self.push(rows, DISTRICT, district_key(warehouse, district), &row);
        let mut by_name = vec![Vec::new(); self.settings.names() as usize];
        for customer in 1..=self.settings.customers_per_district {
            let (last, first) = self.name(warehouse, district, customer);
            by_name[last as usize].push((first, customer as u32));
        }
        for (last, mut customers) in by_name.into_iter().enumerate() {
            customers.sort_unstable();
            let value: Vec<u8> = customers.iter().flat_map(|(_, customer)| customer.to_le_bytes()).collect();
            rows[NAME.0].push((in_district(warehouse, district, last as u64), value));
        }
    }

    /// A customer's last name, by number, and first name. The first thousand have each last name once.
    fn name(&self, warehouse: u64, district: u64, customer: u64) -> (u64, [u8; 16]) {
        let names = self.settings.names();
        let mut rng = Rng::new(in_district(warehouse, district, customer) ^ 0x6e61_6d65);
        let uneven = Constants::of_load().last_name(&mut rng, names);
        (if customer <= names { customer - 1 } else { uneven }, text(&mut rng, 8))
    }

    fn stock(&self, warehouse: u64, item: u64, rng: &mut Rng, rows: &mut Rows) {
        let row = Stock {
            item: (item as u32).into(),
            warehouse: (warehouse as u32).into(),
            quantity: (between(rng, 10, 100) as i32).into(),
            districts: [(); DISTRICTS as usize].map(|()| text(rng, 24)),
            ytd: 0.into(),
            order_count: 0.into(),
            remote_count: 0.into(),
            data: data(rng),
        };
        self.push(rows, STOCK, stock_key(warehouse, item), &row);
    }

    /// A customer with the payment that it begins with.
    fn customer(&self, warehouse: u64, district: u64, customer: u64, at: u64, rng: &mut Rng, rows: &mut Rows) {
        let (last, first) = self.name(warehouse, district, customer);
        let numbers = [customer, district, warehouse].map(|number| (number as u32).into());
        let row = Customer {
            customer: numbers[0],
            district: numbers[1],
            warehouse: numbers[2],
            first,
            middle: *b"OE",
            last: field(&last_name(last)),
            address: address(rng),
            phone: digits(rng),
            since_us: LOADED_US.into(),
            credit: if rng.unit() < BAD_CREDIT_SHARE { *b"BC" } else { *b"GC" },
            credit_limit: CREDIT_LIMIT.into(),
            discount: (between(rng, 0, DISCOUNT_MAX) as u32).into(),
            balance: (-FIRST_PAYMENT).into(),
            ytd_payment: FIRST_PAYMENT.into(),
            payment_count: 1.into(),
            delivery_count: 0.into(),
            data: text(rng, 300),
        };
        self.push(rows, CUSTOMER, in_district(warehouse, district, customer), &row);
        let row = History {
            customer: numbers[0],
            customer_district: numbers[1],
            customer_warehouse: numbers[2],
            district: numbers[1],
            warehouse: numbers[2],
            time_us: LOADED_US.into(),
            amount: FIRST_PAYMENT.into(),
            data: text(rng, 12),
        };
        self.push(rows, HISTORY, history_key(LOADER, at), &row);
    }

    /// An order with its lines, of some customer without another.
    fn order(&self, warehouse: u64, district: u64, order: u64, rng: &mut Rng, rows: &mut Rows) {
        let s = self.settings;
        let shifted = (order - 1 + 37 * (warehouse + district)) % s.customers_per_district;
        let customer = self.customers.place(shifted) + 1;
        let delivered = order < first_new_order(s);
        let line_count = between(rng, LINES_MIN, LINES_MAX);
        let [order_number, district_number, warehouse_number] =
            [order, district, warehouse].map(|number| (number as u32).into());
        let row = Order {
            order: order_number,
            district: district_number,
            warehouse: warehouse_number,
            customer: (customer as u32).into(),
            entry_us: LOADED_US.into(),
            carrier: if delivered { between(rng, 1, 10) as u32 } else { 0 }.into(),
            line_count: (line_count as u32).into(),
            all_local: 1.into(),
        };
        let key = in_district(warehouse, district, order);
        self.push(rows, ORDER, key, &row);
        if s.mix == Mix::Full {
            rows[CUSTOMER_ORDER.0].push((customer_order_key(warehouse, district, customer, order), Vec::new()));
        }
        if !delivered {
            let row = NewOrder { order: order_number, district: district_number, warehouse: warehouse_number };
            self.push(rows, NEW_ORDER, key, &row);
        }
        for number in 1..=line_count {
            let row = OrderLine {
                order: order_number,
                district: district_number,
                warehouse: warehouse_number,
                number: (number as u32).into(),
                item: (between(rng, 1, s.items) as u32).into(),
                supply_warehouse: warehouse_number,
                delivery_us: if delivered { LOADED_US } else { 0 }.into(),
                quantity: 5.into(),
                amount: if delivered { 0 } else { between(rng, 1, 10_000 * CENTS as u64 - 1) as i64 }.into(),
                district_info: text(rng, 24),
            };
            self.push(rows, ORDER_LINE, line_key(key, number), &row);
        }
    }
}

/// The first order of a district that the load leaves undelivered.
pub(super) fn first_new_order(settings: &Settings) -> u64 {
    (settings.customers_per_district as f64 * DELIVERED_SHARE) as u64 + 1
}

/// What a district has taken when it is loaded: 30 000 in the benchmark, from 3000 customers.
fn district_ytd(settings: &Settings) -> i64 {
    FIRST_PAYMENT * settings.customers_per_district as i64
}

/// What all customers have paid when they are loaded.
pub(super) fn loaded_payments(settings: &Settings) -> i64 {
    FIRST_PAYMENT * settings.customers() as i64
}

fn address(rng: &mut Rng) -> Address {
    let (street_1, street_2, city) = (text(rng, 10), text(rng, 10), text(rng, 10));
    Address { street_1, street_2, city, state: random::text(rng, 2), zip: zip(rng) }
}
