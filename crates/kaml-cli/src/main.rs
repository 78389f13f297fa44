//! The `kaml` command line.
//!
//! Lives here:       arguments, files, trees of files.
//! Lives elsewhere:  everything about storing (`kaml`); exit codes, tables and progress (`kaml-terminal`).
#![allow(unreachable_pub, reason = "a program exports nothing; `pub` marks the door of each module")]

mod commands;
mod intake;
mod jsonl;
mod keys;
mod moment;
mod old_tree;
mod parallel;
mod place;
mod range;
mod restore;
mod secrets;
mod shelf;
mod store;
mod tree;
mod ttl;
mod walk;
mod whole;

use clap::Parser;
use kaml_terminal::{failure, interrupt, memory, output, size};
use std::io::Write;
use std::process::ExitCode;

/// A key-value SSD in software: durable, atomic records on an ordinary file or block device.
#[derive(Parser)]
#[command(name = "kaml", version, propagate_version = true, max_term_width = 110)]
#[command(after_help = "Examples:
  kaml quickstart                       # watch it store a tree, get killed and lose nothing
  kaml create data.kaml --capacity 1G   # create a device on a file
  kaml namespace create data.kaml notes # create a namespace on it
  kaml put data.kaml notes hello world  # store a record
  kaml get data.kaml notes hello        # read it back

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, \
4 condition not met, 130 interrupted.")]
struct Arguments {
    #[command(subcommand)]
    command: commands::Command,
}

#[global_allocator]
static MEMORY: memory::SystemMemory = memory::SystemMemory;

fn main() -> ExitCode {
    memory::explain_panics();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return explain(&error),
    };
    match arguments.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Shows help, the version, or what is wrong with the arguments.
fn explain(error: &clap::Error) -> ExitCode {
    let shown = error.print().and_then(|()| std::io::stdout().flush());
    match shown {
        Err(failed) if !error.use_stderr() => failure::Failure::output(failed).report(),
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)),
    }
}
