//! Prints the figures of an index: `cargo run --release -p kaml-index --example probe -- [keys] [addr bits]`.

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().expect("a number"));
    let keys = arguments.next().unwrap_or(10_000_000);
    let addr_bits = arguments.next().unwrap_or(32) as u32;
    let figures = kaml_index::measure(keys, addr_bits);
    println!("{figures:#?}");
    println!("readers 1 → 2: ×{:.2}; updating ×{:.2}", figures.readers_scale(), figures.readers_updating_scale());
}
