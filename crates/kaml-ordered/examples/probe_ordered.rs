//! Prints the figures of an ordered index:
//! `cargo run --release -p kaml-ordered --example probe_ordered -- u64|dense|uuid|path [keys] [addr bits] [rounds]`.

use kaml_ordered::{MeasuredKeys, measure};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let keys = match arguments.next().as_deref() {
        None | Some("u64") => MeasuredKeys::U64,
        Some("dense") => MeasuredKeys::Dense,
        Some("uuid") => MeasuredKeys::Uuid,
        Some("path") => MeasuredKeys::Path,
        Some(other) => panic!("{other} is not u64, dense, uuid or path"),
    };
    let mut number = |default: u64| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (count, addr_bits, rounds) = (number(10_000_000), number(32) as u32, number(5) as usize);
    let figures = measure(keys, count, addr_bits, rounds);
    println!("{keys:?}: {figures:#?}");
    println!(
        "a hit takes {:.2} dependent loads, a miss {:.2}",
        figures.hit_ns / figures.dependent_load_ns,
        figures.miss_ns / figures.dependent_load_ns
    );
}
