//! Store and device in the laboratory: all their threads under a scheduler that explores interleavings, over the shipped
//! firmware on simulated NAND, in virtual time. Everything follows from a seed.
//!
//! ```sh
//! cargo test -p kaml --features model --test lab
//! KAML_LAB_SEED=1000 KAML_LAB_RUNS=50000 cargo test --release -p kaml --features model --test lab
//! ```

mod device;
#[path = "../stress/everything/mod.rs"]
mod everything;
mod explore;
mod flash;
mod linear;
#[path = "../store/moves.rs"]
mod moves;
#[path = "../store/said.rs"]
#[allow(dead_code, reason = "nothing is sent through a pipe here")]
mod said;
#[path = "../store/serial.rs"]
mod serial;
mod store;
