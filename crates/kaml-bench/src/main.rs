//! The `kaml-bench` command line: what a machine allows, and what KAML does on it.
//!
//! Lives here:       flags and tables.
//! Lives elsewhere:  what is run and measured (`kaml-workloads`); exit codes, output and signals (`kaml-terminal`).
#![allow(unreachable_pub, reason = "a program exports nothing; `pub` marks the door of each module")]

mod commands;
mod compare;
mod conflicts;
mod database;
mod kill;
mod served;

use clap::Parser;
use std::process::ExitCode;

/// Measures this machine's floors, its raw disk, and KAML on it.
#[derive(Parser)]
#[command(name = "kaml-bench", version, propagate_version = true, max_term_width = 110)]
#[command(after_help = "Examples:
  kaml-bench compare                           every bar with its floor
  kaml-bench put --threads 32                  durable puts on a new device
  kaml-bench ycsb a,b --threads 16             YCSB on the record cache
  kaml-bench kill --cycles 100                 kill a writer again and again; nothing acknowledged is lost

Each makes its device in --dir and removes it. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.")]
struct Arguments {
    #[command(subcommand)]
    bench: commands::Bench,
}

fn main() -> ExitCode {
    match Arguments::parse().bench.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
