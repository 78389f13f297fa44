//! TPC-C tables: their rows, keys and sizes.
//!
//! Lives here:       the structs of clause 1.3, and how primary keys become 64 bits.
//! Lives elsewhere:  filler and access (`crate::rows`), contents (`load`).
//!
//! | table       | rows per warehouse | key                                | bytes | paper |
//! |-------------|-------------------:|------------------------------------|------:|------:|
//! | item        |   100 000 in all   | item                               |    90 |   512 |
//! | warehouse   |                  1 | warehouse                          |    97 |   512 |
//! | district    |                 10 | warehouse, district                |   105 |   512 |
//! | customer    |             30 000 | warehouse, district, customer      |   679 |  1024 |
//! | history     |       from 30 000  | client, its count                  |    60 |   512 |
//! | order       |       from 30 000  | warehouse, district, order         |    36 |   512 |
//! | new-order   |        from 9 000  | warehouse, district, order         |    12 |   512 |
//! | order-line  |      from 300 000  | warehouse, district, order, number |    68 |   512 |
//! | stock       |            100 000 | warehouse, item                    |   318 |   512 |
//! | name        |             10 000 | warehouse, district, last name     | 4 for each customer | |
//! | customer-order |    from 30 000  | warehouse, district, customer, order | 0 |   0 |
//!
//! Money is in cents, rates in ten-thousandths, times in microseconds; texts are padded with blanks. `name` is the index
//! by which Payment finds customers of a last name: their numbers, ordered by first name. It changes with customers'
//! names, which no transaction does. `customer-order` is the index by which Order-Status finds the last order of a customer;
//! it exists with the full mix only.

use crate::engine::Table;
use zerocopy::little_endian::{I32, I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(super) const TABLES: [&str; 11] = [
    "item",
    "warehouse",
    "district",
    "customer",
    "history",
    "order",
    "new-order",
    "order-line",
    "stock",
    "name",
    "customer-order",
];
pub(super) const ITEM: Table = Table(0);
pub(super) const WAREHOUSE: Table = Table(1);
pub(super) const DISTRICT: Table = Table(2);
pub(super) const CUSTOMER: Table = Table(3);
pub(super) const HISTORY: Table = Table(4);
pub(super) const ORDER: Table = Table(5);
pub(super) const NEW_ORDER: Table = Table(6);
pub(super) const ORDER_LINE: Table = Table(7);
pub(super) const STOCK: Table = Table(8);
pub(super) const NAME: Table = Table(9);
/// The last of the tables.
pub(super) const CUSTOMER_ORDER: Table = Table(10);

/// Money is in these.
pub(super) const CENTS: i64 = 100;

pub(super) const DISTRICTS: u64 = 10;
pub(super) const LINES_MIN: u64 = 5;
pub(super) const LINES_MAX: u64 = 15;

/// Warehouses fit the 16 bits that keys have for them.
pub(super) const WAREHOUSES_MAX: u64 = (1 << 16) - 1;
/// Items stay far from the 32 bits that keys have for them.
pub(super) const ITEMS_MAX: u64 = 1 << 24;
/// Customers of a district fit the 20 bits, and its orders the 24 bits, that `customer-order` has for them.
pub(super) const CUSTOMERS_MAX: u64 = (1 << 20) - 1;
const ORDER_BITS: u32 = 24;
pub(super) const ORDERS_MAX: u64 = (1 << ORDER_BITS) - 1;
/// Of the number of a line in its key.
pub(super) const LINE_BITS: u32 = 4;
/// History keys are the client's number above, its count below.
pub(super) const COUNT_BITS: u32 = 40;
/// The client that history rows of the load belong to.
pub(super) const LOADER: u64 = (1 << 23) - 1;

const _: () = assert!(LINES_MAX < 1 << LINE_BITS, "line numbers fit their bits in keys");

/// A district; also the key of its row.
pub(super) fn district_key(warehouse: u64, district: u64) -> u64 {
    warehouse << 8 | district
}

/// The key of a customer, order, new-order or last name of a district.
pub(super) fn in_district(warehouse: u64, district: u64, number: u64) -> u64 {
    district_key(warehouse, district) << 32 | number
}

pub(super) fn line_key(order_key: u64, number: u64) -> u64 {
    order_key << LINE_BITS | number
}

pub(super) fn customer_order_key(warehouse: u64, district: u64, customer: u64, order: u64) -> u64 {
    ((warehouse << 4 | district) << 20 | customer) << ORDER_BITS | order
}

pub(super) fn stock_key(warehouse: u64, item: u64) -> u64 {
    warehouse << 32 | item
}

pub(super) fn history_key(client: u64, count: u64) -> u64 {
    client << COUNT_BITS | count
}

/// Bytes that rows are filled up to; a row that needs more takes more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RowBytes {
    /// Customers.
    pub customer: usize,
    /// All others.
    pub other: usize,
}

macro_rules! row {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub(super) struct $name {
            $(pub(super) $field: $type,)*
        }
    };
}

row!(Address { street_1: [u8; 20], street_2: [u8; 20], city: [u8; 20], state: [u8; 2], zip: [u8; 9] });

row!(Item { item: U32, image: U32, name: [u8; 24], price: U64, data: [u8; 50] });

row!(Warehouse { warehouse: U32, name: [u8; 10], address: Address, tax: U32, ytd: I64 });

row!(District { district: U32, warehouse: U32, name: [u8; 10], address: Address, tax: U32, ytd: I64, next_order: U32 });

row!(Customer {
    customer: U32,
    district: U32,
    warehouse: U32,
    first: [u8; 16],
    middle: [u8; 2],
    last: [u8; 16],
    address: Address,
    phone: [u8; 16],
    since_us: U64,
    credit: [u8; 2],
    credit_limit: I64,
    discount: U32,
    balance: I64,
    ytd_payment: I64,
    payment_count: U32,
    delivery_count: U32,
    data: [u8; 500],
});

row!(History {
    customer: U32,
    customer_district: U32,
    customer_warehouse: U32,
    district: U32,
    warehouse: U32,
    time_us: U64,
    amount: I64,
    data: [u8; 24],
});

row!(
    /// `carrier` is 0 until it is delivered.
    Order {
        order: U32,
        district: U32,
        warehouse: U32,
        customer: U32,
        entry_us: U64,
        carrier: U32,
        line_count: U32,
        all_local: U32,
    }
);

row!(NewOrder { order: U32, district: U32, warehouse: U32 });

row!(
    /// `delivery_us` is 0 until it is delivered.
    OrderLine {
        order: U32,
        district: U32,
        warehouse: U32,
        number: U32,
        item: U32,
        supply_warehouse: U32,
        delivery_us: U64,
        quantity: U32,
        amount: I64,
        district_info: [u8; 24],
    }
);

row!(Stock {
    item: U32,
    warehouse: U32,
    quantity: I32,
    districts: [[u8; 24]; DISTRICTS as usize],
    ytd: U64,
    order_count: U32,
    remote_count: U32,
    data: [u8; 50],
});

const _: () = {
    assert!(size_of::<Item>() == 90 && size_of::<Warehouse>() == 97 && size_of::<District>() == 105);
    assert!(size_of::<Customer>() == 679 && size_of::<History>() == 60 && size_of::<Order>() == 36);
    assert!(size_of::<NewOrder>() == 12 && size_of::<OrderLine>() == 68 && size_of::<Stock>() == 318);
};
