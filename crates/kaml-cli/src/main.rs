//! The `kaml` command line.
fn main() {}
