//! A small inventory: orders that take from the stock, and invariants that are checked while others work. It can be run again and again.
//!
//! cargo run -p kaml --example inventory
//!
//! There is no SQL: a table is a namespace, a row is a record, and an index is a second namespace that changes in the same transaction. Two orders for the last piece
//! wait for each other, so it is sold once.

use kaml::store::{Store, StoreOptions, Transaction};
use kaml::{CreateOptions, Device, Error, KeyBuf, KeyKind, NamespaceId, NamespaceOptions};
use std::path::Path;

/// An inventory on a device. Any number of threads can call it.
pub(crate) struct Inventory {
    store: Store,
    /// Item to pieces in stock and pieces received.
    items: NamespaceId,
    /// Item, a zero byte, and number of an order, to pieces.
    ordered: NamespaceId,
}

/// A row of an item.
#[derive(Clone, Copy, Default)]
struct Row {
    stock: u64,
    received: u64,
}

impl Row {
    fn of(bytes: &[u8]) -> Row {
        let at =
            |from: usize| bytes.get(from..from + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_be_bytes);
        Row { stock: at(0), received: at(8) }
    }

    fn bytes(self) -> Vec<u8> {
        [self.stock.to_be_bytes(), self.received.to_be_bytes()].concat()
    }
}

impl Inventory {
    pub(crate) fn open(device: Device) -> Result<Inventory, Error> {
        let keys = NamespaceOptions::records(KeyKind::Ordered);
        let items = device.ensure_namespace("items", &keys)?.id();
        let ordered = device.ensure_namespace("ordered", &keys)?.id();
        Ok(Inventory { store: Store::open(device, &StoreOptions::new(8 << 20))?, items, ordered })
    }

    fn row(&self, txn: &mut Transaction, item: &str) -> Result<Row, Error> {
        Ok(txn.read_for_update(self.items, item)?.map_or(Row::default(), |value| Row::of(&value)))
    }

    /// Adds to the stock of an item. Returns how many there are.
    pub(crate) fn receive(&self, item: &str, count: u64) -> Result<u64, Error> {
        self.store.run(|txn| {
            let row = self.row(txn, item)?;
            let row = Row { stock: row.stock + count, received: row.received + count };
            txn.upsert(self.items, item, &row.bytes())?;
            Ok(row.stock)
        })
    }

    /// Takes items for an order; none of them if one is short, whose name it returns. An order has each item at most one time.
    pub(crate) fn order(&self, number: u64, lines: &[(&str, u64)]) -> Result<Result<(), String>, Error> {
        let mut lines = lines.to_vec();
        lines.sort_unstable(); // one order for all, so transactions rarely deadlock
        self.store.run(|txn| {
            let mut rows = Vec::new();
            for (item, count) in &lines {
                let row = self.row(txn, item)?;
                if row.stock < *count {
                    return Ok(Err((*item).to_owned()));
                }
                rows.push(Row { stock: row.stock - count, ..row });
            }
            for ((item, count), row) in lines.iter().zip(rows) {
                txn.upsert(self.items, *item, &row.bytes())?;
                txn.insert(self.ordered, &place(item, number)?, &count.to_be_bytes())?;
            }
            Ok(Ok(()))
        })
    }

    /// What is wrong, as of one moment: all that was received is in stock or in an order.
    pub(crate) fn check(&self) -> Result<Vec<String>, Error> {
        let (snapshot, mut wrong) = (self.store.read_only()?, Vec::new());
        for entry in snapshot.iter(self.items) {
            let (item, value) = entry?;
            let (row, mut ordered) = (Row::of(&value), 0);
            for line in snapshot.prefix(self.ordered, &[item.as_bytes(), &[0]].concat()) {
                ordered += line?.1.try_into().map_or(0, u64::from_be_bytes);
            }
            if row.stock + ordered != row.received {
                wrong.push(format!("{item}: {} received, {} in stock, {ordered} ordered", row.received, row.stock));
            }
        }
        Ok(wrong)
    }
}

fn place(item: &str, number: u64) -> Result<KeyBuf, Error> {
    Ok(KeyBuf::new(&[item.as_bytes(), &[0], &number.to_be_bytes()].concat())?)
}

/// What `main` runs, on a device in this directory.
pub(crate) fn demo(directory: &Path) -> Result<(), Error> {
    let stock = Inventory::open(Device::open_or_create(directory.join("stock.kaml"), &CreateOptions::new(64 << 20))?)?;
    stock.receive("cup", 4)?;
    let number = stock.receive("tea", 100)?;
    match stock.order(number, &[("tea", 3), ("cup", 1)])? {
        Ok(()) => println!("order {number} is taken"),
        Err(item) => println!("order {number}: there is too little {item}"),
    }
    assert_eq!(stock.check()?, Vec::<String>::new());
    Ok(())
}

fn main() -> Result<(), Error> {
    demo(Path::new("."))
}
