//! The record cache and its transactions over a real device.

mod cache;
mod crash;
mod delayed;
mod history;
mod long_keys;
mod moves;
mod power;
mod promises;
mod queue;
mod ranges;
mod read_only;
mod said;
mod serial;
mod txn;
mod world;
mod write_back;
