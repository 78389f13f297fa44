//! The record cache and its transactions over a real device.

mod cache;
mod crash;
mod delayed;
mod history;
mod moves;
mod power;
mod queue;
mod said;
mod serial;
mod txn;
mod world;
mod write_back;
