//! One module for each subcommand.

mod bench;

use crate::failure::Failure;
use clap::Subcommand;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Measure this machine's floors, its raw disk, and KAML on it
    Bench(bench::Arguments),
}

impl Command {
    /// Does it.
    pub fn run(self) -> Result<(), Failure> {
        match self {
            Command::Bench(arguments) => arguments.run(),
        }
    }
}
