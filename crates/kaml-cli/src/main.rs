//! The `kaml` command line.
//!
//! Lives here:       arguments, files, progress, tables, exit codes (`failure`).
//! Lives elsewhere:  everything about storing (`kaml`) and measuring (`kaml-workloads`); nothing is computed here.
#![allow(unreachable_pub, reason = "a program exports nothing; `pub` marks the door of each module")]

mod commands;
mod failure;
mod interrupt;
mod keys;
mod output;
mod parallel;
mod place;
mod restore;
mod size;
mod store;
mod tree;
mod whole;

use clap::Parser;
use std::process::ExitCode;

/// A key-value SSD in software: durable, atomic records on an ordinary file or block device.
#[derive(Parser)]
#[command(name = "kaml", version, propagate_version = true, max_term_width = 110)]
#[command(after_help = "Examples:
  kaml quickstart                       see it store a tree, be killed, and lose nothing
  kaml create data.kaml --capacity 1G   make a device on a file
  kaml namespace create data.kaml notes make a namespace on it
  kaml put data.kaml notes hello world  store a record
  kaml get data.kaml notes hello        read it back

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, \
4 condition not met, 130 interrupted.")]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    match Arguments::parse().command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
